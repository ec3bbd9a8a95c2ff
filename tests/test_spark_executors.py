"""Joins on Spark's executors, Java processes of their own as on a cluster, which are really killed.

NB: a process has one Spark at a time, so that these have a module of their own; pytest runs one cluster's tests after the other's.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from harness import driver_for, make_job, output_of
from joins import band_expected, band_options, make_inputs, steps
from poison_reader import FAULTS, KILLS, RAISES, PoisonSource
from streamjoin.runner.container import DIRECTORY
from streamjoin.runner.spark import ENVIRONMENT, SparkRunner
from streamjoin.state.storage import ObjectStorage
from test_poison import REASONS, batch_with, driver_of, expected, letters_of
from test_replan_spark import Join
from test_spark import start_spark
from waiting import wait_for
from worker_processes import executor_of, executors

pytestmark = pytest.mark.spark
ALONE, IN_PAIRS = ("local-cluster[3,1,512]", 1), ("local-cluster[3,2,512]", 2)
"""Masters, and how many workers share an executor."""


@pytest.fixture(scope="module")
def runner(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkRunner]:
    runner = start_spark(tmp_path_factory.mktemp("logs"), *request.param)
    with pytest.MonkeyPatch.context() as patched:
        patched.setitem(ENVIRONMENT, DIRECTORY, "workers")  # of the executor's own directory
        yield runner
    runner.stop()


@pytest.mark.parametrize("runner", [ALONE], indirect=True, ids=["alone"])
def test_executors_and_workers_that_are_killed_lose_nothing(runner: SparkRunner, tmp_path: Path) -> None:
    inputs = make_inputs(pa.int64(), list(range(50)), seed=5, epochs=14)
    epochs = iter(range(1000))

    def kill(step: str) -> None:
        if step != "tasks":
            return
        epoch = next(epochs)
        if epoch == 3:
            executor_of(runner.pool.pids[1]).kill()
        if epoch == 6:  # in the middle of the epoch that has begun
            os.kill(runner.pool.pids[0], signal.SIGKILL)
        if epoch == 10:
            runner.hosts.replace(0)  # as when it hangs

    driver = driver_for(make_job(tmp_path, **band_options()), inputs, ObjectStorage(str(tmp_path / "state")), runner, at=kill)
    driver.start()
    driver.step()
    wait_for("no more executors than workers", lambda: len(executors()) == 2)
    before = runner.pool.pids
    steps(driver)
    wait_for("both workers", lambda: len(runner.pool.pids) == 2)
    assert not set(before.values()) & set(runner.pool.pids.values()), "each was killed, and replaced"
    assert output_of(tmp_path) == band_expected(inputs)


@pytest.mark.parametrize("runner", [ALONE, IN_PAIRS], indirect=True, ids=["alone", "in pairs"])
@pytest.mark.parametrize(("bad", "kind"), [(0, FAULTS), (12, KILLS), (24, RAISES)], ids=["start", "middle", "end"])
def test_workers_that_a_record_ends_go_on_without_it(bad: int, kind: int, runner: SparkRunner, tmp_path: Path) -> None:
    """``bad``: its place in the first of the splits of 25 records."""
    batches = batch_with({bad: kind}, 60), batch_with({}, 60, seed=2)
    driver = driver_of(tmp_path, [PoisonSource(batch, 25, os.getpid()) for batch in batches], runner)
    driver.start()
    _, failures = steps(driver)
    assert any(failure.is_narrowed for failure in failures)
    assert output_of(tmp_path) == expected(batches, [("l", bad)])
    letters = [(letter["stream"], letter["raw"], letter["error"]) for letter in letters_of(tmp_path)]
    assert letters == [("l", str(bad), f"the record {REASONS[kind]}")]


@pytest.mark.parametrize("runner", [ALONE, IN_PAIRS], indirect=True, ids=["alone", "in pairs"])
def test_what_is_killed_while_a_plan_is_applied_loses_nothing(runner: SparkRunner, tmp_path: Path) -> None:
    rng = random.Random(1)
    killed: list[str] = []
    join = Join(tmp_path, runner)

    def at(step: str) -> None:
        if step == "switch" and step not in killed:
            killed.append(step)
            rng.choice(executors()).kill()
        if step == "release" and step not in killed:
            killed.append(step)
            os.kill(rng.choice(sorted(runner.pool.pids.values())), signal.SIGKILL)

    join.new_driver(at=at)
    for _ in range(4):
        join.step()
    assert join.driver.put_plan(join.plan(3))
    join.until(lambda: "switch" in killed and not join.driver.plan_status().wanted, "the switch is over")
    assert join.driver.checkpoint.plan.generation == 2, "the epoch was tried again under the new plan"
    assert killed == ["switch", "release"]
    join.until(lambda: len(runner.pool.pids) == 3, "others are there in place of those that were killed")
    join.finish()


def workers_by_executor(runner: SparkRunner) -> list[int]:
    """How many workers there are on each executor that has any."""
    return sorted(Counter(executor_of(worker).pid for worker in runner.pool.pids.values()).values())


@pytest.mark.parametrize("runner", [IN_PAIRS], indirect=True, ids=["in pairs"])
def test_workers_that_share_executors_come_go_and_die_with_them(runner: SparkRunner, tmp_path: Path) -> None:
    join = Join(tmp_path, runner)
    for _ in range(4):
        join.step()
    join.switch(join.plan(4))
    assert workers_by_executor(runner) == [2, 2]
    before = runner.pool.pids
    executor_of(before[0]).kill()
    join.until(lambda: len({*runner.pool.pids.values()} - {*before.values()}) == 2, "both of its workers came again")
    assert workers_by_executor(runner) == [2, 2]
    join.switch(join.plan(2))
    wait_for("the end of an executor that no worker needs", lambda: len(executors()) == 1)
    assert workers_by_executor(runner) == [2]
    join.switch(join.plan(3))
    assert workers_by_executor(runner) == [1, 2]
    join.finish()


@pytest.mark.parametrize("runner", [IN_PAIRS], indirect=True, ids=["in pairs"])
def test_an_executor_that_is_told_to_go_hands_its_part_over_and_ends(runner: SparkRunner, tmp_path: Path) -> None:
    join = Join(tmp_path, runner)
    for _ in range(4):
        join.step()
    join.switch(join.plan(3))
    deaths = {number: place.deaths for number, place in runner.pool._roster.places.items()}  # of tests before
    by_executor = Counter(executor_of(worker) for worker in runner.pool.pids.values())
    going = next(executor for executor, workers in by_executor.items() if workers == 1)  # which has room for one more
    (Path(going.cwd()) / "leaving").write_text(str(time.time() + 600))
    join.until(lambda: join.driver.checkpoint.plan.generation == 3, "another has its worker's part")
    wait_for("the executor's end", lambda: going not in executors())
    assert workers_by_executor(runner) == [1, 2]
    died = [place.reason for number, place in runner.pool._roster.places.items() if place.deaths != deaths.get(number, 0)]
    assert died == []
    join.finish()
