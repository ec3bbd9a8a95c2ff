"""The PostgreSQL sink, against a real server: each result in place of the one with its key, each epoch's once, whoever dies."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import pickle
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest

from harness import Crash, driver_for, make_job, run_all
from streamjoin.io.base import SinkError, Staged, UnavailableError
from streamjoin.io.ownership import OwnedElsewhere, Owner
from streamjoin.io.postgres_sink import Place, PostgresSink, PostgresSinkConfig
from streamjoin.io.postgres_table import PostgresTable
from streamjoin.runner.inline import InlineRunner
from streamjoin.state.storage import ObjectStorage
from tables import ALL_TYPES, normal, publish_at_once, texts, typed_rows
from test_crashes import OPTIONS, expected, make_inputs
from test_delta_sink import STEPS, die_at, finish

pytestmark = [pytest.mark.postgres, pytest.mark.xdist_group("postgres")]  # one server for all
SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string()), ("value", pa.int64())])
NAMES = itertools.count()


@pytest.fixture(scope="module")
def server() -> Iterator[Any]:
    from postgres_server import NoPostgres, PostgresServer

    try:
        running = PostgresServer()
    except NoPostgres as error:
        if os.environ.get("STREAMJOIN_NO_SKIPS"):
            raise
        pytest.skip(str(error))
    with running as up:
        yield up


@pytest.fixture
def table(server: Any) -> str:
    return f"t{next(NAMES)}"


def asked(server: Any, text: str) -> list[Any]:
    with psycopg.connect(host="127.0.0.1", port=server.port, dbname="postgres", user="streamjoin", autocommit=True) as connection:
        connection.execute("SET timezone = 'UTC'")
        cursor = connection.execute(text)  # type: ignore[arg-type, unused-ignore]
        return cursor.fetchall() if cursor.description else []


def sink(server: Any, table: str, root: Path, schema: pa.Schema = SCHEMA, key: tuple[str, ...] = ("ID",), **config: Any) -> PostgresSink:
    place = Place("127.0.0.1", server.port, "postgres", "public", table, 10.0, (("user", "streamjoin"),))
    given = PostgresSinkConfig(place, key, **config)
    made: PostgresSink = pickle.loads(pickle.dumps(PostgresSink(given, schema, ObjectStorage(str(root)))))
    return made


def batch(*rows: tuple[Any, ...]) -> pa.RecordBatch:
    return pa.record_batch(list(zip(*rows, strict=True)), schema=SCHEMA)


def stage(target: PostgresSink, epoch: int, *batches: pa.RecordBatch, task: int = 0, small_bytes: int = 0) -> list[Staged]:
    """One task's results of one epoch, as a commit keeps them."""
    stem = f"c0ffee00-{epoch:012d}-{task:05d}"
    writer = target.writer(f"c0ffee00-000001-{epoch:012d}-{task:05d}-0", stem, small_bytes=small_bytes)
    for part in batches:
        writer.write(part)
    closed = writer.close()
    return closed if small_bytes else [Staged.from_json(json.loads(json.dumps(staged.to_json()))) for staged in closed]


def test_a_result_replaces_the_one_with_its_key_and_the_last_of_an_epoch_counts(server: Any, table: str, tmp_path: Path) -> None:
    target = sink(server, table, tmp_path)
    target.publish([], again=True)
    assert asked(server, f"SELECT * FROM {table}") == []
    first = stage(target, 0, batch((1, "a", 10), (2, "b", 20), (1, "c", 30)))
    target.publish([*first, *stage(target, 0, batch((3, None, None), (None, "no key", 1)), task=1)])
    assert sorted(asked(server, f"SELECT * FROM {table}"), key=str) == sorted(
        [(1, "c", 30), (2, "b", 20), (3, None, None), (None, "no key", 1)], key=str
    )
    target.publish(stage(target, 1, batch((2, "d", 40), (None, "still no key", 2))))
    assert sorted(asked(server, f"SELECT * FROM {table}"), key=str) == sorted(
        [(1, "c", 30), (2, "d", 40), (3, None, None), (None, "still no key", 2)], key=str
    )
    assert not list(tmp_path.rglob("*.arrow"))


def test_what_is_published_again_changes_nothing_newer(server: Any, table: str, tmp_path: Path) -> None:
    target = sink(server, table, tmp_path)
    old = stage(target, 0, batch((1, "old", 1)), small_bytes=1 << 20)
    target.publish(target.gather(old, "x", "c0ffee00-000000000000-small"))
    target.publish(stage(target, 1, batch((1, "new", 2))))
    for again in (False, True):
        sink(server, table, tmp_path).publish(target.gather(old, "x", "c0ffee00-000000000000-small"), again=again)
    assert asked(server, f"SELECT * FROM {table}") == [(1, "new", 2)]


def test_every_type_is_kept(server: Any, table: str, tmp_path: Path) -> None:
    rows = [row | {"big": number} for number, row in enumerate(typed_rows(40))]
    target = sink(server, table, tmp_path, ALL_TYPES, key=("big", "day"))
    target.publish(stage(target, 0, pa.RecordBatch.from_pylist(rows, ALL_TYPES)))
    stored = pa.schema([pa.field(field.name, pa.int64() if field.name == "took" else field.type) for field in ALL_TYPES])
    found = [dict(zip(ALL_TYPES.names, row, strict=True)) for row in asked(server, f"SELECT * FROM {table}")]
    assert texts(pa.Table.from_pylist(found, stored)) == normal(rows)


def test_drivers_that_publish_the_same_at_once_publish_it_once(server: Any, table: str, tmp_path: Path) -> None:
    sink(server, table, tmp_path).publish([], again=True)
    asked(server, f"CREATE TABLE {table}_log (id bigint)")
    asked(
        server,
        f"CREATE FUNCTION {table}_f() RETURNS trigger AS 'BEGIN INSERT INTO {table}_log VALUES (NEW.id); RETURN NEW; END' LANGUAGE plpgsql;"
        f" CREATE TRIGGER one AFTER INSERT OR UPDATE ON {table} FOR EACH ROW EXECUTE FUNCTION {table}_f()",
    )
    for epoch in range(4):
        staged = stage(sink(server, table, tmp_path), epoch, batch((epoch, "x", 1)), small_bytes=1 << 20)
        drivers = [sink(server, table, tmp_path) for _ in range(3)]
        publish_at_once(drivers, staged)
    assert sorted(asked(server, f"SELECT id FROM {table}_log")) == [(0,), (1,), (2,), (3,)]


@pytest.mark.parametrize(
    ("made", "message"),
    [
        ("id integer UNIQUE, name text, value bigint", "column id is integer, and results have bigint; CAST it in output.select"),
        ("id bigint UNIQUE, name text", "has no column value of type bigint, and results have; add it"),
        ("id bigint, name text, value bigint", r"has no unique constraint on id, the key; add one \(ALTER TABLE .* ADD UNIQUE \(id\)\)"),
        ("id bigint UNIQUE, name text, value bigint, more int NOT NULL", "column more is NOT NULL, and no column of the results; give it"),
    ],
)
def test_a_table_that_results_do_not_fit_is_refused_with_the_remedy(
    made: str, message: str, server: Any, table: str, tmp_path: Path
) -> None:
    asked(server, f"CREATE TABLE {table} ({made})")
    with pytest.raises(SinkError, match=message):
        sink(server, table, tmp_path).publish([], again=True)


def test_a_server_that_is_away_is_waited_for(server: Any, table: str, tmp_path: Path) -> None:
    target = sink(server, table, tmp_path)
    target.publish(stage(target, 0, batch((1, "a", 1))))
    staged = stage(target, 1, batch((2, "b", 2)))
    server.kill()
    try:
        for _ in range(2):
            with pytest.raises(UnavailableError, match="does not take results now"):
                target.publish(staged)
    finally:
        server.start()
    target.publish(staged, again=True)
    assert sorted(asked(server, f"SELECT id FROM {table}")) == [(1,), (2,)]


def test_what_was_staged_and_never_committed_is_swept_and_what_is_lost_is_told(server: Any, table: str, tmp_path: Path) -> None:
    target = sink(server, table, tmp_path)
    kept, gone = stage(target, 0, batch((1, "a", 1))), stage(target, 1, batch((2, "b", 2)))
    assert target.sweep(lambda name: "-000000000001-" in name) == 1
    target.publish(kept)
    with pytest.raises(SinkError, match="these 1 committed results are gone"):
        target.publish(gone)
    assert asked(server, f"SELECT id FROM {table}") == [(1,)]


def job_at(server: Any, table: str, root: Path) -> Any:
    where = {"host": "127.0.0.1", "port": server.port, "database": "postgres", "table": table, "options": {"user": "streamjoin"}}
    return make_job(root, **OPTIONS, output={"sink": {"postgres": where | {"key": ["a", "b"]}}})


@pytest.mark.parametrize("step", STEPS)
def test_a_join_whose_driver_dies_at_a_step_has_each_result_once(step: str, small: str, server: Any, table: str, tmp_path: Path) -> None:
    inputs, visits = make_inputs(epochs=3), iter(range(1000))

    def die(at: str) -> None:
        if at == step and next(visits) == (0 if step in ("claim", "republish", "sweep", "gather") else 1):
            raise Crash(at)

    job = job_at(server, table, tmp_path)
    driver = driver_for(job, inputs, ObjectStorage(str(tmp_path / "state")), InlineRunner(), at=die)
    with contextlib.suppress(Crash):
        run_all(driver)
        driver.stop()
        assert step == "gather"
    finish(tmp_path, inputs, job)
    assert Counter(asked(server, f"SELECT a, b FROM {table}")) == expected(inputs)
    assert not ObjectStorage(str(tmp_path / "state")).list("outbox")


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("name", ["apply", "_copy", "_upsert", "_prepare"])
def test_a_join_whose_driver_dies_while_it_publishes_has_each_result_once(
    name: str, after: bool, server: Any, table: str, tmp_path: Path
) -> None:
    inputs, job = make_inputs(epochs=3), job_at(server, table, tmp_path)
    with pytest.MonkeyPatch.context() as patched:
        die_at(patched, PostgresTable, name, after=after, visit=0 if name == "_prepare" else 1)
        with contextlib.suppress(Crash):
            run_all(driver_for(job, inputs, ObjectStorage(str(tmp_path / "state")), InlineRunner()))
    finish(tmp_path, inputs, job)
    assert Counter(asked(server, f"SELECT a, b FROM {table}")) == expected(inputs)


def test_a_table_belongs_to_a_checkpoint_and_one_that_lacks_its_results_is_another(server: Any, table: str, tmp_path: Path) -> None:
    one, other = Owner("c0ffee00", "state/one"), Owner("0badc0de", "state/other")
    target = sink(server, table, tmp_path)
    target.claim(one, takes=False)
    target.publish(stage(target, 1, batch((1, "a", 1))))
    target.claim(replace(one, has_published=True), takes=False)
    with pytest.raises(OwnedElsewhere, match=rf"has the results of another checkpoint, and .* remove the table and {table}_published"):
        target.claim(other, takes=False)
    asked(server, f"DELETE FROM {table}_published")
    target.claim(other, takes=False)
    with pytest.raises(OwnedElsewhere, match=r"has none of the results that this checkpoint \(state/one\) has published .*"):
        target.claim(replace(one, has_published=True), takes=False)


REFUSALS = {
    "a check": ("ALTER TABLE {0} ADD CONSTRAINT no_secrets CHECK (name <> 'hush-4711')", r"no_secrets.*SQLSTATE 23514"),
    "another unique column": (
        "CREATE UNIQUE INDEX one_name ON {0} (name); INSERT INTO {0} (id, name) VALUES (99, 'hush-4711')",
        r"one_name.*SQLSTATE 23505",
    ),
    "a trigger": (
        "CREATE FUNCTION refuse_{0}() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN RAISE EXCEPTION 'not \"%\" of %', NEW.name, NEW.id USING DETAIL = NEW.name; END $$;"
        "CREATE TRIGGER refusing BEFORE INSERT ON {0} FOR EACH ROW EXECUTE FUNCTION refuse_{0}()",
        "SQLSTATE P0001",
    ),
    "a trigger with a state of its own": (
        "CREATE FUNCTION own_{0}() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN RAISE EXCEPTION 'not \"%\"', NEW.name USING ERRCODE = 'check_violation'; END $$;"
        "CREATE TRIGGER own BEFORE INSERT ON {0} FOR EACH ROW EXECUTE FUNCTION own_{0}()",
        "SQLSTATE 23514",
    ),
    "a trigger that casts": (
        "CREATE FUNCTION cast_{0}() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM NEW.name::integer; RETURN NEW; END $$;"
        "CREATE TRIGGER casting BEFORE INSERT ON {0} FOR EACH ROW EXECUTE FUNCTION cast_{0}()",
        "invalid input syntax for type integer.*SQLSTATE 22P02",
    ),
}


@pytest.mark.parametrize("refusal", REFUSALS)
def test_what_a_table_refuses_is_told_without_the_row(refusal: str, server: Any, table: str, tmp_path: Path) -> None:
    made, told = REFUSALS[refusal]
    target = sink(server, table, tmp_path)
    target.publish([], again=True)
    asked(server, made.format(table))
    with pytest.raises(SinkError, match=told) as raised:
        target.publish(stage(target, 0, batch((87654321, "hush-4711", 1))))
    assert "hush" not in str(raised.value)
    assert "4711" not in str(raised.value)
    assert "87654321" not in str(raised.value)
    assert "or let onBad of the output be deadLetter" in str(raised.value)
