"""Where the time of an epoch goes, by the engine's own steps, for W1 with full windows.

Taken apart are epochs that run one at a time, whose parts add up; with two in flight, as the engine runs them while there is a backlog,
the same parts overlap, and only the time from commit to commit is told. Given is the mean of the middle half of the epochs.

    python tests/bench/bench_breakdown.py [--rows 500,100000,1000000] [--epochs 40] [--picture PATH] [--quick]
"""

from __future__ import annotations

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

from bench.engine import OneAtATime, Run, full, job_of, join, spark_runner, timed
from bench.report import STYLE, counts, machine, millions, options, table
from bench.workloads import FULL_AFTER, WORKLOADS
from streamjoin.epoch.ports import EpochResult, Runner
from streamjoin.epoch.reports import sample_of
from streamjoin.runner.inline import InlineRunner
from streamjoin.scheme.sketch import Sketch

PLAN, HAND = "driver: plan", "driver and workers: messages"
ROUTE, EXCHANGE = "route: read, key, sort, cut", "exchange, and runs of what came"
PROBE, MERGE, DURABLE = "join: probe, output", "join: tiers", "join: until all is durable"
COMMIT = "driver: commit, publish, clean"
PARTS = (PLAN, HAND, ROUTE, EXCHANGE, PROBE, MERGE, DURABLE, COMMIT)
COLOURS = {
    PLAN: "#555555", HAND: "#e8776d", ROUTE: "#3b6fd4", EXCHANGE: "#c8362f", PROBE: "#2f9e5b", MERGE: "#1d6b3c", DURABLE: "#8acb9b",
    COMMIT: "#999999",
}  # fmt: skip
"""What brings tuples and messages about is red, routing blue, joining green, the driver grey."""
STEPS = {PROBE: ("join",), MERGE: ("open", "merge"), DURABLE: ("write",)}
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


def taken_apart(seconds: float, result: EpochResult) -> dict[str, float]:
    """One epoch's parts, along the slowest worker; they add up to its time."""
    slowest = max((work.seconds for work in result.work.values()), key=lambda steps: sum(steps.values()))
    waited = slowest.get("gather", 0.0)  # for its own routing and that of others, and for what they send
    parts = {
        PLAN: result.seconds["plan"],
        HAND: max(0.0, result.seconds["tasks"] - sum(slowest.values())),
        ROUTE: min(result.seconds["task.route"], waited),
        EXCHANGE: max(0.0, waited - result.seconds["task.route"]),
        **{part: sum(slowest.get(step, 0.0) for step in steps) for part, steps in STEPS.items()},
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
        found = []
        for rows, of_size in zip(sizes, runs, strict=True):
            one = of_size["one"]
            measured = list(zip(one.seconds, one.results, strict=True))[full(1) :]
            means = {name: statistics.fmean(run.seconds[full(1) :]) for name, run in of_size.items()}
            found.append(Breakdown(2 * rows, middle([taken_apart(*epoch) for epoch in measured]), **means))
    show(found)
    show_sampling(found)
    draw(arguments.picture, found)
    print(f"\npicture: {arguments.picture}")


if __name__ == "__main__":
    main()
