"""Windows of rows over three and more streams on the inline runner: of DuckDB's results without a window those whose members are all among
the last records of their streams when the newest of them arrives, by the order of arrival alone.

Random joins, plans, workers that lose what they hold, drivers that die and epochs that fail, as for windows of time.
``STREAMJOIN_SEED=<seed> pytest tests/test_rows_of_streams.py`` runs one case, ``STREAMJOIN_CASES`` sets how many.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest

from cases import how_many, some
from faulty_runs import elastic, run_cases, run_with_faults
from harness import join_of, make_job, output_of
from many_streams import Join, Results, TimeWindow, drawn, expected, take_any_way, written
from streamjoin.elastic.distribution import Distribution

CASES = how_many(24)
SEED = os.environ.get("STREAMJOIN_SEED")


def arrivals(join: Join) -> dict[str, list[tuple[int, dict[str, int]]]]:
    """Of each stream's records, by position: which of all records it is, and how many of each stream arrived before it."""
    records = []
    for number, name in enumerate(join.names):
        for epoch, batches in enumerate(join.inputs[number].epochs()):
            count = sum(batch.num_rows for batch in batches)
            records += [(epoch, Fraction(2 * index + 1, 2 * count), number, name) for index in range(count)]
    found: dict[str, list[tuple[int, dict[str, int]]]] = {name: [] for name in join.names}
    so_far = dict.fromkeys(join.names, 0)
    for order, (_, _, _, name) in enumerate(sorted(records)):
        found[name].append((order, dict(so_far)))
        so_far[name] += 1
    return found


def inside(join: Join, rows: dict[str, int], results: Results) -> Results:
    """Those of the results, which begin with their members' positions, that the window holds."""
    arrived, found = arrivals(join), Results()
    for result, count in results.items():
        positions = {name: int(text) for name, text in zip(join.names, result, strict=False)}
        newest = max(join.names, key=lambda name: arrived[name][positions[name]][0])
        _, before = arrived[newest][positions[newest]]
        if all(positions[name] >= before[name] - rows[name] for name in join.names if name != newest):
            found[result] = count
    return found


def run_case(seed: int, root: Path, counts: Counter[str]) -> None:
    rng = random.Random(f"rows {seed}")
    join = replace(drawn(seed), window=TimeWindow(None))
    if len(join.names) < 3:
        return
    one, faults = rng.choice([1, 3, 10, 30]), rng.random() < 0.6
    rows = {name: one if seed % 2 else rng.choice([1, 3, 10, 30]) for name in join.names}
    window = {"rows": one} if seed % 2 else {"eachRows": rows}
    assert list(join.select)[: len(join.names)] == [f"{name}_rid" for name in join.names]
    options = join.options(root)
    output = {key: value for key, value in options["joins"][0]["output"].items() if key != "sink"}
    job = make_job(root, **options | {"joins": [join_of(root, on=join.text, window=window, output=output)]})
    with pytest.MonkeyPatch.context() as patch:
        if rng.random() < 0.6:
            take_any_way(patch, rng, counts)
        run_with_faults(elastic(job) if faults else job, join.inputs, root, rng, counts, faults=faults)
    want, found = inside(join, rows, expected(join)), written(output_of(root).elements())
    assert found == want, (
        f"STREAMJOIN_SEED={seed}: {rows} rows, {join}:\nmissing {list((want - found).items())[:5]}\n"
        f"unexpected {list((found - want).items())[:5]}"
    )
    counts["results"] += want.total()
    counts[f"of {len(join.names)}"] += 1
    counts["cut"] += want.total() < expected(join).total()


@pytest.mark.parametrize("part", some(range(4), of=4))
def test_every_member_is_among_the_last_records_of_its_stream_when_the_newest_arrives(part: int, tmp_path: Path) -> None:
    counts: Counter[str] = Counter()
    run_cases(range(part, CASES, 4) if SEED is None else [int(SEED)] * (part == 0), tmp_path, run_case, counts)
    if SEED is None and CASES >= 24:
        assert min(counts[distribution] for distribution in Distribution) > 0, counts
        assert min(counts["of 3"], counts["cut"], counts["switches"]) > 0, counts
        assert counts["results"] > 50
