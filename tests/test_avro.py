"""Avro's encoding as columns, against fastavro, which shares no code with it but the parser of schemas."""

from __future__ import annotations

import decimal
import io
import json
import random
import struct
import uuid
from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from typing import Any

import fastavro
import numpy as np
import pyarrow as pa
import pytest

from broken_records import broken
from streamjoin.io.avro_schema import AvroReader, avro_reader
from streamjoin.io.decoded import UnreadableError
from streamjoin.io.encoded import _avro, avro_schema

INSTANT = pa.timestamp("us", "UTC")
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def encoded(schema: Any, records: Sequence[Any]) -> list[bytes]:
    parsed, found = fastavro.parse_schema(schema), []
    for record in records:
        buffer = io.BytesIO()
        fastavro.schemaless_writer(buffer, parsed, record)
        found.append(buffer.getvalue())
    return found


def read(reader: AvroReader, values: Sequence[bytes]) -> tuple[list[dict[str, Any]], dict[int, str]]:
    """The rows, and what is wrong with some; the values lie among other bytes."""
    ends = np.cumsum([len(value) + 3 for value in values]) - 3
    starts = ends - [len(value) for value in values]
    columns, problems = reader(np.frombuffer(b"\xff\xff\xff".join([*values, b""]), np.uint8), starts, ends)
    batch = pa.record_batch(columns, schema=reader.schema)
    batch.validate(full=True)
    return batch.to_pylist(), problems


def record_of(*fields: tuple[str, Any], **more: Any) -> dict[str, Any]:
    return {"type": "record", "name": "R", "fields": [{"name": name, "type": kind} for name, kind in fields]} | more


def reader_of(schema: Any, *columns: tuple[str, pa.DataType], references: Sequence[str] = ()) -> AvroReader:
    return avro_reader(json.dumps(schema), references, pa.schema(list(columns)))


PLAIN = ("int", "long", "float", "double", "boolean", "bytes", "string")
ARROW = {
    "int": pa.int64(),
    "long": pa.int64(),
    "float": pa.float64(),
    "double": pa.float64(),
    "boolean": pa.bool_(),
    "bytes": pa.binary(),
    "string": pa.string(),
}


class Made:
    """Random schemas, and values of them."""

    def __init__(self, seed: int, *, takes_bytes: bool = False) -> None:
        """``takes_bytes``: each item of an array does. Of 2^60 that do not, fastavro would make a list."""
        self.rng = random.Random(seed)
        self._takes_bytes = takes_bytes
        self._names = iter(range(10_000))

    def _name(self, letter: str) -> str:
        return f"{letter}{next(self._names)}"

    def type(self, depth: int = 0) -> Any:
        kinds: list[str] = [*PLAIN, "null", "enum", "fixed"] + ["array", "map", "record", "union"] * (depth < 3)
        kind = self.rng.choice(kinds)
        if kind == "enum":
            return {"type": "enum", "name": self._name("E"), "symbols": ["A", "B", "C"]}
        if kind == "fixed":
            return {"type": "fixed", "name": self._name("F"), "size": self.rng.randint(0, 9)}
        if kind == "array":
            items = self.type(depth + 1)
            return {"type": "array", "items": record_of(("i", "long"), ("j", items), name=self._name("A")) if self._takes_bytes else items}
        if kind == "map":
            return {"type": "map", "values": self.type(depth + 1)}
        if kind == "record":
            name = self._name("N")
            fields = [{"name": f"f{at}", "type": self.type(depth + 1)} for at in range(self.rng.randint(0, 3))]
            if self.rng.random() < 0.3:
                fields.append({"name": "again", "type": ["null", name]})
            return {"type": "record", "name": name, "fields": fields}
        if kind == "union":
            return ["null", *self.rng.sample(PLAIN[4:], self.rng.randint(1, 3)), self.rng.choice(PLAIN[:4])]
        return kind

    def value(self, kind: Any, depth: int = 0) -> Any:
        rng = self.rng
        if isinstance(kind, list):
            return self.value(rng.choice(kind[:1] if depth > 6 else kind), depth + 1)
        if isinstance(kind, str) and kind.startswith("N"):
            return self.value(self.known[kind], depth + 1)
        name = kind if isinstance(kind, str) else kind["type"]
        if name == "record":
            self.known = {**getattr(self, "known", {}), kind["name"]: kind}
            return {field["name"]: self.value(field["type"], depth + 1) for field in kind["fields"]}
        if name in ("array", "map"):
            count = 0 if depth > 6 else rng.randint(0, 3)
            inner = [self.value(kind["items" if name == "array" else "values"], depth + 1) for _ in range(count)]
            return inner if name == "array" else {f"k{at}": value for at, value in enumerate(inner)}
        simple = {
            "null": lambda: None,
            "boolean": lambda: rng.random() < 0.5,
            "int": lambda: rng.choice([0, -1, 2**31 - 1, -(2**31), rng.randint(-1000, 1000)]),
            "long": lambda: rng.choice([0, -1, 2**63 - 1, -(2**63), rng.randint(-(2**40), 2**40)]),
            "float": lambda: struct.unpack("<f", struct.pack("<f", rng.uniform(-1e9, 1e9)))[0],
            "double": lambda: rng.choice([0.0, float("inf"), rng.uniform(-1e9, 1e9)]),
            "bytes": lambda: rng.randbytes(rng.randint(0, 5)),
            "string": lambda: rng.choice(["", "plain", "süß€𝄞" * rng.randint(1, 3)]),
            "enum": lambda: rng.choice(kind["symbols"]),
            "fixed": lambda: rng.randbytes(kind["size"]),
        }
        return simple[name]()


def made_case(seed: int, **more: bool) -> tuple[Any, AvroReader, list[Any], list[str]]:
    """A schema with columns of plain types among fields of any, its reader, records, and the columns' names."""
    made = Made(seed, **more)
    fields: list[tuple[str, Any]] = []
    columns: list[tuple[str, pa.DataType]] = []
    for at in range(made.rng.randint(1, 6)):
        fields.append((f"other{at}", made.type()))
        plain = made.rng.choice(PLAIN)
        fields.append((f"c{at}", made.rng.choice([plain, ["null", plain], [plain, "null"]])))
        if at == 0 or made.rng.random() < 0.7:
            columns.append((f"c{at}", ARROW[plain]))
    made.rng.shuffle(columns)
    schema = record_of(*fields)
    records = [made.value(schema) for _ in range(50)]
    return schema, reader_of(schema, *columns), records, [name for name, _ in columns]


@pytest.mark.parametrize("seed", range(60))
def test_any_schema_is_read_as_fastavro_reads_it(seed: int) -> None:
    schema, reader, records, names = made_case(seed)
    found, problems = read(reader, encoded(schema, records))
    assert not problems
    assert found == [{name: record[name] for name in names} for record in records]


@pytest.mark.parametrize("seed", range(100, 130))
def test_broken_bytes_are_told_and_touch_no_other_record(seed: int) -> None:
    schema, reader, records, names = made_case(seed, takes_bytes=True)
    parsed, rng = fastavro.parse_schema(schema), random.Random(seed)
    values = encoded(schema, records)
    for at in range(0, len(values), 2):
        values[at] = broken(values[at], rng, lambda: rng.randbytes(2))
    found, problems = read(reader, values)
    for at, value in enumerate(values):
        buffer = io.BytesIO(value)
        try:
            expected = fastavro.schemaless_reader(buffer, parsed, None, handle_unicode_errors="replace")
            whole = buffer.tell() == len(value)
        except Exception:  # each kind of nonsense has one of its own
            assert at in problems, (seed, at, value)
            continue
        if at not in problems:
            assert whole
            assert repr(found[at]) == repr({name: expected[name] for name in names}), (seed, at, value)
        if at % 2:
            assert at not in problems


def test_logical_types() -> None:
    def logical(kind: Any, name: str, **more: Any) -> Any:
        return {"type": kind, "logicalType": name, **more}

    fields: dict[str, tuple[Any, pa.DataType, list[Any], list[Any]]] = {}
    at = [EPOCH + timedelta(milliseconds=n) for n in (0, 1, -1, 10**12)]
    fine = [EPOCH + timedelta(microseconds=n) for n in (0, 7, -7, 10**15)]
    bare = [moment.replace(tzinfo=None) for moment in fine]
    fields["millis"] = (logical("long", "timestamp-millis"), INSTANT, at, at)
    fields["micros"] = (logical("long", "timestamp-micros"), INSTANT, fine, fine)
    fields["local"] = (logical("long", "local-timestamp-micros"), pa.timestamp("us"), bare, bare)
    days = [date(1970, 1, 1), date(1969, 12, 31), date(2026, 2, 28), date(9999, 1, 1)]
    fields["day"] = (logical("int", "date"), pa.date32(), days, days)
    ids = [uuid.UUID(int=n) for n in (0, 1, 2**127, 2**128 - 1)]
    fields["text"] = (logical("string", "uuid"), pa.string(), ids, [str(value) for value in ids])
    named = {"type": "fixed", "logicalType": "uuid", "size": 16, "name": "U"}
    fields["id"] = (named, pa.string(), [value.bytes for value in ids], [str(value) for value in ids])
    fields["bytes"] = ("U", pa.binary(), [value.bytes for value in ids], [value.bytes for value in ids])
    money = [decimal.Decimal(n).scaleb(-2) for n in (0, -1, 10**17, -(10**18) + 1)]
    fields["money"] = (logical("bytes", "decimal", precision=18, scale=2), pa.decimal128(18, 2), money, money)
    fields["wide"] = (logical("bytes", "decimal", precision=18, scale=2), pa.decimal128(38, 6), money, money)
    huge = [decimal.Decimal(n) for n in (10**38 - 1, -(10**38) + 1, 2**64, -(2**64))]
    number = {"type": "fixed", "logicalType": "decimal", "precision": 38, "scale": 0, "size": 17, "name": "D"}
    fields["huge"] = (number, pa.decimal128(38, 0), huge, huge)
    fields["number"] = (logical("long", "no-such-type"), pa.int64(), [1, 2, 3, 4], [1, 2, 3, 4])
    schema = record_of(*((name, kind) for name, (kind, *_) in fields.items()))
    records = [{name: given[row] for name, (_, _, given, _) in fields.items()} for row in range(4)]
    found, problems = read(reader_of(schema, *((name, arrow) for name, (_, arrow, _, _) in fields.items())), encoded(schema, records))
    assert not problems
    assert found == [{name: wanted[row] for name, (*_, wanted) in fields.items()} for row in range(4)]


def test_a_column_takes_what_loses_nothing_and_says_what_would() -> None:
    schema = record_of(("a", "long"), ("b", ["null", "string", "int", {"type": "array", "items": "int"}]), ("c", "double"))
    records = [
        {"a": 1, "b": 7, "c": 1.5},
        {"a": 2**40, "b": 7, "c": 0.0},
        {"a": 2, "b": "x", "c": 0.0},
        {"a": 3, "b": None, "c": 0.0},
        {"a": 4, "b": [1, 2], "c": 0.0},
    ]
    reader = reader_of(schema, ("a", pa.int32()), ("b", pa.float64()), ("other", pa.string()))
    found, problems = read(reader, encoded(schema, records))
    assert found[0] == {"a": 1, "b": 7.0, "other": None}
    assert found[3] == {"a": 3, "b": None, "other": None}
    assert problems == {
        1: f"column a: {2**40} is not a value of INT",
        2: "column b: a value of type string is not one of DOUBLE",
        4: "column b: a value of type array is not one of DOUBLE",
    }
    both, problems = read(reader_of(schema, ("b", pa.string())), encoded(schema, records[2:4]))
    assert [row["b"] for row in both] == ["x", None]
    bad, problems = read(reader_of(record_of(("s", "string")), ("s", pa.string())), [b"\x02\xff", b"\x02a"])
    assert problems == {0: "column s: is not UTF-8 (byte 0)"}
    assert bad[1] == {"s": "a"}
    decimals = record_of(("d", {"type": "bytes", "logicalType": "decimal", "precision": 38, "scale": 0}))
    values = [b"\x24" + b"\x7f" + b"\xff" * 17, b"\x20" + b"\x7f" + b"\xff" * 15, b"\x02\x05"]
    found, problems = read(reader_of(decimals, ("d", pa.decimal128(38, 0))), values)
    assert found[2] == {"d": decimal.Decimal(5)}
    assert problems == dict.fromkeys((0, 1), "column d: a number of more than 38 digits is not a value of DECIMAL(38,0)")


@pytest.mark.parametrize(
    ("schema", "complaint"),
    [
        ("string", "is not that of a record"),
        (["null", record_of(("a", "long"))], "is not that of a record"),
        (record_of(("b", "long"), ("c", "int")), "has none of the stream's columns; its fields are b, c"),
        (record_of(("a", "string")), "field a is of type string, which cannot be read as BIGINT"),
        (record_of(("a", {"type": "array", "items": "long"})), "field a is of type array, which has parts, and columns have none"),
        (record_of(("a", {"type": "long", "logicalType": "timestamp-millis"})), "type timestamp-millis, which cannot be read as BIGINT"),
        (record_of(("a", "Missing")), "is not an Avro schema \\(UnknownType: Missing"),
        ({"type": "enum", "name": "E"}, "is not an Avro schema"),
        (7, "is not an Avro schema"),
    ],
)
def test_a_schema_that_cannot_be_read_says_why(schema: Any, complaint: str) -> None:
    with pytest.raises(UnreadableError, match=complaint):
        reader_of(schema, ("a", pa.int64()))


def test_names_of_other_schemas_and_a_union_of_records_at_the_top() -> None:
    price = {"type": "record", "name": "Price", "namespace": "shop", "fields": [{"name": "cents", "type": "long"}]}
    first, second = (record_of(("id", "long"), (name, "shop.Price"), name=name.upper()) for name in ("x", "y"))
    named: dict[str, Any] = {}
    fastavro.parse_schema(price, named)
    whole = fastavro.parse_schema([first, second], named)
    values = []
    for index in (0, 1, 1):
        buffer, name = io.BytesIO(), "xy"[index]
        fastavro.schemaless_writer(buffer, whole, (name.upper(), {"id": index, name: {"cents": 5}}))
        values.append(buffer.getvalue())
    reader = reader_of([first, second], ("id", pa.int64()), references=[json.dumps(price)])
    assert read(reader, values) == ([{"id": 0}, {"id": 1}, {"id": 1}], {})


TYPES = (
    *(pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.float32(), pa.float64(), pa.string(), pa.binary()),
    *(pa.date32(), INSTANT, pa.timestamp("us"), pa.decimal128(38, 10), pa.decimal128(5, 0), pa.duration("us")),
)


def made_value(rng: random.Random, kind: pa.DataType) -> Any:
    if rng.random() < 0.2:
        return None
    if pa.types.is_boolean(kind):
        return rng.random() < 0.5
    if pa.types.is_integer(kind):
        bits = kind.bit_width - 1
        return rng.choice([0, -1, 2**bits - 1, -(2**bits), rng.randint(-100, 100)])
    if pa.types.is_floating(kind):
        return rng.choice([0.0, -1.5, float("inf"), 0.25])
    if pa.types.is_string(kind):
        return rng.choice(["", "x" * 200, "süß€"])
    if pa.types.is_binary(kind):
        return rng.randbytes(rng.randint(0, 3))
    if pa.types.is_decimal(kind):
        most = 10**kind.precision - 1
        numbers = [0, 1, -1, 127, 128, -128, -129, 255, 256, most, -most]
        return decimal.Context(prec=60).scaleb(decimal.Decimal(rng.choice([n for n in numbers if abs(n) <= most])), -kind.scale)
    if pa.types.is_date(kind):
        return date(1970, 1, 1) + timedelta(days=rng.randint(-10_000, 10_000))
    if pa.types.is_duration(kind):
        return timedelta(microseconds=rng.randint(-(10**12), 10**12))
    moment = EPOCH + timedelta(microseconds=rng.randint(-(10**15), 10**15))
    return moment if kind.tz else moment.replace(tzinfo=None)


@pytest.mark.parametrize("seed", range(8))
def test_results_are_written_as_fastavro_reads_them(seed: int) -> None:
    rng = random.Random(seed)
    schema = pa.schema([(f"c{at}", kind) for at, kind in enumerate(rng.sample(TYPES, rng.randint(1, len(TYPES))))])
    rows = [{item.name: made_value(rng, item.type) for item in schema} for _ in range(200)]
    batch = pa.RecordBatch.from_pylist(rows, schema=schema).slice(rng.randint(0, 9))
    parsed = fastavro.parse_schema(avro_schema(schema))
    found = [fastavro.schemaless_reader(io.BytesIO(value[5:]), parsed, None) for value in _avro(batch, b"\0\0\0\1\2").to_pylist()]
    for row, wanted in zip(found, rows[-batch.num_rows :], strict=True):
        for item in schema:
            value = wanted[item.name]
            if isinstance(value, timedelta):
                value //= timedelta(microseconds=1)
            assert row[item.name] == value, (seed, item)
    assert all(value.startswith(b"\0\0\0\1\2") for value in _avro(batch, b"\0\0\0\1\2").to_pylist())


def test_what_never_ends_is_given_up() -> None:
    """Arrays of a great many items without a byte, and records within records."""
    nulls = record_of(("a", "long"), ("n", {"type": "array", "items": "null"}))
    deep = record_of(("a", "long"), ("again", ["null", "R"]))
    _, problems = read(reader_of(nulls, ("a", pa.int64())), [b"\x02" + b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01" + b"\x00"])
    assert problems == {0: "has arrays of too many items that take no bytes"}
    value = b"\x02\x02" * 100 + b"\x02\x00"
    _, problems = read(reader_of(deep, ("a", pa.int64())), [value])
    assert problems == {0: "is too deeply nested"}
