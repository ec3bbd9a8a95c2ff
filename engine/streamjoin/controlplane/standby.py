"""When a standby takes over: a pure state machine. No connection, clock or storage; ``api/standing_by.py`` is the shell around it.

A standby is a driver that has started all that takes long, and has not claimed the checkpoint. It watches the driver at work over a
connection to its port, which tells twice a second that it is alive. The connection breaks when that process ends, so a death is noticed at
once; a machine or a network that is lost is noticed by silence.

Always holds:

- It claims only from the driver that it has watched, and only after the log still named that one (``CommitLog.claim_after``). So of
  several standbys one takes over, and the others watch that one.
- A driver that was never heard is given up only if the log has stood still since it was found: one that cannot be reached from here, and
  commits, is left alone.
- A driver that was given up though it lives costs a restart and no result: the claim makes its next commit fail.
- Once it is active, or has ended, nothing follows.

What a crash of the standby leaves: before the claim nothing; after it, what any driver leaves that dies at that step.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

SILENT_SECONDS = 5.0
"""A driver that has said nothing for so long is given up: on a busy machine, a process may be held up for a second or two."""
REFUSALS = 3
"""A driver is given up after so many connections in a row that were refused, or broke before it had said anything."""
ASK_SECONDS = 0.25
"""Between two of them."""


class Phase(StrEnum):
    """How far a standby is."""

    LOOKING = "looking"
    """It finds out who is at work."""
    WAITING = "waiting"
    """A driver is at work."""
    TAKING_OVER = "taking over"
    """That one is gone, or there was none."""
    ACTIVE = "active"
    """It has claimed the log, and starts as any driver does."""
    ENDED = "ended"
    """The join has ended elsewhere."""


@dataclass(frozen=True, slots=True)
class Began:
    """It is ready to look."""


@dataclass(frozen=True, slots=True)
class Found:
    """The newest entry of the log was read."""

    incarnation: int
    """Of the driver that holds the log; 0: none ever did."""
    writer: str = ""
    address: str | None = None
    """Where that one can be asked; None: it has no port."""
    sequence: int = 0
    """Of the entry."""


@dataclass(frozen=True, slots=True)
class Beat:
    """The driver at work is alive."""

    workers: int
    """Of its plan; 0: it has none yet."""


@dataclass(frozen=True, slots=True)
class Broken:
    """The connection was refused, or is over, and the driver has not said that it ends."""


@dataclass(frozen=True, slots=True)
class Farewell:
    """The driver at work has ended."""

    is_handed_over: bool
    """Whether the join goes on elsewhere: the driver has failed, or only its process was stopped."""


@dataclass(frozen=True, slots=True)
class Ticked:
    """Time has passed, and nothing was heard."""


@dataclass(frozen=True, slots=True)
class Ready:
    """So many workers here are ready."""

    workers: int


@dataclass(frozen=True, slots=True)
class Claimed:
    """The log is this driver's."""


@dataclass(frozen=True, slots=True)
class Outrun:
    """Another driver has claimed it since."""


Event: TypeAlias = Began | Found | Beat | Broken | Farewell | Ticked | Ready | Claimed | Outrun


@dataclass(frozen=True, slots=True)
class Look:
    """Read the newest entry of the log."""


@dataclass(frozen=True, slots=True)
class Ask:
    """Connect to the driver at work, in place of any connection before."""

    address: str
    writer: str


@dataclass(frozen=True, slots=True)
class Report:
    """Tell the driver at work that so many workers here are ready."""

    ready: int


@dataclass(frozen=True, slots=True)
class Warm:
    """Have so many workers ready. May take as long as Spark takes to start."""

    workers: int


@dataclass(frozen=True, slots=True)
class Claim:
    """Claim the log from the driver of this incarnation."""

    after: int


Instruction: TypeAlias = Look | Ask | Report | Warm | Claim


class Standby:
    """See the module."""

    def __init__(self) -> None:
        self.phase = Phase.LOOKING
        self.watched = Found(0)
        """The driver at work, as it was found last."""
        self.workers: int | None = None
        """Its workers; None: it has not been heard yet."""
        self.ready = 0
        """Workers here."""
        self._given_up = -1
        """The incarnation of the driver that is taken to be gone."""
        self._heard_at = 0.0
        self._refusals = 0
        self._ask_at: float | None = None
        self._is_connected = False
        """Something was heard over the connection that there is."""

    def handle(self, event: Event, at: float) -> list[Instruction]:
        """What to do about an event, in this order. ``at``: seconds, never less than before."""
        match event:
            case Claimed():
                self.phase = Phase.ACTIVE
                return []
            case Began() | Outrun():
                self.phase = Phase.LOOKING
                return [Look()]
            case Found():
                return self._found(event, at)
            case Ready(workers):
                is_news, self.ready = workers != self.ready, workers
                return [Report(workers)] if is_news and self._is_connected else []
        return self._heard(event, at) if self.phase is Phase.WAITING else []

    def _found(self, found: Found, at: float) -> list[Instruction]:
        commits = self.workers is None and found.sequence > self.watched.sequence
        if found.address is None or (found.incarnation == self._given_up and not commits):
            self.phase = Phase.TAKING_OVER
            return [Claim(found.incarnation)]
        self._given_up = -1
        self.phase, self.watched, self.workers = Phase.WAITING, found, None
        self._heard_at, self._refusals, self._ask_at = at, 0, None
        return [self._ask()]

    def _heard(self, event: Event, at: float) -> list[Instruction]:
        """Something of, or nothing from, the driver at work."""
        match event:
            case Beat(workers):
                is_news, is_new = workers != self.workers, not self._is_connected
                self.workers, self._heard_at, self._refusals, self._is_connected = workers, at, 0, True
                return [*([Report(self.ready)] if is_new and self.ready else []), *([Warm(max(1, workers))] if is_news else [])]
            case Farewell(is_handed_over):
                if is_handed_over:
                    return self._give_up()
                self.phase = Phase.ENDED
            case Broken():
                self._refusals, self._is_connected = self._refusals + 1, False
                if self._refusals >= REFUSALS:
                    return self._give_up()
                self._ask_at = at + ASK_SECONDS
            case Ticked():
                if at - self._heard_at >= SILENT_SECONDS:
                    return self._give_up()
                if self._ask_at is not None and at >= self._ask_at:
                    self._ask_at = None
                    return [self._ask()]
        return []

    def _give_up(self) -> list[Instruction]:
        self.phase, self._given_up, self._is_connected = Phase.TAKING_OVER, self.watched.incarnation, False
        return [Look()]

    def _ask(self) -> Ask:
        assert self.watched.address is not None, "who has no port is not watched"
        return Ask(self.watched.address, self.watched.writer)
