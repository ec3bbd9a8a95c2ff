"""Plans put into a join on Spark, whose executors really come, go and are killed."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from harness import SECOND, driver_for, make_job, oracle, output_of
from streamjoin.elastic.mapping import map_tasks
from streamjoin.elastic.plan import Plan
from streamjoin.epoch.driver import Driver
from streamjoin.epoch.ports import EpochFailed, EpochResult
from streamjoin.epoch.replan import PlanPhase
from streamjoin.runner.spark import SparkRunner, SparkSettings
from streamjoin.scheme.models import plan_for_tasks
from streamjoin.state.storage import ObjectStorage
from test_spark import HERE, executors, make_inputs

pytestmark = pytest.mark.spark
EPOCHS = 40
PAUSE_SECONDS = 0.3
"""Between epochs while executors are waited for: they start on the same cores."""


@pytest.fixture(scope="module")
def runner(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkRunner]:
    os.environ["PYTHONPATH"] = str(HERE)  # the executors unpickle the test's sources
    runner = SparkRunner(SparkSettings(tmp_path_factory.mktemp("logs"), 512))
    yield runner
    runner.stop()


class Join:
    """A band join of many small epochs, and plans for it."""

    def __init__(self, root: Path, runner: SparkRunner) -> None:
        self.root, self.runner = root, runner
        self.inputs = make_inputs(pa.int64(), list(range(50)), seed=11, epochs=EPOCHS)
        job = make_job(
            root, on="abs(l.k - r.k) <= 2", types=("BIGINT", "BIGINT"), window={"within": "9s"}, workers=2, watermark="1h", capacity=30_000
        )
        self.job = replace(job, min_workers=1, max_workers=4)
        self.driver = self.new_driver()
        self.results: list[EpochResult] = []

    def new_driver(self, **options: Any) -> Driver:
        self.driver = driver_for(self.job, self.inputs, ObjectStorage(str(self.root / "state")), self.runner, **options)
        self.driver.start()
        return self.driver

    def step(self) -> EpochResult | None:
        for _ in range(4):
            try:
                result = self.driver.step()
                break
            except EpochFailed:
                continue
        else:
            raise AssertionError("an epoch failed again and again")
        if result is not None:
            self.results.append(result)
        return result

    def plan(self, workers: int, model: str = "adsp") -> Plan:
        driver = self.driver
        assert driver.scheme is not None
        assert driver.predicate is not None
        found = driver.statistics()
        scheme, keep = map_tasks(driver.scheme, plan_for_tasks(model, found, driver.predicate.main, workers), found)
        return Plan(driver.checkpoint.generation + 1, scheme, keep)

    def until(self, condition: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + 180
        while not condition():
            assert time.monotonic() < deadline, f"waited in vain until {what}"
            self.step()
            time.sleep(PAUSE_SECONDS)

    def switch(self, plan: Plan) -> None:
        assert self.driver.put_plan(plan)
        self.until(lambda: self.driver.checkpoint.generation == plan.generation, f"generation {plan.generation} runs")

    def finish(self) -> None:
        while self.step() is not None:
            pass
        expected = oracle(self.inputs, (pa.int64(), pa.int64()), "abs(l.k - r.k) <= 2", f"abs(l.at - r.at) <= {9 * SECOND}", 3600 * SECOND)
        assert output_of(self.root) == expected


def test_executors_come_and_go_with_the_plan(runner: SparkRunner, tmp_path: Path) -> None:
    join = Join(tmp_path, runner)
    for _ in range(4):
        join.step()
    assert len(executors()) == 2
    join.switch(join.plan(4))
    assert len(runner.executors()) == 4
    switched = join.driver.plan_status().switched
    assert switched is not None
    assert switched.kept_tuples > 0, "what the old workers held stayed where it was"
    for _ in range(3):
        join.step()
    assert sum(result.read_back for result in join.results[1:]) == 0, "tasks follow their workers"
    join.switch(join.plan(3, "square"))
    join.switch(join.plan(1))
    join.until(lambda: len(executors()) == 1, "spare executors are gone")
    join.step()
    assert not join.driver.put_plan(Plan(join.driver.checkpoint.generation, join.driver.scheme, (0,))), "the same plan changes nothing"
    join.switch(join.plan(2))
    join.finish()
    assert join.driver.checkpoint.generation == 5


def test_an_executor_that_is_killed_while_a_plan_is_applied_loses_nothing(runner: SparkRunner, tmp_path: Path) -> None:
    join = Join(tmp_path, runner)
    rng = random.Random(1)
    killed: list[str] = []

    def at(step: str) -> None:
        if step in ("switch", "release") and step not in killed:
            killed.append(step)
            rng.choice(executors()).send_signal(signal.SIGKILL)

    join.new_driver(at=at)
    for _ in range(4):
        join.step()
    for _ in range(2):  # a plan whose first epoch fails is dropped
        if len(killed) < 2:
            assert join.driver.put_plan(join.plan(3))
            join.until(lambda: join.driver.plan_status().phase is PlanPhase.RUNNING, "the plan runs or is dropped")
    assert killed == ["switch", "release"]
    assert join.driver.scheme.tasks == 3
    join.until(lambda: len(executors()) == 3 == len(runner.executors()), "others are there in place of those that were killed")
    join.finish()


def test_a_join_goes_on_at_its_size_while_executors_do_not_come(
    runner: SparkRunner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    join = Join(tmp_path, runner)
    for _ in range(2):
        join.step()
    with monkeypatch.context() as patched:
        patched.setattr(SparkRunner, "request", lambda self, count: None)  # a cluster that is full
        assert join.driver.put_plan(join.plan(4))
        for _ in range(5):
            assert join.step() is not None
    status = join.driver.plan_status()
    assert status.phase is PlanPhase.WAITING
    assert (status.workers, status.ready_workers, status.wanted.workers) == (2, 2, 4)
    again = join.plan(3)
    join.switch(Plan(status.wanted.generation + 1, again.scheme, again.keep))
    join.finish()
