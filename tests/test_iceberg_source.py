"""The Iceberg source: every row that was appended exactly once, in the order of snapshots, whatever else happens to the table."""

from __future__ import annotations

import io
import json
import random
import re
import warnings
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.table import Table
from pyiceberg.types import StringType

from harness import MemorySnapshots, Root
from s3 import S3Server
from streamjoin.io.base import Position, SourceError
from streamjoin.io.factory import make_source
from streamjoin.io.iceberg_changes import IcebergChanges
from streamjoin.io.iceberg_checked import check
from streamjoin.io.iceberg_rewrite import rewrite
from streamjoin.io.iceberg_sink import IcebergSink, IcebergSinkConfig
from streamjoin.io.table_source import TableSource
from streamjoin.language.ddl import parse_schema
from streamjoin.manifest import sources
from tables import ALL_TYPES, UNUSUAL, normal, texts, typed_rows
from test_delta_source import SCHEMA, drained, read, rows
from test_iceberg_sink import TABLE, catalog_at, plain_s3, sink, stage  # noqa: F401


@pytest.fixture(autouse=True)
def quiet() -> None:
    warnings.filterwarnings("ignore", "Delete operation did not match")


def source(root: Path, schema: pa.Schema = SCHEMA, *, files: int = 1000, **config: Any) -> TableSource:
    changes = IcebergChanges(TABLE, tuple(catalog_at(root).items()), **config)
    return TableSource(changes, schema, f"iceberg.table: {TABLE}", files)


def catalog(root: Path) -> Catalog:
    return load_catalog("default", **catalog_at(root))


def table_of(root: Path, schema: pa.Schema = SCHEMA, *, partition: str | None = None) -> Table:
    of = catalog(root)
    of.create_namespace_if_not_exists("results")
    made = of.create_table_if_not_exists(TABLE, schema)
    if partition is not None:
        with made.update_spec() as update:
            update.add_identity(partition)
    return made


@pytest.mark.parametrize("partition", [None, "part"])
@pytest.mark.parametrize("limit", [1, 3, 1000])
def test_the_table_as_it_is_and_then_what_is_appended(partition: str | None, limit: int, tmp_path: Path) -> None:
    table = table_of(tmp_path, partition=partition)
    made = source(tmp_path)
    assert made.plan(None, 10, 4e9).splits == ()
    for first in (0, 10):
        table.append(rows(*range(first, first + 10)))
    assert sorted(drained(made, None, limit)[0]) == list(range(20)), "an empty table is where it began"
    found, position = drained(source(tmp_path), None, limit)
    assert sorted(found) == list(range(20))
    table.append(rows(30, 31))
    table.append(rows(32))
    found, position = drained(source(tmp_path), position, limit)
    assert sorted(found[:2]) == [30, 31]
    assert found[2:] == [32]
    assert drained(source(tmp_path), position)[0] == []


@pytest.mark.parametrize("seed", range(2))
def test_whatever_is_planned_where_each_row_comes_once(seed: int, tmp_path: Path) -> None:
    rng, written, made = random.Random(seed), 0, source(tmp_path, files=3)
    table, target = table_of(tmp_path), sink(tmp_path, pa.schema([("id", pa.int64()), ("part", pa.string())]))
    position: Position | None = None
    found: list[int] = []
    for _ in range(15):
        for _ in range(rng.randrange(3) if written else 1):
            count = rng.randrange(1, 8)
            new = rows(*range(written, written + count))
            if rng.random() < 0.5:  # by a sink, whose files have no identifiers of columns, and whose manifests are merged
                target.publish(stage(target, written, new.combine_chunks().to_batches()[0]))
            else:
                table.refresh()
                table.append(new)
            written += count
        if rng.random() < 0.4:
            made = source(tmp_path, files=3)
        plan = made.plan(position, rng.randrange(1, 20), 4e9)
        if rng.random() < 0.8:
            found += read(made, plan).column("id").to_pylist()
            position = json.loads(json.dumps(plan.position))
    found += drained(made, position)[0]
    assert sorted(found) == list(range(written)), f"seed {seed}"


def test_from_a_snapshot_on(tmp_path: Path) -> None:
    table = table_of(tmp_path)
    for number in range(4):
        table.append(rows(number))
    assert drained(source(tmp_path, starting_snapshot=table.snapshots()[2].snapshot_id), None)[0] == [2, 3]
    with pytest.raises(SourceError, match="snapshot 17, which was read last or is to be read first, is not among"):
        source(tmp_path, starting_snapshot=17).plan(None, 10, 4e9)


def test_every_type_is_read_and_partitions_too(tmp_path: Path) -> None:
    schema = parse_schema(
        "flag BOOLEAN, tiny TINYINT, small SMALLINT, whole INT, big BIGINT, real FLOAT, double DOUBLE, text STRING, bytes BINARY, day DATE,"
        " instant TIMESTAMP, local TIMESTAMP_NTZ, price DECIMAL(9,2), wide DECIMAL(38,10), took BIGINT"
    )
    values = typed_rows(40)
    target = sink(tmp_path, ALL_TYPES, partition_by=("day",))
    target.publish(stage(target, 0, pa.RecordBatch.from_pylist(values, ALL_TYPES)))
    model = sources.IcebergSource(table=TABLE, catalog=dict(catalog_at(tmp_path)))
    made: Any = make_source(model, schema, None, snapshots=MemorySnapshots(), exact_counts=True)
    assert texts(read(made, made.plan(None, 1000, 4e9))) == normal(values)


def unusual(first: int) -> pa.Table:
    return pa.table([list(range(first, first + len(UNUSUAL))), UNUSUAL], schema=SCHEMA)


@pytest.mark.parametrize("where", ["here", "a b%20%é", "s3"])
def test_partitions_of_unusual_text_are_read_whoever_wrote_them(where: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """By PyIceberg, by the sink, and by a rewriting, in a warehouse whose own path may have escaped characters."""
    request.getfixturevalue("plain_s3")
    server: S3Server | None = request.getfixturevalue("s3") if where == "s3" else None
    warehouse: Root = tmp_path / where if server is None else server.bucket()
    properties = {} if server is None else {"s3.endpoint": server.endpoint}
    properties |= catalog_at(tmp_path, warehouse) | {"warehouse": f"file://{warehouse}" if server is None else str(warehouse)}
    of = load_catalog("default", **properties)
    of.create_namespace("results")
    table = of.create_table(TABLE, SCHEMA)
    with table.update_spec() as update:
        update.add_identity("part")
    table.append(unusual(0))
    changes = IcebergChanges(TABLE, tuple(properties.items()))
    made = TableSource(changes, SCHEMA, "iceberg.table", 1000)
    found, position = drained(made, None)
    assert sorted(found) == list(range(len(UNUSUAL)))
    target = IcebergSink(IcebergSinkConfig(TABLE, tuple(properties.items()), query="pairs", partition_by=("part",)), SCHEMA)
    target.publish(stage(target, 0, unusual(100).combine_chunks().to_batches()[0]))
    found, _ = drained(made, position)
    assert sorted(found) == unusual(100).column("id").to_pylist()
    rewrite(table.refresh(), 1 << 20, "zstd")
    made = TableSource(changes, SCHEMA, "iceberg.table", 1000)
    plan = made.plan(None, 1000, 4e9)
    assert sorted(read(made, plan).to_pylist(), key=lambda row: row["id"]) == [*unusual(0).to_pylist(), *unusual(100).to_pylist()]


@pytest.mark.parametrize("kind", [pa.timestamp("us"), pa.timestamp("us", "UTC")])
def test_a_table_partitioned_by_times_is_read(kind: pa.DataType, tmp_path: Path) -> None:
    """Files of Hive, which are without the partition's columns, are read as those that have them."""
    schema = pa.schema([("id", pa.int64()), ("part", kind)])
    table = table_of(tmp_path, schema, partition="part")
    values = pa.table([[1, 2, 3], pa.array([0, -1, 1_767_225_600_000_001]).cast(kind)], schema=schema)
    table.append(values)
    made = source(tmp_path, schema)
    plan = made.plan(None, 10, 4e9)
    assert read(made, plan).sort_by("id").equals(values)
    filled = [made.reader.filled(part, schema.field("part"), 1)[0].as_py() for split in plan.splits for part in split.ranges]
    assert sorted(filled) == sorted(values.column("part").to_pylist())


def test_a_column_that_was_renamed_or_came_later_is_known_by_its_identifier(tmp_path: Path) -> None:
    table = table_of(tmp_path)
    table.append(rows(1))
    with table.update_schema() as update:
        update.rename_column("part", "piece")
        update.add_column("note", StringType())
    other = pa.schema([("id", pa.int64()), ("piece", pa.string()), ("note", pa.string())])
    table.append(pa.table([[2], ["p2"], ["new"]], schema=other))
    made = source(tmp_path, other)
    found = sorted(read(made, made.plan(None, 10, 4e9)).to_pylist(), key=lambda row: row["id"])
    assert found == [{"id": 1, "piece": "p1", "note": None}, {"id": 2, "piece": "p2", "note": "new"}]


@pytest.mark.parametrize("change", ["delete", "overwrite"])
def test_a_snapshot_that_changes_rows_fails_or_is_skipped(change: str, tmp_path: Path) -> None:
    table = table_of(tmp_path)
    table.append(rows(1, 2, 3))
    made = source(tmp_path)
    _, position = drained(made, None)
    if change == "delete":
        table.delete("id = 2")
    else:
        table.overwrite(rows(7))
    table.append(rows(9))
    with pytest.raises(SourceError, match=r"snapshot \d+ \((delete|overwrite)\) deletes or changes rows, .*; give onChange: skip"):
        made.plan(position, 10, 4e9)
    skipping = source(tmp_path, on_change="skip")
    plan = skipping.plan(position, 10, 4e9)
    assert plan.warnings
    found = drained(skipping, position)[0]
    assert 9 in found
    assert set(found) <= {7, 9}, "an overwrite may be a delete and an append"


def test_expired_snapshots_are_missed_where_they_were_not_read(tmp_path: Path) -> None:
    table = table_of(tmp_path)
    table.append(rows(1))
    _, position = drained(source(tmp_path), None)
    for number in (2, 3, 4):
        table.append(rows(number))
    first, second = (snapshot.snapshot_id for snapshot in table.snapshots()[:2])
    table.maintenance.expire_snapshots().by_id(first).commit()
    assert sorted(drained(source(tmp_path), position)[0]) == [2, 3, 4], "what was read may expire"
    table.refresh()
    table.maintenance.expire_snapshots().by_id(second).commit()
    with pytest.raises(SourceError, match=r"snapshot \d+, .* that led to its newest one; keep snapshots until they are read"):
        source(tmp_path).plan(position, 10, 4e9)


def test_what_is_no_table_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"iceberg\.table: results\.pairs: there is no such table in the catalog"):
        source(tmp_path).plan(None, 10, 4e9)
    table_of(tmp_path)
    with pytest.raises(SourceError, match=r"has no column price, which the schema declares as DOUBLE"):
        source(tmp_path, pa.schema([("price", pa.float64())])).plan(None, 10, 4e9)


def test_records_came_with_the_snapshot_that_appended_them(tmp_path: Path) -> None:
    table, made = table_of(tmp_path), source(tmp_path)
    table.append(rows(*range(3)))
    table.append(rows(*range(3, 10)))
    plan = made.plan(None, 1000, 4e9)
    snapshots = [snapshot.timestamp_ms / 1000 for snapshot in table.snapshots()]
    assert plan.arrivals is not None
    assert set(plan.arrivals.at.tolist()) == {snapshots[1]}, "when reading began, all of it was there"
    assert int(plan.arrivals.records.sum()) == 10
    table.append(rows(10, 11))
    plan = made.plan(plan.position, 1000, 4e9)
    assert plan.arrivals is not None
    assert (plan.arrivals.at.tolist(), plan.arrivals.records.tolist()) == ([table.snapshots()[2].timestamp_ms / 1000], [2])


@pytest.mark.parametrize("pattern", ["*.metadata.json", "snap-*.avro", "*-m0.avro"])
@pytest.mark.parametrize("whole", [True, False])
def test_a_damaged_file_of_metadata_is_named(pattern: str, whole: bool, tmp_path: Path) -> None:
    table = table_of(tmp_path)
    table.append(rows(1, 2))
    made = source(tmp_path, **({} if whole else {"starting_snapshot": table.snapshots()[0].snapshot_id}))
    path = max((tmp_path / "warehouse").rglob(pattern), key=lambda path: path.name)
    path.write_bytes(path.read_bytes()[:-20] + b"\xff" * 20)
    told = rf"^iceberg.table: {TABLE}: cannot read .*{path.name} is damaged: .*; restore the file, or roll the table back to a snapshot"
    with pytest.raises(SourceError, match=told):
        made.plan(None, 10, 4e9)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"manifest-list":"file:', '"manifest-list":"fi1e:'),
        ('"location":"file:', '"location":"fi1e:'),
        ('/warehouse/results/pairs"', '/warehouse/results/others"'),
        ('"operation":"append"', '"operation":"delete"'),
        ('"summary":', '"sum_ary":'),
    ],
)
def test_where_metadata_say_what_cannot_be_they_are_named(old: str, new: str, tmp_path: Path) -> None:
    table = table_of(tmp_path)
    table.append(rows(1, 2))
    first = table.snapshots()[0].snapshot_id
    table.append(rows(3))
    path = Path(table.metadata_location.removeprefix("file://"))
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    with pytest.raises(SourceError, match=re.escape(path.name)):
        source(tmp_path, starting_snapshot=first).plan(None, 10, 4e9)


def test_snapshots_that_come_before_themselves_are_refused(tmp_path: Path) -> None:
    table = table_of(tmp_path)
    for number in range(3):
        table.append(rows(number))
    first, second, third = (snapshot.snapshot_id for snapshot in table.snapshots())
    position = drained(source(tmp_path), None)[1]
    table.append(rows(3))
    path = Path(table.metadata_location.removeprefix("file://"))
    path.write_text(
        path.read_text()
        .replace(f'"parent-snapshot-id":{third}', f'"parent-snapshot-id":{second}')
        .replace(f'"parent-snapshot-id":{first}', f'"parent-snapshot-id":{second}')
    )
    with pytest.raises(SourceError, match=rf"{path.name} is damaged: snapshot {second} comes before itself; restore the file"):
        source(tmp_path).plan(position, 10, 4e9)


def test_a_manifest_is_looked_through_before_a_decoder_reads_it_that_looks_at_no_bounds(tmp_path: Path) -> None:
    """Whichever byte is another one: the manifest is refused, or each of its records ends where it says."""
    table = table_of(tmp_path, partition="part")
    table.append(rows(*range(5)))
    (path,) = (tmp_path / "warehouse").rglob("*-m0.avro")
    with path.open("rb") as file:
        reader: Any = fastavro.reader(file)
        entries, schema = list(reader), reader.writer_schema
    plain = io.BytesIO()
    fastavro.writer(plain, schema, entries, codec="null")
    check(plain.getvalue())
    refused = 0
    for at in range(len(plain.getvalue())):
        data = bytearray(plain.getvalue())
        data[at] ^= 0x7F
        try:
            check(bytes(data))
        except Exception:  # each kind of damage has one of its own
            refused += 1
    assert refused > len(plain.getvalue()) / 10
    with pytest.raises(EOFError):
        check(plain.getvalue()[:-30])


def test_manifests_of_days_that_python_does_not_have_are_read(tmp_path: Path) -> None:
    schema = {"type": "record", "name": "r102", "fields": [{"name": "day", "type": {"type": "int", "logicalType": "date"}}]}
    data = io.BytesIO()
    fastavro.writer(data, schema, [{"day": 10**9}])
    check(data.getvalue())
