"""A disk that forgets what was not flushed: at a power loss, real files become what the disk had been told to keep.

``os.fsync`` is watched, and nothing else has to be known of who writes what: of a file that was flushed the disk has the bytes of then, of
a directory the names of then. At the chosen call of those that change names or flush, before it takes effect, the power is lost: what the
disk has is written down, and :class:`harness.Crash` ends the process. :meth:`Disk.restart` brings the directory to that state. Or just
the process dies there, and the system goes on with what was not flushed.

File systems differ in what they keep beyond that, so there are several disks, see :class:`Keeps`.
"""

from __future__ import annotations

import os
import shutil
import stat
import threading
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Any

import pytest

from harness import Crash
from streamjoin.state import durable

CALLS = ("fsync", "link", "replace", "unlink", "mkdir")


class Keeps(StrEnum):
    """What a disk has after a power loss of what was not flushed."""

    NOTHING = "nothing"
    NAMES = "names"
    """All names, as after a journal of metadata: files without their bytes."""
    HALVES = "halves"
    """All names, and half of each file's bytes."""


class End(StrEnum):
    """Of a process."""

    POWER = "the power was lost"
    DEATH = "the process died"


Tree = dict[str, Any]
"""By name, a file's bytes or a directory's tree."""


class Disk:
    """What the disk has of a directory, which is empty. Usable until the test ends."""

    def __init__(
        self, root: Path, keeps: Keeps, monkeypatch: pytest.MonkeyPatch, end_at: Callable[[int], End | None] = lambda call: None
    ) -> None:
        """``end_at``: whether and how the process ends at the n-th call, counted from 0 and through restarts."""
        root.mkdir(parents=True, exist_ok=True)
        self.calls: list[str] = []
        self._root, self._keeps, self._patches, self._end_at = root, keeps, monkeypatch, end_at
        self._real = {name: getattr(os, name) for name in CALLS}
        self._bytes: dict[int, bytes] = {}
        """By inode, of files that were flushed."""
        self._names: dict[int, dict[str, int]] = {}
        """By inode, of directories that were flushed."""
        self._open: dict[int, int] = {}
        """By inode, a descriptor, so that no other file gets the inode's number."""
        self._left: Tree | None = None
        """What is there after the power loss that the process is ending of."""
        self._lock = threading.RLock()
        for name in CALLS:
            monkeypatch.setattr(os, name, self._watched(name))

    def restart(self) -> None:
        """Another process: after a power loss, the directory is what the disk had. Nothing of the one before may be at work any more."""
        self._patches.setattr(durable, "_flushed", set())  # memory of the process that is gone
        if self._left is None:
            return
        left, self._left = self._left, {}  # not watched meanwhile
        for descriptor in self._open.values():
            os.close(descriptor)
        self._open, self._bytes, self._names = {}, {}, {}
        shutil.rmtree(self._root)
        _write(self._root, left)
        self._flush_all(self._root)
        self._left = None

    def close(self) -> None:
        """Forget everything, so that the calls are the system's again."""
        for name, real in self._real.items():
            self._patches.setattr(os, name, real)
        for descriptor in self._open.values():
            os.close(descriptor)
        self._open = {}

    def _watched(self, name: str) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            path = os.readlink(f"/proc/self/fd/{arguments[0]}") if name == "fsync" else os.fspath(arguments[0])
            with self._lock:  # several threads write
                if Path(path).is_relative_to(self._root.parent) and self._left is None:
                    return self._called(name, path, arguments, options)
            return None if name == "fsync" else self._real[name](*arguments, **options)

        return call

    def _called(self, name: str, path: str, arguments: tuple[Any, ...], options: dict[str, Any]) -> Any:
        self.calls.append(f"{name} {path}")
        end = self._end_at(len(self.calls) - 1)
        if end is not None:
            if end is End.POWER:
                self._left = self._tree(self._root)
            raise Crash(f"{end} before call {len(self.calls) - 1} ({self.calls[-1]})")
        if name == "fsync":
            return self._flush(Path(path))
        return self._real[name](*arguments, **options)

    def _flush(self, path: Path) -> None:
        inode = self._keep(path)
        if path.is_dir():
            self._names[inode] = {entry.name: self._keep(entry) for entry in path.iterdir()}
        else:
            self._bytes[inode] = path.read_bytes()

    def _flush_all(self, path: Path) -> None:
        self._flush(path)
        if path.is_dir():
            for entry in path.iterdir():
                self._flush_all(entry)

    def _keep(self, path: Path) -> int:
        inode = path.stat().st_ino
        if inode not in self._open:
            self._open[inode] = os.open(path, os.O_RDONLY)
        return inode

    def _tree(self, path: Path) -> Tree:
        if self._keeps is Keeps.NOTHING:
            return self._flushed_tree(path.stat().st_ino)
        return {entry.name: self._tree(entry) if entry.is_dir() else self._left_of(entry) for entry in path.iterdir()}

    def _left_of(self, path: Path) -> bytes:
        flushed = self._bytes.get(path.stat().st_ino)
        if flushed is not None:
            return flushed
        return path.read_bytes()[: path.stat().st_size // 2] if self._keeps is Keeps.HALVES else b""

    def _flushed_tree(self, inode: int) -> Tree:
        names = self._names.get(inode, {})
        return {name: self._flushed_tree(one) if self._is_directory(one) else self._bytes.get(one, b"") for name, one in names.items()}

    def _is_directory(self, inode: int) -> bool:
        return stat.S_ISDIR(os.fstat(self._open[inode]).st_mode)


def _write(path: Path, tree: Tree) -> None:
    path.mkdir()
    for name, content in tree.items():
        if isinstance(content, dict):
            _write(path / name, content)
        else:
            (path / name).write_bytes(content)
