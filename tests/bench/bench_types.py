"""What the types of joins cost: W1 as an inner join, and as an outer, a semi and an anti join.

All hold the same tuples and find the same pairs; semi and anti write none of them. They take turns, ``--runs`` times. Compared are the
mean time of an epoch with full windows and its processor time, of driver and workers together, which other work on the machine
disturbs less; both beside the rows that an epoch gives, as outer joins give more.

    python tests/bench/bench_types.py [--rows 100000] [--runs 3] [--epochs 24] [--quick]
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from bench.engine import full, job_of, join, spark_runner, timed
from bench.processes import cpu_seconds
from bench.report import counts, machine, options, table
from bench.workloads import WORKLOADS
from streamjoin.epoch.ports import Runner
from streamjoin.language.join_type import JoinType
from streamjoin.runner.inline import InlineRunner


@dataclass(frozen=True)
class Epochs:
    """Those of a run that have full windows."""

    seconds: float
    """Of one, the mean."""
    cpu_seconds: float
    """Of one, the mean: of all processes."""
    rows: float
    """Of one, the median: results."""


def measured(root: Path, kind: JoinType, runner: Runner) -> Epochs:
    workload = WORKLOADS["W1"]
    select = [column for column in workload.select if kind.gives_pairs or column.startswith("l.")]
    epochs = join(job_of(root, workload, select=select, join_type=kind.value), runner)
    for _ in islice(epochs, full(1)):
        pass
    before = cpu_seconds()
    run = timed(epochs)
    used = (cpu_seconds() - before) / len(run.seconds)
    return Epochs(statistics.fmean(run.seconds), used, statistics.median(result.output for result in run.results))


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
        found: dict[tuple[JoinType, str], list[Epochs]] = {(kind, which): [] for kind in JoinType for which in runners}
        try:
            for _ in range(arguments.runs):
                for (kind, which), epochs in found.items():
                    epochs.append(measured(root, kind, runners[which]))
        finally:
            spark.stop()
    print(f"\n**W1 by type of join, N = {rows:,}**: results, s and ms of processor time an epoch, and of the inner join's\n")
    measures = (", s", ": of inner", ", CPU ms", ": of inner")
    print(table(["", "results", *(f"{which}{measure}" for which in runners for measure in measures)], lines(found)))


def lines(found: Mapping[tuple[JoinType, str], Sequence[Epochs]]) -> list[list[str]]:
    """By type: medians of the runs."""

    def medians(kind: JoinType, which: str) -> tuple[float, float]:
        epochs = found[kind, which]
        return statistics.median(one.seconds for one in epochs), statistics.median(one.cpu_seconds for one in epochs)

    made = []
    for kind in JoinType:
        cells = [f"{statistics.mean(one.rows for (of, _), epochs in found.items() if of is kind for one in epochs):,.0f}"]
        for which in dict.fromkeys(which for _, which in found):
            (seconds, cpu), (inner, inner_cpu) = medians(kind, which), medians(JoinType.INNER, which)
            cells += [f"{seconds:.3f}", f"{seconds / inner:.2f}", f"{cpu * 1000:.0f}", f"{cpu / inner_cpu:.2f}"]
        made.append([kind.value, *cells])
    return made


if __name__ == "__main__":
    main()
