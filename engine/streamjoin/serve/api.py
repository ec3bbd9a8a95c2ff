"""The plan API: what clients may ask of a running join and tell it to do, without HTTP's details.

Always holds: reading changes nothing; whoever may write may read; a plan that is put twice changes nothing the second time; at most one
plan is put at a time, and there clients wait for each other; the join never waits for them.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from streamjoin.bearer import Token
from streamjoin.controlplane.refusals import PlanOutdated, PlanRefused, require_fit
from streamjoin.controlplane.replan import PlanStatus
from streamjoin.elastic.decision import Decision
from streamjoin.elastic.ledger import Ledger
from streamjoin.elastic.plan import Plan
from streamjoin.elastic.planner import Planned, overfull
from streamjoin.language.layout import Layout
from streamjoin.language.sides import SIDE_NAMES
from streamjoin.scheme.statistics import SideStatistics, loads
from streamjoin.scheme.tiling import Scheme, same_cut
from streamjoin.serve.admission import OPEN_METHODS, Admission, Answer, Content, Refused, Request, Stream
from streamjoin.serve.live import NO_STORE, Board
from streamjoin.serve.messages import (
    BodyError,
    HealthAnswer,
    PlanAnswer,
    ScalingAnswer,
    SideAnswer,
    Spread,
    StatisticsAnswer,
    WholePlan,
    Wish,
    read_plan,
    read_scaling,
)
from streamjoin.serve.preview import Draw, planned, preview, unchanged
from streamjoin.serve.queries import METHODS as QUERY_METHODS
from streamjoin.serve.queries import PRIVATE, QueryApi
from streamjoin.serve.reorderings import Reorderings
from streamjoin.serve.savepoints import PATH as SAVEPOINTS
from streamjoin.serve.savepoints import answered
from streamjoin.serve.scaler import Scaler
from streamjoin.serve.standbys import STANDS_BY
from streamjoin.serve.wishes import mapped_plan, newest_generation, plan_for_workers

if TYPE_CHECKING:
    from streamjoin.controlplane.driver import Driver

MOST_BODY_BYTES = 1 << 20
METHODS: dict[str, tuple[str, ...]] = {
    "/v1/plan": ("GET", "HEAD", "PUT"),
    "/v1/plan/preview": ("POST",),
    "/v1/scaling": ("GET", "HEAD", "PUT"),
    "/v1/statistics": ("GET", "HEAD"),
    "/v1/health": ("GET", "HEAD"),
    SAVEPOINTS: ("GET", "HEAD"),
    f"{SAVEPOINTS}/{{name}}": ("GET", "HEAD", "PUT", "DELETE"),
}
OF_PAGE = {"/v1/live": ("GET", "HEAD"), "/v1/decisions": ("GET", "HEAD")}
"""What there is besides where a page shows the join."""
ATTEMPTS = 3
"""How often a wish is planned anew because another plan came first."""


class PlanApi:
    """See the module. Any thread may call it."""

    def __init__(
        self,
        driver: Driver,
        health: Callable[[], tuple[bool, dict[str, Any]]],
        *,
        token: Token | None = None,
        queries: QueryApi | None = None,
        live: Board | None = None,
        draw: Draw = lambda scheme: None,
        scaler: Scaler | None = None,
        reorderings: Reorderings | None = None,
    ) -> None:
        """``health``: whether the join is at work, and the facts of ``/healthz``. Without ``queries`` none are answered, and without
        ``live`` there is no page, for which ``draw`` makes shapes of schemes. ``reorderings``: where there is no autoscaler."""
        self._driver = driver
        self._health = health
        self._queries, self._live, self._draw, self._scaler, self._reorderings = queries, live, draw, scaler, reorderings
        methods = METHODS | ({} if queries is None else QUERY_METHODS) | ({} if live is None else OF_PAGE)
        self.admission = Admission(methods, token, private=PRIVATE)
        self._putting = threading.Lock()

    @property
    def has_page(self) -> bool:
        return self._live is not None

    def answer(self, request: Request) -> Answer | Content | Stream:
        """The answer to a request that was admitted. Never raises Refused."""
        if self._queries is not None and self._queries.answers(request.path):
            return self._queries.answer(request)
        try:
            if request.method not in OPEN_METHODS and self._health()[1]["state"] == STANDS_BY:
                raise Refused(503, f"{request.method} {request.path}: this driver stands by; ask the one that is at work", Retry_After="1")
            if request.path == "/v1/live" and self._live is not None:
                return self._live.answer(request)
            if request.path in (told := self._told()):
                return told[request.path]()
            if request.path.startswith(SAVEPOINTS):
                return answered(self._driver.savepoints, request)
            if request.path == "/v1/scaling":
                return self._scaling(request.body if request.method == "PUT" else None)
            if request.path == "/v1/plan/preview":
                return self._preview(request.body)
            if request.method == "PUT":
                with self._putting:
                    return self._put(request.body)
            return Answer(200, self._plan())
        except Refused as refused:
            return refused.answer
        except BodyError as error:
            return Refused(400, str(error)).answer
        except PlanRefused as error:
            return Refused(409 if isinstance(error, PlanOutdated) else 422, str(error)).answer

    def _told(self) -> dict[str, Callable[[], Answer | Content]]:
        """What is only told, by path."""
        return {"/v1/decisions": self._decisions, "/v1/health": self._healthy, "/v1/statistics": self._statistics}

    def _running(self) -> tuple[PlanStatus, Layout]:
        status, layout = self._driver.plan_status(), self._driver.layout
        if status is None or layout is None:
            raise Refused(503, "the join has no plan yet: it makes one from its first input; ask again then", Retry_After="1")
        return status, layout

    def _put(self, body: bytes) -> Answer:
        asked = read_plan(body)
        changed = self._wish(asked) if isinstance(asked, Wish) else self._whole(*asked)
        return Answer(202 if changed else 200, self._plan())

    def _plan(self) -> PlanAnswer:
        status, _ = self._running()
        newest = status.scheme if status.wanted is None else status.wanted.scheme
        held = loads(newest, self._driver.statistics())
        return PlanAnswer.of(status, overfull(held, newest.model, self._driver.job.capacity), self._reordered)

    def _whole(self, asked: WholePlan, scheme: Scheme) -> bool:
        status, layout = self._running()
        newest = status.scheme if status.wanted is None else status.wanted.scheme
        if asked.generation == newest_generation(status) and asked.keep is None and same_cut(scheme, newest):
            return False
        return self._driver.put_plan(self._as_asked(asked, scheme, status, layout))

    def _as_asked(self, asked: WholePlan, scheme: Scheme, status: PlanStatus, layout: Layout) -> Plan:
        """Raises PlanRefused."""
        try:
            scheme.check(layout.main)
            if asked.keep is not None:
                return Plan(asked.generation, scheme, tuple(asked.keep))
            return mapped_plan(status, self._driver.statistics(), asked.generation, scheme, self._driver.placement(asked.going))
        except (ValueError, ArithmeticError) as error:
            raise PlanRefused(f"scheme: {error}") from error

    def _preview(self, body: bytes) -> Answer:
        """What a plan that were put now would do; nothing is put."""
        asked = read_plan(body)
        status, layout = self._running()
        newest = newest_generation(status)
        if status.wanted is not None:
            raise Refused(409, f"plan {newest} is being applied, and what a plan moves depends on what runs; ask again when it runs")
        statistics, job = self._driver.statistics(), self._driver.job
        if isinstance(asked, Wish):
            self._require_allowed(asked)
            made = self._made(asked, status, layout)
            return Answer(200, preview(made, job, self._draw) if made.changed else unchanged(status))
        if asked[0].generation <= newest:
            raise PlanOutdated(f"generation: {asked[0].generation} must be above {newest}, the newest plan's; read it again")
        plan = self._as_asked(*asked, status, layout)
        require_fit(plan, layout.main, job.min_workers, job.max_workers)
        return Answer(200, preview(planned(status, plan, statistics, layout), job, self._draw))

    def _made(self, wish: Wish, status: PlanStatus, layout: Layout) -> Planned:
        """The plan of a wish; it changes nothing where the one that runs serves as well. Raises PlanRefused."""
        model, newest = wish.model or self._driver.job.model, newest_generation(status)
        if wish.after not in (None, newest):
            raise PlanOutdated(f"after: {wish.after} is not the newest plan, which is {newest}; read it again")
        try:
            made = plan_for_workers(
                status, self._driver.statistics(), layout, self._driver.job, wish.workers, model, self._driver.placement(wish.going)
            )
        except ValueError as error:
            raise PlanRefused(f"model: {model} has no plan for {wish.workers} workers: {error}") from error
        as_now = not wish.replan and (made.plan.workers, model) == (status.workers, status.scheme.model)
        return replace(made, changed=False) if as_now and status.wanted is None else made

    def _require_allowed(self, wish: Wish) -> None:
        job = self._driver.job
        if not job.min_workers <= wish.workers <= job.max_workers:
            limits = f"from {job.min_workers} (spec.workers.min) to {job.max_workers} (spec.workers.max)"
            raise PlanRefused(f"workers: {wish.workers} must be {limits}; change either")

    def _scaling(self, body: bytes | None) -> Answer:
        """Whether the run scales itself; ``body``: that it is to pause, or to go on."""
        scaler = self._scaler
        if body is not None:
            wish = read_scaling(body)
            if scaler is None:
                text = "paused: nothing here decides on workers; start the run with --elastic, or on Kubernetes annotate the StreamJoin"
                raise Refused(409, f"{text} with streamjoin.dev/pause-scaling")
            scaler.paused_by = wish.by if wish.paused else None
            if self._live is not None:
                self._live.changed()
        by = None if scaler is None else scaler.paused_by
        mode = str(self._driver.job.manifest.spec.scaling.mode)
        return Answer(200, ScalingAnswer(elastic=scaler is not None, mode=mode, paused=by is not None, by=by))

    def _wish(self, wish: Wish) -> bool:
        self._require_allowed(wish)
        model = wish.model or self._driver.job.model
        for attempt in range(ATTEMPTS):
            status, layout = self._running()
            wanted = status.wanted
            newest = status.scheme if wanted is None else wanted.scheme
            asked_already = (status.asked or newest.tasks, newest.model) == (wish.workers, model)
            if asked_already and not wish.replan and wish.after in (None, newest_generation(status)):
                return False
            made = self._made(wish, status, layout)
            if not made.changed and wanted is None:
                return False
            as_now = not wish.replan and (made.plan.workers, model) == (status.workers, status.scheme.model)
            if wanted is not None and (as_now or not made.changed) and self._driver.withdraw_plan(wanted.generation):
                return True
            if not made.changed:
                raise PlanOutdated(f"workers: {wish.workers} run, and another plan is being applied; when that runs, ask again")
            try:
                return self._driver.put_plan(made.plan)
            except PlanOutdated:
                if attempt == ATTEMPTS - 1:
                    raise
        raise AssertionError("the last attempt returns or raises")

    def _statistics(self) -> Answer:
        _, layout = self._running()
        found, rates = self._driver.statistics(), self._driver.rates()
        of_sides = layout.by_side([rates[place.stream] for place in layout.places])
        sides = {name: _side(of_side, rate) for name, of_side, rate in zip(SIDE_NAMES, found.sides, of_sides, strict=True)}
        return Answer(200, StatisticsAnswer(predicate=layout.main.text, **sides))

    def _decisions(self) -> Content:
        ledger = Ledger() if self._scaler is None else self._scaler.ledger
        for decision in self._reordered:
            ledger.record(decision)
        return Content(("application/json", json.dumps(ledger.to_json()).encode() + b"\n"), NO_STORE)

    @property
    def _reordered(self) -> tuple[Decision, ...]:
        return () if self._reorderings is None else self._reorderings.recent

    def _healthy(self) -> Answer:
        healthy, facts = self._health()
        status = self._driver.plan_status()
        plan = {
            "generation": None if status is None else status.generation,
            "workers": None if status is None else status.workers,
            "phase": None if status is None else status.phase.value,
            "idleSeconds": self._driver.idleness.seconds,
        }
        return Answer(200 if healthy else 503, HealthAnswer.model_validate(facts | plan))


def _side(side: SideStatistics, rate: float) -> SideAnswer:
    histogram = side.histogram
    spread = None if histogram is None else Spread(bounds=histogram.bounds.tolist(), counts=histogram.counts.tolist())
    return SideAnswer(tuples=side.tuples, weight=side.weight, histogram=spread, accepted_per_second=rate)
