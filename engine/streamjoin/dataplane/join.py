"""The second task function: join an epoch's new tuples of one task with each other and with what the task holds.

Phases:

1. open the runs that the last commit left to this task, reading them back if this process lacks them, or those that the epoch in flight
   has just staged here; drop the expired (``opening``);
2. gather the new tuples: one sorted run per area and side, or several where they are large; begin to write those that this area stores;
3. join: the delta of each stream walks its path through what is held and what came of the others (``delta_join``). Every result has a
   newest member, so each is found exactly once; and each pair of coordinates belongs to exactly one area. With three and more streams tasks
   send each other partial results, in rounds of the exchange;
4. where it matters which tuples have matched, hear of it from other areas, and give what comes alone (``matches``); merge runs in tiers,
   rewriting their blocks (``tiering``); stage the runs under this attempt's token, for the next epoch to go on from;
5. wait for what is being written, results and blocks, and report (``joined``). Meanwhile the next epoch may be joined here.

A crash or a failure at any line leaves blocks and staged output under names that no commit will mention; the driver sweeps them. What is
small is written nowhere: it goes to the driver with the report, and into the commit.
Memory: the new tuples, the held runs (mapped once they are written, so that the system may evict them), and one chunk of output.
"""

from __future__ import annotations

import pickle
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Iterable, Iterator
from functools import partial
from itertools import chain
from typing import Self

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyarrow import ipc

from streamjoin.dataplane.compiled import compiled, plan_of
from streamjoin.dataplane.delta_join import DeltaJoin, Observer
from streamjoin.dataplane.joined import Joined, Steps
from streamjoin.dataplane.matches import NOTICES_ROUND, Matches, Rows
from streamjoin.dataplane.opening import fetch_upcoming, open_runs, unexpired
from streamjoin.dataplane.paths import JoinOperator
from streamjoin.dataplane.tiering import go_on_rewriting, in_tiers
from streamjoin.dataplane.writes import Writes
from streamjoin.elastic.completeness import GROUPS
from streamjoin.elastic.path_plans import rounds_of
from streamjoin.epoch.reports import AreaWork, RoundWork, TaskReport
from streamjoin.epoch.spec import REPORT, UNMATCHABLE, EpochSpec, Piece, attempt_name, final_name
from streamjoin.kernel import faults
from streamjoin.kernel.joiner import Indices, Matched
from streamjoin.kernel.run import CHUNK_BYTES, UNIT, Run, merge_in_chunks
from streamjoin.language.join_type import JoinType
from streamjoin.language.sides import LEFT, SIDES
from streamjoin.state.store import (
    HeldRun,
    JoinMarks,
    Positions,
    PredecessorMissing,
    RunStore,
    TaskRuns,
    holds,
)

SAMPLED_PAIRS = 4096
"""The number of pairs of a chunk that are counted by groups."""


def rounds_among_tasks(spec: EpochSpec) -> int:
    """The number of rounds in which tasks send each other pieces, after the pieces of the splits. Of joins of three and more streams they
    send partial results, and what these ask for (``elastic.path_plans.rounds_of``). Of two, there is one round if a tuple whose matches
    count can be in several areas, and none otherwise. All joins take theirs together. O(areas)."""
    worker = compiled(spec.config)
    areas = plan_of(spec.scheme, spec.config).scheme.areas
    notices = any(area.writes[place] != area.keys[place] for area in areas for place in worker.tracked)
    return max(NOTICES_ROUND * notices, *(rounds_of(join.path_plans(spec.path_plans)) for join in worker.joins))


class TaskPart(ABC):
    """A task's part of an epoch: what is the same whether its tuples lie by their keys and units, or along a chain."""

    def __init__(self, spec: EpochSpec, task: int, store: RunStore) -> None:
        self._spec, self._task, self._store = spec, task, store
        self._worker, self._plan = compiled(spec.config), plan_of(spec.scheme, spec.config)
        self._areas = self._plan.areas.get(task, {})
        self._clock = Steps()
        self._report = TaskReport(task, attempt_name(spec, task))
        self._writes = Writes(spec, self._worker.config, self._areas, self._report, final_name(spec, task), store.writing)
        self._joined = Joined(self._report, self._writes, self._clock)

    @classmethod
    def begun(cls, spec: EpochSpec, task: int, pieces: Iterable[Piece], store: RunStore) -> Self:
        """One whose pieces have been joined, or gathered. Safe to call again, here or elsewhere."""
        part = cls(spec, task, store)
        try:
            part.join(pieces)
        except BaseException:
            part.abandon()
            raise
        return part

    @abstractmethod
    def join(self, pieces: Iterable[Piece]) -> None:
        """Take the task's new tuples."""

    def finish(self) -> Joined:
        """Do all that is left to do, except for writes that are still going on. Raises StorageError."""
        try:
            self._finish()
        except BaseException:
            self.abandon()
            raise
        self._report.faults = faults.taken()
        return self._joined

    def abandon(self) -> None:
        self._joined.abandon()

    @abstractmethod
    def _finish(self) -> None: ...

    def _gathered(self, pieces: Iterable[Piece]) -> dict[tuple[int, int], list[Run]]:
        """The new tuples, by area and place. Those that can match nothing come alone at once."""
        parts: dict[tuple[int, int], list[Run]] = defaultdict(list)
        for piece in pieces:
            if piece.area == REPORT:
                self._report.routes.append(pickle.loads(piece.data))  # noqa: S301 - written by the route tasks
            elif piece.area == UNMATCHABLE:
                stream = self._worker.streams[self._worker.places[piece.place].stream]
                for join in self._worker.joins:
                    if join.type.gives_unmatched and piece.place in join.tracked:
                        self._write_alone(join, piece.place, ipc.read_record_batch(piece.data, stream.payload))
            else:
                parts[piece.area, piece.place].append(Run.of(ipc.read_record_batch(piece.data, self._worker.held[piece.place])))
        return parts

    def _write(self, join: str, results: pa.RecordBatch, area: int | None = None) -> None:
        """``area``: that found them, where one did."""
        if area is not None:
            outputs = self._report.areas[area].outputs
            outputs[join] = outputs.get(join, 0) + results.num_rows
        self._report.outputs[join] = self._report.outputs.get(join, 0) + results.num_rows
        self._writes.results(join, results)

    def _write_alone(self, join: JoinOperator, place: int, batch: pa.RecordBatch, rows: NDArray[np.int64] | None = None) -> None:
        """What these rows of tuples of a place, or all, give by themselves."""
        for results in join.alone(place, batch, rows):
            self._write(join.name, results)

    def _stage(self, held: TaskRuns, marks: JoinMarks | None = None, positions: Positions | None = None) -> None:
        """Leave these to the next epoch, and report how much they are."""
        report, places = self._report, range(len(self._worker.places))
        self._store.stage(self._worker.config.query, self._task, self._spec.epoch, report.token, held, marks, positions)
        report.held = tuple(_rows(held, place) for place in places)
        report.held_bytes = tuple(_nbytes(held, place) for place in places)


class Part(TaskPart):
    """One whose tuples lie by their keys and units. One thread's, in the order join, ``work``, ``close`` of round 0, then for each further
    round ``take`` of its pieces and ``close``, and ``finish``; ``abandon`` at any time. What these give is to be sent; they go on as it is
    asked for. A piece of a later round may be taken before, while others go on."""

    def __init__(self, spec: EpochSpec, task: int, store: RunStore) -> None:
        super().__init__(spec, task, store)
        self._runs: TaskRuns = {}
        """The runs that the epoch before has left, without those that have expired."""
        self._fresh: dict[tuple[int, int], tuple[HeldRun, ...]] = {}
        """What came in this epoch."""
        self._matches: dict[str, Matches] = {}
        """By join, of those that track a side."""
        self._notices: list[Piece] = []
        self._deltas: dict[str, DeltaJoin] = {}
        """By join."""
        self._sent_bytes = 0
        """To other tasks, for the next round."""

    def join(self, pieces: Iterable[Piece]) -> None:
        """Phases 1 and 2."""
        spec, report, areas, config = self._spec, self._report, self._areas, self._worker.config
        try:
            runs, marks = open_runs(spec, self._task, config, areas, self._store, report)
        except PredecessorMissing:
            report.predecessor_missing = True
            for _ in pieces:  # a worker that leaves input unread is not used again
                pass
            return
        for each in self._worker.joins:
            if each.type.tracked:
                before = marks.get(each.name, {})
                matches = self._matches[each.name] = Matches(spec, self._plan, areas, each, config.window, before)
                if each.type.gives_unmatched:
                    self._write_passed(each, matches.passed(runs, fresh=False))
        self._clock.lap("open")
        self._runs = {key: unexpired(held, spec.expired_before[key[1]], report) for key, held in runs.items()}
        new = {key: merge_in_chunks(runs, CHUNK_BYTES) for key, runs in self._gathered(pieces).items()}
        self._clock.lap("gather")
        self._drop_indexes()
        self._fresh = {key: tuple(HeldRun(run, self._writes.block(key, run)) for run in chunks) for key, chunks in new.items()}
        report.areas = {index: AreaWork(area.holds) for index, area in areas.items()}
        for each in self._worker.joins:
            marks_of = self._matches.get(each.name)
            self._deltas[each.name] = DeltaJoin(
                *(spec, self._plan, each, areas, self._runs, self._fresh, report),
                partial(self._write, each.name),
                self._observer(each),
                None if marks_of is None else marks_of.notices_of,
            )

    def work(self) -> Iterator[Piece]:
        """Phase 3, as far as nothing is needed of other tasks."""
        if self._report.predecessor_missing:
            return
        for each in self._worker.joins:
            yield from self._deltas[each.name].work()
            if not each.type.tracked and not each.numbers:
                self._writes.finish_results(each.name)  # beside the other joins
        self._clock.lap("join")

    def take(self, piece: Piece) -> Iterator[Piece]:
        """Do what can be done with a piece of another task, or of this one."""
        if self._report.predecessor_missing:
            return
        join = next((join for join in self._worker.joins if piece.number in join.numbers), None)
        if join is None:
            self._notices.append(piece)
        else:
            yield from self._deltas[join.name].take(piece)

    def close(self, number: int, seconds: float | None = None) -> Iterator[Piece]:
        """All of a round has come: let go on what waits for no more. ``seconds``: how long its exchange took; None: that is not known."""
        if self._report.predecessor_missing:
            return
        if number:
            self._report.rounds.append(RoundWork(self._sent_bytes, seconds))
            self._sent_bytes = 0
            self._clock.lap("join" if seconds is None else "wait")
        for delta in self._deltas.values():
            for piece in delta.close(number):
                self._sent_bytes += piece.data.size * (piece.task != self._task)
                yield piece
        if number == NOTICES_ROUND - 1:
            for matches in self._matches.values():
                for runs in (self._runs, self._fresh):
                    yield from matches.notices(runs)
        self._clock.lap("join")

    def _drop_indexes(self) -> None:
        """Those of joins whose windows have passed a run, which a wider one still holds."""
        spec, wider = self._spec, self._worker.config.window
        found_by = [
            (place, bound, indexed)
            for join in self._worker.joins
            if not join.numbers
            for place, bound, indexed in zip(join.places, join.expired(wider, spec.expired_before), join.shape.indexed, strict=True)
        ]
        for (_, place), of_place in self._runs.items():
            for held in of_place:
                latest = held.run.time_max
                needed = {
                    indexed for at, bound, indexed in found_by if at == place and (bound is None or latest is None or latest >= bound)
                }
                for indexed in held.indexes.keys() - needed:
                    del held.indexes[indexed]

    def _observer(self, join: JoinOperator) -> Observer | None:
        """Who wants to know of the join's pairs."""
        matches = self._matches.get(join.name)
        if join.numbers:
            return None  # pairs of it are no results
        if matches is not None:
            return matches.marker
        return partial(self._counter, join.name) if self._spec.counts_groups else None

    def _counter(self, join: str, left: HeldRun, right: HeldRun) -> Matched:
        """Counts pairs of these two runs by their tuples' groups."""
        counts = self._report.groups.setdefault(join, np.zeros((len(SIDES), GROUPS)))
        units = [held.run.batch.column(UNIT).to_numpy() for held in (left, right)]

        def count(*pairs: Indices) -> None:
            # Of many pairs one in so many, evenly: pairs of one tuple lie together.
            every = -(-len(pairs[LEFT]) // SAMPLED_PAIRS)
            for side, rows in enumerate(pairs):
                counts[side] += every * np.bincount(units[side][rows[::every]] % GROUPS, minlength=GROUPS)

        return count

    def _finish(self) -> None:
        """Phases 4 and 5."""
        if self._report.predecessor_missing:
            return
        spec, report, config, areas, matches = self._spec, self._report, self._worker.config, self._areas, self._matches
        if matches:
            self._settle_matches(self._notices)
            self._clock.lap("match")
        for each in self._worker.joins:
            self._deltas[each.name].finish()
            if each.type.tracked or each.numbers:
                self._writes.finish_results(each.name)
        tiered = {key: in_tiers(key, self._runs[key], spec, self._worker, self._writes, matches) for key in self._runs}
        kept_fresh = {key: chunks for key, chunks in self._fresh.items() if holds(areas[key[0]], key[1]) and key[1] not in spec.ended}
        self._joined.unmapped = list(chain.from_iterable((*(merged for _, merged in tiered.values()), *kept_fresh.values())))
        held = {key: (*kept, *merged, *kept_fresh.get(key, ())) for key, (kept, merged) in tiered.items()}
        for index, work in report.areas.items():
            work.held = tuple(sum(run.run.rows for run in held.get((index, place), ())) for place in range(len(self._worker.places)))
        marks = {name: of_join.after(held) for name, of_join in matches.items()}
        self._clock.lap("merge")
        self._stage(held, marks)
        fetch_upcoming(spec, self._task, config, areas, self._store, report)
        go_on_rewriting(spec, self._task, config, self._store, report)

    def _settle_matches(self, notices: Iterable[Piece]) -> None:
        told: dict[int, list[Piece]] = defaultdict(list)
        for notice in notices:
            told[notice.number].append(notice)
        runs = {key: (*self._runs.get(key, ()), *self._fresh.get(key, ())) for key in {*self._runs, *self._fresh}}
        for join in self._worker.joins:
            matches = self._matches.get(join.name)
            if matches is None:
                continue
            matches.take(told[join.number], runs)
            is_last = join.places[LEFT] in self._spec.ended
            if join.type is JoinType.SEMI or not is_last:
                for key, parts in matches.first_matched(runs):
                    if not is_last:
                        self._writes.marks(key, join.tag, parts)
                    if join.type is JoinType.SEMI:
                        self._write_passed(join, ((key[1], part) for part in parts))
            if join.type.gives_unmatched:
                self._write_passed(join, matches.passed(self._fresh, fresh=True))

    def _write_passed(self, join: JoinOperator, tuples: Iterable[tuple[int, Rows]]) -> None:
        """``tuples``: by place."""
        for place, (run, rows) in tuples:
            self._write_alone(join, place, run.batch, rows)


def _rows(runs: TaskRuns, place: int) -> int:
    return sum(held.run.rows for key, of_place in runs.items() if key[1] == place for held in of_place)


def _nbytes(runs: TaskRuns, place: int) -> int:
    return sum(held.nbytes for key, of_place in runs.items() if key[1] == place for held in of_place)
