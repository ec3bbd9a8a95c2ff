"""Encodes the values of key expressions as the 64-bit keys that runs are sorted by.

Always holds: a tuple's key depends on its own values alone and is the same in every process and on every machine (it
decides where a tuple is stored); equal values have equal keys on both sides. What each encoding means is said in
``predicate.Encoding``.

Hashes are chains of the finaliser of SplitMix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators,
OOPSLA 2014, with Stafford's variant 13 constants). It permutes the 64-bit numbers, so one integer or float has a hash
that no other value has.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, reduce
from typing import Any

import numpy as np
import pyarrow as pa

from streamjoin.kernel.arrays import Array, both, validity, view
from streamjoin.kernel.expression import Columns, Evaluator
from streamjoin.language.predicate import Encoding, KeyExpression
from streamjoin.language.schema import Schema, held_name
from streamjoin.language.sql import Expression, parse_expression
from streamjoin.language.tree import Call
from streamjoin.language.types import BOOLEAN, DataType, TypeName, is_exact, is_float, is_point
from streamjoin.native.functions import native, read, write

_STREAM = "key"
_GAMMA = np.uint64(0x9E3779B97F4A7C15)
_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_SIGN = np.uint64(1 << 63)


def _column(batch: pa.RecordBatch, name: str) -> pa.Array:
    held = held_name(name)
    return batch.column(held if held in batch.schema.names else name)


def encode_keys(batch: pa.RecordBatch, key: KeyExpression | None, schema: Schema) -> tuple[Array, Array | None]:
    """The keys (int64 or float64) of the batch's rows, and which rows have one (None: all); the others can match nothing. Where tuples lie
    by no key, all have 0.

    A row has no key when a value is null or NaN, or lies outside what the encoding represents. Its key is then
    arbitrary. ``batch`` holds at least the columns that the key reads, by their names or as held tuples have them. Keys of plain BIGINT
    and TIMESTAMP columns are views of the batch's memory. O(rows), and for texts O(bytes).
    """
    if key is None:
        return np.zeros(batch.num_rows, np.int64), None
    evaluators = _compiled(key, schema)
    columns = {(_STREAM, name): _column(batch, name) for evaluator in evaluators for _, name in evaluator.expression.columns}
    count = batch.num_rows
    match key.encoding:
        case Encoding.INTEGER:
            return evaluators[0].integers(columns, key.types[0].scale, count)
        case Encoding.FLOAT:
            return _floats(evaluators[0], columns, count)
        case Encoding.PREFIX:
            array = evaluators[0].evaluate(columns, count)
            return (_of_texts(array, first_words) ^ _SIGN).view(np.int64), validity(array)
        case Encoding.HASH:
            parts = [_hashes(evaluator, type_, columns, count, key.seed) for evaluator, type_ in zip(evaluators, key.types, strict=True)]
            hashes = reduce(lambda chain, part: mix(chain * _FIRST ^ part), (hashed for hashed, _ in parts))
            return hashes.view(np.int64), reduce(both, (valid for _, valid in parts))


@lru_cache(maxsize=256)
def _compiled(key: KeyExpression, schema: Schema) -> tuple[Evaluator, ...]:
    expressions = (parse_expression(sql, {_STREAM: schema}) for sql in key.sql)
    return tuple(Evaluator(_as(expression, type_)) for expression, type_ in zip(expressions, key.types, strict=True))


def _as(expression: Expression, type_: DataType) -> Expression:
    """The expression cast to the key's type, but left alone where encoding does that exactly: between numbers."""
    if expression.type == type_ or (is_exact(expression.type) and (is_exact(type_) or is_float(type_))):
        return expression
    return Expression.of(Call("cast", (expression.tree,), type_))


def _floats(evaluator: Evaluator, columns: Columns, count: int) -> tuple[Array, Array | None]:
    values, valid = evaluator.reals(columns, count)
    number = ~np.isnan(values)
    # Adding 0.0 turns -0.0, which has other bits than the equal 0.0, into 0.0.
    return values + 0.0, valid if number.all() else both(valid, number)


@native((read("int32"), read("uint8"), "uint64", write("uint64")))
def hash_texts(offsets: Any, data: Any, seed: Any, out: Any) -> None:
    """Of each text, the chained hash of a seed, of its length and of every eight bytes (big-endian, the last filled up with zeros)."""
    for i in range(len(out)):
        at, end = offsets[i], offsets[i + 1]
        word = np.uint64(end - at) ^ seed
        while True:
            word += _GAMMA
            word = (word ^ (word >> np.uint64(30))) * _FIRST
            word = (word ^ (word >> np.uint64(27))) * _SECOND
            word ^= word >> np.uint64(31)
            if at >= end:
                break
            for shift in range(min(8, end - at)):
                word ^= np.uint64(data[at + shift]) << np.uint64(56 - 8 * shift)
            at += 8
        out[i] = word


@native((read("int32"), read("uint8"), write("uint64")))
def first_words(offsets: Any, data: Any, out: Any) -> None:
    """Of each text, its first eight bytes as a number that is ordered as they are; zeros follow a shorter one."""
    for i in range(len(out)):
        at = offsets[i]
        word = np.uint64(0)
        for shift in range(min(8, offsets[i + 1] - at)):
            word |= np.uint64(data[at + shift]) << np.uint64(56 - 8 * shift)
        out[i] = word


def mix(words: Array) -> Array:
    """SplitMix64's output after the states ``words``: a permutation of the 64-bit numbers."""
    mixed = words + _GAMMA
    mixed ^= mixed >> np.uint64(30)
    mixed *= _FIRST
    mixed ^= mixed >> np.uint64(27)
    mixed *= _SECOND
    mixed ^= mixed >> np.uint64(31)
    return mixed


@native((read("int64"), "uint64", write("uint64")))
def scatter_rows(rows: Any, start: Any, out: Any) -> None:
    """``mix`` of the rows' numbers, each XOR ``start``."""
    for i in range(len(rows)):
        word = (np.uint64(rows[i]) ^ start) + _GAMMA
        word = (word ^ (word >> np.uint64(30))) * _FIRST
        word = (word ^ (word >> np.uint64(27))) * _SECOND
        out[i] = word ^ (word >> np.uint64(31))


def scattered(start: int, rows: Array) -> Array:
    """Numbers (uint64) that look random, the same for the same start and row (int64)."""
    out = np.empty(len(rows), dtype=np.uint64)
    scatter_rows(rows, mix(np.array([start], dtype=np.uint64))[0], out)
    return out


def key_type(key: KeyExpression | None) -> pa.DataType:
    """Of the column of such keys; None: of tuples that lie by none, whose key is 0."""
    return pa.float64() if key is not None and key.encoding is Encoding.FLOAT else pa.int64()


def _hashes(evaluator: Evaluator, type_: DataType, columns: Columns, count: int, seed: int) -> tuple[Array, Array | None]:
    start = np.uint64(seed)
    if is_float(type_):
        values, valid = _floats(evaluator, columns, count)
        return mix(values.view(np.uint64) ^ start), valid
    if type_.name is TypeName.DECIMAL and type_.precision > 18:
        array = evaluator.decimals(columns, type_, count)
        limbs = view(array, np.dtype([("low", "<u8"), ("high", "<u8")]))
        return mix(mix(limbs["low"] ^ start) ^ limbs["high"]), validity(array)
    if is_exact(type_) or is_point(type_):
        integers, valid = evaluator.integers(columns, type_.scale, count)
        return mix(integers.view(np.uint64) ^ start), valid
    array = evaluator.evaluate(columns, count)
    if type_ == BOOLEAN:
        return mix(array.fill_null(False).to_numpy(zero_copy_only=False).astype(np.uint64) ^ start), validity(array)
    return _of_texts(array, lambda offsets, data, out: hash_texts(offsets, data, start, out)), validity(array)


def _of_texts(array: pa.Array, function: Callable[[Any, Any, Any], None]) -> Array:
    """The function of each text of a string or binary array."""
    out = np.zeros(len(array), np.uint64)
    _, offsets, data = array.buffers()
    if len(array) and data is not None:
        bounds = np.frombuffer(offsets, np.int32, count=array.offset + len(array) + 1)[array.offset :]
        function(bounds, np.frombuffer(data, np.uint8), out)
    return out
