"""Text files as lines: where records begin and end, and how many there are, the same for planning and for reading.

Always holds: a record is a line that is not blank, and whoever counts records counts by :func:`count_records`. In JSON
a line of white space is blank, in CSV only an empty one is.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from streamjoin.io.base import SourceError
from streamjoin.io.folder import Opened
from streamjoin.io.identity import EDGE_BYTES, Known, Status, short_hash

BLOCK_BYTES = 4 << 20
"""How much of a file is in memory at a time, unless one line is longer."""
NEWLINE = 10
CARRIAGE_RETURN = 13
SPACE = 32
"""No character that may make up a blank line is greater."""
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
JSON_SPACE = b" \t\r"
CSV_SPACE = b"\r"
Text: TypeAlias = bytes | memoryview
"""Bytes of a text; a memory view is one of single bytes."""


def count_records(block: Text, space: bytes) -> int:
    """How many lines are not blank; the last one need not end in a newline. O(bytes), fastest where none is blank."""
    if not len(block):
        return 0
    data = np.frombuffer(block, dtype=np.uint8)
    newlines = np.flatnonzero(data == NEWLINE)
    ended = bool(data[-1] == NEWLINE)
    starts = newlines[: len(newlines) - ended] + 1
    # Only a line that begins with white space, or with its end, may be blank.
    if data[0] <= SPACE or (data[starts] <= SPACE).any():
        return len(record_lines(block, space)[0])
    return len(newlines) + (not ended)


def record_lines(block: Text, space: bytes) -> tuple[np.ndarray, np.ndarray]:
    """Where each line that is not blank begins and ends (its newline excluded), as int64 offsets. O(bytes)."""
    _, starts, ends = line_bounds(np.frombuffer(block, dtype=np.uint8), space)
    return starts, ends


def line_bounds(data: np.ndarray, space: bytes) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The bounds of each line that is not blank: its number among all lines, where it begins and where it ends, as int64. O(bytes)."""
    ends = np.flatnonzero(data == NEWLINE)
    if len(data) and data[-1] != NEWLINE:
        ends = np.append(ends, len(data))
    if not len(ends):
        return ends, ends, ends
    starts = np.empty_like(ends)
    starts[0] = 0
    starts[1:] = ends[:-1] + 1
    ink = data != NEWLINE
    for byte in space:
        ink &= data != byte
    written = np.flatnonzero(np.add.reduceat(ink, starts, dtype=np.int64))
    return written, starts[written], ends[written]


def read_range(file: Opened, start: int, end: int) -> Iterator[tuple[int, bytes]]:
    """The bytes from ``start`` to ``end`` in blocks that end after a newline (the last one where the range ends).

    Yields each block's offset in the file, too. Raises SourceError where the file is gone or shorter than ``end``.
    """
    try:
        offset, left = start, end - start
        carry: list[bytes] = []
        while left:
            data = file.pread(min(BLOCK_BYTES, left), end - left)
            if not data:
                raise SourceError(f"{file.path}: ends {left} bytes before byte {end}, to which it was to be read; files may only grow")
            left -= len(data)
            cut = data.rfind(b"\n") + 1 if left else len(data)
            if not cut:
                carry.append(data)
                continue
            block = b"".join([*carry, data[:cut]])
            yield offset, block
            offset, carry = offset + len(block), [data[cut:]]
    except FileNotFoundError:
        raise gone(file.path) from None


def first_line(file: Opened, limit: int) -> bytes:
    """The bytes up to the first newline, at most ``limit``. O(length of the line)."""
    line, step = b"", 1 << 16
    while len(line) < limit and (data := file.pread(min(step, limit - len(line)), len(line))):
        line += data
        if b"\n" in data:
            break
        step *= 4
    return line.partition(b"\n")[0]


def content_hash(file: Opened, consumed: int) -> str:
    """The hash of the beginning and the end of the first ``consumed`` bytes. O(1)."""
    if consumed <= 2 * EDGE_BYTES:
        return short_hash(file.pread(consumed, 0))
    return short_hash(file.pread(EDGE_BYTES, 0), file.pread(EDGE_BYTES, consumed - EDGE_BYTES))


def is_still(file: Opened, known: Known) -> bool:
    """Whether the file has what was read of it. O(1)."""
    return file.status().size >= known.size and content_hash(file, known.size) == known.content


def gone(path: str) -> SourceError:
    return SourceError(f"{path}: the file vanished after it was chosen for reading; keep files until they have been read")


@dataclass(frozen=True)
class Piece:
    """A range of bytes that begins after a newline and ends after one, or where the file does."""

    start: int
    end: int
    records: int


class LineFile:
    """An open text file, for planning. Offsets are bytes."""

    def __init__(self, file: Opened, space: bytes, header: bool) -> None:
        """``header``: the first line is not a record. Closes the file when left."""
        self._file = file
        self._space = space
        self._header = header

    def __enter__(self) -> LineFile:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def status(self) -> Status:
        return self._file.status()

    def content(self, consumed: int) -> str:
        """The hash of so many bytes' beginning and end. O(1)."""
        return content_hash(self._file, consumed)

    def last_line_end(self, start: int, end: int) -> int:
        """The end of the last complete line within the range; ``start`` where there is none. O(length of the rest)."""
        high, step = end, 1 << 16
        while high > start:
            low = max(start, high - step)
            found = self._file.pread(high - low, low).rfind(b"\n")
            if found >= 0:
                return low + found + 1
            high, step = low, min(step * 4, BLOCK_BYTES)
        return start

    def next_line_start(self, at: int, end: int) -> int:
        """The first start of a line at or after ``at``, or ``end``. O(length of a line)."""
        if at <= 0:
            return 0
        # A newline just before `at` means that a line starts there.
        low, step = at - 1, 1 << 16
        while low < end:
            data = self._file.pread(min(step, end - low), low)
            found = data.find(b"\n")
            if found >= 0:
                return low + found + 1
            if not data:
                break
            low, step = low + len(data), min(step * 4, BLOCK_BYTES)
        return end

    def sample(self, start: int, size: int) -> tuple[int, int]:
        """Bytes and records at ``start``, to guess how long records are."""
        data = self._file.pread(size, start)
        whole = data[: data.rfind(b"\n") + 1] or data
        return len(whole), self._count(start, whole)

    def cut_by_bytes(self, start: int, end: int, piece_bytes: int) -> Iterator[tuple[int, int]]:
        """The range in pieces of about ``piece_bytes``."""
        while start < end:
            after = self.next_line_start(start + piece_bytes, end) if end - start > piece_bytes else end
            yield start, after
            start = after

    def cut_by_count(self, start: int, end: int, limit: int, piece_records: int, piece_bytes: int) -> Iterator[Piece]:
        """Pieces of at most ``piece_records`` records, ``limit`` in all, counted exactly. O(bytes)."""
        piece_start, piece_count, at = start, 0, start
        while at < end and limit > 0:
            block = self._file.pread(min(BLOCK_BYTES, end - at), at)
            if not block:
                break
            if at + len(block) < end:
                # Lines longer than a block are taken whole.
                cut = block.rfind(b"\n") + 1
                if not cut:
                    line_end = self.next_line_start(at + len(block) + 1, end)
                    block += self._file.pread(line_end - at - len(block), at + len(block))
                else:
                    block = block[:cut]
            count = self._count(at, block)
            room = min(limit, piece_records - piece_count)
            if count > room:
                _, ends = record_lines(block, self._space)
                ends = ends[len(ends) - count :]
                block, count = block[: int(ends[room - 1]) + 1], room
            at += len(block)
            piece_count += count
            limit -= count
            if piece_count >= piece_records or at - piece_start >= piece_bytes:
                yield Piece(piece_start, at, piece_count)
                piece_start, piece_count = at, 0
        if at > piece_start:
            yield Piece(piece_start, at, piece_count)

    def _count(self, offset: int, block: bytes) -> int:
        return count_records(records_from(offset, block, self._header)[1], self._space)


def records_from(offset: int, block: bytes, header: bool) -> tuple[int, bytes]:
    """A block without what precedes the first record of a file: the byte order mark and the header's line."""
    if offset == 0:
        skipped = len(BYTE_ORDER_MARK) if block.startswith(BYTE_ORDER_MARK) else 0
        if header:
            newline = block.find(b"\n")
            skipped = newline + 1 if newline >= 0 else len(block)
        if skipped:
            return skipped, block[skipped:]
    return offset, block
