"""Records behind an open transaction: they are backlog, hold the watermark back, and none is late once the transaction is decided."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from confluent_kafka import Producer

from harness import SECOND
from kafka_broker import KafkaBroker
from kafka_join import Joined, finish, way
from streamjoin.io.base import Blocked
from streamjoin.io.kafka_client import KafkaClient
from streamjoin.io.kafka_source import BlockedPartitions, KafkaSource, KafkaSourceConfig
from streamjoin.io.kafka_topics import Extent
from test_kafka import DECLARED, rows
from waiting import PATIENCE_SECONDS, wait_for

__all__ = ["way"]
BEGAN = 1_767_225_600 * SECOND
"""2026-01-01."""
IDLE_SECONDS = 30.0
ROUNDS = 6


def transactional(broker: KafkaBroker, identity: str) -> Producer:
    """A producer that has begun a transaction. An earlier one of the same identity is fenced, and what it left open is aborted."""
    producer = Producer({"bootstrap.servers": broker.servers, "transactional.id": identity, "linger.ms": 0})
    producer.init_transactions(PATIENCE_SECONDS)
    producer.begin_transaction()
    return producer


def test_a_transaction_is_told_of_once_it_is_open_for_long_and_anew_when_that_doubles() -> None:
    partitions = BlockedPartitions(KafkaClient("host:9092", "t", (), 1.0))

    def told(now: float, high: int, blocked: int) -> tuple[dict[tuple[str, int], Blocked], list[str]]:
        found = partitions.look({("t", 0): Extent(0, high, blocked), ("t", 1): Extent(0, 5)}, now)
        return found, partitions.warnings(found)

    assert told(100.0, 7, 3) == ({("t", 0): Blocked(3, 0.0)}, [])
    assert told(159.0, 7, 4) == ({("t", 0): Blocked(4, 59.0)}, [])
    (warning,) = told(161.0, 7, 5)[1]
    assert "topic t" in warning
    assert "partition 0 at offset 7 for 60 s or longer" in warning
    assert told(200.0, 7, 9)[1] == [warning], "the same text, which is told once"
    assert "for 120 s or longer" in told(221.0, 7, 9)[1][0]
    assert told(222.0, 8, 8) == ({("t", 0): Blocked(8, 0.0)}, []), "another transaction"
    assert told(9000.0, 16, 0) == ({}, [])
    assert told(9001.0, 16, 1) == ({("t", 0): Blocked(1, 0.0)}, [])


@pytest.mark.kafka
def test_records_behind_a_transaction_are_counted_and_are_not_the_end_of_the_input(broker: KafkaBroker, topic: Callable[..., str]) -> None:
    name = topic(2)
    config = KafkaSourceConfig(KafkaClient(broker.servers, name, (), 20.0), f"group-{name}")
    source = KafkaSource(config, DECLARED)
    hanging = transactional(broker, f"blocked-{name}")
    for partition in (0, 0, 1):
        hanging.produce(name, json.dumps(rows(0, 1)[0]).encode(), partition=partition)
    hanging.flush(PATIENCE_SECONDS)
    plan = source.plan(None, 100, 0.0)
    assert (plan.records, plan.backlog_records, plan.exhausted) == (0, 0, False)
    assert plan.blocked == {0: Blocked(2, 0.0), 1: Blocked(1, 0.0)}
    assert (plan.waiting_records, plan.waiting_by_partition) == (3, {0: 2, 1: 1})
    assert [warning.split(": ")[0] for warning in source.plan(None, 100, 60.0).warnings] == [str(config.client)] * 2
    hanging.abort_transaction(PATIENCE_SECONDS)
    wait_for("the end of the transaction", lambda: not source.plan(None, 100, 60.0).blocked)


@pytest.mark.kafka
@pytest.mark.parametrize("dies", [False, True], ids=["one driver", "a driver for each epoch"])
@pytest.mark.parametrize("is_committed", [False, True], ids=["fenced and aborted", "committed"])
def test_a_hanging_transaction_makes_no_record_late(is_committed: bool, dies: bool, broker: KafkaBroker, tmp_path: Path) -> None:
    """Partition 0 of the left topic is blocked for ten times its idle time, while the other partitions go on by minutes."""
    join = Joined(broker, tmp_path, watermark="0s", source={"idleTimeout": f"{IDLE_SECONDS:g}s"})
    left, right = join.topics[:2]
    clock = SimpleNamespace(now=1_800_000_000.0)
    driver = join.driver(clock=lambda: clock.now)
    driver.start()
    plain = Producer({"bootstrap.servers": broker.servers, "linger.ms": 0})

    def put(producer: Producer, name: str, partition: int, minute: int, *, is_kept: bool = True) -> None:
        side = join.topics.index(name)
        row, at = len(join.rows[side]), BEGAN + minute * 60 * SECOND
        if is_kept:
            join.rows[side].append((row, 1, at))
        value = {"rid": row if is_kept else 1_000_000, "k": 1, "at": f"2026-01-01T00:{minute:02d}:00Z"}
        producer.produce(name, json.dumps(value).encode(), partition=partition)
        assert producer.flush(PATIENCE_SECONDS) == 0

    identity = f"hangs-{left}"
    put(plain, left, 0, 0)
    hanging = transactional(broker, identity)
    put(hanging, left, 0, 1, is_kept=is_committed)
    for minute in range(2, 2 + ROUNDS):
        for partition in (0, 1):
            put(plain, left, partition, minute)
            put(plain, right, partition, minute)
        while (step := driver.step()) is not None:
            result = step
        assert result.backlog_by_partition[0][0] == minute, "the open one's record, and all behind it"
        assert result.backlog[0] == minute
        assert result.readable_backlog == 0
        assert driver.checkpoint.input.watermarks[0] == BEGAN, "it is not idle"
        clock.now += 2 * IDLE_SECONDS
        if dies:
            driver.stop()
            driver = join.driver(clock=lambda: clock.now)
            driver.start()
    assert dies or any(left in warning and "a transaction has been open in partition 0" in warning for warning in result.warnings)
    if is_committed:
        hanging.commit_transaction(PATIENCE_SECONDS)
    else:
        fencing = transactional(broker, identity)
        fencing.abort_transaction(PATIENCE_SECONDS)

    def is_read() -> bool:
        finish(driver)
        return driver.exhausted

    wait_for("the end of the input", is_read)
    put(plain, left, 1, 20)
    finish(driver)
    assert driver.checkpoint.totals["late"] == [0, 0]
    assert join.found() == (join.expected(), 0)
