"""A source of files that appear, and grow, in a directory or an object store's folder: Parquet, JSON lines or CSV.

A plan takes files in the order of (modification time, name), from where the position says that each has been read to:
Parquet by row groups once the footer is there, text by complete lines while the file still grows (``files_plan``). Splits
are ranges of files (``files_reader``); large files are cut, small ones gathered, so that tasks share the work evenly.

Always holds: what a position has counted as consumed is never read again. A file that has become smaller than that, or
a Parquet file whose size has changed, was replaced: the plan warns, and the file is not looked at any more.

Known limits: the directory is listed whole by every plan; with more than ``RECHECKED`` files, those that have been
read and did not change lately are looked at in turns, ``RECHECKED_A_SECOND`` in each second, so that growth of an old
file is noticed later.
"""

from __future__ import annotations

import fnmatch
import math
import re
from collections.abc import Callable
from dataclasses import dataclass, field

import pyarrow as pa

from streamjoin.io.base import Position, Snapshots, SourceError, SourcePlan
from streamjoin.io.files_plan import FilesPlan, Footers, Listed
from streamjoin.io.files_reader import FilesReader, FilesSourceConfig
from streamjoin.io.seen import Entry, SeenFiles, SeenStore, referenced

RECHECKED = 250
"""How many files that were read whole one plan looks at again, at least: a look takes some microseconds, and epochs may be short."""
RECHECKED_A_SECOND = 2_500
"""How many plans look at again since the one before."""
BUCKETS = 1 << 10
"""Files take turns by so many parts of their names' hashes."""
MOST_HOT = 10_000
HOT_SECONDS = 60.0
"""A file that changed so recently is looked at by every plan."""


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
        self._footers = Footers(self._reader.folder)
        self._matches = _matcher(config.pattern)
        self._looked_at = 0.0
        """When a plan last looked at files again."""
        self._bucket = 0
        """The first one of the next turn."""
        self._quiet_buckets = 0
        """So many were looked at since something new was found."""
        self._hot: dict[str, float] = {}
        self._waiting: dict[str, Listed] = {}

    @property
    def reader(self) -> FilesReader:
        return self._reader

    def referenced(self, position: Position | None) -> frozenset[str]:
        return referenced(position)

    def plan(
        self, position: Position | None, limit_records: int, now: float, final: bool = False, *, split_records: int | None = None
    ) -> SourcePlan:
        """See :class:`streamjoin.io.base.Source`.

        O(files in the directory) to list them, O(files taken) to look into them; exact counts read what is taken.
        """
        seen = self._store.load(position)
        first = int(position["records"]) if position else 0
        listing = self._list(seen, now, final)
        density = float(position["density"]) if position else 0.0
        taken = FilesPlan(self._reader, self._footers, now, final, density)
        taken.take(sorted(listing.candidates, key=lambda file: (file.modified_ns, file.name)), limit_records, split_records)
        self._waiting = {file.name: file for file in taken.waiting}
        hot = {name: since for name, since in self._hot.items() if now - since < HOT_SECONDS}
        hot |= dict.fromkeys(taken.growing[:MOST_HOT], now)
        self._hot = hot
        splits = tuple(taken.splits(first))
        records = sum(split.records for split in splits)
        self._quiet_buckets = 0 if listing.candidates else self._quiet_buckets + listing.buckets
        everywhere = max(listing.buckets, self._quiet_buckets) >= BUCKETS
        after = self._store.save(seen, listing.changed | taken.changed, listing.names)
        after |= {"records": first + records, "density": round(taken.density, 1)}
        return SourcePlan(
            splits=splits,
            position=after,
            records=records,
            backlog_records=math.ceil(taken.left_records),
            exhausted=everywhere and not taken.unfinished and not taken.left_records,
            end_record=first + records,
            warnings=tuple(sorted(listing.warnings + taken.warnings)),
            arrivals=taken.arrivals,
        )

    def _list(self, seen: SeenFiles, now: float, final: bool) -> _Listing:
        """The directory's files, and which of them may have something new."""
        known = len(seen.settled) + len(seen.delta) + len(self._waiting)
        looks = max(RECHECKED, int(RECHECKED_A_SECOND * (now - self._looked_at)))
        buckets = BUCKETS if final or known <= looks else -(-BUCKETS * looks // known)
        first, self._bucket, self._looked_at = self._bucket, (self._bucket + buckets) % BUCKETS, now
        listing = _Listing(buckets)
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
            if buckets < BUCKETS and (hash(name) - first) % BUCKETS >= buckets and name not in hot:
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

    buckets: int
    """Of how many the files were looked at again."""
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


def _matcher(pattern: str) -> Callable[[str], object]:
    return bool if pattern == "*" else re.compile(fnmatch.translate(pattern)).match
