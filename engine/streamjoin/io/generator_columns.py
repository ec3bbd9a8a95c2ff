"""Columns of made-up tuples: for each the function of a row's number that fills it.

Random numbers are splitmix64's (Steele, Lea and Flood, OOPSLA 2014), whose n-th output is a mix of ``state + n * gamma``, used as a
counter-based generator: any row's can be had without those before.
"""

from __future__ import annotations

import datetime
import decimal
import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TypeAlias

import numpy as np
import pyarrow as pa

from streamjoin.io.base import SourceError
from streamjoin.io.generator_rates import SECOND, Rate
from streamjoin.kernel.arrays import arrow_array, decimal_limbs

U64 = np.uint64
GAMMA = U64(0x9E3779B97F4A7C15)

Number: TypeAlias = int | float
Plain: TypeAlias = int | float | str | bool | None


@dataclass(frozen=True)
class SequenceValues:
    """start, start + 1, ..."""

    start: int = 0


@dataclass(frozen=True)
class UniformValues:
    """Every value of the closed range equally often."""

    min: Number
    max: Number


@dataclass(frozen=True)
class ZipfValues:
    """Value k of 0 .. values-1 in proportion to 1 / (k + 1) ** exponent."""

    values: int
    exponent: float


@dataclass(frozen=True)
class HotspotValues:
    """Uniform on the closed range, but for a ``share`` in a window of ``width`` that crosses the range every period."""

    min: Number
    max: Number
    width: Number
    share: float
    period_seconds: float


@dataclass(frozen=True)
class ChoiceValues:
    """Each of the given values equally often."""

    values: tuple[Plain, ...]


Values: TypeAlias = SequenceValues | UniformValues | ZipfValues | HotspotValues | ChoiceValues


@dataclass
class Chunk:
    """Some consecutive rows, and their times, which several columns may need."""

    rows: np.ndarray
    """int64 row numbers."""
    rate: Rate

    @cached_property
    def elapsed(self) -> np.ndarray:
        """Microseconds since the start, int64, by the rate alone."""
        return self.rate.event_micros(self.rows.astype(np.float64)).astype(np.int64)

    def random(self, base: np.uint64) -> np.ndarray:
        """A uint64 for each row: splitmix64's outputs number row + 1 from the state ``base``."""
        z = self.rows.astype(U64)
        z += U64(1)
        z *= GAMMA
        z += base
        z ^= z >> U64(30)
        z *= U64(0xBF58476D1CE4E5B9)
        z ^= z >> U64(27)
        z *= U64(0x94D049BB133111EB)
        z ^= z >> U64(31)
        return z


def _base(seed: int, *purpose: str) -> np.uint64:
    """The state from which one column's sequence starts: far from every other column's."""
    digest = hashlib.blake2b("/".join((str(seed), *purpose)).encode(), digest_size=8).digest()
    return U64(int.from_bytes(digest, "little"))


def _below(z: np.ndarray, bound: int) -> np.ndarray:
    """floor(z * bound / 2**64) for 1 <= bound <= 2**64: uniform below ``bound``, biased by less than bound / 2**64.

    Lemire, Fast random integer generation in an interval, 2019. Changes ``z``.
    """
    if bound == 1 << 64:
        return z
    low32 = U64(0xFFFFFFFF)
    high, low = z >> U64(32), z & low32
    if bound <= 1 << 32:
        n = U64(bound)
        low *= n
        low >>= U64(32)
        high *= n
        high += low
        high >>= U64(32)
        return high
    n_high, n_low = U64(bound >> 32), U64(bound & 0xFFFFFFFF)
    cross = high * n_low + ((low * n_low) >> U64(32))
    carry = (cross & low32) + low * n_high
    return np.asarray(high * n_high + (cross >> U64(32)) + (carry >> U64(32)))


def _unit(z: np.ndarray) -> np.ndarray:
    """A float64 in [0, 1) with 53 random bits."""
    return np.asarray((z >> U64(11)).astype(np.float64) * 2.0**-53)


@lru_cache(maxsize=8)
def _zipf_table(values: int, exponent: float) -> np.ndarray:
    """The cumulative distribution, last entry 1."""
    weights = np.power(np.arange(1, values + 1, dtype=np.float64), -exponent)
    table = np.cumsum(weights)
    table /= table[-1]
    return table


Maker: TypeAlias = Callable[[Chunk], pa.Array]


def event_time_maker(seed: int, item: pa.Field, start_micros: int, out_of_order_micros: int) -> Maker:
    """The function that makes the column of event times, from ``start_micros`` on; SourceError where its type is no timestamp."""
    if not pa.types.is_timestamp(item.type):
        raise SourceError(f"eventTime: column {item.name} is {item.type}; declare it as TIMESTAMP or TIMESTAMP_NTZ in the schema")
    base = _base(seed, "", "out of order")

    def make(chunk: Chunk) -> pa.Array:
        micros = chunk.elapsed + start_micros
        if out_of_order_micros:
            micros = micros - _below(chunk.random(base), out_of_order_micros + 1).view(np.int64)
        return pa.array(micros, pa.int64()).cast(item.type)

    return make


def column_maker(seed: int, item: pa.Field, values: Values) -> Maker:
    """The function that makes one column. The manifest says that the values fit the type."""
    base = _base(seed, item.name.casefold())
    if isinstance(values, ChoiceValues):
        options = pa.array([_plain(value, item.type) for value in values.values], item.type)
        return lambda chunk: options.take(pa.array(_below(chunk.random(base), len(options)).view(np.int64)))
    choose = _base(seed, item.name.casefold(), "choose")
    if pa.types.is_floating(item.type) and isinstance(values, UniformValues | HotspotValues):
        return _reals(base, choose, item, values)
    return _integers(base, choose, item, values)


def _plain(value: Plain, kind: pa.DataType) -> object:
    """A manifest's value as pyarrow takes it for ``kind``."""
    if value is None:
        return None
    if pa.types.is_decimal(kind):
        return decimal.Decimal(str(value))
    if isinstance(value, str) and pa.types.is_timestamp(kind):
        moment = datetime.datetime.fromisoformat(value)
        if kind.tz is None:
            return moment.replace(tzinfo=None)
        return moment if moment.tzinfo is not None else moment.replace(tzinfo=datetime.UTC)
    if isinstance(value, str) and pa.types.is_date(kind):
        return datetime.date.fromisoformat(value)
    if isinstance(value, str) and pa.types.is_binary(kind):
        return value.encode()
    return value


def _reals(base: np.uint64, choose: np.uint64, item: pa.Field, values: UniformValues | HotspotValues) -> Maker:
    low, high = float(values.min), float(values.max)
    numpy_type = item.type.to_pandas_dtype()
    if isinstance(values, UniformValues):
        return lambda chunk: pa.array((_unit(chunk.random(base)) * (high - low) + low).astype(numpy_type), item.type)
    width = float(values.width)

    def make(chunk: Chunk) -> pa.Array:
        unit = _unit(chunk.random(base))
        moved = low + _phase(chunk, values) * (high - low - width)
        hot = _unit(chunk.random(choose)) < values.share
        return pa.array(np.where(hot, moved + unit * width, low + unit * (high - low)).astype(numpy_type), item.type)

    return make


def _integers(
    base: np.uint64, choose: np.uint64, item: pa.Field, values: SequenceValues | UniformValues | ZipfValues | HotspotValues
) -> Maker:
    """Integers; unscaled for decimals, days for dates, microseconds for timestamps, digits for strings."""
    kind = item.type
    scale = 10**kind.scale if pa.types.is_decimal(kind) else 1
    if isinstance(values, SequenceValues):
        start = values.start * scale
        # NB: a sequence that leaves its type wraps round rather than stopping a stream that has run for years.
        count = (_greatest(kind) - start) // scale + 1

        def sequence(chunk: Chunk) -> pa.Array:
            rows = chunk.rows if chunk.rows[-1] < count else chunk.rows % count
            return _column(rows * np.int64(scale) + np.int64(start), kind)

        return sequence
    if isinstance(values, ZipfValues):

        def zipf(chunk: Chunk) -> pa.Array:
            table = _zipf_table(values.values, values.exponent)
            drawn = np.searchsorted(table, _unit(chunk.random(base)), side="right").astype(np.int64)
            return _column(drawn * np.int64(scale), kind)

        return zipf
    low, high = _scaled(values.min, kind), _scaled(values.max, kind)
    count = high - low + 1
    if isinstance(values, UniformValues):

        def uniform(chunk: Chunk) -> pa.Array:
            drawn = _below(chunk.random(base), count).view(np.int64)
            drawn += np.int64(low)
            return _column(drawn, kind)

        return uniform
    width = _scaled(values.width, kind)

    def hotspot(chunk: Chunk) -> pa.Array:
        z = chunk.random(base)
        hot = _unit(chunk.random(choose)) < values.share
        moved = np.floor(_phase(chunk, values) * (count - width + 1)).astype(np.int64)
        inside = moved + _below(z, width).view(np.int64)
        return _column(np.where(hot, inside, _below(z, count).view(np.int64)) + np.int64(low), kind)

    return hotspot


def _phase(chunk: Chunk, values: HotspotValues) -> np.ndarray:
    """How far the hot window has moved, in [0, 1)."""
    period = round(values.period_seconds * SECOND)
    return np.asarray((chunk.elapsed % period) / period)


def _scaled(value: Number, kind: pa.DataType) -> int:
    """A manifest's number as the integer that stands for it in ``kind``."""
    exact = decimal.Decimal(str(value))
    return int(exact.scaleb(kind.scale) if pa.types.is_decimal(kind) else exact)


def _greatest(kind: pa.DataType) -> int:
    """The greatest integer that stands for a value of the type."""
    if pa.types.is_floating(kind):
        return 2**24 if pa.types.is_float32(kind) else 2**53
    if pa.types.is_decimal(kind):
        return int(min(10**kind.precision, 2**63)) - 1
    return int(2 ** (kind.bit_width - 1) if pa.types.is_integer(kind) or pa.types.is_date32(kind) else 2**63) - 1


def _column(values: np.ndarray, kind: pa.DataType) -> pa.Array:
    """int64 values as a column of the type."""
    if pa.types.is_decimal(kind):
        return arrow_array(decimal_limbs(values), kind, None)
    if pa.types.is_integer(kind) or pa.types.is_floating(kind):
        return pa.array(values.astype(kind.to_pandas_dtype(), copy=False), kind)
    return pa.array(values.astype(np.int32), pa.int32()).cast(kind) if pa.types.is_date32(kind) else pa.array(values).cast(kind)
