"""Where a files sink stages and publishes: a local directory, or a folder of an object store.

Always holds: a file is written under ``_staging`` and becomes visible under its final name whole, in one step: by a rename where it is
local, by a copy within the store elsewhere (a store's objects appear whole or not at all). Publishing again is the same as once; a
staged file is removed only when the published one is there. What is finished, and what is published, survives a power loss.

Small files of an object store need no staging: the commit itself keeps them, and publishing writes them under their final names.

In an object store any other file is first written to a scratch file on this machine, which no crash leaves behind, and uploaded when
finished.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import tempfile
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Protocol

import pyarrow as pa

from streamjoin.io.base import SinkError, Staged
from streamjoin.location import NO_RESULTS_IN_A_FILE, is_url
from streamjoin.state import durable
from streamjoin.state.storage import Missing, ObjectStorage

STAGING = "_staging"
COPIES_AT_ONCE = 8


class StagedFile(Protocol):
    """A file that is being written."""

    stream: pa.NativeFile

    def finish(self, staged: Staged) -> Staged:
        """Makes it durable, or leaves that to the commit; what is to be published of it."""

    def abandon(self) -> None:
        """Stops writing and leaves nothing open."""


class Staging(Protocol):
    """A sink's root. Paths are relative to it. Picklable."""

    keeps_data: bool
    """What the commit keeps can be published from there. Otherwise a driver that publishes again would bring back what its readers have
    taken away."""

    def create(self, path: str) -> StagedFile:
        """Raises SinkError where nothing can be written."""

    def publish(self, staged: Sequence[Staged], *, again: bool = False) -> None:
        """Raises SinkError where a committed file is gone, unless it may have been published before (``again``)."""
        return

    def staged(self) -> Iterable[str]:
        """The names of the files that are staged."""
        return ()

    def remove(self, paths: Sequence[str]) -> None:
        """Removes staged files; nothing happens for those that are not there."""
        return


def staging_at(root: str) -> Staging:
    """``root``: a place, as ``location`` writes it."""
    return StoreStaging(root) if is_url(root) else LocalStaging(root)


class LocalStaging:
    """A directory; it is made when first needed."""

    keeps_data = False

    def __init__(self, root: str) -> None:
        self._root = Path(root)

    def create(self, path: str) -> StagedFile:
        try:
            durable.make_directory(self._root / STAGING, self._root)
            return _LocalFile(self._root / path)
        except OSError as error:
            raise SinkError(f"files.path: {self._root} cannot be written ({error}); correct the path or the access to it") from error

    def publish(self, staged: Sequence[Staged], *, again: bool = False) -> None:
        folders: dict[Path, None] = {}
        for file in staged:
            source, target = self._root / file.path, self._root / file.final
            if target.parent != self._root and target.parent not in folders:
                durable.make_directory(target.parent, self._root)
            folders[target.parent] = None
            try:
                os.replace(source, target)
            except FileNotFoundError:
                if not again and not target.exists():
                    raise _lost(str(source), str(target), file.rows) from None
        for folder in folders:  # also where a driver before has renamed them all: it may not have come to this
            with contextlib.suppress(FileNotFoundError):
                durable.flush_directory(folder)

    def staged(self) -> Iterable[str]:
        if self._root.is_file():
            raise SinkError(f"{self._root}: {NO_RESULTS_IN_A_FILE}")
        try:
            with os.scandir(self._root / STAGING) as entries:
                return [entry.name for entry in entries if entry.is_file(follow_symlinks=False)]
        except FileNotFoundError:
            return []
        except OSError as error:
            raise SinkError(f"files.path: {self._root} cannot be read ({error.strerror}); correct the path or the access to it") from error

    def remove(self, paths: Sequence[str]) -> None:
        for path in paths:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._root / path)


class _LocalFile:
    def __init__(self, path: Path) -> None:
        self._path = path
        self.stream = pa.OSFile(str(path), "wb")

    def finish(self, staged: Staged) -> Staged:
        if not self.stream.closed:
            self.stream.close()
        durable.flush_file(self._path)
        return replace(staged, nbytes=self._path.stat().st_size)

    def abandon(self) -> None:
        with contextlib.suppress(OSError):
            self.stream.close()


class StoreStaging:
    """A folder of an object store. Raises StorageError besides what the protocol says."""

    keeps_data = True

    def __init__(self, root: str) -> None:
        self._root = root

    def __reduce__(self) -> tuple[Callable[[str], StoreStaging], tuple[str]]:
        return StoreStaging, (self._root,)

    @cached_property
    def _storage(self) -> ObjectStorage:
        return ObjectStorage(self._root)

    def create(self, path: str) -> StagedFile:
        return _ScratchFile(self._storage, path)

    def publish(self, staged: Sequence[Staged], *, again: bool = False) -> None:
        """One copy a staged file or one put of other data, some at once, and one removal for all. O(files)."""
        if not staged:
            return
        with ThreadPoolExecutor(min(COPIES_AT_ONCE, len(staged))) as pool:
            copied = list(pool.map(lambda file: self._appear(file, again), staged))
        self._storage.delete_many([file.path for file, is_copied in zip(staged, copied, strict=True) if is_copied])

    def _appear(self, file: Staged, again: bool) -> bool:
        """Whether there was something to copy."""
        if not file.path:
            self._storage.put(file.final, file.data)
            return False
        try:
            self._storage.copy(file.path, file.final)
        except Missing:
            if not again and self._storage.size(file.final) is None:
                raise _lost(f"{self._root}/{file.path}", f"{self._root}/{file.final}", file.rows) from None
            return False
        return True

    def staged(self) -> Iterable[str]:
        return [path.rsplit("/", 1)[1] for path in self._storage.list(STAGING)]

    def remove(self, paths: Sequence[str]) -> None:
        self._storage.delete_many(paths)


class _ScratchFile:
    def __init__(self, storage: ObjectStorage, path: str) -> None:
        self._storage = storage
        self._path = path
        self._file = tempfile.TemporaryFile(prefix="streamjoin-")  # noqa: SIM115 - closed when finished or abandoned
        self.stream = pa.PythonFile(os.fdopen(self._file.fileno(), "wb", closefd=False), mode="w")

    def finish(self, staged: Staged) -> Staged:
        self.stream.close()
        size = os.fstat(self._file.fileno()).st_size
        with self._file:
            self._storage.put(self._path, memoryview(mmap.mmap(self._file.fileno(), size, prot=mmap.PROT_READ)))
        return replace(staged, nbytes=size)

    def abandon(self) -> None:
        with self._file, contextlib.suppress(OSError):  # once it is closed, its number may be another file's: nothing may be left to write
            self.stream.close()


class InMemory(Staging):
    """The place where files are made that the commit keeps. Nothing is staged, so that there is nothing to publish or to remove."""

    keeps_data = True

    def create(self, path: str) -> StagedFile:
        return _MemoryFile()


class _MemoryFile:
    def __init__(self) -> None:
        self.stream = pa.BufferOutputStream()

    def finish(self, staged: Staged) -> Staged:
        data = self.stream.getvalue().to_pybytes()
        return replace(staged, path="", nbytes=len(data), data=data)

    def abandon(self) -> None:
        self.stream.close()


def _lost(source: str, target: str, rows: int) -> SinkError:
    return SinkError(
        f"{source}: this committed file is gone and {target} does not exist either; its {rows} "
        "rows are lost to the sink. Keep other programs from deleting files in the sink's directory"
    )
