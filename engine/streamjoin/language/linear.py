"""Exact numbers and times in linear form, and how far their values reach.

Integers, decimals, dates and timestamps are brought into the form ``sum(coefficient * atom) + constant``, where an atom is
what has no such form itself. Nothing is rounded.
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction

from streamjoin.language.render import render
from streamjoin.language.statements import UnusableError
from streamjoin.language.tree import Call, Literal, Node, Reference
from streamjoin.language.types import DATE, INSTANTS, INTEGER_BITS, MICROS_PER_DAY, DataType, TypeName, is_exact, is_point


@dataclass(frozen=True, slots=True)
class Linear:
    """sum(coefficient * atom) + constant, in exact numbers; times count in microseconds."""

    terms: tuple[tuple[Node, Fraction], ...]
    constant: Fraction

    def plus(self, other: Linear, factor: Fraction | int = 1) -> Linear:
        """self + other * factor. UnusableError where an atom cancels out."""
        terms = dict(self.terms)
        for atom, coefficient in other.terms:
            terms[atom] = terms.get(atom, Fraction(0)) + coefficient * factor
            if not terms[atom]:
                raise UnusableError(f"{render(atom)} cancels out, but where it is NULL nothing matches")
        return Linear(tuple(terms.items()), self.constant + other.constant * factor)

    def times(self, factor: Fraction | int) -> Linear:
        return _NOTHING.plus(self, Fraction(factor))


_NOTHING = Linear((), Fraction(0))


@dataclass(frozen=True, slots=True)
class Extent:
    """All values of an exact expression lie in [low, high], and have at most ``scale`` fraction digits."""

    low: Fraction
    high: Fraction
    scale: int = 0

    def plus(self, other: Extent) -> Extent:
        return Extent(self.low + other.low, self.high + other.high, max(self.scale, other.scale))

    def times(self, other: Extent) -> Extent:
        corners = [a * b for a in (self.low, self.high) for b in (other.low, other.high)]
        return Extent(min(corners), max(corners), self.scale + other.scale)

    def within(self, other: Extent) -> bool:
        return other.low <= self.low and self.high <= other.high and self.scale <= other.scale


def type_extent(t: DataType) -> Extent:
    if t.name is TypeName.DECIMAL:
        most = Fraction(10**t.precision - 1, 10**t.scale)
        return Extent(-most, most, t.scale)
    half = 1 << (31 if t == DATE else INTEGER_BITS.get(t.name, 64) - 1)
    return Extent(Fraction(-half), Fraction(half - 1))


def extent_of(node: Node) -> Extent:
    """Where the value of an exact or temporal node lies as the evaluator computes it under a comparison (without overflow)."""
    if isinstance(node, Literal):
        value = _literal_value(node)
        return Extent(value, value, node.type.scale)
    if isinstance(node, Call) and (is_exact(node.type) or node.type == DATE):
        match node.function:
            case "add" | "subtract" | "date_add" | "datediff":
                first, second = map(extent_of, node.arguments)
                return first.plus(second.times(_MINUS_ONE) if node.function in ("subtract", "datediff") else second)
            case "multiply":
                return extent_of(node.arguments[0]).times(extent_of(node.arguments[1]))
            case "negate":
                return extent_of(node.arguments[0]).times(_MINUS_ONE)
            case "abs":
                inner = extent_of(node.arguments[0])
                return Extent(Fraction(0), max(abs(inner.low), abs(inner.high)), inner.scale)
            case "modulo":
                first, second = map(extent_of, node.arguments)
                most = max(abs(first.low), abs(first.high))
                return Extent(-most, most, max(first.scale, second.scale))
    return type_extent(node.type)


_MINUS_ONE = Extent(Fraction(-1), Fraction(-1))


def _literal_value(literal: Literal) -> Fraction:
    if not isinstance(literal.value, (int, Decimal)):
        raise UnusableError("it compares with NULL")
    return Fraction(literal.value)


def linear_form(node: Node) -> Linear:  # noqa: C901
    """The linear form of an exact or temporal node."""
    if isinstance(node, Literal):
        return Linear((), _literal_value(node) * (MICROS_PER_DAY if node.type == DATE else 1))
    if isinstance(node, Call):
        arguments = node.arguments
        match node.function:
            case "add" | "date_add":
                factor = MICROS_PER_DAY if node.function == "date_add" else 1
                return linear_form(arguments[0]).plus(linear_form(arguments[1]), factor)
            case "subtract":
                return linear_form(arguments[0]).plus(linear_form(arguments[1]), -1)
            case "datediff" if all(argument.type == DATE for argument in arguments):
                return linear_form(arguments[0]).plus(linear_form(arguments[1]), -1).times(Fraction(1, MICROS_PER_DAY))
            case "negate":
                return linear_form(arguments[0]).times(-1)
            case "multiply":
                first, second = map(linear_form, arguments)
                if not first.terms or not second.terms:
                    return second.times(first.constant) if not first.terms else first.times(second.constant)
            case "cast" if node.type.name in INSTANTS and is_point(arguments[0].type):
                return linear_form(arguments[0])
            case "cast" if is_exact(node.type) and is_exact(arguments[0].type):
                if extent_of(arguments[0]).within(type_extent(node.type)):
                    return linear_form(arguments[0])
            case "unix_micros" if arguments[0].type.name in INSTANTS:
                return linear_form(_stored(arguments[0]))
            case "unix_date":
                return linear_form(_stored(arguments[0])).times(Fraction(1, MICROS_PER_DAY))
    return Linear(((node, Fraction(MICROS_PER_DAY if node.type == DATE else 1)),), Fraction(0))


def _stored(node: Node) -> Node:
    """An argument that a function reads as its type holds it: only columns are sure to be no different under a comparison."""
    if isinstance(node, (Reference, Literal)):
        return node
    raise UnusableError("it reads arithmetic on times as a number")
