"""What a pool knows of a worker's process, of the place that it is at, and of an attempt (``roster``)."""

from __future__ import annotations

from dataclasses import dataclass, field

from streamjoin.epoch.ports import EpochFailed
from streamjoin.epoch.reports import TaskReport
from streamjoin.runner.messages import Hello


@dataclass(eq=False)
class Process:
    """A worker's process that has called."""

    hello: Hello
    shared: set[str] = field(default_factory=set)
    """Identities of what it was sent."""
    silent: int = 0
    """Beats since it said something."""
    progress: int = 0
    gone: bool = False
    """Whether it is gone: not asked and not heard any more."""

    @property
    def address(self) -> str:
        return self.hello.address

    def __str__(self) -> str:
        return f"worker at place {self.hello.place} (process {self.hello.pid} on {self.hello.host})"


@dataclass
class Place:
    """Room for one process."""

    number: int
    empty_since: float
    """Seconds of the shell's clock, where it has no process."""
    process: Process | None = None
    deaths: int = 0
    """The number of its processes that died, as far as the reason is known."""
    reason: str | None = None
    """The reason of the last of these deaths."""
    absence: str | None = None
    """Why no process has come since the last one, or ever: what brings them has failed. None: nothing is known to be wrong."""
    is_replaced: bool = False
    """Whether its process was given up, which also ends what keeps the place."""
    is_unexplained: bool = False
    """Whether its process is gone, and nobody has told why."""
    leaves_at: float | None = None
    """Seconds of the shell's clock when its container will be gone, which was told to go. None: it stays."""

    def died(self, reason: str) -> None:
        self.deaths, self.reason, self.is_unexplained = self.deaths + 1, reason, False


@dataclass(eq=False)
class Trial:
    """One attempt at an epoch: who has yet to answer, and what failed it."""

    number: int
    epoch: int
    deadline_seconds: float
    processes: tuple[Process, ...]
    """By task."""
    moved_at: float
    """When something of it was last sent, received or finished."""
    pending: dict[Process, None] = field(default_factory=dict)
    """Who has yet to answer, in the order of tasks."""
    reports: list[TaskReport] = field(default_factory=list)
    failure: EpochFailed | None = None
    failed_at: float | None = None
    is_symptom: bool = False
    """The failure may only follow from another one, which is yet to be told."""
    unexplained: tuple[Process, Place, int] | None = None
    """The process whose death is the failure, its place and how many deaths there were explained before."""

    @property
    def may_fail(self) -> bool:
        """Whether what happens now would be the reason of its failure."""
        return self.failure is None or self.is_symptom

    @property
    def owing(self) -> tuple[str, ...]:
        """The processes that have yet to answer."""
        return tuple(sorted(map(str, self.pending)))

    @property
    def is_explained(self) -> bool:
        """Whether it is known why the process died whose death is the failure, or will not be."""
        if self.unexplained is None:
            return True
        _, place, deaths = self.unexplained
        return place.deaths > deaths or place.process is not None

    def explain(self) -> None:
        """Say what ended the process, if that is known by now."""
        if self.unexplained is not None:
            process, place, deaths = self.unexplained
            if place.deaths > deaths:
                self.failure = death_of(process, self.epoch, place.reason or "its connection broke")


def death_of(process: Process, epoch: int, why: str) -> EpochFailed:
    return EpochFailed(f"epoch {epoch}: the {process} died: {why}", worker_died=True)
