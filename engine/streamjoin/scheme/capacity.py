"""What a worker may hold, counted in tuples or weighed in bytes, and how wide a held tuple is where none was measured.

Always holds: held volumes, statistics and capacity of one join are in one unit. A tuple weighs 1 where capacity is a count of tuples, and
its width in bytes where capacity is in bytes (A-DSP, Eqs. 1, 2 and 6).
"""

from __future__ import annotations

from dataclasses import dataclass

from streamjoin.language.schema import Schema
from streamjoin.language.types import DataType, TypeName

Pair = tuple[float, float]

TUPLE_OVERHEAD = 24
"""Bytes of a held tuple besides its columns: key, event time, unit coordinate."""
STRING_BYTES = 24
"""An average string, with its offset."""

_MIB = 1 << 20
_WIDTHS = {
    TypeName.BOOLEAN: 1,
    TypeName.TINYINT: 1,
    TypeName.SMALLINT: 2,
    TypeName.INT: 4,
    TypeName.FLOAT: 4,
    TypeName.DATE: 4,
    TypeName.BIGINT: 8,
    TypeName.DOUBLE: 8,
    TypeName.TIMESTAMP: 8,
    TypeName.TIMESTAMP_NTZ: 8,
    TypeName.DECIMAL: 16,
}


@dataclass(frozen=True, slots=True)
class Capacity:
    """W: how many tuples of both streams a worker may hold, or how many bytes of them. Raises ValueError for one that is not positive."""

    amount: float
    in_bytes: bool = False

    def __post_init__(self) -> None:
        if not self.amount > 0:
            raise ValueError(f"{self.field}: {self.amount} must be positive")

    @property
    def field(self) -> str:
        """Of the manifest."""
        return "spec.workers.capacity" if self.in_bytes else "spec.workers.capacityTuples"

    def weights(self, tuple_bytes: Pair) -> Pair:
        """What a tuple of each side weighs, of these widths in bytes."""
        return tuple_bytes if self.in_bytes else (1.0, 1.0)

    def figure(self, volume: float) -> str:
        """A volume as people read it, without its unit where that is tuples: ``1,200`` or ``3.4 MiB``."""
        return f"{volume / _MIB:,.1f} MiB" if self.in_bytes else f"{volume:,.0f}"

    def words(self, volume: float) -> str:
        """``1,200 tuples`` or ``3.4 MiB of tuples``."""
        return f"{self.figure(volume)} {'of ' if self.in_bytes else ''}tuples"


def tuple_bytes(schema: Schema, payload: tuple[str, ...]) -> float:
    """Bytes of a held tuple with these columns, by their types; strings have an average length."""
    return float(TUPLE_OVERHEAD + sum(_width(column.type) for column in schema.select(payload).columns))


def _width(data_type: DataType) -> int:
    return _WIDTHS.get(data_type.name, STRING_BYTES)
