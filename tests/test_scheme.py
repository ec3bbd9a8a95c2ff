"""Schemes are tilings (Def. 3): what ``check`` proves, what it catches, and that every planner's schemes pass, whatever the statistics."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from cases import how_many
from streamjoin.language.predicate import INT64_MAX, INT64_MIN, Encoding, KeyExpression, MainKind, MainPredicate
from streamjoin.language.sides import LEFT, RIGHT, SIDES
from streamjoin.scheme.models import MODELS, Options, plan_for_capacity, plan_for_tasks
from streamjoin.scheme.statistics import Histogram, SideStatistics, Statistics, loads
from streamjoin.scheme.tiling import UNITS, Area, KeyRange, Scheme, SchemeError, UnitRange


def key(encoding: Encoding) -> KeyExpression:
    return KeyExpression(("k",), (), encoding)


def ranged(low: float | None, high: float | None, encoding: Encoding = Encoding.INTEGER, slack: float = 0.0) -> MainPredicate:
    return MainPredicate(MainKind.RANGE, (key(encoding), key(encoding)), low, high, slack=slack)


ALL = MainPredicate(MainKind.ALL)
NOT_EQUAL = MainPredicate(MainKind.NOT_EQUAL, (key(Encoding.INTEGER), key(Encoding.INTEGER)))
EQUAL = ranged(0, 0, Encoding.HASH)


def unknown(left: float = 1000, right: float = 1000) -> Statistics:
    return Statistics((SideStatistics(left), SideStatistics(right)))


def sampled(left: np.ndarray, right: np.ndarray, buckets: int = 100) -> Statistics:
    sides = (SideStatistics(len(keys), Histogram.from_sample(keys, buckets)) for keys in (left, right))
    return Statistics(tuple(sides))


def random_keys(rng: np.random.Generator, encoding: Encoding) -> np.ndarray:
    """Of any spread: even, in clusters, few and frequent, or at the ends of what can be encoded."""
    count = int(rng.integers(1, 400))
    match rng.integers(5):
        case 0:
            keys = rng.normal(0, 1000, count)
        case 1:
            keys = rng.choice(rng.normal(0, 10_000, 5), count) + rng.normal(0, 3, count)
        case 2:
            keys = rng.choice(rng.normal(0, 50, 6), count, p=[0.7, 0.1, 0.1, 0.05, 0.03, 0.02])
        case 3:
            keys = rng.exponential(1000, count)
        case _ if encoding is Encoding.FLOAT:
            keys = rng.choice([0.0, -1e308, 1e308, np.inf, -np.inf, 5e-324, 1 + 2**-52], count)
        case _:
            return rng.choice(np.array([INT64_MIN, INT64_MIN + 1, -1, 0, 1, INT64_MAX - 1, INT64_MAX]), count)
    if encoding is Encoding.FLOAT:
        return keys
    if encoding is Encoding.HASH:
        return rng.integers(INT64_MIN, INT64_MAX, count, endpoint=True)
    return np.round(keys).astype(np.int64)


def random_case(rng: np.random.Generator) -> tuple[Statistics, MainPredicate]:
    encoding = [Encoding.INTEGER, Encoding.FLOAT, Encoding.PREFIX, Encoding.HASH][rng.integers(4)]
    unit = float if encoding is Encoding.FLOAT else int
    low, high = sorted(unit(number) for number in rng.normal(0, 10 ** rng.uniform(0, 4), 2))
    kinds = [
        ranged(low, high, encoding),
        ranged(None, high, encoding),
        ranged(low, None, encoding),
        ranged(0, 0, encoding),
        ranged(unit(-5), unit(5), encoding, slack=2.0**-50 if encoding is Encoding.FLOAT else 0.0),
        ranged(unit(5), unit(-5), encoding),
        MainPredicate(MainKind.NOT_EQUAL, (key(encoding), key(encoding))),
        ALL,
    ]
    main = EQUAL if encoding is Encoding.HASH else kinds[rng.integers(len(kinds))]
    sides = []
    for _ in range(2):
        tuples = float(rng.choice([0, 1, 1000, 1e6]))
        histogram = Histogram.from_sample(random_keys(rng, encoding), int(rng.choice([1, 4, 30, 200])))
        sides.append(SideStatistics(tuples, None if rng.random() < 0.15 or main is ALL else histogram))
    return Statistics(tuple(sides)), main


def test_every_plan_is_a_tiling_whatever_the_statistics() -> None:
    rng = np.random.default_rng(30)
    for case in range(120):
        statistics, main = random_case(rng)
        tasks = int(rng.choice([1, 2, 3, 7, 12]))
        for model in MODELS:
            message = f"seed 30, case {case}, {model}, {tasks} tasks, {main}, {statistics}"
            scheme = plan_for_tasks(model, statistics, main, tasks)
            try:
                scheme.check(main)
            except SchemeError as error:
                pytest.fail(f"{message}: {error}")
            assert 1 <= scheme.tasks <= tasks, message
            assert Scheme.from_json(json.loads(json.dumps(scheme.to_json()))) == scheme, message


def test_no_task_exceeds_the_capacity() -> None:
    rng = np.random.default_rng(31)
    for case in range(60):
        statistics, main = random_case(rng)
        total = sum(side.tuples for side in statistics.sides)
        capacity = max(1.0, total / float(rng.uniform(0.5, 8)))
        for model in ("adsp", "square", "dynamic", "biclique", "broadcast", "handshake"):
            message = f"seed 31, case {case}, {model}, {capacity=}, {main}, {statistics}"
            scheme = plan_for_capacity(model, statistics, main, capacity, options=Options(groups=1 + case % 4))
            try:
                scheme.check(main)
            except SchemeError as error:
                pytest.fail(f"{message}: {error}")
            assert max(loads(scheme, statistics)) <= capacity * (1 + 1e-6), message


def test_adsp_never_plans_a_larger_load_than_the_other_models() -> None:
    rng = np.random.default_rng(32)
    for case in range(40):
        statistics, main = random_case(rng)
        for tasks in (2, 5, 9):
            matrices = [model for model in MODELS if model not in ("readj", "biclique", "broadcast", "handshake")]
            largest = {model: max(loads(plan_for_tasks(model, statistics, main, tasks), statistics)) for model in matrices}
            assert largest["adsp"] <= min(largest.values()) * 1.005 + 1e-9, f"seed 32, case {case}, {tasks} tasks, {main}, {largest}"


@pytest.mark.parametrize("model", MODELS)
def test_one_task_holds_everything(model: str) -> None:
    scheme = plan_for_tasks(model, sampled(np.arange(100), np.arange(100)), ranged(-2, 2), 1)
    if model == "handshake":  # in a chain of one, too, either stream comes in by itself
        assert [area.holds for area in scheme.areas] == [(True, False), (False, True)]
        return
    assert scheme.areas == (Area(0, 0, (KeyRange(), KeyRange()), (UnitRange(), UnitRange()), (KeyRange(), KeyRange())),)


@pytest.mark.parametrize("model", ["adsp", "hash"])
@pytest.mark.parametrize("tasks", [1, 2, 3, 7, 64])
def test_hashed_keys_of_unknown_spread_are_cut_evenly(model: str, tasks: int) -> None:
    statistics = unknown(3000, 1000)
    scheme = plan_for_tasks(model, statistics, EQUAL, tasks)
    scheme.check(EQUAL)
    assert scheme.tasks == tasks
    lows = [area.keys[LEFT].low for area in scheme.areas if area.keys[LEFT].low is not None]
    assert lows == [area.keys[RIGHT].low for area in scheme.areas if area.keys[RIGHT].low is not None]
    widths = [high - low for low, high in pairwise([INT64_MIN, *lows, INT64_MAX + 1])]
    assert max(widths) - min(widths) <= max(widths) * 1e-9
    assert plan_for_capacity(model, statistics, EQUAL, 4000 / tasks).tasks == tasks


@pytest.mark.parametrize("main", [ALL, NOT_EQUAL, ranged(-5, 5)])
@pytest.mark.parametrize("model", MODELS)
def test_keys_that_cannot_be_cut_make_one_coverage_area(model: str, main: MainPredicate) -> None:
    scheme = plan_for_tasks(model, unknown(), main, 6)
    scheme.check(main)
    assert scheme.tasks == (4 if model == "dynamic" else 6)
    # Those that hold one side each cover the matrix once for either.
    assert {area.coverage for area in scheme.areas} == ({0, 1} if model in ("biclique", "broadcast", "handshake") else {0})


def test_a_frequent_key_is_cut_by_a_grid_inside_its_coverage_area() -> None:
    rng = np.random.default_rng(33)
    keys = np.where(rng.random(20_000) < 0.6, 77, rng.integers(-(10**9), 10**9, 20_000))
    statistics = sampled(keys, keys, 500)
    scheme = plan_for_tasks("adsp", statistics, ranged(0, 0), 12)
    scheme.check(ranged(0, 0))
    held = [area for area in scheme.areas if area.keys[LEFT] == KeyRange(77, 78)]
    assert len(held) > 1
    assert max(loads(scheme, statistics)) < 0.6 * max(loads(plan_for_tasks("hash", statistics, ranged(0, 0), 12), statistics))


def test_square_is_equation_9() -> None:
    scheme = plan_for_capacity("square", unknown(6, 6), ALL, 10)
    assert (scheme.tasks, scheme.summary) == (4, "1 coverage area: <2,2,0>")
    assert plan_for_tasks("square", unknown(6, 6), ALL, 7).summary == "1 coverage area: <2,3,0>"


def test_the_five_numbers_of_tasks_that_the_paper_gives_without_its_volumes() -> None:
    """A-DSP, section 5.3; R = 0.75 V and S = 3.9 V give all of them. Join-biclique's rule adds a task at 80 % (section 5.4)."""
    volumes = unknown(750, 3900)
    needed = {model: plan_for_capacity(model, volumes, ALL, 1000).tasks for model in ("adsp", "square", "dynamic")}
    assert needed == {"adsp": 13, "square": 16, "dynamic": 64}
    assert plan_for_capacity("biclique", volumes, ALL, 800).tasks == 6
    keys = np.arange(1000)
    spread = Statistics(tuple(SideStatistics(side.tuples, Histogram.from_sample(keys)) for side in volumes.sides))
    assert plan_for_capacity("biclique", spread, ranged(-500, 500), 1000, options=Options(groups=6)).tasks == 12


def test_dynamic_doubles_one_side_and_halves_the_other_as_the_ratio_moves() -> None:
    shapes = [plan_for_tasks("dynamic", unknown(left, 1000), ALL, 19).summary for left in (250, 1000, 4000, 16000)]
    assert shapes == ["1 coverage area: <2,8,0>", "1 coverage area: <4,4,0>", "1 coverage area: <8,2,0>", "1 coverage area: <16,1,0>"]


def test_dynamic_splits_by_four_on_overflow_and_merges_four_into_one() -> None:
    current = plan_for_tasks("dynamic", unknown(100, 100), ALL, 2)
    grown = plan_for_capacity("dynamic", unknown(150, 150), ALL, 400.0, current=current)
    assert grown.tasks == 8
    assert plan_for_capacity("dynamic", unknown(130, 130), ALL, 400.0, current=grown).tasks == 2
    assert plan_for_capacity("dynamic", unknown(160, 160), ALL, 400.0, current=grown).tasks == 8
    assert plan_for_capacity("dynamic", unknown(100, 100), ALL, 400.0).tasks == 1


def test_readj_moves_only_keys_of_the_fullest_and_nothing_below_sigma() -> None:
    rng = np.random.default_rng(37)
    keys = rng.integers(0, 100_000, 20_000)
    first = plan_for_tasks("readj", sampled(keys, keys, 500), ranged(0, 0), 8)
    hot = np.concatenate([keys, rng.integers(0, 5_000, 2_000)])
    shifted = sampled(hot, hot, 500)
    before = loads(first, shifted)
    assert before.max() > 1.5 * before.mean()
    after = plan_for_tasks("readj", shifted, ranged(0, 0), 8, options=Options(sigma=0.1), current=first)
    after.check(ranged(0, 0))
    assert loads(after, shifted).max() <= 1.11 * loads(after, shifted).mean()
    for area in first.areas:
        within = [
            after.areas[index].task
            for index in range(len(after.areas))
            if (after.areas[index].keys[LEFT].low or 0) <= (area.keys[LEFT].low or 0)
            and (area.keys[LEFT].high or 10**6) <= (after.areas[index].keys[LEFT].high or 10**6)
        ]
        assert within == [area.task] or area.task == before.argmax()
    tolerant = plan_for_tasks("readj", shifted, ranged(0, 0), 8, options=Options(sigma=2.0), current=first)
    assert [area.keys[LEFT] for area in tolerant.areas] == [area.keys[LEFT] for area in first.areas]


@pytest.mark.parametrize("days", [0, 3, 100])
@pytest.mark.parametrize("model", ["hash", "readj"])
def test_plans_by_key_hold_no_tuple_twice_however_wide_the_band(model: str, days: int) -> None:
    """A-DSP, Fig. 12(a): 3 V on each side over 30 days. The rivals that cut keys alone need as many tasks for every band."""
    keys = np.repeat(np.arange(30), 100)
    statistics, main = sampled(keys, keys), ranged(-days, days)
    scheme = plan_for_capacity(model, statistics, main, 1000)
    scheme.check(main)
    assert scheme.tasks in (6, 7)
    assert loads(scheme, statistics).max() <= 1000 * (1 + 1e-9)
    assert loads(scheme, statistics).sum() == pytest.approx(6000)
    again = plan_for_tasks(model, statistics, main, scheme.tasks, current=scheme)
    assert (again.areas == scheme.areas) or model == "hash"


@pytest.mark.parametrize("main", [ranged(5, 9), ranged(-3, None), ranged(None, -40), ranged(0.1, 0.7, Encoding.FLOAT)])
@pytest.mark.parametrize("model", ["hash", "readj"])
def test_a_range_of_keys_is_sent_only_what_may_match_it(model: str, main: MainPredicate) -> None:
    """Sent, beside what a task holds: the other side's tuples within the band of its range, and no more."""
    rng = np.random.default_rng(40)
    keys = rng.uniform(0, 1000, 3000) if main.is_float else rng.integers(0, 1000, 3000)
    statistics = sampled(keys, keys, 200)
    scheme = plan_for_tasks(model, statistics, main, 5)
    scheme.check(main)
    held = loads(scheme, statistics)
    assert held.max() <= 1.12 * held.mean()
    for area in scheme.areas:
        for side in SIDES:
            if not area.holds[side]:
                of_holder = area.keys[1 - side]
                low, high = (main.reach if side == RIGHT else main.reach_back)(of_holder.low, of_holder.high)
                within = KeyRange(low, high)
                sent, needed = (statistics.sides[side].volume(keys) for keys in (area.keys[side], within))
                assert needed <= sent + 1e-6
                assert sent <= needed + 0.05 * 3000


def test_a_biclique_holds_every_tuple_once_and_groups_are_sent_only_what_they_may_match() -> None:
    rng = np.random.default_rng(38)
    statistics = sampled(rng.integers(0, 10**6, 6000), rng.integers(0, 10**6, 2000), 500)
    main = ranged(-100, 100)
    sent = []
    for groups in (1, 2, 4):
        scheme = plan_for_tasks("biclique", statistics, main, 16, options=Options(groups=groups))
        scheme.check(main)
        held = loads(scheme, statistics)
        assert held.sum() == pytest.approx(8000)
        assert held.max() <= 1.05 * held.mean()
        to_left = [statistics.sides[RIGHT].volume(area.keys[RIGHT]) for area in scheme.areas if area.holds[LEFT]]
        to_right = [statistics.sides[LEFT].volume(area.keys[LEFT]) for area in scheme.areas if area.holds[RIGHT]]
        sent.append(sum(to_left) + sum(to_right))
    assert sent[1] == pytest.approx(sent[0] / 2, rel=0.05)
    assert sent[2] == pytest.approx(sent[0] / 4, rel=0.05)


def test_a_biclique_has_a_worker_for_each_group_of_either_side_from_the_start() -> None:
    rng = np.random.default_rng(41)
    keys = rng.integers(0, 10**6, 4650)
    for main in (ranged(-100, 100), ranged(0, None)):
        # A-DSP, section 5.3, with R = 0.75 V and S = 3.9 V: Bi_6 has twelve tasks, where Bi takes five.
        statistics = Statistics((SideStatistics(750, Histogram.from_sample(keys)), SideStatistics(3900, Histogram.from_sample(keys))))
        for capacity in (1000, 5000):
            scheme = plan_for_capacity("biclique", statistics, main, capacity, options=Options(groups=6))
            scheme.check(main)
            assert scheme.summary == "6 left and 6 right workers, in 6 and 6 groups"
        assert plan_for_capacity("biclique", statistics, main, 1000).tasks == 5
        assert plan_for_capacity("biclique", statistics, main, 5000).tasks == 1
        grown = plan_for_tasks("biclique", statistics, main, 18, options=Options(groups=6))
        assert grown.summary == "6 left and 12 right workers, in 6 and 6 groups"


def test_parameters_that_no_model_can_take_are_refused() -> None:
    with pytest.raises(ValueError, match=r"scheme.sigma: -1 must be"):
        Options(sigma=-1)
    with pytest.raises(ValueError, match=r"scheme.groups: 0 must be at least 1"):
        Options(groups=0)


def test_the_summary_gives_each_shape_as_the_papers_write_it() -> None:
    assert plan_for_capacity("adsp", unknown(9, 7), ALL, 10).summary == "1 coverage area: <1,2,1,row>"
    assert plan_for_tasks("hash", unknown(), EQUAL, 3).summary == "3 ranges of keys"
    spread = sampled(np.arange(1000), np.arange(1000))
    assert plan_for_tasks("hash", spread, ranged(-2, 2), 3).summary == "3 ranges of keys, probed from one another"


def test_equal_streams_of_nothing_known_are_planned_for_all_workers() -> None:
    for main in (EQUAL, ALL, ranged(-3, 3)):
        assert plan_for_tasks("adsp", unknown(0, 0), main, 6).tasks == 6


def test_integers_that_are_histogrammed_for_float_keys_are_converted() -> None:
    main = ranged(-1.0, 1.0, Encoding.FLOAT)
    scheme = plan_for_tasks("adsp", sampled(np.arange(100), np.arange(100)), main, 3)
    scheme.check(main)
    with pytest.raises(ValueError, match="must be integers"):
        plan_for_tasks("adsp", sampled(np.arange(100) / 7, np.arange(100)), ranged(-1, 1), 3)


@pytest.mark.parametrize(
    ("refused", "message"),
    [
        (lambda: plan_for_tasks("star", unknown(), ALL, 2), "scheme.model: 'star' is unknown; choose one of adsp, square, hash"),
        (lambda: plan_for_tasks("adsp", unknown(), ALL, 0), "tasks: 0 must be at least 1"),
        (lambda: plan_for_tasks("adsp", unknown(), ALL, 10_001), "at most 10,000"),
        (lambda: plan_for_capacity("adsp", unknown(), ALL, 0), "capacity: 0 must be positive"),
        (lambda: plan_for_capacity("square", unknown(1e6, 1e6), ALL, 1), "raise the capacity"),
        (lambda: plan_for_capacity("adsp", unknown(1e6, 1e6), EQUAL, 1), "raise the capacity"),
        (lambda: plan_for_capacity("hash", unknown(1e6, 1e6), EQUAL, 1), "raise the capacity"),
    ],
)
def test_what_cannot_be_planned_is_refused(refused: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        refused()  # type: ignore[operator]


def test_histograms_give_frequent_keys_their_own_bucket_and_share_the_rest_evenly() -> None:
    rng = np.random.default_rng(34)
    keys = np.concatenate([np.full(5000, 42), rng.integers(0, 10**6, 10_000)])
    histogram = Histogram.from_sample(keys, 100, weight=2.0)
    assert len(histogram.counts) <= 102
    assert histogram.total == 30_000
    at = int(np.searchsorted(histogram.bounds, 42, side="right"))
    assert histogram.bounds[at - 1 : at + 1].tolist() == [42, 43]
    others = np.delete(histogram.counts, at)
    assert others.max() < 2.5 * 20_000 / 98


@pytest.mark.parametrize("keys", [[], [7], [INT64_MIN, INT64_MAX], [np.inf, -np.inf, 0.0], [1.0, 1.0, np.nextafter(1.0, 2)]])
def test_histograms_of_odd_samples_are_sound(keys: list[float]) -> None:
    histogram = Histogram.from_sample(np.array(keys))
    assert histogram.total == len(keys)
    assert histogram.share(KeyRange()) == 1.0
    assert np.isfinite(histogram.bounds).all()


def test_shares_of_neighbouring_ranges_add_up() -> None:
    rng = np.random.default_rng(35)
    histogram = Histogram.from_sample(rng.integers(INT64_MIN, INT64_MAX, 5000), 50)
    cuts = np.sort(rng.integers(INT64_MIN, INT64_MAX, 20)).tolist()
    shares = [histogram.share(KeyRange(*bounds)) for bounds in pairwise([None, *cuts, None])]
    assert sum(shares) == pytest.approx(1)
    assert histogram.refined(np.array(cuts)).share(KeyRange(cuts[3], cuts[9])) == pytest.approx(histogram.share(KeyRange(cuts[3], cuts[9])))


@pytest.mark.parametrize(("bounds", "counts"), [([1, 1], [1, 1, 1]), ([2, 1], [1, 1, 1]), ([1], [1]), ([1], [1, -1]), ([np.nan], [1, 1])])
def test_impossible_histograms_are_refused(bounds: list[float], counts: list[float]) -> None:
    with pytest.raises(ValueError, match="histogram"):
        Histogram(np.array(bounds), np.array(counts))


DOMAIN = range(-14, 15)
"""Keys for the brute force; every bound of the schemes below lies well inside."""


def admits(main: MainPredicate, left: int, right: int) -> bool:
    if main.kind is MainKind.RANGE:
        return (main.low is None or right - left >= main.low) and (main.high is None or right - left <= main.high)
    return main.kind is MainKind.ALL or left != right


def is_tiling(scheme: Scheme, main: MainPredicate) -> bool:
    """Def. 3 and Alg. 5 by enumerating keys and unit coordinates; no shared code. A pair is found where the earlier of the two is held."""
    if {area.task for area in scheme.areas} != set(range(scheme.tasks)):
        return False
    spans = [span for area in scheme.areas for span in area.units]
    units = sorted({unit for span in spans for unit in (span.low, span.high, *(end for gap in span.gaps for end in gap))} - {UNITS})
    if any(span.low >= span.high for span in spans):
        return False

    def within(span: UnitRange, unit: int) -> bool:
        return span.low <= unit < span.high and not any(low <= unit < high for low, high in span.gaps)

    def holds(keys: KeyRange | None, at: int) -> bool:
        return keys is not None and (keys.low is None or at >= keys.low) and (keys.high is None or at < keys.high)

    for left in range(DOMAIN.start * 2, DOMAIN.stop * 2):
        for unit in units:
            for side in SIDES:
                writers = [area for area in scheme.areas if holds(area.writes[side], left) and within(area.units[side], unit)]
                if len(writers) != 1 or not writers[0].holds[side]:
                    return False
                if not holds(writers[0].keys[side], left):
                    return False
    for left in DOMAIN:
        rows = [area for area in scheme.areas if holds(area.keys[LEFT], left)]
        for right in DOMAIN:
            areas = [area for area in rows if holds(area.keys[RIGHT], right)]
            for row in units:
                for column in units:
                    here = [area for area in areas if within(area.units[LEFT], row) and within(area.units[RIGHT], column)]
                    for times in (sum(area.holds[side] for area in here) for side in SIDES):
                        if times > 1 or (times == 0 and admits(main, left, right)):
                            return False
    return True


def with_side(area: Area, name: str, side: int, value: object) -> Area:
    """The area with another value in one of its tuples by side."""
    values = getattr(area, name)
    return replace(area, **{name: (*values[:side], value, *values[side + 1 :])})


def damaged(scheme: Scheme, rng: np.random.Generator) -> Scheme:
    """The scheme with one thing changed, perhaps for no harm."""
    areas = list(scheme.areas)
    index = int(rng.integers(len(areas)))
    area = areas[index]
    parts = [f"{part} {side}" for side in SIDES for part in ("keys", "writes", "units", "gaps")]
    name, _, number = str(rng.choice([*parts, "holds 0", "holds 1", "drop", "copy", "task"])).partition(" ")
    side = int(number or 0)
    if name == "drop":
        del areas[index]
    elif name == "copy":
        areas.append(area)
    elif name == "task":
        areas[index] = replace(area, task=int(rng.integers(scheme.tasks + 1)))
    elif name == "holds":
        areas[index] = with_side(area, name, side, not area.holds[side])
    elif name == "gaps":
        # The gap goes to another area that had no such unit, or to none.
        span, other = area.units[side], int(rng.integers(len(areas)))
        third = (span.high - span.low) // 3
        gap = (span.low + third, span.high - third)
        taker = areas[other].units[side]
        areas[index] = with_side(area, "units", side, UnitRange.of([(span.low, gap[0]), (gap[1], span.high)]))
        if gap[0] >= taker.high or gap[1] <= taker.low:
            areas[other] = with_side(areas[other], "units", side, UnitRange.of([*taker.parts, gap]))
    else:
        part = getattr(area, name)[side]
        if part is None:
            part = KeyRange()
        elif name == "writes" and rng.random() < 0.3:
            part = None
        elif name == "units":
            part = UnitRange(*(min(UNITS, max(0, end + int(rng.choice([-1, 0, 1])) * 2**29)) for end in (part.low, part.high)))
        else:
            part = KeyRange(*(None if end is None else end + int(rng.integers(-2, 3)) for end in (part.low, part.high)))
        coverage = area.coverage
        for other, held in enumerate(areas):
            # Areas of a coverage area change their keys together, or else the harm is plain to see.
            if other == index or (name == "keys" and held.coverage == coverage):
                areas[other] = with_side(held, name, side, part)
    return Scheme(scheme.model, scheme.tasks, tuple(areas), scheme.summary)


def small_schemes(rng: np.random.Generator) -> Iterator[tuple[Scheme, MainPredicate]]:
    for main in (ranged(-2, 2), ranged(1, None), ranged(None, 0), ranged(0, 0), ranged(3, 5), NOT_EQUAL):
        for model in ("adsp", "hash", "biclique", "broadcast", "handshake"):
            keys = rng.integers(-9, 10, (2, 30))
            statistics = sampled(keys[0], keys[1], int(rng.choice([4, 40])))
            yield plan_for_tasks(model, statistics, main, int(rng.integers(2, 6)), options=Options(groups=2)), main


def test_check_agrees_with_enumerating_all_keys_and_units() -> None:
    rng = np.random.default_rng(36)
    found = {True: 0, False: 0}
    for _ in range(how_many(4, of=2)):
        for scheme, main in small_schemes(rng):
            assert is_tiling(scheme, main), f"seed 36, {scheme}, {main}"
            for _ in range(5):
                suspect = damaged(scheme, rng)
                try:
                    suspect.check(main)
                    verdict = True
                except SchemeError:
                    verdict = False
                assert verdict == is_tiling(suspect, main), f"seed 36, {suspect}, {main}"
                found[verdict] += 1
    assert min(found.values()) > 10


def whole(coverage: int = 0, **left: object) -> Scheme:
    """One area; ``left``: what is said of its left side instead."""
    area = Area(0, coverage, (KeyRange(), KeyRange()), (UnitRange(), UnitRange()), (KeyRange(), KeyRange()))
    for name, value in left.items():
        area = with_side(area, name, LEFT, value)
    return Scheme("adsp", 1, (area,), "")


@pytest.mark.parametrize(
    ("scheme", "message"),
    [
        (Scheme("adsp", 0, (), ""), "areas: there are none"),
        (replace(whole(), tasks=2), r"areas\[\].task: \[0\] must be exactly 0..1"),
        (whole(coverage=-1), "must not be negative"),
        (whole(keys=KeyRange(5, 5)), "is empty; low must be below high"),
        (whole(keys=KeyRange(0.5, None)), "must be a 64-bit integer"),
        (whole(keys=KeyRange(2**63, None)), "must be a 64-bit integer"),
        (whole(units=UnitRange(0, UNITS + 1)), "must be integers with 0 <= low < high"),
        (whole(keys=KeyRange(0, None), writes=KeyRange(0, None)), "no area covers every pair"),
        (whole(units=UnitRange(0, 10)), "no area covers every pair"),
        (whole(writes=None), "written by no area"),
        (whole(keys=KeyRange(0, None)), "must lie within the keys that the area holds"),
    ],
)
def test_check_says_what_is_wrong(scheme: Scheme, message: str) -> None:
    with pytest.raises(SchemeError, match=message):
        scheme.check(ranged(-2, 2))


def test_check_names_areas_that_overlap_and_tuples_written_twice() -> None:
    twice = Scheme("adsp", 1, whole().areas * 2, "")
    with pytest.raises(SchemeError, match=r"areas\[0\] and areas\[1\] overlap"):
        twice.check(ranged(-2, 2))
    grid = plan_for_tasks("square", unknown(), ALL, 4)
    all_write = replace(grid, areas=tuple(with_side(area, "writes", LEFT, KeyRange()) for area in grid.areas))
    with pytest.raises(SchemeError, match="written twice"):
        all_write.check(ALL)


def test_check_sees_one_missing_pair_at_the_ends_of_int64() -> None:
    low, high = KeyRange(None, INT64_MAX), KeyRange(INT64_MAX, None)
    units = (UnitRange(), UnitRange())
    areas = tuple(Area(task, task, (keys, keys), units, (keys, keys)) for task, keys in enumerate((low, high)))
    Scheme("hash", 2, areas, "").check(ranged(0, 0))
    with pytest.raises(SchemeError, match="no area covers"):
        Scheme("hash", 2, areas, "").check(ranged(0, 1))


def test_check_sees_one_missing_ulp() -> None:
    keys, beyond = KeyRange(None, 1.0), KeyRange(1.0, None)
    units = (UnitRange(), UnitRange())
    areas = tuple(Area(task, task, (held, held), units, (held, held)) for task, held in enumerate((keys, beyond)))
    Scheme("hash", 2, areas, "").check(ranged(0.0, 0.0, Encoding.FLOAT))
    with pytest.raises(SchemeError, match="no area covers"):
        Scheme("hash", 2, areas, "").check(ranged(0.0, 5e-324, Encoding.FLOAT))


@pytest.mark.parametrize("value", [None, [], {}, {"model": "adsp", "tasks": 1, "summary": "", "areas": [{}]}, {"model": 1, "areas": 3}])
def test_what_is_not_a_scheme_is_refused(value: object) -> None:
    with pytest.raises(SchemeError, match="this is not a scheme"):
        Scheme.from_json(value)
