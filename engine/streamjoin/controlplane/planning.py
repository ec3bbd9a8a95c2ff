"""Plans an epoch: how much it reads of each source, and what its tasks are told. Nothing here writes.

Always holds: an epoch is planned from the last commit, and from where the epoch in flight will have brought the positions; what is late and
what has expired goes by watermarks that are known by then. So planning an epoch ahead gives what planning it after the commit would.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from streamjoin import sizing
from streamjoin.chain.blocksize import Load, theorem_1
from streamjoin.controlplane.caution import Caution
from streamjoin.controlplane.events import EpochPlans
from streamjoin.controlplane.losses import can_lose
from streamjoin.elastic.path_plans import PathPlans
from streamjoin.elastic.settings import Mode
from streamjoin.elastic.shedding import shed_factor
from streamjoin.epoch.ports import EpochFailed, Running
from streamjoin.epoch.spec import EpochSpec, Handover, Rewrite, Shared, Upcoming
from streamjoin.io.base import Position, Source, SourcePlan
from streamjoin.job import Job, JoinSource
from streamjoin.language.predicate import INT64_MAX
from streamjoin.language.sides import SIDES
from streamjoin.language.window import Ends, WindowKind
from streamjoin.retention import expired_before
from streamjoin.scheme.models import HANDSHAKE
from streamjoin.sizing import weights_of
from streamjoin.state.checkpoint import Checkpoint

SMALL_BYTES = 2 << 20
"""The bytes of blocks, and of results, that an epoch's tasks may together leave to the driver, which writes them with the commit."""
MOST_SMALL_BYTES = 128 << 10
"""The same for one task."""
MOST_BLOCKS = 64
"""Most blocks of a chain that an epoch's new tuples make, and that a worker's share of the held ones makes."""
SPLIT_BYTES = 64 << 20
"""Splits are planned to hold no more, as their records are in memory, and are given up when they have twice as much."""

FULL = "the fullest worker holds as much as it may or more (tau is at or above 1)"
APART_TIMES = 4
"""The deadline of an epoch whose splits are read apart is so many times as long: each of them may have to be halved often."""


@dataclass(frozen=True)
class Head:
    """Where planning goes on: after the last commit, or after the epoch in flight. By stream, but ``expired`` by place."""

    epoch: int
    positions: tuple[Position | None, ...]
    records: tuple[int, ...]
    expired: Ends

    @classmethod
    def after(cls, checkpoint: Checkpoint) -> Head:
        return cls(checkpoint.epoch, checkpoint.input.positions, checkpoint.input.records, checkpoint.state.expired)


@dataclass(frozen=True)
class PlannedEpoch:
    """An epoch's spec, and what it was made from."""

    spec: EpochSpec
    inputs: tuple[SourcePlan, ...]
    plans: EpochPlans
    started_at: float

    @property
    def head(self) -> Head:
        positions = tuple(plan.position for plan in self.inputs)
        return Head(self.spec.epoch, positions, self.spec.records_after, self.spec.expired_before)

    @property
    def is_switch(self) -> bool:
        """Whether its commit is the switch to another plan."""
        return self.plans.before is not None

    @property
    def backlog_records(self) -> int:
        """Records that the sources have beyond this epoch."""
        return sum(plan.backlog_records for plan in self.inputs)


@dataclass(frozen=True)
class Flight:
    """An epoch that was handed to the runner."""

    epoch: PlannedEpoch
    running: Running


def plan_inputs(
    job: Job,
    sources: Sequence[Source],
    last: Checkpoint,
    head: Head,
    now: float,
    *,
    final: bool,
    caution: Caution = Caution(),  # noqa: B008 - it is frozen
) -> tuple[SourcePlan, ...]:
    """Plan what to read of all sources after ``head``: together at most ``job.max_tuples`` records, and about ``job.max_bytes`` by the size
    of earlier records. Each source has an even share, and may take what others leave. A stream that is held back, because it is too far
    ahead, leaves all of its share. ``caution``: fewer records, or those of one stream."""
    limit, room, widths = caution.records or job.max_tuples, float(job.max_bytes), last.input.widths
    streams = range(len(sources))

    def plan(stream: int, records: int, nbytes: float) -> SourcePlan:
        width = widths[stream]
        if not width:
            return sources[stream].plan(head.positions[stream], max(1, records), now, final)
        fitting, of_split = max(1, min(records, int(nbytes / width))), max(1, int(record_bytes(job) / width))
        return sources[stream].plan(head.positions[stream], fitting, now, final, split_records=of_split)

    def nothing(stream: int) -> SourcePlan:
        return plans[stream].without_splits(head.positions[stream], head.records[stream])

    plans = [plan(stream, limit // len(sources), room / len(sources)) for stream in streams]
    if caution.stream is not None and plans[caution.stream].splits:
        return tuple(plans[stream] if stream == caution.stream else nothing(stream) for stream in streams)
    ahead = _ahead(job, last)
    if any(plans[stream].splits for stream in streams if stream not in ahead):
        for stream in ahead:
            plans[stream] = nothing(stream)
    if not final and (full := full_text(job, last)):
        for stream, behind in _ahead_of(job, last).items():
            if plans[stream].splits:
                why = f"{full}; {job.streams[stream].name} is not read until {behind}"
                plans[stream] = replace(nothing(stream), warnings=(*plans[stream].warnings, why))
    spare = limit - sum(each.records for each in plans)
    spare_bytes = room - sum(plans[stream].records * widths[stream] for stream in streams)
    hungry = [stream for stream in streams if plans[stream].splits and plans[stream].backlog_records]
    if spare > 0 and 0 < len(hungry) < len(sources):
        for stream in hungry:
            records = plans[stream].records
            more, more_bytes = spare // len(hungry), spare_bytes / len(hungry)
            plans[stream] = plan(stream, records + more, records * widths[stream] + more_bytes)
    return tuple(plans)


def is_full(job: Job, checkpoint: Checkpoint) -> bool:
    """Whether the fullest worker holds its capacity or more. O(tasks)."""
    return max(utilization(job, checkpoint).values(), default=0.0) >= 1


def full_text(job: Job, last: Checkpoint) -> str:
    """What is said where the fullest worker holds its capacity or more; empty: it does not. Raises EpochFailed where that is to fail."""
    if not is_full(job, last):
        return ""
    if job.when_full == "fail":
        remedy = "raise spec.workers.max or the capacity of a worker, or choose another whenFull"
        raise EpochFailed(f"epoch {last.epoch + 1}: {FULL}, and spec.scaling.whenFull is fail; {remedy}", permanent=True)
    return FULL


def _ahead_of(job: Job, last: Checkpoint) -> dict[int, str]:
    """The streams that are ahead of another one in event time, and what they are to wait for, as reading on would only fill workers."""
    if job.window.kind is not WindowKind.RANGE or job.when_full != "backpressure":
        return {}
    read = [stream for stream, each in enumerate(job.streams) if not isinstance(each.source, JoinSource)]
    marks = {stream: -INT64_MAX if (mark := last.input.watermarks[stream]) is None else mark for stream in read}
    least = min(marks, key=lambda stream: marks[stream])
    remedy = "add workers or capacity, or give that stream an idleTimeout"
    behind = f"{job.streams[least].name} has caught up in event time; {remedy}"
    return {stream: behind for stream in read if marks[stream] > marks[least]}


def _ahead(job: Job, last: Checkpoint) -> list[int]:
    """The streams that are so far ahead of some other in event time that reading on would only fill their state; they wait while others
    have input."""
    known = [mark for mark in last.input.watermarks if mark is not None]
    if len(known) < len(last.input.watermarks) or job.window.kind is not WindowKind.RANGE:
        return []
    distance = job.window.before_micros + job.window.after_micros + job.interval_micros
    return [stream for stream, mark in enumerate(known) if mark > min(known) + distance]


def record_bytes(job: Job) -> int:
    """What a split is planned to hold, and the most that one record may have."""
    return min(SPLIT_BYTES, job.max_bytes)


def make_spec(
    job: Job,
    last: Checkpoint,
    head: Head,
    inputs: tuple[SourcePlan, ...],
    plans: EpochPlans,
    config: Shared,
    path_plans: PathPlans,
    *,
    incarnation: int,
    entry: str,
    now: float,
    caution: Caution = Caution(),  # noqa: B008 - it is frozen
    rewrite: Rewrite | None = None,
    ended: frozenset[int] = frozenset(),
    deadline_seconds: float,
) -> EpochSpec:
    """The spec for the tasks of the epoch after ``head``. ``entry`` is the path of the log's newest entry, which is ``last``; ``now`` is
    the wall clock. Where a split was given up as too large, and could not be cut, splits may hold anything now."""
    refused = caution.refused
    uncut = refused is not None and any(
        stream == refused.stream and split.first_record == refused.first_record and split.records >= refused.records
        for stream, plan in enumerate(inputs)
        for split in plan.splits
    )
    ranged = job.window.kind is WindowKind.RANGE
    follows = None if head.epoch == last.epoch else head.epoch
    watermarks = last.input.effective if follows is None else last.input.watermarks
    marks = watermarks if ranged else head.records
    current, before, upcoming = plans.current, plans.before, plans.upcoming
    filling = utilization(job, last)
    nothing = (None,) * len(inputs)
    factors = tuple(
        shed_factor(job.shedding_model, job.shedding_base, job.tau2, filling.get(task, 0.0)) for task in range(current.scheme.tasks)
    )
    return EpochSpec(
        identity=last.identity,
        epoch=head.epoch + 1,
        incarnation=incarnation,
        config=config,
        scheme=current.shared,
        generation=current.generation,
        splits=tuple((stream, split) for stream, plan in enumerate(inputs) for split in plan.splits),
        late_before=watermarks if ranged else nothing,
        latest=tuple(_latest(job, last, stream, plan, now) for stream, plan in enumerate(inputs)) if ranged else nothing,
        expired_before=expired_before(job, marks),
        released_before=head.expired,
        ended=ended,
        records_before=head.records,
        records_after=tuple(plan.end_record for plan in inputs),
        # What each holds under a plan whose first epoch this is, nobody has measured yet.
        filling=filling if before is None else dict.fromkeys(range(current.scheme.tasks), 1.0),
        shed=factors if job.shedding_mode is Mode.ENFORCE and any(factors) else (),
        would_shed=factors if job.shedding_mode is Mode.RECOMMEND and any(factors) else (),
        tokens=last.state.tokens if follows is None and before is None else {},
        handover=None if before is None else Handover(before.shared, last.state.tokens),
        base=entry if last.state.stored and follows is None else None,
        path_plans=path_plans,
        record_bytes=record_bytes(job),
        split_bytes=None if uncut else 2 * record_bytes(job),
        upcoming=None if upcoming is None else Upcoming(upcoming.shared, plans.upcoming_tasks, entry),
        rewrite=None if before or upcoming else rewrite,
        small_bytes=min(MOST_SMALL_BYTES, SMALL_BYTES // current.scheme.tasks),
        follows=follows,
        block_tuples=block_tuples(job, last, inputs, current.scheme.tasks) if current.scheme.model == HANDSHAKE else 1,
        counts_groups=can_lose(job) and last.losses.are_any,
        apart=caution.apart,
        rejects=caution.rejects,
        deadline_seconds=deadline_seconds * (APART_TIMES if caution.apart else 1),
    )


def block_tuples(job: Job, last: Checkpoint, inputs: Sequence[SourcePlan], tasks: int) -> int:
    """How many tuples a chain's workers send on at once: Theorem 1 of "Saving Communication Cost", on average of both streams.

    Its rate times window (by Little's law, the tuples held) is measured as these, so it is right as well where event time goes by faster
    than the clock, and where a window does not go by time. At least so many that what an epoch brings, and what a worker holds, makes
    ``MOST_BLOCKS`` blocks: where workers are full, the theorem says 1.
    """
    held = [sum(of_task[place] for of_task in last.state.held.values()) for place in range(len(job.places))]
    new = max(plan.records for plan in inputs)
    # Half of a worker's capacity is for each stream.
    capacity = max(1, int(job.capacity.amount / sum(weights_of(job, tuple_bytes(job, last)))))
    load = Load(max(sum(held) / len(held), float(new), 1.0), 1.0, tasks, capacity)
    return max(theorem_1(load, job.scheme_options.alpha), math.ceil(max(new, load.share) / MOST_BLOCKS))


def _latest(job: Job, last: Checkpoint, number: int, plan: SourcePlan, now: float) -> int:
    """The latest event time that a stream's tuples may have.

    It goes by the clock alone, so that old data is taken whatever its steps, and no tuple makes room for one that is further ahead; and by
    the latest that the clock has shown, so that setting it back stops nothing.
    """
    stream = job.streams[number]
    if isinstance(stream.source, JoinSource):
        return INT64_MAX
    return (round(max(now, last.clock) * 1e6) if plan.event_now is None else plan.event_now) + stream.max_ahead_micros


def utilization(job: Job, checkpoint: Checkpoint) -> dict[int, float]:
    """tau of each task: what it holds / capacity."""
    return {task: load / job.capacity.amount for task, load in loads_of(job, checkpoint).items()}


def loads_of(job: Job, checkpoint: Checkpoint) -> dict[int, float]:
    """The load of each task: what it holds in all places, in the unit of the job's capacity (tuples or bytes)."""
    weights = weights_of(job, tuple_bytes(job, checkpoint))
    measured = checkpoint.state.held_bytes if job.capacity.in_bytes else checkpoint.state.held
    return {
        task: float(sum(measured[task])) if task in measured else sum(weight * held for weight, held in zip(weights, tuples, strict=True))
        for task, tuples in checkpoint.state.held.items()
    }


def tuple_bytes(job: Job, checkpoint: Checkpoint) -> tuple[float, ...]:
    """Bytes of a held tuple, by place: of those that workers hold, and by the schema where they hold none. O(tasks)."""

    def width(place: int) -> float:
        tuples = sum(held[place] for task, held in checkpoint.state.held.items() if task in checkpoint.state.held_bytes)
        nbytes = sum(held[place] for held in checkpoint.state.held_bytes.values())
        if nbytes and tuples:
            return nbytes / tuples
        if len(job.streams) > len(SIDES) and place >= len(job.places):
            return 0.0  # of a join that was removed, until the commit that changes the joins; nothing is held there
        return job.streams[job.stream_of(place)].tuple_bytes

    places = next((len(held) for held in checkpoint.state.held.values()), len(job.places))
    return tuple(map(width, range(places)))


def weights_of_sides(job: Job, checkpoint: Checkpoint) -> tuple[float, float]:
    """``sizing.weights_of_sides`` by what this checkpoint holds. O(tasks)."""
    held = [sum(of_task[place] for of_task in checkpoint.state.held.values()) for place in range(len(job.places))]
    return sizing.weights_of_sides(job, tuple_bytes(job, checkpoint), held)
