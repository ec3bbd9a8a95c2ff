"""Theta: one *main* predicate that an index serves, and a *residual* evaluated on its candidates.

Every main predicate is a statement about one key a side, so that the kernel and the schemes know only these forms::

    RANGE       low <= right_key - left_key <= high      =, <, <=, >, >=, BETWEEN and abs(a - b) <= c
    NOT_EQUAL   left_key != right_key
    ALL         true                                     nothing that an index could serve: blocks are compared

Always holds: the pairs that the main predicate admits contain all the pairs that satisfy the condition; where they are more (``recheck``),
the residual contains the original conjunct too. So results never depend on how a key was encoded.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from enum import StrEnum
from typing import TypeVar, cast

from streamjoin.language.sides import LEFT
from streamjoin.language.types import DataType

INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1

Bound = int | float | None
"""A key, or None for no bound on that side."""


class Encoding(StrEnum):
    """How the values of a key expression become the 64-bit key that runs are sorted by."""

    INTEGER = "integer"
    """Exact int64, in the order of the values: integers, dates (days), timestamps (microseconds), decimals (unscaled)."""
    FLOAT = "float"
    """float64; -0.0 becomes 0.0."""
    PREFIX = "prefix"
    """int64 from the first eight UTF-8 bytes of a string, in the strings' order (ties possible, so always rechecked)."""
    HASH = "hash"
    """int64 hash of one or more values, for equality; spreads any key distribution evenly over the key space."""


class MainKind(StrEnum):
    RANGE = "range"
    NOT_EQUAL = "not-equal"
    ALL = "all"


@dataclass(frozen=True, slots=True)
class KeyExpression:
    """What one side contributes to the main predicate.

    ``sql`` are expressions over that stream's bare column names, ``types`` the types that their values are cast to before encoding
    (the same on both sides, so that equal values have equal keys). Several only with Encoding.HASH.
    """

    sql: tuple[str, ...]
    types: tuple[DataType, ...]
    encoding: Encoding
    seed: int = field(default=0, repr=False)
    """Of hashes, so that nobody can choose values whose hashes lie together; 0: none is known yet. A checkpoint's own."""


_T = TypeVar("_T")


def seeded(value: _T, seed: int) -> _T:
    """The same layout, place or predicate, or a tuple of them, with this seed for the hashes of its keys. O(size)."""
    if isinstance(value, KeyExpression):
        return replace(value, seed=seed) if value.encoding is Encoding.HASH else value
    if isinstance(value, tuple):
        return cast(_T, tuple(seeded(each, seed) for each in value))
    if is_dataclass(value) and not isinstance(value, type):
        given = {each.name: getattr(value, each.name) for each in fields(value)}
        changed = {name: after for name, before in given.items() if (after := seeded(before, seed)) != before}
        return replace(value, **changed) if changed else value
    return value


@dataclass(frozen=True, slots=True)
class MainPredicate:
    """See the module. Integer bounds are closed (strictness is folded into them) and may lie outside int64; the kernel saturates.

    ``slack``: for FLOAT keys that are only near the exact values, by this much relative to their size: candidates are widened by it.
    """

    kind: MainKind
    keys: tuple[KeyExpression, ...] = ()
    """By side, of one encoding; empty for ALL."""
    low: Bound = None
    high: Bound = None
    low_strict: bool = False
    high_strict: bool = False
    slack: float = 0.0
    recheck: bool = False
    text: str = ""
    """The conjunct(s) it came from, for people."""

    def __str__(self) -> str:
        """The predicate as a checkpoint has it (``Checkpoint.main``). It never changes: a join finds its predicate again by this text."""
        left, right = self.keys or (None, None)
        return (
            f"MainPredicate(kind={self.kind!r}, left={left!r}, right={right!r}, low={self.low!r}, high={self.high!r}, "
            f"low_strict={self.low_strict!r}, high_strict={self.high_strict!r}, slack={self.slack!r}, recheck={self.recheck!r}, "
            f"text={self.text!r})"
        )

    def key(self, side: int) -> KeyExpression | None:
        """None for ALL."""
        return self.keys[side] if self.keys else None

    @property
    def is_float(self) -> bool:
        return bool(self.keys) and self.keys[LEFT].encoding is Encoding.FLOAT

    @property
    def is_equality(self) -> bool:
        return self.kind is MainKind.RANGE and self.low == 0 and self.high == 0

    @property
    def rank(self) -> int:
        """How selective it looks, least first: equality, then bands, then open ranges, then !=, then what admits all."""
        if self.kind is not MainKind.RANGE:
            return 3 if self.kind is MainKind.NOT_EQUAL else 4
        if self.is_equality:
            return 0
        return 1 if self.low is not None and self.high is not None else 2

    def reach(self, low: Bound, high: Bound) -> tuple[Bound, Bound]:
        """The closed range of right keys that can match some left key in [low, high] (closed; None: unbounded).

        Conservative: may be wider than the truth by the slack and a rounding, never narrower.
        """
        if self.kind is not MainKind.RANGE:
            return None, None
        return self._shift(low, self.low, down=True), self._shift(high, self.high, down=False)

    def reach_back(self, low: Bound, high: Bound) -> tuple[Bound, Bound]:
        """The closed range of left keys that can match some right key in [low, high]."""
        if self.kind is not MainKind.RANGE:
            return None, None
        minus_high = None if self.high is None else -self.high
        minus_low = None if self.low is None else -self.low
        return self._shift(low, minus_high, down=True), self._shift(high, minus_low, down=False)

    def _shift(self, key: Bound, by: Bound, *, down: bool) -> Bound:
        if key is None or by is None:
            return None
        if not self.is_float:
            return max(INT64_MIN, min(INT64_MAX, int(key) + int(by)))
        moved = float(key) + float(by)
        if (by == 0 and not self.slack) or math.isinf(key):
            return moved
        if math.isinf(moved):
            # A finite key's partners are finite, or on this side of infinity.
            return moved if (moved < 0) == down else math.copysign(2.0**1023, moved)
        # The kernel bounds the rounded difference by the slack of both keys, and the other key is at most key + by: so twice the
        # slack, and a few roundings, each of half a unit in the last place (2**-53) of no more than this size.
        margin = (2 * self.slack + 2.0**-50) * (abs(float(key)) + abs(float(by)))
        return math.nextafter(moved - margin if down else moved + margin, -math.inf if down else math.inf)


@dataclass(frozen=True, slots=True)
class Predicate:
    """One way to evaluate a join's condition: the main predicate and what is left to check.

    ``residual``: SQL over columns qualified by stream name (``orders.id``), or None when the main predicate says it all.
    """

    main: MainPredicate
    residual: str | None = None


def hull(mains: Sequence[MainPredicate]) -> MainPredicate:
    """The narrowest band that holds all of these, which are of the same keys; of one alone, that."""
    if len(mains) == 1:
        return mains[0]
    low, low_strict = _outermost([(main.low, main.low_strict) for main in mains], least=True)
    high, high_strict = _outermost([(main.high, main.high_strict) for main in mains], least=False)
    texts = sorted({main.text for main in mains})  # whatever the order of the joins: a checkpoint is found again by it
    return replace(
        mains[0],
        low=low,
        high=high,
        low_strict=low_strict,
        high_strict=high_strict,
        slack=max(main.slack for main in mains),
        recheck=True,
        text=texts[0] if len(texts) == 1 else " OR ".join(f"({text})" for text in texts),
    )


def _outermost(bounds: Sequence[tuple[Bound, bool]], *, least: bool) -> tuple[Bound, bool]:
    known = [(value, strict) for value, strict in bounds if value is not None]
    if len(known) < len(bounds):
        return None, False
    furthest = (min if least else max)(value for value, _ in known)
    return furthest, all(strict for value, strict in known if value == furthest)
