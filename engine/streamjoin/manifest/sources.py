"""Where a stream's tuples come from: the fields of ``source``."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from streamjoin.manifest.field_types import (
    DiscoverySpan,
    Encoding,
    HttpUrl,
    Instant,
    Location,
    Name,
    Number,
    Options,
    PositiveSpan,
    Scalar,
    Span,
    SpanOrNever,
    instant_micros,
)
from streamjoin.manifest.part import Part
from streamjoin.manifest.quantity import Duration


def split_path(path: str) -> tuple[str, str | None]:
    """The directory of a files source's path, and the pattern at its end, if there is one."""
    directory, slash, last = path.rpartition("/")
    return (directory or slash or ".", last) if "*" in last or "?" in last else (path, None)


class FilesSource(Part):
    """The files of a directory and those below it, and those that appear there later. json and csv files are followed while they grow."""

    path: Location
    """The directory, as a local path or a URL (file, s3, gs, abfss, az). Or the names of files directly in it, with * or ? in place of
    pattern, such as logs/app-*.jsonl; or one local file."""
    format: Literal["parquet", "json", "csv"]
    """How the files are written: parquet, json (one object per line) or csv."""
    max_files_per_epoch: Annotated[int, Field(ge=1, le=1_000_000)] = 1000
    """How many files one epoch may take from."""
    pattern: Name = "*"
    """Which file names to read, with *, ? and [...]; names that begin with _ or ., of files and of directories, are never read."""
    recursive: bool = True
    """Whether directories below it are read, too. Their names may give columns, as Hive writes them: day=2026-01-01."""
    header: bool = True
    """csv: whether a file's first line names its columns. If not, the columns are in the schema's order."""
    delimiter: Annotated[str, StringConstraints(min_length=1, max_length=1)] = ","
    """csv: the character between two values."""
    encoding: Encoding = "utf-8"
    """json and csv: the encoding of the text, such as utf-16, latin-1 or windows-1252: any of Python's text encodings. A byte order mark of
    UTF-16 is known without it."""
    settle: SpanOrNever = Duration.parse("5s")
    """json and csv: a last line without a newline, and a compressed file, is read when its file has not changed for this long; never: only
    once the line ends in one."""
    on_replaced: Literal["read", "refuse"] = "read"
    """What to do about a file that was replaced, or cut, since it was read: read it from its beginning, as a new file, or refuse it; both
    with a warning. What had not been read of the old one is lost."""

    @property
    def names(self) -> tuple[str, str]:
        """The directory, and the pattern of names in it, which the path may have at its end."""
        directory, pattern = split_path(self.path)
        return directory, self.pattern if pattern is None else pattern


class Ramp(Part):
    """A rate that changes evenly from one value to another, and stays there."""

    start: Annotated[float, Field(ge=0, le=1e9, alias="from")]
    """Tuples per second at the start."""
    end: Annotated[float, Field(gt=0, le=1e9, alias="to")]
    """Tuples per second from the end of the ramp on."""
    over: PositiveSpan
    """How long the ramp takes."""


class Diurnal(Part):
    """A rate that swings like a day's traffic: mean * (1 + amplitude * sin(2 pi (t + begin) / period))."""

    mean: Annotated[float, Field(gt=0, le=1e9)]
    """Tuples per second on average."""
    amplitude: Annotated[float, Field(ge=0, le=1)]
    """The height of the wave, as a share of the mean."""
    period: PositiveSpan
    """The time from peak to peak."""
    begin: Span = Duration(0)
    """How far into the wave the rate starts. At three quarters of the period it is lowest, and rises."""


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
    """The time from one spike's start to the next one's. Without it there is one spike."""


class Rate(Part):
    """Tuples per second of event time: exactly one of the fields."""

    constant: Annotated[float, Field(gt=0, le=1e9)] | None = None
    """The same number of tuples per second at all times."""
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
    """Values spread evenly over a range, bounds included: whole numbers in columns of whole numbers, real numbers elsewhere."""

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
    """Values spread evenly over a range, except for a share of them in a narrow part that moves across the range."""

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
    """A list of values, drawn with equal probability. null among them makes nulls."""


class GeneratorSource(Part):
    """Made-up tuples, the same ones for the same seed."""

    seed: Annotated[int, Field(ge=0, lt=2**63)] = 1
    """The seed of everything random."""
    rows: Annotated[int, Field(ge=1, lt=2**62)] | None = None
    """How many tuples in all. Without it there is no end."""
    rate: Rate = Rate(constant=1000.0)
    """The rate: tuples per second of event time."""
    start: Instant = "2026-01-01T00:00:00Z"
    """The event time of the first tuple, as ISO 8601. Without a zone it is UTC."""
    real_time: bool = True
    """true: tuples come no faster than the wall clock allows, from the first epoch on; false: as fast as the engine reads them."""
    out_of_order: Span = Duration(0)
    """Event times are moved back by a random amount up to this."""
    columns: Annotated[dict[str, ColumnGenerator], Field(max_length=1000)]
    """How each column is filled. Every column of the schema must be here, except the eventTime column, which the rate fills."""

    @property
    def start_micros(self) -> int:
        """``start`` in microseconds since 1970 UTC."""
        return instant_micros(self.start)


class SchemaRegistry(Part):
    """A schema registry that speaks the protocol of Confluent's."""

    url: HttpUrl
    """Its address, with the path of its API where it has one."""
    options: Options = Field(default={})
    """username and password, or bearer.auth.token; ssl.ca.location, and of a client certificate ssl.certificate.location, ssl.key.location
    and ssl.key.password; a value file:/path is that file's content, env:NAME that variable's."""


class KafkaMetadata(Part):
    """Columns of what a record has besides its value."""

    key: Name | None = None
    """The column that has the key: BINARY or STRING."""
    timestamp: Name | None = None
    """The column that has the record's time, the producer's or the broker's: TIMESTAMP."""
    topic: Name | None = None
    """The column that has the topic: STRING."""
    partition: Name | None = None
    """The column that has the partition: INT."""
    offset: Name | None = None
    """The column that has the offset: BIGINT."""
    headers: Annotated[dict[str, Name], Field(max_length=100)] = Field(default={})
    """By header's name, the column that has its value, of several the last: BINARY or STRING."""

    def columns(self) -> list[tuple[str, str]]:
        """(what it has, column); a header is ``header:NAME``."""
        given = {"key": self.key, "timestamp": self.timestamp, "topic": self.topic, "partition": self.partition, "offset": self.offset}
        return [(kind, name) for kind, name in given.items() if name is not None] + [
            (f"header:{header}", name) for header, name in self.headers.items()
        ]


class KafkaSource(Part):
    """Records of one Kafka topic, or of all topics whose names match a pattern: all their partitions, also those that are added later."""

    bootstrap_servers: Annotated[str, StringConstraints(min_length=1, max_length=10_000)]
    """The brokers' addresses: host:port, separated by commas."""
    topic: Annotated[str, StringConstraints(min_length=1, max_length=249)] | None = None
    """The topic."""
    topic_pattern: Annotated[str, StringConstraints(min_length=1, max_length=1000)] | None = None
    """A Python regular expression for the whole names of topics, instead of topic. All topics that match are read, also those that appear
    later. Kafka's internal topics, whose names begin with __, never match."""
    discovery_interval: DiscoverySpan | None = None
    """With topicPattern: how often, at most, the brokers are asked for the list of topics. By default 5s."""
    format: Literal["json", "raw", "avro", "protobuf", "jsonSchema"] = "json"
    """json: a record's value is one JSON object; raw: the columns are those of the record, such as key, value, offset and timestamp; avro,
    protobuf and jsonSchema: a value names its schema by the id that a schema registry gave it."""
    schema_registry: SchemaRegistry | None = None
    """avro, protobuf and jsonSchema: the registry that has the schemas."""
    starting_offsets: Literal["earliest", "latest"] = "earliest"
    """Where a new checkpoint begins; partitions and topics that are added later are read from their start."""
    starting_timestamp: Instant | None = None
    """Where a new checkpoint begins instead: with each partition's first record of that time or later, as ISO 8601; without a zone it is
    UTC."""
    metadata: KafkaMetadata | None = None
    """Columns of the record's key, time, headers and place, beside those of its value."""
    on_data_loss: Literal["fail", "skip"] = "fail"
    """What to do if retention removed records before they were read, or if a topic was deleted, or deleted and recreated: fail, or skip the
    lost records with a warning."""
    group_id: Annotated[str, StringConstraints(min_length=1, max_length=255)] | None = None
    """The consumer group that is told the offsets of each commit, for lag monitors. By default streamjoin- and the resource's name."""
    idle_timeout: PositiveSpan = Duration.parse("30s")
    """A partition that has had no record for this long does not hold the stream's watermark back."""
    timeout: PositiveSpan = Duration.parse("30s")
    """How long brokers may be out of reach before an epoch fails; a failed epoch is tried again."""
    options: Options = Field(default={})
    """Settings of librdkafka, such as security.protocol; a value file:/path is that file's content, env:NAME that variable's."""

    @property
    def starting_micros(self) -> int:
        """``starting_timestamp``, which must be given, in microseconds since 1970 UTC."""
        assert self.starting_timestamp is not None
        return instant_micros(self.starting_timestamp)


class DeltaSource(Part):
    """The rows that are added to a Delta table, version by version."""

    path: Location
    """The table's root, as a local path or a URL (file, s3, gs, abfss, az)."""
    starting_version: Annotated[int, Field(ge=0, lt=2**63)] | None = None
    """The version with whose added rows a new checkpoint begins. By default it begins with all rows of the table."""
    on_change: Literal["fail", "skip"] = "fail"
    """What to do about a version that deletes or changes rows: fail, or skip it with a warning."""
    max_files_per_epoch: Annotated[int, Field(ge=1, le=1_000_000)] = 1000
    """How many files one epoch may take from."""


class IcebergSource(Part):
    """The rows that are appended to an Iceberg table, snapshot by snapshot."""

    table: Annotated[str, StringConstraints(min_length=3, max_length=500)]
    """The table, with its namespace: namespace.table."""
    catalog: Options
    """Properties of PyIceberg's catalog: type (rest, sql, glue, hive, ...), uri, warehouse and others. A value file:/path is read from that
    file, env:NAME from that variable."""
    catalog_name: Name = "default"
    """The catalog's name. SQL catalogs store it with each table."""
    starting_snapshot: Annotated[int, Field(ge=0, lt=2**63)] | None = None
    """The snapshot with whose added rows a new checkpoint begins. By default it begins with all rows of the table."""
    on_change: Literal["fail", "skip"] = "fail"
    """What to do about a snapshot that deletes or changes rows: fail, or skip it with a warning."""
    max_files_per_epoch: Annotated[int, Field(ge=1, le=1_000_000)] = 1000
    """How many files one epoch may take from."""


class Source(Part):
    """Where a stream's tuples come from: exactly one of the fields."""

    files: FilesSource | None = None
    """Files in a directory."""
    generator: GeneratorSource | None = None
    """Made-up tuples, to try things and to measure."""
    kafka: KafkaSource | None = None
    """A Kafka topic, or several."""
    delta: DeltaSource | None = None
    """The rows added to a Delta table."""
    iceberg: IcebergSource | None = None
    """The rows appended to an Iceberg table."""
    join: Annotated[str, StringConstraints(min_length=1, max_length=63)] | None = None
    """The results of another join of this manifest, given by the join's name."""
