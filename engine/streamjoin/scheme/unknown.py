"""Statistics where nothing has been measured yet: what a manifest alone says of the keys of its streams."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from streamjoin.language.composite_key import CompositeKey
from streamjoin.language.graph import Place
from streamjoin.language.predicate import MainPredicate
from streamjoin.language.sides import SIDES
from streamjoin.scheme.matrix import hashed
from streamjoin.scheme.statistics import Histogram, SideStatistics, Statistics

BUCKETS = 1024
"""Of a key space of hashed keys, which are spread evenly."""


def unknown(places: Sequence[Place], main: MainPredicate, tuples: Sequence[float]) -> Statistics:
    """Of so many tuples by place: the key spaces in proportion to these, hashed keys spread evenly, others all at one level. O(key
    spaces)."""
    totals = [sum(count for place, count in zip(places, tuples, strict=True) if place.side == side) for side in SIDES]
    if not isinstance(main, CompositeKey):
        return Statistics(tuple(SideStatistics(total) for total in totals))
    return Statistics(tuple(SideStatistics(totals[side], _levels(places, main, tuples, side)) for side in SIDES))


def _levels(places: Sequence[Place], main: CompositeKey, tuples: Sequence[float], side: int) -> Histogram:
    bounds: list[int] = []
    counts: list[float] = []
    for number, key_space in enumerate(main.key_spaces):
        base, size = main.base(number), 1 << main.key_space_bits
        own = [count for place, count in zip(places, tuples, strict=True) if (place.side, place.key_space) == (side, number)]
        ends = (
            [base + size * part // BUCKETS for part in range(1, BUCKETS)] if hashed(key_space) else [base + size // 2, base + size // 2 + 1]
        )
        # What lies between the last bound of a key space and the first of the next is none of either.
        counts += [0.0] + [(sum(own) or 1.0) / (len(ends) - 1)] * (len(ends) - 1)
        bounds += ends
    return Histogram(np.array(bounds, np.int64), np.array([*counts, 0.0]))
