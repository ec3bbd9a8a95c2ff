"""Records of Kafka that end whoever reads them: the join goes on without them, whichever place of a batch they have."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from harness import output_of
from kafka_broker import KafkaBroker
from kafka_join import produce, way
from poison_reader import FAULTS, KILLS, PoisonedSource
from streamjoin.api.loop import Reason
from streamjoin.io.kafka_client import KafkaClient
from streamjoin.io.kafka_source import KafkaSource, KafkaSourceConfig
from test_poison import REASONS, batch_with, driver_of, expected, letters_of, run_of
from worker_processes import ProcessRunner

__all__ = ["way"]
pytestmark = pytest.mark.kafka
ROWS = 60


@pytest.mark.parametrize(("bad", "kind"), [(0, FAULTS), (ROWS // 2, KILLS), (ROWS - 1, FAULTS)], ids=["start", "middle", "end"])
def test_workers_that_a_record_of_kafka_ends_go_on_without_it(
    bad: int, kind: int, broker: KafkaBroker, topic: Callable[..., str], tmp_path: Path
) -> None:
    batches = batch_with({bad: kind}, ROWS), batch_with({ROWS - 1 - bad: kind}, ROWS, seed=2)
    sources = []
    for batch in batches:
        name = topic()
        produce(broker, name, [row | {"at": row["at"].isoformat()} for row in batch.to_pylist()])
        source = KafkaSource(KafkaSourceConfig(KafkaClient(broker.servers, name), f"group-{name}"), batch.schema)
        sources.append(PoisonedSource(source, os.getpid()))
    _, ended = run_of(driver_of(tmp_path, sources, ProcessRunner()), tmp_path)
    assert ended.reason is Reason.IDLE, ended
    assert output_of(tmp_path) == expected(batches, [("l", bad), ("r", ROWS - 1 - bad)])
    letters = {(letter["stream"], json.loads(letter["raw"])["rid"], letter["error"]) for letter in letters_of(tmp_path)}
    assert letters == {("l", bad, f"the record {REASONS[kind]}"), ("r", ROWS - 1 - bad, f"the record {REASONS[kind]}")}
    assert len(letters_of(tmp_path)) == 2
