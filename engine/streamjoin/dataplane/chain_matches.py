"""Which tuples of a chain have matched: outer, semi and anti joins along a chain (``dataplane.handshake``).

A tuple may match at any worker that it comes by, or on its way between two, where the sender finds the copy. So who holds a tuple cannot
tell whether it has matched. Whoever finds a pair remembers the positions of both tuples in their streams, and tells nobody while messages
are on their way. Once the chain is at rest, the message that says so takes what was found of a stream to the stream's last worker, its
*gate*, where its tuples leave. What leaves has met all that it can match: there it comes alone, if it has matched nothing (outer and anti
joins), or if it has (semi joins).

Always holds: the gate of a stream knows which of its tuples in the chain have matched by the last commit. It writes, as marks, those that
have first matched in an epoch; another gate, or another process, reads them from there.
Memory: 8 bytes for each such tuple, at the gate alone.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from streamjoin.dataplane.compiled import ID
from streamjoin.dataplane.matches import read_identities
from streamjoin.dataplane.paths import JoinOperator
from streamjoin.kernel.joiner import Indices, Matched
from streamjoin.kernel.marks import mark_rows
from streamjoin.kernel.run import Run
from streamjoin.language.join_type import JoinType
from streamjoin.language.sides import RIGHT
from streamjoin.state.blocks import Block
from streamjoin.state.chunks import Chunk
from streamjoin.state.storage import Storage
from streamjoin.state.store import SCRATCH_BYTES, Positions, settle

MERGED_AT_ONCE = 64
"""Lists of positions."""
_NONE: NDArray[np.int64] = np.empty(0, dtype=np.int64)


class ChainMatches:
    """What one task of a chain finds in an epoch, and hears from those before it."""

    def __init__(self, joins: Iterable[JoinOperator], gates: Iterable[int]) -> None:
        """``gates``: the streams that leave the chain at this task."""
        self._tracking = [join for join in joins if join.type.tracked]
        self._kept = [(join, side) for join in self._tracking for side in join.type.tracked if side in gates]
        self._found: dict[tuple[str, int], list[NDArray[np.int64]]] = defaultdict(list)
        self._dropped: dict[int, list[Chunk]] = {side: [] for _, side in self._kept}
        """What has left here in the epoch, by stream and in order."""
        self.known: Positions = {}
        """Of the streams that leave here, as the epoch before has left it; once the epoch is settled, as this one leaves it."""
        self.new: list[tuple[JoinOperator, int, NDArray[np.int64]]] = []
        """What of that is to be written, by join and side, once the epoch is settled."""

    @property
    def returns(self) -> bool:
        """Whether there is something to tell those on the left."""
        return any(RIGHT in join.type.tracked for join in self._tracking)

    def seen(self, join: JoinOperator, chunks: Sequence[Chunk]) -> Seen:
        """To be told which pairs of two chunks match."""
        return Seen(self, [(join.name, side) for side in join.type.tracked], chunks)

    def hear(self, told: Positions) -> None:
        """Take what was found elsewhere."""
        for key, positions in told.items():
            found = self._found[key]
            found.append(positions)
            if len(found) > MERGED_AT_ONCE:
                self._all(key)

    def told(self, stream: int) -> Positions:
        """What the next worker of a stream is to hear once the chain is at rest: what was found here, and what was heard. O(n log n)."""
        return {key: self._all(key) for key in list(self._found) if key[1] == stream}

    def drop(self, stream: int, chunks: Iterable[Chunk]) -> None:
        """Tuples of a stream leave here, after all that did before."""
        if stream in self._dropped:
            for chunk in chunks:
                if chunk.run.nbytes > SCRATCH_BYTES:  # at the end of the input that is all of the stream
                    chunk.run = Run.of(settle(chunk.run.batch))
                self._dropped[stream].append(chunk)

    def settle(self) -> Iterator[tuple[JoinOperator, int, Chunk, NDArray[np.int64]]]:
        """Of the tuples that have left here in the epoch those that come alone: the join, the side, and rows of a chunk, ascending. To be
        called once, at rest. O(n log n)."""
        known = {}
        for join, side in self._kept:
            key = join.name, side
            before, found = self.known.get(key, _NONE), self._all(key)
            all_of_them = np.union1d(before, found)
            for chunk in self._dropped[side]:
                has_matched = np.isin(chunk.run.batch.column(ID).to_numpy(), all_of_them)
                rows = np.flatnonzero(has_matched if join.type is JoinType.SEMI else ~has_matched)
                if len(rows):
                    yield join, side, chunk, rows
            gone = self._dropped[side][-1].last if self._dropped[side] else -1
            known[key] = all_of_them[all_of_them > gone]
            new = np.setdiff1d(known[key], before)
            if len(new):
                self.new.append((join, side, new))
        self.known = known

    def read(self, storage: Storage, blocks: Sequence[Block], places: Sequence[int]) -> None:
        """Take what is known of the streams that leave here from committed marks; ``places``: by side. O(n log n). Raises StorageError."""
        for join, side in self._kept:
            own = [block for block in blocks if (block.join, block.place) == (join.tag, places[side])]
            if own:
                self.known = {**self.known, (join.name, side): np.unique(read_identities(storage, own))}

    def _all(self, key: tuple[str, int]) -> NDArray[np.int64]:
        found = self._found.get(key, [])
        if len(found) > 1:
            found[:] = [np.unique(np.concatenate(found))]
        return found[0] if found else _NONE


class Seen:
    """The rows of two chunks that match, while they are found."""

    def __init__(self, matches: ChainMatches, keys: Sequence[tuple[str, int]], chunks: Sequence[Chunk]) -> None:
        self._matches = matches
        self._marks = [(key, chunks[key[1]].run, np.zeros(chunks[key[1]].run.rows, dtype=bool)) for key in keys]

    @property
    def observer(self) -> Matched | None:
        """None: nobody wants to know."""
        return self._mark if self._marks else None

    def _mark(self, *pairs: Indices) -> None:
        for (_, side), _, marks in self._marks:
            mark_rows(marks, pairs[side])

    def close(self) -> None:
        """All pairs are found."""
        self._matches.hear({key: run.batch.column(ID).to_numpy()[marks] for key, run, marks in self._marks if marks.any()})


def described(join: JoinOperator, place: int, area: int, positions: NDArray[np.int64], bound: int | None) -> Block:
    """The log's record of marks of a chain's tuples, but for name and bytes. ``bound``: what the stream's tuples expire by in this epoch,
    which says how old the marks are: those of like age are merged."""
    return Block(
        name="", place=place, generation=0, area=area, rows=len(positions), nbytes=0, key_min=0, key_max=0,
        unit_min=int(positions[0]), unit_max=int(positions[-1]), time_min=bound, time_max=bound, join=join.tag,
    )  # fmt: skip
