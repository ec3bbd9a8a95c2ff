"""A source of files that appear, and grow, in a directory or an object store's folder: Parquet, JSON lines or CSV.

A plan takes files in the order of (modification time, name), from where the position says that each has been read to:
Parquet by row groups once the footer is there, text by complete lines while the file still grows. Splits are ranges
of files; large files are cut, small ones gathered, so that tasks share the work evenly.

Always holds: what a position has counted as consumed is never read again. A file that has become smaller than that, or
a Parquet file whose size has changed, was replaced: the plan warns, and the file is not looked at any more.

Known limits: the directory is listed whole by every plan; with more than ``RECHECKED`` files, those that have been
read and did not change lately are looked at in turns, so that growth of an old file is noticed some plans later.
"""

from __future__ import annotations

import contextlib
import csv
import fnmatch
import json
import math
import re
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from streamjoin.io.base import (
    Position,
    Records,
    Rejected,
    Snapshots,
    SourceError,
    SourcePlan,
    Split,
)
from streamjoin.io.folder import REQUESTS_AT_ONCE, Folder, Opened, folder_at
from streamjoin.io.lines import (
    BYTE_ORDER_MARK,
    CSV_SPACE,
    JSON_SPACE,
    LineFile,
    Piece,
    count_records,
    first_line,
    gone,
    read_range,
    records_from,
)
from streamjoin.io.seen import Entry, SeenFiles, SeenStore, referenced
from streamjoin.io.text import CsvFormat, JsonFormat, TextFormat, parse_block, raw_text, shifted
from streamjoin.io.values import from_arrow, plain, readable, sql_name
from streamjoin.state.storage import StorageError

SPLIT_RECORDS = 1_000_000
SPLIT_BYTES = 64 << 20
LEAST_SPLIT_RECORDS = 100_000
SPLIT_FILES = 128
SPLITS_PER_PLAN = 8
"""A plan makes at least so many splits where each has LEAST_SPLIT_RECORDS still."""
RECHECKED = 10_000
"""How many files that were read whole one plan looks at again."""
HOT_SECONDS = 60.0
"""A file that changed so recently is looked at by every plan."""
GUESSED_RECORD_BYTES = 100.0
SAMPLED_FILES = 3
SAMPLE_BYTES = 64 << 10
READ_ROWS = 1 << 16
"""Rows of a Parquet file that are decoded at once, and to which the records of small files are gathered."""
HEADER_BYTES = 1 << 20
KEPT_FOOTERS = 1024


@dataclass(frozen=True)
class FilesSourceConfig:
    """A files source as the manifest describes it."""

    path: str
    """A place, as ``location`` writes it; directories below it are not read."""
    format: str
    """parquet, json or csv."""
    max_files_per_epoch: int = 1000
    pattern: str = "*"
    header: bool = True
    delimiter: str = ","
    settle_seconds: float = 5.0

    @property
    def space(self) -> bytes:
        return JSON_SPACE if self.format == "json" else CSV_SPACE

    @property
    def has_header(self) -> bool:
        return self.format == "csv" and self.header


@dataclass(frozen=True)
class FileRange:
    """Part of a file: row groups of Parquet, bytes of text."""

    name: str
    start: int
    end: int
    records: int
    size: int = 0
    """The whole file's, when it was planned."""


@dataclass(frozen=True, kw_only=True)
class FilesSplit(Split):
    """Some ranges of files, in the order of the stream."""

    ranges: tuple[FileRange, ...]

    @property
    def name(self) -> str:
        first = self.ranges[0]
        text = f"{printable(first.name)} {first.start}-{first.end}"
        return text if len(self.ranges) == 1 else f"{text} and {len(self.ranges) - 1} more"


@dataclass(frozen=True)
class Listed:
    """A file of the directory that may have something new."""

    modified_ns: int
    name: str
    size: int
    entry: Entry


class FilesSource:
    """Plans ranges of files.

    The position is ``{"base": [[snapshot, entries], ...], "files": {name: entry}, "records": n, "density": x}``, with
    the stream's records until there, and the bytes per record seen last.
    """

    def __init__(self, config: FilesSourceConfig, schema: pa.Schema, snapshots: Snapshots, exact_counts: bool, *, stream: str = "") -> None:
        """``exact_counts``: records of text files are counted while planning. Raises SourceError for a wrong format.

        ``stream``: keeps this source's snapshots apart from another's that reads the same directory.
        """
        if config.format not in ("parquet", "json", "csv"):
            raise SourceError(f"files.format: {config.format!r} is not known; use parquet, json or csv")
        self.config = config
        self._reader = FilesReader(config, schema, exact_counts or config.format == "parquet")
        self._store = SeenStore(snapshots, stream)
        self._footers = _Footers(self._reader.folder)
        self._matches = _matcher(config.pattern)
        self._turn = 0
        self._quiet_plans = 0
        self._hot: dict[str, float] = {}
        self._waiting: dict[str, Listed] = {}

    @property
    def reader(self) -> FilesReader:
        return self._reader

    def referenced(self, position: Position | None) -> frozenset[str]:
        return referenced(position)

    def plan(self, position: Position | None, limit_records: int, now: float, final: bool = False) -> SourcePlan:
        """See :class:`streamjoin.io.base.Source`.

        O(files in the directory) to list them, O(files taken) to look into them; exact counts read what is taken.
        """
        seen = self._store.load(position)
        first = int(position["records"]) if position else 0
        listing = self._list(seen, now, final)
        density = float(position["density"]) if position else 0.0
        work = _Work(self._reader, self._footers, now, final, density)
        work.take(sorted(listing.candidates, key=lambda file: (file.modified_ns, file.name)), limit_records)
        self._waiting = {file.name: file for file in work.waiting}
        hot = {name: since for name, since in self._hot.items() if now - since < HOT_SECONDS}
        hot |= dict.fromkeys(work.growing[:RECHECKED], now)
        self._hot = hot
        splits = tuple(work.splits(first))
        records = sum(split.records for split in splits)
        self._quiet_plans = 0 if listing.candidates else self._quiet_plans + 1
        everywhere = listing.turns == 1 or self._quiet_plans >= listing.turns
        after = self._store.save(seen, listing.changed | work.changed, listing.names)
        after |= {"records": first + records, "density": round(work.density, 1)}
        return SourcePlan(
            splits=splits,
            position=after,
            records=records,
            backlog_records=math.ceil(work.left_records),
            exhausted=everywhere and not work.unfinished and not work.left_records,
            end_record=first + records,
            warnings=tuple(sorted(listing.warnings + work.warnings)),
        )

    def _list(self, seen: SeenFiles, now: float, final: bool) -> _Listing:
        """The directory's files, and which of them may have something new."""
        known = len(seen.settled) + len(seen.delta) + len(self._waiting)
        turns = 1 if final else max(1, -(-known // RECHECKED))
        turn = self._turn = (self._turn + 1) % turns
        listing = _Listing(turns)
        hot = self._hot
        settled, delta = seen.settled, seen.delta
        parquet = self.config.format == "parquet"
        for entry in self._reader.folder.scan():
            name = entry.name
            if name[0] in "._" or not self._matches(name):
                continue
            listing.names.append(name)
            consumed: Entry = delta[name] if name in delta else settled.get(name, 0)
            if consumed is None:
                continue
            if turns > 1 and hash(name) % turns != turn and name not in hot:
                if consumed and type(consumed) is int:
                    continue
                waiting = self._waiting.get(name)
                if waiting is not None and waiting.entry == consumed:
                    listing.candidates.append(waiting)
                    continue
            try:
                if not entry.is_file():
                    continue
                status = entry.stat()
            except FileNotFoundError:
                continue
            listing.add(Listed(status.st_mtime_ns, name, status.st_size, consumed), parquet)
        return listing


@dataclass
class _Listing:
    """What listing the directory found."""

    turns: int
    """In so many plans every file is looked at."""
    names: list[str] = field(default_factory=list)
    candidates: list[Listed] = field(default_factory=list)
    changed: dict[str, Entry] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)

    def add(self, file: Listed, parquet: bool) -> None:
        consumed = file.entry
        if isinstance(consumed, list):
            replaced, fresh = file.size != consumed[0], True
        elif parquet:
            replaced, fresh = consumed not in (0, file.size), consumed == 0
        else:
            assert consumed is not None
            replaced, fresh = file.size < consumed, file.size > consumed
        if replaced:
            self.changed[file.name] = None
            before = f"{consumed} bytes of it had been read" if not parquet else "it had been read with another size"
            self.warnings.append(
                f"{file.name}: has {file.size} bytes now, but {before}; it was replaced or cut, and is not read any "
                "more. Give new data a new file name"
            )
        elif fresh and file.size:
            self.candidates.append(file)


@dataclass(frozen=True)
class _Footer:
    """The end of a Parquet file."""

    size: int
    """The file's."""
    metadata: Any
    schema: pa.Schema


class _Footers:
    """Reads footers: of local files one by one, of objects some at once, to be found again by the next plans."""

    def __init__(self, folder: Folder) -> None:
        self._folder = folder
        self._kept: OrderedDict[tuple[str, int, int], _Footer] = OrderedDict()

    def ahead(self, files: Sequence[Listed], index: int) -> None:
        """Fetches what will be taken from ``files[index]`` on, if that one is not here yet."""
        if self._folder.grows or _listed(files[index]) in self._kept:
            return
        missing = [file for file in files[index : index + REQUESTS_AT_ONCE] if _listed(file) not in self._kept]
        with ThreadPoolExecutor(len(missing)) as pool:
            for file, footer in zip(missing, pool.map(self._tried, missing), strict=True):
                if footer is not None:
                    self._kept[_listed(file)] = footer
        while len(self._kept) > KEPT_FOOTERS:
            self._kept.popitem(last=False)

    def take(self, file: Listed) -> _Footer:
        """Raises OSError and pyarrow's exceptions."""
        return self._kept.get(_listed(file)) or self._read(file)

    def _tried(self, file: Listed) -> _Footer | None:
        try:
            return self._read(file)
        except (pa.ArrowException, OSError):
            return None  # it may be mended until it is taken; what is wrong is told then

    def _read(self, file: Listed) -> _Footer:
        with self._folder.parquet(file.name, file.size, planning=True) as opened:
            size: int = opened.size()
            footer = pq.ParquetFile(opened)
            return _Footer(size, footer.metadata, footer.schema_arrow)


def _listed(file: Listed) -> tuple[str, int, int]:
    """What tells an object from one that replaces it."""
    return file.name, file.size, file.modified_ns


class _Work:
    """Gathers what one plan takes."""

    def __init__(self, reader: FilesReader, footers: _Footers, now: float, final: bool, density: float) -> None:
        self._footers = footers
        self._config = reader.config
        self._reader = reader
        self._folder = reader.folder
        self._exact = reader.exact
        self._now = now
        self._final = final
        self._pieces: list[tuple[FileRange, int]] = []
        self._piece_records = LEAST_SPLIT_RECORDS
        self._room = 0
        self._opened_bytes = self._opened_rows = 0
        self.density = density or GUESSED_RECORD_BYTES
        """Bytes per record."""
        self._samples = SAMPLED_FILES if reader.folder.grows or not density else 1  # each costs a request of a store
        self.changed: dict[str, Entry] = {}
        self.left_records = 0.0
        """An estimate of what is complete but not taken."""
        self.unfinished = False
        """Something is still being written."""
        self.growing: list[str] = []
        """Files with more to come, now or soon."""
        self.waiting: list[Listed] = []
        """Files that were not looked into."""
        self.warnings: list[str] = []

    def take(self, files: Sequence[Listed], limit_records: int) -> None:
        """Takes from files in this order, up to the limits. O(files taken), and O(bytes) where records are counted."""
        if self._config.format != "parquet":
            self._sample(files[: self._samples])
        self._room = limit_records
        waiting = sum(self._unread(file) for file in files) / self.density
        wanted = math.ceil(min(waiting, limit_records) / SPLITS_PER_PLAN)
        self._piece_records = max(LEAST_SPLIT_RECORDS, min(wanted, SPLIT_RECORDS))
        taken = 0
        for index, file in enumerate(files):
            if self._room <= 0 or taken == self._config.max_files_per_epoch:
                self.left_records += self._unread(file) / self.density
                self.waiting.append(file)
                continue
            try:
                if self._config.format == "parquet":
                    self._footers.ahead(files, index)
                    entry = self._take_parquet(file)
                else:
                    entry = self._take_text(file)
            except FileNotFoundError:
                continue
            except PermissionError as error:
                raise SourceError(f"{self._folder.path(file.name)}: {error.strerror}; grant the engine's user access to it") from None
            if entry != file.entry:
                self.changed[file.name] = entry
                taken += 1
                if file.entry:
                    self.growing.append(file.name)

    def splits(self, first_record: int) -> Iterator[FilesSplit]:
        """What was taken, gathered into splits of some size."""
        ranges: list[FileRange] = []
        records = size = 0
        for piece, piece_bytes in self._pieces:
            if ranges and (records + piece.records > self._piece_records or size + piece_bytes > SPLIT_BYTES or len(ranges) == SPLIT_FILES):
                yield FilesSplit(first_record=first_record, records=records, ranges=tuple(ranges))
                first_record += records
                ranges, records, size = [], 0, 0
            if ranges and ranges[-1].name == piece.name and ranges[-1].end == piece.start:
                last = ranges[-1]
                ranges[-1] = replace(last, end=piece.end, records=last.records + piece.records)
            else:
                ranges.append(piece)
            records += piece.records
            size += piece_bytes
        if ranges:
            yield FilesSplit(first_record=first_record, records=records, ranges=tuple(ranges))

    def _is_settled(self, modified_ns: int) -> bool:
        return self._final or not self._folder.grows or self._now - modified_ns / 1e9 >= self._config.settle_seconds

    @staticmethod
    def _unread(file: Listed) -> int:
        """Bytes, as if a Parquet file's row groups had one size."""
        return file.size if isinstance(file.entry, list) else file.size - (file.entry or 0)

    def _sample(self, files: Sequence[Listed]) -> None:
        total_bytes = total_records = 0
        for file in files:
            try:
                with self._open(file) as lines:
                    sampled_bytes, sampled_records = lines.sample(_consumed(file), SAMPLE_BYTES)
            except StorageError:
                raise
            except OSError:
                continue
            total_bytes += sampled_bytes
            total_records += sampled_records
        if total_records:
            self.density = total_bytes / total_records

    def _open(self, file: Listed) -> LineFile:
        opened = self._folder.open(file.name, file.size, file.modified_ns)
        return LineFile(opened, self._config.space, self._config.has_header)

    def _take_text(self, file: Listed) -> Entry:
        start = _consumed(file)
        with self._open(file) as lines:
            size, modified_ns = lines.status()
            end = lines.last_line_end(start, size) if self._folder.grows else size
            if end < size:
                if self._is_settled(modified_ns):
                    end = size
                else:
                    self.unfinished = True
                    self.growing.append(file.name)
            at = start
            for piece in self._cut(lines, start, end):
                at = piece.end
                if piece.records:
                    part = FileRange(file.name, piece.start, piece.end, piece.records, size)
                    self._pieces.append((part, piece.end - piece.start))
                    self._room -= piece.records
        if at < end:
            self.left_records += (end - at) / self.density
            self.growing.append(file.name)
        return at

    def _cut(self, lines: LineFile, start: int, end: int) -> Iterator[Piece]:
        if self._exact:
            yield from lines.cut_by_count(start, end, self._room, self._piece_records, SPLIT_BYTES)
            return
        stop = lines.next_line_start(start + math.ceil(self._room * self.density), end)
        piece_bytes = min(SPLIT_BYTES, math.ceil(self._piece_records * self.density))
        for low, high in lines.cut_by_bytes(start, stop, piece_bytes):
            yield Piece(low, high, max(1, round((high - low) / self.density)))

    def _take_parquet(self, file: Listed) -> Entry:
        try:
            footer = self._footers.take(file)
        except (FileNotFoundError, PermissionError, StorageError):
            raise
        except (pa.ArrowException, OSError) as error:
            if self._is_settled(file.modified_ns):
                reason = str(error).partition("\n")[0][:200]
                self.warnings.append(
                    f"{file.name}: is not a complete Parquet file ({reason}); it is left out until it is. Finish writing it, or remove it"
                )
            else:
                self.unfinished = True
            return file.entry
        size, metadata = footer.size, footer.metadata
        self._reader.columns(file.name, footer.schema)
        self._opened_bytes += size
        self._opened_rows += metadata.num_rows
        if self._opened_rows:
            self.density = self._opened_bytes / self._opened_rows
        group = file.entry[1] if isinstance(file.entry, list) else 0
        while group < metadata.num_row_groups and self._room > 0:
            row_group = metadata.row_group(group)
            if row_group.num_rows:
                part = FileRange(file.name, group, group + 1, row_group.num_rows, size)
                self._pieces.append((part, row_group.total_byte_size))
                self._room -= row_group.num_rows
            group += 1
        if group == metadata.num_row_groups:
            return size
        self.left_records += sum(metadata.row_group(index).num_rows for index in range(group, metadata.num_row_groups))
        return [size, group]


def printable(name: str) -> str:
    """A file's name as text: file systems allow bytes that are not UTF-8, which Python keeps as surrogates."""
    return name.encode(errors="backslashreplace").decode()


def _consumed(file: Listed) -> int:
    return file.entry if isinstance(file.entry, int) else 0


def _matcher(pattern: str) -> Callable[[str], object]:
    return bool if pattern == "*" else re.compile(fnmatch.translate(pattern)).match


@dataclass(frozen=True)
class FilesReader:
    """Reads splits of files."""

    config: FilesSourceConfig
    schema: pa.Schema
    exact: bool
    """Whether the planned counts are exact, so that other ones mean a changed file."""

    @cached_property
    def folder(self) -> Folder:
        """Where the files are."""
        return folder_at(self.config.path)

    def read(self, split: FilesSplit) -> Iterator[Records]:
        """See :class:`streamjoin.io.base.Reader`. O(bytes); holds one block of a file and the batch it gathers."""
        gathered: list[Records] = []
        rows = 0
        for records in self._records(split):
            count = records.batch.num_rows
            if gathered and rows + count > READ_ROWS:
                yield _together(gathered)
                gathered, rows = [], 0
            gathered.append(records)
            rows += count
        if gathered:
            yield _together(gathered)

    def _records(self, split: FilesSplit) -> Iterator[Records]:
        parquet = self.config.format == "parquet"
        read = self._parquet if parquet else self._text
        formats: dict[bytes, TextFormat] = {}
        before = 0
        parts = [(part.name, 0, part.size) if parquet else (part.name, part.start, part.end) for part in split.ranges]
        for part, folder in zip(split.ranges, self.folder.ahead(parts), strict=True):
            counted = 0
            for count, found in read(folder, part, formats):
                for records in found:
                    yield shifted(records, before + counted)
                counted += count
            if self.exact and counted != part.records:
                raise SourceError(
                    f"{self.folder.path(part.name)}: had {part.records} records from {part.start} to {part.end} when it was "
                    f"planned, and {counted} now; files may only grow"
                )
            before += counted

    def _text(self, folder: Folder, part: FileRange, formats: dict[bytes, TextFormat]) -> Iterator[tuple[int, list[Records]]]:
        try:
            file = folder.open(part.name)
        except FileNotFoundError:
            raise gone(folder.path(part.name)) from None
        with contextlib.closing(file):
            text = self._format(file, formats)
            for block_start, raw in read_range(file, part.start, part.end):
                skipped, block = records_from(block_start, raw, self.config.has_header)
                offset = block_start + skipped
                found = parse_block(text, block, self.schema, printable(part.name), offset)
                yield count_records(block, text.space), found

    def _format(self, file: Opened, formats: dict[bytes, TextFormat]) -> TextFormat:
        """How the file is written, which for CSV its first line says."""
        line = b""
        if self.config.has_header:
            try:
                line = first_line(file, HEADER_BYTES).removeprefix(BYTE_ORDER_MARK).rstrip(b"\r\n")
            except FileNotFoundError:
                raise gone(file.path) from None
        if line not in formats:
            if self.config.format == "json":
                formats[line] = JsonFormat(self.schema)
            else:
                header = None
                if self.config.has_header:
                    header = next(csv.reader([line.decode(errors="replace")], delimiter=self.config.delimiter), [])
                formats[line] = CsvFormat(self.schema, self.config.delimiter, header, file.path)
        return formats[line]

    def _parquet(self, folder: Folder, part: FileRange, formats: dict[bytes, TextFormat]) -> Iterator[tuple[int, list[Records]]]:
        path = folder.path(part.name)
        try:
            opened = folder.parquet(part.name, part.size, planning=False)
            with opened, pq.ParquetFile(opened, coerce_int96_timestamp_unit="us", pre_buffer=not folder.grows) as file:
                columns = self.columns(part.name, file.schema_arrow)
                last = file.metadata.num_row_groups
                groups = range(min(part.start, last), min(part.end, last))
                row = sum(file.metadata.row_group(group).num_rows for group in range(groups.start))
                for batch in file.iter_batches(READ_ROWS, row_groups=groups, columns=columns, use_threads=False):
                    yield batch.num_rows, [self._conform(batch, columns, f"{printable(part.name)} row", row)]
                    row += batch.num_rows
        except FileNotFoundError:
            raise gone(path) from None
        except StorageError:
            raise
        except (pa.ArrowException, OSError) as error:
            raise SourceError(f"{path}: cannot be read as Parquet ({str(error)[:300]}); remove or repair the file") from None

    def _conform(self, batch: pa.RecordBatch, names: Sequence[str], place: str, row: int) -> Records:
        problems: dict[int, str] = {}
        columns = [from_arrow(batch.column(name), item.type, item.name, problems) for name, item in zip(names, self.schema, strict=True)]
        typed = pa.record_batch(columns, schema=self.schema)
        if not problems:
            return Records(typed)
        good = np.ones(batch.num_rows, dtype=bool)
        good[list(problems)] = False
        rejected = [
            Rejected(at, raw_text(_row_text(batch, at).encode()), error, f"{place} {row + at}") for at, error in sorted(problems.items())
        ]
        return Records(typed.filter(pa.array(good)), np.flatnonzero(good), rejected)

    def columns(self, name: str, found: pa.Schema) -> list[str]:
        """A file's names for the declared columns. Raises SourceError where it lacks one, or has another type."""
        by_name: dict[str, list[pa.Field]] = {}
        for item in found:
            by_name.setdefault(item.name.casefold(), []).append(item)
        names = []
        for declared in self.schema:
            matches = by_name.get(declared.name.casefold(), [])
            exact = [item for item in matches if item.name == declared.name]
            if len(exact) == 1:
                matches = exact
            place = f"{self.folder.path(name)}: column {declared.name}"
            if not matches:
                raise SourceError(
                    f"{place}: is missing (the schema declares it as {sql_name(declared.type)}); the file has "
                    f"{', '.join(found.names)}. Correct the schema, or keep such files out by files.pattern"
                )
            if len(matches) > 1:
                raise SourceError(f"{place}: is there {len(matches)} times; write it once")
            if not readable(matches[0].type, declared.type):
                raise SourceError(
                    f"{place}: is {matches[0].type}, which cannot be read as {sql_name(declared.type)}; declare the "
                    "column with a type that holds it, or keep such files out by files.pattern"
                )
            names.append(matches[0].name)
        return names


def _row_text(batch: pa.RecordBatch, at: int) -> str:
    values = {name: plain(column[at]) for name, column in zip(batch.schema.names, batch.columns, strict=True)}
    return json.dumps(values, ensure_ascii=False, default=str)


def _together(gathered: list[Records]) -> Records:
    """Consecutive records as one batch."""
    if len(gathered) == 1:
        return gathered[0]
    batch = pa.concat_batches([records.batch for records in gathered])
    rejected = [item for records in gathered for item in records.rejected]
    first, total = gathered[0].first, 0
    for records in gathered:
        if records.positions is not None or records.first != first + total:
            return Records(batch, np.concatenate([records.offsets() for records in gathered]), rejected)
        total += records.batch.num_rows
    return Records(batch, None, rejected, first)
