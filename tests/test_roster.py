"""The pool's state machine: which commands follow from which events; and thousands of schedules of deaths, late answers and lost
connections, each made from a seed."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field

import pytest

from streamjoin.epoch.ports import EpochFailed
from streamjoin.epoch.spec import Shared
from streamjoin.runner.events import (
    Assigned,
    Begun,
    Bring,
    Event,
    GivenUp,
    Greeted,
    HangUp,
    Leave,
    LetGo,
    Missed,
    Over,
    PlaceDied,
    Released,
    Replace,
    Said,
    Tell,
    Ticked,
    Wake,
    Wanted,
    Warn,
)
from streamjoin.runner.messages import Abandon, Beat, Done, End, Failed, Hello, Leaving, Work
from streamjoin.runner.process import Process, Trial
from streamjoin.runner.roster import ANSWER_SECONDS, SILENT_BEATS, Roster

SCHEDULES, STEPS = 3000, 120
PATIENCE, DEADLINE = 5.0, 90.0
CODE = {"query": Shared("query", b"code")}


def called(place: int, pid: int = 1, *, died: str | None = None, executor: str = "") -> Process:
    return Process(Hello(place, f"address-{place}-{pid}", pid, "host", executor, died))


def with_workers(count: int, *executors: str) -> tuple[Roster, list[Process]]:
    """A roster at 0 s whose workers are all there."""
    roster = Roster(0.0)
    roster.handle(Wanted(count), 0.0)
    processes = [called(place, executor=executor) for place, executor in enumerate(executors or [""] * count)]
    for process in processes:
        roster.handle(Greeted(process), 0.0)
    roster.handle(Assigned(range(count)), 0.0)
    return roster, processes


def begun(roster: Roster, *processes: Process, epoch: int = 0, at: float = 0.0) -> Trial:
    trial = Trial(roster.next_attempt(), epoch, DEADLINE, processes, at)
    roster.handle(Begun(trial, b"", CODE, is_lent=False), at)
    return trial


def test_places_are_brought_and_processes_that_call_are_answered() -> None:
    roster = Roster(0.0)
    assert roster.handle(Wanted(2), 0.0) == [Bring(0), Bring(1)]
    assert roster.handle(Wanted(1), 0.0) == [LetGo(1)], "nobody came there, and no worker has it"
    assert roster.handle(Wanted(2), 0.0) == [Bring(2)]
    process, stranger = called(2), called(7)
    assert roster.handle(Greeted(process), 1.0) == [Tell(process, Beat()), Wake()]
    assert roster.handle(Greeted(stranger), 1.0) == [Tell(stranger, Beat()), Tell(stranger, End()), HangUp(stranger)]


def test_work_has_what_a_process_does_not_know_yet() -> None:
    roster, (one,) = with_workers(1)
    trial = Trial(0, 0, DEADLINE, (one, one), 0.0)
    assert roster.handle(Begun(trial, b"spec", CODE), 0.0) == [Tell(one, Work(0, (0, 1), b"spec", (CODE["query"],)))]
    assert roster.handle(Said(one, Done(0, [])), 1.0) == [Wake()]
    again = Trial(1, 1, DEADLINE, (one,), 1.0)
    assert roster.handle(Begun(again, b"spec", {}), 1.0) == [Tell(one, Work(1, (0,), b"spec", (), ("query",)))]


def test_a_death_fails_the_attempt_and_the_others_abandon_it() -> None:
    roster, (one, two) = with_workers(2)
    trial = begun(roster, one, two)
    assert roster.handle(Missed(one), 1.0) == [Tell(two, Abandon(0)), Wake()]
    assert str(trial.failure) == f"epoch 0: the {one} died: its connection broke"
    assert not trial.is_explained
    assert roster.handle(Said(two, Failed(0, "it was abandoned", "", abandoned=True)), 2.0) == [Wake()]
    roster.handle(PlaceDied(0, "killed by SIGKILL"), 3.0)
    trial.explain()
    assert str(trial.failure) == f"epoch 0: the {one} died: killed by SIGKILL"


def test_a_failure_that_follows_from_another_gives_way_to_it() -> None:
    roster, (one, two, three) = with_workers(3)
    trial = begun(roster, one, two, three)
    roster.handle(Said(one, Failed(0, "a stream broke", "", abandoned=True)), 1.0)
    roster.handle(Said(two, Failed(0, "out of memory", "trace")), 1.0)
    roster.handle(Missed(three), 1.0)
    assert str(trial.failure) == "epoch 0: out of memory"


def test_a_process_that_is_silent_is_replaced_and_not_heard_any_more() -> None:
    roster, (one,) = with_workers(1)
    trial = begun(roster, one)
    for beat in range(SILENT_BEATS):
        assert roster.handle(Ticked(1.0), 1.0 + beat) == [Tell(one, Beat())]
    commands = roster.handle(Ticked(1.0), 20.0)
    assert commands == [Tell(one, Beat()), Wake(), Warn(f"{one}: it said nothing for 15 s; it is replaced"), Replace(0), Wake()]
    assert trial.failure is not None
    assert trial.failure.worker_died
    assert roster.handle(Said(one, Done(0, [])), 21.0) == [Tell(one, End())]
    assert roster.handle(PlaceDied(0, "killed"), 21.0) == [], "it was ended on purpose"


def test_an_attempt_in_which_nothing_moves_fails_and_who_owes_an_answer_is_replaced() -> None:
    roster, (one, two) = with_workers(2)
    trial = begun(roster, one, two)
    roster.handle(Said(one, Done(0, [])), 1.0)
    roster.handle(Said(two, Beat(progress=1)), 60.0)
    assert Replace(1) not in roster.handle(Ticked(1.0), 60.0 + DEADLINE)
    assert Replace(1) in roster.handle(Ticked(1.0), 61.0 + DEADLINE)
    assert trial.failure is not None
    assert trial.failure.stalled
    assert not trial.pending


def test_who_does_not_give_up_a_cancelled_attempt_is_replaced() -> None:
    roster, (one, two) = with_workers(2)
    trial = begun(roster, one, two)
    assert roster.handle(GivenUp(trial, EpochFailed("cancelled")), 0.0) == [Tell(one, Abandon(0)), Tell(two, Abandon(0))]
    roster.handle(Said(one, Failed(0, "abandoned", "", abandoned=True)), 1.0)
    assert Replace(1) not in roster.handle(Ticked(1.0), ANSWER_SECONDS)
    assert Replace(1) in roster.handle(Ticked(1.0), ANSWER_SECONDS + 1)
    assert str(trial.failure) == "cancelled"


def test_a_task_whose_worker_does_not_come_is_lent_when_patience_ends() -> None:
    roster, (one, two) = with_workers(2)
    roster.handle(Missed(two), 10.0)
    assert roster.processes_for((0, 1), PATIENCE, 15.0) is None
    assert roster.processes_for((0, 1), PATIENCE, 15.1) == (one, one)
    roster.handle(Missed(one), 16.0)
    assert roster.processes_for((0, 1), PATIENCE, 30.0) == ()


def test_a_start_has_enough_once_no_other_has_come_for_a_while() -> None:
    roster = Roster(0.0)
    roster.handle(Wanted(4), 0.0)
    for place, at in ((0, 5.0), (1, 20.0), (2, 40.0)):
        roster.handle(Greeted(called(place)), at)
        assert not roster.has_enough(4, 1, 30.0, at + 29.9)
        assert roster.has_enough(4, 1, 30.0, at + 30.0)
    assert not roster.has_enough(4, 4, 30.0, 1000.0), "three have no room for what is held"
    roster.handle(Greeted(called(3)), 41.0)
    assert roster.has_enough(4, 4, 30.0, 41.0)


def test_a_worker_whose_process_is_gone_goes_on_at_a_place_that_nobody_has() -> None:
    roster, (one, two, spare) = with_workers(3)
    roster.handle(Missed(one), 1.0)
    roster.handle(Assigned((0, 1)), 2.0)
    assert (roster.process_of(0), roster.process_of(1)) == (spare, two)
    roster.handle(Released((0, 1)), 3.0)
    assert list(roster.places) == [1, 2]
    roster.validate()


def test_places_beyond_those_that_are_wanted_go_by_the_executors_that_become_free() -> None:
    roster, processes = with_workers(4, "a", "b", "b", "a")
    roster.handle(Released((0, 1, 2, 3)), 1.0)
    roster.place_of = {0: 0, 1: 1, 2: 2}
    roster.handle(Wanted(5), 1.0)
    commands = roster.handle(Wanted(3), 2.0)
    assert commands == [Tell(processes[3], End()), LetGo(3), LetGo(4)]


def test_workers_that_are_left_go_on_where_they_share_an_executor() -> None:
    roster, processes = with_workers(3, "a", "b", "b")
    assert roster.handle(Released((0, 1)), 1.0) == [Tell(processes[0], End()), LetGo(0), Wake()]
    assert roster.place_of == {0: 2, 1: 1}, "0 goes on beside 1"


def test_for_a_worker_that_was_told_to_go_another_place_is_brought_at_once_and_it_serves_until_it_is_released() -> None:
    roster, (one, two) = with_workers(2, "a", "b")
    warning, *commands = roster.handle(Said(one, Leaving(60.0)), 10.0)
    assert warning == Warn(f"the {one} was told to go with its executor, in 60 s; others are brought in their stead")
    assert commands == [Leave(0, "a"), Bring(2), Wake()]
    assert roster.handle(Said(one, Leaving(50.0)), 20.0) == [], "it says so again where its connection broke"
    assert (roster.leaving(30.0), roster.leaving(90.0)) == ({0: 40.0}, {0: 0.0})
    assert roster.handle(Assigned((0, 1)), 30.0) == []
    assert roster.processes_for((0, 1), PATIENCE, 30.0) == (one, two)
    instead = called(2, executor="c")
    roster.handle(Greeted(instead), 31.0)
    assert roster.handle(Released((0, 1)), 32.0) == [Wake()], "another plan was withdrawn: the place that was brought is kept"
    assert roster.handle(Assigned((2, 1)), 33.0) == []
    assert roster.processes_for((2, 1), PATIENCE, 33.0) == (instead, two)
    assert roster.handle(Released((2, 1)), 34.0) == [Tell(one, End()), LetGo(0), Wake()]
    roster.validate()


def test_a_place_that_leaves_is_not_brought_again_once_it_is_gone() -> None:
    roster, (one, two) = with_workers(2, "a", "b")
    roster.handle(Said(one, Leaving(5.0)), 10.0)
    trial = begun(roster, one, two)
    roster.handle(Missed(one), 15.0)
    assert roster.leaving(15.0) == {}
    assert roster.handle(PlaceDied(0, "the executor was lost"), 15.0) == [LetGo(0), Wake()]
    trial.explain()
    assert str(trial.failure) == f"epoch 0: the {one} died: the executor was lost"
    instead = called(2)
    roster.handle(Greeted(instead), 16.0)
    assert roster.handle(Assigned((0, 1)), 16.0) == []
    assert roster.processes_for((0, 1), PATIENCE, 16.0) == (instead, two)
    roster.validate()


def test_a_worker_that_is_lost_while_it_leaves_goes_on_where_another_came_and_nobody_gets_its_place() -> None:
    roster, (one, _) = with_workers(2, "a", "b")
    roster.handle(Said(one, Leaving(5.0)), 10.0)
    roster.handle(Greeted(called(2)), 11.0)
    roster.handle(Missed(one), 12.0)
    assert roster.handle(Assigned((0, 1, 5)), 13.0) == [Bring(3), LetGo(0)]
    assert roster.place_of == {0: 2, 1: 1, 5: 3}


def test_a_place_that_no_worker_has_goes_at_once() -> None:
    roster, _ = with_workers(3, "a", "b", "b")
    roster.handle(Wanted(4), 1.0)
    spare = called(3, executor="c")
    roster.handle(Greeted(spare), 1.0)
    commands = roster.handle(Said(spare, Leaving(60.0)), 2.0)
    assert commands[1:] == [Leave(3, "c"), Bring(4), Tell(spare, End()), LetGo(3), Wake()]


def test_all_workers_of_an_executor_go_with_it() -> None:
    roster, (one, two, three) = with_workers(3, "a", "b", "b")
    commands = roster.handle(Said(three, Leaving(60.0)), 2.0)
    assert commands[1:] == [Leave(1, "b"), Leave(2, "b"), Bring(3), Bring(4), Wake()]
    assert roster.handle(Said(two, Leaving(59.0)), 3.0) == [], "it is known"
    assert roster.leaving(3.0) == {1: 59.0, 2: 59.0}
    instead = called(3, executor="c")
    roster.handle(Greeted(instead), 4.0)
    roster.handle(Released((0, 1)), 5.0)
    assert roster.processes_for((0, 1), PATIENCE, 5.0) == (one, two), "0 does not go on at a place that leaves, to empty its executor"


@dataclass
class World:
    """Hosts, worker processes and a driver, at random."""

    rng: random.Random
    roster: Roster = field(default_factory=lambda: Roster(0.0))
    now: float = 0.0
    hosted: set[int] = field(default_factory=set)
    """Places to which processes come."""
    connected: dict[Process, dict[int, int]] = field(default_factory=dict)
    """By process: attempt -> how many of its tasks it has yet to answer."""
    running: dict[int, Process] = field(default_factory=dict)
    """By place."""
    hanging: set[Process] = field(default_factory=set)
    told: dict[tuple[Process, int], list[type]] = field(default_factory=dict)
    workers: tuple[int, ...] = (0, 1)
    epoch: int = 0
    pid: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    history: list[object] = field(default_factory=list)

    def happens(self, event: Event) -> None:
        self.history.append((round(self.now, 1), event))
        self.counts[type(event).__name__] += 1
        commands = self.roster.handle(event, self.now)
        left, brought = (sum(isinstance(command, kind) for command in commands) for kind in (Leave, Bring))
        assert brought >= left, "in its stead none is brought"
        for command in commands:
            self.history.append(command)
            match command:
                case Tell(process, message):
                    assert process in self.connected, f"{process} is not there to be told {message}"
                    if isinstance(message, Work):
                        self.connected[process][message.attempt] = len(message.tasks)
                    if isinstance(message, Work | Abandon):
                        self.told.setdefault((process, message.attempt), []).append(type(message))
                case Bring(place):
                    assert place not in self.hosted
                    self.hosted.add(place)
                case LetGo(place):
                    self.hosted.remove(place)
                case Replace(place):
                    assert place in self.hosted
                    self.counts["replaced"] += 1
                    victim = self.running.pop(place, None)
                    if victim is not None and self.rng.random() < 0.8:  # else nobody can reach it
                        self.hanging.add(victim)
        self.roster.validate()
        for (process, attempt), messages in self.told.items():
            assert messages[0] is Work, f"{process} was told to abandon attempt {attempt} before it had it"
            assert messages.count(Work) == 1

    def step(self) -> None:
        self.now += self.rng.choice([0.0, 0.1, 1.0, 1.0, 3.0])
        acts = [self.comes, self.answers, self.answers, self.answers, self.dies, self.hangs, self.begins, self.begins, self.ends]
        acts += [self.ticks, self.ticks, self.cancels, self.releases, self.breaks, self.explains, self.leaves]
        self.rng.choice(acts)()

    def ticks(self, *, progress: bool = True) -> None:
        for process in list(self.connected):
            if process not in self.hanging and self.rng.random() < 0.8:
                self.happens(Said(process, Beat(self.rng.randrange(3) if progress else process.progress)))
        self.happens(Ticked(1.0))

    def comes(self) -> None:
        empty = [place for place in sorted(self.hosted) if place not in self.running]
        if empty:
            self.pid += 1
            died = "killed by SIGKILL" if self.rng.random() < 0.3 else None
            process = called(self.rng.choice(empty), self.pid, died=died, executor=self.rng.choice("ab"))
            self.running[process.hello.place], self.connected[process] = process, {}
            self.happens(Greeted(process))

    def some(self) -> Process | None:
        able = [process for process in self.connected if process not in self.hanging]
        return self.rng.choice(able) if able else None

    def answers(self) -> None:
        process = self.some()
        if process is not None and self.connected[process]:
            attempt = min(self.connected[process])
            tasks = self.connected[process].pop(attempt)
            if Abandon in self.told[process, attempt] and self.rng.random() < 0.8:
                self.happens(Said(process, Failed(attempt, "abandoned", "", abandoned=True)))
            elif self.rng.random() < 0.1:
                self.happens(Said(process, Failed(attempt, "a stream broke", "", abandoned=self.rng.random() < 0.5)))
            else:
                self.happens(Said(process, Done(attempt, [process] * tasks)))  # type: ignore[list-item]

    def dies(self) -> None:
        """At once or, after the next one has called at its place, later."""
        process = self.some()
        if process is not None and self.rng.random() < 0.5:
            if self.running.get(process.hello.place) is process:
                del self.running[process.hello.place]
            if self.rng.random() < 0.2:
                self.comes()
            del self.connected[process]
            self.happens(Missed(process))

    def explains(self) -> None:
        if self.hosted and self.rng.random() < 0.5:
            place = self.rng.choice(sorted(self.hosted))
            if place not in self.running:
                self.happens(PlaceDied(place, "the executor was lost"))

    def leaves(self) -> None:
        """A process's container is told to go."""
        process = self.some()
        if process is not None and self.rng.random() < 0.3:
            self.counts["leaves"] += 1
            self.happens(Said(process, Leaving(self.rng.choice([0.0, 3.0, 30.0]))))

    def hangs(self) -> None:
        process = self.some()
        if process is not None and self.rng.random() < 0.2:
            self.hanging.add(process)

    def breaks(self) -> None:
        """The connection of a process breaks, and it calls again."""
        process = self.some()
        if process is not None and self.running.get(process.hello.place) is process:
            del self.connected[process]
            self.happens(Missed(process))
            again = Process(process.hello)
            self.running[process.hello.place], self.connected[again] = again, {}
            self.happens(Greeted(again))

    def begins(self) -> None:
        if len(self.roster.current) < 2:
            before: tuple[Process, ...] = ()
            is_lent = None
            if self.roster.current and self.rng.random() < 0.7:
                before = self.roster.following(self.roster.current[-1].epoch, len(self.workers))
            if not before:
                self.happens(Assigned(self.workers))
                before = self.roster.processes_for(self.workers, PATIENCE, self.now) or ()
                is_lent = before != tuple(map(self.roster.process_of, self.workers))
            if before:
                self.epoch += 1
                trial = Trial(self.roster.next_attempt(), self.epoch, DEADLINE, before, self.now)
                self.happens(Begun(trial, b"", CODE, is_lent))

    def cancels(self) -> None:
        if self.roster.current and self.rng.random() < 0.2:
            self.happens(GivenUp(self.roster.current[-1], EpochFailed("cancelled")))

    def ends(self) -> None:
        trial = next((trial for trial in self.roster.current if not trial.pending), None)
        if trial is None:
            return
        self.happens(Over(trial))
        for process in set(trial.processes):
            assert process.gone or trial.number not in self.connected[process], f"attempt {trial.number} still runs in {process}"
        if trial.failure is None:
            self.counts["succeeded"] += 1
            assert Counter(trial.reports) == Counter(trial.processes), "each task has one report"
        else:
            self.counts["failed"] += 1

    def releases(self) -> None:
        if not self.roster.current and self.rng.random() < 0.3:
            self.workers = tuple(self.rng.sample(range(6), self.rng.randint(1, 4)))
            self.happens(Released(self.workers))

    def comes_to_an_end(self) -> None:
        """Every attempt, although nobody answers any more."""
        deadline = self.now + DEADLINE + ANSWER_SECONDS + SILENT_BEATS + 10
        while self.roster.current:
            assert self.now < deadline, f"attempts {[trial.number for trial in self.roster.current]} never end"
            self.now += 1.0
            self.ticks(progress=False)
            self.ends()


@pytest.mark.parametrize("part", range(4))
def test_whatever_dies_hangs_or_comes_late_every_attempt_ends_and_succeeds_only_with_all_reports(part: int) -> None:
    counts: Counter[str] = Counter()
    for seed in range(part, SCHEDULES, 4):
        world = World(random.Random(seed), counts=counts)
        try:
            for _ in range(STEPS):
                world.step()
            world.comes_to_an_end()
        except AssertionError as error:
            told = "\n".join(map(str, world.history[-30:]))
            raise AssertionError(f"seed {seed}: {error}\n{told}") from error
    assert (
        min(counts[name] for name in ("succeeded", "failed", "replaced", "leaves", "Missed", "PlaceDied", "GivenUp", "Released")) > 100
    ), counts
