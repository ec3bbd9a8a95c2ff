"""An output belongs to one checkpoint: another one is refused before anything is read, whatever the output is and whoever dies."""

from __future__ import annotations

import json
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog import load_catalog

from harness import Root
from streamjoin.cli.exits import Exit
from streamjoin.io import ownership
from streamjoin.io.base import SinkError
from streamjoin.io.ownership import MARKER, OwnedElsewhere, Owner, claim_directory
from streamjoin.state.log import CommitLog
from streamjoin.state.storage import ObjectStorage
from tables import delta_rows
from test_cli import manifest_at, rows_in, run_inline
from test_iceberg_sink import catalog_at

ONE, OTHER = Owner("1111", "state/one"), Owner("2222", "state/other")


def join(sink: dict[str, Any]) -> dict[str, Any]:
    return {
        "condition": "abs(l.k - r.k) <= 1",
        "window": {"within": "1s"},
        "output": {"select": ["l.id AS a", "r.id AS b"], "sink": sink},
    }


def with_state(root: Path, name: str, **changes: Any) -> Path:
    return manifest_at(root, checkpoint={"location": str(root / name)}, rows=300, **changes)


def refused(root: Path, name: str, **changes: Any) -> str:
    result = run_inline(with_state(root, name, **changes), "--until-idle")
    assert result.exit_code == Exit.MISMATCH, result.output
    return " ".join(result.output.split())


def test_a_new_checkpoint_with_an_old_output_is_refused_until_one_of_them_is_another(tmp_path: Path) -> None:
    assert run_inline(with_state(tmp_path, "one"), "--until-idle").exit_code == 0
    found = rows_in(tmp_path)
    told = refused(tmp_path, "two")
    assert f"files.path: {tmp_path}/out has the results of another checkpoint, {tmp_path}/one, and this one ({tmp_path}/two)" in told
    assert f"choose a new output, remove the old one, or go on from it (checkpoint.location: {tmp_path}/one)" in told
    assert rows_in(tmp_path) == found
    assert run_inline(with_state(tmp_path, "one"), "--until-idle").exit_code == 0
    (tmp_path / "one").rename(tmp_path / "moved")
    assert run_inline(with_state(tmp_path, "moved"), "--until-idle").exit_code == 0, "a checkpoint may be moved"
    assert rows_in(tmp_path) == found
    shutil.rmtree(tmp_path / "out")
    assert run_inline(with_state(tmp_path, "two"), "--until-idle").exit_code == 0
    assert rows_in(tmp_path) == found


def test_an_output_of_an_earlier_version_is_taken_over_by_the_next_checkpoint(tmp_path: Path) -> None:
    assert run_inline(with_state(tmp_path, "one"), "--until-idle").exit_code == 0
    shutil.rmtree(tmp_path / "out" / ownership.FOLDER)
    assert run_inline(with_state(tmp_path, "one"), "--until-idle").exit_code == 0
    assert run_inline(with_state(tmp_path, "two"), "--until-idle").exit_code == 0
    assert f"another checkpoint, {tmp_path}/two" in refused(tmp_path, "one")


def test_a_crash_before_the_first_commit_leaves_the_output_to_its_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:

        def die(*_: object) -> None:
            raise RuntimeError("the driver dies")

        patched.setattr(CommitLog, "commit", die)
        run_inline(with_state(tmp_path, "one"), "--until-idle")
    assert (tmp_path / "out" / MARKER).exists()
    assert "another checkpoint" in refused(tmp_path, "two")
    assert run_inline(with_state(tmp_path, "one"), "--until-idle").exit_code == 0
    assert rows_in(tmp_path) > 0


def test_several_joins_have_their_outputs_each(tmp_path: Path) -> None:
    joins = [join({"files": {"path": str(tmp_path / name)}}) | {"name": name} for name in ("out", "other")]
    assert run_inline(with_state(tmp_path, "one", joins=joins), "--until-idle").exit_code == 0
    assert run_inline(with_state(tmp_path, "one", joins=joins[:1]), "--until-idle").exit_code == 0, "a join may go"
    assert "other has the results" in refused(tmp_path, "two", joins=[joins[1]])
    assert "out has the results" in refused(tmp_path, "two", joins=joins)


def test_a_delta_table_belongs_to_a_checkpoint(tmp_path: Path) -> None:
    joins = [join({"delta": {"path": str(tmp_path / "out")}})]
    assert run_inline(with_state(tmp_path, "one", joins=joins), "--until-idle").exit_code == 0
    found = delta_rows(tmp_path / "out").num_rows
    assert "delta.path: " in refused(tmp_path, "two", joins=joins)
    assert found == delta_rows(tmp_path / "out").num_rows > 0


def test_an_iceberg_table_belongs_to_a_checkpoint(tmp_path: Path) -> None:
    joins = [join({"iceberg": {"table": "results.pairs", "catalog": catalog_at(tmp_path / "tables")}})]
    assert run_inline(with_state(tmp_path, "one", joins=joins), "--until-idle").exit_code == 0
    assert run_inline(with_state(tmp_path, "one", joins=joins), "--until-idle").exit_code == 0
    told = refused(tmp_path, "two", joins=joins)
    assert "iceberg.table: results.pairs has the results of another checkpoint" in told
    table = load_catalog("default", **catalog_at(tmp_path / "tables")).load_table("results.pairs")
    (name,) = [name for name in table.properties if name.startswith("streamjoin.")]
    assert name in told
    with table.transaction() as transaction:
        transaction.remove_properties(name)
    assert run_inline(with_state(tmp_path, "two", joins=joins), "--until-idle").exit_code == 0


def test_another_catalog_under_a_checkpoint_is_refused_and_a_new_address_of_the_same_one_is_not(tmp_path: Path) -> None:
    def joins(name: str) -> list[dict[str, Any]]:
        return [join({"iceberg": {"table": "results.pairs", "catalog": catalog_at(tmp_path / name)}})]

    assert run_inline(with_state(tmp_path, "one", joins=joins("tables")), "--until-idle").exit_code == 0
    told = refused(tmp_path, "one", joins=joins("elsewhere"))
    assert "has none of the results that this checkpoint" in told
    assert "correct iceberg.catalog if it leads to another server or catalog now, or choose a new checkpoint.location" in told
    (tmp_path / "moved").mkdir()
    shutil.copy(tmp_path / "tables" / "catalog.db", tmp_path / "moved")
    assert run_inline(with_state(tmp_path, "one", joins=joins("moved")), "--until-idle").exit_code == 0


@pytest.mark.parametrize("where", ["local", "s3"])
def test_of_many_who_claim_an_output_at_once_one_has_it(where: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    root: Root = tmp_path / "out" if where == "local" else request.getfixturevalue("s3").bucket() / "out"
    claim_directory("files.path", str(root), ONE, takes=False)
    together, refusals = threading.Barrier(8), []

    def claim(number: int) -> None:
        together.wait()
        try:
            claim_directory("files.path", str(root), Owner(str(number), f"state/{number}"), takes=True)
        except OwnedElsewhere as error:
            refusals.append(str(error))

    threads = [threading.Thread(target=claim, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    marker = json.loads(ObjectStorage(str(root)).get(MARKER))
    assert len(refusals) == 7
    assert all(f"another checkpoint, {marker['location']}" in refusal for refusal in refusals)


def test_a_marker_that_says_nothing_is_told(tmp_path: Path) -> None:
    claim_directory("files.path", str(tmp_path), ONE, takes=True)
    (tmp_path / MARKER).write_text("{}")
    with pytest.raises(SinkError, match="does not say which checkpoint's results these are; remove the directory, or this file"):
        claim_directory("files.path", str(tmp_path), OTHER, takes=False)
