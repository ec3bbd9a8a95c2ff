"""Keys of exact numbers and times: the narrowest encoding that holds a comparison of two of them.

Where a key may need more than 64 bits, it is rounded to a float64, and the bound is widened and rechecked.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from decimal import Decimal
from fractions import Fraction

from streamjoin.language.linear import Extent, extent_of, type_extent
from streamjoin.language.literals import decimal_literal, integer_literal
from streamjoin.language.predicate import INT64_MAX, INT64_MIN, Encoding, KeyExpression
from streamjoin.language.statements import LONG_DIGITS, SLACK, Band, Differ, Equal, Statement, UnusableError, band_of, float_key, key_sql
from streamjoin.language.tree import Call, Literal, Node
from streamjoin.language.types import BIGINT, DATE, INSTANTS, INT, MAX_PRECISION, TIMESTAMP, DataType, TypeName, decimal_type, is_point


@dataclass(frozen=True, slots=True)
class ExactKey:
    """A sum of whole multiples of atoms of one stream: a side of an exact comparison."""

    tree: Node
    extent: Extent
    kind: DataType | None
    """The temporal type of which it is one value as it stands, or None: it is a number."""

    @staticmethod
    def of(terms: list[tuple[Node, int]]) -> ExactKey:
        if len(terms) == 1 and is_point(terms[0][0].type) and terms[0][1] == 1:
            return ExactKey(terms[0][0], type_extent(terms[0][0].type), terms[0][0].type)
        tree: Node | None = None
        for atom, coefficient in sorted(terms, key=lambda term: term[1] < 0):
            number = _as_number(atom)
            factor = abs(coefficient)
            term = number if factor == 1 else Call("multiply", (number, _constant(Fraction(factor))), _sum_type(number))
            if tree is None:
                tree = term if coefficient > 0 else Call("negate", (term,), term.type)
            else:
                tree = Call("add" if coefficient > 0 else "subtract", (tree, term), _sum_type(tree, term))
        assert tree is not None
        return ExactKey(tree, extent_of(tree), None)

    def as_number(self) -> ExactKey:
        """The same key, of a time as the days or microseconds that it counts."""
        return self if self.kind is None else replace(self, tree=_as_number(self.tree), kind=None)

    def shifted(self, by: Fraction) -> ExactKey:
        """Plus a constant."""
        if not by:
            return self
        key = self.as_number()
        literal = _constant(abs(by))
        tree = Call("add" if by > 0 else "subtract", (key.tree, literal), _sum_type(key.tree, literal))
        return ExactKey(tree, extent_of(tree), None)


def _as_number(atom: Node) -> Node:
    if atom.type == DATE:
        return Call("unix_date", (atom,), INT)
    return Call("unix_micros", (atom,), BIGINT) if atom.type.name in INSTANTS else atom


def _constant(value: Fraction) -> Literal:
    """A number as a literal, or UnusableError where none has so many digits. Not negative."""
    scale = next((digits for digits in range(MAX_PRECISION + 1) if (value * 10**digits).denominator == 1), None)
    digits = str(int(value * 10 ** (scale or 0)))
    if scale is None or max(len(digits), scale) > MAX_PRECISION:
        raise UnusableError("its constant has too many digits for a key")
    if scale == 0:
        return integer_literal(int(value))
    return decimal_literal(Decimal((0, tuple(map(int, digits)), -scale)))


def _sum_type(*nodes: Node) -> DataType:
    """Any exact type does: keys are evaluated without overflow, whatever the type of the expression."""
    return next((node.type for node in nodes if node.type.name is TypeName.DECIMAL), BIGINT)


def exact_statement(left: ExactKey, right: ExactKey, function: str, bound: Fraction) -> Statement:
    """The statement ``right - left function bound`` in the narrowest keys that hold it."""
    if left.kind != right.kind:
        if left.kind and right.kind and {left.kind.name, right.kind.name} <= set(INSTANTS):
            left, right = replace(left, kind=TIMESTAMP), replace(right, kind=TIMESTAMP)
        else:
            left, right = left.as_number(), right.as_number()
    scale = max(left.extent.scale, right.extent.scale)
    unit = 10**scale
    whole = (bound * unit).denominator == 1
    if function == "eq" and whole:
        equal = _equality(left, right, bound, scale)
        if equal is not None:
            return equal
    if function == "ne":
        return _difference(left, right, bound, scale)
    if scale <= LONG_DIGITS:
        shifts = _shift(left.extent, unit), _shift(right.extent, unit)
        if shifts[0] is not None and shifts[1] is not None:
            left, right = left.shifted(Fraction(shifts[0], unit)), right.shifted(Fraction(shifts[1], unit))
            keys = _integer_key(left, scale), _integer_key(right, scale)
            return _integer_band(*keys, function, bound * unit, shifts[1] - shifts[0])
    try:
        limit = float(bound)
    except OverflowError:
        raise UnusableError("its constant is too large for any key") from None
    return band_of(float_key(left.as_number().tree), float_key(right.as_number().tree), function, limit).rechecked(SLACK)


def _shift(extent: Extent, unit: int) -> int | None:
    """What to add to a key so that it fits int64: 0 if it does already, and None if nothing does."""
    low, high = int(extent.low * unit), int(extent.high * unit)
    if high - low > INT64_MAX - INT64_MIN:
        return None
    return max(INT64_MIN - low, 0) + min(INT64_MAX - high, 0)


def _integer_key(key: ExactKey, scale: int) -> KeyExpression:
    type_ = key.kind or (decimal_type(LONG_DIGITS, scale) if scale else BIGINT)
    return KeyExpression((key_sql(key.tree),), (type_,), Encoding.INTEGER)


def _integer_band(left: KeyExpression, right: KeyExpression, function: str, bound: Fraction, shift: int) -> Band:
    """In whole units: strict bounds become closed ones."""
    low = {"ge": math.ceil(bound), "gt": math.floor(bound) + 1, "eq": math.ceil(bound)}.get(function)
    high = {"le": math.floor(bound), "lt": math.ceil(bound) - 1, "eq": math.floor(bound)}.get(function)
    return Band((left, right), None if low is None else low + shift, None if high is None else high + shift)


def _equality(left: ExactKey, right: ExactKey, bound: Fraction, scale: int) -> Equal | None:
    """``right = left + bound`` by hash; None where values of both sides may be too long for one type.

    A value that one side's type cannot hold equals none of the other's when those all fit: so it is enough that one
    side does.
    """
    if scale > MAX_PRECISION:
        return None
    left = left.shifted(bound)
    if left.kind != right.kind:
        left, right = left.as_number(), right.as_number()
    if right.kind is not None:
        return Equal((key_sql(left.tree), key_sql(right.tree)), right.kind)
    scale = max(scale, left.extent.scale, right.extent.scale)
    types = [BIGINT] if scale == 0 else []
    types += [decimal_type(digits, scale) for digits in (LONG_DIGITS, MAX_PRECISION) if digits >= scale]
    for type_ in types:
        holds = type_extent(type_)
        if left.extent.within(holds) or right.extent.within(holds):
            return Equal((key_sql(left.tree), key_sql(right.tree)), type_)
    return None


def _difference(left: ExactKey, right: ExactKey, bound: Fraction, scale: int) -> Differ:
    """``right != left + bound``: needs keys that tell all values apart."""
    if (bound * 10**scale).denominator != 1:
        raise UnusableError("the two sides always differ")
    left = left.shifted(bound)
    if left.kind != right.kind:
        left, right = left.as_number(), right.as_number()
    unit = 10**scale
    together = Extent(min(left.extent.low, right.extent.low), max(left.extent.high, right.extent.high))
    shift = _shift(together, unit) if scale <= LONG_DIGITS else None
    if shift is None:
        raise UnusableError("its values are too long for a key that tells them apart")
    by = Fraction(shift, unit)
    return Differ((_integer_key(left.shifted(by), scale), _integer_key(right.shifted(by), scale)))
