"""Schemas of streams, as the manifest declares them, free of any runtime's types."""

from __future__ import annotations

from dataclasses import dataclass

from streamjoin.language.types import DataType

HELD = "\x1f"
"""How the name of a stream's column begins in held tuples where it begins with an underscore: those names are the engine's there."""


def held_name(column: str) -> str:
    """What held tuples call a stream's column: no column of the engine's own, whatever the name. No declared name begins with HELD."""
    return HELD + column if column.startswith("_") else column


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
