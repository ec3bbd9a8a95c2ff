"""A run that scales itself: after each epoch its autoscaler makes a pass, and what it decides becomes the driver's plan.

These are the ports of ``elastic.autoscaler`` where there is a driver in this process: samples come of its commits, plans go to it, and
decisions are kept in the checkpoint's storage. The time is that of the clock that is given.

Always holds: whatever goes wrong here is told once, and the join goes on under the plan that it has.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from streamjoin.controlplane.fates import Fate
from streamjoin.controlplane.refusals import PlanOutdated, PlanRefused
from streamjoin.controlplane.replan import PlanPhase, PlanStatus
from streamjoin.elastic.autoscaler import Autoscaler
from streamjoin.elastic.decision import Decision
from streamjoin.elastic.ledger import Ledger, Realised
from streamjoin.elastic.planned_forecast import PlannedForecast
from streamjoin.elastic.planner import overfull
from streamjoin.elastic.ports import Collected, Outcome, Progress, ScalingPorts, Wish, finished
from streamjoin.epoch.ports import EpochResult
from streamjoin.job import Job
from streamjoin.language.layout import Layout
from streamjoin.serve.decisions import LedgerError, LedgerWriter, load_ledger
from streamjoin.serve.observer import Observer
from streamjoin.serve.reorderings import Reorderings
from streamjoin.serve.samples import Samples
from streamjoin.serve.wishes import newest_generation, running_plan
from streamjoin.sizing import forecast_for, scaling_settings
from streamjoin.state.storage import Storage

if TYPE_CHECKING:
    from streamjoin.controlplane.driver import Driver

FORECAST_SECONDS = 5.0
"""A forecast serves for so long, and longer where planning takes long."""
WRITE_SECONDS = 10.0
"""The ledger is written at most so often."""


@dataclass(frozen=True, slots=True)
class _Look:
    """What a pass goes by."""

    result: EpochResult | None
    status: PlanStatus
    layout: Layout
    now: float


class Scaler(Observer, ScalingPorts):
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
        self.settings = scaling_settings(job)
        self.decision: Decision | None = None
        """The last one."""
        self.paused_by: str | None = None
        """The client that has paused scaling, until it is resumed or the run ends. None: scaling is not paused. Any thread may set it."""
        self._autoscaler = Autoscaler()
        self._job, self._driver, self._storage, self._clock, self._tell, self._decided = job, driver, storage, clock, tell, decided
        self._writer: LedgerWriter | None = None
        self._written_at = -WRITE_SECONDS
        self._samples = Samples(job)
        self._looked: _Look
        self._drops: int | None = None
        """Plans that were given up, as far as they are known here; None before the first epoch."""
        self._reorderings = Reorderings(job)
        self._complaint: str | None = None

    @property
    def ledger(self) -> Ledger:
        return self._autoscaler.ledger

    def started(self, driver: Driver) -> None:
        """Take the checkpoint's ledger up. Raises nothing: without one a new one is begun."""
        try:
            self._autoscaler.ledger = load_ledger(self._storage) or Ledger()
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
            self._autoscaler.pause.begin(self._clock())

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
        if self._drops is not None and status.drops > self._drops:
            reasons = [ended.reason for ended in status.ended if ended.fate is Fate.DROPPED]  # a later plan clears ``dropped``
            self._tell(f"warning: a plan was given up: {reasons[-1] if reasons else status.dropped}")
        self._drops = status.drops
        reordered = self._reorderings.after(self._driver, now)
        for changed in reordered:
            self._decided(changed)
            self._tell(changed.sentence)
        self.settings = scaling_settings(self._job, status.first_workers)
        self._looked = _Look(result, status, layout, now)
        progress, floor = progress_of(status, reordered), self._job.manifest.spec.workers.floor or None
        finished(self._autoscaler.once(now, self.settings, progress, self, paused_by=self.paused_by, floor=floor))

    # The ports. None of them waits. That a plan was given up is told above, of whoever's plan it is.

    async def collect(self) -> Collected:
        """One sample; of a join that has nothing to do, too, for its workers may be too many, and then its statistics stay as they are."""
        look = self._looked
        sample = self._samples.take(self._driver.checkpoint, look.result, look.layout, self.settings.budget, look.now)
        return Collected((sample,), unchanged_for=math.inf if look.result is None else FORECAST_SECONDS)

    async def forecast(self, shed_fraction: float) -> PlannedForecast:
        status, layout = self._looked.status, self._looked.layout
        known = running_plan(status), self._driver.statistics(), layout.main, self._driver.placement()
        return forecast_for(self._job, *known, shed_fraction=shed_fraction, clock=self._clock)

    async def store(self, *, at_once: bool) -> None:
        """In the background."""
        autoscaler, now = self._autoscaler, self._looked.now
        has_news = autoscaler.is_new or autoscaler.has_holds
        if self._writer is not None and (at_once or (has_news and now - self._written_at >= WRITE_SECONDS)):
            self._writer.write(self.ledger)
            self._written_at = now
            autoscaler.was_stored()

    async def put(self, wish: Wish) -> tuple[Outcome, str]:
        if wish.withdraws:
            return Outcome.ACCEPTED if self._driver.withdraw_plan(wish.newest) else Outcome.VOID, ""
        try:
            if wish.planned is None:
                raise PlanRefused(f"the model {self._job.model} has none")
            self._driver.put_plan(wish.planned.plan)
        except PlanOutdated:
            return Outcome.VOID, ""
        except PlanRefused as error:
            self._tell(f"warning: a plan for {wish.workers} workers was refused: {error}")
            return Outcome.REFUSED, str(error)
        warning = overfull(wish.planned.loads, wish.planned.plan.scheme.model, self._job.capacity)
        if warning is not None:
            self._tell(f"warning: {warning}")
        return Outcome.ACCEPTED, ""

    def has_decided(self, decision: Decision, *, acts: bool) -> None:
        self.decision = decision
        self._decided(decision)


def progress_of(status: PlanStatus, reordered: Sequence[Decision] = ()) -> Progress:
    """What the autoscaler is to know of plans; ``reordered``: the new changes of how streams meet."""
    wanted, switched, took, asked = status.wanted, status.switched, None, 0
    if switched is not None and switched.generation == status.generation:
        took = Realised(switched.at, switched.generation, None, switched.moved_tuples, switched.pause_seconds, switched.waited_seconds)
        asked = switched.asked
    waits = status.phase is PlanPhase.WAITING
    last = {ended.generation: ended for ended in status.ended}
    return Progress(
        generation=status.generation,
        workers=status.workers,
        newest=newest_generation(status),
        wanted=None if wanted is None else status.asked or wanted.workers,
        starting=0 if wanted is None or not waits else wanted.keep.count(None),
        migrating_to=None if wanted is None or waits else wanted.workers,
        switched=took,
        asked=asked,
        given_up={number: ended.reason for number, ended in last.items() if ended.fate in (Fate.DROPPED, Fate.REPLACED)},
        withdrawn=frozenset(ended.generation for ended in status.ended if ended.fate is Fate.WITHDRAWN),
        reordered=reordered,
    )
