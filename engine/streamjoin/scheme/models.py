"""The models of the papers, each as a scheme: for a capacity the fewest tasks, for a number of tasks the smallest largest load.

===========  ==========================================================================================================================
``adsp``     A-DSP: coverage areas by the area dichotomy (Alg. 2), each cut by the varietal matrix (Alg. 1)
``square``   2-DSP: one coverage area, a regular grid (Eq. 9); any predicate, any skew
``hash``     1-DSP: many coverage areas of one task each, cut along the keys; one side disjoint, the other repeated over the band's margin.
             Where keys cannot be cut (!=, no main predicate, keys of unknown spread), one coverage area as for ``adsp``
===========  ==========================================================================================================================

Always holds: the scheme that comes out is a tiling (``Scheme.check``), whatever the statistics say. Loads hold only as far as they do.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from streamjoin.predicate import MainPredicate
from streamjoin.scheme import dichotomy, varietal
from streamjoin.scheme.dichotomy import MOST_TASKS, Rectangle
from streamjoin.scheme.matrix import Matrix, hashed
from streamjoin.scheme.statistics import DEFAULT_BUCKETS, Statistics
from streamjoin.scheme.tiling import Area, KeyRange, Scheme
from streamjoin.scheme.varietal import Shape

Array = np.ndarray[Any, np.dtype[Any]]

MODELS = ("adsp", "square", "hash")

PRECISION = 0.002
"""How near the smallest largest load is approached, relative to it."""


@dataclass(frozen=True, slots=True)
class _Plan:
    """Coverage areas over a matrix, in order, and how each is cut."""

    matrix: Matrix
    areas: tuple[tuple[Rectangle, Shape], ...]

    @property
    def tasks(self) -> int:
        return sum(shape.tasks for _, shape in self.areas)

    @property
    def largest_load(self) -> float:
        return max(shape.largest_load(*area.volumes(self.matrix)) for area, shape in self.areas)

    def scheme(self, model: str) -> Scheme:
        areas: list[Area] = []
        rows_written = columns_written = 0
        for coverage, (held, shape) in enumerate(self.areas):
            # On either side the areas before hold a prefix of the keys, so that what is left to write is one range.
            left_writes = _unwritten(held.top, held.bottom, rows_written, self.matrix.row_keys)
            right_writes = _unwritten(held.begin, held.end, columns_written, self.matrix.column_keys)
            rows_written, columns_written = max(rows_written, held.bottom), max(columns_written, held.end)
            left_keys, right_keys = self.matrix.row_keys(held.top, held.bottom), self.matrix.column_keys(held.begin, held.end)
            areas += [
                Area(
                    task=len(areas) + number,
                    coverage=coverage,
                    left_keys=left_keys,
                    left_units=left_units,
                    right_keys=right_keys,
                    right_units=right_units,
                    left_writes=left_writes if right_units.low == 0 else None,
                    right_writes=right_writes if left_units.low == 0 else None,
                )
                for number, (left_units, right_units) in enumerate(shape.areas())
            ]
        return Scheme(model, len(areas), tuple(areas), _summary([shape for _, shape in self.areas]))


def _unwritten(begin: int, end: int, written: int, keys: Callable[[int, int], KeyRange]) -> KeyRange | None:
    return keys(max(begin, written), end) if written < end else None


def _summary(shapes: Sequence[Shape]) -> str:
    counts = Counter(map(str, shapes))
    listed = ", ".join(f"{count} x {shape}" if count > 1 else shape for shape, count in list(counts.items())[:8])
    more = ", ..." if len(counts) > 8 else ""
    return f"{len(shapes)} coverage {'area' if len(shapes) == 1 else 'areas'}: {listed}{more}"


def plan_for_capacity(model: str, statistics: Statistics, main: MainPredicate, capacity_tuples: float) -> Scheme:
    """The scheme of fewest tasks, each holding at most ``capacity_tuples`` (both sides, replicas included), and with so many the evenest.

    ``square`` is Eq. 9 as it stands. ``hash`` cannot cut inside a key: a task that holds a frequent key alone may hold more.
    Raises ValueError for an unknown model, a capacity that is not positive, or one that takes more than ``MOST_TASKS`` tasks.
    """
    if not capacity_tuples > 0:
        raise ValueError(f"capacity: {capacity_tuples} must be positive")
    matrix = _matrix(model, statistics, main)
    if model == "square":
        fitted = _whole(matrix, varietal.square(matrix.left, matrix.right, capacity_tuples))
    elif hashed(main) and statistics.left.histogram is None and statistics.right.histogram is None:
        # Any number of equal parts can be had, and nothing need be replicated.
        tasks = max(1, math.ceil((matrix.left + matrix.right) / capacity_tuples - varietal.EPSILON))
        if tasks <= MOST_TASKS:
            return plan_for_tasks(model, statistics, main, tasks)
        fitted = _whole(matrix, Shape(tasks, 1))
    elif _cuts_keys_only(model, matrix):
        fitted = _hash(matrix, capacity_tuples)
    else:
        fitted = _adsp(matrix, dichotomy.partition(matrix, capacity_tuples), capacity_tuples)
    if fitted.tasks > MOST_TASKS:
        raise ValueError(
            f"capacity: {capacity_tuples:g} tuples a task would need {fitted.tasks:,} tasks, of at most {MOST_TASKS:,}; raise the capacity"
        )
    return (fitted if model == "square" else _evenest(model, fitted, fitted.tasks)).scheme(model)


def plan_for_tasks(model: str, statistics: Statistics, main: MainPredicate, tasks: int) -> Scheme:
    """The scheme of at most ``tasks`` tasks whose largest load is smallest, to within ``PRECISION``.

    Raises ValueError for an unknown model, and for other than 1..``MOST_TASKS`` tasks.
    """
    if not 1 <= tasks <= MOST_TASKS:
        raise ValueError(f"tasks: {tasks} must be at least 1 and at most {MOST_TASKS:,}")
    # Evenly hashed keys fall into as many buckets as can be shared out equally.
    matrix = _matrix(model, statistics, main, tasks * -(-DEFAULT_BUCKETS // tasks))
    if model == "square":
        return _whole(matrix, _squarest(matrix, tasks)).scheme(model)
    whole = varietal.least_capacity(matrix.left, matrix.right, tasks)
    start = _whole(matrix, Shape(1, 1) if _cuts_keys_only(model, matrix) else varietal.partition(matrix.left, matrix.right, whole))
    return _evenest(model, start, tasks).scheme(model)


def _matrix(model: str, statistics: Statistics, main: MainPredicate, buckets: int = DEFAULT_BUCKETS) -> Matrix:
    if model not in MODELS:
        raise ValueError(f"scheme.model: {model!r} is unknown; choose one of {', '.join(MODELS)}")
    return Matrix.of(statistics, main, buckets)


def _whole(matrix: Matrix, shape: Shape) -> _Plan:
    return _Plan(matrix, ((Rectangle(0, matrix.rows, 0, matrix.columns), shape),))


def _cuts_keys_only(model: str, matrix: Matrix) -> bool:
    return model == "hash" and matrix.rows > 1 and matrix.columns > 1


def _squarest(matrix: Matrix, tasks: int) -> Shape:
    grids = [Shape(rows, tasks // rows) for rows in range(1, tasks + 1)]
    return min(grids, key=lambda grid: (grid.largest_load(matrix.left, matrix.right), grid.tasks))


def _adsp(matrix: Matrix, found: dichotomy.Dichotomy, capacity: float) -> _Plan:
    cut = []
    for area in found.areas:
        left, right = area.volumes(matrix)
        cut.append((area, varietal.partition(left, right, capacity).evened(left, right)))
    return _Plan(matrix, tuple(cut))


def _hash(matrix: Matrix, capacity: float) -> _Plan:
    """1-DSP's plan: each area as long as the capacity allows. The side that is cut disjointly is the one that needs fewer areas."""
    by_rows = _chain(matrix.row_sums, matrix.column_sums, matrix.first, matrix.last, capacity)
    by_columns = _chain(matrix.column_sums, matrix.row_sums, matrix.first_row, matrix.last_row, capacity)
    if len(by_columns) < len(by_rows):
        areas = [Rectangle(other_begin, other_end, begin, end) for begin, end, other_begin, other_end in by_columns]
    else:
        areas = [Rectangle(*part) for part in by_rows]
    return _Plan(matrix, tuple((area, Shape(1, 1)) for area in areas))


def _chain(sums: Array, other_sums: Array, first: Array, last: Array, capacity: float) -> list[tuple[int, int, int, int]]:
    """Disjoint parts of one side, each with what it reaches on the other: [begin, end), [other begin, other end)."""
    held_until = sums[1:] + other_sums[last + 1]
    parts = []
    begin = 0
    while begin < len(first):
        held_before = sums[begin] + other_sums[first[begin]]
        end = max(begin + 1, int(np.searchsorted(held_until, held_before + capacity * (1 + varietal.EPSILON), side="right")))
        parts.append((begin, end, int(first[begin]), int(last[end - 1]) + 1))
        begin = end
    return parts


def _evenest(model: str, start: _Plan, tasks: int) -> _Plan:
    """Of the plans of at most ``tasks`` tasks, of which ``start`` is one, that of the smallest capacity.

    By bisection: less capacity never needs fewer tasks.
    """
    best, matrix = start, start.matrix
    # No capacity below this makes so few tasks (see ``dichotomy.lower_bound``).
    low = capacity = (matrix.left + matrix.right) / tasks
    if not _cuts_keys_only(model, matrix):
        low = capacity = max(low, 2 * math.sqrt(matrix.result_volume / tasks))
    high = best.largest_load
    while high - low > PRECISION * high:
        plan = _attempt(model, matrix, capacity, tasks)
        if plan is None:
            low = capacity
        else:
            high = capacity
            if plan.largest_load < best.largest_load:
                best = plan
                high = min(high, plan.largest_load)
        capacity = (low + high) / 2
    return best


def _attempt(model: str, matrix: Matrix, capacity: float, tasks: int) -> _Plan | None:
    if _cuts_keys_only(model, matrix):
        plan = _hash(matrix, capacity)
    else:
        found = dichotomy.fits(matrix, capacity, tasks)
        if found is None:
            return None
        plan = _adsp(matrix, found, capacity)
    return plan if plan.tasks <= tasks else None
