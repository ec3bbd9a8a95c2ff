"""Stages results in the checkpoint's ``outbox``, as Arrow objects of bounded size, for a driver that brings them elsewhere.

Always holds: an object is written once, under a name that says whose attempt it is; the first may be left to the commit where it is small;
what a writer that was aborted has put is removed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

import pyarrow as pa

from streamjoin.io.base import SinkError, Staged
from streamjoin.state import checks
from streamjoin.state.storage import Storage

OUTBOX = "outbox"
OBJECT_BYTES = 32 * 1024 * 1024


def sweep(storage: Storage, folder: str, may_remove: Callable[[str], bool]) -> int:
    """Removes staged objects of a folder whose name may be removed. O(staged objects)."""
    stray = [path for path in storage.list(folder) if may_remove(path.rsplit("/", 1)[1])]
    storage.delete_many(stray)
    return len(stray)


def data_of(storage: Storage, staged: Staged) -> bytes:
    """What is staged. Raises Missing; SinkError where it is not what was written; StorageError. O(bytes)."""
    try:
        return staged.data or checks.read(storage, staged.path, f"{staged.rows} committed results")
    except checks.ChangedError as error:
        raise SinkError(str(error)) from error


class OutboxWriter(ABC):
    """Stages one task's results. What of them, and in which format, is the sink's."""

    def __init__(self, storage: Storage, schema: pa.Schema, path: str, small_bytes: int) -> None:
        """``path``: how the objects' names begin. One of at most ``small_bytes`` is left to the commit, where it is the only one so far."""
        self._storage, self._schema, self._path, self._small_bytes = storage, schema, path, small_bytes
        self._pending: list[pa.RecordBatch] = []
        self._pending_rows = self._pending_bytes = 0
        self._done: list[Staged] = []
        self._finished = False

    def write(self, batch: pa.RecordBatch) -> None:
        """Takes a batch; amortised O(bytes)."""
        if self._finished:
            raise SinkError(f"writer {self._path}: closed already; ask the sink for another")
        if not batch.schema.equals(self._schema):
            raise SinkError(f"writer {self._path}: a batch's columns {batch.schema.names} are not the sink's {self._schema.names}")
        self._take(batch)

    def close(self) -> list[Staged]:
        """Finishes; what was staged, in order."""
        if not self._finished:
            self._put()
            self._finished = True
        return list(self._done)

    def abort(self) -> None:
        """Removes every object of this writer."""
        self._finished = True
        self._pending = []
        self._storage.delete_many([staged.path for staged in self._done if staged.path])
        self._done = []

    @abstractmethod
    def _take(self, batch: pa.RecordBatch) -> None:
        """Keep a batch of results, as :meth:`_keep` does what is to be staged of it."""

    @abstractmethod
    def _encoded(self, batches: list[pa.RecordBatch]) -> pa.Buffer:
        """An object's content."""

    @abstractmethod
    def _final(self) -> str:
        """The name under which the next object's results become visible."""

    def _keep(self, batch: pa.RecordBatch, most_rows: int | None = None) -> None:
        self._pending.append(batch)
        self._pending_rows += batch.num_rows
        self._pending_bytes += batch.nbytes
        if self._pending_bytes >= OBJECT_BYTES or (most_rows is not None and self._pending_rows >= most_rows):
            self._put()

    def _put(self) -> None:
        if not self._pending:
            return
        data, final, rows = self._encoded(self._pending), self._final(), self._pending_rows
        if not self._done and data.size <= self._small_bytes:
            self._done.append(Staged("", final, rows, data.size, data=data.to_pybytes()))
        else:
            path = checks.named(f"{self._path}-{len(self._done):03d}", "arrow", memoryview(data))
            self._storage.put(path, memoryview(data))
            self._done.append(Staged(path, final, rows, data.size))
        self._pending, self._pending_rows, self._pending_bytes = [], 0, 0
