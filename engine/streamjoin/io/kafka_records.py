"""Records of a Kafka partition as columns of bytes, and how they become records of a stream: by JSON, or as they are.

Always holds: both ways of fetching (``kafka_session``) make the same columns of the same records, and everything after that, what is
rejected included, is done here once for both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from confluent_kafka import KafkaError

from streamjoin.io.arrivals import Stamps
from streamjoin.io.base import Records, Rejected, Split, no_records
from streamjoin.io.lines import CARRIAGE_RETURN, JSON_SPACE, NEWLINE, line_bounds
from streamjoin.io.text import JsonFormat, parse_block, raw_text
from streamjoin.io.values import utf8

HEADER = "streamjoin-id"
"""The header with a record's identity, where another column is its key."""
ANY_PARTITION = -1
HEADER_OF = "header:"
"""With what the name begins that says that a column is a header."""


@dataclass(frozen=True, kw_only=True)
class KafkaSplit(Split):
    """A range of offsets of one partition."""

    topic: str
    start: int
    end: int
    of_topic: int | None = None
    """Which partition of the topic it is of, where the stream is of several topics, and knows it by another number."""
    identity: str | None = None
    """The topic's, which another one of its name has not; None: the brokers give none."""

    @property
    def number(self) -> int:
        """The number of the partition in its topic."""
        number = self.partition if self.of_topic is None else self.of_topic
        assert number is not None
        return number

    @property
    def name(self) -> str:
        return f"{self.topic} partition {self.number} offsets {self.start}-{self.end}"


@dataclass(frozen=True)
class Wanted:
    """What is needed of each record besides its offset and its value."""

    lines: bool = False
    """Each value is followed by a newline, so that all of them are one text."""
    keys: bool = False
    timestamps: bool = False
    headers: tuple[str, ...] = ()
    """Their names. Only ``confluent_kafka`` reads them."""


@dataclass(frozen=True)
class Cells:
    """The values, or the keys, of some records: one after another in ``data``, each followed by ``gap`` bytes that are not part of it."""

    data: np.ndarray
    """uint8, nothing after the last gap. Owned by whoever has it: no later fetch writes to it."""
    ends: np.ndarray
    """int64: where each ends, its gap excluded."""
    given: np.ndarray
    """bool: False where the record has none (null). Such a one has no bytes."""
    gap: int = 0
    is_lines: bool = False
    """Each is one line that is not blank: none is null or begins with white space, and there is no newline but the gaps'."""

    def __len__(self) -> int:
        return len(self.ends)

    @property
    def starts(self) -> np.ndarray:
        """int64: where each begins. O(n)."""
        starts = np.zeros_like(self.ends)
        starts[1:] = self.ends[:-1] + self.gap
        return starts

    def __getitem__(self, index: int) -> bytes | None:
        start = int(self.ends[index - 1]) + self.gap if index else 0
        return self.data[start : int(self.ends[index])].tobytes() if self.given[index] else None

    def binary(self) -> pa.Array:
        """The cells as an Arrow array on the same bytes; for cells without gaps, of less than 2 GiB. O(n)."""
        assert self.gap == 0
        assert len(self.data) < 1 << 31
        offsets = np.zeros(len(self) + 1, np.int32)
        offsets[1:] = self.ends
        valid = None if self.given.all() else pa.py_buffer(np.packbits(self.given, bitorder="little"))
        return pa.Array.from_buffers(pa.binary(), len(self), [valid, pa.py_buffer(offsets), pa.py_buffer(self.data)])


@dataclass(frozen=True)
class Event:
    """What a consumer gives instead of a record: that a partition has ended, or an error."""

    error: KafkaError
    topic: str | None
    """None where it is of none."""
    partition: int
    offset: int

    def is_of(self, split: KafkaSplit) -> bool:
        """Whether it may be about the split's partition, not about one that was read before."""
        return self.topic is None or (self.topic == split.topic and self.partition in (ANY_PARTITION, split.number))


@dataclass(frozen=True)
class Fetched:
    """Some records of a split in order, at most as many as were asked for, and what else came with them."""

    offsets: np.ndarray
    """int64, ascending."""
    values: Cells
    keys: Cells | None = None
    timestamps: np.ndarray | None = None
    """int64 milliseconds since 1970, -1 where the record has none."""
    passed: bool = False
    """A record at the split's end or after it has come, so all before it have."""
    events: list[Event] = field(default_factory=list)
    headers: tuple[Cells, ...] = ()
    """In the order of ``Wanted.headers``; of several of one name the last."""
    arrived: Stamps | None = None
    """The timestamps of some of them."""

    def __len__(self) -> int:
        return len(self.offsets)

    @property
    def is_dense(self) -> bool:
        """Whether there is a record for each offset from the first to the last."""
        return int(self.offsets[-1] - self.offsets[0]) + 1 == len(self.offsets)

    def records(self, split: KafkaSplit, batch: pa.RecordBatch, rows: np.ndarray, problems: Mapping[int, str]) -> Records:
        """Records of a batch that has these ``rows``, without those that have problems. O(n)."""
        positions = self.offsets - split.start
        if not problems:
            return Records(batch, None, [], int(positions[0])) if self.is_dense else Records(batch, positions[rows])
        good = ~np.isin(rows, np.fromiter(problems, np.int64, len(problems)))
        rejected = [self.rejected(split, row, error) for row, error in sorted(problems.items())]
        return Records(batch.filter(pa.array(good)), positions[rows[good]], rejected)

    def rejected(self, split: KafkaSplit, index: int, error: str) -> Rejected:
        offset = int(self.offsets[index])
        place = f"{split.topic} partition {split.number} offset {offset}"
        return Rejected(offset - split.start, raw_text(self.values[index] or b""), error, place)


@dataclass(frozen=True)
class Outgoing:
    """Records to send, as binary columns of one length."""

    values: pa.Array
    keys: pa.Array
    """Null where a record has none."""
    headers: pa.Array | None = None
    """The identities, where they are not the keys."""

    def slice(self, start: int, count: int) -> Outgoing:
        """Some of them."""
        headers = None if self.headers is None else self.headers.slice(start, count)
        return Outgoing(self.values.slice(start, count), self.keys.slice(start, count), headers)

    @property
    def nbytes(self) -> int:
        """The bytes of values and keys. O(n)."""
        return sum(pc.sum(pc.binary_length(column), min_count=0).as_py() for column in (self.values, self.keys))


class Decoder(Protocol):
    """Makes records of a stream of what was fetched."""

    wanted: Wanted

    def __call__(self, split: KafkaSplit, fetched: Fetched) -> Iterator[Records]:
        """Records of at least one fetched one. Raises SourceError, UnavailableError."""


class JsonDecoder:
    """Each value is one JSON object. A record without a value (a tombstone) is rejected."""

    wanted = Wanted(lines=True)

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        self._text = JsonFormat(schema)

    def __call__(self, split: KafkaSplit, fetched: Fetched) -> Iterator[Records]:
        """Records of at least one fetched one; O(bytes), with what ``parse_block`` takes where lines are bad."""
        block, chosen = fetched.values.data, None
        if not fetched.values.is_lines:
            block, chosen, rejected = _lines(split, fetched)
            if rejected:
                yield Records(no_records(self._schema), None, rejected)
        positions = fetched.offsets - split.start
        first = int(positions[0]) if chosen is None and fetched.is_dense else None
        if chosen is not None:
            positions = positions[chosen]
        count = len(positions)
        for records in parse_block(self._text, block.data, self._schema, "", 0, count):
            wrong = [
                fetched.rejected(split, item.position if chosen is None else int(chosen[item.position]), item.error)
                for item in records.rejected
            ]
            if first is not None and records.positions is None:
                yield Records(records.batch, None, wrong, first + records.first)
            else:
                yield Records(records.batch, positions[records.offsets()], wrong)


def _lines(split: KafkaSplit, fetched: Fetched) -> tuple[np.ndarray, np.ndarray, list[Rejected]]:
    """The values as lines of a text, which records are not blank in it, and the others, rejected. O(bytes)."""
    values = fetched.values
    # JSON written over several lines: between tokens one is as good as the other, and within a string neither may stand.
    text = values.data.copy()
    text[text == NEWLINE] = CARRIAGE_RETURN
    text[values.ends] = NEWLINE
    written, _, _ = line_bounds(text, JSON_SPACE)
    blank = np.ones(len(values), dtype=bool)
    blank[written] = False
    rejected = [
        fetched.rejected(split, int(index), "is empty" if values.given[index] else "has no value (a tombstone)")
        for index in np.flatnonzero(blank)
    ]
    return text, written, rejected


class RawDecoder:
    """The records themselves as columns; text that is not UTF-8 is rejected."""

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        names = {name.casefold() for name in schema.names}
        self.wanted = Wanted(keys="key" in names, timestamps="timestamp" in names)

    def __call__(self, split: KafkaSplit, fetched: Fetched) -> Iterator[Records]:
        """All that were fetched; O(bytes)."""
        problems: dict[int, str] = {}
        columns = [record_column(item.name.casefold(), item, split, fetched, fetched.values, problems) for item in self._schema]
        yield fetched.records(split, pa.record_batch(columns, schema=self._schema), np.arange(len(fetched)), problems)


class WithMetadata:
    """A decoder of values, and columns of what else a record has: key, topic, partition, offset, timestamp and headers."""

    def __init__(self, make: Callable[[pa.Schema], Decoder], schema: pa.Schema, metadata: Mapping[str, str]) -> None:
        """``metadata``: by column, what it has, ``header:NAME`` for a header; ``make`` makes the decoder for the other columns."""
        self._schema = schema
        self._metadata = metadata
        self._values = make(pa.schema([item for item in schema if item.name not in metadata]))
        kinds = metadata.values()
        self._headers = tuple(sorted({kind.removeprefix(HEADER_OF) for kind in kinds if kind.startswith(HEADER_OF)}))
        self.wanted = replace(self._values.wanted, keys="key" in kinds, timestamps="timestamp" in kinds, headers=self._headers)

    def __call__(self, split: KafkaSplit, fetched: Fetched) -> Iterator[Records]:
        """As the decoder of values; text that is not UTF-8 is rejected."""
        problems: dict[int, str] = {}
        whole: dict[str, pa.Array] = {}
        for column, kind in self._metadata.items():
            header = kind.startswith(HEADER_OF)
            cells = fetched.headers[self._headers.index(kind.removeprefix(HEADER_OF))] if header else None
            item = self._schema.field(column)
            whole[column] = record_column("header" if header else kind, item, split, fetched, cells, problems)
        for records in self._values(split, fetched):
            rows = np.searchsorted(fetched.offsets, split.start + records.offsets())
            taken = pa.array(rows)
            columns = [whole[item.name].take(taken) if item.name in whole else records.batch.column(item.name) for item in self._schema]
            batch = pa.record_batch(columns, schema=self._schema)
            bad = np.flatnonzero(np.isin(rows, np.fromiter(problems, np.int64, len(problems)))) if problems else np.empty(0, np.int64)
            if not len(bad):
                yield Records(batch, records.positions, records.rejected, records.first)
                continue
            good = np.ones(len(rows), dtype=bool)
            good[bad] = False
            rejected = [fetched.rejected(split, int(rows[at]), problems[int(rows[at])]) for at in bad]
            yield Records(batch.filter(pa.array(good)), records.offsets()[good], records.rejected + rejected)


def record_column(
    kind: str, item: pa.Field, split: KafkaSplit, fetched: Fetched, cells: Cells | None, problems: dict[int, str]
) -> pa.Array:
    """A column of what records have: topic, partition, offset, timestamp, key, or ``cells``. Bad rows go to ``problems``."""
    if kind == "topic":
        return pa.repeat(split.topic, len(fetched))
    if kind == "partition":
        return pa.repeat(pa.scalar(split.number, pa.int32()), len(fetched))
    if kind == "offset":
        return pa.array(fetched.offsets)
    if kind == "timestamp":
        millis = pa.array(fetched.timestamps)
        known = pc.greater_equal(millis, 0)  # -1 where a record has none
        return pc.if_else(known, pc.multiply(millis, 1000), None).cast(item.type)
    cells = fetched.keys if kind == "key" else cells
    assert cells is not None, "asked for by Wanted"
    column = cells.binary()
    if not pa.types.is_string(item.type):
        return column
    return utf8(column, item.name, problems)
