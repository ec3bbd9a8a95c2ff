"""What was read last of a join's results is in memory, and never more than it may be; what was let go does not come back from there."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from harness import driver_for
from streamjoin.job import Job
from streamjoin.query.catalog import Catalog
from streamjoin.query.execution import asked
from streamjoin.query.messages import Limits
from streamjoin.query.recent import RecentStorage
from streamjoin.runner.inline import InlineRunner
from streamjoin.state.storage import ObjectStorage
from test_snapshots import Clock, expected, job_with, make_inputs


class Far(RecentStorage):
    """Nothing can be mapped, as in an object store."""

    def local_path(self, path: str) -> Path | None:
        return None


@pytest.fixture
def fetched(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often each object was read from the storage."""
    counts = Counter[str]()
    get = ObjectStorage.get

    def counted(storage: ObjectStorage, path: str) -> bytes:
        counts[path] += 1
        return get(storage, path)

    monkeypatch.setattr(ObjectStorage, "get", counted)
    return counts


def run(root: Path, snapshots: dict[str, Any], clock: Clock, epochs: int = 8) -> tuple[Job, Counter]:
    inputs = make_inputs(epochs=epochs)
    job = job_with(root, {"every": "2s"} | snapshots)
    driver = driver_for(job, inputs, ObjectStorage(job.checkpoint), InlineRunner(), clock=clock, in_background=False)
    driver.start()
    while driver.step() is not None:
        clock.now += 1.0
    driver.stop()
    return job, expected(inputs)


def found(job: Job, storage: Far) -> Counter:
    with asked(storage, Catalog.of(job), "SELECT a, b FROM j", Limits()) as answer:
        return Counter(tuple(row.values()) for batch in answer.batches for row in batch.to_pylist())


def test_files_and_parts_are_read_once_and_what_there_is_is_asked_anew(tmp_path: Path, fetched: Counter[str]) -> None:
    job, wanted = run(tmp_path, {}, Clock())
    storage = Far(job.checkpoint)
    fetched.clear()
    assert found(job, storage) == found(job, storage) == wanted
    files = {path: count for path, count in fetched.items() if path.startswith("snapshot") and "/index/" not in path}
    assert len(files) > 2
    assert set(files.values()) == {1}
    assert all(count == 2 for path, count in fetched.items() if "/index/" in path)


def test_no_more_is_remembered_than_may_be_and_the_newest_stays(tmp_path: Path, fetched: Counter[str]) -> None:
    job, wanted = run(tmp_path, {}, Clock())
    paths = [path for path in ObjectStorage(job.checkpoint).list("snapshots/j") if path.endswith(".parquet")]
    sizes = [len(ObjectStorage(job.checkpoint).get(path)) for path in paths]
    storage = Far(job.checkpoint, most_bytes=2 * max(sizes))
    assert found(job, storage) == wanted
    for path in paths:
        storage.get(path)
    fetched.clear()
    storage.get(paths[-1])
    assert not fetched
    storage.get(paths[0])
    assert fetched == {paths[0]: 1}
    nothing = Far(job.checkpoint, most_bytes=0)
    assert found(job, nothing) == wanted


def test_what_was_let_go_is_not_answered_from_memory(tmp_path: Path) -> None:
    clock = Clock()
    job, wanted = run(tmp_path, {}, clock)
    storage = Far(job.checkpoint)
    assert found(job, storage) == wanted
    for path in storage.list("snapshots/j/index"):
        storage.delete(path)
    assert sum(found(job, storage).values()) < sum(wanted.values())
