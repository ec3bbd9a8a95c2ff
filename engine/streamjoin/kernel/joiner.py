"""Joins two runs: candidates from the probe, residual and output filter on each chunk, payload taken last, for survivors.

Always holds: every pair of left x right that satisfies main predicate, window, residual and ``where`` comes exactly once. ``where`` is for
what comes of the join: whether tuples match does not depend on it.
Columns are taken for the pairs of one chunk at a time, and those that only the output reads for its survivors only; an output
batch has at most ``chunk_pairs`` rows. A chunk's columns take at most ``CHUNK_BYTES``, counted by the rows that it has, or one pair's. So
the memory beyond the runs is that of a chunk's columns, however many pairs match and however wide their tuples are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from streamjoin.kernel.expansion import Coverage, coverage_of
from streamjoin.kernel.expression import Evaluator
from streamjoin.kernel.probe import Candidates
from streamjoin.kernel.run import Run, is_text, take, text_bytes
from streamjoin.kernel.types import output_schema
from streamjoin.language.predicate import MainPredicate
from streamjoin.language.schema import held_name
from streamjoin.language.sql import Expression
from streamjoin.language.tree import Reference, walk
from streamjoin.language.window import Window

Name = tuple[str, str]
"""A stream and one of its columns."""

Members = tuple[str, ...]
"""The streams that the tuples of one side are of: one, or several where they are results of these."""

Indices = NDArray[np.int32]

Matched = Callable[[Indices, Indices], None]
"""Is told of pairs that match: rows of the left run, and as many of the right one. The arrays are overwritten afterwards."""

CHUNK_BYTES = 1 << 27
"""What a chunk's columns may take. Chunks are made of so many pairs as average tuples have, and cut where the tuples are wider."""


class Joiner:
    """Evaluates one join. It holds no tuples and serves any number of runs, one thread at a time."""

    def __init__(
        self,
        main: MainPredicate,
        window: Window,
        residual: Expression | None,
        where: Expression | None,
        output: Sequence[tuple[str, Expression]],
        streams: tuple[str | Members, str | Members],
        chunk_pairs: int = 1 << 17,
        *,
        types: Mapping[Name, pa.DataType] | None = None,
    ) -> None:
        """``streams``: by side; the columns of one of several streams are named by :func:`column_of`. ``types``: of both streams'
        columns, where tuples may come alone."""
        if chunk_pairs < 1:
            raise ValueError(f"chunk_pairs: {chunk_pairs} must be at least 1")
        left, right = (names if isinstance(names, tuple) else (names,) for names in streams)
        for name in set(left) & set(right):
            raise ValueError(f"stream {name}: joined with itself under one name; give it another name on one side")
        if not output:
            raise ValueError("output: no columns; name at least one")
        self._main, self._window, self._chunk_pairs = main, window, chunk_pairs
        self._streams = left, right
        self._types = types or {}
        self._residual, self._where = (None if condition is None else Evaluator(condition) for condition in (residual, where))
        self._output = [Evaluator(expression) for _, expression in output]
        self.output_schema = output_schema(output)
        read = [each for each in (residual, where, *(expression for _, expression in output)) if each is not None]
        self._reads = Counter((node.stream, node.column) for each in read for node in walk(each.tree) if isinstance(node, Reference))
        """How often each column stands in an expression, which may put its values one after the other."""
        self.candidates_seen = 0
        """Pairs that the main predicate has admitted in the joins that are over: what they have cost."""

    def coverage(self, left: Run, right: Run) -> Coverage:
        """How much of left x right the window covers, in whatever order the runs are seen; ``join`` needs times for SOME only. O(1)."""
        return coverage_of(self._window, left, right) if left.rows and right.rows else Coverage.NONE

    def join(self, left: Run, right: Run, matched: Matched | None = None, *, pairs_wanted: bool = True) -> Iterator[pa.RecordBatch]:
        """Every matching pair of left x right, each exactly once, as batches of ``output_schema`` with 1 to ``chunk_pairs`` rows.

        ``matched`` is told of them all, ``where`` or not; with ``pairs_wanted`` False that is all that happens.

        O(probes + rows / 16 + candidates), see ``probe``.
        """
        pair_bytes = sum(run.nbytes // run.rows for run in (left, right) if run.rows)
        chunk_pairs = min(self._chunk_pairs, max(1, CHUNK_BYTES // (pair_bytes + 1)))
        candidates = Candidates(self._main, self._window, left, right, chunk_pairs)
        # Where few candidates survive, they are kept until there is a batch of them: a gather of few rows costs as many calls.
        waiting: list[Pairs] = []
        waiting_count = 0
        try:
            for left_places, right_places in candidates:
                left_rows, right_rows = _rows(left, left_places), _rows(right, right_places)
                sides = (left.batch, left_rows), (right.batch, right_rows)
                for portion in self._portions(Pairs(dict(zip(self._streams, sides, strict=True)), len(left_rows))):
                    pairs = self.admitted(portion)
                    if matched is not None and pairs.count:
                        matched(*(rows for _, rows in pairs.sides.values()))
                    if not pairs_wanted:
                        continue
                    if self._where is not None and pairs.count:
                        pairs = pairs.where(self._where)
                    if pairs.count * 2 >= portion.count:
                        yield self.batch(pairs)
                    elif pairs.count:
                        if waiting_count + pairs.count > chunk_pairs:
                            yield from map(self.batch, self._portions(_joined(waiting)))
                            waiting, waiting_count = [], 0
                        waiting.append(pairs.kept())
                        waiting_count += pairs.count
            if waiting:
                yield from map(self.batch, self._portions(_joined(waiting)))
        finally:
            self.candidates_seen += candidates.seen

    def alone(self, side: int, batch: pa.RecordBatch, rows: NDArray[np.int64] | None = None) -> Iterator[pa.RecordBatch]:
        """What these rows of a side's batch, or all, give by themselves, with nulls for the other's columns; as ``join`` gives results.

        O(rows).
        """
        own, others = self._streams[side], self._streams[1 - side]
        other = {name: kind for name, kind in self._types.items() if name[0] in others}
        chosen = np.arange(batch.num_rows, dtype=np.int32) if rows is None else rows.astype(np.int32)
        for start in range(0, len(chosen), self._chunk_pairs):
            chunk = chosen[start : start + self._chunk_pairs]
            nulls = {name: pa.nulls(len(chunk), kind) for name, kind in other.items()}
            pairs = Pairs({own: (batch, chunk)}, len(chunk), nulls)
            for portion in self._portions(pairs):
                chosen_pairs = portion if self._where is None else portion.where(self._where)
                if chosen_pairs.count:
                    yield self.batch(chosen_pairs)

    def _portions(self, pairs: Pairs) -> Iterator[Pairs]:
        """The pairs, cut where the values that they read take more than ``CHUNK_BYTES``. O(pairs x texts read), and O(1) where few do."""
        nbytes: NDArray[np.int64] | int = 0
        for streams, (batch, rows) in pairs.sides.items():
            for name, times in self._reads.items():
                column = batch.column(column_of(streams, name)) if name[0] in streams else None
                if column is not None and times * pairs.count * column.nbytes > CHUNK_BYTES and is_text(column.type):
                    nbytes = nbytes + times * text_bytes(column, rows)
        if isinstance(nbytes, int) or nbytes.sum() <= CHUNK_BYTES:
            yield pairs
        else:
            yield from (pairs.part(start, end) for start, end in cut(nbytes))

    def admitted(self, pairs: Pairs) -> Pairs:
        """Those of some candidates that match."""
        return pairs.where(self._residual) if self._residual is not None and pairs.count else pairs

    def batch(self, pairs: Pairs) -> pa.RecordBatch:
        """What is given for pairs that match, one or more."""
        columns = [output.evaluate(pairs.columns(output.expression.columns), pairs.count) for output in self._output]
        return pa.RecordBatch.from_arrays(columns, schema=self.output_schema)


@dataclass(slots=True)
class Pairs:
    """Some pairs of rows, and the columns taken for them so far."""

    sides: dict[Members, tuple[pa.RecordBatch, Indices]]
    """By streams, the left side first. The rows are overwritten when the next candidates are asked for."""
    count: int
    taken: dict[Name, pa.Array] = field(default_factory=dict)

    def columns(self, names: frozenset[Name]) -> dict[Name, pa.Array]:
        """The columns so named, and perhaps others."""
        for streams, (batch, rows) in self.sides.items():
            if missing := [name for name in names if name[0] in streams and name not in self.taken]:
                indices = pa.array(rows)
                self.taken |= {name: take(batch.column(column_of(streams, name)), indices) for name in missing}
        return self.taken

    def where(self, condition: Evaluator) -> Pairs:
        """The pairs for which the condition is TRUE."""
        chosen = condition.select(self.columns(condition.expression.columns), self.count)
        if len(chosen) == self.count:
            return self
        return self.chosen(chosen)

    def part(self, start: int, end: int) -> Pairs:
        """Those in consecutive places."""
        sides = {streams: (batch, rows[start:end]) for streams, (batch, rows) in self.sides.items()}
        return Pairs(sides, end - start, {name: column.slice(start, end - start) for name, column in self.taken.items()})

    def chosen(self, places: NDArray[Any]) -> Pairs:
        """Those in these places, or of a mask."""
        sides = {streams: (batch, rows[places]) for streams, (batch, rows) in self.sides.items()}
        count = len(next(iter(sides.values()))[1])
        # Of a side that is not there, all are null.
        absent = {name: column.slice(0, count) for name, column in self.taken.items() if not any(name[0] in streams for streams in sides)}
        return Pairs(sides, count, absent)

    def kept(self) -> Pairs:
        """The pairs with rows of their own, and no columns."""
        return Pairs({streams: (batch, rows.copy()) for streams, (batch, rows) in self.sides.items()}, self.count)


def cut(nbytes: NDArray[np.int64]) -> Iterator[tuple[int, int]]:
    """Where to cut rows of so many bytes each, so that no part has more than ``CHUNK_BYTES``, or one row's. O(rows)."""
    before, start = np.cumsum(nbytes), 0
    while start < len(nbytes):
        room = CHUNK_BYTES + (before[start - 1] if start else 0)
        end = max(start + 1, int(np.searchsorted(before, room, "right")))
        yield start, end
        start = end


def column_of(streams: Members, name: Name) -> str:
    """How a batch of tuples of these streams calls a column of one of them."""
    return held_name(name[1]) if len(streams) == 1 else f"{name[0]}.{name[1]}"


def _rows(run: Run, places: Indices) -> Indices:
    """The rows of a run's batch that its positions stand for."""
    return places if run.order is None else run.order[places]


def _joined(parts: Sequence[Pairs]) -> Pairs:
    sides = {own: (batch, np.concatenate([part.sides[own][1] for part in parts])) for own, (batch, _) in parts[0].sides.items()}
    return Pairs(sides, sum(part.count for part in parts))
