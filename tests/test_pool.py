"""Resident workers as processes of this machine: joins that equal the oracle's while workers are killed, stopped and cut off."""

from __future__ import annotations

import contextlib
import os
import random
import re
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pyarrow as pa
import pytest

from cable import Cable
from cases import how_many
from certificates import Authority
from harness import SECOND, START, Input, driver_for, make_batch, make_job, oracle, output_of, run_all
from joins import BAND, CASES, SEVERAL, band_expected, band_options, check_case, check_several, make_inputs, step, steps
from streamjoin.controlplane.driver import Driver
from streamjoin.elastic.ending import ANYWHERE, Placement, map_tasks
from streamjoin.elastic.plan import Plan
from streamjoin.epoch.ports import EpochFailed, EpochResult
from streamjoin.runner import pool
from streamjoin.runner import roster as roster_module
from streamjoin.runner.messages import Hello
from streamjoin.runner.process import Process
from streamjoin.runner.security import Security, Tls
from streamjoin.scheme.models import plan_for_tasks
from streamjoin.serve.wishes import plan_for_workers
from streamjoin.state.storage import ObjectStorage
from waiting import wait_for
from worker_processes import ProcessRunner

pytestmark = pytest.mark.xdist_group("hosts")  # one process forks all hosts


@pytest.fixture(scope="module")
def runner() -> Iterator[ProcessRunner]:
    runner = ProcessRunner()
    yield runner
    runner.stop()


@pytest.fixture
def own_runner(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., ProcessRunner]]:
    """Makes runners that notice silence soon."""
    monkeypatch.setattr(roster_module, "SILENT_BEATS", 20)
    made: list[ProcessRunner] = []

    def make(**options: Any) -> ProcessRunner:
        made.append(ProcessRunner(beat_seconds=0.3, **options))
        return made[-1]

    yield make
    for one in made:
        one.stop()


def step_until_it_fails(driver: Driver) -> None:
    """An attempt may be over before its worker is killed, but not each."""
    for _ in range(10):
        driver.step()


@pytest.mark.parametrize("case", CASES)
def test_a_join_of_processes_equals_the_oracle(case: str, runner: ProcessRunner, tmp_path: Path) -> None:
    check_case(case, runner, tmp_path, workers=3)


@pytest.mark.parametrize("case", SEVERAL)
def test_several_joins_of_processes_equal_the_oracle(case: str, runner: ProcessRunner, tmp_path: Path) -> None:
    check_several(case, runner, tmp_path, workers=3)


def start(tmp_path: Path, runner: ProcessRunner, inputs: tuple[Input, Input], **options: Any) -> Driver:
    job = make_job(tmp_path, **(band_options() | options))
    return driver_for(job, inputs, ObjectStorage(str(tmp_path / "state")), runner)


def running(tmp_path: Path, runner: ProcessRunner, epochs: int = 6) -> tuple[Driver, tuple[Input, Input]]:
    """A join with so many epochs of input, two of which are over."""
    inputs = make_inputs(pa.int64(), list(range(50)), seed=5, epochs=epochs)
    driver = start(tmp_path, runner, inputs)
    driver.start()
    for _ in range(2):
        driver.step()
    return driver, inputs


def test_a_split_that_is_too_large_in_its_worker_is_planned_anew_at_once(runner: ProcessRunner, tmp_path: Path) -> None:
    batch = make_batch([(rid, f"{rid:08d}".ljust(100_000, "x"), 0, START) for rid in range(50)], pa.string())
    inputs = Input([batch], [1]), Input([batch], [1])
    options = {"on": "l.k = r.k", "types": ("STRING", "STRING"), "window": {"within": "10s"}, "epoch": {"maxBytes": "1Mi"}, "workers": 2}
    steps: list[str] = []
    job = make_job(tmp_path, **options)
    results = run_all(driver_for(job, inputs, ObjectStorage(job.checkpoint), runner, at=steps.append))
    assert (len(results), steps.count("tasks")) == (1, 2)
    assert output_of(tmp_path) == Counter((rid, rid) for rid in range(50))


def test_a_worker_that_is_killed_is_back_at_once_and_says_what_killed_it(runner: ProcessRunner, tmp_path: Path) -> None:
    inputs = make_inputs(pa.int64(), list(range(50)), seed=5, epochs=8)
    driver = start(tmp_path, runner, inputs)
    driver.start()
    for _ in range(3):
        driver.step()
    place = max(runner.pool.pids)
    killed = runner.kill(place)
    # Epochs that were over before the kill do not fail, and the first that was not fails only if its worker dies in the middle of it.
    wait_for("another worker is there", lambda: runner.pool.pids.get(place, killed) != killed)
    assert step(driver, []) is not None
    assert runner.pool.reason(place) == "killed by SIGKILL"
    steps(driver)
    assert output_of(tmp_path) == band_expected(inputs)


def test_a_worker_that_dies_in_every_attempt_fails_the_epoch_with_the_reason(runner: ProcessRunner, tmp_path: Path) -> None:
    inputs = make_inputs(pa.int64(), list(range(50)), seed=5, epochs=4)
    driver = start(tmp_path, runner, inputs)
    driver.start()
    driver.step()
    submit = runner.pool.submit

    def submit_and_kill(spec: Any, workers: Any) -> Any:
        attempt = submit(spec, workers)
        with contextlib.suppress(KeyError, ProcessLookupError):
            runner.kill(max(runner.pool.pids), signal.SIGSEGV)
        return attempt

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(runner.pool, "submit", submit_and_kill)
        with pytest.raises(EpochFailed, match=r"epoch \d: the worker at place \d \(process \d+ on .*\) died: killed by SIGSEGV$"):
            step_until_it_fails(driver)
    steps(driver)
    assert output_of(tmp_path) == band_expected(inputs)


@pytest.mark.parametrize(("kind", "model", "wanted"), [("inner", "adsp", how_many(50, of=3)), ("full", "square", how_many(20, of=2))])
def test_kills_at_random_moments_lose_nothing(kind: str, model: str, wanted: int, runner: ProcessRunner, tmp_path: Path) -> None:
    seed = 20261122
    rng = random.Random(seed)
    inputs = make_inputs(pa.int64(), list(range(50)), seed=7, epochs=wanted + 10)
    driver = start(tmp_path, runner, inputs, workers=3, model=model, join_type=kind)
    driver.start()
    kills = 0

    def kill_one(choice: float) -> None:
        nonlocal kills
        victims = sorted(runner.pool.pids.values())
        if victims:
            with contextlib.suppress(ProcessLookupError):
                os.kill(victims[int(choice * len(victims))], signal.SIGKILL)
                kills += 1

    failures: list[EpochFailed] = []
    result: EpochResult | None = None
    while kills < wanted or result is not None:
        killer = threading.Timer(rng.random() * 0.03, kill_one, (rng.random(),))
        killer.start()
        result = step(driver, failures)
        killer.join()
        if result is None:
            break
    assert kills >= wanted, seed
    assert not any(failure.permanent for failure in failures)
    assert output_of(tmp_path) == band_expected(inputs, kind), seed


def test_a_worker_that_is_stopped_is_replaced(own_runner: Callable[..., ProcessRunner], tmp_path: Path) -> None:
    runner = own_runner()
    driver, inputs = running(tmp_path, runner)
    place = max(runner.pool.pids)
    stopped = runner.kill(place, signal.SIGSTOP)
    steps(driver)
    assert runner.pool.reason(place) == "it said nothing for 6 s"
    assert runner.pool.pids[place] != stopped
    wait_for("the end of the process that was stopped", lambda: not psutil.pid_exists(stopped) or is_zombie(stopped))
    assert output_of(tmp_path) == band_expected(inputs)


def is_zombie(pid: int) -> bool:
    with contextlib.suppress(psutil.Error):
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    return True


def test_a_host_that_is_killed_takes_its_worker_along_and_is_replaced(runner: ProcessRunner, tmp_path: Path) -> None:
    driver, inputs = running(tmp_path, runner)
    place = max(runner.pool.pids)
    worker = runner.pool.pids[place]
    runner.hosts.kill(place)
    wait_for("the end of the host's worker", lambda: is_zombie(worker))
    steps(driver)
    assert runner.pool.pids[place] != worker
    assert output_of(tmp_path) == band_expected(inputs)


def test_a_task_whose_worker_does_not_come_is_done_by_another_and_goes_back(
    own_runner: Callable[..., ProcessRunner], tmp_path: Path
) -> None:
    runner = own_runner(patience_seconds=1.0)
    driver, inputs = running(tmp_path, runner, epochs=10)
    place = max(runner.pool.pids)
    runner.hosts.may_bring.clear()
    runner.hosts.kill(place)
    wait_for("a death", lambda: place not in runner.pool.pids)
    results = []
    while len(results) < 3:
        with contextlib.suppress(EpochFailed):
            results.append(driver.step())
    assert place not in runner.pool.pids
    assert all(len(result.held) == 2 for result in results if result is not None), "both tasks are done, in one process"
    runner.hosts.may_bring.set()
    wait_for("another worker", lambda: place in runner.pool.pids)
    steps(driver)
    assert output_of(tmp_path) == band_expected(inputs)


def test_a_task_is_lent_only_to_a_process_that_has_room_for_it() -> None:
    one, two = (Process(Hello(place, f"address-{place}", place, "host", "", None)) for place in range(2))
    spec: Any = SimpleNamespace(epoch=7, filling={0: 0.6, 1: 0.3, 2: 0.5})
    pool.require_room(spec, (one, two, two))
    why = r"epoch 7: 2 of 3 workers are there, and have no room for what the others hold \(tau would be 1.10\)"
    with pytest.raises(EpochFailed, match=why) as refused:
        pool.require_room(spec, (one, two, one))
    assert refused.value.worker_died, "nothing is wrong but that"


def test_a_worker_whose_connection_to_the_driver_breaks_comes_back_with_its_runs(
    own_runner: Callable[..., ProcessRunner], tmp_path: Path
) -> None:
    runner = own_runner()
    with Cable(runner.pool.address) as cable:
        runner.hosts.driver[0] = cable.address
        driver, inputs = running(tmp_path, runner)
        before = runner.pool.pids
        cable.cut()
        wait_for("the connection's end", lambda: 0 not in runner.pool.pids)
        cable.mend()
        wait_for("the worker's call", lambda: 0 in runner.pool.pids)
        assert runner.pool.pids == before, "the same processes"
        results, _ = steps(driver)
        assert sum(result.read_back for result in results) == 0
    assert output_of(tmp_path) == band_expected(inputs)


def test_over_tls_a_join_whose_worker_is_killed_equals_the_oracle(own_runner: Callable[..., ProcessRunner], tmp_path: Path) -> None:
    """Whose certificate is another one meanwhile, of another authority: nobody who runs starts anew for it."""
    Authority(tmp_path / "tls").issue("sj-one.joins.svc")
    runner = own_runner(security=replace(Security.fresh(), tls=Tls.of(tmp_path / "tls", "sj-one.joins.svc")))
    driver, inputs = running(tmp_path, runner)
    place, others = max(runner.pool.pids), {**runner.pool.pids}
    Authority(tmp_path / "tls").issue("sj-one.joins.svc")
    killed = runner.kill(place)
    steps(driver)
    assert runner.pool.pids[place] != killed
    assert runner.pool.pids | {place: killed} == others
    assert output_of(tmp_path) == band_expected(inputs)


def test_workers_end_with_the_driver(own_runner: Callable[..., ProcessRunner], tmp_path: Path) -> None:
    runner = own_runner()
    with Cable(runner.pool.address) as cable:
        runner.hosts.driver[0] = cable.address
        runner.start([0])
        worker = runner.pool.pids[0]
        runner.hosts.may_bring.clear()
        cable.cut()
        wait_for("the worker's end", lambda: is_zombie(worker))


def test_a_worker_that_hears_nothing_of_the_driver_ends(own_runner: Callable[..., ProcessRunner]) -> None:
    runner = own_runner()
    runner.hosts.silent_beats = 2
    with Cable(runner.pool.address) as cable:
        runner.hosts.driver[0] = cable.address
        runner.start([0])
        worker = runner.pool.pids[0]
        runner.hosts.may_bring.clear()
        cable.freeze()
        wait_for("the worker's end", lambda: is_zombie(worker))


def elastic(tmp_path: Path, runner: ProcessRunner) -> tuple[Driver, tuple[Input, Input]]:
    """A join of many epochs, four of which are over, that has two workers and may have 1 to 4."""
    inputs = make_inputs(pa.int64(), list(range(50)), seed=11, epochs=40)
    job = make_job(tmp_path, **(band_options() | {"workers": 2, "watermark": "1h", "capacity": 30_000, "window": {"within": "9s"}}))
    driver = driver_for(replace(job, min_workers=1, max_workers=4), inputs, ObjectStorage(str(tmp_path / "state")), runner)
    driver.start()
    for _ in range(4):
        driver.step()
    return driver, inputs


def switch(driver: Driver, runner: ProcessRunner, workers: int, model: str = "adsp", keep: tuple[int, ...] | None = None) -> None:
    """To a plan with so many workers. ``keep``: which go on, by task; by default those that hold most of what is needed."""
    assert driver.scheme is not None
    assert driver.layout is not None
    found = driver.statistics()
    scheme, best = map_tasks(driver.scheme, plan_for_tasks(model, found, driver.layout.main, workers), found)
    generation = driver.checkpoint.plan.generation + 1
    assert driver.put_plan(Plan(generation, scheme, keep or best))
    driver.step()
    wait_for("the plan's workers", lambda: runner.ready >= workers)

    def switched() -> bool:
        if driver.checkpoint.plan.generation < generation:
            driver.step()
        return driver.checkpoint.plan.generation == generation

    wait_for(f"generation {generation}", switched)
    wait_for("surplus workers' end", lambda: len(runner.pool.pids) == workers)


def finish(driver: Driver, inputs: tuple[Input, Input], tmp_path: Path) -> list[EpochResult]:
    results, _ = steps(driver)
    expected = oracle(inputs, (pa.int64(), pa.int64()), BAND, f"abs(l.at - r.at) <= {9 * SECOND}", 3600 * SECOND)
    assert output_of(tmp_path) == expected
    return results


def test_workers_come_and_go_with_plans(runner: ProcessRunner, tmp_path: Path) -> None:
    driver, inputs = elastic(tmp_path, runner)
    for workers, model in ((4, "adsp"), (3, "square"), (1, "adsp"), (2, "adsp")):
        switch(driver, runner, workers, model)
    finish(driver, inputs, tmp_path)


BROKEN = {
    "not warmed": (
        "def fail(): raise RuntimeError('no room for the cache')\nfrom streamjoin.kernel import run; run.warm = fail",
        # Whoever asks late hears that it has failed three times.
        r"(StartFailed: the worker's process ended with code 1 \()?RuntimeError: no room for the cache.*",
    ),
    "ends at its start": (
        "def fail(driver): raise ValueError('no address')\nworker._own_address = fail",
        r"StartFailed: the worker's process ended with code 1 \(ValueError: no address\.*\), 3 times before it could call the driver",
    ),
    "killed at its start": (
        "import os\nworker._own_address = lambda driver: os.kill(os.getpid(), 11)",
        "StartFailed: the worker's process killed by SIGSEGV, 3 times before it could call the driver",
    ),
}


@pytest.mark.parametrize("how", BROKEN)
def test_a_plan_that_waits_for_workers_that_cannot_start_says_why(
    how: str, own_runner: Callable[..., ProcessRunner], tmp_path: Path
) -> None:
    runner = own_runner()
    code, reason = BROKEN[how]
    driver, inputs = elastic(tmp_path, runner)
    switch(driver, runner, 2)
    runner.hosts.first |= dict.fromkeys(range(4, 9), code)  # places that there have not been yet
    assert driver.scheme is not None
    assert driver.layout is not None
    found = driver.statistics()
    scheme, keep = map_tasks(driver.scheme, plan_for_tasks("adsp", found, driver.layout.main, 3), found)
    assert driver.put_plan(Plan(3, scheme, keep))
    driver.step()

    def absence() -> str | None:
        status = driver.plan_status()
        assert status is not None
        return status.absence

    told = wait_for("the reason", absence)
    assert re.fullmatch(reason, told), told
    driver.step()
    assert driver.checkpoint.plan.generation == 2, "the join goes on meanwhile"
    runner.hosts.first.clear()
    wait_for("the plan's workers", lambda: runner.ready == 3)
    assert absence() is None
    finish(driver, inputs, tmp_path)
    assert driver.checkpoint.plan.generation == 3


def test_workers_that_are_left_go_on_where_they_share_an_executor(own_runner: Callable[..., ProcessRunner], tmp_path: Path) -> None:
    runner = own_runner()
    runner.hosts.executor_of = lambda place: "first" if place < 2 else "second"
    driver, inputs = elastic(tmp_path, runner)
    switch(driver, runner, 4)
    before = runner.pool.pids
    assert sorted(before) == [0, 1, 2, 3]
    switch(driver, runner, 2, keep=(1, 3))
    after = runner.pool.pids
    assert sorted(after) in ([0, 1], [2, 3])
    assert after.items() <= before.items(), "nobody had to start"
    results = finish(driver, inputs, tmp_path)
    assert results
    assert [result.read_back for result in results] == [1] + [0] * (len(results) - 1), "what was held elsewhere was read back once"


def with_containers(tmp_path: Path, runner: ProcessRunner) -> tuple[Driver, tuple[Input, Input]]:
    """As ``elastic``, each place in a container of its own."""
    runner.hosts.container_of = {place: tmp_path / f"container-{place}" for place in range(9)}
    return elastic(tmp_path, runner)


def tell_to_go(runner: ProcessRunner, place: int, seconds: float) -> Path:
    """As a pod's hook does. Returns the directory of the container's workers."""
    container = runner.hosts.container_of[place]
    (container / "leaving").write_text(str(time.time() + seconds))
    wait_for("the driver to know", lambda: runner.leaving)
    return container / "workers"


def step_to(driver: Driver, generation: int) -> None:
    """By no more epochs than two that are in flight and the plan's first, none of which fails."""
    for _ in range(3):
        if driver.checkpoint.plan.generation < generation:
            driver.step()
    assert driver.checkpoint.plan.generation == generation


def test_before_a_worker_that_was_told_to_go_is_gone_another_has_its_part_and_no_epoch_fails(
    own_runner: Callable[..., ProcessRunner], tmp_path: Path
) -> None:
    runner = own_runner()
    driver, inputs = with_containers(tmp_path, runner)
    hosts = tell_to_go(runner, 0, 60.0)
    assert [path.suffix for path in hosts.iterdir()] == [".ready"]
    wait_for("another in its stead", lambda: runner.ready == 5)
    step_to(driver, 2)
    wait_for("its host's end, for which the container waits", lambda: not [*hosts.iterdir()])
    assert sorted(runner.pool.pids) == [1, 2, 3, 4]
    results, failures = steps(driver)
    assert not failures
    assert sum(result.read_back for result in results) == 0
    finish(driver, inputs, tmp_path)


def test_where_no_other_comes_those_that_stay_take_its_part_before_it_goes(
    own_runner: Callable[..., ProcessRunner], tmp_path: Path
) -> None:
    runner = own_runner()
    driver, inputs = with_containers(tmp_path, runner)
    runner.hosts.may_bring.clear()
    hosts = tell_to_go(runner, 1, 20.0)
    step_to(driver, 2)
    assert len(driver.checkpoint.state.held) == 3
    wait_for("its host's end, for which the container waits", lambda: not [*hosts.iterdir()])
    runner.hosts.may_bring.set()
    wait_for("another worker, which was asked for at once", lambda: runner.ready == 4)
    _, failures = steps(driver)
    assert not failures
    assert driver.plan_status().workers == 4  # type: ignore[union-attr]
    finish(driver, inputs, tmp_path)


def test_a_worker_that_is_gone_sooner_than_its_part_could_move_costs_one_epoch(
    own_runner: Callable[..., ProcessRunner], tmp_path: Path
) -> None:
    runner = own_runner()
    driver, inputs = with_containers(tmp_path, runner)
    tell_to_go(runner, 1, 60.0)
    runner.hosts.kill(1)
    wait_for("another, which was asked for at once", lambda: sorted(runner.pool.pids) == [0, 2, 3, 4])
    results, failures = steps(driver)
    assert len(failures) <= 1
    assert driver.checkpoint.plan.generation == 1, "its number goes on in the other process"
    assert sum(result.read_back for result in results) == 1
    finish(driver, inputs, tmp_path)


def test_of_fewer_workers_those_of_a_whole_executor_end(own_runner: Callable[..., ProcessRunner], tmp_path: Path) -> None:
    runner = own_runner()
    runner.hosts.executor_of = lambda place: "first" if place < 2 else "second"
    driver, inputs = elastic(tmp_path, runner)
    before = runner.pool.pids
    status, layout = driver.plan_status(), driver.layout
    assert status is not None
    assert layout is not None

    def plan(placement: Placement) -> Plan:
        return plan_for_workers(status, driver.statistics(), layout, driver.job, 2, placement=placement).plan

    assert set(plan(ANYWHERE).keep) not in ({0, 1}, {2, 3}), "else this tests nothing"
    for going, stay in (("first", {2, 3}), ("second", {0, 1})):
        assert set(plan(driver.placement([going])).keep) == stay, "those on an executor that is better gone end first"
    assert driver.put_plan(plan(driver.placement()))
    step_to(driver, 2)
    wait_for("the end of an executor's workers", lambda: sorted(runner.pool.pids) in ([0, 1], [2, 3]))
    assert runner.pool.pids.items() <= before.items(), "nobody moved to another process"
    results = finish(driver, inputs, tmp_path)
    assert sum(result.read_back for result in results) == 0
