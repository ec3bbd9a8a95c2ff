"""Joins whose workers stand in a chain, on Spark: workers that are really killed, plans and drivers that change.

Each case is made from one seed, which a failure prints: ``STREAMJOIN_SEED=<seed> pytest tests/test_handshake_spark.py`` runs that case
alone. ``STREAMJOIN_CASES`` sets how many there are; hundreds need ``--timeout 0``.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from cases import how_many
from faulty_runs import run_cases
from random_joins import Features, check_output, drawn
from streamjoin.elastic.mapping import chain_keep
from streamjoin.elastic.plan import Plan
from streamjoin.runner.spark import SparkRunner
from streamjoin.scheme.biclique import broadcast
from test_many_streams_spark import MOST_WORKERS, Shaken
from test_spark import start_spark

CASES = how_many(6, of=2)
SEED = os.environ.get("STREAMJOIN_SEED")
CHAIN = Features(models=("handshake",), epochs=(12,))
pytestmark = pytest.mark.spark


class ShakenChain(Shaken):
    model = "handshake"

    def plan(self) -> Plan:
        """Of any number of workers."""
        status = self.driver.plan_status()
        assert status is not None
        workers = self.rng.randint(1, MOST_WORKERS)
        generation = 1 + (status.generation if status.wanted is None else status.wanted.generation)
        return Plan(generation, broadcast(workers, self.model), chain_keep(status.scheme.tasks, workers))


@pytest.fixture(scope="module")
def runner(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkRunner]:
    runner = start_spark(tmp_path_factory.mktemp("logs"))
    yield runner
    runner.stop()


def test_chains_whose_workers_are_killed_give_what_duckdb_gives(runner: SparkRunner, tmp_path: Path) -> None:
    counts: Counter[str] = Counter()

    def run_case(seed: int, root: Path, counts: Counter[str]) -> None:
        case = drawn(CHAIN, seed)
        ShakenChain(case, root, runner, random.Random(f"faults of {seed}"), counts).run()
        check_output(case, root, f"STREAMJOIN_SEED={seed}: {case}", counts)

    run_cases(range(CASES) if SEED is None else [int(SEED)], tmp_path, run_case, counts)
    if SEED is None:
        assert min(counts[each] for each in ("plans", "switches", "workers killed", "results")) > 0, counts
