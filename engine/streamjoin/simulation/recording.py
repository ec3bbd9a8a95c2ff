"""A trace of what a join has met: from observations of it, at any times, to the rows that ``traffic.read_trace`` reads.

*Rates.* What came in for the join by a moment is what it has taken (accepted and shed tuples: those that are late, filtered or rejected
cost a worker nothing) and what waits, as far as records become such tuples. The rate at a row is the mean over one step around it, so that
lines between rows keep the sum.

*Skew.* An observation says how much fuller than the mean the fullest worker is under the plan that runs, which knows the keys of the moment
when it was made. Under each plan, ``skew`` is the largest imbalance there was, and ``hot`` moves as far as explains each observation
(``run.imbalance``); with the next plan it goes on from where it was. So in a simulation the recorded plans have the imbalance that they
had, and others that of keys that have moved on. Only what a plan has run into is known: an imbalance that no plan could cut away counts
as one that every new plan cures, and keys that moved where the plan did not mind are not seen.

Always holds: rows begin at 0 and ascend, rates are not negative, and the text is read by ``read_trace`` as it stands.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from streamjoin.simulation.run import HOT_WIDTH
from streamjoin.simulation.traffic import MOST_STEPS, TraceError

Array = np.ndarray[Any, np.dtype[Any]]
Pair = tuple[float, float]
"""Of the left stream and of the right one."""

LEAST_MEAN = 0.01
"""Workers emptier than this say nothing about skew: a few tuples lie anyhow."""
LEAST_SKEW = 1.05
"""What is below is how evenly a plan cuts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """What could be seen of a join at one moment. Counters may begin anew; the larger time is the later."""

    at: float
    """Seconds, by any clock."""
    taken: Pair
    """Counter: tuples accepted or shed."""
    read: Pair | None = None
    """Counter: records read, of which the above became."""
    waiting: Pair = (0.0, 0.0)
    """Records that wait."""
    fullest: float | None = None
    """tau of the fullest worker."""
    mean: float | None = None
    """Mean tau of all workers."""
    generation: int | None = None
    """Of the plan that the two above were measured under."""


@dataclass(frozen=True, slots=True, eq=False)
class Recording:
    """The rows of a trace, float64 arrays of equal length."""

    times: Array
    """Seconds from 0."""
    rates: tuple[Array, Array]
    skew: Array
    hot: Array

    @property
    def seconds(self) -> float:
        return float(self.times[-1])

    def text(self) -> str:
        """As CSV. O(rows)."""
        columns = (self.times, *self.rates, self.skew, self.hot)
        lines = (f"{time:.10g}," + ",".join(f"{value:.6g}" for value in rest) for time, *rest in zip(*columns, strict=True))
        return "\n".join(["time_s,left_rate,right_rate,skew,hot", *lines]) + "\n"


def record(observations: Sequence[Observation], step_seconds: float, *, taken_in: bool = False) -> Recording:
    """A row for each step. Raises TraceError. O(observations + rows).

    ``taken_in``: rates at which the join took tuples in, whenever they came.
    """
    if len(observations) < 2:
        raise TraceError(f"{len(observations)} observations; a trace needs at least two, so record for longer")
    for before, after in itertools.pairwise(observations):
        if after.at <= before.at:
            raise TraceError(f"the times go back or stand still, from {before.at:.3f} to {after.at:.3f} s; record one run alone")
    at = np.array([one.at for one in observations])
    at -= at[0]
    rows = max(1, round(at[-1] / step_seconds)) + 1
    if rows > MOST_STEPS:
        raise TraceError(f"{at[-1]:g} s in steps of {step_seconds:g} s are {rows:,} rows, which must be at most {MOST_STEPS:,}")
    times = np.arange(rows) * step_seconds
    times[-1] = at[-1]
    between = (times[1:] + times[:-1]) / 2
    begins, ends = np.concatenate([[0.0], between]), np.concatenate([between, [at[-1]]])
    rates = []
    for side in (0, 1):
        came = _came(observations, side, taken_in)
        rates.append((np.interp(ends, at, came) - np.interp(begins, at, came)) / (ends - begins))
    if not any(of_side.any() for of_side in rates):
        raise TraceError(
            "nothing came in while it was recorded: what the join took in, if anything, had waited since before; "
            "record while tuples come, or give --taken-in for the rates at which they were taken in"
        )
    skew, hot = _skew(observations)
    row_of = np.searchsorted(at, times, side="right") - 1
    return Recording(times, (rates[0], rates[1]), skew[row_of], hot[row_of])


def _came(observations: Sequence[Observation], side: int, taken_in: bool) -> Array:
    """Tuples that came in up to each observation, from any number on: ascending."""
    taken = _counted([one.taken[side] for one in observations])
    if taken_in:
        return taken
    reads = [one.read[side] for one in observations if one.read is not None]
    read = float(_counted(reads)[-1]) if len(reads) == len(observations) else 0.0
    kept = min(1.0, float(taken[-1]) / read) if read > 0 else 1.0
    # Sources estimate what waits; nothing that has come goes away again.
    return np.asarray(np.maximum.accumulate(taken + kept * np.array([one.waiting[side] for one in observations])))


def _counted(counter: Sequence[float]) -> Array:
    """The increase of a counter since its first value; one that falls has begun anew at 0."""
    steps = [0.0] + [after - before if after >= before else after for before, after in itertools.pairwise(counter)]
    return np.cumsum(steps)


def _skew(observations: Sequence[Observation]) -> tuple[Array, Array]:
    """Skew and hot at each observation."""
    skew, hot = np.ones(len(observations)), np.zeros(len(observations))
    place, direction, last = 0.0, 1.0, 1.0
    begin = 0
    for _, group in itertools.groupby(observations, key=lambda one: one.generation):
        uneven: list[float | None] = [_imbalance(one) for one in group]
        end = begin + len(uneven)
        largest = max((one for one in uneven if one is not None), default=last)
        last = largest = 1.0 if largest < LEAST_SKEW else largest
        if not 0 <= place + direction * HOT_WIDTH <= 1:
            direction = -direction
        start = place
        for index, one in enumerate(uneven, start=begin):
            if one is not None and largest > 1:
                place = start + direction * HOT_WIDTH * math.log(max(1.0, one)) / math.log(largest)
            skew[index], hot[index] = largest, place
        begin = end
    return skew, hot


def _imbalance(one: Observation) -> float | None:
    if one.fullest is None or one.mean is None or not one.mean >= LEAST_MEAN:
        return None
    return max(1.0, one.fullest / one.mean)
