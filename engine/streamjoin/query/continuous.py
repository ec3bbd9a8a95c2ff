"""Continuous queries: which rows of a join's snapshots a client wants, and how far it has read. Importing this loads no DuckDB.

Always holds: rows come by ``_snapshot``, then ``_row``, and the rows of a snapshot never change. So a position stands for all rows before
it; a client that goes on from it misses nothing and gets nothing twice.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from streamjoin.query.errors import QueryError, Why

_POSITION = re.compile(r"(-1|\d{1,18})(?:\.(\d{1,18}))?", re.ASCII)


@dataclass(frozen=True, slots=True)
class Position:
    """All rows of snapshots up to this one; where ``row`` is given, of this one those up to that ``_row``."""

    snapshot: int
    """-1: none."""
    row: int | None = None

    @classmethod
    def parse(cls, text: str, field: str = "after") -> Position:
        """The inverse of ``str``. Raises QueryError."""
        match = _POSITION.fullmatch(text)
        if match is None or (match[1] == "-1" and match[2]):
            remedy = "must be a snapshot's number, or the id of an event such as 17 or 17.4095; -1: from the first on"
            raise QueryError(Why.WRONG, f"{field}: {text[:60]!r} {remedy}")
        return cls(int(match[1]), None if match[2] is None else int(match[2]))

    def __str__(self) -> str:
        return str(self.snapshot) if self.row is None else f"{self.snapshot}.{self.row}"

    @property
    def following(self) -> int:
        """The first snapshot of which there are rows to come, if it has some."""
        return self.snapshot + (self.row is None)


def let_go(position: Position, upto: int) -> QueryError:
    """The snapshots after a position, up to another, are not stored any more."""
    first, count = position.following, upto - position.following + 1
    what = f"snapshot {first} is" if count == 1 else f"{count:,} snapshots, {first} to {upto}, are"
    remedy = f"go on with after={upto}, which leaves them out"
    text = f"{what} not stored any more, because output.snapshots.keep removes old ones"
    return QueryError(Why.ABSENT, f"after: {position}: {text}; {remedy}")


@dataclass(frozen=True, slots=True)
class Continuous:
    """A query over each snapshot that is stored. ``select`` and ``where`` are DuckDB's SQL, without subqueries and aggregates."""

    join: str
    select: str = "*"
    where: str | None = None
