"""The Delta sink: what a reader of the table sees and when, whoever dies; what is refused; how files stay few."""

from __future__ import annotations

import contextlib
import json
import pickle
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

import streamjoin
from cases import some
from harness import Crash, Remote, Root, driver_for, make_job, run_all
from s3 import S3Server
from streamjoin.cli.exits import Exit
from streamjoin.epoch.ports import EpochFailed
from streamjoin.io.base import SinkError, Staged
from streamjoin.io.delta_sink import DeltaSink, DeltaSinkConfig
from streamjoin.io.delta_table import DeltaLog
from streamjoin.io.staging import LocalStaging, StoreStaging
from streamjoin.io.table_sink import Compaction
from streamjoin.runner.inline import InlineRunner
from streamjoin.state.storage import ObjectStorage, StorageError
from tables import ALL_TYPES, delta_by_duckdb, delta_by_polars, delta_log, delta_rows, normal, publish_at_once, texts, typed_rows
from test_cli import run_inline
from test_crashes import OPTIONS, expected, make_inputs

ROOT = Path(__file__).resolve().parent.parent
SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string())])


def batch(*numbers: int) -> pa.RecordBatch:
    return pa.record_batch([list(numbers), [f"n{number % 3}" for number in numbers]], schema=SCHEMA)


def sink(root: Root, schema: pa.Schema = SCHEMA, **config: Any) -> DeltaSink:
    made: DeltaSink = pickle.loads(pickle.dumps(DeltaSink(DeltaSinkConfig(str(root), "pairs", **config), schema)))
    return made


def stage(target: DeltaSink, epoch: int, *batches: pa.RecordBatch, task: int = 0, checkpoint: str = "c0ffee00") -> list[Staged]:
    """One task's results of one epoch, as a commit keeps them."""
    writer = target.writer(f"{checkpoint}-000001-{epoch:012d}-{task:05d}-{epoch:08x}", f"{checkpoint}-{epoch:012d}-{task:05d}")
    for part in batches:
        writer.write(part)
    return [Staged.from_json(json.loads(json.dumps(staged.to_json()))) for staged in writer.close()]


def ids(root: Root) -> list[int]:
    return sorted(delta_rows(root).column("id").to_pylist())


@pytest.mark.parametrize("partition_by", [(), ("day",), ("FLAG", "text"), ("whole", "tiny")])
def test_every_type_is_read_back_by_three_readers(partition_by: tuple[str, ...], tmp_path: Path) -> None:
    rows = typed_rows(50)
    target = sink(tmp_path, ALL_TYPES, partition_by=partition_by)
    staged = stage(target, 0, pa.RecordBatch.from_pylist(rows[:30], ALL_TYPES), pa.RecordBatch.from_pylist(rows[30:], ALL_TYPES))
    target.publish(staged)
    want = normal(rows)
    assert texts(delta_rows(tmp_path)) == want
    assert texts(delta_by_polars(tmp_path)) == want
    if "whole" not in partition_by:
        assert texts(delta_by_duckdb(tmp_path)) == want
    metadata = DeltaTable(str(tmp_path)).metadata()
    assert [name.casefold() for name in metadata.partition_columns] == [name.casefold() for name in partition_by]


def test_statistics_leave_out_no_row_that_a_filter_admits(tmp_path: Path) -> None:
    import polars as pl

    rows = typed_rows(200)
    target = sink(tmp_path, ALL_TYPES)
    for epoch in range(4):
        target.publish(stage(target, epoch, pa.RecordBatch.from_pylist(rows[epoch * 50 : epoch * 50 + 50], ALL_TYPES)))
    actions = DeltaTable(str(tmp_path)).get_add_actions(flatten=True)
    found = pa.table(actions).to_pydict()
    assert found["num_records"] == [50] * 4
    for name in ("whole", "text", "day", "instant", "local", "price"):
        every = [row[name] for row in rows if row[name] is not None]
        column = pl.col(name)
        for value in every[::17]:
            for condition, meant in (
                (column >= value, lambda other, value=value: other >= value),
                (column <= value, lambda other, value=value: other <= value),
            ):
                got = pl.scan_delta(str(tmp_path)).filter(condition).select(pl.len()).collect().item()
                assert got == sum(meant(other) for other in every), (name, value)
        lows = list(found[f"min.{name}"])
        assert any(low is not None for low in lows), name
        part = [row[name] for row in rows[50:100] if row[name] is not None]
        assert min(part) in lows or name in ("instant", "local", "price"), name


def test_times_of_years_that_python_has_not_are_written_without_bounds(tmp_path: Path) -> None:
    rows = pa.record_batch([pa.array([2**31 - 1, 0], pa.int32()).cast(pa.date32()), pa.array([1, 2])], names=["day", "id"])
    target = sink(tmp_path, rows.schema)
    target.publish(stage(target, 0, rows))
    found = pa.table(DeltaTable(str(tmp_path)).get_add_actions(flatten=True)).to_pydict()
    assert found.get("min.day", [None]) == [None]
    assert found["min.id"] == [1]
    (path,) = (tmp_path / name for name in found["path"])
    assert pq.read_table(path)["day"].cast(pa.int32()).to_pylist() == [2**31 - 1, 0]


def test_results_appear_when_they_are_published_and_once(tmp_path: Path) -> None:
    target = sink(tmp_path)
    target.publish([], again=True)
    assert DeltaTable(str(tmp_path)).version() == 0, "the table is made when a driver starts"
    first, second = stage(target, 0, batch(1, 2)), stage(target, 0, batch(3), task=1)
    assert ids(tmp_path) == []
    for again in (False, True, False):
        sink(tmp_path).publish([*first, *second], again=again)
        assert ids(tmp_path) == [1, 2, 3]
    target.publish(stage(target, 1, batch(4)))
    sink(tmp_path).publish([*first, *second], again=True)
    assert ids(tmp_path) == [1, 2, 3, 4], "an older driver that wakes up publishes nothing again"
    assert not list(tmp_path.glob("_staging/*"))
    (added,) = [action["txn"] for action in delta_log(tmp_path) if action["version"] == 1 and "txn" in action]
    assert added == {"appId": "streamjoin-c0ffee00", "version": 0}
    assert "streamjoin pairs epoch 1" in str(DeltaTable(str(tmp_path)).history(1))


def test_small_results_that_are_gathered_after_their_epoch_are_another_publication(tmp_path: Path) -> None:
    target = sink(tmp_path, partition_by=("name",))
    writer = target.writer("a", "c0ffee00-000000000007-00001", small_bytes=1 << 20)
    writer.write(batch(5, 6, 7, 8))
    (small,) = writer.close()
    assert small.data
    assert not small.path
    target.publish(stage(target, 7, batch(1)))
    gathered = target.gather([small], "c0ffee00-000001-000000000007-small-00000000", "c0ffee00-000000000007-small")
    assert len(gathered) == 3
    for again in (False, True):
        target.publish(gathered, again=again)
        assert ids(tmp_path) == [1, 5, 6, 7, 8]
    target.publish(stage(target, 8, batch(9)))
    assert ids(tmp_path) == [1, 5, 6, 7, 8, 9]


@pytest.mark.parametrize("where", ["local", "store"])
def test_drivers_that_publish_the_same_at_once_publish_it_once(where: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    root: Root = tmp_path if where == "local" else request.getfixturevalue("s3").bucket()
    sink(root).publish([], again=True)
    for epoch in range(5 if where == "local" else 2):
        staged = stage(sink(root), epoch, batch(epoch))
        drivers = [sink(root) for _ in range(3)]
        for driver in drivers:
            driver.publish([], again=True)
        publish_at_once(drivers, staged)
        assert ids(root) == list(range(epoch + 1))


def test_others_may_write_to_the_table_and_optimize_it_meanwhile(tmp_path: Path) -> None:
    targets = [sink(tmp_path), sink(tmp_path)]
    for epoch in range(6):
        for number, target in enumerate(targets):
            target.publish(stage(target, epoch, batch(10 * epoch + number), checkpoint=f"0000000{number}"))
        write_deltalake(str(tmp_path), pa.table([[10 * epoch + 2], ["theirs"]], schema=SCHEMA), mode="append")
        if epoch % 2:
            DeltaTable(str(tmp_path)).optimize.compact()
    assert ids(tmp_path) == sorted(10 * epoch + number for epoch in range(6) for number in range(3))


def test_what_a_driver_staged_and_never_committed_is_swept(tmp_path: Path) -> None:
    target = sink(tmp_path, partition_by=("name",))
    kept = stage(target, 1, batch(1, 2, 3))
    stage(target, 2, batch(4))
    aborted = target.writer("c0ffee00-000001-000000000002-00001-00000000", "c0ffee00-000000000002-00001")
    aborted.write(batch(5))
    aborted.close()
    aborted.abort()
    assert target.sweep(lambda name: "-000000000002-" in name) == 1
    target.publish(kept)
    assert ids(tmp_path) == [1, 2, 3]
    assert not list(tmp_path.glob("_staging/*"))


def test_results_that_were_deleted_before_they_were_in_the_table_are_missed(tmp_path: Path) -> None:
    target = sink(tmp_path)
    staged = stage(target, 0, batch(1))
    for path in tmp_path.glob("_staging/*"):
        path.unlink()
    with pytest.raises(SinkError, match="this committed file is gone"):
        target.publish(staged, again=False)


def test_many_partitions_do_not_keep_many_files_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streamjoin.io.table_files.ROW_GROUP_BYTES", 1 << 16)
    monkeypatch.setattr("streamjoin.io.table_files.MOST_OPEN", 8)
    schema = pa.schema([("id", pa.int64()), ("part", pa.int32())])
    target = sink(tmp_path, schema, partition_by=("part",))
    writer, most = target.writer("a", "c0ffee00-000000000000-00000"), 0
    for start in range(0, 60_000, 5_000):
        numbers = range(start, start + 5_000)
        writer.write(pa.record_batch([list(numbers), [number % 40 for number in numbers]], schema=schema))
        most = max(most, sum(part._file is not None for part in writer._partitions.values()))
    assert most <= 8
    target.publish(writer.close())
    assert ids(tmp_path) == list(range(60_000))


def made(root: Path, schema: pa.Schema = SCHEMA, **options: Any) -> DeltaTable:
    return DeltaTable.create(str(root), schema, **options)


@pytest.mark.parametrize(
    ("schema", "options", "message"),
    [
        (
            pa.schema([("id", pa.int32()), ("name", pa.string())]),
            {},
            r"column id is INT, and results have BIGINT; write CAST\(\.\.\. AS INT\) AS id",
        ),
        (pa.schema([("id", pa.int64())]), {}, r"has no column name of type STRING, and results have; add it"),
        (SCHEMA, {"partition_by": ["name"]}, r"delta\.partitionBy: nothing does not fit .*, which is partitioned by name; give that"),
        (pa.schema([pa.field("id", pa.int64(), False), ("name", pa.string())]), {}, "column id is NOT NULL, .*; drop NOT NULL"),
        (SCHEMA, {"configuration": {"delta.columnMapping.mode": "name"}}, "asks writers for .*olumnMapping"),
    ],
)
def test_a_table_that_results_do_not_fit_is_refused_with_the_remedy(
    schema: pa.Schema, options: dict[str, Any], message: str, tmp_path: Path
) -> None:
    try:
        made(tmp_path, schema, **options)
    except Exception as error:
        pytest.fail(f"deltalake no longer makes such a table: {error}")
    with pytest.raises(SinkError, match=message):
        sink(tmp_path).publish([], again=True)


def test_a_table_with_a_constraint_is_refused(tmp_path: Path) -> None:
    made(tmp_path).alter.add_constraint({"positive": "id > 0"})
    with pytest.raises(SinkError, match=r"asks writers for checkConstraints|delta\.constraints\.positive"):
        sink(tmp_path).publish([], again=True)


def test_a_table_may_have_more_columns_than_results(tmp_path: Path) -> None:
    made(tmp_path, pa.schema([("name", pa.string()), ("note", pa.string()), ("id", pa.int64())]))
    target = sink(tmp_path)
    target.publish(stage(target, 0, batch(1)))
    assert delta_rows(tmp_path).to_pylist() == [{"name": "n1", "note": None, "id": 1}]


def test_a_path_that_cannot_be_a_table_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises((SinkError, OSError), match="file"):
        sink(tmp_path / "file").publish([], again=True)


@pytest.mark.parametrize("partition_by", [(), ("name",)])
def test_small_files_become_few_beside_the_join(partition_by: tuple[str, ...], tmp_path: Path) -> None:
    target = sink(tmp_path, partition_by=partition_by, compaction=Compaction(files=12))
    for epoch in range(30):
        target.publish(stage(target, epoch, batch(*range(3 * epoch, 3 * epoch + 3))))
        assert target._opened is not None
        target._opened.compactor.wait()
    assert ids(tmp_path) == list(range(90))
    assert len(DeltaTable(str(tmp_path)).file_uris()) <= 14
    operations = Counter(entry["operation"] for entry in DeltaTable(str(tmp_path)).history())
    assert operations["OPTIMIZE"] in ((2, 3) if not partition_by else (7, 8, 9))
    again = sink(tmp_path, partition_by=partition_by, compaction=Compaction(files=12))
    again.publish(stage(again, 30, batch(90)))
    assert ids(tmp_path) == list(range(91)), "whose files became others are published all the same"


def test_small_files_become_few_after_a_time_too(tmp_path: Path) -> None:
    target = sink(tmp_path, compaction=Compaction(files=1000, every_seconds=0.0))
    for epoch in range(3):
        target.publish(stage(target, epoch, batch(epoch)))
        assert target._opened is not None
        target._opened.compactor.wait()
    assert len(DeltaTable(str(tmp_path)).file_uris()) == 2
    assert ids(tmp_path) == [0, 1, 2]


def test_an_interrupted_compaction_leaves_the_table_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
    target = sink(tmp_path, compaction=Compaction(files=2))

    def refuse(*arguments: Any, **options: Any) -> None:
        raise OSError("no space left")

    monkeypatch.setattr("deltalake.table.TableOptimizer.compact", refuse)
    for epoch in range(3):
        target.publish(stage(target, epoch, batch(epoch)))
        assert target._opened is not None
        target._opened.compactor.wait()
    assert ids(tmp_path) == [0, 1, 2]
    assert "could not be compacted (OSError: no space left)" in " ".join(caplog.messages)


def test_the_example_fills_a_table_with_the_matches_of_the_band(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("band", "delta"):
        assert run_inline(ROOT / "examples" / f"{name}.yaml", "--until-idle").exit_code == Exit.DONE
    files = (tmp_path / "out" / "band" / "matches").glob("*.parquet")
    table = tmp_path / "out" / "delta" / "matches"
    want = Counter(str(row) for file in files for row in pq.read_table(file).to_pylist())
    names = ["trade_id", "quote_id", "currency", "difference", "traded_at", "quoted_at"]
    assert Counter(str(row) for row in delta_rows(table).select(names).to_pylist()) == want
    assert want.total() > 1000
    join = streamjoin.Join.read(ROOT / "examples" / "delta.yaml")
    assert Counter(str(row) for row in join.results().read_all().to_pylist()) == want, "Python reads the same"
    assert join.results().schema.names == names


# Whole joins, that die.


def job_at(root: Root, **delta: Any) -> Any:
    output = {"sink": {"delta": {"path": str(root / "out")} | delta}}
    return make_job(root, **OPTIONS, output=output)


def table_of(root: Root) -> Counter[Any]:
    rows = delta_rows(root / "out")
    return Counter(zip(rows.column("a").to_pylist(), rows.column("b").to_pylist(), strict=True))


def finish(root: Root, inputs: Any, job: Any) -> None:
    """Start drivers until one finds nothing more to do."""
    for _ in range(20):
        try:
            driver = driver_for(job, inputs, ObjectStorage(str(root / "state")), InlineRunner())
            run_all(driver)
            driver.stop()
            return
        except (Crash, StorageError, EpochFailed):
            pass
    raise AssertionError("never finished")


def die_at(monkeypatch: pytest.MonkeyPatch, where: type, name: str, *, after: bool, visit: int) -> None:
    """The process dies before or after the given call of this method."""
    real, calls = getattr(where, name), iter(range(10_000))

    def mortal(*arguments: Any, **options: Any) -> Any:
        is_it = next(calls) == visit
        if is_it and not after:
            raise Crash(name)
        result = real(*arguments, **options)
        if is_it:
            raise Crash(name)
        return result

    monkeypatch.setattr(where, name, mortal)


STEPS = ("claim", "republish", "sweep", "plan", "tasks", "commit", "publish", "clean", "gather")
CALLS = ((LocalStaging, "publish"), (DeltaLog, "append"), (DeltaLog, "open"), (DeltaLog, "has"), (DeltaLog, "_flush"))


@pytest.mark.parametrize("step", STEPS)
def test_a_join_whose_driver_dies_at_a_step_has_each_result_once(step: str, small: str, tmp_path: Path) -> None:
    inputs = make_inputs(epochs=3)
    for visit in (0,) if step in ("claim", "republish", "sweep", "gather") else (1, 2):
        root, visits = tmp_path / str(visit), iter(range(1000))

        def die(at: str, visit: int = visit, visits: Any = visits) -> None:
            if at == step and next(visits) == visit:
                raise Crash(at)

        job = job_at(root, partitionBy=["b"] if visit else [], gather="0s" if small == "in files" else "1h")
        driver = driver_for(job, inputs, ObjectStorage(str(root / "state")), InlineRunner(), at=die)
        try:
            run_all(driver)
            driver.stop()
            assert step == "gather"
        except Crash:
            pass
        finish(root, inputs, job)
        assert table_of(root) == expected(inputs), f"died at {step}, visit {visit}"
        assert not list((root / "out").glob("_staging/*"))


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize(("where", "name"), CALLS)
def test_a_join_whose_driver_dies_while_it_publishes_has_each_result_once(
    where: type, name: str, after: bool, small: str, tmp_path: Path
) -> None:
    inputs = make_inputs(epochs=3)
    for visit in (1, 2):
        root = tmp_path / str(visit)
        job = job_at(root, partitionBy=["b"], gather="0s" if small == "in files" else "1h")
        with pytest.MonkeyPatch.context() as patched:
            die_at(patched, where, name, after=after, visit=visit)
            with contextlib.suppress(Crash):
                run_all(driver_for(job, inputs, ObjectStorage(str(root / "state")), InlineRunner()))
        finish(root, inputs, job)
        assert table_of(root) == expected(inputs), f"died {'after' if after else 'before'} call {visit} of {name}"
        files = {path.name for path in (root / "out").rglob("part-*.parquet")}
        named = {uri.rsplit("/", 1)[1] for uri in DeltaTable(str(root / "out")).file_uris()}
        assert files == named, "nothing is left in the table's directory that it does not name"


@pytest.mark.parametrize("where", [StoreStaging, DeltaLog])
@pytest.mark.parametrize("after", [False, True])
def test_a_join_in_an_object_store_has_each_result_once(where: type, after: bool, small: str, s3: S3Server) -> None:
    inputs = make_inputs(epochs=3)
    for visit in some((0, 1), of=2, since=(where is DeltaLog) + after):
        root: Remote = s3.bucket()
        job = job_at(root, gather="0s" if small == "in files" else "1h")
        with pytest.MonkeyPatch.context() as patched:
            die_at(patched, where, "publish" if where is StoreStaging else "append", after=after, visit=visit)
            with contextlib.suppress(Crash):
                run_all(driver_for(job, inputs, ObjectStorage(str(root / "state")), InlineRunner()))
        finish(root, inputs, job)
        assert table_of(root) == expected(inputs)
        assert not ObjectStorage(str(root / "out")).list("_staging")


def test_partitions_of_unusual_text_are_read_back_from_an_object_store(s3: S3Server) -> None:
    root, names = s3.bucket(), ["a b", "100 % / é", "x=y", "a%20b", None, "n" * 300]
    target = sink(root, partition_by=("name",))
    rows = pa.record_batch([list(range(6)), names], schema=SCHEMA)
    target.publish(stage(target, 0, rows))
    writer = target.writer("a", "c0ffee00-000000000001-00001", small_bytes=1 << 20)
    writer.write(rows)
    target.publish(target.gather(writer.close(), "c0ffee00-000001-000000000001-small-00000000", "c0ffee00-000000000001-small"))
    assert sorted(delta_rows(root).to_pylist(), key=lambda row: row["id"]) == [row for row in rows.to_pylist() for _ in range(2)]


def test_a_bucket_that_is_not_there_is_told_with_the_remedy(s3: S3Server) -> None:
    with pytest.raises(StorageError, match="the bucket does not exist"):
        sink(Remote("s3://no-such-bucket-at-all")).publish([], again=True)
