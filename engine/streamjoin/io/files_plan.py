"""Makes one plan of a files source: what it takes of the files that have something new, and how that is cut into splits."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.parquet as pq

from streamjoin.io.arrivals import Arrivals
from streamjoin.io.base import BadFile, SourceError
from streamjoin.io.decoding import ENDINGS, UTF_8, DecodedFile
from streamjoin.io.files_reader import FileRange, FilesReader, FilesSplit, printable, raise_if_not_of, short
from streamjoin.io.folder import REQUESTS_AT_ONCE, Folder, Opened
from streamjoin.io.identity import EDGE_BYTES, REFUSED, Entry, Known, Progress, Status, decode, short_hash
from streamjoin.io.lines import Cut, LineFile, Piece, content_hash
from streamjoin.io.text import TextFormat
from streamjoin.state.storage import StorageError

SPLIT_RECORDS = 1_000_000
SPLIT_BYTES = 64 << 20
LEAST_SPLIT_RECORDS = 100_000
SPLIT_FILES = 128
SPLITS_PER_PLAN = 8
"""A plan makes at least so many splits where each has LEAST_SPLIT_RECORDS still."""
GUESSED_RECORD_BYTES = 100.0
SAMPLED_FILES = 3
SAMPLE_BYTES = 64 << 10
NO_END = 1 << 62
"""The size of a text that is decoded, which nobody knows before its end."""
KEPT_FOOTERS = 1024
MOST_INODES = 10_000
INODE_SECONDS = 86_400.0
"""With more than ``MOST_INODES`` files, inodes are kept of those only that changed so recently when they were read."""


@dataclass(frozen=True)
class Listed:
    """A file of the directory that may have something new."""

    modified_ns: int
    """When it was changed last, since 1970; 0: it is not known."""
    name: str
    size: int
    entry: Entry
    inode: int = 0
    tag: str = ""

    @property
    def status(self) -> Status:
        return Status(self.size, self.modified_ns, self.inode, self.tag)

    @cached_property
    def known(self) -> Known:
        return decode(self.entry)


@dataclass(frozen=True)
class _Footer:
    """The end of a Parquet file."""

    size: int
    """The file's."""
    metadata: Any
    schema: pa.Schema
    content: str
    """The hash of the file's last bytes."""


class Footers:
    """Reads footers: of local files one by one, of objects some at once, to be found again by the next plans."""

    def __init__(self, folder: Folder) -> None:
        self._folder = folder
        self._kept: OrderedDict[tuple[str, Status], _Footer] = OrderedDict()

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
            opened.seek(max(0, size - EDGE_BYTES))
            return _Footer(size, footer.metadata, footer.schema_arrow, short_hash(opened.read()))


def _listed(file: Listed) -> tuple[str, Status]:
    """What tells an object from one that replaces it."""
    return file.name, file.status


Ordering: TypeAlias = Callable[[Sequence[Listed], int], tuple[list[Listed], int]]
"""Of some files, and how many records may be taken: the files in the order in which to take them, and the most records of each."""


class FilesPlan:
    """Gathers what one plan takes."""

    def __init__(self, reader: FilesReader, footers: Footers, now: float, final: bool, density: float, *, many: bool = False) -> None:
        """``many``: so many files are known that not all of their inodes are kept."""
        self._many = many
        self._footers = footers
        self._formats: dict[Any, TextFormat] = {}
        self._config = reader.config
        self._reader = reader
        self._folder = reader.folder
        self._exact = reader.exact
        self._now = now
        self._final = final
        self._pieces: list[tuple[FileRange, int]] = []
        self._stamps: list[tuple[int, int]] = []
        """Nanoseconds since 1970, and how many records were changed last then."""
        self._piece_records = LEAST_SPLIT_RECORDS
        self._room = 0
        self._opened_bytes = self._opened_rows = 0
        self.density = density or GUESSED_RECORD_BYTES
        """Bytes per record."""
        self._samples = SAMPLED_FILES if reader.folder.grows or not density else 1  # each costs a request of a store
        self.changed: dict[str, Entry] = {}
        self.left_records = 0.0
        """An estimate of what is complete but not taken."""
        self.left: list[Listed] = []
        """The files with what is complete but not taken, from there on."""
        self.is_of_several = False
        """Several files had something to read: a single one is in its own order."""
        self.unfinished = False
        """Something is still being written."""
        self.growing: list[str] = []
        """Files with more to come, now or soon."""
        self.waiting: list[Listed] = []
        """Files that were not looked into."""
        self.warnings: list[str] = []
        self.replaced = 0
        """Files that are read anew, because they were replaced."""
        self.renewed: dict[str, Entry] = {}
        """The entries of files that are the same, with nothing new, under another inode."""
        self.finds_others = False
        """Some file is not the one that was read under its name."""
        self.unchanged: dict[str, str] = {}
        """By name, the stamps of files that look as if they had changed, but have not."""

    def take(  # noqa: C901
        self, files: Sequence[Listed], limit_records: int, split_records: int | None = None, *, in_order: Ordering | None = None
    ) -> None:
        """Takes from files in this order, up to the limits. O(files taken), and O(bytes) where records are counted.

        ``in_order``: another order, where several files have more to read than so many records, as far as can be guessed."""
        unread = [nbytes for file in files if (nbytes := self._unread(file))]
        self.is_of_several = len(unread) > 1
        most_of_each = limit_records
        if in_order is not None and self.is_of_several and sum(unread) / self.density > limit_records:
            files, most_of_each = in_order(files, limit_records)
        if self._config.format != "parquet":
            self._sample(files[: self._samples])
        self._room = limit_records
        waiting = sum(unread) / self.density
        wanted = math.ceil(min(waiting, limit_records) / SPLITS_PER_PLAN)
        self._piece_records = min(max(LEAST_SPLIT_RECORDS, min(wanted, SPLIT_RECORDS)), split_records or SPLIT_RECORDS)
        taken = 0
        for index, file in enumerate(files):
            if self._room <= 0 or taken == self._config.max_files_per_epoch:
                self.left_records += self._unread(file) / self.density
                if self._unread(file):
                    self.left.append(file)
                self.unfinished |= not self._unread(file)
                self.waiting.append(file)
                continue
            pieces, left_records, room = len(self._pieces), self.left_records, self._room
            of_file = self._room = min(room, most_of_each)
            try:
                if self._config.format == "parquet":
                    self._footers.ahead(files, index)
                    entry = self._take_parquet(file)
                else:
                    entry = self._take_text(file)
            except FileNotFoundError:
                continue
            except BadFile as error:
                entry = self._refuse(file, str(error))
            except PermissionError as error:
                raise SourceError(f"{self._folder.path(file.name)}: {error.strerror}; grant the engine's user access to it") from None
            finally:
                self._room += room - of_file
            if self.left_records > left_records:
                self.left.append(replace(file, entry=entry))
            if entry != file.entry:
                self.changed[file.name] = entry
                # Without records there may be no commit, and the file is here again in the next plan: others have to have their turn.
                taken += len(self._pieces) > pieces
                if file.entry:
                    self.growing.append(file.name)

    def _refuse(self, file: Listed, reason: str) -> Entry:
        """One dead letter for all that is left of a file, and for what is appended to it. It is looked at again when it changes."""
        known = Known(file.size, REFUSED, file.status.stamp, file.inode)
        if file.known.content == REFUSED and file.inode and file.known.inode == file.inode and file.size >= file.known.size:
            self.renewed[file.name] = entry = known.encode()
            return entry
        self.warnings.append(f"{printable(file.name)}: is a dead letter: {reason}")
        self._add(FileRange(file.name, 0, 0, 1, file.size, bad=reason), 0, file.modified_ns)
        return known.encode()

    @property
    def arrivals(self) -> Arrivals | None:
        """When the records that were taken came: by when their files were changed last."""
        return Arrivals.each((at / 1_000_000_000, records) for at, records in self._stamps if at)

    def splits(self, first_record: int) -> Iterator[FilesSplit]:
        """What was taken, gathered into splits of some size."""
        ranges: list[FileRange] = []
        records = size = 0
        for piece, piece_bytes in self._pieces:
            if ranges and (records + piece.records > self._piece_records or size + piece_bytes > SPLIT_BYTES or len(ranges) == SPLIT_FILES):
                yield FilesSplit(first_record=first_record, records=records, ranges=tuple(ranges))
                first_record += records
                ranges, records, size = [], 0, 0
            if ranges and ranges[-1].name == piece.name and ranges[-1].end == piece.start and not piece.bad:
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
        progress = file.known.progress
        return file.size if isinstance(progress, list) else max(0, file.size - progress)

    def _sample(self, files: Sequence[Listed]) -> None:
        total_bytes = total_records = 0
        for file in files:
            try:
                with LineFile(self._reader.text(file.name, file.status), self._config.framing) as lines:
                    sampled_bytes, sampled_records = lines.sample(file.known.consumed, SAMPLE_BYTES)
            except StorageError:
                raise
            except OSError:
                continue
            total_bytes += sampled_bytes
            total_records += sampled_records
        if total_records:
            self.density = total_bytes / total_records

    def _start(self, file: Listed, status: Status, content: Callable[[], str]) -> Progress | None:
        """Up to where the file, which has this status now, has been read; None: it is not to be read any more.

        ``content``: the hash of what was read, as it is now; None where the file is shorter.
        """
        known = file.known
        if not known.progress or known.stamp == status.stamp:
            return known.progress
        if known.content == REFUSED:
            return 0
        whole = status.size == known.size or (self._config.format != "parquet" and status.size > known.size)
        if whole and (content() == known.content if known.content else not known.stamp):
            self.unchanged[file.name] = status.stamp
            return known.progress
        self.finds_others = True
        refuses = self._config.on_replaced == "refuse"
        what = "it is not read any more, as files.onReplaced is refuse" if refuses else "it is read from its beginning, as a new file"
        self.warnings.append(
            f"{printable(file.name)}: has {status.size} bytes now, and is not what it was when {known.size} bytes of it had been read; it "
            f"was replaced or cut, and {what}. Give new data a new file name, or rename old files rather than cut them"
        )
        if refuses:
            return None
        self.replaced += 1
        return 0

    def _take_text(self, file: Listed) -> Entry:
        self._reader.given(file.name)
        if self._is_taken_blindly(file):
            part = FileRange(file.name, 0, file.size, self._guessed(file.size), file.size, tag=file.tag, stamp=_stamp(file.status))
            self._add(part, file.size, file.modified_ns)
            return Known(file.size, "", file.status.stamp).encode()
        opened = self._reader.text(file.name, file.status)
        with LineFile(opened, self._config.framing) as lines:
            if isinstance(opened, DecodedFile):
                return self._take_decoded(file, opened, lines)
            status = opened.status()
            progress = self._start(file, status, lambda: content_hash(opened, file.known.size))
            if progress is None:
                return None
            start, size = progress[1] if isinstance(progress, list) else progress, status.size
            if not start:
                self._look_at_header(file.name, opened, lines, size)
            is_settled = self._is_settled(status.modified_ns)
            taken = self._cut(lines, start, size, is_settled=is_settled)
            at = taken.pieces[-1].end if taken.pieces else start
            if taken.rest:
                self._leave(file, taken, is_settled=is_settled)
            content = content_hash(opened, at) if self._folder.grows and at > start else ""
        known = Known(at, content, status.stamp, self._inode(status))
        for piece in taken.pieces:
            stamp = "" if self._folder.grows else _stamp(file.status)
            part = FileRange(file.name, piece.start, piece.end, piece.records, size, known if content else None, stamp=stamp)
            self._add(part, piece.end - piece.start, status.modified_ns)
        if at < size - taken.rest:
            self.left_records += (size - taken.rest - at) / self.density
            self.growing.append(file.name)
        if at > start or progress != file.known.progress:
            return known.encode()
        if file.known.inode in (0, known.inode) or not at:
            return file.entry
        self.renewed[file.name] = entry = replace(file.known, stamp=status.stamp, inode=known.inode).encode()
        return entry

    def _look_at_header(self, name: str, file: Opened, lines: LineFile, size: int) -> None:
        """Raises BadFile for CSV whose header lacks declared columns, if there is a record."""
        try:
            self._reader.check_header(name, file, self._formats)
        except BadFile:
            first = lines.cut(0, size, 1, 1, SPLIT_BYTES, lambda is_open: True)
            if any(piece.records for piece in first.pieces):
                raise

    def _is_taken_blindly(self, file: Listed) -> bool:
        """Whether an object is read whole, without a look into it by the plan; the reader finds out whether it is compressed."""
        if self._exact or self._folder.grows or file.entry or file.name.casefold().endswith(ENDINGS) or self._config.encoding != UTF_8:
            return False
        return file.size <= min(SPLIT_BYTES, min(self._room, self._piece_records) * self.density)

    def _add(self, part: FileRange, nbytes: int, modified_ns: int) -> None:
        if part.records:
            self._pieces.append((part, nbytes))
            self._stamps.append((modified_ns, part.records))
            self._room -= part.records

    def _inode(self, status: Status) -> int:
        return status.inode if not self._many or self._now - status.modified_ns / 1e9 < INODE_SECONDS else 0

    def _take_decoded(self, file: Listed, text: DecodedFile, lines: LineFile) -> Entry:
        status = text.status()
        progress = self._start(file, status, lambda: content_hash(text.raw, file.known.size))
        if progress is None:
            return None
        is_settled = self._is_settled(status.modified_ns)
        if text.compression and not is_settled and not math.isinf(self._config.settle_seconds):
            self.unfinished = True
            self.growing.append(file.name)
            return file.entry
        start = progress[1] if isinstance(progress, list) else 0
        if not start:
            self._look_at_header(file.name, text, lines, NO_END)
        taken = self._cut(lines, start, NO_END, is_settled=is_settled, text=text)
        at = taken.pieces[-1].end if taken.pieces else start
        content = content_hash(text.raw, status.size) if self._folder.grows else ""
        is_damaged = taken.is_whole and bool(text.damage)
        is_done = taken.is_whole and (is_settled if is_damaged else not taken.rest)
        known = Known([status.size, at, 1] if is_done else [status.size, at], content, status.stamp, self._inode(status))
        stamp = "" if self._folder.grows else _stamp(file.status)
        part = FileRange(file.name, 0, 0, 0, status.size, known if content else None, status.tag, stamp, is_decoded=True)
        for piece in taken.pieces:
            self._add(replace(part, start=piece.start, end=piece.end, records=piece.records), piece.end - piece.start, status.modified_ns)
        if is_damaged and is_done:
            bad = f"{text.damage}; byte {at} of its text is the last that is read. Write the file anew under another name"
            self.warnings.append(f"{printable(file.name)}: is a dead letter: {bad}")
            self._add(replace(part, start=at, end=at, records=1, bad=bad), 0, status.modified_ns)
        elif not taken.is_whole:
            self.left_records += max(1.0, text.left_bytes / self.density)
            self.growing.append(file.name)
        elif not is_done:
            self._leave(file, taken, is_settled=is_settled)
        if not at and not is_done:
            return file.entry if progress == file.known.progress else 0
        return known.encode()

    def _cut(self, lines: LineFile, start: int, size: int, *, is_settled: bool, text: DecodedFile | None = None) -> Cut:
        waits_for_newline = self._folder.grows and math.isinf(self._config.settle_seconds)

        def takes_rest(is_open: bool) -> bool:
            if text is not None and (text.compression or text.damage):
                return not text.damage
            return not waits_for_newline and is_settled and (self._final or not is_open or not self._folder.grows)

        if not self._exact and not self._config.framing.delimiter and text is None:
            return self._jump(lines, start, size, takes_rest)
        density = None if self._exact else self.density
        return lines.cut(start, size, self._room, self._piece_records, SPLIT_BYTES, takes_rest, density)

    def _jump(self, lines: LineFile, start: int, size: int, takes_rest: Callable[[bool], bool]) -> Cut:
        """Without a look at what lies between the cuts: every newline ends a record."""
        end = lines.last_line_end(start, size) if self._folder.grows else size
        if takes_rest(False):
            end = size
        stop = lines.next_line_start(start + math.ceil(self._room * self.density), end)
        piece_bytes = min(SPLIT_BYTES, math.ceil(self._piece_records * self.density))
        ranges = lines.cut_by_bytes(start, stop, piece_bytes)
        return Cut([Piece(low, high, self._guessed(high - low)) for low, high in ranges], rest=size - end)

    def _guessed(self, nbytes: int) -> int:
        """How many records so many bytes have."""
        return max(1, round(nbytes / self.density))

    def _leave(self, file: Listed, taken: Cut, *, is_settled: bool) -> None:
        """What is still to be written of a file."""
        self.growing.append(file.name)
        if math.isinf(self._config.settle_seconds):
            if self._final:
                ends = "end in a quoted value" if taken.is_open else "do not end in a newline"
                self.warnings.append(f"{printable(file.name)}: its last {taken.rest} bytes {ends}; they are not read")
        elif is_settled:
            self.warnings.append(
                f"{printable(file.name)}: its last {taken.rest} bytes end in a quoted value; they are read when that is closed, or at the"
                " end of the input. Finish writing the file, or close the quote"
            )
        else:
            self.unfinished = True

    def _take_parquet(self, file: Listed) -> Entry:
        try:
            footer = self._footers.take(file)
        except (FileNotFoundError, PermissionError, StorageError):
            raise
        except (pa.ArrowException, OSError) as error:
            raise_if_not_of(self._folder.path(file.name), error)
            if self._is_settled(file.modified_ns):
                raise BadFile(f"it is not a complete Parquet file ({short(error)}); finish writing it, or remove it") from None
            self.unfinished = True
            return file.entry
        start = self._start(file, file.status._replace(size=footer.size), lambda: footer.content)
        if start is None:
            return None
        size, metadata = footer.size, footer.metadata
        columns = self._reader.columns(file.name, footer.schema)
        self._reader.given(file.name)
        if start == 0 and (lacking := self._reader.lacking(file.name, columns)):
            self.warnings.append(f"{printable(file.name)}: has no column {', '.join(lacking)}; it is null in its records")
        self._opened_bytes += size
        self._opened_rows += metadata.num_rows
        if self._opened_rows:
            self.density = self._opened_bytes / self._opened_rows
        if start == size:
            return file.entry
        group = start[1] if isinstance(start, list) else 0
        while group < metadata.num_row_groups and self._room > 0:
            row_group = metadata.row_group(group)
            part = FileRange(file.name, group, group + 1, row_group.num_rows, size, stamp=_stamp(file.status))
            self._add(part, row_group.total_byte_size, file.modified_ns)
            group += 1
        known = Known([size, group], footer.content, file.status.stamp)
        if group == metadata.num_row_groups:
            return replace(known, progress=size).encode()
        self.left_records += sum(metadata.row_group(index).num_rows for index in range(group, metadata.num_row_groups))
        return known.encode()


def _stamp(status: Status) -> str:
    return status.stamp if status.inode or status.tag else ""
