"""Chunks of a chain, against lists of tuples: cut, taken, merged, expired, read back in part; also where positions pass 2**32."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from streamjoin.kernel.run import Run
from streamjoin.state import chunks as chunks_module
from streamjoin.state.blocks import describe, encode
from streamjoin.state.chunks import POSITIONS, Chunk, Chunks, Tuples, consolidated, in_order, read_chunks
from streamjoin.state.storage import ObjectStorage

SCHEMA = pa.schema([("_key", pa.int64()), ("_unit", pa.uint32()), ("_time", pa.int64())])
Row = tuple[int, int, int]
"""Position, key, time."""


def run_of(rows: list[Row]) -> Run:
    rows = sorted(rows, key=lambda row: row[1])
    columns = [[key for _, key, _ in rows], np.array([at % POSITIONS for at, _, _ in rows], np.uint32), [time for _, _, time in rows]]
    return Run.of(pa.RecordBatch.from_arrays([pa.array(values) for values in columns], schema=SCHEMA))


def rows_of(chunk: Chunk) -> list[Row]:
    """By position."""
    found = []
    for key, unit, time in zip(chunk.run.key.tolist(), chunk.run.unit.tolist(), chunk.run.time.tolist(), strict=True):
        found.append((chunk.first + (unit - chunk.first) % POSITIONS, key, time))
    assert chunk.run.key.tolist() == sorted(chunk.run.key.tolist())
    assert (chunk.first, chunk.last) == (min(found)[0], max(found)[0])
    return sorted(found)


def drawn(rng: random.Random, count: int, since: int) -> list[Row]:
    """Tuples one after the other, with gaps where records were left out."""
    rows, at = [], since
    for _ in range(count):
        rows.append((at, rng.randint(0, 9), at // 3 + rng.randint(-4, 4)))
        at += rng.choice([1, 1, 1, 5])
    return rows


@pytest.mark.parametrize("since", [0, POSITIONS - 20, 5 * POSITIONS - 7])
def test_chunks_are_as_lists_of_tuples_are(since: int) -> None:
    for seed in range(60):
        rng = random.Random(seed)
        rows = drawn(rng, rng.randint(1, 60), since)
        parts, left = [], list(rows)
        while left:
            size = rng.randint(1, 12)
            parts.append(left[:size])
            left = left[size:]
        shuffled = rng.sample(parts, len(parts))
        chunks = Chunks(lambda held, probing: None)
        chunks.append(Tuples(tuple(in_order([run_of(part) for part in shuffled], since))))
        assert [row for chunk in chunks for row in rows_of(chunk)] == rows
        expected = list(rows)
        while expected:
            bound = expected[0][2] + rng.randint(-3, 9)
            old = next((number for number, row in enumerate(expected) if row[2] >= bound), len(expected))
            assert (chunks.expired(bound), chunks.expired(math.inf)) == (old, len(expected))
            count = rng.randint(1, len(expected))
            taken = chunks.take(count)
            assert [row for chunk in taken.chunks for row in rows_of(chunk)] == expected[:count]
            if rng.random() < 0.2:
                chunks.prepend(taken)
            else:
                expected = expected[count:]
            assert len(chunks) == len(expected)


def test_more_tuples_than_make_one_message_expire_chunk_by_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    chunks = Chunks(lambda held, probing: None)
    chunks.append(Tuples(tuple(Chunk.of(run_of([(at, 0, at), (at + 1, 0, at + 1)]), 0, ("stored",)) for at in range(0, 10, 2))))
    monkeypatch.setattr(chunks_module, "MERGED_BYTES", 2 * next(iter(chunks)).run.nbytes)
    assert (chunks.expired(math.inf), chunks.expired(7)) == (4, 4)
    chunks.take(4)
    assert (chunks.expired(math.inf), chunks.expired(7)) == (4, 3)


@pytest.mark.parametrize("since", [0, POSITIONS - 20])
def test_neighbours_that_are_not_stored_become_one_and_stored_ones_only_small_ones(since: int) -> None:
    rng = random.Random(3)
    rows = drawn(rng, 64, since)
    stored = [Chunk.of(run_of(rows[at : at + 8]), since, (f"blocks/{at}.arrow",)) for at in range(0, 32, 8)]
    fresh = [Chunk.of(run_of(rows[at : at + 8]), since) for at in range(32, 64, 8)]
    assert [chunk.run.rows for chunk in consolidated([*stored, *fresh], 0)] == [8, 8, 8, 8, 32]
    assert [chunk.run.rows for chunk in consolidated(stored, 16)] == [16, 16]
    (whole,) = consolidated([*stored, *fresh], 64)
    assert rows_of(whole) == rows
    assert whole.blocks == ()


@pytest.mark.parametrize("since", [0, POSITIONS - 20])
def test_a_part_of_a_block_is_read_back_by_its_positions(since: int, tmp_path: Path) -> None:
    storage = ObjectStorage(str(tmp_path))
    rows = drawn(random.Random(4), 40, since)
    run = run_of(rows)
    data = encode(run.batch)
    storage.put("blocks/one.arrow", memoryview(data))
    block = describe(run.batch, name="blocks/one.arrow", place=0, generation=1, area=0, nbytes=data.size)
    for chunk in Chunk.of(run, since, ("blocks/one.arrow",)).cut(17):
        part = replace(block, unit_min=chunk.first, unit_max=chunk.last, rows=chunk.run.rows)
        (found,) = read_chunks(storage, [part], SCHEMA).chunks
        assert rows_of(found) == rows_of(chunk)
        assert found.blocks == ("blocks/one.arrow",)
