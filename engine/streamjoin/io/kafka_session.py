"""Consumers that read ranges of offsets, and are kept for the next range: in bulk by librdkafka, or record by record by
``confluent_kafka``.

Always holds: which of the two reads makes no difference but the time it takes. What is to be done with a partition's end, with an error and
with records of another place is decided here once, for both. The second one reads where the library cannot be used (``librdkafka.load``),
and where the library by itself does not take the options, of which ``confluent_kafka`` knows some more.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import numpy as np
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from streamjoin.io import librdkafka
from streamjoin.io.arrivals import Stamps, sample_step
from streamjoin.io.base import Replaced, SourceError
from streamjoin.io.kafka_bulk import BATCH_MESSAGES, BulkConsumer
from streamjoin.io.kafka_client import Complaints, KafkaClient
from streamjoin.io.kafka_records import Cells, Event, Fetched, KafkaSplit, Wanted
from streamjoin.io.lines import JSON_SPACE, count_records

READ_MESSAGES = BATCH_MESSAGES
"""So many are taken from librdkafka at once, if they are there within POLL_SECONDS."""
POLL_SECONDS = 0.02
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
OF_MANY = {"queued.max.messages.kbytes": 2_048}
"""The same, where there are more of them, of many topics."""
LOST = (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE)
ABSENT = (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION)
SESSIONS = 4
"""Consumers that a process keeps of one source: each goes on where it stopped without asking for the same records again."""
SESSIONS_OF_MANY = 32
"""The same of many topics. To send a consumer elsewhere takes as long as its request that is under way. So there are more of them, and
where there are still too few, each rests as soon as it has read."""
LEARN_SECONDS = 1.0
LEARNT_SECONDS = 60.0
"""So long after it was told of a topic, a consumer still knows it; in truth for a quarter of an hour."""


class Fetcher(Protocol):
    """A consumer of one partition at a time."""

    def assign(self, topic: str, partition: int, offset: int) -> None:
        """Fetch from there on, and nothing else. Raises KafkaException."""

    def rest(self) -> None:
        """Fetch nothing until the next ``assign``. Raises KafkaException."""

    def learn(self, topic: str, timeout_seconds: float) -> None:
        """Ask which brokers lead the topic's partitions. Raises KafkaException."""

    def take(self, split: KafkaSplit, low: int, limit: int, wanted: Wanted, timeout_seconds: float) -> Fetched:
        """The split's records from offset ``low`` on, at most ``limit``, as far as they come within the time."""

    def close(self) -> None: ...


class RecordByRecord:
    """A Fetcher by ``confluent_kafka``."""

    def __init__(self, consumer: Any) -> None:
        self._consumer = consumer

    def assign(self, topic: str, partition: int, offset: int) -> None:
        self._consumer.assign([TopicPartition(topic, partition, offset)])

    def rest(self) -> None:
        self._consumer.unassign()

    def learn(self, topic: str, timeout_seconds: float) -> None:
        self._consumer.list_topics(topic, timeout_seconds)

    def take(self, split: KafkaSplit, low: int, limit: int, wanted: Wanted, timeout_seconds: float) -> Fetched:
        """O(bytes), with several Python objects for each record."""
        got = self._consumer.consume(min(limit, READ_MESSAGES), timeout_seconds)
        records, events, passed = got, [], False
        # All records as they should be, by far the most frequent: told by the last one and their number.
        place = split.topic, split.number
        dense = bool(got) and got[-1].offset() - low + 1 == len(got) and (got[0].topic(), got[0].partition()) == place
        dense = dense and all(message.error() is None for message in got)
        if not dense:
            records = []
            for message in got:
                error = message.error()
                if error is not None:
                    events.append(Event(error, message.topic(), message.partition(), message.offset()))
                elif (message.topic(), message.partition()) == place and message.offset() >= low:
                    if message.offset() < split.end:
                        records.append(message)
                    else:
                        passed = True
        count = len(records)
        step = sample_step(count)
        stamps = np.fromiter((message.timestamp()[1] for message in records[::step]), np.int64)
        offsets = range(low, low + count) if dense else (message.offset() for message in records)
        return Fetched(
            np.fromiter(offsets, np.int64, count),
            _cells([message.value() for message in records], wanted.lines),
            _cells([message.key() for message in records], lines=False) if wanted.keys else None,
            np.fromiter((message.timestamp()[1] for message in records), np.int64, count) if wanted.timestamps else None,
            passed,
            events,
            tuple(_cells([_header(message, name) for message in records], lines=False) for name in wanted.headers),
            Stamps(stamps, step, count),
        )

    def close(self) -> None:
        self._consumer.close()


def _header(message: Any, name: str) -> bytes | None:
    """The last one of that name."""
    found: bytes | None = None
    for key, value in message.headers() or ():
        if key == name:
            found = value.encode() if isinstance(value, str) else value
    return found


def _cells(values: Sequence[bytes | None], lines: bool) -> Cells:
    count = len(values)
    given = np.ones(count, dtype=bool)
    texts: Sequence[bytes] = [value or b"" for value in values] if None in values else values  # type: ignore[assignment]
    if None in values:
        given = np.fromiter((value is not None for value in values), bool, count)
    gap = b"\n" if lines else b""
    data = gap.join([*texts, b""]) if count else b""
    ends = np.cumsum(np.fromiter(map(len, texts), np.int64, count) + len(gap)) - len(gap)
    is_lines = lines and data.count(b"\n") == count and count_records(data, JSON_SPACE) == count
    return Cells(np.frombuffer(data, np.uint8), ends, given, len(gap), is_lines)


class Session:
    """A consumer, and where it stands."""

    def __init__(self, client: KafkaClient, group: str, *, headers: bool = False) -> None:
        """``headers``: for a reader that wants them. Raises SourceError where the options are refused."""
        self._client = client
        self._complaints = Complaints()
        own = {
            "group.id": group,
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "auto.offset.reset": "error",
            "enable.partition.eof": True,
            "isolation.level": "read_committed",
            "error_cb": self._complaints,
        }
        fetching = FETCHING | OF_MANY if client.is_pattern else FETCHING
        kinds: list[Callable[[dict[str, Any]], Fetcher]] = [lambda settings: RecordByRecord(Consumer(fetching | settings))]
        library = librdkafka.load()
        if library is not None and not headers:
            kinds.insert(0, lambda settings: BulkConsumer(library, fetching | settings))
        self.fetcher: Fetcher = client.make_first(kinds, own, SourceError)
        self._counted = 0
        self._learnt: dict[str, float] = {}
        """When this consumer was last told of a topic, by the monotonic clock."""
        self.stands_at: tuple[str, int, int] | None = None
        """(topic, partition, offset) that would be read next without asking again."""

    def new_errors(self) -> int:
        """What the brokers, or the way to them, did wrong since this was last asked."""
        before, self._counted = self._counted, self._complaints.count
        return self._counted - before

    def read(self, split: KafkaSplit, wanted: Wanted) -> Iterator[Fetched]:
        """All records of the split: the end has come with a record at or after it, or with the partition's end there.

        Raises SourceError, UnavailableError.
        """
        partition, offset = split.number, split.start
        if self.stands_at != (split.topic, partition, offset):
            self._learn(split.topic)
            self.fetcher.assign(split.topic, partition, offset)
        self.stands_at = None
        self._complaints.forget()
        deadline = time.monotonic() + self._client.timeout_seconds
        ended = passed = False
        while offset < split.end and not (ended or passed):
            fetched = self.fetcher.take(split, offset, split.end - offset, wanted, POLL_SECONDS)
            for event in fetched.events:
                if event.is_of(split):
                    self._check(split, event)
                    ended |= event.error.code() == KafkaError._PARTITION_EOF and event.offset >= split.end
            passed = fetched.passed
            if len(fetched):
                offset = int(fetched.offsets[-1]) + 1
                deadline = time.monotonic() + self._client.timeout_seconds
                yield fetched
            elif not (ended or passed):
                self._keep_waiting(split.topic, f"nothing came of partition {partition} from offset {offset} on", deadline)
        if not passed:
            self.stands_at = (split.topic, partition, split.end)

    def rest(self) -> None:
        """Fetch nothing for now, so that no request is under way when it is sent elsewhere."""
        self.stands_at = None
        with contextlib.suppress(KafkaException):  # it goes on fetching then, which is only slower
            self.fetcher.rest()

    def _learn(self, topic: str) -> None:
        """A consumer that is sent from one topic to another would find out by itself who leads its partitions, after up to a second."""
        now = time.monotonic()
        if self._learnt and now - self._learnt.get(topic, float("-inf")) > LEARNT_SECONDS:
            with contextlib.suppress(KafkaException):  # whatever is wrong is said by reading
                self.fetcher.learn(topic, LEARN_SECONDS)
        self._learnt[topic] = now

    def _check(self, split: KafkaSplit, event: Event) -> None:
        """Raises what reading cannot go on after; what librdkafka mends by itself is remembered for messages."""
        error = event.error
        if error.code() == KafkaError._PARTITION_EOF:
            return
        client = self._client.one(split.topic)
        # One topic of several may go while it is read: the next plan is made without it, or says so.
        gone = (*LOST, *ABSENT) if self._client.is_pattern else LOST
        if error.code() in gone:
            raise Replaced(f"{client}: {split.name} were there when the epoch was planned, and are no more ({error.str()})")
        failure = client.failure(error, SourceError, "no answer")
        if isinstance(failure, SourceError):
            raise failure
        self._complaints(error)

    def _keep_waiting(self, topic: str, what: str, deadline: float) -> None:
        """Raises SourceError where the brokers refuse this client, UnavailableError after the deadline."""
        refusal = self._complaints.refusal(self._client, SourceError)
        if refusal is not None:
            raise refusal
        if time.monotonic() > deadline:
            raise self._client.one(topic).unavailable(what, self._complaints.text)

    def close(self) -> None:
        with contextlib.suppress(Exception):  # nothing depends on it
            self.fetcher.close()


_idle: dict[tuple[int, KafkaClient, str, bool], list[Session]] = {}
"""By process (a fork must not use its parent's), topic or pattern, group, and whether they read headers, consumers that nobody reads
from."""


def close_idle() -> None:
    """Close the consumers of this process that nobody reads from. Unclosed, each goes on asking brokers that may be gone."""
    for sessions in _idle.values():
        for session in sessions:
            session.close()
    _idle.clear()


def close_kept(client: KafkaClient, group: str) -> None:
    """The same, of one topic, or all of a pattern, and group."""
    for headers in (False, True):
        for session in _idle.pop((os.getpid(), client, group, headers), []):
            session.close()


@contextlib.contextmanager
def borrowed(client: KafkaClient, group: str, split: KafkaSplit, *, headers: bool = False) -> Iterator[Session]:
    """A consumer of this process, if possible one that stands where the split begins; ``headers``: one that reads them."""
    kept = _idle.setdefault((os.getpid(), client, group, headers), [])
    ready = next((session for session in kept if session.stands_at == (split.topic, split.number, split.start)), None)
    is_moved = ready is None and len(kept) >= (SESSIONS_OF_MANY if client.is_pattern else SESSIONS)
    if is_moved:
        ready = kept[0]
    if ready is not None:
        kept.remove(ready)
    session = ready or Session(client, group, headers=headers)
    try:
        yield session
    except GeneratorExit:
        kept.append(session)  # a reader that wanted no more; where it stands is not known, so the next one begins anew
        raise
    except BaseException:
        session.close()
        raise
    if is_moved and client.is_pattern:
        session.rest()
    kept.append(session)
