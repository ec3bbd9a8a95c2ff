"""The closed loop on one machine: after each epoch a sample goes to the decision core, and what it decides becomes a plan.

The core (``elastic.core``, in its ``elastic.shell``) decides when, the planner (``elastic.planner``) how; this is what connects them with
the driver. It knows the time only by the clock that it is given.

Always holds: at most one plan of its own is on its way; a plan that somebody else puts is followed all the same; whatever goes wrong here
is told once and the join goes on under the plan that it has. A plan that is dropped, refused or changes nothing is not tried again at once.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from streamjoin.controlplane.fates import Fate
from streamjoin.controlplane.planning import utilization
from streamjoin.controlplane.refusals import PlanRefused
from streamjoin.controlplane.replan import PlanPhase, PlanStatus
from streamjoin.elastic.decision import Decision, Kind
from streamjoin.elastic.events import Paused, Unpaused
from streamjoin.elastic.ledger import Ledger, Realised
from streamjoin.elastic.planned_forecast import PlannedForecast
from streamjoin.elastic.planner import overfull
from streamjoin.elastic.sample import Sample
from streamjoin.elastic.settings import Settings
from streamjoin.elastic.shell import Progress, Shell
from streamjoin.epoch.ports import EpochResult
from streamjoin.job import Job
from streamjoin.language.layout import Layout
from streamjoin.retention import window_seconds
from streamjoin.serve.decisions import LedgerError, LedgerWriter, load_ledger
from streamjoin.serve.observer import Observer
from streamjoin.serve.reorderings import Reorderings
from streamjoin.serve.wishes import plan_for_workers, running_plan
from streamjoin.state.storage import Storage

if TYPE_CHECKING:
    from streamjoin.controlplane.driver import Driver

RATE_EPOCHS = 10
"""Over how many epochs the rates of a sample are taken, and what was shed: what is held now came with them, not with the last one alone."""
RATE_SECONDS = 30.0
"""Rates are taken over no longer, where epochs are long: by older ones nobody could look ahead. Over one epoch at least."""
FORECAST_SECONDS = 5.0
"""A forecast serves for so long, and longer where planning takes long."""
WRITE_SECONDS = 10.0
"""The ledger is written at most so often."""


@dataclass(frozen=True, slots=True)
class _Arrived:
    """What came with an epoch."""

    at: float
    """When it was committed."""
    tuples: tuple[int, ...]
    """By stream, those shed included."""
    watermark: int | None
    """After it, of the stream that is furthest behind, in microseconds; None: of no stream, or not of all."""


class Autoscaler(Observer):
    """See the module. Any thread may read ``decision``."""

    def __init__(
        self,
        job: Job,
        driver: Driver,
        storage: Storage,
        *,
        clock: Callable[[], float],
        tell: Callable[[str], None] = lambda text: None,
        decided: Callable[[Decision], None] = lambda decision: None,
    ) -> None:
        """``tell`` gets lines for whoever watches, ``decided`` every decision."""
        self.settings = _settings_of(job)
        self._shell = Shell(Ledger())
        self.decision: Decision | None = None
        """The last one."""
        self._made: int | None = None
        """The generation of the last plan that came of a decision."""
        self._job, self._driver, self._storage, self._clock, self._tell, self._decided = job, driver, storage, clock, tell, decided
        self._writer: LedgerWriter | None = None
        self._written: tuple[int, int] | None = None
        self._written_at = -WRITE_SECONDS
        self._arrived: deque[_Arrived] = deque(maxlen=RATE_EPOCHS + 1)
        """With the last epochs."""
        self._shed: deque[int] = deque(maxlen=RATE_EPOCHS + 1)
        self._drops: int | None = None
        """Plans that were given up, as far as they are known here; None before the first epoch."""
        self._reorderings = Reorderings(job)
        self._complaint: str | None = None
        self.paused_by: str | None = None
        """The client that has paused scaling, until it is resumed or the run ends. None: scaling is not paused. Any thread may set it."""

    @property
    def ledger(self) -> Ledger:
        return self._shell.ledger

    def started(self, driver: Driver) -> None:
        """Take the checkpoint's ledger up. Raises nothing: without one a new one is begun."""
        try:
            self._shell.ledger = load_ledger(self._storage) or Ledger()
        except (LedgerError, OSError) as error:
            self._tell(f"warning: decisions are noted anew: {error}")
        self._writer = LedgerWriter(self._storage, lambda text: self._tell(f"warning: {text}"))

    def committed(self, driver: Driver, result: EpochResult) -> None:
        self.after(result)

    def idle(self, driver: Driver) -> None:
        self.after(None)

    def after(self, result: EpochResult | None) -> None:
        """An epoch was committed, or there was nothing to do (None). Raises nothing."""
        try:
            self._after(result, self._clock())
            self._complaint = None
        except Exception as error:  # a join does not end because nobody can say how many workers it should have
            complaint = f"warning: scaling failed and is tried again with the next epoch: {type(error).__name__}: {error}"
            if complaint != self._complaint:
                self._tell(complaint)
            self._complaint = complaint
            self._shell.pause.begin(self._clock())

    def ended(self) -> None:
        """Write what is not written."""
        if self._writer is not None:
            if len(self.ledger):
                self._writer.write(self.ledger)
            self._writer.close()
            self._writer = None

    def _after(self, result: EpochResult | None, now: float) -> None:
        status, layout = self._driver.plan_status(), self._driver.layout
        if status is None or layout is None:
            return
        self._follow(status, now)
        for changed in self._reorderings.after(self._driver, now):
            self.ledger.record(changed)
            self._decided(changed)
            self._tell(changed.sentence)
        self._measure(result, status, layout, now)
        # Of a join that has nothing to do the statistics stay as they are.
        at_least = FORECAST_SECONDS if result is not None else math.inf
        self._shell.forecast = self._shell.reusable_forecast(at_least) or self._new_forecast(status, layout)
        core, paused_by = self._shell.core, self.paused_by
        assert core is not None, "follow() makes one"
        core.handle(Unpaused(now) if paused_by is None else Paused(now, paused_by))
        decision = self._shell.decide(now, self._shell.forecast)
        self.decision = decision
        self._decided(decision)
        if self._shell.due(decision, now):
            self._carry_out(decision, status, layout, now)
        self._keep(now)

    def _follow(self, status: PlanStatus, now: float) -> None:
        """Take in what has become of plans since the last epoch, whoever put them."""
        took, switched = None, status.switched
        if switched is not None:
            took = Realised(switched.at, switched.generation, None, switched.moved_tuples, switched.pause_seconds, switched.waited_seconds)
        migrating_to = None if status.wanted is None or status.phase is PlanPhase.WAITING else status.wanted.workers
        plan = Progress(status.generation, status.workers, migrating_to, took)
        self.settings = _settings_of(self._job, status.first_workers)
        self._shell.follow(now, self.settings, plan, took if took is not None and took.generation == self._made else None)
        if self._drops is not None and status.drops > self._drops:
            reasons = [ended.reason for ended in status.ended if ended.fate is Fate.DROPPED]  # a later plan clears ``dropped``
            self._tell(f"warning: a plan was given up: {reasons[-1] if reasons else status.dropped}")
            self._shell.pause.begin(now)
        self._drops = status.drops

    def _measure(self, result: EpochResult | None, status: PlanStatus, layout: Layout, now: float) -> None:
        """Give the core its sample; of a join that had nothing to do, too, for its workers may be too many."""
        checkpoint = self._driver.checkpoint
        if result is None:
            taken_at, generation = now, checkpoint.plan.generation
            nothing = (0,) * len(self._job.streams)
            counts: Mapping[str, tuple[int, ...]] = {"accepted": nothing, "shed": nothing}
        else:
            taken_at, generation, counts = result.committed_at or now, result.generation, result.counts
        came = tuple(map(sum, zip(counts["accepted"], counts["shed"], strict=True)))
        self._arrived.append(_Arrived(taken_at, came, _least(checkpoint.input.watermarks)))
        self._shed.append(sum(counts["shed"]))
        held = [0] * len(layout.places)
        for block in checkpoint.state.blocks:
            held[block.place] += block.rows
        tau = utilization(self._job, checkpoint)
        budget = self.settings.budget
        new = 0 if status.wanted is None or status.phase is not PlanPhase.WAITING else status.wanted.keep.count(None)
        self._shell.take(
            Sample(
                taken_at=taken_at,
                generation=generation,
                tau=tau,
                workers=len(tau),
                starting=new,
                rates=self._rates(layout),
                pace=self._pace,
                held=layout.by_side(held),
                epoch_seconds=0.0 if result is None else result.duration,
                backlog_records=0 if result is None else result.readable_backlog,
                shed_fraction=self._shed_fraction,
                budget_seconds=None if budget is None else checkpoint.losses.budget_seconds(budget.share, budget.over_seconds, taken_at),
            )
        )

    @property
    def _shed_fraction(self) -> float:
        """Of the tuples that came lately, those that were shed."""
        came = sum(sum(arrived.tuples) for arrived in self._arrived)
        return sum(self._shed) / came if came else 0.0

    @property
    def _of_late(self) -> list[_Arrived]:
        """Over which rates are taken: no tuples of the first one, from whose end they go."""
        last = self._arrived[-1].at
        of_late = [arrived for arrived in self._arrived if arrived.at >= last - RATE_SECONDS]
        return of_late if len(of_late) > 1 else list(self._arrived)[-2:]

    def _rates(self, layout: Layout) -> tuple[float | None, float | None]:
        """Tuples per second that come to each side, those shed included; None before the second epoch."""
        first, *others = self._of_late
        seconds = self._arrived[-1].at - first.at
        if seconds <= 0:
            return None, None
        came = [sum(of_stream) / seconds for of_stream in zip(*(arrived.tuples for arrived in others), strict=True)]
        return layout.by_side([came[place.stream] for place in layout.places])

    @property
    def _pace(self) -> float | None:
        """Seconds of event time that pass in a second; None where that is not known."""
        first, last = self._of_late[0], self._arrived[-1]
        if first.watermark is None or last.watermark is None or last.at <= first.at:
            return None
        return max(0, last.watermark - first.watermark) / 1e6 / (last.at - first.at)

    def _new_forecast(self, status: PlanStatus, layout: Layout) -> PlannedForecast:
        """It costs nothing until it is asked."""
        job = self._job
        return PlannedForecast(
            running_plan(status),
            self._driver.statistics,
            layout.main,
            job.model,
            job.capacity,
            job.scheme_options,
            shed_fraction=self._shed_fraction,
            clock=self._clock,
        )

    def _carry_out(self, decision: Decision, status: PlanStatus, layout: Layout, now: float) -> None:
        if status.wanted is not None:
            asked = status.asked or status.wanted.workers
            if decision.kind is Kind.DEALLOCATE and decision.target == status.workers:
                self._driver.withdraw_plan(status.wanted.generation)
                return
            if decision.kind is Kind.ALLOCATE and asked >= decision.target:
                return
        made = plan_for_workers(status, self._driver.statistics(), layout, self._job, decision.target, placement=self._driver.placement())
        if not made.changed:
            self._shell.pause.begin(now)
            return
        try:
            self._driver.put_plan(made.plan)
        except PlanRefused as error:
            self._tell(f"warning: a plan for {decision.target} workers was refused: {error}")
            self._shell.pause.begin(now)
            return
        self._made = made.plan.generation
        warning = overfull(made.loads, made.plan.scheme.model, self._job.capacity)
        if warning is not None:
            self._tell(f"warning: {warning}")

    def _keep(self, now: float) -> None:
        """Have the ledger written where there is something new in it."""
        realised = [record.realised for record in self.ledger if record.realised is not None]
        marks = len(self.ledger) + self.ledger.forgotten, len(realised) + sum(one.tau_max is not None for one in realised)
        if self._writer is not None and marks != self._written and now - self._written_at >= WRITE_SECONDS:
            self._writer.write(self.ledger)
            self._written, self._written_at = marks, now


def _least(watermarks: Sequence[int | None]) -> int | None:
    known = [watermark for watermark in watermarks if watermark is not None]
    return min(known) if known and len(known) == len(watermarks) else None


def _settings_of(job: Job, first_workers: int = 0) -> Settings:
    return Settings.of(job.manifest.spec, first_workers, capacity_tuples=job.capacity_tuples, window_seconds=window_seconds(job))
