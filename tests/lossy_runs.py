"""Runs that shed and have late tuples, with the share of results that they lose by DuckDB over all of the input: for the estimate of
completeness (``elastic.completeness``).

    python tests/lossy_runs.py [RUNS] [FIRST_SEED]

prints in how many of so many runs (100) the interval held the true share, and how wide it was. Each run is drawn from its seed: the
predicate, the model, the workers' capacity and so what is shed, the window, how many tuples are late, how the keys are skewed.
"""

from __future__ import annotations

import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa

from harness import SECOND, START, Input, driver_for, make_batch, make_job
from streamjoin.controlplane.driver import Driver
from streamjoin.elastic.completeness import Estimate
from streamjoin.epoch.ports import EpochResult
from streamjoin.runner.inline import InlineRunner
from streamjoin.state.storage import ObjectStorage

PREDICATES = {
    "equality": ("l.k = r.k", ("adsp", "hash", "square", "biclique", "handshake")),
    "band": ("l.k - r.k BETWEEN -2 AND 2", ("adsp", "square", "biclique", "handshake")),
    "inequality": ("l.k < r.k", ("adsp", "square", "biclique")),
}
EPOCHS = 40

Sources = Callable[[], tuple[Any, ...]]


@dataclass(frozen=True)
class Case:
    """What a run is drawn as."""

    seed: int
    predicate: str
    model: str
    workers: int
    fullness: float
    """What a worker would hold without shedding, in parts of its capacity, on average."""
    late: tuple[float, float]
    skew: float
    """0: keys are even; else the Zipf exponent."""
    keys: int
    per_epoch: tuple[int, int]
    window_seconds: int
    shedding: str

    def __str__(self) -> str:
        late = " + ".join(f"{share:.1%}" for share in self.late)
        keys = f"{self.keys} keys" + (f" by Zipf {self.skew:g}" if self.skew else "")
        rates = "{} x {}".format(*self.per_epoch)
        return (
            f"seed {self.seed}: {self.predicate}, {self.model}, {self.workers} workers {self.fullness:.2f} full ({self.shedding}),"
            f" {late} late, {keys}, {rates} an epoch, window {self.window_seconds} s"
        )


@dataclass(frozen=True)
class Outcome:
    """A run, and what is true of it."""

    case: Case
    truth: float
    estimate: Estimate
    results: int
    shed: int
    late: int

    @property
    def holds(self) -> bool:
        return self.estimate.low <= self.truth <= self.estimate.high

    def __str__(self) -> str:
        found = self.estimate
        return (
            f"{'ok  ' if self.holds else 'MISS'} true {self.truth:.4f}, said {found.share:.4f} [{found.low:.4f}, {found.high:.4f}]"
            f" of {self.results:,} found, {self.shed:,} shed, {self.late:,} late; {self.case}"
        )


def draw(seed: int) -> Case:
    rng = random.Random(seed)
    predicate = rng.choice(list(PREDICATES))
    skew = rng.choice([0.0, 0.0, 0.6, 1.0])
    return Case(
        seed=seed,
        predicate=predicate,
        model=rng.choice(PREDICATES[predicate][1]),
        workers=rng.choice([1, 2, 3, 4]),
        fullness=rng.choice([0.5, 0.85, 0.95, 1.1, 1.5]),
        late=(rng.choice([0.0, 0.002, 0.02, 0.1]), rng.choice([0.0, 0.002, 0.02, 0.1])),
        skew=skew,
        keys=rng.choice([20, 200, 2000]),
        per_epoch=(rng.choice([100, 250]), rng.choice([100, 250])),
        window_seconds=rng.choice([1, 3, 5]),
        shedding=rng.choice(["linear", "quadratic"]),
    )


def stream(case: Case, side: int, rng: np.random.Generator) -> Input:
    """A second of event time an epoch; late tuples come up to ten seconds after their time."""
    ranks = np.arange(1, case.keys + 1, dtype=float) ** -case.skew
    chances = rng.permutation(ranks / ranks.sum())
    batches: list[pa.RecordBatch] = []
    for epoch in range(EPOCHS):
        count = int(rng.poisson(case.per_epoch[side]))
        at = START + epoch * SECOND + np.sort(rng.integers(0, SECOND, count))
        if epoch > 3:
            late = rng.random(count) < case.late[side]
            at = np.where(late, np.maximum(START, at - 4 * SECOND - rng.integers(0, 3 * SECOND, count)), at)
        keys = rng.choice(case.keys, count, p=chances)
        rids = (np.arange(count) + epoch * 1_000_000).tolist()
        batches.append(make_batch(list(zip(rids, keys.tolist(), [0] * count, at.tolist(), strict=True)), pa.int64()))
    return Input(batches, [1] * EPOCHS)


def pairs_of(inputs: tuple[Input, Input], condition: str, window_seconds: int) -> int:
    """How many results all of the input has."""
    connection = duckdb.connect()
    connection.execute("SET threads = 1")
    for name, one in zip("lr", inputs, strict=True):
        table = pa.Table.from_batches(one.batches)
        connection.register(f"{name}_arrow", table)
        connection.execute(f"CREATE TABLE {name} AS SELECT k, epoch_us({name}_arrow.at) AS moment FROM {name}_arrow")
    inside = f"abs(l.moment - r.moment) <= {window_seconds * SECOND}"
    ((count,),) = connection.execute(f"SELECT count(*) FROM l, r WHERE ({condition}) AND {inside}").fetchall()
    connection.close()
    return int(count)


def capacity_of(case: Case) -> int:
    """So that without shedding workers would be so full."""
    held = sum(case.per_epoch) * (case.window_seconds + 3)
    copies = {"adsp": 1.2, "square": case.workers**0.5, "hash": 1.0, "biclique": 1.0, "handshake": 1.0}[case.model]
    return max(20, round(held * copies / case.workers / case.fullness))


def run(case: Case, root: Path, between: Callable[[Driver, Sources], Driver] | None = None) -> tuple[Outcome, list[EpochResult]]:
    """Runs the case to its end. ``between``: gets the driver after each epoch, with what makes its sources; gives the one to go on with."""
    rng = np.random.default_rng(case.seed)
    inputs = stream(case, 0, rng), stream(case, 1, rng)
    condition = PREDICATES[case.predicate][0]
    job = make_job(
        root,
        on=condition,
        window={"within": f"{case.window_seconds}s"},
        model=case.model,
        workers=case.workers,
        capacity=capacity_of(case),
        watermark="1s",
        shedding={"model": case.shedding},
    )
    clock = iter(np.arange(START / SECOND, START / SECOND + 1e5, 0.05).tolist())
    driver = driver_for(job, inputs, ObjectStorage(str(root / "state")), InlineRunner(), clock=lambda: next(clock))
    driver.start()
    results: list[EpochResult] = []
    while (result := driver.step(final=True)) is not None:
        results.append(result)
        driver = driver if between is None else between(driver, lambda: tuple(one.source() for one in inputs))
    driver.stop()
    counts: Counter[str] = Counter()
    for result in results:
        counts.update({name: sum(of_streams) for name, of_streams in result.counts.items()} | {"output": result.output})
    losses = results[-1].losses.joins["j"]
    estimate = losses.over(None, 0.0)
    assert estimate is not None
    truth = counts["output"] / pairs_of(inputs, condition, case.window_seconds)
    return Outcome(case, truth, estimate, counts["output"], counts["shed"], counts["late"]), results


def main() -> None:
    runs, first = (int(sys.argv[at]) if len(sys.argv) > at else default for at, default in ((1, 100), (2, 1)))
    started, outcomes = time.monotonic(), []
    for seed in range(first, first + runs):
        with tempfile.TemporaryDirectory() as folder:
            outcome, _ = run(draw(seed), Path(folder))
        outcomes.append(outcome)
        print(outcome, flush=True)
    widths = sorted(outcome.estimate.high - outcome.estimate.low for outcome in outcomes)
    errors = sorted(abs(outcome.estimate.share - outcome.truth) for outcome in outcomes)
    print(f"{sum(outcome.holds for outcome in outcomes)} of {runs} intervals hold the true share; {time.monotonic() - started:.0f} s")
    print(f"off by {errors[runs // 2]:.4f} (median), {errors[-1]:.4f} at most; intervals {widths[runs // 2]:.4f} wide (median)")


if __name__ == "__main__":
    main()
