"""A chain of neighbours beside workers that are sent everything, and beside A-DSP: what each sends, how even it is, and when results come.

W1 (``workloads``): N tuples a stream and second, ``|l.k - r.k| <= 5`` within 10 s, an epoch a second of event time.

- counted, on the inline runner, the same on every machine: how often a tuple is sent, and its bytes, whoever they go to; messages of an
  epoch (pieces of tuples, and what workers of a chain say to each other); the bytes of the worker of a chain that says most; how much the
  fullest worker holds above the mean; and by how many seconds of event time a result comes after the younger of its tuples.
- timed, on Spark with so many workers: tuples a second once the window is full.

    python tests/bench/bench_models.py [--rows 20000] [--workers 1,2,4,8] [--quick]
"""

from __future__ import annotations

import itertools
import re
import statistics
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from bench.engine import full, job_of, join, silent, spark_runner, timed
from bench.report import counts, machine, millions, options, table
from bench.workloads import FULL_AFTER, WINDOW, WORKLOADS
from harness import SECOND, START
from streamjoin.controlplane.driver import Driver
from streamjoin.epoch.reports import TaskReport
from streamjoin.epoch.spec import EpochSpec
from streamjoin.job import Job
from streamjoin.runner.inline import InlineEpoch, InlineRunner
from streamjoin.state.storage import ObjectStorage

MODELS = ("handshake", "broadcast", "adsp")
WORKLOAD = WORKLOADS["W1"]
EPOCH = re.compile(r"-(\d{12})-")
"""In the names of files of results."""
LATE = 2
"""Seconds that marks, and so what expires, are behind."""


class Watching(InlineRunner):
    """Adds up what is sent, and keeps how much each worker of a chain said."""

    def __init__(self) -> None:
        super().__init__()
        self.epochs: list[Watched] = []

    def submit(self, spec: EpochSpec, workers: Sequence[int]) -> InlineEpoch:
        made = Watched(spec, workers, self._stores)
        self.epochs.append(made)
        return made


class Watched(InlineEpoch):
    """``pieces``: of tuples, that routing sent; ``reports``: once it is over."""

    def __init__(self, spec: EpochSpec, *rest: Any) -> None:
        super().__init__(spec, *rest)
        self.block_tuples = spec.block_tuples
        self.pieces = sum(piece.area >= 0 for pieces in self._shuffled.values() for piece in pieces)
        self.reports: list[TaskReport] = []

    def result(self) -> list[TaskReport]:
        self.reports = super().result()
        return self.reports


@dataclass(frozen=True)
class Counted:
    """Means over the epochs in which the window is full."""

    sent: float
    """How often a tuple is sent."""
    sent_bytes: float
    """For each tuple."""
    messages: float
    """An epoch."""
    link_bytes: float
    """An epoch, of the worker that says most."""
    imbalance: float
    block: float
    delays: np.ndarray
    """Seconds, of each result."""


def counted(root: Path, model: str, workers: int, rows: int, files: int) -> Counted:
    select = ["l.at AS l_at", "r.at AS r_at"]
    job = job_of(root, WORKLOAD, workers=workers, select=select, scheme={"model": model})
    runner = Watching()
    for _ in join_to_the_end(job, runner):
        pass
    full_epochs = runner.epochs[full(1) : files]
    said = [sum((Counter(report.messages) for report in epoch.reports), Counter[str]()) for epoch in full_epochs]
    routes = [[route for report in epoch.reports for route in report.routes] for epoch in full_epochs]
    tuples = 2 * rows
    hops = [sum(count for name, count in each.items() if not name.endswith("_bytes")) for each in said]
    hop_bytes = [sum(count for name, count in each.items() if name.endswith("_bytes")) for each in said]
    routed_bytes = [sum(route.routed_bytes for route in of_epoch) for of_epoch in routes]
    routed = [sum(route.routed for route in of_epoch) for of_epoch in routes]
    tuple_bytes = statistics.mean(routed_bytes) / statistics.mean(routed)
    forwarded = [each["tuple_blk_bytes"] / tuple_bytes for each in said]
    links = [max((sum(count for name, count in report.messages.items() if name.endswith("_bytes")) for report in e.reports), default=0)
             for e in full_epochs]  # fmt: skip
    held = [np.array([sum(report.held) for report in epoch.reports]) for epoch in full_epochs]
    return Counted(
        sent=statistics.mean(a + b for a, b in zip(routed, forwarded, strict=True)) / tuples,
        sent_bytes=statistics.mean(a + b for a, b in zip(routed_bytes, hop_bytes, strict=True)) / tuples,
        messages=statistics.mean(epoch.pieces + spoken for epoch, spoken in zip(full_epochs, hops, strict=True)),
        link_bytes=statistics.mean(links),
        imbalance=statistics.mean(float((each.max() - each.mean()) / each.mean()) for each in held),
        block=statistics.mean(epoch.block_tuples for epoch in full_epochs),
        delays=delays(root / "out", files),
    )


def join_to_the_end(job: Job, runner: InlineRunner) -> Any:
    """As ``bench.engine.join``, and then what a chain gives at the end of the input."""
    yield from join(job, runner)
    driver = Driver(job, ObjectStorage(str(job.checkpoint)), InlineRunner())
    with silent():
        driver.start()
        while (result := driver.step(final=True)) is not None:
            yield result


def delays(folder: Path, files: int) -> np.ndarray:
    """By how many seconds of event time results came after the younger of their tuples, of those that came in a full window, long before
    the end."""
    found = []
    for path in folder.glob("*.parquet"):
        epoch = int(EPOCH.findall(path.name)[0])
        times = pq.read_table(path)
        younger = np.maximum(*(np.asarray(times[name].cast(pa.int64())) for name in ("l_at", "r_at")))
        second = (younger - START) // SECOND
        found.append(epoch - second[(second >= FULL_AFTER) & (second < files - WINDOW - LATE)])
    return np.concatenate(found)


def main() -> None:
    parser = options(__doc__ or "")
    parser.add_argument("--rows", default="20000", help="a side and second")
    parser.add_argument("--files", type=int, default=40, help="seconds; the first 11 fill the window")
    parser.add_argument("--workers", default="1,2,4,8")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.rows, arguments.files, arguments.workers = "1000", 30, "1,3"
    print(machine())
    (rows,), sizes = counts(arguments.rows), counts(arguments.workers)
    lines = []
    with tempfile.TemporaryDirectory(prefix="streamjoin-bench-") as name:
        root = Path(name)
        WORKLOAD.generate(root, rows, arguments.files)
        spark = spark_runner(root)
        try:
            for workers, model in itertools.product(sizes, MODELS):
                found = counted(root, model, workers, rows, arguments.files)
                run = timed(join(job_of(root, WORKLOAD, workers=workers, scheme={"model": model}), spark))
                lines.append(line(model, workers, found, 2 * rows / statistics.fmean(run.seconds[full(1) :])))
        finally:
            spark.stop()
    print(f"\nN = {rows:,} a stream and second\n")
    print(table(HEADER, lines))


HEADER = [
    "workers", "model", "tuples/s", "block", "times sent", "bytes sent", "messages an epoch", "KB from the busiest", "imbalance",
    "delay: median, p99, most (s)",
]  # fmt: skip


def line(model: str, workers: int, found: Counted, speed: float) -> list[object]:
    is_chain = model == "handshake"
    late = f"{np.median(found.delays):.0f}, {np.percentile(found.delays, 99):.0f}, {found.delays.max():.0f}"
    return [
        workers, model, millions(speed), f"{found.block:,.0f}" if is_chain else "", f"{found.sent:.2f}", f"{found.sent_bytes:.0f}",
        f"{found.messages:.0f}", f"{found.link_bytes / 1e3:,.0f}" if is_chain and workers > 1 else "", f"{found.imbalance:.3f}", late,
    ]  # fmt: skip


if __name__ == "__main__":
    main()
