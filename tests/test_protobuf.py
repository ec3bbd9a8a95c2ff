"""Protobuf's encoding as columns, against google.protobuf, which shares no code with it but the compiler of schemas."""

from __future__ import annotations

import random
import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from google.protobuf.message import DecodeError

from broken_records import broken
from kafka_schemas import message_class
from streamjoin.io.decoded import UnreadableError
from streamjoin.io.protobuf_schema import protobuf_reader

PROTO = """
syntax = "proto3";
package shop;
import "google/protobuf/timestamp.proto";
import "google/protobuf/wrappers.proto";
enum Kind { NONE = 0; BOOK = 1; TENT = 7; }
message Other { int32 x = 1; Other again = 2; }
message Row {
  int32 a = 1; int64 b = 2; uint32 c = 3; uint64 d = 4; sint32 e = 5; sint64 f = 6; fixed32 g = 7; fixed64 h = 8; sfixed32 i = 9;
  sfixed64 j = 10; bool k = 11; float l = 12; double m = 13; string n = 14; bytes o = 15; Kind p = 16; optional int32 q = 17;
  google.protobuf.Timestamp r = 18; google.protobuf.Int64Value s = 19; google.protobuf.StringValue t = 20;
  oneof choice { int32 u = 21; string v = 22; Other w = 23; }
  repeated string many = 30; Other other = 31; map<string, int32> counts = 2000; repeated int32 packed = 33;
  message Inner { string n = 1; int64 b = 2; }
}
"""
COLUMNS: dict[str, pa.DataType] = {
    **dict.fromkeys("abcefgijqu", pa.int64()),
    **dict.fromkeys("dh", pa.decimal128(20, 0)),
    **dict.fromkeys("lm", pa.float64()),
    **dict.fromkeys("npv", pa.string()),
    "k": pa.bool_(),
    "o": pa.binary(),
    "r": pa.timestamp("us", "UTC"),
    "s": pa.int64(),
    "t": pa.string(),
}
SCHEMA = pa.schema(sorted(COLUMNS.items()))


def classes() -> dict[str, Any]:
    return {name: message_class(PROTO, name) for name in ("shop.Row", "shop.Row.Inner")}


def filled(rng: random.Random) -> Any:
    row = classes()["shop.Row"]()
    whole = {"a": 31, "b": 63, "e": 31, "f": 63, "i": 31, "j": 63, "q": 31, "u": 31}
    for name, bits in whole.items():
        if rng.random() < 0.6:
            setattr(row, name, rng.choice([0, -1, 2**bits - 1, -(2**bits), rng.randint(-500, 500)]))
    for name, bits in {"c": 32, "d": 64, "g": 32, "h": 64}.items():
        if rng.random() < 0.6:
            setattr(row, name, rng.choice([0, 2**bits - 1, rng.randint(0, 500)]))
    values = {
        "k": lambda: True,
        "l": lambda: struct.unpack("<f", struct.pack("<f", rng.uniform(-9, 9)))[0],
        "m": lambda: rng.uniform(-9, 9),
        "n": lambda: rng.choice(["", "süß€"]),
        "o": lambda: rng.randbytes(4),
        "p": lambda: rng.choice([0, 1, 7]),
        "v": lambda: "text",
    }
    for name, made in values.items():
        if rng.random() < 0.6:
            setattr(row, name, made())
    if rng.random() < 0.5:
        row.r.FromMicroseconds(rng.choice([0, 1, -1, rng.randint(-(10**15), 10**15)]))
    if rng.random() < 0.5:
        row.s.value = rng.choice([0, -5])
    if rng.random() < 0.5:
        row.t.value = rng.choice(["", "x"])
    if rng.random() < 0.3:
        row.w.x = 3
    row.many.extend(["y"] * rng.randint(0, 3))
    row.packed.extend(range(rng.randint(0, 3)))
    row.other.again.x = 5
    row.counts["z"] = 2
    return row


def expected(row: Any) -> dict[str, Any]:
    """What google.protobuf says of a message."""
    found: dict[str, Any] = {name: getattr(row, name) for name in "abcdefghijklmno"}
    found["p"] = {0: "NONE", 1: "BOOK", 7: "TENT"}.get(row.p, row.p)
    found["q"] = row.q if row.HasField("q") else None
    found["r"] = row.r.seconds * 1_000_000 + row.r.nanos // 1000 if row.HasField("r") else None
    for name in "st":
        found[name] = getattr(row, name).value if row.HasField(name) else None
    for name in "uv":
        found[name] = getattr(row, name) if row.WhichOneof("choice") == name else None
    return found


def read(reader: Any, values: Sequence[bytes], schema: pa.Schema = SCHEMA) -> tuple[list[dict[str, Any]], dict[int, str]]:
    ends = np.cumsum([len(value) + 3 for value in values]) - 3
    starts = ends - [len(value) for value in values]
    columns, problems = reader(np.frombuffer(b"\xff\xff\xff".join([*values, b""]), np.uint8), starts, ends)
    batch = pa.record_batch(columns, schema=schema)
    batch.validate(full=True)
    if "r" in schema.names:
        batch = batch.set_column(schema.names.index("r"), "r", batch.column("r").cast(pa.int64()))
    return batch.to_pylist(), problems


def reordered() -> str:
    """The schema with Row first, so that it is the message that a single 0 says."""
    other = "message Other { int32 x = 1; Other again = 2; }\n"
    return PROTO.replace(other, "") + other


def test_messages_are_read_as_protobuf_reads_them() -> None:
    rng = random.Random(4)
    rows = [filled(rng) for _ in range(500)]
    reader = protobuf_reader(reordered(), (), SCHEMA)
    found, problems = read(reader, [b"\0" + row.SerializeToString() for row in rows])
    assert not problems
    for at, (row, got) in enumerate(zip(rows, found, strict=True)):
        assert got == expected(row), (at, "seed 4")


def test_broken_bytes_are_told_and_touch_no_other_record() -> None:
    rng = random.Random(5)
    kind = classes()["shop.Row"]
    reader = protobuf_reader(reordered(), (), SCHEMA)
    values = [filled(rng).SerializeToString() for _ in range(2000)]
    for at in range(0, len(values), 2):
        values[at] = broken(values[at], rng, lambda: values[rng.randrange(len(values))])
    found, problems = read(reader, [b"\0" + value for value in values])
    refused = 0
    for at, value in enumerate(values):
        try:
            wanted = expected(kind.FromString(value))
        except DecodeError:
            refused += at not in problems  # of a field that no column has, or a text that is not UTF-8
            continue
        if at not in problems:
            assert found[at] == wanted, (at, value, "seed 5")
        if at % 2:
            assert at not in problems
    assert refused < 100


@pytest.mark.parametrize(
    ("more", "is_read"),
    [
        (b"\xdb\x02\xe3\x02\x08\x05\xe4\x02\xdc\x02", True),  # group 44 within group 43
        (b"\xdb\x02\xe3\x02\xdc\x02\xe4\x02", False),  # their ends in the wrong order
        (b"\xdb\x02\xe4\x02", False),  # the end of another group
        (b"\x88\x80\x80\x80\x08\x05", True),  # the tag 2^31 + 8, written at its full length
        (b"\x88\x80\x80\x80\x10\x05", False),  # a tag of more than 32 bits
        (b"\x88\x80\x80\x80\x80\x00\x05", False),  # the tag of field 1, written too long
    ],
)
def test_fields_that_no_column_has_are_skipped_where_they_are_well_formed(more: bytes, is_read: bool) -> None:
    kind = classes()["shop.Row"]
    value = kind(b=7).SerializeToString() + more
    found, problems = read(protobuf_reader(reordered(), (), SCHEMA), [b"\0" + value, b"\0"])
    try:
        kind.FromString(value)
        assert is_read
    except DecodeError:
        assert not is_read
    assert problems == ({} if is_read else {0: "is not a message of Protobuf"})
    assert not is_read or found[0]["b"] == 7


def test_a_record_says_which_message_it_is() -> None:
    kinds = classes()
    schema = pa.schema([("n", pa.string()), ("b", pa.int64())])
    reader = protobuf_reader(reordered(), (), schema)
    row, inner = kinds["shop.Row"](n="row", b=1), kinds["shop.Row.Inner"](n="inner", b=2)
    values = [
        b"\0" + row.SerializeToString(),
        b"\x04\x00\x02" + inner.SerializeToString(),
        b"\x02\x00" + row.SerializeToString(),
        b"\x02\x02" + b"\x08\x01",
        b"\x02\x0a",
        b"\x02",
        b"",
        b"\x01",
    ]
    found, problems = read(reader, values, schema)
    assert found[:3] == [{"n": "row", "b": 1}, {"n": "inner", "b": 2}, {"n": "row", "b": 1}]
    assert problems == {
        3: "has none of the stream's columns in message shop.Other; its fields are x, again",
        4: "has no message 5",
        **dict.fromkeys((5, 6, 7), "does not say which message of the schema it is"),
    }


def test_what_a_column_cannot_have_and_defaults_of_proto2() -> None:
    fields = "optional int32 a = 1 [default = 5]; optional double b = 2 [default = 1.5]; optional string c = 3;"
    two = f'syntax = "proto2"; message M {{ {fields} }}'
    schema = pa.schema([("a", pa.int16()), ("b", pa.float64()), ("c", pa.string())])
    found, problems = read(protobuf_reader(two, (), schema), [b"\0", b"\0\x08\x07\x1a\x01x", b"\0\x08\xff\xff\x7f"], schema)
    assert found[:2] == [{"a": 5, "b": 1.5, "c": None}, {"a": 7, "b": 1.5, "c": "x"}]
    assert problems == {2: "column a: 2097151 is not a value of SMALLINT"}
    kinds = pa.schema([("p", pa.string())])
    found, problems = read(protobuf_reader(reordered(), (), kinds), [b"\0\x80\x01\x09", b"\0"], kinds)
    assert problems == {0: "column p: no name of enum Kind has the number 9"}
    assert found[1] == {"p": "NONE"}
    numbers = pa.schema([("p", pa.int32())])
    assert read(protobuf_reader(reordered(), (), numbers), [b"\0\x80\x01\x09"], numbers) == ([{"p": 9}], {})


@pytest.mark.parametrize(
    ("text", "column", "complaint"),
    [
        ("message M { repeated int32 a = 1; }", pa.int64(), "field a is repeated, and columns have one value"),
        ("message M { int32 b = 1; }", pa.int64(), "has none of the stream's columns in message M; its fields are b"),
        ("message M { M a = 1; }", pa.int64(), "field a is of type M, which has parts"),
        ("message M { string a = 1; }", pa.int64(), "field a is of type string, which cannot be read as BIGINT"),
        ("message M { int64 a = 1 }", pa.int64(), "is not a schema of Protobuf \\(schema.proto:1:"),
        ("enum E { A = 0; }", pa.int64(), "has no message"),
        ('import "other.proto"; message M { int64 a = 1; }', pa.int64(), "is not a schema of Protobuf .*other.proto"),
    ],
)
def test_a_schema_that_cannot_be_read_says_why(text: str, column: pa.DataType, complaint: str) -> None:
    with pytest.raises(UnreadableError, match=complaint):
        protobuf_reader(f'syntax = "proto3"; {text}', (), pa.schema([("a", column)]))


def test_imports_are_the_registrys_references_and_nothing_else() -> None:
    schema = pa.schema([("a", pa.int64())])
    text = 'syntax = "proto3"; import "shop/price.proto"; import "confluent/meta.proto"; message M { int64 a = 1; Price p = 2; }'
    price = ("shop/price.proto", 'syntax = "proto3"; message Price { int64 cents = 1; }')
    assert read(protobuf_reader(text, [price], schema), [b"\0\x08\x07\x12\x02\x08\x01"], schema) == ([{"a": 7}], {})
    with pytest.raises(UnreadableError, match=r"refers to \.\./price.proto, which is not the name of a file"):
        protobuf_reader(text, [("../price.proto", "")], schema)
