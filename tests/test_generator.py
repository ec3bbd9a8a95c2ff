"""The generator: what it promises about values, times and repetition, against plain Python and the distributions' definitions."""

from __future__ import annotations

import decimal
import hashlib
import math
import pickle
from collections.abc import Callable
from datetime import UTC, date, datetime

import numpy as np
import pyarrow as pa
import pytest

from streamjoin.io.base import SourceError
from streamjoin.io.generator import GeneratorConfig, GeneratorSource
from streamjoin.io.generator_columns import ChoiceValues, HotspotValues, SequenceValues, UniformValues, Values, ZipfValues
from streamjoin.io.generator_rates import ConstantRate, DiurnalRate, RampRate, Rate, SpikeRate
from streamjoin.language.ddl import parse_schema
from streamjoin.manifest.connectors.generator import GeneratorSource as Model
from streamjoin.manifest.problem import Problem

SECOND = 1_000_000
AT = pa.field("at", pa.timestamp("us", "UTC"))


BIGINT = pa.int64()


def source(kind: pa.DataType = BIGINT, values: Values | None = None, rate: Rate | None = None, **config: object) -> GeneratorSource:
    """A stream of one generated column ``c`` and the event time."""
    return GeneratorSource(
        GeneratorConfig(rate or ConstantRate(1000.0), {"c": values or SequenceValues()}, **{"real_time": False, **config}),
        pa.schema([pa.field("c", kind), AT]),
        "at",
    )


def rows(stream: GeneratorSource, first: int, count: int) -> pa.RecordBatch:
    return stream.reader.rows(first, count)


def values(stream: GeneratorSource, count: int, first: int = 0) -> np.ndarray:
    return rows(stream, first, count).column("c").to_numpy(zero_copy_only=False)


def times(stream: GeneratorSource, count: int, first: int = 0) -> np.ndarray:
    return rows(stream, first, count).column("at").cast(pa.int64()).to_numpy()


SPECS: list[tuple[pa.DataType, Values]] = [
    (pa.int64(), SequenceValues(7)),
    (pa.int32(), UniformValues(-3, 9)),
    (pa.float64(), UniformValues(0.5, 2.5)),
    (pa.int64(), ZipfValues(1000, 1.2)),
    (pa.int64(), HotspotValues(0, 9999, 50, 0.7, 13)),
    (pa.float32(), HotspotValues(0, 1, 0.25, 0.7, 13)),
    (pa.decimal128(12, 2), UniformValues(-1.5, 99.25)),
    (pa.string(), ChoiceValues(("EUR", "USD", None))),
]


@pytest.mark.parametrize(("kind", "spec"), SPECS, ids=lambda spec: type(spec).__name__)
def test_any_range_of_rows_is_the_same_whoever_makes_it(kind: pa.DataType, spec: Values) -> None:
    stream = source(kind, spec, DiurnalRate(5000, 0.9, 7), out_of_order_micros=12345)
    whole = rows(stream, 0, 100_000)
    elsewhere = pickle.loads(pickle.dumps(stream.reader))
    for first, count in [(0, 1), (1, 40_000), (32_767, 2), (65_536, 34_464), (99_999, 1)]:
        assert elsewhere.rows(first, count).equals(whole.slice(first, count)), (first, count)


def test_the_splits_of_a_plan_are_all_rows_in_order() -> None:
    stream = source(rows=700_000)
    plan = stream.plan(None, 600_000, now=0.0)
    assert [split.first_record for split in plan.splits] == [0, 250_000, 500_000]
    assert (plan.records, plan.end_record, plan.backlog_records, plan.exhausted) == (600_000, 600_000, 100_000, False)
    made = [batch.batch for split in plan.splits for batch in stream.reader.read(split)]
    assert np.array_equal(np.concatenate([batch.column("c").to_numpy() for batch in made]), np.arange(600_000))
    rest = stream.plan(plan.position, 600_000, now=0.0)
    assert (rest.records, rest.end_record, rest.exhausted) == (100_000, 700_000, True)
    assert stream.plan(rest.position, 600_000, now=0.0).splits == ()


def test_values_follow_from_seed_column_and_row_by_splitmix64() -> None:
    def splitmix64(state: int, number: int) -> int:
        mask = (1 << 64) - 1
        z = (state + number * 0x9E3779B97F4A7C15) & mask
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
        return z ^ (z >> 31)

    state = int.from_bytes(hashlib.blake2b(b"42/c", digest_size=8).digest(), "little")
    for low, high in [(0, 9), (-5, 2**33), (-(2**63), 2**63 - 1), (0, 2**32 - 1), (3, 3)]:
        made = values(source(pa.int64(), UniformValues(low, high), seed=42), 50, first=10**12)
        expected = [low + (splitmix64(state, 10**12 + i + 1) * (high - low + 1) >> 64) for i in range(50)]
        assert made.tolist() == expected, (low, high)


def test_seeds_and_columns_give_unrelated_values() -> None:
    spec = UniformValues(0, 2**40)
    one, other = (values(source(pa.int64(), spec, seed=seed), 1000) for seed in (1, 2))
    assert not np.intersect1d(one, other).size
    schema = pa.schema([("a", pa.int64()), ("b", pa.int64())])
    batch = GeneratorSource(GeneratorConfig(ConstantRate(1), {"a": spec, "b": spec}), schema, None).reader.rows(0, 1000)
    assert not np.intersect1d(batch.column(0), batch.column(1)).size


def test_uniform_integers_fill_the_closed_range_evenly() -> None:
    made = values(source(pa.int16(), UniformValues(-5, 4)), 100_000)
    counts = np.bincount(made.astype(np.int64) + 5, minlength=10)
    assert len(counts) == 10
    # Chi-square with 9 degrees of freedom; the 0.999 quantile is 27.9, and the seed is fixed.
    assert ((counts - 10_000) ** 2 / 10_000).sum() < 27.9


def test_zipf_frequencies_are_those_of_the_law() -> None:
    exponent, count = 1.2, 200_000
    made = values(source(pa.int64(), ZipfValues(100, exponent)), count)
    weights = [1 / (k + 1) ** exponent for k in range(100)]
    expected = np.array(weights) / sum(weights) * count
    counts = np.bincount(made, minlength=100)
    assert len(counts) == 100
    # 99 degrees of freedom: the 0.999 quantile is 148.2.
    assert ((counts - expected) ** 2 / expected).sum() < 148.2


def test_the_hot_spot_crosses_the_range_once_a_period() -> None:
    spec = HotspotValues(1000, 10_999, 100, 0.8, 10)
    stream = source(pa.int64(), spec, ConstantRate(10_000))
    made, moment = values(stream, 300_000), times(stream, 300_000)
    phase = (moment % (10 * SECOND)) / (10 * SECOND)
    low = 1000 + np.floor(phase * (10_000 - 100 + 1))
    hot = (made >= low) & (made < low + 100)
    # Besides its share, the even part falls into the window, too.
    assert hot.mean() == pytest.approx(0.8 + 0.2 * 100 / 10_000, abs=0.003)
    assert made.min() >= 1000
    assert made.max() <= 10_999


RATES: list[tuple[Rate, Callable[[float], float]]] = [
    (ConstantRate(750.0), lambda t: 750.0),
    (RampRate(100, 5000, 20), lambda t: 100 + 4900 * min(t, 20) / 20),
    (RampRate(0, 2000, 10), lambda t: 2000 * min(t, 10) / 10),
    (RampRate(3000, 50, 15), lambda t: 3000 - 2950 * min(t, 15) / 15),
    (DiurnalRate(1000, 0.8, 12), lambda t: 1000 * (1 + 0.8 * math.sin(2 * math.pi * t / 12))),
    (DiurnalRate(1000, 0.9, 8, 6), lambda t: 1000 * (1 - 0.9 * math.cos(2 * math.pi * t / 8))),
    (DiurnalRate(1000, 1.0, 5), lambda t: 1000 * (1 + math.sin(2 * math.pi * t / 5))),
    (SpikeRate(500, 5000, 7, 2, 10), lambda t: 5000 if t >= 7 and (t - 7) % 10 < 2 else 500),
    (SpikeRate(500, 50, 0, 3, 0), lambda t: 50 if t < 3 else 500),
]


@pytest.mark.parametrize(("rate", "per_second"), RATES, ids=lambda rate: type(rate).__name__)
def test_tuples_come_at_the_rate(rate: Rate, per_second: Callable[[float], float]) -> None:
    stream = source(rate=rate, start_micros=5 * SECOND)
    moments = times(stream, 60_000) - 5 * SECOND
    assert moments[0] == 0
    assert (np.diff(moments) >= 0).all()
    edges = np.arange(0, 31, 0.5)
    counts, _ = np.histogram(moments / SECOND, edges)
    for start, count in zip(edges, counts, strict=False):
        steps = 1000
        expected = sum(per_second(start + (i + 0.5) * 0.5 / steps) for i in range(steps)) * 0.5 / steps
        if start + 0.5 < moments[-1] / SECOND:
            assert count == pytest.approx(expected, abs=2 + expected * 0.01), f"{start} s"


def test_a_constant_rate_is_exact_to_the_microsecond() -> None:
    assert times(source(rate=ConstantRate(1000)), 5, first=10**9).tolist() == [(10**9 + i) * 1000 for i in range(5)]
    assert times(source(rate=ConstantRate(3)), 4).tolist() == [0, 333_333, 666_666, 1_000_000]


def test_in_real_time_rows_come_when_the_wall_clock_reaches_them() -> None:
    stream = source(rate=ConstantRate(100), real_time=True)
    first = stream.plan(None, 10_000, now=1e9)
    assert first.records == 1
    later = stream.plan(first.position, 10_000, now=1e9 + 10)
    # Rows 1 .. 1000: the one due at just that moment is there.
    assert (later.splits[0].first_record, later.end_record, later.backlog_records) == (1, 1001, 0)
    assert stream.plan(later.position, 10_000, now=1e9 + 10).splits == ()
    assert stream.plan(later.position, 10_000, now=1e9 + 5).splits == ()
    behind = stream.plan(later.position, 300, now=1e9 + 20)
    assert (behind.records, behind.backlog_records) == (300, 700)
    assert stream.plan(later.position, 300, now=1e9 + 20) == behind


def test_a_real_time_stream_ends_with_its_rows() -> None:
    stream = source(rate=ConstantRate(100), real_time=True, rows=50)
    first = stream.plan(None, 10_000, now=0.0)
    assert not first.exhausted
    last = stream.plan(first.position, 10_000, now=3600.0)
    assert (last.end_record, last.exhausted, last.backlog_records) == (50, True, 0)


def test_out_of_order_moves_times_back_and_nothing_else() -> None:
    ordered = source(rate=ConstantRate(1000))
    moved = source(rate=ConstantRate(1000), out_of_order_micros=250_000)
    back = times(ordered, 50_000) - times(moved, 50_000)
    assert back.min() >= 0
    assert back.max() <= 250_000
    assert back.mean() == pytest.approx(125_000, rel=0.02)
    assert np.array_equal(values(ordered, 1000), values(moved, 1000))


@pytest.mark.parametrize(
    ("kind", "spec", "expected"),
    [
        (pa.int8(), SequenceValues(126), [126, 127, 126, 127]),
        (pa.string(), SequenceValues(9), ["9", "10", "11", "12"]),
        (pa.date32(), SequenceValues(0), [date(1970, 1, day) for day in (1, 2, 3, 4)]),
        (pa.timestamp("us"), SequenceValues(0), [datetime(1970, 1, 1, microsecond=i) for i in range(4)]),
        (pa.decimal128(5, 2), SequenceValues(-2), [decimal.Decimal(f"{i}.00") for i in (-2, -1, 0, 1)]),
        (pa.float64(), SequenceValues(1), [1.0, 2.0, 3.0, 4.0]),
        (pa.bool_(), ChoiceValues((True,)), [True] * 4),
        (pa.decimal128(5, 2), ChoiceValues((1.1,)), [decimal.Decimal("1.10")] * 4),
        (pa.timestamp("us", "UTC"), ChoiceValues(("2026-01-01T00:00:00+02:00",)), [datetime(2025, 12, 31, 22, tzinfo=UTC)] * 4),
        (pa.int64(), ChoiceValues((None,)), [None] * 4),
        (pa.string(), UniformValues(7, 7), ["7"] * 4),
    ],
)
def test_values_have_the_declared_type(kind: pa.DataType, spec: Values, expected: list[object]) -> None:
    column = rows(source(kind, spec), 0, 4).column("c")
    assert column.type == kind
    assert column.to_pylist() == expected


@pytest.mark.parametrize(
    ("kind", "how", "message"),
    [
        ("TINYINT", {"uniform": {"min": 0, "max": 200}}, "is beyond what c (TINYINT) can be filled with"),
        ("FLOAT", {"sequence": {"start": 2**24 + 1}}, "is beyond what c (FLOAT) can be filled with"),
        ("BIGINT", {"hotspot": {"min": 0, "max": 9, "width": 11, "share": 0.5, "period": "1s"}}, "at most 10, as wide as min to max"),
        ("BOOLEAN", {"uniform": {"min": 0, "max": 1}}, "cannot fill c, which is BOOLEAN; use choice"),
        ("BIGINT", {"choice": [1, "x"]}, "is not a whole number"),
    ],
)
def test_the_manifest_refuses_values_that_do_not_fit(kind: str, how: dict[str, object], message: str) -> None:
    model = Model.model_validate({"columns": {"c": how}})
    (problem,) = model.schema_problems("spec.streams[0]", parse_schema(f"c {kind}"), None)
    assert isinstance(problem, Problem)
    assert message in problem.message


def test_the_event_time_must_be_a_timestamp() -> None:
    with pytest.raises(SourceError, match="eventTime: column id is int64; declare it as TIMESTAMP"):
        GeneratorSource(GeneratorConfig(ConstantRate(1), {"at": SequenceValues()}), pa.schema([("id", pa.int64()), AT]), "id")
