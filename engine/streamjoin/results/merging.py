"""Merges sorted tables, which come in pieces, into one, in bounded memory: a k-way merge of blocks by a key of any type.

Keys ascend as Arrow sorts them: NaN after all numbers, and rows without a key last. Rows with equal keys keep the order of their sequences,
and within one its own, so that a merge of merges is that of all.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

Rank = tuple[int, Any]
"""A key's place in the order, comparable with any other's of the same type."""


def merged(sequences: Sequence[Iterable[pa.Table]], key: str) -> Iterator[pa.Table]:
    """The rows of all sequences in one order, in pieces of any size. Each sequence is sorted by the column ``key`` from piece to piece.

    O(n log n). Memory: two pieces of each sequence, and their rows once more.
    """
    sources = [source for source in (_Source(iter(sequence), key) for sequence in sequences) if source.more()]
    while sources:
        # The one whose piece ends first says how far it is known what comes: of equal ends the first, as its rows come first.
        limit = min(range(len(sources)), key=lambda index: (sources[index].last, index))
        bound = sources[limit].last
        parts = [source.taken(bound, including=index <= limit) for index, source in enumerate(sources)]
        sources = [source for source in sources if source.rows or source.more()]
        rows = pa.concat_tables(part for part in parts if part.num_rows)
        yield rows.take(pc.sort_indices(rows, sort_keys=[(key, "ascending")]))  # stable


class _Source:
    """One sequence, of which a piece is there."""

    def __init__(self, pieces: Iterator[pa.Table], key: str) -> None:
        self._pieces, self._key = pieces, key
        self._piece: pa.Table | None = None
        self._start = 0
        self.last: Rank = (0, None)
        """The rank of the piece's last key."""

    @property
    def rows(self) -> int:
        """The number of rows that are left of the piece."""
        return 0 if self._piece is None else self._piece.num_rows - self._start

    def more(self) -> bool:
        """Have the next piece that is not empty; whether there is one."""
        self._piece = next((piece for piece in self._pieces if piece.num_rows), None)
        if self._piece is None:
            return False
        self._start, self._keys = 0, self._piece.column(self._key).combine_chunks()
        self.last = rank(self._keys[-1])
        return True

    def taken(self, bound: Rank, *, including: bool) -> pa.Table:
        """The rows below the bound, or up to it."""
        assert self._piece is not None
        bisect = bisect_right if including else bisect_left
        stop = bisect(range(self._piece.num_rows), bound, self._start, key=lambda row: rank(self._keys[row]))
        part = self._piece.slice(self._start, stop - self._start)
        self._start = stop
        return part


def rank(key: pa.Scalar) -> Rank:
    """The place of a key in the order."""
    if not key.is_valid:
        return 2, None
    value = getattr(key, "value", None)  # of a time: as a number, which also one has that Python has no time for
    if value is None:
        value = key.as_py()
    return (1, None) if isinstance(value, float) and math.isnan(value) else (0, value)
