"""Storage at a URL: whole objects under relative paths, and the one primitive that exactly-once rests on, ``create``.

Always holds: a reader sees an object whole or not at all; ``create`` succeeds for exactly one of several callers that race for a path.
An operation that raises :class:`StorageError` may or may not have taken effect (a lost answer looks like a lost request), so every
caller must be able to repeat it. ``AlreadyExists`` and ``Missing`` are answers, not faults.

obstore carries it out. For local paths, ``create`` is a hard link to a complete temporary file, which is atomic on POSIX file systems.
"""

from __future__ import annotations

import os
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import unquote, urlsplit

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError
from obstore.store import LocalStore


class StorageError(OSError):
    """A storage operation failed; it may have taken effect all the same. One line, with the path and the cause."""


class AlreadyExists(StorageError):  # noqa: N818 - an answer rather than an error
    """``create`` found an object at the path."""


class Missing(StorageError):  # noqa: N818
    """``get`` found nothing at the path."""


class Storage(Protocol):
    """What the engine asks of a place that keeps state. Paths are relative, with ``/``. Implementations are picklable."""

    url: str

    def put(self, path: str, data: bytes | memoryview) -> None:
        """Write an object, replacing any that is there."""

    def create(self, path: str, data: bytes) -> None:
        """Write an object where none is; raises AlreadyExists otherwise."""

    def get(self, path: str) -> bytes:
        """Read an object; raises Missing."""

    def list(self, prefix: str) -> list[str]:
        """All paths below a folder, sorted."""

    def delete(self, path: str) -> None:
        """Remove an object; nothing happens when there is none."""

    def local_path(self, path: str) -> Path | None:
        """Where the object lies on this machine, to be mapped, or None when it is elsewhere."""


class ObjectStorage:
    """:class:`Storage` through obstore, for a local path or a ``file://`` URL. Pickles as its URL."""

    def __init__(self, url: str) -> None:
        self.root = local_root(url)
        self.url = url

    def __reduce__(self) -> tuple[Any, ...]:
        return ObjectStorage, (self.url,)

    @cached_property
    def _store(self) -> LocalStore:
        try:
            self.root.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StorageError(f"{self.url}: cannot be created ({error.strerror}); choose a directory that you may write") from error
        return LocalStore(self.root)

    def put(self, path: str, data: bytes | memoryview) -> None:
        try:
            obstore.put(self._store, path, memoryview(data).cast("B"), use_multipart=False)
        except BaseError as error:
            raise self._error("write", path, error) from error

    def create(self, path: str, data: bytes) -> None:
        try:
            obstore.put(self._store, path, data, mode="create", use_multipart=False)
        except AlreadyExistsError as error:
            raise AlreadyExists(f"{self.url}/{path}: exists") from error
        except BaseError as error:
            raise self._error("create", path, error) from error

    def get(self, path: str) -> bytes:
        try:
            return bytes(obstore.get(self._store, path).bytes())
        except FileNotFoundError as error:
            raise Missing(f"{self.url}/{path}: not there") from error
        except BaseError as error:
            raise self._error("read", path, error) from error

    def list(self, prefix: str) -> list[str]:
        try:
            return sorted(item["path"] for page in obstore.list(self._store, prefix) for item in page)
        except FileNotFoundError:
            return []
        except BaseError as error:
            raise self._error("list", prefix, error) from error

    def delete(self, path: str) -> None:
        try:
            obstore.delete(self._store, path)
        except FileNotFoundError:
            return
        except BaseError as error:
            raise self._error("delete", path, error) from error

    def local_path(self, path: str) -> Path | None:
        return self.root / path

    def _error(self, what: str, path: str, error: Exception) -> StorageError:
        cause = str(error).splitlines()[0][:300]
        return StorageError(f"{self.url}/{path}: cannot {what} it ({cause})")


def local_root(url: str) -> Path:
    """The absolute directory that a local path or ``file://`` URL names. Raises ValueError for any other scheme."""
    parts = urlsplit(url)
    if parts.scheme == "file":
        return Path(unquote(parts.path))
    if parts.scheme and "://" in url:
        raise ValueError(f"{url}: the scheme {parts.scheme!r} is not supported; use a local path or a file:// URL")
    return Path(os.path.abspath(os.path.expanduser(url)))
