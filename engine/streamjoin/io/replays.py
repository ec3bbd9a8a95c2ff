"""Dead letters that are read again: ``streamjoin letters --replay`` asks for it, and a driver does it, in epochs as all others.

A request is an object of the checkpoint's storage that names files of dead letters; requests are numbered, and done one after another. A
letter says in which split its record was read, and as which of its records (``deadletter``). So a record is read again from its source, by
the stream as the manifest describes it now, and whatever is wrong with it still, or has become so, makes a dead letter again. A file of
which nothing could be read is forgotten by the source's position instead, which then reads it as a new one.

How far a stream has come is a part of its position, durable with the epoch that has read the records. Only after that commit are the
letters taken out of their files, and then the request is removed. Always holds: a letter that is named by a request, done or not, is named
by no later one, so each is read again once, whoever dies; and a record that cannot be had any more is a letter again.
"""

from __future__ import annotations

import contextlib
import itertools
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa

from streamjoin.io.base import (
    Counting,
    Divisible,
    Follower,
    Keeping,
    Position,
    Reader,
    Records,
    Rejected,
    Replaced,
    Source,
    SourceError,
    SourcePlan,
    Split,
    Traffic,
)
from streamjoin.io.files_reader import FileRange, FilesReader, FilesSplit
from streamjoin.io.folder import folder_at
from streamjoin.io.identity import Known
from streamjoin.io.lines import JSON_SPACE, Framing, read_range
from streamjoin.state.storage import AlreadyExists, Missing, ObjectStorage, Storage, StorageError

FOLDER = "replays"
KEY = "replays"
"""Of a stream's position."""
LOOK_SECONDS = 30.0
"""So old may the list of requests be."""
SAME = "same"
"""In place of a letter's origin: that of the letter before it in the file."""
AGAIN = "cannot be read again: "
KINDS = ("FilesSplit", "KafkaSplit")
"""Of splits whose records can be read again."""
Origin = str
"""How a letter's record is read again, as JSON: the split, or the file that is read as a new one."""


def origin_of(letter: Rejected, split: Split) -> tuple[Origin | None, int, str]:
    """How the letter's record can be read again (None: it cannot), as which record of the split that is named then, and its name."""
    given, position = letter.origin or (split, letter.position)
    read, position = (given.again, given.positions[position]) if isinstance(given, ReplaySplit) else (given, position)
    is_of_table = isinstance(read, FilesSplit) and any(hasattr(part, "partition") for part in read.ranges)
    if letter.again is None or type(read).__name__ not in KINDS or (letter.again and is_of_table):
        return None, position, read.name
    origin = {"file": letter.again} if letter.again else {"kind": type(read).__name__, **asdict(read)}
    return json.dumps(origin), position, read.name


def split_of(origin: Origin) -> Split:
    """The split that an origin names, if that is no file."""
    values = json.loads(origin)
    if values.pop("kind") == "KafkaSplit":
        from streamjoin.io.kafka_records import KafkaSplit

        return KafkaSplit(**values)
    return FilesSplit(**{**values, "ranges": tuple(map(_range_of, values["ranges"]))})


def _range_of(values: dict[str, Any]) -> FileRange:
    given = {**values, "known": None if values["known"] is None else Known(**values["known"])}
    if "partition" in given:
        from streamjoin.io.table_source import TableRange

        return TableRange(**given)
    return FileRange(**given)


def with_origins(letters: Iterable[dict[str, Any]]) -> Iterator[tuple[dict[str, Any], Origin | None]]:
    """The letters of one file, each with its origin; None: it is not to be read again."""
    before: Origin | None = None
    for letter in letters:
        origin = letter.get("again")
        before = before if origin == SAME else origin
        yield letter, before


@dataclass(frozen=True)
class Letters:
    """What a request names of one stream."""

    records: tuple[tuple[Origin, tuple[int, ...]], ...] = ()
    """By split, which of its records."""
    files: frozenset[str] = frozenset()
    """That are read as new ones."""

    @cached_property
    def count(self) -> int:
        """Of records."""
        return sum(len(positions) for _, positions in self.records)

    def cut(self, first: int, limit: int, most: int) -> Iterator[tuple[Origin, tuple[int, ...]]]:
        """Records from the first on, so many of them at most, in portions of at most ``most``."""
        for origin, positions in self.records:
            taken = positions[first : first + limit]
            for at in range(0, len(taken), most):
                yield origin, taken[at : at + most]
            first, limit = max(0, first - len(positions)), limit - len(taken)
            if limit <= 0:
                return


class Replays:
    """The requests of one checkpoint, and what of them is done. Shared by its sources."""

    def __init__(self, storage: Storage, letters: str, streams: Iterable[str]) -> None:
        """``letters``: the place of the dead letters, ``streams``: those whose records can be read again."""
        self._storage = storage
        self.letters = letters
        self._done = dict.fromkeys(streams, 0)
        self._numbers: tuple[int, ...] = ()
        self._looked_at: float | None = None
        self._opened: tuple[int, Mapping[str, Letters]] = (0, {})

    def after(self, number: int, now: float) -> int | None:
        """The next request after this one, as far as is known. Raises StorageError."""
        if self._looked_at is None or not 0 <= now - self._looked_at < LOOK_SECONDS:
            self._numbers, self._looked_at = tuple(sorted(requests(self._storage))), now
        return next((each for each in self._numbers if each > number), None)

    def of(self, number: int, stream: str) -> Letters:
        """What a request names of a stream. O(letters) once. Raises StorageError."""
        if self._opened[0] != number:
            self._opened = number, self._read(number)
        return self._opened[1].get(stream, Letters())

    def files(self, number: int) -> tuple[str, ...]:
        """The files of dead letters that a request names. Raises StorageError."""
        return tuple(json.loads(self._storage.get(_path(number)))["files"])

    def _read(self, number: int) -> dict[str, Letters]:
        records: dict[str, dict[Origin, set[int]]] = {}
        files: dict[str, set[str]] = {}
        for name in self.files(number):
            for letter, origin in letters_in(self.letters, name):
                if origin is None:
                    continue
                if "file" in (given := json.loads(origin)):
                    files.setdefault(letter["stream"], set()).add(given["file"])
                else:
                    records.setdefault(letter["stream"], {}).setdefault(origin, set()).add(letter["position"])
        return {
            stream: Letters(
                tuple((origin, tuple(sorted(positions))) for origin, positions in sorted(records.get(stream, {}).items())),
                frozenset(files.get(stream, ())),
            )
            for stream in records.keys() | files.keys()
        }

    def committed(self, stream: str, number: int) -> None:
        """A stream has come so far, and that is durable: takes what is done by all of them out of the files. Raises StorageError."""
        self._done[stream] = max(self._done[stream], number)
        if self._looked_at is None:  # a driver that died may have come so far
            self._numbers = tuple(sorted(requests(self._storage)))
        done = [each for each in self._numbers if self._is_done(each)]
        for each in done:
            with contextlib.suppress(Missing):  # nobody else removes it, but this may have been done before
                for name in self.files(each):
                    take_out(self.letters, name)
                self._storage.delete(_path(each))
        self._numbers = tuple(each for each in self._numbers if each not in done)

    def _is_done(self, number: int) -> bool:
        """Whether all streams are done with it that have something in it."""
        if max(self._done.values()) < number:
            return False
        return all(done >= number or self.of(number, stream) == Letters() for stream, done in self._done.items())


def requests(storage: Storage) -> list[int]:
    """The numbers of those that are there, done or not. Raises StorageError."""
    return [int(path.rpartition("/")[2].removesuffix(".json")) for path in storage.list(FOLDER)]


def ask(storage: Storage, files: Sequence[str], after: int) -> int:
    """Ask for all letters of these files to be read again; the request's number, above ``after``. Raises StorageError."""
    number = max([after, *requests(storage)]) + 1
    data = json.dumps({"files": list(files)}).encode()
    while True:
        try:
            storage.create(_path(number), data)
        except AlreadyExists:
            if storage.get(_path(number)) == data:  # the answer was lost; or somebody else has asked for the same
                return number
            raise StorageError("somebody else has asked for letters to be read again just now; ask again") from None
        return number


def asked_for(storage: Storage) -> set[str]:
    """The files of dead letters that requests name. Raises StorageError."""
    named: set[str] = set()
    for number in requests(storage):
        with contextlib.suppress(Missing):  # done meanwhile
            named.update(json.loads(storage.get(_path(number)))["files"])
    return named


def _path(number: int) -> str:
    return f"{FOLDER}/{number:06d}.json"


def letters_in(place: str, name: str) -> Iterator[tuple[dict[str, Any], Origin | None]]:
    """The letters of a file, each with its origin; none where it is gone. Memory: a block of it. Raises StorageError, SourceError."""
    try:
        file = folder_at(place).open(name)
    except FileNotFoundError:
        return
    with contextlib.closing(file):
        blocks = read_range(file, 0, None, Framing(JSON_SPACE))
        yield from with_origins(json.loads(line) for block in blocks for line in block.text.split(b"\n") if line.strip())


def take_out(place: str, name: str) -> None:
    """Leave in a file only the letters that cannot be read again. Raises StorageError."""
    count, left = 0, []
    for letter, origin in letters_in(place, name):
        count += 1
        left += [letter] if origin is None else []
    if not left:
        ObjectStorage(place).delete(name)
    elif len(left) < count:
        ObjectStorage(place).put(name, "".join(json.dumps(letter, ensure_ascii=False) + "\n" for letter in left).encode())


@dataclass(frozen=True, kw_only=True)
class ReplaySplit(Split):
    """Some records of a split that was read before."""

    again: Split
    positions: tuple[int, ...]
    """Which of its records, ascending."""
    stream: str
    letters: str
    """Where dead letters are, and in which files of them these are."""
    files: tuple[str, ...]
    gone: str = ""
    """Why the records are not there any more."""

    @property
    def name(self) -> str:
        return self.again.name


@dataclass(frozen=True)
class ReplayReader:
    """A source's reader, for its own splits and for those that are read again."""

    reader: Reader

    def read(self, split: Split) -> Iterator[Records]:
        """See :class:`streamjoin.io.base.Reader`. What cannot be read again is rejected."""
        return self._again(split) if isinstance(split, ReplaySplit) else self.reader.read(split)

    def _again(self, split: ReplaySplit) -> Iterator[Records]:
        wanted = np.array(split.positions, np.int64)
        is_read = np.zeros(len(wanted), bool)
        reason = split.gone or "there is no such record any more"
        try:
            if isinstance(self.reader, FilesReader) and isinstance(split.again, FilesSplit):
                self.reader.require_same(split.again)
            for records in () if split.gone else self.reader.read(split.again):
                offsets = records.offsets()
                places = np.minimum(np.searchsorted(wanted, offsets), len(wanted) - 1)
                taken = wanted[places] == offsets
                ranks = {position: rank for rank, position in enumerate(split.positions)}
                rejected = [replace(each, position=ranks[each.position]) for each in records.rejected if each.position in ranks]
                is_read[places[taken]] = True
                is_read[[each.position for each in rejected]] = True
                yield Records(records.batch.filter(pa.array(taken)), places[taken], rejected, errors=records.errors)
        except (SourceError, Replaced) as error:
            reason = str(error)
        if not is_read.all():
            yield self._lost(split, np.flatnonzero(~is_read).tolist(), reason)

    def _lost(self, split: ReplaySplit, ranks: list[int], reason: str) -> Records:
        """Letters of records that cannot be read again, as they were."""
        known = _texts(split)
        rejected = []
        for rank in ranks:
            before = known.get(split.positions[rank], {"raw": "", "error": "", "split": split.name})
            was = before["error"].rpartition("; it was: ")[2]
            rejected.append(Rejected(rank, before["raw"], f"{AGAIN}{reason}; it was: {was}", before["split"]))
        empty = next((pa.RecordBatch.from_pylist([], schema=schema) for schema in [getattr(self.reader, "schema", None)] if schema), None)
        assert empty is not None, "each reader of such a source has a schema"
        return Records(empty, np.zeros(0, np.int64), rejected)

    def halves(self, split: Split) -> tuple[Split, ...]:
        """See :class:`streamjoin.io.base.Divisible`."""
        if isinstance(split, ReplaySplit):
            middle = len(split.positions) // 2
            first = replace(split, positions=split.positions[:middle], records=middle)
            rest = split.positions[middle:]
            return (first, replace(split, first_record=split.first_record + middle, positions=rest, records=len(rest))) if middle else ()
        return self.reader.halves(split) if isinstance(self.reader, Divisible) else ()

    def raw(self, split: Split) -> str:
        """See :class:`streamjoin.io.base.Divisible`."""
        if isinstance(split, ReplaySplit):
            return str(_texts(split).get(split.positions[0], {"raw": ""})["raw"])
        return self.reader.raw(split) if isinstance(self.reader, Divisible) else ""

    def close(self) -> None:
        """See :class:`streamjoin.io.base.Keeping`."""
        if isinstance(self.reader, Keeping):
            self.reader.close()


def _texts(split: ReplaySplit) -> dict[int, dict[str, Any]]:
    """By position, the letters of a split as they are."""
    found: dict[int, dict[str, Any]] = {}
    for name in split.files:
        for letter, origin in letters_in(split.letters, name):
            if origin is not None and letter["stream"] == split.stream and _is_of(origin, split.again):
                found[letter["position"]] = letter
    return found


def _is_of(origin: Origin, split: Split) -> bool:
    return "kind" in json.loads(origin) and split_of(origin) == split


@dataclass(frozen=True)
class Done:
    """How far a stream has come with requests: a part of its position."""

    request: int = 0
    """The last one that is done."""
    letters: int = 0
    """How many records of the next one have been read."""
    records: int = 0
    """Records that were read again since the stream's start: the source's own count is without them."""


@dataclass
class Replayable:
    """A source whose dead letters can be read again."""

    source: Source
    stream: str
    replays: Replays
    reader: ReplayReader = field(init=False)

    def __post_init__(self) -> None:
        self.reader = ReplayReader(self.source.reader)

    def plan(
        self, position: Position | None, limit_records: int, now: float, final: bool = False, *, split_records: int | None = None
    ) -> SourcePlan:
        """See :class:`streamjoin.io.base.Source`. While letters are read again, nothing else of the stream is. Raises StorageError."""
        done = _done(position)
        own = None if position is None else {name: value for name, value in position.items() if name != KEY}
        number = None if position is None else self.replays.after(done.request, now)
        left, letters = 0, Letters()
        if number is not None and own is not None:
            letters = self.replays.of(number, self.stream)
            left = letters.count - done.letters
            if left <= 0:
                if letters.files and "files" in own:
                    own = {**own, "files": {**own["files"], **dict.fromkeys(letters.files, 0)}}
                done = Done(number, 0, done.records)
        plan = self.source.plan(own, limit_records, now, final, split_records=split_records)
        if left <= 0:
            return plan if done == Done() else _shifted(plan, done)
        assert number is not None
        first = plan.end_record - plan.records + done.records
        cut = list(letters.cut(done.letters, limit_records, split_records or limit_records))
        again = [(split_of(origin), positions) for origin, positions in cut]
        firsts = itertools.accumulate((len(positions) for _, positions in again), initial=first)
        files = self.replays.files(number)
        splits = tuple(
            ReplaySplit(
                first_record=at,
                records=len(positions),
                partition=split.partition,
                again=split,
                positions=positions,
                stream=self.stream,
                letters=self.replays.letters,
                files=files,
                gone=_gone(split, plan.position),
            )
            for at, (split, positions) in zip(firsts, again, strict=False)
        )
        count = sum(split.records for split in splits)
        is_over = count == left and not letters.files
        after = Done(number if is_over else done.request, 0 if is_over else done.letters + count, done.records + count)
        waiting = dict(plan.backlog_by_partition)
        for each in plan.splits:
            if each.partition is not None:
                waiting[each.partition] = waiting.get(each.partition, 0) + each.records
        return replace(
            plan,
            splits=splits,
            position={**(own or {}), KEY: asdict(after)},
            records=count,
            end_record=first + count,
            backlog_records=plan.backlog_records + plan.records + left - count,
            backlog_by_partition=waiting,
            exhausted=False,
            arrivals=None,
        )

    def referenced(self, position: Position | None) -> frozenset[str]:
        """See :class:`streamjoin.io.base.Source`."""
        return self.source.referenced(position)

    def committed(self, position: Position) -> None:
        """See :class:`streamjoin.io.base.Follower`."""
        if isinstance(self.source, Follower):
            self.source.committed(position)
        with contextlib.suppress(OSError, SourceError):  # the next commit tries again
            self.replays.committed(self.stream, _done(position).request)

    @property
    def traffic(self) -> Traffic:
        """See :class:`streamjoin.io.base.Counting`."""
        return self.source.traffic if isinstance(self.source, Counting) else Traffic()


def _gone(split: Split, position: Position) -> str:
    """Why records of a topic are not there any more, by the position from now on; empty: nothing is known of that."""
    topic, before = getattr(split, "topic", None), getattr(split, "identity", None)
    now = position.get("topics", {topic: position}).get(topic, {}).get("id")
    return f"topic {topic} was deleted, and another one has its name" if before is not None and now not in (None, before) else ""


def _done(position: Position | None) -> Done:
    return Done(**(position or {}).get(KEY, {}))


def _shifted(plan: SourcePlan, done: Done) -> SourcePlan:
    """The source's own plan, whose records come after those that were read again."""
    splits = tuple(replace(split, first_record=split.first_record + done.records) for split in plan.splits)
    return replace(plan, splits=splits, position={**plan.position, KEY: asdict(done)}, end_record=plan.end_record + done.records)
