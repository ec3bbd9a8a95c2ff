"""Converts values, as files hold them, to the declared column types, one column at a time.

Always holds: a value either arrives exactly, or its row is reported; nothing is rounded but text that becomes a binary
floating-point number, and times finer than a microsecond, which lose what is below it. A column is converted in one
vectorised step; only where that fails is it divided, down to the values that do not fit, so a bad value costs little.
"""

from __future__ import annotations

import base64
import binascii
import decimal
import json
import re
from collections.abc import Callable, MutableMapping
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from streamjoin.kernel.types import arrow_type
from streamjoin.language.temporal import date_days, timestamp_micros
from streamjoin.language.types import DataType, TypeName

Problems: TypeAlias = MutableMapping[int, str]
"""What is wrong with a row, by its number; the first column that complains is kept."""

PARTS = 16
SHOWN = 100
"""Characters of a value that an error message shows."""

_NAMES = {arrow_type(DataType(name)): str(name) for name in TypeName if name is not TypeName.DECIMAL}
_MICROS_PER = {"s": 1_000_000, "ms": 1_000, "us": 1}

ARROW_DIGITS = 38
"""Arrow makes right decimals of texts of so many characters, less the type's scale, that have no exponent."""
_NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_FAR = re.compile(r"[+-][0-9]{4,7}-[0-9]{2}-[0-9]{2}([T ][0-9]{2}:[0-9]{2}(?::[0-9]{2}(?:\.[0-9]+)?(?:Z|[+-][0-9]{2}(?::?[0-9]{2})?)?)?)?")
_EXACT = decimal.Context(76, Emin=decimal.MIN_EMIN, Emax=decimal.MAX_EMAX, traps=[decimal.Inexact, decimal.InvalidOperation])

Step: TypeAlias = Callable[[pa.Array], pa.Array]


def sql_name(kind: pa.DataType) -> str:
    """The SQL type of a declared column's Arrow type."""
    if pa.types.is_decimal(kind):
        return f"DECIMAL({kind.precision},{kind.scale})"
    return _NAMES.get(kind, str(kind))


def from_text(column: pa.Array, kind: pa.DataType, name: str, problems: Problems) -> pa.Array:
    """Strings as values of ``kind``; O(length), and O(PARTS * log length) steps for each value that does not fit.

    Times are ISO 8601: without a zone UTC is meant, a wall-clock column ignores a zone, and years below 0 and above 9999 have a sign. Bytes
    are base64. An integer may be written as 1.0 or 1e3.
    """
    if pa.types.is_string(kind):
        return column
    return _convert(column, _text_step(kind), kind, name, problems)


def from_arrow(column: pa.Array, kind: pa.DataType, name: str, problems: Problems) -> pa.Array:
    """A file's column as values of ``kind``, where :func:`readable` allows it; complexity as :func:`from_text`."""
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if pa.types.is_string(kind):
        return _convert(column, _text, kind, name, problems)
    if column.type == kind:
        return column
    if pa.types.is_timestamp(kind):
        return _convert(column, lambda part: _micros(part).cast(kind), kind, name, problems)
    if pa.types.is_decimal(kind) and pa.types.is_integer(column.type):
        # NB: Arrow refuses the direct cast by its types, even where all values fit.
        wide = pa.decimal256(20 + kind.scale, kind.scale)
        return _convert(column, lambda part: part.cast(wide).cast(kind), kind, name, problems)
    return _convert(column, lambda part: part.cast(kind), kind, name, problems)


def readable(found: pa.DataType, kind: pa.DataType) -> bool:
    """Whether a file's column of type ``found`` can be read as a declared ``kind`` without loss, value by value."""
    is_type = pa.types
    if is_type.is_dictionary(found):
        found = found.value_type
    if found == kind or is_type.is_null(found):
        return True
    if is_type.is_integer(found):
        return bool(is_type.is_integer(kind) or is_type.is_floating(kind) or is_type.is_decimal(kind))
    if is_type.is_floating(found):
        return bool(is_type.is_floating(kind) and found.bit_width <= kind.bit_width)
    if is_type.is_decimal(found):
        return bool(is_type.is_decimal(kind))
    if is_type.is_timestamp(found):
        return bool(is_type.is_timestamp(kind))
    if is_type.is_date(found):
        return bool(is_type.is_date(kind))
    texts = (is_type.is_string, is_type.is_large_string, is_type.is_string_view)
    blobs = (is_type.is_binary, is_type.is_large_binary, is_type.is_binary_view, is_type.is_fixed_size_binary)
    if any(test(found) for test in texts + blobs):
        return bool(is_type.is_string(kind) or is_type.is_binary(kind))
    return False


def _convert(column: pa.Array, step: Step, kind: pa.DataType, name: str, problems: Problems, *, first: int = 0) -> pa.Array:
    try:
        return step(column)
    except (pa.ArrowInvalid, ValueError):
        if len(column) == 1:
            problems.setdefault(first, misfit(name, json.dumps(plain(column[0]), ensure_ascii=False, default=str), kind))
            return pa.nulls(1, kind)
    size = -(-len(column) // PARTS)
    starts = range(0, len(column), size)
    parts = [_convert(column.slice(at, size), step, kind, name, problems, first=first + at) for at in starts]
    return pa.concat_arrays(parts)


def _text(column: pa.Array) -> pa.Array:
    """Raises ArrowInvalid where it is not UTF-8: a damaged file may have anything, and Arrow does not look."""
    text = column.cast(pa.string())
    _, ends, data = text.buffers()
    if data is not None and len(text):
        start, end = np.frombuffer(ends, np.int32)[[text.offset, text.offset + len(text)]]
        if np.frombuffer(data, np.uint8)[start:end].max(initial=0) >= 128:  # else it is ASCII, which is soon seen
            text.validate(full=True)
    return text


def utf8(column: pa.Array, name: str, problems: Problems) -> pa.Array:
    """Binary values as text; those that are not UTF-8 go to ``problems``. O(bytes)."""
    try:
        return column.cast(pa.string())
    except pa.ArrowInvalid:
        texts: list[str | None] = []
    for row, value in enumerate(column.to_pylist()):
        try:
            texts.append(None if value is None else value.decode())
        except UnicodeDecodeError as error:
            problems.setdefault(row, f"column {name}: is not UTF-8 (byte {error.start})")
            texts.append(None)
    return pa.array(texts, pa.string())


def plain(value: pa.Scalar) -> object:
    """A value for people to read."""
    try:
        return value.as_py()
    except UnicodeDecodeError:
        return value.cast(pa.binary()).as_py().decode(errors="backslashreplace")
    except (ValueError, OverflowError):
        # Times that Python's datetime cannot hold.
        return f"{value.cast(pa.int64()).as_py()} as {value.type}"


def row_text(batch: pa.RecordBatch, row: int) -> str:
    """A row as JSON for people to read. O(columns)."""
    values = {name: plain(column[row]) for name, column in zip(batch.schema.names, batch.columns, strict=True)}
    return json.dumps(values, ensure_ascii=False, default=str)


def shortened(text: str) -> str:
    """A value, as it is shown in a reason."""
    return text if len(text) <= SHOWN else text[:SHOWN] + "..."


def misfit(name: str, shown: str, kind: pa.DataType) -> str:
    """The text for a value, as it is to be shown, that is not one of the column's type."""
    shown = shortened(shown)
    unit = {10: "s", 13: "ms", 16: "us", 19: "ns"}.get(len(shown.strip('"'))) if re.fullmatch('"?[0-9]+"?', shown) else None
    remedy = f"; if it counts {unit} since 1970, declare {name} as BIGINT, and eventTime: {{column: {name}, unit: {unit}}}"
    return f"column {name}: {shown} is not a value of {sql_name(kind)}" + remedy * (pa.types.is_timestamp(kind) and unit is not None)


def _text_step(kind: pa.DataType) -> Step:
    if pa.types.is_integer(kind):
        parse = _integers
    elif pa.types.is_floating(kind):
        parse = _floats
    elif pa.types.is_decimal(kind):
        parse = _decimals
    elif pa.types.is_timestamp(kind):
        parse = _zoned if kind.tz is not None else _unzoned
    elif pa.types.is_binary(kind):
        parse = _bytes
    else:
        parse = _plain

    def step(column: pa.Array) -> pa.Array:
        try:
            return parse(column, kind)
        except pa.ArrowInvalid:
            if len(column) > 1:
                raise
            trimmed = pc.utf8_trim_whitespace(column)
            try:
                return parse(trimmed, kind)
            except pa.ArrowInvalid:
                return _far_time(trimmed[0].as_py(), kind)

    return step


def _far_time(text: str, kind: pa.DataType) -> pa.Array:
    """A time of a year that has a sign, as ISO 8601 writes those before year 0 and after 9999."""
    match = _FAR.fullmatch(text)
    if match and pa.types.is_timestamp(kind):
        number = timestamp_micros(text, zoned=kind.tz is not None)
    else:
        number = date_days(text) if match and pa.types.is_date(kind) and not match[1] else None
    if number is None:
        raise pa.ArrowInvalid("no time")
    return pa.array([number], pa.int32() if pa.types.is_date(kind) else pa.int64()).cast(kind)


def _plain(column: pa.Array, kind: pa.DataType) -> pa.Array:
    return column.cast(kind)


def _integers(column: pa.Array, kind: pa.DataType) -> pa.Array:
    # NB: Arrow reads "0xFF", as -1 where the type has eight bits.
    if pc.any(pc.match_substring(column, "x", ignore_case=True)).as_py():
        raise pa.ArrowInvalid("hexadecimal")
    try:
        return column.cast(kind)
    except pa.ArrowInvalid:
        whole = pc.replace_substring_regex(column, r"^([0-9+-]+)\.0+$", r"\1")
        if len(whole) == 1:
            exact = exact_decimal(whole[0].as_py(), 0)
            whole = whole if exact is None or exact.adjusted() > 20 else pa.array([str(int(exact))])
        return whole.cast(kind)


def _floats(column: pa.Array, kind: pa.DataType) -> pa.Array:
    values = column.cast(kind)
    infinite, zero = pc.is_inf(values), pc.equal(values, 0)
    # NB: Arrow reads a number too large for the type as infinity, and one too small as zero.
    named = pc.match_substring(column, "inf", ignore_case=True)
    if pc.any(infinite).as_py() and pc.any(pc.and_not(infinite, named)).as_py():
        raise pa.ArrowInvalid("out of range")
    if pc.any(zero).as_py() and pc.any(pc.and_(zero, pc.match_substring_regex(column, "^[^eE]*[1-9]"))).as_py():
        raise pa.ArrowInvalid("out of range")
    return values


def _decimals(column: pa.Array, kind: pa.DataType) -> pa.Array:
    longest = pc.max(pc.binary_length(column)).as_py() or 0
    # NB: Arrow multiplies by powers of ten without a look at what overflows, so that other digits come of long numbers.
    if longest + kind.scale <= ARROW_DIGITS and not pc.any(pc.match_substring(column, "e", ignore_case=True)).as_py():
        return column.cast(kind)
    values = [None if text is None else exact_decimal(text, kind.scale) for text in column.to_pylist()]
    if values.count(None) > column.null_count:
        raise pa.ArrowInvalid("no decimal")
    return pa.array(values, kind)


def exact_decimal(text: str, scale: int) -> decimal.Decimal | None:
    """The number with so many digits behind its point; None where the text is none, needs more of them, or has more than 76 in all."""
    try:
        return _EXACT.quantize(decimal.Decimal(text), decimal.Decimal(1).scaleb(-scale)) if _NUMBER.fullmatch(text) else None
    except decimal.DecimalException:
        return None


def _zoned(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """Instants: all values with a zone, or all without one. A mixture fails, so that the caller divides it."""
    column = _shorten(column)
    try:
        return column.cast(kind)
    except pa.ArrowInvalid:
        return column.cast(pa.timestamp("us")).cast(pa.int64()).cast(kind)


def _unzoned(column: pa.Array, kind: pa.DataType) -> pa.Array:
    column = _shorten(column)
    try:
        return column.cast(kind)
    except pa.ArrowInvalid:
        return pc.replace_substring_regex(column, r"([T ].*)(Z|[+-]\d{2}(:?\d{2})?)$", r"\1").cast(kind)


def _shorten(column: pa.Array) -> pa.Array:
    """Without the digits below a microsecond, which Arrow refuses."""
    longest = pc.max(pc.binary_length(column)).as_py()
    if longest is None or longest <= len("2026-01-01T00:00:00.000000"):
        return column
    return pc.replace_substring_regex(column, r"(\.\d{6})\d+", r"\1")


def _bytes(column: pa.Array, kind: pa.DataType) -> pa.Array:
    try:
        values = [None if text is None else base64.b64decode(text, validate=True) for text in column.to_pylist()]
    except binascii.Error as error:
        raise pa.ArrowInvalid(str(error)) from None
    return pa.array(values, kind)


def _micros(column: pa.Array) -> pa.Array:
    """Timestamps of any unit as int64 microseconds, rounded down."""
    unit = column.type.unit
    values = column.cast(pa.int64())
    if unit != "ns":
        return pc.multiply_checked(values, _MICROS_PER[unit])
    quotient = pc.divide(values, 1000)
    below = pc.less(values, pc.multiply(quotient, 1000))
    return pc.if_else(below, pc.subtract(quotient, 1), quotient)
