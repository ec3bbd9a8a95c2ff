"""The engine's input: a manifest, completely parsed, with all names resolved and all defaults filled in.

Always holds: a :class:`Job` is frozen and picklable, and needs no text of the manifest. Paths are local, durations microseconds.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import ClassVar

from streamjoin.elastic.settings import Mode
from streamjoin.language.condition import Condition
from streamjoin.language.event_time import DerivedTime
from streamjoin.language.graph import JoinGraph, Place
from streamjoin.language.join_type import JoinType
from streamjoin.language.key_spaces import Joined, KeySpaces
from streamjoin.language.layout import Layout, PlacedGraph
from streamjoin.language.schema import Schema
from streamjoin.language.sides import SIDES
from streamjoin.language.sql import Expression
from streamjoin.language.window import Window
from streamjoin.manifest import holding
from streamjoin.manifest.connector import SinkConnector, SourceConnector
from streamjoin.manifest.model import Manifest
from streamjoin.manifest.quantity import Duration
from streamjoin.manifest.snapshots import CassandraStore, PostgresStore
from streamjoin.scheme.capacity import Capacity, tuple_bytes
from streamjoin.scheme.models import KEYED
from streamjoin.scheme.models import Options as SchemeOptions
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


@dataclass(frozen=True)
class Origin:
    """What a join begins with: a savepoint of another one."""

    location: str
    """That join's directory of state."""
    savepoint: str


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
    """How long an epoch may stand still; None: ``epoch.progress`` derives it."""
    max_tuples: int
    max_bytes: int
    """Of the records that an epoch takes, as they are in memory; about."""
    checkpoint: str
    """The directory of the state."""
    origin: Origin | None
    """What it begins with; None: with nothing."""
    dead_letter: str
    """The directory of records that do not parse."""
    letters_retention: float | None  # for so many seconds they are kept; None: for ever
    most_late_letters: float  # of each split, so many late tuples go there too
    manifest: Manifest

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
            for column in holding.indexed_by(layout, index, {streams[each].name: streams[each].schema for each in join.streams})
        }
        streams = tuple(stream.carrying({column for name, column in indexed if name == stream.name}) for stream in streams)
        return dataclasses.replace(self, layouts=(layout,), streams=streams)

    def continuing(self, key_spaces: KeySpaces) -> Job | None:
        """The same where tuples lie on these key spaces; None where a condition, or the model, has no use for how they lie."""
        layout = key_spaces.layout({join.name: Joined(join.streams, join.found) for join in self.joins})
        if layout is None or (self.model in KEYED and not layout.cuts_keys):
            return None
        return dataclasses.replace(self.lying(layout), window=key_spaces.window if key_spaces.has_pairs else self.window)

    def stream_of(self, place: int) -> int:
        """Whose tuples are held there, by any layout: of two streams those of the left side are in even places."""
        return place % len(SIDES) if len(self.streams) == len(SIDES) else self.places[place].stream

    def side_of(self, place: int) -> int:
        """Of a scheme, by any layout."""
        return self.places[place].side if self.multiway else place % len(SIDES)

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

    @property
    def capacity_tuples(self) -> float:
        """W in tuples, as wide as the schemas say where it is in bytes."""
        return self.capacity.in_tuples([stream.tuple_bytes for stream in self.streams])

    @property
    def stabilization_seconds(self) -> float:
        """For so long no worker must have come before the join is cut for those that are there."""
        return self.manifest.spec.scaling.stabilization.micros / 1e6


def sink_identity(sink: SinkModel | None) -> str:
    """Where results go: what is committed for one place is visible nowhere else."""
    return "streams of this resource" if sink is None else sink.identity
