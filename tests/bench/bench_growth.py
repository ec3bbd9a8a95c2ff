"""How speed changes with the tuples that are held, and with the number of workers on the cores there are.

- By held tuples: a window that holds H tuples a side is filled in a few large epochs; then ``--epochs`` epochs of a fixed size are
  measured, each of which lets as many tuples expire. A new tuple finds 1.1 held ones whatever H is, so that nothing else changes.
- By workers: W1 with N = ``--workers-rows``, one executor of one core for each worker. More of them than cores show what the protocol
  costs, not what more cores give.

    python tests/bench/bench_growth.py [--held 1e4,1e5,1e6,1e7] [--epoch-rows 1e4,1e5,1e6] [--workers 1,2,4,8] [--picture PATH] [--quick]
"""

from __future__ import annotations

import math
import os
import shutil
import statistics
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import matplotlib as mpl
import numpy as np
import psutil
import pyarrow as pa
from matplotlib.figure import Figure

from bench.engine import full, job_of, join, spark_runner, timed
from bench.report import LEFT, STYLE, counts, machine, millions, options, table
from bench.workloads import WORKLOADS, write_file
from harness import SECOND, START
from streamjoin.epoch.ports import EpochResult, Runner
from streamjoin.runner.inline import InlineRunner
from streamjoin.runner.spark import SparkRunner

WINDOW_SECONDS = 1000
FILL_ROWS = 1_000_000
"""The most a side and epoch while the window is filled."""
BEYOND = 3
"""Epochs of the measured size before the measured ones: caches and the runs' tiers settle."""
SHADES = ("#9dbbe8", "#3b6fd4", "#1c3d85", "#000000")
SPARK, INLINE = "Spark, 2 workers", "inline, 1 core"

Speeds = dict[tuple[str, int, int], float]
"""(runner, rows of an epoch, held a side) -> rows a second."""


def fill(root: Path, held: int, rows: int, epochs: int) -> int:
    """Input that fills a window with ``held`` tuples a side, then ``epochs`` files of ``rows`` tuples; how many files come before those."""
    sizes = [len(part) for part in np.array_split(np.empty(held), math.ceil(held / FILL_ROWS))]
    for seed, side in enumerate("lr"):
        folder = root / f"in-{side}"
        folder.mkdir(parents=True)
        rng = np.random.default_rng(seed)
        first = 0
        for number, size in enumerate([*sizes, *[rows] * epochs]):
            ids = np.arange(first, first + size)
            moment = START + ids * (WINDOW_SECONDS * SECOND) // held
            columns: dict[str, Any] = {
                "rid": ids,
                "k": rng.integers(0, 10 * held, size),
                "v": np.zeros(size, np.int32),
                "at": pa.array(moment).cast(pa.timestamp("us", "UTC")),
            }
            write_file(folder, number, columns)
            first += size
    return len(sizes)


def by_held(root: Path, runners: dict[str, Runner], held: list[int], sizes: list[int], epochs: int) -> Speeds:
    found: Speeds = {}
    for count in held:
        for rows in sizes:
            if rows > count:
                continue
            place = root / f"growth-{count}-{rows}"
            before = fill(place, count, rows, epochs + BEYOND)
            for name, runner in runners.items():
                job = job_of(place, WORKLOADS["W1"], workers=1 if name == INLINE else 2, window={"within": f"{WINDOW_SECONDS}s"})
                run = timed(join(job, runner))
                assert len(run.seconds) == before + BEYOND + epochs
                found[name, rows, count] = 2 * rows / statistics.fmean(run.seconds[before + BEYOND :])
                print(f"  {name}, {count:,} held a side, {rows:,} an epoch: {found[name, rows, count]:,.0f} rows/s", flush=True)
            shutil.rmtree(place)
    return found


def by_workers(root: Path, runner: SparkRunner, workers: list[int], rows: int, epochs: int) -> dict[int, tuple[float, float]]:
    """Rows/s, and milliseconds of processor time an epoch, the driver's Python and all workers together."""
    place = root / "workers"
    WORKLOADS["W1"].generate(place, rows, full(1) + epochs)
    found = {}
    for count in workers:
        used: list[float] = []

        def noting(results: Iterator[EpochResult], used: list[float] = used) -> Iterator[EpochResult]:
            for result in results:
                used.append(cpu_seconds([os.getpid(), *runner.pool.pids.values()]))
                yield result

        run = timed(noting(join(job_of(place, WORKLOADS["W1"], workers=count), runner)))
        rate = 2 * rows / statistics.fmean(run.seconds[full(1) :])
        found[count] = rate, 1e3 * (used[-1] - used[full(1) - 1]) / (len(used) - full(1))
        print(f"  {count} workers: {rate:,.0f} rows/s, {found[count][1]:.1f} ms of processor time an epoch", flush=True)
    shutil.rmtree(place)
    return found


def cpu_seconds(pids: Sequence[int]) -> float:
    return sum(sum(psutil.Process(pid).cpu_times()[:2]) for pid in pids)


def tables(held: Speeds, workers: dict[int, tuple[float, float]], rows: int) -> None:
    columns = sorted({count for _, _, count in held})
    print("\n**Rows/s by held tuples a side**\n")
    lines = [
        [f"{name}, {size:,} a side and epoch", *(millions(rate) if (rate := held.get((name, size, count))) else "" for count in columns)]
        for name, size in sorted({(name, size) for name, size, _ in held}, reverse=True)
    ]
    print(table(["", *(f"{count:,}" for count in columns)], lines))
    print(f"\n**Rows/s by workers**, W1, N = {rows:,}\n")
    rates = ["rows/s", *(millions(rate) for rate, _ in workers.values())]
    used = ["processor time an epoch, ms", *(f"{used:.0f}" for _, used in workers.values())]
    print(table(["workers", *map(str, workers)], [rates, used]))


def draw(path: Path, held: Speeds, workers: dict[int, tuple[float, float]], rows: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(10, 4), dpi=120, layout="constrained")
        left, right = figure.subplots(1, 2, width_ratios=(3, 2))
        sizes = sorted({size for _, size, _ in held})
        for name, style in ((SPARK, "-"), (INLINE, "--")):
            for size, colour in zip(sizes, SHADES, strict=False):
                points = sorted((count, speed / 1e6) for (runner, rows_, count), speed in held.items() if (runner, rows_) == (name, size))
                if points:
                    label = f"{name}; {size:,} a side and epoch"
                    left.plot(*zip(*points, strict=True), style, marker="o", markersize=4, color=colour, label=label)
        left.set_xscale("log")
        left.set_xlabel("held tuples a side")
        left.set_ylabel("million rows/s")
        left.set_title("by held tuples", loc="left")
        left.legend(frameon=False, fontsize=7)
        right.bar([str(count) for count in workers], [rate / 1e6 for rate, _ in workers.values()], color=LEFT, width=0.6)
        right.set_xlabel(f"workers, on {os.cpu_count()} cores")
        right.set_title(f"by workers: W1, N = {rows:,}", loc="left")
        for axes in (left, right):
            axes.set_ylim(bottom=0)
            axes.grid(axis="y", alpha=0.25, linewidth=0.6)
            axes.set_axisbelow(True)
        figure.savefig(path)


def main() -> None:
    parser = options(__doc__ or "", picture="out/bench-growth.png")
    parser.add_argument("--held", default="1e4,1e5,1e6,1e7", help="tuples a side, several after commas")
    parser.add_argument("--epoch-rows", default="1e4,1e5,1e6", help="rows a side and epoch, several after commas")
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--workers", default="1,2,4,8")
    parser.add_argument("--workers-rows", type=float, default=100_000)
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.held, arguments.epoch_rows, arguments.epochs, arguments.workers, arguments.workers_rows = "1e4,1e5", "1e4", 4, "1,2", 2000
    print(machine())
    with tempfile.TemporaryDirectory(prefix="streamjoin-bench-") as name:
        root = Path(name)
        spark = spark_runner(root)
        try:
            runners: dict[str, Runner] = {SPARK: spark, INLINE: InlineRunner()}
            held = by_held(root, runners, counts(arguments.held), counts(arguments.epoch_rows), arguments.epochs)
            workers = by_workers(root, spark, counts(arguments.workers), int(arguments.workers_rows), arguments.epochs)
        finally:
            spark.stop()
    tables(held, workers, int(arguments.workers_rows))
    draw(arguments.picture, held, workers, int(arguments.workers_rows))
    print(f"\npicture: {arguments.picture}")


if __name__ == "__main__":
    main()
