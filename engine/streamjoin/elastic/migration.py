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
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import pairwise

import numpy as np

from streamjoin.elastic.bound import least_moved
from streamjoin.elastic.mapping import Keep, shared
from streamjoin.language.predicate import MainPredicate
from streamjoin.scheme.models import HANDSHAKE
from streamjoin.scheme.region import (
    Region,
    common_parts,
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


@dataclass(frozen=True)
class Migration:
    """See the module. All volumes are expected tuples, replicas counted."""

    list_moves: Callable[[], tuple[Move, ...]] = field(repr=False, compare=False)
    """Makes ``moves``, when they are asked for: carrying a plan out takes but its scheme, and thousands of tasks may lack hundreds of
    thousands of regions."""
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

    @cached_property
    def moves(self) -> tuple[Move, ...]:
        """By receiver, then by sender."""
        return self.list_moves()


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
        coming = [(task, None, region) for task, need in enumerate(needs) for region in need]
        return Migration(partial(_moves, coming, statistics), (), ((),) * after.tasks, naive, 0.0, 0.0, least, naive, naive)

    holds = held(before)
    kept: list[tuple[Region, ...]] = []
    lacking: list[tuple[int, Region]] = []
    for task, (need, worker) in enumerate(zip(needs, keep, strict=True)):
        has = () if worker is None else holds[worker]
        kept.append(intersection(need, has))
        lacking += [(task, region) for region in difference(need, has)]
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
        list_moves=partial(_sent, before, lacking, statistics),
        deletes=deletes,
        kept=tuple(kept),
        moved_tuples=volume((region for _, region in lacking), statistics),
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
    return Migration(partial(tuple, moves), tuple(deletes), tuple(kept), moved, moved, total - moved, moved, total, moved)


def _sent(before: Scheme, lacking: Sequence[tuple[int, Region]], statistics: Statistics) -> tuple[Move, ...]:
    return _moves(_senders(before, lacking), statistics)


def _moves(sent: Sequence[tuple[int, int | None, Region]], statistics: Statistics) -> tuple[Move, ...]:
    """``sent``: receivers, senders and what they send."""
    expected = volumes((region for _, _, region in sent), statistics)
    return tuple(Move(sender, task, region, tuples) for (task, sender, region), tuples in zip(sent, expected, strict=True))


def _senders(scheme: Scheme, lacking: Sequence[tuple[int, Region]]) -> list[tuple[int, int, Region]]:
    """What a task lacks, by who wrote it: (task, sender, region), ascending. Every tuple was written by one task."""
    written = [(area.task, region) for area in scheme.areas for region in written_by(area)]
    lacked, found = ([region for _, region in regions] for regions in (lacking, written))
    one, other = meetings(lacked, found)
    task, sender = np.array([task for task, _ in lacking], np.int64)[one], np.array([task for task, _ in written], np.int64)[other]
    order = np.lexsort((sender, task))
    parts = common_parts(lacked, found, one[order], other[order])
    # Between one sender and one receiver, what can be one region becomes one.
    between = task[order] * scheme.tasks + sender[order]
    begins = np.flatnonzero(np.diff(between, prepend=-1)).tolist()
    sent: list[tuple[int, int, Region]] = []
    for begin, end in pairwise([*begins, len(parts)]):
        receiver, giver = divmod(int(between[begin]), scheme.tasks)
        if end == begin + 1:
            sent.append((receiver, giver, parts[begin]))
        else:
            sent += [(receiver, giver, region) for region in merged(parts[begin:end])]
    return sent
