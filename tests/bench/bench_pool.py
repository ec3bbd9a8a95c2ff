"""What workers cost the driver: its CPU time for an epoch of so many workers that answer at once, without anything to join.

The workers are connections of one other process, as workers have them; reports are those of a real epoch.

    python tests/bench/bench_pool.py [--workers 2,16,50,200] [--epochs 100] [--quick]
"""

from __future__ import annotations

import asyncio
import multiprocessing
import statistics
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import pyarrow as pa

from bench.report import counts, machine, options, table
from harness import START, Input, driver_for, make_batch, make_job, run_all
from streamjoin.epoch.ports import Running
from streamjoin.epoch.reports import TaskReport
from streamjoin.epoch.spec import EpochSpec
from streamjoin.runner.collecting import collect_seldom
from streamjoin.runner.control import Connection, call
from streamjoin.runner.inline import InlineRunner
from streamjoin.runner.messages import Done, End, Hello, Work, decode, encode
from streamjoin.runner.pool import Pool
from streamjoin.runner.security import Security
from streamjoin.state.storage import ObjectStorage


class Recording(InlineRunner):
    """Keeps the last epoch's spec and report."""

    spec: EpochSpec
    report: TaskReport

    def submit(self, spec: EpochSpec, workers: Any) -> Any:
        self.spec = spec
        running: Running = super().submit(spec, workers)
        recorder = self

        class Seen:
            def result(self) -> list[TaskReport]:
                reports = running.result()
                recorder.report = reports[0]
                return reports

            def cancel(self) -> None:
                running.cancel()

        return Seen()


class NoHosts:
    """Workers come by themselves."""

    def bring(self, place: int) -> None: ...

    def end(self, place: int) -> None: ...

    def replace(self, place: int) -> None: ...

    def lost(self) -> str | None:
        return None


def answer_at_once(address: str, security: Security, workers: int, report: TaskReport) -> None:
    async def answer() -> None:
        calls = [call(address, security, lambda connection: Answering(connection, report).heard) for _ in range(workers)]
        connections = await asyncio.gather(*calls)
        for place, connection in enumerate(connections):
            connection.say(encode(Hello(place, f"10.0.0.{place}:1", place, "host", "", None)))
        await asyncio.wait([connection.over for connection in connections])

    asyncio.run(answer())


class Answering:
    def __init__(self, connection: Connection, report: TaskReport) -> None:
        self._connection, self._report = connection, report

    def heard(self, message: bytes) -> None:
        said = decode(message)
        if isinstance(said, End):
            self._connection.close()
        elif isinstance(said, Work):
            self._connection.say(encode(Done(said.attempt, [replace(self._report, task=task) for task in said.tasks])))


def measure(workers: int, epochs: int, spec: EpochSpec, report: TaskReport) -> tuple[float, float]:
    """The driver's seconds of CPU an epoch, and the epoch's by the clock."""
    security = Security.fresh()
    pool = Pool(lambda pool: NoHosts(), security)
    context = multiprocessing.get_context("spawn")
    others = context.Process(target=answer_at_once, args=(pool.address, security, workers, report), daemon=True)
    others.start()
    pool.want(workers)
    pool.await_connected(workers, 60)
    collect_seldom()  # as ``streamjoin run`` does
    took = []
    busy = 0.0
    for epoch in range(epochs + 10):
        began, used = time.perf_counter(), time.process_time()
        reports = pool.submit(spec, range(workers)).result()
        if epoch >= 10:
            took.append(time.perf_counter() - began)
            busy += time.process_time() - used
        assert len(reports) == workers
    pool.close()
    others.kill()
    return busy / epochs, statistics.median(took)


def main() -> None:
    parser = options(__doc__ or "")
    parser.add_argument("--workers", default="2,16,50,200", help="several after commas")
    parser.add_argument("--epochs", type=int, default=100)
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.workers, arguments.epochs = "2,8", 10
    print(machine())
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory)
        job = make_job(root, types=("BIGINT", "BIGINT"), on="l.k = r.k", window={"within": "5s"}, workers=1)
        rows = [make_batch([(row, row, 0, START) for row in range(100)], pa.int64())]
        runner = Recording()
        run_all(driver_for(job, (Input(rows, [1]), Input(rows, [1])), ObjectStorage(str(root / "state")), runner))
    lines = []
    for workers in counts(arguments.workers):
        busy, took = measure(workers, arguments.epochs, runner.spec, runner.report)
        lines.append([workers, f"{busy * 1e3:.1f}", f"{busy / workers * 1e6:.0f}", f"{took * 1e3:.1f}"])
    print()
    print(table(["workers", "driver's CPU an epoch, ms", "us a worker", "the epoch, ms"], lines))


if __name__ == "__main__":
    main()
