"""The consumer group of a Kafka source. It is told what has been read, so that people can watch its lag; nothing else depends on it."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from streamjoin.io.base import SourceError
from streamjoin.io.kafka_client import Complaints, KafkaClient, log, reason_of

SESSION = {"session.timeout.ms": 5000, "heartbeat.interval.ms": 1000}
"""Of the client that tells the group. It is no member, so all that this says is how long it tries, and how long its end may take."""


class Group:
    """Tells the group. Its client is made when first needed."""

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
                own = {"group.id": self._group, "enable.auto.commit": False} | SESSION | callbacks
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
