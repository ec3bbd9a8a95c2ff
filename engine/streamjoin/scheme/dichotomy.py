"""The area dichotomy (A-DSP, section 3.2, Alg. 2): the band of results cut into coverage areas that need the fewest tasks together.

Def. 5 cuts a rectangle in two that share no cell and cover its results: after a row, the upper part keeping the columns that its rows
reach, the lower part those that its own reach; or after a column, likewise. Eq. 14 asks for the best of all ways to go on
cutting, whose number grows like Catalan's. Here it is found in polynomial time, in two steps:

1. *Peeling*, at any size: cut off one coverage area after another from the upper left. What remains is fixed by its upper left
   corner, and a corner further down and right needs no more tasks, as Alg. 1 never needs fewer for more tuples. So for every number of
   tasks only the furthest corners are kept, and only the furthest cuts are tried: half-planes of volumes
   (``varietal.half_planes``), hence binary searches. O(tasks * corners * half-planes * log buckets), at most ``BEAM`` corners a number.
   Cuts that are further than they need be then move back to where least is replicated.
2. *All dichotomies*, for matrices of at most ``EXACT_CELLS`` cells: a cut may also end at another cut, amid results, which in a few cases
   of a hundred saves a task. Rectangles are solved from small to large, but for those with which there would be too many tasks
   (Eq. 7). O(rows² * columns² * (rows + columns)).

The order of the coverage areas is that of the cuts, upper and left parts first: on either side the keys held by the first areas of
any number are a prefix of the keys, so that what an area holds and no earlier one does is one range.
"""

from __future__ import annotations

from streamjoin.scheme.all_dichotomies import all_dichotomies, is_small
from streamjoin.scheme.cuts import Dichotomy, lower_bound
from streamjoin.scheme.matrix import Matrix
from streamjoin.scheme.peeling import peel

MOST_TASKS = 10_000
"""More tasks than this are refused; a manifest allows as many workers."""


class TooManyTasksError(ValueError):
    """No scheme of at most ``MOST_TASKS`` tasks keeps the capacity."""

    def __init__(self, capacity: float) -> None:
        super().__init__(f"capacity: {capacity:g} a task would need more than {MOST_TASKS:,} tasks; raise the capacity")


def partition(matrix: Matrix, capacity: float) -> Dichotomy:
    """Alg. 2: the dichotomy of fewest tasks, each holding at most ``capacity`` tuples (see the module for how far it is the least).

    Raises TooManyTasksError where that takes more than ``MOST_TASKS``.
    """
    most = bound = lower_bound(matrix, capacity)
    # A few more than the bound suffice as a rule, while the whole matrix may need many times as many.
    while most <= MOST_TASKS:
        peeled, _ = peel(matrix, capacity, most)
        if peeled is not None:
            found = peeled.settled()
            if found.tasks > bound and is_small(matrix):
                found = all_dichotomies(matrix, capacity, found.tasks - 1) or found
            return found
        most = max(most + 1, min(MOST_TASKS, most + 2 + most // 4))
    raise TooManyTasksError(capacity)


def fits(matrix: Matrix, capacity: float, most: int) -> Dichotomy | None:
    """A dichotomy of at most ``most`` tasks, or None when there is none."""
    if lower_bound(matrix, capacity) > most:
        return None
    peeled, _ = peel(matrix, capacity, most)
    if peeled is None:
        return all_dichotomies(matrix, capacity, most) if is_small(matrix) else None
    return peeled.settled()
