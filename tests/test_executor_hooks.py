"""An executor's probe and hook, as a shell runs them beside the files that hosts write."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from operator_parts import streamjoin
from streamjoin.runner.container import DIRECTORY, Presence, seconds_left
from streamjoin_operator import executor_hooks
from streamjoin_operator.derived import derive
from waiting import PATIENCE_SECONDS, wait_for


@pytest.fixture
def workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The container's directory, which does not exist yet."""
    monkeypatch.setenv(DIRECTORY, str(tmp_path / "workers"))
    return tmp_path / "workers"


@pytest.fixture
def process() -> Iterator[subprocess.Popen[bytes]]:
    """Another host, by its process alone."""
    process = subprocess.Popen(["cat"], stdin=subprocess.PIPE)
    yield process
    process.kill()
    process.wait()


def begun(part: str, workers: Path) -> subprocess.Popen[bytes]:
    manifest = derive(streamjoin()).manifest
    assert manifest is not None
    found = executor_hooks.container_part(manifest)
    handler = found["readinessProbe"] if part == "probe" else found["lifecycle"]["preStop"]
    *shell, lines = handler["exec"]["command"]
    return subprocess.Popen([*shell, lines.replace(executor_hooks.WORKERS_PATH, str(workers))], stdout=subprocess.PIPE)


def unready(workers: Path) -> str:
    """What the probe says is missing; empty: the container is ready."""
    probe = begun("probe", workers)
    said, _ = probe.communicate(timeout=PATIENCE_SECONDS)
    assert (probe.returncode == 0) == (not said)
    return said.decode().partition(";")[0]


def test_a_container_is_ready_when_it_has_a_worker_and_all_have_called(workers: Path, process: subprocess.Popen[bytes]) -> None:
    assert unready(workers) == "no worker has begun yet"
    presence = Presence()
    presence.show(is_ready=False)
    assert unready(workers) == "a worker has yet to call the driver"
    presence.show(is_ready=True)
    assert unready(workers) == ""
    (workers / f"{process.pid}.starting").touch()
    assert unready(workers) == "a worker has yet to call the driver", "not all have"
    process.kill()
    process.wait()
    assert unready(workers) == "", "what is gone does not count"
    presence.end()
    assert unready(workers) == "there is no worker"


def test_a_container_that_is_to_go_tells_its_workers_and_waits_for_their_end(workers: Path, process: subprocess.Popen[bytes]) -> None:
    assert begun("hook", workers).wait(PATIENCE_SECONDS) == 0, "it has none"
    workers.mkdir()
    (workers / f"{process.pid}.ready").touch()
    assert seconds_left() is None
    hook = begun("hook", workers)
    left = wait_for("the workers to be told", seconds_left)
    assert 0 < left <= executor_hooks.GRACE_SECONDS
    assert hook.poll() is None
    process.kill()
    process.wait()
    assert hook.wait(PATIENCE_SECONDS) == 0


def test_on_a_laptop_there_are_no_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(DIRECTORY, raising=False)
    monkeypatch.chdir(tmp_path)
    presence = Presence()
    presence.show(is_ready=True)
    presence.end()
    (tmp_path / "leaving").write_text(str(time.time() + 60))
    assert (seconds_left(), os.listdir()) == (None, ["leaving"])
    assert executor_hooks.WORKERS_VARIABLE == DIRECTORY
