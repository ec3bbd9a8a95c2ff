"""The directory that a files source reads: a local one, or a folder of an object store. Picklable, for planning and for tasks alike.

What differs: local files may grow and are looked at where they lie; objects are whole as soon as they are listed, are read by ranges, and
a listing says all that is to be known of them, so that nothing is asked twice.
"""

from __future__ import annotations

import io
import itertools
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import pyarrow as pa

from streamjoin.io.base import SourceError
from streamjoin.io.identity import Status
from streamjoin.location import is_url, within
from streamjoin.state.storage import Missing, ObjectStorage

NULL_FOLDER = "__HIVE_DEFAULT_PARTITION__"
"""Hive's value of a column in the name of a directory where it is null."""
WHOLE_BYTES = 4 << 20
"""A Parquet object up to this size is fetched in one request; of a larger one the footer and the columns that are read.

Text up to this size is fetched at once and ahead of its turn.
"""
FOOTER_BYTES = 64 << 10
"""The end of a Parquet object that is fetched first; nearly every footer lies in it."""
UNKNOWN = Status()
REQUESTS_AT_ONCE = 8
"""For a plan that looks into many objects, and for a task that reads many small ones."""


class Entry(Protocol):
    """What listing tells of a file, as ``os.DirEntry`` does."""

    @property
    def name(self) -> str: ...

    def is_file(self) -> bool:
        """Raises OSError where a link leads to itself."""

    def inode(self) -> int:
        """0: there is none."""


class Opened(Protocol):
    """A file of which ranges are read. Raises FileNotFoundError where it is gone."""

    path: str
    damage: str
    """Why it ends before its end, once it has been read until there; empty: it does not."""

    def status(self) -> Status: ...

    def pread(self, count: int, offset: int) -> bytes:
        """At most ``count`` bytes from ``offset`` on; none only at the end."""

    def close(self) -> None: ...


class Folder(Protocol):
    """The directory. Names are paths below it, with slashes."""

    grows: bool
    """Whether a file that is there may still be written to."""

    def scan(self, *, is_deep: bool) -> Iterable[Entry]:
        """What is in the directory, and with ``is_deep`` in directories below it, those left out whose names begin with _ or a dot.

        Raises SourceError where a directory cannot be listed.
        """

    def path(self, name: str) -> str:
        """How messages call a file."""

    def status(self, entry: Entry) -> Status:
        """What a listed file is. Raises FileNotFoundError."""

    def open(self, name: str, status: Status = UNKNOWN) -> Opened:
        """Raises FileNotFoundError, PermissionError. ``status`` is that of the listing."""

    def parquet(self, name: str, size: int, *, planning: bool) -> Any:
        """What ``pyarrow.parquet.ParquetFile`` reads, as a context manager. ``planning``: nothing but the footer is wanted."""

    def ahead(self, parts: Sequence[tuple[str, int, int]]) -> Iterator[Folder]:
        """For each of these (name, start, end) in turn, the folder through which to read it: of an object store, small ones are fetched
        ahead of their turn."""


def is_hidden(name: str) -> bool:
    """Whether the name, or that of a directory on the way, begins with _ or a dot: markers, and what others are not done with."""
    return name[0] in "._" or "/_" in name or "/." in name


def folder_at(where: str) -> Folder:
    """``where``: a place, as ``location`` writes it."""
    return StoreFolder(where) if is_url(where) else LocalFolder(where)


class LocalFolder:
    """A directory of this machine."""

    grows = True

    def __init__(self, root: str) -> None:
        self._root = root

    def scan(self, *, is_deep: bool) -> Iterable[Entry]:
        path = self._root
        try:
            entries = os.scandir(path)
        except FileNotFoundError:
            raise SourceError(f"files.path: {path} does not exist; create the directory, or correct the path") from None
        except NotADirectoryError:
            raise SourceError(f"files.path: {path} is a file; give its directory, and its name as files.pattern") from None
        except PermissionError as error:
            raise SourceError(f"files.path: {path} cannot be read ({error.strerror}); grant the engine's user access to it") from None
        with entries:
            for entry in entries:
                if is_deep and _is_read(entry):
                    yield from self._below(entry, "", ())
                else:
                    yield entry

    def _below(self, directory: os.DirEntry[str], prefix: str, links: tuple[str, ...]) -> Iterator[Entry]:
        """What is in a directory. ``links``: where the links lead that it was reached by."""
        prefix += directory.name + "/"
        if directory.is_symlink():
            # A directory is read where it is. By a link into what is being read it would be read twice, or for ever.
            target, root = os.path.realpath(directory.path), os.path.realpath(self._root)
            is_read = within(target, root) and not is_hidden(os.path.relpath(target, root))
            if is_read or within(root, target) or any(within(target, link) or within(link, target) for link in links):
                return
            links += (target,)
        try:
            entries = os.scandir(directory.path)
        except (FileNotFoundError, NotADirectoryError):
            return  # removed since
        except PermissionError as error:
            where = f"files.path: {directory.path} cannot be read ({error.strerror})"
            raise SourceError(f"{where}; grant the engine's user access to it, or move it away") from None
        with entries:
            for entry in entries:
                if _is_read(entry):
                    yield from self._below(entry, prefix, links)
                else:
                    yield _Below(prefix + entry.name, entry)

    def path(self, name: str) -> str:
        return os.path.join(self._root, name)

    def status(self, entry: Any) -> Status:
        return _status(entry.stat())

    def open(self, name: str, status: Status = UNKNOWN) -> Opened:
        return _LocalFile(self.path(name))

    def parquet(self, name: str, size: int, *, planning: bool) -> Any:
        return pa.OSFile(self.path(name))

    def ahead(self, parts: Sequence[tuple[str, int, int]]) -> Iterator[Folder]:
        return itertools.repeat(self, len(parts))


def _is_read(entry: os.DirEntry[str]) -> bool:
    """Whether it is a directory whose files are read."""
    try:
        return entry.name[0] not in "._" and entry.is_dir()
    except OSError:  # a link that leads to itself
        return False


class _Below:
    """A file in a directory below."""

    __slots__ = ("inode", "is_file", "name", "stat")

    def __init__(self, name: str, entry: os.DirEntry[str]) -> None:
        self.name = name
        self.is_file, self.inode, self.stat = entry.is_file, entry.inode, entry.stat


class _LocalFile:
    damage = ""

    def __init__(self, path: str) -> None:
        self.path = path
        self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def status(self) -> Status:
        return _status(os.fstat(self._descriptor))

    def pread(self, count: int, offset: int) -> bytes:
        return os.pread(self._descriptor, count, offset)

    def close(self) -> None:
        os.close(self._descriptor)


def _status(found: Any) -> Status:
    return Status(found.st_size, found.st_mtime_ns, found.st_ino)


class StoreFolder:
    """A folder of an object store. Besides what the protocol says, raises StorageError where the store does not answer."""

    grows = False

    def __init__(self, root: str, held: _Held | None = None) -> None:
        self._root = root
        self._held = held

    def __reduce__(self) -> tuple[Callable[[str], StoreFolder], tuple[str]]:
        return StoreFolder, (self._root,)

    @cached_property
    def _storage(self) -> ObjectStorage:
        return ObjectStorage(self._root)

    def scan(self, *, is_deep: bool) -> Iterable[Entry]:
        for item in self._storage.list_folder(is_deep=is_deep):
            yield _StoreEntry(item.name, Status(item.size, item.modified_ns, tag=item.tag))

    def path(self, name: str) -> str:
        return f"{self._root}/{name}"

    def status(self, entry: Any) -> Status:
        found: Status = entry.found
        return found

    def open(self, name: str, status: Status = UNKNOWN) -> Opened:
        held = self._held if self._held is not None and self._held.name == name else None
        return _StoreFile(self._storage, name, self.path(name), status, held)

    def parquet(self, name: str, size: int, *, planning: bool) -> Any:
        file = self.open(name)
        if size <= WHOLE_BYTES and not planning:
            return pa.BufferReader(file.pread(size, 0))
        return pa.PythonFile(_Ranges(file, size), mode="r")

    def ahead(self, parts: Sequence[tuple[str, int, int]]) -> Iterator[Folder]:
        if len(parts) == 1:
            yield self
            return
        left = iter(parts)
        with ThreadPoolExecutor(REQUESTS_AT_ONCE) as pool:
            begun: deque[Future[StoreFolder]] = deque()
            for _ in parts:
                begun.extend(pool.submit(self._holding, *part) for part in itertools.islice(left, REQUESTS_AT_ONCE - len(begun)))
                yield begun.popleft().result()

    def _holding(self, name: str, start: int, end: int) -> StoreFolder:
        """This folder with a part of a file in memory, if it is small and there."""
        if end - start > WHOLE_BYTES:
            return self
        try:
            return StoreFolder(self._root, _Held(name, start, self._storage.get_range(name, start, end)))
        except Missing:
            return self


@dataclass(frozen=True)
class _Held:
    name: str
    start: int
    data: bytes

    def part(self, count: int, offset: int) -> bytes | None:
        at = offset - self.start
        return self.data[at : at + count] if at >= 0 and at + count <= len(self.data) else None


@dataclass(frozen=True)
class _StoreEntry:
    name: str
    found: Status

    def is_file(self) -> bool:
        return True

    def inode(self) -> int:
        return 0


class _StoreFile:
    damage = ""

    def __init__(self, storage: ObjectStorage, name: str, path: str, status: Status, held: _Held | None) -> None:
        self.path = path
        self._storage = storage
        self._name = name
        self._status = status
        self._held = held

    def status(self) -> Status:
        return self._status

    def pread(self, count: int, offset: int) -> bytes:
        held = self._held.part(count, offset) if self._held is not None else None
        if held is not None:
            return held
        try:
            return self._storage.get_range(self._name, offset, offset + count)
        except Missing as error:
            raise FileNotFoundError(str(error)) from error

    def close(self) -> None:
        pass


class _Ranges(io.RawIOBase):
    """An object as a file that is read by ranges. Its end is fetched once, for the footer is asked for in several parts."""

    def __init__(self, file: Opened, size: int) -> None:
        self._file = file
        self._size = size
        self._at = 0
        self._end = b""

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size}[whence]
        self._at = base + offset
        return self._at

    def read(self, count: int = -1) -> bytes:
        count = self._size - self._at if count < 0 else min(count, self._size - self._at)
        data = self._read(count)
        self._at += len(data)
        return data

    def _read(self, count: int) -> bytes:
        end_starts = max(0, self._size - FOOTER_BYTES)
        if self._at < end_starts:
            return self._file.pread(count, self._at)
        if not self._end:
            self._end = self._file.pread(self._size - end_starts, end_starts)
        return self._end[self._at - end_starts :][:count]

    def readable(self) -> bool:
        return True
