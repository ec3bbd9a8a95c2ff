"""Operands brought to the types that their place asks for, as Spark does implicitly, and the types of results."""

from __future__ import annotations

import re
from decimal import Decimal

from streamjoin.language.errors import SqlError
from streamjoin.language.literals import decimal_literal, is_null, negated, number_literal
from streamjoin.language.render import render
from streamjoin.language.temporal import JAVA_BLANKS, date_days, in_days, timestamp_micros
from streamjoin.language.tree import Call, Literal, Node
from streamjoin.language.types import (
    BOOLEAN,
    DATE,
    DOUBLE,
    INSTANTS,
    INTEGER_BITS,
    INTERVAL,
    LEAST_SCALE_KEPT,
    STRING,
    TIMESTAMP,
    DataType,
    TypeName,
    as_decimal,
    common_type,
    comparable,
    is_float,
    is_integer,
    is_numeric,
    is_point,
    narrowed,
)

_NUMBER = re.compile(r"([+-]?)((?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)", re.ASCII)


def text_as(text: str, target: DataType) -> Literal | None:
    """A string literal where a time or number stands on the other side, as Spark casts it; None: it is no such value."""
    if target.name is TypeName.DATE:
        days = date_days(text)
        return None if days is None else Literal(days, target)
    if target.name in INSTANTS:
        micros = timestamp_micros(text, zoned=target == TIMESTAMP)
        return None if micros is None else Literal(micros, target)
    match = _NUMBER.fullmatch(text.strip(JAVA_BLANKS))
    if match is None:
        return None
    signed = negated(number_literal(match[2])) if match[1] == "-" else number_literal(match[2])
    return signed if isinstance(signed, Literal) else None


def adapted(node: Node, target: DataType) -> Node:
    """An untyped NULL or a string literal as a literal of the type that its place asks for; any other node as it is."""
    if not isinstance(node, Literal):
        return node
    if node.value is None:
        return Literal(None, target)
    if node.type == STRING and (is_point(target) or is_numeric(target)):
        literal = text_as(str(node.value), target)
        if literal is None:
            example = "2026-01-31 12:00:00" if target.name in INSTANTS else "2026-01-31"
            raise SqlError(f"{render(node)} is no {target}", f"write '{example}'" if is_point(target) else "write a number")
        return literal
    return node


def arithmetic_type(function: str, left: Node, right: Node) -> DataType:
    """The type that Spark gives the result of an operation on two numbers."""
    if is_float(left.type) or is_float(right.type):
        return DOUBLE
    if is_integer(left.type) and is_integer(right.type):
        return DOUBLE if function == "divide" else max(left.type, right.type, key=lambda t: INTEGER_BITS[t.name])
    first, second = (
        decimal_literal(Decimal(node.value)).type if isinstance(node, Literal) and isinstance(node.value, int) else as_decimal(node.type)
        for node in (left, right)
    )
    whole = max(first.precision - first.scale, second.precision - second.scale)
    scale = max(first.scale, second.scale)
    if function in ("add", "subtract"):
        return narrowed(whole + 1, scale)
    if function == "multiply":
        scale = first.scale + second.scale
        return narrowed(first.precision + second.precision + 1 - scale, scale)
    if function == "divide":
        scale = max(LEAST_SCALE_KEPT, first.scale + second.precision + 1)
        return narrowed(first.precision - first.scale + second.scale, scale)
    return narrowed(min(first.precision - first.scale, second.precision - second.scale), scale)


def cast_literal(node: Node, target: DataType) -> Literal | None:
    """A literal cast to the type, where the result can be written as a literal of exactly that type."""
    if not isinstance(node, Literal):
        return None
    value = node.value
    if node.type == target:
        return node
    if node.type == STRING and is_point(target):
        moment = adapted(node, target)
        return moment if isinstance(moment, Literal) else None
    try:
        number = text_as(str(value), target) if node.type == STRING and is_numeric(target) else node if is_numeric(node.type) else None
    except SqlError:  # no literal can say it
        return None
    if number is None or number.value is None or isinstance(number.value, str):
        return None
    if is_integer(target) and isinstance(number.value, int):
        half = 1 << (INTEGER_BITS[target.name] - 1)
        return Literal(number.value, target) if -half <= number.value < half else None
    if target == DOUBLE:
        zero = isinstance(value, str) and value.strip(JAVA_BLANKS)[0] == "-" and number.value == 0  # an integer has no -0
        return Literal(-0.0 if zero else float(number.value), DOUBLE)
    return number if number.type == target else None


def alike(operands: list[Node]) -> tuple[Node, ...]:
    """The operands of a comparison, literals turned into what they are compared with; SqlError if types do not meet."""
    types = {node.type for node in operands if not is_null(node)}
    if INTERVAL in types and any(is_integer(t) for t in types):
        operands = [in_days(node) or node for node in operands]
    target = next((node.type for node in operands if not isinstance(node, Literal)), None)
    target = target or next((node.type for node in operands if not is_null(node) and node.type != STRING), STRING)
    operands = [adapted(node, target) for node in operands]
    for node in operands[1:]:
        if not (is_null(node) or comparable(operands[0].type, node.type)):
            raise SqlError(
                f"cannot compare {render(operands[0])} ({operands[0].type}) with {render(node)} ({node.type})",
                f"CAST one of them, such as CAST({render(node)} AS {operands[0].type})"
                if operands[0].type != INTERVAL and node.type != INTERVAL
                else "compare an INTERVAL with an INTERVAL",
            )
    return tuple(operands)


def common(what: str, values: list[Node]) -> tuple[list[Node], DataType]:
    """The values, with untyped ones adapted, and the type that all of them have or widen to."""
    typed = [node for node in values if not is_null(node)]
    type_ = typed[0].type if typed else BOOLEAN
    for node in typed[1:]:
        wider = common_type(type_, node.type)
        if wider is None:
            raise SqlError(f"{what} mixes {type_} and {node.type}", "CAST the values to one type")
        type_ = wider
    return [adapted(node, type_) for node in values], type_


def as_date(node: Node) -> Node:
    """A DATE, or the date of a time; SqlError for any other type."""
    node = adapted(node, DATE)
    if node.type == DATE:
        return node
    if node.type.name not in INSTANTS:
        raise SqlError(f"{render(node)} is of type {node.type}, where a date is needed", "CAST it to DATE")
    return Call("cast", (node,), DATE)


def as_point(node: Node, function: str) -> Node:
    """A date or a timestamp; SqlError for any other type."""
    node = adapted(node, TIMESTAMP)
    if not is_point(node.type):
        raise misfit(function, node, "a TIMESTAMP")
    return node


def misfit(function: str, node: Node, needed: str) -> SqlError:
    """The error that a function does not take an operand of that type."""
    return SqlError(f"{function} needs {needed}, but {render(node)} is of type {node.type}", "CAST it or use another column")
