"""Delta tables."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field

from streamjoin.language.types import DataType
from streamjoin.manifest.checks import Check
from streamjoin.manifest.connector import Package, SinkConnector, SourceConnector
from streamjoin.manifest.field_types import Location, Names, Span
from streamjoin.manifest.problem import Problem
from streamjoin.manifest.quantity import Duration
from streamjoin.manifest.tables import EXTRA, Compact, partition_problems

DELTA = Package("deltalake", "deltalake", EXTRA)
_NOT_IN_NAMES = re.compile(r"[ ,;{}()\n\t=]")


class DeltaSource(SourceConnector):
    """The rows that are added to a Delta table, version by version."""

    path: Location
    """The table's root, as a local path or a URL (file, s3, gs, abfss, az)."""
    starting_version: Annotated[int, Field(ge=0, lt=2**63)] | None = None
    """The version with whose added rows a new checkpoint begins. By default it begins with all rows of the table."""
    on_change: Literal["fail", "skip"] = "fail"
    """What to do about a version that deletes or changes rows: fail, or skip it with a warning."""
    max_files_per_epoch: Annotated[int, Field(ge=1, le=1_000_000)] = 1000
    """How many files one epoch may take from."""

    opener = "streamjoin.io.delta_changes:open_source"
    package = DELTA
    fixed = ("path",)

    @property
    def identity(self) -> str:
        return f"Delta table {self.path}"


class DeltaSink(SinkConnector):
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

    opener = "streamjoin.io.delta_sink:open_sink"
    results = "streamjoin.io.delta_table:results"
    package = DELTA

    @property
    def identity(self) -> str:
        return f"Delta table {self.path}"

    def column_problems(self, field: str, columns: Mapping[str, DataType]) -> Check:
        for name in columns:
            if _NOT_IN_NAMES.search(name):
                message = "is a column of the output, and a Delta table's have no spaces and none of ,;{}()=; give it another name (AS)"
                yield Problem(f"{field}.sink.delta", name, message)
        yield from partition_problems(f"{field}.sink.delta", self.partition_by, columns)
