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
- A standby (``controlplane.standby``) claims only from the driver that it has watched: where the newest entry is another's, it claims
  nothing. So of several standbys one takes over, and none takes over from another.
- An entry that a savepoint keeps stays, with all that it names, for as long as the newest entry has the savepoint.
- A store that lets an object be created twice (some imitations of S3 do not know the condition) would break all of this in silence, so a
  driver that claims a log in an object store tries that first.
"""

from __future__ import annotations

import itertools
import json
import os
import secrets
import socket
import time
import uuid
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from streamjoin import __version__
from streamjoin.state.checkpoint import Checkpoint, Savepoint, Texts
from streamjoin.state.checks import END, is_whole
from streamjoin.state.codec import read
from streamjoin.state.storage import AlreadyExists, Missing, Storage, StorageError

FORMAT = 5
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


def new_seed() -> int:
    """Nobody can foresee it, and it is not 0."""
    return 1 + secrets.randbelow((1 << 63) - 1)


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
class Entry:
    """One entry of the log."""

    sequence: int
    incarnation: int
    """Counts the drivers that have claimed this log; the newest may commit."""
    writer: str
    """Unique to one driver process: ``host:pid:random``, and ``@`` with the URL of its port where it has one."""
    kind: str
    written_at: float
    checkpoint: Checkpoint

    def encode(self, segment: bytes = b"", known: Texts | None = None) -> bytes:
        """``segment``: what else the entry is to hold, at its beginning; ``known``: blocks that were written before."""
        values = {name: getattr(self, name) for name in Entry.__slots__ if name != "checkpoint"}
        head = json.dumps({"format": FORMAT, "version": __version__, **values})[:-1]
        text = f'{head}, "checkpoint": {self.checkpoint.encode(known)}}}'.encode()
        return segment + text + END.pack(len(text), zlib.crc32(text, zlib.crc32(segment)))

    @property
    def address(self) -> str | None:
        """The URL at which its driver could be asked."""
        return self.writer.partition("@")[2] or None

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
        found, wanted = f"format {written_as}", f"reads format {FORMAT}"
        if written_as == FORMAT:
            try:
                return read(cls, values)
            except ValueError as error:
                found, wanted = f"{found} with other fields ({error})", "cannot read them"
        raise StorageError(
            f"the checkpoint has {found}, written by streamjoin {writer}, and this version ({__version__}) {wanted}; go on with streamjoin"
            f" {writer}, or choose a new checkpoint.location"
        )


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


def read_kept(storage: Storage, name: str, savepoint: Savepoint) -> Checkpoint:
    """The checkpoint that a savepoint keeps. Raises StorageError."""
    try:
        return Entry.decode(storage.get(savepoint.path)).checkpoint
    except (Missing, Damaged) as error:
        damage = f"{storage.url}/{savepoint.path}: savepoint {name}, which is this entry, cannot be read ({error})"
        raise StorageError(f"{damage}; restore the entry, or delete the savepoint (streamjoin savepoint delete)") from error


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
        self.latest: Entry | None = None
        """The newest entry of this driver; None: it has not claimed the log yet. Any thread may read it."""
        self.found = Checkpoint()
        """The checkpoint as it was before this driver's claim."""
        self._verified_at = _Moment(0.0, 0.0)
        self._generation = 0
        """Of the newest entry's plan."""
        self._texts = Texts()
        self._ahead: Checkpoint | None = None
        """Of a claim that nobody has begun from yet."""
        self._unknown = False
        """Storage failed for good in a commit, which may have taken effect: what the log holds next is not known."""
        self._kept_since: dict[int, _Moment | None] = {}
        """Of each entry that is there, by sequence number, ascending, so that removing old ones needs no listing: since when it is known,
        from which on it stays for ``RETAIN_SECONDS``; None: it need not."""

    def reachable_at(self, url: str) -> None:
        """Entries are to say where this driver can be asked. Call it before the claim."""
        self.writer = f"{self.writer}@{url}"

    def claim_after(self, incarnation: int) -> None:
        """Claim ahead of ``begin``, from the driver of this incarnation (0: from none) and from no other.

        Raises Superseded where another has claimed the log since, StorageError as ``claim`` does.
        """
        self._ahead = self.claim(incarnation)

    def begin(self) -> Checkpoint:
        """The checkpoint to go on from: of the claim that was made ahead, or of one that is made now. Raises StorageError."""
        ahead, self._ahead = self._ahead, None
        return self.claim() if ahead is None else ahead

    def claim(self, after: int | None = None) -> Checkpoint:
        """Take the log over from whoever had it and return the checkpoint to go on from. O(retained entries).

        ``after``: only from the driver of this incarnation. Raises Superseded where it is another's by now, StorageError when storage
        fails more than ATTEMPTS times.
        """
        while True:
            self._verified_at = self._now()
            latest = read_latest(self._storage)
            if after is not None and (0 if latest is None else latest.incarnation) != after:
                who = "nobody" if latest is None else f"{latest.writer}, incarnation {latest.incarnation},"
                raise Superseded(f"{self._storage.url}: {who} has the checkpoint, and not incarnation {after}")
            known = latest.checkpoint if latest else Checkpoint(identity=uuid.uuid4().hex[:8], seed=new_seed())
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
            self.found = known
            self._generation = checkpoint.plan.generation
            return checkpoint

    @property
    def newest_path(self) -> str:
        """The path of the newest entry of this driver."""
        return path_of(self.sequence)

    @property
    def next_path(self) -> str:
        """The path of the next commit's entry."""
        return path_of(self.sequence + 1)

    def commit(self, checkpoint: Checkpoint, segment: bytes = b"") -> None:
        """Make the checkpoint the truth, and with it what it names of ``segment``, which lies at the beginning of ``next_path``.

        Raises Superseded when another driver has taken over, StorageError when the outcome is unknown.
        """
        self._append("epoch", checkpoint, segment)
        self._kept_since[self.sequence] = self._now() if checkpoint.plan.generation != self._generation else None
        self._generation = checkpoint.plan.generation

    def is_held(self) -> bool:
        """Whether this driver is still the newest that has claimed the log."""
        latest = read_latest(self._storage)
        return latest is not None and latest.incarnation == self.incarnation

    def require_held(self) -> None:
        """Raises Superseded where another driver has claimed the log since; StorageError."""
        latest = read_latest(self._storage)
        if latest is not None:
            self._require_written_here(latest)

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
        self.sequence, self.latest = sequence, entry
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
        path = self.newest_path
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
        self._require_written_here(entry)

    def _require_written_here(self, entry: Entry) -> None:
        if entry.writer != self.writer or entry.incarnation != self.incarnation:
            raise Superseded(
                f"{self._storage.url}: another driver ({entry.writer}, incarnation {entry.incarnation}) has taken over this checkpoint; "
                f"this one ({self.writer}, incarnation {self.incarnation}) cannot commit any more and stops"
            )

    def trim(self, is_needed: Callable[[str], bool]) -> None:
        """Remove entries that nobody can need: see the module for what makes that safe. ``is_needed``: whether the one of a path stays."""
        now, behind = self._now(), itertools.islice(self._kept_since.items(), max(0, len(self._kept_since) - RETAIN_ENTRIES))
        free = [sequence for sequence, since in behind if since is None or since.is_surely_longer_ago_than(RETAIN_SECONDS, now)]
        old = [sequence for sequence in free if not is_needed(path_of(sequence))]
        if len(old) >= TRIM_ENTRIES:
            self._storage.delete_many([path_of(sequence) for sequence in old])
            for sequence in old:
                del self._kept_since[sequence]
