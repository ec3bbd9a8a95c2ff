"""Texts read as times by a datetime pattern of Spark's, as ``dd/MM/yyyy HH:mm:ss``: the part of its letters that says one thing only.

Always holds: what a pattern reads, Spark 4 (ANSI off) reads as the same time, and what it does not read is NULL there, but for signs before
numbers of days, hours and the like. A month, day, hour, minute or second that a pattern lacks is the first one. Digits below a microsecond
are dropped.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

from streamjoin.language.errors import SqlError
from streamjoin.language.temporal import calendar_days

REMEDY = (
    "use yyyy or yy, MM, M, MMM or MMMM, dd or d, HH or H, hh or h with a, mm or m, ss or s, up to nine S, and X, XX, XXX or Z for an"
    " offset, with other letters in quotes, as yyyy-MM-dd'T'HH:mm:ss"
)
_MONTHS = ("January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November", "December")
_TWO, _SEVERAL = "([0-9]{2})", "([0-9]{1,19})"
_FIELDS = {
    "yyyy": ("year", r"([0-9]{4}|\+[0-9]{5,6})"), "yy": ("short year", _TWO),
    "MM": ("month", _TWO), "M": ("month", _SEVERAL),
    "MMM": ("month name", f"({'|'.join(name[:3] for name in _MONTHS)})"), "MMMM": ("month name", f"({'|'.join(_MONTHS)})"),
    "dd": ("day", _TWO), "d": ("day", _SEVERAL), "HH": ("hour", _TWO), "H": ("hour", _SEVERAL),
    "hh": ("half hour", _TWO), "h": ("half hour", _SEVERAL), "a": ("half", "(AM|PM)"),
    "mm": ("minute", _TWO), "m": ("minute", _SEVERAL), "ss": ("second", _TWO), "s": ("second", _SEVERAL),
    **{"S" * count: ("fraction", f"([0-9]{{1,{count}}})") for count in range(1, 10)},
    "X": ("offset", "(Z|[+-][0-9]{2}(?:[0-9]{2})?)"), "XX": ("offset", "(Z|[+-][0-9]{4})"),
    "XXX": ("offset", "(Z|[+-][0-9]{2}:[0-9]{2})"), "Z": ("offset", "([+-][0-9]{4})"),
}  # fmt: skip
_VARYING = ("M", "d", "H", "h", "m", "s")
_NUMBERS = frozenset("yMdHhmsS")
_TOKEN = re.compile(r"([A-Za-z])\1*|'([^']+)'|[^A-Za-z'\[\]{}#]", re.ASCII)
_KINDS = {"short year": "year", "month name": "month", "half hour": "hour"}


@dataclass(frozen=True, slots=True)
class TimePattern:
    """A pattern that is understood."""

    text: re.Pattern[str]
    fields: tuple[str, ...]
    """The meaning of each of its groups."""

    def micros(self, text: str) -> int | None:
        """Microseconds since 1970 UTC; None: the text is no time by the pattern."""
        match = self.text.fullmatch(text)
        if match is None:
            return None
        found = dict(zip(self.fields, match.groups(), strict=True))
        year = int(found["year"]) if "year" in found else 2000 + int(found["short year"])
        name = found.get("month name")
        month = int(found.get("month", 1)) if name is None else _MONTH_NUMBERS[name[:3].lower()]
        hour = int(found.get("hour", 0))
        if "half hour" in found:
            half = int(found["half hour"])
            hour = half % 12 + 12 * (found["half"].upper() == "PM") if 1 <= half <= 12 else 24
        minute, second, day = (int(found.get(name, first)) for name, first in (("minute", 0), ("second", 0), ("day", 1)))
        offset = _offset_seconds(found.get("offset", "Z"))
        if not (hour < 24 and minute < 60 and second < 60 and offset is not None and 1 <= month <= 12 and 1 <= day <= 31):
            return None
        try:
            days = calendar_days(year, month, day)
        except ValueError:
            return None
        seconds = (days * 24 + hour) * 3600 + minute * 60 + second - offset
        micros = seconds * 1_000_000 + int(found.get("fraction", "").ljust(6, "0")[:6])
        return micros if -(2**63) <= micros < 2**63 else None


_MONTH_NUMBERS = {name[:3].lower(): number for number, name in enumerate(_MONTHS, 1)}


def _offset_seconds(text: str) -> int | None:
    if text.upper() == "Z":
        return 0
    digits = text[1:].replace(":", "").ljust(4, "0")
    minutes = int(digits[:2]) * 60 + int(digits[2:])
    return None if int(digits[2:]) > 59 or minutes > 18 * 60 else (-60 if text[0] == "-" else 60) * minutes


@lru_cache(maxsize=64)
def time_pattern(pattern: str) -> TimePattern:
    """The pattern, made ready. Raises SqlError, which names what of it is not understood."""
    parts: list[str] = []
    fields: list[str] = []
    position, before = 0, ""
    while position < len(pattern):
        match = _TOKEN.match(pattern, position)
        if match is None:
            raise SqlError(f"the pattern {pattern!r} has {pattern[position]!r} at character {position + 1}, which is not supported", REMEDY)
        token, position = match[0], match.end()
        if match[1] is None:
            parts.append(re.escape(match[2] or token))
            before = ""
            continue
        if token not in _FIELDS:
            raise SqlError(f"the pattern {pattern!r} has {token}, which is not supported", REMEDY)
        is_number = token[0] in _NUMBERS and token not in ("MMM", "MMMM")
        is_after_number = before[:1] in _NUMBERS and before not in ("MMM", "MMMM")
        if is_number and is_after_number and (before in _VARYING or "S" in (before[0], token[0])):
            raise SqlError(
                f"the pattern {pattern!r} has {before} right before {token}, so where it ends is not known",
                "separate the two by another character",
            )
        kind, form = _FIELDS[token]
        parts.append(form)
        fields.append(kind)
        before = token
    kinds = [_KINDS.get(kind, kind) for kind in fields]
    if twice := next((kind for kind in kinds if kinds.count(kind) > 1), None):
        raise SqlError(f"the pattern {pattern!r} has the {twice} twice", "keep one")
    if "year" not in kinds:
        raise SqlError(f"the pattern {pattern!r} has no year", "add yyyy; a text without a year says no time")
    if ("half" in fields) != ("half hour" in fields):
        raise SqlError(f"the pattern {pattern!r} has only one of h and a", "write both (11 PM), or HH (23)")
    return TimePattern(re.compile("".join(parts), re.IGNORECASE | re.DOTALL), tuple(fields))
