"""What the driver changes in how three and more streams meet, and by which keys they lie for it, noticed from commit to commit.

With ``--elastic`` the autoscaler notes it in its ledger. Elsewhere nobody here decides on workers: the last changes are kept for whoever
does, as an operator, and come with ``GET /v1/plan``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from streamjoin.controlplane.flowing import flowing_of
from streamjoin.elastic.decision import Decision
from streamjoin.elastic.path_plans import PathPlans
from streamjoin.elastic.reordering import laid_anew, reordered
from streamjoin.epoch.ports import EpochResult
from streamjoin.job import Job
from streamjoin.language.layout import Layout
from streamjoin.serve.observer import Observer

if TYPE_CHECKING:
    from streamjoin.controlplane.driver import Driver

MOST_RECENT = 10


class Reorderings(Observer):
    """See the module. One thread calls :meth:`after`, or has it called as an observer; any may read ``recent``."""

    def __init__(self, job: Job, decided: Callable[[Decision], None] = lambda decision: None) -> None:
        """``decided`` is told, where it is an observer."""
        self.recent: tuple[Decision, ...] = ()
        """The last changes, at most MOST_RECENT, oldest first."""
        self._job, self._decided = job, decided
        self._path_plans: PathPlans = ()
        """Of all joins over three and more streams, as the last commit has them, and how tuples lay then."""
        self._layout: Layout | None = None
        self._told = 0
        """So many times that a join was laid by another graph have been noticed."""

    def committed(self, driver: Driver, result: EpochResult) -> None:
        for changed in self.after(driver, result.committed_at or result.started_at):
            self._decided(changed)

    def after(self, driver: Driver, now: float) -> list[Decision]:
        """What the driver's last commit has changed. O(streams³) where it has, else O(ways)."""
        status, layout = driver.plan_status(), driver.layout
        if status is None or layout is None:
            return []
        checkpoint, before, then, told = driver.checkpoint, self._path_plans, self._layout, driver.laid_anew
        self._path_plans, self._layout = after, _ = checkpoint.plan.path_plans, layout
        found = [laid_anew(why, now, status.generation, status.workers) for why in told[self._told :]]
        self._told = len(told)
        has_changed = bool(before) and then is layout and before != after
        for placed, flowing, own in flowing_of(layout.multiway, checkpoint) if has_changed else ():
            if before[own] != after[own]:
                join = self._job.joins[placed.join].name if len(self._job.joins) > 1 else None
                plan = status.generation, status.workers
                found.append(reordered(placed.graph, flowing, before[own], after[own], now, *plan, join=join))
        self.recent = (*self.recent, *found)[-MOST_RECENT:]
        return found
