"""Sorted files of stored snapshots as partitions of Spark's.

Always holds: each row of the snapshots from ``low`` to ``high`` that are listed is in exactly one partition, once, whatever else the files
have; what a partition gives follows from it alone. Of a file that became part of another since it was listed, readers have ten minutes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import and_
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql.datasource import InputPartition

from streamjoin.results.reader import KEY, SNAPSHOT, Snapshot, runs
from streamjoin.spark.conditions import Condition
from streamjoin.state.storage import Missing, ObjectStorage

BATCH_ROWS = 65_536


@dataclass
class FilePartition(InputPartition):  # type: ignore[misc]
    """The rows of a file that are of these snapshots."""

    path: str
    low: int
    high: int


@dataclass(frozen=True)
class ResultFiles:
    """One join's stored snapshots. Picklable."""

    location: str
    """Of the checkpoint."""
    join: str
    schema: pa.Schema
    """Of the output, ``_key``, ``_snapshot`` and ``_row``."""
    key_column: str | None
    """The column of the output that is the key; None: it is an expression."""

    def snapshots(self) -> tuple[Snapshot, ...]:
        """Those that are stored, ascending. Raises StorageError. O(snapshots)."""
        return tuple(snapshot for run in runs(ObjectStorage(self.location), self.join) for snapshot in run.snapshots)

    def partitions(self, low: int, high: int, conditions: Sequence[Condition] = ()) -> list[FilePartition]:
        """The files that may have rows of these snapshots, ends included, for which the conditions hold. O(snapshots)."""
        of_keys = [each for each in conditions if each.column in (KEY, self.key_column)]
        of_snapshots = [each for each in conditions if each.column == SNAPSHOT]
        return [
            FilePartition(file.path, max(low, file.snapshot_low), min(high, file.snapshot_high))
            for run in runs(ObjectStorage(self.location), self.join)
            for file in run.files
            if file.snapshot_low <= high
            and file.snapshot_high >= low
            and all(each.may_hold(file.snapshot_low, file.snapshot_high) for each in of_snapshots)
            and all(each.may_hold(file.key_low, file.key_high) for each in of_keys)
        ]

    def read(self, partition: FilePartition, conditions: Sequence[Condition], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """The partition's rows for which the conditions hold, with the columns of ``schema``. In memory: the file's rows."""
        storage = ObjectStorage(self.location)
        path = storage.local_path(partition.path)
        try:
            source: Any = pa.BufferReader(storage.get(partition.path)) if path is None else pa.OSFile(str(path))
        except (Missing, FileNotFoundError) as error:
            text = "it became part of another since this query was planned, or was let go; run the query again"
            raise FileNotFoundError(f"{partition.path}: is not there any more: {text}") from error
        with source:
            there = _common(pq.read_schema(source), self.schema)
            source.seek(0)
            numbers = pc.field(SNAPSHOT)
            here = [each for each in conditions if each.column in there]
            wanted = reduce(and_, map(self._expression, here), (numbers >= partition.low) & (numbers <= partition.high))
            table = pq.read_table(source, columns=there, filters=wanted, use_threads=False)
        columns = [table.column(field.name) if field.name in there else pa.nulls(table.num_rows, field.type) for field in self.schema]
        table = pa.Table.from_arrays(columns, schema=self.schema)
        for each in conditions:
            if each.column not in there:
                table = table.filter(self._expression(each))
        yield from table.select(schema.names).cast(schema).to_batches(BATCH_ROWS)

    def _expression(self, condition: Condition) -> pc.Expression:
        return condition.expression(self.schema.field(condition.column).type)


def _common(there: pa.Schema, wanted: pa.Schema) -> list[str]:
    """The columns that have the type in a file that the manifest gives them now: a join's output may have changed."""
    return [field.name for field in wanted if field.name in there.names and there.field(field.name).type == field.type]
