"""Speed of the kernel's parts on one core, beside the memory bandwidth of the machine in the same run.

    python tests/bench/bench_kernel.py [--rows 1000000] [--rounds 7] [--quick]

Each line: the best of some rounds and by how much their median is above it, and rates in the units that the part is bound by. Bandwidth is
of the bytes that must be read and written at the least (probing: both key columns; expanding and joining: what comes out besides), also as
a part of what copying memory reached; none is given where probes leap over most of a long run. DuckDB runs the same joins on one thread,
from Arrow to Arrow.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import duckdb
import numpy as np
import pyarrow as pa

from bench.report import machine, options, table
from streamjoin.kernel import sweep
from streamjoin.kernel.joiner import Joiner
from streamjoin.kernel.probe import Candidates
from streamjoin.kernel.run import Run, merge_runs, sort_order, sort_run, warm
from streamjoin.language.ddl import parse_schema
from streamjoin.language.predicate import Encoding, KeyExpression, MainKind, MainPredicate
from streamjoin.language.sql import parse_boolean, parse_projection
from streamjoin.language.window import Window, WindowKind

HOUR = 3_600_000_000
INTEGER = KeyExpression(("k",), (), Encoding.INTEGER)
FLOAT = KeyExpression(("k",), (), Encoding.FLOAT)
UNBOUNDED = Window(WindowKind.UNBOUNDED)
MOST_OF_AN_HOUR = Window(WindowKind.RANGE, before_micros=HOUR // 2, after_micros=HOUR // 2)
"""With times uniform in an hour, three of four pairs are inside: nothing is decided by the ranges of times alone."""

PAIR_BYTES = 8
"""Of two row numbers."""

SCHEMAS = {name: parse_schema("k BIGINT, id BIGINT, amount DOUBLE, at TIMESTAMP") for name in "lr"}
OUTPUT = ("l.id AS left_id", "r.id AS right_id", "l.amount AS left_amount", "r.at AS right_at")
OUTPUT_BYTES = 32

rng = np.random.default_rng(1)


class Board:
    """Measures one part after another, and keeps the lines."""

    def __init__(self, rounds: int) -> None:
        self._rounds = rounds
        self._lines: list[list[str]] = []
        self._copying = 0.0
        """Bytes a second: what memory bandwidth is compared with."""

    def bandwidth(self) -> None:
        source = np.ones(1 << 25)
        target = np.empty_like(source)
        best, _ = self._measured(lambda: np.copyto(target, source))
        self._copying = 2 * source.nbytes / best
        self.report("memory: copy", lambda: np.copyto(target, source), bytes=2 * source.nbytes)
        self.report("memory: read", source.sum, bytes=source.nbytes)

    def report(self, name: str, work: Callable[[], object], **amounts: float) -> None:
        best, above = self._measured(work)
        rates = ", ".join(f"{amount / best / 1e6:,.1f} M {unit}/s" for unit, amount in amounts.items() if unit != "bytes")
        speed = amounts.get("bytes", 0.0) / best
        bandwidth = [f"{speed / 1e9:.1f}", f"{speed / self._copying:.2f}"] if speed else ["", ""]
        self._lines.append([name, f"{best * 1e3:.2f}", f"+{above:.0%}", rates, *bandwidth])
        print(f"  {name}: {best * 1e3:.2f} ms", file=sys.stderr, flush=True)

    def _measured(self, work: Callable[[], object]) -> tuple[float, float]:
        """The best round's seconds, and how much more the median took."""
        seconds = []
        for _ in range(self._rounds):
            start = time.perf_counter()
            work()
            seconds.append(time.perf_counter() - start)
        return min(seconds), statistics.median(seconds) / min(seconds) - 1

    def __str__(self) -> str:
        return table(["", "ms", "median", "rates", "GB/s", "of copying"], self._lines)


def run_of(keys: np.ndarray) -> Run:
    rows = len(keys)
    columns = {
        "_key": keys,
        "_unit": rng.integers(0, 1 << 32, rows, dtype=np.uint32),
        "_time": rng.integers(0, HOUR, rows),
        "k": keys.astype(np.int64),
        "id": np.arange(rows),
        "amount": rng.random(rows),
    }
    arrays = {name: pa.array(values) for name, values in columns.items()}
    return Run.of(pa.RecordBatch.from_pydict({**arrays, "at": arrays["_time"].cast(pa.timestamp("us", "UTC"))}))


def keys(rows: int, domain: int) -> np.ndarray:
    return np.sort(rng.integers(0, domain, rows))


def sorting(board: Board, rows: int) -> None:
    for name, values in {
        "integers in a range": rng.integers(0, 100 * rows, rows),
        "hashes": rng.integers(-(2**63), 2**63 - 1, rows),
        "floats": rng.normal(size=rows),
    }.items():
        board.report(f"sort_order: {name}", partial(sort_order, values), keys=rows)
        board.report(f"  numpy.argsort: {name}", partial(np.argsort, values), keys=rows)
    batch = run_of(rng.integers(0, 100 * rows, rows)).batch
    board.report("sort_run: 7 columns", lambda: sort_run(batch), rows=rows, bytes=2 * batch.nbytes)


def merging(board: Board, rows: int) -> None:
    for count in (2, 4, 8):
        runs = [run_of(keys(rows // count, 100 * rows)) for _ in range(count)]
        size = sum(run.nbytes for run in runs)
        board.report(f"merge_runs: {count} runs, 7 columns", partial(merge_runs, runs), rows=rows, bytes=2 * size)
        table = pa.Table.from_batches([run.batch for run in runs])
        board.report("  Arrow's sort_by and combine_chunks", partial(resorted, table), rows=rows)


def resorted(table: pa.Table) -> pa.Table:
    return table.sort_by("_key").combine_chunks()


def candidates(board: Board, name: str, main: MainPredicate, window: Window, left: Run, right: Run) -> None:
    def work() -> tuple[int, int]:
        probe = Candidates(main, window, left, right, 1 << 17)
        return sum(len(rows) for rows, _ in probe), probe.seen

    found, seen = work()
    probes, others = sorted((left.rows, right.rows))
    size = left.key.nbytes + right.key.nbytes + PAIR_BYTES * found if others <= 8 * probes else 0  # beyond, the search leaps
    board.report(name, work, probes=probes, candidates=seen, pairs=found, bytes=size)


def both_ways(board: Board, rows: int) -> None:
    """Few matches in one pass, and by ranges that are found first."""
    equal = MainPredicate(MainKind.RANGE, (INTEGER, INTEGER), 0, 0)
    chosen = sweep.LEAST_PROBES, sweep.MOST_MATCHES
    for ratio, matches in ((1, 0.01), (1, 1.0), (1, 1.5), (1, 2.0), (1, 3.0), (3, 0.3), (20, 0.1)):
        runs = [run_of(keys(count, round(ratio * rows / matches))) for count in (rows, ratio * rows)]
        for way, limits in (("one pass", (1, 1e9)), ("ranges first", (1 << 60, 0))):
            sweep.LEAST_PROBES, sweep.MOST_MATCHES = limits
            candidates(board, f"probe by {way}: {matches} a probe, run {ratio} times the probes", equal, UNBOUNDED, *runs)
    sweep.LEAST_PROBES, sweep.MOST_MATCHES = chosen


def probing(board: Board, rows: int) -> None:
    both_ways(board, rows // 20)  # as in epochs, where runs fit into the processor's caches
    few = MainPredicate(MainKind.RANGE, (INTEGER, INTEGER), -5, 5)
    for ratio in (1, 8, 64, 512, 8192):
        large = min(8 * rows, ratio * rows)
        left, right = run_of(keys(large // ratio, 100 * rows)), run_of(keys(large, 100 * rows))
        candidates(board, f"probe: few matches, run {ratio} times the probes", few, UNBOUNDED, left, right)
    dense = run_of(keys(rows, rows)), run_of(keys(rows, rows))
    for low, high in ((0, 0), (-2, 2), (-50, 50)):
        main = MainPredicate(MainKind.RANGE, (INTEGER, INTEGER), low, high)
        candidates(board, f"probe and expand: {high - low + 1} a probe", main, UNBOUNDED, *dense)
        candidates(board, "  with the window check", main, MOST_OF_AN_HOUR, *dense)
    real = run_of(np.sort(rng.random(rows)) * rows), run_of(np.sort(rng.random(rows)) * rows)
    near = MainPredicate(MainKind.RANGE, (FLOAT, FLOAT), -2.0, 2.0)
    candidates(board, "probe and expand: floats, 4 a probe", near, MOST_OF_AN_HOUR, *real)
    small = run_of(keys(rows // 64, rows)), run_of(keys(rows // 64, rows))
    candidates(board, "expand: inequality", MainPredicate(MainKind.RANGE, (INTEGER, INTEGER), 1, None), MOST_OF_AN_HOUR, *small)
    candidates(board, "expand: all", MainPredicate(MainKind.ALL), MOST_OF_AN_HOUR, *small)


def joined(joiner: Joiner, left: Run, right: Run) -> int:
    return sum(batch.num_rows for batch in joiner.join(left, right))


def answered(database: Any, query: str) -> pa.Table:
    return database.sql(query).to_arrow_table()


def joining(board: Board, rows: int) -> None:
    database = duckdb.connect(config={"threads": "1"})
    left, right = run_of(keys(rows, rows)), run_of(keys(rows, rows))
    shifted = [run.batch.drop_columns(["_key", "_unit"]) for run in (left, right)]
    for name, low, high, residual in (("equality", 0, 0, None), ("band of 11", -5, 5, None), ("equality", 0, 0, "l.amount < r.amount")):
        main = MainPredicate(MainKind.RANGE, (INTEGER, INTEGER), low, high)
        condition = None if residual is None else parse_boolean(residual, SCHEMAS)
        output = [parse_projection(text, SCHEMAS) for text in OUTPUT]
        joiner = Joiner(main, MOST_OF_AN_HOUR, condition, None, output, ("l", "r"))
        title = f"join: {name}{'' if residual is None else f', {residual}'}, window, 4 columns"
        found = joined(joiner, left, right)
        size = left.key.nbytes + right.key.nbytes + OUTPUT_BYTES * found
        board.report(title, partial(joined, joiner, left, right), probes=rows, pairs=found, bytes=size)
        for stream, batch in zip("lr", shifted, strict=True):
            database.register(stream, pa.Table.from_batches([batch]))
        match = "l.k = r.k" if low == high == 0 else f"r.k >= l.k + ({low}) AND r.k <= l.k + {high}"
        query = f"""
            SELECT l.id, r.id, l.amount, r.at FROM l JOIN r
            ON {match} AND r._time - l._time BETWEEN {-HOUR // 2} AND {HOUR // 2} {f"AND {residual}" if residual else ""}"""
        board.report("  DuckDB, one thread", partial(answered, database, query), probes=rows, pairs=found)
    tiny = run_of(keys(100, 1000)), run_of(keys(100, 1000))
    board.report("join: 100 x 100 rows, cost of a call", partial(joined, joiner, *tiny), calls=1)


def main() -> None:
    parser = options(__doc__ or "")
    parser.add_argument("--rows", type=float, default=1e6)
    parser.add_argument("--rounds", type=int, default=7)
    arguments = parser.parse_args()
    rows, rounds = (50_000, 3) if arguments.quick else (int(arguments.rows), arguments.rounds)
    print(machine())
    start = time.perf_counter()
    warm()
    print(f"warm(), with Numba's import: {time.perf_counter() - start:.2f} s; {rows:,} rows, best of {rounds}\n")
    board = Board(rounds)
    board.bandwidth()
    for part in (sorting, merging, probing, joining):
        part(board, rows)
    print(board)


if __name__ == "__main__":
    main()
