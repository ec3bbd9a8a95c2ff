"""What held state costs in memory, what happens when it is larger than memory, and how long it takes to read it back.

- held: W1 and W3 on Spark with two workers and full windows. Memory of the workers' Python processes, which hold the runs, less what they
  had with next to nothing held, for each held tuple, beside the bytes of the tuple's own columns in Arrow.
- larger: W1 with a window that holds ``--factor`` times the memory of the one worker that joins it (inline runner, in a control group with
  that limit, page cache included), and without the limit.
- start: a checkpoint of so many tuples is made by the inline runner; then a driver and two Spark workers that hold nothing go on from it.
  The executors run already. Cold: the blocks are not in the page cache.

    python tests/bench/bench_memory.py [--parts held,larger,start] [--held 20e6] [--limit-mib 1024] [--start 10e6,100e6] [--quick]
"""

from __future__ import annotations

import multiprocessing
import os
import resource
import shutil
import statistics
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
import pyarrow.parquet as pq

from bench.engine import job_of, join, spark_runner, timed
from bench.limited import Group, NoLimit, limited
from bench.processes import WORKERS, memory
from bench.report import counts, machine, millions, options, table
from bench.workloads import WORKLOADS, Workload, write_file
from streamjoin.epoch.ports import Runner
from streamjoin.runner.inline import InlineRunner

MIB = 1 << 20
HELD_SECONDS = 13
"""W1's window and the two epochs by which the end of the window is behind what has arrived."""
AFTER = 4
"""Epochs after the window is full."""
PAUSE_SECONDS = 3.0
"""Workers give back what they do not use a second after the last epoch."""
FEW = 1000
"""Rows a side of an epoch that holds next to nothing."""
HELD_BYTES = 28
"""Of one of W1's tuples: key, unit coordinate, time and rid."""


def held(root: Path, tuples: int, runner: Runner) -> None:
    rows = []
    for name in ("W1", "W3"):
        workload, size = WORKLOADS[name], tuples // (2 * HELD_SECONDS)
        memories = []
        for per_second in (FEW, size):
            place = root / f"held-{name}-{per_second}"
            workload.generate(place, per_second, HELD_SECONDS + AFTER)
            result = timed(join(job_of(place, workload), runner)).results[-1]
            time.sleep(PAUSE_SECONDS)
            memories.append(memory()[WORKERS])
            raw = raw_bytes(place, workload)
            shutil.rmtree(place)
        count, spent = sum(map(sum, result.held.values())), memories[1] - memories[0]
        each = (raw, spent.private / count, spent.mapped / count, spent.pss / count / raw)
        rows.append([name, f"{count:,}", *(f"{value:.1f}" for value in each)])
    print("\n**Memory of a held tuple**, bytes\n")
    print(table(["", "held tuples", "raw", "private", "mapped (page cache)", "together, of raw"], rows))


def raw_bytes(root: Path, workload: Workload) -> float:
    """Of one tuple: the columns that the join needs, as Arrow has them."""
    read = pq.read_table(next((root / "in-l").glob("*.parquet")), columns=list(workload.needed))
    return float(read.nbytes / read.num_rows)


@dataclass(frozen=True)
class Larger:
    """What came of a run with more state than memory."""

    held: int
    held_bytes: int
    seconds: float
    """Of an epoch, once the window is full."""
    major_faults: int
    peak: int
    reclaims: int


def larger(root: Path, limit_mib: int, factor: float, rows: int) -> None:
    """``rows``: a side and epoch."""
    seconds = round(limit_mib * MIB * factor / HELD_BYTES / (2 * rows))
    workload = WORKLOADS["W1"]
    workload.generate(root / "larger", rows, seconds + 1 + AFTER)
    found: list[list[str]] = []
    outputs = set()
    for limit in (limit_mib * MIB, None):
        try:
            done, output = in_a_worker(root / "larger", seconds, limit)
        except NoLimit as reason:
            print(f"\nlarger: not measured with a limit: {reason}")
            continue
        except BrokenProcessPool:
            found.append([f"{limit_mib:,} MiB", "", "", "", "", "the system ended the worker for lack of memory", ""])
            continue
        outputs.add(output)
        state, rate = f"{done.held_bytes / MIB:,.0f} MiB", millions(2 * rows / done.seconds)
        peak = f"{done.peak / MIB:,.0f} MiB" if limit else ""
        name = f"{limit / MIB:,.0f} MiB" if limit else "no limit"
        print(f"  larger, {name}: {done.seconds:.2f} s an epoch", flush=True)
        found.append([name, f"{done.held:,}", state, peak, f"{done.seconds:.2f}", rate, f"{done.major_faults:,}"])
    assert len(outputs) == 1, f"the outputs differ: {outputs}"
    shutil.rmtree(root / "larger")
    print(f"\n**State larger than memory**, one worker, 2 x {rows:,} rows an epoch\n")
    print(table(["memory", "held tuples", "held", "most used", "s an epoch", "rows/s", "major faults"], found))


def in_a_worker(root: Path, window: int, limit: int | None) -> tuple[Larger, int]:
    """A run in a process of its own, and its results."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        if limit is None:
            return pool.submit(run_worker, root, window, None).result()
    with limited(limit) as group, ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(run_worker, root, window, group).result()


def run_worker(root: Path, window: int, group: Group | None) -> tuple[Larger, int]:
    if group is not None:
        group.enter()
    job = job_of(root, WORKLOADS["W1"], workers=1, window={"within": f"{window}s"})
    run = timed(join(job, InlineRunner()))
    last = run.results[-1]
    done = Larger(
        held=sum(map(sum, last.held.values())),
        held_bytes=sum(work.held_bytes for work in last.work.values()),
        seconds=statistics.median(run.seconds[-AFTER:]),
        major_faults=resource.getrusage(resource.RUSAGE_SELF).ru_majflt,
        peak=group.peak if group else 0,
        reclaims=group.reclaims if group else 0,
    )
    return done, sum(result.output for result in run.results)


def start_up(root: Path, sizes: list[int], rows: int, runner: Runner) -> None:
    """``rows``: the most a side and epoch with which the checkpoint is made."""
    found = []
    workload = WORKLOADS["W1"]
    runner.start((0, 1))  # how long Spark takes for that is not measured here
    for tuples in sizes:
        place, per_epoch = root / f"start-{tuples}", min(rows, tuples // 8)
        epochs = tuples // (2 * per_epoch)
        workload.generate(place, per_epoch, epochs)
        asked: dict[str, Any] = {"window": {"within": "10h"}, "output": False}
        began = time.perf_counter()
        made = timed(join(job_of(place, workload, **asked), InlineRunner())).results[-1]
        took = time.perf_counter() - began
        for number, cold in enumerate((True, False)):
            add_epochs(place, workload, epochs + 2 * number)
            if cold:
                evict(Path(job_of(place, workload).checkpoint) / "blocks")
            first = [f"{tuples:,}", f"{took:.0f} s", f"{made.blocks}"] if cold else ["", "", ""]
            found.append([*first, "cold" if cold else "warm", *restarted(place, workload, runner, asked)])
        shutil.rmtree(place)
    print("\n**Start from a checkpoint**, two Spark workers\n")
    header = ["tuples", "made in", "blocks", "page cache", "read back", "claim", "reading back", "first epoch", "the next"]
    print(table(header, found))


def add_epochs(root: Path, workload: Workload, number: int) -> None:
    """Two small epochs more: the one that reads back, and the next."""
    for second in (number, number + 1):
        for seed, side in enumerate("lr"):
            write_file(root / f"in-{side}", second, workload.tuples(np.random.default_rng(seed), FEW, second))


def restarted(root: Path, workload: Workload, runner: Runner, asked: dict[str, Any]) -> list[str]:
    began = time.perf_counter()
    epochs = join(job_of(root, workload, **asked), runner, fresh=False)
    first = next(epochs)
    took = time.perf_counter() - began
    claim = took - first.duration
    began = time.perf_counter()
    next(epochs)
    usual = time.perf_counter() - began
    for _ in epochs:
        raise AssertionError("two epochs were there to read")
    assert first.read_back, "the workers had the runs"
    nbytes = sum(work.held_bytes for work in first.work.values())
    return [f"{nbytes / MIB:,.0f} MiB", *(f"{spent:.2f} s" for spent in (claim, first.seconds["task.open"], first.duration, usual))]


def evict(folder: Path) -> None:
    """Take the files' pages out of the page cache; nothing may have them mapped."""
    for path in folder.rglob("*.arrow"):
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def main() -> None:
    parser = options(__doc__ or "")
    parser.add_argument("--parts", default="held,larger,start")
    parser.add_argument("--held", type=float, default=20e6, help="tuples of both sides")
    parser.add_argument("--limit-mib", type=int, default=1024)
    parser.add_argument("--factor", type=float, default=4)
    parser.add_argument("--rows", type=float, default=500_000, help="a side and epoch, of the state larger than memory")
    parser.add_argument("--start", default="10e6,100e6", help="tuples of both sides, several after commas")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.held, arguments.limit_mib, arguments.factor, arguments.rows, arguments.start = 2e6, 640, 0.6, 400_000, "1e6"
    print(machine())
    asked = arguments.parts.split(",")
    with tempfile.TemporaryDirectory(prefix="streamjoin-bench-") as name:
        root = Path(name)
        if "larger" in asked:
            larger(root, arguments.limit_mib, arguments.factor, int(arguments.rows))
        runner = spark_runner(root)
        try:
            if "held" in asked:
                held(root, int(arguments.held), runner)
            if "start" in asked:
                start_up(root, counts(arguments.start), 2_500_000, runner)
        finally:
            runner.stop()


if __name__ == "__main__":
    main()
