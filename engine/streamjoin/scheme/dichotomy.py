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
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any

import numpy as np

from streamjoin.language.sides import LEFT, RIGHT
from streamjoin.scheme import varietal
from streamjoin.scheme.matrix import Matrix
from streamjoin.scheme.varietal import EPSILON, TOLERANCE, half_planes, tasks_needed

Array = np.ndarray[Any, np.dtype[Any]]

MOST_TASKS = 10_000
"""More tasks than this are refused; a manifest allows as many workers."""

ALL_SIZES = 32
"""Up to so many tasks an area is cut off for every number of tasks."""

SMALL_SIZES = 12
"""Areas of up to so many tasks are always tried."""

MANY_TASKS = 256
"""Beyond, a single corner is kept for each number of tasks, and the tasks that an area takes are those of a few good P_gamma."""

MOST_WASTE = 4.0
"""So many times the average may one large area of very many tasks waste of them (Eq. 7)."""

FULL_SHARE = 0.8
"""An area of which so much can match is not made better by cutting it in two."""

LEAST_SHARE = 0.3
"""Areas with more tasks than that are tried as long as so much of the last one can match: what matches lies in a band, and an area
that it hardly fills needs fewer tasks when it is cut in two."""

ROUNDING = 1e-6
"""In tasks, of bounds on what is left."""

MOST_AT_ONCE = 1 << 15
"""Up to so many cuts and half-planes are all compared rather than searched."""

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


@dataclass(frozen=True, slots=True, eq=False)
class Peeled:
    """What peeling came to: the coverage areas as they were cut off, each taking all that fits."""

    tasks: int
    capacity: float
    matrix: Matrix
    chain: tuple[tuple[int, int, int, int], ...]
    """Per area, where what remains begins before it, by row and column; its cut; its tasks."""

    def settled(self) -> Dichotomy:
        """With each cut moved back to where the two areas beside it hold least together."""
        cuts = _Cuts.of(self.matrix)
        return Dichotomy(self.tasks, _settled(self.matrix, cuts, self.capacity, [list(link) for link in self.chain]))

    def largest_load(self) -> float:
        """The least capacity that these areas could do with."""
        cuts = _Cuts.of(self.matrix)
        if not self.chain:
            return varietal.least_capacity(self.matrix.left, self.matrix.right, self.tasks)
        top, begin, cut, tasks = np.array(self.chain).T
        left, right = cuts.left[cut] - self.matrix.row_sums[top], cuts.right[cut] - self.matrix.column_sums[begin]
        return max(float(_least_capacity(left[tasks == size], right[tasks == size], size).max()) for size in np.unique(tasks).tolist())


def partition(matrix: Matrix, capacity: float) -> Dichotomy:
    """Alg. 2: the dichotomy of fewest tasks, each holding at most ``capacity`` tuples (see the module for how far it is the least).

    Raises TooManyTasksError where that takes more than ``MOST_TASKS``.
    """
    most = bound = lower_bound(matrix, capacity)
    # A few more than the bound suffice as a rule, while the whole matrix may need many times as many.
    while most <= MOST_TASKS:
        peeled, _ = peel(matrix, capacity, most)
        if peeled is not None:
            found = peeled.settled()
            if found.tasks > bound and _is_small(matrix):
                found = _all_dichotomies(matrix, capacity, found.tasks - 1) or found
            return found
        most = max(most + 1, min(MOST_TASKS, most + 2 + most // 4))
    raise TooManyTasksError(capacity)


def fits(matrix: Matrix, capacity: float, most: int) -> Dichotomy | None:
    """A dichotomy of at most ``most`` tasks, or None when there is none."""
    if lower_bound(matrix, capacity) > most:
        return None
    peeled, _ = peel(matrix, capacity, most)
    if peeled is None:
        return _all_dichotomies(matrix, capacity, most) if _is_small(matrix) else None
    return peeled.settled()


@lru_cache(maxsize=64)
def _table(begin: int, end: int) -> tuple[Array, Array, Array, Array]:
    """The half-planes of the sizes that one area may have, ``begin``..``end`` - 1 in tasks; where each size's begin; the sizes.

    All sizes to begin with, then ever sparser ones, so that they stay few: a large area may take a thirtieth too many tasks.
    """
    sizes = [size for size in _sizes(end - 1) if size >= begin]
    planes = [half_planes(size) for size in sizes]
    starts = np.cumsum([0] + [len(a) for a, _ in planes[:-1]])
    return np.concatenate([a for a, _ in planes]), np.concatenate([b for _, b in planes]), starts, np.array(sizes)


def _sizes(most: int) -> Iterator[int]:
    size = 1
    while size <= most:
        yield size
        size += 1 + size // ALL_SIZES


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


@dataclass(frozen=True, slots=True, eq=False)
class _Results:
    """The pairs inside the band, summed so that those of any area that a cut leaves are found at once."""

    matrix: Matrix
    below: tuple[Array, Array]
    """Of the rows before each, and of the columns: the volume of the row times that of the columns up to its last."""
    inside: tuple[Array, Array]
    """The same, of its columns in the band only."""
    whole: tuple[Array, ...]
    """Per column the first row that reaches none before it, and per row the first such column."""

    @classmethod
    def of(cls, matrix: Matrix) -> _Results:
        rows, columns = np.diff(matrix.row_sums), np.diff(matrix.column_sums)
        reached = matrix.column_sums[matrix.last + 1], matrix.row_sums[matrix.last_row + 1]
        begun = matrix.column_sums[matrix.first], matrix.row_sums[matrix.first_row]
        return cls(
            matrix,
            (_before(rows * reached[0]), _before(columns * reached[1])),
            (_before(rows * (reached[0] - begun[0])), _before(columns * (reached[1] - begun[1]))),
            tuple(
                np.searchsorted(first, np.arange(count + 1))
                for first, count in ((matrix.first, matrix.columns), (matrix.first_row, matrix.rows))
            ),
        )

    def of_areas(self, top: Array | int, begin: Array | int, cut: Array | int) -> Array:
        """The pairs of the areas between these corners and cuts that can match."""
        rows, matrix = self.matrix.rows, self.matrix
        return np.where(
            cut <= rows,
            self._within(LEFT, top, np.minimum(cut, rows), self.whole[LEFT][begin], matrix.column_sums[begin]),
            self._within(RIGHT, begin, np.maximum(cut - rows, 0), self.whole[RIGHT][top], matrix.row_sums[top]),
        )

    def _within(self, side: int, low: Array | int, high: Array, whole_from: Array, before: Array) -> Array:
        """The pairs of lines low..high - 1 that lie beyond ``before``; from ``whole_from`` on, none lies before it."""
        sums = (self.matrix.row_sums, self.matrix.column_sums)[side]
        middle = np.clip(whole_from, low, np.maximum(low, high))
        below, inside = self.below[side], self.inside[side]
        return np.asarray(below[middle] - below[low] - before * (sums[middle] - sums[low]) + inside[high] - inside[middle])


def _before(values: Array) -> Array:
    return np.concatenate([[0.0], np.cumsum(values)])


# Rows of the array of corners: where what remains begins; the number of the corner before, the cut that led from there, the tasks spent.
_TOP, _BEGIN, _PARENT, _CUT, _SPENT = range(5)


def peel(matrix: Matrix, capacity: float, most: int) -> tuple[Peeled | None, float]:
    """The first of the module's steps: areas of at most ``most`` tasks, or None; and about how many tasks it takes, without a limit.

    That is known exactly where there are areas; else by how far so many tasks came.
    """
    rows, columns = matrix.rows, matrix.columns
    if rows == columns == 1:
        whole = varietal.partition(matrix.left, matrix.right, capacity).tasks
        return (Peeled(whole, capacity, matrix, ((0, 0, 1, whole),)) if whole <= most else None), float(whole)
    cuts, results = _Cuts.of(matrix), _Results.of(matrix)
    if most > MANY_TASKS:
        return _peel_many(matrix, cuts, results, capacity, most)
    beam = max(1, min(BEAM, 512 // most))
    window, farthest = 16, (0.0, 1.0)

    # Corners found, by the tasks spent.
    found: list[list[Array]] = [[] for _ in range(most + 1)]
    found[0].append(np.array([[0], [0], [-1], [0], [0]]))
    kept: list[Array] = []
    numbered = 0
    # furthest[r]: the greatest column of a kept corner at row r or below.
    furthest = np.full(rows + 1, -1)
    for spent in range(most + 1):
        if not found[spent]:
            continue
        corners = _undominated(np.concatenate(found[spent], axis=1), furthest)
        found[spent] = []
        if not corners.shape[1]:
            continue
        if corners[_TOP, 0] == rows:
            return Peeled(spent, capacity, matrix, _chain(np.concatenate(kept, axis=1), corners[:, 0])), float(spent)
        if corners.shape[1] > beam:
            progress = matrix.row_sums[corners[_TOP]] + matrix.column_sums[corners[_BEGIN]]
            corners = corners[:, np.sort(np.argsort(-progress, kind="stable")[:beam])]
        behind = results.of_areas(corners[_TOP], corners[_BEGIN], np.full(corners.shape[1], rows))
        farthest = min(farthest, (float(behind.min()), float(spent)), key=lambda reached: reached[0]) if spent else (float(behind[0]), 0.0)
        # Eq. 7 for what is behind them.
        corners = corners[:, behind <= (most - spent + ROUNDING) * (capacity / 2) ** 2]
        if not corners.shape[1]:
            continue
        kept.append(corners)
        for row, column in corners[:2].T.tolist():
            np.maximum(furthest[: row + 1], column, out=furthest[: row + 1])
        following, window = _cut_off(matrix, cuts, results, capacity, corners, most - spent, window)
        if following is not None:
            cut, corner, tasks = following
            next_top = np.maximum(corners[_TOP][corner], cuts.next_top[cut])
            next_begin = np.maximum(corners[_BEGIN][corner], cuts.next_begin[cut])
            better = next_begin > furthest[next_top]
            added = np.stack([next_top, next_begin, numbered + corner, cut, spent + tasks])[:, better]
            ends = np.flatnonzero(np.diff(added[_SPENT], append=-1)) + 1
            for first, past in pairwise([0, *ends.tolist()]):
                found[int(added[_SPENT, first])].append(added[:, first:past])
        numbered += corners.shape[1]
    behind_farthest, spent_there = farthest
    done = matrix.result_volume - behind_farthest
    return None, max(most + 1.0, spent_there * matrix.result_volume / done if done > 0 else 2.0 * most)


def _cut_off(
    matrix: Matrix, cuts: _Cuts, results: _Results, capacity: float, corners: Array, most: int, window: int
) -> tuple[tuple[Array, Array, Array] | None, int]:
    """The areas of at most ``most`` tasks to cut off at these corners, fewest tasks first: their cuts, their corners' places, their tasks.

    Of each number of tasks the furthest, where it goes further than fewer do. Sizes are tried in steps, until areas that are larger still
    would be nearly empty, or would leave too few tasks for what is behind them. ``window``: how many cuts ahead are looked at first;
    returned is what was needed now.
    """
    count = corners.shape[1]
    # Every corner twice: for the cuts after rows, and for those after columns.
    top, begin = np.concatenate([corners[_TOP]] * 2), np.concatenate([corners[_BEGIN]] * 2)
    low = np.concatenate([corners[_TOP], matrix.rows + corners[_BEGIN]])
    high = np.repeat([matrix.rows, matrix.rows + matrix.columns], count)
    left, right = matrix.row_sums[top], matrix.column_sums[begin]
    behind = results.of_areas(top, begin, high)
    place, reached = np.arange(2 * count), low
    cut, corner, tasks = [], [], []
    step, least = SMALL_SIZES, 1
    while least <= most:
        a, b, starts, sizes = _table(least, least + step)
        usable = int(np.searchsorted(sizes, most, side="right"))
        if not usable:
            break
        if usable < len(sizes):
            a, b, starts, sizes = a[: starts[usable]], b[: starts[usable]], starts[:usable], sizes[:usable]
        limit = capacity * (1 + TOLERANCE) + a * left[place, None] + b * right[place, None]
        reach, window = _furthest(a, b, cuts, limit, reached, high[place], window)
        reach = np.maximum.accumulate(np.maximum.reduceat(reach, starts, axis=1), axis=1)
        # The furthest cut for each size; of interest where a size moves it.
        size, which = np.nonzero((reach > np.concatenate([reached[:, None], reach[:, :-1]], axis=1)).T)
        cut.append(reach[which, size])
        corner.append(place[which] % count)
        tasks.append(sizes[size])
        reached = reach[:, -1]
        # Areas of more tasks reach one cut further, at the least.
        ahead = np.minimum(reached + 1, high[place])
        volume = (cuts.left[ahead] - left[place]) * (cuts.right[ahead] - right[place])
        pairs = results.of_areas(top[place], begin[place], ahead)
        more = reached < high[place]
        more &= pairs >= LEAST_SHARE * volume
        more &= behind[place] - pairs <= (most - sizes[-1] + ROUNDING) * (capacity / 2) ** 2
        if not more.any():
            break
        place, reached = place[more], reached[more]
        least, step = least + step, least + step
    window = max(16, 2 * int((reached - low[place]).max()))
    if not cut:
        return None, window
    return (np.concatenate(cut), np.concatenate(corner), np.concatenate(tasks)), window


def _furthest(a: Array, b: Array, cuts: _Cuts, limit: Array, low: Array, high: Array, window: int) -> tuple[Array, int]:
    """Per corner and half-plane, the greatest cut in (low, high] with a * left + b * right <= limit, or ``low``; cuts looked at."""
    widest = int((high - low).max())
    while True:
        width = min(window, widest)
        if limit.size * width <= MOST_AT_ONCE:
            ahead = low[:, None] + np.arange(1, width + 1)
            inside = ahead <= high[:, None]
            ahead = np.minimum(ahead, high[:, None])
            left, right = np.where(inside, cuts.left[ahead], np.inf), cuts.right[ahead]
            counted = np.count_nonzero(a[:, None] * left[:, None, :] + b[:, None] * right[:, None, :] <= limit[:, :, None], axis=2)
            reach = low[:, None] + counted
        else:
            reach = _searched(a, b, cuts, limit, low[:, None], np.minimum(high, low + width)[:, None])
            counted = reach - low[:, None]
        if width == widest or int(counted.max()) < width:
            return reach, window
        window *= 4


def _searched(a: Array, b: Array, cuts: _Cuts, limit: Array, low: Array, high: Array) -> Array:
    """As :func:`_furthest`, by bisection."""
    low, high = np.broadcast_to(low, limit.shape).copy(), np.broadcast_to(high, limit.shape).copy()
    for _ in range(int((high - low).max()).bit_length()):
        middle = (low + high + 1) >> 1
        inside = a * cuts.left[middle] + b * cuts.right[middle] <= limit
        np.copyto(low, middle, where=inside)
        # Where the search is over, low == high == middle, and must stay so.
        np.copyto(high, np.maximum(middle - 1, low), where=~inside)
    return low


def _peel_many(matrix: Matrix, cuts: _Cuts, results: _Results, capacity: float, most: int) -> tuple[Peeled | None, float]:
    """:func:`peel` for very many tasks: the same from one corner for each number of tasks, the one with most tuples behind it.

    O(corners * cuts that an area spans), of which there are no more than tasks, nor than about the matrix has rows and columns.
    """
    rows = matrix.rows
    ends = rows, rows + matrix.columns
    per_task = (capacity / 2) ** 2
    progress = np.full(most + 1, -1.0)
    corners = np.zeros((5, most + 1), np.int64)
    progress[0], corners[_PARENT, 0] = 0.0, -1
    furthest = np.full(rows + 1, -1)
    windows = [16, 16]
    behind, last = matrix.result_volume, 0
    # Beyond its share of the tasks that no scheme can use fully, an area had better be two.
    wasted = MOST_WASTE * max(0.0, 1 - lower_bound(matrix, capacity) / most)
    for spent in np.arange(most + 1):
        top, begin = int(corners[_TOP, spent]), int(corners[_BEGIN, spent])
        if progress[spent] < 0 or begin <= furthest[top]:
            continue
        if top == rows:
            chain, number = [], int(spent)
            while (parent := int(corners[_PARENT, number])) >= 0:
                chain.append((*corners[:2, parent].tolist(), int(corners[_CUT, number]), number - parent))
                number = parent
            return Peeled(int(spent), capacity, matrix, tuple(chain[::-1])), float(spent)
        behind, last = float(results.of_areas(top, begin, rows)), int(spent)
        left_over = most - int(spent)
        if behind > (left_over + ROUNDING) * per_task:
            break
        np.maximum(furthest[: top + 1], begin, out=furthest[: top + 1])
        for side, (low, high) in enumerate(zip((top, rows + begin), ends, strict=True)):
            while True:
                cut = np.arange(low + 1, min(low + windows[side], high) + 1)
                left, right = cuts.left[cut] - matrix.row_sums[top], cuts.right[cut] - matrix.column_sums[begin]
                needed = _about_needed(left, right, capacity)
                pairs = results.of_areas(top, begin, cut)
                useful = (needed <= left_over) & (behind - pairs <= (left_over - needed + ROUNDING) * per_task)
                waste = needed - np.maximum(pairs / per_task, (left + right) / capacity)
                thrifty = (waste <= SMALL_SIZES / 2 + wasted * needed) | (pairs >= FULL_SHARE * left * right)
                useful &= (needed <= SMALL_SIZES) | ((pairs >= LEAST_SHARE * left * right) & thrifty)
                if len(cut) == 0 or cut[-1] == high or not useful[len(cut) // 2 :].any():
                    break
                windows[side] *= 2
            chosen = np.flatnonzero(useful)
            if not len(chosen):
                continue
            windows[side] = max(16, min(windows[side], 3 * int(chosen[-1] + 1)))
            needed = needed[chosen]
            # The furthest for each number of tasks; those that reach no further than fewer do are left out.
            fewest = np.minimum.accumulate(needed[::-1])[::-1]
            chosen = chosen[np.append(fewest[1:] > fewest[:-1], True)]
            cut, tasks = cut[chosen], fewest[np.append(fewest[1:] > fewest[:-1], True)]
            next_top, next_begin = np.maximum(top, cuts.next_top[cut]), np.maximum(begin, cuts.next_begin[cut])
            reached = matrix.row_sums[next_top] + matrix.column_sums[next_begin]
            number = spent + tasks
            better = (next_begin > furthest[next_top]) & (reached > progress[number])
            number = number[better]
            progress[number] = reached[better]
            corners[:, number] = (next_top[better], next_begin[better], np.full(len(number), spent), cut[better], number)
    done = matrix.result_volume - behind
    return None, max(most + 1.0, last * matrix.result_volume / done if done > 0 else 2.0 * most)


def _about_needed(left: Array, right: Array, capacity: float) -> Array:
    """Alg. 1's tasks for areas of these volumes, or a few more: P_gamma is tried only about where half of each task is of either side."""
    primary = np.stack([left, right])[:, None]
    secondary = primary[::-1]
    parts = np.maximum(np.floor(primary * (2 / capacity)) + _NEAR, 1)
    room = capacity - primary / parts
    with np.errstate(divide="ignore", invalid="ignore"):
        lines = np.floor(secondary / room + EPSILON)
        rest = secondary - lines * room
        extra = np.maximum(np.ceil(primary / (capacity - rest) - EPSILON), 1)
        extra[(lines > 0) & (rest <= EPSILON * secondary)] = 0
        tasks = parts * lines + extra
    tasks[~(room > EPSILON * capacity)] = np.iinfo(np.int32).max
    return np.asarray(tasks.min(axis=(0, 1)).astype(np.int64))


_NEAR = np.arange(-1, 3)[:, None]


def _undominated(corners: Array, furthest: Array) -> Array:
    """Those with no other, nor a kept one, at or beyond them in both directions, lowest first."""
    corners = corners[:, corners[1] > furthest[corners[0]]]
    corners = corners[:, np.lexsort((-corners[1], -corners[0]))]
    beyond = np.maximum.accumulate(np.concatenate([[-1], corners[1]]))[:-1]
    return corners[:, corners[1] > beyond]


def _chain(kept: Array, corner: Array) -> tuple[tuple[int, int, int, int], ...]:
    """The corners before this one, each with the cut that it was left by and the tasks of the area between: top, begin, cut, tasks."""
    chain = []
    while corner[_PARENT] >= 0:
        before = kept[:, corner[_PARENT]]
        chain.append((int(before[_TOP]), int(before[_BEGIN]), int(corner[_CUT]), int(corner[_SPENT] - before[_SPENT])))
        corner = before
    return tuple(chain[::-1])


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
