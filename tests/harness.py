"""What the tests of whole joins share: streams in memory, an oracle in DuckDB, faults, and a driver that is started again after each.

The oracle shares no code with the engine: it gets all tuples of both streams and a condition in DuckDB's own words, and knows the window,
lateness and arrival order from their definitions alone.
"""

from __future__ import annotations

import functools
import json
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import yaml

from memory_reader import MemoryReader, MemorySplit
from streamjoin.compilation import compile_job
from streamjoin.controlplane.deployment import make_sources
from streamjoin.controlplane.driver import Driver
from streamjoin.epoch.ports import EpochResult
from streamjoin.io.base import Position, SourcePlan
from streamjoin.job import Job
from streamjoin.manifest import load
from streamjoin.state.storage import ObjectStorage, Storage, StorageError


@dataclass(frozen=True)
class Remote:
    """A directory in an object store, to be used where tests have a Path."""

    url: str

    def __truediv__(self, name: str) -> Remote:
        return Remote(f"{self.url}/{name}")

    def __str__(self) -> str:
        return self.url


class Far(ObjectStorage):
    """A directory from which nothing is mapped: blocks are fetched, as from an object store."""

    def local_path(self, path: str) -> None:
        return None

    def __reduce__(self) -> tuple[Any, ...]:
        return Far, (self.url,)


Root = Path | Remote
SECOND = 1_000_000
START = 1_700_000_000 * SECOND


class MemorySource:
    """A stream of given batches; every plan offers the next ``per_epoch[i]`` of them, whatever the limit."""

    def __init__(self, batches: Sequence[pa.RecordBatch], per_epoch: Sequence[int]) -> None:
        self.reader = MemoryReader(batches)
        self._batches = batches
        self._per_epoch = per_epoch

    def plan(
        self, position: Position | None, limit_records: int, now: float, final: bool = False, *, split_records: int | None = None
    ) -> SourcePlan:
        at = position or {"epoch": 0, "batch": 0, "records": 0}
        count = self._per_epoch[at["epoch"]] if at["epoch"] < len(self._per_epoch) else 0
        splits, records = [], at["records"]
        for index in range(at["batch"], min(at["batch"] + count, len(self._batches))):
            splits.append(MemorySplit(first_record=records, records=self._batches[index].num_rows, index=index))
            records += self._batches[index].num_rows
        end = at["batch"] + len(splits)
        if not splits and at["epoch"] < len(self._per_epoch):  # an epoch in which this stream is idle, and others may be
            splits.append(MemorySplit(first_record=records, records=0, index=-1))
        backlog = sum(batch.num_rows for batch in self._batches[end:])
        after = {"epoch": at["epoch"] + 1, "batch": end, "records": records}
        return SourcePlan(tuple(splits), after, records - at["records"], backlog, end == len(self._batches), records)

    def referenced(self, position: Position | None) -> frozenset[str]:
        return frozenset()


@dataclass(eq=False)
class Input:
    """One stream: its batches, and how many of them each epoch takes. Nobody changes them."""

    batches: list[pa.RecordBatch]
    per_epoch: list[int]

    def epochs(self) -> list[list[pa.RecordBatch]]:
        taken, found = 0, []
        for count in self.per_epoch:
            found.append(self.batches[taken : taken + count])
            taken += count
        return found

    def source(self) -> MemorySource:
        return MemorySource(self.batches, self.per_epoch)


class MemorySnapshots:
    """A source's snapshots in memory."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}

    def put(self, name: str, data: bytes) -> None:
        self.objects[name] = data

    def get(self, name: str) -> bytes:
        return self.objects[name]


def join_of(
    root: Root,
    *,
    on: str,
    window: dict[str, Any],
    name: str = "j",
    join_type: str = "inner",
    output: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """An entry of ``spec.joins`` whose results ``output_of(root)`` reads."""
    sink = {"files": {"path": str(root / "out"), "format": "parquet"}}
    results = {"select": ["l.rid AS a", "r.rid AS b"], "sink": sink} | (output or {})
    return {"name": name, "condition": on, "type": join_type, "window": window, "output": results}


def manifest_text(
    root: Root,
    *,
    types: tuple[str, str] = ("BIGINT", "BIGINT"),
    on: str = "",
    window: dict[str, Any] | None = None,
    model: str = "adsp",
    workers: int = 3,
    capacity: int = 1_000_000,
    watermark: str = "1h",
    max_ahead: str | None = None,
    output: dict[str, Any] | None = None,
    where: tuple[str | None, str | None] = (None, None),
    sources: tuple[str, dict[str, Any]] = ("json", {}),
    join_type: str = "inner",
    joins: Sequence[dict[str, Any]] = (),
    **spec: Any,
) -> str:
    """A manifest for two streams ``l`` and ``r`` with columns rid, k, v, at, whose sources tests may replace.

    ``joins``: several, made by ``join_of``, in place of the one that ``on``, ``window``, ``output`` and ``join_type`` describe. ``spec``:
    other fields of the manifest's, and ``streams`` in place of these two.
    """
    streams = []
    for name, kind, condition in zip("lr", types, where, strict=True):
        stream: dict[str, Any] = {
            "name": name,
            "source": {"files": {"path": str(root / f"in-{name}"), "format": sources[0]} | sources[1]},
            "schema": f"rid BIGINT, k {kind}, v INT, at TIMESTAMP",
            "eventTime": "at",
            "watermark": watermark,
            "expectedRate": 1000,
        }
        if max_ahead is not None:
            stream["maxAhead"] = max_ahead
        if condition:
            stream["where"] = condition
        streams.append(stream)
    body = {
        "streams": streams,
        "joins": list(joins) or [join_of(root, on=on, window=window or {}, join_type=join_type, output=output)],
        "scheme": {"model": model},
        "workers": {"min": workers, "max": workers, "capacityTuples": capacity},
        "checkpoint": {"location": str(root / "state")},
        "shedding": {"model": "off"},
    } | spec
    return yaml.safe_dump(
        {"apiVersion": "streamjoin.dev/v1beta1", "kind": "StreamJoin", "metadata": {"name": "test"}, "spec": body}, sort_keys=False
    )


def make_job(root: Root, **options: Any) -> Job:
    """The same object for the same manifest: nobody can change it, and a driver that is started again after each fault needs it often."""
    return _compiled(manifest_text(root, **options))


@functools.lru_cache
def _compiled(text: str) -> Job:
    return compile_job(load(text))


def make_batch(rows: Sequence[tuple[int, Any, int, int]], key_type: pa.DataType) -> pa.RecordBatch:
    """(rid, k, v, at in microseconds) rows as the streams' schema wants them."""
    rid, key, value, at = zip(*rows, strict=True) if rows else ((), (), (), ())
    return pa.RecordBatch.from_arrays(
        [pa.array(rid, pa.int64()), pa.array(key, key_type), pa.array(value, pa.int32()), pa.array(at, pa.timestamp("us", "UTC"))],
        names=["rid", "k", "v", "at"],
    )


def driver_for(job: Job, inputs: Sequence[Input | None], storage: Storage, runner: Any, **options: Any) -> Driver:
    """``inputs``: None for a stream of results; those that the manifest does not have (``outer_joins``) have none."""
    inputs = (*inputs, *[None] * (len(job.streams) - len(inputs)))
    own: Sequence[Any] = make_sources(job, storage) if None in inputs else inputs
    sources = tuple(source if one is None else one.source() for source, one in zip(own, inputs, strict=True))
    return Driver(job, storage, runner, sources=sources, **options)


def run_all(driver: Driver, *, epochs: int = 10_000) -> list[EpochResult]:
    """Start, step until nothing is new, and do not stop the runner."""
    driver.start()
    results = []
    for _ in range(epochs):
        result = driver.step(final=True)
        if result is None:
            return results
        results.append(result)
    raise AssertionError("the input never ended")


def output_of(root: Root) -> Counter[tuple[Any, ...]]:
    """The rows that a reader of the files sink sees, as a multiset."""
    found: Counter[tuple[Any, ...]] = Counter()
    if isinstance(root, Remote):
        storage = ObjectStorage(str(root / "out"))
        files: list[Any] = [pa.BufferReader(storage.get(item.name)) for item in storage.list_folder()]
    else:
        files = sorted((root / "out").glob("*.parquet"))
    for file in files:
        found.update(zip(*(column.to_pylist() for column in pq.read_table(file).columns), strict=True))
    return found


def late_of(root: Root, where: str = "state/dead-letters") -> set[tuple[str, int]]:
    """The late tuples among the dead letters, by stream and rid."""
    storage = ObjectStorage(str(root / where))
    files = [item.name for item in storage.list_folder() if item.name.endswith(".json")]
    letters = [json.loads(line) for name in files for line in storage.get(name).splitlines()]
    return {(letter["stream"], json.loads(letter["raw"])["rid"]) for letter in letters if ": late; " in letter["error"]}


def staged_of(root: Root) -> list[str]:
    """The files of the sink that are not published."""
    return ObjectStorage(str(root / "out")).list("_staging")


@dataclass
class Arrived:
    """A tuple as the oracle sees it."""

    row: tuple[Any, ...]
    epoch: int
    position: int
    others: int


def arrivals(inputs: tuple[Input, Input]) -> tuple[list[Arrived], list[Arrived]]:
    """Every record with its position in its stream and how many of the other stream's arrived before it (evenly interleaved epochs)."""
    found: tuple[list[Arrived], list[Arrived]] = ([], [])
    before = [0, 0]
    for epoch, batches in enumerate(zip(inputs[0].epochs(), inputs[1].epochs(), strict=True)):
        rows = [[row for batch in of_side for row in zip(*(c.to_pylist() for c in batch.columns), strict=True)] for of_side in batches]
        order = sorted(
            [(Fraction(2 * i + 1, 2 * len(rows[0])), 0, i) for i in range(len(rows[0]))]
            + [(Fraction(2 * j + 1, 2 * len(rows[1])), 1, j) for j in range(len(rows[1]))]
        )
        count = [0, 0]
        for _, side, index in order:
            found[side].append(Arrived(rows[side][index], epoch, before[side] + index, before[1 - side] + count[1 - side]))
            count[side] += 1
        before = [before[side] + len(rows[side]) for side in (0, 1)]
    return found


def micros(value: Any) -> int:
    return round(value.timestamp() * SECOND)


def on_time(tuples: list[Arrived], delay_micros: int) -> list[Arrived]:
    """The tuples that are not late: not older than the newest tuple of all epochs before the previous one, less the delay."""
    newest: dict[int, int] = {}
    for arrived in tuples:
        newest[arrived.epoch] = max(newest.get(arrived.epoch, 0), micros(arrived.row[3]))

    def is_late(arrived: Arrived) -> bool:
        before = [moment for epoch, moment in newest.items() if epoch <= arrived.epoch - 2]
        return bool(before) and micros(arrived.row[3]) < max(before) - delay_micros

    return [arrived for arrived in tuples if not is_late(arrived)]


def oracle(
    inputs: tuple[Input, Input],
    key_types: tuple[pa.DataType, pa.DataType],
    condition: str,
    inside: str,
    delay: int | None,
    *,
    kind: str = "inner",
    where: str = "true",
    left_out: Collection[tuple[str, int]] = (),
) -> Counter:
    """The expected (l.rid, r.rid) pairs. ``condition`` and ``inside`` are DuckDB SQL over l and r (rid, k, v, at, pos, oth; at in us).

    ``kind``: the join's type; None stands for the rid of a tuple that is not there. ``where``: which results are kept. ``left_out``: tuples
    that were not joined, by stream and rid.
    """
    connection = duckdb.connect()
    connection.execute("SET threads = 1")
    for name, tuples, key_type in zip("lr", arrivals(inputs), key_types, strict=True):
        kept = [a for a in (tuples if delay is None else on_time(tuples, delay)) if (name, a.row[0]) not in left_out]
        table = pa.table(
            {
                "rid": pa.array([a.row[0] for a in kept], pa.int64()),
                "k": pa.array([a.row[1] for a in kept], key_type),
                "v": pa.array([a.row[2] for a in kept], pa.int32()),
                "at": pa.array([None if a.row[3] is None else micros(a.row[3]) for a in kept], pa.int64()),
                "pos": pa.array([a.position for a in kept], pa.int64()),
                "oth": pa.array([a.others for a in kept], pa.int64()),
            }
        )
        connection.register(f"{name}_arrow", table)
        connection.execute(f"CREATE TABLE {name} AS SELECT * FROM {name}_arrow")
    connection.execute(f"CREATE TABLE pairs AS SELECT l.rid AS a, r.rid AS b FROM l, r WHERE ({condition}) AND ({inside})")
    all_pairs = f"SELECT a, b FROM pairs, l, r WHERE a = l.rid AND b = r.rid AND ({where})"
    left_alone = f"SELECT l.rid, r.rid FROM l LEFT JOIN r ON false WHERE l.rid NOT IN (SELECT a FROM pairs) AND ({where})"
    right_alone = f"SELECT l.rid, r.rid FROM r LEFT JOIN l ON false WHERE r.rid NOT IN (SELECT b FROM pairs) AND ({where})"
    queries = {
        "inner": [all_pairs],
        "left": [all_pairs, left_alone],
        "right": [all_pairs, right_alone],
        "full": [all_pairs, left_alone, right_alone],
        "semi": [f"SELECT l.rid, NULL FROM l WHERE l.rid IN (SELECT a FROM pairs) AND ({where})"],
        "anti": [f"SELECT l.rid, NULL FROM l WHERE l.rid NOT IN (SELECT a FROM pairs) AND ({where})"],
    }
    rows = [row for query in queries[kind] for row in connection.execute(query).fetchall()]
    connection.close()
    return Counter(rows)


class Crash(BaseException):
    """A process that died. Not an Exception, so that nothing in the engine can handle it."""


class FaultyStorage:
    """Storage whose n-th operation fails, before or after it took effect, or kills the process there."""

    def __init__(self, inner: Storage, chooser: Callable[[str, str], str | None]) -> None:
        self._inner = inner
        self._chooser = chooser
        self.url = inner.url

    def _call(self, name: str, path: str, *rest: Any) -> Any:
        fault = self._chooser(name, path)
        if fault == "fail-before":
            raise StorageError(f"{path}: injected failure before {name}")
        if fault == "die-before":
            raise Crash(f"before {name} {path}")
        result = getattr(self._inner, name)(path, *rest)
        if fault == "fail-after":
            raise StorageError(f"{path}: injected failure after {name}")
        if fault == "die-after":
            raise Crash(f"after {name} {path}")
        return result

    def put(self, path: str, data: Any) -> None:
        self._call("put", path, data)

    def create(self, path: str, data: bytes) -> None:
        self._call("create", path, data)

    def get(self, path: str) -> bytes:
        return self._call("get", path)

    def get_ranges(self, path: str, ranges: Sequence[tuple[int, int]]) -> list[memoryview]:
        return self._call("get_ranges", path, ranges)

    def list(self, prefix: str) -> list[str]:
        return self._call("list", prefix)

    def delete(self, path: str) -> None:
        self._call("delete", path)

    def delete_many(self, paths: Sequence[str]) -> None:
        for path in paths:
            self.delete(path)

    def local_path(self, path: str) -> Path | None:
        return self._inner.local_path(path)

    def __reduce__(self) -> Any:
        # Within one process the faults must stay: unpickling finds the same object again.
        _LIVE[id(self)] = self
        return _revive, (id(self),)


_LIVE: dict[int, FaultyStorage] = {}


def _revive(identity: int) -> FaultyStorage:
    return _LIVE[identity]
