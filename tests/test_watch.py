"""What lets a join sleep and what wakes it: for how long its driver has had nothing to do, and who asks the sources meanwhile."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kafka_broker import KafkaBroker
from kafka_join import produce
from streamjoin.compilation import compile_job
from streamjoin.controlplane.deployment import make_sources
from streamjoin.controlplane.driver import Driver
from streamjoin.controlplane.idleness import Idleness
from streamjoin.controlplane.watch import Watch
from streamjoin.io.base import Position, SourcePlan, UnavailableError
from streamjoin.io.replays import ask
from streamjoin.job import Job
from streamjoin.manifest import load
from streamjoin.manifest import sources as models
from streamjoin.runner.inline import InlineRunner
from streamjoin.state.storage import ObjectStorage
from test_connectors import DDL, SOURCES, model_of, rows
from test_kafka_blocked import transactional
from waiting import wait_for

NOW = 4e9


def job_of(root: Path, source: Mapping[str, Any], **output: Any) -> Job:
    return compile_job(load(manifest_of(root, source, **output)))


def manifest_of(root: Path, source: Mapping[str, Any], **output: Any) -> str:
    """A join of what a source gives with files that nobody writes."""
    nothing = {"files": {"path": str(root / "nothing"), "format": "parquet"}}
    (root / "nothing").mkdir(exist_ok=True)
    streams = [{"name": name, "source": given, "schema": DDL} for name, given in (("a", source), ("b", nothing))]
    results = {"sink": {"files": {"path": str(root / "out")}}} | output
    spec = {
        "streams": streams,
        "joins": [{"condition": "a.id = b.id", "window": {"rows": 100}, "output": results}],
        "checkpoint": {"location": str(root / "state")},
    }
    return json.dumps({"apiVersion": "streamjoin.dev/v1beta1", "kind": "StreamJoin", "metadata": {"name": "q"}, "spec": spec})


def run(job: Job) -> None:
    """Until nothing is new, as a driver that is stopped then."""
    driver = Driver(job, ObjectStorage(job.checkpoint), InlineRunner(), clock=lambda: NOW)
    driver.start()
    while driver.step() is not None or driver.idleness.seconds is None:
        pass
    driver.stop()


def watch_of(job: Job) -> Watch:
    return Watch(job, ObjectStorage(job.checkpoint))


def objects(root: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}


WATCHED = ("files", "delta", "iceberg")
"""Whose rows can be added one after another here; batches of ``staged`` are numbered anew once they are read."""


@pytest.mark.parametrize("name", WATCHED)
def test_a_source_is_watched_without_consuming_or_writing_anything(name: str, tmp_path: Path) -> None:
    case = SOURCES[name]
    given = case.given(str(tmp_path))
    model = model_of(models.SOURCES[name], given)
    assert case.add is not None
    case.add(model, rows(range(20)))
    job = job_of(tmp_path, {name: given})
    run(job)
    before = objects(tmp_path)
    for _ in range(2):  # another process finds the same
        watch = watch_of(job)
        assert [watch.found(NOW), watch.found(NOW + 1)] == [None, None]
    assert objects(tmp_path) == before
    case.add(model, rows(range(20, 23)))
    after = objects(tmp_path)
    for _ in range(2):
        watch = watch_of(job)
        assert [watch.found(NOW), watch.found(NOW + 1)] == ["a has records that were not read"] * 2
    assert objects(tmp_path) == after
    run(job)
    assert watch_of(job).found(NOW) is None


def test_letters_that_are_to_be_read_again_wake_the_join(tmp_path: Path) -> None:
    given = {"files": {"path": str(tmp_path / "in"), "format": "json"}}
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "1.json").write_text('{"id": 1, "name": "n"}\n{"id": "x"}\n')
    job = job_of(tmp_path, given)
    run(job)
    assert watch_of(job).found(NOW) is None
    letters = [path.name for path in Path(job.dead_letter).iterdir() if path.is_file()]
    ask(ObjectStorage(job.checkpoint), letters, 0)
    assert watch_of(job).found(NOW) == "a has records that were not read"


def test_a_generator_that_is_over_wakes_nobody(tmp_path: Path) -> None:
    job = job_of(tmp_path, {"generator": SOURCES["generator"].given("")})
    run(job)
    assert watch_of(job).found(NOW) is None


def test_where_nothing_is_known_of_the_positions_there_is_something_to_do(tmp_path: Path) -> None:
    job = job_of(tmp_path, {"files": SOURCES["files"].given(str(tmp_path))})
    (tmp_path / "in").mkdir()
    assert watch_of(job).found(NOW) == "the checkpoint does not say where to go on in each stream"


@pytest.mark.kafka
def test_a_topic_is_watched_and_so_is_what_waits_behind_a_transaction(
    broker: KafkaBroker, topic: Callable[..., str], tmp_path: Path
) -> None:
    name = topic(2)
    produce(broker, name, [{"id": 1, "name": "n"}])
    job = job_of(tmp_path, {"kafka": {"bootstrapServers": broker.servers, "topic": name}})
    run(job)
    watch = watch_of(job)
    assert watch.found(NOW) is None
    producer = transactional(broker, name)
    producer.produce(name, b'{"id": 2}', partition=1)
    producer.flush()
    wait_for("it is seen", lambda: watch.found(NOW) is not None)
    producer.abort_transaction()
    produce(broker, name, [{"id": 3, "name": "n"}])
    wait_for("it is seen", lambda: watch_of(job).found(NOW) == "a has records that were not read")


def test_the_command_says_that_it_watches_and_ends_with_the_first_record(tmp_path: Path) -> None:
    given = SOURCES["files"].given(str(tmp_path))
    model = model_of(models.SOURCES["files"], given)
    assert SOURCES["files"].add is not None
    SOURCES["files"].add(model, rows(range(5)))
    text, answered = manifest_of(tmp_path, {"files": given}), tmp_path / "answered"
    run(job_of(tmp_path, {"files": given}))
    (tmp_path / "m.yaml").write_text(text)
    options = ("watch-sources", str(tmp_path / "m.yaml"), "--every=100ms", f"--answered={answered}")
    command = [sys.executable, "-m", "streamjoin", *options]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            wait_for("it watches", answered.exists)
            assert process.poll() is None
            SOURCES["files"].add(model, rows(range(5, 6)))
            wait_for("it ends", lambda: process.poll() is not None)
            assert process.stderr is not None
            assert (process.returncode, process.stderr.read()) == (0, "a has records that were not read\n")
            assert not answered.exists()
        finally:
            process.kill()


def test_a_watch_that_cannot_ask_ends_with_what_is_wrong(tmp_path: Path) -> None:
    given = {"delta": {"path": str(tmp_path / "table")}}
    SOURCES["delta"].add(model_of(models.SOURCES["delta"], given["delta"]), rows(range(5)))  # type: ignore[misc]
    run(job_of(tmp_path, given))
    for path in (tmp_path / "table" / "_delta_log").iterdir():
        path.unlink()
    (tmp_path / "m.yaml").write_text(manifest_of(tmp_path, given))
    (tmp_path / "answered").touch()
    command = [sys.executable, "-m", "streamjoin", "watch-sources", str(tmp_path / "m.yaml"), f"--answered={tmp_path / 'answered'}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 3, done.stderr
    assert str(tmp_path / "table") in done.stderr
    assert not (tmp_path / "answered").exists(), "nobody is to believe what was left by one that was killed"


def test_only_answers_make_a_join_idle() -> None:
    idleness, told = Idleness(), []
    for now, is_idle in ((10.0, True), (15.0, True), (5.0, True), (9.0, True), (20.0, False), (30.0, True)):
        idleness.heard(now, is_idle=is_idle)
        told.append(idleness.seconds)
    assert told == [0.0, 5.0, 0.0, 4.0, None, 0.0]


class Faulty:
    """A source that has, or says, what the test wants."""

    def __init__(self, inner: Any) -> None:
        self._inner, self.waits, self.fails = inner, 0, False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def plan(self, position: Position | None, limit_records: int, now: float, final: bool = False, **options: Any) -> SourcePlan:
        if self.fails:
            raise UnavailableError("the broker is away")
        plan = self._inner.plan(position, limit_records, now, final, **options)
        return replace(plan, backlog_records=plan.backlog_records + self.waits)


def test_a_driver_says_for_how_long_its_sources_have_had_nothing(tmp_path: Path) -> None:
    clock = [NOW]
    case = SOURCES["files"]
    given = case.given(str(tmp_path))
    (tmp_path / "in").mkdir()
    job = job_of(tmp_path, {"files": given})
    storage = ObjectStorage(job.checkpoint)
    own = make_sources(job, storage)
    source = Faulty(own[0])
    driver = Driver(job, storage, InlineRunner(), sources=(source, own[1]), clock=lambda: clock[0])  # type: ignore[arg-type]
    driver.start()

    def idle_after(seconds: float) -> float | None:
        clock[0] += seconds
        driver.step()
        return driver.idleness.seconds

    assert [idle_after(5), idle_after(5)] == [None, None], "where to go on is nowhere to be read yet"
    assert case.add is not None
    case.add(model_of(models.SOURCES["files"], given), rows(range(5)))
    assert idle_after(5) is None
    idle_after(60)  # what waited is visible, and that is durable
    idle_after(60)
    before = idle_after(0)
    assert before is not None
    assert [idle_after(7), idle_after(3)] == [before + 7, before + 10]
    source.waits = 1
    assert idle_after(5) is None, "it cannot be read yet, and is there"
    source.waits = 0
    assert [idle_after(5), idle_after(5)] == [0.0, 5.0]
    source.fails = True
    with pytest.raises(Exception, match="the broker is away"):
        driver.step()
    assert driver.idleness.seconds is None
    source.fails = False
    assert [idle_after(900), idle_after(5)] == [0.0, 5.0], "nobody knew meanwhile"
    driver.stop()


@pytest.mark.parametrize(("ends", "owes"), [({"every": "10s"}, True), ({"size": 100}, False)])
def test_a_join_whose_snapshot_ends_by_the_clock_is_not_idle_before(ends: dict[str, Any], owes: bool, tmp_path: Path) -> None:
    clock = [NOW]
    case = SOURCES["files"]
    given, others = case.given(str(tmp_path)), SOURCES["files"].given(str(tmp_path / "x"))
    assert case.add is not None
    case.add(model_of(models.SOURCES["files"], given), rows(range(5)))
    (tmp_path / "nothing").mkdir()
    case.add(model_of(models.SOURCES["files"], {**others, "path": str(tmp_path / "nothing")}), rows(range(5)))
    job = job_of(tmp_path, {"files": given}, select=["a.id AS id"], snapshots={"key": "id", **ends})
    driver = Driver(job, ObjectStorage(job.checkpoint), InlineRunner(), clock=lambda: clock[0], in_background=False)
    driver.start()
    while driver.step() is not None:
        pass
    clock[0] += 9
    driver.step()
    assert (driver.idleness.seconds is None) is owes
    for _ in range(3):
        clock[0] += 5
        driver.step()
    assert driver.idleness.seconds is not None
    driver.stop()
