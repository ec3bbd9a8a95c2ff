"""What a plan is made from: how many tuples each side holds, and how their keys are spread.

Always holds: a histogram's buckets cover the whole key space (the first and the last are open), so a plan made from a sample says where
keys go that the sample never showed. Statistics only decide how even a scheme is, never whether it is correct.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from streamjoin.language.predicate import INT64_MAX, INT64_MIN, Bound
from streamjoin.language.sides import SIDE_NAMES
from streamjoin.scheme.tiling import UNITS, KeyRange, Scheme

DEFAULT_BUCKETS = 1000

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True, slots=True, eq=False)
class Histogram:
    """Counts of keys in n buckets: bucket i holds the keys in [bounds[i - 1], bounds[i]); the first and the last are open.

    ``bounds``: int64 or float64, n - 1 strictly ascending inner bounds. ``counts``: float64, n, in tuples or any common unit.
    """

    bounds: Array
    counts: Array

    def __post_init__(self) -> None:
        bounds = np.asarray(self.bounds)
        bounds = bounds.astype(np.float64 if bounds.dtype.kind == "f" else np.int64)
        counts = np.asarray(self.counts, np.float64)
        if bounds.ndim != 1 or counts.shape != (len(bounds) + 1,):
            raise ValueError(f"histogram.counts: {counts.size} counts must be one more than the {bounds.size} inner bounds")
        if not np.isfinite(bounds).all() or not (bounds[1:] > bounds[:-1]).all():
            raise ValueError("histogram.bounds: must be finite and strictly ascending")
        if not np.isfinite(counts).all() or (counts < 0).any():
            raise ValueError("histogram.counts: must be finite and not negative")
        object.__setattr__(self, "bounds", bounds)
        object.__setattr__(self, "counts", counts)

    @classmethod
    def from_sample(cls, keys: Array, buckets: int = DEFAULT_BUCKETS, weight: float | Array = 1.0) -> Histogram:
        """At most about ``buckets`` buckets of equal count from encoded keys in any order; each key stands for ``weight`` tuples.

        ``weight``: one number for all keys, or float64 of their length.
        A key that would fill several buckets gets one of its own, and so does every key when there are few, so that a cut may pass
        on either side of it. The outer buckets are empty but for infinite keys. O(n log n).
        """
        keys = np.asarray(keys)
        keys = keys.astype(np.float64 if keys.dtype.kind == "f" else np.int64, copy=False)
        if not len(keys):
            return cls(keys, np.zeros(1))
        order = np.argsort(keys, kind="stable")
        keys, weights = keys[order], np.broadcast_to(np.asarray(weight, np.float64), keys.shape)[order]
        before = np.concatenate([[0.0], np.cumsum(weights)])
        first = np.flatnonzero(np.concatenate([[True], keys[1:] != keys[:-1]]))
        values, counts = keys[first], np.diff(before[np.append(first, len(keys))])
        total = float(before[-1])
        finite = np.isfinite(values)
        values, counts = values[finite], counts[finite]
        above = np.nextafter(values, np.inf) if values.dtype.kind == "f" else values + (values < INT64_MAX)
        # A key alone costs two bounds. Those of at least four buckets' count are few enough to leave half of the bounds to the rest.
        alone = (counts * buckets >= 4 * total) if 2 * len(values) > buckets else np.ones(len(values), bool)
        rest = np.where(alone, 0, counts)
        depth = max(total / len(keys), rest.sum() / max(1, buckets - 2 * int(alone.sum()) - 2))
        step = np.floor((np.cumsum(rest) - rest) / depth)
        others = np.flatnonzero(~alone)
        begins = others[np.unique(step[others], return_index=True)[1]]
        bounds = np.unique(np.concatenate([values[begins], values[alone], above[alone], above[-1:]]))
        bounds = bounds[np.isfinite(bounds)] if bounds.dtype.kind == "f" else bounds[bounds > INT64_MIN]
        return cls(bounds, np.diff(before[np.searchsorted(keys, bounds)], prepend=0.0, append=total))

    @classmethod
    def even(cls, buckets: int) -> Histogram:
        """Equal counts over equal parts of the int64 range: how hashed keys lie when nothing else is known."""
        bounds = [INT64_MIN + (number << 64) // buckets for number in range(1, buckets)]
        return cls(np.array(bounds, np.int64), np.ones(buckets))

    @property
    def total(self) -> float:
        return float(self.counts.sum())

    def below(self, bounds: Array) -> Array:
        """The count of keys below each of these bounds, as if keys were spread evenly inside a bucket. O(bounds * log buckets).

        Nothing is known of how far the open buckets reach: all of their count is taken to lie beside their one bound.
        """
        if not len(self.bounds):
            return np.full(len(bounds), self.total / 2)
        cumulative = np.cumsum(self.counts)[:-1]
        place = np.searchsorted(self.bounds, bounds, side="right")
        low, high = np.maximum(place - 1, 0), np.minimum(place, len(self.bounds) - 1)
        width = _distance(self.bounds[low], self.bounds[high])
        share = np.divide(_distance(self.bounds[low], bounds), width, out=np.zeros(len(bounds)), where=width > 0)
        inside = cumulative[low] + share * (cumulative[high] - cumulative[low])
        inside[place == 0] = 0.0
        inside[bounds > self.bounds[-1]] = self.total
        return np.asarray(inside)

    def share(self, keys: KeyRange) -> float:
        """Which part of all keys lies in the range: 0 to 1. An empty histogram says nothing, so every range is everything."""
        return self.shares([keys])[0]

    def shares(self, ranges: Sequence[KeyRange]) -> list[float]:
        """The same of each of these ranges. O(ranges * log buckets + buckets)."""
        total = self.total
        bounds = [bound for keys in ranges for bound in (keys.low, keys.high) if bound is not None]
        if total <= 0 or not bounds:
            return [1.0] * len(ranges)
        below = iter(self.below(np.array(bounds, self.bounds.dtype)).tolist())
        found = []
        for keys in ranges:
            low = 0.0 if keys.low is None else next(below)
            high = total if keys.high is None else next(below)
            found.append(1.0 if keys.low is None and keys.high is None else max(0.0, high - low) / total)
        return found

    def refined(self, bounds: Array) -> Histogram:
        """The same histogram with these bounds added, counts shared out as :meth:`below` does."""
        merged = np.union1d(self.bounds, bounds.astype(self.bounds.dtype))
        return Histogram(merged, np.maximum(np.diff(self.below(merged), prepend=0.0, append=self.total), 0))


def _distance(low: Array, high: Array) -> Array:
    """high - low, or half of it, as float64, for high >= low: floats could overflow, and int64 need 64 bits without a sign."""
    if low.dtype.kind == "f":
        return np.asarray(high / 2 - low / 2)
    return np.asarray((high.astype(np.int64).view(np.uint64) - low.view(np.uint64)).astype(np.float64))


@dataclass(frozen=True, slots=True)
class SideStatistics:
    """One side: the tuples that it holds, how their encoded keys are spread (None: unknown), and what one of them weighs.

    Volumes are tuples x weight (A-DSP, Eqs. 1, 2 and 6). So a weight of 1 makes them tuples, and a tuple's width bytes.
    """

    tuples: float
    histogram: Histogram | None = None
    weight: float = 1.0

    def __post_init__(self) -> None:
        if not 0 < self.weight < math.inf:
            raise ValueError(f"weight: {self.weight} must be a positive number")

    @property
    def total(self) -> float:
        """The volume of all tuples."""
        return self.tuples * self.weight

    def volume(self, keys: KeyRange) -> float:
        """The volume of the tuples whose key lies in the range. Keys of unknown spread are taken to lie evenly over int64."""
        return self.volumes([keys])[0]

    def volumes(self, ranges: Sequence[KeyRange]) -> list[float]:
        """The same of each of these ranges. O(ranges * log buckets + buckets)."""
        total = self.total
        return [total * share for share in (self.histogram or _EVEN).shares(ranges)]

    def below(self, bounds: Array) -> Array:
        """The volume of the tuples whose key lies below each of these bounds: float64."""
        histogram = self.histogram if self.histogram is not None and self.histogram.total > 0 else _EVEN
        return histogram.below(bounds.astype(histogram.bounds.dtype)) * (self.total / histogram.total)

    def below_all(self, bounds: Iterable[Bound], *, end: bool = False) -> Array:
        """As :meth:`below`, of bounds that may be open: below None lies nothing, or at the ``end`` of ranges everything."""
        bounds = list(bounds)
        known = iter(self.below(np.array(inner)).tolist() if (inner := [bound for bound in bounds if bound is not None]) else [])
        open_ = self.total if end else 0.0
        return np.array([open_ if bound is None else next(known) for bound in bounds], np.float64)


_EVEN = Histogram(np.array([INT64_MIN, INT64_MAX]), np.array([0.0, 1.0, 0.0]))


def _side_json(side: SideStatistics) -> dict[str, Any]:
    histogram = side.histogram
    spread = None if histogram is None else {"bounds": histogram.bounds.tolist(), "counts": histogram.counts.tolist()}
    return {"tuples": side.tuples, "histogram": spread, "weight": side.weight}


def _side_of(value: Any) -> SideStatistics:
    spread = value["histogram"]
    histogram = None if spread is None else Histogram(np.array(spread["bounds"]), np.array(spread["counts"], np.float64))
    return SideStatistics(float(value["tuples"]), histogram, float(value.get("weight", 1.0)))


@dataclass(frozen=True, slots=True)
class Statistics:
    """Both sides of a join."""

    sides: tuple[SideStatistics, ...]

    @property
    def total(self) -> float:
        """The volume of all tuples."""
        return sum(side.total for side in self.sides)

    @property
    def counted(self) -> Statistics:
        """The same with volumes in tuples, whatever they weigh; itself where they are that already."""
        if all(side.weight == 1 for side in self.sides):
            return self
        return self.weighed((1.0, 1.0))

    def weighed(self, weights: tuple[float, float]) -> Statistics:
        """The same with tuples of these weights. Raises ValueError for a weight that is not positive."""
        return Statistics(tuple(replace(side, weight=weight) for side, weight in zip(self.sides, weights, strict=True)))

    def to_json(self) -> dict[str, Any]:
        """The statistics as a value that ``json`` writes and reads back without loss."""
        return {name: _side_json(side) for name, side in zip(SIDE_NAMES, self.sides, strict=True)}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Statistics:
        """The inverse of :meth:`to_json`. Raises ValueError for what is not such a value."""
        try:
            return cls(tuple(_side_of(value[name]) for name in SIDE_NAMES))
        except (KeyError, TypeError) as error:
            raise ValueError(f"this is not a join's statistics: {type(error).__name__}: {error}") from error


def loads(scheme: Scheme, statistics: Statistics) -> Array:
    """The volume that each task would hold, both sides together: float64, one per task. O(areas * log buckets)."""
    held = np.zeros(scheme.tasks)
    for side, of_side in enumerate(statistics.sides):
        holding = [area for area in scheme.areas if area.holds[side]]
        ranges = list(dict.fromkeys(area.keys[side] for area in holding))
        volumes = dict(zip(ranges, of_side.volumes(ranges), strict=True))
        for area in holding:
            held[area.task] += volumes[area.keys[side]] * (area.units[side].size / UNITS)
    return held
