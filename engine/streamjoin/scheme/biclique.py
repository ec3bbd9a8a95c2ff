"""Join-biclique (Lin et al., "Scalable Distributed Stream Join Processing", SIGMOD 2015), and ESJ's chain of workers.

Nothing is replicated: a tuple is stored at one worker, and sent to all others that may hold a partner, where it only probes. In areas:
those that hold left tuples cover all pairs, and once more those that hold right ones.

=============  ========================================================================================================================
``biclique``   either side has workers of its own, their numbers in proportion to the streams. In ``groups`` (Bi_g; 1: Bi) by key: a tuple
               is stored at a random worker of its key's group, and sent to the groups of the other side that its partners may be in
``chain``      ESJ's handshake join: every worker holds an even part of both sides, and sees every tuple pass by
=============  ========================================================================================================================
"""

from __future__ import annotations

import heapq
import math
from typing import Any

import numpy as np

from streamjoin.scheme.matrix import Matrix
from streamjoin.scheme.tiling import UNITS, Area, KeyRange, Scheme, UnitRange
from streamjoin.scheme.varietal import EPSILON, even_parts

Array = np.ndarray[Any, np.dtype[Any]]


def biclique(matrix: Matrix, tasks: int, groups: int) -> Scheme:
    """The scheme of ``tasks`` >= 2 tasks whose largest load is smallest, in at most ``groups`` groups a side, as keys and tasks allow."""
    return _biclique(matrix, [_Side.of(sums, min(groups, tasks // 2)) for sums in (matrix.row_sums, matrix.column_sums)], tasks)


def biclique_for(matrix: Matrix, capacity_tuples: float, groups: int, most: int) -> Scheme | None:
    """The scheme of fewest tasks, of which none holds more than ``capacity_tuples``; None where those are more than ``most``."""
    sides = [_Side.of(sums, groups) for sums in (matrix.row_sums, matrix.column_sums)]
    tasks = sum(max(1, math.ceil(volume / capacity_tuples - EPSILON)) for side in sides for volume in side.volumes)
    return _biclique(matrix, sides, tasks) if tasks <= most else None


def chain(tasks: int) -> Scheme:
    """ESJ's chain of ``tasks`` >= 2 workers."""
    whole, everything = UnitRange(), KeyRange()
    areas = [
        Area(task, 0, everything, part, everything, whole, everything, None, holds_right=False)
        for task, part in enumerate(even_parts(0, UNITS, tasks))
    ]
    areas += [
        Area(task, 1, everything, whole, everything, part, None, everything, holds_left=False)
        for task, part in enumerate(even_parts(0, UNITS, tasks))
    ]
    return Scheme("chain", tasks, tuple(areas), f"{tasks} workers, each with a part of both sides")


class _Side:
    """One side's keys in groups: where each begins and ends, in buckets, and the tuples of each."""

    def __init__(self, cuts: list[int], sums: Array) -> None:
        self.cuts = cuts
        self.volumes: list[float] = np.diff(sums[cuts]).tolist()

    @classmethod
    def of(cls, sums: Array, groups: int) -> _Side:
        """At most so many groups of about equal volume; fewer where a bucket would be cut."""
        goals = sums[-1] * np.arange(1, groups) / groups
        after = np.clip(np.searchsorted(sums, goals), 1, len(sums) - 1)
        nearest = np.where(goals - sums[after - 1] < sums[after] - goals, after - 1, after)
        return cls(sorted({0, *nearest.tolist(), len(sums) - 1}), sums)


def _biclique(matrix: Matrix, sides: list[_Side], workers: int) -> Scheme:
    # Every group needs a worker; each further one goes where a worker holds most.
    counts = [[1] * len(side.volumes) for side in sides]
    heap = [(-volume, side, group) for side in (0, 1) for group, volume in enumerate(sides[side].volumes)]
    heapq.heapify(heap)
    for _ in range(workers - len(heap)):
        _, side, group = heap[0]
        counts[side][group] += 1
        heapq.heapreplace(heap, (-sides[side].volumes[group] / counts[side][group], side, group))

    areas: list[Area] = []
    tasks = coverage = 0
    whole = UnitRange()
    for side, of_side in enumerate(sides):
        for begin, end, count in zip(of_side.cuts[:-1], of_side.cuts[1:], counts[side], strict=True):
            if side == 0:
                left = matrix.row_keys(begin, end)
                right = matrix.column_keys(int(matrix.first[begin]), int(matrix.last[end - 1]) + 1)
            else:
                right = matrix.column_keys(begin, end)
                left = matrix.row_keys(int(matrix.first_row[begin]), int(matrix.last_row[end - 1]) + 1)
            for part in even_parts(0, UNITS, count):
                areas.append(
                    Area(tasks, coverage, left, part, right, whole, left, None, holds_right=False)
                    if side == 0
                    else Area(tasks, coverage, left, whole, right, part, None, right, holds_left=False)
                )
                tasks += 1
            coverage += 1
    left_workers, right_workers = map(sum, counts)
    grouped = f", in {len(counts[0])} and {len(counts[1])} groups" if len(counts[0]) + len(counts[1]) > 2 else ""
    return Scheme("biclique", tasks, tuple(areas), f"{left_workers} left and {right_workers} right workers{grouped}")
