"""Small files of an Iceberg table become few large ones, in one snapshot that changes no row (``replace``), as by Spark's
``rewrite_data_files``. PyIceberg reads and commits; it has no such operation itself.

Always holds: a file is replaced only by one with all of its rows, in the table's present columns; where a delete may have been meant for
files that are being rewritten, nothing is replaced. Whoever dies on the way leaves at most new files that no snapshot names.
"""

from __future__ import annotations

import contextlib
import os
import random
import time
import uuid
from collections import defaultdict
from collections.abc import Sequence
from typing import Any, cast

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import CommitFailedException, ValidationException
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.io.pyarrow import ArrowScan, schema_to_pyarrow
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.table import CommitTableResponse, FileScanTask, Table
from pyiceberg.table.snapshots import Operation, Summary, ancestors_of
from pyiceberg.table.update import AddSnapshotUpdate, TableRequirement, TableUpdate

from streamjoin.io.base import portions
from streamjoin.io.iceberg_files import data_file, flush, transaction_once
from streamjoin.io.sinks import ROW_GROUP_BYTES, ROW_GROUP_ROWS

ATTEMPTS = 20
"""At a transaction, against others that append meanwhile."""
PAUSE_SECONDS = 0.2
_NOBODY = contextlib.nullcontext()
NEWEST_FORMAT = 2
"""From version 3 on rows have identities, which a rewriting would have to keep."""


class RewriteError(Exception):
    """Why files stay as they are; the text is for people."""


def rewrite(table: Table, target_bytes: int, compression: str, alone: contextlib.AbstractContextManager[Any] = _NOBODY) -> tuple[int, int]:
    """Replaces the small files of each partition by fewer. How many became how many.

    Appends of others in between do not disturb it. ``alone``: keeps this process from committing to the table beside, as appends that come
    faster than a transaction takes would never let one through. Raises RewriteError, and what PyIceberg raises; the table is as it was
    then, but where a catalog does not say whether it has committed. O(bytes of small files); memory: one small file, and a row group.
    """
    if table.metadata.format_version > NEWEST_FORMAT:
        raise RewriteError(f"its format is version {table.metadata.format_version}, and only {NEWEST_FORMAT} is rewritten here")
    snapshot = table.current_snapshot()
    groups = _groups(table, target_bytes) if snapshot is not None else []
    if snapshot is None or not groups:
        return 0, 0
    old = [task.file for tasks in groups for task in tasks]
    new: list[DataFile] = []
    form = _form(table)
    is_open = False
    """Whether the catalog may have committed."""
    try:
        for tasks in groups:
            new.append(_one_file(table, tasks, compression))
        for attempt in range(1, ATTEMPTS + 1):
            try:
                with alone:
                    table.refresh()
                    if _form(table) != form or not _only_appended(table, snapshot.snapshot_id):
                        raise RewriteError("others changed it meanwhile")
                    is_open = True
                    _replace(table, old, new)
                break
            except (CommitFailedException, ValidationException) as conflict:
                is_open = False
                if attempt == ATTEMPTS:
                    raise RewriteError(f"others changed it each time ({conflict})") from conflict
                time.sleep(PAUSE_SECONDS * random.uniform(0.5, 1.0))  # noqa: S311 - nothing secret about it
    except BaseException:
        if not is_open:
            for file in new:
                _remove(table, file.file_path)
        raise
    return len(old), len(new)


def _replace(table: Table, old: Sequence[DataFile], new: Sequence[DataFile]) -> None:
    """One snapshot without the old files and with the new ones."""
    catalog = table.catalog
    table.catalog = cast(Catalog, _Replacing(catalog))
    try:
        with transaction_once(table) as transaction, transaction.update_snapshot().overwrite() as snapshot:
            for file in old:
                snapshot.delete_data_file(file)
            for file in new:
                snapshot.append_data_file(file)
    finally:
        table.catalog = catalog


def _form(table: Table) -> tuple[int, int]:
    """Which columns and which partitions new files have."""
    return table.metadata.current_schema_id, table.metadata.default_spec_id


def _only_appended(table: Table, since: int) -> bool:
    """Whether all snapshots after this one only added files, so that what was read of it is what there is."""
    for snapshot in ancestors_of(table.current_snapshot(), table.metadata):
        if snapshot.snapshot_id == since:
            return True
        if snapshot.summary is None or snapshot.summary.operation is not Operation.APPEND:
            return False
    return False


def _remove(table: Table, path: str) -> None:
    with contextlib.suppress(Exception):  # what stays is for remove_orphan_files
        table.io.delete(path)


class _Replacing:
    """A catalog that is told ``replace`` where PyIceberg, which has no such operation, says ``overwrite``."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog

    def __getattr__(self, name: str) -> Any:
        return getattr(self._catalog, name)

    def commit_table(
        self, table: Table, requirements: tuple[TableRequirement, ...], updates: tuple[TableUpdate, ...]
    ) -> CommitTableResponse:
        return self._catalog.commit_table(table, requirements, tuple(map(_as_replacement, updates)))


def _as_replacement(update: TableUpdate) -> TableUpdate:
    if not isinstance(update, AddSnapshotUpdate) or update.snapshot.summary is None:
        return update
    summary = Summary(Operation.REPLACE, **update.snapshot.summary.additional_properties)
    return AddSnapshotUpdate(snapshot=update.snapshot.model_copy(update={"summary": summary}))


def small_files(table: Table) -> list[tuple[Any, int]]:
    """The partition and the bytes of each file that could be rewritten. O(files)."""
    return [(_partition(task), task.file.file_size_in_bytes) for task in _tasks(table)]


def _tasks(table: Table) -> list[FileScanTask]:
    return [
        task
        for task in table.scan().plan_files()
        if not task.delete_files
        and task.file.file_format is FileFormat.PARQUET
        and task.file.spec_id == table.metadata.default_spec_id
        and task.file.content is DataFileContent.DATA
    ]


def _partition(task: FileScanTask) -> tuple[Any, ...]:
    return tuple(task.file.partition[position] for position in range(len(task.file.partition)))


def _groups(table: Table, target_bytes: int) -> list[list[FileScanTask]]:
    """Two small files or more of a partition that are about the target's size together, in the order of their names."""
    small: defaultdict[tuple[Any, ...], list[FileScanTask]] = defaultdict(list)
    for task in sorted(_tasks(table), key=lambda task: task.file.file_path):
        if task.file.file_size_in_bytes < target_bytes:
            small[_partition(task)].append(task)
    cut = (portions(tasks, target_bytes, lambda task: task.file.file_size_in_bytes) for tasks in small.values())
    return [group for groups in cut for group in groups if len(group) > 1]


def _one_file(table: Table, tasks: Sequence[FileScanTask], compression: str) -> DataFile:
    """A file beside the first of these, with the rows of all. One that fails leaves none."""
    path = f"{os.path.dirname(tasks[0].file.file_path)}/part-rewritten-{uuid.uuid4()}.parquet"
    try:
        return _written(table, tasks, path, compression)
    except BaseException:
        _remove(table, path)
        raise


def _written(table: Table, tasks: Sequence[FileScanTask], path: str, compression: str) -> DataFile:
    schema = table.schema()
    columns = schema_to_pyarrow(schema, include_field_ids=True)
    footers: list[pq.FileMetaData] = []
    # As the specification wants decimals.
    options: dict[str, Any] = {"compression": compression, "store_decimal_as_integer": True, "metadata_collector": footers}
    output = table.io.new_output(path)
    rows = 0
    with output.create() as stream, pq.ParquetWriter(stream, columns, **options) as writer:
        scan = ArrowScan(table.metadata, table.io, schema, AlwaysTrue())
        batches = (batch for task in tasks for batch in scan.to_record_batches([task]))
        # What a file has as text may come as one of two types of Arrow's.
        for portion in portions((batch.select(columns.names).cast(columns) for batch in batches), ROW_GROUP_BYTES):
            table_of = pa.Table.from_batches(portion, columns)
            rows += table_of.num_rows
            writer.write_table(table_of, row_group_size=ROW_GROUP_ROWS)
    expected = sum(task.file.record_count for task in tasks)
    if rows != expected:
        raise RewriteError(f"{len(tasks)} files have {rows} rows, and their manifests say {expected}")
    flush([path])
    return data_file(table, path, len(output), tasks[0].file.partition, footers[0])
