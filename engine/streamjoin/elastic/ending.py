"""Which workers end when a plan has fewer: by what becomes free.

First those that go soon in any case: on executors that were told to go, or on nodes that take nothing new. Then those with whom whole
executors become free, which cost as much with one worker as with many. Then those without whom least moves.

Always holds: pure, and the same arguments give the same workers; never more than the new plan is smaller, but for those that must end.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from streamjoin.elastic.mapping import Array, Keep, Overlap, assign, chain_keep, kept_by, relabelled, shared
from streamjoin.scheme.models import HANDSHAKE
from streamjoin.scheme.statistics import Statistics
from streamjoin.scheme.tiling import Scheme


@dataclass(frozen=True, slots=True)
class Placement:
    """Where the workers of the running plan are; they are its tasks."""

    executors: tuple[str, ...] = ()
    """By worker; empty: not known."""
    going: frozenset[int] = frozenset()
    """Workers that go soon in any case: better these than others."""
    leaving: frozenset[int] = frozenset()
    """Workers that must not go on."""


ANYWHERE = Placement()


def mapped(overlap: Array | Overlap, placement: Placement) -> Keep:
    """The map (:func:`streamjoin.elastic.mapping.assign`) by which those end that are better gone. O(two maps)."""
    if not placement.going and len(set(placement.executors)) == len(placement.executors):
        return assign(overlap, placement.leaving)
    best = assign(overlap, placement.leaving)
    ended = who_end(_kept(overlap, best), overlap.shape[0] - overlap.shape[1], placement)
    return best if ended.isdisjoint(best) else assign(overlap, ended)


def map_tasks(before: Scheme, after: Scheme, statistics: Statistics, placement: Placement = ANYWHERE) -> tuple[Scheme, Keep]:
    """``after`` with its tasks relabelled, and who goes on as each. A thousand tasks take some hundredths of a second."""
    if HANDSHAKE in (before.model, after.model):
        return after, chain_keep(before.tasks, after.tasks)
    return relabelled(after, mapped(shared(before, after, statistics), placement))


def who_end(kept: Mapping[int, float], count: int, placement: Placement) -> frozenset[int]:
    """Of ``count`` workers that are to end, those that do so whatever moves; the others are left to the map.

    ``kept``: the tuples that each worker keeps by the map that moves least; it has not those that end by it, which keep nothing."""
    ended = set(placement.leaving)
    for is_going in (True, False):
        found = [workers for workers in _by_executor(placement) if workers.isdisjoint(placement.going) is not is_going]
        found = [workers - ended for workers in found]
        if not is_going and all(len(workers) <= 1 for workers in found):
            break  # each is an executor of its own: the map knows best
        for workers in sorted(filter(None, found), key=lambda workers: (len(workers), _sum(kept, workers), min(workers))):
            if len(workers) <= count - len(ended):
                ended |= workers
        if is_going:
            rest = sorted(placement.going - ended, key=lambda worker: (kept.get(worker, 0.0), worker))
            ended |= set(rest[: max(0, count - len(ended))])
    return frozenset(ended)


def _by_executor(placement: Placement) -> Iterable[frozenset[int]]:
    found: dict[tuple[str, bool], set[int]] = {}
    for worker, executor in enumerate(placement.executors):
        found.setdefault((executor, worker in placement.going), set()).add(worker)
    return map(frozenset, found.values())


def _sum(kept: Mapping[int, float], workers: Iterable[int]) -> float:
    return sum(kept.get(worker, 0.0) for worker in sorted(workers))


def _kept(overlap: Array | Overlap, keep: Keep) -> dict[int, float]:
    """By worker that goes on, the tuples that it keeps."""
    found = overlap if isinstance(overlap, Overlap) else None
    if found is None or found.factors is not None:
        return {worker: kept_by(overlap, _alone(keep, task)) for task, worker in enumerate(keep) if worker is not None}
    going_on = np.array([-1 if worker is None else worker for worker in keep])
    stays = going_on[found.new] == found.old
    return dict(zip(found.old[stays].tolist(), found.tuples[stays].tolist(), strict=True))


def _alone(keep: Keep, task: int) -> Keep:
    return tuple(worker if number == task else None for number, worker in enumerate(keep))
