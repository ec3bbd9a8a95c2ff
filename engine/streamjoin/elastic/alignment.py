"""Start-point alignment: which units the rows and columns of a new scheme take, so that workers keep what they hold (A-DSP, Fig. 8).

A join is correct wherever the units of a row lie, as long as all its tasks have the same. Cut evenly, nearly every row of a grid shifts
when one is added; here each line (row or column) of the new scheme is paired with one of the old and takes its units, less what the new
share is smaller, plus parts that others gave up. From four lines to five that moves 1/5 of the stream where even cuts move 3/10.

Always holds: the new scheme is a tiling of the same shapes with the same loads; only which units a line takes differs. What a task takes
of one side stays one ``UnitRange``, if with gaps, so nothing is held twice.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np

from streamjoin.language.predicate import INT64_MAX, INT64_MIN, MainPredicate
from streamjoin.language.sides import LEFT, RIGHT, SIDES
from streamjoin.scheme.models import PRECISION
from streamjoin.scheme.region import Region, meetings
from streamjoin.scheme.statistics import Statistics, loads
from streamjoin.scheme.tiling import UNITS, Area, KeyRange, Scheme, UnitRange

MOST_PARTS = 64
"""Should a line come to consist of more parts than this, its scheme is cut evenly again: routing looks up every part."""

MOST_RANGES = 4
"""Should tasks come to own more key ranges than this on average, keys are cut anew: every range is an area, with blocks of its own."""

MOST_PAIRS = 1 << 18
"""Of more pairs of an old and a new line than this, they are paired by their size."""

_SAME_PLACE = 1 << 12
"""How many units of overlap it is worth to pair lines of the same number: more than rounding, less than what matters."""

Array = np.ndarray[Any, np.dtype[Any]]

_Line = tuple[UnitRange, int]
"""The units of a row or column, and how many areas have them."""

_Cut = tuple[_Line, ...]
"""All units of a side, in lines."""


@dataclass(frozen=True, slots=True)
class _Grid:
    """A coverage area: lines across the ``major`` side, each cut along the other, so that all rows but a thin one are cut alike."""

    areas: tuple[Area, ...]
    major: int
    lines: dict[UnitRange, tuple[Area, ...]]

    @classmethod
    def of(cls, areas: Sequence[Area]) -> _Grid | None:
        """None for a tiling that is no varietal matrix; such a scheme was written by hand."""
        for major in SIDES:
            found: dict[UnitRange, list[Area]] = {}
            for area in areas:
                found.setdefault(area.units[major], []).append(area)
            lines = {units: tuple(line) for units, line in found.items()}
            crossed = ([area.units[1 - major] for area in line] for line in lines.values())
            if all(sum(units.size for units in cut) == UNITS for cut in (list(lines), *crossed)):
                return cls(tuple(areas), major, lines)
        return None

    def cuts(self, side: int) -> list[_Cut]:
        """The ways in which this side's units are cut: one, or two on the side that a thin line is cut by itself."""
        if side == self.major:
            return [tuple((units, len(areas)) for units, areas in self.lines.items())]
        alike = Counter(self.cut_of(areas) for areas in self.lines.values())
        return [tuple((units, count) for units in cut) for cut, count in alike.items()]

    def cut_of(self, line: Sequence[Area]) -> tuple[UnitRange, ...]:
        return tuple(area.units[1 - self.major] for area in line)

    def like(self, old: _Grid) -> dict[Area, Area]:
        """The areas of this grid, each with its units where ``old`` has them."""
        lines = _aligned(self.cuts(self.major)[0], old.cuts(self.major))
        crossed = {tuple(units for units, _ in cut): _aligned(cut, old.cuts(1 - self.major)) for cut in self.cuts(1 - self.major)}
        moved: dict[Area, Area] = {}
        for units, line in zip(lines, self.lines.values(), strict=True):
            for across, area in zip(crossed[self.cut_of(line)], line, strict=True):
                moved[area] = replace(area, units=(units, across) if self.major == LEFT else (across, units))
        return moved


def align(before: Scheme, after: Scheme, statistics: Statistics) -> Scheme:
    """``after`` with its unit ranges where ``before`` has them; ``after`` itself where they would come to have too many parts.

    Each coverage area follows that of ``before`` with which it shares most tuples, also when key ranges have moved. Whether less moves
    is for the caller to compare. O(pairs of coverage areas that share keys + lines³).
    """
    old = [grid for areas in _coverages(before) if (grid := _Grid.of(areas)) is not None]
    new = [grid for areas in _coverages(after) if len(areas) > 1 and (grid := _Grid.of(areas)) is not None]
    moved: dict[Area, Area] = {}
    for grid, nearest in zip(new, _nearest(new, old, statistics), strict=True):
        if nearest is not None:
            moved |= grid.like(old[nearest])
    if any(len(units.gaps) >= MOST_PARTS for area in moved.values() for units in area.units):
        return after
    return replace(after, areas=tuple(moved.get(area, area) for area in after.areas))


def align_keys(before: Scheme, after: Scheme, statistics: Statistics, main: MainPredicate) -> Scheme | None:
    """For an equality that both schemes cut along the keys alone: ``after``'s loads, but each task owns what a task of ``before`` did.

    The same alignment with the keys, laid out by volume, in the place of units; a task may come to own several ranges, each an area, which
    on an equality repeats nothing. None for other schemes, where that would make some task hold more than ``after`` does (a frequent
    key cannot be cut), and beyond ``MOST_RANGES`` ranges a task.
    """
    if not (main.is_equality and not main.slack and _owns_ranges(before) and _owns_ranges(after)):
        return None
    held = sorted({bound for scheme in (before, after) for area in scheme.areas for bound in _bounds(area.keys[LEFT])})
    kind = np.float64 if main.is_float else np.int64
    # Keys of unknown spread are hashes, which lie evenly between the ends.
    ends = np.array([] if main.is_float else [INT64_MIN, INT64_MAX], kind)
    spread = [ends if side.histogram is None else side.histogram.bounds for side in statistics.sides]
    keys = np.unique(np.concatenate([np.array(held, kind), *(bounds.astype(kind) for bounds in spread)]))
    total = statistics.total
    if not total > 0 or not len(keys):
        return None
    places = np.rint(sum(side.below(keys) for side in statistics.sides) * (UNITS / total)).astype(np.int64)
    place_of = dict(zip(keys.tolist(), places.tolist(), strict=True))
    lines = [_owned(scheme, place_of) for scheme in (before, after)]
    if not all(len(line) == scheme.tasks for line, scheme in zip(lines, (before, after), strict=True)):
        return None
    owned = _aligned(tuple((units, 1) for units in lines[1].values()), [tuple((units, 1) for units in lines[0].values())])
    parts = sorted((low, task) for task, units in zip(lines[1], owned, strict=True) for low, _ in units.parts)
    if len(parts) > MOST_RANGES * after.tasks:
        return None
    # A cut where a scheme was cut before stays exactly there.
    exact = {place_of[bound]: bound for bound in held}
    cuts = [exact[place] if place in exact else _key_at(place, keys, places) for place, _ in parts[1:]]
    areas: list[Area] = []
    for (_, task), low, high in zip(parts, [None, *cuts], [*cuts, None], strict=True):
        if low is None or high is None or low < high:
            owns = KeyRange(low, high)
            areas.append(Area(task, len(areas), (owns, owns), (UnitRange(), UnitRange()), (owns, owns)))
    if {area.task for area in areas} != set(range(after.tasks)) or any(a >= b for a, b in pairwise(cuts) if a != b):
        return None
    scheme = replace(after, areas=tuple(areas), summary=f"{len(areas)} coverage areas: {len(areas)} x <1,1,0>")
    return scheme if loads(scheme, statistics).max() <= loads(after, statistics).max() * (1 + PRECISION) else None


def _owns_ranges(scheme: Scheme) -> bool:
    """Whether every area is all tuples of one range of keys."""
    return all(
        area.keys[LEFT] == area.keys[RIGHT] and all(units.size == UNITS for units in area.units) and all(area.holds)
        for area in scheme.areas
    )


def _bounds(keys: KeyRange) -> list[int | float]:
    return [bound for bound in (keys.low, keys.high) if bound is not None]


def _owned(scheme: Scheme, place_of: dict[int | float, int]) -> dict[int, UnitRange]:
    """Per task that owns tuples, where those lie when all are laid out by their keys."""
    parts: dict[int, list[tuple[int, int]]] = {}
    for area in scheme.areas:
        keys = area.keys[LEFT]
        low = 0 if keys.low is None else place_of[keys.low]
        high = UNITS if keys.high is None else place_of[keys.high]
        if low < high:
            parts.setdefault(area.task, []).append((low, high))
    return {task: UnitRange.of(of_task) for task, of_task in sorted(parts.items())}


def _key_at(place: int, keys: Array, places: Array) -> int | float:
    """The key before which so many of the tuples lie, as if keys were spread evenly between the known ones."""
    after = int(np.clip(np.searchsorted(places, place), 1, len(keys) - 1))
    low, high = keys[after - 1].item(), keys[after].item()
    width = int(places[after]) - int(places[after - 1])
    share = min(1.0, max(0.0, (place - int(places[after - 1])) / width)) if width else 1.0
    if isinstance(low, float):
        return float(low + (high / 2 - low / 2) * 2 * share)
    return int(low + round((int(high) - int(low)) * share))


def _coverages(scheme: Scheme) -> list[list[Area]]:
    found: dict[int, list[Area]] = {}
    for area in scheme.areas:
        found.setdefault(area.coverage, []).append(area)
    return list(found.values())


def _nearest(new: Sequence[_Grid], old: Sequence[_Grid], statistics: Statistics) -> list[int | None]:
    """For each coverage area the first of those of before with which it shares most: tuples with the keys of both that both hold."""
    pairs, shared = [np.zeros(0, np.int64)], [np.zeros(0)]
    for side, of_side in enumerate(statistics.sides):
        held = [[number for number, grid in enumerate(grids) if grid.areas[0].holds[side]] for grids in (new, old)]
        regions = [
            [Region(side, grids[number].areas[0].keys[side], UnitRange()) for number in numbers]
            for grids, numbers in zip((new, old), held, strict=True)
        ]
        one, other = meetings(*regions)
        lows = [of_side.below_all(region.keys.low for region in of_grids) for of_grids in regions]
        highs = [of_side.below_all((region.keys.high for region in of_grids), end=True) for of_grids in regions]
        pairs.append(np.array(held[0], np.int64)[one] * max(1, len(old)) + np.array(held[1], np.int64)[other])
        shared.append(np.maximum(np.minimum(highs[0][one], highs[1][other]) - np.maximum(lows[0][one], lows[1][other]), 0.0))
    found, place = np.unique(np.concatenate(pairs), return_inverse=True)
    worth = np.bincount(place, np.concatenate(shared), len(found))
    best: list[int | None] = [None] * len(new)
    # By rising worth, and of the same the first old one last.
    for index in np.lexsort((-found, worth)).tolist():
        if worth[index] > 0:
            best[int(found[index]) // len(old)] = int(found[index]) % len(old)
    return best


def _aligned(new: _Cut, olds: Sequence[_Cut]) -> list[UnitRange]:
    """The units of each new line: of as many as before, but where the old cut that fits best has them."""
    best: tuple[float, dict[int, UnitRange]] | None = None
    for old in olds:
        # What a pair can share: the smaller of the two shares, in as many tasks as both lines have.
        shares = [np.array([(units.size, count) for units, count in cut], np.float64) for cut in (new, old)]
        rows, columns, total = (_paired if len(new) * len(old) <= MOST_PAIRS else _paired_by_size)(*shares)
        if best is None or total > best[0]:
            best = total, {row: old[column][0] for row, column in zip(rows.tolist(), columns.tolist(), strict=True)}
    assert best is not None
    return _dealt([units.size for units, _ in new], best[1])


def _paired(new: Array, old: Array) -> tuple[Array, Array, float]:
    """New lines and old ones, of these sizes and counts, that share most together, and how much."""
    from scipy.optimize import linear_sum_assignment

    worth = np.minimum.outer(new[:, 0], old[:, 0]) * np.minimum.outer(new[:, 1], old[:, 1])
    np.fill_diagonal(worth, worth.diagonal() + _SAME_PLACE)
    rows, columns = linear_sum_assignment(worth, maximize=True)
    return rows, columns, float(worth[rows, columns].sum())


def _paired_by_size(new: Array, old: Array) -> tuple[Array, Array, float]:
    """The same, the largest with the largest: as good as can be where all counts are alike, as they are where so many lines are."""
    step = max(1.0, 1e-6 * float(new[:, 0].max()))
    orders = [np.lexsort((np.arange(len(cut)), -np.rint(cut[:, 0] / step), -cut[:, 1])) for cut in (new, old)]
    rows, columns = (order[: min(len(new), len(old))] for order in orders)
    worth = np.minimum(new[rows, 0], old[columns, 0]) * np.minimum(new[rows, 1], old[columns, 1])
    return rows, columns, float(worth.sum())


def _dealt(sizes: list[int], has: dict[int, UnitRange]) -> list[UnitRange]:
    """Lines of these sizes that keep what they have (start points first), and get the rest from what others give up."""
    kept: list[list[tuple[int, int]]] = []
    given: list[tuple[int, int]] = []
    for line, size in enumerate(sizes):
        mine, rest = _split(list(has[line].parts) if line in has else [], size)
        kept.append(mine)
        given += rest
    taken = UnitRange.of([part for parts in [*kept, given] for part in parts])
    # What no line had: the units of old lines that have no successor.
    if taken.size < UNITS:
        given += taken.gaps
        given += [(0, taken.low)] if taken.low else []
        given += [(taken.high, UNITS)] if taken.high < UNITS else []
    lacks = [size - sum(high - low for low, high in parts) for size, parts in zip(sizes, kept, strict=True)]
    pool = _Pool(list(UnitRange.of(given).parts) if given else [])
    # Parts that continue a line come first, so that lines stay in few parts, and oscillating plans come back to whole ones.
    for line, parts in enumerate(kept):
        for low, high in pool.beside(parts):
            if not lacks[line]:
                break
            width = min(lacks[line], high - low)
            got = (low, low + width) if any(end == low for _, end in parts) else (high - width, high)
            pool.take((low, high), got)
            parts.append(got)
            lacks[line] -= width
    free = deque(sorted(pool.parts))
    for line, parts in enumerate(kept):
        while lacks[line]:
            low, high = free.popleft()
            width = min(lacks[line], high - low)
            parts.append((low, low + width))
            lacks[line] -= width
            if low + width < high:
                free.append((low + width, high))
    return [UnitRange.of(parts) for parts in kept]


class _Pool:
    """Ranges of units that nobody has, none beside another; found by their ends."""

    def __init__(self, parts: list[tuple[int, int]]) -> None:
        self.parts = dict.fromkeys(parts)
        """In the order in which they came."""
        self._number = {part: number for number, part in enumerate(parts)}
        self._by_low = {part[0]: part for part in parts}
        self._by_high = {part[1]: part for part in parts}

    def beside(self, parts: list[tuple[int, int]]) -> list[tuple[int, int]]:
        """Those that continue one of these parts, in order."""
        found = {by[end] for low, high in parts for by, end in ((self._by_low, high), (self._by_high, low)) if end in by}
        return sorted(found, key=self._number.__getitem__)

    def take(self, part: tuple[int, int], got: tuple[int, int]) -> None:
        """Take ``got`` away from one of the ranges; what is left of it comes last."""
        del self.parts[part], self._by_low[part[0]], self._by_high[part[1]]
        for piece in ((part[0], got[0]), (got[1], part[1])):
            if piece[0] < piece[1]:
                self.parts[piece] = None
                self._number[piece] = len(self._number)
                self._by_low[piece[0]], self._by_high[piece[1]] = piece, piece


def _split(parts: list[tuple[int, int]], size: int) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """The first ``size`` units of these parts, and the others."""
    kept, rest = [], []
    for low, high in parts:
        width = min(size, high - low)
        size -= width
        kept.append((low, low + width))
        rest.append((low + width, high))
    return [part for part in kept if part[0] < part[1]], [part for part in rest if part[0] < part[1]]
