"""Kafka source and sink beside librdkafka's own speed, against one broker on this machine, in the same run.

    python tests/bench/bench_kafka.py [--records 500000] [--rounds 5] [--quick]

All in one process: ``plain`` is confluent-kafka (which is librdkafka) without anything of the engine, in turns with the engine's own. Each
line has the median of the rounds and their range, and the ratio to the plain line of its part. Reading starts with a consumer that has
fetched nothing. What is not in it: the join.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import pyarrow as pa
from confluent_kafka import Consumer, Producer, TopicPartition, libversion

from bench.report import machine, options, table
from kafka_broker import KafkaBroker, NoBroker
from streamjoin.io import kafka_source
from streamjoin.io.kafka_client import KafkaClient
from streamjoin.io.kafka_sink import KafkaSink, KafkaSinkConfig
from streamjoin.io.kafka_source import KafkaSource, KafkaSourceConfig
from streamjoin.state.storage import ObjectStorage

PARTITIONS = 2
SCHEMA = pa.schema([("id", pa.int64()), ("k", pa.int64()), ("price", pa.decimal128(10, 2)), ("at", pa.timestamp("us", "UTC"))])
RAW = pa.schema([("key", pa.binary()), ("value", pa.binary()), ("offset", pa.int64()), ("timestamp", pa.timestamp("us", "UTC"))])


class Board:
    """Times each way of doing a part in turns, and prints them."""

    def __init__(self, rows: int, rounds: int) -> None:
        self._rows = rows
        self._rounds = rounds

    def compare(self, title: str, ways: dict[str, Callable[[], None]]) -> None:
        """The first way is the one that the others are compared with."""
        seconds: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(self._rounds):
            for name, work in ways.items():
                start = time.perf_counter()
                work()
                seconds[name].append(time.perf_counter() - start)
        print(f"\n**{title}**\n")
        base = statistics.median(next(iter(seconds.values())))
        lines = []
        for name, spent in seconds.items():
            median = statistics.median(spent)
            slowest, fastest = (self._rows / extreme for extreme in (max(spent), min(spent)))
            lines.append([name, f"{self._rows / median:,.0f}", f"{slowest:,.0f} to {fastest:,.0f}", f"{base / median:.2f}"])
        print(table(["", "rows/s", "range", "of the first"], lines), flush=True)


def make_values(rows: int) -> list[bytes]:
    return [
        b'{"id":%d,"k":%d,"price":"%d.50","at":"2026-01-01T00:%02d:%02dZ"}' % (i, i % 9973, i % 1000, i // 60 % 60, i % 60)
        for i in range(rows)
    ]


def fill(broker: KafkaBroker, topic: str, values: list[bytes], **options: object) -> None:
    producer = Producer(
        {"bootstrap.servers": broker.servers, "linger.ms": 5, "enable.idempotence": True, "queue.buffering.max.messages": 500_000} | options
    )
    for index, value in enumerate(values):
        send(producer, topic, value, None, index % PARTITIONS)
    assert producer.flush(60) == 0


def send(producer: Producer, topic: str, value: bytes, key: bytes | None, partition: int = -1) -> None:
    while True:
        try:
            producer.produce(topic, value, key, partition)
            return
        except BufferError:
            producer.poll(0.05)


def plain_consume(broker: KafkaBroker, topic: str, rows: int, **options: object) -> None:
    """Every value of every partition, one partition after the other, as the splits are read."""
    consumer = Consumer({"bootstrap.servers": broker.servers, "group.id": "bench", "isolation.level": "read_committed"} | options)
    for partition in range(PARTITIONS):
        consumer.assign([TopicPartition(topic, partition, 0)])
        left = rows // PARTITIONS
        while left:
            left -= len([message.value() for message in consumer.consume(min(20_000, left), 0.02)])
    consumer.close()


def read(broker: KafkaBroker, topic: str, rows: int, form: str) -> None:
    for sessions in kafka_source._idle.values():
        for session in sessions:
            session.close()
    kafka_source._idle.clear()
    config = KafkaSourceConfig(KafkaClient(broker.servers, topic), "bench", form)
    source = KafkaSource(config, SCHEMA if form == "json" else RAW)
    found = sum(records.batch.num_rows for split in source.plan(None, rows, 0.0).splits for records in source.reader.read(split))
    assert found == rows


def results(rows: int) -> pa.RecordBatch:
    numbers = pa.array(range(rows), pa.int64())
    prices = pa.array([i % 1000 for i in range(rows)], pa.int64()).cast(pa.decimal128(20, 0)).cast(pa.decimal128(10, 2))
    return pa.record_batch([numbers, numbers, prices, numbers.cast(SCHEMA.field("at").type)], schema=SCHEMA)


def sinks(board: Board, broker: KafkaBroker, rows: int, root: Path) -> None:
    topic = broker.create_topic("sink", PARTITIONS)
    values, batch = make_values(rows), results(rows)
    keys = [b"pairs/5d0c1a9e/0/0/%d" % i for i in range(rows)]
    own = {"bootstrap.servers": broker.servers, "linger.ms": 5, "enable.idempotence": True, "queue.buffering.max.messages": 500_000}
    producer = Producer(own)
    client = KafkaClient(broker.servers, topic)
    by_key, by_header = (KafkaSink(KafkaSinkConfig(client, "pairs", key), SCHEMA, ObjectStorage(str(root))) for key in (None, "id"))
    epochs = iter(range(1_000_000))

    def plain(with_keys: bool) -> None:
        for value, key in zip(values, keys, strict=True):
            send(producer, topic, value, key if with_keys else None)
        assert producer.flush(60) == 0

    def staged(sink: KafkaSink, publish: bool) -> None:
        epoch = next(epochs)
        writer = sink.writer(f"0a1b-000001-{epoch:012d}-00000-x", f"0a1b-{epoch:012d}-00000")
        writer.write(batch)
        if publish:
            sink.publish(writer.close())
        else:
            writer.close()
            writer.abort()

    board.compare(
        "sink: to the last acknowledgement",
        {
            "plain produce with a key of the identity's length": lambda: plain(True),
            "plain produce without a key": lambda: plain(False),
            "stage and publish, the identity as key": lambda: staged(by_key, True),
            "stage and publish, a column as key, the identity as header": lambda: staged(by_header, True),
            "of that, staging: to JSON, and into storage": lambda: staged(by_key, False),
        },
    )


def main() -> None:
    parser = options(__doc__ or "")
    parser.add_argument("--records", type=float, default=500_000)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    rows, rounds = (20_000, 2) if arguments.quick else (int(arguments.records), arguments.rounds)
    print(machine())
    values = make_values(rows)
    board = Board(rows, rounds)
    try:
        with KafkaBroker(heap_mib=1024, fast=True) as broker, tempfile.TemporaryDirectory() as root:
            print(f"{rows:,} records of {len(values[-1])} bytes in {PARTITIONS} partitions, librdkafka {libversion()[0]}, {rounds} rounds")
            topic = broker.create_topic("source", PARTITIONS)
            fill(broker, topic, values)
            board.compare(
                "source: to columns of the declared types",
                {
                    "plain consume, the values as bytes": lambda: plain_consume(broker, topic, rows, **kafka_source.FETCHING),
                    "the same with librdkafka's own settings for fetching": lambda: plain_consume(broker, topic, rows),
                    "read raw: key, value, offset, timestamp": lambda: read(broker, topic, rows, "raw"),
                    "read JSON: 4 columns": lambda: read(broker, topic, rows, "json"),
                },
            )
            sinks(board, broker, rows, Path(root))
    except NoBroker as missing:
        print(f"nothing measured: {missing}")


if __name__ == "__main__":
    main()
