"""What ``streamjoin plan`` reads and reports."""

from __future__ import annotations

import json
import re

import numpy as np
import pyarrow as pa
import pytest

from streamjoin.api.areas import key_text
from streamjoin.api.key_spaces import KeySpace, key_spaces_of, statistics_of
from streamjoin.api.planning import make_plan, read_plan
from streamjoin.api.stats import StatsError, expected_statistics, read_stats, read_stats_by_stream
from streamjoin.cli.planning import report, report_change
from streamjoin.elastic.deployment import Expected, expected_tuples
from streamjoin.elastic.plan import Plan, PlanError
from streamjoin.kernel.keys import encode_keys
from streamjoin.language.ddl import parse_schema
from streamjoin.language.graph import join_graph
from streamjoin.language.layout import Layout
from streamjoin.language.predicate import Encoding, KeyExpression, MainKind, MainPredicate
from streamjoin.language.schema import Column, Schema
from streamjoin.language.sides import LEFT, RIGHT
from streamjoin.language.types import DataType, TypeName
from streamjoin.language.window import Window, WindowKind
from streamjoin.scheme.capacity import Capacity
from streamjoin.scheme.models import KEYED, MODELS, plan_for_tasks
from streamjoin.scheme.statistics import Statistics, loads
from streamjoin.scheme.tiling import UNITS, KeyRange


def main_of(encoding: Encoding, *types: DataType, low: float | None = 0, high: float | None = 0) -> MainPredicate:
    key = KeyExpression(tuple(f"k{number}" for number in range(len(types))), types, encoding)
    return MainPredicate(MainKind.RANGE, (key, key), low, high, text="l.k = r.k")


BIGINT = DataType(TypeName.BIGINT)
BAND = main_of(Encoding.INTEGER, BIGINT, low=-2, high=2)
HASH = main_of(Encoding.HASH, BIGINT)
ALL = MainPredicate(MainKind.ALL)


def stats(**changes: object) -> str:
    return json.dumps({"left": {"tuples": 100}, "right": {"tuples": 50}, **changes})


def test_volumes_alone_are_enough() -> None:
    read = read_stats(stats(capacity=30), BAND)
    assert (read.statistics.sides[LEFT].tuples, read.statistics.sides[RIGHT].tuples, read.capacity_tuples) == (100, 50, 30)
    assert read.statistics.sides[LEFT].histogram is None
    assert read_stats(stats(), BAND).capacity_tuples is None


def test_sides_may_be_called_by_their_streams() -> None:
    text = json.dumps({"orders": {"tuples": 1}, "payments": {"tuples": 2}})
    assert read_stats(text, BAND, ("orders", "payments")).statistics.sides[RIGHT].tuples == 2


def test_a_histogram_is_taken_as_it_is() -> None:
    left = {"tuples": 9, "histogram": {"bounds": [20, 40], "counts": [1, 2, 3]}}
    histogram = read_stats(stats(left=left), BAND).statistics.sides[LEFT].histogram
    assert histogram is not None
    assert (histogram.bounds.tolist(), histogram.counts.tolist()) == ([20, 40], [1, 2, 3])


@pytest.mark.parametrize(
    ("encoding", "type_", "values", "column"),
    [
        (Encoding.INTEGER, BIGINT, [3, -4], pa.array([3, -4])),
        (Encoding.FLOAT, DataType(TypeName.DOUBLE), [1.5, 2], pa.array([1.5, 2.0])),
        (Encoding.HASH, BIGINT, [3, -4], pa.array([3, -4])),
        (Encoding.HASH, DataType(TypeName.STRING), ["a", "EUR"], pa.array(["a", "EUR"])),
        (Encoding.PREFIX, DataType(TypeName.STRING), ["a", "EUR"], pa.array(["a", "EUR"])),
        (Encoding.INTEGER, DataType(TypeName.DATE), ["2026-01-02"], pa.array([20455], pa.int32()).cast(pa.date32())),
        (Encoding.INTEGER, DataType(TypeName.TIMESTAMP), ["2026-01-02T00:00:00Z"], pa.array([1767312000000000], pa.timestamp("us", "UTC"))),
        (Encoding.INTEGER, DataType(TypeName.TIMESTAMP), [1767312000000000], pa.array([1767312000000000], pa.timestamp("us", "UTC"))),
    ],
)
def test_keys_are_encoded_as_the_joins_tuples_are(encoding: Encoding, type_: DataType, values: list[object], column: pa.Array) -> None:
    main = main_of(encoding, type_)
    assert main.keys
    batch, schema = pa.RecordBatch.from_arrays([column], ["k0"]), Schema((Column("k0", type_),))
    expected, _ = encode_keys(batch, main.keys[LEFT], schema)
    histogram = read_stats(stats(left={"tuples": 10, "keys": values}), main).statistics.sides[LEFT].histogram
    assert histogram is not None
    assert set(expected.tolist()) <= set(histogram.bounds.tolist())


def test_decimals_and_composite_keys_are_encoded() -> None:
    main = main_of(Encoding.INTEGER, DataType(TypeName.DECIMAL, 10, 2))
    histogram = read_stats(stats(left={"tuples": 10, "keys": [1.25, "3", None]}), main).statistics.sides[LEFT].histogram
    assert histogram is not None
    assert histogram.bounds.tolist() == [125, 126, 300, 301]
    both = main_of(Encoding.HASH, BIGINT, DataType(TypeName.STRING))
    assert read_stats(stats(left={"tuples": 10, "keys": [[1, "a"], [2, "b"]]}), both).statistics.sides[LEFT].histogram is not None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "line 1, column 2"),
        ("[]", "must be an object of left, right and capacity"),
        (stats(middle=1), "middle: must be an object of left, right and capacity"),
        (json.dumps({"left": {"tuples": 1}}), "right: is missing"),
        (stats(left=5), "left: 5 must be an object of tuples"),
        (stats(left={"tuples": -1}), "left.tuples: -1 must be a number of tuples"),
        (stats(left={"tuples": True}), "left.tuples: true must be"),
        (stats(left={"tuples": 1, "key": []}), "must be an object of tuples and either keys or histogram"),
        (stats(left={"tuples": 1, "keys": 5}), "left.keys: 5 must be a list"),
        (stats(left={"tuples": 1, "keys": ["x"]}), "left.keys: must be values of type BIGINT"),
        (stats(left={"tuples": 1, "keys": [1], "histogram": {}}), "left.histogram: excludes left.keys"),
        (stats(right={"tuples": 1, "histogram": {"bounds": [1]}}), "must be an object of bounds and counts"),
        (stats(right={"tuples": 1, "histogram": {"bounds": [1], "counts": [1]}}), "right.histogram.counts: 1 counts must be one more"),
        (stats(right={"tuples": 1, "histogram": {"bounds": [1], "counts": ["a", 1]}}), "right.histogram.counts: .* a list of numbers"),
        (stats(capacity=0), "capacity: 0 must be a positive number"),
    ],
)
def test_what_is_wrong_with_statistics_is_said_by_field(text: str, message: str) -> None:
    with pytest.raises(StatsError, match=message):
        read_stats(text, BAND)


def test_a_histogram_of_hashed_keys_is_refused() -> None:
    with pytest.raises(StatsError, match="this join hashes its keys"):
        read_stats(stats(left={"tuples": 1, "histogram": {"bounds": [1], "counts": [1, 1]}}), HASH)


def test_a_composite_key_needs_all_its_values() -> None:
    with pytest.raises(StatsError, match="each must be a list of 2 values"):
        read_stats(stats(left={"tuples": 1, "keys": [1]}), main_of(Encoding.HASH, BIGINT, BIGINT))


def test_a_plan_is_made_for_tasks_or_for_a_capacity() -> None:
    read = read_stats(stats(), HASH)
    assert make_plan("adsp", read.statistics, HASH, tasks=5).plan.workers == 5
    assert make_plan("adsp", read.statistics, HASH, capacity=Capacity(50)).plan.workers == 3
    with pytest.raises(ValueError, match="give one"):
        make_plan("adsp", read.statistics, HASH)


def test_the_report_says_loads_replication_and_every_coverage_area() -> None:
    keys = np.random.default_rng(51).integers(0, 10_000, 500).tolist()
    read = read_stats(stats(left={"tuples": 4000, "keys": keys}, right={"tuples": 4000, "keys": keys}), BAND)
    scheme = make_plan("adsp", read.statistics, BAND, tasks=4).plan.scheme
    text = report(scheme, read.statistics, [KeySpace.alone(BAND, read.statistics, ("orders", "payments"))], Capacity(2500))
    assert text.startswith(f"adsp: 4 tasks, {scheme.summary}\nmain predicate: l.k = r.k (range)\norders: 4,000 tuples (")
    assert "capacity 2,500, so that the fullest is 8" in text
    assert "replication: a tuple is held by 1.0" in text
    assert len(text.splitlines()) == 5 + 1 + 1 + 4
    assert text.splitlines()[7].split()[:2] == ["0", "below"]


def test_what_the_manifest_says_is_what_the_window_holds_at_the_expected_rates() -> None:
    window = Window(WindowKind.RANGE, before_micros=10_000_000, after_micros=60_000_000)
    cases: list[tuple[Expected, Window, Expected]] = [
        ((100, 200), window, (6000, 2000)),
        ((100, None), window, (6000, 1000)),
        ((None, None), window, (0, 0)),
        ((None, None), Window(WindowKind.ROWS, rows=7), (7, 7)),
        ((3, 4), Window(WindowKind.UNBOUNDED), (3, 4)),
        ((None, 4), Window(WindowKind.UNBOUNDED), (4, 4)),
    ]
    for rates, held_in, tuples in cases:
        found = expected_statistics(rates, expected_tuples(rates, held_in))
        assert tuple(side.tuples for side in found) == tuples


@pytest.mark.parametrize(
    ("bound", "encoding", "type_", "text"),
    [
        (1234567, Encoding.INTEGER, BIGINT, "1,234,567"),
        (-125, Encoding.INTEGER, DataType(TypeName.DECIMAL, 9, 2), "-1.25"),
        (20455, Encoding.INTEGER, DataType(TypeName.DATE), "2026-01-02"),
        (1767312000000000, Encoding.INTEGER, DataType(TypeName.TIMESTAMP), "2026-01-02 00:00:00Z"),
        (2**62, Encoding.INTEGER, DataType(TypeName.TIMESTAMP), str(2**62)),
        (0.5, Encoding.FLOAT, DataType(TypeName.DOUBLE), "0.5"),
        (0, Encoding.HASH, BIGINT, "hash 50.0%"),
        (int.from_bytes(b"EUR\0\0\0\0\0", "big") - 2**63, Encoding.PREFIX, DataType(TypeName.STRING), "'EUR'"),
    ],
)
def test_bounds_are_shown_as_the_values_that_they_encode(bound: float, encoding: Encoding, type_: DataType, text: str) -> None:
    assert key_text(bound, KeyExpression(("k",), (type_,), encoding)) == text


def test_a_change_is_reported_with_what_would_move_otherwise() -> None:
    read = read_stats(stats(left={"tuples": 4000}, right={"tuples": 4000}), ALL)
    first = make_plan("square", read.statistics, ALL, tasks=4)
    change = make_plan("square", read.statistics, ALL, tasks=6, current=first.plan)
    lines = report_change(first.plan, change, read.statistics).splitlines()
    assert lines[0] == "from plan 1, 4 tasks, to plan 2:"
    numbers = {line.split()[0]: int(line.split()[1].replace(",", "")) for line in lines[1:7] if not line.startswith("  by number")}
    assert numbers == {"moved": 6667, "kept": 13333, "deleted": 2667, "greedy": 6667, "naive": 20000}
    assert lines[7].startswith("  task 4 (new) gets 2,")
    same = make_plan("square", read.statistics, ALL, tasks=4, current=first.plan)
    assert "nothing moves" in report_change(first.plan, same, read.statistics)


def test_a_saved_plan_is_read_back_and_one_of_another_join_is_refused() -> None:
    read = read_stats(stats(), HASH)
    plan = Plan.initial(plan_for_tasks("hash", read.statistics, HASH, 3))
    assert read_plan(json.dumps(plan.to_json()), HASH) == plan
    with pytest.raises(PlanError, match=r"plan.scheme: no area covers every pair .* is it a plan of this join"):
        read_plan(json.dumps(plan.to_json()), BAND)
    with pytest.raises(PlanError, match=r"line 1, column 1: .*must be JSON"):
        read_plan("plan", HASH)


# Three and more streams.

STREAMS = {name: parse_schema("id BIGINT, k INT, v DOUBLE, s STRING") for name in "abcd"}
CHAIN = Layout.of_graph(join_graph("a.id = b.id AND abs(b.v - c.v) <= 0.5 AND c.k BETWEEN d.k - 3 AND d.k + 9", STREAMS))
PLACES = ["a by id", "b by id", "b by v", "c by k", "c by v", "d by k"]
STAR = Layout.of_graph(join_graph("a.id = b.id AND a.id = c.k AND d.id = a.id", STREAMS))


def chain_stats(seed: int = 7, rows: int = 500) -> str:
    rng = np.random.default_rng(seed)
    values, whole = ((rng.normal(0, 40, rows).round(2).tolist(), rng.integers(-900, 900, rows).tolist()) for _ in range(2))
    of_c = {"v": {"keys": values[0]}, "k": {"keys": values[1]}}
    given = {"a": {"tuples": 4000}, "b": {"tuples": 3000, "by": {"v": {"keys": whole[0]}}}, "c": {"tuples": 2000, "by": of_c}}
    return json.dumps(given | {"d": {"tuples": 1000, "keys": whole[1]}, "capacity": 900})


def chain_key_spaces() -> tuple[tuple[KeySpace, ...], Statistics]:
    key_spaces = key_spaces_of(CHAIN, tuple(STREAMS), read_stats_by_stream(chain_stats(), tuple(STREAMS), CHAIN.places).places)
    return key_spaces, statistics_of(key_spaces)


def test_key_spaces_have_every_place_once_with_its_key() -> None:
    key_spaces, statistics = chain_key_spaces()
    assert sorted(text for key_space in key_spaces for text in key_space.texts) == PLACES
    assert [key_space.main.text for key_space in key_spaces] == ["a.id = b.id", "abs(b.v - c.v) <= 0.5", "c.k BETWEEN d.k - 3 AND d.k + 9"]
    assert sum(side.tuples for side in statistics.sides) == 4000 + 2 * 3000 + 2 * 2000 + 1000
    read = read_stats_by_stream(json.dumps({name: {"tuples": 10} for name in "abcd"}), "abcd", STAR.places)
    (star,) = key_spaces_of(STAR, "abcd", read.places)
    assert star.headings == ("a by id", "b by id, c by k and d by id")
    assert star.main.text == "a.id = b.id; a.id = c.k; d.id = a.id"


@pytest.mark.parametrize("model", MODELS)
def test_what_a_key_space_shows_holds_every_pair_that_its_predicate_admits_once(model: str) -> None:
    key_spaces, statistics = chain_key_spaces()
    scheme = make_plan(model, statistics, CHAIN.main, tasks=6).plan.scheme
    rng = np.random.default_rng(3)

    def has(keys: KeyRange, key: float) -> bool:
        return (keys.low is None or keys.low <= key) and (keys.high is None or key < keys.high)

    for key_space, (draw, low, high) in zip(
        key_spaces,
        [
            (lambda: int(rng.integers(-(2**60), 2**60)) * 8, 0, 0),
            (lambda: float(rng.normal(0, 40)), -0.5, 0.5),
            (lambda: int(rng.integers(-900, 900)), -9, 3),
        ],
        strict=True,
    ):
        shown = key_space.of(scheme)
        for _ in range(300):
            left = draw()
            right = left + (rng.uniform(low, high) if isinstance(left, float) else int(rng.integers(low, high, endpoint=True)))
            for holder in (LEFT, RIGHT):
                found = [area for area in shown.areas if area.holds[holder] and has(area.keys[LEFT], left) and has(area.keys[RIGHT], right)]
                assert sum(area.units[LEFT].size * area.units[RIGHT].size for area in found) == UNITS**2, (left, right)


@pytest.mark.parametrize("model", MODELS)
def test_what_tasks_hold_is_what_the_key_spaces_show_together(model: str) -> None:
    key_spaces, statistics = chain_key_spaces()
    scheme = make_plan(model, statistics, CHAIN.main, tasks=6).plan.scheme
    together = sum(loads(key_space.of(scheme), key_space.statistics) for key_space in key_spaces)
    assert together == pytest.approx(loads(scheme, statistics), rel=0.02, abs=10)


@pytest.mark.parametrize("model", KEYED)
def test_keys_of_hashed_key_spaces_are_cut_though_nothing_is_known_of_them(model: str) -> None:
    read = read_stats_by_stream(json.dumps({name: {"tuples": 1000} for name in "abcd"}), "abcd", STAR.places)
    key_spaces = key_spaces_of(STAR, "abcd", read.places)
    planned = make_plan(model, statistics_of(key_spaces), STAR.main, capacity=Capacity(500))
    assert planned.plan.workers == 8
    text = report(planned.plan.scheme, statistics_of(key_spaces), key_spaces, Capacity(500))
    assert "a by id: 1,000 tuples (hashed evenly), b by id, c by k and d by id: 3,000 tuples (hashed evenly)" in text
    assert "a tuple is held by 1.00 tasks on average" in text
    assert "from hash 50.0% to hash 62.5%" in text


def test_the_report_has_a_table_for_each_key_space_in_its_own_keys() -> None:
    key_spaces, statistics = chain_key_spaces()
    scheme = make_plan("adsp", statistics, CHAIN.main, tasks=4).plan.scheme
    text = report(scheme, statistics, key_spaces, Capacity(10_000))
    head, *tables = text.split("\n\n")
    assert "which no key serves" not in head
    assert "b by v: 3,000 tuples (" in head
    assert "replication: for each of its keys, a tuple is held by " in head
    assert [table.splitlines()[0] for table in tables] == [f"{key_space.main.text}:" for key_space in key_spaces]
    for key_space, table in zip(key_spaces, tables, strict=True):
        heading, *rows = table.splitlines()[1:]
        assert heading.split("  ")[0] == "tasks"
        assert all(name in heading for name in key_space.headings)
        assert rows
        bounds = [float(bound.replace(",", "")) for bound in re.findall(r"(?:from|below|to) (-?[\d.,]+)", " ".join(rows))]
        assert all(abs(bound) < 1000 for bound in bounds), "bounds are keys, not encoded keys"


def test_where_no_key_serves_a_key_space_says_so_of_it_alone() -> None:
    layout = Layout.of_graph(join_graph("a.id = b.id AND length(concat(b.s, c.s)) > 3", {name: STREAMS[name] for name in "abc"}))
    read = read_stats_by_stream(json.dumps({name: {"tuples": 100} for name in "abc"}), "abc", layout.places)
    key_spaces = key_spaces_of(layout, "abc", read.places)
    scheme = make_plan("adsp", statistics_of(key_spaces), layout.main, tasks=4).plan.scheme
    lines = report(scheme, statistics_of(key_spaces), key_spaces).splitlines()
    assert [line for line in lines if "no key serves" in line] == [
        "main predicate: length(concat(b.s, c.s)) > 3 (all), which no key serves: each tuple of one stream meets every one of the other"
    ]
    assert "b: 100 tuples (keys do not matter), c: 100 tuples (keys do not matter)" in lines


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"e": 1}, "e: must be an object of a, b, c, d and capacity"),
        ({"d": None}, "d: is missing; give at least"),
        ({"d": 5}, "d: 5; give at least"),
        ({"d": {"tuples": -1}}, "d.tuples: -1 must be a number"),
        ({"b": {"tuples": 1, "keys": [1]}}, r"b: it is held by several keys; say how each of them is spread: by\.id, by\.v"),
        ({"b": {"tuples": 1, "by": {"w": {}}}}, 'b.by: {"w": {}} must be an object of id and v: by these keys it is held'),
        ({"b": {"tuples": 1, "by": {"v": [1]}}}, "b.by.v: .1. must be an object of keys or histogram"),
        ({"b": {"tuples": 1, "by": {"v": {"keys": ["x"]}}}}, "b.by.v.keys: must be values of type DOUBLE"),
        ({"capacity": 0}, "capacity: 0 must be a positive number"),
    ],
)
def test_what_is_wrong_with_statistics_of_many_streams_is_said_by_stream(changes: dict[str, object], message: str) -> None:
    with pytest.raises(StatsError, match=message):
        read_stats_by_stream(json.dumps(json.loads(chain_stats()) | changes), tuple(STREAMS), CHAIN.places)
