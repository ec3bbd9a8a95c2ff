"""Hosts of workers as forks of one process that has loaded what they need: a Python of its own would take each a second of a core.

Run as a program this is that process, see :func:`serve`. It has one thread and no connection but to whoever asks it, so that a host
finds itself as if it had loaded everything itself.

Always holds: it ends when the process that started it does; a host does not, it ends when its worker has.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from streamjoin.runner.worker import Settings


@dataclass(frozen=True)
class Request:
    """For a host."""

    settings: Settings
    environment: Mapping[str, str]
    silent_beats: int
    """After so many its workers take the driver for gone."""
    first: str
    """Python that it runs before all else, with the modules ``host`` and ``worker`` at hand."""


class ForkedHost:
    """A process that holds a worker's place. It has begun when this is made."""

    def __init__(self, request: Request) -> None:
        ours, theirs = socket.socketpair()
        with theirs, _lock:
            socket.send_fds(_server(), [b"."], [theirs.fileno()])
        self._answers: IO[Any] = ours.makefile("rwb")
        ours.close()
        pickle.dump(request, self._answers)
        self._answers.flush()
        self.pid: int = pickle.load(self._answers)
        self._has_ended = threading.Event()

    def wait(self) -> str:
        """Until it has ended, however that was; why, for people. To be called once."""
        said = ""
        while isinstance(answer := pickle.load(self._answers), str):
            said = answer
        self._has_ended.set()
        self._answers.close()
        return said or f"its host ended with code {answer}"

    def has_ended(self, seconds: float) -> bool:
        """Whether ``wait`` returns within so long."""
        return self._has_ended.wait(seconds)

    def kill(self) -> None:
        if not self._has_ended.is_set():
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)


_lock = threading.Lock()


@functools.cache
def _server() -> socket.socket:
    """To the process that forks. It ends when this is closed, with this process at the latest."""
    ours, theirs = socket.socketpair()
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    with theirs:
        process = subprocess.Popen([sys.executable, __file__], stdin=theirs, env=environment)

    def end() -> None:
        ours.close()
        process.wait()

    atexit.register(end)
    return ours


def serve(asked: socket.socket) -> None:
    """Fork for each request: first a keeper, which forks the host, gives its process and then how it ended."""
    from streamjoin.runner import host

    host.load()  # once, in place of each host
    while True:
        _, descriptors, _, _ = socket.recv_fds(asked, 1, 1)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        if not descriptors:
            return
        with socket.socket(fileno=descriptors[0]) as connection:
            if os.fork() == 0:
                asked.close()
                _keep(connection)


def _keep(connection: socket.socket) -> None:
    """Never returns."""
    with connection.makefile("rwb") as answers:
        request = pickle.load(answers)
        process = os.fork()
        if process == 0:
            _be_host(request, answers)
        for answer in (lambda: process, lambda: os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])):
            with contextlib.suppress(OSError):  # whoever asked may be gone
                pickle.dump(answer(), answers)
                answers.flush()
    os._exit(0)


def _be_host(request: Request, answers: IO[Any]) -> None:
    """Never returns."""
    from streamjoin.runner import host, worker

    code = 1
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # its workers' tracebacks
        os.environ.clear()
        os.environ.update(request.environment)
        worker.SILENT_BEATS = request.silent_beats
        exec(request.first, {"host": host, "worker": worker})
        host.hold(request.settings)
        code = 0
    except Exception as error:
        pickle.dump(f"{type(error).__name__}: {error}", answers)
        answers.flush()
    finally:
        os._exit(code)


if __name__ == "__main__":
    sys.modules[Path(__file__).stem] = sys.modules["__main__"]  # where requests say that they come from
    with socket.socket(fileno=os.dup(0)) as asking:
        serve(asking)
