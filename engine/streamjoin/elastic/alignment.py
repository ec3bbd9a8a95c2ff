"""Start-point alignment: which units the rows and columns of a new scheme take, so that workers keep what they hold (A-DSP, Fig. 8).

A join is correct wherever the units of a row lie, as long as all its tasks have the same. Cut evenly, nearly every row of a grid shifts
when one is added; here each line (row or column) of the new scheme is paired with one of the old and takes its units, less what the new
share is smaller, plus parts that others gave up. From four lines to five that moves 1/5 of the stream where even cuts move 3/10.

Always holds: the new scheme is a tiling of the same shapes with the same loads; only which units a line takes differs. What a task takes
of one side stays one ``UnitRange``, if with gaps, so nothing is held twice.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from streamjoin.elastic.region import LEFT, RIGHT, high_of, low_of
from streamjoin.scheme.statistics import Statistics
from streamjoin.scheme.tiling import UNITS, Area, KeyRange, Scheme, UnitRange

MOST_PARTS = 64
"""Should a line come to consist of more parts than this, its scheme is cut evenly again: routing looks up every part."""

_SAME_PLACE = 1 << 12
"""How many units of overlap it is worth to pair lines of the same number: more than rounding, less than what matters."""

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
        for major in (LEFT, RIGHT):
            lines: dict[UnitRange, tuple[Area, ...]] = {}
            for area in areas:
                lines[_units(area, major)] = (*lines.get(_units(area, major), ()), area)
            crossed = ([_units(area, 1 - major) for area in line] for line in lines.values())
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
        return tuple(_units(area, 1 - self.major) for area in line)

    def like(self, old: _Grid) -> dict[Area, Area]:
        """The areas of this grid, each with its units where ``old`` has them."""
        lines = _aligned(self.cuts(self.major)[0], old.cuts(self.major))
        crossed = {tuple(units for units, _ in cut): _aligned(cut, old.cuts(1 - self.major)) for cut in self.cuts(1 - self.major)}
        moved: dict[Area, Area] = {}
        for units, line in zip(lines, self.lines.values(), strict=True):
            for across, area in zip(crossed[self.cut_of(line)], line, strict=True):
                left, right = (units, across) if self.major == LEFT else (across, units)
                moved[area] = replace(area, left_units=left, right_units=right)
        return moved


def align(before: Scheme, after: Scheme, statistics: Statistics) -> Scheme:
    """``after`` with its unit ranges where ``before`` has them; ``after`` itself where they would come to have too many parts.

    Each coverage area follows that of ``before`` with which it shares most tuples, also when key ranges have moved. Whether less moves
    is for the caller to compare. O(coverage areas² + lines³).
    """
    old = [(areas, grid) for areas in _coverages(before) if (grid := _Grid.of(areas)) is not None]
    moved: dict[Area, Area] = {}
    for areas in _coverages(after):
        grid = _Grid.of(areas) if len(areas) > 1 and old else None
        if grid is None:
            continue
        shared = [_shared(areas[0], other[0], statistics) for other, _ in old]
        nearest = int(np.argmax(shared))
        if shared[nearest] > 0:
            moved |= grid.like(old[nearest][1])
    if any(len(units.gaps) >= MOST_PARTS for area in moved.values() for units in (area.left_units, area.right_units)):
        return after
    return replace(after, areas=tuple(moved.get(area, area) for area in after.areas))


def _units(area: Area, side: int) -> UnitRange:
    return area.left_units if side == LEFT else area.right_units


def _coverages(scheme: Scheme) -> list[list[Area]]:
    found: dict[int, list[Area]] = {}
    for area in scheme.areas:
        found.setdefault(area.coverage, []).append(area)
    return list(found.values())


def _shared(one: Area, other: Area, statistics: Statistics) -> float:
    """The tuples that fall into the key ranges of both and are held by both."""
    shared = 0.0
    for side, a, b, held in (
        (statistics.left, one.left_keys, other.left_keys, one.holds_left and other.holds_left),
        (statistics.right, one.right_keys, other.right_keys, one.holds_right and other.holds_right),
    ):
        keys = KeyRange(max(a, b, key=low_of).low, min(a, b, key=high_of).high)
        if held and low_of(keys) < high_of(keys):
            shared += side.volume(keys)
    return shared


def _aligned(new: _Cut, olds: Sequence[_Cut]) -> list[UnitRange]:
    """The units of each new line: of as many as before, but where the old cut that fits best has them."""
    from scipy.optimize import linear_sum_assignment

    best: tuple[float, dict[int, UnitRange]] | None = None
    for old in olds:
        worth = np.array([[min(a.size, b.size) * min(m, n) for b, n in old] for a, m in new], np.float64)
        np.fill_diagonal(worth, worth.diagonal() + _SAME_PLACE)
        rows, columns = linear_sum_assignment(worth, maximize=True)
        total = float(worth[rows, columns].sum())
        if best is None or total > best[0]:
            best = total, {row: old[column][0] for row, column in zip(rows.tolist(), columns.tolist(), strict=True)}
    assert best is not None
    return _dealt([units.size for units, _ in new], best[1])


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
    pool = list(UnitRange.of(given).parts) if given else []
    lacks = [size - sum(high - low for low, high in parts) for size, parts in zip(sizes, kept, strict=True)]
    # Parts that continue a line come first, so that lines stay in few parts, and oscillating plans come back to whole ones.
    for touching in (True, False):
        for line, parts in enumerate(kept):
            for part in list(pool):
                if not lacks[line]:
                    break
                low, high = part
                width = min(lacks[line], high - low)
                if any(end == low for _, end in parts) or not touching:
                    got = (low, low + width)
                elif any(begin == high for begin, _ in parts):
                    got = (high - width, high)
                else:
                    continue
                pool.remove(part)
                pool += [piece for piece in ((low, got[0]), (got[1], high)) if piece[0] < piece[1]]
                parts.append(got)
                lacks[line] -= width
        pool.sort()
    return [UnitRange.of(parts) for parts in kept]


def _split(parts: list[tuple[int, int]], size: int) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """The first ``size`` units of these parts, and the others."""
    kept, rest = [], []
    for low, high in parts:
        width = min(size, high - low)
        size -= width
        kept.append((low, low + width))
        rest.append((low + width, high))
    return [part for part in kept if part[0] < part[1]], [part for part in rest if part[0] < part[1]]
