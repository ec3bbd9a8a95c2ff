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
import math
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
    no_records,
)
from streamjoin.io.factory import function
from streamjoin.io.files_reader import FilesReader, FilesSplit
from streamjoin.io.folder import folder_at
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
SPLITS = {"FilesSplit": "streamjoin.io.files_reader:FilesSplit", "KafkaSplit": "streamjoin.io.kafka_records:KafkaSplit"}
"""Splits whose records can be read again (name in letters -> ``module:class``)."""
Origin = str
"""How a letter's record is read again, as JSON: the split, or the file that is read as a new one."""


def origins_of(letters: Sequence[Rejected], split: Split) -> Iterator[tuple[Origin | None, int, str]]:
    """How each letter's record can be read again (None: it cannot), as which record of the split that is named then, and its name. Letters
    of one split have one origin, which is made once. O(letters + splits)."""
    known: dict[int, Origin | None] = {}
    for letter in letters:
        read, position = letter.origin or (split, letter.position)
        if isinstance(read, ReplaySplit):
            position = read.positions[position]
        if id(read) not in known:
            known[id(read)] = _origin_of(read)
        origin = known[id(read)] if letter.again == "" else None if letter.again is None else json.dumps({"file": letter.again})
        yield origin, position, read.name


def _origin_of(split: Split) -> Origin | None:
    if isinstance(split, ReplaySplit):
        return split.origin
    kind = type(split).__name__
    return json.dumps({"kind": kind, **asdict(split)}) if kind in SPLITS else None


def split_of(origin: Origin) -> Split:
    """The split that an origin names, if that is no file."""
    values = json.loads(origin)
    made: Split = function(SPLITS[values.pop("kind")]).from_json(values)
    return made


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
        self._numbers: tuple[int, ...] | None = None
        self._looked_at = -math.inf
        self._opened = _Request(0)

    def after(self, number: int, now: float) -> int | None:
        """The next request after this one, as far as is known. Raises StorageError."""
        if self._numbers is None or not 0 <= now - self._looked_at < LOOK_SECONDS:
            self._numbers, self._looked_at = requests(self._storage), now
        return next((each for each in self._numbers if each > number), None)

    def of(self, number: int, stream: str) -> Letters:
        """What a request names of a stream. O(letters) once. Raises StorageError."""
        return self._request(number).letters.get(stream, Letters())

    def files(self, number: int) -> tuple[str, ...]:
        """The files of dead letters that a request names. Raises StorageError."""
        return self._request(number).files

    def _request(self, number: int) -> _Request:
        if self._opened.number != number:
            files = _files_of(self._storage, number)
            self._opened = _Request(number, files, self._read(files))
        return self._opened

    def _read(self, names: Iterable[str]) -> dict[str, Letters]:
        records: dict[str, dict[Origin, set[int]]] = {}
        files: dict[str, set[str]] = {}
        for name in names:
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
        if self._numbers is None:  # a driver that died may have come so far
            self._numbers = requests(self._storage)
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


@dataclass(frozen=True)
class _Request:
    number: int
    files: tuple[str, ...] = ()
    letters: Mapping[str, Letters] = field(default_factory=dict)
    """By stream."""


def requests(storage: Storage) -> tuple[int, ...]:
    """The numbers of those that are there, done or not, ascending. Raises StorageError."""
    return tuple(sorted(int(path.rpartition("/")[2].removesuffix(".json")) for path in storage.list(FOLDER)))


def ask(storage: Storage, files: Sequence[str], after: int) -> int:
    """Ask for all letters of these files to be read again; the request's number, above ``after``. Raises StorageError."""
    number = max([after, *requests(storage)]) + 1
    data = json.dumps({"files": list(files)}).encode()
    try:
        storage.create(_path(number), data)
    except AlreadyExists:
        if storage.get(_path(number)) != data:  # else the answer was lost, or somebody else has asked for the same
            raise StorageError("somebody else has asked for letters to be read again just now; ask again") from None
    return number


def asked_for(storage: Storage) -> set[str]:
    """The files of dead letters that requests name. Raises StorageError."""
    named: set[str] = set()
    for number in requests(storage):
        with contextlib.suppress(Missing):  # done meanwhile
            named.update(_files_of(storage, number))
    return named


def _files_of(storage: Storage, number: int) -> tuple[str, ...]:
    return tuple(json.loads(storage.get(_path(number)))["files"])


def _path(number: int) -> str:
    return f"{FOLDER}/{number:06d}.json"


def letters_in(place: str, name: str) -> Iterator[tuple[dict[str, Any], Origin | None]]:
    """The letters of a file, each with its origin; none where it is gone. Memory: a block of it. Raises StorageError, SourceError."""
    try:
        file = folder_at(place).open(name)
    except FileNotFoundError:
        return
    before: Origin | None = None
    with contextlib.closing(file):
        for block in read_range(file, 0, None, Framing(JSON_SPACE)):
            for letter in (json.loads(line) for line in block.text.split(b"\n") if line.strip()):
                origin = letter.get("again")
                before = before if origin == SAME else origin
                yield letter, before


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

    origin: Origin
    positions: tuple[int, ...]
    """Which of its records, ascending."""
    stream: str
    letters: str
    """Where dead letters are, and in which files of them these are."""
    files: tuple[str, ...]
    gone: str = ""
    """Why the records are not there any more."""

    @cached_property
    def again(self) -> Split:
        """What the origin names."""
        return split_of(self.origin)

    @property
    def name(self) -> str:
        return self.again.name


@dataclass(frozen=True)
class ReplayReader:
    """A source's reader, for its own splits and for those that are read again."""

    reader: Reader
    schema: pa.Schema

    def read(self, split: Split) -> Iterator[Records]:
        """See :class:`streamjoin.io.base.Reader`. What cannot be read again is rejected."""
        return self._again(split) if isinstance(split, ReplaySplit) else self.reader.read(split)

    def _again(self, split: ReplaySplit) -> Iterator[Records]:
        wanted = np.array(split.positions, np.int64)
        is_read = np.zeros(len(wanted), bool)
        ranks = {position: rank for rank, position in enumerate(split.positions)}
        reason = split.gone or "there is no such record any more"
        try:
            if isinstance(self.reader, FilesReader) and isinstance(split.again, FilesSplit):
                self.reader.require_same(split.again)
            for records in () if split.gone else self.reader.read(split.again):
                offsets = records.offsets()
                places = np.minimum(np.searchsorted(wanted, offsets), len(wanted) - 1)
                taken = wanted[places] == offsets
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
        return Records(no_records(self.schema), np.zeros(0, np.int64), rejected)

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
            if origin == split.origin and letter["stream"] == split.stream:
                found[letter["position"]] = letter
    return found


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
    schema: pa.Schema

    @cached_property
    def reader(self) -> ReplayReader:
        """See :class:`streamjoin.io.base.Source`."""
        return ReplayReader(self.source.reader, self.schema)

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
        firsts = itertools.accumulate((len(positions) for _, positions in cut), initial=first)
        splits = tuple(self._split(number, *each, at, plan.position) for each, at in zip(cut, firsts, strict=False))
        count = sum(split.records for split in splits)
        is_over = count == left and not letters.files
        after = Done(number if is_over else done.request, 0 if is_over else done.letters + count, done.records + count)
        waits = plan.without_splits(own, first)
        return replace(
            waits,
            splits=splits,
            position={**waits.position, KEY: asdict(after)},
            records=count,
            end_record=first + count,
            backlog_records=waits.backlog_records + left - count,
            arrivals=None,
        )

    def _split(self, number: int, origin: Origin, positions: tuple[int, ...], first: int, now: Position) -> ReplaySplit:
        """``now``: the source's position from now on."""
        split = split_of(origin)
        return ReplaySplit(
            first_record=first,
            records=len(positions),
            partition=split.partition,
            origin=origin,
            positions=positions,
            stream=self.stream,
            letters=self.replays.letters,
            files=self.replays.files(number),
            gone=_gone(split, now),
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


def is_reading_again(position: Position | None) -> bool:
    """Whether a stream is in the middle of a request."""
    return _done(position).letters > 0


def requests_done(position: Position | None) -> int:
    """The number of the last request that a stream is done with."""
    return _done(position).request


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
