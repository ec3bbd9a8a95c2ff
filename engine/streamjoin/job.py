"""The engine's input: a manifest, completely parsed, with all names resolved and all defaults filled in.

Always holds: a :class:`Job` is frozen and picklable, and needs no text of the manifest. Paths are local, durations microseconds.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from streamjoin.elastic.admission import FirstPlan, HeldLonger, first_plan
from streamjoin.elastic.deployment import EPOCHS_BEHIND, Deployment, Expected, expected_tuples, first_deployment, typical_tuples
from streamjoin.elastic.plan import Plan
from streamjoin.elastic.planner import Planned, make_plan
from streamjoin.elastic.settings import LEAST_INTERVAL_SECONDS, Mode, Settings
from streamjoin.language.condition import Condition
from streamjoin.language.event_time import DerivedTime
from streamjoin.language.floors import Floors, Joined
from streamjoin.language.graph import JoinGraph, Place
from streamjoin.language.join_type import JoinType
from streamjoin.language.layout import Layout, PlacedGraph
from streamjoin.language.predicate import MainPredicate
from streamjoin.language.schema import Schema
from streamjoin.language.sides import SIDES
from streamjoin.language.sql import Expression
from streamjoin.language.window import Ends, Window, WindowKind, window_text
from streamjoin.manifest import resolve
from streamjoin.manifest.connector import SinkConnector, SourceConnector
from streamjoin.manifest.model import Manifest
from streamjoin.manifest.quantity import Duration
from streamjoin.manifest.snapshots import CassandraStore, PostgresStore
from streamjoin.scheme.capacity import Capacity, column_bytes, tuple_bytes
from streamjoin.scheme.models import HANDSHAKE, KEYED
from streamjoin.scheme.models import Options as SchemeOptions
from streamjoin.scheme.statistics import Statistics
from streamjoin.scheme.unknown import unknown
from streamjoin.snapshots.timeline import Rule


@dataclass(frozen=True, slots=True)
class JoinSource:
    """The results of another join."""

    join: int

    identity: ClassVar[str] = "results of a join"
    metrics: ClassVar[str] = ""
    default_watermark: ClassVar[Duration] = Duration(0)
    partition_idle_micros: ClassVar[int] = 0
    partitions_of: ClassVar[str] = ""
    is_outside: ClassVar[bool] = False


class Inbox:
    """Where a join leaves its results for the process that runs it, in place of a console. A copy, in another process, is empty.

    Always holds: what is in it was committed, and was put there once.
    """

    identity = "this process"
    metrics = ""
    opener = "streamjoin.io.inbox:open_sink"

    def __init__(self) -> None:
        self.parts: list[bytes] = []
        """Streams of Arrow's, in the order of the epochs."""
        self.last: frozenset[str] = frozenset()
        """What was put there last, by the names of its parts: a commit may be made visible again after an error."""

    def __reduce__(self) -> tuple[type[Inbox], tuple[()]]:
        return Inbox, ()


SourceModel = SourceConnector | JoinSource
SinkModel = SinkConnector | Inbox


@dataclass(frozen=True, slots=True)
class StreamJob:
    """One stream."""

    name: str
    schema: Schema
    """As declared."""
    selected: tuple[str, ...]
    """The columns that the manifest's joins need of held tuples, however these lie."""
    payload: tuple[str, ...]
    """The columns that held tuples carry: those, and more where joins were added to others (:meth:`Job.lying`)."""
    tuple_bytes: float
    """Bytes of a held tuple, by the schema."""
    where: Expression | None
    """Which tuples to take."""
    event_time: str | None
    """The column that has it. None: there is none, or it is made of others."""
    watermark_micros: int
    max_ahead_micros: int
    """How far ahead of the clock, or of the stream's newest, an event time may be."""
    idle_micros: int
    """How long a partition of the stream may be silent before it is not waited for; of no meaning without partitions."""
    silence_micros: int | None
    """How long the stream may be silent before the others do not wait for it; None: they always do."""
    expected_rate: float | None
    """Tuples per second."""
    source: SourceModel
    """As in the manifest, but for ``path``, which is a place as ``location`` writes it."""
    punctuation: tuple[Expression, Expression] | None = None
    """Which records are punctuations, and their identifiers; None: none."""
    derived_time: DerivedTime | None = None
    """How the event time is made of columns, where none has it."""
    fails_on_bad: bool = False

    def carrying(self, columns: Collection[str]) -> StreamJob:
        """The same where held tuples carry these columns too."""
        if set(columns) <= set(self.payload):
            return self
        payload = tuple(name for name in self.schema.names if name in columns or name in self.payload)
        return dataclasses.replace(self, payload=payload, tuple_bytes=tuple_bytes(self.schema, payload))


@dataclass(frozen=True, slots=True)
class SnapshotsJob:
    """How one join's results are kept as snapshots."""

    rule: Rule
    """When one ends."""
    key: Expression
    """Over the output's columns."""
    keep_seconds: float | None
    """None: for good."""
    buffer_bytes: int
    store: PostgresStore | CassandraStore | None
    """As in the manifest; None: they are in the checkpoint alone."""


@dataclass(frozen=True, slots=True)
class JoinJob:
    """One join over the streams."""

    name: str
    type: JoinType
    streams: tuple[int, ...]
    """Which it is over, in their order."""
    found: Condition | tuple[JoinGraph, ...]
    """The condition of a join over two streams; of more, the graphs that its condition has, best static choice first."""
    window: Window
    output: tuple[tuple[str, Expression], ...]
    where: Expression | None
    """Which results to keep."""
    sink: SinkModel | None
    """As in the manifest, but for ``path``, which is a place, and ``compression``, which is never None; an Inbox is the process's that
    runs the join. None: only streams read what comes of the join."""
    snapshots: SnapshotsJob | None = None
    fails_on_bad: bool = False
    """Whether a result that its sink refuses ends the run."""

    @property
    def condition(self) -> Condition | None:
        """None: of three and more streams."""
        return self.found if isinstance(self.found, Condition) else None


@dataclass(frozen=True, slots=True)
class Job:
    """Joins over streams, ready to run."""

    name: str
    streams: tuple[StreamJob, ...]
    joins: tuple[JoinJob, ...]
    layouts: tuple[Layout, ...]
    """How tuples could lie for all joins, best static choice first. With a model that cuts along keys, only those with a bound on a key."""
    window: Window
    """The widest of the joins over two streams: what is held for these is held for this one. Where there are none, a join's own."""
    model: str
    scheme_options: SchemeOptions
    """What single models take."""
    capacity: Capacity
    """W."""
    min_workers: int
    max_workers: int
    cores: int
    """Whole cores of one worker."""
    memory_bytes: int
    """Memory of one worker."""
    workers_per_executor: int
    tau0: float
    tau1: float
    tau2: float
    tau3: float
    when_full: str  # backpressure, shed or fail
    shedding_model: str
    shedding_base: float
    shedding_mode: Mode
    interval_micros: int
    deadline_seconds: float | None
    """How long an epoch may stand still; None: ``epoch.pulse`` derives it."""
    max_tuples: int
    max_bytes: int
    """Of the records that an epoch takes, as they are in memory; about."""
    checkpoint: str
    """The directory of the state."""
    dead_letter: str
    """The directory of records that do not parse."""
    letters_retention: float | None  # for so many seconds they are kept; None: for ever
    most_late_letters: float  # of each split, so many late tuples go there too
    manifest: Manifest

    def expected_tuples(self) -> Expected:
        """What is expected to be held on each side of a scheme."""
        of_places = list(zip(self.places, self.expected_of_places(), strict=True))
        left, right = ([tuples for place, tuples in of_places if place.side == side] for side in SIDES)
        return _sum_of(left), _sum_of(right)

    def expected_of_places(self) -> tuple[float | None, ...]:
        """What is expected to be held at each place: of a join over three and more streams by its own window, else by the widest."""
        rates = [stream.expected_rate for stream in self.streams]
        found: list[float | None] = [None] * len(self.places)
        for placed in self.layouts[0].joins:
            of_streams = self._expected_at(rates, placed.streams, self.held_for(placed))
            for number, place in zip(placed.places, placed.graph.places, strict=True):
                found[number] = of_streams[place.stream]
        return tuple(found)

    @property
    def window_seconds(self) -> tuple[float, float] | None:
        """For how long a left, and a right, tuple is held, delays and some epochs included; None: of rows, or more streams."""
        if self.window.kind is WindowKind.ROWS or len(self.streams) != 2:
            return None
        left, right = self._expected_at((1.0, 1.0), SIDES, self.window)
        return left or 0.0, right or 0.0

    def _expected_at(self, rates: Sequence[float | None], streams: Sequence[int], window: Window) -> tuple[float | None, ...]:
        """Of these streams by this window."""
        return expected_tuples(
            [rates[stream] for stream in streams],
            window,
            delays_micros=[self.streams[stream].watermark_micros for stream in streams],
            epoch_micros=max(LEAST_INTERVAL_SECONDS * 1e6, self.interval_micros),
        )

    @property
    def multiway(self) -> tuple[PlacedGraph, ...]:
        """The joins over three and more streams, by the first layout."""
        return self.layouts[0].multiway

    @property
    def places(self) -> tuple[Place, ...]:
        """Where tuples are held by the first layout: by the one that was chosen, once there is one (:meth:`lying`)."""
        return self.layouts[0].places

    def lying(self, layout: Layout) -> Job:
        """The same with this layout alone. Tuples carry what it finds them by too, if the manifest's own layouts would not."""
        streams = self.streams
        indexed = {
            column
            for index, join in enumerate(self.joins)
            for column in resolve.indexed_by(layout, index, {streams[each].name: streams[each].schema for each in join.streams})
        }
        streams = tuple(stream.carrying({column for name, column in indexed if name == stream.name}) for stream in streams)
        return dataclasses.replace(self, layouts=(layout,), streams=streams)

    def continuing(self, floors: Floors) -> Job | None:
        """The same where tuples lie on these floors; None where a condition, or the model, has no use for how they lie."""
        layout = floors.layout({join.name: Joined(join.streams, join.found) for join in self.joins})
        if layout is None or (self.model in KEYED and not layout.cuts_keys):
            return None
        return dataclasses.replace(self.lying(layout), window=floors.window if floors.has_pairs else self.window)

    def stream_of(self, place: int) -> int:
        """Whose tuples are held there, by any layout: of two streams those of the left side are in even places."""
        return place % len(SIDES) if len(self.streams) == len(SIDES) else self.places[place].stream

    def side_of(self, place: int) -> int:
        """Of a scheme, by any layout."""
        return self.places[place].side if self.multiway else place % len(SIDES)

    def expired_before(self, marks: Ends) -> Ends:
        """By place, the ``_time`` below which a held tuple can match nothing that is still to come (:meth:`Window.expired_before`)."""
        found: list[int | None] = [None] * len(self.places)
        for placed in self.layouts[0].joins:
            of_streams = self.held_for(placed).expired_before(tuple(marks[stream] for stream in placed.streams))
            for number, place in zip(placed.places, placed.graph.places, strict=True):
                found[number] = of_streams[place.stream]
        return tuple(found)

    def held_for(self, placed: PlacedGraph) -> Window:
        """What a join's tuples are held for: of two streams the widest window of all such joins, as others may lie there too."""
        return self.joins[placed.join].window if placed.is_multiway else self.window

    def depth_of(self, stream: int) -> int:
        """How many joins a stream's tuples have come through."""
        source = self.streams[stream].source
        return 0 if not isinstance(source, JoinSource) else 1 + max(self.depth_of(each) for each in self.joins[source.join].streams)

    def to_end(self, held: Iterable[int]) -> frozenset[int]:
        """Where tuples can match nothing any more, as nothing comes any more, of the places where some are ``held``: those of the joins
        that the fewest others come before. None, if no tuple comes alone, nor of inner joins of more than two streams; of a chain, all."""
        if self.model == HANDSHAKE:  # tuples that have yet to meet do so on their way out of the chain
            return frozenset(held)
        if not self.gives_unmatched:
            return frozenset()
        alone = max(max(map(self.depth_of, join.streams)) for join in self.joins if join.type.gives_unmatched)
        joins = self.layouts[0].joins
        together = {each.places for each in joins if not each.is_multiway or self.joins[each.join].type.gives_unmatched}
        holding = set(held)
        depths = {places: max(map(self.depth_of, map(self.stream_of, places))) for places in together if holding & set(places)}
        least = min(depths.values(), default=alone + 1)
        if least > alone:
            return frozenset()
        return frozenset(place for places, depth in depths.items() if depth == least for place in places)

    def carried_bytes(self, placed: PlacedGraph, tuple_bytes: Sequence[float]) -> list[tuple[float, float]]:
        """By stream of a join over three and more, the bytes of a tuple that the condition reads, and of those that only what comes of
        results does.

        By the schemas; what held tuples, of ``tuple_bytes`` by place, are wider than these say is taken to be of the columns of no fixed
        width, evenly.
        """
        join, condition = self.joins[placed.join], placed.graph.columns
        read = {name for _, expression in join.output for name in expression.columns} | (join.where.columns if join.where else set())
        found = []
        for number in placed.streams:
            stream = self.streams[number]
            held = max(width for width, place in zip(tuple_bytes, self.places, strict=True) if place.stream == number)
            conditions = tuple(name for name in stream.payload if (stream.name, name) in condition)
            others = tuple(name for name in stream.payload if (stream.name, name) in read and name not in conditions)
            both = [column_bytes(stream.schema, names) for names in (conditions, others)]
            more, open_ended = held - stream.tuple_bytes, sum(width.open_ended for width in both)
            stretch = 1 + more / open_ended if open_ended and more > 0 else 1.0
            by_condition, by_output = (width.fixed + width.open_ended * stretch for width in both)
            found.append((by_condition, by_output))
        return found

    def by_stream(self, of_places: Sequence[int]) -> tuple[int, ...]:
        """What is counted by place, added up by stream."""
        found = [0] * len(self.streams)
        for number, count in enumerate(of_places):
            found[self.stream_of(number)] += count
        return tuple(found)

    def by_side(self, of_places: Sequence[float]) -> tuple[float, float]:
        """What is counted by place, added up by side of a scheme."""
        left, right = (sum(count for number, count in enumerate(of_places) if self.side_of(number) == side) for side in SIDES)
        return float(left), float(right)

    @property
    def streams_by_side(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The names of the streams with a place on each side of a scheme, once for each place."""
        left, right = (tuple(self.streams[held.stream].name for held in self.places if held.side == side) for side in SIDES)
        return left, right

    @property
    def gives_unmatched(self) -> bool:
        """Whether tuples of any join come alone."""
        return any(join.type.gives_unmatched for join in self.joins)

    def foreseen(self) -> Deployment:
        """The first plan by what the manifest alone says; nothing is known of keys but whether they are hashed."""
        rates = [self.streams[place.stream].expected_rate for place in self.places]
        of_places = [tuples or 1.0 for tuples in typical_tuples(rates, self.expected_of_places())]
        main = self.layouts[0].main
        return self.first_deployment(unknown(self.places, main, of_places), main)

    def cheapest(self) -> Job:
        """The same lying as the first plan would have it by what the manifest alone says: of joins with floors of their own, the layout
        that holds less."""
        if not any(layout.is_apart for layout in self.layouts):
            return self
        return min(map(self.lying, self.layouts), key=lambda job: job.foreseen().volume)

    def first_plan(self, deployment: Deployment | None = None) -> FirstPlan:
        """What is promised of the first plan, before anything runs; ``deployment``: that plan, where it is made already."""
        rates = [stream.expected_rate for stream in self.streams]
        known = [rate for rate in rates if rate is not None]
        windows = [join.window for join in self.joins]
        expires_after = EPOCHS_BEHIND * max(LEAST_INTERVAL_SECONDS * 1e6, self.interval_micros)
        return first_plan(
            self.foreseen() if deployment is None else deployment,
            self.layouts[0].main,
            capacity=self.capacity,
            settings=Settings.of(self.manifest.spec, capacity_tuples=self.capacity_tuples),
            rate=sum(known) + max(known) * rates.count(None) if known else None,
            windows=windows,
            held_longer=HeldLonger(
                max(stream.watermark_micros for stream in self.streams) + expires_after, max(known, default=0.0) * expires_after / 1e6
            ),
            is_guess=None in rates and any(window.kind is not WindowKind.ROWS for window in windows),
            per_executor=self.workers_per_executor,
            options=self.scheme_options,
        )

    @property
    def capacity_tuples(self) -> float:
        """W in tuples, as wide as the schemas say where it is in bytes."""
        return self.capacity.in_tuples([stream.tuple_bytes for stream in self.streams])

    def weights(self, tuple_bytes: Sequence[float] | None = None) -> tuple[float, ...]:
        """What a held tuple of each place weighs against ``capacity``; ``tuple_bytes``: their widths, if not those of the schemas."""
        widths = [self.streams[place.stream].tuple_bytes for place in self.places] if tuple_bytes is None else tuple_bytes
        return self.capacity.weights(widths)

    def weights_of_sides(self, tuple_bytes: Sequence[float] | None = None, held: Sequence[float] | None = None) -> tuple[float, float]:
        """The same of each side of a scheme: where it has several places, on average of the tuples ``held`` by place, or evenly."""
        weights = self.weights(tuple_bytes)
        of_side = [[number for number in range(len(weights)) if self.side_of(number) == side] for side in SIDES]
        left, right = (_mean(numbers, weights, held) for numbers in of_side)
        return left, right

    def first_deployment(
        self,
        known: Statistics,
        main: MainPredicate,
        expected: Expected | None = None,
        *,
        tuple_bytes: Sequence[float] | None = None,
        held: Sequence[float] | None = None,
    ) -> Deployment:
        """The plan to begin with (:func:`streamjoin.elastic.deployment.first_deployment`).

        ``expected``: not what the manifest says; ``tuple_bytes``: of held tuples by place, if not those of the schemas, and ``held``, in
        which proportion they are.
        """
        return first_deployment(
            self.expected_tuples() if expected is None else expected,
            known.weighed(self.weights_of_sides(tuple_bytes, held)),
            main,
            model=self.model,
            capacity=self.capacity,
            tau1=self.tau1,
            minimum=self.min_workers,
            maximum=self.max_workers,
            options=self.scheme_options,
        )

    def plan_after(self, current: Plan, statistics: Statistics, main: MainPredicate, workers: int, model: str | None = None) -> Planned:
        """The plan for so many workers that follows ``current`` (:func:`streamjoin.elastic.planner.make_plan`); by another model than the
        job's, if one is given. Raises ValueError for what the model refuses."""
        return make_plan(
            *(current, statistics, main),
            model=self.model if model is None else model,
            workers=workers,
            capacity=self.capacity,
            tau1=self.tau1,
            minimum=self.min_workers,
            maximum=self.max_workers,
            options=self.scheme_options,
        )

    @property
    def stabilization_seconds(self) -> float:
        """For so long no worker must have come before the join is cut for those that are there."""
        return self.manifest.spec.scaling.stabilization.micros / 1e6

    def fingerprint(self) -> dict[str, str]:
        """What may not change under an existing checkpoint, by field: held tuples and positions would no longer fit."""
        prints: dict[str, str] = {}
        for index, stream in enumerate(self.streams):
            field = f"spec.streams[{index}]"
            prints[f"{field}.name"] = stream.name
            prints[f"{field}.source"] = stream.source.identity
            prints[f"{field}.schema"] = ", ".join(f"{column.name} {column.type}" for column in stream.schema)
            prints[f"{field}.eventTime"] = stream.event_time or (stream.derived_time.shown if stream.derived_time else "none")
            prints[f"{field}.select"] = ", ".join(stream.selected) or "none"
        for join in self.joins:
            field = f"spec.joins[{join.name if len(self.joins) > 1 else 0}]"  # one alone may be renamed
            prints |= {f"{field}.{name}": text for name, text in self.fingerprint_of(join.name).items()}
        if self.model == HANDSHAKE:  # its tuples lie by when they came, and have yet to meet
            prints["spec.scheme.model"] = HANDSHAKE
        return prints

    def fingerprint_of(self, name: str) -> dict[str, str]:
        """What may not change of a join, by field."""
        join, written = next(each for each in zip(self.joins, self.manifest.spec.joins, strict=True) if each[0].name == name)
        return {
            "condition": " ".join(written.condition.split()),
            "window": window_text(join.window, [self.streams[stream].name for stream in join.streams]),
            "type": join.type,
        }


def _sum_of(tuples: Sequence[float | None]) -> float | None:
    known = [number for number in tuples if number is not None]
    return math.fsum(known) if len(known) == len(tuples) else None


def _mean(places: Sequence[int], weights: Sequence[float], held: Sequence[float] | None) -> float:
    shares = [1.0 if held is None else max(1.0, held[place]) for place in places]
    return sum(weights[place] * share for place, share in zip(places, shares, strict=True)) / sum(shares)


def sink_identity(sink: SinkModel | None) -> str:
    """Where results go: what is committed for one place is visible nowhere else."""
    return "streams of this resource" if sink is None else sink.identity
