"""``streamjoin.spark.join`` of two streaming DataFrames beside Spark's own stream-stream join: how old a result is when a query gets it.

Both join the same two streams of the source ``rate`` on an equality with a band, which is what Spark has a stream-stream join for, within
ten seconds, with checkpoints on this machine's disk; Spark's own with the state store RocksDB. A result's age is the time from its later
row until ``foreachBatch`` has it. The first half of each run is not counted. Both give each result once to a sink that drops repeats.

    python tests/bench/bench_stream_join.py [--rates 1000,10000] [--seconds 60] [--quick]
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from bench.report import machine, options, table
from streamjoin.runner.java import find_java
from streamjoin.spark import join

CONDITION = "left.k = right.k AND abs(left.price - right.price) <= 0.02"
WITHIN_SECONDS = 10
ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


def stream(session: Any, rate: int, seed: int) -> Any:
    rows = session.readStream.format("rate").option("rowsPerSecond", rate).load()
    price = f"pmod(hash(value, {seed}), 1000000) / 10000D AS price"
    return rows.selectExpr("value AS id", price, "pmod(value, 50) AS k", "timestamp AS at").withWatermark("at", "2 seconds")


def ours(left: Any, right: Any, root: Path) -> Any:
    return join(left, right, CONDITION, within=f"{WITHIN_SECONDS} seconds", checkpoint=root / "state")


def sparks(left: Any, right: Any, root: Path) -> Any:
    from pyspark.sql import functions as F  # noqa: N812

    window = f"left.at BETWEEN right.at - INTERVAL {WITHIN_SECONDS} SECONDS AND right.at + INTERVAL {WITHIN_SECONDS} SECONDS"
    return left.alias("left").join(right.alias("right"), F.expr(f"{CONDITION} AND {window}"))


WAYS: dict[str, Callable[[Any, Any, Path], Any]] = {"join": ours, "Spark's own": sparks}


def ages(session: Any, way: str, rate: int, seconds: float, root: Path) -> np.ndarray:
    """Seconds, of each result that came in the second half of the run."""
    found: list[np.ndarray] = []
    began = time.monotonic()

    def take(batch: Any, number: int) -> None:
        newest = batch.toArrow().column(0).to_numpy()
        if time.monotonic() - began > seconds / 2:
            found.append(time.time() - newest / 1e6)

    pairs = WAYS[way](stream(session, rate, 1), stream(session, rate, 2), root).selectExpr("unix_micros(greatest(left.at, right.at)) AS m")
    query = pairs.writeStream.foreachBatch(take).option("checkpointLocation", str(root / "sink")).start()
    try:
        if query.awaitTermination(seconds):
            raise RuntimeError(f"{way}: it has ended")
    finally:
        query.stop()
    if not found:
        raise RuntimeError(f"{way}: no result came in the second half; give more --seconds, or a lower rate")
    return np.concatenate(found)


def main() -> None:
    parser = options(__doc__ or "")
    parser.add_argument("--rates", default="1000,10000", help="rows a second of each side")
    parser.add_argument("--seconds", type=float, default=60.0, help="of each run")
    arguments = parser.parse_args()
    rates, seconds = ([100], 20.0) if arguments.quick else ([int(rate) for rate in arguments.rates.split(",")], arguments.seconds)
    os.environ["JAVA_HOME"], os.environ["PYSPARK_PYTHON"] = str(find_java()), sys.executable
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").config("spark.driver.memory", "4g")
    builder = builder.config("spark.sql.shuffle.partitions", "2").config("spark.sql.streaming.stateStore.providerClass", ROCKSDB)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    print(f"{machine()}\n")
    lines = []
    for rate in rates:
        middle: dict[str, float] = {}
        for way in WAYS:
            with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as root:  # parts end after the query
                age = ages(session, way, rate, seconds, Path(root))
            middle[way] = float(np.median(age))
            per_second = len(age) / (seconds / 2)
            lines.append([f"{rate:,}", way, f"{per_second:,.0f}", f"{middle[way]:.2f}", f"{np.percentile(age, 99):.2f}"])
            lines[-1].append(f"{middle[way] / middle['join']:.2f}")
            print(*lines[-1], sep=" | ", flush=True)
    print("\n" + table(["rows/s a side", "", "results/s", "age, p50: s", "p99: s", "p50 / `join`"], lines))


if __name__ == "__main__":
    main()
