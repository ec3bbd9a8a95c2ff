"""What ``make setup`` installs and when it has nothing to do, with a uv that only writes down what it is told (tools/setup.py)."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from waiting import PATIENCE_SECONDS

ROOT = Path(__file__).resolve().parents[1]
UV = """
import os, pathlib, sys
arguments, clone = sys.argv[1:], pathlib.Path(sys.argv[0]).parent.parent
with (clone / "asked").open("a") as asked:
    print(*arguments, file=asked)
if "--constraint" in arguments and (clone / "lacks").exists():
    sys.exit(1)
if arguments[0] == "venv":
    python = pathlib.Path(arguments[-1], "bin", "python")
    python.parent.mkdir(parents=True)
    python.symlink_to(sys.executable)
"""
PIP = """
import pathlib, sys
if "list" in sys.argv:
    print("global.index-url='https://mirror/simple'\\n:env:.cert='/ca.pem'\\nglobal.timeout='9'")
else:
    uv = pathlib.Path(sys.argv[sys.argv.index("--target") + 1], "bin", "uv")
    uv.parent.mkdir(parents=True)
    uv.write_text({script!r})
    uv.chmod(0o755)
"""
JAVA = "print({home!r})"


class Clone:
    """The files that setup takes, beside a uv and an engine that knows a Java."""

    def __init__(self, root: Path) -> None:
        self.root = root
        for name in ("tools/setup.py", "locks/developer.txt", "pyproject.toml", "engine/streamjoin_research/pyproject.toml"):
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, root / name)
        self.java = root / "java"
        self._program(self.java / "bin" / "java", "")
        self._program(root / "bin" / "uv", UV)
        for module, text in {"java": JAVA.format(home=str(self.java)), "archive": "open('archived', 'a').write('x')"}.items():
            (root / "streamjoin" / "runner").mkdir(parents=True, exist_ok=True)
            (root / "streamjoin" / "runner" / f"{module}.py").write_text(text)

    def _program(self, path: Path, text: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"#!{sys.executable}\n{text}")
        path.chmod(0o755)

    def setup(self, *extras: str, rc: int = 0, **environment: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, str(self.root / "tools" / "setup.py"), *extras]
        variables = {**os.environ, "PATH": f"{self.root / 'bin'}{os.pathsep}{os.environ['PATH']}", **environment}
        done = subprocess.run(command, env=variables, capture_output=True, text=True, check=False, timeout=PATIENCE_SECONDS)
        assert done.returncode == rc, done.stderr
        return done

    def asked(self) -> list[str]:
        """What uv was asked since the last call."""
        path = self.root / "asked"
        lines = path.read_text().splitlines() if path.exists() else []
        path.unlink(missing_ok=True)
        return lines

    def installed(self) -> list[str]:
        """The extras of each installation of this project since the last call."""
        return [found[1] for line in self.asked() if (found := re.search(r"--editable=\S+\[(\S+)\]", line))]


@pytest.fixture
def clone(tmp_path: Path) -> Clone:
    return Clone(tmp_path)


def test_a_fresh_clone_gets_what_a_laptop_needs_and_is_told_what_to_type_next(clone: Clone) -> None:
    done = clone.setup()
    made, installed = clone.asked()
    assert made == f"venv --quiet --python {sys.executable} {clone.root / '.venv'}"
    assert f"--editable={clone.root}[engine,operator] --constraint {clone.root}/locks/developer.txt" in installed
    assert done.stdout.endswith("next: make demo\nor:   . .venv/bin/activate\n      streamjoin run examples/band.yaml\n")
    assert len(done.stdout.splitlines()) < 8
    assert not (clone.root / "archived").exists()
    assert (ROOT / "examples" / "band.yaml").exists()


def test_what_is_there_is_not_installed_again_and_a_narrower_request_takes_nothing_away(clone: Clone) -> None:
    clone.setup("tables", "docs")
    assert clone.installed() == ["docs,engine,operator,tables"]
    for extras in ((), ("tables",), ("docs", "tables"), ("engine",)):
        assert clone.setup(*extras).stdout == ""
    assert clone.asked() == []
    clone.setup("cassandra")
    assert clone.installed() == ["cassandra,engine,operator"]
    assert json.loads((clone.root / ".venv" / "setup.json").read_text())["extras"] == ["cassandra", "docs", "engine", "operator", "tables"]
    assert clone.setup("tables", "cassandra", "docs").stdout == ""


def test_what_reproduces_papers_is_installed_from_its_own_directory(clone: Clone) -> None:
    clone.setup("research")
    [installed] = [line for line in clone.asked() if "--editable=" in line]
    assert f"--editable={clone.root}[engine,operator] --editable={clone.root}/engine/streamjoin_research " in installed
    assert clone.setup("research").stdout == ""


PROJECTS = ("pyproject.toml", "engine/streamjoin_research/pyproject.toml")


@pytest.mark.parametrize("change", [*PROJECTS, "locks/developer.txt", "tools/setup.py", "java", "stamp", "python"])
def test_a_change_makes_the_stamp_void(clone: Clone, change: str) -> None:
    clone.setup("tables")
    clone.asked()
    if change == "java":
        shutil.rmtree(clone.java)
        clone._program(clone.root / "other" / "bin" / "java", "")
        (clone.root / "streamjoin" / "runner" / "java.py").write_text(JAVA.format(home=str(clone.root / "other")))
    elif change == "stamp":
        (clone.root / ".venv" / "setup.json").write_text('{"digest": "of an older program", "java": "/"}')
    elif change == "python":
        (clone.root / ".venv" / "bin" / "python").unlink()
    else:
        with (clone.root / change).open("a") as file:
            file.write("\n# changed\n")
    clone.setup()
    assert clone.asked()[-1].count("[engine,operator]") == 1
    assert clone.setup().stdout == ""


def test_what_tests_share_is_made_with_their_packages_alone(clone: Clone) -> None:
    clone.setup("docs")
    assert not (clone.root / "archived").exists()
    clone.setup("dev")
    assert (clone.root / "archived").read_text() == "x"


def test_where_locked_versions_are_missing_others_are_taken(clone: Clone) -> None:
    (clone.root / "lacks").touch()
    assert "not all versions of locks/developer.txt can be had here" in clone.setup().stdout
    assert ["--constraint" in line for line in clone.asked() if "--editable=" in line] == [True, False]


def test_an_extra_that_there_is_none_of_is_refused_with_those_that_there_are(clone: Clone) -> None:
    said = clone.setup("table", rc=1).stderr
    known = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert said == f"setup: table: is no extra of pyproject.toml; take {', '.join(sorted({*known, 'research'}))}\n"
    assert clone.asked() == []


def test_a_python_that_is_too_old_says_so(clone: Clone) -> None:
    program = (clone.root / "tools" / "setup.py").read_text()
    old, count = re.subn(r"^OLDEST = .*\nNEWER = .*$", "OLDEST, NEWER = (9, 9), ()", program, flags=re.MULTILINE)
    assert count == 1
    (clone.root / "tools" / "setup.py").write_text(old)
    said = clone.setup(rc=1).stderr
    assert said.startswith(f"setup: Python 3.11 or newer is needed, and {sys.executable} is ")
    assert "make PYTHON=/path/to/python3" in said


def test_without_uv_pip_brings_one_and_its_settings_are_uv_s(clone: Clone) -> None:
    told, hidden, empty = clone.root / "told", clone.root / "hidden", clone.root / "empty"
    empty.mkdir()
    (clone.root / "bin" / "uv").rename(hidden)
    hidden.write_text(hidden.read_text().replace(".parent.parent", ".parent"))
    script = f'#!/bin/sh\necho $UV_DEFAULT_INDEX $SSL_CERT_FILE >> {told}\nexec {hidden} "$@"\n'
    (clone.root / "pip").mkdir()
    (clone.root / "pip" / "__init__.py").touch()
    (clone.root / "pip" / "__main__.py").write_text(PIP.format(script=script))
    clone.setup(PATH=str(empty), PYTHONPATH=str(clone.root), SSL_CERT_FILE="/own.pem")
    assert clone.installed() == ["engine,operator"]
    assert set(told.read_text().splitlines()) == {"https://mirror/simple /own.pem"}
    assert clone.setup(PATH=str(empty)).stdout == ""


def test_every_target_brings_the_extras_that_it_needs() -> None:
    listed = subprocess.run(["make", "-pn", "help"], cwd=ROOT, capture_output=True, text=True, check=True, timeout=PATIENCE_SECONDS).stdout
    targets = {found[1]: found[2].split() for found in re.finditer(r"^([a-z0-9-]+): (.*)$", listed, re.MULTILINE)}
    recipes = (ROOT / "Makefile").read_text()
    assert targets["demo"] == ["setup"]
    for target, extra in {"lint": "test", "e2e": "test", "docs": "docs", "packages": "release", "lock": "release"}.items():
        assert targets[target] == [f"setup-{extra}"]
    known = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    [tests] = re.findall(r"tools/setup.py (dev .*)", recipes)
    assert {*tests.split(), "engine", "operator"} == {*known, "research"}, "tests and mypy look at everything"
