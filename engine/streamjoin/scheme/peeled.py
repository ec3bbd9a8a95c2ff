"""What peeling comes to: a chain of coverage areas, and where best to cut between neighbours."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from streamjoin.scheme import varietal
from streamjoin.scheme.cuts import Cuts, Dichotomy, Rectangle
from streamjoin.scheme.matrix import Matrix
from streamjoin.scheme.varietal import TOLERANCE, half_planes

Array = np.ndarray[Any, np.dtype[Any]]

# Rows of the array of corners: where what remains begins; the number of the corner before, the cut that led from there, the tasks spent.
TOP, BEGIN, PARENT, CUT, SPENT = range(5)


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
        cuts = Cuts.of(self.matrix)
        return Dichotomy(self.tasks, settled_areas(self.matrix, cuts, self.capacity, [list(link) for link in self.chain]))

    def largest_load(self) -> float:
        """The least capacity that these areas could do with."""
        cuts = Cuts.of(self.matrix)
        if not self.chain:
            return varietal.least_capacity(self.matrix.left, self.matrix.right, self.tasks)
        top, begin, cut, tasks = np.array(self.chain).T
        left, right = cuts.left[cut] - self.matrix.row_sums[top], cuts.right[cut] - self.matrix.column_sums[begin]
        return max(float(_least_capacity(left[tasks == size], right[tasks == size], size).max()) for size in np.unique(tasks).tolist())


def settled_areas(matrix: Matrix, cuts: Cuts, capacity: float, chain: list[list[int]]) -> tuple[Rectangle, ...]:
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
