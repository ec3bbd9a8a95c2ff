"""A join's results, read from where they are kept."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pyarrow as pa

from streamjoin.api.packages import require_packages
from streamjoin.io.factory import function
from streamjoin.job import JoinJob
from streamjoin.kernel.types import output_schema
from streamjoin.manifest.connector import SinkConnector
from streamjoin.manifest.problem import listed
from streamjoin.manifest.sinks import SINKS
from streamjoin.query.messages import Limits

if TYPE_CHECKING:
    from streamjoin.api.join import Join

KEPT = [name for name, sink in SINKS.items() if sink.results is not None]
"""The sinks whose results can be read back."""
READ_SECONDS = 24 * 3600.0


def results_of(join: Join, name: str | None) -> pa.RecordBatchReader:
    """See :meth:`streamjoin.api.join.Join.results`."""
    found = join_named(join, name)
    require_packages(join.manifest, f"spec.joins[{join.job.joins.index(found)}].output")
    schema = output_schema(found.output)
    if isinstance(found.sink, SinkConnector) and found.sink.results is not None:
        batches = function(found.sink.results)(found.sink, schema)
    elif found.snapshots is not None:
        batches = _of_snapshots(join, found.name, schema)
    else:
        where = f"spec.joins[{join.job.joins.index(found)}].output"
        what = f"results of {found.name} are kept neither in files or a table nor as snapshots"
        raise ValueError(f"{where}: {what}; give sink.{listed(KEPT)}, or snapshots, or take them from the epochs of a run")
    return pa.RecordBatchReader.from_batches(schema, batches)


def join_named(join: Join, name: str | None) -> JoinJob:
    """The join of this name; None: the only one. Raises ValueError."""
    joins = {each.name: each for each in join.job.joins}
    if name is None and len(joins) == 1:
        return next(iter(joins.values()))
    if name not in joins:
        raise ValueError(f"join: {name!r} must be one of {', '.join(joins)}")
    return joins[name]


def _of_snapshots(join: Join, name: str, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    from streamjoin.query.execution import quoted

    if any(stream.name.casefold() == name.casefold() for stream in join.job.streams):
        raise ValueError(f"join: {name!r} is a stream's name, too, which queries take it for; give the join another")
    sql = f"SELECT {', '.join(map(quoted, schema.names))} FROM {quoted(name)}"  # noqa: S608 - quoted
    with join.asked(sql, Limits(seconds=READ_SECONDS)) as answer:
        for batch in answer.batches:
            yield batch.cast(schema)
