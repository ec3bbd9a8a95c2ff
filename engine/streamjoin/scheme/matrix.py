"""The ordered tuple matrix (A-DSP, Def. 1), compressed: buckets of left keys against buckets of right keys, and which pairs can match.

The main predicates are monotone, so the result cells form a band: row i reaches the columns ``first[i]..last[i]``, neither ever
falls, and no row or column is empty. Both ends are conservative (``MainPredicate.reach`` of the bucket's whole key range), and the
buckets cover the whole key space; so what covers the band covers every pair that the predicate admits, of keys seen or not.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from streamjoin.language.predicate import INT64_MAX, INT64_MIN, Bound, Encoding, MainKind, MainPredicate
from streamjoin.language.sides import LEFT, RIGHT
from streamjoin.scheme.statistics import DEFAULT_BUCKETS, Histogram, Statistics
from streamjoin.scheme.tiling import KeyRange, after, before

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True, slots=True, eq=False)
class Matrix:
    """See the module. Rows are left buckets, columns are right ones; sums are the tuples before each bucket, and at last all."""

    row_bounds: Array
    column_bounds: Array
    row_sums: Array
    column_sums: Array
    first: Array
    """Per row, the first column that it reaches; int64, never falling, first[0] == 0."""
    last: Array
    """Per row, the last; never falling, last[-1] == columns - 1, and first[i + 1] <= last[i] + 1."""
    first_row: Array
    """Per column, the first row that reaches it, and in ``last_row`` the last: the same band seen from the right."""
    last_row: Array

    result_volume: float
    """The pairs of tuples inside the band."""

    @property
    def rows(self) -> int:
        return len(self.first)

    @property
    def columns(self) -> int:
        return len(self.first_row)

    @property
    def left(self) -> float:
        """All left tuples, and in ``right`` all right ones."""
        return float(self.row_sums[-1])

    @property
    def right(self) -> float:
        return float(self.column_sums[-1])

    @classmethod
    def of(
        cls,
        statistics: Statistics,
        main: MainPredicate,
        buckets: int = DEFAULT_BUCKETS,
        left_cuts: Sequence[int | float] = (),
        right_cuts: Sequence[int | float] = (),
        *,
        paired: bool = False,
    ) -> Matrix:
        """The matrix of these statistics: a single cell where keys cannot help (!=, no main predicate, or keys of unknown spread).

        Hashed keys of unknown spread lie evenly in ``buckets`` parts. Known buckets are cut further, at the keys that the other side's
        bounds reach, so that a cut between buckets replicates no more than the predicate asks for; on an equality, nothing. So they are
        at ``left_cuts`` and ``right_cuts``, where a running scheme is cut, and, ``paired``, beside the other side's bounds
        (:meth:`pairs`). O(buckets * log buckets).
        """
        left, right = (side.histogram for side in statistics.sides)
        if hashed(main):
            left, right = left or Histogram.even(buckets), right or Histogram.even(buckets)
        empty = main.low is not None and main.high is not None and main.low > main.high
        if main.kind is not MainKind.RANGE or empty or left is None or right is None:
            left = right = Histogram(np.zeros(0, np.float64 if main.is_float else np.int64), np.ones(1))
        else:
            left, right = _cut_at(_typed(left, main), left_cuts), _cut_at(_typed(right, main), right_cuts)
            if paired:
                left = left.refined(_beside(right.bounds, main, back=True)[1])
                right = right.refined(_beside(left.bounds, main)[1])
            columns = _reached_bounds(left.bounds, main, main.reach)
            rows = _reached_bounds(right.bounds, main, main.reach_back)
            left, right = left.refined(rows), right.refined(columns)
        return cls.between(left, statistics.sides[LEFT].total, right, statistics.sides[RIGHT].total, main)

    @classmethod
    def between(cls, left: Histogram, left_tuples: float, right: Histogram, right_tuples: float, main: MainPredicate) -> Matrix:
        """The matrix over just these histograms' buckets. With no tuples on either side it is made for equal volumes."""
        if left_tuples + right_tuples <= 0:
            left_tuples = right_tuples = 1.0
        row_sums, column_sums = _sums(left_tuples, left), _sums(right_tuples, right)
        first, last = _band(left.bounds, right.bounds, main)
        columns = np.arange(len(column_sums) - 1)
        return cls(
            row_bounds=left.bounds,
            column_bounds=right.bounds,
            row_sums=row_sums,
            column_sums=column_sums,
            first=first,
            last=last,
            first_row=np.searchsorted(last, columns, side="left"),
            last_row=np.searchsorted(first, columns, side="right") - 1,
            result_volume=float(np.diff(row_sums) @ (column_sums[last + 1] - column_sums[first])),
        )

    def pairs(self, main: MainPredicate) -> tuple[Array, Array]:
        """The bounds of rows with a bound of columns beside them, in the middle of what is in reach; both ends included.

        As numbers of the row and the column that begin there: int64, strictly ascending.
        """
        rows, keys = _beside(self.row_bounds, main)
        columns = np.searchsorted(self.column_bounds, keys)
        paired = columns < len(self.column_bounds)
        paired[paired] = self.column_bounds[columns[paired]] == keys[paired]
        rows, columns = rows[paired] + 1, columns[paired] + 1
        return np.concatenate([[0], rows, [self.rows]]), np.concatenate([[0], columns, [self.columns]])

    def row_keys(self, begin: int, end: int) -> KeyRange:
        """The left keys of rows begin..end - 1."""
        return _keys(self.row_bounds, begin, end)

    def column_keys(self, begin: int, end: int) -> KeyRange:
        return _keys(self.column_bounds, begin, end)


def hashed(main: MainPredicate) -> bool:
    """Whether keys are spread evenly over int64 when nothing else is known of them."""
    return main.is_equality and bool(main.keys) and main.keys[LEFT].encoding is Encoding.HASH


def _typed(histogram: Histogram, main: MainPredicate) -> Histogram:
    wanted = "f" if main.is_float else "i"
    if histogram.bounds.dtype.kind == wanted:
        return histogram
    if wanted == "f" or not len(histogram.bounds):
        return Histogram(histogram.bounds.astype(np.float64 if main.is_float else np.int64), histogram.counts)
    raise ValueError("histogram.bounds: must be integers, as the join's keys are encoded as integers")


def _cut_at(histogram: Histogram, cuts: Sequence[int | float]) -> Histogram:
    return histogram.refined(np.array(cuts, histogram.bounds.dtype)) if len(cuts) else histogram


def _beside(bounds: Array, main: MainPredicate, *, back: bool = False) -> tuple[Array, Array]:
    """Which of these left bounds have a right one beside them, and those, strictly ascending; ``back``: of right ones, the left ones."""
    low, high = (other if end is None else end for end, other in ((main.low, main.high), (main.high, main.low)))
    middle: int | float = 0
    if low is not None and high is not None:
        middle = low / 2 + high / 2 if main.is_float else (int(low) + int(high)) // 2
    moved = [key - middle if back else key + middle for key in bounds.tolist()]
    if main.is_float:
        kept = [number for number, key in enumerate(moved) if math.isfinite(key) and (number == 0 or key > moved[number - 1])]
    else:
        kept = [number for number, key in enumerate(moved) if INT64_MIN < key <= INT64_MAX]
    return np.array(kept, np.int64), np.array([moved[number] for number in kept], bounds.dtype)


def _sums(tuples: float, histogram: Histogram) -> Array:
    counts = histogram.counts if histogram.total > 0 else np.ones(len(histogram.counts))
    return np.concatenate([[0.0], np.cumsum(counts) * (tuples / counts.sum())])


_Reach = Callable[[Bound, Bound], tuple[Bound, Bound]]


def _reached_bounds(bounds: Array, main: MainPredicate, reach: _Reach) -> Array:
    """The other side's bounds that a cut at each of these needs: where the keys before it cease to reach, and those after it begin to."""
    if main.low == 0 and main.high == 0 and not main.slack:
        return bounds
    found: list[Bound] = []
    for bound in bounds.tolist():
        last = reach(None, before(bound, main.is_float))[1]
        found += [reach(bound, None)[0], None if last is None else after(last, main.is_float)]
    # A bound at the least or beyond the greatest key separates nothing.
    return np.unique(np.array([key for key in found if key is not None and math.isfinite(key) and key != INT64_MIN], bounds.dtype))


def _band(rows: Array, columns: Array, main: MainPredicate) -> tuple[Array, Array]:
    bounds: list[int | float] = rows.tolist()
    first, last = np.zeros(len(rows) + 1, np.int64), np.full(len(rows) + 1, len(columns))
    # Row i begins at bounds[i - 1] and ends before bounds[i].
    lows = [main.reach(bound, None)[0] for bound in bounds]
    highs = [main.reach(None, before(bound, main.is_float))[1] for bound in bounds]
    if bounds and lows[0] is not None:
        first[1:] = np.searchsorted(columns, np.array(lows, columns.dtype), side="right")
    if bounds and highs[0] is not None:
        last[:-1] = np.searchsorted(columns, np.array(highs, columns.dtype), side="right")
    # Rounding may move what a float reaches by an ulp too far forth or back; the band must not fall.
    return np.minimum.accumulate(first[::-1])[::-1].copy(), np.maximum.accumulate(last)


def _keys(bounds: Array, begin: int, end: int) -> KeyRange:
    low: Bound = bounds[begin - 1].item() if begin > 0 else None
    high: Bound = bounds[end - 1].item() if end <= len(bounds) else None
    return KeyRange(low, high)
