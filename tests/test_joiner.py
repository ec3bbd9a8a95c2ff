"""Joins of two runs with residual, window, output filter and projection, against nested loops in plain Python."""

from __future__ import annotations

import pickle
import random
from collections import Counter
from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pytest

from streamjoin.kernel.expansion import between
from streamjoin.kernel.joiner import Joiner
from streamjoin.kernel.run import Run, sort_run
from streamjoin.language.ddl import parse_schema
from streamjoin.language.predicate import Encoding, KeyExpression, MainKind, MainPredicate
from streamjoin.language.sql import parse_boolean, parse_projection
from streamjoin.language.window import Window, WindowKind

SCHEMAS = {
    "orders": parse_schema("id BIGINT, price BIGINT, currency STRING"),
    "payments": parse_schema("id BIGINT, price BIGINT, currency STRING"),
}
PRICE = KeyExpression(("price",), (), Encoding.INTEGER)
CLOSE = MainPredicate(MainKind.RANGE, (PRICE, PRICE), -2, 3)
WINDOW = Window(WindowKind.RANGE, before_micros=20, after_micros=30)
UNBOUNDED = Window(WindowKind.UNBOUNDED)

Row = dict[str, object]


def joiner(
    main: MainPredicate = CLOSE,
    window: Window = WINDOW,
    residual: str | None = None,
    where: str | None = None,
    select: tuple[str, ...] = ("orders.id AS order_id", "payments.id AS payment_id"),
    chunk_pairs: int = 1 << 17,
) -> Joiner:
    recheck, filter_ = (None if text is None else parse_boolean(text, SCHEMAS) for text in (residual, where))
    output = [parse_projection(text, SCHEMAS) for text in select]
    return Joiner(main, window, recheck, filter_, output, ("orders", "payments"), chunk_pairs)


def some_rows(rng: random.Random, count: int) -> list[Row]:
    currencies = ("EUR", "USD", None)
    rows = range(count)
    return [{"id": i, "price": rng.randint(0, 40), "currency": rng.choice(currencies), "time": rng.randint(0, 100)} for i in rows]


def run_of(rows: list[Row], window: Window = WINDOW) -> Run:
    columns = {
        "_key": pa.array([row["price"] for row in rows], pa.int64()),
        "_unit": pa.array([0] * len(rows), pa.uint32()),
        **({"_time": pa.array([row["time"] for row in rows], pa.int64())} if window.has_time else {}),
        "id": pa.array([row["id"] for row in rows], pa.int64()),
        "price": pa.array([row["price"] for row in rows], pa.int64()),
        "currency": pa.array([row["currency"] for row in rows], pa.string()),
    }
    return Run.of(sort_run(pa.RecordBatch.from_pydict(columns)))


def pairs_of(batches: list[pa.RecordBatch]) -> Counter[tuple[object, ...]]:
    return Counter(tuple(row.values()) for batch in batches for row in batch.to_pylist())


def matches(left: list[Row], right: list[Row], condition: Callable[[Row, Row], bool], window: Window = WINDOW) -> list[tuple[Row, Row]]:
    def near(a: Row, b: Row) -> bool:
        return not window.has_time or -20 <= b["time"] - a["time"] <= 30  # type: ignore[operator]

    return [(a, b) for a in left for b in right if -2 <= b["price"] - a["price"] <= 3 and near(a, b) and condition(a, b)]  # type: ignore[operator]


FILTERS: list[tuple[str | None, str | None, Callable[[Row, Row], bool]]] = [
    (None, None, lambda a, b: True),
    ("orders.currency = payments.currency", None, lambda a, b: a["currency"] is not None and a["currency"] == b["currency"]),
    (None, "orders.id < payments.id", lambda a, b: a["id"] < b["id"]),  # type: ignore[operator]
    (
        "orders.currency <> payments.currency",
        "orders.id + payments.id > 20 AND orders.currency = 'EUR'",
        lambda a, b: a["currency"] == "EUR" and b["currency"] == "USD" and a["id"] + b["id"] > 20,  # type: ignore[operator]
    ),
    ("orders.id > 1000000", "orders.id < payments.id", lambda a, b: False),
    (
        "orders.price = 7 AND payments.price = 7 AND orders.id = payments.id",
        None,
        lambda a, b: a["price"] == b["price"] == 7 and a["id"] == b["id"],
    ),
]


@pytest.mark.parametrize(("residual", "where", "condition"), FILTERS, ids=[f"{residual} / {where}" for residual, where, _ in FILTERS])
@pytest.mark.parametrize("chunk_pairs", [1, 2, 7, 1 << 17])
@pytest.mark.parametrize("window", [WINDOW, UNBOUNDED], ids=lambda window: window.kind)
def test_a_join_yields_every_match_once(
    residual: str | None, where: str | None, condition: Callable[[Row, Row], bool], chunk_pairs: int, window: Window
) -> None:
    for seed, (left_count, right_count) in enumerate(((25, 40), (40, 10), (0, 5), (5, 0), (1, 1))):
        rng = random.Random(seed)
        left, right = some_rows(rng, left_count), some_rows(rng, right_count)
        join = joiner(window=window, residual=residual, where=where, chunk_pairs=chunk_pairs)
        batches = list(join.join(run_of(left, window), run_of(right, window)))
        expected = Counter((a["id"], b["id"]) for a, b in matches(left, right, condition, window))
        assert pairs_of(batches) == expected, f"seed {seed}: {left} x {right}"
        assert all(0 < batch.num_rows <= chunk_pairs for batch in batches)
        assert all(batch.schema == join.output_schema for batch in batches)


def test_the_output_has_columns_and_expressions_of_both_sides() -> None:
    rng = random.Random(0)
    left, right = some_rows(rng, 30), some_rows(rng, 30)
    select = ("payments.currency", "orders.price + payments.price AS total", "1 AS one", "concat(orders.currency, '!') AS shout")
    join = joiner(residual="orders.id <> payments.id", select=select)
    batches = list(join.join(run_of(left), run_of(right)))
    assert join.output_schema.names == ["currency", "total", "one", "shout"]
    assert pairs_of(batches) == Counter(
        (b["currency"], a["price"] + b["price"], 1, None if a["currency"] is None else f"{a['currency']}!")  # type: ignore[operator]
        for a, b in matches(left, right, lambda a, b: a["id"] != b["id"])
    )


def test_few_survivors_come_in_few_batches() -> None:
    rows: list[Row] = [{"id": i, "price": 5, "currency": None, "time": 0} for i in range(200)]
    join = joiner(residual="orders.id = payments.id", chunk_pairs=1000)
    batches = list(join.join(run_of(rows), run_of(rows)))
    assert [batch.num_rows for batch in batches] == [200]
    assert join.candidates_seen == 200 * 200


def test_wide_tuples_come_in_chunks_of_fewer_pairs() -> None:
    rows: list[Row] = [{"id": i, "price": 5, "currency": "x" * 10_000, "time": 0} for i in range(300)]
    select = ("orders.currency AS a", "payments.currency AS b")
    batches = joiner(select=select).join(run_of(rows), run_of(rows))
    sizes = [batch.nbytes for batch, _ in zip(batches, range(3), strict=False)]
    assert all(1 << 26 < size <= 1 << 27 for size in sizes), sizes


@pytest.mark.parametrize("residual", [None, "length(orders.currency) > 0"])
def test_wide_tuples_among_narrow_ones_come_in_chunks_of_fewer_pairs(residual: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The average says nothing of them: 20 of 20,000 tuples have all the bytes, and are all that match."""
    monkeypatch.setattr("streamjoin.kernel.joiner.CHUNK_BYTES", 1 << 20)
    rng = random.Random(5)
    narrow = [{"id": i, "price": 100 * i, "currency": "x", "time": 0} for i in range(20_000)]
    wide: list[Row] = [{"id": i, "price": 50, "currency": chr(97 + i) * 2_000, "time": 0} for i in range(20)]
    partners: list[Row] = [{"id": i, "price": 50, "currency": rng.choice("ab"), "time": 0} for i in range(300)]
    select = ("orders.id AS a", "payments.id AS b", "orders.currency AS text", "concat(orders.currency, orders.currency) AS twice")
    batches = list(joiner(select=select, residual=residual).join(run_of([*narrow, *wide]), run_of(partners)))
    assert max(batch.nbytes for batch in batches) <= 1 << 20
    assert len(batches) < 60
    found = [(row["a"], row["b"], len(row["text"]), len(row["twice"])) for batch in batches for row in batch.to_pylist()]
    assert sorted(found) == [(a, b, 2_000, 4_000) for a in range(20) for b in range(300)]


def test_a_pair_wider_than_a_chunk_comes_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streamjoin.kernel.joiner.CHUNK_BYTES", 1000)
    rows: list[Row] = [{"id": i, "price": 5, "currency": "x" * (i * 300), "time": 0} for i in range(8)]
    join = joiner(select=("orders.id AS a", "payments.id AS b", "concat(orders.currency, payments.currency) AS c"))
    batches = list(join.join(run_of(rows), run_of(rows)))
    found = [(row["a"], row["b"], len(row["c"])) for batch in batches for row in batch.to_pylist()]
    assert sorted(found) == [(a, b, 300 * (a + b)) for a in range(8) for b in range(8)]
    assert all(batch.num_rows == 1 or batch.column("c").nbytes <= 1000 + 4 * (batch.num_rows + 1) for batch in batches)


def test_an_abandoned_join_counts_what_it_saw_and_leaves_the_joiner_usable() -> None:
    rows: list[Row] = [{"id": i, "price": 5, "currency": None, "time": 0} for i in range(100)]
    join = joiner(chunk_pairs=64)
    batches = join.join(run_of(rows), run_of(rows))
    next(batches)
    batches.close()  # type: ignore[attr-defined]
    assert 64 <= join.candidates_seen <= 100 * 100
    assert sum(batch.num_rows for batch in join.join(run_of(rows), run_of(rows))) == 100 * 100


def test_a_batch_keeps_its_rows_while_the_join_goes_on() -> None:
    rows: list[Row] = [{"id": i, "price": 5, "currency": "EUR", "time": 0} for i in range(20)]
    batches = list(joiner(chunk_pairs=30).join(run_of(rows), run_of(rows)))
    assert pairs_of(batches) == Counter((a["id"], b["id"]) for a in rows for b in rows)


def test_an_all_join_of_large_runs_yields_its_first_batch_at_once_and_in_bounded_memory() -> None:
    count = 200_000
    columns = {"_key": np.zeros(count, np.int64), "_unit": np.zeros(count, np.uint32), "id": np.arange(count)}
    run = Run.of(pa.RecordBatch.from_pydict(columns))
    join = joiner(MainPredicate(MainKind.ALL), UNBOUNDED, where="orders.id % 2 = 0", chunk_pairs=1 << 12)
    before, most = pa.total_allocated_bytes(), 0
    for number, batch in enumerate(join.join(run, run)):
        most = max(most, pa.total_allocated_bytes() - before)
        assert batch.num_rows <= 1 << 12
        if number == 50:
            break
    assert most < 1 << 20


def test_a_joiner_survives_pickling() -> None:
    rows: list[Row] = [{"id": i, "price": i % 4, "currency": "EUR", "time": 0} for i in range(20)]
    join = joiner(residual="orders.id < payments.id")
    again = pickle.loads(pickle.dumps(join))
    assert pairs_of(list(again.join(run_of(rows), run_of(rows)))) == pairs_of(list(join.join(run_of(rows), run_of(rows))))


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"chunk_pairs": 0}, "chunk_pairs: 0 must be at least 1"),
        ({"output": ()}, "output: no columns"),
        ({"streams": ("orders", "orders")}, "another name"),
    ],
)
def test_a_joiner_that_cannot_work_is_refused(change: dict[str, object], complaint: str) -> None:
    output = [parse_projection("orders.id", SCHEMAS)]
    arguments = {"output": output, "streams": ("orders", "payments"), **change}
    with pytest.raises(ValueError, match=complaint):
        Joiner(CLOSE, WINDOW, None, None, **arguments)  # type: ignore[arg-type]


LEAST, MOST = -(2**63), 2**63 - 1


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("before", "after", "slide"), [(20, 30, 0), (20, 30, 7), (3, 3, 20), (0, 40, 16), (40, 0, 1), (2**40, 2**41, 9)])
def test_a_window_counts_in_whole_numbers_to_the_ends_of_int64(before: int, after: int, slide: int, seed: int) -> None:
    rng = random.Random(seed)
    window = Window(WindowKind.RANGE, before_micros=before, after_micros=after, slide_micros=slide)

    def moments() -> list[int]:
        near = [rng.choice([LEAST + rng.randint(0, 60), MOST - rng.randint(0, 60), rng.randint(-60, 60)]) for _ in range(40)]
        if seed % 2:
            return [*near, LEAST, MOST, LEAST + 1, MOST - 1]
        return [moment for moment in near if (seed == 0) == (moment < 0)]

    def begin(moment: int) -> int:
        return moment // slide * slide if slide else moment

    def inside(first: int, second: int) -> bool:
        return second <= begin(first) + after if second >= first else first <= begin(second) + before

    def run(times: list[int]) -> Run:
        columns = {
            "_key": pa.array([0] * len(times), pa.int64()),
            "_unit": pa.array([0] * len(times), pa.uint32()),
            "_time": pa.array(times, pa.int64()),
            **({"_aux": pa.array(np.array(times) // slide * slide)} if slide else {}),
            "id": pa.array(range(len(times)), pa.int64()),
            "price": pa.array([0] * len(times), pa.int64()),
            "currency": pa.nulls(len(times), pa.string()),
        }
        return Run.of(sort_run(pa.RecordBatch.from_pydict(columns)))

    left, right = moments(), moments()
    wanted = Counter((i, j) for i, first in enumerate(left) for j, second in enumerate(right) if inside(first, second))
    assert pairs_of(list(joiner(window=window).join(run(left), run(right)))) == wanted
    for side, (probe, held) in enumerate([(left, right), (right, left)]):
        earliest, latest, _ = between(window, run(probe), run(held), side, slice(None))
        for moment, low, high in zip(probe, earliest.tolist(), latest.tolist(), strict=True):
            for other in held:
                first, second = (other, moment) if side else (moment, other)
                assert (low <= other <= high) == inside(first, second)
