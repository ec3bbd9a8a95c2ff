"""A join that stands still: what it says of itself meanwhile, who gives it up, and that it then goes on to the oracle's results."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from harness import FaultyStorage, Input, driver_for, make_job, output_of
from joins import band_expected, band_options, make_inputs, steps
from streamjoin.api.loop import STALLS, Ended, Loop, Reason
from streamjoin.cli.exits import Exit
from streamjoin.cli.watchdog import BEATS, Watchdog
from streamjoin.controlplane.driver import Driver
from streamjoin.epoch.ports import EpochFailed
from streamjoin.epoch.progress import LEAST_SECONDS, TIMES_USUAL, Activity, ProgressMonitor
from streamjoin.runner import roster
from streamjoin.runner.inline import InlineRunner
from streamjoin.serve.metrics import Metrics
from streamjoin.state.storage import ObjectStorage
from waiting import PATIENCE_SECONDS, wait_for
from worker_processes import ProcessRunner

pytestmark = pytest.mark.xdist_group("hosts")  # one process forks all hosts
SILENT = """
import threading
from streamjoin.runner import worker
worker.Part.begun = lambda *arguments: threading.Event().wait()
"""
"""Of a host: its workers are there, speak, and never finish a join."""


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Workers:
    """Those of a runner whose tasks run elsewhere."""

    waits_for: tuple[str, ...] | None = ("worker at place 1",)
    moved_at = 0.0


def is_lost(progress: ProgressMonitor) -> bool:
    return progress.activity is not None and progress.activity.is_lost


def test_between_epochs_nothing_stands_still() -> None:
    clock = Clock()
    progress = ProgressMonitor(Workers(), 10.0, clock=clock)
    progress.enter(3, "plan")
    progress.leave()
    clock.now = 1e6
    assert progress.activity is None


def test_the_deadline_is_generous_and_grows_with_what_epochs_take() -> None:
    progress = ProgressMonitor(Workers(), None)
    assert progress.deadline_seconds == LEAST_SECONDS
    progress.committed(1.0)
    assert progress.deadline_seconds == LEAST_SECONDS
    progress.committed(200.0)
    assert progress.deadline_seconds == TIMES_USUAL * 200
    assert ProgressMonitor(Workers(), 30.0).deadline_seconds == 30


def test_a_step_of_the_driver_itself_is_lost_after_the_deadline_and_noticed_before() -> None:
    clock = Clock()
    progress = ProgressMonitor(Workers(), 10.0, clock=clock)
    progress.enter(3, "commit")
    seen = []
    for clock.now in (1.0, 3.0, 9.0, 11.0):
        assert progress.activity is not None
        seen.append((progress.activity.is_noticed, progress.activity.is_lost, progress.activity.waits_for))
    assert seen == [(False, False, ()), (True, False, ()), (True, False, ()), (True, True, ())]


def test_workers_that_get_on_keep_an_epoch_alive_and_those_that_do_not_are_first_the_pools_to_give_up() -> None:
    clock, workers = Clock(), Workers()
    progress = ProgressMonitor(workers, 10.0, clock=clock)
    progress.enter(3, "tasks")
    for clock.now in range(0, 1000, 5):
        workers.moved_at = clock.now - 1
        assert progress.activity is not None
        assert not progress.activity.is_noticed
    clock.now += 20
    assert progress.activity is not None
    assert (progress.activity.is_noticed, progress.activity.is_lost, progress.activity.waits_for) == (True, False, ("worker at place 1",))
    clock.now += 200
    assert is_lost(progress)


class Blocked:
    """Where a call does not come back before the test's end, or until it is let go."""

    def __init__(self) -> None:
        self.there, self.free = threading.Event(), threading.Event()

    def wait(self) -> None:
        self.there.set()
        self.free.wait()


@pytest.fixture
def blocked() -> Iterator[Blocked]:
    blocked = Blocked()
    yield blocked
    blocked.free.set()


class Clogged:
    """A sink's, or a source's, broker that never answers."""

    def __init__(self, inner: Any, method: str, blocked: Blocked) -> None:
        self._inner, self._method, self._blocked = inner, method, blocked

    def __getattr__(self, name: str) -> Any:
        if name == self._method:
            self._blocked.wait()
        return getattr(self._inner, name)


def stopped_at(step: str, tmp_path: Path, blocked: Blocked, inputs: tuple[Input, Input]) -> Driver:
    """A driver whose own thread is blocked in a step of its second epoch."""
    second = threading.Event()

    def choose(name: str, path: str) -> None:
        if step == "commit" and second.is_set() and name == "create" and path.startswith("log/"):
            blocked.wait()

    job = replace(make_job(tmp_path, **band_options()), deadline_seconds=1.0)
    driver = driver_for(job, inputs, FaultyStorage(ObjectStorage(str(tmp_path / "state")), choose), InlineRunner())
    driver.start()
    driver.step()
    second.set()
    if step == "publish":
        driver._commits.sink = Clogged(driver._commits.sink, "publish", blocked)
    if step == "plan":
        driver._commits.sources = (Clogged(driver._commits.sources[0], "plan", blocked), driver._commits.sources[1])
    return driver


UNHEARD = """
import os, pathlib, threading
from streamjoin.cli.watchdog import Watchdog, end_process
from streamjoin.epoch.progress import Activity
Watchdog(lambda: Activity(3, "plan", 9.0, 1.0), lambda lost: end_process(lost, pathlib.Path("logs")), poll_seconds=0.01).__enter__()
threading.Event().wait()
"""


def test_a_process_that_nobody_hears_any_more_is_ended_all_the_same(tmp_path: Path) -> None:
    """Whoever started it has gone, and with it the other end of its standard error."""
    ours, its = os.pipe()
    os.close(ours)
    with subprocess.Popen([sys.executable, "-c", UNHEARD], cwd=tmp_path, stderr=its) as process:
        os.close(its)
        assert process.wait() == Exit.STALLED
    assert "Thread" in (tmp_path / "logs" / "failure.txt").read_text()


@pytest.mark.parametrize("step", ["plan", "commit", "publish"])
def test_a_blocked_driver_says_so_and_ends_and_the_next_one_goes_on(step: str, tmp_path: Path, blocked: Blocked) -> None:
    inputs = make_inputs(pa.int64(), list(range(50)), seed=5, epochs=4)
    driver = stopped_at(step, tmp_path, blocked, inputs)
    metrics = Metrics(driver.job, progress=driver.progress)
    metrics.started(driver)
    ends: list[Activity] = []
    over = threading.Event()

    def run() -> None:  # once it is let go at the test's end, it finds that another driver has taken over
        with contextlib.suppress(Exception):
            driver.step()

    threading.Thread(target=run, daemon=True).start()
    assert blocked.there.wait(PATIENCE_SECONDS)
    with Watchdog(lambda: driver.progress.activity, lambda activity: (ends.append(activity), over.set()), poll_seconds=0.02):
        assert over.wait(PATIENCE_SECONDS)
    assert [(end.step, end.waits_for) for end in ends] == [(step, ())]
    assert f"stalled in step {step}" in ends[0].sentence
    assert ends[0].epoch == 1
    healthy, facts = metrics.health()
    assert healthy
    assert (facts["stalled"]["step"], facts["stalled"]["epoch"]) == (step, 1)
    job = make_job(tmp_path, **band_options())
    following = driver_for(job, inputs, ObjectStorage(str(tmp_path / "state")), InlineRunner())
    following.start()
    steps(following)
    assert output_of(tmp_path) == band_expected(inputs)


def test_a_process_that_has_slept_is_not_ended(tmp_path: Path) -> None:
    beats = threading.Semaphore(0)
    left = iter([*[True] * (BEATS - 1), False] * 3)
    overdue, on_time = Activity(1, "commit", 99.0, 10.0), Activity(1, "commit", 0.0, 10.0)

    def activity() -> Activity | None:
        beats.release()
        return overdue if next(left, False) else on_time

    ends: list[Activity] = []
    with Watchdog(activity, ends.append, poll_seconds=0.001):
        for _ in range(4 * BEATS):
            assert beats.acquire(timeout=PATIENCE_SECONDS)
    assert ends == []


def test_an_idle_join_is_not_ended(tmp_path: Path) -> None:
    inputs = make_inputs(pa.int64(), list(range(50)), seed=5, epochs=2)
    driver = driver_for(make_job(tmp_path, **band_options()), inputs, ObjectStorage(str(tmp_path / "state")), InlineRunner())
    driver.start()
    assert driver.progress.activity is None
    steps(driver)
    assert driver.step() is None
    assert driver.progress.activity is None
    assert Metrics(driver.job, progress=driver.progress).health()[1]["stalled"] is None


@pytest.fixture
def make_runner(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], ProcessRunner]]:
    monkeypatch.setattr(roster, "SILENT_BEATS", 60)
    made: list[ProcessRunner] = []

    def make() -> ProcessRunner:
        made.append(ProcessRunner(beat_seconds=0.3))
        return made[-1]

    yield make
    for one in made:
        one.stop()


def with_silent_worker(tmp_path: Path, runner: ProcessRunner, inputs: tuple[Input, Input]) -> Driver:
    job = replace(make_job(tmp_path, **band_options()), deadline_seconds=2.0)
    runner.hosts.first[1] = SILENT
    return driver_for(job, inputs, ObjectStorage(str(tmp_path / "state")), runner)


def test_a_worker_that_never_answers_fails_the_epoch_by_name_and_is_replaced(
    tmp_path: Path, make_runner: Callable[[], ProcessRunner]
) -> None:
    runner = make_runner()
    inputs = make_inputs(pa.int64(), list(range(50)), seed=5, epochs=3)
    driver = with_silent_worker(tmp_path, runner, inputs)
    metrics = Metrics(driver.job, progress=driver.progress)
    driver.start()
    failures: list[EpochFailed] = []

    def attempt() -> None:
        try:
            driver.step()
        except EpochFailed as failure:
            failures.append(failure)

    stepping = threading.Thread(target=attempt)
    stepping.start()
    wait_for("a stall", lambda: metrics.health()[1]["stalled"] is not None)
    silent = runner.pool.pids[1]
    stalled = metrics.health()[1]["stalled"]
    if stalled["waitsFor"]:  # it is being given up else
        assert any(f"worker at place 1 (process {silent}" in worker for worker in stalled["waitsFor"])
    runner.hosts.first.clear()
    stepping.join(PATIENCE_SECONDS)
    (failure,) = failures
    assert failure.stalled
    assert f"worker at place 1 (process {silent} on " in str(failure)
    assert "epoch 0: stalled in step tasks: nothing of it has moved for " in str(failure)
    assert metrics.health()[1]["stalled"]["stalls"] == 1
    steps(driver)
    assert output_of(tmp_path) == band_expected(inputs)
    assert metrics.health()[1]["stalled"] is None


def test_a_worker_that_answers_no_attempt_ends_the_run_with_a_code_of_its_own(
    tmp_path: Path, make_runner: Callable[[], ProcessRunner]
) -> None:
    inputs = make_inputs(pa.int64(), list(range(50)), seed=5, epochs=3)
    driver = with_silent_worker(tmp_path, make_runner(), inputs)
    events: list[Any] = []
    Loop(driver, interval_seconds=0.0, stop=threading.Event(), tell=events.append, log_directory=tmp_path).run()
    ended = events[-1]
    assert isinstance(ended, Ended)
    assert ended.reason is Reason.FAILED
    assert ended.failure is not None
    assert ended.failure.code is Exit.STALLED
    assert "worker at place 1" in ended.failure.sentence
    assert driver.progress.total_stalls == STALLS + 1
