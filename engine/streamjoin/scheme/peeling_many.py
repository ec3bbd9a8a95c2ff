"""Peeling (see :mod:`~streamjoin.scheme.dichotomy`) for more tasks than can be searched corner by corner, up to ten thousand."""

from __future__ import annotations

from typing import Any

import numpy as np

from streamjoin.language.sides import LEFT, RIGHT
from streamjoin.scheme.cuts import Cuts, Results, lower_bound
from streamjoin.scheme.matrix import Matrix
from streamjoin.scheme.peeled import BEGIN, CUT, PARENT, TOP, Peeled
from streamjoin.scheme.varietal import EPSILON

Array = np.ndarray[Any, np.dtype[Any]]

SMALL_SIZES = 12
"""Areas of up to so many tasks are always tried."""

MOST_WASTE = 4.0
"""So many times the average may one large area of very many tasks waste of them (Eq. 7)."""

FULL_SHARE = 0.8
"""An area of which so much can match is not made better by cutting it in two."""

LEAST_SHARE = 0.3
"""Areas with more tasks than that are tried as long as so much of the last one can match: what matches lies in a band, and an area
that it hardly fills needs fewer tasks when it is cut in two."""

ROUNDING = 1e-6
"""In tasks, of bounds on what is left."""
APART = 1e12
"""More tasks than any number of them."""


def peel_many(matrix: Matrix, cuts: Cuts, results: Results, capacity: float, most: int) -> tuple[Peeled | None, float]:
    """:func:`~streamjoin.scheme.peeling.peel` for very many tasks, from one corner for each number of them: that with most tuples behind.

    O(corners * cuts that an area spans), of which there are no more than tasks, nor than about the matrix has rows and columns.
    """
    rows, columns = matrix.rows, matrix.columns
    per_task = (capacity / 2) ** 2
    progress = np.full(most + 1, -1.0)
    corners = np.zeros((5, most + 1), np.int64)
    progress[0], corners[PARENT, 0] = 0.0, -1
    furthest = np.full(rows + 1, -1)
    windows = [16, 16]
    behind, last = matrix.result_volume, 0
    # Beyond its share of the tasks that no scheme can use fully, an area had better be two.
    wasted = MOST_WASTE * max(0.0, 1 - lower_bound(matrix, capacity) / most)
    for spent in range(most + 1):
        top, begin = corners[:2, spent].tolist()
        if progress[spent] < 0 or begin <= furthest[top]:
            continue
        if top == rows:
            chain, task = [], spent
            while (parent := int(corners[PARENT, task])) >= 0:
                chain.append((*corners[:2, parent].tolist(), int(corners[CUT, task]), task - parent))
                task = parent
            return Peeled(spent, capacity, matrix, tuple(chain[::-1])), float(spent)
        behind, last = results.of_rest(top, begin), spent
        left_over = most - spent
        if behind > (left_over + ROUNDING) * per_task:
            break
        np.maximum(furthest[: top + 1], begin, out=furthest[: top + 1])
        # The cuts after columns, then those after rows: so many of either.
        after = [(RIGHT, rows + begin, columns - begin), (LEFT, top, rows - top)]
        while True:
            counts = [min(windows[side], most_of_side) for side, _, most_of_side in after]
            parts = [slice(low + 1, low + 1 + count) for (_, low, _), count in zip(after, counts, strict=True)]
            left = np.concatenate([cuts.left[part] for part in parts])
            right = np.concatenate([cuts.right[part] for part in parts])
            pairs = np.concatenate([results.of_cuts(side, top, begin, count) for (side, _, _), count in zip(after, counts, strict=True)])
            left -= matrix.row_sums[top]
            right -= matrix.column_sums[begin]
            chosen, needed = _useful(left, right, pairs, capacity, left_over, behind, wasted)
            split = int(chosen.searchsorted(counts[0]))
            # The last of either that is of use.
            lasts = int(chosen[split - 1]) if split else -1, int(chosen[-1]) - counts[0] if split < len(chosen) else -1
            wider = [
                side
                for (side, _, most_of_side), count, farthest in zip(after, counts, lasts, strict=True)
                if farthest >= count // 2 and 0 < count < most_of_side
            ]
            if not wider:
                break
            for side in wider:
                windows[side] *= 2
        for (side, _, _), farthest in zip(after, lasts, strict=True):
            if farthest >= 0:
                windows[side] = max(16, min(windows[side], 3 * (farthest + 1)))
        if not len(chosen):
            continue
        # The furthest for each number of tasks; those that reach no further than fewer do are left out.
        fewest = needed.copy()
        fewest[split:] += APART
        kept = np.ones(len(fewest), bool)
        np.less(fewest[:-1], np.minimum.accumulate(fewest[:0:-1])[::-1], out=kept[:-1])
        chosen[:split] += rows + begin + 1
        chosen[split:] += top + 1 - counts[0]
        cut, number = chosen[kept], needed[kept].astype(np.int64) + spent
        next_top, next_begin = np.maximum(top, cuts.next_top.take(cut)), np.maximum(begin, cuts.next_begin.take(cut))
        reached = matrix.row_sums.take(next_top) + matrix.column_sums.take(next_begin)
        better = ((next_begin > furthest.take(next_top)) & (reached > progress.take(number))).nonzero()[0]
        # The best of the same number last; of two that are as good, that after a row.
        better = better[reached[better].argsort(kind="stable")]
        number = number[better]
        progress[number] = reached[better]
        corners[TOP, number], corners[BEGIN, number] = next_top[better], next_begin[better]
        corners[PARENT, number], corners[CUT, number] = spent, cut[better]
    done = matrix.result_volume - behind
    return None, max(most + 1.0, last * matrix.result_volume / done if done > 0 else 2.0 * most)


def _useful(left: Array, right: Array, pairs: Array, capacity: float, left_over: int, behind: float, wasted: float) -> tuple[Array, Array]:
    """Which of these areas may be cut off, ascending (int64), and the tasks of each (float64).

    Those that leave enough tasks for what is behind them (Eq. 7), and are small or waste few. ``left``, ``right``: their tuples; ``pairs``:
    those of them that can match, and ``behind`` of all that is left; ``wasted``: of a large area's tasks, the share that may be.
    """
    per_task = (capacity / 2) ** 2
    filled = np.maximum(pairs / per_task, (left + right) / capacity)
    enough, full = pairs >= LEAST_SHARE * left * right, pairs >= FULL_SHARE * left * right
    # Eq. 7 for all pairs of each area, matching or not: never more tasks than Alg. 1 takes. So it is asked about few areas.
    least = left * right * ((1 - ROUNDING) / per_task)
    thrifty = (1 - wasted) * least <= (SMALL_SIZES / 2 + filled) * (1 + ROUNDING)
    possible = (least <= SMALL_SIZES) | (enough & (full | thrifty))
    possible &= behind - pairs <= (left_over - least + 2 * ROUNDING) * per_task
    chosen = possible.nonzero()[0]
    pairs, filled, enough, full = pairs[chosen], filled[chosen], enough[chosen], full[chosen]
    needed = _about_needed(left[chosen], right[chosen], capacity)
    useful = (needed <= SMALL_SIZES) | (enough & (full | (needed - filled <= SMALL_SIZES / 2 + wasted * needed)))
    useful &= (needed <= left_over) & (behind - pairs <= (left_over - needed + ROUNDING) * per_task)
    return chosen[useful], needed[useful]


def _about_needed(left: Array, right: Array, capacity: float) -> Array:
    """Alg. 1's tasks for areas of these volumes, or a few more: P_gamma is tried only about where half of each task is of either side."""
    primary = np.array([left, right])[:, None]
    secondary = primary[::-1]
    parts = np.floor(primary * (2 / capacity)) + _NEAR
    np.maximum(parts, 1, out=parts)
    # In place, as thousands of areas are asked about at once.
    with np.errstate(divide="ignore", invalid="ignore"):
        room = primary / parts
        np.subtract(capacity, room, out=room)
        lines = secondary / room
        lines += EPSILON
        np.floor(lines, out=lines)
        rest = lines * room
        np.subtract(secondary, rest, out=rest)
        whole = (lines > 0) & (rest <= EPSILON * secondary)
        extra = np.subtract(capacity, rest, out=rest)
        np.divide(primary, extra, out=extra)
        extra -= EPSILON
        np.ceil(extra, out=extra)
        np.maximum(extra, 1, out=extra)
        extra[whole] = 0
        lines *= parts
        lines += extra
    lines[room <= EPSILON * capacity] = APART
    return np.asarray(lines.reshape(8, -1).min(axis=0))


_NEAR = np.arange(-1.0, 3.0)[:, None]
