"""Local files that a power loss does not take back: flushed to the disk, with the directories that name them.

Always holds: a file appears under its name whole, and only once its bytes are flushed. So whatever is found under a name after a power
loss is what was written, and a write that was interrupted leaves at most a file whose name ends with ``#`` and digits, which no listing
of the storage shows. What a function here has returned from is on the disk, as far as the disk keeps its word.
"""

from __future__ import annotations

import contextlib
import errno
import os
import random
from collections.abc import Callable
from pathlib import Path

try:
    from fcntl import F_FULLFSYNC, fcntl  # type: ignore[attr-defined, unused-ignore]
except ImportError:  # everywhere but on macOS, whose fsync leaves the data in the drive's cache
    F_FULLFSYNC = None

MOST_REMEMBERED = 1000
_UNFLUSHED = (errno.EINVAL, errno.ENOTSUP, errno.EACCES, errno.EPERM)
"""What opening or flushing a directory ends with where the file system, or who it belongs to, allows no such thing."""

_flushed: set[str] = set()
"""Directories of which this process knows that the one above names them on the disk."""


def put(path: Path, root: Path, data: bytes | memoryview) -> None:
    """Write a file in a directory below ``root``, replacing any that is there. Raises OSError."""
    _write(path, root, data, os.replace)
    flush_directory(path.parent)


def create(path: Path, root: Path, data: bytes | memoryview) -> None:
    """Write a file where none is: of several who race, one succeeds, by a hard link. Raises FileExistsError, OSError.

    A file that exists is named on the disk by then, so that whoever finds that it is its own, of a call that was cut short, may rely on it.
    """
    make_directory(path.parent, root)  # what is wrong with that is not to be hidden by the flush
    try:
        _write(path, root, data, os.link)
    finally:
        flush_directory(path.parent)


def flush_file(path: Path) -> None:
    """Bring a file's bytes to the disk, and its name. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        _flush(descriptor)
    finally:
        os.close(descriptor)
    flush_directory(path.parent)


def flush_directory(path: Path) -> None:
    """Bring to the disk which names the directory has. Raises OSError; not where the file system knows no such thing."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            _flush(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        if error.errno not in _UNFLUSHED:
            raise


def make_directory(path: Path, root: Path) -> None:
    """Have a directory, ``root`` or one below it, and have each from ``root`` down named on the disk. Raises OSError.

    Others may have made some of them and not have come to flush that: so each is seen to once by every process.
    """
    if str(path) in _flushed and path.is_dir():
        return
    if (path != root and path.is_relative_to(root)) or not path.parent.is_dir():
        make_directory(path.parent, root)
    try:
        path.mkdir()
    except FileExistsError:
        if not path.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path)) from None
    flush_directory(path.parent)
    if len(_flushed) >= MOST_REMEMBERED:
        _flushed.clear()
    _flushed.add(str(path))


def _write(path: Path, root: Path, data: bytes | memoryview, place: Callable[[str, Path], None]) -> None:
    make_directory(path.parent, root)
    temporary = f"{path}#{random.getrandbits(63)}"
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        with open(descriptor, "wb", buffering=0) as file:
            view = memoryview(data).cast("B")
            while view:
                view = view[file.write(view) :]
            _flush(descriptor)
        place(temporary, path)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)


def _flush(descriptor: int) -> None:
    if F_FULLFSYNC is None:
        os.fsync(descriptor)
    else:
        fcntl(descriptor, F_FULLFSYNC)
