"""Producers of one topic's records, as the sink uses them: in bulk (``kafka_bulk.BulkProducer``), or record by record.

Always holds: which of the two sends makes no difference but the time it takes.
"""

from __future__ import annotations

import itertools
from typing import Any, Protocol

from confluent_kafka import KafkaError, KafkaException, TopicPartition

from streamjoin.io.kafka_client import error_of
from streamjoin.io.kafka_records import HEADER, Outgoing
from streamjoin.io.kafka_transactions import Committing


class Sender(Committing, Protocol):
    """A producer of one topic's records."""

    def send(self, records: Outgoing, start: int) -> tuple[int, KafkaError | None]:
        """Puts records from ``start`` on into the queue, in order, until one is refused, as by ``_QUEUE_FULL`` where there is no room.

        Returns the number of records before that one, and its error; all, and None.
        """

    def poll(self, timeout_seconds: float) -> None:
        """Hears of errors and of records that could not be delivered, for as long as none comes."""

    def flush(self, timeout_seconds: float) -> int:
        """How many records are not acknowledged when all are, or the time is over."""

    def topic_error(self, timeout_seconds: float) -> KafkaError | None:
        """What the brokers say is wrong with the topic. Raises KafkaException where they do not answer in time."""

    def abandon(self, timeout_seconds: float) -> None:
        """End it, whatever it has not sent yet."""


class RecordByRecord:
    """A Sender by ``confluent_kafka``, where the library cannot be used by itself (``librdkafka.load``)."""

    def __init__(self, topic: str, producer: Any) -> None:
        self._topic = topic
        self._producer = producer

    def send(self, records: Outgoing, start: int) -> tuple[int, KafkaError | None]:
        """O(bytes), with Python objects for each record."""
        produce, topic = self._producer.produce, self._topic
        columns = [column.slice(start).to_pylist() for column in (records.values, records.keys)]
        headers = itertools.repeat(None) if records.headers is None else records.headers.slice(start).to_pylist()
        for at, (value, key, header) in enumerate(zip(*columns, headers, strict=False), start):
            try:
                if header is None:
                    produce(topic, value, key)
                else:
                    produce(topic, value, key, headers=[(HEADER, header)])
            except BufferError:
                return at, KafkaError(KafkaError._QUEUE_FULL)
            except KafkaException as error:
                refusal = error_of(error)
                if refusal is None:
                    raise
                return at, refusal
        return len(records.values), None

    def poll(self, timeout_seconds: float) -> None:
        self._producer.poll(timeout_seconds)

    def flush(self, timeout_seconds: float) -> int:
        return int(self._producer.flush(timeout_seconds))

    def topic_error(self, timeout_seconds: float) -> KafkaError | None:
        found: KafkaError | None = self._producer.list_topics(self._topic, timeout=timeout_seconds).topics[self._topic].error
        return found

    def abandon(self, timeout_seconds: float) -> None:
        self._producer.purge()
        self._producer.flush(timeout_seconds)

    def init_transactions(self, timeout_seconds: float) -> None:
        self._producer.init_transactions(timeout_seconds)

    def begin_transaction(self) -> None:
        self._producer.begin_transaction()

    def send_offset(self, group: str, offset: int, consumer: Any, timeout_seconds: float) -> None:
        place = TopicPartition(self._topic, 0, offset)
        self._producer.send_offsets_to_transaction([place], consumer.consumer_group_metadata(), timeout_seconds)

    def commit_transaction(self, timeout_seconds: float) -> None:
        self._producer.commit_transaction(timeout_seconds)
