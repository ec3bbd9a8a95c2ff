"""Probes of sorted runs against the definition of each predicate and window, pair by pair in plain Python."""

from __future__ import annotations

import math
import random
import tracemalloc
from collections.abc import Callable, Iterator
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from numpy.typing import NDArray

from streamjoin.kernel import ranges, sweep
from streamjoin.kernel.probe import Candidates
from streamjoin.kernel.run import Run, sort_run
from streamjoin.language.predicate import INT64_MAX, INT64_MIN, Encoding, KeyExpression, MainKind, MainPredicate
from streamjoin.language.window import Window, WindowKind

INTEGER = KeyExpression(("k",), (), Encoding.INTEGER)
FLOAT = KeyExpression(("k",), (), Encoding.FLOAT)
UNBOUNDED = Window(WindowKind.UNBOUNDED)
ALL = MainPredicate(MainKind.ALL)
NOT_EQUAL = MainPredicate(MainKind.NOT_EQUAL, (INTEGER, INTEGER))

Key = int | float
Pair = tuple[int, int]


def between(low: Key | None, high: Key | None, *, low_strict: bool = False, high_strict: bool = False, slack: float = 0.0) -> MainPredicate:
    key = FLOAT if isinstance(low, float) or isinstance(high, float) else INTEGER
    return MainPredicate(MainKind.RANGE, (key, key), low, high, low_strict, high_strict, slack)


def run_of(keys: list[Key], times: list[int] | None = None, others: list[int] | None = None) -> Run:
    """A run whose ``_unit`` is the tuple's position in these lists."""
    is_float = any(isinstance(key, float) for key in keys)
    columns = {"_key": pa.array(keys, pa.float64() if is_float else pa.int64()), "_unit": pa.array(range(len(keys)), pa.uint32())}
    if times is not None:
        columns["_time"] = pa.array(times, pa.int64())
    if others is not None:
        columns["_aux"] = pa.array(others, pa.int64())
    run = Run.of(sort_run(pa.RecordBatch.from_pydict(columns)))
    run.check()
    return run


def chunks(main: MainPredicate, window: Window, left: Run, right: Run, size: int) -> Iterator[list[Pair]]:
    """Chunks of pairs of units."""
    for left_rows, right_rows in Candidates(main, window, left, right, size):
        assert left_rows.dtype == right_rows.dtype == np.int32
        yield list(zip(left.unit[left_rows].tolist(), right.unit[right_rows].tolist(), strict=True))


def admits(main: MainPredicate, left: Key, right: Key) -> bool:
    """The main predicate by its definition. Python's integers do not end, and its floats are the machine's."""
    if main.kind is MainKind.ALL:
        return True
    if main.kind is MainKind.NOT_EQUAL:
        return left != right
    for bound, strict, sign in ((main.low, main.low_strict, 1), (main.high, main.high_strict, -1)):
        if bound is None:
            continue
        if isinstance(left, float) and bound == 0:
            more, less = (right, left) if sign == 1 else (left, right)
        else:
            more, less = sign * (right - left), sign * bound
        if not (more > less if strict else more >= less):
            return False
    return True


def covers(window: Window, left: tuple[int, int], right: tuple[int, int]) -> bool:
    """The window by its definition; ``left`` and ``right`` are the time and, for rows, how many others came before."""
    (left_time, left_others), (right_time, right_others) = left, right
    if window.kind is WindowKind.UNBOUNDED:
        return True
    if window.kind is WindowKind.ROWS:
        if left_time < right_others:
            return left_time >= right_others - window.rows
        return right_time >= left_others - window.rows
    slide = window.slide_micros
    if not slide:
        return -window.before_micros <= right_time - left_time <= window.after_micros
    if right_time >= left_time:
        return right_time <= left_time // slide * slide + window.after_micros
    return left_time <= right_time // slide * slide + window.before_micros


@pytest.fixture(
    params=[(4, 0, 0), (4, 1 << 40, 0), (1 << 15, 256, 0), (1 << 15, 256, math.inf)],
    ids=["searched-in-small-blocks", "scanned-in-small-blocks", "as-configured", "swept"],
)
def tuning(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Small blocks and each way to find pairs, for runs that a test can check pair by pair."""
    block, ratio, matches = request.param
    monkeypatch.setattr(ranges, "BLOCK", block)
    monkeypatch.setattr(ranges, "SEARCH_RATIO", ratio)
    if matches:
        monkeypatch.setattr(sweep, "LEAST_PROBES", 1)
        monkeypatch.setattr(sweep, "MOST_MATCHES", matches)


def small_integers(rng: random.Random) -> int:
    return rng.randint(-6, 6)


def spread_integers(rng: random.Random) -> int:
    return rng.randint(-300, 300)


def edge(rng: random.Random) -> int:
    centre = rng.choice((INT64_MIN, INT64_MAX, 0, -(2**62), 2**62))
    return max(INT64_MIN, min(INT64_MAX, centre + rng.randint(-3, 3)))


def any_integers(rng: random.Random) -> int:
    return rng.randint(INT64_MIN, INT64_MAX)


def small_floats(rng: random.Random) -> float:
    return rng.randint(-8, 8) / 2


def odd_floats(rng: random.Random) -> float:
    odd = (
        math.inf,
        -math.inf,
        0.0,
        1e308,
        -1e308,
        1.7e308,
        -1.7e308,
        5e-324,
        -5e-324,
        1e16,
        1e16 + 2,
        -1e16,
        0.1,
        0.2,
        0.30000000000000004,
    )
    return rng.choice(odd)


def any_floats(rng: random.Random) -> float:
    return rng.uniform(-1, 1) * 10.0 ** rng.randint(-12, 12)


INTEGER_BOUNDS = (None, 0, 1, -1, 3, -3, 40, 2**62, -(2**62), INT64_MAX, INT64_MIN, 2**63 + 2, -(2**63) - 2, 2**64 - 1, -(2**64), 2**70)
FLOAT_BOUNDS = (None, 0.0, 0.5, -0.5, 2.0, -2.0, 0.1, 1e16, -1e16, 1e308, 5e-324, math.inf, -math.inf)


def some_main(rng: random.Random, bounds: tuple[Key | None, ...]) -> MainPredicate:
    key = FLOAT if isinstance(bounds[1], float) else INTEGER
    kind = rng.choice((MainKind.ALL, MainKind.NOT_EQUAL, *[MainKind.RANGE] * 8))
    if kind is not MainKind.RANGE:
        return MainPredicate(kind, (key, key))
    if rng.random() < 0.2:
        return MainPredicate(kind, (key, key), bounds[1], bounds[1])
    low, high = rng.choice(bounds), rng.choice(bounds)
    if low is not None and high is not None and low > high and rng.random() < 0.9:
        low, high = high, low
    return MainPredicate(kind, (key, key), low, high, rng.random() < 0.3, rng.random() < 0.3)


def some_window(rng: random.Random) -> Window:
    kind = rng.choice(list(WindowKind))
    if kind is WindowKind.UNBOUNDED:
        return UNBOUNDED
    if kind is WindowKind.ROWS:
        return Window(kind, rows=rng.choice((1, 3, 10, 100)))
    return Window(kind, rng.choice((0, 5, 30)), rng.choice((0, 7, 30)), rng.choice((0, 0, 1, 10, 45)))


def some_run(rng: random.Random, draw: Callable[[random.Random], Key], window: Window, times: tuple[int, int]) -> Run:
    count = rng.choice((0, 1, 2, 9, 25))
    keys = [draw(rng) for _ in range(count)]
    if window.kind is WindowKind.UNBOUNDED:
        return run_of(keys)
    moments = [rng.randint(*times) for _ in keys]
    if window.kind is WindowKind.ROWS:
        return run_of(keys, moments, [rng.randint(*times) for _ in keys])
    return run_of(keys, moments, [time // window.slide_micros * window.slide_micros for time in moments] if window.slide_micros else None)


def tuples(run: Run) -> list[tuple[Key, tuple[int, int]]]:
    """Key and (time, aux) by unit."""
    zeros = [0] * run.rows
    times, others = (zeros if values is None else values.tolist() for values in (run.time, run.aux))
    rows = zip(run.unit.tolist(), run.key.tolist(), zip(times, others, strict=True), strict=True)
    return [(key, moment) for _, key, moment in sorted(rows)]


@pytest.mark.usefixtures("tuning")
@pytest.mark.parametrize(
    ("draw", "bounds"),
    [
        *((draw, INTEGER_BOUNDS) for draw in (small_integers, spread_integers, edge, any_integers)),
        *((draw, FLOAT_BOUNDS) for draw in (small_floats, odd_floats, any_floats)),
    ],
    ids=lambda value: value.__name__ if callable(value) else "",
)
def test_candidates_are_the_pairs_that_predicate_and_window_admit(
    draw: Callable[[random.Random], Key], bounds: tuple[Key | None, ...]
) -> None:
    for seed in range(150):
        rng = random.Random(seed)
        main, window = some_main(rng, bounds), some_window(rng)
        overlapping = rng.random() < 0.7
        left = some_run(rng, draw, window, (0, 60))
        right = some_run(rng, draw, window, (0, 60) if overlapping else (50, 200))
        size = rng.choice((1, 2, 7, 1000))
        expected = [
            (i, j)
            for i, (left_key, left_moment) in enumerate(tuples(left))
            for j, (right_key, right_moment) in enumerate(tuples(right))
            if admits(main, left_key, right_key) and covers(window, left_moment, right_moment)
        ]
        found = list(chunks(main, window, left, right, size))
        story = f"seed {seed}: {main}, {window}, chunks of {size}, left {tuples(left)}, right {tuples(right)}"
        assert sorted(pair for chunk in found for pair in chunk) == expected, story
        assert all(len(chunk) == size for chunk in found[:-1]), story
        assert all(0 < len(chunk) <= size for chunk in found[-1:]), story


@pytest.mark.usefixtures("tuning")
@pytest.mark.parametrize("draw", [small_floats, odd_floats, any_floats])
def test_slack_widens_the_candidates_and_little_more(draw: Callable[[random.Random], float]) -> None:
    def widened(main: MainPredicate, slack: float, left: float, right: float) -> bool:
        difference, margin = Fraction(right) - Fraction(left), Fraction(slack) * (abs(Fraction(left)) + abs(Fraction(right)))
        return (main.low is None or difference >= main.low - margin) and (main.high is None or difference <= main.high + margin)

    for seed in range(60):
        rng = random.Random(seed)
        slack = rng.choice((2.0**-50, 1e-9, 0.01))
        main = replace(some_main(rng, FLOAT_BOUNDS[:-2]), kind=MainKind.RANGE, slack=slack)
        keys = [[draw(rng) for _ in range(rng.choice((0, 1, 9, 25)))] for _ in range(2)]
        left, right = run_of(keys[0] or [0.0]), run_of(keys[1] or [0.0])
        found = {pair for chunk in chunks(main, UNBOUNDED, left, right, 7) for pair in chunk}
        story = f"seed {seed}: {main}, left {tuples(left)}, right {tuples(right)}"
        for i, (left_key, _) in enumerate(tuples(left)):
            for j, (right_key, _) in enumerate(tuples(right)):
                if math.isinf(left_key) or math.isinf(right_key) or widened(main, slack, left_key, right_key):
                    assert (i, j) in found, story
                elif not widened(main, 2 * slack + 2.0**-48, left_key, right_key):
                    assert (i, j) not in found, story


def far_apart(rng: np.random.Generator, count: int) -> NDArray[np.int64]:
    return rng.integers(0, 4_000_000, count)


def with_hot_keys(rng: np.random.Generator, count: int) -> NDArray[np.int64]:
    return np.where(rng.random(count) < 0.02, rng.choice([7, 2_000_000, 3_999_999], count), far_apart(rng, count))


def in_clusters(rng: np.random.Generator, count: int) -> NDArray[np.int64]:
    return rng.integers(0, 40, count) * 100_000 + rng.integers(0, 300, count)


@pytest.mark.parametrize("draw", [far_apart, with_hot_keys, in_clusters])
@pytest.mark.parametrize("window", [UNBOUNDED, Window(WindowKind.RANGE, 20, 30)], ids=lambda window: window.kind)
@pytest.mark.parametrize("is_float", [False, True], ids=["integers", "floats"])
def test_a_sweep_of_long_runs_finds_every_pair_once(
    draw: Callable[[np.random.Generator, int], NDArray[np.int64]],
    window: Window,
    is_float: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sweep, "MOST_MATCHES", math.inf)
    for seed, counts in enumerate([(2200, 2200), (2203, 9000), (30_000, 2201)]):
        rng = np.random.default_rng(seed)
        left, right = (np.sort(draw(rng, count)) for count in counts)
        low, high = (0, 0) if is_float else (-2, 5)
        times = [rng.integers(0, 100, count) for count in counts]
        candidates = [(i, j) for i, key in enumerate(left) for j in range(*np.searchsorted(right, [key + low, key + high + 1]))]
        expected = {(i, j) for i, j in candidates if covers(window, (times[0][i], 0), (times[1][j], 0))}
        kind = np.float64 if is_float else np.int64
        runs = [run_of(keys.astype(kind).tolist(), moments.tolist()) for keys, moments in zip((left, right), times, strict=True)]
        main = between(0.0, 0.0) if is_float else between(low, high)
        interval = ranges.interval_of(main, runs[0].key, runs[1].key, 0)
        assert sweep.sweep_of(runs[0].key, runs[1].key, interval) is not None
        for size in (1 << 14, 100, 17, 3):
            found = list(chunks(main, window, runs[0], runs[1], size))
            pairs = [pair for chunk in found for pair in chunk]
            assert len(pairs) == len(expected)
            assert set(pairs) == expected
            assert all(len(chunk) == size for chunk in found[:-1])


def test_many_matches_or_few_rows_are_not_swept() -> None:
    few, many = np.arange(1 << 16) * 3, np.arange(1 << 16) // 3

    def is_swept(main: MainPredicate, probe: NDArray[np.int64], run: NDArray[np.int64]) -> bool:
        return sweep.sweep_of(probe, run, ranges.interval_of(main, probe, run, 0)) is not None

    assert is_swept(between(0, 0), few, few)
    assert not is_swept(between(0, 0), few[: sweep.LEAST_PROBES - 1], few)
    assert not is_swept(between(0, 0), many, many)
    assert not is_swept(between(0, None), few, few)
    assert not is_swept(NOT_EQUAL, few, few)


@pytest.mark.parametrize(
    "window", [UNBOUNDED, Window(WindowKind.RANGE, 20, 30), Window(WindowKind.ROWS, rows=40)], ids=lambda window: window.kind
)
@pytest.mark.parametrize(
    "main",
    [between(-3, 3), between(0, 0), between(1, None), between(-0.5, 2.0), between(0.0, None), NOT_EQUAL, ALL],
    ids=["band", "equal", "less", "float band", "float not greater", "not equal", "all"],
)
@pytest.mark.parametrize("sizes", [(2, 5000), (5000, 2), (100, 100)], ids=str)
def test_whichever_side_is_larger_the_pairs_are_the_same(main: MainPredicate, window: Window, sizes: tuple[int, int]) -> None:
    rng = random.Random(sum(sizes))
    draw = (lambda: rng.randint(0, 200) / 2) if main.is_float else (lambda: rng.randint(0, 100))
    runs = []
    for size in sizes:
        keys = [draw() for _ in range(size)]
        times = [rng.randint(0, 99) for _ in keys] if window.has_time else None
        runs.append(run_of(keys, times, [rng.randint(0, 99) for _ in keys] if window.has_aux else None))
    expected = sum(
        admits(main, left_key, right_key) and covers(window, left_moment, right_moment)
        for left_key, left_moment in tuples(runs[0])
        for right_key, right_moment in tuples(runs[1])
    )
    found = [pair for chunk in chunks(main, window, runs[0], runs[1], 1000) for pair in chunk]
    assert len(found) == len(set(found)) == expected


@pytest.mark.usefixtures("tuning")
def test_extreme_event_times_neither_wrap_nor_match() -> None:
    times = [INT64_MIN, INT64_MIN + 1, -1, 0, 1, INT64_MAX - 1, INT64_MAX]
    run = run_of([0] * len(times), times, [time // 10 * 10 if time > INT64_MIN + 10 else INT64_MIN for time in times])
    for window in (Window(WindowKind.RANGE, 1, 1), Window(WindowKind.RANGE, INT64_MAX, 0), Window(WindowKind.RANGE, 0, 2**40)):
        found = {pair for chunk in chunks(ALL, window, run, run, 3) for pair in chunk}
        assert found == {(i, j) for i, left in enumerate(times) for j, right in enumerate(times) if covers(window, (left, 0), (right, 0))}


def test_candidates_seen_counts_what_the_main_predicate_admits() -> None:
    left, right = run_of([1, 2, 3, 3], [0, 0, 0, 0]), run_of([3, 3, 4], [0, 500, 10])
    candidates = Candidates(between(0, 0), Window(WindowKind.RANGE, 100, 100), left, right, 10)
    assert candidates.seen == 0
    assert [len(rows) for rows, _ in candidates] == [2]
    assert candidates.seen == 4


def test_runs_whose_times_are_too_far_apart_are_not_compared() -> None:
    left, right = run_of([1] * 5, [0] * 5), run_of([1] * 5, [1000] * 5)
    candidates = Candidates(ALL, Window(WindowKind.RANGE, 999, 999), left, right, 10)
    assert list(candidates) == []
    assert candidates.seen == 0


def test_all_pairs_of_large_runs_come_in_bounded_memory() -> None:
    count = 300_000
    columns = {"_key": np.zeros(count, np.int64), "_unit": np.zeros(count, np.uint32)}
    run = Run.of(pa.RecordBatch.from_pydict(columns))
    tracemalloc.start()
    try:
        pairs = 0
        for left_rows, _ in Candidates(ALL, UNBOUNDED, run, run, 1 << 12):
            pairs += len(left_rows)
            if pairs > 1 << 20:
                break
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1 << 20


def test_memory_mapped_runs_are_probed_in_place(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for key in (rng.integers(0, 500, 1000), rng.integers(0, 500, 1000) / 2):
        columns = {"_key": key, "_unit": np.arange(1000, dtype=np.uint32), "_time": rng.integers(0, 100, 1000)}
        held = sort_run(pa.RecordBatch.from_pydict(columns))
        with pa.OSFile(str(tmp_path / "run.arrow"), "wb") as file, pa.ipc.new_file(file, held.schema) as writer:
            writer.write_batch(held)
        with pa.memory_map(str(tmp_path / "run.arrow")) as file:
            before = pa.total_allocated_bytes()
            run = Run.of(pa.ipc.open_file(file).get_batch(0))
            assert pa.total_allocated_bytes() == before
            assert not run.key.flags.writeable
            main = between(-2.0, 2.0) if key.dtype == np.float64 else between(-2, 2)
            for window in (UNBOUNDED, Window(WindowKind.RANGE, 20, 20)):
                mapped = sorted(pair for chunk in chunks(main, window, run, Run.of(run.batch.slice(3, 500)), 100) for pair in chunk)
                copied = sorted(pair for chunk in chunks(main, window, Run.of(held), Run.of(held.slice(3, 500)), 100) for pair in chunk)
                assert mapped == copied
                assert mapped
            del run
