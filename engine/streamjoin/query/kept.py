"""Rows that were read for a step of a continuous query and are for the next ones, so that a large snapshot is not read anew for each.

Always holds: what is taken is what would be read; a row is here for one position, that of who is to have it next. Nothing depends on
anything being here.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

import pyarrow as pa

from streamjoin.query.continuous import Continuous, Position

MOST_BYTES = 32 << 20
"""Of all that is kept."""


@dataclass(frozen=True)
class Following:
    """Rows of snapshots after a position, in order."""

    table: pa.Table
    """Those that are asked for, with ``_snapshot`` and ``_row`` behind."""
    upto: int
    """The last snapshot that was read."""
    is_whole: bool
    """Whether these are all up to there; else more follow the last one."""


class Kept:
    """Used by one thread."""

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self._most_bytes, self._bytes = most_bytes, 0
        self._found: OrderedDict[tuple[Continuous, Position], Following] = OrderedDict()

    def put(self, query: Continuous, after: Position, rows: Following) -> None:
        """Keep rows; if there is no room, those kept longest go. O(what goes)."""
        self.take(query, after)
        self._found[query, after] = rows
        self._bytes += rows.table.nbytes
        while self._bytes > self._most_bytes:
            _, gone = self._found.popitem(last=False)
            self._bytes -= gone.table.nbytes

    def take(self, query: Continuous, after: Position) -> Following | None:
        """What follows a position for a query, if it is here; from then on it is not. O(1)."""
        found = self._found.pop((query, after), None)
        if found is not None:
            self._bytes -= found.table.nbytes
        return found
