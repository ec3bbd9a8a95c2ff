"""Transactions of a Kafka sink: an epoch's records, and that they were sent, become visible at once or not at all.

What was sent last is an offset that is committed with the transaction, for a group of the sink's own and the topic's partition 0: the
number of the next epoch. A driver that starts asks for it before it sends, so it sends nothing that its predecessor's transaction had.

Always holds: of the producers of one checkpoint only the one that was made last can commit, as they have one transactional id, and each
asks what was sent after the brokers have ended its predecessors' transactions.

Source: KIP-98 and KIP-447.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from streamjoin.io.base import SinkError
from streamjoin.io.kafka_client import KafkaClient, error_of
from streamjoin.io.kafka_sender import Sender

TRANSACTION_SECONDS = 60
"""The time after which brokers end a transaction that nobody goes on with; or the sink's timeout, if that is longer."""
_AGAIN = (KafkaError._TIMED_OUT, KafkaError._TRANSPORT, KafkaError.COORDINATOR_NOT_AVAILABLE, KafkaError.NOT_COORDINATOR)


@dataclass
class Transactions:
    """One producer's."""

    client: KafkaClient
    identity: str
    """Of sink and checkpoint."""
    producer: Sender
    wait: Callable[[str, Callable[[float], object]], None]
    """Makes a call, with seconds, until it succeeds. Raises what keeps it from that."""
    sent: int = 0
    """The next epoch: those before it are on the topic."""
    consumer: Any = None
    """Of the group; made when it is needed first."""

    @property
    def group(self) -> str:
        return f"{self.identity}-sent"

    def begin(self) -> None:
        """Ends the predecessors' transactions, and asks what they have sent."""
        self.wait("no transactions could be begun", self.producer.init_transactions)
        own = {"group.id": self.group, "enable.auto.commit": False, "isolation.level": "read_committed"}
        self.consumer = self.client.make(Consumer, own, SinkError)
        self.wait("it is not known what was sent", self._ask)

    def commit(self, epoch: int) -> None:
        """The epoch's records are on the topic when this returns."""
        failed = "no transaction could be committed"
        self.wait(failed, lambda seconds: self.producer.send_offset(epoch + 1, self.consumer, seconds))
        self.wait(failed, self.producer.commit_transaction)
        self.sent = epoch + 1

    def close(self) -> None:
        """Ends what asks; the producer is not touched."""
        if self.consumer is not None:
            self.consumer.close()

    def _ask(self, seconds: float) -> None:
        (found,) = self.consumer.committed([TopicPartition(self.client.topic, 0)], timeout=seconds)
        if found.error is not None:
            raise KafkaException(found.error)
        self.sent = max(0, found.offset)


def settings(identity: str, timeout_seconds: float) -> dict[str, Any]:
    """The options that make a producer transactional."""
    return {"transactional.id": identity, "transaction.timeout.ms": int(1000 * max(TRANSACTION_SECONDS, timeout_seconds))}


def place_of(final: str) -> tuple[str, int]:
    """The sink and checkpoint of staged results, and their epoch."""
    origin, epoch, _, _ = final.rsplit("/", 3)
    return origin, int(epoch)


def passing_of(error: KafkaException) -> KafkaError | None:
    """The error, if the same call may do better."""
    inner = error_of(error)
    return inner if inner is not None and (inner.retriable() or inner.code() in _AGAIN) else None
