"""What the driver changes in how three and more streams meet, noticed from commit to commit.

With ``--elastic`` the autoscaler notes it in its ledger. Elsewhere nobody here decides on workers: the last changes are kept for whoever
does, as an operator, and come with ``GET /v1/plan``.
"""

from __future__ import annotations

from typing import Protocol

from streamjoin.elastic.decision import Decision
from streamjoin.elastic.reordering import reordered
from streamjoin.elastic.sequences import Ways
from streamjoin.epoch.flowing import flowing_of
from streamjoin.epoch.replan import PlanStatus
from streamjoin.job import Job
from streamjoin.language.layout import Layout
from streamjoin.state.checkpoint import Checkpoint

MOST_RECENT = 10


class Reordering(Protocol):
    """What of ``epoch.driver.Driver`` is needed."""

    @property
    def checkpoint(self) -> Checkpoint: ...

    @property
    def layout(self) -> Layout | None: ...

    def plan_status(self) -> PlanStatus | None: ...


class Reorderings:
    """See the module. One thread calls :meth:`after`; any may read ``recent``."""

    def __init__(self, job: Job, join: Reordering) -> None:
        self.recent: tuple[Decision, ...] = ()
        """The last changes, at most MOST_RECENT, oldest first."""
        self._job, self._join = job, join
        self._ways: Ways = ()
        """Of all joins over three and more streams, as the last commit has them, and how tuples lay then."""
        self._layout: Layout | None = None

    def after(self, now: float) -> list[Decision]:
        """What the last commit has changed. O(streams³) where it has, else O(ways)."""
        status, layout = self._join.plan_status(), self._join.layout
        if status is None or layout is None:
            return []
        checkpoint, before, then = self._join.checkpoint, self._ways, self._layout
        self._ways, self._layout = after, _ = checkpoint.plan.ways, layout
        if not before or before == after or then is not layout:
            return []
        found = []
        for placed, flowing, own in flowing_of(layout.multiway, checkpoint):
            if before[own] != after[own]:
                join = self._job.joins[placed.join].name if len(self._job.joins) > 1 else None
                plan = status.generation, status.workers
                found.append(reordered(placed.graph, flowing, before[own], after[own], now, *plan, join=join))
        self.recent = (*self.recent, *found)[-MOST_RECENT:]
        return found
