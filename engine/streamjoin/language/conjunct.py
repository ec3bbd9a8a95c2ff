"""Turns a conjunct of a join's condition into the statements about keys that follow from it.

Exact numbers are brought into the linear form ``sum(coefficient * atom) + constant op 0``, where an atom reads one stream.
Atoms go to their stream's key and the constant becomes the bound, so nothing is added that could overflow.

Floats are not reordered, for each operation rounds: a comparison is used as it is written when its sides read one
stream each, or when it bounds a difference or sum of two such sides by a constant (the rounded difference of the keys
is then the very value that is compared). One constant may move besides, at the price of a recheck.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction

from streamjoin.language.exact_keys import ExactKey, exact_statement
from streamjoin.language.linear import linear_form
from streamjoin.language.literals import negated
from streamjoin.language.predicate import Encoding, KeyExpression
from streamjoin.language.render import render
from streamjoin.language.statements import SLACK, Band, Differ, Equal, Reading, Statement, UnusableError, band_of, float_key, key_sql
from streamjoin.language.tree import COMPARISONS, Call, Literal, Node, streams_read
from streamjoin.language.types import BINARY, BOOLEAN, DOUBLE, INTERVAL, STRING, is_float

_FLIPPED = {"eq": "eq", "ne": "ne", "lt": "gt", "le": "ge", "gt": "lt", "ge": "le"}
_NEGATED = {"eq": "ne", "ne": "eq", "lt": "ge", "le": "gt", "gt": "le", "ge": "lt"}


class ConjunctReader:
    """Turns conjuncts into statements about keys."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self._names = names

    def conjunct(self, part: Node) -> Reading:
        """The statements that follow from one conjunct."""
        reading = Reading()
        try:
            comparisons = self._comparisons(part)
        except UnusableError as problem:
            return Reading(reason=str(problem))
        exact: list[Statement] = []
        for function, first, second in comparisons:
            statement = None
            try:
                if streams_read(first, second) != set(self._names):
                    raise UnusableError("it does not compare the two streams")
                statement = self._statement(function, first, second)
                exact.append(statement)
            except UnusableError as problem:
                reading.complete, reading.reason = False, str(problem)
            if statement is None or (isinstance(statement, Band) and not statement.low and not statement.high):
                reading.alternatives += [[band] for band in self._moved(function, first, second)]
        if exact:
            reading.alternatives.insert(0, exact)
        else:
            reading.complete = False
        return reading

    def _side(self, node: Node) -> int | None:
        """0: it reads the left stream alone, 1: the right alone, None: both or neither."""
        streams = streams_read(node)
        return self._names.index(streams.pop()) if len(streams) == 1 else None

    def _comparisons(self, part: Node) -> list[tuple[str, Node, Node]]:
        """The comparisons that together are the conjunct."""
        if len(streams_read(part)) < 2:
            raise UnusableError("it does not compare the two streams")
        function = part.function if isinstance(part, Call) else ""
        if not isinstance(part, Call) or function not in COMPARISONS | {"between", "not"}:
            raise UnusableError(
                {"or": "a disjunction has no single key", "in": "a list has no single key"}.get(function, "it is no comparison")
            )
        if function == "same":
            raise UnusableError("<=> matches nulls, which have no key")
        if function == "between":
            middle, low, high = part.arguments
            return self._without_abs("ge", middle, low) + self._without_abs("le", middle, high)
        if function == "not":
            inner = part.arguments[0]
            if isinstance(inner, Call) and inner.function in _NEGATED and not any(is_float(a.type) for a in inner.arguments):
                return self._without_abs(_NEGATED[inner.function], *inner.arguments)
            raise UnusableError("NOT of this has no key")
        return self._without_abs(function, *part.arguments)

    def _without_abs(self, function: str, first: Node, second: Node) -> list[tuple[str, Node, Node]]:
        """``abs(x) <= c`` as -c <= x and x <= c; what else there may be as it is."""
        if isinstance(second, Call) and second.function == "abs" and function in ("gt", "ge"):
            return self._without_abs(_FLIPPED[function], second, first)
        if isinstance(first, Call) and first.function == "abs" and function in ("lt", "le"):
            inner = first.arguments[0]
            return [(function, inner, second), (_FLIPPED[function], inner, negated(second))]
        return [(function, first, second)]

    def _statement(self, function: str, first: Node, second: Node) -> Statement:
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
        raise UnusableError("one side of it reads both streams")

    def _of_plain_values(self, function: str, first: Node, second: Node) -> Statement:
        function, left, right = self._separated(function, first, second)
        if function == "eq":
            return Equal((key_sql(left), key_sql(right)), left.type)
        if function == "ne" or left.type == BOOLEAN:
            raise UnusableError(f"no key tells values of type {left.type} apart and orders them")
        first_key, second_key = (KeyExpression((key_sql(node),), (node.type,), Encoding.PREFIX) for node in (left, right))
        return band_of(first_key, second_key, _FLIPPED[function], 0).rechecked()

    def _of_floats(self, function: str, first: Node, second: Node) -> Statement:
        try:
            function, left, right = self._separated(function, first, second)
        except UnusableError:
            return self._of_float_difference(function, first, second)
        if function == "eq":
            return Equal((key_sql(left), key_sql(right)), DOUBLE)
        keys = float_key(left), float_key(right)
        return Differ(keys) if function == "ne" else band_of(*keys, _FLIPPED[function], 0.0)

    def _of_float_difference(self, function: str, first: Node, second: Node) -> Band:
        """A difference, or a sum, of the two streams' values against a constant.

        The kernel subtracts the keys as the expression does, with the same rounding. Only against zero does it compare
        them instead, which differs where both are infinite.
        """
        if isinstance(first, Literal):
            function, first, second = _FLIPPED[function], second, first
        if not (isinstance(second, Literal) and isinstance(first, Call) and first.type == DOUBLE):
            raise UnusableError("one side of it reads both streams and the other is no constant")
        if first.function not in ("add", "subtract") or None in (sides := [self._side(part) for part in first.arguments]):
            raise UnusableError("it is no difference of the two streams' values")
        if function in ("eq", "ne"):
            raise UnusableError("a rounded difference that equals a constant has no key")
        bound = _float_constant(second)
        left, right = first.arguments if sides == [0, 1] else reversed(first.arguments)
        if first.function == "add" or sides == [0, 1]:
            # left + right <= c is -right - left >= -c, and left - right <= c is right - left >= -c.
            function, bound = _FLIPPED[function], 0.0 - bound
            right = negated(right) if first.function == "add" else right
        band = band_of(float_key(left), float_key(right), function, bound)
        return replace(band, exact=bound != 0)

    def _moved(self, function: str, first: Node, second: Node) -> Iterator[Band]:
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
        yield band_of(float_key(left), float_key(right), function, -constants[0]).rechecked(SLACK)

    def _of_exact_numbers(self, function: str, first: Node, second: Node) -> Statement:
        form = linear_form(first).plus(linear_form(second), -1)
        sides: tuple[list[tuple[Node, Fraction]], list[tuple[Node, Fraction]]] = ([], [])
        for atom, coefficient in sorted(form.terms, key=lambda term: render(term[0])):
            side = self._side(atom)
            if side is None:
                raise UnusableError(f"{render(atom)} reads both streams")
            if atom.type == INTERVAL:
                raise UnusableError(f"{render(atom)} is an INTERVAL that has no key")
            sides[side].append((atom, coefficient))
        if not (sides[0] and sides[1]):
            raise UnusableError("it does not compare the two streams")
        # Whole coefficients without a common factor, the right's first positive: so equal keys are written equally.
        coefficients = [coefficient for _, coefficient in form.terms]
        unit = Fraction(math.gcd(*(c.numerator for c in coefficients)), math.lcm(*(c.denominator for c in coefficients)))
        if sides[1][0][1] < 0:
            unit, function = -unit, _FLIPPED[function]
        left, right = (
            ExactKey.of([(atom, int(coefficient / unit) * sign) for atom, coefficient in side])
            for side, sign in zip(sides, (-1, 1), strict=True)
        )
        return exact_statement(left, right, function, -form.constant / unit)


def _float_constant(literal: Literal) -> float:
    if literal.value is None:
        raise UnusableError("it compares with NULL")
    return float(literal.value)
