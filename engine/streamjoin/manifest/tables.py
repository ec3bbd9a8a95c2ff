"""Code that connectors of tables share: columns by which a table can be partitioned, and when small files are rewritten."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated

from pydantic import Field

from streamjoin.language.types import DataType, TypeName
from streamjoin.manifest.checks import Check
from streamjoin.manifest.field_types import FileAmount, PositiveSpan
from streamjoin.manifest.part import Part
from streamjoin.manifest.problem import Problem, meant
from streamjoin.manifest.quantity import Memory

EXTRA = "tables"
"""The extra of pyproject.toml that has the packages of tables."""

# NB: not decimals: deltalake 1.6 reads a negative one of a partition wrongly (-1.50 as -1.-50).
_PARTITIONING = {
    *(TypeName.BOOLEAN, TypeName.TINYINT, TypeName.SMALLINT, TypeName.INT, TypeName.BIGINT),
    *(TypeName.DATE, TypeName.STRING),
}


class Compact(Part):
    """When the driver rewrites small files of a table as few large ones, beside the join."""

    files: Annotated[int, Field(ge=2, le=1_000_000)] = 100
    """The number of small files, mergeable into fewer, at which they are rewritten."""
    every: PositiveSpan | None = None
    """The longest time between two rewrites, if there are two small files or more. By default only files counts."""
    target_size: FileAmount = Memory.parse("128Mi")
    """The size of rewritten files. Files of this size and above are not rewritten."""


def partition_problems(field: str, partition_by: Sequence[str], columns: Mapping[str, DataType]) -> Check:
    """The problems of a sink's ``partitionBy``. ``columns``: the output's."""
    known = {name.casefold(): name for name in columns}
    given: set[str] = set()
    for index, name in enumerate(partition_by):
        here = f"{field}.partitionBy[{index}]"
        column = known.get(name.casefold())
        if column is None:
            remedy = meant(name, list(columns), "the columns are")
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
