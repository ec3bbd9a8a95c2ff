"""Column types and schemas of streams, as the manifest declares them (Spark DDL), free of any runtime's types.

Always holds: a :class:`DataType` says all that planning needs (what may be compared with what, and how wide a value is);
``kernel.types`` turns it into Arrow's.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class TypeName(StrEnum):
    """The types that a column may have, by their Spark SQL names."""

    BOOLEAN = "BOOLEAN"
    TINYINT = "TINYINT"
    SMALLINT = "SMALLINT"
    INT = "INT"
    BIGINT = "BIGINT"
    FLOAT = "FLOAT"
    DOUBLE = "DOUBLE"
    DECIMAL = "DECIMAL"
    STRING = "STRING"
    BINARY = "BINARY"
    DATE = "DATE"
    TIMESTAMP = "TIMESTAMP"
    """An instant, microseconds since 1970 UTC."""
    TIMESTAMP_NTZ = "TIMESTAMP_NTZ"
    """A wall-clock time without a zone, microseconds."""
    INTERVAL = "INTERVAL"
    """A duration in microseconds. Only expressions have it, columns do not."""


@dataclass(frozen=True, slots=True)
class DataType:
    """One SQL type; ``precision`` and ``scale`` belong to DECIMAL alone."""

    name: TypeName
    precision: int = 0
    scale: int = 0

    def __str__(self) -> str:
        return f"DECIMAL({self.precision},{self.scale})" if self.name is TypeName.DECIMAL else str(self.name)


@dataclass(frozen=True, slots=True)
class Column:
    """A named column of a stream."""

    name: str
    type: DataType


@dataclass(frozen=True, slots=True)
class Schema:
    """The columns of a stream, in the order declared. Names are unique, compared without regard to case."""

    columns: tuple[Column, ...]

    def __iter__(self):  # type: ignore[no-untyped-def]
        return iter(self.columns)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(column.name for column in self.columns)

    def get(self, name: str) -> Column | None:
        """The column of that name, whatever its case, or None. O(columns)."""
        folded = name.casefold()
        return next((column for column in self.columns if column.name.casefold() == folded), None)

    def select(self, names: tuple[str, ...]) -> Schema:
        """The schema of these columns, in the order given. Raises KeyError for a name that is not here."""
        chosen = []
        for name in names:
            column = self.get(name)
            if column is None:
                raise KeyError(name)
            chosen.append(column)
        return Schema(tuple(chosen))
