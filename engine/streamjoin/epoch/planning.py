"""An epoch before its tasks: how much of each source it takes, and what the tasks are told. Nothing here writes.

Always holds: an epoch is planned from the last commit, and from where the epoch in flight will have brought the positions; what is late and
what has expired goes by watermarks that are known by then. So planning an epoch ahead gives what planning it after the commit would.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from streamjoin.elastic.shedding import shed_factor
from streamjoin.epoch.events import EpochPlans
from streamjoin.epoch.spec import EpochSpec, Handover, Rewrite, Shared, TooLarge, Upcoming
from streamjoin.io.base import Position, Source, SourcePlan
from streamjoin.job import Job
from streamjoin.language.sides import SIDES
from streamjoin.language.window import WindowKind
from streamjoin.state.log import Checkpoint

SMALL_BYTES = 2 << 20
"""So many bytes of blocks, and of results, an epoch's tasks may together leave to the driver, which writes them with the commit."""
MOST_SMALL_BYTES = 128 << 10
"""Of one task."""
SPLIT_BYTES = 64 << 20
"""Splits are planned to hold no more, as their records are in memory, and are given up when they have twice as much."""


@dataclass(frozen=True)
class Head:
    """Where planning goes on: after the last commit, or after the epoch in flight. Pairs are (left, right)."""

    epoch: int
    positions: tuple[Position | None, Position | None]
    records: tuple[int, int]
    expired: tuple[int | None, int | None]

    @classmethod
    def after(cls, checkpoint: Checkpoint) -> Head:
        return cls(checkpoint.epoch, checkpoint.positions, checkpoint.records, checkpoint.expired)


@dataclass(frozen=True)
class PlannedEpoch:
    """An epoch's spec, and what it was made from."""

    spec: EpochSpec
    inputs: tuple[SourcePlan, SourcePlan]
    plans: EpochPlans
    started_at: float

    @property
    def head(self) -> Head:
        left, right = self.inputs
        return Head(self.spec.epoch, (left.position, right.position), self.spec.records_after, self.spec.expired_before)

    @property
    def is_switch(self) -> bool:
        """Whether its commit is the switch to another plan."""
        return self.plans.before is not None

    @property
    def backlog_records(self) -> int:
        """What the sources have beyond it."""
        return sum(plan.backlog_records for plan in self.inputs)


def plan_inputs(
    job: Job, sources: tuple[Source, Source], last: Checkpoint, head: Head, now: float, *, final: bool
) -> tuple[SourcePlan, SourcePlan]:
    """What is new in both sources after ``head``: ``job.max_tuples`` records and about ``job.max_bytes`` together, by what records had
    before; half of them each, and what one leaves the other. A side that is held back as it is too far ahead leaves all of its half."""
    limit, room = job.max_tuples, float(job.max_bytes)

    def plan(side: int, records: int, nbytes: float) -> SourcePlan:
        width = last.widths[side]
        if not width:
            return sources[side].plan(head.positions[side], max(1, records), now, final)
        fitting, of_split = max(1, min(records, int(nbytes / width))), max(1, int(record_bytes(job) / width))
        return sources[side].plan(head.positions[side], fitting, now, final, split_records=of_split)

    left, right = (plan(side, limit // 2, room / 2) for side in SIDES)
    ahead = _side_ahead(job, last)
    if ahead is not None and (left, right)[1 - ahead].splits:
        held_back = _without_splits((left, right)[ahead], head, ahead)
        left, right = (held_back, right) if ahead == 0 else (left, held_back)
    spare = limit - left.records - right.records
    spare_bytes = room - left.records * last.widths[0] - right.records * last.widths[1]
    can_take = [bool(side.splits and side.backlog_records) for side in (left, right)]
    if spare > 0 and can_take == [True, False]:
        left = plan(0, left.records + spare, left.records * last.widths[0] + spare_bytes)
    elif spare > 0 and can_take == [False, True]:
        right = plan(1, right.records + spare, right.records * last.widths[1] + spare_bytes)
    return left, right


def _without_splits(plan: SourcePlan, head: Head, side: int) -> SourcePlan:
    """The plan to read nothing now, so that all of it is backlog."""
    backlog = plan.backlog_records + plan.records
    position, read = head.positions[side] or {}, head.records[side]
    return replace(plan, splits=(), position=position, records=0, end_record=read, backlog_records=backlog, exhausted=False)


def _side_ahead(job: Job, last: Checkpoint) -> int | None:
    """The side that is so far ahead in event time that reading on would only fill its state; it waits while the other has input."""
    left, right = last.watermarks
    if left is None or right is None or job.window.kind is not WindowKind.RANGE:
        return None
    distance = job.window.before_micros + job.window.after_micros + job.interval_micros
    if left > right + distance:
        return 0
    return 1 if right > left + distance else None


def record_bytes(job: Job) -> int:
    """What a split is planned to hold, and the most that one record may have."""
    return min(SPLIT_BYTES, job.max_bytes)


def make_spec(
    job: Job,
    last: Checkpoint,
    head: Head,
    inputs: tuple[SourcePlan, SourcePlan],
    plans: EpochPlans,
    config: Shared,
    *,
    incarnation: int,
    entry: str,
    now: float,
    refused: TooLarge | None = None,
    rewrite: Rewrite | None = None,
    is_last: bool = False,
    deadline_seconds: float,
) -> EpochSpec:
    """What the tasks of the epoch after ``head`` are told. ``entry`` is the path of the log's newest entry, which is ``last``; ``now`` is
    the wall clock. ``refused``: a split that was given up as too large; where it could not be cut, splits may hold anything now."""
    uncut = refused is not None and any(
        side == refused.side and split.first_record == refused.first_record and split.records >= refused.records
        for side in SIDES
        for split in inputs[side].splits
    )
    ranged = job.window.kind is WindowKind.RANGE
    follows = None if head.epoch == last.epoch else head.epoch
    watermarks = last.effective if follows is None else last.watermarks
    marks = watermarks if ranged else head.records
    current, before, upcoming = plans.current, plans.before, plans.upcoming
    filling = utilization(job, last)
    return EpochSpec(
        identity=last.identity,
        epoch=head.epoch + 1,
        incarnation=incarnation,
        config=config,
        scheme=current.shared,
        generation=current.generation,
        splits=tuple((side, split) for side in SIDES for split in inputs[side].splits),
        late_before=watermarks if ranged else (None, None),
        latest=(_latest(job, last, 0, inputs[0], now), _latest(job, last, 1, inputs[1], now)) if ranged else (None, None),
        expired_before=job.window.expired_before(marks),
        released_before=head.expired,
        is_last=is_last,
        records_before=head.records,
        records_after=(inputs[0].end_record, inputs[1].end_record),
        shed=tuple(
            shed_factor(job.shedding_model, job.shedding_base, job.tau2, filling.get(task, 0.0)) for task in range(current.scheme.tasks)
        ),
        tokens=last.tokens if follows is None and before is None else {},
        handover=None if before is None else Handover(before.shared, last.tokens),
        base=entry if last.stored and follows is None else None,
        record_bytes=record_bytes(job),
        split_bytes=None if uncut else 2 * record_bytes(job),
        upcoming=None if upcoming is None else Upcoming(upcoming.shared, plans.upcoming_tasks, entry),
        rewrite=None if before or upcoming else rewrite,
        small_bytes=min(MOST_SMALL_BYTES, SMALL_BYTES // current.scheme.tasks),
        follows=follows,
        deadline_seconds=deadline_seconds,
    )


def _latest(job: Job, last: Checkpoint, side: int, plan: SourcePlan, now: float) -> int:
    """The latest event time that a stream's tuples may have.

    It goes by the clock, so that old data is taken whatever its steps; and by the stream's newest where that is later, so that a clock that
    was set back stops nothing.
    """
    stream, watermark = job.streams[side], last.watermarks[side]
    known = [round(now * 1e6) if plan.event_now is None else plan.event_now]
    known += [partition.time_max for partition in last.partitions[side].values()]
    if watermark is not None:
        known.append(watermark + stream.watermark_micros)
    return max(known) + stream.max_ahead_micros


def utilization(job: Job, checkpoint: Checkpoint) -> dict[int, float]:
    """tau of each task: what it holds / capacity."""
    return {task: load / job.capacity.amount for task, load in loads_of(job, checkpoint).items()}


def loads_of(job: Job, checkpoint: Checkpoint) -> dict[int, float]:
    """What each task holds of both sides, in tuples or in bytes, as the job's capacity is."""
    left, right = job.weights(tuple_bytes(job, checkpoint))
    measured = checkpoint.held_bytes if job.capacity.in_bytes else checkpoint.held
    return {
        task: float(sum(measured[task])) if task in measured else left * tuples[0] + right * tuples[1]
        for task, tuples in checkpoint.held.items()
    }


def tuple_bytes(job: Job, checkpoint: Checkpoint) -> tuple[float, float]:
    """Bytes of a held tuple, by side: of those that workers hold, and by the schema where they hold none. O(tasks)."""
    tuples = [sum(held[side] for task, held in checkpoint.held.items() if task in checkpoint.held_bytes) for side in SIDES]
    nbytes = [sum(held[side] for held in checkpoint.held_bytes.values()) for side in SIDES]
    left, right = (
        nbytes[side] / tuples[side] if nbytes[side] and tuples[side] else job.streams[side].tuple_bytes for side in SIDES
    )
    return left, right
