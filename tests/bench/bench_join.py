"""Whole joins against other ways to do the same work on the same cores, and what an epoch costs that has next to nothing to do.

Workload W1: two streams of Parquet files, N tuples a side and second of event time, keys uniform over 100 N values, |l.k - r.k| <= 5 within
10 s, one file a side and epoch; what is measured is the time of an epoch once the window is full.

StreamJoin keeps durable state and writes exactly-once Parquet output; the others keep nothing that outlives them:

- polars: one process, all cores; tuples of the window in a frame; an equi-join on buckets of the key, then a filter.
- duckdb: the same in SQL.

    python tests/bench/bench_join.py [--rows 100000,1000000] [--epochs 24] [--runs 3]
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import platform
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

sys.path.insert(0, str(Path(__file__).parents[1]))

from harness import SECOND, START, make_job
from streamjoin.epoch.driver import Driver, EpochResult
from streamjoin.epoch.inline import InlineRunner
from streamjoin.epoch.spark import SparkRunner, SparkSettings
from streamjoin.java import find_java
from streamjoin.state.storage import ObjectStorage

BAND, WINDOW = 5, 10


def generate(root: Path, rows: int, epochs: int) -> None:
    for seed, name in enumerate("lr"):
        folder = root / f"in-{name}"
        folder.mkdir(parents=True)
        rng = np.random.default_rng(seed)
        for epoch in range(epochs):
            table = {
                "rid": np.arange(epoch * rows, (epoch + 1) * rows),
                "k": rng.integers(0, 100 * rows, rows),
                "v": np.zeros(rows, np.int32),
                "at": pa.array(np.full(rows, START + epoch * SECOND)).cast(pa.timestamp("us", "UTC")),
            }
            path = folder / f"{epoch:04d}.parquet"
            pq.write_table(pa.table(table), path)
            os.utime(path, (1_000_000_000 + epoch,) * 2)  # files are taken in the order of their times


def streamjoin(root: Path, runner: Any) -> Iterator[EpochResult]:
    """The epochs of the join of what lies in ``root``."""
    for name in ("state", "out"):
        shutil.rmtree(root / name, ignore_errors=True)
    job = make_job(
        root,
        on=f"abs(l.k - r.k) <= {BAND}",
        types=("BIGINT", "BIGINT"),
        window={"within": f"{WINDOW}s"},
        workers=2,
        watermark="0s",
        sources=("parquet", {"maxFilesPerEpoch": 1}),
        epoch={"maxTuples": 100_000_000},
        capacity=100_000_000,
    )
    driver = Driver(job, ObjectStorage(job.checkpoint), runner)
    driver.start()
    while (result := driver.step()) is not None:
        yield result


def rival_polars(root: Path, epochs: int) -> Iterator[int]:
    """Output rows of each epoch, by Polars."""
    import polars

    held: list[list[Any]] = [[], []]
    for epoch in range(epochs):
        new = []
        for name in "lr":
            frame = polars.read_parquet(root / f"in-{name}" / f"{epoch:04d}.parquet", columns=["rid", "k", "at"])
            new.append(frame.with_columns((polars.col("k") // (BAND + 1)).alias("b")))
        held = [[old for old in side if old[0] >= epoch - WINDOW] for side in held]

        def pairs(left: Any, right: Any) -> Any:
            spread = polars.concat([right.with_columns(polars.col("b") + shift) for shift in (-1, 0, 1)])
            joined = left.join(spread, on="b", suffix="_r")
            close = (polars.col("k") - polars.col("k_r")).abs() <= BAND
            recent = (polars.col("at") - polars.col("at_r")).dt.total_microseconds().abs() <= WINDOW * SECOND
            return joined.filter(close & recent).select("rid", "rid_r")

        both = [polars.concat([frame for _, frame in side]) if side else None for side in held]
        parts = [pairs(new[0], new[1])]
        if both[1] is not None:
            parts.append(pairs(new[0], both[1]))
        if both[0] is not None:
            parts.append(pairs(new[1], both[0]))
        result = polars.concat([parts[0], *parts[1:]])
        result.write_parquet(root / "rival.parquet", compression="snappy")
        for side in (0, 1):
            held[side].append((epoch, new[side]))
        yield result.height


def rival_duckdb(root: Path, epochs: int) -> Iterator[int]:
    """Output rows of each epoch, by DuckDB."""
    import duckdb

    connection = duckdb.connect()
    for name in "lr":
        connection.execute(f"CREATE TABLE held_{name} (rid BIGINT, k BIGINT, ts BIGINT, b BIGINT)")
    for epoch in range(epochs):
        for name in "lr":
            path = root / f"in-{name}" / f"{epoch:04d}.parquet"
            connection.execute(
                f"CREATE OR REPLACE TEMP TABLE new_{name} AS "
                f"""SELECT rid, k, epoch_us("at") AS ts, k // {BAND + 1} AS b FROM read_parquet('{path}')"""
            )
            connection.execute(f"DELETE FROM held_{name} WHERE ts < {START + (epoch - WINDOW) * SECOND}")

        def pairs(left: str, right: str) -> str:
            spread = f"SELECT rid, k, ts, b + s AS b FROM {right}, (VALUES (-1), (0), (1)) shifts(s)"
            return (
                f"SELECT l.rid AS a, r.rid AS b FROM {left} l JOIN ({spread}) r ON l.b = r.b "
                f"WHERE abs(l.k - r.k) <= {BAND} AND abs(l.ts - r.ts) <= {WINDOW * SECOND}"
            )

        union = " UNION ALL ".join([pairs("new_l", "new_r"), pairs("new_l", "held_r"), pairs("new_r", "held_l")])
        connection.execute(f"COPY ({union}) TO '{root / 'rival.parquet'}' (FORMAT parquet, COMPRESSION snappy)")
        for name in "lr":
            connection.execute(f"INSERT INTO held_{name} SELECT * FROM new_{name}")
        yield pq.read_metadata(root / "rival.parquet").num_rows


def epoch_seconds(epochs: Iterator[Any]) -> tuple[list[float], list[Any]]:
    """Seconds of each epoch once the window is full, and what the epochs gave."""
    seconds, results = [], []
    began = time.perf_counter()
    for result in epochs:
        now = time.perf_counter()
        seconds.append(now - began)
        results.append(result)
        began = now
    return seconds[WINDOW + 1 :], results


def compare(root: Path, rows: int, epochs: int, runs: int, runners: dict[str, Any]) -> None:
    generate(root, rows, epochs)
    ways: dict[str, Callable[[], Iterator[Any]]] = {
        f"streamjoin {name}": (lambda runner=runner: streamjoin(root, runner)) for name, runner in runners.items()
    }
    for name, rival in (("polars", rival_polars), ("duckdb", rival_duckdb)):
        if importlib.util.find_spec(name):
            ways[name] = lambda rival=rival: rival(root, epochs)
    medians: dict[str, list[float]] = {name: [] for name in ways}
    outputs: dict[str, int] = {}
    for _ in range(runs):
        for name, way in ways.items():
            seconds, results = epoch_seconds(way())
            medians[name].append(statistics.median(seconds))
            outputs[name] = sum(result.output if isinstance(result, EpochResult) else result for result in results)
    assert len(set(outputs.values())) == 1, f"the outputs differ: {outputs}"
    print(f"W1, N = {rows:,}: {epochs} epochs of 2 x {rows:,} rows, {next(iter(outputs.values())):,} results, medians of {runs}")
    reference = statistics.median(medians["streamjoin spark"]) if "streamjoin spark" in medians else None
    for name, found in medians.items():
        median = statistics.median(found)
        ratio = f"  {median / reference:5.2f} x streamjoin spark's time" if reference else ""
        print(f"  {name:20} {median:7.3f} s an epoch ({min(found):.3f} to {max(found):.3f})  {2 * rows / median:12,.0f} rows/s{ratio}")


def fixed_cost(root: Path, runners: dict[str, Any], epochs: int = 60) -> None:
    generate(root, 500, epochs)
    print("an epoch of 1,000 tuples, seconds by step (medians; task steps are the slowest task's)")
    for name, runner in runners.items():
        seconds, results = epoch_seconds(streamjoin(root, runner))
        steps = {step: statistics.median(result.seconds.get(step, 0.0) for result in results[WINDOW + 1 :]) for step in results[-1].seconds}
        text = ", ".join(f"{step} {spent:.4f}" for step, spent in steps.items() if spent >= 0.0005)
        print(f"  streamjoin {name:7} {statistics.median(seconds):.3f} s: {text}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", default="100000,1000000")
    parser.add_argument("--epochs", type=int, default=24)
    parser.add_argument("--runs", type=int, default=3)
    arguments = parser.parse_args()
    print(f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, load {os.getloadavg()[0]:.1f}")
    os.environ["JAVA_HOME"] = str(find_java())
    with tempfile.TemporaryDirectory(prefix="streamjoin-bench-") as name:
        root = Path(name)
        runners = {"spark": SparkRunner(SparkSettings(root / "logs", 3072)), "inline": InlineRunner()}
        fixed_cost(root / "small", runners)
        for rows in arguments.rows.split(","):
            compare(root / rows, int(rows), arguments.epochs, arguments.runs, runners)
            shutil.rmtree(root / rows)
        runners["spark"].stop()


if __name__ == "__main__":
    main()
