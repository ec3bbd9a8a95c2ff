"""Streams of which some records end, hang, fill or fail whoever reads them: in memory, and of any other source."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from streamjoin.io.base import Divisible, Position, Reader, Records, SourcePlan, Split

BLOCK_ROWS = 7
KILLS, SPINS, FILLS, RAISES, WAITS, FAULTS = -1, -2, -3, -4, -5, -6
"""Values of the column ``v`` of records that are not to be read."""


@dataclass(frozen=True, kw_only=True)
class PoisonSplit(Split):
    start: int
    end: int


class PoisonReader:
    """Reads blocks of BLOCK_ROWS records. ``spares``: a process that is not harmed."""

    def __init__(self, batch: pa.RecordBatch, spares: int = 0) -> None:
        self._batch, self._spares = batch, spares

    def read(self, split: PoisonSplit) -> Iterator[Records]:
        for start in range(split.start, split.end, BLOCK_ROWS):
            block = self._batch[start : min(start + BLOCK_ROWS, split.end)]
            harm_by(block, self._spares)
            yield Records(block, first=start - split.start)

    def halves(self, split: PoisonSplit) -> tuple[PoisonSplit, ...]:
        middle = (split.start + split.end) // 2
        if middle == split.start:
            return ()
        first, second = middle - split.start, split.end - middle
        rest = replace(split, start=middle, first_record=split.first_record + first, records=second)
        return replace(split, end=middle, records=first), rest

    def raw(self, split: PoisonSplit) -> str:
        return str(self._batch.column("rid")[split.start].as_py())


def harm_by(batch: pa.RecordBatch, spares: int) -> None:
    """Does what the batch's column ``v`` says, but in a process that is spared."""
    for value in batch.column("v").to_pylist():
        if value < 0 and os.getpid() != spares:
            harm(value)


def harm(value: int) -> None:
    if value == RAISES:
        raise UnicodeEncodeError("utf-8", "\ud800", 0, 1, "surrogates not allowed")
    if value == WAITS:
        threading.Event().wait()
    if value == KILLS:
        os.kill(os.getpid(), signal.SIGKILL)
    if value == FAULTS:
        os.kill(os.getpid(), signal.SIGSEGV)
    held = []
    while value in (SPINS, FILLS):
        if value == FILLS:
            held.append(bytearray(64 << 20))


class PoisonSource:
    """A stream of one batch, in splits of ``split_rows`` records."""

    def __init__(self, batch: pa.RecordBatch, split_rows: int, spares: int = 0) -> None:
        self.reader = PoisonReader(batch, spares)
        self._rows, self._split_rows = batch.num_rows, split_rows

    def plan(
        self, position: Position | None, limit_records: int, now: float, final: bool = False, *, split_records: int | None = None
    ) -> SourcePlan:
        first = position["at"] if position else 0
        end = min(self._rows, first + max(1, limit_records))
        splits = []
        for at in range(first, end, self._split_rows):
            to = min(at + self._split_rows, end)
            splits.append(PoisonSplit(first_record=at, records=to - at, start=at, end=to))
        return SourcePlan(tuple(splits), {"at": end}, end - first, self._rows - end, end == self._rows, end)

    def referenced(self, position: Position | None) -> frozenset[str]:
        return frozenset()


class PoisonedReader:
    """The reader of another source, some of whose records are not to be read, by their column ``v``."""

    def __init__(self, reader: Reader, spares: int) -> None:
        assert isinstance(reader, Divisible)
        self._reader, self._spares = reader, spares
        self.halves, self.raw = reader.halves, reader.raw

    def read(self, split: Any) -> Iterator[Records]:
        for records in self._reader.read(split):
            harm_by(records.batch, self._spares)
            yield records


class PoisonedSource:
    """Another source, read by a :class:`PoisonedReader`."""

    def __init__(self, source: Any, spares: int = 0) -> None:
        self.reader = PoisonedReader(source.reader, spares)
        self.plan, self.referenced, self.committed = source.plan, source.referenced, source.committed
