"""Held tuples in the order in which they came: chunks of a stream, each sorted by key, as a handshake chain passes them on.

Here, a tuple's unit coordinate is its position in its stream, modulo 2**32. So a chunk knows which of its tuples are the oldest. It can be
cut between any two of them, and merged with its neighbour; a part of a block is named by its positions.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from streamjoin.kernel.run import Run, merge_runs
from streamjoin.state.blocks import Block, conformed, load_all
from streamjoin.state.storage import Storage
from streamjoin.state.store import HeldRun

POSITIONS = 1 << 32
"""Positions are told apart modulo this; no chain holds tuples that are further apart."""
MERGED_BYTES = 1 << 27
"""Chunks that come to more are not made one, and expire one after another."""


@dataclass(slots=True, eq=False)
class Chunk(HeldRun):
    """Tuples of one stream whose positions are within [first, last], and all of these that their block has; no block: not stored yet."""

    first: int = 0
    last: int = 0
    _times: NDArray[np.int64] | None = field(default=None, repr=False)
    """In the order of positions, once it was asked for."""

    @classmethod
    def of(cls, run: Run, since: int, blocks: tuple[str, ...] = ()) -> Chunk:
        """A run of one tuple or more. ``since``: a position that none is before, and none is 2**32 after. O(rows)."""
        positions = _after(run.unit, since)
        return cls(run, blocks, first=since + int(positions.min()), last=since + int(positions.max()))

    def cut(self, count: int) -> tuple[Chunk, Chunk]:
        """The ``count`` oldest, and the others; there are more than so many. O(rows)."""
        positions = _after(self.run.unit, self.first)
        older = positions <= np.partition(positions, count - 1)[count - 1]
        return self._where(older), self._where(~older)

    def _where(self, chosen: NDArray[np.bool_]) -> Chunk:
        return Chunk.of(Run.of(self.run.batch.filter(pa.array(chosen))), self.first, self.blocks)

    def expired(self, bound: float) -> int:
        """How many of the oldest have a smaller ``_time``, up to the first that has not. O(rows) once, then O(log rows)."""
        run = self.run
        if bound == math.inf:
            return run.rows
        if run.time is None or run.time_min is None or run.time_max is None or run.time_min >= bound:
            return 0
        if run.time_max < bound:
            return run.rows
        if self._times is None:
            # The latest of each and those before it: ascending, and below the bound just where all are.
            self._times = np.maximum.accumulate(run.time[np.argsort(_after(run.unit, self.first))])
        return int(np.searchsorted(self._times, bound))


def _after(unit: NDArray[np.uint32], since: int) -> NDArray[np.uint32]:
    """How far positions are after one."""
    return unit - np.uint32(since % POSITIONS)


@dataclass(frozen=True, slots=True)
class Tuples:
    """Chunks of one stream, oldest first."""

    chunks: tuple[Chunk, ...] = ()

    def __len__(self) -> int:
        """Tuples."""
        return sum(chunk.run.rows for chunk in self.chunks)


class Chunks:
    """Tuples of one stream as a chain's worker holds them (``chain.stores.Store``). Not for use by several threads."""

    def __init__(self, meet: Callable[[Chunk, Chunk], None]) -> None:
        """``meet``: what to do about one held here and one that probes."""
        self._meet = meet
        self._chunks: deque[Chunk] = deque()
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Chunk]:
        return iter(self._chunks)

    def append(self, tuples: Tuples) -> None:
        self._chunks.extend(tuples.chunks)
        self._count += len(tuples)

    def prepend(self, tuples: Tuples) -> None:
        self._chunks.extendleft(reversed(tuples.chunks))
        self._count += len(tuples)

    def take(self, count: int) -> Tuples:
        """O(chunks + rows of one chunk)."""
        taken, left = list[Chunk](), count
        while left:
            chunk = self._chunks.popleft()
            if chunk.run.rows > left:
                chunk, rest = chunk.cut(left)
                self._chunks.appendleft(rest)
            taken.append(chunk)
            left -= chunk.run.rows
        self._count -= count
        return Tuples(tuple(taken))

    def expired(self, mark: float) -> int:
        """``mark``: the ``_time`` before which tuples can match nothing that is yet to come; ``math.inf``: nothing is.

        Counts no further than to the chunk with which they come to ``MERGED_BYTES``. O(chunks), and O(rows) once for a chunk that expires
        in part.
        """
        found = nbytes = 0
        for chunk in self._chunks:
            expired = chunk.expired(mark)
            found += expired
            nbytes += chunk.run.nbytes
            if expired < chunk.run.rows or nbytes >= MERGED_BYTES:
                break
        return found

    def probe(self, tuples: Tuples) -> Iterable[None]:
        """What is found is written at once: a worker keeps nothing of it."""
        for held in self._chunks:
            for probing in tuples.chunks:
                self._meet(held, probing)
        return ()


def consolidated(chunks: Iterable[Chunk], most_rows: int) -> list[Chunk]:
    """The same tuples in fewer chunks: those that are not stored yet become one with their neighbours, and so does a stored one that is at
    most twice as large as what comes after it, up to ``most_rows``. So a tuple is stored some log2(rows) times at one worker."""
    groups: list[list[Chunk]] = []
    for chunk in chunks:
        groups.append([chunk])
        while len(groups) > 1 and _may_merge(groups[-2], groups[-1], most_rows):
            last = groups.pop()
            groups[-1] += last
    return [group[0] if len(group) == 1 else _merged(group) for group in groups]


def _may_merge(older: Sequence[Chunk], newer: Sequence[Chunk], most_rows: int) -> bool:
    if sum(chunk.run.nbytes for chunk in (*older, *newer)) > MERGED_BYTES:
        return False
    rows, more = (sum(chunk.run.rows for chunk in group) for group in (older, newer))
    fresh = not any(chunk.blocks for chunk in (*older, *newer))
    return fresh or (rows <= 2 * more and rows + more <= most_rows)


def _merged(chunks: Sequence[Chunk]) -> Chunk:
    return Chunk.of(merge_runs([chunk.run for chunk in chunks]), chunks[0].first)


def in_order(runs: Iterable[Run], since: int) -> list[Chunk]:
    """New tuples, none of whose runs has a position between two of another's, as chunks that are not stored yet. O(rows log runs)."""
    chunks = sorted((Chunk.of(run, since) for run in runs if run.rows), key=lambda chunk: chunk.first)
    return consolidated(chunks, 0)


def read_chunks(storage: Storage, blocks: Sequence[Block], held_as: pa.Schema) -> Tuples:
    """What these blocks of one stream have within the positions that are said of them. O(rows of the blocks)."""
    ordered = sorted(blocks, key=lambda block: block.unit_min)
    chunks = []
    for block, batch in zip(ordered, load_all(storage, ordered), strict=True):
        run = Run.of(narrowed(conformed(batch, held_as), block))
        if run.rows:
            chunks.append(Chunk.of(run, block.unit_min, (block.name,)))
    return Tuples(tuple(chunks))


def narrowed(batch: pa.RecordBatch, block: Block) -> pa.RecordBatch:
    """The tuples of a block within the positions that are said of it. O(rows)."""
    within = _after(batch.column("_unit").to_numpy(), block.unit_min) <= np.uint32(block.unit_max - block.unit_min)
    return batch if within.all() else batch.filter(pa.array(within))
