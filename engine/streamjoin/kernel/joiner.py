"""Joins two runs: candidates from the probe, residual and output filter on each chunk, payload taken last, for survivors.

Always holds: every pair of left x right that satisfies main predicate, window, residual and ``where`` comes exactly once. ``where`` is for
what comes of the join: whether tuples match does not depend on it.
Columns are taken for the pairs of one chunk at a time, and those that only the output reads for its survivors only; an output
batch has at most ``chunk_pairs`` rows. So the memory beyond the runs is that of a chunk's columns, however many pairs match.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from streamjoin.kernel.expansion import Coverage, coverage_of
from streamjoin.kernel.expression import Evaluator
from streamjoin.kernel.probe import Candidates
from streamjoin.kernel.run import Run, take
from streamjoin.kernel.types import arrow_type
from streamjoin.language.predicate import MainPredicate
from streamjoin.language.sides import LEFT, RIGHT
from streamjoin.language.sql import Expression
from streamjoin.language.window import Window

Name = tuple[str, str]
"""A stream and one of its columns."""

Indices = NDArray[np.int32]

Matched = Callable[[Indices, Indices], None]
"""Is told of pairs that match: rows of the left run, and as many of the right one. The arrays are overwritten afterwards."""

CHUNK_BYTES = 1 << 27
"""What a chunk's columns may take, going by the average tuple: wide tuples come in chunks of fewer pairs."""


class Joiner:
    """Evaluates one join. It holds no tuples and serves any number of runs, one thread at a time."""

    def __init__(
        self,
        main: MainPredicate,
        window: Window,
        residual: Expression | None,
        where: Expression | None,
        output: Sequence[tuple[str, Expression]],
        streams: tuple[str, str],
        chunk_pairs: int = 1 << 17,
        *,
        types: Mapping[Name, pa.DataType] | None = None,
    ) -> None:
        """``types``: of both streams' columns, where tuples may come alone."""
        if chunk_pairs < 1:
            raise ValueError(f"chunk_pairs: {chunk_pairs} must be at least 1")
        if streams[LEFT] == streams[RIGHT]:
            raise ValueError(f"stream {streams[LEFT]}: joined with itself under one name; give it another name on one side")
        if not output:
            raise ValueError("output: no columns; name at least one")
        self._main, self._window, self._chunk_pairs = main, window, chunk_pairs
        self._streams = streams
        self._types = types or {}
        self._residual, self._where = (None if condition is None else Evaluator(condition) for condition in (residual, where))
        self._output = [Evaluator(expression) for _, expression in output]
        self.output_schema = pa.schema([pa.field(name, arrow_type(expression.type)) for name, expression in output])
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
        waiting: list[_Pairs] = []
        waiting_count = 0
        try:
            for left_places, right_places in candidates:
                left_rows, right_rows = _rows(left, left_places), _rows(right, right_places)
                sides = (left.batch, left_rows), (right.batch, right_rows)
                pairs = _Pairs(dict(zip(self._streams, sides, strict=True)), len(left_rows))
                if self._residual is not None and pairs.count:
                    pairs = pairs.where(self._residual)
                if matched is not None and pairs.count:
                    matched(*(rows for _, rows in pairs.sides.values()))
                if not pairs_wanted:
                    continue
                if self._where is not None and pairs.count:
                    pairs = pairs.where(self._where)
                if pairs.count * 2 >= len(left_rows):
                    yield self._batch(pairs)
                elif pairs.count:
                    if waiting_count + pairs.count > chunk_pairs:
                        yield self._batch(_joined(waiting))
                        waiting, waiting_count = [], 0
                    waiting.append(pairs.kept())
                    waiting_count += pairs.count
            if waiting:
                yield self._batch(_joined(waiting))
        finally:
            self.candidates_seen += candidates.seen

    def alone(self, side: int, batch: pa.RecordBatch, rows: NDArray[np.int64] | None = None) -> Iterator[pa.RecordBatch]:
        """What these rows of a side's batch, or all, give by themselves, with nulls for the other's columns; as ``join`` gives results.

        O(rows).
        """
        other = {name: kind for name, kind in self._types.items() if name[0] == self._streams[1 - side]}
        chosen = np.arange(batch.num_rows, dtype=np.int32) if rows is None else rows.astype(np.int32)
        for start in range(0, len(chosen), self._chunk_pairs):
            chunk = chosen[start : start + self._chunk_pairs]
            nulls = {name: pa.nulls(len(chunk), kind) for name, kind in other.items()}
            pairs = _Pairs({self._streams[side]: (batch, chunk)}, len(chunk), nulls)
            if self._where is not None:
                chunk = chunk[self._where.select(pairs.columns(self._where.expression.columns), pairs.count)]
                nulls = {name: column.slice(0, len(chunk)) for name, column in nulls.items()}
                pairs = _Pairs({self._streams[side]: (batch, chunk)}, len(chunk), nulls)
            if pairs.count:
                yield self._batch(pairs)

    def _batch(self, pairs: _Pairs) -> pa.RecordBatch:
        columns = [output.evaluate(pairs.columns(output.expression.columns), pairs.count) for output in self._output]
        return pa.RecordBatch.from_arrays(columns, schema=self.output_schema)


@dataclass(slots=True)
class _Pairs:
    """Some pairs of rows, and the columns taken for them so far."""

    sides: dict[str, tuple[pa.RecordBatch, Indices]]
    """By stream. The rows are overwritten when the next candidates are asked for."""
    count: int
    taken: dict[Name, pa.Array] = field(default_factory=dict)

    def columns(self, names: frozenset[Name]) -> dict[Name, pa.Array]:
        """The columns so named, and perhaps others."""
        for stream, (batch, rows) in self.sides.items():
            if missing := [name for name in names if name[0] == stream and name not in self.taken]:
                indices = pa.array(rows)
                self.taken |= {name: take(batch.column(name[1]), indices) for name in missing}
        return self.taken

    def where(self, condition: Evaluator) -> _Pairs:
        """The pairs for which the condition is TRUE."""
        chosen = condition.select(self.columns(condition.expression.columns), self.count)
        if len(chosen) == self.count:
            return self
        return _Pairs({stream: (batch, rows[chosen]) for stream, (batch, rows) in self.sides.items()}, len(chosen))

    def kept(self) -> _Pairs:
        """The pairs with rows of their own, and no columns."""
        return _Pairs({stream: (batch, rows.copy()) for stream, (batch, rows) in self.sides.items()}, self.count)


def _rows(run: Run, places: Indices) -> Indices:
    """The rows of a run's batch that its positions stand for."""
    return places if run.order is None else run.order[places]


def _joined(parts: Sequence[_Pairs]) -> _Pairs:
    sides = {stream: (batch, np.concatenate([part.sides[stream][1] for part in parts])) for stream, (batch, _) in parts[0].sides.items()}
    return _Pairs(sides, sum(part.count for part in parts))
