"""Extents: small pieces of data inside larger objects. Many pieces that would each be an object of their own become one object, written
once.

Always holds: an extent's bytes never change, and are there as long as the object is.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from streamjoin.state import checks
from streamjoin.state.storage import Missing, Storage

ALIGNED = 64
"""Each begins at a multiple of so many bytes: what Arrow wants of the buffers that it maps."""

AHEAD_BYTES = 128 << 10
"""The kernel reads no more ahead at once, on some machines, whatever it is asked for."""


@dataclass(frozen=True, slots=True)
class Extent:
    """Bytes of an object."""

    path: str
    start: int
    nbytes: int

    def to_json(self) -> list[str | int]:
        return [self.path, self.start, self.nbytes]


class Segment:
    """The bytes that are to become the beginning of one object."""

    def __init__(self, path: str) -> None:
        """``path``: the object's."""
        self.path = path
        self._data = bytearray()

    def add(self, data: bytes | memoryview) -> Extent:
        """Put these bytes into it. O(bytes)."""
        self._data.extend(bytes(-len(self._data) % ALIGNED))
        extent = Extent(self.path, len(self._data), len(data))
        self._data.extend(data)
        return extent

    @property
    def data(self) -> bytes:
        return bytes(self._data)


def read_extents(storage: Storage, extents: Sequence[Extent]) -> list[memoryview]:
    """The bytes of these extents of entries of the log, in this order; one request for each entry. Raises StorageError, also where an entry
    is not as it was written."""
    by_path: dict[str, list[Extent]] = {}
    for extent in sorted(set(extents), key=lambda extent: (extent.path, extent.start)):
        by_path.setdefault(extent.path, []).append(extent)
    found: dict[Extent, memoryview] = {}
    for path, of_path in by_path.items():
        entry = storage.get(path)
        if not checks.is_whole(entry):
            raise checks.changed(storage, path, f"{len(of_path)} pieces of small results")
        found |= {extent: memoryview(entry)[extent.start : extent.start + extent.nbytes] for extent in of_path}
    return [found[extent] for extent in extents]


class Sparse:
    """An extent on mapped pages, for a reader who needs parts of it: a page is read when it is looked at, alone, but for what :meth:`soon`
    was told. Arrow's own mapping has all of it read ahead, and the kernel's may read megabytes around a page."""

    def __init__(self, path: Path, extent: Extent) -> None:
        """Raises FileNotFoundError."""
        with path.open("rb") as file:
            self._mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self._advises = hasattr(mmap, "MADV_RANDOM") and hasattr(mmap, "MADV_WILLNEED")
        if self._advises:
            self._mapped.madvise(mmap.MADV_RANDOM)
        whole = pa.py_buffer(self._mapped)
        self._address = whole.address
        self.buffer: pa.Buffer = whole.slice(extent.start, extent.nbytes)

    def soon(self, arrays: Iterable[pa.Array]) -> None:
        """Begin to read what these arrays of it lie in."""
        for buffer in (buffer for array in arrays for buffer in array.buffers() if self._advises and buffer is not None and buffer.size):
            start = (buffer.address - self._address) // mmap.PAGESIZE * mmap.PAGESIZE
            end = min(buffer.address - self._address + buffer.size, len(self._mapped))
            if start >= 0:
                for at in range(start, end, AHEAD_BYTES):
                    self._mapped.madvise(mmap.MADV_WILLNEED, at, min(AHEAD_BYTES, end - at))


def map_sparsely(storage: Storage, extent: Extent) -> Sparse | None:
    """The extent for a reader of parts, where the object is on this machine; else None. Raises Missing."""
    path = storage.local_path(extent.path)
    if path is None:
        return None
    try:
        return Sparse(path, extent)
    except FileNotFoundError as error:
        raise Missing(f"{storage.url}/{extent.path}: not there") from error


def map_extent(storage: Storage, extent: Extent) -> pa.Buffer | None:
    """The extent's bytes on mapped pages, if the object is on this machine; else None. Raises Missing."""
    path = storage.local_path(extent.path)
    if path is None:
        return None
    try:
        with pa.memory_map(os.fspath(path)) as file:
            file.seek(extent.start)
            return file.read_buffer(extent.nbytes)
    except FileNotFoundError as error:
        raise Missing(f"{storage.url}/{extent.path}: not there") from error
