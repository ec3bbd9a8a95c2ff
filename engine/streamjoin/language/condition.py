"""Parses a join's ``on`` into the main predicates that could serve it, each with its residual, and chooses among them.

Each conjunct is turned into *statements* about one key a side (``predicate.MainPredicate``): equalities, and bounds of
the difference between the right key and the left. Statements about the same two keys combine into a band; all
equalities combine into one hash. A conjunct that a main predicate states exactly is dropped from its residual; any
other stays there.

Exact numbers (integers, decimals, dates and timestamps as integers) are brought into the linear form ``sum(coefficient
* atom) + constant op 0``, where an atom reads one stream. Atoms go to their stream's key and the constant becomes the
bound, so nothing is added that could overflow. Where a key may need more than 64 bits, it is rounded to a float64, and
the bound is widened and rechecked.

Floats are not reordered, for each operation rounds: a comparison is used as it is written when its sides read one
stream each, or when it bounds a difference or sum of two such sides by a constant (the rounded difference of the keys
is then the very value that is compared). One constant may move besides, at the price of a recheck.

Always holds: every candidate alone, main predicate and residual, admits exactly the pairs that satisfy ``on``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamjoin.language.errors import SqlError
from streamjoin.language.literals import integer_literal, negated
from streamjoin.language.predicate import INT64_MAX, INT64_MIN, Bound, Encoding, KeyExpression, MainKind, MainPredicate, Predicate
from streamjoin.language.render import render
from streamjoin.language.schema import Schema
from streamjoin.language.sides import LEFT, RIGHT, SIDES
from streamjoin.language.sql import parse_boolean
from streamjoin.language.tree import COMPARISONS, Call, Literal, Node, Reference, conjuncts, walk
from streamjoin.language.types import (
    BIGINT,
    BINARY,
    BOOLEAN,
    DATE,
    DOUBLE,
    INSTANTS,
    INTEGER_BITS,
    INTERVAL,
    MAX_PRECISION,
    MICROS_PER_DAY,
    STRING,
    TIMESTAMP,
    DataType,
    TypeName,
    decimal_type,
    is_exact,
    is_float,
    is_point,
)

Array = NDArray[Any]

SLACK = 2.0**-50
"""How far, relative to their size, rounded keys may be from where they belong: each is half a unit in the last place
(2**-53) off, and so are the bound and the difference; eight times that leaves room."""

_FLIPPED = {"eq": "eq", "ne": "ne", "lt": "gt", "le": "ge", "gt": "lt", "ge": "le"}
_NEGATED = {"eq": "ne", "ne": "eq", "lt": "ge", "le": "gt", "gt": "le", "ge": "lt"}
_LONG_DIGITS = 18
"""A decimal of so many digits fits an int64, unscaled."""


@dataclass(frozen=True, slots=True)
class Unmatched:
    """A conjunct that no main predicate could serve, and why."""

    conjunct: str
    reason: str


@dataclass(frozen=True, slots=True)
class Condition:
    """The ways to evaluate a join's ``on``, best static choice first; each is complete on its own. Never empty."""

    candidates: tuple[Predicate, ...]
    unmatched: tuple[Unmatched, ...] = ()


def parse_condition(on: str, streams: Sequence[tuple[str, Schema]]) -> Condition:
    """The main predicates that could serve ``on``, each with its residual. ``streams``: names and schemas, by side.

    Raises SqlError when ``on`` does not parse, is not a condition, or names what does not exist. Where nothing can
    serve, the only candidate is ALL with ``on`` as its residual, and ``unmatched`` says why for each conjunct.
    """
    names = tuple(name for name, _ in streams)
    if names[LEFT].casefold() == names[RIGHT].casefold():
        raise SqlError(f"both streams are called {names[LEFT]}", "give them different names")
    tree = parse_boolean(on, dict(streams)).tree
    parts = [part for part in conjuncts(tree) if part != Literal(True, BOOLEAN)]
    reader = _Reader(names)
    readings = [reader.conjunct(part) for part in parts]
    candidates = sorted(_candidates(parts, readings), key=_static_order)
    if not candidates:
        candidates = [Predicate(MainPredicate(MainKind.ALL), _text(parts))]
    unmatched = [
        Unmatched(render(part), reading.reason) for part, reading in zip(parts, readings, strict=True) if not any(reading.alternatives)
    ]
    return Condition(tuple(candidates), tuple(unmatched))


def _text(parts: Sequence[Node]) -> str | None:
    """The conjuncts joined by AND; None: there are none."""
    if not parts:
        return None
    return render(parts[0] if len(parts) == 1 else Call("and", tuple(parts), BOOLEAN))


@dataclass(frozen=True, slots=True)
class _Band:
    """low <= right key - left key <= high."""

    keys: tuple[KeyExpression, ...]
    low: Bound = None
    high: Bound = None
    low_strict: bool = False
    high_strict: bool = False
    slack: float = 0.0
    exact: bool = True
    """Whether it holds just when the comparison does, so that the comparison need not be checked again."""

    def and_(self, other: _Band) -> _Band:
        """Both, about the same keys."""
        low, low_strict = _tighter((self.low, self.low_strict), (other.low, other.low_strict), upper=False)
        high, high_strict = _tighter((self.high, self.high_strict), (other.high, other.high_strict), upper=True)
        exact = self.exact and other.exact
        return replace(self, low=low, high=high, low_strict=low_strict, high_strict=high_strict, exact=exact)


def _tighter(first: tuple[Bound, bool], second: tuple[Bound, bool], *, upper: bool) -> tuple[Bound, bool]:
    if first[0] is None or second[0] is None:
        return second if first[0] is None else first
    if first[0] == second[0]:
        return first[0], first[1] or second[1]
    return min(first, second) if upper else max(first, second)


@dataclass(frozen=True, slots=True)
class _Equal:
    """The two keys are equal: one part of the hash."""

    sql: tuple[str, ...]
    """The keys' expressions, by side."""
    type: DataType

    @property
    def exact(self) -> bool:
        """Whether equal hashes of this part alone mean equal values."""
        return self.type.name not in (TypeName.STRING, TypeName.BINARY) and self.type.precision <= _LONG_DIGITS


@dataclass(frozen=True, slots=True)
class _Differ:
    """The two keys differ."""

    keys: tuple[KeyExpression, ...]


_Statement = _Band | _Equal | _Differ


@dataclass(slots=True)
class _Reading:
    """What a conjunct says about keys.

    ``alternatives``: each a list of statements that follow from the conjunct; where ``complete``, those of the first
    together also imply it.
    """

    alternatives: list[list[_Statement]] = field(default_factory=list)
    complete: bool = True
    reason: str = ""


class _UnusableError(Exception):
    """No statement about one key a side follows from a comparison; the message says why."""


def _candidates(parts: Sequence[Node], readings: Sequence[_Reading]) -> Iterator[Predicate]:
    """One per hash, pair of keys in bands, and pair of keys that differ."""
    equals: dict[int, list[_Equal]] = {}
    bands: dict[tuple[tuple[KeyExpression, ...], float], dict[int, list[_Band]]] = {}
    for index, reading in enumerate(readings):
        for statement in (statement for alternative in reading.alternatives for statement in alternative):
            if isinstance(statement, _Equal):
                equals.setdefault(index, []).append(statement)
            elif isinstance(statement, _Band):
                group = bands.setdefault((statement.keys, statement.slack), {})
                group.setdefault(index, []).append(statement)
            else:
                main = MainPredicate(MainKind.NOT_EQUAL, statement.keys)
                yield _predicate(main, parts, [index], [index])
    if equals:
        distinct = tuple(dict.fromkeys(statement for group in equals.values() for statement in group))
        main = MainPredicate(
            MainKind.RANGE,
            tuple(
                KeyExpression(tuple(s.sql[side] for s in distinct), tuple(s.type for s in distinct), Encoding.HASH) for side in SIDES
            ),
            low=0,
            high=0,
        )
        stated = list(equals) if len(distinct) == 1 and distinct[0].exact else []
        yield _predicate(main, parts, list(equals), stated)
    for group in bands.values():
        together = None
        for band in (band for members in group.values() for band in members):
            together = band if together is None else together.and_(band)
        assert together is not None
        stated = [
            index
            for index, members in group.items()
            if readings[index].complete and all(band.exact for band in members) and set(readings[index].alternatives[0]) <= set(members)
        ]
        main = MainPredicate(
            MainKind.RANGE,
            together.keys,
            together.low,
            together.high,
            together.low_strict,
            together.high_strict,
            together.slack,
        )
        one_sided = together.low is None or together.high is None
        if together.slack and one_sided and all(_has_better(readings[index]) for index in group):
            continue
        yield _predicate(main, parts, list(group), stated)


def _has_better(reading: _Reading) -> bool:
    """Whether an exact bound serves in place of one with slack."""
    return any(isinstance(statement, _Band) and not statement.slack for statement in reading.alternatives[0])


def _predicate(main: MainPredicate, parts: Sequence[Node], used: Sequence[int], stated: Sequence[int]) -> Predicate:
    """The main predicate, made from the conjuncts ``used``, of which it states some exactly; with all others as the residual."""
    text = _text([parts[index] for index in used]) or ""
    residual = _text([part for index, part in enumerate(parts) if index not in stated])
    return Predicate(replace(main, text=text, recheck=len(stated) < len(used)), residual)


def _static_order(predicate: Predicate) -> tuple[int, bool]:
    """Equality first, then bands, then open ranges, then !=; of each kind those that need no recheck first."""
    main = predicate.main
    if main.kind is MainKind.NOT_EQUAL:
        rank = 3
    elif main.is_equality:
        rank = 0
    else:
        rank = 1 if main.low is not None and main.high is not None else 2
    return rank, main.recheck


@dataclass(frozen=True, slots=True)
class _Linear:
    """sum(coefficient * atom) + constant, in exact numbers; times count in microseconds."""

    terms: tuple[tuple[Node, Fraction], ...]
    constant: Fraction

    def plus(self, other: _Linear, factor: Fraction | int = 1) -> _Linear:
        terms = dict(self.terms)
        for atom, coefficient in other.terms:
            terms[atom] = terms.get(atom, Fraction(0)) + coefficient * factor
            if not terms[atom]:
                raise _UnusableError(f"{render(atom)} cancels out, but where it is NULL nothing matches")
        return _Linear(tuple(terms.items()), self.constant + other.constant * factor)

    def times(self, factor: Fraction | int) -> _Linear:
        return _NOTHING.plus(self, Fraction(factor))


_NOTHING = _Linear((), Fraction(0))


@dataclass(frozen=True, slots=True)
class _Extent:
    """All values of an exact expression lie in [low, high], and have at most ``scale`` fraction digits."""

    low: Fraction
    high: Fraction
    scale: int = 0

    def plus(self, other: _Extent) -> _Extent:
        return _Extent(self.low + other.low, self.high + other.high, max(self.scale, other.scale))

    def times(self, other: _Extent) -> _Extent:
        corners = [a * b for a in (self.low, self.high) for b in (other.low, other.high)]
        return _Extent(min(corners), max(corners), self.scale + other.scale)

    def within(self, other: _Extent) -> bool:
        return other.low <= self.low and self.high <= other.high and self.scale <= other.scale


def _type_extent(t: DataType) -> _Extent:
    if t.name is TypeName.DECIMAL:
        most = Fraction(10**t.precision - 1, 10**t.scale)
        return _Extent(-most, most, t.scale)
    half = 1 << (31 if t == DATE else INTEGER_BITS.get(t.name, 64) - 1)
    return _Extent(Fraction(-half), Fraction(half - 1))


def _extent(node: Node) -> _Extent:
    """Where the value of an exact or temporal node lies as the evaluator computes it under a comparison (without overflow)."""
    if isinstance(node, Literal):
        value = _literal_value(node)
        return _Extent(value, value, node.type.scale)
    if isinstance(node, Call) and (is_exact(node.type) or node.type == DATE):
        match node.function:
            case "add" | "subtract" | "date_add" | "datediff":
                first, second = map(_extent, node.arguments)
                return first.plus(second.times(_MINUS_ONE) if node.function in ("subtract", "datediff") else second)
            case "multiply":
                return _extent(node.arguments[0]).times(_extent(node.arguments[1]))
            case "negate":
                return _extent(node.arguments[0]).times(_MINUS_ONE)
            case "abs":
                inner = _extent(node.arguments[0])
                return _Extent(Fraction(0), max(abs(inner.low), abs(inner.high)), inner.scale)
            case "modulo":
                first, second = map(_extent, node.arguments)
                most = max(abs(first.low), abs(first.high))
                return _Extent(-most, most, max(first.scale, second.scale))
    return _type_extent(node.type)


_MINUS_ONE = _Extent(Fraction(-1), Fraction(-1))


def _literal_value(literal: Literal) -> Fraction:
    if not isinstance(literal.value, (int, Decimal)):
        raise _UnusableError("it compares with NULL")
    return Fraction(literal.value)


def _linear(node: Node) -> _Linear:
    """The linear form of an exact or temporal node."""
    if isinstance(node, Literal):
        return _Linear((), _literal_value(node) * (MICROS_PER_DAY if node.type == DATE else 1))
    if isinstance(node, Call):
        arguments = node.arguments
        match node.function:
            case "add" | "date_add":
                factor = MICROS_PER_DAY if node.function == "date_add" else 1
                return _linear(arguments[0]).plus(_linear(arguments[1]), factor)
            case "subtract":
                return _linear(arguments[0]).plus(_linear(arguments[1]), -1)
            case "datediff" if all(argument.type == DATE for argument in arguments):
                return _linear(arguments[0]).plus(_linear(arguments[1]), -1).times(Fraction(1, MICROS_PER_DAY))
            case "negate":
                return _linear(arguments[0]).times(-1)
            case "multiply":
                first, second = map(_linear, arguments)
                if not first.terms or not second.terms:
                    return second.times(first.constant) if not first.terms else first.times(second.constant)
            case "cast" if node.type.name in INSTANTS and is_point(arguments[0].type):
                return _linear(arguments[0])
            case "cast" if is_exact(node.type) and is_exact(arguments[0].type):
                if _extent(arguments[0]).within(_type_extent(node.type)):
                    return _linear(arguments[0])
            case "unix_micros" if arguments[0].type.name in INSTANTS:
                return _linear(_stored(arguments[0]))
            case "unix_date":
                return _linear(_stored(arguments[0])).times(Fraction(1, MICROS_PER_DAY))
    return _Linear(((node, Fraction(MICROS_PER_DAY if node.type == DATE else 1)),), Fraction(0))


def _stored(node: Node) -> Node:
    """An argument that a function reads as its type holds it: only columns are sure to be no different under a comparison."""
    if isinstance(node, (Reference, Literal)):
        return node
    raise _UnusableError("it reads arithmetic on times as a number")


class _Reader:
    """Turns conjuncts into statements about keys."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self._names = names

    def conjunct(self, part: Node) -> _Reading:
        reading = _Reading()
        try:
            comparisons = self._comparisons(part)
        except _UnusableError as problem:
            return _Reading(reason=str(problem))
        exact: list[_Statement] = []
        for function, first, second in comparisons:
            statement = None
            try:
                if self._streams(first, second) != set(self._names):
                    raise _UnusableError("it does not compare the two streams")
                statement = self._statement(function, first, second)
                exact.append(statement)
            except _UnusableError as problem:
                reading.complete, reading.reason = False, str(problem)
            if statement is None or (isinstance(statement, _Band) and not statement.low and not statement.high):
                reading.alternatives += [[band] for band in self._moved(function, first, second)]
        if exact:
            reading.alternatives.insert(0, exact)
        else:
            reading.complete = False
        return reading

    def _streams(self, *nodes: Node) -> set[str]:
        return {part.stream for node in nodes for part in walk(node) if isinstance(part, Reference)}

    def _side(self, node: Node) -> int | None:
        """0: it reads the left stream alone, 1: the right alone, None: both or neither."""
        streams = self._streams(node)
        return self._names.index(streams.pop()) if len(streams) == 1 else None

    def _comparisons(self, part: Node) -> list[tuple[str, Node, Node]]:
        """The comparisons that together are the conjunct."""
        if len(self._streams(part)) < 2:
            raise _UnusableError("it does not compare the two streams")
        function = part.function if isinstance(part, Call) else ""
        if not isinstance(part, Call) or function not in COMPARISONS | {"between", "not"}:
            raise _UnusableError(
                {"or": "a disjunction has no single key", "in": "a list has no single key"}.get(function, "it is no comparison")
            )
        if function == "same":
            raise _UnusableError("<=> matches nulls, which have no key")
        if function == "between":
            middle, low, high = part.arguments
            return self._without_abs("ge", middle, low) + self._without_abs("le", middle, high)
        if function == "not":
            inner = part.arguments[0]
            if isinstance(inner, Call) and inner.function in _NEGATED and not any(is_float(a.type) for a in inner.arguments):
                return self._without_abs(_NEGATED[inner.function], *inner.arguments)
            raise _UnusableError("NOT of this has no key")
        return self._without_abs(function, *part.arguments)

    def _without_abs(self, function: str, first: Node, second: Node) -> list[tuple[str, Node, Node]]:
        """``abs(x) <= c`` as -c <= x and x <= c; what else there may be as it is."""
        if isinstance(second, Call) and second.function == "abs" and function in ("gt", "ge"):
            return self._without_abs(_FLIPPED[function], second, first)
        if isinstance(first, Call) and first.function == "abs" and function in ("lt", "le"):
            inner = first.arguments[0]
            return [(function, inner, second), (_FLIPPED[function], inner, negated(second))]
        return [(function, first, second)]

    def _statement(self, function: str, first: Node, second: Node) -> _Statement:
        types = (first.type, second.type)
        if types[0] in (STRING, BINARY, BOOLEAN):
            return self._of_plain_values(function, first, second)
        if any(is_float(t) for t in types):
            return self._of_floats(function, first, second)
        return self._of_exact_numbers(function, first, second)

    def _separated(self, function: str, first: Node, second: Node) -> tuple[str, Node, Node]:
        """The comparison with the left stream's side first."""
        sides = (self._side(first), self._side(second))
        if sides == (0, 1):
            return function, first, second
        if sides == (1, 0):
            return _FLIPPED[function], second, first
        raise _UnusableError("one side of it reads both streams")

    def _of_plain_values(self, function: str, first: Node, second: Node) -> _Statement:
        function, left, right = self._separated(function, first, second)
        if function == "eq":
            return _Equal((_sql(left), _sql(right)), left.type)
        if function == "ne" or left.type == BOOLEAN:
            raise _UnusableError(f"no key tells values of type {left.type} apart and orders them")
        first_key, second_key = (KeyExpression((_sql(node),), (node.type,), Encoding.PREFIX) for node in (left, right))
        return replace(_band(first_key, second_key, _FLIPPED[function], 0), low_strict=False, high_strict=False, exact=False)

    def _of_floats(self, function: str, first: Node, second: Node) -> _Statement:
        try:
            function, left, right = self._separated(function, first, second)
        except _UnusableError:
            return self._of_float_difference(function, first, second)
        if function == "eq":
            return _Equal((_sql(left), _sql(right)), DOUBLE)
        keys = _float_key(left), _float_key(right)
        return _Differ(keys) if function == "ne" else _band(*keys, _FLIPPED[function], 0.0)

    def _of_float_difference(self, function: str, first: Node, second: Node) -> _Band:
        """A difference, or a sum, of the two streams' values against a constant.

        The kernel subtracts the keys as the expression does, with the same rounding. Only against zero does it compare
        them instead, which differs where both are infinite.
        """
        if isinstance(first, Literal):
            function, first, second = _FLIPPED[function], second, first
        if not (isinstance(second, Literal) and isinstance(first, Call) and first.type == DOUBLE):
            raise _UnusableError("one side of it reads both streams and the other is no constant")
        if first.function not in ("add", "subtract") or None in (sides := [self._side(part) for part in first.arguments]):
            raise _UnusableError("it is no difference of the two streams' values")
        if function in ("eq", "ne"):
            raise _UnusableError("a rounded difference that equals a constant has no key")
        bound = _float_constant(second)
        left, right = first.arguments if sides == [0, 1] else reversed(first.arguments)
        if first.function == "add" or sides == [0, 1]:
            # left + right <= c is -right - left >= -c, and left - right <= c is right - left >= -c.
            function, bound = _FLIPPED[function], 0.0 - bound
            right = negated(right) if first.function == "add" else right
        band = _band(_float_key(left), _float_key(right), function, bound)
        return replace(band, exact=bound != 0)

    def _moved(self, function: str, first: Node, second: Node) -> Iterator[_Band]:
        """For floats: the comparison with its one constant made the bound, where each stream has but one term; near, not exact.

        So ``a >= b - 5 AND a <= b + 5`` is one band. Rounding moves the sums by less than the slack: their terms are
        no larger than the keys or the constant, and a pair that is near the bound has keys at least as large as that
        constant together.
        """
        if not any(is_float(node.type) for node in (first, second)) or function in ("eq", "ne"):
            return
        keys: dict[int, list[tuple[Node, int]]] = {0: [], 1: []}
        constants: list[float] = []
        stack = [(first, 1), (second, -1)]
        while stack:
            node, sign = stack.pop()
            side = self._side(node)
            if isinstance(node, Literal) and node.value is not None:
                constants.append(sign * _float_constant(node))
            elif isinstance(node, Call) and node.function in ("add", "subtract"):
                stack += [(node.arguments[0], sign), (node.arguments[1], sign if node.function == "add" else -sign)]
            elif isinstance(node, Call) and node.function == "negate":
                stack.append((node.arguments[0], -sign))
            elif side is None:
                return
            else:
                keys[side].append((node, sign))
        constants = [constant for constant in constants if constant]
        if len(constants) != 1 or len(keys[0]) != 1 or len(keys[1]) != 1:
            return
        (left, left_sign), (right, right_sign) = keys[0][0], keys[1][0]
        # left_sign * left + right_sign * right + constant op 0, turned so that the left key is subtracted.
        if left_sign == 1:
            right_sign, function, constants = -right_sign, _FLIPPED[function], [-constants[0]]
        right = right if right_sign == 1 else negated(right)
        band = _band(_float_key(left), _float_key(right), function, -constants[0])
        yield replace(band, low_strict=False, high_strict=False, slack=SLACK, exact=False)

    def _of_exact_numbers(self, function: str, first: Node, second: Node) -> _Statement:
        form = _linear(first).plus(_linear(second), -1)
        sides: tuple[list[tuple[Node, Fraction]], list[tuple[Node, Fraction]]] = ([], [])
        for atom, coefficient in sorted(form.terms, key=lambda term: render(term[0])):
            side = self._side(atom)
            if side is None:
                raise _UnusableError(f"{render(atom)} reads both streams")
            if atom.type == INTERVAL:
                raise _UnusableError(f"{render(atom)} is an INTERVAL that has no key")
            sides[side].append((atom, coefficient))
        if not (sides[0] and sides[1]):
            raise _UnusableError("it does not compare the two streams")
        # Whole coefficients without a common factor, the right's first positive: so equal keys are written equally.
        coefficients = [coefficient for _, coefficient in form.terms]
        unit = Fraction(math.gcd(*(c.numerator for c in coefficients)), math.lcm(*(c.denominator for c in coefficients)))
        if sides[1][0][1] < 0:
            unit, function = -unit, _FLIPPED[function]
        left, right = (
            _Key.of([(atom, int(coefficient / unit) * sign) for atom, coefficient in side])
            for side, sign in zip(sides, (-1, 1), strict=True)
        )
        return _about(left, right, function, -form.constant / unit)


@dataclass(frozen=True, slots=True)
class _Key:
    """A sum of whole multiples of atoms of one stream: a side of an exact comparison."""

    tree: Node
    extent: _Extent
    kind: DataType | None
    """The temporal type of which it is one value as it stands, or None: it is a number."""

    @staticmethod
    def of(terms: list[tuple[Node, int]]) -> _Key:
        if len(terms) == 1 and is_point(terms[0][0].type) and terms[0][1] == 1:
            return _Key(terms[0][0], _type_extent(terms[0][0].type), terms[0][0].type)
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
        return _Key(tree, _extent(tree), None)

    def as_number(self) -> _Key:
        return self if self.kind is None else replace(self, tree=_as_number(self.tree), kind=None)

    def shifted(self, by: Fraction) -> _Key:
        """Plus a constant."""
        if not by:
            return self
        key = self.as_number()
        literal = _constant(abs(by))
        tree = Call("add" if by > 0 else "subtract", (key.tree, literal), _sum_type(key.tree, literal))
        return _Key(tree, _extent(tree), None)


def _as_number(atom: Node) -> Node:
    if atom.type == DATE:
        return Call("unix_date", (atom,), DataType(TypeName.INT))
    return Call("unix_micros", (atom,), BIGINT) if atom.type.name in INSTANTS else atom


def _constant(value: Fraction) -> Literal:
    """A number as a literal, or _UnusableError where none has so many digits. Not negative."""
    scale = next((digits for digits in range(MAX_PRECISION + 1) if (value * 10**digits).denominator == 1), None)
    digits = str(int(value * 10 ** (scale or 0)))
    if scale is None or max(len(digits), scale) > MAX_PRECISION:
        raise _UnusableError("its constant has too many digits for a key")
    if scale == 0:
        return integer_literal(int(value))
    return Literal(Decimal((0, tuple(map(int, digits)), -scale)), decimal_type(max(len(digits), scale), scale))


def _sum_type(*nodes: Node) -> DataType:
    """Any exact type does: keys are evaluated without overflow, whatever the type of the expression."""
    return next((node.type for node in nodes if node.type.name is TypeName.DECIMAL), BIGINT)


def _about(left: _Key, right: _Key, function: str, bound: Fraction) -> _Statement:
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
    if scale <= _LONG_DIGITS:
        shifts = _shift(left.extent, unit), _shift(right.extent, unit)
        if shifts[0] is not None and shifts[1] is not None:
            left, right = left.shifted(Fraction(shifts[0], unit)), right.shifted(Fraction(shifts[1], unit))
            keys = _integer_key(left, scale), _integer_key(right, scale)
            return _integer_band(*keys, function, bound * unit, shifts[1] - shifts[0])
    try:
        limit = float(bound)
    except OverflowError:
        raise _UnusableError("its constant is too large for any key") from None
    band = _band(_float_key(left.as_number().tree), _float_key(right.as_number().tree), function, limit)
    return replace(band, low_strict=False, high_strict=False, slack=SLACK, exact=False)


def _shift(extent: _Extent, unit: int) -> int | None:
    """What to add to a key so that it fits int64: 0 if it does already, and None if nothing does."""
    low, high = int(extent.low * unit), int(extent.high * unit)
    if high - low > INT64_MAX - INT64_MIN:
        return None
    return max(INT64_MIN - low, 0) + min(INT64_MAX - high, 0)


def _integer_key(key: _Key, scale: int) -> KeyExpression:
    type_ = key.kind or (decimal_type(_LONG_DIGITS, scale) if scale else BIGINT)
    return KeyExpression((_sql(key.tree),), (type_,), Encoding.INTEGER)


def _integer_band(left: KeyExpression, right: KeyExpression, function: str, bound: Fraction, shift: int) -> _Band:
    """In whole units: strict bounds become closed ones."""
    low = {"ge": math.ceil(bound), "gt": math.floor(bound) + 1, "eq": math.ceil(bound)}.get(function)
    high = {"le": math.floor(bound), "lt": math.ceil(bound) - 1, "eq": math.floor(bound)}.get(function)
    return _Band((left, right), None if low is None else low + shift, None if high is None else high + shift)


def _equality(left: _Key, right: _Key, bound: Fraction, scale: int) -> _Equal | None:
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
        return _Equal((_sql(left.tree), _sql(right.tree)), right.kind)
    scale = max(scale, left.extent.scale, right.extent.scale)
    types = [BIGINT] if scale == 0 else []
    types += [decimal_type(digits, scale) for digits in (_LONG_DIGITS, MAX_PRECISION) if digits >= scale]
    for type_ in types:
        holds = _type_extent(type_)
        if left.extent.within(holds) or right.extent.within(holds):
            return _Equal((_sql(left.tree), _sql(right.tree)), type_)
    return None


def _difference(left: _Key, right: _Key, bound: Fraction, scale: int) -> _Differ:
    """``right != left + bound``: needs keys that tell all values apart."""
    if (bound * 10**scale).denominator != 1:
        raise _UnusableError("the two sides always differ")
    left = left.shifted(bound)
    if left.kind != right.kind:
        left, right = left.as_number(), right.as_number()
    unit = 10**scale
    together = _Extent(min(left.extent.low, right.extent.low), max(left.extent.high, right.extent.high))
    shift = _shift(together, unit) if scale <= _LONG_DIGITS else None
    if shift is None:
        raise _UnusableError("its values are too long for a key that tells them apart")
    by = Fraction(shift, unit)
    return _Differ((_integer_key(left.shifted(by), scale), _integer_key(right.shifted(by), scale)))


def _band(left: KeyExpression, right: KeyExpression, function: str, bound: Bound) -> _Band:
    """``right - left function bound``."""
    low = bound if function in ("ge", "gt", "eq") else None
    high = bound if function in ("le", "lt", "eq") else None
    return _Band((left, right), low, high, low_strict=function == "gt", high_strict=function == "lt")


def _float_key(node: Node) -> KeyExpression:
    return KeyExpression((_sql(node),), (DOUBLE,), Encoding.FLOAT)


def _float_constant(literal: Literal) -> float:
    if literal.value is None:
        raise _UnusableError("it compares with NULL")
    return float(literal.value)


def _sql(node: Node) -> str:
    return render(node, qualified=False)


_PROBE_COST = 1.0
"""Of finding one candidate pair by its keys; the unit of the costs."""
_RESIDUAL_COST = 8.0
"""Of taking a candidate's columns and evaluating the residual on them."""


def choose(condition: Condition, keys: Sequence[Sequence[Array]]) -> Predicate:
    """The candidate that is expected to cost least, by samples of both streams; among equals the first.

    ``keys`` has for each side and candidate the valid encoded keys of the sampled tuples (nothing for ALL). The cost is the
    pairs that the main predicate admits, each dearer where a residual remains. O(n log n) for samples of n.
    """
    costs = [
        _admitted(predicate.main, left, right) * (_PROBE_COST + (_RESIDUAL_COST if predicate.residual else 0.0))
        for predicate, left, right in zip(condition.candidates, *keys, strict=True)
    ]
    return condition.candidates[costs.index(min(costs))]


def _admitted(main: MainPredicate, left: Array, right: Array) -> int:
    """How many pairs of the sampled keys the main predicate admits (float bounds taken as closed)."""
    if main.kind is MainKind.ALL:
        return len(left) * len(right)
    ordered = np.sort(right)
    low, high = main.low, main.high
    if main.kind is MainKind.NOT_EQUAL:
        low = high = 0
    begins = 0 if low is None else np.searchsorted(ordered, _moved_by(left, low), "left")
    ends = len(right) if high is None else np.searchsorted(ordered, _moved_by(left, high), "right")
    inside = int(np.maximum(np.broadcast_to(ends - begins, left.shape), 0).sum())
    return len(left) * len(right) - inside if main.kind is MainKind.NOT_EQUAL else inside


def _moved_by(keys: Array, by: int | float) -> Array:
    """keys + by, held at the ends of int64 where it would leave them."""
    if keys.dtype.kind == "f":
        return keys + float(by)
    step = max(INT64_MIN, min(INT64_MAX, int(by)))
    moved = keys + np.int64(step)
    return np.where(moved < keys, INT64_MAX, moved) if step > 0 else np.where(moved > keys, INT64_MIN, moved)
