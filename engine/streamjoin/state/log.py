"""The commit log: one linear sequence of entries, each created exclusively, so that an epoch happens once and an older driver stops.

An entry is ``log/<sequence>.entry``: small blocks and results of its epoch (a :class:`~streamjoin.state.extent.Segment`), then the whole
:class:`Checkpoint` after it as JSON, then that JSON's length and a checksum of it all. So an epoch of little is one object. There are two
kinds: an *epoch*, and a *claim*, which a driver that starts writes to take the log over. The latest entry is the truth. Each says the
number of its format; one of another number is refused, and stays as it is.

Why this is exactly once, and what a crash does:

- An entry exists or does not; creating it is the commit point. Blocks and outputs that no entry names were never there.
- All that an entry names is durable before it is created, and the entry before the create returns. It gets its name only once its bytes are
  flushed: so a power loss leaves it whole or not at all, and a commit that nobody was told of blocks no number. An entry that is damaged is
  therefore nothing that a driver may step over: the disk has lost what it had confirmed, and what followed from it may be visible.
- Two drivers race for the next sequence number. Who loses reads the entry that won: if it is of another incarnation the loser raises
  :class:`Superseded` and must not publish anything more. A claim by a newer driver therefore stops the older at its next commit.
- A create whose answer was lost is repeated; finding an entry with our own writer id means that it had succeeded.
- What keeps an older driver out is one entry: the claim of the newer one lies where the older will commit next. So claims stay for
  ``RETAIN_SECONDS``, and a driver that slept longer than half of that, before its create or in it, lists the log after it: an entry beyond
  its own means that it wrote into a hole in the past. Two clocks tell the time: the wall clock, which may be set back, and the one since
  the machine's start, which goes on while the machine is suspended, but not while a virtual one is halted. A sleep is as long as the one
  says that says more, a claim as old as the one that says less. A plan's first entry stays as long, for those who want to see what it
  changed. Other entries go as soon as they are ``RETAIN_ENTRIES`` behind and nothing in them is needed. A driver that claims may find such
  a hole at any time, so it always lists.
- A store that lets an object be created twice (some imitations of S3 do not know the condition) would break all of this in silence, so a
  driver that claims a log in an object store tries that first.
"""

from __future__ import annotations

import itertools
import json
import os
import socket
import time
import uuid
import zlib
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from streamjoin import __version__
from streamjoin.elastic.completeness import Losses
from streamjoin.elastic.meetings import Meeting
from streamjoin.elastic.sequences import Way, Ways
from streamjoin.language.floors import Floors
from streamjoin.snapshots.punctuation import Pending
from streamjoin.snapshots.timeline import Timeline
from streamjoin.state.blocks import Block
from streamjoin.state.checks import END, is_whole
from streamjoin.state.extent import Extent
from streamjoin.state.fed import Fed
from streamjoin.state.storage import AlreadyExists, Missing, Storage, StorageError

FORMAT = 1
"""Of entries, with the checkpoint in them. To change a field is another number."""
RETAIN_ENTRIES = 32
"""The number of entries that stay for those who read the log meanwhile."""
RETAIN_SECONDS = 600.0
TRIM_ENTRIES = 16
"""The number of entries that are removed in one request."""
ATTEMPTS = 4


class Damaged(StorageError):  # noqa: N818
    """An entry is not as it was written."""


class Superseded(RuntimeError):  # noqa: N818
    """Another driver has taken this checkpoint over; this one has committed nothing since and must stop."""


def since_boot() -> float:
    """Seconds since this machine's start, those in which it was suspended included."""
    # macOS has no CLOCK_BOOTTIME: its CLOCK_MONOTONIC counts them.
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


@dataclass(frozen=True, slots=True)
class _Moment:
    wall: float
    boot: float

    def is_longer_ago_than(self, seconds: float, now: _Moment) -> bool:
        """Whether it is longer ago by either clock."""
        return max(now.wall - self.wall, now.boot - self.boot) > seconds

    def is_surely_longer_ago_than(self, seconds: float, now: _Moment) -> bool:
        """Whether it is longer ago by both clocks."""
        return min(now.wall - self.wall, now.boot - self.boot) > seconds


@dataclass(frozen=True, slots=True)
class Newest:
    """The newest record of a stream's partition."""

    time_max: int
    """Its event time, in microseconds."""
    seen_at: float
    """When the epoch ended that read the partition's last record; seconds since 1970."""


BLOCKS = ("blocks", "marks")
"""The fields of a checkpoint that name blocks."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """All that survives: the state of a join after an epoch. Tuples are by stream, unless it is said by what."""

    identity: str = ""
    """Unique to the checkpoint, given at its first claim: a part of every name that its drivers give to files."""
    epoch: int = -1
    """The last committed epoch; -1: none yet."""
    positions: tuple[dict[str, Any] | None, ...] = (None, None)
    """What each source has been read up to, in the source's own terms."""
    records: tuple[int, ...] = (0, 0)
    """Records that each stream has delivered, filtered and rejected ones included."""
    watermarks: tuple[int | None, ...] = (None, None)
    """After ``epoch``, in microseconds."""
    effective: tuple[int | None, ...] = (None, None)
    """Those after the epoch before: the next epoch goes by these, so that it can be planned before ``epoch`` is over, with one result."""
    partitions: tuple[dict[int, Newest], ...] = field(default_factory=lambda: ({}, {}))
    """How far each partition of a stream has come; empty without partitions."""
    heard: tuple[float | None, ...] = ()
    """When each stream last had records, read or left: the end of that epoch, seconds since 1970. Empty: not known."""
    widths: tuple[float, ...] = (0.0, 0.0)
    """Bytes of a record of each stream, as it is in memory, going by the last epochs; 0: not known yet."""
    main: str | None = None
    """The main predicate, written out; chosen among the condition's candidates with the first plan, then fixed: blocks lie in its order."""
    floors: dict[str, Any] | None = None
    """On which floors tuples lie (``language.floors``). None: of one join over three and more streams, or nothing is held yet."""
    generation: int = 0
    scheme: dict[str, Any] | None = None
    first_workers: int = 0  # of the first plan (ESJ's M); 0: not known
    ways: Ways = ()
    """By join over three and more streams, by floor, for each of its streams: the order in which its new tuples met the others, and how."""
    flowing: dict[str, Any] = field(default_factory=dict)
    """What those ways are priced by (``elastic.sequences.Flowing``), as it was measured; of several joins ``joins`` has that of each."""
    expired: tuple[int | None, ...] = (None, None)
    """``_time`` below which this epoch has let held tuples go, by place."""
    blocks: tuple[Block, ...] = ()
    marks: tuple[Block, ...] = ()
    """Which of the tuples in them have matched (``epoch.matches``)."""
    held: dict[int, tuple[int, ...]] = field(default_factory=dict)
    """Tuples that each task holds by place, replicas included."""
    held_bytes: dict[int, tuple[int, ...]] = field(default_factory=dict)
    """Bytes of them, as they lie in memory."""
    tokens: dict[int, str] = field(default_factory=dict)
    """Which attempt of each task this epoch's result is: a worker that has that attempt's runs need not read them back."""
    totals: dict[str, list[int]] = field(default_factory=dict)
    """Counters since the first epoch, per stream where that makes sense; see ``epoch.reports``."""
    losses: Losses = field(default_factory=Losses)
    """How complete results are, and what is remembered for it."""
    staged: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    """What this epoch's commit makes visible, by sink, to be published (again) before the next commit."""
    waiting: tuple[dict[str, Any], ...] = ()
    """Small results of this epoch and some before, which a later commit makes visible together."""
    waiting_since: float | None = None  # the wall clock at the commit of the first of them
    outputs: dict[str, str] = field(default_factory=dict)  # by join's tag: where results were made visible last
    fed: tuple[Fed, ...] = ()
    """Results that streams are yet to read."""
    fingerprint: dict[str, str] = field(default_factory=dict)
    committed_at: float | None = None
    """The wall clock at the commit of ``epoch``; None: there was none yet."""
    snapshots: dict[str, Timeline] = field(default_factory=dict)
    """By join, its snapshots of results that are open, or closed and not stored yet."""
    punctuations: Pending = field(default_factory=Pending)
    """Punctuations that wait for others of the same identifier."""
    claims: int = 0  # by drivers, one after another, none of which has committed an epoch
    is_over: bool = False
    """The input has ended, and all of it is joined: no results come any more, unless a driver claims the log again."""

    def sized(self, streams: int, places: int) -> Checkpoint:
        """An empty checkpoint for so many streams, held in so many places; one that has epochs as it is."""
        if self.epoch >= 0:
            return self
        nothing: tuple[None, ...] = (None,) * streams
        return replace(
            self,
            positions=nothing,
            records=(0,) * streams,
            watermarks=nothing,
            effective=nothing,
            partitions=tuple({} for _ in range(streams)),
            widths=(0.0,) * streams,
            expired=(None,) * places,
        )

    @property
    def lying(self) -> Floors | None:
        """Its ``floors``."""
        return None if self.floors is None else Floors.from_json(self.floors)

    def on(self, floors: Floors | None) -> Checkpoint:
        """The same with tuples that lie on these."""
        return replace(self, floors=None if floors is None else floors.to_json())

    def to_json(self) -> dict[str, Any]:
        return self._others() | {name: [block.to_json() for block in getattr(self, name)] for name in BLOCKS}

    def _others(self) -> dict[str, Any]:
        """All but the blocks."""
        values = {name: getattr(self, name) for name in Checkpoint.__slots__ if name not in BLOCKS}
        values["snapshots"] = {join: timeline.to_json() for join, timeline in self.snapshots.items()}
        values["punctuations"] = self.punctuations.to_json()
        values["losses"] = self.losses.to_json()
        values["ways"] = [[list(way.order), way.fetches, list(way.meetings)] for way in self.ways]
        values["fed"] = [part.to_json() for part in self.fed]
        values["partitions"] = [{number: [newest.time_max, newest.seen_at] for number, newest in side.items()} for side in self.partitions]
        return values

    def encode(self, known: Texts) -> str:
        """:meth:`to_json` as text. O(blocks), with little for those that ``known`` has."""
        others = json.dumps(self._others())
        return others[:-1] + "".join(f', "{name}": [{", ".join(texts)}]' for name, texts in known.of(self).items()) + "}"

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Checkpoint:
        read = dict(values)
        for name in ("positions", "records", "watermarks", "effective", "heard", "widths", "expired", "waiting"):
            read[name] = tuple(read[name])
        read["partitions"] = tuple({int(number): Newest(*newest) for number, newest in side.items()} for side in read["partitions"])
        for name in BLOCKS:
            read[name] = tuple(map(Block.from_json, read[name]))
        read["fed"] = tuple(map(Fed.from_json, read["fed"]))
        read["ways"] = tuple(Way(tuple(order), fetches, tuple(map(Meeting, meetings))) for order, fetches, meetings in read["ways"])
        read["snapshots"] = {join: Timeline.from_json(timeline) for join, timeline in read["snapshots"].items()}
        read["punctuations"] = Pending.from_json(read["punctuations"])
        read["losses"] = Losses.from_json(read["losses"])
        for name in ("held", "held_bytes"):
            read[name] = {int(task): tuple(held) for task, held in read[name].items()}
        read["tokens"] = {int(task): token for task, token in read["tokens"].items()}
        return cls(**read)

    def entries(self) -> set[str]:
        """The paths of the entries that hold something that it names."""
        results = [Extent(*value["extent"]) for value in itertools.chain(*self.staged.values(), self.waiting) if "extent" in value]
        extents = (*results, *(part.extent for part in self.fed), *(block.extent for block in self.stored))
        return {extent.path for extent in extents if extent is not None}

    def snapshot_parts(self, *, in_entries: bool) -> set[str]:
        """The paths of the log's entries, or of other objects, that have rows of snapshots which are not stored yet."""
        parts = (part for timeline in self.snapshots.values() for part in timeline.parts)
        return {part.path for part in parts if (part.extent is not None) is in_entries}

    @property
    def stored(self) -> tuple[Block, ...]:
        """Blocks of tuples and of marks."""
        return self.blocks + self.marks


class Texts:
    """The blocks of the last checkpoint as they were written: most are in the next one, too, unchanged, and the same objects."""

    def __init__(self) -> None:
        self._texts: dict[int, tuple[Block, str]] = {}
        """By the object's identity; the object is kept, so that no other has it."""

    def of(self, checkpoint: Checkpoint) -> dict[str, list[str]]:
        """Per kind of blocks their texts. Those of the checkpoint before are forgotten."""
        before, self._texts = self._texts, {}
        found: dict[str, list[str]] = {}
        for name in BLOCKS:
            texts = found[name] = []
            for block in getattr(checkpoint, name):
                known = before.get(id(block)) or (block, json.dumps(block.to_json()))
                self._texts[id(block)] = known
                texts.append(known[1])
        return found


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of the log."""

    sequence: int
    incarnation: int
    """Counts the drivers that have claimed this log; the newest may commit."""
    writer: str
    """Unique to one driver process: ``host:pid:random``."""
    kind: str
    written_at: float
    checkpoint: Checkpoint

    def encode(self, segment: bytes = b"", known: Texts | None = None) -> bytes:
        """``segment``: what else the entry is to hold, at its beginning; ``known``: blocks that were written before."""
        values = {name: getattr(self, name) for name in Entry.__slots__ if name != "checkpoint"}
        head = json.dumps({"format": FORMAT, "version": __version__, **values})[:-1]
        text = f'{head}, "checkpoint": {self.checkpoint.encode(known or Texts())}}}'.encode()
        return segment + text + END.pack(len(text), zlib.crc32(text, zlib.crc32(segment)))

    @classmethod
    def decode(cls, data: bytes) -> Entry:
        """Raises StorageError for an entry of another format, Damaged for one that is not as it was written. O(bytes)."""
        if len(data) < END.size:
            raise Damaged(f"it has {len(data)} bytes")
        length, _ = END.unpack(data[-END.size :])
        if length > len(data) - END.size or not is_whole(data):
            raise Damaged(f"its {len(data)} bytes are not those that were written")
        values = json.loads(data[-END.size - length : -END.size])
        written_as, writer = values.pop("format", None), values.pop("version", "of another version")
        if written_as != FORMAT:
            raise StorageError(
                f"the checkpoint has format {written_as}, written by streamjoin {writer}, and this version ({__version__}) reads format"
                f" {FORMAT}; go on with streamjoin {writer}, or choose a new checkpoint.location"
            )
        return cls(**{**values, "checkpoint": Checkpoint.from_json(values["checkpoint"])})


def path_of(sequence: int) -> str:
    return f"log/{sequence:016d}.entry"


def _sequence_of(path: str) -> int:
    return int(path.rsplit("/", 1)[1].removesuffix(".entry"))


def read_latest(storage: Storage) -> Entry | None:
    """The truth, or None for a new checkpoint. An entry may be removed between list and read, then a later one exists.

    Raises StorageError, also where the newest entry is damaged.
    """
    for _ in range(ATTEMPTS):
        paths = storage.list("log")
        if not paths:
            return None
        try:
            return Entry.decode(storage.get(paths[-1]))
        except Damaged as error:
            raise _cannot_go_on(storage, paths, error) from error
        except StorageError as error:
            last = error
    raise last


def _cannot_go_on(storage: Storage, paths: Sequence[str], error: Damaged) -> StorageError:
    """What is to be done about the newest of these entries, which is damaged."""
    text = (
        f"{storage.url}/{paths[-1]}: this entry is damaged ({error}): the storage has lost what it had confirmed, as a disk does that does "
        "not flush its cache when it is told to. Restore the entry"
    )
    try:
        before = Entry.decode(storage.get(paths[-2]))
    except (IndexError, StorageError):
        return StorageError(f"{text}; without it there is no state to go on from, so else choose a new checkpoint.location")
    return StorageError(
        f"{text}; or remove it: then the join goes on from {paths[-2]}, after epoch {before.checkpoint.epoch}, and results of the epoch "
        "after that may be visible twice if it had been committed"
    )


class CommitLog:
    """One driver's hold on the log. Not safe for use by several threads."""

    def __init__(
        self,
        storage: Storage,
        *,
        clock: Callable[[], float] = time.time,
        boot_clock: Callable[[], float] = since_boot,
        identity: str | None = None,
    ) -> None:
        self._storage = storage
        self._clock = clock
        self._boot_clock = boot_clock
        self.writer = identity or f"{socket.gethostname()}:{os.getpid()}:{uuid.uuid4().hex[:8]}"
        self.incarnation = 0
        self.sequence = -1
        self._verified_at = _Moment(0.0, 0.0)
        self._generation = 0
        """Of the newest entry's plan."""
        self._texts = Texts()
        self._unknown = False
        """Storage failed for good in a commit, which may have taken effect: what the log holds next is not known."""
        self._kept_since: dict[int, _Moment | None] = {}
        """Of each entry that is there, by sequence number, ascending, so that removing old ones needs no listing: since when it is known,
        from which on it stays for ``RETAIN_SECONDS``; None: it need not."""

    def claim(self) -> Checkpoint:
        """Take the log over from whoever had it and return the checkpoint to go on from. O(retained entries).

        Raises StorageError when storage fails more than ATTEMPTS times.
        """
        while True:
            self._verified_at = self._now()
            latest = read_latest(self._storage)
            known = latest.checkpoint if latest else Checkpoint(identity=uuid.uuid4().hex[:8])
            checkpoint = replace(known, is_over=False, claims=known.claims + 1)
            self.incarnation = latest.incarnation + 1 if latest else 1
            self.sequence = latest.sequence if latest else -1
            try:
                data = self._append("claim", checkpoint)
            except Superseded:
                continue  # the previous driver committed, or another one claimed, in between: read again
            found = [_sequence_of(path) for path in self._storage.list("log")]
            if found and found[-1] > self.sequence:
                continue  # the previous driver is far ahead, and the claim in a hole that it left behind
            self._require_exclusive(data)
            self._kept_since = dict.fromkeys(found, self._now())
            self._generation = checkpoint.generation
            return checkpoint

    @property
    def next_path(self) -> str:
        """The path of the next commit's entry."""
        return path_of(self.sequence + 1)

    def commit(self, checkpoint: Checkpoint, segment: bytes = b"") -> None:
        """Make the checkpoint the truth, and with it what it names of ``segment``, which lies at the beginning of ``next_path``.

        Raises Superseded when another driver has taken over, StorageError when the outcome is unknown.
        """
        self._append("epoch", checkpoint, segment)
        self._kept_since[self.sequence] = self._now() if checkpoint.generation != self._generation else None
        self._generation = checkpoint.generation

    def is_held(self) -> bool:
        """Whether this driver is still the newest that has claimed the log."""
        latest = read_latest(self._storage)
        return latest is not None and latest.incarnation == self.incarnation

    def _now(self) -> _Moment:
        return _Moment(self._clock(), self._boot_clock())

    def _append(self, kind: str, checkpoint: Checkpoint, segment: bytes = b"") -> bytes:
        if self._unknown:
            raise StorageError(f"{self._storage.url}: it is not known whether the last commit succeeded; start again, which finds out")
        sequence = self.sequence + 1
        now = self._now()
        entry = Entry(sequence, self.incarnation, self.writer, kind, now.wall, checkpoint)
        data, path = entry.encode(segment, self._texts), path_of(sequence)
        try:
            self._create(path, data)
            if self._verified_at.is_longer_ago_than(RETAIN_SECONDS / 2, self._now()):
                beyond = [found for found in self._storage.list("log") if found > path]
                if beyond:
                    self._require_own(beyond[-1])
        except StorageError:
            self._unknown = True  # the entry may be there, and be taken for that of a later commit, as both have one writer
            raise
        self._verified_at = now
        self.sequence = sequence
        return data

    def _create(self, path: str, data: bytes) -> None:
        """Create our entry, or find that it is there as an answer was lost; ATTEMPTS times, if need be. Raises Superseded, StorageError."""
        for attempt in range(1, ATTEMPTS + 1):
            try:
                try:
                    self._storage.create(path, data)
                except AlreadyExists:
                    self._require_own(path)
                return
            except StorageError:
                if attempt == ATTEMPTS:
                    raise

    def _require_exclusive(self, data: bytes) -> None:
        """Raises StorageError where our own entry, which is there, can be created again."""
        path = path_of(self.sequence)
        if self._storage.local_path(path) is not None:
            return
        try:
            self._storage.create(path, data)
        except AlreadyExists:
            return
        twice = "this store creates an object that exists already, so nothing would keep two drivers apart"
        remedy = "use one that knows conditional writes (If-None-Match), which docs/storage.md lists"
        raise StorageError(f"{self._storage.url}: {twice}; {remedy}")

    def _require_own(self, path: str) -> None:
        try:
            entry = Entry.decode(self._storage.get(path))
        except Missing:
            far = f"other drivers have moved this checkpoint far past {path}; this one ({self.writer}) stops"
            raise Superseded(f"{self._storage.url}: {far}") from None
        if entry.writer != self.writer or entry.incarnation != self.incarnation:
            raise Superseded(
                f"{self._storage.url}: another driver ({entry.writer}, incarnation {entry.incarnation}) has taken over this checkpoint; "
                f"this one ({self.writer}, incarnation {self.incarnation}) cannot commit any more and stops"
            )

    def trim(self, needed: Collection[str]) -> None:
        """Remove entries that nobody can need: see the module for what makes that safe. ``needed``: paths of some that stay."""
        now, behind = self._now(), itertools.islice(self._kept_since.items(), max(0, len(self._kept_since) - RETAIN_ENTRIES))
        free = [sequence for sequence, since in behind if since is None or since.is_surely_longer_ago_than(RETAIN_SECONDS, now)]
        old = [sequence for sequence in free if path_of(sequence) not in needed]
        if len(old) >= TRIM_ENTRIES:
            self._storage.delete_many([path_of(sequence) for sequence in old])
            for sequence in old:
                del self._kept_since[sequence]
