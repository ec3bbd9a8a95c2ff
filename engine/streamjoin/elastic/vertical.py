"""More memory for the workers that run, instead of more workers: how large they may become, and what was decided of it.

Where a manifest gives no capacity, a worker's follows from its memory (``streamjoin.manifest.memory``). Kubernetes gives pods that run more
memory, and then the same plan is less full: no state moves, and no pod has to start. Memory is in bytes, of one worker.

Always holds: pure; memory only rises; what was decided counts for the manifest that it was decided for, and for no other.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from streamjoin.manifest.memory import MIB, held_within, room_of_pod

STEP = 256 * MIB
"""Memory is raised to a multiple of this."""
GIB = 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Headroom:
    """How much larger workers may become (``spec.workers.maxMemory``)."""

    given: int
    """``spec.workers.resources.memory``."""
    memory: int
    """What workers have; more than is given, where that was decided."""
    most: int
    cores: float
    per_executor: int
    """Workers that share a pod."""
    arriving: float
    """Bytes of tuples that may come with an epoch."""
    unable: str = ""
    """Why workers get no more memory, whatever it costs; empty: they may."""

    def capacity(self, memory: int) -> int:
        """How many bytes of tuples a worker of so much memory may hold."""
        return held_within(room_of_pod(memory, self.per_executor), self.arriving)

    def times(self, memory: int) -> float:
        """How many times as much as now a worker of so much memory may hold."""
        return self.capacity(memory) / self.capacity(self.memory)

    def least_for(self, factor: float) -> int | None:
        """The least memory with which a worker may hold ``factor`` times as much as now; None: not even with the most. O(log most)."""
        needed = factor * self.capacity(self.memory)
        if self.most <= self.memory or self.capacity(self.most) < needed:
            return None
        steps = range(self.memory // STEP + 1, -(-self.most // STEP) + 1)
        found = bisect_left(steps, needed, key=lambda number: self.capacity(min(number * STEP, self.most)))
        return min(steps[found] * STEP, self.most)

    def price(self, memory: int, core_gib: float) -> float:
        """What a worker of so much memory costs, in workers of the present size; ``core_gib``: what a core costs, in GiB of memory."""
        cores = self.cores * core_gib
        return (cores + memory / GIB) / (cores + self.memory / GIB)


@dataclass(frozen=True, slots=True, kw_only=True)
class Enlarged:
    """What was decided of the workers' memory. It is kept where the decisions are, for the manifest is its author's."""

    given: int
    """``spec.workers.resources.memory`` as it was then."""
    most: int
    """Likewise ``spec.workers.maxMemory``."""
    memory: int
    """What all workers have by now."""
    wanted: int | None = None
    """What they are to have; None: nothing else."""
    since: float = 0.0
    """Seconds; when they had it."""
    refused: str = ""
    """Why they could not get what was decided last; then nothing more is decided."""

    def counts(self, *, is_enforced: bool, given: int, most: int | None) -> bool:
        """Whether it is for a manifest of this memory."""
        return is_enforced and self.given == given and most is not None and self.memory <= most

    def had(self, at: float) -> Enlarged:
        """All workers have what is wanted."""
        return self if self.wanted is None else replace(self, memory=self.wanted, wanted=None, since=at)

    def lacks(self, why: str) -> Enlarged:
        """They cannot get it."""
        return replace(self, wanted=None, refused=why)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Enlarged:
        """Raises TypeError for what :meth:`to_json` cannot have written."""
        return cls(**data)
