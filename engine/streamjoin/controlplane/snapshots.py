"""Keeps positions of sources that are too large for every log entry, as objects in the checkpoint's storage.

Always holds: a snapshot that a commit refers to was written before it, and is removed only after a later commit refers to it no more
(``garbage``).
"""

from __future__ import annotations

from streamjoin.state.storage import Storage

FOLDER = "sources"


class StorageSnapshots:
    """See the module."""

    def __init__(self, storage: Storage, *, writes: bool = True) -> None:
        """``writes``: whether positions that name what is put may be committed; else nothing is put."""
        self._storage, self._writes = storage, writes

    def put(self, name: str, data: bytes) -> None:
        if self._writes:
            self._storage.put(snapshot_path(name), data)

    def get(self, name: str) -> bytes:
        return self._storage.get(snapshot_path(name))


def snapshot_path(name: str) -> str:
    return f"{FOLDER}/{name}"
