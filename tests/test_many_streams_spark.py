"""Joins of three and four streams on Spark: workers that are really killed, plans and drivers that change.

Each case is made from one seed, which a failure prints: ``STREAMJOIN_SEED=<seed> pytest tests/test_many_streams_spark.py`` runs that case
alone. ``STREAMJOIN_CASES`` sets how many there are; hundreds need ``--timeout 0``.
"""

from __future__ import annotations

import itertools
import os
import random
import signal
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from cases import how_many
from faulty_runs import MOST_FAILURES, run_cases
from harness import driver_for, make_job
from random_joins import SHAPES, Case, Features, check_output, drawn, take_any_graph, take_any_way
from streamjoin.controlplane.driver import Driver
from streamjoin.elastic.distribution import Distribution
from streamjoin.elastic.ending import map_tasks
from streamjoin.elastic.plan import Plan
from streamjoin.epoch.ports import EpochFailed
from streamjoin.runner.spark import SparkRunner
from streamjoin.scheme.models import plan_for_tasks
from streamjoin.state.storage import ObjectStorage
from test_spark import start_spark
from waiting import wait_for

CASES = how_many(5)
SEED = os.environ.get("STREAMJOIN_SEED")
FEWEST_EPOCHS = 8
MOST_WORKERS = 3
pytestmark = pytest.mark.spark


ONE = Features(streams=(3, 4), windows=("time", "time", "unbounded"), epochs=(FEWEST_EPOCHS, 15))
SOME = Features(streams=(3, 3, 4), joins=(2, 2, 3), over="some", windows=("time",), epochs=(FEWEST_EPOCHS, 15))
OVER_RESULTS = Features(streams=(4,), joins=(2, 3), over="results", windows=("time", "unbounded"), epochs=(FEWEST_EPOCHS,), most=60)


def seeds() -> Iterator[int]:
    """Of joins of three or four streams, of each shape in turn."""
    numbers = itertools.count()
    for shape in itertools.cycle(SHAPES):
        yield next(number for number in numbers if drawn(ONE, number).joins[0].shape == shape)


class Shaken:
    """A join on Spark to which things happen, by the dice of one seed."""

    model = "adsp"
    """To begin with."""

    def __init__(self, case: Case, root: Path, runner: SparkRunner, rng: random.Random, counts: Counter[str]) -> None:
        self.case, self.root, self.runner, self.rng, self.counts = case, root, runner, rng, counts
        self.job = replace(make_job(root, **case.options(root, model=self.model, workers=2)), min_workers=1, max_workers=MOST_WORKERS)
        self.timers: list[threading.Timer] = []
        self.driver = self.new_driver()

    def new_driver(self) -> Driver:
        """One that goes on after the last commit. The one before does nothing any more."""
        driver = driver_for(self.job, self.case.inputs, ObjectStorage(str(self.root / "state")), self.runner, at=self.at)
        driver.start()
        return driver

    def at(self, step: str) -> None:
        """Kills a worker in the middle of some epochs."""
        if step == "tasks" and self.rng.random() < 0.25 and (pids := sorted(self.runner.pool.pids.values())):
            self.counts["workers killed"] += 1
            self.timers.append(threading.Timer(self.rng.choice([0.0, 0.004, 0.02]), kill, (self.rng.choice(pids),)))
            self.timers[-1].start()

    def run(self) -> None:
        """To the end of the input."""
        failures, going_on = 0, True
        while going_on:
            dice, awaited = self.rng.random(), 0
            if dice < 0.05:
                self.counts["drivers"] += 1
                self.driver = self.new_driver()
            elif dice < 0.3 and self.driver.scheme is not None:
                plan = self.plan()
                self.counts["plans"] += self.driver.put_plan(plan)
                awaited = plan.scheme.tasks if dice < 0.2 else 0  # of the others some are replaced before they run
            before = self.driver.checkpoint.plan.generation
            try:
                going_on = self.driver.step(final=True) is not None
                failures = 0
            except EpochFailed:
                self.counts["failed epochs"] += 1
                failures += 1
                if failures == MOST_FAILURES:
                    raise
            self.counts["switches"] += 0 < before < self.driver.checkpoint.plan.generation
            wait_for("the plan's workers", lambda awaited=awaited: self.runner.ready >= awaited)  # type: ignore[misc]
        for timer in self.timers:
            timer.join()

    def plan(self) -> Plan:
        """The next one, of any size and some model."""
        driver, status = self.driver, self.driver.plan_status()
        assert driver.scheme is not None
        assert driver.layout is not None
        assert status is not None
        found = driver.statistics()
        model, workers = self.rng.choice(["adsp", "square", "broadcast"]), self.rng.randint(1, MOST_WORKERS)
        wanted = plan_for_tasks(model, found, driver.layout.main, workers)
        scheme, keep = map_tasks(driver.scheme, wanted, found)
        return Plan(1 + (status.generation if status.wanted is None else status.wanted.generation), scheme, keep)


def kill(worker: int) -> None:
    with suppress(ProcessLookupError):  # it may have ended by itself
        os.kill(worker, signal.SIGKILL)


@pytest.fixture(scope="module")
def runner(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkRunner]:
    runner = start_spark(tmp_path_factory.mktemp("logs"))
    yield runner
    runner.stop()


@pytest.mark.parametrize("features", [OVER_RESULTS, SOME], ids=["over results", "over some"])
def test_several_joins_whose_workers_are_killed_give_what_duckdb_finds(features: Features, runner: SparkRunner, tmp_path: Path) -> None:
    counts: Counter[str] = Counter()

    def run_case(seed: int, root: Path, counts: Counter[str]) -> None:
        case = drawn(features, seed)
        Shaken(case, root, runner, random.Random(f"faults of {seed}"), counts).run()
        check_output(case, root, f"STREAMJOIN_SEED={seed}: {case}", counts)

    run_cases(range(CASES) if SEED is None else [int(SEED)], tmp_path, run_case, counts)
    if SEED is None:
        assert min(counts[each] for each in ("plans", "workers killed", "results")) > 0, counts


@pytest.mark.parametrize("ways", ["chosen", "any"])
def test_joins_of_several_streams_whose_workers_are_killed_give_what_duckdb_selects(
    runner: SparkRunner, ways: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts: Counter[str] = Counter()

    def run_case(seed: int, root: Path, counts: Counter[str]) -> None:
        case = drawn(ONE, seed)
        if ways == "any":
            take_any_way(monkeypatch, random.Random(f"ways of {seed}"), counts)
            take_any_graph(monkeypatch, random.Random(f"graphs of {seed}"), counts)
        Shaken(case, root, runner, random.Random(f"faults of {seed}"), counts).run()
        check_output(case, root, f"STREAMJOIN_SEED={seed}: {case}", counts)

    run_cases(itertools.islice(seeds(), CASES) if SEED is None else [int(SEED)], tmp_path, run_case, counts)
    if SEED is None and len(SHAPES) <= CASES:
        assert min(counts[each] for each in (*SHAPES, "plans", "switches", "workers killed", "results")) > 0, counts
        assert ways == "chosen" or min(counts[each] for each in (*Distribution, "graphs")) > 0, counts
