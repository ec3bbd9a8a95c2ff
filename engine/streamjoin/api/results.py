"""A join's results, read from where they are kept."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pyarrow as pa

from streamjoin.api.packages import require_packages
from streamjoin.io.base import SourceError
from streamjoin.io.files_reader import FileRange, FilesReader, FilesSourceConfig, FilesSplit
from streamjoin.io.folder import folder_at
from streamjoin.job import JoinJob
from streamjoin.kernel.types import output_schema
from streamjoin.location import is_url
from streamjoin.manifest.sinks import DeltaSink, FilesSink, IcebergSink
from streamjoin.query.messages import Limits

if TYPE_CHECKING:
    from streamjoin.api.join import Join

ALL_ROW_GROUPS = 2**31
READ_SECONDS = 24 * 3600.0


def results_of(join: Join, name: str | None) -> pa.RecordBatchReader:
    """See :meth:`streamjoin.api.join.Join.results`."""
    found = join_named(join, name)
    require_packages(join.manifest, f"spec.joins[{join.job.joins.index(found)}].output")
    schema = output_schema(found.output)
    if isinstance(found.sink, FilesSink):
        batches = _of_files(found.sink, schema)
    elif isinstance(found.sink, DeltaSink):
        batches = _of_delta(found.sink, schema)
    elif isinstance(found.sink, IcebergSink):
        batches = _of_iceberg(found.sink, schema)
    elif found.snapshots is not None:
        batches = _of_snapshots(join, found.name, schema)
    else:
        where = f"spec.joins[{join.job.joins.index(found)}].output"
        what = f"results of {found.name} are kept neither in files or a table nor as snapshots"
        raise ValueError(f"{where}: {what}; give sink.files, delta or iceberg, or snapshots, or take them from the epochs of a run")
    return pa.RecordBatchReader.from_batches(schema, batches)


def join_named(join: Join, name: str | None) -> JoinJob:
    """The join of this name; None: the only one. Raises ValueError."""
    joins = {each.name: each for each in join.job.joins}
    if name is None and len(joins) == 1:
        return next(iter(joins.values()))
    if name not in joins:
        raise ValueError(f"join: {name!r} must be one of {', '.join(joins)}")
    return joins[name]


def _of_files(sink: FilesSink, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Lists the files; the iterator reads them."""
    folder, ending = folder_at(sink.path), f".{sink.format}"
    is_there = is_url(sink.path) or os.path.isdir(sink.path)
    entries = sorted(folder.scan(is_deep=False), key=lambda entry: entry.name) if is_there else []
    parts = [(entry.name, entry.stat().st_size) for entry in entries if entry.is_file() and entry.name.endswith(ending)]
    reader = FilesReader(FilesSourceConfig(path=sink.path, format=sink.format, fills=False, is_deep=False), schema, exact=False)

    def read() -> Iterator[pa.RecordBatch]:
        for name, size in parts:
            end = ALL_ROW_GROUPS if sink.format == "parquet" else size
            for records in reader.read(FilesSplit(first_record=0, records=0, ranges=(FileRange(name, 0, end, 0, size),))):
                if records.rejected:
                    first = records.rejected[0]
                    raise SourceError(f"{folder.path(name)}: {first.place}: {first.error}; was output.select another then?")
                yield records.batch

    return read()


def _of_delta(sink: DeltaSink, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The newest version; another program's rows in it, too."""
    from deltalake import DeltaTable

    from streamjoin.io.delta_table import table_uri
    from streamjoin.io.table_files import stored_schema

    uri = table_uri(sink.path)
    if not DeltaTable.is_deltatable(uri):
        return iter(())
    found = pa.RecordBatchReader.from_stream(DeltaTable(uri).scan(columns=schema.names))
    return (batch.cast(stored_schema(schema)).cast(schema) for batch in found)


def _of_iceberg(sink: IcebergSink, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The newest snapshot; another program's rows in it, too."""
    from pyiceberg.exceptions import NoSuchTableError

    from streamjoin.io.factory import make_sink
    from streamjoin.io.iceberg_sink import IcebergSink as Target
    from streamjoin.io.iceberg_table import catalog_of
    from streamjoin.io.table_files import stored_schema

    target = make_sink(sink, schema)
    assert isinstance(target, Target)
    stored = stored_schema(schema, least_integer=pa.int32())
    try:
        table = catalog_of(target.config.catalog_name, target.config.catalog).load_table(sink.table)
    except NoSuchTableError:
        return iter(())
    batches = table.scan(selected_fields=tuple(schema.names)).to_arrow_batch_reader()
    return (batch.select(schema.names).cast(stored).cast(schema) for batch in batches)


def _of_snapshots(join: Join, name: str, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    from streamjoin.query.execution import quoted

    if any(stream.name.casefold() == name.casefold() for stream in join.job.streams):
        raise ValueError(f"join: {name!r} is a stream's name, too, which queries take it for; give the join another")
    sql = f"SELECT {', '.join(map(quoted, schema.names))} FROM {quoted(name)}"  # noqa: S608 - quoted
    with join.asked(sql, Limits(seconds=READ_SECONDS)) as answer:
        for batch in answer.batches:
            yield batch.cast(schema)
