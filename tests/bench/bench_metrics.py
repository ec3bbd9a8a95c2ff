"""What metrics cost: the time that an epoch gives to them, and a scrape, by the number of workers.

python tests/bench/bench_metrics.py [--repeats 200] [--quick]
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import pyarrow as pa
from prometheus_client import generate_latest

from bench.report import machine, options, table
from harness import START, Input, driver_for, make_batch, make_job, run_all
from streamjoin.runner.inline import InlineRunner
from streamjoin.serve.metrics import Metrics
from streamjoin.state.storage import ObjectStorage


def spread(action: Callable[[], object], repeats: int) -> str:
    """Median and range of the middle nine tenths."""
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        action()
        times.append((time.perf_counter() - began) * 1e3)
    cuts = statistics.quantiles(times, n=20)
    return f"{statistics.median(times):.3f} ({cuts[0]:.3f} to {cuts[-1]:.3f})"


def main() -> None:
    parser = options(__doc__ or "")
    parser.add_argument("--repeats", type=int, default=200)
    arguments = parser.parse_args()
    repeats = 20 if arguments.quick else arguments.repeats
    print(machine())
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory)
        job = make_job(root, types=("BIGINT", "BIGINT"), on="l.k = r.k", window={"within": "5s"}, workers=1)
        inputs = (Input([make_batch([(0, 1, 0, START)], pa.int64())], [1]), Input([make_batch([], pa.int64())], [1]))
        (real,) = run_all(driver_for(job, inputs, ObjectStorage(str(root / "state")), InlineRunner()))
    lines = []
    for workers in (1, 8, 64, 512):
        tasks = range(workers)
        result = replace(
            real,
            held=dict.fromkeys(tasks, (100, 100)),
            utilization=dict.fromkeys(tasks, 0.2),
            work=dict.fromkeys(tasks, real.work[0]),
            shed=(0.0,) * workers,
        )
        metrics = Metrics(job)
        observed = spread(partial(metrics.observe, result), repeats)
        scraped = spread(partial(generate_latest, metrics.registry), repeats)
        lines.append([workers, observed, scraped, f"{len(generate_latest(metrics.registry)) / 1024:.0f}"])
    print()
    print(table(["workers", "an epoch, ms", "a scrape, ms", "its KiB"], lines))


if __name__ == "__main__":
    main()
