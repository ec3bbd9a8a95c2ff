"""Texts read as times by a datetime pattern (``language.time_pattern``), a column at a time."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from streamjoin.kernel.arrays import Array
from streamjoin.language.time_pattern import MONTHS, TimePattern

_MONTH_NUMBERS = pa.array([name[:3].lower() for name in MONTHS])
_LATEST_YEAR = 294_246
"""The last whole year of which all times have 64 bits."""


def micros_of(texts: pa.Array, pattern: TimePattern) -> pa.Array:
    """Microseconds since 1970 UTC; NULL where a text is no time by the pattern. O(bytes)."""
    found = pc.extract_regex(texts, pattern.text)
    known = found.is_valid().to_numpy(zero_copy_only=False)
    parts = {name: found.field(number) for number, name in enumerate(pattern.fields)}
    zero = np.zeros(len(texts), np.int64)

    def number(name: str, first: int = 0) -> Array:
        if name not in parts:
            return zero + first
        digits = pc.utf8_ltrim(parts[name], characters="+")
        numbers: Array = pc.fill_null(pc.if_else(pa.array(known), digits, None).cast(pa.int64()), first).to_numpy()
        return numbers

    year = number("year") if "year" in parts else 2000 + number("short year")
    month = number("month", 1)
    if "month name" in parts:
        names = pc.utf8_slice_codeunits(pc.ascii_lower(parts["month name"]), 0, 3)
        month = pc.fill_null(pc.index_in(names, _MONTH_NUMBERS), 0).to_numpy() + np.int64(1)
    hour = number("hour")
    if "half hour" in parts:
        half = number("half hour", 1)
        known = known & (half >= 1) & (half <= 12)
        is_later = pc.fill_null(pc.equal(pc.ascii_lower(parts["half"]), "pm"), False).to_numpy(zero_copy_only=False)
        hour = half % 12 + 12 * is_later
    minute, second, day = number("minute"), number("second"), number("day", 1)
    known = known & (year <= _LATEST_YEAR) & (month >= 1) & (month <= 12) & (day >= 1) & (hour < 24) & (minute < 60) & (second < 60)
    months = (np.where(known, year - 1970, 0) * 12 + np.where(known, month - 1, 0)).astype("M8[M]")
    days = months.astype("M8[D]").astype(np.int64)
    known &= day <= (months + 1).astype("M8[D]").astype(np.int64) - days
    offset, is_offset = _offset_minutes(parts["offset"]) if "offset" in parts else (zero, True)
    known &= is_offset
    seconds = ((days + day - 1) * 24 + hour) * 3600 + minute * 60 + second - offset * 60
    micros = np.where(known, seconds, 0) * 1_000_000
    if "fraction" in parts:
        digits = pc.utf8_slice_codeunits(pc.utf8_rpad(pc.fill_null(parts["fraction"], ""), 6, "0"), 0, 6)
        micros += pc.if_else(pa.array(known), digits, "0").cast(pa.int64()).to_numpy()
    return pa.array(micros, mask=~known)


def _offset_minutes(texts: pa.Array) -> tuple[Array, Array]:
    """Minutes that clocks are ahead of UTC, and which texts are offsets: of at most 18 hours."""
    texts = pc.fill_null(texts, "Z")
    digits = pc.utf8_rpad(pc.replace_substring_regex(pc.replace_substring_regex(texts, "[zZ]", "0000"), "[+:-]", ""), 4, "0")
    number = digits.cast(pa.int64()).to_numpy()
    minutes = number // 100 * 60 + number % 100
    sign = np.where(pc.starts_with(texts, "-").to_numpy(zero_copy_only=False), -1, 1)
    return sign * minutes, (number % 100 < 60) & (minutes <= 18 * 60)
