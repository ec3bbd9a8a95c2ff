"""The state of a run, by the events that it has reported: what the terminal, the page, the JSON lines and the summary show.

Always holds: only reported events count. Its size is bounded, however long the run.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from streamjoin.api.loop import (
    WARNING,
    Asked,
    Done,
    Ended,
    Entering,
    Event,
    Notice,
    Reason,
    Retrying,
    Standing,
    Started,
    Starting,
    Stopping,
    Waiting,
)
from streamjoin.cli import wording
from streamjoin.cli.history import History
from streamjoin.cli.subject import Subject
from streamjoin.controlplane.replan import PlanStatus
from streamjoin.controlplane.standby import Phase
from streamjoin.elastic.decision import Decision
from streamjoin.io.deadletter import kind_of

LONG_SECONDS = 2.0
"""A step that takes longer is named."""
MOST_TROUBLES = 20
MOST_EPOCHS = 90


class Kind(StrEnum):
    """Which trouble it is."""

    FAILURE = "failure"
    """An epoch, or the run, has failed."""
    WARNING = "warning"
    """An epoch has warned."""
    NOTICE = "notice"
    """Somebody else has: the autoscaler, or the start of the workers."""


@dataclass(frozen=True, slots=True)
class Trouble:
    """Something that went wrong, or may."""

    at: float
    """When it was told last, by the wall clock."""
    kind: Kind
    text: str


class RunState:
    """See the module. One thread tells it what happens; another that reads more than a field takes ``lock``."""

    def __init__(self, subject: Subject, origin: float, clock: Callable[[], float] = time.time) -> None:
        """``origin``: the wall clock at which the run started."""
        self.subject, self.history = subject, History(origin)
        self.clock = clock
        self.lock = threading.Lock()
        self.state = "starting"
        self.step: Entering | None = None
        """What the driver does; None between epochs, and while it looks for input."""
        self.is_stopping = False
        """Somebody asked for it."""
        self.ended: Ended | None = None
        self.epochs: deque[Done] = deque(maxlen=MOST_EPOCHS)
        """The last ones."""
        self.troubles: deque[Trouble] = deque(maxlen=MOST_TROUBLES)
        """The last ones, oldest first, each text once."""

    @property
    def plan(self) -> PlanStatus | None:
        """After the last epoch."""
        return self.epochs[-1].plan if self.epochs else None

    @property
    def decision(self) -> Decision | None:
        return self.epochs[-1].decision if self.epochs else None

    def see(self, event: Event) -> None:
        """An event happened."""
        with self.lock:
            self._see(event)

    def _see(self, event: Event) -> None:  # noqa: C901
        if isinstance(event, Starting):
            self.state = "starting workers"
        elif isinstance(event, Standing):
            self.state = "standby" if event.phase is Phase.WAITING else event.phase.value
        elif isinstance(event, Started | Done):
            self.state = "running"
        elif isinstance(event, Waiting):
            self.state, self.step = "running", None
        elif isinstance(event, Retrying):
            self.state = "retrying"
            self._trouble(event.sentence, Kind.FAILURE)
        elif isinstance(event, Stopping):
            self.state = "stopping workers"
        elif isinstance(event, Asked):
            self.is_stopping = True
        elif isinstance(event, Ended):
            self.ended = event
            self.state = "failed" if event.failure else "done" if event.reason in (Reason.IDLE, Reason.ELSEWHERE) else "stopped"
            if event.failure is not None:
                self._trouble(event.failure.sentence, Kind.FAILURE)
        elif isinstance(event, Entering):
            self.step = event if event.step != "plan" else None
        elif isinstance(event, Notice) and event.text.startswith(WARNING):
            self._trouble(event.text.removeprefix(WARNING), Kind.NOTICE)
        if isinstance(event, Done):
            self.history.add(event.result, event.finished, event.plan)
            self.epochs.append(event)
            for warning in event.result.warnings:
                self._trouble(warning)
            for stream, reason in zip(event.result.streams, event.result.rejections, strict=True):
                if reason:
                    self._trouble(f"{stream}: records are rejected: {kind_of(reason)}")

    def doing(self, now: float) -> str:
        """What the run is doing, in a few words; the words up to the first comma are the state."""
        if self.state != "running":
            return self.state
        if self.is_stopping:
            return "stopping"
        if self.step is not None and now - self.step.at >= LONG_SECONDS:
            return f"running, {self.step.step} for {wording.duration(now - self.step.at)}"
        quiet = 2 * self.subject.job.interval_micros / 1e6 + LONG_SECONDS
        if self.step is None and now - self.history.origin - self.history.ended > quiet:
            return "waiting for input"
        return "running"

    def _trouble(self, text: str, kind: Kind = Kind.WARNING) -> None:
        known = next((one for one in self.troubles if one.text == text), None)
        if known is not None:
            self.troubles.remove(known)
        self.troubles.append(Trouble(self.clock(), kind, text))
