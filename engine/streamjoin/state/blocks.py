"""Tuple blocks: Arrow IPC files of held tuples, sorted by key, and what the commit log records of each.

Always holds: a block is written once under a fresh name and never changed; nobody reads it before a commit names it. However many areas
replicate a tuple, one block holds it (A-DSP, Alg. 5: the first row and the first column write).

Files are uncompressed so that a mapped file is the run: columns are views of the page cache, which the kernel of the operating system
shares among processes and takes back under pressure. That is how state larger than memory works.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import ipc

from streamjoin.scheme.region import Region
from streamjoin.state.storage import Missing, Storage, StorageError

DOWNLOADS = 8
"""So many blocks are fetched at once from an object store, where one connection gives a fraction of the bandwidth."""


@dataclass(frozen=True, slots=True)
class Block:
    """One durable block, as the commit log names it. Ranges are closed and tight; ``time_*`` are None where tuples carry no time."""

    name: str
    side: int
    generation: int
    """Of the plan whose area ``area`` wrote it: that area's own tuples, and all of them, of some epochs."""
    area: int
    rows: int
    nbytes: int
    key_min: int | float
    key_max: int | float
    unit_min: int
    unit_max: int
    time_min: int | None
    time_max: int | None

    def to_json(self) -> list[Any]:
        return [getattr(self, name) for name in Block.__slots__]

    @classmethod
    def from_json(cls, values: list[Any]) -> Block:
        return cls(*values)

    def is_expired(self, expired_before: tuple[int | None, int | None]) -> bool:
        """Whether all of its tuples are older than the bound of its side (None: nothing expires)."""
        bound = expired_before[self.side]
        return bound is not None and self.time_max is not None and self.time_max < bound

    def meets(self, region: Region) -> bool:
        """Whether some of the block's tuples may lie in the region. O(1)."""
        keys, units = region.keys, region.units
        return (
            self.side == region.side
            and (keys.low is None or self.key_max >= keys.low)
            and (keys.high is None or self.key_min < keys.high)
            and self.unit_max >= units.low
            and self.unit_min < units.high
        )


def encode(batch: pa.RecordBatch) -> pa.Buffer:
    """The bytes of a block file. Memory: one copy of the batch."""
    sink = pa.BufferOutputStream()
    with ipc.new_file(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return sink.getvalue()


def describe(batch: pa.RecordBatch, *, name: str, side: int, generation: int, area: int, nbytes: int) -> Block:
    """The log's record of a non-empty block. O(rows)."""
    unit = pc.min_max(batch.column("_unit")).as_py()
    time = pc.min_max(batch.column("_time")).as_py() if "_time" in batch.schema.names else {"min": None, "max": None}
    key = batch.column("_key")
    return Block(
        name=name, side=side, generation=generation, area=area, rows=batch.num_rows, nbytes=nbytes,
        key_min=key[0].as_py(), key_max=key[-1].as_py(), unit_min=unit["min"], unit_max=unit["max"],
        time_min=time["min"], time_max=time["max"],
    )  # fmt: skip


def load(storage: Storage, name: str) -> pa.RecordBatch:
    """Read a block back, mapped where it is on this machine, else through a scratch file. Raises StorageError naming the block."""
    path = storage.local_path(name)
    try:
        if path is None:
            return map_scratch(pa.py_buffer(storage.get(name)))
        if not path.exists():
            raise Missing(f"{storage.url}/{name}: not there")
        return _read_mapped(os.fspath(path))
    except (pa.ArrowException, Missing) as error:
        raise StorageError(
            f"{storage.url}/{name}: the block that the last commit names cannot be read ({str(error)[:200]}); "
            "restore it, or start from an empty checkpoint"
        ) from error


def load_all(storage: Storage, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Read blocks back, in this order, as :func:`load` does. Memory: ``DOWNLOADS`` blocks that are not in their scratch files yet."""
    if len(names) < 2 or storage.local_path(names[0]) is not None:
        yield from (load(storage, name) for name in names)
        return
    with ThreadPoolExecutor(min(DOWNLOADS, len(names))) as pool:
        yield from pool.map(lambda name: load(storage, name), names)


def map_scratch(data: pa.Buffer) -> pa.RecordBatch:
    """Put a block file's bytes into a scratch file that is mapped and already unlinked, so that nothing is left behind by a crash."""
    descriptor, path = tempfile.mkstemp(prefix="streamjoin-", suffix=".arrow")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(memoryview(data))
        return _read_mapped(path)
    finally:
        os.unlink(path)


def _read_mapped(path: str) -> pa.RecordBatch:
    with ipc.open_file(pa.memory_map(path)) as reader:
        return reader.get_batch(0)
