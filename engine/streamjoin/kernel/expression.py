"""Evaluates SQL expressions over Arrow columns, a batch of rows (or of candidate pairs) at a time.

Three representations meet here, each with its validity beside it: *exact* numbers are integers times a power of ten,
int64 until one does not fit and Python integers from then on, so they never overflow and never round; *real* numbers
are float64; conditions are masks, true and known apart (three-valued logic). Text and results are Arrow arrays.

Always holds: a row's result depends on that row alone, never on which rows it shares a batch with; nothing raises on
data (what has no value is NULL). Comparisons with NaN are FALSE. See ``sql`` for where that differs from Spark. Casts
of a DOUBLE or FLOAT to STRING follow Arrow's format.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import ROUND_DOWN, ROUND_HALF_UP, Context, Decimal, InvalidOperation
from functools import reduce
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from streamjoin.kernel.types import arrow_type
from streamjoin.language.sql import Expression
from streamjoin.language.temporal import date_days, timestamp_micros
from streamjoin.language.tree import COMPARISONS, Call, Literal, Node, Reference
from streamjoin.language.types import (
    BOOLEAN,
    DATE,
    DOUBLE,
    INSTANTS,
    INTEGER_BITS,
    INTERVAL,
    MICROS_PER_DAY,
    STRING,
    DataType,
    TypeName,
    is_exact,
    is_float,
    is_integer,
    is_numeric,
    is_point,
)

Array = np.ndarray[Any, np.dtype[Any]]
Columns = Mapping[tuple[str, str], pa.Array]
"""(stream, column) to values, all of one length."""

_INT64_MAX = 2**63 - 1
_DOUBLE_EXACT = 2**53
"""Up to here every integer is a float64."""
_POWERS_EXACT = 22
"""Up to this power of ten, each is a float64."""


class Evaluator:
    """Evaluates one expression. Holds only configuration, so it is picklable and may serve any number of threads."""

    def __init__(self, expression: Expression) -> None:
        self.expression = expression

    def evaluate(self, columns: Columns, length: int | None = None) -> pa.Array:
        """The expression's value per row, an array of ``arrow_type(expression.type)``.

        ``columns`` hold at least ``expression.columns``; ``length`` is needed only where they may be empty.
        """
        return _Frame(columns, length).value(self.expression.tree)

    def select(self, columns: Columns, length: int | None = None) -> Array:
        """The rows (int64, ascending) where a BOOLEAN expression is TRUE."""
        frame = _Frame(columns, length)
        return np.flatnonzero(np.broadcast_to(frame.truth(self.expression.tree).true, frame.length))

    def integers(self, columns: Columns, scale: int, length: int | None = None) -> tuple[Array, Array | None]:
        """The exact value per row times 10**scale, as int64, and which rows have one (None: all).

        For integers, decimals (rounded half up where they have more digits), dates (days) and timestamps
        (microseconds). A row whose number does not fit int64 is not valid. A view of the column's memory where that
        holds the answer.
        """
        frame = _Frame(columns, length)
        exact = frame.exact(self.expression.tree).rescaled(scale)
        if exact.values.dtype == np.int64:
            return frame.spread(exact.values), None if exact.valid is None else frame.spread(exact.valid)
        values, valid = _fitting(exact, -_INT64_MAX - 1, _INT64_MAX)
        return frame.spread(values.astype(np.int64, copy=False)), None if valid is None else frame.spread(valid)

    def reals(self, columns: Columns, length: int | None = None) -> tuple[Array, Array | None]:
        """The value per row of a numeric or temporal expression as the nearest float64, and which rows have one (None: all)."""
        frame = _Frame(columns, length)
        tree = self.expression.tree
        real = frame.real(tree) if is_numeric(tree.type) else frame.exact(tree).real()
        return frame.spread(real.values), None if real.valid is None else frame.spread(real.valid)

    def decimals(self, columns: Columns, type_: DataType, length: int | None = None) -> pa.Array:
        """The exact value per row of an integer or decimal expression as a DECIMAL array; NULL where it does not fit."""
        frame = _Frame(columns, length)
        return frame.exact_out(frame.exact(self.expression.tree), type_)


def both(first: Array | None, second: Array | None) -> Array | None:
    """Valid where both are; None: everywhere."""
    if first is None or second is None:
        return second if first is None else first
    return first & second


def view(array: pa.Array, dtype: Any) -> Array:
    """The array's values without a copy, arbitrary under nulls. ``dtype`` has the array's value width."""
    buffer = array.buffers()[1]
    if buffer is None or len(array) == 0:
        return np.empty(0, dtype)
    return np.frombuffer(buffer, dtype, count=len(array) + array.offset)[array.offset :]


def validity(array: pa.Array) -> Array | None:
    """Where the array is not null; None: everywhere."""
    if array.null_count == 0:
        return None
    valid: Array = array.is_valid().to_numpy(zero_copy_only=False)
    return valid


def _array(values: Array, type_: pa.DataType, valid: Array | None) -> pa.Array:
    """An Arrow array over fixed-width values, which are of the type's width."""
    bits = None if valid is None else pa.array(valid).buffers()[1]
    return pa.Array.from_buffers(type_, len(values), [bits, pa.py_buffer(np.ascontiguousarray(values))])


@dataclass(slots=True)
class _Real:
    values: Array
    valid: Array | None


@dataclass(slots=True)
class _Truth:
    """``true`` holds only where ``known`` does; None: known everywhere."""

    true: Array
    known: Array | None

    @property
    def false(self) -> Array:
        return ~self.true if self.known is None else self.known & ~self.true


@dataclass(slots=True)
class _Exact:
    """Numbers ``values * 10**-scale``: int64, or Python integers in an object array."""

    values: Array
    valid: Array | None
    scale: int = 0
    bound: int | None = None
    """No absolute value is larger; None: not looked at yet."""

    def limit(self) -> int:
        if self.bound is None:
            self.bound = max(-int(self.values.min()), int(self.values.max()), 0) if self.values.size else 0
        return self.bound

    def _wide(self) -> Array:
        return self.values.astype(object, copy=False)

    def times(self, factor: int) -> _Exact:
        """The number multiplied by a constant."""
        if factor == 1:
            return self
        bound = self.limit() * abs(factor)
        if bound == 0:
            return self
        values = self.values * np.int64(factor) if self._narrow(bound) else self._wide() * factor
        return _Exact(values, self.valid, self.scale, bound)

    def _narrow(self, bound: int) -> bool:
        return bound <= _INT64_MAX and self.values.dtype != object

    def at_scale(self, scale: int) -> _Exact:
        """The same numbers with at least as many fraction digits."""
        scaled = self.times(10 ** (scale - self.scale))
        return _Exact(scaled.values, scaled.valid, scale, scaled.bound)

    def combined(self, other: _Exact, function: Callable[[Any, Any], Any]) -> _Exact:
        """The sum or difference (``function`` is operator.add or operator.sub)."""
        scale = max(self.scale, other.scale)
        first, second = self.at_scale(scale), other.at_scale(scale)
        bound = first.limit() + second.limit()
        narrow = first._narrow(bound) and second._narrow(bound)
        values = function(first.values, second.values) if narrow else function(first._wide(), second._wide())
        return _Exact(values, both(self.valid, other.valid), scale, bound)

    def product(self, other: _Exact) -> _Exact:
        bound = self.limit() * other.limit()
        narrow = self._narrow(bound) and other._narrow(bound)
        values = self.values * other.values if narrow else self._wide() * other._wide()
        return _Exact(values, both(self.valid, other.valid), self.scale + other.scale, bound)

    def quotient(self, other: _Exact, scale: int) -> _Exact:
        """Rounded half up (away from zero) to so many fraction digits; not valid where divided by zero."""
        shift = scale - self.scale + other.scale
        above, below = self.times(10 ** max(shift, 0)), other.times(10 ** max(-shift, 0))
        nonzero = below.values != 0
        divisor = np.where(nonzero, below.values, 1)
        bound = 2 * above.limit() + below.limit()
        narrow = above._narrow(bound) and below._narrow(2 * below.limit() + 1)
        dividend, divisor = (above.values, divisor) if narrow else (above._wide(), divisor.astype(object))
        size = (2 * np.abs(dividend) + np.abs(divisor)) // (2 * np.abs(divisor))
        values = np.where((dividend < 0) != (divisor < 0), -size, size)
        return _Exact(values, both(both(self.valid, other.valid), nonzero), scale, above.limit() + 1)

    def remainder(self, other: _Exact) -> _Exact:
        """With the dividend's sign; not valid where divided by zero."""
        scale = max(self.scale, other.scale)
        first, second = self.at_scale(scale), other.at_scale(scale)
        nonzero = second.values != 0
        divisor = np.where(nonzero, second.values, 1)
        bound = max(first.limit(), second.limit())
        narrow = first._narrow(bound) and second._narrow(bound)
        dividend, divisor = (first.values, divisor) if narrow else (first._wide(), divisor.astype(object))
        size = np.abs(dividend) % np.abs(divisor)
        return _Exact(np.where(dividend < 0, -size, size), both(both(self.valid, other.valid), nonzero), scale, bound)

    def negated(self) -> _Exact:
        return self.times(-1)

    def absolute(self) -> _Exact:
        values = self.values if self._narrow(self.limit()) else self._wide()
        return _Exact(np.abs(values), self.valid, self.scale, self.limit())

    def rescaled(self, scale: int, *, truncate: bool = False) -> _Exact:
        """With so many fraction digits, rounded half up (away from zero) or towards zero where they become fewer."""
        if scale >= self.scale:
            return self.at_scale(scale)
        unit = 10 ** (self.scale - scale)
        narrow = self._narrow(2 * self.limit() + unit) and 2 * unit <= _INT64_MAX
        values = self.values if narrow else self._wide()
        size = np.abs(values) // unit if truncate else (2 * np.abs(values) + unit) // (2 * unit)
        return _Exact(np.where(values < 0, -size, size), self.valid, scale, self.limit() // unit + 1)

    def floor(self) -> _Exact:
        if self.scale == 0:
            return self
        unit = 10**self.scale
        values = self.values if unit <= _INT64_MAX else self._wide()
        return _Exact(values // unit, self.valid, 0, self.limit() // unit + 1)

    def real(self) -> _Real:
        """The nearest float64 of each."""
        if self.scale == 0 and self.values.dtype != object:
            return _Real(self.values.astype(np.float64), self.valid)
        power = 10**self.scale
        if self.scale > _POWERS_EXACT or self.values.dtype == object:
            return _Real(np.array([_nearest(value, power) for value in self.values.tolist()], np.float64), self.valid)
        # A quotient of two float64 that are exact is rounded once; only for the few longer numbers is that not so.
        values = self.values.astype(np.float64) / float(power)
        if self.limit() > _DOUBLE_EXACT:
            long = np.flatnonzero((self.values > _DOUBLE_EXACT) | (self.values < -_DOUBLE_EXACT))
            values[long] = [value / power for value in self.values[long].tolist()]
        return _Real(values, self.valid)


def _nearest(value: int, power: int) -> float:
    try:
        return value / power
    except OverflowError:
        return np.inf if value > 0 else -np.inf


def _fitting(exact: _Exact, low: int, high: int) -> tuple[Array, Array | None]:
    """The integers, with 0 for those outside [low, high], and which are valid and inside."""
    if exact.values.dtype != object and (exact.bound is not None or exact.values.dtype == np.int64) and exact.limit() <= min(high, -low):
        return exact.values, exact.valid
    inside = (exact.values >= low) & (exact.values <= high)
    inside = inside.astype(bool)
    values = np.where(inside, exact.values, 0)
    return values, exact.valid if inside.all() else both(exact.valid, inside)


def _exact_of(array: pa.Array, type_: DataType) -> _Exact:
    """The numbers of an integer, decimal or temporal column."""
    valid = validity(array)
    if type_.name is TypeName.DECIMAL:
        limbs = view(array, np.dtype([("low", "<u8"), ("high", "<i8")]))
        low = limbs["low"].astype(np.int64)
        if type_.precision <= 18 or bool((limbs["high"] == low >> 63).all()):
            return _Exact(low, valid, type_.scale)
        return _Exact(limbs["high"].astype(object) * 2**64 + limbs["low"].astype(object), valid, type_.scale)
    if type_.name in INTEGER_BITS:
        bits = INTEGER_BITS[type_.name]
        values = view(array, np.dtype(f"i{bits // 8}")).astype(np.int64, copy=False)
        return _Exact(values, valid, 0, None if bits == 64 else 1 << (bits - 1))
    if type_ == DATE:
        return _Exact(view(array, np.int32).astype(np.int64), valid, 0, 1 << 31)
    return _Exact(view(array, np.int64), valid)


def _exact_literal(literal: Literal) -> _Exact:
    valid = np.zeros(1, bool) if literal.value is None else None
    if isinstance(literal.value, Decimal):
        sign, digits, exponent = literal.value.as_tuple()
        number = int("".join(map(str, digits))) * (-1 if sign else 1)
        scale = -int(exponent)
    else:
        number, scale = (literal.value if isinstance(literal.value, int) else 0), 0
    dtype = np.int64 if -(2**63) <= number <= _INT64_MAX else object
    return _Exact(np.array([number], dtype), valid, scale, abs(number))


_LIMITS = {name: (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) for name, bits in INTEGER_BITS.items()}
_LIMITS[TypeName.DATE] = _LIMITS[TypeName.INT]
_ARITHMETIC = {"add", "subtract", "multiply", "divide", "modulo", "negate", "abs"}
_LOGIC = COMPARISONS | {
    "and",
    "or",
    "not",
    "between",
    "in",
    "like",
    "is_null",
    "isnan",
    "startswith",
    "endswith",
    "contains",
}
_COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    "eq": operator.eq,
    "ne": operator.ne,
    "lt": operator.lt,
    "le": operator.le,
    "gt": operator.gt,
    "ge": operator.ge,
}
_COMPARE_TEXT = {
    "eq": pc.equal,
    "ne": pc.not_equal,
    "lt": pc.less,
    "le": pc.less_equal,
    "gt": pc.greater,
    "ge": pc.greater_equal,
}


class _Frame:
    """One evaluation: the columns, and how many rows they have. Constants are arrays of length one until ``spread``."""

    def __init__(self, columns: Columns, length: int | None) -> None:
        self.columns = columns
        self.length = length if length is not None else len(next(iter(columns.values())))

    def spread(self, values: Array) -> Array:
        return values if len(values) == self.length else np.broadcast_to(values, self.length)

    def _out(self, values: Array, type_: pa.DataType, valid: Array | None) -> pa.Array:
        return _array(self.spread(values), type_, None if valid is None else self.spread(valid))

    def value(self, node: Node) -> pa.Array:
        """The node's value as an Arrow array of its type and the frame's length."""
        if isinstance(node, Reference):
            return self.columns[node.stream, node.column]
        if isinstance(node, Literal):
            return pa.repeat(_scalar(node), self.length)
        if node.type == BOOLEAN and node.function in _LOGIC:
            truth = self.truth(node)
            true = self.spread(truth.true)
            return pa.array(true, mask=None if truth.known is None else ~self.spread(truth.known))
        if node.function in _ARITHMETIC:
            if is_float(node.type):
                return self._real_out(self.real(node), node.type)
            return self.exact_out(self.exact(node), node.type)
        return _FUNCTIONS[node.function](self, node)

    def _as(self, node: Node, type_: DataType) -> pa.Array:
        """The node's value, cast to a type that it is used as."""
        return self.value(node if node.type == type_ else Call("cast", (node,), type_))

    def _real_out(self, real: _Real, type_: DataType) -> pa.Array:
        with np.errstate(over="ignore"):
            values = real.values if type_ == DOUBLE else real.values.astype(np.float32)
        return self._out(values, arrow_type(type_), real.valid)

    def exact_out(self, exact: _Exact, type_: DataType, *, truncate: bool = False) -> pa.Array:
        """Exact numbers as values of an exact or temporal type: rounded to its scale, NULL where they do not fit."""
        exact = exact.rescaled(type_.scale, truncate=truncate)
        if type_.name is TypeName.DECIMAL:
            most = 10**type_.precision - 1
            values, valid = _fitting(exact, -most, most)
            limbs = np.empty((len(values), 2), np.int64)
            if values.dtype == object:
                limbs[:, 0] = np.array([value & (2**64 - 1) for value in values], np.uint64).view(np.int64)
                limbs[:, 1] = values >> 64
            else:
                limbs[:, 0], limbs[:, 1] = values, values >> 63
            if len(limbs) != self.length:
                limbs = np.broadcast_to(limbs, (self.length, 2))
            return _array(limbs, arrow_type(type_), None if valid is None else self.spread(valid))
        low, high = _LIMITS.get(type_.name, _LIMITS[TypeName.BIGINT])
        values, valid = _fitting(exact, low, high)
        width = np.int32 if type_ == DATE else np.dtype(f"i{INTEGER_BITS.get(type_.name, 64) // 8}")
        return self._out(values.astype(width, copy=False), arrow_type(type_), valid)

    def exact(self, node: Node) -> _Exact:
        """The value of an integer, decimal or temporal node without overflow or rounding; dates in days, else microseconds."""
        if isinstance(node, Literal):
            return _exact_literal(node)
        if isinstance(node, Call):
            match node.function:
                case "add" | "subtract":
                    first, second = (self._micros(part) if not is_exact(node.type) else self.exact(part) for part in node.arguments)
                    return first.combined(second, operator.add if node.function == "add" else operator.sub)
                case "date_add":
                    return self.exact(node.arguments[0]).combined(self.exact(node.arguments[1]), operator.add)
                case "datediff":
                    return self.exact(node.arguments[0]).combined(self.exact(node.arguments[1]), operator.sub)
                case "multiply":
                    return self.exact(node.arguments[0]).product(self.exact(node.arguments[1]))
                case "divide":
                    quotient = self.exact(node.arguments[0]).quotient(self.exact(node.arguments[1]), node.type.scale)
                    return _exact_of(self.exact_out(quotient, node.type), node.type)
                case "modulo":
                    return self.exact(node.arguments[0]).remainder(self.exact(node.arguments[1]))
                case "negate":
                    return self.exact(node.arguments[0]).negated()
                case "abs":
                    return self.exact(node.arguments[0]).absolute()
                case "cast" if node.type.name in INSTANTS and is_point(node.arguments[0].type):
                    return self._micros(node.arguments[0])
        return _exact_of(self.value(node), node.type)

    def _micros(self, node: Node) -> _Exact:
        """A point in time or an interval in microseconds (an integer, as the count of an interval, stays one)."""
        exact = self.exact(node)
        return exact.times(MICROS_PER_DAY) if node.type == DATE else exact

    def real(self, node: Node) -> _Real:
        """The value of a numeric node as float64."""
        if is_exact(node.type):
            return self.exact(node).real()
        if isinstance(node, Literal):
            value = node.value
            return _Real(np.array([value if isinstance(value, float) else 0.0]), np.zeros(1, bool) if value is None else None)
        if isinstance(node, Call) and node.function in _ARITHMETIC:
            operands = [self.real(part) for part in node.arguments]
            valid = reduce(both, (operand.valid for operand in operands))
            first, second = operands[0].values, operands[-1].values
            with np.errstate(all="ignore"):
                match node.function:
                    case "add":
                        return _Real(first + second, valid)
                    case "subtract":
                        return _Real(first - second, valid)
                    case "multiply":
                        return _Real(first * second, valid)
                    case "divide":
                        return _Real(first / second, both(valid, second != 0))
                    case "modulo":
                        return _Real(np.fmod(first, second), both(valid, second != 0))
                    case "negate":
                        return _Real(-first, valid)
                    case _:
                        return _Real(np.abs(first), valid)
        array = self.value(node)
        width = np.float32 if node.type.name is TypeName.FLOAT else np.float64
        return _Real(view(array, width).astype(np.float64, copy=False), validity(array))

    def truth(self, node: Node) -> _Truth:
        """Where a BOOLEAN node is true, and where it is known."""
        if isinstance(node, Literal):
            known = None if node.value is not None else np.zeros(1, bool)
            return _Truth(np.array([bool(node.value)]), known)
        if isinstance(node, Reference) or node.function not in _LOGIC:
            return _truth_of(self.value(node))
        if node.function in COMPARISONS:
            return self._comparison(node.function, *node.arguments)
        match node.function:
            case "and":
                return reduce(_and, map(self.truth, node.arguments))
            case "or":
                return _not(reduce(_and, (_not(self.truth(part)) for part in node.arguments)))
            case "not":
                return _not(self.truth(node.arguments[0]))
            case "between":
                middle, low, high = node.arguments
                return _and(self._comparison("ge", middle, low), self._comparison("le", middle, high))
            case "in":
                return self._membership(node)
            case "is_null":
                return _Truth(~self._known(node.arguments[0]), None)
            case "isnan":
                real = self.real(node.arguments[0])
                nan = np.isnan(real.values)
                return _Truth(nan if real.valid is None else nan & real.valid, None)
        return self._text_test(node)

    def _known(self, node: Node) -> Array:
        valid = validity(self.value(node))
        return np.ones(self.length, bool) if valid is None else valid

    def _membership(self, node: Call) -> _Truth:
        wanted, *items = node.arguments
        if wanted.type == STRING and all(isinstance(item, Literal) for item in items):
            texts = [item.value for item in items if isinstance(item, Literal)]
            found = pc.is_in(self.value(wanted), pa.array([text for text in texts if text is not None], pa.string()))
            true = _truth_of(found).true
            known = validity(self.value(wanted))
            return _Truth(true, true if None in texts else known)
        return _not(reduce(_and, (_not(self._comparison("eq", wanted, item)) for item in items)))

    def _comparison(self, function: str, left: Node, right: Node) -> _Truth:
        if function == "same":
            equal = self._comparison("eq", left, right)
            if equal.known is None:
                return equal
            return _Truth(equal.true | ~(self._known(left) | self._known(right)), None)
        if is_numeric(left.type) and is_numeric(right.type) and (is_float(left.type) or is_float(right.type)):
            reals = self.real(left), self.real(right)
            true = _COMPARE[function](reals[0].values, reals[1].values)
            if function == "ne":
                true &= (reals[0].values == reals[0].values) & (reals[1].values == reals[1].values)
            return _masked(true, both(reals[0].valid, reals[1].valid))
        if left.type == BOOLEAN:
            truths = self.truth(left), self.truth(right)
            true = _COMPARE[function](truths[0].true.view(np.int8), truths[1].true.view(np.int8))
            return _masked(true, both(truths[0].known, truths[1].known))
        if not (is_exact(left.type) or is_point(left.type) or left.type == INTERVAL):
            first = _scalar(left) if isinstance(left, Literal) else self.value(left)
            second = _scalar(right) if isinstance(right, Literal) else self.value(right)
            return _truth_of(_COMPARE_TEXT[function](first, second))
        if left.type == right.type == DATE or is_exact(left.type):
            exacts = self.exact(left), self.exact(right)
        else:
            exacts = self._micros(left), self._micros(right)
        if object in (exacts[0].values.dtype, exacts[1].values.dtype) and _is_stored(left) and _is_stored(right):
            return self._wide_comparison(function, left, right)
        scale = max(exacts[0].scale, exacts[1].scale)
        true = _COMPARE[function](exacts[0].at_scale(scale).values, exacts[1].at_scale(scale).values).astype(bool, copy=False)
        return _masked(true, both(exacts[0].valid, exacts[1].valid))

    def _wide_comparison(self, function: str, left: Node, right: Node) -> _Truth:
        """Decimals as they are stored, compared by Arrow: faster than Python integers, but it has no arithmetic this wide."""
        type_ = pa.decimal256(76, max(left.type.scale, right.type.scale))
        return _truth_of(_COMPARE_TEXT[function](self.value(left).cast(type_), self.value(right).cast(type_)))

    def _text_test(self, node: Call) -> _Truth:
        subject, pattern = node.arguments
        if isinstance(pattern, Literal):
            if pattern.value is None:
                return _Truth(np.zeros(1, bool), np.zeros(1, bool))
            test = {
                "like": pc.match_like,
                "startswith": pc.starts_with,
                "endswith": pc.ends_with,
                "contains": pc.match_substring,
            }[node.function]
            return _truth_of(test(self.value(subject), pattern=pattern.value))
        texts, patterns = self.value(subject), self.value(pattern)
        method = {"startswith": str.startswith, "endswith": str.endswith, "contains": str.__contains__}[node.function]
        known = both(validity(texts), validity(patterns))
        true = [
            text is not None and part is not None and method(text, part)
            for text, part in zip(texts.to_pylist(), patterns.to_pylist(), strict=True)
        ]
        return _Truth(np.array(true, bool), known)

    def cast(self, node: Call) -> pa.Array:
        """CAST: what cannot be converted is NULL."""
        source, target = node.arguments[0], node.type
        if source.type == target:
            return self.value(source)
        if is_numeric(target):
            return self._cast_number(source, target)
        if is_point(source.type) and is_point(target):
            exact = self._micros(source)
            if target == DATE:
                exact = _Exact(exact.values // MICROS_PER_DAY, exact.valid, 0, exact.limit() // MICROS_PER_DAY + 1)
            return self.exact_out(exact, target)
        array = self.value(source)
        if target == BOOLEAN:
            return _parsed_booleans(array) if source.type == STRING else self._nonzero(source)
        if target == STRING:
            return _texts(array, source.type)
        if source.type == STRING and is_point(target):
            parse = date_days if target == DATE else timestamp_micros
            parsed = _per_distinct(array, parse, pa.int64())
            return self.exact_out(_exact_of(parsed, DataType(TypeName.BIGINT)), target)
        return array.cast(arrow_type(target))

    def _nonzero(self, source: Node) -> pa.Array:
        zero = Literal(0, DataType(TypeName.INT))
        if is_float(source.type):
            real = self.real(source)
            return pa.array(self.spread(real.values != 0), mask=None if real.valid is None else ~self.spread(real.valid))
        return self.value(Call("ne", (source, zero), BOOLEAN))

    def _cast_number(self, source: Node, target: DataType) -> pa.Array:
        if is_exact(source.type):
            if is_float(target):
                return self._real_out(self.exact(source).real(), target)
            return self.exact_out(self.exact(source), target, truncate=is_integer(target))
        if is_float(source.type):
            real = self.real(source)
            if is_float(target):
                return self._real_out(real, target)
            if is_integer(target):
                return self._whole_out(_Real(np.trunc(real.values), real.valid), target)
            return self._each(real, target, lambda value: _decimal_text(repr(value), target))
        if source.type == BOOLEAN:
            truth = self.truth(source)
            exact = _Exact(truth.true.astype(np.int64), truth.known, 0, 1)
            return self._real_out(exact.real(), target) if is_float(target) else self.exact_out(exact, target)
        if source.type == STRING:
            return _per_distinct(self.value(source), lambda text: _parsed_number(text, target), arrow_type(target))
        micros = self.exact(source)
        seconds = _Exact(micros.values // 1_000_000, micros.valid, 0, micros.limit() // 1_000_000 + 1)
        return self.exact_out(seconds, target)

    def _each(self, real: _Real, target: DataType, convert: Callable[[float], Any]) -> pa.Array:
        values, valid = self.spread(real.values), None if real.valid is None else self.spread(real.valid)
        known = np.isfinite(values) if valid is None else np.isfinite(values) & valid
        results = [convert(value) if ok else None for value, ok in zip(values.tolist(), known.tolist(), strict=True)]
        return pa.array(results, arrow_type(target))

    def _whole_out(self, real: _Real, target: DataType) -> pa.Array:
        """Whole float64 numbers as integers; NULL for NaN and what does not fit."""
        low, high = _LIMITS[target.name]
        inside = (real.values >= float(low)) & (real.values < float(high + 1))
        values = np.where(inside, real.values, 0).astype(np.int64)
        return self._out(values.astype(f"i{INTEGER_BITS[target.name] // 8}"), arrow_type(target), both(real.valid, inside))

    def rounded(self, node: Call) -> pa.Array:
        operand = node.arguments[0]
        if is_exact(operand.type):
            exact = self.exact(operand)
            if node.function == "floor":
                exact = exact.floor()
            elif node.function == "ceil":
                exact = exact.negated().floor().negated()
            return self.exact_out(exact, node.type)
        real = self.real(operand)
        if node.function != "round":
            return self._whole_out(
                _Real(np.floor(real.values) if node.function == "floor" else np.ceil(real.values), real.valid),
                node.type,
            )
        digits = node.arguments[1].value if isinstance(node.arguments[1], Literal) else 0
        step = Decimal(1).scaleb(-int(digits or 0))
        values = self.spread(real.values)
        # Beyond 2**52 there are no fractions; below, the decimal that the number prints as decides, as in Spark.
        results = [
            float(Decimal(repr(value)).quantize(step, ROUND_HALF_UP, _WIDE)) if abs(value) < 2**52 else value for value in values.tolist()
        ]
        return self._out(np.array(results, np.float64), pa.float64(), real.valid)

    def extreme(self, node: Call) -> pa.Array:
        """GREATEST and LEAST: nulls are skipped; NaN is greater than any number."""
        arrays = [self._as(part, node.type) for part in node.arguments]
        greatest = node.function == "greatest"
        if not is_float(node.type):
            return (pc.max_element_wise if greatest else pc.min_element_wise)(*arrays, skip_nulls=True)
        width = np.float32 if node.type.name is TypeName.FLOAT else np.float64
        values = np.full(self.length, np.nan, width)
        known = np.zeros(self.length, bool)
        for array in arrays:
            number, valid = view(array, width), validity(array)
            present = np.ones(self.length, bool) if valid is None else valid
            pick = np.maximum(values, number) if greatest else np.fmin(values, number)
            values = np.where(present, np.where(known, pick, number), values)
            known |= present
        return _array(values, arrow_type(node.type), known)

    def case(self, node: Call) -> pa.Array:
        conditions = [self.value(part) for part in node.arguments[:-1:2]]
        values = [self._as(part, node.type) for part in (*node.arguments[1::2], node.arguments[-1])]
        return pc.case_when(pc.make_struct(*conditions), *values)

    def coalesce(self, node: Call) -> pa.Array:
        return pc.coalesce(*(self._as(part, node.type) for part in node.arguments))

    def null_if(self, node: Call) -> pa.Array:
        equal = self.spread(self._comparison("eq", *node.arguments).true)
        return pc.if_else(pa.array(equal), pa.scalar(None, arrow_type(node.type)), self.value(node.arguments[0]))

    def concat(self, node: Call) -> pa.Array:
        return pc.binary_join_element_wise(*(self._as(part, STRING) for part in node.arguments), "")

    def text(self, node: Call) -> pa.Array:
        array = self.value(node.arguments[0])
        match node.function:
            case "lower":
                return pc.utf8_lower(array)
            case "upper":
                return pc.utf8_upper(array)
            case "length":
                return pc.utf8_length(array)
            case "ltrim":
                return pc.utf8_ltrim(array, characters=" ")
            case "rtrim":
                return pc.utf8_rtrim(array, characters=" ")
        return pc.utf8_trim(array, characters=" ")

    def substring(self, node: Call) -> pa.Array:
        """Counts from 1, or from the end when negative; 0 is the same as 1."""
        array = self.value(node.arguments[0])
        start, *length = (int(part.value or 0) for part in node.arguments[1:] if isinstance(part, Literal))
        begin = start - 1 if start > 0 else start
        if not length:
            return pc.utf8_slice_codeunits(array, begin)
        if length[0] <= 0:
            return pc.utf8_slice_codeunits(array, 0, 0)
        end: int | None = begin + length[0]
        return pc.utf8_slice_codeunits(array, begin, None if begin < 0 and begin + length[0] >= 0 else end)

    def date_part(self, node: Call) -> pa.Array:
        array = self.value(node.arguments[0])
        days = view(array, np.int32).astype("M8[D]")
        months = days.astype("M8[M]")
        if node.function == "year":
            values = days.astype("M8[Y]").astype(np.int64) + 1970
        elif node.function == "month":
            values = months.astype(np.int64) % 12 + 1
        else:
            values = (days - months.astype("M8[D]")).astype(np.int64) + 1
        return self._out(values.astype(np.int32), pa.int32(), validity(array))

    def time_part(self, node: Call) -> pa.Array:
        exact = self._micros(node.arguments[0])
        unit, count = {"hour": (3_600_000_000, 24), "minute": (60_000_000, 60), "second": (1_000_000, 60)}[node.function]
        return self._out((exact.values // unit % count).astype(np.int32), pa.int32(), exact.valid)

    def unix(self, node: Call) -> pa.Array:
        exact = self._micros(node.arguments[0])
        unit = {"unix_micros": 1, "unix_millis": 1_000, "unix_seconds": 1_000_000}[node.function]
        return self.exact_out(_Exact(exact.values // unit, exact.valid), node.type)

    def same_number(self, node: Call) -> pa.Array:
        """Functions that only give a number another type, and those that ``exact`` knows."""
        exact = self.exact(node if node.function in ("date_add", "datediff") else node.arguments[0])
        return self.exact_out(exact, node.type)


_FUNCTIONS: dict[str, Callable[[_Frame, Call], pa.Array]] = {
    "cast": _Frame.cast,
    "round": _Frame.rounded,
    "floor": _Frame.rounded,
    "ceil": _Frame.rounded,
    "greatest": _Frame.extreme,
    "least": _Frame.extreme,
    "case": _Frame.case,
    "coalesce": _Frame.coalesce,
    "nullif": _Frame.null_if,
    "concat": _Frame.concat,
    **dict.fromkeys(("lower", "upper", "length", "trim", "ltrim", "rtrim"), _Frame.text),
    "substring": _Frame.substring,
    **dict.fromkeys(("year", "month", "day"), _Frame.date_part),
    **dict.fromkeys(("hour", "minute", "second"), _Frame.time_part),
    **dict.fromkeys(("unix_micros", "unix_millis", "unix_seconds"), _Frame.unix),
    **dict.fromkeys(("unix_date", "timestamp_micros", "date_add", "datediff"), _Frame.same_number),
}
_WIDE = Context(prec=400)


def _scalar(literal: Literal) -> pa.Scalar:
    if literal.value is None or not (literal.type == DATE or literal.type.name in INSTANTS or literal.type == INTERVAL):
        return pa.scalar(literal.value, arrow_type(literal.type))
    return pa.scalar(literal.value, pa.int32() if literal.type == DATE else pa.int64()).cast(arrow_type(literal.type))


def _is_stored(node: Node) -> bool:
    """Whether it is a decimal as its type holds it, not the exact result of arithmetic."""
    return node.type.name is TypeName.DECIMAL and (not isinstance(node, Call) or node.function not in _ARITHMETIC)


def _masked(true: Array, known: Array | None) -> _Truth:
    return _Truth(true if known is None else true & known, known)


def _truth_of(array: pa.Array | pa.Scalar) -> _Truth:
    if isinstance(array, pa.Scalar):
        array = pa.array([array.as_py()], pa.bool_())
    known = validity(array)
    if known is None:
        return _Truth(array.to_numpy(zero_copy_only=False), None)
    return _Truth(array.fill_null(False).to_numpy(zero_copy_only=False), known)


def _and(first: _Truth, second: _Truth) -> _Truth:
    true = first.true & second.true
    if first.known is None and second.known is None:
        return _Truth(true, None)
    return _Truth(true, true | first.false | second.false)


def _not(truth: _Truth) -> _Truth:
    return _Truth(truth.false, truth.known)


def _per_distinct(array: pa.Array, convert: Callable[[str], Any], type_: pa.DataType) -> pa.Array:
    """Converts each distinct text once."""
    encoded = array.dictionary_encode()
    converted = pa.array([convert(text) for text in encoded.dictionary.to_pylist()], type_)
    return converted.take(encoded.indices)


def _decimal_text(text: str, target: DataType) -> Decimal | None:
    try:
        value = Decimal(text).quantize(Decimal(1).scaleb(-target.scale), ROUND_HALF_UP, _WIDE)
    except InvalidOperation:
        return None
    return value if value.is_finite() and abs(value) < Decimal(10) ** (target.precision - target.scale) else None


def _parsed_number(text: str, target: DataType) -> Any:
    """A text as Spark reads a number of that type, or None."""
    text = text.strip()
    if "_" in text or not text.isascii():
        return None
    if is_float(target):
        try:
            return float(text)
        except ValueError:
            return None
    if target.name is TypeName.DECIMAL:
        return _decimal_text(text, target)
    try:
        value = Decimal(text)
        whole = int(value.to_integral_value(ROUND_DOWN)) if value.is_finite() and abs(value) < 10**20 else None
    except InvalidOperation:
        return None
    low, high = _LIMITS[target.name]
    return whole if whole is not None and low <= whole <= high else None


def _parsed_booleans(array: pa.Array) -> pa.Array:
    text = pc.utf8_lower(pc.utf8_trim_whitespace(array))
    true = pc.is_in(text, pa.array(["true", "t", "yes", "y", "1"]))
    false = pc.is_in(text, pa.array(["false", "f", "no", "n", "0"]))
    return pc.if_else(true, True, pc.if_else(false, False, pa.scalar(None, pa.bool_())))


def _texts(array: pa.Array, source: DataType) -> pa.Array:
    """Values as text, as Spark prints them."""
    if source.name is TypeName.DECIMAL:
        return pa.array([None if value is None else format(value, "f") for value in array.to_pylist()], pa.string())
    if source.name in INSTANTS:
        printed = array.cast(pa.timestamp("us")).cast(pa.string())
        return pc.replace_substring_regex(printed, r"\.0+$|(\.\d*[1-9])0+$", r"\1")
    if source.name is TypeName.BINARY:
        return pa.array([_decoded(value) for value in array.to_pylist()], pa.string())
    return array.cast(pa.string())


def _decoded(value: bytes | None) -> str | None:
    try:
        return None if value is None else value.decode()
    except UnicodeDecodeError:
        return None
