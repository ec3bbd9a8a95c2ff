"""A join's results by its name: what its stored snapshots have, each row once, as it lies sorted by key in Parquet files.

Files that cannot have rows of use are not opened, by the keys and snapshots that their index tells; of the others only those row groups are
read that can have some, by the statistics in the file, and only the columns that are asked for.

Always holds: an answer has all rows of snapshots up to one, which is stored whole, and of no later one. What has been found since the last
snapshot that is stored is not there yet.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from streamjoin.query.bounds import Range, direct_ranges
from streamjoin.query.errors import QueryError, Why
from streamjoin.query.relation import Rows, Wanted
from streamjoin.results.parts import KEY, ROW, SNAPSHOT
from streamjoin.results.reader import Run, Snapshot, SnapshotFile, runs
from streamjoin.state.log import Checkpoint
from streamjoin.state.storage import Storage

EPOCH = datetime.datetime(1970, 1, 1)
MICROSECOND = datetime.timedelta(microseconds=1)


@dataclass(frozen=True)
class ResultsOf:
    """A join whose results are kept as snapshots."""

    join: str
    schema: pa.Schema
    """Of its output."""
    key_type: pa.DataType
    key_column: str | None
    """The column of the output that is the key; None: it is an expression."""


class JoinResults:
    """See the module. A relation."""

    def __init__(self, results: ResultsOf, checkpoint: Checkpoint, storage: Storage, after: int | None = None) -> None:
        """``after``: of later snapshots than this one alone."""
        self._results, self._epoch, self._storage, self._after = results, checkpoint.epoch, storage, -1 if after is None else after

    @property
    def name(self) -> str:
        return self._results.join

    @cached_property
    def schema(self) -> pa.Schema:
        """The output's columns, then ``_key``, ``_snapshot`` and ``_row``."""
        ours = [pa.field(KEY, self._results.key_type), pa.field(SNAPSHOT, pa.int64()), pa.field(ROW, pa.int64())]
        return pa.schema([*self._results.schema, *ours])

    def read(self, wanted: Wanted, room: int, check: Callable[[], None]) -> Rows:
        """As :meth:`streamjoin.query.relation.Relation.read`. O(snapshots + what is read)."""
        found = runs(self._storage, self.name)
        last = self._last(found)
        files = [file for run in found for file in run.files]
        said = (direct_ranges(name, wanted.anyof) for name in (KEY, self._results.key_column) if name is not None)
        keys = next((ranges for ranges in said if ranges is not None), None)
        snapshots = direct_ranges(SNAPSHOT, wanted.anyof)
        columns = list(dict.fromkeys([*wanted.columns, SNAPSHOT]))
        schema = pa.schema([self.schema.field(name) for name in columns])
        tables, nbytes, opened = list[pa.Table](), 0, 0
        for file in files:
            if last is None or file.snapshot_low > last.id or file.snapshot_high <= self._after:
                continue
            if not _may_have(file, keys, snapshots):
                continue
            check()
            opened += 1
            for table, size in self._parts(file, schema, keys, room - nbytes):
                tables.append(table)
                nbytes += size
        return Rows(
            pa.concat_tables([schema.empty_table(), *tables]),
            f'"{SNAPSHOT}" > {self._after} AND "{SNAPSHOT}" <= {-1 if last is None else last.id}',
            opened,
            len(files),
            nbytes,
            sum(file.bytes for file in files),
            upto=f"{self.name} up to snapshot {last.id}" if last is not None else f"no snapshot of {self.name} is stored yet",
            snapshot=-1 if last is None else last.id,
            first_snapshot=found[0].snapshots[0].id if found else None,
        )

    def _last(self, found: Sequence[Run]) -> Snapshot | None:
        """The last snapshot that is stored and of this commit or an earlier one."""
        stored = (snapshot for run in found for snapshot in run.snapshots)
        return max((each for each in stored if each.epoch <= self._epoch), key=lambda each: each.id, default=None)

    def _parts(self, file: SnapshotFile, schema: pa.Schema, keys: list[Range] | None, room: int) -> list[tuple[pa.Table, int]]:
        """The row groups of a file that may have rows with such keys, with these columns, and the bytes of each in the file."""
        path = self._storage.local_path(file.path)
        if path is None and file.bytes > room:
            raise self._too_much(file.bytes, room)
        source: Any = pa.BufferReader(self._storage.get(file.path)) if path is None else self._open(file, str(path))
        with pq.ParquetFile(source) as parquet:
            there = [name for name in schema.names if name in parquet.schema_arrow.names and _same(parquet.schema_arrow, schema, name)]
            found: list[tuple[pa.Table, int]] = []
            for number in range(parquet.metadata.num_row_groups):
                group = parquet.metadata.row_group(number)
                chunks = [group.column(index) for index in range(group.num_columns)]
                if not all(_group_may_have(chunk.statistics, keys) for chunk in chunks if chunk.path_in_schema == KEY):
                    continue
                size = sum(chunk.total_compressed_size for chunk in chunks if chunk.path_in_schema in there)
                if size > room:
                    raise self._too_much(size, room)
                room -= size
                table = parquet.read_row_group(number, columns=there, use_threads=False)
                arrays = [table.column(field.name) if field.name in there else pa.nulls(table.num_rows, field.type) for field in schema]
                found.append((pa.Table.from_arrays(arrays, schema=schema), size))
        return found

    def _open(self, file: SnapshotFile, path: str) -> pa.NativeFile:
        try:
            return pa.OSFile(path)
        except FileNotFoundError:
            self._storage.get(file.path)  # raises Missing
            raise

    def _too_much(self, nbytes: int, room: int) -> QueryError:
        text = f"{self.name}: the query reads {nbytes:,} bytes more and may read {max(0, room):,}; ask for fewer keys, or allow more"
        return QueryError(Why.LARGE, text)


def _same(there: pa.Schema, wanted: pa.Schema, name: str) -> bool:
    """Whether a file's column has the type that the manifest gives it now: a join's output may have changed."""
    return bool(there.field(name).type == wanted.field(name).type)


def _may_have(file: SnapshotFile, keys: list[Range] | None, snapshots: list[Range] | None) -> bool:
    return _meets(file.key_low, file.key_high, keys) and _meets(file.snapshot_low, file.snapshot_high, snapshots)


def _group_may_have(statistics: Any, keys: list[Range] | None) -> bool:
    if statistics is None or not statistics.has_min_max:
        return True
    return _meets(statistics.min, statistics.max, keys)


def _meets(low: Any, high: Any, ranges: list[Range] | None) -> bool:
    """Whether a value of a range may be from ``low`` to ``high`` (None: not known)."""
    if ranges is None:
        return True
    least, most = _ordinal(low), _ordinal(high)

    def meets(begin: Any, end: Any) -> bool:
        return (most is None or begin is None or begin <= most) and (least is None or end is None or end >= least)

    try:
        return any(meets(*ends) for ends in ranges)
    except TypeError:  # bounds of another type, from when the key was another
        return True


def _ordinal(bound: Any) -> Any:
    """A bound as ``bounds.ordinal`` has values."""
    if isinstance(bound, datetime.datetime):
        naive = bound.astimezone(datetime.UTC).replace(tzinfo=None) if bound.tzinfo else bound
        return (naive - EPOCH) // MICROSECOND
    return bound
