"""Whole joins on Spark with real executors: a chosen set of the inline runner's cases, and processes that are really killed."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from harness import SECOND, START, Input, driver_for, make_batch, make_job, manifest_text, oracle, output_of, run_all
from streamjoin.epoch.ports import EpochFailed
from streamjoin.runner.spark import SparkRunner, SparkSettings, cause_of
from streamjoin.state.log import read_latest
from streamjoin.state.storage import ObjectStorage, StorageError

pytestmark = pytest.mark.spark
HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def runner(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkRunner]:
    os.environ["PYTHONPATH"] = str(HERE)  # the executors unpickle the test's sources
    runner = SparkRunner(SparkSettings(tmp_path_factory.mktemp("logs"), 512))
    yield runner
    runner.stop()


def make_inputs(key_type: pa.DataType, values: list[Any], seed: int, epochs: int = 6) -> tuple[Input, Input]:
    rng = random.Random(seed)

    def one() -> Input:
        batches, rid = [], 0
        for epoch in range(epochs):
            for _ in range(2):
                rows = []
                for _ in range(rng.randint(5, 40)):
                    rows.append((rid, rng.choice(values), rng.randint(0, 4), START + epoch * SECOND + rng.randint(0, SECOND)))
                    rid += 1
                batches.append(make_batch(rows, key_type))
        return Input(batches, [2] * epochs)

    return one(), one()


RANGE3 = {"within": "3s"}, f"abs(l.at - r.at) <= {3 * SECOND}"
CASES = {
    "band": ("abs(l.k - r.k) <= 2", "abs(l.k - r.k) <= 2", "BIGINT", pa.int64(), list(range(50)), "adsp", *RANGE3),
    "order with residual": (
        "l.k < r.k AND l.v <> r.v",
        "l.k < r.k AND l.v <> r.v",
        "DOUBLE",
        pa.float64(),
        [i / 4 for i in range(40)],
        "square",
        *RANGE3,
    ),
    "equal strings": ("l.k = r.k", "l.k = r.k", "STRING", pa.string(), ["", "a", "customer-1", "customer-2", None], "hash", *RANGE3),
    "unequal, unbounded": ("l.k != r.k", "l.k != r.k", "INT", pa.int32(), list(range(8)), "adsp", {"unbounded": True}, "true"),
    "rows": (
        "l.k >= r.k",
        "l.k >= r.k",
        "BIGINT",
        pa.int64(),
        list(range(20)),
        "adsp",
        {"rows": 9},
        "CASE WHEN l.pos < r.oth THEN l.pos >= r.oth - 9 ELSE r.pos >= l.oth - 9 END",
    ),
    "disjunction": ("l.k = r.k OR l.v = r.v", "l.k = r.k OR l.v = r.v", "INT", pa.int32(), list(range(30)), "adsp", *RANGE3),
}


@pytest.mark.parametrize("case", CASES)
def test_a_join_on_spark_equals_the_oracle(case: str, runner: SparkRunner, tmp_path: Path) -> None:
    on, expected, ddl, key_type, values, model, window, inside = CASES[case]
    inputs = make_inputs(key_type, values, seed=len(case))
    job = make_job(tmp_path, on=on, types=(ddl, ddl), window=window, model=model, workers=2, watermark="2s")
    driver = driver_for(job, inputs, ObjectStorage(str(tmp_path / "state")), runner)
    results = run_all(driver)
    assert sum(result.read_back for result in results[1:]) == 0, "tasks moved away from their runs"
    late = None if "unbounded" in window or "rows" in window else 2 * SECOND
    assert output_of(tmp_path) == oracle(inputs, (key_type, key_type), expected, inside, late)


def band_inputs() -> tuple[Input, Input]:
    return make_inputs(pa.int64(), list(range(50)), seed=5, epochs=8)


def band_expected(inputs: tuple[Input, Input]) -> Any:
    return oracle(inputs, (pa.int64(), pa.int64()), "abs(l.k - r.k) <= 2", RANGE3[1], 2 * SECOND)


def band_options() -> dict[str, Any]:
    return {"on": "abs(l.k - r.k) <= 2", "types": ("BIGINT", "BIGINT"), "window": RANGE3[0], "workers": 2, "watermark": "2s"}


def executors() -> list[psutil.Process]:
    found = []
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):  # it may end while it is looked at
            if "CoarseGrainedExecutorBackend" in " ".join(process.cmdline()):
                found.append(process)
    return found


def test_an_executor_that_is_killed_loses_nothing(runner: SparkRunner, tmp_path: Path) -> None:
    inputs = make_inputs(pa.int64(), list(range(50)), seed=5, epochs=11)
    epochs = iter(range(100))

    def kill_one(step: str) -> None:
        if step != "tasks":
            return
        epoch = next(epochs)
        if epoch in (2, 6):
            executors()[-1].send_signal(signal.SIGKILL)
        if epoch in (4, 8):  # Spark starts another in its place
            wait_until(lambda: len(runner.executors()) == 2)

    job = make_job(tmp_path, **band_options())
    driver = driver_for(job, inputs, ObjectStorage(str(tmp_path / "state")), runner, at=kill_one)
    results = run_all(driver)
    back = [result.read_back for result in results]
    assert sum(back[1:4]) >= 1, f"who took the lost executor's task over had to read its runs back: {back}"
    assert sum(back[1:6]) >= 2, f"as did the new executor, when it got the task: {back}"
    assert 0 in back[7:], f"then tasks stay where they are again: {back}"
    assert output_of(tmp_path) == band_expected(inputs)


def wait_until(condition: Callable[[], bool], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.05)


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


def test_a_block_write_that_fails_is_done_again(runner: SparkRunner, tmp_path: Path) -> None:
    inputs = band_inputs()
    storage = FailsInTasks(str(tmp_path / "state"), str(tmp_path / "marker"))
    driver = driver_for(make_job(tmp_path, **band_options()), inputs, storage, runner)
    run_all(driver)
    assert (tmp_path / "marker").exists()
    assert output_of(tmp_path) == band_expected(inputs)


def test_a_task_that_always_fails_is_one_clear_sentence(runner: SparkRunner, tmp_path: Path) -> None:
    inputs = band_inputs()
    driver = driver_for(make_job(tmp_path, **band_options()), inputs, ObjectStorage(str(tmp_path / "state")), runner)
    driver.start()
    (tmp_path / "out").write_text("a file where the sink's directory should be")
    with pytest.raises(EpochFailed) as failure:
        run_steps(driver)
    message = str(failure.value)
    assert "\n" not in message
    assert str(tmp_path / "out") in message
    assert "Traceback" in Path(message.rsplit("trace: ", 1)[1].rstrip(")")).read_text()


def run_steps(driver: Any) -> None:
    while driver.step(final=True) is not None:
        pass


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
    return subprocess.run(command, capture_output=True, text=True, timeout=180, check=False)


def test_the_cause_of_a_spark_failure_is_its_python_exception() -> None:
    trace = (
        "org.apache.spark.SparkException: Job aborted due to stage failure\n"
        "org.apache.spark.api.python.PythonException: Traceback (most recent call last):\n"
        '  File "x.py", line 1\n'
        "streamjoin.io.base.SourceError: /data/a.parquet: column k is missing; add it\n"
    )
    assert cause_of(trace) == "SourceError: /data/a.parquet: column k is missing; add it"
