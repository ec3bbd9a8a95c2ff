"""Sources and sinks from the manifest's models, which name the functions that open them. The classes themselves know nothing of manifests.

A module that is loaded in tasks imports these models for type checkers alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from streamjoin.io.base import Sink, Snapshots, Source
from streamjoin.io.files_times import Times
from streamjoin.io.refused import RefusedResults
from streamjoin.kernel.types import arrow_schema
from streamjoin.language.schema import Schema
from streamjoin.state.storage import Storage

if TYPE_CHECKING:
    from streamjoin.job import SinkModel
    from streamjoin.manifest.connector import SourceConnector

SECOND = 1_000_000


@dataclass(frozen=True)
class Reading:
    """A stream, for the source that it is read by."""

    schema: pa.Schema
    """As declared."""
    event_time: str | None
    snapshots: Snapshots
    """Keeps positions that are too large for a commit."""
    exact_counts: bool
    """Record positions must be dense and exact, as windows of rows need."""
    stream: str = ""
    """Keeps its snapshots apart from another stream's."""
    query: str = ""
    """The resource's name."""
    times: Times | None = None
    """The least event time of a batch, by which a backlog of files is read."""


@dataclass(frozen=True)
class Writing:
    """An output, for its sink."""

    schema: pa.Schema
    """Of the results."""
    storage: Storage | None = None
    """The checkpoint's, where a sink without files stages."""
    query: str = ""
    """The resource's name."""
    join: str = ""
    """The join's name, if there are several."""
    refused: RefusedResults | None = None
    """Where results go that the sink's server refuses; None: one ends the run."""

    @property
    def outbox(self) -> Storage:
        """The checkpoint's storage, which must be given."""
        assert self.storage is not None, "a sink without files stages in the checkpoint"
        return self.storage


def make_source(
    source: SourceConnector,
    schema: Schema,
    event_time: str | None,
    *,
    snapshots: Snapshots,
    exact_counts: bool,
    stream: str = "",
    query: str = "",
    times: Times | None = None,
) -> Source:
    """The source that a stream's manifest describes (:class:`Reading`). Raises SourceError where model and schema do not fit."""
    made: Source = function(source.opener)(source, Reading(arrow_schema(schema), event_time, snapshots, exact_counts, stream, query, times))
    return made


def make_sink(
    sink: SinkModel,
    schema: pa.Schema,
    *,
    storage: Storage | None = None,
    query: str = "",
    join: str = "",
    refused: RefusedResults | None = None,
) -> Sink:
    """The sink that an output's manifest describes (:class:`Writing`)."""
    made: Sink = function(sink.opener)(sink, Writing(schema, storage, query, join, refused))
    return made


def function(name: str) -> Any:
    """A connector's function, by ``module:name``; its module, and so a client's package, is loaded now."""
    module, _, attribute = name.partition(":")
    return getattr(import_module(module), attribute)
