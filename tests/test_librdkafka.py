"""librdkafka called by itself: when it is used at all, and that it hands over exactly what ``confluent_kafka`` does.

What is done with the records is tested in ``test_kafka``, for both.
"""

from __future__ import annotations

import ctypes.util
import gc
import logging
import os
import random
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

pytest.importorskip("confluent_kafka")

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition, cimpl, libversion

from kafka_broker import KafkaBroker
from ports import free_ports
from streamjoin.io import kafka_bulk, librdkafka
from streamjoin.io.kafka_bulk import BulkConsumer
from streamjoin.io.kafka_client import KafkaClient
from streamjoin.io.kafka_records import Fetched, KafkaSplit, Wanted
from streamjoin.io.kafka_session import RecordByRecord, Session
from streamjoin.io.librdkafka import Library, UnfitError
from waiting import PATIENCE_SECONDS, wait_for

pytestmark = pytest.mark.kafka
EVERYTHING = Wanted(lines=False, keys=True, timestamps=True)
Record = tuple[bytes | None, bytes | None, int]
"""Key, value and timestamp."""


@pytest.fixture
def library() -> Library:
    found = librdkafka.load()
    assert found is not None, "the wheel of confluent_kafka brings a library that can be used"
    return found


def settings(servers: str, **more: Any) -> dict[str, Any]:
    own = {"bootstrap.servers": servers, "group.id": "g", "enable.partition.eof": True, "auto.offset.reset": "error"}
    return own | {name.replace("_", "."): value for name, value in more.items()}


def put(broker: KafkaBroker, name: str, records: list[Record], partition: int = 0) -> None:
    producer = Producer({"bootstrap.servers": broker.servers, "message.max.bytes": 10_000_000})
    for key, value, timestamp in records:
        producer.produce(name, value, key, partition, timestamp=timestamp)
    assert producer.flush(PATIENCE_SECONDS) == 0


def whole(name: str, end: int, partition: int = 0, start: int = 0) -> KafkaSplit:
    return KafkaSplit(first_record=0, records=end - start, partition=partition, topic=name, start=start, end=end)


def taken(consumer: BulkConsumer, split: KafkaSplit, wanted: Wanted = EVERYTHING, *, low: int | None = None) -> Iterator[Fetched]:
    """What comes until the split has been read, or its partition ends."""
    low = split.start if low is None else low
    while low < split.end:
        fetched = consumer.take(split, low, split.end - low, wanted, 0.1)
        yield fetched
        if fetched.passed or any(event.error.code() == KafkaError._PARTITION_EOF for event in fetched.events):
            return
        low = int(fetched.offsets[-1]) + 1 if len(fetched) else low


def records_of(fetched: Fetched) -> list[tuple[int, Record]]:
    assert fetched.keys is not None
    assert fetched.timestamps is not None
    return [
        (int(offset), (fetched.keys[row], fetched.values[row], int(fetched.timestamps[row]))) for row, offset in enumerate(fetched.offsets)
    ]


def threads() -> int:
    return len(os.listdir("/proc/self/task"))


# --- whether the library is used ---


def test_the_library_is_the_one_of_confluent_kafka(library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    assert library.version() == libversion()[1]
    assert isinstance(Session(KafkaClient("127.0.0.1:9", "t"), "g").fetcher, BulkConsumer)
    monkeypatch.setenv(librdkafka.IGNORE, "1")
    assert librdkafka.load() is None
    assert isinstance(Session(KafkaClient("127.0.0.1:9", "t"), "g").fetcher, RecordByRecord)


def test_another_version_is_not_used() -> None:
    version = libversion()[1]
    with pytest.raises(UnfitError, match=rf"linked with librdkafka {version:#010x}, and confluent_kafka with 0x01020304"):
        librdkafka.check(cimpl.__file__, 0x01020304)


def test_a_version_nobody_knows_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(librdkafka, "OLDEST", 0x7F000000)
    with pytest.raises(UnfitError, match=r"is not of a version from 0x7f000000 to"):
        librdkafka.check(cimpl.__file__, libversion()[1])


def test_an_object_without_the_functions_is_not_used() -> None:
    libc = ctypes.util.find_library("c")
    assert libc is not None
    with pytest.raises(UnfitError, match="rd_kafka_version"):
        librdkafka.check(libc, libversion()[1])
    with pytest.raises(OSError, match="no-such-file"):
        librdkafka.check("/no-such-file.so", libversion()[1])


def test_a_message_laid_out_otherwise_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    class Otherwise(ctypes.Structure):
        """With key and payload the other way round, as an imagined version has them."""

        _fields_ = (*librdkafka.Message._fields_[:3], *librdkafka.Message._fields_[5:7], *librdkafka.Message._fields_[3:5])
        _fields_ = (*_fields_, *librdkafka.Message._fields_[7:])

    monkeypatch.setattr(librdkafka, "DeliveryCallback", ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.POINTER(Otherwise), ctypes.c_void_p))
    monkeypatch.setitem(librdkafka._FUNCTIONS, "conf_set_dr_msg_cb", (None, (ctypes.c_void_p, librdkafka.DeliveryCallback)))
    with pytest.raises(UnfitError, match="does not have a message's topic, payload, payload_bytes, key, key_bytes where expected"):
        librdkafka.check(cimpl.__file__, libversion()[1])


def test_options_that_it_refuses_are_confluent_kafkas_to_judge(library: Library) -> None:
    with pytest.raises(KafkaException, match=r"no\.such\.option"):
        BulkConsumer(library, settings("b:1") | {"no.such.option": "a secret"})
    only_there = KafkaClient("127.0.0.1:9", "t", (("client.id", "c"),))

    def refuses(_: dict[str, Any]) -> None:
        raise KafkaException(KafkaError(KafkaError._INVALID_ARG))

    assert only_there.make_first([refuses, lambda options: options["client.id"]], {}, ValueError) == "c"
    with pytest.raises(ValueError, match="the options are refused"):
        only_there.make_first([refuses, refuses], {}, ValueError)


# --- reading ---


def random_records(rng: random.Random, count: int) -> list[Record]:
    def text() -> bytes | None:
        size = rng.choice([0, 1, 8, 60, 300])
        return rng.choice([None, rng.randbytes(size), b" " * size, b"\n" * size])

    return [(text(), text(), 1_600_000_000_000 + rng.randint(0, 10**11)) for _ in range(count)]


@pytest.mark.parametrize("block_bytes", [kafka_bulk.BLOCK_BYTES, 4096])
def test_records_are_what_confluent_kafka_hands_over(
    block_bytes: int, library: Library, broker: KafkaBroker, topic: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Values of all sizes, null and empty ones, in blocks that have to grow, or that hold only a part of what librdkafka gave."""
    monkeypatch.setattr(kafka_bulk, "BLOCK_BYTES", block_bytes)
    monkeypatch.setattr(kafka_bulk, "FIRST_BYTES", 1024)
    name, rng = topic(2), random.Random(3)
    put(broker, name, random_records(rng, 3000), 0)
    put(broker, name, [*random_records(rng, 10), (b"k" * 70_000, b"v" * 700_000, 5), *random_records(rng, 10)], 1)
    oracle = Consumer(settings(broker.servers))
    consumer = BulkConsumer(library, settings(broker.servers))
    for partition, count in enumerate((3000, 21)):
        oracle.assign([TopicPartition(name, partition, 0)])
        expected = []
        while len(expected) < count:
            expected += [message for message in oracle.consume(count, 1) if message.error() is None]
        consumer.assign(name, partition, 0)
        blocks = list(taken(consumer, whole(name, count, partition)))
        found = [record for fetched in blocks for record in records_of(fetched)]
        assert found == [(m.offset(), (m.key(), m.value(), m.timestamp()[1])) for m in expected], "seed 3"
        assert (len([fetched for fetched in blocks if len(fetched)]) > 20) == (block_bytes == 4096 and count == 3000)
        for fetched in blocks:
            assert fetched.keys is not None
            assert fetched.values.binary().to_pylist() == [fetched.values[row] for row in range(len(fetched))]
            assert fetched.keys.binary().to_pylist() == [fetched.keys[row] for row in range(len(fetched))]
    oracle.close()
    consumer.close()


def test_values_are_lines_where_each_of_them_is_one(library: Library, broker: KafkaBroker, topic: Callable[..., str]) -> None:
    for odd in (None, b"", b" x", b"\n", b"x\ny", b"x\n", "\u00e9".encode()):
        name = topic()
        put(broker, name, [(b"k", value, 1) for value in (b"{}", odd, b"[1]")])
        consumer = BulkConsumer(library, settings(broker.servers))
        consumer.assign(name, 0, 0)
        blocks = [fetched.values for fetched in taken(consumer, whole(name, 3), Wanted(lines=True)) if len(fetched)]
        consumer.close()
        assert b"".join(block.data.tobytes() for block in blocks) == b"{}\n" + (odd or b"") + b"\n[1]\n"
        assert [block[row] for block in blocks for row in range(len(block))] == [b"{}", odd, b"[1]"]
        assert all(block.is_lines for block in blocks) == (odd == "\u00e9".encode()), odd


def test_ranges_are_cut_where_they_are_to_be_cut(library: Library, broker: KafkaBroker, topic: Callable[..., str]) -> None:
    name = topic(2)
    for partition in range(2):
        put(broker, name, [(None, b"%d %d" % (partition, at), 1) for at in range(100)], partition)
    consumer = BulkConsumer(library, settings(broker.servers))
    for partition, start, end in ((0, 10, 20), (1, 0, 100), (0, 90, 100), (0, 95, 500)):
        consumer.assign(name, partition, start)
        blocks = list(taken(consumer, whole(name, end, partition, start)))
        found = [value for fetched in blocks for _, (_, value, _) in records_of(fetched)]
        assert found == [b"%d %d" % (partition, at) for at in range(start, min(end, 100))]
    ends = [(event.error.code(), event.partition, event.offset) for event in blocks[-1].events]
    assert ends == [(KafkaError._PARTITION_EOF, 0, 100)]
    consumer.assign(name, 0, 50)
    late = list(taken(consumer, whole(name, 60), low=55))
    assert [offset for fetched in late for offset, _ in records_of(fetched)] == [55, 56, 57, 58, 59], "none twice"
    consumer.assign(name, 0, 70)
    beyond = next(fetched for fetched in iter(lambda: consumer.take(whole(name, 60), 50, 10, EVERYTHING, 1.0), None) if fetched.passed)
    assert len(beyond) == 0
    consumer.assign(name, 0, 70)
    consumer.close()
    consumer.close()


def test_an_offset_that_is_gone_is_an_event(library: Library, broker: KafkaBroker, topic: Callable[..., str]) -> None:
    name = topic()
    put(broker, name, [(None, b"x", 1)] * 10)
    broker.delete_records(name, 0, 5)
    consumer = BulkConsumer(library, settings(broker.servers))
    consumer.assign(name, 0, 2)
    blocks = iter(lambda: consumer.take(whole(name, 10), 2, 10, EVERYTHING, 1.0), None)
    event = next(event for fetched in blocks for event in fetched.events)
    assert event.error.code() == KafkaError._AUTO_OFFSET_RESET
    assert "out of range" in event.error.str()
    consumer.close()


def test_errors_and_log_lines_come_to_the_thread_that_polls_and_have_no_secret_in_them(
    library: Library, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "streamjoin.kafka")
    came_in: list[tuple[threading.Thread, KafkaError]] = []
    nobody = f"127.0.0.1:{free_ports(1)[0]}"
    secret = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", "sasl.username": "u", "sasl.password": "s3same"}
    own = {"error_cb": lambda error: came_in.append((threading.current_thread(), error)), "logger": logging.getLogger("streamjoin.kafka")}
    consumer = BulkConsumer(library, settings(nobody, debug="all") | {"log_level": 7} | secret | own)
    consumer.assign("t", 0, 0)

    def is_told() -> bool:
        assert len(consumer.take(whole("t", 10), 0, 10, EVERYTHING, 0.05)) == 0
        return bool(came_in)

    wait_for("an error", is_told, every=0)
    consumer.close()
    assert {thread for thread, _ in came_in} == {threading.current_thread()}
    assert {error.code() for _, error in came_in} <= {KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN}
    assert "Connection refused" in came_in[0][1].str()
    assert {record.threadName for record in caplog.records} == {threading.current_thread().name}
    assert any("sasl.password" in record.getMessage() for record in caplog.records)
    assert "s3same" not in caplog.text


def test_a_client_that_nobody_has_any_more_ends(library: Library, broker: KafkaBroker, topic: Callable[..., str]) -> None:
    """Also one that holds messages which nobody has looked at."""
    name = topic()
    put(broker, name, [(None, b"x" * 100_000, 1)] * 20)
    before = threads()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kafka_bulk, "BLOCK_BYTES", 1000)
        consumer = BulkConsumer(library, settings(broker.servers))
        consumer.assign(name, 0, 0)
        next(fetched for fetched in taken(consumer, whole(name, 20)) if len(fetched))
    assert threads() > before
    del consumer
    gc.collect()
    wait_for("the end of librdkafka's threads", lambda: threads() <= before)


def test_a_forked_process_leaves_its_parents_clients_alone(library: Library, broker: KafkaBroker, topic: Callable[..., str]) -> None:
    name = topic()
    put(broker, name, [(None, b"x", 1)] * 3)
    consumer = BulkConsumer(library, settings(broker.servers))
    child = os.fork()
    if child == 0:
        del consumer
        gc.collect()
        os._exit(0)
    ended: list[int] = []
    wait_for("the child's end", lambda: bool(ended.append(os.waitpid(child, os.WNOHANG)[0]) or ended[-1]))
    consumer.assign(name, 0, 0)
    assert sum(len(fetched) for fetched in taken(consumer, whole(name, 3))) == 3
    consumer.close()


def test_the_reason_why_it_is_not_used_is_in_the_log_once(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    caplog.set_level(logging.INFO, "streamjoin.kafka")
    librdkafka._loaded.cache_clear()
    with monkeypatch.context() as patch:
        patch.setattr(librdkafka, "OLDEST", 0x7F000000)
        assert librdkafka.load() is None
        assert librdkafka.load() is None
    librdkafka._loaded.cache_clear()
    assert [record.getMessage().split(":")[0] for record in caplog.records] == ["Kafka is read record by record"]
