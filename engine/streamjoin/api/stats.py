"""Statistics of the streams, for plans: those that ``streamjoin plan --stats`` reads, and those that follow from the manifest alone.

Statistics are JSON: per side the tuples that the window holds and, if known, how their keys are spread, as a sample or as a histogram::

    {
      "left":  {"tuples": 120000, "keys": [17, 17, 23, 99]},
      "right": {"tuples": 80000, "histogram": {"bounds": [20, 40], "counts": [10, 30, 10]}},
      "capacity": 50000
    }

``keys``: values of the side's key, as the main predicate compares them: numbers, texts, times as ISO 8601 or in microseconds, dates as
ISO 8601 or in days, lists of these where several equalities make one key. ``bounds``: ascending inner bounds of the buckets, of such
values; ``counts`` are one more. ``left`` and ``right`` may also be called by the streams' names. ``capacity``: tuples that one task
may hold; the manifest's otherwise.

With three and more streams, each stream stands by its name. If a stream is held by several keys, ``by`` says how each key is spread::

    {
      "orders":    {"tuples": 120000, "keys": [17, 17, 23, 99]},
      "payments":  {"tuples": 80000, "by": {"order_id": {"keys": [17, 99]}, "value": {"keys": [9.5, 11.0]}}},
      "shipments": {"tuples": 20000}
    }
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, TypeGuard

import numpy as np
import pyarrow as pa

from streamjoin.api.key_spaces import key_name
from streamjoin.elastic.deployment import typical_tuples
from streamjoin.kernel.keys import encode_keys
from streamjoin.kernel.types import arrow_type
from streamjoin.language.graph import Place
from streamjoin.language.predicate import Encoding, KeyExpression, MainPredicate
from streamjoin.language.schema import Column, Schema
from streamjoin.language.sides import SIDE_NAMES
from streamjoin.language.types import DataType
from streamjoin.scheme.statistics import Histogram, SideStatistics, Statistics


class StatsError(ValueError):
    """Statistics that cannot be read; the text names the field, the value and the remedy."""


@dataclass(frozen=True, slots=True)
class Stats:
    """What a statistics file says."""

    places: tuple[SideStatistics, ...]
    """By place; of two streams, by side."""
    capacity_tuples: float | None

    @property
    def statistics(self) -> Statistics:
        """The statistics of two streams."""
        return Statistics(self.places)


def read_stats(text: str, main: MainPredicate, names: tuple[str, str] = ("left", "right")) -> Stats:
    """The statistics of two streams in this JSON text (see the module), their keys encoded for ``main``. Raises StatsError."""
    value = _object(text, {"left", "right", "capacity", *names}, "left, right and capacity")
    sides = []
    for side, name in enumerate(SIDE_NAMES):
        given = value.get(name, value.get(names[side]))
        if given is None:
            raise StatsError(f'{name}: is missing; give at least {{"tuples": ...}}')
        sides.append(_side(name, given, main.key(side)))
    return Stats(tuple(sides), _capacity(value))


def read_stats_by_stream(text: str, streams: Sequence[str], places: Sequence[Place]) -> Stats:
    """The statistics of three and more streams in this JSON text (see the module), encoded for these places. Raises StatsError."""
    value = _object(text, {"capacity", *streams}, f"{', '.join(streams)} and capacity")
    found: dict[int, SideStatistics] = {}
    for number, name in enumerate(streams):
        own = {place: held for place, held in enumerate(places) if held.stream == number}
        names = list(dict.fromkeys(key_name(held) for held in own.values() if held.key is not None))
        given = value.get(name)
        if not isinstance(given, dict):
            raise StatsError(f'{name}: {"is missing" if given is None else _shown(given)}; give at least {{"tuples": ...}}')
        by = given.get("by", {})
        if not isinstance(by, dict) or not set(names).issuperset(by):
            raise StatsError(f"{name}.by: {_shown(by)} must be an object of {' and '.join(names) or 'nothing'}: by these keys it is held")
        if len(names) > 1 and not {"tuples", "by"}.issuperset(given):
            raise StatsError(f"{name}: it is held by several keys; say how each of them is spread: by.{names[0]}, by.{names[1]}")
        plain = {field: known for field, known in given.items() if field != "by"}
        for place, held in own.items():
            spread = by.get(key_name(held), {})
            where = f"{name}.by.{key_name(held)}" if spread else name
            if not isinstance(spread, dict):
                raise StatsError(f"{where}: {_shown(spread)} must be an object of keys or histogram")
            found[place] = _side(where, plain | spread, held.key)
    return Stats(tuple(found[place] for place in range(len(places))), _capacity(value))


def expected_statistics(rates: Sequence[float | None], expected: Sequence[float | None]) -> tuple[SideStatistics, ...]:
    """What the manifest alone says: the tuples that are ``expected`` to be held, of each stream or place, at these rates."""
    return tuple(map(SideStatistics, typical_tuples(rates, expected)))


def _object(text: str, allowed: set[str], fields: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise StatsError(f"line {error.lineno}, column {error.colno}: {error.msg}; the file must be JSON") from error
    if not isinstance(value, dict) or not allowed.issuperset(value):
        unknown = sorted(set(value) - allowed) if isinstance(value, dict) else []
        raise StatsError(f"{', '.join(unknown) or 'the file'}: must be an object of {fields}")
    return value


def _capacity(value: dict[str, Any]) -> float | None:
    capacity = value.get("capacity")
    if capacity is not None and not (_is_number(capacity) and capacity > 0):
        raise StatsError(f"capacity: {capacity!r} must be a positive number of tuples")
    return capacity


def _is_number(value: Any) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and bool(np.isfinite(value))


def _side(where: str, given: Any, key: KeyExpression | None) -> SideStatistics:
    if not isinstance(given, dict) or not {"tuples", "keys", "histogram"}.issuperset(given):
        raise StatsError(f"{where}: {_shown(given)} must be an object of tuples and either keys or histogram")
    if "keys" in given and "histogram" in given:
        raise StatsError(f"{where}.histogram: excludes {where}.keys; give one")
    tuples = given.get("tuples")
    if not (_is_number(tuples) and tuples >= 0):
        raise StatsError(f"{where}.tuples: {_shown(tuples)} must be a number of tuples, not negative")
    if key is None:
        return SideStatistics(tuples)
    if "keys" in given:
        keys = _encoded(f"{where}.keys", given["keys"], key)
        return SideStatistics(tuples, Histogram.from_sample(keys) if len(keys) else None)
    if "histogram" not in given:
        return SideStatistics(tuples)
    histogram = given["histogram"]
    where = f"{where}.histogram"
    if key.encoding is Encoding.HASH:
        raise StatsError(f"{where}: this join hashes its keys, so that ranges of them mean nothing; give a sample as keys, or neither")
    if not isinstance(histogram, dict) or set(histogram) != {"bounds", "counts"}:
        raise StatsError(f"{where}: {_shown(histogram)} must be an object of bounds and counts")
    counts = histogram["counts"]
    if not isinstance(counts, list) or not all(map(_is_number, counts)):
        raise StatsError(f"{where}.counts: {_shown(counts)} must be a list of numbers")
    try:
        return SideStatistics(tuples, Histogram(_encoded(f"{where}.bounds", histogram["bounds"], key), np.array(counts, np.float64)))
    except StatsError:
        raise
    except ValueError as error:
        raise StatsError(f"{where.removesuffix('.histogram')}.{error}") from error


def _encoded(where: str, values: Any, key: KeyExpression) -> np.ndarray[Any, np.dtype[Any]]:
    """The keys of these values: encoded as the join's own tuples are, from columns that hold the key's values."""
    if not isinstance(values, list):
        raise StatsError(f"{where}: {_shown(values)} must be a list")
    columns = [[value] for value in values] if len(key.types) == 1 else values
    if not all(isinstance(row, list) and len(row) == len(key.types) for row in columns):
        raise StatsError(f"{where}: each must be a list of {len(key.types)} values, as the key has so many")
    names = [f"k{number}" for number in range(len(key.types))]
    arrays = [_column(where, [row[number] for row in columns], type_) for number, type_ in enumerate(key.types)]
    schema = Schema(tuple(Column(name, type_) for name, type_ in zip(names, key.types, strict=True)))
    plain = KeyExpression(tuple(names), key.types, key.encoding)
    keys, valid = encode_keys(pa.RecordBatch.from_arrays(arrays, names), plain, schema)
    return keys if valid is None else keys[valid]


def _column(where: str, values: list[Any], type_: DataType) -> pa.Array:
    kind = arrow_type(type_)
    try:
        if pa.types.is_decimal(kind):
            return pa.array([None if value is None else round(Decimal(str(value)), type_.scale) for value in values], kind)
        if pa.types.is_temporal(kind) and all(isinstance(value, str) for value in values):
            texts = pa.array(values, pa.string())
            if pa.types.is_timestamp(kind) and kind.tz is not None:
                moments = [datetime.fromisoformat(value) for value in values]
                return pa.array([moment if moment.tzinfo else moment.replace(tzinfo=UTC) for moment in moments], kind)
            return texts.cast(kind)
        return pa.array(values, kind)
    except (pa.ArrowException, ArithmeticError, ValueError, TypeError) as error:
        raise StatsError(f"{where}: must be values of type {type_}: {error}") from error


def _shown(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
