"""The Iceberg sink: what a reader of the table sees and when, whoever dies; what is refused. With a SQL catalogue in SQLite."""

from __future__ import annotations

import contextlib
import json
import pickle
import threading
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog import load_catalog
from pyiceberg.table import Table
from pyiceberg.types import StringType

import streamjoin
from cases import some
from harness import Crash, Root, driver_for, make_job, run_all
from s3 import S3Server
from streamjoin.cli.exits import Exit
from streamjoin.io import iceberg_rewrite
from streamjoin.io.base import SinkError, Staged, UnavailableError
from streamjoin.io.iceberg_rewrite import RewriteError, rewrite
from streamjoin.io.iceberg_sink import IcebergSink, IcebergSinkConfig
from streamjoin.io.iceberg_table import IcebergTable
from streamjoin.io.staging import LocalStaging, StoreStaging
from streamjoin.io.table_sink import Compaction
from streamjoin.runner.inline import InlineRunner
from streamjoin.state.storage import ObjectStorage
from tables import ALL_TYPES, normal, publish_at_once, texts, typed_rows
from test_cli import run_inline
from test_crashes import OPTIONS, expected, make_inputs
from test_delta_sink import ROOT, SCHEMA, STEPS, batch, die_at, finish
from waiting import PATIENCE_SECONDS

TABLE = "results.pairs"


@pytest.fixture(autouse=True)
def plain_s3(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyArrow's S3 client adds checksums that moto 5 takes for a body's end."""
    monkeypatch.setenv("AWS_REQUEST_CHECKSUM_CALCULATION", "when_required")
    warnings.filterwarnings("ignore", "Delete operation did not match")


def catalog_at(root: Path, warehouse: Root | None = None) -> dict[str, str]:
    """A new SQL catalogue's properties."""
    root.mkdir(parents=True, exist_ok=True)
    where = f"file://{root}/warehouse" if warehouse is None else str(warehouse)
    return {"type": "sql", "uri": f"sqlite:///{root}/catalog.db", "warehouse": where}


def table_at(root: Path, warehouse: Root | None = None, **properties: str) -> Table:
    return load_catalog("default", **catalog_at(root, warehouse), **properties).load_table(TABLE)


def sink(root: Path, schema: pa.Schema = SCHEMA, **config: Any) -> IcebergSink:
    catalog = tuple(catalog_at(root).items())
    made: IcebergSink = pickle.loads(pickle.dumps(IcebergSink(IcebergSinkConfig(TABLE, catalog, query="pairs", **config), schema)))
    return made


def stage(target: IcebergSink, epoch: int, *batches: pa.RecordBatch, checkpoint: str = "c0ffee00") -> list[Staged]:
    """One task's results of one epoch, as a commit keeps them."""
    writer = target.writer(f"{checkpoint}-000001-{epoch:012d}-00000-{epoch:08x}", f"{checkpoint}-{epoch:012d}-00000")
    for part in batches:
        writer.write(part)
    return [Staged.from_json(json.loads(json.dumps(staged.to_json()))) for staged in writer.close()]


def ids(root: Path) -> list[int]:
    return sorted(table_at(root).scan().to_arrow().column("id").to_pylist())


def widened(table: pa.Table) -> pa.Table:
    """With the narrow integers that Iceberg lacks, so that rows compare."""
    other = (pa.int8(), pa.int16(), pa.duration("us"))
    fields = [pa.field(field.name, pa.int64()) if field.type in other else field for field in ALL_TYPES]
    return table.select(ALL_TYPES.names).cast(pa.schema(fields))


@pytest.mark.parametrize("partition_by", [(), ("day",), ("FLAG", "text"), ("whole", "tiny")])
def test_every_type_is_read_back_by_three_readers(partition_by: tuple[str, ...], tmp_path: Path) -> None:
    rows = typed_rows(50)
    target = sink(tmp_path, ALL_TYPES, partition_by=partition_by)
    target.publish(stage(target, 0, pa.RecordBatch.from_pylist(rows[:30], ALL_TYPES), pa.RecordBatch.from_pylist(rows[30:], ALL_TYPES)))
    table, want = table_at(tmp_path), normal(rows)
    assert texts(widened(table.scan().to_arrow())) == want
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert texts(widened(pl.scan_iceberg(table).collect().to_arrow())) == want
    paths = [task.file.file_path.removeprefix("file://") for task in table.scan().plan_files()]
    files = duckdb.read_parquet(paths, hive_partitioning=False).to_arrow_table()  # type: ignore[arg-type, unused-ignore]
    assert texts(widened(files)) == want
    assert [field.name.casefold() for field in table.spec().fields] == [name.casefold() for name in partition_by]


def test_bounds_leave_out_no_row_that_a_filter_admits(tmp_path: Path) -> None:
    rows = typed_rows(120)
    target = sink(tmp_path, ALL_TYPES, partition_by=("day",))
    for epoch in range(3):
        target.publish(stage(target, epoch, pa.RecordBatch.from_pylist(rows[epoch * 40 : epoch * 40 + 40], ALL_TYPES)))
    table = table_at(tmp_path)
    for name, value in (("whole", 41_000), ("text", "n3"), ("day", "2026-01-02"), ("price", "12.25")):
        got = table.scan(row_filter=f"{name} = {value if name == 'whole' else repr(value)}").to_arrow().num_rows
        assert got == sum(str(row[name]).rstrip("0") == str(value).rstrip("0") for row in rows if row[name] is not None), name
        assert got > 0


def test_results_appear_when_they_are_published_and_once(tmp_path: Path) -> None:
    target = sink(tmp_path)
    target.publish([], again=True)
    assert table_at(tmp_path).current_snapshot() is None, "the table is made when a driver starts"
    first = stage(target, 0, batch(1, 2, 3))
    assert ids(tmp_path) == []
    for again in (False, True, False):
        sink(tmp_path).publish(first, again=again)
        assert ids(tmp_path) == [1, 2, 3]
    target.publish(stage(target, 1, batch(4)))
    sink(tmp_path).publish(first, again=True)
    assert ids(tmp_path) == [1, 2, 3, 4], "an older driver that wakes up publishes nothing again"
    table = table_at(tmp_path)
    summary = table.current_snapshot()
    assert summary is not None
    assert summary.summary is not None
    assert summary.summary["streamjoin.publication"] == "2"
    assert table.properties["streamjoin.c0ffee00"] == "2"
    assert "commit.retry.num-retries" not in table.properties


def test_that_snapshots_expire_repeats_nothing(tmp_path: Path) -> None:
    target = sink(tmp_path)
    first = stage(target, 0, batch(1))
    target.publish(first)
    table = table_at(tmp_path)
    table.append(pa.table([[2], ["theirs"]], schema=SCHEMA))
    ours = table.snapshots()[0].snapshot_id
    table.maintenance.expire_snapshots().by_id(ours).commit()
    assert [snapshot.snapshot_id for snapshot in table_at(tmp_path).snapshots()] != [ours]
    sink(tmp_path).publish(first, again=True)
    assert ids(tmp_path) == [1, 2]


def test_drivers_that_publish_the_same_at_once_publish_it_once(tmp_path: Path) -> None:
    sink(tmp_path).publish([], again=True)
    for epoch in range(5):
        staged = stage(sink(tmp_path), epoch, batch(epoch))
        drivers = [sink(tmp_path) for _ in range(2)]
        for driver in drivers:
            driver.publish([], again=True)
        publish_at_once(drivers, staged)
        assert ids(tmp_path) == list(range(epoch + 1))


def test_a_transaction_of_another_in_between_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = sink(tmp_path)
    target.publish([], again=True)
    real, others = IcebergTable._append, iter(range(3))

    def late(table: IcebergTable, *arguments: Any) -> None:
        number = next(others, None)
        if number is not None:
            table_at(tmp_path).append(pa.table([[10 + number], ["theirs"]], schema=SCHEMA))
        real(table, *arguments)

    monkeypatch.setattr(IcebergTable, "_append", late)
    target.publish(stage(target, 0, batch(1)))
    assert ids(tmp_path) == [1, 10, 11, 12]


def test_the_same_publication_by_another_driver_in_between_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = sink(tmp_path)
    staged = stage(target, 0, batch(1, 2))
    real, others = IcebergTable._append, iter([True])

    def late(table: IcebergTable, *arguments: Any) -> None:
        if next(others, False):
            sink(tmp_path).publish(staged, again=True)
        real(table, *arguments)

    monkeypatch.setattr(IcebergTable, "_append", late)
    target.publish(staged)
    assert ids(tmp_path) == [1, 2]


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        (pa.schema([("id", pa.int32()), ("name", pa.string())]), r"column id is INT, and results have BIGINT; write CAST\(\.\.\. AS INT\)"),
        (pa.schema([("id", pa.int64())]), "has no column name of type STRING, and results have; add it"),
        (pa.schema([pa.field("id", pa.int64(), False), ("name", pa.string())]), "column id is NOT NULL, .*; drop NOT NULL"),
    ],
)
def test_a_table_that_results_do_not_fit_is_refused_with_the_remedy(schema: pa.Schema, message: str, tmp_path: Path) -> None:
    catalog = load_catalog("default", **catalog_at(tmp_path))
    catalog.create_namespace("results")
    catalog.create_table(TABLE, schema)
    with pytest.raises(SinkError, match=message):
        sink(tmp_path).publish([], again=True)


def test_a_table_that_is_partitioned_otherwise_is_refused(tmp_path: Path) -> None:
    sink(tmp_path, partition_by=("name",)).publish([], again=True)
    with pytest.raises(SinkError, match=r"iceberg\.partitionBy: nothing does not fit .*, which is partitioned by name; give that"):
        sink(tmp_path).publish([], again=True)
    with table_at(tmp_path).update_spec() as update:
        update.remove_field("name")
        update.add_field("id", "bucket[4]")
    with pytest.raises(SinkError, match=r"partitioned by id_bucket_4 \(bucket\[4\]\); give that, if it is of columns without a transform"):
        sink(tmp_path).publish([], again=True)


def test_a_catalogue_that_cannot_be_had_is_told(tmp_path: Path) -> None:
    def of(**catalog: str) -> IcebergSink:
        return IcebergSink(IcebergSinkConfig(TABLE, tuple(catalog.items())), SCHEMA)

    with pytest.raises(SinkError, match=r"iceberg\.table: results\.pairs: cannot open it .*unable to open database.*iceberg\.catalog"):
        of(type="sql", uri="sqlite:////nowhere/at/all.db", warehouse="file:///tmp").publish([], again=True)
    with pytest.raises(UnavailableError, match="see whether the catalog and the store are up"):
        of(type="rest", uri="http://127.0.0.1:9/").publish([], again=True)
    with pytest.raises(SinkError, match=r"iceberg\.catalog\[uri\]: the variable NO_SUCH_URI is not set"):
        of(type="sql", uri="env:NO_SUCH_URI").publish([], again=True)


def test_small_results_are_gathered_and_what_is_left_is_swept(tmp_path: Path) -> None:
    target = sink(tmp_path, partition_by=("name",))
    target.publish([], again=True)
    writer = target.writer("a", "c0ffee00-000000000007-00001", small_bytes=1 << 20)
    writer.write(batch(5, 6, 7, 8))
    target.publish(stage(target, 7, batch(1)))
    gathered = target.gather(writer.close(), "c0ffee00-000001-000000000007-small-00000000", "c0ffee00-000000000007-small")
    assert len(gathered) == 3
    stage(target, 8, batch(9))
    assert target.sweep(lambda name: "-000000000008-" in name) == 1
    target.publish(gathered)
    target.publish(gathered, again=True)
    assert ids(tmp_path) == [1, 5, 6, 7, 8]


def waited(target: IcebergSink) -> Table:
    """The table's newest state, once nothing is rewritten any more."""
    assert target._opened is not None
    target._opened.compactor.wait()
    return table_at(Path(dict(target.config.catalog)["uri"].removeprefix("sqlite:///")).parent)


def operations(table: Table) -> list[str]:
    """Of all snapshots, oldest first."""
    return [snapshot.summary.operation.value for snapshot in table.snapshots() if snapshot.summary is not None]


@pytest.mark.parametrize("partition_by", [(), ("day",), ("FLAG", "text")])
def test_small_files_become_few_and_every_row_stays_as_it_is(partition_by: tuple[str, ...], tmp_path: Path) -> None:
    rows = typed_rows(120)
    target = sink(tmp_path, ALL_TYPES, partition_by=partition_by, compaction=Compaction(files=10))
    for epoch in range(12):
        target.publish(stage(target, epoch, pa.RecordBatch.from_pylist(rows[10 * epoch : 10 * epoch + 10], ALL_TYPES)))
        table = waited(target)
        assert texts(widened(table.scan().to_arrow())) == normal(rows[: 10 * epoch + 10])
    assert "replace" in operations(table)
    files = [task.file for task in table.scan().plan_files()]
    partitions = Counter(tuple(file.partition[position] for position in range(len(partition_by))) for file in files)
    assert len(files) - len(partitions) < 10 + 10, "files that could be fewer"
    rewritten = [file for file in files if "rewritten" in file.file_path]
    assert rewritten
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert texts(widened(pl.scan_iceberg(table).collect().to_arrow())) == normal(rows)
    paths = [file.file_path.removeprefix("file://") for file in files]
    read = duckdb.read_parquet(paths, hive_partitioning=False, union_by_name=True).to_arrow_table()  # type: ignore[arg-type, unused-ignore]
    assert texts(widened(read)) == normal(rows)
    for name, value in (("whole", 41_000), ("text", "n3"), ("day", "2026-01-02")):
        got = table.scan(row_filter=f"{name} = {value if name == 'whole' else repr(value)}").to_arrow().num_rows
        assert got == sum(str(row[name]) == str(value) for row in rows if row[name] is not None), f"bounds of {name}"
    summary = table.current_snapshot()
    assert summary is not None
    assert summary.summary is not None
    assert summary.summary["total-records"] == "120"
    assert summary.summary["total-data-files"] == str(len(files))


def test_a_rewriting_repeats_and_loses_no_publication(tmp_path: Path) -> None:
    target = sink(tmp_path, compaction=Compaction(files=2))
    first = stage(target, 0, batch(1))
    target.publish(first)
    for epoch in range(1, 4):
        target.publish(stage(target, epoch, batch(epoch + 1)))
        waited(target)
    sink(tmp_path).publish(first, again=True)
    again = sink(tmp_path, compaction=Compaction(files=1000, every_seconds=0.0))
    again.publish(stage(again, 4, batch(5)))
    again.publish(stage(again, 5, batch(6)))
    table = waited(again)
    assert ids(tmp_path) == [1, 2, 3, 4, 5, 6]
    assert len(list(table.scan().plan_files())) <= 2
    assert table.properties["streamjoin.c0ffee00"] == "10"
    assert "commit.retry.num-retries" not in table.properties


def test_large_files_stay_and_groups_are_about_the_size_that_is_wanted(tmp_path: Path) -> None:
    target = sink(tmp_path)
    for epoch in range(6):
        target.publish(stage(target, epoch, batch(*range(100 * epoch, 100 * epoch + 100))))
    table = table_at(tmp_path)
    (size,) = {task.file.file_size_in_bytes // 100 for task in table.scan().plan_files()}
    assert rewrite(table, 100 * size, "zstd") == (0, 0), "none is smaller"
    assert rewrite(table_at(tmp_path), 250 * size, "zstd") == (6, 2)
    assert rewrite(table_at(tmp_path), 250 * size, "zstd") in ((0, 0), (2, 1))
    assert ids(tmp_path) == list(range(600))


def test_a_file_of_many_row_groups_has_every_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = sink(tmp_path)
    for epoch in range(4):
        target.publish(stage(target, epoch, batch(*range(50 * epoch, 50 * epoch + 50))))
    monkeypatch.setattr(iceberg_rewrite, "ROW_GROUP_ROWS", 100)
    assert rewrite(table_at(tmp_path), 1 << 20, "snappy") == (4, 1)
    (task,) = table_at(tmp_path).scan().plan_files()
    with pq.ParquetFile(task.file.file_path.removeprefix("file://")) as file:
        assert [file.metadata.row_group(group).num_rows for group in range(file.metadata.num_row_groups)] == [100, 100]
        assert file.metadata.row_group(0).column(0).compression == "SNAPPY"
    assert ids(tmp_path) == list(range(200))


def test_what_is_appended_while_files_are_rewritten_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target, other = sink(tmp_path), sink(tmp_path)
    for epoch in range(3):
        target.publish(stage(target, epoch, batch(epoch)))
    made = iceberg_rewrite._one_file

    def slow(*arguments: Any) -> Any:
        file = made(*arguments)
        other.publish(stage(other, 0, batch(100), checkpoint="0ther"))
        return file

    monkeypatch.setattr(iceberg_rewrite, "_one_file", slow)
    assert rewrite(table_at(tmp_path), 1 << 20, "zstd") == (3, 1)
    assert ids(tmp_path) == [0, 1, 2, 100]
    assert operations(table_at(tmp_path)) == ["append"] * 4 + ["replace"]


@pytest.mark.parametrize("change", ["a delete", "a rewriting", "another partitioning"])
def test_files_that_others_change_meanwhile_are_left_to_them(change: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = sink(tmp_path)
    for epoch in range(3):
        target.publish(stage(target, epoch, batch(2 * epoch, 2 * epoch + 1)))
    made = iceberg_rewrite._one_file

    def slow(*arguments: Any) -> Any:
        monkeypatch.setattr(iceberg_rewrite, "_one_file", made)
        if change == "a delete":
            table_at(tmp_path).delete("id = 3")
        elif change == "a rewriting":
            rewrite(table_at(tmp_path), 1 << 20, "zstd")
        else:
            with table_at(tmp_path).update_spec() as update:
                update.add_identity("name")
        return made(*arguments)

    monkeypatch.setattr(iceberg_rewrite, "_one_file", slow)
    with pytest.raises(RewriteError, match="others changed it meanwhile"):
        rewrite(table_at(tmp_path), 1 << 20, "zstd")
    assert ids(tmp_path) == [number for number in range(6) if change != "a delete" or number != 3]
    named = {task.file.file_path.removeprefix("file://") for task in table_at(tmp_path).scan().plan_files()}
    left = {str(path) for path in tmp_path.rglob("*rewritten*.parquet")}
    assert left <= named, "what it had written is removed"


def test_a_table_whose_columns_were_changed_since_is_rewritten_in_the_present_ones(tmp_path: Path) -> None:
    target = sink(tmp_path)
    target.publish(stage(target, 0, batch(1)))
    with table_at(tmp_path).update_schema() as update:
        update.add_column("more", StringType())
        update.rename_column("name", "label")
    target = sink(tmp_path, pa.schema([("id", pa.int64()), ("label", pa.string())]))
    renamed = batch(2).rename_columns(["id", "label"])
    target.publish(stage(target, 1, renamed))
    before = table_at(tmp_path).scan().to_arrow().sort_by("id").to_pylist()
    assert before == [{"id": number, "label": f"n{number}", "more": None} for number in (1, 2)]
    assert rewrite(table_at(tmp_path), 1 << 20, "zstd") == (2, 1)
    assert table_at(tmp_path).scan().to_arrow().sort_by("id").to_pylist() == before


@pytest.mark.parametrize("fails", ["while it writes", "while it commits"])
def test_an_interrupted_rewriting_leaves_the_table_as_it_is(
    fails: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    target = sink(tmp_path, compaction=Compaction(files=2))

    def refuse(*arguments: Any, **options: Any) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(iceberg_rewrite, "_one_file" if fails == "while it writes" else "_replace", refuse)
    for epoch in range(3):
        target.publish(stage(target, epoch, batch(epoch)))
        table = waited(target)
    assert ids(tmp_path) == [0, 1, 2]
    assert operations(table) == ["append"] * 3
    assert "could not be compacted (OSError: no space left)" in " ".join(caplog.messages)
    if fails == "while it writes":
        assert not list(tmp_path.rglob("*rewritten*.parquet")), "nothing is left that nobody could have committed"


def test_the_example_fills_a_table_with_the_matches_of_the_band(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "out").mkdir()
    for name in ("band", "iceberg"):
        assert run_inline(ROOT / "examples" / f"{name}.yaml", "--until-idle").exit_code == Exit.DONE
    files = (tmp_path / "out" / "band" / "matches").glob("*.parquet")
    want = Counter(str(row) for file in files for row in pq.read_table(file).to_pylist())
    assert want.total() > 1000
    join = streamjoin.Join.read(ROOT / "examples" / "iceberg.yaml")
    assert Counter(str(row) for row in join.results().read_all().to_pylist()) == want


# Whole joins, that die.


def job_at(root: Path, warehouse: Root | None = None, **iceberg: Any) -> Any:
    output = {"sink": {"iceberg": {"table": TABLE, "catalog": catalog_at(root, warehouse)} | iceberg}}
    return make_job(root, **OPTIONS, output=output)


def rows_of(table: Table) -> Counter[Any]:
    rows = table.scan().to_arrow()
    return Counter(zip(rows.column("a").to_pylist(), rows.column("b").to_pylist(), strict=True))


@pytest.mark.parametrize("step", STEPS)
def test_a_join_whose_driver_dies_at_a_step_has_each_result_once(step: str, small: str, tmp_path: Path) -> None:
    inputs, visits = make_inputs(epochs=3), iter(range(1000))

    def die(at: str) -> None:
        if at == step and next(visits) == (0 if step in ("claim", "republish", "sweep", "gather") else 1):
            raise Crash(at)

    job = job_at(tmp_path, gather="0s" if small == "in files" else "1h")
    driver = driver_for(job, inputs, ObjectStorage(str(tmp_path / "state")), InlineRunner(), at=die)
    with contextlib.suppress(Crash):
        run_all(driver)
        driver.stop()
        assert step == "gather"
    finish(tmp_path, inputs, job)
    assert rows_of(table_at(tmp_path)) == expected(inputs)
    assert not list(tmp_path.rglob("_staging/*"))


CALLS = ((LocalStaging, "publish"), (IcebergTable, "append"), (IcebergTable, "_append"), (IcebergTable, "open"), (IcebergTable, "_flush"))


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize(("where", "name"), CALLS)
def test_a_join_whose_driver_dies_while_it_publishes_has_each_result_once(where: type, name: str, after: bool, tmp_path: Path) -> None:
    inputs = make_inputs(epochs=3)
    for visit in some((0, 1), of=2, since=CALLS.index((where, name)) + after):
        root = tmp_path / str(visit)
        job = job_at(root, partitionBy=["b"] if visit else [], gather="0s")
        with pytest.MonkeyPatch.context() as patched:
            die_at(patched, where, name, after=after, visit=visit)
            with contextlib.suppress(Crash):
                run_all(driver_for(job, inputs, ObjectStorage(str(root / "state")), InlineRunner()))
        finish(root, inputs, job)
        table = table_at(root)
        assert rows_of(table) == expected(inputs), f"died {'after' if after else 'before'} call {visit} of {name}"
        named = {Path(task.file.file_path).name for task in table.scan().plan_files()}
        assert {path.name for path in root.rglob("part-*.parquet")} == named, "nothing is left that the table does not name"


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("name", ["_one_file", "_replace"])
def test_a_join_whose_driver_dies_while_it_rewrites_has_each_result_once(name: str, after: bool, tmp_path: Path) -> None:
    inputs = make_inputs(epochs=6)
    job = job_at(tmp_path, gather="0s", compact={"files": 2})
    with pytest.MonkeyPatch.context() as patched:

        def die(*arguments: Any) -> None:
            if after:
                real(*arguments)
            died.set()
            raise Crash(name)

        real, died = getattr(iceberg_rewrite, name), threading.Event()
        patched.setattr(iceberg_rewrite, name, die)
        patched.setattr(threading, "excepthook", lambda arguments: None)
        driver = driver_for(job, inputs, ObjectStorage(str(tmp_path / "state")), InlineRunner())
        driver.start()
        while not died.is_set() and driver.step() is not None:
            pass
        assert died.wait(PATIENCE_SECONDS)
    finish(tmp_path, inputs, job)
    table = table_at(tmp_path)
    assert rows_of(table) == expected(inputs)


@pytest.mark.parametrize("after", [False, True])
def test_a_join_in_an_object_store_has_each_result_once(after: bool, small: str, s3: S3Server, tmp_path: Path) -> None:
    inputs, warehouse = make_inputs(epochs=3), s3.bucket()
    job = job_at(tmp_path, warehouse, partitionBy=["b"], gather="0s" if small == "in files" else "1h")
    with pytest.MonkeyPatch.context() as patched:
        die_at(patched, StoreStaging, "publish", after=after, visit=1)
        with contextlib.suppress(Crash):
            run_all(driver_for(job, inputs, ObjectStorage(str(tmp_path / "state")), InlineRunner()))
    finish(tmp_path, inputs, job)
    table = table_at(tmp_path, warehouse, **{"s3.endpoint": s3.endpoint})
    assert rows_of(table) == expected(inputs)
    files = len(list(table.scan().plan_files()))
    before, now = rewrite(table, 1 << 20, "zstd")
    assert len(list(table.scan().plan_files())) == files - before + now
    assert rows_of(table) == expected(inputs)
