"""Micro-batches of Spark's that are staged for a join, without Spark: which of several attempts counts, and what is read and removed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import psutil
import pyarrow as pa
import pytest

from harness import MemorySnapshots
from streamjoin.io import staged
from streamjoin.io.base import Follower, Source, SourceError
from streamjoin.io.factory import make_source
from streamjoin.language.ddl import parse_schema
from streamjoin.manifest.connectors.staged import StagedSource
from streamjoin.runner import beside
from streamjoin.state.storage import ObjectStorage
from waiting import PATIENCE_SECONDS

DDL = "id BIGINT"
SCHEMA = pa.schema([("id", pa.int64())])
NOW = 4e9


@pytest.fixture
def storage(tmp_path: Path) -> ObjectStorage:
    made = ObjectStorage(str(tmp_path / "in"))
    staged.claim(made, staged.Stream("a query", DDL))
    return made


def write(storage: ObjectStorage, number: int, *ids: int) -> list[tuple[str, int]]:
    return list(staged.write(storage, number, [pa.RecordBatch.from_pydict({"id": list(ids)}, SCHEMA)], SCHEMA))


def source_of(storage: ObjectStorage) -> Source:
    model = StagedSource.model_validate({"path": storage.url})
    return make_source(model, parse_schema(DDL), None, snapshots=MemorySnapshots(), exact_counts=False)


def ids_after(storage: ObjectStorage, position: dict[str, object] | None = None) -> tuple[list[int], dict[str, object]]:
    source = source_of(storage)
    plan = source.plan(position, 1000, NOW)
    return [row["id"] for split in plan.splits for part in source.reader.read(split) for row in part.batch.to_pylist()], plan.position


def test_the_first_attempt_at_a_micro_batch_counts_whatever_rows_a_later_one_has(storage: ObjectStorage) -> None:
    staged.commit(storage, 0, write(storage, 0, 1, 2))
    staged.commit(storage, 0, write(storage, 0, 3))
    staged.commit(storage, 1, [])
    write(storage, 2, 4)  # an attempt that died before its entry
    assert ids_after(storage)[0] == [1, 2]


def test_what_a_commit_has_passed_is_removed_and_not_read_if_it_comes_again(storage: ObjectStorage) -> None:
    for number in range(3):
        staged.commit(storage, number, write(storage, number, number))
        write(storage, number, 100 + number)  # what another attempt has left
    found, position = ids_after(storage)
    assert found == [0, 1, 2]
    source = source_of(storage)
    assert isinstance(source, Follower)
    source.committed({**position, "mark": [1]})
    assert staged.numbers(storage) == [2]
    assert len(storage.list(staged.FILES)) == 2
    source.committed({**position, "file": 0})
    assert staged.numbers(storage) == [2], "it is read in part"
    source.committed(position)
    assert storage.list(staged.FILES) == []
    staged.commit(storage, 2, write(storage, 2, 7))
    staged.commit(storage, 3, write(storage, 3, 8))
    assert ids_after(storage, position)[0] == [8]


def test_a_micro_batch_that_is_missing_between_others_is_an_error(storage: ObjectStorage) -> None:
    staged.commit(storage, 1, write(storage, 1, 1))
    with pytest.raises(SourceError, match="micro-batch 0 was not read yet and is gone, and 1 is there; restore it, or begin"):
        ids_after(storage)


def test_a_folder_belongs_to_one_query_and_its_columns(storage: ObjectStorage) -> None:
    staged.claim(storage, staged.Stream("a query", DDL))
    with pytest.raises(staged.StagedError, match=r"is staged by query a query of Spark's, not by another.*begin with a new checkpoint"):
        staged.claim(storage, staged.Stream("another", DDL))
    with pytest.raises(staged.StagedError, match="is staged with the columns id BIGINT, not id INT; select the columns"):
        staged.claim(storage, staged.Stream("a query", "id INT"))


def test_a_large_micro_batch_is_several_files(storage: ObjectStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staged, "FILE_BYTES", 20)
    batches = [pa.RecordBatch.from_pydict({"id": [first, first + 1]}, SCHEMA) for first in range(0, 8, 2)]
    files = list(staged.write(storage, 0, batches, SCHEMA))
    assert len(files) == 2
    staged.commit(storage, 0, files)
    assert ids_after(storage)[0] == list(range(8))


def test_a_host_ends_with_its_executor() -> None:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    executor = beside.Executor(process.pid, psutil.Process(process.pid).create_time())
    check = beside.watch(executor)
    check()
    process.kill()
    process.wait(PATIENCE_SECONDS)
    with pytest.raises(beside.ExecutorGone):
        check()
    with pytest.raises(beside.ExecutorGone):
        beside.watch(beside.Executor(os.getpid(), 0.0))()
    beside.watch(None)()
