"""Where the rows of two sides meet: places, so that each pair that may match is in one place, once.

One side has a *point* a row, the other a *reach*, from low to high; a pair can match only if its point lies in its reach, in Spark's
order of doubles (NaN equals itself and is the greatest). A row is in the places of its point, or in those that its reach covers; both are
cut at the same bounds. The join is an equality of places; the condition itself is still checked on the pairs.

Always holds: a cut is monotone, so a point that lies in a reach has a place of it; one of the two is in one place only, or they share one
level, so they meet once. A row whose point or ends are NULL matches nothing; on the side that is in one place it has the place NULL.
O(1) for a row and place.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

_FITS = 0.999
"""A reach this part of a bin's width lies in two bins at most, however numbers are rounded."""


@dataclass(frozen=True, slots=True)
class End:
    """An end of a reach: a key (SQL, a DOUBLE) plus ``shift``, and further out by ``margin`` and by ``relative`` of the key's size."""

    key: str
    shift: float = 0.0
    margin: float = 0.0
    relative: float = 0.0

    def of(self, keys: Array, *, down: bool) -> Array:
        """``keys``: of the rows. O(rows)."""
        with np.errstate(invalid="ignore", over="ignore"):
            size = np.where(np.isnan(keys), 1e308, np.minimum(np.abs(keys), 1e308))
            out = size * self.relative + self.margin
            return np.asarray(keys + (self.shift - out if down else self.shift + out))


@dataclass(frozen=True, slots=True)
class Reach:
    """``low <= point <= high``; an end that is None: none."""

    points: int
    """The side that has the points."""
    point: str
    """SQL, a DOUBLE."""
    low: End | None
    high: End | None
    text: str = ""
    """The parts of the condition that it comes from."""
    apart: str = ""
    """SQL of a further condition that pairs must satisfy, which keeps two reaches apart."""
    is_whole: bool = False
    """Whether keys are whole numbers."""

    @property
    def is_open(self) -> bool:
        return self.low is None or self.high is None


@dataclass(frozen=True, slots=True)
class Uniform:
    """Bins of one width; what lies outside of them belongs to the first or the last."""

    origin: float
    width: float
    count: int

    def index(self, values: Array) -> Array:
        """Of each value, 0 to count - 1. O(values)."""
        with np.errstate(invalid="ignore", over="ignore"):
            scaled = (values - self.origin) * (1.0 / self.width)
        return np.floor(np.where(np.isnan(scaled), self.count - 1.0, np.clip(scaled, 0.0, self.count - 1.0))).astype(np.int64)


@dataclass(frozen=True, slots=True)
class Quantiles:
    """Ranges between ascending bounds; a bound belongs to the range above it."""

    bounds: tuple[float, ...]

    @property
    def count(self) -> int:
        return len(self.bounds) + 1

    def index(self, values: Array) -> Array:
        """Of each value, 0 to count - 1. O(values log count)."""
        return np.asarray(np.searchsorted(np.array(self.bounds, float), values, side="right"), np.int64)


Cut = Uniform | Quantiles


class Mode(StrEnum):
    POINTS = "points"
    """Each point is in one place, a reach in all that it covers."""
    REACHES = "reaches"
    """Each reach is in one place: at the level of its length, where its low end lies. A point is in all that may hold a reach to it."""
    LEVELS = "levels"
    """A reach is in the one or two places that it covers at the level of its length; a point is in one at each level."""


@dataclass(frozen=True, slots=True)
class Axis:
    """A reach and its cuts: one for POINTS, else of widths that grow."""

    reach: Reach
    mode: Mode
    cuts: tuple[Cut, ...]

    @property
    def single(self) -> int | None:
        """The side whose rows are in one place."""
        return {Mode.POINTS: self.reach.points, Mode.REACHES: 1 - self.reach.points}.get(self.mode)

    @property
    def base(self) -> int:
        """So many levels share the numbers of places: a place is index * base + level."""
        return len(self.cuts) + (self.mode is Mode.REACHES)


def fits(cut: Cut) -> float:
    """The longest reach that has its level here: it has the first whose bins are as wide as it is long."""
    return cut.width * _FITS if isinstance(cut, Uniform) else math.inf


@dataclass(frozen=True, slots=True)
class Hot:
    """Places of one axis that become grids: a row that is in one place is in one of ``rows`` parts of it, the other in all of them."""

    places: tuple[int, ...]
    rows: int


@dataclass(frozen=True, slots=True)
class Estimate:
    """Of a way, from samples: rows and pairs."""

    cost_seconds: float
    """Of one core; made for comparison, not for promises."""
    replicas: float
    """Rows that are joined on the side that has several places."""
    candidates: float
    results: float


@dataclass(frozen=True, slots=True)
class Bins:
    """One or two axes; rows meet where the places of all are equal."""

    axes: tuple[Axis, ...]
    estimate: Estimate
    hot: Hot | None = None
    with_equality: bool = False
    """Whether an equality of the condition is a key beside the places."""


@dataclass(frozen=True, slots=True)
class Own:
    """Spark's own plan."""

    reason: str
    estimate: Estimate | None = None


Columns = Mapping[str, tuple[Array, Array]]
"""Keys of sampled rows by their SQL: values, and whether they are valid (not NULL)."""


@dataclass(frozen=True)
class Sample:
    """Rows of one side, drawn evenly."""

    rows: int
    """Of the whole side."""
    columns: Columns
    size: int
    """Sampled rows."""
