"""Literals of SQL, each with the type that Spark gives it."""

from __future__ import annotations

import math
from decimal import Decimal

from streamjoin.language.errors import SqlError
from streamjoin.language.tree import Call, Literal, Node
from streamjoin.language.types import BIGINT, DOUBLE, INT, INTERVAL, MAX_PRECISION, TypeName, decimal_type


def is_null(node: Node) -> bool:
    """Whether it is the literal NULL."""
    return isinstance(node, Literal) and node.value is None


def integer_literal(value: int) -> Literal:
    """A literal of the type that Spark gives a number written without fraction or exponent."""
    if -(2**31) <= value < 2**31:
        return Literal(value, INT)
    if -(2**63) <= value < 2**63:
        return Literal(value, BIGINT)
    return decimal_literal(Decimal(value))


def decimal_literal(value: Decimal) -> Literal:
    """A literal of the narrowest DECIMAL that holds the value; SqlError where none does."""
    _, digits, exponent = value.as_tuple()
    scale = -int(exponent)
    precision = max(len(digits), scale)
    if precision > MAX_PRECISION:
        raise SqlError(
            f"{str(value)[:60]} has {precision} digits",
            f"a number may have {MAX_PRECISION}; write it with an exponent for a DOUBLE",
        )
    return Literal(value, decimal_type(precision, scale))


def number_literal(text: str) -> Literal:
    """A number as it is written, without a sign."""
    if "e" in text.lower():
        value = float(text)
        if math.isinf(value):
            raise SqlError(f"{text} is too large for a DOUBLE", "write a smaller number")
        return Literal(value, DOUBLE)
    exact = Decimal(text)  # int() takes no more than 4,300 digits
    return decimal_literal(exact) if "." in text or len(text) > MAX_PRECISION else integer_literal(int(exact))


def negated(node: Node) -> Node:
    """Unary minus; a literal's is a literal."""
    if not isinstance(node, Literal) or node.value is None:
        return Call("negate", (node,), node.type)
    value = node.value
    if isinstance(value, int):
        natural = node.type != INTERVAL and node.type == integer_literal(value).type
        return integer_literal(-value) if natural else Literal(-value, node.type)
    if value == 2**63 and node.type.name is TypeName.DECIMAL and node.type.scale == 0:
        return Literal(-(2**63), BIGINT)
    return Literal(-value, node.type) if isinstance(value, float) else Literal(Decimal(str(value)).copy_negate(), node.type)
