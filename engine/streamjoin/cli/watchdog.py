"""Ends a run whose driver does not come back: the last resort, and the only one when its own thread waits for an answer that never comes.

A blocked thread cannot be freed, and a thread that is left behind might commit later; so the whole process ends. The next process claims
the checkpoint and goes on after the last commit. The watchdog needs nothing of the thread that it watches.
"""

from __future__ import annotations

import faulthandler
import os
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from streamjoin.cli.exits import Exit, stalled
from streamjoin.cli.poller import Poller
from streamjoin.epoch.progress import Activity
from streamjoin.logs import trace_path

BEATS = 5
"""How often in a row it must be overdue: a process that slept finds all its deadlines over when it wakes, and then goes on at once."""


class Watchdog(Poller):
    """Ends the process where the driver does not come back."""

    def __init__(self, activity: Callable[[], Activity | None], end: Callable[[Activity], object], *, poll_seconds: float = 1.0) -> None:
        """``end`` is called once, in a thread of its own."""
        super().__init__("watchdog", poll_seconds)
        self._activity, self._end = activity, end
        self._beats = 0

    def look(self) -> None:
        activity = self._activity()
        self._beats = self._beats + 1 if activity is not None and activity.is_lost else 0
        if activity is not None and self._beats == BEATS:
            self._end(activity)


def end_process(activity: Activity, log_directory: Path) -> NoReturn:
    """Say what stands still and where each thread is, and end at once, whatever becomes of the words: standard error may be closed. Writes
    to it itself: whoever holds its lock may be the thread that is blocked."""
    try:
        failure = stalled(activity.sentence, trace_of_threads(log_directory))
        os.write(2, f"\nstreamjoin: {failure.sentence}\n".encode())
    finally:
        os._exit(Exit.STALLED)  # nothing may wait for the blocked thread


def trace_of_threads(log_directory: Path) -> str:
    """Write to a file what each thread is doing. Returns words that say where the file is."""
    try:
        path = trace_path(log_directory)
        with open(path, "w", encoding="utf-8") as file:
            faulthandler.dump_traceback(file)
    except OSError as error:
        return f"its trace could not be written to {log_directory}: {error.strerror}"
    return f"trace: {path}"
