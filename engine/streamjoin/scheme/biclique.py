"""Join-biclique (Lin et al., "Scalable Distributed Stream Join Processing", SIGMOD 2015), and workers that hold parts as in ESJ's chain.

Nothing is replicated: a tuple is stored at one worker, and sent to all others that may hold a partner, where it only probes. In areas:
those that hold left tuples cover all pairs, and once more those that hold right ones.

=============  ========================================================================================================================
``biclique``   either side has workers of its own, their numbers in proportion to the streams. In ``groups`` (Bi_g; 1: Bi) by key: a tuple
               is stored at a random worker of its key's group, and sent to the groups of the other side that its partners may be in
``broadcast``  every worker holds an even part of both sides, as in ESJ's handshake join; a tuple is sent to all at once, and held by one
=============  ========================================================================================================================
"""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from streamjoin.language.sides import LEFT
from streamjoin.scheme.matrix import Matrix
from streamjoin.scheme.tiling import UNITS, Area, KeyRange, Scheme, UnitRange
from streamjoin.scheme.varietal import EPSILON, even_parts

Array = np.ndarray[Any, np.dtype[Any]]


def biclique(matrix: Matrix, tasks: int, groups: int) -> Scheme:
    """The scheme of ``tasks`` >= 2 tasks, in as many of the ``groups`` groups a side as keys and tasks allow, whose largest load is
    smallest. Each group has a worker before any has two."""
    wanted = min(groups, tasks // 2)
    left_groups, right_groups = (_groups(sums, wanted) for sums in (matrix.row_sums, matrix.column_sums))
    for_left = min(
        range(left_groups, tasks - right_groups + 1), key=lambda left: (max(matrix.left / left, matrix.right / (tasks - left)), left)
    )
    return _scheme(matrix, [_Side.of(matrix.row_sums, left_groups, for_left), _Side.of(matrix.column_sums, right_groups, tasks - for_left)])


def biclique_for(matrix: Matrix, capacity: float, groups: int, most: int) -> Scheme | None:
    """The scheme of fewest tasks, one a group at least, none holding more than ``capacity``; None for more than ``most``."""
    sides = []
    for sums in (matrix.row_sums, matrix.column_sums):
        of_side = _groups(sums, groups)
        least = max(of_side, math.ceil(float(sums[-1]) / capacity - EPSILON))
        if least > most:
            return None
        # One more for each group is enough, whatever its share.
        cut = (_Side.of(sums, of_side, workers) for workers in range(least, least + of_side + 1))
        sides.append(next(side for side in cut if side.load <= capacity * (1 + EPSILON)))
    return _scheme(matrix, sides) if sum(sum(side.workers) for side in sides) <= most else None


def can_group(matrix: Matrix) -> bool:
    """Whether keys can be cut on either side."""
    return matrix.rows > 1 and matrix.columns > 1


def _groups(sums: Array, groups: int) -> int:
    """So many groups, or as many as there can be: a bucket is not cut."""
    return len(_cuts(sums, np.arange(1, groups) / groups)) - 1


def broadcast(tasks: int, model: str = "broadcast") -> Scheme:
    """``tasks`` >= 1 workers, each with a part of both sides: areas 0.. of left tuples, then those of right ones, by task.

    ``handshake`` shares out as evenly, along a chain whose ends the streams come in at; which tuples a worker has is then another matter.
    """
    whole, everything = UnitRange(), KeyRange()
    areas = [
        Area(task, 0, (everything, everything), (part, whole), (everything, None), (True, False))
        for task, part in enumerate(even_parts(0, UNITS, tasks))
    ]
    areas += [
        Area(task, 1, (everything, everything), (whole, part), (None, everything), (False, True))
        for task, part in enumerate(even_parts(0, UNITS, tasks))
    ]
    return Scheme(model, tasks, tuple(areas), f"{tasks} workers, each with a part of both sides")


@dataclass(frozen=True, slots=True)
class _Side:
    """One side's keys in groups: where they are cut, in buckets, and how many workers each has."""

    cuts: list[int]
    workers: list[int]
    load: float
    """The most that a worker holds."""

    @classmethod
    def of(cls, sums: Array, groups: int, workers: int) -> _Side:
        """At most so many groups; fewer where a bucket would be cut."""
        # Either the keys are cut to fit the workers, or the workers are dealt to fit the keys; a frequent key may call for the latter.
        even = [workers // groups + (group < workers % groups) for group in range(groups)]
        cuts = _cuts(sums, np.cumsum(even)[:-1] / workers)
        fitted = cls._with(sums, cuts, even if len(cuts) == groups + 1 else _dealt(np.diff(sums[cuts]).tolist(), workers))
        cuts = _cuts(sums, np.arange(1, groups) / groups)
        return min(fitted, cls._with(sums, cuts, _dealt(np.diff(sums[cuts]).tolist(), workers)), key=lambda side: side.load)

    @classmethod
    def _with(cls, sums: Array, cuts: list[int], workers: list[int]) -> _Side:
        return cls(cuts, workers, float((np.diff(sums[cuts]) / workers).max()))


def _cuts(sums: Array, shares: Array) -> list[int]:
    """The bounds of buckets nearest to these shares of the tuples."""
    goals = sums[-1] * shares
    after = np.clip(np.searchsorted(sums, goals), 1, len(sums) - 1)
    nearest = np.where(goals - sums[after - 1] < sums[after] - goals, after - 1, after)
    return sorted({0, *nearest.tolist(), len(sums) - 1})


def _dealt(volumes: list[float], workers: int) -> list[int]:
    """Every group needs a worker; each further one goes where a worker holds most."""
    counts = [1] * len(volumes)
    heap = [(-volume, group) for group, volume in enumerate(volumes)]
    heapq.heapify(heap)
    for _ in range(workers - len(volumes)):
        _, group = heap[0]
        counts[group] += 1
        heapq.heapreplace(heap, (-volumes[group] / counts[group], group))
    return counts


def _scheme(matrix: Matrix, sides: list[_Side]) -> Scheme:
    areas: list[Area] = []
    tasks = coverage = 0
    whole = UnitRange()
    for side, groups in enumerate(sides):
        for begin, end, count in zip(groups.cuts[:-1], groups.cuts[1:], groups.workers, strict=True):
            if side == LEFT:
                left = matrix.row_keys(begin, end)
                right = matrix.column_keys(int(matrix.first[begin]), int(matrix.last[end - 1]) + 1)
            else:
                right = matrix.column_keys(begin, end)
                left = matrix.row_keys(int(matrix.first_row[begin]), int(matrix.last_row[end - 1]) + 1)
            for part in even_parts(0, UNITS, count):
                areas.append(
                    Area(tasks, coverage, (left, right), (part, whole), (left, None), (True, False))
                    if side == LEFT
                    else Area(tasks, coverage, (left, right), (whole, part), (None, right), (False, True))
                )
                tasks += 1
            coverage += 1
    left_groups, right_groups = (len(side.workers) for side in sides)
    grouped = f", in {left_groups} and {right_groups} groups" if left_groups + right_groups > 2 else ""
    return Scheme("biclique", tasks, tuple(areas), f"{sum(sides[0].workers)} left and {sum(sides[1].workers)} right workers{grouped}")
