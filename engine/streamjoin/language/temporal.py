"""Dates, times and intervals of SQL: read from text, and the arithmetic on them that has a type of its own."""

from __future__ import annotations

import datetime
import re
from decimal import Decimal

from streamjoin.language.errors import SqlError
from streamjoin.language.literals import integer_literal, negated
from streamjoin.language.tree import OPERATORS, Call, Literal, Node
from streamjoin.language.types import DATE, INT, INTERVAL, MICROS_PER_DAY, TIMESTAMP, is_integer, is_point

UNIT_MICROS = {
    "MICROSECOND": 1,
    "MILLISECOND": 1_000,
    "SECOND": 1_000_000,
    "MINUTE": 60_000_000,
    "HOUR": 3_600_000_000,
    "DAY": MICROS_PER_DAY,
    "WEEK": 7 * MICROS_PER_DAY,
}
_SPAN_UNITS = ("DAY", "HOUR", "MINUTE", "SECOND")
_QUANTITY = re.compile(r"\s*([+-]?\d+(?:\.\d+)?)\s+([A-Za-z]+)")


def whole_days(node: Node) -> int | None:
    """The days of a literal INTERVAL that is whole days; None: it is not."""
    if isinstance(node, Literal) and node.type == INTERVAL and isinstance(node.value, int) and node.value % MICROS_PER_DAY == 0:
        return node.value // MICROS_PER_DAY
    return None


def folded_interval(function: str, left: Node, right: Node) -> Node:
    """INTERVAL 1 DAY 2 HOURS comes as a sum: a literal again, so that it may be a bound."""
    if isinstance(left, Literal) and isinstance(right, Literal) and isinstance(left.value, int) and isinstance(right.value, int):
        combine = {"add": int.__add__, "subtract": int.__sub__, "multiply": int.__mul__}[function]
        value = combine(left.value, right.value)
        if -(2**63) <= value < 2**63:
            return Literal(value, INTERVAL)
    return Call(function, (left, right), INTERVAL)


def in_days(node: Node) -> Node | None:
    """An INTERVAL that is whole days by its form, as the number of days; other types as they are; None: it is not."""
    days = whole_days(node)
    if days is not None:
        return integer_literal(days)
    if isinstance(node, Call) and node.type == INTERVAL:
        if node.function == "subtract" and node.arguments[0].type == node.arguments[1].type == DATE:
            return Call("datediff", node.arguments, INT)
        if node.function in ("negate", "abs"):
            inner = in_days(node.arguments[0])
            return None if inner is None else Call(node.function, (inner,), INT)
        return None
    return node


def span_micros(text: str, first: str, last: str) -> int | None:
    """Microseconds of the numbers of the units from ``first`` to ``last``, as ``1 02:03:04.5`` of DAY TO SECOND; None: it is no such text.

    All but the first must be less than the unit before them, as in Spark; digits below a microsecond are dropped.
    """
    units = _SPAN_UNITS[_SPAN_UNITS.index(first) : _SPAN_UNITS.index(last) + 1] if {first, last} <= set(_SPAN_UNITS) else ()
    if len(units) < 2:
        return None
    after = (" " if units[0] == "DAY" else ":") + r"(\d{1,2})" + r":(\d{1,2})" * (len(units) - 2)
    fraction = r"(?:\.(\d{1,9}))?" if last == "SECOND" else "()"
    match = re.fullmatch(rf"([+-]?)(\d{{1,10}}){after}{fraction}", text.strip(" "), re.ASCII)
    if match is None:
        return None
    sign, *numbers, fraction = match.groups()
    parts = [int(number) * UNIT_MICROS[unit] for unit, number in zip(units, numbers, strict=True)]
    if any(part >= UNIT_MICROS[above] for above, part in zip(units[:-1], parts[1:], strict=True)):
        return None
    micros = sum(parts) + int((fraction or "").ljust(6, "0")[:6])
    return None if micros >= 2**63 else -micros if sign == "-" else micros


def no_interval(text: str) -> SqlError:
    """The error that an INTERVAL is none that can be read."""
    return SqlError(
        f"{text} is not an interval",
        "write INTERVAL number unit, the unit one of WEEK, DAY, HOUR, MINUTE, SECOND, MILLISECOND, MICROSECOND, or numbers of several"
        " units, as INTERVAL '1 02:03:04.5' DAY TO SECOND or INTERVAL '1:30' MINUTE TO SECOND",
    )


def quantity_micros(text: str) -> int | None:
    """Microseconds of ``1 day 2 hours``: numbers, each with its unit."""
    total, position = Decimal(0), 0
    while position < len(text.rstrip()):
        match = _QUANTITY.match(text, position)
        factor = UNIT_MICROS.get(match[2].upper().removesuffix("S")) if match else None
        if match is None or factor is None:
            return None
        total += Decimal(match[1]) * factor
        position = match.end()
    return int(total) if position and total == int(total) and -(2**63) <= total < 2**63 else None


_ISO_DATE = re.compile(r"(\d{4})-(\d{1,2})-(\d{1,2})")
EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


def date_days(text: str) -> int | None:
    """Days since 1970 of ``yyyy-mm-dd``, or None."""
    match = _ISO_DATE.fullmatch(text.strip())
    try:
        return None if match is None else datetime.date(int(match[1]), int(match[2]), int(match[3])).toordinal() - EPOCH.toordinal()
    except ValueError:
        return None


def timestamp_micros(text: str) -> int | None:
    """Microseconds since 1970 UTC of an ISO 8601 time (UTC unless it says otherwise) or date, or None."""
    try:
        instant = datetime.datetime.fromisoformat(text.strip())
    except ValueError:
        days = date_days(text)
        return None if days is None else days * MICROS_PER_DAY
    instant = instant if instant.tzinfo is not None else instant.replace(tzinfo=datetime.UTC)
    return (instant - EPOCH) // datetime.timedelta(microseconds=1)


def temporal_arithmetic(function: str, left: Node, right: Node) -> Node | None:
    """The call, where a date, a time or an INTERVAL is among the operands; None: none is. SqlError where it has no meaning."""
    if function == "add" and (is_point(right.type) or (right.type == INTERVAL and left.type == INTERVAL)):
        if not is_point(right.type):
            return folded_interval("add", left, right)
        left, right = right, left
    if function in ("add", "subtract") and is_point(left.type):
        if left.type == DATE and is_integer(right.type):
            return Call("date_add", (left, right if function == "add" else negated(right)), DATE)
        if right.type == INTERVAL:
            days = whole_days(right)
            if left.type == DATE and days is not None:
                return Call("date_add", (left, integer_literal(days if function == "add" else -days)), DATE)
            left = Call("cast", (left,), TIMESTAMP) if left.type == DATE else left
            return Call(function, (left, right), left.type)
        if function == "subtract" and is_point(right.type):
            return Call("subtract", (left, right), INTERVAL)
    if function == "subtract" and left.type == right.type == INTERVAL:
        return folded_interval("subtract", left, right)
    if function == "multiply" and INTERVAL in (left.type, right.type):
        count = right if left.type == INTERVAL else left
        if is_integer(count.type):
            return folded_interval("multiply", left, right)
    if any(is_point(t) or t == INTERVAL for t in (left.type, right.type)):
        raise SqlError(
            f"{left.type} {OPERATORS[function]} {right.type} has no meaning",
            "add or subtract an INTERVAL, or subtract two times",
        )
    return None
