"""The data files of tables (Delta, Iceberg), written by tasks: Parquet, each of one partition, with what a table's log says of them.

Files are staged and brought to their final names as those of a files sink are (``io.staging``); a table's readers do not see them before
its log names them. Few results stay in the commit until they are gathered, not cut by partition before that.

Always holds: all rows of a file have the same values in the columns of the partition. A writer holds at most one row group's bytes of all
partitions together, and keeps at most ``MOST_OPEN`` files open for longer than one flush.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from streamjoin.io.base import SinkError, Staged, arrow_bytes
from streamjoin.io.folder import NULL_FOLDER
from streamjoin.io.sinks import ROW_GROUP_BYTES, Encoder, FilesSinkConfig, FilesWriter, ParquetEncoder
from streamjoin.io.staging import Staging
from streamjoin.kernel.arrays import FIRST_DAY, LAST_DAY
from streamjoin.language.temporal import date_text

MOST_OPEN = 64
"""Of more partitions at once, files are finished rather than kept open: each is an open file of the worker."""
INDEXED_COLUMNS = 32
"""The number of first columns that have statistics in a Delta log, as by the default of Delta's own writers."""
LONGEST_TEXT = 64
"""Characters; a column with a longer least or greatest text has no statistics in the log."""
LONGEST_FOLDER = 120
"""Characters of a partition's value in a directory's name; file systems take 255 bytes, with the column's name."""
_NAME = re.compile(r"part-(?P<identity>[^-/]+)-(?P<epoch>\d+)-(?P<task>small|\d+)(?:-[^/]*)?")

REFUSED = "refused"
"""The text of what is staged of rows that the table cannot have, in data."""

PartitionValue = str | int | bool | None


@dataclass(frozen=True)
class TableFiles:
    """How results become a table's files. Picklable."""

    schema: pa.Schema
    """Of the results."""
    stored: pa.Schema
    """Of the table: the same columns, some in another type (:func:`stored_schema`)."""
    partition_by: tuple[str, ...] = ()
    is_hive: bool = True
    """As Hive and Delta have partitions: files are without these columns, and empty text is null. Iceberg has neither."""
    compression: str = "snappy"
    roll_bytes: int = 512 * 1024 * 1024
    fails_on_bad: bool = False
    """Whether a row that the table cannot have is an error; otherwise it is staged for the dead letters."""

    @property
    def columns(self) -> list[str]:
        """The columns of a file."""
        return [name for name in self.stored.names if not self.is_hive or name not in self.partition_by]


def columns_named(schema: pa.Schema, names: Sequence[str]) -> tuple[str, ...]:
    """Columns by names without regard to case, as the schema has them; others as they are, for the table to refuse."""
    known = {name.casefold(): name for name in schema.names}
    return tuple(known.get(name.casefold(), name) for name in names)


def stored_schema(schema: pa.Schema, *, least_integer: pa.DataType | None = None) -> pa.Schema:
    """The types in which a table has results' columns: durations are microseconds, BIGINT, as tables have none.

    ``least_integer``: narrower integers become this type.
    """

    def stored(kind: pa.DataType) -> pa.DataType:
        if pa.types.is_duration(kind):
            return pa.int64()
        if least_integer is not None and pa.types.is_integer(kind) and kind.bit_width < least_integer.bit_width:
            return least_integer
        return kind

    return pa.schema([pa.field(field.name, stored(field.type)) for field in schema])


@dataclass(frozen=True)
class Publication:
    """Which one of all publications of a checkpoint's results this is.

    An epoch has up to two: with its commit, and, once, of small results that are gathered between its commit and the next one. The second
    consists of gathered files alone, as the first cannot if there is a second.
    """

    identity: str
    """The checkpoint's."""
    number: int
    """Higher with each publication to one sink."""
    epoch: int

    @classmethod
    def of(cls, staged: Sequence[Staged]) -> Publication:
        """The publication of files that are published together, one or more, by their names. Raises SinkError for names that are no
        engine's."""
        matches = [_NAME.match(each.final.rsplit("/", 1)[-1]) for each in staged]
        found = {(match["identity"], int(match["epoch"])) for match in matches if match}
        if len(found) != 1 or None in matches:
            raise SinkError(f"{sorted(each.final for each in staged)[:3]}: are not files of one epoch of one checkpoint")
        identity, epoch = found.pop()
        is_gathered = all(match is not None and match["task"] == "small" for match in matches)
        return cls(identity, 2 * epoch + is_gathered, epoch)


class TableWriter:
    """Cuts one task's results by partition, and stages a file or more of each."""

    def __init__(self, files: TableFiles, staging: Staging, name: str, stem: str, small_bytes: int = 0) -> None:
        self._files, self._staging, self._name, self._stem = files, staging, name, stem
        self._small_bytes = small_bytes
        self._pending: list[pa.RecordBatch] = []
        self._pending_bytes = 0
        self._held_bytes = 0
        self._refused: list[pa.RecordBatch] = []
        self._partitions: dict[tuple[PartitionValue, ...], _PartitionWriter] = {}
        self._done: list[Staged] = []
        self._finished = False

    def write(self, batch: pa.RecordBatch) -> None:
        """Takes a batch of results. O(rows log rows) where they are cut by partition."""
        if self._finished:
            raise SinkError(f"writer {self._name}: closed already; ask the sink for another")
        if not batch.schema.equals(self._files.schema):
            raise SinkError(f"writer {self._name}: a batch's columns {batch.schema.names} are not the sink's {self._files.schema.names}")
        if batch.num_rows:
            batch = self._without_refused(batch)
        if batch.num_rows == 0:
            return
        self._pending.append(batch)
        self._pending_bytes += batch.nbytes
        if self._pending_bytes > self._small_bytes:
            self._small_bytes = 0
            self._cut()

    def close(self) -> list[Staged]:
        """Finishes; what was staged."""
        if not self._finished:
            if self._small_bytes and self._pending:
                rows = sum(batch.num_rows for batch in self._pending)
                self._done.append(Staged("", f"part-{self._stem}", rows, 0, data=arrow_bytes(self._pending).to_pybytes()))
            else:
                self._cut()
                for writer in self._partitions.values():
                    self._done.extend(writer.close())
            if self._refused:
                data = arrow_bytes(self._refused).to_pybytes()
                rows = sum(batch.num_rows for batch in self._refused)
                self._done.append(Staged("", f"part-{self._stem}-{REFUSED}", rows, 0, text=REFUSED, data=data))
            self._finished = True
        return list(self._done)

    def abort(self) -> None:
        """Removes every file of this writer."""
        self._finished = True
        self._pending, self._done, self._refused = [], [], []
        for writer in self._partitions.values():
            writer.abort()

    def _without_refused(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The rows that the table can have. Raises SinkError where others are errors."""
        for name in self._files.partition_by:
            if not pa.types.is_date(batch.schema.field(name).type):
                continue
            days = batch.column(name).cast(pa.int32())
            refused = pc.fill_null(pc.or_(pc.less(days, FIRST_DAY), pc.greater(days, LAST_DAY)), False)
            if not pc.any(refused).as_py():
                continue
            if self._files.fails_on_bad:
                day = date_text(days.filter(refused)[0].as_py())
                remedy = "leave it out (output.where), or let onBad of the output be deadLetter"
                raise SinkError(f"partitionBy: {name}: {no_partition(day)}; {remedy}")
            self._refused.append(batch.filter(refused))
            batch = batch.filter(pc.invert(refused))
        return batch

    def _cut(self) -> None:
        pending, self._pending, self._pending_bytes = self._pending, [], 0
        for batch in pending:
            for value, part in by_partition(_as_stored(batch, self._files.stored), self._files.partition_by):
                writer = self._partitions.get(value)
                if writer is None:
                    number = len(self._partitions)
                    writer = self._partitions[value] = _PartitionWriter(self._files, self._staging, self._name, self._stem, number, value)
                writer.write(part.select(self._files.columns))
            self._held_bytes += batch.nbytes
            if self._held_bytes >= ROW_GROUP_BYTES:
                self._held_bytes = 0
                for writer in self._partitions.values():
                    writer.let_go(finishes=len(self._partitions) > MOST_OPEN)


class _PartitionWriter(FilesWriter):
    """The files of one partition."""

    def __init__(self, files: TableFiles, staging: Staging, name: str, stem: str, number: int, value: tuple[PartitionValue, ...]) -> None:
        config = FilesSinkConfig("", "parquet", files.compression, roll_bytes=files.roll_bytes)
        own = f"-p{number:05d}" if files.partition_by else ""
        schema = pa.schema([files.stored.field(column) for column in files.columns])
        super().__init__(config, staging, schema, name + own, stem + own)
        texts = [partition_text(part) for part in value]
        self._partition = {
            column: None if files.is_hive and text == "" else text for column, text in zip(files.partition_by, texts, strict=True)
        }
        self._folder = "".join(f"{folder_name(column)}={folder_name(text)}/" for column, text in self._partition.items())
        self._metadata: list[pq.FileMetaData] = []

    def let_go(self, *, finishes: bool) -> None:
        """Hold no more rows; with ``finishes``, no open file."""
        self._flush()
        if finishes:
            self._finish_file()

    def _encoder_of(self, stream: pa.NativeFile) -> Encoder:
        self._metadata = []
        # Iceberg's specification wants decimals as integers where they fit.
        compression = self._config.compression or "none"
        settings = {"store_decimal_as_integer": True, "metadata_collector": self._metadata}
        return ParquetEncoder(stream, self._schema, compression, self._encodings, **settings)

    def _staged(self) -> Staged:
        staged = super()._staged()
        return replace(staged, final=self._folder + staged.final)

    def _finished_file(self) -> Staged:
        described = {"partition": self._partition, "stats": statistics(self._metadata[0], self._schema)}
        return replace(self._staged(), text=json.dumps(described, ensure_ascii=False, separators=(",", ":")))


def no_partition(day: str) -> str:
    """Why a date is refused."""
    return f"{day} is no partition that readers of the table take, as its year is not from 1 to 9999"


def _as_stored(batch: pa.RecordBatch, stored: pa.Schema) -> pa.RecordBatch:
    columns = [
        column if column.type.equals(field.type) else column.cast(pa.int64()).cast(field.type)
        for column, field in zip(batch.columns, stored, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=stored)


def by_partition(batch: pa.RecordBatch, columns: Sequence[str]) -> Iterator[tuple[tuple[PartitionValue, ...], pa.RecordBatch]]:
    """The rows with the same values in these columns, nulls being the same, in their order. O(rows log rows)."""
    if not columns:
        yield (), batch
        return
    codes = np.zeros(batch.num_rows, np.int64)
    for column in columns:
        values = pc.dictionary_encode(batch.column(column), null_encoding="encode")
        mixed = codes * len(values.dictionary) + values.indices.to_numpy(zero_copy_only=False)
        codes = np.unique(mixed, return_inverse=True)[1].reshape(-1)
    order = np.argsort(codes, kind="stable")
    starts = np.flatnonzero(np.diff(codes[order], prepend=-1))
    for start, end in zip(starts, [*starts[1:], len(order)], strict=True):
        part = batch.take(pa.array(order[start:end]))
        yield tuple(_partition_value(part.column(column)[0]) for column in columns), part


def _partition_value(value: pa.Scalar) -> PartitionValue:
    """Dates are text, as Python has none of years above 9999 or below 1."""
    if not pa.types.is_date(value.type):
        found: PartitionValue = value.as_py()
        return found
    return date_text(value.value) if value.is_valid else None


def partition_text(value: PartitionValue) -> str | None:
    """A partition's value as a Delta log says it (Delta's protocol, "Partition Value Serialization"), but for empty text, null there."""
    if value is None:
        return None
    return str(value).lower() if isinstance(value, bool) else str(value)


def folder_name(text: str | None) -> str:
    """A directory's name for a partition's value, as Hive's: what is unusual is escaped, and null has a name.

    Which value it is, the log says, but Polars goes by the directory. Of text that is too long for a name it is a digest.
    """
    escaped = NULL_FOLDER if text is None else quote(text, safe="")
    return escaped if len(escaped) <= LONGEST_FOLDER else hashlib.sha256(escaped.encode()).hexdigest()


def statistics(metadata: pq.FileMetaData, schema: pa.Schema) -> dict[str, Any]:
    """Delta's per-file statistics (Delta's protocol, "Per-file Statistics") of a file, from its footer.

    Bounds only where all row groups have them and JSON says them exactly.
    """
    found: dict[str, Any] = {"numRecords": metadata.num_rows, "minValues": {}, "maxValues": {}, "nullCount": {}}
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    for index, field in enumerate(schema):
        if index >= INDEXED_COLUMNS:
            break
        chunks = [group.column(index).statistics for group in groups]
        if any(chunk is None or not chunk.has_null_count for chunk in chunks):
            continue
        found["nullCount"][field.name] = sum(chunk.null_count for chunk in chunks)
        full = [chunk for chunk in chunks if chunk.num_values]
        if not full or any(not chunk.has_min_max for chunk in full):
            continue
        try:
            low = _bound(min(chunk.min for chunk in full), field.type)
            high = _bound(max(chunk.max for chunk in full), field.type)
        except OverflowError:  # a time that Python cannot hold, of a year above 9999 or below 1
            continue
        if low is not None and high is not None:
            found["minValues"][field.name], found["maxValues"][field.name] = low, high
    return found


def _bound(value: Any, kind: pa.DataType) -> Any:
    """As a Delta log has it; None: there is no exact form, or, of floating-point numbers, Parquet's bounds leave NaN out."""
    if pa.types.is_integer(kind):
        return int(value)
    if pa.types.is_decimal(kind):
        return float(value) if kind.precision <= 15 else None
    if pa.types.is_string(kind):
        return value if len(value) <= LONGEST_TEXT else None
    if pa.types.is_date(kind):
        return value.isoformat()
    if pa.types.is_timestamp(kind):
        moment: datetime = value
        if kind.tz is None:
            return moment.replace(tzinfo=None).isoformat(timespec="microseconds")
        aware = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
        return aware.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
    return None
