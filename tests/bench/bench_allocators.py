"""What workers gain by allocators that keep an epoch's pages for the next one (``spark.ENVIRONMENT``), with and without in turns.

    python tests/bench/bench_allocators.py [--workload W3] [--rows 1e5] [--epochs 30] [--rounds 3] [--quick]

Of the two workers' processes: the processor time of all epochs but the first third, and the most memory that one of them has had.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import psutil

from bench.engine import job_of, join, spark_runner
from bench.processes import WORKERS, processes
from bench.report import machine, options, table
from bench.workloads import WORKLOADS
from streamjoin.runner import spark


def peak(process: psutil.Process) -> float:
    """MiB."""
    line = next(line for line in Path(f"/proc/{process.pid}/status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) / 1024


def run(root: Path, workload: str, epochs: int) -> tuple[float, float]:
    """Seconds of processor time, and MiB."""
    runner = spark_runner(root)
    began: dict[psutil.Process, float] = {}
    for number, _ in enumerate(join(job_of(root, WORKLOADS[workload]), runner)):
        if number == epochs // 3:
            began = {process: sum(process.cpu_times()[:2]) for kind, process in processes() if kind == WORKERS}
    found = sum(sum(process.cpu_times()[:2]) - before for process, before in began.items()), max(map(peak, began))
    runner.stop()
    return found


def main() -> None:
    parser = options(__doc__ or "")
    parser.add_argument("--workload", default="W3", choices=sorted(WORKLOADS))
    parser.add_argument("--rows", type=float, default=1e5, help="a side and epoch")
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--one", nargs=2, metavar=("ROOT", "WITH"), help="for this program itself")
    given = parser.parse_args()
    if given.one:
        if given.one[1] == "without":
            spark.ENVIRONMENT = {"OPENBLAS_NUM_THREADS": "1"}
        print(json.dumps(run(Path(given.one[0]), given.workload, given.epochs)))
        return
    rows, epochs, rounds = (1000, 13, 1) if given.quick else (int(given.rows), given.epochs, given.rounds)
    print(machine())
    spent: dict[str, list[tuple[float, float]]] = {"with": [], "without": []}
    with tempfile.TemporaryDirectory() as name:
        WORKLOADS[given.workload].generate(Path(name), rows, epochs)
        for _ in range(rounds):
            for way, found in spent.items():
                command = [sys.executable, __file__, "--workload", given.workload, "--epochs", str(epochs), "--one", name, way]
                done = subprocess.run(command, capture_output=True, text=True, check=True)
                found.append(tuple(json.loads(done.stdout.splitlines()[-1])))
    ratios = [b[0] / a[0] for a, b in zip(spent["with"], spent["without"], strict=True)]
    lines = [[way, *(f"{statistics.median(column):.2f}" for column in zip(*found, strict=True))] for way, found in spent.items()]
    print(table(["", "processor time, s", "most memory, MiB"], lines))
    print(f"without, of with: {', '.join(f'{ratio:.2f}' for ratio in ratios)}")


if __name__ == "__main__":
    main()
