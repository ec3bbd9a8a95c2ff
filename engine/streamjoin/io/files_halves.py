"""Divides splits of files, down to single records of text and to single row groups of Parquet."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from streamjoin.io.base import RAW_LIMIT_BYTES
from streamjoin.io.decoding import DecodedFile
from streamjoin.io.lines import HEADER_BYTES, LineFile, Piece, records_of
from streamjoin.io.text import raw_text

if TYPE_CHECKING:
    from streamjoin.io.files_reader import FileRange, FilesReader, FilesSplit

WHOLE = 1 << 62


def halves(reader: FilesReader, split: FilesSplit) -> tuple[FilesSplit, ...]:
    """See :class:`streamjoin.io.base.Divisible`. O(bytes of the split)."""
    ranges = split.ranges
    if len(ranges) > 1:
        middle = len(ranges) // 2
        return _splits(split, [ranges[:middle], ranges[middle:]])
    cut = _row_groups(reader, ranges[0]) if reader.config.format == "parquet" else _lines(reader, ranges[0])
    return _splits(split, [(part,) for part in cut]) if len(cut) > 1 else ()


def raw(reader: FilesReader, split: FilesSplit) -> str:
    """See :class:`streamjoin.io.base.Divisible`; nothing of Parquet."""
    (part,) = split.ranges
    if reader.config.format == "parquet":
        return ""
    with contextlib.closing(reader.opened(part)) as file:
        data = file.pread(min(part.end - part.start, HEADER_BYTES + RAW_LIMIT_BYTES), part.start)
    framing = reader.config.framing
    block = records_of(part.start, data, framing.scan(data, is_last=True), framing)
    return raw_text(block.text[: RAW_LIMIT_BYTES + 1].strip(b"\r\n"))


def _splits(split: FilesSplit, cut: Sequence[tuple[FileRange, ...]]) -> tuple[FilesSplit, ...]:
    counts = [sum(part.records for part in ranges) for ranges in cut]
    firsts = itertools.accumulate(counts, initial=split.first_record)
    return tuple(
        replace(split, first_record=first, records=count, ranges=ranges) for first, count, ranges in zip(firsts, counts, cut, strict=False)
    )


def _row_groups(reader: FilesReader, part: FileRange) -> list[FileRange]:
    """Records in equal shares, or as the file's footer has them, if they must be exact."""
    middle = (part.start + part.end) // 2
    if middle == part.start:
        return [part]
    first = part.records * (middle - part.start) // (part.end - part.start)
    if reader.exact:
        # Whoever reads the halves says what is wrong with the file.
        with contextlib.suppress(OSError, pa.ArrowException), reader.folder.parquet(part.name, part.size, planning=True) as opened:
            footer = pq.ParquetFile(opened).metadata
            first = sum(footer.row_group(group).num_rows for group in range(part.start, middle))
    return [replace(part, end=middle, records=first), replace(part, start=middle, records=part.records - first)]


def _lines(reader: FilesReader, part: FileRange) -> list[FileRange]:
    opened = reader.opened(part)
    with LineFile(opened, reader.config.framing) as file:
        if part.bad or (isinstance(opened, DecodedFile) and not part.is_decoded):  # which nobody has cut
            return [part]
        records = sum(piece.records for piece in _cut(file, part, WHOLE))
        if records < 2:
            return [replace(part, records=records)]
        half = records // 2
        middle = _cut(file, part, half)[-1].end
    return [replace(part, end=middle, records=half), replace(part, start=middle, records=records - half)]


def _cut(file: LineFile, part: FileRange, limit: int) -> list[Piece]:
    return file.cut(part.start, part.end, limit, WHOLE, WHOLE, lambda is_open: True).pieces
