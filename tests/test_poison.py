"""Records that end, hang, fill or fail whoever reads them, or the join that they are in: each is a dead letter, and the rest is joined."""

from __future__ import annotations

import itertools
import json
import os
import random
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cases import some
from forked_queries import PROCESSES
from harness import START, Input, MemorySnapshots, make_batch, make_job, oracle, output_of
from poison_reader import FAULTS, FILLS, KILLS, RAISES, SPINS, WAITS, PoisonSource
from streamjoin.api.loop import Ended, Loop, Reason, Retrying
from streamjoin.controlplane import caution
from streamjoin.controlplane.caution import Caution
from streamjoin.controlplane.driver import Driver
from streamjoin.dataplane import route
from streamjoin.dataplane.apart import Bounds, _Nursery, _surroundings, read_apart
from streamjoin.epoch.ports import EpochFailed
from streamjoin.epoch.spec import EpochSpec
from streamjoin.io.base import Records, SourceError
from streamjoin.io.files import FilesSource
from streamjoin.io.files_reader import FilesSourceConfig
from streamjoin.runner.inline import InlineEpoch, InlineRunner
from streamjoin.state.storage import ObjectStorage
from worker_processes import ProcessRunner


@pytest.fixture(autouse=True)
def _surroundings_of_all_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that has loaded what reading takes serves the next test, too: they differ in what pytest calls them."""
    surroundings = _surroundings

    def others() -> tuple[dict[str, str], str, list[str]]:
        environment, directory, path = surroundings()
        return {name: value for name, value in environment.items() if name != "PYTEST_CURRENT_TEST"}, directory, path

    monkeypatch.setattr("streamjoin.dataplane.apart._surroundings", others)


SHORT = Bounds(cpu_seconds=1, memory_bytes=256 << 20)
"""Enough for a few records."""
REASONS = {
    KILLS: "ends its reader: SIGKILL",
    FAULTS: "ends its reader: SIGSEGV",
    SPINS: "keeps its reader busy for more than 1 s of a processor",
    WAITS: "keeps its reader waiting for more than 5 s",
    FILLS: "takes its reader more than 256 MiB of memory",
    RAISES: "fails its reader: UnicodeEncodeError: 'utf-8' codec can't encode character '\\ud800' in position 0: surrogates not allowed",
}


def batch_with(bad: dict[int, int], rows: int, seed: int = 1) -> pa.RecordBatch:
    rng = random.Random(seed)
    return make_batch([(row, rng.randint(0, 20), bad.get(row, rng.randint(0, 4)), START + row) for row in range(rows)], pa.int64())


def options(**more: Any) -> dict[str, Any]:
    return {"on": "abs(l.k - r.k) <= 1", "window": {"unbounded": True}, "workers": 2} | more


def driver_of(root: Path, sources: Sequence[Any], runner: Any, **more: Any) -> Driver:
    return Driver(make_job(root, **options(**more)), ObjectStorage(str(root / "state")), runner, sources=sources, suspects_data=True)


def run_of(driver: Driver, root: Path) -> tuple[list[Any], Ended]:
    """All of a run's events, and the last."""
    told: list[Any] = []
    loop = Loop(driver, interval_seconds=0.0, stop=threading.Event(), tell=told.append, log_directory=root, until_idle=True, pauses=(0.0,))
    loop.run()
    assert isinstance(told[-1], Ended)
    return told, told[-1]


def letters_of(root: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for path in sorted((root / "state/dead-letters").glob("*.json")) for line in path.read_text().splitlines()]


def expected(batches: Sequence[pa.RecordBatch], left_out: Sequence[tuple[str, int]]) -> Any:
    inputs = tuple(Input([batch], [1]) for batch in batches)
    kinds = (pa.int64(), pa.int64())
    return oracle((inputs[0], inputs[1]), kinds, "abs(l.k - r.k) <= 1", "true", None, left_out=left_out)


class Specs(InlineRunner):
    """Keeps what it is given."""

    def submit(self, spec: EpochSpec, workers: Sequence[int]) -> InlineEpoch:
        self.spec = spec
        raise EpochFailed("epoch 0: kept")


def spec_for(root: Path, batch: pa.RecordBatch) -> EpochSpec:
    """Of an epoch that reads all of these records as one split."""
    runner = Specs()
    driver = driver_of(root, [PoisonSource(each, 1000, os.getpid()) for each in (batch, batch_with({}, 1))], runner)
    driver.start()
    with pytest.raises(EpochFailed, match="kept"):
        driver.step()
    return runner.spec


def apart(spec: EpochSpec, reader: Any, bounds: Bounds = SHORT) -> Iterator[Records]:
    return read_apart(reader, spec.splits[0][1], batch_with({}, 0).schema, (spec, 0), bounds)


@pytest.mark.parametrize("kind", REASONS)
def test_a_record_that_cannot_be_read_is_rejected_alone_whatever_it_does(kind: int, tmp_path: Path) -> None:
    batch = batch_with({1: kind}, 2)
    bounds = replace(SHORT, wall_seconds=5) if kind == WAITS else SHORT
    found = list(apart(spec_for(tmp_path, batch), PoisonSource(batch, 1000).reader, bounds))
    rows = {int(at): row for records in found for at, row in zip(records.offsets(), records.batch.column("rid").to_pylist(), strict=True)}
    assert rows == {0: 0}
    (letter,) = [letter for records in found for letter in records.rejected]
    assert (letter.position, letter.raw, letter.error) == (1, "1", f"the record {REASONS[kind]}")


@pytest.mark.parametrize("bad", some([(0,), (6,), (7,), (13, 14), (19,), (0, 1, 2, 3), (5, 12, 19)], of=3))
def test_it_does_not_matter_where_in_a_block_such_records_are(bad: tuple[int, ...], tmp_path: Path) -> None:
    batch = batch_with(dict.fromkeys(bad, KILLS), 20)
    found = list(apart(spec_for(tmp_path, batch), PoisonSource(batch, 1000).reader))
    assert [row for records in found for row in records.batch.column("rid").to_pylist()] == [row for row in range(20) if row not in bad]
    assert [letter.position for records in found for letter in records.rejected] == list(bad)


def test_splits_are_read_by_children_of_one_process_until_it_ends_or_would_see_other_surroundings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch, waiting = batch_with({1: KILLS}, 3), _Nursery._waiting
    spec, reader = spec_for(tmp_path, batch), PoisonSource(batch, 1000).reader

    def process() -> int:
        assert [row for records in apart(spec, reader) for row in records.batch.column("rid").to_pylist()] == [0, 2]
        return waiting[-1]._process.pid

    first = process()
    assert process() == first
    os.kill(first, 9)
    waiting[-1]._process.wait()
    second = process()
    assert second != first
    monkeypatch.setenv("ANYTHING", "else")
    assert process() != second
    reading = apart(spec, reader)
    next(reading)
    used = len(waiting)
    reading.close()
    assert len(waiting) == used, "one whose reading was given up is not used again"


def test_what_the_reader_says_of_its_source_is_no_records_fault(tmp_path: Path) -> None:
    job = make_job(tmp_path, **options())
    driver = Driver(job, ObjectStorage(str(tmp_path / "state")), Specs())
    (tmp_path / "in-l").mkdir()
    (tmp_path / "in-r").mkdir()
    (tmp_path / "in-l/a.json").write_text('{"rid": 1, "k": 1, "v": 1, "at": "2026-01-01"}\n')
    driver.start()
    with pytest.raises(EpochFailed, match="kept"):
        driver.step(final=True)
    (tmp_path / "in-l/a.json").unlink()
    spec = driver._runner.spec  # type: ignore[attr-defined]
    with pytest.raises(SourceError, match="vanished"):
        list(apart(spec, driver._commits.sources[0].reader))


@pytest.mark.parametrize("kind", [KILLS, RAISES])
def test_workers_that_a_record_ends_go_on_without_it(kind: int, tmp_path: Path) -> None:
    batches = batch_with({40: kind}, 60), batch_with({3: kind}, 50, seed=2)
    runner = ProcessRunner()
    driver = driver_of(tmp_path, [PoisonSource(batch, 25, os.getpid()) for batch in batches], runner)
    told, ended = run_of(driver, tmp_path)
    assert ended.reason is Reason.IDLE, ended
    assert output_of(tmp_path) == expected(batches, [("l", 40), ("r", 3)])
    assert sorted((letter["stream"], letter["raw"]) for letter in letters_of(tmp_path)) == [("l", "40"), ("r", "3")]
    assert all(REASONS[kind] in letter["error"] for letter in letters_of(tmp_path))
    assert any(event.narrowed for event in told if isinstance(event, Retrying))


class Failing(InlineRunner):
    """Fails epochs that read certain records, unless these are rejected."""

    def __init__(self, bad: dict[int, set[int]], *, always: bool = False) -> None:
        super().__init__()
        self._bad, self._always = bad, always
        self.planned: list[int] = []

    def submit(self, spec: EpochSpec, workers: Sequence[int]) -> Any:
        self.planned.append(sum(split.records for _, split in spec.splits))
        read = [row for stream, split in spec.splits for row in range(split.start, split.end) if row in self._bad[stream]]  # type: ignore[attr-defined]
        if (read or self._always) and not spec.rejects:
            return Fails(f"epoch {spec.epoch}: ArrowInvalid: offset overflow")
        return super().submit(spec, workers)


class Fails:
    def __init__(self, message: str) -> None:
        self._message = message

    def result(self) -> list[Any]:
        raise EpochFailed(self._message)

    def cancel(self) -> None:
        pass


@pytest.mark.parametrize("bad", [({7}, set()), (set(), {0}), ({7, 8}, {7}), ({29}, {29})])
def test_records_that_fail_the_join_are_found_by_halving_its_input(
    bad: tuple[set[int], set[int]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(route, "read_apart", lambda reader, split, *_: reader.read(split))  # none of them ends its reader
    batches = batch_with({}, 30), batch_with({}, 30, seed=2)
    runner = Failing(dict(enumerate(bad)))
    driver = driver_of(tmp_path, [PoisonSource(batch, 1000) for batch in batches], runner)
    _, ended = run_of(driver, tmp_path)
    assert ended.reason is Reason.IDLE, ended
    left_out = [(stream, row) for stream, rows in zip("lr", bad, strict=True) for row in rows]
    assert output_of(tmp_path) == expected(batches, left_out)
    letters = letters_of(tmp_path)
    assert sorted((letter["stream"], json.loads(letter["raw"])["rid"]) for letter in letters) == sorted(left_out)
    assert all(letter["error"].startswith("fails the join: epoch ") for letter in letters)


def test_a_join_that_fails_whatever_it_reads_rejects_no_more_than_a_few(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(caution, "MOST_REJECTED", 3)
    runner = Failing({0: set(), 1: set()}, always=True)
    driver = driver_of(tmp_path, [PoisonSource(batch_with({}, 90), 1000) for _ in range(2)], runner)
    _, ended = run_of(driver, tmp_path)
    assert ended.reason is Reason.FAILED
    assert len(letters_of(tmp_path)) == 3


@pytest.mark.parametrize("form", ["json", "csv", "parquet"])
def test_splits_of_files_are_divided_down_to_records_of_text_and_row_groups_of_parquet(form: str, tmp_path: Path) -> None:
    lines = {"json": [f'{{"a": {row}}}' for row in range(9)], "csv": ["a", *map(str, range(9))]}
    for name in "xyz":
        if form == "parquet":
            pq.write_table(pa.table({"a": range(9)}), tmp_path / name, row_group_size=3)
        else:
            (tmp_path / name).write_text("\n\n".join(lines[form]) + "\n")
    schema = pa.schema([("a", pa.int64())])
    source = FilesSource(FilesSourceConfig(str(tmp_path), form), schema, MemorySnapshots(), exact_counts=True)
    (split,) = source.plan(None, 1000, 1e12, final=True).splits

    def parts(split: Any) -> list[Any]:
        halves = source.reader.halves(split)
        return [part for half in halves for part in parts(half)] if halves else [split]

    divided = parts(split)
    read = [[row for each in source.reader.read(part) for row in each.batch.column("a").to_pylist()] for part in divided]
    most = 3 if form == "parquet" else 1
    assert [len(rows) for rows in read] == [most] * (27 // most)
    assert [row for rows in read for row in rows] == [*range(9)] * 3
    assert [part.first_record for part in divided] == list(range(0, 27, most))
    if form != "parquet":
        assert [source.reader.raw(part) for part in divided[:2]] == [lines[form][-9], lines[form][-8]]


def victim(root: Path) -> None:
    """Runs the join in its own process, and exits with 0 if that came to its end."""
    sources = [PoisonSource(batch_with({40: KILLS}, 60), 25), PoisonSource(batch_with({}, 50, seed=2), 25)]
    sys.exit(run_of(driver_of(root, sources, InlineRunner()), root)[1].reason is not Reason.IDLE)


def test_a_record_that_ends_the_driver_itself_is_rejected_once_three_have_died_of_it(tmp_path: Path) -> None:
    """Where tasks run in the driver's own process."""
    codes: list[int | None] = []
    while len(codes) < 5 and 0 not in codes:
        process = PROCESSES.Process(target=victim, args=(tmp_path,))
        process.start()
        process.join()
        codes.append(process.exitcode)
    assert codes == [-9, -9, -9, 0]
    batches = batch_with({40: KILLS}, 60), batch_with({}, 50, seed=2)
    assert output_of(tmp_path) == expected(batches, [("l", 40)])


def narrowed(fails: Callable[[Caution], bool], records: int) -> Iterator[Caution]:
    """What is asked of the attempts at an epoch of so many records of each of two streams, until one does not fail."""
    asked = Caution()
    while fails(asked):
        planned = [records, records] if asked.records is None else [max(1, min(records, asked.records // 2))] * 2
        if asked.stream is not None:
            planned[1 - asked.stream] = 0
        after = asked.after_failure(planned, "why", died=False)
        if after is None:
            return
        asked = after
        yield asked


def test_attempts_take_half_as_much_each_time_until_one_record_is_left() -> None:
    taken = list(itertools.takewhile(lambda each: not each.rejects, narrowed(lambda each: True, 1000)))
    assert [each.records for each in taken] == [1000, 500, 250, 125, 62, 31, 15, 7, 3, 1]
    assert taken[-1].stream == 0
    assert all(each.apart for each in taken)


def test_the_first_death_of_a_worker_is_no_reason_for_caution() -> None:
    first = Caution().after_failure([10, 10], "died", died=True)
    assert first is not None
    assert (first.apart, first.records) == (False, None)
    second = first.after_failure([10, 10], "died", died=True)
    assert second is not None
    assert (second.apart, second.records) == (True, 10)
