"""Iceberg tables."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from streamjoin.language.types import DataType
from streamjoin.manifest.checks import Check
from streamjoin.manifest.connector import Connector, Package, SinkConnector, SourceConnector
from streamjoin.manifest.field_types import Name, Names, Options, Span
from streamjoin.manifest.options import all_reference_problems, option_field, secret_remarks
from streamjoin.manifest.problem import Problem, listed
from streamjoin.manifest.quantity import Duration
from streamjoin.manifest.tables import EXTRA, Compact, partition_problems

ICEBERG = Package("pyiceberg", "pyiceberg", EXTRA)
CATALOGS = ("rest", "sql", "glue", "hive", "dynamodb", "bigquery")
"""Kinds of PyIceberg's catalogs, but for those in memory."""


class _Iceberg(Connector):
    """A table, and the catalog that has it."""

    table: Annotated[str, StringConstraints(min_length=3, max_length=500)]
    """The table, with its namespace: namespace.table."""
    catalog: Options
    """Properties of PyIceberg's catalog: type (rest, sql, glue, hive, ...), uri, warehouse and others. A value file:/path is read from that
    file, env:NAME from that variable."""
    catalog_name: Name = "default"
    """The catalog's name. SQL catalogs store it with each table."""

    package = ICEBERG

    @property
    def identity(self) -> str:
        return f"Iceberg table {self.table}"

    def problems(self, field: str) -> Check:
        return _catalog_problems(field, self)

    def remarks(self, field: str) -> Check:
        return _catalog_remarks(field, self)


class IcebergSource(_Iceberg, SourceConnector):
    """The rows that are appended to an Iceberg table, snapshot by snapshot."""

    starting_snapshot: Annotated[int, Field(ge=0, lt=2**63)] | None = None
    """The snapshot with whose added rows a new checkpoint begins. By default it begins with all rows of the table."""
    on_change: Literal["fail", "skip"] = "fail"
    """What to do about a snapshot that deletes or changes rows: fail, or skip it with a warning."""
    max_files_per_epoch: Annotated[int, Field(ge=1, le=1_000_000)] = 1000
    """How many files one epoch may take from."""

    opener = "streamjoin.io.iceberg_changes:open_source"
    fixed = ("table",)


class IcebergSink(_Iceberg, SinkConnector):
    """An Iceberg table: each result exactly once, by the table's own transactions."""

    table: Annotated[str, StringConstraints(min_length=3, max_length=500)]
    """The table, with its namespace: namespace.table. Both are created if they are missing."""
    partition_by: Names = ()
    """The output's columns by which the table is partitioned: BOOLEAN, whole numbers, DATE or STRING."""
    compression: Literal["snappy", "zstd", "none"] = "zstd"
    """How to compress the files, which are Parquet."""
    gather: Span = Duration.parse("10s")
    """How long the results of small epochs may wait, for fewer files and snapshots; 0s: a transaction for each epoch at once."""
    compact: Compact | None = None
    """When small files are rewritten as large ones. By default they are not."""

    opener = "streamjoin.io.iceberg_sink:open_sink"
    results = "streamjoin.io.iceberg_sink:results"

    def column_problems(self, field: str, columns: Mapping[str, DataType]) -> Check:
        return partition_problems(f"{field}.sink.iceberg", self.partition_by, columns)


def _catalog_problems(field: str, table: _Iceberg) -> Check:
    """The table's name and the catalog's properties."""
    if not re.fullmatch(r"[^.\s]+(\.[^.\s]+)+", table.table):
        yield Problem(f"{field}.table", table.table, "is not a table in a namespace; write namespace.table")
    kind = table.catalog.get("type")
    if kind is None and "uri" not in table.catalog and "py-catalog-impl" not in table.catalog:
        yield Problem(f"{field}.catalog", None, "has neither type nor uri; give type (rest, sql, glue, hive) and uri")
    elif kind is not None and kind not in CATALOGS:
        remedy = f"give {listed(CATALOGS, 'or')}"
        yield Problem(option_field(field, "type", "catalog"), kind, f"is not a supported kind of durable catalog; {remedy}")
    yield from all_reference_problems(field, table.catalog, "catalog")


def _catalog_remarks(field: str, table: _Iceberg) -> Check:
    for name, value in table.catalog.items():
        if isinstance(value, str) and re.search("://[^/@]+:[^/@]+@", value):
            remedy = "write file:/path of a file with it, or env: and the name of a variable"
            yield Problem(option_field(field, name, "catalog"), None, f"has a password, readable in the manifest; {remedy}")
        yield from secret_remarks(field, {name: value}, "catalog")
