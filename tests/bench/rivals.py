"""The same joins by others: Polars, DuckDB, and two ways to do it with Spark's own Structured Streaming.

None of them joins on a band except by comparing everything, so all get the bucket trick: an equality of ``k // BUCKET``, with the new
tuples of one side in every bucket that their band touches, and the band as a filter. Each kept here is the fastest of some that were tried:
copying the new tuples rather than the held ones, buckets of 12 values rather than 6, 24 or 50, DuckDB's hash join rather than its IEJoin.

Always holds: a rival gives the number of results of each epoch; an epoch takes ``seconds`` files a side. Nothing of a rival is durable,
but Spark's stream-stream join, which keeps what Spark keeps.
"""

from __future__ import annotations

import itertools
import multiprocessing
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from bench.workloads import BAND, FULL_AFTER, WINDOW, WORKLOADS, Workload, write_file
from harness import SECOND, START

BUCKET = 12
"""Values: a band of 11 touches at most two buckets."""
OUTPUT = "rival.parquet"

T = TypeVar("T")
Timed = tuple[list[float], list[int]]
"""Seconds and results of each epoch."""


def paths(root: Path, side: str, files: range) -> list[str]:
    return [str(root / f"in-{side}" / f"{number:05d}.parquet") for number in files]


def epochs_of(files: int, seconds: int) -> Iterator[range]:
    """The files of each whole epoch."""
    return (range(first, first + seconds) for first in range(0, files - seconds + 1, seconds))


def polars(root: Path, workload: Workload, files: int, seconds: int, engine: str) -> Iterator[int]:
    """``engine``: in-memory or streaming."""
    import polars as pl

    key, other = pl.col("k"), pl.col("k_right")
    held: dict[str, list[tuple[int, Any]]] = {"l": [], "r": []}

    def copied(frame: Any) -> Any:
        low, high = (key - BAND) // BUCKET, (key + BAND) // BUCKET
        return pl.concat([frame.with_columns(low.alias("b")), frame.with_columns(high.alias("b")).filter(low != high)])

    def pairs(new: Any, old: Any, new_is_left: bool) -> Any:
        joined = copied(new).lazy().join(old.lazy(), on="b")
        recent = (pl.col("at") - pl.col("at_right")).dt.total_microseconds().abs() <= WINDOW * SECOND
        matched = ((key - other).abs() <= BAND) & recent
        left, right = ("", "_right") if new_is_left else ("_right", "")
        if workload.residual:
            matched = matched & pl.sql_expr(named(workload.residual, left, right))
        output = [pl.sql_expr(named(text, left, right)) for text in workload.select]
        return joined.filter(matched).select(output).collect(engine=engine)

    for numbers in epochs_of(files, seconds):
        new = {
            side: pl.read_parquet(paths(root, side, numbers), columns=list(workload.needed)).with_columns((key // BUCKET).alias("b"))
            for side in "lr"
        }
        held = {side: [old for old in of_side if old[0] >= numbers.start - WINDOW] for side, of_side in held.items()}
        parts = [pairs(new["l"], new["r"], True)]
        for side, across in ("lr", "rl"):
            if held[across]:
                parts.append(pairs(new[side], pl.concat([frame for _, frame in held[across]]), side == "l"))
        result = pl.concat(parts)
        result.write_parquet(root / OUTPUT, compression="snappy")
        for side in "lr":
            held[side].append((numbers.stop - 1, new[side]))
        yield result.height


def named(sql: str, left: str, right: str) -> str:
    """The engine's ``l.name`` and ``r.name`` as the columns of a joined frame, where a suffix tells the sides apart."""
    words = sql.replace("(", "( ").replace(")", " )").split(" ")
    suffixes = {"l.": left, "r.": right}
    return " ".join(word[2:] + suffixes[word[:2]] if word[:2] in suffixes else word for word in words)


class DuckJoin:
    """The join as DuckDB does it: held tuples in two tables, a hash join on buckets, one Parquet file an epoch."""

    def __init__(self, root: Path, workload: Workload) -> None:
        import duckdb

        self._root, self._workload = root, workload
        self._database = duckdb.connect()
        columns = ", ".join(f"{name} {workload.columns[name]}" for name in workload.needed if name != "at")
        for side in "lr":
            self._database.execute(f"CREATE TABLE held_{side} ({columns}, ts BIGINT, b BIGINT)")
        self._taken = ", ".join(name for name in workload.needed if name != "at")

    def step(self, first_second: int, sources: dict[str, Any]) -> int:
        """One epoch: ``sources`` are the new tuples of each side, as paths of Parquet files or as an Arrow table."""
        database = self._database
        for side, source in sources.items():
            if isinstance(source, pa.Table):
                database.register("arrived", source)
                relation = "arrived"
            else:
                relation = f"read_parquet({source})"
            database.execute(
                f"CREATE OR REPLACE TEMP TABLE new_{side} AS "
                f"""SELECT {self._taken}, epoch_us("at") AS ts, k // {BUCKET} AS b FROM {relation}"""
            )
            database.execute(f"DELETE FROM held_{side} WHERE ts < {START + (first_second - WINDOW) * SECOND}")
        new_left, new_right = self._copied("new_l"), self._copied("new_r")
        parts = (self._pairs(new_left, "new_r"), self._pairs(new_left, "held_r"), self._pairs("held_l", new_right))
        path = self._root / OUTPUT
        database.execute(f"COPY ({' UNION ALL '.join(parts)}) TO '{path}' (FORMAT parquet, COMPRESSION snappy)")
        for side in "lr":
            database.execute(f"INSERT INTO held_{side} SELECT * FROM new_{side}")
        return int(pq.read_metadata(path).num_rows)

    def _copied(self, table: str) -> str:
        low, high = f"(k - {BAND}) // {BUCKET}", f"(k + {BAND}) // {BUCKET}"
        return (
            f"(SELECT {self._taken}, ts, {low} AS b FROM {table} UNION ALL "
            f"SELECT {self._taken}, ts, {high} AS b FROM {table} WHERE {low} <> {high})"
        )

    def _pairs(self, left: str, right: str) -> str:
        residual = f" AND ({self._workload.residual})" if self._workload.residual else ""
        return (
            f"SELECT {', '.join(self._workload.select)} FROM {left} l JOIN {right} r ON l.b = r.b "
            f"WHERE abs(l.k - r.k) <= {BAND} AND abs(l.ts - r.ts) <= {WINDOW * SECOND}{residual}"
        )


def duckdb(root: Path, workload: Workload, files: int, seconds: int) -> Iterator[int]:
    join = DuckJoin(root, workload)
    for numbers in epochs_of(files, seconds):
        yield join.step(numbers.start, {side: paths(root, side, numbers) for side in "lr"})


def in_a_process(way: Callable[[Path, Workload, int, int], T], root: Path, workload: str, *sizes: int) -> T:
    """Runs a rival that needs a Java of its own; StreamJoin's executors are there meanwhile, and idle."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(_quietly, way, root, workload, *sizes).result()


def _quietly(way: Callable[[Path, Workload, int, int], T], root: Path, workload: str, *sizes: int) -> T:
    with open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), 2)
    return way(root, WORKLOADS[workload], *sizes)


def _session(directory: Path) -> Any:
    from pyspark.sql import SparkSession

    settings = {
        "spark.driver.memory": "6g",
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.local.dir": str(directory),
        "spark.sql.session.timeZone": "UTC",
        # one partition a core, not the 200 of the default
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.streaming.stopTimeout": "60s",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
    }
    builder = SparkSession.builder.master("local[2]").appName("rival")
    for name, value in settings.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session


def _stream(session: Any, root: Path, side: str, workload: Workload, files: int, form: str = "parquet") -> Any:
    reader = session.readStream.schema(workload.schema).option("maxFilesPerTrigger", files)
    return reader.format(form).load(str(root / f"in-{side}")).select(*workload.needed)


def foreach_batch(root: Path, workload: Workload, files: int, seconds: int) -> Timed:
    """Structured Streaming reads; each micro-batch goes to the driver by ``toArrow`` and is joined there by DuckDB."""
    from pyspark.sql import functions as F  # noqa: N812

    directory = Path(tempfile.mkdtemp(prefix="rival-", dir=root))
    session = _session(directory)
    join, ends, results = DuckJoin(root, workload), [time.perf_counter()], []

    def batch(frame: Any, number: int) -> None:
        arrived = frame.toArrow()
        sides = {side: arrived.filter(pa.compute.equal(arrived["side"], side)).drop_columns(["side"]) for side in "lr"}
        results.append(join.step(number * seconds, sides))
        ends.append(time.perf_counter())

    both = [_stream(session, root, side, workload, seconds).withColumn("side", F.lit(side)) for side in "lr"]
    query = both[0].union(both[1]).writeStream.foreachBatch(batch)
    query.option("checkpointLocation", str(directory / "checkpoint")).trigger(availableNow=True).start().awaitTermination()
    session.stop()
    shutil.rmtree(directory, ignore_errors=True)
    return [end - begin for begin, end in itertools.pairwise(ends)][: files // seconds], results[: files // seconds]


PROVIDERS = {"memory": "HDFSBackedStateStoreProvider", "RocksDB": "RocksDBStateStoreProvider"}
"""Where Spark may hold a stream's state; both write what changes to the checkpoint."""


def stream_stream(root: Path, workload: Workload, files: int, seconds: int, filled: int = 0, *, state: str = "RocksDB") -> Timed:
    """Spark's stream-stream join, made legal by the equality of buckets; output and state exactly once as Spark does it.

    The first ``filled`` files of a side are one, and so one epoch, which is given as ``filled`` equal ones. The results are given as one
    number, all of them in the last epoch.
    """
    directory = Path(tempfile.mkdtemp(prefix="rival-", dir=root))
    _link(root, directory, range(filled, files))
    if filled:
        for side in "lr":
            write_file(directory / "input" / f"in-{side}", 0, pq.read_table(paths(root, side, range(filled))))
    session = _session(directory)
    query = _banded(session, directory, workload, seconds, state).trigger(availableNow=True).start()
    query.awaitTermination()
    spent = _spent(query)
    found = session.read.parquet(str(directory / "out")).count()
    session.stop()
    shutil.rmtree(directory, ignore_errors=True)
    if filled:
        spent = [spent[0] / filled] * filled + spent[1:]
    return spent, [*[0] * (len(spent) - 1), found]


def stream_stream_live(root: Path, state: str, watermark_seconds: int) -> None:
    """A process: Spark's stream-stream join of JSON files that appear in ``root``/input, each epoch as soon as the last one is over."""
    session = _session(root / "spark")
    # A reader then finds every epoch's files in a log of its own.
    session.conf.set("spark.sql.streaming.fileSink.log.compactInterval", "1000000")
    query = _banded(session, root, WORKLOADS["W1"], 1_000_000, state, form="json", watermark=f"{watermark_seconds} seconds")
    query.trigger(processingTime="0 seconds").start().awaitTermination()


@dataclass(frozen=True)
class Repartitioned:
    """What it takes to cut Spark's join anew. Seconds, and the median epochs around it."""

    before: float
    stopping: float
    repartitioning: float
    starting: float
    """From the new start until its first epoch was committed."""
    written_bytes: int
    """To the checkpoint, by the repartitioning alone."""
    after: float


def repartition(root: Path, workload: Workload, partitions: int, wanted: int) -> Repartitioned:
    """Spark's stream-stream join, stopped once its window is full and its checkpoint repartitioned; then it goes on."""
    directory = Path(tempfile.mkdtemp(prefix="rival-", dir=root))
    _link(root, directory, range(FULL_AFTER + 3))
    session = _session(directory)
    session.conf.set("spark.sql.shuffle.partitions", str(partitions))
    # A repartitioning counts as a batch, which the file sink's log misses as soon as it is compacted (BATCH_METADATA_NOT_FOUND).
    session.conf.set("spark.sql.streaming.fileSink.log.compactInterval", "1000")

    def started() -> Any:
        # What a repartitioning writes in format 4 cannot be read (Spark 4.3.0: UnsafeRow.pointTo).
        query = _banded(session, directory, workload, 1, "RocksDB", state_format="3")
        return query.trigger(processingTime="0 seconds").start()

    query = started()
    query.processAllAvailable()
    before = statistics.median(_spent(query)[FULL_AFTER:])
    times = [time.perf_counter()]
    query.stop()
    times.append(time.perf_counter())
    held = _bytes_in(directory / "checkpoint")
    session._streamingCheckpointManager.repartition(str(directory / "checkpoint"), wanted)
    times.append(time.perf_counter())
    written = _bytes_in(directory / "checkpoint") - held
    _link(root, directory, range(FULL_AFTER + 3, FULL_AFTER + 7))
    query = started()
    while not _spent(query):
        time.sleep(0.05)
        assert query.isActive, query.exception()
    times.append(time.perf_counter())
    query.processAllAvailable()
    after = statistics.median(_spent(query)[1:])
    query.stop()
    session.stop()
    shutil.rmtree(directory, ignore_errors=True)
    stopping, repartitioning, starting = (end - begin for begin, end in itertools.pairwise(times))
    return Repartitioned(before, stopping, repartitioning, starting, written, after)


def _link(root: Path, directory: Path, files: range) -> None:
    """Gives these files to the query in ``directory``."""
    for side in "lr":
        folder = directory / "input" / f"in-{side}"
        folder.mkdir(parents=True, exist_ok=True)
        for path in paths(root, side, files):
            os.link(path, folder / Path(path).name)


def _bytes_in(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())


def _spent(query: Any) -> list[float]:
    """Seconds of each epoch that had input."""
    return [
        progress["durationMs"]["triggerExecution"] / 1000
        for progress in query.recentProgress
        if progress["numInputRows"] and "addBatch" in progress["durationMs"]
    ]


def _banded(
    session: Any,
    directory: Path,
    workload: Workload,
    files: int,
    state: str,
    *,
    form: str = "parquet",
    watermark: str = "0 seconds",
    state_format: str = "4",
) -> Any:
    """The query's writer. Its input, output and checkpoint are in ``directory``; an epoch takes at most ``files`` of a side.

    ``state_format``: of RocksDB's, the fastest here; in memory there is the default alone.
    """
    from pyspark.sql import functions as F  # noqa: N812

    provider = f"org.apache.spark.sql.execution.streaming.state.{PROVIDERS[state]}"
    session.conf.set("spark.sql.streaming.stateStore.providerClass", provider)
    session.conf.set("spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled", "true")
    session.conf.set("spark.sql.streaming.stateStore.rocksdb.blockCacheSizeMB", "512")
    session.conf.set("spark.sql.streaming.join.stateFormatVersion", state_format if state == "RocksDB" else "2")
    session.conf.set("spark.sql.streaming.numRecentProgressUpdates", "1000")
    inputs = directory / "input"
    streams = (_stream(session, inputs, side, workload, files, form).withWatermark("at", watermark) for side in "lr")
    left, right = (stream.alias(side) for side, stream in zip("lr", streams, strict=True))
    low, high = (F.expr(f"floor((k {sign} {BAND}) / {BUCKET})") for sign in "-+")
    buckets = F.when(low == high, F.array(low)).otherwise(F.array(low, high))
    right = right.withColumn("b", F.explode(buckets)).alias("r")
    left = left.withColumn("b", F.expr(f"floor(k / {BUCKET})")).alias("l")
    condition = (
        f"l.b = r.b AND abs(l.k - r.k) <= {BAND} AND l.at >= r.at - INTERVAL {WINDOW} SECONDS AND l.at <= r.at + INTERVAL {WINDOW} SECONDS"
    )
    if workload.residual:
        condition += f" AND ({workload.residual})"
    output = left.join(right, F.expr(condition)).selectExpr(*workload.select)
    writer = output.writeStream.format(form).option("path", str(directory / "out"))
    return writer.option("checkpointLocation", str(directory / "checkpoint"))
