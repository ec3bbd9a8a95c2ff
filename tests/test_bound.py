"""The bound below which no change of plans can move: held against every other plan that could have been made, and able to be missed."""

from __future__ import annotations

import itertools
from functools import reduce

import numpy as np
import pytest

from cases import how_many
from streamjoin.elastic.bound import least_moved, pairs_that_match
from streamjoin.elastic.ending import map_tasks
from streamjoin.elastic.forecast import AnalyticForecast
from streamjoin.elastic.migration import plan_migration
from streamjoin.elastic.plan import Plan
from streamjoin.elastic.planner import follow
from streamjoin.language.predicate import MainPredicate
from streamjoin.language.sides import LEFT, RIGHT
from streamjoin.scheme.dichotomy import TooManyTasksError
from streamjoin.scheme.models import INTERCHANGEABLE, Options, plan_for_tasks
from streamjoin.scheme.statistics import Statistics, loads
from streamjoin.scheme.tiling import Scheme
from test_mapping import grid
from test_scheme import ALL, EQUAL, random_case, ranged, sampled, unknown

ONE_SIDED = ("biclique", "broadcast")


def test_a_plan_that_is_not_aligned_moves_more_than_the_bound_and_an_aligned_one_just_that() -> None:
    """On an equality a fifth worker can be given a fifth of each other's tuples, while five even cuts move half as much again."""
    statistics = unknown(600, 400)
    before, after = (plan_for_tasks("adsp", statistics, EQUAL, tasks) for tasks in (4, 5))
    even = plan_migration(before, *map_tasks(before, after, statistics), statistics, EQUAL)
    assert even.lower_bound_tuples == pytest.approx(200, rel=0.01)
    assert even.moved_tuples == pytest.approx(300, rel=0.01)
    aligned = follow(Plan.initial(before), after, statistics, EQUAL).migration
    assert aligned.lower_bound_tuples <= aligned.moved_tuples == pytest.approx(aligned.lower_bound_tuples, rel=0.02)


def test_a_worse_map_moves_more_than_the_bound() -> None:
    statistics, before = unknown(600, 600), grid(3, 3)
    good, bad = (plan_migration(before, before, keep, statistics, ALL) for keep in (tuple(range(9)), (4, 5, 3, 7, 8, 6, 1, 2, 0)))
    assert good.moved_tuples == good.lower_bound_tuples == bad.lower_bound_tuples == 0
    assert bad.moved_tuples > 1000


def least_by_trying_all(before: Scheme, lefts: int, rights: int, tasks: int, most: int) -> int:
    """The fewest tuples that move to any sets of tuples, at most so many a task, in which each pair meets. By trying all of them."""
    tuples = lefts + rights

    def as_bits(task: int) -> int:
        (area,) = (area for area in before.areas if area.task == task)
        units = [(number + 0.5) / count * 2**32 for count in (lefts, rights) for number in range(count)]
        ranges = [area.units[LEFT]] * lefts + [area.units[RIGHT]] * rights
        return sum(1 << bit for bit, (unit, inside) in enumerate(zip(units, ranges, strict=True)) if inside.low <= unit < inside.high)

    def pairs_of(held: int) -> int:
        return sum(
            1 << left * rights + right for left in range(lefts) for right in range(rights) if held >> left & 1 and held >> lefts + right & 1
        )

    held_before = [as_bits(task) for task in range(before.tasks)]
    sets = {held: pairs_of(held) for held in range(1 << tuples) if held.bit_count() <= most}
    best = tasks * tuples
    for chosen in itertools.combinations_with_replacement(sets, tasks):
        if reduce(lambda found, held: found | sets[held], chosen, 0) != (1 << lefts * rights) - 1:
            continue
        for going_on in itertools.permutations([*held_before, *[0] * tasks], tasks):
            best = min(best, sum((held & ~had).bit_count() for held, had in zip(chosen, going_on, strict=True)))
    return best


@pytest.mark.parametrize(
    ("lefts", "rights", "before", "after"),
    [
        (2, 2, (1, 1), (2, 1)),
        (2, 2, (2, 1), (2, 2)),
        (2, 2, (2, 2), (2, 1)),
        (3, 2, (1, 1), (3, 1)),
        (3, 2, (3, 1), (1, 2)),
        (2, 3, (1, 3), (1, 1)),
    ],
)
def test_no_choice_of_sets_of_tuples_moves_less(lefts: int, rights: int, before: tuple[int, int], after: tuple[int, int]) -> None:
    old, new = grid(*before), grid(*after)
    statistics = unknown(lefts, rights)
    most = round(float(loads(new, statistics).max()))
    least = least_by_trying_all(old, lefts, rights, new.tasks, most)
    bound = least_moved(old, new, statistics, ALL)
    assert bound <= least + 1e-6
    assert bound >= 0.5 * least


def test_no_grid_of_as_many_tasks_and_no_larger_load_moves_less() -> None:
    rng = np.random.default_rng(71)
    shapes = [(rows, columns) for rows in range(1, 6) for columns in range(1, 6)]
    tight = 0
    for _ in range(25):
        statistics = unknown(*rng.integers(100, 1000, 2).tolist())
        old, new = grid(*shapes[rng.integers(len(shapes))]), grid(*shapes[rng.integers(len(shapes))])
        bound = least_moved(old, new, statistics, ALL)
        for shape in shapes:
            other = grid(*shape)
            if other.tasks == new.tasks and loads(other, statistics).max() <= loads(new, statistics).max() * (1 + 1e-9):
                moved = plan_migration(old, *map_tasks(old, other, statistics), statistics, ALL).moved_tuples
                aligned = follow(Plan.initial(old), other, statistics, ALL).migration.moved_tuples
                assert bound <= min(moved, aligned) * (1 + 1e-6) + 1e-6, f"{old.summary} to {other.summary}, {statistics}"
                tight += bound > 0.75 * aligned > 0
    assert tight > 6


def test_no_plan_of_another_model_with_as_many_tasks_and_no_larger_load_moves_less() -> None:
    rng = np.random.default_rng(72)
    compared = 0
    for case in range(how_many(40, of=2)):
        statistics, main = random_case(rng)
        old = scheme_of(rng, statistics, main, int(rng.integers(1, 9)))
        tasks = int(rng.integers(1, 9))
        new = [scheme for _ in range(4) if (scheme := scheme_of(rng, statistics, main, tasks)).tasks == tasks]
        for one, other in itertools.product(new, repeat=2):
            fits = loads(other, statistics).max() <= loads(one, statistics).max() * (1 + 1e-9)
            if fits and (one.model in ONE_SIDED or other.model not in ONE_SIDED):
                bound = least_moved(old, one, statistics, main)
                moved = follow(Plan.initial(old), other, statistics, main).migration.moved_tuples
                assert bound <= moved * (1 + 1e-6) + 1e-6, f"seed 72, case {case}: {old.summary} to {other.summary} ({one.summary}), {main}"
                compared += bound > 0
    assert compared > 50


def scheme_of(rng: np.random.Generator, statistics: Statistics, main: MainPredicate, tasks: int) -> Scheme:
    try:
        return plan_for_tasks(str(rng.choice(INTERCHANGEABLE)), statistics, main, tasks, options=Options(groups=2))
    except (TooManyTasksError, ValueError):
        return plan_for_tasks("adsp", statistics, main, tasks)


def test_an_analytic_forecast_moves_no_less_than_its_bound_and_more_where_tuples_are_replicated() -> None:
    rng, more = np.random.default_rng(74), 0
    for _ in range(200):
        left, right, share = *rng.uniform(0, 1000, 2).tolist(), float(rng.choice([0.0, 0.3, 1.0]))
        before, after = rng.integers(1, 12, 2).tolist()
        prospect = AnalyticForecast(left_tuples=left, right_tuples=right, capacity_tuples=100.0, workers=before, share=share).at(after)
        assert prospect is not None
        assert 0 <= prospect.lower_bound_tuples <= prospect.moved_tuples
        more += prospect.moved_tuples > prospect.lower_bound_tuples * 1.01
    assert more > 50


def test_the_pairs_of_a_band_are_counted_from_below() -> None:
    rng = np.random.default_rng(73)
    keys = [np.sort(rng.integers(0, 1000, 3000)) for _ in range(2)]
    statistics = sampled(*keys, 200)
    for low, high, expected in ((-1000, 1000, 1.0), (-50, 50, 0.9), (0, 0, 0.0), (5, None, 0.9), (None, -300, 0.9), (7, 3, 0.0)):
        least, most = (10**6 * sign if bound is None else bound for bound, sign in ((low, -1), (high, 1)))
        admitted = sum(int(np.count_nonzero((keys[1] - key >= least) & (keys[1] - key <= most))) for key in keys[0].tolist())
        found = pairs_that_match(statistics, ranged(low, high))
        assert expected * admitted - 0.02 * 3000**2 * (expected < 1) <= found * 1.02
        assert found <= admitted * 1.01
    assert pairs_that_match(statistics, ALL) == 3000**2
    assert pairs_that_match(unknown(30, 40), ranged(0, 5)) == 0
