"""The archive of Java's classes is made once, by a process of its own after the first run, and what it meets on its way harms nobody."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from streamjoin.runner import archive as making
from streamjoin.runner import classes
from waiting import PATIENCE_SECONDS, wait_for

PROGRAM = """#!/bin/sh
echo "$$ $(ps -o ni= -o ppid= -p $$) $*" >> {directory}/started
while [ ! -e {directory}/may-end ]; do sleep 0.05; done
echo done >> {directory}/started
"""


@pytest.fixture
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A Python environment without an archive, whose Python writes down what it is to do."""
    python = tmp_path / "python"
    python.write_text(PROGRAM.format(directory=tmp_path))
    python.chmod(0o755)
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "venv"))
    monkeypatch.setattr(sys, "executable", str(python))
    monkeypatch.delenv(classes.NEVER)
    yield tmp_path
    (tmp_path / "may-end").touch()
    if (tmp_path / "started").exists():
        wait_for("the processes end", lambda: (tmp_path / "started").read_text().count("done") == started(tmp_path))


def started(directory: Path) -> int:
    path = directory / "started"
    return path.read_text().count("streamjoin.runner.archive") if path.exists() else 0


def make_later() -> None:
    classes.make_later(Path("/java"))


def test_it_is_made_by_a_niced_process_that_is_nobody_s_child_here(environment: Path) -> None:
    make_later()  # and waits for nothing: the process ends when the test lets it
    wait_for("the process starts", lambda: started(environment) == 1)
    number, nice, parent, *command = (environment / "started").read_text().splitlines()[0].split()
    assert int(nice) == min(19, os.nice(0) + 19)
    assert int(parent) != os.getpid()
    assert command == ["-m", "streamjoin.runner.archive", "--if-none"]
    with pytest.raises(ChildProcessError):
        os.waitpid(int(number), os.WNOHANG)


@pytest.mark.parametrize("why", ["it is there", "tests", "a blank", "it has failed", "not writable"])
def test_it_is_not_made_where_it_cannot_be_or_need_not(why: str, environment: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = classes.archive(Path("/java"))
    path.parent.mkdir(parents=True)
    if why == "it is there":
        path.touch()
    elif why == "tests":
        monkeypatch.setenv(classes.NEVER, "1")
    elif why == "a blank":
        monkeypatch.setattr(sys, "prefix", str(environment / "a blank"))
    elif why == "it has failed":
        path.with_suffix(".log").write_text("classes: this runtime shares no classes\n")
    else:
        path.parent.rmdir()
        path.parent.write_text("no directory, as a place is none that nobody may write to\n")
    monkeypatch.setattr(subprocess, "run", lambda *arguments, **options: pytest.fail("a process is started"))
    make_later()


def test_it_is_tried_again_after_a_day_and_at_once_after_a_kill(environment: Path) -> None:
    log = classes.archive(Path("/java")).with_suffix(".log")
    log.parent.mkdir(parents=True)
    log.touch()
    make_later()
    wait_for("the process starts", lambda: started(environment) == 1)
    log.write_text("classes: no\n")
    os.utime(log, (time.time() - classes.AGAIN_SECONDS - 9,) * 2)
    make_later()
    wait_for("the process starts", lambda: started(environment) == 2)


def test_two_never_make_it_at_once_and_one_that_is_there_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "share" / "spark-x.jsa"
    monkeypatch.setattr(making, "find_java", lambda: tmp_path)
    monkeypatch.setattr(making, "archive", lambda home: path)
    monkeypatch.setattr(making, "_make", lambda home, at: at.write_text("made") and at)
    monkeypatch.setattr(os, "environ", dict(os.environ))
    path.parent.mkdir()
    with path.with_suffix(".lock").open("w") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        assert making.make(if_none=True) is None
        assert not path.exists()
    left = path.with_suffix(".unfinished")
    left.touch()  # of one that was killed
    assert making.make(if_none=True) == path
    assert not left.exists()
    assert making.make(if_none=True) is None
    assert making.make() == path, "who asks for it without a condition has it made anew"


SERVER = """
import socket, socketserver, sys
from streamjoin.runner.spark import _expect_end

class Handler(socketserver.BaseRequestHandler):
    def handle(self):
        raise error

server = socketserver.TCPServer(("127.0.0.1", 0), Handler)
_expect_end(server)
for error in (ConnectionResetError(104, "reset"), BrokenPipeError(), EOFError(), ValueError("token")):
    with socket.create_connection(server.server_address):
        server.handle_request()
    print(repr(error), "is over", file=sys.stderr)
"""


def test_java_s_end_is_no_error_of_the_server_of_accumulators_and_all_else_is() -> None:
    done = subprocess.run([sys.executable, "-c", SERVER], capture_output=True, text=True, check=True, timeout=PATIENCE_SECONDS)
    *of_its_end, other = done.stderr.split(" is over\n")[:-1]
    assert ["Traceback" in told for told in of_its_end] == [False] * 3
    assert "Traceback" in other


LEAVING = """
import select, socket, struct, sys, threading
from pyspark.accumulators import _start_update_server
from streamjoin.runner.spark import _expect_end

server = _start_update_server("", True, sys.argv[1])
if sys.argv[2] == "expected":
    _expect_end(server)
close, closed = server.close_request, threading.Event()
server.close_request = lambda request: (close(request), closed.set())    # after it was told of
with socket.socket(socket.AF_UNIX) as java:
    java.connect(sys.argv[1])
    java.sendall(struct.pack("!i", 0))
    assert select.select([java], [], [], 30)[0]    # the answer, which nobody reads
assert closed.wait(30)
server.shutdown()
"""


@pytest.mark.parametrize("how", ["expected", "as PySpark has it"])
def test_java_that_leaves_without_the_last_answer_is_not_told_of(how: str, tmp_path: Path) -> None:
    command = [sys.executable, "-c", LEAVING, str(tmp_path / "socket"), how]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=PATIENCE_SECONDS)
    assert ("ConnectionResetError" in done.stderr) == (how != "expected"), done.stderr
    assert done.stderr == "" or how != "expected"
