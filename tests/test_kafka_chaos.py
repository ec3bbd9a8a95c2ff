"""Transactions of Kafka that hang open and are decided at random, while drivers die: a join finds each pair of what was committed once."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from confluent_kafka import Producer

from cases import how_many
from harness import SECOND, START, Crash
from kafka_broker import KafkaBroker
from kafka_join import Joined, finish_despite_failures
from streamjoin.controlplane.driver import Driver
from test_kafka_blocked import transactional
from waiting import PATIENCE_SECONDS, wait_for

ACTIONS, MOST_OPEN, IDLE_SECONDS = 60, 3, 30
Row = tuple[int, int, int]


class Writers:
    """Write records of both topics: at once, or in transactions that stay open."""

    def __init__(self, join: Joined, rng: random.Random) -> None:
        self._join, self._rng = join, rng
        self._plain = Producer({"bootstrap.servers": join.broker.servers, "linger.ms": 0})
        self._open: dict[str, tuple[Producer, list[tuple[int, Row]]]] = {}
        self._numbers = iter(range(1_000_000))

    def write(self) -> None:
        self._join.rows[(written := self._put(self._plain))[0]].append(written[1])

    def begin(self) -> None:
        if len(self._open) < MOST_OPEN:
            identity = f"{self._join.topics[0]}-{next(self._numbers)}"
            self._open[identity] = transactional(self._join.broker, identity), []
            self.write_open()

    def write_open(self) -> None:
        if self._open:
            producer, written = self._open[self._rng.choice(sorted(self._open))]
            written += [self._put(producer) for _ in range(3)]

    def decide(self) -> None:
        """Commits one, aborts it, or fences its producer, as when that has died."""
        if not self._open:
            return
        identity = self._rng.choice(sorted(self._open))
        producer, written = self._open.pop(identity)
        decision = self._rng.choice(["commit", "commit", "abort", "fence"])
        if decision == "commit":
            producer.commit_transaction(PATIENCE_SECONDS)
            for side, row in written:
                self._join.rows[side].append(row)
        elif decision == "abort":
            producer.abort_transaction(PATIENCE_SECONDS)
        else:
            transactional(self._join.broker, identity).abort_transaction(PATIENCE_SECONDS)

    def decide_all(self) -> None:
        while self._open:
            self.decide()

    def _put(self, producer: Producer) -> tuple[int, Row]:
        side, number = self._rng.randrange(2), next(self._numbers)
        key, at = self._rng.randrange(20), self._rng.randrange(10)
        value = {"rid": number, "k": key, "at": f"2023-11-14T22:13:{20 + at:02d}Z"}
        producer.produce(self._join.topics[side], json.dumps(value).encode(), partition=self._rng.randrange(self._join.partitions))
        assert producer.flush(PATIENCE_SECONDS) == 0
        return side, (number, key, START + at * SECOND)


@pytest.mark.kafka
@pytest.mark.parametrize("seed", range(how_many(6, of=2)))
def test_transactions_that_hang_and_drivers_that_die_lose_and_repeat_nothing(seed: int, broker: KafkaBroker, tmp_path: Path) -> None:
    rng, clock = random.Random(seed), SimpleNamespace(now=1_800_000_000.0)
    join = Joined(broker, tmp_path, sink={"delivery": "exactlyOnce"}, source={"idleTimeout": f"{IDLE_SECONDS}s"}, epoch=20)
    writers = Writers(join, rng)

    def new_driver(dies_at: str = "") -> Driver:
        def at(step: str) -> None:
            if step == dies_at:
                raise Crash(step)

        driver = join.driver(clock=lambda: clock.now, at=at)
        driver.start()
        return driver

    def step() -> None:
        finish_despite_failures(driver)

    def die() -> None:
        nonlocal driver
        driver.stop()
        dying = new_driver(rng.choice(["plan", "tasks", "commit", "publish", "clean"]))
        try:
            finish_despite_failures(dying)
        except Crash:
            pass
        else:
            dying.stop()
        driver = new_driver()

    def silence() -> None:
        clock.now += 2 * IDLE_SECONDS

    driver = new_driver()
    actions: dict[Callable[[], None], int] = {
        writers.write: 6,
        writers.begin: 3,
        writers.write_open: 2,
        writers.decide: 2,
        step: 4,
        die: 1,
        silence: 1,
    }
    for action in rng.choices(list(actions), list(actions.values()), k=ACTIONS):
        action()
    writers.decide_all()

    def is_read() -> bool:
        finish_despite_failures(driver)
        return driver.exhausted

    wait_for("the end of the input", is_read)
    assert join.found() == (join.expected(), 0), f"seed {seed}"
    totals = driver.checkpoint.totals
    assert totals["accepted"] == [len(rows) for rows in join.rows], f"seed {seed}"
    assert totals["late"] == totals["rejected"] == [0, 0]
