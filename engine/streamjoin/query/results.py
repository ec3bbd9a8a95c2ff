"""A join's results by its name: what its snapshots have, each row once.

Of snapshots that are stored rows lie sorted by key in Parquet files. Files that cannot have rows of use are not opened, by the keys and
snapshots that their index tells; of the others only those row groups are read that can have some, by the statistics in the file, and only
the columns that are asked for. Rows of snapshots that wait to be stored, and of the one that is open, are in the parts that the commit
names, which are read as a whole.

Always holds: an answer has all results up to its commit, and none of a later one. A row is read from a file where its snapshot is listed,
and else from its parts: files are listed after the commit was read, so that what that names, and is not listed, nobody has stored yet; or
its parts are gone, and the query begins again.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from streamjoin.query.bounds import Range, direct_ranges
from streamjoin.query.errors import QueryError, Why
from streamjoin.query.relation import Rows, Wanted
from streamjoin.results.parts import read_parts, sorted_rows
from streamjoin.results.reader import KEY, ROW, SNAPSHOT, SnapshotFile, content, lost_with, runs
from streamjoin.snapshots.timeline import Closed, Open
from streamjoin.state import checks
from streamjoin.state.checkpoint import Checkpoint
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
        """``after``: of later snapshots than this one alone, and nothing of the one that is open."""
        self._results, self._epoch, self._storage = results, checkpoint.epoch, storage
        self._timeline = checkpoint.snapshots.of(results.join)
        self._after, self._is_followed = -1 if after is None else after, after is not None

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
        stored = {snapshot.id for run in found for snapshot in run.snapshots if snapshot.epoch <= self._epoch}
        waiting = [each for each in self._timeline.closed if each.parts and each.id not in stored]
        opened = None if self._is_followed else self._timeline.open
        if opened is not None and opened.id in stored:
            opened = None  # a later commit of the same epoch has ended it, with the same rows, and it is stored since
        last = max((*stored, *(each.id for each in waiting)), default=-1)
        said = (direct_ranges(name, wanted.anyof) for name in (KEY, self._results.key_column) if name is not None)
        keys = next((ranges for ranges in said if ranges is not None), None)
        snapshots = direct_ranges(SNAPSHOT, wanted.anyof)
        schema = pa.schema([self.schema.field(name) for name in dict.fromkeys([*wanted.columns, SNAPSHOT])])
        files = [file for run in found for file in run.files]
        useful = [file for file in files if self._after < file.snapshot_high and file.snapshot_low <= last]
        useful = [file for file in useful if _may_have(file, keys, snapshots)]
        unsorted: list[Closed | Open] = [each for each in waiting if each.id > self._after and _meets(each.id, each.id, snapshots)]
        if opened is not None and snapshots is None:
            unsorted.append(opened)
        tables, nbytes = [schema.empty_table()], 0
        for file in useful:
            check()
            for table, size in self._groups(file, schema, keys, room - nbytes):
                tables.append(_of_snapshots(table, snapshots))  # a file may have those of many, of which few are asked for
                nbytes += size
        for snapshot in unsorted:
            check()
            if snapshot.nbytes > room - nbytes:
                raise self._too_much(snapshot.nbytes, room - nbytes)
            tables += self._unsorted(snapshot, schema)
            nbytes += snapshot.nbytes
        is_within = f'"{SNAPSHOT}" > {self._after} AND "{SNAPSHOT}" <= {last}'
        all_parts = [each for snapshot in (*waiting, opened) if snapshot is not None for each in snapshot.parts]
        return Rows(
            pa.concat_tables(tables),
            is_within if opened is None else f'"{SNAPSHOT}" IS NULL OR ({is_within})',
            len(useful) + sum(len(snapshot.parts) for snapshot in unsorted),
            len(files) + len(all_parts),
            nbytes,
            sum(file.bytes for file in files) + sum(part.nbytes for part in all_parts),
            upto=self._upto(last, opened),
            snapshot=last,
            first_snapshot=found[0].snapshots[0].id if found else None,
        )

    def _upto(self, last: int, opened: Open | None) -> str:
        if opened is None:
            return f"{self.name} up to snapshot {last}" if last >= 0 else f"no snapshot of {self.name} has ended yet"
        before = f"up to snapshot {last} and " if last >= 0 else ""
        return f"{self.name} {before}with {opened.rows:,} results of one that has not ended"

    def _unsorted(self, snapshot: Closed | Open, schema: pa.Schema) -> list[pa.Table]:
        """All rows of a snapshot from its parts. Of one that is open it is not known yet which number each has, so it has neither."""
        if isinstance(snapshot, Closed):
            return [_with_columns(rows, schema) for rows in sorted_rows(self._storage, snapshot)]
        return [_with_columns(read_parts(self._storage, snapshot.parts), schema)] if snapshot.parts else []

    def _groups(self, file: SnapshotFile, schema: pa.Schema, keys: list[Range] | None, room: int) -> list[tuple[pa.Table, int]]:
        """The row groups of a file that may have rows with such keys, with these columns, and the bytes of each in the file."""
        path = self._storage.local_path(file.path)
        if path is None and file.bytes > room:
            raise self._too_much(file.bytes, room)
        source: Any = pa.BufferReader(content(self._storage, file)) if path is None else self._open(file, str(path))
        try:
            opened = pq.ParquetFile(source, page_checksum_verification=True)
        except (pa.ArrowException, OSError) as error:
            raise checks.changed(self._storage, file.path, lost_with(file)) from error
        with opened as parquet:
            there = _common(parquet.schema_arrow, schema)
            metadata, found = parquet.metadata, list[tuple[pa.Table, int]]()
            columns = [metadata.schema.column(index).path for index in range(metadata.num_columns)]
            key, needed = columns.index(KEY), [index for index, name in enumerate(columns) if name in there]
            for number in range(metadata.num_row_groups):
                group = metadata.row_group(number)
                if not _group_may_have(group.column(key).statistics, keys):
                    continue
                size = sum(group.column(index).total_compressed_size for index in needed)
                if size > room:
                    raise self._too_much(size, room)
                room -= size
                try:
                    table = parquet.read_row_group(number, columns=there, use_threads=False)
                except (pa.ArrowException, OSError) as error:
                    raise checks.changed(self._storage, file.path, lost_with(file)) from error
                found.append((_with_columns(table, schema), size))
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


def _common(there: pa.Schema, wanted: pa.Schema) -> list[str]:
    """The wanted columns that have the type there that the manifest gives them now: a join's output may have changed."""
    return [field.name for field in wanted if field.name in there.names and there.field(field.name).type == field.type]


def _with_columns(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Null where the table has no such column."""
    there = _common(table.schema, schema)
    arrays = [table.column(field.name) if field.name in there else pa.nulls(table.num_rows, field.type) for field in schema]
    return pa.Table.from_arrays(arrays, schema=schema)


def _of_snapshots(table: pa.Table, ranges: list[Range] | None) -> pa.Table:
    """The rows of snapshots in these ranges; None: all."""
    if ranges is None:
        return table
    column, wanted = table.column(SNAPSHOT), None
    for low, high in ranges:
        least = pc.greater_equal(column, pa.scalar(0 if low is None else low, pa.int64()))
        within = least if high is None else pc.and_(least, pc.less_equal(column, pa.scalar(high, pa.int64())))
        wanted = within if wanted is None else pc.or_(wanted, within)
    return table.slice(0, 0) if wanted is None else table.filter(wanted)


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
