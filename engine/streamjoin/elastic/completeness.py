"""Completeness: which share of a join's results was found, and which was lost to shedding and to lateness. An estimate, with an interval.

A tuple that is shed, or late, is dropped before it is stored: it neither waits for others nor meets those that wait. So a result is found
if, and only if, all its tuples were kept. What is counted for each epoch, by *part* (an area of the scheme, in which two tuples meet; or
all workers, of three and more streams and of a chain) and by source of tuples::

    came   tuples on time that the part was to have           kept   those of them that were not shed
    late   tuples that were dropped as late                   held   kept tuples that the part holds after the epoch
    output results that were found

An epoch's new tuples N meet each other and those that are held, H, so of two streams it looks at ``N_l N_r + N_l H_r + H_l N_r`` pairs,
where those of the window count: an epoch's tuples are taken to be spread evenly over the event time by which it went forward
(``pairs.inside``). Of more streams, at ``prod(H + N) - prod(H)``. Let P be these pairs: of kept tuples alone, of all that came on time, and
of these and the late ones. The part's selectivity is what its pairs of kept tuples have given, over the last epochs: ``sum(output) /
sum(P(kept))``. Then of each epoch are lost, part by part::

    by shedding                  (P(came) - P(kept)) * selectivity
    by lateness, or by both      (P(came and late) - P(came)) * selectivity

(A ratio estimator.) Where all factors are what they were a window ago, P(kept) / P(came) is (1 - SF_l)(1 - SF_r). Came and late are
remembered of what is held (``pairs.Memory``): tuples expire in the order in which they came, so those that are held are the newest.

Assumptions:

1. Among tuples of one part and epoch, which are shed is chance, and of two tuples independent. Routing sees to it.
2. Within a part, a source's tuples have as many partners within the window each, on average, in whichever epoch they came, as do those of
   the epochs before.
3. Late tuples have as many partners as those that came on time in the same epoch, and are late independently of them.
4. What is lost before a join's input (dead letters, results of a join that it reads) is not its loss.

The interval: by chance, tuples with many partners are dropped more or less often. With d the results of a tuple that were found, the
variance of an output of which a share 1 - p of a source's tuples is dropped is ``(1 - p) * sum(d^2)``; ``sum(d^2) / sum(d)``, the results
of a tuple as a result sees it, is measured by :data:`GROUPS` random groups of each side's tuples, whose results are counted: of random
groups the variance is ``sum(d^2) / GROUPS`` (Wolter, "Introduction to Variance Estimation", 2). Added is :data:`MODEL_ERROR` for what the
assumptions do not hold exactly, and :data:`WHOLE_ERROR` where all workers count as one.

Always holds: ``0 <= low <= share <= high <= 1``; without a tuple dropped all three are 1. Pure; state is plain data for the checkpoint.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from streamjoin.elastic.pairs import Entry, Memory, Tuples, as_one, pairs_of, part_of, remembered, summed

GROUPS = 16
"""Random groups of each side's tuples, by the unit."""
QUANTILE = 2.131
"""Of Student's t with GROUPS - 1 degrees of freedom, for 95 of 100."""
MODEL_ERROR = 0.02
"""The standard deviation of what is lost for what else is not as assumed, as a part of it."""
WHOLE = -1
"""The part that stands for all workers."""
WHOLE_ERROR = 0.18
"""In place of ``MODEL_ERROR`` there: workers of a chain shed by what each of them holds, which are not the same tuples of both streams."""
MEASURED = 64
"""Of so many parts the selectivity is measured in an epoch in which nothing is dropped."""
FINE_SECONDS, HOUR, DAY = 300.0, 3600.0, 86400.0
KEPT_FINE_SECONDS, KEPT_HOURLY_SECONDS, KEPT_SECONDS = 2 * HOUR, 2 * DAY, 32 * DAY
"""For how long sums are kept by five minutes, by hours and by days."""
SPANS = {"1h": HOUR, "1d": DAY, "run": None}
"""The times that are shown, by their names; None: since the checkpoint's first epoch."""
RECENT_SECONDS = 60.0
"""What is lost at present is averaged over about so long."""
DECAY = 0.8
"""By epoch, of what is remembered of a part's selectivity."""


@dataclass(frozen=True, slots=True)
class Part:
    """What one part did in an epoch. Tuples are by source."""

    new: tuple[Entry, ...]
    held: tuple[float, ...]
    outputs: Mapping[str, int]
    """By join."""
    holds: tuple[bool, ...] = ()
    """Whether tuples stay for others, or only meet those that are held; empty: all stay. Those that come together meet where the join's
    first source stays."""

    def stays(self, source: int) -> bool:
        """Whether the source's tuples do."""
        return not self.holds or self.holds[source]


@dataclass(frozen=True, slots=True)
class Epoch:
    """What is counted in an epoch."""

    at: float
    """When it was committed; seconds since 1970."""
    generation: int
    parts: Mapping[int, Part]
    groups: Mapping[str, Sequence[Sequence[float]]]
    """By join and side, the results by the group of that side's tuple. Empty where they are not counted."""


@dataclass(frozen=True, slots=True)
class Counted:
    """A join whose losses are estimated."""

    sources: tuple[int, ...]
    """Which its results are made of."""
    window: tuple[float, float] = (math.inf, math.inf)
    """How far before a left tuple's event time its partners' may be, and how far after it; microseconds."""


@dataclass(frozen=True, slots=True)
class Sums:
    """Of a join's results over some time. They can be added."""

    begin: float
    """Seconds since 1970."""
    output: float = 0.0
    came: float = 0.0
    """Results of tuples on time."""
    all: float = 0.0
    weights: tuple[float, ...] = ()
    """By source, what ``sum(d^2) / sum(d)`` is to be multiplied by for its part of the variance of ``all``."""

    def plus(self, other: Sums) -> Sums:
        length = max(len(self.weights), len(other.weights))
        weights = (sum(pair) for pair in zip(_padded(self.weights, length), _padded(other.weights, length), strict=True))
        return Sums(
            begin=min(self.begin, other.begin),
            output=self.output + other.output,
            came=self.came + other.came,
            all=self.all + other.all,
            weights=tuple(weights),
        )

    def to_json(self) -> list[Any]:
        return [_short(value) for value in (self.begin, self.output, self.came, self.all, *self.weights)]

    @classmethod
    def from_json(cls, values: Sequence[float]) -> Sums:
        begin, output, came, every, *weights = values
        return cls(begin, output, came, every, tuple(weights))


@dataclass(frozen=True, slots=True)
class Estimate:
    """A join's results over some time: which share was found of those that there would be had no tuple been shed or late."""

    share: float
    low: float
    high: float
    """Between these the share lies in 95 of 100 cases."""
    lost_to_shedding: float
    lost_to_lateness: float
    """Shares, which with ``share`` make 1."""
    results: float
    """That there would be."""

    def to_json(self) -> dict[str, float]:
        """As commands show it."""
        named = {"share": self.share, "low": self.low, "high": self.high}
        lost = {"lostToShedding": self.lost_to_shedding, "lostToLateness": self.lost_to_lateness}
        return {name: round(value, 9) for name, value in {**named, **lost}.items()}


@dataclass(frozen=True, slots=True)
class JoinLosses:
    """What is remembered of one join."""

    run: Sums
    """Since the checkpoint's beginning, or since when it is counted."""
    recently: tuple[Sums, ...] = ()
    """Parts of the last weeks, oldest first."""
    groups: tuple[tuple[float, ...], ...] = ()
    lately: Mapping[int, tuple[float, ...]] = field(default_factory=dict)
    """By part, of the last epochs: results; pairs of kept tuples and of all; by source, kept tuples and all."""
    kept: tuple[float, ...] = ()
    """Tuples by source, for where no groups are counted."""
    rate: tuple[float, float, float] = (0.0, 0.0, 0.0)
    """When the last epoch was; results a second that there would be, and that are lost, at present."""
    model_error: float = MODEL_ERROR

    def over(self, seconds: float | None, now: float) -> Estimate | None:
        """Of the last so many seconds (in steps of five minutes, of hours, or of days, by how long ago they are), or of the whole run.

        None before any result. O(kept sums).
        """
        found = self.run if seconds is None else functools.reduce(Sums.plus, self._within(seconds, now), Sums(now))
        if found.all <= 0:
            return None
        share = min(1.0, found.output / found.all)
        by_chance = sum(self.spread(at) * weight for at, weight in enumerate(found.weights))
        variance = by_chance + (self.model_error * (found.all - found.output)) ** 2
        error = QUANTILE * math.sqrt(variance)
        low = min(share, found.output / (found.all + error))
        high = min(1.0, found.output / (found.all - error)) if found.all > error else 1.0
        late = max(0.0, found.all - found.came) / found.all
        return Estimate(share, low, max(share, high), max(0.0, 1 - share - late), late, found.all)

    def spread(self, at: int) -> float:
        """``sum(d^2) / sum(d)`` of a source's tuples: how many results a tuple has, averaged over the results. At least 1."""
        counted = self.groups[at] if at < len(self.groups) else ()
        total = sum(counted)
        if total <= 0:
            # Twice what is so where all have as many.
            return max(1.0, 2 * self.run.output / self.kept[at]) if at < len(self.kept) and self.kept[at] > 0 else 1.0
        mean = total / GROUPS
        squares = sum((results - mean) ** 2 for results in counted) * GROUPS / (GROUPS - 1)
        return max(1.0, squares / total)

    def plus(self, at: float, sums: Sums) -> JoinLosses:
        """With those of an epoch that was committed at this time. O(1), but for one epoch in five minutes: O(kept sums)."""
        recently = self.recently
        if recently and math.floor(at / FINE_SECONDS) * FINE_SECONDS <= recently[-1].begin:
            recently = (*recently[:-1], recently[-1].plus(sums))
        else:
            recently = _compacted((*recently, sums), at)
        return replace(self, run=self.run.plus(sums), recently=recently, rate=_rate(self.rate, at, sums))

    def seconds_left(self, share: float, over: float, now: float) -> float:
        """How long this completeness over the last ``over`` seconds lasts if results are lost as at present, at most ``over``; 0: it does
        not any more.

        With S of T results lost, l a second being lost of r, it ends when ``S + l t > (1 - share)(T + r t)``.
        """
        found = self._within(over, now)
        results, output = sum(sums.all for sums in found), sum(sums.output for sums in found)
        allowed, (_, rate, losing) = 1 - share, self.rate
        left = allowed * results - (results - output)
        faster = losing - allowed * rate
        if left < 0:
            return 0.0
        return min(over, left / faster) if faster > 0 else over

    def _within(self, seconds: float, now: float) -> list[Sums]:
        """Those of the last so many seconds."""
        return [sums for sums in self.recently if sums.begin + _step(now - sums.begin) > now - seconds]

    def to_json(self, *, is_calm: bool = False) -> dict[str, Any]:
        """``is_calm``: nothing that is held was dropped, so that selectivities can be measured anew."""
        lately = {} if is_calm else self.lately
        return {
            "run": self.run.to_json(),
            "recently": [sums.to_json() for sums in self.recently],
            "groups": [[_short(value) for value in group] for group in self.groups],
            "lately": {str(part): [_short(value) for value in values] for part, values in lately.items()},
            "kept": [_short(value) for value in self.kept],
            "rate": [_short(value) for value in self.rate],
            "modelError": self.model_error,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> JoinLosses:
        rate = data["rate"]
        return cls(
            run=Sums.from_json(data["run"]),
            recently=tuple(map(Sums.from_json, data["recently"])),
            groups=tuple(map(tuple, data["groups"])),
            lately={int(part): tuple(values) for part, values in data["lately"].items()},
            kept=tuple(data["kept"]),
            rate=(rate[0], rate[1], rate[2]),
            model_error=data["modelError"],
        )


@dataclass(frozen=True, slots=True)
class Losses:
    """What is remembered of all joins, from one epoch to the next."""

    generation: int = 0
    memories: Mapping[int, tuple[Memory, ...]] = field(default_factory=dict)
    """By part and source. Empty while nothing that is held was dropped: then ``calm`` says as much, for all parts."""
    joins: Mapping[str, JoinLosses] = field(default_factory=dict)
    calm: tuple[Memory, ...] = ()
    """By source, what all parts hold, while nothing of it was dropped."""
    held: Mapping[int, tuple[float, ...]] = field(default_factory=dict)
    """By part and source, what is held after the epoch, while nothing of it was dropped. Not in the JSON: it can do without."""

    @property
    def are_any(self) -> bool:
        """Whether a result has been lost so far."""
        return any(each.run.output < each.run.all for each in self.joins.values())

    def after(self, epoch: Epoch, joins: Mapping[str, Counted]) -> Losses:
        """With one more epoch, of the joins to be counted. O(parts x joins); while nothing is dropped only a few additions for a part."""
        same_parts = epoch.generation == self.generation
        is_calm = not self.memories and all(new.tuples.kept >= new.tuples.all for done in epoch.parts.values() for new in done.new)
        parts = _some(epoch) if is_calm else epoch.parts
        known = self._known(parts, same_parts=same_parts)
        counted = {name: _joined(self.joins.get(name), name, join, epoch, known, same_parts=same_parts) for name, join in joins.items()}
        held = {part: done.held for part, done in epoch.parts.items()}
        if is_calm:
            return Losses(epoch.generation, {}, counted, _calmly(self.calm, epoch), held)
        memories = {part: tuple(_remembered(done, known[part], at) for at in range(len(done.new))) for part, done in epoch.parts.items()}
        if all(entry.tuples.kept >= entry.tuples.all for of_part in memories.values() for memory in of_part for entry in memory):
            return Losses(epoch.generation, {}, counted, summed(memories), held)
        return Losses(epoch.generation, memories, counted)

    def _known(self, parts: Mapping[int, Part], *, same_parts: bool) -> dict[int, tuple[Memory, ...]]:
        """What parts held before the epoch. Where that is not known of each, as it was not kept, or as they are others by now, each has
        the average, of as many as it has left."""
        if self.memories and same_parts:
            nothing: Memory = ()
            return {
                part: found if len(found := self.memories.get(part, ())) == len(done.new) else (nothing,) * len(done.new)
                for part, done in parts.items()
            }
        totals = [as_one(memory) for memory in self.calm or summed(self.memories)]
        known: dict[int, tuple[Memory, ...]] = {}
        for part, done in parts.items():
            left = [max(0.0, held - new.tuples.kept) for held, new in zip(done.held, done.new, strict=True)]
            before = self.held.get(part, left) if same_parts else left
            fits = len(totals) == len(before) == len(left)
            known[part] = tuple(map(part_of, totals, before)) if fits else ((),) * len(left)
        return known

    def share_of(self, part: int, source: int) -> float:
        """Which part of a source's tuples that are held came to this part; those that several hold count for each."""
        of_parts = {at: sum(entry.tuples.came for entry in memory[source]) for at, memory in self.memories.items() if source < len(memory)}
        total = sum(of_parts.values())
        return of_parts.get(part, 0.0) / total if total else 0.0

    def budget_seconds(self, share: float, over: float, now: float) -> float:
        """For how long this completeness over the last ``over`` seconds lasts, of the join that loses most."""
        return min((losses.seconds_left(share, over, now) for losses in self.joins.values()), default=over)

    def without_memories(self) -> Losses:
        """The same where sources have other numbers now."""
        return replace(self, memories={}, calm=())

    def to_json(self) -> dict[str, Any]:
        return {
            "generation": self.generation,
            "memories": {str(part): [_entries(memory) for memory in of_part] for part, of_part in self.memories.items()},
            "joins": {name: losses.to_json(is_calm=not self.memories) for name, losses in self.joins.items()},
            "calm": [_entries(memory) for memory in self.calm],
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Losses:
        if not data:
            return cls()
        memories = {int(part): tuple(tuple(map(_entry, memory)) for memory in of_part) for part, of_part in data["memories"].items()}
        joins = {name: JoinLosses.from_json(one) for name, one in data["joins"].items()}
        return cls(data["generation"], memories, joins, tuple(tuple(map(_entry, memory)) for memory in data["calm"]))


def _some(epoch: Epoch) -> Mapping[int, Part]:
    """At most :data:`MEASURED` parts, others with each epoch."""
    every = -(-len(epoch.parts) // MEASURED)
    return epoch.parts if every == 1 else {part: done for part, done in epoch.parts.items() if (part + int(epoch.at)) % every == 0}


def _calmly(calm: tuple[Memory, ...], epoch: Epoch) -> tuple[Memory, ...]:
    """What all parts hold after an epoch in which nothing was dropped."""
    parts = list(epoch.parts.values())
    count = len(parts[0].new) if parts else 0
    found = []
    for at in range(count):
        holding = [part for part in parts if part.stays(at)]
        new, held = sum(part.new[at].tuples.kept for part in holding), sum(part.held[at] for part in holding)
        memory = calm[at] if len(calm) == count else ()
        found.append(remembered(memory, Entry(Tuples(new, new, new), parts[0].new[at].span), held))
    return tuple(found)


def _entries(memory: Memory) -> list[list[float]]:
    return [[_short(value) for value in (*entry.tuples, *(entry.span or ()))] for entry in memory]


def _remembered(done: Part, memories: Sequence[Memory], source: int) -> Memory:
    return remembered(memories[source], done.new[source], done.held[source]) if done.stays(source) else ()


def _entry(values: Sequence[float]) -> Entry:
    every, came, kept, *span = values
    return Entry(Tuples(every, came, kept), (span[0], span[1]) if span else None)


def _joined(
    before: JoinLosses | None, name: str, join: Counted, epoch: Epoch, held: Mapping[int, Sequence[Memory]], *, same_parts: bool
) -> JoinLosses:
    """One join's losses with an epoch's."""
    before = before or JoinLosses(Sums(epoch.at))
    lately: dict[int, tuple[float, ...]] = {}
    outputs, of_pairs = {}, {}
    for number in held:
        part = epoch.parts[number]
        output, new = part.outputs.get(name, 0), [part.new[at] for at in join.sources]
        pairs = pairs_of(new, [held[number][at] for at in join.sources], join.window, together=part.stays(join.sources[0]))
        counts = (output, pairs.kept, pairs.all, *(entry.tuples.kept for entry in new), *(entry.tuples.all for entry in new))
        old = before.lately.get(number, ()) if same_parts else ()
        lately[number] = tuple(DECAY * was + now for was, now in zip(old or (0.0,) * len(counts), counts, strict=True))
        outputs[number], of_pairs[number] = output, pairs
    everywhere = tuple(map(sum, zip(*lately.values(), *([] if same_parts else before.lately.values()), strict=True)))
    found = [_found(epoch.at, outputs[part], of_pairs[part], lately[part] if lately[part][1] else everywhere) for part in lately]
    # Of parts that were not looked at nothing was dropped.
    others = sum(part.outputs.get(name, 0) for number, part in epoch.parts.items() if number not in held)
    sums = functools.reduce(Sums.plus, found, Sums(epoch.at, others, others, others, (0.0,) * len(join.sources)))
    if same_parts:
        lately = {**{part: values for part, values in before.lately.items() if part in epoch.parts}, **lately}
    kept = [sum(part.new[at].tuples.kept for part in epoch.parts.values()) for at in join.sources]
    return replace(
        before.plus(epoch.at, sums),
        groups=_added(before.groups, epoch.groups.get(name) or ()),
        lately=lately,
        kept=_added((before.kept,), (kept,))[0],
        model_error=WHOLE_ERROR if WHOLE in epoch.parts else before.model_error,
    )


def _found(at: float, output: int, pairs: Tuples, lately: Sequence[float]) -> Sums:
    """What a part's output stands for."""
    if pairs.kept >= pairs.all or not lately[1]:
        return Sums(at, output, output, output)
    results, of_kept, of_all, *tuples = lately
    each, sources = results / of_kept, len(tuples) // 2
    shed, late = max(0.0, pairs.came - pairs.kept) * each, max(0.0, pairs.all - max(pairs.came, pairs.kept)) * each
    factor = max(1.0, of_all / of_kept)
    dropped = [1 - _ratio(tuples[source], tuples[sources + source]) for source in range(sources)]
    return Sums(at, output, output + shed, output + shed + late, tuple(factor**2 * share * output for share in dropped))


def _rate(before: tuple[float, float, float], at: float, sums: Sums) -> tuple[float, float, float]:
    last, results, lost = before
    seconds = at - last
    if not last or seconds <= 0:
        return at, results, lost
    old = math.exp(-seconds / RECENT_SECONDS)
    return at, old * results + (1 - old) * sums.all / seconds, old * lost + (1 - old) * (sums.all - sums.output) / seconds


def _step(age: float) -> float:
    """How long the sums are over that are so old."""
    return FINE_SECONDS if age < KEPT_FINE_SECONDS else HOUR if age < KEPT_HOURLY_SECONDS else DAY


def _compacted(sums: Iterable[Sums], now: float) -> tuple[Sums, ...]:
    found: list[Sums] = []
    for one in sums:
        if now - one.begin > KEPT_SECONDS:
            continue
        step = _step(now - one.begin)
        begin = math.floor(one.begin / step) * step
        if found and begin <= found[-1].begin:
            found[-1] = found[-1].plus(one)
        else:
            found.append(replace(one, begin=begin))
    return tuple(found)


def _added(known: Sequence[Sequence[float]], new: Sequence[Sequence[float]]) -> tuple[tuple[float, ...], ...]:
    count = max(len(known), len(new))
    rows = zip(_filled(known, count), _filled(new, count), strict=True)
    return tuple(tuple(map(sum, zip(_padded(a, max(len(a), len(b))), _padded(b, max(len(a), len(b))), strict=True))) for a, b in rows)


def _filled(rows: Sequence[Sequence[float]], count: int) -> list[Sequence[float]]:
    return [*rows, *([()] * (count - len(rows)))]


def _padded(values: Sequence[float], length: int) -> list[float]:
    return [*values, *([0.0] * (length - len(values)))]


def _ratio(part: float, whole: float) -> float:
    return min(1.0, part / whole) if whole > 0 else 1.0


def _short(value: float) -> float:
    """Eight digits, or as many as an integer has: the checkpoint holds many of these."""
    if float(value).is_integer():
        return int(value)
    return float(f"{value:.9g}") if abs(value) < 1e9 else round(value, 1)
