"""Texts read as times by a datetime pattern of Spark's, as ``dd/MM/yyyy HH:mm:ss``: the part of its letters that says one thing only.

Always holds: what a pattern reads, Spark 4 (ANSI off) reads as the same time, and what it does not read is NULL there, but for numbers of
days, hours and the like that have a sign or more than nine digits. A month, day, hour, minute or second that a pattern lacks is the first
one. Digits below a microsecond are dropped.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

from streamjoin.language.errors import SqlError

REMEDY = (
    "use yyyy or yy, MM, M, MMM or MMMM, dd or d, HH or H, hh or h with a, mm or m, ss or s, up to nine S, and X, XX, XXX or Z for an"
    " offset, with other letters in quotes, as yyyy-MM-dd'T'HH:mm:ss"
)
MONTHS = ("January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November", "December")
_TWO, _SEVERAL = "([0-9]{2})", "([0-9]{1,9})"
_FIELDS = {
    "yyyy": ("year", r"([0-9]{4}|\+[0-9]{5,6})"), "yy": ("short year", _TWO),
    "MM": ("month", _TWO), "M": ("month", _SEVERAL),
    "MMM": ("month name", f"({'|'.join(name[:3] for name in MONTHS)})"), "MMMM": ("month name", f"({'|'.join(MONTHS)})"),
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

    text: str
    """A regular expression (RE2's) of all of a text, with a named group for each field."""
    fields: tuple[str, ...]
    """The meaning of each of its groups."""


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
        parts.append(f"(?P<field{len(fields)}>{form[1:]}")
        fields.append(kind)
        before = token
    kinds = [_KINDS.get(kind, kind) for kind in fields]
    if twice := next((kind for kind in kinds if kinds.count(kind) > 1), None):
        raise SqlError(f"the pattern {pattern!r} has the {twice} twice", "keep one")
    if "year" not in kinds:
        raise SqlError(f"the pattern {pattern!r} has no year", "add yyyy; a text without a year says no time")
    if ("half" in fields) != ("half hour" in fields):
        raise SqlError(f"the pattern {pattern!r} has only one of h and a", "write both (11 PM), or HH (23)")
    return TimePattern(f"(?is)^(?:{''.join(parts)})$", tuple(fields))
