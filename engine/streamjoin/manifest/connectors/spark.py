"""Whatever Spark can read and write: a source and a sink by the names of their formats."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Self

from pydantic import Field, PrivateAttr, StringConstraints

from streamjoin.manifest.checks import Check, value_at
from streamjoin.manifest.connector import SinkConnector, SourceConnector
from streamjoin.manifest.field_types import Names, Options, PositiveSpan, Sql, StreamName
from streamjoin.manifest.options import all_reference_problems, secret_remarks
from streamjoin.manifest.part import Part
from streamjoin.manifest.problem import Problem
from streamjoin.manifest.quantity import Duration

INPUT = "input"
"""What a query calls that which is read."""


class SparkInput(Part):
    """What Spark reads."""

    format: Annotated[str, StringConstraints(min_length=1, max_length=200)]
    """The format's name: one of Spark's own (rate, jdbc, csv, xml, ...), of spark.packages, or a Python data source as module:Class."""
    options: Options = Field(default={})
    """The format's options. A value file:/path is read from that file, env:NAME from that variable."""
    columns: Sql | None = None
    """The columns of what is read, as Spark DDL, for formats that have to be told them, as files that are read as a stream."""


class SparkSource(SparkInput, SourceConnector):
    """Whatever Spark can read, by the format's name. A Spark of its own, beside the driver, reads it and stages it in the checkpoint, in
    micro-batches."""

    streaming: bool = True
    """false: what is there when the join begins is read once, as a table. For formats that cannot be read as a stream, such as jdbc."""
    query: Sql | None = None
    """Spark SQL over what is read, which it calls input, and over views. Of a stream a query of rows: columns, conditions, functions, and
    joins with views; nothing that keeps state over rows. By default all of input."""
    views: Annotated[dict[StreamName, SparkInput], Field(max_length=20)] = Field(default={})
    """Tables beside it, by the names that query calls them, each read as a table when it is needed."""
    max_files_per_epoch: Annotated[int, Field(ge=1, le=1_000_000)] = 1000
    """How many staged files one epoch may take from."""

    opener = "streamjoin.io.staged_source:open_fed"
    fixed = ("format", "streaming")
    is_outside = False
    is_consumed = True

    _staging: str = PrivateAttr("")

    @property
    def identity(self) -> str:
        return f"{self.format} by Spark, {'as a stream' if self.streaming else 'once'}"

    @property
    def staging(self) -> str:
        """The directory in which its micro-batches are staged, and Spark keeps its state; of a job's source alone."""
        return self._staging

    def within(self, directory: str) -> Self:
        """The same, staged in this directory."""
        made = self.model_copy()
        made._staging = directory
        return made

    def problems(self, field: str) -> Check:
        for where, options in self._all_options(field):
            yield from all_reference_problems(where, options)
        if value_at(self, "query") is None and value_at(self, "views"):
            yield Problem(f"{field}.views", None, "have no use without query, which joins them; give it, or remove them")
        for name in value_at(self, "views") or ():
            if name.casefold() == INPUT:
                yield Problem(f"{field}.views", name, "is what query calls the stream itself; choose another name")

    def remarks(self, field: str) -> Check:
        for where, options in self._all_options(field):
            yield from secret_remarks(where, options)

    def _all_options(self, field: str) -> Iterator[tuple[str, Mapping[str, object]]]:
        yield field, value_at(self, "options") or {}
        for name, view in (value_at(self, "views") or {}).items():
            yield f"{field}.views.{name}", value_at(view, "options") or {}


class SparkSink(SinkConnector):
    """Whatever Spark can write, by the format's name. A Spark of its own, beside the driver, takes the results of each epoch from snapshots
    in the checkpoint."""

    format: Annotated[str, StringConstraints(min_length=1, max_length=200)]
    """The format's name: one of Spark's own (json, orc, kafka, jdbc, ...), of spark.packages, a Python data source as module:Class, or a
    function as module:function, which is given a DataFrame and the number of the micro-batch."""
    options: Options = Field(default={})
    """The format's options. A value file:/path is read from that file, env:NAME from that variable."""
    streaming: bool = True
    """false: each micro-batch is appended as a table is. For formats that cannot be written as a stream, such as jdbc: after a failure some
    results may come again."""
    keep: PositiveSpan = Duration.parse("7d")
    """How long results are kept for a Spark that cannot write them yet."""

    opener = ""
    is_exactly_once = False

    @property
    def identity(self) -> str:
        return f"{self.format} by Spark"

    def problems(self, field: str) -> Check:
        yield from all_reference_problems(field, value_at(self, "options") or {})

    def remarks(self, field: str) -> Check:
        yield from secret_remarks(field, value_at(self, "options") or {})


class SparkSettings(Part):
    """The Spark that reads sources of the kind spark, and writes to such sinks."""

    packages: Annotated[Names, Field(max_length=50)] = ()
    """Packages for formats that Spark does not have, as Maven coordinates: group:artifact:version. Spark fetches them when it starts."""
    repositories: Annotated[Names, Field(max_length=20)] = ()
    """Further repositories in which they are looked for."""
    conf: Options = Field(default={})
    """Settings of Spark, by name. spark.master says where it reads: by default on the driver's machine, with all its cores (local[*])."""
