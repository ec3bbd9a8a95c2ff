"""A join's snapshots as sorted Parquet files in the checkpoint: the embedded store, and what other stores are filled from.

Each snapshot that closes becomes a run of one (``reader``): its parts are sorted by key and written, then the index that names the files.
Eight neighbouring runs of one level become one of the next, file by file between other work: so rows of one key are in few files, however
many snapshots there are, and a row is written again once a level. Of runs with more than ``MERGED_BYTES`` only the indexes become one.
Runs that are older than ``keep`` are let go.

What makes it safe to die anywhere, and to have two drivers at work, of which the older does not know yet that it is replaced: a run's
content follows from its range and from what was committed, so that writing it again, by whomever, is writing the same; files that are made
of several have names of their own each time, so that who gives a merge up removes nobody else's; the index comes last, by an exclusive
creation: whoever is second takes over the first's; files without an index are swept only where an index of their range is there, so that
none can come which names them; and ranges are aligned, so that whoever makes one, each is within another or apart from it.

Always holds: what a commit names as waiting is sorted again, or found, after any crash; nothing that a listed index names is removed before
the index, and no file before readers that had listed it have had ``GRACE_SECONDS``.
"""

from __future__ import annotations

import time
import uuid
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from streamjoin.io.base import portions
from streamjoin.io.sinks import parquet_encodings
from streamjoin.results.merging import merged
from streamjoin.results.parts import sorted_rows
from streamjoin.results.reader import (
    INDEX,
    KEY,
    SNAPSHOT,
    Run,
    Snapshot,
    SnapshotFile,
    bound_of,
    content,
    folder,
    index_path,
    range_of,
    read_run,
    runs,
)
from streamjoin.snapshots.timeline import Closed
from streamjoin.state import checks
from streamjoin.state.storage import AlreadyExists, Storage

FAN_IN = 8
MERGED_BYTES = 4 << 30
"""Rows of runs that come to more, in memory, stay in the files that they are in: they are in few already, for what merging them takes."""
FILE_BYTES = 32 << 20
"""The bytes of a file's rows in memory; the file is some three times smaller."""
GROUP_ROWS = 16 * 1024
"""The least rows that a reader of one key reads."""
GRACE_SECONDS = 600.0
SPAN = 8
"""A run spans at most this part of the time for which snapshots are kept, so that they are let go in that many steps."""


class Archive:
    """One join's. Not for use by several threads; of several drivers, the newest decides."""

    def __init__(self, storage: Storage, join: str, keep_seconds: float | None = None, *, clock: Callable[[], float] = time.time) -> None:
        self._storage, self._join, self._keep_seconds, self._clock = storage, join, keep_seconds, clock
        self._runs: dict[tuple[int, int], Run] | None = None
        """By range, those that readers are shown; None: not listed yet."""
        self._garbage: deque[tuple[float, tuple[str, ...]]] = deque()
        """Since when nobody is shown these objects."""
        self._merging: _Merging | None = None

    def add(self, closed: Closed) -> None:
        """Have a snapshot stored; one that is already, is. Raises StorageError. O(rows log rows). Memory: as ``sorted_rows``.

        Rows of more are sorted in portions, each with files of its own: of an epoch that found that many, whose keys then overlap.
        """
        if self._run_of(closed.id) is not None:
            return
        files: list[SnapshotFile] = []
        for rows in sorted_rows(self._storage, closed):
            files += self._files(rows, closed.id, closed.id, closed.form, len(files))
        self._show(closed.id, closed.id, (described(closed),), files, ())

    def rows(self, snapshot: int, batch_rows: int) -> Iterator[pa.RecordBatch]:
        """The rows of a snapshot that is stored, in batches of about so many. Raises StorageError."""
        run = self._run_of(snapshot)
        assert run is not None, snapshot
        for file in run.files:
            if file.snapshot_low <= snapshot <= file.snapshot_high:
                source = pa.BufferReader(content(self._storage, file))
                for batch in pq.ParquetFile(source).iter_batches(batch_rows):
                    own = batch if run.low == run.high else batch.filter(pc.equal(batch.column(SNAPSHOT), snapshot))
                    if own.num_rows:
                        yield own

    def tidy(self, before: int | None = None) -> bool:
        """Make one run of several, or a file of it, or let one go, if there is need; whether there was. Raises StorageError.

        ``before``: runs that have this snapshot or a later one stay as they are.
        """
        self._remove_garbage()
        return self._let_go() or self._merge_on() or self._compact(before)

    def sweep(self, first_waiting: int) -> int:
        """Remove files that crashes have left, of snapshots before this one, which all have an index if they are kept. Returns how many.

        Where nothing is shown yet of all of a file's range, an older driver may be about to show it: that is left until something is.
        """
        known = self._known()
        named = {file.path for run in known.values() for file in run.files}
        named |= {index_path(self._join, *ends) for ends in known} | {path for _, paths in self._garbage for path in paths}
        named |= set() if self._merging is None else {file.path for file in self._merging.files}
        oldest = min((low for low, _ in known), default=0)

        def is_settled(path: str) -> bool:
            own = range_of(path)
            return own[1] < first_waiting and (own[1] < oldest or any(_is_within(own, ends) for ends in known))

        stray = [path for path in self._storage.list(folder(self._join)) if path not in named and is_settled(path)]
        self._storage.delete_many(stray)
        return len(stray)

    @property
    def nbytes(self) -> int:
        """The bytes of the files that readers are shown. Raises StorageError."""
        return sum(file.bytes for run in self._known().values() for file in run.files)

    def _known(self) -> dict[tuple[int, int], Run]:
        if self._runs is None:
            found = runs(self._storage, self._join)
            self._garbage.extend((run.made_at, run.replaces) for run in found if run.replaces)
            self._runs = {(run.low, run.high): run for run in found}
        return self._runs

    def _run_of(self, snapshot: int) -> Run | None:
        width = 1
        while True:
            low = snapshot - snapshot % width
            run = self._known().get((low, low + width - 1))
            if run is not None or width > max((high - low + 1 for low, high in self._known()), default=0):
                return run
            width *= FAN_IN

    def _show(self, low: int, high: int, snapshots: tuple[Snapshot, ...], files: Sequence[SnapshotFile], replaces: tuple[str, ...]) -> None:
        """Show readers a run, or go on with the one that another driver has shown them of this range."""
        run, path = Run(low, high, snapshots, tuple(files), self._clock(), replaces), index_path(self._join, low, high)
        try:
            self._storage.create(path, run.encode())
        except AlreadyExists:
            run = read_run(self._storage, path)
            shown = {file.path for file in run.files}
            self._garbage.append((self._clock(), tuple(file.path for file in files if file.path not in shown)))
        self._known()[low, high] = run

    def _files(self, rows: pa.Table, low: int, high: int, form: str, first: int, attempt: str = "") -> list[SnapshotFile]:
        """Write sorted rows, cut by key, into files of a run whose numbers begin with ``first``. ``attempt``: a part of their names."""
        count = max(1, -(-rows.nbytes // FILE_BYTES))
        size = -(-rows.num_rows // count)
        found = []
        for number, start in enumerate(range(0, rows.num_rows, size), first):
            part = rows.slice(start, size)
            data = pa.BufferOutputStream()
            encodings = parquet_encodings(part)
            options = {"row_group_size": GROUP_ROWS, "write_page_index": True, "write_page_checksum": True}
            pq.write_table(part, data, compression="zstd", **options, **encodings)
            written = data.getvalue()
            stem = f"{folder(self._join)}/{low:012d}-{high:012d}-{number:03d}{attempt}"
            path = checks.named(stem, "parquet", memoryview(written))
            self._storage.put(path, memoryview(written))
            keys = part.column(KEY)
            last = len(keys) - keys.null_count - 1  # rows without a key come last
            key_low, key_high = (None, None) if last < 0 else (bound_of(keys[0], upper=False), bound_of(keys[last], upper=True))
            found.append(SnapshotFile(path, part.num_rows, written.size, key_low, key_high, low, high, part.nbytes, form))
        return found

    def _compact(self, before: int | None) -> bool:
        known = self._known()
        newest = max((high for _, high in known), default=-1) if before is None else before - 1
        for width in sorted({high - low + 1 for low, high in known}):
            for low in sorted({low - low % (width * FAN_IN) for low, high in known if high - low + 1 == width}):
                high = low + width * FAN_IN - 1
                inside = [run for ends, run in sorted(known.items()) if low <= ends[0] and ends[1] <= high]
                if high <= newest and len(inside) > 1 and all(run.high - run.low + 1 == width for run in inside) and self._may_span(inside):
                    self._merging = _Merging(low, high, tuple(inside), self._merged(low, high, inside))
                    return self._merge_on()
        return False

    def _may_span(self, members: Sequence[Run]) -> bool:
        if self._keep_seconds is None:
            return True
        return members[-1].snapshots[-1].committed_at - members[0].snapshots[0].committed_at <= self._keep_seconds / SPAN

    def _merge_on(self) -> bool:
        """Write the next file of the run that is being made; after the last its index, which makes it true: until then readers are shown
        its members. Whether there is one."""
        merging = self._merging
        if merging is None:
            return False
        if any(self._known().get((run.low, run.high)) is not run for run in merging.members):  # one was let go
            self._garbage.append((self._clock(), tuple(file.path for file in merging.files)))
            self._merging = None
            return True
        self._merging = None  # what fails is begun anew
        written = next(merging.writing, None)
        if written is not None:
            merging.files += written
            self._merging = merging
            return True
        of_members = [file for run in merging.members for file in run.files]
        replaced = tuple(index_path(self._join, run.low, run.high) for run in merging.members)
        replaced += tuple(file.path for file in of_members) if merging.files else ()
        snapshots = tuple(snapshot for run in merging.members for snapshot in run.snapshots)
        self._show(merging.low, merging.high, snapshots, merging.files or of_members, replaced)
        for run in merging.members:
            del self._known()[run.low, run.high]
        self._garbage.append((self._clock(), replaced))
        return True

    def _merged(self, low: int, high: int, members: Sequence[Run]) -> Iterator[list[SnapshotFile]]:
        """Writes the rows of these runs anew, a file or so at a time; none where they stay where they are.

        O(rows log rows). Memory: a file's rows, and a row group and the bytes of one file for each that has rows of like keys.
        """
        files = [file for run in members for file in run.files]
        forms = {file.form for file in files}
        if sum(file.nbytes for file in files) > MERGED_BYTES or len(forms) != 1:
            return
        pieces = merged([self._groups(sequence) for sequence in _sequences(files)], KEY)
        count, attempt = 0, f"-{uuid.uuid4().hex[:8]}"
        for portion in portions(pieces, FILE_BYTES):
            written = self._files(pa.concat_tables(portion), low, high, files[0].form, count, attempt)
            count += len(written)
            yield written

    def _groups(self, files: Sequence[SnapshotFile]) -> Iterator[pa.Table]:
        """The row groups of files, one after the other."""
        for file in files:
            parquet = pq.ParquetFile(pa.BufferReader(content(self._storage, file)))
            for number in range(parquet.num_row_groups):
                yield parquet.read_row_group(number, use_threads=False)

    def _let_go(self) -> bool:
        if self._keep_seconds is None:
            return False
        known, oldest = self._known(), self._clock() - self._keep_seconds
        for ends, run in sorted(known.items()):
            if run.snapshots[-1].committed_at < oldest:
                # First those of runs that became this one: without it readers would be shown them again.
                indexes = [path for _, paths in self._garbage for path in paths if f"/{INDEX}/" in path]
                replaced = [path for path in indexes if _is_within(range_of(path), ends)]
                self._storage.delete_many(replaced)
                self._storage.delete(index_path(self._join, *ends))
                del known[ends]
                self._garbage.append((self._clock(), tuple(file.path for file in run.files)))
                return True
        return False

    def _remove_garbage(self) -> None:
        while self._garbage and self._clock() - self._garbage[0][0] >= GRACE_SECONDS:
            self._storage.delete_many(self._garbage[0][1])
            self._garbage.popleft()


@dataclass
class _Merging:
    """A run that is being made of several."""

    low: int
    high: int
    members: tuple[Run, ...]
    writing: Iterator[list[SnapshotFile]]
    files: list[SnapshotFile] = field(default_factory=list)
    """What has been written."""


def _sequences(files: Sequence[SnapshotFile]) -> list[list[SnapshotFile]]:
    """The files in the same order, those together that go on where the one before ends."""
    found: list[list[SnapshotFile]] = []
    for file in files:
        last = found[-1][-1] if found else None
        ascends = last is not None and None not in (last.key_high, file.key_low) and last.key_high <= file.key_low
        if ascends and last is not None and (last.snapshot_low, last.snapshot_high) == (file.snapshot_low, file.snapshot_high):
            found[-1].append(file)
        else:
            found.append([file])
    return found


def described(closed: Closed) -> Snapshot:
    """The snapshot as readers are shown it."""
    return Snapshot(closed.id, closed.epoch, closed.committed_at, closed.rows, closed.marks)


def _is_within(inner: tuple[int, int], ends: tuple[int, int]) -> bool:
    return ends[0] <= inner[0] and inner[1] <= ends[1]
