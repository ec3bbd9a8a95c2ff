"""Pairs of two sorted runs where there are few of them: found and written in one pass, without the ranges of rows between (``ranges``).

How fast a run is swept depends on how long it takes to know where one probing row's matches begin, from where the next one's are looked
for. So the probing rows are cut into four stretches, which are swept side by side: a processor goes on with one while it waits for another.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from streamjoin.kernel.ranges import Indices, Interval, Ints, Keys, ends, is_searched

STRETCHES = 4
LEAST_PROBES, MOST_MATCHES = 2048, 1.5
"""With fewer probing rows, or more matches of each on average, it is faster to find the ranges first (measured: bench_kernel.py)."""
SAMPLE = 8
"""So many probing rows say how many matches there are, as many of each stretch, from its first on."""
_OF_EACH = SAMPLE // STRETCHES
_STRETCH, _PART = np.divmod(np.arange(SAMPLE), _OF_EACH)


@dataclass(frozen=True, slots=True)
class Sweep:
    """All pairs of some probing rows and a run, whose keys lie in the rows' intervals. Serves once."""

    ends: tuple[Keys, int | float, Keys, int | float]
    """The lower ends of the intervals, and the upper ones: numbers, and what is to be added to each."""
    run: Keys
    state: Ints
    offset: int
    """The first probing row."""

    @property
    def is_over(self) -> bool:
        """All have been found."""
        return bool(self.state[0] * STRETCHES >= len(self.ends[0]))

    def fill(self, filled: int, chunk_probe: Indices, chunk_run: Indices) -> int:
        """How many pairs a chunk has, of which so many were there before: it is full, unless there are no more."""
        from streamjoin.kernel.sweep_native import sweep  # loads Numba

        return sweep(*self.ends, self.run, self.state, self.offset, filled, chunk_probe, chunk_run)


def sweep_of(probe: Keys, run: Keys, interval: Interval | None) -> Sweep | None:
    """How to find in one pass what probing rows admit; None: there may be too much of it, or the run is so much longer that it is better
    searched. O(log rows); O(probes) where keys lie at the ends of their type."""
    if interval is None or interval.low is None or interval.high is None:
        return None
    keys = probe[interval.rows]
    count = len(keys)
    if count < LEAST_PROBES or is_searched(len(run), count):
        return None
    lows, below = ends(keys, interval.low, interval.low_strict, up=False)
    highs, above = ends(keys, interval.high, interval.high_strict, up=True)
    length = -(-count // STRETCHES)
    told = np.minimum(_STRETCH * length + _PART * (length // _OF_EACH), count - 1)
    first, last = np.searchsorted(run, lows[told] + below), np.searchsorted(run, highs[told] + above, "right")
    if (last - first).sum() > MOST_MATCHES * SAMPLE:
        return None
    return Sweep((lows, below, highs, above), run, np.concatenate([np.zeros(3, np.int64), first[::_OF_EACH]]), interval.rows.start)
