"""The phases of the driver's loop. One call begins a phase, and all who want to know hear of it."""

from __future__ import annotations

import time
from collections.abc import Callable

from streamjoin.epoch.progress import ProgressMonitor

COUNTED_AS = {name: name for name in ("plan", "deploy", "tasks", "commit", "publish", "clean")} | {
    "request": "plan",
    "joins": "deploy",
    "lay": "deploy",
    "switch": "tasks",
    "gather": "commit",
    "release": "commit",
}
"""The step of an epoch's account that has the seconds of a phase. Those of other phases are not in it."""


class Phases:
    """Begins phases: ``phase("commit")`` ends the one before, whose seconds are counted; the progress monitor goes by the new one."""

    def __init__(self, progress: ProgressMonitor, at: Callable[[str], None], epoch: Callable[[], int]) -> None:
        """``epoch``: the number of the epoch that is under way."""
        self.at = at
        """It is told of each phase as it begins."""
        self._progress, self._epoch = progress, epoch
        self.seconds: dict[str, float] = {}
        """Seconds by step, of the phases that have ended since :meth:`restart`."""
        self._phase = ""
        self._since = time.perf_counter()

    def __call__(self, phase: str, *, resumed: bool = False) -> None:
        """A phase begins. Without effect if it is the present one. ``resumed``: it began earlier, so that ``at`` knows of it."""
        if phase == self._phase:
            return
        self.lap()
        self._phase = phase
        self._progress.enter(self._epoch(), phase)
        if not resumed:
            self.at(phase)

    def moved(self) -> None:
        """The present phase goes on: it is not overdue."""
        self._progress.enter(self._epoch(), self._phase)

    def lap(self) -> dict[str, float]:
        """Count the present phase up to now; the seconds by step since :meth:`restart`."""
        now = time.perf_counter()
        step = COUNTED_AS.get(self._phase)
        if step is not None:
            self.seconds[step] = self.seconds.get(step, 0.0) + now - self._since
        self._since = now
        return self.seconds

    def restart(self) -> None:
        """Count from 0: another epoch's account begins."""
        self.seconds, self._since = {}, time.perf_counter()

    def leave(self) -> None:
        """The driver is in no phase any more."""
        self._phase = ""
        self._progress.leave()
