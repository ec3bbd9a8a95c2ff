"""Outer, semi and anti joins on the inline runner against DuckDB: random predicates, windows, schemes, arrival orders and epochs, with
plans that change, drivers that die, workers that lose what they hold and epochs that fail in between.

Each case is made from one seed, which a failure prints: ``STREAMJOIN_SEED=<seed> pytest tests/test_join_types.py`` runs that case alone.
``STREAMJOIN_CASES`` sets how many there are.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from pathlib import Path

import pytest

from cases import how_many, some
from faulty_runs import elastic, run_cases, run_with_faults
from harness import late_of, make_job, oracle, output_of
from joins import RESULT_FILTERS
from streamjoin.scheme.models import INTERCHANGEABLE, KEYED
from test_join_property import KINDS, ORDERED, conditions, make_input, windows

CASES = how_many(240)
SEED = os.environ.get("STREAMJOIN_SEED")
TYPES = tuple(RESULT_FILTERS)


def run_case(seed: int, root: Path, counts: Counter[str]) -> None:
    rng = random.Random(seed)
    kind, key = rng.choice(TYPES), rng.choice(ORDERED)
    on, expected = conditions(key, rng)
    window, inside, watermark, _ = windows(rng)
    model, epochs, faults = rng.choice(["adsp", *INTERCHANGEABLE]), rng.choice([2, 6, 15]), rng.random() < 0.6
    if model in KEYED and (" OR " in on or "!=" in on):
        model = "square"  # nothing bounds a key there
    inputs = (make_input(key, rng, epochs, rng.choice([0, 3, 15])), make_input(key, rng, epochs, rng.choice([0, 3, 15])))
    output = {"select": ["l.rid AS a"] if kind in ("semi", "anti") else ["l.rid AS a", "r.rid AS b"]}
    where = rng.choice(["true", *RESULT_FILTERS[kind]])
    if where != "true":
        output["where"] = where
    job = make_job(
        root, on=on, types=(KINDS[key].ddl,) * 2, window=window, model=model, workers=rng.randint(1, 5), watermark=watermark,
        output=output, join_type=kind, deadLetter={"late": True},
    )  # fmt: skip
    if faults:
        job = elastic(job)
    run_with_faults(job, inputs, root, rng, counts, faults=faults)
    # Which tuples are late depends on how long a stream that is ahead of the other waits: tested elsewhere, and taken as it is here.
    want = oracle(inputs, (KINDS[key].arrow,) * 2, f"({expected})", inside, None, kind=kind, where=where, left_out=late_of(root))
    found = Counter({(*row, None)[:2]: count for row, count in output_of(root).items()})
    assert found == want, (
        f"STREAMJOIN_SEED={seed}: {kind} on {on!r}, window {window}, where {where}, {model}, {job.min_workers} to {job.max_workers}"
        f" workers, {dict(counts)}:\nmissing {list((want - found).items())[:5]}\nunexpected {list((found - want).items())[:5]}"
    )


@pytest.mark.parametrize("part", some(range(8), of=4))
def test_output_equals_the_oracle_for_random_joins_of_every_type(part: int, tmp_path: Path) -> None:
    counts: Counter[str] = Counter()
    run_cases(range(part, CASES, 8) if SEED is None else [int(SEED)] * (part == 0), tmp_path, run_case, counts)
    if SEED is None and CASES >= 240:
        assert counts["switches"] > 0
        assert counts["failed epochs"] > 0
