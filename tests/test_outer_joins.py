"""Outer joins of three and more streams: into which joins of two they are made, and with event times that no column has as they are.

What they give is compared with DuckDB in ``test_random_joins``.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import duckdb
import pytest

import streamjoin
from streamjoin.manifest import outer_joins, resolve


def stream(path: Path, schema: str, event_time: Any, **fields: Any) -> dict[str, Any]:
    source = {"files": {"path": str(path), "format": "json"}}
    return {"source": source, "schema": schema, "eventTime": event_time, "watermark": "1h", **fields}


def join_of(root: Path, streams: dict[str, Any], condition: str, kind: str, window: dict[str, Any], **output: Any) -> streamjoin.Join:
    output = {"sink": {"files": {"path": str(root / "out"), "format": "parquet"}}} | output
    joins = {"all": {"condition": condition, "type": kind, "window": window, "output": output}}
    return streamjoin.Join.of("outer", streams=streams, joins=joins, checkpoint=root / "state", workers=2)


CASES = {
    "the first two, then the third with what comes of them": (
        {"a": "id BIGINT, at TIMESTAMP", "b": "id BIGINT, at TIMESTAMP", "c": "id BIGINT, at TIMESTAMP"},
        "a.id = b.id AND b.id = c.id AND a.id > 3",
        {
            "a_b": ("left", "a.id = b.id AND a.id > 3", "a.id AS a_id"),
            "all": ("right", "a_b.b_id = c.id AND unix_micros(c.at) <= a_b.until", "a_b.a_id AS id"),
        },
    ),
    "names that SQL has for something else, and that would stand twice": (
        {"current": "id BIGINT, d_b BIGINT, at TIMESTAMP", "date": "b BIGINT, id BIGINT, at TIMESTAMP", "x": "id BIGINT, at TIMESTAMP"},
        "current.id = `date`.id AND current.d_b = x.id",
        {
            "current_date_": ("left", "current.id = `date`.id", "current.d_b AS current_d_b"),
            "all": (
                "right",
                "current_date_.current_d_b = x.id AND unix_micros(x.at) <= current_date_.until",
                "current_date_.current_id AS id",
            ),
        },
    ),
    "columns of two streams that would have one name": (
        {"a": "b_c BIGINT, at TIMESTAMP", "a_b": "c BIGINT, at TIMESTAMP", "x": "id BIGINT, at TIMESTAMP"},
        "a.b_c = a_b.c AND a_b.c = x.id AND a.b_c < x.id",
        {
            "a_a_b": ("left", "a.b_c = a_b.c", "a.b_c AS a_b_c"),
            "all": (
                "right",
                "a_a_b.a_b_c_ = x.id AND a_a_b.a_b_c < x.id AND unix_micros(x.at) <= a_a_b.until",
                "a_a_b.a_b_c AS id",
            ),
        },
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_each_part_of_a_condition_is_where_sql_would_have_it(name: str, tmp_path: Path) -> None:
    schemas, condition, want = CASES[name]
    streams = {each: stream(tmp_path / each, schema, "at") for each, schema in schemas.items()}
    first = next(iter(schemas))
    column = resolve.identifier(first) + "." + schemas[first].split()[0]
    join = join_of(tmp_path, streams, condition, "left", {"within": "10s"}, select=[f"{column} AS id"])
    assert [str(problem) for problem in join.validate()] == []
    spec = outer_joins.expanded(join.manifest.spec)
    joins = {each.name: each for each in spec.joins}
    assert list(joins) == ["all", *(each for each in want if each != "all")], "the manifest's own keep their places"
    for each, (kind, text, select) in want.items():
        found = joins[each]
        assert (found.type, found.condition.replace("(", "").replace(")", "")) == (kind, text.replace("(", "").replace(")", ""))
        assert found.output.select is not None
        assert select in found.output.select
    assert outer_joins.expanded(spec) is spec


def test_event_times_may_be_numbers_texts_and_expressions(tmp_path: Path) -> None:
    """Of each stream in another form; with windows that slide, so that it matters when each begins."""
    begin = 1_700_000_000
    rows = {
        "a": [(1, 0), (2, 5), (3, 9), (4, 11), (5, 29)],
        "b": [(1, 4), (2, 13), (3, 21), (6, 2), (5, 29)],
        "c": [(1, 9), (1, 12), (3, 9), (6, 11), (7, 3), (5, 31)],
    }
    forms = {
        "a": ("t BIGINT", {"column": "t", "unit": "ms"}, lambda at: (begin + at) * 1000),
        "b": ("t STRING", {"column": "t", "format": "yyyy-MM-dd HH:mm:ss"}, lambda at: f"2023-11-14 22:13:{20 + at:02d}"),
        "c": ("t BIGINT", "timestamp_seconds(t)", lambda at: begin + at),
    }
    streams = {}
    for name, (schema, event_time, written) in forms.items():
        (tmp_path / name).mkdir()
        lines = [json.dumps({"id": key, "t": written(at)}) for key, at in rows[name]]
        (tmp_path / name / "one.json").write_text("\n".join(lines) + "\n")
        streams[name] = stream(tmp_path / name, f"id BIGINT, {schema}", event_time)
    window = {"each": {"a": "15s", "b": "10s", "c": "20s"}, "slide": "10s"}
    select = ["a.id AS a", "b.id AS b", "c.id AS c"]
    join = join_of(tmp_path, streams, "a.id = b.id AND coalesce(a.id, b.id) = c.id", "full", window, select=select)
    with join.run(runner="inline", until_idle=True) as run:
        for _ in run:
            pass
    found = duckdb.sql(f"SELECT a, b, c FROM '{tmp_path}/out/*.parquet'").fetchall()
    for name, values in rows.items():
        duckdb.sql(f"CREATE OR REPLACE TEMP TABLE {name} AS SELECT * FROM (VALUES {', '.join(map(str, values))}) t(id, t)")

    def near(*names: str) -> str:
        newest = f"greatest({', '.join(f'{name}.t' for name in names)})"
        spans = {"a": 15, "b": 10, "c": 20}
        return " AND ".join(f"({name}.t IS NULL OR {newest} - {name}.t // 10 * 10 <= {spans[name]})" for name in names)

    want = duckdb.sql(
        "SELECT a.id, b.id, c.id"
        f" FROM a FULL JOIN b ON a.id = b.id AND {near('a', 'b')} FULL JOIN c ON coalesce(a.id, b.id) = c.id AND {near('a', 'b', 'c')}"
    ).fetchall()
    assert sorted(map(repr, found)) == sorted(map(repr, want))
    assert {sum(value is None for value in row) for row in want} == {0, 1, 2}, "all, two and one of the streams"
