"""What the tests of Kafka share: a broker or a reason to skip, records in and out, and a join between topics with its oracle in DuckDB.

The oracle and the consumer share no code with the engine: they know the window, and the identity that the documentation gives to records.
"""

from __future__ import annotations

import contextlib
import json
import random
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from harness import SECOND, START
from kafka_broker import KafkaBroker, NoBroker
from streamjoin.compilation import compile_job
from streamjoin.controlplane.driver import Driver
from streamjoin.epoch.ports import EpochFailed
from streamjoin.io import librdkafka
from streamjoin.job import Job
from streamjoin.manifest import load
from streamjoin.runner.inline import InlineRunner
from streamjoin.serve.observer import Steps
from streamjoin.state.storage import ObjectStorage
from waiting import PATIENCE_SECONDS, wait_for

NAMES = iter(range(1_000_000))
"""Of topics: no two tests share one."""


@pytest.fixture(autouse=True, params=["in bulk", "record by record"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """A module that imports this runs its tests twice: with librdkafka in bulk and by confluent_kafka, also in processes they start."""
    if request.param == "record by record":
        monkeypatch.setenv(librdkafka.IGNORE, "1")
    return str(request.param)


@contextlib.contextmanager
def running_broker(**options: Any) -> Iterator[KafkaBroker]:
    """A broker with these options of ``KafkaBroker``; the test is skipped where there can be none."""
    with contextlib.ExitStack() as stack:
        try:
            started = stack.enter_context(KafkaBroker(**options))
        except NoBroker as missing:
            pytest.skip(str(missing))
        yield started


def produce(broker: KafkaBroker, name: str, records: Sequence[Any], partition: int = 0) -> None:
    """Records as (key, value), or values alone; what is no bytes is written as JSON."""
    producer = Producer({"bootstrap.servers": broker.servers, "linger.ms": 0})
    for record in records:
        key, value = record if isinstance(record, tuple) else (None, record)
        text = value if value is None or isinstance(value, bytes) else json.dumps(value).encode()
        producer.produce(name, text, key, partition)
    assert producer.flush(PATIENCE_SECONDS) == 0


def group_offsets(broker: KafkaBroker, group: str, name: str, partitions: int) -> list[int]:
    consumer = Consumer({"bootstrap.servers": broker.servers, "group.id": group})
    found = consumer.committed([TopicPartition(name, partition) for partition in range(partitions)], timeout=PATIENCE_SECONDS)
    consumer.close()
    return [item.offset for item in found]


def consumed(broker: KafkaBroker, name: str) -> list[tuple[str, bytes | None, bytes]]:
    """All records of a topic as (identity, key, value), by a consumer that knows the documentation only."""
    consumer = Consumer({"bootstrap.servers": broker.servers, "group.id": "check", "enable.partition.eof": True})
    partitions = consumer.list_topics(name, timeout=PATIENCE_SECONDS).topics[name].partitions
    consumer.assign([TopicPartition(name, partition, 0) for partition in partitions])
    found, ended = [], set()

    def is_read() -> bool:
        for message in consumer.consume(1000, 0.02):
            if message.error() is not None:
                ended.add(message.partition())
                continue
            headers = dict(message.headers() or [])
            identity = headers.get("streamjoin-id", message.key())
            found.append((identity.decode(), message.key(), message.value()))
        return len(ended) == len(partitions)

    wait_for(f"the end of topic {name}", is_read, every=0)
    consumer.close()
    return found


JOIN = """
apiVersion: streamjoin.dev/v1beta1
kind: StreamJoin
metadata: {{name: pairs}}
spec:
  streams:
    - name: l
      source: {{kafka: {left}}}
      schema: "rid BIGINT, k BIGINT, at TIMESTAMP"
      eventTime: at
      watermark: {watermark}
    - name: r
      source: {{kafka: {right}}}
      schema: "rid BIGINT, k BIGINT, at TIMESTAMP"
      eventTime: at
      watermark: {watermark}
  joins:
    - condition: "abs(l.k - r.k) <= 1"
      window: {{within: 4s}}
      output:
        select: ["l.rid AS a", "r.rid AS b"]
        sink: {{kafka: {out}}}
  workers: {{min: 2, max: 2, capacityTuples: 100000}}
  epoch: {{maxTuples: {epoch}}}
  checkpoint: {{location: "{root}/state"}}
"""


class Joined:
    """A join from two topics to a third, what was put in, and what must come out."""

    def __init__(
        self,
        broker: KafkaBroker,
        root: Path,
        *,
        partitions: int = 2,
        watermark: str = "1h",
        timeout: str = "20s",
        epoch: int = 200,
        client: dict[str, Any] | None = None,
        source: dict[str, Any] | None = None,
        sink: dict[str, Any] | None = None,
        by_pattern: bool = False,
    ) -> None:
        """``client``: more fields of sources and sink, ``source``: of the sources, ``sink``: of the sink. ``by_pattern``: the sources are
        of their topics, and of all whose names are one of these, ``-`` and more."""
        self.broker = broker
        self.root = root
        self.topics = [broker.create_topic(f"join-{side}-{next(NAMES)}", partitions) for side in ("l", "r", "out")]
        self.partitions = partitions
        common = {"bootstrapServers": broker.servers, "timeout": timeout} | (client or {})
        fields = [common | {"topic": name} | (extra or {}) for name, extra in zip(self.topics, (source, source, sink), strict=True)]
        if by_pattern:
            for of_topic in fields[:2]:
                of_topic["topicPattern"] = f"{of_topic.pop('topic')}(-.*)?"
        left, right, out = (json.dumps(of_topic) for of_topic in fields)
        text = JOIN.format(left=left, right=right, out=out, root=root, watermark=watermark, epoch=epoch)
        self.manifest = root / "join.yaml"
        self.manifest.write_text(text)
        self.job: Job = compile_job(load(text))
        self.rows: tuple[list[tuple[int, int, int]], list[tuple[int, int, int]]] = ([], [])
        self.rng = random.Random(17)

    def feed(self, count: int, seconds: int = 10, **more: Any) -> None:
        """So many more records on each side and partition; ``more`` fields are the same in all of them."""
        for side, name in enumerate(self.topics[:2]):
            self.feed_topic(side, name, count, seconds, **more)

    def feed_topic(self, side: int, name: str, count: int, seconds: int = 10, **more: Any) -> None:
        """So many more records in each partition of one topic."""
        for partition in range(self.partitions):
            values = []
            for _ in range(count):
                row, key, moment = self.new_row(side, seconds)
                values.append({"rid": row, "k": key, "at": moment.isoformat()} | more)
            produce(self.broker, name, values, partition)

    def new_row(self, side: int, seconds: int) -> tuple[int, int, datetime]:
        """Number, key and time of another row, which the oracle knows from now on."""
        row = (len(self.rows[side]), self.rng.randint(0, 60), START + self.rng.randint(0, seconds * SECOND))
        self.rows[side].append(row)
        return row[0], row[1], datetime.fromtimestamp(row[2] // SECOND, UTC).replace(microsecond=row[2] % SECOND)

    def driver(self, runner: Any = None, **options: Any) -> Driver:
        return Driver(self.job, ObjectStorage(self.job.checkpoint), runner or InlineRunner(), **options)

    def expected(self) -> Counter[tuple[int, int]]:
        connection = duckdb.connect()
        for name, of_side in zip("lr", self.rows, strict=True):
            rid, k, at = zip(*of_side, strict=True)
            connection.register(f"{name}_rows", pa.table({"rid": rid, "k": k, "at": at}))
        query = f"SELECT l.rid, r.rid FROM l_rows l, r_rows r WHERE abs(l.k - r.k) <= 1 AND abs(l.at - r.at) <= {4 * SECOND}"
        return Counter(connection.execute(query).fetchall())

    def found(self) -> tuple[Counter[tuple[int, int]], int]:
        """The results after dropping repeats, and how many repeats there were."""
        by_identity: dict[str, bytes] = {}
        repeats = 0
        for identity, _, value in consumed(self.broker, self.topics[2]):
            if identity in by_identity:
                assert by_identity[identity] == value, "an identity belongs to one result"
                repeats += 1
            by_identity[identity] = value
        values = [json.loads(value) for value in by_identity.values()]
        return Counter((value["a"], value["b"]) for value in values), repeats


def finish(driver: Driver | Steps) -> None:
    while driver.step(final=True) is not None:
        pass


def finish_despite_failures(driver: Driver | Steps, until: str | None = None) -> None:
    """Step until the input has ended, over failures, as the command line's loop does; or until an epoch fails in the words of ``until``."""

    def has_ended() -> bool:
        try:
            finish(driver)
        except EpochFailed as error:
            failures.append(str(error))
            if until is not None and re.search(until, str(error)):
                return True
            if error.permanent:
                raise
            return False
        assert until is None, f"no epoch failed with {until}"
        return True

    failures: list[str] = []
    wait_for("the end of the input", has_ended, every=0, told=lambda: failures[-1])
