"""Decides when results become visible: with their epoch or, if they are few, together with those of the next epochs.

A commit names the results that it makes visible (``staged``) and those that a later commit will make visible (``waiting``), whose data it
keeps. A crash at any line leaves both as the last commit has them: staged results are published again, waiting results go on waiting.

A commit also says to which places its results go (:func:`places`). A driver whose manifest says another place refuses to go on, because it
would look for the files there.

Always holds: each result is in exactly one of the two, of one commit, and becomes visible once; nothing waits longer than the sink says
while the driver runs, and nothing at all once the input is over.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from streamjoin.epoch.ports import CheckpointMismatch
from streamjoin.epoch.spec import attempt_prefix
from streamjoin.io.base import Staged
from streamjoin.io.deadletter import GATHER_SECONDS, TAG
from streamjoin.io.several import Sinks, tags
from streamjoin.job import Job, sink_identity
from streamjoin.state.checkpoint import Checkpoint
from streamjoin.state.extent import Segment, read_extents
from streamjoin.state.storage import Storage

SINK, LETTERS = "sink", "deadLetter"
"""What goes to a place: results, and dead letters."""
GATHER_BYTES = 4 << 20
"""Results of this many bytes do not wait for more."""


@dataclass(frozen=True)
class Results:
    """Results of epochs that are committed, or about to be. With their data."""

    staged: tuple[Staged, ...] = ()
    waiting: tuple[Staged, ...] = ()
    since: float | None = None
    """The wall clock when the first of the results that wait came; dead letters say so themselves."""
    places: Sequence[Mapping[str, str]] = field(default=(), repr=False)
    """Where they go, and dead letters too (:func:`places`)."""

    @classmethod
    def of(cls, checkpoint: Checkpoint, storage: Storage, job: Job) -> Results:
        """The results as the last commit has them. Raises StorageError, and CheckpointMismatch if they are not for the places of the
        manifest."""
        going = places(job)
        _check(checkpoint, going, job)
        found = [Staged.from_json(value) for value in checkpoint.output.staged + checkpoint.output.waiting]
        kept = [staged.extent for staged in found if staged.extent]
        data = dict(zip(kept, read_extents(storage, kept), strict=True))
        whole = [replace(staged, data=bytes(data[staged.extent])) if staged.extent else staged for staged in found]
        count = len(whole) - len(checkpoint.output.waiting)
        return cls(tuple(whole[:count]), tuple(whole[count:]), checkpoint.output.waiting_since, going)

    @property
    def outputs(self) -> dict[str, str]:
        """By tag of a join, where its results go."""
        return {place.get("join", ""): place["to"] for place in self.places if place["of"] == SINK}

    def due(self, sink: Sinks, now: float, interval_seconds: float) -> list[Staged]:
        """Those that should not wait for another epoch."""

        def are_due(waiting: Sequence[Staged], since: float | None, gather_seconds: float) -> bool:
            if since is None:
                return False
            is_set_back = now < since  # the clock, which does not say then how long they have waited
            waited = now + interval_seconds - since
            return is_set_back or waited >= gather_seconds or sum(len(staged.data) for staged in waiting) >= GATHER_BYTES

        letters = [staged for staged in self.waiting if staged.join == TAG]
        results = [staged for staged in self.waiting if staged.join != TAG]
        letters_since = min((staged.since for staged in letters if staged.since is not None), default=None)
        found = results if are_due(results, self.since, sink.gather_seconds) else []
        return found + (letters if are_due(letters, letters_since, GATHER_SECONDS) else [])

    def with_epoch(self, new: Sequence[Staged], now: float) -> Results:
        """After another epoch, which staged these."""
        small = [replace(staged, since=now) if staged.join == TAG else staged for staged in new if staged.data]
        waiting = (*self.waiting, *small)
        since = now if self.since is None else self.since
        staged = tuple(staged for staged in new if not staged.data)
        return replace(self, staged=staged, waiting=waiting, since=_since(waiting, since))

    def gathered(self, due: Sequence[Staged], sink: Sinks, identity: str, incarnation: int, epoch: int) -> Results:
        """The same, with some of those that wait staged to become visible; they are of epochs up to this one. O(those that wait).
        ``due``: objects of ``waiting``. Raises SinkError, StorageError."""
        name = f"{attempt_prefix(identity, incarnation, epoch)}-small-{uuid.uuid4().hex[:8]}"
        staged = (*self.staged, *sink.gather(due, name, f"{identity}-{epoch:012d}-small"))
        going = set(map(id, due))  # they are many, and to compare them would be to compare their data
        waiting = tuple(each for each in self.waiting if id(each) not in going)
        return replace(self, staged=staged, waiting=waiting, since=_since(waiting, self.since))

    def kept_in(self, segment: Segment) -> Results:
        """The same, with all data in the segment, where it is once that is committed."""

        def kept(staged: Staged) -> Staged:
            return replace(staged, extent=segment.add(staged.data)) if staged.data and not staged.extent else staged

        return replace(self, staged=tuple(map(kept, self.staged)), waiting=tuple(map(kept, self.waiting)))

    def committed_by(self, checkpoint: Checkpoint) -> Checkpoint:
        """The checkpoint with these."""
        staged, waiting = (tuple(each.to_json() for each in results) for results in (self.staged, self.waiting))
        going = tuple(map(dict, self.places)) if staged or waiting else ()
        output = replace(checkpoint.output, staged=staged, waiting=waiting, waiting_since=self.since, places=going)
        return replace(checkpoint, output=output)


def _since(waiting: Sequence[Staged], since: float | None) -> float | None:
    """Since when results wait, if any do."""
    return since if any(staged.join != TAG for staged in waiting) else None


def places(job: Job) -> list[dict[str, str]]:
    """The places where each join's results, and dead letters, go."""
    known = tags(join.name for join in job.joins)
    letters = job.dead_letter.removeprefix(f"{job.checkpoint}/")  # of a checkpoint that is reached by another path now, it is the same
    return [
        *({"of": SINK, "join": known[join.name], "to": sink_identity(join.sink)} for join in job.joins),
        {"of": LETTERS, "to": f"files in {letters}"},
    ]


def _check(checkpoint: Checkpoint, going: Sequence[Mapping[str, str]], job: Job) -> None:
    before, now = _by_owner(checkpoint.output.places), _by_owner(going)
    names = {tag: name for name, tag in tags(join.name for join in job.joins).items()}
    for owner in _owners(checkpoint):
        if owner in before and before[owner] != now[owner]:
            kind, join = owner
            field_name = f"spec.joins[{names[join]}].output.sink" if kind == SINK else "spec.deadLetter.location"
            raise CheckpointMismatch(
                f"{field_name}: epoch {checkpoint.epoch} is committed with results for {before[owner]}, where they may not be visible yet,"
                f" and now it is {now[owner]}; run with {before[owner]} until the driver stops in order, then change it, or choose a new"
                f" checkpoint.location (this one is {job.checkpoint})"
            )


def _by_owner(found: Sequence[Mapping[str, str]]) -> dict[tuple[str, str], str]:
    return {(place["of"], place.get("join", "")): place["to"] for place in found}


def _owners(checkpoint: Checkpoint) -> Iterator[tuple[str, str]]:
    """Of what may not be visible yet."""
    for value in checkpoint.output.staged + checkpoint.output.waiting:
        yield (LETTERS, "") if value.get("join") == TAG else (SINK, value.get("join", ""))
