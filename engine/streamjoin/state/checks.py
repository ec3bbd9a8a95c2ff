"""Checksums of objects that are written once: in their names, so that whoever names an object, a commit or an index, says its content too.

An object that a disk has changed, or somebody, is an error that names it, rather than wrong results. One whose name has no checksum is not
compared. (Blocks have checksums of their parts in the log: ``state.blocks``. Entries of the log have one at their end.)
"""

from __future__ import annotations

import re
import struct
import zlib

from streamjoin.state.storage import Storage, StorageError

END = struct.Struct("<QI")
"""How an entry of the log ends: the length of the JSON before it, and the CRC-32 of all before that."""
_CHECK = re.compile(r"\.crc([0-9a-f]{8})\.\w+$")


class ChangedError(StorageError):
    """An object has not the bytes that were written."""


def named(stem: str, ending: str, data: bytes | memoryview) -> str:
    """The path of an object with this content. O(bytes), 4 GB/s."""
    return f"{stem}.crc{zlib.crc32(data):08x}.{ending}"


def read(storage: Storage, path: str, lost: str) -> bytes:
    """An object's content. ``lost``: what is in it, for the error. Raises Missing, StorageError, ChangedError. O(bytes)."""
    data = storage.get(path)
    require_unchanged(storage, path, data, lost)
    return data


def require_unchanged(storage: Storage, path: str, data: bytes | memoryview, lost: str) -> None:
    """As :func:`read`, of what was read."""
    written = _CHECK.search(path)
    if written is not None and zlib.crc32(data) != int(written[1], 16):
        raise changed(storage, path, lost)


def is_whole(entry: bytes) -> bool:
    """Whether an entry of the log is as it was written. O(bytes)."""
    return len(entry) >= END.size and zlib.crc32(memoryview(entry)[: -END.size]) == END.unpack(entry[-END.size :])[1]


def changed(storage: Storage, path: str, lost: str) -> ChangedError:
    return ChangedError(
        f"{storage.url}/{path}: damaged: its bytes are not those that were written. It has {lost}, which are lost without it;"
        " restore it from a copy, or start from an empty checkpoint"
    )
