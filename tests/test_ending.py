"""Which workers end when there are to be fewer: by tables; and that it moves no more than it must."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pytest

from streamjoin.elastic.ending import ANYWHERE, Placement, map_tasks, mapped, who_end
from streamjoin.elastic.mapping import assign, kept_by, overlaps, shared
from test_mapping import grid, random_pair
from test_scheme import unknown

EVEN = dict.fromkeys(range(8), 1.0)


def at(executors: str, going: Iterable[int] = (), leaving: Iterable[int] = ()) -> Placement:
    """Workers on executors of one letter each."""
    return Placement(tuple(executors), frozenset(going), frozenset(leaving))


@pytest.mark.parametrize(
    ("placement", "count", "kept", "ended"),
    [
        pytest.param(at("AABBCC"), 2, EVEN | {2: 0.5}, {2, 3}, id="the executor whose workers keep least"),
        pytest.param(at("AABBCC"), 3, EVEN | {2: 0.5}, {2, 3}, id="of the rest the map decides"),
        pytest.param(at("AABBCC"), 4, EVEN | {2: 0.5, 4: 0.6}, {2, 3, 4, 5}, id="two executors"),
        pytest.param(at("AABBCC"), 1, EVEN, set(), id="none becomes free"),
        pytest.param(at("AAABBC"), 2, {0: 0.1, 1: 0.1, 2: 0.1, 3: 9.0, 4: 9.0, 5: 9.0}, {5}, id="first the one with fewest workers"),
        pytest.param(at("ABCD"), 2, EVEN, set(), id="each has its own: the map decides"),
        pytest.param(at("ABCD", going=[1, 3]), 1, EVEN | {3: 0.5}, {3}, id="of those that go, the one that keeps less"),
        pytest.param(at("ABCD", going=[1]), 2, EVEN, {1}, id="who goes soon, and one more by the map"),
        pytest.param(at("AABBCC", going=[4, 5]), 1, EVEN | {0: 0.0, 5: 0.9}, {5}, id="of an executor that goes"),
        pytest.param(at("AABBCC", going=[4, 5]), 2, EVEN | {0: 0.0, 1: 0.0}, {4, 5}, id="an executor that goes, before a cheaper one"),
        pytest.param(at("AABBCC", going=[4, 5]), 4, EVEN | {2: 0.5}, {2, 3, 4, 5}, id="and another one"),
        pytest.param(at("AABBCC", going=[4, 5]), 0, EVEN, set(), id="nobody is to end"),
        pytest.param(at("AABBCC", going=[4, 5]), -2, EVEN, set(), id="there are to be more"),
        pytest.param(at("AABBCC", leaving=[0]), 2, EVEN, {0, 1}, id="who must end, and the rest of that executor"),
    ],
)
def test_workers_end_by_what_becomes_free(placement: Placement, count: int, kept: dict[int, float], ended: set[int]) -> None:
    assert who_end(kept, count, placement) == ended


def test_the_others_go_on_so_that_least_moves() -> None:
    rng = np.random.default_rng(71)
    for case in range(60):
        before, after, statistics, _ = random_pair(rng)
        executors = "".join(sorted(rng.choice(list("ABC"), before.tasks)))
        going = [worker for worker in range(before.tasks) if executors[worker] == "B" and case % 2]
        overlap, dense = shared(before, after, statistics), overlaps(before, after, statistics)
        keep, best = mapped(overlap, at(executors, going)), assign(overlap)
        count, told = before.tasks - after.tasks, f"seed 71, case {case}"
        kept = {worker: float(dense[worker, task]) for task, worker in enumerate(best) if worker is not None}
        ended = who_end(kept, count, at(executors, going))
        assert ended.isdisjoint(keep), told
        assert len(ended) <= max(0, count), told
        assert sum(worker is not None for worker in keep) == min(before.tasks, after.tasks), f"{told}: all others that can go on"
        assert kept_by(dense, keep) == pytest.approx(kept_by(dense, assign(dense, ended))), told
        assert mapped(overlap, ANYWHERE) == best, told


@pytest.mark.parametrize("going", [(0, 1), (4, 5)])
def test_a_scheme_of_somebody_else_goes_to_the_workers_that_stay(going: tuple[int, int]) -> None:
    _, keep = map_tasks(grid(3, 2), grid(2, 2), unknown(), at("AABBCC", going=going))
    assert set(keep) == set(range(6)) - set(going)
