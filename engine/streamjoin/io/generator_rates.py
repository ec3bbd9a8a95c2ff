"""Rates of made-up tuples: the event time at which the integral of the rate reaches each row."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeAlias

import numpy as np

SECOND = 1_000_000
"""In microseconds, as all times here."""


@dataclass(frozen=True)
class ConstantRate:
    """Always the same rate, in tuples per second of event time."""

    per_second: float

    def event_micros(self, rows: np.ndarray) -> np.ndarray:
        return np.asarray(np.floor(rows * float(SECOND) / self.per_second))


@dataclass(frozen=True)
class RampRate:
    """A rate that goes from one value to another within ``over_seconds``, linearly, and then stays."""

    start: float
    end: float
    over_seconds: float

    def event_micros(self, rows: np.ndarray) -> np.ndarray:
        # i = start*t + slope/2*t^2, solved for t in the form in which nothing cancels:
        # t = 2i / (start + sqrt(start^2 + 2*slope*i)).
        slope = (self.end - self.start) / self.over_seconds
        during = (self.start + self.end) / 2 * self.over_seconds
        i = np.minimum(rows, during)
        root = np.sqrt(np.maximum(self.start * self.start + 2 * slope * i, 0.0))
        below = self.start + root
        t = np.divide(2 * i, below, out=np.zeros(len(rows)), where=below > 0)
        return np.asarray(np.floor((t + np.maximum(rows - during, 0.0) / self.end) * SECOND))


@dataclass(frozen=True)
class DiurnalRate:
    """A day's wave: mean * (1 + amplitude * sin(2 pi (t + begin) / period)).

    Taken as constant within each of 4,096 steps of the period, with the exact integral over each: then its inverse is
    interpolation.
    """

    mean: float
    amplitude: float
    period_seconds: float
    begin_seconds: float = 0.0

    def event_micros(self, rows: np.ndarray) -> np.ndarray:
        times, mass = _diurnal_steps(self.mean, self.amplitude, self.period_seconds, self.begin_seconds)
        cycle = np.floor(rows / mass[-1])
        within = np.clip(rows - cycle * mass[-1], 0.0, mass[-1])
        step = np.clip(np.searchsorted(mass, within, side="right") - 1, 0, len(times) - 2)
        slope = (times[step + 1] - times[step]) / (mass[step + 1] - mass[step])
        return np.asarray(np.floor(cycle * times[-1] + times[step] + (within - mass[step]) * slope))


@lru_cache(maxsize=16)
def _diurnal_steps(mean: float, amplitude: float, period: float, begin: float, steps: int = 4096) -> tuple[np.ndarray, np.ndarray]:
    """Times in microseconds within the period, and the tuples until then."""
    first = 2 * math.pi * begin / period
    angle = [first + 2 * math.pi * step / steps for step in range(steps + 1)]
    # The integral of the rate: mean * (t + amplitude * period / 2 pi * (cos(2 pi begin / period) - cos(2 pi (t + begin) / period))).
    swing = amplitude / (2 * math.pi)
    mass = [mean * period * (step / steps + swing * (math.cos(first) - math.cos(angle[step]))) for step in range(steps + 1)]
    mass[-1] = mean * period
    times = np.arange(steps + 1) * (period * SECOND / steps)
    return times, np.maximum.accumulate(np.array(mass))


@dataclass(frozen=True)
class SpikeRate:
    """``base``, but ``peak`` for ``for_seconds`` from ``at_seconds`` on; again every ``every_seconds`` (0: never)."""

    base: float
    peak: float
    at_seconds: float
    for_seconds: float
    every_seconds: float = 0

    def event_micros(self, rows: np.ndarray) -> np.ndarray:
        before = self.base * self.at_seconds
        burst = self.peak * self.for_seconds
        after = np.maximum(rows - before, 0.0)
        if self.every_seconds:
            mass = burst + self.base * (self.every_seconds - self.for_seconds)
            cycle = np.floor(after / mass)
        else:
            mass, cycle = 0.0, np.zeros(len(rows))
        within = np.maximum(after - cycle * mass, 0.0)
        t = np.minimum(rows, before) / self.base + cycle * self.every_seconds
        t += np.minimum(within, burst) / self.peak + np.maximum(within - burst, 0.0) / self.base
        return np.asarray(np.floor(t * SECOND))


Rate: TypeAlias = ConstantRate | RampRate | DiurnalRate | SpikeRate
