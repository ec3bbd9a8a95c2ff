"""Messages between the driver and the tasks of an epoch: the spec that tasks get, and the reports that they return. Everything here
pickles.

Always holds: what a task function returns follows from the spec and its input, except for the token that names its attempt. What does not
change from epoch to epoch travels as bytes that were pickled once, and is unpickled once a process.
"""

from __future__ import annotations

import pickle
import uuid
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from streamjoin.elastic.sequences import Ways
from streamjoin.epoch.pulse import LEAST_SECONDS
from streamjoin.epoch.steps import ManyJoin, Sequences, StepWork, before
from streamjoin.io.arrivals import Arrivals
from streamjoin.io.base import Reader, Split, Staged
from streamjoin.io.deadletter import DeadLetters
from streamjoin.io.several import Sinks, tags
from streamjoin.kernel.expression import Evaluator
from streamjoin.kernel.index import Indexed
from streamjoin.kernel.joiner import Joiner
from streamjoin.kernel.keys import key_type, scattered
from streamjoin.kernel.types import arrow_schema
from streamjoin.language.graph import JoinGraph
from streamjoin.language.join_type import JoinType
from streamjoin.language.layout import Layout
from streamjoin.language.predicate import KeyExpression, Predicate
from streamjoin.language.schema import Schema
from streamjoin.language.sides import LEFT, SIDES
from streamjoin.language.sql import Expression, parse_boolean
from streamjoin.language.window import Ends, Window
from streamjoin.results.parts import Form, StagedPart
from streamjoin.scheme.models import HANDSHAKE
from streamjoin.scheme.places import by_place
from streamjoin.scheme.routing import EntryRouter, Router, Routing
from streamjoin.scheme.tiling import Area, Scheme
from streamjoin.state.blocks import Block
from streamjoin.state.storage import Storage


@dataclass(frozen=True)
class Stream:
    """The part of a :class:`streamjoin.job.StreamJob` that tasks need, so that they need not load the manifest's models."""

    name: str
    schema: Schema
    payload: tuple[str, ...]
    where: Expression | None
    event_time: str | None
    punctuation: tuple[Expression, Expression] | None = None
    """Which records are punctuations, and their identifiers."""


@dataclass(frozen=True)
class Join:
    """The part of a :class:`streamjoin.job.JoinJob` that tasks need."""

    name: str
    type: JoinType
    streams: tuple[int, ...]
    """Which it is over."""
    window: Window
    where: Expression | None
    output: tuple[tuple[str, Expression], ...]
    predicate: Predicate | None
    """How it finds its pairs; None: of three and more streams, by the layout's graph."""
    has_index: bool
    """Whether by an index of its own (``Layout.indexes``)."""


@dataclass(frozen=True)
class Config:
    """The part of all specs that stays the same while a driver runs."""

    query: str
    """Unique to the driver: the key of its runs in the workers."""
    streams: tuple[Stream, ...]
    joins: tuple[Join, ...]
    layout: Layout
    """What tuples are cut, sent and sorted by, for all joins."""
    window: Window
    """The widest."""
    storage: Storage
    sink: Sinks
    dead_letters: DeadLetters
    readers: tuple[Reader, ...]
    snapshots: dict[str, Form] = field(default_factory=dict)
    """The forms of snapshots, by the name of each join whose results are kept in snapshots, too."""


@dataclass(frozen=True)
class Shared:
    """A pickled object and its identity, so that a process unpickles it once."""

    identity: str
    data: bytes


@dataclass(frozen=True)
class Upcoming:
    """A plan that is about to replace this epoch's: workers fetch what they will need under it."""

    scheme: Shared
    tasks: dict[int, int]
    """Workers that go on: task number in this epoch -> task number under the new plan."""
    base: str
    """The log entry with the blocks to fetch from."""


@dataclass(frozen=True)
class Handover:
    """The plan before this epoch's, in the first epoch of a plan: what a process holds under it need not be read."""

    scheme: Shared
    tokens: dict[int, str]
    """The tokens of its tasks, as ``EpochSpec.tokens``."""


@dataclass(frozen=True)
class Rewrite:
    """Blocks of plans gone by of which one is to be made, in the background; see ``compaction``."""

    name: str
    """The name of this rewrite, with which the name of the block that it makes begins."""
    task: int
    """The task whose worker does it."""
    place: int
    blocks: tuple[Block, ...]
    of_marks: bool = False


@dataclass(frozen=True)
class Rewritten:
    """A rewrite that is ready."""

    name: str
    block: Block | None
    """None: all its tuples have expired."""
    data: bytes = b""
    """Its content, if it is small."""


@dataclass(frozen=True)
class EpochSpec:
    """One epoch's work."""

    identity: str
    """The identity of the checkpoint."""
    epoch: int
    incarnation: int
    config: Shared
    scheme: Shared
    generation: int
    splits: tuple[tuple[int, Split], ...]
    """(stream, split)."""
    late_before: Ends
    """By stream. Event times below the stream's watermark are late; None: nothing is."""
    latest: Ends
    """The latest event time that each stream takes; what is later goes to the dead letters. None: any is taken."""
    expired_before: Ends
    """By place. Held tuples with a smaller ``_time`` can match nothing in this epoch or later."""
    released_before: Ends
    """``expired_before`` of the epoch before: tuples that it has let go have come, where they come alone."""
    records_before: tuple[int, ...]
    """By stream."""
    records_after: tuple[int, ...]
    shed: tuple[float, ...]
    """By task: the fraction of the tuples that it would hold that it must not be sent. Empty: nothing is shed."""
    tokens: dict[int, str]
    """By task: the attempt whose runs the last commit made true. Empty when this epoch ``follows`` another."""
    base: str | None
    """The log entry with the blocks to read back from; None in a checkpoint's first epoch, and when this epoch ``follows`` another."""
    ways: Ways
    """With three and more streams, for each: the order in which its new tuples meet the others, and how. Empty with two."""
    record_bytes: int
    """A larger record goes to the dead letters."""
    split_bytes: int | None
    """A split whose records come to more ends the attempt with :class:`SplitTooLarge`; None: they may come to anything."""
    upcoming: Upcoming | None = None
    rewrite: Rewrite | None = None
    """Under way, or to be begun."""
    handover: Handover | None = None
    ended: frozenset[int] = frozenset()
    """The places where nothing can match what is held any more, as the input has ended."""
    small_bytes: int = 0
    """Blocks of a task that come to no more than this together, and results that do, go with its report rather than into files."""
    follows: int | None = None
    """The epoch before, when it is still in flight: a task goes on from the runs that its last attempt staged in the same process, or
    fails. It reports which attempt that was, and the driver commits only what follows from what it has committed."""
    would_shed: tuple[float, ...] = ()
    """As ``shed``, if shedding is only recommended: such tuples are counted, and sent all the same."""
    block_tuples: int = 1
    """In a chain (``handshake``): the number of tuples that its workers send on at once."""
    counts_groups: bool = False
    """Whether tasks count results by random groups of tuples, for how sure the estimate of what is lost is."""
    deadline_seconds: float = LEAST_SECONDS
    """An attempt of which nothing moves for so long is given up."""

    def with_shared(self, change: Callable[[Shared], Shared]) -> EpochSpec:
        """The same with everything that is shared changed: to leave out what a process has already, and to put it back there."""
        upcoming, handover = self.upcoming, self.handover
        return replace(
            self,
            config=change(self.config),
            scheme=change(self.scheme),
            upcoming=None if upcoming is None else replace(upcoming, scheme=change(upcoming.scheme)),
            handover=None if handover is None else replace(handover, scheme=change(handover.scheme)),
        )


@dataclass(frozen=True)
class TooLarge:
    """A split that was planned with more records than fit."""

    stream: int
    first_record: int
    """These two say which."""
    records: int
    """As planned."""
    record_bytes: float
    """On average, of those that were read."""


class SplitTooLarge(RuntimeError):  # noqa: N818
    """Reading a split was given up because its records are too large for their number: fewer of them are to be planned."""

    def __init__(self, message: str, split: TooLarge) -> None:
        super().__init__(message, split)
        self.split = split

    def __str__(self) -> str:
        return str(self.args[0])


@dataclass(frozen=True)
class Sample:
    """Some keys of one place, ascending; each stands for ``weight`` tuples, none newer than ``time_max`` (as ``_time``)."""

    place: int
    keys: np.ndarray
    weight: float
    time_max: int | None


@dataclass
class RouteReport:
    """The report of routing one split. Counts are of records or tuples."""

    stream: int
    input: int = 0
    rejected: int = 0
    filtered: int = 0
    ahead: int = 0
    """Those of ``rejected`` whose event time is too far ahead of the clock."""
    oversized: int = 0
    """Those of ``rejected`` that are too large."""
    late: int = 0
    unmatchable: int = 0
    """Null or NaN in a key: such a tuple can match nothing and is not held."""
    shed: int = 0
    would_shed: int = 0
    """Those of ``accepted`` that would have been shed."""
    accepted: int = 0
    routed: int = 0
    """Tuples sent, replicas and places counted each."""
    input_bytes: int = 0
    """Bytes in memory of the records that parsed and are not too large."""
    kept: dict[tuple[int, int], int] = field(default_factory=dict)
    """By area and place, the tuples sent; and in ``came``, where any may be shed, with those that were shed."""
    came: dict[tuple[int, int], int] = field(default_factory=dict)
    routed_bytes: int = 0
    dead_letter_bytes: int = 0
    time_max: int | None = None
    """The newest event time, of late and filtered records too, but not of those that are too far ahead."""
    time_min: int | None = None
    """The oldest event time of tuples that are neither late nor filtered, nor too far ahead."""
    partition: int | None = None
    """The split's."""
    dead_letters: list[Staged] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)
    """Samples of the accepted tuples."""
    seconds: float = 0.0
    storage_retries: int = 0
    source_errors: int = 0
    """Errors of the source's servers that reading got over."""
    arrivals: Arrivals | None = None
    """When the records came, where the reader knows that."""
    punctuations: list[str] = field(default_factory=list)
    """The identifiers of punctuations, in order; punctuations count among ``filtered``."""


class ChunkHeld(NamedTuple):
    """A chunk of tuples that a worker of a chain holds."""

    area: int
    place: int
    block: str
    """The name of the block that they are in; all of it that is within these positions."""
    first: int
    last: int
    rows: int


@dataclass
class AreaWork:
    """How much an area holds, and how much it found."""

    holds: tuple[bool, ...]
    """By place, as the area's."""
    held: tuple[int, ...] = ()
    """Tuples by place."""
    outputs: dict[str, int] = field(default_factory=dict)
    """Results, by join."""


@dataclass
class TaskReport:
    """What one join task did. Its blocks and outputs exist for others only once a commit names them."""

    task: int
    token: str
    opened: str | None = None
    """The attempt that it went on from; None: it read its runs back, or there were none."""
    predecessor_missing: bool = False
    """The task did nothing, because the epoch that it follows has left no runs here. This is no exception, which would end Spark's
    Python worker, and the runs of earlier epochs with it."""
    held: tuple[int, ...] = (0, 0)
    """Tuples by place, and in ``held_bytes`` the bytes of their runs, mapped or not."""
    held_bytes: tuple[int, ...] = (0, 0)
    outputs: dict[str, int] = field(default_factory=dict)
    """Results, by join."""
    admitted: dict[str, int] = field(default_factory=dict)
    """Pairs that its main predicate has admitted, by join."""
    areas: dict[int, AreaWork] = field(default_factory=dict)
    """With two streams, except in a chain: what the task's areas hold and did."""
    groups: dict[str, np.ndarray] = field(default_factory=dict)
    """About how many results are of each random group of a side's tuples, by join; float64[side, group]."""
    blocks: list[Block] = field(default_factory=list)
    small_blocks: dict[str, bytes] = field(default_factory=dict)
    """The content of those of them that are not files, by name."""
    steps: dict[int, StepWork] = field(default_factory=dict)
    """With three and more streams: the work by the number of the step (``epoch.steps``)."""
    marks: list[Block] = field(default_factory=list)
    """Which of the tuples that the task stores have matched for the first time, of the tracked sides (``epoch.matches``)."""
    chunks: list[ChunkHeld] = field(default_factory=list)
    """In a chain: everything that the worker holds, oldest first."""
    messages: dict[str, int] = field(default_factory=dict)
    """In a chain: the number of messages that the worker has sent, and their bytes, by kind."""
    rewritten: Rewritten | None = None
    """The spec's rewrite, once it is ready. The driver may have taken it over from the report before."""
    rewrite_error: str | None = None
    """Why it failed; it is begun again."""
    replaced: list[str] = field(default_factory=list)
    """Blocks whose tuples are in new blocks of this report, or have expired."""
    staged: list[Staged] = field(default_factory=list)
    snapshot_parts: dict[str, list[StagedPart]] = field(default_factory=dict)
    """By join, its results as parts of a snapshot."""
    routes: list[RouteReport] = field(default_factory=list)
    read_back: bool = False
    """The worker did not have the task's runs."""
    read_back_bytes: int = 0
    kept_tuples: int = 0
    """In a plan's first epoch: held tuples that were in the process under the plan before. ``moved_tuples``: those that were not."""
    moved_tuples: int = 0
    to_fetch_bytes: int = 0
    """What is still to come of the blocks that this worker needs under the upcoming plan."""
    held_sample: list[Sample] = field(default_factory=list)
    """A sample of the tuples that were read back and that this task stores."""
    storage_retries: int = 0
    """Requests to object stores that had to be repeated."""
    seconds: dict[str, float] = field(default_factory=dict)
    """By step."""

    @property
    def output(self) -> int:
        """Results of all joins."""
        return sum(self.outputs.values())

    @property
    def candidates(self) -> int:
        """Pairs that their main predicates have admitted."""
        return sum(self.admitted.values())


REPORT, UNMATCHABLE = -1, -2
"""What a piece has instead of an area: a pickled RouteReport; tuples that belong to none, because they can match nothing."""


@dataclass(frozen=True)
class Piece:
    """What one worker sends to another for a task: tuples of one area and place, or what ``area`` says instead."""

    task: int
    area: int
    place: int
    """Of a split's report, the stream."""
    data: pa.Buffer
    number: int = 0
    """Of a notice: by which join tuples have matched; of partial results: which step is next."""


class Compiled:
    """A Config made ready for work in one process."""

    def __init__(self, config: Config) -> None:
        self.config = config
        graph, places = config.layout.graph, config.layout.places
        self.places = places
        self.joins = () if graph is not None else tuple(CompiledJoin(number, join, config) for number, join in enumerate(config.joins))
        """Of two streams."""
        self.sequences = None if graph is None else Sequences(_many(config, graph))
        """Of three and more."""
        self.tracked = tuple(sorted({place for join in self.joins for place in join.tracked}))
        """The places that any join tracks."""
        self.streams = tuple(
            Taken(
                stream,
                config.window,
                tuple(place for place, held in enumerate(places) if held.stream == number),
                [join.type for join in config.joins if number in (join.streams[side] for side in join.type.tracked)],
            )
            for number, stream in enumerate(config.streams)
        )
        self.held = tuple(
            held_schema(
                config.streams[place.stream],
                config.window,
                place.key,
                is_tracked=self.streams[place.stream].is_tracked,
                others=[each.name for number, each in enumerate(config.streams) if number != place.stream],
            )
            for place in places
        )
        """By place, the columns of held tuples."""


def _many(config: Config, graph: JoinGraph) -> ManyJoin:
    (join,) = config.joins
    return ManyJoin(graph, tuple(stream.schema for stream in config.streams), join.window, join.where, join.output)


class CompiledJoin:
    """One join made ready."""

    def __init__(self, number: int, join: Join, config: Config) -> None:
        """``number``: its place among the joins."""
        self.number, self.name, self.type, self.window, self.streams = number, join.name, join.type, join.window, join.streams
        self.places = config.layout.places_of(number)
        """Where it finds its pairs, by side."""
        self.tracked = tuple(self.places[side] for side in join.type.tracked)
        """The places whose tuples are known to have matched or not."""
        self.tag = tags(each.name for each in config.joins)[join.name]
        """What marks blocks are known by as this join's."""
        assert join.predicate is not None
        main, residual = join.predicate.main, join.predicate.residual
        left, right = (config.streams[stream] for stream in join.streams)
        schemas = {left.name: left.schema, right.name: right.schema}
        types = {(stream.name, field.name): field.type for stream in config.streams for field in arrow_schema(stream.schema)}
        self.joiner = Joiner(
            main,
            join.window,
            parse_boolean(residual, schemas) if residual else None,
            join.where,
            join.output,
            (left.name, right.name),
            types=types if join.type.gives_unmatched else {},
        )
        slide = join.window.slide_micros
        slides = None if slide in (0, config.window.slide_micros) else slide
        self.indexed = tuple(Indexed(main.key(side) if join.has_index else None, slides) for side in SIDES)
        """By side, what it finds pairs by."""

    def expired(self, wider: Window, bounds: Ends) -> Ends:
        """By side, the ``_time`` below which its own window has passed tuples; ``bounds``: by place, of a wider one."""
        left, right = self.places
        return self.window.expired_within(wider, (bounds[left], bounds[right]))


class Taken:
    """One stream made ready."""

    def __init__(self, stream: Stream, window: Window, places: tuple[int, ...], tracked_for: Sequence[JoinType]) -> None:
        """``places``: where its tuples are held. ``tracked_for``: the types of the joins that track the stream."""
        self.stream, self.window, self.places = stream, window, places
        self.is_tracked = bool(tracked_for)
        self.gives_unmatched = any(kind.gives_unmatched for kind in tracked_for)
        self.payload = arrow_schema(stream.schema.select(stream.payload))
        self.where = Evaluator(stream.where) if stream.where else None
        self.punctuation = None if stream.punctuation is None else tuple(map(Evaluator, stream.punctuation))


ID = "_id"
"""A column of the tracked sides: the tuple's number in its stream, by which workers speak of it."""


def held_schema(
    stream: Stream, window: Window, key: KeyExpression | None, *, is_tracked: bool = False, others: Sequence[str] = ()
) -> pa.Schema:
    """The columns of a stream's held tuples, as the kernel wants them. ``others``: the names of the other streams."""
    fields = [pa.field("_key", key_type(key)), pa.field("_unit", pa.uint32())]
    if window.has_time:
        fields.append(pa.field("_time", pa.int64()))
    if window.has_aux:
        fields.append(pa.field("_aux", pa.int64()))
    if window.counts_others:
        fields += [pa.field(before(name), pa.int64()) for name in others]
    if is_tracked:
        fields.append(pa.field(ID, pa.int64()))
    return pa.schema(fields + list(arrow_schema(stream.schema.select(stream.payload))))


class Plan:
    """A scheme made ready, by places: its routers, and which areas each task owns."""

    def __init__(self, scheme: Scheme, layout: Layout) -> None:
        self.uncut = scheme
        """As it was planned, by sides."""
        self.scheme = by_place(scheme, layout.places, layout.main)
        self.routers: tuple[Routing, ...]
        if scheme.model == HANDSHAKE:
            self.routers = tuple(EntryRouter(0 if place.side == LEFT else len(scheme.areas) - 1) for place in layout.places)
        else:
            self.routers = tuple(Router(self.scheme, place) for place in range(len(layout.places)))

    @cached_property
    def areas(self) -> dict[int, dict[int, Area]]:
        owned: dict[int, dict[int, Area]] = {}
        for index, area in enumerate(self.scheme.areas):
            owned.setdefault(area.task, {})[index] = area
        return owned


SAMPLE_KEYS = 512
"""Keys that routing samples of each split, for the statistics that plans are made from."""

_cache: OrderedDict[str, Compiled | Plan] = OrderedDict()
CACHED = 64


def share(identity: str, value: Config | Scheme) -> Shared:
    return Shared(identity, pickle.dumps(value))


def compiled(shared: Shared) -> Compiled:
    """The Compiled of a shared Config, made once a process."""
    found = _cached(shared, Compiled)
    assert isinstance(found, Compiled)
    return found


def plan_of(shared: Shared, config: Shared) -> Plan:
    """The Plan of a shared Scheme, made once a process. ``config``: of the driver whose scheme it is."""
    found = _cached(shared, lambda scheme: Plan(scheme, compiled(config).config.layout))
    assert isinstance(found, Plan)
    return found


def _cached(shared: Shared, made_ready: Callable[[Any], Compiled | Plan]) -> Compiled | Plan:
    found = _cache.get(shared.identity)
    if found is None:
        value = pickle.loads(shared.data)  # noqa: S301 - written by this program's driver
        found = _cache[shared.identity] = made_ready(value)
        while len(_cache) > CACHED:
            _cache.popitem(last=False)
    return found


def sample_of(place: int, batch: pa.RecordBatch, time_max: int | None) -> Sample:
    """An even sample of a batch sorted by key. O(SAMPLE_KEYS)."""
    every = max(1, -(-batch.num_rows // SAMPLE_KEYS))
    return Sample(place, batch.column("_key").to_numpy()[every // 2 :: every].copy(), float(every), time_max)


def attempt_prefix(identity: str, incarnation: int, epoch: int) -> str:
    """The prefix of the names of everything that an epoch makes before its commit."""
    return f"{identity}-{incarnation:06d}-{epoch:012d}"


def attempt_name(spec: EpochSpec, number: int) -> str:
    """A name that no other attempt of any driver of any checkpoint uses, for what an attempt at task or split ``number`` makes."""
    return f"{attempt_prefix(spec.identity, spec.incarnation, spec.epoch)}-{number:05d}-{uuid.uuid4().hex[:8]}"


def final_name(spec: EpochSpec, number: int) -> str:
    """The name that all attempts at a task or split of an epoch share, for what becomes visible of one of them."""
    return f"{spec.identity}-{spec.epoch:012d}-{number:05d}"


def is_attempt_of(name: str, identity: str, incarnation: int) -> bool:
    """Whether a name that begins with an ``attempt_prefix`` is of this checkpoint, and of this driver or an older one."""
    parts = name.split("-", 2)
    return len(parts) == 3 and parts[0] == identity and parts[1].isdecimal() and int(parts[1]) <= incarnation


def units_of(epoch: int, split: int, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The unit coordinates (uint32) of a split's records and a second, independent number in [0, 1) for shedding.

    The same for every attempt at the epoch, so that a task that is run again routes every tuple as before.
    """
    mixed = scattered((epoch << 20) ^ split, rows)
    return (mixed >> np.uint64(32)).astype(np.uint32), (mixed & np.uint64(0xFFFFFFFF)) / float(1 << 32)
