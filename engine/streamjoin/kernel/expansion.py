"""Ranges of rows expanded to pairs, the window checked on the way.

A window of time is an interval of the other side's times, found once per probing row; a window of rows takes two comparisons a pair.
Nothing is checked when the runs' times put every pair inside, and nothing is probed when they put every pair outside.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Any, NamedTuple

import numpy as np

from streamjoin.kernel.ranges import ONE, ZERO, Ints, saturated_sum
from streamjoin.kernel.run import Run
from streamjoin.language.predicate import INT64_MAX, INT64_MIN
from streamjoin.language.sides import LEFT, RIGHT
from streamjoin.language.window import Window, WindowKind
from streamjoin.native.functions import native, read, write

FEW = np.uint64(4)


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


@native((write("int32"), write("int32"), "int64", "int64", read("int64"), read("int64"), read("int64")))
def keep_between(probe_rows: Any, run_rows: Any, start: int, stop: int, earliest: Any, latest: Any, times: Any) -> int:
    """Of the pairs from ``start`` to ``stop``, keeps those that :func:`expand_between` would write. Returns where they end. O(pairs)."""
    count = np.uint64(start)
    for place in range(start, stop):
        probe_row, run_row = probe_rows[place], run_rows[place]
        time, row = times[np.uint64(run_row)], np.uint64(probe_row)
        probe_rows[count], run_rows[count] = probe_row, run_row
        count += np.uint64((time >= earliest[row]) & (time <= latest[row]))
    return int(count)


@native(
    (
        *(read("int32"), read("int32"), write("int64"), "int64", "int64", write("int32"), write("int32")),
        *(read("int64"), read("int64"), read("int64"), read("int64"), "int64", "int64", "int64"),
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
    probe_window: int,
    run_window: int,
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
                probe_held = time >= run_aux[j] - probe_window
                run_held = run_time[j] >= aux - run_window
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


class Coverage(Enum):
    """How much of left x right the window covers."""

    NONE = "none"
    SOME = "some"
    ALL = "all"


def coverage_of(window: Window, left: Run, right: Run) -> Coverage:
    """From the ranges of times alone; SOME when they do not decide. Neither run is empty."""
    if window.kind is WindowKind.UNBOUNDED:
        return Coverage.ALL
    left_times, right_times = _known(left.time_min, left.time_max), _known(right.time_min, right.time_max)
    if window.kind is WindowKind.ROWS:
        left_others, right_others = _known(left.aux_min, left.aux_max), _known(right.aux_min, right.aux_max)
        left_rows, right_rows = window.rows_of(LEFT), window.rows_of(RIGHT)
        if left_times.low >= right_others.high - left_rows and right_times.low >= left_others.high - right_rows:
            return Coverage.ALL
        right_later, left_later = left_times.high < right_others.low, left_times.low >= right_others.high
        if right_later and left_times.high < right_others.low - left_rows:
            return Coverage.NONE
        return Coverage.NONE if left_later and right_times.high < left_others.low - right_rows else Coverage.SOME
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


def expansion_of(
    window: Window, coverage: Coverage, probe: Run, run: Run, probe_side: int, rows: slice
) -> tuple[Callable[..., int], tuple[Any, ...]]:
    """The kernel that expands a block of probing rows, and the arguments that it needs besides the ranges and the chunk."""
    if coverage is Coverage.ALL:
        return expand, ()
    if window.kind is WindowKind.RANGE:
        return expand_between, between(window, probe, run, probe_side, rows)
    assert probe.time is not None
    assert probe.aux is not None
    windows = window.rows_of(probe_side), window.rows_of(1 - probe_side)
    return expand_rows, (probe.time[rows], probe.aux[rows], run.time, run.aux, *windows, probe_side)


def between(window: Window, probe: Run, run: Run, probe_side: int, rows: slice) -> tuple[Ints, Ints, Ints]:
    """Of these probing rows, the earliest and the latest time that the window of time admits; and the run's times. Microseconds."""
    assert probe.time is not None
    assert run.time is not None
    time = probe.time[rows]
    (lowest, highest), slide = _known(probe.time_min, probe.time_max), window.slide_micros
    back, forth = window.before_micros, window.after_micros
    if probe_side == RIGHT:
        back, forth = forth, back
    if not slide:
        return saturated_sum(time, -back, lowest, highest), saturated_sum(time, forth, lowest, highest), run.time
    # The earlier tuple's time counts from its multiple of the slide, so of an earlier partner it is the multiple that must not be before
    # ``earliest``: its time then is not before the next multiple. At equal times the left tuple is the earlier one.
    assert probe.aux is not None
    first_later = time if probe_side == LEFT else time + 1
    earliest = time - back
    earliest += (slide - earliest % slide) % slide
    earliest, latest = np.minimum(earliest, first_later), np.maximum(probe.aux[rows] + forth, first_later - 1)
    reach = max(back, forth) + slide + 1
    if lowest - reach < INT64_MIN or highest + reach > INT64_MAX:
        few = (time < min(INT64_MIN + reach, INT64_MAX)) | (time > max(INT64_MAX - reach, INT64_MIN))
        exact = [_interval(at, at + (probe_side == RIGHT), back, forth, slide) for at in time[few].tolist()]
        earliest[few], latest[few] = np.array(exact, np.int64).reshape(-1, 2).T
    return earliest, latest, run.time


def _interval(time: int, first_later: int, back: int, forth: int, slide: int) -> tuple[int, int]:
    """The earliest and the latest partner's time near the ends of int64, where multiples of the slide may be beyond them."""
    earliest = max(min(_ceil(time - back, slide), first_later), INT64_MIN)
    latest = min(max(time // slide * slide + forth, first_later - 1), INT64_MAX)
    return (earliest, latest) if earliest <= latest else (INT64_MAX, INT64_MIN)
