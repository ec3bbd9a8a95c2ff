"""Traffic to simulate: two rates over time, and how skewed the keys are; read from a trace or made up, the same for the same seed.

A trace is CSV with a header::

    time_s,left_rate,right_rate,skew,hot
    0,1000,1200,1,0
    3600,4000,1200,2.5,0.7

``time_s``: seconds, ascending, from 0. ``left_rate``, ``right_rate``: tuples per second; between two rows they change evenly.
``skew`` (may be missing; 1): how much fuller than the mean the fullest worker is under a plan that does not know of it. ``hot`` (may be
missing; 0): where in the key space the hot part is, 0 to 1: a plan knows the place that it was made for. Both hold until the next row.

Always holds: rates are finite and not negative, skew is at least 1, and there is at least one step.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from streamjoin.language.sides import LEFT, RIGHT

Array = np.ndarray[Any, np.dtype[Any]]

DAY = 86400.0
KINDS = ("diurnal", "spike", "ramp", "skew-shift", "ratio-shift", "random", "rush")
MOST_STEPS = 10_000_000


class TraceError(ValueError):
    """A trace that cannot be read; the text names the line, the column, the value and the remedy."""


@dataclass(frozen=True, slots=True, eq=False)
class Traffic:
    """One entry per step of ``step_seconds``: float64 arrays of equal length."""

    step_seconds: float
    rates: tuple[Array, Array]
    """Tuples per second, by side."""
    skew: Array
    hot: Array

    @property
    def steps(self) -> int:
        return len(self.rates[LEFT])

    @property
    def seconds(self) -> float:
        return self.steps * self.step_seconds


def read_trace(text: str, step_seconds: float) -> Traffic:
    """The trace in this text (see the module), in steps. Raises TraceError. O(lines + steps)."""
    rows = list(csv.reader(text.splitlines()))
    header = [name.strip() for name in rows[0]] if rows else []
    needed, allowed = ("time_s", "left_rate", "right_rate"), ("time_s", "left_rate", "right_rate", "skew", "hot")
    missing = [name for name in needed if name not in header]
    if missing:
        raise TraceError(f"line 1: {', '.join(missing)} missing; the header must be {','.join(needed)} and, if wanted, skew and hot")
    unknown = [name for name in header if name not in allowed]
    if unknown or len(set(header)) < len(header):
        raise TraceError(f"line 1: {', '.join(unknown) or 'a column given twice'}; the columns are {', '.join(allowed)}")
    columns: dict[str, list[float]] = {name: [] for name in header}
    for line, row in enumerate(rows[1:], start=2):
        if not row:
            continue
        if len(row) != len(header):
            raise TraceError(f"line {line}: has {len(row)} values, and the header {len(header)} columns; give as many")
        for name, value in zip(header, row, strict=True):
            columns[name].append(_number(line, name, value))
        times = columns["time_s"]
        if len(times) == 1 and times[0] != 0:
            raise TraceError(f"line {line}: time_s: {times[0]:g} must be 0 in the first row")
        if len(times) > 1 and times[-1] <= times[-2]:
            raise TraceError(f"line {line}: time_s: {times[-1]:g} must be above that of the row before ({times[-2]:g})")
    times = columns["time_s"]
    if len(times) < 2:
        raise TraceError(f"{len(times)} rows; a trace needs at least two, the last one saying when it ends")
    steps = _steps(times[-1], step_seconds)
    at = (np.arange(steps) + 0.5) * step_seconds
    row_of = np.searchsorted(times, at, side="right") - 1
    return Traffic(
        step_seconds,
        (np.interp(at, times, columns["left_rate"]), np.interp(at, times, columns["right_rate"])),
        np.array(columns["skew"])[row_of] if "skew" in columns else np.ones(steps),
        np.array(columns["hot"])[row_of] if "hot" in columns else np.zeros(steps),
    )


def _number(line: int, name: str, text: str) -> float:
    least, most = {"skew": (1.0, 1e6), "hot": (0.0, 1.0)}.get(name, (0.0, 1e12))
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not least <= value <= most:
        raise TraceError(f"line {line}: {name}: {text.strip()!r} must be a number from {least:g} to {most:g}")
    return value


def _steps(seconds: float, step_seconds: float) -> int:
    if not (math.isfinite(step_seconds) and step_seconds > 0):
        raise TraceError(f"the step of {step_seconds:g} s must be positive")
    steps = round(seconds / step_seconds)
    if not 1 <= steps <= MOST_STEPS:
        raise TraceError(f"{seconds:g} s in steps of {step_seconds:g} s are {steps:,} steps, which must be 1 to {MOST_STEPS:,}")
    return steps


def generate(kind: str, *, days: float, step_seconds: float, seed: int, rates: tuple[float, float]) -> Traffic:
    """Made-up traffic of one of ``KINDS`` around these rates (left, right; tuples per second). Raises TraceError.

    ``diurnal``: days that rise to 1.7 times the rates and fall to 0.3, and quieter week-ends. ``spike``: twice a day or so, four times the
    rates for half an hour. ``ramp``: from a fifth of the rates to twice as much and back. ``skew-shift``: a hot part of the keys that moves
    three times a day. ``ratio-shift``: days in which the streams take turns at being the large one. ``random``: a wandering load with
    sudden jumps. ``rush``: the same three rushes each working day, up to a minute or two early or late.
    """
    if kind not in KINDS:
        raise TraceError(f"traffic: {kind!r} is unknown; choose one of {', '.join(KINDS)}")
    steps = _steps(days * DAY, step_seconds)
    rng = np.random.default_rng([seed, KINDS.index(kind)])
    at = (np.arange(steps) + 0.5) * step_seconds
    made = _MAKERS[kind](at, rng)
    left, right, skew, hot = made
    noise = 1 + 0.03 * rng.standard_normal((2, steps))
    return Traffic(
        step_seconds,
        (np.maximum(0.0, rates[LEFT] * left * noise[LEFT]), np.maximum(0.0, rates[RIGHT] * right * noise[RIGHT])),
        skew if isinstance(skew, np.ndarray) else np.full(steps, float(skew)),
        hot if isinstance(hot, np.ndarray) else np.full(steps, float(hot)),
    )


Made = tuple[Array, Array, Array | float, Array | float]
"""Left and right as multiples of their rates, skew, hot."""


def _day(at: Array, swing: float) -> Array:
    """Lowest at four in the morning."""
    return np.asarray(1 - swing * np.cos(2 * np.pi * (at / DAY - 4 / 24)))


def _diurnal(at: Array, rng: np.random.Generator) -> Made:
    weekend = np.where((at // DAY) % 7 >= 5, 0.6, 1.0)
    # From one day to the next it goes over in an hour, not at once.
    level = _smooth(weekend, round(3600 / (at[1] - at[0]))) if len(at) > 1 else weekend
    load = _day(at, 0.7) * level
    return load, load, 1.0, 0.0


def _spike(at: Array, rng: np.random.Generator) -> Made:
    load = np.ones(len(at))
    for _ in range(rng.poisson(2 * (at[-1] / DAY)) + 1):
        begin, length = rng.uniform(0, at[-1]), rng.uniform(900, 2700)
        load[(at >= begin) & (at < begin + length)] = rng.uniform(3, 5)
    return load, load, 1.0, 0.0


def _ramp(at: Array, rng: np.random.Generator) -> Made:
    end = at[-1]
    load = np.interp(at, [0, 0.1 * end, 0.5 * end, 0.6 * end, 0.9 * end, end], [0.2, 0.2, 2.0, 2.0, 0.2, 0.2])
    return load, load, 1.0, 0.0


def _skew_shift(at: Array, rng: np.random.Generator) -> Made:
    load = _day(at, 0.2)
    moves = (at // (DAY / 3)).astype(int)
    return load, load, 2.5, rng.uniform(0, 1, moves[-1] + 1)[moves]


def _ratio_shift(at: Array, rng: np.random.Generator) -> Made:
    # The left share goes from 0.1 to 0.9 and back, over an hour, twice a day.
    phase = np.sin(2 * np.pi * at / DAY)
    share = 0.5 + 0.4 * np.clip(phase / np.sin(np.pi / 24), -1, 1)
    load = 2 * _day(at, 0.4)
    return load * share, load * (1 - share), 1.0, 0.0


def _random(at: Array, rng: np.random.Generator) -> Made:
    step = at[1] - at[0] if len(at) > 1 else DAY
    # An Ornstein-Uhlenbeck walk of the logarithm, which forgets within six hours, and a jump every eight.
    forget, width = math.exp(-step / 21600), 0.6
    kicks = rng.standard_normal((2, len(at))) * width * math.sqrt(1 - forget**2)
    kicks += rng.standard_normal((2, len(at))) * width * (rng.random(len(at)) < step / 28800)
    walk = np.empty((2, len(at)))
    level = np.zeros(2)
    for index in range(len(at)):
        level = forget * level + kicks[:, index]
        walk[:, index] = level
    loads = np.exp(np.clip(walk[0] + [[0.0], [0.3]] * walk[1], -2.5, 1.8))
    return loads[0], loads[1], 1.0 + np.abs(walk[1]), 0.0


def _rush(at: Array, rng: np.random.Generator) -> Made:
    load = np.ones(len(at))
    for day in range(int(at[-1] // DAY) + 1):
        for hour, minutes, factor in ((9.5, 45, 4.0), (13.0, 30, 2.5), (16.0, 30, 3.5)):
            begin = day * DAY + hour * 3600 + 60 * rng.standard_normal()
            if day % 7 < 5:
                load[(at >= begin) & (at < begin + 60 * minutes)] = factor * (1 + 0.1 * rng.standard_normal())
    return load, load, 1.0, 0.0


def _smooth(values: Array, width: int) -> Array:
    if width < 2:
        return values
    padded = np.concatenate([np.full(width, values[0]), values, np.full(width, values[-1])])
    sums = np.cumsum(padded)
    return np.asarray((sums[width:] - sums[:-width]) / width)[width // 2 : width // 2 + len(values)]


_MAKERS: dict[str, Callable[[Array, np.random.Generator], Made]] = {
    "diurnal": _diurnal,
    "spike": _spike,
    "ramp": _ramp,
    "skew-shift": _skew_shift,
    "ratio-shift": _ratio_shift,
    "random": _random,
    "rush": _rush,
}
