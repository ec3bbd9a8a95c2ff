"""A running picture of what a join holds: samples of keys as they are routed, forgotten as their tuples expire.

The matrix of a plan is compressed to some hundreds of buckets a side (as by A-DSP's baseline [31], which weighs the output as well), so
that some thousands of keys say enough. Samples merge by being put together: each key stands for the tuples between it and the next.

Always holds: at most ``MOST_KEYS`` keys a side, however long the window; beyond that every second one goes, and the rest count double.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from streamjoin.scheme.statistics import Histogram

MOST_KEYS = 1 << 16

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True, slots=True)
class _Part:
    keys: Array
    weight: float
    time_max: int | None


class Sketch:
    """One side. Not safe for use by several threads."""

    def __init__(self) -> None:
        self._parts: list[_Part] = []
        self._keys = 0

    def add(self, keys: Array, weight: float, time_max: int | None) -> None:
        """Keys (int64 or float64, ascending), each of which stands for ``weight`` tuples, none newer than ``time_max``."""
        if not len(keys):
            return
        self._parts.append(_Part(keys, weight, time_max))
        self._keys += len(keys)
        if self._keys > MOST_KEYS:
            self._parts = [_Part(part.keys[::2], part.weight * len(part.keys) / len(part.keys[::2]), part.time_max) for part in self._parts]
            self._keys = sum(len(part.keys) for part in self._parts)

    def expire(self, before: int | None) -> None:
        """Forget what is older than this; None: nothing."""
        if before is not None:
            self._parts = [part for part in self._parts if part.time_max is None or part.time_max >= before]
            self._keys = sum(len(part.keys) for part in self._parts)

    def histogram(self) -> Histogram | None:
        """The spread of the keys; None: nothing is known. O(keys * log keys)."""
        return together([self])


def together(sketches: Iterable[Sketch]) -> Histogram | None:
    """The spread of the keys of all of these; None: nothing is known. O(keys * log keys)."""
    parts = [part for sketch in sketches for part in sketch._parts]
    if not parts:
        return None
    weights = np.concatenate([np.full(len(part.keys), part.weight) for part in parts])
    return Histogram.from_sample(np.concatenate([part.keys for part in parts]), weight=weights)
