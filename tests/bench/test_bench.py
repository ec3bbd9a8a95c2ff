"""What the benchmarks' numbers rest on: the others do the same join, skewed keys match as often as uniform ones, and parts add up."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pytest

from bench import bench_flink, bench_latency, bench_several, bench_streams, rivals, stream_rivals
from bench.bench_breakdown import PARTS, middle
from bench.engine import job_of, join, timed
from bench.report import counts, millions, table
from bench.traffic import Exactness, Produced, Results, compare, expected_pairs, latencies, pairs_of
from bench.workloads import BAND, FULL_AFTER, WINDOW, WORKLOADS, Workload, timed_epochs
from harness import SECOND
from streamjoin.runner.inline import InlineRunner

FILES = FULL_AFTER + 3


@pytest.mark.parametrize("workload", WORKLOADS.values(), ids=lambda workload: workload.name)
@pytest.mark.parametrize("seconds", [1, 7])
def test_all_who_need_no_spark_find_as_many_results_in_every_epoch(workload: Workload, seconds: int, tmp_path: Path) -> None:
    workload.generate(tmp_path, 200, FILES)
    ours = [result.output for result in timed(join(job_of(tmp_path, workload, seconds=seconds), InlineRunner())).results]
    assert len(ours) == FILES // seconds
    assert sum(ours) > 0
    assert timed_epochs(rivals.duckdb(tmp_path, workload, FILES, seconds))[1] == ours
    for engine in ("in-memory", "streaming"):
        assert timed_epochs(rivals.polars(tmp_path, workload, FILES, seconds, engine))[1] == ours


@pytest.mark.parametrize("name", bench_streams.WORKLOADS)
def test_of_three_streams_all_who_need_no_spark_find_as_many_results_in_every_epoch(name: str, tmp_path: Path) -> None:
    workload = bench_streams.WORKLOADS[name]
    workload.generate(tmp_path, 200, FILES)
    _, ours = bench_streams.streamjoin(InlineRunner())(tmp_path, workload.streams, FILES)
    assert len(ours) == FILES
    assert min(ours[FULL_AFTER:]) > 100
    assert timed_epochs(stream_rivals.duckdb(tmp_path, workload.streams, FILES))[1] == ours
    for engine in ("in-memory", "streaming"):
        assert timed_epochs(stream_rivals.polars(tmp_path, workload.streams, FILES, engine))[1] == ours
    assert bench_flink.OneCore()(tmp_path, workload.streams, FILES)[1] == ours  # from the JSON that Flink gets


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


@pytest.mark.parametrize("kind", bench_several.KINDS)
def test_joins_of_one_job_give_what_each_gives_alone_and_read_and_route_less(kind: str, tmp_path: Path) -> None:
    bench_several.WORKLOAD.generate(tmp_path, 300, FILES)
    together, alone = bench_several.compared(tmp_path, kind, [3], InlineRunner())[3]
    assert together.read_bytes < alone.read_bytes
    assert together.routed < alone.routed


def test_the_benchmark_of_latency_finds_each_result_once_from_files_to_files() -> None:
    command = [sys.executable, bench_latency.__file__, "--quick"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    (line,) = (line for line in done.stdout.splitlines() if line.startswith("| StreamJoin, inline |"))
    percentiles, results = line.split(" | ")[1:4], line.split(" | ")[4]
    assert results == "each once", done.stdout
    p50, p90, p99 = (int(text.replace(",", "")) for text in percentiles)
    assert 0 <= p50 <= p90 <= p99


def test_the_pairs_that_results_are_compared_with_are_those_that_duckdb_finds() -> None:
    rng, rows = np.random.default_rng(7), 3000
    keys, millis = (rng.integers(0, 2000, rows), rng.integers(0, 2000, rows)), np.sort(rng.integers(0, 40_000, rows))
    database = duckdb.connect()
    for name, of_side in zip("lr", keys, strict=True):
        database.register(name, pa.table({"rid": np.arange(rows), "k": of_side, "t": millis}))
    condition = f"abs(l.k - r.k) <= {BAND} AND abs(l.t - r.t) <= {1000 * WINDOW}"
    wanted = database.execute(f"SELECT l.rid, r.rid FROM l, r WHERE {condition}").fetchall()
    found = pairs_of(keys, millis, chunk=700)
    assert len(wanted) > 1000
    assert sorted(zip(*(ids.tolist() for ids in found), strict=True)) == sorted(wanted)


def test_missing_repeated_and_wrong_results_are_told_apart_and_latency_counts_from_the_later_record() -> None:
    produced = Produced(times=np.array([0, SECOND, 2 * SECOND]), counts=np.array([1, 20, 20]), probes=1)
    left, right = pairs = expected_pairs(produced, rate=10, seconds=4)
    load = left > 0
    assert load.sum() > 2
    times = np.maximum(produced.of_records()[left], produced.of_records()[right]) + SECOND // 4
    assert compare(Results(left[load], right[load], times[load]), produced, pairs) == Exactness(int(load.sum()), 0, 0, 0)
    assert set(latencies(Results(left, right, times), produced, since=2 * SECOND).tolist()) == {0.25}
    order = np.flatnonzero(load)[[0, 0]]
    other = Results(np.append(left[order], 40), np.append(right[order], 1), np.append(times[order], 0))
    assert compare(other, produced, pairs) == Exactness(int(load.sum()), int(load.sum()) - 1, 1, 1)
