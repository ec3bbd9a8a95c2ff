"""Streams that Spark reads for a join (source ``spark``): the program that reads them, who keeps it running, and what is joined of them."""

from __future__ import annotations

import importlib
import json
import os
import re
import shutil
import sys
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest
import yaml
from pyspark import cloudpickle

import streamjoin
from fetched import NotFetched
from harness import MemorySnapshots
from maven import libraries
from postgres_server import USER, PostgresServer
from streamjoin.api import feeder
from streamjoin.api.feeds import Feed, Input
from streamjoin.api.loop import Event, Notice
from streamjoin.compilation import compile_job
from streamjoin.io import staged
from streamjoin.io.base import Source, SourceError
from streamjoin.io.factory import make_source
from streamjoin.language.ddl import parse_schema
from streamjoin.manifest import ManifestError, load
from streamjoin.manifest.connectors.spark import SparkSource
from streamjoin.spark.feeding import Fed, Going, ImpossibleError, framed
from streamjoin.spark.staging import Query
from streamjoin.state.storage import ObjectStorage
from user_spark import UserSpark
from waiting import wait_for

SCHEMA = pa.schema([("id", pa.int64())])
NOW = 4e9


def manifest_of(root: Path, left: dict[str, Any], right: dict[str, Any], **spec: Any) -> dict[str, Any]:
    streams = [
        {"name": name, "source": {"spark": source}, "schema": "id BIGINT, price DOUBLE"}
        for name, source in (("trades", left), ("quotes", right))
    ]
    output = {"select": ["trades.id AS a", "quotes.id AS b"], "sink": {"files": {"path": f"{root}/out", "format": "json"}}}
    join = {"condition": "abs(trades.price - quotes.price) <= 0.05", "window": {"unbounded": True}, "output": output}
    spec = {"streams": streams, "joins": [join], "checkpoint": {"location": f"{root}/state"}, "workers": {"min": 1, "max": 1}} | spec
    return {"apiVersion": "streamjoin.dev/v1beta1", "kind": "StreamJoin", "metadata": {"name": "fed"}, "spec": spec}


def source_of(model: SparkSource) -> Source:
    return make_source(model, parse_schema("id BIGINT"), None, snapshots=MemorySnapshots(), exact_counts=False)


def test_input_is_exhausted_when_all_is_staged_that_is_to_come_and_not_before(tmp_path: Path) -> None:
    model = SparkSource.model_validate({"format": "rate"}).within(str(tmp_path))
    storage, source = ObjectStorage(str(tmp_path)), source_of(model)
    assert not source.plan(None, 100, NOW, True).exhausted, "Spark has not begun"
    staged.claim(storage, staged.Stream("q", "id BIGINT"))
    rows = [pa.RecordBatch.from_pydict({"id": [1, 2]}, SCHEMA)]
    staged.commit(storage, 0, list(staged.write(storage, 0, rows, SCHEMA)))
    plan = source.plan(None, 100, NOW, True)
    assert (plan.records, plan.exhausted) == (2, False)
    staged.end(storage)
    assert source.plan(None, 100, NOW, True).exhausted
    staged.resume(storage)
    staged.resume(storage)
    assert not source.plan(None, 100, NOW, True).exhausted


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ({}, "spec.streams[0].source.spark.format: is missing"),
        ({"format": "rate", "views": {"v": {"format": "csv"}}}, ".views: have no use without query, which joins them; give it"),
        (
            {"format": "rate", "query": "SELECT 1", "views": {"INPUT": {"format": "csv"}}},
            '.views: "INPUT" is what query calls the stream itself; choose another name',
        ),
        ({"format": "jdbc", "options": {"password": "file:secret"}}, "is not an absolute path, and workers have working directories"),
    ],
)
def test_what_a_source_of_spark_lacks_is_told(source: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ManifestError) as refused:
        load(json.dumps(manifest_of(tmp_path, source, {"format": "rate"})))
    assert message in str(refused.value)


def test_a_join_that_spark_reads_for_does_not_sleep(tmp_path: Path) -> None:
    """Nobody would ask the sources, which takes a Spark."""
    manifest = manifest_of(tmp_path, {"format": "rate"}, {"format": "rate"}, idle={"after": "30m"})
    with pytest.raises(ManifestError, match=r"spec\.idle: has no use with spark as source or sink, which only a join that runs has read"):
        load(json.dumps(manifest))


class Program:
    """Stands for the program that reads: it does what ``text`` says, and its standard input ends when it is to end."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
        (root / "reads.py").write_text(f"import json, pathlib, sys\nroot = pathlib.Path({str(root)!r})\n{text}")
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(root), *filter(None, sys.path)]))
        monkeypatch.setattr(feeder, "PROGRAM", "reads")
        monkeypatch.setattr(feeder, "PAUSES", (0.0, 0.0, 0.0))
        monkeypatch.setattr(feeder, "require_java", lambda inline: Path("/java"))
        self.events: list[Event] = []
        job = compile_job(load(json.dumps(manifest_of(root, {"format": "rate"}, {"format": "csv", "streaming": False}))))
        made = feeder.feeder_of(job, self.events.append, root / "logs", threading.Event(), until_idle=False)
        assert made is not None
        self.feeder = made
        driver: Any = None
        self.feeder.started(driver)

    @property
    def notices(self) -> list[str]:
        return [event.text for event in self.events if isinstance(event, Notice)]

    def failure(self) -> str:
        found: list[str] = []

        def fails() -> bool:
            try:
                self.feeder.attempting()
            except SourceError as error:
                found.append(str(error))
            return bool(found)

        wait_for("the run is told", fails)
        return found[0]


class Dies:
    """Stands for a query of Spark's that fails once it has been asked whether it has."""

    isActive = True  # noqa: N815 - Spark's name

    def exception(self) -> Exception | None:
        was_active, self.isActive = self.isActive, False
        return None if was_active else OSError("the disk is full")


def test_a_query_that_fails_while_it_is_looked_at_is_not_over(capsys: pytest.CaptureFixture[str]) -> None:
    class Stands(Going):
        def begin(self) -> Query:
            return Query("one", Dies(), [])

        def reached(self) -> int:
            return 0

    going = Stands("spec.one")
    for _ in range(3):
        going.step()
    assert not going.is_over
    assert json.loads(capsys.readouterr().out) == {"field": "spec.one", "error": "the disk is full; it begins again in 1 s"}


def test_a_spark_of_its_own_is_named_by_the_image(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STREAMJOIN_SPARK_HOME", "/opt/spark")
    found = feeder._environment()
    assert (found["SPARK_HOME"], found["JAVA_HOME"]) == ("/opt/spark", "/opt/spark/java")


READS_ORDER = "order = sys.stdin.readline()\n"
TELLS = "print(json.dumps({'field': 'spec.streams[0].source.spark', 'error': 'there is no format rat; correct it'}), flush=True)\n"


def test_a_stream_that_can_never_be_read_ends_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = Program(tmp_path, monkeypatch, f"{READS_ORDER}{TELLS}sys.exit(3)")
    assert program.failure() == "spec.streams[0].source.spark: there is no format rat; correct it"
    program.feeder.ended()


def test_a_program_that_dies_is_followed_by_another_and_ends_with_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    died = "(root / f'died-{len(list(root.glob(\"died-*\")))}').touch()\nif len(list(root.glob('died-*'))) < 3: sys.exit(1)\n"
    waits = "(root / 'order').write_text(order)\nsys.stdin.read()\n(root / 'ended').touch()\n"
    program = Program(tmp_path, monkeypatch, f"{READS_ORDER}{died}{waits}")
    wait_for("the third one runs", lambda: (tmp_path / "order").exists() and (tmp_path / "order").read_text().endswith("\n"))
    program.feeder.attempting()
    program.feeder.ended()
    assert (tmp_path / "ended").exists()
    begun, *died = program.notices
    assert begun == "starting a Spark to read trades and quotes ..."
    assert len(died) == 2
    assert "the program in which Spark reads has ended; its exit code is 1, and its log" in died[0]
    order = json.loads((tmp_path / "order").read_text())
    first, second = order["feeds"]
    assert (first["streaming"], second["streaming"]) == (True, False)
    assert first["staging"] == f"{tmp_path}/state/fed/trades"
    assert order["conf"]["spark.master"] == "local[*]"


def test_a_program_that_dies_again_and_again_ends_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = Program(
        tmp_path, monkeypatch, f"{READS_ORDER}print(json.dumps({{'field': '', 'error': 'no memory'}}), flush=True)\nsys.exit(1)"
    )
    assert program.failure() == "spec.spark: the program that reads for the join ended 4 times; it said: no memory"
    program.feeder.ended()


SOURCE = """
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

class Numbers(DataSource):
    @classmethod
    def name(cls):
        return "numbers"
    def schema(self):
        return "id BIGINT, price DOUBLE"
    def reader(self, schema):
        return Reader(int(self.options["rows"]))

class Reader(DataSourceReader):
    def __init__(self, rows):
        self.rows = rows
    def partitions(self):
        return [InputPartition(0), InputPartition(1)]
    def read(self, partition):
        for number in range(partition.value, self.rows, 2):
            yield number, number / 10
"""


@pytest.fixture(scope="module")
def spark(user_spark: UserSpark, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    root = tmp_path_factory.mktemp("modules")
    (root / "numbers_source.py").write_text(SOURCE)
    sys.path.insert(0, str(root))
    # Executors began before this module was there.
    cloudpickle.register_pickle_by_value(importlib.import_module("numbers_source"))
    yield user_spark.session(partitions=2).newSession()
    sys.path.remove(str(root))


def feed_of(root: Path, given: Input, *, streaming: bool = True, query: str | None = None, **views: Input) -> Feed:
    field = "spec.streams[0].source.spark"
    return Feed("trades", field, "id BIGINT, price DOUBLE", f"{root}/staged", given, streaming, query, views)


FORMATS = {
    "csv": ("id,price\n{rows}", "{0},{1}\n"),
    "text": ("{rows}", "{0}|{1}\n"),
    "xml": ("<quotes>{rows}</quotes>", "<quote><id>{0}</id><price>{1}</price></quote>"),
}
"""By format: a file, and a row in it."""


def prices(root: Path, name: str, first: int, last: int, form: str = "csv") -> None:
    whole, row = FORMATS[form]
    (root / name).mkdir(exist_ok=True)
    (root / f".{name}").write_text(whole.format(rows="".join(row.format(number, number / 10) for number in range(first, last))))
    (root / f".{name}").rename(root / name / f"{first:05}.{form}")


def csv(root: Path, name: str) -> Input:
    return Input("csv", {"path": f"{root}/{name}", "header": "true"}, "id BIGINT, price DOUBLE")


def is_over(fed: Fed) -> bool:
    fed.step()
    return fed.is_over


RATE = Input("rate", {"rowsPerSecond": "1"})


@pytest.mark.spark
@pytest.mark.parametrize(
    ("given", "query", "message"),
    [
        (Input("parkay", {}), None, "spec.streams[0].source.spark: [DATA_SOURCE_NOT_FOUND]"),
        (Input("no_module:Source", {}), None, "spark.format: no_module:Source: No module named 'no_module'; give module:Class"),
        (RATE, None, "has no column id, which the schema declares; it has timestamp, value"),
        (RATE, "SELECT CAST(value AS INT) AS id, 1D AS price FROM input", "id is INT, and the schema declares BIGINT; declare INT, or let"),
        (RATE, "SELECT value AS id, prise FROM input", "query: [UNRESOLVED_COLUMN"),
        (RATE, "SELECT count(*) AS id, 1D AS price FROM input", "query: has Aggregate, which keeps state over the rows of a stream"),
        (RATE, "SELECT DISTINCT value AS id, 1D AS price FROM input", "has Distinct, which keeps state"),
        (RATE, "SELECT a.value AS id, 1D AS price FROM input a, input b", "has a join of the stream with itself, which keeps state"),
        (RATE, "SELECT 1L AS id, 1D AS price", "query: does not read input, the stream; select from it, or set streaming to false"),
        (Input("rate", {"rowsPerSecond": "env:NO_SUCH"}), None, "spark.options[rowsPerSecond]: the variable NO_SUCH is not set"),
    ],
)
def test_what_can_never_be_read_is_told_with_its_field(spark: Any, given: Input, query: str | None, message: str, tmp_path: Path) -> None:
    with pytest.raises(ImpossibleError) as raised:
        framed(spark, feed_of(tmp_path, given, query=query))
    assert message in str(raised.value)


@pytest.mark.spark
def test_rows_of_a_stream_are_chosen_and_joined_with_tables(spark: Any, tmp_path: Path) -> None:
    prices(tmp_path, "in", 0, 20)
    prices(tmp_path, "kept", 5, 8)
    query = "SELECT id, price FROM input WHERE id IN (SELECT id FROM kept) AND price > 0.5"
    fed = Fed(feed_of(tmp_path, csv(tmp_path, "in"), query=query, kept=csv(tmp_path, "kept")), spark, available_now=True)
    wait_for("all is staged", partial(is_over, fed))
    source = source_of(SparkSource.model_validate({"format": "csv"}).within(f"{tmp_path}/staged"))
    plan = source.plan(None, 1000, NOW, True)
    assert plan.exhausted
    found = [row["id"] for split in plan.splits for part in source.reader.read(split) for row in part.batch.to_pylist()]
    assert sorted(found) == [6, 7]


@pytest.mark.spark
def test_a_table_is_read_once_whoever_reads_it(spark: Any, tmp_path: Path) -> None:
    feed = feed_of(tmp_path, Input("numbers_source:Numbers", {"rows": "10"}), streaming=False)
    for _ in range(2):
        fed = Fed(feed, spark, available_now=False)
        wait_for("it is staged", partial(is_over, fed))
    storage = ObjectStorage(f"{tmp_path}/staged")
    assert staged.numbers(storage) == [0]
    assert staged.has_ended(storage)


FUNCTION = """
import pathlib

def keep(frame, number):
    rows = frame.orderBy("a").collect()
    pathlib.Path(__file__).with_name(f"kept-{number}").write_text("".join(f"{row.a},{row.b}\\n" for row in rows))
"""


READ: dict[str, dict[str, Any]] = {
    "csv": {"options": {"header": True}, "columns": "id BIGINT, price DOUBLE"},
    "xml": {"options": {"rowTag": "quote"}, "columns": "id BIGINT, price DOUBLE"},
    "text": {
        "options": {},
        "query": "SELECT CAST(split_part(value, '|', 1) AS BIGINT) AS id, CAST(split_part(value, '|', 2) AS DOUBLE) AS price FROM input",
    },
}
"""By format: how Spark is told to read it."""


@pytest.mark.spark
@pytest.mark.parametrize(("form", "sink"), [("text", "files"), ("xml", "xml"), ("csv", "function")])
def test_a_run_joins_what_spark_reads_and_writes_and_goes_on_from_there(form: str, sink: str, tmp_path: Path) -> None:
    """A table by a Python data source, and a directory of files; the program is killed in between."""
    (tmp_path / "numbers_source.py").write_text(SOURCE)
    (tmp_path / "kept.py").write_text(FUNCTION)
    prices(tmp_path, "quotes", 0, 30, form)
    trades = {"format": "numbers_source:Numbers", "options": {"rows": 100}, "streaming": False}
    quotes = READ[form] | {"format": form, "options": READ[form]["options"] | {"path": f"{tmp_path}/quotes"}}
    manifest = manifest_of(tmp_path, trades, quotes)
    if sink != "files":
        written = {"format": "xml", "options": {"path": f"{tmp_path}/out", "rowTag": "pair"}}
        given = written if sink == "xml" else {"format": "kept:keep"}
        manifest["spec"]["joins"][0]["output"]["sink"] = {"spark": given}
    (tmp_path / "fed.yaml").write_text(yaml.safe_dump(manifest))
    for last, killed in ((30, False), (60, True)):
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *filter(None, sys.path)]))
            patch.setattr(feeder, "PAUSES", (0.0,))
            if killed:
                patch.setattr(feeder, "PROGRAM", killing(tmp_path))
            if last > 30:
                prices(tmp_path, "quotes", 30, last, form)
            list(streamjoin.Join.read(tmp_path / "fed.yaml").run(runner="inline", until_idle=True))
        if sink == "function":
            found = [tuple(map(int, line.split(","))) for path in tmp_path.glob("kept-*") for line in path.read_text().splitlines()]
        elif sink == "xml":
            texts = [path.read_text() for path in (tmp_path / "out").glob("**/*.xml")]
            found = [(int(a), int(b)) for text in texts for a, b in re.findall(r"<a>(\d+)</a>\s*<b>(\d+)</b>", text)]
        else:
            rows = [json.loads(line) for path in (tmp_path / "out").glob("*.json") for line in path.read_text().splitlines()]
            found = [tuple(row.values()) for row in rows]
        assert sorted(found) == [(number, number) for number in range(last)]


def repository_of(jars: Path, root: Path) -> str:
    """The address of a Maven repository with PostgreSQL's jar among these, as ``example:jdbc:1.0``."""
    (jar,) = jars.glob("postgresql-*.jar")
    folder = root / "example/jdbc/1.0"
    folder.mkdir(parents=True)
    shutil.copy(jar, folder / "jdbc-1.0.jar")
    names = "<groupId>example</groupId><artifactId>jdbc</artifactId><version>1.0</version>"
    (folder / "jdbc-1.0.pom").write_text(f"<project><modelVersion>4.0.0</modelVersion>{names}</project>")
    return root.as_uri()


@pytest.mark.spark
@pytest.mark.postgres
def test_tables_of_postgresql_are_read_and_written_through_jdbc_from_a_package(tmp_path: Path) -> None:
    """What is there is read once, and a run that begins again writes nothing again."""
    try:
        driver = libraries("postgresql-jdbc", "org.postgresql", "postgresql", "42.7.4")
    except NotFetched as missing:
        pytest.skip(str(missing))
    prices(tmp_path, "quotes", 0, 30)
    quotes = {"format": "csv", "options": {"path": f"{tmp_path}/quotes", "header": True}, "columns": "id BIGINT, price DOUBLE"}
    with PostgresServer() as server:

        def asked(text: str) -> list[Any]:
            with psycopg.connect(host="127.0.0.1", port=server.port, dbname="postgres", user=USER, autocommit=True) as connection:
                cursor = connection.execute(text)  # type: ignore[arg-type, unused-ignore]
                return cursor.fetchall() if cursor.description else []

        asked("CREATE TABLE trades AS SELECT id::BIGINT, id / 10.0::DOUBLE PRECISION AS price FROM generate_series(0, 19) AS id")
        (tmp_path / "user").write_text(f"{USER}\n")
        url = f"jdbc:postgresql://127.0.0.1:{server.port}/postgres"
        options = {"url": url, "driver": "org.postgresql.Driver", "user": f"file:{tmp_path}/user"}
        trades = {"format": "jdbc", "options": options | {"dbtable": "trades"}, "streaming": False}
        packages = {"packages": ["example:jdbc:1.0"], "repositories": [repository_of(driver, tmp_path / "repository")]}
        manifest = manifest_of(tmp_path, trades, quotes, spark=packages)
        sink = {"format": "jdbc", "options": options | {"dbtable": "near"}, "streaming": False}
        manifest["spec"]["joins"][0]["output"]["sink"] = {"spark": sink}
        for _ in range(2):
            list(streamjoin.Join.parse(json.dumps(manifest)).run(runner="inline", until_idle=True))
            assert asked("SELECT a, b FROM near ORDER BY a") == [(number, number) for number in range(20)]
            asked("INSERT INTO trades VALUES (100, 2.5)")


def killing(root: Path) -> str:
    """A program that reads, and is killed once, when its Spark has started."""
    text = f"""
import os, pathlib, signal
from streamjoin.spark import feeding
mark, made = pathlib.Path({str(root)!r}, "killed"), feeding._session
def session(order):
    found = made(order)
    if not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return found
feeding._session = session
raise SystemExit(feeding.main())
"""
    (root / "killed_reader.py").write_text(text)
    return "killed_reader"
