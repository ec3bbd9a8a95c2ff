"""Removes what no commit names: replaced blocks, old positions of sources, old log entries, and the files of failed attempts.

A crash at any line leaves files that the next sweep finds. Always holds:

- What a commit has made obsolete is kept for ``GRACE_EPOCHS`` commits more: a task of the epoch in flight may be reading it back.
- A sweep removes only what this checkpoint's drivers made, this one or older ones; and none is made while an epoch is in flight, as its
  files are in no commit yet.
- An entry of the log stays as long as one of the last ``GRACE_EPOCHS`` commits names something in it.
- What a savepoint keeps stays as long as the last commit has the savepoint.
- As long as a commit's output may not be visible, nothing that is staged is swept: the loop sweeps after it has published.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from streamjoin.controlplane.snapshots import FOLDER, snapshot_path
from streamjoin.epoch.reports import TaskReport
from streamjoin.epoch.spec import is_attempt_of
from streamjoin.io.base import Source
from streamjoin.io.several import Sinks
from streamjoin.results.parts import FOLDER as PARTS
from streamjoin.state.blocks import FOLDER as BLOCKS
from streamjoin.state.blocks import is_file
from streamjoin.state.checkpoint import Checkpoint
from streamjoin.state.log import CommitLog, read_kept
from streamjoin.state.storage import Storage

SWEEP_EVERY = 500
"""Epochs between sweeps for blocks that failed attempts left."""
GRACE_EPOCHS = 2
AT_ONCE = 16
"""The number of files, or of epochs whose files, are removed in one request."""


@dataclass(frozen=True)
class _Garbage:
    epoch: int
    """The epoch whose commit made it obsolete."""
    paths: list[str]


class GarbageCollector:
    """See the module. The loop's own; not for use by several threads."""

    def __init__(self, storage: Storage, log: CommitLog, sources: Sequence[Source], sink: Sinks) -> None:
        self._storage = storage
        self._log = log
        self._sources = sources
        self._sink = sink
        # Ascending by epoch.
        self._garbage: list[_Garbage] = []
        # Paths of log entries that each of the last commits needs.
        self._needed: deque[set[str]] = deque(maxlen=GRACE_EPOCHS + 1)
        # By the path of a savepoint's entry, the paths of all that it keeps. Of all savepoints that the last commit or the next one has.
        self._kept: dict[str, frozenset[str]] = {}
        self.rewriting: str | None = None
        """How the names begin of what a rewrite makes that is under way."""
        self.has_leftovers = False
        """An attempt may have left files behind, so that the next ``clean`` sweeps."""

    def is_due(self, epoch: int) -> bool:
        """Whether ``clean`` is to sweep after this epoch. No other may be in flight then."""
        return self.has_leftovers or epoch % SWEEP_EVERY == SWEEP_EVERY - 1

    def keep(self, path: str, checkpoint: Checkpoint) -> None:
        """Spare what this entry of the log names, as the next commit has a savepoint of it. O(blocks)."""
        names = {*_files_of(checkpoint), *checkpoint.entries()}
        parts = checkpoint.snapshots.parts(in_entries=True) | checkpoint.snapshots.parts(in_entries=False)
        self._kept[path] = frozenset((path, *names, *parts, *self._snapshots_of(checkpoint)))

    def keep_all(self, checkpoint: Checkpoint) -> None:
        """Spare what the savepoints of the last commit keep. One request for each. Raises StorageError."""
        for name, savepoint in checkpoint.savepoints.items():
            self.keep(savepoint.path, read_kept(self._storage, name, savepoint))

    def _is_kept(self, path: str) -> bool:
        """Whether a savepoint keeps it. O(savepoints)."""
        return any(path in paths for paths in self._kept.values())

    def _snapshots_of(self, checkpoint: Checkpoint) -> set[str]:
        """The paths of the sources' snapshots that its positions need."""
        positions = zip(self._sources, checkpoint.input.positions, strict=True)
        return {snapshot_path(name) for source, position in positions for name in source.referenced(position)}

    def _forget_deleted(self, checkpoint: Checkpoint) -> None:
        """Spare no more what savepoints kept that the last commit does not have."""
        paths = {savepoint.path for savepoint in checkpoint.savepoints.values()}
        self.has_leftovers |= not self._kept.keys() <= paths
        self._kept = {path: names for path, names in self._kept.items() if path in paths}

    def clean(self, before: Checkpoint, now: Checkpoint, reports: Sequence[TaskReport], *, in_flight: bool) -> None:
        """Remove what commits up to ``now`` have made obsolete. A failure here loses nothing: the next sweep finds what is left."""
        self._garbage.append(_Garbage(now.epoch, self._obsolete(before, now, reports)))
        self._needed.append(now.entries() | now.snapshots.parts(in_entries=True))
        self._forget_deleted(now)
        try:
            self._remove_garbage(now.epoch - GRACE_EPOCHS)
            self._log.trim(lambda path: self._is_kept(path) or any(path in paths for paths in self._needed))
            if not in_flight and self.is_due(now.epoch):
                self.sweep(now)
                self.has_leftovers = False
        except OSError:
            self.has_leftovers = True

    def _remove_garbage(self, epoch: int) -> None:
        """Remove what commits up to this epoch's have made obsolete, once it is worth a request."""
        old = [garbage for garbage in self._garbage if garbage.epoch <= epoch]
        paths = [path for garbage in old for path in garbage.paths if not self._is_kept(path)]
        if len(paths) >= AT_ONCE or len(old) >= AT_ONCE:
            self._storage.delete_many(paths)
            del self._garbage[: len(old)]

    def _obsolete(self, before: Checkpoint, now: Checkpoint, reports: Sequence[TaskReport]) -> list[str]:
        named = _files_of(now)
        unnamed = [name for name in _files_of(before) if name not in named]
        unnamed += [name for report in reports for name in report.replaced if name not in named]
        obsolete = [name for name in dict.fromkeys(unnamed) if is_file(name)]
        obsolete += sorted(before.snapshots.parts(in_entries=False) - now.snapshots.parts(in_entries=False))
        return obsolete + sorted(self._snapshots_of(before) - self._snapshots_of(now))

    def sweep(self, checkpoint: Checkpoint) -> int:
        """Remove what the last commit does not name: blocks and staged outputs of attempts that failed. Returns how many files.

        O(stored objects). What a newer driver has made since is left alone: this one may not know yet that it has been replaced.
        """

        def may_sweep(name: str) -> bool:
            spared = self.rewriting is not None and name.startswith(self.rewriting)
            return not spared and is_attempt_of(name, checkpoint.identity, self._log.incarnation)

        waiting = {path for garbage in self._garbage for path in garbage.paths}.union(*self._kept.values())
        used = waiting | set(_files_of(checkpoint))
        stray = [path for path in self._storage.list(BLOCKS) if path not in used and may_sweep(path.rsplit("/", 1)[1])]
        if checkpoint.snapshots:
            used = waiting | checkpoint.snapshots.parts(in_entries=False)
            stray += [path for path in self._storage.list(PARTS) if path not in used and may_sweep(path.rsplit("/", 1)[1])]
        used = waiting | self._snapshots_of(checkpoint)
        snapshots = [path for path in self._storage.list(FOLDER) if path not in used]
        if snapshots and self._log.is_held():  # asked after listing, so that none of them can be a newer driver's
            stray += snapshots
        self._storage.delete_many(stray)
        return len(stray) + self._sink.sweep(may_sweep)


def _files_of(checkpoint: Checkpoint) -> dict[str, None]:
    """What a checkpoint names of blocks and of results that streams are yet to read, in order; those in entries of the log among them."""
    return dict.fromkeys([*(block.name for block in checkpoint.state.stored), *(part.extent.path for part in checkpoint.output.fed)])
