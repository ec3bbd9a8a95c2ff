"""What became of plans that were accepted (``replan``)."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass
from enum import StrEnum

from streamjoin.elastic.plan import Plan

REMEMBERED = 16
"""The number of ended plans whose fates are remembered."""


class Fate(StrEnum):
    """How a plan that was accepted has ended."""

    SWITCHED = "Switched"
    DROPPED = "Dropped"
    REPLACED = "Replaced"
    WITHDRAWN = "Withdrawn"
    """Who wanted it wants the plan that runs."""


@dataclass(frozen=True)
class Ended:
    """A plan that was accepted, and how it has ended."""

    generation: int
    fate: Fate
    reason: str = ""
    """Why it was dropped or withdrawn, or by which plan it was replaced."""


class Fates:
    """Of all plans that were accepted. Not thread-safe."""

    def __init__(self) -> None:
        self.accepted = 0
        self.counts: Counter[Fate] = Counter()
        self.ended: deque[Ended] = deque(maxlen=REMEMBERED)
        """The last of those that are counted."""
        self.dropped: str | None = None
        """None, or the reason of the last plan that was dropped."""

    def end(self, plan: Plan, fate: Fate, why: str = "") -> None:
        """Note it down; ``why``: not where it was switched to."""
        reason = f"generation {plan.generation}: {why}" if why else ""
        self.counts[fate] += 1
        self.ended.append(Ended(plan.generation, fate, reason))
        if fate in (Fate.DROPPED, Fate.SWITCHED):
            self.dropped = reason or None

    def validate(self, pending: int) -> None:
        """Raises AssertionError where what always holds does not; ``pending``: plans that have not ended."""
        assert self.accepted == self.counts.total() + pending, "a plan was lost"
        assert len(self.ended) == min(REMEMBERED, self.counts.total())
        for fate in Fate:
            assert sum(ended.fate is fate for ended in self.ended) <= self.counts[fate]
        assert all(ended.reason for ended in self.ended if ended.fate is not Fate.SWITCHED), "a plan ended for no reason"
        dropped = [ended.reason for ended in self.ended if ended.fate is Fate.DROPPED]
        assert self.dropped is None or self.dropped == dropped[-1]
