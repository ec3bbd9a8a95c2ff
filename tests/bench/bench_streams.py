"""One join of three streams against other ways to do the same work on the same cores.

- W4: a star on one key. ``a.k = b.k AND a.k = c.k``, keys uniform over 10 N values: a tuple has one partner in each other stream.
- W5: a chain of a band and an equality. ``|a.k - b.k| <= 5`` with keys uniform over 100 N values, as in W1, and ``b.m = c.m`` as in W4.
- W6: a cycle of three equalities with keys of their own, uniform over 10 N values, which would hardly ever close: half of the tuples
  belong to triples that do, whose members come two seconds after each other.

All within 10 s of event time, N tuples a stream and second, a Parquet file for each; results go to Parquet. Measured is the time of an
epoch of one second once the window is full. All ways take turns, ``--runs`` times, and must agree on the number of results, in each epoch
where they tell it. The others are in ``stream_rivals.py``; Spark's chained joins are slow, and get fewer epochs and one run.

    python tests/bench/bench_streams.py [--rows 100000] [--workloads w4,w5,w6] [--runs 3] [--epochs 20] [--without chained] [--quick]
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

sys.path.insert(0, str(Path(__file__).parents[1]))

from bench import stream_rivals
from bench.engine import PLENTY, join, spark_runner, timed
from bench.report import counts, machine, millions, options, spread, table
from bench.rivals import PROVIDERS, Timed
from bench.stream_rivals import Edge, Streams
from bench.workloads import BAND, FULL_AFTER, WINDOW, timed_epochs, write_file
from harness import SECOND, START, make_job
from streamjoin.epoch.ports import Runner
from streamjoin.job import Job
from streamjoin.runner.inline import InlineRunner

OURS = "StreamJoin on Spark"
SLOW = "Spark's chained joins"
SLOW_EPOCHS = 14


@dataclass(frozen=True)
class Workload:
    """A join with what its input is made of."""

    streams: Streams
    spread: int
    """Keys are uniform over so many values for each tuple of a second ..."""
    wide: frozenset[str] = frozenset()
    """... and these over ten times as many."""
    planted: float = 0.0
    """The share of tuples that belong to results which were put there."""

    def generate(self, root: Path, rows: int, files: int) -> None:
        """Write a folder for each stream, of ``files`` files of ``rows`` rows."""
        for number, (stream, keys) in enumerate(self.streams.keys.items()):
            folder = root / f"in-{stream}"
            folder.mkdir(parents=True)
            rng = np.random.default_rng(number)
            for second in range(files):
                write_file(folder, second, self._tuples(rng, keys, rows, second, 2 * number))

    def _tuples(self, rng: np.random.Generator, keys: Sequence[str], rows: int, second: int, delay: int) -> dict[str, Any]:
        """A file; members of what was planted come ``delay`` seconds late."""
        made = {"rid": np.arange(second * rows, (second + 1) * rows)}
        planted = ((second - delay) * rows + np.arange(round(self.planted * rows))).astype(np.uint64)
        places = rng.permutation(rows)[: len(planted)]
        for key in keys:
            values = self.spread * rows * (10 if key in self.wide else 1)
            made[key] = rng.integers(0, values, rows)
            made[key][places] = _scattered(planted, key) % np.uint64(values)
        made["at"] = pa.array(np.full(rows, START + second * SECOND)).cast(pa.timestamp("us", "UTC"))
        return made


def _scattered(numbers: np.ndarray, key: str) -> np.ndarray:
    """A number for each of these, another for each key, as if drawn (Fibonacci hashing)."""
    return ((numbers + np.uint64(ord(key) << 40)) * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(24)


WORKLOADS = {
    "W4": Workload(Streams({"a": ("k",), "b": ("k",), "c": ("k",)}, (Edge("a", "k", "b", "k"), Edge("a", "k", "c", "k"))), spread=10),
    "W5": Workload(
        Streams({"a": ("k",), "b": ("k", "m"), "c": ("m",)}, (Edge("a", "k", "b", "k", BAND), Edge("b", "m", "c", "m"))),
        spread=10,
        wide=frozenset("k"),
    ),
    "W6": Workload(
        Streams(
            {"a": ("k", "n"), "b": ("k", "m"), "c": ("m", "n")},
            (Edge("a", "k", "b", "k"), Edge("b", "m", "c", "m"), Edge("c", "n", "a", "n")),
        ),
        spread=10,
        planted=0.5,
    ),
}


def job_of(root: Path, streams: Streams, workers: int = 2, form: str = "parquet") -> Job:
    """The job that joins ``root``'s input, a file of each stream in each epoch. ``form``: parquet or json, of input and output."""
    folder = "in" if form == "parquet" else form
    entries = [
        {
            "name": name,
            "source": {"files": {"path": str(root / f"{folder}-{name}"), "format": form, "maxFilesPerEpoch": 1}},
            "schema": streams.schema(name),
            "eventTime": "at",
            "watermark": "0s",
        }
        for name in streams.keys
    ]
    sink = {"files": {"path": str(root / "out"), "format": form}}
    return make_job(
        root,
        streams=entries,
        on=streams.condition,
        window={"within": f"{WINDOW}s"},
        workers=workers,
        capacity=PLENTY,
        epoch={"maxTuples": PLENTY, "maxBytes": "16Gi"},
        output={"select": list(streams.select), "sink": sink},
    )


PathPlan = Callable[[Path, Streams, int], Timed]
"""(input, join, files) -> the seconds and results of each epoch."""


def streamjoin(runner: Runner, form: str = "parquet") -> PathPlan:
    def run(root: Path, streams: Streams, files: int) -> Timed:
        run = timed(join(job_of(root, streams, form=form), runner))
        return list(run.seconds), [result.output for result in run.results]

    return run


def ways(spark: Runner) -> dict[str, PathPlan]:
    by_hand = {
        f"Polars, {engine} engine": lambda *given, engine=engine: timed_epochs(stream_rivals.polars(*given, engine))
        for engine in ("in-memory", "streaming")
    }
    chained = {
        f"{SLOW}, state in {state}": partial(stream_rivals.in_a_process, partial(stream_rivals.chained, state=state)) for state in PROVIDERS
    }
    return {
        OURS: streamjoin(spark),
        "StreamJoin, inline runner (one core)": streamjoin(InlineRunner()),
        **by_hand,
        "DuckDB": lambda *given: timed_epochs(stream_rivals.duckdb(*given)),
        **chained,
    }


class Comparison:
    """All ways of one workload. Raises SystemExit when results differ."""

    def __init__(self, root: Path, name: str, rows: int, epochs: int) -> None:
        self._root, self._name, self._rows, self._epochs = root, name, rows, epochs
        self._streams = WORKLOADS[name].streams
        self._seconds: dict[str, list[float]] = {}
        """Way -> the mean epoch of each run."""
        self._results: Sequence[int] = ()
        """Of each epoch, by the first way."""
        WORKLOADS[name].generate(root, rows, epochs)

    def measure(self, by_name: dict[str, PathPlan]) -> None:
        for name, way in by_name.items():
            files = SLOW_EPOCHS if name.startswith(SLOW) else self._epochs
            seconds, results = way(self._root, self._streams, files)
            self._results = self._results or results
            found, wanted = results, self._results[:files]
            if not all(results[FULL_AFTER:]):  # a sum of all
                found, wanted = [sum(found)], [sum(wanted)]
            if found != wanted:
                raise SystemExit(f"{self._name}: {name} gave {found} results in {files} epochs, and another way {wanted}")
            self._seconds.setdefault(name, []).append(statistics.fmean(seconds[FULL_AFTER:]))

    def print(self) -> None:
        rows = len(self._streams.keys) * self._rows
        results = statistics.median(self._results[FULL_AFTER:])
        print(f"\n**{self._name}, N = {self._rows:,}**: `{self._streams.condition}`, {results:,.0f} results an epoch\n")
        rates = {name: rows / statistics.median(seconds) for name, seconds in self._seconds.items()}
        best = next(iter(rates.values()))
        lines = [[name, spread(self._seconds[name]), millions(rate), f"{best / rate:.2f}"] for name, rate in rates.items()]
        print(table(["", "s an epoch", "rows/s", "the first / this"], lines))


def main() -> None:
    parser = options(__doc__ or "")
    parser.add_argument("--rows", default="100000", help="N, a stream and second; several after commas")
    parser.add_argument("--workloads", default="w4,w5,w6")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=20, help="files a stream; the first 11 fill the window")
    parser.add_argument("--without", default="", help="ways to leave out: any part of their names, several after commas")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.rows, arguments.runs, arguments.epochs = "2000", 1, SLOW_EPOCHS
        arguments.without = arguments.without or SLOW  # each of them starts a Java
    if arguments.epochs < SLOW_EPOCHS:
        parser.error(f"--epochs: {arguments.epochs} must be at least {SLOW_EPOCHS}, so that epochs with full windows are measured")
    print(machine())
    with tempfile.TemporaryDirectory(prefix="streamjoin-bench-") as name:
        spark = spark_runner(Path(name))
        left_out = [part for part in arguments.without.split(",") if part]
        found = {name: way for name, way in ways(spark).items() if not any(part in name for part in left_out)}
        try:
            for rows in counts(arguments.rows):
                for workload in arguments.workloads.upper().split(","):
                    with tempfile.TemporaryDirectory(prefix=f"{workload}-", dir=name) as root:
                        comparison = Comparison(Path(root), workload, rows, arguments.epochs)
                        for run in range(arguments.runs):
                            comparison.measure({name: way for name, way in found.items() if run == 0 or not name.startswith(SLOW)})
                        comparison.print()
        finally:
            spark.stop()


if __name__ == "__main__":
    main()
