"""Queries answered by processes of their own (``worker``), a few at a time, so that none can harm or hold up who asks.

Always holds: a query that is over its time, or whose client has gone, has no process any more; a process that has died or been ended is
replaced for the next query, and no query gets another one's answer.
"""

from __future__ import annotations

import select
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, BinaryIO, cast

from streamjoin.query.catalog import Catalog
from streamjoin.query.continuous import Continuous, Position
from streamjoin.query.errors import QueryError, Why
from streamjoin.query.messages import (
    GRACE_SECONDS,
    TOO_MUCH_MEMORY,
    Form,
    Limits,
    Question,
    Setup,
    Step,
    Stepped,
    Told,
    receive,
    send,
    too_large,
    too_slow,
)

MOST_BYTES = 64 << 20
"""Of an answer."""
WAITING = 16
"""The most queries that may wait for a process."""
START_SECONDS = 30.0
"""How long a process may take to start."""
POLL_SECONDS = 0.1
NICE = 19
STEP_SECONDS = 30.0
"""How long a step of a continuous query may take."""
PIECE_BYTES, STEP_BYTES = 1 << 20, 4 << 20
"""Of a piece of a step's rows, and of all of them."""


class Pool:
    """See the module. Any thread may call it."""

    def __init__(
        self,
        catalog: Catalog,
        *,
        processes: int = 1,
        memory_bytes: int = 256 << 20,
        fetch_bytes: int = 1 << 30,
        idle_seconds: float = 60.0,
    ) -> None:
        """``memory_bytes``: of each query; see :class:`Limits`. No process is started before there is a query, and one ends when nobody has
        asked it for ``idle_seconds``."""
        self.catalog = catalog
        self._setup = Setup(catalog, memory_bytes, MOST_BYTES, idle_seconds, NICE)
        self._limits = Limits(memory_bytes=memory_bytes, fetch_bytes=fetch_bytes)
        self._room, self._turn = threading.Semaphore(processes), threading.Semaphore(processes)
        self._lock = threading.Lock()
        self._idle: list[_Process] = []
        self._running: set[_Process] = set()
        self._waiting = 0
        self._is_closed = False

    def ask(self, sql: str, form: Form, *, rows: int, seconds: float, is_gone: Callable[[], bool] = lambda: False) -> Told:
        """The answer to a query, of at most so many rows, within so many seconds and some for starting a process. Raises QueryError."""
        until = time.monotonic() + seconds
        self._enter(until)
        return cast(Told, self._answered(lambda limits: Question(sql, form, replace(limits, rows=rows)), until, is_gone))

    def step(
        self,
        query: Continuous,
        after: Position,
        upto: int,
        form: Form,
        *,
        most_rows: int,
        piece_rows: int,
        piece_bytes: int = PIECE_BYTES,
        most_bytes: int = STEP_BYTES,
        is_gone: Callable[[], bool] = lambda: False,
    ) -> Stepped:
        """The next rows of a continuous query; see :class:`Step`. Raises QueryError.

        Of all who follow as many are served at once as there are processes: the others wait here, and keep nobody from asking.
        """
        with self._turn:
            until = time.monotonic() + STEP_SECONDS
            self._enter(until)
            steps = partial(Step, query, after, upto, form, most_rows, most_bytes, piece_bytes, piece_rows)
            return cast(Stepped, self._answered(steps, until, is_gone))

    def _answered(self, make: Callable[[Limits], Question | Step], until: float, is_gone: Callable[[], bool]) -> Told | Stepped:
        """The answer to a question, asked within the room that was entered, which is left."""
        try:
            while True:
                question = make(replace(self._limits, seconds=max(0.1, until - time.monotonic())))
                try:
                    told = self._asked(question, is_gone)
                    break
                except _Ended:  # it was idle for too long just now
                    continue
        finally:
            self._room.release()
        if isinstance(told, QueryError):
            raise told
        return told

    def _asked(self, question: Question | Step, is_gone: Callable[[], bool]) -> Told | Stepped | QueryError:
        process = self._process()
        keeps = False
        try:
            told = process.ask(question, is_gone)
            keeps = True
            return told
        finally:
            with self._lock:
                self._running.discard(process)
                keeps = keeps and not self._is_closed and process.setup is self._setup
                if keeps:
                    self._idle.append(process)
            if not keeps:
                process.end()

    def adopt(self, catalog: Catalog) -> None:
        """Answer by another catalog of the join from now on; queries that are being answered are by the one before."""
        with self._lock:
            self.catalog = catalog
            self._setup = replace(self._setup, catalog=catalog)

    def close(self) -> None:
        """End all processes, those that are at work too; who waits for one gets a QueryError."""
        with self._lock:
            self._is_closed = True
            idle, running = list(self._idle), list(self._running)
            self._idle.clear()
        for process in idle:
            process.end()
        for process in running:
            process.kill()

    def _enter(self, until: float) -> None:
        with self._lock:
            if self._waiting >= WAITING:
                raise QueryError(Why.BUSY, f"{WAITING} queries wait already; ask again in a moment")
            self._waiting += 1
        try:
            if not self._room.acquire(timeout=max(0.0, until - time.monotonic())):
                raise QueryError(Why.BUSY, "other queries have taken all of this one's time; ask again in a moment")
        finally:
            with self._lock:
                self._waiting -= 1

    def _process(self) -> _Process:
        with self._lock:
            while self._idle:
                process = self._idle.pop()
                if process.is_alive and process.setup is self._setup:
                    self._running.add(process)
                    return process
                process.end()
            setup = self._setup
        process = _Process(setup)
        with self._lock:
            self._running.add(process)
        return process


class _Ended(Exception):  # noqa: N818
    """A process has ended of itself."""


class _Process:
    """One worker. One thread at a time asks it; ``end`` may come from any."""

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        # Not -m: the classes of what is sent would be those of another module there.
        command = [sys.executable, "-c", "from streamjoin.query.worker import main; main()"]
        self._child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self._in, self._out = cast(BinaryIO, self._child.stdin), cast(BinaryIO, self._child.stdout)
        self._is_new = True
        send(self._in, setup)

    @property
    def is_alive(self) -> bool:
        """One that has been idle for long may be ending just now; ``ask`` finds out."""
        return self._child.poll() is None

    def ask(self, question: Question | Step, is_gone: Callable[[], bool]) -> Told | Stepped | QueryError:
        """Raises QueryError where the process gives no answer, and _Ended where it did not hear the question; it is of no use then."""
        try:
            send(self._in, question)
            until = time.monotonic() + question.limits.seconds + GRACE_SECONDS + self._is_new * START_SECONDS
            self._is_new = False
            while not select.select([self._out], [], [], POLL_SECONDS)[0]:
                if is_gone():
                    raise QueryError(Why.GONE, "the client has gone")
                if time.monotonic() > until:
                    raise too_slow(question.limits)
            told: Any = receive(self._out)
        except (EOFError, BrokenPipeError) as error:
            code = self._child.wait()
            if code == 0:
                raise _Ended from error
            if code == TOO_MUCH_MEMORY:
                raise too_large(question.limits) from error
            text = f"the query's process ended with {code}; ask for fewer rows or columns: it may have needed more memory than there is"
            raise QueryError(Why.LARGE, text) from error
        return cast(Told | Stepped | QueryError, told)

    def kill(self) -> None:
        self._child.kill()

    def end(self) -> None:
        """Not while another thread asks it."""
        self._child.kill()
        self._child.wait()
        for file in (self._in, self._out):
            try:
                file.close()
            except BrokenPipeError:
                continue
