"""Plans put into a join on Spark, whose workers and executors really come, go and are killed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from harness import SECOND, driver_for, make_job, oracle, output_of
from joins import make_inputs, step
from streamjoin.controlplane.driver import Driver
from streamjoin.controlplane.replan import PlanPhase
from streamjoin.elastic.ending import map_tasks
from streamjoin.elastic.plan import Plan
from streamjoin.epoch.ports import EpochResult
from streamjoin.runner.spark import SparkRunner
from streamjoin.scheme.models import plan_for_tasks
from streamjoin.state.storage import ObjectStorage
from test_spark import start_spark
from waiting import wait_for

pytestmark = pytest.mark.spark
EPOCHS = 40


@pytest.fixture(scope="module")
def runner(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkRunner]:
    runner = start_spark(tmp_path_factory.mktemp("logs"))
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
        streams = tuple(replace(stream, expected_rate=3.0) for stream in job.streams)  # for an hour, which two workers can hold
        self.job = replace(job, min_workers=1, max_workers=4, streams=streams)
        self.driver = self.new_driver()
        self.results: list[EpochResult] = []

    def new_driver(self, **options: Any) -> Driver:
        self.driver = driver_for(self.job, self.inputs, ObjectStorage(str(self.root / "state")), self.runner, **options)
        self.driver.start()
        return self.driver

    def step(self) -> EpochResult | None:
        result = step(self.driver, [], final=False)
        if result is not None:
            self.results.append(result)
        return result

    def plan(self, workers: int, model: str = "adsp") -> Plan:
        driver = self.driver
        assert driver.scheme is not None
        assert driver.layout is not None
        found = driver.statistics()
        scheme, keep = map_tasks(driver.scheme, plan_for_tasks(model, found, driver.layout.main, workers), found)
        return Plan(driver.checkpoint.plan.generation + 1, scheme, keep)

    def until(self, condition: Callable[[], bool], what: str) -> None:
        wait_for(what, lambda: condition() or (self.step() and condition()))

    def switch(self, plan: Plan) -> None:
        assert self.driver.put_plan(plan)
        self.until(lambda: self.driver.checkpoint.plan.generation == plan.generation, f"generation {plan.generation} runs")

    def finish(self) -> None:
        while self.step() is not None:
            pass
        expected = oracle(self.inputs, (pa.int64(), pa.int64()), "abs(l.k - r.k) <= 2", f"abs(l.at - r.at) <= {9 * SECOND}", 3600 * SECOND)
        assert output_of(self.root) == expected


def test_workers_come_and_go_with_the_plan(runner: SparkRunner, tmp_path: Path) -> None:
    join = Join(tmp_path, runner)
    for _ in range(4):
        join.step()
    assert len(runner.pool.pids) == 2
    join.switch(join.plan(4))
    assert len(runner.pool.pids) == 4
    switched = join.driver.plan_status().switched
    assert switched is not None
    assert switched.kept_tuples > 0, "what the old workers held stayed where it was"
    for _ in range(3):
        join.step()
    assert sum(result.read_back for result in join.results[1:]) == 0
    join.switch(join.plan(3, "square"))
    join.switch(join.plan(1))
    wait_for("the end of the workers' jobs", lambda: active_places(runner) == set(runner.pool.pids))
    assert len(runner.pool.pids) == 1
    join.step()
    assert not join.driver.put_plan(Plan(join.driver.checkpoint.plan.generation, join.driver.scheme, (0,))), "the same plan changes nothing"
    join.switch(join.plan(2))
    join.finish()
    assert join.driver.checkpoint.plan.generation == 5


def active_places(runner: SparkRunner) -> set[int]:
    """Those whose jobs Spark runs now."""
    tracker = runner.context.statusTracker()
    active = set(tracker.getActiveJobsIds())
    return {place for place in range(100) if active & set(tracker.getJobIdsForGroup(f"streamjoin-worker-{place}"))}


def test_a_join_goes_on_at_its_size_while_workers_do_not_come(runner: SparkRunner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
