"""The manifest as typed data: every field with its type, default, bounds and meaning in one place.

The same models check what a user wrote, give the field tables of ``docs/manifest.md``, and their JSON schema is what a
custom resource definition needs. They say what each field may be by itself; ``manifest.validate`` says what fields must
be together.

Always holds: instances are immutable; attributes are the manifest's names in snake case, and where those are words of
Python (``from``, ``for``) or of pydantic (``schema``), another name with the manifest's as its alias.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any, Generic, Literal, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    PlainSerializer,
    PlainValidator,
    StringConstraints,
    WithJsonSchema,
)
from pydantic.alias_generators import to_camel
from pydantic.json_schema import GenerateJsonSchema
from pydantic_core import CoreSchema, core_schema

from streamjoin.location import place
from streamjoin.manifest.cel import Rule, seconds
from streamjoin.manifest.quantity import Cpu, Duration, Memory, Quantity

API_VERSION = "streamjoin.dev/v1alpha1"
KIND = "StreamJoin"


class UnparsedError(AttributeError):
    """A field was read whose value in the manifest was refused."""


class Part(BaseModel):
    """What every part of a manifest has in common: unknown fields refused, no silent conversion of types, immutable.

    ``manifest.validate`` makes parts without the fields that it refused, to check the rest; reading one of those raises
    UnparsedError.
    """

    model_config = ConfigDict(
        alias_generator=to_camel,
        extra="forbid",
        frozen=True,
        strict=True,
        use_attribute_docstrings=True,
    )

    if not TYPE_CHECKING:  # a type checker should go on refusing names that no field has

        def __getattr__(self, name: str) -> object:
            if name in type(self).model_fields:
                raise UnparsedError(name)
            return super().__getattr__(name)


class SchemaGenerator(GenerateJsonSchema):
    """``Manifest.model_json_schema(schema_generator=SchemaGenerator)``: quantities' defaults as their text."""

    def encode_default(self, dft: Any) -> Any:
        return str(dft) if isinstance(dft, Quantity) else super().encode_default(dft)


def _number(value: object) -> int | float:
    if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
        return value
    raise ValueError("is not a number; write one without quotes")


def _scalar(value: object) -> str | int | float | bool | None:
    if value is None or isinstance(value, str | int | bool) or (isinstance(value, float) and math.isfinite(value)):
        return value
    raise ValueError("is not a value of a column; write a string, a number, true, false or null")


def _setting(value: object) -> str | int | float | bool:
    if isinstance(value, str | int | bool) or (isinstance(value, float) and math.isfinite(value)):
        return value
    raise ValueError("is not a setting; write text, a number, true or false")


_LONGEST_FRACTION = 20
_HTTP_URL = "https?://[A-Za-z0-9.-]+(:[0-9]{1,5})?(/[A-Za-z0-9._~/-]*)?"
_OBJECT_NAME = "[a-z0-9]([a-z0-9.-]*[a-z0-9])?"
_NO_OBJECT_NAME = "is not a name of an object; use lower-case letters, digits and, inside, - and ."
_NO_HTTP_URL = "is not the address of a server; write http:// or https://, a host, a port if need be, and no more than a path"


def _fraction(value: object) -> object:
    """Kubernetes has its reasons to store fractions as text, so those that are not whole must be."""
    if isinstance(value, str):
        if len(value) > _LONGEST_FRACTION or not re.fullmatch(r"(0|[1-9][0-9]*)(\.[0-9]+)?", value):
            raise ValueError('is not a number; write one between 0 and 1, such as "0.1"')
        return float(value)
    if isinstance(value, float) and not value.is_integer():
        raise ValueError(f'must be text, which alone Kubernetes keeps as it is; put it in quotes: "{value:.15g}"')
    return value


def instant_micros(text: str) -> int:
    """Microseconds since 1970 UTC of an ISO 8601 date and time. Raises ValueError saying how to write it."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError("is not a date and time; write it as 2026-01-01T00:00:00Z") from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)


def _instant(value: str) -> str:
    instant_micros(value)
    return value


def _location(value: str) -> str:
    place(value)
    return value


def _http_url(value: str) -> str:
    if not re.fullmatch(_HTTP_URL, value):
        raise ValueError(_NO_HTTP_URL)
    return value


def _secret_name(value: str) -> str:
    if not re.fullmatch(_OBJECT_NAME, value):
        raise ValueError(_NO_OBJECT_NAME)
    return value


_Ordered = TypeVar("_Ordered", Duration, Memory, Cpu)


@dataclass(frozen=True, slots=True)
class _Between(Generic[_Ordered]):
    """The closed range of a quantity, here and for the API server."""

    low: _Ordered
    high: _Ordered

    @property
    def message(self) -> str:
        return f"must be at least {self.low} and at most {self.high}"

    def check(self, value: _Ordered) -> _Ordered:
        if not self.low <= value <= self.high:
            raise ValueError(self.message)
        return value

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_after_validator_function(self.check, handler(source))

    def __get_pydantic_json_schema__(self, core: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return Rule(self._expression(), self.message).__get_pydantic_json_schema__(core, handler)

    def _expression(self) -> str:
        if not isinstance(self.low, Duration) or not isinstance(self.high, Duration):
            amount = "quantity(string(self))"
            return f"{amount}.compareTo(quantity('{self.low}')) >= 0 && {amount}.compareTo(quantity('{self.high}')) <= 0"
        length = seconds("self")
        upper = f"{length} <= {self.high.micros / 1e6}"
        # A duration is above 0 if it has another digit than 0.
        lower = {0: "", 1: "self.matches('[1-9]') && "}.get(self.low.micros, f"{length} >= {self.low.micros / 1e6} && ")
        return lower + upper


LONGEST = Duration.parse("36500d")
"""A hundred years: far from where sums of event times and durations would leave 64 bits."""

Span = Annotated[Duration, _Between(Duration(0), LONGEST)]
"""A duration that may be 0."""
PositiveSpan = Annotated[Duration, _Between(Duration(1), LONGEST)]
EpochSpan = Annotated[Duration, _Between(Duration.parse("0s"), Duration.parse("1h"))]
MemoryAmount = Annotated[Memory, _Between(Memory.parse("64Mi"), Memory.parse("16Ti"))]
CpuAmount = Annotated[Cpu, _Between(Cpu.parse("100m"), Cpu.parse("256"))]
Number = Annotated[int | float, PlainValidator(_number), WithJsonSchema({"type": "number"})]
Scalar = Annotated[
    str | int | float | bool | None,
    PlainValidator(_scalar),
    WithJsonSchema({"x-kubernetes-preserve-unknown-fields": True}),
]
Fraction = Annotated[
    float,
    BeforeValidator(_fraction),
    Field(ge=0, le=1),
    PlainSerializer(str, return_type=str),
    WithJsonSchema(
        {
            "x-kubernetes-int-or-string": True,
            "minimum": 0,
            "maximum": 1,
            "maxLength": _LONGEST_FRACTION,
            "pattern": r"^(0(\.[0-9]+)?|1(\.0+)?)$",
        }
    ),
]
Tau = Annotated[float, Field(gt=0, le=1)]
Location = Annotated[
    str,
    StringConstraints(min_length=1, max_length=1024),
    AfterValidator(_location),
    Rule(
        "!self.matches('^[A-Za-z][A-Za-z0-9+.-]*:/') || self.matches('^(?i:file|s3|s3a|gs|abfs|abfss|az):/')",
        "begins with no store that is known; give a local path or a file://, s3://, gs://, abfss:// or az:// URL",
    ),
    Rule(
        "!self.matches('^(?i:s3|s3a|gs|abfs|abfss|az):/')"
        " || self.matches('^(?i:s3|s3a|gs|az)://[^/]') || self.matches('^(?i:abfs|abfss)://[^/]*@')",
        "does not say where in the store; write it as s3://bucket/path or abfss://container@account.dfs.core.windows.net/path",
    ),
    Rule("self.trim() == self", "is not a place; give a local path or a URL, without spaces around it"),
    Rule("!self.startsWith('~')", "begins with ~, which only a shell expands; write the directory's full path"),
]
HttpUrl = Annotated[
    str,
    StringConstraints(min_length=1, max_length=1024),
    AfterValidator(_http_url),
    Rule(f"self.matches('^{_HTTP_URL}$')", _NO_HTTP_URL),
]
Sql = Annotated[str, StringConstraints(min_length=1, max_length=10_000)]
Name = Annotated[str, StringConstraints(min_length=1, max_length=255)]
FreeForm = Annotated[dict[str, Any], WithJsonSchema({"type": "object", "x-kubernetes-preserve-unknown-fields": True})]
Setting = Annotated[
    str | int | float | bool,
    PlainValidator(_setting),
    WithJsonSchema({"x-kubernetes-preserve-unknown-fields": True}),
]
Options = Annotated[dict[str, Setting], Field(max_length=200)]
"""Settings of a library, by name."""

# Strict models take only tuples for tuples, and YAML has only lists: the sequence alone is read leniently.
Texts = Annotated[tuple[Sql, ...], Field(strict=False, max_length=1000)]
Names = Annotated[tuple[Name, ...], Field(strict=False, max_length=1000)]


class FilesSource(Part):
    """Files that appear in one directory, and, for json and csv, that grow there."""

    path: Location
    """The directory, as a local path or a URL (file, s3, gs, abfss, az); directories below it are not read."""
    format: Literal["parquet", "json", "csv"]
    """How the files are written: parquet, json (one object a line) or csv."""
    max_files_per_epoch: Annotated[int, Field(ge=1, le=1_000_000)] = 1000
    """How many files one epoch may take from."""
    pattern: Name = "*"
    """Which file names to read, with *, ? and [...]; names that begin with _ or . are never read."""
    header: bool = True
    """csv: whether a file's first line names its columns; without it the columns come in the schema's order."""
    delimiter: Annotated[str, StringConstraints(min_length=1, max_length=1)] = ","
    """csv: the character between two values."""
    settle: Span = Duration.parse("5s")
    """json and csv: a last line that has no newline is taken when its file has not changed for this long."""


class Ramp(Part):
    """A rate that goes evenly from one value to another, and stays there."""

    start: Annotated[float, Field(ge=0, le=1e9, alias="from")]
    """Tuples per second at the start."""
    end: Annotated[float, Field(gt=0, le=1e9, alias="to")]
    """Tuples per second from the end of the ramp on."""
    over: PositiveSpan
    """How long the ramp takes."""


class Diurnal(Part):
    """A rate that swings like a day's traffic: mean * (1 + amplitude * sin(2 pi t / period))."""

    mean: Annotated[float, Field(gt=0, le=1e9)]
    """Tuples per second on average."""
    amplitude: Annotated[float, Field(ge=0, le=1)]
    """The swing's share of the mean."""
    period: PositiveSpan
    """The time from peak to peak."""


class Spike(Part):
    """A steady rate with spikes."""

    base: Annotated[float, Field(gt=0, le=1e9)]
    """Tuples per second outside the spikes."""
    peak: Annotated[float, Field(gt=0, le=1e9)]
    """Tuples per second within a spike."""
    at: Span
    """When the first spike starts."""
    length: Annotated[PositiveSpan, Field(alias="for")]
    """How long a spike lasts."""
    every: PositiveSpan | None = None
    """The time from one spike's start to the next one's; without it there is one spike."""


class Rate(Part):
    """Tuples per second of event time: exactly one of the fields."""

    constant: Annotated[float, Field(gt=0, le=1e9)] | None = None
    """Always as many tuples per second."""
    ramp: Ramp | None = None
    """From one rate to another."""
    diurnal: Diurnal | None = None
    """Up and down like a day's traffic."""
    spike: Spike | None = None
    """Steady with spikes."""


class Sequence(Part):
    """Consecutive numbers."""

    start: Annotated[int, Field(ge=-(2**63), lt=2**63)] = 0
    """The first tuple's value."""


class Uniform(Part):
    """Values spread evenly over a closed range: whole numbers in columns of whole numbers, real ones elsewhere."""

    min: Number
    """The least value."""
    max: Number
    """The greatest value."""


class Zipf(Part):
    """Whole numbers from 0, where value k is drawn in proportion to 1 / (k + 1)^exponent."""

    values: Annotated[int, Field(ge=1, le=10_000_000)]
    """How many values there are."""
    exponent: Annotated[float, Field(ge=0, le=10)]
    """The skew: 0 is even, 1 and more heavily skewed."""


class Hotspot(Part):
    """Values spread evenly over a range, but for a share of them in a narrow part that moves across it."""

    min: Number
    """The least value."""
    max: Number
    """The greatest value."""
    width: Number
    """How wide the hot part is."""
    share: Annotated[float, Field(ge=0, le=1)]
    """The share of tuples that fall into the hot part."""
    period: PositiveSpan
    """How long the hot part takes across the range; then it starts again."""


class ColumnGenerator(Part):
    """How one column is filled: exactly one of the fields."""

    sequence: Sequence | None = None
    """Consecutive numbers."""
    uniform: Uniform | None = None
    """Numbers spread evenly over a range."""
    zipf: Zipf | None = None
    """Skewed whole numbers, 0 the most frequent."""
    hotspot: Hotspot | None = None
    """Numbers with a hot range that moves."""
    choice: Annotated[tuple[Scalar, ...], Field(strict=False, min_length=1, max_length=100_000)] | None = None
    """One of these values, each as likely; null among them makes nulls."""


class GeneratorSource(Part):
    """Made-up tuples, the same ones for the same seed."""

    seed: Annotated[int, Field(ge=0, lt=2**63)] = 1
    """Everything random follows from it."""
    rows: Annotated[int, Field(ge=1, lt=2**62)] | None = None
    """How many tuples in all; without it there is no end."""
    rate: Rate = Rate(constant=1000.0)
    """How fast event time passes: tuples per second of it."""
    start: Annotated[str, StringConstraints(max_length=64), AfterValidator(_instant)] = "2026-01-01T00:00:00Z"
    """The event time of the first tuple, as ISO 8601; without a zone it is UTC."""
    real_time: bool = True
    """true: no faster than the wall clock, from the first epoch on; false: as fast as the engine takes it."""
    out_of_order: Span = Duration(0)
    """Event times are moved back by a random amount up to this."""
    columns: Annotated[dict[str, ColumnGenerator], Field(max_length=1000)]
    """By column, how it is filled. Every column of the schema but the eventTime column, which the rate fills."""

    @property
    def start_micros(self) -> int:
        """``start`` in microseconds since 1970 UTC."""
        return instant_micros(self.start)


class KafkaSource(Part):
    """Records of one Kafka topic, of all its partitions and those that are added."""

    bootstrap_servers: Annotated[str, StringConstraints(min_length=1, max_length=10_000)]
    """Where to find the brokers: host:port, more of them after commas."""
    topic: Annotated[str, StringConstraints(min_length=1, max_length=249)]
    """The topic."""
    format: Literal["json", "raw"] = "json"
    """json: a record's value is one JSON object; raw: the columns are those of the record, such as key, value, offset and timestamp."""
    starting_offsets: Literal["earliest", "latest"] = "earliest"
    """Where a new checkpoint begins; partitions that are added later are read from their start."""
    on_data_loss: Literal["fail", "skip"] = "fail"
    """When retention has removed records that were not read yet: fail, or skip them, counted in a warning."""
    group_id: Annotated[str, StringConstraints(min_length=1, max_length=255)] | None = None
    """The consumer group that is told the offsets of each commit, for lag monitors. By default streamjoin- and the resource's name."""
    idle_timeout: PositiveSpan = Duration.parse("30s")
    """A partition that has had no record for this long does not hold the stream's watermark back."""
    timeout: PositiveSpan = Duration.parse("30s")
    """How long brokers may be out of reach before an epoch fails; a failed epoch is tried again."""
    options: Options = {}
    """Settings of librdkafka, such as security.protocol; a value file:/path is that file's content, env:NAME that variable's."""


class Source(Part):
    """Where a stream's tuples come from: exactly one of the fields."""

    files: FilesSource | None = None
    """Files in a directory."""
    generator: GeneratorSource | None = None
    """Made-up tuples, to try things and to measure."""
    kafka: KafkaSource | None = None
    """A Kafka topic."""


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
    ddl: Annotated[str, StringConstraints(min_length=1, max_length=100_000), Field(alias="schema")]
    """The columns and their types, as Spark DDL: "id BIGINT, price DECIMAL(10,2), at TIMESTAMP"."""
    event_time: Annotated[str, StringConstraints(max_length=255)] | None = None
    """The TIMESTAMP or TIMESTAMP_NTZ column that says when a tuple happened. Windows of time need it."""
    watermark: Span = Duration(0)
    """How much later than the latest tuple seen a tuple may be and still be joined."""
    where: Sql | None = None
    """Which tuples to take (SQL over this stream's columns); the others are dropped where they are read."""
    select: Names | None = None
    """The columns to hold for residual predicates and output. By default what the join and the output need."""
    expected_rate: Annotated[float, Field(gt=0, le=1e9)] | None = None
    """Tuples per second to expect, from which the first number of workers follows."""


class Window(Part):
    """Which pairs are close enough: within; or before and after; or rows; or unbounded."""

    within: Span | None = None
    """The two event times differ by at most this."""
    before: Span | None = None
    """How long before the first stream's tuple the second stream's may be; 0s when only after is given."""
    after: Span | None = None
    """How long after the first stream's tuple the second stream's may be; 0s when only before is given."""
    rows: Annotated[int, Field(ge=1, lt=2**62)] | None = None
    """The earlier tuple is among the last so many records of its stream when the later one arrives."""
    unbounded: bool | None = None
    """true: every pair, however far apart. Held tuples are never dropped."""
    slide: PositiveSpan | None = None
    """Windows of time start only at multiples of this, not with every tuple."""


class FilesSink(Part):
    """New files in one directory, complete when they appear."""

    path: Location
    """The directory, as a local path or a URL (file, s3, gs, abfss, az); it is made when missing."""
    format: Literal["parquet", "json"] = "parquet"
    """How to write: parquet, or json (one object a line)."""
    compression: Literal["snappy", "zstd", "none"] | None = None
    """How to compress parquet: snappy by default. json is not compressed."""


class ConsoleSink(Part):
    """Results on standard output, for trying things."""

    limit: Annotated[int, Field(ge=0, le=10_000)] = 20
    """How many rows of an epoch are shown; the others are only counted."""


class KafkaSink(Part):
    """One Kafka topic: each result as a JSON object, with an identity by which readers drop repeats."""

    bootstrap_servers: Annotated[str, StringConstraints(min_length=1, max_length=10_000)]
    """Where to find the brokers: host:port, more of them after commas."""
    topic: Annotated[str, StringConstraints(min_length=1, max_length=249)]
    """The topic."""
    key: Name | None = None
    """The output's column that becomes the records' key, and so chooses their partition."""
    timeout: PositiveSpan = Duration.parse("30s")
    """How long brokers may be out of reach before an epoch fails; its results are sent when they are back."""
    options: Options = {}
    """Settings of librdkafka, such as security.protocol; a value file:/path is that file's content, env:NAME that variable's."""


class Sink(Part):
    """Where results go: exactly one of the fields."""

    files: FilesSink | None = None
    """Files in a directory: each result exactly once."""
    console: ConsoleSink | None = None
    """Standard output."""
    kafka: KafkaSink | None = None
    """A Kafka topic: each result at least once, with an identity that tells repeats."""


class Output(Part):
    """What becomes of a matching pair."""

    select: Annotated[Texts, Field(min_length=1)] | None = None
    """The output's columns: "orders.id AS order_id", or expressions. By default all held columns, as stream_column."""
    where: Sql | None = None
    """Which results to keep (SQL over the columns of both streams)."""
    sink: Sink
    """Where results go."""


class Join(Part):
    """One join over the streams. The first stream is the left side, the second the right."""

    name: Annotated[str, StringConstraints(min_length=1, max_length=63)] = "join"
    """A name for the join, in metrics and plans."""
    on: Sql
    """When two tuples match (SQL over the columns of both streams): any predicate."""
    window: Window
    """Which pairs are close enough in time or in number."""
    output: Output
    """What becomes of a matching pair."""


class SchemeSpec(Part):
    """How the join is cut among workers."""

    model: Literal["adsp", "square", "hash", "dynamic", "readj", "biclique", "chain"] = "adsp"
    """adsp: coverage areas with irregular grids, never more workers than square; square: one grid; hash: along the keys, one worker for
    each range; dynamic: one grid of a power of two workers; readj: as hash, but later only keys of workers that are too full move;
    biclique: workers that hold one stream each; chain: workers that hold a part of both, and see every tuple."""
    sigma: Annotated[float, Field(ge=0, le=100)] | None = None
    """Of readj: keys move when a worker holds more than 1 + sigma times the mean. 0.1 by default."""
    groups: Annotated[int, Field(ge=1, le=1024)] | None = None
    """Of biclique: into how many groups the keys of each stream are cut, with a worker each from the start; a tuple is sent only to
    groups that may match. 1 by default."""


class Resources(Part):
    """What one worker asks for."""

    cpu: CpuAmount = Cpu(1000)
    """Cores of one worker."""
    memory: MemoryAmount = Memory.parse("2Gi")
    """Memory of one worker."""


class Workers(Part):
    """The workers that hold tuples and join them."""

    min: Annotated[int, Field(ge=1, le=1024)] = 1
    """Never fewer workers than this."""
    max: Annotated[int, Field(ge=1, le=1024)] = 8
    """Never more workers than this."""
    floor: Annotated[int, Field(ge=0, le=1024)] = 0
    """Never fewer workers than this for the time being, from min to max; 0: no more than min. kubectl scale sets it."""
    capacity_tuples: Annotated[int, Field(ge=1, lt=2**53)] = 2_000_000
    """W: how many tuples one worker may hold."""
    resources: Resources = Resources()
    """What one worker asks for."""


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
    """Its address, as http://prometheus.monitoring:9090. The operator's token is not sent to another host than that of its own setting."""


class Scaling(Part):
    """When to add and to remove workers, by tau: the tuples that a worker holds / its capacity."""

    mode: Literal["Enforce", "Recommend", "Off"] = "Enforce"
    """Enforce: scale; Recommend: say what would be done; "Off" (quoted): neither."""
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


class Epoch(Part):
    """The engine's step: read, route, join, commit."""

    interval: EpochSpan = Duration.parse("1s")
    """The time from one epoch's start to the next one's, when there is something to do. 0s: as soon as there is."""
    max_tuples: Annotated[int, Field(ge=1, lt=2**53)] = 2_000_000
    """How many tuples of all streams one epoch may take; what is more waits."""


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
    """Where records go that do not parse."""

    location: Location
    """A directory, as a local path or a URL (file, s3, gs, abfss, az)."""


class Tls(Part):
    """Kubernetes: TLS among the driver and the workers of this join."""

    secret_name: Annotated[
        str,
        StringConstraints(min_length=1, max_length=253),
        AfterValidator(_secret_name),
        Rule(f"self.matches('^{_OBJECT_NAME}$')", _NO_OBJECT_NAME),
    ]
    """A Secret with tls.crt, tls.key and ca.crt, as cert-manager makes it, for the DNS name sj-NAME.NAMESPACE.svc (the join's Service)."""


class Security(Part):
    """Kubernetes: how the driver and the workers protect what they send each other. A secret is always shown."""

    tls: Tls | None = None
    """TLS among the driver and the workers. Without it, what workers send each other is not encrypted."""


class Pods(Part):
    """Kubernetes: how pods differ from what the operator makes."""

    pod_template: FreeForm = {}
    """A pod template, merged strategically over the operator's own."""


class Spec(Part):
    """What to join and how."""

    streams: Annotated[tuple[Stream, ...], Field(strict=False)]
    """The streams: two. The first is the left side of the join, the second the right."""
    joins: Annotated[tuple[Join, ...], Field(strict=False)]
    """The joins over the streams: one."""
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
    """Where records go that do not parse. By default the directory dead-letters in the checkpoint."""
    security: Security = Security()
    """Kubernetes: how the driver and the workers protect what they send each other."""
    suspend: bool = False
    """true: stop, and keep the state."""
    image: Annotated[str, StringConstraints(max_length=1024)] = ""
    """Kubernetes: the engine's image. By default that of the operator's own release."""
    driver: Pods = Pods()
    """Kubernetes: the driver's pod."""
    executor: Pods = Pods()
    """Kubernetes: the workers' pods."""


class Metadata(Part):
    """The resource's name. Kubernetes' other metadata are accepted and not looked at."""

    model_config = ConfigDict(extra="ignore")

    name: Annotated[str, StringConstraints(min_length=1)]
    """The resource's name: lower-case letters, digits and -, at most 63."""
    namespace: str | None = None
    """Kubernetes: the namespace."""


class Manifest(Part):
    """One StreamJoin resource."""

    api_version: Literal["streamjoin.dev/v1alpha1"]
    """streamjoin.dev/v1alpha1"""
    kind: Literal["StreamJoin"]
    """StreamJoin"""
    metadata: Metadata
    """The resource's name."""
    spec: Spec
    """What to join and how."""
    status: FreeForm | None = None
    """Written by the operator; not looked at here."""
