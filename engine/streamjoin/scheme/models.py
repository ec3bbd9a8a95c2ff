"""The models of the papers, each as a scheme: for a capacity the fewest tasks, for a number of tasks the smallest largest load.

============  ======================================================================================================================
``adsp``      A-DSP: coverage areas by the area dichotomy (Alg. 2), each cut by the varietal matrix (Alg. 1)
``square``    2-DSP: one coverage area, a regular grid (Eq. 9); any predicate, any skew
``hash``      1-DSP: ranges of keys, one a task; a tuple is held in its own, and probes the others where it may find partners
              (:mod:`~streamjoin.scheme.keyed`). Where keys cannot be cut (!=, no main predicate, keys of unknown spread), as ``adsp``
``dynamic``   one even grid of a power of two tasks (:mod:`~streamjoin.scheme.dynamic`)
``readj``     as ``hash``, but from plan to plan keys move only from tasks that are too full (:mod:`~streamjoin.scheme.readj`)
``biclique``  workers that hold one side each, nothing repeated; in groups by key (:mod:`~streamjoin.scheme.biclique`)
``broadcast`` workers that each hold a part of both sides, nothing repeated, and see every tuple (the same module)
``handshake`` the same in a chain, along which tuples wander from neighbour to neighbour (ESJ; :mod:`streamjoin.chain`)
============  ======================================================================================================================

Always holds: the scheme that comes out is a tiling (``Scheme.check``), whatever the statistics say. Loads hold only as far as they do.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from streamjoin.language.predicate import MainPredicate
from streamjoin.scheme import biclique, dichotomy, dynamic, readj, varietal
from streamjoin.scheme.cuts import Dichotomy
from streamjoin.scheme.cutting import Cutting
from streamjoin.scheme.dichotomy import MOST_TASKS, TooManyTasksError
from streamjoin.scheme.keyed import Run, Strip, cuts_of, owners_of
from streamjoin.scheme.matrix import Matrix, hashed
from streamjoin.scheme.peeled import Peeled
from streamjoin.scheme.peeling import MANY_TASKS, peel
from streamjoin.scheme.statistics import DEFAULT_BUCKETS, Statistics
from streamjoin.scheme.tiling import Scheme
from streamjoin.scheme.varietal import Shape

Array = np.ndarray[Any, np.dtype[Any]]

MODELS = ("adsp", "square", "hash", "dynamic", "readj", "biclique", "broadcast", "handshake")

HANDSHAKE = "handshake"

INTERCHANGEABLE = tuple(model for model in MODELS if model != HANDSHAKE)
"""Models from each of which a running join may change to any other."""

SPREAD = ("broadcast", HANDSHAKE)
"""Models whose workers each hold an even part of both sides."""

KEYED = ("hash", "readj")
"""Models that cut along the keys alone, and so need a predicate that bounds them."""

MOST_ALPHA = 0.8
"""Theorem 1 of "Saving Communication Cost" is for weights below it."""

PRECISION = 0.002
"""How near the smallest largest load is approached, relative to it."""


@dataclass(frozen=True, slots=True)
class Options:
    """What single models take (``spec.scheme``)."""

    sigma: float = 0.1
    """readj: how far above the mean a task's load may lie before keys move."""
    groups: int = 1
    """biclique: the groups of keys on each side, each with a worker of its own from the start."""
    alpha: float = 0.5
    """handshake: what uneven loads weigh beside messages (:func:`streamjoin.chain.blocksize.theorem_1`)."""

    def __post_init__(self) -> None:
        if not 0 <= self.sigma < math.inf:
            raise ValueError(f"scheme.sigma: {self.sigma} must be a finite number that is not negative")
        if not 1 <= self.groups <= MOST_TASKS:
            raise ValueError(f"scheme.groups: {self.groups} must be at least 1 and at most {MOST_TASKS:,}")
        if not 0 < self.alpha < MOST_ALPHA:
            raise ValueError(f"scheme.alpha: {self.alpha} must be above 0 and below {MOST_ALPHA}")


DEFAULTS = Options()


def plan_for_capacity(
    model: str,
    statistics: Statistics,
    main: MainPredicate,
    capacity: float,
    *,
    options: Options = DEFAULTS,
    current: Scheme | None = None,
) -> Scheme:
    """The scheme of fewest tasks, each holding at most ``capacity`` (both sides, replicas included), and with so many the evenest.

    The capacity is a volume, as the statistics have them: tuples, or bytes.
    ``square`` is Eq. 9 as it stands. ``hash`` and ``readj`` cannot cut inside a key: a task that holds a frequent key alone may hold more.
    ``dynamic`` has each task hold at most half, and goes there from ``current`` by fours; ``readj`` changes ``current`` little.
    Raises ValueError for an unknown model or a capacity that is not positive; TooManyTasksError where ``MOST_TASKS`` do not suffice.
    """
    if not capacity > 0:
        raise ValueError(f"capacity: {capacity} must be positive")
    running = current if current is not None and current.model == model else None
    matrix = _matrix(model, statistics, main)
    total = matrix.left + matrix.right
    fewest = max(1, math.ceil(total / capacity - varietal.EPSILON))
    if model in SPREAD and fewest <= MOST_TASKS:
        return plan_for_tasks(model, statistics, main, fewest)
    if model == "biclique" and fewest <= MOST_TASKS:
        if fewest == 1 and not (options.groups > 1 and biclique.can_group(matrix)):
            return Cutting.whole(matrix, Shape(1, 1)).scheme(model)
        scheme = biclique.biclique_for(matrix, capacity, options.groups, MOST_TASKS)
        if scheme is not None:
            return scheme
    fitted = None
    if model == "square":
        fitted = Cutting.whole(matrix, varietal.square(matrix.left, matrix.right, capacity))
    elif model == "dynamic":
        shape = dynamic.grid_for(matrix, capacity, 1 if running is None else running.tasks)
        fitted = None if shape is None else Cutting.whole(matrix, shape)
    elif hashed(main) and all(side.histogram is None for side in statistics.sides):
        # Any number of equal parts can be had, and nothing need be replicated.
        if fewest <= MOST_TASKS:
            return plan_for_tasks(model, statistics, main, fewest, options=options, current=running)
    elif (strip := _strip(model, statistics, main, DEFAULT_BUCKETS, running)) is not None:
        return strip.scheme(model, _owned_for_capacity(model, strip, capacity, options, running))
    else:
        fitted = _adsp(matrix, dichotomy.partition(matrix, capacity), capacity)
    if fitted is None or fitted.tasks > MOST_TASKS:
        raise TooManyTasksError(capacity)
    return (fitted if model in ("square", "dynamic") else _evenest(fitted, fitted.tasks)).scheme(model)


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
    # Evenly hashed keys fall into as many buckets as can be shared out equally.
    buckets = tasks * -(-DEFAULT_BUCKETS // tasks)
    running = current if current is not None and current.model == model else None
    strip = _strip(model, statistics, main, buckets, running)
    if strip is not None:
        return strip.scheme(model, _owned(model, strip, tasks, options, running))
    matrix = _matrix(model, statistics, main, buckets)
    if model == "square":
        return Cutting.whole(matrix, _squarest(matrix, tasks)).scheme(model)
    if model == "dynamic":
        return Cutting.whole(matrix, dynamic.grid(matrix, tasks)).scheme(model)
    if tasks > 1 and model == "biclique":
        return biclique.biclique(matrix, tasks, options.groups)
    if model == HANDSHAKE or (tasks > 1 and model == "broadcast"):
        return biclique.broadcast(tasks, model)
    whole = varietal.least_capacity(matrix.left, matrix.right, tasks)
    start = Cutting.whole(matrix, Shape(1, 1) if tasks == 1 else varietal.partition(matrix.left, matrix.right, whole))
    return (start if tasks == 1 else _evenest(start, tasks)).scheme(model)


def _matrix(model: str, statistics: Statistics, main: MainPredicate, buckets: int = DEFAULT_BUCKETS) -> Matrix:
    if model not in MODELS:
        raise ValueError(f"scheme.model: {model!r} is unknown; choose one of {', '.join(MODELS)}")
    return Matrix.of(statistics, main, buckets)


def _strip(model: str, statistics: Statistics, main: MainPredicate, buckets: int, current: Scheme | None) -> Strip | None:
    """What ``hash`` and ``readj`` cut; None for other models, and where keys cannot be cut."""
    if model not in KEYED:
        return None
    matrix = Matrix.of(statistics, main, buckets, *(([], []) if current is None else cuts_of(current)), paired=True)
    strip = Strip.of(matrix, main)
    return strip if strip.parts > 1 else None


def _owned(model: str, strip: Strip, tasks: int, options: Options, current: Scheme | None) -> list[list[Run]]:
    """What each of at most ``tasks`` tasks owns by ``hash``, or by ``readj`` from ``current``, or else from that on."""
    if model == "readj" and current is not None:
        owners = owners_of(current, strip)
    else:
        runs = strip.evenest(tasks)
        if model == "hash":
            return [[run] for run in runs]
        owners = [task for task, (begin, end) in enumerate(runs) for _ in range(begin, end)]
    return readj.readjusted(strip, owners, tasks, options.sigma)


def _owned_for_capacity(model: str, strip: Strip, capacity: float, options: Options, current: Scheme | None) -> list[list[Run]]:
    """By the fewest tasks that none holds too much of, but those with a part of the strip that alone is too much."""
    fewest = len(strip.fitted(capacity))
    if fewest > MOST_TASKS:
        raise TooManyTasksError(capacity)
    most = max(capacity, strip.largest_part) * (1 + varietal.EPSILON)
    # Readj stops at sigma above the mean, so that it may take some more tasks; where these do not help, the best that was found.
    found = []
    for tasks in range(fewest, min(MOST_TASKS, 2 * fewest + 8) + 1):
        owned = _owned(model, strip, tasks, options, current)
        largest = max(strip.load(runs) for runs in owned)
        found.append((largest, tasks, owned))
        if largest <= most:
            break
    return min(found)[2]


def _squarest(matrix: Matrix, tasks: int) -> Shape:
    grids = [Shape(rows, tasks // rows) for rows in range(1, tasks + 1)]
    return min(grids, key=lambda grid: (grid.largest_load(matrix.left, matrix.right), grid.tasks))


def _adsp(matrix: Matrix, found: Dichotomy, capacity: float) -> Cutting:
    cut = []
    for area in found.areas:
        left, right = area.volumes(matrix)
        cut.append((area, varietal.partition(left, right, capacity).evened(left, right)))
    return Cutting(matrix, tuple(cut))


def _evenest(start: Cutting, tasks: int) -> Cutting:
    """Of the plans of at most ``tasks`` tasks, of which ``start`` is one, that of the smallest capacity."""
    return (_searched if tasks > MANY_TASKS else _bisected)(start, tasks)


def _bisected(start: Cutting, tasks: int) -> Cutting:
    """By bisection: less capacity never needs fewer tasks."""
    best, matrix = start, start.matrix
    low = capacity = _least_capacity(matrix, tasks)
    high = best.largest_load
    while high - low > PRECISION * high:
        found = dichotomy.fits(matrix, capacity, tasks)
        plan = None if found is None else _adsp(matrix, found, capacity)
        if plan is None or plan.tasks > tasks:
            low = capacity
        else:
            high = capacity
            if plan.largest_load < best.largest_load:
                best = plan
                high = min(high, plan.largest_load)
        capacity = (low + high) / 2
    return best


def _searched(start: Cutting, tasks: int) -> Cutting:
    """The same in fewer steps: many tasks are about a power of the capacity, from which each step says where to look next."""
    matrix = start.matrix
    low = _least_capacity(matrix, tasks)
    high, capacity = start.largest_load, 1.02 * low
    best: Peeled | None = None
    seen: tuple[float, float] | None = None
    power = 1.6
    while high - low > PRECISION * high:
        capacity = min(max(capacity, low * (1 + PRECISION / 2)), high * (1 - PRECISION / 2))
        peeled, needed = peel(matrix, capacity, tasks + tasks // 64 + 2)
        if peeled is not None and seen is not None and seen[0] != needed and seen[1] != capacity:
            slope = math.log(needed / seen[0]) / math.log(seen[1] / capacity)
            power = min(max(slope, 1.0), 2.2)
        seen = (needed, capacity) if peeled is not None else seen
        if peeled is not None and peeled.tasks <= tasks:
            best, high = peeled, min(capacity, peeled.largest_load())
            # One task, and those left over, would lower the load by so much.
            if tasks + 1 - needed <= PRECISION / 2 * power * tasks:
                break
        else:
            low = capacity
        capacity *= (needed / (tasks - 0.5)) ** (1 / power)
        if not low < capacity < high:
            capacity = (low + high) / 2
    if best is None:
        return start
    found = _adsp(matrix, best.settled(), best.capacity)
    return min(start, found, key=lambda plan: plan.largest_load)


def _least_capacity(matrix: Matrix, tasks: int) -> float:
    """No capacity below this makes so few tasks (see ``dichotomy.lower_bound``)."""
    return max((matrix.left + matrix.right) / tasks, 2 * math.sqrt(matrix.result_volume / tasks))
