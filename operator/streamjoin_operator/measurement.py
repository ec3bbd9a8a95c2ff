"""From what metrics say of a join to a sample for the decision core, or to the reason why not.

Metrics come as series with the times of their scrapes, from Prometheus or from the driver itself. A scrape shows one committed epoch, so
what is of one scrape belongs together; rates are taken between scrapes.

The series of one scrape may arrive apart (remote write, Thanos, Mimir), so the newest scrape that is *whole* counts: the newest of which
every series is there. A series that is there and not sound is not late, and no older scrape stands in for it.

Always holds: pure; a sample has every number, all of them finite and not negative, of all workers of the plan that runs, and of one scrape
no older than the bound; whatever falls short of that is :class:`Distrusted`, a reason and a text, and never a number.
"""

from __future__ import annotations

import bisect
import contextlib
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import pairwise

from streamjoin.elastic.sample import MOST, Sample
from streamjoin_operator.instants import instant
from streamjoin_operator.reasons import Reason

PREFIX = "streamjoin_"
TAU, TUPLES, GENERATION, EPOCH = "worker_utilization_ratio", "worker_tuples", "plan_generation", "epoch_number"
ACCEPTED, SHED, BACKLOG = "accepted_tuples_total", "shed_tuples_total", "backlog_records"
SHED_RATIO, WOULD_SHED_RATIO = "worker_shed_ratio", "worker_would_shed_ratio"
COMPLETENESS = "completeness_ratio"
BUDGET = "completeness_budget_seconds"
LAG = "watermark_lag_seconds"
CAPACITY = "capacity_bytes"
REJECTED, REPLAYED = "dead_letter_records_total", "replayed_records_total"
EPOCH_SECONDS, EPOCHS = "epoch_duration_seconds_sum", "epoch_duration_seconds_count"
RUNNING, COMMITTED = "running_epoch_seconds", "last_commit_timestamp_seconds"
WATERMARK = "watermark_timestamp_seconds"
NAMES = (TAU, TUPLES, GENERATION, EPOCH, ACCEPTED, SHED, BACKLOG, EPOCH_SECONDS, EPOCHS, RUNNING, COMMITTED, BUDGET, WATERMARK)
"""The metrics that are needed, without their prefix (``docs/metrics.md``)."""
SHED_SECONDS = 60.0
"""Over so long is taken what was shed."""
RATE_EPOCHS = 4
"""Over so many epochs rates are taken: a scrape shows whole epochs, and between two scrapes one more or one fewer may have ended."""

_OWN = ("__name__", "name", "task", "side", "stream")
"""Labels of the metrics themselves; the others say who was scraped."""
_SHOWN = (SHED_RATIO, WOULD_SHED_RATIO, COMPLETENESS, REJECTED, REPLAYED, LAG, CAPACITY)
"""The metrics that the status has beside those."""
_LINE = re.compile(rf"^{PREFIX}({'|'.join((*NAMES, *_SHOWN))})\{{(.*)\}} (\S+)$", re.MULTILINE)
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')

Labels = tuple[tuple[str, str], ...]
Points = Sequence[tuple[float, float]]
"""Times of scrapes, in seconds since 1970 and ascending, and values."""


@dataclass(frozen=True, slots=True)
class Series:
    """One series: its labels, the name without the prefix as ``__name__``, and its points."""

    labels: Mapping[str, str]
    points: Points


@dataclass(frozen=True, slots=True)
class Distrusted:
    """Why nothing is decided by what was read."""

    reason: Reason
    text: str
    is_early: bool = False
    """Whether all that is wanting is a second scrape: nothing is wrong, but that it has just begun."""
    meanwhile: str = ""
    """What is done without it."""


@dataclass(frozen=True, slots=True)
class Reading:
    """A sample, and how far its scrape is behind the newest."""

    sample: Sample
    epoch: float
    at: float
    """When the scrape was made."""
    late_seconds: float = 0.0
    """By so much a newer scrape is ahead of which not every series is there yet."""
    earlier: tuple[Sample, ...] = ()
    """What the scrapes before it say that nobody has asked for, oldest first; without those that are not whole or not sound."""


class Source(StrEnum):
    """Who says what was measured."""

    PROMETHEUS = "Prometheus"
    DRIVER = "driver"
    """By its own metrics."""


@dataclass(frozen=True, slots=True)
class Measurement:
    """What one poll has brought."""

    source: Source
    sample: Sample | None
    """Of the driver's own numbers it is unconfirmed where a Prometheus is to confirm them."""
    distrusted: Distrusted | None = None
    """Why there is no sample; or why it is not Prometheus', which is to be asked."""
    note: str = ""
    """What is said of a sample that can be trusted."""
    earlier: tuple[Sample, ...] = ()
    """The samples since the last poll, oldest first: how long something has lasted is seen by them at once."""
    at: float | None = None
    """When the scrape was made; None: nobody asks for those since."""

    @property
    def lacking(self) -> Distrusted | None:
        """Why there is nothing to decide by; None: there is."""
        return self.distrusted if self.sample is None else None


def by_itself(own: Sample | Distrusted, away: Distrusted | None) -> Measurement:
    """What the driver says of itself; ``away``: why Prometheus cannot confirm it, None where it need not."""
    if away is None:
        return Measurement(Source.DRIVER, own) if isinstance(own, Sample) else Measurement(Source.DRIVER, None, own)
    if isinstance(own, Distrusted) and not own.is_early:
        return Measurement(Source.DRIVER, None, replace(away, meanwhile=f"; nothing is decided: of the driver's own numbers, {own.text}"))
    away = replace(away, meanwhile="; meanwhile workers are added by the driver's own numbers, and none is removed")
    if isinstance(own, Distrusted):
        return Measurement(Source.DRIVER, None, away)
    # What to do about it stands in the status.
    why = f"{away.reason.name}: {away.text.split('. ')[0]}"
    return Measurement(Source.DRIVER, replace(own, unconfirmed=why), away)


class Doubt(Exception):  # noqa: N818 - ends a measurement, and is its result
    def __init__(self, reason: Reason, text: str, *, is_early: bool = False) -> None:
        self.found = Distrusted(reason, text, is_early)


def exposition(text: str) -> Iterator[tuple[Labels, float]]:
    """The samples of ``GET /metrics`` that are needed, labelled as those of a :class:`Series`; a value that is no number is NaN. O(text).

    ``prometheus_client.parser`` is not used: it takes ten times as long, for 1,024 workers 0.2 s, in which no other join is looked after.
    """
    for name, labels, value in _LINE.findall(text):
        yield (("__name__", name), *_LABEL.findall(labels)), _number(value)


class Scrapes:
    """The last scrapes of a driver's own metrics: what stands in for Prometheus where there is none. Bounded by time."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._points: dict[Labels, list[tuple[float, float]]] = {}

    def add(self, text: str, at: float) -> None:
        """One exposition, read at ``at``. O(its lines + the points kept)."""
        for labels, value in exposition(text):
            self._points.setdefault(labels, []).append((at, value))
        for key, points in list(self._points.items()):
            kept = [point for point in points if at - self._seconds <= point[0] <= at]
            if kept:
                self._points[key] = kept
            else:
                del self._points[key]

    def series(self) -> list[Series]:
        return [Series(dict(key), tuple(points)) for key, points in self._points.items()]


def measure(
    found: Iterable[Series],
    *,
    generation: int,
    workers: int,
    streams: Sequence[Sequence[str]],
    now: float,
    bound: float,
    is_retrying: bool = False,
    after: float | None = None,
) -> Reading | Distrusted:
    """The sample that the newest whole scrape gives of plan ``generation`` with ``workers`` workers; ``streams``: their names, by side
    of the scheme.

    ``bound``: from this age on, in seconds, no scrape is believed. ``is_retrying``: epochs fail, so that what is shown is of the last one
    that did not. ``after``: the time of the last scrape that was read; those since then are read, too. None: only the newest is. The
    sample's time is that of the epoch, which may be older than the scrape: the core judges that. O(points for each scrape that is read).
    """
    plan = Plan(generation, workers, streams)
    by_target: dict[Labels, list[Series]] = {}
    for series in found:
        if series.points:
            target = tuple(sorted((name, value) for name, value in series.labels.items() if name not in _OWN))
            by_target.setdefault(target, []).append(series)
    if not by_target:
        return Distrusted(Reason.MetricsMissing, "none of the series that are needed is there")
    targets = [_Target(series) for series in by_target.values()]
    newest = max(target.at for target in targets)
    if not -bound <= now - newest <= bound:
        age = now - newest
        text = f"the newest sample is of {instant(newest)}, " + ("ahead of this clock" if age < 0 else f"more than {bound:.0f} s old")
        return Distrusted(Reason.MetricsStale, text)
    living = [target for target in targets if abs(now - target.at) <= bound]
    # Pods come and go, and one may be scraped twice: the one that is furthest counts, and of its scrapes the newest.
    read = [(target.read(plan, is_retrying, now, bound), target) for target in living]
    whole = [(one, target) for one, target in read if isinstance(one, Reading)]
    last, _ = max(read, key=lambda one: (one[1].epoch, one[1].at))
    if isinstance(last, Distrusted) and not (whole and last.reason is Reason.MetricsIncomplete):
        return last
    reading, chosen = max(whole, key=lambda one: (one[0].epoch, one[0].at))
    return reading if after is None else replace(reading, earlier=chosen.between(after, reading.at, plan, is_retrying))


@dataclass(frozen=True, slots=True)
class Plan:
    """Of which plan samples are to be."""

    generation: int
    workers: int
    streams: Sequence[Sequence[str]]
    """Their names, by side of the scheme."""


class _Target:
    """All series of one target."""

    def __init__(self, series: Sequence[Series]) -> None:
        self.at = max(one.points[-1][0] for one in series)
        self._all = series

    @property
    def epoch(self) -> float:
        """The last that is known to be committed; -1 where none is."""
        last = [one.points[-1][1] for one in self._all if one.labels["__name__"] == EPOCH]
        return max((number for number in last if math.isfinite(number)), default=-1.0)

    def read(self, plan: Plan, is_retrying: bool, now: float, bound: float) -> Reading | Distrusted:
        """The newest whole scrape's sample; or what the newest one lacks."""
        lacking: Distrusted | None = None
        for at in self._scrapes():
            scraped = _Scraped(self._all, at)
            try:
                sample = scraped.sample(plan, is_retrying)
            except Doubt as doubt:
                lacking = lacking or doubt.found
                if doubt.found.reason is not Reason.MetricsIncomplete or doubt.found.is_early:
                    return lacking
                continue
            if lacking is not None and now - at > bound:
                text = f"{lacking.text}; the newest whole scrape is of {instant(at)}, more than {bound:.0f} s old"
                return replace(lacking, text=text)
            return Reading(sample, scraped.epoch, at, self.at - at)
        assert lacking is not None, "there is at least the newest scrape"
        return lacking

    def between(self, after: float, before: float, plan: Plan, is_retrying: bool) -> tuple[Sample, ...]:
        """What the scrapes between these times say, oldest first, as far as they are whole and sound."""
        found = []
        for at in sorted({at for one in self._all for at, _ in one.points if after < at < before}):
            with contextlib.suppress(Doubt):
                found.append(_Scraped(self._all, at).sample(plan, is_retrying))
        return tuple(found)

    def _scrapes(self) -> Iterator[float]:
        """The times of the scrapes that may be whole, the newest first: of one that lacks a series, those before it that have more."""
        yield self.at
        counts = Counter(at for one in self._all for at, _ in one.points)
        yield from (at for at in sorted(counts, reverse=True) if counts[at] > counts[self.at])


class _Scraped:
    """All series of one target, as they were at one of its scrapes."""

    def __init__(self, series: Sequence[Series], at: float) -> None:
        self.at = at
        self._series: dict[str, list[Series]] = {}
        for one in series:
            until = bisect.bisect_right(one.points, at, key=lambda point: point[0])
            if until and one.points[until - 1][0] == at:
                self._series.setdefault(one.labels["__name__"], []).append(replace(one, points=one.points[:until]))

    @property
    def epoch(self) -> float:
        """The last committed one; -1 where that is not known."""
        numbers = [value for _, value in self._now(EPOCH) if math.isfinite(value)]
        return max(numbers, default=-1.0)

    def sample(self, plan: Plan, is_retrying: bool) -> Sample:
        check_plan(self._one(GENERATION), plan.generation)
        tau = checked_tau({series.labels.get("task", ""): value for series, value in self._now(TAU)}, plan.workers)
        names = list(dict.fromkeys(stream for of_side in plan.streams for stream in of_side))
        lasting = RATE_EPOCHS * self._seconds_an_epoch
        arrived = {stream: self._rate(stream, lasting) for stream in names}
        left, right = (math.fsum(arrived[stream] for stream in of_side) for of_side in plan.streams)
        # What a scrape shows was committed before the attempt that was running then began.
        before = self.at - self._one(RUNNING)
        epochs = self._one(EPOCHS)
        return Sample(
            taken_at=min(before, self._one(COMMITTED)) if is_retrying else before,
            generation=plan.generation,
            tau={int(task): value for task, value in tau.items()},
            workers=plan.workers,
            rates=(left, right),
            pace=self._pace(names, lasting),
            held=(self._held("left", plan.workers), self._held("right", plan.workers)),
            epoch_seconds=self._epoch_seconds(),
            # A process that has run no epoch has nothing waiting that it knows of; it shows no backlog then.
            backlog_records=sum(self._of_stream(BACKLOG, stream) for stream in names) if epochs else 0.0,
            shed_fraction=self._shed_fraction(names),
            budget_seconds=next((_sound(seconds, BUDGET) for _, seconds in self._now(BUDGET)), None),
        )

    def _held(self, side: str, workers: int) -> float:
        """Tuples that workers hold, replicas counted: within one plan in proportion to those that there are."""
        found = {series.labels.get("task"): value for series, value in self._now(TUPLES) if series.labels.get("side") == side}
        if len(found) != workers:
            raise Doubt(Reason.MetricsIncomplete, f"the {side} tuples of {len(found)} of {workers} workers are known")
        return math.fsum(_sound(value, f"the {side} tuples of worker {task}") for task, value in found.items())

    def _rate(self, stream: str, lasting: float) -> float:
        """Tuples per second, those shed included."""
        counters = (self._counter(ACCEPTED, stream), self._counter(SHED, stream))
        (took, seconds), (dropped, _) = (_increase(points, lasting) for points in counters)
        return (took + dropped) / seconds

    def _shed_fraction(self, streams: Sequence[str]) -> float:
        """Of all tuples that came lately, the part that was shed."""
        accepted, shed = (
            math.fsum(_increase(self._counter(name, stream), SHED_SECONDS)[0] for stream in streams) for name in (ACCEPTED, SHED)
        )
        return shed / (accepted + shed) if shed else 0.0

    def _pace(self, streams: Sequence[str], lasting: float) -> float | None:
        """Seconds of event time that have passed in each second, by the stream that is furthest behind. None: without event time, with one
        scrape, or where the driver began anew."""
        found = {series.labels.get("stream"): since_reset(series.points) for series, _ in self._now(WATERMARK)}
        of_streams = [dict(found[stream]) for stream in streams if stream in found]
        if len(of_streams) < len(streams):
            return None
        times = [at for at in of_streams[0] if all(at in points for points in of_streams)]
        points = _last([(at, min(points[at] for points in of_streams)) for at in times], lasting)
        if len(points) < 2:
            return None
        (began, first), (ended, last) = points[0], points[-1]
        return max(0.0, last - first) / (ended - began)

    @property
    def _seconds_an_epoch(self) -> float:
        """From one epoch's end to the next one's, as long as is known; 0 where none has ended."""
        counts = since_reset(self._counter(EPOCHS))
        ended = counts[-1][1] - counts[0][1]
        return (counts[-1][0] - counts[0][0]) / ended if ended > 0 else 0.0

    def _epoch_seconds(self) -> float:
        """What the last epochs took on average, of those that ended between the last two scrapes that differ; 0 where none has."""
        counts, sums = since_reset(self._counter(EPOCHS)), dict(self._counter(EPOCH_SECONDS))
        last, before = counts[-1], next((point for point in reversed(counts) if point[1] < counts[-1][1]), None)
        if before is None or before[0] not in sums or last[0] not in sums:
            return 0.0
        return _sound((sums[last[0]] - sums[before[0]]) / (last[1] - before[1]), "the epoch's time")

    def _counter(self, name: str, stream: str | None = None) -> Points:
        for series, _ in self._now(name):
            if series.labels.get("stream") == stream:
                for _, value in series.points:
                    _sound(value, name)
                return series.points
        raise Doubt(Reason.MetricsIncomplete, f"{PREFIX}{name}{'' if stream is None else f' of {stream}'} is missing")

    def _of_stream(self, name: str, stream: str) -> float:
        return self._counter(name, stream)[-1][1]

    def _one(self, name: str) -> float:
        return self._counter(name)[-1][1]

    def _now(self, name: str) -> list[tuple[Series, float]]:
        """The series that the scrape has."""
        return [(series, series.points[-1][1]) for series in self._series.get(name, ())]


def check_plan(measured: float, generation: int) -> None:
    """Raises Doubt where metrics are of another plan than the one that runs."""
    if measured != generation:
        raise Doubt(Reason.MetricsOfOtherPlan, f"they are of plan {measured:.0f}, and plan {generation} runs")


def checked_tau(found: Mapping[str, float], workers: int) -> Mapping[str, float]:
    """Tau by the label ``task``. Raises Doubt where it is not that of all workers of a plan with so many, or not sound."""
    wanted = {str(task) for task in range(workers)}
    if set(found) != wanted:
        known = len(wanted & set(found))
        more = f", and {len(set(found) - wanted)} that are not of the plan" if set(found) - wanted else ""
        raise Doubt(Reason.MetricsIncomplete, f"{known} of {workers} workers are measured{more}")
    for task, value in found.items():
        _sound(value, f"tau of worker {task}")
    return found


def since_reset(points: Points) -> Points:
    """A counter's points from the last one on that is smaller than the one before: its process began anew there."""
    begins = [index for index, (before, after) in enumerate(pairwise(points), 1) if after[1] < before[1]]
    return points[begins[-1] :] if begins else points


def _last(points: Points, seconds: float) -> Points:
    """The points of the last so many seconds, or a little more: from the last one on that is so old; all where none is."""
    begins = [index for index, (at, _) in enumerate(points) if points[-1][0] - at >= seconds]
    return points[begins[-1] if begins else 0 :]


def _increase(points: Points, seconds: float) -> tuple[float, float]:
    """By how much a counter has risen, and in how many seconds: the last so many, and from one scrape to the next at least."""
    used = since_reset(points)
    used = _last(used, max(seconds, math.ulp(used[-1][0])))
    if len(used) < 2 or used[-1][0] <= used[0][0]:
        raise Doubt(Reason.MetricsIncomplete, "only one scrape is known so far, and rates take two", is_early=True)
    return used[-1][1] - used[0][1], used[-1][0] - used[0][0]


def _sound(value: float, what: str) -> float:
    if not (math.isfinite(value) and 0 <= value <= MOST):
        raise Doubt(Reason.MetricsNotFinite, f"{what} is {value}, not a number from 0 to {MOST:g}")
    return value


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan
