"""What a Kafka source or sink must be together: options that leave results exact, raw columns that a record has.

Always holds: an option that passes here cannot change which records are read, or how often, or whether a result is lost. Values of options
that are secrets are in no problem and in no remark.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from streamjoin.language.schema import Schema
from streamjoin.language.types import TypeName
from streamjoin.manifest.problem import Problem, closest, is_secret, listed
from streamjoin.manifest.sinks import KafkaSink
from streamjoin.manifest.sources import KafkaSource, SchemaRegistry
from streamjoin.manifest.text import field_name
from streamjoin.manifest.topics import source_topic_problems, topic_problem

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
FILE, VARIABLE = "file:", "env:"
"""How an option's value begins that says where the value is."""
_CALLBACKS = re.compile(r".*_cb|logger|on_delivery|on_commit")


def kafka_client_problems(field: str, kafka: KafkaSource | KafkaSink | None) -> Iterator[Problem]:
    """The topics and the options."""
    if kafka is None:
        return
    if isinstance(kafka, KafkaSource):
        yield from source_topic_problems(field, kafka)
    else:
        yield from topic_problem(f"{field}.topic", kafka.topic)
    refused = {**_BOTH, **(_SOURCE if isinstance(kafka, KafkaSource) else _SINK)}
    for name, value in kafka.options.items():
        here = option_field(field, name)
        if name in refused:
            yield Problem(here, value, refused[name])
        elif _CALLBACKS.fullmatch(name):
            yield Problem(here, None, "is a function of a program, which a manifest cannot give; remove it")
        elif isinstance(value, str):
            yield from reference_problems(here, name, value)


_REGISTERED = ("avro", "protobuf", "jsonSchema")
_WRITTEN = ("avro", "jsonSchema")
_NEEDS = {"password": "username", "ssl.key.location": "ssl.certificate.location", "ssl.key.password": "ssl.key.location"}
_REGISTRY = (
    *("username", "password", "bearer.auth.token"),
    *("ssl.ca.location", "ssl.certificate.location", "ssl.key.location", "ssl.key.password"),
)


def registry_problems(field: str, kafka: KafkaSource | KafkaSink | None) -> Iterator[Problem]:
    """Whether there is a registry where the format asks for one, and only there; and its options."""
    if kafka is None:
        return
    registry, here = kafka.schema_registry, f"{field}.schemaRegistry"
    if registry is None:
        if kafka.format in _REGISTERED:
            yield Problem(here, None, f"is missing, and format {kafka.format} needs it for its schemas; give its url")
        return
    if kafka.format not in _REGISTERED:
        formats = _REGISTERED if isinstance(kafka, KafkaSource) else _WRITTEN
        yield Problem(here, None, f"has no use with format {kafka.format}; remove it, or let format be {listed(formats)}")
    options = registry.options
    for name, value in options.items():
        option = option_field(here, name)
        if name not in _REGISTRY:
            close = closest(name, _REGISTRY)
            remedy = f"did you mean {close}?" if close else f"they are {listed(_REGISTRY, 'and')}"
            yield Problem(option, value, f"is not an option of a schema registry; {remedy}")
        elif isinstance(value, str):
            yield from reference_problems(option, name, value)
    if "username" in options and "bearer.auth.token" in options:
        yield Problem(option_field(here, "username"), None, "and bearer.auth.token are two logins; remove one")
    for name, other in _NEEDS.items():
        if name in options and other not in options:
            yield Problem(option_field(here, name), None, f"is not used without {other}; give that too")
    if registry.url.startswith("http:"):
        for name in options:
            if name.startswith("ssl."):
                yield Problem(option_field(here, name), None, f"is for https, and url is {registry.url}; correct one of them")


def registry_remarks(field: str, registry: SchemaRegistry | None) -> Iterator[Problem]:
    """Secrets that everybody can read who can read the manifest, and logins that everybody can read on the way."""
    if registry is None:
        return
    here = f"{field}.schemaRegistry"
    for name, value in registry.options.items():
        yield from secret_remarks(here, name, value)
    if registry.url.startswith("http:") and {"password", "bearer.auth.token"} & set(registry.options):
        yield Problem(f"{here}.url", registry.url, "sends the login in clear text; let it begin with https")


def kafka_client_remarks(field: str, kafka: KafkaSource | KafkaSink | None) -> Iterator[Problem]:
    """Secrets that everybody can read who can read the manifest, and logins that are not used."""
    if kafka is None:
        return
    for name, value in kafka.options.items():
        yield from secret_remarks(field, name, value)
    yield from registry_remarks(field, kafka.schema_registry)
    protocol = str(kafka.options.get("security.protocol", "plaintext"))
    unused = next((name for name in kafka.options if name.startswith("sasl.")), None)
    if unused is not None and not protocol.upper().startswith("SASL_"):
        message = "is not used unless security.protocol is SASL_SSL (or SASL_PLAINTEXT, which encrypts nothing)"
        yield Problem(option_field(field, unused), None, message)


def secret_remarks(field: str, name: str, value: object) -> Iterator[Problem]:
    """A remark on an option that is a secret, and not where it is to be read."""
    if is_secret(name) and not str(value).startswith((FILE, VARIABLE)):
        remedy = "write file:/path of a file with it, or env: and the name of a variable"
        yield Problem(option_field(field, name), None, f"is a secret, readable in the manifest; {remedy}")


def option_field(field: str, name: str) -> str:
    """An option's field."""
    return f"{field}.{field_name(('options', name))}"


def reference_problems(field: str, name: str, value: str) -> Iterator[Problem]:
    """An option's value that says where the value is to be read."""
    if value.startswith(FILE) and name.endswith(".location"):
        yield Problem(field, value, f"is the path of a file itself; write {value.removeprefix(FILE)}")
    elif value.startswith(FILE) and not value.removeprefix(FILE).startswith("/"):
        yield Problem(field, value, "is not an absolute path, and workers have working directories of their own; write file:/path")
    elif value.startswith(VARIABLE) and not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", value.removeprefix(VARIABLE)):
        yield Problem(field, value, "is not the name of an environment variable; write env:NAME")


def metadata_problems(field: str, kafka: KafkaSource | None, schema: Schema) -> Iterator[Problem]:
    """Columns of keys, times and headers, and where reading begins."""
    if kafka is None:
        return
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


def raw_problems(field: str, kafka: KafkaSource | None, schema: Schema) -> Iterator[Problem]:
    """The schema of a stream of raw records."""
    if kafka is None or kafka.format != "raw":
        return
    for column in schema.columns:
        types = RAW_COLUMNS.get(column.name.casefold())
        if types is None:
            close = closest(column.name, list(RAW_COLUMNS))
            remedy = f"did you mean {close}?" if close else f"they are {listed(list(RAW_COLUMNS), 'and')}"
            yield Problem(f"{field}.schema", column.name, f"is not a column of raw records; {remedy}")
        elif column.type.name not in types:
            yield Problem(f"{field}.schema", f"{column.name} {column.type}", f"must be {listed([str(name) for name in types])}")
