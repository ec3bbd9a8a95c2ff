"""One attempt at an epoch by the workers of a pool, for the driver that waits for it. ``roster`` has its state."""

from __future__ import annotations

from typing import TYPE_CHECKING

from streamjoin.epoch.ports import EpochFailed
from streamjoin.epoch.reports import TaskReport
from streamjoin.runner.events import GivenUp, Over
from streamjoin.runner.process import Trial

if TYPE_CHECKING:
    from streamjoin.runner.pool import Pool

REASON_SECONDS = 3.0


class Attempt:
    """See :class:`streamjoin.epoch.ports.Running`."""

    def __init__(self, pool: Pool, trial: Trial) -> None:
        """``trial`` is guarded by the pool's lock."""
        self._pool, self.trial = pool, trial

    def result(self) -> list[TaskReport]:
        """See :class:`streamjoin.epoch.ports.Running`."""
        self._await()
        if self.trial.failure is not None:
            # Its successor or Spark soon tells what ended a process; the next attempt would wait for that one anyway.
            with self._pool.changed:
                self._pool.changed.wait_for(lambda: self.trial.is_explained, REASON_SECONDS)
                self.trial.explain()
            raise self.trial.failure
        return sorted(self.trial.reports, key=lambda report: report.task)

    def cancel(self) -> None:
        """See :class:`streamjoin.epoch.ports.Running`."""
        self._pool.happened(GivenUp(self.trial, EpochFailed(f"epoch {self.trial.epoch}: cancelled")))
        self._await()

    def _await(self) -> None:
        """Until nobody has yet to answer. Those who do not, after another has failed, are replaced."""
        lost: str | None = None
        with self._pool.changed:
            while self.trial.pending and lost is None:
                self._pool.changed.wait(0.5)
                lost = self._pool.hosts.lost()
        if lost is not None:
            self._pool.happened(GivenUp(self.trial, EpochFailed(lost, permanent=True)))
        self._pool.happened(Over(self.trial))
