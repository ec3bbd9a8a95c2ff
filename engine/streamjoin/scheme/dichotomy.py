"""The area dichotomy (A-DSP, section 3.2, Alg. 2): the band of results cut into coverage areas that need the fewest tasks together.

Def. 5 cuts a rectangle in two that share no cell and cover its results: after a row, the upper part keeping the columns that its rows
reach, the lower part those that its own reach; or after a column, likewise. Eq. 14 asks for the best of all ways to go on
cutting, whose number grows like Catalan's. Here it is found in polynomial time, in two steps:

1. *Peeling*, at any size: cut off one coverage area after another from the upper left. What remains is fixed by its upper left
   corner, and a corner further down and right needs no more tasks, as Alg. 1 never needs fewer for more tuples. So for every number of
   tasks only the furthest corners are kept, and only the furthest cuts are tried: half-planes of volumes
   (``varietal.half_planes``), hence binary searches. O(tasks * corners * half-planes * log buckets), at most ``BEAM`` corners a number.
   Cuts that are further than they need be then move back to where least is replicated.
2. *All dichotomies*, for matrices of at most ``EXACT_CELLS`` cells: a cut may also end at another cut, amid results, which in a few cases
   of a hundred saves a task. Rectangles are solved from small to large, but for those with which there would be too many tasks
   (Eq. 7). O(rows² * columns² * (rows + columns)).

The order of the coverage areas is that of the cuts, upper and left parts first: on either side the keys held by the first areas of
any number are a prefix of the keys, so that what an area holds and no earlier one does is one range.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from streamjoin.scheme import varietal
from streamjoin.scheme.matrix import Matrix
from streamjoin.scheme.varietal import EPSILON, TOLERANCE, half_planes, tasks_needed

Array = np.ndarray[Any, np.dtype[Any]]

MOST_TASKS = 1024
"""More tasks than this are refused; a manifest allows as many workers."""

ALL_SIZES = 32
"""Up to so many tasks an area is cut off for every number of tasks."""

EXACT_CELLS = 26 * 26
"""Up to here all dichotomies are tried, in about a tenth of a second."""

BEAM = 16
"""Corners kept for each number of tasks, those with most tuples behind them; fewer from 32 tasks on. Bands have a handful. Only half
matrices (inequalities) have more, and there even a single corner costs no more than a task in fifty (measured)."""


class TooManyTasksError(ValueError):
    """No scheme of at most ``MOST_TASKS`` tasks keeps the capacity."""

    def __init__(self, capacity: float) -> None:
        super().__init__(f"capacity: {capacity:g} a task would need more than {MOST_TASKS:,} tasks; raise the capacity")


@dataclass(frozen=True, slots=True)
class Rectangle:
    """A coverage area over a matrix: rows [top, bottom), columns [begin, end)."""

    top: int
    bottom: int
    begin: int
    end: int

    def volumes(self, matrix: Matrix) -> tuple[float, float]:
        """Its left and right tuples."""
        return (
            float(matrix.row_sums[self.bottom] - matrix.row_sums[self.top]),
            float(matrix.column_sums[self.end] - matrix.column_sums[self.begin]),
        )


@dataclass(frozen=True, slots=True)
class Dichotomy:
    """Coverage areas in the order of the cuts, and the tasks that they need together."""

    tasks: int
    areas: tuple[Rectangle, ...]


def lower_bound(matrix: Matrix, capacity: float) -> int:
    """A number of tasks below which no tiling can stay: each holds at most V tuples, and joins at most (V/2)² pairs (Eq. 7)."""
    by_tuples = (matrix.left + matrix.right) / capacity
    by_pairs = matrix.result_volume / (capacity / 2) ** 2
    return max(1, math.ceil(max(by_tuples, by_pairs) * (1 - EPSILON)))


def partition(matrix: Matrix, capacity: float) -> Dichotomy:
    """Alg. 2: the dichotomy of fewest tasks, each holding at most ``capacity`` tuples (see the module for how far it is the least).

    Raises TooManyTasksError where that takes more than ``MOST_TASKS``.
    """
    most = bound = lower_bound(matrix, capacity)
    # A few more than the bound suffice as a rule, while the whole matrix may need many times as many.
    while most <= MOST_TASKS:
        found = _peel(matrix, capacity, most)
        if found is not None:
            if found.tasks > bound and _is_small(matrix):
                found = _all_dichotomies(matrix, capacity, found.tasks - 1) or found
            return found
        most = max(most + 1, min(MOST_TASKS, most + 2 + most // 4))
    raise TooManyTasksError(capacity)


def fits(matrix: Matrix, capacity: float, most: int) -> Dichotomy | None:
    """A dichotomy of at most ``most`` tasks, or None when there is none."""
    if lower_bound(matrix, capacity) > most:
        return None
    found = _peel(matrix, capacity, most)
    if found is None and _is_small(matrix):
        return _all_dichotomies(matrix, capacity, most)
    return found


@lru_cache(maxsize=64)
def _table(most: int) -> tuple[Array, Array, Array, Array]:
    """The half-planes of the sizes that one area may have, up to ``most`` tasks; where each size's begin, and end; the sizes.

    All sizes to begin with, then ever sparser ones, so that they stay few: a large area may take a thirtieth too many tasks.
    """
    sizes = []
    size = 1
    while size <= most:
        sizes.append(size)
        size += 1 + size // ALL_SIZES
    planes = [half_planes(size) for size in sizes]
    starts = np.cumsum([0] + [len(a) for a, _ in planes])
    return np.concatenate([a for a, _ in planes]), np.concatenate([b for _, b in planes]), starts, np.array(sizes)


@dataclass(frozen=True, slots=True, eq=False)
class _Cuts:
    """All cuts of a matrix, numbered: 1..rows after rows, rows + 1..rows + columns after columns. Arrays over these numbers."""

    bottom: Array
    """Where an area before the cut ends, in rows, and in ``end`` in columns (exclusive)."""
    end: Array
    next_top: Array
    """Where an area after the cut begins, unless an earlier cut lies beyond: in rows, and in ``next_begin`` in columns."""
    next_begin: Array
    left: Array
    """The tuples before ``bottom``, and in ``right`` those before ``end``: neither falls among the cuts after rows, or after columns."""
    right: Array

    @classmethod
    def of(cls, matrix: Matrix) -> _Cuts:
        rows, columns = matrix.rows, matrix.columns
        bottom = np.concatenate([np.arange(rows + 1), matrix.last_row + 1])
        end = np.concatenate([[0], matrix.last + 1, np.arange(1, columns + 1)])
        return cls(
            bottom=bottom,
            end=end,
            # After the last row, or the last column, nothing remains.
            next_top=np.concatenate([np.arange(rows + 1), matrix.first_row[1:], [rows]]),
            next_begin=np.concatenate([matrix.first, [columns], np.arange(1, columns + 1)]),
            left=matrix.row_sums[bottom],
            right=matrix.column_sums[end],
        )


# Rows of the array of corners: where what remains begins; the number of the corner before, the cut that led from there, the tasks spent.
_TOP, _BEGIN, _PARENT, _CUT, _SPENT = range(5)


def _peel(matrix: Matrix, capacity: float, most: int) -> Dichotomy | None:
    rows, columns = matrix.rows, matrix.columns
    if rows == columns == 1:
        whole = varietal.partition(matrix.left, matrix.right, capacity).tasks
        return Dichotomy(whole, (Rectangle(0, 1, 0, 1),)) if whole <= most else None
    cuts = _Cuts.of(matrix)
    factors_left, factors_right, starts, sizes = _table(most)
    beam = max(1, min(BEAM, 512 // most))

    # Corners found, by the tasks spent.
    found: list[list[Array]] = [[] for _ in range(most + 1)]
    found[0].append(np.array([[0], [0], [-1], [0], [0]]))
    kept = np.zeros((5, 0), np.int64)
    # furthest[r]: the greatest column of a kept corner at row r or below.
    furthest = np.full(rows + 1, -1)
    for spent in range(most + 1):
        corners = _undominated(np.concatenate(found[spent], axis=1), furthest) if found[spent] else kept[:, :0]
        if not corners.shape[1]:
            continue
        if corners[_TOP, 0] == rows:
            return Dichotomy(spent, _settled(matrix, cuts, capacity, _chain(kept, corners[:, 0])))
        if corners.shape[1] > beam:
            progress = matrix.row_sums[corners[_TOP]] + matrix.column_sums[corners[_BEGIN]]
            corners = corners[:, np.sort(np.argsort(-progress, kind="stable")[:beam])]
        first_number = kept.shape[1]
        kept = np.concatenate([kept, corners], axis=1)
        np.maximum.at(furthest, corners[_TOP], corners[_BEGIN])
        furthest = np.maximum.accumulate(furthest[::-1])[::-1].copy()
        usable = int(np.searchsorted(sizes, most - spent, side="right"))
        if not usable:
            break
        # Every corner twice: for the cuts after rows, and for those after columns.
        top, begin = np.tile(corners[_TOP], 2), np.tile(corners[_BEGIN], 2)
        low = np.concatenate([corners[_TOP], rows + corners[_BEGIN]])[:, None]
        high = np.repeat([rows, rows + columns], corners.shape[1])[:, None]
        a, b = factors_left[: starts[usable]], factors_right[: starts[usable]]
        limit = capacity * (1 + TOLERANCE) + a * matrix.row_sums[top][:, None] + b * matrix.column_sums[begin][:, None]
        reach = _furthest(a, b, cuts, limit, low, high)
        # The furthest cut for each size; of interest where a size moves it.
        reach = np.maximum.accumulate(np.maximum.reduceat(reach, starts[:usable], axis=1), axis=1)
        corner, size = np.nonzero(reach > np.concatenate([low, reach[:, :-1]], axis=1))
        cut = reach[corner, size]
        following = np.stack(
            [
                np.maximum(top[corner], cuts.next_top[cut]),
                np.maximum(begin[corner], cuts.next_begin[cut]),
                first_number + corner % corners.shape[1],
                cut,
                spent + sizes[size],
            ]
        )
        for which in np.unique(size).tolist():
            found[spent + int(sizes[which])].append(following[:, size == which])
    return None


def _furthest(a: Array, b: Array, cuts: _Cuts, limit: Array, low: Array, high: Array) -> Array:
    """Per corner and half-plane, the greatest cut in (low, high] with a * left + b * right <= limit, or ``low``."""
    low, high = np.broadcast_to(low, limit.shape).copy(), np.broadcast_to(high, limit.shape).copy()
    for _ in range(int((high - low).max()).bit_length()):
        middle = (low + high + 1) >> 1
        inside = a * cuts.left[middle] + b * cuts.right[middle] <= limit
        np.copyto(low, middle, where=inside)
        # Where the search is over, low == high == middle, and must stay so.
        np.copyto(high, np.maximum(middle - 1, low), where=~inside)
    return low


def _undominated(corners: Array, furthest: Array) -> Array:
    """Those with no other, nor a kept one, at or beyond them in both directions, lowest first."""
    corners = corners[:, corners[1] > furthest[corners[0]]]
    corners = corners[:, np.lexsort((-corners[1], -corners[0]))]
    beyond = np.maximum.accumulate(np.concatenate([[-1], corners[1]]))[:-1]
    return corners[:, corners[1] > beyond]


def _chain(kept: Array, corner: Array) -> list[list[int]]:
    """The corners before this one, each with the cut that it was left by and the tasks of the area between: top, begin, cut, tasks."""
    chain = []
    while corner[_PARENT] >= 0:
        before = kept[:, corner[_PARENT]]
        chain.append([before[_TOP], before[_BEGIN], corner[_CUT], corner[_SPENT] - before[_SPENT]])
        corner = before
    return [[int(number) for number in link] for link in chain[::-1]]


def _settled(matrix: Matrix, cuts: _Cuts, capacity: float, chain: list[list[int]]) -> tuple[Rectangle, ...]:
    """The areas, each cut moved back to where the two areas beside it hold least together.

    Peeling takes all that fits, which may split a cluster of keys for nothing. No area gets more tasks. From the last cut to the first.
    """
    for link, (top, begin, cut, tasks) in reversed(list(enumerate(chain[:-1]))):
        _, _, next_cut, next_tasks = chain[link + 1]
        base = 0 if cut <= matrix.rows else matrix.rows
        moved = np.arange(max(base + 1, (top if base == 0 else base + begin) + 1), cut + 1)
        next_top, next_begin = np.maximum(top, cuts.next_top[moved]), np.maximum(begin, cuts.next_begin[moved])
        here = _least_capacity(cuts.left[moved] - matrix.row_sums[top], cuts.right[moved] - matrix.column_sums[begin], tasks)
        left = cuts.left[next_cut] - matrix.row_sums[next_top]
        there = _least_capacity(left, cuts.right[next_cut] - matrix.column_sums[next_begin], next_tasks)
        # What follows the next area must begin where it did.
        after_top, after_begin = np.maximum(next_top, cuts.next_top[next_cut]), np.maximum(next_begin, cuts.next_begin[next_cut])
        same = (after_top == after_top[-1]) & (after_begin == after_begin[-1])
        fits = same & (np.maximum(here, there) <= capacity * (1 + TOLERANCE))
        if fits.any():
            # Evened tasks hold the least capacity each. Ties go to the evenest two, then to the furthest cut.
            held = np.where(fits, np.round((here * tasks + there * next_tasks) / capacity, 9), np.inf)
            best = int(np.lexsort((-moved, np.maximum(here, there), held))[0])
            chain[link][2] = int(moved[best])
            chain[link + 1][:2] = int(next_top[best]), int(next_begin[best])
    return tuple(Rectangle(top, int(cuts.bottom[cut]), begin, int(cuts.end[cut])) for top, begin, cut, _ in chain)


def _least_capacity(left: Array, right: Array, tasks: int) -> Array:
    a, b = half_planes(tasks)
    return np.asarray((a[:, None] * left + b[:, None] * right).min(axis=0))


def _is_small(matrix: Matrix) -> bool:
    """Whether all dichotomies should be tried: there are not too many, and four results meet, for only there can a cut end at another."""
    return matrix.rows * matrix.columns <= EXACT_CELLS and bool((matrix.last[:-1] > matrix.first[1:]).any())


@dataclass(frozen=True, slots=True, eq=False)
class _Parts:
    """The rectangles that a matrix may be cut into: those with a result in the upper left and in the lower right corner.

    Results are numbered row by row. A part is the numbers of these two, its ``corner`` and the ``opposite`` one.
    """

    matrix: Matrix
    cuts: _Cuts
    row: Array
    """Of each result; and in ``column`` its column."""
    column: Array
    number: Array
    """Of the result in each cell of the band."""

    @classmethod
    def of(cls, matrix: Matrix) -> _Parts:
        column = np.arange(matrix.columns)
        band = (matrix.first[:, None] <= column) & (column <= matrix.last[:, None])
        row, column = np.nonzero(band)
        return cls(matrix, _Cuts.of(matrix), row, column, np.cumsum(band).reshape(band.shape) - 1)

    def all(self) -> tuple[Array, Array]:
        corner, opposite = np.nonzero((self.row[:, None] <= self.row) & (self.column[:, None] <= self.column))
        return corner, opposite

    def edges(self, corner: Array, opposite: Array) -> tuple[Array, Array, Array, Array]:
        """Top, bottom, begin and end, as of a Rectangle."""
        return self.row[corner], self.row[opposite] + 1, self.column[corner], self.column[opposite] + 1

    def volumes(self, corner: Array, opposite: Array) -> tuple[Array, Array]:
        top, bottom, begin, end = self.edges(corner, opposite)
        rows, columns = self.matrix.row_sums, self.matrix.column_sums
        return rows[bottom] - rows[top], columns[end] - columns[begin]

    def bounds(self, corner: Array, opposite: Array, capacity: float) -> tuple[Array, Array]:
        """Eq. 7: how many tasks each part takes at least, and how many more what lies beside it does, in any dichotomy that it is of."""
        matrix = self.matrix
        top, bottom, begin, end = self.edges(corner, opposite)
        before = np.zeros((matrix.rows + 1, matrix.columns + 1))
        before[self.row + 1, self.column + 1] = np.diff(matrix.row_sums)[self.row] * np.diff(matrix.column_sums)[self.column]
        before = before.cumsum(axis=0).cumsum(axis=1)
        pairs = before[bottom, end] - before[top, end] - before[bottom, begin] + before[top, begin]
        left, right = self.volumes(corner, opposite)
        tasks = np.stack([(left + right) / capacity, pairs / (capacity / 2) ** 2])
        everything = np.array([[(matrix.left + matrix.right) / capacity], [matrix.result_volume / (capacity / 2) ** 2]])
        within, beside = (np.ceil(part * (1 - EPSILON) - EPSILON).max(axis=0) for part in (tasks, everything - tasks))
        return np.maximum(within, 1), beside

    def halves(self, corner: Array, opposite: Array) -> tuple[Array, Array]:
        """Def. 5: all cuts of parts with as many rows and columns together, as (parts, cuts).

        The part (a, b) falls into (a, first) and (second, b).
        """
        top, bottom, begin, end = (edge[:, None] for edge in self.edges(corner, opposite))
        after_row = top + 1 + np.arange(int((bottom - top + end - begin)[0, 0]) - 2)
        cut = np.where(after_row < bottom, after_row, self.matrix.rows + begin + 1 + after_row - bottom)
        first = self.number[np.minimum(bottom, self.cuts.bottom[cut]) - 1, np.minimum(end, self.cuts.end[cut]) - 1]
        second = self.number[np.maximum(top, self.cuts.next_top[cut]), np.maximum(begin, self.cuts.next_begin[cut])]
        return first, second


def _all_dichotomies(matrix: Matrix, capacity: float, most: int) -> Dichotomy | None:
    parts = _Parts.of(matrix)
    corner, opposite = parts.all()
    least, beside = parts.bounds(corner, opposite, capacity)
    # The others are not on the way to any dichotomy of at most ``most`` tasks.
    useful = least + beside <= most
    corner, opposite, least = corner[useful], opposite[useful], least[useful]
    needed = tasks_needed(*parts.volumes(corner, opposite), capacity, most)
    # By part: the tasks of one coverage area, and of the best dichotomy.
    whole = np.full((len(parts.row), len(parts.row)), most + 1, np.int32)
    whole[corner, opposite] = needed
    fewest = whole.copy()
    size = parts.row[opposite] - parts.row[corner] + parts.column[opposite] - parts.column[corner]
    unsolved = needed > least
    for each in np.unique(size[unsolved & (size > 0)]).tolist():
        a, b = corner[unsolved & (size == each)], opposite[unsolved & (size == each)]
        first, second = parts.halves(a, b)
        fewest[a, b] = np.minimum(whole[a, b], (fewest[a[:, None], first] + fewest[second, b[:, None]]).min(axis=1))
    tasks = int(fewest[0, -1])
    if tasks > most:
        return None

    areas: list[Rectangle] = []
    stack = [(np.array([0]), np.array([len(parts.row) - 1]))]
    while stack:
        a, b = stack.pop()
        if whole[a, b] == fewest[a, b]:
            areas.append(Rectangle(*(int(edge[0]) for edge in parts.edges(a, b))))
        else:
            first, second = (of_part[0] for of_part in parts.halves(a, b))
            best = int(np.argmax(fewest[a, first] + fewest[second, b] == fewest[a, b]))
            stack += [(second[best : best + 1], b), (a, first[best : best + 1])]
    return Dichotomy(tasks, tuple(areas))
