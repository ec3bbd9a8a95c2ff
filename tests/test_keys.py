"""Keys: exact and in order where they say so, the same in every process, and absent for what can match nothing."""

from __future__ import annotations

import random
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from streamjoin.kernel.keys import encode_keys
from streamjoin.kernel.types import arrow_schema, arrow_type
from streamjoin.language.ddl import parse_schema
from streamjoin.language.predicate import Encoding, KeyExpression, MainKind, MainPredicate, seeded
from streamjoin.language.schema import Schema
from streamjoin.language.types import BIGINT, DataType

MASK = 2**64 - 1


def schema_of(type_: str) -> Schema:
    return parse_schema(f"k {type_}")


def type_of(name: str) -> DataType:
    return schema_of(name).columns[0].type


def encoded(values: list[Any], type_: str, encoding: Encoding, *, to: str = "", sql: str = "k") -> list[Any]:
    """The keys of a column of these values; None where there is none."""
    batch = pa.record_batch([pa.array(values, arrow_type(type_of(type_)))], ["k"])
    keys, valid = encode_keys(batch, KeyExpression((sql,), (type_of(to or type_),), encoding), schema_of(type_))
    assert keys.dtype == (np.float64 if encoding is Encoding.FLOAT else np.int64)
    assert valid is None or valid.dtype == bool
    return [None if valid is not None and not valid[row] else key for row, key in enumerate(keys.tolist())]


def split_mix(state: int) -> int:
    """SplitMix64 in Python's integers, for a check that shares no code."""
    word = (state + 0x9E3779B97F4A7C15) & MASK
    word = ((word ^ (word >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) & MASK
    return word ^ (word >> 31)


def signed(word: int) -> int:
    return word - 2**64 if word >> 63 else word


def text_hash(text: str) -> int:
    data = text.encode()
    word = split_mix(len(data))
    for start in range(0, len(data), 8):
        word = split_mix(word ^ int.from_bytes(data[start : start + 8].ljust(8, b"\0"), "big"))
    return signed(word)


def test_integer_keys_are_the_numbers_themselves() -> None:
    ends = [2**63 - 1, -(2**63), 0, None]
    assert encoded(ends, "BIGINT", Encoding.INTEGER) == ends
    assert encoded([127, -128, None], "TINYINT", Encoding.INTEGER, to="BIGINT") == [127, -128, None]
    assert encoded([-(2**63), 5], "BIGINT", Encoding.INTEGER, sql="-k - 1") == [2**63 - 1, -6]


def test_decimal_keys_are_unscaled_at_the_scale_of_the_key() -> None:
    values = [Decimal("1.50"), Decimal("-99999999.99"), None]
    assert encoded(values, "DECIMAL(10,2)", Encoding.INTEGER, to="DECIMAL(18,4)") == [15000, -999999999900, None]
    assert encoded([3], "INT", Encoding.INTEGER, to="DECIMAL(18,2)") == [300]


def test_times_are_counted_from_1970() -> None:
    assert encoded([5, -1, None], "INT", Encoding.INTEGER, to="BIGINT") == [5, -1, None]
    batch = pa.record_batch([pa.array([1, -1, None], pa.int32()).cast(pa.date32())], ["k"])
    keys, valid = encode_keys(batch, KeyExpression(("k",), (type_of("DATE"),), Encoding.INTEGER), schema_of("DATE"))
    assert keys.tolist()[:2] == [1, -1]
    assert valid is not None
    assert valid.tolist() == [True, True, False]


@pytest.mark.parametrize("type_", ["BIGINT", "TIMESTAMP", "TIMESTAMP_NTZ"])
def test_keys_of_a_plain_column_are_a_view_of_it(type_: str) -> None:
    array = pa.array(range(100), pa.int64()).cast(arrow_type(type_of(type_)))
    batch = pa.record_batch([array], ["k"]).slice(10, 50)
    keys, valid = encode_keys(batch, KeyExpression(("k",), (type_of(type_),), Encoding.INTEGER), schema_of(type_))
    assert keys.tolist() == list(range(10, 60))
    assert valid is None
    assert np.shares_memory(keys, np.frombuffer(array.buffers()[1], np.int64))


def test_a_number_that_its_key_cannot_represent_has_none() -> None:
    assert encoded([2**63 - 1, 1], "BIGINT", Encoding.HASH, sql="k + 1") == [None, signed(split_mix(2))]
    assert encoded([Decimal(10**30), Decimal(7)], "DECIMAL(38,0)", Encoding.HASH, to="BIGINT") == [None, signed(split_mix(7))]


def test_float_keys_have_one_zero_and_no_nan() -> None:
    keys = encoded([0.0, -0.0, float("nan"), float("inf"), None], "DOUBLE", Encoding.FLOAT)
    assert keys == [0.0, 0.0, None, float("inf"), None]
    assert str(keys[1]) == "0.0"
    assert encoded([0.1], "FLOAT", Encoding.FLOAT, to="DOUBLE") == [float(np.float32(0.1))]
    assert encoded([2**53 + 1, 3], "BIGINT", Encoding.FLOAT, to="DOUBLE") == [2.0**53, 3.0]


def test_long_decimals_become_the_nearest_float() -> None:
    values = [Decimal("12345678901234567890.1234567891"), Decimal("0.1"), Decimal("-9999999999999999.9999999999")]
    assert encoded(values, "DECIMAL(38,10)", Encoding.FLOAT, to="DOUBLE") == [float(value) for value in values]
    assert encoded(values[1:2], "DECIMAL(38,10)", Encoding.FLOAT, to="DOUBLE") == [0.1]


def test_hashes_are_those_of_splitmix64() -> None:
    assert encoded([0, 1, -1, 2**63 - 1], "BIGINT", Encoding.HASH) == [signed(split_mix(n & MASK)) for n in (0, 1, -1, 2**63 - 1)]
    assert encoded([0.0, -0.0, 1.0], "DOUBLE", Encoding.HASH) == [signed(split_mix(n)) for n in (0, 0, 0x3FF0000000000000)]
    texts = ["", "a", "EUR", "abcdefgh", "abcdefghi", "żółw\0", "x" * 1000]
    assert encoded([*texts, None], "STRING", Encoding.HASH) == [*map(text_hash, texts), None]
    assert encoded([b"EUR", b"\xff"], "BINARY", Encoding.HASH)[0] == text_hash("EUR")
    # Written out, for a change of any of the constants would lose every stored tuple's place.
    assert encoded([42], "BIGINT", Encoding.HASH) == [-4767286540954276203]
    assert encoded(["EUR"], "STRING", Encoding.HASH) == [text_hash("EUR")]


def test_equal_values_of_different_types_have_equal_hashes() -> None:
    number = encoded([7], "INT", Encoding.HASH, to="BIGINT")
    assert number == encoded([7], "BIGINT", Encoding.HASH)
    assert encoded([7], "INT", Encoding.HASH, to="DECIMAL(18,2)") == encoded(
        [Decimal("7.0")], "DECIMAL(5,1)", Encoding.HASH, to="DECIMAL(18,2)"
    )
    wide = encoded([Decimal("7.00")], "DECIMAL(38,2)", Encoding.HASH, to="DECIMAL(38,4)")
    assert wide == encoded([7], "INT", Encoding.HASH, to="DECIMAL(38,4)")
    # A batch with a value beyond int64 takes another path.
    assert encoded([Decimal("7.00"), Decimal(10**30)], "DECIMAL(38,2)", Encoding.HASH, to="DECIMAL(38,4)")[0] == wide[0]


def test_a_composite_has_a_key_only_when_all_parts_have_values() -> None:
    schema = parse_schema("a STRING, b BIGINT")
    batch = pa.record_batch([pa.array(["x", "x", "y", None, "x"]), pa.array([1, 2, 1, 1, None])], ["a", "b"])
    key = KeyExpression(("a", "b"), (type_of("STRING"), type_of("BIGINT")), Encoding.HASH)
    keys, valid = encode_keys(batch, key, schema)
    assert valid is not None
    assert valid.tolist() == [True, True, True, False, False]
    assert len(set(keys[:3].tolist())) == 3
    swapped = KeyExpression(("b", "a"), key.types[::-1], Encoding.HASH)
    assert encode_keys(batch, swapped, schema)[0][0] != keys[0]


def test_prefixes_are_ordered_as_the_texts_are() -> None:
    rng = random.Random(5)
    alphabet = ["a", "b", "z", "\0", "ż", "\U0001f422", "~", " "]
    texts = sorted("".join(rng.choices(alphabet, k=rng.randrange(12))) for _ in range(500))
    assert sorted(texts, key=str.encode) == texts
    keys = encoded(texts, "STRING", Encoding.PREFIX)
    assert keys == sorted(keys)
    assert keys == [int.from_bytes(text.encode()[:8].ljust(8, b"\0"), "big") - 2**63 for text in texts]
    assert encoded([b"\xff" * 9, b"", None], "BINARY", Encoding.PREFIX) == [2**63 - 1, -(2**63), None]


@pytest.mark.parametrize(("type_", "encoding"), [("STRING", Encoding.HASH), ("STRING", Encoding.PREFIX), ("DECIMAL(38,2)", Encoding.HASH)])
def test_a_slice_has_the_keys_of_its_rows(type_: str, encoding: Encoding) -> None:
    texts = ["alpha", "", "beta and more", None, "gamma"]
    values: list[Any] = texts if type_ == "STRING" else [None if text is None else Decimal(len(text)) for text in texts]
    batch = pa.record_batch([pa.array(values, arrow_type(type_of(type_)))], ["k"])
    key = KeyExpression(("k",), (type_of(type_),), encoding)
    whole, _ = encode_keys(batch, key, schema_of(type_))
    for start in range(len(values)):
        part, _ = encode_keys(batch.slice(start, 2), key, schema_of(type_))
        assert part.tolist() == whole[start : start + 2].tolist()
    assert len(encode_keys(batch.slice(0, 0), key, schema_of(type_))[0]) == 0


@pytest.mark.parametrize("kind", ["BIGINT", "DOUBLE", "STRING", "DECIMAL(30,2)", "TIMESTAMP", "BOOLEAN"])
def test_hashes_are_seeded_and_equal_values_are_equal_by_each_seed(kind: str) -> None:
    """Whoever does not know the seed cannot choose values that lie together."""
    schema = parse_schema(f"k {kind}")
    values = pa.array([0, 1] * 50) if kind in ("BOOLEAN",) else pa.array(range(100))
    texts = values.cast(pa.string())
    array = values.cast(pa.bool_()) if kind == "BOOLEAN" else texts if kind == "STRING" else values.cast(arrow_schema(schema)[0].type)
    batch = pa.RecordBatch.from_arrays([array], ["k"])
    key = KeyExpression(("k",), (schema.columns[0].type,), Encoding.HASH)
    seen = [encode_keys(batch, seeded(key, seed), schema)[0] for seed in (0, 1, 2**63 - 1)]
    assert len({hashes.tobytes() for hashes in seen}) == 3
    for hashes in seen:
        assert len(set(hashes.tolist())) == len(set(array.to_pylist()))
        assert (encode_keys(batch.slice(7), key, schema)[0] == seen[0][7:]).all()


def test_a_layout_is_seeded_in_all_its_keys() -> None:
    key = KeyExpression(("k",), (BIGINT,), Encoding.HASH)
    plain = KeyExpression(("k",), (BIGINT,), Encoding.INTEGER)
    main = MainPredicate(MainKind.RANGE, (key, key), 0, 0, text="l.k = r.k")
    assert {each.seed for each in seeded(main, 7).keys} == {7}
    assert str(seeded(main, 7)) == str(main), "checkpoints know predicates by their text"
    assert seeded((plain, main), 7)[0] is plain
    assert seeded(main, 0) is main
