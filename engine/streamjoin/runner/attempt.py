"""One attempt at an epoch by the workers of a pool: who has yet to answer, and what failed it.

It is the pool's other half: its fields are guarded by the pool's lock, and it waits by the pool's condition.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from streamjoin.epoch.ports import EpochFailed
from streamjoin.epoch.pulse import stall_sentence
from streamjoin.epoch.reports import TaskReport
from streamjoin.epoch.spec import EpochSpec
from streamjoin.runner.messages import Abandon, Done, Failed
from streamjoin.runner.process import Place, Process

if TYPE_CHECKING:
    from streamjoin.runner.pool import Pool

ANSWER_SECONDS = 60.0
"""A process that was told to abandon an attempt may finish what it is writing."""
REASON_SECONDS = 3.0


class Attempt:
    """One attempt at an epoch (see :class:`streamjoin.epoch.ports.Running`). Its fields are guarded by the pool's lock."""

    def __init__(self, pool: Pool, number: int, spec: EpochSpec, processes: tuple[Process, ...]) -> None:
        self._pool, self.number, self.epoch, self.deadline_seconds = pool, number, spec.epoch, spec.deadline_seconds
        self.processes = processes
        """By task."""
        self.pending: set[Process] = set()
        """Who has yet to answer."""
        self.reports: list[TaskReport] = []
        self.failure: EpochFailed | None = None
        self._symptom = False
        """The failure may only follow from another one, which is yet to be told."""
        self._unexplained: tuple[Process, Place, int] | None = None
        """The process whose death is the failure, its place and how many deaths there were explained before."""
        self._moved_at = 0.0
        self.moved()

    def moved(self) -> None:
        """Something of it was sent, received or finished."""
        self._moved_at = self._pool.moved_at = time.monotonic()

    @property
    def owing(self) -> tuple[str, ...]:
        """The processes that have yet to answer."""
        return tuple(sorted(str(process) for process in self.pending))

    def give_up_stalled(self) -> bool:
        """Fail where nothing has moved within the deadline; whether that is so."""
        seconds = time.monotonic() - self._moved_at
        if not self.pending or seconds <= self.deadline_seconds:
            return False
        if self.failure is None or self._symptom:
            self._symptom = False
            self._fail(EpochFailed(stall_sentence(self.epoch, "tasks", seconds, self.owing), worker_died=True, stalled=True))
        return True

    def answered(self, process: Process, message: Done | Failed) -> None:
        """A process has done its part, or failed."""
        if process not in self.pending:
            return
        self.pending.discard(process)
        self.moved()
        if isinstance(message, Done):
            self.reports += message.reports
        elif self.failure is None or (self._symptom and not message.abandoned):
            self._symptom = message.abandoned
            said = f"epoch {self.epoch}: {message.message}"
            self._fail(EpochFailed(said, message.detail, permanent=message.permanent, too_large=message.too_large))

    def lost(self, process: Process, place: Place | None, why: str | None) -> None:
        """A process is gone, before it has answered or after."""
        if process not in self.pending:
            return
        self.pending.discard(process)
        if self.failure is None or self._symptom:
            self._symptom = False
            self._fail(self._death(process, why or "its connection broke"))
            if why is None and place is not None:
                self._unexplained = process, place, place.deaths

    def _death(self, process: Process, why: str) -> EpochFailed:
        return EpochFailed(f"epoch {self.epoch}: the {process} died: {why}", worker_died=True)

    def _fail(self, failure: EpochFailed) -> None:
        self.failure = failure
        self.moved()
        for other in self.pending:
            other.tell(Abandon(self.number))

    def result(self) -> list[TaskReport]:
        """See :class:`streamjoin.epoch.ports.Running`."""
        self._await()
        if self.failure is not None:
            self._explain()
            raise self.failure
        return sorted(self.reports, key=lambda report: report.task)

    def cancel(self) -> None:
        """See :class:`streamjoin.epoch.ports.Running`."""
        with self._pool.changed:
            if self.failure is None:
                self._fail(EpochFailed(f"epoch {self.epoch}: cancelled"))
        self._await()

    def _await(self) -> None:
        """Until nobody has yet to answer. Who does not, after another has failed, is replaced."""
        changed = self._pool.changed
        failed_at: float | None = None
        with changed:
            while self.pending:
                changed.wait(0.5)
                lost = self._pool.hosts.lost()
                if lost is not None:
                    self.failure = EpochFailed(lost, permanent=True)
                    break
                if self.failure is not None:
                    failed_at = failed_at or time.monotonic()
                    if time.monotonic() - failed_at > ANSWER_SECONDS:
                        break
            late = list(self.pending)
            self.moved()
            if self in self._pool.current:
                self._pool.current.remove(self)
        for process in late:
            self._pool.replace(process, "it did not give up an attempt that was abandoned")

    def _explain(self) -> None:
        """Say what ended a process, which its successor or Spark tells soon; the next attempt would wait for that one anyway."""
        if self._unexplained is None:
            return
        process, place, deaths = self._unexplained
        changed = self._pool.changed
        with changed:
            if changed.wait_for(lambda: place.deaths > deaths or place.process is not None, REASON_SECONDS) and place.deaths > deaths:
                self.failure = self._death(process, place.reason or "its connection broke")
