"""Several main predicates as one, their keys one above the other: so one scheme, as they all are, cuts several joins at once.

A *floor* is one of them. A key of floor f becomes a *level*, an integer between those of the floors below and above, in the order of the
floor's keys. A left key meets right keys of its own floor only. Schemes, plans and statistics know levels alone; tuples keep their own
keys, and what a scheme says of levels is read as it concerns the keys of a floor (:meth:`Stack.keys_between`).

Always holds: levels ascend with keys. Keys that differ may have one level (of 64 bits, three say which floor, or four of more than eight
floors): that makes a plan coarser there, never wrong, as what meets is decided by keys.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamjoin.language.predicate import INT64_MAX, INT64_MIN, Bound, Encoding, KeyExpression, MainKind, MainPredicate

MOST_FLOORS = 16
_SIGN = np.uint64(1 << 63)

Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class Stack(MainPredicate):
    """See the module. It has no keys of its own, and ``reach`` is of levels."""

    floors: tuple[MainPredicate, ...] = ()

    @classmethod
    def of(cls, floors: tuple[MainPredicate, ...]) -> Stack:
        """Raises ValueError for more than ``MOST_FLOORS``."""
        if not 1 <= len(floors) <= MOST_FLOORS:
            raise ValueError(f"floors: {len(floors)} must be 1 to {MOST_FLOORS}")
        return cls(MainKind.RANGE, recheck=True, text="; ".join(floor.text or str(floor.kind) for floor in floors), floors=floors)

    @property
    def floor_bits(self) -> int:
        """A floor has two to the power of so many levels."""
        return 61 if len(self.floors) <= 8 else 60

    def __str__(self) -> str:
        return f"Stack({'; '.join(map(str, self.floors))})"

    def key(self, side: int) -> KeyExpression | None:
        return None

    @property
    def cuts_keys(self) -> bool:
        """Whether keys say anything of what meets on every floor."""
        return all(floor.kind is MainKind.RANGE for floor in self.floors)

    def levels(self, floor: int, keys: Array) -> NDArray[np.int64]:
        """The levels of keys of a floor: int64 or float64 without NaN. O(keys)."""
        base, half = np.int64(self.base(floor)), self._size >> 1
        encoding = self._encoding(floor)
        if encoding is Encoding.INTEGER:
            clipped: NDArray[np.int64] = np.clip(keys.astype(np.int64, copy=False), -half, half - 1) + np.int64(half) + base
            return clipped
        bits = np.ascontiguousarray(keys).view(np.uint64)
        bits = np.where(bits & _SIGN, ~bits, bits | _SIGN) if encoding is Encoding.FLOAT else bits ^ _SIGN
        levels: NDArray[np.int64] = (bits >> np.uint64(self._bits_left_out)).astype(np.int64) + base
        return levels

    def keys_between(self, floor: int, low: Bound, high: Bound) -> tuple[Bound, Bound] | None:
        """The floor's keys [low, high) whose levels lie in [low, high); None for an end that is open; None: there are none."""
        base = self.base(floor)
        first = 0 if low is None else max(0, math.ceil(low) - base)
        end = self._size if high is None else min(self._size, math.ceil(high) - base)
        if first >= end:
            return None
        return None if first == 0 else self._least(floor, first), None if end == self._size else self._least(floor, end)

    def reach(self, low: Bound, high: Bound) -> tuple[Bound, Bound]:
        """The closed range of right levels that can match some left level in [low, high]."""
        return self._reached(low, high, back=False)

    def reach_back(self, low: Bound, high: Bound) -> tuple[Bound, Bound]:
        return self._reached(low, high, back=True)

    def _reached(self, low: Bound, high: Bound, *, back: bool) -> tuple[Bound, Bound]:
        first = INT64_MIN if low is None else self._low_end(int(low), back)
        last = INT64_MAX if high is None else self._high_end(int(high), back)
        return first, last

    def _low_end(self, level: int, back: bool) -> int:
        floor = self._floor_of(level)
        local = min(level - self.base(floor), self._size - 1)  # the last floor has levels above it
        reached = None if local <= 0 else self._reach_of(floor, self._least(floor, local), None, back)[0]
        return self.base(floor) if reached is None else self._level(floor, reached)

    def _high_end(self, level: int, back: bool) -> int:
        floor = self._floor_of(level)
        local = level - self.base(floor)
        top = self.base(floor) + self._size - 1
        if local >= self._size - 1:
            return top if floor < len(self.floors) - 1 else INT64_MAX
        reached = self._reach_of(floor, None, self._greatest(floor, local), back)[1]
        return (top if floor < len(self.floors) - 1 else INT64_MAX) if reached is None else self._level(floor, reached)

    def _reach_of(self, floor: int, low: Bound, high: Bound, back: bool) -> tuple[Bound, Bound]:
        main = self.floors[floor]
        if main.low is not None and main.high is not None and main.low > main.high:
            # Nothing matches, but a scheme has to put each level somewhere, beside levels that it does not pass.
            main = replace(main, high=main.low)
        return main.reach_back(low, high) if back else main.reach(low, high)

    def _level(self, floor: int, key: int | float) -> int:
        kind: Any = np.float64 if self._encoding(floor) is Encoding.FLOAT else np.int64
        return int(self.levels(floor, np.array([key], kind))[0])

    def _least(self, floor: int, local: int) -> int | float:
        """The least key at or above a level of the floor, from 1."""
        encoding = self._encoding(floor)
        if encoding is Encoding.INTEGER:
            return local - (self._size >> 1)
        bits = local << self._bits_left_out
        return _float_of(bits) if encoding is Encoding.FLOAT else bits - (1 << 63)

    def _greatest(self, floor: int, local: int) -> int | float:
        """The greatest key at or below a level of the floor that is not its last."""
        encoding = self._encoding(floor)
        if encoding is Encoding.INTEGER:
            return local - (self._size >> 1)
        bits = ((local + 1) << self._bits_left_out) - 1
        return _float_of(bits) if encoding is Encoding.FLOAT else bits - (1 << 63)

    def _encoding(self, floor: int) -> Encoding:
        keys = self.floors[floor].keys
        return keys[0].encoding if keys else Encoding.INTEGER

    def base(self, floor: int) -> int:
        """The lowest level of a floor; of the one after the last, where levels end."""
        return INT64_MIN + (floor << self.floor_bits)

    @property
    def _size(self) -> int:
        return 1 << self.floor_bits

    @property
    def _bits_left_out(self) -> int:
        return 64 - self.floor_bits

    def _floor_of(self, level: int) -> int:
        return min(len(self.floors) - 1, (level - INT64_MIN) >> self.floor_bits)


def _float_of(bits: int) -> float:
    """The number at this place in the order of all floats; beyond the infinities (where there are no numbers), those."""
    sign = 1 << 63
    value = np.array([bits ^ sign if bits & sign else ~bits & ((1 << 64) - 1)], np.uint64).view(np.float64)[0]
    if np.isnan(value):
        return math.inf if bits & sign else -math.inf
    return float(value)
