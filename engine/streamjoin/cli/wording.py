"""Numbers, times and durations as people read them."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def count(value: float) -> str:
    """``1,234,567``."""
    return f"{round(value):,}"


def short(value: float) -> str:
    """A number in at most five characters, up to a thousand billion: ``12``, ``3.45k``, ``120k``, ``1.23M``."""
    for size, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size * 0.9995:
            scaled = value / size
            digits = 2 if abs(scaled) < 9.995 else 1 if abs(scaled) < 99.95 else 0
            return f"{scaled:.{digits}f}{unit}"
    return f"{value:.0f}"


def duration(seconds: float | None) -> str:
    """``12 ms``, ``1.2 s``, ``3 min 04 s``, ``2 h 05 min``, ``324 d``."""
    if seconds is None:
        return "–"
    sign = "-" if seconds < 0 else ""
    seconds = abs(seconds)
    if seconds < 0.0995:
        return f"{sign}{seconds * 1000:.0f} ms"
    if seconds < 9.95:
        return f"{sign}{seconds:.2f} s" if seconds < 0.995 else f"{sign}{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{sign}{whole} s"
    if whole < 3600:
        return f"{sign}{whole // 60} min {whole % 60:02d} s"
    if whole < 2 * 86400:
        return f"{sign}{whole // 3600} h {whole % 3600 // 60:02d} min"
    return f"{sign}{whole // 86400:,} d"


def cut(text: str, length: int) -> str:
    return text if len(text) <= length else f"{text[: length - 1]}…"


def clock(seconds: float) -> str:
    """``0:07``, ``12:34``, ``1:02:03``."""
    whole = int(seconds)
    hours, minutes = whole // 3600, whole % 3600 // 60
    return f"{hours}:{minutes:02d}:{whole % 60:02d}" if hours else f"{minutes}:{whole % 60:02d}"


def moment(micros: int | None) -> str | None:
    """Microseconds since 1970 UTC as ISO 8601; years outside 1 to 9999 as the number."""
    if micros is None:
        return None
    try:
        return (EPOCH + timedelta(microseconds=micros)).isoformat().replace("+00:00", "Z")
    except OverflowError:
        return f"{micros} us"


def plural(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def path(absolute: str) -> str:
    """Relative to the working directory where it lies below it; URLs as they are."""
    if not os.path.isabs(absolute):
        return absolute
    relative = os.path.relpath(absolute)
    return absolute if relative.startswith("..") else relative
