"""The producer of one topic's records, as the sink uses it: ``confluent_kafka``'s, told the topic, with errors as values."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Producer, TopicPartition

from streamjoin.io.kafka_client import error_of
from streamjoin.io.kafka_records import HEADER, Outgoing


class Sender(Producer):  # type: ignore[misc, unused-ignore]
    """A producer of one topic's records. The calls about transactions raise KafkaException; where time is over, the same call may be made
    again, and goes on."""

    def __init__(self, topic: str, settings: Mapping[str, Any]) -> None:
        """With ``error_cb`` and ``on_delivery``. Raises what ``confluent_kafka.Producer`` raises where an option is refused."""
        super().__init__(dict(settings))
        self._topic = topic
        self._told = settings["error_cb"], settings["on_delivery"]

    def send(self, records: Outgoing, start: int) -> tuple[int, KafkaError | None]:
        """Puts records from ``start`` on into the queue, in order, until one is refused, as by ``_QUEUE_FULL`` where there is no room.

        Returns the number of records before that one, and its error; all, and None. O(bytes).
        """
        produce, topic = self.produce, self._topic
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
        """Hears of errors and of records that could not be delivered, for as long as none comes."""
        self._served(super().poll, timeout_seconds)

    def flush(self, timeout_seconds: float) -> int:
        """How many records are not acknowledged when all are, or the time is over."""
        self._served(super().flush, timeout_seconds)
        return len(self)

    def _served(self, call: Callable[[float], object], timeout_seconds: float) -> None:
        """Makes a call that callbacks come in.

        ``confluent_kafka`` raises a fatal error instead of telling it. Callbacks that come in the same call are lost then, so it is told as
        that of a record, too: some may not have been delivered.
        """
        try:
            call(timeout_seconds)
        except (KafkaException, SystemError) as raised:
            fatal = _first_of(raised)
            if fatal is None:
                raise
            on_error, on_delivery = self._told
            on_error(fatal)
            on_delivery(fatal, None)

    def topic_error(self, timeout_seconds: float) -> KafkaError | None:
        """What the brokers say is wrong with the topic. Raises KafkaException where they do not answer in time."""
        found: KafkaError | None = self.list_topics(self._topic, timeout=timeout_seconds).topics[self._topic].error
        return found

    def abandon(self, timeout_seconds: float) -> None:
        """End it, whatever it has not sent yet."""
        self.purge()
        self.flush(timeout_seconds)

    def send_offset(self, offset: int, consumer: Any, timeout_seconds: float) -> None:
        """Have the topic's partition 0 this offset in the group of ``consumer``, with the transaction."""
        place = TopicPartition(self._topic, 0, offset)
        self.send_offsets_to_transaction([place], consumer.consumer_group_metadata(), timeout_seconds)


def _first_of(raised: BaseException | None) -> KafkaError | None:
    """The error that was raised first: Python makes a SystemError of each callback that is called after it."""
    while isinstance(raised, SystemError):
        raised = raised.__cause__
    return error_of(raised) if isinstance(raised, KafkaException) else None
