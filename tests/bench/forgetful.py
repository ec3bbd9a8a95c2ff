"""Two storages: one that keeps nothing, and what it is compared with. What durable state costs is the difference.

Always holds, with :class:`Forgetful`: the log is in the driver's memory; blocks and snapshots go nowhere; runs stay in their processes' own
memory, where the engine would map the file that it has written anyway. That is a setting of the process, so a worker that has served one
of the two is set right when it unpickles the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from streamjoin.state import store
from streamjoin.state.storage import AlreadyExists, Missing, ObjectStorage

MAPPED_BYTES = store.SCRATCH_BYTES
NEVER = 1 << 62


class Durable(ObjectStorage):
    """The engine's own storage."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        store.SCRATCH_BYTES = MAPPED_BYTES

    def __reduce__(self) -> tuple[Any, ...]:
        return Durable, (self.url,)


class Forgetful:
    """A :class:`streamjoin.state.storage.Storage`. What is unpickled has an empty log."""

    url = "nowhere"

    def __init__(self) -> None:
        self._log: dict[str, bytes] = {}
        store.SCRATCH_BYTES = NEVER

    def __reduce__(self) -> tuple[Any, ...]:
        return Forgetful, ()

    def put(self, path: str, data: bytes | memoryview) -> None:
        pass

    def create(self, path: str, data: bytes) -> None:
        if path in self._log:
            raise AlreadyExists(f"{path}: exists")
        self._log[path] = data

    def get(self, path: str) -> bytes:
        if path not in self._log:
            raise Missing(f"{path}: nothing is kept, so that nothing can be read back")
        return self._log[path]

    def get_ranges(self, path: str, ranges: Sequence[tuple[int, int]]) -> list[memoryview]:
        raise Missing(f"{path}: nothing is kept, so that nothing can be read back")

    def list(self, prefix: str) -> list[str]:
        return sorted(path for path in self._log if path.startswith(f"{prefix}/"))

    def delete(self, path: str) -> None:
        self._log.pop(path, None)

    def delete_many(self, paths: Sequence[str]) -> None:
        for path in paths:
            self.delete(path)

    def local_path(self, path: str) -> Path | None:
        return None
