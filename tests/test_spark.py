"""Whole joins on Spark as a laptop has it: one Java, and a process for each worker."""

from __future__ import annotations

import ast
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from harness import SECOND, START, driver_for, make_job, manifest_text, oracle, output_of
from joins import CASES, RANGE3, band_expected, band_inputs, band_options, check_case, make_inputs, steps
from streamjoin.epoch.ports import EpochFailed
from streamjoin.runner.spark import SparkRunner, SparkSettings, cause_of
from streamjoin.state.log import read_latest
from streamjoin.state.storage import ObjectStorage, StorageError
from waiting import PATIENCE_SECONDS
from worker_processes import executors

pytestmark = pytest.mark.spark
HERE = Path(__file__).parent


def start_spark(directory: Path, master: str | None = None, workers_per_executor: int = 1) -> SparkRunner:
    return SparkRunner(SparkSettings(directory, master=master, workers_per_executor=workers_per_executor, ui=True))


@pytest.fixture(scope="module")
def runner(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkRunner]:
    runner = start_spark(tmp_path_factory.mktemp("logs"))
    yield runner
    runner.stop()


@pytest.mark.parametrize("case", CASES)
def test_a_join_on_spark_equals_the_oracle(case: str, runner: SparkRunner, tmp_path: Path) -> None:
    check_case(case, runner, tmp_path, workers=2)


def test_each_workers_job_is_named_on_sparks_pages(runner: SparkRunner) -> None:
    runner.start([0, 1])
    tracker = runner.context.statusTracker()
    jobs = [tracker.getJobIdsForGroup(f"streamjoin-worker-{place}") for place in runner.pool.pids]
    assert [len(found) for found in jobs] == [1, 1]
    assert not executors(), "on a machine of one's own there is one Java"


def test_workers_share_what_one_process_has_loaded(runner: SparkRunner) -> None:
    runner.start([0, 1])
    daemons = {psutil.Process(pid).parents()[1] for pid in runner.pool.pids.values()}  # beyond each worker's own host
    [daemon] = daemons
    assert "streamjoin.runner.daemon" in daemon.cmdline()


LOAD = """
import os
from pathlib import Path
from streamjoin.runner import daemon
daemon.host.load()
print(sorted(Path(f"/proc/self/task/{thread}/comm").read_text().strip() for thread in os.listdir("/proc/self/task")))
"""


def test_what_the_daemon_loads_starts_no_thread_that_a_fork_would_lack() -> None:
    """Where jemalloc is Arrow's allocator, it has a thread, and begins it anew after a fork."""
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}  # as the runner gives them
    done = subprocess.run([sys.executable, "-c", LOAD], env=environment, capture_output=True, text=True, check=True)
    threads = [name for name in ast.literal_eval(done.stdout) if name != "jemalloc_bg_thd"]
    assert len(threads) == 1, threads


class FailsInTasks:
    """Storage on which the first write of a block fails in every process whose marker is not there yet."""

    def __init__(self, root: str, marker: str) -> None:
        self._inner, self._root, self._marker, self.url = ObjectStorage(root), root, marker, root

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def __reduce__(self) -> Any:
        return FailsInTasks, (self._root, self._marker)

    def put(self, path: str, data: Any) -> None:
        try:
            os.close(os.open(self._marker, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            self._inner.put(path, data)
            return
        raise StorageError(f"{path}: injected failure")


def test_an_epoch_in_which_a_block_write_fails_is_done_again(runner: SparkRunner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streamjoin.controlplane.planning.SMALL_BYTES", 0)
    inputs = band_inputs()
    storage = FailsInTasks(str(tmp_path / "state"), str(tmp_path / "marker"))
    driver = driver_for(make_job(tmp_path, **band_options()), inputs, storage, runner)
    driver.start()
    _, failures = steps(driver)
    assert ["injected failure" in str(failure) for failure in failures] == [True]
    assert (tmp_path / "marker").exists()
    assert output_of(tmp_path) == band_expected(inputs)


def test_a_task_that_always_fails_is_one_clear_sentence(runner: SparkRunner, tmp_path: Path) -> None:
    inputs = band_inputs()
    driver = driver_for(make_job(tmp_path, **band_options()), inputs, ObjectStorage(str(tmp_path / "state")), runner)
    driver.start()
    (tmp_path / "out").write_text("a file where the sink's directory should be")
    with pytest.raises(EpochFailed) as failure:
        driver.step(final=True)
    message = str(failure.value)
    assert "\n" not in message
    assert str(tmp_path / "out") in message
    assert "Traceback" in failure.value.detail


def test_a_driver_that_is_killed_at_any_step_is_resumed(tmp_path: Path) -> None:
    """One join, killed again and again: before and during the tasks, around the commit, before publishing, and while cleaning.

    The last driver has another number of workers.
    """
    inputs = make_inputs(pa.int64(), list(range(50)), seed=9, epochs=12)
    options = band_options() | {"watermark": "1h", "sources": ("parquet", {"maxFilesPerEpoch": 2})}
    (tmp_path / "join.yaml").write_text(manifest_text(tmp_path, **(options | {"workers": 1})))  # one starts sooner
    for name, one in zip("lr", inputs, strict=True):
        (tmp_path / f"in-{name}").mkdir()
        for index, batch in enumerate(one.batches):
            path = tmp_path / f"in-{name}" / f"{index:03d}.parquet"
            pq.write_table(pa.Table.from_batches([batch]), path)
            os.utime(path, (START / SECOND + index,) * 2)
    for step, visit in [("deploy", 1), ("during-tasks", 2), ("commit", 2), ("publish", 2), ("clean", 1)]:
        assert run_victim(tmp_path, step, visit).returncode == -signal.SIGKILL, step
    before = read_latest(ObjectStorage(str(tmp_path / "state")))
    assert before is not None
    assert before.checkpoint.epoch < 11, "something must be left to do"
    (tmp_path / "join.yaml").write_text(manifest_text(tmp_path, **options))
    finished = run_victim(tmp_path, "never", 0)
    assert finished.stdout.strip() == "done", finished.stderr[-2000:]
    assert output_of(tmp_path) == oracle(inputs, (pa.int64(), pa.int64()), "abs(l.k - r.k) <= 2", RANGE3[1], None)
    assert not list((tmp_path / "out" / "_staging").glob("*"))


def run_victim(root: Path, step: str, visit: int) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(HERE / "victim.py"), str(root), step, str(visit)]
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False)


def test_the_cause_of_a_spark_failure_is_its_python_exception() -> None:
    trace = (
        "org.apache.spark.SparkException: Job aborted due to stage failure\n"
        "org.apache.spark.api.python.PythonException: Traceback (most recent call last):\n"
        '  File "x.py", line 1\n'
        "streamjoin.io.base.SourceError: /data/a.parquet: column k is missing; add it\n"
    )
    assert cause_of(trace) == "SourceError: /data/a.parquet: column k is missing; add it"
    trace = trace.replace("streamjoin.io.base.SourceError: /data/a.parquet: column k is missing; add it", "x.StartFailed: it was killed")
    assert cause_of(trace) == "StartFailed: it was killed"
