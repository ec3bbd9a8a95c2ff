"""When the small files of a table become few large ones: beside the join, in a thread, by a rewriting that the table's module has."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from streamjoin.manifest.tables import Compact


@dataclass(frozen=True)
class Compaction:
    """When small files of a table become few large ones."""

    files: int
    """Once there are so many that could be fewer."""
    every_seconds: float | None = None
    """Or so long after the last time, if there are two such files or more."""
    target_bytes: int = 128 * 1024 * 1024
    """Files of this size or more stay as they are."""


class Compactor:
    """Counts the files of a table, and has them rewritten when it is time. One rewriting at a time."""

    def __init__(self, compaction: Compaction | None, rewrite: Callable[[int], None]) -> None:
        """``rewrite`` gets the target's bytes, in a thread of its own, and raises nothing."""
        self._compaction, self._rewrite = compaction, rewrite
        self._small_files = 0
        self._begun_at = time.monotonic()
        self._thread: threading.Thread | None = None

    def found(self, files: Callable[[], Iterable[tuple[Hashable, int]]]) -> None:
        """There are these files, each of a partition and a size in bytes; asked for only where it matters. O(files)."""
        if self._compaction is not None:
            target = self._compaction.target_bytes
            small = Counter(partition for partition, size in files() if size < target)
            self._small_files = sum(count - 1 for count in small.values())

    def added(self, count: int) -> None:
        """There are so many more files, all of them small; begins to rewrite where it is time."""
        self._small_files += count
        compaction = self._compaction
        if compaction is None or (self._thread is not None and self._thread.is_alive()):
            return
        waited = time.monotonic() - self._begun_at
        is_time = compaction.every_seconds is not None and waited >= compaction.every_seconds and self._small_files >= 2
        if self._small_files < compaction.files and not is_time:
            return
        self._thread = threading.Thread(target=self._rewrite, args=(compaction.target_bytes,), name="streamjoin-compact")
        self._small_files, self._begun_at = 0, time.monotonic()
        self._thread.start()

    def wait(self) -> None:
        """Until no rewriting is under way."""
        if self._thread is not None:
            self._thread.join()


def compaction_of(compact: Compact | None) -> Compaction | None:
    """The rewriting that a manifest describes."""
    if compact is None:
        return None
    return Compaction(compact.files, None if compact.every is None else compact.every.micros / 1e6, compact.target_size.bytes)
