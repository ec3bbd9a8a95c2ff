"""Micro-batches of one streaming query of Spark's, staged for a join: who may stage them, and what each of them has.

The folder of a stream has ``stream.json`` (which query stages here, with which columns), ``batches/N.json`` (the files of micro-batch N)
and ``files/N-*.parquet``; and ``ended.json`` while nothing more is to come.

Always holds: a micro-batch is there whole or not at all, once its entry in ``batches`` is; of several attempts at one, whatever their rows
are, the first to create the entry counts. A file that no entry names is not read, and goes with the batch whose number it has.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq

from streamjoin.io.base import portions
from streamjoin.state.storage import AlreadyExists, Storage, found

STREAM, ENDED, BATCHES, FILES = "stream.json", "ended.json", "batches", "files"
FORMAT = 1
FILE_BYTES = 64 << 20
"""A file ends once its rows take more, as they are in memory."""


class StagedError(ValueError):
    """What is staged here is of another query, or has other columns. The text has the place and the remedy."""


@dataclass(frozen=True)
class Stream:
    """The stream that is staged in a folder."""

    query: str
    """The identifier of Spark's query, which its checkpoint keeps; a number of a batch means something for this query alone."""
    schema: str
    """The columns, as Spark DDL."""


@dataclass(frozen=True)
class Batch:
    """A micro-batch that is staged."""

    files: tuple[tuple[str, int], ...]
    """Path and bytes of each; a batch without rows has none."""
    at_ns: int
    """When it was staged, since 1970."""


def stream_in(storage: Storage) -> Stream | None:
    """The stream that is staged here; None: there is none yet. Raises StorageError."""
    data = found(storage, STREAM)
    if data is None:
        return None
    stream = json.loads(data)
    if stream["format"] != FORMAT:
        raise StagedError(f"{storage.url}: is of format {stream['format']!r}, and this version stages {FORMAT}; use the one that began it")
    return Stream(stream["query"], stream["schema"])


def claim(storage: Storage, stream: Stream) -> None:
    """Have this stream staged here, from now on and for good. Raises StagedError where another one is, StorageError."""
    there = stream_in(storage)
    if there is None:
        try:
            storage.create(STREAM, json.dumps({"format": FORMAT, "query": stream.query, "schema": stream.schema}).encode())
            return
        except AlreadyExists:
            there = stream_in(storage)
    assert there is not None
    if there.query != stream.query:
        why = "so batches of the one would be taken for batches of the other"
        remedy = "restore the checkpoint of the query that was here, or begin with a new checkpoint"
        raise StagedError(f"{storage.url}: is staged by query {there.query} of Spark's, not by {stream.query}, {why}; {remedy}")
    if there.schema != stream.schema:
        remedy = "select the columns that it was begun with, or begin with a new checkpoint"
        raise StagedError(f"{storage.url}: is staged with the columns {there.schema}, not {stream.schema}; {remedy}")


def batch(storage: Storage, number: int) -> Batch | None:
    """A micro-batch by its number; None: it is not staged. Raises StorageError."""
    data = found(storage, _entry(number))
    if data is None:
        return None
    entry = json.loads(data)
    return Batch(tuple((path, size) for path, size in entry["files"]), entry["at"])


def write(storage: Storage, number: int, rows: Iterable[pa.RecordBatch], schema: pa.Schema) -> Iterator[tuple[str, int]]:
    """Write rows of a micro-batch as files, and yield path and bytes of each, which ``commit`` makes a part of it. Memory: one file."""
    for portion in portions((each.cast(schema) for each in rows if each.num_rows), FILE_BYTES):
        yield _written(storage, number, portion, schema)


def commit(storage: Storage, number: int, files: Sequence[tuple[str, int]]) -> None:
    """Have a micro-batch staged with these files; if it is there already, that stays as it is. Durable on return. Raises StorageError."""
    try:
        storage.create(_entry(number), json.dumps({"files": files, "at": time.time_ns()}).encode())
    except AlreadyExists:
        return


def end(storage: Storage) -> None:
    """Say that all is staged that is to come. Raises StorageError."""
    storage.put(ENDED, b"{}")


def resume(storage: Storage) -> None:
    """Say that more may come. Raises StorageError."""
    storage.delete(ENDED)


def has_ended(storage: Storage) -> bool:
    """Whether all is staged that is to come. Raises StorageError."""
    return found(storage, ENDED) is not None


def numbers(storage: Storage) -> list[int]:
    """The numbers of the micro-batches that are staged and not removed, ascending. Raises StorageError. O(batches)."""
    return sorted(map(_number, storage.list(BATCHES)))


def remove(storage: Storage, below: int) -> None:
    """Remove the micro-batches with lower numbers, and what attempts at them have left. Raises StorageError. O(batches and files)."""
    paths = [*storage.list(BATCHES), *storage.list(FILES)]
    storage.delete_many([path for path in paths if _number(path) < below])


def _entry(number: int) -> str:
    return f"{BATCHES}/{number:012d}.json"


def _number(path: str) -> int:
    return int(path.rsplit("/", 1)[1][:12])


def _written(storage: Storage, number: int, rows: Sequence[pa.RecordBatch], schema: pa.Schema) -> tuple[str, int]:
    sink = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_batches(rows, schema), sink)
    data, path = sink.getvalue(), f"{FILES}/{number:012d}-{uuid.uuid4().hex}.parquet"
    storage.put(path, memoryview(data))
    return path, data.size
