"""How a join's results are kept as snapshots: the fields of ``output.snapshots``."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from streamjoin.manifest.checks import Check
from streamjoin.manifest.connector import Connector, Package
from streamjoin.manifest.databases import DatabaseName, Port, TableName, libpq_problems
from streamjoin.manifest.field_types import MemoryAmount, Options, PositiveSpan, Sql
from streamjoin.manifest.options import option_problems, secret_remarks
from streamjoin.manifest.part import Part
from streamjoin.manifest.quantity import Duration, Memory

CASSANDRA = Package("cassandra-driver", "cassandra", "cassandra")
_CASSANDRA_OPTIONS = ("username", "password", "ssl.ca.location")


class EmbeddedStore(Connector):
    """Sorted Parquet files in the checkpoint alone: nothing to install."""


class PostgresStore(Connector):
    """A table of PostgreSQL, with a B-tree by key and snapshot: for ranges of keys."""

    host: Annotated[str, StringConstraints(min_length=1, max_length=253)]
    """The server's host name or address."""
    port: Port = 5432
    """The server's port."""
    database: DatabaseName
    """The database, which must exist."""
    namespace: Annotated[DatabaseName, Field(alias="schema")] = "public"
    """The schema in it, which must exist."""
    table: TableName | None = None
    """The table of results. It is created if it is missing. The table of snapshots has the same name with _snapshots at its end. By default
    the resource's name and the join's."""
    timeout: PositiveSpan = Duration.parse("60s")
    """How long a statement may take."""
    options: Options = Field(default={})
    """Settings of libpq, such as user, password and sslmode. A value file:/path is read from that file, env:NAME from that variable."""

    def problems(self, field: str) -> Check:
        return libpq_problems(field, self.options)

    def remarks(self, field: str) -> Check:
        return secret_remarks(field, self.options)


class CassandraStore(Connector):
    """Tables of Cassandra, partitioned by key: for look-ups of single keys."""

    hosts: Annotated[str, StringConstraints(min_length=1, max_length=10_000)]
    """The cluster's hosts, separated by commas."""
    port: Port = 9042
    """The port of these hosts."""
    keyspace: DatabaseName
    """The keyspace, which must exist."""
    datacenter: Annotated[str, StringConstraints(min_length=1, max_length=255)] | None = None
    """The data center to which requests go. By default that of the first host that answers."""
    consistency: Literal["ONE", "LOCAL_ONE", "LOCAL_QUORUM", "QUORUM", "EACH_QUORUM", "ALL"] = "LOCAL_QUORUM"
    """How many replicas must have a result before its snapshot is listed."""
    table: TableName | None = None
    """The table of results. It is created if it is missing. The table of snapshots has the same name with _snapshots at its end. By default
    the resource's name and the join's."""
    timeout: PositiveSpan = Duration.parse("30s")
    """How long a request may take."""
    options: Options = Field(default={})
    """username, password and ssl.ca.location (a file). A value file:/path is read from that file, env:NAME from that variable."""

    package = CASSANDRA

    def problems(self, field: str) -> Check:
        return option_problems(field, self.options, _CASSANDRA_OPTIONS, "a store of Cassandra")

    def remarks(self, field: str) -> Check:
        return secret_remarks(field, self.options)


class SnapshotStore(Part):
    """Where snapshots go, beside the sorted files in the checkpoint: exactly one of the fields."""

    embedded: EmbeddedStore | None = None
    """Only the sorted files in the checkpoint."""
    postgres: PostgresStore | None = None
    """PostgreSQL."""
    cassandra: CassandraStore | None = None
    """Cassandra."""


class Snapshots(Part):
    """Sets of results that appear as a whole, each with an identifier, beside what the sink writes. They end by every, by size, by both, or
    by punctuation."""

    every: PositiveSpan | None = None
    """How long after its first results a snapshot ends. It ends with the next commit."""
    size: Annotated[int, Field(ge=1, lt=2**53)] | None = None
    """The number of results at which a snapshot ends. It ends with the epoch that reaches it."""
    max_delay: Annotated[int, Field(ge=0, le=1000)] = 0
    """How many times a snapshot with fewer than half of size results is extended by every."""
    punctuation: bool = False
    """true: a snapshot ends with the epoch in which punctuations of one identifier have come from all streams (streams[].punctuation).
    Excludes every and size."""
    key: Sql | None = None
    """The key by which results are sorted and found (SQL over the output's columns). By default the first column."""
    keep: PositiveSpan | None = None
    """How long snapshots are kept. By default for ever."""
    store: SnapshotStore | None = None
    """Where snapshots go, beside the sorted files in the checkpoint. By default embedded: only there."""
    buffer: MemoryAmount = Memory.parse("1Gi")
    """How many bytes of results, as they are in memory, may wait for a store. Beyond that the join waits, too."""
