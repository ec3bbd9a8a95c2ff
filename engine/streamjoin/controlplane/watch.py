"""Asks the sources of a join that is not running whether they have something that it has not read.

Always holds: nothing is claimed, consumed or written; the same commit and the same input give the same answer, whoever asks.
"""

from __future__ import annotations

from streamjoin.controlplane.deployment import make_sources
from streamjoin.job import Job
from streamjoin.state.log import read_latest
from streamjoin.state.storage import Storage


class Watch:
    """Of the last commit, as it was when this was made. One thread's."""

    def __init__(self, job: Job, storage: Storage) -> None:
        """Raises SourceError, StorageError."""
        latest = read_latest(storage)
        self._positions = () if latest is None else latest.checkpoint.input.positions
        self._names = [stream.name for stream in job.streams]
        self._sources = make_sources(job, storage, writes=False)

    def found(self, now: float) -> str | None:
        """What there is to do, as a sentence; None: nothing. ``now``: seconds since 1970. As many requests as a driver makes if
        nothing is new. Raises SourceError, UnavailableError, StorageError."""
        if len(self._positions) != len(self._sources) or not all(self._positions):
            return "the checkpoint does not say where to go on in each stream"
        for name, source, position in zip(self._names, self._sources, self._positions, strict=True):
            plan = source.plan(position, 1, now)
            if plan.splits or plan.waiting_records > 0:
                return f"{name} has records that were not read"
        return None
