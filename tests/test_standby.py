"""A standby: when it takes over, by the state machine; the log; the connection; and processes that are killed."""

from __future__ import annotations

import json
import signal
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness import make_job
from joins import band_options
from standbys import FilesJoin, Running
from streamjoin.api.loop import Reason, Standing
from streamjoin.api.standing_by import StandingBy
from streamjoin.controlplane.standby import (
    ASK_SECONDS,
    REFUSALS,
    SILENT_SECONDS,
    Ask,
    Beat,
    Began,
    Broken,
    Claim,
    Claimed,
    Event,
    Farewell,
    Found,
    Instruction,
    Look,
    Outrun,
    Phase,
    Ready,
    Report,
    Standby,
    Ticked,
    Warm,
)
from streamjoin.runner.inline import InlineRunner
from streamjoin.serve.metrics import Metrics
from streamjoin.serve.server import DriverServer
from streamjoin.serve.standbys import Standbys
from streamjoin.state.checkpoint import Checkpoint
from streamjoin.state.log import CommitLog, Superseded, read_latest
from streamjoin.state.storage import ObjectStorage
from waiting import PATIENCE_SECONDS, wait_for

FIRST, SECOND = Found(1, "a", "http://first"), Found(2, "b", "http://second")
ASKED = Ask("http://first", "a")
Step = tuple[float, Event, list[Instruction]]
WAITS: list[Step] = [(0, Began(), [Look()]), (0, FIRST, [ASKED]), (0, Beat(3), [Warm(3)])]
"""When, what happens, and what is to be done."""
GONE: list[Step] = [
    (9, Beat(3), []),
    (9, Broken(), []),
    (9 + ASK_SECONDS, Ticked(), [ASKED]),
    (9 + ASK_SECONDS, Broken(), []),
    (9 + 2 * ASK_SECONDS, Ticked(), [ASKED]),
    (9 + 2 * ASK_SECONDS, Broken(), [Look()]),
]
STORIES: dict[str, tuple[list[Step], Phase]] = {
    "nobody ever ran the join": ([(0, Began(), [Look()]), (0, Found(0), [Claim(0)]), (0, Claimed(), [])], Phase.ACTIVE),
    "the last driver had no port": ([(0, Began(), [Look()]), (0, Found(4, "a"), [Claim(4)]), (0, Claimed(), [])], Phase.ACTIVE),
    "it waits": ([*WAITS, (1, Beat(3), []), (1, Ticked(), []), (1 + SILENT_SECONDS - 0.1, Ticked(), [])], Phase.WAITING),
    "the plan changes": ([*WAITS, (1, Beat(5), [Warm(5)]), (2, Beat(5), []), (3, Beat(2), [Warm(2)])], Phase.WAITING),
    "there is no plan yet": ([*WAITS[:2], (0, Beat(0), [Warm(1)]), (1, Beat(2), [Warm(2)])], Phase.WAITING),
    "workers are ready": ([*WAITS, (1, Ready(2), [Report(2)]), (2, Ready(2), [])], Phase.WAITING),
    "workers are ready before it is heard": (
        [*WAITS[:2], (1, Ready(2), []), (2, Beat(2), [Report(2), Warm(2)]), (3, Beat(2), [])],
        Phase.WAITING,
    ),
    "the driver dies": ([*WAITS, *GONE, (10, FIRST, [Claim(1)]), (10, Claimed(), [])], Phase.ACTIVE),
    "a connection breaks": ([*WAITS, *GONE[:-2], (9.6, Beat(3), []), (9.6, Broken(), [])], Phase.WAITING),
    "the driver is silent": ([*WAITS, (SILENT_SECONDS, Ticked(), [Look()]), (6, FIRST, [Claim(1)])], Phase.TAKING_OVER),
    "nobody was ever there": ([*WAITS[:2], (SILENT_SECONDS, Ticked(), [Look()]), (6, FIRST, [Claim(1)])], Phase.TAKING_OVER),
    "it cannot be reached, and commits": (
        [
            *(*WAITS[:2], (SILENT_SECONDS, Ticked(), [Look()]), (5, replace(FIRST, sequence=7), [ASKED])),
            *((5 + SILENT_SECONDS, Ticked(), [Look()]), (10, replace(FIRST, sequence=7), [Claim(1)])),
        ],
        Phase.TAKING_OVER,
    ),
    "it was heard, and its last commits count for nothing": (
        [*WAITS, *GONE, (10, replace(FIRST, sequence=7), [Claim(1)])],
        Phase.TAKING_OVER,
    ),
    "another took over before it looked": ([*WAITS, *GONE, (10, SECOND, [Ask("http://second", "b")])], Phase.WAITING),
    "another takes over before it claims": (
        [*WAITS, *GONE, (10, FIRST, [Claim(1)]), (10, Outrun(), [Look()]), (10, SECOND, [Ask("http://second", "b")])],
        Phase.WAITING,
    ),
    "the other dies, too": (
        [
            *(*WAITS, *GONE, (10, SECOND, [Ask("http://second", "b")]), (10, Beat(3), [Warm(3)])),
            *((10 + SILENT_SECONDS, Ticked(), [Look()]), (16, SECOND, [Claim(2)])),
        ],
        Phase.TAKING_OVER,
    ),
    "the driver has failed": ([*WAITS, (1, Farewell(True), [Look()]), (1, FIRST, [Claim(1)]), (1, Claimed(), [])], Phase.ACTIVE),
    "the join is over": ([*WAITS, (1, Farewell(False), []), (1, Broken(), []), (99, Ticked(), [])], Phase.ENDED),
    "what comes late counts no more": ([*WAITS, *GONE, (10, Beat(3), []), (10, Broken(), []), (99, Ticked(), [])], Phase.TAKING_OVER),
}


@pytest.mark.parametrize("story", STORIES)
def test_a_standby_does(story: str) -> None:
    machine, (steps, phase) = Standby(), STORIES[story]
    assert [machine.handle(event, at) for at, event, _ in steps] == [instructions for _, _, instructions in steps]
    assert machine.phase is phase


def test_a_death_is_noticed_within_three_seconds() -> None:
    assert REFUSALS * ASK_SECONDS < 3, "a port that is closed refuses at once"


def test_a_log_is_claimed_from_the_driver_that_was_watched_and_from_no_other(tmp_path: Path) -> None:
    storage = ObjectStorage(str(tmp_path))
    logs = [CommitLog(storage) for _ in range(4)]
    logs[0].reachable_at("http://127.0.0.1:1")
    logs[0].claim_after(0)
    with pytest.raises(Superseded):
        logs[1].claim_after(0)
    newest = read_latest(storage)
    assert newest is not None
    assert (newest.incarnation, newest.writer, newest.address) == (1, logs[0].writer, "http://127.0.0.1:1")
    logs[0].commit(Checkpoint(epoch=0))  # it is at work: its incarnation stays
    logs[2].claim_after(1)
    with pytest.raises(Superseded):
        logs[3].claim_after(1)
    assert logs[2].begin().epoch == 0
    newest = read_latest(storage)
    assert newest is not None
    assert (newest.incarnation, newest.address) == (2, None)
    with pytest.raises(Superseded):
        logs[0].commit(Checkpoint(epoch=1))
    assert logs[2].begin().claims == logs[3].begin().claims - 1, "what was claimed ahead counts once"


class Watched:
    """A driver that has claimed, and its port."""

    def __init__(self, job: Any, storage: ObjectStorage) -> None:
        self.log, self.workers = CommitLog(storage), 2
        self.standbys = Standbys(lambda: self.log.writer, lambda: self.workers)
        self._server = DriverServer(Metrics(job, standby=lambda: self.standbys.told), standbys=self.standbys)
        self.log.reachable_at(self._server.url)
        self.log.claim()

    def die(self) -> None:
        """As a process that is killed: what it has open is closed, and says nothing more."""
        self._server.close()


class Waiting:
    """A standby in a thread."""

    def __init__(self, job: Any, storage: ObjectStorage, *, hands_over: bool = False) -> None:
        self.told: list[Standing] = []
        self.now, self.took_over = 0.0, 0
        self.stop, self.log, self.runner = threading.Event(), CommitLog(storage), InlineRunner()
        self.standbys = Standbys(lambda: self.log.writer, lambda: 0)
        self.server = DriverServer(Metrics(job), standbys=self.standbys)
        self.log.reachable_at(self.server.url)
        self._standing = StandingBy(
            *(job, storage, self.log, self.runner),
            stop=self.stop,
            hands_over=hands_over,
            tell=self.told.append,
            took_over=self._count,
            clock=lambda: self.now,
        )
        self._thread = threading.Thread(target=self._wait, daemon=True)
        self.found: list[Reason | Exception | None] = []
        self._thread.start()

    def _count(self) -> None:
        self.took_over += 1

    def _wait(self) -> None:
        try:
            self.found.append(self._standing.wait())
        except Exception as error:
            self.found.append(error)

    def see(self, phase: Phase, **facts: Any) -> None:
        def seen() -> bool:
            return any(each.phase is phase and all(getattr(each, name) == value for name, value in facts.items()) for each in self.told)

        wait_for(f"{phase} {facts}", seen, told=lambda: f"{self.told} {self.found}")

    def move_clock(self, seconds: float) -> None:
        self.now += seconds

    def end(self) -> Reason | Exception | None:
        wait_for("its end", lambda: self.found, told=lambda: f"{self.told}")
        return self.found[0]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """Makes a driver at work, or one that waits, of one join."""
    job, storage, made = make_job(tmp_path, **band_options()), ObjectStorage(str(tmp_path / "state")), list[Any]()

    def begin(kind: Any, **options: Any) -> Any:
        made.append(kind(job, storage, **options))
        return made[-1]

    yield begin
    for each in made:
        if isinstance(each, Waiting):
            each.stop.set()
            each.end()
            each.server.close()


def test_it_gets_as_many_workers_ready_as_the_driver_has_and_claims_when_that_dies(start: Callable[..., Any]) -> None:
    driver, standby = start(Watched), start(Waiting)
    standby.see(Phase.WAITING, workers=2, ready=2)
    wait_for("the driver to know", lambda: driver.standbys.told == {"state": "Ready", "workers": 2})
    driver.workers = 3
    standby.see(Phase.WAITING, workers=3, ready=3)
    driver.die()
    while not standby.found:  # it asks again once the clock has moved
        standby.move_clock(ASK_SECONDS)
    assert standby.end() is None
    assert standby.took_over == 1
    with pytest.raises(Superseded):
        driver.log.commit(Checkpoint(epoch=0))


@pytest.mark.parametrize(
    ("ended", "in_pod", "reason"),
    [
        ("idle", False, Reason.ELSEWHERE),
        ("time", False, Reason.ELSEWHERE),
        ("stopped", False, Reason.ELSEWHERE),
        ("stopped", True, None),  # only the pod goes
        ("failed", False, None),
    ],
)
def test_how_the_driver_ended_says_whether_the_join_goes_on(ended: str, in_pod: bool, reason: Any, start: Callable[..., Any]) -> None:
    driver, standby = start(Watched), start(Waiting, hands_over=in_pod)
    standby.see(Phase.WAITING, workers=2)
    driver.standbys.finish(ended)
    driver.die()
    assert standby.end() is reason
    assert standby.took_over == (reason is None)


def test_of_two_standbys_one_takes_over_and_the_other_watches_it(start: Callable[..., Any]) -> None:
    driver, first, second = start(Watched), start(Waiting), start(Waiting)
    for each in (first, second):
        each.see(Phase.WAITING, workers=2)
    driver.standbys.finish("failed")
    [winner] = wait_for("one of them", lambda: [each for each in (first, second) if each.found])
    loser = second if winner is first else first
    loser.see(Phase.WAITING, writer=winner.log.writer, workers=0)
    assert (winner.end(), loser.found) == (None, [])
    winner.standbys.finish("idle")
    assert loser.end() is Reason.ELSEWHERE


def test_a_silent_driver_is_given_up_by_the_clock(start: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streamjoin.serve.standbys.BEAT_SECONDS", PATIENCE_SECONDS)
    driver, standby = start(Watched), start(Waiting)
    standby.see(Phase.WAITING, workers=2, ready=2)
    standby.move_clock(SILENT_SECONDS - 1)
    assert not standby.found
    while not standby.found:
        standby.move_clock(SILENT_SECONDS)
    assert standby.end() is None
    with pytest.raises(Superseded):
        driver.log.commit(Checkpoint(epoch=0))


def test_another_program_at_the_port_is_not_the_driver(start: Callable[..., Any]) -> None:
    driver = start(Watched)
    driver.log.writer = "another"  # as one that was started later on the same machine
    standby = start(Waiting)
    while not standby.found:
        standby.move_clock(ASK_SECONDS)
    assert standby.end() is None
    assert standby.took_over == 0, "nobody was heard"


def test_it_stops_where_it_is_asked_to_and_claims_nothing(start: Callable[..., Any]) -> None:
    driver, standby = start(Watched), start(Waiting)
    standby.see(Phase.WAITING, workers=2)
    standby.stop.set()
    assert standby.end() is Reason.STOPPED
    driver.log.commit(Checkpoint(epoch=0))


def test_a_checkpoint_of_another_join_is_refused_while_its_driver_is_at_work(tmp_path: Path) -> None:
    join = FilesJoin(tmp_path)
    join.bring(0, 2)
    with Running(join, "first", "--runner", "inline") as first:
        first.wait(event="epoch")
        text = join.manifest.read_text()
        join.manifest.write_text(text.replace("k BIGINT", "k DOUBLE"))
        with Running(join, "second", "--runner", "inline") as second:
            assert second.end() == 5, second.said
            assert "k" in second.said


def asked(url: str, method: str = "GET") -> tuple[int, dict[str, Any]]:
    try:
        with urllib.request.urlopen(urllib.request.Request(url, method=method), timeout=PATIENCE_SECONDS) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


@pytest.mark.spark
def test_a_driver_on_spark_is_killed_and_its_standby_goes_on(tmp_path: Path) -> None:
    join = FilesJoin(tmp_path)
    join.bring(0, 4)
    with Running(join, "first") as first:
        first.wait(event="epoch", epoch=1)
        with Running(join, "second", "--until-idle") as second:
            second.wait(event="standby", state="waiting", workers=2, ready=2)
            assert asked(f"{second.url}/healthz")[0] == 200
            status, health = asked(f"{second.url}/readyz")
            assert (status, health["state"], health["epoch"]) == (503, "standby", None)
            wait_for("the first to know", lambda: asked(f"{first.url}/healthz")[1]["standby"] == {"state": "Ready", "workers": 2})
            assert not [event for event in second.events if event["event"] == "epoch"], "it takes no work while it waits"
            join.bring(4, 8)
            wait_for("an epoch more", lambda: join.epoch >= 2)
            second.process.send_signal(signal.SIGSTOP)  # until all is there, or it may have joined the rest before
            first.process.send_signal(signal.SIGKILL)
            join.bring(8, join.files)
            second.process.send_signal(signal.SIGCONT)
            second.wait(event="standby", state="taking over")
            assert second.end() == 0, second.said
            assert second.events[-1]["reason"] == "idle"
    assert join.results() == join.expected()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_join_that_is_stopped_ends_its_standby_and_is_not_run_again(number: int, tmp_path: Path) -> None:
    join = FilesJoin(tmp_path)
    join.bring(0, 4)
    with Running(join, "first", "--runner", "inline") as first, Running(join, "second", "--runner", "inline") as second:
        for each in (first, second):
            wait_for("an event", lambda each=each: each.events, told=lambda each=each: each.said)
        active, waiting = (first, second) if second.events[0].get("state") == "waiting" else (second, first)
        waiting.wait(event="standby", state="waiting", ready=2)
        active.wait(event="epoch", epoch=1)
        active.process.send_signal(number)
        assert (active.end(), waiting.end()) == (0, 0), waiting.said
        assert waiting.events[-1]["reason"] == "elsewhere"
        assert waiting.events[-1]["epochs"] == 0


def test_a_standby_that_is_stopped_leaves_the_join_alone(tmp_path: Path) -> None:
    join = FilesJoin(tmp_path)
    join.bring(0, 2)
    with Running(join, "first", "--runner", "inline") as first:
        first.wait(event="epoch")
        with Running(join, "second", "--runner", "inline", "--until-idle") as second:
            second.wait(event="standby", state="waiting")
            second.process.send_signal(signal.SIGTERM)
            assert second.end() == 0, second.said
            assert second.events[-1]["reason"] == "stopped"
        join.bring(2, 4)
        first.wait(event="epoch", epoch=1)


def test_a_manifest_that_cannot_run_is_refused_at_once(tmp_path: Path) -> None:
    join = FilesJoin(tmp_path)
    join.manifest.write_text(join.manifest.read_text().replace("abs(l.k - r.k)", "abs(l.k - r.nothing)"))
    with Running(join, "first") as standby:
        assert standby.end() == 2
        assert "nothing" in standby.said
