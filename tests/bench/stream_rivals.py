"""Joins of three streams and more by others: Polars and DuckDB by hand, and Spark's stream-stream joins, one after another.

By hand, an epoch's results are found from each stream's new tuples in turn: they are joined with one stream after another along the edges,
with all tuples of the streams that come after theirs in the manifest, and with the held ones of those before, so that each result is
found once. Bands get the bucket trick of ``rivals``, where the copies are of what has been joined so far, which is the smaller part.

Always holds: an epoch takes one file of each stream, a second of event time. Nothing is durable but what Spark keeps.
"""

from __future__ import annotations

import multiprocessing
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from bench.rivals import BUCKET, OUTPUT, PROVIDERS, Timed, _session, _spent, paths
from bench.workloads import WINDOW
from harness import SECOND, START


@dataclass(frozen=True)
class Edge:
    """An equality of two streams' keys, or a band."""

    left: str
    left_key: str
    right: str
    right_key: str
    band: int = 0

    @property
    def sql(self) -> str:
        left, right = f"{self.left}.{self.left_key}", f"{self.right}.{self.right_key}"
        return f"abs({left} - {right}) <= {self.band}" if self.band else f"{left} = {right}"

    def seen_from(self, stream: str) -> tuple[str, str, str]:
        """(key of this stream, the other stream, its key)."""
        ends = ((self.left, self.left_key), (self.right, self.right_key))
        own, other = ends if stream == self.left else ends[::-1]
        return own[1], *other


@dataclass(frozen=True)
class Streams:
    """A join within ``WINDOW`` seconds."""

    keys: Mapping[str, tuple[str, ...]]
    """By stream, its key columns."""
    edges: tuple[Edge, ...]

    def schema(self, stream: str) -> str:
        return f"rid BIGINT, {', '.join(f'{key} BIGINT' for key in self.keys[stream])}, at TIMESTAMP"

    @property
    def condition(self) -> str:
        return " AND ".join(edge.sql for edge in self.edges)

    @property
    def select(self) -> tuple[str, ...]:
        return tuple(f"{stream}.rid AS {stream}_rid" for stream in self.keys)

    def steps(self, first: str) -> Iterator[tuple[str, list[Edge]]]:
        """The other streams, each with its edges to those before it; ``first`` begins."""
        joined = [first]
        while len(joined) < len(self.keys):
            found = {
                stream: [edge for edge in self.edges if {edge.left, edge.right} in [{stream, other} for other in joined]]
                for stream in self.keys
                if stream not in joined
            }
            stream = max(found, key=lambda stream: sum(1 if edge.band else 10 for edge in found[stream]))
            yield stream, found[stream]
            joined.append(stream)

    def banded(self, stream: str) -> set[str]:
        """Its keys that bands compare."""
        return {edge.seen_from(stream)[0] for edge in self.edges if edge.band and stream in (edge.left, edge.right)}


def bucketed(edges: Sequence[Edge]) -> Edge | None:
    """The band to find pairs by, where there is no equality."""
    return None if any(not edge.band for edge in edges) else edges[0]


def polars(root: Path, streams: Streams, files: int, engine: str) -> Iterator[int]:
    """``engine``: in-memory or streaming."""
    import polars as pl

    names = list(streams.keys)
    held: dict[str, list[Any]] = {name: [] for name in names}

    def read(name: str, number: int) -> Any:
        frame = pl.read_parquet(paths(root, name, range(number, number + 1)))
        frame = frame.rename({of: f"{name}_{of}" for of in frame.columns})
        return frame.with_columns((pl.col(f"{name}_{key}") // BUCKET).alias(f"{name}_{key}_b") for key in streams.banded(name))

    def near(edge: Edge) -> Any:
        return (pl.col(f"{edge.left}_{edge.left_key}") - pl.col(f"{edge.right}_{edge.right_key}")).abs() <= edge.band

    def recent(one: str, other: str) -> Any:
        return (pl.col(f"{one}_at") - pl.col(f"{other}_at")).dt.total_microseconds().abs() <= WINDOW * SECOND

    def found_from(first: str, new: Mapping[str, Any], every: Mapping[str, Any]) -> Any:
        frame, joined = new[first].lazy(), [first]
        for name, edges in streams.steps(first):
            other = every[name] if names.index(name) > names.index(first) else pl.concat([every[name].head(0), *held[name]])
            by = bucketed(edges)
            if by is None:
                ends = [edge.seen_from(name) for edge in edges if not edge.band]
                on = [f"{stream}_{key}" for _, stream, key in ends], [f"{name}_{own}" for own, _, _ in ends]
            else:
                own, stream, key = by.seen_from(name)
                low, high = ((pl.col(f"{stream}_{key}") + sign * by.band) // BUCKET for sign in (-1, 1))
                frame = pl.concat([frame.with_columns(low.alias("b")), frame.with_columns(high.alias("b")).filter(low != high)])
                on = ["b"], [f"{name}_{own}_b"]
            frame = frame.join(other.lazy(), left_on=on[0], right_on=on[1], coalesce=False)
            for test in [*(near(edge) for edge in edges if edge.band), *(recent(name, earlier) for earlier in joined)]:
                frame = frame.filter(test)
            frame = frame.drop("b", strict=False)
            joined.append(name)
        return frame.select(f"{name}_rid" for name in names)

    for number in range(files):
        new = {name: read(name, number) for name in names}
        held = {name: frames[-WINDOW:] for name, frames in held.items()}
        every = {name: pl.concat([*held[name], new[name]]) for name in names}
        result = pl.concat([found_from(name, new, every) for name in names]).collect(engine=engine)
        result.write_parquet(root / OUTPUT, compression="snappy")
        for name in names:
            held[name].append(new[name])
        yield result.height


def duckdb(root: Path, streams: Streams, files: int) -> Iterator[int]:
    """Held tuples in tables, hash joins, one Parquet file an epoch."""
    import duckdb

    names = list(streams.keys)
    with duckdb.connect() as database:
        for name in names:
            columns = ", ".join(f"{of} BIGINT" for of in ("rid", *streams.keys[name], "ts", *(f"{key}_b" for key in streams.banded(name))))
            database.execute(f"CREATE TABLE held_{name} ({columns})")
            database.execute(f"CREATE TABLE new_{name} ({columns})")
            database.execute(f"CREATE VIEW every_{name} AS SELECT * FROM held_{name} UNION ALL SELECT * FROM new_{name}")
        query = " UNION ALL ".join(_from(streams, name) for name in names)
        for number in range(files):
            for name in names:
                buckets = "".join(f", {key} // {BUCKET}" for key in streams.banded(name))
                taken = f'rid, {", ".join(streams.keys[name])}, epoch_us("at"){buckets}'
                database.execute(f"DELETE FROM held_{name} WHERE ts < {START + (number - WINDOW) * SECOND}")
                database.execute(f"DELETE FROM new_{name}")
                source = f"read_parquet({paths(root, name, range(number, number + 1))})"
                database.execute(f"INSERT INTO new_{name} SELECT {taken} FROM {source}")
            database.execute(f"COPY ({query}) TO '{root / OUTPUT}' (FORMAT parquet, COMPRESSION snappy)")
            for name in names:
                database.execute(f"INSERT INTO held_{name} SELECT * FROM new_{name}")
            yield int(pq.read_metadata(root / OUTPUT).num_rows)


def _from(streams: Streams, first: str) -> str:
    """SQL for the results that have a new tuple of this stream, and of none before it."""
    names, joined = list(streams.keys), [first]

    def columns(name: str) -> str:
        return ", ".join(f"{name}.{of} AS {name}_{of}" for of in ("rid", *streams.keys[name], "ts"))

    query = f"SELECT {columns(first)} FROM new_{first} {first}"
    for name, edges in streams.steps(first):
        table = f"{'every' if names.index(name) > names.index(first) else 'held'}_{name}"
        by, tests = bucketed(edges), []
        if by is not None:
            own, stream, key = by.seen_from(name)
            low, high = (f"({stream}_{key} {sign} {by.band}) // {BUCKET}" for sign in "-+")
            query = f"SELECT *, unnest(CASE WHEN {low} = {high} THEN [{low}] ELSE [{low}, {high}] END) AS b FROM ({query})"
            tests.append(f"s.b = {name}.{own}_b")
        for edge in edges:
            own, stream, key = edge.seen_from(name)
            difference = f"s.{stream}_{key} - {name}.{own}"
            tests.append(f"abs({difference}) <= {edge.band}" if edge.band else f"s.{stream}_{key} = {name}.{own}")
        tests += [f"abs(s.{other}_ts - {name}.ts) <= {WINDOW * SECOND}" for other in joined]
        kept = "s.*" if by is None else "s.* EXCLUDE (b)"
        query = f"SELECT {kept}, {columns(name)} FROM ({query}) s JOIN {table} {name} ON {' AND '.join(tests)}"
        joined.append(name)
    return f"SELECT {', '.join(f'{name}_rid' for name in names)} FROM ({query})"


def in_a_process(way: Callable[[Path, Streams, int], Timed], root: Path, streams: Streams, files: int) -> Timed:
    """Runs a rival that needs a Java of its own; StreamJoin's executors are there meanwhile, and idle."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(_quietly, way, root, streams, files).result()


def _quietly(way: Callable[[Path, Streams, int], Timed], root: Path, streams: Streams, files: int) -> Timed:
    with open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), 2)
    return way(root, streams, files)


def chained(root: Path, streams: Streams, files: int, *, state: str) -> Timed:
    """Spark's stream-stream joins, one after another; output and state exactly once as Spark does it.

    The results are given as one number, all of them in the last epoch.
    """
    directory = Path(tempfile.mkdtemp(prefix="rival-", dir=root))
    for name in streams.keys:
        folder = directory / f"in-{name}"
        folder.mkdir()
        for path in paths(root, name, range(files)):
            os.link(path, folder / Path(path).name)
    session = _session(directory)
    session.conf.set("spark.sql.streaming.stateStore.providerClass", f"org.apache.spark.sql.execution.streaming.state.{PROVIDERS[state]}")
    session.conf.set("spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled", "true")
    session.conf.set("spark.sql.streaming.stateStore.rocksdb.blockCacheSizeMB", "512")
    session.conf.set("spark.sql.streaming.join.stateFormatVersion", "4" if state == "RocksDB" else "2")
    session.conf.set("spark.sql.streaming.numRecentProgressUpdates", "1000")
    writer = _chain(session, directory, streams).writeStream.format("parquet").option("path", str(directory / "out"))
    query = writer.option("checkpointLocation", str(directory / "checkpoint")).trigger(availableNow=True).start()
    query.awaitTermination()
    spent = _spent(query)[:files]
    found = session.read.parquet(str(directory / "out")).count()
    session.stop()
    shutil.rmtree(directory, ignore_errors=True)
    return spent, [*[0] * (len(spent) - 1), found]


def _chain(session: Any, directory: Path, streams: Streams) -> Any:
    """The joined stream of rids. Each join has a bound on the event times of the first stream, by which Spark drops state."""
    from pyspark.sql import functions as F  # noqa: N812

    def read(name: str) -> Any:
        reader = session.readStream.schema(streams.schema(name)).option("maxFilesPerTrigger", 1)
        frame = reader.parquet(str(directory / f"in-{name}")).withWatermark("at", "0 seconds")
        return frame.select(*(F.col(of).alias(f"{name}_{of}") for of in ("rid", *streams.keys[name], "at")))

    first = next(iter(streams.keys))
    frame, joined = read(first), [first]
    for name, edges in streams.steps(first):
        other, by, tests = read(name), bucketed(edges), []
        if by is not None:
            own, stream, key = by.seen_from(name)
            low, high = (F.expr(f"floor(({stream}_{key} {sign} {by.band}) / {BUCKET})") for sign in "-+")
            frame = frame.withColumn("b", F.explode(F.when(low == high, F.array(low)).otherwise(F.array(low, high))))
            other = other.withColumn("other_b", F.expr(f"floor({name}_{own} / {BUCKET})"))
            tests.append("b = other_b")
        for edge in edges:
            own, stream, key = edge.seen_from(name)
            difference = f"{stream}_{key} - {name}_{own}"
            tests.append(f"abs({difference}) <= {edge.band}" if edge.band else f"{stream}_{key} = {name}_{own}")
        for earlier in joined:
            bound = f"{earlier}_at {{}} INTERVAL {WINDOW} SECONDS"
            tests += [f"{name}_at >= {bound.format('-')}", f"{name}_at <= {bound.format('+')}"]
        frame = frame.join(other, F.expr(" AND ".join(tests))).drop("b", "other_b")
        joined.append(name)
        # A stateful operator takes one column with a watermark: that of the first stream.
        frame = frame.withColumns({f"{each}_at": F.expr(f"{each}_at + INTERVAL 0 SECONDS") for each in joined[1:]})
    return frame.select(*(f"{name}_rid" for name in streams.keys))
