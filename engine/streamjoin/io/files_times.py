"""The event times at which files go on, for a backlog of files that were written side by side.

A plan that cannot take all that is there takes first what is earliest by event time, of files that go on at about one time as much of each,
and tells the driver the least event time of what is left. The watermark does not pass that, so no file makes records of another one late,
in whichever order they are read. A file's records are taken to be as much in order as the stream's ``watermark`` lets them be.

Known limits: of more than ``MOST_LOOKED_AT`` files (``MOST_OBJECTS`` of an object store) the least recently changed are looked at; the
others come after them and hold nothing back. The first ``SAMPLE_BYTES`` of what is left of a file are read once more.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Sequence

import pyarrow as pa

from streamjoin.io.decoding import DecodedFile
from streamjoin.io.files_plan import SAMPLE_BYTES, Footers, Listed
from streamjoin.io.files_reader import FileRange, FilesReader, FilesSplit
from streamjoin.io.lines import LineFile
from streamjoin.state.storage import StorageError

MOST_LOOKED_AT, MOST_OBJECTS = 500, 64
KEPT_TIMES = 4 * MOST_LOOKED_AT
BESIDE_MICROS = 60_000_000
"""Files that go on so soon after the earliest are read beside it."""

Times = Callable[[pa.RecordBatch], int | None]
"""The least event time of a batch in microseconds since 1970; None: it has none."""


class NextTimes:
    """Looks into files. What was found of a place in a file is kept."""

    def __init__(self, reader: FilesReader, footers: Footers, times: Times) -> None:
        self._reader, self._footers, self._times = reader, footers, times
        self._known: OrderedDict[tuple[str, str, str], int | None] = OrderedDict()

    def of(self, files: Sequence[Listed]) -> dict[str, int]:
        """By name, the event time at which each goes on, as far as it is looked at and has any. O(files) looks, the first time."""
        most = MOST_LOOKED_AT if self._reader.folder.grows else MOST_OBJECTS
        by_age = sorted(files, key=lambda file: (file.modified_ns, file.name))[:most]
        found = {file.name: self._next(file) for file in by_age}
        return {name: moment for name, moment in found.items() if moment is not None}

    def least(self, files: Sequence[Listed]) -> tuple[int | None, str]:
        """The least of these, and the file's name; None: none is known."""
        return min(((moment, name) for name, moment in self.of(files).items()), default=(None, ""))

    def in_order(self, files: Sequence[Listed], limit_records: int) -> tuple[list[Listed], int]:
        """The files, those first that go on earliest; and how many records to take of each at most."""
        moments = self.of(files)
        ordered = sorted(files, key=lambda file: (moments.get(file.name, math.inf), file.modified_ns, file.name))
        least = min(moments.values(), default=0)
        beside = sum(moment <= least + BESIDE_MICROS for moment in moments.values())
        return ordered, max(1, -(-limit_records // beside)) if beside > 1 else limit_records

    def _next(self, file: Listed) -> int | None:
        key = file.name, str(file.known.progress), file.status.stamp
        if key not in self._known:
            self._known[key] = self._look(file)
            if len(self._known) > KEPT_TIMES:
                self._known.popitem(last=False)
        return self._known[key]

    def _look(self, file: Listed) -> int | None:
        try:
            part = self._row_group(file) if self._reader.config.format == "parquet" else self._lines(file)
            if part is None:
                return None
            records = next(self._reader.read(FilesSplit(first_record=0, records=part.records, ranges=(part,))), None)
            return None if records is None else self._times(records.batch)
        except StorageError:
            raise
        except Exception:  # what is wrong with it is told where it is read
            return None

    def _lines(self, file: Listed) -> FileRange | None:
        start = file.known.consumed
        opened = self._reader.text(file.name, file.status)
        with LineFile(opened, self._reader.config.framing) as lines:
            nbytes, records = lines.sample(start, SAMPLE_BYTES)
            is_decoded = isinstance(opened, DecodedFile)
        if not records:
            return None
        return FileRange(file.name, start, start + nbytes, records, file.size, tag=file.tag, is_decoded=is_decoded)

    def _row_group(self, file: Listed) -> FileRange | None:
        metadata = self._footers.take(file).metadata
        group = file.known.progress[1] if isinstance(file.known.progress, list) else 0
        while group < metadata.num_row_groups and not metadata.row_group(group).num_rows:
            group += 1
        if group == metadata.num_row_groups:
            return None
        return FileRange(file.name, group, group + 1, metadata.row_group(group).num_rows, file.size)
