"""Where the time of an epoch goes: Spark's event log and the engine's own steps put together, for W1 with full windows.

Taken apart are epochs that run one at a time, whose parts add up; with two in flight, as the engine runs them while there is a backlog,
the same parts overlap, and only the time from commit to commit is told. Given is the mean of the middle half of the epochs.

    python tests/bench/bench_breakdown.py [--rows 500,100000,1000000] [--epochs 40] [--picture PATH] [--quick]
"""

from __future__ import annotations

import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import matplotlib as mpl
import numpy as np
import pyarrow as pa
from matplotlib.figure import Figure

from bench import eventlog
from bench.engine import OneAtATime, Run, full, job_of, join, spark_runner, timed
from bench.eventlog import JobTimes
from bench.report import STYLE, counts, machine, millions, options, table
from bench.workloads import FULL_AFTER, WORKLOADS
from streamjoin.epoch.ports import EpochResult, Runner
from streamjoin.epoch.spec import sample_of
from streamjoin.runner.inline import InlineRunner
from streamjoin.scheme.sketch import Sketch

PLAN, BUILD, SCHEDULE = "driver: plan", "Spark: build and collect the job", "Spark: schedule its stages"
ROUTE, ROUTE_SPARK = "route: read, key, sort, cut", "route: hand-over by Spark"
GATHER, PROBE, SINK, MERGE = "join: receive, merge", "join: probe", "join: output", "join: tiers, blocks"
JOIN_SPARK = "join: hand-over by Spark"
COMMIT = "driver: commit, publish, clean"
PARTS = (PLAN, BUILD, SCHEDULE, ROUTE, ROUTE_SPARK, GATHER, PROBE, SINK, MERGE, JOIN_SPARK, COMMIT)
COLOURS = {
    PLAN: "#555555", BUILD: "#f3b0a9", SCHEDULE: "#e8776d", ROUTE: "#3b6fd4", ROUTE_SPARK: "#c8362f", GATHER: "#bfe3c8",
    PROBE: "#2f9e5b", SINK: "#8acb9b", MERGE: "#1d6b3c", JOIN_SPARK: "#8f1f1a", COMMIT: "#999999",
}  # fmt: skip
"""Spark's parts are red, the route tasks' blue, the join tasks' green, the driver's grey."""
STEPS = {GATHER: ("gather",), PROBE: ("join",), SINK: ("sink",), MERGE: ("open", "merge", "write")}
"""The engine's steps in a join task."""


@dataclass(frozen=True)
class Breakdown:
    """Seconds of an epoch of one size."""

    rows: int
    """Of both sides."""
    parts: dict[str, float]
    one: float
    """One epoch at a time, from commit to commit."""
    two: float
    """Two in flight."""
    inline: float
    """By the inline runner, two in flight."""


def taken_apart(seconds: float, result: EpochResult, job: JobTimes) -> dict[str, float]:
    """One epoch's parts; they add up to its time."""
    route, last = sorted(job.stages.items())[0][1], sorted(job.stages.items())[-1][1]
    slowest = max((work.seconds for work in result.work.values()), key=lambda steps: sum(steps.values()))
    parts = {
        PLAN: result.seconds["plan"],
        BUILD: max(0.0, result.seconds["tasks"] - job.seconds),
        SCHEDULE: job.seconds - route.seconds - last.seconds,
        ROUTE: result.seconds["task.route"],
        ROUTE_SPARK: max(0.0, route.seconds - result.seconds["task.route"]),
        **{part: sum(slowest.get(step, 0.0) for step in steps) for part, steps in STEPS.items()},
        JOIN_SPARK: max(0.0, last.seconds - sum(slowest.values())),
    }
    return parts | {COMMIT: seconds - sum(parts.values())}


def middle(epochs: Sequence[dict[str, float]]) -> dict[str, float]:
    """Each part's mean over the middle half of the epochs by their time: what adds up goes on to do so."""
    ordered = sorted(epochs, key=lambda parts: sum(parts.values()))
    kept = ordered[len(ordered) // 4 : max(len(ordered) // 4 + 1, -(-3 * len(ordered) // 4))]
    return {part: statistics.mean(parts[part] for parts in kept) for part in PARTS}


def show(found: Sequence[Breakdown]) -> None:
    print("\n**Where an epoch's time goes**, one at a time, ms\n")
    header = ["", *(f"{breakdown.rows:,} tuples" for breakdown in found)]
    lines = [[part, *(f"{1000 * breakdown.parts[part]:.1f}" for breakdown in found)] for part in PARTS]
    lines.append(["**together**", *(f"**{1000 * sum(breakdown.parts.values()):.0f}**" for breakdown in found)])
    print(table(header, lines))
    print("\n**What two epochs in flight give**\n")
    names = {"one at a time": "one", "two in flight": "two", "inline runner (one core)": "inline"}
    lines = [[name, *(speed(breakdown.rows, getattr(breakdown, field)) for breakdown in found)] for name, field in names.items()]
    print(table(header, lines))


def sampling(rows: int) -> float:
    """Seconds an epoch for statistics: a sample of each side's tuples, and the sketches that take it up while a window of them is full."""
    key = pa.array(np.sort(np.random.default_rng(0).integers(0, 100 * rows, rows)))
    batch = pa.RecordBatch.from_arrays([key], ["_key"])
    sketches, spent = (Sketch(), Sketch()), []
    for epoch in range(3 * FULL_AFTER):
        began = time.perf_counter()
        for side, sketch in enumerate(sketches):
            sample = sample_of(side, batch, epoch)
            sketch.add(sample.keys, sample.weight, sample.time_max)
            sketch.expire(epoch - FULL_AFTER)
        spent.append(time.perf_counter() - began)
    return statistics.median(spent[FULL_AFTER:])


def show_sampling(found: Sequence[Breakdown]) -> None:
    print("\n**What sampling costs**, of an epoch with two in flight\n")
    spent = {breakdown.rows: sampling(breakdown.rows // 2) for breakdown in found}
    header = ["", *(f"{breakdown.rows:,} tuples" for breakdown in found)]
    shares = (f"{1000 * spent[breakdown.rows]:.2f} ms, {100 * spent[breakdown.rows] / breakdown.two:.2f} %" for breakdown in found)
    print(table(header, [["both sides' samples and sketches", *shares]]))


def speed(rows: int, seconds: float) -> str:
    return f"{seconds:.3f} s, {millions(rows / seconds)} rows/s"


def draw(path: Path, found: Sequence[Breakdown]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(10, 1.2 + 0.8 * len(found)), dpi=120, layout="constrained")
        axes = figure.subplots()
        labels = [f"{breakdown.rows:,} tuples\n{1000 * sum(breakdown.parts.values()):,.0f} ms" for breakdown in found]
        lefts = [0.0] * len(found)
        for part in PARTS:
            shares = [100 * breakdown.parts[part] / sum(breakdown.parts.values()) for breakdown in found]
            bars = axes.barh(labels, shares, left=lefts, color=COLOURS[part], label=part, height=0.6)
            texts = [f"{1000 * breakdown.parts[part]:,.0f}" if share >= 3 else "" for breakdown, share in zip(found, shares, strict=True)]
            axes.bar_label(bars, texts, label_type="center", fontsize=7, color="white")
            lefts = [left + share for left, share in zip(lefts, shares, strict=True)]
        axes.invert_yaxis()
        axes.set_xlim(0, 100)
        axes.set_xlabel("% of the epoch's time; numbers: ms")
        axes.legend(loc="upper left", bbox_to_anchor=(1, 1), frameon=False, fontsize=8)
        axes.set_title("where an epoch's time goes, one at a time", loc="left")
        figure.savefig(path)


def main() -> None:
    parser = options(__doc__ or "", picture="out/bench-breakdown.png")
    parser.add_argument("--rows", default="500,100000,1000000", help="a side and epoch, several after commas")
    parser.add_argument("--epochs", type=int, default=40, help="after the window is full; a third of them for a million rows or more")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.rows, arguments.epochs = "500,5000", 8
    print(machine())
    workload = WORKLOADS["W1"]
    with tempfile.TemporaryDirectory(prefix="streamjoin-bench-") as name:
        root = Path(name)
        eventlog.switch_on(root / "events")
        spark = spark_runner(root)
        sizes = counts(arguments.rows)
        runs: list[dict[str, Run]] = []
        try:
            for rows in sizes:
                place = root / str(rows)
                workload.generate(place, rows, full(1) + (arguments.epochs if rows < 1_000_000 else -(-arguments.epochs // 3)))
                job = job_of(place, workload)
                runners: dict[str, Runner] = {"one": OneAtATime(spark), "two": spark, "inline": InlineRunner()}
                runs.append({name: timed(join(job, runner)) for name, runner in runners.items()})
                shutil.rmtree(place)
        finally:
            spark.stop()
            os.environ.pop("PYSPARK_SUBMIT_ARGS")
        jobs = iter(eventlog.read(root / "events"))
        found = []
        for rows, of_size in zip(sizes, runs, strict=True):
            one = of_size["one"]
            times = eventlog.of_epochs(jobs, [result.epoch for result in one.results])
            eventlog.of_epochs(jobs, [result.epoch for result in of_size["two"].results])
            measured = list(zip(one.seconds, one.results, times, strict=True))[full(1) :]
            medians = {name: statistics.median(run.seconds[full(1) :]) for name, run in of_size.items()}
            found.append(Breakdown(2 * rows, middle([taken_apart(*epoch) for epoch in measured]), **medians))
    show(found)
    show_sampling(found)
    draw(arguments.picture, found)
    print(f"\npicture: {arguments.picture}")


if __name__ == "__main__":
    main()
