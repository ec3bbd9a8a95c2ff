"""Stages results in the checkpoint's ``outbox``, as Arrow objects of bounded size, for a driver that brings them elsewhere.

Always holds: an object is written once, under a name that says whose attempt it is; the first may be left to the commit where it is small;
what a writer that was aborted has put is removed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import pyarrow as pa

from streamjoin.io.base import SinkError, Staged, arrow_bytes
from streamjoin.state import checks
from streamjoin.state.storage import Missing, Storage, StorageError

OUTBOX = "outbox"
OBJECT_BYTES = 32 * 1024 * 1024


def sweep(storage: Storage, folder: str, may_remove: Callable[[str], bool]) -> int:
    """Removes staged objects of a folder whose name may be removed. O(staged objects)."""
    stray = [path for path in storage.list(folder) if may_remove(path.rsplit("/", 1)[1])]
    storage.delete_many(stray)
    return len(stray)


def data_of(storage: Storage, staged: Staged, lacks: str) -> bytes:
    """What is staged. Raises SinkError where it is gone, though ``lacks`` says that it was not published, or not what was written;
    StorageError. O(bytes)."""
    results = f"{staged.rows} committed results"
    try:
        return staged.data or checks.read(storage, staged.path, results)
    except checks.ChangedError as error:
        raise SinkError(str(error)) from error
    except Missing:
        raise SinkError(
            f"{storage.url}/{staged.path}: these {results} are gone, and {lacks}. If another driver has taken over this checkpoint, it has"
            " published them; else they are lost. Keep other programs from deleting files in the checkpoint"
        ) from None


@dataclass(eq=False)
class OutboxWriter:
    """Stages one task's results, in Arrow's format."""

    _storage: Storage
    _schema: pa.Schema
    _path: str
    """How the objects' names begin."""
    _small_bytes: int
    """One of at most so many is left to the commit, where it is the only one so far."""
    _blank: Callable[[list[Staged]], Staged]
    """What the next one is staged as, after these, but for its place and size."""
    compression: str | None = "lz4"
    is_file: bool = False
    """As for ``arrow_bytes``."""
    _pending: list[pa.RecordBatch] = field(default_factory=list, init=False)
    _pending_rows: int = field(default=0, init=False)
    _pending_bytes: int = field(default=0, init=False)
    _done: list[Staged] = field(default_factory=list, init=False)
    _finished: bool = field(default=False, init=False)

    def write(self, batch: pa.RecordBatch) -> None:
        """Takes a batch; amortised O(bytes)."""
        if self._finished:
            raise SinkError(f"writer {self._path}: closed already; ask the sink for another")
        if not batch.schema.equals(self._schema):
            raise SinkError(f"writer {self._path}: a batch's columns {batch.schema.names} are not the sink's {self._schema.names}")
        if batch.num_rows:
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
        with contextlib.suppress(StorageError):  # what made the writer give up matters more; the sweep finds these objects
            self._storage.delete_many([staged.path for staged in self._done if staged.path])
        self._done = []

    def _take(self, batch: pa.RecordBatch, most_rows: int | None = None) -> None:
        """Keep a batch of what is to be staged."""
        self._pending.append(batch)
        self._pending_rows += batch.num_rows
        self._pending_bytes += batch.nbytes
        if self._pending_bytes >= OBJECT_BYTES or (most_rows is not None and self._pending_rows >= most_rows):
            self._put()

    def _put(self) -> None:
        if not self._pending:
            return
        data = arrow_bytes(self._pending, self.compression, is_file=self.is_file)
        staged = replace(self._blank(self._done), rows=self._pending_rows, nbytes=data.size)
        if not self._done and data.size <= self._small_bytes:
            self._done.append(replace(staged, data=data.to_pybytes()))
        else:
            path = checks.named(f"{self._path}-{len(self._done):03d}", "arrow", memoryview(data))
            self._storage.put(path, memoryview(data))
            self._done.append(replace(staged, path=path))
        self._pending, self._pending_rows, self._pending_bytes = [], 0, 0
