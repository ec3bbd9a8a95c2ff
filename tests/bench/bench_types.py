"""What the types of joins cost: W1 as an inner join, and as an outer, a semi and an anti join.

All hold the same tuples and find the same pairs; semi and anti write none of them. They take turns, ``--runs`` times; what is compared is
the median time of an epoch with full windows.

    python tests/bench/bench_types.py [--rows 100000] [--runs 3] [--epochs 24] [--quick]
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from bench.engine import full, job_of, join, spark_runner, timed
from bench.report import counts, machine, options, table
from bench.workloads import WORKLOADS
from streamjoin.epoch.ports import Runner
from streamjoin.language.join_type import JoinType
from streamjoin.runner.inline import InlineRunner


def epoch_seconds(root: Path, kind: JoinType, runner: Runner) -> float:
    workload = WORKLOADS["W1"]
    select = [column for column in workload.select if kind.gives_pairs or column.startswith("l.")]
    job = job_of(root, workload, select=select, join_type=kind.value)
    return statistics.median(timed(join(job, runner)).seconds[full(1) :])


def main() -> None:
    parser = options(__doc__ or "")
    parser.add_argument("--rows", default="100000", help="a side and second")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=24, help="files a side; the first 11 fill the window")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.rows, arguments.runs, arguments.epochs = "2000", 1, 14
    print(machine())
    (rows,) = counts(arguments.rows)
    with tempfile.TemporaryDirectory(prefix="streamjoin-bench-") as name:
        root = Path(name)
        WORKLOADS["W1"].generate(root, rows, arguments.epochs)
        spark = spark_runner(root)
        runners: dict[str, Runner] = {"Spark, 2 workers": spark, "inline, 1 core": InlineRunner()}
        found: dict[tuple[JoinType, str], list[float]] = {(kind, which): [] for kind in JoinType for which in runners}
        try:
            for _ in range(arguments.runs):
                for (kind, which), seconds in found.items():
                    seconds.append(epoch_seconds(root, kind, runners[which]))
        finally:
            spark.stop()
    print(f"\n**W1 by type of join, N = {rows:,}**: s an epoch, and of the inner join's\n")
    medians = {key: statistics.median(seconds) for key, seconds in found.items()}
    header = ["", *(f"{which}{more}" for which in runners for more in ("", ": of inner"))]
    lines = []
    for kind in JoinType:
        cells = [(medians[kind, which], medians[kind, which] / medians[JoinType.INNER, which]) for which in runners]
        lines.append([kind.value, *(text for seconds, ratio in cells for text in (f"{seconds:.3f}", f"{ratio:.2f}"))])
    print(table(header, lines))


if __name__ == "__main__":
    main()
