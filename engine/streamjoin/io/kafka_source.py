"""A source of one Kafka topic's records: JSON values, or the records as they are.

The driver asks the brokers where each partition begins and ends, and plans ranges of offsets; tasks read those. What has been read is in
the position alone (the epoch's commit), never in a consumer group, which is only told afterwards, for lag monitors.

Always holds: a range that was planned is read completely or not at all. A range ends where transactions are decided (read_committed), so
every attempt at it sees the same records, as long as compaction does not remove one in between. Partitions are added to a topic and never
taken away; those that appear are read from their start.

Offsets have gaps where transactions end or compaction has worked. A record's position in the stream counts offsets, so gaps count too: for
windows of rows that is the definition, elsewhere record counts are estimates.
"""

from __future__ import annotations

import contextlib
import os
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from confluent_kafka import Consumer, IsolationLevel, KafkaError, KafkaException, Message, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from streamjoin.io.base import Position, Reader, Records, Rejected, SourceError, SourcePlan, Split, Traffic, UnavailableError
from streamjoin.io.kafka_client import Complaints, KafkaClient, error_of, log, reason_of
from streamjoin.io.lines import JSON_SPACE, count_records
from streamjoin.io.text import JsonFormat, parse_block, raw_text

SPLIT_RECORDS = 250_000
"""A task reads at most so many offsets."""
READ_MESSAGES = 20_000
"""So many are taken from librdkafka at once, if they are there within POLL_SECONDS."""
POLL_SECONDS = 0.02
SESSION = {"session.timeout.ms": 5000, "heartbeat.interval.ms": 1000}
"""Of the client that tells the group. It is no member, so all that this says is how long it tries, and how long its end may take."""
PAUSE_SECONDS = 0.1
ANSWER_SECONDS = 0.05
"""So often it is looked whether the brokers have refused a client that waits for them."""
FETCHING = {
    # What a consumer holds that was not asked for yet is bounded by its size alone, ...
    "queued.max.messages.kbytes": 16_384,
    "queued.min.messages": 1_000_000,
    # ... and when there is room again it goes on at once: librdkafka would pause for a second, which is most of the time of a fast reader.
    "fetch.queue.backoff.ms": 5,
    # A consumer that is sent to another place must wait for its request that is under way at the end of the old one: no longer than this.
    "fetch.wait.max.ms": 100,
}
"""How consumers fetch, unless the user's options say otherwise."""
SESSIONS = 4
"""Consumers that a process keeps of one source: each goes on where it stopped without asking for the same records again."""
BEHIND_SECONDS = 5.0
"""A broker that was killed may for a moment say that a partition ends before what it had shown; so long is waited for the rest."""


@dataclass(frozen=True)
class KafkaSourceConfig:
    """A Kafka source as the manifest describes it."""

    client: KafkaClient
    group: str
    format: str = "json"
    """json or raw."""
    starting_offsets: str = "earliest"
    """earliest or latest."""
    on_data_loss: str = "fail"
    """fail or skip."""


@dataclass(frozen=True, kw_only=True)
class KafkaSplit(Split):
    """A range of offsets of one partition."""

    topic: str
    start: int
    end: int

    @property
    def name(self) -> str:
        return f"{self.topic} partition {self.partition} offsets {self.start}-{self.end}"


@dataclass(frozen=True)
class Extent:
    """Where a partition begins and where what can be read of it ends."""

    low: int
    high: int


class KafkaSource:
    """Plans ranges of offsets.

    The position is ``{"topic": name, "offsets": {partition: next}, "records": n, "skipped": m}``: the stream's offsets until there, and how
    many were lost to retention on the way.
    """

    def __init__(self, config: KafkaSourceConfig, schema: pa.Schema) -> None:
        """Asks nothing of the brokers yet."""
        self.config = config
        self._reader = KafkaReader(config, schema)
        self._broker = _Broker(config)
        self._latest: dict[int, int] = {}
        """Where the partitions ended when ``latest`` was first looked up; in force until the first commit."""

    @property
    def reader(self) -> Reader:
        return self._reader

    def plan(self, position: Position | None, limit_records: int, now: float, final: bool = False) -> SourcePlan:
        """See :class:`streamjoin.io.base.Source`. Three requests to the brokers; O(partitions + splits)."""
        topic = self.config.client.topic
        before: dict[int, int] = {int(name): offset for name, offset in position["offsets"].items()} if position else {}
        extents = self._broker.extents(before)
        offsets, lost = self._resume(before, extents)
        records = position["records"] if position else 0
        skipped = (position["skipped"] if position else 0) + sum(lost.values())
        taken = fair_shares({partition: extents[partition].high - offset for partition, offset in offsets.items()}, limit_records)
        splits, end_record = [], records
        for partition, count in sorted(taken.items()):
            for start in range(offsets[partition], offsets[partition] + count, SPLIT_RECORDS):
                end = min(start + SPLIT_RECORDS, offsets[partition] + count)
                splits.append(
                    KafkaSplit(first_record=end_record, records=end - start, partition=partition, topic=topic, start=start, end=end)
                )
                end_record += end - start
        after = {partition: offset + taken[partition] for partition, offset in offsets.items()}
        waiting = {partition: extents[partition].high - offset for partition, offset in sorted(after.items())}
        backlog = sum(waiting.values())
        return SourcePlan(
            splits=tuple(splits),
            position={
                "topic": topic,
                "offsets": {str(partition): offset for partition, offset in sorted(after.items())},
                "records": end_record,
                "skipped": skipped,
            },
            records=end_record - records,
            backlog_records=backlog,
            exhausted=backlog == 0,
            end_record=end_record,
            warnings=tuple(
                f"{self.config.client}: retention removed {count} records of partition {partition} before they were read; they are skipped"
                f" ({skipped} in all)"
                for partition, count in sorted(lost.items())
            ),
            backlog_by_partition=waiting,
            skipped_records=skipped,
        )

    @property
    def traffic(self) -> Traffic:
        """Of the driver; what readers got over is in their records."""
        return Traffic(errors=self._broker.errors)

    def referenced(self, position: Position | None) -> frozenset[str]:
        return frozenset()

    def committed(self, position: Position) -> None:
        """Tells the group. Failures are logged only."""
        self._broker.group.tell(position["offsets"])

    def _resume(self, before: Mapping[int, int], extents: Mapping[int, Extent]) -> tuple[dict[int, int], dict[int, int]]:
        """By partition, the next offset to read, and how many offsets were lost before it. Raises SourceError."""
        client = self.config.client
        first = {partition: extent.low for partition, extent in extents.items()}
        if not before and self.config.starting_offsets == "latest":
            self._latest = self._latest or {partition: extent.high for partition, extent in extents.items()}
            before = self._latest
        offsets: dict[int, int] = {}
        lost: dict[int, int] = {}
        for partition, low in first.items():
            offset = before.get(partition, low)
            if offset < low:
                if self.config.on_data_loss == "fail":
                    raise SourceError(
                        f"{client}: partition {partition} begins at offset {low}, and {offset} is the next to be read: retention removed"
                        f" {low - offset} records that were not read. Set kafka.onDataLoss: skip to go on without them, or choose a new"
                        " checkpoint.location; a longer retention.ms of the topic keeps it from happening again"
                    )
                lost[partition] = low - offset
            offsets[partition] = max(offset, low)
        return offsets, lost


def fair_shares(available: Mapping[int, int], limit: int) -> dict[int, int]:
    """How much to take of each: at most ``limit`` in all (but one of each that has any), as evenly as what there is allows. O(n log n)."""
    shares: dict[int, int] = {}
    left = limit
    for rank, (partition, count) in enumerate(sorted(available.items(), key=lambda item: (item[1], item[0]))):
        shares[partition] = max(min(count, 1), min(count, left // (len(available) - rank)))
        left = max(0, left - shares[partition])
    return shares


class _Broker:
    """The driver's talk with the brokers. Clients are made when first needed."""

    def __init__(self, config: KafkaSourceConfig) -> None:
        self._config = config
        self._admin: Any = None
        self._complaints = Complaints()
        self.group = _Group(config)
        # Also when the process ends. A consumer that is only dropped, with offsets on their way, keeps whoever drops it.
        weakref.finalize(self, self.group.close)

    @property
    def errors(self) -> int:
        """Of both clients, so far."""
        return self._complaints.count + self.group.complaints.count

    def extents(self, read: Mapping[int, int]) -> dict[int, Extent]:
        """Where each partition begins and ends. ``read`` says what has been seen of them: it must be there still.

        Waits for brokers that are out of reach, for as long as the timeout. Raises SourceError, UnavailableError.
        """
        client = self._config.client
        began = time.monotonic()
        self._complaints.forget()
        failure: Exception
        while True:
            try:
                found = self._look(max(1.0, began + client.timeout_seconds - time.monotonic()))
                wrong = self._contradiction(found, read)
                if wrong is None:
                    return found
                failure, patience = wrong, min(BEHIND_SECONDS, client.timeout_seconds)
            except KafkaException as error:
                self._admin.poll(0)
                inner = error_of(error)
                failure, patience = client.unavailable("no answer", self._complaints.text or reason_of(error)), client.timeout_seconds
                if inner is not None:
                    answer = client.failure(inner, SourceError, "no answer")
                    if isinstance(answer, SourceError):
                        # A broker that has just started may not know its topics for a moment.
                        failure, patience = answer, BEHIND_SECONDS if read else 0.0
            if time.monotonic() - began + PAUSE_SECONDS >= patience:
                raise failure
            time.sleep(PAUSE_SECONDS)

    def _look(self, timeout: float) -> dict[int, Extent]:
        client = self._config.client
        if self._admin is None:
            self._admin = client.make(AdminClient, {"error_cb": self._complaints}, SourceError)
        self._admin.poll(0)
        described: Future[Any] = self._admin.describe_topics(TopicCollection([client.topic]), request_timeout=timeout)[client.topic]
        partitions = [TopicPartition(client.topic, partition.id) for partition in self._answer(described).partitions]
        asked = [
            self._admin.list_offsets(
                dict.fromkeys(partitions, spec), isolation_level=IsolationLevel.READ_COMMITTED, request_timeout=timeout
            )
            for spec in (OffsetSpec.earliest(), OffsetSpec.latest())
        ]
        lows, highs = ({at.partition: self._answer(future).offset for at, future in answers.items()} for answers in asked)
        return {partition: Extent(lows[partition], max(lows[partition], highs[partition])) for partition in lows}

    def _answer(self, asked: Future[Any]) -> Any:
        """What librdkafka answers when it has the answer or gives up. Raises KafkaException, and SourceError where waiting is no use."""
        while True:
            try:
                return asked.result(ANSWER_SECONDS)
            except TimeoutError:
                self._admin.poll(0)
                refusal = self._complaints.refusal(self._config.client, SourceError)
                if refusal is not None:
                    raise refusal from None

    def _contradiction(self, found: Mapping[int, Extent], read: Mapping[int, int]) -> SourceError | None:
        """Whether the topic cannot be the one that was read."""
        for partition, offset in read.items():
            extent = found.get(partition)
            if extent is None or extent.high < offset:
                shows = "is gone" if extent is None else f"ends at offset {extent.high}"
                return SourceError(
                    f"{self._config.client}: partition {partition} {shows}, and was read up to {offset}: the topic was made anew, or its"
                    " brokers lost records. Choose a new checkpoint.location to read what is there now"
                )
        return None


class _Group:
    """The consumer group, which is told what has been read, for those who watch its lag. Its client is made when first needed."""

    def __init__(self, config: KafkaSourceConfig) -> None:
        self.complaints = Complaints()
        self._config = config
        self._consumer: Any = None
        self._told: dict[str, int] = {}

    def tell(self, offsets: Mapping[str, int]) -> None:
        """Commits the offsets in the group, without waiting for the answer."""
        if dict(offsets) == self._told:
            return
        client = self._config.client
        try:
            if self._consumer is None:
                callbacks = {"on_commit": self._answered, "error_cb": self.complaints}
                own = {"group.id": self._config.group, "enable.auto.commit": False} | SESSION | callbacks
                self._consumer = client.make(Consumer, own, SourceError)
            self._consumer.poll(0)
            positions = [TopicPartition(client.topic, int(name), offset) for name, offset in offsets.items()]
            self._consumer.commit(offsets=positions, asynchronous=True)
        except (KafkaException, SourceError) as error:
            self._warn(reason_of(error))
        else:
            self._told = dict(offsets)

    def _answered(self, error: KafkaError | None, partitions: Sequence[TopicPartition]) -> None:
        if error is not None:
            self._told = {}
            self._warn(error.str())

    def _warn(self, reason: str) -> None:
        log.warning("%s: group %s could not be told what has been read (%s)", self._config.client, self._config.group, reason)

    def close(self) -> None:
        if self._consumer is not None:
            with contextlib.suppress(Exception):  # nothing depends on it
                self._consumer.close()


@dataclass(frozen=True)
class KafkaReader:
    """Reads ranges of offsets."""

    config: KafkaSourceConfig
    schema: pa.Schema

    def read(self, split: KafkaSplit) -> Iterator[Records]:
        """See :class:`streamjoin.io.base.Reader`. Memory: READ_MESSAGES records."""
        decode: Callable[[_Messages], Iterator[Records]]
        decode = RawDecoder(self.schema) if self.config.format == "raw" else JsonDecoder(self.schema)
        with _borrowed(self.config, split) as session:
            for messages in session.read(split):
                for records in decode(messages):
                    records.errors = session.new_errors()
                    yield records


@dataclass(frozen=True)
class _Messages:
    """Some records of a split, in order."""

    split: KafkaSplit
    messages: Sequence[Message]
    dense: bool
    """There is one for each offset from the first to the last."""

    @property
    def first(self) -> int:
        return int(self.messages[0].offset()) - self.split.start

    def positions(self) -> np.ndarray:
        """The offset within the split of each."""
        if self.dense:
            return np.arange(self.first, self.first + len(self.messages), dtype=np.int64)
        offsets = (message.offset() for message in self.messages)
        return np.fromiter(offsets, dtype=np.int64, count=len(self.messages)) - self.split.start

    def rejected(self, index: int, error: str) -> Rejected:
        message = self.messages[index]
        offset = int(message.offset())
        place = f"{self.split.topic} partition {self.split.partition} offset {offset}"
        return Rejected(offset - self.split.start, raw_text(message.value() or b""), error, place)


class JsonDecoder:
    """Each value is one JSON object. A record without a value (a tombstone) is rejected."""

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        self._text = JsonFormat(schema)

    def __call__(self, part: _Messages) -> Iterator[Records]:
        values: list[bytes | None] = [message.value() for message in part.messages]
        block, chosen, rejected = _lines(part, values)
        positions = part.positions()
        if chosen is not None:
            positions = positions[chosen]
        if rejected:
            yield Records(_empty(self._schema), None, rejected)
        for records in parse_block(self._text, block, self._schema, "", 0):
            wrong = [
                part.rejected(int(item.position if chosen is None else chosen[item.position]), item.error) for item in records.rejected
            ]
            if part.dense and chosen is None and records.positions is None:
                yield Records(records.batch, None, wrong, part.first + records.first)
            else:
                yield Records(records.batch, positions[records.offsets()], wrong)


def _lines(part: _Messages, values: Sequence[bytes | None]) -> tuple[bytes, np.ndarray | None, list[Rejected]]:
    """The values as a block of one line each, which of them it holds (None: all), and those that are no line."""
    if None not in values:
        block = b"\n".join(values)  # type: ignore[arg-type]
        if block.count(b"\n") == len(values) - 1 and count_records(block, JSON_SPACE) == len(values):
            return block, None, []
    lines, chosen, rejected = [], [], []
    for index, value in enumerate(values):
        if value is None:
            rejected.append(part.rejected(index, "has no value (a tombstone)"))
        elif not value.strip(JSON_SPACE + b"\n"):
            rejected.append(part.rejected(index, "is empty"))
        else:
            # JSON written over several lines: between tokens one is as good as the other, and within a string neither may stand.
            lines.append(value.replace(b"\n", b"\r"))
            chosen.append(index)
    return b"\n".join(lines), np.array(chosen, dtype=np.int64), rejected


class RawDecoder:
    """The records themselves as columns; text that is not UTF-8 is rejected."""

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema

    def __call__(self, part: _Messages) -> Iterator[Records]:
        problems: dict[int, str] = {}
        columns = [self._column(item, part, problems) for item in self._schema]
        batch = pa.record_batch(columns, schema=self._schema)
        if not problems:
            yield Records(batch, None, [], part.first) if part.dense else Records(batch, part.positions())
            return
        good = np.ones(len(part.messages), dtype=bool)
        good[list(problems)] = False
        rejected = [part.rejected(index, error) for index, error in sorted(problems.items())]
        yield Records(batch.filter(pa.array(good)), part.positions()[good], rejected)

    def _column(self, item: pa.Field, part: _Messages, problems: dict[int, str]) -> pa.Array:
        messages, name = part.messages, item.name.casefold()
        if name == "topic":
            return pa.repeat(part.split.topic, len(messages))
        if name == "partition":
            return pa.repeat(pa.scalar(part.split.partition, pa.int32()), len(messages))
        if name == "offset":
            return pa.array(part.positions() + part.split.start)
        if name == "timestamp":
            millis = pa.array((message.timestamp()[1] for message in messages), pa.int64(), size=len(messages))
            known = pc.greater_equal(millis, 0)  # -1 where a record has none
            return pc.if_else(known, pc.multiply(millis, 1000), None).cast(item.type)
        values = [message.key() if name == "key" else message.value() for message in messages]
        column = pa.array(values, pa.binary())
        if not pa.types.is_string(item.type):
            return column
        try:
            return column.cast(pa.string())
        except pa.ArrowInvalid:
            return self._text(values, item.name, problems)

    @staticmethod
    def _text(values: Sequence[bytes | None], name: str, problems: dict[int, str]) -> pa.Array:
        texts: list[str | None] = []
        for index, value in enumerate(values):
            try:
                texts.append(None if value is None else value.decode())
            except UnicodeDecodeError as error:
                problems.setdefault(index, f"column {name}: is not UTF-8 (byte {error.start})")
                texts.append(None)
        return pa.array(texts, pa.string())


def _empty(schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array([], item.type) for item in schema], schema=schema)


class _Session:
    """A consumer, and where it stands."""

    def __init__(self, config: KafkaSourceConfig) -> None:
        self._client = config.client
        self._complaints = Complaints()
        own = {
            "group.id": config.group,
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "auto.offset.reset": "error",
            "enable.partition.eof": True,
            "isolation.level": "read_committed",
            "error_cb": self._complaints,
        }
        self._consumer = config.client.make(lambda settings: Consumer(FETCHING | settings), own, SourceError)
        self._counted = 0
        self.stands_at: tuple[int, int] | None = None
        """(partition, offset) that would be read next without asking again."""

    def new_errors(self) -> int:
        """What the brokers, or the way to them, did wrong since this was last asked."""
        before, self._counted = self._counted, self._complaints.count
        return self._counted - before

    def read(self, split: KafkaSplit) -> Iterator[_Messages]:
        """All records of the split: the end has come with a record at or after it, or with the partition's end there.

        Raises SourceError, UnavailableError.
        """
        assert split.partition is not None
        partition, offset = split.partition, split.start
        if self.stands_at != (partition, offset):
            self._consumer.assign([TopicPartition(split.topic, partition, offset)])
        self.stands_at = None
        self._complaints.forget()
        deadline = time.monotonic() + self._client.timeout_seconds
        ended = passed = False
        while offset < split.end and not (ended or passed):
            got = self._consumer.consume(min(READ_MESSAGES, split.end - offset), POLL_SECONDS)
            part, ended, passed = self._sift(split, offset, got)
            if part is not None:
                offset = part.messages[-1].offset() + 1
                deadline = time.monotonic() + self._client.timeout_seconds
                yield part
            elif not (ended or passed):
                self._keep_waiting(f"nothing came of partition {partition} from offset {offset} on", deadline)
        if not passed:
            self.stands_at = (partition, split.end)

    def _sift(self, split: KafkaSplit, offset: int, got: Sequence[Message]) -> tuple[_Messages | None, bool, bool]:
        """The split's records among what came; whether the partition ends at the split's end or later; whether a record came from there on.

        Raises SourceError, UnavailableError.
        """
        if not got:
            return None, False, False
        # All records as they should be, by far the most frequent: told by the last one and their number.
        if got[-1].offset() - offset + 1 == len(got) and got[0].partition() == split.partition and _without_events(got):
            return _Messages(split, got, dense=True), False, False
        records, ended, passed = [], False, False
        for message in got:
            event = message.error()
            if event is not None:
                self._check(split, event)
                is_end = event.code() == KafkaError._PARTITION_EOF and message.partition() == split.partition
                ended |= is_end and message.offset() >= split.end
            elif message.partition() == split.partition and message.offset() >= offset:
                if message.offset() < split.end:
                    records.append(message)
                else:
                    passed = True
        if not records:
            return None, ended, passed
        return _Messages(split, records, dense=records[-1].offset() - records[0].offset() + 1 == len(records)), ended, passed

    def _check(self, split: KafkaSplit, event: KafkaError) -> None:
        """Raises what reading cannot go on after; what librdkafka mends by itself is remembered for messages."""
        if event.code() == KafkaError._PARTITION_EOF:
            return
        if event.code() in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE):
            raise UnavailableError(f"{self._client}: {split.name} were there when the epoch was planned, and are no more ({event.str()})")
        failure = self._client.failure(event, SourceError, "no answer")
        if isinstance(failure, SourceError):
            raise failure
        self._complaints(event)

    def _keep_waiting(self, what: str, deadline: float) -> None:
        """Raises SourceError where the brokers refuse this client, UnavailableError after the deadline."""
        refusal = self._complaints.refusal(self._client, SourceError)
        if refusal is not None:
            raise refusal
        if time.monotonic() > deadline:
            raise self._client.unavailable(what, self._complaints.text)

    def close(self) -> None:
        with contextlib.suppress(Exception):  # nothing depends on it
            self._consumer.close()


def _without_events(messages: Sequence[Message]) -> bool:
    return all(message.error() is None for message in messages)


_idle: dict[tuple[int, KafkaSourceConfig], list[_Session]] = {}
"""By process (a fork must not use its parent's) and source, consumers that nobody reads from."""


def close_idle() -> None:
    """Close the consumers of this process that nobody reads from. Unclosed, each goes on asking brokers that may be gone."""
    for sessions in _idle.values():
        for session in sessions:
            session.close()
    _idle.clear()


@contextlib.contextmanager
def _borrowed(config: KafkaSourceConfig, split: KafkaSplit) -> Iterator[_Session]:
    """A consumer of this process, if possible one that stands where the split begins."""
    kept = _idle.setdefault((os.getpid(), config), [])
    ready = next((session for session in kept if session.stands_at == (split.partition, split.start)), None)
    if ready is None and len(kept) >= SESSIONS:
        ready = kept[0]
    if ready is not None:
        kept.remove(ready)
    session = ready or _Session(config)
    try:
        yield session
    except GeneratorExit:
        kept.append(session)  # a reader that wanted no more; where it stands is not known, so the next one begins anew
        raise
    except BaseException:
        session.close()
        raise
    kept.append(session)
