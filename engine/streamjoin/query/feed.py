"""Looks up which snapshots of a join are stored, for any number of followers: at most every ``LOOK_SECONDS``, whoever asks.

Always holds: an index object is read once, as it never changes; nothing is looked up while nobody asks.
"""

from __future__ import annotations

import threading
import time
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from streamjoin.query.continuous import Position, let_go
from streamjoin.query.errors import QueryError, Why
from streamjoin.results.reader import INDEX, Run, Snapshot, folder, index_path, outermost, range_of, read_run
from streamjoin.snapshots.timeline import Timeline
from streamjoin.state.log import path_of, read_latest
from streamjoin.state.storage import Missing, Storage, StorageError

Found = TypeVar("Found")
LOOK_SECONDS = 0.5
STILL_SECONDS = 2.0
"""The last commit is read, for whether the join has ended, once it has been the last for so long."""
ATTEMPTS, AGAIN_SECONDS = 5, 0.05
STEP_ROWS = 100_000
"""Snapshots that come to more are taken in several steps."""


@dataclass(frozen=True)
class Listing:
    """The snapshots that are stored at some moment."""

    snapshots: tuple[Snapshot, ...]
    """Ascending."""
    looked_at: float
    """By the monotonic clock."""
    end: int | None = None
    """The join has ended: snapshots from this one on never come. None: it has not, as far as is known."""

    def require(self, position: Position, last: int) -> None:
        """Raises QueryError where some of the snapshots after a position, up to ``last``, have been let go. O(log n)."""
        begin = self._begin(position)
        gone_up_to = last if begin == len(self.snapshots) else self.snapshots[begin].id - 1 if begin == 0 else -1
        if gone_up_to >= position.following:
            raise let_go(position, gone_up_to)

    def upto(self, position: Position) -> int | None:
        """The last snapshot of the next step after a position; None: there is nothing to step to. O(log n + step).

        Snapshots are stored in their order: one that is missing between others is on its way.
        """
        rows, found = 0, None
        for number, snapshot in enumerate(self.snapshots[self._begin(position) :], position.following):
            rows += snapshot.rows
            if snapshot.id != number or (found is not None and rows > STEP_ROWS):
                break
            found = snapshot.id
        return found

    def _begin(self, position: Position) -> int:
        return bisect_left(self.snapshots, position.following, key=lambda each: each.id)


class Feed:
    """One join's. Any thread may call it."""

    def __init__(self, storage: Storage, join: str, *, look_seconds: float = LOOK_SECONDS) -> None:
        self._storage, self._join, self._look_seconds = storage, join, look_seconds
        self._lock = threading.Lock()
        self._runs: dict[tuple[int, int], Run] = {}
        self._listing = Listing((), float("-inf"))
        self._last: tuple[str, float] = "", 0.0
        self._end: int | None = None

    def look(self, since: float | None = None) -> Listing:
        """The stored snapshots, looked up after ``since`` (by the monotonic clock), or not long ago. Raises QueryError. O(snapshots)."""
        with self._lock:
            if self._listing.looked_at < (time.monotonic() - self._look_seconds if since is None else since):
                began = time.monotonic()
                end = _explained(lambda: self._ended(began))
                self._listing = Listing(_explained(self._snapshots), began, end)
            return self._listing

    def _ended(self, now: float) -> int | None:
        """``Listing.end``. A join that runs commits all the time, and an entry may be large: so only one that stays the last is read."""
        last = next(reversed(self._storage.list("log")), "")
        path, since = self._last
        if last != path:
            self._last, self._end = (last, now), None
        elif self._end is None and since <= now - STILL_SECONDS:
            latest = read_latest(self._storage)
            self._last = last, float("inf")  # it has been read
            if latest is not None and latest.checkpoint.is_over and path_of(latest.sequence) == last:
                self._end = latest.checkpoint.snapshots.of(self._join).next_id
        return self._end

    def ends(self) -> tuple[int, int]:
        """The last snapshot that is stored now, and the last that has ended, which may wait for that; -1: none. Raises QueryError.

        O(snapshots).
        """
        # The commit first: what it names no more as waiting is listed, or has been let go.
        latest = _explained(lambda: read_latest(self._storage))
        timeline = Timeline() if latest is None else latest.checkpoint.snapshots.of(self._join)
        named = timeline.closed[0].id if timeline.closed else timeline.next_id
        listed = self.look(time.monotonic()).snapshots
        stored = max(named - 1, listed[-1].id if listed else -1)
        return stored, max(stored, timeline.next_id - 1)

    def _snapshots(self) -> tuple[Snapshot, ...]:
        for attempt in range(1, ATTEMPTS + 1):
            ranges = outermost(map(range_of, self._storage.list(f"{folder(self._join)}/{INDEX}")))
            try:
                self._runs = {ends: self._runs.get(ends) or self._read(*ends) for ends in ranges}
            except Missing:  # it became part of a wider one, or was let go, since they were listed
                if attempt == ATTEMPTS:
                    raise
                time.sleep(AGAIN_SECONDS * attempt)  # a driver that catches up merges many of them a second
                continue
            return tuple(snapshot for run in self._runs.values() for snapshot in run.snapshots)
        raise AssertionError("the last attempt returns or raises")

    def _read(self, low: int, high: int) -> Run:
        return read_run(self._storage, index_path(self._join, low, high))


def _explained(look: Callable[[], Found]) -> Found:
    try:
        return look()
    except StorageError as error:
        raise QueryError(Why.STORAGE, f"{error}; look whether the storage can be reached") from error
