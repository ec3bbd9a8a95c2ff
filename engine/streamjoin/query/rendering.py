"""Answers as bytes: JSON lines or Arrow's stream format; both may be read row by row as they come."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Iterable, Iterator
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
from pyarrow import ipc

from streamjoin.io.sinks import json_lines, json_values
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
    return bytes(json_lines(pa.RecordBatch.from_arrays(columns, names=_unique(batch.schema.names)), _values))


def interval_text(value: pa.MonthDayNano) -> str:
    """An interval as DuckDB and PostgreSQL write it: ``1 year 2 months 3 days 04:05:06.5``; no part that is nothing, but for all."""
    years, months = divmod(abs(value.months), 12)
    sign = -1 if value.months < 0 else 1
    parts = [(sign * years, "year"), (sign * months, "month"), (value.days, "day")]
    texts = [f"{count} {name}{'' if abs(count) == 1 else 's'}" for count, name in parts if count]
    if value.nanoseconds or not texts:
        seconds, nanos = divmod(abs(value.nanoseconds), 1_000_000_000)
        fraction = f".{nanos:09d}".rstrip("0").rstrip(".")
        texts.append(f"{'-' if value.nanoseconds < 0 else ''}{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}{fraction}")
    return " ".join(texts)


def nested_text(value: Any) -> str:
    """A list, a map or a row as JSON, on one line."""
    return json.dumps(_plain(value), ensure_ascii=False)


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


def _values(column: pa.Array) -> pa.Array:
    """Each value's JSON text; null stays null."""
    if pa.types.is_interval(column.type):
        return pa.array([None if value is None else json.dumps(interval_text(value)) for value in column.to_pylist()], pa.string())
    if pa.types.is_nested(column.type):
        return pa.array([None if value is None else nested_text(value) for value in column.to_pylist()], pa.string())
    return json_values(column)


def _plain(value: Any) -> Any:
    """A value within nested ones as JSON has it, as those of columns."""
    match value:
        case float() if math.isnan(value):
            return "NaN"
        case float() if math.isinf(value):
            return "Infinity" if value > 0 else "-Infinity"
        case Decimal():
            return int(value) if value == value.to_integral_value() else str(value)
        case datetime():
            return value.isoformat(timespec="microseconds").replace("+00:00", "Z")
        case date() | time():
            return value.isoformat()
        case timedelta():
            return value // timedelta(microseconds=1)
        case bytes():
            return base64.b64encode(value).decode()
        case pa.MonthDayNano():
            return interval_text(value)
        case dict():
            return {str(name): _plain(each) for name, each in value.items()}
        case list() | tuple():
            return [_plain(each) for each in value]
    return value


def _require(nbytes: int, most_bytes: int) -> None:
    if nbytes > most_bytes:
        raise QueryError(
            Why.LARGE, f"the answer has more than {most_bytes >> 20:,} MiB; ask for fewer rows or columns, or page through it with OFFSET"
        )
