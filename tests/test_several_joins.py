"""Several joins over the same two streams on the inline runner: each one's results are those that it would have alone, by DuckDB.

Random sets of joins, of keys that all of them bound or of none, with windows, types and outputs of their own, under plans that change,
drivers that die, workers that lose what they hold and epochs that fail in between. Each case is made from one seed, which a failure prints:
``STREAMJOIN_SEED=<seed> pytest tests/test_several_joins.py`` runs that case alone. ``STREAMJOIN_CASES`` sets how many there are.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from faulty_runs import elastic, run_with_faults
from harness import Input, join_of, late_of, make_job, oracle, output_of
from joins import RESULT_FILTERS
from streamjoin.language.predicate import MainKind
from streamjoin.scheme.models import KEYED, MODELS
from test_join_property import KINDS, OF_TIME, OPERATORS, ORDERED, conditions, make_input, windows

CASES = int(os.environ.get("STREAMJOIN_CASES", "120"))
SEED = os.environ.get("STREAMJOIN_SEED")
ORDERS = ("<", "<=", ">", ">=")
OPERATORS_OF_A_SET = (ORDERS, ORDERS, ("=",), OPERATORS, OPERATORS)
"""By which a set's conditions compare the same two columns. By orders, all of them bound the same keys."""
WINDOWS_OF_A_SET = (OF_TIME, OF_TIME, OF_TIME, ("rows",), ("unbounded",))
"""Of one kind, as they are held together."""


@dataclass(frozen=True)
class Drawn:
    """A join of a set, and what the oracle must know of it."""

    name: str
    kind: str
    entry: dict[str, Any]
    expected: str
    inside: str
    where: str


def draw_join(name: str, root: Path, key: str, operators: tuple[str, ...], forms: tuple[str, ...], rng: random.Random) -> Drawn:
    kind = rng.choice(["inner", *RESULT_FILTERS])
    on, expected = conditions(key, rng, operators)
    window, inside, _, _ = windows(rng, forms)
    where = rng.choice(["true", *RESULT_FILTERS.get(kind, ("l.v <= r.v",))])
    sink = {"files": {"path": str(root / name / "out"), "format": "parquet", "gather": rng.choice(["0s", "1s", "1h"])}}
    output = {"select": ["l.rid AS a"] if kind in ("semi", "anti") else ["l.rid AS a", "r.rid AS b"], "sink": sink}
    if where != "true":
        output["where"] = where
    return Drawn(name, kind, join_of(root / name, name=name, on=on, window=window, join_type=kind, output=output), expected, inside, where)


def run_case(seed: int, root: Path, counts: Counter[str]) -> None:
    rng = random.Random(seed)
    key, operators, forms = rng.choice(ORDERED), rng.choice(OPERATORS_OF_A_SET), rng.choice(WINDOWS_OF_A_SET)
    drawn = [draw_join(f"j{number}", root, key, operators, forms, rng) for number in range(rng.randint(2, 5))]
    model, epochs, faults = rng.choice(["adsp", *MODELS]), rng.choice([2, 6, 15]), rng.random() < 0.6
    inputs = (make_input(key, rng, epochs, rng.choice([0, 3, 15])), make_input(key, rng, epochs, rng.choice([0, 3, 15])))
    options: dict[str, Any] = {
        "types": (KINDS[key].ddl,) * 2,
        "joins": [join.entry for join in drawn],
        "workers": rng.randint(1, 5),
        "watermark": f"{rng.choice([0, 2, 10, 1000])}s",
        "deadLetter": {"late": True},
    }
    job = make_job(root, model="square" if model in KEYED else model, **options)
    keyed = any(layout.main.kind is MainKind.RANGE for layout in job.layouts)
    assert keyed or operators != ORDERS, "these conditions bound the same keys"
    if keyed and model in KEYED:
        job = make_job(root, model=model, **options)
    counts["in one order" if keyed else "every pair meets"] += 1
    run_with_faults(elastic(job) if faults else job, inputs, root, rng, counts, faults=faults)
    counts["results"] += check(drawn, inputs, root, key, f"STREAMJOIN_SEED={seed}: {job.model}, {dict(counts)}")


def check(drawn: list[Drawn], inputs: tuple[Input, Input], root: Path, key: str, label: str) -> int:
    """How many results there are, of which each join's are the oracle's."""
    types, late, results = (KINDS[key].arrow,) * 2, late_of(root), 0
    for join in drawn:
        want = oracle(inputs, types, f"({join.expected})", join.inside, None, kind=join.kind, where=join.where, left_out=late)
        found = Counter({(*row, None)[:2]: count for row, count in output_of(root / join.name).items()})
        assert found == want, (
            f"{label}; {join.name}, {join.kind} on {join.entry['condition']!r}, window {join.entry['window']}, where {join.where}, of"
            f" {[(each.kind, each.entry['condition'], each.entry['window']) for each in drawn]}:\n"
            f"missing {list((want - found).items())[:5]}\nunexpected {list((found - want).items())[:5]}"
        )
        results += found.total()
    return results


@pytest.mark.parametrize("part", range(4))
def test_each_join_of_a_set_gives_what_it_would_give_alone(part: int, tmp_path: Path) -> None:
    counts: Counter[str] = Counter()
    for case in range(part, CASES, 4) if SEED is None else [int(SEED)] * (part == 0):
        root = tmp_path / str(case)
        root.mkdir()
        try:
            run_case(case, root, counts)
        except Exception as error:
            raise AssertionError(f"STREAMJOIN_SEED={case}") from error
    if SEED is None and CASES >= 120:
        assert min(counts["in one order"], counts["every pair meets"]) >= 4
        assert counts["results"] > 10_000
        assert min(counts["switches"], counts["failed epochs"], counts["died at commit"] + counts["died at publish"]) > 0
