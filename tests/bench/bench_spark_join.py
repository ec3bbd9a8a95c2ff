"""What ``streamjoin.spark.join`` makes of joins that Spark plans as nested loops, beside other ways to do them.

All ways count the results of the same Parquet files on two cores, in turns, warm; they must agree. The time of ``join`` has its samples and
its planning in it. *By hand* is the usual idiom: bins of one width, with copies of one side's rows (of both sides, for intervals) and the
condition as a filter; the best of the widths 1, 3, 10 and 30 times the band (intervals: the mean length) counts. DuckDB and Polars get the
condition as it is, in processes of their own; a cell is empty where one was ended after 100 s.

    python tests/bench/bench_spark_join.py [--rows 100000,1000000] [--runs 3] [--only band,intervals] [--own band] [--quick]
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing import TimeoutError, get_context  # noqa: A004 - of its pools
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

sys.path.insert(0, str(Path(__file__).parents[1]))

from bench.report import machine, options, table
from streamjoin.runner.java import find_java
from streamjoin.spark import join

DOMAIN = 10.0
"""Of the keys, for each row of a side."""
BAND = 5.0
WIDTHS = (1, 3, 10, 30)
PATIENCE_SECONDS = 100.0


@dataclass(frozen=True)
class Workload:
    condition: str
    sides: Callable[[np.random.Generator, int], tuple[dict[str, Any], dict[str, Any]]]
    unit: float
    """Length of a reach, which the widths by hand are multiples of; 0: it is an inequality, with as many ranges instead."""
    most_rows: int = 10_000_000


def _pair(draw: np.random.Generator, rows: int, **more: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    one, other = ({"id": np.arange(rows), "x": draw.uniform(0, DOMAIN * rows, rows)} for _ in range(2))
    return one | {name: make() for name, make in more.items()}, other | {name: make() for name, make in more.items()}


def _skewed(draw: np.random.Generator, rows: int) -> tuple[dict[str, Any], dict[str, Any]]:
    left, right = _pair(draw, rows)
    places = draw.permutation(rows)[np.minimum(draw.zipf(1.2, rows), rows) - 1] * DOMAIN
    left["x"] = np.where(draw.random(rows) < 0.1, DOMAIN * rows / 2, places)
    return left, right


def _intervals(draw: np.random.Generator, rows: int) -> tuple[dict[str, Any], dict[str, Any]]:
    sides = _pair(draw, rows)
    for side in sides:
        side["y"] = side["x"] + np.where(draw.random(rows) < 0.01, DOMAIN * rows / 100, DOMAIN)
    return sides


NEAR = f"abs(l.x - r.x) <= {BAND}"
WORKLOADS = {
    "band": Workload(NEAR, _pair, 2 * BAND),
    "equality and band": Workload(
        "l.g = r.g AND abs(l.x - r.x) <= 500.0", lambda draw, n: _pair(draw, n, g=lambda: draw.integers(0, 100, n)), 1000.0
    ),
    "inequality, 1 % of pairs": Workload("l.x < r.x - {far}", _pair, 0.0, most_rows=100_000),
    "skew": Workload(NEAR, _skewed, 2 * BAND),
    "intervals": Workload("l.x <= r.y AND l.y >= r.x", _intervals, DOMAIN),
}


def by_hand(left: Any, right: Any, workload: Workload, condition: str, times: int, rows: int) -> Any:
    from pyspark.sql import functions as F  # noqa: N812

    left, right = left.alias("l"), right.alias("r")
    domain, text = DOMAIN * rows, condition
    if not workload.unit:
        size, far = domain / (times * 4), domain * 0.8586
        left = left.withColumn("one", F.expr(f"CAST(floor((x + {far!r}D) / {size!r}D) AS BIGINT)"))
        right = right.withColumn("other", F.expr(f"explode(sequence(0L, CAST(floor(x / {size!r}D) AS BIGINT)))"))
    elif "y" in left.columns:
        width = times * (DOMAIN * 0.99 + domain * 0.0001)
        spread = f"explode(sequence(CAST(floor(x / {width!r}D) AS BIGINT), CAST(floor(y / {width!r}D) AS BIGINT)))"
        left, right = left.withColumn("one", F.expr(spread)), right.withColumn("other", F.expr(spread))
        text = f"{condition} AND one = CAST(floor(greatest(l.x, r.x) / {width!r}D) AS BIGINT)"
    else:
        width, reach = times * workload.unit, workload.unit / 2
        left = left.withColumn("one", F.expr(f"CAST(floor(x / {width!r}D) AS BIGINT)"))
        ends = [f"CAST(floor((x {sign} {reach!r}D) / {width!r}D) AS BIGINT)" for sign in "-+"]
        right = right.withColumn("other", F.expr(f"explode(sequence({', '.join(ends)}))"))
    return left.join(right, F.expr(f"one = other AND {text}"))


def polars_count(paths: list[str], workload: Workload, far: float) -> int:
    left, right = (pl.scan_parquet(path) for path in paths)
    x, other = pl.col("x"), pl.col("x_right")
    if "y" in left.collect_schema():
        where = [x <= pl.col("y_right"), pl.col("y") >= other]
    elif not workload.unit:
        where = [x < other - far]
    else:
        where = [x >= other - workload.unit / 2, x <= other + workload.unit / 2]
        where += [pl.col("g") == pl.col("g_right")] if "g" in left.collect_schema() else []
    right = right.rename({name: f"{name}_right" for name in right.collect_schema()})
    return int(left.join_where(right, *where).select(pl.len()).collect().item())


def duckdb_count(paths: list[str], workload: Workload, far: float) -> int:
    with duckdb.connect(config={"threads": 2}) as engine:
        query = f"SELECT count(*) FROM '{paths[0]}' l, '{paths[1]}' r WHERE {workload.condition.format(far=repr(far))}"
        return int(engine.sql(query).fetchall()[0][0])


def timed(what: Callable[[], int]) -> tuple[float, int]:
    before = time.perf_counter()
    found = what()
    return time.perf_counter() - before, found


def in_child(count: Callable[[list[str], Workload, float], int], paths: list[str], name: str, far: float) -> tuple[float, int]:
    return timed(lambda: count(paths, WORKLOADS[name], far))


class Engine:
    """Another engine, in a process of its own, which can be ended: some take hours for what others do in a second."""

    def __init__(self, count: Callable[[list[str], Workload, float], int], *given: Any) -> None:
        self._given = (count, *given)
        self._process = get_context("spawn").Pool(1)

    def timed(self) -> tuple[float, int | None]:
        """Seconds, and how many pairs; None: it was ended."""
        try:
            return self._process.apply_async(in_child, self._given).get(PATIENCE_SECONDS)
        except TimeoutError:
            self.close()
            return PATIENCE_SECONDS, None

    def close(self) -> None:
        self._process.terminate()


def measured(name: str, rows: int, arguments: Any, session: Any, root: Path) -> list[str]:
    """A line of the table: seconds of ``join``, and the others' time as a multiple of it."""
    workload, far = WORKLOADS[name], DOMAIN * rows * 0.8586
    condition = workload.condition.format(far=repr(far))
    paths = []
    for side, columns in zip("lr", workload.sides(np.random.default_rng(rows), rows), strict=True):
        paths.append(str(root / f"{name.split(maxsplit=1)[0]}-{rows}-{side}.parquet"))
        pq.write_table(pa.table(columns), paths[-1], row_group_size=max(1000, rows // 8))
    left, right = (session.read.parquet(path) for path in paths)
    engines = {"DuckDB": Engine(duckdb_count, paths, name, far), "Polars": Engine(polars_count, paths, name, far)}
    ways: dict[str, Callable[[], tuple[float, int | None]]] = {way: engine.timed for way, engine in engines.items()}
    ways["join"] = lambda: timed(lambda: int(join(left.alias("l"), right.alias("r"), condition).count()))
    for times in WIDTHS:
        ways[f"by hand {times}"] = lambda times=times: timed(lambda: int(by_hand(left, right, workload, condition, times, rows).count()))
    seconds, counts = {way: [] for way in ways}, set()
    for turn in range(arguments.runs + 1):
        for way, do in list(ways.items()):
            taken, found = do()
            if found is None:
                del ways[way]
            else:
                counts.add(found)
                if turn:
                    seconds[way].append(taken)
    for engine in engines.values():
        engine.close()
    assert len(counts) == 1, counts
    if name in arguments.own.split(",") and rows <= 100_000:
        from pyspark.sql import functions as F  # noqa: N812

        seconds["Spark's own"] = [timed(lambda: int(left.alias("l").join(right.alias("r"), F.expr(condition)).count()))[0]]
    middle = {way: statistics.median(each) for way, each in seconds.items() if each}
    hand = {way: taken for way, taken in middle.items() if way.startswith("by hand")}
    best = min(hand, key=lambda way: hand[way])
    spread = f"{middle['join']:.2f} ({min(seconds['join']):.2f} to {max(seconds['join']):.2f})"
    others = [f"{middle[way] / middle['join']:.2f}" if way in middle else "" for way in ("DuckDB", "Polars", "Spark's own")]
    return [name, f"{rows:,}", f"{counts.pop():,}", spread, f"{hand[best] / middle['join']:.2f} ({best[8:]})", *others]


def main() -> None:
    parser = options(__doc__ or "")
    parser.add_argument("--rows", default="100000,1000000", help="a side; 10000000 works, too")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--only", default=",".join(WORKLOADS), help="workloads, by the first words of their names")
    parser.add_argument("--own", default="band", help="workloads that Spark's own plan does once, up to 100,000 rows")
    arguments = parser.parse_args()
    sizes = [5000] if arguments.quick else [int(rows) for rows in arguments.rows.split(",")]
    os.environ["JAVA_HOME"] = str(find_java())
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").config("spark.driver.memory", "6g")
    session = builder.config("spark.sql.shuffle.partitions", "8").getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    print(f"{machine()}\n")
    lines = []
    with tempfile.TemporaryDirectory() as root:
        for name, workload in WORKLOADS.items():
            if any(name.startswith(each.strip()) for each in arguments.only.split(",")):
                for rows in sizes:
                    if rows <= workload.most_rows:
                        lines.append(measured(name, rows, arguments, session, Path(root)))
                        print(*lines[-1], sep=" | ", flush=True)
    header = [
        "",
        "rows a side",
        "results",
        "`join`: s",
        "by hand, best width / `join`",
        "DuckDB / `join`",
        "Polars / `join`",
        "Spark's own / `join`",
    ]
    print("\n" + table(header, lines))


if __name__ == "__main__":
    main()
