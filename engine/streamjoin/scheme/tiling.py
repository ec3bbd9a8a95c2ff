"""The one abstraction: a scheme is a tiling of the tuple matrix, and every model of the papers is a scheme.

An :class:`Area` is a rectangle: the left tuples whose key lies in ``keys[LEFT]`` and whose unit coordinate lies in ``units[LEFT]``,
against the right tuples of ``keys[RIGHT]`` and ``units[RIGHT]``. A *coverage area* is the set of areas with one pair of key ranges.

An area usually holds both of its sides. One that holds a single side is only probed by the other, whose tuples pass through: so are the
workers of a join-biclique. A pair is found in an area when the later of the two arrives and the earlier is held there.

Always holds, and ``Scheme.check`` proves (A-DSP, Def. 3): no two areas find the same pair of tuples; every pair that the main
predicate admits is found in an area, whichever tuple comes first; every tuple of a side is written durably by exactly one area, which
holds it (``writes``).
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np

from streamjoin.language.predicate import INT64_MAX, INT64_MIN, Bound, MainKind, MainPredicate
from streamjoin.language.sides import SIDE_NAMES, SIDES
from streamjoin.scheme.ranges import expanded

UNITS = 1 << 32
"""Unit coordinates are integers in [0, UNITS): u = coordinate / UNITS. Integers keep range arithmetic exact."""


class SchemeError(ValueError):
    """A scheme that is not a tiling, or cannot be read."""


@dataclass(frozen=True, slots=True)
class KeyRange:
    """Keys in [low, high); None: no bound on that side. The high bound is exclusive, so neighbours share a bound and no key."""

    low: Bound = None
    high: Bound = None


@dataclass(frozen=True, slots=True)
class UnitRange:
    """Unit coordinates in [low, high) without the ``gaps``, integers with 0 <= low < high <= UNITS.

    ``gaps``: ranges [low, high) inside it, ascending, that neither touch one another nor the ends. Units have no order that means
    anything, so a row of a grid may take what others gave up, wherever that lay (A-DSP, Fig. 8). Who ignores the gaps sees too much,
    never too little.
    """

    low: int = 0
    high: int = UNITS
    gaps: tuple[tuple[int, int], ...] = ()

    @classmethod
    def of(cls, parts: Iterable[tuple[int, int]]) -> UnitRange:
        """The union of these ranges [low, high), which must not overlap and are not all empty; those that touch become one."""
        low, *ends, high = (end for part in sorted(part for part in parts if part[0] < part[1]) for end in part)
        return cls(low, high, tuple(gap for gap in zip(ends[::2], ends[1::2], strict=True) if gap[0] < gap[1]))

    @property
    def parts(self) -> tuple[tuple[int, int], ...]:
        """The ranges [low, high) that it is made of, ascending."""
        ends = (self.low, *(end for gap in self.gaps for end in gap), self.high)
        return tuple(zip(ends[::2], ends[1::2], strict=True))

    @property
    def size(self) -> int:
        return self.high - self.low - sum(high - low for low, high in self.gaps)

    def contains(self, units: np.ndarray) -> np.ndarray:
        """Which of these unit coordinates (uint32) it holds: bool, of the same length. O(units * log gaps)."""
        # One comparison for two bounds: below the low bound the unsigned difference wraps around to a large number.
        inside: np.ndarray = units - np.uint32(self.low) <= np.uint32(self.high - self.low - 1)
        if self.gaps:
            ends = np.array([end for gap in self.gaps for end in gap], np.uint32)
            inside &= (np.searchsorted(ends, units, side="right") & 1) == 0
        return inside


@dataclass(frozen=True, slots=True)
class Area:
    """A rectangle of the tuple matrix joined by one task (TaskA in A-DSP). Its tuples are by side."""

    task: int
    coverage: int
    keys: tuple[KeyRange, ...]
    units: tuple[UnitRange, ...]
    writes: tuple[KeyRange | None, ...]
    """The keys of this area's tuples that it stores durably for everyone (within its unit range), or None when another area does: the
    first column's areas write the rows, the first row's the columns (Alg. 5)."""
    holds: tuple[bool, ...] = (True, True)
    """Whether tuples stay for the other side's to come, or only probe. Pairs that arrive together belong to the areas that hold left."""


@dataclass(frozen=True, slots=True)
class Scheme:
    """How the tuple matrix is cut: all areas, and the tasks 0..tasks-1 that own them.

    ``summary`` is for people: the coverage areas' shapes, as the papers write them.
    """

    model: str
    tasks: int
    areas: tuple[Area, ...]
    summary: str

    def to_json(self) -> dict[str, Any]:
        """The scheme as a value that ``json`` writes and reads back without loss: bounds keep being integers or floats."""
        return {
            "model": self.model,
            "tasks": self.tasks,
            "summary": self.summary,
            "areas": [
                {"task": area.task, "coverage": area.coverage, **{name: _side_json(area, side) for side, name in enumerate(SIDE_NAMES)}}
                for area in self.areas
            ],
        }

    @classmethod
    def from_json(cls, value: Any) -> Scheme:
        """The inverse of :meth:`to_json`. Raises SchemeError for what is not such a value; it does not ``check``."""
        try:
            areas = tuple(_area_of(area) for area in value["areas"])
            return cls(str(value["model"]), int(value["tasks"]), areas, str(value["summary"]))
        except (KeyError, TypeError, ValueError) as error:
            raise SchemeError(f"this is not a scheme: {type(error).__name__}: {error}") from error

    def check(self, main: MainPredicate) -> None:
        """Raises SchemeError unless this is a tiling for ``main`` (see the module), with exact arithmetic.

        All bounds together cut each side's keys into elementary cells, inside which nothing changes; so it suffices to look at every
        cell. At most O(areas² + left cells * right cells): a millisecond for ten areas, some tenths of a second for ten thousand.
        """
        self._check_numbers()
        left, right = (_Axis.of(self.areas, side, main.is_float) for side in SIDES)
        self._check_disjoint(left, right)
        self._check_complete(left, right, main)
        for axis in (left, right):
            axis.check_written_once()

    def _check_numbers(self) -> None:
        if not self.areas:
            raise SchemeError("areas: there are none; a scheme has at least one")
        tasks = {area.task for area in self.areas}
        if tasks != set(range(self.tasks)):
            raise SchemeError(f"areas[].task: {sorted(tasks)} must be exactly 0..{self.tasks - 1}, as the scheme has {self.tasks} tasks")
        keys: dict[int, tuple[KeyRange, ...]] = {}
        for index, area in enumerate(self.areas):
            if area.coverage < 0:
                raise SchemeError(f"areas[{index}].coverage: {area.coverage} must not be negative")
            if keys.setdefault(area.coverage, area.keys) != area.keys:
                raise SchemeError(f"areas[{index}]: its key ranges differ from those of coverage area {area.coverage}, to which it belongs")

    def _check_disjoint(self, left: _Axis, right: _Axis) -> None:
        # By their first left key, so that those that meet an area in its keys come right after it.
        order = np.argsort(left.low, kind="stable")
        ends = np.searchsorted(left.low[order], left.high[order], side="left")
        for place, (index, end) in enumerate(zip(order.tolist(), ends.tolist(), strict=True)):
            near = order[place + 1 : end]
            near = near[right.meets_keys(index, near)]
            if not len(near):
                continue
            near = near[left.meets_units(index, near) & right.meets_units(index, near)]
            near = near[(left.holds[index] & left.holds[near]) | (right.holds[index] & right.holds[near])]
            if len(near):
                first, other = sorted((index, int(near.min())))
                raise SchemeError(f"areas[{first}] and areas[{other}] overlap: {self.areas[first]} and {self.areas[other]}")

    def _check_complete(self, left: _Axis, right: _Axis, main: MainPredicate) -> None:
        first, last = _reached(left, right, main)
        self._check_covered(left, right, left, first, last, main)
        if not np.array_equal(left.holds, right.holds):
            self._check_covered(left, right, right, first, last, main)

    def _check_covered(self, left: _Axis, right: _Axis, holder: _Axis, first: np.ndarray, last: np.ndarray, main: MainPredicate) -> None:
        """That those areas that hold this side cover every pair that can match."""
        # These areas are disjoint, so a cell of keys is covered entirely when the units covered add up to UNITS². That is 2**64,
        # hence two words.
        chosen = np.flatnonzero(holder.holds)
        sizes = [np.array([axis.spans[index].size for index in chosen.tolist()], np.int64) for axis in (left, right)]
        edges, same = np.unique(
            np.stack([axis[chosen] for axis in (left.low, left.high, right.low, right.high)]), axis=1, return_inverse=True
        )
        words = np.zeros((2, edges.shape[1]), np.int64)
        # The product of two such sizes has 65 bits.
        for word, part in zip(words, _words(*sizes), strict=True):
            np.add.at(word, same.ravel(), part)
        covered = np.zeros((2, right.cells), np.int64)
        begins, ends = np.argsort(edges[0], kind="stable"), np.argsort(edges[1], kind="stable")
        at_begin, at_end = (np.searchsorted(edges[side][order], np.arange(left.cells + 1)) for side, order in enumerate((begins, ends)))
        for row in range(left.cells):
            for order, places, sign in ((ends, at_end, -1), (begins, at_begin, 1)):
                for index in order[places[row] : places[row + 1]].tolist():
                    covered[:, edges[2, index] : edges[3, index]] += sign * words[:, index : index + 1]
            low, high = int(first[row]), int(last[row])
            upper, lower = covered[:, low : high + 1]
            missing = (upper + (lower >> 32) != UNITS) | (lower & 0xFFFFFFFF != 0)
            if missing.any():
                column = low + int(np.argmax(missing))
                which = "no area" if holder.holds.all() else f"no area that holds {holder.name} tuples"
                raise SchemeError(
                    f"{which} covers every pair of left keys {_text(left.cell(row))} and right keys {_text(right.cell(column))}, "
                    f"which {main.text or main.kind} admits"
                )


def _words(one: np.ndarray, other: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """one * other, each at most UNITS, as high * 2**32 + low."""
    upper, lower = one >> 16, one & 0xFFFF
    high, low = upper * other, lower * other
    high, low = high + (low >> 16), low & 0xFFFF
    return high >> 16, ((high & 0xFFFF) << 16) + low


def _text(keys: KeyRange) -> str:
    return f"[{'-inf' if keys.low is None else keys.low}, {'inf' if keys.high is None else keys.high})"


def _side_json(area: Area, side: int) -> dict[str, Any]:
    keys, writes = area.keys[side], area.writes[side]
    return {
        "holds": area.holds[side],
        "keys": [keys.low, keys.high],
        "units": [end for part in area.units[side].parts for end in part],
        "writes": None if writes is None else [writes.low, writes.high],
    }


def _area_of(value: Any) -> Area:
    sides = [value[name] for name in SIDE_NAMES]
    return Area(
        task=int(value["task"]),
        coverage=int(value["coverage"]),
        keys=tuple(_keys(side["keys"]) for side in sides),
        units=tuple(_units(side["units"]) for side in sides),
        writes=tuple(None if side["writes"] is None else _keys(side["writes"]) for side in sides),
        holds=tuple(_holds(side) for side in sides),
    )


def _keys(value: Any) -> KeyRange:
    for bound in value:
        if bound is not None and (isinstance(bound, bool) or not isinstance(bound, int | float)):
            raise TypeError(f"{bound!r} is not a key")
    return KeyRange(*value)


def _units(value: Any) -> UnitRange:
    low, *ends, high = map(int, value)
    return UnitRange(low, high, tuple(zip(ends[::2], ends[1::2], strict=True)))


def _holds(value: Any) -> bool:
    holds = value.get("holds", True)
    if not isinstance(holds, bool):
        raise TypeError(f"holds: {holds!r} must be true or false")
    return holds


@dataclass(frozen=True, slots=True)
class _Axis:
    """One side of a scheme, its bounds replaced by the numbers of the elementary cells that they enclose."""

    name: str
    bounds: list[int | float]
    """Inner bounds of the cells, ascending: cell i holds the keys in [bounds[i - 1], bounds[i])."""
    is_float: bool
    low: np.ndarray
    """Per area, its first cell, and in ``high`` the one after its last. int64."""
    high: np.ndarray
    spans: Sequence[UnitRange]
    """Per area, its units."""
    unit_low: np.ndarray
    unit_high: np.ndarray
    gapped: np.ndarray
    """Per area, whether its units have gaps. bool."""
    place: np.ndarray
    """Per area, the number of its units among all that differ; per such number, ``units`` has the elementary cells of it, in bits."""
    units: np.ndarray
    write_low: np.ndarray
    """As ``low``; both 0 for an area that writes nothing."""
    write_high: np.ndarray
    holds: np.ndarray
    """Per area, whether it holds this side. bool."""

    @property
    def cells(self) -> int:
        return len(self.bounds) + 1

    @classmethod
    def of(cls, areas: Sequence[Area], side: int, is_float: bool) -> _Axis:
        name = SIDE_NAMES[side]
        keys, units = [area.keys[side] for area in areas], [area.units[side] for area in areas]
        writes, holds = [area.writes[side] for area in areas], [area.holds[side] for area in areas]
        for index, (held, span, written) in enumerate(zip(keys, units, writes, strict=True)):
            where = f"areas[{index}].{name}"
            _check_range(f"{where}.keys", held, is_float)
            if not (isinstance(span.low, int) and isinstance(span.high, int) and 0 <= span.low < span.high <= UNITS):
                raise SchemeError(f"{where}.units: [{span.low}, {span.high}) must be integers with 0 <= low < high <= {UNITS}")
            ends = [span.low, *(end for gap in span.gaps for end in gap), span.high]
            if not all(isinstance(end, int) for end in ends) or any(low >= high for low, high in pairwise(ends)):
                raise SchemeError(f"{where}.units: its gaps {span.gaps} must be integers that ascend from {span.low} to {span.high}")
            if written is not None:
                _check_range(f"{where}.writes", written, is_float)
                if not _within(written, held):
                    raise SchemeError(f"{where}.writes: {_text(written)} must lie within the keys that the area holds, {_text(held)}")
                if not holds[index]:
                    raise SchemeError(f"{where}.writes: {_text(written)} must be left to an area that holds {name} tuples")
        # Python's numbers compare exactly, whatever their size.
        bounds = sorted({bound for held in (*keys, *writes) if held is not None for bound in (held.low, held.high) if bound is not None})
        number = {bound: index + 1 for index, bound in enumerate(bounds)}
        end = len(bounds) + 1

        def cells(ranges: Sequence[KeyRange | None], *, lows: bool) -> np.ndarray:
            if lows:
                return np.array([0 if held is None or held.low is None else number[held.low] for held in ranges], np.int64)
            return np.array([0 if held is None else end if held.high is None else number[held.high] for held in ranges], np.int64)

        place, units_of_place = _unit_cells(units)
        return cls(
            name=name,
            bounds=bounds,
            is_float=is_float,
            low=cells(keys, lows=True),
            high=cells(keys, lows=False),
            spans=units,
            unit_low=np.array([span.low for span in units], np.int64),
            unit_high=np.array([span.high for span in units], np.int64),
            gapped=np.array([bool(span.gaps) for span in units]),
            place=place,
            units=units_of_place,
            write_low=cells(writes, lows=True),
            write_high=cells(writes, lows=False),
            holds=np.array(holds, bool),
        )

    def meets_keys(self, index: int, others: np.ndarray) -> np.ndarray:
        """For each of these areas, whether it shares a key of this side with area ``index``."""
        shared: np.ndarray = (self.low[others] < self.high[index]) & (self.low[index] < self.high[others])
        return shared

    def meets_units(self, index: int, others: np.ndarray) -> np.ndarray:
        """For each of these areas, whether it shares a unit of this side with area ``index``."""
        shared: np.ndarray = (self.unit_low[others] < self.unit_high[index]) & (self.unit_low[index] < self.unit_high[others])
        near = np.flatnonzero(shared & (self.gapped[index] | self.gapped[others]))
        if len(near):
            shared[near] = (self.units[self.place[others[near]]] & self.units[self.place[index]]).any(axis=1)
        return shared

    def cell(self, number: int) -> KeyRange:
        return KeyRange(self.bounds[number - 1] if number > 0 else None, self.bounds[number] if number < len(self.bounds) else None)

    def check_written_once(self) -> None:
        """Raises SchemeError unless every key and unit of this side is written by exactly one area."""
        writers = np.flatnonzero(self.write_low < self.write_high).tolist()
        parts = np.array([(index, *part) for index in writers for part in self.spans[index].parts], np.int64).reshape(-1, 3)
        parts = parts[np.argsort(parts[:, 1], kind="stable")]
        if self._written_once(parts):
            return
        # Sorted by unit within a cell, neighbours must meet: from 0, without a gap or an overlap, to UNITS.
        for cell in range(self.cells):
            here = parts[(self.write_low[parts[:, 0]] <= cell) & (cell < self.write_high[parts[:, 0]])]
            begins = np.append(here[:, 1], UNITS)
            ends = np.insert(here[:, 2], 0, 0)
            wrong = np.flatnonzero(begins != ends)
            if len(wrong):
                at = int(wrong[0])
                kind = "twice" if begins[at] < ends[at] else "by no area"
                raise SchemeError(
                    f"areas[].{self.name}.writes: tuples with keys {_text(self.cell(cell))} and units from "
                    f"{min(begins[at], ends[at])} to {max(begins[at], ends[at])} are written {kind}; exactly one area must"
                )

    def _written_once(self, parts: np.ndarray) -> bool:
        """Whether these parts (area, low, high), ascending by ``low``, are all units of each cell of keys, once."""
        # Only where somebody begins or ends to write does anything change.
        bounds = np.unique(np.concatenate([[0, self.cells], self.write_low, self.write_high]))
        begin, end = (np.searchsorted(bounds, written[parts[:, 0]]) for written in (self.write_low, self.write_high))
        at, cell = expanded(begin, end)
        order = np.argsort(cell, kind="stable")
        cell, low, high = cell[order], parts[at[order], 1], parts[at[order], 2]
        new, last = np.diff(cell, prepend=-1) != 0, np.diff(cell, append=-1) != 0
        return bool(
            np.array_equal(cell[new], np.arange(len(bounds) - 1))
            and np.array_equal(low, np.where(new, 0, np.roll(high, 1)))
            and (high[last] == UNITS).all()
        )


def _unit_cells(spans: Sequence[UnitRange]) -> tuple[np.ndarray, np.ndarray]:
    """Per span its number among those that differ; per number, which of the cells between neighbouring unit bounds it takes, in bits.

    Asked only where there are gaps; without any, the bits are left out.
    """
    number = {span: index for index, span in enumerate(dict.fromkeys(spans))}
    place = np.array([number[span] for span in spans])
    if not any(span.gaps for span in number):
        return place, np.zeros((0, 0), np.uint8)
    bounds = {bound: index for index, bound in enumerate(sorted({end for span in number for part in span.parts for end in part}))}
    cells = np.zeros((len(number), len(bounds)), bool)
    for index, span in enumerate(number):
        for low, high in span.parts:
            cells[index, bounds[low] : bounds[high]] = True
    return place, np.packbits(cells, axis=1)


def _check_range(where: str, keys: KeyRange, is_float: bool) -> None:
    for bound in (keys.low, keys.high):
        if bound is None:
            continue
        if is_float:
            if not isinstance(bound, float) or not math.isfinite(bound):
                raise SchemeError(f"{where}: {bound!r} must be a finite float, as the keys are floats")
        elif not isinstance(bound, int) or isinstance(bound, bool) or not INT64_MIN <= bound <= INT64_MAX:
            raise SchemeError(f"{where}: {bound!r} must be a 64-bit integer, as the keys are integers")
    if keys.low is not None and keys.high is not None and not keys.low < keys.high:
        raise SchemeError(f"{where}: {_text(keys)} is empty; low must be below high")


def _within(inner: KeyRange, outer: KeyRange) -> bool:
    low = outer.low is None or (inner.low is not None and inner.low >= outer.low)
    high = outer.high is None or (inner.high is not None and inner.high <= outer.high)
    return low and high


def before(bound: int | float, is_float: bool) -> int | float:
    """The greatest key below an exclusive bound: what makes a half-open range closed."""
    return math.nextafter(bound, -math.inf) if is_float else int(bound) - 1


def after(key: int | float, is_float: bool) -> Bound:
    """The exclusive bound just above a key: what makes a closed range half-open. None when no key lies above it."""
    if is_float:
        bound = math.nextafter(key, math.inf)
        return bound if math.isfinite(bound) else None
    return int(key) + 1 if key < INT64_MAX else None


def _reached(left: _Axis, right: _Axis, main: MainPredicate) -> tuple[np.ndarray, np.ndarray]:
    """Per left cell the first and the last right cell that the main predicate can pair it with. O(left cells * log right cells)."""
    if main.kind is not MainKind.RANGE:
        return np.zeros(left.cells, np.int64), np.full(left.cells, right.cells - 1, np.int64)
    first = np.zeros(left.cells, np.int64)
    last = np.full(left.cells, right.cells - 1, np.int64)
    for number in range(left.cells):
        keys = left.cell(number)
        low, high = main.reach(keys.low, None if keys.high is None else before(keys.high, main.is_float))
        if low is not None:
            first[number] = bisect_right(right.bounds, low)
        if high is not None:
            last[number] = bisect_right(right.bounds, high)
    return first, last


def same_cut(one: Scheme, other: Scheme) -> bool:
    """Whether these are the same areas shared out in the same way, however the tasks are numbered. O(areas)."""
    if (one.model, one.tasks, len(one.areas)) != (other.model, other.tasks, len(other.areas)):
        return False
    pairs = list(zip(one.areas, other.areas, strict=True))
    numbers = {(mine.task, theirs.task) for mine, theirs in pairs}
    alike = all(replace(mine, task=0) == replace(theirs, task=0) for mine, theirs in pairs)
    return alike and len({mine for mine, _ in numbers}) == len({theirs for _, theirs in numbers}) == len(numbers)
