"""Drivers that die, stand still and go on, lose answers and meet each other at every request, on one checkpoint, by the seed: results, what
is held, and snapshots are as if there had been one that nothing happened to.

``STREAMJOIN_SEED=<seed>`` runs that seed of each kind alone.
"""

from __future__ import annotations

import random
import threading
import uuid
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from cases import how_many, shared
from faulty_runs import elastic, run_cases
from harness import Remote
from random_joins import check_output, drawn, job_of, take_any_graph
from simulated import World
from streamjoin.controlplane.driver import Driver
from streamjoin.results import archive
from test_crashes import check, expected, job_at, make_inputs
from test_random_joins import SEED, SUITES
from test_snapshots import require_each_once

SNAPSHOTS = "results in snapshots"
KINDS = ("results at once", SNAPSHOTS, "results that wait for more")


def written_as(kind: str, root: Remote) -> dict[str, Any]:
    if kind == SNAPSHOTS:
        return {"snapshots": {"size": 8, "key": "a"}}
    return {"sink": {"files": {"path": str(root / "out")} | ({"gather": "3s"} if kind == KINDS[2] else {})}}


def run_random(suite: str, seed: int) -> World:
    """A random join, or several: the results are those that DuckDB finds in all of their input."""
    world, case = World(seed, trouble=0.03), drawn(SUITES[suite].features, seed)
    history, counts = dict[int, Sequence[int]](), Counter[str]()

    def between(driver: Driver) -> None:
        if driver.checkpoint.epoch >= 0:
            history[driver.checkpoint.epoch] = driver.checkpoint.input.records

    with world.begun(), pytest.MonkeyPatch.context() as patch:
        take_any_graph(patch, random.Random(f"graphs of {seed}"), counts)
        world.run(elastic(job_of(case, world.root, counts)), case.inputs, between)
        check_output(case, world.root, f"{suite}, seed {seed}: {case}", counts, history)
    return world


def run_case(kind: str, seed: int) -> World:
    world, inputs = World(seed, trouble=random.Random(seed).choice([0.02, 0.05, 0.1])), make_inputs(seed % 10, epochs=12)
    with world.begun():
        job = job_at(world.root, output=written_as(kind, world.root))
        check(world.root, inputs, world.run(job, inputs), f"seed {seed}", job)
        if kind == SNAPSHOTS:
            require_each_once(world.root, expected(inputs))
    return world


def run_seeds(run: Callable[[str, int], World], kind: str, seeds: range, root: Path) -> Counter[str]:
    happened = Counter[str]()
    chosen = seeds if SEED is None else [int(SEED)]
    run_cases(chosen, root, lambda seed, own, counts: counts.update(run(kind, seed).happened), happened)
    return happened


@pytest.fixture(autouse=True)
def runs_of_two(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that snapshots become one all the time."""
    monkeypatch.setattr(archive, "FAN_IN", 2)


@pytest.mark.parametrize("seeds", shared(1000, of=100, parts=4), ids=lambda seeds: f"from {seeds.start}")
@pytest.mark.parametrize("kind", KINDS)
def test_whatever_drivers_meet_is_as_if_there_had_been_one(kind: str, seeds: range, tmp_path: Path) -> None:
    happened = run_seeds(run_case, kind, seeds, tmp_path)
    exercised = {"died", "held up", "failed requests", "plans", "superseded", "outrun", "failed epochs"}
    assert len(seeds) < 10 or SEED is not None or exercised <= happened.keys(), happened


@pytest.mark.parametrize("suite", [name for name, suite in SUITES.items() if not suite.features.changes])
def test_whatever_drivers_meet_random_joins_give_what_duckdb_finds(suite: str, tmp_path: Path) -> None:
    run_seeds(run_random, suite, range(how_many(100, of=50)), tmp_path)


def test_a_seed_repeats_its_run_whatever_other_threads_do() -> None:
    is_over = threading.Event()

    def others() -> None:
        while not is_over.wait(0.001):
            uuid.uuid4()

    thread = threading.Thread(target=others)
    thread.start()
    try:
        assert len({tuple(run_case(SNAPSHOTS, 3).requests) for _ in range(2)}) == 1
    finally:
        is_over.set()
        thread.join()
