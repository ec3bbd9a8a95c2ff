"""Machine code for Avro's binary encoding: it runs a program that ``avro_schema`` makes of a writer's schema, over many records.

Importing this imports Numba. A program is interpreted, not compiled: a schema that appears while a join runs costs it nothing but reading.
An instruction is three words, what it is, the slot that its value goes to (-1: none) and an argument; that of a union is followed by where
each of its branches begins.

Always holds: nothing outside a record's bytes is read, whatever they are, and each record ends after a number of steps that is
proportional to its length. A record that is not what its schema says gets the reason as its status, and others are not touched by that.

Source: the Avro specification 1.12, "Binary Encoding".

NB: the parts of :func:`read_records` stay in its file, by which alone Numba knows whether machine code in its cache is still that of the
source.
"""

# ruff: noqa: PLR1714, SIM109 (`in` is slower in machine code)

from __future__ import annotations

from typing import Any

import numpy as np

from streamjoin.native.addresses import byte_at, copy, int32_at, int64_at, put_byte
from streamjoin.native.functions import native, read, write
from streamjoin.native.numba_names import part
from streamjoin.native.unreadable import ENDS, LEFT_OVER, NEGATIVE, NO_BOOLEAN, NO_BRANCH, NO_SYMBOL, OK, TOO_DEEP, TOO_MANY
from streamjoin.native.varint import varint

END, VARINT, ENUM, BOOLEAN, FLOAT, DOUBLE, BYTES, FIXED, UNION, JUMP, BLOCKS, NEXT, CALL, RETURN, GIVE = range(15)
"""Instructions. BLOCKS begins an array or a map, whose NEXT is at the argument; NEXT goes to the argument for each item; CALL and RETURN
are for records that contain themselves; GIVE says only that the slot has a value."""
WORDS = 3
DEEPEST = 64
"""Arrays, maps and records in one another."""
STEPS = 10_000
"""A record takes at most so many steps, and STEPS_PER_BYTE for each byte: items of arrays may have none."""
STEPS_PER_BYTE = 64
SPAN_BITS = 31
"""A cell of bytes has where they begin in the upper bits, and their number in so many lower ones."""
_SPAN_MASK = (1 << SPAN_BITS) - 1


@part
def _long(at: Any, end: Any) -> Any:
    """A zig-zag number, and where it ends; as :func:`streamjoin.native.varint.varint`."""
    number, at = varint(at, end)
    return np.int64(number >> np.uint64(1)) ^ -np.int64(number & np.uint64(1)), at


@native(
    (
        *(read("uint8"), read("int64"), read("int64"), read("int64")),
        *(write("int64"), write("uint8"), write("uint8"), write("int64")),
    )
)
def read_records(data: Any, starts: Any, ends: Any, program: Any, cells: Any, given: Any, status: Any, stack: Any) -> Any:
    """Runs the program over the records that lie at ``starts`` to ``ends`` of ``data``; O(bytes).

    What slot s has of record r goes to cells[s * records + r], and 1 to ``given`` there, which must be 0: a number, the bits of a double
    or float, or, of bytes, where they are. ``status`` gets what became of each record. ``stack`` has room for 2 * DEEPEST numbers.
    """
    base = np.int64(data.ctypes.data)
    records = len(starts)
    kinds, lefts = stack[:DEEPEST], stack[DEEPEST:]
    for row in range(records):
        at: Any = base + starts[row]
        end = base + ends[row]
        steps = STEPS + STEPS_PER_BYTE * (ends[row] - starts[row])
        pc: Any = np.int64(0)
        depth = 0
        result = OK
        while True:
            kind, slot, argument = program[pc], program[pc + 1], program[pc + 2]
            pc += WORDS
            steps -= 1
            if steps < 0:
                result = TOO_MANY
                break
            cell = slot * records + row
            if kind == VARINT or kind == ENUM:
                number, at = _long(at, end)
                if at < 0:
                    result = -at
                    break
                if kind == ENUM and not 0 <= number < argument:
                    result = NO_SYMBOL
                    break
                if slot >= 0:
                    cells[cell] = number
                    given[cell] = 1
            elif kind == BYTES or kind == FIXED:
                size = argument
                if kind == BYTES:
                    size, at = _long(at, end)
                    if at < 0:
                        result = -at
                        break
                    if size < 0:
                        result = NEGATIVE
                        break
                if size > end - at:
                    result = ENDS
                    break
                if slot >= 0:
                    cells[cell] = (at - base) << SPAN_BITS | size
                    given[cell] = 1
                at += size
            elif kind == UNION:
                branch, at = _long(at, end)
                if at < 0:
                    result = -at
                    break
                if not 0 <= branch < argument:
                    result = NO_BRANCH
                    break
                pc = program[pc + branch]
            elif kind == JUMP:
                pc = argument
            elif kind == DOUBLE:
                if end - at < 8:
                    result = ENDS
                    break
                if slot >= 0:
                    cells[cell] = int64_at(at)
                    given[cell] = 1
                at += 8
            elif kind == FLOAT:
                if end - at < 4:
                    result = ENDS
                    break
                if slot >= 0:
                    cells[cell] = int32_at(at)
                    given[cell] = 1
                at += 4
            elif kind == BOOLEAN:
                if at >= end:
                    result = ENDS
                    break
                if byte_at(at) > 1:
                    result = NO_BOOLEAN
                    break
                if slot >= 0:
                    cells[cell] = byte_at(at)
                    given[cell] = 1
                at += 1
            elif kind == GIVE:
                given[cell] = 1
            elif kind == BLOCKS or kind == CALL:
                if depth == DEEPEST:
                    result = TOO_DEEP
                    break
                # Of an array or a map, how many items of the block are left, and one; of a record, where to go on.
                kinds[depth], lefts[depth] = kind, 1 if kind == BLOCKS else pc
                depth += 1
                pc = argument
            elif kind == NEXT:
                left = lefts[depth - 1] - 1
                if left == 0:
                    left, at = _long(at, end)
                    while at >= 0 and left < 0:
                        # A block that says its size, of something that nobody reads.
                        size, at = _long(at, end)
                        if at >= 0:
                            at = at + size if 0 <= size <= end - at else np.int64(-ENDS)
                        if at >= 0:
                            left, at = _long(at, end)
                    if at < 0:
                        result = -at
                        break
                lefts[depth - 1] = left
                if left == 0:
                    depth -= 1
                else:
                    pc = argument
            elif kind == RETURN:
                depth -= 1
                pc = lefts[depth]
            else:
                if at != end:
                    result = LEFT_OVER
                break
        status[row] = result


@native((read("uint8"), read("int64"), read("uint8"), write("int32"), write("uint8")))
def copy_spans(data: Any, cells: Any, given: Any, offsets: Any, texts: Any) -> Any:
    """The bytes of a slot's cells one after another, and where each begins; O(bytes). ``offsets`` has one more entry than ``cells``."""
    source, target, end = np.int64(data.ctypes.data), np.int64(texts.ctypes.data), 0
    for row in range(len(cells)):
        offsets[row] = end
        if given[row] == 1:
            size = cells[row] & _SPAN_MASK
            copy(target + end, source + (cells[row] >> SPAN_BITS), size)
            end += size
    offsets[len(cells)] = end


@native((read("uint8"), read("int64"), write("uint8"), write("uint64")))
def copy_decimals(data: Any, cells: Any, given: Any, limbs: Any) -> Any:
    """Big-endian two's complement numbers as decimal128 holds them: the lower half of each and then the upper one. O(bytes).

    ``given`` becomes 2 where a number has more than 128 bits.
    """
    base = np.int64(data.ctypes.data)
    for row in range(len(cells)):
        if given[row] != 1:
            continue
        at = base + (cells[row] >> SPAN_BITS)
        size = cells[row] & _SPAN_MASK
        sign = np.uint64(0)
        if size > 0 and byte_at(at) >= 128:
            sign = ~sign
        low, high = sign, sign
        for index in range(size):
            byte = np.uint64(byte_at(at + index))
            if size - index > 16 and byte != sign & np.uint64(255):
                given[row] = 2
            high = high << np.uint64(8) | low >> np.uint64(56)
            low = low << np.uint64(8) | byte
        if high >> np.uint64(63) != sign & np.uint64(1):
            given[row] = 2
        limbs[2 * row], limbs[2 * row + 1] = low, high


@part
def _put_long(at: Any, number: Any) -> Any:
    """Writes a zig-zag number, and says where it ends."""
    left = np.uint64(number << 1) ^ np.uint64(number >> 63)
    while left >= np.uint64(128):
        put_byte(at, np.uint8(left & np.uint64(127)) | np.uint8(128))
        at += 1
        left >>= np.uint64(7)
    put_byte(at, np.uint8(left))
    return at + 1


@native(
    (
        *(read("uint8"), read("int64"), read("int64"), read("int64"), read("uint8")),
        *("int64", write("int32"), write("uint8")),
    )
)
def write_records(prefix: Any, kinds: Any, cells: Any, sizes: Any, given: Any, rows: Any, offsets: Any, out: Any) -> Any:
    """Writes ``rows`` records, ``prefix`` before each, of which column c is a union of null and kinds[c]; returns the bytes. O(bytes).

    What a column has in row r is cells[c * rows + r]: a number, the bits of a double or float, or the address of bytes, of which there are
    so many as ``sizes`` says there, or of the 16 of a decimal, as Arrow has it. ``out`` has room for it all.
    """
    begin = np.int64(out.ctypes.data)
    at: Any = begin
    for row in range(rows):
        offsets[row] = at - begin
        for byte in prefix:
            put_byte(at, byte)
            at += 1
        for column in range(len(kinds)):
            cell = column * rows + row
            if given[cell] == 0:
                put_byte(at, np.uint8(0))
                at += 1
                continue
            put_byte(at, np.uint8(2))
            at += 1
            kind, value = kinds[column], cells[cell]
            if kind == VARINT:
                at = _put_long(at, value)
            elif kind == BOOLEAN:
                put_byte(at, np.uint8(value))
                at += 1
            elif kind == BYTES:
                size = sizes[cell]
                at = _put_long(at, size)
                copy(at, value, size)
                at += size
            elif kind == FIXED:
                # Without the bytes at the front that only repeat the sign.
                size = 16
                sign = np.uint8(255) if byte_at(value + 15) >= 128 else np.uint8(0)
                while size > 1 and byte_at(value + size - 1) == sign and (byte_at(value + size - 2) >= 128) == (sign != 0):
                    size -= 1
                at = _put_long(at, np.int64(size))
                for index in range(size):
                    put_byte(at, byte_at(value + size - 1 - index))
                    at += 1
            else:
                for index in range(8 if kind == DOUBLE else 4):
                    put_byte(at, np.uint8((value >> (8 * index)) & 255))
                    at += 1
    offsets[rows] = at - begin
    return at - begin
