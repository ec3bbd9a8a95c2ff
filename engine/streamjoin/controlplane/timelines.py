"""Snapshots of results, as the loop handles them: what each commit says of them, and the publishers that store closed ones.

Always holds: which result is in which snapshot follows from commits alone (``snapshots.timeline``); an epoch waits for a store only if more
bytes wait for the store than ``output.snapshots.buffer`` allows.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from streamjoin.controlplane.planning import PlannedEpoch
from streamjoin.epoch.reports import TaskReport
from streamjoin.epoch.spec import attempt_prefix
from streamjoin.io.base import UnavailableError
from streamjoin.job import Job
from streamjoin.kernel.types import output_schema
from streamjoin.results.factory import opener
from streamjoin.results.parts import Form, gather
from streamjoin.results.publisher import Kept, Publisher, StoreState
from streamjoin.snapshots.punctuation import WHOLE, Came, Pending
from streamjoin.snapshots.timeline import Rule, Timeline
from streamjoin.state.checkpoint import Checkpoint, SnapshotState
from streamjoin.state.checks import ChangedError
from streamjoin.state.extent import Segment
from streamjoin.state.storage import Storage

ROOM_SECONDS = 30.0
"""The time that an epoch waits for room. Then it fails, and is tried again, as with a sink that is out of reach."""
STOP_SECONDS = 30.0
"""The time that the end of a run waits for stores that have not failed."""


def forms_of(job: Job) -> dict[str, Form]:
    """The forms of snapshots that tasks must know, by join."""
    return {join.name: Form(output_schema(join.output), join.snapshots.key) for join in job.joins if join.snapshots is not None}


@dataclass(frozen=True)
class SnapshotsState:
    """The state of one join's snapshots."""

    next_id: int
    waiting: int
    """Snapshots that are closed and not in their store."""
    waiting_bytes: int
    buffer_bytes: int
    """The join waits where more waits for the store."""
    failing_seconds: float
    """For how long attempts to store have failed; 0: the last one did not."""
    store: StoreState

    def told(self, join: str) -> str:
        """A sentence that says what waits, and why."""
        why = "" if self.store.error is None else f": {self.store.error}"
        return f"{self.waiting} snapshots of {join} wait, {self.waiting_bytes:,} of {self.buffer_bytes:,} bytes{why}"


class Timelines:
    """One driver's. :meth:`states` may be asked by any thread, the rest by one."""

    def __init__(self, job: Job, storage: Storage, *, clock: Callable[[], float] = time.time, in_background: bool = True) -> None:
        """``in_background``: whether what is closed is stored by a thread of its own, or by that which commits, after each commit."""
        self._storage, self._clock = storage, clock
        self._joins = {join.name: join.snapshots for join in job.joins if join.snapshots is not None}
        self._forms = {name: form.text for name, form in forms_of(job).items()}
        self._in_background = in_background
        self._has_punctuations = all(stream.punctuation is not None for stream in job.streams)
        self._query = job.name
        self._fields = {join.name: f"spec.joins[{number}].output.snapshots.store" for number, join in enumerate(job.joins)}
        self._publishers: dict[str, Publisher] = {}
        """By join. Those whose snapshots have begun before have one, too, with no store but the files."""

    def start(self, checkpoint: Checkpoint) -> None:
        """Store what the last commit names. Raises StorageError."""
        for join in self._names(checkpoint):
            publisher = Publisher(self._storage, join, self._kept(join, checkpoint.identity), clock=self._clock)
            timeline = checkpoint.snapshots.timelines.get(join)
            self._publishers[join] = publisher
            if timeline is not None:
                publisher.offer(timeline)
                publisher.sweep()
            if self._in_background:
                publisher.start()
        if not self._in_background:
            self._work()

    def after(
        self, last: Checkpoint, incarnation: int, epoch: PlannedEpoch, reports: Sequence[TaskReport], segment: Segment, now: float
    ) -> SnapshotState:
        """Those that the commit of an epoch is to have. Puts few rows into ``segment``. Raises
        StorageError."""
        after, number = {}, epoch.spec.epoch
        pending, marks = last.snapshots.punctuations.after(_came(epoch, reports)) if self._has_punctuations else (Pending(), ())
        for join in self._names(last):
            timeline = self._stored(last, join)
            small = timeline.to_gather()
            if small:
                name = f"{attempt_prefix(last.identity, incarnation, number)}-snapshot-{uuid.uuid4().hex[:8]}"
                with suppress(ChangedError):  # they stay as they are; who is to store the snapshot says so, and the join goes on
                    timeline = timeline.gathered(small, gather(self._storage, small, name))
            parts = [part.kept_in(segment) for report in reports for part in report.snapshot_parts.get(join, ())]
            after[join] = timeline.with_rows(self._rule(join), number, parts, self._forms.get(join, ""), now, marks=marks)
        return SnapshotState(after, pending)

    def are_due(self, checkpoint: Checkpoint, now: float, *, end: bool) -> bool:
        """Whether one is to be closed although nothing is new. ``end``: the input is over."""
        timelines = checkpoint.snapshots.timelines.items()
        return any(timeline.open is not None and (end or timeline.is_due(self._rule(join), now)) for join, timeline in timelines)

    def owe(self, checkpoint: Checkpoint) -> bool:
        """Whether one is yet to be stored, or will end by the clock alone."""
        ends = ((timeline.open, self._rule(join)) for join, timeline in checkpoint.snapshots.timelines.items())
        are_open = any(of is not None and rule is not None and rule.every_seconds is not None for of, rule in ends)
        return are_open or any(self._stored(checkpoint, join).closed for join in checkpoint.snapshots.timelines)

    def between(self, last: Checkpoint, now: float, *, end: bool) -> SnapshotState:
        """Those that a commit without an epoch is to have."""
        after = {join: self._stored(last, join).with_rows(self._rule(join), last.epoch, (), "", now, end=end) for join in self._names(last)}
        return replace(last.snapshots, timelines=after)

    def committed(self, timelines: Mapping[str, Timeline]) -> None:
        """These timelines are in the last commit. If snapshots are not stored in the background, store them, and raise what storing
        raises."""
        for join, timeline in timelines.items():
            if join in self._publishers:  # there are none before the start
                self._publishers[join].offer(timeline)
        if not self._in_background:
            self._work()

    def _work(self) -> None:
        for publisher in self._publishers.values():
            while publisher.work():
                pass

    def make_room(self, checkpoint: Checkpoint) -> None:
        """Wait until no more waits for its store than there is room for. Raises UnavailableError."""
        for join, of_join in self._joins.items():
            timeline, publisher = checkpoint.snapshots.of(join), self._publishers[join]

            def has_room(timeline: Timeline = timeline, publisher: Publisher = publisher, room: int = of_join.buffer_bytes) -> bool:
                return timeline.without(publisher.stored.ids, ()).waiting_bytes <= room

            if not publisher.wait(has_room, ROOM_SECONDS):
                because = publisher.state.error or "it is slower than the join"
                raise UnavailableError(
                    f"the store of {join}'s snapshots does not keep up ({because}), and more waits for it than output.snapshots.buffer"
                    f" ({of_join.buffer_bytes} bytes) has room for; mend the store, or give the buffer more"
                )

    def states(self, checkpoint: Checkpoint) -> dict[str, SnapshotsState]:
        """The state of snapshots, by join. Any thread may call this."""
        now, found = self._clock(), {}
        for join, of_join in self._joins.items():
            publisher = self._publishers.get(join)
            store = StoreState() if publisher is None else publisher.state
            timeline, waiting = checkpoint.snapshots.of(join), self._stored(checkpoint, join)
            failing = 0.0 if store.failing_since is None else max(0.0, now - store.failing_since)
            found[join] = SnapshotsState(timeline.next_id, len(waiting.closed), waiting.waiting_bytes, of_join.buffer_bytes, failing, store)
        return found

    def stop(self) -> None:
        """Store what is closed, as far as that works, and end the thread. What is left is in the last commit."""
        for publisher in self._publishers.values():
            publisher.stop(STOP_SECONDS)

    def _kept(self, join: str, checkpoint: str) -> Kept:
        of_join = self._joins.get(join)
        if of_join is None or of_join.store is None:
            return Kept(None if of_join is None else of_join.keep_seconds)
        field, keep = self._fields[join], of_join.keep_seconds
        store = opener(of_join.store, query=self._query, join=join, checkpoint=checkpoint, keep_seconds=keep, field=field)
        return Kept(keep, store)

    def _names(self, last: Checkpoint) -> list[str]:
        return list(dict.fromkeys((*self._joins, *last.snapshots.timelines)))

    def _rule(self, join: str) -> Rule | None:
        of_join = self._joins.get(join)
        return None if of_join is None else of_join.rule

    def _stored(self, last: Checkpoint, join: str) -> Timeline:
        publisher, timeline = self._publishers.get(join), last.snapshots.of(join)
        return timeline if publisher is None else timeline.without(publisher.stored.ids, publisher.stored.sorted_ids)


def _came(epoch: PlannedEpoch, reports: Sequence[TaskReport]) -> list[Came]:
    """The punctuations that the epoch has read, by stream."""
    ids: list[dict[int, list[str]]] = [{} for _ in epoch.inputs]
    for report in reports:
        for route in report.routes:
            if route.punctuations:
                partition = WHOLE if route.partition is None else route.partition
                ids[route.stream].setdefault(partition, []).extend(route.punctuations)
    partitions = [frozenset(plan.backlog_by_partition) or frozenset((WHOLE,)) for plan in epoch.inputs]
    return [Came(*of_stream) for of_stream in zip(ids, partitions, strict=True)]
