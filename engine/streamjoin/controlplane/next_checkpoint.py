"""Pure functions that turn the reports of an epoch's tasks into the next checkpoint, and into the epoch's account.

Always holds: the checkpoint after an epoch follows from the one before it, the epoch's spec and plans, and its tasks' reports. It names
every block that holds a tuple which may still match, exactly one token per task, and all that is to become visible.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from streamjoin.controlplane.fingerprint import fingerprint
from streamjoin.controlplane.losses import losses_after
from streamjoin.controlplane.planning import FULL, PlannedEpoch, is_full, utilization
from streamjoin.controlplane.results import Results
from streamjoin.controlplane.watermark import advance, heard_after, held_back, watermark_for, without_silent
from streamjoin.epoch.ports import EpochFailed, EpochResult, JoinWork, TaskWork
from streamjoin.epoch.reports import Rewritten, RouteReport, TaskReport
from streamjoin.io.arrivals import Arrivals
from streamjoin.io.base import Position, SourcePlan, Staged
from streamjoin.io.deadletter import TAG
from streamjoin.io.results_source import BEGIN
from streamjoin.io.several import tags
from streamjoin.job import Job, JoinSource
from streamjoin.kernel.faults import Fault, together
from streamjoin.language.window import Ends, WindowKind
from streamjoin.manifest.quantity import Duration
from streamjoin.scheme.models import HANDSHAKE
from streamjoin.state.blocks import Block
from streamjoin.state.checkpoint import Checkpoint, HeldState, InputState, Newest
from streamjoin.state.extent import Extent, Segment
from streamjoin.state.intermediate import IntermediateResult

REFUSED = "refused"
"""Results that sinks have refused: of all joins, and of each, behind a slash."""
COUNTERS = (
    *("input", "rejected", "replayed", "ahead", "oversized", "filtered", "late", "unmatchable", "shed", "would_shed", "accepted", "routed"),
    *("input_bytes", "routed_bytes", "dead_letter_bytes"),
)
"""What routing counts, by stream: fields of RouteReport."""


def require_predecessor(last: Checkpoint, epoch: PlannedEpoch, reports: Sequence[TaskReport]) -> None:
    """Raises EpochFailed unless an epoch that was begun before ``last`` went on from the runs that this has committed."""
    if any(report.predecessor_missing for report in reports):
        raise EpochFailed(f"epoch {epoch.spec.epoch}: a task was begun before the same task of the epoch before it")
    opened = {report.task: report.opened for report in reports if report.task < epoch.plans.current.scheme.tasks}
    if epoch.spec.follows is not None and opened != last.state.tokens:
        raise EpochFailed(f"epoch {epoch.spec.epoch}: it went on from runs that were not committed")


def checkpoint_after(
    job: Job,
    last: Checkpoint,
    epoch: PlannedEpoch,
    reports: Sequence[TaskReport],
    now: float,
    results: Results,
    segment: Segment,
) -> Checkpoint:
    """The checkpoint after the epoch, which is over at ``now``. O(blocks + reports).

    ``results``: what becomes of those of this epoch and of those before that wait. Puts into ``segment`` what is to be committed with it.
    """
    spec, current = epoch.spec, epoch.plans.current
    at_work = [report for report in reports if report.task < current.scheme.tasks]
    replaced = {name for report in reports for name in report.replaced}
    rewritten = _rewritten(last, epoch, reports)
    if rewritten is not None and spec.rewrite is not None:
        replaced |= {block.name for block in spec.rewrite.blocks}
    kept, kept_marks = (
        [block for block in blocks if block.name not in replaced and not block.is_expired(spec.expired_before)]
        for blocks in (last.state.blocks, last.state.marks)
    )
    fed = fed_after(job, last, epoch, reports, segment)
    advanced = [_advance(job, last, epoch, fed, stream, reports, now) for stream in range(len(job.streams))]
    heard = heard_after(last.input.heard, [plan.records > 0 or plan.waiting_records > 0 for plan in epoch.inputs], now)
    limits = [None if stream.silence_micros is None else stream.silence_micros / 1e6 for stream in job.streams]
    small = {name: segment.add(data) for report in reports for name, data in report.small_blocks.items()}
    new = [replace(block, extent=small.get(block.name)) for report in reports for block in report.blocks]
    new_marks = [replace(block, extent=small.get(block.name)) for report in reports for block in report.marks]
    if rewritten is not None and rewritten.block is not None and spec.rewrite is not None:
        made = replace(rewritten.block, extent=segment.add(rewritten.data) if rewritten.data else None)
        (new_marks if spec.rewrite.of_marks else new).append(made)
    is_chain = current.scheme.model == HANDSHAKE
    if is_chain:
        blocks = _of_chain([*last.state.blocks, *new], spec.generation, reports)
        marks = _marks_of_chain([block for block in last.state.marks if block.name not in replaced] + new_marks, blocks)
    else:
        blocks, marks = (tuple(block for block in parts if block.place not in spec.ended) for parts in (kept + new, kept_marks + new_marks))
    after = replace(
        last,
        epoch=spec.epoch,
        input=InputState(
            positions=epoch.head.positions,
            records=spec.records_after,
            watermarks=without_silent([watermark for watermark, _ in advanced], heard, limits, now),
            effective=last.input.watermarks,
            partitions=tuple(partitions for _, partitions in advanced),
            heard=heard,
            widths=widths_after(last, reports),
        ),
        plan=replace(
            last.plan,
            generation=spec.generation,
            scheme=current.scheme.to_json() if epoch.is_switch else last.plan.scheme,
            path_plans=spec.path_plans,
        ),
        state=HeldState(
            expired=spec.expired_before,
            blocks=blocks,
            marks=marks,
            held={report.task: report.held for report in at_work},
            held_bytes={report.task: report.held_bytes for report in at_work},
            tokens={report.task: report.token for report in at_work},
        ),
        output=replace(last.output, fed=fed),
        totals=_totals(job, last, epoch, reports, results),
        fingerprint=fingerprint(job),
        claims=0,
        clock=max(last.clock, now),
        committed_at=now,
    )
    if spec.ended and last.plan.key_spaces is not None:
        after = after.on(last.plan.key_spaces.emptied(spec.ended))
    after = replace(after, losses=losses_after(job, last, after, reports, at_work, is_chain=is_chain))
    return results.committed_by(after)


def _of_chain(known: Sequence[Block], generation: int, reports: Sequence[TaskReport]) -> tuple[Block, ...]:
    """What the workers of a chain hold, by worker and in order: blocks that change hands, and parts of them. O(blocks)."""
    by_name = {block.name: block for block in known}
    return tuple(
        replace(by_name[held.block], generation=generation, area=held.area, unit_min=held.first, unit_max=held.last, rows=held.rows)
        for report in reports
        for held in report.chunks
    )


def _marks_of_chain(marks: Iterable[Block], held: Sequence[Block]) -> tuple[Block, ...]:
    """Those of tuples that have not all left the chain, which they do in the order in which they came. O(blocks)."""
    oldest: dict[int, int] = {}
    for block in held:
        oldest[block.place] = min(block.unit_min, oldest.get(block.place, block.unit_min))
    return tuple(block for block in marks if block.unit_max >= oldest.get(block.place, math.inf))


def fed_after(
    job: Job, last: Checkpoint, epoch: PlannedEpoch, reports: Sequence[TaskReport], segment: Segment
) -> tuple[IntermediateResult, ...]:
    """Results that streams are yet to read after the epoch. O(parts)."""
    readers: dict[str, list[Position]] = {}
    for stream, position in zip(job.streams, epoch.head.positions, strict=True):
        if isinstance(stream.source, JoinSource):
            readers.setdefault(job.joins[stream.source.join].name, []).append(position or BEGIN)
    if not readers:
        return ()
    numbers = {tag: number for number, tag in enumerate(tags(join.name for join in job.joins).values())}
    new = [staged for report in reports for staged in report.staged if staged.is_fed]
    spec, found = epoch.spec, list(last.output.fed)
    for number, staged in enumerate(new):
        join = numbers[staged.join]
        extent = segment.add(staged.data) if staged.data else Extent(staged.path, 0, staged.nbytes)
        since = _since(job, join, spec.released_before, spec.late_before)
        found.append(IntermediateResult(job.joins[join].name, spec.epoch, number, staged.rows, extent, since))
    return tuple(part for part in found if any(part.is_after(at["epoch"], at["number"]) for at in readers[part.join]))


def _since(job: Job, number: int, released: Ends, late: Ends) -> int | None:
    """What no event time is before that a join's results are made from, in an epoch with these bounds: a pair's are within the window of a
    tuple that is not late, and a tuple comes alone when it expires, or at once. None: not known."""
    join, placed = job.joins[number], job.layouts[0].joins[number]
    expired = tuple(released[place] for place in placed.places)
    if not placed.is_multiway:
        expired = join.window.expired_within(job.window, expired)
    return _least([*expired, *(late[stream] for stream in join.streams)])


def _least(ends: Sequence[int | None]) -> int | None:
    """None where one is not known."""
    known = [end for end in ends if end is not None]
    return min(known) if len(known) == len(ends) else None


def _watermark_of_results(
    job: Job, last: Checkpoint, epoch: PlannedEpoch, fed: Sequence[IntermediateResult], number: int, source: JoinSource
) -> int | None:
    """Of a stream that reads results, after the epoch: what is yet to be read and what is yet to come is made from no older event time."""
    name, before = job.joins[source.join].name, last.input.watermarks[number]
    coming = _since(job, source.join, epoch.spec.expired_before, last.input.watermarks)
    least = _least([*(part.since for part in fed if part.join == name), coming])
    mark = None if least is None else least - job.streams[number].watermark_micros
    return max((each for each in (before, mark) if each is not None), default=None)


def _rewritten(last: Checkpoint, epoch: PlannedEpoch, reports: Sequence[TaskReport]) -> Rewritten | None:
    """The rewrite that is ready, unless the commit before has taken it over: both epochs in flight report it."""
    ready = next((report.rewritten for report in reports if report.rewritten is not None), None)
    if ready is None or epoch.spec.rewrite is None:
        return None
    old = {block.name for block in epoch.spec.rewrite.blocks}
    return ready if any(block.name in old for block in last.state.stored) else None


def _totals(job: Job, last: Checkpoint, epoch: PlannedEpoch, reports: Sequence[TaskReport], results: Results) -> dict[str, list[int]]:
    """The counters since the checkpoint's beginning: by stream, or one number."""
    counts = counts_of(reports, len(job.streams))
    written_blocks, written_bytes = stored(job, (block for report in reports for block in report.blocks))
    by_stream = {name: counts[name] for name in COUNTERS} | {"written_blocks": written_blocks, "written_bytes": written_bytes}
    once = {
        "output": sum(report.output for report in reports),
        "candidates": sum(report.candidates for report in reports),
        "output_bytes": sum(staged.nbytes for staged in results.staged if staged.join != TAG),
        "read_back": _read_back(epoch, reports),
        "read_back_bytes": sum(report.read_back_bytes for report in reports),
        "expression_errors": sum(fault.rows for fault in faults_of(reports).values()),
    }
    for name, count in sum((Counter(report.messages) for report in reports), Counter[str]()).items():
        once[f"chain/{name}"] = count
    if job.multiway:
        stages = [stage for report in reports for stage in report.stages.values()]
        once |= {"partial": sum(stage.sent for stage in stages), "partial_bytes": sum(stage.sent_bytes for stage in stages)}
    totals = {
        name: [before + now for before, now in zip(last.totals.get(name, [0] * len(of_streams)), of_streams, strict=True)]
        for name, of_streams in by_stream.items()
    }
    for join, work in joins_of(reports).items():
        once |= {f"output/{join}": work.output, f"candidates/{join}": work.candidates}
    once |= {name: 0 for name in last.totals if name.split("/")[0] == REFUSED}  # counted when they are published
    totals |= {name: [last.totals.get(name, [0])[0] + count] for name, count in once.items()}
    totals["skipped"] = [plan.skipped_records for plan in epoch.inputs]
    totals["replaced"] = [plan.replacements for plan in epoch.inputs]
    totals["deleted"] = [plan.deletions for plan in epoch.inputs]
    return totals


def with_refused(totals: Mapping[str, list[int]], join: str, count: int) -> dict[str, list[int]]:
    """The counters after a join's sink has refused so many results."""
    return {**totals, **{name: [totals.get(name, [0])[0] + count] for name in (REFUSED, f"{REFUSED}/{join}")}}


def widths_after(last: Checkpoint, reports: Sequence[TaskReport]) -> tuple[float, ...]:
    """Bytes per record of each stream after an epoch: they rise at once, and fall by a quarter of the difference."""
    counts = counts_of(reports, len(last.input.widths))
    return tuple(_width(before, counts, stream) for stream, before in enumerate(last.input.widths))


def _width(before: float, counts: Mapping[str, tuple[int, ...]], stream: int) -> float:
    records = counts["input"][stream]
    if not records:
        return before
    seen = counts["input_bytes"][stream] / records
    return round(max(seen, 0.75 * before + 0.25 * seen), 1)


def _advance(
    job: Job,
    last: Checkpoint,
    epoch: PlannedEpoch,
    fed: Sequence[IntermediateResult],
    number: int,
    reports: Sequence[TaskReport],
    now: float,
) -> tuple[int | None, dict[int, Newest]]:
    """A stream's watermark and partitions after the epoch."""
    stream = job.streams[number]
    if isinstance(stream.source, JoinSource):
        return _watermark_of_results(job, last, epoch, fed, number, stream.source), last.input.partitions[number]
    plan = epoch.inputs[number]
    there, pending = plan.waiting_by_partition, plan.pending_from
    return advance(
        last.input.watermarks[number],
        # Those of a topic that was deleted, or is not read any more, hold nothing back.
        {partition: newest for partition, newest in last.input.partitions[number].items() if partition in there},
        (route for report in reports for route in report.routes if route.stream == number),
        delay_micros=stream.watermark_micros,
        idle_seconds=stream.idle_micros / 1e6,
        pending_from=pending,
        now=now,
        waiting=[partition for partition, records in there.items() if records],
        blocked=plan.blocked,
    )


def result_of(
    job: Job, after: Checkpoint, epoch: PlannedEpoch, reports: Sequence[TaskReport], seconds: dict[str, float], storage_retries: int
) -> EpochResult:
    """The epoch's account. ``seconds`` are those of the loop's own steps, ``storage_retries`` the driver's; the tasks' are added."""
    spec, inputs, started = epoch.spec, epoch.inputs, epoch.started_at
    seconds = dict(seconds)
    for report in reports:
        for step, spent in report.seconds.items():
            seconds[f"task.{step}"] = max(spent, seconds.get(f"task.{step}", 0.0))
    routes = [route for report in reports for route in report.routes]
    seconds["task.route"] = max((route.seconds for route in routes), default=0.0)
    counts = counts_of(reports, len(job.streams))
    by_stream, faults = _by_stream(job, routes), faults_of(reports)
    stored_blocks, stored_bytes = stored(job, after.state.blocks)
    repeated = sum(report.storage_retries for report in reports) + sum(route.storage_retries for route in routes)
    return EpochResult(
        epoch=spec.epoch,
        started_at=started,
        seconds=seconds,
        counts=counts,
        streams=tuple(stream.name for stream in job.streams),
        rejections=tuple(next((why for route in of if (why := route.rejection)), "") for of in by_stream),
        late_seconds=tuple(max((route.late_micros for route in of), default=0) / 1e6 for of in by_stream),
        output=sum(report.output for report in reports),
        candidates=sum(report.candidates for report in reports),
        held={task: job.by_stream(held) for task, held in after.state.held.items()},
        held_by_side={task: job.by_side(held) for task, held in after.state.held.items()},
        streams_by_side=job.streams_by_side,
        utilization=utilization(job, after),
        watermarks=after.input.watermarks,
        lag=tuple(_lag(_event_now(job, inputs, number, started), watermark) for number, watermark in enumerate(after.input.watermarks)),
        backlog=tuple(plan.waiting_records for plan in inputs),
        shed=spec.shed or (0.0,) * epoch.plans.current.scheme.tasks,
        would_shed=spec.would_shed,
        read_back=_read_back(epoch, reports),
        storage_retries=storage_retries + repeated,
        totals=after.totals,
        generation=after.plan.generation,
        blocks=len(after.state.blocks),
        warnings=(
            *(warning for plan in inputs for warning in plan.warnings),
            *_all_ahead(job, routes),
            *_out_of_order(job, by_stream),
            *_is_full(job, after),
            *_faults(faults),
            *_rewrite_errors(reports),
        ),
        committed_at=after.committed_at,
        joins=joins_of(reports),
        work={report.task: TaskWork(report.seconds, report.output, report.candidates, sum(report.held_bytes)) for report in reports},
        stored_blocks=stored_blocks,
        stored_bytes=stored_bytes,
        losses=after.losses,
        block_tuples=spec.block_tuples if epoch.plans.current.scheme.model == HANDSHAKE else None,
        source_errors=tuple(_source_errors(reports, stream) for stream in range(len(inputs))),
        backlog_by_partition=tuple(plan.waiting_by_partition for plan in inputs),
        blocked=tuple(plan.blocked for plan in inputs),
        held_back=held_back(job, after, inputs),
        topics=tuple(plan.topics for plan in inputs),
    )


def arrivals_of(job: Job, epoch: PlannedEpoch, reports: Sequence[TaskReport]) -> dict[str, Arrivals]:
    """When the records that the epoch has read came to their sources, by join that reads them; without joins that read none. Where nobody
    knows, they came when the epoch was planned, at the latest. O(splits)."""
    routes = [route for report in reports for route in report.routes]

    def of_stream(number: int) -> Arrivals | None:
        own, plan = [route for route in routes if route.stream == number], epoch.inputs[number]
        records = sum(route.input for route in own)
        if not records:
            return None
        told = plan.arrivals or Arrivals.together(route.arrivals for route in own)
        return told or Arrivals.once(epoch.started_at, records)

    streams = [of_stream(number) for number in range(len(job.streams))]
    found = {join.name: Arrivals.together(streams[number] for number in join.streams) for join in job.joins}
    return {name: arrivals for name, arrivals in found.items() if arrivals is not None}


def whose(job: Job, staged: Sequence[Staged]) -> frozenset[str]:
    """The joins that some of these are results of."""
    named = tags(join.name for join in job.joins)
    found = {each.join for each in staged}
    return frozenset(join for join, tag in named.items() if tag in found)


def joins_of(reports: Iterable[TaskReport]) -> dict[str, JoinWork]:
    """What each join did."""
    outputs, admitted = Counter[str](), Counter[str]()
    for report in reports:
        outputs.update(report.outputs)
        admitted.update(report.admitted)
    return {join: JoinWork(outputs[join], admitted[join]) for join in {**admitted, **outputs}}


def counts_of(reports: Iterable[TaskReport], streams: int) -> dict[str, tuple[int, ...]]:
    """``COUNTERS`` of one epoch, each by stream."""
    counted = [Counter[str]() for _ in range(streams)]
    for report in reports:
        for route in report.routes:
            counted[route.stream].update({name: getattr(route, name) for name in COUNTERS})
    return {name: tuple(of_stream[name] for of_stream in counted) for name in COUNTERS}


def _by_stream(job: Job, routes: Sequence[RouteReport]) -> list[list[RouteReport]]:
    return [[route for route in routes if route.stream == stream] for stream in range(len(job.streams))]


def stored(job: Job, blocks: Iterable[Block]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """How many blocks these are and their bytes, each by stream."""
    count, nbytes = [0] * len(job.streams), [0] * len(job.streams)
    for block in blocks:
        stream = job.stream_of(block.place)
        count[stream] += 1
        nbytes[stream] += block.nbytes
    return tuple(count), tuple(nbytes)


def _all_ahead(job: Job, routes: Sequence[RouteReport]) -> Iterator[str]:
    """What is to be said where a stream had nothing but event times that are too far ahead. The same text for each such epoch."""
    for number, stream in enumerate(job.streams):
        own = [route for route in routes if route.stream == number]
        if any(route.ahead for route in own) and all(route.time_max is None for route in own):
            most = Duration(stream.max_ahead_micros)
            yield (
                f"{stream.name}: the event times of all its records are more than {most} ahead of the clock, and of the stream's newest;"
                " the records are in the dead letters, and the watermark stands still. Where event times may be so far ahead, set"
                f" spec.streams[{number}].maxAhead"
            )


def _out_of_order(job: Job, routes: Sequence[Sequence[RouteReport]]) -> Iterator[str]:
    """Streams whose watermark is less than the disorder that is seen. In round numbers, so that few of them are said."""
    for stream, of in zip(job.streams, routes, strict=True):
        apart, given = max((route.disorder_micros for route in of), default=0.0), stream.watermark_micros
        if apart > given and job.window.kind is WindowKind.RANGE and not isinstance(stream.source, JoinSource):
            yield (
                f"{stream.name}: event times are out of order by more than the watermark, which is {Duration(given)}: what comes later than"
                f" that is dropped; a watermark of {watermark_for(apart)} would take all that was seen"
            )


def faults_of(reports: Sequence[TaskReport]) -> dict[str, Fault]:
    """Of an epoch, by expression."""
    return together([report.faults for report in reports] + [route.faults for report in reports for route in report.routes])


def _faults(found: Mapping[str, Fault]) -> Iterator[str]:
    """What is to be said of expressions without a value: the same text as long as the first example is."""
    for text, fault in found.items():
        yield (
            f"{text} has no value for {fault.example}: a number does not fit its type, or a text is none of it, or it divides by zero. Such"
            " values are NULL, which conditions take for false; they are counted in streamjoin_expression_errors_total"
        )


def _is_full(job: Job, after: Checkpoint) -> Iterator[str]:
    """What is to be said where workers hold more than they may. The same text for each such epoch."""
    if is_full(job, after) and job.shedding_model == "off":
        remedy = "raise spec.workers.max or the capacity of a worker, shorten the window, or set spec.scaling.whenFull to shed"
        yield f"{FULL}, and nothing is shed: {remedy}"


def _source_errors(reports: Sequence[TaskReport], stream: int) -> int:
    return sum(route.source_errors for report in reports for route in report.routes if route.stream == stream)


def _rewrite_errors(reports: Sequence[TaskReport]) -> tuple[str, ...]:
    return tuple(f"blocks of former plans could not be merged: {error}" for report in reports if (error := report.rewrite_error))


def _read_back(epoch: PlannedEpoch, reports: Sequence[TaskReport]) -> int:
    """Tasks that had something to read back and did."""
    return sum(report.read_back for report in reports) if epoch.spec.base else 0


def _event_now(job: Job, inputs: Sequence[SourcePlan], number: int, now: float) -> float:
    """The event time that a stream's tuples have that are made now: of one of results, that of what these are made from."""
    source = job.streams[number].source
    if isinstance(source, JoinSource):
        return max(_event_now(job, inputs, stream, now) for stream in job.joins[source.join].streams)
    made = inputs[number].event_now
    return now * 1e6 if made is None else made


def _lag(event_now: float, watermark: int | None) -> float | None:
    return None if watermark is None else (event_now - watermark) / 1e6
