"""What several joins over the same two streams cost in one job, beside as many jobs of one join each.

Two kinds of them, over W1's streams, whose windows and outputs differ:

- same key: bands of different widths on one pair of keys, so that tuples are cut, sent and sorted once for all joins;
- different keys: each join has a pair of keys of its own. They share no order, so every tuple meets every other one on some worker, and
  each join finds its pairs by an index of its own.

The jobs of one join run one after another on the same input; what each takes and holds is added up. All take turns, ``--runs`` times, and
each join must give as many results in every epoch together as alone. Measured are epochs with full windows: the mean time of one, and
the means of what is counted. Bytes read are of the records as they are in memory; a tuple that is sent to two workers is routed twice;
bytes held are of tuples and indexes after the last epoch. Processor time is that of driver and workers together, which other work on the
machine disturbs less.

    python tests/bench/bench_several.py [--rows 100000] [--runs 3] [--epochs 20] [--joins 1,2,4,8] [--quick]
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from bench.engine import full, job_of, join, spark_runner, timed
from bench.processes import cpu_seconds
from bench.report import counts, machine, millions, options, spread, table
from bench.workloads import IDS, NARROW, WORKLOADS, Workload, uniform
from streamjoin.epoch.ports import Runner
from streamjoin.runner.inline import InlineRunner

BOUNDS = ((5, 10), (2, 10), (10, 5), (5, 5), (1, 10), (20, 2), (3, 8), (8, 4))
"""Of each join, the first being W1's: how far keys may be apart, and event times in seconds."""
MOST = len(BOUNDS)
SAME, DIFFERENT = KINDS = ("same key", "different keys")


class ManyKeys(Workload):
    """W1 with a key column for each join."""

    def tuples(self, rng: np.random.Generator, rows: int, second: int) -> dict[str, Any]:
        return WORKLOADS["W1"].tuples(rng, rows, second) | {name: uniform(rng, rows) for name in self.columns if name not in NARROW}


WORKLOAD = ManyKeys("W1", uniform, NARROW | {f"k{number}": "BIGINT" for number in range(1, MOST)}, (), IDS)


@dataclass(frozen=True)
class Epochs:
    """Those of a run that have full windows; the counts are of one."""

    seconds: float
    """The mean."""
    cpu_seconds: float
    read_bytes: float
    routed: float
    held_bytes: float
    """After the last."""


Output = Mapping[str, Sequence[int]]
"""By join, the results of every epoch of a run."""


def key_of(kind: str, number: int) -> str:
    """The column by which the join with this number joins."""
    return f"k{number}" if kind == DIFFERENT and number else "k"


def joins_of(root: Path, kind: str, numbers: Sequence[int]) -> list[dict[str, Any]]:
    """The joins with these numbers, as a manifest has them."""
    made = []
    for number in numbers:
        (band, seconds), key = BOUNDS[number], key_of(kind, number)
        select = [*IDS, "r.v - l.v AS difference"] if number % 2 else list(IDS)
        made.append(
            {
                "name": f"j{number}",
                "condition": f"abs(l.{key} - r.{key}) <= {band}",
                "window": {"within": f"{seconds}s"},
                "output": {"select": select, "sink": {"files": {"path": str(root / "out" / str(number)), "format": "parquet"}}},
            }
        )
    return made


def measured(root: Path, kind: str, numbers: Sequence[int], runner: Runner) -> tuple[Epochs, Output]:
    """A run of one job with the joins of these numbers, which reads no other keys than theirs."""
    columns = NARROW | {key_of(kind, number): "BIGINT" for number in numbers}
    epochs = join(job_of(root, replace(WORKLOAD, columns=columns), joins=joins_of(root, kind, numbers)), runner)
    first = list(islice(epochs, full(1)))
    before = cpu_seconds()
    run = timed(epochs)
    used = (cpu_seconds() - before) / len(run.seconds)
    mean = {name: statistics.mean(sum(result.counts[name]) for result in run.results) for name in ("input_bytes", "routed")}
    held = sum(task.held_bytes for task in run.results[-1].work.values())
    output = {f"j{number}": [result.joins[f"j{number}"].output for result in (*first, *run.results)] for number in numbers}
    return Epochs(statistics.fmean(run.seconds), used, mean["input_bytes"], mean["routed"], held), output


def compared(root: Path, kind: str, sizes: Sequence[int], runner: Runner) -> dict[int, tuple[Epochs, Epochs]]:
    """By number of joins: one job with all of them, and the sum of jobs with one each. Raises SystemExit when results differ."""
    alone, expected = [], {}
    for number in range(max(sizes)):
        epochs, output = measured(root, kind, [number], runner)
        alone.append(epochs)
        expected |= output
    found = {}
    for size in sizes:
        together, output = measured(root, kind, range(size), runner)
        for name, results in output.items():
            if results != expected[name]:
                raise SystemExit(f"{kind}: of {size} joins, {name} gave {results} results an epoch, and by itself {expected[name]}")
        found[size] = together, added(alone[:size])
    return found


def added(runs: Sequence[Epochs]) -> Epochs:
    return Epochs(*(sum(getattr(run, name) for run in runs) for name in Epochs.__dataclass_fields__))


def main() -> None:
    parser = options(__doc__ or "")
    parser.add_argument("--rows", default="100000", help="a side and second")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=20, help="files a side; the first 11 fill the window")
    parser.add_argument("--joins", default="1,2,4,8", help=f"how many, at most {MOST}")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.rows, arguments.runs, arguments.epochs, arguments.joins = "2000", 1, 13, "1,4"
    print(machine())
    (rows,), sizes = counts(arguments.rows), counts(arguments.joins)
    found: dict[tuple[str, str], list[dict[int, tuple[Epochs, Epochs]]]] = {}
    with tempfile.TemporaryDirectory(prefix="streamjoin-bench-") as name:
        root = Path(name)
        WORKLOAD.generate(root, rows, arguments.epochs)
        spark = spark_runner(root)
        runners: dict[str, Runner] = {"Spark, 2 workers": spark, "inline, 1 core": InlineRunner()}
        try:
            for _ in range(arguments.runs):
                for kind in KINDS:
                    for which, runner in runners.items():
                        found.setdefault((kind, which), []).append(compared(root, kind, sizes, runner))
        finally:
            spark.stop()
    for (kind, which), runs in found.items():
        print(f"\n**{kind.capitalize()}, {which}, N = {rows:,}**: joins of one job, and in brackets as many jobs of one join\n")
        print(table(["joins", "rows/s", "ratio", "CPU ms an epoch", "ratio", *COUNTED], lines(runs, 2 * rows)))


COUNTED = ("MB read", "tuples routed", "MB held")


def lines(runs: Sequence[Mapping[int, tuple[Epochs, Epochs]]], rows: int) -> list[list[str]]:
    """By number of joins: medians of the runs. ``rows``: of an epoch."""
    made = []
    for size in runs[0]:
        pairs = [run[size] for run in runs]
        together, apart = (
            Epochs(*(statistics.median(getattr(pair[side], name) for pair in pairs) for name in Epochs.__dataclass_fields__))
            for side in range(2)
        )
        faster = spread([alone.seconds / one.seconds for one, alone in pairs], 2)
        cpu = spread([one.cpu_seconds / alone.cpu_seconds for one, alone in pairs], 2)
        counted = [
            f"{one / unit:,.{digits}f} ({alone / unit:,.{digits}f}): {one / alone:.2f}"
            for one, alone, unit, digits in (
                (together.read_bytes, apart.read_bytes, 1e6, 1),
                (together.routed, apart.routed, 1, 0),
                (together.held_bytes, apart.held_bytes, 1e6, 0),
            )
        ]
        speeds = f"{millions(rows / together.seconds)} ({millions(rows / apart.seconds)})"
        made.append([str(size), speeds, faster, f"{together.cpu_seconds * 1000:.0f} ({apart.cpu_seconds * 1000:.0f})", cpu, *counted])
    return made


if __name__ == "__main__":
    main()
