"""Workers that come late, or never: the join is cut for those that are there, and again when more come.

First the state machine with the real planner, in all orders of arrivals, losses and crashes; then whole joins whose workers do not come.
"""

from __future__ import annotations

import functools
import itertools
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from cases import ALL, how_many
from harness import SECOND, START, Crash, Input, driver_for, make_batch, make_job, oracle, output_of
from streamjoin.controlplane.arrivals import HAND_OVER_SECONDS, HASTE, PENDING_SECONDS, STABILIZATION_SECONDS, SWITCH_SECONDS
from streamjoin.controlplane.cutting import least_workers, plan_for
from streamjoin.controlplane.driver import Driver
from streamjoin.controlplane.events import (
    Adopted,
    BetweenEpochs,
    Event,
    FirstEpochCommitted,
    FirstEpochFailed,
    Instruction,
    MakePlan,
    PlanMade,
    ReleaseWorkers,
    RequestWorkers,
    WorkersReady,
)
from streamjoin.controlplane.fates import Fate
from streamjoin.controlplane.replan import PlanPhase, PlanStatus, Replanner
from streamjoin.elastic.plan import Plan
from streamjoin.epoch.ports import EpochFailed
from streamjoin.epoch.spec import EpochSpec
from streamjoin.job import Job
from streamjoin.runner.inline import InlineRunner
from streamjoin.scheme.capacity import Capacity
from streamjoin.scheme.models import plan_for_tasks
from streamjoin.scheme.statistics import SideStatistics, Statistics, loads
from streamjoin.scheme.tiling import Scheme
from streamjoin.sizing import plan_after
from streamjoin.state.storage import ObjectStorage

ON = "abs(l.k - r.k) <= 1"
CAPACITY = 100.0


@functools.cache
def job_of() -> Job:
    job = make_job(Path("unused"), on=ON, types=("BIGINT", "BIGINT"), window={"within": "100s"})
    return replace(job, capacity=Capacity(CAPACITY), model="adsp", min_workers=1, max_workers=16)


@functools.cache
def even(tuples: float) -> Statistics:
    return Statistics((SideStatistics(tuples, None), SideStatistics(tuples, None)))


@functools.cache
def scheme_of(tasks: int, model: str = "adsp") -> Scheme:
    return plan_for_tasks(model, even(100.0), job_of().layouts[0].main, tasks)


class Machine:
    """A Replanner with the planner beside it, each of ``tuples`` held; what it was told to do."""

    def __init__(
        self, workers: int, tuples: float = 100.0, *, there: int | None = None, fetches: bool = False, model: str = "adsp"
    ) -> None:
        self.replanner, self.tuples = Replanner("test", fetches=fetches), tuples
        self.done: list[Instruction] = []
        self.now = 1000.0
        self.tell(Adopted(1, scheme_of(workers, model)))
        self.tell(WorkersReady(workers if there is None else there, self.now, is_settled=True))

    def tell(self, event: Event) -> None:
        for instruction in self.replanner.handle(event):
            self.done.append(instruction)
            if isinstance(instruction, MakePlan):
                plan = plan_for(instruction, job_of(), even(self.tuples), job_of().layouts[0].main)
                if plan is not None and instruction.workers <= instruction.there:
                    new = plan.keep.count(None)
                    assert not new or self.status.workers + new <= instruction.there, "it needs more workers than there are"
                self.tell(PlanMade(instruction, plan, self.now))
        self.replanner.validate()

    def want(self, workers: int) -> Plan:
        """Put a plan as the planner makes it."""
        running = self.status
        before = Plan(running.generation, running.scheme, tuple(range(running.workers)))
        made = plan_after(job_of(), before, even(self.tuples), job_of().layouts[0].main, workers).plan
        newest = running.generation if running.wanted is None else running.wanted.generation
        plan = replace(made, generation=newest + 1)
        assert self.replanner.put(plan)
        self.tell(BetweenEpochs(self.now))
        return plan

    def look(self, ready: int, seconds: float = 0.0, **facts: Any) -> PlanStatus:
        """So many are there, after so long."""
        self.now += seconds
        self.tell(BetweenEpochs(self.now))
        self.tell(WorkersReady(ready, self.now, **facts))
        return self.status

    def switch(self) -> PlanStatus:
        assert self.status.phase is PlanPhase.SWITCHING
        self.tell(FirstEpochCommitted(epoch=9, began_at=self.now, at=self.now, pause_seconds=0.5, kept_tuples=3, moved_tuples=4))
        return self.status

    @property
    def status(self) -> PlanStatus:
        found = self.replanner.status(0)
        assert found is not None
        return found

    def keeps(self, workers: Iterable[int]) -> bool:
        """Whether any of these goes on in the plan that is switched to."""
        plans = self.replanner.plans
        assert plans is not None
        return not set(workers).isdisjoint(plans.current.workers)

    @property
    def workers(self) -> tuple[int, ...]:
        """Those of the plan that runs."""
        assert self.replanner.running is not None
        return self.replanner.running.workers


def brief(status: PlanStatus) -> tuple[int, int, int | None, PlanPhase]:
    """Generation and workers that run, workers that are asked for, phase."""
    return status.generation, status.workers, status.asked, status.phase


def test_a_plan_of_eight_of_which_seven_come_is_cut_for_seven_and_again_when_the_last_one_comes() -> None:
    machine = Machine(4)
    machine.want(8)
    assert RequestWorkers(8) in machine.done
    for ready in (5, 6, 7):
        assert brief(machine.look(ready, 20.0)) == (1, 4, 8, PlanPhase.WAITING)
    assert brief(machine.look(7, STABILIZATION_SECONDS - 1)) == (1, 4, 8, PlanPhase.WAITING)
    status = machine.look(7, 1.0)
    assert brief(status) == (1, 4, 8, PlanPhase.SWITCHING)
    assert status.wanted is not None
    assert (status.wanted.generation, status.wanted.workers) == (2, 7), "it is the plan that was put, for those that came"
    status = machine.switch()
    assert brief(status) == (2, 7, 8, PlanPhase.WAITING)
    assert status.switched is not None
    assert status.switched.asked == 8
    assert machine.done[-1] == RequestWorkers(8), "the last one is still asked for, and none was let go"
    assert not any(isinstance(done, ReleaseWorkers) for done in machine.done)
    assert brief(machine.look(7, 100.0)) == (2, 7, 8, PlanPhase.WAITING)
    assert brief(machine.look(8, 1.0)) == (2, 7, 8, PlanPhase.SWITCHING)
    assert brief(machine.switch()) == (3, 8, None, PlanPhase.RUNNING)
    assert isinstance(machine.done[-1], ReleaseWorkers)
    assert [ended.fate for ended in machine.status.ended] == [Fate.SWITCHED, Fate.SWITCHED]


def test_six_of_eight_come_and_the_others_are_given_up() -> None:
    machine = Machine(4)
    machine.want(8)
    machine.look(6, 40.0)
    machine.look(6, STABILIZATION_SECONDS)
    assert brief(machine.switch()) == (2, 6, 8, PlanPhase.WAITING)
    machine.look(6, PENDING_SECONDS - 1, absence="0/3 nodes are available")
    assert machine.status.asked == 8
    status = machine.look(6, 1.0, absence="0/3 nodes are available")
    assert brief(status) == (2, 6, None, PlanPhase.RUNNING)
    assert status.dropped == "generation 3: of 2 new workers 0 are there, and no other has come for 600 s: 0/3 nodes are available"
    assert machine.done[-1] == ReleaseWorkers((0, 1, 2, 3, 4, 5)), "nobody asks for more than those that run"


def test_where_workers_are_full_a_sixth_of_the_time_is_waited() -> None:
    machine = Machine(4)
    machine.want(8)
    machine.look(4)
    machine.look(5, 60.0, is_urgent=True)
    assert machine.look(5, HASTE * STABILIZATION_SECONDS - 0.1, is_urgent=True).phase is PlanPhase.WAITING
    assert machine.look(5, 0.2, is_urgent=True).phase is PlanPhase.SWITCHING


def test_a_worker_that_comes_and_goes_does_not_hold_the_others_up() -> None:
    machine = Machine(4)
    machine.want(8)
    for ready in itertools.islice(itertools.cycle((7, 6)), 16):
        machine.look(ready, 2.0)
    assert machine.status.phase is PlanPhase.SWITCHING


def test_while_an_epoch_is_in_flight_arrivals_are_noted_and_nothing_is_cut() -> None:
    machine = Machine(4)
    machine.want(8)
    machine.look(7, 1.0, is_free=False)
    assert machine.look(7, 60.0, is_free=False).phase is PlanPhase.WAITING
    assert machine.replanner.concerns_next_epoch(WorkersReady(7, machine.now)), "so that the next epoch is not begun ahead"
    assert machine.look(7).phase is PlanPhase.SWITCHING


def test_a_plan_that_is_no_better_than_the_one_that_runs_is_not_made() -> None:
    machine = Machine(4, model="dynamic")
    plan = Plan(2, scheme_of(8, "dynamic"), (0, 1, 2, 3, *[None] * 4))
    assert machine.replanner.put(plan)
    machine.look(7, 1.0)
    for _ in range(5):
        assert brief(machine.look(7, STABILIZATION_SECONDS)) == (1, 4, 8, PlanPhase.WAITING)
    makes = [done for done in machine.done if isinstance(done, MakePlan)]
    assert 4 <= len(makes) <= 5, "the planner is asked once in each time"
    assert machine.look(8, 1.0).phase is PlanPhase.SWITCHING


def test_a_driver_begins_with_three_of_four_and_takes_the_fourth_when_it_comes() -> None:
    machine = Machine(4, 20.0, there=3, fetches=True)
    assert brief(machine.status) == (1, 4, 4, PlanPhase.SWITCHING), "nobody can prepare it by epochs under the plan before"
    assert machine.replanner.plans is not None
    assert len(machine.replanner.plans.workers) == 3
    assert brief(machine.switch()) == (2, 3, 4, PlanPhase.WAITING)
    assert machine.done[-1] == RequestWorkers(4)
    assert machine.look(4, 5.0).phase is PlanPhase.PREPARING


def test_a_driver_does_not_begin_with_workers_that_have_no_room_for_what_is_held() -> None:
    for tuples in (20.0, 150.0):
        least = least_workers(scheme_of(4), job_of(), even(tuples), job_of().layouts[0].main)
        for there in (1, 2, 3):
            machine = Machine(4, tuples, there=there)
            assert (machine.status.phase is PlanPhase.SWITCHING) == (there >= least), f"{there} of 4, at least {least}"
            if there >= least:
                assert machine.status.wanted is not None
                assert loads(machine.status.wanted.scheme, even(tuples)).max() <= CAPACITY
    assert least_workers(scheme_of(4), job_of(), even(0.0), job_of().layouts[0].main) == 1


def test_workers_that_are_lost_for_long_are_not_waited_for() -> None:
    machine = Machine(4, 20.0)
    machine.look(3, 10.0)
    assert machine.look(3, STABILIZATION_SECONDS - 1).phase is PlanPhase.RUNNING
    machine.look(4, 0.5)
    assert machine.look(3, 1.0).phase is PlanPhase.RUNNING, "it was there meanwhile"
    machine.look(3, STABILIZATION_SECONDS)
    assert brief(machine.switch()) == (2, 3, 4, PlanPhase.WAITING)
    machine.look(4, 1.0)
    assert brief(machine.switch()) == (3, 4, None, PlanPhase.RUNNING)


def test_a_plan_that_waits_is_withdrawn_and_its_workers_are_not_asked_for_any_more() -> None:
    machine = Machine(4)
    plan = machine.want(8)
    assert not machine.replanner.withdraw(plan.generation + 1)
    assert machine.replanner.withdraw(plan.generation)
    machine.look(4, 1.0)
    assert brief(machine.status) == (1, 4, None, PlanPhase.RUNNING)
    assert machine.done[-1] == ReleaseWorkers((0, 1, 2, 3))
    assert [ended.fate for ended in machine.status.ended] == [Fate.WITHDRAWN]
    assert machine.status.drops == 0
    machine.want(5)
    machine.look(5, 1.0)
    assert not machine.replanner.withdraw(2), "it is being switched to"
    machine.switch()


def test_workers_that_were_told_to_go_have_others_in_their_stead_before_they_go() -> None:
    machine = Machine(4, fetches=True)
    assert machine.look(4, leaving={1: 60.0}).phase is PlanPhase.RUNNING, "nobody is there in its stead"
    status = machine.look(5, 10.0, leaving={1: 50.0})
    assert brief(status) == (1, 4, 4, PlanPhase.PREPARING)
    assert status.wanted == Plan(2, scheme_of(4), (0, None, 2, 3)), "nothing moves but what that worker holds"
    assert machine.look(5, 10.0, leaving={1: SWITCH_SECONDS}).phase is PlanPhase.PREPARING
    assert machine.look(5, 1.0, leaving={1: SWITCH_SECONDS - 1}).phase is PlanPhase.SWITCHING, "the rest is read then"
    assert brief(machine.switch()) == (2, 4, None, PlanPhase.RUNNING)
    assert machine.done[-1] == ReleaseWorkers((0, 4, 2, 3))


def test_when_time_is_short_the_join_is_cut_for_the_workers_that_stay_and_for_all_again_when_others_come() -> None:
    machine = Machine(4, 20.0)
    assert machine.look(4, leaving={0: HAND_OVER_SECONDS, 2: 90.0}).phase is PlanPhase.RUNNING
    status = machine.look(4, 1.0, leaving={0: HAND_OVER_SECONDS - 1, 2: 89.0})
    assert brief(status) == (1, 4, 4, PlanPhase.SWITCHING)
    assert status.wanted is not None
    assert sorted(map(str, status.wanted.keep)) == ["1", "3"]
    assert brief(machine.switch()) == (2, 2, 4, PlanPhase.WAITING)
    release, _, request = machine.done[-3:]
    assert (release, request) == (ReleaseWorkers((3, 1), places=4), RequestWorkers(4)), "they may go, and others stay asked for"
    machine.look(4, 5.0)
    assert brief(machine.switch()) == (3, 4, None, PlanPhase.RUNNING)


def test_where_those_that_stay_have_no_room_the_join_waits_for_others_until_the_end() -> None:
    machine = Machine(2, 90.0)
    for left in (20.0, 10.0, 0.0):
        assert machine.look(2, 10.0, leaving={1: left}).phase is PlanPhase.RUNNING
    assert sum(isinstance(done, MakePlan) for done in machine.done) == 1, "the planner is asked once in the stabilization time"
    assert machine.look(3, 1.0, leaving={1: 0.0}).phase is PlanPhase.SWITCHING


def test_a_plan_that_waits_for_more_workers_waits_on_while_those_that_go_are_relieved() -> None:
    machine = Machine(4, 20.0)
    machine.want(8)
    assert brief(machine.look(5, leaving={3: 60.0})) == (1, 4, 8, PlanPhase.SWITCHING)
    assert brief(machine.switch()) == (2, 4, 8, PlanPhase.WAITING)
    assert brief(machine.look(8, 1.0)) == (2, 4, 8, PlanPhase.SWITCHING)
    assert brief(machine.switch()) == (3, 8, None, PlanPhase.RUNNING)


def test_a_worker_that_is_gone_before_its_blocks_were_fetched_is_not_waited_for() -> None:
    machine = Machine(4, fetches=True)
    machine.look(5, leaving={1: 50.0})
    assert machine.look(4).phase is PlanPhase.SWITCHING


@pytest.mark.parametrize("order", sorted(set(itertools.permutations((1, 1, 2, 0), 4))))
def test_in_whatever_order_workers_come_all_that_come_work(order: Sequence[int]) -> None:
    machine = Machine(4)
    machine.want(8)
    there = 4
    for came in order:
        there += came
        for _ in range(3):
            machine.look(there, STABILIZATION_SECONDS / 2)
            if machine.status.phase is PlanPhase.SWITCHING:
                machine.switch()
    machine.look(there, STABILIZATION_SECONDS)
    if machine.status.phase is PlanPhase.SWITCHING:
        machine.switch()
    assert machine.status.workers == there == 8


@pytest.mark.parametrize("seed", range(how_many(40, of=2)))
def test_whatever_comes_goes_or_fails_the_join_is_never_cut_worse_and_ends_on_all_that_are_there(seed: int) -> None:
    rng = random.Random(seed)
    tuples = rng.choice([20.0, 60.0])
    machine, there = Machine(4, tuples, there=rng.randint(1, 4)), 4
    main = job_of().layouts[0].main
    wanted = 4
    for _ in range(200):
        there = max(1, min(9, there + rng.choice([-1, 0, 0, 0, 1])))
        leaving = {worker: rng.choice([1.0, 20.0, 60.0]) for worker in rng.sample(range(12), rng.randint(0, min(2, there)))}
        leaving = {worker: left for worker, left in leaving.items() if worker in machine.workers and rng.random() < 0.3}
        if rng.random() < 0.05 and machine.status.phase is not PlanPhase.SWITCHING:
            target = rng.randint(1, 8)
            if target != machine.status.workers:
                wanted = machine.want(target).workers
        if rng.random() < 0.03:  # the driver dies, and another goes on from the plan that was committed last
            again = Machine(machine.status.workers, tuples, there=there)
            again.now, machine = machine.now, again
        before = machine.status
        machine.look(there, rng.choice([0.1, 5.0, 20.0]), is_urgent=rng.random() < 0.3, is_free=rng.random() < 0.7, leaving=leaving)
        if machine.status.phase is PlanPhase.SWITCHING:
            plan = machine.status.wanted
            assert plan is not None
            if leaving:
                assert before.phase is PlanPhase.SWITCHING or not machine.keeps(leaving), f"seed {seed}: {leaving} go on"
                assert loads(plan.scheme, even(tuples)).max() <= max(CAPACITY, loads(before.scheme, even(tuples)).max()), f"seed {seed}"
            elif before.phase is PlanPhase.WAITING and there >= before.workers and before.wanted is not None:
                asked_less = before.asked is not None and before.asked < before.workers
                if not asked_less:
                    most = loads(before.scheme, even(tuples)).max() * 1.01
                    assert loads(plan.scheme, even(tuples)).max() <= most, f"seed {seed}: it is worse than what runs"
            if rng.random() < 0.3:
                machine.tell(FirstEpochFailed("of a fault", worker_died=rng.random() < 0.5))
            else:
                machine.switch()
    least = least_workers(scheme_of(8), job_of(), even(tuples), main)
    there = max(there, least)
    target = 8 if machine.status.workers != 8 else 7
    machine.want(target)
    for _ in range(100):  # nothing comes or goes any more
        machine.look(there, STABILIZATION_SECONDS / 2)
        if machine.status.phase is PlanPhase.SWITCHING:
            machine.switch()
    assert machine.status.phase is PlanPhase.RUNNING, "nothing is waited for for ever"
    assert machine.status.workers <= there
    assert wanted >= 1


EPOCHS = 18
BATCHES = [make_batch([(e, e % 5, 0, START + e * SECOND), (e + 1000, e % 3, 0, START + e * SECOND)], pa.int64()) for e in range(EPOCHS)]
STREAM = Input(BATCHES, [1] * EPOCHS)
EXPECTED = oracle((STREAM, STREAM), (pa.int64(), pa.int64()), ON, "TRUE", None)


class Scarce(InlineRunner):
    """A cluster with room for few workers; it refuses an epoch for others."""

    def __init__(self, room: int) -> None:
        super().__init__()
        self.room = room

    @property
    def ready(self) -> int:
        return min(self.room, super().ready)

    @property
    def absence(self) -> str | None:  # type: ignore[override]
        return "no node has room"

    def submit(self, spec: EpochSpec, workers: Sequence[int]) -> Any:
        if len(workers) > self.room:
            raise EpochFailed("workers are missing", worker_died=True)
        return super().submit(spec, workers)


class Story:
    """A join that goes on epoch by epoch, ten seconds of its clock each; a driver that dies is followed by another."""

    def __init__(self, root: Path, room: int, *, at: Callable[[str], None] = lambda step: None, workers: int = 1) -> None:
        self.root, self.runner, self._at = root, Scarce(room), at
        self.now = START / SECOND
        job = make_job(root, on=ON, types=("BIGINT", "BIGINT"), window={"within": "100s"}, workers=2)
        streams = tuple(replace(stream, expected_rate=None) for stream in job.streams)
        self.job = replace(job, min_workers=workers, max_workers=8, streams=streams)
        self.driver = self.begun()

    def begun(self) -> Driver:
        driver = driver_for(
            self.job, (STREAM, STREAM), ObjectStorage(str(self.root / "state")), self.runner, clock=lambda: self.now, at=self._at
        )
        try:
            driver.start()
        except Crash:
            return self.begun()
        return driver

    def put(self, tasks: int) -> None:
        driver = self.driver
        assert driver.scheme is not None
        assert driver.layout is not None
        status = driver.plan_status()
        assert status is not None
        before = Plan(status.generation, driver.scheme, tuple(range(status.workers)))
        made = plan_after(self.job, before, driver.statistics(), driver.layout.main, tasks)
        assert driver.put_plan(made.plan)

    def steps(self, most: int = 1000) -> int:
        """So many epochs, or to the end of the input; how many."""
        for done in range(most):
            self.now += 10.0
            try:
                if self.driver.step() is None:
                    return done
            except EpochFailed:
                pass
            except Crash:
                self.driver = self.begun()
        return most

    @property
    def status(self) -> PlanStatus:
        found = self.driver.plan_status()
        assert found is not None
        return found


def test_a_join_grows_to_the_workers_that_come_and_gives_what_duckdb_selects(tmp_path: Path) -> None:
    story = Story(tmp_path, room=3)
    story.steps(2)
    story.put(4)
    story.steps(8)
    assert brief(story.status) == (2, 3, 4, PlanPhase.WAITING)
    assert story.status.absence == "no node has room"
    story.steps()
    assert output_of(tmp_path) == EXPECTED
    assert brief(story.status) == (2, 3, 4, PlanPhase.WAITING)
    story.now += PENDING_SECONDS
    story.steps(1)
    assert brief(story.status) == (2, 3, None, PlanPhase.RUNNING)


def test_a_join_that_is_to_begin_with_four_begins_with_three_and_then_has_four(tmp_path: Path) -> None:
    story = Story(tmp_path, room=3, workers=4)
    story.steps(3)
    assert brief(story.status) == (2, 3, 4, PlanPhase.WAITING)
    assert len(story.driver.checkpoint.state.held) == 3
    story.runner.room = 4
    story.steps(3)
    assert brief(story.status) == (3, 4, None, PlanPhase.RUNNING)
    story.runner.room = 2
    story.driver = story.begun()
    story.steps(2)
    assert brief(story.status) == (4, 2, 4, PlanPhase.WAITING), "another driver begins with two of the four of the plan before"
    story.steps()
    assert output_of(tmp_path) == EXPECTED


def test_a_join_that_loses_workers_for_good_goes_on_with_those_that_are_left(tmp_path: Path) -> None:
    story = Story(tmp_path, room=4, workers=4)
    story.steps(4)
    story.runner.room = 3
    story.steps(2)
    assert story.status.workers == 4, "they may come back"
    story.steps(4)
    assert brief(story.status) == (2, 3, 4, PlanPhase.WAITING)
    story.steps()
    assert output_of(tmp_path) == EXPECTED


def test_a_driver_may_die_at_each_step_while_workers_are_missing(tmp_path: Path) -> None:
    every = 11 if ALL else 23
    for visit in range(1000):
        root, visits = tmp_path / str(visit), itertools.count()
        died: list[str] = []

        def at(step: str, visits: Any = visits, visit: int = visit, died: list[str] = died) -> None:
            if next(visits) == every * visit + 12:
                died.append(step)
                raise Crash(step)

        story = Story(root, room=3, at=at, workers=4)
        story.steps(4)
        story.runner.room = 4
        story.steps(4)
        story.runner.room = 2
        story.steps()
        assert output_of(root) == EXPECTED, f"died at {died}"
        if not died:
            assert visit * every > 60
            return
    raise AssertionError("the input never ended")
