"""Savepoints: committed epochs that are kept by a name, for a backup, for another join to begin from (``cloning``), or to go back to.

A savepoint is an entry of the log that stays, with all that it names: blocks, marks, results that streams are yet to read, and snapshots of
sources' positions. So it costs no copy, and shares with the join what that still holds. Which there are is a part of the checkpoint: a
commit makes a savepoint of an entry before it, another commit deletes it, and whoever claims the log knows of both.

Always holds:

- A name means one entry until it is deleted; who asks for it again gets that one.
- What a savepoint keeps is spared from the moment at which the driver decides on it, before the commit that makes it, until a commit
  without it (``garbage``). A driver that dies before its commit has made, or deleted, nothing.
- No record is lost or doubled by who goes on from one. So none is made while dead letters are read again, whose request is gone when it
  is done; nor of a join whose source removes what was read.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from streamjoin.controlplane.garbage import GarbageCollector
from streamjoin.io.replays import is_reading_again
from streamjoin.job import Job
from streamjoin.manifest.connector import SourceConnector
from streamjoin.state.checkpoint import Checkpoint, Savepoint
from streamjoin.state.log import CommitLog, Entry, read_latest
from streamjoin.state.storage import Storage

MOST = 100
"""Savepoints of a join: each is in every entry of the log."""
_NAME = re.compile(r"[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?")


class SavepointRefused(ValueError):  # noqa: N818
    """There can be no such savepoint; the text says why, and what to do."""


class SavepointMissing(LookupError):  # noqa: N818
    """There is no savepoint of this name."""


@dataclass(frozen=True)
class _Wish:
    name: str
    is_kept: bool
    """Else it is deleted."""


class Savepoints:
    """Those of a running join. Any thread may call what is not said to be the loop's."""

    def __init__(self, job: Callable[[], Job], log: CommitLog, garbage: GarbageCollector, *, clock: Callable[[], float]) -> None:
        self._job, self._log, self._garbage, self._clock = job, log, garbage, clock
        self._lock = threading.Lock()
        self._wishes: list[_Wish] = []
        # Those that the next commit is to have; None: as the last one.
        self._coming: Mapping[str, Savepoint] | None = None

    @property
    def kept(self) -> Mapping[str, Savepoint]:
        """Those that the last commit has."""
        latest = self._log.latest
        return {} if latest is None else latest.checkpoint.savepoints

    @property
    def wishes(self) -> Mapping[str, bool]:
        """What was asked for and is not committed yet, by name: whether it is to be kept, else deleted."""
        with self._lock:
            return self._uncommitted()

    def _uncommitted(self) -> dict[str, bool]:
        kept = self.kept
        coming = kept if self._coming is None else self._coming
        wanted = {name: name in coming for name in (*kept, *coming)} | {wish.name: wish.is_kept for wish in self._wishes}
        return {name: is_kept for name, is_kept in wanted.items() if is_kept is not (name in kept)}

    def keep(self, name: str) -> None:
        """Ask for the last commit to be kept by this name; nothing is to be done where there is such a savepoint. Raises
        SavepointRefused."""
        require_name(name)
        require_rereadable(self._job())
        with self._lock:
            require_room(len({*self.kept, *self._uncommitted(), name}))
            self._wishes.append(_Wish(name, is_kept=True))

    def delete(self, name: str) -> None:
        """Ask for it to be deleted. Raises SavepointMissing."""
        with self._lock:
            if name not in self.kept and name not in self._uncommitted():
                raise SavepointMissing(missing(name, self.kept))
            self._wishes.append(_Wish(name, is_kept=False))

    def taken(self, checkpoint: Checkpoint) -> Checkpoint:
        """The checkpoint with what was asked for, as the next commit is to have it. What cannot be done yet waits. The loop's."""
        latest, found = self._log.latest, dict(checkpoint.savepoints)
        if latest is None:
            return checkpoint
        with self._lock:
            while self._wishes and (not self._wishes[0].is_kept or may_be_kept(latest.checkpoint)):
                wish = self._wishes.pop(0)
                if not wish.is_kept:
                    found.pop(wish.name, None)
                elif wish.name not in found:
                    found[wish.name] = savepoint = savepoint_of(latest, self._log.newest_path, self._clock())
                    self._garbage.keep(savepoint.path, latest.checkpoint)
            self._coming = found
        return checkpoint if found == checkpoint.savepoints else replace(checkpoint, savepoints=found)


def may_be_kept(checkpoint: Checkpoint) -> bool:
    """Whether there is something to keep, and nobody would miss records who goes on from it."""
    return checkpoint.epoch >= 0 and not any(map(is_reading_again, checkpoint.input.positions))


def savepoint_of(entry: Entry, path: str, now: float) -> Savepoint:
    """The savepoint that keeps this entry. O(blocks)."""
    checkpoint = entry.checkpoint
    return Savepoint(path, checkpoint.epoch, checkpoint.committed_at, now, checkpoint.nbytes)


def require_name(name: str) -> None:
    """Raises SavepointRefused."""
    if not _NAME.fullmatch(name):
        raise SavepointRefused(f"savepoint {name[:80]!r}: must be 1 to 63 of a-z, 0-9, - and ., and begin and end with a letter or digit")


def require_room(count: int) -> None:
    """Raises SavepointRefused for more savepoints than there may be."""
    if count > MOST:
        raise SavepointRefused(f"there are {MOST} savepoints, the most that a join may have; delete one first")


def require_rereadable(job: Job) -> None:
    """Raises SavepointRefused where a source removes what a commit has read, so that nobody could go on from before that."""
    for number, stream in enumerate(job.streams):
        if isinstance(stream.source, SourceConnector) and stream.source.is_consumed:
            field = f"spec.streams[{number}].source"
            raise SavepointRefused(
                f"{field}: {stream.source.identity}: is removed once it is read, so nobody could go on from a savepoint; there is none of"
                " this join"
            )


def missing(name: str, kept: Mapping[str, Savepoint]) -> str:
    there = f"there are {', '.join(sorted(kept))}" if kept else "there are none"
    return f"savepoint {name[:80]!r}: does not exist; {there}"


def keep_of_stopped(job: Job, storage: Storage, name: str, *, clock: Callable[[], float]) -> Savepoint:
    """Keep the last commit of a join that does not run. A driver that runs all the same stops at its next commit.

    Raises SavepointRefused, StorageError and Superseded.
    """
    require_name(name)
    require_rereadable(job)
    kept = savepoints_in(storage)
    require_room(len(kept.keys() | {name}))
    if (known := kept.get(name)) is not None:
        return known
    log = CommitLog(storage, clock=clock)
    log.claim()
    assert log.latest is not None
    if not may_be_kept(log.found):
        log.commit(log.found)
        raise SavepointRefused(f"{storage.url}: dead letters are being read again; run the join until that is over, and then ask again")
    found = log.found.savepoints.get(name) or savepoint_of(log.latest, log.newest_path, clock())
    log.commit(replace(log.found, savepoints=log.found.savepoints | {name: found}))
    return found


def delete_of_stopped(storage: Storage, name: str, *, clock: Callable[[], float]) -> None:
    """Delete a savepoint of a join that does not run. What it kept goes when the next driver starts.

    Raises SavepointMissing, StorageError and Superseded.
    """
    kept = savepoints_in(storage)
    if name not in kept:
        raise SavepointMissing(f"{storage.url}: {missing(name, kept)}")
    log = CommitLog(storage, clock=clock)
    log.claim()
    log.commit(replace(log.found, savepoints={each: of for each, of in log.found.savepoints.items() if each != name}))


def savepoints_in(storage: Storage) -> Mapping[str, Savepoint]:
    """Those of the join that has its checkpoint here. Raises SavepointRefused where there is none, StorageError."""
    latest = read_latest(storage)
    if latest is None or latest.checkpoint.epoch < 0:
        raise SavepointRefused(f"{storage.url}: no epoch of a join is committed here, so there is nothing to keep")
    return latest.checkpoint.savepoints
