"""Takes a join that does not run back to one of its savepoints: the log goes on from what that keeps, by a commit of a newer claim.

Nothing of the log is removed: until that commit the join is where it was, and after it the next driver reads again what was read after the
savepoint. What the join has let go since is there, as the savepoint has kept it.

Always holds: epochs are counted on. So what an epoch publishes has a name, or a number, that nothing published before has had, and no sink
takes it for something that it knows. Results that were committed and are not visible yet become visible, as every commit's do. Therefore
what was found after the savepoint is found again, and is in sinks twice that do not replace results by a key (:func:`repeated`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from streamjoin.controlplane.fingerprint import join_changes
from streamjoin.controlplane.savepoints import (
    SavepointMissing,
    SavepointRefused,
    missing,
    require_name,
    require_room,
    savepoint_of,
    savepoints_in,
)
from streamjoin.io.replays import requests_done
from streamjoin.job import Job, sink_identity
from streamjoin.manifest.connector import SinkConnector
from streamjoin.state.checkpoint import Checkpoint
from streamjoin.state.log import CommitLog, read_kept
from streamjoin.state.storage import Storage


def roll_back(job: Job, storage: Storage, name: str, *, keep: str | None, clock: Callable[[], float]) -> tuple[Checkpoint, Checkpoint]:
    """Commit what a savepoint keeps. The checkpoint as it was, and as it is now. ``keep``: the name of a savepoint of what was.

    A driver that runs all the same stops at its next commit. Raises SavepointMissing, SavepointRefused, CheckpointMismatch, StorageError
    and Superseded.
    """
    known = savepoints_in(storage)
    if name not in known:
        raise SavepointMissing(f"{storage.url}: {missing(name, known)}")
    if keep is not None:
        require_name(keep)
        require_room(len(known.keys() | {keep}))
        if keep in known:
            raise SavepointRefused(f"savepoint {keep!r}: exists already, of epoch {known[keep].epoch}; choose another name")
    kept = read_kept(storage, name, known[name])
    join_changes(job, kept, storage.url)
    log = CommitLog(storage, clock=clock)
    log.claim()
    found = log.found
    assert log.latest is not None, "it was claimed"
    try:
        _require_possible(found, kept, storage.url)
    except SavepointRefused:
        log.commit(found)
        raise
    savepoints = found.savepoints
    if keep is not None:
        savepoints = savepoints | {keep: savepoint_of(log.latest, log.newest_path, clock())}
    after = replace(
        kept,
        epoch=found.epoch,
        committed_at=found.committed_at,
        clock=found.clock,
        claims=found.claims,
        is_over=False,
        totals=found.totals,
        output=replace(found.output, fed=kept.output.fed),
        snapshots=replace(found.snapshots, punctuations=kept.snapshots.punctuations),
        savepoints=savepoints,
        state=replace(kept.state, tokens={}),
    )
    log.commit(after)
    return found, after


def _require_possible(found: Checkpoint, kept: Checkpoint, location: str) -> None:
    """Raises SavepointRefused."""
    if found.fingerprint != kept.fingerprint and (found.output.staged or found.output.waiting):
        why = "the savepoint has other joins, and results of the last epoch may not be visible yet"
        raise SavepointRefused(f"{location}: {why}; run the join until it stops in order, and then roll back")
    if [requests_done(position) for position in found.input.positions] != [requests_done(position) for position in kept.input.positions]:
        why = "dead letters were read again since the savepoint, which cannot be done once more, so their records would be lost"
        raise SavepointRefused(f"{location}: {why}; begin another join with the savepoint, or go back to a later one")


def repeated(job: Job) -> dict[str, str]:
    """By join, where results that are found again appear again, beside those that are there."""
    return {
        join.name: "snapshots of results" if join.sink is None else sink_identity(join.sink)
        for join in job.joins
        if (isinstance(join.sink, SinkConnector) and not join.sink.replaces_by_key and not join.sink.is_shown) or join.snapshots is not None
    }
