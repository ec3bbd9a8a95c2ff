"""What a driver costs by itself, by the number of workers: CPU, memory and bytes an epoch. ``python tests/bench/bench_driver.py``

The workers are stand-ins that answer at once, behind the runner's protocol: each reports two blocks of its own an epoch, as small ones that
go with the commit, or as files' names; no tuple is read or joined. A window of ten epochs is full before anything is measured, so
that as many blocks expire as come. Processor seconds are the driver's: those of the stand-ins are taken away.

    python tests/bench/bench_driver.py [--workers 1,10,100,1000] [--epochs 20] [--quick]
"""

from __future__ import annotations

import pickle
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import psutil

from bench.engine import job_of, join
from bench.report import counts, machine, options, table
from bench.workloads import FULL_AFTER, WORKLOADS
from harness import SECOND, START
from streamjoin.epoch.ports import Running
from streamjoin.epoch.reports import RouteReport, TaskReport
from streamjoin.epoch.spec import EpochSpec, Shared
from streamjoin.language.sides import SIDES
from streamjoin.scheme.tiling import UNITS
from streamjoin.state.blocks import Block

ROWS = 1000
"""Records a side and epoch: they are only counted."""
BLOCK_BYTES = 512
"""Of each small block: of ten tuples or so."""
BEYOND = 3
"""Epochs before the measured ones, once the window is full."""


class AnswersAtOnce:
    """A runner without workers. Always holds: an epoch's reports follow from its spec alone, but for the tokens of those in flight."""

    absence = waits_for = None
    moved_at = float("-inf")
    overlaps = True

    def __init__(self, *, small: bool) -> None:
        self.small = small
        self.ready = 0
        self.seconds = 0.0
        """Processor seconds that went into answers."""
        self.spec_bytes = self.report_bytes = 0
        """Of the last epoch: what is sent to each worker, without what it has from before; and what all send back."""
        self.tokens: dict[int, dict[int, str]] = {}
        """By epoch and task; of the last two."""

    def start(self, workers: Sequence[int], least: int = 1) -> None:
        self.ready = len(workers)

    def request(self, count: int) -> None:
        self.ready = max(count, self.ready)

    executors: Mapping[int, str] = {}
    leaving: Mapping[int, float] = {}

    def release(self, workers: Sequence[int], places: int | None = None) -> None:
        self.ready = len(workers)

    def stop(self) -> None:
        """Nobody is there to stop."""

    def submit(self, spec: EpochSpec, workers: Sequence[int]) -> Running:
        return _Answers(self, spec, len(workers))


class _Answers:
    def __init__(self, runner: AnswersAtOnce, spec: EpochSpec, tasks: int) -> None:
        began = time.process_time()
        self._runner = runner
        before = spec.tokens if spec.follows is None else runner.tokens[spec.follows]
        tokens = {task: f"{spec.incarnation}-{spec.epoch}-{task}" for task in range(tasks)}
        runner.tokens = {spec.epoch: tokens} if spec.follows is None else {spec.follows: runner.tokens[spec.follows], spec.epoch: tokens}
        self._reports = [self._report(spec, task, tokens[task], before.get(task)) for task in range(tasks)]
        for index, (stream, _) in enumerate(spec.splits):
            newest = START + spec.epoch * SECOND
            route = RouteReport(stream, ROWS, accepted=ROWS, routed=ROWS, input_bytes=24 * ROWS, routed_bytes=24 * ROWS, time_max=newest)
            self._reports[index % tasks].routes.append(route)
        runner.spec_bytes = len(pickle.dumps(spec.with_shared(lambda shared: Shared(shared.identity, b""))))
        runner.report_bytes = len(pickle.dumps(self._reports))
        runner.seconds += time.process_time() - began

    def _report(self, spec: EpochSpec, task: int, token: str, opened: str | None) -> TaskReport:
        newest = START + spec.epoch * SECOND
        report = TaskReport(task, token, opened, held=(10 * ROWS, 10 * ROWS), held_bytes=(240 * ROWS, 240 * ROWS), seconds={"probe": 0.001})
        for side in SIDES:
            name = f"blocks/{token}-{side}"
            keys = task * 1000, task * 1000 + 999
            report.blocks.append(Block(name, side, spec.generation, task, 10, BLOCK_BYTES, *keys, 0, UNITS - 1, newest - SECOND, newest))
            if self._runner.small:
                report.small_blocks[name] = bytes(BLOCK_BYTES)
        report.outputs["near"] = report.admitted["near"] = 10
        return report

    def result(self) -> list[TaskReport]:
        return self._reports

    def cancel(self) -> None:
        """Nothing is under way."""


def measured(root: Path, workers: int, epochs: int, *, small: bool) -> list[str]:
    """A row of the table."""
    workload, process = WORKLOADS["W1"], psutil.Process()
    runner = AnswersAtOnce(small=small)
    job = job_of(root, workload, workers=workers, output=False)
    cpu, written, latencies = [], [], []
    started = (time.process_time(), runner.seconds, process.io_counters().write_chars, time.perf_counter())
    for _ in join(job, runner):
        now = (time.process_time(), runner.seconds, process.io_counters().write_chars, time.perf_counter())
        cpu.append(now[0] - started[0] - (now[1] - started[1]))
        written.append(now[2] - started[2])
        latencies.append(now[3] - started[3])
        started = now
    first = FULL_AFTER + BEYOND
    assert len(cpu) == first + epochs, f"{len(cpu)} epochs"
    return [
        f"{workers:,}, {'small blocks' if small else 'files'}", f"{statistics.median(cpu[first:]) * 1e3:.1f}",
        f"{statistics.mean(written[first:]) / 1e3:,.0f}", f"{runner.spec_bytes / 1e3:.1f}", f"{runner.report_bytes / 1e3:,.0f}",
        f"{process.memory_info().rss / 2**20:.0f}",
    ]  # fmt: skip


def main() -> None:
    parser = options(__doc__ or "")
    parser.add_argument("--workers", type=counts, default=counts("1,10,100,300,1000,3000"))
    parser.add_argument("--epochs", type=int, default=20)
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.workers, arguments.epochs = [1, 100], 3
    print(machine())
    header = ["workers", "CPU an epoch, ms", "written an epoch, kB", "sent to each, kB", "answers of all, kB", "resident, MiB"]
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        WORKLOADS["W1"].generate(root, ROWS, FULL_AFTER + BEYOND + arguments.epochs)
        for workers in arguments.workers:
            for small in (True, False):
                rows.append(measured(root, workers, arguments.epochs, small=small))
                print(rows[-1], flush=True)
    print(f"\n{table(header, rows)}")


if __name__ == "__main__":
    main()
