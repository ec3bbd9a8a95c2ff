"""Plain data between the loop and the state machine of plans (``replan``): events that the loop reports, instructions that it gets back,
and the plans under which an epoch runs.

An event says what has happened and, where that matters, when. An instruction is for the runner.
"""

from __future__ import annotations

from dataclasses import dataclass

from streamjoin.epoch.spec import Shared
from streamjoin.scheme.tiling import Scheme


@dataclass(frozen=True)
class Assignment:
    """A plan and the workers that its tasks run on."""

    generation: int
    scheme: Scheme
    shared: Shared
    """The scheme, for the tasks. Its name is its own: a plan that was dropped and the next one may have the same generation."""
    workers: tuple[int, ...]
    """By task."""


@dataclass(frozen=True)
class EpochPlans:
    """The plan that an epoch runs under, and the plan before or after it where the epoch has to do with that. Not both."""

    current: Assignment
    before: Assignment | None = None
    """In the first epoch of ``current``, whose commit is the switch: the plan that it replaces."""
    upcoming: Assignment | None = None
    """The plan that is being prepared: its workers take part, and fetch the blocks that they will need."""

    @property
    def workers(self) -> tuple[int, ...]:
        """The epoch's workers: by task, then the new ones of the upcoming plan, who have no task yet."""
        if self.upcoming is None:
            return self.current.workers
        return self.current.workers + tuple(worker for worker in self.upcoming.workers if worker not in self.current.workers)

    @property
    def upcoming_tasks(self) -> dict[int, int]:
        """Workers of the upcoming plan: number in this epoch -> task number under that plan."""
        tasks = {} if self.upcoming is None else {worker: task for task, worker in enumerate(self.upcoming.workers)}
        return {number: tasks[worker] for number, worker in enumerate(self.workers) if worker in tasks}


@dataclass(frozen=True)
class Adopted:
    """The join runs under this plan, on workers of its own: its first plan, or its checkpoint's."""

    generation: int
    scheme: Scheme


@dataclass(frozen=True)
class BetweenEpochs:
    """A plan that was put can be taken up now."""

    at: float


@dataclass(frozen=True)
class WorkersReady:
    """``count`` workers are ready, in all, and nothing is in flight."""

    count: int
    at: float


@dataclass(frozen=True)
class EpochPlanned:
    """An epoch is about to begin; ``idle``: only if a plan is to be switched to, as no input is new."""

    idle: bool


@dataclass(frozen=True)
class BlocksFetched:
    """An epoch was committed whose workers fetched for the upcoming plan; so much is still to come."""

    to_fetch_bytes: int
    at: float


@dataclass(frozen=True)
class FirstEpochFailed:
    """The epoch that was to be the first of the new plan failed."""

    why: str
    worker_died: bool = False
    """The cause was a worker's death, which may not come again."""


@dataclass(frozen=True)
class FirstEpochCommitted:
    """The epoch that was to be the first of the new plan was committed. The fields are those of Switched."""

    epoch: int
    began_at: float
    at: float
    pause_seconds: float
    kept_tuples: int
    moved_tuples: int


Event = Adopted | BetweenEpochs | WorkersReady | EpochPlanned | BlocksFetched | FirstEpochFailed | FirstEpochCommitted


@dataclass(frozen=True)
class StartWorkers:
    """Make these workers ready, and no others."""

    workers: tuple[int, ...]


@dataclass(frozen=True)
class RequestWorkers:
    """Ask for so many workers in all."""

    count: int


@dataclass(frozen=True)
class ReleaseWorkers:
    """Let all workers go but these."""

    workers: tuple[int, ...]


Instruction = StartWorkers | RequestWorkers | ReleaseWorkers
