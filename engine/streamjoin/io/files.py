"""A source of files that appear, and grow, in a directory or an object store's folder, or below it: Parquet, JSON lines or CSV.

A plan takes files in the order of (modification time, name), from where the position says that each has been read to:
Parquet by row groups once the footer is there, text by complete records while the file still grows (``files_plan``), compressed text
as it is decoded (``decoding``). Splits are ranges of files (``files_reader``); large files are cut, small ones gathered, so that tasks
share the work evenly. A file that cannot be read is a range of one record, its dead letter.

Always holds: what a position has counted as consumed of a file is never read again. Which file that is says its content and its
inode (``identity``), not its name: one that was renamed within the directory is read on, and one that has another's name is told of and
read from its beginning, or refused.

Known limits: the directory is listed whole by every plan; with more than ``RECHECKED`` files, those that have been
read and did not change lately are looked at in turns, ``RECHECKED_A_SECOND`` in each second, so that growth of an old
file is noticed later. Only local text files are followed when they are renamed; of more than ``MOST_INODES`` files, those that were read
within a day of their last change. A file that is renamed, and written anew under another inode before anything was read after the
renaming, is a new one; so is a copy that stays beside the file it was made of, as logrotate's copytruncate leaves one.
"""

from __future__ import annotations

import contextlib
import errno
import fnmatch
import glob
import math
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import pyarrow as pa

from streamjoin.io.base import Position, Snapshots, SourcePlan
from streamjoin.io.files_plan import MOST_INODES, FilesPlan, Footers, Listed
from streamjoin.io.files_reader import FilesReader, FilesSourceConfig, printable
from streamjoin.io.files_times import NextTimes, Times
from streamjoin.io.folder import is_hidden
from streamjoin.io.identity import Entry, Known, decode, inode_of, is_read
from streamjoin.io.lines import is_still
from streamjoin.io.seen import SeenFiles, SeenStore, referenced
from streamjoin.location import is_url, place

if TYPE_CHECKING:
    from streamjoin.io.factory import Reading
    from streamjoin.manifest.connectors.files import FilesSource as Model

RECHECKED = 250
"""How many files that were read whole one plan looks at again, at least: a look takes some microseconds, and epochs may be short."""
RECHECKED_A_SECOND = 2_500
"""How many plans look at again since the one before."""
BUCKETS = 1 << 10
"""Files take turns by so many parts of their names' hashes."""
MOST_HOT = 10_000
HOT_SECONDS = 60.0
"""A file that changed so recently is looked at by every plan."""
TEMPORARY_ENDINGS = (".tmp", ".temp", ".part", ".partial", ".crdownload", ".swp", "~", "._COPYING_")
"""Of names that writers give to files which they are not done with."""
MOST_UNCHANGED = 100_000
MOST_LEARNT = 500


class FilesSource:
    """Plans ranges of files.

    The position is ``{"base": [[snapshot, entries], ...], "files": {name: entry}, "records": n, "density": x, "replaced": n}``, with
    the stream's records until there, the bytes per record seen last, and the files that were read anew; the last is left out while it is 0.
    """

    def __init__(
        self,
        config: FilesSourceConfig,
        schema: pa.Schema,
        snapshots: Snapshots,
        exact_counts: bool,
        *,
        stream: str = "",
        times: Times | None = None,
    ) -> None:
        """``exact_counts``: records of text files are counted while planning.

        ``stream``: keeps this source's snapshots apart from another's that reads the same directory. ``times``: by which a backlog is read
        (``files_times``); None: by when files were changed.
        """
        self.config = config
        self._reader = FilesReader(config, schema, exact_counts or config.format == "parquet")
        self._store = SeenStore(snapshots, stream)
        self._footers = Footers(self._reader.folder)
        self._next_times = None if times is None else NextTimes(self._reader, self._footers, times)
        self._matches = _matcher(config.pattern)
        self._looked_at = 0.0
        """When a plan last looked at files again."""
        self._bucket = 0
        """The first one of the next turn."""
        self._quiet_buckets = 0
        """So many were looked at since something new was found."""
        self._hot: dict[str, float] = {}
        self._waiting: dict[str, Listed] = {}
        self._unchanged: dict[str, str] = {}
        """By name, stamps that are not those of the position, though the files have not changed."""
        self._learnt: tuple[Position | None, dict[str, Entry]] = (None, {})
        """Entries under names and inodes that they have not in this position, which is committed only when there is something to read."""
        self._owned: tuple[Mapping[str, Entry], dict[int, list[str]]] = ({}, {})
        """The settled entries of a position, and their names by inode."""

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
        learnt = self._learnt[1] if position == self._learnt[0] else {}
        if learnt:
            seen = replace(seen, delta={**seen.delta, **learnt})
        first = int(position["records"]) if position else 0
        listing = self._list(seen, now, final)
        density = float(position["density"]) if position else 0.0
        many = len(seen.settled) + len(seen.delta) > MOST_INODES

        def take(files: Sequence[Listed]) -> FilesPlan:
            taken = FilesPlan(self._reader, self._footers, now, final, density, many=many)
            by_age = sorted(files, key=lambda file: (file.modified_ns, file.name))
            in_order = None if self._next_times is None else self._next_times.in_order
            taken.take(by_age, limit_records, split_records, in_order=in_order)
            return taken

        taken = None if listing.suspicious else take(listing.candidates)
        if taken is None or (taken.finds_others and self._follows):
            moved = self._moved(seen)
            if moved:
                learnt = {**learnt, **moved}
                seen = replace(seen, delta={**seen.delta, **moved})
                listing = self._list(seen, now, final)
            if moved or taken is None:
                taken = take(listing.candidates)
        self._waiting = {file.name: file for file in taken.waiting}
        hot = {name: since for name, since in self._hot.items() if now - since < HOT_SECONDS}
        hot |= dict.fromkeys(taken.growing[:MOST_HOT], now)
        self._hot = hot
        splits = tuple(taken.splits(first))
        records = sum(split.records for split in splits)
        self._quiet_buckets = 0 if listing.candidates else self._quiet_buckets + listing.buckets
        everywhere = max(listing.buckets, self._quiet_buckets) >= BUCKETS
        learnt = {**learnt, **taken.renewed}
        self._learnt = (position, learnt if len(learnt) < MOST_LEARNT else {})
        self._unchanged = {**self._unchanged, **taken.unchanged} if len(self._unchanged) < MOST_UNCHANGED else taken.unchanged
        replaced = (int(position.get("replaced", 0)) if position else 0) + taken.replaced
        after = self._store.save(seen, taken.changed, listing.names)
        after |= {"records": first + records, "density": round(taken.density, 1)} | ({"replaced": replaced} if replaced else {})
        pending = self._next_times.least(taken.left) if self._next_times and taken.is_of_several else (None, "")
        return SourcePlan(
            splits=splits,
            position=after,
            records=records,
            backlog_records=math.ceil(taken.left_records),
            exhausted=everywhere and not taken.unfinished and not taken.left_records,
            end_record=first + records,
            warnings=tuple(sorted(taken.warnings + self._without_files(listing, seen, final))),
            replacements=replaced,
            arrivals=taken.arrivals,
            pending_from=pending[0],
            pending=printable(pending[1]),
        )

    def _list(self, seen: SeenFiles, now: float, final: bool) -> _Listing:  # noqa: C901
        """The directory's files, and which of them may have something new."""
        known = len(seen.settled) + len(seen.delta) + len(self._waiting)
        looks = max(RECHECKED, int(RECHECKED_A_SECOND * (now - self._looked_at)))
        buckets = BUCKETS if final or known <= looks else -(-BUCKETS * looks // known)
        first, self._bucket, self._looked_at = self._bucket, (self._bucket + buckets) % BUCKETS, now
        listing = _Listing(buckets)
        hot = self._hot
        settled, delta = seen.settled, seen.delta
        folder = self._reader.folder
        owners: dict[int, list[str]] | None = None
        for entry in folder.scan(is_deep=self.config.is_deep):
            name = entry.name
            if is_hidden(name) or not self._matches(name):
                listing.pass_over(self._why_not(name), name)
                continue
            listing.names.append(name)
            consumed: Entry = delta[name] if name in delta else settled.get(name, 0)
            if consumed is None:
                continue
            if consumed == 0 and self._follows:
                owners = owners if owners is not None else self._owners(seen)
                listing.suspicious |= entry.inode() in owners
            if buckets < BUCKETS and (hash(name) - first) % BUCKETS >= buckets and name not in hot:
                if is_read(consumed):
                    listing.files += 1
                    continue
                waiting = self._waiting.get(name)
                if waiting is not None and waiting.entry == consumed:
                    listing.files += 1
                    listing.candidates.append(waiting)
                    continue
            try:
                if not entry.is_file():
                    listing.pass_over("is no file", name)
                    continue
                listing.files += 1
                status = folder.status(entry)
            except OSError as error:
                if isinstance(error, FileNotFoundError):
                    continue
                if error.errno == errno.ELOOP:
                    listing.pass_over("is a link that leads to itself", name)
                    continue
                raise
            file = Listed(status.modified_ns, name, status.size, consumed, status.inode, status.tag)
            listing.suspicious |= self._follows and file.known.inode not in (0, file.inode)
            if self._may_have_changed(file):
                listing.candidates.append(file)
        return listing

    def _why_not(self, name: str) -> str:
        """Why a name is not one of a file to read."""
        if is_hidden(name):
            return "begins with . or _"
        if self.config.pattern == "*":
            return "looks like that of a file that is still written"
        return f"does not match files.pattern ({self.config.pattern})"

    def _without_files(self, listing: _Listing, seen: SeenFiles, final: bool) -> list[str]:
        """What to warn of while no file has ever matched: of names that were passed over at once, of an empty directory at the end."""
        if listing.files or seen.settled or seen.delta or not (listing.passed_over or final):
            return []
        counted = sum(count for count, _ in listing.passed_over.values())
        why = "; ".join(f"{count} {reason}, as {printable(example)}" for reason, (count, example) in sorted(listing.passed_over.items()))
        found = f"names that were passed over: {counted} ({why}). Correct files.path or files.pattern" if counted else "it is empty"
        return [f"files.path: {self.config.path} has no file to read; {found}"]

    @property
    def _follows(self) -> bool:
        """Whether files are known again under other names."""
        return self._reader.folder.grows and self.config.format != "parquet"

    def _may_have_changed(self, file: Listed) -> bool:
        known = file.known
        if not known.progress:
            return file.size > 0
        if known.is_partly or (self.config.format != "parquet" and file.size > known.size):
            return True
        if not known.stamp:
            return file.size != known.size
        stamp = file.status.stamp
        return stamp != known.stamp and stamp != self._unchanged.get(file.name)

    def _owners(self, seen: SeenFiles) -> dict[int, list[str]]:
        """The names of known files by inode. O(delta), and O(files) where the snapshots are not those of the last call."""
        if seen.settled is not self._owned[0]:
            self._owned = seen.settled, _by_inode(seen.settled)
        settled = self._owned[1]
        return settled | {inode: settled.get(inode, []) + names for inode, names in _by_inode(seen.delta).items()}

    def _moved(self, seen: SeenFiles) -> dict[str, Entry]:
        """The entries of files that were renamed, under their new names; of a name that no known file has any more, 0.

        The directory is listed once more: while it was listed, a file may have got a name that had been passed already.
        """
        folder, owners = self._reader.folder, self._owners(seen)
        scanned = folder.scan(is_deep=self.config.is_deep)
        inodes = {entry.name: entry.inode() for entry in scanned if not is_hidden(entry.name) and self._matches(entry.name)}
        moved: dict[str, Entry] = {}
        left: dict[str, Entry] = {}
        for name, inode in inodes.items():
            for old in owners.get(inode, ()):
                entry = seen.get(old)
                if old == name or inodes.get(old) == inode or not entry or decode(entry).inode != inode:
                    continue
                if self._is_that(name, decode(entry)):
                    moved[name] = entry
                    left[old] = 0
        return left | moved

    def _is_that(self, name: str, known: Known) -> bool:
        """Whether the file of this name is what is known of another one."""
        try:
            file = self._reader.folder.open(name)
        except OSError:
            return False
        with contextlib.closing(file):
            return file.status().inode == known.inode and is_still(file, known)


@dataclass
class _Listing:
    """What listing the directory found."""

    buckets: int
    """Of how many the files were looked at again."""
    names: list[str] = field(default_factory=list)
    candidates: list[Listed] = field(default_factory=list)
    suspicious: bool = False
    """Some file may have been renamed."""
    files: int = 0
    passed_over: dict[str, tuple[int, str]] = field(default_factory=dict)
    """By reason, how many names, and the least of them."""

    def pass_over(self, reason: str, name: str) -> None:
        count, least = self.passed_over.get(reason, (0, name))
        self.passed_over[reason] = count + 1, min(least, name)


def _by_inode(entries: Mapping[str, Entry]) -> dict[int, list[str]]:
    found: dict[int, list[str]] = {}
    for name, entry in entries.items():
        if isinstance(entry, str) and (inode := inode_of(entry)):
            found.setdefault(inode, []).append(name)
    return found


def _matcher(pattern: str) -> Callable[[str], object]:
    """Of paths: without a pattern, all their names count."""
    if pattern == "*":
        return _is_whole
    match = re.compile(fnmatch.translate(pattern)).match
    return lambda path: match(path.rpartition("/")[2])


def _is_whole(path: str) -> bool:
    if "/" in path:
        return all(map(_is_whole, path.split("/")))
    return not path.endswith(TEMPORARY_ENDINGS) and ".tmp." not in path and "_temporary" not in path


def open_source(model: Model, reading: Reading) -> FilesSource:
    """See ``io.factory``. A path of one file reads that one."""
    path, pattern, is_deep = place(model.path), model.pattern, model.recursive
    if pattern == "*" and not is_url(path) and os.path.isfile(path):
        path, name = os.path.split(path)
        path, pattern, is_deep = path or ".", glob.escape(name), False
    config = FilesSourceConfig(
        path=path,
        format=model.format,
        max_files_per_epoch=model.max_files_per_epoch,
        pattern=pattern,
        header=model.header,
        delimiter=model.delimiter,
        settle_seconds=math.inf if model.settle == "never" else model.settle.micros / 1e6,
        encoding=model.encoding,
        on_replaced=model.on_replaced,
        is_deep=is_deep,
    )
    return FilesSource(config, reading.schema, reading.snapshots, reading.exact_counts, stream=reading.stream, times=reading.times)
