"""Where results go: the fields of ``sink``."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from streamjoin.manifest.field_types import FileAmount, Location, Name, Names, Options, PositiveSpan, Span
from streamjoin.manifest.part import Part
from streamjoin.manifest.quantity import Duration, Memory
from streamjoin.manifest.snapshots import DatabaseName, Port, TableName
from streamjoin.manifest.sources import SchemaRegistry


class FilesSink(Part):
    """New files in one directory, complete when they appear."""

    path: Location
    """The directory, as a local path or a URL (file, s3, gs, abfss, az); it is made when missing."""
    format: Literal["parquet", "json"] = "parquet"
    """How to write: parquet, or json (one object a line)."""
    compression: Literal["snappy", "zstd", "none"] | None = None
    """How to compress parquet: snappy by default. json is not compressed."""
    gather: Span = Duration.parse("1s")
    """How long the results of small epochs may wait for more, so that there are fewer files; 0s: each epoch's are a file at once."""


class ConsoleSink(Part):
    """Results on standard output, for trying things."""

    limit: Annotated[int, Field(ge=0, le=10_000)] = 20
    """How many rows of an epoch are shown; the others are only counted."""


class KafkaSink(Part):
    """One Kafka topic: each result as one record, with an identity by which readers drop repeats."""

    bootstrap_servers: Annotated[str, StringConstraints(min_length=1, max_length=10_000)]
    """Where to find the brokers: host:port, more of them after commas."""
    topic: Annotated[str, StringConstraints(min_length=1, max_length=249)]
    """The topic."""
    format: Literal["json", "avro", "jsonSchema"] = "json"
    """How a result is written: json, a JSON object; avro, and jsonSchema, a JSON object too, name their schema by the id that a schema
    registry gives it."""
    schema_registry: SchemaRegistry | None = None
    """avro and jsonSchema: the registry that takes the schema, under the topic's name and -value."""
    key: Name | None = None
    """The output's column that becomes the records' key, and so chooses their partition."""
    delivery: Literal["atLeastOnce", "exactlyOnce"] = "atLeastOnce"
    """atLeastOnce: a result may come again, under the same identity; exactlyOnce: each epoch's results are one transaction of Kafka, so
    that readers of what is committed see each result once."""
    timeout: PositiveSpan = Duration.parse("30s")
    """How long brokers may be out of reach before an epoch fails; its results are sent when they are back."""
    options: Options = Field(default={})
    """Settings of librdkafka, such as security.protocol; a value file:/path is that file's content, env:NAME that variable's."""


class Compact(Part):
    """When small files of a table are rewritten as few large ones, beside the join."""

    files: Annotated[int, Field(ge=2, le=1_000_000)] = 100
    """Once the table has so many small files that could be fewer."""
    every: PositiveSpan | None = None
    """Also so long after the last time, if there are two such files or more. By default only files says when."""
    target_size: FileAmount = Memory.parse("128Mi")
    """How large files become; those that are as large stay as they are."""


class DeltaSink(Part):
    """A Delta table: each result exactly once, in the table's own transactions."""

    path: Location
    """The table's root, as a local path or a URL (file, s3, gs, abfss, az). The table is made when missing."""
    partition_by: Names = ()
    """The output's columns by which the table is partitioned: BOOLEAN, whole numbers, DATE or STRING."""
    compression: Literal["snappy", "zstd", "none"] = "snappy"
    """How to compress the files, which are Parquet."""
    gather: Span = Duration.parse("10s")
    """How long the results of small epochs may wait for more, so that there are fewer files and versions; 0s: each epoch's at once."""
    compact: Compact | None = None
    """When small files are rewritten as large ones. By default never."""


class IcebergSink(Part):
    """An Iceberg table: each result exactly once, in the table's own transactions."""

    table: Annotated[str, StringConstraints(min_length=3, max_length=500)]
    """The table, with its namespace: namespace.table. Both are made when missing."""
    catalog: Options
    """Properties of PyIceberg's catalog: type (rest, sql, glue, hive, ...), uri, warehouse and others; a value file:/path is that file's
    content, env:NAME that variable's."""
    catalog_name: Name = "default"
    """The catalog's name, which SQL catalogs keep with each table."""
    partition_by: Names = ()
    """The output's columns by which the table is partitioned: BOOLEAN, whole numbers, DATE or STRING."""
    compression: Literal["snappy", "zstd", "none"] = "zstd"
    """How to compress the files, which are Parquet."""
    gather: Span = Duration.parse("10s")
    """How long the results of small epochs may wait for more, so that there are fewer files and snapshots; 0s: each epoch's at once."""


class PostgresSink(Part):
    """A table of PostgreSQL: a result replaces the one with the same key; each epoch's come once, in one transaction."""

    host: Annotated[str, StringConstraints(min_length=1, max_length=253)]
    """Where the server is."""
    port: Port = 5432
    """Its port."""
    database: DatabaseName
    """The database, which must exist."""
    namespace: Annotated[DatabaseName, Field(alias="schema")] = "public"
    """The schema in it, which must exist."""
    table: TableName
    """The table, which is made when missing; beside it one with _published at its end says what is published."""
    key: Annotated[Names, Field(min_length=1, max_length=32)]
    """The output's columns by which a result replaces another, all together; the table has a unique constraint on them."""
    timeout: PositiveSpan = Duration.parse("60s")
    """How long a statement may take."""
    options: Options = Field(default={})
    """Settings of libpq, such as user, password and sslmode; a value file:/path is that file's content, env:NAME that variable's."""


class Sink(Part):
    """Where results go: exactly one of the fields."""

    files: FilesSink | None = None
    """Files in a directory: each result exactly once."""
    console: ConsoleSink | None = None
    """Standard output."""
    kafka: KafkaSink | None = None
    """A Kafka topic: each result at least once, with an identity that tells repeats; or exactly once, by transactions."""
    delta: DeltaSink | None = None
    """A Delta table: each result exactly once."""
    iceberg: IcebergSink | None = None
    """An Iceberg table: each result exactly once."""
    postgres: PostgresSink | None = None
    """A table of PostgreSQL: each result once, in place of the one with the same key."""
