"""A running join is cut among more and fewer workers: what moves, how long it pauses, and what becomes of its throughput.

W1 on Spark, with its window full and its input waiting, so that epochs follow each other. Plans for other numbers of workers are put one
after another; each row is one of them. The *pause* is how much longer the first epoch under a plan took than those before it; *moved* are
tuples that a worker needs and has not, *naive* what all workers would fetch if they began anew. On two cores more workers are no faster.

The other way to do it, in the same run: Spark's own stream-stream join with the same state is stopped, its checkpoint repartitioned
(``StreamingCheckpointManager.repartition``, Spark 4.2 and newer), and the query started anew.

    python tests/bench/bench_replan.py [--rows 100000] [--workers 2,3,4,2] [--every 14] [--rival-rows 10000] [--picture PATH] [--quick]
"""

from __future__ import annotations

import itertools
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter

from bench import rivals
from bench.engine import job_of, silent, spark_runner
from bench.forgetful import Durable
from bench.report import LEFT, QUIET, STYLE, counts, machine, options, table
from bench.workloads import FULL_AFTER, WORKLOADS
from streamjoin.controlplane.driver import Driver
from streamjoin.controlplane.replan import Switched
from streamjoin.epoch.ports import Runner
from streamjoin.serve.wishes import plan_for_workers

TOGETHER = 4
"""Epochs whose rate is drawn: with two in flight, one may be committed just after the other."""
LONGEST_SECONDS = 300.0
"""A plan that does not run by then is given up."""


@dataclass(frozen=True)
class Epoch:
    """One that was committed; seconds since the run began."""

    ended: float
    seconds: float
    generation: int


@dataclass(frozen=True)
class Change:
    """One plan: from how many workers to how many, when it was put, and what came of it."""

    before: int
    after: int
    put_at: float
    naive: float
    switched: Switched
    first: Epoch
    """The first epoch under it."""


def changes(root: Path, runner: Runner, rows: int, workers: Sequence[int], every: int) -> tuple[list[Epoch], list[Change]]:
    """Run W1 until each plan has run for ``every`` epochs."""
    workload = WORKLOADS["W1"]
    job = replace(job_of(root, workload, workers=workers[0]), min_workers=min(workers), max_workers=max(workers))
    driver = Driver(job, Durable(job.checkpoint), runner)
    with silent():
        driver.start()
    began = ended = time.perf_counter()
    epochs: list[Epoch] = []
    made: list[Change] = []

    def step() -> None:
        nonlocal ended
        with silent():
            result = driver.step()
        assert result is not None, "the input ended before the last plan had run long enough: give more --spare files"
        now = time.perf_counter()
        epochs.append(Epoch(now - began, now - ended, result.generation))
        ended = now

    for _ in range(FULL_AFTER + every):
        step()
    for before, after in itertools.pairwise(workers):
        status = driver.plan_status()
        assert status is not None
        assert driver.layout is not None
        planned = plan_for_workers(status, driver.statistics(), driver.layout, job, after)
        put_at = time.perf_counter() - began
        driver.put_plan(planned.plan)
        while epochs[-1].generation != planned.plan.generation:
            step()
            assert time.perf_counter() - began - put_at < LONGEST_SECONDS, f"no plan for {after} workers after {LONGEST_SECONDS:.0f} s"
        status = driver.plan_status()
        assert status is not None
        assert status.switched is not None
        made.append(Change(before, after, put_at, planned.migration.naive_tuples, status.switched, epochs[-1]))
        for _ in range(every):
            step()
    return epochs, made


def rate(rows: int, epochs: Sequence[Epoch]) -> float:
    """Rows a second, of both sides."""
    return 2 * rows / statistics.median(epoch.seconds for epoch in epochs)


def ours(rows: int, epochs: Sequence[Epoch], made: Sequence[Change], every: int) -> str:
    lines = []
    for change in made:
        first = epochs.index(change.first)
        put = next(index for index, epoch in enumerate(epochs) if epoch.ended > change.put_at)
        during = epochs[put:first]
        parts = (epochs[max(0, put - every) : put], during, epochs[first + 1 : first + 1 + every])
        rates = [f"{rate(rows, part):,.0f}" if part else "" for part in parts]
        switched = change.switched
        volumes = (f"{switched.moved_tuples:,}", f"{change.naive:,.0f}", f"{switched.moved_tuples / change.naive:.2f}")
        times = (f"{switched.waited_seconds:.1f}", f"{switched.pause_seconds:.2f}")
        lines.append([f"{change.before} to {change.after}", *volumes, *times, *rates])
    head = ["workers", "moved tuples", "naive", "moved / naive", "until its first epoch, s", "pause, s"]
    return table([*head, "rows/s before", "while it is prepared", "after"], lines)


def draw(path: Path, rows: int, epochs: Sequence[Epoch], made: Sequence[Change]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(10, 3.6), dpi=120, layout="constrained")
        axes = figure.subplots()
        axes.set_title(f"rows/s over {TOGETHER} epochs each while the join is cut anew", loc="left")
        ends = [epoch.ended for epoch in epochs]
        rates = [2 * rows * TOGETHER / (after - before) for before, after in zip(ends, ends[TOGETHER:], strict=False)]
        axes.plot(ends[TOGETHER:], rates, color=LEFT, linewidth=1.2)
        for change in made:
            begin = change.first.ended - change.first.seconds
            axes.axvspan(change.put_at, begin, color=QUIET, alpha=0.2, linewidth=0)
            axes.axvline(begin, color="#c8362f", linewidth=1)
            axes.annotate(
                f"{change.before} to {change.after}", (begin, 1), xycoords=("data", "axes fraction"), fontsize=8, ha="left", va="top",
                xytext=(3, -2), textcoords="offset points",
            )  # fmt: skip
        axes.set_ylim(bottom=0)
        axes.set_xlim(left=epochs[0].ended)
        axes.grid(alpha=0.25, linewidth=0.6)
        axes.yaxis.set_major_formatter(EngFormatter(sep=""))
        axes.set_xlabel("seconds; grey: a plan is prepared while the old one runs; red: its first epoch begins")
        figure.savefig(path)


def main() -> None:
    parser = options(__doc__ or "", picture="out/bench-replan.png")
    parser.add_argument("--rows", type=float, default=100_000, help="a side and second")
    parser.add_argument("--workers", default="2,3,4,2", help="one after another")
    parser.add_argument("--every", type=int, default=14, help="epochs under each plan before the next is put")
    parser.add_argument("--spare", type=int, default=300, help="files a side for epochs while plans are prepared")
    parser.add_argument("--rival-rows", type=float, default=10_000, help="the same for Spark's own join, which is slow; 0: leave it out")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.rows, arguments.workers, arguments.every, arguments.spare, arguments.rival_rows = 2000, "2,3", 3, 400, 0
    rows, workers = int(arguments.rows), counts(arguments.workers)
    print(machine())
    with tempfile.TemporaryDirectory(prefix="streamjoin-bench-") as name:
        root = Path(name)
        files = FULL_AFTER + arguments.every * (len(workers) + 1) + arguments.spare
        WORKLOADS["W1"].generate(root, rows, files)
        runner = spark_runner(root)
        try:
            epochs, made = changes(root, runner, rows, workers, arguments.every)
        finally:
            runner.stop()
        print(f"\n**W1, N = {rows:,}, plans for {', '.join(map(str, workers))} workers**\n")
        print(ours(rows, epochs, made, arguments.every))
        draw(arguments.picture, rows, epochs, made)
        print(f"\ndrawn: {arguments.picture}")
        if arguments.rival_rows:
            rows = int(arguments.rival_rows)
            print(f"\n**Spark's stream-stream join, its checkpoint repartitioned from {workers[0]} to {workers[1]}, N = {rows:,}**\n")
            print(repartitioned(root / "rival", rows, workers[0], workers[1]))


def repartitioned(root: Path, rows: int, before: int, after: int) -> str:
    WORKLOADS["W1"].generate(root, rows, FULL_AFTER + 7)
    found = rivals.in_a_process(rivals.repartition, root, "W1", before, after)
    lines = [
        ["an epoch before, s", f"{found.before:,.1f}"],
        ["stopping, s", f"{found.stopping:,.1f}"],
        ["repartitioning the checkpoint, s", f"{found.repartitioning:,.1f}"],
        ["starting, and the first epoch, s", f"{found.starting:,.1f}"],
        ["written by the repartitioning, MB", f"{found.written_bytes / 1e6:,.0f}"],
        ["an epoch after, s", f"{found.after:,.1f}"],
    ]
    return table(["", ""], lines)


if __name__ == "__main__":
    main()
