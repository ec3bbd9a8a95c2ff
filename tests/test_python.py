"""Joins from Python: what ``import streamjoin`` gives, against DuckDB and the command line."""

from __future__ import annotations

import doctest
import importlib
import json
import logging
import signal
import subprocess
import sys
import threading
from collections import Counter
from datetime import timedelta
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
import yaml
from click.testing import CliRunner

import streamjoin
from streamjoin.cli import main
from streamjoin.controlplane.driver import Driver
from streamjoin.controlplane.garbage import GarbageCollector
from streamjoin.state.log import read_latest
from streamjoin.state.storage import ObjectStorage, StorageError
from waiting import PATIENCE_SECONDS

ROOT = Path(__file__).resolve().parent.parent
ROWS = 3000
EXPECTED = """
    SELECT l.id AS a, r.id AS b, CAST(l.k AS DECIMAL(10, 2)) AS k, l."at" AS "at"
    FROM l, r WHERE abs(l.k - r.k) <= 1 AND abs(epoch_us(l."at") - epoch_us(r."at")) <= 1000000
"""


def rows_of(name: str) -> list[dict[str, Any]]:
    """A stream's records, in the order in which they come."""
    seed = ord(name)
    return [{"id": n, "k": n * 7919 * seed % 401, "at": f"2026-03-01T00:00:{n % 60:02d}.{n % 7}Z"} for n in range(ROWS)]


@pytest.fixture
def inputs(tmp_path: Path) -> Path:
    """A directory with both streams, and none of the results."""
    for name in "lr":
        folder = tmp_path / name
        folder.mkdir()
        (folder / "all.json").write_text("".join(json.dumps(row) + "\n" for row in rows_of(name)))
    return tmp_path


def join_in(root: Path, *, output: dict[str, Any] | None = None, workers: Any = 2, **spec: Any) -> streamjoin.Join:
    stream = {"schema": "id BIGINT, k INT, at TIMESTAMP", "eventTime": "at", "watermark": timedelta(hours=1)}
    joins: dict[str, dict[str, Any]] = {"near": {"condition": "abs(l.k - r.k) <= 1", "window": {"within": "1s"}}}
    select = ["l.id AS a", "r.id AS b", "CAST(l.k AS DECIMAL(10, 2)) AS k", "l.at AS at"]
    joins["near"]["output"] = {"select": select, "sink": {"console": {"limit": 1}}} | (output or {})
    sources = {name: {"source": {"files": {"path": root / name, "format": "json", "settle": "0s"}}} for name in "lr"}
    return streamjoin.Join.of(
        "pairs",
        streams={name: sources[name] | stream for name in "lr"},
        joins=joins,
        checkpoint=root / "state",
        workers=workers,
        **({"epoch": {"interval": "10ms", "maxTuples": 500}} | spec),
    )


def counted(table: pa.Table) -> Counter[tuple[Any, ...]]:
    return Counter(zip(*(column.to_pylist() for column in table.columns), strict=True))


@pytest.fixture(scope="module")
def expected() -> Counter[tuple[Any, ...]]:
    """What DuckDB finds."""
    database = duckdb.connect()
    database.execute("SET TimeZone = 'UTC'")
    for name in "lr":
        rows = rows_of(name)
        table = pa.table({column: [row[column] for row in rows] for column in ("id", "k", "at")})
        database.register(f"{name}_text", table)
        database.execute(f'CREATE TABLE {name} AS SELECT id, k, CAST("at" AS TIMESTAMPTZ) AS "at" FROM {name}_text')
    return counted(database.sql(EXPECTED).to_arrow_table())


def test_importing_loads_nothing_heavy() -> None:
    script = (
        "import sys, streamjoin\nassert not {'pydantic', 'yaml', 'numpy'} & set(sys.modules), sys.modules\n"
        "streamjoin.Join\nprint(' '.join(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False)
    assert done.returncode == 0, done.stderr
    assert not {"pyarrow", "pyspark", "duckdb", "numba", "obstore", "matplotlib", "rich", "click"} & set(done.stdout.split())


def test_every_public_name_can_be_had_and_is_known_to_type_checkers() -> None:
    stub = (Path(streamjoin.__file__).parent / "__init__.pyi").read_text()
    for name in streamjoin.__all__:
        assert getattr(streamjoin, name) is not None
        assert f" {name}\n" in stub or f"{name}: " in stub, name
    assert set(dir(streamjoin)) == set(streamjoin.__all__)
    with pytest.raises(AttributeError, match="nothing"):
        _ = streamjoin.nothing


@pytest.mark.parametrize("module", ["streamjoin.api.join"])
def test_examples_in_docstrings_are_true(module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    found = doctest.testmod(importlib.import_module(module))
    assert found.attempted > 0
    assert found.failed == 0


def test_validate_gives_every_problem_with_field_value_and_remedy(tmp_path: Path) -> None:
    found = join_in(tmp_path, scaling={"tau1": 0.95}, no_such_field=1).validate()
    assert {problem.field for problem in found} == {"spec.noSuchField", "spec.scaling.tau1"}
    tau1 = next(problem for problem in found if problem.field == "spec.scaling.tau1")
    assert tau1.value == 0.95
    assert "tau2" in tau1.message


def test_what_needs_a_valid_manifest_raises_the_same_problems(tmp_path: Path) -> None:
    join = join_in(tmp_path, scaling={"tau1": 0.95})
    for use in (join.plan, join.run, lambda: join.query("SELECT 1"), join.results):
        with pytest.raises(streamjoin.ManifestError, match="tau1") as error:
            use()
        assert list(error.value.problems) == join.validate()


def test_a_file_s_name_in_place_of_data_is_refused_with_what_to_call() -> None:
    with pytest.raises(TypeError, match=r"manifest: 'near\.yaml' has no fields; use Join\.read for a file, and Join\.parse for text"):
        streamjoin.Join("near.yaml")  # type: ignore[arg-type]


def test_data_text_and_file_mean_the_same(tmp_path: Path) -> None:
    data = yaml.safe_load((ROOT / "examples/band.yaml").read_text())
    joins = [streamjoin.Join(data), streamjoin.Join.parse(json.dumps(data)), streamjoin.Join.read(ROOT / "examples/band.yaml")]
    assert len({str(join.manifest) for join in joins}) == 1
    assert [join.validate() for join in joins] == [[], [], []]


def test_a_file_that_cannot_be_read_and_one_of_several_manifests_are_named(tmp_path: Path) -> None:
    with pytest.raises(OSError, match=r"none\.yaml: cannot be read"):
        streamjoin.Join.read(tmp_path / "none.yaml")
    text = (ROOT / "examples/band.yaml").read_text()
    assert "is another StreamJoin" in str(streamjoin.Join.parse(f"{text}\n---\n{text}").validate()[0])
    assert len(streamjoin.Join.parse_all(f"{text}\n---\n{text}")) == 2


def test_plan_is_what_the_command_prints(tmp_path: Path) -> None:
    path = ROOT / "examples/band.yaml"
    outline = streamjoin.Join.read(path).plan(tasks=4)
    printed = CliRunner().invoke(main, ["plan", str(path), "--tasks", "4", "--save", str(tmp_path / "plan.json")]).output
    assert printed.startswith(f"{outline.model}: {outline.workers} tasks, {outline.scheme.summary}\n")
    assert f"by {outline.replication:.2f} tasks on average" in printed
    assert all(area.left_keys in printed for area in outline.areas)
    assert outline.plan.to_json() == json.loads((tmp_path / "plan.json").read_text())
    assert json.loads(json.dumps(outline.to_json()))["workers"] == 4
    assert len(outline.loads) == 4
    assert max(outline.utilization) == pytest.approx(max(outline.loads) / outline.capacity.amount)


def test_a_plan_is_gone_on_from_and_statistics_are_data() -> None:
    join = streamjoin.Join.read(ROOT / "examples/band.yaml")
    stats = {"left": {"tuples": 1000}, "right": {"tuples": 1000}}
    first = join.plan(stats=stats, tasks=2)
    second = join.plan(stats=stats, tasks=4, current=first.plan)
    assert second.plan.generation == first.plan.generation + 1
    assert 0 < second.moved_tuples < 8000
    with pytest.raises(ValueError, match="tuples: -1 must be"):
        join.plan(stats={"left": {"tuples": -1}, "right": {"tuples": 1}})
    with pytest.raises(ValueError, match="exclude each other"):
        join.plan(tasks=1, capacity=1)


def test_epochs_come_with_their_counts_and_results_and_are_all_that_there_is(
    inputs: Path, expected: Counter[tuple[Any, ...]], capfd: pytest.CaptureFixture[str]
) -> None:
    join = join_in(inputs)
    with join.run(runner="inline", until_idle=True) as run:
        epochs = list(run)
    assert run.reason is streamjoin.Reason.IDLE
    assert [epoch.number for epoch in epochs] == list(range(len(epochs)))
    assert len(epochs) >= ROWS // 500
    for stream in "lr":
        assert sum(epoch.counts[stream]["accepted"] for epoch in epochs) == ROWS
    found = pa.concat_tables(epoch.results["near"] for epoch in epochs)
    assert counted(found) == expected
    assert [epoch.results["near"].num_rows for epoch in epochs] == [epoch.output for epoch in epochs]
    assert all(epoch.seconds > 0 and epoch.workers == 2 and max(epoch.utilization.values()) < 1 for epoch in epochs)
    assert run.recovered == {}
    assert capfd.readouterr() == ("", ""), "a library prints nothing"


def test_a_run_that_is_left_goes_on_with_the_next_one_and_nothing_comes_twice(inputs: Path, expected: Counter[tuple[Any, ...]]) -> None:
    join, found, numbers = join_in(inputs), Counter[tuple[Any, ...]](), []
    for _ in range(3):
        with join.run(runner="inline", until_idle=True) as run:
            for epoch in run:
                found += counted(epoch.results["near"])
                numbers.append(epoch.number)
                if len(numbers) % 3 == 0:
                    break
        assert run.recovered == {}
    with join.run(runner="inline", until_idle=True) as run:
        for epoch in run:
            found += counted(epoch.results["near"])
            numbers.append(epoch.number)
    assert numbers == list(range(len(numbers)))
    assert found == expected


def test_what_a_process_that_died_had_committed_is_recovered(inputs: Path, expected: Counter[tuple[Any, ...]]) -> None:
    """A process that ends between a commit and the moment when its results were handed over."""
    script = f"""
import os, sys, pickle
sys.path.insert(0, {str(ROOT / "tests")!r})
from pathlib import Path
from test_python import counted, join_in
from streamjoin.io.inbox import InboxSink
found = []
publish = InboxSink.publish
def dying(self, staged, *, again=False):
    if len(found) == 4 and any(each.data for each in staged):
        Path({str(inputs / "found")!r}).write_bytes(pickle.dumps(found))
        os._exit(9)
    publish(self, staged, again=again)
InboxSink.publish = dying
for epoch in join_in(Path({str(inputs)!r})).run(runner="inline", until_idle=True):
    found.append(counted(epoch.results["near"]))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False)
    assert done.returncode == 9, done.stderr
    import pickle

    before = sum(pickle.loads((inputs / "found").read_bytes()), Counter())
    with join_in(inputs).run(runner="inline", until_idle=True) as run:
        after = sum((counted(epoch.results["near"]) for epoch in run), Counter())
    recovered = counted(run.recovered["near"])
    assert recovered
    assert before + recovered + after == expected


def test_results_of_an_epoch_that_failed_after_its_commit_are_recovered(
    inputs: Path, expected: Counter[tuple[Any, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    clean, found = GarbageCollector.clean, Counter[tuple[Any, ...]]()

    def failing(garbage: GarbageCollector, before: Any, after: Any, *rest: Any, **options: Any) -> None:
        if after.epoch == 3:
            raise StorageError("the disk is gone")
        clean(garbage, before, after, *rest, **options)

    with monkeypatch.context() as patch:
        patch.setattr(GarbageCollector, "clean", failing)
        run = join_in(inputs).run(runner="inline", until_idle=True)
        with pytest.raises(streamjoin.Failure, match="the disk is gone"):
            found.update(row for epoch in run for row in counted(epoch.results["near"]).elements())
    assert run.recovered["near"].num_rows > 0
    found += counted(run.recovered["near"])
    with join_in(inputs).run(runner="inline", until_idle=True) as run:
        for epoch in run:
            found += counted(epoch.results["near"])
    assert found == expected
    assert run.recovered == {}


def test_it_can_be_stopped_from_another_thread_and_limited_in_time(inputs: Path) -> None:
    join = join_in(inputs)
    run = join.run(runner="inline")
    first = next(run)
    assert first.number == 0
    threading.Timer(0.05, run.stop).start()
    assert run.wait() is streamjoin.Reason.STOPPED
    assert next(run, None) is None
    assert join.run(runner="inline", for_seconds=0.05).wait() is streamjoin.Reason.TIME


def test_arguments_that_cannot_be_are_refused(inputs: Path) -> None:
    join = join_in(inputs)
    with pytest.raises(ValueError, match="runner: 'flink' must be one of spark, inline"):
        join.run(runner="flink")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="for_seconds: 0 must be"):
        join.run(for_seconds=0)
    with pytest.raises(streamjoin.ManifestError, match=r"spec\.suspend"):
        join_in(inputs, suspend=True).run()


def test_a_run_that_fails_says_why_once_with_the_error_as_its_cause(inputs: Path) -> None:
    (inputs / "l" / "all.json").unlink()
    (inputs / "l").rmdir()
    run = join_in(inputs).run(runner="inline", until_idle=True)
    with pytest.raises(streamjoin.Failure, match="does not exist; create the directory") as error:
        next(run)
    assert type(error.value.__cause__).__name__ == "SourceError"
    assert error.value.code == 3
    assert run.reason is streamjoin.Reason.FAILED
    assert list(run) == []


def test_an_epoch_that_is_tried_again_is_logged(inputs: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    from streamjoin.epoch.ports import EpochFailed

    step, failures = Driver.step, iter([EpochFailed("epoch 0: the disk hiccups")])

    def hiccuping(driver: Driver, *, final: bool = False) -> Any:
        for error in failures:
            raise error
        return step(driver, final=final)

    monkeypatch.setattr(Driver, "step", hiccuping)
    with caplog.at_level(logging.WARNING, "streamjoin"), join_in(inputs).run(runner="inline", until_idle=True) as run:
        next(run)
    assert "epoch 0: the disk hiccups; trying again" in " ".join(caplog.messages)


def test_an_interrupt_ends_the_run_and_the_next_one_goes_on(inputs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    step, stop, stopped = Driver.step, Driver.stop, list[Driver]()

    def interrupted(driver: Driver, *, final: bool = False) -> Any:
        if driver.checkpoint.epoch == 1:
            raise KeyboardInterrupt
        return step(driver, final=final)

    with monkeypatch.context() as patch:
        patch.setattr(Driver, "step", interrupted)
        patch.setattr(Driver, "stop", lambda driver: (stopped.append(driver), stop(driver)))
        run = join_in(inputs).run(runner="inline", until_idle=True)
        with pytest.raises(KeyboardInterrupt):
            list(run)
    assert len(stopped) == 1
    assert run.reason is streamjoin.Reason.STOPPED
    with join_in(inputs).run(runner="inline", until_idle=True) as run:
        assert next(run).number == 2


def test_workers_come_and_go_and_decisions_are_told(inputs: Path, expected: Counter[tuple[Any, ...]]) -> None:
    join = join_in(inputs, workers={"min": 1, "max": 3, "capacityTuples": 2000})
    with join.run(runner="inline", until_idle=True, elastic=True) as run:
        epochs = list(run)
    assert sum((counted(epoch.results["near"]) for epoch in epochs), Counter()) == expected
    assert any(epoch.decision is not None for epoch in epochs)


@pytest.mark.parametrize("form", ["parquet", "json"])
def test_results_in_files_are_read_as_arrow(inputs: Path, expected: Counter[tuple[Any, ...]], form: str) -> None:
    join = join_in(inputs, output={"sink": {"files": {"path": inputs / "out", "format": form}}})
    assert list(join.results()) == [], "before the first epoch"
    with join.run(runner="inline", until_idle=True) as run:
        assert all(epoch.results == {} for epoch in run)
    reader = join.results("near")
    assert reader.schema.names == ["a", "b", "k", "at"]
    assert counted(reader.read_all()) == expected


def test_results_in_snapshots_are_read_and_asked_for(inputs: Path, expected: Counter[tuple[Any, ...]]) -> None:
    join = join_in(inputs, output={"snapshots": {"size": 300, "key": "a"}})
    with join.run(runner="inline", until_idle=True) as run:
        last = [epoch.number for epoch in run][-1]
    assert counted(join.results().read_all()) == expected
    answer = join.query("SELECT count(*) AS rows, sum(a) AS a FROM near")
    assert answer.to_pylist() == [{"rows": expected.total(), "a": sum(row[0] * count for row, count in expected.items())}]
    assert int(answer.schema.metadata[b"streamjoin.epoch"]) >= last
    few = join.query("SELECT a FROM near", limit=2)
    assert (few.num_rows, few.schema.metadata[b"streamjoin.truncated"]) == (2, b"true")
    newest = int(answer.schema.metadata[b"streamjoin.snapshot"])
    assert join.query("SELECT a FROM near", after=newest).num_rows == 0
    with pytest.raises(streamjoin.QueryError, match="nothing"):
        join.query("SELECT nothing FROM near")


def test_what_is_held_is_asked_for_while_it_runs(inputs: Path) -> None:
    join = join_in(inputs)
    with join.run(runner="inline") as run:
        epoch = next(run)
        answer = join.query("SELECT count(*) AS held FROM l")
    assert answer.to_pylist() == [{"held": epoch.counts["l"]["accepted"]}]
    assert answer.schema.metadata[b"streamjoin.epoch"] == str(epoch.number).encode()


def test_results_that_are_not_kept_are_refused_with_the_remedy(inputs: Path) -> None:
    with pytest.raises(ValueError, match=r"spec\.joins\[0\]\.output: .* give sink\.files, delta or iceberg, or snapshots"):
        join_in(inputs).results()
    with pytest.raises(ValueError, match="join: 'far' must be one of near"):
        join_in(inputs).results("far")


def test_a_checkpoint_of_the_command_is_gone_on_with_and_back(inputs: Path) -> None:
    join = join_in(inputs)
    data = {"apiVersion": "streamjoin.dev/v1beta1", "kind": "StreamJoin"}
    data |= yaml.safe_load(join.manifest.model_dump_json(by_alias=True, exclude_unset=True))
    with join.run(runner="inline") as run:
        first = next(run)
    path = inputs / "join.yaml"
    path.write_text(yaml.safe_dump(data))
    done = CliRunner().invoke(main, ["run", str(path), "--runner", "inline", "--until-idle", "--json"])
    assert done.exit_code == 0, done.output
    numbers = [json.loads(line)["epoch"] for line in done.stdout.splitlines() if '"event": "epoch"' in line]
    assert numbers[0] == first.number + 1
    with join.run(runner="inline", until_idle=True) as run:
        assert list(run) == []
    assert run.recovered == {}


def test_a_second_run_takes_over_and_the_first_says_so(inputs: Path) -> None:
    join = join_in(inputs)
    first, second = join.run(runner="inline"), join.run(runner="inline")
    next(first)
    next(second)
    with pytest.raises(streamjoin.Failure, match="one driver per checkpoint"):
        next(first)
    second.close()
    latest = read_latest(ObjectStorage(str(inputs / "state")))
    assert latest is not None
    assert latest.checkpoint.epoch >= 1


def test_the_example_finds_what_is_alike_and_a_second_run_nothing_new(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "examples/from_python.py")]
    first, second = (
        subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=True, cwd=tmp_path).stdout.splitlines()
        for _ in range(2)
    )
    epochs = [line for line in first if line.startswith("epoch")]
    assert len(epochs) == 10
    assert second == [line for line in first if line not in epochs]
    assert first[-3].startswith("{'sensor': 0, ")


@pytest.mark.spark
def test_it_runs_on_spark(inputs: Path, expected: Counter[tuple[Any, ...]]) -> None:
    before = signal.getsignal(signal.SIGINT)
    with join_in(inputs).run(until_idle=True) as run:
        found = sum((counted(epoch.results["near"]) for epoch in run), Counter())
    assert found == expected
    assert signal.getsignal(signal.SIGINT) is before


LEFT_OPEN = """
import sys
import streamjoin
run = streamjoin.Join.read(sys.argv[1]).run(runner=sys.argv[2])
next(run)
raise RuntimeError("the program's own")
"""
MADE_UP = """
apiVersion: streamjoin.dev/v1beta1
kind: StreamJoin
metadata: {name: near}
spec:
  streams:
    - &stream
      name: l
      source: {generator: {seed: 1, rows: 2000, rate: {constant: 1000}, realTime: false, columns: {k: {uniform: {min: 1, max: 500}}}}}
      schema: "k INT, at TIMESTAMP"
      eventTime: at
    - {<<: *stream, name: r}
  joins:
    - name: near
      condition: "abs(l.k - r.k) <= 1"
      window: {within: 1s}
      output: {select: ["l.k AS a", "r.k AS b"], sink: {files: {path: OUT, format: parquet}}}
  epoch: {interval: 50ms, maxTuples: 400}
  checkpoint: {location: STATE}
"""


@pytest.mark.parametrize("runner", ["inline", pytest.param("spark", marks=pytest.mark.spark)])
def test_a_program_that_ends_with_a_run_left_open_ends_and_the_next_run_goes_on(runner: str, tmp_path: Path) -> None:
    found = {}
    for name in ("whole", "in two"):
        manifest, out = tmp_path / f"{name}.yaml", tmp_path / name
        manifest.write_text(MADE_UP.replace("OUT", f'"{out}"').replace("STATE", f'"{tmp_path / name}-state"'))
        if name == "in two":
            command = [sys.executable, "-c", LEFT_OPEN, str(manifest), runner]
            done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False)
            assert (done.returncode, done.stderr.splitlines()[-1]) == (1, "RuntimeError: the program's own")
        with streamjoin.Join.read(manifest).run(runner="inline", until_idle=True) as run:
            assert run.wait() is streamjoin.Reason.IDLE
        found[name] = Counter(duckdb.read_parquet(f"{out}/*.parquet").fetchall())
    assert found["in two"] == found["whole"] != Counter()
