"""What workers hold, as range arithmetic: rectangles of keys x unit coordinates of one side (A-DSP, section 4.3, Eqs. 15 to 17).

Always holds: a list of regions that a function here returns is disjoint, and exact: no estimate is part of it but in :func:`volume`.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from streamjoin.scheme.ranges import Array, expanded, meeting
from streamjoin.scheme.statistics import Statistics
from streamjoin.scheme.tiling import UNITS, Area, KeyRange, Scheme, UnitRange


@dataclass(frozen=True, slots=True)
class Region:
    """The tuples of one side with a key in ``keys`` and a unit coordinate in ``units``, which has no gaps."""

    side: int
    """LEFT or RIGHT; of a scheme by places (``scheme.places``), the place."""
    keys: KeyRange
    units: UnitRange

    def to_json(self) -> list[Any]:
        return [self.side, self.keys.low, self.keys.high, self.units.low, self.units.high]

    @classmethod
    def from_json(cls, value: Sequence[Any]) -> Region:
        side, low, high, unit_low, unit_high = value
        return cls(int(side), KeyRange(low, high), UnitRange(int(unit_low), int(unit_high)))


def areas_by_task(scheme: Scheme) -> list[list[Area]]:
    """The areas of each task. O(areas)."""
    found: list[list[Area]] = [[] for _ in range(scheme.tasks)]
    for area in scheme.areas:
        found[area.task].append(area)
    return found


@lru_cache(maxsize=8)
def held(scheme: Scheme) -> tuple[tuple[Region, ...], ...]:
    """What each task holds. O(areas)."""
    return tuple(held_by(areas) for areas in areas_by_task(scheme))


def held_by(areas: Iterable[Area]) -> tuple[Region, ...]:
    """What these areas hold together."""
    areas = tuple(areas)
    if len(areas) == 1:
        area = areas[0]
        return tuple(part for side, held in enumerate(area.holds) if held for part in regions(side, area.keys[side], area.units[side]))
    found: list[Region] = []
    for area in areas:
        for side, held in enumerate(area.holds):
            if held:
                mine = regions(side, area.keys[side], area.units[side])
                found += difference(mine, found) if found else mine
    return merged(found)


def written_by(area: Area) -> tuple[Region, ...]:
    """What the area stores durably for everyone. Over all areas of a scheme: every tuple once."""
    return tuple(region for side, keys in enumerate(area.writes) if keys is not None for region in regions(side, keys, area.units[side]))


def regions(side: int, keys: KeyRange, units: UnitRange) -> tuple[Region, ...]:
    """One for each part of ``units``."""
    return tuple(Region(side, keys, UnitRange(*part)) for part in units.parts)


def intersection(one: Iterable[Region], other: Iterable[Region]) -> tuple[Region, ...]:
    """What both hold, for lists that are disjoint each. O(one * other)."""
    other = tuple(other)
    return merged(part for a in one for b in other if (part := common_part(a, b)) is not None)


def difference(one: Iterable[Region], other: Iterable[Region]) -> tuple[Region, ...]:
    """What ``one``, a disjoint list, holds and ``other`` does not. O(one * other)."""
    left = list(one)
    for taken in other:
        left = [part for region in left for part in _without(region, taken)]
    return merged(left)


def meetings(one: Sequence[Region], other: Sequence[Region]) -> tuple[Array, Array]:
    """Which of these regions and those have tuples in common: their numbers, pair by pair. int64.

    By ranges of keys first, and in each pair of these by units: O((regions + pairs) * log regions), and of pairs of ranges of keys.
    """
    pairs = [(np.zeros(0, np.int64), np.zeros(0, np.int64))]
    for side in sorted({region.side for region in one} & {region.side for region in other}):
        groups = [_by_keys(regions, side) for regions in (one, other)]
        ranges = [keys for grouped in groups for keys in grouped]
        bounds = sorted({bound for keys in ranges for bound in (keys.low, keys.high) if bound is not None})
        number = {bound: index for index, bound in enumerate(bounds, 1)}
        lows, highs = (
            [np.array([end if bound is None else number[bound] for bound in of_group]) for of_group in ends]
            for end, ends in (
                (0, [[keys.low for keys in grouped] for grouped in groups]),
                (len(bounds) + 1, [[keys.high for keys in grouped] for grouped in groups]),
            )
        )
        met = meeting(lows[0], highs[0], lows[1], highs[1])
        # Units of each pair of ranges of keys are laid out apart from those of the others.
        laid: list[tuple[Array, Array, Array]] = []
        for regions, grouped, chosen in zip((one, other), groups, met, strict=True):
            members = np.array([index for of_keys in grouped.values() for index in of_keys], np.int64)
            starts = np.cumsum([0, *(len(of_keys) for of_keys in grouped.values())])
            at, place = expanded(starts[chosen], starts[chosen + 1])
            units = np.array([(regions[index].units.low, regions[index].units.high) for index in members.tolist()], np.int64)
            laid.append((members[place], at * UNITS + units[place, 0], at * UNITS + units[place, 1]))
        (mine, low, high), (theirs, other_low, other_high) = laid
        first, second = meeting(low, high, other_low, other_high)
        pairs.append((mine[first], theirs[second]))
    found, back = (np.concatenate(numbers) for numbers in zip(*pairs, strict=True))
    return found, back


def _by_keys(regions: Sequence[Region], side: int) -> dict[KeyRange, list[int]]:
    found: dict[KeyRange, list[int]] = {}
    for index, region in enumerate(regions):
        if region.side == side:
            found.setdefault(region.keys, []).append(index)
    return found


def merged(parts: Iterable[Region]) -> tuple[Region, ...]:
    """The same tuples in fewer regions: those of a disjoint list that share a whole edge become one. Sorted."""
    parts = tuple(parts)
    if len(parts) < 2:
        return parts
    by_keys: dict[tuple[int, KeyRange], list[tuple[int, int]]] = defaultdict(list)
    for part in parts:
        by_keys[part.side, part.keys].append((part.units.low, part.units.high))
    by_units: dict[tuple[int, tuple[int, int]], list[KeyRange]] = defaultdict(list)
    for (side, keys), spans in by_keys.items():
        for span in UnitRange.of(spans).parts:
            by_units[side, span].append(keys)
    found: list[Region] = []
    for (side, span), ranges in by_units.items():
        units = UnitRange(*span)
        joined: KeyRange | None = None
        for keys in sorted(ranges, key=low_of):
            if joined is None:
                joined = keys
            elif joined.high == keys.low:
                joined = KeyRange(joined.low, keys.high)
            else:
                found.append(Region(side, joined, units))
                joined = keys
        if joined is not None:
            found.append(Region(side, joined, units))
    return tuple(sorted(found, key=lambda region: (region.side, low_of(region.keys), region.units.low)))


def volume(parts: Iterable[Region], statistics: Statistics) -> float:
    """The volume that these regions are expected to hold: tuples, where these weigh 1."""
    return math.fsum(volumes(parts, statistics))


def volumes(parts: Iterable[Region], statistics: Statistics) -> list[float]:
    """The same of each. O(parts + ranges of keys * log buckets)."""
    parts = list(parts)
    of_keys = dict.fromkeys(dict.fromkeys((part.side, part.keys) for part in parts), 0.0)
    for side, of_side in enumerate(statistics.sides):
        ranges = [keys for place, keys in of_keys if place == side]
        of_keys.update(zip(((side, keys) for keys in ranges), of_side.volumes(ranges), strict=True))
    return [of_keys[part.side, part.keys] * (part.units.size / UNITS) for part in parts]


def low_of(keys: KeyRange) -> int | float:
    return -math.inf if keys.low is None else keys.low


def high_of(keys: KeyRange) -> int | float:
    return math.inf if keys.high is None else keys.high


def common_part(a: Region, b: Region) -> Region | None:
    """What both hold, or None."""
    low, high = max(a.units.low, b.units.low), min(a.units.high, b.units.high)
    if a.side != b.side or low >= high:
        return None
    # Python's numbers compare exactly, whatever their size; an open end is beyond all of them.
    key_low, key_high = max(a.keys, b.keys, key=low_of).low, min(a.keys, b.keys, key=high_of).high
    if key_low is not None and key_high is not None and key_low >= key_high:
        return None
    return Region(a.side, KeyRange(key_low, key_high), UnitRange(low, high))


def common_parts(one: Sequence[Region], other: Sequence[Region], first: Array, second: Array) -> list[Region]:
    """What region ``first[i]`` of ``one`` and ``second[i]`` of ``other`` both hold, which have something in common (:func:`meetings`).

    O((regions + pairs) * log regions).
    """
    bounds = sorted({bound for region in (*one, *other) for bound in (region.keys.low, region.keys.high) if bound is not None})
    number = {bound: index for index, bound in enumerate(bounds, 1)}
    ends = [None, *bounds, None]
    edges = []
    for regions, chosen in ((one, first), (other, second)):
        of_region = [
            (
                0 if region.keys.low is None else number[region.keys.low],
                len(bounds) + 1 if region.keys.high is None else number[region.keys.high],
                region.units.low,
                region.units.high,
            )
            for region in regions
        ]
        edges.append(np.array(of_region, np.int64).reshape(-1, 4)[chosen])
    (low, other_low), (high, other_high), (begin, other_begin), (end, other_end) = zip(*(edge.T for edge in edges), strict=True)
    # Each pair of ends once, as few differ.
    codes, key = np.unique(np.maximum(low, other_low) * len(ends) + np.minimum(high, other_high), return_inverse=True)
    keys = [KeyRange(ends[code // len(ends)], ends[code % len(ends)]) for code in codes.tolist()]
    begin, end = np.maximum(begin, other_begin), np.minimum(end, other_end)
    order = np.lexsort((end, begin))
    new = (np.diff(begin[order], prepend=-1) != 0) | (np.diff(end[order], prepend=-1) != 0)
    place = np.empty(len(order), np.int64)
    place[order] = np.cumsum(new) - 1
    units = [UnitRange(*span) for span in zip(begin[order][new].tolist(), end[order][new].tolist(), strict=True)]
    sides = [one[index].side for index in first.tolist()]
    return [Region(side, keys[at], units[span]) for side, at, span in zip(sides, key.tolist(), place.tolist(), strict=True)]


def _without(region: Region, taken: Region) -> Iterable[Region]:
    common = common_part(region, taken)
    if common is None:
        yield region
        return
    if low_of(region.keys) < low_of(common.keys):
        yield Region(region.side, KeyRange(region.keys.low, common.keys.low), region.units)
    if high_of(common.keys) < high_of(region.keys):
        yield Region(region.side, KeyRange(common.keys.high, region.keys.high), region.units)
    for low, high in ((region.units.low, common.units.low), (common.units.high, region.units.high)):
        if low < high:
            yield Region(region.side, common.keys, UnitRange(low, high))
