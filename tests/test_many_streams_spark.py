"""Joins of three and four streams on Spark: workers that are really killed, plans and drivers that change.

Each case is made from one seed, which a failure prints: ``STREAMJOIN_SEED=<seed> pytest tests/test_many_streams_spark.py`` runs that case
alone. ``STREAMJOIN_CASES`` sets how many there are.
"""

from __future__ import annotations

import os
import random
import signal
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from faulty_runs import MOST_FAILURES, run_cases
from harness import SECOND, START, Input, join_of, make_batch, make_job, output_of
from streamjoin.elastic.mapping import map_tasks
from streamjoin.elastic.plan import Plan
from streamjoin.epoch.driver import Driver
from streamjoin.epoch.ports import EpochFailed
from streamjoin.job import Job
from streamjoin.runner.spark import SparkRunner
from streamjoin.scheme.models import plan_for_tasks
from streamjoin.state.storage import ObjectStorage
from test_spark import start_spark
from waiting import wait_for

pytestmark = pytest.mark.spark

CASES = int(os.environ.get("STREAMJOIN_CASES", "4"))
SEED = os.environ.get("STREAMJOIN_SEED")
EPOCHS = 12
MOST_WORKERS = 3


@dataclass(frozen=True)
class Shape:
    """A condition, which DuckDB reads as well, and a window; both over streams that are named from ``a`` on."""

    streams: str
    condition: str
    window: dict[str, Any]
    inside: str
    """The window in DuckDB's words, over ``newest`` and ``oldest``; ``at`` in microseconds."""


SHAPES = {
    "a star on one key": Shape(
        "abcd",
        "a.k = b.k AND a.k = c.k AND a.k = d.k AND a.v <> d.v",
        {"within": "4s"},
        f"newest - oldest <= {4 * SECOND}",
    ),
    "a chain with a band": Shape(
        "abc",
        "abs(a.k - b.k) <= 1 AND b.v = c.v AND a.v + b.v > c.k / 4",
        {"each": {"c": "1s", "a": "3s", "b": "2s"}},
        f"newest - a.at <= {3 * SECOND} AND newest - b.at <= {2 * SECOND} AND newest - c.at <= {SECOND}",
    ),
    "a cycle": Shape(
        "abc",
        "a.k = b.k AND b.v = c.v AND c.k BETWEEN a.k - 3 AND a.k + 1",
        {"within": "5s"},
        f"newest - oldest <= {5 * SECOND}",
    ),
    "a chain of four": Shape(
        "abcd",
        "a.k = b.k AND abs(b.k - c.k) <= 1 AND c.v = d.v AND d.k < a.k",
        {"each": {"a": "2s", "b": "4s", "c": "3s", "d": "1s"}},
        f"newest - a.at <= {2 * SECOND} AND newest - b.at <= {4 * SECOND} AND newest - c.at <= {3 * SECOND} AND newest - d.at <= {SECOND}",
    ),
}


def make_streams(shape: Shape, rng: random.Random) -> list[Input]:
    """Some hundred tuples of each stream, in epochs of a second each."""
    return [Input([make_batch(epoch_of(rng, number), pa.int64()) for number in range(EPOCHS)], [1] * EPOCHS) for _ in shape.streams]


def epoch_of(rng: random.Random, number: int) -> list[tuple[int, int | None, int, int]]:
    begin, keys = START + number * SECOND, [*range(24), None]
    return [(number * 100 + row, rng.choice(keys), rng.randint(0, 4), begin + rng.randrange(SECOND)) for row in range(rng.randint(0, 30))]


def job_of(shape: Shape, root: Path) -> Job:
    """On one to three workers, of which it begins with two. Nothing is late."""
    streams = [
        {
            "name": name,
            "source": {"files": {"path": str(root / name), "format": "json"}},
            "schema": "rid BIGINT, k BIGINT, v INT, at TIMESTAMP",
            "eventTime": "at",
            "watermark": "1h",
            "expectedRate": 3,
        }
        for name in shape.streams
    ]
    select = {"select": [f"{name}.rid AS {name}_rid" for name in shape.streams]}
    joins = [join_of(root, on=shape.condition, window=shape.window, output=select)]
    job = make_job(root, types=("BIGINT", "BIGINT"), streams=streams, joins=joins, workers=2)
    return replace(job, min_workers=1, max_workers=MOST_WORKERS)


def expected(shape: Shape, inputs: list[Input]) -> Counter[tuple[int, ...]]:
    """What DuckDB selects of all tuples."""
    connection = duckdb.connect(config={"threads": 1})
    for name, one in zip(shape.streams, inputs, strict=True):
        table = pa.Table.from_batches(one.batches)
        connection.register("rows", table.set_column(3, "at", table.column("at").cast(pa.int64())))
        connection.execute(f"CREATE TABLE {name} AS SELECT * FROM rows")
    times = ", ".join(f"{name}.at" for name in shape.streams)
    inside = shape.inside.replace("newest", f"greatest({times})").replace("oldest", f"least({times})")
    found = connection.execute(
        f"SELECT {', '.join(f'{name}.rid' for name in shape.streams)} FROM {', '.join(shape.streams)}"
        f" WHERE ({shape.condition}) AND {inside}"
    ).fetchall()
    connection.close()
    return Counter(found)


class Shaken:
    """A join on Spark to which things happen, by the dice of one seed."""

    def __init__(self, job: Job, inputs: list[Input], root: Path, runner: SparkRunner, rng: random.Random, counts: Counter[str]) -> None:
        self.job, self.inputs, self.root, self.runner, self.rng, self.counts = job, inputs, root, runner, rng, counts
        self.timers: list[threading.Timer] = []
        self.driver = self.new_driver()

    def new_driver(self) -> Driver:
        """One that goes on after the last commit. The one before does nothing any more."""
        sources = tuple(one.source() for one in self.inputs)
        driver = Driver(self.job, ObjectStorage(str(self.root / "state")), self.runner, sources=sources, at=self.at)
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
            before = self.driver.checkpoint.generation
            try:
                going_on = self.driver.step(final=True) is not None
                failures = 0
            except EpochFailed:
                self.counts["failed epochs"] += 1
                failures += 1
                if failures == MOST_FAILURES:
                    raise
            self.counts["switches"] += 0 < before < self.driver.checkpoint.generation
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
        wanted = plan_for_tasks(self.rng.choice(["adsp", "square", "chain"]), found, driver.layout.main, self.rng.randint(1, MOST_WORKERS))
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


def test_joins_of_several_streams_whose_workers_are_killed_give_what_duckdb_selects(runner: SparkRunner, tmp_path: Path) -> None:
    counts: Counter[str] = Counter()

    def run_case(seed: int, root: Path, counts: Counter[str]) -> None:
        rng, name = random.Random(seed), list(SHAPES)[seed % len(SHAPES)]
        shape = SHAPES[name]
        inputs = make_streams(shape, rng)
        Shaken(job_of(shape, root), inputs, root, runner, rng, counts).run()
        found, want = output_of(root), expected(shape, inputs)
        assert found == want, f"{name}: missing {list((want - found).items())[:5]}, unexpected {list((found - want).items())[:5]}"
        counts["results"] += found.total()

    run_cases(range(CASES) if SEED is None else [int(SEED)], tmp_path, run_case, counts)
    if SEED is None and len(SHAPES) <= CASES:
        assert min(counts[each] for each in ("plans", "switches", "workers killed", "results")) > 0, counts
