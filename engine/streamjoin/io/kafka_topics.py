"""Asks the brokers, for the driver, which topics exist, where their partitions begin and end, and which topics are not those that were
read.

The number of requests does not depend on the number of topics: one for the topics, and three of each broker, for where its partitions begin
and where they end, with the records of open transactions and without. If the topics are named by a pattern, the list of all topics of the
cluster is asked for as well, now and then.

Always holds: a topic is known by its id, which brokers give it when it is made, so one that was deleted and made anew is another. Brokers
that know no ids (Kafka before 2.8) show that only where the new one ends before what was read.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import OFFSET_INVALID, IsolationLevel, KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from streamjoin.io.base import SourceError
from streamjoin.io.kafka_client import Complaints, KafkaClient, error_of, log, reason_of
from streamjoin.io.kafka_position import Read
from streamjoin.language.topics import matches

PAUSE_SECONDS = 0.1
ANSWER_SECONDS = 0.05
"""The time between two looks whether the brokers have refused a client that waits for them."""
BEHIND_SECONDS = 5.0
"""A broker that was killed may for a moment say that a partition ends before what it had shown; so long is waited for the rest."""
LIST_SECONDS = 0.5
"""So long is first waited for the list of topics, then twice as long, and so on: only in between it is looked for refusals."""
ABSENT = (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC)


@dataclass(frozen=True)
class Extent:
    """Where a partition begins and where what can be read of it ends."""

    low: int
    high: int
    blocked: int = 0
    """How many offsets lie behind that, because a transaction is open: they can be read once it is decided."""


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


@dataclass(frozen=True)
class Seen:
    """The topics as they are."""

    topics: Mapping[str, Topic]
    replaced: frozenset[str] = frozenset()
    """Topics that were deleted and made anew since they were read."""
    deleted: frozenset[str] = frozenset()
    """Topics that were read, and that do not exist any more."""


class _FailedError(Exception):
    """What went wrong with a request, and the client of the topic that it was about."""

    def __init__(self, client: KafkaClient, error: KafkaException) -> None:
        super().__init__(str(error))
        self.client = client
        self.error = error


class Brokers:
    """Asks. The client is made when first needed."""

    def __init__(self, client: KafkaClient, *, skips_losses: bool, discovery_seconds: float) -> None:
        """``skips_losses``: topics that are not those that were read are told of, and no error. ``discovery_seconds``: how old the list of
        topics may be, where they are known by a pattern."""
        self.complaints = Complaints()
        self._client = client
        self._skips_losses = skips_losses
        self._discovery_seconds = discovery_seconds
        self._admin: Any = None
        self._certain: set[tuple[str, str | None]] = set()
        """Topics that were made anew, by their ids, or deleted (None), once it has been told for long enough."""
        self._names: frozenset[str] | None = None
        """The topics that the pattern matches, when they were listed last."""
        self._lists_at = float("-inf")
        """When they are to be listed again, by the monotonic clock."""

    def look(self, read: Mapping[str, Read], millis: int | None = None) -> Seen:
        """The topics as they are; with ``millis`` (since 1970) also the first offsets from then on. ``read`` says what has been read of
        which: that must be there still, but for topics that were made anew or deleted, where losses are skipped.

        Waits for brokers that are out of reach, for as long as the timeout, and a while for some that may be behind. Raises SourceError,
        UnavailableError.
        """
        client = self._client
        began = time.monotonic()
        self.complaints.forget()
        failure: Exception
        while True:
            try:
                topics = self._look(read, max(1.0, began + client.timeout_seconds - time.monotonic()), millis)
                deleted = frozenset(read) - frozenset(topics)
                replaced = frozenset(name for name, topic in topics.items() if name in read and topic.replaces(read[name].identity))
                seen = Seen(topics, replaced, deleted)
                changed = {(name, topics[name].identity if name in topics else None) for name in replaced | deleted}
                wrong = self._contradiction(seen, read)
                if wrong is None and self._are_certain(changed, began):
                    return seen
                failure = wrong or SourceError(self.changes(seen, read)[0])
                patience = min(BEHIND_SECONDS, client.timeout_seconds)
            except (_FailedError, KafkaException) as raised:
                failed = raised if isinstance(raised, _FailedError) else _FailedError(client, raised)
                self._admin.poll(0)
                inner = error_of(failed.error)
                because = self.complaints.text or reason_of(failed.error)
                failure, patience = failed.client.unavailable("no answer", because), client.timeout_seconds
                if inner is not None:
                    answer = failed.client.failure(inner, SourceError, "no answer")
                    if isinstance(answer, SourceError):
                        # A broker that has just started may not know its topics for a moment.
                        failure, patience = answer, BEHIND_SECONDS if read or client.is_pattern else 0.0
            if time.monotonic() - began + PAUSE_SECONDS >= patience:
                raise failure
            time.sleep(PAUSE_SECONDS)

    def _are_certain(self, changed: set[tuple[str, str | None]], began: float) -> bool:
        """Whether the topics that are not those that were read are to be passed over, and it was no broker behind the others that told of
        them."""
        if changed and not self._skips_losses:
            return False
        if time.monotonic() - began + PAUSE_SECONDS >= min(BEHIND_SECONDS, self._client.timeout_seconds):
            self._certain |= changed
        if not changed <= self._certain:
            return False
        self._certain &= changed
        return True

    def changes(self, seen: Seen, read: Mapping[str, Read]) -> list[str]:
        """What is to be said of each topic that was made anew or deleted."""
        found = []
        for name in sorted(seen.replaced | seen.deleted):
            offsets = f"these offsets by partition: {read[name]}"
            if name in seen.replaced:
                ids = f"its id is {seen.topics[name].identity}, and was {read[name].identity} when it was read up to {offsets}"
                what, old, skip = f"and made anew ({ids})", "the old one", "read the new one from its start"
                skipped = "the new one is read from its start"
            else:
                what, old, skip = f"(it was read up to {offsets})", "it", "go on without it"
                skipped = "the others are read on"
            text = f"{self._client.one(name)}: the topic was deleted {what}; what was not read of {old} is lost"
            remedy = f". Set kafka.onDataLoss: skip to {skip}, or choose a new checkpoint.location"
            found.append(f"{text}, and {skipped}" if self._skips_losses else text + remedy)
        return found

    def _look(self, read: Mapping[str, Read], timeout: float, millis: int | None) -> dict[str, Topic]:
        """Those topics that are there. Raises _FailedError, and SourceError where waiting is no use."""
        client = self._client
        if self._admin is None:
            self._admin = client.make(AdminClient, {"error_cb": self.complaints}, SourceError)
        self._admin.poll(0)
        names = self._wanted(read, timeout)
        if not names:
            return {}
        asked = self._admin.describe_topics(TopicCollection(names), request_timeout=timeout)
        described: dict[str, Any] = {}
        for name in names:
            try:
                described[name] = self._answer(asked[name], name)
            except _FailedError as failed:
                inner = error_of(failed.error)
                if not client.is_pattern or inner is None or inner.code() not in ABSENT:
                    raise
        partitions = [TopicPartition(name, partition.id) for name, topic in described.items() for partition in topic.partitions]
        ends, lows, highs, times = self._offsets(partitions, timeout, millis)
        found = {}
        for name, topic in described.items():
            identity = topic.topic_id
            known = identity is not None and (identity.get_most_significant_bits(), identity.get_least_significant_bits()) != (0, 0)
            places = {partition.id: (name, partition.id) for partition in topic.partitions}
            extents = {number: _extent(lows[place], highs[place], ends[place]) for number, place in places.items()}
            since = {number: times[place] for number, place in places.items() if times.get(place, -1) >= 0}
            found[name] = Topic(str(identity) if known else None, extents, since)
        return found

    def _wanted(self, read: Mapping[str, Read], timeout: float) -> list[str]:
        """The names of the topics to ask for."""
        client = self._client
        if not client.is_pattern:
            return [client.topic]
        if time.monotonic() >= self._lists_at:
            names = frozenset(name for name in self._listed(timeout) if matches(client.topic, name))
            new = names - (self._names or frozenset()) - frozenset(read)
            if new:
                log.info("%s: these are new: %s", client, ", ".join(sorted(new)))
            if not names and names != self._names:
                log.warning("%s: there is none; they are looked for every %g s", client, self._discovery_seconds)
            self._names, self._lists_at = names, time.monotonic() + self._discovery_seconds
        return sorted((self._names or frozenset()) | frozenset(read))

    def _listed(self, timeout: float) -> Sequence[str]:
        """The names of all topics that this client may see. Raises as ``_look``."""
        deadline, patience = time.monotonic() + timeout, LIST_SECONDS
        while True:
            try:
                return list(self._admin.list_topics(timeout=min(patience, max(PAUSE_SECONDS, deadline - time.monotonic()))).topics)
            except KafkaException as error:
                self._raise_refusal()
                if time.monotonic() + PAUSE_SECONDS >= deadline:
                    raise _FailedError(self._client, error) from None
            time.sleep(PAUSE_SECONDS)
            patience *= 2

    def _offsets(self, partitions: Sequence[TopicPartition], timeout: float, millis: int | None) -> list[dict[tuple[str, int], int]]:
        """By topic and partition: the offset after the last record, the first offset, the one after the last record that can be read, and
        the first from a time on, -1 where there is none.

        The end is asked for first, so that records that come in between are not taken for blocked.
        """
        committed, uncommitted = IsolationLevel.READ_COMMITTED, IsolationLevel.READ_UNCOMMITTED
        wanted = [(OffsetSpec.latest(), uncommitted), (OffsetSpec.earliest(), committed), (OffsetSpec.latest(), committed)]
        if millis is not None:
            wanted.append((OffsetSpec.for_timestamp(millis), committed))
        if not partitions:
            return [{}, {}, {}, {}]
        asked = [
            self._admin.list_offsets(dict.fromkeys(partitions, spec), isolation_level=isolation, request_timeout=timeout)
            for spec, isolation in wanted
        ]
        found = [{(at.topic, at.partition): self._offset(future, at.topic) for at, future in each.items()} for each in asked]
        return found if millis is not None else [*found, {}]

    def _offset(self, asked: Future[Any], topic: str) -> int:
        """That of a partition. Raises as ``_look``, also where librdkafka answers without one, as while a leader comes back."""
        offset: int = self._answer(asked, topic).offset
        if offset == OFFSET_INVALID:
            raise _FailedError(self._client.one(topic), KafkaException(KafkaError(KafkaError.LEADER_NOT_AVAILABLE)))
        return offset

    def _answer(self, asked: Future[Any], topic: str) -> Any:
        """What librdkafka answers when it has the answer or gives up. Raises as ``_look``."""
        while True:
            try:
                return asked.result(ANSWER_SECONDS)
            except TimeoutError:
                self._raise_refusal()
            except KafkaException as error:
                raise _FailedError(self._client.one(topic), error) from None

    def _raise_refusal(self) -> None:
        """Raises SourceError where a broker has refused this client, which asking again does not change."""
        self._admin.poll(0)
        refusal = self.complaints.refusal(self._client, SourceError)
        if refusal is not None:
            raise refusal from None

    def _contradiction(self, seen: Seen, read: Mapping[str, Read]) -> SourceError | None:
        """Whether a topic cannot be the one that was read."""
        for name in sorted(frozenset(seen.topics) & frozenset(read) - seen.replaced):
            for partition, offset in read[name].offsets.items():
                extent = seen.topics[name].extents.get(partition)
                if extent is None or extent.high < offset:
                    shows = "is gone" if extent is None else f"ends at offset {extent.high}"
                    return SourceError(
                        f"{self._client.one(name)}: partition {partition} {shows}, and was read up to {offset}: the topic was made anew, or"
                        " its brokers lost records. Choose a new checkpoint.location to read what is there now"
                    )
        return None


def _extent(low: int, high: int, end: int) -> Extent:
    high = max(low, high)
    return Extent(low, high, max(0, end - high))
