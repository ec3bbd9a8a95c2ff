"""The sink for a program that runs a join by itself: results as Arrow, left in an Inbox once they are committed.

Results travel in :attr:`Staged.data`, through the commit, which keeps them. So a process that died after a commit, before it had used the
results, finds them again when it goes on. This is meant for as many results as one process has memory for.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
from pyarrow import ipc

from streamjoin.io.base import Sink, Staged, arrow_bytes
from streamjoin.io.factory import Writing
from streamjoin.job import Inbox


class InboxSink(Sink):
    """See the module, and :class:`streamjoin.io.base.Sink`."""

    def __init__(self, inbox: Inbox) -> None:
        self._inbox = inbox

    def writer(self, name: str, stem: str, *, small_bytes: int = 0) -> InboxWriter:
        return InboxWriter(stem)

    def publish(self, staged: Sequence[Staged], *, again: bool = False) -> None:
        """Leaves them there. What a console was to print, before the join was run from Python, is passed over."""
        self._inbox.parts.extend(each.data for each in staged if each.data and each.final not in self._inbox.last)
        self._inbox.last = frozenset(each.final for each in staged)


class InboxWriter:
    """Keeps all rows."""

    def __init__(self, stem: str) -> None:
        self._stem = stem
        self._batches: list[pa.RecordBatch] = []

    def write(self, batch: pa.RecordBatch) -> None:
        self._batches.append(batch)

    def close(self) -> list[Staged]:
        rows = sum(batch.num_rows for batch in self._batches)
        if rows == 0:
            return []
        return [Staged("", self._stem, rows, 0, data=arrow_bytes(self._batches).to_pybytes())]

    def abort(self) -> None:
        self._batches = []


def taken(inbox: Inbox, schema: pa.Schema) -> pa.Table:
    """Take everything out of an Inbox."""
    parts, inbox.parts = inbox.parts, []
    batches = [batch for part in parts for batch in ipc.open_stream(part)]
    return pa.Table.from_batches(batches, schema)


def open_sink(inbox: Inbox, writing: Writing) -> InboxSink:
    """See ``io.factory``."""
    return InboxSink(inbox)
