"""Workers in a user's Spark session: processes beside its executors, which short tasks start (``runner.beside``).

A worker of a job of its own (``runner.spark``) is a task for as long as it lives. Here the session's slots are for the micro-batches that
feed the join: in ``local[2]`` two workers as tasks would leave none.

Always holds: a worker takes a slot for as long as it takes to start a process. It ends with its executor, with the join, and with the
session. A place whose process is gone, and does not come back, is brought anew, wherever Spark has a slot free.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from functools import partial
from typing import Any

from streamjoin.api.runners import Tell, told
from streamjoin.runner import beside
from streamjoin.runner.pool import Pool
from streamjoin.runner.spark import ENVIRONMENT, SparkHosts, SparkRunner, SparkSettings
from streamjoin.runner.worker import Settings

LOOK_SECONDS = 0.5
START_SECONDS = 120.0
"""A process that was started has so long to call, as it may have to compile the kernels first."""
VACANT_SECONDS = 10.0
"""A host brings another process in a few seconds. A place that is empty for longer has lost its host."""


class SessionRunner(SparkRunner):
    """See the module. The session is another's: it is neither started nor ended here."""

    def __init__(self, context: Any, settings: SparkSettings, tell: Tell) -> None:
        super().__init__(settings)
        self._session_context, self._tell = context, tell

    def start(self, workers: Sequence[int], least: int = 1) -> None:
        with told(workers, self._tell):
            super().start(workers, least)

    def _start_context(self, workers: int) -> Any:
        return self._session_context

    def _end_context(self) -> None:
        """It goes on."""

    def _bring_hosts(self, pool: Pool) -> SparkHosts:
        self._hosts = SessionHosts(self.context, pool, self._settings)
        return self._hosts


class SessionHosts(SparkHosts):
    """See the module."""

    def __init__(self, context: Any, pool: Pool, settings: SparkSettings) -> None:
        super().__init__(context, pool, settings)
        self._given_up: dict[int, threading.Event] = {}
        """By place: its host is to be left, as another is to be brought."""

    def lost(self) -> str | None:
        return "the Spark session has ended" if has_ended(self._context) else None

    def _cancel(self, place: int) -> None:
        given_up = self._given_up.get(place)
        if given_up is not None:
            given_up.set()

    def _occupy(self, place: int, worker: Settings) -> str:
        given_up = self._given_up[place] = threading.Event()
        failure = self._run_job(place, worker, partial(beside.start, environment=ENVIRONMENT))
        return failure or self._watched(place, given_up)

    def _watched(self, place: int, given_up: threading.Event) -> str:
        seen, patience = time.monotonic(), START_SECONDS
        while place in self._wanted and not self._stopping.is_set() and self.lost() is None:
            if given_up.wait(LOOK_SECONDS):
                return "it was given up"
            now = time.monotonic()
            if place in self._pool.pids:
                seen, patience = now, VACANT_SECONDS
            elif now - seen > patience:
                return f"its process was not there for {patience:.0f} s"
        return "it is not needed"


def has_ended(context: Any) -> bool:
    """Whether a SparkContext has been stopped, or its Java process is gone."""
    try:
        return context._jsc is None or bool(context._jsc.sc().isStopped())
    except Exception:
        return True
