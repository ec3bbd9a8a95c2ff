"""Machine code for Protobuf's wire format: it reads the fields that ``io.protobuf_schema`` asks for, of many records.

Importing this imports Numba. The fields asked for are a table of rows of WORDS numbers: of which message, the field's number, what it is,
the slot that its value goes to (-1: none), the message that it is itself, and the slot that says which member of its oneof came last (-1:
it is in none). All others are skipped.

Always holds: nothing outside a record's bytes is read, whatever they are. A field that comes twice has its last value, and messages that do
are merged, as the specification wants it.

Source: protobuf.dev, "Encoding".
"""

# ruff: noqa: PLR1714, SIM109 (`in` is slower in machine code)

from __future__ import annotations

from typing import Any

import numpy as np

from streamjoin.native.addresses import int32_at, int64_at
from streamjoin.native.functions import native, read, write
from streamjoin.native.numba_names import part
from streamjoin.native.unreadable import BAD_TAG, ENDS, OK, TOO_DEEP
from streamjoin.native.varint import varint

INT64, INT32, UINT32, ZIGZAG, BOOLEAN, EIGHT, FOUR, UNSIGNED_FOUR, BYTES, MESSAGE, NOTHING, SHORT_ZIGZAG = range(12)
"""What a field is; NOTHING: its value is not asked for."""
WORDS = 6
DEEPEST = 64
SPAN_BITS = 31
"""As ``avro`` has it."""
_VARINT, _EIGHT_BYTES, _LENGTH, _GROUP, _END_GROUP, _FOUR_BYTES = range(6)
_LARGEST_TAG, _LONGEST_TAG = 0xFFFF_FFFF, 5


@part
def _tag(at: Any, end: Any) -> Any:
    """The number of the field that comes, what its value is written as, and where that begins, or, below 0, what is wrong."""
    begin = at
    tag, at = varint(at, end)
    number = np.int64(tag >> np.uint64(3))
    if at >= 0 and (number == 0 or tag > np.uint64(_LARGEST_TAG) or at - begin > _LONGEST_TAG):
        at = np.int64(-BAD_TAG)
    return number, np.int64(tag & np.uint64(7)), at


@part
def _skipped(at: Any, end: Any, number: Any, wire: Any, groups: Any) -> Any:
    """Where a field's value ends that nobody wants, or what is wrong with it, below 0. ``groups`` has room for DEEPEST numbers."""
    depth = 0
    while True:
        if wire == _VARINT:
            _, at = varint(at, end)
        elif wire == _EIGHT_BYTES:
            at = at + 8 if end - at >= 8 else np.int64(-ENDS)
        elif wire == _FOUR_BYTES:
            at = at + 4 if end - at >= 4 else np.int64(-ENDS)
        elif wire == _LENGTH:
            size, at = varint(at, end)
            if at >= 0:
                at = at + np.int64(size) if size <= np.uint64(end - at) else np.int64(-ENDS)
        elif wire == _GROUP:
            if depth == DEEPEST:
                return np.int64(-TOO_DEEP)
            groups[depth] = number
            depth += 1
        elif wire == _END_GROUP and depth > 0 and groups[depth - 1] == number:
            depth -= 1
        else:
            return np.int64(-BAD_TAG)
        if at < 0 or depth == 0:
            return at
        number, wire, at = _tag(at, end)
        if at < 0:
            return at


@native(
    (
        *(read("uint8"), read("int64"), read("int64"), read("int64"), read("int64")),
        *(write("int64"), write("uint8"), write("uint8"), write("int64")),
    )
)
def read_messages(data: Any, starts: Any, ends: Any, table: Any, firsts: Any, cells: Any, given: Any, status: Any, stack: Any) -> Any:
    """Reads the records at ``starts`` to ``ends`` of ``data`` as messages 0, whose rows of the table come first; O(bytes).

    Cells and ``given`` are as in ``avro.read_records``; a message that is there gives its slot 1. ``stack`` has room for 3 * DEEPEST
    numbers.
    """
    base = np.int64(data.ctypes.data)
    records = len(starts)
    outer_ends, outer, groups = stack[:DEEPEST], stack[DEEPEST : 2 * DEEPEST], stack[2 * DEEPEST :]
    for row in range(records):
        at: Any = base + starts[row]
        end: Any = base + ends[row]
        message: Any = np.int64(0)
        depth = 0
        place: Any = firsts[message]
        while True:
            if at == end:
                if depth == 0:
                    break
                depth -= 1
                end, message = outer_ends[depth], outer[depth]
                place = firsts[message]
                continue
            number, wire, at = _tag(at, end)
            if at < 0:
                break
            # Fields come in the order of their numbers, as a rule, and so are they in the table.
            first, last = firsts[message], firsts[message + 1]
            found: Any = -1
            for _ in range(last - first):
                if place >= last:
                    place = first
                if table[place * WORDS + 1] == number:
                    found = place * WORDS
                    place += 1
                    break
                place += 1
            kind = NOTHING
            if found >= 0:
                kind = table[found + 2]
            wanted = _FOUR_BYTES if kind == FOUR or kind == UNSIGNED_FOUR else _VARINT
            if kind == EIGHT:
                wanted = _EIGHT_BYTES
            elif kind == BYTES or kind == MESSAGE:
                wanted = _LENGTH
            if kind == NOTHING or wire != wanted:
                if found >= 0 and table[found + 5] >= 0 and kind == NOTHING:
                    cells[table[found + 5] * records + row] = number
                at = _skipped(at, end, number, wire, groups)
                if at < 0:
                    break
                continue
            cell = table[found + 3] * records + row
            value = np.int64(0)
            if wanted == _VARINT:
                raw, at = varint(at, end)
                if at < 0:
                    break
                value = np.int64(raw)
                if kind == INT32:
                    value = np.int64(np.int32(raw & np.uint64(0xFFFFFFFF)))
                elif kind == UINT32:
                    value = np.int64(raw & np.uint64(0xFFFFFFFF))
                elif kind == ZIGZAG:
                    value = np.int64(raw >> np.uint64(1)) ^ -np.int64(raw & np.uint64(1))
                elif kind == SHORT_ZIGZAG:
                    short = raw & np.uint64(0xFFFFFFFF)
                    value = np.int64(short >> np.uint64(1)) ^ -np.int64(short & np.uint64(1))
                elif kind == BOOLEAN:
                    value = np.int64(raw != np.uint64(0))
            elif wanted == _LENGTH:
                raw, at = varint(at, end)
                if at < 0:
                    break
                if raw > np.uint64(end - at):
                    at = np.int64(-ENDS)
                    break
                size = np.int64(raw)
                value = (at - base) << SPAN_BITS | size
                if kind == BYTES:
                    at += size
            elif wanted == _EIGHT_BYTES:
                if end - at < 8:
                    at = np.int64(-ENDS)
                    break
                value = int64_at(at)
                at += 8
            else:
                if end - at < 4:
                    at = np.int64(-ENDS)
                    break
                value = np.int64(int32_at(at))
                if kind == UNSIGNED_FOUR:
                    value &= 0xFFFFFFFF
                at += 4
            cells[cell] = value
            given[cell] = 1
            if table[found + 5] >= 0:
                cells[table[found + 5] * records + row] = number
            if kind == MESSAGE:
                if depth == DEEPEST:
                    at = np.int64(-TOO_DEEP)
                    break
                outer_ends[depth], outer[depth] = end, message
                depth += 1
                end, message = at + (value & ((1 << SPAN_BITS) - 1)), table[found + 4]
                place = firsts[message]
        status[row] = -at if at < 0 else OK
