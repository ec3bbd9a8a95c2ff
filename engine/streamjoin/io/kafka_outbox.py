"""Stages results of a Kafka sink: as the records' values and keys, encoded."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from streamjoin.io.base import arrow_bytes
from streamjoin.io.encoded import Encoding
from streamjoin.io.outbox import OUTBOX, OutboxWriter
from streamjoin.io.sinks import json_texts
from streamjoin.state.storage import Storage

CHUNK_ROWS = 16 * 1024
"""The number of rows that become text at a time; rows of more than 128 KiB would not fit the 2 GB of Arrow's strings, nor a Kafka
record."""
OBJECT_ROWS = 256 * 1024


class KafkaWriter(OutboxWriter):
    """Stages results as Arrow files of (value) or (value, key)."""

    def __init__(
        self, storage: Storage, schema: pa.Schema, key: int | None, encoding: Encoding, name: str, prefix: str, small_bytes: int
    ) -> None:
        super().__init__(storage, schema, f"{OUTBOX}/{name}", small_bytes)
        self._encoding = encoding
        self._key = key
        self._prefix = prefix
        fields = [pa.field("value", pa.binary())] + ([] if key is None else [pa.field("key", pa.binary())])
        self._staged_schema = pa.schema(fields)

    def _take(self, batch: pa.RecordBatch) -> None:
        for start in range(0, batch.num_rows, CHUNK_ROWS):
            chunk = batch.slice(start, CHUNK_ROWS)
            columns = [self._encoding.values(chunk)]
            if self._key is not None:
                columns.append(_key_bytes(chunk.column(self._key)))
            self._keep(pa.record_batch(columns, schema=self._staged_schema), OBJECT_ROWS)

    def _encoded(self, batches: list[pa.RecordBatch]) -> pa.Buffer:
        return arrow_bytes(batches, "lz4", is_file=True)

    def _final(self) -> str:
        return f"{self._prefix}/{sum(staged.rows for staged in self._done)}"


def _key_bytes(column: pa.Array) -> pa.Array:
    """A record's key: text and bytes as they are, other values as JSON writes them; null is no key."""
    if pa.types.is_string(column.type) or pa.types.is_binary(column.type):
        return column.cast(pa.binary())
    texts = json_texts(pa.record_batch([column], names=["k"]))
    bare = pc.replace_substring_regex(texts, r'^\{"k":"?(.*?)"?\}$', r"\1")
    return pc.if_else(column.is_valid(), bare, pa.scalar(None, pa.string())).cast(pa.binary())
