"""A disk that forgets what was not flushed, as ``disk``'s, for several processes: the driver and its workers, which are really killed.

Each process that watches tells a record, in a directory beside, what it flushes, instead of flushing it: of a file how much of it, of a
directory its names. Files are remembered by hard links, so that no other file gets their inodes' numbers, and lie where they lay: the
engine changes no file that it has flushed. :meth:`SharedDisk.lose_power` ends the calling process; from that moment on nothing is
flushed. When all other processes are gone, too, :meth:`SharedDisk.restore` leaves what such a disk would have.

Always holds: what the record has of a moment is what ``fsync`` had returned from by then, in whichever process; one lock sees to it.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import signal
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn
from urllib.parse import quote

if TYPE_CHECKING:  # workers import this, and need neither pytest nor DuckDB
    from disk import Keeps, Tree

_fsync = os.fsync


@dataclass(frozen=True)
class SharedDisk:
    """Picklable; equal ones are the same disk."""

    root: Path
    record: Path
    """On the same file system."""
    parts: tuple[str, ...] = ("state", "out")
    """What a power loss concerns of the root; there may be more in it that it does not."""

    def watch(self) -> None:
        """Have this process's flushes written down."""
        for folder in ("names", "pinned", "flushed"):
            (self.record / folder).mkdir(parents=True, exist_ok=True)
        os.fsync = self._flush  # type: ignore[assignment]

    def lose_power(self) -> NoReturn:
        """End this process; whoever flushes from now on waits for its end."""
        with self._locked():
            self._lost.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError("unreachable")

    def restore(self, keeps: Keeps) -> None:
        """Bring the root to what the disk has kept. All processes that wrote there must be gone."""
        from disk import Keeps

        flushed = self._flushed_sizes()
        unflushed: Callable[[int], int] = (lambda size: size // 2) if keeps is Keeps.HALVES else (lambda size: 0)
        if keeps is Keeps.NOTHING:
            left = {name: tree for name, tree in self._named("", flushed).items() if name in self.parts}
        else:
            left = {name: self._walked(self.root / name, flushed, unflushed) for name in self.parts if (self.root / name).is_dir()}
        for part in self.parts:
            shutil.rmtree(self.root / part, ignore_errors=True)
        shutil.rmtree(self.record)
        for folder in ("names", "pinned", "flushed"):
            (self.record / folder).mkdir(parents=True)
        for name, tree in left.items():
            self._write(self.root / name, tree)
        self._keep_names(self.root)

    @property
    def has_lost(self) -> bool:
        """Whether its power was lost, and it has not been restored."""
        return self._lost.exists()

    @property
    def _lost(self) -> Path:
        return self.record / "lost"

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        with (self.record / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def _flush(self, descriptor: int) -> None:
        path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        if path != self.root and not any(path.is_relative_to(self.root / part) for part in self.parts):
            _fsync(descriptor)
            return
        with self._locked():
            if not self.has_lost:
                self._keep(path)
                return
        threading.Event().wait()

    def _keep(self, path: Path) -> None:
        if path.is_dir():
            self._keep_names(path)
        else:
            status = path.stat()
            _link(path, self.record / "flushed" / f"{status.st_ino}.{status.st_size}")

    def _keep_names(self, directory: Path) -> None:
        names: dict[str, int | None] = {}
        for entry in os.scandir(directory):
            if entry.is_dir():
                names[entry.name] = None
            elif directory != self.root:
                with contextlib.suppress(FileNotFoundError):  # it was removed while we looked
                    _link(Path(entry.path), self.record / "pinned" / str(entry.inode()))
                    names[entry.name] = entry.inode()
        path = self._names_of(str(directory.relative_to(self.root)))
        written = path.with_name(f"{path.name}#")
        written.write_text(json.dumps(names))
        written.replace(path)  # a process may be killed at any line

    def _names_of(self, directory: str) -> Path:
        """Where the names of a directory are written down, given its path from the root."""
        return self.record / "names" / f"{quote(directory, safe='')}.json"

    def _flushed_sizes(self) -> dict[int, int]:
        """By inode."""
        sizes: dict[int, int] = {}
        for name in os.listdir(self.record / "flushed"):
            inode, size = map(int, name.split("."))
            sizes[inode] = max(size, sizes.get(inode, 0))
        return sizes

    def _named(self, directory: str, flushed: dict[int, int]) -> Tree:
        """What is left of a directory, by the names that were flushed."""
        path = self._names_of(directory or ".")
        names: dict[str, int | None] = json.loads(path.read_text()) if path.exists() else {}
        return {
            name: self._named(f"{directory}/{name}".lstrip("/"), flushed) if inode is None else self._bytes_of(inode, flushed)
            for name, inode in names.items()
        }

    def _bytes_of(self, inode: int, flushed: dict[int, int]) -> bytes:
        size = flushed.get(inode)
        return b"" if size is None else (self.record / "flushed" / f"{inode}.{size}").read_bytes()[:size]

    def _walked(self, directory: Path, flushed: dict[int, int], unflushed: Callable[[int], int]) -> Tree:
        """What is left of a directory that has all of its names; ``unflushed``: how much of a file of this size that was not flushed."""
        tree: Tree = {}
        for entry in directory.iterdir():
            if entry.is_dir():
                tree[entry.name] = self._walked(entry, flushed, unflushed)
                continue
            status = entry.stat()
            size = flushed.get(status.st_ino, unflushed(status.st_size))
            tree[entry.name] = entry.read_bytes()[:size]
        return tree

    def _write(self, path: Path, tree: Tree) -> None:
        """Make the tree, and have all of it flushed."""
        path.mkdir()
        for name, content in tree.items():
            if isinstance(content, dict):
                self._write(path / name, content)
            else:
                (path / name).write_bytes(content)
                self._keep(path / name)
        self._keep_names(path)


def _link(path: Path, name: Path) -> None:
    with contextlib.suppress(FileExistsError):
        os.link(path, name)
