"""Several main predicates as one, their keys one above the other: so one scheme, as they all are, cuts several joins at once.

A *key space* is one of them. A key of key space f becomes an *encoded key*, an integer between those of the key spaces below and above, in
the order of the key space's keys. A left key meets right keys of its own key space only. Schemes, plans and statistics know encoded keys
alone; tuples keep their own keys, and what a scheme says of encoded keys is read as it concerns the keys of a key space
(:meth:`CompositeKey.keys_between`).

Always holds: encoded keys ascend with keys. Keys that differ may have one encoded key (of 64 bits, three say which key space, or four of
more than eight key spaces): that makes a plan coarser there, never wrong, as what meets is decided by keys.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamjoin.language.predicate import INT64_MAX, INT64_MIN, Bound, Encoding, KeyExpression, MainKind, MainPredicate

MOST_KEY_SPACES = 16
_SIGN = np.uint64(1 << 63)

Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class CompositeKey(MainPredicate):
    """See the module. It has no keys of its own, and ``reach`` is of encoded keys."""

    key_spaces: tuple[MainPredicate, ...] = ()

    @classmethod
    def of(cls, key_spaces: tuple[MainPredicate, ...]) -> CompositeKey:
        """Raises ValueError for more than ``MOST_KEY_SPACES``."""
        if not 1 <= len(key_spaces) <= MOST_KEY_SPACES:
            raise ValueError(f"key spaces: {len(key_spaces)} must be 1 to {MOST_KEY_SPACES}")
        return cls(
            MainKind.RANGE,
            recheck=True,
            text="; ".join(key_space.text or str(key_space.kind) for key_space in key_spaces),
            key_spaces=key_spaces,
        )

    @property
    def key_space_bits(self) -> int:
        """A key space has two to the power of so many encoded keys."""
        return 61 if len(self.key_spaces) <= 8 else 60

    def __str__(self) -> str:
        return f"CompositeKey({'; '.join(map(str, self.key_spaces))})"

    def key(self, side: int) -> KeyExpression | None:
        return None

    @property
    def cuts_keys(self) -> bool:
        """Whether keys say anything of what meets on every key space."""
        return all(key_space.kind is MainKind.RANGE for key_space in self.key_spaces)

    def encoded_keys(self, key_space: int, keys: Array) -> NDArray[np.int64]:
        """The encoded keys of keys of a key space: int64 or float64 without NaN. O(keys)."""
        base, half = np.int64(self.base(key_space)), self._size >> 1
        encoding = self._encoding(key_space)
        if encoding is Encoding.INTEGER:
            clipped: NDArray[np.int64] = np.clip(keys.astype(np.int64, copy=False), -half, half - 1) + np.int64(half) + base
            return clipped
        bits = np.ascontiguousarray(keys).view(np.uint64)
        bits = np.where(bits & _SIGN, ~bits, bits | _SIGN) if encoding is Encoding.FLOAT else bits ^ _SIGN
        encoded_keys: NDArray[np.int64] = (bits >> np.uint64(self._bits_left_out)).astype(np.int64) + base
        return encoded_keys

    def keys_between(self, key_space: int, low: Bound, high: Bound) -> tuple[Bound, Bound] | None:
        """The key space's keys [low, high) whose encoded keys lie in [low, high); None for an end that is open; None: there are none."""
        base = self.base(key_space)
        first = 0 if low is None else max(0, math.ceil(low) - base)
        end = self._size if high is None else min(self._size, math.ceil(high) - base)
        if first >= end:
            return None
        return None if first == 0 else self._least(key_space, first), None if end == self._size else self._least(key_space, end)

    def reach(self, low: Bound, high: Bound) -> tuple[Bound, Bound]:
        """The closed range of right encoded keys that can match some left encoded key in [low, high]."""
        return self._reached(low, high, back=False)

    def reach_back(self, low: Bound, high: Bound) -> tuple[Bound, Bound]:
        return self._reached(low, high, back=True)

    def _reached(self, low: Bound, high: Bound, *, back: bool) -> tuple[Bound, Bound]:
        first = INT64_MIN if low is None else self._low_end(int(low), back)
        last = INT64_MAX if high is None else self._high_end(int(high), back)
        return first, last

    def _low_end(self, encoded_key: int, back: bool) -> int:
        key_space = self._key_space_of(encoded_key)
        local = min(encoded_key - self.base(key_space), self._size - 1)  # the last key space has encoded keys above it
        reached = None if local <= 0 else self._reach_of(key_space, self._least(key_space, local), None, back)[0]
        return self.base(key_space) if reached is None else self._encoded_key(key_space, reached)

    def _high_end(self, encoded_key: int, back: bool) -> int:
        key_space = self._key_space_of(encoded_key)
        local = encoded_key - self.base(key_space)
        top = self.base(key_space) + self._size - 1
        if local >= self._size - 1:
            return top if key_space < len(self.key_spaces) - 1 else INT64_MAX
        reached = self._reach_of(key_space, None, self._greatest(key_space, local), back)[1]
        return (top if key_space < len(self.key_spaces) - 1 else INT64_MAX) if reached is None else self._encoded_key(key_space, reached)

    def _reach_of(self, key_space: int, low: Bound, high: Bound, back: bool) -> tuple[Bound, Bound]:
        main = self.key_spaces[key_space]
        if main.low is not None and main.high is not None and main.low > main.high:
            # Nothing matches, but a scheme has to put each encoded key somewhere, beside encoded keys that it does not pass.
            main = replace(main, high=main.low)
        return main.reach_back(low, high) if back else main.reach(low, high)

    def _encoded_key(self, key_space: int, key: int | float) -> int:
        kind: Any = np.float64 if self._encoding(key_space) is Encoding.FLOAT else np.int64
        return int(self.encoded_keys(key_space, np.array([key], kind))[0])

    def _least(self, key_space: int, local: int) -> int | float:
        """The least key at or above an encoded key of the key space, from 1."""
        encoding = self._encoding(key_space)
        if encoding is Encoding.INTEGER:
            return local - (self._size >> 1)
        bits = local << self._bits_left_out
        return _float_of(bits) if encoding is Encoding.FLOAT else bits - (1 << 63)

    def _greatest(self, key_space: int, local: int) -> int | float:
        """The greatest key at or below an encoded key of the key space that is not its last."""
        encoding = self._encoding(key_space)
        if encoding is Encoding.INTEGER:
            return local - (self._size >> 1)
        bits = ((local + 1) << self._bits_left_out) - 1
        return _float_of(bits) if encoding is Encoding.FLOAT else bits - (1 << 63)

    def _encoding(self, key_space: int) -> Encoding:
        keys = self.key_spaces[key_space].keys
        return keys[0].encoding if keys else Encoding.INTEGER

    def base(self, key_space: int) -> int:
        """The lowest encoded key of a key space; of the one after the last, where encoded keys end."""
        return INT64_MIN + (key_space << self.key_space_bits)

    @property
    def _size(self) -> int:
        return 1 << self.key_space_bits

    @property
    def _bits_left_out(self) -> int:
        return 64 - self.key_space_bits

    def _key_space_of(self, encoded_key: int) -> int:
        return min(len(self.key_spaces) - 1, (encoded_key - INT64_MIN) >> self.key_space_bits)


def _float_of(bits: int) -> float:
    """The number at this place in the order of all floats; beyond the infinities (where there are no numbers), those."""
    sign = 1 << 63
    value = np.array([bits ^ sign if bits & sign else ~bits & ((1 << 64) - 1)], np.uint64).view(np.float64)[0]
    if np.isnan(value):
        return math.inf if bits & sign else -math.inf
    return float(value)
