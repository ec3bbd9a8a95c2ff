"""What ``streamjoin plan`` reads and reports."""

from __future__ import annotations

import json

import numpy as np
import pyarrow as pa
import pytest

from streamjoin.cli.planning import StatsError, expected_statistics, key_text, make_plan, read_plan, read_stats, report, report_change
from streamjoin.elastic.deployment import Expected, expected_tuples
from streamjoin.elastic.plan import Plan, PlanError
from streamjoin.kernel.keys import encode_keys
from streamjoin.language.predicate import Encoding, KeyExpression, MainKind, MainPredicate
from streamjoin.language.schema import Column, Schema
from streamjoin.language.sides import LEFT, RIGHT
from streamjoin.language.types import DataType, TypeName
from streamjoin.language.window import Window, WindowKind
from streamjoin.scheme.capacity import Capacity
from streamjoin.scheme.models import plan_for_tasks


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
    text = report(scheme, read.statistics, BAND, ("orders", "payments"), Capacity(2500))
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
        assert tuple(side.tuples for side in found.sides) == tuples


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
