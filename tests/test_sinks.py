"""Sinks and dead letters: what a reader sees and when, and that nothing is lost on the way."""

from __future__ import annotations

import io
import json
import pickle
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from harness import MemorySnapshots
from streamjoin.io.base import Rejected, Sink, SinkError, Split, Staged
from streamjoin.io.console import ConsoleSink
from streamjoin.io.deadletter import DeadLetters
from streamjoin.io.factory import make_sink, make_source
from streamjoin.io.files import FilesSource
from streamjoin.io.files_reader import FilesSourceConfig
from streamjoin.io.generator import GeneratorSource
from streamjoin.io.several import Sinks, Writers
from streamjoin.io.sinks import DICTIONARY_SAMPLE, LOOK_EVERY, FilesSink, FilesSinkConfig, json_lines
from streamjoin.io.staging import LocalStaging
from streamjoin.language.ddl import parse_schema
from streamjoin.manifest import sinks, sources

SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string())])


def batch(*numbers: int) -> pa.RecordBatch:
    return pa.record_batch([list(numbers), [f"n{number}" for number in numbers]], schema=SCHEMA)


def sink(root: Path, kind: str = "parquet", schema: pa.Schema = SCHEMA, **config: Any) -> FilesSink:
    made = FilesSink(FilesSinkConfig(str(root), kind, **config), schema)
    return pickle.loads(pickle.dumps(made))


def stage(target: Sink, name: str, *batches: pa.RecordBatch, stem: str | None = None) -> list[Staged]:
    writer = target.writer(name, stem or name)
    for part in batches:
        writer.write(part)
    # As the commit keeps it.
    return [Staged.from_json(json.loads(json.dumps(staged.to_json()))) for staged in writer.close()]


def visible(root: Path) -> list[str]:
    """The files that readers of a directory look at."""
    return sorted(path.name for path in root.glob("[!_.]*"))


def rows(root: Path, kind: str = "parquet") -> list[tuple[Any, ...]]:
    reader = "read_parquet" if kind == "parquet" else "read_json"
    return sorted(duckdb.sql(f"select * from {reader}('{root}/part-*')").fetchall())


def test_only_parquet_columns_that_repeat_themselves_get_dictionaries(tmp_path: Path) -> None:
    schema = pa.schema([("id", pa.int64()), ("town", pa.string()), ("code", pa.int32()), ("nothing", pa.null())])
    numbers = range(10_000)
    columns = [list(numbers), [f"town-{number % 7}" for number in numbers], [number % 3 for number in numbers], [None] * len(numbers)]
    target = sink(tmp_path, schema=schema)
    target.publish(stage(target, "a", pa.record_batch(columns, schema=schema)))
    group = pq.read_metadata(tmp_path / visible(tmp_path)[0]).row_group(0)
    found = {group.column(index).path_in_schema: group.column(index).has_dictionary_page for index in range(3)}
    assert found == {"id": False, "town": True, "code": True}
    assert len(rows(tmp_path)) == len(numbers)


def test_what_gets_a_dictionary_is_decided_anew_by_one_file_in_so_many(tmp_path: Path) -> None:
    """A copy of the sink, as another process has it, begins by itself."""
    schema = pa.schema([("id", pa.int64())])
    unique, repetitive = (pa.record_batch([pa.array(np.arange(DICTIONARY_SAMPLE) % most)], schema=schema) for most in (10**6, 3))
    target = sink(tmp_path, schema=schema)
    with_dictionary = []
    for number in range(LOOK_EVERY + 2):
        one = target if number < LOOK_EVERY + 1 else pickle.loads(pickle.dumps(target))
        (staged,) = stage(one, f"w{number}", repetitive if number else unique)
        target.publish([staged])
        column = pq.read_metadata(tmp_path / staged.final).row_group(0).column(0)
        with_dictionary.append(column.has_dictionary_page)
    assert with_dictionary == [False] * LOOK_EVERY + [True, True]


def test_parquet_columns_that_begin_with_nulls_get_dictionaries_by_their_values(tmp_path: Path) -> None:
    schema = pa.schema([("id", pa.int64()), ("town", pa.string()), ("never", pa.int64())])
    numbers = range(10_000)
    values: list[list[Any]] = [list(numbers), [f"town-{number % 7}" for number in numbers], [None] * len(numbers)]
    columns = [[None] * 10_000 + column for column in values]
    target = sink(tmp_path, schema=schema)
    target.publish(stage(target, "a", pa.record_batch(columns, schema=schema)))
    group = pq.read_metadata(tmp_path / visible(tmp_path)[0]).row_group(0)
    found = {group.column(index).path_in_schema: group.column(index).has_dictionary_page for index in range(3)}
    assert found == {"id": False, "town": True, "never": False}
    assert sum(pq.read_metadata(tmp_path / name).num_rows for name in visible(tmp_path)) == 20_000


def test_whole_numbers_that_do_not_repeat_are_written_as_differences_and_read_back_whatever_they_are(tmp_path: Path) -> None:
    numbers = [-(2**63), 2**63 - 1, 0, -1, None, *range(5_000), 2**62, -(2**62)]
    kinds = {"long": pa.int64(), "int": pa.int32(), "small": pa.int16(), "time": pa.timestamp("us", "UTC"), "day": pa.date32()}
    columns = [
        pa.array(numbers, pa.int64()),
        pa.array([None if number is None else max(-(2**31), min(2**31 - 1, number)) for number in numbers], pa.int32()),
        pa.array([None if number is None else max(-(2**15), min(2**15 - 1, number)) for number in numbers], pa.int16()),
        pa.array([None if number is None else number % 2**50 for number in numbers], pa.int64()).cast(kinds["time"]),
        pa.array([None if number is None else number % 2**20 for number in numbers], pa.int32()).cast(kinds["day"]),
    ]
    written = pa.record_batch(columns, schema=pa.schema(kinds.items()))
    target = sink(tmp_path, schema=written.schema)
    target.publish(stage(target, "a", written))
    file = tmp_path / visible(tmp_path)[0]
    group = pq.read_metadata(file).row_group(0)
    assert all("DELTA_BINARY_PACKED" in group.column(index).encodings for index in range(len(kinds)))
    assert pq.read_table(file).equals(pa.Table.from_batches([written]))
    assert duckdb.sql(f"select long, int, small from '{file}'").fetchall() == list(zip(*(c.to_pylist() for c in columns[:3]), strict=True))


@pytest.mark.parametrize("kind", ["parquet", "json"])
def test_a_reader_sees_files_when_they_are_published_and_not_before(tmp_path: Path, kind: str) -> None:
    target = sink(tmp_path, kind)
    writer = target.writer("e1-t0-a0", "e1-t0")
    writer.write(batch(1, 2))
    assert visible(tmp_path) == []
    staged = writer.close()
    assert visible(tmp_path) == []
    assert [(file.rows, file.final) for file in staged] == [(2, f"part-e1-t0-000.{kind}")]
    assert staged[0].nbytes == (tmp_path / staged[0].path).stat().st_size
    target.publish(staged)
    assert visible(tmp_path) == [f"part-e1-t0-000.{kind}"]
    assert rows(tmp_path, kind) == [(1, "n1"), (2, "n2")]


def test_publishing_again_changes_nothing_wherever_it_was_interrupted(tmp_path: Path) -> None:
    target = sink(tmp_path)
    staged = stage(target, "a", batch(1)) + stage(target, "b", batch(2))
    target.publish(staged[:1])
    for _ in range(2):
        target.publish(staged)
        assert rows(tmp_path) == [(1, "n1"), (2, "n2")]


def test_a_committed_file_that_is_lost_is_named(tmp_path: Path) -> None:
    target = sink(tmp_path)
    staged = stage(target, "a", batch(1, 2, 3))
    (tmp_path / staged[0].path).unlink()
    with pytest.raises(SinkError, match=r"_staging/a-000\.parquet: this committed file is gone and .*its 3 rows are lost"):
        target.publish(staged)


def test_a_task_without_results_makes_no_file(tmp_path: Path) -> None:
    target = sink(tmp_path / "never")
    assert stage(target, "a", batch()) == []
    assert not (tmp_path / "never").exists()


def test_attempts_at_the_same_task_do_not_touch_each_other_s_files(tmp_path: Path) -> None:
    target = sink(tmp_path)
    first, second = target.writer("t0-a0", "t0"), target.writer("t0-a1", "t0")
    first.write(batch(1))
    second.write(batch(1))
    first.close()
    second_staged = second.close()
    first.abort()
    target.publish(second_staged)
    assert rows(tmp_path) == [(1, "n1")]


@pytest.mark.parametrize("finish", [False, True])
def test_an_aborted_writer_leaves_nothing(tmp_path: Path, finish: bool) -> None:
    writer = sink(tmp_path, roll_bytes=1).writer("a", "a")
    for number in range(3):
        writer.write(pa.record_batch([range(150_000), [str(number)] * 150_000], schema=SCHEMA))
    if finish:
        writer.close()
    assert list((tmp_path / "_staging").iterdir())
    writer.abort()
    assert list((tmp_path / "_staging").iterdir()) == []
    with pytest.raises(SinkError, match="writer a: closed already"):
        writer.write(batch(1))


def test_a_sweep_removes_what_it_may(tmp_path: Path) -> None:
    target = sink(tmp_path)
    assert target.sweep(lambda name: True) == 0
    kept, left = stage(target, "kept", batch(1)), stage(target, "left", batch(2))
    assert target.sweep(lambda name: name.startswith("left")) == 1
    target.publish(kept)
    assert rows(tmp_path) == [(1, "n1")]
    with pytest.raises(SinkError):
        target.publish(left)


def test_small_batches_become_large_row_groups_and_large_outputs_several_files(tmp_path: Path) -> None:
    target = sink(tmp_path)
    many = pa.record_batch([range(1000), ["x"] * 1000], schema=SCHEMA)
    target.publish(stage(target, "small", *[many] * 300))
    metadata = pq.read_metadata(tmp_path / "part-small-000.parquet")
    assert metadata.num_rows == 300_000
    assert metadata.num_row_groups == 3
    assert metadata.row_group(0).column(0).compression == "SNAPPY"
    rolling = sink(tmp_path / "rolling", roll_bytes=100_000, compression="none")
    staged = stage(rolling, "large", *[many] * 1000)
    rolling.publish(staged)
    assert len(staged) > 3
    assert len({file.final for file in staged}) == len(staged)
    assert sum(file.rows for file in staged) == 1_000_000
    assert duckdb.sql(f"select count(*) from '{tmp_path}/rolling/*.parquet'").fetchall() == [(1_000_000,)]


def test_a_directory_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SinkError, match=r"files\.path: .*/file/out cannot be written"):
        stage(sink(tmp_path / "file" / "out"), "a", batch(1))


def test_a_directory_below_a_file_is_named_when_a_run_begins(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("")
    with pytest.raises(SinkError, match=r"files\.path: \S+/out/near cannot be read \(Not a directory\); correct the path"):
        LocalStaging(str(tmp_path / "out/near")).staged()


def test_a_batch_of_another_schema_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SinkError, match="a batch's schema x int64 is not the sink's id int64, name string"):
        sink(tmp_path).writer("a", "a").write(pa.record_batch({"x": [1]}))


EVERYTHING = pa.record_batch(
    {
        "b": pa.array([True, None, False]),
        "l": pa.array([2**63 - 1, None, -(2**63)]),
        "d": pa.array([0.1, float("nan"), float("-inf")]),
        "f": pa.array([0.1, None, 3.4028234663852886e38], pa.float32()),
        "m": pa.array([Decimal("1234567890123456.7890"), None, Decimal("-0.0001")], pa.decimal128(20, 4)),
        "s": pa.array(['a"b\\c\n\r\t\x00\x1fé\u2028', None, ""]),
        "y": pa.array([b"\xff\x00", None, b""]),
        "da": pa.array([date(2026, 2, 28), None, date(1, 1, 1)]),
        "at": pa.array([datetime(2026, 1, 1, 0, 0, 0, 1, tzinfo=UTC), None, datetime(1969, 12, 31, tzinfo=UTC)], pa.timestamp("us", "UTC")),
        "n": pa.array([datetime(9999, 12, 31, 23, 59, 59, 999_999), None, datetime(2026, 1, 1)], pa.timestamp("us")),
    }
)


@pytest.mark.parametrize("compression", [None, "none", "zstd"])
def test_what_json_files_say_is_read_back_exactly(tmp_path: Path, compression: str | None) -> None:
    target = sink(tmp_path, "json", EVERYTHING.schema, compression=compression)
    target.publish(stage(target, "a", EVERYTHING.slice(1), EVERYTHING.slice(0, 1)))
    (path,) = tmp_path.glob("part-*")
    if compression == "zstd":
        assert path.name == "part-a-000.json.zst"
        with pa.CompressedInputStream(pa.OSFile(str(path)), "zstd") as stream:
            text = stream.read()
        path.unlink()
        (tmp_path / "part-a-000.json").write_bytes(text)
    source = FilesSource(FilesSourceConfig(str(tmp_path), "json"), EVERYTHING.schema, MemorySnapshots(), exact_counts=True)
    found = [records for split in source.plan(None, 100, 0.0, final=True).splits for records in source.reader.read(split)]
    assert not any(records.rejected for records in found)
    expected = EVERYTHING.slice(1).to_pylist() + EVERYTHING.slice(0, 1).to_pylist()
    assert repr([row for records in found for row in records.batch.to_pylist()]) == repr(expected)


def test_json_is_what_any_parser_reads(tmp_path: Path) -> None:
    schema = EVERYTHING.schema.append(pa.field('odd "name"', pa.duration("us")))
    extended = pa.record_batch(
        [*EVERYTHING.columns, pa.array([timedelta(seconds=1), None, timedelta(0)], pa.duration("us"))], schema=schema
    )
    lines = bytes(json_lines(extended)).decode().split("\n")
    assert lines.pop() == ""
    first, second, third = (json.loads(line) for line in lines)
    assert first["s"] == 'a"b\\c\n\r\t\x00\x1fé\u2028'
    assert (first["l"], third["l"]) == (2**63 - 1, -(2**63))
    assert (first["m"], third["m"]) == ("1234567890123456.7890", "-0.0001")
    assert (first["at"], first["n"]) == ("2026-01-01T00:00:00.000001Z", "9999-12-31T23:59:59.999999")
    assert (second["d"], third["d"]) == ("NaN", "-Infinity")
    assert [value for name, value in second.items() if name != "d"] == [None] * 10
    assert first['odd "name"'] == 1_000_000


def test_the_console_shows_the_first_rows_once_they_are_committed() -> None:
    console = pickle.loads(pickle.dumps(ConsoleSink(3)))
    staged = stage(console, "a", batch(1, 2), batch(3)) + stage(console, "b", batch(4, 5)) + stage(console, "c")
    shown = io.StringIO()
    console.publish(staged, stream=shown)
    assert shown.getvalue().splitlines() == ['{"id":1,"name":"n1"}', '{"id":2,"name":"n2"}', '{"id":3,"name":"n3"}', "... and 2 more rows"]
    assert console.sweep(lambda name: True) == 0


def test_dead_letters_say_where_what_and_why(tmp_path: Path) -> None:
    letters = pickle.loads(pickle.dumps(DeadLetters(str(tmp_path))))
    writer = letters.writer("e1-0-a0", "e1-0", "orders")
    split = Split(first_record=100, records=10)
    writer.write(split, [])
    writer.write(split, [Rejected(3, '{"id": "x"}', 'column id: "x" is not a value of BIGINT', "a.json byte 17")])
    writer.write(split, [Rejected(4, "base64:/w==", "is not UTF-8")])
    staged = writer.close()
    assert visible(tmp_path) == []
    letters.publish(staged)
    found = [json.loads(line) for line in (tmp_path / "part-e1-0-000.json").read_text().splitlines()]
    assert found == [
        {
            "stream": "orders",
            "split": "a.json byte 17",
            "position": 3,
            "error": 'column id: "x" is not a value of BIGINT',
            "raw": '{"id": "x"}',
            "again": None,
        },
        {"stream": "orders", "split": "records 100 to 110", "position": 4, "error": "is not UTF-8", "raw": "base64:/w==", "again": None},
    ]
    assert letters.writer("e2-0-a0", "e2-0", "orders").close() == []


@pytest.mark.parametrize(
    "sink_model",
    [
        lambda root: sinks.FilesSink(path=f"file://{root}/out", format="json", compression="zstd"),
        lambda root: sinks.FilesSink(path=str(root / "out")),
        lambda root: sinks.ConsoleSink(limit=5),
    ],
)
def test_a_manifest_s_sinks_can_be_made(tmp_path: Path, sink_model: Callable[[Path], Any]) -> None:
    target = make_sink(sink_model(tmp_path), SCHEMA)
    staged = stage(target, "a", batch(1))
    assert [file.rows for file in staged] == [1]
    target.publish(staged)


def test_a_manifest_s_sources_can_be_made(tmp_path: Path) -> None:
    schema = parse_schema("id BIGINT, k BIGINT, h INT, z INT, c STRING, at TIMESTAMP")
    (tmp_path / "x.csv").write_text("7;2;3;4;x;2026-01-01\n")
    files = sources.FilesSource.model_validate({"path": str(tmp_path), "format": "csv", "header": False, "delimiter": ";", "settle": "1s"})
    columns = {
        "id": {"sequence": {"start": 5}},
        "k": {"uniform": {"min": 0, "max": 9}},
        "z": {"zipf": {"values": 10, "exponent": 1.1}},
        "h": {"hotspot": {"min": 0, "max": 99, "width": 10, "share": 0.5, "period": "10s"}},
        "c": {"choice": ["EUR", "USD"]},
    }
    found = make_source(files, schema, "at", snapshots=MemorySnapshots(), exact_counts=True, stream="l")
    plan = found.plan(None, 10, 4e9)
    assert [records.batch.column("id")[0].as_py() for split in plan.splits for records in found.reader.read(split)] == [7]
    for rate in (
        {"constant": 10.0},
        {"ramp": {"from": 1.0, "to": 5.0, "over": "10s"}},
        {"diurnal": {"mean": 10.0, "amplitude": 0.5, "period": "24h"}},
        {"spike": {"base": 1.0, "peak": 9.0, "at": "1s", "for": "1s"}},
    ):
        made = sources.GeneratorSource.model_validate(
            {"rows": 10, "rate": rate, "start": "2026-01-01T00:00:00+01:00", "realTime": False, "outOfOrder": "1ms", "columns": columns}
        )
        source = make_source(made, schema, "at", snapshots=MemorySnapshots(), exact_counts=False)
        assert isinstance(source, GeneratorSource)
        (records,) = source.reader.read(source.plan(None, 100, 0.0).splits[0])
        assert records.batch.column("id").to_pylist() == list(range(5, 15))
        start = datetime(2025, 12, 31, 23, tzinfo=UTC)
        assert start - timedelta(milliseconds=1) <= records.batch.column("at")[0].as_py() <= start


def closed(writers: Writers, kinds: tuple[str, ...] = ("parquet", "json")) -> list[Staged]:
    """What is staged of these joins."""
    return [staged for kind in kinds for staged in writers.close(kind)]


def several(root: Path, kinds: tuple[str, ...] = ("parquet", "json")) -> Sinks:
    by_join = {kind: sink(root / kind, kind, gather_seconds=number + 1.0) for number, kind in enumerate(kinds)}
    return pickle.loads(pickle.dumps(Sinks(by_join)))


def test_each_join_s_results_go_into_its_own_sink(tmp_path: Path) -> None:
    target = several(tmp_path)
    writers = target.writers("e1-t0-a0", "e1-t0")
    writers.write("json", batch(1, 2))
    writers.write("parquet", batch(3))
    staged = [Staged.from_json(json.loads(json.dumps(one.to_json()))) for one in closed(writers)]
    assert sorted((one.join, one.rows) for one in staged) == [("json", 2), ("parquet", 1)]
    for again in (False, True):
        target.publish(staged, again=again)
        assert rows(tmp_path / "parquet") == [(3, "n3")]
        assert rows(tmp_path / "json", "json") == [(1, "n1"), (2, "n2")]
    assert target.gather_seconds == 1.0


def test_small_results_of_several_joins_are_gathered_by_join(tmp_path: Path) -> None:
    target = several(tmp_path)
    small: list[Staged] = []
    for epoch in range(3):
        writers = target.writers(f"e{epoch}-t0-a0", f"e{epoch}-t0", small_bytes=4096)
        writers.write("json", batch(epoch))
        writers.write("parquet", batch(10 + epoch))
        small += closed(writers)
    assert all(one.data and not one.path for one in small)
    gathered = target.gather(small, "gathered", "stem")
    assert sorted((one.join, one.rows) for one in gathered) == [("json", 3), ("parquet", 3)]
    assert visible(tmp_path / "json") == visible(tmp_path / "parquet") == []
    target.publish(gathered)
    assert rows(tmp_path / "json", "json") == [(0, "n0"), (1, "n1"), (2, "n2")]
    assert rows(tmp_path / "parquet") == [(10, "n10"), (11, "n11"), (12, "n12")]


def test_the_small_results_of_all_joins_come_to_no_more_than_a_task_may_leave(tmp_path: Path) -> None:
    alone = sink(tmp_path / "alone").writer("a", "a", small_bytes=1000)
    alone.write(batch(*range(40)))
    (small,) = alone.close()
    assert small.data
    writers = several(tmp_path).writers("a", "a", small_bytes=1000)
    for join in ("parquet", "json"):
        writers.write(join, batch(*range(40)))
    assert [bool(one.data) for one in closed(writers)] == [False, False]


def test_aborted_writers_of_several_joins_leave_nothing_and_a_sweep_is_of_all_sinks(tmp_path: Path) -> None:
    target = several(tmp_path)
    for name in ("aborted", "left"):
        writers = target.writers(name, name)
        for join in ("parquet", "json"):
            writers.write(join, batch(1))
        closed(writers)
        if name == "aborted":
            writers.abort()
    assert sorted(path.name for path in tmp_path.glob("*/_staging/*")) == ["left-000.parquet", "left-1-000.json"]
    assert target.sweep(lambda name: name.startswith("left")) == 2


def test_the_only_join_is_not_named_in_what_it_stages(tmp_path: Path) -> None:
    target = several(tmp_path, ("parquet",))
    writers = target.writers("a", "a")
    writers.write("parquet", batch(1))
    staged = closed(writers, ("parquet",))
    assert [one.join for one in staged] == [""]
    renamed = Sinks({"another": target.by_join["parquet"]})
    renamed.publish(staged)
    assert rows(tmp_path / "parquet") == [(1, "n1")]
