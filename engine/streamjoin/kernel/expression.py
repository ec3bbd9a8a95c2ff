"""Evaluates SQL expressions over Arrow columns, a batch of rows (or of candidate pairs) at a time.

Three representations meet here, each with its validity beside it: *exact* numbers and *real* ones (``exact``), and the *truth* of
conditions. Text and results are Arrow arrays. ``functions`` and ``casts`` have what is neither arithmetic nor logic.

Always holds: a row's result depends on that row alone, never on which rows it shares a batch with; nothing raises on
data (what has no value is NULL). Comparisons with NaN are FALSE. See ``language.sql`` for where that differs from Spark.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from functools import reduce
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from streamjoin.kernel import faults
from streamjoin.kernel.arrays import Array, arrow_array, both, decimal_limbs, validity, view
from streamjoin.kernel.exact import LIMITS, Exact, Real, exact_literal, exact_of, fitting
from streamjoin.kernel.functions import FUNCTIONS
from streamjoin.kernel.truth import Truth, and_, masked, not_, truth_of
from streamjoin.kernel.types import arrow_type
from streamjoin.language.predicate import INT64_MAX, INT64_MIN
from streamjoin.language.sql import Expression
from streamjoin.language.temporal import date_text, timestamp_text
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
    is_numeric,
    is_point,
)

Columns = Mapping[tuple[str, str], pa.Array]
"""(stream, column) to values, all of one length."""


class Evaluator:
    """Evaluates one expression. Holds only configuration, so it is picklable and may serve any number of threads."""

    def __init__(self, expression: Expression) -> None:
        self.expression = expression

    def evaluate(self, columns: Columns, length: int | None = None) -> pa.Array:
        """The expression's value per row, an array of ``arrow_type(expression.type)``.

        ``columns`` hold at least ``expression.columns``; ``length`` is needed only where they may be empty.
        """
        return Frame(columns, length).value(self.expression.tree)

    def select(self, columns: Columns, length: int | None = None) -> Array:
        """The rows (int64, ascending) where a BOOLEAN expression is TRUE."""
        frame = Frame(columns, length)
        return np.flatnonzero(np.broadcast_to(frame.truth(self.expression.tree).true, frame.length))

    def integers(self, columns: Columns, scale: int, length: int | None = None) -> tuple[Array, Array | None]:
        """The exact value per row times 10**scale, as int64, and which rows have one (None: all).

        For integers, decimals (rounded half up where they have more digits), dates (days) and timestamps
        (microseconds). A row whose number does not fit int64 is not valid. A view of the column's memory where that
        holds the answer.
        """
        frame = Frame(columns, length)
        exact = frame.exact(self.expression.tree).rescaled(scale)
        if exact.values.dtype == np.int64:
            return frame.spread(exact.values), frame.spread_valid(exact.valid)
        values, valid = fitting(exact, INT64_MIN, INT64_MAX)
        if valid is not None and valid is not exact.valid:
            known = np.ones(len(values), bool) if exact.valid is None else exact.valid
            beyond = np.flatnonzero(known & ~valid)
            faults.note(self.expression.tree, len(beyond), [exact.values[beyond[0]]] if len(beyond) else [])
        return frame.spread(values.astype(np.int64, copy=False)), frame.spread_valid(valid)

    def reals(self, columns: Columns, length: int | None = None) -> tuple[Array, Array | None]:
        """The value per row of a numeric or temporal expression as the nearest float64, and which rows have one (None: all)."""
        frame = Frame(columns, length)
        tree = self.expression.tree
        real = frame.real(tree) if is_numeric(tree.type) else frame.exact(tree).real()
        return frame.spread(real.values), frame.spread_valid(real.valid)

    def decimals(self, columns: Columns, type_: DataType, length: int | None = None) -> pa.Array:
        """The exact value per row of an integer or decimal expression as a DECIMAL array; NULL where it does not fit."""
        frame = Frame(columns, length)
        return frame.exact_out(frame.exact(self.expression.tree), type_)


_ARITHMETIC = {"add", "subtract", "multiply", "divide", "modulo", "negate", "abs"}
_MAY_FAIL = _ARITHMETIC | {"cast", "to_timestamp", "timestamp_seconds", "timestamp_millis", "date_add", "round", "floor", "ceil"}
"""What has no value for some arguments that are there."""
_CHOICES = {"case", "coalesce", "nullif"}
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


class Frame:
    """One evaluation: the columns, and how many rows they have. Constants are arrays of length one until ``spread``."""

    def __init__(self, columns: Columns, length: int | None) -> None:
        self.columns = columns
        self.length = length if length is not None else len(next(iter(columns.values())))
        self._choosing = False
        """A value may be of rows that do not need it."""

    def spread(self, values: Array) -> Array:
        """The values of a constant, if that is what they are, for every row."""
        return values if len(values) == self.length else np.broadcast_to(values, self.length)

    def spread_valid(self, valid: Array | None) -> Array | None:
        """:meth:`spread` of a validity."""
        return None if valid is None else self.spread(valid)

    def booleans(self, true: Array, known: Array | None) -> pa.Array:
        """A BOOLEAN array, NULL where it is not known."""
        return pa.array(self.spread(true), mask=None if known is None else ~self.spread(known))

    def out(self, values: Array, type_: pa.DataType, valid: Array | None) -> pa.Array:
        """Values of the type's width as an Arrow array of the frame's length."""
        return arrow_array(self.spread(values), type_, self.spread_valid(valid))

    def value(self, node: Node) -> pa.Array:
        """The node's value as an Arrow array of its type and the frame's length."""
        if isinstance(node, Reference):
            return self.columns[node.stream, node.column]
        if isinstance(node, Literal):
            return pa.repeat(_scalar(node), self.length)
        if node.type == BOOLEAN and node.function in _LOGIC:
            truth = self.truth(node)
            return self.booleans(truth.true, truth.known)
        if node.function in _CHOICES:
            self._choosing, before = True, self._choosing
            try:
                return FUNCTIONS[node.function](self, node)
            finally:
                self._choosing = before
        if node.function not in _ARITHMETIC:
            made = FUNCTIONS[node.function](self, node)
        elif is_float(node.type):
            made = self.real_out(self.real(node), node.type)
        else:
            made = self.exact_out(self.exact(node), node.type)
        if made.null_count and node.function in _MAY_FAIL and not self._choosing:
            self._count_faults(node, made)
        return made

    def _count_faults(self, node: Call, made: pa.Array) -> None:
        """Counts the rows in which the node has no value, though its arguments have."""
        given = [self.value(argument) for argument in node.arguments]
        lost = reduce(np.logical_and, (array.is_valid().to_numpy(zero_copy_only=False) for array in given))
        lost = lost & made.is_null().to_numpy(zero_copy_only=False)
        rows = int(np.count_nonzero(lost))
        if rows:
            first = int(np.argmax(lost))
            faults.note(node, rows, (_shown(array.slice(first, 1)) for array in given))

    def as_type(self, node: Node, type_: DataType) -> pa.Array:
        """The node's value, cast to a type that it is used as."""
        return self.value(node if node.type == type_ else Call("cast", (node,), type_))

    def real_out(self, real: Real, type_: DataType) -> pa.Array:
        """Numbers as a DOUBLE or FLOAT array."""
        with np.errstate(over="ignore"):
            values = real.values if type_ == DOUBLE else real.values.astype(np.float32)
        return self.out(values, arrow_type(type_), real.valid)

    def exact_out(self, exact: Exact, type_: DataType, *, truncate: bool = False) -> pa.Array:
        """Exact numbers as values of an exact or temporal type: rounded to its scale, NULL where they do not fit."""
        exact = exact.rescaled(type_.scale, truncate=truncate)
        if type_.name is TypeName.DECIMAL:
            most = 10**type_.precision - 1
            values, valid = fitting(exact, -most, most)
            if values.dtype == object:
                limbs = np.empty((len(values), 2), np.int64)
                limbs[:, 0] = np.array([value & (2**64 - 1) for value in values], np.uint64).view(np.int64)
                limbs[:, 1] = values >> 64
            else:
                limbs = decimal_limbs(values)
            if len(limbs) != self.length:
                limbs = np.broadcast_to(limbs, (self.length, 2))
            return arrow_array(limbs, arrow_type(type_), self.spread_valid(valid))
        low, high = LIMITS.get(type_.name, LIMITS[TypeName.BIGINT])
        values, valid = fitting(exact, low, high)
        width = np.int32 if type_ == DATE else np.dtype(f"i{INTEGER_BITS.get(type_.name, 64) // 8}")
        return self.out(values.astype(width, copy=False), arrow_type(type_), valid)

    def exact(self, node: Node) -> Exact:
        """The value of an integer, decimal or temporal node without overflow or rounding; dates in days, else microseconds."""
        if isinstance(node, Literal):
            return exact_literal(node)
        if isinstance(node, Call):
            match node.function:
                case "add" | "subtract":
                    first, second = (self.micros(part) if not is_exact(node.type) else self.exact(part) for part in node.arguments)
                    return first.combined(second, operator.add if node.function == "add" else operator.sub)
                case "date_add":
                    return self.exact(node.arguments[0]).combined(self.exact(node.arguments[1]), operator.add)
                case "datediff":
                    return self.exact(node.arguments[0]).combined(self.exact(node.arguments[1]), operator.sub)
                case "multiply":
                    return self.exact(node.arguments[0]).product(self.exact(node.arguments[1]))
                case "divide":
                    quotient = self.exact(node.arguments[0]).quotient(self.exact(node.arguments[1]), node.type.scale)
                    return exact_of(self.exact_out(quotient, node.type), node.type)
                case "modulo":
                    return self.exact(node.arguments[0]).remainder(self.exact(node.arguments[1]))
                case "negate":
                    return self.exact(node.arguments[0]).negated()
                case "abs":
                    return self.exact(node.arguments[0]).absolute()
                case "cast" if node.type.name in INSTANTS and is_point(node.arguments[0].type):
                    return self.micros(node.arguments[0])
        return exact_of(self.value(node), node.type)

    def micros(self, node: Node) -> Exact:
        """A point in time or an interval in microseconds (an integer, as the count of an interval, stays one)."""
        exact = self.exact(node)
        return exact.times(MICROS_PER_DAY) if node.type == DATE else exact

    def real(self, node: Node) -> Real:
        """The value of a numeric node as float64."""
        if is_exact(node.type):
            return self.exact(node).real()
        if isinstance(node, Literal):
            value = node.value
            return Real(np.array([value if isinstance(value, float) else 0.0]), np.zeros(1, bool) if value is None else None)
        if isinstance(node, Call) and node.function in _ARITHMETIC:
            operands = [self.real(part) for part in node.arguments]
            valid = reduce(both, (operand.valid for operand in operands))
            first, second = operands[0].values, operands[-1].values
            with np.errstate(all="ignore"):
                match node.function:
                    case "add":
                        return Real(first + second, valid)
                    case "subtract":
                        return Real(first - second, valid)
                    case "multiply":
                        return Real(first * second, valid)
                    case "divide":
                        return Real(first / second, both(valid, second != 0))
                    case "modulo":
                        return Real(np.fmod(first, second), both(valid, second != 0))
                    case "negate":
                        return Real(-first, valid)
                    case _:
                        return Real(np.abs(first), valid)
        array = self.value(node)
        width = np.float32 if node.type.name is TypeName.FLOAT else np.float64
        return Real(view(array, width).astype(np.float64, copy=False), validity(array))

    def truth(self, node: Node) -> Truth:
        """Where a BOOLEAN node is true, and where it is known."""
        if isinstance(node, Literal):
            known = None if node.value is not None else np.zeros(1, bool)
            return Truth(np.array([bool(node.value)]), known)
        if isinstance(node, Reference) or node.function not in _LOGIC:
            return truth_of(self.value(node))
        if node.function in COMPARISONS:
            return self.comparison(node.function, *node.arguments)
        match node.function:
            case "and":
                return reduce(and_, map(self.truth, node.arguments))
            case "or":
                return not_(reduce(and_, (not_(self.truth(part)) for part in node.arguments)))
            case "not":
                return not_(self.truth(node.arguments[0]))
            case "between":
                middle, low, high = node.arguments
                return and_(self.comparison("ge", middle, low), self.comparison("le", middle, high))
            case "in":
                return self._membership(node)
            case "is_null":
                return Truth(~self.known(node.arguments[0]), None)
            case "isnan":
                real = self.real(node.arguments[0])
                nan = np.isnan(real.values)
                return Truth(nan if real.valid is None else nan & real.valid, None)
        return self._text_test(node)

    def known(self, node: Node) -> Array:
        """The rows where the node is not NULL."""
        valid = validity(self.value(node))
        return np.ones(self.length, bool) if valid is None else valid

    def _membership(self, node: Call) -> Truth:
        wanted, *items = node.arguments
        if wanted.type == STRING and all(isinstance(item, Literal) for item in items):
            texts = [item.value for item in items if isinstance(item, Literal)]
            found = pc.is_in(self.value(wanted), pa.array([text for text in texts if text is not None], pa.string()))
            true = truth_of(found).true
            known = validity(self.value(wanted))
            return Truth(true, true if None in texts else known)
        return not_(reduce(and_, (not_(self.comparison("eq", wanted, item)) for item in items)))

    def comparison(self, function: str, left: Node, right: Node) -> Truth:
        """One of COMPARISONS, on operands of types that compare."""
        if function == "same":
            equal = self.comparison("eq", left, right)
            if equal.known is None:
                return equal
            return Truth(equal.true | ~(self.known(left) | self.known(right)), None)
        if is_numeric(left.type) and is_numeric(right.type) and (is_float(left.type) or is_float(right.type)):
            reals = self.real(left), self.real(right)
            true = _COMPARE[function](reals[0].values, reals[1].values)
            if function == "ne":
                true &= (reals[0].values == reals[0].values) & (reals[1].values == reals[1].values)
            return masked(true, both(reals[0].valid, reals[1].valid))
        if left.type == BOOLEAN:
            truths = self.truth(left), self.truth(right)
            true = _COMPARE[function](truths[0].true.view(np.int8), truths[1].true.view(np.int8))
            return masked(true, both(truths[0].known, truths[1].known))
        if not (is_exact(left.type) or is_point(left.type) or left.type == INTERVAL):
            first = _scalar(left) if isinstance(left, Literal) else self.value(left)
            second = _scalar(right) if isinstance(right, Literal) else self.value(right)
            return truth_of(_COMPARE_TEXT[function](first, second))
        if left.type == right.type == DATE or is_exact(left.type):
            exacts = self.exact(left), self.exact(right)
        else:
            exacts = self.micros(left), self.micros(right)
        if object in (exacts[0].values.dtype, exacts[1].values.dtype) and _is_stored(left) and _is_stored(right):
            return self._wide_comparison(function, left, right)
        scale = max(exacts[0].scale, exacts[1].scale)
        true = _COMPARE[function](exacts[0].at_scale(scale).values, exacts[1].at_scale(scale).values).astype(bool, copy=False)
        return masked(true, both(exacts[0].valid, exacts[1].valid))

    def _wide_comparison(self, function: str, left: Node, right: Node) -> Truth:
        """Decimals as they are stored, compared by Arrow: faster than Python integers, but it has no arithmetic this wide."""
        type_ = pa.decimal256(76, max(left.type.scale, right.type.scale))
        return truth_of(_COMPARE_TEXT[function](self.value(left).cast(type_), self.value(right).cast(type_)))

    def _text_test(self, node: Call) -> Truth:
        subject, pattern = node.arguments
        if isinstance(pattern, Literal):
            if pattern.value is None:
                return Truth(np.zeros(1, bool), np.zeros(1, bool))
            test = {
                "like": pc.match_like,
                "startswith": pc.starts_with,
                "endswith": pc.ends_with,
                "contains": pc.match_substring,
            }[node.function]
            return truth_of(test(self.value(subject), pattern=pattern.value))
        texts, patterns = self.value(subject), self.value(pattern)
        method = {"startswith": str.startswith, "endswith": str.endswith, "contains": str.__contains__}[node.function]
        known = both(validity(texts), validity(patterns))
        true = [
            text is not None and part is not None and method(text, part)
            for text, part in zip(texts.to_pylist(), patterns.to_pylist(), strict=True)
        ]
        return Truth(np.array(true, bool), known)

    def whole_out(self, real: Real, target: DataType) -> pa.Array:
        """Whole float64 numbers as integers; NULL for NaN and what does not fit."""
        low, high = LIMITS[target.name]
        inside = (real.values >= float(low)) & (real.values < float(high + 1))
        values = np.where(inside, real.values, 0).astype(np.int64)
        return self.out(values.astype(f"i{INTEGER_BITS[target.name] // 8}"), arrow_type(target), both(real.valid, inside))


def _scalar(literal: Literal) -> pa.Scalar:
    if literal.value is None or not (literal.type == DATE or literal.type.name in INSTANTS or literal.type == INTERVAL):
        return pa.scalar(literal.value, arrow_type(literal.type))
    return pa.scalar(literal.value, pa.int32() if literal.type == DATE else pa.int64()).cast(arrow_type(literal.type))


def _shown(value: pa.Array) -> object:
    """The only value of an array, also of times that Python has not."""
    if pa.types.is_date(value.type):
        return date_text(value.cast(pa.int32())[0].as_py())
    if pa.types.is_timestamp(value.type):
        return timestamp_text(value.cast(pa.int64())[0].as_py())
    return value.cast(pa.int64())[0].as_py() if pa.types.is_duration(value.type) else value[0].as_py()


def _is_stored(node: Node) -> bool:
    """Whether it is a decimal as its type holds it, not the exact result of arithmetic."""
    return node.type.name is TypeName.DECIMAL and (not isinstance(node, Call) or node.function not in _ARITHMETIC)
