"""A join's snapshots as sorted Parquet files in the checkpoint: the embedded store, and what other stores are filled from.

Each snapshot that closes becomes a run of one (``reader``): its parts are sorted by key and written, then the index that names the files.
Eight neighbouring runs of one level become one of the next: their indexes always, so that there are few to read, and their rows where those
are few, so that there are few files. Runs that are older than ``keep`` are let go.

What makes it safe to die anywhere, and to have two drivers at work, of which the older does not know yet that it is replaced: a run's
content follows from its range and from what was committed, so that writing it again, by whomever, is writing the same; the index comes
last; and ranges are aligned, so that whoever makes one, each is within another or apart from it.

Always holds: what a commit names as waiting is sorted again, or found, after any crash; nothing that a listed index names is removed before
the index, and no file before readers that had listed it have had ``GRACE_SECONDS``.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from streamjoin.io.sinks import parquet_encodings
from streamjoin.results.parts import KEY, ROW, SNAPSHOT, sorted_rows
from streamjoin.results.reader import INDEX, Run, Snapshot, SnapshotFile, bound_of, folder, index_path, range_of, runs
from streamjoin.snapshots.timeline import Closed
from streamjoin.state.storage import Storage

FAN_IN = 8
MERGED_BYTES = 128 << 20
"""Rows of runs that come to more, in memory, stay in the files that they are in: the driver merges in memory."""
FILE_BYTES = 32 << 20
"""Of rows in memory; a file of them is some three times smaller."""
GROUP_ROWS = 16 * 1024
"""So many rows a reader of one key reads at least."""
GRACE_SECONDS = 600.0
SPAN = 8
"""A run spans at most this part of the time for which snapshots are kept, so that they are let go in that many steps."""


class Archive:
    """One join's. Not for use by several threads; of several drivers, the newest decides."""

    def __init__(
        self, storage: Storage, join: str, keep_seconds: float | None = None, *, clock: Callable[[], float] = time.time
    ) -> None:
        self._storage, self._join, self._keep_seconds, self._clock = storage, join, keep_seconds, clock
        self._runs: dict[tuple[int, int], Run] | None = None
        """By range, those that readers are shown; None: not listed yet."""
        self._garbage: deque[tuple[float, tuple[str, ...]]] = deque()
        """Since when nobody is shown these objects."""

    def add(self, closed: Closed) -> None:
        """Have a snapshot stored; one that is already, is. Raises StorageError. O(rows log rows). Memory: as ``sorted_rows``.

        Rows of more are sorted in portions, each with files of its own: of an epoch that found that many, whose keys then overlap.
        """
        if self._run_of(closed.id) is not None:
            return
        files: list[SnapshotFile] = []
        for rows in sorted_rows(self._storage, closed):
            files += self._files(rows, closed.id, closed.id, closed.form, len(files))
        self._put(closed.id, closed.id, (described(closed),), files, ())

    def rows(self, snapshot: int, batch_rows: int) -> Iterator[pa.RecordBatch]:
        """The rows of a snapshot that is stored, in the order of ``_row``, in batches of about so many. Raises StorageError."""
        run = self._run_of(snapshot)
        assert run is not None, snapshot
        for file in run.files:
            if file.snapshot_low <= snapshot <= file.snapshot_high:
                source = pa.BufferReader(self._storage.get(file.path))
                for batch in pq.ParquetFile(source).iter_batches(batch_rows):
                    own = batch if run.low == run.high else batch.filter(pc.equal(batch.column(SNAPSHOT), snapshot))
                    if own.num_rows:
                        yield own

    def tidy(self) -> bool:
        """Make one run of several, or let one go, if there is need; whether there was. Raises StorageError."""
        self._remove_garbage()
        return self._let_go() or self._compact()

    def sweep(self, first_waiting: int) -> int:
        """Remove files that crashes have left, of snapshots before this one, which all have an index if they are kept. Returns how many."""
        known = self._known()
        named = {file.path for run in known.values() for file in run.files}
        named |= {index_path(self._join, *ends) for ends in known} | {path for _, paths in self._garbage for path in paths}
        stray = [path for path in self._storage.list(folder(self._join)) if path not in named and _high_of(path) < first_waiting]
        self._storage.delete_many(stray)
        return len(stray)

    @property
    def nbytes(self) -> int:
        """Of the files that readers are shown. Raises StorageError."""
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

    def _put(
        self, low: int, high: int, snapshots: tuple[Snapshot, ...], files: Sequence[SnapshotFile], replaces: tuple[str, ...]
    ) -> None:
        run = Run(low, high, snapshots, tuple(files), self._clock(), replaces)
        self._storage.put(index_path(self._join, low, high), run.encode())
        self._known()[low, high] = run

    def _files(self, rows: pa.Table, low: int, high: int, form: str, first: int = 0) -> list[SnapshotFile]:
        """Write sorted rows, cut by key, into files of a run whose numbers begin with ``first``."""
        count = max(1, -(-rows.nbytes // FILE_BYTES))
        size = -(-rows.num_rows // count)
        found = []
        for number, start in enumerate(range(0, rows.num_rows, size), first):
            part = rows.slice(start, size)
            path = f"{folder(self._join)}/{low:012d}-{high:012d}-{number:03d}.parquet"
            data = pa.BufferOutputStream()
            encodings = parquet_encodings(part)
            pq.write_table(part, data, compression="zstd", row_group_size=GROUP_ROWS, write_page_index=True, **encodings)
            written = data.getvalue()
            self._storage.put(path, memoryview(written))
            keys = part.column(KEY)
            last = len(keys) - keys.null_count - 1  # rows without a key come last
            key_low, key_high = (None, None) if last < 0 else (bound_of(keys[0], upper=False), bound_of(keys[last], upper=True))
            found.append(SnapshotFile(path, part.num_rows, written.size, key_low, key_high, low, high, part.nbytes, form))
        return found

    def _compact(self) -> bool:
        known = self._known()
        newest = max((high for _, high in known), default=-1)
        for width in sorted({high - low + 1 for low, high in known}):
            for low in sorted({low - low % (width * FAN_IN) for low, high in known if high - low + 1 == width}):
                high = low + width * FAN_IN - 1
                inside = [run for ends, run in sorted(known.items()) if low <= ends[0] and ends[1] <= high]
                if high <= newest and len(inside) > 1 and all(run.high - run.low + 1 == width for run in inside) and self._may_span(inside):
                    self._merge(low, high, inside)
                    return True
        return False

    def _may_span(self, members: Sequence[Run]) -> bool:
        if self._keep_seconds is None:
            return True
        return members[-1].snapshots[-1].committed_at - members[0].snapshots[0].committed_at <= self._keep_seconds / SPAN

    def _merge(self, low: int, high: int, members: Sequence[Run]) -> None:
        """The index of the wider run is what makes it true; until then readers are shown its members."""
        files = [file for run in members for file in run.files]
        indexes = tuple(index_path(self._join, run.low, run.high) for run in members)
        replaced = indexes
        if sum(file.nbytes for file in files) <= MERGED_BYTES and len({file.form for file in files}) == 1:
            tables = [pq.read_table(pa.BufferReader(self._storage.get(file.path))) for file in files]
            rows = pa.concat_tables(tables)
            order = pc.sort_indices(rows, sort_keys=[(KEY, "ascending"), (SNAPSHOT, "ascending"), (ROW, "ascending")])
            replaced += tuple(file.path for file in files)
            files = self._files(rows.take(order), low, high, files[0].form)
        self._put(low, high, tuple(snapshot for run in members for snapshot in run.snapshots), files, replaced)
        for run in members:
            del self._known()[run.low, run.high]
        self._garbage.append((self._clock(), replaced))

    def _let_go(self) -> bool:
        if self._keep_seconds is None:
            return False
        known, oldest = self._known(), self._clock() - self._keep_seconds
        for ends, run in sorted(known.items()):
            if run.snapshots[-1].committed_at < oldest:
                self._storage.delete(index_path(self._join, *ends))
                del known[ends]
                self._garbage.append((self._clock(), tuple(file.path for file in run.files)))
                return True
        return False

    def _remove_garbage(self) -> None:
        while self._garbage and self._clock() - self._garbage[0][0] >= GRACE_SECONDS:
            self._storage.delete_many(self._garbage[0][1])
            self._garbage.popleft()


def described(closed: Closed) -> Snapshot:
    """As readers are told of it."""
    return Snapshot(closed.id, closed.epoch, closed.committed_at, closed.rows, closed.marks)


def _high_of(path: str) -> int:
    """The last identifier of the range that a file or an index is of."""
    if f"/{INDEX}/" in path:
        return range_of(path)[1]
    return int(path.rsplit("/", 1)[1].split("-")[1])
