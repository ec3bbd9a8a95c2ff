"""``streamjoin validate`` tells what ``run`` would refuse at once, in the same words, and with ``--offline`` looks at nothing outside."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from streamjoin.api import outside
from streamjoin.cli.exits import Exit
from test_cli import invoke, manifest_at, run_inline


def streams(source: dict[str, Any], schema: str = "id BIGINT, k INT, at TIMESTAMP") -> list[dict[str, Any]]:
    return [{"name": name, "source": source, "schema": schema, "eventTime": "at", "watermark": "1s"} for name in ("l", "r")]


def cases(root: Path) -> dict[str, dict[str, Any]]:
    (root / "file").write_text("")
    (root / "empty").mkdir()
    write_deltalake(str(root / "table"), pa.table({"id": [1], "at": [0]}))
    sql = {"type": "sql", "uri": f"sqlite:///{root}/catalog.db", "warehouse": f"file://{root}/warehouse"}
    return {
        "no directory": {"streams": streams({"files": {"path": str(root / "none"), "format": "json"}})},
        "a file in a file": {"streams": streams({"files": {"path": str(root / "file" / "*.json"), "format": "json"}})},
        "no Delta table": {"streams": streams({"delta": {"path": str(root / "empty")}})},
        "no column": {"streams": streams({"delta": {"path": str(root / "table")}})},
        "no Iceberg table": {"streams": streams({"iceberg": {"table": "no.such", "catalog": sql}})},
    }


@pytest.mark.parametrize("name", ["no directory", "a file in a file", "no Delta table", "no column", "no Iceberg table"])
def test_a_source_that_a_run_refuses_at_once_is_told_in_its_words(name: str, tmp_path: Path) -> None:
    path = manifest_at(tmp_path, **cases(tmp_path)[name])
    validated, ran = invoke("validate", path), run_inline(path, "--until-idle")
    assert (validated.exit_code, ran.exit_code) == (Exit.USAGE, Exit.SOURCE)
    lines = validated.stdout.splitlines()
    assert len(lines) == 2, lines
    for index, line in enumerate(lines):
        assert line.startswith(f"{path}: spec.streams[{index}].source."), line
    told = lines[0].split(f"spec.streams[0].source.{'files.path' if 'file' in name or 'directory' in name else ''}")[1].lstrip(": ")
    assert told.split(": ", 1)[-1][:200] in " ".join(ran.output.split())
    offline = invoke("validate", "--offline", path)
    assert (offline.exit_code, offline.stdout) == (Exit.DONE, f"{path}: ok\n")


def test_files_in_the_place_of_directories_are_told(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("")
    path = manifest_at(tmp_path)
    validated, ran = invoke("validate", path), run_inline(path, "--until-idle")
    told = f"{tmp_path}/out: is a file, and must be a directory for the results; remove it or choose another path"
    assert validated.stdout == f"{path}: spec.joins[0].output.sink.files.path: {told}\n"
    assert told in " ".join(ran.output.split())
    (tmp_path / "out").unlink()
    (tmp_path / "file").write_text("")
    validated = invoke("validate", manifest_at(tmp_path, checkpoint={"location": str(tmp_path / "file")}))
    assert f"spec.checkpoint.location: {tmp_path}/file: is a file, and must be a directory for the state" in validated.stdout


@pytest.fixture
def deaf() -> Iterator[int]:
    """The port of a server that takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def test_a_server_that_does_not_answer_is_a_warning(deaf: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outside, "PATIENCE_SECONDS", 0.5)
    rest = {"iceberg": {"table": "a.b", "catalog": {"type": "rest", "uri": f"http://127.0.0.1:{deaf}"}}}
    path = manifest_at(tmp_path, streams=streams(rest))
    result = invoke("validate", path)
    assert (result.exit_code, result.stdout) == (Exit.DONE, f"{path}: ok\n")
    assert f"{path}: warning: spec.streams[0].source: is not checked: there was no answer within " in result.stderr


def test_a_server_that_is_not_there_is_a_warning(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    rest = {"iceberg": {"table": "a.b", "catalog": {"type": "rest", "uri": f"http://127.0.0.1:{port}"}}}
    path = manifest_at(tmp_path, streams=streams(rest))
    result = invoke("validate", path)
    assert (result.exit_code, result.stdout) == (Exit.DONE, f"{path}: ok\n")
    assert "warning: spec.streams[0].source: is not checked: " in result.stderr


def test_a_trial_of_an_image_looks_at_nothing_outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = manifest_at(tmp_path, streams=streams({"files": {"path": str(tmp_path / "none"), "format": "json"}}))
    monkeypatch.setenv("STREAMJOIN_IMAGE", "engine:1")
    assert invoke("validate", path).exit_code == Exit.DONE
