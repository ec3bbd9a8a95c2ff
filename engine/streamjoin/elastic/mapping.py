"""Task mapping: which worker goes on as which task of a new scheme, so that as little state as can be moves (A-DSP, section 4.2).

``overlaps`` gives lambda for all pairs of an old and a new task: the tuples that both hold. :func:`assign` chooses
the map with the greatest sum, hence the least migration, by the Hungarian method; :func:`greedy` is Alg. 4 as published, to compare with:
it is not always the least, though the paper says so: from a 4 x 3 to a 3 x 4 grid of equal streams it keeps 96.4 % of the greatest sum.

Always holds: as many workers go on as both schemes have room for, also those that keep nothing; and the same arguments give the same map.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np

from streamjoin.scheme.region import high_of, low_of
from streamjoin.scheme.statistics import SideStatistics, Statistics
from streamjoin.scheme.tiling import UNITS, KeyRange, Scheme, UnitRange

Array = np.ndarray[Any, np.dtype[Any]]

Keep = tuple[int | None, ...]
"""Per task of a new scheme, the task of the old one that goes on as it, or None."""

def chain_keep(before: int, after: int) -> Keep:
    """Of a chain of so many workers: it grows and shrinks at its right end, as tuples are where they are by when they came."""
    return tuple(task if task < before else None for task in range(after))


def map_tasks(before: Scheme, after: Scheme, statistics: Statistics) -> tuple[Scheme, Keep]:
    """``after`` with its tasks relabelled, and who goes on as each.

    A worker that goes on keeps its number if the new scheme has that number; else it gets the lowest that is free, and so do new
    workers after it. So growing by n workers adds the numbers at the end, and shrinking chooses which workers go.
    Hundreds of tasks take milliseconds, a thousand a second or two.
    """
    return relabelled(after, assign(overlaps(before, after, statistics)))


def greedy(overlap: Array) -> Keep:
    """Alg. 4: the pairs by falling overlap, each taken if neither of its tasks is. Ties go to the lowest numbers. O(n² log n)."""
    old, new = overlap.shape
    keep: list[int | None] = [None] * new
    used = np.zeros(old, bool)
    open_ = min(old, new)
    for pair in np.argsort(-overlap, axis=None, kind="stable").tolist():
        if not open_:
            break
        worker, task = divmod(pair, new)
        if not used[worker] and keep[task] is None:
            keep[task] = worker
            used[worker] = True
            open_ -= 1
    return tuple(keep)


def assign(overlap: Array) -> Keep:
    """The map with the greatest sum of overlaps; of several, one that moves few numbers. O(n³)."""
    from scipy.optimize import linear_sum_assignment

    # Far below any difference that matters, yet enough to decide ties.
    numbers = np.arange(max(overlap.shape))
    same = numbers[: overlap.shape[0], None] == numbers[None, : overlap.shape[1]]
    bonus = max(float(overlap.max(initial=0.0)), 1.0) * 1e-9 / max(overlap.shape)
    workers, tasks = linear_sum_assignment(overlap + bonus * same, maximize=True)
    keep: list[int | None] = [None] * overlap.shape[1]
    for worker, task in zip(workers.tolist(), tasks.tolist(), strict=True):
        keep[task] = worker
    return tuple(keep)


def kept_by(overlap: Array, keep: Keep) -> float:
    """The tuples that need not move under this map."""
    return math.fsum(float(overlap[worker, task]) for task, worker in enumerate(keep) if worker is not None)


def relabelled(scheme: Scheme, keep: Keep) -> tuple[Scheme, Keep]:
    """The scheme with its tasks numbered as :func:`map_tasks` says, and ``keep`` in that order."""
    number = _numbers(keep)
    kept: list[int | None] = [None] * scheme.tasks
    for task, label in enumerate(number):
        kept[label] = keep[task]
    areas = tuple(replace(area, task=number[area.task]) for area in scheme.areas)
    return replace(scheme, areas=areas), tuple(kept)


def _numbers(keep: Keep) -> list[int]:
    """Per task, the number that it gets."""
    number: dict[int, int] = {task: worker for task, worker in enumerate(keep) if worker is not None and worker < len(keep)}
    free = iter(sorted(set(range(len(keep))) - set(number.values())))
    for goes_on in (True, False):
        for task, worker in enumerate(keep):
            if task not in number and (worker is not None) is goes_on:
                number[task] = next(free)
    return [number[task] for task in range(len(keep))]


def overlaps(before: Scheme, after: Scheme, statistics: Statistics) -> Array:
    """lambda: the tuples that each old task (rows) holds and each new one (columns) needs. float64.

    What a task holds through several areas counts once. All key bounds together cut a side's keys into cells; within one, a task holds
    a set of units. O(key cells * (tasks there * unit bounds there + their pairs)).
    """
    shared = np.zeros((before.tasks, after.tasks))
    for side, statistic in enumerate(statistics.sides):
        old, new = _holdings(before, side), _holdings(after, side)
        bounds = sorted({bound for keys, _, _ in (*old, *new) for bound in (keys.low, keys.high) if bound is not None})
        if not old or not new:
            continue
        volumes = _volumes(statistic, bounds)
        old_cells, new_cells = (_cells(holdings, bounds) for holdings in (old, new))
        for cell, tuples in enumerate(volumes):
            if tuples <= 0:
                continue
            here = [
                [holdings[index] for index in np.flatnonzero((low <= cell) & (cell < high)).tolist()]
                for holdings, (low, high) in ((old, old_cells), (new, new_cells))
            ]
            if not (here[0] and here[1]):
                continue
            ends = sorted({end for holdings in here for _, units, _ in holdings for part in units.parts for end in part})
            widths = np.diff(ends) * (tuples / UNITS)
            rows, held = _units_held(here[0], ends)
            columns, needed = _units_held(here[1], ends)
            shared[np.ix_(rows, columns)] += (held * widths) @ needed.T
    return shared


_Holding = tuple[KeyRange, UnitRange, int]


def _holdings(scheme: Scheme, side: int) -> list[_Holding]:
    """The key range, units and task of everything that an area holds of this side."""
    return [(area.keys[side], area.units[side], area.task) for area in scheme.areas if area.holds[side]]


def _volumes(side: SideStatistics, bounds: list[int | float]) -> list[float]:
    """The volumes before, between and after these keys."""
    below = side.below(np.array(bounds)) if bounds else np.zeros(0)
    volumes: list[float] = np.diff(below, prepend=0.0, append=side.total).tolist()
    return volumes


def _cells(holdings: list[_Holding], bounds: list[int | float]) -> tuple[Array, Array]:
    """Per holding its first cell of keys, and the one after its last."""
    number = {bound: index for index, bound in enumerate(bounds, 1)}
    number[-np.inf], number[np.inf] = 0, len(bounds) + 1
    return np.array([number[low_of(keys)] for keys, _, _ in holdings]), np.array([number[high_of(keys)] for keys, _, _ in holdings])


def _units_held(holdings: list[_Holding], ends: list[int]) -> tuple[Array, Array]:
    """The tasks, and per task (rows) which parts of the units between ``ends`` it holds: float64, 0 or 1."""
    number = {end: index for index, end in enumerate(ends)}
    tasks = {task: row for row, task in enumerate(sorted({task for _, _, task in holdings}))}
    steps = np.zeros((len(tasks), len(ends)))
    for _, units, task in holdings:
        for low, high in units.parts:
            steps[tasks[task], number[low]] += 1
            steps[tasks[task], number[high]] -= 1
    return np.array(list(tasks)), (np.cumsum(steps, axis=1)[:, :-1] > 0).astype(np.float64)
