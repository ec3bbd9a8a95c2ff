"""Machine code for JSON lines of a known schema, as long as they are written plainly: as nearly all that programs write is.

Importing this imports Numba. It skips fields that no column has. A value that is written in a rare way, as an integer that is written 1e3,
it leaves as text, for the caller to convert; a line that is wrong, or that it does not understand, it refuses, and goes on with the next
one: the caller parses that line in another way, which also says what is wrong. So this needs no errors, and none of the rare ways.

Always holds: what this accepts is JSON (RFC 8259), and its values are exactly those that ``text.JsonFormat`` makes of it line by line.
Doubles are exact by Clinger's fast path (How to Read Floating Point Numbers Accurately, 1990): where the mantissa and a power of ten are
exact, their product or quotient is rounded once. Other doubles are left as text.

NB: the parts of :func:`parse` stay in its file, by which alone Numba knows whether machine code in its cache is still that of the source.
"""

# ruff: noqa: PLR1714, SIM109, SIM110 (all() and `in` are slower in machine code)

from __future__ import annotations

from typing import Any

import numpy as np

from streamjoin.io.memory import byte_at
from streamjoin.kernel.native import native, read, write
from streamjoin.kernel.numba_names import part

INTEGER, DOUBLE, BOOLEAN, DECIMAL, TEXT, INSTANT, WALL_CLOCK, DATE, BYTES = range(9)
"""What a column's values are: of DOUBLE floats of 32 bits, too, and of BYTES all values are WRITTEN."""
DIGITS = 18
"""A number of so many digits is an int64 for certain."""
ORDER = 64
"""Of so many keys of an object, the column that each was the last time is tried first."""
DEEPEST = 62
"""An array or object in so many others is not understood."""
MISSING, VALUE, NULL, WRITTEN = 0, 1, 2, 3
"""What is in a cell: nothing (0 for certain), a value, a null, or where a value is written that the caller converts."""
_POWERS = 10.0 ** np.arange(23)
_EXACT = 1 << 53
_QUOTE, _BACKSLASH, _SLASH, _COLON, _COMMA, _OPEN, _CLOSE, _OPEN_ARRAY, _CLOSE_ARRAY = (ord(character) for character in '"\\/:,{}[]')
_MINUS, _PLUS, _POINT, _ZERO, _NINE, _E, _SMALL_E, _T, _Z = (ord(character) for character in "-+.09EeTZ")
_A, _B, _F, _L, _N, _R, _S, _SMALL_T, _U = (ord(character) for character in "abflnrstu")
_HIGH, _LOW, _AFTER_LOW = 0xD800, 0xDC00, 0xE000
"""Halves of surrogate pairs, which stand for one character only together."""
NEWLINE = 10
_SPACE = 32

# Of the parts of :func:`parse`, positions are addresses; -1 says that it gave up. None reads beyond a newline, so none beyond the block.


@part
def _after_space(at: Any) -> Any:
    while byte_at(at) == _SPACE or byte_at(at) == 9 or byte_at(at) == 13:
        at += 1
    return at


@part
def _is_three(at: Any, first: Any, second: Any, third: Any) -> Any:
    """Whether these bytes follow."""
    return byte_at(at + 1) == first and byte_at(at + 2) == second and byte_at(at + 3) == third


@part
def _is_name(at: Any, name: Any, nbytes: Any) -> Any:
    for index in range(nbytes):
        if byte_at(at + index) != byte_at(name + index):
            return False
    return True


@part
def _digit(at: Any) -> Any:
    """0 to 9, or anything else."""
    return np.int64(byte_at(at)) - _ZERO


@part
def _unit(at: Any) -> Any:
    """The UTF-16 unit that four hexadecimal digits give; or -1."""
    unit = np.int64(0)
    for index in range(4):
        digit, letter = _digit(at + index), (np.int64(byte_at(at + index)) | 32) - _A
        if 0 <= digit <= 9:
            unit = 16 * unit + digit
        elif 0 <= letter <= 5:
            unit = 16 * unit + 10 + letter
        else:
            return np.int64(-1)
    return unit


@part
def _escape_bytes(at: Any) -> Any:
    """How many bytes the escape is whose backslash is at ``at``, one that is a character: both halves of a surrogate pair; or -1."""
    kind = byte_at(at + 1)
    if kind == _U:
        unit = _unit(at + 2)
        if unit < _HIGH or unit >= _AFTER_LOW:
            return 6 if unit >= 0 else -1
        if unit >= _LOW or byte_at(at + 6) != _BACKSLASH or byte_at(at + 7) != _U:
            return -1
        return 12 if _LOW <= _unit(at + 8) < _AFTER_LOW else -1
    if kind == _QUOTE or kind == _BACKSLASH or kind == _SLASH:
        return 2
    return 2 if kind == _B or kind == _F or kind == _N or kind == _R or kind == _SMALL_T else -1


@part
def _character(at: Any) -> Any:
    """What the escape at ``at`` stands for, which is one."""
    kind = byte_at(at + 1)
    if kind == _U:
        unit = _unit(at + 2)
        return unit if unit < _HIGH or unit >= _AFTER_LOW else 0x10000 + ((unit - _HIGH) << 10) + (_unit(at + 8) - _LOW)
    if kind == _B:
        return np.int64(8)
    if kind == _SMALL_T:
        return np.int64(9)
    if kind == _N:
        return np.int64(10)
    if kind == _F:
        return np.int64(12)
    if kind == _R:
        return np.int64(13)
    return np.int64(kind)


@part
def _string_end(at: Any) -> Any:
    """Of a string that begins at ``at``: its closing quote; all of its bytes ORed; whether it has escapes. Or -1."""
    bits, escaped = np.uint8(0), False
    while byte_at(at) != _QUOTE:
        if byte_at(at) < _SPACE:
            return -1, bits, escaped
        if byte_at(at) == _BACKSLASH:
            size = _escape_bytes(at)
            if size < 0:
                return -1, bits, escaped
            escaped = True
            at += size
        else:
            bits |= byte_at(at)
            at += 1
    return at, bits, escaped


@part
def _whole(at: Any) -> Any:
    """Digits as JSON has them in front of a point: the number, how many, and where they end; or -1."""
    number, start = np.int64(0), at
    while 0 <= _digit(at) <= 9:
        number = number * 10 + _digit(at)
        at += 1
        if at - start > DIGITS:
            return number, 0, -1
    if at == start or (byte_at(start) == _ZERO and at > start + 1):
        return number, 0, -1
    return number, at - start, at


@part
def _fraction(at: Any, number: Any, digits: Any) -> Any:
    """The same for what follows, which may be a point and digits: the number with them, the digits behind the point, and where they end."""
    if byte_at(at) != _POINT:
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
def _real(at: Any) -> Any:
    """A number as a double, and where it ends; or -1."""
    sign = 1.0
    if byte_at(at) == _MINUS:
        sign = -1.0
        at += 1
    number, digits, at = _whole(at)
    if at < 0:
        return 0.0, -1
    number, behind, at = _fraction(at, number, digits)
    if at < 0:
        return 0.0, -1
    power = -behind
    if byte_at(at) == _E or byte_at(at) == _SMALL_E:
        at += 1
        down = byte_at(at) == _MINUS
        if down or byte_at(at) == _PLUS:
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
def _decimal(at: Any, scale: Any, limit: Any) -> Any:
    """A decimal's digits with ``scale`` of them behind the point, fewer than ``limit``, and where it ends; or -1."""
    negative = byte_at(at) == _MINUS
    if negative:
        at += 1
    number, digits, at = _whole(at)
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
def _date(at: Any) -> Any:
    """Days since 1970 of YYYY-MM-DD, and where it ends; or -1. Days are counted from March 1 of year 0 on (Hinnant, days_from_civil)."""
    for index in range(10):
        if byte_at(at + index) == NEWLINE:
            return np.int64(0), -1
    century, year, month, day = _two(at), _two(at + 2), _two(at + 5), _two(at + 8)
    if century > 99 or year > 99 or byte_at(at + 4) != _MINUS or byte_at(at + 7) != _MINUS or month < 1 or month > 12 or day < 1:
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
def _timestamp(at: Any, with_zone: Any) -> Any:
    """Microseconds since 1970 of YYYY-MM-DDTHH:MM:SS, perhaps with more digits and a zone, and where it ends; or -1.

    A blank may stand for the T. Digits below the microsecond are dropped, and so is the zone without ``with_zone``.
    """
    days, at = _date(at)
    if at < 0:
        return days, -1
    for index in range(9):
        if byte_at(at + index) == NEWLINE:
            return days, -1
    hour, minute, second = _two(at + 1), _two(at + 4), _two(at + 7)
    if hour > 23 or minute > 59 or second > 59 or byte_at(at + 3) != _COLON or byte_at(at + 6) != _COLON:
        return days, -1
    if byte_at(at) != _T and byte_at(at) != _SPACE:
        return days, -1
    micros = ((days * 24 + hour) * 60 + minute) * 60 + second
    at += 9
    behind = 0
    if byte_at(at) == _POINT:
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
    if byte_at(at) == _Z:
        at += 1
    elif byte_at(at) == _PLUS or byte_at(at) == _MINUS:
        for index in range(6):
            if byte_at(at + index) == NEWLINE:
                return days, -1
        hour, minute = _two(at + 1), _two(at + 4)
        if hour > 23 or minute > 59 or byte_at(at + 3) != _COLON:
            return days, -1
        if with_zone:
            offset = (hour * 60 + minute) * 60_000_000
            micros += offset if byte_at(at) == _MINUS else -offset
        at += 6
    return micros, at


@part
def _number_end(at: Any) -> Any:
    """Where a number ends, of any length; or -1."""
    at += byte_at(at) == _MINUS
    start = at
    while 0 <= _digit(at) <= 9:
        at += 1
    if at == start or (byte_at(start) == _ZERO and at > start + 1):
        return -1
    if byte_at(at) == _POINT:
        start = at + 1
        at = start
        while 0 <= _digit(at) <= 9:
            at += 1
        if at == start:
            return -1
    if byte_at(at) == _E or byte_at(at) == _SMALL_E:
        at += 1
        at += byte_at(at) == _MINUS or byte_at(at) == _PLUS
        start = at
        while 0 <= _digit(at) <= 9:
            at += 1
        if at == start:
            return -1
    return at


@part
def _word_end(at: Any) -> Any:
    """Where true, false or null ends; or -1."""
    first = byte_at(at)
    if (first == _N and _is_three(at, _U, _L, _L)) or (first == _SMALL_T and _is_three(at, _R, _U, _SMALL_E)):
        return at + 4
    return at + 5 if first == _F and _is_three(at, _A, _L, _S) and byte_at(at + 4) == _SMALL_E else -1


@part
def _value_of_member(at: Any) -> Any:
    """Where the value of an object's member begins whose name does at ``at``, and the name's bytes ORed; or -1."""
    if byte_at(at) != _QUOTE:
        return -1, np.uint8(0)
    at, bits, _ = _string_end(at + 1)
    if at < 0:
        return -1, bits
    at = _after_space(at + 1)
    return _after_space(at + 1) if byte_at(at) == _COLON else -1, bits


@part
def _value_end(at: Any) -> Any:
    """Where any value ends, and the bytes of its strings ORed; or -1."""
    # Which of the arrays (0) and objects (1) that are open is the inner one, the lowest bit says.
    bits, depth, objects = np.uint8(0), 0, np.int64(0)
    while True:
        first = byte_at(at)
        if first == _OPEN or first == _OPEN_ARRAY:
            depth += 1
            if depth > DEEPEST:
                return -1, bits
            objects = objects * 2 + (first == _OPEN)
            at = _after_space(at + 1)
            if byte_at(at) != (_CLOSE if objects & 1 else _CLOSE_ARRAY):
                if objects & 1:
                    at, seen = _value_of_member(at)
                    if at < 0:
                        return -1, bits
                    bits |= seen
                continue
        elif first == _QUOTE:
            at, seen, _ = _string_end(at + 1)
            if at < 0:
                return -1, bits
            bits |= seen
            at += 1
        else:
            at = _number_end(at) if first <= _NINE else _word_end(at)
            if at < 0:
                return -1, bits
        while depth:
            at = _after_space(at)
            if byte_at(at) == _COMMA:
                at = _after_space(at + 1)
                if objects & 1:
                    at, seen = _value_of_member(at)
                    if at < 0:
                        return -1, bits
                    bits |= seen
                break
            if byte_at(at) != (_CLOSE if objects & 1 else _CLOSE_ARRAY):
                return -1, bits
            at += 1
            depth -= 1
            objects >>= 1
        else:
            return at, bits


@native(
    (
        *(read("uint8"), "int64", read("uint8"), read("int64"), read("int64"), read("int64"), read("int64")),
        *(write("int64"), write("int64"), write("float64"), write("uint8"), write("int64")),
    )
)
def parse(
    block: Any,
    rows: Any,
    names: Any,
    name_ends: Any,
    kinds: Any,
    limits: Any,
    scales: Any,
    order: Any,
    cells: Any,
    reals: Any,
    given: Any,
    refused: Any,
) -> Any:
    """A block of ``rows`` lines that are not blank, and all end in a newline: how many are refused, -1 where there is another number of
    lines; and whether strings have bytes that are not ASCII, of whose encoding nothing is known. O(bytes).

    Column c's name is names[name_ends[c]:name_ends[c + 1]]; the absolute values of its integers or decimals must be less than limits[c].
    What it has in row r goes to cells[c * rows + r], of which ``reals`` is another view: of a text, and of what is WRITTEN, where it begins
    and, in the lower 32 bits, twice its length, plus 1 if it has escapes. ``given`` must be 0, and says what is in the cell. The numbers of
    rows that are refused go to ``refused``; their cells are MISSING.
    """
    begin, names_at = np.int64(block.ctypes.data), np.int64(names.ctypes.data)
    at: Any = begin
    end_of_block, row, bits, count = begin + len(block), 0, np.uint8(0), 0
    while at < end_of_block:
        at = _after_space(at)
        if byte_at(at) == NEWLINE:
            at += 1
            continue
        if row == rows:
            return -1, False
        line, place = at, 0
        more = byte_at(at) == _OPEN
        at = _after_space(at + 1) if more else -1
        if more and byte_at(at) == _CLOSE:
            more = False
            at += 1
        while more:
            if byte_at(at) != _QUOTE:
                at = -1
                break
            at += 1
            column = order[place] if place < ORDER else -1
            if column >= 0:
                size = name_ends[column + 1] - name_ends[column]
                if _is_name(at, names_at + name_ends[column], size) and byte_at(at + size) == _QUOTE:
                    at += size
                else:
                    column = -1
            if column < 0:
                end, seen, escaped = _string_end(at)
                if end < 0 or escaped:
                    at = -1
                    break
                bits |= seen
                for index in range(len(kinds)):
                    size = name_ends[index + 1] - name_ends[index]
                    if end - at == size and _is_name(at, names_at + name_ends[index], size):
                        column = index
                if place < ORDER:
                    order[place] = column
                at = end
            place += 1
            at = _after_space(at + 1)
            if byte_at(at) != _COLON:
                at = -1
                break
            at = _after_space(at + 1)
            if column < 0:
                at, seen = _value_end(at)
                bits |= seen
            else:
                first, kind, cell, start = byte_at(at), kinds[column], np.uint64(column * rows + row), at
                if given[cell] != MISSING:
                    at = -1
                    break
                given[cell] = VALUE
                if first == _N:
                    given[cell] = NULL
                    at = _word_end(at)
                elif kind == BOOLEAN:
                    cells[cell] = first == _SMALL_T
                    at = _word_end(at) if first > _NINE else -1
                elif first == _QUOTE:
                    at = -1
                    if kind == INSTANT or kind == WALL_CLOCK:
                        cells[cell], at = _timestamp(start + 1, kind == INSTANT)
                    elif kind == DECIMAL:
                        cells[cell], at = _decimal(start + 1, scales[column], limits[column])
                    elif kind == DATE:
                        cells[cell], at = _date(start + 1)
                    if at < 0 or byte_at(at) != _QUOTE:
                        start += 1
                        at, seen, escaped = _string_end(start) if kind != DOUBLE else (-1, bits, False)
                        bits |= seen
                        cells[cell] = ((start - begin) << 32) + 2 * (at - start) + escaped
                        given[cell] = VALUE if kind == TEXT else WRITTEN
                    at = at + 1 if at >= 0 else -1
                elif first <= _NINE and (kind == INTEGER or kind == DOUBLE or kind == DECIMAL):
                    if kind == DOUBLE:
                        reals[cell], at = _real(at)
                    elif kind == DECIMAL:
                        cells[cell], at = _decimal(at, scales[column], limits[column])
                    else:
                        number, _, at = _whole(at + (first == _MINUS))
                        cells[cell] = -number if first == _MINUS else number
                        at = at if number < limits[column] else -1
                    if at < 0 or byte_at(at) == _POINT or byte_at(at) == _E or byte_at(at) == _SMALL_E:
                        at = _number_end(start)
                        cells[cell] = ((start - begin) << 32) + 2 * (at - start)
                        given[cell] = WRITTEN
                else:
                    at = -1
            if at < 0:
                break
            at = _after_space(at)
            more = byte_at(at) == _COMMA
            if not more and byte_at(at) != _CLOSE:
                at = -1
                break
            at = _after_space(at + 1) if more else at + 1
        if at >= 0:
            at = _after_space(at)
        if at < 0 or byte_at(at) != NEWLINE:
            for column in range(len(kinds)):
                cells[column * rows + row] = 0
                given[column * rows + row] = MISSING
            refused[count] = row
            count += 1
            at = line
            while byte_at(at) != NEWLINE:
                at += 1
        at += 1
        row += 1
    return (count if row == rows else -1), bits >= 128


@native((read("uint8"), read("int64"), read("uint8"), write("int32"), write("uint8")))
def copy_texts(block: Any, cells: Any, given: Any, offsets: Any, texts: Any) -> Any:
    """The strings of a column one after another, and where each begins; O(bytes). ``offsets`` has one more entry than ``cells``."""
    begin, end = np.int64(block.ctypes.data), 0
    for row in range(len(cells)):
        offsets[row] = end
        if given[row] != VALUE:
            continue
        at = begin + (cells[row] >> 32)
        stop = at + ((cells[row] & 0xFFFFFFFF) >> 1)
        if cells[row] & 1 == 0:
            while at < stop:
                texts[end] = byte_at(at)
                end += 1
                at += 1
        while at < stop:
            if byte_at(at) != _BACKSLASH:
                texts[end] = byte_at(at)
                end += 1
                at += 1
                continue
            code: Any = _character(at)
            at += _escape_bytes(at)
            # UTF-8, RFC 3629: the first byte says how many follow, each with six bits.
            more: Any = (code >= 0x80) + (code >= 0x800) + (code >= 0x10000)
            lead = 0 if more == 0 else 0xF0 & (0xF0 << (3 - more))
            texts[end] = lead | code >> 6 * more
            for index in range(more):
                texts[end + index + 1] = 0x80 | (code >> 6 * (more - 1 - index) & 0x3F)
            end += more + 1
    offsets[len(cells)] = end
