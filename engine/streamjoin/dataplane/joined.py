"""A task's part of an epoch once it is joined: it waits for its writes, and reports."""

from __future__ import annotations

import time
from collections.abc import Sequence

from streamjoin.dataplane.writes import Writes
from streamjoin.epoch.reports import TaskReport
from streamjoin.state.storage import retries
from streamjoin.state.store import (
    HeldRun,
)


class Joined:
    """A task's part of an epoch that is finished and staged. Whoever has it asks for the report, on any thread, or abandons it."""

    def __init__(self, report: TaskReport, writes: Writes, clock: Steps) -> None:
        self._report, self._writes, self._clock, self._repeated = report, writes, clock, retries()
        self.unmapped: list[HeldRun] = []
        """New runs, in the memory of this process until they are written."""

    def report(self) -> TaskReport:
        """Waits until results and blocks are durable. Raises what a write raised; nothing is left to be written then."""
        try:
            self._writes.wait()
            for run in self.unmapped:
                self._writes.map(run)
        except BaseException:
            self.abandon()
            raise
        self._writes.close()
        self._clock.lap("write")
        self._report.seconds = self._clock.seconds
        self._report.storage_retries = retries() - self._repeated
        return self._report

    def abandon(self) -> None:
        """Begin no more writes, wait for those that are going on, and remove the results."""
        self._writes.abandon()


def reports_of(joined: Sequence[Joined]) -> list[TaskReport]:
    """The report of each. Raises what a write raised; nothing is left to be written then, by any of them."""
    try:
        return [part.report() for part in joined]
    except BaseException:
        for part in joined:
            part.abandon()
        raise


class Steps:
    """Seconds by step since the last lap."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._last = time.perf_counter()

    def lap(self, step: str) -> None:
        now = time.perf_counter()
        self.seconds[step] = self.seconds.get(step, 0.0) + now - self._last
        self._last = now
