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
    """The directory, as a local path or a URL (file, s3, gs, abfss, az). It is created if it is missing."""
    format: Literal["parquet", "json"] = "parquet"
    """How to write: parquet, or json (one object per line)."""
    compression: Literal["snappy", "zstd", "none"] | None = None
    """How to compress parquet: snappy by default. json is not compressed."""
    gather: Span = Duration.parse("1s")
    """How long the results of small epochs may wait, to be written into fewer files; 0s: a file for each epoch at once."""


class ConsoleSink(Part):
    """Results on standard output, for trying things out."""

    limit: Annotated[int, Field(ge=0, le=10_000)] = 20
    """How many rows of an epoch are shown. The others are only counted."""


class KafkaSink(Part):
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


class Compact(Part):
    """When the driver rewrites small files of a table as few large ones, beside the join."""

    files: Annotated[int, Field(ge=2, le=1_000_000)] = 100
    """The number of small files, mergeable into fewer, at which they are rewritten."""
    every: PositiveSpan | None = None
    """The longest time between two rewrites, if there are two small files or more. By default only files counts."""
    target_size: FileAmount = Memory.parse("128Mi")
    """The size of rewritten files. Files of this size and above are not rewritten."""


class DeltaSink(Part):
    """A Delta table: each result exactly once, by the table's own transactions."""

    path: Location
    """The table's root, as a local path or a URL (file, s3, gs, abfss, az). The table is created if it is missing."""
    partition_by: Names = ()
    """The output's columns by which the table is partitioned: BOOLEAN, whole numbers, DATE or STRING."""
    compression: Literal["snappy", "zstd", "none"] = "snappy"
    """How to compress the files, which are Parquet."""
    gather: Span = Duration.parse("10s")
    """How long the results of small epochs may wait, for fewer files and versions; 0s: a transaction for each epoch at once."""
    compact: Compact | None = None
    """When small files are rewritten as large ones. By default they are not."""


class IcebergSink(Part):
    """An Iceberg table: each result exactly once, by the table's own transactions."""

    table: Annotated[str, StringConstraints(min_length=3, max_length=500)]
    """The table, with its namespace: namespace.table. Both are created if they are missing."""
    catalog: Options
    """Properties of PyIceberg's catalog: type (rest, sql, glue, hive, ...), uri, warehouse and others. A value file:/path is read from that
    file, env:NAME from that variable."""
    catalog_name: Name = "default"
    """The catalog's name. SQL catalogs store it with each table."""
    partition_by: Names = ()
    """The output's columns by which the table is partitioned: BOOLEAN, whole numbers, DATE or STRING."""
    compression: Literal["snappy", "zstd", "none"] = "zstd"
    """How to compress the files, which are Parquet."""
    gather: Span = Duration.parse("10s")
    """How long the results of small epochs may wait, for fewer files and snapshots; 0s: a transaction for each epoch at once."""
    compact: Compact | None = None
    """When small files are rewritten as large ones. By default they are not."""


class PostgresSink(Part):
    """A table of PostgreSQL: a result replaces the row with the same key. Each epoch's results are written once, in one transaction."""

    host: Annotated[str, StringConstraints(min_length=1, max_length=253)]
    """The server's host name or address."""
    port: Port = 5432
    """The server's port."""
    database: DatabaseName
    """The database, which must exist."""
    namespace: Annotated[DatabaseName, Field(alias="schema")] = "public"
    """The schema in it, which must exist."""
    table: TableName
    """The table. It is created if it is missing. A second table, whose name ends in _published, records what is published."""
    key: Annotated[Names, Field(min_length=1, max_length=32)]
    """The output's columns that identify a result: it replaces the row with the same values. The table has a unique constraint on them."""
    timeout: PositiveSpan = Duration.parse("60s")
    """How long a statement may take."""
    options: Options = Field(default={})
    """Settings of libpq, such as user, password and sslmode. A value file:/path is read from that file, env:NAME from that variable."""


class Sink(Part):
    """Where results go: exactly one of the fields."""

    files: FilesSink | None = None
    """Files in a directory: each result exactly once."""
    console: ConsoleSink | None = None
    """Standard output."""
    kafka: KafkaSink | None = None
    """A Kafka topic: each result at least once, with an identity that shows repeats; or exactly once, by transactions."""
    delta: DeltaSink | None = None
    """A Delta table: each result exactly once."""
    iceberg: IcebergSink | None = None
    """An Iceberg table: each result exactly once."""
    postgres: PostgresSink | None = None
    """A table of PostgreSQL: each result once. It replaces the row with the same key."""
