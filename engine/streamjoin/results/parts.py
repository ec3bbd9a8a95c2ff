"""Results on their way into a snapshot: what tasks stage beside the sink's files, in Arrow's format, each row with its key.

Always holds: a part has the rows of one task of one epoch, or of several parts that became one; it is no part of anything before a commit
names it, and does not change afterwards. Rows have a column ``_key`` and those of the output, which :attr:`Form.text` says as one text.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import ipc

from streamjoin.io.base import arrow_bytes
from streamjoin.kernel.expression import Evaluator
from streamjoin.language.sql import Expression
from streamjoin.results.reader import KEY, ROW, SNAPSHOT
from streamjoin.snapshots.timeline import Closed, Part
from streamjoin.state import checks
from streamjoin.state.extent import Extent, Segment, read_extents
from streamjoin.state.storage import Storage, StorageError

FOLDER = "snapshot-parts"
"""Of the checkpoint; for parts that are objects of their own."""
OUTPUT = "result"
"""By which name a key's expression may refer to the output's columns."""
OBJECT_BYTES = 32 << 20
SORTED_BYTES = 128 << 20
"""The bytes, in memory, that are sorted at a time."""
READS = 8


@dataclass(frozen=True)
class Form:
    """The form of the rows of a join's snapshots. Picklable."""

    schema: pa.Schema
    """Of results."""
    key: Expression
    """Over columns of ``OUTPUT``."""

    @property
    def text(self) -> str:
        """Equal for equal forms."""
        columns = ", ".join(f"{column.name} {column.type}" for column in self.schema)
        return f"{self.key.type} {self.key.sql}: {columns}"

    def rows(self, results: pa.RecordBatch) -> pa.RecordBatch:
        """The rows of these results: their keys, then their columns. O(rows)."""
        columns = {(OUTPUT, name): results.column(name) for _, name in self.key.columns}
        keys = Evaluator(self.key).evaluate(columns, results.num_rows)
        return pa.record_batch([keys, *results.columns], names=[KEY, *results.schema.names])


@dataclass(frozen=True)
class StagedPart:
    """A part as a task reports it."""

    path: str
    """Empty: it is in no object, and the commit is to keep ``data``."""
    rows: int
    nbytes: int
    data: bytes = field(default=b"", repr=False)

    def kept_in(self, segment: Segment) -> Part:
        """The part as a commit names it; few rows go into ``segment``."""
        if self.path:
            return Part(self.path, self.rows, self.nbytes)
        extent = segment.add(self.data)
        return Part(extent.path, self.rows, self.nbytes, (extent.start, extent.nbytes))


class PartWriter:
    """Takes one task's results of one epoch and join. Memory: ``OBJECT_BYTES`` of them."""

    def __init__(self, form: Form, storage: Storage, name: str, small_bytes: int) -> None:
        """``name``: unique to the attempt at the task. ``small_bytes``: no more than this is left to the commit."""
        self._form, self._storage, self._name, self._small_bytes = form, storage, name, small_bytes
        self._pending: list[pa.RecordBatch] = []
        self._pending_bytes = 0
        self._done: list[StagedPart] = []

    def write(self, results: pa.RecordBatch) -> None:
        """Raises StorageError. Amortised O(bytes)."""
        if not results.num_rows:
            return
        rows = self._form.rows(results)
        self._pending.append(rows)
        self._pending_bytes += rows.nbytes
        if self._pending_bytes >= OBJECT_BYTES:
            self._put()

    def close(self) -> list[StagedPart]:
        """End writing, and return what was staged: nothing if nothing was written. Raises StorageError."""
        self._put()
        return list(self._done)

    def abort(self) -> None:
        """Remove what was staged. A failure leaves it to the sweep."""
        self._pending = []
        with contextlib.suppress(StorageError):
            self._storage.delete_many([part.path for part in self._done if part.path])

    def _put(self) -> None:
        if not self._pending:
            return
        data, rows, nbytes = encoded(self._pending), sum(batch.num_rows for batch in self._pending), self._pending_bytes
        self._pending, self._pending_bytes = [], 0
        if not self._done and data.size <= self._small_bytes:
            self._done.append(StagedPart("", rows, nbytes, data.to_pybytes()))
            return
        path = checks.named(f"{FOLDER}/{self._name}-{len(self._done):03d}", "arrow", memoryview(data))
        self._storage.put(path, memoryview(data))
        self._done.append(StagedPart(path, rows, nbytes))


def encoded(batches: Sequence[pa.RecordBatch]) -> pa.Buffer:
    """One or more batches of one schema as a part's bytes. O(bytes)."""
    return arrow_bytes(batches, "lz4")


def read_parts(storage: Storage, parts: Sequence[Part]) -> pa.Table:
    """The rows of one or more parts, in this order. Raises StorageError. O(bytes)."""
    extents = [Extent(part.path, *part.extent) for part in parts if part.extent is not None]
    kept = iter(read_extents(storage, extents))
    with ThreadPoolExecutor(READS) as pool:
        whole = [part for part in parts if part.extent is None]
        objects = iter(list(pool.map(lambda part: checks.read(storage, part.path, f"{part.rows} results of a snapshot"), whole)))
    tables = []
    for part in parts:
        with ipc.open_stream(pa.py_buffer(next(objects if part.extent is None else kept))) as reader:
            tables.append(reader.read_all())
    return pa.concat_tables(tables)


def gather(storage: Storage, parts: Sequence[Part], name: str) -> Part:
    """One part of several, as an object of its own, durable on return. ``name``: unique to it. Raises StorageError. O(bytes)."""
    rows = read_parts(storage, parts)
    data = encoded(rows.to_batches())
    path = checks.named(f"{FOLDER}/{name}", "arrow", memoryview(data))
    storage.put(path, memoryview(data))
    return Part(path, rows.num_rows, sum(part.nbytes for part in parts))


def sorted_rows(storage: Storage, closed: Closed) -> Iterator[pa.Table]:
    """The rows of a snapshot that is closed, with ``_snapshot`` and ``_row``, which follow from its parts alone.

    They are sorted by key in portions of some ``SORTED_BYTES``. Raises StorageError. O(rows log rows). Memory: three times a portion.
    """
    first_row = 0
    for parts in _portions(closed.parts):
        rows = read_parts(storage, parts)
        rows = rows.take(pc.sort_indices(rows, sort_keys=[(KEY, "ascending")]))
        rows = rows.append_column(SNAPSHOT, pa.repeat(pa.scalar(closed.id, pa.int64()), rows.num_rows))
        yield rows.append_column(ROW, pa.array(np.arange(first_row, first_row + rows.num_rows)))
        first_row += rows.num_rows


def _portions(parts: Sequence[Part]) -> Iterator[list[Part]]:
    """Neighbours that come to about ``SORTED_BYTES``."""
    portion: list[Part] = []
    for part in parts:
        if portion and sum(other.nbytes for other in portion) + part.nbytes > SORTED_BYTES:
            yield portion
            portion = []
        portion.append(part)
    yield portion
