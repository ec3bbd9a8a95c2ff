"""Probes of one sorted run by another: the pairs of rows that main predicate and window admit, as index pairs in chunks.

Always holds: every admitted pair comes exactly once, whichever side is probed. A chunk has at most as many pairs as asked for: an
expansion stops and resumes inside one row's matches. Memory is one chunk and some 40 bytes for each of ``BLOCK`` rows.

Both runs are sorted by key, so each row of the smaller side admits a range of rows of the other, and both ends of the range only
move up. A block of rows at a time, the ranges are found and counted, then expanded with the window checked on the way:

* Runs of like size are scanned by two pointers, in steps of 16 rows where the next match is far.
* A run much larger than its probes is searched, many binary searches at once so that their cache misses overlap.
* NOT_EQUAL is the two ranges around the equal rows, ALL one range of everything.
* A window of time is an interval of the other side's times, found once per probing row; a window of rows takes two comparisons a pair.
  Nothing is checked when the runs' times put every pair inside, and nothing is probed when they put every pair outside.

Integer keys: ``low <= right - left <= high`` in unbounded integers. Float keys: a bound of zero compares the keys themselves, any
other the difference in float arithmetic, where inf - inf is no number and matches nothing. With ``slack`` the candidates are
at least those for which ``right - left`` lies in [low, high] widened by ``slack * (|left| + |right|)``, and an infinite key is a
candidate for every partner; that is more than match, so such a predicate is rechecked.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from enum import Enum
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from streamjoin.kernel.native import native, read, write
from streamjoin.kernel.run import Run
from streamjoin.language.predicate import INT64_MAX, INT64_MIN, Bound, MainKind, MainPredicate
from streamjoin.language.sides import LEFT, RIGHT
from streamjoin.language.window import Window, WindowKind

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


ZERO, ONE, FEW, STEP = np.uint64(0), np.uint64(1), np.uint64(4), np.uint64(16)
# NB: row numbers are unsigned inside the native functions, or Numba would provide for negative ones: half the speed.


@native(
    (read("int64"), read("int64"), read("int64"), write("int64"), write("int32"), write("int32")),
    (read("float64"), read("float64"), read("float64"), write("int64"), write("int32"), write("int32")),
)
def scan_ranges(lows: Any, highs: Any, run: Any, position: Any, first: Any, last: Any) -> int:
    """The range of rows of ``run`` inside each of the intervals [low, high], both ends ascending. Returns their rows in all.

    ``position`` holds where the two pointers stand, between calls. O(probes + rows / 16 + rows found).
    """
    rows = np.uint64(len(run))
    j, h, total = np.uint64(position[0]), np.uint64(position[1]), ZERO
    for i in range(len(lows)):
        low, high = lows[i], highs[i]
        while j + STEP <= rows and run[j + STEP - ONE] < low:
            j += STEP
        while j < rows and run[j] < low:
            j += ONE
        h = max(h, j)
        while h < rows and run[h] <= high:
            h += ONE
        first[i] = j
        last[i] = h
        total += h - j
    position[0], position[1] = j, h
    return int(total)


@native(
    (read("int64"), read("int64"), read("int64"), write("int64"), write("int32"), write("int32")),
    (read("float64"), read("float64"), read("float64"), write("int64"), write("int32"), write("int32")),
)
def search_ranges(lows: Any, highs: Any, run: Any, position: Any, first: Any, last: Any) -> int:
    """:func:`scan_ranges` for a run much longer than the probes. O(probes * log(rows / probes) + rows found)."""
    rows, probes = np.uint64(len(run)), len(lows)
    start, h, total = np.uint64(position[0]), np.uint64(position[1]), ZERO
    for begin in range(0, probes, GROUP):
        end = min(begin + GROUP, probes)
        # The group's last probe gallops, which bounds the search of all: their first rows lie in [start, stop].
        low = lows[end - 1]
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
                first[i] = j + half * np.uint64(run[j + half - ONE] < lows[i])
            length -= half
        for i in range(begin, end):
            j = np.uint64(first[i])
            h = max(h, j)
            high = highs[i]
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


@native((read("int32"), read("int32"), write("int64"), "int64", "int64", write("int32"), write("int32")))
def expand(first: Any, last: Any, state: Any, offset: int, filled: int, probe_rows: Any, run_rows: Any) -> int:
    """Writes the pairs of a block of ranges, from ``state`` (row, next match) on, until the chunk is full.

    Returns how many pairs the chunk then has, of which ``filled`` were there before. O(rows + pairs).
    """
    capacity, count = np.uint64(len(run_rows)), np.uint64(filled)
    i, j = state[0], np.uint64(state[1])
    while i < len(first):
        j = max(j, np.uint64(first[i]))
        stop = np.uint64(last[i])
        row = np.int32(offset + i)
        if stop <= j + FEW and count + FEW <= capacity:
            # How many they are cannot be predicted, so write a few always, and count those that there are.
            for k in range(FEW):
                probe_rows[count + k] = row
                run_rows[count + k] = j + k
            count += max(stop, j) - j
            i += 1
            j = ZERO
            continue
        end = min(stop, j + (capacity - count))
        while j < end:
            probe_rows[count] = row
            run_rows[count] = j
            count += ONE
            j += ONE
        if j < stop:
            break
        i += 1
        j = ZERO
    state[0], state[1] = i, j
    return int(count)


@native(
    (
        *(read("int32"), read("int32"), write("int64"), "int64", "int64", write("int32"), write("int32")),
        *(read("int64"), read("int64"), read("int64")),
    )
)
def expand_between(
    first: Any,
    last: Any,
    state: Any,
    offset: int,
    filled: int,
    probe_rows: Any,
    run_rows: Any,
    earliest: Any,
    latest: Any,
    times: Any,
) -> int:
    """:func:`expand`, of the pairs alone whose run row has its time in the probing row's [earliest, latest]."""
    capacity, count = np.uint64(len(run_rows)), np.uint64(filled)
    i, j = state[0], np.uint64(state[1])
    while i < len(first):
        j = max(j, np.uint64(first[i]))
        stop, begin, end = np.uint64(last[i]), earliest[i], latest[i]
        row = np.int32(offset + i)
        while j < stop and count < capacity:
            # No more than there is room for: then every pair is written, without a branch, and counts when it is inside.
            burst = min(stop, j + (capacity - count))
            while j < burst:
                time = times[j]
                probe_rows[count] = row
                run_rows[count] = j
                count += np.uint64((time >= begin) & (time <= end))
                j += ONE
        if j < stop:
            break
        i += 1
        j = ZERO
    state[0], state[1] = i, j
    return int(count)


@native(
    (
        *(read("int32"), read("int32"), write("int64"), "int64", "int64", write("int32"), write("int32")),
        *(read("int64"), read("int64"), read("int64"), read("int64"), "int64", "int64"),
    )
)
def expand_rows(
    first: Any,
    last: Any,
    state: Any,
    offset: int,
    filled: int,
    probe_rows: Any,
    run_rows: Any,
    probe_time: Any,
    probe_aux: Any,
    run_time: Any,
    run_aux: Any,
    window_rows: int,
    probe_side: int,
) -> int:
    """:func:`expand`, of the pairs alone in a rows window: the earlier is among its stream's last when the later arrives."""
    capacity, count = np.uint64(len(run_rows)), np.uint64(filled)
    i, j = state[0], np.uint64(state[1])
    while i < len(first):
        j = max(j, np.uint64(first[i]))
        stop, time, aux = np.uint64(last[i]), probe_time[i], probe_aux[i]
        row = np.int32(offset + i)
        while j < stop and count < capacity:
            burst = min(stop, j + (capacity - count))
            while j < burst:
                probe_held = time >= run_aux[j] - window_rows
                run_held = run_time[j] >= aux - window_rows
                run_is_later = time < run_aux[j] if probe_side == LEFT else run_time[j] >= aux
                probe_rows[count] = row
                run_rows[count] = j
                count += np.uint64(probe_held if run_is_later else run_held)
                j += ONE
        if j < stop:
            break
        i += 1
        j = ZERO
    state[0], state[1] = i, j
    return int(count)


Block = tuple[int, Indices, Indices, int]
"""Ranges of consecutive probing rows: number of the first row, first and (exclusive) last match of each, and how many in all."""


class Candidates:
    """The pairs of ``left`` x ``right`` that main predicate and window admit: iterate for chunks of (left rows, right rows).

    The arrays of a chunk are overwritten by the next. ``seen`` counts the pairs that the main predicate has admitted so far.
    """

    def __init__(self, main: MainPredicate, window: Window, left: Run, right: Run, chunk_pairs: int) -> None:
        self._main, self._window, self._chunk_pairs = main, window, chunk_pairs
        self._runs = left, right
        self.seen = 0

    def __iter__(self) -> Iterator[tuple[Indices, Indices]]:
        if not all(run.rows for run in self._runs):
            return
        coverage = _coverage(self._window, *self._runs)
        if coverage is Coverage.NONE:
            return
        # Few rows probe many: ranges are longer, and there are fewer of them.
        probe_side = LEFT if self._runs[LEFT].rows <= self._runs[RIGHT].rows else RIGHT
        probe, run = self._runs[probe_side], self._runs[1 - probe_side]
        size = min(self._chunk_pairs, probe.rows * run.rows)
        chunk_probe, chunk_run = np.empty(size, np.int32), np.empty(size, np.int32)
        chunk = (chunk_probe, chunk_run) if probe_side == LEFT else (chunk_run, chunk_probe)
        filled = 0
        for offset, first, last, pairs in _blocks(self._main, probe.key, run.key, probe_side):
            self.seen += pairs
            if not pairs:
                continue
            kernel, arguments = _expansion(self._window, coverage, probe, run, probe_side, slice(offset, offset + len(first)))
            state = np.zeros(2, np.int64)
            while state[0] < len(first):
                filled = kernel(first, last, state, offset, filled, chunk_probe, chunk_run, *arguments)
                if filled == size:
                    yield chunk
                    filled = 0
        if filled:
            yield chunk[0][:filled], chunk[1][:filled]


def _blocks(main: MainPredicate, probe: Keys, run: Keys, probe_side: int) -> Iterator[Block]:
    """What each probing row admits by the main predicate. The arrays of a block are overwritten by the next."""
    low, high = main.low, main.high
    low_strict, high_strict = main.low_strict and low is not None, main.high_strict and high is not None
    if probe_side == RIGHT:
        low, high = (None if high is None else -high), (None if low is None else -low)
        low_strict, high_strict = high_strict, low_strict
    is_float = probe.dtype == np.float64
    if main.kind is MainKind.ALL or (main.kind is MainKind.NOT_EQUAL and main.slack):
        yield from _constant(slice(0, len(probe)), 0, len(run))
    elif main.kind is MainKind.NOT_EQUAL:
        rows = slice(0, len(probe))
        before, after = _block(rows, 0), _block(rows, len(run))
        for offset, first, last, _ in _intervals(probe, run, 0, 0, False, False, rows):
            count = len(first)
            yield offset, before[:count], first, int(first.sum(dtype=np.int64))
            yield offset, last, after[:count], count * len(run) - int(last.sum(dtype=np.int64))
    elif is_float and (main.slack or low or high):
        minimum, maximum = -math.inf if low is None else float(low), math.inf if high is None else float(high)
        yield from _differences(probe, run, minimum, maximum, low_strict, high_strict, main.slack)
    else:
        if not is_float:
            low, high = (low + 1 if low_strict and low is not None else low), (high - 1 if high_strict and high is not None else high)
            low_strict = high_strict = False
        # The probing rows that reach into the run at all; what is left cannot overflow to where it would match something else.
        start = 0 if high is None else _rank(probe, run[0].item() - high, after=high_strict)
        stop = len(probe) if low is None else _rank(probe, run[-1].item() - low, after=not low_strict)
        yield from _intervals(probe, run, low, high, low_strict, high_strict, slice(start, stop))


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


def _intervals(probe: Keys, run: Keys, low: Bound, high: Bound, low_strict: bool, high_strict: bool, rows: slice) -> Iterator[Block]:
    """The rows admit intervals of keys. Integer keys: bounds are closed; float keys: each bound is 0 or None."""
    if rows.start >= rows.stop:
        return
    first, last, position = _block(rows), _block(rows), np.zeros(2, np.int64)
    ranges = search_ranges if len(run) >= SEARCH_RATIO * (rows.stop - rows.start) else scan_ranges
    for offset in range(rows.start, rows.stop, BLOCK):
        keys = probe[offset : min(offset + BLOCK, rows.stop)]
        lows, highs = _ends(keys, low, low_strict, up=False), _ends(keys, high, high_strict, up=True)
        if offset == rows.start:
            position[:] = np.searchsorted(run, lows[0]), len(run) if high is None else np.searchsorted(run, highs[0], "right")
        pairs = ranges(lows, highs, run, position, first, last)
        yield offset, first[: len(keys)], last[: len(keys)], pairs


def _ends(keys: Keys, by: Bound, strict: bool, *, up: bool) -> Keys:
    """The upper or lower ends (closed) of the intervals that the keys admit."""
    if keys.dtype == np.float64:
        outward = math.inf if up else -math.inf
        if by is None:
            return np.full(len(keys), outward)
        return np.nextafter(keys, -outward) if strict else keys
    if by is None:
        return np.full(len(keys), INT64_MAX if up else INT64_MIN)
    return _add(keys, int(by), keys[0].item(), keys[-1].item())


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


def _add(values: Ints, by: int, lowest: int, highest: int) -> Ints:
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


class Coverage(Enum):
    """How much of left x right the window covers."""

    NONE = "none"
    SOME = "some"
    ALL = "all"


def _coverage(window: Window, left: Run, right: Run) -> Coverage:
    """From the ranges of times alone; SOME when they do not decide. Neither run is empty."""
    if window.kind is WindowKind.UNBOUNDED:
        return Coverage.ALL
    left_times, right_times = _known(left.time_min, left.time_max), _known(right.time_min, right.time_max)
    if window.kind is WindowKind.ROWS:
        left_others, right_others = _known(left.aux_min, left.aux_max), _known(right.aux_min, right.aux_max)
        if left_times.low >= right_others.high - window.rows and right_times.low >= left_others.high - window.rows:
            return Coverage.ALL
        right_later, left_later = left_times.high < right_others.low, left_times.low >= right_others.high
        if right_later and left_times.high < right_others.low - window.rows:
            return Coverage.NONE
        return Coverage.NONE if left_later and right_times.high < left_others.low - window.rows else Coverage.SOME
    # Both ends of a left tuple's interval ascend with its time.
    if _latest(window, left_times.high) < right_times.low or _earliest(window, left_times.low) > right_times.high:
        return Coverage.NONE
    if _earliest(window, left_times.high) <= right_times.low and _latest(window, left_times.low) >= right_times.high:
        return Coverage.ALL
    return Coverage.SOME


class _Range(NamedTuple):
    low: int
    high: int


def _known(low: int | None, high: int | None) -> _Range:
    assert low is not None
    assert high is not None
    return _Range(low, high)


def _earliest(window: Window, time: int) -> int:
    """The first right time inside a left time's window."""
    if not window.slide_micros:
        return time - window.before_micros
    return min(time, _ceil(time - window.before_micros, window.slide_micros))


def _latest(window: Window, time: int) -> int:
    """The last right time inside a left time's window."""
    if not window.slide_micros:
        return time + window.after_micros
    return max(time - 1, time // window.slide_micros * window.slide_micros + window.after_micros)


def _ceil(time: int, slide: int) -> int:
    return -(-time // slide) * slide


def _expansion(
    window: Window, coverage: Coverage, probe: Run, run: Run, probe_side: int, rows: slice
) -> tuple[Callable[..., int], tuple[Any, ...]]:
    """The kernel that expands a block of probing rows, and the arguments that it needs besides the ranges and the chunk."""
    if coverage is Coverage.ALL:
        return expand, ()
    assert probe.time is not None
    assert run.time is not None
    time = probe.time[rows]
    if window.kind is WindowKind.ROWS:
        assert probe.aux is not None
        return expand_rows, (time, probe.aux[rows], run.time, run.aux, window.rows, probe_side)
    (lowest, highest), slide = _known(probe.time_min, probe.time_max), window.slide_micros
    back, forth = window.before_micros, window.after_micros
    if probe_side == RIGHT:
        back, forth = forth, back
    earliest = _add(time, -back, lowest, highest)
    if not slide:
        return expand_between, (earliest, _add(time, forth, lowest, highest), run.time)
    # The earlier tuple's time counts from its multiple of the slide, so of an earlier partner it is the multiple that must not be before
    # ``earliest``: its time then is not before the next multiple. At equal times the left tuple is the earlier one.
    assert probe.aux is not None
    earliest += (slide - earliest % slide) % slide
    latest = _add(probe.aux[rows], forth, lowest - slide, highest)
    if probe_side == LEFT:
        return expand_between, (np.minimum(earliest, time), np.maximum(latest, time - 1), run.time)
    return expand_between, (np.minimum(earliest, time + 1), np.maximum(latest, time), run.time)
