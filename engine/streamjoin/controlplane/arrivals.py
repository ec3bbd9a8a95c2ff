"""Who is there of the workers that plans need, and since when: whether the join is to be cut for those that are there (``replan``).

So it is for workers that were told to go: another plan has others in their stead, or none, before they do.

Pure: times are those of the events.
"""

from __future__ import annotations

import math
from collections.abc import Sequence, Set

from streamjoin.controlplane.events import WorkersReady

STABILIZATION_SECONDS = 30.0
"""For so long no worker must have come, by default, before the join is cut for those that are there: workers of one order come within
seconds of each other, and each cut moves state."""
HASTE = 1 / 6
"""The part of it where workers are full: by then those that were started together are there."""
PENDING_SECONDS = 600.0
"""Workers of which none comes for so long are not waited for any more: a node that has to be started for them is there by then."""

HAND_OVER_SECONDS = 30.0
"""Until workers that were told to go have so long left, others are waited for that come in their stead. Then the join is cut for those that
stay."""
SWITCH_SECONDS = 10.0
"""Blocks that have not been fetched when they have so long left are read in the plan's first epoch."""


class Arrivals:
    """See the module."""

    def __init__(self, stabilization_seconds: float) -> None:
        self._stabilization = stabilization_seconds
        self._short_since: float | None = None
        """Since when fewer workers are there than the running plan has; None: all are."""
        self._most, self._came_at = 0, 0.0
        """The most workers that there were since a plan waits for some, and when they first were: that some come and go is no arrival."""
        self._vain_at = -math.inf
        """When the planner last had no plan for those that are there."""

    def expect(self, at: float) -> None:
        """A plan waits for workers from now on."""
        self._most, self._came_at = 0, at

    def settle(self) -> None:
        """Another plan runs."""
        self._short_since, self._vain_at = None, -math.inf

    def look(self, ready: WorkersReady, tasks: int) -> None:
        """Note who is there; ``tasks``: of the running plan."""
        if ready.count >= tasks:
            self._short_since = None
        elif self._short_since is None:
            self._short_since = ready.at
        if ready.count > self._most:
            # Those that are there at the first look have not come for the plan.
            self._most, self._came_at = ready.count, ready.at if self._most else self._came_at

    def in_vain(self, at: float) -> None:
        """There is no plan for those that are there that is any better."""
        self._vain_at = at

    def cut_for(self, ready: WorkersReady, running: Sequence[int], waiting: int) -> int | None:
        """For how many workers the join is to be cut now: as many as are left, or more than run where a plan of ``waiting`` workers waits
        (0: none does). None: the plan that there is stays.

        If some of those that are ``running`` were told to go: for as many as run, once others have come in their stead, or else, when time
        is short, for those that stay."""
        tasks = len(running)
        if ready.leaving_of(running):
            is_late = min(ready.leaving.values()) < HAND_OVER_SECONDS
            may_shrink = is_late and ready.staying > 0 and ready.at - self._vain_at >= self._stabilization
            return tasks if ready.staying >= tasks else ready.staying if may_shrink else None
        if 0 < ready.count < tasks:
            workers, since = ready.count, ready.at if self._short_since is None else self._short_since
        else:
            workers, since = min(ready.count, waiting), self._came_at
            if workers <= tasks:
                return None
        patience = self._stabilization * (HASTE if ready.is_urgent else 1)
        has_settled = ready.is_settled or ready.at - since >= patience
        return workers if has_settled and ready.at - self._vain_at >= self._stabilization else None

    def given_up(self, ready: WorkersReady, tasks: int, needed: int) -> str | None:
        """Why a plan that needs so many workers is not to wait any longer; None: it is."""
        if ready.at - self._came_at < PENDING_SECONDS:
            return None
        new, came = needed - tasks, max(0, ready.count - tasks)
        why = f"of {new} new workers {came} are there, and no other has come for {PENDING_SECONDS:.0f} s"
        return f"{why}: {ready.absence}" if ready.absence else why


def is_late(leavers: Set[int], ready: WorkersReady) -> bool:
    """Whether one of these workers, which were told to go, is gone or about to be."""
    return any(ready.leaving.get(worker, 0.0) < SWITCH_SECONDS for worker in leavers)
