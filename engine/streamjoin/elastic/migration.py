"""The migration plan: which worker sends what to whom, and who deletes what, when one scheme follows another (A-DSP, Alg. 5).

Alg. 5's steps as range arithmetic over what each task holds (h) and needs (s):

1. *Discard.* Where the old scheme is irregular, the paper's thin line keeps borrowed parts apart (its marked states) and drops them first.
   Here an area says all that its task holds, so that they are part of h.
2. *Fill.* A task lacks n = s - (s & h) (Eq. 15). Who sends: the worker that wrote a tuple durably, which is one of the first column for
   rows and of the first row for columns, so that each tuple comes from one holder: what of n that worker wrote (Eq. 16).
3. *The irregular line* of the new scheme needs more of the primary stream than its neighbours: again part of s.
4. *Delete.* What a task holds and no longer needs: d = h - (s & h) (Eq. 17). A worker that ends deletes everything.

Always holds, for each task of the new scheme: kept and moved regions are disjoint, and together exactly what it needs; for each worker of
the old one: what it keeps and what it deletes are together exactly what it holds. Expected tuples are those that the statistics say.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from streamjoin.elastic.bound import least_moved
from streamjoin.elastic.mapping import Keep, overlaps
from streamjoin.language.predicate import MainPredicate
from streamjoin.scheme.models import HANDSHAKE
from streamjoin.scheme.region import Region, difference, held_by, high_of, intersection, low_of, merged, volume, written_by
from streamjoin.scheme.statistics import Statistics
from streamjoin.scheme.tiling import Area, Scheme


@dataclass(frozen=True, slots=True)
class Move:
    """A region that a task of the new scheme lacks."""

    from_worker: int | None
    """The worker of the old scheme that sends it; None: durable storage, as no scheme was before."""
    to_worker: int
    """The task of the new scheme that receives it."""
    region: Region
    expected_tuples: float


@dataclass(frozen=True, slots=True)
class Delete:
    """A region that a worker of the old scheme holds for nothing from now on."""

    worker: int
    """A task of the old scheme."""
    region: Region
    expected_tuples: float


@dataclass(frozen=True, slots=True)
class Migration:
    """See the module. All volumes are expected tuples, replicas counted."""

    moves: tuple[Move, ...]
    """By receiver, then by sender."""
    deletes: tuple[Delete, ...]
    """By worker."""
    kept: tuple[tuple[Region, ...], ...]
    """Per task of the new scheme, what it holds already."""
    moved_tuples: float
    deleted_tuples: float
    kept_tuples: float
    lower_bound_tuples: float
    """No plan of as many tasks, none fuller than the fullest of this one, moves less (:mod:`~streamjoin.elastic.bound`)."""
    naive_tuples: float
    """Every task gets all that it needs anew, as after a restart."""
    identity_tuples: float
    """Every worker goes on under its number, as if nobody had mapped or aligned anything."""



def plan_migration(
    before: Scheme | None,
    after: Scheme,
    keep: Keep,
    statistics: Statistics,
    main: MainPredicate,
    *,
    kept_by_number: float | None = None,
) -> Migration:
    """How to get from ``before`` to ``after``, whose task t is the old worker ``keep[t]``.

    ``kept_by_number``: where ``after`` was aligned, what a map by number kept before that; of ``after`` itself otherwise.
    O(tasks * areas that write), some 25 milliseconds for a dozen tasks.
    """
    if before is not None and after.model == HANDSHAKE:
        return _along_a_chain(before, after, statistics.counted)
    needs = [held_by(areas) for areas in _areas_by_task(after)]
    least = least_moved(before, after, statistics, main)
    statistics = statistics.counted  # what moves is told in tuples, however they were weighed to decide it
    naive = math.fsum(volume(need, statistics) for need in needs)
    if before is None:
        moves = tuple(Move(None, task, region, volume((region,), statistics)) for task, need in enumerate(needs) for region in need)
        return Migration(moves, (), ((),) * after.tasks, naive, 0.0, 0.0, least, naive, naive)

    holds = [held_by(areas) for areas in _areas_by_task(before)]
    writers = _Writers(before)
    moves_found: list[Move] = []
    deletes: list[Delete] = []
    kept: list[tuple[Region, ...]] = []
    for task, (need, worker) in enumerate(zip(needs, keep, strict=True)):
        held = () if worker is None else holds[worker]
        kept.append(intersection(need, held))
        for sender, sent in writers.of(difference(need, held)):
            moves_found += [Move(sender, task, region, volume((region,), statistics)) for region in sent]
    goes_on_as = {worker: task for task, worker in enumerate(keep) if worker is not None}
    for worker, held in enumerate(holds):
        gone = difference(held, needs[goes_on_as[worker]]) if worker in goes_on_as else held
        deletes += [Delete(worker, region, volume((region,), statistics)) for region in gone]

    by_number = float(np.trace(overlaps(before, after, statistics))) if kept_by_number is None else kept_by_number
    return Migration(
        moves=tuple(moves_found),
        deletes=tuple(deletes),
        kept=tuple(kept),
        moved_tuples=math.fsum(move.expected_tuples for move in moves_found),
        deleted_tuples=math.fsum(delete.expected_tuples for delete in deletes),
        kept_tuples=math.fsum(volume(regions, statistics) for regions in kept),
        lower_bound_tuples=least,
        naive_tuples=naive,
        identity_tuples=max(0.0, naive - by_number),
    )


def _along_a_chain(before: Scheme, after: Scheme, statistics: Statistics) -> Migration:
    """The last worker that stays takes what those hold that go; new ones fill by what comes and what others pass on, which is no move."""
    last, areas = after.tasks - 1, _areas_by_task(before)
    moves, deletes, kept = list[Move](), list[Delete](), list[tuple[Region, ...]]()
    for task in range(max(before.tasks, after.tasks)):
        held = held_by(areas[task]) if task < before.tasks else ()
        if task <= last:
            kept.append(held)
        else:
            volumes = [volume((region,), statistics) for region in held]
            moves += [Move(task, last, region, expected) for region, expected in zip(held, volumes, strict=True)]
            deletes += [Delete(task, region, expected) for region, expected in zip(held, volumes, strict=True)]
    moved = math.fsum(move.expected_tuples for move in moves)
    total = math.fsum(volume(held_by(of_task), statistics) for of_task in areas)
    return Migration(tuple(moves), tuple(deletes), tuple(kept), moved, moved, total - moved, moved, total, moved)


class _Writers:
    """Who wrote what: every tuple was written by one task."""

    def __init__(self, scheme: Scheme) -> None:
        self._written = [(area.task, region) for area in scheme.areas for region in written_by(area)]
        regions = [region for _, region in self._written]
        self._sides = np.array([region.side for region in regions])
        # Floats only preselect: rounding never turns an order around.
        self._lows = np.array([float(low_of(region.keys)) for region in regions])
        self._highs = np.array([float(high_of(region.keys)) for region in regions])
        self._unit_lows = np.array([region.units.low for region in regions])
        self._unit_highs = np.array([region.units.high for region in regions])

    def of(self, lacking: Sequence[Region]) -> list[tuple[int, tuple[Region, ...]]]:
        """Per task that wrote some of these regions, ascending, which parts of them."""
        found: dict[int, list[Region]] = defaultdict(list)
        for region in lacking:
            near = (
                (self._sides == region.side)
                & (self._lows <= float(high_of(region.keys)))
                & (self._highs >= float(low_of(region.keys)))
                & (self._unit_lows < region.units.high)
                & (self._unit_highs > region.units.low)
            )
            for index in np.flatnonzero(near).tolist():
                task, written = self._written[index]
                found[task] += intersection((region,), (written,))
        return [(task, merged(parts)) for task, parts in sorted(found.items()) if parts]


def _areas_by_task(scheme: Scheme) -> Sequence[Sequence[Area]]:
    found: list[list[Area]] = [[] for _ in range(scheme.tasks)]
    for area in scheme.areas:
        found[area.task].append(area)
    return found
