"""The plan API: what clients may ask of a running join and tell it to do, without HTTP's details.

Always holds: reading changes nothing; whoever may write may read; a plan that is put twice changes nothing the second time; at most one
plan is put at a time, and there clients wait for each other; the join never waits for them.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from streamjoin.bearer import Token
from streamjoin.elastic.decision import Decision
from streamjoin.elastic.ledger import Ledger
from streamjoin.elastic.plan import Plan
from streamjoin.elastic.planner import Planned, overfull
from streamjoin.epoch.refusals import PlanOutdated, PlanRefused, require_fit
from streamjoin.epoch.replan import PlanStatus
from streamjoin.job import Job
from streamjoin.language.layout import Layout
from streamjoin.language.sides import SIDE_NAMES
from streamjoin.scheme.statistics import SideStatistics, Statistics, loads
from streamjoin.scheme.tiling import Scheme
from streamjoin.serve.admission import Admission, Answer, Content, Refused, Request, Stream
from streamjoin.serve.autoscaler import Autoscaler
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
from streamjoin.serve.wishes import Planning, mapped_plan, newest_generation, plan_for_workers, same_cut

MOST_BODY_BYTES = 1 << 20
METHODS: dict[str, tuple[str, ...]] = {
    "/v1/plan": ("GET", "HEAD", "PUT"),
    "/v1/plan/preview": ("POST",),
    "/v1/scaling": ("GET", "HEAD", "PUT"),
    "/v1/statistics": ("GET", "HEAD"),
    "/v1/health": ("GET", "HEAD"),
}
OF_PAGE = {"/v1/live": ("GET", "HEAD"), "/v1/decisions": ("GET", "HEAD")}
"""What there is besides where a page shows the join."""
ATTEMPTS = 3
"""How often a wish is planned anew because another plan came first."""


class Joining(Planning, Protocol):
    """The join that is asked: what of ``epoch.driver.Driver`` is needed. Any thread may call it."""

    def rates(self) -> tuple[float, ...]: ...


class PlanApi:
    """See the module. Any thread may call it."""

    def __init__(
        self,
        join: Joining,
        job: Job,
        health: Callable[[], tuple[bool, dict[str, Any]]],
        *,
        token: Token | None = None,
        queries: QueryApi | None = None,
        live: Board | None = None,
        draw: Draw = lambda scheme: None,
        autoscaler: Callable[[], Autoscaler | None] = lambda: None,
        reordered: Callable[[], Sequence[Decision]] = tuple,
    ) -> None:
        """``health``: whether the join is at work, and the facts of ``/healthz``. Without ``queries`` none are answered, and without
        ``live`` there is no page, for which ``draw`` makes shapes of schemes. ``autoscaler``: where there is one. ``reordered``: where
        there is none, what has changed in how streams meet."""
        self._join = join
        self._job = job
        self._health = health
        self._queries, self._live, self._draw, self._autoscaler, self._reordered = queries, live, draw, autoscaler, reordered
        methods = METHODS | ({} if queries is None else QUERY_METHODS) | ({} if live is None else OF_PAGE)
        self._admission = Admission(methods, token, private=PRIVATE)
        self._putting = threading.Lock()

    def adopt(self, job: Job) -> None:
        """The limits on workers have changed."""
        self._job = job

    @property
    def has_page(self) -> bool:
        return self._live is not None

    def admit(self, method: str, path: str, authorization: str | None, *, address: str, host: str) -> None:
        """As :meth:`streamjoin.serve.admission.Admission.admit`."""
        self._admission.admit(method, path, authorization, address=address, host=host)

    def answer(self, request: Request) -> Answer | Content | Stream:
        """The answer to a request that was admitted. Never raises Refused."""
        if self._queries is not None and self._queries.answers(request.path):
            return self._queries.answer(request)
        try:
            if request.path == "/v1/live" and self._live is not None:
                return self._live.answer(request)
            if request.path == "/v1/decisions":
                return self._decisions()
            if request.path == "/v1/scaling":
                return self._scaling(request.body if request.method == "PUT" else None)
            if request.path == "/v1/plan/preview":
                return self._preview(request.body)
            if request.path == "/v1/health":
                return self._healthy()
            if request.path == "/v1/statistics":
                return self._statistics()
            if request.method == "PUT":
                with self._putting:
                    return self._put(request.body)
            return Answer(200, self._plan())
        except Refused as refused:
            return refused.answer

    def _running(self) -> tuple[PlanStatus, Layout]:
        status, layout = self._join.plan_status(), self._join.layout
        if status is None or layout is None:
            raise Refused(503, "the join has no plan yet: it makes one from its first input; ask again then", Retry_After="1")
        return status, layout

    def _put(self, body: bytes) -> Answer:
        try:
            asked = read_plan(body)
        except BodyError as error:
            raise Refused(400, str(error)) from error
        try:
            changed = self._wish(asked) if isinstance(asked, Wish) else self._whole(*asked)
        except PlanOutdated as error:
            raise Refused(409, str(error)) from error
        except PlanRefused as error:
            raise Refused(422, str(error)) from error
        return Answer(202 if changed else 200, self._plan())

    def _plan(self) -> PlanAnswer:
        status, _ = self._running()
        newest = status.scheme if status.wanted is None else status.wanted.scheme
        held = loads(newest, self._join.statistics())
        return PlanAnswer.of(status, overfull(held, newest.model, self._job.capacity), self._reordered())

    def _whole(self, asked: WholePlan, scheme: Scheme) -> bool:
        status, layout = self._running()
        newest = status.scheme if status.wanted is None else status.wanted.scheme
        if asked.generation == newest_generation(status) and asked.keep is None and same_cut(scheme, newest):
            return False
        return self._join.put_plan(self._as_asked(asked, scheme, status, layout))

    def _as_asked(self, asked: WholePlan, scheme: Scheme, status: PlanStatus, layout: Layout) -> Plan:
        """Raises PlanRefused."""
        try:
            scheme.check(layout.main)
            if asked.keep is not None:
                return Plan(asked.generation, scheme, tuple(asked.keep))
            return mapped_plan(status, self._join.statistics(), asked.generation, scheme)
        except (ValueError, ArithmeticError) as error:
            raise PlanRefused(f"scheme: {error}") from error

    def _preview(self, body: bytes) -> Answer:
        """What a plan that were put now would do; nothing is put."""
        try:
            asked = read_plan(body)
        except BodyError as error:
            raise Refused(400, str(error)) from error
        status, layout = self._running()
        newest = newest_generation(status)
        if status.wanted is not None:
            raise Refused(409, f"plan {newest} is being applied, and what a plan moves depends on what runs; ask again when it runs")
        statistics, job = self._join.statistics(), self._job
        try:
            if isinstance(asked, Wish):
                made = self._made(asked, status, statistics, layout)
            else:
                if asked[0].generation <= newest:
                    raise PlanOutdated(f"generation: {asked[0].generation} must be above {newest}, the newest plan's; read it again")
                plan = self._as_asked(*asked, status, layout)
                require_fit(plan, layout.main, job.min_workers, job.max_workers)
                made = planned(status, plan, statistics, layout)
        except PlanOutdated as error:
            raise Refused(409, str(error)) from error
        except PlanRefused as error:
            raise Refused(422, str(error)) from error
        return Answer(200, unchanged(status) if made is None else preview(made, job, self._draw))

    def _made(self, wish: Wish, status: PlanStatus, statistics: Statistics, layout: Layout) -> Planned | None:
        """The plan of a wish, with nothing on its way; None: the one that runs serves as well. Raises PlanRefused."""
        self._require_allowed(wish)
        model = wish.model or self._job.model
        if wish.after not in (None, status.generation):
            raise PlanOutdated(f"after: {wish.after} is not the newest plan, which is {status.generation}; read it again")
        try:
            made = plan_for_workers(status, statistics, layout, self._job, wish.workers, model)
        except ValueError as error:
            raise PlanRefused(f"model: {model} has no plan for {wish.workers} workers: {error}") from error
        as_now = not wish.replan and (made.plan.workers, model) == (status.workers, status.scheme.model)
        return None if as_now or not made.changed else made

    def _require_allowed(self, wish: Wish) -> None:
        job = self._job
        if not job.min_workers <= wish.workers <= job.max_workers:
            limits = f"from {job.min_workers} (spec.workers.min) to {job.max_workers} (spec.workers.max)"
            raise PlanRefused(f"workers: {wish.workers} must be {limits}; change either")

    def _scaling(self, body: bytes | None) -> Answer:
        """Whether the run scales itself; ``body``: that it is to pause, or to go on."""
        autoscaler = self._autoscaler()
        if body is not None:
            try:
                wish = read_scaling(body)
            except BodyError as error:
                raise Refused(400, str(error)) from error
            if autoscaler is None:
                text = "paused: nothing here decides on workers; start the run with --elastic, or on Kubernetes annotate the StreamJoin"
                raise Refused(409, f"{text} with streamjoin.dev/pause-scaling")
            autoscaler.paused_by = wish.by if wish.paused else None
            if self._live is not None:
                self._live.changed()
        by = None if autoscaler is None else autoscaler.paused_by
        mode = str(self._job.manifest.spec.scaling.mode)
        return Answer(200, ScalingAnswer(elastic=autoscaler is not None, mode=mode, paused=by is not None, by=by))

    def _wish(self, wish: Wish) -> bool:
        job, model = self._job, wish.model or self._job.model
        self._require_allowed(wish)
        for attempt in range(ATTEMPTS):
            status, layout = self._running()
            wanted = status.wanted
            newest = status.scheme if wanted is None else wanted.scheme
            if wish.after not in (None, newest_generation(status)):
                raise PlanOutdated(f"after: {wish.after} is not the newest plan, which is {newest_generation(status)}; read it again")
            if not wish.replan and (status.asked or newest.tasks, newest.model) == (wish.workers, model):
                return False
            try:
                made = plan_for_workers(status, self._join.statistics(), layout, job, wish.workers, model)
            except ValueError as error:
                raise PlanRefused(f"model: {model} has no plan for {wish.workers} workers: {error}") from error
            as_now = not wish.replan and (made.plan.workers, model) == (status.workers, status.scheme.model)
            if (as_now or not made.changed) and wanted is None:
                return False
            if as_now or not made.changed:
                assert wanted is not None
                if self._join.withdraw_plan(wanted.generation):
                    return True
                raise PlanOutdated(f"workers: {wish.workers} run, and another plan is being applied; when that runs, ask again")
            try:
                return self._join.put_plan(made.plan)
            except PlanOutdated:
                if attempt == ATTEMPTS - 1:
                    raise
        raise AssertionError("the last attempt returns or raises")

    def _statistics(self) -> Answer:
        _, layout = self._running()
        found, rates = self._join.statistics(), self._join.rates()
        of_sides = layout.by_side([rates[place.stream] for place in layout.places])
        sides = {name: _side(of_side, rate) for name, of_side, rate in zip(SIDE_NAMES, found.sides, of_sides, strict=True)}
        return Answer(200, StatisticsAnswer(predicate=layout.main.text, **sides))

    def _decisions(self) -> Content:
        autoscaler = self._autoscaler()
        if autoscaler is None:
            ledger = Ledger()
            for decision in self._reordered():
                ledger.record(decision)
        else:
            ledger = autoscaler.ledger
        return Content(("application/json", json.dumps(ledger.to_json()).encode() + b"\n"), NO_STORE)

    def _healthy(self) -> Answer:
        healthy, facts = self._health()
        status = self._join.plan_status()
        plan = {
            "generation": None if status is None else status.generation,
            "workers": None if status is None else status.workers,
            "phase": None if status is None else status.phase.value,
        }
        return Answer(200 if healthy else 503, HealthAnswer.model_validate(facts | plan))


def _side(side: SideStatistics, rate: float) -> SideAnswer:
    histogram = side.histogram
    spread = None if histogram is None else Spread(bounds=histogram.bounds.tolist(), counts=histogram.counts.tolist())
    return SideAnswer(tuples=side.tuples, weight=side.weight, histogram=spread, accepted_per_second=rate)
