"""What workers read streams in memory with. They load this for each test's join, so that it imports nothing that they have not loaded."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from streamjoin.io.base import Records, Split


@dataclass(frozen=True, kw_only=True)
class MemorySplit(Split):
    index: int


class MemoryReader:
    def __init__(self, batches: Sequence[pa.RecordBatch]) -> None:
        self._batches = batches

    def read(self, split: MemorySplit) -> Iterator[Records]:
        if split.index >= 0:
            yield Records(self._batches[split.index])
