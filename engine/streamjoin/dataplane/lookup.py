"""What partial results that stay where they are hear of the tuples held elsewhere: questions for their partners, the answers, and all that
is held.

A *question* has the key of some partial results, and what says how far away in time their partners may be. An *answer* has the tuples
that may be their partners, each of a run once, with the rows of the question that they may be partners of. What else is to be true of a
pair is checked by whoever asked, who has all of the partial result. Where keys go first, an answer has no tuples, and only these rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyarrow import ipc

from streamjoin.dataplane.stages import NOTHING, Stage
from streamjoin.dataplane.window_filter import WindowFilter
from streamjoin.epoch.reports import StageWork
from streamjoin.kernel.joiner import Joiner, Members, Pairs
from streamjoin.kernel.run import KEY, UNIT, Run, take
from streamjoin.language.predicate import MainPredicate
from streamjoin.language.sides import LEFT
from streamjoin.language.window import Window
from streamjoin.scheme.routing import Selection
from streamjoin.state.store import rows_selected

ROWS = "_rows"
"""Of an answer: the rows of the question."""


class Lookup:
    """How a stage's partial results ask for their partners. One thread's, as the stage is."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._asked = [] if stage.near is None else stage.near.asked(stage.stream)
        self._finder = _Finder(stage.main, stage.window, stage.members, stage.stream, stage.side, stage.near)

    @cached_property
    def _question(self) -> pa.Schema:
        return pa.schema([pa.field(KEY, self._stage.key_type), *(pa.field(name, pa.int64()) for name in self._asked)])

    def question(self, batch: pa.RecordBatch, selection: Selection) -> pa.Buffer:
        """Of the selected rows of partial results that are ``ready``."""
        return rows_selected(batch.select([KEY, *self._asked]), selection).serialize()

    def answer(self, question: pa.Buffer, held: Sequence[tuple[Run, int]]) -> Iterator[pa.RecordBatch]:
        """The tuples of these runs that may be partners, with the rows that they may be partners of. O(rows + candidates log candidates).

        ``held``: each with the reference to its first tuple.
        """
        asking = _run(question, self._question)
        for run, first_reference in held:
            for rows, partners in self._finder.pairs(asking, run):
                order = np.argsort(partners, kind="stable")
                tuples, starts = np.unique(partners[order], return_index=True)
                lists = pa.ListArray.from_arrays(pa.array(np.append(starts, len(order)), pa.int32()), pa.array(rows[order]))
                columns = [lists, *_columns(self._stage, run, tuples, first_reference)]
                yield pa.RecordBatch.from_arrays(columns, schema=self._answer)

    def matched(self, question: pa.Buffer, held: Sequence[tuple[Run, int]]) -> pa.RecordBatch | None:
        """The rows that may have partners in these runs; None: none has. O(rows + candidates)."""
        asking = _run(question, self._question)
        found = np.zeros(asking.rows, bool)
        for run, _ in held:
            for rows, _ in self._finder.pairs(asking, run):
                found[rows] = True
        return pa.RecordBatch.from_pydict({ROWS: np.flatnonzero(found).astype(np.int32)}) if found.any() else None

    @cached_property
    def _answer(self) -> pa.Schema:
        return pa.schema([pa.field(ROWS, pa.list_(pa.int32())), *held_schema(self._stage)])

    def rows_of(self, answer: pa.Buffer, selection: Selection) -> NDArray[np.int64]:
        """The rows of the partial results that an answer to the question of these has, where keys went first."""
        rows = ipc.read_record_batch(answer, pa.schema([pa.field(ROWS, pa.int32())])).column(0).to_numpy()
        return _chosen(selection, rows)

    def results(self, batch: pa.RecordBatch, selection: Selection, answer: pa.Buffer, work: StageWork) -> Iterator[pa.RecordBatch]:
        """What the stage gives for the selected rows of partial results and the tuples that came for them."""
        came = ipc.read_record_batch(answer, self._answer)
        lists = came.column(0)
        rows = _chosen(selection, lists.flatten().to_numpy()).astype(np.int32)
        tuples = np.repeat(np.arange(came.num_rows, dtype=np.int32), np.diff(lists.offsets.to_numpy()))
        yield from self._stage.join_pairs((batch, rows), (came, tuples), work)


def held_schema(stage: Stage) -> pa.Schema:
    """What goes to another task of the tuples that a stage probes."""
    near = () if stage.near is None else stage.near.held(stage.stream)
    names = [*near, *([stage.reference] if stage.reference else [])]
    return pa.schema([*(pa.field(name, pa.int64()) for name in names), *stage.columns])


def _columns(stage: Stage, run: Run, rows: NDArray[np.int32], first_reference: int) -> list[pa.Array]:
    """In the order of ``held_schema``."""
    near = () if stage.near is None else stage.near.held(stage.stream)
    references = [pa.array(rows.astype(np.int64) + first_reference)] if stage.reference else []
    own = take(run.batch.select([*near, *(field.name for field in stage.columns)]), pa.array(rows))
    return [*own.columns[: len(near)], *references, *own.columns[len(near) :]]


def brought(stage: Stage, run: Run, start: int, end: int, first_reference: int) -> pa.RecordBatch:
    """These rows of a held run, for other tasks to probe. Without a copy, but for references."""
    near = () if stage.near is None else stage.near.held(stage.stream)
    batch = run.batch.slice(start, end - start)
    references = [pa.array(np.arange(start, end) + first_reference)] if stage.reference else []
    columns = [batch.column(name) for name in (KEY, *near, *(field.name for field in stage.columns))]
    return pa.RecordBatch.from_arrays([*columns[: 1 + len(near)], *references, *columns[1 + len(near) :]], schema=_brought_schema(stage))


def run_of(stage: Stage, data: pa.Buffer) -> Run:
    """What was :func:`brought`."""
    return _run(data, _brought_schema(stage))


def _brought_schema(stage: Stage) -> pa.Schema:
    return pa.schema([pa.field(KEY, stage.held_key_type), *held_schema(stage)])


def _run(data: pa.Buffer, schema: pa.Schema) -> Run:
    """With units, which nobody asks for where it is."""
    batch = ipc.read_record_batch(data, schema)
    columns = [batch.column(0), pa.array(np.zeros(batch.num_rows, np.uint32)), *batch.columns[1:]]
    return Run.of(pa.RecordBatch.from_arrays(columns, schema=schema.insert(1, pa.field(UNIT, pa.uint32()))))


def _chosen(selection: Selection, rows: NDArray[np.int32]) -> NDArray[np.int64]:
    return rows.astype(np.int64) + selection.start if isinstance(selection, slice) else selection[rows]


class _Finder(Joiner):
    """Finds pairs by the main predicate and what says how far away they may be, and gives their rows."""

    def __init__(self, main: MainPredicate, window: Window, members: Members, stream: str, side: int, near: WindowFilter | None) -> None:
        super().__init__(main, window, None, None, [NOTHING], ((stream,), members) if side == LEFT else (members, (stream,)))
        self._members, self._near, self._side = members, near, side

    def pairs(self, asking: Run, held: Run) -> Iterator[tuple[NDArray[np.int32], NDArray[np.int32]]]:
        """Rows of the question, and as many of the held run."""
        for batch in self.join(*((held, asking) if self._side == LEFT else (asking, held))):
            yield batch.column(0).to_numpy(), batch.column(1).to_numpy()

    def admitted(self, pairs: Pairs) -> Pairs:
        if self._near is None or not pairs.count:
            return pairs
        inside = self._near.may_hold(pairs, self._members)
        return pairs.chosen(inside) if len(inside) < pairs.count else pairs

    def batch(self, pairs: Pairs) -> pa.RecordBatch:
        (asking,) = (rows for streams, (_, rows) in pairs.sides.items() if streams == self._members)
        (held,) = (rows for streams, (_, rows) in pairs.sides.items() if streams != self._members)
        return pa.RecordBatch.from_arrays([pa.array(asking.copy()), pa.array(held.copy())], ["asking", "held"])
