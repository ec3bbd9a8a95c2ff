"""What the autoscaler (``autoscaler``) is told of a join, and what it has done by others.

A pass waits for its ports; where none of them waits for anything, :func:`finished` runs it without an event loop.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, TypeVar

from streamjoin.elastic.decision import Decision
from streamjoin.elastic.forecast import Forecast
from streamjoin.elastic.ledger import Realised, Record
from streamjoin.elastic.planner import Planned
from streamjoin.elastic.sample import Sample

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far a join is with its plans, whoever put them."""

    generation: int
    workers: int
    """Of the plan that runs."""
    newest: int
    """The generation of the plan that is being applied, or else of the one that runs."""
    wanted: int | None = None
    """The workers of the plan that is being applied, as they were asked for."""
    starting: int = 0
    """Workers that were asked for and hold nothing yet."""
    migrating_to: int | None = None
    """The workers of the plan to which state is on the move."""
    switched: Realised | None = None
    """What the switch to the plan that runs took, without tau; None where that is not known."""
    asked: int = 0
    """The workers that were asked for when the plan that runs was switched to: more than it has, where some had not come. 0: not known."""
    given_up: Mapping[int, str] = field(default_factory=dict)
    """Plans that were accepted and did not come to run, by generation, and why not."""
    withdrawn: frozenset[int] = frozenset()
    """The generations of plans that were not wanted any more."""
    reordered: Sequence[Decision] = ()
    """What the driver has changed in how streams meet, oldest first."""


@dataclass(frozen=True, slots=True)
class Collected:
    """What was measured."""

    samples: Sequence[Sample]
    """Since the last pass, oldest first."""
    lacking: str | None = None
    """Why nothing is to be decided by it."""
    unchanged_for: float = 0.0
    """A forecast that was made before serves for so many seconds at least, as no more has changed since."""


@dataclass(frozen=True, slots=True)
class Wish:
    """What is to be put."""

    workers: int
    newest: int
    """The generation of the newest plan; where another is the newest, the wish is void."""
    planned: Planned | None
    """The plan that was judged, to come after the newest. None: there was none to judge, and a number of workers is all that is known."""
    replans: bool = False
    """Whether the join is cut anew for as many workers."""
    withdraws: bool = False
    """Whether no plan is to be made: the one that waits for workers is not wanted any more."""


class Outcome(Enum):
    """What became of a wish."""

    ACCEPTED = "accepted"
    UNCHANGED = "unchanged"
    """No plan is any better."""
    REFUSED = "refused"
    VOID = "void"
    """Another plan was quicker, or there was no answer: it is looked at again."""


class ScalingPorts:
    """What the autoscaler has done by others. Who needs no more does nothing at the others."""

    async def collect(self) -> Collected:
        """The metrics collector. The core has been told what has become of plans."""
        raise NotImplementedError

    async def forecast(self, shed_fraction: float) -> Forecast | None:
        """The evaluator: what plans would come to now. ``shed_fraction``: the part of the incoming tuples that is shed."""
        raise NotImplementedError

    async def judge(self, decide: Callable[[], Decision]) -> Decision:
        """Decide by a forecast: plans are made in it, which takes time."""
        return decide()

    async def put(self, wish: Wish) -> tuple[Outcome, str]:
        """The realizer; with why it was refused."""
        raise NotImplementedError

    async def store(self, *, at_once: bool) -> None:
        """The state store: keep what ``Autoscaler.document`` gives, if not ``at_once`` then as often as seems good."""

    def has_decided(self, decision: Decision, *, acts: bool) -> None:
        """The event handler, of every decision; ``acts``: a wish follows."""

    def has_failed(self, why: str) -> None:
        """The event handler: the plan of the last decision was refused or given up."""

    def came_true(self, record: Record) -> None:
        """The event handler: of this decision's plan the first tau was measured."""


def finished(once: Coroutine[Any, Any, _T]) -> _T:
    """What comes of a pass whose ports wait for nothing."""
    try:
        once.send(None)
    except StopIteration as done:
        value: _T = done.value
        return value
    raise AssertionError("a port has waited")
