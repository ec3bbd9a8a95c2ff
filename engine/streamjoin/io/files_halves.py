"""Divides splits of files, down to single records of text and to single row groups of Parquet."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from streamjoin.io.base import RAW_LIMIT_BYTES
from streamjoin.io.lines import LineFile, records_from
from streamjoin.io.text import raw_text

if TYPE_CHECKING:
    from streamjoin.io.files_reader import FileRange, FilesReader, FilesSplit

WHOLE = 1 << 62
HEADER_BYTES = 1 << 20


def halves(reader: FilesReader, split: FilesSplit) -> tuple[FilesSplit, ...]:
    """See :class:`streamjoin.io.base.Divisible`. O(bytes of the split)."""
    ranges = split.ranges
    if len(ranges) > 1:
        middle = len(ranges) // 2
        return _splits(split, [ranges[:middle], ranges[middle:]])
    cut = _row_groups(ranges[0]) if reader.config.format == "parquet" else _lines(reader, ranges[0])
    return _splits(split, [(part,) for part in cut]) if len(cut) > 1 else ()


def raw(reader: FilesReader, split: FilesSplit) -> str:
    """See :class:`streamjoin.io.base.Divisible`; nothing of Parquet."""
    (part,) = split.ranges
    if reader.config.format == "parquet":
        return ""
    with contextlib.closing(reader.opened(part)) as file:
        data = file.pread(min(part.end - part.start, HEADER_BYTES + RAW_LIMIT_BYTES), part.start)
    _, record = records_from(part.start, data, reader.config.has_header)
    return raw_text(record[: RAW_LIMIT_BYTES + 1].strip(b"\r\n"))


def _splits(split: FilesSplit, cut: Sequence[tuple[FileRange, ...]]) -> tuple[FilesSplit, ...]:
    counts = [sum(part.records for part in ranges) for ranges in cut]
    firsts = itertools.accumulate(counts, initial=split.first_record)
    return tuple(
        replace(split, first_record=first, records=count, ranges=ranges) for first, count, ranges in zip(firsts, counts, cut, strict=False)
    )


def _row_groups(part: FileRange) -> list[FileRange]:
    """Records in equal shares, as only the file knows better."""
    middle = (part.start + part.end) // 2
    if middle == part.start:
        return [part]
    first = part.records * (middle - part.start) // (part.end - part.start)
    return [replace(part, end=middle, records=first), replace(part, start=middle, records=part.records - first)]


def _lines(reader: FilesReader, part: FileRange) -> list[FileRange]:
    with LineFile(reader.opened(part), reader.config.space, reader.config.has_header) as file:
        counted = list(file.cut_by_count(part.start, part.end, WHOLE, WHOLE, WHOLE))
        records = sum(piece.records for piece in counted)
        if records < 2:
            return [replace(part, records=records)]
        pieces = list(_taken(file, part, records))
    return [replace(part, start=start, end=end, records=count) for start, end, count in pieces]


def _taken(file: LineFile, part: FileRange, records: int) -> Iterator[tuple[int, int, int]]:
    half = records // 2
    (first,) = file.cut_by_count(part.start, part.end, half, half, WHOLE)
    yield first.start, first.end, first.records
    yield first.end, part.end, records - half
