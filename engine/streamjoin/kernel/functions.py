"""The functions of SQL that are neither arithmetic nor logic."""

from __future__ import annotations

from collections.abc import Callable
from decimal import ROUND_FLOOR, ROUND_HALF_UP, Decimal
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from streamjoin.kernel.arrays import arrow_array, validity, view
from streamjoin.kernel.casts import WIDE, cast, per_distinct
from streamjoin.kernel.exact import Exact, Real
from streamjoin.kernel.time_texts import micros_of
from streamjoin.kernel.types import arrow_type
from streamjoin.language.event_time import DIGITS
from streamjoin.language.time_pattern import time_pattern
from streamjoin.language.tree import Call, Literal
from streamjoin.language.types import STRING, TypeName, is_exact, is_float

if TYPE_CHECKING:
    from streamjoin.kernel.expression import Frame


def rounded(frame: Frame, node: Call) -> pa.Array:
    operand = node.arguments[0]
    if is_exact(operand.type):
        exact = frame.exact(operand)
        if node.function == "floor":
            exact = exact.floor()
        elif node.function == "ceil":
            exact = exact.negated().floor().negated()
        return frame.exact_out(exact, node.type)
    real = frame.real(operand)
    if node.function != "round":
        return frame.whole_out(
            Real(np.floor(real.values) if node.function == "floor" else np.ceil(real.values), real.valid),
            node.type,
        )
    digits = node.arguments[1].value if isinstance(node.arguments[1], Literal) else 0
    step = Decimal(1).scaleb(-int(digits or 0))
    values = frame.spread(real.values)
    # Beyond 2**52 there are no fractions; below, the decimal that the number prints as decides, as in Spark.
    results = [
        float(Decimal(repr(value)).quantize(step, ROUND_HALF_UP, WIDE)) if abs(value) < 2**52 else value for value in values.tolist()
    ]
    return frame.out(np.array(results, np.float64), pa.float64(), real.valid)


def extreme(frame: Frame, node: Call) -> pa.Array:
    """GREATEST and LEAST: nulls are skipped; NaN is greater than any number."""
    arrays = [frame.as_type(part, node.type) for part in node.arguments]
    greatest = node.function == "greatest"
    if not is_float(node.type):
        of_arrays = pc.max_element_wise if greatest else pc.min_element_wise
        if node.type.name is TypeName.TIMESTAMP:  # Arrow does not compare times with a zone
            return of_arrays(*(array.cast(pa.int64()) for array in arrays), skip_nulls=True).cast(arrays[0].type)
        return of_arrays(*arrays, skip_nulls=True)
    width = np.float32 if node.type.name is TypeName.FLOAT else np.float64
    values = np.full(frame.length, np.nan, width)
    known = np.zeros(frame.length, bool)
    for array in arrays:
        number, valid = view(array, width), validity(array)
        present = np.ones(frame.length, bool) if valid is None else valid
        pick = np.maximum(values, number) if greatest else np.fmin(values, number)
        values = np.where(present, np.where(known, pick, number), values)
        known |= present
    return arrow_array(values, arrow_type(node.type), known)


def case(frame: Frame, node: Call) -> pa.Array:
    conditions = [frame.value(part) for part in node.arguments[:-1:2]]
    values = [frame.as_type(part, node.type) for part in (*node.arguments[1::2], node.arguments[-1])]
    return pc.case_when(pc.make_struct(*conditions), *values)


def coalesce(frame: Frame, node: Call) -> pa.Array:
    return pc.coalesce(*(frame.as_type(part, node.type) for part in node.arguments))


def null_if(frame: Frame, node: Call) -> pa.Array:
    equal = frame.spread(frame.comparison("eq", *node.arguments).true)
    return pc.if_else(pa.array(equal), pa.scalar(None, arrow_type(node.type)), frame.value(node.arguments[0]))


def concat(frame: Frame, node: Call) -> pa.Array:
    return pc.binary_join_element_wise(*(frame.as_type(part, STRING) for part in node.arguments), "")


def text(frame: Frame, node: Call) -> pa.Array:
    array = frame.value(node.arguments[0])
    match node.function:
        case "lower":
            return _in_case(array, pc.ascii_lower, str.lower)
        case "upper":
            return _in_case(array, pc.ascii_upper, str.upper)
        case "length":
            return pc.utf8_length(array)
        case "ltrim":
            return pc.utf8_ltrim(array, characters=" ")
        case "rtrim":
            return pc.utf8_rtrim(array, characters=" ")
    return pc.utf8_trim(array, characters=" ")


def _in_case(array: pa.Array, of_ascii: Callable[[pa.Array], pa.Array], of_text: Callable[[str], str]) -> pa.Array:
    """In upper or lower case as Unicode has it, where one character may become several; Arrow maps each to one."""
    if pc.all(pc.string_is_ascii(array)).as_py() is not False:
        return of_ascii(array)
    return per_distinct(array, of_text, pa.string())


def substring(frame: Frame, node: Call) -> pa.Array:
    """Counts from 1, or from the end when negative; 0 is the same as 1."""
    array = frame.value(node.arguments[0])
    start, *length = (int(part.value or 0) for part in node.arguments[1:] if isinstance(part, Literal))
    begin = start - 1 if start > 0 else start
    if not length:
        return pc.utf8_slice_codeunits(array, begin)
    if length[0] <= 0:
        return pc.utf8_slice_codeunits(array, 0, 0)
    end: int | None = begin + length[0]
    return pc.utf8_slice_codeunits(array, begin, None if begin < 0 and begin + length[0] >= 0 else end)


def date_part(frame: Frame, node: Call) -> pa.Array:
    array = frame.value(node.arguments[0])
    days = view(array, np.int32).astype("M8[D]")
    months = days.astype("M8[M]")
    if node.function == "year":
        values = days.astype("M8[Y]").astype(np.int64) + 1970
    elif node.function == "month":
        values = months.astype(np.int64) % 12 + 1
    else:
        values = (days - months.astype("M8[D]")).astype(np.int64) + 1
    return frame.out(values.astype(np.int32), pa.int32(), validity(array))


def time_part(frame: Frame, node: Call) -> pa.Array:
    exact = frame.micros(node.arguments[0])
    unit, count = {"hour": (3_600_000_000, 24), "minute": (60_000_000, 60), "second": (1_000_000, 60)}[node.function]
    return frame.out((exact.values // unit % count).astype(np.int32), pa.int32(), exact.valid)


def unix(frame: Frame, node: Call) -> pa.Array:
    exact = frame.micros(node.arguments[0])
    unit = {"unix_micros": 1, "unix_millis": 1_000, "unix_seconds": 1_000_000}[node.function]
    return frame.exact_out(Exact(exact.values // unit, exact.valid), node.type)


def to_timestamp(frame: Frame, node: Call) -> pa.Array:
    """Text by a pattern."""
    text, pattern = node.arguments
    assert isinstance(pattern, Literal)
    return micros_of(frame.value(text), time_pattern(str(pattern.value))).cast(arrow_type(node.type))


def since_epoch(frame: Frame, node: Call) -> pa.Array:
    """Numbers of a unit since 1970, as the digits that they are written with; what is below a microsecond is dropped, towards the past.

    NULL where they are no number, or of a time that a TIMESTAMP cannot hold.
    """
    operand, unit = node.arguments
    assert isinstance(unit, Literal)
    power = DIGITS[str(unit.value)]
    if is_exact(operand.type):
        exact = frame.exact(operand)
        exact = exact.times(10**power) if power >= 0 else Exact(exact.values, exact.valid, exact.scale - power, exact.bound)
        return frame.exact_out(exact.floor(), node.type)
    real = frame.real(operand)
    values = frame.spread(real.values)
    with np.errstate(all="ignore"):
        micros = np.rint(values * 10.0**power)
        # Of a number with few digits, the nearest microsecond is the one that it was written as.
        is_sure = (micros / 10.0**power == values) & (np.abs(micros) < 2**53) & (power >= 0)
    found = np.where(is_sure, micros, 0).astype(np.int64)
    known = is_sure if real.valid is None else is_sure & frame.spread(real.valid)
    others = ~is_sure & np.isfinite(values)
    for row in np.flatnonzero(others if real.valid is None else others & frame.spread(real.valid)).tolist():
        number = int(Decimal(repr(float(values[row]))).scaleb(power, WIDE).to_integral_value(ROUND_FLOOR, WIDE))
        if -(2**63) <= number < 2**63:
            found[row], known[row] = number, True
    return frame.out(found, arrow_type(node.type), known)


def same_number(frame: Frame, node: Call) -> pa.Array:
    """Functions that only give a number another type, and those that ``exact`` knows."""
    exact = frame.exact(node if node.function in ("date_add", "datediff") else node.arguments[0])
    exact = exact.times({"timestamp_seconds": 1_000_000, "timestamp_millis": 1_000}.get(node.function, 1))
    return frame.exact_out(exact, node.type)


FUNCTIONS: dict[str, Callable[[Frame, Call], pa.Array]] = {
    "cast": cast,
    "round": rounded,
    "floor": rounded,
    "ceil": rounded,
    "greatest": extreme,
    "least": extreme,
    "case": case,
    "coalesce": coalesce,
    "nullif": null_if,
    "concat": concat,
    **dict.fromkeys(("lower", "upper", "length", "trim", "ltrim", "rtrim"), text),
    "substring": substring,
    **dict.fromkeys(("year", "month", "day"), date_part),
    **dict.fromkeys(("hour", "minute", "second"), time_part),
    **dict.fromkeys(("unix_micros", "unix_millis", "unix_seconds"), unix),
    **dict.fromkeys(("unix_date", "timestamp_micros", "timestamp_millis", "timestamp_seconds", "date_add", "datediff"), same_number),
    "to_timestamp": to_timestamp,
    "since_epoch": since_epoch,
}
