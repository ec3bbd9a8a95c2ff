"""The joins of ``examples/tpch`` find in TPC-H's tables what DuckDB finds in them, and the queries' answers follow from it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from harness import run_all
from streamjoin.compilation import compile_job
from streamjoin.controlplane.driver import Driver
from streamjoin.manifest import load
from streamjoin.runner.inline import InlineRunner
from streamjoin.state.storage import ObjectStorage

pytestmark = pytest.mark.xdist_group("tpch")  # one set of tables for all
FOLDER = Path(__file__).parents[1] / "examples" / "tpch"
NAMES = ("e_q5", "band", "q3", "q5", "q10")
QUERIES = ("q3", "q5", "q10")
FILES = 4


def program(name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """A program of the folder, run in the working directory."""
    return subprocess.run([sys.executable, FOLDER / name, *arguments], capture_output=True, encoding="utf-8", check=False)


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tables at scale factor 0.01: 1,500 customers, 15,000 orders and 60,175 items."""
    folder = tmp_path_factory.mktemp("tpch")
    written = program("generate.py", "--scale", "0.01", "--files", str(FILES), "--data", str(folder))
    assert written.returncode == 0, written.stderr
    return folder


@pytest.fixture(autouse=True)
def in_a_directory_of_its_own(tables: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tables are where the manifests look for them."""
    (tmp_path / "out/tpch").mkdir(parents=True)
    (tmp_path / "out/tpch/data").symlink_to(tables)
    monkeypatch.chdir(tmp_path)


def driver(name: str, workers: int, model: str = "adsp") -> Driver:
    """Of the manifest with so many workers."""
    manifest = load((FOLDER / f"{name}.yaml").read_text())
    spec = manifest.spec
    changes = {
        "workers": spec.workers.model_copy(update={"min": workers, "max": workers}),
        "scheme": spec.scheme.model_copy(update={"model": model}),
    }
    job = compile_job(manifest.model_copy(update={"spec": spec.model_copy(update=changes)}))
    return Driver(job, ObjectStorage(job.checkpoint), InlineRunner())


def assert_as_duckdb_finds_it(name: str) -> None:
    checked = program("check.py", name)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert ("the same as from the tables" in checked.stdout) == (name in QUERIES)


@pytest.mark.parametrize("model", ["adsp", "hash"])
@pytest.mark.parametrize("name", NAMES)
def test_a_join_of_tpch_finds_what_duckdb_finds(name: str, model: str) -> None:
    epochs = run_all(driver(name, 3, model))
    assert len(epochs) == FILES
    assert all(sum(held) for held in epochs[-1].held.values())
    assert len(epochs[-1].held) == 3
    assert_as_duckdb_finds_it(name)


@pytest.mark.parametrize("name", QUERIES)
def test_it_does_so_too_where_more_workers_go_on_half_way(name: str) -> None:
    before = driver(name, 2)
    before.start()
    for _ in range(FILES // 2):
        assert before.step() is not None
    before.stop()
    epochs = run_all(driver(name, 4))
    assert [len(epoch.held) for epoch in epochs] == [4] * (FILES - FILES // 2)
    assert_as_duckdb_finds_it(name)


def test_the_check_notices_results_that_are_missing_or_repeated() -> None:
    run_all(driver("q3", 1))
    file = next(Path("out/tpch/q3").glob("*.parquet"))
    content = file.read_bytes()
    file.unlink()
    checked = program("check.py", "q3")
    assert checked.returncode == 1
    assert " 0 missing" not in checked.stdout
    assert "0 unexpected or repeated" in checked.stdout
    for name in ("first", "again"):
        file.with_name(f"{name}.parquet").write_bytes(content)
    checked = program("check.py", "q3")
    assert checked.returncode == 1
    assert "; 0 missing" in checked.stdout
    assert ", 0 unexpected" not in checked.stdout
