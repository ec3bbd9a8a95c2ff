"""Tables of PostgreSQL."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from pydantic import Field, StringConstraints

from streamjoin.language.types import DataType
from streamjoin.manifest.checks import Check
from streamjoin.manifest.connector import SinkConnector
from streamjoin.manifest.databases import DatabaseName, Port, TableName, libpq_problems
from streamjoin.manifest.field_types import Names, Options, PositiveSpan
from streamjoin.manifest.options import secret_remarks
from streamjoin.manifest.problem import Problem, meant
from streamjoin.manifest.quantity import Duration


class PostgresSink(SinkConnector):
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

    opener = "streamjoin.io.postgres_sink:open_sink"
    replaces_by_key = True

    @property
    def identity(self) -> str:
        return f"PostgreSQL table {self.database}.{self.namespace}.{self.table}"

    def problems(self, field: str) -> Check:
        return libpq_problems(field, self.options)

    def remarks(self, field: str) -> Check:
        return secret_remarks(field, self.options)

    def column_problems(self, field: str, columns: Mapping[str, DataType]) -> Check:
        known, seen = {name.casefold() for name in columns}, set[str]()
        for index, name in enumerate(self.key):
            here = f"{field}.sink.postgres.key[{index}]"
            if name.casefold() not in known and columns:
                remedy = meant(name, list(columns), "the columns are")
                yield Problem(here, name, f"is not a column of the output; {remedy}")
            elif name.casefold() in seen:
                yield Problem(here, name, "is given twice; remove it")
            seen.add(name.casefold())
