"""A source of Kafka records, of one topic or of all whose names match a pattern: JSON values, those whose schema is in a registry, or the
records as they are.

The driver asks the brokers where each partition begins and ends (``kafka_topics``), and plans ranges of offsets; tasks read those. What has
been read is in the position alone (the epoch's commit; ``kafka_position``), never in a consumer group, which is only told afterwards, for
lag monitors.

Always holds: a range that was planned is read completely or not at all. A range ends where transactions are decided (read_committed), so
every attempt at it sees the same records, as long as compaction does not remove one in between. Partitions are added to a topic and never
taken away; those that appear are read from their start, and so are topics that appear after the join has begun. What was read of a topic
that the pattern matches no more stays in the position, so that it goes on from there when a pattern matches it again.

Where a topic is deleted, or made anew, between a plan and its reading, the plan after it tells.

Offsets have gaps where transactions end or compaction has worked. A record's position in the stream counts offsets, so gaps count too: for
windows of rows that is the definition, elsewhere record counts are estimates.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from streamjoin.io.base import Blocked, Position, Reader, Records, Source, SourceError, SourcePlan, Traffic
from streamjoin.io.kafka_client import Complaints, KafkaClient, client_of, log, reason_of, registry_config
from streamjoin.io.kafka_position import Reached, Read, numbered
from streamjoin.io.kafka_records import Decoder, JsonDecoder, KafkaSplit, RawDecoder, Wanted, WithMetadata
from streamjoin.io.kafka_session import borrowed, close_kept
from streamjoin.io.kafka_topics import Brokers, Extent, Seen, Topic
from streamjoin.io.schema_registry import RegistryConfig
from streamjoin.io.text import raw_text
from streamjoin.language.topics import matches

if TYPE_CHECKING:
    from streamjoin.io.factory import Reading
    from streamjoin.manifest.connectors.kafka import KafkaSource as Model

SPLIT_RECORDS = 250_000
"""A task reads at most so many offsets."""
DISCOVERY_SECONDS = 5.0
"""How old the list of all topics may be, where the manifest does not say."""
WARN_SECONDS = 60.0
"""From then on an open transaction is told of: anew whenever it has been open for twice as long."""
GROUP_SESSION = {"session.timeout.ms": 5000, "heartbeat.interval.ms": 1000}
"""Of the client that tells the group. It is no member, so all that this says is how long it tries, and how long its end may take."""


@dataclass(frozen=True)
class KafkaSourceConfig:
    """A Kafka source as the manifest describes it."""

    client: KafkaClient
    group: str
    format: str = "json"
    """json, raw, avro, protobuf or jsonSchema."""
    starting_offsets: str = "earliest"
    """earliest or latest."""
    on_data_loss: str = "fail"
    """fail or skip."""
    registry: RegistryConfig | None = None
    """Where the schemas of avro, protobuf and jsonSchema are."""
    metadata: tuple[tuple[str, str], ...] = ()
    """(column, what of the record it has), as ``kafka_records.WithMetadata`` takes it."""
    starting_millis: int | None = None
    """Instead of ``starting_offsets``: milliseconds since 1970, from which on records are read."""
    discovery_seconds: float = DISCOVERY_SECONDS
    """With topics by pattern: how old the list of all topics may be."""


class BlockedPartitions:
    """Partitions whose records cannot be read, because a transaction is open: how many records, for how long, and what is said of it.

    With read_committed a partition is read up to its last stable offset, where its oldest open transaction begins; the records behind it
    wait, those of other producers too. Brokers end a transaction after its producer's transaction.timeout.ms, but one that *hangs*
    (KIP-664).

    Always holds: the times are this process's own, and decide nothing: a driver that starts again counts from its first look.
    """

    def __init__(self, client: KafkaClient) -> None:
        self._client = client
        self._since: dict[tuple[str, int], tuple[int, float]] = {}
        """Of each blocked partition: where it can be read up to, and since when."""

    def look(self, extents: Mapping[tuple[str, int], Extent], now: float) -> dict[tuple[str, int], Blocked]:
        """Those that are blocked at ``now``, in seconds since 1970. O(partitions)."""
        since = {}
        for place, extent in extents.items():
            if extent.blocked:
                end, began = self._since.get(place, (extent.high, now))
                since[place] = (extent.high, min(began, now) if end == extent.high else now)
        self._since = since
        return {place: Blocked(extents[place].blocked, now - began) for place, (_, began) in since.items()}

    def warnings(self, found: Mapping[tuple[str, int], Blocked]) -> list[str]:
        """The same text for a while, so that it is not told with each epoch."""
        told = []
        for (topic, partition), blocked in sorted(found.items()):
            if blocked.seconds >= WARN_SECONDS:
                seconds = WARN_SECONDS
                while 2 * seconds <= blocked.seconds:
                    seconds *= 2
                end, _ = self._since[topic, partition]
                told.append(
                    f"{self._client.one(topic)}: a transaction has been open in partition {partition} at offset {end} for {seconds:g} s or"
                    " longer; the records behind it cannot be read, and hold the watermark back, until its producer or the brokers"
                    " (transaction.timeout.ms) end it. If it hangs, kafka-transactions.sh find-hanging shows it, and abort ends it"
                )
        return told


class Group:
    """Tells the consumer group what has been read, so that people can watch its lag; nothing else depends on it. Its client is made when
    first needed."""

    def __init__(self, client: KafkaClient, group: str) -> None:
        self.complaints = Complaints()
        self._client = client
        self._group = group
        self._consumer: Any = None
        self._told: dict[tuple[str, int], int] = {}

    def tell(self, offsets: Mapping[tuple[str, int], int]) -> None:
        """Commits the offsets, by topic and partition, in the group, in one request, without waiting for the answer."""
        if not offsets or dict(offsets) == self._told:
            return
        try:
            if self._consumer is None:
                callbacks = {"on_commit": self._answered, "error_cb": self.complaints}
                own = {"group.id": self._group, "enable.auto.commit": False} | GROUP_SESSION | callbacks
                self._consumer = self._client.make(Consumer, own, SourceError)
            self._consumer.poll(0)
            positions = [TopicPartition(topic, partition, offset) for (topic, partition), offset in offsets.items()]
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
        log.warning("%s: group %s could not be told what has been read (%s)", self._client, self._group, reason)

    def close(self) -> None:
        if self._consumer is not None:
            with contextlib.suppress(Exception):  # nothing depends on it
                self._consumer.close()


class KafkaSource(Source):
    """Plans ranges of offsets. For the position see ``kafka_position``."""

    def __init__(self, config: KafkaSourceConfig, schema: pa.Schema) -> None:
        """Asks nothing of the brokers yet."""
        self.config = config
        client = config.client
        self._topic = None if client.is_pattern else client.topic
        self._reader = KafkaReader(config, schema)
        self._brokers = Brokers(client, skips_losses=config.on_data_loss == "skip", discovery_seconds=config.discovery_seconds)
        self._blocked = BlockedPartitions(client)
        self._group = Group(client, config.group)
        # Also when the process ends. A consumer that is only dropped, with offsets on their way, keeps whoever drops it.
        weakref.finalize(self, self._group.close)
        self._begins: dict[str, tuple[str | None, Mapping[int, int]]] | None = None
        """Where reading begins in each topic that was there at the first look, with the topic's id; in force until the first commit."""
        self._left: frozenset[str] = frozenset()
        """Topics of which it was said that they are not read any more."""

    @property
    def reader(self) -> Reader:
        return self._reader

    def plan(
        self, position: Position | None, limit_records: int, now: float, final: bool = False, *, split_records: int | None = None
    ) -> SourcePlan:
        """See :class:`streamjoin.io.base.Source`. As many requests to the brokers as a look takes; O(partitions + splits)."""
        reached = Reached.from_json(position, self._topic)
        before = self._read_before(reached)
        seen = self._brokers.look(before, None if position else self.config.starting_millis)
        begun = before if position else self._begin(seen)
        topics = {name: read for name, read in reached.topics.items() if name not in seen.deleted}
        lost: dict[tuple[str, int], int] = {}
        free = reached.numbered
        for name, topic in sorted(seen.topics.items()):
            read = Read() if name in seen.replaced else begun.get(name, Read())
            offsets, lost_of_topic = self._resume(name, read.offsets, topic)
            lost |= {(name, partition): count for partition, count in sorted(lost_of_topic.items())}
            numbers, free = self._numbers(read, topic, free)
            topics[name] = Read(topic.identity or read.identity, offsets, numbers)
        start = Reached(
            topics,
            free,
            reached.records,
            reached.skipped + sum(lost.values()),
            reached.replaced + len(seen.replaced),
            reached.deleted + len(seen.deleted),
            None if self._topic is not None else self.config.client.topic,
        )
        warnings = self._brokers.changes(seen, before)
        warnings += [
            f"{self.config.client.one(name)}: retention removed {count} records of partition {partition} before they were read; they are"
            f" skipped ({start.skipped} in all)"
            for (name, partition), count in lost.items()
        ]
        if not seen.topics:
            warnings.append(f"{self.config.client}: there is none; those that appear are read from their start")
        extents = {(name, number): extent for name, topic in seen.topics.items() for number, extent in topic.extents.items()}
        blocked = self._blocked.look(extents, now)
        warnings += self._blocked.warnings(blocked)
        return self._planned(start, seen, blocked, limit_records, split_records, tuple(warnings))

    def _numbers(self, read: Read, topic: Topic, free: int) -> tuple[Mapping[int, int], int]:
        """By partition, its number in the stream; and the next one that is free then."""
        if self._topic is not None:
            return {partition: partition for partition in topic.extents}, 0
        return numbered(read, topic.extents, free)

    def _planned(
        self,
        start: Reached,
        seen: Seen,
        blocked: Mapping[tuple[str, int], Blocked],
        limit_records: int,
        split_records: int | None,
        warnings: tuple[str, ...],
    ) -> SourcePlan:
        """What to read from ``start`` on."""
        # By partition, as the stream numbers them: its topic, and its number in that.
        places = {start.topics[name].numbers[number]: (name, number) for name, topic in seen.topics.items() for number in topic.extents}
        ends = {number: seen.topics[name].extents[partition].high for number, (name, partition) in places.items()}
        begins = {number: start.topics[name].offsets[partition] for number, (name, partition) in places.items()}
        taken = fair_shares({number: ends[number] - begins[number] for number in places}, limit_records)
        splits, end_record = [], start.records
        most = min(SPLIT_RECORDS, split_records or SPLIT_RECORDS)
        for number, count in sorted(taken.items()):
            name, partition = places[number]
            for first in range(begins[number], begins[number] + count, most):
                end = min(first + most, begins[number] + count)
                splits.append(
                    KafkaSplit(
                        first_record=end_record,
                        records=end - first,
                        partition=number,
                        topic=name,
                        start=first,
                        end=end,
                        of_topic=None if self._topic is not None else partition,
                        identity=start.topics[name].identity,
                    )
                )
                end_record += end - first
        after = {number: offset + taken[number] for number, offset in begins.items()}
        waiting = {number: ends[number] - offset for number, offset in sorted(after.items())}
        backlog = sum(waiting.values())
        topics = {name: read.at(after) for name, read in start.topics.items()}
        return SourcePlan(
            splits=tuple(splits),
            position=replace(start, topics=topics, records=end_record).to_json(self._topic),
            records=end_record - start.records,
            backlog_records=backlog,
            exhausted=backlog == 0 and not blocked,
            end_record=end_record,
            warnings=warnings,
            backlog_by_partition=waiting,
            skipped_records=start.skipped,
            replacements=start.replaced,
            deletions=start.deleted,
            topics={} if self._topic is not None else dict(sorted(places.items())),
            blocked={number: blocked[place] for number, place in sorted(places.items()) if place in blocked},
        )

    @property
    def traffic(self) -> Traffic:
        """The driver's traffic; errors that readers got over are in their records."""
        return Traffic(errors=self._brokers.complaints.count + self._group.complaints.count)

    def committed(self, position: Position) -> None:
        """Tells the group. Failures are logged only."""
        topics = Reached.from_json(position, self._topic).topics
        self._group.tell(
            {(name, partition): offset for name, read in topics.items() for partition, offset in read.offsets.items() if self._reads(name)}
        )

    def _reads(self, topic: str) -> bool:
        return matches(self.config.client.topic, topic) if self._topic is None else topic == self._topic

    def _read_before(self, reached: Reached) -> dict[str, Read]:
        """What was read of the topics that are read now. Raises SourceError where topics were read, and none of them is read now."""
        read = {name: of_topic for name, of_topic in reached.topics.items() if self._reads(name)}
        others = frozenset(reached.topics) - frozenset(read)
        if others and not read and reached.pattern != self.config.client.topic:
            raise SourceError(
                f"{self.config.client}: no topic that was read is one of them: {', '.join(sorted(others))}; correct kafka.topicPattern, or"
                " choose a new checkpoint.location"
            )
        for name in sorted(others - self._left):
            log.warning("%s: %s is not one of them, and is not read any more; how far it was read is kept", self.config.client, name)
        self._left = others
        return read

    def _begin(self, seen: Seen) -> dict[str, Read]:
        """Where reading begins, by what there was at the first look: by topic where the partitions ended, or where they had the first
        record from the time on. Nothing where it begins at the start."""
        if self.config.starting_offsets == "earliest" and self.config.starting_millis is None:
            return {}
        before, first = self._begins or {}, self._begins is None
        self._begins = dict(before)
        for name, topic in seen.topics.items():
            known = before.get(name)
            if (known is None and first) or (known is not None and topic.replaces(known[0])):
                self._begins[name] = (topic.identity, self._begin_of(topic))
        return {name: Read(identity, offsets) for name, (identity, offsets) in self._begins.items()}

    def _begin_of(self, topic: Topic) -> dict[int, int]:
        ends = {partition: extent.high for partition, extent in topic.extents.items()}
        return ends if self.config.starting_millis is None else {**ends, **topic.since}

    def _resume(self, name: str, before: Mapping[int, int], topic: Topic) -> tuple[dict[int, int], dict[int, int]]:
        """By partition, the next offset to read, and how many offsets were lost before it. Raises SourceError."""
        offsets: dict[int, int] = {}
        lost: dict[int, int] = {}
        for partition, extent in topic.extents.items():
            offset, low = before.get(partition, extent.low), extent.low
            if offset < low:
                if self.config.on_data_loss == "fail":
                    raise SourceError(
                        f"{self.config.client.one(name)}: partition {partition} begins at offset {low}, and {offset} is the next to be"
                        f" read: retention removed {low - offset} records that were not read. Set kafka.onDataLoss: skip to go on without"
                        " them, or choose a new checkpoint.location; a longer retention.ms of the topic keeps it from happening again"
                    )
                lost[partition] = low - offset
            offsets[partition] = max(offset, low)
        return offsets, lost


def fair_shares(available: Mapping[int, int], limit: int) -> dict[int, int]:
    """How much to take of each: at most ``limit`` in all (but one of each that has any), as evenly as they have. O(n log n)."""
    shares: dict[int, int] = {}
    left = limit
    for rank, (partition, count) in enumerate(sorted(available.items(), key=lambda item: (item[1], item[0]))):
        shares[partition] = max(min(count, 1), min(count, left // (len(available) - rank)))
        left = max(0, left - shares[partition])
    return shares


@dataclass(frozen=True)
class KafkaReader:
    """Reads ranges of offsets."""

    config: KafkaSourceConfig
    schema: pa.Schema

    def read(self, split: KafkaSplit) -> Iterator[Records]:
        """See :class:`streamjoin.io.base.Reader`. Memory: what ``kafka_session`` takes at once."""
        decode = self._decoder()
        with borrowed(self.config.client, self.config.group, split, headers=bool(decode.wanted.headers)) as session:
            for fetched in session.read(split, decode.wanted):
                arrived = fetched.arrived
                for records in decode(split, fetched):
                    records.errors = session.new_errors()
                    records.arrived, arrived = arrived, None
                    yield records

    def halves(self, split: KafkaSplit) -> tuple[KafkaSplit, ...]:
        """See :class:`streamjoin.io.base.Divisible`. O(1)."""
        if split.records < 2:
            return ()
        first = split.records // 2
        middle, left = split.start + first, split.records - first
        second = replace(split, start=middle, first_record=split.first_record + first, records=left)
        return replace(split, end=middle, records=first), second

    def raw(self, split: KafkaSplit) -> str:
        """See :class:`streamjoin.io.base.Divisible`."""
        with borrowed(self.config.client, self.config.group, split, headers=False) as session:
            values = [fetched.values[at] for fetched in session.read(split, Wanted()) for at in range(len(fetched.values))]
        return raw_text(values[0] or b"") if values else ""

    def _decoder(self) -> Decoder:
        metadata = dict(self.config.metadata)
        return WithMetadata(self._of_values, self.schema, metadata) if metadata else self._of_values(self.schema)

    def _of_values(self, schema: pa.Schema) -> Decoder:
        form, registry = self.config.format, self.config.registry
        if form == "json":
            return JsonDecoder(schema)
        if form == "raw":
            return RawDecoder(schema)
        from streamjoin.io.registered import RegisteredDecoder, RegisteredJsonDecoder

        assert registry is not None, "the manifest demands one for these formats"
        return RegisteredJsonDecoder(schema, registry) if form == "jsonSchema" else RegisteredDecoder(schema, form, registry)

    def close(self) -> None:
        """See :class:`streamjoin.io.base.Keeping`."""
        close_kept(self.config.client, self.config.group)


def open_source(model: Model, reading: Reading) -> KafkaSource:
    """See ``io.factory``."""
    client, group = client_of(model, model.topic_pattern), model.group_id or f"streamjoin-{reading.query}"
    config = KafkaSourceConfig(
        *(client, group, model.format, model.starting_offsets, model.on_data_loss, registry_config(model)),
        metadata=_metadata(model, reading.schema),
        starting_millis=None if model.starting_timestamp is None else -(-model.starting_micros // 1000),
        discovery_seconds=DISCOVERY_SECONDS if model.discovery_interval is None else model.discovery_interval.micros / 1e6,
    )
    return KafkaSource(config, reading.schema)


def _metadata(model: Model, schema: pa.Schema) -> tuple[tuple[str, str], ...]:
    """(column as it is declared, what of the record it has)."""
    names = {name.casefold(): name for name in schema.names}
    return () if model.metadata is None else tuple((names[column.casefold()], kind) for kind, column in model.metadata.columns())
