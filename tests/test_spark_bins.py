"""Bins, keys and conditions of ``streamjoin.spark.join``, without Spark: each pair that matches meets, and meets once."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest

import cases
from streamjoin.language.sides import LEFT, RIGHT
from streamjoin.spark import planning
from streamjoin.spark.bins import Axis, Cut, End, Mode, Quantiles, Reach, Sample, Uniform, fits
from streamjoin.spark.conjuncts import AtMost, Constant, Difference, Equal, Statement, qualified, read
from streamjoin.spark.keys import Keys, Session, keys_of
from streamjoin.spark.planning import Chosen, choose

EXTREMES = (math.nan, math.inf, -math.inf, 0.0, -0.0, 1.7e308, -1.7e308, 5e-324, 2.0**53, -(2.0**63), 2.0**63, 1e300)
BAND = Reach(RIGHT, "r", End("l", -5.0, 5e-15, 2.0**-50), End("l", 5.0, 5e-15, 2.0**-50), "near")


def ordered(first: float, second: float) -> bool:
    """``first <= second`` as Spark has it."""
    return math.isnan(second) or (not math.isnan(first) and first <= second)


def cuts_of(draw: random.Random, mode: Mode) -> tuple[Cut, ...]:
    if mode is Mode.POINTS and draw.random() < 0.4:
        return (Quantiles(tuple(sorted({draw.choice((draw.uniform(-50, 50), draw.randint(-9, 9))) for _ in range(draw.randint(0, 12))}))),)
    origin, width = draw.uniform(-60, 10), draw.choice((0.01, 0.7, 5.0, 30.0, 1e9))
    levels = 1 if mode is Mode.POINTS else draw.randint(1, 4)
    return tuple(Uniform(origin, width * 4**level, draw.choice((1, 2, 17, 400))) for level in range(levels))


def places_of_point(axis: Axis, value: float) -> list[int]:
    own = [int(cut.index(np.array([value]))[0]) for cut in axis.cuts]
    if axis.mode is Mode.REACHES:
        return [*(axis.base * (index - back) + level for level, index in enumerate(own) for back in (0, 1)), axis.base - 1]
    return [axis.base * index + level for level, index in enumerate(own)]


def places_of_reach(axis: Axis, low: float, high: float) -> list[int]:
    """``low``, ``high``: where the reach is open, as -inf and NaN."""
    level = level_of(axis, low, high)
    if axis.mode is Mode.REACHES and level == len(axis.cuts):
        return [axis.base - 1]
    cut = axis.cuts[level]
    first = 0 if axis.reach.low is None else int(cut.index(np.array([low]))[0])
    last = cut.count - 1 if axis.reach.high is None else int(cut.index(np.array([high]))[0])
    if axis.mode is Mode.REACHES:
        return [axis.base * first + level]
    return [axis.base * index + level for index in range(first, max(first, last) + 1)]


def level_of(axis: Axis, low: float, high: float) -> int:
    """The first whose bins are as wide as the reach is long; after the last: none, which LEVELS take as the last."""
    if axis.mode is Mode.POINTS:
        return 0
    fitting = [number for number, cut in enumerate(axis.cuts) if high - low <= fits(cut)]
    return fitting[0] if fitting else len(axis.cuts) - (axis.mode is Mode.LEVELS)


def value(draw: random.Random) -> float:
    kind = draw.random()
    return draw.choice(EXTREMES) if kind < 0.2 else float(draw.randint(-20, 20)) if kind < 0.6 else draw.uniform(-70, 70)


@pytest.mark.parametrize("seed", range(cases.how_many(60, of=3)))
@pytest.mark.parametrize("mode", list(Mode))
def test_each_pair_that_matches_meets_once(mode: Mode, seed: int) -> None:
    draw = random.Random(f"{mode} {seed}")
    low, high = draw.choice(((True, True), (True, True), (True, False), (False, True)))
    if mode is not Mode.POINTS:
        low = high = True
    reach = Reach(LEFT, "p", End("a") if low else None, End("b") if high else None)
    axis = Axis(reach, mode, cuts_of(draw, mode))
    points = [value(draw) for _ in range(40)]
    reaches = []
    for _ in range(40):
        start = value(draw)
        reaches.append((start, draw.choice((value(draw), start, start + draw.choice((0.5, 3.0, 40.0, 1e6))))))
    for start, end in reaches:
        start_, end_ = (start if low else -math.inf), (end if high else math.nan)
        places = Counter(places_of_reach(axis, start_, end_))
        assert mode is not Mode.REACHES or places.total() == 1
        for point in points:
            own = places_of_point(axis, point)
            assert mode is not Mode.POINTS or len(own) == 1
            met = sum(places[place] for place in own)
            assert met <= 1, (seed, point, start, end)
            if ordered(start_, point) and ordered(point, end_):
                assert met == 1, (seed, point, start, end)


@pytest.mark.parametrize("shift", [0.0, 0.1, 5.0, -3.0, 1e15])
def test_the_ends_of_a_reach_are_no_nearer_than_what_doubles_add_up_to(shift: float) -> None:
    draw = random.Random(str(shift))
    size = 2.0**-50
    end = End("k", shift, size * abs(shift), size)
    for _ in range(2000):
        key = draw.choice((draw.uniform(-1e3, 1e3), draw.uniform(-1e17, 1e17), draw.choice(EXTREMES)))
        other = key + shift
        low, high = (float(end.of(np.array([key]), down=down)[0]) for down in (True, False))
        assert ordered(low, other), (key, shift)
        assert ordered(other, high), (key, shift)


def statements(condition: str) -> list[Statement]:
    return [statement for conjunct in read(condition) for statement in conjunct.statements]


@pytest.mark.parametrize(
    ("condition", "kinds", "parts"),
    [
        ("l.a = r.b", [Equal], 1),
        ("l.a == r.b AND (l.c < r.d AND l.e >= r.f)", [Equal, AtMost, AtMost], 3),
        ("abs(l.a - r.b) <= 5", [Difference], 1),
        ("0.05BD >= ABS((l.a) - r.b)", [Difference], 1),
        ("l.a - r.b BETWEEN -3 AND 5 AND l.c = r.d", [Difference, Difference, Equal], 2),
        ("r.t BETWEEN l.t - INTERVAL 5 MINUTES AND l.t + INTERVAL '5' MINUTE", [AtMost, AtMost], 1),
        ("l.end >= r.start AND l.start <= r.end", [AtMost, AtMost], 2),
        ("l.a = r.b OR l.c = r.d", [], 1),
        ("NOT l.a = r.b", [], 1),
        ("CASE WHEN l.a AND r.b THEN l.c ELSE r.d END = 3 AND l.x < r.y", [AtMost], 2),
        ("abs(l.a - r.b) > 5", [], 1),
        ("l.a <=> r.b", [], 1),
        ("l.a < r.b < r.c", [], 1),
        ("l.a <> r.b", [], 1),
        ("l.s LIKE '%AND%' AND l.a <= r.b", [AtMost], 2),
        ("l.a <= r.b -- near", [], 1),
        (r"l.s = '\' AND l.a <= r.b", [], 1),
        ("l.a IS NULL = r.b", [], 1),
        ("((l.a <= r.b))", [AtMost], 1),
    ],
)
def test_conditions_are_cut_at_and(condition: str, kinds: list[type], parts: int) -> None:
    assert [type(statement) for statement in statements(condition)] == kinds
    assert len(read(condition)) == parts


def test_offsets_and_columns_are_told_from_what_is_written() -> None:
    (found,) = statements("l.`a b`.c - 5 <= r.x")
    assert isinstance(found, AtMost)
    assert found.first.base.columns == (("l", "a b", "c"),)
    assert found.first.offset == Constant(-5.0)
    assert found.second.offset is None
    (found,) = statements("l.x * 2 - 5 <= r.x")
    assert isinstance(found, AtMost)
    assert found.first.offset is None
    assert found.first.whole.has_arithmetic


def test_qualifiers_are_replaced_and_nothing_else() -> None:
    text = "left.a <= Right.`b c` AND left(left.s, 2) = 'left.a' AND x.left.a > 0"
    changed = qualified(text, lambda head, column: f"`{head}_{column}`" if head in ("left", "right") else None)
    assert changed == "`left_a` <= `right_b c` AND left(`left_s`, 2) = 'left.a' AND x.left.a > 0"


def keys(condition: str, types: dict[str, str] | None = None, session: Session | None = None) -> Keys:
    """All columns are DOUBLE but for those in ``types``; results of arithmetic have the type of ``whole``."""
    known = types or {}

    def type_of(_: int, text: str) -> str:
        return known.get(text.replace("`", ""), known.get("whole", "double"))

    return keys_of(read(condition), lambda names: {"l": LEFT, "r": RIGHT}.get(names[0]), type_of, session or Session())


def shifts(found: Keys) -> set[tuple[int, float | None, float | None]]:
    return {(reach.points, reach.low and reach.low.shift, reach.high and reach.high.shift) for reach in found.reaches}


INTS = {"l.x": "int", "r.x": "int", "whole": "int"}
LONG = {"l.x": "decimal(38,2)", "r.x": "decimal(38,2)", "whole": "decimal(38,2)"}
TIME = {"l.x": "timestamp", "r.x": "timestamp", "whole": "timestamp"}


@pytest.mark.parametrize(
    ("condition", "types", "session", "reaches"),
    [
        ("abs(l.x - r.x) <= 5", None, Session(), {(RIGHT, -5.0, 5.0), (LEFT, -5.0, 5.0)}),
        ("r.x - l.x BETWEEN 1 AND 3", None, Session(), {(RIGHT, 1.0, 3.0), (LEFT, -3.0, -1.0)}),
        ("r.x >= l.x - 5 AND r.x <= l.x + 2", INTS, Session(), {(RIGHT, -5.0, 2.0), (LEFT, -2.0, 5.0)}),
        ("abs(l.x - r.x) <= 5", INTS, Session(is_ansi=False), set()),
        ("abs(l.x - r.x) <= 5", LONG, Session(), set()),
        ("l.x - r.x >= 5", None, Session(), set()),
        ("l.x - r.x >= 5", INTS, Session(), {(RIGHT, None, -5.0), (LEFT, 5.0, None)}),
        ("l.x - r.x <= 5", None, Session(), {(RIGHT, -5.0, None), (LEFT, None, 5.0)}),
        ("abs(l.x - r.x) <= INTERVAL 5 MINUTES", TIME, Session(), {(RIGHT, -3e8, 3e8), (LEFT, -3e8, 3e8)}),
        ("abs(l.x - r.x) <= 5", {"l.x": "string"}, Session(), set()),
        ("abs(l.x - r.x) <= 5", {"l.x": "date", "r.x": "timestamp"}, Session(), set()),
    ],
)
def test_a_band_has_a_reach_from_either_side_where_sparks_arithmetic_agrees(
    condition: str, types: dict[str, str] | None, session: Session, reaches: set[tuple[int, float | None, float | None]]
) -> None:
    assert shifts(keys(condition, types, session)) == reaches


def test_without_ansi_mode_integers_are_compared_as_spark_computes_them() -> None:
    found = keys("r.x >= l.x - 5 AND r.x <= l.x + 5", INTS, Session(is_ansi=False))
    both = [reach for reach in found.reaches if not reach.is_open]
    assert [(reach.points, reach.low, reach.high) for reach in both] == [
        (RIGHT, End("CAST((l.x - 5) AS DOUBLE)"), End("CAST((l.x + 5) AS DOUBLE)"))
    ]


def test_reaches_that_overlap_are_two_ways_that_exclude_each_other() -> None:
    ((first, second),) = keys("l.start <= r.end AND l.end >= r.start").overlaps
    assert (first.points, first.apart) == (LEFT, "(l.start) >= (r.start)")
    assert (second.points, second.apart) == (RIGHT, "(l.start) < (r.start)")


def test_what_may_fail_for_a_row_is_no_key_in_ansi_mode() -> None:
    assert not keys("l.x * l.x <= r.x", INTS).reaches
    assert keys("l.x * l.x <= r.x", INTS, Session(is_ansi=False)).reaches
    assert not keys("l.x / l.x <= r.x").reaches
    assert not keys("rand() + l.x <= r.x", INTS, Session(is_ansi=False)).reaches


def sample(rows: int, columns: dict[str, Sequence[float]]) -> Sample:
    arrays = {name: (np.array(values, float), np.ones(len(values), bool)) for name, values in columns.items()}
    return Sample(rows, arrays, len(next(iter(columns.values()))))


def uniform_samples(rows: int, size: int = 2000, domain: float = 1e6) -> list[Sample]:
    draw = np.random.default_rng(5)
    return [sample(rows, {name: list(draw.uniform(0, domain, size))}) for name in "lr"]


def band(width: float) -> Keys:
    ends = End("l", -width), End("l", width)
    back = End("r", -width), End("r", width)
    return Keys(reaches=(Reach(RIGHT, "r", *ends, "near"), Reach(LEFT, "l", *back, "near")))


def test_few_rows_are_left_to_spark_and_many_are_binned() -> None:
    assert not choose(band(5), uniform_samples(2000), ()).pairs
    assert choose(band(5), uniform_samples(1_000_000), ()).pairs


@pytest.mark.parametrize("rows", [100_000, 1_000_000, 10_000_000])
def test_the_width_balances_replicas_and_candidates(rows: int) -> None:
    (bins,) = choose(band(5), uniform_samples(rows), ()).pairs
    cut = bins.axes[0].cuts[0]
    assert isinstance(cut, Uniform)
    density = rows / 1e6
    best = math.sqrt(planning.ROW_SECONDS * 10 / (planning.CANDIDATE_SECONDS * density))
    assert best / 3 < cut.width < best * 3
    assert 0.5 < bins.estimate.results / (rows * density * 10) < 2


@pytest.mark.parametrize(("sides", "single"), [((LEFT,), LEFT), ((RIGHT,), RIGHT), ((LEFT, RIGHT), LEFT)])
def test_rows_that_are_kept_are_in_one_place(sides: tuple[int, ...], single: int) -> None:
    chosen = choose(band(5), uniform_samples(1_000_000), sides)
    assert chosen.pairs[0].axes[0].single == single
    assert set(chosen.kept) == set(sides[1:])
    assert all(bins.axes[0].single == side for side, ways in chosen.kept.items() for bins in ways)


def test_a_selective_equality_is_enough() -> None:
    draw = np.random.default_rng(5)
    for values, is_binned in ((1_000_000, False), (3, True)):
        samples = [
            sample(1_000_000, {name: list(draw.uniform(0, 1e6, 2000)), f"{name}k": list(draw.integers(0, values, 2000))}) for name in "lr"
        ]
        chosen = choose(Keys((("lk", "rk"),), band(5).reaches), samples, ())
        assert bool(chosen.pairs) is is_binned, values


def test_a_few_long_reaches_are_not_repeated_by_thousands() -> None:
    draw = np.random.default_rng(5)
    starts = draw.uniform(0, 1e6, 2000)
    ends = starts + np.where(draw.random(2000) < 0.01, 1e5, 10.0)
    samples = [sample(1_000_000, {"a": list(starts), "b": list(ends)}), sample(1_000_000, {"p": list(draw.uniform(0, 1e6, 2000))})]
    (bins,) = choose(Keys(reaches=(Reach(RIGHT, "p", End("a"), End("b"), "in"),)), samples, ()).pairs
    assert bins.estimate.replicas < 8e6
    assert bins.estimate.candidates < 3 * bins.estimate.results


def test_hot_places_become_grids_and_no_others_do() -> None:
    draw = np.random.default_rng(5)
    skewed = np.where(draw.random(2000) < 0.1, 500_000.0, draw.uniform(0, 1e6, 2000))
    samples = [sample(100_000, {"l": list(skewed)}), uniform_samples(100_000)[1]]
    (bins,) = choose(band(50), samples, (LEFT,)).pairs
    assert bins.hot is not None
    (place,) = bins.hot.places
    assert places_of_point(bins.axes[0], 500_000.0) == [place]
    assert choose(band(50), uniform_samples(100_000), (LEFT,)).pairs[0].hot is None


def test_a_plan_depends_on_the_samples_alone() -> None:
    def made() -> Chosen:
        return choose(band(5), uniform_samples(1_000_000), (LEFT,))

    assert made() == made()


@pytest.mark.parametrize("column", [[math.nan] * 50, [7.0] * 50, [0.0] * 49 + [1e300], [math.inf, -math.inf] * 25])
def test_odd_samples_make_a_plan_too(column: list[float]) -> None:
    for sides in ((), (LEFT,), (LEFT, RIGHT)):
        samples = [sample(1_000_000, {"l": column}), sample(1_000_000, {"r": column})]
        chosen = choose(band(5), samples, sides)
        assert all(1 <= cut.count < 2**40 for bins in chosen.pairs for axis in bins.axes for cut in axis.cuts)
    nulls = [Sample(1_000_000, {name: (np.zeros(50), np.zeros(50, bool))}, 50) for name in "lr"]
    choose(band(5), nulls, ())
