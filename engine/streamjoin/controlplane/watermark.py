"""Advances a stream's watermark: by its newest event time or, if the stream has partitions, by that of the partition that is furthest
behind. The partitions of a topic are not read in step, and what is still to be read of one must not be late because of another.

Always holds: a watermark never goes back. A partition counts from its first record on, for as long as it had one within the idle time or
has records that wait, whether or not they can be read yet. While one has records that cannot be read, and none was read of it before, the
watermark stays. A stream that is silent for longer than its own idle time does not hold the others back; one with records that wait is not
silent.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence

from streamjoin.epoch.ports import Held
from streamjoin.epoch.reports import RouteReport
from streamjoin.io.base import SourcePlan
from streamjoin.job import Job
from streamjoin.language.window import WindowKind
from streamjoin.manifest.quantity import Duration
from streamjoin.state.checkpoint import Checkpoint, Newest

ROUND = tuple(map(Duration.parse, ("10ms", "100ms", "1s", "5s", "10s", "30s", "1m", "5m", "10m", "30m", "1h", "3h", "6h", "12h", "1d")))
DAY = 24 * 3600 * 1_000_000


def heard_after(heard: Sequence[float | None], has_records: Sequence[bool], now: float) -> tuple[float, ...]:
    """When each stream was last heard of, after an epoch that ended at ``now``: a stream that has records, read or waiting, is heard of.
    A clock that was set back makes no stream silent for longer."""
    before = heard or (None,) * len(has_records)
    return tuple(now if has or seen is None else min(seen, now) for seen, has in zip(before, has_records, strict=True))


def without_silent(
    watermarks: Sequence[int | None], heard: Sequence[float], silence_seconds: Sequence[float | None], now: float
) -> tuple[int | None, ...]:
    """The streams' watermarks where none that is silent for longer than it may be holds the others back: it goes on with the least of
    those that are not. None: such a stream is never silent. O(streams)."""
    silent = [limit is not None and now - seen > limit for seen, limit in zip(heard, silence_seconds, strict=True)]
    others = [mark for mark, is_silent in zip(watermarks, silent, strict=True) if not is_silent]
    least = None if None in others else min((mark for mark in others if mark is not None), default=None)
    if least is None:
        return tuple(watermarks)
    return tuple(
        max(least, least if mark is None else mark) if is_silent else mark for mark, is_silent in zip(watermarks, silent, strict=True)
    )


def advance(
    watermark: int | None,
    partitions: Mapping[int, Newest],
    routes: Iterable[RouteReport],
    *,
    delay_micros: int,
    idle_seconds: float,
    pending_from: int | None = None,
    now: float,
    waiting: Collection[int] = (),
    blocked: Collection[int] = (),
) -> tuple[int | None, dict[int, Newest]]:
    """A stream's watermark and partitions after an epoch that ended at ``now`` (seconds since 1970) and read what ``routes`` saw of it.

    O(partitions + routes). ``idle_seconds`` matters to streams of partitions only. ``pending_from``: the least event time that is there to
    be read, from which on records are at most ``delay_micros`` out of order. ``waiting``: the partitions that have more records,
    ``blocked``: of these, the ones whose records cannot be read yet.
    """
    newest: list[int] = []
    # Where the clock was set back, a partition is idle so long after that, not only when the clock is again where it was.
    after = {number: Newest(partition.time_max, min(partition.seen_at, now)) for number, partition in partitions.items()}
    for route in routes:
        if route.time_max is None:
            continue
        if route.partition is None:
            newest.append(route.time_max)
        else:
            before = after.get(route.partition)
            time_max = route.time_max if before is None else max(before.time_max, route.time_max)
            after[route.partition] = Newest(time_max, now)
    after |= {number: Newest(after[number].time_max, now) for number in waiting if number in after}
    if any(number not in after for number in blocked):
        return watermark, after
    active = [partition.time_max for partition in after.values() if now - partition.seen_at <= idle_seconds]
    if active:
        newest.append(min(active))
    marks = [watermark] if watermark is not None else []
    if newest:
        marks.append((max(newest) if pending_from is None else min(max(newest), pending_from)) - delay_micros)
    return max(marks, default=None), after


def held_back(job: Job, checkpoint: Checkpoint, inputs: Sequence[SourcePlan] = ()) -> Held | None:
    """By a commit, and what was planned for it. None: no stream is behind the others. O(streams + partitions)."""
    if checkpoint.committed_at is None or job.window.kind is not WindowKind.RANGE:
        return None
    marks = [-math.inf if mark is None else mark for mark in checkpoint.input.watermarks]
    number = min(range(len(marks)), key=marks.__getitem__)
    if marks[number] == max(marks):
        return None
    now, stream, partitions = checkpoint.committed_at, job.streams[number], checkpoint.input.partitions[number]
    heard = (checkpoint.input.heard[number] if number < len(checkpoint.input.heard) else None) or now
    plan = inputs[number] if inputs else None
    active = {each: newest for each, newest in partitions.items() if now - newest.seen_at <= stream.idle_micros / 1e6}
    if plan is not None and plan.blocked:
        each, blocked = max(plan.blocked.items(), key=lambda item: item[1].seconds)
        return Held(stream.name, f"{_partition(plan, each)}, behind an open transaction,", now - blocked.seconds)
    if active:
        each = min(active, key=lambda one: active[one].time_max)
        return Held(stream.name, f"partition {each}" if plan is None else _partition(plan, each), active[each].seen_at)
    return Held(stream.name, "" if plan is None or not plan.pending else f"file {plan.pending}", heard)


def _partition(plan: SourcePlan, number: int) -> str:
    topic, of_topic = plan.topics.get(number, ("", number))
    return f"partition {of_topic} of {topic}" if topic else f"partition {of_topic}"


def watermark_for(micros: float) -> Duration:
    """A round watermark that takes what is so much out of order."""
    rounded = next((each for each in ROUND if each.micros >= micros), None)
    return rounded or Duration(math.ceil(micros / DAY) * DAY)
