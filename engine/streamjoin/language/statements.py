"""Statements about one key a side, which follow from a conjunct: equalities, differences, and bounds of right key less left."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from streamjoin.language.predicate import Bound, Encoding, KeyExpression
from streamjoin.language.render import render
from streamjoin.language.tree import Node
from streamjoin.language.types import DOUBLE, DataType, TypeName

SLACK = 2.0**-50
"""How far, relative to their size, rounded keys may be from where they belong: each is half a unit in the last place
(2**-53) off, and so are the bound and the difference; eight times that leaves room."""
LONG_DIGITS = 18
"""A decimal of so many digits fits an int64, unscaled."""


@dataclass(frozen=True, slots=True)
class Band:
    """low <= right key - left key <= high."""

    keys: tuple[KeyExpression, ...]
    low: Bound = None
    high: Bound = None
    low_strict: bool = False
    high_strict: bool = False
    slack: float = 0.0
    exact: bool = True
    """Whether it holds just when the comparison does, so that the comparison need not be checked again."""

    def and_(self, other: Band) -> Band:
        """Both, about the same keys."""
        low, low_strict = _tighter((self.low, self.low_strict), (other.low, other.low_strict), upper=False)
        high, high_strict = _tighter((self.high, self.high_strict), (other.high, other.high_strict), upper=True)
        exact = self.exact and other.exact
        return replace(self, low=low, high=high, low_strict=low_strict, high_strict=high_strict, exact=exact)

    def rechecked(self, slack: float = 0.0) -> Band:
        """A band of candidates: its bounds closed and widened by the slack, the comparison to be checked again."""
        return replace(self, low_strict=False, high_strict=False, slack=slack, exact=False)


def _tighter(first: tuple[Bound, bool], second: tuple[Bound, bool], *, upper: bool) -> tuple[Bound, bool]:
    if first[0] is None or second[0] is None:
        return second if first[0] is None else first
    if first[0] == second[0]:
        return first[0], first[1] or second[1]
    return min(first, second) if upper else max(first, second)


@dataclass(frozen=True, slots=True)
class Equal:
    """The two keys are equal: one part of the hash."""

    sql: tuple[str, ...]
    """The keys' expressions, by side."""
    type: DataType

    @property
    def exact(self) -> bool:
        """Whether equal hashes of this part alone mean equal values."""
        return self.type.name not in (TypeName.STRING, TypeName.BINARY) and self.type.precision <= LONG_DIGITS


@dataclass(frozen=True, slots=True)
class Differ:
    """The two keys differ."""

    keys: tuple[KeyExpression, ...]


Statement = Band | Equal | Differ


@dataclass(slots=True)
class Reading:
    """What a conjunct says about keys.

    ``alternatives``: each a list of statements that follow from the conjunct; where ``complete``, those of the first
    together also imply it.
    """

    alternatives: list[list[Statement]] = field(default_factory=list)
    complete: bool = True
    reason: str = ""


class UnusableError(Exception):
    """No statement about one key a side follows from a comparison; the message says why."""


def band_of(left: KeyExpression, right: KeyExpression, function: str, bound: Bound) -> Band:
    """``right - left function bound``."""
    low = bound if function in ("ge", "gt", "eq") else None
    high = bound if function in ("le", "lt", "eq") else None
    return Band((left, right), low, high, low_strict=function == "gt", high_strict=function == "lt")


def float_key(node: Node) -> KeyExpression:
    """The value as a float64."""
    return KeyExpression((key_sql(node),), (DOUBLE,), Encoding.FLOAT)


def key_sql(node: Node) -> str:
    """A key's expression, over the columns of its own stream."""
    return render(node, qualified=False)
