"""What it saves when workers share executors: memory and start-up time of four workers on four executors, on two and on one.

Each way is a process of its own that starts a driver, its executors as on a cluster (local-cluster, with the heap that pods have) and four
workers, and joins W1 until the window is full. Started: all four workers have called the driver. Memory is PSS of the executors' JVMs and
of their Python processes, at the end of the join.

NB: here all executors are on one machine, and share what they map: libraries, the archive of Spark's classes, blocks. On machines of
their own they do not, so that sharing an executor saves more there.

    python tests/bench/bench_executors.py [--held 10e6] [--runs 3] [--quick]
"""

from __future__ import annotations

import multiprocessing
import statistics
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from bench.engine import job_of, join, spark_runner, timed
from bench.processes import EXECUTORS, WORKERS, Memory, memory
from bench.report import machine, options, spread, table
from bench.workloads import FULL_AFTER, WORKLOADS
from streamjoin.elastic.deployment import executors_for

MIB = 1 << 20
COUNT = 4
"""Workers."""
EPOCHS = FULL_AFTER + 4
HEAP_MIB = 256
"""As the operator has it (``streamjoin_operator.memory``)."""


@dataclass(frozen=True)
class Found:
    """What one run took."""

    seconds: float
    """Until all workers were there."""
    jvms: Memory
    python: Memory
    outputs: tuple[int, ...]
    """By epoch."""


def run(root: Path, per_executor: int) -> Found:
    executors = executors_for(COUNT, per_executor)
    runner = spark_runner(
        root,
        executor_memory_mib=HEAP_MIB,
        master=f"local-cluster[{executors},{per_executor},{HEAP_MIB}]",
        workers_per_executor=per_executor,
        conf={"spark.testing.reservedMemory": str(64 * MIB)},
    )
    try:
        began = time.perf_counter()
        runner.start(range(COUNT))
        assert runner.ready == COUNT, "the workers did not come in time"
        took = time.perf_counter() - began
        results = timed(join(job_of(root, WORKLOADS["W1"], workers=COUNT), runner)).results
        found = memory()
    finally:
        runner.stop()
    return Found(took, found[EXECUTORS], found[WORKERS], tuple(result.output for result in results))


def main() -> None:
    parser = options(__doc__ or "")
    parser.add_argument("--held", type=float, default=10e6, help="tuples of both sides")
    parser.add_argument("--runs", type=int, default=3)
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.held, arguments.runs = 1e5, 1
    print(machine())
    ways: dict[int, list[Found]] = {1: [], 2: [], 4: []}
    with tempfile.TemporaryDirectory(prefix="streamjoin-bench-") as name:
        root = Path(name)
        WORKLOADS["W1"].generate(root, int(arguments.held) // (2 * FULL_AFTER), EPOCHS)
        for _ in range(arguments.runs):
            for per_executor, found in ways.items():
                with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
                    found.append(pool.submit(run, root, per_executor).result())
    outputs = {one.outputs for found in ways.values() for one in found}
    assert len(outputs) == 1, f"the outputs differ: {outputs}"
    rows = []
    for per_executor, found in ways.items():
        parts = [
            [one.jvms.pss for one in found],
            [one.python.private for one in found],
            [one.python.mapped for one in found],
            [one.jvms.pss + one.python.pss for one in found],
        ]
        sizes = (f"{statistics.median(part) / MIB:,.0f}" for part in parts)
        rows.append([f"{executors_for(COUNT, per_executor)} x {per_executor}", spread([one.seconds for one in found], 1), *sizes])
    print(f"\n**Workers that share executors**, {arguments.held:,.0f} tuples held, MiB\n")
    print(table(["executors x workers", "started, s", "JVMs", "Python, private", "Python, mapped", "together"], rows))


if __name__ == "__main__":
    main()
