"""What a run says of skipped tests, and that CI's takes them for failures: by small suites, each run by a pytest of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from waiting import PATIENCE_SECONDS

TESTS = Path(__file__).resolve().parent

MODULE = """
import pytest

@pytest.fixture(scope="session")
def server():
    pytest.skip("no kube-apiserver (make kubernetes)")

@pytest.mark.parametrize("number", range(3))
def test_asks_a_server(server, number): pass

@pytest.mark.skipif(True, reason="no prometheus (apt-get install prometheus)")
def test_asks_prometheus(): pass

def test_asks_an_address():
    pytest.skip("this machine has no ::1: [Errno 99] Cannot assign requested address")

@pytest.mark.xfail
def test_is_known_to_fail(): assert False

def test_needs_nothing(): pass
"""


def run(directory: Path, module: str, *, strict: bool) -> tuple[int, list[str]]:
    """The exit code, and the lines of the output. Tests run in a process beside the one that prints, as with ``make test``."""
    (directory / "test_module.py").write_text(module)
    alone = {"PYTHONPATH": str(TESTS), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    environment = {**os.environ, **alone, "STREAMJOIN_NO_SKIPS": str(int(strict))}
    plugins = (f"-p{name}" for name in ("skips", "xdist", "no:cacheprovider"))
    command = [sys.executable, "-m", "pytest", *plugins, "-n1", "--rootdir=.", "-c", os.devnull]
    done = subprocess.run(command, cwd=directory, env=environment, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False)
    return done.returncode, done.stdout.splitlines()


def test_a_run_ends_with_what_was_skipped_and_what_brings_it(tmp_path: Path) -> None:
    code, lines = run(tmp_path, MODULE, strict=False)
    assert code == 0
    assert lines[-2].startswith("skipped: 5 tests: no kube-apiserver (make kubernetes), ")
    assert "no prometheus (apt-get install prometheus)" in lines[-2]
    assert "1 passed, 5 skipped, 1 xfailed" in lines[-1]


def test_where_every_program_is_to_be_had_a_skip_is_a_failure(tmp_path: Path) -> None:
    code, lines = run(tmp_path, MODULE, strict=True)
    assert code == 1
    assert "skipped: no kube-apiserver (make kubernetes); STREAMJOIN_NO_SKIPS=1 makes that a failure" in lines
    assert "skipped: no prometheus (apt-get install prometheus); STREAMJOIN_NO_SKIPS=1 makes that a failure" in lines
    assert lines[-2].startswith("skipped: 1 test: this machine has no ::1")
    assert "1 passed, 1 skipped, 1 xfailed, 4 errors" in lines[-1]


def test_a_module_that_is_skipped_as_a_whole_is_a_failure_too(tmp_path: Path) -> None:
    code, lines = run(tmp_path, "import pytest\npytest.importorskip('there_is_no_such_module')\n", strict=True)
    assert code != 0
    assert any(line.startswith("skipped: could not import 'there_is_no_such_module'") and "makes that a failure" in line for line in lines)


def test_a_run_that_skips_nothing_says_nothing_of_it(tmp_path: Path) -> None:
    code, lines = run(tmp_path, "def test_needs_nothing(): pass\n", strict=True)
    assert code == 0
    assert not any(line.startswith("skipped") for line in lines)
