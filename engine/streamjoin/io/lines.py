"""Text files as records: where they begin and end, and how many there are, the same for planning and for reading.

Always holds: a record is a line that is not blank, and whoever counts records counts by :func:`count_records`. In JSON
a line of white space is blank, in CSV only an empty one is. In CSV, a line goes on after a newline that is in quotes. Whoever looks for
records begins where one begins: no other place tells whether it is in quotes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from streamjoin.io.base import SourceError
from streamjoin.io.folder import Opened
from streamjoin.io.identity import EDGE_BYTES, Known, short_hash

BLOCK_BYTES = 4 << 20
"""How much of a file is in memory at a time, unless one line is longer."""
NEWLINE = 10
CARRIAGE_RETURN = 13
SPACE = 32
"""No character that may make up a blank line is greater."""
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
JSON_SPACE = b" \t\r"
CSV_SPACE = b"\r"
QUOTED_BYTES = 1 << 20
"""A value in quotes ends within so many bytes of its record's start, or else the record is only its first line."""
HEADER_BYTES = 1 << 20
Text: TypeAlias = bytes | memoryview
"""Bytes of a text; a memory view is one of single bytes."""


@dataclass(frozen=True)
class Scanned:
    """What the beginning of a block has."""

    end: int
    """Where the last record ends that ends in it."""
    ends: np.ndarray | None
    """The newlines that end lines, as offsets; None: each does."""
    is_open: bool
    """Whether the block ends in quotes."""
    has_bad: bool
    """Whether a value is not closed, or has a carriage return without quotes."""


@dataclass(frozen=True)
class Framing:
    """How a text is cut into records."""

    space: bytes
    """The characters that alone make no record."""
    delimiter: str = ""
    """Of CSV; empty: a newline ends a record wherever it is."""
    has_header: bool = False
    """Whether the first line is not a record."""

    def scan(self, block: Text, *, is_last: bool = False, start: int = 0) -> Scanned:
        """Finds the lines from ``start`` on, where one begins. ``is_last``: the text ends there. O(bytes), least without quotes."""
        if not self.delimiter or b'"' not in bytes(block):
            end = len(block) if is_last else bytes(block).rfind(b"\n") + 1
            return Scanned(end, None, is_open=False, has_bad=False)
        from streamjoin.native.csv_records import find_ends  # loads Numba

        data = np.frombuffer(block, dtype=np.uint8)
        ends, found = np.empty(np.count_nonzero(data == NEWLINE), dtype=np.int64), np.zeros(3, dtype=np.int64)
        find_ends(data, start, ord(self.delimiter), QUOTED_BYTES, int(is_last), ends, found)
        ends = ends[: found[0]]
        end = len(block) if is_last else int(ends[-1]) + 1 if len(ends) else 0
        return Scanned(end, ends, bool(found[2]), bool(found[1]))


def count_records(block: Text, space: bytes, ends: np.ndarray | None = None) -> int:
    """How many lines are not blank; the last one need not end in a newline. O(bytes), fastest where none is blank.

    ``ends``: the newlines that end lines, if not all do.
    """
    if not len(block):
        return 0
    data = np.frombuffer(block, dtype=np.uint8)
    newlines = np.flatnonzero(data == NEWLINE) if ends is None else ends
    ended = bool(len(newlines) and newlines[-1] == len(data) - 1)
    starts = newlines[: len(newlines) - ended] + 1
    # Only a line that begins with white space, or with its end, may be blank.
    if data[0] <= SPACE or (data[starts] <= SPACE).any():
        return len(record_lines(block, space, ends)[0])
    return len(newlines) + (not ended)


def record_lines(block: Text, space: bytes, ends: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Where each line that is not blank begins and ends (its newline excluded), as int64 offsets. O(bytes)."""
    _, starts, ends = line_bounds(np.frombuffer(block, dtype=np.uint8), space, ends)
    return starts, ends


def line_bounds(data: np.ndarray, space: bytes, ends: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The bounds of each line that is not blank: its number among all lines, where it begins and where it ends, as int64. O(bytes)."""
    ends = np.flatnonzero(data == NEWLINE) if ends is None else ends
    if len(data) and not (len(ends) and ends[-1] == len(data) - 1):
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


@dataclass(frozen=True)
class Block:
    """Some whole records of a file."""

    offset: int
    """Where in the file it begins."""
    text: bytes
    ends: np.ndarray | None
    """The newlines that end lines; None: each does."""
    has_bad: bool
    """As ``Scanned`` has it."""

    def count(self, space: bytes) -> int:
        """See :func:`count_records`."""
        return count_records(self.text, space, self.ends)

    def without(self, count: int) -> Block:
        """Without its first bytes, which end a line."""
        ends = self.ends if self.ends is None else self.ends[np.searchsorted(self.ends, count) :] - count
        return Block(self.offset + count, self.text[count:], ends, self.has_bad)


def records_of(offset: int, text: bytes, scanned: Scanned, framing: Framing) -> Block:
    """The records of a text that has been scanned, without what precedes the first of a file: the byte order mark and the header."""
    block = Block(offset, text[: scanned.end], scanned.ends, scanned.has_bad)
    if offset == 0:
        skipped = _mark(text)
        if framing.has_header:
            newline = text.find(b"\n") if scanned.ends is None else int(scanned.ends[0]) if len(scanned.ends) else -1
            skipped = newline + 1 if newline >= 0 else scanned.end
        return block.without(skipped) if skipped else block
    return block


def _mark(text: bytes) -> int:
    """The length of the byte order mark at the beginning of a file."""
    return len(BYTE_ORDER_MARK) if text.startswith(BYTE_ORDER_MARK) else 0


def read_range(file: Opened, start: int, end: int | None, framing: Framing) -> Iterator[Block]:
    """The records from ``start``, where one begins, to ``end``. The last one ends there, whatever it has.

    ``end``: None is the file's; what stands before damage without a newline is left out.

    Raises SourceError where the file is gone or shorter.
    """
    try:
        offset, at, text = start, start, b""
        while at != end:
            # Of a record that is longer than a block, always as much again.
            count = max(BLOCK_BYTES, len(text))
            data = file.pread(count if end is None else min(count, end - at), at)
            if not data and end is not None:
                raise SourceError(f"{file.path}: ends {end - at} bytes before byte {end}, to which it was to be read; files may only grow")
            if file.damage:
                return
            at += len(data)
            text = text + data if text else data
            scanned = framing.scan(text, is_last=at == end or not data, start=0 if offset else _mark(text))
            if scanned.end:
                yield records_of(offset, text, scanned, framing)
                offset, text = offset + scanned.end, text[scanned.end :]
            if not data:
                return
    except FileNotFoundError:
        raise gone(file.path) from None


def first_line(file: Opened, framing: Framing) -> bytes:
    """The file's first line without byte order mark and newline, at most ``HEADER_BYTES``. O(length of the line)."""
    text, step, more = b"", 1 << 16, b"-"
    while more and len(text) < HEADER_BYTES:
        more = file.pread(min(step, HEADER_BYTES - len(text)), len(text))
        text += more
        scanned = framing.scan(text, is_last=not more, start=_mark(text))
        if scanned.end:
            newline = text.find(b"\n") if scanned.ends is None or not len(scanned.ends) else int(scanned.ends[0])
            return text[_mark(text) : newline if newline >= 0 else len(text)]
        step *= 4
    return text[_mark(text) :].partition(b"\n")[0]


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
    """A range of bytes that begins where a record begins and ends where one ends, or where the file does."""

    start: int
    end: int
    records: int


@dataclass(frozen=True)
class Cut:
    """What was taken of a file."""

    pieces: list[Piece]
    is_whole: bool = True
    """Whether nothing comes after these but ``rest``."""
    rest: int = 0
    """How many bytes after these are to be read only when there are more."""
    is_open: bool = False
    """Whether they end in quotes."""


class LineFile:
    """An open text file, for planning. Offsets are bytes."""

    def __init__(self, file: Opened, framing: Framing) -> None:
        """Closes the file when left."""
        self._file = file
        self._framing = framing

    def __enter__(self) -> LineFile:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def last_line_end(self, start: int, end: int) -> int:
        """The end of the last complete line within the range; ``start`` where there is none. O(length of the rest). Not for quotes."""
        high, step = end, 1 << 16
        while high > start:
            low = max(start, high - step)
            found = self._file.pread(high - low, low).rfind(b"\n")
            if found >= 0:
                return low + found + 1
            high, step = low, min(step * 4, BLOCK_BYTES)
        return start

    def next_line_start(self, at: int, end: int) -> int:
        """The first start of a line at or after ``at``, or ``end``. O(length of a line). Not for quotes."""
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
        scanned = self._framing.scan(data)
        if not scanned.end:
            scanned = self._framing.scan(data, is_last=True)
        return scanned.end, records_of(start, data, scanned, self._framing).count(self._framing.space)

    def cut_by_bytes(self, start: int, end: int, piece_bytes: int) -> Iterator[tuple[int, int]]:
        """The range in pieces of about ``piece_bytes``. Looks only where it cuts; not for quotes."""
        while start < end:
            after = self.next_line_start(start + piece_bytes, end) if end - start > piece_bytes else end
            yield start, after
            start = after

    def cut(
        self,
        start: int,
        size: int,
        limit: int,
        piece_records: int,
        piece_bytes: int,
        takes_rest: Callable[[bool], bool],
        density: float | None = None,
    ) -> Cut:
        """Pieces of at most ``piece_records`` records from ``start``, where one begins, ``limit`` in all. O(bytes taken).

        ``takes_rest``: whether to take what does not end in a newline, or, if it is asked with True, within quotes. ``density``: the bytes
        of a record, by which records are guessed where there are no quotes; None: all are counted.
        """
        pieces: list[Piece] = []
        at = piece_start = start
        count, text, is_last = 0, b"", False
        while limit > 0 and at < size:
            if not is_last:
                more = self._file.pread(min(max(BLOCK_BYTES, len(text)), size - at - len(text)), at + len(text))
                text += more
                is_last = not more or at + len(text) >= size
            scanned = self._framing.scan(text, start=0 if at else _mark(text))
            if is_last and scanned.end < len(text) and takes_rest(scanned.is_open):
                scanned = self._framing.scan(text, is_last=True, start=0 if at else _mark(text))
            if not scanned.end:
                if is_last:
                    break
                continue
            room = min(limit, piece_records - count)
            block = records_of(at, text, scanned, self._framing)
            guessed = None if scanned.ends is not None else density
            found = block.count(self._framing.space) if guessed is None else math.ceil(len(block.text) / guessed)
            taken = scanned.end
            if found > room:
                taken, found = block.offset - at + self._length(block, room, guessed), room
            at, text = at + taken, text[taken:]
            count += found
            limit -= found
            if count >= piece_records or at - piece_start >= piece_bytes:
                pieces.append(Piece(piece_start, at, count))
                piece_start, count = at, 0
        if at > piece_start:
            pieces.append(Piece(piece_start, at, count))
        if limit <= 0 and at < size:
            return Cut(pieces, is_whole=False)
        return Cut(pieces, True, len(text), self._framing.scan(text).is_open)

    def _length(self, block: Block, records: int, density: float | None) -> int:
        """Of the first so many records of a block that has more."""
        if density is None:
            return int(record_lines(block.text, self._framing.space, block.ends)[1][records - 1]) + 1
        return block.text.find(b"\n", math.ceil(records * density) - 1) + 1 or len(block.text)
