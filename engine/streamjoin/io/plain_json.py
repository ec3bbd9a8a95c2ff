"""JSON lines of a known schema as Arrow columns, by the machine code of ``native.json_lines``. Importing this imports Numba."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from streamjoin.io.lines import JSON_SPACE, Text, record_lines
from streamjoin.io.values import from_text
from streamjoin.kernel.arrays import decimal_limbs
from streamjoin.native.json_lines import (
    BOOLEAN,
    BYTES,
    DATE,
    DECIMAL,
    DOUBLE,
    INSTANT,
    INTEGER,
    MISSING,
    ORDER,
    TEXT,
    VALUE,
    WALL_CLOCK,
    WRITTEN,
    copy_texts,
    parse,
)
from streamjoin.native.json_parts import DIGITS, NEWLINE

_KINDS = {
    pa.int8(): INTEGER,
    pa.int16(): INTEGER,
    pa.int32(): INTEGER,
    pa.int64(): INTEGER,
    pa.float32(): DOUBLE,
    pa.float64(): DOUBLE,
    pa.bool_(): BOOLEAN,
    pa.string(): TEXT,
    pa.binary(): BYTES,
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
        self._kinds = np.array([DECIMAL if pa.types.is_decimal(item.type) else _KINDS[item.type] for item in schema], np.int64)
        self._limits = np.array([_limit(item.type) for item in schema], np.int64)
        self._scales = np.array([item.type.scale if pa.types.is_decimal(item.type) else 0 for item in schema], np.int64)
        self._order = np.full(ORDER, -1, np.int64)

    def parse(self, block: Text, rows: int) -> tuple[list[pa.Array], np.ndarray] | None:
        """The columns of a block that has ``rows`` lines which are not blank, and the numbers of the lines that are not understood, which
        are null in all of them. None: it has another number of lines. O(bytes)."""
        if not len(block) or block[-1] != NEWLINE:
            block = bytes(block) + b"\n"
        cells = np.zeros(len(self._kinds) * rows, np.int64)  # what is null is 0: a block's bytes depend on its records alone
        given = np.zeros(len(self._kinds) * rows, np.uint8)
        data, refused = np.frombuffer(block, np.uint8), np.empty(rows, np.int64)
        count, is_other_text = parse(
            *(data, rows, self._names, self._name_ends, self._kinds, self._limits, self._scales),
            *(self._order, cells, cells.view(np.float64), given, refused),
        )
        if count < 0:
            return None
        bad = set(refused[:count].tolist())
        by_column = cells.reshape(-1, rows), given.reshape(-1, rows)
        wrong = _no_utf8(block) if is_other_text else []
        for each in by_column:
            each[:, wrong] = MISSING
        bad.update(wrong)
        columns = [_column(data, *each, bad) for each in zip(self._schema, *by_column, strict=True)]
        return columns, np.array(sorted(bad), np.int64)


def understands(schema: pa.Schema) -> bool:
    """Whether all columns have names that JSON writes as they are."""
    return all(name.isprintable() and not set(name) & set('"\\') for name in schema.names)


def _limit(kind: pa.DataType) -> int:
    """What is the first number too large."""
    if pa.types.is_decimal(kind):
        return int(10 ** min(kind.precision, DIGITS))
    return min(2 ** (kind.bit_width - 1), 10**DIGITS) if pa.types.is_integer(kind) else 0


def _no_utf8(block: Text) -> list[int]:
    """The numbers of the lines that are not UTF-8."""
    try:
        str(block, "utf-8")
    except UnicodeDecodeError:
        lines = zip(*record_lines(block, JSON_SPACE), strict=True)
        return [row for row, (start, end) in enumerate(lines) if "\ufffd" in str(block[start:end], "utf-8", "replace")]
    return []


def _column(block: np.ndarray, item: pa.Field, cells: np.ndarray, given: np.ndarray, bad: set[int]) -> pa.Array:
    """The column; the rows whose values do not fit go to ``bad``."""
    kind, there, problems = item.type, given == VALUE, dict[int, str]()
    if pa.types.is_string(kind):
        return _texts(block, cells, there)
    if pa.types.is_binary(kind):
        column = from_text(_texts(block, cells, given == WRITTEN), kind, item.name, problems)
        bad.update(problems)
        return column
    values: np.ndarray = cells
    if pa.types.is_boolean(kind):
        values = np.packbits(cells == 1, bitorder="little")
    elif pa.types.is_decimal(kind):
        values = decimal_limbs(cells)
    elif kind == pa.float32():
        values, doubtful = _singles(cells.view(np.float64))
        bad.update((doubtful & there).nonzero()[0].tolist())
    elif kind.bit_width < 64:
        values = cells.astype(f"int{kind.bit_width}")
    column = pa.Array.from_buffers(kind, len(cells), [_validity(there), pa.py_buffer(values)])
    is_written = given == WRITTEN
    if is_written.any():
        texts = _texts(block, cells[is_written], np.ones(int(is_written.sum()), bool))
        column = pc.replace_with_mask(column, pa.array(is_written), from_text(texts, kind, item.name, problems))
        bad.update(np.flatnonzero(is_written)[list(problems)].tolist())
    return column


def _singles(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Doubles as floats of 32 bits, and which of these may not be the ones nearest to what is written: it was rounded before."""
    with np.errstate(over="ignore", invalid="ignore"):
        singles = values.astype(np.float32)
    halfway = (values.view(np.int64) & 0x1FFF_FFFF) == 0x1000_0000
    return singles, halfway | np.isinf(singles) | ((np.abs(values) < np.finfo(np.float32).tiny) & (values != 0))


def _validity(there: np.ndarray) -> pa.Buffer | None:
    return None if there.all() else pa.py_buffer(np.packbits(there, bitorder="little"))


def _texts(block: np.ndarray, cells: np.ndarray, there: np.ndarray) -> pa.Array:
    offsets, texts = np.empty(len(cells) + 1, np.int32), np.empty(int((cells[there] & 0xFFFFFFFF).sum()) // 2, np.uint8)
    copy_texts(block, cells, there.view(np.uint8), offsets, texts)
    return pa.Array.from_buffers(pa.string(), len(cells), [_validity(there), pa.py_buffer(offsets), pa.py_buffer(texts)])
