"""The protocols of sources and sinks, and the small frozen messages between driver and tasks.

Always holds:

- :meth:`Source.plan` has no memory that matters: the same position and the same input give the same work, in this
  process or in a fresh one. What it returns becomes true only when the caller commits ``SourcePlan.position``.
- Reading a split is deterministic: a task that is run again yields the same records in the same order.
- A reader of a sink's directory never sees a file that is partial or not committed: writers stage, and the driver
  publishes after its commit.
- Everything that travels (readers, splits, sinks, staged files) is configuration: frozen and picklable.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeAlias, TypeVar, runtime_checkable

import numpy as np
import pyarrow as pa
from pyarrow import ipc

from streamjoin.io.arrivals import Arrivals, Stamps
from streamjoin.state.extent import Extent

if TYPE_CHECKING:
    from streamjoin.io.ownership import Owner
    from streamjoin.io.refused import RefusedResults

MAX_BATCH_ROWS = 1 << 18
"""No batch that a reader yields has more rows."""

RAW_LIMIT_BYTES = 64 * 1024
"""A rejected record is kept up to this size."""

T = TypeVar("T")
Position: TypeAlias = dict[str, Any]
"""How far a source has been read: plain JSON, opaque to everybody but the source."""


class SourceError(ValueError):
    """A source that cannot be read as it is configured. The text names what is wrong, where, and the remedy."""


class BadFile(SourceError):  # noqa: N818
    """A file that is damaged, or does not fit the schema: a dead letter, and others are read."""


class SinkError(RuntimeError):
    """A sink that cannot keep its promise, such as a committed file that is gone."""


class UnavailableError(RuntimeError):
    """What a source or sink needs cannot be reached now. The same epoch may be tried again later."""


class Replaced(UnavailableError):  # noqa: N818
    """What was to be read is gone, or another, since it was planned. It can be planned anew."""


@dataclass(frozen=True, kw_only=True)
class Split:
    """A piece of a stream that one task reads; each kind of source adds its own fields."""

    first_record: int
    """The dense position in the stream of the split's first record."""
    records: int
    """How many records it has, rejected ones included; an estimate unless the source counts exactly."""
    partition: int | None = None
    """Which of the stream's parts it is of, where each has event times of its own; None where the stream is one."""

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Self:
        """The split whose fields these are, as ``dataclasses.asdict`` and JSON write them."""
        return cls(**values)

    @property
    def name(self) -> str:
        """Where the split lies, for messages and dead letters."""
        return f"records {self.first_record} to {self.first_record + self.records}"


@dataclass(frozen=True)
class Blocked:
    """Records of a partition that are there and cannot be read until an open transaction is decided."""

    records: int
    seconds: float
    """For how long this process has seen the same transaction open."""


@dataclass(frozen=True)
class SourcePlan:
    """What to read next."""

    splits: tuple[Split, ...]
    position: Position
    """Where the source stands once the splits have been read; durable by the epoch's commit."""
    records: int
    """The splits' records, summed."""
    backlog_records: int
    """An estimate of what is there already and can be read, beyond these splits."""
    exhausted: bool
    """Nothing will come after these splits unless somebody adds input."""
    end_record: int
    """The dense count of the stream's records after these splits; exact when the source counts exactly."""
    warnings: tuple[str, ...] = ()
    """What an operator should know, such as a file that was replaced. Repeated by every plan from the same position."""
    event_now: int | None = None
    """The event time, in microseconds, that tuples made at ``now`` have; None: that of the wall clock."""
    backlog_by_partition: Mapping[int, int] = field(default_factory=dict)
    """``backlog_records`` by partition, where the stream has partitions."""
    skipped_records: int = 0
    """Records that were gone before they were read, since the stream's start; a part of the position."""
    replacements: int = 0
    """How often what is read was replaced by something else that has its name, since the stream's start; a part of the position."""
    arrivals: Arrivals | None = None
    """When the splits' records came, where the driver knows that. None: readers say it, or they came when this was planned."""
    pending_from: int | None = None
    """The least event time of what is there and not in these splits, which the watermark must not pass; microseconds. None: not known."""
    pending: str = ""
    """Where that is: a file's name."""
    deletions: int = 0
    """How many of the topics that were read were deleted, since the stream's start; a part of the position."""
    topics: Mapping[int, tuple[str, int]] = field(default_factory=dict)
    """By partition, the topic that it is of, and its number in that; where the stream is of topics by pattern."""
    blocked: Mapping[int, Blocked] = field(default_factory=dict)
    """By partition, what is there and cannot be read yet; not a part of the backlog. Without partitions that have no such records."""

    def without_splits(self, position: Position | None, read: int) -> SourcePlan:
        """The plan to read nothing now, so that all of it is backlog: it goes on from ``position``, where ``read`` records were read."""
        by_partition = dict(self.backlog_by_partition)
        for split in self.splits:
            if split.partition is not None:
                by_partition[split.partition] = by_partition.get(split.partition, 0) + split.records
        return replace(
            self,
            splits=(),
            position=position or {},
            records=0,
            end_record=read,
            backlog_records=self.backlog_records + self.records,
            backlog_by_partition=by_partition,
            exhausted=False,
        )

    @property
    def waiting_records(self) -> int:
        """``backlog_records`` with what cannot be read yet."""
        return self.backlog_records + sum(each.records for each in self.blocked.values())

    @property
    def waiting_by_partition(self) -> dict[int, int]:
        """``backlog_by_partition`` with what cannot be read yet."""
        none = Blocked(0, 0.0)
        return {number: count + self.blocked.get(number, none).records for number, count in self.backlog_by_partition.items()}


@dataclass(frozen=True)
class Rejected:
    """A record that does not parse, for the dead letters."""

    position: int
    """The record's offset within its split."""
    raw: str
    """The record as it was, at most ``RAW_LIMIT_BYTES``; ``base64:`` and the encoded bytes where it is not UTF-8."""
    error: str
    place: str = ""
    """Where it lies more exactly than the split says: the file, and the byte or row in it."""
    is_late: bool = False
    """It could be used, but came too late."""
    again: str | None = ""
    """Whether the record can be read again, alone; None: it cannot. The name of a file of which nothing else was read: that file can."""
    origin: tuple[Split, int] | None = None
    """A split, and as which of its records this one can be read again; None: the one that is being read, and ``position``."""


@dataclass
class Records:
    """A batch of a split's records, in their order; rejected ones are absent from ``batch``."""

    batch: pa.RecordBatch
    """The rows, in the declared schema."""
    positions: np.ndarray | None = None
    """int64: the offset within the split of each row; None where the rows are consecutive from ``first``."""
    rejected: list[Rejected] = field(default_factory=list)
    first: int = 0
    """The offset within the split of the first row, where ``positions`` is None."""
    errors: int = 0
    """Errors that the reader got over since the batch before."""
    arrived: Stamps | None = None
    """When records came that no batch before has told of, where readers know that and the driver does not."""

    def moved(self, by: int) -> Records:
        """The same, so many records further within the split."""
        if by == 0:
            return self
        positions = None if self.positions is None else self.positions + by
        rejected = [replace(letter, position=letter.position + by) for letter in self.rejected]
        return replace(self, positions=positions, rejected=rejected, first=self.first + by)

    def offsets(self) -> np.ndarray:
        """The offset within the split of each row, int64."""
        if self.positions is not None:
            return self.positions
        return np.arange(self.first, self.first + self.batch.num_rows, dtype=np.int64)


def no_records(schema: pa.Schema) -> pa.RecordBatch:
    """A batch without rows."""
    return pa.RecordBatch.from_arrays([pa.array([], item.type) for item in schema], schema=schema)


class Reader(Protocol):
    """The part of a source that lives in tasks. Picklable."""

    def read(self, split: Any) -> Iterator[Records]:
        """The split's records, in batches of at most ``MAX_BATCH_ROWS`` rows. Raises SourceError, UnavailableError."""


@runtime_checkable
class Keeping(Protocol):
    """A reader whose process keeps something open for the next ``read``."""

    def close(self) -> None:
        """Close what nobody reads from now; another ``read`` opens it anew. Raises nothing."""


@runtime_checkable
class Divisible(Protocol):
    """A reader whose splits can be divided, down to single records, to find the one that cannot be read."""

    def halves(self, split: Any) -> tuple[Any, ...]:
        """The split as two, which have its records in order; their ``first_record`` says where in the stream each begins. Empty: it cannot
        be divided."""

    def raw(self, split: Any) -> str:
        """The only record of a split as it was written (``text.raw_text``). Raises what reading raises."""


class Source(Protocol):
    """The part of a source that lives in the driver."""

    @property
    def reader(self) -> Reader: ...

    def plan(
        self, position: Position | None, limit_records: int, now: float, final: bool = False, *, split_records: int | None = None
    ) -> SourcePlan:
        """The next splits after ``position`` (None: from the start), of about ``limit_records`` records.

        ``split_records``: no split is to have more than about so many, where the source can cut there; None: as the source sees fit.
        ``now`` is the wall clock in seconds since 1970. ``final``: no more input will come, so take what is otherwise
        left for later. Raises SourceError, UnavailableError.
        """

    def referenced(self, position: Position | None) -> frozenset[str]:
        """The names of the snapshots that ``position`` needs; all others that this source put may be deleted."""
        return frozenset()


@runtime_checkable
class Follower(Protocol):
    """A source that tells others how far it has been read. What it tells them decides nothing."""

    def committed(self, position: Position) -> None:
        """``position`` is durable. Raises nothing; called again for the same position after a restart."""


@dataclass(frozen=True)
class Traffic:
    """What became of a source's or sink's talk with its servers in this process's time."""

    sent_records: int = 0
    """Acknowledged by the servers, those that were sent again included."""
    sent_bytes: int = 0
    failures: int = 0
    """Attempts to send that failed."""
    errors: int = 0
    """What the servers, or the way to them, did wrong; most of it was got over by connecting or asking again."""


@runtime_checkable
class Counting(Protocol):
    """A source or sink that counts."""

    @property
    def traffic(self) -> Traffic: ...


class Snapshots(Protocol):
    """The store in which a source keeps what is too big for its position. A name has one content only, but may be put again."""

    def put(self, name: str, data: bytes) -> None: ...

    def get(self, name: str) -> bytes: ...


@dataclass(frozen=True)
class Staged:
    """Results that await the epoch's commit: a finished file, or what is too little for one. Paths are relative to the sink's root."""

    path: str
    """Empty: no file was made."""
    final: str
    rows: int
    nbytes: int
    text: str = ""
    """What a sink without files (the console) publishes instead; of a table's file, what the table's log is to say of it."""
    data: bytes = field(default=b"", repr=False)
    """What is in no file yet, in the sink's own form; the commit keeps it."""
    extent: Extent | None = None
    """Where."""
    join: str = ""
    """The join whose results they are. Empty: the only join."""
    since: float | None = None
    """Of a dead letter that waits for more: the wall clock when it began to."""
    is_fed: bool = False
    """Whether it is for the streams that read the join's results (``io.results_source``), not for its sink."""

    def to_json(self) -> dict[str, Any]:
        """The fields for the commit, without the data; ``from_json`` reads them back."""
        value: dict[str, Any] = {"path": self.path, "final": self.final, "rows": self.rows, "bytes": self.nbytes}
        if self.text:
            value["text"] = self.text
        if self.join:
            value["join"] = self.join
        if self.since is not None:
            value["since"] = self.since
        return value if self.extent is None else value | {"extent": self.extent.to_json()}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Staged:
        extent = Extent(*value["extent"]) if "extent" in value else None
        text, join, since = value.get("text", ""), value.get("join", ""), value.get("since")
        return cls(value["path"], value["final"], value["rows"], value["bytes"], text, extent=extent, join=join, since=since)


class Writer(Protocol):
    """Takes one task's results of one epoch."""

    def write(self, batch: pa.RecordBatch) -> None: ...

    def close(self) -> list[Staged]:
        """End writing, and return what was staged. If nothing was written, that is nothing, and there is no file."""

    def abort(self) -> None:
        """Removes what was staged. May be called at any time, also after ``close``."""


class Sink(Protocol):
    """A place where results go. Picklable: writers are made in tasks, the rest is called in the driver."""

    refused: RefusedResults | None = None
    """Where results go that the sink's server refuses; None: one ends the run."""

    @property
    def gather_seconds(self) -> float:
        """How long small results may wait for more, so that there are fewer files; 0: they are published with their epoch."""
        return 0.0

    def writer(self, name: str, stem: str, *, small_bytes: int = 0) -> Writer:
        """A writer for one task of one epoch.

        ``name`` is unique to the epoch, task and attempt: attempts that run at once never touch each other's files.
        ``stem`` names the published files; it may be the same for all attempts of an epoch's task.
        ``small_bytes``: results of no more than this are left in :attr:`Staged.data` rather than in a file.
        """

    def gather(self, small: Sequence[Staged], name: str, stem: str) -> list[Staged]:
        """Gather small results of one epoch or several into what is to be committed and published. ``name`` and ``stem`` as for a writer.

        Raises SinkError, StorageError.
        """
        return list(small)

    def claim(self, owner: Owner, *, takes: bool) -> None:
        """Raises OwnedElsewhere where the output is another checkpoint's; SinkError, StorageError, UnavailableError.

        ``takes``: it is this one's from now on, if it is nobody's. A sink whose output belongs to nobody does nothing.
        """
        return

    def publish(self, staged: Sequence[Staged], *, again: bool = False) -> None:
        """Makes committed results visible. Raises SinkError where some are lost, UnavailableError.

        ``again``: by a driver that does not know whether its predecessor did; what is gone has been published, and then taken away.
        """

    def sweep(self, may_remove: Callable[[str], bool]) -> int:
        """Removes staged files left behind by a crash, where the name (as given to ``writer``, with a suffix) may go.

        Returns how many.
        """
        return 0

    def finish(self) -> None:
        """Waits for what the sink does beside the join, as rewriting a table's small files. Raises nothing."""
        return


def portions(pieces: Iterable[T], most: int, size: Callable[[T], int] = attrgetter("nbytes")) -> Iterator[list[T]]:
    """The same pieces in lists, each of which ends once it comes to so much. O(n)."""
    portion: list[T] = []
    total = 0
    for piece in pieces:
        portion.append(piece)
        total += size(piece)
        if total >= most:
            yield portion
            portion, total = [], 0
    if portion:
        yield portion


def arrow_bytes(batches: Sequence[pa.RecordBatch], compression: str | None = None, *, is_file: bool = False) -> pa.Buffer:
    """One or more batches of one schema in Arrow's format of streams, or, with ``is_file``, in that of files. O(bytes)."""
    found = pa.BufferOutputStream()
    make = ipc.new_file if is_file else ipc.new_stream
    with make(found, batches[0].schema, options=ipc.IpcWriteOptions(compression=compression)) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return found.getvalue()
