"""Brings closed snapshots into their stores, beside the join: sorted files in the checkpoint first, then another store where there is one.

The driver offers what its last commit names, and asks what is stored since; so nothing is kept here that a crash could lose, and whatever
is done twice is as if it were done once (``archive``, ``store``). A store that fails is asked again with growing pauses; meanwhile
snapshots wait, in the checkpoint.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from streamjoin.results.archive import Archive, described
from streamjoin.results.store import SnapshotStore
from streamjoin.snapshots.timeline import Closed, Stored, Timeline
from streamjoin.state.storage import Storage

BATCH_ROWS = 16 * 1024
FIRST_PAUSE_SECONDS, MOST_PAUSE_SECONDS = 0.5, 10.0
"""Before a store that has failed is asked again; doubled each time."""
ASK_SECONDS = 0.1
LOOK_SECONDS = 60.0
"""So often it is looked, without news, for what time alone makes to do."""
RETENTION_SECONDS = 60.0
"""So often it is looked for snapshots that are to be let go in a store beside the checkpoint."""


@dataclass(frozen=True)
class Kept:
    """How one join's snapshots are kept."""

    keep_seconds: float | None = None
    """How long; None: for good."""
    open_store: Callable[[], SnapshotStore] | None = None
    """The store beside the checkpoint, if there is one. Asks nothing of it yet."""


@dataclass(frozen=True)
class StoreState:
    """How the store of one join gets on, in this process's time."""

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


@dataclass
class _Join:
    kept: Kept
    archive: Archive
    timeline: Timeline = field(default_factory=Timeline)
    stored: Stored = field(default_factory=Stored)
    state: StoreState = field(default_factory=StoreState)
    store: SnapshotStore | None = None
    looked_at: float = float("-inf")
    """When snapshots of the store were let go last."""


class Publisher:
    """See the module. :meth:`offer`, :meth:`stored` and :attr:`states` may be called by any thread, the rest by one."""

    def __init__(self, storage: Storage, kept: Mapping[str, Kept], *, clock: Callable[[], float] = time.time) -> None:
        """``kept``: by join; snapshots of other joins, left over from before, are sorted and kept for good."""
        self._storage, self._kept, self._clock = storage, dict(kept), clock
        self._joins: dict[str, _Join] = {}
        self._lock = threading.Lock()
        self._news = threading.Condition(self._lock)
        self._thread: threading.Thread | None = None
        self._stopped = False
        self._has_news = False

    def offer(self, timelines: Mapping[str, Timeline]) -> None:
        """These are the timelines of the last commit. O(closed snapshots)."""
        with self._lock:
            for name, timeline in timelines.items():
                join = self._joins.get(name)
                if join is None:
                    kept = self._kept.get(name, Kept())
                    join = self._joins[name] = _Join(kept, Archive(self._storage, name, kept.keep_seconds, clock=self._clock))
                join.timeline = timeline
                named = {snapshot.id for snapshot in timeline.closed}
                join.stored = Stored(join.stored.sorted_ids & named, join.stored.ids & named)
            self._has_news = True
            self._news.notify_all()

    def stored(self, join: str) -> Stored:
        """Of the snapshots that were offered last, which are stored."""
        with self._lock:
            return self._joins[join].stored if join in self._joins else Stored()

    @property
    def states(self) -> dict[str, StoreState]:
        """By join."""
        with self._lock:
            return {name: join.state for name, join in self._joins.items()}

    def sweep(self) -> int:
        """Remove what crashes have left of files of snapshots up to those that are offered. Returns how many. Raises StorageError."""
        with self._lock:
            joins = list(self._joins.values())
        return sum(join.archive.sweep(_first_waiting(join.timeline)) for join in joins)

    def work(self) -> bool:
        """Do all there is to do now; whether there was anything. Where that fails for one join, it is done for the others.

        Raises StorageError, StoreError, and whatever else went wrong, the first of several.
        """
        with self._lock:
            joins = list(self._joins.values())
        failed: list[Exception] = []
        worked = False
        for join in joins:
            try:
                worked |= self._work_on(join)
            except Exception as error:
                self._failed(join, error)
                failed.append(error)
        if failed:
            raise failed[0]
        return worked

    def start(self) -> None:
        """Work from now on in a thread of its own."""
        self._thread = threading.Thread(target=self._run, name="snapshots", daemon=True)
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
        """End the thread, once all is stored that can be, after so long at most; what is left is stored by the next driver."""
        if self._thread is not None:
            self.wait(self._is_done, seconds)
            with self._news:
                self._stopped = True
                self._news.notify_all()
            self._thread.join(seconds)
        for join in self._joins.values():
            if join.store is not None:
                join.store.close()

    def _is_done(self) -> bool:
        """Whether every snapshot is stored, or its store has failed."""
        with self._lock:
            joins = list(self._joins.values())
        return all(join.state.error is not None or not _waiting(join) for join in joins)

    def _run(self) -> None:
        pause = FIRST_PAUSE_SECONDS
        while True:
            with self._news:
                if self._stopped:
                    return
                self._has_news = False
            try:
                if self.work():
                    continue
            except Exception:  # it is in the join's state, for all to see
                with self._news:
                    self._news.wait_for(lambda: self._stopped, pause)
                pause = min(2 * pause, MOST_PAUSE_SECONDS)
            else:
                pause = FIRST_PAUSE_SECONDS
                with self._news:
                    self._news.wait_for(lambda: self._stopped or self._has_news, LOOK_SECONDS)

    def _work_on(self, join: _Join) -> bool:
        waiting = _waiting(join)
        for snapshot in waiting:
            began = time.monotonic()
            if snapshot.id not in join.stored.sorted_ids and snapshot.parts:
                join.archive.add(snapshot)
                self._note(join, replace(join.stored, sorted_ids=join.stored.sorted_ids | {snapshot.id}), join.state)
            if join.kept.open_store is not None:
                join.store = join.store or join.kept.open_store()
                join.store.publish(described(snapshot), join.archive.rows(snapshot.id, BATCH_ROWS))
            state = join.state
            spent = state.seconds + time.monotonic() - began
            after = replace(state, snapshots=state.snapshots + 1, rows=state.rows + snapshot.rows, seconds=spent)
            self._note(join, replace(join.stored, ids=join.stored.ids | {snapshot.id}), after)
        worked = join.archive.tidy() or bool(waiting) or self._let_go(join)
        if join.state.error is not None:
            self._note(join, join.stored, replace(join.state, error=None, failing_since=None))
        return worked

    def _let_go(self, join: _Join) -> bool:
        keep, now = join.kept.keep_seconds, self._clock()
        if join.store is None or keep is None or now - join.looked_at < RETENTION_SECONDS:
            return False
        join.looked_at = now
        return join.store.let_go(now - keep) > 0

    def _failed(self, join: _Join, error: Exception) -> None:
        text = f"{type(error).__name__}: {' '.join(str(error).split())}"
        since = join.state.failing_since or self._clock()
        self._note(join, join.stored, replace(join.state, failures=join.state.failures + 1, error=text, failing_since=since))

    def _note(self, join: _Join, stored: Stored, state: StoreState) -> None:
        with self._news:
            join.stored, join.state = stored, state
            self._news.notify_all()


def _waiting(join: _Join) -> list[Closed]:
    return [snapshot for snapshot in join.timeline.closed if snapshot.id not in join.stored.ids]


def _first_waiting(timeline: Timeline) -> int:
    return min((snapshot.id for snapshot in timeline.closed), default=timeline.next_id)
