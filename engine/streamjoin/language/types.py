"""SQL's types: their families, and the type that values of several widen to, as in Spark. Free of any runtime's types.

Always holds: a :class:`DataType` says all that planning needs (what may be compared with what, and how wide a value is);
``kernel.types`` turns it into Arrow's.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from streamjoin.language.errors import SqlError


class TypeName(StrEnum):
    """The types that a column may have, by their Spark SQL names."""

    BOOLEAN = "BOOLEAN"
    TINYINT = "TINYINT"
    SMALLINT = "SMALLINT"
    INT = "INT"
    BIGINT = "BIGINT"
    FLOAT = "FLOAT"
    DOUBLE = "DOUBLE"
    DECIMAL = "DECIMAL"
    STRING = "STRING"
    BINARY = "BINARY"
    DATE = "DATE"
    TIMESTAMP = "TIMESTAMP"
    """An instant, microseconds since 1970 UTC."""
    TIMESTAMP_NTZ = "TIMESTAMP_NTZ"
    """A wall-clock time without a zone, microseconds."""
    INTERVAL = "INTERVAL"
    """A duration in microseconds. Only expressions have it, columns do not."""


@dataclass(frozen=True, slots=True)
class DataType:
    """One SQL type; ``precision`` and ``scale`` belong to DECIMAL alone."""

    name: TypeName
    precision: int = 0
    scale: int = 0

    def __str__(self) -> str:
        return f"DECIMAL({self.precision},{self.scale})" if self.name is TypeName.DECIMAL else str(self.name)


BOOLEAN = DataType(TypeName.BOOLEAN)
INT = DataType(TypeName.INT)
BIGINT = DataType(TypeName.BIGINT)
DOUBLE = DataType(TypeName.DOUBLE)
STRING = DataType(TypeName.STRING)
BINARY = DataType(TypeName.BINARY)
DATE = DataType(TypeName.DATE)
TIMESTAMP = DataType(TypeName.TIMESTAMP)
INTERVAL = DataType(TypeName.INTERVAL)

MICROS_PER_DAY = 86_400_000_000
MAX_PRECISION = 38
LEAST_SCALE_KEPT = 6
"""Spark gives up fraction digits of a result wider than 38 digits, but not below this many."""

INTEGER_BITS = {TypeName.TINYINT: 8, TypeName.SMALLINT: 16, TypeName.INT: 32, TypeName.BIGINT: 64}
_INTEGER_DIGITS = {TypeName.TINYINT: 3, TypeName.SMALLINT: 5, TypeName.INT: 10, TypeName.BIGINT: 20}
_FLOATS = (TypeName.FLOAT, TypeName.DOUBLE)
INSTANTS = (TypeName.TIMESTAMP, TypeName.TIMESTAMP_NTZ)
"""The types held as microseconds since 1970."""
COLUMN_TYPES = "BOOLEAN, TINYINT, SMALLINT, INT, BIGINT, FLOAT, DOUBLE, DECIMAL(p,s), STRING, BINARY, DATE, TIMESTAMP or TIMESTAMP_NTZ"
"""For messages."""


def is_integer(t: DataType) -> bool:
    return t.name in INTEGER_BITS


def is_exact(t: DataType) -> bool:
    """Whether it is a number without rounding: an integer or a decimal."""
    return t.name in INTEGER_BITS or t.name is TypeName.DECIMAL


def is_float(t: DataType) -> bool:
    return t.name in _FLOATS


def is_numeric(t: DataType) -> bool:
    return is_exact(t) or is_float(t)


def is_point(t: DataType) -> bool:
    """Whether it is a point in time: a date or a timestamp."""
    return t.name is TypeName.DATE or t.name in INSTANTS


def bad_decimal(arguments: object) -> SqlError:
    """The error that there is no DECIMAL of such arguments."""
    return SqlError(f"DECIMAL({arguments}) is not a type", f"write DECIMAL(p,s) with 1 <= p <= {MAX_PRECISION} and 0 <= s <= p")


def decimal_type(precision: int, scale: int = 0) -> DataType:
    """DECIMAL(precision, scale), or SqlError when there is no such type."""
    if not (1 <= precision <= MAX_PRECISION and 0 <= scale <= precision):
        raise bad_decimal(f"{precision},{scale}")
    return DataType(TypeName.DECIMAL, precision, scale)


def comparable(left: DataType, right: DataType) -> bool:
    """Whether SQL compares values of the two types with each other."""
    return (is_numeric(left) and is_numeric(right)) or (is_point(left) and is_point(right)) or left == right


def as_decimal(t: DataType) -> DataType:
    """The DECIMAL that holds every value of an integer or decimal type, as Spark chooses it."""
    return t if t.name is TypeName.DECIMAL else DataType(TypeName.DECIMAL, _INTEGER_DIGITS[t.name], 0)


def narrowed(whole: int, scale: int) -> DataType:
    """DECIMAL with so many digits before and after the point, cut to 38 in all as Spark does: fraction digits go first."""
    if whole + scale <= MAX_PRECISION:
        return decimal_type(max(whole + scale, 1), scale)
    return decimal_type(MAX_PRECISION, max(MAX_PRECISION - whole, min(scale, LEAST_SCALE_KEPT)))


def common_type(left: DataType, right: DataType) -> DataType | None:
    """The type that values of both widen to without loss (but for numbers with a DOUBLE among them), or None."""
    if left == right:
        return left
    if is_integer(left) and is_integer(right):
        return max(left, right, key=lambda t: INTEGER_BITS[t.name])
    if is_exact(left) and is_exact(right):
        first, second = as_decimal(left), as_decimal(right)
        return narrowed(max(first.precision - first.scale, second.precision - second.scale), max(first.scale, second.scale))
    if is_numeric(left) and is_numeric(right):
        return DOUBLE
    if is_point(left) and is_point(right):
        return left if right == DATE else right if left == DATE else TIMESTAMP
    return None


def castable(source: DataType, target: DataType) -> bool:
    """Whether there is a CAST from one type to the other."""
    if source == target:
        return True
    plain = (TypeName.BOOLEAN, TypeName.STRING)
    if is_numeric(source) or source.name in plain:
        if is_numeric(target) or target.name in plain:
            return True
        return source == STRING and (is_point(target) or target == BINARY)
    if is_point(source):
        return is_point(target) or target == STRING or (source == TIMESTAMP and target == BIGINT)
    return source == BINARY and target == STRING
