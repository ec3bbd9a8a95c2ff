"""Results that PostgreSQL refuses are dead letters, each once, and all others are in the table, whoever dies."""

from __future__ import annotations

import contextlib
import itertools
import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness import Crash, driver_for, run_all
from streamjoin.epoch.ports import EpochFailed
from streamjoin.io.base import SinkError
from streamjoin.io.postgres_sink import PostgresSink
from streamjoin.io.postgres_table import PostgresTable
from streamjoin.io.refused import Refused, RefusedResults
from streamjoin.runner.inline import InlineRunner
from streamjoin.state.storage import ObjectStorage
from test_crashes import expected, make_inputs
from test_delta_sink import die_at, finish
from test_postgres_sink import SCHEMA, asked, batch, job_at, server, sink, stage, table

__all__ = ["server", "table"]
pytestmark = [pytest.mark.postgres, pytest.mark.xdist_group("postgres")]


def letters_in(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for path in sorted(folder.glob("*.json")) for line in path.read_text().splitlines()]


def refusing(server: Any, table: str, root: Path) -> PostgresSink:
    target = sink(server, table, root / "state")
    return PostgresSink(target.config, SCHEMA, ObjectStorage(str(root / "state")), RefusedResults(str(root / "dead"), "j"))


CONSTRAINTS = {
    "check": "CHECK (value <> 13)",
    "deferred foreign key": "FOREIGN KEY (value) REFERENCES {table}_allowed DEFERRABLE INITIALLY DEFERRED",
    "unique in another column": "UNIQUE (value)",
    "trigger": "",
}


@pytest.mark.parametrize("kind", CONSTRAINTS)
def test_rows_that_the_table_refuses_are_letters_and_the_others_come_in_order(kind: str, server: Any, table: str, tmp_path: Path) -> None:
    target = refusing(server, table, tmp_path)
    target.publish([], again=True)
    if kind == "deferred foreign key":
        asked(server, f"CREATE TABLE {table}_allowed (value bigint PRIMARY KEY)")
        asked(server, f"INSERT INTO {table}_allowed SELECT n FROM generate_series(0, 100) n WHERE n <> 13")
    if kind == "trigger":
        refuse = "BEGIN IF NEW.value = 13 THEN RAISE EXCEPTION 'no 13'; END IF; RETURN NEW; END"
        asked(server, f"CREATE FUNCTION {table}_refuse() RETURNS trigger LANGUAGE plpgsql AS $${refuse}$$")
        asked(server, f"CREATE TRIGGER refuse BEFORE INSERT OR UPDATE ON {table} FOR EACH ROW EXECUTE FUNCTION {table}_refuse()")
    else:
        asked(server, f"ALTER TABLE {table} ADD {CONSTRAINTS[kind].format(table=table)}")
    if kind == "unique in another column":
        asked(server, f"INSERT INTO {table} VALUES (-1, 'first', 13)")
    rows = [(number % 50, f"n{number}", 13 if number in (0, 3, 40, 41) else 14 + number) for number in range(60)]
    staged = [*stage(target, 1, batch(*rows[:25]), batch(*rows[25:30])), *stage(target, 1, batch(*rows[30:]), task=1)]
    target.publish(staged)
    letters = letters_in(tmp_path / "dead")
    assert [(letter["join"], letter["position"]) for letter in letters] == [("j", 0), ("j", 3), ("j", 40), ("j", 41)]
    assert [json.loads(letter["raw"]) for letter in letters] == [dict(zip(SCHEMA.names, rows[at], strict=True)) for at in (0, 3, 40, 41)]
    kept = {row[0]: row for row in rows if row[2] != 13}
    found = [row for row in asked(server, f"SELECT * FROM {table} ORDER BY id") if row[0] >= 0]
    assert found == [kept[number] for number in sorted(kept)]
    assert target.refused is not None
    count, reason = target.refused.take()
    assert count == 4
    assert reason == letters[0]["error"]
    assert target.refused.take() == (0, "")
    later = refusing(server, table, tmp_path)
    later.publish(staged, again=True)
    assert later.refused is not None
    assert later.refused.take()[0] == 4, "who publishes again counts what its predecessor may not have counted"
    assert letters_in(tmp_path / "dead") == letters


def test_without_letters_a_row_that_is_refused_is_an_error_whose_remedy_works(server: Any, table: str, tmp_path: Path) -> None:
    target = sink(server, table, tmp_path)
    target.publish([], again=True)
    asked(server, f"ALTER TABLE {table} ADD CONSTRAINT no_13 CHECK (value <> 13)")
    staged = stage(target, 1, batch((1, "a", 12), (2, "b", 13)))
    with pytest.raises(SinkError, match=r"no_13.*change the table so that it takes such rows, and start again; or let onBad of the output"):
        target.publish(staged)
    assert asked(server, f"SELECT * FROM {table}") == []
    asked(server, f"ALTER TABLE {table} DROP CONSTRAINT no_13")
    sink(server, table, tmp_path).publish(staged, again=True)
    assert len(asked(server, f"SELECT * FROM {table}")) == 2


def test_what_was_refused_stays_a_letter_although_the_table_would_take_it_now(server: Any, table: str, tmp_path: Path) -> None:
    """The driver has died after it wrote the letters, and before the table had the others."""
    target = refusing(server, table, tmp_path)
    target.publish([], again=True)
    asked(server, f"ALTER TABLE {table} ADD CONSTRAINT no_13 CHECK (value <> 13)")
    staged = stage(target, 1, batch((1, "a", 12), (2, "b", 13), (3, "c", 14)))
    with pytest.MonkeyPatch.context() as patched:
        die_at(patched, Refused, "keep", after=True, visit=0)
        with pytest.raises(Crash):
            target.publish(staged)
    assert asked(server, f"SELECT * FROM {table}") == []
    asked(server, f"ALTER TABLE {table} DROP CONSTRAINT no_13")
    refusing(server, table, tmp_path).publish(staged, again=True)
    assert [letter["position"] for letter in letters_in(tmp_path / "dead")] == [1]
    assert [number for (number,) in asked(server, f"SELECT id FROM {table} ORDER BY id")] == [1, 3]


CALLS: tuple[tuple[type, str], ...] = (
    *((PostgresTable, name) for name in ("apply", "_refusal", "_upsert", "_put_by_halves")),
    (RefusedResults, "of"),
    *((Refused, name) for name in ("keep", "published")),
)


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize(("where", "name", "visit"), [(*call, visit) for call, visit in itertools.product(CALLS, (0, 1, 2))])
def test_a_join_whose_driver_dies_has_each_result_in_the_table_or_as_a_letter(
    where: type, name: str, visit: int, after: bool, server: Any, table: str, tmp_path: Path
) -> None:
    inputs, job = make_inputs(epochs=3), job_at(server, table, tmp_path)
    asked(server, f"CREATE TABLE {table} (a bigint, b bigint CHECK (b % 5 <> 2), UNIQUE (a, b))")
    with pytest.MonkeyPatch.context() as patched:
        die_at(patched, where, name, after=after, visit=visit)
        with contextlib.suppress(Crash):
            run_all(driver_for(job, inputs, ObjectStorage(str(tmp_path / "state")), InlineRunner()))
    finish(tmp_path, inputs, job)
    wanted = expected(inputs)
    refused = Counter({pair: count for pair, count in wanted.items() if pair[1] % 5 == 2})
    assert refused
    assert Counter(asked(server, f"SELECT a, b FROM {table}")) == wanted - refused
    rows = [json.loads(letter["raw"]) for letter in letters_in(Path(job.dead_letter)) if "join" in letter]
    assert Counter((row["a"], row["b"]) for row in rows) == refused
    driver = driver_for(job, inputs, ObjectStorage(str(tmp_path / "state")), InlineRunner())
    driver.start()
    assert driver.checkpoint.totals["refused"] == driver.checkpoint.totals["refused/j"] == [refused.total()]


def test_with_fail_a_join_stops_at_what_the_table_refuses_and_goes_on_once_it_is_mended(server: Any, table: str, tmp_path: Path) -> None:
    inputs, job = make_inputs(epochs=3), job_at(server, table, tmp_path)
    job = replace(job, joins=tuple(replace(join, fails_on_bad=True) for join in job.joins))
    asked(server, f"CREATE TABLE {table} (a bigint, b bigint CONSTRAINT odd CHECK (b % 5 <> 2), UNIQUE (a, b))")
    with pytest.raises((SinkError, EpochFailed), match="odd"):
        run_all(driver_for(job, inputs, ObjectStorage(str(tmp_path / "state")), InlineRunner()))
    asked(server, f"ALTER TABLE {table} DROP CONSTRAINT odd")
    finish(tmp_path, inputs, job)
    assert Counter(asked(server, f"SELECT a, b FROM {table}")) == expected(inputs)
