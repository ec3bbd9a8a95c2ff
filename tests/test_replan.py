"""Plans put into running joins: long random sequences of them, with crashes in between, against the oracle and ``Scheme.check``.

Each case draws a join, its input and, between epochs, plans: growing, shrinking, cut anew, of another model, back to back, some replaced
before they run. Drivers die at any step, workers lose what they hold, epochs fail. At the end the output is the oracle's, and after
every epoch what each task holds is what the scheme says that it must.

    STREAMJOIN_CASES=2000 STREAMJOIN_SEED=1 pytest tests/test_replan.py
"""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from cases import how_many
from harness import SECOND, START, Crash, Input, driver_for, make_batch, make_job, oracle, output_of
from streamjoin.controlplane.driver import Driver
from streamjoin.controlplane.refusals import PlanRefused
from streamjoin.elastic.mapping import assign, chain_keep, greedy, overlaps, relabelled
from streamjoin.elastic.plan import Plan
from streamjoin.elastic.planner import make_plan
from streamjoin.epoch.ports import EpochFailed
from streamjoin.epoch.reports import TaskReport
from streamjoin.epoch.spec import EpochSpec
from streamjoin.language.sides import SIDES
from streamjoin.runner.inline import InlineEpoch, InlineRunner
from streamjoin.scheme.capacity import Capacity
from streamjoin.scheme.models import HANDSHAKE, INTERCHANGEABLE, plan_for_tasks
from streamjoin.scheme.statistics import Histogram, SideStatistics, Statistics
from streamjoin.state.blocks import load
from streamjoin.state.storage import ObjectStorage
from streamjoin.state.store import held_on, select

CASES = how_many(30, of=3)
SEED = int(os.environ.get("STREAMJOIN_SEED", "0"))
WITHIN = 6
JOINS = {
    "band": ("abs(l.k - r.k) <= 2", "BIGINT", pa.int64(), lambda rng: rng.randint(0, 40)),
    "order": ("l.k < r.k", "DOUBLE", pa.float64(), lambda rng: rng.randint(0, 80) / 4),
    "equality": ("l.k = r.k", "STRING", pa.string(), lambda rng: f"customer-{rng.randint(0, 12)}"),
    "inequality": ("l.k != r.k", "INT", pa.int32(), lambda rng: rng.randint(0, 3)),
}
BY_KEY = ("hash", "readj")
"""What cuts along keys only, so that the manifest refuses it for other predicates."""


class Unreliable(InlineRunner):
    """Workers come late, lose what they hold, and fail."""

    def __init__(self, rng: random.Random, faults: bool) -> None:
        super().__init__()
        self._rng, self._faults = rng, faults
        self._late = 0

    def request(self, count: int) -> None:
        super().request(count)
        self._late = self._rng.choice([0, 0, 1, 3])

    @property
    def ready(self) -> int:
        self._late -= 1
        return super().ready if self._late < 0 else 0

    def submit(self, spec: EpochSpec, workers: Sequence[int]) -> Any:
        return _Epoch(super().submit(spec, workers), self, self._rng, workers) if self._faults else super().submit(spec, workers)


class _Epoch:
    def __init__(self, inner: InlineEpoch, runner: Unreliable, rng: random.Random, workers: Sequence[int]) -> None:
        self._inner, self._runner, self._rng, self._workers = inner, runner, rng, workers

    def result(self) -> list[TaskReport]:
        for worker in self._workers:
            if self._rng.random() < 0.05:
                self._runner.lose(worker)
        reports = self._inner.result()
        if self._rng.random() < 0.05:
            raise EpochFailed("killed after its work was done")
        return reports

    def cancel(self) -> None:
        self._inner.cancel()


def make_inputs(rng: random.Random, join: str, epochs: int) -> tuple[Input, Input]:
    _, _, key_type, key = JOINS[join]

    def one() -> Input:
        batches, rid = [], 0
        for epoch in range(epochs):
            rows = []
            for _ in range(rng.randint(0, 12)):
                rows.append((rid, key(rng), 0, START + epoch * SECOND + rng.randint(0, SECOND)))
                rid += 1
            batches.append(make_batch(rows, key_type))
        return Input(batches, [1] * epochs)

    return one(), one()


def next_plan(rng: random.Random, driver: Driver) -> Plan:
    """Any plan that may follow the one that runs."""
    assert driver.scheme is not None
    assert driver.layout is not None
    found = driver.statistics()
    if rng.random() < 0.3:  # statistics say how even a plan is, never whether it is right
        values = np.sort(np.array([rng.randint(0, 40) for _ in range(50)]))
        keys = values.astype(np.float64) if driver.layout.main.is_float else values
        keyed = driver.layout.main.keys and driver.layout.main.keys[0].encoding not in ("hash",)
        histogram = Histogram.from_sample(keys) if keyed else None
        found = Statistics(tuple(SideStatistics(rng.randint(1, 99), histogram) for _ in SIDES))
    status = driver.plan_status()
    assert status is not None
    newest = status.generation if status.wanted is None else status.wanted.generation
    generation = newest + rng.randint(1, 3)
    model, tasks = rng.choice(INTERCHANGEABLE), rng.randint(1, 7)
    running = Plan(status.generation, driver.scheme, tuple(range(driver.scheme.tasks)))
    if driver.scheme.model == HANDSHAKE:
        scheme = plan_for_tasks(HANDSHAKE, found, driver.layout.main, tasks)
        return Plan(generation, scheme, chain_keep(driver.scheme.tasks, tasks))
    if rng.random() < 0.5:
        planned = make_plan(
            running, found, driver.layout.main, model=model, workers=tasks, capacity=Capacity(100), tau1=0.4, minimum=1, maximum=7
        )
        return Plan(generation, planned.plan.scheme, planned.plan.keep)
    scheme = plan_for_tasks(model, found, driver.layout.main, tasks, current=driver.scheme)
    if rng.random() < 0.7:
        choose = rng.choice([assign, greedy])
        return Plan(generation, *relabelled(scheme, choose(overlaps(driver.scheme, scheme, found))))
    return Plan(generation, scheme, tuple(rng.sample([*range(driver.scheme.tasks), *[None] * scheme.tasks], scheme.tasks)))


def check_held(driver: Driver, runner: InlineRunner) -> None:
    """Every task's worker holds just the tuples of its areas: of what is stored, those that the scheme gives it."""
    assert driver.scheme is not None
    assert driver.layout is not None
    driver.scheme.check(driver.layout.main)
    storage = driver._storage
    everything = {side: [] for side in SIDES}
    for block in driver.checkpoint.state.blocks:
        everything[block.place].append(load(storage, block))
    assert driver._replanner.running is not None
    config = driver._pipeline.running_with.config
    for task, worker in enumerate(driver._replanner.running.workers):
        store = runner._stores.get(worker)
        staged = None if store is None else store.get(config.identity, driver.checkpoint.state.tokens.get(task, ""))
        if staged is None:
            continue  # it lost them, and will read them back
        for (index, side), held in staged.runs.items():
            area = driver.scheme.areas[index]
            found = Counter(rid for run in held for rid in run.run.batch.column("rid").to_pylist())
            region = held_on(area, side)
            stored = Counter(rid for batch in everything[side] for rid in select(batch, region).column("rid").to_pylist())
            assert max(found.values(), default=1) == 1, f"task {task} holds a tuple twice"
            assert not found - stored, f"task {task} holds tuples that are not its own"
            bound = driver.checkpoint.input.effective[1 - side]
            if bound is not None:
                live = Counter(
                    rid
                    for batch in everything[side]
                    for part in [select(batch, region)]
                    for rid, at in zip(part.column("rid").to_pylist(), part.column("_time").to_pylist(), strict=True)
                    if at >= bound - WITHIN * SECOND
                )
                assert not live - found, f"task {task} lacks tuples that may still match"


def run_case(root: Path, seed: int, faults: bool) -> dict[str, int]:
    rng = random.Random(seed)
    join = rng.choice(list(JOINS))
    on, ddl, key_type, _ = JOINS[join]
    inputs = make_inputs(rng, join, epochs=rng.randint(8, 25))
    model = rng.choice([model for model in INTERCHANGEABLE if join != "inequality" or model not in BY_KEY])
    job = make_job(root, on=on, types=(ddl, ddl), window={"within": f"{WITHIN}s"}, model=model, workers=3, watermark="1h")
    streams = tuple(replace(stream, expected_rate=None) for stream in job.streams)  # begin with one worker
    job = replace(job, min_workers=1, max_workers=8, streams=streams)
    storage = ObjectStorage(str(root / "state"))
    counts: Counter[str] = Counter()
    runner = Unreliable(rng, faults)

    def at(step: str) -> None:
        if faults and rng.random() < 0.03:
            counts[f"died at {step}"] += 1
            raise Crash(step)

    for _ in range(200):
        driver = driver_for(job, inputs, storage, runner, at=at)
        try:
            driver.start()
            while True:
                if driver.scheme is not None and rng.random() < 0.4:
                    try:
                        counts["plans"] += driver.put_plan(next_plan(rng, driver))
                    except PlanRefused:
                        counts["refused"] += 1
                before = driver.checkpoint.plan.generation
                try:
                    result = driver.step()
                except EpochFailed:
                    counts["failed epochs"] += 1
                    continue
                finally:
                    driver._replanner.validate()
                if result is None:
                    break
                counts["switches"] += before > 0 and driver.checkpoint.plan.generation != before
                check_held(driver, runner)
            break
        except Crash:
            runner = Unreliable(rng, faults) if rng.random() < 0.5 else runner
    else:
        raise AssertionError("never finished")
    want = oracle(inputs, (key_type, key_type), on, f"abs(l.at - r.at) <= {WITHIN * SECOND}", 3600 * SECOND)
    found = output_of(root)
    assert found == want, f"seed {seed} ({join}): missing {want - found}, unexpected {found - want}; {dict(counts)}"
    return dict(counts)


@pytest.mark.parametrize("faults", [False, True])
def test_any_sequence_of_plans_leaves_the_result_as_it_is(faults: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    total: Counter[str] = Counter()
    for case in range(CASES):
        monkeypatch.setattr("streamjoin.controlplane.compaction.FAN_IN", 2 + 6 * (case % 2))
        total.update(run_case(tmp_path / str(case), SEED * 1_000_000 + case, faults))
    assert total["switches"] > CASES
    if faults:
        assert total["died at switch"] + total["died at commit"] + total["failed epochs"] > 0
