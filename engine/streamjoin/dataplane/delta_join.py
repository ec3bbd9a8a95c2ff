"""One task's part of a join in an epoch: it walks the paths of its deltas, and of the partial results that other tasks send it.

Partial results are handed on in portions of about ``SENT_BYTES``. A portion for an area of this task meets the next stream at once, before
more of it is made (depth first); one for another task is sent. So what is in memory is a portion for each stage, however many partial
results there are. What has to wait (for answers, for tuples that are asked for by reference) waits on mapped pages.

What is sent belongs to a *round* of the exchange: tasks end a round by a mark, once nothing more of it can come of them. In round 0 new
tuples come. A path's stages take one round each if partial results go to the tuples that they are to meet (repartition), two if they
ask for these (lookup), and three if it is asked first which of them have partners (semi-join). Tuples that are broadcast are all sent in
round 1, and paths that need them begin after it. Once all paths that fetch have found their results, there are two more rounds: in the
first, tasks ask for tuples by reference, from the task that held them when they were found; in the second, these tuples come.

Always holds: what comes of a round may be taken in any order, and before the rounds before it are over.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import Enum, auto
from functools import cache

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyarrow import ipc

from streamjoin.dataplane.compiled import Plan
from streamjoin.dataplane.lookup import Lookup, brought, run_of
from streamjoin.dataplane.matches import Runs
from streamjoin.dataplane.paths import Fetched, JoinOperator, Path
from streamjoin.dataplane.stages import Stage, reference_to
from streamjoin.elastic.distribution import Distribution
from streamjoin.elastic.path_plans import BROADCAST_ROUND, fetching_from
from streamjoin.epoch.reports import StageWork, TaskReport
from streamjoin.epoch.spec import EpochSpec, Piece
from streamjoin.kernel.expansion import Coverage
from streamjoin.kernel.joiner import Matched
from streamjoin.kernel.run import CHUNK_BYTES, Run, merge_in_chunks, take
from streamjoin.language.sides import LEFT
from streamjoin.scheme.routing import Selection
from streamjoin.scheme.tiling import Area
from streamjoin.state.store import HeldRun, places_of, rows_selected, settle

SENT_BYTES = 8 << 20
"""Partial results go on in portions made of about so many bytes."""

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
    """What is sent in a round for a stage."""

    PARTIAL = auto()
    """Partial results, whole."""
    HELD = auto()
    """What is held, to partial results everywhere."""
    QUESTION = auto()
    ANSWER = auto()
    CHOSEN = auto()
    """Partial results of which an answer says that they may have partners."""


PHASES = {
    Distribution.REPARTITION: (Phase.PARTIAL,),
    Distribution.BROADCAST: (Phase.HELD,),
    Distribution.LOOKUP: (Phase.QUESTION, Phase.ANSWER),
    Distribution.SEMI_JOIN: (Phase.QUESTION, Phase.ANSWER, Phase.CHOSEN),
}

Write = Callable[[pa.RecordBatch, int | None], None]
"""Takes results, and the area that found them where that had all of their tuples: those of two streams."""

Observer = Callable[[HeldRun, HeldRun], Matched | None]
"""Gives the function to call with the pairs of these two runs that match, by side, where anybody wants to know."""

Notice = Callable[[pa.RecordBatch, int], Iterator[Piece]]
"""Makes notices, for a round, of held tuples that have partners."""

MERGED_AT_ONCE = 64
"""Lists of references."""


class _Portion:
    """What a stage has found, or what has come for it, until it goes on."""

    def __init__(self) -> None:
        self.batches: list[pa.RecordBatch] = []
        self.nbytes = 0

    def add(self, batch: pa.RecordBatch) -> bool:
        """Whether it is a portion now."""
        self.batches.append(batch)
        self.nbytes += batch.nbytes
        return self.nbytes > SENT_BYTES

    def taken(self) -> list[pa.RecordBatch]:
        """All of it, which is forgotten here."""
        batches, self.batches, self.nbytes = self.batches, [], 0
        return batches


class DeltaJoin:
    """See the module. One thread's: ``work``, then ``close`` for each round, after whose end at the latest each piece of it was ``take``n.
    All three give the pieces that are to be sent, and go on as these are asked for; others may begin meanwhile."""

    def __init__(
        self,
        spec: EpochSpec,
        plan: Plan,
        join: JoinOperator,
        areas: Mapping[int, Area],
        held: Runs,
        new: Runs,
        report: TaskReport,
        write: Write,
        observer: Observer | None = None,
        notice: Notice | None = None,
    ) -> None:
        """``held`` and ``new``: the runs of the epoch, of the task's areas. ``notice``: where it is asked which tuples have partners."""
        self._spec, self._plan, self._join, self._areas, self._report = spec, plan, join, areas, report
        self._held, self._new = held, new
        self._write, self._observer, self._notice = write, observer, notice
        marks = join.shape.marks
        self._marked = None if marks is None else reference_to(join.shape.streams[marks])
        """The column of references to the tuples of which that is asked."""
        self._paths = join.paths(spec.path_plans)
        self._stages = {stage.number: stage for path in self._paths for stage in path.stages}
        self._after = {path.stages[at].number: stage for path in self._paths for at, stage in enumerate(path.stages[1:])}
        """By a stage's number, the one that comes after it."""
        self._fetching_from = fetching_from(join.path_plans(spec.path_plans))
        self._fetching = join.numbers.start
        """What pieces of tuples that are fetched have as a stage's number, and those by which they are asked for: the first one's, to which
        nothing is sent."""
        self._lookup = cache(Lookup)
        self._found: dict[int, _Portion] = defaultdict(_Portion)
        """What a stage has found for the next one, by its number."""
        self._came: dict[tuple[int, int], _Portion] = defaultdict(_Portion)
        """Partial results that came for a stage, by its number and the area."""
        self._brought: dict[int, list[Run]] = defaultdict(list)
        """What is held of a stage's stream everywhere, by its number."""
        self._questions: dict[tuple[int, int], tuple[pa.RecordBatch, dict[int, Selection]]] = {}
        """Partial results that have asked, by stage and part, and which of them asked in each area."""
        self._referred: list[HeldRun] = []
        """Runs to which there are references, by number."""
        self._numbers: dict[HeldRun, int] = {}
        self._incomplete: list[pa.RecordBatch] = []
        """Results whose tuples have yet to come, by references."""
        self._asked: dict[tuple[int, int], NDArray[np.int64]] = {}
        """By task and stream, to which tuples."""
        self._fetched: list[Piece] = []
        self._matched: list[NDArray[np.int64]] = []
        """References to tuples that have partners in all other streams, where that is what is asked."""
        self._salt = 0

    def work(self) -> Iterator[Piece]:
        """Walk the paths that can begin."""
        for path in self._paths:
            for stage in path.stages:
                if stage.distribution is Distribution.BROADCAST:
                    yield from self._bring(stage)
        yield from self._begin(0)

    def take(self, piece: Piece) -> Iterator[Piece]:
        """Do what can be done with a piece that came."""
        if piece.number == self._fetching:
            assert self._fetching_from is not None
            if piece.round == self._fetching_from + 1:
                yield from [self._tuples_of(piece)] if self._marked is None else self._notices_of(piece)
            else:
                self._fetched.append(piece)
            return
        stage = self._stages[piece.number]
        match PHASES[stage.distribution][piece.round - stage.first_round]:
            case Phase.HELD:
                self._brought[stage.number].append(run_of(stage, piece.data))
            case Phase.QUESTION:
                yield from self._answered(stage, piece)
            case Phase.ANSWER:
                yield from self._take_answer(stage, piece)
            case Phase.PARTIAL | Phase.CHOSEN:
                schema = self._stages[stage.number - 1].schema
                if self._came[stage.number, piece.area].add(ipc.read_record_batch(piece.data, schema)):
                    yield from self._join_came(stage, piece.area)

    def close(self, number: int) -> Iterator[Piece]:
        """All of this round has come: let go on what waits for no more."""
        if number == BROADCAST_ROUND:
            self._brought = defaultdict(list, {stage: merge_in_chunks(runs, CHUNK_BYTES) for stage, runs in self._brought.items()})
            yield from self._begin(number)
        for path in self._paths:
            for stage in path.stages:
                if stage.fed_after == number:
                    for _, area in sorted(key for key in self._came if key[0] == stage.number):
                        yield from self._join_came(stage, area)
                    yield from self._hand_on(stage)
                if number == stage.first_round + 1:
                    self._questions = {key: asked for key, asked in self._questions.items() if key[0] != stage.number}
        if number == self._fetching_from:
            yield from self._references()
        elif self._fetching_from is not None and number == self._fetching_from + 2:
            self._complete(self._fetched)

    def finish(self) -> None:
        """All rounds are over: report."""
        done = self._report.stages
        self._report.admitted[self._join.name] = sum(work.admitted for number, work in done.items() if number in self._stages)

    def _begin(self, number: int) -> Iterator[Piece]:
        """Walk the paths that begin after this round."""
        for path in self._paths:
            if path.begins == number:
                for index in self._areas:
                    yield from self._delta(path, index)

    def _delta(self, path: Path, index: int) -> Iterator[Piece]:
        """The new tuples of an area meet what it has of the second stream."""
        stage = path.stages[0]
        by_delta, by_held = stage.indexed
        of_delta, of_held = stage.schemas
        for delta in self._new.get((index, stage.probing), ()):
            reference = self._first_reference(delta) if stage.refers else 0
            for held, first in self._probed(stage, index):
                sides = (held, delta) if stage.side == LEFT else (delta, held)
                coverage = stage.joiner.coverage(*(each.run for each in sides))
                if coverage is Coverage.NONE:
                    continue  # so no index is made that nothing would be found by
                times = coverage is Coverage.SOME
                found = stage.join(
                    delta.by(by_delta, of_delta, times=times),
                    held.by(by_held, of_held, times=times),
                    self._work(stage.number),
                    (reference, first),
                    None if self._observer is None else self._observer(*sides),
                    pairs_wanted=self._join.type.gives_pairs or not stage.gives_results,
                )
                yield from self._keep(stage, found, index)

    def _probed(self, stage: Stage, index: int) -> Iterator[tuple[HeldRun, int]]:
        """The runs of an area that a stage probes, each with the reference to its first tuple, if it gives any."""
        if self._areas[index].holds[stage.place]:  # else another area does, and finds the pairs
            new = self._new.get((index, stage.place), ()) if stage.takes_new else ()
            for held in (*self._held.get((index, stage.place), ()), *new):
                yield held, self._first_reference(held) if stage.refers else 0

    def _keep(self, stage: Stage, found: Iterable[pa.RecordBatch], area: int | None = None) -> Iterator[Piece]:
        """Keep what a stage gives, until it is a portion. ``area``: that found it, of a delta."""
        work = self._work(stage.number)
        for batch in found:
            work.found += batch.num_rows
            if stage.gives_results:
                self._write(batch, area)
            elif stage.is_last and self._marked is not None:
                self._matched.append(np.unique(batch.column(self._marked).to_numpy()))
                if len(self._matched) > MERGED_AT_ONCE:
                    self._matched = [np.unique(np.concatenate(self._matched))]
            elif stage.is_last:
                self._incomplete.append(settle(batch))
            elif self._found[stage.number].add(batch):
                yield from self._hand_on(stage)

    def _hand_on(self, before: Stage) -> Iterator[Piece]:
        """What a stage has found meets the next stream, or goes to where that is."""
        found = self._found[before.number].taken()
        if not found:
            return
        stage = self._after[before.number]
        if stage.distribution is Distribution.BROADCAST:
            probing = Run.of(before.ready(found, None))
            for held in self._brought[stage.number]:
                yield from self._keep(stage, stage.join(probing, held, self._work(stage.number)))
            return
        routers, areas = self._plan.routers, self._plan.scheme.areas
        batch = before.ready(found, self._next_salt() if routers[stage.probing].by_units else None)
        routes = ((index, rows) for index, rows in before.route(batch, routers) if areas[index].holds[stage.place])
        if stage.distribution is Distribution.REPARTITION:
            for index, rows in routes:
                yield from self._ship(stage, index, rows_selected(batch, rows), stage.first_round)
        else:
            yield from self._ask(stage, batch, dict(routes))

    def _ship(self, stage: Stage, index: int, batch: pa.RecordBatch, number: int) -> Iterator[Piece]:
        """Partial results to an area, in this round, unless it is one of this task: there they meet what it has."""
        if not batch.num_rows:
            return
        if index in self._areas:
            yield from self._meet(stage, index, Run.of(batch))
            return
        task, data = self._plan.scheme.areas[index].task, batch.serialize()
        self._count(self._work(stage.number - 1), task, data.size, batch.num_rows)
        yield Piece(task, index, stage.probing, data, stage.number, round=number)

    def _meet(self, stage: Stage, index: int, probing: Run) -> Iterator[Piece]:
        for held, first in self._probed(stage, index):
            yield from self._keep(stage, stage.join(probing, held.run, self._work(stage.number), (0, first)))

    def _join_came(self, stage: Stage, index: int) -> Iterator[Piece]:
        runs = [Run.of(batch) for batch in self._came.pop((stage.number, index)).taken()]
        for run in merge_in_chunks(runs, CHUNK_BYTES):
            yield from self._meet(stage, index, run)

    def _ask(self, stage: Stage, batch: pa.RecordBatch, by_area: dict[int, Selection]) -> Iterator[Piece]:
        """Questions for the partners of partial results, which wait here for the answers."""
        part = self._salt = self._salt + 1
        batch = settle(batch)
        self._questions[stage.number, part] = batch, by_area
        for index, selection in by_area.items():
            rows = selection.stop - selection.start if isinstance(selection, slice) else len(selection)
            if rows:
                task, data = self._plan.scheme.areas[index].task, self._lookup(stage).question(batch, selection)
                self._count(self._work(stage.number - 1), task, data.size, rows)
                yield Piece(task, index, stage.probing, data, stage.number, self._report.task, part, round=stage.first_round)

    def _answered(self, stage: Stage, question: Piece) -> Iterator[Piece]:
        held = [(each.run, first) for each, first in self._probed(stage, question.area)]
        asking = self._lookup(stage)
        if stage.distribution is Distribution.SEMI_JOIN:
            matched = asking.matched(question.data, held)
            if matched is not None:
                yield self._answer(stage, question, [matched])
            return
        portion = _Portion()
        for batch in asking.answer(question.data, held):
            if portion.add(batch):
                yield self._answer(stage, question, portion.taken())
        if portion.batches:
            yield self._answer(stage, question, portion.taken())

    def _answer(self, stage: Stage, question: Piece, batches: Sequence[pa.RecordBatch]) -> Piece:
        data = (batches[0] if len(batches) == 1 else pa.concat_batches(batches)).serialize()
        self._count(self._work(stage.number - 1), question.sender, data.size, sum(batch.num_rows for batch in batches))
        own = self._report.task
        return Piece(question.sender, question.area, question.place, data, stage.number, own, question.part, round=question.round + 1)

    def _take_answer(self, stage: Stage, answer: Piece) -> Iterator[Piece]:
        """The stage with the tuples that came; or, where keys went first, the partial results that go on to where these are."""
        asking, (batch, by_area) = self._lookup(stage), self._questions[stage.number, answer.part]
        selection = by_area[answer.area]
        if stage.distribution is Distribution.SEMI_JOIN:
            rows = asking.rows_of(answer.data, selection)
            yield from self._ship(stage, answer.area, rows_selected(batch, rows), answer.round + 1)
        else:
            yield from self._keep(stage, asking.results(batch, selection, answer.data, self._work(stage.number)))

    def _bring(self, stage: Stage) -> Iterator[Piece]:
        """All that this task holds of the stage's stream as the one that writes it, so that each tuple comes once to each task."""
        for index, area in self._areas.items():
            keys = area.writes[stage.place]
            if keys is None:
                continue
            for held, first in self._probed(stage, index):
                start, end = places_of(held.run.key, keys)
                if start == end:
                    continue
                data = brought(stage, held.run, start, end, first).serialize()
                for task in range(self._plan.scheme.tasks):
                    self._count(self._work(stage.number - 1), task, data.size, end - start)
                    yield Piece(task, index, stage.place, data, stage.number, round=BROADCAST_ROUND)

    def _references(self) -> Iterator[Piece]:
        """For the tuples of results that wait for them, each once, from the task that has them."""
        assert self._fetching_from is not None
        for number, stream in enumerate(self._join.shape.streams):
            column = reference_to(stream)
            found = [np.unique(batch.column(column).to_numpy()) for batch in self._incomplete if column in batch.schema.names]
            if column == self._marked:
                found, self._matched = self._matched, []
            if not found:
                continue
            references = np.unique(np.concatenate(found))
            tasks = references >> TASK_SHIFT
            for task in np.unique(tasks).tolist():
                asked = self._asked[task, number] = references[tasks == task]
                data = pa.RecordBatch.from_pydict({column: asked}).serialize()
                self._count(self._last, task, data.size, len(asked))
                yield Piece(task, self._report.task, number, data, self._fetching, round=self._fetching_from + 1)

    def _referred_by(self, question: Piece) -> Iterator[tuple[pa.RecordBatch, NDArray[np.int64]]]:
        """The rows that a piece refers to, by the batch that has them."""
        column = reference_to(self._join.shape.streams[question.place])
        references = ipc.read_record_batch(question.data, pa.schema([pa.field(column, pa.int64())])).column(0).to_numpy()
        runs, rows = (references >> ROW_BITS) & ((1 << RUN_BITS) - 1), references & ((1 << ROW_BITS) - 1)
        for run in np.unique(runs).tolist():
            yield self._referred[run].run.batch, rows[runs == run]

    def _notices_of(self, question: Piece) -> Iterator[Piece]:
        """To their owners, that these tuples have partners in all other streams."""
        assert self._notice is not None
        for batch, rows in self._referred_by(question):
            yield from self._notice(take(batch, pa.array(rows)), question.round + 1)

    def _tuples_of(self, question: Piece) -> Piece:
        """The tuples that a task asks for, whose number is the question's area."""
        stream = self._join.shape.streams[question.place]
        parts = [self._join.finisher.tuples(stream, batch, rows) for batch, rows in self._referred_by(question)]
        data = (parts[0] if len(parts) == 1 else pa.concat_batches(parts)).serialize()
        self._count(self._last, question.area, data.size, sum(part.num_rows for part in parts))
        return Piece(question.area, self._report.task, question.place, data, self._fetching, round=question.round + 1)

    def _complete(self, answers: Sequence[Piece]) -> None:
        """Write the results whose tuples have come."""
        streams, finisher = self._join.shape.streams, self._join.finisher
        by_stream: dict[str, list[tuple[int, Piece]]] = defaultdict(list)
        for piece in answers:
            by_stream[streams[piece.place]].append((piece.area, piece))
        fetched = {}
        for stream, parts in by_stream.items():
            parts.sort(key=lambda part: part[0])  # as references ascend by task
            batches = [ipc.read_record_batch(piece.data, finisher.schemas[stream]) for _, piece in parts]
            references = np.concatenate([self._asked[task, piece.place] for task, piece in parts])
            fetched[stream] = Fetched(references, pa.concat_batches(batches))
        for batch in self._incomplete:
            for results in finisher.results(batch, fetched):
                if results.num_rows:
                    self._write(results, None)
        self._incomplete = []

    def _first_reference(self, held: HeldRun) -> int:
        """The reference to the first tuple of a run: those to the others follow."""
        number = self._numbers.get(held)
        if number is None:
            number = self._numbers[held] = len(self._referred)
            self._referred.append(held)
        return first_reference(self._report.task, number)

    @property
    def _last(self) -> StageWork:
        """With what the last stage has sent, what is fetched counts, as it is the price of that."""
        return self._work(self._join.numbers[-1])

    def _work(self, number: int) -> StageWork:
        return self._report.stages.setdefault(number, StageWork())

    def _count(self, work: StageWork, task: int, nbytes: int, tuples: int) -> None:
        """What goes to another task."""
        if task != self._report.task:
            work.sent, work.sent_bytes = work.sent + tuples, work.sent_bytes + nbytes

    def _next_salt(self) -> int:
        self._salt += 1
        return (self._spec.epoch << 24) ^ (self._report.task << 12) ^ self._salt
