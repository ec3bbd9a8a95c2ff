"""Dates, times and intervals of SQL: read from text, and the arithmetic on them that has a type of its own."""

from __future__ import annotations

import datetime
import re
import zoneinfo
from decimal import Decimal
from functools import lru_cache

from streamjoin.language.errors import SqlError
from streamjoin.language.literals import integer_literal, negated
from streamjoin.language.tree import OPERATORS, Call, Literal, Node
from streamjoin.language.types import DATE, INT, INTERVAL, MICROS_PER_DAY, TIMESTAMP, is_integer, is_point

UNIT_MICROS = {
    "MICROSECOND": 1,
    "MILLISECOND": 1_000,
    "SECOND": 1_000_000,
    "MINUTE": 60_000_000,
    "HOUR": 3_600_000_000,
    "DAY": MICROS_PER_DAY,
    "WEEK": 7 * MICROS_PER_DAY,
}
_SPAN_UNITS = ("DAY", "HOUR", "MINUTE", "SECOND")
_QUANTITY = re.compile(r"\s*([+-]?\d+(?:\.\d+)?)\s+([A-Za-z]+)")


def whole_days(node: Node) -> int | None:
    """The days of a literal INTERVAL that is whole days; None: it is not."""
    if isinstance(node, Literal) and node.type == INTERVAL and isinstance(node.value, int) and node.value % MICROS_PER_DAY == 0:
        return node.value // MICROS_PER_DAY
    return None


def folded_interval(function: str, left: Node, right: Node) -> Node:
    """INTERVAL 1 DAY 2 HOURS comes as a sum: a literal again, so that it may be a bound."""
    if isinstance(left, Literal) and isinstance(right, Literal) and isinstance(left.value, int) and isinstance(right.value, int):
        combine = {"add": int.__add__, "subtract": int.__sub__, "multiply": int.__mul__}[function]
        value = combine(left.value, right.value)
        if -(2**63) <= value < 2**63:
            return Literal(value, INTERVAL)
    return Call(function, (left, right), INTERVAL)


def in_days(node: Node) -> Node | None:
    """An INTERVAL that is whole days by its form, as the number of days; other types as they are; None: it is not."""
    days = whole_days(node)
    if days is not None:
        return integer_literal(days)
    if isinstance(node, Call) and node.type == INTERVAL:
        if node.function == "subtract" and node.arguments[0].type == node.arguments[1].type == DATE:
            return Call("datediff", node.arguments, INT)
        if node.function in ("negate", "abs"):
            inner = in_days(node.arguments[0])
            return None if inner is None else Call(node.function, (inner,), INT)
        return None
    return node


def span_micros(text: str, first: str, last: str) -> int | None:
    """Microseconds of the numbers of the units from ``first`` to ``last``, as ``1 02:03:04.5`` of DAY TO SECOND; None: it is no such text.

    All but the first must be less than the unit before them, as in Spark; digits below a microsecond are dropped.
    """
    units = _SPAN_UNITS[_SPAN_UNITS.index(first) : _SPAN_UNITS.index(last) + 1] if {first, last} <= set(_SPAN_UNITS) else ()
    if len(units) < 2:
        return None
    after = (" " if units[0] == "DAY" else ":") + r"(\d{1,2})" + r":(\d{1,2})" * (len(units) - 2)
    fraction = r"(?:\.(\d{1,9}))?" if last == "SECOND" else "()"
    match = re.fullmatch(rf"([+-]?)(\d{{1,10}}){after}{fraction}", text.strip(" "), re.ASCII)
    if match is None:
        return None
    sign, *numbers, fraction = match.groups()
    parts = [int(number) * UNIT_MICROS[unit] for unit, number in zip(units, numbers, strict=True)]
    if any(part >= UNIT_MICROS[above] for above, part in zip(units[:-1], parts[1:], strict=True)):
        return None
    micros = sum(parts) + int((fraction or "").ljust(6, "0")[:6])
    return None if micros >= 2**63 else -micros if sign == "-" else micros


def no_interval(text: str) -> SqlError:
    """The error that an INTERVAL is none that can be read."""
    return SqlError(
        f"{text} is not an interval",
        "write INTERVAL number unit, the unit one of WEEK, DAY, HOUR, MINUTE, SECOND, MILLISECOND, MICROSECOND, or numbers of several"
        " units, as INTERVAL '1 02:03:04.5' DAY TO SECOND or INTERVAL '1:30' MINUTE TO SECOND",
    )


def quantity_micros(text: str) -> int | None:
    """Microseconds of ``1 day 2 hours``: numbers, each with its unit."""
    total, position = Decimal(0), 0
    while position < len(text.rstrip()):
        match = _QUANTITY.match(text, position)
        factor = UNIT_MICROS.get(match[2].upper().removesuffix("S")) if match else None
        if match is None or factor is None:
            return None
        total += Decimal(match[1]) * factor
        position = match.end()
    return int(total) if position and total == int(total) and -(2**63) <= total < 2**63 else None


BLANKS = "".join(map(chr, range(33))) + "\x7f"
"""What Spark ignores around a value."""
JAVA_BLANKS = BLANKS[:-1]
"""What Java's functions, by which Spark reads decimals and floating-point numbers, ignore there."""
_DATE = re.compile(r"([+-]?\d{4,7})(?:-(\d{1,2})(?:-(\d{1,2})(?:[ T].*)?)?)?", re.ASCII | re.DOTALL)
_TIMESTAMP = re.compile(
    r"([+-]?\d{4,6})(?:-(\d{1,2})(?:-(\d{1,2})(?:[ T](\d{1,2})(?::(\d{1,2})(?::(\d{1,2})(?:\.(\d*))?(\D.*)?)?)?)?)?)?",
    re.ASCII | re.DOTALL,
)
_OFFSET = re.compile(r"(?:UTC|GMT|UT)?([+-])(?:(\d{1,2})|(\d\d)(\d\d)(\d\d)?|(\d{1,2}):(\d\d?|\d\d:\d\d))", re.ASCII)
_REGIONS = {
    "ACT": "Australia/Darwin",
    "AET": "Australia/Sydney",
    "AGT": "America/Argentina/Buenos_Aires",
    "ART": "Africa/Cairo",
    "AST": "America/Anchorage",
    "BET": "America/Sao_Paulo",
    "BST": "Asia/Dhaka",
    "CAT": "Africa/Harare",
    "CNT": "America/St_Johns",
    "CST": "America/Chicago",
    "CTT": "Asia/Shanghai",
    "EAT": "Africa/Addis_Ababa",
    "ECT": "Europe/Paris",
    "IET": "America/Indiana/Indianapolis",
    "IST": "Asia/Kolkata",
    "JST": "Asia/Tokyo",
    "MIT": "Pacific/Apia",
    "NET": "Asia/Yerevan",
    "NST": "Pacific/Auckland",
    "PLT": "Asia/Karachi",
    "PNT": "America/Phoenix",
    "PRT": "America/Puerto_Rico",
    "PST": "America/Los_Angeles",
    "SST": "Pacific/Guadalcanal",
    "VST": "Asia/Ho_Chi_Minh",
}
"""The short names of zones that Java knows (ZoneId.SHORT_IDS); EST, MST and HST are zones of their own."""
EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_CYCLE_DAYS = 146_097
"""Of 400 years, after which the calendar repeats itself."""
_CYCLE_START = datetime.date(2000, 1, 1).toordinal()


def calendar_days(year: int, month: int, day: int) -> int:
    """Days since 1970, of any year. Raises ValueError where there is no such day."""
    return datetime.date(2000 + year % 400, month, day).toordinal() - EPOCH.toordinal() + (year // 400 - 5) * _CYCLE_DAYS


def date_text(days: int) -> str:
    """``yyyy-mm-dd`` of days since 1970; years above 9999 and below 0 with their sign, and all their digits, as Spark and ISO 8601."""
    cycles, rest = divmod(days + EPOCH.toordinal() - _CYCLE_START, _CYCLE_DAYS)
    date = datetime.date.fromordinal(_CYCLE_START + rest)
    year = date.year + 400 * cycles
    sign = "-" if year < 0 else "+" if year > 9999 else ""
    return f"{sign}{abs(year):04d}-{date.month:02d}-{date.day:02d}"


def timestamp_text(micros: int, between: str = " ") -> str:
    """:func:`date_text`, ``between`` and ``hh:mm:ss``, with as many digits of a second as there are: none or up to six."""
    days, rest = divmod(micros, MICROS_PER_DAY)
    seconds, fraction = divmod(rest, 1_000_000)
    text = f"{date_text(days)}{between}{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"
    return f"{text}.{fraction:06d}".rstrip("0") if fraction else text


def date_days(text: str) -> int | None:
    """Days since 1970 of a text as Spark casts it to a DATE (``yyyy[-m[-d]]``, after a day a time or anything else), or None."""
    match = _DATE.fullmatch(text.strip(BLANKS))
    try:
        days = None if match is None else calendar_days(*(int(part or 1) for part in match.groups()))
    except ValueError:
        return None
    return days if days is not None and -(2**31) <= days < 2**31 else None


def timestamp_micros(text: str, *, zoned: bool = True) -> int | None:
    """Microseconds since 1970 UTC of a text as Spark casts it to a TIMESTAMP (UTC unless it names a zone), or None.

    Not ``zoned``: of a TIMESTAMP_NTZ, for which a zone must be right, but counts for nothing.
    """
    match = _TIMESTAMP.fullmatch(text.strip(BLANKS))
    if match is None:
        return None
    *numbers, fraction, zone = match.groups()
    year, month, day, hour, minute, second = (int(part or first) for part, first in zip(numbers, (0, 1, 1, 0, 0, 0), strict=True))
    try:
        seconds = (calendar_days(year, month, day) * 24 + hour) * 3600 + minute * 60 + second
        offset = _offset(zone.strip(BLANKS), seconds) if zone else 0
    except ValueError:
        return None
    if hour > 23 or minute > 59 or second > 59 or offset is None:
        return None
    micros = (seconds - (offset if zoned else 0)) * 1_000_000 + int((fraction or "").ljust(6, "0")[:6])
    return micros if -(2**63) <= micros < 2**63 else None


def _offset(zone: str, local: int) -> int | None:
    """How many seconds a zone's clocks, which show ``local``, are ahead of UTC; None: there is no such zone."""
    if zone in ("Z", "UTC", "GMT", "UT"):
        return 0
    match = _OFFSET.fullmatch(zone)
    if match is not None:
        parts = ":".join(part for part in match.groups()[1:] if part).split(":")
        hours, minutes, seconds = map(int, [*parts, "0", "0"][:3])
        size = (hours * 60 + minutes) * 60 + seconds
        right = minutes < 60 and seconds < 60 and size <= 18 * 3600
        return None if not right else -size if match[1] == "-" else size
    region = _region(zone)
    if region is None:
        return None
    days, rest = divmod(local, 86_400)
    year = int(date_text(days).rpartition("-")[0].rpartition("-")[0])
    # Python's times end with year 9999; the rules of a zone repeat like the calendar, and before year 1 there are none.
    cycles = 1 - year // 400 if year < 1 else -max(0, year // 400 - 24)
    moment = datetime.datetime(1970, 1, 1) + datetime.timedelta(days=days + cycles * _CYCLE_DAYS, seconds=rest)
    offset = region.utcoffset(moment)
    return None if offset is None else round(offset.total_seconds())


@lru_cache(maxsize=1024)
def _region(name: str) -> zoneinfo.ZoneInfo | None:
    try:
        return None if name.startswith(("posix", "right", "local")) else zoneinfo.ZoneInfo(_REGIONS.get(name, name))
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
        return None


def temporal_arithmetic(function: str, left: Node, right: Node) -> Node | None:
    """The call, where a date, a time or an INTERVAL is among the operands; None: none is. SqlError where it has no meaning."""
    if function == "add" and (is_point(right.type) or (right.type == INTERVAL and left.type == INTERVAL)):
        if not is_point(right.type):
            return folded_interval("add", left, right)
        left, right = right, left
    if function in ("add", "subtract") and is_point(left.type):
        if left.type == DATE and is_integer(right.type):
            return Call("date_add", (left, right if function == "add" else negated(right)), DATE)
        if right.type == INTERVAL:
            days = whole_days(right)
            if left.type == DATE and days is not None:
                return Call("date_add", (left, integer_literal(days if function == "add" else -days)), DATE)
            left = Call("cast", (left,), TIMESTAMP) if left.type == DATE else left
            return Call(function, (left, right), left.type)
        if function == "subtract" and is_point(right.type):
            return Call("subtract", (left, right), INTERVAL)
    if function == "subtract" and left.type == right.type == INTERVAL:
        return folded_interval("subtract", left, right)
    if function == "multiply" and INTERVAL in (left.type, right.type):
        count = right if left.type == INTERVAL else left
        if is_integer(count.type):
            return folded_interval("multiply", left, right)
    if any(is_point(t) or t == INTERVAL for t in (left.type, right.type)):
        raise SqlError(
            f"{left.type} {OPERATORS[function]} {right.type} has no meaning",
            "add or subtract an INTERVAL, or subtract two times",
        )
    return None
