"""Snapshots of results, end to end: each result in exactly one, whatever dies; sorted files that DuckDB reads; compaction and retention."""

from __future__ import annotations

import json
import random
import re
from collections import Counter
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cases import how_many, some
from faulty_runs import elastic, run_with_faults
from harness import (
    SECOND,
    START,
    Crash,
    FaultyStorage,
    Input,
    Remote,
    Root,
    driver_for,
    join_of,
    make_batch,
    make_job,
    oracle,
    output_of,
    run_all,
)
from s3 import S3Server
from streamjoin.controlplane.driver import Driver
from streamjoin.epoch.ports import EpochFailed
from streamjoin.job import Job
from streamjoin.results import archive, reader
from streamjoin.results.parts import encoded
from streamjoin.results.reader import SnapshotFile, files, list_snapshots
from streamjoin.runner.inline import InlineRunner
from streamjoin.snapshots.punctuation import MOST_PENDING, WHOLE, Came, Pending
from streamjoin.snapshots.timeline import Closed, Part, check
from streamjoin.state.storage import ObjectStorage, Storage, StorageError

WITHIN = 4
OPTIONS: dict[str, Any] = {"on": "abs(l.k - r.k) <= 1", "window": {"within": f"{WITHIN}s"}, "workers": 3, "watermark": "1s"}


class Clock:
    """The driver's; it moves when it is told to."""

    def __init__(self) -> None:
        self.now = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now


def make_inputs(seed: int = 7, epochs: int = 6, rows: tuple[int, int] = (3, 9)) -> tuple[Input, Input]:
    rng = random.Random(seed)

    def one() -> Input:
        batches, rid = [], 0
        for epoch in range(epochs):
            of_epoch = []
            for _ in range(rng.randint(*rows)):
                of_epoch.append((rid, rng.randint(0, 9), 0, START + epoch * 2 * SECOND + rng.randint(0, 2 * SECOND)))
                rid += 1
            batches.append(make_batch(of_epoch, pa.int64()))
        return Input(batches, [1] * epochs)

    return one(), one()


def expected(inputs: tuple[Input, Input]) -> Counter:
    return oracle(inputs, (pa.int64(), pa.int64()), "abs(l.k - r.k) <= 1", f"abs(l.at - r.at) <= {WITHIN * SECOND}", SECOND)


def job_with(root: Path, snapshots: dict[str, Any], select: tuple[str, ...] = ("l.rid AS a", "r.rid AS b"), **options: Any) -> Job:
    output = {"select": list(select), "sink": {"files": {"path": str(root / "out")}}, "snapshots": snapshots}
    return make_job(root, **(OPTIONS | {"output": output} | options))


def stored(root: Root, *, up_to: int | None = None, join: str = "j") -> list[tuple[Any, ...]]:
    """(a, b, snapshot, row, key), as DuckDB reads the files that the reader lists."""
    storage = ObjectStorage(str(root / "state"))
    paths = [file.path for file in files(storage, join, up_to=up_to)]
    if not paths:
        return []
    bound = "true" if up_to is None else f"_snapshot <= {up_to}"
    source = f"read_parquet({[str(storage.local_path(path)) for path in paths]})"
    if isinstance(root, Remote):
        source, fetched = "fetched", pa.concat_tables(pq.read_table(pa.BufferReader(storage.get(path))) for path in paths)  # noqa: F841
    return duckdb.sql(f"SELECT a, b, _snapshot, _row, _key FROM {source} WHERE {bound}").fetchall()


def require_each_once(root: Root, wanted: Counter, *, join: str = "j") -> None:
    """Every result is in one snapshot; ids ascend; what is listed is what the files have; nothing is left over."""
    rows = stored(root, join=join)
    assert Counter((a, b) for a, b, *_ in rows) == wanted
    assert len({(snapshot, row) for _, _, snapshot, row, _ in rows}) == len(rows)
    snapshots = list_snapshots(ObjectStorage(str(root / "state")), join)
    assert {each.id: each.rows for each in snapshots} == Counter(snapshot for _, _, snapshot, _, _ in rows)
    assert [each.id for each in snapshots] == sorted(each.id for each in snapshots)
    assert [each.epoch for each in snapshots] == sorted(each.epoch for each in snapshots)


def run(job: Job, inputs: tuple[Input, Input], root: Path, clock: Clock, *, seconds: float = 1.0) -> Driver:
    driver = driver_for(job, inputs, ObjectStorage(str(root / "state")), InlineRunner(), clock=clock, in_background=False)
    driver.start()
    while driver.step(final=True) is not None:
        clock.now += seconds
        for timeline in driver.checkpoint.snapshots.timelines.values():
            check(timeline)
    driver.stop()
    return driver


def test_each_result_is_in_one_snapshot_and_these_are_sorted_by_key(tmp_path: Path) -> None:
    inputs = make_inputs()
    run(job_with(tmp_path, {"every": "2s", "key": "b % 3"}), inputs, tmp_path, Clock())
    require_each_once(tmp_path, expected(inputs))
    assert output_of(tmp_path) == expected(inputs)
    assert all(key == b % 3 for _, b, _, _, key in stored(tmp_path))
    storage = ObjectStorage(str(tmp_path / "state"))
    assert [snapshot.epoch for snapshot in list_snapshots(storage, "j")] == [2, 5]
    for file in files(storage, "j"):
        keys = [row[0] for row in duckdb.sql(f"SELECT _key FROM '{storage.local_path(file.path)}'").fetchall()]
        assert keys == sorted(keys)
        assert (file.key_low, file.key_high, file.rows) == (keys[0], keys[-1], len(keys))
    assert storage.list("snapshot-parts") == []


def test_a_bound_on_rows_ends_a_snapshot_at_once_and_few_rows_wait_for_more(tmp_path: Path) -> None:
    inputs = make_inputs(epochs=12)
    counts = _rows_by_snapshot(tmp_path / "at-once", {"size": 10}, inputs)
    assert all(rows >= 10 for rows in counts[:-1])
    plain = _rows_by_snapshot(tmp_path / "plain", {"every": "1s"}, inputs)
    delayed = _rows_by_snapshot(tmp_path / "delayed", {"every": "1s", "size": 1000, "maxDelay": 2}, inputs)
    assert len(delayed) < len(plain)
    assert sum(delayed) == sum(plain) == sum(counts)


def _rows_by_snapshot(root: Path, snapshots: dict[str, Any], inputs: tuple[Input, Input]) -> list[int]:
    run(job_with(root, snapshots), inputs, root, Clock())
    require_each_once(root, expected(inputs))
    return [each.rows for each in list_snapshots(ObjectStorage(str(root / "state")), "j")]


def finish(job: Job, inputs: tuple[Input, Input], storage: Storage, clock: Clock) -> None:
    """Drivers, one after the other, until one finds nothing more to do."""
    last = ""
    for _ in range(100):
        try:
            driver = driver_for(job, inputs, storage, InlineRunner(), clock=clock, in_background=False)
            driver.start()
            for _ in range(100):
                clock.now += 1.0
                try:
                    if driver.step(final=True) is None:
                        driver.stop()
                        return
                except EpochFailed as error:
                    last = error.detail
        except (Crash, StorageError) as error:
            last = repr(error)
    raise AssertionError(f"never finished; the last failure was {last}")


class Faults:
    """Every call of a storage that changes something, or one of them, with a fault."""

    def __init__(self, at: int, fault: str) -> None:
        self.calls = 0
        self._at, self._fault = at, fault

    def __call__(self, name: str, path: str) -> str | None:
        self.calls += 1
        return self._fault if self.calls == self._at else None


@pytest.mark.parametrize("fault", ["fail-before", "fail-after", "die-before", "die-after"])
def test_whatever_call_of_the_storage_breaks_each_result_is_in_one_snapshot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    monkeypatch.setattr(archive, "FAN_IN", 2)
    inputs = make_inputs(epochs=4)
    wanted, every = expected(inputs), {"every": "1s"}
    counting = Faults(0, fault)
    root = tmp_path / "none"
    finish(job_with(root, every), inputs, FaultyStorage(ObjectStorage(str(root / "state")), counting), Clock())
    require_each_once(root, wanted)
    for at in some(range(1, counting.calls + 1), of=4, since=len(fault)):
        root = tmp_path / str(at)
        finish(job_with(root, every), inputs, FaultyStorage(ObjectStorage(str(root / "state")), Faults(at, fault)), Clock())
        require_each_once(root, wanted)


@pytest.mark.parametrize("seed", range(how_many(6, of=2)))
def test_drivers_that_die_again_and_again_lose_and_repeat_no_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """Small parts in the commit, in files, gathered; runs of several levels; snapshots of any length."""
    rng = random.Random(seed)
    monkeypatch.setattr(archive, "FAN_IN", 2)
    monkeypatch.setattr("streamjoin.snapshots.timeline.FAN_IN", rng.choice([2, 16]))
    monkeypatch.setattr("streamjoin.controlplane.planning.SMALL_BYTES", rng.choice([0, 2 << 20]))
    monkeypatch.setattr(archive, "FILE_BYTES", rng.choice([200, 32 << 20]))
    monkeypatch.setattr(archive, "MERGED_BYTES", rng.choice([1500, 128 << 20]))
    monkeypatch.setattr("streamjoin.results.parts.SORTED_BYTES", rng.choice([300, 128 << 20]))
    inputs = make_inputs(seed, epochs=14)
    faults = ["fail-before", "fail-after", "die-before", "die-after"]
    storage = FaultyStorage(ObjectStorage(str(tmp_path / "state")), lambda name, path: rng.choice(faults) if rng.random() < 0.004 else None)
    finish(job_with(tmp_path, {"every": f"{rng.randint(1, 3)}s"}), inputs, storage, Clock())
    require_each_once(tmp_path, expected(inputs))
    levels = [run.high - run.low + 1 for run in reader.runs(ObjectStorage(str(tmp_path / "state")), "j")]
    assert max(levels) >= 4 or len(levels) <= 3, (seed, levels)


def test_what_an_older_driver_still_does_changes_nothing(tmp_path: Path) -> None:
    """Two drivers store the same snapshots, the older after the newer has made one run of them."""
    inputs = make_inputs(epochs=20)
    job, clock, storage = job_with(tmp_path, {"every": "1s"}), Clock(), ObjectStorage(str(tmp_path / "state"))
    older = driver_for(job, inputs, storage, InlineRunner(), clock=clock, in_background=False)
    older.start()
    for _ in range(4):
        older.step(final=True)
        clock.now += 1
    waiting = older.checkpoint.snapshots.timelines["j"]
    finish(job, inputs, storage, clock)
    late = archive.Archive(storage, "j", clock=clock)
    late._runs = {}  # as the older driver knows them: none
    for snapshot in waiting.closed:
        late.add(snapshot)
    require_each_once(tmp_path, expected(inputs))


@pytest.mark.parametrize("is_second", [False, True], ids=["before the newer", "after the newer"])
@pytest.mark.parametrize("steps", range(4))
def test_an_older_driver_that_ends_a_merge_during_the_newer_ones_names_no_file_that_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, steps: int, is_second: bool
) -> None:
    monkeypatch.setattr(archive, "FILE_BYTES", 4000)
    of_hand = Stored(tmp_path)
    for number in range(8):
        of_hand.add(number)
    assert all(of_hand.archive.tidy() for _ in range(steps))
    newer = archive.Archive(of_hand.storage, "j", clock=of_hand.clock)
    newer.sweep(8)
    for each in [newer, of_hand.archive] if is_second else [of_hand.archive, newer]:
        while each.tidy():
            pass
        newer.sweep(8)
    of_hand.archive = archive.Archive(of_hand.storage, "j", clock=of_hand.clock)
    of_hand.archive.sweep(8)
    of_hand.require(set(range(8)))


def test_files_that_no_index_names_are_swept_and_replaced_ones_after_a_while(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive, "FAN_IN", 2)
    inputs, clock, storage = make_inputs(epochs=12), Clock(), ObjectStorage(str(tmp_path / "state"))
    job = job_with(tmp_path, {"every": "1s"})
    run(job, inputs, tmp_path, clock)
    storage.put("snapshots/j/000000000000-000000000000-007.parquet", b"left by a crash")
    assert len(_on_disk(storage)) > len(files(storage, "j"))
    clock.now += archive.GRACE_SECONDS + 1
    finish(job, inputs, storage, clock)
    assert _on_disk(storage) == sorted(file.path for file in files(storage, "j"))
    require_each_once(tmp_path, expected(inputs))


def _on_disk(storage: Storage) -> list[str]:
    return [path for path in storage.list("snapshots/j") if path.endswith(".parquet")]


def test_snapshots_are_let_go_when_they_are_old(tmp_path: Path) -> None:
    inputs, clock, storage = make_inputs(epochs=20), Clock(), ObjectStorage(str(tmp_path / "state"))
    run(job_with(tmp_path, {"every": "1s", "keep": "6s"}), inputs, tmp_path, clock)
    kept = list_snapshots(storage, "j")
    assert 0 < len(kept) < 10
    assert min(snapshot.committed_at for snapshot in kept) >= clock.now - 9
    assert Counter(row[2] for row in stored(tmp_path)) == {each.id: each.rows for each in kept}


def test_a_snapshot_ends_by_time_although_nothing_comes(tmp_path: Path) -> None:
    inputs, clock, storage = make_inputs(epochs=3), Clock(), ObjectStorage(str(tmp_path / "state"))
    driver = driver_for(job_with(tmp_path, {"every": "60s"}), inputs, storage, InlineRunner(), clock=clock, in_background=False)
    driver.start()
    while driver.step() is not None:
        pass
    assert list_snapshots(storage, "j") == ()
    clock.now += 61
    assert driver.step() is None
    require_each_once(tmp_path, expected(inputs))


def test_a_range_of_keys_reads_only_files_that_may_have_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive, "FILE_BYTES", 400)
    inputs, storage = make_inputs(epochs=10), ObjectStorage(str(tmp_path / "state"))
    run(job_with(tmp_path, {"every": "100s", "key": "a"}), inputs, tmp_path, Clock())
    found = files(storage, "j")
    wanted = [file for file in found if file.key_low <= 12 <= file.key_high]
    assert 0 < len(wanted) <= 2 < len(found)
    rows = sum(_count(storage, file, "_key = 12") for file in wanted)
    assert rows == sum(count for (a, _), count in expected(inputs).items() if a == 12) > 0


class Stored:
    """An archive that is filled by hand, of snapshots of 100 rows; each has all keys from 0 to 99."""

    def __init__(self, root: Path, keep_seconds: float | None = None) -> None:
        self.clock, self.storage = Clock(), ObjectStorage(str(root / "state"))
        self.archive = archive.Archive(self.storage, "j", keep_seconds, clock=self.clock)

    def add(self, number: int) -> None:
        rng = random.Random(number)
        rows = pa.record_batch({"_key": pa.array(rng.sample(range(100), 100)), "of": pa.array([number] * 100)})
        self.storage.put(path := f"parts/{number}", memoryview(encoded([rows])))
        self.archive.add(Closed(number, number, number, self.clock.now, 100, rows.nbytes, "", (Part(path, 100, rows.nbytes),)))
        self.clock.now += 1

    def require(self, wanted: set[int]) -> None:
        """Each row of these snapshots is in one file, which is sorted, and no other file is left after a while."""
        self.clock.now += archive.GRACE_SECONDS + 1
        self.archive.tidy()
        found = files(self.storage, "j")
        rows = Counter[tuple[int, int]]()
        for file in found:
            table = pq.read_table(pa.BufferReader(self.storage.get(file.path)))
            keys = table.column("_key").to_pylist()
            assert keys == sorted(keys)
            assert (keys[0], keys[-1]) == (file.key_low, file.key_high)
            rows.update(zip(table.column("of").to_pylist(), keys, strict=True))
        assert rows == Counter({(number, key): 1 for number in wanted for key in range(100)})
        assert _on_disk(self.storage) == sorted(file.path for file in found)


def test_the_rows_of_a_key_are_in_few_files_however_many_snapshots_there_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive, "FILE_BYTES", 4000)
    monkeypatch.setattr(archive, "GROUP_ROWS", 20)
    of_hand = Stored(tmp_path)
    for number in range(150):
        of_hand.add(number)
        while of_hand.archive.tidy():
            pass
    found = files(of_hand.storage, "j")
    assert len(found) > 60
    for key in range(0, 100, 7):
        having = [file for file in found if file.key_low <= key <= file.key_high]
        assert len(having) <= 2 * (150 // 64 + 150 % 64 // 8 + 150 % 8), key  # a key may be in two files where one goes on after another
    of_hand.require(set(range(150)))


@pytest.mark.parametrize("steps", range(1, 7))
def test_a_run_that_is_let_go_while_it_is_merged_takes_nothing_else_along(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, steps: int
) -> None:
    monkeypatch.setattr(archive, "FILE_BYTES", 4000)
    monkeypatch.setattr(archive, "GROUP_ROWS", 20)
    monkeypatch.setattr(archive, "SPAN", 1)
    of_hand = Stored(tmp_path, keep_seconds=20)
    for number in range(8):
        of_hand.add(number)
    assert all(of_hand.archive.tidy() for _ in range(steps))
    of_hand.clock.now += 14.5  # the first three are old now
    while of_hand.archive.tidy():
        pass
    of_hand.archive._keep_seconds = None
    of_hand.require(set(range(3, 8)))


def test_what_became_a_run_that_is_let_go_does_not_come_back(tmp_path: Path) -> None:
    of_hand = Stored(tmp_path, keep_seconds=100)
    for number in range(9):
        of_hand.add(number)
    while of_hand.archive.tidy():
        pass
    assert [(run.low, run.high) for run in reader.runs(of_hand.storage, "j")] == [(0, 7), (8, 8)]
    of_hand.clock.now += 98.5  # less than the replaced files are kept for
    while of_hand.archive.tidy():
        pass
    assert [each.id for each in list_snapshots(of_hand.storage, "j")] == [8]
    of_hand.archive._keep_seconds = None
    of_hand.require({8})


def test_a_merge_that_breaks_off_is_begun_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive, "FILE_BYTES", 4000)
    monkeypatch.setattr(archive, "GROUP_ROWS", 20)
    of_hand = Stored(tmp_path)
    for number in range(8):
        of_hand.add(number)
    whole = of_hand.archive._storage
    for at in range(1, 10):
        calls = Faults(at, "fail-after")
        of_hand.archive._storage = FaultyStorage(whole, calls)
        try:
            while of_hand.archive.tidy():
                pass
        except StorageError:
            pass
    of_hand.archive._storage = whole
    while of_hand.archive.tidy():
        pass
    assert [(run.low, run.high) for run in reader.runs(of_hand.storage, "j")] == [(0, 7)]
    assert of_hand.archive.sweep(8) > 0
    of_hand.require(set(range(8)))


def test_what_waits_for_its_store_stays_in_files_of_its_own(tmp_path: Path) -> None:
    of_hand = Stored(tmp_path)
    for number in range(9):
        of_hand.add(number)
    assert not of_hand.archive.tidy(7)
    assert of_hand.archive.tidy(8)
    while of_hand.archive.tidy(8):
        pass
    assert [(run.low, run.high) for run in reader.runs(of_hand.storage, "j")] == [(0, 7), (8, 8)]


def _count(storage: ObjectStorage, file: SnapshotFile, where: str) -> int:
    return int(duckdb.sql(f"SELECT count(*) FROM '{storage.local_path(file.path)}' WHERE {where}").fetchall()[0][0])


@pytest.mark.parametrize(
    "key",
    ["a", "CAST(a AS STRING)", "a / 4", "CAST(a AS DECIMAL(12,2))", "at", "CAST(at AS DATE)", "a > 10", "CAST(CAST(a AS STRING) AS BINARY)",
     "CASE WHEN a > 10 THEN NULL ELSE a END"],
)  # fmt: skip
def test_a_key_may_be_of_any_type_that_files_are_sorted_by(tmp_path: Path, key: str) -> None:
    inputs, storage = make_inputs(epochs=4), ObjectStorage(str(tmp_path / "state"))
    run(job_with(tmp_path, {"every": "2s", "key": key}, ("l.rid AS a", "r.rid AS b", "l.at AS at")), inputs, tmp_path, Clock())
    require_each_once(tmp_path, expected(inputs))
    for file in files(storage, "j"):
        assert file.key_low is not None
        keys = [row[0] for row in duckdb.sql(f"SELECT _key FROM '{storage.local_path(file.path)}'").fetchall()]
        known = [one for one in keys if one is not None]
        assert known == sorted(known)
        assert (file.key_low, file.key_high) == (known[0], known[-1])
        assert keys[: len(known)] == known


def test_an_output_that_changes_ends_the_open_snapshot_so_that_each_has_rows_of_one_form(tmp_path: Path) -> None:
    inputs, clock, storage = make_inputs(epochs=8), Clock(), ObjectStorage(str(tmp_path / "state"))
    first = driver_for(job_with(tmp_path, {"every": "100s"}), inputs, storage, InlineRunner(), clock=clock, in_background=False)
    first.start()
    for _ in range(4):
        first.step()
    first.stop()
    run(job_with(tmp_path, {"every": "100s"}, ("l.rid AS a", "r.rid AS b", "l.rid * 2 AS v")), inputs, tmp_path, clock)
    require_each_once(tmp_path, expected(inputs))
    assert [file.form.endswith("v int64") for file in files(storage, "j")] == [False, True]


def test_without_the_field_what_was_open_is_stored_and_identifiers_go_on_when_it_is_back(tmp_path: Path) -> None:
    inputs, clock, storage = make_inputs(epochs=9), Clock(), ObjectStorage(str(tmp_path / "state"))
    with_snapshots = job_with(tmp_path, {"every": "100s"})
    output = {"select": ["l.rid AS a", "r.rid AS b"], "sink": {"files": {"path": str(tmp_path / "out")}}}
    for job in (with_snapshots, make_job(tmp_path, **(OPTIONS | {"output": output})), with_snapshots):
        driver = driver_for(job, inputs, storage, InlineRunner(), clock=clock, in_background=False)
        driver.start()
        for _ in range(3):
            driver.step()
        driver.stop()
    run(with_snapshots, inputs, tmp_path, clock)
    assert [snapshot.id for snapshot in list_snapshots(storage, "j")] == [0, 1]
    rows = Counter((a, b) for a, b, *_ in stored(tmp_path))
    assert rows < expected(inputs)
    assert max(rows.values()) == 1


def test_in_a_thread_of_its_own_storing_holds_no_epoch_up_and_an_end_waits_for_it(tmp_path: Path) -> None:
    inputs = make_inputs(epochs=8)
    driver = driver_for(job_with(tmp_path, {"size": 1}), inputs, ObjectStorage(str(tmp_path / "state")), InlineRunner())
    run_all(driver)
    driver.stop()
    require_each_once(tmp_path, expected(inputs))


def marked(inputs: tuple[Input, Input], at: dict[tuple[int, int], list[int]]) -> tuple[Input, Input]:
    """With punctuations (v = -1, the identifier as rid, no key) at the end of batches, by (stream, epoch)."""
    streams = []
    for stream, given in enumerate(inputs):
        batches = list(given.batches)
        for (of_stream, epoch), ids in at.items():
            if of_stream == stream:
                rows = [(identifier, None, -1, START + epoch * 2 * SECOND) for identifier in ids]
                both = pa.Table.from_batches([batches[epoch], make_batch(rows, pa.int64())]).combine_chunks()
                batches[epoch] = both.to_batches()[0]
        streams.append(Input(batches, given.per_epoch))
    return streams[0], streams[1]


def job_with_punctuations(root: Path, **snapshots: Any) -> Job:
    """Streams whose records with v = -1 are punctuations."""
    job = job_with(root, {"punctuation": True} | snapshots, streams=_streams(root))
    assert all(stream.punctuation is not None for stream in job.streams)
    return job


def _streams(root: Path) -> list[dict[str, Any]]:
    return [
        {
            "name": name,
            "source": {"files": {"path": str(root / f"in-{name}"), "format": "json"}},
            "schema": "rid BIGINT, k BIGINT, v INT, at TIMESTAMP",
            "eventTime": "at",
            "watermark": "1s",
            "expectedRate": 1000,
            "punctuation": {"when": "v = -1", "id": identifier},
        }
        for name, identifier in (("l", "rid"), ("r", "CAST(rid AS STRING)"))
    ]


def test_a_snapshot_ends_when_a_punctuation_has_come_of_both_streams(tmp_path: Path) -> None:
    plain = make_inputs(epochs=10)
    inputs = marked(plain, {(0, 1): [900], (1, 3): [900], (1, 4): [901, 902], (0, 6): [901], (0, 8): [903]})
    driver = run(job_with_punctuations(tmp_path), inputs, tmp_path, Clock())
    require_each_once(tmp_path, expected(plain))
    found = list_snapshots(ObjectStorage(str(tmp_path / "state")), "j")
    assert [(each.epoch, each.marks) for each in found] == [(3, ("900",)), (6, ("901",)), (9, ())]
    assert list(driver.checkpoint.snapshots.punctuations.came) == ["902", "903"]
    # A result of tuples that came before both punctuations is in that snapshot, or in one before.
    before = {(a, b): snapshot for a, b, snapshot, *_ in stored(tmp_path)}
    left = {rid for batch in plain[0].batches[:2] for rid in batch.column("rid").to_pylist()}
    right = {rid for batch in plain[1].batches[:4] for rid in batch.column("rid").to_pylist()}
    assert {snapshot for (a, b), snapshot in before.items() if a in left and b in right} == {0}


@pytest.mark.parametrize("seed", range(3))
def test_punctuations_survive_drivers_that_die(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    plain = make_inputs(seed, epochs=12)
    at: dict[tuple[int, int], list[int]] = {(stream, rng.randrange(12)): [] for stream in (0, 1) for _ in range(8)}
    for identifier in range(900, 905):
        for stream in (0, 1):
            at[rng.choice([place for place in at if place[0] == stream])].append(identifier)
    inputs = marked(plain, at)
    run(job_with_punctuations(tmp_path / "none"), inputs, tmp_path / "none", Clock())
    faults = ["fail-before", "fail-after", "die-before", "die-after"]
    storage = FaultyStorage(
        ObjectStorage(str(tmp_path / "faulty" / "state")), lambda name, path: rng.choice(faults) if rng.random() < 0.02 else None
    )
    finish(job_with_punctuations(tmp_path / "faulty"), inputs, storage, Clock())
    seen = []
    for root in (tmp_path / "none", tmp_path / "faulty"):
        require_each_once(root, expected(plain))
        seen.append([(each.epoch, each.rows, each.marks) for each in list_snapshots(ObjectStorage(str(root / "state")), "j")])
    assert seen[0] == seen[1]
    assert sum(len(marks) for _, _, marks in seen[0]) > 0


def test_of_a_stream_with_partitions_a_punctuation_has_come_once_all_of_them_have_it() -> None:
    whole, three = frozenset((WHOLE,)), frozenset(range(3))
    pending = Pending()
    steps: list[tuple[dict[int, list[str]], dict[int, list[str]], tuple[str, ...]]] = [
        ({0: ["a"]}, {WHOLE: ["a", "b"]}, ()),
        ({1: ["a", "b"], 0: ["b"]}, {}, ()),
        ({2: ["a"]}, {}, ("a",)),
        ({2: ["b"]}, {}, ("b",)),
        ({}, {}, ()),
    ]
    for left, right, complete in steps:
        pending, found = pending.after([Came(left, three), Came(right, whole)])
        assert found == complete
        assert Pending.from_json(json.loads(json.dumps(pending.to_json()))) == pending
    assert pending == Pending()
    for number in range(MOST_PENDING + 5):
        pending, _ = pending.after([Came({0: [str(number)]}, three), Came({}, whole)])
    assert list(pending.came) == [str(number) for number in range(5, MOST_PENDING + 5)]


def test_in_an_object_store_that_fails_each_result_is_in_one_snapshot(s3: S3Server, tmp_path: Path) -> None:
    """By the requests that the documentation says, and with faults among them."""
    inputs, root = make_inputs(epochs=12), s3.bucket()
    output = {"select": ["l.rid AS a", "r.rid AS b"], "sink": {"files": {"path": str(tmp_path / "out")}}, "snapshots": {"every": "1s"}}
    state = ObjectStorage(str(root / "state"))
    with s3.faulty(0.05, 3):
        finish(make_job(root, **(OPTIONS | {"output": output})), inputs, state, Clock())
    require_each_once(root, expected(inputs))
    s3.requests.clear()
    writer, parts = archive.Archive(state, "other"), "snapshot-parts/test.arrow"
    rows = pa.record_batch({"_key": pa.array([3, 1, 2])})
    state.put(parts, memoryview(encoded([rows])))
    s3.requests.clear()
    writer.add(Closed(0, 0, 0, 0.0, 3, rows.nbytes, "", (Part(parts, 3, rows.nbytes),)))
    assert s3.kinds() == Counter({"list": 1, "get": 1, "put": 1, "create": 1})


@pytest.mark.parametrize("seed", range(4))
def test_through_plans_deaths_and_failed_epochs_each_result_of_several_joins_is_in_one_snapshot(tmp_path: Path, seed: int) -> None:
    """Stored by threads of drivers that are dead otherwise, and go on beside those that follow."""
    rng, inputs, counts = random.Random(seed), make_inputs(seed, epochs=14), Counter[str]()
    joins = []
    for name, kind in (("inner", "inner"), ("left one", "left")):
        output = {"sink": {"files": {"path": str(tmp_path / name)}}, "snapshots": {"size": rng.randint(1, 40), "key": "a"}}
        window = {"within": f"{WITHIN}s"}
        joins.append(join_of(tmp_path, on="abs(l.k - r.k) <= 1", window=window, name=name, join_type=kind, output=output))
    job = elastic(make_job(tmp_path, **(OPTIONS | {"joins": joins})))
    run_with_faults(job, inputs, tmp_path, rng, counts)
    run(job, inputs, tmp_path, Clock())
    assert counts["switches"] > 0
    require_each_once(tmp_path, expected(inputs), join="inner")
    both = (pa.int64(), pa.int64())
    left = oracle(inputs, both, "abs(l.k - r.k) <= 1", f"abs(l.at - r.at) <= {WITHIN * SECOND}", SECOND, kind="left")
    require_each_once(tmp_path, left, join="left one")


def test_results_of_three_streams_are_kept_too(tmp_path: Path) -> None:
    source = {"generator": {"rows": 300, "realTime": False, "columns": {"id": {"sequence": {}}, "k": {"uniform": {"min": 0, "max": 50}}}}}
    timed = {"schema": "id BIGINT, k INT, at TIMESTAMP", "eventTime": "at", "watermark": "0s"}
    streams = [{"name": name, "source": source} | timed for name in "abc"]
    output = {
        "select": ["a.id AS a", "c.id AS b"],
        "sink": {"files": {"path": str(tmp_path / "out")}},
        "snapshots": {"size": 1000, "key": "b"},
    }
    join = {"name": "j", "condition": "a.id = b.id AND abs(b.k - c.k) <= 1", "window": {"unbounded": True}, "output": output}
    job = make_job(tmp_path, types=("INT", "INT"), streams=streams, joins=[join], epoch={"maxTuples": 300})
    driver = Driver(job, ObjectStorage(job.checkpoint), InlineRunner(), in_background=False)
    run_all(driver)
    driver.stop()
    wanted = output_of(tmp_path)
    assert wanted.total() > 1000
    require_each_once(tmp_path, wanted)


def test_a_damaged_part_of_a_snapshot_is_named_and_stops_neither_the_join_nor_other_results(tmp_path: Path) -> None:
    inputs = make_inputs()
    job, clock, storage = job_with(tmp_path, {"every": "1h"}), Clock(), ObjectStorage(str(tmp_path / "state"))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("streamjoin.controlplane.planning.SMALL_BYTES", 0)
        patched.setattr("streamjoin.snapshots.timeline.FAN_IN", 2)
        driver = driver_for(job, inputs, storage, InlineRunner(), clock=clock)
        driver.start()
        driver.step()
        driver.step()
        part = driver.checkpoint.snapshots.timelines["j"].parts[0].path
        damage(storage, part)
        while driver.step(final=True) is not None:
            clock.now += 1
        driver.stop()
    assert output_of(tmp_path) == expected(inputs)
    told = driver.snapshots()["j"].told("j")
    assert re.search(rf"{re.escape(part)}: damaged: .* It has \d+ results of a snapshot, which are lost without it; restore it", told)


def damage(storage: ObjectStorage, path: str) -> None:
    """One bit of an object is another."""
    data = bytearray(storage.get(path))
    data[len(data) // 2] ^= 1
    local = storage.local_path(path)
    assert local is not None
    local.write_bytes(data)


def test_a_damaged_file_or_index_of_snapshots_is_named(tmp_path: Path) -> None:
    inputs, storage = make_inputs(), ObjectStorage(str(tmp_path / "state"))
    run(job_with(tmp_path, {"every": "2s"}), inputs, tmp_path, Clock())
    file, *_ = files(storage, "j")
    damage(storage, file.path)
    lost = f"{file.rows} results of the snapshots {file.snapshot_low} to {file.snapshot_high}"
    with pytest.raises(StorageError, match=rf"{re.escape(file.path)}: damaged: .*{lost}"):
        list(archive.Archive(storage, "j").rows(file.snapshot_low, 10))
    with pytest.raises(StorageError, match=rf"{re.escape(file.path)}: damaged: .*{lost}"):
        reader.content(storage, file)
    index = storage.list("snapshots/j/index")[0]
    for at in range(len(storage.get(index))):
        text = bytearray(storage.get(index))
        text[at] ^= 1
        try:
            changed = reader.Run.decode(bytes(text))
        except (ValueError, KeyError):
            continue
        assert changed == reader.Run.decode(storage.get(index)), at
    damage(storage, index)
    with pytest.raises(StorageError, match=rf"{re.escape(index)}: this index of snapshots cannot be read"):
        list_snapshots(storage, "j")
