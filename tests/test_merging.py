"""Sorted sequences become one: as Arrow sorts all of their rows, whatever their keys are, with little of them in memory at a time."""

from __future__ import annotations

import datetime
import decimal
import math
import random
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from streamjoin.io.base import portions
from streamjoin.results.merging import merged

KINDS: dict[str, tuple[pa.DataType, Callable[[random.Random], Any]]] = {
    "whole numbers": (pa.int64(), lambda rng: rng.randrange(20)),
    "few numbers": (pa.int64(), lambda rng: rng.randrange(2)),
    "real numbers": (pa.float64(), lambda rng: rng.choice([math.nan, -math.inf, 0.0, -0.0, 1.5, rng.random()])),
    "texts": (pa.string(), lambda rng: "".join(rng.choice("aäz\U0001f600") for _ in range(rng.randrange(3)))),
    "bytes": (pa.binary(), lambda rng: bytes(rng.choice([0, 127, 255]) for _ in range(rng.randrange(3)))),
    "decimals": (pa.decimal128(12, 2), lambda rng: decimal.Decimal(rng.randrange(-200, 200)) / 100),
    "truth": (pa.bool_(), lambda rng: rng.random() < 0.5),
    "dates": (pa.date32(), lambda rng: datetime.date(2026, 1, 1 + rng.randrange(28))),
    "times that Python has none for": (pa.timestamp("us", "UTC"), lambda rng: rng.choice([-(2**62), 2**62, rng.randrange(9)])),
}


def sequence(rng: random.Random, kind: str, number: int) -> pa.Table:
    """Sorted rows that say where they come from."""
    of_type, draw = KINDS[kind]
    keys = [None if rng.random() < 0.1 else draw(rng) for _ in range(rng.randrange(60))]
    rows = pa.table({"key": pa.array(keys, of_type), "from": pa.repeat(number, len(keys)), "row": pa.array(range(len(keys)), pa.int64())})
    return rows.take(pc.sort_indices(rows, sort_keys=[("key", "ascending")]))


def pieces(rng: random.Random, rows: pa.Table) -> Iterator[pa.Table]:
    start = 0
    while start < rows.num_rows:
        size = rng.randrange(8)
        yield rows.slice(start, size)
        start += size


@pytest.mark.parametrize("kind", KINDS)
def test_rows_of_all_sequences_come_as_arrow_sorts_them(kind: str) -> None:
    for seed in range(40):
        rng = random.Random(f"{kind} {seed}")
        sequences = [sequence(rng, kind, number) for number in range(rng.randrange(1, 6))]
        every = pa.concat_tables(sequences)
        found = [every.slice(0, 0), *merged([pieces(rng, rows) for rows in sequences], "key")]
        assert (
            pa.concat_tables(found)
            .drop_columns("key")
            .equals(every.take(pc.sort_indices(every, sort_keys=[("key", "ascending")])).drop_columns("key"))
        ), (kind, seed)


@pytest.mark.parametrize("spread", [1, 1000])
def test_a_merge_reads_no_further_than_it_has_written_but_for_a_piece_of_each(spread: int) -> None:
    """Also where all rows have one key."""
    taken = [0] * 4

    def counted(number: int) -> Iterator[pa.Table]:
        for piece in range(50):
            taken[number] += 1
            yield pa.table({"key": pa.array([(piece * 10 + row) * spread // 1000 for row in range(10)], pa.int64())})

    written = 0
    for rows in merged([counted(number) for number in range(4)], "key"):
        written += rows.num_rows
        assert sum(taken) * 10 - written <= 2 * 4 * 10


def test_portions_are_of_whole_pieces_and_hardly_larger_than_asked_for() -> None:
    of_ten = [pa.table({"key": pa.array(range(10), pa.int64())}) for _ in range(25)]
    found = [pa.concat_tables(portion) for portion in portions(of_ten, 400)]
    assert [portion.num_rows for portion in found] == [50] * 5
    assert pa.concat_tables(found).equals(pa.concat_tables(of_ten))
    assert list(portions([], 400)) == []
