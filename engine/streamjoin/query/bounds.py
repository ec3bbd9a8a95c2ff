"""Turns a query's conditions on columns into ranges of keys: in these ranges of sorted blocks the rows can be that it asks for.

Always holds: a tuple that satisfies the bounds, and has a key, has it in one of the ranges.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable
from typing import Any

import pyarrow as pa

from streamjoin.kernel.keys import encode_keys
from streamjoin.language.predicate import Encoding, KeyExpression
from streamjoin.language.schema import Schema
from streamjoin.language.sql import parse_expression
from streamjoin.language.tree import Reference
from streamjoin.language.types import is_numeric, is_point
from streamjoin.query.relation import Bounds, Constraint

MOST_POINTS = 1000
"""More combinations of values than these become one range."""
_STREAM = "stream"

Range = tuple[int | float | None, int | float | None]
"""Keys, both ends included; None: no bound on that side."""


def key_ranges(
    key: KeyExpression | None, schema: Schema, anyof: Iterable[Bounds] | None, *, points_only: bool = False
) -> list[Range] | None:
    """Ascending ranges that do not touch; None: any key may be meant. ``schema``: of the stream, all its columns.

    ``points_only``: nothing but values of which each is given, so that every tuple with them has a key. O(values).
    """
    if key is None or anyof is None:
        return None
    found: list[Range] = []
    for bounds in anyof:
        ranges = _ranges_of(key, schema, bounds, points_only)
        if ranges is None:
            return None
        found += ranges
    return joined(found)


def direct_ranges(column: str, anyof: Iterable[Bounds] | None) -> list[Range] | None:
    """The same of a column that is the key itself, or a time: by its own values."""
    if anyof is None:
        return None
    found: list[Range] = []
    for bounds in anyof:
        constraint = bounds.get(column)
        if constraint is None:
            return None
        if constraint.values is not None:
            found += [(value, value) for value in map(ordinal, constraint.values)]
        else:
            found.append(tuple(None if end is None else ordinal(end) for end in (constraint.low, constraint.high)))  # type: ignore[arg-type]
    return joined(found)


def joined(ranges: Iterable[Range]) -> list[Range]:
    """The same keys in ascending ranges that do not overlap. O(ranges log ranges)."""
    found: list[Range] = []
    for low, high in sorted(ranges, key=lambda each: -math.inf if each[0] is None else each[0]):
        last = found[-1][1] if found else None
        if found and (last is None or low is None or low <= last):
            found[-1] = (found[-1][0], None if last is None or high is None else max(last, high))
        else:
            found.append((low, high))
    return found


def _ranges_of(key: KeyExpression, schema: Schema, bounds: Bounds, points_only: bool) -> list[Range] | None:
    expressions = [parse_expression(sql, {_STREAM: schema}) for sql in key.sql]
    columns = sorted({name for expression in expressions for _, name in expression.columns})
    given = [bounds.get(column, Constraint()) for column in columns]
    if columns and all(constraint.values is not None for constraint in given):
        sets = [constraint.values or () for constraint in given]
        if math.prod(map(len, sets)) <= MOST_POINTS:
            keys = _encoded(key, schema, columns, list(itertools.product(*sets)))
            return None if keys is None else [(each, each) for each in keys]
    if points_only or len(columns) != 1 or not isinstance(tree := expressions[0].tree, Reference) or key.encoding is Encoding.HASH:
        return None
    source, target = tree.type, key.types[0]
    if not (source == target or (is_numeric(source) and is_numeric(target)) or (is_point(source) and is_point(target))):
        return None
    (constraint,) = given
    if constraint.values is not None:
        ordered = sorted(constraint.values, key=ordinal)
        low, high = (ordered[0], ordered[-1]) if ordered else (None, None)
    else:
        low, high = constraint.low, constraint.high
    ends = []
    for end in (low, high):
        keys = None if end is None else _encoded(key, schema, columns, [(end,)])
        ends.append(None if keys is None else keys[0])
    return None if ends == [None, None] else [(ends[0], ends[1])]


def _encoded(key: KeyExpression, schema: Schema, columns: list[str], rows: list[tuple[pa.Scalar, ...]]) -> list[int | float] | None:
    """The keys of these values; None: some have none."""
    if not rows:
        return []
    arrays = [pa.array([row[index] for row in rows], rows[0][index].type) for index in range(len(columns))]
    keys, valid = encode_keys(pa.RecordBatch.from_arrays(arrays, names=columns), key, schema)
    return None if valid is not None and not valid.all() else keys.tolist()


def ordinal(value: pa.Scalar) -> Any:
    """What a value is ordered by, in Python: a moment by its microseconds, as there are more of them than Python's dates."""
    return value.value if isinstance(value, pa.TimestampScalar) else value.as_py()
