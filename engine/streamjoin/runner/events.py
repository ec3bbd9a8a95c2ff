"""Events that happen to a pool, and commands that follow from them (``roster``)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from streamjoin.epoch.ports import EpochFailed
from streamjoin.epoch.spec import Shared
from streamjoin.runner.messages import Beat, Done, Failed, Leaving
from streamjoin.runner.process import Process, Trial


@dataclass(frozen=True, slots=True)
class Wanted:
    """There are to be so many places; more only where workers have them."""

    count: int


@dataclass(frozen=True, slots=True)
class Restarted:
    """The workers of a former driver are forgotten."""


@dataclass(frozen=True, slots=True)
class Assigned:
    """Each of these workers is to have a place."""

    workers: Sequence[int]


@dataclass(frozen=True, slots=True)
class Released:
    """No other workers than these are needed, nor more places."""

    workers: Sequence[int]
    places: int | None = None
    """Beside those that go; None: one for each worker."""


@dataclass(frozen=True, slots=True)
class Greeted:
    """A process has called."""

    process: Process


@dataclass(frozen=True, slots=True)
class Said:
    """A process has said this."""

    process: Process
    message: Beat | Leaving | Done | Failed


@dataclass(frozen=True, slots=True)
class Missed:
    """A process's connection is over."""

    process: Process


@dataclass(frozen=True, slots=True)
class PlaceDied:
    """What kept the place has ended, with its process. The hosts bring it anew."""

    place: int
    reason: str


@dataclass(frozen=True, slots=True)
class Ticked:
    """It is time to tell every process that the driver is there, and to replace those that are not. Every ``beat_seconds``."""

    beat_seconds: float


@dataclass(frozen=True, slots=True)
class Begun:
    """An attempt begins, by its ``processes``."""

    trial: Trial
    assignment: bytes
    shared: Mapping[str, Shared]
    """By identity, what the assignment refers to."""
    is_lent: bool | None = None
    """Whether some task is not done where it belongs; None: as the attempt before."""


@dataclass(frozen=True, slots=True)
class GivenUp:
    """An attempt fails for a reason outside of it, unless it has failed already; a permanent one counts more."""

    trial: Trial
    failure: EpochFailed


@dataclass(frozen=True, slots=True)
class Over:
    """Nobody waits for the attempt any more. Processes that have yet to answer are replaced."""

    trial: Trial


Event: TypeAlias = Wanted | Restarted | Assigned | Released | Greeted | Said | Missed | PlaceDied | Ticked | Begun | GivenUp | Over


@dataclass(frozen=True, slots=True)
class Tell:
    """Send this to a process."""

    process: Process
    message: Any


@dataclass(frozen=True, slots=True)
class HangUp:
    """End a process's connection, once what it was told is sent."""

    process: Process


@dataclass(frozen=True, slots=True)
class Bring:
    """Have the hosts bring a process to a place."""

    place: int


@dataclass(frozen=True, slots=True)
class LetGo:
    """Tell the hosts that a place is not needed any more."""

    place: int


@dataclass(frozen=True, slots=True)
class Leave:
    """Tell the hosts that a place's container is to go: another place is brought in its stead, and nothing else to that container."""

    place: int
    executor: str


@dataclass(frozen=True, slots=True)
class Replace:
    """Have the hosts kill the place's process, and bring another."""

    place: int


@dataclass(frozen=True, slots=True)
class Warn:
    """Log this."""

    text: str


@dataclass(frozen=True, slots=True)
class Wake:
    """Wake who waits for a change."""


Command: TypeAlias = Tell | HangUp | Bring | LetGo | Leave | Replace | Warn | Wake
