"""What tells a file of a source from one that takes its place: how far it was read, and what it was by then.

Always holds: a file whose status (size, time of change, inode or entity tag) is that of its entry is not looked into. Of another one,
what is in it decides: it is the same file if the bytes that were read begin and end as they did, whoever wrote it anew, as rsync and
editors do.

Known limits: of what was read, at most ``EDGE_BYTES`` at each end are compared. A file that is rewritten with the same size within the same
tick of the file system's clock is not noticed. Text in an object store is told by its entity tag alone, for a look into each object would
cost a request.
"""

from __future__ import annotations

import base64
import hashlib
import zlib
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

Progress: TypeAlias = int | list[int]
"""Text: the bytes consumed. Parquet: the size of a file that has been read whole, or [size, row groups consumed]. Text that is decoded: the
file's size and the bytes of text consumed, [size, bytes], with a 1 once nothing is left."""
Entry: TypeAlias = Progress | str | None
"""How a position writes a file: its progress, what was read and what the file was, as ``Known`` encodes it. A progress alone is of a
release that wrote nothing else, or 0, of a file that has not been read from.

None: the file is not looked at any more, because it was replaced.
"""

EDGE_BYTES = 1024
REFUSED = "!"
"""In place of a content: the file is a dead letter, and what takes its place is a new file."""


class Status(NamedTuple):
    """What a listing, or an open file, says of a file."""

    size: int = 0
    modified_ns: int = 0
    """When it was changed last, since 1970; 0: it is not known."""
    inode: int = 0
    """0: there is none."""
    tag: str = ""
    """An object's entity tag."""

    @property
    def stamp(self) -> str:
        """Changes with the file."""
        told = self.tag or f"{self.modified_ns} {self.inode}"
        return f"{zlib.crc32(f'{self.size} {told}'.encode()):x}"


@dataclass(frozen=True)
class Known:
    """What a position knows of a file."""

    progress: Progress = 0
    content: str = ""
    """The hash of what was read; empty: it is not known."""
    stamp: str = ""
    """The status' when it was read; empty: it is not known."""
    inode: int = 0
    """0: it is not known, or not kept."""

    @property
    def is_partly(self) -> bool:
        """Whether there is more of the file to read, as it is."""
        return isinstance(self.progress, list) and len(self.progress) == 2

    @property
    def consumed(self) -> int:
        """Bytes of text, or of a Parquet file that was read whole."""
        return self.progress[1] if isinstance(self.progress, list) else self.progress

    @property
    def size(self) -> int:
        """The least size of the file, if it is still the same."""
        return self.progress[0] if isinstance(self.progress, list) else self.progress

    def encode(self) -> Entry:
        if not self.stamp or not self.progress:
            return self.progress
        progress = "/".join(map(str, self.progress)) if isinstance(self.progress, list) else str(self.progress)
        inode = f" {self.inode:x}" if self.inode else ""
        return f"{progress} {self.content or '-'} {self.stamp}{inode}"


def decode(entry: Entry) -> Known:
    """The entry of a file that is looked at."""
    assert entry is not None
    if not isinstance(entry, str):
        return Known(entry)
    progress, content, stamp, *inode = entry.split(" ")
    size, *groups = map(int, progress.split("/"))
    return Known([size, *groups] if groups else size, "" if content == "-" else content, stamp, int(inode[0], 16) if inode else 0)


def inode_of(entry: str) -> int:
    """Like ``decode(entry).inode``, for very many."""
    return int(entry.rpartition(" ")[2], 16) if entry.count(" ") == 3 else 0


def is_read(entry: Entry) -> bool:
    """Whether nothing of the file was left when it was looked at last, unless it grows."""
    return bool(entry) and not isinstance(entry, list) and not (isinstance(entry, str) and entry.count("/") == 1)


def short_hash(*parts: bytes) -> str:
    """72 bits."""
    return base64.urlsafe_b64encode(hashlib.blake2b(b"".join(parts), digest_size=9).digest()).decode()
