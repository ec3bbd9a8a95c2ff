"""Answers as bytes: JSON lines or Arrow's stream format; both may be read row by row as they come."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator
from decimal import Decimal
from typing import Any

import pyarrow as pa
from pyarrow import ipc

from streamjoin.io.sinks import json_lines
from streamjoin.query.errors import QueryError, Why
from streamjoin.query.execution import Answer
from streamjoin.query.messages import Form


def rendered(answer: Answer, form: Form, most_bytes: int) -> bytes:
    """A whole answer. Raises QueryError for one of more than ``most_bytes``, and what taking its rows raises."""

    def limited(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        nbytes = 0
        for batch in batches:
            nbytes += batch.nbytes
            _require(nbytes, most_bytes)
            yield batch

    if form is Form.ARROW:
        sink = pa.BufferOutputStream()
        with ipc.new_stream(sink, answer.schema) as writer:
            for batch in limited(answer.batches):
                writer.write_batch(batch)
        found: bytes = sink.getvalue().to_pybytes()
    else:
        found = b"".join(lines(batch) for batch in limited(answer.batches))
    _require(len(found), most_bytes)
    return found


def lines(batch: pa.RecordBatch) -> bytes:
    """A JSON object for each row, in a line of its own; values as results in JSON have them. O(bytes)."""
    columns = [_simple(column) for column in batch.columns]
    names = _unique(batch.schema.names)
    if any(pa.types.is_nested(column.type) or pa.types.is_interval(column.type) for column in columns):
        rows = zip(*(column.to_pylist() for column in batch.columns), strict=True)
        return b"".join(
            json.dumps(dict(zip(names, map(_plain, row), strict=True)), ensure_ascii=False, default=str).encode() + b"\n" for row in rows
        )
    return bytes(json_lines(pa.RecordBatch.from_arrays(columns, names=names)))


def _unique(names: list[str]) -> list[str]:
    """The same, a number after each that was there before: ``k``, ``k_1``."""
    found: list[str] = []
    for name in names:
        number, unique = 0, name
        while unique in found:
            number += 1
            unique = f"{name}_{number}"
        found.append(unique)
    return found


def _simple(column: pa.Array) -> pa.Array:
    """The column in a type that results have, where there is one: whole numbers are numbers as far as 64 bits go."""
    kind = column.type
    if pa.types.is_dictionary(kind):
        return column.dictionary_decode()
    if pa.types.is_null(kind) or pa.types.is_time(kind):
        return column.cast(pa.string())
    if pa.types.is_decimal(kind) and kind.scale == 0:
        try:
            return column.cast(pa.int64())
        except pa.ArrowInvalid:
            return column
    return column


def _plain(value: Any) -> Any:
    """A value of nested columns as JSON has it."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Decimal) and value == value.to_integral_value():
        return int(value)
    if isinstance(value, dict):
        return {str(name): _plain(each) for name, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, list | tuple) else value


def _require(nbytes: int, most_bytes: int) -> None:
    if nbytes > most_bytes:
        raise QueryError(
            Why.LARGE, f"the answer has more than {most_bytes >> 20:,} MiB; ask for fewer rows or columns, or page through it with OFFSET"
        )
