"""Whole joins against other ways to do the same work on the same cores, what durable state and exactly-once output cost, and skew.

The workloads W1, W2 and W3 are in ``workloads.py``, the others' joins in ``rivals.py``. What is measured is the time of an epoch once the
window is full, for epochs of one second of event time, and in W1 also for the epoch size that suits each way best: every size of
``--sizes`` is tried once, and the best is measured again. All ways of all workloads take turns, ``--runs`` times, and must agree on the
number of results. Spark's own stream-stream join is slow: it gets fewer epochs, and where N is above 200,000 one run, whose first epoch
fills the window.

    python tests/bench/bench_join.py [--rows 100000,1000000] [--workloads w1,w2z1,w2z2,w3] [--runs 5] [--epochs 24] [--sizes 4,10] [--quick]
"""

from __future__ import annotations

import shutil
import statistics
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from bench import rivals
from bench.engine import Costs, full, job_of, join, spark_runner, timed
from bench.report import counts, machine, millions, options, spread, table
from bench.rivals import Timed
from bench.workloads import FULL_AFTER, SHORT, WORKLOADS, Workload, timed_epochs
from streamjoin.epoch.ports import Runner
from streamjoin.runner.inline import InlineRunner

OURS = "StreamJoin on Spark"
SLOW = "Spark's stream-stream join"
WITHOUT = {
    "without output (counted and dropped)": Costs(output=False),
    "without durable state": Costs(durable=False),
    "without both": Costs(durable=False, output=False),
}
SLOW_EPOCHS = 15
SLOW_EPOCHS_ONCE = FULL_AFTER + 2
SLOW_ONCE_ABOVE = 200_000
MOST_IN_MEMORY = 200_000
"""Rows a side and second: Spark holds them as Java objects, in the heap."""
MEASURED = 2
"""So many epochs of a larger size are measured, once the window is full."""


@dataclass(frozen=True)
class PathPlan:
    """One way to do the join: (input, workload, files, files a side of each epoch) -> seconds and results of each epoch. A slow one also
    takes how many of the first files it may read at once."""

    name: str
    run: Callable[..., Timed]
    w1_only: bool = False
    sized: bool = True
    """Whether its best epoch size is looked for."""
    slow: bool = False
    """It gets fewer epochs, and one run where N is large."""
    most_rows: int | None = None
    """The largest N that it can hold the state of."""


def streamjoin(runner: Runner, costs: Costs = Costs()) -> Callable[[Path, Workload, int, int], Timed]:  # noqa: B008
    def run(root: Path, workload: Workload, files: int, seconds: int) -> Timed:
        assert files % seconds == 0
        job = job_of(root, workload, seconds=seconds, output=costs.output)
        with first_files(root, files):
            done = timed(join(job, runner, durable=costs.durable))
        return list(done.seconds), [result.output for result in done.results]

    return run


class first_files:  # noqa: N801 - read as a phrase
    """Hides the input beyond the first ``files`` of each side: the engine takes all that it finds."""

    def __init__(self, root: Path, files: int) -> None:
        self._moved = [
            (path, root / "hidden" / f"{side}-{path.name}")
            for side in "lr"
            for path in sorted((root / f"in-{side}").glob("*.parquet"))[files:]
        ]
        (root / "hidden").mkdir(exist_ok=True)

    def __enter__(self) -> None:
        for path, hidden in self._moved:
            path.rename(hidden)

    def __exit__(self, *failure: object) -> None:
        for path, hidden in self._moved:
            hidden.rename(path)


def ways(spark: Runner) -> list[PathPlan]:
    found = [
        PathPlan(OURS, streamjoin(spark)),
        *(PathPlan(name, streamjoin(spark, costs), w1_only=True, sized=False) for name, costs in WITHOUT.items()),
        PathPlan("StreamJoin, inline runner (one core)", streamjoin(InlineRunner())),
    ]
    for engine in ("in-memory", "streaming"):
        found.append(
            PathPlan(
                f"Polars, {engine} engine",
                lambda root, workload, files, seconds, engine=engine: timed_epochs(  # type: ignore[misc]
                    rivals.polars(root, workload, files, seconds, engine)
                ),
            )
        )
    found.append(PathPlan("DuckDB", lambda *arguments: timed_epochs(rivals.duckdb(*arguments))))
    found.append(PathPlan("foreachBatch, toArrow, DuckDB", in_a_process(rivals.foreach_batch)))
    for state in rivals.PROVIDERS:
        slow = in_a_process(partial(rivals.stream_stream, state=state))
        most = MOST_IN_MEMORY if state == "memory" else None
        found.append(PathPlan(f"{SLOW}, state in {state}", slow, w1_only=True, sized=False, slow=True, most_rows=most))
    return found


def in_a_process(way: Callable[..., Timed]) -> Callable[..., Timed]:
    return lambda root, workload, *sizes: rivals.in_a_process(way, root, workload.name, *sizes)


class Comparison:
    """All ways of all workloads for one N."""

    def __init__(self, root: Path, rows: int, workloads: list[Workload], epochs: int, sizes: list[int], runs: int) -> None:
        self._root, self._rows, self._workloads, self._epochs, self._runs = root, rows, workloads, epochs, runs
        self._files = {size: (full(size) + MEASURED) * size for size in sizes} | {1: epochs}
        self._seconds: dict[tuple[str, str, int], list[float]] = {}
        """(workload, way, size) -> the mean epoch of each run."""
        self._tried: dict[tuple[str, int], float] = {}
        """(way, size) -> rows a second, in the one run that looks for W1's best size."""
        self._outputs: dict[tuple[str, int], dict[str, int]] = {}
        """(workload, files) -> results of each way."""
        self._pairs: dict[str, float] = {}
        """Workload -> results of an epoch once the window is full."""

    def measure(self, found: list[PathPlan]) -> None:
        found = [way for way in found if self._rows <= (way.most_rows or self._rows)]
        for workload in self._workloads:
            files = max(self._files.values()) if workload.name == "W1" else self._epochs
            workload.generate(self._directory(workload), self._rows, files)
        for number in range(self._runs):
            for workload in self._workloads:
                for way in found:
                    if (workload.name == "W1" or not way.w1_only) and not (self._is_once(way) and number):
                        self._once(way, workload, 1)
        if any(workload.name == "W1" for workload in self._workloads):
            self._sizes([way for way in found if way.sized])
        for (name, files), outputs in self._outputs.items():
            assert len(set(outputs.values())) == 1, f"{name}, {files} files a side: the outputs differ: {outputs}"

    def _is_once(self, way: PathPlan) -> bool:
        return way.slow and self._rows > SLOW_ONCE_ABOVE

    def _directory(self, workload: Workload) -> Path:
        # Spark takes a comma in its directory's name for the end of it.
        return self._root / next(short for short, name in SHORT.items() if name == workload.name)

    def _sizes(self, found: list[PathPlan]) -> None:
        """Look for each way's best size, and measure it again."""
        w1 = WORKLOADS["W1"]
        for way in found:
            self._tried[way.name, 1] = 2 * self._rows / statistics.median(self._seconds["W1", way.name, 1])
            for size in self._files:
                if size > 1:
                    self._tried[way.name, size] = 2 * self._rows * size / self._once(way, w1, size)
                    print(f"  tried: {way.name}, {size} s epochs: {self._tried[way.name, size]:,.0f} rows/s", flush=True)
        for _ in range(self._runs - 1):
            for way in found:
                if (best := self._best(way.name)) > 1:
                    self._once(way, w1, best)

    def _best(self, way: str) -> int:
        return max((size for name, size in self._tried if name == way), key=lambda size: self._tried[way, size])

    def _once(self, way: PathPlan, workload: Workload, size: int) -> float:
        once, files = self._is_once(way), self._files[size]
        if way.slow:
            files = min(files, SLOW_EPOCHS_ONCE if once else SLOW_EPOCHS)
        seconds, outputs = way.run(self._directory(workload), workload, files, size, *([FULL_AFTER] if once else []))
        assert len(seconds) * size == files, f"{way.name}: {len(seconds)} epochs, not {files // size}"
        mean = statistics.fmean(seconds[full(size) :])  # epochs that are in flight together end together: one says little
        self._seconds.setdefault((workload.name, way.name, size), []).append(mean)
        self._outputs.setdefault((workload.name, files), {})[way.name] = sum(outputs)
        if way.name == OURS and size == 1:
            self._pairs[workload.name] = statistics.median(outputs[full(size) :])
            for fewer in (SLOW_EPOCHS, SLOW_EPOCHS_ONCE):
                self._outputs.setdefault((workload.name, fewer), {})[way.name] = sum(outputs[:fewer])
        print(f"  {workload.name}, {way.name}, {size} s epochs: {mean:.3f} s an epoch", flush=True)
        return mean

    def _rate(self, workload: str, way: str, size: int = 1) -> float:
        return 2 * self._rows * size / statistics.median(self._seconds[workload, way, size])

    def print(self) -> None:
        for workload in self._workloads:
            print(f"\n**{workload.name}, N = {self._rows:,}** ({self._pairs[workload.name]:,.0f} results an epoch)\n")
            names = [way for name, way, size in self._seconds if name == workload.name and size == 1 and way not in WITHOUT]
            print(self._table(workload.name, names))
        costs = [name for name in WITHOUT if ("W1", name, 1) in self._seconds]
        if costs:
            print(f"\n**What it costs, W1, N = {self._rows:,}**, 1 s epochs\n")
            print(table(["", "s an epoch", "rows/s", "of all its time"], [self._cost(name) for name in (OURS, *costs)]))
        skewed = [workload.name for workload in self._workloads if workload.name.startswith("W2")]
        if skewed and ("W1", OURS, 1) in self._seconds:
            print(f"\n**Skew, N = {self._rows:,}**, {OURS}\n")
            print(table(["", "results an epoch", "results/s", "of W1's"], [self._skew(name) for name in ("W1", *skewed)]))

    def _cost(self, name: str) -> list[str]:
        share = self._rate("W1", OURS) / self._rate("W1", name)
        return [name, spread(self._seconds["W1", name, 1]), millions(self._rate("W1", name)), f"{share:.2f}"]

    def _skew(self, workload: str) -> list[str]:
        def pairs(name: str) -> float:
            return self._pairs[name] / statistics.median(self._seconds[name, OURS, 1])

        return [workload, f"{self._pairs[workload]:,.0f}", millions(pairs(workload)), f"{pairs(workload) / pairs('W1'):.2f}"]

    def _table(self, workload: str, names: list[str]) -> str:
        sizes = bool(self._tried) and workload == "W1"
        rows = [
            [name, spread(self._seconds[workload, name, 1]), *self._beside(workload, name, 1), *(self._at_best(name) if sizes else [])]
            for name in names
        ]
        header = ["", "1 s epochs: s an epoch", "rows/s", "StreamJoin's / these"]
        return table([*header, *(["best epochs", "rows/s", "StreamJoin's / these"] if sizes else [])], rows)

    def _beside(self, workload: str, name: str, size: int, our_size: int = 1) -> list[str]:
        rate = self._rate(workload, name, size)
        return [millions(rate), f"{self._rate(workload, OURS, our_size) / rate:.2f}"]

    def _at_best(self, name: str) -> list[str]:
        best = self._best(name) if (name, 1) in self._tried else 1
        return [f"{best} s", *self._beside("W1", name, best, self._best(OURS))]


def main() -> None:
    parser = options(__doc__ or "")
    parser.add_argument("--rows", default="100000,1000000", help="N, several after commas")
    parser.add_argument("--workloads", default="w1,w2z1,w2z2,w3")
    parser.add_argument("--epochs", type=int, default=24, help="files a side; the first 11 fill the window")
    parser.add_argument("--sizes", default="4,10", help="seconds of event time of an epoch that are tried besides 1")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--without", default="", help="ways to leave out: any part of their names, several after commas")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.rows, arguments.workloads, arguments.epochs, arguments.runs, arguments.sizes = "2000", "w1,w2z2,w3", SLOW_EPOCHS, 1, "4"
        arguments.without = arguments.without or f"{SLOW},foreachBatch"  # each of them starts a Java
    print(machine())
    with tempfile.TemporaryDirectory(prefix="streamjoin-bench-") as name:
        root = Path(name)
        spark = spark_runner(root)
        left_out = [part for part in arguments.without.split(",") if part]
        found = [way for way in ways(spark) if not any(part in way.name for part in left_out)]
        try:
            for rows in counts(arguments.rows):
                workloads = [WORKLOADS[SHORT[name]] for name in arguments.workloads.split(",")]
                comparison = Comparison(root / str(rows), rows, workloads, arguments.epochs, counts(arguments.sizes), arguments.runs)
                comparison.measure(found)
                comparison.print()
                shutil.rmtree(root / str(rows))
        finally:
            spark.stop()


if __name__ == "__main__":
    main()
