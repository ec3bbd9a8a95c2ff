"""The sink for a program that runs a join by itself: results as Arrow, left in an Inbox once they are committed.

Results travel in :attr:`Staged.data`, through the commit, which keeps them. So a process that died after a commit, before it had used the
results, finds them again when it goes on. This is meant for as many results as one process has memory for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pyarrow as pa
from pyarrow import ipc

from streamjoin.io.base import Staged
from streamjoin.io.factory import Writing
from streamjoin.job import Inbox


class InboxSink:
    """See the module, and :class:`streamjoin.io.base.Sink`."""

    def __init__(self, inbox: Inbox, schema: pa.Schema) -> None:
        self._inbox, self.schema = inbox, schema

    @property
    def gather_seconds(self) -> float:
        return 0.0

    def writer(self, name: str, stem: str | None = None, *, small_bytes: int = 0) -> InboxWriter:
        return InboxWriter(self.schema, stem if stem is not None else name)

    def gather(self, small: Sequence[Staged], name: str, stem: str) -> list[Staged]:
        return list(small)

    def publish(self, staged: Sequence[Staged], *, again: bool = False) -> None:
        """Leaves them there. What a console was to print, before the join was run from Python, is passed over."""
        self._inbox.parts.extend(each.data for each in staged if each.data and each.final not in self._inbox.last)
        self._inbox.last = frozenset(each.final for each in staged)

    def sweep(self, may_remove: Callable[[str], bool]) -> int:
        return 0


class InboxWriter:
    """Keeps all rows."""

    def __init__(self, schema: pa.Schema, stem: str) -> None:
        self._schema, self._stem = schema, stem
        self._batches: list[pa.RecordBatch] = []

    def write(self, batch: pa.RecordBatch) -> None:
        self._batches.append(batch)

    def close(self) -> list[Staged]:
        rows = sum(batch.num_rows for batch in self._batches)
        if rows == 0:
            return []
        data = pa.BufferOutputStream()
        with ipc.new_stream(data, self._schema) as stream:
            for batch in self._batches:
                stream.write_batch(batch)
        return [Staged("", self._stem, rows, 0, data=data.getvalue().to_pybytes())]

    def abort(self) -> None:
        self._batches = []


def taken(inbox: Inbox, schema: pa.Schema) -> pa.Table:
    """Take everything out of an Inbox."""
    parts, inbox.parts = inbox.parts, []
    batches = [batch for part in parts for batch in ipc.open_stream(part)]
    return pa.Table.from_batches(batches, schema)


def open_sink(inbox: Inbox, writing: Writing) -> InboxSink:
    """See ``io.factory``."""
    return InboxSink(inbox, writing.schema)
