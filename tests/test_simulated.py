"""Drivers that die, stand still and go on, lose answers and meet each other at every request, on one checkpoint, by the seed: results, what
is held, and snapshots are as if there had been one that nothing happened to."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cases import how_many
from faulty_runs import elastic
from harness import Input, Remote
from random_joins import check_output, drawn, job_of
from simulated import World
from streamjoin.controlplane.driver import Driver
from streamjoin.results import archive
from streamjoin.results.reader import files, list_snapshots
from streamjoin.state.storage import ObjectStorage
from test_crashes import check, expected, job_at, make_inputs
from test_random_joins import SUITES

OUTPUTS: dict[str, dict[str, Any]] = {
    "results at once": {},
    "results in snapshots": {"snapshots": {"size": 8, "key": "a"}},
    "results that wait for more": {"gather": "3s"},
}
KINDS = sorted(OUTPUTS)


def require_snapshots(root: Remote, inputs: tuple[Input, Input]) -> None:
    storage, found, sizes = ObjectStorage(str(root / "state")), Counter[tuple[int, int]](), Counter[int]()
    for file in files(storage, "j"):
        table = pq.read_table(pa.BufferReader(storage.get(file.path)))
        found.update(zip(table.column("a").to_pylist(), table.column("b").to_pylist(), strict=True))
        sizes.update(table.column("_snapshot").to_pylist())
    assert found == expected(inputs)
    assert {each.id: each.rows for each in list_snapshots(storage, "j")} == sizes


def run_random(suite: str, seed: int) -> World:
    """A random join, or several: the results are those that DuckDB finds in all of their input."""
    world, case = World(seed, trouble=0.03), drawn(SUITES[suite].features, seed)
    history, counts = dict[int, Sequence[int]](), Counter[str]()

    def between(driver: Driver) -> None:
        if driver.checkpoint.epoch >= 0:
            history[driver.checkpoint.epoch] = driver.checkpoint.input.records

    with world.begun():
        world.run(elastic(job_of(case, world.root, counts)), case.inputs, between)
        check_output(case, world.root, f"{suite}, seed {seed}: {case}", counts, history)
    return world


def run_case(kind: str, seed: int) -> World:
    world, inputs = World(seed, trouble=random.Random(seed).choice([0.02, 0.05, 0.1])), make_inputs(seed % 10, epochs=12)
    with world.begun():
        output = OUTPUTS[kind] if "gather" not in OUTPUTS[kind] else {"sink": {"files": {"path": str(world.root / "out")} | OUTPUTS[kind]}}
        job = job_at(world.root, output=output)
        check(world.root, inputs, world.run(job, inputs), f"seed {seed}", job)
        if kind == "results in snapshots":
            require_snapshots(world.root, inputs)
    return world


def run_cases(run: Callable[[str, int], World], kind: str, seeds: Iterable[int]) -> Counter[str]:
    happened = Counter[str]()
    for seed in seeds:
        try:
            happened += run(kind, seed).happened
        except Exception as error:
            raise AssertionError(f"seed {seed}") from error
    return happened


@pytest.fixture(autouse=True)
def runs_of_two(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that snapshots become one all the time."""
    monkeypatch.setattr(archive, "FAN_IN", 2)


@pytest.mark.parametrize("kind", KINDS)
def test_whatever_drivers_meet_is_as_if_there_had_been_one(kind: str) -> None:
    seeds = how_many(1000, of=100)
    happened = run_cases(run_case, kind, range(seeds))
    assert seeds < 10 or {"died", "held up", "failed requests", "plans", "superseded", "failed epochs"} <= happened.keys(), happened


@pytest.mark.parametrize("suite", [name for name, suite in SUITES.items() if not suite.features.changes])
def test_whatever_drivers_meet_random_joins_give_what_duckdb_finds(suite: str) -> None:
    run_cases(run_random, suite, range(how_many(100, of=50)))


def test_a_seed_repeats_its_run() -> None:
    assert len({tuple(run_case(KINDS[1], 3).requests) for _ in range(2)}) == 1
