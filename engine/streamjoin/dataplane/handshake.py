"""A task's part of an epoch in a chain of workers (model ``handshake``): tuples go from neighbour to neighbour, by ESJ's two-phase
forwarding (``streamjoin.chain``), until the chain is at rest. This state is committed.

Phases:

1. open what the last commit left to this worker of the chain, or the epoch in flight, in the order in which it came;
2. gather the new tuples, if this is the end of the chain at which a stream comes in;
3. converse: the chain's state machine says what is sent to neighbours and probed here, one message after another, and a wave along the
   chain finds out when all is done (``chain.quiescence``). Each pair of tuples meets at one worker, most of them epochs after they came.
   Each join finds its own pairs then, and where it matters which tuples have matched, the last message says so (``chain_matches``);
4. give what comes alone of the tuples that have left here; make neighbouring chunks one, write what is not stored yet, stage and report:
   which chunks this worker holds is part of the commit, as blocks change hands without being written again.

Plans add and remove workers at the right end, between two epochs. A new worker holds nothing, and fills by itself. If workers go, the last
one that stays takes the tuples that they held. Their right tuples come to it as from a neighbour; their left tuples have met all of these.

What dies in an epoch fails the attempt; the next one begins from the commit, or from what that staged: so no message is ever lost or seen
twice. Memory: as of other models, and the blocks that are on their way.
"""

from __future__ import annotations

import math
import pickle
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import cast

import pyarrow as pa
from pyarrow import ipc

from streamjoin.chain.messages import Ack, Drop, Effect, Mark, Match, Message, SizeChanged, TupleBlock
from streamjoin.chain.quiescence import AtRest, Signal, Watch, Wave
from streamjoin.chain.worker import Worker
from streamjoin.dataplane.chain_matches import ChainMatches, described
from streamjoin.dataplane.compiled import plan_of
from streamjoin.dataplane.join import TaskPart
from streamjoin.dataplane.opening import left_here
from streamjoin.dataplane.paths import JoinOperator
from streamjoin.dataplane.tiering import go_on_rewriting
from streamjoin.epoch.reports import ChunkHeld, sample_of
from streamjoin.epoch.spec import EpochSpec, Piece
from streamjoin.kernel.expansion import Coverage
from streamjoin.kernel.run import Run
from streamjoin.language.sides import LEFT, RIGHT, SIDES
from streamjoin.scheme.models import HANDSHAKE
from streamjoin.scheme.tiling import Scheme
from streamjoin.state.checkpoint import Checkpoint
from streamjoin.state.chunks import Chunk, Chunks, Tuples, consolidated, in_order, read_chunks
from streamjoin.state.log import Entry
from streamjoin.state.store import Positions, RunStore, TaskRuns

NAMES = {TupleBlock: "tuple_blk", Ack: "ack", SizeChanged: "size_chg", Mark: "mark", Wave: "wave", AtRest: "at_rest"}
"""What messages are counted as."""
CONVERSATION_ROUND = 1
"""Of the exchange."""
LEAST_SHARE = 16
"""A worker's tuples of a stream are in some so many chunks, or more where blocks are smaller."""


@dataclass(frozen=True)
class Told:
    """A signal, and with it which tuples of a stream have matched at those that it has come by."""

    signal: Signal
    matched: Positions


def is_handshake(spec: EpochSpec) -> bool:
    """Whether the epoch's workers stand in a chain."""
    return plan_of(spec.scheme, spec.config).uncut.model == HANDSHAKE


def neighbours_of(spec: EpochSpec, task: int) -> list[int]:
    """The tasks beside one, and that one: those that it hears from and speaks to."""
    return [each for each in (task - 1, task, task + 1) if 0 <= each < plan_of(spec.scheme, spec.config).scheme.tasks]


def converse(links: Sequence[Link]) -> None:
    """Let all tasks of an epoch speak with each other, in one process: each message in its turn."""
    waiting = deque(piece for link in links for piece in link.begin())
    while waiting:
        piece = waiting.popleft()
        waiting.extend(links[piece.task].hear(piece))
    assert all(link.is_over for link in links), "the chain is at rest, and not all of its workers know"


class Link(TaskPart):
    """A task's part of an epoch. One thread's, in the order join, ``begin``, ``hear`` until it ``is_over``, ``finish``; ``abandon`` at any
    time. Raises StorageError, SourceError, and PredecessorMissing where the epoch that it follows has left nothing here."""

    def __init__(self, spec: EpochSpec, task: int, store: RunStore) -> None:
        super().__init__(spec, task, store)
        self._joins = self._worker.joins
        self._streams, self._places = self._joins[0].streams, self._joins[0].places
        """By side; they are the same of all joins."""
        self._tasks = self._plan.scheme.tasks
        assert task < self._tasks, "a chain's epoch has no workers but those of the chain"
        self._keys = _keys(self._places, task, self._tasks)
        self._report.admitted = {join.name: 0 for join in self._joins}
        self._new: list[Tuples] = [Tuples(), Tuples()]
        """By side, what comes in at this end of the chain."""
        neighbours = task > 0, task < self._tasks - 1
        self._matches = ChainMatches(self._joins, [stream for stream in SIDES if not neighbours[1 - stream]])
        self._watch = Watch(neighbours, returns=self._matches.returns)
        self._messages: Counter[str] = Counter()
        self._member: Worker[Tuples, None] = Worker(self._chunks, spec.block_tuples, neighbours, added=True)
        self._held: tuple[Tuples, Tuples] = (Tuples(), Tuples())

    def join(self, pieces: Iterable[Piece]) -> None:
        """Phases 1 and 2."""
        self._held = self._open()
        self._clock.lap("open")
        parts: dict[int, list[Run]] = defaultdict(list)
        for (_, place), runs in self._gathered(pieces).items():
            parts[place] += runs
        for side in SIDES:
            since = self._spec.records_before[self._streams[side]]
            self._new[side] = Tuples(tuple(in_order(parts[self._places[side]], since)))
        self._clock.lap("gather")

    @property
    def is_over(self) -> bool:
        """The chain is at rest: nothing comes to this task any more."""
        return self._watch.over

    def begin(self) -> Iterator[Piece]:
        """Handle what came in at this end, and return the pieces to send before any message comes."""
        yield from self._sent(self._member.resume(self._held))
        for side in SIDES:
            if not self._member.neighbours[side]:
                for message in self._entering(side):
                    yield from self._sent(self._member.handle(message))
        yield from self._signals(self._watch.begin())

    def _entering(self, side: int) -> Iterator[Message[Tuples]]:
        """The stream's mark, by which the other one's tuples expire, and its new tuples."""
        expires = self._places[1 - side]
        bound = self._spec.expired_before[expires]
        if bound is not None:
            yield Mark(side, bound)
        if self._new[side].chunks:
            yield TupleBlock(side, 0, self._new[side])
        if expires in self._spec.ended:
            yield Mark(side, math.inf)

    def hear(self, piece: Piece) -> Iterator[Piece]:
        """The pieces to send in answer to a neighbour's message."""
        heard = self._decoded(piece)
        if isinstance(heard, Told):
            self._matches.hear(heard.matched)
            heard = heard.signal
        if isinstance(heard, Wave | AtRest):
            yield from self._signals(self._watch.handle(heard))
        else:
            self._watch.received += 1
            yield from self._sent(self._member.handle(heard))

    def _finish(self) -> None:
        """Phase 4."""
        self._clock.lap("join")
        for join, side, chunk, rows in self._matches.settle():
            self._write_alone(join, self._places[side], chunk.run.batch, rows)
        for join in self._joins:
            self._writes.finish_results(join.name)
        for join, side, positions in self._matches.new:
            area, place = self._keys[side]
            self._writes.marks_of(described(join, place, area, positions, self._spec.expired_before[place]), positions)
        self._clock.lap("match")
        report, held = self._report, dict[tuple[int, int], tuple[Chunk, ...]]()
        for side, key in enumerate(self._keys):
            chunks = self._member.held[side]
            assert isinstance(chunks, Chunks)
            held[key] = tuple(consolidated(chunks, max(self._spec.block_tuples, len(chunks) // LEAST_SHARE)))
            for chunk in held[key]:
                if not chunk.blocks:
                    chunk.blocks = self._writes.block(key, chunk.run)
                    self._joined.unmapped.append(chunk)
                report.chunks.append(ChunkHeld(*key, chunk.blocks[0], chunk.first, chunk.last, chunk.run.rows))
        self._clock.lap("merge")
        self._stage(held, positions=self._matches.known)
        report.messages = dict(self._messages)
        go_on_rewriting(self._spec, self._task, self._worker.config, self._store, report)

    def _chunks(self, stream: int) -> Chunks:
        """Where the chain's worker keeps tuples of a stream."""
        return Chunks(self._meet if stream == LEFT else lambda held, probing: self._meet(probing, held))

    def _meet(self, left: Chunk, right: Chunk) -> None:
        for join in self._joins:
            coverage = join.joiner.coverage(left.run, right.run)
            if coverage is not Coverage.NONE:
                self._find(join, left, right, times=coverage is Coverage.SOME)

    def _find(self, join: JoinOperator, left: Chunk, right: Chunk, *, times: bool) -> None:
        """``times``: whether the window has to be asked of each pair."""
        schemas = [self._worker.streams[stream].stream.schema for stream in self._streams]
        sides = zip((left, right), join.shape.indexed, schemas, strict=True)
        by_left, by_right = (chunk.by(indexed, schema, times=times) for chunk, indexed, schema in sides)
        seen, before = self._matches.seen(join, (left, right)), join.joiner.candidates_seen
        for results in join.joiner.join(by_left, by_right, seen.observer, pairs_wanted=join.type.gives_pairs):
            self._write(join.name, results)
        seen.close()
        self._report.admitted[join.name] += join.joiner.candidates_seen - before

    def _sent(self, effects: Iterable[Effect[Tuples, None]]) -> Iterator[Piece]:
        for effect in effects:
            assert not isinstance(effect, Match), "what is found is written at once"
            if isinstance(effect, Drop):
                self._matches.drop(effect.stream, effect.tuples.chunks)
            else:
                self._watch.sent += 1
                yield self._piece(effect.side, effect.message)

    def _signals(self, signals: Iterable[tuple[int, Signal]]) -> Iterator[Piece]:
        for side, signal in signals:
            found = self._matches.told(1 - side) if isinstance(signal, AtRest) else {}
            yield self._piece(side, Told(signal, found) if found else signal)

    def _piece(self, side: int, message: Message[Tuples] | Signal | Told) -> Piece:
        data = pa.py_buffer(pickle.dumps(_plain(message), protocol=5))
        name = NAMES[type(message.signal if isinstance(message, Told) else message)]
        self._messages[name] += 1
        self._messages[f"{name}_bytes"] += data.size
        return Piece(self._task + (1 if side == RIGHT else -1), 0, 0, data, round=CONVERSATION_ROUND)

    def _decoded(self, piece: Piece) -> Message[Tuples] | Signal | Told:
        message = pickle.loads(piece.data)  # noqa: S301 - written by a neighbour
        if not isinstance(message, TupleBlock):
            return message  # type: ignore[no-any-return]
        schema = self._worker.held[self._places[message.stream]]
        runs = (Run.of(ipc.read_record_batch(data, schema)) for data, *_ in message.tuples)
        chunks = (Chunk(run, name, first=first, last=last) for run, (_, name, first, last) in zip(runs, message.tuples, strict=True))
        return TupleBlock(message.stream, message.number, Tuples(tuple(chunks)))

    def _open(self) -> tuple[Tuples, Tuples]:
        """What this worker holds, by side."""
        spec, report = self._spec, self._report
        staged = left_here(spec, self._task, self._worker.config.query, self._store, report)
        if staged is not None:
            self._matches.known = staged.positions
            return self._staged(staged.runs, self._task, self._tasks)
        if spec.base is None:
            return Tuples(), Tuples()
        last = Entry.decode(self._worker.config.storage.get(spec.base)).checkpoint
        self._matches.read(self._worker.config.storage, last.state.marks, self._places)
        held = self._taken_over(last)
        if report.read_back:
            report.read_back_bytes = sum(chunk.nbytes for tuples in held for chunk in tuples.chunks)
            report.held_sample = [
                sample_of(place, chunk.run.batch, chunk.run.time_max)
                for place, tuples in zip(self._places, held, strict=True)
                for chunk in tuples.chunks
            ]
        return held

    def _taken_over(self, last: Checkpoint) -> tuple[Tuples, Tuples]:
        """What a worker of the commit's chain held, or several: the last one's are those of all that go."""
        before = Scheme.from_json(last.plan.scheme).tasks
        end = before if self._task == self._tasks - 1 else self._task + 1
        lefts, rights = Tuples(), Tuples()
        for task in range(self._task, min(end, before)):
            more_lefts, more_rights = self._of_task(last, task, before)
            # All left tuples here are to the left of these right ones still: they have yet to meet.
            for left in lefts.chunks:
                for right in more_rights.chunks:
                    self._meet(left, right)
            lefts, rights = Tuples(more_lefts.chunks + lefts.chunks), Tuples(rights.chunks + more_rights.chunks)
        return lefts, rights

    def _of_task(self, last: Checkpoint, task: int, tasks: int) -> tuple[Tuples, Tuples]:
        spec, report, worker = self._spec, self._report, self._worker
        token = None if spec.handover is None else spec.handover.tokens.get(task)
        staged = None if token is None else self._store.get(worker.config.query, token)
        if staged is not None:
            held = self._staged(staged.runs, task, tasks)
            report.kept_tuples += sum(map(len, held))
            return held
        read = partial(read_chunks, worker.config.storage)
        lefts, rights = (
            read([block for block in last.state.blocks if (block.area, block.place) == key], worker.held[key[1]])
            for key in _keys(self._places, task, tasks)
        )
        report.moved_tuples += (len(lefts) + len(rights)) * (spec.handover is not None)
        return lefts, rights

    def _staged(self, runs: TaskRuns, task: int, tasks: int) -> tuple[Tuples, Tuples]:
        lefts, rights = (Tuples(cast(tuple[Chunk, ...], runs[key])) for key in _keys(self._places, task, tasks))
        return lefts, rights


def _keys(places: Sequence[int], task: int, tasks: int) -> tuple[tuple[int, int], tuple[int, int]]:
    """By side, area and place of what a task of a chain of so many holds (``scheme.biclique.broadcast``)."""
    left, right = places
    return (task, left), (tasks + task, right)


def _plain(message: Message[Tuples] | Signal | Told) -> object:
    """As it is pickled: tuples as the bytes of record batches."""
    if not isinstance(message, TupleBlock):
        return message
    chunks = tuple((chunk.run.batch.serialize(), chunk.blocks, chunk.first, chunk.last) for chunk in message.tuples.chunks)
    return TupleBlock(message.stream, message.number, chunks)
