"""Filters of Spark's that can be applied where rows are read, with the same meaning.

Always holds: what is taken over keeps exactly the rows that Spark would keep. So comparisons of doubles are left to Spark, to which NaN
equals itself and is greater than all numbers, and those with values that the column's type does not have.
"""

from __future__ import annotations

import datetime
import decimal
import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import datasource as spark

_COMPARE: dict[type[Any], tuple[str, Callable[[Any, Any], Any]]] = {
    spark.EqualTo: ("=", operator.eq),
    spark.LessThan: ("<", operator.lt),
    spark.LessThanOrEqual: ("<=", operator.le),
    spark.GreaterThan: (">", operator.gt),
    spark.GreaterThanOrEqual: (">=", operator.ge),
}
_OPERATORS = dict(_COMPARE.values())


@dataclass(frozen=True)
class Condition:
    """``column`` compared with ``values``: one, or several of which it is to be one (``in``), or none (``is null``, ``is not null``)."""

    column: str
    comparison: str
    values: tuple[Any, ...] = ()
    """As Python has them, of the column's type."""
    is_negated: bool = False

    def expression(self, type_: pa.DataType) -> pc.Expression:
        """For Arrow; ``type_``: the column's."""
        column = pc.field(self.column)
        if self.comparison == "is null":
            return column.is_null()
        if self.comparison == "is not null":
            return column.is_valid()
        if self.comparison == "in":
            return column.isin(pa.array(self.values, type_))
        found = _OPERATORS[self.comparison](column, pa.scalar(self.values[0], type_))
        return ~found if self.is_negated else found

    def sql(self) -> str:
        """For DuckDB."""
        column = '"' + self.column.replace('"', '""') + '"'
        if not self.values and self.comparison != "in":
            return f"{column} {self.comparison}"
        if self.comparison == "in":
            return f"{column} IN ({', '.join(map(_literal, self.values))})" if self.values else "false"
        text = f"{column} {self.comparison} {_literal(self.values[0])}"
        return f"NOT ({text})" if self.is_negated else text

    def may_hold(self, low: Any, high: Any) -> bool:
        """Whether it may be true of a value from ``low`` to ``high`` (None: not known), or of none at all."""
        if self.is_negated or self.comparison.startswith("is"):
            return True
        try:
            if self.comparison in ("=", "in"):
                return any((low is None or value >= low) and (high is None or value <= high) for value in self.values)
            end = low if self.comparison.startswith("<") else high
            return end is None or bool(_OPERATORS[self.comparison](end, self.values[0]))
        except TypeError:  # bounds of another type, from when the key was another
            return True


def condition_of(given: Any, schema: pa.Schema) -> Condition | None:
    """The condition that a filter of Spark's is, or None where Spark is to apply it itself."""
    is_negated = isinstance(given, spark.Not)
    inner = given.child if is_negated else given
    path: tuple[str, ...] = getattr(inner, "attribute", ())
    if len(path) != 1 or path[0] not in schema.names:
        return None
    column, type_ = path[0], schema.field(path[0]).type
    if isinstance(inner, spark.IsNull | spark.IsNotNull):
        return Condition(column, "is null" if isinstance(inner, spark.IsNull) is not is_negated else "is not null")
    if isinstance(inner, spark.In) and not is_negated:
        values = tuple(_value(value, type_) for value in inner.value if value is not None)
        return None if None in values else Condition(column, "in", values)
    if type(inner) in _COMPARE:
        value = _value(inner.value, type_)
        return None if value is None else Condition(column, _COMPARE[type(inner)][0], (value,), is_negated)
    return None


def _value(value: Any, type_: pa.DataType) -> Any:
    """The value as the column's type has it; None where it has none, or the comparison would not mean the same."""
    of_type = pa.types
    known: tuple[type[Any], ...]
    if of_type.is_boolean(type_):
        known = (bool,)
    elif of_type.is_integer(type_) or of_type.is_decimal(type_):
        known = (int, decimal.Decimal) if of_type.is_decimal(type_) else (int,)
    elif of_type.is_string(type_):
        known = (str,)
    elif of_type.is_timestamp(type_):
        known = (datetime.datetime,)
    elif of_type.is_date(type_):
        known = (datetime.date,)
    else:
        return None
    if not isinstance(value, known) or (isinstance(value, bool) and bool not in known):
        return None
    if isinstance(value, datetime.datetime) and (not of_type.is_timestamp(type_) or (value.tzinfo is None) != (type_.tz is None)):
        return None
    try:
        return pa.scalar(value, type_).as_py()
    except (pa.ArrowException, OverflowError, ValueError):
        return None


def _literal(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).upper()
    if isinstance(value, int | decimal.Decimal):
        return f"{value:f}" if isinstance(value, decimal.Decimal) else str(value)
    if isinstance(value, datetime.datetime):
        return f"{'TIMESTAMP' if value.tzinfo is None else 'TIMESTAMPTZ'} '{value.isoformat(sep=' ')}'"
    if isinstance(value, datetime.date):
        return f"DATE '{value.isoformat()}'"
    return "'" + str(value).replace("'", "''") + "'"
