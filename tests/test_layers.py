"""The architecture's layers: who may import whom ([tool.importlinter]), and what importing the domain may load."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from streamjoin.manifest import sinks, sources

ROOT = Path(__file__).resolve().parent.parent
SOURCES = (ROOT / "engine" / "streamjoin", ROOT / "engine" / "streamjoin_research", ROOT / "operator" / "streamjoin_operator")
SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
CONTRACTS = {contract["id"]: contract for contract in SETTINGS["contracts"]}

IMPORT_EACH = """
import importlib, sys
for module in sys.argv[2:]:
    importlib.import_module(module)
    loaded = [name for name in sys.argv[1].split() if name in sys.modules]
    if loaded:
        sys.exit(f"importing {module} loads {', '.join(loaded)}")
"""


def run_python(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(str(source.parent) for source in SOURCES)}
    command = [sys.executable, *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=environment, check=False)


def domain_modules() -> list[str]:
    """Every module of the packages that the domain's contract names."""
    modules = []
    for name in CONTRACTS["domain"]["source_modules"]:
        path = ROOT / "engine" / Path(*name.split("."))
        files = [path.with_suffix(".py")] if path.with_suffix(".py").exists() else sorted(path.rglob("*.py"))
        assert files, f"{name}: no such module; mend [tool.importlinter] in pyproject.toml"
        for file in files:
            parts = file.relative_to(ROOT / "engine").with_suffix("").parts
            modules.append(".".join(parts[:-1] if parts[-1] == "__init__" else parts))
    return modules


def test_each_layer_imports_only_those_below_it() -> None:
    done = run_python("-c", "from importlinter.cli import lint_imports_command as lint; lint()", "--no-cache")
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(CONTRACTS)} kept, 0 broken" in done.stdout


def test_importing_the_domain_loads_no_engine() -> None:
    done = run_python("-c", IMPORT_EACH, "pyarrow pyspark py4j numba pandas obstore kubernetes", *domain_modules())
    assert done.returncode == 0, done.stderr


def test_what_runs_in_tasks_loads_no_manifest() -> None:
    """Readers and writers are in the modules of the functions that open sources and sinks, which have the manifest's models as types."""
    openers = {kind.opener.partition(":")[0] for kind in (*sources.SOURCES.values(), *sinks.SINKS.values())}
    modules = (*CONTRACTS["tasks"]["source_modules"], *sorted(filter(None, openers)))
    done = run_python("-c", IMPORT_EACH, "streamjoin.job streamjoin.manifest", *modules)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.name)
def test_every_folder_of_modules_is_a_package(source: Path) -> None:
    """The import linter sees no module in a folder without an __init__.py."""
    folders = {file.parent for file in source.rglob("*.py")}
    assert source in folders
    assert [str(folder) for folder in folders if not (folder / "__init__.py").exists()] == []


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.name)
def test_no_file_has_more_than_500_lines(source: Path) -> None:
    lengths = {str(file.relative_to(source)): len(file.read_text().splitlines()) for file in source.rglob("*.py")}
    assert {name: lines for name, lines in lengths.items() if lines > 500} == {}
