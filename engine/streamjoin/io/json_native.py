"""JSON lines of a known schema as columns, by machine code, as long as they are written plainly: as nearly all that programs write is.

Importing this imports Numba. It understands objects whose values are numbers, strings without escapes, truth values and nulls, and gives a
block up at the first byte that is anything else, or that is wrong: the caller then parses the block in another way, which also says what is
wrong. So this needs no errors, and none of the rare parts of JSON.

Always holds: what this accepts is JSON (RFC 8259), and its values are exactly those that ``text.JsonFormat`` makes of it by Arrow, or line
by line. Doubles are exact by Clinger's fast path (How to Read Floating Point Numbers Accurately, 1990): where the mantissa and a power of
ten are exact, their product or quotient is rounded once.
"""

# ruff: noqa: PLR1714, SIM109, SIM110 (all() and `in` are slower in machine code)

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias, cast

import numpy as np
import pyarrow as pa
from numba.extending import register_jitable

from streamjoin.io.lines import Text
from streamjoin.io.memory import byte_at
from streamjoin.kernel.native import native, read, write

INTEGER, DOUBLE, BOOLEAN, DECIMAL, TEXT, TIMESTAMP, DATE, IGNORED = range(8)
"""What a column's values are; of timestamps, a zone may only be Z. IGNORED: of no column."""
DIGITS = 18
"""A number of so many digits is an int64 for certain."""
ORDER = 64
"""Of so many keys of an object, the column that each was the last time is tried first."""
PLAIN, OTHER_TEXT, GIVEN_UP = 0, 1, 2
"""All is ASCII; there are other bytes within strings, and nothing is known of their encoding; something is not understood."""
_MISSING, _VALUE, _NULL = 0, 1, 2
_POWERS = 10.0 ** np.arange(23)
_EXACT = 1 << 53
_QUOTE, _BACKSLASH, _COLON, _COMMA, _OPEN, _CLOSE = (ord(character) for character in '"\\:,{}')
_MINUS, _PLUS, _POINT, _ZERO, _E, _SMALL_E, _T, _Z = (ord(character) for character in "-+.0EeTZ")
_A, _F, _L, _N, _R, _S, _SMALL_T, _U = (ord(character) for character in "aflnrstu")
_NEWLINE = 10
_SPACE = 32

_Function: TypeAlias = Callable[..., Any]
_part = cast(Callable[[_Function], _Function], register_jitable)
"""A part of :func:`parse`. Positions are addresses; -1 says that it gave up. None reads beyond a newline, so none beyond the block."""


@_part
def _after_space(at: Any) -> Any:
    while byte_at(at) == _SPACE or byte_at(at) == 9 or byte_at(at) == 13:
        at += 1
    return at


@_part
def _is_three(at: Any, first: Any, second: Any, third: Any) -> Any:
    """Whether these bytes follow."""
    return byte_at(at + 1) == first and byte_at(at + 2) == second and byte_at(at + 3) == third


@_part
def _is_name(at: Any, name: Any, nbytes: Any) -> Any:
    for index in range(nbytes):
        if byte_at(at + index) != byte_at(name + index):
            return False
    return True


@_part
def _digit(at: Any) -> Any:
    """0 to 9, or anything else."""
    return np.int64(byte_at(at)) - _ZERO


@_part
def _string_end(at: Any) -> Any:
    """Of a string that begins at ``at``: its closing quote, and all of its bytes ORed; or -1."""
    bits = np.uint8(0)
    while byte_at(at) != _QUOTE:
        if byte_at(at) == _BACKSLASH or byte_at(at) < _SPACE:
            return -1, bits
        bits |= byte_at(at)
        at += 1
    return at, bits


@_part
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


@_part
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


@_part
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


@_part
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


@_part
def _two(at: Any) -> Any:
    """Two digits as a number; or something from 100 on."""
    tens, ones = _digit(at), _digit(at + 1)
    return tens * 10 + ones if 0 <= tens <= 9 and 0 <= ones <= 9 else np.int64(100)


@_part
def _date(at: Any) -> Any:
    """Days since 1970 of YYYY-MM-DD, and where it ends; or -1. Days are counted from March 1 of year 0 on (Hinnant, days_from_civil)."""
    for index in range(10):
        if byte_at(at + index) == _NEWLINE:
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


@_part
def _timestamp(at: Any) -> Any:
    """Microseconds since 1970 of YYYY-MM-DDTHH:MM:SS, with up to six digits of a second and a Z, and where it ends; or -1."""
    days, at = _date(at)
    if at < 0:
        return days, -1
    for index in range(9):
        if byte_at(at + index) == _NEWLINE:
            return days, -1
    hour, minute, second = _two(at + 1), _two(at + 4), _two(at + 7)
    if byte_at(at) != _T or byte_at(at + 3) != _COLON or byte_at(at + 6) != _COLON or hour > 23 or minute > 59 or second > 59:
        return days, -1
    number, behind, at = _fraction(at + 9, ((days * 24 + hour) * 60 + minute) * 60 + second, DIGITS - 6)
    if at < 0:
        return days, -1
    for _ in range(behind, 6):
        number *= 10
    return number, at + (byte_at(at) == _Z)


@native(
    (
        *(read("uint8"), "int64", read("uint8"), read("int64"), read("int64"), read("int64"), read("int64")),
        *(write("int64"), write("int64"), write("float64"), write("uint8")),
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
) -> Any:
    """A block of ``rows`` lines that are not blank, and all end in a newline. Returns PLAIN, OTHER_TEXT or GIVEN_UP. O(bytes).

    Column c's name is names[name_ends[c]:name_ends[c + 1]]; the absolute values of its integers or decimals must be less than limits[c].
    What it has in row r goes to cells[c * rows + r], of which ``reals`` is another view: of a string, where it begins and, in the lower 32
    bits, how long it is. ``given`` must be 0, and becomes 1 where there is a value, and 2 where it is null.
    """
    begin, names_at = np.int64(block.ctypes.data), np.int64(names.ctypes.data)
    at: Any = begin
    end_of_block, row, bits = begin + len(block), 0, np.uint8(0)
    while at < end_of_block:
        at = _after_space(at)
        if byte_at(at) == _NEWLINE:
            at += 1
            continue
        if row == rows or byte_at(at) != _OPEN:
            return GIVEN_UP
        at = _after_space(at + 1)
        place = 0
        more = byte_at(at) != _CLOSE
        if not more:
            at += 1
        while more:
            if byte_at(at) != _QUOTE:
                return GIVEN_UP
            at += 1
            column = order[place] if place < ORDER else -1
            if column >= 0:
                size = name_ends[column + 1] - name_ends[column]
                if _is_name(at, names_at + name_ends[column], size) and byte_at(at + size) == _QUOTE:
                    at += size
                else:
                    column = -1
            if column < 0:
                end, seen = _string_end(at)
                if end < 0:
                    return GIVEN_UP
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
                return GIVEN_UP
            at = _after_space(at + 1)
            first = byte_at(at)
            kind = kinds[column] if column >= 0 else IGNORED
            cell = np.uint64(column * rows + row)
            if column >= 0:
                if given[cell] != _MISSING:
                    return GIVEN_UP
                given[cell] = _VALUE
            if first == _N:
                if not _is_three(at, _U, _L, _L):
                    return GIVEN_UP
                at += 4
                if column >= 0:
                    given[cell] = _NULL
            elif first == _QUOTE:
                at += 1
                if kind == TIMESTAMP:
                    cells[cell], at = _timestamp(at)
                elif kind == DECIMAL:
                    cells[cell], at = _decimal(at, scales[column], limits[column])
                elif kind == DATE:
                    cells[cell], at = _date(at)
                elif kind == TEXT or kind == IGNORED:
                    start = at
                    at, seen = _string_end(at)
                    bits |= seen
                    if column >= 0:
                        cells[cell] = ((start - begin) << 32) + (at - start)
                else:
                    return GIVEN_UP
                if at < 0 or byte_at(at) != _QUOTE:
                    return GIVEN_UP
                at += 1
            elif first == _SMALL_T or first == _F:
                if kind != BOOLEAN and kind != IGNORED:
                    return GIVEN_UP
                if first == _SMALL_T and _is_three(at, _R, _U, _SMALL_E):
                    at += 4
                elif first == _F and _is_three(at, _A, _L, _S) and byte_at(at + 4) == _SMALL_E:
                    at += 5
                else:
                    return GIVEN_UP
                if column >= 0:
                    cells[cell] = first == _SMALL_T
            elif kind == INTEGER:
                if first == _MINUS:
                    at += 1
                number, _, at = _whole(at)
                if at < 0 or number >= limits[column]:
                    return GIVEN_UP
                cells[cell] = -number if first == _MINUS else number
            elif kind == DECIMAL:
                cells[cell], at = _decimal(at, scales[column], limits[column])
                if at < 0:
                    return GIVEN_UP
            elif kind == DOUBLE or kind == IGNORED:
                real, at = _real(at)
                if at < 0:
                    return GIVEN_UP
                if column >= 0:
                    reals[cell] = real
            else:
                return GIVEN_UP
            at = _after_space(at)
            more = byte_at(at) == _COMMA
            if not more and byte_at(at) != _CLOSE:
                return GIVEN_UP
            at = _after_space(at + 1) if more else at + 1
        at = _after_space(at)
        if byte_at(at) != _NEWLINE:
            return GIVEN_UP
        at += 1
        row += 1
    if row != rows:
        return GIVEN_UP
    return OTHER_TEXT if bits >= 128 else PLAIN


@native((read("uint8"), read("int64"), read("uint8"), write("int32"), write("uint8")))
def copy_texts(block: Any, cells: Any, given: Any, offsets: Any, texts: Any) -> Any:
    """The strings of a column one after another, and where each begins; O(bytes). ``offsets`` has one more entry than ``cells``."""
    end = 0
    for row in range(len(cells)):
        offsets[row] = end
        if given[row] == _VALUE:
            start, size = cells[row] >> 32, cells[row] & 0xFFFFFFFF
            for index in range(size):
                texts[end + index] = block[start + index]
            end += size
    offsets[len(cells)] = end


_KINDS = {
    pa.int8(): INTEGER,
    pa.int16(): INTEGER,
    pa.int32(): INTEGER,
    pa.int64(): INTEGER,
    pa.float64(): DOUBLE,
    pa.bool_(): BOOLEAN,
    pa.string(): TEXT,
    pa.timestamp("us"): TIMESTAMP,
    pa.timestamp("us", "UTC"): TIMESTAMP,
    pa.date32(): DATE,
}


class PlainJson:
    """Reads blocks of JSON lines of one schema."""

    def __init__(self, schema: pa.Schema) -> None:
        """For schemas that :func:`understands`."""
        self._schema = schema
        names = [name.encode() for name in schema.names]
        self._names = np.frombuffer(b"".join(names), np.uint8)
        self._name_ends = np.cumsum([0] + [len(name) for name in names])
        self._kinds = np.array([_kind(item.type) for item in schema], np.int64)
        self._limits = np.array([_limit(item.type) for item in schema], np.int64)
        self._scales = np.array([item.type.scale if pa.types.is_decimal(item.type) else 0 for item in schema], np.int64)
        self._order = np.full(ORDER, -1, np.int64)

    def parse(self, block: Text, rows: int) -> list[pa.Array] | None:
        """The columns of a block that has ``rows`` lines which are not blank; or None, where something is not understood. O(bytes)."""
        if not len(block) or block[-1] != _NEWLINE:
            block = bytes(block) + b"\n"
        cells = np.empty(len(self._kinds) * rows, np.int64)
        given = np.zeros(len(self._kinds) * rows, np.uint8)
        data = np.frombuffer(block, np.uint8)
        result = parse(
            *(data, rows, self._names, self._name_ends, self._kinds, self._limits, self._scales),
            *(self._order, cells, cells.view(np.float64), given),
        )
        if result == GIVEN_UP:
            return None
        if result == OTHER_TEXT:
            try:
                str(block, "utf-8")
            except UnicodeDecodeError:
                return None
        return [
            _column(data, item.type, cells[at * rows : (at + 1) * rows], given[at * rows : (at + 1) * rows])
            for at, item in enumerate(self._schema)
        ]


def understands(schema: pa.Schema) -> bool:
    """Whether all columns have types that this reads, and names that JSON writes as they are."""
    return all(_kind(item.type) is not None and item.name.isprintable() and not set(item.name) & set('"\\') for item in schema)


def _kind(kind: pa.DataType) -> int | None:
    if pa.types.is_decimal128(kind):
        return DECIMAL if 0 <= kind.scale <= DIGITS else None
    return _KINDS.get(kind)


def _limit(kind: pa.DataType) -> int:
    """What is the first number too large."""
    if pa.types.is_decimal(kind):
        return int(10 ** min(kind.precision, DIGITS))
    return min(2 ** (kind.bit_width - 1), 10**DIGITS) if pa.types.is_integer(kind) else 0


def _column(block: np.ndarray, kind: pa.DataType, cells: np.ndarray, given: np.ndarray) -> pa.Array:
    rows = len(cells)
    there = given == _VALUE
    valid = None if there.all() else pa.py_buffer(np.packbits(there, bitorder="little"))
    if pa.types.is_string(kind):
        offsets, texts = np.empty(rows + 1, np.int32), np.empty(int((cells[there] & 0xFFFFFFFF).sum()), np.uint8)
        copy_texts(block, cells, given, offsets, texts)
        return pa.Array.from_buffers(kind, rows, [valid, pa.py_buffer(offsets), pa.py_buffer(texts)])
    values = cells
    if pa.types.is_boolean(kind):
        values = np.packbits(cells == 1, bitorder="little")
    elif pa.types.is_decimal(kind):
        values = np.empty((rows, 2), np.int64)
        values[:, 0], values[:, 1] = cells, cells >> 63
    elif kind.bit_width < 64:
        values = cells.astype(f"int{kind.bit_width}")
    return pa.Array.from_buffers(kind, rows, [valid, pa.py_buffer(values)])
