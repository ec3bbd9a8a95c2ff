"""JSON lines of a known schema as Arrow columns, by the machine code of ``json_native``. Importing this imports Numba."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from streamjoin.io.json_native import (
    BOOLEAN,
    DATE,
    DECIMAL,
    DIGITS,
    DOUBLE,
    GIVEN_UP,
    INEXACT,
    INSTANT,
    INTEGER,
    NEWLINE,
    ORDER,
    OTHER_TEXT,
    TEXT,
    VALUE,
    WALL_CLOCK,
    copy_texts,
    parse,
)
from streamjoin.io.lines import Text
from streamjoin.kernel.arrays import decimal_limbs

_KINDS = {
    pa.int8(): INTEGER,
    pa.int16(): INTEGER,
    pa.int32(): INTEGER,
    pa.int64(): INTEGER,
    pa.float64(): DOUBLE,
    pa.bool_(): BOOLEAN,
    pa.string(): TEXT,
    pa.timestamp("us"): WALL_CLOCK,
    pa.timestamp("us", "UTC"): INSTANT,
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
        if not len(block) or block[-1] != NEWLINE:
            block = bytes(block) + b"\n"
        cells = np.zeros(len(self._kinds) * rows, np.int64)  # what is null is 0: a block's bytes depend on its records alone
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
        parts = [slice(at * rows, (at + 1) * rows) for at in range(len(self._schema))]
        columns = [_column(data, item.type, cells[part], given[part]) for item, part in zip(self._schema, parts, strict=True)]
        return None if any(column is None for column in columns) else columns


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


def _column(block: np.ndarray, kind: pa.DataType, cells: np.ndarray, given: np.ndarray) -> pa.Array | None:
    """None where a double is too large, or as small as zero."""
    if kind == pa.float64() and not _cast_inexact(block, cells, given):
        return None
    rows = len(cells)
    if pa.types.is_string(kind):
        return _texts(block, cells, given)
    values = cells
    if pa.types.is_boolean(kind):
        values = np.packbits(cells == 1, bitorder="little")
    elif pa.types.is_decimal(kind):
        values = decimal_limbs(cells)
    elif kind.bit_width < 64:
        values = cells.astype(f"int{kind.bit_width}")
    return pa.Array.from_buffers(kind, rows, [_validity(given), pa.py_buffer(values)])


def _cast_inexact(block: np.ndarray, cells: np.ndarray, given: np.ndarray) -> bool:
    """Makes doubles of what are strings so far; False where one is too large, or so small that zero comes of it."""
    rows = np.flatnonzero(given == INEXACT)
    if len(rows):
        given[rows] = VALUE
        values = _texts(block, cells[rows], given[rows]).cast(pa.float64()).to_numpy()
        cells[rows] = values.view(np.int64)
        return not (np.isinf(values) | (values == 0)).any()
    return True


def _texts(block: np.ndarray, cells: np.ndarray, given: np.ndarray) -> pa.Array:
    offsets, texts = np.empty(len(cells) + 1, np.int32), np.empty(int((cells[given == VALUE] & 0xFFFFFFFF).sum()) // 2, np.uint8)
    copy_texts(block, cells, given, offsets, texts)
    return pa.Array.from_buffers(pa.string(), len(cells), [_validity(given), pa.py_buffer(offsets), pa.py_buffer(texts)])


def _validity(given: np.ndarray) -> pa.Buffer | None:
    there = given == VALUE
    return None if there.all() else pa.py_buffer(np.packbits(there, bitorder="little"))
