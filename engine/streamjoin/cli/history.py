"""The history of a run, for views, the summary and the picture. Its size is bounded, however long the run.

Always holds: sums and maxima over the kept samples are those of all epochs; only their times become coarser.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from dataclasses import dataclass, field

from streamjoin.cli.delays import RecentDelays, worst_p99
from streamjoin.controlplane.replan import PlanStatus, Switched
from streamjoin.epoch.ports import EpochResult, JoinWork

MOST_SAMPLES = 2048
MOST_SWITCHES = 1000
RATE_SECONDS = 5.0
"""Rates are over the last so many seconds."""
IDLE_SECONDS = 1.5
"""How long after an epoch's usual time nothing counts as no input."""

OfStreams = tuple[float | None, ...]


@dataclass(frozen=True, slots=True)
class Sample:
    """One epoch, or several merged: counts are summed, all else is the worst of them. Times are seconds since the run's start."""

    start: float
    end: float
    input: tuple[int, ...]
    """By stream."""
    output: int
    seconds: float
    """The longest epoch."""
    utilization: dict[int, float]
    lag: OfStreams
    workers: int = 0
    shed: int = 0
    """Tuples dropped by load shedding, of all streams."""
    delay: float | None = None
    """p99 of how long records waited for their results, of the join where that is longest; None: none became visible."""

    def merged(self, later: Sample) -> Sample:
        return Sample(
            start=self.start,
            end=later.end,
            input=tuple(map(sum, zip(self.input, later.input, strict=True))),
            output=self.output + later.output,
            seconds=max(self.seconds, later.seconds),
            utilization={
                task: max(self.utilization.get(task, 0.0), later.utilization.get(task, 0.0))
                for task in self.utilization.keys() | later.utilization.keys()
            },
            lag=tuple(map(_larger, self.lag, later.lag)),
            workers=later.workers,
            shed=self.shed + later.shed,
            delay=_larger(self.delay, later.delay),
        )


def _larger(one: float | None, other: float | None) -> float | None:
    return other if one is None else one if other is None else max(one, other)


@dataclass(frozen=True, slots=True)
class Point:
    """Totals of this run at a time."""

    at: float
    input: tuple[int, ...] = ()
    output: int = 0


@dataclass(frozen=True, slots=True)
class Rates:
    """Per second."""

    input: tuple[float, ...] = ()
    """By stream; empty: none is known yet."""
    output: float = 0.0


@dataclass(slots=True)
class Second:
    """What a second of a run brought, and the longest epoch that it was part of."""

    input: float = 0.0
    output: float = 0.0
    longest: float = 0.0


class Durations:
    """Quantiles of epoch durations to within 1 %, in constant space: counts in buckets that grow by 2 %."""

    _STEP = math.log(1.02)

    def __init__(self) -> None:
        self._counts: Counter[int] = Counter()
        self.longest = 0.0

    def add(self, seconds: float) -> None:
        self._counts[round(math.log(max(seconds, 1e-6)) / self._STEP)] += 1
        self.longest = max(self.longest, seconds)

    def quantile(self, fraction: float) -> float | None:
        """The duration that ``fraction`` of the epochs did not exceed; None before the first."""
        wanted = math.ceil(fraction * self._counts.total())
        for bucket in sorted(self._counts):
            wanted -= self._counts[bucket]
            if wanted <= 0:
                return min(math.exp(bucket * self._STEP), self.longest)
        return None


@dataclass
class History:
    """``add`` each epoch's result once, in order. ``origin`` is the wall clock at which the run started. Not thread-safe."""

    origin: float
    samples: list[Sample] = field(default_factory=list)
    epochs: int = 0
    last: EpochResult | None = None
    durations: Durations = field(default_factory=Durations)
    counts: dict[str, list[int]] = field(default_factory=dict)
    """This run's counters, per stream."""
    rejections: list[str] = field(default_factory=list)
    """By stream, why one of its last rejected records was rejected; empty: none was."""
    late_seconds: list[float] = field(default_factory=list)
    """By stream, how far the latest of its late tuples was behind the watermark."""
    output: int = 0
    candidates: int = 0
    joins: dict[str, JoinWork] = field(default_factory=dict)
    """What this run's output and candidates are made of, by join."""
    refused: Counter[str] = field(default_factory=Counter)
    """By join, results that its sink has refused."""
    read_back: int = 0
    largest_utilization: float = 0.0
    most_workers: int = 0
    fewest_workers: int = 0
    switches: deque[tuple[float, Switched]] = field(default_factory=lambda: deque(maxlen=MOST_SWITCHES))
    """The last switches to another plan, each with when it was, in seconds since the run's start."""
    switched: int = 0
    """How many switches there were."""
    moved_tuples: int = 0
    """Held tuples, each replica counted, that all switches brought to another worker."""
    naive_tuples: int = 0
    """And those that would have been if every worker had got all that it needs anew."""
    began: float | None = None
    """Start of the first epoch."""
    ended: float = 0.0
    """End of the last epoch."""
    delays: RecentDelays = field(default_factory=RecentDelays)
    """By the wall clock."""
    _points: deque[Point] = field(default_factory=deque)

    def add(self, result: EpochResult, finished: float, plan: PlanStatus | None = None) -> None:
        """``finished``: the wall clock at which the epoch was done. ``plan``: as it was then."""
        end = finished - self.origin
        started = end - result.duration
        if self.began is None:
            self.began = started
            self._points.append(Point(started, (0,) * len(result.counts["input"])))
        self.ended = end
        self.epochs += 1
        self.last = result
        self.durations.add(result.duration)
        self.delays.add(result.delays, finished)
        for name, of_streams in result.counts.items():
            before = self.counts.get(name, [0] * len(of_streams))
            self.counts[name] = [total + count for total, count in zip(before, of_streams, strict=True)]
        streams = len(result.counts["input"])
        rejections, late = result.rejections or ("",) * streams, result.late_seconds or (0.0,) * streams
        self.rejections = [new or old for old, new in zip(self.rejections or rejections, rejections, strict=True)]
        self.late_seconds = list(map(max, self.late_seconds or late, late))
        self.output += result.output
        self.candidates += result.candidates
        for name, work in result.joins.items():
            so_far = self.joins.get(name, JoinWork(0, 0))
            self.joins[name] = JoinWork(so_far.output + work.output, so_far.candidates + work.candidates)
        self.refused.update(result.refused)
        self.read_back += result.read_back
        self.largest_utilization = max(self.largest_utilization, max(result.utilization.values(), default=0.0))
        workers = len(result.held)
        self.most_workers = max(self.most_workers, workers)
        self.fewest_workers = min(self.fewest_workers or workers, workers)
        switched = None if plan is None else plan.switched
        if switched is not None and (not self.switches or self.switches[-1][1] != switched):
            self.switches.append((switched.at - self.origin, switched))
            self.switched += 1
            self.moved_tuples += switched.moved_tuples
            self.naive_tuples += switched.moved_tuples + switched.kept_tuples
        self.samples.append(
            Sample(
                started,
                end,
                result.counts["input"],
                result.output,
                result.duration,
                result.utilization,
                result.lag,
                workers,
                sum(result.counts["shed"]),
                worst_p99(result.delays),
            )
        )
        if len(self.samples) > MOST_SAMPLES:
            halves = zip(self.samples[::2], self.samples[1::2], strict=False)
            rest = self.samples[-1:] if len(self.samples) % 2 else []
            self.samples = [one.merged(other) for one, other in halves] + rest
        self._points.append(Point(end, tuple(self.counts["input"]), self.output))
        while len(self._points) > 2 and self._points[1].at <= end - RATE_SECONDS:
            self._points.popleft()

    def rates(self, now: float) -> Rates:
        """Over about the last RATE_SECONDS before ``now`` (the wall clock)."""
        if not self._points:
            return Rates()
        latest, until = self._points[-1], self._seen_until(now)
        before = [point for point in self._points if point.at <= until - RATE_SECONDS]
        first = before[-1] if before else self._points[0]
        span = max(until - first.at, 0.1)
        return Rates(
            tuple((now - before) / span for now, before in zip(latest.input, first.input or (0,) * len(latest.input), strict=True)),
            (latest.output - first.output) / span,
        )

    def per_second(self, now: float, seconds: int) -> list[Second]:
        """The last whole seconds before ``now`` (the wall clock), oldest first. O(samples).

        An epoch's tuples are spread evenly over the time since the epoch before, for that is when they came.
        """
        begin = math.floor(self._seen_until(now)) - seconds
        cells = [Second() for _ in range(seconds)]
        since: float | None = None
        for sample in self.samples:
            start = sample.start if since is None else since
            since = sample.end
            span = max(sample.end - start, 1e-3)
            for second in range(max(math.floor(start), begin), min(math.floor(sample.end) + 1, begin + seconds)):
                share = max(0.0, min(sample.end, second + 1) - max(start, second)) / span
                cell = cells[second - begin]
                cell.input += sum(sample.input) * share
                cell.output += sample.output * share
                cell.longest = max(cell.longest, sample.seconds)
        return cells

    def _seen_until(self, now: float) -> float:
        """Until when it is known what came: an epoch brings the tuples up to its end, and as long as another may be running, nothing has
        dried up."""
        if self.last is None or now - self.origin - self.ended > self.last.duration + IDLE_SECONDS:
            return now - self.origin
        return self.ended
