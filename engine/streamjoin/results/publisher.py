"""Brings closed snapshots into their stores, beside the join: sorted files in the checkpoint first, then another store where there is one.

The driver offers what its last commit names, and asks what is stored since; so a crash can lose nothing that is kept here, and to do a
thing twice is the same as to do it once (``archive``, ``store``). A store that fails is asked again with growing pauses; meanwhile
snapshots wait, in the checkpoint.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from streamjoin.io.telling import told
from streamjoin.results.archive import Archive, described
from streamjoin.results.store import SnapshotStore
from streamjoin.snapshots.timeline import Closed, Stored, Timeline
from streamjoin.state.storage import Storage

BATCH_ROWS = 16 * 1024
FIRST_PAUSE_SECONDS, MOST_PAUSE_SECONDS = 0.5, 10.0
"""The pause before a store that has failed is asked again; it doubles each time."""
ASK_SECONDS = 0.1
LOOK_SECONDS = 60.0
"""The time between two looks, without news, for work that time alone brings."""
RETENTION_SECONDS = 60.0
"""The time between two looks for snapshots to remove from a store beside the checkpoint."""


@dataclass(frozen=True)
class Kept:
    """The settings by which one join's snapshots are kept."""

    keep_seconds: float | None = None
    """How long; None: for good."""
    open_store: Callable[[], SnapshotStore] | None = None
    """The store beside the checkpoint, if there is one. Asks nothing of it yet."""


@dataclass(frozen=True)
class StoreState:
    """The state of the store of one join's snapshots; counts begin with this process."""

    snapshots: int = 0
    """Stored."""
    rows: int = 0
    failures: int = 0
    """Attempts that failed."""
    seconds: float = 0.0
    """Spent on storing."""
    error: str | None = None
    """Why the last attempt failed; None: it did not."""
    failing_since: float | None = None
    """The wall clock at the first of the attempts that have failed in a row."""


class Publisher:
    """One join's. :meth:`offer`, :attr:`stored` and :attr:`state` may be called by any thread, the rest by one."""

    def __init__(self, storage: Storage, join: str, kept: Kept, *, clock: Callable[[], float] = time.time) -> None:
        self._join, self._kept, self._clock = join, kept, clock
        self._archive = Archive(storage, join, kept.keep_seconds, clock=clock)
        self._store: SnapshotStore | None = None
        self._looked_at = float("-inf")
        """When snapshots of the store were let go last."""
        self._timeline = Timeline()
        self._stored, self._state = Stored(), StoreState()
        self._news = threading.Condition()
        self._thread: threading.Thread | None = None
        self._has_news = self._ends = False

    def offer(self, timeline: Timeline) -> None:
        """This timeline is in the last commit: store what it names. O(closed snapshots)."""
        with self._news:
            self._timeline = timeline
            named = {snapshot.id for snapshot in timeline.closed}
            self._stored = Stored(self._stored.sorted_ids & named, self._stored.ids & named)
            self._has_news = True
            self._news.notify_all()

    @property
    def stored(self) -> Stored:
        """Those of the snapshots offered last that are stored."""
        return self._stored

    @property
    def state(self) -> StoreState:
        return self._state

    def sweep(self) -> int:
        """Remove what crashes have left of files of snapshots up to those that are offered. Returns how many. Raises StorageError."""
        closed = self._timeline.closed
        return self._archive.sweep(closed[0].id if closed else self._timeline.next_id)

    def work(self) -> bool:
        """Do what there is to do now; whether there was anything. Raises StorageError, StoreError, and whatever else goes wrong."""
        try:
            worked = self._sort() | self._publish()
            if not self._ends:
                # What waits for its store is read by snapshot, and stays in files of its own until then.
                worked = self._archive.tidy(min((snapshot.id for snapshot in self._waiting), default=None)) or self._let_go() or worked
        except Exception as error:
            text = f"{type(error).__name__}: {told(error)}"
            since = self._state.failing_since or self._clock()
            self._note(self._stored, replace(self._state, failures=self._state.failures + 1, error=text, failing_since=since))
            raise
        if self._state.error is not None:
            self._note(self._stored, replace(self._state, error=None, failing_since=None))
        return worked

    def start(self) -> None:
        """Work from now on in a thread of its own."""
        self._thread = threading.Thread(target=self._run, name=f"snapshots of {self._join}", daemon=True)
        self._thread.start()

    def wait(self, until: Callable[[], bool], seconds: float) -> bool:
        """Wait, or work where there is no thread, until something holds that follows from what is stored, at most so long; does it?"""
        deadline = time.monotonic() + seconds
        while not until():
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            if self._thread is None:
                self.work()
            else:
                with self._news:
                    self._news.wait(min(left, ASK_SECONDS))
        return True

    def stop(self, seconds: float) -> None:
        """End the thread, once all is stored that can be now; one that takes longer than this is left to it. The next driver stores the
        rest."""
        if self._thread is not None:
            with self._news:
                self._ends = True
                self._news.notify_all()
            self._thread.join(seconds)
            if self._thread.is_alive():
                return
        if self._store is not None:
            self._store.close()

    def _run(self) -> None:
        pause = FIRST_PAUSE_SECONDS
        ends = False
        while not ends:
            with self._news:
                self._has_news, ends = False, self._ends
            try:
                while self.work():
                    pass
            except Exception:  # it is in the state, for all to see
                with self._news:
                    self._news.wait_for(lambda: self._ends, pause)
                pause = min(2 * pause, MOST_PAUSE_SECONDS)
            else:
                pause = FIRST_PAUSE_SECONDS
                with self._news:
                    self._news.wait_for(lambda: self._ends or self._has_news, LOOK_SECONDS)

    @property
    def _waiting(self) -> list[Closed]:
        return [snapshot for snapshot in self._timeline.closed if snapshot.id not in self._stored.ids]

    def _sort(self) -> bool:
        """Make files of all that is closed, whatever becomes of the store: readers find it there."""
        unsorted = [snapshot for snapshot in self._waiting if snapshot.parts and snapshot.id not in self._stored.sorted_ids]
        for snapshot in unsorted:
            began = time.monotonic()
            self._archive.add(snapshot)
            state = replace(self._state, seconds=self._state.seconds + time.monotonic() - began)
            self._note(replace(self._stored, sorted_ids=self._stored.sorted_ids | {snapshot.id}), state)
        return bool(unsorted)

    def _publish(self) -> bool:
        sorted_ones = [snapshot for snapshot in self._waiting if not snapshot.parts or snapshot.id in self._stored.sorted_ids]
        for snapshot in sorted_ones:
            began = time.monotonic()
            if self._kept.open_store is not None:
                self._store = self._store or self._kept.open_store()
                self._store.publish(described(snapshot), self._archive.rows(snapshot.id, BATCH_ROWS))
            before = self._state
            spent = before.seconds + time.monotonic() - began
            state = replace(before, snapshots=before.snapshots + 1, rows=before.rows + snapshot.rows, seconds=spent)
            self._note(replace(self._stored, ids=self._stored.ids | {snapshot.id}), state)
        return bool(sorted_ones)

    def _let_go(self) -> bool:
        keep, now = self._kept.keep_seconds, self._clock()
        if self._store is None or keep is None or now - self._looked_at < RETENTION_SECONDS:
            return False
        self._looked_at = now
        return self._store.let_go(now - keep) > 0

    def _note(self, stored: Stored, state: StoreState) -> None:
        with self._news:
            self._stored, self._state = stored, state
            self._news.notify_all()
