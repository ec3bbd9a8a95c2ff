"""The models of the papers, each as a scheme: for a capacity the fewest tasks, for a number of tasks the smallest largest load.

============  ======================================================================================================================
``adsp``      A-DSP: coverage areas by the area dichotomy (Alg. 2), each cut by the varietal matrix (Alg. 1)
``square``    2-DSP: one coverage area, a regular grid (Eq. 9); any predicate, any skew
``hash``      1-DSP: many coverage areas of one task each, cut along the keys; one side disjoint, the other repeated over the
              band's margin. Where keys cannot be cut (!=, no main predicate, keys of unknown spread), one coverage area as for ``adsp``
``dynamic``   one even grid of a power of two tasks (:mod:`~streamjoin.scheme.dynamic`)
``readj``     as ``hash``, but from plan to plan keys move only from tasks that are too full (:mod:`~streamjoin.scheme.readj`)
``biclique``  workers that hold one side each, nothing repeated; in groups by key (:mod:`~streamjoin.scheme.biclique`)
``chain``     ESJ's handshake join: workers that each hold a part of both sides, nothing repeated (the same module)
============  ======================================================================================================================

Always holds: the scheme that comes out is a tiling (``Scheme.check``), whatever the statistics say. Loads hold only as far as they do.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from streamjoin.language.predicate import MainPredicate
from streamjoin.language.sides import LEFT
from streamjoin.scheme import biclique, dichotomy, dynamic, readj, varietal
from streamjoin.scheme.cutting import Cutting
from streamjoin.scheme.dichotomy import MOST_TASKS, Rectangle, TooManyTasksError
from streamjoin.scheme.matrix import Matrix, hashed
from streamjoin.scheme.statistics import DEFAULT_BUCKETS, Statistics, loads
from streamjoin.scheme.tiling import Scheme
from streamjoin.scheme.varietal import Shape

Array = np.ndarray[Any, np.dtype[Any]]

MODELS = ("adsp", "square", "hash", "dynamic", "readj", "biclique", "chain")

KEYED = ("hash", "readj")
"""Models that cut along the keys alone, and so need a predicate that bounds them."""

PRECISION = 0.002
"""How near the smallest largest load is approached, relative to it."""


@dataclass(frozen=True, slots=True)
class Options:
    """What single models take (``spec.scheme``)."""

    sigma: float = 0.1
    """readj: how far above the mean a task's load may lie before keys move."""
    groups: int = 1
    """biclique: the groups of keys on each side."""

    def __post_init__(self) -> None:
        if not 0 <= self.sigma < math.inf:
            raise ValueError(f"scheme.sigma: {self.sigma} must be a finite number that is not negative")
        if not 1 <= self.groups <= MOST_TASKS:
            raise ValueError(f"scheme.groups: {self.groups} must be at least 1 and at most {MOST_TASKS:,}")


DEFAULTS = Options()


def plan_for_capacity(
    model: str,
    statistics: Statistics,
    main: MainPredicate,
    capacity_tuples: float,
    *,
    options: Options = DEFAULTS,
    current: Scheme | None = None,
) -> Scheme:
    """The scheme of fewest tasks, each holding at most ``capacity_tuples`` (both sides, replicas included), and with so many the evenest.

    ``square`` is Eq. 9 as it stands. ``hash`` and ``readj`` cannot cut inside a key: a task that holds a frequent key alone may hold more.
    ``dynamic`` has each task hold at most half, and goes there from ``current`` by fours; ``readj`` changes ``current`` little.
    Raises ValueError for an unknown model or a capacity that is not positive; TooManyTasksError where ``MOST_TASKS`` do not suffice.
    """
    if not capacity_tuples > 0:
        raise ValueError(f"capacity: {capacity_tuples} must be positive")
    matrix = _matrix(model, statistics, main)
    total = matrix.left + matrix.right
    fewest = max(1, math.ceil(total / capacity_tuples - varietal.EPSILON))
    if model == "chain" and fewest <= MOST_TASKS:
        return plan_for_tasks(model, statistics, main, fewest)
    if model == "biclique" and fewest <= MOST_TASKS:
        if fewest == 1:
            return Cutting.whole(matrix, Shape(1, 1)).scheme(model)
        scheme = biclique.biclique_for(matrix, capacity_tuples, options.groups, MOST_TASKS)
        if scheme is not None:
            return scheme
    if model == "readj" and fewest <= MOST_TASKS and _cuts_keys_only(model, matrix):
        return _readj_for_capacity(statistics, main, capacity_tuples, fewest, options, current)
    fitted = None
    if model == "square":
        fitted = Cutting.whole(matrix, varietal.square(matrix.left, matrix.right, capacity_tuples))
    elif model == "dynamic":
        running = current.tasks if current is not None and current.model == model else 1
        shape = dynamic.grid_for(matrix, capacity_tuples, running)
        fitted = None if shape is None else Cutting.whole(matrix, shape)
    elif hashed(main) and all(side.histogram is None for side in statistics.sides):
        # Any number of equal parts can be had, and nothing need be replicated.
        if fewest <= MOST_TASKS:
            return plan_for_tasks(model, statistics, main, fewest)
    elif _cuts_keys_only(model, matrix):
        fitted = _hash(matrix, capacity_tuples)
    elif model in ("adsp", "hash", "readj"):
        fitted = _adsp(matrix, dichotomy.partition(matrix, capacity_tuples), capacity_tuples)
    if fitted is None or fitted.tasks > MOST_TASKS:
        raise TooManyTasksError(capacity_tuples)
    return (fitted if model in ("square", "dynamic") else _evenest(model, fitted, fitted.tasks)).scheme(model)


def plan_for_tasks(
    model: str,
    statistics: Statistics,
    main: MainPredicate,
    tasks: int,
    *,
    options: Options = DEFAULTS,
    current: Scheme | None = None,
) -> Scheme:
    """The scheme of at most ``tasks`` tasks whose largest load is smallest, to within ``PRECISION``.

    ``readj`` instead changes ``current``, when that is a scheme of its own, or else one by ``hash``, until no task is further than sigma
    above the mean.
    Raises ValueError for an unknown model, and for other than 1..``MOST_TASKS`` tasks.
    """
    if not 1 <= tasks <= MOST_TASKS:
        raise ValueError(f"tasks: {tasks} must be at least 1 and at most {MOST_TASKS:,}")
    if model == "readj" and current is not None and current.model == model:
        return _readjusted(statistics, main, tasks, options, current)
    # Evenly hashed keys fall into as many buckets as can be shared out equally.
    matrix = _matrix(model, statistics, main, tasks * -(-DEFAULT_BUCKETS // tasks))
    if model == "square":
        return Cutting.whole(matrix, _squarest(matrix, tasks)).scheme(model)
    if model == "dynamic":
        return Cutting.whole(matrix, dynamic.grid(matrix, tasks)).scheme(model)
    if tasks > 1 and model == "biclique":
        return biclique.biclique(matrix, tasks, options.groups)
    if tasks > 1 and model == "chain":
        return biclique.chain(tasks)
    whole = varietal.least_capacity(matrix.left, matrix.right, tasks)
    one = tasks == 1 or _cuts_keys_only(model, matrix)
    start = Cutting.whole(matrix, Shape(1, 1) if one else varietal.partition(matrix.left, matrix.right, whole))
    scheme = (start if tasks == 1 else _evenest(model, start, tasks)).scheme(model)
    return _readjusted(statistics, main, tasks, options, scheme) if model == "readj" and _cuts_keys_only(model, matrix) else scheme


def _matrix(model: str, statistics: Statistics, main: MainPredicate, buckets: int = DEFAULT_BUCKETS) -> Matrix:
    if model not in MODELS:
        raise ValueError(f"scheme.model: {model!r} is unknown; choose one of {', '.join(MODELS)}")
    return Matrix.of(statistics, main, buckets)


def _cuts_keys_only(model: str, matrix: Matrix) -> bool:
    return model in KEYED and matrix.rows > 1 and matrix.columns > 1


def _readjusted(statistics: Statistics, main: MainPredicate, tasks: int, options: Options, current: Scheme) -> Scheme:
    owned = readj.owned_side(current)
    bounds = readj.bounds_of(current, owned)
    matrix = Matrix.of(statistics, main, tasks * -(-DEFAULT_BUCKETS // tasks), *((bounds, []) if owned == LEFT else ([], bounds)))
    if not _cuts_keys_only(current.model, matrix):
        return plan_for_tasks(current.model, statistics, main, tasks, options=options)
    side = readj.Side.of(matrix, owned)
    owners = readj.owners_of(current, matrix.row_bounds if owned == LEFT else matrix.column_bounds, owned)
    return readj.cutting(matrix, side, readj.readjusted(side, owners, tasks, options.sigma)).scheme(current.model)


def _readj_for_capacity(
    statistics: Statistics, main: MainPredicate, capacity_tuples: float, fewest: int, options: Options, current: Scheme | None
) -> Scheme:
    """Ever more tasks until none holds too much, or more tasks no longer help: a frequent key stays too much for its own."""
    best: tuple[float, Scheme] | None = None
    for tasks in range(fewest, MOST_TASKS + 1):
        scheme = plan_for_tasks("readj", statistics, main, tasks, options=options, current=current)
        largest = float(loads(scheme, statistics).max())
        if largest <= capacity_tuples * (1 + varietal.EPSILON):
            return scheme
        if best is not None and tasks > 2 * fewest + 8 and largest >= best[0] * (1 - PRECISION):
            return best[1]
        if best is None or largest < best[0] * (1 - PRECISION):
            best = largest, scheme
    raise TooManyTasksError(capacity_tuples)


def _squarest(matrix: Matrix, tasks: int) -> Shape:
    grids = [Shape(rows, tasks // rows) for rows in range(1, tasks + 1)]
    return min(grids, key=lambda grid: (grid.largest_load(matrix.left, matrix.right), grid.tasks))


def _adsp(matrix: Matrix, found: dichotomy.Dichotomy, capacity: float) -> Cutting:
    cut = []
    for area in found.areas:
        left, right = area.volumes(matrix)
        cut.append((area, varietal.partition(left, right, capacity).evened(left, right)))
    return Cutting(matrix, tuple(cut))


def _hash(matrix: Matrix, capacity: float) -> Cutting:
    """1-DSP's plan: each area as long as the capacity allows. The side that is cut disjointly is the one that needs fewer areas."""
    by_rows = _chain(matrix.row_sums, matrix.column_sums, matrix.first, matrix.last, capacity)
    by_columns = _chain(matrix.column_sums, matrix.row_sums, matrix.first_row, matrix.last_row, capacity)
    if len(by_columns) < len(by_rows):
        areas = [Rectangle(other_begin, other_end, begin, end) for begin, end, other_begin, other_end in by_columns]
    else:
        areas = [Rectangle(*part) for part in by_rows]
    return Cutting(matrix, tuple((area, Shape(1, 1)) for area in areas))


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


def _evenest(model: str, start: Cutting, tasks: int) -> Cutting:
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


def _attempt(model: str, matrix: Matrix, capacity: float, tasks: int) -> Cutting | None:
    if _cuts_keys_only(model, matrix):
        plan = _hash(matrix, capacity)
    else:
        found = dichotomy.fits(matrix, capacity, tasks)
        if found is None:
            return None
        plan = _adsp(matrix, found, capacity)
    return plan if plan.tasks <= tasks else None
