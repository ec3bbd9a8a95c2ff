"""Reads splits of a files source: ranges of row groups of Parquet, or of bytes of text.

Always holds: a file that does not have as many records as were planned, where those were counted, is an error.
"""

from __future__ import annotations

import bisect
import contextlib
import csv
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar, Self
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from streamjoin.io import files_halves
from streamjoin.io.base import BadFile, Records, Rejected, Replaced, SourceError, Split, UnavailableError, no_records
from streamjoin.io.decoding import UTF_8, DecodedFile, decoded
from streamjoin.io.folder import NULL_FOLDER, Folder, Opened, folder_at
from streamjoin.io.identity import Known, Status
from streamjoin.io.lines import CSV_SPACE, JSON_SPACE, Framing, first_line, gone, is_still, read_range
from streamjoin.io.text import CsvFormat, JsonFormat, TextFormat, parse_block, raw_text
from streamjoin.io.values import from_arrow, from_text, readable, row_text, sql_name
from streamjoin.state.storage import StorageError

READ_ROWS = 1 << 16
"""Rows of a Parquet file that are decoded at once, and to which the records of small files are gathered."""
READ_BYTES = 64 << 20
"""About so many bytes of a Parquet file are decoded at once, and gathered, where that is fewer rows: Arrow's strings end at 2 GiB."""


@dataclass(frozen=True)
class FilesSourceConfig:
    """A files source as the manifest describes it."""

    path: str
    """A place, as ``location`` writes it."""
    format: str
    """parquet, json or csv."""
    max_files_per_epoch: int = 1000
    pattern: str = "*"
    header: bool = True
    delimiter: str = ","
    settle_seconds: float = 5.0
    """Infinite: a line is read when it ends in a newline, and not at the end of the input either."""
    encoding: str = UTF_8
    """Of text, as Python's codec names itself."""
    on_replaced: str = "read"
    """read: a file that was replaced is read from its beginning. refuse: it is not looked at any more."""
    fills: bool = True
    """Whether a declared column that a Parquet file lacks is null, if it has others; or else it is a bad file."""
    is_deep: bool = True
    """Whether directories below are read, too; the columns that their names give (``column=value``) are then those of the file."""

    @property
    def framing(self) -> Framing:
        """Of text."""
        return Framing(JSON_SPACE) if self.format == "json" else Framing(CSV_SPACE, self.delimiter, self.header)


@dataclass(frozen=True)
class FileRange:
    """Part of a file: row groups of Parquet, bytes of text."""

    name: str
    start: int
    end: int
    records: int
    size: int = 0
    """The whole file's, when it was planned."""
    known: Known | None = None
    """What the plan takes the file to; None: whether it is still the same is not looked at."""
    tag: str = ""
    """The entity tag of an object whose text may have to be decoded."""
    stamp: str = ""
    """The file's, of one that is not written to any more (``Status.stamp``); empty: ``known`` tells it, or nothing does."""
    is_decoded: bool = False
    """Whether start and end are bytes of the text that the file is decoded to."""
    bad: str = ""
    """Why there is nothing to read, which is one record: the file's dead letter."""
    partition: Mapping[str, str | None] = field(default_factory=dict)
    """Of a table's file, values of columns that it need not have, as text; null is None."""


@dataclass(frozen=True, kw_only=True)
class FilesSplit(Split):
    """Some ranges of files, in the order of the stream."""

    ranges: tuple[FileRange, ...]

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Self:
        return cls(**{**values, "ranges": tuple(map(_range_of, values["ranges"]))})

    @property
    def name(self) -> str:
        first = self.ranges[0]
        text = f"{printable(first.name)} {first.start}-{first.end}"
        return text if len(self.ranges) == 1 else f"{text} and {len(self.ranges) - 1} more"


def _range_of(values: dict[str, Any]) -> FileRange:
    return FileRange(**{**values, "known": None if values["known"] is None else Known(**values["known"])})


def printable(name: str) -> str:
    """A file's name as text: file systems allow bytes that are not UTF-8, which Python keeps as surrogates."""
    return name.encode(errors="backslashreplace").decode()


@dataclass(frozen=True)
class FilesReader:
    """Reads splits of files."""

    config: FilesSourceConfig
    schema: pa.Schema
    reads_anew: ClassVar[bool] = True
    """Whether a file of which nothing was read can be read as a new one."""
    exact: bool
    """Whether the planned counts are exact, so that other ones mean a changed file."""

    @cached_property
    def folder(self) -> Folder:
        """Where the files are."""
        return folder_at(self.config.path)

    def read(self, split: FilesSplit) -> Iterator[Records]:
        """See :class:`streamjoin.io.base.Reader`. O(bytes); holds one block of a file and the batch it gathers."""
        gathered: list[Records] = []
        rows = nbytes = 0
        for records in self._records(split):
            count, size = records.batch.num_rows, records.batch.nbytes
            if gathered and (rows + count > READ_ROWS or nbytes + size > READ_BYTES):
                yield _together(gathered)
                gathered, rows, nbytes = [], 0, 0
            gathered.append(records)
            rows += count
            nbytes += size
        if gathered:
            yield _together(gathered)

    def _records(self, split: FilesSplit) -> Iterator[Records]:
        parquet = self.config.format == "parquet"
        read = self._parquet if parquet else self._text
        formats: dict[Any, TextFormat] = {}
        before = 0
        parts = [(part.name, 0, part.size) if parquet or part.is_decoded else (part.name, part.start, part.end) for part in split.ranges]
        for part, folder in zip(split.ranges, self.folder.ahead(parts), strict=True):
            if part.bad:
                yield self._bad(part, before, part.bad, is_whole=not part.start)
                before += 1
                continue
            counted = 0
            try:
                for count, found in read(folder, part, formats):
                    for records in found:
                        yield records.moved(before + counted)
                    counted += count
            except BadFile as error:
                is_whole = not (parquet or counted or part.start) and part.end == part.size
                yield self._bad(part, before + counted, str(error), is_whole=is_whole)
                counted = max(part.records, counted + 1) if self.exact else counted + 1
            if self.exact and counted != part.records:
                raise SourceError(
                    f"{self.folder.path(part.name)}: had {part.records} records from {part.start} to {part.end} when it was "
                    f"planned, and {counted} now; files may only grow"
                )
            before += counted

    def _bad(self, part: FileRange, position: int, error: str, *, is_whole: bool = False) -> Records:
        """The dead letter of a file; ``is_whole``: nothing of it is read."""
        again = part.name if is_whole and self.reads_anew else None
        letter = Rejected(position, "", f"the file cannot be read: {error}", printable(part.name), again=again)
        return Records(no_records(self.schema), rejected=[letter], first=position)

    def _text(self, folder: Folder, part: FileRange, formats: dict[Any, TextFormat]) -> Iterator[tuple[int, list[Records]]]:
        framing, counted = self.config.framing, 0
        given = self.given(part.name)
        schema = _without(self.schema, given)
        with contextlib.closing(self._as_text(self._opened(folder, part), part, folder)) as file:
            is_planned = part.is_decoded or not isinstance(file, DecodedFile)
            for block in read_range(file, part.start, part.end if is_planned else None, framing):
                count = block.count(framing.space)
                # Where there are no records, there need be no header either: what writes it may have stopped before.
                text = self._format(file, schema, formats) if count else None
                place, is_checked = printable(part.name), not block.has_bad
                found = [] if text is None else parse_block(text, block.text, schema, place, block.offset, count, is_checked=is_checked)
                yield count, [replace(records, batch=self._completed(records.batch, given)) for records in found] if given else found
                counted += count
            if isinstance(file, DecodedFile) and not is_planned and file.damage:
                error = f"{file.damage}; {counted} records before that are read. Write the file anew under another name"
                yield 1, [self._bad(part, 0, error)]

    def _as_text(self, file: Opened, part: FileRange, folder: Folder) -> Opened:
        """Decoded where the plan knows that the file has to be, or where the plan has not looked into an object."""
        if not part.is_decoded and (folder.grows or part.start or part.end != part.size):
            return file
        try:
            text = decoded(file, self.config.encoding)
        except FileNotFoundError:
            raise gone(file.path) from None
        if part.is_decoded and text is None:
            raise Replaced(f"{file.path}: was replaced after it was chosen for reading; it is planned again")
        return text or file

    def _opened(self, folder: Folder, part: FileRange) -> Opened:
        """The file that was planned, also under a new name. Raises UnavailableError where another one has its name."""
        names = itertools.chain([part.name], self._renamed(part.known))
        is_there = False
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                file = folder.open(name, Status(part.size, tag=part.tag))
                if part.known is None or is_still(file, part.known):
                    return file
                file.close()
                is_there = True
        if not is_there:
            raise gone(folder.path(part.name))
        raise Replaced(f"{folder.path(part.name)}: was replaced or cut after it was chosen for reading; it is planned again")

    def _renamed(self, known: Known | None) -> Iterator[str]:
        """The names of a file's inode."""
        if known is not None and known.inode:
            yield from [entry.name for entry in self.folder.scan(is_deep=self.config.is_deep) if entry.inode() == known.inode]

    def _format(self, file: Opened, schema: pa.Schema, formats: dict[Any, TextFormat]) -> TextFormat:
        """How the file is written, which for CSV its first line says. ``schema``: of the columns that are in it."""
        line, framing = b"", self.config.framing
        if framing.has_header:
            try:
                line = first_line(file, framing).rstrip(b"\r\n")
            except FileNotFoundError:
                raise gone(file.path) from None
        key = (line, *schema.names)
        if key not in formats:
            if self.config.format == "json":
                formats[key] = JsonFormat(schema)
            else:
                header = None
                if framing.has_header:
                    header = _names_in(line.decode(errors="replace"), framing.delimiter)
                formats[key] = CsvFormat(schema, self.config.delimiter, header)
        return formats[key]

    def given(self, name: str) -> dict[str, pa.Scalar]:
        """The values of declared columns that the names of a file's directories give. Raises BadFile for one of another type."""
        values: dict[str, pa.Scalar] = {}
        for column, text in self.directories(name).items():
            kind, problems = self.schema.field(column).type, dict[int, str]()
            value = from_text(pa.array([text], pa.string()), kind, column, problems)
            if problems:
                remedy = "declare the column with a type that holds it, or rename the directory"
                raise BadFile(f"its directory's name is no value: {problems[0]}; {remedy}")
            values[column] = value[0]
        return values

    def check_header(self, name: str, file: Opened, formats: dict[Any, TextFormat]) -> None:
        """Raises BadFile where a file of CSV does not name the declared columns. ``formats``: of headers that were looked at before."""
        if self.config.framing.has_header:
            self._format(file, _without(self.schema, self.given(name)), formats)

    def directories(self, name: str) -> dict[str, str | None]:
        """Declared columns and their values as text, as Hive writes them into the names of directories."""
        path, _, _ = name.rpartition("/")
        if "=" not in path or not self.config.is_deep:
            return {}
        declared = {name.casefold(): name for name in self.schema.names}
        pairs = [directory.partition("=")[::2] for directory in path.split("/") if "=" in directory]
        known = [(declared.get(unquote(key).casefold()), value) for key, value in pairs]
        return {column: None if value == NULL_FOLDER else unquote(value) for column, value in known if column is not None}

    def _completed(self, batch: pa.RecordBatch, given: Mapping[str, pa.Scalar]) -> pa.RecordBatch:
        columns = [pa.repeat(given[item.name], batch.num_rows) if item.name in given else batch.column(item.name) for item in self.schema]
        return pa.record_batch(columns, schema=self.schema)

    def _parquet(self, folder: Folder, part: FileRange, formats: dict[Any, TextFormat]) -> Iterator[tuple[int, list[Records]]]:
        path = folder.path(part.name)
        try:
            opened = folder.parquet(part.name, part.size, planning=False)
            with opened, pq.ParquetFile(opened, coerce_int96_timestamp_unit="us", pre_buffer=not folder.grows, **_CHECKED) as file:
                columns = self.columns(part.name, file.schema_arrow)
                last = file.metadata.num_row_groups
                groups = range(min(part.start, last), min(part.end, last))
                starts = list(itertools.accumulate((file.metadata.row_group(group).num_rows for group in range(groups.stop)), initial=0))
                row, end = starts[groups.start], starts[groups.stop]
                try:
                    for batch in self._batches(file, columns, groups):
                        yield batch.num_rows, [self._conform(batch, columns, part, row)]
                        row += batch.num_rows
                except _DAMAGE as error:
                    raise_if_not_of(path, error)
                # Of a group that is damaged, what is in other groups is read all the same.
                while row < end:
                    group = bisect.bisect_right(starts, row) - 1
                    done = row - starts[group]
                    reason = "there are fewer than the footer says"
                    try:
                        for batch in self._batches(file, columns, range(group, group + 1)):
                            rest = batch.slice(min(done, batch.num_rows))
                            done -= batch.num_rows - rest.num_rows
                            if rest.num_rows:
                                yield rest.num_rows, [self._conform(rest, columns, part, row)]
                                row += rest.num_rows
                    except _DAMAGE as error:
                        raise_if_not_of(path, error)
                        reason = short(error)
                    if left := starts[group + 1] - row:
                        yield left, [self._bad(part, 0, f"rows {row} to {row + left - 1} are damaged ({reason}); write the file anew")]
                        row += left
        except _DAMAGE as error:
            raise_if_not_of(path, error)
            raise BadFile(f"it is damaged ({short(error)}); write it anew") from None

    def _batches(self, file: pq.ParquetFile, columns: Sequence[str | None], groups: range) -> Iterator[pa.RecordBatch]:
        taken = [file.metadata.row_group(group) for group in groups]
        row_bytes = max((group.total_byte_size // max(1, group.num_rows) for group in taken), default=0)
        rows = max(1, min(READ_ROWS, READ_BYTES // (row_bytes + 1)))
        there = [column for column in columns if column is not None]
        yield from file.iter_batches(rows, row_groups=groups, columns=there, use_threads=False)

    def _conform(self, batch: pa.RecordBatch, names: Sequence[str | None], part: FileRange, row: int) -> Records:
        problems: dict[int, str] = {}
        place = f"{printable(part.name)} row"
        columns = [
            self.filled(part, item, batch.num_rows) if name is None else from_arrow(batch.column(name), item.type, item.name, problems)
            for name, item in zip(names, self.schema, strict=True)
        ]
        typed = pa.record_batch(columns, schema=self.schema)
        if not problems:
            return Records(typed)
        good = np.ones(batch.num_rows, dtype=bool)
        good[list(problems)] = False
        rejected = [
            Rejected(at, raw_text(row_text(batch, at).encode()), error, f"{place} {row + at}") for at, error in sorted(problems.items())
        ]
        return Records(typed.filter(pa.array(good)), np.flatnonzero(good), rejected)

    def halves(self, split: FilesSplit) -> tuple[FilesSplit, ...]:
        """See :class:`streamjoin.io.base.Divisible`."""
        return files_halves.halves(self, split)

    def raw(self, split: FilesSplit) -> str:
        """See :class:`streamjoin.io.base.Divisible`."""
        return files_halves.raw(self, split)

    def text(self, name: str, status: Status) -> Opened:
        """A file of text, decoded if need be, as whoever plans reads it. Raises FileNotFoundError."""
        opened = self.folder.open(name, status)
        try:
            return decoded(opened, self.config.encoding) or opened
        except BaseException:
            opened.close()
            raise

    def require_same(self, split: FilesSplit) -> None:
        """Of a split that was planned long ago. O(files listed). Raises Replaced where a file is another one now."""
        stamps = {part.name: part.stamp for part in split.ranges if part.stamp}
        if stamps:
            found = (entry for entry in self.folder.scan(is_deep=self.config.is_deep) if entry.name in stamps)
            if {entry.name: self.folder.status(entry).stamp for entry in found} != stamps:
                raise Replaced(f"{self.folder.path(min(stamps))}: is gone, or another file has its name")

    def opened(self, part: FileRange) -> Opened:
        """The file that a range is of, as text. Raises SourceError, UnavailableError."""
        return self._as_text(self._opened(self.folder, part), part, self.folder)

    def filled(self, part: FileRange, column: pa.Field, rows: int) -> pa.Array:
        """The values of a declared column that is not read from the file (:meth:`columns` gave None for it)."""
        given = self.given(part.name)
        return pa.repeat(given[column.name], rows) if column.name in given else pa.nulls(rows, column.type)

    def columns(self, name: str, found: pa.Schema) -> list[str | None]:
        """A file's names for the declared columns; None: it has none. Raises BadFile where it lacks all, or has another type."""
        by_name: dict[str, list[pa.Field]] = {}
        for item in found:
            by_name.setdefault(item.name.casefold(), []).append(item)
        names: list[str | None] = []
        given = self.directories(name)
        for declared in self.schema:
            if declared.name in given:
                names.append(None)
                continue
            matches = by_name.get(declared.name.casefold(), [])
            exact = [item for item in matches if item.name == declared.name]
            if len(exact) == 1:
                matches = exact
            if not matches:
                names.append(None)
                continue
            place = f"column {declared.name}"
            if len(matches) > 1:
                raise BadFile(f"{place}: is there {len(matches)} times; write it once")
            if not readable(matches[0].type, declared.type):
                remedy = "declare the column with a type that holds it"
                if pa.types.is_timestamp(declared.type) and pa.types.is_integer(matches[0].type):
                    event_time = f"eventTime: {{column: {declared.name}, unit: ms}} (or s, us, ns)"
                    remedy = f"if it counts since 1970, declare it as BIGINT, and {event_time}"
                raise BadFile(
                    f"{place}: is {matches[0].type}, which cannot be read as {sql_name(declared.type)}; {remedy}, or keep such files out by"
                    " files.pattern"
                )
            names.append(matches[0].name)
        lacking = self.lacking(name, names)
        if lacking and (len(lacking) == len(self.schema) or not self.config.fills):
            raise BadFile(
                f"column {', '.join(lacking)}: is missing; the file has {', '.join(found.names)}. Correct the schema, or keep such files "
                "out by files.pattern"
            )
        return names

    def lacking(self, name: str, columns: Sequence[str | None]) -> list[str]:
        """The declared columns that neither a file nor the names of its directories have."""
        given = self.directories(name)
        return [item.name for item, column in zip(self.schema, columns, strict=True) if column is None and item.name not in given]


def _without(schema: pa.Schema, given: Mapping[str, pa.Scalar]) -> pa.Schema:
    """The columns that are read from a file itself: one at least, or its records would have nothing."""
    left = [item for item in schema if item.name not in given]
    return pa.schema(left or [schema.field(0)]) if given else schema


def _names_in(header: str, delimiter: str) -> list[str]:
    try:
        return next(csv.reader([header], delimiter=delimiter), [])
    except csv.Error:  # a carriage return without quotes, or a value of more than 128 KiB
        return [header[:200]]


_CHECKED = {"page_checksum_verification": True}
_DAMAGE = (pa.ArrowException, OSError)


def raise_if_not_of(path: str, error: Exception) -> None:
    """Raises an error that says nothing of what is in a file, as an operating system or a store gives it."""
    if isinstance(error, FileNotFoundError):
        raise gone(path) from None
    if isinstance(error, StorageError | MemoryError):
        raise error
    if isinstance(error, OSError) and error.errno is not None:
        raise UnavailableError(f"{path}: cannot be read now ({error.strerror})") from error


def short(error: Exception) -> str:
    """What a library says of an error first."""
    return str(error).partition("\n")[0][:200]


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
