"""Runs: views, sorting, merging, and the policy that says which runs to merge."""

from __future__ import annotations

import itertools
import math
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest

from streamjoin.kernel.run import Run, merge_runs, sort_order, sort_run, tiers
from streamjoin.language.predicate import INT64_MAX, INT64_MIN
from streamjoin.language.window import Window, WindowKind

UNBOUNDED = Window(WindowKind.UNBOUNDED)


def held(keys: list[int] | list[float], times: list[int] | None = None, **payload: pa.Array) -> pa.RecordBatch:
    is_float = any(isinstance(key, float) for key in keys)
    columns = {"_key": pa.array(keys, pa.float64() if is_float else pa.int64()), "_unit": pa.array(range(len(keys)), pa.uint32())}
    if times is not None:
        columns["_time"] = pa.array(times, pa.int64())
    return pa.RecordBatch.from_pydict({**columns, **payload})


def test_a_run_views_its_batch_without_copying() -> None:
    batch = held([1, 2, 2, 9], [5, -3, 8, 0])
    run = Run.of(batch)
    run.check()
    assert run.key.tolist() == [1, 2, 2, 9]
    assert (run.rows, run.time_min, run.time_max, run.aux) == (4, -3, 8, None)
    assert run.key.ctypes.data == batch.column("_key").buffers()[1].address
    assert not run.key.flags.writeable
    part = Run.of(batch.slice(1, 2))
    part.check()
    assert (part.key.tolist(), part.unit.tolist(), part.time_min) == ([2, 2], [1, 2], -3)


def test_an_empty_run_has_no_times() -> None:
    run = Run.of(held([], []))
    run.check()
    assert (run.rows, run.time_min, run.time_max) == (0, None, None)


@pytest.mark.parametrize(
    ("columns", "complaint"),
    [
        ({"_unit": pa.array([1], pa.uint32()), "_key": pa.array([1])}, "must begin with _key, _unit"),
        ({"_key": pa.array([1], pa.int32()), "_unit": pa.array([1], pa.uint32())}, "_key is int32"),
        ({"_key": pa.array([None], pa.int64()), "_unit": pa.array([1], pa.uint32())}, "_key is int64 with 1 nulls"),
        ({"_key": pa.array([1]), "_unit": pa.array([1])}, "_unit is int64"),
        ({"_key": pa.array([1]), "_unit": pa.array([1], pa.uint32()), "_aux": pa.array([1])}, "_aux out of place"),
        ({"_key": pa.array([1]), "_unit": pa.array([1], pa.uint32()), "a": pa.array([1]), "_time": pa.array([1])}, "_time out of place"),
    ],
)
def test_a_batch_that_is_not_held_tuples_is_refused(columns: dict[str, pa.Array], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        Run.of(pa.RecordBatch.from_pydict(columns))


def test_check_notices_keys_out_of_order() -> None:
    with pytest.raises(AssertionError, match="ascend"):
        Run.of(held([2, 1])).check()


KEYS: dict[str, Callable[[random.Random], int | float]] = {
    "few": lambda rng: rng.randint(-2, 2),
    "close": lambda rng: 10**15 + rng.randint(0, 5000),
    "any integer": lambda rng: rng.randint(INT64_MIN, INT64_MAX),
    "extremes": lambda rng: rng.choice((INT64_MIN, INT64_MIN + 1, -1, 0, 1, INT64_MAX - 1, INT64_MAX)),
    "close, far apart": lambda rng: rng.choice((INT64_MIN, 0, 2**62)) + rng.randint(0, 3000),
    "floats": lambda rng: rng.uniform(-1, 1) * 10.0 ** rng.randint(-300, 300),
    "round floats": lambda rng: float(rng.randint(-9, 9)),
    "odd floats": lambda rng: rng.choice((math.inf, -math.inf, 0.0, 5e-324, -5e-324, 1.0, -1.0, 1e308)),
}


@pytest.mark.parametrize("by_numpy", [False, True])
@pytest.mark.parametrize("draw", KEYS.values(), ids=KEYS)
def test_sort_order_is_the_stable_order_of_the_keys(
    draw: Callable[[random.Random], int | float], by_numpy: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("streamjoin.kernel.run._numpy_is_faster", lambda: by_numpy)
    for seed, rows in enumerate((0, 1, 2, 3, 10, 500, 5000)):
        rng = random.Random(seed)
        keys = [draw(rng) for _ in range(rows)]
        is_float = any(isinstance(key, float) for key in keys)
        order = sort_order(np.array(keys, np.float64 if is_float else np.int64))
        assert order.dtype == np.int64
        assert order.tolist() == sorted(range(rows), key=keys.__getitem__), f"seed {seed}: {keys}"


def test_sort_order_leaves_its_argument_alone() -> None:
    keys = np.array([3, 1, 2])
    keys.flags.writeable = False
    assert sort_order(keys).tolist() == [1, 2, 0]
    assert sort_order(np.array([1, 2, 2, 7])).tolist() == [0, 1, 2, 3]


def some_payload(rng: random.Random, rows: int) -> dict[str, pa.Array]:
    def maybe(value: object) -> object:
        return value if rng.random() < 0.8 else None

    return {
        "id": pa.array([maybe(rng.randint(0, 99)) for _ in range(rows)], pa.int64()),
        "name": pa.array([maybe("x" * rng.randint(0, 5)) for _ in range(rows)], pa.string()),
        "price": pa.array([maybe(Decimal(rng.randint(0, 999)) / 100) for _ in range(rows)], pa.decimal128(9, 2)),
        "flag": pa.array([maybe(rng.random() < 0.5) for _ in range(rows)], pa.bool_()),
    }


def rows_of(*batches: pa.RecordBatch) -> Counter[tuple[object, ...]]:
    return Counter(tuple(row.values()) for batch in batches for row in batch.to_pylist())


def test_sorting_keeps_every_row_whole() -> None:
    rng = random.Random(1)
    batch = held([rng.randint(0, 50) for _ in range(200)], [rng.randint(0, 9) for _ in range(200)], **some_payload(rng, 200))
    result = sort_run(batch.slice(20, 150))
    Run.of(result).check()
    assert result.schema == batch.schema
    assert rows_of(result) == rows_of(batch.slice(20, 150))


@pytest.mark.parametrize("draw", KEYS.values(), ids=KEYS)
def test_a_merge_keeps_every_unexpired_tuple_once(draw: Callable[[random.Random], int | float]) -> None:
    for seed in range(25):
        rng = random.Random(seed)
        runs = []
        for _ in range(rng.choice((1, 2, 3, 5, 9))):
            count = rng.choice((0, 1, 7, 60))
            # Each run has its own range of times, so that some expire whole, some not at all, some in part.
            start = rng.randint(0, 100)
            keys = sorted(draw(rng) for _ in range(count + 1))
            batch = held(keys, [start + rng.randint(0, 20) for _ in keys], **some_payload(rng, count + 1))
            runs.append(Run.of(batch.slice(0, count)))
        bound = rng.choice((None, 0, 30, 60, 500))
        merged = merge_runs(runs, bound)
        merged.check()
        expected = rows_of(*(run.batch for run in runs))
        if bound is not None:
            expected = Counter({row: count for row, count in expected.items() if row[2] >= bound})  # type: ignore[operator]
        assert rows_of(merged.batch) == expected, f"seed {seed}"
        assert merged.batch.schema == runs[0].batch.schema


def test_a_merge_without_times_drops_nothing() -> None:
    runs = [Run.of(held([1, 3])), Run.of(held([2]))]
    assert merge_runs(runs, drop_before=10).key.tolist() == [1, 2, 3]


def test_a_merge_of_one_whole_run_is_that_run() -> None:
    runs = [Run.of(held([], [])), Run.of(held([1, 3], [5, 6])), Run.of(held([2], [0]))]
    assert merge_runs(runs, drop_before=5) is runs[1]


@dataclass(frozen=True)
class Sketch:
    """A run as the merge policy sees it; ``first`` is the time of its first tuple, ``widest`` its widest epoch."""

    rows: int
    time_max: int | None
    first: int = 0
    widest: int = 0
    rewrites: int = 0
    nbytes: int = 0


def together(group: Sequence[Sketch]) -> Sketch:
    times = [run.time_max for run in group if run.time_max is not None]
    return Sketch(
        sum(run.rows for run in group),
        max(times, default=None),
        min(run.first for run in group),
        max(run.widest for run in group),
        max(run.rewrites for run in group) + 1,
        sum(run.nbytes for run in group),
    )


def apply(runs: list[Sketch], groups: list[list[int]]) -> list[Sketch]:
    positions = list(itertools.chain.from_iterable(groups))
    assert len(positions) == len(set(positions))
    assert all(len(group) > 1 for group in groups)
    kept = [run for position, run in enumerate(runs) if position not in positions]
    return kept + [together([runs[position] for position in group]) for group in groups]


@pytest.mark.parametrize("fan_in", [2, 4, 8])
@pytest.mark.parametrize("kind", list(WindowKind))
@pytest.mark.parametrize("steady", [True, False])
def test_tiers_keep_runs_few_rewrites_rare_and_spans_short(fan_in: int, kind: WindowKind, steady: bool) -> None:
    length = 800
    window = {
        WindowKind.UNBOUNDED: UNBOUNDED,
        WindowKind.ROWS: Window(kind, rows=length),
        WindowKind.RANGE: Window(kind, before_micros=300, after_micros=500),
    }[kind]
    rng = random.Random(fan_in)
    runs: list[Sketch] = []
    for epoch in range(3000):
        rows, width = (100, 1) if steady else (rng.choice((1, 10, 100, 5000)), rng.randint(1, length // 8))
        runs.append(Sketch(rows, epoch, epoch - width, width))
        if kind is not WindowKind.UNBOUNDED:
            runs = [run for run in runs if run.time_max is not None and run.time_max >= epoch - length]
        runs = apply(runs, tiers(runs, window, fan_in))
        total = sum(run.rows for run in runs)
        growing = (fan_in - 1) * (1 + math.log(total, fan_in))
        settled = 0 if kind is WindowKind.UNBOUNDED else 9 * (2 + math.log(total, 3))
        # One more size class may be about to overflow: a call merges once, not until nothing changes.
        assert len(runs) <= growing + settled + fan_in, f"epoch {epoch}: {runs}"
        assert max(run.rewrites for run in runs) <= math.log(total, fan_in) + math.log(total, 1.5) + 1, f"epoch {epoch}: {runs}"
        if kind is not WindowKind.UNBOUNDED:
            for run in runs:
                assert run.time_max is not None
                assert run.time_max - run.first <= length // 8 + max(run.widest, length // 8), f"epoch {epoch}: {run}"
    if steady:
        assert len(runs) <= (fan_in - 1) * (1 + math.log(3000, fan_in)) + (0 if kind is WindowKind.UNBOUNDED else 9)
        assert max(run.rewrites for run in runs) <= 2 + math.log(3000, fan_in)


def test_tiers_applied_again_and_again_come_to_an_end() -> None:
    window = Window(WindowKind.RANGE, before_micros=80, after_micros=80)
    for seed in range(50):
        rng = random.Random(seed)
        runs = [Sketch(rng.choice((1, 3, 10, 999, 10**6)), rng.randint(0, 400)) for _ in range(rng.randint(0, 200))]
        rounds = 0
        while groups := tiers(runs, window):
            runs = apply(runs, groups)
            rounds += 1
            assert rounds < 20, f"seed {seed}: {runs}"
        total = sum(run.rows for run in runs)
        assert len(runs) <= 3 * (1 + math.log(total or 1, 4)) + 17 * (2 + math.log(total or 1, 3)), f"seed {seed}: {runs}"


def test_tiers_make_no_run_larger_than_the_limit() -> None:
    for seed in range(50):
        rng = random.Random(seed)
        runs = [Sketch(size, 0, nbytes=size) for size in (rng.choice((1, 30, 60, 90, 400)) for _ in range(40))]
        while groups := tiers(runs, UNBOUNDED, bytes_limit=100):
            assert all(sum(runs[position].nbytes for position in group) <= 100 for group in groups), f"seed {seed}: {groups}"
            runs = apply(runs, groups)
        assert len(runs) <= sum(run.nbytes >= 50 for run in runs) + 3 * (1 + math.log(50, 4)), f"seed {seed}: {runs}"


def test_tiers_leave_empty_and_lone_runs_alone() -> None:
    window = Window(WindowKind.RANGE, before_micros=0, after_micros=0)
    assert tiers([], window) == []
    assert tiers([Sketch(5, 1)], window) == []
    assert tiers([Sketch(0, None), Sketch(0, None), Sketch(5, 1), Sketch(5, 1000)], window) == []


def test_late_watermarks_do_not_multiply_the_runs() -> None:
    window = Window(WindowKind.RANGE, before_micros=0, after_micros=1)
    runs: list[Sketch] = []
    for epoch in range(2000):
        runs = [run for run in runs if run.time_max is not None and run.time_max >= epoch - 1000] + [Sketch(50, epoch)]
        runs = apply(runs, tiers(runs, window))
        assert len(runs) < 50, f"epoch {epoch}: {runs}"
