"""The plan API: what clients may ask of a running join and tell it to do, without HTTP's details.

Always holds: reading changes nothing; whoever may write may read; a plan that is put twice changes nothing the second time; at most one
plan is put at a time, and clients wait for each other there, never the join for them.
"""

from __future__ import annotations

import ipaddress
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from streamjoin.elastic.plan import Plan
from streamjoin.elastic.planner import overfull
from streamjoin.epoch.replan import PlanOutdated, PlanRefused, PlanStatus
from streamjoin.job import Job
from streamjoin.language.layout import Layout
from streamjoin.language.sides import SIDE_NAMES
from streamjoin.scheme.statistics import SideStatistics, loads
from streamjoin.scheme.tiling import Scheme
from streamjoin.serve.messages import (
    BodyError,
    ErrorAnswer,
    HealthAnswer,
    Message,
    PlanAnswer,
    SideAnswer,
    Spread,
    StatisticsAnswer,
    WholePlan,
    Wish,
    read_plan,
)
from streamjoin.serve.token import TokenError, TokenFile
from streamjoin.serve.wishes import Planning, mapped_plan, newest_generation, plan_for_workers, same_cut

MOST_BODY_BYTES = 1 << 20
METHODS = {
    "/v1/plan": ("GET", "HEAD", "PUT"),
    "/v1/statistics": ("GET", "HEAD"),
    "/v1/health": ("GET", "HEAD"),
}
ATTEMPTS = 3
"""How often a wish is planned anew because another plan came first."""


class Joining(Planning, Protocol):
    """The join that is asked: what of ``epoch.driver.Driver`` is needed. Any thread may call it."""

    def rates(self) -> tuple[float, ...]: ...


@dataclass(frozen=True)
class Answer:
    """A status and a message."""

    status: int
    message: Message
    headers: Mapping[str, str] = field(default_factory=dict)


class Refused(Exception):  # noqa: N818 - an answer rather than an error
    """The request is answered by this."""

    def __init__(self, status: int, error: str, **headers: str) -> None:
        super().__init__(error)
        self.answer = Answer(status, ErrorAnswer(error=error), {name.replace("_", "-"): value for name, value in headers.items()})


class PlanApi:
    """See the module. Any thread may call it."""

    def __init__(
        self,
        join: Joining,
        job: Job,
        health: Callable[[], tuple[bool, dict[str, Any]]],
        *,
        token: TokenFile | None = None,
    ) -> None:
        """``health``: whether the join is at work, and the facts of ``/healthz``."""
        self._join = join
        self._job = job
        self._health = health
        self._token = token
        self._putting = threading.Lock()

    def adopt(self, job: Job) -> None:
        """The limits on workers have changed."""
        self._job = job

    def admit(self, method: str, path: str, authorization: str | None, *, address: str, host: str) -> None:
        """Let a request pass before its body is read, or raise Refused.

        ``address``: the one that is listened on; ``host``: the request's ``Host``, empty where it has none.
        """
        if path not in METHODS:
            raise Refused(404, f"{path}: there is no such resource; there are {', '.join(METHODS)}")
        if method not in METHODS[path]:
            allowed = ", ".join(METHODS[path])
            raise Refused(405, f"{method} {path}: the methods here are {allowed}", Allow=allowed)
        if self._token is None:
            if method != "PUT":
                return
            if not _is_loopback(address):
                raise Refused(
                    403,
                    f"PUT {path}: without a token plans are taken from this machine only, and {address} is open to others; "
                    "start the run with --api-token-file, or without --metrics-address",
                )
            if host and not _is_loopback(_without_port(host)):  # a page in a browser here that was told that its own name is this machine
                raise Refused(403, f"PUT {path}: without a token the Host must be this machine (localhost, 127.0.0.1), not {host!r}")
            return
        try:
            admitted = self._token.admits(authorization)
        except TokenError as error:
            raise Refused(503, f"nobody is let in: {error}") from error
        if not admitted:
            what = "the token is not the right one" if authorization else "there is no token"
            text = f"{method} {path}: {what}; send Authorization: Bearer and what the file of --api-token-file holds"
            raise Refused(401, text, WWW_Authenticate='Bearer realm="streamjoin"')

    def answer(self, method: str, path: str, body: bytes) -> Answer:
        """The answer to a request that was admitted. Never raises Refused."""
        try:
            if path == "/v1/health":
                return self._healthy()
            if path == "/v1/statistics":
                return self._statistics()
            if method == "PUT":
                with self._putting:
                    return self._put(body)
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
        return PlanAnswer.of(status, overfull(held, newest.model, self._job.capacity))

    def _whole(self, asked: WholePlan, scheme: Scheme) -> bool:
        status, layout = self._running()
        newest = status.scheme if status.wanted is None else status.wanted.scheme
        if asked.generation == newest_generation(status) and asked.keep is None and same_cut(scheme, newest):
            return False
        try:
            scheme.check(layout.main)
            if asked.keep is not None:
                plan = Plan(asked.generation, scheme, tuple(asked.keep))
            else:
                plan = mapped_plan(status, self._join.statistics(), asked.generation, scheme)
        except (ValueError, ArithmeticError) as error:
            raise PlanRefused(f"scheme: {error}") from error
        return self._join.put_plan(plan)

    def _wish(self, wish: Wish) -> bool:
        job, model = self._job, wish.model or self._job.model
        if not job.min_workers <= wish.workers <= job.max_workers:
            limits = f"from {job.min_workers} (spec.workers.min) to {job.max_workers} (spec.workers.max)"
            raise PlanRefused(f"workers: {wish.workers} must be {limits}; change either")
        for attempt in range(ATTEMPTS):
            status, layout = self._running()
            wanted = status.wanted
            newest = status.scheme if wanted is None else wanted.scheme
            if wish.after not in (None, newest_generation(status)):
                raise PlanOutdated(f"after: {wish.after} is not the newest plan, which is {newest_generation(status)}; read it again")
            if not wish.replan and (newest.tasks, newest.model) == (wish.workers, model):
                return False
            try:
                made = plan_for_workers(status, self._join.statistics(), layout, job, wish.workers, model)
            except ValueError as error:
                raise PlanRefused(f"model: {model} has no plan for {wish.workers} workers: {error}") from error
            as_now = not wish.replan and (made.plan.workers, model) == (status.workers, status.scheme.model)
            if (as_now or not made.changed) and wanted is None:
                return False
            if not made.changed:
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
        of_sides = self._job.by_side([rates[place.stream] for place in layout.places])
        sides = {name: _side(of_side, rate) for name, of_side, rate in zip(SIDE_NAMES, found.sides, of_sides, strict=True)}
        return Answer(200, StatisticsAnswer(predicate=layout.main.text, **sides))

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


def _is_loopback(address: str) -> bool:
    if address == "localhost":
        return True
    try:
        return ipaddress.ip_address(address.partition("%")[0]).is_loopback
    except ValueError:
        return False


def _without_port(host: str) -> str:
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.rpartition(":")[0] if ":" in host else host
