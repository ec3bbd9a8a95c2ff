"""Kafka source, in bulk and record by record, and sink, beside confluent-kafka's own speed, against one broker on this machine, in one run.

    python tests/bench/bench_kafka.py [--records 1e6] [--rounds 5] [--quick]

All in one process: ``plain`` is confluent-kafka (which is librdkafka) without anything of the engine, in turns with the engine. Each line
has the median of the rounds' rows/s with their range, the ratio to the plain line of its part, and for each record the CPU time of this
process, of all its threads, librdkafka's among them. Reading starts with a consumer that has fetched nothing. What is not in it: the join,
and the CPU time of the broker, which shares the machine.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import fastavro
import numpy as np
import pyarrow as pa
from confluent_kafka import Consumer, Producer, TopicPartition, libversion

from bench.report import machine, options, table
from kafka_broker import KafkaBroker, NoBroker
from kafka_schemas import message_class
from streamjoin.io import librdkafka
from streamjoin.io.avro_schema import avro_reader
from streamjoin.io.base import Staged
from streamjoin.io.kafka_client import KafkaClient
from streamjoin.io.kafka_session import FETCHING, close_idle
from streamjoin.io.kafka_sink import KafkaSink, KafkaSinkConfig
from streamjoin.io.kafka_source import KafkaSource, KafkaSourceConfig
from streamjoin.io.protobuf_schema import protobuf_reader
from streamjoin.io.text import JsonFormat
from streamjoin.state.storage import ObjectStorage

PARTITIONS = 2
SCHEMA = pa.schema([("id", pa.int64()), ("k", pa.int64()), ("price", pa.decimal128(10, 2)), ("at", pa.timestamp("us", "UTC"))])
RAW = pa.schema([("key", pa.binary()), ("value", pa.binary()), ("offset", pa.int64()), ("timestamp", pa.timestamp("us", "UTC"))])


class Board:
    """Times each way of doing a part in turns, and prints them."""

    def __init__(self, rows: int, rounds: int) -> None:
        self._rows = rows
        self._rounds = rounds

    def compare(self, title: str, ways: Mapping[str, Callable[[], object]]) -> None:
        """The first way is the one that the others are compared with."""
        spent: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
        for _ in range(self._rounds):
            for name, work in ways.items():
                start, busy = time.perf_counter(), time.process_time()
                work()
                spent[name].append((time.perf_counter() - start, time.process_time() - busy))
        print(f"\n**{title}**\n")
        lines = []
        base = 0.0
        for name, times in spent.items():
            seconds, busy_seconds = zip(*times, strict=True)
            median = statistics.median(seconds)
            base = base or median
            slowest, fastest = (self._rows / extreme for extreme in (max(seconds), min(seconds)))
            micros = statistics.median(busy_seconds) / self._rows * 1e6
            lines.append(
                [name, f"{self._rows / median:,.0f}", f"{slowest:,.0f} to {fastest:,.0f}", f"{base / median:.2f}", f"{micros:.2f}"]
            )
        print(table(["", "rows/s", "range", "of the first", "CPU us/record"], lines), flush=True)


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


def read(broker: KafkaBroker, topic: str, rows: int, form: str, *, bulk: bool) -> None:
    close_idle()
    config = KafkaSourceConfig(KafkaClient(broker.servers, topic), "bench", form)
    source = KafkaSource(config, SCHEMA if form == "json" else RAW)
    with bulk_or_not(bulk):
        found = sum(records.batch.num_rows for split in source.plan(None, rows, 0.0).splits for records in source.reader.read(split))
    assert found == rows


@contextlib.contextmanager
def bulk_or_not(bulk: bool) -> Iterator[None]:
    """Without ``bulk``, as if librdkafka could not be called by itself."""
    if bulk:
        assert librdkafka.load() is not None
        yield
        return
    os.environ[librdkafka.IGNORE] = "1"
    try:
        yield
    finally:
        del os.environ[librdkafka.IGNORE]


def results(rows: int) -> pa.RecordBatch:
    numbers = pa.array(range(rows), pa.int64())
    prices = pa.array([i % 1000 for i in range(rows)], pa.int64()).cast(pa.decimal128(20, 0)).cast(pa.decimal128(10, 2))
    return pa.record_batch([numbers, numbers, prices, numbers.cast(SCHEMA.field("at").type)], schema=SCHEMA)


def decoders(rounds: int, rows: int) -> None:
    """What bytes of a record cost as columns, without the broker: our machine code beside the libraries of each format."""
    declared = pa.schema([*SCHEMA.remove(2), ("price", pa.float64())])
    at = {"type": "long", "logicalType": "timestamp-micros"}
    fields = [("id", "long"), ("k", ["null", "long"]), ("price", "double"), ("at", at)]
    avro = {"type": "record", "name": "R", "fields": [{"name": name, "type": kind} for name, kind in fields]}
    parsed = fastavro.parse_schema(avro)
    stamp = 'import "google/protobuf/timestamp.proto"; '
    proto = f'syntax = "proto3"; {stamp}message R {{ int64 id = 1; int64 k = 2; double price = 3; google.protobuf.Timestamp at = 4; }}'
    kind = message_class(proto, "R")
    records = [{"id": i, "k": i % 9973, "price": i % 1000 + 0.5, "at": datetime.fromtimestamp(1_767_225_600 + i, UTC)} for i in range(rows)]
    buffer = io.BytesIO()
    avros, protos, texts = [], [], []
    for record in records:
        buffer.seek(0)
        buffer.truncate()
        fastavro.schemaless_writer(buffer, parsed, record)
        avros.append(buffer.getvalue())
        message = kind(id=record["id"], k=record["k"], price=record["price"])
        message.at.FromDatetime(record["at"])
        protos.append(message.SerializeToString())
        texts.append(json.dumps(record | {"at": record["at"].isoformat()}).encode())
    json_reader, avro_columns = JsonFormat(declared), avro_reader(json.dumps(avro), [], declared)
    proto_columns = protobuf_reader(proto, (), declared)

    def cells(values: list[bytes]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        sizes = np.array([len(value) for value in values])
        return np.frombuffer(b"".join(values), np.uint8), np.cumsum(sizes) - sizes, np.cumsum(sizes)

    lines, of_avro, of_proto = b"\n".join([*texts, b""]), cells(avros), cells([b"\0" + value for value in protos])

    def by_fastavro() -> None:
        rows = [fastavro.schemaless_reader(io.BytesIO(value), parsed, None) for value in avros]
        pa.RecordBatch.from_pylist(rows, schema=declared)

    def by_protobuf() -> None:
        found = [kind.FromString(value) for value in protos]
        columns = [[getattr(row, name) for row in found] for name in ("id", "k", "price")]
        pa.record_batch([pa.array(column) for column in columns] + [pa.array([row.at.ToMicroseconds() for row in found])], list("abcd"))

    ways: dict[str, Callable[[], object]] = {
        "JSON": lambda: json_reader.parse(lines, rows),
        "Avro": lambda: avro_columns(*of_avro),
        "Avro by fastavro": by_fastavro,
        "Protobuf": lambda: proto_columns(*of_proto),
        "Protobuf by google.protobuf": by_protobuf,
    }
    with contextlib.suppress(ImportError):  # of no extra: pip install ptars
        ptars = importlib.import_module("ptars")
        handler = ptars.HandlerPool([kind.DESCRIPTOR.file], config=ptars.PtarsConfig(timestamp_unit="us")).get_for_message(kind.DESCRIPTOR)
        messages = pa.array(protos, pa.binary())
        ways["Protobuf by ptars"] = lambda: handler.array_to_record_batch(messages)
    Board(rows, rounds).compare("decoding: bytes in memory to four columns", ways)


def sinks(board: Board, broker: KafkaBroker, rows: int, rounds: int, root: Path) -> None:
    topic = broker.create_topic("sink", PARTITIONS)
    values, batch = make_values(rows), results(rows)
    keys = [b"pairs/5d0c1a9e/0/0/%d" % i for i in range(rows)]
    own = {"bootstrap.servers": broker.servers, "linger.ms": 5, "enable.idempotence": True, "queue.buffering.max.messages": 500_000}
    producer = Producer(own)
    client = KafkaClient(broker.servers, topic)
    storage = ObjectStorage(str(root))
    epochs = iter(range(1_000_000))

    def plain(with_keys: bool) -> None:
        for value, key in zip(values, keys, strict=True):
            send(producer, topic, value, key if with_keys else None)
        assert producer.flush(60) == 0

    def sink(key: str | None) -> KafkaSink:
        made = KafkaSink(KafkaSinkConfig(client, "pairs", key), SCHEMA, storage)
        made.publish([], again=True)
        return made

    def staged(into: KafkaSink) -> list[Staged]:
        epoch = next(epochs)
        writer = into.writer(f"0a1b-000001-{epoch:012d}-00000-x", f"0a1b-{epoch:012d}-00000")
        writer.write(batch)
        return writer.close()

    def publish(into: KafkaSink, prepared: list[list[Staged]]) -> None:
        into.publish(prepared.pop())

    def stage() -> None:
        staged(by_key)

    by_key, by_header = sink(None), sink("id")
    prepared = {into: [staged(into) for _ in range(rounds)] for into in (by_key, by_header)}
    board.compare(
        "sink: an epoch's staged results, to the last acknowledgement",
        {
            "plain `confluent-kafka`, with a key of the identity's length": lambda: plain(True),
            "the same without a key": lambda: plain(False),
            "published, the identity as key": lambda: publish(by_key, prepared[by_key]),
            "published, a column as key": lambda: publish(by_header, prepared[by_header]),
            "before that, in the tasks: to JSON, and into storage": stage,
        },
    )


def main() -> None:
    parser = options(__doc__ or "")
    parser.add_argument("--records", type=float, default=1_000_000, help="to read; a quarter of it is sent")
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    rows, rounds = (20_000, 2) if arguments.quick else (int(arguments.records), arguments.rounds)
    print(machine())
    values = make_values(rows)
    sent = rows // 4
    decoders(rounds, 20_000)
    try:
        with KafkaBroker(heap_mib=1024, fast=True) as broker, tempfile.TemporaryDirectory() as root:
            print(f"{rows:,} records of {len(values[-1])} bytes in {PARTITIONS} partitions, librdkafka {libversion()[0]}, {rounds} rounds")
            topic = broker.create_topic("source", PARTITIONS)
            fill(broker, topic, values)
            Board(rows, rounds).compare(
                "source: to columns of the declared types",
                {
                    "plain `confluent-kafka`, the values as bytes, our settings for fetching": lambda: plain_consume(
                        broker, topic, rows, **FETCHING
                    ),
                    "the same with librdkafka's own settings": lambda: plain_consume(broker, topic, rows),
                    "JSON, 4 columns, record by record": lambda: read(broker, topic, rows, "json", bulk=False),
                    "JSON, 4 columns, in bulk": lambda: read(broker, topic, rows, "json", bulk=True),
                    "raw: key, value, offset, timestamp, record by record": lambda: read(broker, topic, rows, "raw", bulk=False),
                    "raw, in bulk": lambda: read(broker, topic, rows, "raw", bulk=True),
                },
            )
            sinks(Board(sent, rounds), broker, sent, rounds, Path(root))
    except NoBroker as missing:
        print(f"nothing measured: {missing}")


if __name__ == "__main__":
    main()
