"""Plans that are put while others are taken up, applied or given up: none is forgotten, and none gives way to an older one.

First the state machine by itself, event by event and in long random sequences; then a driver into which plans are put at each of its looks
at the clock, which is where another thread may come between.
"""

from __future__ import annotations

import functools
import pickle
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from harness import SECOND, START, Input, driver_for, make_batch, make_job, oracle, output_of
from streamjoin.controlplane import fates as fates_of_plans
from streamjoin.controlplane.driver import Driver
from streamjoin.controlplane.events import (
    Adopted,
    BetweenEpochs,
    BlocksFetched,
    EpochPlanned,
    Event,
    FirstEpochCommitted,
    FirstEpochFailed,
    Instruction,
    ReleaseWorkers,
    RequestWorkers,
    StartWorkers,
    WorkersReady,
)
from streamjoin.controlplane.fates import Ended, Fate
from streamjoin.controlplane.refusals import PlanOutdated, PlanRefused
from streamjoin.controlplane.replan import (
    FETCH_SECONDS,
    MOST_DEATHS,
    SMALL_BYTES,
    PlanPhase,
    PlanStatus,
    Replanner,
)
from streamjoin.elastic.plan import Plan
from streamjoin.epoch.ports import EpochFailed
from streamjoin.epoch.spec import EpochSpec
from streamjoin.runner.inline import InlineRunner
from streamjoin.scheme.models import plan_for_tasks
from streamjoin.scheme.statistics import SideStatistics, Statistics
from streamjoin.scheme.tiling import Scheme
from streamjoin.state.storage import ObjectStorage

ON = "abs(l.k - r.k) <= 1"
COMMITTED = FirstEpochCommitted(epoch=9, began_at=107.0, at=108.0, pause_seconds=0.5, kept_tuples=3, moved_tuples=4)


@functools.cache
def scheme_of(tasks: int) -> Scheme:
    job = make_job(Path("unused"), on=ON, types=("BIGINT", "BIGINT"), window={"within": "100s"})
    even = SideStatistics(100.0, None)
    return plan_for_tasks("adsp", Statistics((even, even)), job.layouts[0].main, tasks)


def growing(generation: int, tasks: int, kept: int = 2) -> Plan:
    """A plan in which the first ``kept`` workers go on, and all others are new."""
    return Plan(generation, scheme_of(tasks), (*range(kept), *[None] * (tasks - kept)))


class Machine:
    """A Replanner that is validated after each event, two workers of generation 1 at work."""

    def __init__(self, *, fetches: bool = True) -> None:
        self.replanner = Replanner("test", fetches=fetches)
        assert self.handle(Adopted(1, scheme_of(2))) == (StartWorkers(scheme_of(2), (0, 1)),)

    def handle(self, event: Event) -> tuple[Instruction, ...]:
        try:
            return self.replanner.handle(event)
        finally:
            self.replanner.validate()

    def put(self, plan: Plan) -> bool:
        try:
            return self.replanner.put(plan)
        finally:
            self.replanner.validate()

    @property
    def status(self) -> PlanStatus:
        status = self.replanner.status(0)
        assert status is not None
        return status

    def switching_to(self, plan: Plan) -> None:
        """Bring the plan up to its first epoch."""
        assert self.put(plan)
        self.handle(BetweenEpochs(100.0))
        self.handle(WorkersReady(2 + plan.keep.count(None), 101.0))
        self.handle(EpochPlanned(idle=True))
        assert self.status.phase is PlanPhase.SWITCHING


def test_a_plan_waits_for_its_workers_prepares_them_and_is_switched_to() -> None:
    machine = Machine()
    assert machine.replanner.plans.workers == (0, 1)
    assert machine.put(growing(2, 4))
    assert machine.status.phase is PlanPhase.WAITING
    assert machine.handle(BetweenEpochs(100.0)) == (RequestWorkers(4),)
    assert machine.handle(BetweenEpochs(101.0)) == (), "it is asked for once"
    assert machine.handle(WorkersReady(3, 101.0)) == ()
    assert machine.handle(EpochPlanned(idle=True)) == ()
    assert machine.status.phase is PlanPhase.WAITING
    assert machine.replanner.plans.upcoming is None

    assert not machine.replanner.concerns_next_epoch(WorkersReady(3, 101.0))
    assert machine.replanner.concerns_next_epoch(WorkersReady(4, 101.0))
    assert machine.handle(WorkersReady(4, 102.0)) == ()
    assert machine.status.phase is PlanPhase.PREPARING
    plans = machine.replanner.plans
    assert (plans.current.generation, plans.workers, plans.upcoming_tasks) == (1, (0, 1, 2, 3), {0: 0, 1: 1, 2: 2, 3: 3})
    machine.handle(EpochPlanned(idle=False))
    machine.handle(BlocksFetched(SMALL_BYTES + 1, 103.0))
    assert (machine.status.phase, machine.status.to_fetch_bytes) == (PlanPhase.PREPARING, SMALL_BYTES + 1)
    machine.handle(BlocksFetched(SMALL_BYTES, 104.0))
    assert machine.status.phase is PlanPhase.SWITCHING

    plans = machine.replanner.plans
    assert plans.before is not None
    assert (plans.current.generation, plans.before.generation, plans.workers) == (2, 1, (0, 1, 2, 3))
    assert pickle.loads(plans.current.shared.data) == scheme_of(4)
    assert machine.handle(COMMITTED) == (ReleaseWorkers((0, 1, 2, 3)),)
    status = machine.status
    assert (status.generation, status.phase, status.workers, status.wanted) == (2, PlanPhase.RUNNING, 4, None)
    assert status.switched is not None
    assert (status.switched.generation, status.switched.epoch, status.switched.waited_seconds) == (2, 9, 7.0)
    assert status.ended == (Ended(2, Fate.SWITCHED),)
    assert not machine.put(growing(2, 4)), "it runs"


def test_workers_that_go_on_keep_their_numbers_and_new_ones_get_numbers_that_nobody_had() -> None:
    machine = Machine(fetches=False)
    for generation, keep, workers in ((2, (1, None, 0), (1, 2, 0)), (3, (2, None), (0, 3)), (4, (None, 1), (4, 3))):
        assert machine.put(Plan(generation, scheme_of(len(keep)), keep))
        machine.handle(BetweenEpochs(100.0))
        machine.handle(WorkersReady(10, 101.0))
        assert machine.handle(COMMITTED) == (ReleaseWorkers(workers),)


def test_a_plan_without_new_workers_waits_for_none() -> None:
    machine = Machine()
    assert machine.put(Plan(2, scheme_of(1), (1,)))
    assert machine.handle(BetweenEpochs(100.0)) == ()
    machine.handle(WorkersReady(2, 100.0))
    assert machine.status.phase is PlanPhase.PREPARING
    assert machine.replanner.plans.upcoming_tasks == {1: 0}


def test_blocks_that_are_mapped_where_they_lie_are_not_fetched_first() -> None:
    machine = Machine(fetches=False)
    assert machine.put(growing(2, 3))
    machine.handle(BetweenEpochs(100.0))
    machine.handle(WorkersReady(3, 100.0))
    assert machine.status.phase is PlanPhase.SWITCHING


def test_fetching_that_takes_too_long_holds_nothing_up() -> None:
    machine = Machine()
    assert machine.put(growing(2, 3))
    machine.handle(BetweenEpochs(100.0))
    machine.handle(WorkersReady(3, 200.0))
    machine.handle(BlocksFetched(2**40, 200.0 + FETCH_SECONDS))
    assert machine.status.phase is PlanPhase.PREPARING
    machine.handle(BlocksFetched(2**40, 200.5 + FETCH_SECONDS))
    assert machine.status.phase is PlanPhase.SWITCHING


def test_a_plan_whose_first_epoch_fails_is_dropped_with_the_reason() -> None:
    machine = Machine()
    machine.switching_to(growing(2, 4))
    assert machine.handle(FirstEpochFailed("no room")) == (ReleaseWorkers((0, 1)),)
    status = machine.status
    assert (status.generation, status.wanted, status.dropped, status.drops) == (1, None, "generation 2: no room", 1)
    assert status.ended == (Ended(2, Fate.DROPPED, "generation 2: no room"),)
    machine.switching_to(growing(2, 3))
    assert machine.status.dropped is None, "another one has been put since"
    assert machine.replanner.plans.workers == (0, 1, 4), "numbers 2 and 3 were given to workers of the plan that was dropped"


def test_a_first_epoch_in_which_a_worker_dies_is_tried_again_but_not_for_ever() -> None:
    machine, died = Machine(), FirstEpochFailed("worker 3 died", worker_died=True)
    machine.switching_to(growing(2, 4))
    plans = machine.replanner.plans
    for _ in range(MOST_DEATHS):
        assert machine.handle(died) == ()
        assert machine.replanner.plans == plans
    assert machine.handle(died) == (ReleaseWorkers((0, 1)),)
    assert machine.status.dropped == "generation 2: worker 3 died"


def test_plans_that_a_later_one_replaces_say_so() -> None:
    machine = Machine()
    assert machine.put(growing(3, 3))
    assert machine.put(growing(5, 4))
    assert machine.status.ended == (Ended(3, Fate.REPLACED, "generation 3: replaced by generation 5"),)
    machine.handle(BetweenEpochs(100.0))
    machine.handle(WorkersReady(4, 101.0))
    assert machine.status.phase is PlanPhase.PREPARING
    assert machine.put(growing(6, 5))
    assert machine.status.phase is PlanPhase.WAITING, "that is the newest plan's"
    assert machine.handle(BetweenEpochs(102.0)) == (RequestWorkers(5),)
    assert machine.status.ended[1:] == (Ended(5, Fate.REPLACED, "generation 5: replaced by generation 6"),)
    machine.handle(WorkersReady(5, 103.0))
    assert machine.replanner.plans.workers == (0, 1, 4, 5, 6)


@pytest.mark.parametrize("taken_up", [False, True])
def test_only_a_plan_after_the_newest_is_accepted(taken_up: bool) -> None:
    machine = Machine()
    assert machine.put(growing(5, 4))
    if taken_up:
        machine.handle(BetweenEpochs(100.0))
    assert not machine.put(growing(5, 4))
    for outdated in (growing(5, 3), growing(4, 3), growing(1, 2)):
        with pytest.raises(PlanOutdated, match=r"must be above 5, which is being applied; read it again"):
            machine.put(outdated)
    with pytest.raises(PlanRefused, match=r"plan.keep\[0\]: 2 must be below 2, as so many workers run; read the plan again"):
        machine.put(Plan(6, scheme_of(1), (2,)))
    assert machine.status.wanted == growing(5, 4)
    with pytest.raises(PlanRefused, match="the join has no plan yet"):
        Replanner("test", fetches=True).put(growing(1, 2))


@pytest.mark.parametrize("first", ["committed", "failed"])
def test_a_plan_that_is_put_during_another_ones_first_epoch_is_taken_up_after_it(first: str) -> None:
    machine = Machine()
    machine.switching_to(growing(2, 4))
    assert machine.put(growing(3, 3))
    machine.handle(COMMITTED if first == "committed" else FirstEpochFailed("no room"))
    assert machine.status.wanted == growing(3, 3)
    assert machine.handle(BetweenEpochs(110.0)) == (RequestWorkers(5 if first == "committed" else 3),)


def test_a_plan_that_the_switch_to_another_one_makes_impossible_is_dropped_with_the_reason() -> None:
    machine = Machine()
    machine.switching_to(Plan(2, scheme_of(1), (0,)))
    assert machine.put(Plan(3, scheme_of(2), (1, 0)))
    machine.handle(COMMITTED)
    assert machine.handle(BetweenEpochs(110.0)) == (ReleaseWorkers((0,)),)
    why = "generation 3: plan.keep[0]: 1 must be below 1, as so many workers run; read the plan again"
    assert (machine.status.wanted, machine.status.dropped) == (None, why)


@pytest.mark.parametrize("seed", range(20))
def test_whatever_happens_every_plan_that_was_accepted_is_accounted_for(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fates_of_plans, "REMEMBERED", 10_000)
    rng = random.Random(seed)
    machine, accepted, now = Machine(fetches=rng.random() < 0.7), list[int](), 100.0
    for _ in range(600):
        now += rng.random()
        status = machine.status
        if rng.random() < 0.3:
            newest = status.generation if status.wanted is None else status.wanted.generation
            tasks = rng.randint(1, 5)
            keep = rng.sample([*range(status.workers + (rng.random() < 0.1)), *[None] * tasks], tasks)
            try:
                plan = Plan(newest + rng.randint(-1, 2), scheme_of(tasks), tuple(keep))
                accepted += [plan.generation] * machine.put(plan)
            except PlanRefused:
                pass
            continue
        if status.wanted is not None and rng.random() < 0.05:
            machine.replanner.withdraw(status.wanted.generation)
        ready = WorkersReady(rng.randint(0, 12), now, rng.random() < 0.8)
        events: list[Event] = [BetweenEpochs(now), EpochPlanned(rng.random() < 0.3), ready]
        plans = machine.replanner.plans
        assert plans is not None
        if plans.before is not None:
            events += [replace(COMMITTED, at=now), FirstEpochFailed("of a fault", worker_died=rng.random() < 0.5)]
        if plans.upcoming is not None:
            events.append(BlocksFetched(rng.choice([0, 2**40]), now))
        machine.handle(rng.choice(events))
        status = machine.status
        pending = Counter(accepted)
        pending.subtract(ended.generation for ended in status.ended)
        assert min(pending.values(), default=0) >= 0, "a plan ended twice, or was never accepted"
        assert pending.total() <= 2
        assert max(pending.elements(), default=None) == (None if status.wanted is None else status.wanted.generation)
    fates = Counter(ended.fate for ended in machine.status.ended)
    assert min(fates[fate] for fate in Fate) > 0, f"seed {seed}: {fates}"


class Interrupted:
    """A clock at whose n-th look (from when it is armed) another thread gets its turn."""

    def __init__(self) -> None:
        self._looks = -1
        self._then: Callable[[], None] = lambda: None

    def arm(self, looks: int, then: Callable[[], None]) -> None:
        self._looks, self._then = looks, then

    @property
    def is_armed(self) -> bool:
        return self._looks >= 0

    def __call__(self) -> float:
        self._looks -= 1
        if self._looks == -1:
            self._then()
        return START / SECOND


class FirstSwitchFails(InlineRunner):
    """Loses the first epoch of the first plan that is switched to."""

    def __init__(self, failing: bool) -> None:
        super().__init__()
        self._failing = failing

    def submit(self, spec: EpochSpec, workers: Sequence[int]) -> Any:
        if spec.handover is not None and self._failing:
            self._failing = False
            raise EpochFailed("lost")
        return super().submit(spec, workers)


EPOCHS = 5
BATCHES = [make_batch([(e, e % 5, 0, START + e * SECOND)], pa.int64()) for e in range(EPOCHS)]
STREAM = Input(BATCHES, [1] * EPOCHS)
EXPECTED = oracle((STREAM, STREAM), (pa.int64(), pa.int64()), ON, "TRUE", None)


def driver_at(root: Path, clock: Callable[[], float], failing: bool = False) -> Driver:
    job = make_job(root, on=ON, types=("BIGINT", "BIGINT"), window={"within": "100s"}, workers=2)
    streams = tuple(replace(stream, expected_rate=None) for stream in job.streams)  # begin with one worker
    job = replace(job, min_workers=1, max_workers=8, streams=streams)
    driver = driver_for(job, (STREAM, STREAM), ObjectStorage(str(root / "state")), FirstSwitchFails(failing), clock=clock)
    driver.start()
    driver.step()
    return driver


def plan_for(driver: Driver, generation: int, tasks: int) -> Plan:
    assert driver.scheme is not None
    assert driver.layout is not None
    scheme = plan_for_tasks("adsp", driver.statistics(), driver.layout.main, tasks, current=driver.scheme)
    return Plan(generation, scheme, (0, *[None] * (tasks - 1)))


def exhaust(driver: Driver) -> int:
    """Steps until the input has ended; how many failed."""
    failed = 0
    while True:
        try:
            if driver.step() is None:
                return failed
        except EpochFailed:
            failed += 1


def test_a_plan_that_is_put_while_a_newer_one_is_taken_up_is_refused(tmp_path: Path) -> None:
    clock = Interrupted()
    driver = driver_at(tmp_path, clock)
    newer, older = plan_for(driver, 5, 4), plan_for(driver, 3, 3)
    refusals: list[str] = []

    def put_older() -> None:
        with pytest.raises(PlanOutdated) as refused:
            driver.put_plan(older)
        refusals.append(str(refused.value))

    assert driver.put_plan(newer)
    clock.arm(0, put_older)
    exhaust(driver)
    assert refusals == ["plan.generation: 3 must be above 5, which is being applied; read it again"]
    status = driver.plan_status()
    assert status is not None
    assert (status.generation, status.workers, status.wanted, status.dropped) == (5, 4, None, None)
    assert status.ended == (Ended(5, Fate.SWITCHED),)


@pytest.mark.parametrize("failing", [False, True])
def test_of_two_plans_none_vanishes_whenever_the_second_is_put(failing: bool, tmp_path: Path) -> None:
    fates: Counter[tuple[Fate, ...]] = Counter()
    for look in range(100):
        root, clock = tmp_path / str(look), Interrupted()
        driver = driver_at(root, clock, failing)
        accepted: list[int] = []

        def put(plan: Plan, driver: Driver = driver, accepted: list[int] = accepted) -> None:
            accepted += [plan.generation] * driver.put_plan(plan)

        put(plan_for(driver, 2, 4))
        later = plan_for(driver, 3, 3)
        clock.arm(look, lambda later=later, put=put: put(later))  # type: ignore[misc]
        failures = exhaust(driver)
        assert output_of(root) == EXPECTED
        if clock.is_armed:
            assert look > 10
            break
        status = driver.plan_status()
        assert status is not None
        pending = [] if status.wanted is None else [status.wanted.generation]
        assert [ended.generation for ended in status.ended] + pending == accepted == [2, 3], f"look {look}"
        assert failures == status.drops, f"look {look}"
        fates[tuple(ended.fate for ended in status.ended)] += 1
    else:
        raise AssertionError("the input never ended")
    first = Fate.DROPPED if failing else Fate.SWITCHED
    assert fates[first, Fate.SWITCHED], "the second was put after the first was taken up"
    assert any(fate[0] is Fate.REPLACED for fate in fates), "and before"
