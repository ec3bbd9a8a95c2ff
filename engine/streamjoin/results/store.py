"""The protocol of every store of snapshots that exists beside the sorted files in the checkpoint, from which it is filled. Users read it
with a client of their own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import pyarrow as pa

from streamjoin.results.reader import Snapshot


class StoreError(RuntimeError):
    """A store did not take a snapshot. The text names the store, the cause and the remedy. It is asked again."""


class SnapshotStore(Protocol):
    """One join's snapshots in another system. Used by one thread.

    Always holds: a reader that asks the store which snapshots there are sees a snapshot with all of its rows or not at all, and each of its
    rows once, however often :meth:`publish` was begun, broke off, or was done, by this driver or by others.
    """

    def publish(self, snapshot: Snapshot, rows: Iterator[pa.RecordBatch]) -> None:
        """Have a snapshot stored; it is visible on return, and durable as far as the store is. Raises StoreError.

        ``rows``: all of its, with ``_key``, ``_snapshot`` and ``_row`` and the output's columns; the same at each call.
        """

    def let_go(self, committed_before: float) -> int:
        """Remove the snapshots that were committed before this moment. Returns how many. Raises StoreError."""

    def close(self) -> None:
        """Give connections up. Raises nothing."""
