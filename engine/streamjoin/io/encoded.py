"""Results as keys and values of Kafka records, and how they are staged. Values are JSON, or Avro and JSON that name their schema in a
registry.

Always holds: a value is a function of the result and of the schema's id alone, and an id belongs to one schema for good. The schema follows
from the output's columns: a record of Avro, each field of which may be null, or an object of JSON Schema (draft 7).
"""

from __future__ import annotations

import base64
import io
import json
import struct
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from streamjoin.io.base import SinkError, Staged
from streamjoin.io.outbox import OUTBOX, OutboxWriter
from streamjoin.io.schema_registry import RegistryConfig, registry_of
from streamjoin.io.sinks import json_texts
from streamjoin.kernel.arrays import view
from streamjoin.state.storage import Storage

KINDS = {"avro": "AVRO", "jsonSchema": "JSON"}
"""By format of the manifest."""
_PREFIX_BYTES = 5
"""A zero and the schema's id."""
NAME, NAMESPACE = "Result", "streamjoin"
CHUNK_ROWS = 16 * 1024
"""The number of rows that become text at a time; rows of more than 128 KiB would not fit the 2 GB of Arrow's strings, nor a Kafka
record."""
OBJECT_ROWS = 256 * 1024


@dataclass(frozen=True)
class Encoding:
    """How results become values. Picklable."""

    format: str = "json"
    """json, avro or jsonSchema."""
    registry: RegistryConfig | None = None
    subject: str = ""

    def register(self, schema: pa.Schema) -> int:
        """The id of the results' schema, asked for once in a process. Raises SinkError, UnavailableError."""
        assert self.registry is not None, "the manifest demands one for these formats"
        registry = registry_of(self.registry, SinkError)
        text = json.dumps(avro_schema(schema) if self.format == "avro" else json_schema(schema))
        number: int = registry.made((self.subject, self.format, text), lambda: registry.register(self.subject, KINDS[self.format], text))
        return number

    def text(self, value: bytes, schema: pa.Schema) -> str:
        """A value as JSON, for a dead letter; ``base64:`` and its bytes where it cannot be. ``schema``: the results'."""
        body = value if self.format == "json" else value[_PREFIX_BYTES:]
        try:
            if self.format == "avro":
                from fastavro import parse_schema, schemaless_reader

                row = schemaless_reader(io.BytesIO(body), parse_schema(avro_schema(schema)), None)
                return str(json_texts(pa.RecordBatch.from_pylist([row], schema=schema))[0].as_py())
            return body.decode()
        except (ValueError, OverflowError, TypeError, LookupError, EOFError, pa.ArrowException):
            return "base64:" + base64.b64encode(value).decode()

    def values(self, batch: pa.RecordBatch) -> pa.Array:
        """Each row as one value, binary; together at most 2 GB. O(bytes). Raises SinkError, UnavailableError."""
        if self.format == "json":
            return json_texts(batch).cast(pa.binary())
        prefix = struct.pack(">bI", 0, self.register(batch.schema))
        if self.format == "avro":
            return _avro(batch, prefix)
        return pc.binary_join_element_wise(pa.scalar(prefix, pa.binary()), json_texts(batch).cast(pa.binary()), b"")


def avro_schema(schema: pa.Schema) -> dict[str, Any]:
    """The Avro schema of results with these columns. The manifest says that Avro allows their names."""
    fields = [{"name": item.name, "type": ["null", _avro_type(item.type)], "default": None} for item in schema]
    return {"type": "record", "name": NAME, "namespace": NAMESPACE, "fields": fields}


def _avro_type(kind: pa.DataType) -> Any:
    if pa.types.is_decimal(kind):
        return {"type": "bytes", "logicalType": "decimal", "precision": kind.precision, "scale": kind.scale}
    if pa.types.is_timestamp(kind):
        return {"type": "long", "logicalType": "local-timestamp-micros" if kind.tz is None else "timestamp-micros"}
    if pa.types.is_date(kind):
        return {"type": "int", "logicalType": "date"}
    if pa.types.is_integer(kind):
        return "long" if kind.bit_width == 64 else "int"
    if pa.types.is_duration(kind):
        return "long"
    names = {pa.bool_(): "boolean", pa.float32(): "float", pa.float64(): "double", pa.string(): "string", pa.binary(): "bytes"}
    return names[kind]


def json_schema(schema: pa.Schema) -> dict[str, Any]:
    """The JSON Schema of results with these columns."""
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": NAME,
        "type": "object",
        "properties": {item.name: _json_type(item.type) for item in schema},
    }


def _json_type(kind: pa.DataType) -> dict[str, Any]:
    if pa.types.is_boolean(kind):
        return {"type": ["boolean", "null"]}
    if pa.types.is_integer(kind) or pa.types.is_duration(kind):
        return {"type": ["integer", "null"]}
    if pa.types.is_floating(kind):
        return {"type": ["number", "string", "null"]}  # text where JSON has no number: NaN and infinity
    if pa.types.is_timestamp(kind) and kind.tz is not None:
        return {"type": ["string", "null"], "format": "date-time"}
    if pa.types.is_date(kind):
        return {"type": ["string", "null"], "format": "date"}
    return {"type": ["string", "null"]}


def _avro(batch: pa.RecordBatch, prefix: bytes) -> pa.Array:
    from streamjoin.native import avro as native  # loads Numba

    rows, columns = batch.num_rows, batch.num_columns
    kinds = np.empty(columns, np.int64)
    cells, sizes = np.zeros((columns, rows), np.int64), np.zeros((columns, rows), np.int64)
    given = np.ones((columns, rows), np.uint8)
    kept = []
    for index, column in enumerate(batch.columns):
        kind = column.type
        if column.null_count:
            given[index] = column.is_valid().to_numpy(zero_copy_only=False)
        if pa.types.is_string(kind) or pa.types.is_binary(kind):
            kinds[index] = native.BYTES
            _, offsets, data = column.buffers()
            bounds = np.frombuffer(offsets, np.int32)[column.offset : column.offset + rows + 1].astype(np.int64)
            cells[index], sizes[index] = bounds[:-1] + (data.address if data is not None else 0), np.diff(bounds)
        elif pa.types.is_decimal(kind):
            kinds[index] = native.FIXED
            cells[index] = column.buffers()[1].address + 16 * (np.arange(rows) + column.offset)
            sizes[index] = 16
        elif pa.types.is_boolean(kind):
            kinds[index], cells[index] = native.BOOLEAN, pc.fill_null(column, False).to_numpy(zero_copy_only=False)
        elif pa.types.is_floating(kind):
            double = kind == pa.float64()
            kinds[index] = native.DOUBLE if double else native.FLOAT
            cells[index] = view(column, np.int64 if double else np.int32)
        else:
            kinds[index], cells[index] = native.VARINT, view(column, f"int{kind.bit_width}")
        kept.append(column)
    # A null may lie over bytes.
    most = rows * (len(prefix) + 11 * columns) + int(sizes.sum())
    out, offsets = np.empty(most, np.uint8), np.empty(rows + 1, np.int32)
    used = native.write_records(
        *(np.frombuffer(prefix, np.uint8), kinds, cells.reshape(-1), sizes.reshape(-1), given.reshape(-1), rows, offsets, out)
    )
    return pa.Array.from_buffers(pa.binary(), rows, [None, pa.py_buffer(offsets), pa.py_buffer(out[:used])])


class KafkaWriter(OutboxWriter):
    """Stages results as Arrow files of (value) or (value, key)."""

    def __init__(
        self, storage: Storage, schema: pa.Schema, key: int | None, encoding: Encoding, name: str, prefix: str, small_bytes: int
    ) -> None:
        """``prefix``: how the identities of the task's records begin, which then count them."""

        def blank(done: list[Staged]) -> Staged:
            return Staged("", f"{prefix}/{sum(staged.rows for staged in done)}", 0, 0)

        super().__init__(storage, schema, f"{OUTBOX}/{name}", small_bytes, blank, is_file=True)
        self._encoding, self._key = encoding, key

    def _take(self, batch: pa.RecordBatch, most_rows: int | None = None) -> None:
        for start in range(0, batch.num_rows, CHUNK_ROWS):
            chunk = batch.slice(start, CHUNK_ROWS)
            columns = {"value": self._encoding.values(chunk)}
            if self._key is not None:
                columns["key"] = _key_bytes(chunk.column(self._key))
            super()._take(pa.record_batch(columns), OBJECT_ROWS)


def _key_bytes(column: pa.Array) -> pa.Array:
    """A record's key: text and bytes as they are, other values as JSON writes them; null is no key."""
    if pa.types.is_string(column.type) or pa.types.is_binary(column.type):
        return column.cast(pa.binary())
    texts = json_texts(pa.record_batch([column], names=["k"]))
    bare = pc.replace_substring_regex(texts, r'^\{"k":"?(.*?)"?\}$', r"\1")
    return pc.if_else(column.is_valid(), bare, pa.scalar(None, pa.string())).cast(pa.binary())
