"""Chooses how two frames are joined, from samples: Spark's own plan, or bins of which width on which side.

Costs are seconds of one core, by the few numbers below. What a wrong sample costs is time: every plan gives the same result.

Always holds: the same samples give the same plan.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from streamjoin.language.sides import SIDES
from streamjoin.spark.bins import Array, Axis, Bins, Cut, Estimate, Hot, Mode, Own, Quantiles, Reach, Sample, Uniform, fits
from streamjoin.spark.keys import Keys

ROW_SECONDS = 1.0e-6
"""To make a row of a frame, shuffle and sort it."""
CANDIDATE_SECONDS = 30e-9
"""To check the condition on a pair of rows that an equality brings together."""
LOOP_SECONDS = 6e-9
"""The same for a pair in Spark's nested loops, in generated code."""
START_SECONDS = 0.1
"""More than that must be won, or the plan is Spark's own."""

_REACHES = 1000
"""So many sampled reaches are compared with all sampled points."""
_PAIRED = 700
"""So many rows of each sample are compared in pairs, for cells of two keys."""
_ENOUGH = 64
"""Pairs of samples that tell their number well enough."""
_MOST_BINS = 1 << 22
_MULTIPLES = (0.5, 1, 1.5, 2, 3, 4, 6, 8, 11, 16, 22, 32, 45, 64, 90, 128, 256, 512, 1024, 4096)
_RANGES = (4, 8, 16, 32, 64, 128)
_LEVEL_STEP = 8.0
_MOST_LEVELS = 8
_MOST_PARTS = 32


@dataclass(frozen=True)
class Pairs:
    """Pairs of a sampled point and a sampled reach, whose codes are equal, by how wide bins have to be for them to share one: twice the
    distance of the two, 0 where they match."""

    points: Array
    """Codes (the real part) and values, ascending by both: complex numbers are sorted so."""
    codes: Array
    """Of the reaches; negative: they match nothing."""
    ends: Array
    """(reaches, 2); NaN: they match nothing."""
    lengths: Array
    """Of the reaches; infinite where they are open."""
    scale: float
    """Pairs of rows for each of samples."""

    def count(self, widths: Array | float) -> int:
        """Pairs that lie within so wide bins; ``widths``: by reach. O(reaches log points)."""
        half = np.asarray(widths) / 2.0
        with np.errstate(invalid="ignore", over="ignore"):
            low, high = self._at(self.ends[:, 0] - half), self._at(self.ends[:, 1] + half)
        counts = np.searchsorted(self.points, high, "right") - np.searchsorted(self.points, low, "left")
        return int(counts[(self.codes >= 0) & ~np.isnan(self.ends).any(axis=1)].clip(0).sum())

    def _at(self, values: Array) -> Array:
        return _complex(self.codes, np.nan_to_num(values, nan=0.0, posinf=math.inf, neginf=-math.inf))

    def within(self, widths: Array) -> float:
        """About how many pairs of rows lie within so wide bins of their reaches. O(reaches log points).

        Too few pairs of a sample are counted in wider bins, as if they were spread evenly.
        """
        mean = float(np.mean(np.minimum(self.lengths, 1e300))) if len(self.lengths) else 0.0
        narrow, more, found = float(np.mean(widths)) if len(widths) else 0.0, 0.0, 0
        for _ in range(40):
            found = self.count(widths + more)
            if found >= _ENOUGH or not mean + narrow:
                break
            more = 2.0 * more + mean + narrow
        spread = (mean + narrow) / (mean + narrow + more) if math.isfinite(narrow) and mean + narrow else 1.0
        return max(found, 0.5) * self.scale * spread


def _complex(codes: Array, values: Array) -> Array:
    """Numbers that are sorted by code, then by value. (A sum would make NaN of what is infinite.)"""
    found = np.empty(len(values), complex)
    found.real, found.imag = codes, values
    return found


def pairs_of(reach: Reach, samples: Sequence[Sample], equal: Sequence[Array] | None) -> tuple[Pairs, Array, Array]:
    """With the sampled points and the ends of the first ``_REACHES`` reaches ((rows, 2)). ``equal``: by side, codes of the values of
    the equality; negative: NULL. O(rows log rows)."""
    points, lows, highs = values_of(reach, samples)
    ends = np.stack([lows, highs], axis=1)[:_REACHES]
    scale = samples[0].rows * samples[1].rows / max(1, len(points) * len(ends))
    with np.errstate(invalid="ignore", over="ignore"):
        lengths = np.maximum(np.nan_to_num(ends[:, 1] - ends[:, 0], nan=0.0, posinf=math.inf), 0.0)
    of_points, of_reaches = (np.zeros(len(each)) for each in (points, ends))
    if equal is not None:
        of_points, of_reaches = equal[reach.points].astype(float), equal[1 - reach.points][:_REACHES].astype(float)
    there = ~np.isnan(points)
    return Pairs(np.sort(_complex(of_points[there], points[there])), of_reaches, ends, lengths, scale), points, ends


def values_of(reach: Reach, samples: Sequence[Sample]) -> tuple[Array, Array, Array]:
    """Points, and low and high ends, of the sampled rows; NaN where NULL. O(rows)."""
    own, other = samples[reach.points], samples[1 - reach.points]
    points, valid = own.columns[reach.point]
    low, high = np.full(other.size, -math.inf), np.full(other.size, math.inf)
    if reach.low is not None:
        values, there = other.columns[reach.low.key]
        low = np.where(there, reach.low.of(values, down=True), math.nan)
    if reach.high is not None:
        values, there = other.columns[reach.high.key]
        high = np.where(there, reach.high.of(values, down=False), math.nan)
    return np.where(valid, points, math.nan), low, high


@dataclass(frozen=True, slots=True)
class Chosen:
    """How a join is done."""

    pairs: tuple[Bins, ...]
    """Ways that together find each pair once; none: Spark's own plan."""
    kept: Mapping[int, tuple[Bins, ...]]
    """By side, where ``pairs`` do not: ways that together tell its rows without a partner."""
    own: Own
    """Spark's own plan, and why it is taken or not."""


def choose(keys: Keys, samples: Sequence[Sample], sides: Sequence[int], *, gives_pairs: bool = True, partitions: int = 200) -> Chosen:
    """The way of least cost. ``sides``: whose rows without a partner must be known; none for an inner join. ``gives_pairs``: False for semi
    and anti. ``partitions``: of a shuffle, among which no place should be most of the work. O(widths x rows of samples log rows)."""
    if not min(each.rows for each in samples):
        return Chosen((), {}, Own("a side is empty"))
    equal = codes_of(keys, samples)
    own = own_cost(samples, equal)
    ways = [way for way in (_simple(keys, samples, sides, equal), *_overlapping(keys, samples, sides, equal, gives_pairs)) if way]
    if not ways:
        return Chosen((), {}, Own("no part of the condition bounds a difference of two keys, or compares them", own))
    cost, pairs, kept = min(ways, key=lambda way: way[0])
    if own.cost_seconds <= cost + START_SECONDS:
        how = "its equality is selective enough" if equal is not None else "few rows are compared with few"
        return Chosen((), {}, Own(f"{how} (about {own.cost_seconds:.2g} s of a core, by bins {cost:.2g} s)", own))

    def cut(way: tuple[Bins, ...]) -> tuple[Bins, ...]:
        return tuple(_with_grids(bins, samples, partitions) for bins in way)

    reason = f"about {own.cost_seconds:.2g} s of a core, by this way {cost:.2g} s"
    return Chosen(cut(pairs), {side: cut(way) for side, way in kept.items()}, Own(reason, own))


_Way = tuple[float, tuple[Bins, ...], dict[int, tuple[Bins, ...]]]


def _simple(keys: Keys, samples: Sequence[Sample], sides: Sequence[int], equal: Sequence[Array] | None) -> _Way | None:
    """By one reach or two that all pairs obey."""
    reaches = [reach for reach in keys.reaches if not reach.apart]
    found = best(reaches, samples, sides[0] if sides else None, equal)
    if found is None:
        return None
    cost = found.estimate.cost_seconds
    kept: dict[int, tuple[Bins, ...]] = {}
    for side in sides[1:]:
        other = best(reaches, samples, side, equal)
        if other is None:
            return None
        kept[side] = (other,)
        cost += other.estimate.cost_seconds
    return cost, (found,), kept


def _overlapping(
    keys: Keys, samples: Sequence[Sample], sides: Sequence[int], equal: Sequence[Array] | None, gives_pairs: bool
) -> Iterator[_Way]:
    """By two reaches of which a pair obeys exactly one."""
    for both in keys.overlaps[:4]:
        ways = {side: tuple(best([reach], samples, side, equal) for reach in both) for side in (None, *sides)}
        known = {side: tuple(bins for bins in way if bins) for side, way in ways.items() if gives_pairs or side is not None}
        if all(len(way) == len(both) for way in known.values()):
            cost = sum(bins.estimate.cost_seconds for way in known.values() for bins in way)
            yield cost, known.pop(None, known.get(sides[0] if sides else None, ())), {side: known[side] for side in sides}


def best(reaches: Sequence[Reach], samples: Sequence[Sample], single: int | None, equal: Sequence[Array] | None = None) -> Bins | None:
    """The bins of least cost. ``single``: the side whose rows must be in one place; None: any. ``equal``: codes of the values of the
    condition's equalities by side, if it has some. None: no reach can be cut so. O(widths x rows of samples log rows)."""
    options = [option for reach in reaches for option in _of_one(reach, samples, single, equal)]
    options += _of_two(reaches, samples, single, equal)
    return min(options, key=lambda option: option.estimate.cost_seconds, default=None)


def codes_of(keys: Keys, samples: Sequence[Sample]) -> list[Array] | None:
    """By side, a number for each sampled row, equal where all values of the equalities are; -1: one is NULL. None: there is no equality."""
    if not keys.equal:
        return None
    both = [np.stack([samples[side].columns[pair[side]][0] for pair in keys.equal], axis=1) for side in SIDES]
    there = [np.all([samples[side].columns[pair[side]][1] for pair in keys.equal], axis=0) for side in SIDES]
    every = np.unique(np.concatenate(both), axis=0, return_inverse=True)[1].reshape(-1)
    cut = len(both[0])
    return [np.where(valid, codes, -1) for valid, codes in zip(there, (every[:cut], every[cut:]), strict=True)]


def own_cost(samples: Sequence[Sample], equal: Sequence[Array] | None) -> Estimate:
    """Of Spark's own plan: nested loops, or a join by the equality. O(rows)."""
    left, right = samples
    every = float(left.rows) * right.rows
    if equal is None:
        return Estimate(every * LOOP_SECONDS + min(left.rows, right.rows) * ROW_SECONDS, 0.0, every, math.nan)
    counts = [np.bincount(codes[codes >= 0], minlength=int(max(each.max(initial=0) for each in equal)) + 1) for codes in equal]
    share = float((counts[0].astype(float) * counts[1]).sum()) / max(1, len(equal[0]) * len(equal[1]))
    rows = left.rows + right.rows
    return Estimate(rows * ROW_SECONDS + share * every * CANDIDATE_SECONDS, 0.0, share * every, math.nan)


def _cost(rows: float, candidates: float) -> float:
    return rows * ROW_SECONDS + candidates * CANDIDATE_SECONDS


def _of_one(reach: Reach, samples: Sequence[Sample], single: int | None, equal: Sequence[Array] | None) -> Iterator[Bins]:
    pairs, points, ends = pairs_of(reach, samples, equal)
    results = pairs.within(np.zeros(len(ends)))
    for mode, cuts in _cuts(reach, points, ends, single):
        axis = Axis(reach, mode, cuts)
        replicas = {side: samples[side].rows * share for side, share in _shares(axis, ends).items()}
        candidates = results + _beside(cuts[0], points, ends, pairs.scale) if reach.is_open else pairs.within(_widths(axis, ends))
        rows = sum(replicas.values())
        yield Bins((axis,), Estimate(_cost(rows, candidates), rows, candidates, results), with_equality=equal is not None)


def _cuts(reach: Reach, points: Array, ends: Array, single: int | None) -> Iterator[tuple[Mode, tuple[Cut, ...]]]:
    if reach.is_open:
        if single in (None, reach.points):
            for count in _RANGES:
                yield Mode.POINTS, (_quantiles(points, ends, count),)
        return
    domain = _domain(points, ends)
    finite = ends[np.isfinite(ends).all(axis=1)]
    lengths = np.sort(finite[:, 1] - finite[:, 0])
    lengths = lengths[lengths > 0]
    if domain is None or not len(lengths):
        return
    typical, longest = float(np.median(lengths)), float(lengths[-1])
    if single in (None, reach.points):
        for width in {float(size) * factor for size in {typical, float(lengths.mean())} for factor in _MULTIPLES}:
            yield Mode.POINTS, (_bins(reach, domain, width),)
    for mode, allowed in ((Mode.LEVELS, single is None and longest > 4 * typical), (Mode.REACHES, single in (None, 1 - reach.points))):
        for factor in (1.0, 2.0, 4.0, 8.0, 16.0, 64.0) if allowed else ():
            widths = [typical * factor]
            while widths[-1] * 0.99 < longest and len(widths) < _MOST_LEVELS:
                widths.append(widths[-1] * _LEVEL_STEP)
            for chosen in (widths, [widths[0], longest * 1.01]):  # where all but a few have one length, two levels do
                yield mode, tuple(_bins(reach, domain, width) for width in chosen)


def _domain(points: Array, ends: Array) -> tuple[float, float] | None:
    """Where points and ends lie, but for a few that are far from all others: these share the first or the last bin."""
    values = np.concatenate([points, ends.ravel()])
    values = values[np.isfinite(values) & (np.abs(values) < 1e300)]
    if not len(values):
        return None
    low, high = np.quantile(values, [0.002, 0.998])
    if values.max() - values.min() <= 100.0 * (high - low):
        low, high = values.min(), values.max()
    return float(low), float(high)


def _bins(reach: Reach, domain: tuple[float, float], width: float) -> Uniform:
    """Over a domain; of whole numbers, from half a one below it."""
    return uniform(domain[0] - (0.5 if reach.is_whole else 0.0), domain[1], width)


def uniform(low: float, high: float, width: float) -> Uniform:
    """Bins of at least ``width``, and no more than can be counted, from ``low`` until beyond ``high``. O(1)."""
    width = max(width, (high - low) / _MOST_BINS, 1e-290)
    width = max(width, 16 * math.ulp(max(abs(low), abs(high))))
    return Uniform(low, width, max(1, math.ceil((high - low) / width) + 1))


def _quantiles(points: Array, ends: Array, count: int) -> Quantiles:
    """Cuts points and ends alike into ranges of about as many of both; fewer where values are equal."""
    values = np.concatenate([points, ends[:, 0], ends[:, 1]])
    values = values[np.isfinite(values)]
    if not len(values):
        return Quantiles(())
    bounds = np.unique(np.quantile(values, np.linspace(0, 1, count + 1)[1:-1]))
    return Quantiles(tuple(float(bound) for bound in bounds))


def _widths(axis: Axis, ends: Array) -> Array:
    """Of the bins that each sampled reach lies in."""
    widths = np.array([cut.width for cut in axis.cuts if isinstance(cut, Uniform)])
    if axis.mode is Mode.POINTS:
        return np.full(len(ends), widths[0])
    with np.errstate(invalid="ignore"):
        lengths = ends[:, 1] - ends[:, 0]
    level = np.searchsorted([fits(cut) for cut in axis.cuts], np.nan_to_num(lengths, nan=0.0))
    own = widths[np.minimum(level, len(widths) - 1)]
    if axis.mode is Mode.REACHES:  # a point visits two bins a level, of which one may hold the reach
        return np.asarray(np.where(level < len(widths), 2.0 * own - np.nan_to_num(lengths, nan=0.0), math.inf))
    return np.asarray(own)


def _shares(axis: Axis, ends: Array) -> dict[int, float]:
    """Places for each row, by side."""
    points = axis.reach.points
    if axis.mode is Mode.REACHES:
        return {points: 2.0 * len(axis.cuts) + 1.0, 1 - points: 1.0}
    cut = axis.cuts[0]
    if axis.mode is Mode.LEVELS:
        with np.errstate(invalid="ignore", over="ignore"):
            spans = (ends[:, 1] - ends[:, 0]) / _widths(axis, ends)
        return {points: float(len(axis.cuts)), 1 - points: 1.0 + float(np.mean(np.clip(np.nan_to_num(spans), 0, 1e6)))}
    valid = ~np.isnan(ends).any(axis=1)
    first, last = _covered(axis.reach, cut, ends[:, 0], ends[:, 1])
    several = np.where(valid, np.maximum(last - first, 0) + 1, 0)
    return {points: 1.0, 1 - points: float(several.mean()) if len(ends) else 1.0}


def _covered(reach: Reach, cut: Cut, lows: Array, highs: Array) -> tuple[Array, Array]:
    """The first and the last of the places that each reach covers."""
    first = cut.index(lows) if reach.low is not None else np.zeros(len(lows), np.int64)
    last = cut.index(highs) if reach.high is not None else np.full(len(highs), cut.count - 1)
    return first, last


def _beside(cut: Cut, points: Array, ends: Array, scale: float) -> float:
    """Pairs of a point and an open reach that ends in its range: candidates, half of which do not match."""
    edge = ends[:, 0] if np.isfinite(ends[:, 0]).any() else ends[:, 1]
    counts = [np.bincount(cut.index(values[~np.isnan(values)]), minlength=cut.count) for values in (points, edge)]
    return 0.5 * scale * float((counts[0].astype(float) * counts[1]).sum())


def _of_two(reaches: Sequence[Reach], samples: Sequence[Sample], single: int | None, equal: Sequence[Array] | None) -> list[Bins]:
    """Grids of cells: one side is in one cell, the other in all that both of its reaches cover."""
    options = []
    closed = [reach for reach in reaches if not reach.is_open and not reach.apart and single in (None, reach.points)]
    for first, second in itertools.combinations(closed, 2):
        if first.points != second.points or first.text == second.text:
            continue
        made = [pairs_of(reach, samples, equal) for reach in (first, second)]
        cells = _Cells.of([(pairs, points) for pairs, points, _ in made], equal, first.points)
        lengths = [float(np.median(pairs.lengths)) for pairs, _, _ in made]
        domains = [_domain(points, ends) for _, points, ends in made]
        if not all(lengths) or None in domains:
            continue
        results = cells.within((0.0, 0.0))
        for factors in itertools.product((1, 2, 4, 8, 16, 32, 64, 128), repeat=2):
            axes, rows = [], float(samples[1 - first.points].rows)
            for reach, (_, _, ends), domain, length, factor in zip((first, second), made, domains, lengths, factors, strict=True):
                assert domain is not None
                axes.append(Axis(reach, Mode.POINTS, (_bins(reach, domain, length * factor),)))
                rows *= _shares(axes[-1], ends)[1 - reach.points]
            widths = [axis.cuts[0].width for axis in axes if isinstance(axis.cuts[0], Uniform)]
            candidates = cells.within(widths)
            cost = _cost(rows + samples[first.points].rows, candidates)
            options.append(Bins(tuple(axes), Estimate(cost, rows, candidates, results), with_equality=equal is not None))
    return options


@dataclass(frozen=True)
class _Cells:
    """Pairs of sampled rows by how wide the cells of two keys have to be for them to share one."""

    gaps: tuple[Array, Array]
    """By key: twice the distance of a point and a reach; infinite where they cannot match."""
    lengths: tuple[float, float]
    """By key, of the median reach."""
    scale: float
    """Pairs of rows for each of samples."""

    @classmethod
    def of(cls, made: Sequence[tuple[Pairs, Array]], equal: Sequence[Array] | None, side: int) -> _Cells:
        """``made``: by key, its pairs and its points, which are of ``side``. O(rows of samples squared)."""
        (first, second), (pairs, points) = (_gaps(*each, equal, side) for each in made), made[0]
        lengths = [float(np.median(each.lengths)) for each, _ in made]
        sampled = len(points[:_PAIRED]) * len(pairs.ends[:_PAIRED])
        scale = pairs.scale * len(points) * len(pairs.ends) / max(1, sampled)
        return cls((first, second), (lengths[0], lengths[1]), scale)

    def within(self, widths: Sequence[float]) -> float:
        """Pairs of rows that share a cell: counted, in cells so wide that there are enough to count, and by the areas for the others."""
        tried, found = list(widths), 0
        for _ in range(16):
            found = int(np.count_nonzero((self.gaps[0] <= tried[0]) & (self.gaps[1] <= tried[1])))
            if found >= _ENOUGH:
                break
            tried = [2.0 * width + length for width, length in zip(tried, self.lengths, strict=True)]
        areas = zip(self.lengths, widths, tried, strict=True)
        shrunk = math.prod((length + width) / (length + wider) for length, width, wider in areas)
        return max(found, 0.5) * self.scale * shrunk


def _gaps(pairs: Pairs, points: Array, equal: Sequence[Array] | None, side: int) -> Array:
    points, lows, highs = points[:_PAIRED], pairs.ends[:_PAIRED, 0], pairs.ends[:_PAIRED, 1]
    with np.errstate(invalid="ignore", over="ignore"):
        gaps = 2.0 * np.maximum(np.maximum(lows[:, None] - points[None, :], points[None, :] - highs[:, None]), 0.0)
    gaps[np.isnan(gaps)] = math.inf
    if equal is not None:
        of_reaches, of_points = equal[1 - side][:_PAIRED], equal[side][:_PAIRED]
        gaps[(of_reaches[:, None] != of_points[None, :]) | (of_reaches < 0)[:, None]] = math.inf
    return np.asarray(gaps)


def _with_grids(bins: Bins, samples: Sequence[Sample], partitions: int) -> Bins:
    """Cuts the places that are far more work than a partition's share into parts of the rows that are in one place."""
    axis = bins.axes[0]
    if len(bins.axes) > 1 or axis.mode is not Mode.POINTS or bins.with_equality:
        return bins
    points, lows, highs = values_of(axis.reach, samples)
    cut = axis.cuts[0]
    singles, of_points = np.unique(cut.index(points[~np.isnan(points)]), return_counts=True)
    there = ~(np.isnan(lows) | np.isnan(highs))
    first, last = _covered(axis.reach, cut, lows[there], highs[there])
    covering = np.searchsorted(np.sort(first), singles, "right") - np.searchsorted(np.sort(last), singles, "left")
    usual = float(np.maximum(last - first + 1, 0).sum()) / cut.count  # where a sample has none by chance
    work = of_points.astype(float) * np.maximum(covering, usual)
    share = 2.0 * work.sum() / max(2, partitions)
    hot = (work > share) & (of_points >= 8)
    if not hot.any():
        return bins
    parts = int(min(_MOST_PARTS, max(2, math.ceil(float(work[hot].max()) / share))))
    own, other = samples[axis.reach.points], samples[1 - axis.reach.points]
    added = float(covering[hot].sum()) / max(1, other.size) * other.rows * (parts - 1)
    if own.rows and added * ROW_SECONDS > 0.2 * bins.estimate.cost_seconds:
        parts = max(1, int(parts * 0.2 * bins.estimate.cost_seconds / (added * ROW_SECONDS)))
    if parts < 2:
        return bins
    most = np.argsort(-work[hot], kind="stable")[:256]
    return replace(bins, hot=Hot(tuple(sorted(int(place) for place in singles[hot][most])), parts))
