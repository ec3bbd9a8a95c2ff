"""What a name in a query's FROM stands for."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa


@dataclass(frozen=True)
class Constraint:
    """What a query says of a column's values, of the column's own type. Rows that do not satisfy it are of no use to the query."""

    values: tuple[pa.Scalar, ...] | None = None
    """The value is one of these; None: it may be any."""
    low: pa.Scalar | None = None
    """The value is no less; for ``high``, no more."""
    high: pa.Scalar | None = None


Bounds = Mapping[str, Constraint]
"""By column, what must be true of a row, all of it."""


@dataclass(frozen=True)
class Wanted:
    """What a query asks of a relation."""

    columns: Collection[str]
    """By their names in the schema."""
    anyof: Sequence[Bounds] | None = None
    """A row that satisfies none of these is of no use. None: any row may be. At least one."""


@dataclass(frozen=True)
class Rows:
    """What a relation gives for that: all rows that the query may need, and perhaps others."""

    table: pa.Table
    """The wanted columns, and those that ``where`` reads."""
    where: str | None = None
    """SQL over the table's columns: which rows are the relation's. None: all."""
    files: int = 0
    """Blocks or files that were read, of ``all_files``."""
    all_files: int = 0
    nbytes: int = 0
    """Of them, as far as they were read; ``all_nbytes``: of all."""
    all_nbytes: int = 0
    upto: str = ""
    """What of the relation the answer is of, where that is not all of the commit."""
    snapshot: int | None = None
    """Of results: the last snapshot whose rows they are, or of which there are none."""
    first_snapshot: int | None = None
    """Of results: the first snapshot that was stored as they were read; None: there was none."""


class Relation(Protocol):
    """A table whose rows lie in blocks or files of which statistics are known."""

    @property
    def name(self) -> str: ...

    @property
    def schema(self) -> pa.Schema:
        """All its columns."""

    def read(self, wanted: Wanted, room: int, check: Callable[[], None]) -> Rows:
        """The rows that a query may need.

        ``room``: the most bytes that may be brought into this process; what is mapped is not. ``check`` is called now and then, and raises
        where the time is over. Raises Missing where a file is no more, QueryError, StorageError.
        """
