"""One task's part of the steps of an epoch: what its heads give, and what partial results that come from other tasks give.

It holds what it has found for the next step until that is asked for; then the steps of all sequences go on together, a round of the
exchange for each. Memory: the partial results of one step.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import pyarrow as pa
from pyarrow import ipc

from streamjoin.epoch.spec import Compiled, EpochSpec, Piece, Plan, TaskReport
from streamjoin.epoch.steps import Step, StepWork
from streamjoin.kernel.run import CHUNK_BYTES, Run, merge_in_chunks
from streamjoin.scheme.tiling import Area
from streamjoin.state.store import HeldRun, rows_selected

SENT_BYTES = 32 << 20
"""Partial results go on in pieces made of about so many bytes."""

Runs = Mapping[tuple[int, int], Sequence[HeldRun]]


class Cascade:
    """See the module. One thread's."""

    def __init__(
        self,
        spec: EpochSpec,
        plan: Plan,
        worker: Compiled,
        areas: Mapping[int, Area],
        report: TaskReport,
        write: Callable[[pa.RecordBatch], None],
    ) -> None:
        """``write`` takes results."""
        assert worker.sequences is not None
        self._spec, self._plan, self._areas, self._report, self._write = spec, plan, areas, report, write
        self._by_head = worker.sequences.of(spec.orders)
        self._steps = [step for of_head in self._by_head for step in of_head]
        self._found: dict[int, list[pa.RecordBatch]] = defaultdict(list)
        """By step, what it has found for the next one."""
        self._held: Runs = {}
        self._new: Runs = {}
        self._salt = 0

    def begin(self, held: Runs, new: Runs) -> None:
        """The first step of each sequence. The runs are those of the epoch, and are used by the later steps too."""
        self._held, self._new = held, new
        for index in self._areas:
            for first, *_ in self._by_head:
                for heads in new.get((index, first.probing), ()):
                    self._join(first, index, heads.run)

    def outgoing(self) -> Iterator[Piece]:
        """What has been found, on its way to where the next steps are done."""
        found, self._found = self._found, defaultdict(list)
        for number, batches in found.items():
            yield from self._sent(self._steps[number], batches)

    def receive(self, pieces: Iterable[Piece]) -> None:
        """The next step with the partial results that came to this task."""
        parts: dict[tuple[int, int], list[Run]] = defaultdict(list)
        for piece in pieces:
            schema = self._steps[piece.number - 1].schema
            parts[piece.number, piece.area].append(Run.of(ipc.read_record_batch(piece.data, schema)))
        for (number, index), runs in sorted(parts.items()):
            for run in merge_in_chunks(runs, CHUNK_BYTES):
                self._join(self._steps[number], index, run)

    def _join(self, step: Step, index: int, probing: Run) -> None:
        if not self._areas[index].holds[step.place]:
            return  # another area does, and finds the pairs
        work = self._report.steps.setdefault(step.number, StepWork())
        new = self._new.get((index, step.place), ()) if step.takes_new else ()
        for held in (*self._held.get((index, step.place), ()), *new):
            for batch in step.join(probing, held.run):
                work.found += batch.num_rows
                if step.is_last:
                    self._write(batch)
                else:
                    self._found[step.number].append(batch)

    def _sent(self, step: Step, batches: Sequence[pa.RecordBatch]) -> Iterator[Piece]:
        portion, nbytes = list[pa.RecordBatch](), 0
        for batch in batches:
            portion.append(batch)
            nbytes += batch.nbytes
            if nbytes > SENT_BYTES:
                yield from self._pieces(step, portion)
                portion, nbytes = [], 0
        if portion:
            yield from self._pieces(step, portion)

    def _pieces(self, step: Step, portion: Sequence[pa.RecordBatch]) -> Iterator[Piece]:
        assert step.next_probing is not None
        self._salt += 1
        salt = (self._spec.epoch << 24) ^ (self._report.task << 12) ^ self._salt
        batch, areas, work = step.ready(portion, salt), self._plan.scheme.areas, self._report.steps[step.number]
        following = self._steps[step.number + 1]
        for index, selection in step.route(batch, self._plan.routers):
            if not areas[index].holds[following.place]:
                continue
            piece = rows_selected(batch, selection)
            if piece.num_rows:
                data = piece.serialize()
                work.sent += piece.num_rows
                work.sent_bytes += data.size
                yield Piece(areas[index].task, index, step.next_probing, data, following.number)
