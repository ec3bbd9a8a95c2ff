"""Bytes: how many of them an epoch takes, what a split does whose records are larger than expected, and records that are too large."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from harness import START, Input, MemorySource, make_batch, make_job, output_of, run_all
from joins import CASES, check_case
from streamjoin.controlplane.driver import Driver
from streamjoin.elastic.ending import map_tasks
from streamjoin.elastic.plan import Plan
from streamjoin.epoch.spec import EpochSpec
from streamjoin.io.base import Position, Records, SourcePlan, Split
from streamjoin.io.files_reader import FileRange, FilesReader, FilesSourceConfig, FilesSplit
from streamjoin.job import Job
from streamjoin.kernel.run import Run, merge_in_chunks
from streamjoin.runner.inline import InlineRunner
from streamjoin.scheme.models import plan_for_tasks
from streamjoin.state.checkpoint import Checkpoint, InputState
from streamjoin.state.storage import ObjectStorage

MIB = 1 << 20
Row = tuple[int, Any, int, int]


@dataclass(frozen=True)
class Rows:
    """Reads rows of a list, a hundred at a time, as (rid, k, v, at) with k as text."""

    rows: Sequence[Row]

    def read(self, split: Split) -> Iterator[Records]:
        for first in range(0, split.records, 100):
            start = split.first_record + first
            taken = self.rows[start : split.first_record + min(first + 100, split.records)]
            yield Records(make_batch(taken, pa.string()), None, [], first)


class RowsSource:
    """A source that can be cut anywhere."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self.reader = Rows(rows)

    def plan(
        self, position: Position | None, limit_records: int, now: float, final: bool = False, *, split_records: int | None = None
    ) -> SourcePlan:
        first, total = position["next"] if position else 0, len(self.reader.rows)
        end = min(total, first + limit_records)
        most = split_records or total
        splits = tuple(Split(first_record=at, records=min(most, end - at)) for at in range(first, end, most))
        return SourcePlan(splits, {"next": end}, end - first, total - end, end == total, end)

    def referenced(self, position: Position | None) -> frozenset[str]:
        return frozenset()


class Recorded(InlineRunner):
    """Notes the specs that it was given."""

    def __init__(self) -> None:
        super().__init__()
        self.specs: list[EpochSpec] = []

    def submit(self, spec: EpochSpec, workers: Sequence[int]) -> Any:
        self.specs.append(spec)
        return super().submit(spec, workers)


def rows_of(*widths: tuple[int, int]) -> list[Row]:
    """(count, length of k) of the parts of a stream; k is unique, and event times are in order."""
    lengths = [length for count, length in widths for _ in range(count)]
    return [(rid, f"{rid:08d}".ljust(length, "x"), 0, START + rid) for rid, length in enumerate(lengths)]


def job_of(root: Path, **epoch: Any) -> Job:
    return make_job(root, on="l.k = r.k", types=("STRING", "STRING"), window={"within": "10s"}, epoch={"maxBytes": "1Mi"} | epoch)


def driver_of(job: Job, left: Any, right: Any, runner: InlineRunner) -> Driver:
    return Driver(job, ObjectStorage(job.checkpoint), runner, sources=(left, right))


def test_epochs_take_what_fits_going_by_the_records_before_also_after_a_restart(tmp_path: Path) -> None:
    rows = rows_of((400, 10_000))
    job, runner = job_of(tmp_path), Recorded()
    driver = driver_of(job, RowsSource(rows), RowsSource(rows), runner)
    driver.start()
    results = [driver.step(), driver.step()]
    driver.stop()
    assert driver.checkpoint.input.widths == pytest.approx((10_030, 10_030), abs=30)
    runner = Recorded()
    driver = driver_of(job, RowsSource(rows), RowsSource(rows), runner)
    results += run_all(driver)
    taken = [sum(result.counts["input_bytes"]) for result in results if result is not None]
    assert max(taken) <= MIB
    assert len(taken) == 8, "the first one, which only a sample was known for, too"
    assert len(runner.specs) == 6, "no attempt was in vain"
    assert output_of(tmp_path) == Counter((rid, rid) for rid in range(400))


def test_a_stream_whose_records_grow_has_fewer_of_them_planned(tmp_path: Path) -> None:
    """The attempt that met with them ends early, and the epoch is tried again at once, with what it has learned."""
    rows = rows_of((20_000, 10), (300, 30_000), (20_000, 10))
    job, runner = job_of(tmp_path), Recorded()
    driver = driver_of(job, RowsSource(rows), RowsSource(rows), runner)
    results = run_all(driver)
    assert output_of(tmp_path) == Counter((rid, rid) for rid in range(len(rows)))
    assert max(sum(result.counts["input_bytes"]) for result in results) <= 4 * MIB, "two splits, twice as large as they are to be"
    assert len(results) < len(runner.specs) <= len(results) + 8
    early = [result.counts["input"][0] for result in results]
    assert max(early[-3:]) > 100, "wide records are forgotten when they are over"
    assert driver.checkpoint.input.widths[0] < 30_000


def test_a_plan_whose_first_epoch_meets_with_large_records_is_not_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(InlineRunner, "overlaps", False)
    rows = rows_of((60_000, 10), (200, 30_000))  # more than the first plan's sample has
    runner = Recorded()
    driver = driver_of(job_of(tmp_path, maxTuples=12_000), RowsSource(rows), RowsSource(rows), runner)
    driver.start()
    for _ in range(10):
        driver.step()
    assert driver.checkpoint.input.records == (60_000, 60_000)
    assert driver.scheme is not None
    assert driver.layout is not None
    found = driver.statistics()
    scheme, keep = map_tasks(driver.scheme, plan_for_tasks("square", found, driver.layout.main, 3), found)
    driver.put_plan(Plan(driver.checkpoint.plan.generation + 1, scheme, keep))
    while driver.step() is not None:
        pass
    assert sum(spec.handover is not None for spec in runner.specs) > 1, "an attempt at its first epoch was given up"
    status = driver.plan_status()
    assert status is not None
    assert (status.drops, status.generation) == (0, 2)
    assert output_of(tmp_path) == Counter((rid, rid) for rid in range(60_200))


def test_a_split_that_cannot_be_cut_is_read_as_it_is_the_second_time(tmp_path: Path) -> None:
    rows = rows_of((50, 100_000))
    batch = Input([make_batch(rows, pa.string())], [1])
    job, runner = job_of(tmp_path), Recorded()
    run_all(driver_of(job, MemorySource(batch.batches, [1]), MemorySource(batch.batches, [1]), runner))
    assert [spec.split_bytes for spec in runner.specs] == [2 * MIB, None]
    assert output_of(tmp_path) == Counter((rid, rid) for rid in range(50))


def test_a_record_that_is_too_large_is_a_dead_letter(tmp_path: Path) -> None:
    rows = rows_of((50, 10), (1, MIB + 1), (50, 10))
    driver = driver_of(job_of(tmp_path), RowsSource(rows), RowsSource(rows_of((101, 10))), InlineRunner())
    run_all(driver)
    assert output_of(tmp_path) == Counter((rid, rid) for rid in range(101) if rid != 50)
    totals = driver.checkpoint.totals
    assert (totals["oversized"], totals["rejected"], totals["input"]) == ([1, 0], [1, 0], [101, 101])
    (letter,) = [json.loads(line) for path in (tmp_path / "state/dead-letters").glob("*.json") for line in path.read_text().splitlines()]
    assert (letter["stream"], letter["position"]) == ("l", 50)
    assert letter["error"] == "has 1,048,577 bytes, and a record may have at most 1,048,576"
    assert letter["raw"].startswith('{"rid": 50, "k": "00000050xxx')
    assert len(letter["raw"]) == 64 * 1024


@pytest.mark.parametrize("case", CASES)
def test_what_is_cut_for_its_size_joins_alike(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Portions of a split, and runs of an area, of a few tuples each."""
    monkeypatch.setattr("streamjoin.dataplane.route.PORTION_BYTES", 400)
    monkeypatch.setattr("streamjoin.dataplane.join.CHUNK_BYTES", 600)
    check_case(case, InlineRunner(), tmp_path, 3)


def test_runs_are_merged_up_to_a_size() -> None:
    batches = [pa.record_batch({"_key": pa.array([rid, rid + 10]), "_unit": pa.array([1, 2], pa.uint32())}) for rid in range(7)]
    runs = [Run.of(batch) for batch in batches]
    merged = merge_in_chunks(runs, 3 * runs[0].nbytes)
    assert [run.rows for run in merged] == [6, 6, 2]
    assert sorted(key for run in merged for key in run.key.tolist()) == sorted([*range(7), *range(10, 17)])
    assert all(run.key.tolist() == sorted(run.key.tolist()) for run in merged)
    assert [run.rows for run in merge_in_chunks(runs, 1)] == [2] * 7


@pytest.mark.parametrize("kind", ["parquet", "json"])
def test_files_of_wide_rows_are_read_in_smaller_batches(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streamjoin.io.files_reader.READ_BYTES", 100_000)
    table = pa.table({"id": range(200), "text": [f"{i}-" + "x" * 2000 for i in range(200)]})
    ranges = []
    for number in range(20):
        part, path = table.slice(10 * number, 10), tmp_path / f"{number:02d}"
        if kind == "parquet":
            pq.write_table(part, path)
        else:
            path.write_text("".join(json.dumps(row) + "\n" for row in part.to_pylist()))
        size = path.stat().st_size
        ranges.append(FileRange(path.name, 0, 1 if kind == "parquet" else size, 10, size))
    pq.write_table(table, tmp_path / "all", compression="none")
    reader = FilesReader(FilesSourceConfig(str(tmp_path), kind), table.schema, exact=True)
    plans = [tuple(ranges)] + ([(FileRange("all", 0, 1, 200, (tmp_path / "all").stat().st_size),)] if kind == "parquet" else [])
    for parts in plans:
        found = list(reader.read(FilesSplit(first_record=0, records=200, ranges=parts)))
        assert pa.Table.from_batches([records.batch for records in found]).equals(table)
        assert [offset for records in found for offset in records.offsets()] == list(range(200))
        assert len(found) > 3
        assert max(records.batch.nbytes for records in found) <= 110_000


def test_a_checkpoint_keeps_how_large_records_are() -> None:
    checkpoint = Checkpoint(input=InputState(widths=(10.5, 0.0)))
    assert Checkpoint.decode(checkpoint.encode()) == checkpoint
