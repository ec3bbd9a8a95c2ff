"""Makes Arrow columns of the declared types from binary records (Avro, Protobuf), which machine code has read.

Machine code fills *slots*: arrays with a cell for each record, and whether there is one. A column is made of one slot, or, where a field
may be of several types, of one for each of them.

Always holds: a value arrives exactly, or its record is reported, by the same rules as those of files (``values``).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from streamjoin.io.values import Problems, from_arrow, readable, sql_name, utf8
from streamjoin.kernel.arrays import Array

NANOS, MICROS, MILLIS = "ns", "us", "ms"


class UnreadableError(ValueError):
    """Records of this schema cannot be read as the stream's columns. The text says why, and is to follow the schema's name."""


class Form(Enum):
    """What a slot's cells are."""

    INTEGER = auto()
    """Numbers of 64 bits: those of integers, dates and timestamps."""
    FLOAT = auto()
    DOUBLE = auto()
    BOOLEAN = auto()
    BYTES = auto()
    """Where bytes, or text, lie."""
    DECIMAL = auto()
    """Where the bytes of an unscaled number lie, in big-endian two's complement."""
    UUID = auto()
    """Where the 16 bytes lie whose text is wanted."""
    SYMBOL = auto()
    """Numbers of names."""
    WRONG = auto()
    """There is a value, but the column cannot have it."""


@dataclass(frozen=True)
class Slot:
    """What cells are, and what becomes of them."""

    column: int
    """Of the declared schema."""
    form: Form
    type: pa.DataType
    """The values' own type."""
    symbols: tuple[tuple[int, str], ...] = ()
    """Numbers and their names."""
    said: str = ""
    """What the schema calls the type."""


def slot_for(column: int, item: pa.Field, form: Form, own: pa.DataType, said: str, **more: Any) -> Slot:
    """The slot for values of type ``own`` in a column. Raises UnreadableError where such a value is none of the column's."""
    if not readable(own, item.type):
        raise UnreadableError(f"field {item.name} is of type {said}, which cannot be read as {sql_name(item.type)}")
    return Slot(column, form, own, said=said, **more)


def columns_of(schema: pa.Schema, slots: tuple[Slot, ...], data: Array, cells: Array, given: Array, problems: Problems) -> list[pa.Array]:
    """The columns of records of which slot s has cells[s] where given[s] is 1; O(bytes).

    ``cells`` is int64 and ``given`` uint8, both (slots, records). What is wrong with a record goes to ``problems``.
    """
    found: list[pa.Array | None] = [None] * len(schema)
    for index, slot in enumerate(slots):
        item = schema.field(slot.column)
        column = _converted(slot, item, data, cells[index], given[index], problems)
        before = found[slot.column]
        found[slot.column] = column if before is None else pc.coalesce(before, column)
    rows = cells.shape[1]
    return [pa.nulls(rows, item.type) if column is None else column for item, column in zip(schema, found, strict=True)]


def in_order(found: list[tuple[Array, list[pa.Array]]], schema: pa.Schema) -> tuple[Array, list[pa.Array]]:
    """Parts of the same columns, each with the numbers of its rows, as one, in the order of these numbers. O(n log n)."""
    if len(found) == 1:
        return found[0]
    rows = np.concatenate([rows for rows, _ in found]) if found else np.empty(0, np.int64)
    order = np.argsort(rows)
    columns = [
        pa.concat_arrays([columns[index] for _, columns in found]).take(pa.array(order)) if found else pa.nulls(0, item.type)
        for index, item in enumerate(schema)
    ]
    return rows[order], columns


def _converted(slot: Slot, item: pa.Field, data: Array, cells: Array, given: Array, problems: Problems) -> pa.Array:
    if slot.form is Form.WRONG:
        for row in np.flatnonzero(given).tolist():
            problems.setdefault(row, f"column {item.name}: a value of type {slot.said} is not one of {sql_name(item.type)}")
        return pa.nulls(len(cells), item.type)
    return from_arrow(_values(slot, item, data, cells, given, problems), item.type, item.name, problems)


def _values(slot: Slot, item: pa.Field, data: Array, cells: Array, given: Array, problems: Problems) -> pa.Array:
    """Of the slot's own type."""
    rows, form = len(cells), slot.form
    if form is Form.BYTES:
        return _bytes(item, data, cells, given, problems)
    if form is Form.DECIMAL:
        return _decimals(slot.type, item, data, cells, given, problems)
    if form is Form.UUID:
        return _uuids(data, cells, given)
    if form is Form.SYMBOL:
        return _names(slot, item, cells, given, problems)
    if form is Form.BOOLEAN:
        values = np.packbits(cells == 1, bitorder="little")
    elif form is Form.FLOAT:
        values = cells.astype(np.int32)
    elif slot.type.bit_width < 64:
        values = cells.astype(f"int{slot.type.bit_width}")
        for row in np.flatnonzero((values != cells) & (given == 1)).tolist():
            problems.setdefault(row, f"column {item.name}: {cells[row]} is not a value of type {slot.said}")
    else:
        values = np.ascontiguousarray(cells)
    return pa.Array.from_buffers(slot.type, rows, [_validity(given), pa.py_buffer(values)])


def _validity(given: Array) -> pa.Buffer | None:
    there = given == 1
    return None if there.all() else pa.py_buffer(np.packbits(there, bitorder="little"))


def _bytes(item: pa.Field, data: Array, cells: Array, given: Array, problems: Problems) -> pa.Array:
    from streamjoin.native.avro import SPAN_BITS, copy_spans  # loads Numba

    nbytes = int((cells[given == 1] & ((1 << SPAN_BITS) - 1)).sum())
    offsets, texts = np.empty(len(cells) + 1, np.int32), np.empty(nbytes, np.uint8)
    copy_spans(data, cells, given, offsets, texts)
    buffers = [_validity(given), pa.py_buffer(offsets), pa.py_buffer(texts)]
    column = pa.Array.from_buffers(pa.binary(), len(cells), buffers)
    return column if pa.types.is_binary(item.type) else utf8(column, item.name, problems)


def _decimals(kind: pa.DataType, item: pa.Field, data: Array, cells: Array, given: Array, problems: Problems) -> pa.Array:
    from streamjoin.native.avro import copy_decimals  # loads Numba

    limbs, read = np.zeros(2 * len(cells), np.uint64), given.copy()
    copy_decimals(data, cells, read, limbs)
    column = pa.Array.from_buffers(kind, len(cells), [_validity(read), pa.py_buffer(limbs)])
    bad = np.flatnonzero(read == 2).tolist()
    try:
        column.validate(full=True)
    except pa.ArrowInvalid:
        # NB: Arrow's cast does not look at values that are too large for the type that they claim to have.
        numbers = [int(high) << 64 | int(low) for low, high in limbs.reshape(-1, 2).tolist()]
        least = 10**kind.precision
        large = [not -least < number - (number >> 127 << 128) < least for number in numbers]
        bad += np.flatnonzero(np.array(large) & (read == 1)).tolist()
        column = pc.if_else(pa.array(~np.array(large)), column, None)
    for row in bad:
        what = f"column {item.name}: a number of more than {kind.precision} digits"
        problems.setdefault(row, f"{what} is not a value of {sql_name(item.type)}")
    return column


def _uuids(data: Array, cells: Array, given: Array) -> pa.Array:
    """The canonical text of RFC 9562. O(n)."""
    from streamjoin.native.avro import SPAN_BITS  # loads Numba

    begins = np.where(given == 1, cells >> SPAN_BITS, 0)
    raw = data[begins[:, None] + np.arange(16)] if len(data) >= 16 else np.zeros((len(cells), 16), np.uint8)
    digits = np.frombuffer(b"0123456789abcdef", np.uint8)
    text = np.full((len(cells), 36), ord("-"), np.uint8)
    places = np.array([at for at in range(36) if at not in (8, 13, 18, 23)])
    text[:, places[0::2]], text[:, places[1::2]] = digits[raw >> 4], digits[raw & 15]
    offsets = np.arange(len(cells) + 1, dtype=np.int32) * 36
    return pa.Array.from_buffers(pa.string(), len(cells), [_validity(given), pa.py_buffer(offsets), pa.py_buffer(text)])


def _names(slot: Slot, item: pa.Field, cells: Array, given: Array, problems: Problems) -> pa.Array:
    numbers = pa.array(cells, mask=given != 1)
    known = pa.array([number for number, _ in slot.symbols], pa.int64())
    index = pc.index_in(numbers, known)
    unknown = pc.and_(numbers.is_valid(), index.is_null()).to_numpy(zero_copy_only=False)
    for row in np.flatnonzero(unknown).tolist():
        problems.setdefault(row, f"column {item.name}: no name of {slot.said} has the number {cells[row]}")
    return pa.array([name for _, name in slot.symbols], pa.string()).take(index)
