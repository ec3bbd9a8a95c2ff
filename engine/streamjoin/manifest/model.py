"""The manifest as typed data: every field with its type, default, bounds and meaning in one place.

The same models check what a user wrote, give the field tables of ``docs/manifest.md``, and their JSON schema is what a
custom resource definition needs. They say what each field may be by itself; ``manifest.validate`` says what fields must
be together. What a stream is read from is in ``manifest.sources``, what results are written to in ``manifest.sinks``.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import ConfigDict, Field, StringConstraints

from streamjoin.language.graph import MOST_STREAMS
from streamjoin.manifest import versions
from streamjoin.manifest.cel import Rule
from streamjoin.manifest.field_types import (
    BudgetSpan,
    CapacityAmount,
    CpuAmount,
    DeadlineSpan,
    EpochAmount,
    EpochSpan,
    Fraction,
    FreeForm,
    HttpUrl,
    Labels,
    Location,
    MemoryAmount,
    Names,
    ObjectName,
    Percentage,
    PositiveSpan,
    Span,
    Sql,
    Tau,
    Texts,
    TimeOfDay,
    TimeZone,
)
from streamjoin.manifest.part import Part
from streamjoin.manifest.quantity import Cpu, Duration, Memory
from streamjoin.manifest.sinks import Sink
from streamjoin.manifest.snapshots import Snapshots
from streamjoin.manifest.sources import Source

API_VERSION = versions.NEWEST
KIND = versions.KIND
MOST_JOINS = 16
"""Of one resource."""


class Punctuation(Part):
    """Records of a stream that are no tuples, and say that it has come so far: of each stream one, of the same identifier, end a snapshot
    of results."""

    when: Sql
    """Which records they are (SQL over this stream's columns)."""
    id: Sql
    """Their identifier (SQL over this stream's columns); those of the streams are compared as text."""


class Stream(Part):
    """One of the streams to join."""

    name: Annotated[
        str,
        StringConstraints(min_length=1, max_length=63),
        Rule("self.matches('^[A-Za-z][A-Za-z0-9_]*$')", "cannot stand in SQL; use letters, digits and _, beginning with a letter"),
    ]
    """The name by which SQL refers to the stream's columns, as in orders.id."""
    source: Source
    """Where the tuples come from."""
    ddl: Annotated[str, StringConstraints(min_length=1, max_length=100_000)] | None = Field(None, alias="schema")
    """The columns and their types, as Spark DDL: "id BIGINT, price DECIMAL(10,2), at TIMESTAMP". Required, but where the source is a join,
    whose output's columns they are."""
    event_time: Annotated[str, StringConstraints(max_length=255)] | None = None
    """The TIMESTAMP or TIMESTAMP_NTZ column that says when a tuple happened. Windows of time need it."""
    watermark: Span = Duration(0)
    """How much later than the latest tuple seen a tuple may be and still be joined."""
    max_ahead: Span | None = None
    """How far ahead of the clock, or of the stream's newest event time where that is later, an event time may be; what is further goes to
    the dead letters. For windows of time. By default 1h, or 15h where eventTime is a TIMESTAMP_NTZ, whose zone may be ahead of UTC."""
    where: Sql | None = None
    """Which tuples to take (SQL over this stream's columns); the others are dropped where they are read."""
    select: Names | None = None
    """The columns to hold for residual predicates and output. By default what the join and the output need."""
    expected_rate: Annotated[float, Field(gt=0, le=1e9)] | None = None
    """Tuples per second to expect, from which the first number of workers follows."""
    punctuation: Punctuation | None = None
    """Which records are no tuples, but end snapshots of results (output.snapshots.punctuation)."""


class Window(Part):
    """Which tuples are close enough: within; or each; or rows; or unbounded; or, of two streams, before and after."""

    within: Span | None = None
    """No two event times of a result differ by more than this."""
    each: Annotated[dict[str, Span], Field(max_length=MOST_STREAMS)] | None = None
    """By stream, for every one of them: how long before the newest tuple of a result this stream's may be."""
    before: Span | None = None
    """How long before the first stream's tuple the second stream's may be; 0s when only after is given. Two streams only."""
    after: Span | None = None
    """How long after the first stream's tuple the second stream's may be; 0s when only before is given. Two streams only."""
    rows: Annotated[int, Field(ge=1, lt=2**62)] | None = None
    """Every tuple of a result is among the last so many records of its stream when the newest of them arrives."""
    unbounded: bool | None = None
    """true: all tuples, however far apart. Held tuples are never dropped."""
    slide: PositiveSpan | None = None
    """Windows of time (within, before, after) start only at multiples of this, not with every tuple. Two streams only."""


class Output(Part):
    """What becomes of results."""

    select: Annotated[Texts, Field(min_length=1)] | None = None
    """The output's columns: "orders.id AS order_id", or expressions. By default all held columns, as stream_column."""
    where: Sql | None = None
    """Which results to keep (SQL over the columns of all streams; of semi and anti, of the first)."""
    sink: Sink | None = None
    """Where results go. Required, but where a stream reads them."""
    snapshots: Snapshots | None = None
    """Whether results are kept as snapshots too, sorted by a key, and when those end. By default they are not."""


class Join(Part):
    """One join over the streams. Of two streams the first is the left side, the second the right."""

    name: Annotated[str, StringConstraints(min_length=1, max_length=63)] = "join"
    """A name for the join, in metrics and plans."""
    condition: Sql
    """When tuples match (SQL over the columns of all streams): any predicate."""
    type: Literal["inner", "left", "right", "full", "semi", "anti"] = "inner"
    """inner: all tuples that match one another, one of each stream; left, right, full: also every tuple of the first, the second or both
    streams that matches nothing, once nothing can match it any more; semi: every tuple of the first stream that matches, once; anti: every
    one that matches nothing. Three and more streams: inner."""
    window: Window
    """Which tuples are close enough in time or in number."""
    output: Output
    """What becomes of results."""


class SchemeSpec(Part):
    """How the join is cut among workers."""

    model: Literal["adsp", "square", "hash", "dynamic", "readj", "biclique", "broadcast", "handshake"] = "adsp"
    """adsp: coverage areas with irregular grids, never more workers than square; square: one grid; hash: along the keys, one worker for
    each range; dynamic: one grid of a power of two workers; readj: as hash, but later only keys of workers that are too full move;
    biclique: workers that hold one stream each; broadcast: workers that hold a part of both, and see every tuple; handshake: the same in a
    chain, along which tuples wander from neighbour to neighbour (ESJ), so that results come late; two streams, one inner join."""
    sigma: Annotated[float, Field(ge=0, le=100)] | None = None
    """Of readj: keys move when a worker holds more than 1 + sigma times the mean. 0.1 by default."""
    groups: Annotated[int, Field(ge=1, le=10_000)] | None = None
    """Of biclique: into how many groups the keys of each stream are cut, with a worker each from the start; a tuple is sent only to
    groups that may match. 1 by default."""
    alpha: Annotated[float, Field(gt=0, lt=0.8)] | None = None
    """Of handshake: what uneven loads weigh beside messages when it is decided how many tuples go on at once (ESJ, Theorem 1): the higher,
    the smaller are blocks. 0.5 by default."""


class Resources(Part):
    """What one worker asks for."""

    cpu: CpuAmount = Cpu(1000)
    """Cores of one worker."""
    memory: MemoryAmount = Memory.parse("2Gi")
    """Memory of one worker."""


class Workers(Part):
    """The workers that hold tuples and join them."""

    min: Annotated[int, Field(ge=1, le=10_000)] = 1
    """Never fewer workers than this."""
    max: Annotated[int, Field(ge=1, le=10_000)] = 8
    """Never more workers than this."""
    floor: Annotated[int, Field(ge=0, le=10_000)] = 1
    """Never fewer workers than this for the time being, from min to max; 1 or 0: no more than min. It is the scale that kubectl scale and a
    HorizontalPodAutoscaler set."""
    capacity: CapacityAmount | None = None
    """W: how many bytes of tuples one worker may hold, so that wide tuples count for more than narrow ones. Excludes capacityTuples. By
    default what the worker's memory has room for."""
    capacity_tuples: Annotated[int, Field(ge=1, lt=2**53)] | None = None
    """W: how many tuples one worker may hold, wide ones and narrow ones alike, instead of their bytes. By default capacity says how
    much."""
    resources: Resources = Resources()
    """What one worker asks for."""
    per_executor: Annotated[int, Field(ge=1, le=16)] = 1
    """Kubernetes: how many workers share a pod, which asks for the resources of so many and has one JVM. At most max."""


Day = Literal["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"]
RuleMode = Literal["Enforce", "Recommend", "Off"]


class ScalingRules(Part):
    """What each rule of scaling may do, where it differs from mode: Enforce, Recommend or "Off" (quoted)."""

    allocate: RuleMode | None = None
    """Add workers when they are full. By default the value of scaling.mode."""
    deallocate: RuleMode | None = None
    """Remove workers that are hardly used. By default the value of scaling.mode."""
    replan: RuleMode | None = None
    """Cut the join anew among as many workers, when a better plan is worth its bytes. By default the value of scaling.mode."""
    keep_up: RuleMode | None = None
    """Add workers when epochs take longer than their interval and more and more records wait. By default the value of scaling.mode."""


class Prometheus(Part):
    """Kubernetes: the Prometheus that the operator asks about this join, where it is another than the operator's own."""

    url: HttpUrl | None = None
    """Its address, as http://prometheus.monitoring:9090; one that the operator's chart allows (prometheus.allowedUrls). The operator's
    token is not sent to it."""


class Quiet(Part):
    """A window of the week in which no change of the plan is begun, unless tuples are being lost."""

    start: TimeOfDay
    """When it begins, as 08:00."""
    end: TimeOfDay
    """When it ends; where that is not after start, on the next day."""
    days: Annotated[tuple[Day, ...], Field(strict=False, max_length=7)] = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
    """On which days it begins. By default on all."""
    time_zone: TimeZone = "Etc/UTC"
    """Whose clock is meant, as Europe/Berlin."""


class Budget(Part):
    """How many results may be lost before workers are added."""

    completeness: Percentage
    """The share of the results that is to be there, as 99.9 %. What late tuples lose counts, too."""
    over: BudgetSpan = Duration.parse("1d")
    """Over how long."""

    @property
    def share(self) -> float:
        """The completeness, 0 to 1."""
        return float(self.completeness.removesuffix("%")) / 100


class Scaling(Part):
    """When to add and to remove workers, by tau: what a worker holds / its capacity, in tuples or in bytes."""

    mode: Literal["Enforce", "Recommend", "Off"] = "Enforce"
    """Enforce: scale; Recommend: say what would be done; "Off" (quoted): neither."""
    policy: Literal["thresholds", "esj", "predictive"] = "thresholds"
    """thresholds: workers are added at tau3 and removed at tau0. esj: one at a time, exactly as the paper has it. predictive: added before
    tau2 is reached, by what the rates say that the window is going to hold; removed as soon as idle workers have cost more than a change
    would."""
    rules: ScalingRules = ScalingRules()
    """Modes of single rules."""
    tau0: Tau = 0.2
    """At or below it for scaleDownAfter, workers are removed."""
    tau1: Tau | None = None
    """What a change of workers aims at. Half of tau2 by default."""
    tau2: Tau = 0.8
    """From here on tuples are shed, if shedding is on."""
    tau3: Tau = 0.9
    """At or above it for scaleUpAfter, workers are added."""
    scale_up_after: Span = Duration.parse("30s")
    """How long tau must stay at or above tau3."""
    scale_down_after: Span = Duration.parse("10m")
    """How long tau must stay at or below tau0."""
    floor: Literal["min", "initial"] = "min"
    """Down to how many workers the rules go: min: workers.min; initial: as many as the first plan had, where that is more."""
    quiet: Annotated[tuple[Quiet, ...], Field(strict=False, max_length=16)] = ()
    """Windows of the week in which no change of the plan is begun, unless tuples are being lost."""
    max_per_hour: Annotated[int, Field(ge=0, le=60)] = 0
    """How many changes of the plan there may be in an hour, unless tuples are being lost; 0: any number."""
    budget: Budget | None = None
    """How complete results are to be, where shedding is on: as long as what is lost is within it, a full worker is relieved only if that
    costs less than what is shed, and workers are added before it runs out. Without one a full worker is relieved at any price."""
    prometheus: Prometheus = Prometheus()
    """Kubernetes: where the operator reads what it scales by."""

    @property
    def target(self) -> float:
        """tau1, given or by default."""
        return 0.5 * self.tau2 if self.tau1 is None else self.tau1


class Shedding(Part):
    """Dropping a share of the incoming tuples when workers are nearly full, instead of failing."""

    model: Literal["linear", "quadratic", "off"] = "off"
    """How the share dropped grows from base at tau2 to all at a full worker; "off" (quoted): nothing is dropped."""
    base: Annotated[Fraction, Field(json_schema_extra={"default": "0.0"})] = 0.0
    """The share dropped as soon as tau2 is reached."""
    mode: RuleMode = "Enforce"
    """Enforce: drop it; Recommend: drop nothing, and count what would have been dropped; "Off" (quoted): neither. scaling.mode does not
    count here."""


class Epoch(Part):
    """The engine's step: read, route, join, commit."""

    interval: EpochSpan = Duration.parse("1s")
    """The time from one epoch's start to the next one's, when there is something to do. 0s: as soon as there is."""
    deadline: DeadlineSpan | None = None
    """How long an epoch may go without anything of it moving; then it is given up and done again, and after three times in a row the driver
    ends with exit code 8. By default ten times what the slowest of the last epochs took, and 10 minutes at least."""
    max_tuples: Annotated[int, Field(ge=1, lt=2**53)] = 2_000_000
    """How many tuples of all streams one epoch may take; what is more waits."""
    max_bytes: EpochAmount = Memory.parse("256Mi")
    """How large the records that one epoch takes of all streams may be together, as they are in memory, going by the size of those before
    them; what is more waits."""


class Checkpoint(Part):
    """Where state is kept: exactly one of location and persistentVolumeClaim."""

    location: Location | None = None
    """A directory, as a local path or a URL (file, s3, gs, abfss, az); it belongs to this join alone."""
    persistent_volume_claim: Annotated[str, StringConstraints(min_length=1, max_length=253)] | None = None
    """The name of a claim, on Kubernetes."""
    size: MemoryAmount | None = None
    """Kubernetes: how large the operator makes the claim where there is none of that name. Without it the claim must exist."""
    storage_class_name: Annotated[str, StringConstraints(min_length=1, max_length=253)] | None = None
    """Kubernetes: the storage class of a claim that the operator makes."""
    on_delete: Literal["Retain", "Delete"] = "Retain"
    """Kubernetes: what becomes of the state when the resource is deleted."""


class DeadLetter(Part):
    """Where records go that do not parse, and which others go there."""

    location: Location | None = None
    """A directory, as a local path or a URL (file, s3, gs, abfss, az). By default the directory dead-letters in the checkpoint."""
    late: bool = False
    """true: late tuples are kept there too, as they were parsed."""


class Tls(Part):
    """Kubernetes: TLS among the driver and the workers of this join."""

    secret_name: ObjectName
    """A Secret with tls.crt, tls.key and ca.crt, as cert-manager makes it, for the DNS name sj-NAME.NAMESPACE.svc (the join's Service)."""


class Security(Part):
    """Kubernetes: how the driver and the workers protect what they send each other. A secret is always shown."""

    tls: Tls | None = None
    """TLS among the driver and the workers. Without it, what workers send each other is not encrypted."""


class Pods(Part):
    """Kubernetes: how pods differ from what the operator makes."""

    pod_template: FreeForm = Field(default={})
    """A pod template, merged strategically over the operator's own."""


class Queries(Part):
    """Kubernetes: servers that answer queries from the checkpoint alone (docs/query.md), in pods of their own behind a Service."""

    replicas: Annotated[int, Field(ge=0, le=100)] = 0
    """How many pods; 0: none. The driver answers queries all the same."""
    processes: Annotated[int, Field(ge=1, le=16)] = 1
    """How many queries a pod answers at a time."""
    memory: MemoryAmount = Memory.parse("256Mi")
    """What one query may take. A pod gets that and 256Mi for each of its processes, and 256Mi more."""
    cpu: CpuAmount = Cpu(500)
    """Cores that a pod asks for."""
    flight: bool = False
    """Whether they answer over Arrow Flight, too, at port 8081 of the Service."""
    pod_template: FreeForm = Field(default={})
    """A pod template, merged strategically over the operator's own, which has the driver's place, volumes and environment. Its container is
    named queries."""


class PodMonitor(Part):
    """Kubernetes: the PodMonitor by which Prometheus Operator has the driver scraped."""

    labels: Labels = Field(default={})
    """Its labels, by which a Prometheus may select: release: prometheus, as kube-prometheus-stack does. They go before those of the
    operator's chart (joins.podMonitorLabels)."""


class Metrics(Part):
    """Kubernetes: how the driver's metrics get to Prometheus."""

    pod_monitor: PodMonitor = PodMonitor()
    """The PodMonitor that the operator makes where the cluster knows that kind."""


Annotations = Annotated[dict[str, Annotated[str, StringConstraints(max_length=4096)]], Field(max_length=20)]
OperatorClass = Annotated[str, StringConstraints(max_length=63, pattern=r"^([a-z0-9]([a-z0-9-]*[a-z0-9])?)?$")]


class Spec(Part):
    """What to join and how."""

    streams: Annotated[tuple[Stream, ...], Field(strict=False)]
    """The streams: two to six. Of two, the first is the left side of the join, the second the right."""
    joins: Annotated[tuple[Join, ...], Field(strict=False)]
    """The joins over the streams: of two streams at most 16, of three and more one. A tuple is read once for all of
    them, and held once where they have keys in common."""
    scheme: SchemeSpec = SchemeSpec()
    """How the join is cut among workers."""
    workers: Workers = Workers()
    """The workers that hold tuples and join them."""
    scaling: Scaling = Scaling()
    """When to add and to remove workers."""
    shedding: Shedding = Shedding()
    """What to do when workers are nearly full."""
    epoch: Epoch = Epoch()
    """The engine's step."""
    checkpoint: Checkpoint
    """Where state is kept."""
    dead_letter: DeadLetter | None = None
    """Where records go that do not parse, and which others go there. By default the directory dead-letters in the checkpoint."""
    security: Security = Security()
    """Kubernetes: how the driver and the workers protect what they send each other."""
    metrics: Metrics = Metrics()
    """Kubernetes: how the driver's metrics get to Prometheus."""
    suspend: bool = False
    """true: stop, and keep the state."""
    paused: bool = False
    """Kubernetes: true: what runs goes on as it is; the operator changes nothing of it, and does not scale it."""
    operator_class: OperatorClass = ""
    """Kubernetes: the class of the operator that looks after it. By default the operator that has no class."""
    service_account_annotations: Annotations = Field(default={})
    """Kubernetes: annotations of the service accounts of the driver and of the executors, by which a cloud gives pods an identity."""
    image: Annotated[str, StringConstraints(max_length=1024)] = ""
    """Kubernetes: the engine's image. By default that of the operator's own release."""
    driver: Pods = Pods()
    """Kubernetes: the driver's pod."""
    executor: Pods = Pods()
    """Kubernetes: the workers' pods."""
    queries: Queries = Queries()
    """Kubernetes: servers that answer queries (docs/query.md) apart from the driver. By default there are none."""


class Metadata(Part):
    """The resource's name. Kubernetes' other metadata are accepted and not looked at."""

    model_config = ConfigDict(extra="ignore")

    name: Annotated[str, StringConstraints(min_length=1)]
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
    """Written by the operator; not looked at here."""
