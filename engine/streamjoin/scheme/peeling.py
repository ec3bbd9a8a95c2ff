"""Peeling: one coverage area after another is cut off from the upper left (see :mod:`~streamjoin.scheme.dichotomy`)."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from itertools import pairwise
from typing import Any

import numpy as np

from streamjoin.scheme import varietal
from streamjoin.scheme.cuts import Cuts, Results
from streamjoin.scheme.matrix import Matrix
from streamjoin.scheme.peeled import BEGIN, CUT, PARENT, SPENT, TOP, Peeled
from streamjoin.scheme.peeling_many import LEAST_SHARE, ROUNDING, SMALL_SIZES, peel_many
from streamjoin.scheme.varietal import TOLERANCE, half_planes

Array = np.ndarray[Any, np.dtype[Any]]

ALL_SIZES = 32
"""Up to so many tasks an area is cut off for every number of tasks."""

MANY_TASKS = 256
"""Beyond, a single corner is kept for each number of tasks, and the tasks that an area takes are those of a few good P_gamma."""

MOST_AT_ONCE = 1 << 15
"""Up to so many cuts and half-planes are all compared rather than searched."""

BEAM = 16
"""Corners kept for each number of tasks, those with most tuples behind them; fewer from 32 tasks on. Bands have a handful. Only half
matrices (inequalities) have more, and there even a single corner costs no more than a task in fifty (measured)."""


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


def peel(matrix: Matrix, capacity: float, most: int) -> tuple[Peeled | None, float]:
    """The first of the module's steps: areas of at most ``most`` tasks, or None; and about how many tasks it takes, without a limit.

    That is known exactly where there are areas; else by how far so many tasks came.
    """
    rows, columns = matrix.rows, matrix.columns
    if rows == columns == 1:
        whole = varietal.partition(matrix.left, matrix.right, capacity).tasks
        return (Peeled(whole, capacity, matrix, ((0, 0, 1, whole),)) if whole <= most else None), float(whole)
    cuts, results = Cuts.of(matrix), Results.of(matrix)
    if most > MANY_TASKS:
        return peel_many(matrix, cuts, results, capacity, most)
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
        if corners[TOP, 0] == rows:
            return Peeled(spent, capacity, matrix, _chain(np.concatenate(kept, axis=1), corners[:, 0])), float(spent)
        if corners.shape[1] > beam:
            progress = matrix.row_sums[corners[TOP]] + matrix.column_sums[corners[BEGIN]]
            corners = corners[:, np.sort(np.argsort(-progress, kind="stable")[:beam])]
        behind = results.of_areas(corners[TOP], corners[BEGIN], np.full(corners.shape[1], rows))
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
            next_top = np.maximum(corners[TOP][corner], cuts.next_top[cut])
            next_begin = np.maximum(corners[BEGIN][corner], cuts.next_begin[cut])
            better = next_begin > furthest[next_top]
            added = np.stack([next_top, next_begin, numbered + corner, cut, spent + tasks])[:, better]
            ends = np.flatnonzero(np.diff(added[SPENT], append=-1)) + 1
            for first, past in pairwise([0, *ends.tolist()]):
                found[int(added[SPENT, first])].append(added[:, first:past])
        numbered += corners.shape[1]
    behind_farthest, spent_there = farthest
    done = matrix.result_volume - behind_farthest
    return None, max(most + 1.0, spent_there * matrix.result_volume / done if done > 0 else 2.0 * most)


def _cut_off(
    matrix: Matrix, cuts: Cuts, results: Results, capacity: float, corners: Array, most: int, window: int
) -> tuple[tuple[Array, Array, Array] | None, int]:
    """The areas of at most ``most`` tasks to cut off at these corners, fewest tasks first: their cuts, their corners' places, their tasks.

    Of each number of tasks the furthest, where it goes further than fewer do. Sizes are tried in steps, until areas that are larger still
    would be nearly empty, or would leave too few tasks for what is behind them. ``window``: how many cuts ahead are looked at first;
    returned is what was needed now.
    """
    count = corners.shape[1]
    # Every corner twice: for the cuts after rows, and for those after columns.
    top, begin = np.concatenate([corners[TOP]] * 2), np.concatenate([corners[BEGIN]] * 2)
    low = np.concatenate([corners[TOP], matrix.rows + corners[BEGIN]])
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


def _furthest(a: Array, b: Array, cuts: Cuts, limit: Array, low: Array, high: Array, window: int) -> tuple[Array, int]:
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


def _searched(a: Array, b: Array, cuts: Cuts, limit: Array, low: Array, high: Array) -> Array:
    """As :func:`_furthest`, by bisection."""
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


def _chain(kept: Array, corner: Array) -> tuple[tuple[int, int, int, int], ...]:
    """The corners before this one, each with the cut that it was left by and the tasks of the area between: top, begin, cut, tasks."""
    chain = []
    while corner[PARENT] >= 0:
        before = kept[:, corner[PARENT]]
        chain.append((int(before[TOP]), int(before[BEGIN]), int(corner[CUT]), int(corner[SPENT] - before[SPENT])))
        corner = before
    return tuple(chain[::-1])
