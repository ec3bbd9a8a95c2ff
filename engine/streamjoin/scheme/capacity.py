"""What a worker may hold, counted in tuples or weighed in bytes, and how wide a held tuple is where none was measured.

Always holds: held volumes, statistics and capacity of one join are in one unit. A tuple weighs 1 where capacity is a count of tuples, and
its width in bytes where capacity is in bytes (A-DSP, Eqs. 1, 2 and 6).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

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
    """W: how many tuples of all streams a worker may hold, or how many bytes of them. Raises ValueError for one that is not positive."""

    amount: float
    in_bytes: bool = False
    origin: str = field(default="", compare=False)
    """What it follows from, in words that go on from its figure; empty where it was given."""

    def __post_init__(self) -> None:
        if not self.amount > 0:
            raise ValueError(f"{self.field}: {self.amount} must be positive")

    @property
    def field(self) -> str:
        """Of the manifest."""
        return "spec.workers.capacity" if self.in_bytes else "spec.workers.capacityTuples"

    @property
    def remedy(self) -> str:
        """What is to be raised where it is too small."""
        return f"{self.field}, or spec.workers.resources.memory, which it follows from" if self.origin else self.field

    def told(self) -> str:
        """How much it is, and of what where it was not given: ``523.0 MiB of tuples, of the ...``."""
        return f"{self.words(self.amount)}{', ' if self.origin else ''}{self.origin}"

    def in_tuples(self, tuple_bytes: Sequence[float]) -> float:
        """The same as a number of tuples, where it is in bytes of the mean of these widths."""
        return self.amount * len(tuple_bytes) / sum(tuple_bytes) if self.in_bytes else self.amount

    def weights(self, tuple_bytes: Sequence[float]) -> tuple[float, ...]:
        """What tuples of these widths in bytes weigh."""
        return tuple(tuple_bytes) if self.in_bytes else (1.0,) * len(tuple_bytes)

    def figure(self, volume: float) -> str:
        """A volume as people read it, without its unit where that is tuples: ``1,200`` or ``3.4 MiB``."""
        return f"{volume / _MIB:,.1f} MiB" if self.in_bytes else f"{volume:,.0f}"

    def words(self, volume: float) -> str:
        """``1,200 tuples`` or ``3.4 MiB of tuples``."""
        return f"{self.figure(volume)} {'of ' if self.in_bytes else ''}tuples"


def tuple_bytes(schema: Schema, payload: tuple[str, ...]) -> float:
    """Bytes of a held tuple with these columns, by their types; strings have an average length."""
    return float(TUPLE_OVERHEAD + sum(_width(column.type) for column in schema.select(payload).columns))


class Width(NamedTuple):
    """Bytes of some columns of a tuple, by their types."""

    fixed: float
    open_ended: float
    """Of texts, whose length the type does not say."""


def column_bytes(schema: Schema, names: tuple[str, ...]) -> Width:
    """Of these columns."""
    kinds = [column.type for column in schema.select(names).columns]
    fixed = sum(_width(kind) for kind in kinds if kind.name in _WIDTHS)
    return Width(float(fixed), float(sum(map(_width, kinds)) - fixed))


def _width(data_type: DataType) -> int:
    return _WIDTHS.get(data_type.name, STRING_BYTES)
