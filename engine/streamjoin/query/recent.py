"""A storage that remembers the sorted files and the parts of results that were read last, as most queries are about the newest ones.

Always holds: only what never changes is remembered, at most so many bytes of it; what there is is asked of the storage each time, so that
nothing comes back that was let go.
"""

from __future__ import annotations

import threading
from collections import OrderedDict

from streamjoin.results import parts, reader
from streamjoin.state.storage import ObjectStorage

MOST_BYTES = 32 << 20
"""Of files as they are stored, some four times as much in rows."""


class RecentStorage(ObjectStorage):
    """See the module. What lies on this machine is mapped or in the page cache, and is not remembered again."""

    def __init__(self, url: str, most_bytes: int = MOST_BYTES) -> None:
        """Raises ValueError for a URL that means no place."""
        super().__init__(url)
        self._most_bytes, self._bytes = most_bytes, 0
        self._lock = threading.Lock()
        self._read: OrderedDict[str, bytes] = OrderedDict()
        """By path, what was read last at the end."""

    def get(self, path: str) -> bytes:
        if not path.startswith((f"{reader.FOLDER}/", f"{parts.FOLDER}/")) or f"/{reader.INDEX}/" in path:
            return super().get(path)
        with self._lock:
            data = self._read.get(path)
            if data is not None:
                self._read.move_to_end(path)
                return data
        data = super().get(path)
        with self._lock:
            if path not in self._read and len(data) <= self._most_bytes // 2:
                self._read[path] = data
                self._bytes += len(data)
            while self._bytes > self._most_bytes:
                _, gone = self._read.popitem(last=False)
                self._bytes -= len(gone)
        return data
