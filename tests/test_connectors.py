"""What every source and sink must do, whichever it is (``manifest.connector``). A new one is covered by a line in ``SOURCES`` or ``SINKS``.

Those that need a server are held to what they say of themselves here, and to what they do in modules of their own.
"""

from __future__ import annotations

import importlib.util
import json
import os
import pickle
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake
from pyiceberg.catalog import load_catalog

from harness import MemorySnapshots
from streamjoin.io import staged
from streamjoin.io.base import Divisible, Position, Source, SourceError, Split, Staged
from streamjoin.io.factory import function, make_sink, make_source
from streamjoin.io.replays import SPLITS
from streamjoin.job import Inbox, JoinSource
from streamjoin.language.ddl import parse_schema
from streamjoin.manifest import sinks, sources
from streamjoin.manifest.connector import Connector, SinkConnector, SourceConnector
from streamjoin.manifest.problem import Problem
from streamjoin.manifest.quantity import Duration
from streamjoin.state.storage import ObjectStorage

DDL = "id BIGINT, name STRING"
SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string())])
NOW = 4e9
ROWS = 25

Given = Mapping[str, Any]
"""Fields of a connector, as a manifest has them."""


def rows(ids: Iterable[int]) -> pa.Table:
    return pa.Table.from_pylist([{"id": number, "name": f"n{number}"} for number in ids], SCHEMA)


@dataclass(frozen=True)
class SourceCase:
    """One source."""

    given: Callable[[str], Given]
    """Its fields, by a directory."""
    others: Given = field(default_factory=dict)
    """Of each field that makes the identity, another value."""
    add: Callable[[Any, pa.Table], object] | None = None
    """Adds rows to what a model reads; None: that takes a server, or the rows are there."""
    is_read: bool = True
    """Whether it is read here."""


@dataclass(frozen=True)
class SinkCase:
    """One sink."""

    given: Callable[[str], Given]
    """Its fields, by a directory."""
    other: Given
    """Fields of one that writes elsewhere."""
    is_written: bool = True
    """Whether it is written here."""


def catalog(root: str) -> dict[str, str]:
    return {"type": "sql", "uri": f"sqlite:///{root}/catalog.db", "warehouse": f"file://{root}/warehouse"}


def add_file(model: Any, table: pa.Table) -> None:
    os.makedirs(model.path, exist_ok=True)
    pq.write_table(table, Path(model.path, f"{table['id'][0].as_py():09}.parquet"), row_group_size=4)


def add_batch(model: Any, table: pa.Table) -> None:
    storage = ObjectStorage(model.path)
    staged.claim(storage, staged.Stream("q", DDL))
    number = len(staged.numbers(storage))
    staged.commit(storage, number, list(staged.write(storage, number, table.to_batches(4), SCHEMA)))


def add_to_iceberg(model: Any, table: pa.Table) -> None:
    found = load_catalog("default", **model.catalog)
    found.create_namespace_if_not_exists("space")
    found.create_table_if_not_exists(model.table, SCHEMA).append(table)


SOURCES = {
    "files": SourceCase(lambda root: {"path": f"{root}/in", "format": "parquet"}, {"path": "other", "format": "json"}, add_file),
    "generator": SourceCase(
        lambda _: {"rows": ROWS, "realTime": False, "columns": {"id": {"sequence": {}}, "name": {"choice": ["a", "b"]}}},
    ),
    "kafka": SourceCase(
        lambda _: {"bootstrapServers": "none:1", "topic": "a", "timeout": "20s"}, {"topic": "b", "format": "raw"}, is_read=False
    ),
    "delta": SourceCase(
        lambda root: {"path": f"{root}/in"}, {"path": "other"}, lambda model, table: write_deltalake(model.path, table, mode="append")
    ),
    "iceberg": SourceCase(
        lambda root: {"table": "space.in", "catalog": catalog(root), "maxFilesPerEpoch": 2}, {"table": "space.other"}, add_to_iceberg
    ),
    "spark": SourceCase(lambda _: {"format": "rate"}, {"format": "csv", "streaming": False}, is_read=False),
    "staged": SourceCase(lambda root: {"path": f"{root}/in"}, {"path": "other"}, add_batch),
}
DATABASE = {"host": "none", "database": "d", "table": "t", "key": ["id"]}
SINKS = {
    "files": SinkCase(lambda root: {"path": f"{root}/out"}, {"path": "other"}),
    "console": SinkCase(lambda _: {}, {}),
    "kafka": SinkCase(lambda _: {"bootstrapServers": "none:1", "topic": "a"}, {"topic": "b"}, is_written=False),
    "delta": SinkCase(lambda root: {"path": f"{root}/out"}, {"path": "other"}),
    "iceberg": SinkCase(lambda root: {"table": "space.out", "catalog": catalog(root)}, {"table": "space.other"}),
    "spark": SinkCase(lambda _: {"format": "noop"}, {"format": "json"}, is_written=False),
    "postgres": SinkCase(lambda _: DATABASE, {"table": "other"}, is_written=False),
}
READ = [name for name, case in SOURCES.items() if case.is_read]
WRITTEN = [name for name, case in SINKS.items() if case.is_written]
ALL: list[tuple[type[Connector], Any]] = [(sources.SOURCES[name], case) for name, case in SOURCES.items()]
ALL += [(sinks.SINKS[name], case) for name, case in SINKS.items()]
each_connector = pytest.mark.parametrize(("kind", "case"), ALL, ids=[kind.__name__ for kind, _ in ALL])


def model_of(kind: type[Any], given: Given) -> Any:
    return kind.model_validate_json(json.dumps(given))


def source_model(name: str, root: Path) -> Any:
    return model_of(sources.SOURCES[name], SOURCES[name].given(str(root)))


def source_of(model: Any, snapshots: MemorySnapshots | None = None) -> Source:
    """As each driver makes it anew; readers travel to tasks."""
    return make_source(model, parse_schema(DDL), None, snapshots=snapshots or MemorySnapshots(), exact_counts=True, stream="s", query="q")


def read(source: Source, splits: Iterable[Any]) -> list[dict[str, Any]]:
    reader = pickle.loads(pickle.dumps(source.reader))
    found: list[dict[str, Any]] = []
    for split in pickle.loads(pickle.dumps(tuple(splits))):
        batches = [records.batch for records in reader.read(split)]
        assert all(batch.schema == SCHEMA for batch in batches)
        assert sum(batch.num_rows for batch in batches) == split.records
        found += [row for batch in batches for row in batch.to_pylist()]
    return found


def drained(model: Any, snapshots: MemorySnapshots, position: Position | None, limit: int, **options: Any) -> tuple[list[Any], Position]:
    """All rows after a position, by a new driver for each plan, and the position behind them."""
    found: list[Any] = []
    for _ in range(200):
        plan = source_of(model, snapshots).plan(position, limit, NOW, True, **options)
        found += read(source_of(model, snapshots), plan.splits)
        position = json.loads(json.dumps(plan.position))
        assert sum(split.records for split in plan.splits) == plan.records
        if not plan.splits:
            assert plan.exhausted
            assert plan.backlog_records == 0
            return found, position
    raise AssertionError("there is no end")


def ids(found: list[Any]) -> list[int]:
    return [row["id"] for row in found]


def test_every_connector_is_held_to_this() -> None:
    assert SOURCES.keys() == sources.SOURCES.keys()
    assert SINKS.keys() == sinks.SINKS.keys()


@pytest.mark.parametrize("base", [SourceConnector, SinkConnector])
def test_a_connector_without_an_identity_cannot_be_made(base: type[Any]) -> None:
    class Nameless(base):
        opener = "nowhere:at_all"

    with pytest.raises(TypeError, match="identity"):
        Nameless()


@each_connector
def test_an_identity_says_what_is_read_or_written_and_nothing_else(kind: type[Any], case: SourceCase | SinkCase) -> None:
    given = case.given("root")
    one = model_of(kind, given)
    assert model_of(kind, given).identity == one.identity
    assert one.hurried(Duration(1)).identity == one.identity
    if isinstance(case, SinkCase):
        assert (model_of(kind, {**given, **case.other}).identity != one.identity) == bool(case.other)
        return
    assert case.others.keys() == set(kind.fixed) <= {info.alias or name for name, info in kind.model_fields.items()}
    for name, value in case.others.items():
        other = model_of(kind, {**given, name: value})
        assert other.identity != one.identity
        assert not other.goes_on_from(one.identity)
    assert one.goes_on_from(one.identity)
    assert one.refusal("spec.streams[0].source", one.identity) is None


def test_no_two_kinds_have_an_identity_in_common() -> None:
    of_sources = [model_of(sources.SOURCES[name], case.given("root")).identity for name, case in SOURCES.items()]
    of_sinks = [model_of(sinks.SINKS[name], case.given("root")).identity for name, case in SINKS.items()]
    for found in ([*of_sources, JoinSource.identity], [*of_sinks, Inbox.identity]):
        assert len(set(found)) == len(found)


@each_connector
def test_what_a_connector_names_is_there(kind: type[Any], case: SourceCase | SinkCase) -> None:
    assert not kind.opener or callable(function(kind.opener))
    assert getattr(kind, "results", None) is None or callable(function(kind.results))
    assert set(getattr(kind, "continued", ())) <= {info.alias or name for name, info in kind.model_fields.items()}
    made = model_of(kind, case.given("root"))
    assert (kind.package is None) == ("" not in dict(made.packages()))


@each_connector
def test_a_good_connector_has_no_problems_and_only_paths_move(kind: type[Any], case: SourceCase | SinkCase) -> None:
    made = model_of(kind, case.given("root"))
    assert [*made.problems("here"), *made.remarks("here")] == []
    moved = made.moved("/there/{}".format)
    if made.directory() is None:
        assert moved == made
    else:
        assert moved.model_dump(exclude={"path"}) == made.model_dump(exclude={"path"})
        assert moved.directory().startswith("/there/")
    assert made.located(lambda path: path).identity == made.identity


@each_connector
def test_a_secret_in_the_options_is_remarked_on_and_not_shown(kind: type[Any], case: SourceCase | SinkCase) -> None:
    name = next((name for name in ("options", "catalog") if name in kind.model_fields), None)
    if name is None:
        return
    given = {**case.given("root"), name: {**case.given("root").get(name, {}), "sasl.password": "hush"}}
    told = [str(problem) for problem in model_of(kind, given).remarks("spec.here")]
    assert any(text.startswith(f"spec.here.{name}") and "is a secret" in text for text in told)
    assert not any("hush" in text for text in told)
    of = "streams[0].source" if isinstance(case, SourceCase) else "joins[0].output.sink"
    refused = Problem(f"spec.{of}.here.{name}", "password=hush", "must be a mapping")
    assert str(refused) == f"{refused.field}: must be a mapping"


@pytest.mark.parametrize("name", READ)
@pytest.mark.parametrize(("limit", "split_records"), [(1000, None), (1000, 3), (7, None), (1, 1)])
def test_every_row_is_read_once_whatever_is_planned_and_by_whom(name: str, limit: int, split_records: int | None, tmp_path: Path) -> None:
    model, case, snapshots = source_model(name, tmp_path), SOURCES[name], MemorySnapshots()
    if case.add is not None:
        for first in range(0, ROWS, 10):
            case.add(model, rows(range(first, min(ROWS, first + 10))))
    found, position = drained(model, snapshots, None, limit, split_records=split_records)
    assert sorted(ids(found)) == list(range(ROWS))
    assert found == drained(model, MemorySnapshots(), None, 1000)[0]
    if case.add is not None:
        case.add(model, rows(range(100, 105)))
        found, position = drained(model, snapshots, position, limit, split_records=split_records)
        assert sorted(ids(found)) == list(range(100, 105))
    assert drained(model, snapshots, position, limit) == ([], position)
    assert source_of(model, snapshots).referenced(position) <= snapshots.objects.keys()


@pytest.mark.parametrize("name", READ)
def test_a_split_gives_the_same_again_whole_and_in_halves(name: str, tmp_path: Path) -> None:
    model, case = source_model(name, tmp_path), SOURCES[name]
    if case.add is not None:
        case.add(model, rows(range(ROWS)))
    source = source_of(model)
    plan = source.plan(None, 1000, NOW, True)
    assert plan == source_of(model).plan(None, 1000, NOW, True)
    assert read(source, plan.splits) == read(source, plan.splits)
    assert [split.first_record for split in plan.splits] == [sum(each.records for each in plan.splits[:n]) for n in range(len(plan.splits))]
    if isinstance(source.reader, Divisible):
        halves: list[Any] = list(plan.splits)
        for _ in range(3):
            halves = [half for split in halves for half in (source.reader.halves(split) or (split,))]
        assert read(source, halves) == read(source, plan.splits)


@pytest.mark.parametrize("name", READ)
def test_a_letter_s_split_is_found_by_its_name_if_it_can_be_read_again(name: str, tmp_path: Path) -> None:
    model, case = source_model(name, tmp_path), SOURCES[name]
    if case.add is not None:
        case.add(model, rows(range(ROWS)))
    source = source_of(model)
    split: Split = source.plan(None, 1000, NOW, True).splits[0]
    kept = SPLITS.get(type(split).__name__)
    if kept is not None:
        assert model.is_outside
        assert function(kept) is type(split)
        assert type(split).from_json(json.loads(json.dumps(asdict(split)))) == split


@pytest.mark.parametrize("name", [name for name in READ if sources.SOURCES[name].is_outside])
def test_a_source_that_is_not_there_is_told_with_field_value_and_remedy(name: str, tmp_path: Path) -> None:
    model = source_model(name, tmp_path)
    with pytest.raises(SourceError) as raised:
        source_of(model).plan(None, 1000, NOW)
    where, _, text = str(raised.value).partition(": ")
    kind, attribute = where.split(".")
    assert kind == name
    assert str(getattr(model, attribute)) in text
    assert "; " in text


def add_lines(model: Any, table: pa.Table) -> None:
    with open(model.path, "a") as file:
        file.writelines(f"{row['id']}\t{row['name']}\n" for row in table.to_pylist())


def test_the_example_of_the_page_on_new_connectors_is_a_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (Path(__file__).parents[1] / "docs" / "new-connector.md").read_text()
    names = re.findall(r"`engine/(streamjoin/\S+/tail\w*)\.py`", page)
    for name, text in zip(names, re.findall(r"```python\n(.*?)```", page, re.DOTALL), strict=False):
        path = tmp_path / f"{Path(name).name}.py"
        path.write_text(text)
        spec = importlib.util.spec_from_file_location(name.replace("/", "."), path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, spec.name, module)
        spec.loader.exec_module(module)
    kind = sys.modules["streamjoin.manifest.connectors.tail"].TailSource
    model = model_of(kind, {"path": f"{tmp_path}/in"})
    assert kind.model_fields["path"].description == "The file."
    with pytest.raises(SourceError, match=r"tail\.path: .*/in does not exist; create"):
        source_of(model).plan(None, 1, NOW)
    add_lines(model, rows(range(5)))
    found, position = drained(model, MemorySnapshots(), None, 2, split_records=1)
    assert ids(found) == list(range(5))
    with open(model.path, "a") as file:
        file.write("x\tbad\n")
    source = source_of(model)
    (records,) = source.reader.read(source.plan(position, 10, NOW).splits[0])
    assert [(letter.raw, letter.error) for letter in records.rejected] == [("x\tbad", "'x' is not a number")]
    assert [str(problem) for problem in model.schema_problems("spec.streams[0]", parse_schema("a INT"), None)]
    assert not list(model.schema_problems("spec.streams[0]", parse_schema(DDL), None))


def stage(target: Any, epoch: int, table: pa.Table, *, small_bytes: int = 0) -> list[Staged]:
    """One task's results of one epoch, as a commit keeps them; the sink travels to tasks."""
    writer = pickle.loads(pickle.dumps(target)).writer(
        f"c0ffee00-000001-{epoch:012d}-00000-{epoch:08x}", f"c0ffee00-{epoch:012d}-00000", small_bytes=small_bytes
    )
    for batch in table.to_batches():
        writer.write(batch)
    staged = writer.close()
    kept = [Staged.from_json(json.loads(json.dumps(each.to_json()))) for each in staged]
    assert [each.data for each in staged] == [b""] * len(staged) or small_bytes
    return kept if not small_bytes else staged


def sink_model(name: str, root: Path) -> Any:
    return model_of(sinks.SINKS[name], SINKS[name].given(str(root)))


def visible(model: Any) -> list[int]:
    return sorted(number for batch in function(model.results)(model, SCHEMA) for number in batch.column("id").to_pylist())


@pytest.mark.parametrize("name", [name for name in WRITTEN if sinks.SINKS[name].results is not None])
def test_results_appear_when_they_are_published_as_often_as_the_sink_promises(name: str, tmp_path: Path) -> None:
    model = sink_model(name, tmp_path)
    target = make_sink(model, SCHEMA, query="q")
    assert visible(model) == []
    target.publish([], again=True)
    staged = stage(target, 0, rows(range(10)))
    assert visible(model) == []
    target.publish(staged)
    assert visible(model) == list(range(10))
    make_sink(model, SCHEMA, query="q").publish(staged, again=True)
    assert (visible(model) == list(range(10))) == model.is_exactly_once
    target.publish(stage(target, 1, rows([10])))
    assert visible(model) == list(range(11))


@pytest.mark.parametrize("name", WRITTEN)
def test_what_is_not_published_is_swept_and_nothing_is_staged_of_nothing(name: str, tmp_path: Path) -> None:
    model = sink_model(name, tmp_path)
    target = make_sink(model, SCHEMA, query="q")
    target.publish([], again=True)
    assert stage(target, 0, rows([])) == []
    writer = target.writer("c0ffee00-000001-000000000000-00000-0", "c0ffee00-000000000000-00000")
    writer.write(rows([1]).to_batches()[0])
    writer.abort()
    left = stage(target, 1, rows(range(5)))
    assert [each.rows for each in left] == [5]
    assert target.sweep(lambda staged: False) == 0
    assert target.sweep(lambda staged: True) in (0, 1)
    assert target.sweep(lambda staged: True) == 0
    if model.results is not None:
        assert visible(model) == []


@pytest.mark.parametrize("name", WRITTEN)
def test_small_results_are_gathered_if_a_sink_lets_them_wait(name: str, tmp_path: Path) -> None:
    model = sink_model(name, tmp_path)
    target = make_sink(model, SCHEMA, query="q")
    assert target.gather_seconds == (model.gather.micros / 1e6 if "gather" in type(model).model_fields else 0)
    if target.gather_seconds:
        small = [each for epoch in range(3) for each in stage(target, epoch, rows([epoch]), small_bytes=1 << 20)]
        assert all(each.data and not each.path for each in small)
        gathered = target.gather(small, "c0ffee00-000001-000000000003-00000-3", "c0ffee00-000000000003-00000")
        assert sum(each.rows for each in gathered) == 3
        target.publish(gathered)
        assert visible(model) == [0, 1, 2]


@pytest.mark.parametrize("name", sinks.SINKS)
def test_a_view_shows_where_results_go(name: str, tmp_path: Path) -> None:
    model = sink_model(name, tmp_path).located(lambda path: path)
    text = model.shown(lambda path: "short")
    assert ("short" in text) == ("path" in type(model).model_fields)
    assert model.identity in text or "short" in text
