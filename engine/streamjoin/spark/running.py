"""What runs in a session for a join of two streaming DataFrames, for as long as a query reads its results.

The parts are two queries that stage (``spark.staging``), and the join's driver, a thread of this process, with workers beside the executors
(``spark.workers``). Queries that read the results ask for them over a socket, which only this user can open (:class:`Office`).

Always holds: the parts run while a query is connected, and end when none is. All that counts is in the checkpoint, so it makes no
difference where they end. A part that fails is what each query is told at its next question; all parts begin anew with the next query.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from multiprocessing.connection import Connection, Listener
from typing import Any

from streamjoin.api.execution import Execution, default_log_directory
from streamjoin.api.loop import Ended, Event
from streamjoin.api.running import log
from streamjoin.job import Job
from streamjoin.results.reader import is_stored
from streamjoin.runner.spark import SparkSettings
from streamjoin.spark.pairs import ALL, PairsError
from streamjoin.spark.staging import Query, Staging
from streamjoin.spark.workers import SessionRunner, has_ended
from streamjoin.state.checkpoint import Checkpoint
from streamjoin.state.storage import ObjectStorage

LOOK_SECONDS = 0.05
END_SECONDS = 60.0
"""An epoch that runs when the parts are to end may take so long; the next run does it again."""
_running: dict[str, Parts] = {}
"""The join that runs, by checkpoint."""
_registering = threading.Lock()


class Parts:
    """See the module. Any thread may call any of its methods."""

    def __init__(self, sides: Sequence[Staging], job: Job, context: Any, *, elastic: bool, prepare: Callable[[], None]) -> None:
        """``prepare`` is called before parts begin."""
        self._sides, self._job, self._context, self._elastic, self._prepare = tuple(sides), job, context, elastic, prepare
        self._lock = threading.RLock()
        """Held by who starts or ends parts, and by who waits for all that is there."""
        self._readers = 0
        self._queries: list[Query] = []
        self._execution: Execution | None = None
        self._thread: threading.Thread | None = None
        self._stop = threading.Event()
        self._ended: Ended | None = None

    @property
    def execution(self) -> Execution | None:
        """The join's driver and its surroundings; None: it does not run."""
        return self._execution

    def enter(self) -> None:
        """A query has come."""
        with _registering:
            self._readers += 1

    def leave(self) -> None:
        """A query has gone."""
        with _registering:
            self._readers -= 1
        with self._lock:
            if not self._readers:
                self._end()

    def more(self) -> int:
        """Have what comes joined, and return the last snapshot with results so far; -1: none is known. Raises PairsError where a part has
        failed."""
        if not self._lock.acquire(blocking=False):  # somebody starts or ends parts, or waits for all that is there
            self._require()
            return -1
        try:
            self._begin(available_now=False)
            self._require()
            self._require_queries()
            return self._last_snapshot()
        finally:
            self._lock.release()

    def all(self) -> int:
        """Have all joined and stored that is there now, and return the last snapshot with results of it; -1: there is none yet. Raises
        PairsError where a part has failed."""
        with self._lock:
            self._end_queries()
            self._begin(available_now=True)
            self._wait(lambda: not any(query.is_active for query in self._queries))
            self._queries = []
            newest = [side.newest() for side in self._sides]
            self._wait(lambda: all(map(_has_passed, self._checkpoint().input.positions, newest)))
            last, storage = self._last_snapshot(), ObjectStorage(self._job.checkpoint)
            self._wait(lambda: is_stored(storage, self._job.joins[0].name, last))
            return last

    def _begin(self, *, available_now: bool) -> None:
        self._register()
        if not self._queries:
            self._prepare()
            for side in self._sides:
                self._queries.append(side.start(available_now=available_now))
        if self._thread is None:
            self._stop, self._ended = threading.Event(), None
            settings = SparkSettings(
                default_log_directory(self._job).absolute(),
                address=_address(self._context),
                stabilization_seconds=self._job.stabilization_seconds,
            )
            runner = partial(SessionRunner, self._context, settings)
            self._execution = Execution(self._job, runner, self._tell, settings.log_directory, elastic=self._elastic)
            loop = self._execution.loop(stop=self._stop, until_idle=False, run_seconds=None)
            self._thread = threading.Thread(target=loop.run, name="streamjoin", daemon=True)
            self._thread.start()

    def _end(self) -> None:
        self._end_queries()
        if self._thread is not None:
            self._stop.set()
            self._thread.join(END_SECONDS)
            self._thread = self._execution = self._ended = None
        with _registering:
            if _running.get(self._job.checkpoint) is self:
                del _running[self._job.checkpoint]

    def _end_queries(self) -> None:
        queries, self._queries = self._queries, []
        for query in queries:
            query.stop()

    def _register(self) -> None:
        """Raises PairsError where another join runs in this checkpoint."""
        deadline = time.monotonic() + END_SECONDS
        while True:
            with _registering:
                other = _running.setdefault(self._job.checkpoint, self)
            if other is self:
                return
            if other._readers or time.monotonic() > deadline:
                raise PairsError(f"checkpoint {self._job.checkpoint}: a query reads another join in it; stop that query first")
            time.sleep(LOOK_SECONDS)

    def _require(self) -> None:
        """Raises PairsError where a part has failed."""
        if has_ended(self._context):
            raise PairsError("the Spark session has ended; the next one goes on where this one was")
        if self._ended is not None:
            raise PairsError(f"the join has ended: {self._ended.failure or 'it was stopped'}")
        for query in self._queries:
            if query.failure is not None:
                raise PairsError(f"{query.name}: the query that stages it has failed: {query.failure}; mend the cause, and start again")

    def _require_queries(self) -> None:
        """Raises PairsError where a query that stages whatever comes was stopped."""
        for query in self._queries:
            if not query.is_active:
                self._require()
                raise PairsError(
                    f"{query.name}: the query that stages it was stopped; start the query of the results again, and it is, too"
                )

    def _wait(self, is_done: Callable[[], bool]) -> None:
        while not is_done():
            self._require()
            time.sleep(LOOK_SECONDS)
        self._require()

    def _checkpoint(self) -> Checkpoint:
        assert self._execution is not None, "it runs"
        return self._execution.driver.checkpoint

    def _last_snapshot(self) -> int:
        return self._checkpoint().snapshots.of(self._job.joins[0].name).next_id - 1

    def _tell(self, event: Event) -> None:
        if isinstance(event, Ended):
            self._ended = event
        else:
            log(event)


def _has_passed(position: dict[str, Any] | None, number: int) -> bool:
    """Whether a source of staged batches stands behind this one."""
    if number < 0:
        return True
    return position is not None and (position["mark"][0], position["file"] is None) >= (number, True)


def _address(context: Any) -> str:
    """The address by which workers reach this process."""
    return "127.0.0.1" if is_local(context) else str(context.getConf().get("spark.driver.host"))


def is_local(context: Any) -> bool:
    """Whether the session's executor is its driver."""
    return str(context.master).startswith("local") and not str(context.master).startswith("local-cluster")


class Office:
    """Where the queries that read a join's results ask for them."""

    def __init__(self, parts: Parts) -> None:
        """Raises OSError."""
        self.parts = parts
        self._listener = Listener(family="AF_UNIX", backlog=64)  # in a directory that this user alone may enter
        self.address = str(self._listener.address)
        threading.Thread(target=self._accept, name="streamjoin-office", daemon=True).start()

    def _accept(self) -> None:
        while True:
            connection = self._listener.accept()
            threading.Thread(target=self._serve, args=(connection,), name="streamjoin-reader", daemon=True).start()

    def _serve(self, connection: Connection) -> None:
        self.parts.enter()
        try:
            while True:
                connection.send(self._answer(connection.recv()))
        except (EOFError, OSError):
            return
        finally:
            connection.close()
            self.parts.leave()

    def _answer(self, asked: str) -> tuple[bool, int | str]:
        """Whether it is done, and the last snapshot, or why it is not."""
        try:
            return True, self.parts.all() if asked == ALL else self.parts.more()
        except Exception as error:
            return False, str(error)
