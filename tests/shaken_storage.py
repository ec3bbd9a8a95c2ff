"""A storage that does worse when it finds a ticket for that, in whichever process: a file in a directory, which serves one operation."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any, TypeVar

from shared_disk import SharedDisk
from streamjoin.state.storage import ObjectStorage, StorageError

Result = TypeVar("Result")


class Shake(StrEnum):
    """What becomes of an operation."""

    BEFORE = "fails"
    AFTER = "fails after it has taken effect"
    SLOW = "is slow"


class ShakenStorage(ObjectStorage):
    """On ``disk``, whose record has what a process flushes from when it unpickled this on."""

    def __init__(self, url: str, tickets: Path, disk: SharedDisk) -> None:
        super().__init__(url)
        self._tickets, self._disk = tickets, disk
        disk.watch()

    def __reduce__(self) -> tuple[Any, ...]:
        return ShakenStorage, (self.url, self._tickets, self._disk)

    def put(self, path: str, data: bytes | memoryview) -> None:
        self._call(path, lambda: super(ShakenStorage, self).put(path, data))

    def create(self, path: str, data: bytes) -> None:
        self._call(path, lambda: super(ShakenStorage, self).create(path, data))

    def get(self, path: str) -> bytes:
        return self._call(path, lambda: super(ShakenStorage, self).get(path))

    def get_ranges(self, path: str, ranges: Sequence[tuple[int, int]]) -> list[memoryview]:
        return self._call(path, lambda: super(ShakenStorage, self).get_ranges(path, ranges))

    def list(self, prefix: str) -> list[str]:
        return self._call(prefix, lambda: super(ShakenStorage, self).list(prefix))

    def delete(self, path: str) -> None:
        self._call(path, lambda: super(ShakenStorage, self).delete(path))

    def _call(self, path: str, operation: Callable[[], Result]) -> Result:
        shake, seconds = self._ticket()
        if shake is Shake.BEFORE:
            raise StorageError(f"{path}: injected failure")
        time.sleep(seconds)  # noqa: TID251 - the fault
        result = operation()
        if shake is Shake.AFTER:
            raise StorageError(f"{path}: injected failure after it had taken effect")
        return result

    def _ticket(self) -> tuple[Shake | None, float]:
        for name in os.listdir(self._tickets):
            ticket = self._tickets / name
            try:
                text = ticket.read_text()
                ticket.unlink()
            except FileNotFoundError:  # another process has it
                continue
            shake, seconds = text.split("\t")
            return Shake(shake), float(seconds)
        return None, 0.0


def give_tickets(tickets: Path, name: str, count: int, shake: Shake, seconds: float = 0.0) -> None:
    """Shake the next ``count`` operations."""
    for number in range(count):
        written = tickets.parent / f"{name}-{number}"
        written.write_text(f"{shake}\t{seconds}")
        written.replace(tickets / written.name)  # whole at once
