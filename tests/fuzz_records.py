"""Records of Kafka, in Avro and Protobuf, that somebody has damaged: see ``fuzz``. The decoders are real; a topic in memory stands in for
the brokers, and a schema in memory for the registry.

The reference is fastavro, or google.protobuf: a record that it reads has its row, or is a dead letter; one that it does not read is one.
"""

from __future__ import annotations

import contextlib
import io
import json
import random
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fastavro
import numpy as np

from broken_records import broken
from fuzz_inputs import FILES, Left, Row, Sure, mutated, records_of
from kafka_schemas import avro, framed, message_class, record_of
from streamjoin.io import kafka_source, schema_registry
from streamjoin.io.kafka_records import Fetched, KafkaSplit, Wanted
from streamjoin.io.kafka_session import _cells
from streamjoin.io.kafka_topics import Extent, Seen, Topic
from streamjoin.io.schema_registry import Registered, UnknownSchemaError

NUMBER = 7
"""The schema's."""
AVRO = record_of(
    ("id", "long"),
    ("note", {"type": "map", "values": {"type": "array", "items": "string"}}),
    ("k", "int"),
    ("v", ["null", "string"]),
    ("f", "double"),
    ("b", "boolean"),
)
PROTO = """
syntax = "proto3";
message Row { int64 id = 1; repeated bytes note = 2; int32 k = 3; optional string v = 4; double f = 5; bool b = 6; }
"""
SCHEMA = "id BIGINT, k INT, v STRING, f DOUBLE, b BOOLEAN"
FETCHED = 70
"""So many records come at once."""


def records(root: Path, form: str, rng: random.Random) -> Left:
    """A topic of which most records are damaged, in the place of every topic from now on."""
    written, values = records_of(rng, 0), list[bytes | None]()
    for number in range(1, FILES):
        written += records_of(rng, number * 1000)
    encode, decode, text = (_avro, _of_avro, json.dumps(AVRO)) if form == "avro" else (_protobuf, _of_protobuf, PROTO)
    rows, most, letters = Counter[Row](), Counter[Row](), 0
    share = rng.choice([0.05, 0.5, 1.0])
    for record in written:
        whole = framed(NUMBER, encode(record))
        value = _damaged(whole, rng) if rng.random() < share else whole
        values.append(value)
        row = _row_of(value, decode)
        letters += row is None
        if row is not None:
            most[row] += 1
            rows[row] += value == whole
    _hand_over(values, Registered(form.upper(), text))
    registry = '{url: "http://127.0.0.1:9"}'
    source = f'kafka: {{bootstrapServers: "127.0.0.1:9", topic: t, format: {form}, schemaRegistry: {registry}}}'
    return Left(source, [Sure(+rows, letters, len(values))], SCHEMA, most)


def _damaged(value: bytes, rng: random.Random) -> bytes | None:
    head, body = value[:5], value[5:]
    change = rng.random()
    if change < 0.4:
        return head + mutated(body, rng)
    if change < 0.8:
        return head + broken(body, rng, lambda: rng.randbytes(3))
    return mutated(value, rng) if change < 0.95 else rng.choice([None, b"", b"\0"])


def _row_of(value: bytes | None, decode: Callable[[bytes], Row]) -> Row | None:
    """What the reference reads; None: it is no record."""
    if value is None or value[:5] != framed(NUMBER, b""):
        return None
    try:
        return decode(value[5:])
    except Exception:  # each kind of nonsense has one of its own
        return None


def _avro(record: dict[str, Any]) -> bytes:
    return avro(AVRO, record | {"note": {"a": ["x", "y"], "": []}})


def _of_avro(data: bytes) -> Row:
    stream = io.BytesIO(data)
    # What nobody wants is skipped, a block of it by its size, whatever is in it.
    wanted = AVRO | {"fields": [field for field in AVRO["fields"] if field["name"] != "note"]}
    found: Any = fastavro.schemaless_reader(stream, fastavro.parse_schema(AVRO), fastavro.parse_schema(wanted))
    if stream.tell() != len(data):
        raise ValueError("bytes that the schema does not explain")
    return found["id"], found["k"], found["v"]


def _protobuf(record: dict[str, Any]) -> bytes:
    row = message_class(PROTO, "Row")(note=[b"x", b"yy"], **{name: record[name] for name in ("id", "k", "v", "f", "b")})
    data: bytes = row.SerializeToString()
    return b"\0" + data


def _of_protobuf(data: bytes) -> Row:
    if data[:1] != b"\0":  # the path of another message, of which there is none; [0], written at length, is the same one
        if data[:2] != b"\2\0":
            raise ValueError("another message")
        data = data[1:]
    # Of a text that comes twice the last one counts, and google.protobuf would refuse the first one, too.
    row = message_class(PROTO.replace("string v", "bytes v"), "Row").FromString(data[1:])
    return row.id, row.k, row.v.decode() if row.HasField("v") else None


def _hand_over(values: list[bytes | None], schema: Registered) -> None:
    """Has every topic consist of these values."""

    class Session:
        def read(self, split: KafkaSplit, wanted: Wanted) -> Iterator[Fetched]:
            for start in range(split.start, split.end, FETCHED):
                end = min(start + FETCHED, split.end)
                yield Fetched(np.arange(start, end), _cells(values[start:end], wanted.lines))

        def new_errors(self) -> int:
            return 0

    @contextlib.contextmanager
    def borrowed(*_: Any, **__: Any) -> Iterator[Session]:
        yield Session()

    def fetched(registry: Any, number: int, patience: float) -> Registered:
        if number != NUMBER:
            raise UnknownSchemaError("not found")
        return schema

    kafka_source.borrowed = borrowed  # type: ignore[assignment]
    kafka_source.Brokers.look = lambda *_: Seen({"t": Topic("an id", {0: Extent(0, len(values))})})  # type: ignore[method-assign]
    kafka_source.BlockedPartitions.look = lambda *_: {}  # type: ignore[method-assign]
    kafka_source.Group.tell = lambda *_: None  # type: ignore[method-assign]
    schema_registry.SchemaRegistry._fetched = fetched  # type: ignore[method-assign]
