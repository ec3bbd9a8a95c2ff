"""A host of a worker that is no task of Spark's: a process beside an executor, which a short task starts, and which takes no slot.

    python -m streamjoin.runner.beside < request

Always holds: it ends with the worker, when the driver has ended that or is gone; and it ends, with the worker, when the executor's process
is gone. It takes what it needs from standard input, so that no secret is in a command line.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass

import psutil

from streamjoin.runner import host
from streamjoin.runner.worker import Settings


class ExecutorGone(RuntimeError):  # noqa: N818 - an end, not an error
    """The executor that the host was started from has ended."""


@dataclass(frozen=True)
class Executor:
    """The process of an executor."""

    pid: int
    created: float
    """When it began: another process may get its number."""

    @property
    def is_alive(self) -> bool:
        try:
            return psutil.Process(self.pid).create_time() == self.created
        except psutil.Error:
            return False


@dataclass(frozen=True)
class Request:
    """What a task asks of the host that it starts."""

    worker: Settings
    executor: Executor | None
    """None: it is not known, and the host ends with the driver alone."""
    executor_id: str


def start(worker: Settings, environment: dict[str, str]) -> int:
    """Start a host beside this task's executor, and return its process id at once. ``environment``: variables over the task's own."""
    request = Request(worker, _executor(), host.executor_id())
    variables = {**os.environ, **environment, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-m", __spec__.name]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=2, env=variables, start_new_session=True)
    assert process.stdin is not None
    with process.stdin as to:
        to.write(pickle.dumps(request))
    return process.pid


def _executor() -> Executor | None:
    """The Java process that this one descends from."""
    for process in psutil.Process().parents():
        if process.name() == "java":
            return Executor(process.pid, process.create_time())
    return None


def watch(executor: Executor | None) -> Callable[[], None]:
    """A function that raises ExecutorGone once the executor is."""

    def check() -> None:
        if executor is not None and not executor.is_alive:
            raise ExecutorGone

    return check


def main() -> None:
    """Hold the place that the request names."""
    request: Request = pickle.load(sys.stdin.buffer)  # noqa: S301 - of the task that has started this
    os.environ["SPARK_EXECUTOR_ID"] = request.executor_id
    try:
        host.hold(request.worker, check=watch(request.executor))
    except ExecutorGone:
        return


if __name__ == "__main__":
    main()
