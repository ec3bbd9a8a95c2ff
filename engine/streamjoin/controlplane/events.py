"""Plain data between the loop and the state machine of plans (``replan``): events that the loop reports, instructions that it gets back,
and the plans under which an epoch runs.

An event says what has happened and, where that matters, when. An instruction is for the runner.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from streamjoin.elastic.plan import Plan
from streamjoin.scheme.tiling import Scheme

if TYPE_CHECKING:
    from streamjoin.epoch.spec import Shared


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
    """The join runs under this plan: its first plan, or its checkpoint's, on workers of its own; or one for tuples that lie by other keys
    now, on those of the workers that are there."""

    generation: int
    scheme: Scheme


@dataclass(frozen=True)
class BetweenEpochs:
    """A plan that was put can be taken up now."""

    at: float


@dataclass(frozen=True)
class WorkersReady:
    """``count`` workers are ready, in all."""

    count: int
    at: float
    is_free: bool = True
    """Whether nothing is in flight, so that the next epoch may run under another plan."""
    is_urgent: bool = False
    """Whether the fullest worker holds so much that nothing is to be waited for that need not be: tau is at tau2 or above."""
    is_settled: bool = False
    """Whether those that are not there have been waited for already."""
    absence: str | None = None
    """Why those that are not there do not come, as far as something went wrong."""
    leaving: Mapping[int, float] = field(default_factory=dict)
    """Of those that are there, the workers that were told to go, and the seconds that they have left."""

    @property
    def staying(self) -> int:
        return self.count - len(self.leaving)

    def leaving_of(self, workers: Sequence[int]) -> frozenset[int]:
        """The tasks of these workers that were told to go."""
        return frozenset(task for task, worker in enumerate(workers) if worker in self.leaving)


@dataclass(frozen=True)
class PlanMade:
    """What the planner made of a request for a plan; None: nothing that is better than what runs, or that the workers have room for."""

    request: MakePlan
    plan: Plan | None
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


Event = Adopted | BetweenEpochs | WorkersReady | PlanMade | EpochPlanned | BlocksFetched | FirstEpochFailed | FirstEpochCommitted


@dataclass(frozen=True)
class StartWorkers:
    """Make these workers ready, and no others."""

    scheme: Scheme
    """That they are for."""
    workers: tuple[int, ...]


@dataclass(frozen=True)
class RequestWorkers:
    """Ask for so many workers in all."""

    count: int


@dataclass(frozen=True)
class MakePlan:
    """Have the join cut anew among ``workers`` workers, by the plan that moves least; the answer is :class:`PlanMade`."""

    running: Assignment
    workers: int
    model: str
    generation: int
    """The new plan's."""
    asked: int
    """The workers that were asked for; more than ``workers`` where the others have not come."""
    there: int
    """The workers that are ready: fewer than ``workers`` where the plan is to wait for more."""
    leaving: frozenset[int] = frozenset()
    """Tasks of the running plan whose workers were told to go: they do not go on in the new plan."""


@dataclass(frozen=True)
class ReleaseWorkers:
    """Let all workers go but these."""

    workers: tuple[int, ...]
    places: int | None = None
    """The number of workers that stay asked for; None: no others than these."""


Instruction = StartWorkers | RequestWorkers | MakePlan | ReleaseWorkers
