"""Results of a join that streams of the same resource read. Between the epoch that finds them and the epoch that reads them, commits name
them, as they name blocks: in files or, if they are few, in entries of the log.

Always holds: results that a commit names here were found by its epoch or an earlier one, and some stream has yet to read them. So each
stream reads each result once, whatever dies: its position says how far it has read, and is committed with the epoch that read.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyarrow import ipc

from streamjoin.state import checks
from streamjoin.state.blocks import is_file
from streamjoin.state.extent import Extent, map_extent, read_extents
from streamjoin.state.storage import Storage


@dataclass(frozen=True, slots=True)
class IntermediateResult:
    """Some results of one epoch, as Arrow."""

    join: str
    epoch: int
    """Which found them."""
    number: int
    """Among those of the epoch."""
    rows: int
    extent: Extent
    since: int | None
    """No event time that results of this epoch or a later one are made from is before this; None: it is not known."""

    def to_json(self) -> list[Any]:
        return [self.join, self.epoch, self.number, self.rows, self.extent.to_json(), self.since]

    @classmethod
    def from_json(cls, values: list[Any]) -> IntermediateResult:
        join, epoch, number, rows, extent, since = values
        return cls(join, epoch, number, rows, Extent(*extent), since)

    def is_after(self, epoch: int, number: int) -> bool:
        return (self.epoch, self.number) > (epoch, number)


def read_intermediate(storage: Storage, extent: Extent) -> Iterator[pa.RecordBatch]:
    """The results, in the order in which they were written. Raises StorageError."""
    lost = "results that a stream is yet to read"
    if not is_file(extent.path):
        data = pa.py_buffer(read_extents(storage, [extent])[0])
    elif (mapped := map_extent(storage, extent)) is not None:
        data = mapped
        checks.require_unchanged(storage, extent.path, memoryview(data), lost)
    else:
        data = pa.py_buffer(checks.read(storage, extent.path, lost))
    with ipc.open_file(data) as reader:
        for number in range(reader.num_record_batches):
            yield reader.get_batch(number)
