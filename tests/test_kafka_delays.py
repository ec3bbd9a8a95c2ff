"""How long Kafka's records waited for their results, by the timestamps that they have in a real broker."""

from __future__ import annotations

import json
import math
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from harness import SECOND, START
from kafka_broker import KafkaBroker
from kafka_join import Joined, way
from streamjoin.epoch.delays import Delays
from streamjoin.serve.metrics import Metrics
from streamjoin.serve.observer import Steps
from waiting import PATIENCE_SECONDS

__all__ = ["way"]
pytestmark = pytest.mark.kafka
NOW = float(round(time.time()))
"""Brokers refuse stamps in the future, and forget old ones."""


def put(broker: KafkaBroker, topic: str, ages_millis: list[int], partition: int) -> None:
    """Records that came so long before NOW, in this order."""
    producer = Producer({"bootstrap.servers": broker.servers, "linger.ms": 5})
    moment = datetime.fromtimestamp(START / SECOND, UTC).isoformat()
    for row, age in enumerate(ages_millis):
        value = json.dumps({"rid": row, "k": 0 if row % 500 == 0 else 10**6 + row, "at": moment}).encode()
        producer.produce(topic, value, partition=partition, timestamp=round(NOW * 1000) - age)
    assert producer.flush(PATIENCE_SECONDS) == 0


def quantile(millis: list[int], fraction: float) -> float:
    return millis[max(0, math.ceil(fraction * len(millis)) - 1)] / 1000


def test_the_delay_is_the_time_since_the_records_stamp(broker: KafkaBroker, tmp_path: Path) -> None:
    join = Joined(broker, tmp_path, epoch=100_000)
    # A steady stream, one that came at once, and one with an outage in it.
    ages = [list(range(9000, 0, -1)), [250] * 1000, [*range(60_000, 58_000, -1), *range(3000, 0, -1)]]
    put(broker, join.topics[0], ages[0], 0)
    put(broker, join.topics[0], ages[1], 1)
    put(broker, join.topics[1], ages[2], 1)
    driver, metrics = join.driver(clock=lambda: NOW), Metrics(join.job)
    watched = Steps(driver, [metrics])
    watched.start()
    found = []
    while (result := watched.step(final=True)) is not None:
        found.append(result.delays["join"])
    delays = Delays.together(found)
    assert delays is not None
    expected = sorted(age for of_partition in ages for age in of_partition)
    assert delays.count == len(expected) == 15_000
    assert delays.longest == 60.0
    for fraction in (0.05, 0.25, 0.5, 0.75, 0.9, 0.99):
        true = quantile(expected, fraction)
        # A stamp stands for those up to the next of 32, in what was fetched together.
        assert true <= delays.quantile(fraction) + 0.25, fraction
        assert delays.quantile(fraction) <= quantile(expected, min(1.0, fraction + 0.05)) + 0.3, fraction
    count = metrics.registry.get_sample_value("streamjoin_result_delay_seconds_count", {"name": "pairs", "join": "join"})
    seconds = metrics.registry.get_sample_value("streamjoin_result_delay_seconds_sum", {"name": "pairs", "join": "join"})
    assert count == 15_000
    assert seconds == pytest.approx(sum(expected) / 1000, rel=0.03)


def test_in_a_topic_with_the_brokers_time_it_is_since_the_broker_had_them(broker: KafkaBroker, tmp_path: Path) -> None:
    join = Joined(broker, tmp_path, partitions=1)
    entry = ConfigEntry("message.timestamp.type", "LogAppendTime", incremental_operation=AlterConfigOpType.SET)
    changes = [ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry]) for topic in join.topics[:2]]
    for changed in broker.admin.incremental_alter_configs(changes).values():
        changed.result(PATIENCE_SECONDS)
    before = datetime.now(UTC).timestamp()
    for topic in join.topics[:2]:
        put(broker, topic, [10**9] * 20, 0)
    after = datetime.now(UTC).timestamp()
    seen = after + 7
    driver = join.driver(clock=lambda: seen)
    driver.start()
    result = driver.step(final=True)
    assert result is not None
    delays = result.delays["join"]
    assert delays.count == 40
    # The broker's clock has milliseconds.
    assert 7 - 0.002 <= delays.quantile(0.01) <= delays.longest <= seen - before + 0.002
