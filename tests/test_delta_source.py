"""The Delta source: every row that was added exactly once, in the log's order, whatever else happens to the table."""

from __future__ import annotations

import datetime as dt
import json
import pickle
import random
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from deltalake import DeltaTable, write_deltalake

from harness import MemorySnapshots, Root
from s3 import S3Server
from streamjoin.cli.exits import Exit
from streamjoin.io.base import Position, SourceError, SourcePlan
from streamjoin.io.delta_changes import DeltaChanges
from streamjoin.io.factory import make_source
from streamjoin.io.table_source import TableSource
from streamjoin.language.ddl import parse_schema
from streamjoin.manifest import sources
from tables import ALL_TYPES, UNUSUAL, normal, texts, typed_rows
from test_cli import run_inline
from test_delta_sink import sink, stage

SCHEMA = pa.schema([("id", pa.int64()), ("part", pa.string())])


def source(root: Root, schema: pa.Schema = SCHEMA, *, files: int = 1000, **config: Any) -> TableSource:
    return TableSource(DeltaChanges(str(root), **config), schema, f"delta.path: {root}", files)


def rows(*numbers: int) -> pa.Table:
    return pa.table([list(numbers), [f"p{number % 3}" if number % 4 else None for number in numbers]], schema=SCHEMA)


def add(root: Root, *numbers: int, **options: Any) -> None:
    write_deltalake(str(root), rows(*numbers), mode="append", **options)


def read(made: TableSource, plan: SourcePlan) -> pa.Table:
    """A plan's rows, by a reader that a task has."""
    reader = pickle.loads(pickle.dumps(made.reader))
    batches, first = [], None
    for split in pickle.loads(pickle.dumps(plan.splits)):
        assert first is None or split.first_record == first
        found = [records.batch for records in reader.read(split)]
        assert sum(batch.num_rows for batch in found) == split.records
        first = split.first_record + split.records
        batches += found
    return pa.Table.from_batches(batches, made.reader.schema)


def drained(made: TableSource, position: Position | None, limit: int = 1000, **options: Any) -> tuple[list[int], Position]:
    """The ids that are there after a position, and where reading stands then."""
    found: list[int] = []
    for _ in range(1000):
        plan = made.plan(position, limit, 4e9, **options)
        position = json.loads(json.dumps(plan.position))
        found += read(made, plan).column("id").to_pylist()
        assert plan.end_record == position["records"]
        if not plan.splits:
            assert plan.exhausted
            return found, position
    raise AssertionError("does not end")


@pytest.mark.parametrize("partition_by", [None, ["part"]])
@pytest.mark.parametrize("limit", [1, 3, 1000])
def test_the_table_as_it_is_and_then_what_is_added(partition_by: list[str] | None, limit: int, tmp_path: Path) -> None:
    for first in (0, 10, 20):
        add(tmp_path, *range(first, first + 10), partition_by=partition_by)
    found, position = drained(source(tmp_path), None, limit)
    assert sorted(found) == list(range(30))
    add(tmp_path, 30, 31)
    add(tmp_path, 32)
    found, position = drained(source(tmp_path), position, limit)
    assert sorted(found[:2]) == [30, 31]
    assert found[2:] == [32]
    assert drained(source(tmp_path), position)[0] == []


@pytest.mark.parametrize("seed", range(4))
def test_whatever_is_planned_where_each_row_comes_once(seed: int, tmp_path: Path) -> None:
    rng, written, made = random.Random(seed), 0, source(tmp_path, files=3)
    position, found = None, []
    for _ in range(25):
        for _ in range(rng.randrange(3) if written else 1):
            count = rng.randrange(1, 8)
            add(tmp_path, *range(written, written + count), partition_by=["part"])
            written += count
        if rng.random() < 0.2:
            DeltaTable(str(tmp_path)).optimize.compact()
        if rng.random() < 0.2:
            DeltaTable(str(tmp_path)).create_checkpoint()
        if rng.random() < 0.4:
            made = source(tmp_path, files=3)
        plan = made.plan(position, rng.randrange(1, 20), 4e9, split_records=rng.choice([None, 2]))
        again = made.plan(position, 10**6, 4e9)
        assert set(read(made, plan).column("id").to_pylist()) <= set(read(made, again).column("id").to_pylist()), f"seed {seed}"
        if rng.random() < 0.8:
            found += read(made, plan).column("id").to_pylist()
            position = json.loads(json.dumps(plan.position))
    found += drained(made, position)[0]
    assert sorted(found) == list(range(written)), f"seed {seed}"


def test_row_groups_of_a_large_file_are_read_once_each(tmp_path: Path) -> None:
    DeltaTable.create(str(tmp_path), SCHEMA)
    made = source(tmp_path)
    assert made.plan(None, 100, 4e9).splits == ()
    from streamjoin.io.delta_sink import DeltaSink, DeltaSinkConfig

    target = DeltaSink(DeltaSinkConfig(str(tmp_path)), SCHEMA)
    writer = target.writer("a", "c0ffee00-000000000000-00000")
    writer.write(rows(*range(300_000)).combine_chunks().to_batches()[0])
    target.publish(writer.close())
    (path,) = (Path(uri) for uri in DeltaTable(str(tmp_path)).file_uris())
    groups = pq.read_metadata(path).num_row_groups
    assert groups > 1
    position, counts = None, []
    while True:
        plan = source(tmp_path).plan(position, 1, 4e9)
        if not plan.splits:
            break
        counts.append(plan.records)
        position = json.loads(json.dumps(plan.position))
    assert len(counts) == groups
    assert sum(counts) == 300_000


def test_from_a_version_on(tmp_path: Path) -> None:
    for number in range(5):
        add(tmp_path, number)
    assert drained(source(tmp_path, starting_version=3), None)[0] == [3, 4]
    assert drained(source(tmp_path, starting_version=5), None)[0] == []


def test_a_start_that_is_asked_for_again_is_the_same(tmp_path: Path) -> None:
    DeltaTable.create(str(tmp_path), SCHEMA)
    made = source(tmp_path)
    assert made.plan(None, 10, 4e9).splits == ()
    add(tmp_path, 1)
    assert drained(made, None)[0] == [1]


def test_every_type_is_read(tmp_path: Path) -> None:
    schema = parse_schema(
        "flag BOOLEAN, tiny TINYINT, small SMALLINT, whole INT, big BIGINT, real FLOAT, double DOUBLE, text STRING, bytes BINARY, day DATE,"
        " instant TIMESTAMP, local TIMESTAMP_NTZ, price DECIMAL(9,2), wide DECIMAL(38,10), took BIGINT"
    )
    values = typed_rows(40)
    table = pa.Table.from_pylist(values, ALL_TYPES)
    table = table.set_column(14, "took", table.column("took").cast(pa.int64()))
    for number, partition_by in enumerate((None, ["day", "flag", "whole"])):
        root = tmp_path / str(number)
        write_deltalake(str(root), table, partition_by=partition_by)
        model = sources.DeltaSource(path=str(root))
        made: Any = make_source(model, schema, None, snapshots=MemorySnapshots(), exact_counts=True)
        plan = made.plan(None, 1000, 4e9)
        assert texts(read(made, plan)) == normal(values)
        for version in (0,):
            changes = source(root, made.reader.schema, starting_version=version)
            assert texts(read(changes, changes.plan(None, 1000, 4e9))) == normal(values)


def test_columns_that_came_later_are_null_before(tmp_path: Path) -> None:
    write_deltalake(str(tmp_path), pa.table({"id": [1]}))
    write_deltalake(str(tmp_path), rows(2), mode="append", schema_mode="merge")
    made = source(tmp_path)
    found = read(made, made.plan(None, 10, 4e9)).to_pylist()
    assert sorted(found, key=lambda row: row["id"]) == [{"id": 1, "part": None}, {"id": 2, "part": "p2"}]


@pytest.mark.parametrize("change", ["delete", "update", "overwrite", "merge"])
def test_a_version_that_changes_rows_fails_or_is_skipped(change: str, tmp_path: Path) -> None:
    add(tmp_path, 1, 2, 3)
    made = source(tmp_path)
    _, position = drained(made, None)
    table = DeltaTable(str(tmp_path))
    if change == "delete":
        table.delete("id = 2")
    elif change == "update":
        table.update({"part": "'x'"}, predicate="id = 2")
    elif change == "overwrite":
        write_deltalake(str(tmp_path), rows(7), mode="overwrite")
    else:
        merger = table.merge(rows(2, 8), "t.id = s.id", source_alias="s", target_alias="t")
        merger.when_matched_update_all().when_not_matched_insert_all().execute()
    add(tmp_path, 9)
    with pytest.raises(SourceError, match=r"version 1 \(\w+\) deletes or changes rows, .*; give onChange: skip"):
        made.plan(position, 10, 4e9)
    skipping = source(tmp_path, on_change="skip")
    plan = skipping.plan(position, 10, 4e9)
    assert len(plan.warnings) == 1
    assert "its files are skipped" in plan.warnings[0]
    assert drained(skipping, position)[0] == [9]


def test_a_version_that_is_no_more_in_the_log_is_missed(tmp_path: Path) -> None:
    add(tmp_path, 1)
    _, position = drained(source(tmp_path), None)
    for number in range(2, 5):
        add(tmp_path, number)
    DeltaTable(str(tmp_path)).create_checkpoint()
    (tmp_path / "_delta_log" / f"{1:020d}.json").unlink()
    with pytest.raises(SourceError, match=r"version 1 was not read yet, and is no more in the log; .*choose a new checkpoint"):
        source(tmp_path).plan(position, 10, 4e9)


def test_a_table_that_was_made_anew_is_not_taken_for_the_old_one(tmp_path: Path) -> None:
    for number in range(4):
        add(tmp_path / "t", number)
    _, position = drained(source(tmp_path / "t"), None)
    shutil.rmtree(tmp_path / "t")
    add(tmp_path / "t", 9)
    with pytest.raises(SourceError, match=r"has no version 3; the newest is 0\. Was it made anew\?"):
        source(tmp_path / "t").plan(position, 10, 4e9)


def test_a_file_that_is_gone_is_missed(tmp_path: Path) -> None:
    add(tmp_path, 1)
    add(tmp_path, 2)
    for path in tmp_path.glob("*.parquet"):
        path.unlink()
    with pytest.raises(SourceError, match=r"cannot be read \(.*\); keep VACUUM and the like from what is not read yet"):
        source(tmp_path).plan(None, 10, 4e9)


def test_a_damaged_data_file_is_a_dead_letter_and_others_are_read(tmp_path: Path) -> None:
    for number in (1, 2, 3):
        add(tmp_path, number)
    first, second, third = sorted(tmp_path.glob("*.parquet"))
    first.write_bytes(b"PAR1")
    data = bytearray(second.read_bytes())
    data[4:30] = b"\xff" * 26
    second.write_bytes(data)
    table = source(tmp_path)
    plan = table.plan(None, 10, 4e9)
    found = [records for split in plan.splits for records in table.reader.read(split)]
    letters = {item.place: item.error for records in found for item in records.rejected}
    assert letters.keys() == {first.name, second.name}
    assert "it is not a complete Parquet file" in letters[first.name]
    assert [records.batch.num_rows for records in found if records.batch.num_rows] == [1]
    assert third.name not in letters
    assert any(first.name in warning for warning in plan.warnings)
    assert table.plan(plan.position, 10, 4e9).splits == ()


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "cut": lambda data: data[:-5],
    "empty": lambda data: b"",
    "overwritten": lambda data: data[:4] + b"\0" * 100 + data[104:],
    "without a field": lambda data: data.replace(b'"modificationTime"', b'"modified"'),
}


@pytest.mark.parametrize(
    ("name", "damage"),
    [*((f"{4:020d}.json", damage) for damage in DAMAGES), *((f"{2:020d}.checkpoint.parquet", damage) for damage in list(DAMAGES)[:3])],
)
def test_a_damaged_file_of_the_log_is_named(name: str, damage: str, tmp_path: Path) -> None:
    for number in range(6):
        add(tmp_path, number)
        if number == 2:
            DeltaTable(str(tmp_path)).create_checkpoint()
    path = tmp_path / "_delta_log" / name
    path.write_bytes(DAMAGES[damage](path.read_bytes()))
    with pytest.raises(SourceError, match=rf"^delta.path: {tmp_path}: its log is damaged: _delta_log/{name} \(.*\); restore the file$"):
        source(tmp_path).plan(None, 10, 4e9)


LINES = {
    "no JSON": b"{",
    "no object": b"[]",
    "no action": b'{"add": 1}',
    "no file": b'{"add": {}}',
    "no path": b'{"add": {"path": 5, "size": 7}}',
    "no features": b'{"protocol": {"readerFeatures": 7}}',
    "no UTF-8": b"\xff",
    "too deep": b"[" * 10_000,
}


def test_a_file_that_a_version_adds_twice_is_damage_and_a_null_is_no_action(tmp_path: Path) -> None:
    add(tmp_path, 1)
    path = tmp_path / "_delta_log" / f"{0:020d}.json"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    (added,) = [line for line in lines if "add" in line]
    path.write_text("".join(json.dumps({"remove": None, **line}) + "\n" for line in lines))
    assert drained(source(tmp_path, starting_version=0), None)[0] == [1]
    path.write_text("".join(json.dumps(line) + "\n" for line in [*lines, added]))
    with pytest.raises(SourceError, match=rf"^delta.path: {path}: is damaged \(ValueError: it adds .*.parquet twice\); restore the file"):
        source(tmp_path, starting_version=0).plan(None, 10, 4e9)


@pytest.mark.parametrize("line", LINES)
def test_a_version_that_is_damaged_is_named_with_the_version_to_go_on_with(line: str, tmp_path: Path) -> None:
    for number in range(4):
        add(tmp_path, number)
    made = source(tmp_path, starting_version=3)
    assert made.plan(None, 1, 4e9).splits, "it has read the table's columns"
    path = tmp_path / "_delta_log" / f"{2:020d}.json"
    path.write_bytes(path.read_bytes() + LINES[line] + b"\n")
    remedy = "restore the file, or begin after it with startingVersion: 3 and a new checkpoint"
    with pytest.raises(SourceError, match=rf"^delta.path: {path}: is damaged \(.*\); {remedy}$"):
        made.plan({"mark": [1, False], "file": None, "entry": None, "records": 0, "density": 0.0}, 10, 4e9)


def test_what_is_no_table_or_lacks_a_column_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"delta\.path: .*: there is no Delta table; make it, or correct the path"):
        source(tmp_path).plan(None, 10, 4e9)
    add(tmp_path, 1)
    with pytest.raises(SourceError, match=r"has no column price, which the schema declares as DOUBLE; .*the table has id, part"):
        source(tmp_path, pa.schema([("price", pa.float64())])).plan(None, 10, 4e9)
    with pytest.raises(SourceError, match="which cannot be read as"):
        source(tmp_path, pa.schema([("part", pa.float64())])).plan(None, 10, 4e9)


@pytest.mark.parametrize("where", ["here", "a b é", "s3"])
def test_partitions_of_unusual_text_are_read_whoever_wrote_them(where: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    root: Root = request.getfixturevalue("s3").bucket() if where == "s3" else tmp_path / where
    values = pa.table([list(range(len(UNUSUAL))), UNUSUAL], schema=SCHEMA)
    write_deltalake(str(root) if where == "s3" else (tmp_path / where).as_uri(), values, partition_by=["part"])
    made = source(root)
    plan = made.plan(None, 1000, 4e9)
    assert sorted(read(made, plan).column("part").to_pylist()) == sorted(UNUSUAL)
    target = sink(root, SCHEMA, partition_by=("part",))
    target.publish(stage(target, 0, values.combine_chunks().to_batches()[0]))
    for reader, position in ((made, plan.position), (source(root, starting_version=1), None)):
        plan = reader.plan(position, 1000, 4e9)
        assert read(reader, plan).sort_by("id").equals(values)


def test_from_an_object_store(s3: S3Server) -> None:
    root = s3.bucket()
    add(root, 1, 2, 3, partition_by=["part"])
    found, position = drained(source(root), None)
    assert sorted(found) == [1, 2, 3]
    add(root, 4, 5)
    assert sorted(drained(source(root), position)[0]) == [4, 5]


def test_a_join_of_two_tables_into_a_third_goes_on_where_it_was(tmp_path: Path) -> None:
    start = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)

    def put(name: str, first: int, last: int) -> None:
        times = [start + dt.timedelta(seconds=number) for number in range(first, last)]
        schema = pa.schema([("id", pa.int64()), ("k", pa.int64()), ("at", pa.timestamp("us", "UTC"))])
        values = [list(range(first, last)), [number % 7 for number in range(first, last)], times]
        write_deltalake(str(tmp_path / name), pa.table(values, schema=schema), mode="append")

    schema = "id BIGINT, k BIGINT, at TIMESTAMP"
    timed = {"schema": schema, "eventTime": "at", "watermark": "0s"}
    streams = [{"name": name, "source": {"delta": {"path": str(tmp_path / name)}}} | timed for name in ("a", "b")]
    output = {"select": ["a.id AS x", "b.id AS y"], "sink": {"delta": {"path": str(tmp_path / "out"), "gather": "0s"}}}
    join = {"name": "near", "condition": "a.k = b.k", "window": {"within": "30s"}, "output": output}
    spec = {"streams": streams, "joins": [join], "workers": {"min": 1, "max": 2}, "checkpoint": {"location": str(tmp_path / "state")}}
    manifest = tmp_path / "join.yaml"
    resource = {"apiVersion": "streamjoin.dev/v1beta1", "kind": "StreamJoin", "metadata": {"name": "near"}, "spec": spec}
    manifest.write_text(yaml.safe_dump(resource))
    for last in (100, 200):
        put("a", last - 100, last)
        put("b", last - 100, last)
        assert run_inline(manifest, "--until-idle").exit_code == Exit.DONE
        want = Counter((x, y) for x in range(last) for y in range(last) if x % 7 == y % 7 and abs(x - y) <= 30)
        out = DeltaTable(str(tmp_path / "out")).to_pyarrow_table()
        assert Counter(zip(out.column("x").to_pylist(), out.column("y").to_pylist(), strict=True)) == want


def test_records_came_with_the_version_that_added_them(tmp_path: Path) -> None:
    add(tmp_path, *range(3))
    add(tmp_path, *range(3, 10))
    made = source(tmp_path)
    plan = made.plan(None, 1000, 4e9)
    changed = {file["path"]: file["modification_time"] for file in pa.table(DeltaTable(str(tmp_path)).get_add_actions()).to_pylist()}
    assert plan.arrivals is not None
    assert plan.arrivals.at.tolist() == sorted(millis / 1000 for millis in changed.values())
    assert int(plan.arrivals.records.sum()) == 10
    add(tmp_path, 10, 11)
    log = tmp_path / "_delta_log" / f"{2:020}.json"
    actions = [json.loads(line) for line in log.read_text().splitlines()]
    stamp = 1795721304158  # which nanoseconds as a float round to another float of seconds
    (commit,) = [action["commitInfo"] for action in actions if "commitInfo" in action]
    commit["timestamp"] = stamp
    log.write_text("".join(json.dumps(action) + "\n" for action in actions))
    plan = made.plan(plan.position, 1000, 4e9)
    assert plan.arrivals is not None
    assert (plan.arrivals.at.tolist(), plan.arrivals.records.tolist()) == ([stamp / 1000], [2])
    assert made.plan(plan.position, 1000, 4e9).arrivals is None
