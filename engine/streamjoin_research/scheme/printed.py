"""A-DSP's algorithms as the paper prints them, where ours differ on purpose; to compare with, never to plan by.

- :func:`four_primaries`: Alg. 1 with its four P_gamma. Ours (:func:`~streamjoin.scheme.varietal.partition`) tries every one.
- :func:`dichotomy`: Alg. 2 with the stop of Def. 6. Ours (:mod:`~streamjoin.scheme.dichotomy`) has no such stop.
- :func:`one_dimensional`: 1-DSP, counting with a task's tuples those that it is sent only to join, as Fig. 2(a) does.
- :func:`consumption_bound`: Theorem 4.
- :func:`readj`: Readj's sweep over sigma, with swaps of keys between tasks. Ours (:mod:`~streamjoin.scheme.readj`) moves ranges alone.

Alg. 4 as printed is :func:`streamjoin.elastic.mapping.greedy`, which ``streamjoin plan --from`` shows beside the exact map.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product
from typing import Any

import numpy as np

from streamjoin.scheme.cuts import Dichotomy, Rectangle
from streamjoin.scheme.matrix import Matrix
from streamjoin.scheme.varietal import EPSILON, Shape, square, varietal

Array = np.ndarray[Any, np.dtype[Any]]

Needed = Callable[[float, float], int]
"""The tasks that a coverage area of so many left and right tuples needs."""


def four_primaries(left: float, right: float, capacity: float) -> Shape:
    """Alg. 1: the varietal matrix of fewest tasks for P_gamma = floor or ceil of |R| / V_h or |S| / V_h.

    Of equal ones, the first in the paper's order. A floor of 0 is left out: it would divide by zero. Raises ValueError for volumes or a
    capacity that are not positive. O(1).
    """
    if not (left > 0 and right > 0 and capacity > 0):
        raise ValueError(f"volumes {left} and {right} and the capacity {capacity} must be positive")
    half = capacity / 2
    shapes = []
    for primary, secondary, position in ((left, right, "column"), (right, left, "row")):
        for parts in (math.ceil(primary / half - EPSILON), math.floor(primary / half + EPSILON)):
            shape = varietal(primary, secondary, parts, capacity, position) if parts else None
            if shape is not None:
                shapes.append(shape)
    return min(shapes, key=lambda shape: shape.tasks)


def by_equation_9(capacity: float) -> Needed:
    """How the proofs of Lemma 1 and Theorem 4 count tasks."""
    return lambda left, right: square(left, right, capacity).tasks


def by_algorithm_1(capacity: float) -> Needed:
    """How Alg. 2 counts tasks."""
    return lambda left, right: four_primaries(left, right, capacity).tasks


def dichotomy(matrix: Matrix, needed: Needed) -> Dichotomy:
    """Alg. 2: an area is split in two, and each part on, only where the two unsplit take fewer tasks than it does (Def. 6).

    O(rows³ * columns³): for toys.
    """

    @cache
    def best(area: Rectangle) -> tuple[int, tuple[Rectangle, ...]]:
        whole = needed(*area.volumes(matrix))
        found: tuple[int, tuple[Rectangle, ...]] = whole, (area,)
        for first, second in splits(matrix, area):
            if needed(*first.volumes(matrix)) + needed(*second.volumes(matrix)) < whole:
                before, after = best(first), best(second)
                if before[0] + after[0] < found[0]:
                    found = before[0] + after[0], before[1] + after[1]
        return found

    return Dichotomy(*best(Rectangle(0, matrix.rows, 0, matrix.columns)))


def splits(matrix: Matrix, area: Rectangle) -> Iterator[tuple[Rectangle, Rectangle]]:
    """Def. 5: every pair of disjoint rectangles, one at the area's first cell and one at its last, that hold all of its results.

    The second one is as small as the first leaves it: a larger one never takes fewer tasks.
    """
    first, last = np.maximum(matrix.first, area.begin), np.minimum(matrix.last, area.end - 1)
    for bottom, end in product(range(area.top + 1, area.bottom + 1), range(area.begin + 1, area.end + 1)):
        # Of the results in rows before ``bottom`` those at ``end`` and beyond remain, and all of the rows after.
        inside = any(first[row] < end and first[row] <= last[row] for row in range(area.top, bottom))
        above = [row for row in range(area.top, bottom) if max(first[row], end) <= last[row]]
        below = [row for row in range(bottom, area.bottom) if first[row] <= last[row]]
        rest = above + below
        if not inside or not rest:
            continue
        begins = [max(int(first[row]), end) for row in above] + [int(first[row]) for row in below]
        top, begin = min(rest), min(begins)
        if top >= bottom or begin >= end:
            yield Rectangle(area.top, bottom, area.begin, end), Rectangle(top, area.bottom, begin, area.end)


def one_dimensional(matrix: Matrix, capacity: float) -> list[tuple[Rectangle, float]]:
    """1-DSP: runs of rows, each with all columns that they reach, as long as the capacity allows for both; and what each takes in.

    A row that alone exceeds the capacity is a run by itself. O(rows).
    """
    runs: list[tuple[Rectangle, float]] = []
    top = 0
    while top < matrix.rows:
        bottom = top + 1
        while bottom < matrix.rows and sum(_reaching(matrix, top, bottom + 1).volumes(matrix)) <= capacity * (1 + EPSILON):
            bottom += 1
        run = _reaching(matrix, top, bottom)
        runs.append((run, sum(run.volumes(matrix))))
        top = bottom
    return runs


def _reaching(matrix: Matrix, top: int, bottom: int) -> Rectangle:
    return Rectangle(top, bottom, int(matrix.first[top]), int(matrix.last[bottom - 1]) + 1)


def consumption_bound(rows: int, columns: int) -> float:
    """Theorem 4: how many times the fewest tasks Alg. 2 may take of a matrix for which Eq. 9 takes ``rows`` x ``columns`` tasks.

    Def. 7 has the ratio upside down; this is tasks of Alg. 2 / fewest. Raises ValueError below 2 rows or columns, as the theorem asks for.
    """
    if rows < 2 or columns < 2:
        raise ValueError(f"rows {rows} and columns {columns} must be at least 2, as Theorem 4 has it")
    return rows * columns / (rows * columns - rows - columns + 3)


@dataclass(frozen=True, slots=True)
class Readjusted:
    """What a run of Readj came to."""

    owners: tuple[int, ...]
    """Per key, its task."""
    largest: float
    """The load of the fullest task."""
    moved: float
    """The load of all keys that changed tasks."""
    sigma: float


def readj(loads: Sequence[float], owners: Sequence[int], tasks: int, sigmas: Sequence[float]) -> Readjusted:
    """The best of one run of Readj for each sigma: the least largest load, then the least that moved.

    ``loads``: per key; ``owners``: its task now. Raises ValueError without a sigma. O(sigmas * steps * keys² / tasks).
    """
    if not sigmas:
        raise ValueError("sigmas: there is none to run with; give at least one")
    weights = np.asarray(loads, np.float64)
    runs = (_readj(weights, np.asarray(owners), tasks, sigma) for sigma in sigmas)
    return min(runs, key=lambda run: (round(run.largest, 9), run.moved))


def _readj(loads: Array, owners: Array, tasks: int, sigma: float) -> Readjusted:
    """Of the fullest task and every other, the move or swap of keys that leaves the two most even, until no task is above 1 + sigma times
    the mean or nothing helps. Keys that hold less than sigma of the mean are left alone: the smaller sigma, the more keys are tried."""
    start, owners = owners, owners.copy()
    held = np.bincount(owners, loads, tasks)
    mean = float(held.mean())
    tried = loads >= sigma * mean
    for _ in range(16 * len(loads)):
        full = int(np.argmax(held))
        if held[full] <= (1 + sigma) * mean:
            break
        best: tuple[float, int, int, int] | None = None
        for other in range(tasks):
            if other == full:
                continue
            # A key of the fullest against one of the other, or against none (number -1), which is a move.
            mine = np.flatnonzero(tried & (owners == full))
            theirs = np.append(np.flatnonzero(tried & (owners == other)), -1)
            if not len(mine):
                continue
            gain = loads[mine][:, None] - np.where(theirs >= 0, loads[theirs], 0.0)[None, :]
            fuller = np.where(gain > 0, np.maximum(held[full] - gain, held[other] + gain), np.inf)
            at = np.unravel_index(int(np.argmin(fuller)), fuller.shape)
            if best is None or fuller[at] < best[0]:
                best = float(fuller[at]), int(mine[at[0]]), int(theirs[at[1]]), other
        if best is None or best[0] >= held[full] * (1 - EPSILON):
            break
        _, given, taken, other = best
        owners[given] = other
        if taken >= 0:
            owners[taken] = full
        held = np.bincount(owners, loads, tasks)
    return Readjusted(tuple(owners.tolist()), float(held.max()), float(loads[owners != start].sum()), sigma)
