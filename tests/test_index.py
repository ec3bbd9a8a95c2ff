"""Indexes of runs: joins by other keys, and in windows that slide otherwise, than those that runs are sorted by, against nested loops."""

from __future__ import annotations

import random
from collections import Counter

import numpy as np
import pyarrow as pa
import pytest

from streamjoin.kernel.index import Indexed
from streamjoin.kernel.joiner import Joiner
from streamjoin.kernel.run import Run, sort_run
from streamjoin.language.ddl import parse_schema
from streamjoin.language.predicate import Encoding, KeyExpression, MainKind, MainPredicate
from streamjoin.language.sql import parse_projection
from streamjoin.language.window import Window, WindowKind
from streamjoin.state.store import HeldRun

SCHEMA = parse_schema("id BIGINT, price BIGINT")
SCHEMAS = {"l": SCHEMA, "r": SCHEMA}
PRICE = KeyExpression(("price",), (SCHEMA.get("price").type,), Encoding.INTEGER)
BAND = MainPredicate(MainKind.RANGE, (PRICE, PRICE), -2, 3)
UNEQUAL = MainPredicate(MainKind.NOT_EQUAL, (PRICE, PRICE))
WINDOW = Window(WindowKind.RANGE, before_micros=9, after_micros=14)
SLIDING = Window(WindowKind.RANGE, before_micros=9, after_micros=14, slide_micros=4)

Row = tuple[int, int | None, int]


def some_rows(rng: random.Random, count: int) -> list[Row]:
    return [(number, rng.choice([None, *range(20)]), rng.randint(0, 60)) for number in range(count)]


def run_of(rows: list[Row]) -> Run:
    """As held where every pair meets: all keys are 0, and units say nothing of the price."""
    batch = pa.RecordBatch.from_pydict(
        {
            "_key": pa.array([0] * len(rows), pa.int64()),
            "_unit": pa.array([number * 7919 % 1000 for number in range(len(rows))], pa.uint32()),
            "_time": pa.array([at for _, _, at in rows], pa.int64()),
            "id": pa.array([number for number, _, _ in rows], pa.int64()),
            "price": pa.array([price for _, price, _ in rows], pa.int64()),
        }
    )
    return Run.of(sort_run(batch))


def is_near(window: Window, left: int, right: int) -> bool:
    slide = window.slide_micros or 1
    earlier = min(left, right) // slide * slide
    return max(left, right) <= earlier + (window.after_micros if right >= left else window.before_micros)


@pytest.mark.parametrize("window", [WINDOW, SLIDING], ids=["every tuple's window", "sliding"])
@pytest.mark.parametrize("main", [BAND, UNEQUAL], ids=lambda main: main.kind)
def test_a_join_by_indexes_finds_every_match_once(main: MainPredicate, window: Window) -> None:
    output = [parse_projection(text, SCHEMAS) for text in ("l.id AS a", "r.id AS b")]
    for seed, sizes in enumerate(((30, 45), (45, 12), (0, 5), (5, 0), (1, 1))):
        rng = random.Random(seed)
        left, right = (some_rows(rng, count) for count in sizes)
        held = [HeldRun(run_of(rows)) for rows in (left, right)]
        indexed = Indexed(PRICE, window.slide_micros or None)
        told: Counter[tuple[int, int]] = Counter()

        def matched(left_rows: np.ndarray, right_rows: np.ndarray, *, held: list[HeldRun] = held, told: Counter = told) -> None:
            ids = (run.run.batch.column("id").to_numpy()[rows] for run, rows in zip(held, (left_rows, right_rows), strict=True))
            told.update((int(a), int(b)) for a, b in zip(*ids, strict=True))

        joiner = Joiner(main, window, None, None, output, ("l", "r"), chunk_pairs=rng.choice([3, 1 << 17]))
        batches = list(joiner.join(*(run.by(indexed, SCHEMA, times=True) for run in held), matched))
        found = Counter(pair for batch in batches for pair in zip(*(column.to_pylist() for column in batch.columns), strict=True))
        assert found == told == Counter(
            (a, b)
            for a, left_price, left_at in left
            for b, right_price, right_at in right
            if left_price is not None and right_price is not None and is_near(window, left_at, right_at)
            if (left_price != right_price if main is UNEQUAL else -2 <= right_price - left_price <= 3)
        ), f"seed {seed}"  # fmt: skip


def test_an_index_has_the_rows_with_keys_in_their_order_and_leaves_the_tuples_where_they_are() -> None:
    rows = some_rows(random.Random(7), 50)
    run = run_of(rows)
    index = Indexed(PRICE, None).of(run, SCHEMA)
    seen = index.over(run, times=True)
    assert seen.batch is run.batch
    assert seen.rows == len(seen.key) == sum(price is not None for _, price, _ in rows)
    assert (np.diff(seen.key) >= 0).all()
    assert seen.order is not None
    assert run.batch.column("price").take(pa.array(seen.order)).to_pylist() == seen.key.tolist()
    assert seen.time is not None
    assert run.batch.column("_time").take(pa.array(seen.order)).to_pylist() == seen.time.tolist()
    assert (seen.time_min, seen.time_max) == (min(seen.time), max(seen.time))
    assert index.nbytes == 20 * seen.rows


def test_an_index_by_a_slide_alone_keeps_the_order_and_takes_no_more_than_its_windows() -> None:
    run = run_of(some_rows(random.Random(8), 50))
    index = Indexed(None, 7).of(run, SCHEMA)
    seen = index.over(run, times=True)
    assert seen.order is None
    assert seen.key is run.key
    assert run.time is not None
    assert seen.aux is not None
    assert seen.aux.tolist() == [at // 7 * 7 for at in run.time.tolist()]
    assert index.nbytes == 8 * run.rows


def test_a_run_makes_each_index_once_and_counts_it() -> None:
    held = HeldRun(run_of(some_rows(random.Random(9), 50)))
    assert held.by(Indexed(None, None), SCHEMA, times=True) is held.run
    assert held.nbytes == held.run.nbytes
    held.by(Indexed(PRICE, None), SCHEMA, times=True)
    first = dict(held.indexes)
    held.by(Indexed(PRICE, None), SCHEMA, times=True)
    assert {key: id(index) for key, index in held.indexes.items()} == {key: id(index) for key, index in first.items()}
    assert held.nbytes == held.run.nbytes + sum(index.nbytes for index in first.values()) > held.run.nbytes
