"""CAST, as Spark with ANSI off: what cannot be converted is NULL."""

from __future__ import annotations

import re
from collections.abc import Callable
from decimal import ROUND_HALF_UP, Context, Decimal, DecimalException
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from streamjoin.kernel.arrays import time_texts, view
from streamjoin.kernel.exact import LIMITS, Exact, Real, exact_of
from streamjoin.kernel.types import arrow_type
from streamjoin.language.temporal import BLANKS, JAVA_BLANKS, date_days, date_text, timestamp_micros, timestamp_text
from streamjoin.language.tree import Call, Literal, Node
from streamjoin.language.types import (
    BIGINT,
    BOOLEAN,
    DATE,
    INSTANTS,
    INT,
    MICROS_PER_DAY,
    STRING,
    TIMESTAMP,
    DataType,
    TypeName,
    is_exact,
    is_float,
    is_integer,
    is_numeric,
    is_point,
)

if TYPE_CHECKING:
    from streamjoin.kernel.expression import Frame

WIDE = Context(prec=400)
"""Digits enough for any DOUBLE written out."""


_WHOLE = re.compile(r"([+-]?)(\d*)(?:\.\d*)?", re.ASCII)
_REAL = re.compile(r"([+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)[dDfF]?", re.ASCII)
_HEXADECIMAL = re.compile(r"([+-]?0[xX](?:[\da-fA-F]+\.?|[\da-fA-F]*\.[\da-fA-F]+)[pP][+-]?\d+)[dDfF]?", re.ASCII)
_DECIMAL = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?0*(\d{1,10}))?")
"""Of any script's digits."""
_NAMED = {sign + name: value for sign, value in [("", "inf"), ("+", "inf"), ("-", "-inf")] for name in ("inf", "infinity")} | {"nan": "nan"}


def per_distinct(array: pa.Array, convert: Callable[[str], Any], type_: pa.DataType) -> pa.Array:
    """Converts each distinct text once."""
    encoded = array.dictionary_encode()
    converted = pa.array([convert(text) for text in encoded.dictionary.to_pylist()], type_)
    return converted.take(encoded.indices)


def _decimal_text(text: str, target: DataType) -> Decimal | None:
    try:
        value = Decimal(text).quantize(Decimal(1).scaleb(-target.scale), ROUND_HALF_UP, WIDE)
    except DecimalException:
        return None
    return value if value.is_finite() and abs(value) < Decimal(10) ** (target.precision - target.scale) else None


def _parsed_number(text: str, target: DataType) -> Any:
    """A text as Spark reads an integer or decimal of that type, or None."""
    if target.name is TypeName.DECIMAL:
        text = text.strip(JAVA_BLANKS)
        match = _DECIMAL.fullmatch(text)
        return _decimal_text(text, target) if match and int(match[1] or 0) < 2**31 else None
    match = _WHOLE.fullmatch(text.strip(BLANKS))
    if match is None or match[0] in ("", "+", "-"):
        return None
    digits = match[2].lstrip("0") or "0"
    whole = int(match[1] + digits) if len(digits) < 20 else None
    low, high = LIMITS[target.name]
    return whole if whole is not None and low <= whole <= high else None


def _parsed_real(text: str) -> str | None:
    """A text as Spark reads a DOUBLE or FLOAT, as one that Arrow reads, or None."""
    text = text.strip(JAVA_BLANKS)
    match = _REAL.fullmatch(text)
    if match is not None:
        return match[1]
    if text in ("+NaN", "-NaN"):
        return "nan"
    match = _HEXADECIMAL.fullmatch(text)
    if match is None:
        return _NAMED.get(text.lower())
    try:
        return repr(float.fromhex(match[1]))
    except OverflowError:
        return "-inf" if text.startswith("-") else "inf"


def _parsed_booleans(array: pa.Array) -> pa.Array:
    text = pc.ascii_lower(pc.utf8_trim(array, characters=BLANKS))
    true = pc.is_in(text, pa.array(["true", "t", "yes", "y", "1"]))
    false = pc.is_in(text, pa.array(["false", "f", "no", "n", "0"]))
    return pc.if_else(true, True, pc.if_else(false, False, pa.scalar(None, pa.bool_())))


def _texts(array: pa.Array, source: DataType) -> pa.Array:
    """Values as text, as Spark prints them."""
    if source.name is TypeName.DECIMAL:
        return pa.array([None if value is None else str(value) for value in array.to_pylist()], pa.string())
    if is_float(source):
        values = view(array, np.float32 if source.name is TypeName.FLOAT else np.float64)
        texts = pa.array([_real_text(value) for value in values], pa.string())
        return texts if array.null_count == 0 else pc.if_else(array.is_valid(), texts, None)
    if source == DATE:
        return time_texts(array, date_text)
    if source.name in INSTANTS:
        printed = time_texts(array.cast(pa.timestamp("us")), timestamp_text)
        return pc.replace_substring_regex(printed, r"\.0+$|(\.\d*[1-9])0+$", r"\1")
    if source.name is TypeName.BINARY:
        return pa.array([_decoded(value) for value in array.to_pylist()], pa.string())
    return array.cast(pa.string())


def _real_text(value: Any) -> str:
    """As Java prints it, with the fewest digits that tell it from others of its type."""
    if np.isnan(value):
        return "NaN"
    if np.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    if value == 0 or 1e-3 <= abs(value) < 1e7:
        return str(np.format_float_positional(value, trim="0"))
    return str(np.format_float_scientific(value, trim="0", exp_digits=1)).replace("e+", "E").replace("e", "E")


def _decoded(value: bytes | None) -> str | None:
    try:
        return None if value is None else value.decode()
    except UnicodeDecodeError:
        return None


def cast(frame: Frame, node: Call) -> pa.Array:
    """CAST: what cannot be converted is NULL."""
    source, target = node.arguments[0], node.type
    if source.type == target:
        return frame.value(source)
    if is_numeric(target):
        return _cast_number(frame, source, target)
    if is_point(source.type) and is_point(target):
        exact = frame.micros(source)
        if target == DATE:
            exact = Exact(exact.values // MICROS_PER_DAY, exact.valid, 0, exact.limit() // MICROS_PER_DAY + 1)
        return frame.exact_out(exact, target)
    array = frame.value(source)
    if target == BOOLEAN:
        return _parsed_booleans(array) if source.type == STRING else _nonzero(frame, source)
    if target == STRING:
        return _texts(array, source.type)
    if source.type == STRING and is_point(target):
        parse = date_days if target == DATE else partial(timestamp_micros, zoned=target == TIMESTAMP)
        parsed = per_distinct(array, parse, pa.int64())
        return frame.exact_out(exact_of(parsed, BIGINT), target)
    return array.cast(arrow_type(target))


def _nonzero(frame: Frame, source: Node) -> pa.Array:
    zero = Literal(0, INT)
    if is_float(source.type):
        real = frame.real(source)
        return frame.booleans(real.values != 0, real.valid)
    return frame.value(Call("ne", (source, zero), BOOLEAN))


def _cast_number(frame: Frame, source: Node, target: DataType) -> pa.Array:
    if is_exact(source.type):
        if is_float(target):
            return frame.real_out(frame.exact(source).real(), target)
        return frame.exact_out(frame.exact(source), target, truncate=is_integer(target))
    if is_float(source.type):
        real = frame.real(source)
        if is_float(target):
            return frame.real_out(real, target)
        if is_integer(target):
            return frame.whole_out(Real(np.trunc(real.values), real.valid), target)
        return _each(frame, real, target, lambda value: _decimal_text(repr(value), target))
    if source.type == BOOLEAN:
        truth = frame.truth(source)
        exact = Exact(truth.true.astype(np.int64), truth.known, 0, 1)
        return frame.real_out(exact.real(), target) if is_float(target) else frame.exact_out(exact, target)
    if source.type == STRING:
        if is_float(target):
            return per_distinct(frame.value(source), _parsed_real, pa.string()).cast(arrow_type(target))
        return per_distinct(frame.value(source), lambda text: _parsed_number(text, target), arrow_type(target))
    micros = frame.exact(source)
    seconds = Exact(micros.values // 1_000_000, micros.valid, 0, micros.limit() // 1_000_000 + 1)
    return frame.exact_out(seconds, target)


def _each(frame: Frame, real: Real, target: DataType, convert: Callable[[float], Any]) -> pa.Array:
    values, valid = frame.spread(real.values), frame.spread_valid(real.valid)
    known = np.isfinite(values) if valid is None else np.isfinite(values) & valid
    results = [convert(value) if ok else None for value, ok in zip(values.tolist(), known.tolist(), strict=True)]
    return pa.array(results, arrow_type(target))
