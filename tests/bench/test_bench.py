"""What the benchmarks' numbers rest on: the others do the same join, skewed keys match as often as uniform ones, and parts add up."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from bench import rivals
from bench.bench_breakdown import PARTS, middle
from bench.engine import job_of, join, timed
from bench.report import counts, millions, table
from bench.workloads import BAND, FULL_AFTER, WORKLOADS, Workload
from streamjoin.runner.inline import InlineRunner

FILES = FULL_AFTER + 3


@pytest.mark.parametrize("workload", WORKLOADS.values(), ids=lambda workload: workload.name)
@pytest.mark.parametrize("seconds", [1, 7])
def test_all_who_need_no_spark_find_as_many_results_in_every_epoch(workload: Workload, seconds: int, tmp_path: Path) -> None:
    workload.generate(tmp_path, 200, FILES)
    ours = [result.output for result in timed(join(job_of(tmp_path, workload, seconds=seconds), InlineRunner())).results]
    assert len(ours) == FILES // seconds
    assert sum(ours) > 0
    assert rivals.timed(rivals.duckdb(tmp_path, workload, FILES, seconds))[1] == ours
    for engine in ("in-memory", "streaming"):
        assert rivals.timed(rivals.polars(tmp_path, workload, FILES, seconds, engine))[1] == ours


@pytest.mark.parametrize("name", ["W1", "W2, z = 1", "W2, z = 2"])
def test_skewed_keys_match_as_often_as_uniform_ones(name: str) -> None:
    rows, rng = 100_000, np.random.default_rng(5)
    left, right = (np.sort(WORKLOADS[name].keys(rng, rows)) for _ in range(2))
    pairs = (np.searchsorted(right, left + BAND, side="right") - np.searchsorted(right, left - BAND, side="left")).sum()
    expected = rows * rows * (2 * BAND + 1) / (100 * rows)
    assert pairs == pytest.approx(expected, rel=0.05)


def test_the_mean_of_the_middle_half_keeps_what_adds_up_adding_up() -> None:
    epochs = [dict.fromkeys(PARTS, float(size)) for size in (100, 1, 2, 3, 4, 0, 0, 50)]
    assert set(middle(epochs).values()) == {2.5}
    assert set(middle(epochs[:1]).values()) == {100.0}


def test_numbers_and_tables_are_written_as_the_document_wants_them() -> None:
    assert counts("1000,1e6") == [1000, 1_000_000]
    assert [millions(value) for value in (2_345_678, 999_900, 23_456, 1234)] == ["2.35 million", "1.00 million", "23 thousand", "1,234"]
    lines = table(["", "a"], [["x", 1]]).splitlines()
    assert lines == ["|  | a |", "| --- | ---: |", "| x | 1 |"]

