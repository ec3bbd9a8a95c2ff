"""A source of one Kafka topic's records: JSON values, those whose schema is in a registry, or the records as they are.

The driver asks the brokers where each partition begins and ends, and plans ranges of offsets; tasks read those. What has been read is in
the position alone (the epoch's commit), never in a consumer group, which is only told afterwards, for lag monitors.

Always holds: a range that was planned is read completely or not at all. A range ends where transactions are decided (read_committed), so
every attempt at it sees the same records, as long as compaction does not remove one in between. Partitions are added to a topic and never
taken away; those that appear are read from their start.

A topic is known by its id, which brokers give it when it is made: one that was deleted and made anew has another, however many records it
has. Brokers that know no ids (Kafka before 2.8) show a topic made anew only where it ends before what was read. Where that happens between
a plan and its reading, the plan after it tells.

Offsets have gaps where transactions end or compaction has worked. A record's position in the stream counts offsets, so gaps count too: for
windows of rows that is the definition, elsewhere record counts are estimates.
"""

from __future__ import annotations

import contextlib
import time
import weakref
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from confluent_kafka import Consumer, IsolationLevel, KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from streamjoin.io.base import Position, Reader, Records, SourceError, SourcePlan, Traffic
from streamjoin.io.kafka_client import Complaints, KafkaClient, error_of, log, reason_of
from streamjoin.io.kafka_records import Decoder, JsonDecoder, KafkaSplit, RawDecoder, WithMetadata
from streamjoin.io.kafka_session import borrowed, close_kept
from streamjoin.io.schema_registry import RegistryConfig

SPLIT_RECORDS = 250_000
"""A task reads at most so many offsets."""
SESSION = {"session.timeout.ms": 5000, "heartbeat.interval.ms": 1000}
"""Of the client that tells the group. It is no member, so all that this says is how long it tries, and how long its end may take."""
PAUSE_SECONDS = 0.1
ANSWER_SECONDS = 0.05
"""So often it is looked whether the brokers have refused a client that waits for them."""
BEHIND_SECONDS = 5.0
"""A broker that was killed may for a moment say that a partition ends before what it had shown; so long is waited for the rest."""


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


@dataclass(frozen=True)
class Extent:
    """Where a partition begins and where what can be read of it ends."""

    low: int
    high: int


@dataclass(frozen=True)
class Topic:
    """What the brokers say of a topic."""

    identity: str | None
    """Its id; None where the brokers know none."""
    extents: Mapping[int, Extent]
    """By partition."""
    since: Mapping[int, int] = field(default_factory=dict)
    """By partition, the first offset from the time on at which reading is to begin; none where no record is as late."""

    def replaces(self, identity: str | None) -> bool:
        """Whether the topic that had this id is gone, as far as can be told."""
        return identity is not None and self.identity is not None and self.identity != identity


class KafkaSource:
    """Plans ranges of offsets.

    The position is ``{"topic": name, "id": id, "offsets": {partition: next}, "records": n, "skipped": m, "replaced": k}``: the stream's
    offsets until there, how many were lost to retention on the way, and how often the topic was made anew. Older positions have no ``id``.
    """

    def __init__(self, config: KafkaSourceConfig, schema: pa.Schema) -> None:
        """Asks nothing of the brokers yet."""
        self.config = config
        self._reader = KafkaReader(config, schema)
        self._broker = _Broker(config)
        self._latest: dict[int, int] = {}
        """Where the partitions ended when ``latest`` was first looked up; in force until the first commit."""
        self._latest_of: str | None = None
        """The id of the topic whose partitions these are."""

    @property
    def reader(self) -> Reader:
        return self._reader

    def plan(
        self, position: Position | None, limit_records: int, now: float, final: bool = False, *, split_records: int | None = None
    ) -> SourcePlan:
        """See :class:`streamjoin.io.base.Source`. Three requests to the brokers; O(partitions + splits)."""
        name = self.config.client.topic
        before: dict[int, int] = {int(number): offset for number, offset in position["offsets"].items()} if position else {}
        identity: str | None = position.get("id") if position else None
        topic = self._broker.topic(before, identity, at_start=position is None)
        extents, replaced = topic.extents, topic.replaces(identity)
        if position is None and (self.config.starting_offsets == "latest" or self.config.starting_millis is not None):
            before = self._begin(topic)
        offsets, lost = self._resume({} if replaced else before, extents)
        records = position["records"] if position else 0
        skipped = (position["skipped"] if position else 0) + sum(lost.values())
        replacements = (position.get("replaced", 0) if position else 0) + replaced
        taken = fair_shares({partition: extents[partition].high - offset for partition, offset in offsets.items()}, limit_records)
        splits, end_record = [], records
        most = min(SPLIT_RECORDS, split_records or SPLIT_RECORDS)
        for partition, count in sorted(taken.items()):
            for start in range(offsets[partition], offsets[partition] + count, most):
                end = min(start + most, offsets[partition] + count)
                splits.append(
                    KafkaSplit(first_record=end_record, records=end - start, partition=partition, topic=name, start=start, end=end)
                )
                end_record += end - start
        after = {partition: offset + taken[partition] for partition, offset in offsets.items()}
        waiting = {partition: extents[partition].high - offset for partition, offset in sorted(after.items())}
        backlog = sum(waiting.values())
        return SourcePlan(
            splits=tuple(splits),
            position={
                "topic": name,
                "id": topic.identity or identity,
                "offsets": {str(partition): offset for partition, offset in sorted(after.items())},
                "records": end_record,
                "skipped": skipped,
                "replaced": replacements,
            },
            records=end_record - records,
            backlog_records=backlog,
            exhausted=backlog == 0,
            end_record=end_record,
            warnings=(
                *((self._broker.replacement(topic, before, identity),) if replaced else ()),
                *(
                    f"{self.config.client}: retention removed {count} records of partition {partition} before they were read; they are"
                    f" skipped ({skipped} in all)"
                    for partition, count in sorted(lost.items())
                ),
            ),
            backlog_by_partition=waiting,
            skipped_records=skipped,
            replacements=replacements,
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

    def _begin(self, topic: Topic) -> dict[int, int]:
        """Where the partitions ended at the first look at this topic, or where they had the first record from the time on."""
        if not self._latest or topic.replaces(self._latest_of):
            ends = {partition: extent.high for partition, extent in topic.extents.items()}
            self._latest = ends if self.config.starting_millis is None else {**ends, **topic.since}
            self._latest_of = topic.identity
        return self._latest

    def _resume(self, before: Mapping[int, int], extents: Mapping[int, Extent]) -> tuple[dict[int, int], dict[int, int]]:
        """By partition, the next offset to read, and how many offsets were lost before it. Raises SourceError."""
        client = self.config.client
        first = {partition: extent.low for partition, extent in extents.items()}
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
        self._certain: str | None = None
        """The id of a topic that was made anew, once it has been told for long enough."""
        self.group = _Group(config)
        # Also when the process ends. A consumer that is only dropped, with offsets on their way, keeps whoever drops it.
        weakref.finalize(self, self.group.close)

    @property
    def errors(self) -> int:
        """Of both clients, so far."""
        return self._complaints.count + self.group.complaints.count

    def topic(self, read: Mapping[int, int], identity: str | None, *, at_start: bool = False) -> Topic:
        """The topic as it is, ``at_start`` with where reading is to begin. ``read`` says what has been seen of it: it must be there still;
        and ``identity``, which topic that was: with ``onDataLoss: skip`` another one may be there now.

        Waits for brokers that are out of reach, for as long as the timeout, and a while for some that may be behind. Raises SourceError,
        UnavailableError.
        """
        client = self._config.client
        began = time.monotonic()
        self._complaints.forget()
        failure: Exception
        while True:
            try:
                millis = self._config.starting_millis if at_start else None
                found = self._look(max(1.0, began + client.timeout_seconds - time.monotonic()), millis)
                replaced = found.replaces(identity)
                if replaced and self._is_certain(found, began):
                    return found
                wrong = SourceError(self.replacement(found, read, identity)) if replaced else self._contradiction(found.extents, read)
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

    def _is_certain(self, found: Topic, began: float) -> bool:
        """Whether a topic that was made anew is to be read, and it was no broker behind the others that told of it."""
        if self._config.on_data_loss == "fail":
            return False
        if time.monotonic() - began + PAUSE_SECONDS >= min(BEHIND_SECONDS, self._config.client.timeout_seconds):
            self._certain = found.identity
        return self._certain == found.identity

    def replacement(self, found: Topic, read: Mapping[int, int], identity: str | None) -> str:
        """What is to be said of a topic that was made anew."""
        offsets = ", ".join(f"{partition}: {offset}" for partition, offset in sorted(read.items()))
        text = (
            f"{self._config.client}: the topic was deleted and made anew (its id is {found.identity}, and was {identity} when it was read"
            f" up to these offsets by partition: {offsets}); what was not read of the old one is lost"
        )
        if self._config.on_data_loss == "skip":
            return f"{text}, and the new one is read from its start"
        return f"{text}. Set kafka.onDataLoss: skip to read the new one from its start, or choose a new checkpoint.location"

    def _look(self, timeout: float, millis: int | None) -> Topic:
        client = self._config.client
        if self._admin is None:
            self._admin = client.make(AdminClient, {"error_cb": self._complaints}, SourceError)
        self._admin.poll(0)
        described: Future[Any] = self._admin.describe_topics(TopicCollection([client.topic]), request_timeout=timeout)[client.topic]
        description = self._answer(described)
        partitions = [TopicPartition(client.topic, partition.id) for partition in description.partitions]
        wanted = [OffsetSpec.earliest(), OffsetSpec.latest(), *([] if millis is None else [OffsetSpec.for_timestamp(millis)])]
        asked = [
            self._admin.list_offsets(
                dict.fromkeys(partitions, spec), isolation_level=IsolationLevel.READ_COMMITTED, request_timeout=timeout
            )
            for spec in wanted
        ]
        lows, highs, *times = ({at.partition: self._answer(future).offset for at, future in answers.items()} for answers in asked)
        since = {partition: offset for found in times for partition, offset in found.items() if offset >= 0}
        identity = description.topic_id
        known = identity is not None and (identity.get_most_significant_bits(), identity.get_least_significant_bits()) != (0, 0)
        extents = {partition: Extent(lows[partition], max(lows[partition], highs[partition])) for partition in lows}
        return Topic(str(identity) if known else None, extents, since)

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
        """See :class:`streamjoin.io.base.Reader`. Memory: what ``kafka_session`` takes at once."""
        decode = self._decoder()
        with borrowed(self.config.client, self.config.group, split, headers=bool(decode.wanted.headers)) as session:
            for fetched in session.read(split, decode.wanted):
                arrived = fetched.arrived
                for records in decode(split, fetched):
                    records.errors = session.new_errors()
                    records.arrived, arrived = arrived, None
                    yield records

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
