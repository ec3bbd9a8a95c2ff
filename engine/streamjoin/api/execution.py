"""A run, put together: its driver, the observers of its steps, the autoscaler where there is one, and the loop.

Every run is made here, by the library and by the command line.
"""

from __future__ import annotations

import threading
import time
import traceback
from pathlib import Path

from streamjoin.api.failure import Failure, failure_of
from streamjoin.api.feeder import feeder_of
from streamjoin.api.loop import Entering, Loop, Notice
from streamjoin.api.runners import MakeRunner, Tell
from streamjoin.api.standing_by import StandingBy
from streamjoin.controlplane.driver import Driver
from streamjoin.elastic.decision import Decision
from streamjoin.job import Job
from streamjoin.location import is_url
from streamjoin.serve.observer import Observer
from streamjoin.serve.scaler import Scaler
from streamjoin.serve.traces import TracesUnavailableError, traces_of
from streamjoin.state.log import CommitLog
from streamjoin.state.storage import ObjectStorage


class Execution:
    """See the module."""

    def __init__(self, job: Job, runner: MakeRunner, tell: Tell, log_directory: Path, *, elastic: bool = False) -> None:
        """``tell`` gets every event. Raises Failure."""
        self._tell, self._log_directory = tell, log_directory
        try:
            storage = self._storage = ObjectStorage(job.checkpoint)
            self.log, self._runner = CommitLog(storage), runner(tell)
            of_driver = job, storage, self._runner
            self.driver = Driver(*of_driver, at=lambda step: tell(Entering(step, time.time())), suspects_data=True, log=self.log)
        except Failure:
            raise
        except Exception as error:
            raise failure_of(error, traceback.format_exc(), log_directory) from error
        self.observers: list[Observer] = []
        """Who else is to be told of steps and decisions: before the autoscaler acts."""
        try:
            traces = traces_of(job.name)
            self.observers += [traces] if traces is not None else []
        except TracesUnavailableError as missing:
            tell(Notice(f"warning: {missing}"))
        self.scaler: Scaler | None = None
        if elastic:
            parts = (job, self.driver, storage)
            self.scaler = Scaler(*parts, clock=time.time, tell=lambda text: tell(Notice(text)), decided=self.decided)

    def decided(self, decision: Decision) -> None:
        """Tell the observers."""
        for each in self.observers:
            each.decided(decision)

    def took_over(self) -> None:
        """Tell the observers."""
        for each in self.observers:
            each.took_over()

    def loop(
        self, *, stop: threading.Event, until_idle: bool, run_seconds: float | None, standby: bool = False, hands_over: bool = False
    ) -> Loop:
        """Its epochs, until that long after the first one, or until all input is joined, or until ``stop`` is set. ``standby``: before the
        first, wait until no other driver is at work; ``hands_over``: also for one that was asked to stop."""
        scaler, job, parts = self.scaler, self.driver.job, (self._storage, self.log, self._runner)
        waiting = StandingBy(self.driver.job, *parts, stop=stop, hands_over=hands_over, tell=self._tell, took_over=self.took_over)
        feeder = feeder_of(job, self._tell, self._log_directory, stop, until_idle=until_idle)
        return Loop(
            self.driver,
            observers=[each for each in (feeder, *self.observers, scaler) if each is not None],
            interval_seconds=job.interval_micros / 1e6,
            stop=stop,
            tell=self._tell,
            log_directory=self._log_directory,
            until_idle=until_idle,
            run_seconds=run_seconds,
            decision=lambda: None if scaler is None else scaler.decision,
            turn=waiting.wait if standby else lambda: None,
        )


def default_log_directory(job: Job) -> Path:
    """The directory for logs: in the checkpoint, if that is on this machine, because Spark cannot log into an object store."""
    return Path("streamjoin-logs", job.name) if is_url(job.checkpoint) else Path(job.checkpoint, "logs")
