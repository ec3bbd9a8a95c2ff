"""Machine code for JSON lines of a known schema, as long as they are written plainly: as nearly all that programs write is.

Importing this imports Numba. It skips fields that no column has. A value that is written in a rare way, as an integer that is written 1e3,
it leaves as text, for the caller to convert; a line that is wrong, or that it does not understand, it refuses, and goes on with the next
one: the caller parses that line in another way, which also says what is wrong. So this needs no errors, and none of the rare ways.

Always holds: what this accepts is JSON (RFC 8259), and its values are exactly those that ``io.text.JsonFormat`` makes of it line by line.
"""

# ruff: noqa: PLR1714, SIM109 (`in` is slower in machine code)

from __future__ import annotations

from typing import Any

import numpy as np

from streamjoin.native.addresses import byte_at
from streamjoin.native.functions import native, read, write
from streamjoin.native.json_parts import (
    BACKSLASH,
    CAPITAL_E,
    CLOSE,
    COLON,
    COMMA,
    LETTER_E,
    LETTER_N,
    LETTER_T,
    MINUS,
    NEWLINE,
    NINE,
    OPEN,
    POINT,
    QUOTE,
    after_space,
    character,
    date,
    decimal,
    escape_bytes,
    is_name,
    number_end,
    real,
    string_end,
    timestamp,
    value_end,
    whole,
    word_end,
)

INTEGER, DOUBLE, BOOLEAN, DECIMAL, TEXT, INSTANT, WALL_CLOCK, DATE, BYTES = range(9)
"""What a column's values are: of DOUBLE floats of 32 bits, too, and of BYTES all values are WRITTEN."""
ORDER = 64
"""Of so many keys of an object, the column that each was the last time is tried first."""
MISSING, VALUE, NULL, WRITTEN = 0, 1, 2, 3
"""What is in a cell: nothing (0 for certain), a value, a null, or where a value is written that the caller converts."""


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
        at = after_space(at)
        if byte_at(at) == NEWLINE:
            at += 1
            continue
        if row == rows:
            return -1, False
        line, place = at, 0
        more = byte_at(at) == OPEN
        at = after_space(at + 1) if more else -1
        if more and byte_at(at) == CLOSE:
            more = False
            at += 1
        while more:
            if byte_at(at) != QUOTE:
                at = -1
                break
            at += 1
            column = order[place] if place < ORDER else -1
            if column >= 0:
                size = name_ends[column + 1] - name_ends[column]
                if is_name(at, names_at + name_ends[column], size) and byte_at(at + size) == QUOTE:
                    at += size
                else:
                    column = -1
            if column < 0:
                end, seen, escaped = string_end(at)
                if end < 0 or escaped:
                    at = -1
                    break
                bits |= seen
                for index in range(len(kinds)):
                    size = name_ends[index + 1] - name_ends[index]
                    if end - at == size and is_name(at, names_at + name_ends[index], size):
                        column = index
                if place < ORDER:
                    order[place] = column
                at = end
            place += 1
            at = after_space(at + 1)
            if byte_at(at) != COLON:
                at = -1
                break
            at = after_space(at + 1)
            if column < 0:
                at, seen = value_end(at)
                bits |= seen
            else:
                first, kind, cell, start = byte_at(at), kinds[column], np.uint64(column * rows + row), at
                if given[cell] != MISSING:
                    at = -1
                    break
                given[cell] = VALUE
                if first == LETTER_N:
                    given[cell] = NULL
                    at = word_end(at)
                elif kind == BOOLEAN:
                    cells[cell] = first == LETTER_T
                    at = word_end(at) if first > NINE else -1
                elif first == QUOTE:
                    at = -1
                    if kind == INSTANT or kind == WALL_CLOCK:
                        cells[cell], at = timestamp(start + 1, kind == INSTANT)
                    elif kind == DECIMAL:
                        cells[cell], at = decimal(start + 1, scales[column], limits[column])
                    elif kind == DATE:
                        cells[cell], at = date(start + 1)
                    if at < 0 or byte_at(at) != QUOTE:
                        start += 1
                        at, seen, escaped = string_end(start) if kind != DOUBLE else (-1, bits, False)
                        bits |= seen
                        cells[cell] = ((start - begin) << 32) + 2 * (at - start) + escaped
                        given[cell] = VALUE if kind == TEXT else WRITTEN
                    at = at + 1 if at >= 0 else -1
                elif first <= NINE and (kind == INTEGER or kind == DOUBLE or kind == DECIMAL):
                    if kind == DOUBLE:
                        reals[cell], at = real(at)
                    elif kind == DECIMAL:
                        cells[cell], at = decimal(at, scales[column], limits[column])
                    else:
                        number, _, at = whole(at + (first == MINUS))
                        cells[cell] = -number if first == MINUS else number
                        at = at if number < limits[column] else -1
                    if at < 0 or byte_at(at) == POINT or byte_at(at) == CAPITAL_E or byte_at(at) == LETTER_E:
                        at = number_end(start)
                        cells[cell] = ((start - begin) << 32) + 2 * (at - start)
                        given[cell] = WRITTEN
                else:
                    at = -1
            if at < 0:
                break
            at = after_space(at)
            more = byte_at(at) == COMMA
            if not more and byte_at(at) != CLOSE:
                at = -1
                break
            at = after_space(at + 1) if more else at + 1
        if at >= 0:
            at = after_space(at)
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
            if byte_at(at) != BACKSLASH:
                texts[end] = byte_at(at)
                end += 1
                at += 1
                continue
            code: Any = character(at)
            at += escape_bytes(at)
            # UTF-8, RFC 3629: the first byte says how many follow, each with six bits.
            more: Any = (code >= 0x80) + (code >= 0x800) + (code >= 0x10000)
            lead = 0 if more == 0 else 0xF0 & (0xF0 << (3 - more))
            texts[end] = lead | code >> 6 * more
            for index in range(more):
                texts[end + index + 1] = 0x80 | (code >> 6 * (more - 1 - index) & 0x3F)
            end += more + 1
    offsets[len(cells)] = end
