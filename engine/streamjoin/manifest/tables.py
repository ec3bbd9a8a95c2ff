"""What a sink that is a table must be together with the output: columns that the table's format can have, and be partitioned by."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from streamjoin.language.types import DataType, TypeName
from streamjoin.manifest.kafka import reference_problems, secret_remarks
from streamjoin.manifest.problem import Problem, closest, listed
from streamjoin.manifest.sinks import DeltaSink, IcebergSink
from streamjoin.manifest.sources import IcebergSource
from streamjoin.manifest.text import field_name

TABLES = ("delta", "iceberg")
"""The fields of a sink that are tables of files."""
CATALOGS = ("rest", "sql", "glue", "hive", "dynamodb", "bigquery")
"""Kinds of PyIceberg's catalogs, but for those in memory."""

# NB: not decimals: deltalake 1.6 reads a negative one of a partition wrongly (-1.50 as -1.-50).
_PARTITIONING = {
    *(TypeName.BOOLEAN, TypeName.TINYINT, TypeName.SMALLINT, TypeName.INT, TypeName.BIGINT),
    *(TypeName.DATE, TypeName.STRING),
}
_NOT_IN_DELTA = re.compile(r"[ ,;{}()\n\t=]")


def table_problems(field: str, table: DeltaSink | IcebergSink, columns: Mapping[str, DataType]) -> Iterator[Problem]:
    """``columns``: the output's. Raises UnparsedError."""
    if isinstance(table, DeltaSink):
        for name in columns:
            if _NOT_IN_DELTA.search(name):
                message = "is a column of the output, and a Delta table's have no spaces and none of ,;{}()=; give it another name (AS)"
                yield Problem(field, name, message)
    known = {name.casefold(): name for name in columns}
    given: set[str] = set()
    for index, name in enumerate(table.partition_by):
        here = f"{field}.partitionBy[{index}]"
        column = known.get(name.casefold())
        if column is None:
            close = closest(name, list(columns))
            remedy = f"did you mean {close}?" if close else f"the columns are {listed(list(columns), 'and')}"
            yield Problem(here, name, f"is not a column of the output; {remedy}")
        elif column in given:
            yield Problem(here, name, "is given twice; remove it")
        elif columns[column].name not in _PARTITIONING:
            remedy = f"partition by another, such as CAST({column} AS DATE) AS day, or by none"
            yield Problem(here, name, f"is {columns[column]}, which cannot be a partition column; {remedy}")
        else:
            given.add(column)
    if columns and len(given) == len(columns):
        yield Problem(f"{field}.partitionBy", None, "has all columns of the output, and files need at least one; remove one")


def catalog_problems(field: str, table: IcebergSink | IcebergSource | None) -> Iterator[Problem]:
    """The table's name and the catalog's properties. Raises UnparsedError."""
    if table is None:
        return
    if not re.fullmatch(r"[^.\s]+(\.[^.\s]+)+", table.table):
        yield Problem(f"{field}.table", table.table, "is not a table in a namespace; write namespace.table")
    kind = table.catalog.get("type")
    if kind is None and "uri" not in table.catalog and "py-catalog-impl" not in table.catalog:
        yield Problem(f"{field}.catalog", None, "has neither type nor uri; give type (rest, sql, glue, hive) and uri")
    elif kind is not None and kind not in CATALOGS:
        remedy = f"give {listed(CATALOGS, 'or')}"
        yield Problem(property_field(field, "type"), kind, f"is not a supported kind of durable catalog; {remedy}")
    for name, value in table.catalog.items():
        if isinstance(value, str):
            yield from reference_problems(property_field(field, name), name, value)


def catalog_remarks(field: str, table: IcebergSink | IcebergSource | None) -> Iterator[Problem]:
    """Secrets that everybody can read who can read the manifest."""
    for name, value in () if table is None else table.catalog.items():
        if isinstance(value, str) and re.search("://[^/@]+:[^/@]+@", value):
            remedy = "write file:/path of a file with it, or env: and the name of a variable"
            yield Problem(property_field(field, name), None, f"has a password, readable in the manifest; {remedy}")
        for problem in secret_remarks(field, name, value):
            yield Problem(property_field(field, name), None, problem.message)


def property_field(field: str, name: str) -> str:
    """A property's field."""
    return f"{field}.{field_name(('catalog', name))}"
