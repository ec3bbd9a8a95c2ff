"""Columns may have the names that the engine's own have, or any other that begins with an underscore, in every kind of join."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

import streamjoin
from streamjoin.language.ddl import parse_schema
from streamjoin.language.errors import SqlError

NAMES = ("_id", "_unit", "_aux", "_shed", "_rows", "_mark0", "_in0", "_key1", "__op", "_before.b", "_at.b", "_from.b", "_reference.b")
"""What the engine calls columns of its own somewhere, and others."""


Definition = dict[str, Any]


def join(root: Path, streams: int, definition: Definition, window: Definition, more: Definition | None = None) -> list[dict[str, Any]]:
    quoted = {name: f"`{name}`" for name in NAMES}
    spec: dict[str, Any] = {"streams": [], "epoch": {"maxTuples": 20}, "checkpoint": {"location": str(root / "state")}, **(more or {})}
    for number, stream in enumerate("abc"[:streams]):
        (root / stream).mkdir()
        named = [{name: f"{stream}{name}{at}" for name in NAMES} for at in range(40)]
        rows = [{"_k": at % 5, "at": f"2026-01-01T00:00:{at:02d}Z"} | named[at] for at in range(number, 40)]
        (root / stream / "rows.json").write_text("".join(json.dumps(row) + "\n" for row in rows))
        schema = ", ".join(["_k INT", "at TIMESTAMP", *(f"{name} STRING" for name in quoted.values())])
        source = {"files": {"path": str(root / stream), "format": "json"}}
        spec["streams"].append({"name": stream, "source": source, "schema": schema, "eventTime": "at", "watermark": "5s"})
    select = [f"{stream}.{quoted[name]} AS `{stream}{name}`" for stream in "abc"[:streams] for name in NAMES]
    sink = {"files": {"path": str(root / "out"), "format": "json", "gather": "0s"}}
    spec["joins"] = [{"name": "j", **definition, "window": window, "output": {"select": select, "sink": sink}}]
    manifest = {"apiVersion": "streamjoin.dev/v1beta1", "kind": "StreamJoin", "metadata": {"name": "names"}, "spec": spec}
    (root / "join.yaml").write_text(yaml.safe_dump(manifest))
    assert streamjoin.Join.read(root / "join.yaml").run(runner="inline", until_idle=True).wait() is streamjoin.Reason.IDLE
    return [json.loads(line) for file in sorted((root / "out").glob("*.json")) for line in file.read_text().splitlines()]


def expected(*members: tuple[str, int | None]) -> dict[str, Any]:
    return {f"{stream}{name}": None if at is None else f"{stream}{name}{at}" for stream, at in members for name in NAMES}


def same(found: list[dict[str, Any]], wanted: list[dict[str, Any]]) -> None:
    assert sorted(map(json.dumps, found)) == sorted(map(json.dumps, wanted))


@pytest.mark.parametrize(
    ("window", "model"),
    [({"within": "6s"}, "adsp"), ({"within": "6s", "slide": "2s"}, "adsp"), ({"within": "6s"}, "handshake")],
    ids=["adsp", "adsp, slide", "handshake"],
)
def test_two_streams(tmp_path: Path, window: dict[str, str], model: str) -> None:
    found = join(tmp_path, 2, {"condition": "a._k = b._k AND a.`_id` <> b.`_unit`"}, window, {"scheme": {"model": model}})
    pairs = [(i, j) for i in range(40) for j in range(1, 40) if i % 5 == j % 5 and abs(i - j) <= 6]
    if "slide" in window:
        pairs = [(i, j) for i, j in pairs if max(i, j) - min(i, j) // 2 * 2 <= 6]
    same(found, [expected(("a", i), ("b", j)) for i, j in pairs])
    if model == "handshake":  # workers of a chain may hold none at the end
        return
    held = streamjoin.Join.read(tmp_path / "join.yaml").query('SELECT _id, "_before.b", _time FROM a ORDER BY _time DESC').to_pylist()
    assert held[0]["_id"] == "a_id39"
    assert held[0]["_before.b"] == "a_before.b39"


def test_an_outer_join_by_a_column_of_such_a_name(tmp_path: Path) -> None:
    found = join(tmp_path, 2, {"type": "left", "condition": "concat('b', substring(a.`_id`, 2)) = b.`_id`"}, {"within": "6s"})
    same(found, [expected(("a", 0), ("b", None)), *(expected(("a", i), ("b", i)) for i in range(1, 40))])


def test_three_streams(tmp_path: Path) -> None:
    condition = "a._k = b._k AND b._k = c._k AND b.`_aux` <> c.`_id`"
    found = join(tmp_path, 3, {"condition": condition}, {"each": {"a": "6s", "b": "6s", "c": "6s"}})
    members = [
        (i, j, k)
        for i in range(40)
        for j in range(1, 40)
        for k in range(2, 40)
        if i % 5 == j % 5 == k % 5 and max(i, j, k) - min(i, j, k) <= 6
    ]
    same(found, [expected(("a", i), ("b", j), ("c", k)) for i, j, k in members])


def test_what_queries_show_of_every_stream_is_no_name_for_a_column() -> None:
    for name in ("_key", "_TIME", "\x1fx"):
        with pytest.raises(SqlError, match=r"is the engine's own; rename it: queries show a tuple's key and time as _key and _time"):
            parse_schema(f"`{name}` INT")
