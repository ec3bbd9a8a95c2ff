"""The producer of one topic's records: what it is given arrives as it is, and what is refused is told with its place."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

pytest.importorskip("confluent_kafka")

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from kafka_broker import KafkaBroker
from ports import free_ports
from streamjoin.io.kafka_records import Outgoing
from streamjoin.io.kafka_sender import Sender
from waiting import PATIENCE_SECONDS, wait_for

pytestmark = pytest.mark.kafka
Report = tuple[KafkaError | None, Message | None]


def told(reports: list[Report] | None = None, errors: list[KafkaError] | None = None) -> dict[str, Any]:
    """Options of a producer that hears what comes of records, and errors."""
    heard: list[Report] = [] if reports is None else reports
    return {"on_delivery": lambda error, message: heard.append((error, message)), "error_cb": ([] if errors is None else errors).append}


def read_back(broker: KafkaBroker, name: str) -> list[tuple[bytes | None, bytes | None, list[tuple[str, bytes]] | None]]:
    consumer = Consumer({"bootstrap.servers": broker.servers, "group.id": "g", "enable.partition.eof": True})
    consumer.assign([TopicPartition(name, 0, 0)])
    found = []
    for message in itertools.chain.from_iterable(iter(lambda: consumer.consume(1000, 1), None)):
        if message.error() is not None:
            break
        found.append((message.key(), message.value(), message.headers()))
    consumer.close()
    return found


def test_records_arrive_as_they_are(broker: KafkaBroker, topic: Callable[..., str]) -> None:
    """Slices of columns, null keys, empty keys and values, with and without headers."""
    name, rng = topic(), random.Random(9)
    values = [rng.randbytes(rng.choice([0, 1, 50])) for _ in range(500)]
    keys = [rng.choice([None, b"", rng.randbytes(7)]) for _ in range(500)]
    headers = [b"id-%d" % at for at in range(500)]
    columns = [pa.array(column, pa.binary()) for column in (values, keys, headers)]
    producer = Sender(name, told() | {"bootstrap.servers": broker.servers})
    assert producer.send(Outgoing(*columns), 0) == (500, None)
    assert producer.send(Outgoing(*(column.slice(100, 50) for column in columns)), 20) == (50, None)
    assert producer.send(Outgoing(columns[0].slice(400), columns[1].slice(400)), 0) == (100, None)
    wait_for("the acknowledgements", lambda: producer.flush(1) == 0)
    sent = [(keys[at], values[at], [("streamjoin-id", headers[at])]) for at in [*range(500), *range(120, 150)]]
    assert read_back(broker, name) == [*sent, *((keys[at], values[at], None) for at in range(400, 500))], "seed 9"
    producer.abandon(1)


def test_a_refusal_says_which_record_it_is_of(broker: KafkaBroker, topic: Callable[..., str]) -> None:
    name = topic()
    options = {"bootstrap.servers": broker.servers, "queue.buffering.max.messages": 100, "linger.ms": 1000, "message.max.bytes": 2000}
    producer = Sender(name, told() | options)
    many = Outgoing(pa.array([b"%d" % at for at in range(250)], pa.binary()), pa.nulls(250, pa.binary()))
    sent = 0
    for _ in range(100):
        sent, error = producer.send(many, sent)
        if error is None:
            break
        assert error.code() == KafkaError._QUEUE_FULL
        producer.flush(PATIENCE_SECONDS)
    assert sent == 250
    large = Outgoing(pa.array([b"a", b"b" * 5000, b"c"], pa.binary()), pa.nulls(3, pa.binary()))
    sent, error = producer.send(large, 0)
    assert sent == 1
    assert error is not None
    assert error.code() == KafkaError.MSG_SIZE_TOO_LARGE
    wait_for("the acknowledgements", lambda: producer.flush(1) == 0)
    assert [value for _, value, _ in read_back(broker, name)] == [*(b"%d" % at for at in range(250)), b"a"]
    producer.abandon(1)


def test_what_the_brokers_say_of_a_topic(broker: KafkaBroker, topic: Callable[..., str]) -> None:
    for name, code in ((topic(), None), ("not-there", KafkaError.UNKNOWN_TOPIC_OR_PART)):
        producer = Sender(name, told() | {"bootstrap.servers": broker.servers})
        error = producer.topic_error(10)
        assert (None if error is None else error.code()) == code
        producer.abandon(1)
    producer = Sender("any", told() | {"bootstrap.servers": f"127.0.0.1:{free_ports(1)[0]}"})
    with pytest.raises(KafkaException, match=r"_TRANSPORT|_TIMED_OUT"):
        producer.topic_error(0.5)
    producer.abandon(0.1)


def test_records_that_nobody_takes_are_told() -> None:
    reports: list[Report] = []
    options = {"bootstrap.servers": f"127.0.0.1:{free_ports(1)[0]}", "message.timeout.ms": 50, "delivery.report.only.error": True}
    producer = Sender("t", told(reports) | options)
    assert producer.send(Outgoing(pa.array([b"x", b"y"]), pa.array([b"k", None], pa.binary())), 0) == (2, None)
    wait_for("the reports", lambda: bool(producer.poll(0.1)) or len(reports) == 2)
    assert [(error and error.code(), message and (message.key(), message.value())) for error, message in reports] == [
        (KafkaError._MSG_TIMED_OUT, (b"k", b"x")),
        (KafkaError._MSG_TIMED_OUT, (None, b"y")),
    ]
    producer.abandon(0.1)


def test_a_producer_that_may_not_go_on_says_so_of_its_records(broker: KafkaBroker, topic: Callable[..., str]) -> None:
    """As another one has its transactional id. Not one of many records is taken for delivered."""
    name, reports, errors = topic(), list[Report](), list[KafkaError]()
    options = {"bootstrap.servers": broker.servers, "transactional.id": name, "delivery.report.only.error": True}
    first = Sender(name, told(reports, errors) | options)
    first.init_transactions(PATIENCE_SECONDS)
    second = Sender(name, told() | options)
    second.init_transactions(PATIENCE_SECONDS)
    first.begin_transaction()
    first.send(Outgoing(pa.array([b"x"] * 100), pa.nulls(100, pa.binary())), 0)
    wait_for("the end of the records", lambda: first.flush(0.5) == 0)
    assert KafkaError._FENCED in {error.code() for error in errors}
    assert KafkaError._FENCED in {error.code() for error, _ in reports if error is not None}
    for producer in (first, second):
        producer.abandon(1)
