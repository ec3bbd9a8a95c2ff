"""What the machine code for JSON lines is made of: each part reads one thing that may stand in a line, and says where it ends.

Always holds: positions are addresses; -1 says that what is there is wrong, or not understood. None reads beyond a newline, so none beyond
the block, which ends in one. Doubles are exact by Clinger's fast path (How to Read Floating Point Numbers Accurately, 1990): where the
mantissa and a power of ten are exact, their product or quotient is rounded once. Others are not understood.
"""

# ruff: noqa: PLR1714, SIM109, SIM110 (all() and `in` are slower in machine code)

from __future__ import annotations

from typing import Any

import numpy as np

from streamjoin.native.addresses import byte_at
from streamjoin.native.numba_names import part

DIGITS = 18
"""A number of so many digits is an int64 for certain."""
DEEPEST = 62
"""An array or object in so many others is not understood."""
_POWERS = 10.0 ** np.arange(23)
_EXACT = 1 << 53
QUOTE, BACKSLASH, SLASH, COLON, COMMA, OPEN, CLOSE, OPEN_ARRAY, CLOSE_ARRAY = (ord(character) for character in '"\\/:,{}[]')
MINUS, PLUS, POINT, ZERO, NINE, CAPITAL_E, LETTER_E, CAPITAL_T, CAPITAL_Z = (ord(character) for character in "-+.09EeTZ")
LETTER_A, LETTER_B, LETTER_F, LETTER_L, LETTER_N, LETTER_R, LETTER_S, LETTER_T, LETTER_U = (ord(character) for character in "abflnrstu")
_HIGH, _LOW, _AFTER_LOW = 0xD800, 0xDC00, 0xE000
"""Halves of surrogate pairs, which stand for one character only together."""
NEWLINE = 10
SPACE = 32


@part
def after_space(at: Any) -> Any:
    while byte_at(at) == SPACE or byte_at(at) == 9 or byte_at(at) == 13:
        at += 1
    return at


@part
def _is_three(at: Any, first: Any, second: Any, third: Any) -> Any:
    """Whether these bytes follow."""
    return byte_at(at + 1) == first and byte_at(at + 2) == second and byte_at(at + 3) == third


@part
def is_name(at: Any, name: Any, nbytes: Any) -> Any:
    for index in range(nbytes):
        if byte_at(at + index) != byte_at(name + index):
            return False
    return True


@part
def _digit(at: Any) -> Any:
    """0 to 9, or anything else."""
    return np.int64(byte_at(at)) - ZERO


@part
def _unit(at: Any) -> Any:
    """The UTF-16 unit that four hexadecimal digits give; or -1."""
    unit = np.int64(0)
    for index in range(4):
        digit, letter = _digit(at + index), (np.int64(byte_at(at + index)) | 32) - LETTER_A
        if 0 <= digit <= 9:
            unit = 16 * unit + digit
        elif 0 <= letter <= 5:
            unit = 16 * unit + 10 + letter
        else:
            return np.int64(-1)
    return unit


@part
def escape_bytes(at: Any) -> Any:
    """How many bytes the escape is whose backslash is at ``at``, one that is a character: both halves of a surrogate pair; or -1."""
    kind = byte_at(at + 1)
    if kind == LETTER_U:
        unit = _unit(at + 2)
        if unit < _HIGH or unit >= _AFTER_LOW:
            return 6 if unit >= 0 else -1
        if unit >= _LOW or byte_at(at + 6) != BACKSLASH or byte_at(at + 7) != LETTER_U:
            return -1
        return 12 if _LOW <= _unit(at + 8) < _AFTER_LOW else -1
    if kind == QUOTE or kind == BACKSLASH or kind == SLASH:
        return 2
    return 2 if kind == LETTER_B or kind == LETTER_F or kind == LETTER_N or kind == LETTER_R or kind == LETTER_T else -1


@part
def character(at: Any) -> Any:
    """What the escape at ``at`` stands for, which is one."""
    kind = byte_at(at + 1)
    if kind == LETTER_U:
        unit = _unit(at + 2)
        return unit if unit < _HIGH or unit >= _AFTER_LOW else 0x10000 + ((unit - _HIGH) << 10) + (_unit(at + 8) - _LOW)
    if kind == LETTER_B:
        return np.int64(8)
    if kind == LETTER_T:
        return np.int64(9)
    if kind == LETTER_N:
        return np.int64(10)
    if kind == LETTER_F:
        return np.int64(12)
    if kind == LETTER_R:
        return np.int64(13)
    return np.int64(kind)


@part
def string_end(at: Any) -> Any:
    """Of a string that begins at ``at``: its closing quote; all of its bytes ORed; whether it has escapes. Or -1."""
    bits, escaped = np.uint8(0), False
    while byte_at(at) != QUOTE:
        if byte_at(at) < SPACE:
            return -1, bits, escaped
        if byte_at(at) == BACKSLASH:
            size = escape_bytes(at)
            if size < 0:
                return -1, bits, escaped
            escaped = True
            at += size
        else:
            bits |= byte_at(at)
            at += 1
    return at, bits, escaped


@part
def whole(at: Any) -> Any:
    """Digits as JSON has them in front of a point: the number, how many, and where they end; or -1."""
    number, start = np.int64(0), at
    while 0 <= _digit(at) <= 9:
        number = number * 10 + _digit(at)
        at += 1
        if at - start > DIGITS:
            return number, 0, -1
    if at == start or (byte_at(start) == ZERO and at > start + 1):
        return number, 0, -1
    return number, at - start, at


@part
def _fraction(at: Any, number: Any, digits: Any) -> Any:
    """The same for what follows, which may be a point and digits: the number with them, the digits behind the point, and where they end."""
    if byte_at(at) != POINT:
        return number, 0, at
    at += 1
    start = at
    while 0 <= _digit(at) <= 9:
        number = number * 10 + _digit(at)
        at += 1
        if digits + at - start > DIGITS:
            return number, 0, -1
    if at == start:
        return number, 0, -1
    return number, at - start, at


@part
def real(at: Any) -> Any:
    """A number as a double, and where it ends; or -1."""
    sign = 1.0
    if byte_at(at) == MINUS:
        sign = -1.0
        at += 1
    number, digits, at = whole(at)
    if at < 0:
        return 0.0, -1
    number, behind, at = _fraction(at, number, digits)
    if at < 0:
        return 0.0, -1
    power = -behind
    if byte_at(at) == CAPITAL_E or byte_at(at) == LETTER_E:
        at += 1
        down = byte_at(at) == MINUS
        if down or byte_at(at) == PLUS:
            at += 1
        exponent, start = np.int64(0), at
        while 0 <= _digit(at) <= 9:
            exponent = exponent * 10 + _digit(at)
            at += 1
            if at - start > 4:
                return 0.0, -1
        if at == start:
            return 0.0, -1
        power += -exponent if down else exponent
    if number > _EXACT or power > 22 or power < -22:
        return 0.0, -1
    value = number * _POWERS[power] if power >= 0 else number / _POWERS[-power]
    return sign * value, at


@part
def decimal(at: Any, scale: Any, limit: Any) -> Any:
    """A decimal's digits with ``scale`` of them behind the point, fewer than ``limit``, and where it ends; or -1."""
    negative = byte_at(at) == MINUS
    if negative:
        at += 1
    number, digits, at = whole(at)
    if at < 0:
        return number, -1
    number, behind, at = _fraction(at, number, digits)
    if at < 0 or behind > scale or digits + scale > DIGITS:
        return number, -1
    for _ in range(behind, scale):
        number *= 10
    if number >= limit:
        return number, -1
    return -number if negative else number, at


@part
def _two(at: Any) -> Any:
    """Two digits as a number; or something from 100 on."""
    tens, ones = _digit(at), _digit(at + 1)
    return tens * 10 + ones if 0 <= tens <= 9 and 0 <= ones <= 9 else np.int64(100)


@part
def date(at: Any) -> Any:
    """Days since 1970 of YYYY-MM-DD, and where it ends; or -1. Days are counted from March 1 of year 0 on (Hinnant, days_from_civil)."""
    for index in range(10):
        if byte_at(at + index) == NEWLINE:
            return np.int64(0), -1
    century, year, month, day = _two(at), _two(at + 2), _two(at + 5), _two(at + 8)
    if century > 99 or year > 99 or byte_at(at + 4) != MINUS or byte_at(at + 7) != MINUS or month < 1 or month > 12 or day < 1:
        return np.int64(0), -1
    year += 100 * century
    leap = year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)
    longest = 30 + (month + month // 8) % 2 if month != 2 else 28 + leap
    if year < 1 or day > longest:
        return np.int64(0), -1
    if month <= 2:
        year -= 1
    day_of_year = (153 * (month - 3 if month > 2 else month + 9) + 2) // 5 + day - 1
    return 365 * year + year // 4 - year // 100 + year // 400 + day_of_year - 719468, at + 10


@part
def timestamp(at: Any, with_zone: Any) -> Any:
    """Microseconds since 1970 of YYYY-MM-DDTHH:MM:SS, perhaps with more digits and a zone, and where it ends; or -1.

    A blank may stand for the T. Digits below the microsecond are dropped, and so is the zone without ``with_zone``.
    """
    days, at = date(at)
    if at < 0:
        return days, -1
    for index in range(9):
        if byte_at(at + index) == NEWLINE:
            return days, -1
    hour, minute, second = _two(at + 1), _two(at + 4), _two(at + 7)
    if hour > 23 or minute > 59 or second > 59 or byte_at(at + 3) != COLON or byte_at(at + 6) != COLON:
        return days, -1
    if byte_at(at) != CAPITAL_T and byte_at(at) != SPACE:
        return days, -1
    micros = ((days * 24 + hour) * 60 + minute) * 60 + second
    at += 9
    behind = 0
    if byte_at(at) == POINT:
        at += 1
        while 0 <= _digit(at) <= 9:
            if behind < 6:
                micros = micros * 10 + _digit(at)
            behind += 1
            at += 1
        if behind == 0 or behind > 9:
            return days, -1
    for _ in range(behind, 6):
        micros *= 10
    if byte_at(at) == CAPITAL_Z:
        at += 1
    elif byte_at(at) == PLUS or byte_at(at) == MINUS:
        for index in range(6):
            if byte_at(at + index) == NEWLINE:
                return days, -1
        hour, minute = _two(at + 1), _two(at + 4)
        if hour > 23 or minute > 59 or byte_at(at + 3) != COLON:
            return days, -1
        if with_zone:
            offset = (hour * 60 + minute) * 60_000_000
            micros += offset if byte_at(at) == MINUS else -offset
        at += 6
    return micros, at


@part
def number_end(at: Any) -> Any:
    """Where a number ends, of any length; or -1."""
    at += byte_at(at) == MINUS
    start = at
    while 0 <= _digit(at) <= 9:
        at += 1
    if at == start or (byte_at(start) == ZERO and at > start + 1):
        return -1
    if byte_at(at) == POINT:
        start = at + 1
        at = start
        while 0 <= _digit(at) <= 9:
            at += 1
        if at == start:
            return -1
    if byte_at(at) == CAPITAL_E or byte_at(at) == LETTER_E:
        at += 1
        at += byte_at(at) == MINUS or byte_at(at) == PLUS
        start = at
        while 0 <= _digit(at) <= 9:
            at += 1
        if at == start:
            return -1
    return at


@part
def word_end(at: Any) -> Any:
    """Where true, false or null ends; or -1."""
    first = byte_at(at)
    if first == LETTER_N and _is_three(at, LETTER_U, LETTER_L, LETTER_L):
        return at + 4
    if first == LETTER_T and _is_three(at, LETTER_R, LETTER_U, LETTER_E):
        return at + 4
    return at + 5 if first == LETTER_F and _is_three(at, LETTER_A, LETTER_L, LETTER_S) and byte_at(at + 4) == LETTER_E else -1


@part
def _value_of_member(at: Any) -> Any:
    """Where the value of an object's member begins whose name does at ``at``, and the name's bytes ORed; or -1."""
    if byte_at(at) != QUOTE:
        return -1, np.uint8(0)
    at, bits, _ = string_end(at + 1)
    if at < 0:
        return -1, bits
    at = after_space(at + 1)
    return after_space(at + 1) if byte_at(at) == COLON else -1, bits


@part
def value_end(at: Any) -> Any:
    """Where any value ends, and the bytes of its strings ORed; or -1."""
    # Which of the arrays (0) and objects (1) that are open is the inner one, the lowest bit says.
    bits, depth, objects = np.uint8(0), 0, np.int64(0)
    while True:
        first = byte_at(at)
        if first == OPEN or first == OPEN_ARRAY:
            depth += 1
            if depth > DEEPEST:
                return -1, bits
            objects = objects * 2 + (first == OPEN)
            at = after_space(at + 1)
            if byte_at(at) != (CLOSE if objects & 1 else CLOSE_ARRAY):
                if objects & 1:
                    at, seen = _value_of_member(at)
                    if at < 0:
                        return -1, bits
                    bits |= seen
                continue
        elif first == QUOTE:
            at, seen, _ = string_end(at + 1)
            if at < 0:
                return -1, bits
            bits |= seen
            at += 1
        else:
            at = number_end(at) if first <= NINE else word_end(at)
            if at < 0:
                return -1, bits
        while depth:
            at = after_space(at)
            if byte_at(at) == COMMA:
                at = after_space(at + 1)
                if objects & 1:
                    at, seen = _value_of_member(at)
                    if at < 0:
                        return -1, bits
                    bits |= seen
                break
            if byte_at(at) != (CLOSE if objects & 1 else CLOSE_ARRAY):
                return -1, bits
            at += 1
            depth -= 1
            objects >>= 1
        else:
            return at, bits
