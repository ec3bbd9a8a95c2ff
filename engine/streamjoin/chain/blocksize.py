"""How many tuples to a block: ESJ's two answers, and what they weigh. Pure arithmetic, O(1).

Large blocks make few messages; but a worker passes tuples on only when it holds a block more than the next one, so they make loads uneven.
ESJ's two texts weigh these differently, under the same letter alpha: "Saving Communication Cost" (Theorem 1) gives it to the imbalance,
"Message passing" to the transmission. Both are about one stream.

Mended in both (docs/chain.md): a block has at least one tuple, and no more than a worker has room for beside its share of the window.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

MOST_IMBALANCE_WEIGHT = 0.8
"""Theorem 1 is for alpha below it: from there on its first case would reach beyond the rate that fills all workers."""


@dataclass(frozen=True)
class Load:
    """One stream, and the workers that share it out."""

    rate: float
    """Tuples a second (varpi)."""
    window_seconds: float
    """How long a tuple is held (phi)."""
    workers: int
    """m."""
    capacity_tuples: int
    """Of a worker, for this stream (W)."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not 0 < value < math.inf:
                raise ValueError(f"{field.name}: {value} must be a finite number above 0")

    @property
    def share(self) -> float:
        """Tuples that a worker holds if all hold alike (r)."""
        return self.rate * self.window_seconds / self.workers

    @property
    def room(self) -> float:
        """Tuples that a worker could hold beside its share; below 0 where the stream is too much for the workers."""
        return self.capacity_tuples - self.share


def serialization_times(load: Load, block_tuples: float) -> float:
    """ST (Definition 1): blocks in which a worker's share goes on once."""
    return load.share / block_tuples


def imbalance_factor(load: Load, block_tuples: float) -> float:
    """IF (Definition 2, and "Message passing"): by how much of the mean the fullest worker is expected to exceed it."""
    return block_tuples / load.share


def objective(load: Load, block_tuples: float, imbalance_weight: float) -> float:
    """J (Definition 3): (1 - alpha) ST + alpha IF."""
    return (1 - imbalance_weight) * serialization_times(load, block_tuples) + imbalance_weight * imbalance_factor(load, block_tuples)


def theorem_1(load: Load, imbalance_weight: float = 0.5) -> int:
    """The block that makes J least, as large as a worker's room where J would have it larger; 1 where there is no room.

    ``imbalance_weight``: alpha, above 0 and below 0.8; else raises ValueError.
    """
    if not 0 < imbalance_weight < MOST_IMBALANCE_WEIGHT:
        raise ValueError(f"imbalance_weight: {imbalance_weight} must be above 0 and below {MOST_IMBALANCE_WEIGHT}")
    if load.room <= 0:
        return 1
    least = math.sqrt(1 / imbalance_weight - 1) * load.share
    # beta_1 is the rate at which ``least`` is half of the capacity.
    if least <= load.capacity_tuples / 2:
        return _clamped(load, least)
    return _clamped(load, load.share / math.ceil(_whole(load.share / load.room)))


def by_transmission(load: Load, transmission_weight: float = 0.5, serialization_cost: float = 1.0) -> int:
    """The block of "Message passing", which makes alpha (C_tr + C_ser / block) rate window + (1 - alpha) IF least.

    ``transmission_weight``: alpha, above 0 and below 1; ``serialization_cost``: C_ser, above 0; else raises ValueError.
    """
    if not 0 < transmission_weight < 1:
        raise ValueError(f"transmission_weight: {transmission_weight} must be above 0 and below 1")
    if not 0 < serialization_cost < math.inf:
        raise ValueError(f"serialization_cost: {serialization_cost} must be a finite number above 0")
    weight = transmission_weight / (1 - transmission_weight) * serialization_cost / load.workers
    return _clamped(load, load.rate * load.window_seconds * math.sqrt(weight))


def _clamped(load: Load, block_tuples: float) -> int:
    """A whole number of tuples, of at least one and at most half of a worker's capacity (a constraint of both texts' J) and its room."""
    return max(1, math.floor(_whole(min(block_tuples, load.capacity_tuples / 2, load.room))))


def _whole(value: float) -> float:
    """The whole number that rounding errors keep ``value`` from being, or ``value``."""
    return round(value) if math.isclose(value, round(value), rel_tol=1e-9) else value
