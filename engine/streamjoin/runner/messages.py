"""The messages between the driver and a worker, over the control channel.

Always holds: both ends have shown the application's secret before the first message, and each message has the code of the connection's key
(``runner.control``), so that pickled bytes come from this program's own processes; and a worker answers every :class:`Work` with exactly
one :class:`Done` or :class:`Failed`, also one that is abandoned, after which nothing of it runs any more.

The classes have no slots: for those that have, ``pickle`` calls functions in Python, which takes twice as long.
"""

from __future__ import annotations

import pickle
from dataclasses import dataclass, field
from typing import Any

from streamjoin.epoch.reports import TaskReport, TooLarge
from streamjoin.epoch.spec import EpochSpec, Shared


@dataclass(frozen=True)
class Hello:
    """A worker's first words on each connection."""

    place: int
    address: str
    """Where it takes pieces."""
    pid: int
    host: str
    executor: str
    """Spark's; empty where there is none."""
    died: str | None
    """What ended the process before it at this place, as far as its host knows."""


@dataclass(frozen=True)
class Assignment:
    """An epoch, for all that have a part in it; pickled once."""

    spec: EpochSpec
    """The spec. Its ``Shared`` have no data: each process gets that once, in a Work."""
    addresses: tuple[str, ...]
    """By task, the process that joins it."""
    splits: dict[str, tuple[int, ...]]
    """The splits by the address of the worker that routes them; these workers are the senders."""


@dataclass(frozen=True)
class Work:
    """Do your part of an attempt."""

    attempt: int
    tasks: tuple[int, ...]
    """The tasks to join; usually one."""
    assignment: bytes
    shares: tuple[Shared, ...] = ()
    """What the process has not been sent yet."""
    forget: tuple[str, ...] = ()
    """Identities of Shared that will not be named again."""


@dataclass(frozen=True)
class Abandon:
    """Give the attempt up; it is answered all the same."""

    attempt: int


@dataclass(frozen=True)
class End:
    """There is no more work for this process."""


@dataclass(frozen=True)
class Beat:
    """I am here. ``progress`` grows as work does."""

    progress: int = 0


@dataclass(frozen=True)
class Leaving:
    """My container was told to go, and will be gone in so many seconds, of which I work on."""

    seconds: float


@dataclass(frozen=True)
class Done:
    attempt: int
    reports: list[TaskReport] = field(default_factory=list)


@dataclass(frozen=True)
class Failed:
    attempt: int
    message: str
    """One line."""
    detail: str
    """The trace."""
    permanent: bool = False
    """Whether it would fail again in the same way."""
    too_large: TooLarge | None = None
    """As in ``EpochFailed``."""
    abandoned: bool = False
    """Because it was asked to, or because another worker failed."""


Message = Hello | Work | Abandon | End | Beat | Leaving | Done | Failed


def encode(message: Any) -> bytes:
    return pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)


def decode(data: Any) -> Any:
    return pickle.loads(data)  # noqa: S301 - see the module
