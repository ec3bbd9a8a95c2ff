"""One task's part of the steps of an epoch, of one join of three and more streams: it joins its heads, and the partial results that other
tasks send it.

It keeps what it has found until the next step asks for it. Sequences go on side by side, each of them at its own pace: a step takes one
round of the exchange if partial results are shipped to the tuples that they are to meet, or these are brought to them, two if they ask
for them, and three if keys go first (:class:`streamjoin.elastic.meetings.Meeting`). Once all sequences that fetch have found their
results, there are two more rounds: in the first, tasks ask for tuples by reference, from the task that held them when they were found; in
the second, these tuples come. Memory: the partial results of one step, and the results that wait for their tuples.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import Enum, auto
from functools import cache, partial

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyarrow import ipc

from streamjoin.elastic.meetings import Meeting
from streamjoin.elastic.sequences import fetching_from
from streamjoin.epoch.asking import Asking, brought, run_of
from streamjoin.epoch.compiled import Plan
from streamjoin.epoch.matches import Runs
from streamjoin.epoch.reports import TaskReport
from streamjoin.epoch.spec import EpochSpec, Piece
from streamjoin.epoch.steps import Fetched, Sequences, Step, StepWork, reference_to
from streamjoin.kernel.run import CHUNK_BYTES, Run, merge_in_chunks
from streamjoin.scheme.routing import Selection
from streamjoin.scheme.tiling import Area
from streamjoin.state.store import HeldRun, places_of, rows_selected

SENT_BYTES = 32 << 20
"""Partial results go on in pieces made of about so many bytes."""

ROW_BITS, RUN_BITS, TASK_BITS = 31, 18, 14
TASK_SHIFT = ROW_BITS + RUN_BITS
"""A reference is a task, a number of a run there, and a row of it, in the 63 bits of an int64 that is not negative: it ascends by these."""


def first_reference(task: int, run: int) -> int:
    """The reference to the first row of a run. Raises OverflowError where there are more tasks or runs than a reference can tell apart."""
    if task >> TASK_BITS or run >> RUN_BITS:
        limits = f"{1 << TASK_BITS:,} tasks with {1 << RUN_BITS:,} runs"
        raise OverflowError(f"task {task} has run {run}: rows of at most {limits} can be referred to")
    return (task << TASK_SHIFT) | (run << ROW_BITS)


class Phase(Enum):
    """What is sent in a round of a step."""

    PARTIAL = auto()
    """Partial results, whole."""
    HELD = auto()
    """What is held, to partial results everywhere."""
    QUESTION = auto()
    ANSWER = auto()
    CHOSEN = auto()
    """Partial results of which an answer says that they may have partners."""


PHASES = {
    Meeting.SHIP: (Phase.PARTIAL,),
    Meeting.BRING: (Phase.HELD,),
    Meeting.ASK: (Phase.QUESTION, Phase.ANSWER),
    Meeting.KEYS_FIRST: (Phase.QUESTION, Phase.ANSWER, Phase.CHOSEN),
}


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
        ways, self.numbers = sequences.ways(spec.ways), sequences.numbers
        self.join_name, self._write = sequences.join.name, partial(write, sequences.join.name)
        report.admitted[self.join_name] = 0
        self._by_head = sequences.of(ways)
        self._fetching = self.numbers.start
        """What pieces of tuples that are fetched have as a step's number, and those by which they are asked for: the first one's, to which
        nothing is sent."""
        self._finisher = sequences.finisher
        self._streams = sequences.join.graph.streams
        self._schedules = [[(step, phase) for step in of_head[1:] for phase in PHASES[step.meeting]] for of_head in self._by_head]
        """By head, what is sent in each round."""
        self._round, self._fetching_from = 0, fetching_from(ways)
        self._asking = cache(Asking)
        self._staying: dict[int, list[tuple[int, pa.RecordBatch]]] = defaultdict(list)
        """Partial results for areas of this task, by the step that they are for."""
        self._waiting: dict[int, list[Run]] = {}
        """Partial results for which all that is held is brought, by the step that they wait for."""
        self._questions: dict[tuple[int, int], tuple[pa.RecordBatch, dict[int, Selection]]] = {}
        """Partial results that have asked, by step and part, and which of them asked in each area."""
        self._answers: dict[int, list[Piece]] = defaultdict(list)
        """Answers and chosen partial results that are to be sent in the next round, by step."""
        self._referred: list[HeldRun] = []
        """Runs to which there are references, by number."""
        self._numbers: dict[HeldRun, int] = {}
        self._incomplete: list[pa.RecordBatch] = []
        """Results whose tuples have yet to come, by references."""
        self._asked: dict[tuple[int, int], NDArray[np.int64]] = {}
        """By task and stream, to which tuples."""
        self._fetched: list[Piece] = []
        self._steps = {step.number: step for of_head in self._by_head for step in of_head}
        self._found: dict[int, list[pa.RecordBatch]] = defaultdict(list)
        """What each step has found for the next one, by step."""
        self._held: Runs = {}
        self._new: Runs = {}
        self._salt = 0
        self.sent_bytes = 0
        """To other tasks, in the last round."""

    def begin(self, held: Runs, new: Runs) -> None:
        """The first step of each sequence. The runs are those of the epoch, and are used by the later steps too."""
        self._held, self._new = held, new
        for index in self._areas:
            for first, *_ in self._by_head:
                for heads in new.get((index, first.probing), ()):
                    self._join(first, index, heads.run, self._first_reference(heads) if first.refers else 0)

    def outgoing(self) -> Iterator[Piece]:
        """What goes to other tasks in this round."""
        self.sent_bytes = 0
        for piece in self._outgoing():
            if piece.task != self._report.task:
                self.sent_bytes += piece.data.size
            yield piece

    def _outgoing(self) -> Iterator[Piece]:
        for step, phase in self._due():
            if phase is Phase.PARTIAL:
                yield from self._shipped(step)
            elif phase is Phase.HELD:
                self._waiting[step.number] = [Run.of(batch) for batch in self._ready(step, by_units=False)]
                yield from self._brought(step)
            elif phase is Phase.QUESTION:
                yield from self._asked_for(step)
            else:
                yield from self._answers.pop(step.number, ())
        if self._fetching_round == 0:
            yield from self._references()
        elif self._fetching_round == 1:
            yield from self._fetched

    def receive(self, pieces: Iterable[Piece]) -> None:
        """Take what has come to this task in this round, and do what can be done with it."""
        came: dict[int, list[Piece]] = defaultdict(list)
        for piece in pieces:
            came[piece.number].append(piece)
        for step, phase in self._due():
            of_step = came[step.number]
            if phase is Phase.HELD:
                self._join_brought(step, of_step)
            elif phase is Phase.QUESTION:
                self._answers[step.number] = [answer for piece in of_step for answer in self._answered(step, piece)]
            elif phase is Phase.ANSWER:
                self._take_answers(step, of_step)
            else:
                self._join_shipped(step, of_step)
        if self._fetching_round == 0:
            self._fetched = [self._tuples_of(piece) for piece in came[self._fetching]]
        elif self._fetching_round == 1:
            self._complete(came[self._fetching])
        self._round += 1

    def _due(self) -> list[tuple[Step, Phase]]:
        """What each sequence that is not over does in this round."""
        return [schedule[self._round] for schedule in self._schedules if self._round < len(schedule)]

    @property
    def _fetching_round(self) -> int | None:
        """Which of the two rounds this is in which tuples are fetched; None or another number: neither."""
        return None if self._fetching_from is None else self._round - self._fetching_from

    def _join_shipped(self, step: Step, pieces: Iterable[Piece]) -> None:
        parts: dict[int, list[Run]] = defaultdict(list)
        for piece in pieces:
            parts[piece.area].append(Run.of(ipc.read_record_batch(piece.data, self._before(step).schema)))
        for index, batch in self._staying.pop(step.number, ()):
            parts[index].append(Run.of(batch))
        for index, runs in sorted(parts.items()):
            for run in merge_in_chunks(runs, CHUNK_BYTES):
                self._join(step, index, run)

    def _before(self, step: Step) -> Step:
        return self._steps[step.number - 1]

    def _probed(self, step: Step, index: int) -> Iterator[tuple[HeldRun, int]]:
        """The runs of an area that a step probes, each with the reference to its first tuple, if it gives any."""
        if self._areas[index].holds[step.place]:  # else another area does, and finds the pairs
            new = self._new.get((index, step.place), ()) if step.takes_new else ()
            for held in (*self._held.get((index, step.place), ()), *new):
                yield held, self._first_reference(held) if step.refers else 0

    def _join(self, step: Step, index: int, probing: Run, first_reference: int = 0) -> None:
        for held, first in self._probed(step, index):
            self._found_by(step, lambda held=held, first=first: step.join(probing, held.run, (first_reference, first)))  # type: ignore[misc]

    def _found_by(self, step: Step, join: Callable[[], Iterable[pa.RecordBatch]]) -> None:
        """Keep what a step gives."""
        work, seen, met = self._work(step.number), step.joiner.candidates_seen, step.joiner.met
        for batch in join():
            work.found += batch.num_rows
            if step.gives_results:
                self._write(batch)
            elif step.is_last:
                self._incomplete.append(batch)
            else:
                self._found[step.number].append(batch)
        work.met += step.joiner.met - met
        self._report.admitted[self.join_name] += step.joiner.candidates_seen - seen

    def _work(self, number: int) -> StepWork:
        return self._report.steps.setdefault(number, StepWork())

    def _first_reference(self, held: HeldRun) -> int:
        """The reference to the first tuple of a run: those to the others follow."""
        number = self._numbers.get(held)
        if number is None:
            number = self._numbers[held] = len(self._referred)
            self._referred.append(held)
        return first_reference(self._report.task, number)

    def _references(self) -> Iterator[Piece]:
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
                yield Piece(task, self._report.task, number, data, self._fetching)

    def _tuples_of(self, question: Piece) -> Piece:
        """The tuples that a task asks for, whose number is the question's area."""
        stream = self._streams[question.place]
        schema = pa.schema([pa.field(reference_to(stream), pa.int64())])
        references = ipc.read_record_batch(question.data, schema).column(0).to_numpy()
        runs, rows = (references >> ROW_BITS) & ((1 << RUN_BITS) - 1), references & ((1 << ROW_BITS) - 1)
        parts = [self._finisher.tuples(stream, self._referred[run].run.batch, rows[runs == run]) for run in np.unique(runs).tolist()]
        data = (parts[0] if len(parts) == 1 else pa.concat_batches(parts)).serialize()
        self._count(self._last, question.area, data.size, len(references))
        return Piece(question.area, self._report.task, question.place, data, self._fetching)

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
        return self._work(self.numbers[-1])

    def _count(self, work: StepWork, task: int, nbytes: int, tuples: int) -> None:
        """What goes to another task."""
        if task != self._report.task:
            work.sent, work.sent_bytes = work.sent + tuples, work.sent_bytes + nbytes

    def _ready(self, step: Step, *, by_units: bool) -> Iterator[pa.RecordBatch]:
        """What the step before has found, in portions that are ready for this one, and forgotten here."""
        before, portion, nbytes = self._before(step), list[pa.RecordBatch](), 0
        for batch in self._found.pop(before.number, ()):
            portion.append(batch)
            nbytes += batch.nbytes
            if nbytes > SENT_BYTES:
                yield before.ready(portion, self._next_salt() if by_units else None)
                portion, nbytes = [], 0
        if portion:
            yield before.ready(portion, self._next_salt() if by_units else None)

    def _next_salt(self) -> int:
        self._salt += 1
        return (self._spec.epoch << 24) ^ (self._report.task << 12) ^ self._salt

    def _routed(self, step: Step) -> Iterator[tuple[pa.RecordBatch, Iterator[tuple[int, Selection]]]]:
        """Portions of partial results for a step, each with the areas that hold what they are to meet, and which of them go there."""
        routers, areas = self._plan.routers, self._plan.scheme.areas
        for batch in self._ready(step, by_units=routers[step.probing].by_units):
            routes = self._before(step).route(batch, routers)
            yield batch, ((index, selection) for index, selection in routes if areas[index].holds[step.place])

    def _sent(self, step: Step, index: int, batch: pa.RecordBatch) -> Iterator[Piece]:
        """Partial results for an area, unless they stay: it is one of this task."""
        if index in self._areas:
            self._staying[step.number].append((index, batch))
            return
        task, data = self._plan.scheme.areas[index].task, batch.serialize()
        self._count(self._work(step.number - 1), task, data.size, batch.num_rows)
        yield Piece(task, index, step.probing, data, step.number)

    def _shipped(self, step: Step) -> Iterator[Piece]:
        for batch, routes in self._routed(step):
            for index, selection in routes:
                part = rows_selected(batch, selection)
                if part.num_rows:
                    yield from self._sent(step, index, part)

    def _asked_for(self, step: Step) -> Iterator[Piece]:
        """Questions for the partners of what the step before has found, which waits here for the answers."""
        own, areas = self._report.task, self._plan.scheme.areas
        for part, (batch, routes) in enumerate(self._routed(step)):
            by_area = dict(routes)
            self._questions[step.number, part] = batch, by_area
            for index, selection in by_area.items():
                rows = selection.stop - selection.start if isinstance(selection, slice) else len(selection)
                if rows:
                    data = self._asking(step).question(batch, selection)
                    self._count(self._work(step.number - 1), areas[index].task, data.size, rows)
                    yield Piece(areas[index].task, index, step.probing, data, step.number, own, part)

    def _answered(self, step: Step, question: Piece) -> Iterator[Piece]:
        held = [(each.run, first) for each, first in self._probed(step, question.area)]
        asking = self._asking(step)
        if step.meeting is Meeting.KEYS_FIRST:
            matched = asking.matched(question.data, held)
            if matched is not None:
                yield self._answer(step, question, [matched])
            return
        answers, nbytes = list[pa.RecordBatch](), 0
        for batch in asking.answer(question.data, held):
            answers.append(batch)
            nbytes += batch.nbytes
            if nbytes > SENT_BYTES:
                yield self._answer(step, question, answers)
                answers, nbytes = [], 0
        if answers:
            yield self._answer(step, question, answers)

    def _answer(self, step: Step, question: Piece, batches: Sequence[pa.RecordBatch]) -> Piece:
        data = (batches[0] if len(batches) == 1 else pa.concat_batches(batches)).serialize()
        self._count(self._work(step.number - 1), question.sender, data.size, sum(batch.num_rows for batch in batches))
        return Piece(question.sender, question.area, question.place, data, step.number, self._report.task, question.part)

    def _take_answers(self, step: Step, answers: Iterable[Piece]) -> None:
        """The step with the tuples that came; or, where keys went first, the partial results that go on to where these are."""
        asking = self._asking(step)
        for piece in answers:
            batch, by_area = self._questions[step.number, piece.part]
            if step.meeting is Meeting.KEYS_FIRST:
                rows = asking.rows_of(piece.data, by_area[piece.area])
                self._answers[step.number].extend(self._sent(step, piece.area, rows_selected(batch, rows)))
            else:
                self._found_by(step, partial(asking.results, batch, by_area[piece.area], piece.data))
        self._questions = {key: asked for key, asked in self._questions.items() if key[0] != step.number}

    def _brought(self, step: Step) -> Iterator[Piece]:
        """All that this task holds of the next stream as the one that writes it, so that each tuple comes once to each task."""
        for index, area in self._areas.items():
            keys = area.writes[step.place]
            if keys is None:
                continue
            for held, first in self._probed(step, index):
                start, end = places_of(held.run.key, keys)
                if start == end:
                    continue
                data = brought(step, held.run, start, end, first).serialize()
                for task in range(self._plan.scheme.tasks):
                    self._count(self._work(step.number - 1), task, data.size, end - start)
                    yield Piece(task, index, step.place, data, step.number)

    def _join_brought(self, step: Step, pieces: Sequence[Piece]) -> None:
        waiting = self._waiting.pop(step.number)
        if waiting:
            for held in merge_in_chunks([run_of(step, piece.data) for piece in pieces], CHUNK_BYTES):
                for probing in waiting:
                    self._found_by(step, partial(step.join, probing, held))
