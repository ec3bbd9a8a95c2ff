"""Positions of keys in a picture of a scheme: a range of keys is as long as its share of the tuples."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from streamjoin.language.predicate import KeyExpression
from streamjoin.scheme.statistics import Histogram, SideStatistics
from streamjoin.scheme.tiling import UNITS, KeyRange, UnitRange

Array = np.ndarray[Any, np.dtype[Any]]


class Axis:
    """One side's keys laid out by volume: 0 is before the first tuple, 1 behind the last."""

    def __init__(self, side: SideStatistics, held: Sequence[KeyRange], key: KeyExpression | None, name: str) -> None:
        self.key, self.name, self.tuples = key, name, side.tuples
        self.histogram = side.histogram if side.histogram is not None and side.histogram.total > 0 else None
        self.spread = self.histogram or Histogram.even(1024)
        self.cuts = sorted({bound for keys in held for bound in (keys.low, keys.high) if bound is not None})

    def at(self, bounds: Array) -> Array:
        """The positions of these key bounds."""
        return self.spread.below(bounds.astype(self.spread.bounds.dtype)) / self.spread.total

    def ends(self, keys: KeyRange) -> tuple[float, float]:
        """The positions where a key range begins and ends."""
        low = 0.0 if keys.low is None else float(self.at(np.array([keys.low]))[0])
        high = 1.0 if keys.high is None else float(self.at(np.array([keys.high]))[0])
        return low, high

    def parts(self, keys: KeyRange, units: UnitRange) -> list[tuple[float, float]]:
        """The positions where these units' parts of a key range begin and end."""
        low, high = self.ends(keys)
        return [(low + (high - low) * (begin / UNITS), low + (high - low) * (end / UNITS)) for begin, end in units.parts]
