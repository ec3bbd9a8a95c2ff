"""Topics of Kafka: options that leave results exact, raw columns that a record has, patterns of topics.

Always holds: an option that passes here cannot change which records are read, or how often, or whether a result is lost.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, ClassVar, Literal

from pydantic import Field, StringConstraints

from streamjoin.language.schema import Schema
from streamjoin.language.topics import INTERNAL, matches, why_no_pattern
from streamjoin.language.types import DataType, TypeName
from streamjoin.manifest.cel import Rule
from streamjoin.manifest.checks import Check, until_refused
from streamjoin.manifest.connector import KAFKA_METRICS, Package, SinkConnector, SourceConnector
from streamjoin.manifest.field_types import DiscoverySpan, HttpUrl, Instant, Name, Options, PositiveSpan, instant_micros
from streamjoin.manifest.options import option_field, option_problems, reference_problems, secret_remarks
from streamjoin.manifest.part import Part
from streamjoin.manifest.problem import Problem, closest, listed, meant
from streamjoin.manifest.quantity import Duration
from streamjoin.manifest.rules import exactly_one, is_given, rule
from streamjoin.manifest.text import field_name

PROTOBUF = Package("grpcio-tools", "grpc_tools", "protobuf")
_ONE_TOPIC = "Kafka topic "
_BY_PATTERN = "Kafka topics by pattern"
"""What a stream of topics by pattern is of, whatever the pattern."""
_TOPIC = re.compile(r"(?!\.\.?$)[A-Za-z0-9._-]+")
_TOPIC_RULE = "self.topic.matches('^[A-Za-z0-9._-]+$') && !(self.topic in ['.', '..'])"

RAW_COLUMNS: Mapping[str, tuple[TypeName, ...]] = {
    "key": (TypeName.BINARY, TypeName.STRING),
    "value": (TypeName.BINARY, TypeName.STRING),
    "topic": (TypeName.STRING,),
    "partition": (TypeName.INT,),
    "offset": (TypeName.BIGINT,),
    "timestamp": (TypeName.TIMESTAMP,),
}
"""The columns that a stream of format raw may have, and as what."""

_SERVERS = "is bootstrapServers here; remove it"
_OFFSETS = "would move offsets past the checkpoint, which alone says what has been read; remove it"
_BOTH: Mapping[str, str] = {
    "bootstrap.servers": _SERVERS,
    "metadata.broker.list": _SERVERS,
}
_SOURCE: Mapping[str, str] = {
    "group.id": "is groupId here; remove it",
    "auto.offset.reset": "would jump over records; say startingOffsets and onDataLoss instead",
    "enable.auto.commit": _OFFSETS,
    "auto.commit.enable": _OFFSETS,
    "enable.auto.offset.store": _OFFSETS,
    "enable.partition.eof": "is set by the engine, which needs it to know the end of a partition; remove it",
    "isolation.level": "is always read_committed, so that no record is joined whose transaction is aborted later; remove it",
    "group.instance.id": "is for members of a group, and partitions are assigned by the engine; remove it",
    "group.protocol": "is for members of a group, and partitions are assigned by the engine; remove it",
    "partition.assignment.strategy": "is for members of a group, and partitions are assigned by the engine; remove it",
}
_DELIVERY = "is set by the engine, so that each result arrives; remove it"
_SINK: Mapping[str, str] = {
    "enable.idempotence": _DELIVERY,
    "acks": _DELIVERY,
    "request.required.acks": _DELIVERY,
    "retries": _DELIVERY,
    "message.send.max.retries": _DELIVERY,
    "delivery.report.only.error": _DELIVERY,
    "enable.gapless.guarantee": _DELIVERY,
    "message.timeout.ms": "is timeout here; remove it",
    "delivery.timeout.ms": "is timeout here; remove it",
    "transactional.id": "is the engine's own, with delivery: exactlyOnce; remove it",
}
_CALLBACKS = re.compile(r".*_cb|logger|on_delivery|on_commit")
_REGISTERED = ("avro", "protobuf", "jsonSchema")
_WRITTEN = ("avro", "jsonSchema")
_NEEDS = {"password": "username", "ssl.key.location": "ssl.certificate.location", "ssl.key.password": "ssl.key.location"}
_REGISTRY = (
    *("username", "password", "bearer.auth.token"),
    *("ssl.ca.location", "ssl.certificate.location", "ssl.key.location", "ssl.key.password"),
)


def _named_topic(expression: str) -> Rule:
    """That the topic, where there is one, has the name of one."""
    message = "is not the name of a topic; use letters, digits, ., _ and -"
    return rule(expression, lambda kafka: kafka.topic is None or _TOPIC.fullmatch(kafka.topic) is not None, message, field="topic")


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


class KafkaSource(SourceConnector):
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

    opener = "streamjoin.io.kafka_source:open_source"
    metrics = KAFKA_METRICS
    fixed = ("topic", "format")
    continued: ClassVar[Mapping[str, str]] = {
        "topic": "the topic is one of topicPattern, and goes on from where it was read",
        "topicPattern": "each topic goes on from where it was read",
    }
    api_rules = (
        exactly_one("topic", "topicPattern", nothing="has no topic; give topic, or topicPattern for several"),
        _named_topic(f"!has(self.topic) || ({_TOPIC_RULE})"),
        rule(
            "!has(self.discoveryInterval) || has(self.topicPattern)",
            lambda source: source.discovery_interval is None or is_given(source, "topicPattern"),
            "is for topicPattern, and there is none; remove it, or give topicPattern",
            field="discoveryInterval",
        ),
    )

    @property
    def identity(self) -> str:
        # Not by which pattern: it may change, as the position says of each topic what was read of it.
        return f"{self.format} records of " + (_BY_PATTERN if self.topic is None else _ONE_TOPIC + self.topic)

    def goes_on_from(self, before: str) -> bool:
        """Also where the pattern matches the topic that was read: the position has what was read of it, by its name."""
        records, _, topic = before.partition(_ONE_TOPIC)
        was_of_it = self.topic_pattern is not None and topic and matches(self.topic_pattern, topic)
        return (records + _BY_PATTERN if was_of_it else before) == self.identity

    def refusal(self, field: str, before: str) -> str | None:
        if self.topic is None or not before.endswith(_BY_PATTERN):
            return None
        message = "cannot follow topicPattern, as it would be forgotten how far others were read"
        pattern = self.topic.replace(".", r"\.")
        return f"{field}.kafka.topic: {self.topic} {message}; topicPattern: {pattern} reads it alone"

    @property
    def partition_idle_micros(self) -> int:
        return self.idle_timeout.micros

    @property
    def partitions_of(self) -> str:
        return self.topic or ""

    @property
    def starting_micros(self) -> int:
        """``starting_timestamp``, which must be given, in microseconds since 1970 UTC."""
        assert self.starting_timestamp is not None
        return instant_micros(self.starting_timestamp)

    def packages(self) -> Iterator[tuple[str, Package]]:
        if self.format == "protobuf":
            yield "format", PROTOBUF

    def problems(self, field: str) -> Check:
        checks = (_pattern_problem(f"{field}.topicPattern", self), _option_problems(field, self.options, _SOURCE))
        for check in (*checks, _registry_problems(field, self, _REGISTERED)):
            yield from until_refused(check)

    def schema_problems(self, field: str, schema: Schema, event_time: str | None) -> Check:
        for check in (_raw_problems(field, self, schema), _metadata_problems(field, self, schema)):
            yield from until_refused(check)

    def remarks(self, field: str) -> Check:
        return _client_remarks(field, self)

    def loop_problems(self, field: str, sinks: Sequence[tuple[str, SinkConnector]]) -> Check:
        """Patterns that match a topic of results: the join would read these as if they were input."""
        if self.topic_pattern is None or why_no_pattern(self.topic_pattern) is not None:
            return
        for sink_field, sink in sinks:
            if not isinstance(sink, KafkaSink) or sink.bootstrap_servers != self.bootstrap_servers:
                continue
            if matches(self.topic_pattern, sink.topic):
                message = f"matches {sink.topic}, to which {sink_field} writes; narrow it, or give the results another topic"
                yield Problem(f"{field}.topicPattern", self.topic_pattern, message)


class KafkaSink(SinkConnector):
    """One Kafka topic: each result is one record, with an identity by which readers can drop repeats."""

    bootstrap_servers: Annotated[str, StringConstraints(min_length=1, max_length=10_000)]
    """The brokers' addresses: host:port, separated by commas."""
    topic: Annotated[str, StringConstraints(min_length=1, max_length=249)]
    """The topic."""
    format: Literal["json", "avro", "jsonSchema"] = "json"
    """How a result is written. json: a JSON object. jsonSchema: a JSON object with the id of its schema. avro: Avro with the id of its
    schema. The ids come from the schema registry."""
    schema_registry: SchemaRegistry | None = None
    """avro and jsonSchema: the registry for the results' schema. Its subject is the topic's name and -value."""
    key: Name | None = None
    """The column of the output that becomes the records' key, and so selects their partition."""
    delivery: Literal["atLeastOnce", "exactlyOnce"] = "atLeastOnce"
    """atLeastOnce: a result may be sent again, with the same identity. exactlyOnce: each epoch's results are one transaction of Kafka, so
    readers of committed records see each result once."""
    timeout: PositiveSpan = Duration.parse("30s")
    """How long the brokers may be unreachable before an epoch fails. Its results are sent when the brokers are back."""
    options: Options = Field(default={})
    """Settings of librdkafka, such as security.protocol. A value file:/path is read from that file, env:NAME from that variable."""

    opener = "streamjoin.io.kafka_sink:open_sink"
    metrics = KAFKA_METRICS
    is_exactly_once = False
    api_rules = (_named_topic(_TOPIC_RULE),)

    @property
    def identity(self) -> str:
        return _ONE_TOPIC + self.topic

    def problems(self, field: str) -> Check:
        for check in (_option_problems(field, self.options, _SINK), _registry_problems(field, self, _WRITTEN)):
            yield from until_refused(check)

    def remarks(self, field: str) -> Check:
        return _client_remarks(field, self)

    def column_problems(self, field: str, columns: Mapping[str, DataType]) -> Check:
        for check in (self._key_problems(f"{field}.sink.kafka.key", columns), self._avro_problems(f"{field}.select", columns)):
            yield from until_refused(check)

    def _key_problems(self, field: str, columns: Mapping[str, DataType]) -> Check:
        if self.key is not None and columns and self.key.casefold() not in {name.casefold() for name in columns}:
            remedy = meant(self.key, list(columns), "the columns are")
            yield Problem(field, self.key, f"is not a column of the output; {remedy}")

    def _avro_problems(self, field: str, columns: Mapping[str, DataType]) -> Check:
        for name in columns:
            if self.format == "avro" and not re.fullmatch("[A-Za-z_][A-Za-z0-9_]*", name):
                message = "is not a name that Avro allows, and the sink writes Avro; give another name (AS), of letters, digits and _"
                yield Problem(field, name, message)


def _option_problems(field: str, options: Mapping[str, object], refused: Mapping[str, str]) -> Check:
    for name, value in options.items():
        here, message = option_field(field, name), _BOTH.get(name, refused.get(name))
        if message is not None:
            yield Problem(here, value, message)
        elif _CALLBACKS.fullmatch(name):
            yield Problem(here, None, "is a function of a program, which a manifest cannot give; remove it")
        else:
            yield from reference_problems(here, name, value)


def _client_remarks(field: str, kafka: KafkaSource | KafkaSink) -> Check:
    """Secrets that everybody can read who can read the manifest, or on the way, and logins that are not used."""
    yield from secret_remarks(field, kafka.options)
    registry, here = kafka.schema_registry, f"{field}.schemaRegistry"
    if registry is not None:
        yield from secret_remarks(here, registry.options)
        if registry.url.startswith("http:") and {"password", "bearer.auth.token"} & set(registry.options):
            yield Problem(f"{here}.url", registry.url, "sends the login in clear text; let it begin with https")
    protocol = str(kafka.options.get("security.protocol", "plaintext"))
    unused = next((name for name in kafka.options if name.startswith("sasl.")), None)
    if unused is not None and not protocol.upper().startswith("SASL_"):
        message = "is not used unless security.protocol is SASL_SSL (or SASL_PLAINTEXT, which encrypts nothing)"
        yield Problem(option_field(field, unused), None, message)


def _registry_problems(field: str, kafka: KafkaSource | KafkaSink, formats: Sequence[str]) -> Check:
    """Whether there is a registry where the format asks for one, and only there; and its options."""
    registry, here = kafka.schema_registry, f"{field}.schemaRegistry"
    if registry is None:
        if kafka.format in _REGISTERED:
            yield Problem(here, None, f"is missing, and format {kafka.format} needs it for its schemas; give its url")
        return
    if kafka.format not in _REGISTERED:
        yield Problem(here, None, f"has no use with format {kafka.format}; remove it, or let format be {listed(formats)}")
    options = registry.options
    yield from option_problems(here, options, _REGISTRY, "a schema registry")
    if "username" in options and "bearer.auth.token" in options:
        yield Problem(option_field(here, "username"), None, "and bearer.auth.token are two logins; remove one")
    for name, other in _NEEDS.items():
        if name in options and other not in options:
            yield Problem(option_field(here, name), None, f"is not used without {other}; give that too")
    if registry.url.startswith("http:"):
        for name in options:
            if name.startswith("ssl."):
                yield Problem(option_field(here, name), None, f"is for https, and url is {registry.url}; correct one of them")


def _pattern_problem(field: str, kafka: KafkaSource) -> Check:
    pattern = kafka.topic_pattern
    reason = None if pattern is None else why_no_pattern(pattern)
    if reason is not None:
        yield Problem(field, pattern, f"is not a regular expression ({reason}); write one as orders-.* or orders-(eu|us)")
    elif pattern is not None and pattern.lstrip("^(").startswith(INTERNAL):
        message = f"means Kafka's own topics, which begin with {INTERNAL} and which no pattern matches; correct it, or name one by topic"
        yield Problem(field, pattern, message)


def _metadata_problems(field: str, kafka: KafkaSource, schema: Schema) -> Check:
    """Columns of keys, times and headers, and where reading begins."""
    here = f"{field}.source.kafka"
    if kafka.starting_timestamp is not None and "starting_offsets" in kafka.model_fields_set:
        yield Problem(f"{here}.startingTimestamp", kafka.starting_timestamp, "and startingOffsets both say where to begin; remove one")
    if kafka.metadata is None:
        return
    if kafka.format == "raw":
        yield Problem(f"{here}.metadata", None, "has no use with format raw, whose columns are those of the record; remove it")
        return
    types = {column.name.casefold(): column.type for column in schema.columns}
    seen: dict[str, str] = {}
    for kind, name in kafka.metadata.columns():
        header = kind.startswith("header:")
        at = field_name(("headers", kind.removeprefix("header:"))) if header else kind
        found, allowed = types.get(name.casefold()), RAW_COLUMNS["key" if header else kind]
        if found is None:
            close = closest(name, [column.name for column in schema.columns])
            remedy = f"did you mean {close}?" if close else f"add it to {field}.schema"
            yield Problem(f"{here}.metadata.{at}", name, f"is not a column of the stream; {remedy}")
        elif found.name not in allowed:
            yield Problem(f"{here}.metadata.{at}", name, f"is {found}, and must be {listed([str(each) for each in allowed])}")
        if name.casefold() in seen:
            yield Problem(f"{here}.metadata.{at}", name, f"is the column for {seen[name.casefold()]} already; give it another")
        seen.setdefault(name.casefold(), at)
    if types and not set(types) - set(seen):
        yield Problem(f"{here}.metadata", None, "takes all columns, and leaves none for the value; use format raw for that")


def _raw_problems(field: str, kafka: KafkaSource, schema: Schema) -> Check:
    """The schema of a stream of raw records."""
    if kafka.format != "raw":
        return
    for column in schema.columns:
        types = RAW_COLUMNS.get(column.name.casefold())
        if types is None:
            remedy = meant(column.name, list(RAW_COLUMNS), "they are")
            yield Problem(f"{field}.schema", column.name, f"is not a column of raw records; {remedy}")
        elif column.type.name not in types:
            yield Problem(f"{field}.schema", f"{column.name} {column.type}", f"must be {listed([str(name) for name in types])}")
