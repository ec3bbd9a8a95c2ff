"""One task's part of the steps of an epoch, of one join of three and more streams: it joins its heads, and the partial results that other
tasks send it.

It keeps what it has found until the next step asks for it. The steps of all sequences go on together, each in a round of the exchange.
Sequences that fetch have two more rounds: in the first, tasks ask for tuples by reference, from the task that held them when they were
found; in the second, these tuples come. Memory: the partial results of one step, and the results that wait for their tuples.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyarrow import ipc

from streamjoin.elastic.sequences import Ways
from streamjoin.epoch.compiled import Plan
from streamjoin.epoch.matches import Runs
from streamjoin.epoch.reports import TaskReport
from streamjoin.epoch.spec import EpochSpec, Piece
from streamjoin.epoch.steps import Fetched, Sequences, Step, StepWork, reference_to
from streamjoin.kernel.run import CHUNK_BYTES, Run, merge_in_chunks
from streamjoin.scheme.tiling import Area
from streamjoin.state.store import HeldRun, rows_selected

SENT_BYTES = 32 << 20
"""Partial results go on in pieces made of about so many bytes."""

FETCHING_ROUNDS = 2
ROW_BITS, RUN_BITS = 31, 20
TASK_SHIFT = ROW_BITS + RUN_BITS
"""A reference is a task, a number of a run there, and a row of it: it ascends by these."""


def rounds_of(ways: Ways) -> int:
    """How many rounds of the exchange there are after the first: one for each step but the first, and two where tuples are fetched."""
    return len(ways) - 2 + FETCHING_ROUNDS * any(way.fetches for way in ways)


class Cascade:
    """See the module. One thread's."""

    def __init__(
        self,
        spec: EpochSpec,
        plan: Plan,
        sequences: Sequences,
        areas: Mapping[int, Area],
        report: TaskReport,
        write: Callable[[str, pa.RecordBatch], None],
    ) -> None:
        """``sequences``: of the join. ``write`` takes results of the join of this name."""
        self._spec, self._plan, self._areas, self._report = spec, plan, areas, report
        self._ways, self.numbers = sequences.ways(spec.ways), sequences.numbers
        self.join_name, self._write = sequences.join.name, partial(write, sequences.join.name)
        report.admitted[self.join_name] = 0
        self._by_head = sequences.of(self._ways)
        self._finisher = sequences.finisher
        self._streams = sequences.join.graph.streams
        self._rounds_left = rounds_of(self._ways)
        self._referred: list[HeldRun] = []
        """Runs to which there are references, by number."""
        self._numbers: dict[HeldRun, int] = {}
        self._incomplete: list[pa.RecordBatch] = []
        """Results whose tuples have yet to come, by references."""
        self._asked: dict[tuple[int, int], NDArray[np.int64]] = {}
        """By task and stream, to which tuples."""
        self._answers: list[Piece] = []
        self._steps = {step.number: step for of_head in self._by_head for step in of_head}
        self._found: dict[int, list[pa.RecordBatch]] = defaultdict(list)
        """What each step has found for the next one, by step."""
        self._held: Runs = {}
        self._new: Runs = {}
        self._salt = 0

    def begin(self, held: Runs, new: Runs) -> None:
        """The first step of each sequence. The runs are those of the epoch, and are used by the later steps too."""
        self._held, self._new = held, new
        for index in self._areas:
            for first, *_ in self._by_head:
                for heads in new.get((index, first.probing), ()):
                    self._join(first, index, heads.run, self._first_reference(heads) if first.refers else 0)

    def outgoing(self) -> Iterator[Piece]:
        """What has been found, on its way to where the next steps are done; after these, what is asked for, and then what was; and nothing
        in the rounds that other joins have beyond that."""
        if self._fetching_rounds == 1:
            yield from self._answers
        elif self._fetching_rounds == 2:
            yield from self._questions()
        elif self._rounds_left > 0:
            found, self._found = self._found, defaultdict(list)
            for number, batches in found.items():
                yield from self._sent(self._steps[number], batches)

    @property
    def _fetching_rounds(self) -> int:
        """How many of the two rounds are left in which tuples are fetched; 0: this round is another."""
        return self._rounds_left if self._rounds_left <= FETCHING_ROUNDS and any(way.fetches for way in self._ways) else 0

    def receive(self, pieces: Iterable[Piece]) -> None:
        """The next step with the partial results that came to this task; or questions, or answers."""
        if self._fetching_rounds == 1:
            self._complete(list(pieces))
        elif self._fetching_rounds == 2:
            self._answers = [self._answer(piece) for piece in pieces]
        else:
            self._go_on(pieces)
        self._rounds_left -= 1

    def _go_on(self, pieces: Iterable[Piece]) -> None:
        parts: dict[tuple[int, int], list[Run]] = defaultdict(list)
        for piece in pieces:
            schema = self._steps[piece.number - 1].schema
            parts[piece.number, piece.area].append(Run.of(ipc.read_record_batch(piece.data, schema)))
        for (number, index), runs in sorted(parts.items()):
            for run in merge_in_chunks(runs, CHUNK_BYTES):
                self._join(self._steps[number], index, run)

    def _join(self, step: Step, index: int, probing: Run, first_reference: int = 0) -> None:
        if not self._areas[index].holds[step.place]:
            return  # another area does, and finds the pairs
        work = self._report.steps.setdefault(step.number, StepWork())
        new = self._new.get((index, step.place), ()) if step.takes_new else ()
        seen = step.joiner.candidates_seen
        for held in (*self._held.get((index, step.place), ()), *new):
            first = (first_reference, self._first_reference(held)) if step.refers else (0, 0)
            for batch in step.join(probing, held.run, first):
                work.found += batch.num_rows
                if step.gives_results:
                    self._write(batch)
                elif step.is_last:
                    self._incomplete.append(batch)
                else:
                    self._found[step.number].append(batch)
        self._report.admitted[self.join_name] += step.joiner.candidates_seen - seen

    def _first_reference(self, held: HeldRun) -> int:
        """The reference to the first tuple of a run: those to the others follow."""
        number = self._numbers.get(held)
        if number is None:
            number = self._numbers[held] = len(self._referred)
            self._referred.append(held)
        return (self._report.task << TASK_SHIFT) | (number << ROW_BITS)

    def _questions(self) -> Iterator[Piece]:
        """For the tuples of results that wait for them, each once, from the task that has them."""
        for number, stream in enumerate(self._streams):
            column = reference_to(stream)
            found = [batch.column(column).to_numpy() for batch in self._incomplete if column in batch.schema.names]
            if not found:
                continue
            references = np.unique(np.concatenate(found))
            tasks = references >> TASK_SHIFT
            for task in np.unique(tasks).tolist():
                asked = self._asked[task, number] = references[tasks == task]
                data = pa.RecordBatch.from_pydict({column: asked}).serialize()
                self._count(self._last, task, data.size, len(asked))
                yield Piece(task, self._report.task, number, data, self.numbers.start)

    def _answer(self, question: Piece) -> Piece:
        """The tuples that a task asks for, whose number is the question's area."""
        stream = self._streams[question.place]
        schema = pa.schema([pa.field(reference_to(stream), pa.int64())])
        references = ipc.read_record_batch(question.data, schema).column(0).to_numpy()
        runs, rows = (references >> ROW_BITS) & ((1 << RUN_BITS) - 1), references & ((1 << ROW_BITS) - 1)
        parts = [self._finisher.tuples(stream, self._referred[run].run.batch, rows[runs == run]) for run in np.unique(runs).tolist()]
        data = (parts[0] if len(parts) == 1 else pa.concat_batches(parts)).serialize()
        self._count(self._last, question.area, data.size, len(references))
        return Piece(question.area, self._report.task, question.place, data, self.numbers.start)

    def _complete(self, answers: Sequence[Piece]) -> None:
        """Write the results whose tuples have come."""
        by_stream: dict[str, list[tuple[int, Piece]]] = defaultdict(list)
        for piece in answers:
            by_stream[self._streams[piece.place]].append((piece.area, piece))
        fetched = {}
        for stream, parts in by_stream.items():
            parts.sort(key=lambda part: part[0])  # as references ascend by task
            batches = [ipc.read_record_batch(piece.data, self._finisher.schemas[stream]) for _, piece in parts]
            references = np.concatenate([self._asked[task, piece.place] for task, piece in parts])
            fetched[stream] = Fetched(references, pa.concat_batches(batches))
        for batch in self._incomplete:
            results = self._finisher.results(batch, fetched)
            if results.num_rows:
                self._write(results)
        self._incomplete = []

    @property
    def _last(self) -> StepWork:
        """With what the last step has sent, what is fetched counts, as it is the price of that."""
        return self._report.steps.setdefault(self.numbers[-1], StepWork())

    def _count(self, work: StepWork, task: int, nbytes: int, tuples: int) -> None:
        """What goes to another task."""
        if task != self._report.task:
            work.sent, work.sent_bytes = work.sent + tuples, work.sent_bytes + nbytes

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
        by_units = self._plan.routers[step.next_probing].by_units
        batch, areas, work = step.ready(portion, salt if by_units else None), self._plan.scheme.areas, self._report.steps[step.number]
        following = self._steps[step.number + 1]
        for index, selection in step.route(batch, self._plan.routers):
            if not areas[index].holds[following.place]:
                continue
            piece = rows_selected(batch, selection)
            if piece.num_rows:
                data = piece.serialize()
                self._count(work, areas[index].task, data.size, piece.num_rows)
                yield Piece(areas[index].task, index, step.next_probing, data, following.number)
