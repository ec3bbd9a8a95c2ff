"""A plan on its way into a running join: what was asked for, how far it has come, and what came of it.

A plan passes through these phases; a crash in any of them resumes to the old plan, after the switch's commit to the new one::

    WAITING     until there are workers enough; the join goes on under the old plan, for as long as it takes
    PREPARING   workers fetch the blocks that they will need, in the background, while epochs go on under the old plan
    SWITCHING   the next epoch is the new plan's first: its commit is the switch
    RUNNING     workers that have no task under the new plan are let go: all that they held is durable, and held by others now

An epoch that fails under a new plan is done again under the old one, and the plan is dropped, with the reason.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from streamjoin.elastic.plan import Plan
from streamjoin.epoch.spec import Shared
from streamjoin.scheme.tiling import Scheme

FETCH_SECONDS = 120.0
"""Blocks that have not arrived by then are read in the plan's first epoch."""
SMALL_BYTES = 8 << 20
"""So little to fetch is no reason to wait: every epoch adds some."""


class PlanPhase(StrEnum):
    """See the module."""

    WAITING = "WaitingForWorkers"
    PREPARING = "Preparing"
    SWITCHING = "Switching"
    RUNNING = "Running"


class PlanRefused(ValueError):  # noqa: N818
    """A plan that cannot be applied; the text names the field, the value and the remedy."""


class PlanOutdated(PlanRefused):
    """The plan does not come after the newest one."""


@dataclass(frozen=True)
class Switched:
    """What the switch to a plan took."""

    generation: int
    epoch: int
    """The plan's first."""
    at: float
    """Wall clock."""
    waited_seconds: float
    """From when it was put until its first epoch began."""
    pause_seconds: float
    """How much longer that epoch took than those before it."""
    kept_tuples: int
    """Held tuples, replicas counted each, that were where they are needed; and those that were brought there."""
    moved_tuples: int


@dataclass(frozen=True)
class PlanStatus:
    """The plan of a join, for those who ask."""

    generation: int
    scheme: Scheme
    """The one that runs."""
    phase: PlanPhase
    workers: int
    """That run it."""
    wanted: Plan | None = None
    """The plan that is being applied."""
    ready_workers: int = 0
    to_fetch_bytes: int = 0
    dropped: str | None = None
    """Why the last plan that was put does not run; None when it does, or may yet."""
    switched: Switched | None = None
    """The last switch of this driver."""
    drops: int = 0
    """How many plans this driver has dropped."""


@dataclass
class Replanning:
    """A plan that is being applied. The driver's own."""

    plan: Plan
    shared: Shared
    """Its scheme, for the tasks."""
    put_at: float
    phase: PlanPhase = PlanPhase.WAITING
    fetching_since: float = 0.0
    to_fetch_bytes: int = 0
    workers: tuple[int, ...] = ()
    """By task of the plan; assigned with PREPARING."""

    def fetched(self, to_fetch_bytes: int, now: float) -> None:
        """What is still to come after an epoch."""
        self.to_fetch_bytes = to_fetch_bytes
        if to_fetch_bytes <= SMALL_BYTES or now - self.fetching_since > FETCH_SECONDS:
            self.phase = PlanPhase.SWITCHING

    def assign(self, running: Sequence[int], fresh: Sequence[int], now: float) -> None:
        """Give every task of the plan its worker: the one that goes on as it, or one of the fresh ones. Begins PREPARING."""
        unused = iter(fresh)
        self.workers = tuple(next(unused) if worker is None else running[worker] for worker in self.plan.keep)
        self.phase, self.fetching_since = PlanPhase.PREPARING, now
