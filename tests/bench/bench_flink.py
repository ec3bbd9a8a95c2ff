"""Joins of three streams against Flink SQL: W4, W5 and W6 of ``bench_streams.py``, from JSON files to JSON files on the same cores.

Flink gets two-way interval joins, one after another, with buckets for W5's band (``flink_streams.py``), two slots, and a checkpoint
every ten seconds. What is timed is one job over all of the input, the filling of its window included, in a JVM that is warm. Of
StreamJoin it is, as elsewhere, the mean epoch of one second once the window is full, with a commit for each. All must find as many
results.

W5 without buckets is measured as well, with ``--plain-rows``: Flink then compares all pairs within the window, in one slot.

    python tests/bench/bench_flink.py [--rows 100000] [--workloads w4,w5,w6] [--epochs 16] [--limit 150] [--plain-rows 2000] [--quick]
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from bench import flink, flink_streams
from bench.bench_streams import OURS, SLOW_EPOCHS, WORKLOADS, Comparison, PathPlan, streamjoin
from bench.engine import spark_runner
from bench.report import machine, options
from bench.rivals import Timed
from bench.stream_rivals import Streams, bucketed
from streamjoin.epoch.ports import Runner
from streamjoin.runner.inline import InlineRunner

FLINK = f"Flink SQL {flink.VERSION}"


def ours(runner: Runner) -> PathPlan:
    def run(root: Path, streams: Streams, files: int) -> Timed:
        flink_streams.write_json(root, streams, files)
        return streamjoin(runner, "json")(root, streams, files)

    return run


class OneCore:
    """StreamJoin without processes of its own, so that its processor time is this one's."""

    def __init__(self) -> None:
        self.cpu_seconds = 0.0
        """Of the last run, over all of the input."""

    def __call__(self, root: Path, streams: Streams, files: int) -> Timed:
        flink_streams.write_json(root, streams, files)
        began = time.process_time()
        timed = streamjoin(InlineRunner(), "json")(root, streams, files)
        self.cpu_seconds = time.process_time() - began
        return timed


class Flink:
    """The job's time, shared out evenly among the seconds of the streams, and its results as one number."""

    def __init__(self, limit: float, buckets: bool = True) -> None:
        self._limit, self._buckets = limit, buckets
        self.cpu_seconds = 0.0
        """As of OneCore."""

    def __call__(self, root: Path, streams: Streams, files: int) -> Timed:
        flink_streams.write_json(root, streams, files)
        joined = flink_streams.chained(root, streams, files, limit=self._limit, buckets=self._buckets)
        self.cpu_seconds = joined.cpu_seconds
        return [joined.seconds / files] * files, [*[0] * (files - 1), joined.results]


def has_band_alone(streams: Streams) -> bool:
    """Whether a join has no equality to find pairs by."""
    return any(bucketed(edges) for _, edges in streams.steps(next(iter(streams.keys))))


def compare(directory: Path, workload: str, rows: int, epochs: int, spark: Runner, rival_name: str, rival: Flink) -> None:
    one_core = OneCore()
    ways: dict[str, PathPlan] = {OURS: ours(spark), "StreamJoin, inline runner (one core)": one_core, rival_name: rival}
    with tempfile.TemporaryDirectory(prefix=f"{workload}-", dir=directory) as root:
        comparison = Comparison(Path(root), workload, rows, epochs)
        for name, way in ways.items():
            try:
                comparison.measure({name: way})
            except flink_streams.TooSlow as failure:
                print(f"\n{workload}, N = {rows:,}, {name}: {failure}")
        comparison.print()
    if rival.cpu_seconds:
        print(
            f"\nProcessor time of all {epochs} s: StreamJoin inline {one_core.cpu_seconds:.1f} s, {rival_name} {rival.cpu_seconds:.1f} s, "
            f"{rival.cpu_seconds / one_core.cpu_seconds:.1f} times as much; load {os.getloadavg()[0]:.1f}",
            flush=True,
        )


def main() -> None:
    parser = options(__doc__ or "")
    parser.add_argument("--rows", type=int, default=100_000, help="N, a stream and second")
    parser.add_argument("--plain-rows", type=int, default=2000, help="N of what Flink does without buckets; 0: leave it out")
    parser.add_argument("--workloads", help="default: w4,w5,w6; with --quick w5")
    parser.add_argument("--epochs", type=int, default=16, help="files a stream; the first 11 fill the window")
    parser.add_argument("--limit", type=float, default=150, help="seconds that Flink may take for a workload")
    arguments = parser.parse_args()
    workloads = arguments.workloads or "w4,w5,w6"
    if arguments.quick:
        arguments.rows, arguments.plain_rows, arguments.epochs = 2000, 200, SLOW_EPOCHS
        workloads = arguments.workloads or "w5"  # each comparison starts a Java
    if arguments.epochs < SLOW_EPOCHS:
        parser.error(f"--epochs: {arguments.epochs} must be at least {SLOW_EPOCHS}, so that epochs with full windows are measured")
    print(machine())
    try:
        flink.libraries()
    except flink.NoFlink as missing:
        print(f"nothing is compared with Flink: {missing}")
        return
    with tempfile.TemporaryDirectory(prefix="streamjoin-bench-") as name:
        spark = spark_runner(Path(name))
        try:
            for workload in workloads.upper().split(","):
                compare(Path(name), workload, arguments.rows, arguments.epochs, spark, FLINK, Flink(arguments.limit))
                if arguments.plain_rows and has_band_alone(WORKLOADS[workload].streams):
                    plain = Flink(arguments.limit, buckets=False)
                    compare(Path(name), workload, arguments.plain_rows, arguments.epochs, spark, f"{FLINK}, without buckets", plain)
        finally:
            spark.stop()


if __name__ == "__main__":
    main()
