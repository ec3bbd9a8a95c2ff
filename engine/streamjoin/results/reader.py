"""Lists a join's snapshots for readers: which snapshots exist, and which sorted files have their rows.

A *run* is the snapshots of a range of identifiers that lie together: one index object and its files. Ranges are aligned:
[8^n k, 8^n (k + 1)), so that any two are nested or apart, and where a wider one is there, those within it are history.

Always holds: each row of a snapshot that is listed is in exactly one of the files listed, once; an index and a file do not change. Files
of runs that became a wider one stay for ``archive.GRACE_SECONDS``: list again for a query that begins later.
"""

from __future__ import annotations

import datetime
import decimal
import json
import math
import zlib
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import pyarrow as pa

from streamjoin.state import checks
from streamjoin.state.storage import Missing, Storage, StorageError

KEY, SNAPSHOT, ROW = "_key", "_snapshot", "_row"
"""Columns of stored results beside those of the output: the key by which they are found; their snapshot; the number in it. The last two
together are a result's identity for good."""
FOLDER = "snapshots"
"""Of the checkpoint."""
INDEX = "index"
FORMAT = 1
ATTEMPTS = 5
READS = 8
BOUND_CHARACTERS = 256
"""Longer keys are bounded by as much of them."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A snapshot that is stored."""

    id: int
    epoch: int
    """The last whose results it has."""
    committed_at: float
    """Seconds since 1970, by the driver's clock."""
    rows: int
    marks: tuple[str, ...] = ()
    """The punctuations that had come of all streams with it, since the snapshot before."""


@dataclass(frozen=True, slots=True)
class SnapshotFile:
    """A Parquet file, sorted by ``_key``, then ``_snapshot``, then ``_row``."""

    path: str
    """In the checkpoint's storage."""
    rows: int
    bytes: int
    """Of the file."""
    key_low: Any
    """No key in it is less, as Python has it (a timestamp is a datetime, in UTC unless it is one without a zone); None: not known."""
    key_high: Any
    """No key in it is greater; None: not known. Rows without a key, and keys that are NaN, come last."""
    snapshot_low: int
    snapshot_high: int
    nbytes: int = 0
    """Of its rows in memory."""
    form: str = ""
    """What its rows look like: files of one form have the same columns."""


@dataclass(frozen=True, slots=True)
class Run:
    """See the module."""

    low: int
    """The identifiers of its range; there need not be snapshots of all."""
    high: int
    snapshots: tuple[Snapshot, ...]
    files: tuple[SnapshotFile, ...]
    made_at: float
    replaces: tuple[str, ...] = ()
    """Objects that nobody needs once it is there."""

    @property
    def nbytes(self) -> int:
        return sum(file.nbytes for file in self.files)

    def encode(self) -> bytes:
        files = [
            [
                *(file.path, file.rows, file.bytes, _written(file.key_low), _written(file.key_high)),
                *(file.snapshot_low, file.snapshot_high, file.nbytes, file.form),
            ]
            for file in self.files
        ]
        snapshots = [[each.id, each.epoch, each.committed_at, each.rows, *([each.marks] if each.marks else [])] for each in self.snapshots]
        value = {"format": FORMAT, "low": self.low, "high": self.high, "madeAt": self.made_at, "snapshots": snapshots, "files": files}
        return _checked(value | {"replaces": list(self.replaces)})

    @classmethod
    def decode(cls, data: bytes) -> Run:
        """Raises ValueError for what another version wrote, or what has changed since."""
        value = json.loads(data)
        if "check" in value and _checked(value) != data:
            raise ValueError("its bytes are not those that were written")
        if value["format"] != FORMAT:
            found = value["format"]
            raise ValueError(f"an index of snapshots is of format {found!r}, and this version reads {FORMAT}; use the one that wrote it")
        files = [
            SnapshotFile(path, rows, nbytes, _read(low), _read(high), *rest) for path, rows, nbytes, low, high, *rest in value["files"]
        ]
        snapshots = tuple(Snapshot(number, epoch, at, rows, *map(tuple, marks)) for number, epoch, at, rows, *marks in value["snapshots"])
        return cls(value["low"], value["high"], snapshots, tuple(files), value["madeAt"], tuple(value["replaces"]))


def _checked(value: dict[str, Any]) -> bytes:
    """An index as JSON, with the checksum of all else in it at its end."""
    text = json.dumps({name: each for name, each in value.items() if name != "check"})
    return f'{text[:-1]}, "check": {zlib.crc32(text.encode())}}}'.encode()


def folder(join: str) -> str:
    """The folder of a join's snapshots."""
    return f"{FOLDER}/{quote(join, safe='')}"


def index_path(join: str, low: int, high: int) -> str:
    return f"{folder(join)}/{INDEX}/{low:012d}-{high:012d}.json"


def list_snapshots(storage: Storage, join: str) -> tuple[Snapshot, ...]:
    """The stored snapshots of a join, by identifier. Raises StorageError. O(snapshots)."""
    return tuple(snapshot for run in runs(storage, join) for snapshot in run.snapshots)


def is_stored(storage: Storage, join: str, last: int) -> bool:
    """Whether the snapshot of this identifier is stored, and so all before it; -1: none is there. Raises StorageError. O(snapshots)."""
    return last < 0 or any(snapshot.id >= last for snapshot in list_snapshots(storage, join))


def files(storage: Storage, join: str, *, up_to: int | None = None) -> tuple[SnapshotFile, ...]:
    """Where the rows are of all snapshots, or of those with an identifier of at most ``up_to``: then files may have rows of later ones,
    which ``_snapshot`` tells. Raises StorageError. O(snapshots)."""
    found = (file for run in runs(storage, join) for file in run.files)
    return tuple(file for file in found if up_to is None or file.snapshot_low <= up_to)


def content(storage: Storage, file: SnapshotFile) -> bytes:
    """A file's. Raises StorageError, also where it has not the bytes that were written. O(bytes)."""
    return checks.read(storage, file.path, lost_with(file))


def lost_with(file: SnapshotFile) -> str:
    """What is lost without a file."""
    return f"{file.rows} results of the snapshots {file.snapshot_low} to {file.snapshot_high}"


def runs(storage: Storage, join: str) -> tuple[Run, ...]:
    """A join's, ascending, none within another. Raises StorageError. O(snapshots)."""
    for attempt in range(1, ATTEMPTS + 1):
        ranges = outermost(map(range_of, storage.list(f"{folder(join)}/{INDEX}")))
        try:
            with ThreadPoolExecutor(READS) as pool:
                return tuple(pool.map(lambda ends: read_run(storage, index_path(join, *ends)), ranges))
        except Missing:  # it became part of a wider one, or was let go, since they were listed
            if attempt == ATTEMPTS:
                raise
    raise AssertionError("the last attempt returns or raises")


def read_run(storage: Storage, path: str) -> Run:
    """The run that an index describes. Raises StorageError, also where it cannot be read."""
    data = storage.get(path)
    try:
        return Run.decode(data)
    except ValueError as error:
        raise StorageError(
            f"{storage.url}/{path}: this index of snapshots cannot be read ({error}); restore it from a copy: without it, the results"
            " of its snapshots are not found"
        ) from error


def range_of(path: str) -> tuple[int, int]:
    """The identifiers of the range that an index or a file is of, by its path."""
    low, high = path.rsplit("/", 1)[1].removesuffix(".json").split("-")[:2]
    return int(low), int(high)


def outermost(ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """The ranges that lie within no other, ascending. O(n log n)."""
    found: list[tuple[int, int]] = []
    for low, high in sorted(ranges, key=lambda ends: (ends[0], -ends[1])):
        if not found or low > found[-1][1]:
            found.append((low, high))
    return found


def bound_of(key: pa.Scalar, *, upper: bool) -> Any:
    """A key as a file's bound, None where it bounds nothing."""
    try:
        value = key.as_py()
    except (ValueError, OverflowError):  # a time that Python has none for
        return None
    if isinstance(value, float) and math.isnan(value):
        return None
    if isinstance(value, str | bytes) and len(value) > BOUND_CHARACTERS:
        return None if upper else value[:BOUND_CHARACTERS]
    return value


def _written(bound: Any) -> Any:
    """A bound as JSON has it."""
    if bound is None or isinstance(bound, bool | int | str):
        return bound
    for kind, (type_, write, _) in _KINDS.items():
        if isinstance(bound, type_):
            return {kind: write(bound)}
    raise TypeError(f"a key of type {type(bound).__name__}")


def _read(written: Any) -> Any:
    if not isinstance(written, Mapping):
        return written
    ((kind, value),) = written.items()
    return _KINDS[kind][2](value)


_KINDS: dict[str, tuple[type, Callable[[Any], str], Callable[[str], Any]]] = {
    "real": (float, repr, float),
    "decimal": (decimal.Decimal, str, decimal.Decimal),
    "time": (datetime.datetime, datetime.datetime.isoformat, datetime.datetime.fromisoformat),
    "date": (datetime.date, datetime.date.isoformat, datetime.date.fromisoformat),
    "bytes": (bytes, bytes.hex, bytes.fromhex),
}
"""How bounds are written that JSON has no word for. A datetime is a date, too, so it comes first."""
