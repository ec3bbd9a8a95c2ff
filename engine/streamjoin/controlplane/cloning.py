"""Begins a join from a savepoint of another one: an empty checkpoint becomes a copy of what that keeps, in the join's own storage.

All that the savepoint names is copied first: blocks, marks and intermediate results into files of this checkpoint, what is small into the
entry that is then created, snapshots of sources' positions under their names. That entry is the commit. Always holds:

- Until it exists the checkpoint is empty; a driver that dies leaves files that no commit names, and the next one begins again. After it
  nothing is read from the other storage any more: both go on independently.
- Nothing of the other storage is changed, and each copy is compared with its checksum. If the other join deletes the savepoint meanwhile,
  something is missing, and the clone does not begin.
- The clone has an identity of its own, as files and outputs are named by it, and the seed of its origin, by which tuples lie. Results up to
  the savepoint's epoch are the other join's, also those that were not visible yet; those of later epochs are found by both.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from streamjoin.controlplane.fingerprint import require_same
from streamjoin.controlplane.savepoints import missing
from streamjoin.controlplane.snapshots import snapshot_path
from streamjoin.epoch.ports import CheckpointMismatch
from streamjoin.epoch.spec import attempt_prefix
from streamjoin.io.base import Source
from streamjoin.job import Job, Origin
from streamjoin.state import checks
from streamjoin.state.blocks import FOLDER, Block, is_file, name_of, require_unchanged, stretches
from streamjoin.state.checkpoint import Checkpoint, OutputState, SnapshotState
from streamjoin.state.extent import Extent, Segment, read_extents
from streamjoin.state.log import CommitLog, read_kept, read_latest
from streamjoin.state.storage import Missing, ObjectStorage, Storage

AT_ONCE = 4
"""The number of files that are copied at once, each in memory."""


def clone(job: Job, origin: Origin, storage: Storage, log: CommitLog, sources: Sequence[Source], moved: Callable[[], None]) -> Checkpoint:
    """Commit, as the first of this log, a copy of what the origin's savepoint keeps; the checkpoint to go on from. O(bytes).

    ``moved`` is told of each file. Raises CheckpointMismatch where there is no such savepoint, or its join differs from the job's in what
    may not change under a checkpoint; StorageError.
    """
    theirs = ObjectStorage(origin.location)
    kept = _kept(theirs, origin)
    require_same(job, kept, f"{origin.savepoint} in {origin.location}")
    assert log.latest is not None, "it was claimed"
    own, segment = log.latest.checkpoint, Segment(log.next_path)
    copier = _Copier(theirs, storage, f"{attempt_prefix(own.identity, log.incarnation, kept.epoch)}-clone", segment, moved)
    try:
        after = copier.copied(kept)
        snapshots = (source.referenced(position) for source, position in zip(sources, kept.input.positions, strict=True))
        copier.copy_all(sorted({snapshot_path(name) for names in snapshots for name in names}))
    except Missing as error:
        raise CheckpointMismatch(
            f"spec.checkpoint.cloneOf: savepoint {origin.savepoint} is not whole any more ({error}); it may have been deleted meanwhile"
        ) from error
    after = replace(after, identity=own.identity, claims=own.claims, clock=max(own.clock, kept.clock), is_over=False, savepoints={})
    log.commit(after, segment.data)
    return after


def _kept(theirs: Storage, origin: Origin) -> Checkpoint:
    """Raises CheckpointMismatch, StorageError."""
    latest = read_latest(theirs)
    found = {} if latest is None else latest.checkpoint.savepoints
    if origin.savepoint not in found:
        raise CheckpointMismatch(f"spec.checkpoint.cloneOf: {theirs.url}: {missing(origin.savepoint, found)}")
    return read_kept(theirs, origin.savepoint, found[origin.savepoint])


class _Copier:
    """Copies what a checkpoint names, each once."""

    def __init__(self, theirs: Storage, own: Storage, stem: str, segment: Segment, moved: Callable[[], None]) -> None:
        """``stem``: with which names of copies begin."""
        self._theirs, self._own, self._stem, self._segment, self._moved = theirs, own, stem, segment, moved

    def copied(self, kept: Checkpoint) -> Checkpoint:
        """The checkpoint of the copies; without results that are on their way to sinks."""
        blocks, fed = kept.state.stored, kept.output.fed
        names = self._blocks([block for block in blocks if block.extent is None])
        names |= self._results([part.extent for part in fed if is_file(part.extent.path)])
        small = [block.extent for block in blocks if block.extent is not None]
        small += [part.extent for part in fed if not is_file(part.extent.path)]
        distinct = list(dict.fromkeys(small))
        extents = dict(zip(distinct, map(self._segment.add, read_extents(self._theirs, distinct)), strict=True))

        def own_block(block: Block) -> Block:
            return replace(block, name=names[block.name]) if block.extent is None else replace(block, extent=extents[block.extent])

        def own_extent(extent: Extent) -> Extent:
            return extents.get(extent) or replace(extent, path=names[extent.path])

        return replace(
            kept,
            state=replace(
                kept.state, blocks=tuple(map(own_block, kept.state.blocks)), marks=tuple(map(own_block, kept.state.marks)), tokens={}
            ),
            output=OutputState(fed=tuple(replace(part, extent=own_extent(part.extent)) for part in fed)),
            snapshots=SnapshotState(punctuations=kept.snapshots.punctuations),
        )

    def copy_all(self, paths: Sequence[str]) -> None:
        """Copy objects under their names."""
        self._each(paths, lambda path: self._own.put(path, self._theirs.get(path)))

    def _blocks(self, blocks: Sequence[Block]) -> dict[str, str]:
        """The names of the copies of these files, by theirs."""
        found = {block.name: (block, name_of(f"{self._stem}-{number:06d}", small=False)) for number, block in enumerate(blocks)}

        def copy(name: str) -> None:
            (block, own), data = found[name], memoryview(self._theirs.get(name))
            parts = enumerate(stretches(block.nbytes, block.parts))
            require_unchanged(self._theirs, block, ((number, data[start:end]) for number, (start, end) in parts))
            self._own.put(own, data)

        self._each(list(found), copy)
        return {name: own for name, (_, own) in found.items()}

    def _results(self, extents: Sequence[Extent]) -> dict[str, str]:
        """As ``_blocks``, of intermediate results."""
        names: dict[str, str] = {}
        paths = sorted({extent.path for extent in extents})

        def copy(path: str) -> None:
            data = checks.read(self._theirs, path, "results that a stream is yet to read")
            names[path] = checks.named(f"{FOLDER}/{self._stem}-fed-{paths.index(path):06d}", "arrow", data)
            self._own.put(names[path], data)

        self._each(paths, copy)
        return names

    def _each(self, names: Sequence[str], copy: Callable[[str], None]) -> None:
        """Raises what copying raises."""
        if not names:
            return
        with ThreadPoolExecutor(min(AT_ONCE, len(names))) as pool:
            for _ in pool.map(copy, names):
                self._moved()
