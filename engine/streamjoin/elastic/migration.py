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

from streamjoin.elastic.bound import least_moved
from streamjoin.elastic.mapping import Keep, shared
from streamjoin.language.predicate import MainPredicate
from streamjoin.scheme.models import HANDSHAKE
from streamjoin.scheme.region import (
    Region,
    common_part,
    difference,
    held,
    intersection,
    meetings,
    merged,
    volume,
    volumes,
    written_by,
)
from streamjoin.scheme.statistics import Statistics
from streamjoin.scheme.tiling import Scheme


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
    O(tasks + moves), besides logarithms: some ten milliseconds for a dozen tasks.
    """
    if before is not None and after.model == HANDSHAKE:
        return _along_a_chain(before, after, statistics.counted)
    needs = held(after)
    least = least_moved(before, after, statistics, main)
    statistics = statistics.counted  # what moves is told in tuples, however they were weighed to decide it
    naive = volume([region for need in needs for region in need], statistics)
    if before is None:
        coming = [(task, region) for task, need in enumerate(needs) for region in need]
        expected = volumes((region for _, region in coming), statistics)
        moves = tuple(Move(None, task, region, tuples) for (task, region), tuples in zip(coming, expected, strict=True))
        return Migration(moves, (), ((),) * after.tasks, naive, 0.0, 0.0, least, naive, naive)

    holds = held(before)
    kept: list[tuple[Region, ...]] = []
    lacking: list[tuple[int, Region]] = []
    for task, (need, worker) in enumerate(zip(needs, keep, strict=True)):
        has = () if worker is None else holds[worker]
        kept.append(intersection(need, has))
        lacking += [(task, region) for region in difference(need, has)]
    sent = _senders(before, lacking)
    expected = volumes((region for _, _, region in sent), statistics)
    moves = tuple(Move(sender, task, region, tuples) for (task, sender, region), tuples in zip(sent, expected, strict=True))
    goes_on_as = {worker: task for task, worker in enumerate(keep) if worker is not None}
    gone = [
        (worker, region)
        for worker, has in enumerate(holds)
        for region in (difference(has, needs[goes_on_as[worker]]) if worker in goes_on_as else has)
    ]
    expected = volumes((region for _, region in gone), statistics)
    deletes = tuple(Delete(worker, region, tuples) for (worker, region), tuples in zip(gone, expected, strict=True))

    by_number = shared(before, after, statistics).by_number() if kept_by_number is None else kept_by_number
    return Migration(
        moves=moves,
        deletes=deletes,
        kept=tuple(kept),
        moved_tuples=math.fsum(move.expected_tuples for move in moves),
        deleted_tuples=math.fsum(delete.expected_tuples for delete in deletes),
        kept_tuples=volume([region for regions in kept for region in regions], statistics),
        lower_bound_tuples=least,
        naive_tuples=naive,
        identity_tuples=max(0.0, naive - by_number),
    )


def _along_a_chain(before: Scheme, after: Scheme, statistics: Statistics) -> Migration:
    """The last worker that stays takes what those hold that go; new ones fill by what comes and what others pass on, which is no move."""
    last, holds = after.tasks - 1, held(before)
    moves, deletes, kept = list[Move](), list[Delete](), list[tuple[Region, ...]]()
    for task in range(max(before.tasks, after.tasks)):
        has = holds[task] if task < before.tasks else ()
        if task <= last:
            kept.append(has)
        else:
            expected = volumes(has, statistics)
            moves += [Move(task, last, region, tuples) for region, tuples in zip(has, expected, strict=True)]
            deletes += [Delete(task, region, tuples) for region, tuples in zip(has, expected, strict=True)]
    moved = math.fsum(move.expected_tuples for move in moves)
    total = volume([region for regions in holds for region in regions], statistics)
    return Migration(tuple(moves), tuple(deletes), tuple(kept), moved, moved, total - moved, moved, total, moved)


def _senders(scheme: Scheme, lacking: Sequence[tuple[int, Region]]) -> list[tuple[int, int, Region]]:
    """What a task lacks, by who wrote it: (task, sender, region), ascending. Every tuple was written by one task."""
    written = [(area.task, region) for area in scheme.areas for region in written_by(area)]
    found: dict[tuple[int, int], list[Region]] = defaultdict(list)
    pairs = meetings([region for _, region in lacking], [region for _, region in written])
    for one, other in zip(*(numbers.tolist() for numbers in pairs), strict=True):
        (task, region), (sender, of_sender) = lacking[one], written[other]
        part = common_part(region, of_sender)
        assert part is not None
        found[task, sender].append(part)
    return [(*between, region) for between, parts in sorted(found.items()) for region in merged(parts)]
