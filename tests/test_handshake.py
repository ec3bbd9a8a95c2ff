"""Joins whose workers stand in a chain, on the inline runner against DuckDB: random predicates, windows, arrival orders, epochs and blocks,
with workers added and removed, drivers that die, workers that lose what they hold and epochs that fail in between.

Each case is made from one seed, which a failure prints: ``STREAMJOIN_SEED=<seed> pytest tests/test_handshake.py`` runs that case alone.
``STREAMJOIN_CASES`` sets how many there are.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from faulty_runs import elastic, run_cases, run_with_faults
from harness import Input, late_of, make_job, oracle, output_of
from streamjoin.state.log import read_latest
from streamjoin.state.storage import ObjectStorage
from test_join_property import KINDS, conditions, make_input, windows

CASES = int(os.environ.get("STREAMJOIN_CASES", "240"))
SEED = os.environ.get("STREAMJOIN_SEED")


@dataclass
class Case:
    """A join and its input."""

    seed: int
    key: str
    on: str
    condition: str
    """The same in DuckDB's words."""
    window: dict[str, Any]
    inside: str
    watermark: str
    inputs: tuple[Input, Input]
    alpha: float | None
    capacity: int

    @classmethod
    def drawn(cls, seed: int, rng: random.Random, epochs: int) -> Case:
        key = rng.choice(list(KINDS))
        on, condition = conditions(key, rng)
        window, inside, watermark, _ = windows(rng)
        inputs = (make_input(key, rng, epochs, rng.choice([0, 3, 15])), make_input(key, rng, epochs, rng.choice([0, 3, 15])))
        return cls(seed, key, on, condition, window, inside, watermark, inputs, rng.choice([None, 0.1, 0.7]), rng.choice([40, 1_000_000]))

    def options(self, root: Path, model: str, workers: int) -> dict[str, Any]:
        """Of ``make_job``."""
        scheme = {"model": model} | ({} if self.alpha is None else {"alpha": self.alpha})
        return {
            "on": self.on,
            "types": (KINDS[self.key].ddl,) * 2,
            "window": self.window,
            "watermark": self.watermark,
            "workers": workers,
            "scheme": scheme,
            "capacity": self.capacity,
            "deadLetter": {"late": True},
        }

    def check(self, root: Path, counts: Counter[str]) -> None:
        types = (KINDS[self.key].arrow,) * 2
        want, found = oracle(self.inputs, types, f"({self.condition})", self.inside, None, left_out=late_of(root)), output_of(root)
        counts["results"] += want.total()
        assert found == want, (
            f"STREAMJOIN_SEED={self.seed}: {self.on!r}, window {self.window}, {dict(counts)}:\n"
            f"missing {list((want - found).items())[:5]}\nunexpected {list((found - want).items())[:5]}"
        )


def run_case(seed: int, root: Path, counts: Counter[str]) -> None:
    rng = random.Random(seed)
    case, faults = Case.drawn(seed, rng, rng.choice([2, 6, 15])), rng.random() < 0.6
    job = make_job(root, **case.options(root, "handshake", rng.randint(1, 5)))
    run_with_faults(elastic(job) if faults else job, case.inputs, root, rng, counts, faults=faults)
    case.check(root, counts)
    entry = read_latest(ObjectStorage(str(root / "state")))
    if entry is not None:
        assert entry.checkpoint.blocks == ()
        assert sum(map(sum, entry.checkpoint.held.values())) == 0
        counts.update({name: count for name, (count, *_) in entry.checkpoint.totals.items() if name.startswith("chain/")})


@pytest.mark.parametrize("part", range(8))
def test_output_equals_the_oracle_at_the_end_of_the_input(part: int, tmp_path: Path) -> None:
    counts: Counter[str] = Counter()
    run_cases(range(part, CASES, 8) if SEED is None else [int(SEED)] * (part == 0), tmp_path, run_case, counts)
    if SEED is None and CASES >= 240:
        assert min(counts[each] for each in ("switches", "failed epochs", "results", "chain/tuple_blk", "chain/wave")) > 0, counts
