"""The ranges of rows of one sorted run that each row of another admits by the main predicate, a block of rows at a time.

* Runs of like size are scanned by two pointers, in steps of 16 rows where the next match is far.
* A run much larger than its probes is searched, many binary searches at once so that their cache misses overlap.
* NOT_EQUAL is the two ranges around the equal rows, ALL one range of everything.

Integer keys: ``low <= right - left <= high`` in unbounded integers. Float keys: a bound of zero compares the keys themselves, any
other the difference in float arithmetic, where inf - inf is no number and matches nothing. With ``slack`` the candidates are
at least those for which ``right - left`` lies in [low, high] widened by ``slack * (|left| + |right|)``, and an infinite key is a
candidate for every partner; that is more than match, so such a predicate is rechecked.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from streamjoin.language.predicate import INT64_MAX, INT64_MIN, Bound, MainKind, MainPredicate
from streamjoin.language.sides import RIGHT
from streamjoin.native.functions import native, read, write

BLOCK = 1 << 15
"""Rows probed at a time: their ranges and times stay in the second-level cache."""

SEARCH_RATIO = 256
"""From this many rows per probing row on, binary searches beat the scan (measured: bench_kernel.py)."""

GROUP = 64
"""Binary searches that run interleaved."""

Ints = NDArray[np.int64]
Keys = NDArray[Any]
"""int64 or float64."""
Indices = NDArray[np.int32]

ZERO, ONE, STEP = np.uint64(0), np.uint64(1), np.uint64(16)
LOOK, LOOK_ON = np.uint64(8), np.uint64(4)
"""So many rows are compared at once with a low end, and with a high one. How far a pointer moves cannot be predicted, so it is counted."""
# NB: row numbers are unsigned inside the native functions, or Numba would provide for negative ones: half the speed.


@native(
    (read("int64"), "int64", read("int64"), "int64", read("int64"), write("int64"), write("int32"), write("int32")),
    (read("float64"), "float64", read("float64"), "float64", read("float64"), write("int64"), write("int32"), write("int32")),
)
def scan_ranges(lows: Any, below: Any, highs: Any, above: Any, run: Any, position: Any, first: Any, last: Any) -> int:
    """The range of rows of ``run`` inside each interval [low + below, high + above], both ends ascending. Returns their rows in all.

    ``position`` holds where the two pointers stand, between calls. O(probes + rows / 16 + rows found).
    """
    rows = np.uint64(len(run))
    j, h, total = np.uint64(position[0]), np.uint64(position[1]), ZERO
    for i in range(len(lows)):
        low, high = lows[i] + below, highs[i] + above
        while j + STEP <= rows and run[j + STEP - ONE] < low:
            j += STEP
        count = LOOK
        while count == LOOK and j + LOOK <= rows:
            count = ZERO
            for k in range(LOOK):
                count += np.uint64(run[j + k] < low)
            j += count
        while j < rows and run[j] < low:
            j += ONE
        h = max(h, j)
        count = LOOK_ON
        while count == LOOK_ON and h + LOOK_ON <= rows:
            count = ZERO
            for k in range(LOOK_ON):
                count += np.uint64(run[h + k] <= high)
            h += count
        while h < rows and run[h] <= high:
            h += ONE
        first[i] = j
        last[i] = h
        total += h - j
    position[0], position[1] = j, h
    return int(total)


@native(
    (read("int64"), "int64", read("int64"), "int64", read("int64"), write("int64"), write("int32"), write("int32")),
    (read("float64"), "float64", read("float64"), "float64", read("float64"), write("int64"), write("int32"), write("int32")),
)
def search_ranges(lows: Any, below: Any, highs: Any, above: Any, run: Any, position: Any, first: Any, last: Any) -> int:
    """:func:`scan_ranges` for a run much longer than the probes. O(probes * log(rows / probes) + rows found)."""
    rows, probes = np.uint64(len(run)), len(lows)
    start, h, total = np.uint64(position[0]), np.uint64(position[1]), ZERO
    for begin in range(0, probes, GROUP):
        end = min(begin + GROUP, probes)
        # The group's last probe gallops, which bounds the search of all: their first rows lie in [start, stop].
        low = lows[end - 1] + below
        stop, step = start, ONE
        while stop < rows and run[stop] < low:
            stop += step
            step += step
        length = min(stop, rows) - start
        for i in range(begin, end):
            first[i] = start
        while length > ZERO:
            half = (length + ONE) >> ONE
            for i in range(begin, end):
                j = np.uint64(first[i])
                first[i] = j + half * np.uint64(run[j + half - ONE] < lows[i] + below)
            length -= half
        for i in range(begin, end):
            j = np.uint64(first[i])
            h = max(h, j)
            high = highs[i] + above
            while h < rows and run[h] <= high:
                h += ONE
            last[i] = h
            total += h - j
        start = np.uint64(first[end - 1])
    position[0], position[1] = start, h
    return int(total)


@native(
    (
        *(read("float64"), read("float64"), "float64", "float64", "float64"),
        *("int64", write("int64"), write("int32"), write("int32")),
    )
)
def difference_ranges(
    probe: Any, run: Any, low: float, high: float, slack: float, stride: int, position: Any, first: Any, last: Any
) -> int:
    """The range of rows of ``run`` whose key less the probing key lies in [low, high], widened by the slack. All keys are finite.

    No interval of keys can stand for the difference as floats round it: many keys near zero have the same difference to a large one.
    The run is scanned in steps of ``stride``, a power of two from 16, which are then halved. O(probes * log(stride) + rows / stride).
    """
    rows = np.uint64(len(run))
    j, h, total = np.uint64(position[0]), np.uint64(position[1]), ZERO
    for i in range(len(probe)):
        key = probe[i]
        margin = slack * abs(key)
        step = np.uint64(stride)
        while j + step <= rows and run[j + step - ONE] - key < low - (margin + slack * abs(run[j + step - ONE])):
            j += step
        while step > STEP:
            step >>= ONE
            if j + step <= rows and run[j + step - ONE] - key < low - (margin + slack * abs(run[j + step - ONE])):
                j += step
        while j < rows and run[j] - key < low - (margin + slack * abs(run[j])):
            j += ONE
        h = max(h, j)
        while h < rows and run[h] - key <= high + (margin + slack * abs(run[h])):
            h += ONE
        first[i] = j
        last[i] = h
        total += h - j
    position[0], position[1] = j, h
    return int(total)


Block = tuple[int, Indices, Indices, int]
"""Ranges of consecutive probing rows: number of the first row, first and (exclusive) last match of each, and how many in all."""


class Interval(NamedTuple):
    """What probing rows admit where that is an interval of keys, counted from their own."""

    rows: slice
    """The probing rows that reach into the run at all."""
    low: Bound
    high: Bound
    """Integer keys: bounds are closed; float keys: each bound is 0 or None."""
    low_strict: bool
    high_strict: bool


def interval_of(main: MainPredicate, probe: Keys, run: Keys, probe_side: int) -> Interval | None:
    """What each probing row admits by the main predicate; None: no interval of keys can stand for it."""
    low, high, low_strict, high_strict = _seen_from(main, probe_side)
    is_float = probe.dtype == np.float64
    if main.kind is not MainKind.RANGE or (is_float and (main.slack or low or high)):
        return None
    if not is_float:
        low, high = (low + 1 if low_strict and low is not None else low), (high - 1 if high_strict and high is not None else high)
        low_strict = high_strict = False
    # The probing rows that reach into the run at all; what is left cannot overflow to where it would match something else.
    start = 0 if high is None else _rank(probe, run[0].item() - high, after=high_strict)
    stop = len(probe) if low is None else _rank(probe, run[-1].item() - low, after=not low_strict)
    return Interval(slice(start, stop), low, high, low_strict, high_strict)


def _seen_from(main: MainPredicate, probe_side: int) -> tuple[Bound, Bound, bool, bool]:
    """Its bounds of the run's key less the probing key, and which of them are strict."""
    low, high = main.low, main.high
    low_strict, high_strict = main.low_strict and low is not None, main.high_strict and high is not None
    if probe_side == RIGHT:
        low, high = (None if high is None else -high), (None if low is None else -low)
        low_strict, high_strict = high_strict, low_strict
    return low, high, low_strict, high_strict


def blocks_of_ranges(main: MainPredicate, probe: Keys, run: Keys, probe_side: int, interval: Interval | None) -> Iterator[Block]:
    """What each probing row admits by the main predicate (``interval``: of which that is). The arrays of a block are overwritten by the
    next."""
    if interval is not None:
        yield from _intervals(probe, run, interval)
    elif main.kind is MainKind.ALL or (main.kind is MainKind.NOT_EQUAL and main.slack):
        yield from _constant(slice(0, len(probe)), 0, len(run))
    elif main.kind is MainKind.NOT_EQUAL:
        rows = slice(0, len(probe))
        before, after = _block(rows, 0), _block(rows, len(run))
        for offset, first, last, _ in _intervals(probe, run, Interval(rows, 0, 0, low_strict=False, high_strict=False)):
            count = len(first)
            yield offset, before[:count], first, int(first.sum(dtype=np.int64))
            yield offset, last, after[:count], count * len(run) - int(last.sum(dtype=np.int64))
    else:
        low, high, low_strict, high_strict = _seen_from(main, probe_side)
        minimum, maximum = -math.inf if low is None else float(low), math.inf if high is None else float(high)
        yield from _differences(probe, run, minimum, maximum, low_strict, high_strict, main.slack)


def _block(rows: slice, value: int = 0) -> Indices:
    return np.full(min(BLOCK, max(0, rows.stop - rows.start)), value, np.int32)


def _constant(rows: slice, first: int, last: int) -> Iterator[Block]:
    """All the rows admit one range."""
    if last <= first:
        return
    firsts, lasts = _block(rows, first), _block(rows, last)
    for offset in range(rows.start, rows.stop, BLOCK):
        count = min(BLOCK, rows.stop - offset)
        yield offset, firsts[:count], lasts[:count], count * (last - first)


def is_searched(rows: int, probes: int) -> bool:
    """Whether a run of so many rows is long for so many probing rows, so that binary searches are faster than going through it."""
    return rows >= SEARCH_RATIO * probes


def _intervals(probe: Keys, run: Keys, interval: Interval) -> Iterator[Block]:
    """The rows admit intervals of keys."""
    rows, low, high, low_strict, high_strict = interval
    if rows.start >= rows.stop:
        return
    first, last, position = _block(rows), _block(rows), np.zeros(2, np.int64)
    ranges = search_ranges if is_searched(len(run), rows.stop - rows.start) else scan_ranges
    for offset in range(rows.start, rows.stop, BLOCK):
        keys = probe[offset : min(offset + BLOCK, rows.stop)]
        lows, below = ends(keys, low, low_strict, up=False)
        highs, above = ends(keys, high, high_strict, up=True)
        if offset == rows.start:
            position[0] = np.searchsorted(run, lows[0] + below)
            position[1] = len(run) if high is None else np.searchsorted(run, highs[0] + above, "right")
        pairs = ranges(lows, below, highs, above, run, position, first, last)
        yield offset, first[: len(keys)], last[: len(keys)], pairs


def ends(keys: Keys, by: Bound, strict: bool, *, up: bool) -> tuple[Keys, int | float]:
    """The upper or lower ends (closed) of the intervals that the keys admit: numbers, and what is to be added to each."""
    if keys.dtype == np.float64:
        outward = math.inf if up else -math.inf
        if by is None:
            return np.full(len(keys), outward), 0.0
        return np.nextafter(keys, -outward) if strict else keys, 0.0
    if by is None:
        return np.full(len(keys), INT64_MAX if up else INT64_MIN), 0
    lowest, highest, by = keys[0].item(), keys[-1].item(), int(by)
    if min(lowest + by, by) >= INT64_MIN and max(highest + by, by) <= INT64_MAX:
        return keys, by
    return saturated_sum(keys, by, lowest, highest), 0


def _differences(probe: Keys, run: Keys, low: float, high: float, low_strict: bool, high_strict: bool, slack: float) -> Iterator[Block]:
    """The rows admit what differs by [low, high] in float arithmetic; see the module for infinite keys and for the slack."""
    finite, core = _finite(probe), _finite(run)
    if slack:
        # Widened by the rounding of the comparison itself, whatever side it is made from.
        slack += 2.0**-51
        yield from _constant(slice(0, finite.start), 0, len(run))
        yield from _constant(slice(finite.stop, len(probe)), 0, len(run))
        yield from _constant(finite, 0, core.start)
        yield from _constant(finite, core.stop, len(run))
    else:
        if (low_strict and low == math.inf) or (high_strict and high == -math.inf):
            return
        low, high = math.nextafter(low, math.inf) if low_strict else low, math.nextafter(high, -math.inf) if high_strict else high
        if high == math.inf:  # anything finite less -inf
            yield from _constant(slice(0, finite.start), core.start, len(run))
        if low == -math.inf:  # anything finite less inf
            yield from _constant(slice(finite.stop, len(probe)), 0, core.stop)
    first, last, position = _block(finite), _block(finite), np.zeros(2, np.int64)
    stride = max(16, 1 << (len(run) // (32 * max(1, finite.stop - finite.start))).bit_length())
    for offset in range(finite.start, finite.stop, BLOCK):
        keys = probe[offset : min(offset + BLOCK, finite.stop)]
        count = len(keys)
        pairs = difference_ranges(keys, run[core], low, high, slack, stride, position, first, last)
        first[:count] += core.start
        last[:count] += core.start
        if not slack and low == -math.inf:
            first[:count] = 0
            pairs += count * core.start
        if not slack and high == math.inf:
            last[:count] = len(run)
            pairs += count * (len(run) - core.stop)
        yield offset, first[:count], last[:count], pairs


def _finite(keys: Keys) -> slice:
    return slice(int(np.searchsorted(keys, -math.inf, "right")), int(np.searchsorted(keys, math.inf, "left")))


def _rank(keys: Keys, value: int | float, *, after: bool) -> int:
    """How many keys are below the value (or, ``after``, at most equal to it); the value may lie outside int64."""
    if keys.dtype == np.int64:
        if value > INT64_MAX:
            return len(keys)
        if value < INT64_MIN:
            return 0
    return int(np.searchsorted(keys, keys.dtype.type(value), "right" if after else "left"))


def saturated_sum(values: Ints, by: int, lowest: int, highest: int) -> Ints:
    """``values + by`` in unbounded integers, saturated to int64; ``lowest`` and ``highest`` bound the values."""
    wrapped = np.int64((by - INT64_MIN) % 2**64 + INT64_MIN)
    moved: Ints = values + wrapped
    if lowest + by < INT64_MIN:
        moved[values < min(INT64_MIN - by, INT64_MAX)] = INT64_MIN
        if highest + by < INT64_MIN:
            moved[:] = INT64_MIN
    if highest + by > INT64_MAX:
        moved[values > max(INT64_MAX - by, INT64_MIN)] = INT64_MAX
        if lowest + by > INT64_MAX:
            moved[:] = INT64_MAX
    return moved
