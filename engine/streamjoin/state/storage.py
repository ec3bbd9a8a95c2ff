"""Storage at a URL: whole objects under relative paths, and the one primitive that exactly-once rests on, ``create``.

Always holds: a reader sees an object whole or not at all; ``create`` succeeds for exactly one of several callers that race for a path.
An operation that raises :class:`StorageError` may or may not have taken effect (a lost answer looks like a lost request), so every
caller must be able to repeat it. ``AlreadyExists`` and ``Missing`` are answers, not faults.

An object that was put or created survives a power loss from then on; whether one that was deleted comes back does not matter.

obstore carries it out, but for what is written to local paths, which it cannot flush (``durable``); there, ``create`` is a hard link to a
complete temporary file, which is atomic on POSIX file systems. ``docs/storage.md`` says what it is in each object store. What an object
store refuses for the moment is asked again with growing pauses, logged, and counted by :func:`retries`: obstore itself repeats nothing but
the parts of large uploads.
"""

from __future__ import annotations

import itertools
import logging
import os
import random
import re
import threading
import time
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any, Protocol, TypeVar
from urllib.parse import quote

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError
from obstore.store import LocalStore, ObjectStore, from_url

from streamjoin.location import is_url, place
from streamjoin.state import durable

RETRY_SECONDS = 30.0
"""No attempt at an operation begins later than this after its first."""
FIRST_PAUSE_SECONDS = 0.1
LONGEST_PAUSE_SECONDS = 5.0
MULTIPART_BYTES = 64 << 20
"""Larger objects are uploaded in parts of ``PART_BYTES``; nobody sees them before the last one is there."""
PART_BYTES = 16 << 20
PARTS_AT_ONCE = 4

Result = TypeVar("Result")

_log = logging.getLogger("streamjoin.storage")


class StorageError(OSError):
    """A storage operation failed; it may have taken effect all the same. One line, with the path, the cause and what to do."""


class AlreadyExists(StorageError):  # noqa: N818 - an answer rather than an error
    """``create`` found an object at the path."""


class Missing(StorageError):  # noqa: N818
    """``get`` found nothing at the path."""


class Storage(Protocol):
    """What the engine asks of a place that keeps state. Paths are relative, with ``/``. Implementations are picklable."""

    url: str

    def put(self, path: str, data: bytes | memoryview) -> None:
        """Write an object, replacing any that is there. It is durable on return."""

    def create(self, path: str, data: bytes) -> None:
        """Write an object where none is; raises AlreadyExists otherwise. Either way the object is durable then.

        The object that exists may be this call's own, if an earlier attempt's answer was lost: only its content can tell.
        """

    def get(self, path: str) -> bytes:
        """Read an object; raises Missing."""

    def get_ranges(self, path: str, ranges: Sequence[tuple[int, int]]) -> list[memoryview]:
        """Read the bytes [start, end) of each of these ranges, one or more, which ascend.

        Those that touch come in one request, and all requests are under way at once. Raises Missing, and StorageError where the object
        ends before the last range does.
        """

    def list(self, prefix: str) -> list[str]:
        """All paths below a folder, sorted."""

    def delete(self, path: str) -> None:
        """Remove an object; nothing happens when there is none."""

    def delete_many(self, paths: Sequence[str]) -> None:
        """Remove objects, in few requests where the store can; nothing happens for those that are not there."""

    def local_path(self, path: str) -> Path | None:
        """Where the object lies on this machine, to be mapped, or None when it is elsewhere."""


@dataclass(frozen=True, slots=True)
class Listed:
    """An object of a folder."""

    name: str
    size: int
    modified_ns: int
    tag: str
    """Its entity tag, or its version; empty where the store gives neither."""


class ObjectStorage:
    """:class:`Storage` through obstore, for a local path or a URL. Pickles as its URL: credentials are each process' own.

    Safe for use by several threads.
    """

    def __init__(self, url: str) -> None:
        """Raises ValueError for a URL that means no place; see ``location``."""
        where = place(os.path.expanduser(url))
        self.url = url if not is_url(where) else where
        self.root = None if is_url(where) else Path(os.path.abspath(where))

    def __reduce__(self) -> tuple[Any, ...]:
        return ObjectStorage, (self.url,)

    @cached_property
    def _store(self) -> ObjectStore:
        if self.root is None:
            return self._connected(repeats=0)
        try:
            durable.make_directory(self.root, self.root)
        except OSError as error:
            raise StorageError(f"{self.url}: cannot be created ({error.strerror}); choose a directory that you may write") from error
        return LocalStore(self.root)

    @cached_property
    def _uploading(self) -> ObjectStore:
        """The store for what is uploaded in parts, each of which obstore repeats by itself: one lost part must not cost all others."""
        return self._store if self.root is not None else self._connected(repeats=6)

    def _connected(self, repeats: int) -> ObjectStore:
        head, _, path = self.url.partition("://")
        try:
            # the text of a place is literal, as for all tools of these stores, and not percent-encoded
            return from_url(f"{head}://{quote(path, safe='/@:')}", retry_config={"max_retries": repeats})
        except (BaseError, ValueError) as error:
            raise self._failure("open", "", error).error from error

    def put(self, path: str, data: bytes | memoryview) -> None:
        view = memoryview(data).cast("B")
        if self.root is not None:
            target, root = self.root / path, self.root
            self._attempts("write", path, lambda: durable.put(target, root, view))
        elif len(view) > MULTIPART_BYTES:
            self._attempts(
                "write",
                path,
                lambda: obstore.put(self._uploading, path, view, use_multipart=True, chunk_size=PART_BYTES, max_concurrency=PARTS_AT_ONCE),
            )
        else:
            self._attempts("write", path, lambda: obstore.put(self._store, path, view, use_multipart=False))

    def create(self, path: str, data: bytes) -> None:
        def once() -> None:
            try:
                if self.root is not None:
                    durable.create(self.root / path, self.root, data)
                else:
                    obstore.put(self._store, path, data, mode="create", use_multipart=False)
            except (FileExistsError, AlreadyExistsError) as error:
                # S3 says so, too, while another create is still under way, which may yet come to nothing
                if self.root is None and self.size(path) is None:
                    raise _Unsettled from error
                raise AlreadyExists(f"{self.url}/{path}: exists") from error

        self._attempts("create", path, once)

    def get(self, path: str) -> bytes:
        return self._attempts("read", path, lambda: bytes(obstore.get(self._store, path).bytes()))

    def get_range(self, path: str, start: int, end: int) -> bytes:
        """The bytes from ``start`` to ``end``, fewer where the object ends before; raises Missing."""
        if end <= start:
            return b""
        return self._attempts("read", path, lambda: bytes(obstore.get_range(self._store, path, start=start, end=end)), beyond=b"")

    def get_ranges(self, path: str, ranges: Sequence[tuple[int, int]]) -> list[memoryview]:
        # NB: obstore would put touching ranges together, but brings the process down where the object is shorter than they say.
        starts = [ranges[0][0]] + [start for (_, end), (start, _) in pairwise(ranges) if start != end]
        ends = [end for (_, end), (start, _) in pairwise(ranges) if start != end] + [ranges[-1][1]]

        def once() -> list[bytes]:
            return [bytes(part) for part in obstore.get_ranges(self._store, path, starts=starts, ends=ends, coalesce=0)]

        found = self._attempts("read", path, once)
        if [len(part) for part in found] != [end - start for start, end in zip(starts, ends, strict=True)]:
            raise StorageError(f"{self.url}/{path}: ends before byte {ends[-1]}, so it is not what was written; restore it")
        at = [bisect_right(starts, start) - 1 for start, _ in ranges]
        return [memoryview(found[i])[start - starts[i] : end - starts[i]] for i, (start, end) in zip(at, ranges, strict=True)]

    def size(self, path: str) -> int | None:
        """An object's size in bytes; None where there is none."""
        try:
            return self._attempts("look at", path, lambda: int(obstore.head(self._store, path)["size"]))
        except Missing:
            return None

    def list(self, prefix: str) -> list[str]:
        def once() -> list[str]:
            return sorted(item["path"] for page in obstore.list(self._store, prefix) for item in page)

        try:
            return self._attempts("list", prefix, once)
        except Missing:
            return []

    def list_folder(self, *, is_deep: bool = False) -> Iterator[Listed]:
        """The objects directly in the storage's own folder, and, with ``is_deep``, those in folders below it."""

        def once() -> Sequence[Any]:
            if is_deep:
                return [item for page in obstore.list(self._store) for item in page]
            return obstore.list_with_delimiter(self._store)["objects"]

        for item in self._attempts("list", "", once):
            if item["path"]:  # consoles mark a folder by an object of its own name
                modified = round(item["last_modified"].timestamp() * 1_000_000) * 1000
                yield Listed(item["path"], item["size"], modified, item["e_tag"] or item["version"] or "")

    def copy(self, source: str, target: str) -> None:
        """Copy an object within the store, replacing any that is there; raises Missing."""
        self._attempts("copy", source, lambda: obstore.copy(self._store, source, target))

    def delete(self, path: str) -> None:
        try:
            self._attempts("delete", path, lambda: obstore.delete(self._store, path))
        except Missing:
            return

    def delete_many(self, paths: Sequence[str]) -> None:
        if self.root is None and len(paths) > 1:
            try:
                self._attempts("delete", paths[0], lambda: obstore.delete(self._store, list(paths)))
                return
            except Missing:
                pass  # some stores insist that each is there
        for path in paths:
            self.delete(path)

    def local_path(self, path: str) -> Path | None:
        return None if self.root is None else self.root / path

    def _attempts(self, what: str, path: str, once: Callable[[], Result], *, beyond: Result | None = None) -> Result:
        """What ``once`` returns, asked again while the store fails for the moment. ``beyond``: the answer to a range after the end."""
        began = time.monotonic()
        for attempt in itertools.count(1):
            try:
                return once()
            except StorageError:
                raise
            except (BaseError, OSError, _Unsettled) as error:
                failure = self._failure(what, path, error)
                if beyond is not None and (failure.status == 416 or "range was invalid" in str(error)):
                    return beyond
                pause = _pause(attempt)
                if not failure.passes or time.monotonic() - began + pause > RETRY_SECONDS:
                    raise failure.error from error
                _log.warning("%s; attempt %d follows in %.2f s", failure.text, attempt + 1, pause)
            _count()
            time.sleep(pause)
        raise AssertionError("counting does not end")

    def _failure(self, what: str, path: str, error: Exception) -> _Failure:
        """What an error of obstore means, and whether it may pass."""
        where = f"{self.url}/{path}" if path else self.url
        if isinstance(error, _Unsettled):
            return _Failure(f"{where}: cannot {what} it (another create of it does not end)", "try again later", passes=True)
        full = str(error)
        text = full.split("\n\nDebug source", 1)[0]
        found = re.search(r"status code: (\d{3})", text)
        status = int(found[1]) if found else 0
        code = re.search(r"<Code>(\w+)</Code>", text)
        broken = next((sentence for pattern, sentence in _BROKEN if pattern in full), " ".join(text.split())[:300])
        cause = " ".join(filter(None, [found and found[1], code and code[1]])) or broken
        if self.root is None and status < 500:
            for pattern, reason, remedy in _REFUSALS:
                if re.search(pattern, full):
                    return _Failure(f"{where}: cannot {what} it: {reason} ({cause})", remedy, status)
        if isinstance(error, FileNotFoundError):
            return _Failure(f"{where}: not there", kind=Missing)
        if self.root is not None:
            return _Failure(f"{where}: cannot {what} it ({cause})")
        if status in (401, 403):
            remedy = "grant it to the credentials that the engine finds in its environment, or set others"
            return _Failure(f"{where}: cannot {what} it: access is refused ({cause})", remedy, status)
        if "kind: Connect" in full:
            cause = f"{_endpoint(text)} cannot be reached"
        if status >= 500 or status in _PASSING or "HTTP error" in text:
            remedy = "check the network, and that this is the right endpoint"
            return _Failure(f"{where}: cannot {what} it ({cause})", remedy, status, passes=True)
        return _Failure(f"{where}: cannot {what} it ({cause})", status=status)


class _Unsettled(Exception):  # noqa: N818
    """The store's answer is none yet."""


@dataclass(frozen=True, slots=True)
class _Failure:
    text: str
    remedy: str = ""
    status: int = 0
    """The HTTP status; 0 without an answer."""
    passes: bool = False
    """Whether it may pass by itself."""
    kind: type[StorageError] = StorageError

    @property
    def error(self) -> StorageError:
        return self.kind(f"{self.text}; {self.remedy}" if self.remedy else self.text)


_PASSING = (408, 409, 429)
"""Answers below 500 that mean: not now."""

_BROKEN = (
    ("kind: Timeout", "no answer in time"),
    ("body error", "the answer broke off"),
    ("error sending request", "the connection broke"),
)
"""What obstore says at length of requests without an answer."""

_REFUSALS = (
    ("NoSuchBucket|ContainerNotFound|bucket does not exist", "the bucket does not exist", "create it, or correct the URL"),
    (
        r"latest/api/token|latest/meta-data|169\.254\.169\.254|metadata\.google\.internal",
        "there are no credentials",
        "set them in the environment, for workers too (docs/storage.md lists the variables)",
    ),
    (
        "redirect without LOCATION|AuthorizationHeaderMalformed|PermanentRedirect",
        "the bucket is in another region",
        "set AWS_REGION to the bucket's",
    ),
    ("http://.*builder error", "the endpoint is http, not https", "set AWS_ALLOW_HTTP=true if that is meant"),
    ("Account must be specified", "the account is not known", "set AZURE_STORAGE_ACCOUNT_NAME, or use an abfss:// URL"),
    ("InvalidAccessKeyId|SignatureDoesNotMatch|ExpiredToken|InvalidToken", "the credentials are not accepted", "set valid ones"),
)
"""What no waiting mends: a pattern in what obstore says, the reason, and the remedy."""


def _endpoint(text: str) -> str:
    found = re.search(r"https?://[^/\s]+", text)
    return found[0] if found else "the store"


def _pause(attempt: int) -> float:
    """Seconds before the next attempt: doubled each time, and drawn from the upper half so that many clients spread."""
    longest = min(LONGEST_PAUSE_SECONDS, FIRST_PAUSE_SECONDS * 2.0 ** (attempt - 1))
    return longest * random.uniform(0.5, 1.0)  # noqa: S311 - nothing secret about it


def found(storage: Storage, path: str) -> bytes | None:
    """An object; None: there is none. Raises StorageError."""
    try:
        return storage.get(path)
    except Missing:
        return None


_counting = threading.Lock()
_retried = 0


def retries() -> int:
    """How many requests to object stores this process has repeated so far."""
    return _retried


def _count() -> None:
    global _retried  # noqa: PLW0603
    with _counting:
        _retried += 1
