"""The page of invariants is true of the code, and a driver may die at each step that the driver's code names."""

from __future__ import annotations

import importlib
from dataclasses import replace
from itertools import count
from pathlib import Path

import pyarrow as pa
import pytest

from cases import ALL
from harness import SECOND, Crash, driver_for, join_of, make_job, oracle, output_of
from invariants import KILLED_BY, LAY, OF_A_PLAN, OF_AN_EPOCH, PAGE, STEPS, page, steps_of_the_driver
from streamjoin.controlplane.driver import Driver
from streamjoin.controlplane.savepoints import keep_of_stopped
from streamjoin.elastic.ending import map_tasks
from streamjoin.elastic.plan import Plan
from streamjoin.job import Job
from streamjoin.runner.inline import InlineRunner
from streamjoin.scheme.models import plan_for_tasks
from streamjoin.state.storage import ObjectStorage
from test_crashes import make_inputs

BAND, WITHIN = "abs(l.k - r.k) <= 1", 4
INPUTS = make_inputs(seed=11, epochs=9)
WANTED = oracle(INPUTS, (pa.int64(), pa.int64()), BAND, f"abs(l.at - r.at) <= {WITHIN * SECOND}", SECOND)
BEGUN_AFTER, ADDED_AFTER, END = 0, 4, 1000
"""The epochs after which there is a savepoint to begin with, after which another join is added, and after which nothing is left to do."""
SCALING = {"stabilization": "0s"}


def test_the_page_is_what_the_code_says() -> None:
    assert PAGE.read_text() == page(), "python tests/invariants.py writes it"


def test_every_step_of_the_driver_is_among_those_that_kill_it() -> None:
    assert steps_of_the_driver() == set(STEPS)


def test_every_name_on_the_page_is_there() -> None:
    here = Path(__file__).parent
    tests = [name for each in (*OF_AN_EPOCH, *OF_A_PLAN) for name in each.tests]
    for name in (*tests, KILLED_BY):
        file, function = name.split(":")
        assert f"\ndef {function}(" in (here / f"{file}.py").read_text(), name
    for name in (name for each in (*OF_AN_EPOCH, *OF_A_PLAN) for name in each.checked):
        module, _, path = name.partition(":")
        found: object = importlib.import_module(f"streamjoin.{module}")
        for part in path.split("."):
            found = getattr(found, part)
        assert callable(found), name


def job_of(root: Path, names: str, out: str = "", **checkpoint: object) -> Job:
    joins = [join_of(root / out / name, name=name, on=BAND, window={"within": f"{WITHIN}s"}) for name in names]
    job = make_job(
        root,
        joins=joins,
        types=("BIGINT", "BIGINT"),
        workers=2,
        watermark="1s",
        epoch={"interval": "1s"},
        scaling=SCALING,
        checkpoint={"location": str(root / "state")} | checkpoint,
    )
    return replace(job, min_workers=1, max_workers=4)


class Late(InlineRunner):
    """Of the workers that are asked for, one comes after the others."""

    _late = 0

    def request(self, count: int) -> None:
        super().request(count)
        self._late = 3

    @property
    def ready(self) -> int:
        self._late -= 1
        return super().ready - (self._late >= 0)


def workers_after(epoch: int) -> int:
    return {0: 2, 1: 2, 2: 4, 3: 4, 4: 1, 5: 1}.get(epoch, 3)


def go_on(driver: Driver, until: int) -> None:
    """Up to an epoch, and no further; plans are put on the way."""
    driver.start()
    while driver.checkpoint.epoch < until:
        status = driver.plan_status()
        wanted = workers_after(driver.checkpoint.epoch)
        if status is not None and status.wanted is None and status.workers != wanted:
            assert driver.layout is not None
            found = driver.statistics()
            scheme, keep = map_tasks(status.scheme, plan_for_tasks("broadcast", found, driver.layout.main, wanted), found)
            driver.put_plan(Plan(status.generation + 1, scheme, keep))
        if driver.step(final=until == END) is None:
            break
    driver.stop()


def begin(root: Path) -> dict[str, str]:
    """The savepoint of a join of the same input, which another can begin with."""
    location = str(root / "origin" / "state")
    job, storage = job_of(root, "a", "origin", location=location), ObjectStorage(location)
    go_on(driver_for(job, INPUTS, storage, InlineRunner()), BEGUN_AFTER)
    keep_of_stopped(job, storage, "begun", clock=lambda: 0.0)
    return {"location": location, "savepoint": "begun"}


def run(root: Path, dies_at: str, visit: int) -> bool:
    """Two joins, of which one comes later, from another's savepoint to the end of their input, by as many drivers as it takes; whether one
    died.

    It does when it comes to the step for the time after ``visit`` others.
    """
    visits, died, origin = count(), False, begin(root)

    def at(step: str) -> None:
        if step == dies_at and next(visits) == visit:
            raise Crash(step)

    for names, until in (("a", ADDED_AFTER), ("ab", END)):
        done = False
        while not done:
            driver = driver_for(job_of(root, names, cloneOf=origin), INPUTS, ObjectStorage(str(root / "state")), Late(), at=at)
            try:
                go_on(driver, until)
                done = True
            except Crash:
                died = True
    return died


@pytest.mark.parametrize("step", sorted(steps_of_the_driver() - {LAY}))
def test_a_driver_may_die_at_each_step(step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each time that it comes to it, or every other time; another one goes on. The step that is left is in ``test_another_graph``."""
    monkeypatch.setattr("streamjoin.io.sinks.FilesSink.gather_seconds", 1e9)  # so that there is something to gather
    visit = 0
    while run(tmp_path / str(visit), step, visit):
        root = tmp_path / str(visit)
        assert output_of(root / "origin" / "a") + output_of(root / "a") == WANTED, f"died at {step}, visit {visit}"
        later = output_of(root / "b")
        assert later <= WANTED, f"died at {step}, visit {visit}: the join that came later has results that it cannot have"
        assert later.total() > 10
        visit += 1 if ALL else 2
    assert visit > 0, f"{step} was not come to"
