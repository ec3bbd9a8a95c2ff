"""Processes of ``streamjoin.query.worker`` as forks of one that has loaded what they need: a Python of its own would take each a second of
a core. For tests whose point is what is asked; ``test_query_api.py`` has the processes that a pool starts by itself."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Sequence
from multiprocessing import reduction
from typing import Any

from streamjoin.query import worker

PROCESSES = multiprocessing.get_context("forkserver")
PRELOADED = (
    *("streamjoin.cli.run", "streamjoin.cli.view", "streamjoin.runner.inline", "pyarrow.parquet"),
    *("streamjoin.query.worker", "harness", "pytest"),
)
"""All that is forked in the tests needs: a process has one server of forks."""
PROCESSES.set_forkserver_preload([*PRELOADED])
PIPE = -1


class Given:
    """A file of this process, which another one is given. Sent, it is the number that it has there."""

    def __init__(self, number: int) -> None:
        self._number = number

    def __reduce__(self) -> tuple[Callable[[Any], int], tuple[Any]]:
        return taken, (reduction.DupFd(self._number),)


def taken(given: Any) -> int:
    return int(given.detach())


def answer(questions: int, answers: int) -> None:
    """What a process does."""
    os.dup2(questions, 0)
    os.dup2(answers, 1)
    os.close(questions)
    os.close(answers)
    worker.main()


class Popen:
    """In the place of ``subprocess.Popen``, as far as a pool of queries asks it."""

    def __init__(self, command: Sequence[str], stdin: int, stdout: int) -> None:
        assert (stdin, stdout) == (PIPE, PIPE)
        assert "streamjoin.query.worker" in command[-1]
        hears, asks = os.pipe()
        gets, tells = os.pipe()
        self._process = PROCESSES.Process(target=answer, args=(Given(hears), Given(tells)), daemon=True)
        self._process.start()
        os.close(hears)
        os.close(tells)
        self.stdin, self.stdout = os.fdopen(asks, "wb"), os.fdopen(gets, "rb")

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self) -> int | None:
        self._process.join()
        return self._process.exitcode

    def kill(self) -> None:
        self._process.kill()
