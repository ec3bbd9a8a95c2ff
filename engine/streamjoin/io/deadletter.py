"""Dead letters: the records that could not be used, kept as JSON lines so that they can be repaired and put in again.

Always holds: they are staged and published as results are, so each one is there exactly once; and, as results do, few of them wait for
more, so that there are few files.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
from pyarrow import ipc

from streamjoin.io.base import Rejected, SourceError, Split, Staged
from streamjoin.io.folder import Entry, folder_at
from streamjoin.io.replays import SAME, origins_of
from streamjoin.io.sinks import FilesSink, FilesSinkConfig, FilesWriter, json_lines
from streamjoin.state.storage import ObjectStorage

SCHEMA = pa.schema(
    [
        ("stream", pa.string()),
        ("split", pa.string()),
        ("position", pa.int64()),
        ("error", pa.string()),
        ("raw", pa.string()),
        ("again", pa.string()),
    ]
)
"""``split`` says as exactly as is known where the record lies, ``position`` its number within the split as it was read. ``again``: how it
is read again (``replays``), or ``same``: as the letter before it in the file; null: it cannot be.
"""


GATHER_SECONDS = 60.0
"""How long few letters wait for more."""
TAG = "_deadLetters"
"""In place of a join, of what is staged; no join has such a name."""


_VALUES = re.compile(r'"[^"]*"|(?<![A-Za-z_])[-+]?\d[\d,.:TZ-]*')


def kind_of(error: str) -> str:
    """The reason without the record's own values, the same for all records that are wrong in one way: no value leaves the dead letters."""
    return _VALUES.sub("...", error)


@dataclass(frozen=True)
class DeadLetters:
    """The directory of dead letters. Made when first needed."""

    path: str
    most_late: float = 0
    """Of each split, so many late tuples go there too."""
    retention_seconds: float | None = None
    """How long a file is kept; None: for ever."""

    def writer(self, name: str, stem: str, stream: str, *, small_bytes: int = 0) -> DeadLetterWriter:
        """A writer for one task's rejected records of one stream; parameters as in a sink."""
        return DeadLetterWriter(self._sink().writer(name, stem, small_bytes=small_bytes), stream)

    def gather(self, small: Sequence[Staged], name: str, stem: str) -> list[Staged]:
        """As :meth:`streamjoin.io.base.Sink.gather`."""
        return [replace(staged, join=TAG) for staged in self._sink().gather(small, f"{name}-dead", stem)]

    def publish(self, staged: Sequence[Staged], *, again: bool = False) -> None:
        """As :meth:`streamjoin.io.base.Sink.publish`."""
        self._sink().publish(staged, again=again)
        if staged and self.retention_seconds is not None:
            with contextlib.suppress(OSError, SourceError):  # the next ones try again
                self.expire(time.time())

    def expire(self, now: float) -> list[str]:
        """Removes files that were written too long ago, by this clock; their names. O(files)."""
        assert self.retention_seconds is not None
        folder = folder_at(self.path)
        listed = [(entry.name, folder.status(entry).modified_ns / 1e9) for entry in folder.scan(is_deep=False) if is_letters(entry)]
        old = sorted(name for name, written in listed if now - written > self.retention_seconds)
        ObjectStorage(self.path).delete_many(old)
        return old

    def sweep(self, may_remove: Callable[[str], bool]) -> int:
        """As :meth:`streamjoin.io.base.Sink.sweep`."""
        return self._sink().sweep(may_remove)

    def _sink(self) -> FilesSink:
        return FilesSink(FilesSinkConfig(self.path, "json", compression="none"), SCHEMA)


def is_letters(entry: Entry) -> bool:
    """Whether a file in the directory of dead letters has some."""
    return entry.name[0] not in "._" and entry.name.endswith(".json") and entry.is_file()


def _bytes_of(small: Staged) -> int:
    with ipc.open_stream(small.data) as batches:
        return sum(len(json_lines(batch)) for batch in batches)


class DeadLetterWriter:
    """Stages rejected records. Makes no file where there are none."""

    def __init__(self, writer: FilesWriter, stream: str) -> None:
        self._writer = writer
        self._stream = stream

    def write(self, split: Split, rejected: Sequence[Rejected]) -> None:
        """O(rejected)."""
        if not rejected:
            return
        origins = list(origins_of(rejected, split))
        before = [None, *(origin for origin, _, _ in origins)]
        columns = [
            [self._stream] * len(rejected),
            [record.place or name for record, (_, _, name) in zip(rejected, origins, strict=True)],
            [position for _, position, _ in origins],
            [record.error for record in rejected],
            [record.raw for record in rejected],
            [SAME if origin and origin == last else origin for (origin, _, _), last in zip(origins, before, strict=False)],
        ]
        arrays = [pa.array(values, item.type) for values, item in zip(columns, SCHEMA, strict=True)]
        self._writer.write(pa.record_batch(arrays, schema=SCHEMA))

    def close(self) -> list[Staged]:
        """See :class:`streamjoin.io.base.Writer`; small ones have the bytes that they will have in a file."""
        return [replace(staged, join=TAG, nbytes=staged.nbytes or _bytes_of(staged)) for staged in self._writer.close()]

    def abort(self) -> None:
        self._writer.abort()
