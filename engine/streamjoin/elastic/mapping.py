"""Task mapping: which worker goes on as which task of a new scheme, so that as little state as can be moves (A-DSP, section 4.2).

``overlaps`` gives lambda for all pairs of an old and a new task: the tuples that both hold. :func:`assign` chooses
the map with the greatest sum, hence the least migration, by the Hungarian method; :func:`greedy` is Alg. 4 as published, to compare with:
it is not always the least, though the paper says so: from a 4 x 3 to a 3 x 4 grid of equal streams it keeps 96.4 % of the greatest sum.

Of very many tasks (more than ``MOST_PAIRS`` pairs that share anything, from some two thousand tasks on) each one's ``KEPT_PAIRS`` best
partners are looked at. With a thousand tasks, where that can be compared, the map keeps as much as the best one, but for 0.2 % at the most.

Always holds: as many workers go on as both schemes have room for, also those that keep nothing, but none that is to leave; and the same
arguments give the same map.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Set
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np

from streamjoin.elastic.factors import Factors, Holders
from streamjoin.scheme.ranges import expanded
from streamjoin.scheme.region import Region, held, meetings
from streamjoin.scheme.statistics import SideStatistics, Statistics
from streamjoin.scheme.tiling import UNITS, Scheme

Array = np.ndarray[Any, np.dtype[Any]]

MOST_PAIRS, KEPT_PAIRS = 1_000_000, 32
"""Of more pairs of tasks that share something, only so many of each task are looked at, those that share most."""

Keep = tuple[int | None, ...]
"""Per task of a new scheme, the task of the old one that goes on as it, or None."""


def chain_keep(before: int, after: int) -> Keep:
    """Of a chain of so many workers: it grows and shrinks at its right end, as tuples are where they are by when they came."""
    return tuple(task if task < before else None for task in range(after))


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


def assign(overlap: Array | Overlap, leaving: Set[int] = frozenset()) -> Keep:
    """The map with the greatest sum of overlaps; of several, one that moves few numbers. Workers that are ``leaving`` do not go on.

    O(n³) for an array, and as a rule far less. Of an :class:`Overlap` only what is not zero is looked at: hundredths of a second for a
    thousand tasks.
    Where that is more than ``MOST_PAIRS``, with thousands of tasks, the map is the best among the ``KEPT_PAIRS`` best pairs of each task.
    """
    if isinstance(overlap, Overlap):
        return _assigned(overlap, leaving)
    from scipy.optimize import linear_sum_assignment

    numbers = np.arange(max(overlap.shape))
    same = numbers[: overlap.shape[0], None] == numbers[None, : overlap.shape[1]]
    bonus = _bonus(float(overlap.max(initial=0.0)), overlap.shape)
    staying = np.array([worker for worker in range(overlap.shape[0]) if worker not in leaving], np.int64)
    workers, tasks = linear_sum_assignment((overlap + bonus * same)[staying], maximize=True)
    keep: list[int | None] = [None] * overlap.shape[1]
    for worker, task in zip(staying[workers].tolist(), tasks.tolist(), strict=True):
        keep[task] = worker
    return tuple(keep)


def _bonus(most: float, shape: tuple[int, ...]) -> float:
    """Far below any difference that matters, yet enough to decide ties."""
    return max(most, 1.0) * 1e-9 / max(shape)


def kept_by(overlap: Array | Overlap, keep: Keep) -> float:
    """The tuples that need not move under this map."""
    if isinstance(overlap, Overlap):
        going_on = np.array([-1 if worker is None else worker for worker in keep])
        if overlap.factors is not None:
            tasks = np.flatnonzero(going_on >= 0)
            return math.fsum(overlap.factors.of_pairs(going_on[tasks], tasks).tolist())
        return math.fsum(overlap.tuples[going_on[overlap.new] == overlap.old].tolist())
    return math.fsum(float(overlap[worker, task]) for task, worker in enumerate(keep) if worker is not None)


def relabelled(scheme: Scheme, keep: Keep) -> tuple[Scheme, Keep]:
    """The scheme with its tasks numbered by who goes on as each, and ``keep`` in that order.

    A worker that goes on keeps its number if the new scheme has that number; else it gets the lowest that is free, and so do new
    workers after it. So growing by n workers adds the numbers at the end, and shrinking chooses which workers go.
    """
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


@dataclass(frozen=True, slots=True, eq=False)
class Overlap:
    """lambda without its zeros: the tuples that an old and a new task share, of each pair once; of more than ``MOST_PAIRS`` the best."""

    shape: tuple[int, int]
    """How many old and new tasks there are."""
    old: Array
    """int64; and in ``new`` the new task, ascending by both."""
    new: Array
    tuples: Array
    """float64, positive."""
    factors: Factors | None = None
    """Where these are only the best pairs: all of them."""

    def by_number(self) -> float:
        """The tuples that stay where every worker goes on under its number."""
        if self.factors is not None:
            numbers = np.arange(min(self.shape))
            return math.fsum(self.factors.of_pairs(numbers, numbers).tolist())
        return math.fsum(self.tuples[self.old == self.new].tolist())

    def array(self) -> Array:
        """float64, old tasks by new ones."""
        found = np.zeros(self.shape)
        found[self.old, self.new] = self.tuples
        return found


def overlaps(before: Scheme, after: Scheme, statistics: Statistics) -> Array:
    """lambda: the tuples that each old task (rows) holds and each new one (columns) needs. float64."""
    one, other, expected = _in_common(before, after, statistics)
    return _listed(before, after, one, other, expected).array()


def shared(before: Scheme, after: Scheme, statistics: Statistics) -> Overlap:
    """The same for those pairs that share any, or of very many the best ones.

    What a task holds through several areas counts once. Tasks that hold the same region are looked at together: O(pairs of tasks that
    share any * log of these, or of very many O(pairs)).
    """
    one, other, expected = _in_common(before, after, statistics)
    old, new = _members(before), _members(after)
    if int(np.diff(old.starts)[one] @ np.diff(new.starts)[other]) > MOST_PAIRS:
        factors = Factors.of(old, new, one, other, expected)
        workers, tasks, tuples, pairs = factors.best(KEPT_PAIRS)
        if pairs > MOST_PAIRS:
            return Overlap((before.tasks, after.tasks), workers, tasks, tuples, factors)
    return _listed(before, after, one, other, expected)


def _in_common(before: Scheme, after: Scheme, statistics: Statistics) -> tuple[Array, Array, Array]:
    """Which held and needed regions have tuples in common, by their numbers, and how many: int64, int64, float64."""
    old, new = _holders(before), _holders(after)
    one, other = meetings(list(old), list(new))
    expected = np.zeros(len(one))
    for side, statistic in enumerate(statistics.sides):
        of_side = np.array([region.side == side for region in old], bool)[one]
        ends = [_ends(list(regions), statistic) for regions in (old, new)]
        low, high, unit_low, unit_high = (
            limit(ends[0][edge][one], ends[1][edge][other]) for edge, limit in enumerate((np.maximum, np.minimum, np.maximum, np.minimum))
        )
        expected += np.where(of_side, np.maximum(high - low, 0.0) * ((unit_high - unit_low) / UNITS), 0.0)
    some = expected > 0
    return one[some], other[some], expected[some]


def _listed(before: Scheme, after: Scheme, one: Array, other: Array, expected: Array) -> Overlap:
    """All pairs of tasks: every worker with one region against every task with the other."""
    old, new = _members(before), _members(after)
    many, place = expanded(old.starts[one], old.starts[one + 1])
    workers = old.tasks[place]
    more, place = expanded(new.starts[other[many]], new.starts[other[many] + 1])
    found, same = np.unique(workers[more] * after.tasks + new.tasks[place], return_inverse=True)
    tuples = np.bincount(same, expected[many][more], len(found))
    return Overlap((before.tasks, after.tasks), found // after.tasks, found % after.tasks, tuples)


@lru_cache(maxsize=8)
def _holders(scheme: Scheme) -> Mapping[Region, list[int]]:
    """The tasks that hold each region. Kept, as the running scheme is compared with several."""
    found: dict[Region, list[int]] = {}
    for task, regions in enumerate(held(scheme)):
        for region in regions:
            found.setdefault(region, []).append(task)
    return found


@lru_cache(maxsize=8)
def _members(scheme: Scheme) -> Holders:
    """The same in arrays, by the regions' numbers."""
    holders = _holders(scheme).values()
    tasks = [task for of_region in holders for task in of_region]
    return Holders(scheme.tasks, np.cumsum([0, *map(len, holders)]), np.array(tasks, np.int64))


def _ends(regions: list[Region], statistic: SideStatistics) -> tuple[Array, Array, Array, Array]:
    """The volumes below the lowest and the highest key of each of these regions, and their units' bounds: float64."""
    return (
        statistic.below_all(region.keys.low for region in regions),
        statistic.below_all((region.keys.high for region in regions), end=True),
        np.array([float(region.units.low) for region in regions]),
        np.array([float(region.units.high) for region in regions]),
    )


def _assigned(overlap: Overlap, leaving: Set[int]) -> Keep:
    """As :func:`assign`."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import min_weight_full_bipartite_matching

    old, new = overlap.shape
    keep: list[int | None] = [None] * new
    bonus = _bonus(float(overlap.tuples.max(initial=0.0)), overlap.shape)
    both = np.arange(min(old, new))
    # A worker that finds no task is matched with a place of its own.
    rows = np.concatenate([overlap.old, both, np.arange(old)])
    columns = np.concatenate([overlap.new, both, new + np.arange(old)])
    worth = np.concatenate([overlap.tuples, np.full(len(both), bonus), np.full(old, bonus / 4)])
    stays = (columns >= new) | ~np.isin(rows, list(leaving))
    rows, columns, worth = rows[stays], columns[stays], worth[stays]
    # A sum of what is given twice; none may be zero, or it is no edge.
    graph = coo_array((worth, (rows, columns)), shape=(old, new + old)).tocsr()
    workers, places = min_weight_full_bipartite_matching(graph, maximize=True)
    for worker, place in zip(workers.tolist(), places.tolist(), strict=True):
        if place < new:
            keep[place] = worker
    spare = iter(sorted(set(range(old)) - leaving - {worker for worker in keep if worker is not None}))
    return tuple(next(spare, None) if worker is None else worker for worker in keep)
