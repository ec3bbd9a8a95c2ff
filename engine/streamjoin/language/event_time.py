"""Event times that no column has as they are: of numbers since 1970, of texts by a pattern, and of SQL expressions. Each becomes one
expression of type TIMESTAMP or TIMESTAMP_NTZ, which is evaluated when a record is read, so that nothing after that knows the difference.
"""

from __future__ import annotations

from dataclasses import dataclass

from streamjoin.language.errors import SqlError, excerpt
from streamjoin.language.schema import Column, Schema
from streamjoin.language.sql import Expression, parse_expression
from streamjoin.language.time_pattern import time_pattern
from streamjoin.language.tree import Call, Literal, Reference
from streamjoin.language.types import INSTANTS, STRING, TIMESTAMP, TypeName, is_integer

DIGITS = {"s": 6, "ms": 3, "us": 0, "ns": -3}
"""By unit, the power of ten of its microseconds."""
UNIT_NAMES = {"s": "seconds", "ms": "milliseconds", "us": "microseconds", "ns": "nanoseconds"}


@dataclass(frozen=True, slots=True)
class DerivedTime:
    """How a stream's event time is made of its columns. Picklable."""

    expression: Expression
    shown: str
    """The column, or the expression, for messages and for the checkpoint."""
    fault: str
    """What is wrong with values of which there is no time, and the remedy."""

    @property
    def columns(self) -> tuple[str, ...]:
        """What it is made of."""
        return tuple(sorted(column for _, column in self.expression.columns))


def of_numbers(stream: str, column: Column, unit: str) -> DerivedTime:
    """Of a column of numbers of a unit since 1970. Raises SqlError where it has no such numbers."""
    name = column.type.name
    if not (is_integer(column.type) or name in (TypeName.DOUBLE, TypeName.DECIMAL)):
        if name in INSTANTS:
            raise SqlError(f"column {column.name} is {column.type}, which is a time already", f"write eventTime: {column.name}")
        remedy = "declare it as DOUBLE, as a FLOAT has too few digits for a time" if name is TypeName.FLOAT else "declare it as BIGINT"
        other = f", or give format instead of unit: {{column: {column.name}, format: ...}}" if column.type == STRING else ""
        raise SqlError(f"column {column.name} is {column.type}, and a unit is for BIGINT, INT, DOUBLE and DECIMAL", remedy + other)
    tree = Call("since_epoch", (Reference(stream, column.name, column.type), Literal(unit, STRING)), TIMESTAMP)
    meaning = f"{UNIT_NAMES[unit]} since 1970"
    fault = f"is no number of {meaning} that a TIMESTAMP can hold; correct the value, or the unit ({unit}) in eventTime"
    return DerivedTime(Expression.of(tree), f"{column.name} ({meaning})", fault)


def of_text(stream: str, column: Column, pattern: str) -> DerivedTime:
    """Of a column of text, by a datetime pattern. Raises SqlError where the column is no text, or the pattern is not supported."""
    if column.type != STRING:
        if column.type.name in INSTANTS:
            remedy = f"declare it as STRING, or write eventTime: {column.name}"
            raise SqlError(f"column {column.name} is {column.type}, which is a time already", remedy)
        remedy = "declare it as STRING, or give unit instead of format"
        raise SqlError(f"column {column.name} is {column.type}, and a format is for text", remedy)
    time_pattern(pattern)
    tree = Call("to_timestamp", (Reference(stream, column.name, STRING), Literal(pattern, STRING)), TIMESTAMP)
    fault = f"is no time as eventTime.format has it ({pattern}); correct the value, or the format"
    return DerivedTime(Expression.of(tree), f"{column.name} ({pattern})", fault)


def of_expression(text: str, stream: str, schema: Schema) -> DerivedTime:
    """Of an SQL expression over the stream's columns. Raises SqlError where it gives no time."""
    expression = parse_expression(text, {stream: schema})
    if expression.type.name not in INSTANTS:
        remedy = "write timestamp_millis(...) of milliseconds, timestamp_seconds(...) of seconds, or to_timestamp(...) of text"
        remedy = f"write CAST({text.strip()} AS TIMESTAMP)" if expression.type.name is TypeName.DATE else remedy
        raise SqlError(f"{excerpt(text)} is a value of type {expression.type}, not TIMESTAMP or TIMESTAMP_NTZ", remedy)
    if not expression.columns:
        raise SqlError(f"{excerpt(text)} reads no column, so all event times would be the same", "name a column of event times in it")
    shown = " ".join(text.split())
    fault = f"give no event time by {shown}; correct the values, or the expression in eventTime"
    return DerivedTime(expression, shown, fault)
