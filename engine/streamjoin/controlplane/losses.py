"""Extracts from an epoch's reports what ``elastic.completeness`` needs to estimate the results that are lost to shedding and to lateness.

Always holds: it covers inner joins only, because results of outer, semi and anti joins do not consist of kept tuples alone.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from streamjoin.elastic.completeness import WHOLE, Counted, Epoch, Losses, Part
from streamjoin.elastic.pairs import Entry, Span, Tuples
from streamjoin.epoch.reports import TaskReport
from streamjoin.job import Job
from streamjoin.language.join_type import JoinType
from streamjoin.language.window import Window, WindowKind
from streamjoin.state.blocks import Block

if TYPE_CHECKING:
    from streamjoin.state.checkpoint import Checkpoint


def can_lose(job: Job) -> bool:
    """Whether tuples may be shed or late at all."""
    return job.shedding_model != "off" or job.window.kind is WindowKind.RANGE


def losses_after(
    job: Job, before: Checkpoint, after: Checkpoint, reports: Sequence[TaskReport], workers: Sequence[TaskReport], *, is_chain: bool
) -> Losses:
    """The losses to remember after an epoch, whose commit is ``after``. ``workers``: those of the reports that come from tasks of the plan.

    O(areas x joins + splits x areas + blocks).
    """
    assert after.committed_at is not None
    by_area = not job.multiway and not is_chain
    counted = {
        join.name: Counted(job.layouts[0].joins[number].places if by_area else join.streams, _reach(join.window))
        for number, join in enumerate(job.joins)
        if join.type is JoinType.INNER
    }
    spans = [_span(job, before, reports, stream) for stream in range(len(job.streams))]
    last = before.losses
    parts = _by_area(job, last, reports, workers, spans) if by_area else {WHOLE: _whole(job, after.state.blocks, reports, spans)}
    groups = {name: sum(report.groups[name] for report in reports if name in report.groups) for name in counted}
    told = {name: counts.tolist() for name, counts in groups.items() if not isinstance(counts, int)}
    return last.after(Epoch(after.committed_at, after.plan.generation, parts, told), counted)


def _reach(window: Window) -> tuple[float, float]:
    return (window.before_micros, window.after_micros) if window.kind is WindowKind.RANGE else (math.inf, math.inf)


def _span(job: Job, before: Checkpoint, reports: Sequence[TaskReport], number: int) -> Span:
    """The event time by which a stream has gone forward in the epoch."""
    routes = [route for report in reports for route in report.routes if route.stream == number]
    oldest, newest = ([time for route in routes if (time := getattr(route, name)) is not None] for name in ("time_min", "time_max"))
    mark = before.input.watermarks[number]
    if not newest or (mark is None and not oldest):
        return None
    begin = min(oldest) if mark is None else mark + job.streams[number].watermark_micros
    return float(begin), float(max(begin, *newest))


def _by_area(
    job: Job, last: Losses, reports: Sequence[TaskReport], workers: Sequence[TaskReport], spans: Sequence[Span]
) -> dict[int, Part]:
    """Two tuples meet in one area, to which both come."""
    kept, came = Counter[tuple[int, int]](), Counter[tuple[int, int]]()
    late, on_time = [0] * len(job.streams), [0] * len(job.streams)
    for report in reports:
        for route in report.routes:
            kept.update(route.kept)
            came.update(route.came or route.kept)
            late[route.stream] += route.late
            on_time[route.stream] += route.accepted + route.shed
    found: dict[int, Part] = {}
    for area, work in ((area, work) for report in workers for area, work in report.areas.items()):
        new = []
        for place in range(len(job.places)):
            stream, tuples = job.stream_of(place), came[area, place]
            # Late tuples are dropped before anybody knows where they would have gone: as those that came on time.
            share = tuples / on_time[stream] if on_time[stream] else last.share_of(area, place)
            behind = late[stream] * share if late[stream] else 0.0
            new.append(Entry(Tuples(tuples + behind, tuples, kept[area, place]), spans[stream]))
        found[area] = Part(tuple(new), tuple(map(float, work.held)), work.outputs, work.holds)
    return found


def _whole(job: Job, blocks: Sequence[Block], reports: Sequence[TaskReport], spans: Sequence[Span]) -> Part:
    """Where results are made of tuples that several workers hold, or along a chain: all workers as one."""
    counts = [[0, 0, 0] for _ in job.streams]
    for report in reports:
        for route in report.routes:
            for at, tuples in enumerate((route.late, route.shed, route.accepted)):
                counts[route.stream][at] += tuples
    held = [0] * max(len(job.places), 1 + max((block.place for block in blocks), default=0))
    for block in blocks:
        held[block.place] += block.rows
    of_streams = [0] * len(job.streams)
    for place, tuples in enumerate(held):  # a stream's tuples may be held in several places, by other keys
        stream = job.stream_of(place)
        of_streams[stream] = max(of_streams[stream], tuples)
    outputs: Counter[str] = sum((Counter(report.outputs) for report in reports), Counter())
    new = tuple(
        Entry(Tuples(late + shed + accepted, shed + accepted, accepted), span)
        for (late, shed, accepted), span in zip(counts, spans, strict=True)
    )
    return Part(new, tuple(map(float, of_streams)), outputs)
