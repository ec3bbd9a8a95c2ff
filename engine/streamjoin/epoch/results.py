"""When results become visible: with their epoch, or, where they are little, together with those of the next ones.

A commit names what it makes visible (``staged``), and what a later one will (``waiting``), whose data it keeps. A crash at any line leaves
both as the last commit has them: what is staged is published again, what waits goes on waiting.

Always holds: each result is in exactly one of the two, of one commit, and becomes visible once; nothing waits longer than the sink says
while the driver runs, and nothing at all once the input is over.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass, replace

from streamjoin.epoch.spec import attempt_prefix
from streamjoin.io.base import Staged
from streamjoin.io.several import Sinks
from streamjoin.state.extent import Segment, read_extents
from streamjoin.state.log import Checkpoint
from streamjoin.state.storage import Storage

SINK = "sink"
GATHER_BYTES = 4 << 20
"""So much does not wait for more."""


@dataclass(frozen=True)
class Results:
    """Results of epochs that are committed, or about to be. With their data."""

    staged: tuple[Staged, ...] = ()
    waiting: tuple[Staged, ...] = ()
    since: float | None = None
    """The wall clock when the first of those that wait came."""

    @classmethod
    def of(cls, checkpoint: Checkpoint, storage: Storage) -> Results:
        """As the last commit has them. Raises StorageError."""
        found = [Staged.from_json(value) for value in (*checkpoint.staged.get(SINK, []), *checkpoint.waiting)]
        kept = [staged.extent for staged in found if staged.extent]
        data = dict(zip(kept, read_extents(storage, kept), strict=True))
        whole = [replace(staged, data=bytes(data[staged.extent])) if staged.extent else staged for staged in found]
        count = len(whole) - len(checkpoint.waiting)
        return cls(tuple(whole[:count]), tuple(whole[count:]), checkpoint.waiting_since)

    def are_due(self, sink: Sinks, now: float, interval_seconds: float) -> bool:
        """Whether those that wait should not wait for another epoch."""
        if self.since is None:
            return False
        is_set_back = now < self.since  # the clock, which does not say then how long they have waited
        waited = now + interval_seconds - self.since
        return is_set_back or waited >= sink.gather_seconds or sum(len(staged.data) for staged in self.waiting) >= GATHER_BYTES

    def with_epoch(self, new: Sequence[Staged], now: float) -> Results:
        """After another epoch, which staged these."""
        waiting = (*self.waiting, *(staged for staged in new if staged.data))
        since = self.since if self.waiting else now
        return Results(tuple(staged for staged in new if not staged.data), waiting, since if waiting else None)

    def gathered(self, sink: Sinks, identity: str, incarnation: int, epoch: int) -> Results:
        """With those that waited about to be visible. They are those of epochs up to this one. Raises SinkError, StorageError."""
        name = f"{attempt_prefix(identity, incarnation, epoch)}-small-{uuid.uuid4().hex[:8]}"
        return Results((*self.staged, *sink.gather(self.waiting, name, f"{identity}-{epoch:012d}-small")))

    def kept_in(self, segment: Segment) -> Results:
        """With all data where it will be once the segment is committed."""

        def kept(staged: Staged) -> Staged:
            return replace(staged, extent=segment.add(staged.data)) if staged.data and not staged.extent else staged

        return Results(tuple(map(kept, self.staged)), tuple(map(kept, self.waiting)), self.since)

    def committed_by(self, checkpoint: Checkpoint) -> Checkpoint:
        """The checkpoint with these."""
        return replace(
            checkpoint,
            staged=checkpoint.staged | {SINK: [staged.to_json() for staged in self.staged]},
            waiting=tuple(staged.to_json() for staged in self.waiting),
            waiting_since=self.since,
        )
