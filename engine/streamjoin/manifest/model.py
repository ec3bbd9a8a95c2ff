"""The manifest as typed data: every field with its type, default, bounds and meaning in one place.

The same models check what a user wrote, give the field tables of ``docs/manifest.md``, and their JSON schema is what a
custom resource definition needs. They say what each field may be by itself; ``manifest.validate`` says what fields must
be together. What a stream is read from is in ``manifest.sources``, what results are written to in ``manifest.sinks``.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import ConfigDict, Field, StringConstraints

from streamjoin.language.graph import MOST_STREAMS
from streamjoin.manifest.connectors.spark import SparkSettings
from streamjoin.manifest.event_time import GivenEventTime
from streamjoin.manifest.field_types import (
    BudgetSpan,
    CapacityAmount,
    CpuAmount,
    DeadlineSpan,
    EpochAmount,
    EpochSpan,
    Fraction,
    FreeForm,
    Location,
    MemoryAmount,
    Names,
    Percentage,
    PositiveSpan,
    ResourceName,
    Span,
    Sql,
    StreamName,
    Tau,
    Texts,
    TimeOfDay,
    TimeZone,
)
from streamjoin.manifest.kubernetes import Backup, Driver, Idle, Logging, Metrics, Pods, Queries, Security
from streamjoin.manifest.part import Part
from streamjoin.manifest.prometheus import Prometheus
from streamjoin.manifest.quantity import Cpu, Duration, Memory
from streamjoin.manifest.sinks import Sink
from streamjoin.manifest.snapshots import Snapshots
from streamjoin.manifest.sources import Source

API_VERSION = "streamjoin.dev/v1beta1"
KIND = "StreamJoin"
MOST_JOINS = 16
"""Of one resource."""


class Punctuation(Part):
    """Records of a stream that are not tuples but markers of progress. A snapshot of results ends when every stream has had a marker with
    the same identifier."""

    when: Sql
    """Which records they are (SQL over this stream's columns)."""
    id: Sql
    """Their identifier (SQL over this stream's columns). The identifiers of different streams are compared as text."""


NO_WATERMARK = (
    "must be given with eventTime: how far out of order tuples may come, such as 10s, as those that are further back are dropped; 0s where"
    " they come in order"
)


class Stream(Part):
    """One of the streams to join."""

    name: StreamName
    """The name by which SQL refers to the stream's columns, as in orders.id."""
    source: Source
    """Where the tuples come from."""
    ddl: Annotated[str, StringConstraints(min_length=1, max_length=100_000)] | None = Field(None, alias="schema")
    """The columns and their types, as Spark DDL: "id BIGINT, price DECIMAL(10,2), at TIMESTAMP". Required, unless the source is a join:
    then the columns are those of its output."""
    event_time: GivenEventTime | None = None
    """When a tuple happened: the name of a TIMESTAMP or TIMESTAMP_NTZ column; {column: ts, unit: ms} for numbers since 1970; {column: ts,
    format: "dd/MM/yyyy HH:mm:ss"} for text; or an SQL expression. Windows of time need it."""
    watermark: Span | None = None
    """How far a tuple's event time may lie before the latest one seen. Tuples further back are late and are dropped. Required with
    eventTime, but where the source is a generator (by default its outOfOrder) or a join (0s)."""
    max_ahead: Span | None = None
    """How far an event time may lie ahead of the clock (of the latest time that it has shown). Tuples further ahead go to the dead
    letters. For windows of time. By default 1h, or 15h if eventTime is a TIMESTAMP_NTZ, whose zone may be ahead of UTC."""
    idle_timeout: PositiveSpan | None = None
    """A stream that has had no record for this long does not hold the others back: its watermark goes on with theirs, and what it brings
    later is late if it is older. For windows of time. By default a silent stream holds the others for as long as it is silent."""
    on_bad: Literal["deadLetter", "fail"] = "deadLetter"
    """What to do about a record or a file that cannot be read: put it into the dead letters and go on, or end the run."""
    where: Sql | None = None
    """Which tuples to take (SQL over this stream's columns). The others are dropped when they are read."""
    select: Names | None = None
    """The columns that workers hold. By default the columns that the join and the output need."""
    expected_rate: Annotated[float, Field(gt=0, le=1e9)] | None = None
    """Tuples per second to expect. The first number of workers follows from it."""
    punctuation: Punctuation | None = None
    """Which records are not tuples but end snapshots of results (output.snapshots.punctuation)."""


Rows = Annotated[int, Field(ge=1, lt=2**62)]
"""A number of records."""


class Window(Part):
    """Which tuples are close enough: exactly one of within, each, rows, eachRows and unbounded; or, for two streams, before and after."""

    within: Span | None = None
    """No two event times of a result differ by more than this."""
    each: Annotated[dict[str, Span], Field(max_length=MOST_STREAMS)] | None = None
    """By stream, for every stream: how long before the newest tuple of a result this stream's tuple may be."""
    before: Span | None = None
    """How long before the first stream's tuple the second stream's may be; 0s when only after is given. Two streams only."""
    after: Span | None = None
    """How long after the first stream's tuple the second stream's may be; 0s when only before is given. Two streams only."""
    rows: Rows | None = None
    """Every tuple of a result is among the last this many records of its stream when the newest of them arrives."""
    each_rows: Annotated[dict[str, Rows], Field(max_length=MOST_STREAMS)] | None = None
    """By stream, for every stream: among how many of its last records this stream's tuple is when the newest of a result arrives."""
    unbounded: bool | None = None
    """true: all tuples, however far apart. Held tuples are never dropped."""
    slide: PositiveSpan | None = None
    """Windows of time (within, each, before, after) start at multiples of this, instead of with every tuple."""


class Output(Part):
    """What becomes of results."""

    select: Annotated[Texts, Field(min_length=1)] | None = None
    """The output's columns: "orders.id AS order_id", or expressions. By default all held columns, as stream_column."""
    where: Sql | None = None
    """Which results to keep (SQL over the columns of all streams; for semi and anti, of the first stream)."""
    sink: Sink | None = None
    """Where results go. Required, unless a stream reads the results, or snapshots of them are kept."""
    on_bad: Literal["deadLetter", "fail"] = "deadLetter"
    """What to do about a result that the sink cannot take, such as one that is too large for Kafka or that violates a constraint of
    PostgreSQL: put it into the dead letters and go on, or end the run."""
    snapshots: Snapshots | None = None
    """Snapshots of results, sorted by a key: whether they are kept, and when each ends. By default they are not kept."""


class Join(Part):
    """One join over the streams. With two streams, the first is the left side and the second the right side."""

    name: Annotated[str, StringConstraints(min_length=1, max_length=63)] = "join"
    """A name for the join, in metrics and plans."""
    condition: Sql
    """When tuples match (SQL over the columns of all streams): any predicate."""
    type: Literal["inner", "left", "right", "full", "semi", "anti"] = "inner"
    """inner: all combinations of tuples that match, one tuple of each stream. left, right, full: also every tuple of the first stream, the
    second or both that matches nothing, once nothing can match it any more. semi: every tuple of the first stream that matches, once. anti:
    every tuple of the first stream that matches nothing. Over three and more streams left, right and full are joins of two after one
    another, in the order of the streams; by semi and anti a tuple matches where it is in a result with tuples of all others."""
    window: Window
    """Which tuples are close enough in time or in number."""
    output: Output
    """What becomes of results."""


class SchemeSpec(Part):
    """How the work of the join is divided among workers."""

    model: Literal["adsp", "square", "hash", "dynamic", "readj", "biclique", "broadcast", "handshake"] = "adsp"
    """adsp: coverage areas with irregular grids; never needs more workers than square. square: one grid. hash: ranges of keys, one worker
    each. dynamic: one grid whose number of workers is a power of two. readj: like hash, but new plans move only keys of workers that are
    too full. biclique: each worker holds tuples of one stream. broadcast: each worker holds a part of both streams and sees every tuple.
    handshake: workers form a chain, and tuples go from neighbour to neighbour (ESJ), so results come late; two streams."""
    sigma: Annotated[float, Field(ge=0, le=100)] | None = None
    """readj only: keys move when a worker holds more than 1 + sigma times the mean. 0.1 by default."""
    groups: Annotated[int, Field(ge=1, le=10_000)] | None = None
    """biclique only: into how many groups the keys of each stream are divided, at first with one worker each. A tuple is sent only to
    groups that may match. 1 by default."""
    alpha: Annotated[float, Field(gt=0, lt=0.8)] | None = None
    """handshake only: the weight of uneven loads against messages when the chain decides how many tuples move on at once (ESJ, Theorem 1).
    The higher it is, the smaller are the blocks of tuples. 0.5 by default."""


class Resources(Part):
    """What one worker asks for."""

    cpu: CpuAmount = Cpu(1000)
    """Cores of one worker."""
    memory: MemoryAmount = Memory.parse("2Gi")
    """Memory of one worker."""


class Workers(Part):
    """The workers that hold tuples and join them."""

    min: Annotated[int, Field(ge=1, le=10_000)] = 1
    """The least number of workers."""
    max: Annotated[int, Field(ge=1, le=10_000)] = 8
    """The greatest number of workers."""
    floor: Annotated[int, Field(ge=0, le=10_000)] = 1
    """The least number of workers for the time being, from min to max; 1 or 0: min applies. It is the scale that kubectl scale and a
    HorizontalPodAutoscaler set."""
    capacity: CapacityAmount | None = None
    """W: how many bytes of tuples one worker may hold. Wide tuples count for more than narrow ones. Excludes capacityTuples. By default as
    much as fits into the worker's memory."""
    capacity_tuples: Annotated[int, Field(ge=1, lt=2**53)] | None = None
    """W: how many tuples one worker may hold, whatever their width. Excludes capacity. By default the capacity in bytes applies."""
    resources: Resources = Resources()
    """What one worker asks for."""
    max_memory: MemoryAmount | None = None
    """Kubernetes: the most memory that one worker may get by scaling.vertical. It must be above resources.memory."""
    per_executor: Annotated[int, Field(ge=1, le=16)] = 1
    """Kubernetes: how many workers share a pod. The pod requests the resources of all of them and has one JVM. At most max."""


Day = Literal["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"]
RuleMode = Literal["Enforce", "Recommend", "Off"]


class ScalingRules(Part):
    """Modes of single rules of scaling, where they differ from scaling.mode: Enforce, Recommend or "Off" (quoted)."""

    allocate: RuleMode | None = None
    """Add workers when they are full. By default the value of scaling.mode."""
    deallocate: RuleMode | None = None
    """Remove workers that are hardly used. By default the value of scaling.mode."""
    replan: RuleMode | None = None
    """Make a new plan for the same number of workers when a better plan is worth the bytes that it moves. By default the value of
    scaling.mode."""
    keep_up: RuleMode | None = None
    """Add workers when epochs take longer than their interval and more and more records wait. By default the value of scaling.mode."""


class TimeOfWeek(Part):
    """A time of the week."""

    start: TimeOfDay
    """When it begins, such as 08:00."""
    end: TimeOfDay
    """When it ends. If that is not after start, it ends on the next day."""
    days: Annotated[tuple[Day, ...], Field(strict=False, max_length=7)] = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
    """The days on which it begins. By default all."""
    time_zone: TimeZone = "Etc/UTC"
    """The time zone of start and end, such as Europe/Berlin."""


class Quiet(TimeOfWeek):
    """A time of the week in which no change of the plan begins, unless tuples are being lost."""


class Budget(Part):
    """How many results may be lost before workers are added."""

    completeness: Percentage
    """The share of the results that must not be lost, such as 99.9 %. Results lost because of late tuples count, too."""
    over: BudgetSpan = Duration.parse("1d")
    """The time over which completeness is measured."""

    @property
    def share(self) -> float:
        """The completeness, 0 to 1."""
        return float(self.completeness.removesuffix("%")) / 100


TAUS = ("tau0", "tau1", "tau2", "tau3")
"""The thresholds of scaling, each below the next."""


class Scaling(Part):
    """When to add and remove workers, by tau: the tuples or bytes that a worker holds, divided by its capacity."""

    mode: Literal["Enforce", "Recommend", "Off"] = "Enforce"
    """Enforce: scale; Recommend: only report decisions; "Off" (quoted): make none."""
    policy: Literal["thresholds", "esj", "predictive"] = "predictive"
    """predictive: workers are added before tau2 is reached, when the rates show that the window will hold more; they are removed as soon as
    idle workers have cost more than a change would. thresholds: workers are added at tau3 and removed at tau0. esj: one worker at a time,
    exactly as in the paper."""
    rules: ScalingRules = ScalingRules()
    """Modes of single rules."""
    vertical: RuleMode = "Off"
    """Kubernetes: more memory for the workers that run, up to workers.maxMemory, instead of more workers, where that is cheaper. Enforce:
    the operator resizes executors; Recommend: it only says what it would do, and adds workers; "Off" (quoted): neither."""
    tau0: Tau = 0.2
    """Workers are removed when tau is at or below this for scaleDownAfter. The policy predictive does not use it."""
    tau1: Tau | None = None
    """The tau that the first number of workers aims at, and by thresholds and esj each change of it. Half of tau2 by default."""
    tau2: Tau = 0.8
    """Tuples are shed from this tau on, if shedding is on."""
    tau3: Tau = 0.9
    """Workers are added when tau is at or above this for scaleUpAfter. The policy predictive adds them before tau2 is reached, so many that
    the fullest worker is as far below tau2 as this is above it."""
    scale_up_after: Span = Duration.parse("30s")
    """How long tau must stay at or above tau3. By the policy predictive, a forecast of tau2 must hold for a quarter of this."""
    scale_down_after: Span = Duration.parse("10m")
    """How long tau must stay at or below tau0. By all policies, the slowest epoch of this time tells how many workers keep up."""
    stabilization: Span = Duration.parse("30s")
    """How long no other worker must have come before the join is cut for those that are there, when some of those that it asked for do not
    come or are lost; a sixth of it while a worker is at or above tau2. At a start all workers are waited for in the same way."""
    when_full: Literal["backpressure", "shed", "fail"] = "backpressure"
    """What happens when the fullest worker holds as much as it may (tau is 1). backpressure: streams that are ahead of another one in event
    time are not read until that one has caught up. shed: tuples are dropped from tau2 on, as with shedding.model linear. fail: the run
    ends."""
    floor: Literal["min", "initial"] = "min"
    """The least number of workers that the rules leave. min: workers.min; initial: the number of workers of the first plan, if that is
    more."""
    quiet: Annotated[tuple[Quiet, ...], Field(strict=False, max_length=16)] = ()
    """Times of the week in which no change of the plan begins, unless tuples are being lost."""
    max_per_hour: Annotated[int, Field(ge=0, le=60)] = 20
    """The greatest number of changes of the plan in an hour, unless tuples are being lost; 0: any number."""
    budget: Budget | None = None
    """How complete results must be when shedding is on. Within the budget a full worker is relieved only if that costs less than the shed
    tuples, and workers are added before the budget runs out. Without a budget a full worker is relieved at any price."""
    prometheus: Prometheus = Prometheus()
    """Kubernetes: the Prometheus from which the operator reads the metrics for scaling."""

    @property
    def target(self) -> float:
        """tau1, given or by default."""
        return 0.5 * self.tau2 if self.tau1 is None else self.tau1


class Shedding(Part):
    """Dropping a share of the incoming tuples when workers are nearly full, so that the join does not fail."""

    model: Literal["linear", "quadratic", "off"] = "off"
    """How the dropped share grows from base at tau2 to everything at a full worker; "off" (quoted): nothing is dropped."""
    base: Annotated[Fraction, Field(json_schema_extra={"default": "0.0"})] = 0.0
    """The share that is dropped when tau reaches tau2."""
    mode: RuleMode = "Enforce"
    """Enforce: drop the share; Recommend: drop nothing, and count what would have been dropped; "Off" (quoted): neither. scaling.mode does
    not affect it."""


class Epoch(Part):
    """The engine's cycle: read, route, join, commit."""

    interval: EpochSpan = Duration.parse("1s")
    """The time from one epoch's start to the next one's, when there is new input. 0s: start the next as soon as there is."""
    deadline: DeadlineSpan | None = None
    """How long an epoch may make no progress. Then it is abandoned and done again; after three times in a row the driver ends with exit
    code 8. By default ten times the slowest of the last epochs, and 10 minutes at least."""
    max_tuples: Annotated[int, Field(ge=1, lt=2**53)] = 2_000_000
    """How many tuples of all streams one epoch may take. The rest waits."""
    max_bytes: EpochAmount = Memory.parse("256Mi")
    """How many bytes of records, as they are in memory, one epoch may take of all streams. It is estimated from the size of earlier
    records. The rest waits."""


AccessMode = Literal["ReadWriteOnce", "ReadWriteMany"]


class CloneOf(Part):
    """A savepoint of another join."""

    location: Location
    """The checkpoint.location of that join: a directory, as a local path or a URL (file, s3, gs, abfss, az). It is only read."""
    savepoint: Annotated[str, StringConstraints(max_length=63, pattern=r"^[a-z0-9]([a-z0-9.-]*[a-z0-9])?$")]
    """The savepoint's name."""


class Checkpoint(Part):
    """Where state is kept: exactly one of location and persistentVolumeClaim."""

    location: Location | None = None
    """A directory, as a local path or a URL (file, s3, gs, abfss, az). It belongs to this join alone."""
    persistent_volume_claim: Annotated[str, StringConstraints(min_length=1, max_length=253)] | None = None
    """Kubernetes: the name of a PersistentVolumeClaim."""
    clone_of: CloneOf | None = None
    """The savepoint that the join begins with, while no epoch is committed in its own checkpoint. By default it begins with nothing."""
    size: MemoryAmount | None = None
    """Kubernetes: the size of the claim that the operator creates if none has that name. Without it the claim must exist. A larger one
    enlarges that claim, where its storage class allows it."""
    storage_class_name: Annotated[str, StringConstraints(min_length=1, max_length=253)] | None = None
    """Kubernetes: the storage class of a claim that the operator creates."""
    access_modes: Annotated[tuple[AccessMode, ...], Field(strict=False, min_length=1, max_length=2)] | None = None
    """Kubernetes: from where a claim that the operator creates is mounted. By default ReadWriteOnce, which every storage class has and
    which is for pods on one node; ReadWriteMany is for pods on several."""
    on_delete: Literal["Retain", "Delete"] = "Retain"
    """Kubernetes: whether the state is kept or deleted when the resource is deleted."""


class DeadLetter(Part):
    """Where records go that do not parse, and which other records go there."""

    location: Location | None = None
    """A directory, as a local path or a URL (file, s3, gs, abfss, az). By default the directory dead-letters in the checkpoint."""
    retention: PositiveSpan | None = None
    """How long a file of dead letters is kept, such as 30d, from when it was written. By default for ever."""
    late: bool | None = None
    """Whether late tuples go there, too, as they were parsed. true: all; false: none. By default 100 of each part of the input, as a
    sample."""


Annotations = Annotated[dict[str, Annotated[str, StringConstraints(max_length=4096)]], Field(max_length=20)]
OperatorClass = Annotated[str, StringConstraints(max_length=63, pattern=r"^([a-z0-9]([a-z0-9-]*[a-z0-9])?)?$")]


class MaintenanceWindow(TimeOfWeek):
    """A time of the week in which a change may restart the driver."""


class Suspension(TimeOfWeek):
    """A time of the week in which the join is suspended."""


class Maintenance(Part):
    """When a join may be interrupted."""

    windows: Annotated[tuple[MaintenanceWindow, ...], Field(strict=False, max_length=16)] = ()
    """The times of the week in which changes that restart the driver are made. Before, they wait, and all others are made at once. A driver
    that is not ready, and a new value of the annotation streamjoin.dev/restart, wait for none. Without windows no change waits."""


class Spec(Part):
    """What to join and how."""

    streams: Annotated[tuple[Stream, ...], Field(strict=False)]
    """The streams: two to six. If there are two, the first is the left side of the join, the second the right."""
    joins: Annotated[tuple[Join, ...], Field(strict=False)]
    """The joins. At most 16. If there are two streams, or one join, each join is over all streams; else each is over the streams that its
    condition names. A tuple is read once for all joins, and held once for joins over the same two streams that have keys in common."""
    scheme: SchemeSpec = SchemeSpec()
    """How the work of the join is divided among workers."""
    workers: Workers = Workers()
    """The workers that hold tuples and join them."""
    scaling: Scaling = Scaling()
    """When to add and to remove workers."""
    shedding: Shedding = Shedding()
    """What to do when workers are nearly full."""
    epoch: Epoch = Epoch()
    """The engine's cycle, and how much input one epoch takes."""
    checkpoint: Checkpoint
    """Where state is kept."""
    spark: SparkSettings = SparkSettings()
    """The Spark that reads streams whose source is spark, and writes results whose sink is."""
    dead_letter: DeadLetter | None = None
    """Where records go that do not parse, and which others go there. By default the directory dead-letters in the checkpoint."""
    security: Security = Security()
    """Kubernetes: how the connections among driver and workers are protected."""
    metrics: Metrics = Metrics()
    """Kubernetes: how the driver's metrics get to Prometheus."""
    logging: Logging = Logging()
    """Kubernetes: what the pods say on standard output, and how."""
    suspend: bool = False
    """true: the join stops and keeps its state."""
    suspend_during: Annotated[tuple[Suspension, ...], Field(strict=False, max_length=16)] = ()
    """Kubernetes: the times of the week in which the join is suspended, as if suspend were true, whatever its sources have."""
    idle: Idle | None = None
    """Kubernetes: suspends the join while it has nothing to do. By default it always runs."""
    paused: bool = False
    """Kubernetes: true: what runs goes on unchanged; the operator does not change or scale it."""
    operator_class: OperatorClass = ""
    """Kubernetes: the class of the operator that manages the join. By default the operator without a class."""
    service_account_annotations: Annotations = Field(default={})
    """Kubernetes: annotations of the service accounts of the driver and the executors. Clouds use them to give pods an identity."""
    image: Annotated[str, StringConstraints(max_length=1024)] = ""
    """Kubernetes: the engine's image. By default that of the operator's own release: streamjoin-engine, or streamjoin-engine-tables for a
    join with a Delta or Iceberg table."""
    driver: Driver = Driver()
    """Kubernetes: the driver's pod, and whether another stands by."""
    executor: Pods = Pods()
    """Kubernetes: the workers' pods."""
    cleanup: Pods = Pods()
    """Kubernetes: the pod that removes the state (checkpoint.onDelete: Delete). It has what driver.podTemplate gives the driver's pod; here
    is what it has differently. Its container is named cleanup."""
    maintenance: Maintenance = Maintenance()
    """Kubernetes: when a change may restart the driver. By default at once."""
    trial: Pods = Pods()
    """Kubernetes: the pod that tries a new image or pod template before the driver is replaced. It has the driver's template; here is what
    it has differently. Its containers are named options and driver."""
    backup: Backup | None = None
    """Kubernetes: snapshots of the state by the clock. By default there are none."""
    queries: Queries = Queries()
    """Kubernetes: servers that answer queries (docs/query.md) apart from the driver. By default there are none."""


class Metadata(Part):
    """The resource's name. Other metadata of Kubernetes are accepted and ignored."""

    model_config = ConfigDict(extra="ignore")

    name: ResourceName
    """The resource's name: lower-case letters, digits and -, at most 63."""
    namespace: str | None = None
    """Kubernetes: the namespace."""


class Manifest(Part):
    """One StreamJoin resource."""

    api_version: Literal["streamjoin.dev/v1beta1"]
    """streamjoin.dev/v1beta1"""
    kind: Literal["StreamJoin"]
    """StreamJoin"""
    metadata: Metadata
    """The resource's name."""
    spec: Spec
    """What to join and how."""
    status: FreeForm | None = None
    """Written by the operator; ignored in a manifest."""
