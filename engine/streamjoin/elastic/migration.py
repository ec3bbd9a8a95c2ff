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

from streamjoin.elastic.mapping import Keep, assign, kept_by, overlaps
from streamjoin.elastic.region import Region, difference, held_by, intersection, merged, volume, written_by
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
    """All that the new tasks need less the greatest overlap: no choice of who goes on as what moves less to this scheme."""
    naive_tuples: float
    """Every task gets all that it needs anew, as after a restart."""
    identity_tuples: float
    """Every worker goes on under its number, as if nobody had mapped or aligned anything."""

    @property
    def is_empty(self) -> bool:
        return not self.moves and not self.deletes


def plan_migration(
    before: Scheme | None, after: Scheme, keep: Keep, statistics: Statistics, *, unaligned: Scheme | None = None
) -> Migration:
    """How to get from ``before`` to ``after``, whose task t is the old worker ``keep[t]``.

    ``unaligned``: the new scheme as it was before its unit ranges were aligned, for ``identity_tuples``; ``after`` itself otherwise.
    O(tasks * areas that write), a few milliseconds for a dozen tasks.
    """
    new = _areas_by_task(after)
    needs = [held_by(areas) for areas in new]
    naive = math.fsum(volume(need, statistics) for need in needs)
    if before is None:
        moves = tuple(Move(None, task, region, volume((region,), statistics)) for task, need in enumerate(needs) for region in need)
        return Migration(moves, (), ((),) * after.tasks, naive, 0.0, 0.0, naive, naive, naive)

    holds = [held_by(areas) for areas in _areas_by_task(before)]
    writers = _writers(before)
    moves_found: list[Move] = []
    deletes: list[Delete] = []
    kept: list[tuple[Region, ...]] = []
    for task, (need, worker) in enumerate(zip(needs, keep, strict=True)):
        held = () if worker is None else holds[worker]
        kept.append(intersection(need, held))
        lacks = difference(need, held)
        for sender, written in writers:
            if not lacks:
                break
            sent = intersection(lacks, written)
            if sent:
                moves_found += [Move(sender, task, region, volume((region,), statistics)) for region in sent]
                lacks = difference(lacks, sent)
        assert not lacks, "every tuple is written by an area of the old scheme"
    goes_on_as = {worker: task for task, worker in enumerate(keep) if worker is not None}
    for worker, held in enumerate(holds):
        gone = difference(held, needs[goes_on_as[worker]]) if worker in goes_on_as else held
        deletes += [Delete(worker, region, volume((region,), statistics)) for region in gone]

    overlap = overlaps(before, after, statistics)
    best = kept_by(overlap, assign(overlap))
    plain = overlap if unaligned is None else overlaps(before, unaligned, statistics)
    return Migration(
        moves=tuple(moves_found),
        deletes=tuple(deletes),
        kept=tuple(kept),
        moved_tuples=math.fsum(move.expected_tuples for move in moves_found),
        deleted_tuples=math.fsum(delete.expected_tuples for delete in deletes),
        kept_tuples=math.fsum(volume(regions, statistics) for regions in kept),
        lower_bound_tuples=max(0.0, naive - best),
        naive_tuples=naive,
        identity_tuples=max(0.0, naive - float(np.trace(plain))),
    )


def _areas_by_task(scheme: Scheme) -> Sequence[Sequence[Area]]:
    found: list[list[Area]] = [[] for _ in range(scheme.tasks)]
    for area in scheme.areas:
        found[area.task].append(area)
    return found


def _writers(scheme: Scheme) -> list[tuple[int, tuple[Region, ...]]]:
    """Per task that writes, what it writes: together every tuple once."""
    written: dict[int, list[Region]] = defaultdict(list)
    for area in scheme.areas:
        written[area.task] += written_by(area)
    return [(task, merged(regions)) for task, regions in sorted(written.items()) if regions]
