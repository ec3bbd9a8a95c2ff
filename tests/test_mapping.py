"""Who goes on as what (Alg. 4), and what workers hold: against enumeration of permutations and of single tuples."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import permutations

import numpy as np
import pytest

from streamjoin.elastic import mapping
from streamjoin.elastic.ending import map_tasks
from streamjoin.elastic.mapping import Overlap, assign, greedy, overlaps, relabelled, shared
from streamjoin.elastic.plan import Plan, PlanError
from streamjoin.language.predicate import INT64_MAX, INT64_MIN
from streamjoin.language.sides import LEFT, RIGHT
from streamjoin.scheme.models import INTERCHANGEABLE, plan_for_tasks
from streamjoin.scheme.region import Region, difference, held, intersection, volume, written_by
from streamjoin.scheme.statistics import Statistics
from streamjoin.scheme.tiling import UNITS, Area, KeyRange, Scheme, UnitRange
from test_scheme import ALL, random_case, unknown


def grid(rows: int, columns: int) -> Scheme:
    """An even grid over all keys."""
    cuts = [[UNITS * number // count for number in range(count + 1)] for count in (rows, columns)]
    areas = tuple(
        Area(
            row * columns + column, 0, (KeyRange(), KeyRange()),
            (UnitRange(*cuts[0][row : row + 2]), UnitRange(*cuts[1][column : column + 2])),
            (KeyRange() if column == 0 else None, KeyRange() if row == 0 else None),
        )
        for row in range(rows)
        for column in range(columns)
    )  # fmt: skip
    return Scheme("square", rows * columns, areas, f"<{rows},{columns},0>")


def random_pair(rng: np.random.Generator, most: int = 9) -> tuple[Scheme, Scheme, Statistics, object]:
    """Two plans for one join, perhaps from statistics that moved."""
    statistics, main = random_case(rng)
    before, after = (plan_for_tasks(str(rng.choice(INTERCHANGEABLE)), statistics, main, int(rng.integers(1, most + 1))) for _ in range(2))
    return before, after, statistics, main


def kept_by(overlap: np.ndarray, keep: tuple[int | None, ...]) -> float:
    return sum(overlap[worker, task] for task, worker in enumerate(keep) if worker is not None)


def test_the_exact_map_equals_the_best_of_all_permutations() -> None:
    rng = np.random.default_rng(50)
    for case in range(60):
        old, new = rng.integers(1, 7, 2)
        overlap = rng.integers(0, 5, (old, new)).astype(float) if case % 2 else rng.random((old, new))
        wide = overlap if old <= new else overlap.T
        orders = permutations(range(wide.shape[1]), wide.shape[0])
        best = max(sum(wide[row, column] for row, column in enumerate(order)) for order in orders)
        for keep in (assign(overlap), greedy(overlap)):
            going_on = [worker for worker in keep if worker is not None]
            assert len(going_on) == len(set(going_on)) == min(old, new), f"seed 50, case {case}, {overlap}"
        assert kept_by(overlap, assign(overlap)) == pytest.approx(best), f"seed 50, case {case}, {overlap}"
        assert kept_by(overlap, greedy(overlap)) <= best + 1e-9


def test_greedy_keeps_96_percent_of_the_best_from_4_by_3_to_3_by_4() -> None:
    overlap = overlaps(grid(4, 3), grid(3, 4), unknown())
    assert kept_by(overlap, greedy(overlap)) / kept_by(overlap, assign(overlap)) == pytest.approx(0.964, abs=0.0005)


def test_greedy_takes_the_largest_overlap_first_and_the_lowest_numbers_of_equal_ones() -> None:
    assert greedy(np.array([[3.0, 2.0], [2.0, 0.0]])) == (0, 1)
    assert assign(np.array([[3.0, 2.0], [2.0, 0.0]])) == (1, 0)
    assert greedy(np.zeros((2, 3))) == assign(np.zeros((2, 3))) == (0, 1, None)


def test_fig_8a_moves_three_tenths() -> None:
    statistics = unknown(1000, 0)
    overlap = overlaps(grid(4, 1), grid(5, 1), statistics)
    for choose in (assign, greedy):
        assert 1000 - kept_by(overlap, choose(overlap)) == pytest.approx(300, abs=1e-3)


def test_fig_9_pairs_the_outer_columns_and_inserts_the_middle_one() -> None:
    scheme, keep = map_tasks(grid(2, 2), grid(2, 3), unknown())
    assert keep == (0, 1, 2, 3, None, None)
    columns = {area.task: area.units[RIGHT] for area in scheme.areas}
    third = UNITS // 3
    assert [columns[worker].low for worker in range(4)] == [0, 2 * third, 0, 2 * third]
    assert {columns[4].low, columns[5].low} == {third}


def test_overlaps_are_those_of_the_regions() -> None:
    rng = np.random.default_rng(51)
    for case in range(25):
        before, after, statistics, _ = random_pair(rng)
        overlap = overlaps(before, after, statistics)
        expected = [[volume(intersection(one, other), statistics) for other in held(after)] for one in held(before)]
        np.testing.assert_allclose(overlap, expected, rtol=1e-6, atol=1e-6, err_msg=f"seed 51, case {case}, {before}, {after}")


def test_the_map_by_what_is_shared_keeps_as_much_as_the_best_of_all_pairs() -> None:
    rng = np.random.default_rng(58)
    for case in range(60):
        shape = tuple(rng.integers(1, 40, 2).tolist())
        overlap = rng.random(shape) * (rng.random(shape) < rng.choice([0.0, 0.05, 0.3, 1.0]))
        old, new = np.nonzero(overlap)
        keep = assign(Overlap((shape[0], shape[1]), old, new, overlap[old, new]))
        going_on = [worker for worker in keep if worker is not None]
        assert len(going_on) == len(set(going_on)) == min(shape), f"seed 58, case {case}"
        assert kept_by(overlap, keep) == pytest.approx(kept_by(overlap, assign(overlap))), f"seed 58, case {case}"
        same = Overlap((9, 9), np.arange(9).repeat(9), np.tile(np.arange(9), 9), np.ones(81))
        assert assign(same) == tuple(range(9))


def test_of_very_many_pairs_the_best_of_each_task_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where ten thousand tasks share something with two thousand others each, and nobody lists the pairs."""
    rng = np.random.default_rng(59)
    for case in range(25):
        before, after, statistics, _ = random_pair(rng)
        every = overlaps(before, after, statistics)
        message = f"seed 59, case {case}, {before}, {after}"
        with monkeypatch.context() as many:
            many.setattr(mapping, "MOST_PAIRS", 0)
            many.setattr(mapping, "KEPT_PAIRS", 2)
            best = shared(before, after, statistics)
        assert (best.factors is not None) == bool(every.any()), message
        found = dict(zip(zip(best.old.tolist(), best.new.tolist(), strict=True), best.tuples.tolist(), strict=True))
        assert list(found) == sorted(found), message
        for (old, new), tuples in found.items():
            assert tuples == pytest.approx(every[old, new]), message
        for lines in (every, every.T):
            for number, line in enumerate(lines):
                chosen = sorted(pair[1] if lines is every else pair[0] for pair in found if pair[lines is not every] == number)
                least = np.sort(line)[-2:]
                assert sum(line[chosen] > 0) >= sum(least > 0), message
                assert np.sort(line[chosen])[-2:].sum() == pytest.approx(least.sum()), message
        assert best.by_number() == pytest.approx(every.diagonal().sum()), message
        keep = greedy(every)
        assert mapping.kept_by(best, keep) == pytest.approx(kept_by(every, keep)), message


def test_an_unchanged_scheme_keeps_every_worker_in_its_place() -> None:
    rng = np.random.default_rng(52)
    for case in range(25):
        before, _, statistics, _ = random_pair(rng)
        unchanged = tuple(range(before.tasks))
        assert map_tasks(before, before, statistics) == (before, unchanged), f"seed 52, case {case}"
        assert relabelled(before, greedy(overlaps(before, before, statistics))) == (before, unchanged), f"seed 52, case {case}"


def test_workers_keep_their_numbers_where_those_exist() -> None:
    rng = np.random.default_rng(53)
    for case in range(40):
        before, after, statistics, main = random_pair(rng)
        scheme, keep = map_tasks(before, after, statistics)
        scheme.check(main)
        assert [replace(area, task=0) for area in scheme.areas] == [replace(area, task=0) for area in after.areas]
        assert sum(worker is not None for worker in keep) == min(before.tasks, after.tasks)
        for task, worker in enumerate(keep):
            assert worker is None or worker == task or worker >= after.tasks, f"seed 53, case {case}, {keep}"
        assert map_tasks(before, after, statistics) == (scheme, keep)
        overlap = overlaps(before, scheme, statistics)
        assert kept_by(overlap, keep) == pytest.approx(kept_by(overlap, assign(overlap)), rel=1e-6, abs=1e-6)


def contains(regions: tuple[Region, ...], side: int, key: int, unit: int) -> int:
    """How many of the regions hold this tuple."""
    return sum(
        region.side == side
        and (region.keys.low is None or key >= region.keys.low)
        and (region.keys.high is None or key < region.keys.high)
        and region.units.low <= unit < region.units.high
        for region in regions
    )


def random_regions(rng: np.random.Generator) -> tuple[Region, ...]:
    found: tuple[Region, ...] = ()
    for _ in range(rng.integers(0, 6)):
        low, high = sorted(rng.choice(12, 2, replace=False).tolist())
        keys = KeyRange(None if rng.random() < 0.3 else low, None if rng.random() < 0.3 else high)
        begin, end = sorted(rng.choice(9, 2, replace=False).tolist())
        region = Region(int(rng.integers(2)), keys, UnitRange(begin, end))
        found += difference((region,), found)
    return found


def test_region_arithmetic_equals_that_of_sets_of_tuples() -> None:
    rng = np.random.default_rng(54)
    tuples = [(side, key, unit) for side in (0, 1) for key in (-5, *range(12), 50) for unit in range(9)]
    for case in range(120):
        one, other = random_regions(rng), random_regions(rng)
        for name, found, wanted in (
            ("difference", difference(one, other), lambda a, b: a and not b),
            ("intersection", intersection(one, other), lambda a, b: a and b),
        ):
            for at in tuples:
                expected = int(wanted(bool(contains(one, *at)), bool(contains(other, *at))))
                assert contains(found, *at) == expected, f"seed 54, case {case}, {name} of {one} and {other} at {at}"


def test_what_a_task_holds_is_disjoint_and_what_all_write_is_everything_once() -> None:
    rng = np.random.default_rng(55)
    for case in range(25):
        scheme, _, statistics, _ = random_pair(rng)
        written = [region for area in scheme.areas for region in written_by(area)]
        total = sum(side.tuples for side in statistics.sides)
        assert volume(written, statistics) == pytest.approx(total, rel=1e-6), f"seed 55, case {case}"
        for mine in held(scheme):
            for index, region in enumerate(mine):
                assert not intersection((region,), mine[index + 1 :]), f"seed 55, case {case}, {mine}"


def test_regions_survive_json() -> None:
    for keys in (KeyRange(), KeyRange(INT64_MIN, INT64_MAX), KeyRange(0.5, None)):
        region = Region(LEFT, keys, UnitRange(3, UNITS))
        assert Region.from_json(json.loads(json.dumps(region.to_json()))) == region


def test_plans_survive_json() -> None:
    scheme, keep = map_tasks(grid(2, 2), grid(3, 1), unknown())
    plan = Plan(7, scheme, keep)
    assert Plan.from_json(json.loads(json.dumps(plan.to_json()))) == plan
    assert len(plan.leaving(grid(2, 2))) == 1
    assert Plan.initial(scheme).keep == (None, None, None)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (None, "plan: None must be an object"),
        ({"generation": 1, "keep": []}, "plan.scheme: is missing"),
        ({"generation": 1, "keep": [], "scheme": 3}, "plan.scheme: this is not a scheme"),
        ({"generation": 1, "keep": [], "scheme": grid(1, 1).to_json(), "next": 2}, "plan.next: is unknown"),
        ({"generation": 1, "keep": {}, "scheme": grid(1, 1).to_json()}, "plan.keep: {} must be a list"),
        ({"generation": 1, "keep": [], "scheme": grid(1, 1).to_json()}, "plan.keep: 0 entries must be 1"),
        ({"generation": 1, "keep": [True], "scheme": grid(1, 1).to_json()}, r"plan.keep\[0\]: True must be a task"),
        ({"generation": 1, "keep": [-1], "scheme": grid(1, 1).to_json()}, r"plan.keep\[0\]: -1 must be a task"),
        ({"generation": 1, "keep": [3, 3], "scheme": grid(2, 1).to_json()}, r"plan.keep\[1\]: worker 3 already goes on as task 0"),
        ({"generation": -1, "keep": [None], "scheme": grid(1, 1).to_json()}, "plan.generation: -1 must be an integer"),
        ({"generation": "1", "keep": [None], "scheme": grid(1, 1).to_json()}, "plan.generation: '1' must be an integer"),
    ],
)
def test_what_is_not_a_plan_is_refused_by_field(value: object, message: str) -> None:
    with pytest.raises(PlanError, match=message):
        Plan.from_json(value)


def test_a_unit_range_is_what_its_parts_are() -> None:
    span = UnitRange.of([(8, 9), (0, 3), (3, 4), (5, 5)])
    assert span == UnitRange(0, 9, ((4, 8),))
    assert (span.size, span.parts) == (5, ((0, 4), (8, 9)))
    assert np.flatnonzero(span.contains(np.arange(12, dtype=np.uint32))).tolist() == [0, 1, 2, 3, 8]
    assert UnitRange(1, UNITS, ((2, UNITS - 1),)).contains(np.array([0, 1, 2, UNITS - 1], np.uint32)).tolist() == [False, True, False, True]


def test_a_thousand_tasks_are_mapped_in_seconds() -> None:
    scheme, keep = map_tasks(grid(32, 31), grid(31, 32), unknown())
    assert sorted(worker for worker in keep if worker is not None) == list(range(32 * 31))
    scheme.check(ALL)
