"""The operator's autoscaler, told minute by minute: a cluster and a join in memory, time that is the test's, operators that are killed."""

from __future__ import annotations

import asyncio
import copy
import json
import logging
import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

import scaled_join
from cases import some
from judged import judged_plans
from memory_cluster import MemoryCluster
from operator_parts import Object, parsed_once, story, streamjoin, three_streams
from scaled_join import MOVE_SECONDS, START_SECONDS, ScaledJoin, ScarceJoin, workers_of
from streamjoin.elastic import planned_forecast
from streamjoin.elastic.decision import Decision, Kind
from streamjoin.elastic.decision import Reason as Why
from streamjoin.elastic.ledger import Ledger
from streamjoin.elastic.settings import Mode
from streamjoin.scheme.tiling import Scheme, same_cut
from streamjoin_operator import children, cost, names, plugin
from streamjoin_operator.api import NODE, ApiError
from streamjoin_operator.autoscale import MOST_BYTES, Scaler, progress_of
from streamjoin_operator.budget import SHORTAGE_SECONDS
from streamjoin_operator.derived import derive
from streamjoin_operator.driver import Answered
from streamjoin_operator.measurement import Distrusted, Reading, Scrapes, Series, measure
from streamjoin_operator.missing import Found
from streamjoin_operator.prometheus import Question
from streamjoin_operator.reasons import Reason
from streamjoin_operator.reconcile import Reconciler
from streamjoin_operator.settings import Settings

KEY = ("default", "one")
BEGIN = 1_800_000_000.0
POLL = 15
FEW, MANY = 4_000.0, 48_000.0
"""Tuples of each stream: with a capacity of 100,000, one worker is 0.08 or 0.96 full."""


class Killed(BaseException):
    """The operator's process ends here."""


class OwnMetrics:
    """What Prometheus would have of the join: every scrape of the last minutes."""

    def __init__(self, world: World) -> None:
        self._world, self._scrapes = world, Scrapes(300)
        self.answer: Distrusted | None = None
        self.spoil: Callable[[list[Series]], list[Series]] = lambda found: found
        self.is_scraping = True
        self.found: Found | None = Found()
        self.asked: list[tuple[str, str, str, float]] = []

    def scrape(self) -> None:
        if self.is_scraping:
            self._scrapes.add(self._world.join.metrics(), self._world.now)

    def restart_empty(self) -> None:
        self._scrapes = Scrapes(300)

    async def read(self, question: Question, seconds: float) -> list[Series] | Distrusted:
        self.asked.append((question.url, question.namespace, question.name, seconds))
        return self.answer or self.spoil(self._scrapes.series())

    async def search(self, question: Question) -> Found | None:
        assert (question.name, question.base) == ("one", "sj-one")
        return self.found


class World:
    """A cluster, a join with its load, and operators that come and go."""

    def __init__(
        self, tuples: float = FEW, workers: int = 1, *, prometheus: bool = True, join: Callable[..., ScaledJoin] = ScaledJoin, **spec: Any
    ) -> None:
        self.now = BEGIN
        self.cluster = MemoryCluster()
        self.join = join(lambda: self.now, tuples, workers, **spec)
        self.prometheus = OwnMetrics(self)
        url = "http://prometheus:9090" if prometheus else ""
        self.settings = Settings(engine_image="engine:1", prometheus_url=url, price_per_executor_hour=0.5)
        self.steps: list[str] = []
        self.kill_at: int | None = None
        self.reconciler = self.operator()
        body = streamjoin(**spec)
        body["metadata"] = {"name": "one", "namespace": "default"}
        self.cluster.put(body)

    def operator(self) -> Reconciler:
        return Reconciler(
            self.cluster,  # type: ignore[arg-type]
            self.join,
            self.settings,
            self.prometheus,
            clock=lambda: self.now,
            wall=lambda: datetime.fromtimestamp(self.now, UTC),
            on_step=self._on_step,
        )

    def _on_step(self, step: str) -> None:
        self.steps.append(step)
        if self.kill_at is not None and len(self.steps) > self.kill_at:
            self.kill_at = None
            raise Killed(step)

    async def once(self, reconciler: Reconciler | None = None) -> float | None:
        """One call; after how many seconds the next one is due."""
        reconciler = reconciler or self.reconciler
        for body in self.cluster.of("StreamJoin"):
            reconciler.seen.saw(body)
        for body in self.cluster.of("Deployment"):
            reconciler.seen.saw_deployment(body)
        after = await reconciler.reconcile(KEY)
        if ("Deployment", "default", "sj-one") in self.cluster.objects:
            self.cluster.ready("default", "sj-one")
        return after

    async def run(self, seconds: float, until: Callable[[], bool] = lambda: False) -> None:
        """Polls for so long, or until something is so; an operator that is killed is followed by another."""
        end = self.now + seconds
        while self.now < end and not until():
            for _ in range(3):
                self.now += POLL / 3
                self.prometheus.scrape()
            try:
                await self.once()
            except Killed:
                self.reconciler = self.operator()
            except ApiError as error:
                if error.status not in (0, 409):
                    raise

    def edit(self, change: Callable[[Object], Any]) -> None:
        self.cluster.edit("StreamJoin", *KEY, change)

    @property
    def status(self) -> Object:
        return dict(self.cluster.objects["StreamJoin", *KEY].get("status", {}))

    def condition(self, kind: str) -> tuple[str, str, str]:
        found = next(found for found in self.status["conditions"] if found["type"] == kind)
        return found["status"], found["reason"], found["message"]

    @property
    def ledger(self) -> Ledger:
        found = self.cluster.objects["ConfigMap", "default", names.ledger_name("one")]
        return Ledger.from_json(json.loads(found["data"][children.LEDGER_KEY])["ledger"])

    @property
    def reasons(self) -> list[str]:
        return [event["reason"] for event in self.cluster.events]

    @property
    def targets(self) -> list[int]:
        return list(map(workers_of, self.join.wishes))


@pytest.fixture(autouse=True, scope="module")
def _parsed_once() -> Iterator[None]:
    with parsed_once(scaled_join):
        yield


def slow(seconds: str = "60s") -> Object:
    """Scaling by thresholds that removes workers sooner than by default."""
    return {"policy": "thresholds", "scaleDownAfter": seconds}


NO_NODE = "0/3 nodes are available: 3 Insufficient memory."


def executor(name: str, status: Object) -> Object:
    labels = names.pod_labels("one", names.EXECUTOR)
    metadata = {"name": name, "namespace": "default", "labels": labels, "creationTimestamp": "2027-01-15T08:00:00Z"}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {}, "status": status}


@pytest.mark.parametrize("room", some([6, 7], of=2))
def test_a_cluster_that_has_room_for_fewer_workers_runs_those_and_says_why_there_are_no_more(room: int) -> None:
    async def told() -> None:
        world = World(workers=4, tuples=4 * FEW, join=ScarceJoin, scaling=slow())
        join = world.join
        assert isinstance(join, ScarceJoin)
        join.room = room
        await world.run(90)
        cannot = {"type": "PodScheduled", "status": "False", "message": NO_NODE}
        world.cluster.put(executor("pending", {"phase": "Pending", "conditions": [cannot]}))
        join.tuples = 4.5 * MANY
        await world.run(300, lambda: world.join.workers == room)
        assert world.targets[0] > 7
        assert world.join.workers == room, "those that came, well before the others are given up"
        assert join.asked == world.targets[0]
        waits = f"plan 3: {room} to {join.asked} workers, WaitingForWorkers: 1 of 1 executors: pod pending: {NO_NODE}"
        await world.run(30)
        assert world.condition("Rescaling") == ("True", "Rescaling", waits)
        assert world.condition("Ready") == ("True", "JoinRunning", waits)
        assert world.condition("Degraded")[:2] == ("True", "ExecutorsPending")
        await world.run(800, lambda: join.wanted is None)
        why = f"of {world.targets[0] - room} new workers 0 are there, and no other has come for 600 s: {join.absence}"
        assert world.condition("Degraded") == ("True", "PlanDropped", f"generation 3: {why}")
        assert world.condition("Ready") == ("True", "JoinRunning", f"generation 3: {why}")
        assert world.reasons.count("ScalingFailed") == 1
        before = len(world.targets)
        await world.run(2 * 3600)
        assert 2 <= len(world.targets) - before <= 12, "the others are tried again, at pauses that double"
        assert world.join.workers == room
        join.room = 64
        await world.run(1300, lambda: world.join.workers > room)
        await world.run(60)
        assert world.join.workers == world.targets[0]
        assert world.condition("Degraded")[:2] == ("False", "Healthy")
        assert world.condition("Ready") == ("True", "JoinRunning", Reason.JoinRunning.value)

    asyncio.run(told())


def test_a_plan_that_waits_is_withdrawn_when_it_is_not_needed_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planned_forecast, "DUTY", 0.0)  # it goes by the machine's clock, and this story takes no time
    asyncio.run(withdrawn())


async def withdrawn() -> None:
    world = World(workers=4, tuples=4 * FEW, join=ScarceJoin, scaling=slow())
    join = world.join
    assert isinstance(join, ScarceJoin)
    join.room = 4
    await world.run(90)
    join.tuples = 4.5 * MANY
    await world.run(180, lambda: bool(world.join.wishes))
    wanted = join.asked
    assert wanted is not None
    join.tuples = MANY
    await world.run(300, lambda: len(world.targets) > 1)
    assert 4 < world.targets[1] < wanted, "fewer would do"
    assert join.asked == world.targets[1]
    join.tuples = FEW
    await world.run(300, lambda: join.wanted is None)
    assert [one["fate"] for one in join.ended] == ["Replaced", "Withdrawn"]
    assert "ScalingFailed" not in world.reasons
    await world.run(30)
    assert world.condition("Degraded")[:2] == ("False", "Healthy")


@story
async def test_load_comes_and_goes_and_workers_follow_it() -> None:
    world = World(scaling=slow())
    await world.run(120)
    assert world.join.wishes == []
    assert world.condition("MetricsAvailable")[:2] == ("True", "MetricsRead")
    world.join.tuples = MANY
    await world.run(180, lambda: bool(world.join.wishes))
    (wish,) = world.join.wishes
    assert wish["generation"] == 2
    assert workers_of(wish) > 1
    assert world.status["desiredWorkers"] == workers_of(wish)
    (decision,) = world.status["decisions"]
    assert (decision["rule"], decision["reason"], decision["outcome"]) == ("allocate", "Full", "Decided")
    await world.run(120)
    assert world.join.workers == workers_of(wish)
    (decision,) = world.status["decisions"]
    assert decision["outcome"] == "Applied"
    assert float(decision["utilization"]) > 0.9
    assert float(decision["realizedUtilization"]) == pytest.approx(float(decision["predictedUtilization"]), abs=0.02)
    assert world.targets == [workers_of(wish)], "the same load leads to one change"
    world.join.tuples = FEW
    await world.run(600)
    assert world.join.workers == 1
    assert [decision["outcome"] for decision in world.status["decisions"]] == ["Applied"] * len(world.targets)
    told = [reason for reason in world.reasons if reason in ("Allocating", "Deallocating", "Scaled")]
    assert told[:2] == ["Allocating", "Scaled"]
    assert told[-2:] == ["Deallocating", "Scaled"]


def test_the_scheme_that_was_judged_is_put_and_no_plan_is_made_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    async def told() -> None:
        world = World(scaling=slow())
        await world.run(120)
        for tuples in (MANY, FEW):
            world.join.tuples = tuples
            with judged_plans(monkeypatch) as judged:
                await world.run(600, lambda: world.join.wanted is not None)
            wish, wanted = world.join.wishes[-1], world.join.wanted
            assert wanted is not None
            assert wish in [{"generation": one.plan.generation, "scheme": one.plan.scheme.to_json()} for one in judged]
            assert same_cut(wanted.scheme, Scheme.from_json(wish["scheme"]))
            last = world.ledger.last
            assert last is not None
            assert last.decision.prediction is not None
            assert max(world.join.tau_of(wanted.scheme)) == pytest.approx(last.decision.prediction.tau_max)
            await world.run(120)

    asyncio.run(told())


def test_a_number_of_workers_is_asked_for_where_no_plan_was_judged_or_it_has_too_many_areas(monkeypatch: pytest.MonkeyPatch) -> None:
    async def told() -> None:
        world = World()

        async def nothing(url: str, token: str) -> None:
            return None

        monkeypatch.setattr(world.join, "statistics", nothing)
        await world.run(60)
        world.edit(lambda body: body["spec"]["workers"].update(floor=3))
        await world.run(120)
        monkeypatch.undo()
        monkeypatch.setattr("streamjoin_operator.scaling_step.MOST_AREAS", 2)
        world.join.tuples = 6 * MANY
        await world.run(300, lambda: len(world.join.wishes) > 1)
        assert [set(wish) for wish in world.join.wishes] == [{"workers", "model"}, {"workers", "model", "after"}]

    asyncio.run(told())


@story
async def test_by_default_workers_come_before_one_is_full_and_go_once_idling_has_cost_a_change() -> None:
    world = World()
    await world.run(120)
    assert world.join.wishes == []
    while not world.join.wishes:
        world.join.tuples *= 1.02
        await world.run(15)
    (decision,) = world.status["decisions"]
    assert (decision["rule"], decision["outcome"]) == ("allocate", "Decided")
    assert float(decision["utilization"]) < 0.85, "tau2 is 0.8, and by tau3 (0.9) thresholds would go"
    await world.run(120)
    assert world.join.workers == workers_of(world.join.wishes[0]) > 1
    world.join.tuples = FEW
    await world.run(4 * 3600, lambda: world.join.workers == 1)
    await world.run(60)
    assert world.join.workers == 1
    assert world.status["decisions"][-1]["rule"] == "deallocate"


@story
async def test_load_of_three_streams_comes_and_goes_and_workers_follow_it() -> None:
    for prometheus in (True, False):
        world = World(prometheus=prometheus, scaling=slow(), **three_streams())
        await world.run(120)
        world.join.tuples = MANY
        await world.run(300)
        assert world.join.workers > 1
        (decision,) = world.status["decisions"]
        assert (decision["rule"], decision["outcome"]) == ("allocate", "Applied")
        assert float(decision["realizedUtilization"]) == pytest.approx(float(decision["predictedUtilization"]), abs=0.02)
        world.join.tuples = FEW
        await world.run(900)
        assert world.join.workers == 1
        assert [decision["outcome"] for decision in world.status["decisions"]] == ["Applied"] * len(world.targets)


@story
async def test_without_a_prometheus_the_drivers_own_metrics_are_read_with_the_same_checks() -> None:
    world = World(MANY, prometheus=False)
    await world.run(180)
    assert world.prometheus.asked == []
    assert world.join.workers > 1
    world.join.tuples = FEW
    world.join.spoil = lambda text: text.replace("streamjoin_backlog_records", "streamjoin_backlog_record")
    await world.run(1200)
    assert world.condition("MetricsAvailable")[:2] == ("False", "MetricsIncomplete")
    assert len(world.join.wishes) == 1


@story
async def test_an_operator_that_starts_anew_says_nothing_new() -> None:
    for prometheus in (True, False):
        world = World(prometheus=prometheus)
        await world.run(300)
        writes = len(world.cluster.writes)
        world.reconciler = world.operator()
        await world.run(50)
        assert world.cluster.writes[writes:] == []


@story
async def test_a_resource_may_name_another_prometheus() -> None:
    world = World(scaling={"prometheus": {"url": "http://mine:9090"}})
    await world.run(60)
    assert set(world.prometheus.asked) == {("http://mine:9090", "default", "one", 120.0)}


def renamed(series: Series, **labels: str) -> Series:
    return Series({**series.labels, **labels}, series.points)


def valued(name: str, value: float, task: str | None = None) -> Callable[[list[Series]], list[Series]]:
    """The last value of a metric is this."""

    def spoil(found: list[Series]) -> list[Series]:
        return [
            Series(one.labels, (*one.points[:-1], (one.points[-1][0], value)))
            if one.labels["__name__"] == name and (task is None or one.labels["task"] == task)
            else one
            for one in found
        ]

    return spoil


def without(name: str, **labels: str) -> Callable[[list[Series]], list[Series]]:
    return lambda found: [one for one in found if one.labels["__name__"] != name or not labels.items() <= one.labels.items()]


def shifted(seconds: float) -> Callable[[list[Series]], list[Series]]:
    return lambda found: [Series(one.labels, [(at + seconds, value) for at, value in one.points]) for one in found]


SPOILT: dict[str, tuple[Callable[[list[Series]], list[Series]], Reason]] = {
    "nothing": (lambda found: [], Reason.MetricsMissing),
    "no tau": (without("worker_utilization_ratio"), Reason.MetricsIncomplete),
    "a worker missing": (without("worker_utilization_ratio", task="0"), Reason.MetricsIncomplete),
    "a worker too many": (
        lambda found: [*found, *(renamed(one, task="9") for one in found if one.labels["__name__"] == "worker_utilization_ratio")],
        Reason.MetricsIncomplete,
    ),
    "another plan": (valued("plan_generation", 7.0), Reason.MetricsOfOtherPlan),
    "no plan": (without("plan_generation"), Reason.MetricsIncomplete),
    "tau is NaN": (valued("worker_utilization_ratio", math.nan, "0"), Reason.MetricsNotFinite),
    "tau is infinite": (valued("worker_utilization_ratio", math.inf, "0"), Reason.MetricsNotFinite),
    "tau is negative": (valued("worker_utilization_ratio", -0.1, "0"), Reason.MetricsNotFinite),
    "held tuples are NaN": (valued("worker_tuples", math.nan), Reason.MetricsNotFinite),
    "a rate is NaN": (valued("accepted_tuples_total", math.nan), Reason.MetricsNotFinite),
    "a stream missing": (without("accepted_tuples_total", stream="orders"), Reason.MetricsIncomplete),
    "no backlog": (without("backlog_records"), Reason.MetricsIncomplete),
    "the backlog is infinite": (valued("backlog_records", math.inf), Reason.MetricsNotFinite),
    "the epoch's time is NaN": (valued("epoch_duration_seconds_sum", math.nan), Reason.MetricsNotFinite),
    "one scrape": (lambda found: [Series(one.labels, one.points[-1:]) for one in found], Reason.MetricsIncomplete),
    "one scrape, twice": (lambda found: [Series(one.labels, [one.points[-1]] * 2) for one in found], Reason.MetricsIncomplete),
    "an old scrape": (shifted(-90), Reason.MetricsStale),
    "a scrape from the future": (shifted(90), Reason.MetricsStale),
    "a worker's series has ended": (
        lambda found: [
            Series(one.labels, [(at, value) for at, value in one.points if at <= BEGIN + 90])
            if one.labels["__name__"] == "worker_utilization_ratio"
            else one
            for one in found
        ],
        Reason.MetricsIncomplete,
    ),
}


LATE: dict[str, Callable[[Series], bool]] = {
    "a worker": lambda one: one.labels.get("task") == "0",
    "tau": lambda one: one.labels["__name__"] == "worker_utilization_ratio",
    "the plan": lambda one: one.labels["__name__"] == "plan_generation",
    "the epoch": lambda one: one.labels["__name__"] in ("epoch_number", "epoch_duration_seconds_count"),
    "a stream": lambda one: one.labels.get("stream") == "orders",
    "every other": lambda one: len(one.labels["__name__"]) % 2 == 0,
}
"""Series whose last points have not arrived."""


def late(is_late: Callable[[Series], bool], seconds: float, now: Callable[[], float]) -> Callable[[list[Series]], list[Series]]:
    """As with remote write, whose shards bring the series of one scrape apart."""

    def spoil(found: list[Series]) -> list[Series]:
        return [
            replace(one, points=[point for point in one.points if point[0] <= now() - seconds]) if is_late(one) else one for one in found
        ]

    return spoil


@pytest.mark.parametrize("name", LATE)
def test_series_that_arrive_late_are_not_missing_and_the_newest_whole_scrape_counts(name: str) -> None:
    async def told() -> None:
        world = World(MANY, workers=4, scaling=slow())
        world.prometheus.spoil = late(LATE[name], POLL, lambda: world.now)
        await world.run(90)
        said = f"series arrive late: the newest whole scrape counts, which is up to {POLL:.0f} s older than the newest"
        assert world.condition("MetricsAvailable") == ("True", "MetricsRead", said)
        writes = len(world.cluster.writes)
        await world.run(300)
        assert len(world.cluster.writes) == writes, "it is said once"
        world.join.tuples = FEW
        await world.run(300)
        assert world.status["utilization"]["source"] == "Prometheus"
        assert world.join.workers < 4, "workers are removed by it"
        world.prometheus.spoil = late(LATE[name], 75.0, lambda: world.now)
        workers = world.join.workers
        world.join.tuples = FEW / 10
        await world.run(300)
        status, reason, message = world.condition("MetricsAvailable")
        assert (status, reason) == ("False", "MetricsIncomplete")
        assert "; the newest whole scrape is of 2027-01-15T" in message
        assert ", more than 60 s old; the last that could be trusted is of 2027-01-15T" in message
        assert world.join.workers == workers, "too old a scrape removes nobody"

    asyncio.run(told())


def scraped_world() -> tuple[World, Sequence[Series]]:
    """Two workers that hold much, and five scrapes of them."""
    world = World(MANY, workers=2)
    for _ in range(5):
        world.now += 10
        world.prometheus.scrape()
    found = asyncio.run(world.prometheus.read(Question("", *KEY, "sj-one"), 120.0))
    assert not isinstance(found, Distrusted)
    return world, found


def test_a_scrape_that_is_whole_and_not_sound_is_not_replaced_by_an_older_one() -> None:
    world, found = scraped_world()

    def measured(found: Sequence[Series]) -> Reading | Distrusted:
        return measure(found, generation=1, workers=2, streams=(("orders",), ("payments",)), now=world.now, bound=60.0)

    for name, value, reason in (("worker_tuples", math.nan, "MetricsNotFinite"), ("plan_generation", 2.0, "MetricsOfOtherPlan")):
        spoilt = measured(valued(name, value)(found))
        assert isinstance(spoilt, Distrusted)
        assert spoilt.reason.name == reason
    # Of the plan before, whose scrape is whole while the first of this one arrives.
    begun = late(lambda one: one.labels.get("task") == "1", 5.0, lambda: world.now)(found)
    before = [
        replace(one, points=[(at, 0.0) for at, _ in one.points]) if one.labels["__name__"] == "plan_generation" else one for one in begun
    ]
    lacking = measured(valued("plan_generation", 1.0)(before))
    assert isinstance(lacking, Distrusted)
    assert (lacking.reason.name, lacking.text) == ("MetricsIncomplete", "1 of 2 workers are measured")


@pytest.mark.parametrize("name", some(SPOILT, of=4))
def test_what_cannot_be_trusted_has_its_reason_and_removes_nothing(name: str) -> None:
    async def told() -> None:
        spoil, reason = SPOILT[name]
        world = World(MANY, workers=4, scaling=slow())
        await world.run(90)
        world.join.tuples, world.prometheus.spoil = FEW, spoil
        await world.run(900)
        assert world.condition("MetricsAvailable")[:2] == ("False", reason.name)
        assert "the last that could be trusted is of 2027-01-15T" in world.condition("MetricsAvailable")[2]
        assert world.join.wishes == []
        last = world.ledger.last
        assert last is not None
        assert (last.decision.kind, last.decision.reason) == (Kind.HOLD, Why.UNCONFIRMED)
        assert reason.name in last.decision.sentence
        world.prometheus.spoil = lambda found: found
        await world.run(300)
        assert world.condition("MetricsAvailable")[:2] == ("True", "MetricsRead")
        assert world.join.workers < 4, "and once it can be trusted again, they go"

    asyncio.run(told())


@pytest.mark.parametrize("reason", [reason for reason in Reason if reason.name.startswith("Prometheus")])
def test_a_prometheus_that_cannot_be_used_holds_what_runs(reason: Reason) -> None:
    async def told() -> None:
        world = World(MANY, workers=4, scaling=slow())
        await world.run(90)
        world.prometheus.answer, world.join.tuples = Distrusted(reason, "by the test"), FEW
        await world.run(30)
        writes = len(world.cluster.writes)
        await world.run(900)
        status, found, message = world.condition("MetricsAvailable")
        assert (status, found) == ("False", reason.name)
        assert message.startswith("by the test; the last that could be trusted is of")
        assert world.join.wishes == []
        assert len(world.cluster.writes) - writes <= 4, "it is said once, and not every time"
        assert world.condition("Available")[0] == "True", "the join goes on"

    asyncio.run(told())


@story
async def test_while_prometheus_is_away_the_joins_own_numbers_add_workers_and_remove_none() -> None:
    world = World(scaling=slow())
    await world.run(90)
    world.prometheus.answer = Distrusted(Reason.PrometheusUnreachable, "by the test")
    world.reconciler = world.operator()
    world.join.tuples = MANY
    await world.run(180)
    assert world.join.workers > 1
    (decision,) = world.status["decisions"]
    assert (decision["rule"], decision["outcome"]) == ("allocate", "Applied")
    assert "by the join's own numbers alone (PrometheusUnreachable: by the test)" in decision["message"]
    assert "by the join's own numbers alone" in next(event["message"] for event in world.cluster.events if event["reason"] == "Allocating")
    meanwhile = "; meanwhile workers are added by the driver's own numbers, and none is removed"
    assert world.condition("MetricsAvailable") == ("False", "PrometheusUnreachable", f"by the test{meanwhile}")
    workers, world.join.tuples = world.join.workers, FEW
    await world.run(1800)
    assert world.join.workers == workers
    last = world.ledger.last
    assert last is not None
    assert last.decision.reason is Why.UNCONFIRMED
    world.prometheus.answer = None
    await world.run(300)
    assert world.join.workers == 1, "and once Prometheus agrees, they go"


@story
async def test_a_full_join_whose_own_numbers_cannot_be_trusted_either_waits_for_samples_and_then_grows_at_once() -> None:
    world = World(FEW)
    await world.run(90)
    world.prometheus.is_scraping = False
    world.join.tuples, world.join.spoil = MANY, lambda text: text.replace("streamjoin_backlog_records", "streamjoin_backlog_record")
    await world.run(300)
    assert (world.condition("MetricsAvailable")[:2], world.join.wishes) == (("False", "MetricsStale"), [])
    assert world.condition("MetricsAvailable")[2].endswith("driver's own numbers, streamjoin_backlog_records of orders is missing")
    world.prometheus.restart_empty()
    world.prometheus.is_scraping, world.join.spoil = True, lambda text: text
    await world.run(120)
    assert world.join.workers > 1


@story
async def test_the_status_says_who_measured_tau_and_since_when_it_is_so() -> None:
    world = World(MANY, scaling={"mode": "Recommend"})
    await world.run(90)
    tau, since = world.status["utilization"], world.now
    assert (tau["source"], tau["max"]) == ("Prometheus", "0.96")
    writes = len(world.cluster.writes)
    await world.run(600)
    assert world.status["utilization"] == tau, "time alone is nothing to write"
    assert len(world.cluster.writes) - writes <= 2, "the recommendation"
    world.prometheus.answer = Distrusted(Reason.PrometheusSlow, "by the test")
    await world.run(60)
    away = world.status["utilization"]
    assert (away["source"], away["max"]) == ("driver", "0.96")
    assert datetime.fromisoformat(tau["at"]).timestamp() <= since < datetime.fromisoformat(away["at"]).timestamp()
    shown = plugin.described(world.cluster.objects["StreamJoin", *KEY], datetime.fromtimestamp(world.now + 120, UTC))
    assert "max 0.96, mean 0.96, by driver, the same for 2m" in shown
    assert "FROM" in plugin.overview([world.cluster.objects["StreamJoin", *KEY]]).splitlines()[0]
    alone = World(MANY, prometheus=False, scaling={"mode": "Recommend"})
    await alone.run(90)
    assert alone.status["utilization"]["source"] == "driver"


def of(name: str, *points: tuple[float, float], **labels: str) -> Series:
    return Series({"__name__": name, "name": "one", **labels}, points)


GENERATION = "plan_generation"
NO_KIND = "The cluster has no kind PodMonitor (monitoring.coreos.com/v1)"
MONITORED = {"PodMonitor"}
MISSING: dict[str, tuple[Found | None, set[str], Object, str, str]] = {
    "the cluster knows no PodMonitors": (Found(), set(), {}, "MetricsMissing", NO_KIND),
    "none are wanted": (Found(), MONITORED, {"pod_monitor": "off"}, "MetricsMissing", "makes no PodMonitors (joins.podMonitor: off)"),
    "one without a label": (Found(), MONITORED, {}, "MetricsMissing", "PodMonitor sj-one has no label of yours, and Prometheus may select"),
    "one with a label": (
        *(Found(), MONITORED, {"pod_monitor_labels": ("release=other",)}),
        *("MetricsMissing", "PodMonitor sj-one has the labels release: other, and Prometheus may select by another"),
    ),
    "another label for namespaces": (
        *(Found([of(GENERATION, (BEGIN, 1.0), job="default", kubernetes_namespace="default")]), MONITORED, {}),
        *("MetricsMissing", "set prometheus.namespaceLabel to kubernetes_namespace (chart; STREAMJOIN_PROMETHEUS_NAMESPACE_LABEL)"),
    ),
    "a join of that name elsewhere": (
        *(Found([of(GENERATION, (BEGIN, 1.0), namespace="elsewhere")]), MONITORED, {}),
        *("MetricsMissing", "namespaces may have another label than namespace (prometheus.namespaceLabel)"),
    ),
    "it was scraped before": (
        *(Found([of(GENERATION, (BEGIN - 600, 1.0), namespace="default", pod="sj-one-1")]), MONITORED, {}),
        *("MetricsStale", "the newest sample is of 2027-01-15T07:50:00Z, and http://prometheus:9090 does not scrape the driver now"),
    ),
    "its series say no pod": (
        *(Found([of(GENERATION, (BEGIN, 1.0), namespace="default", instance="10.0.0.1:8080")]), MONITORED, {}),
        *(
            "MetricsMissing",
            "they have no label pod; have Prometheus add it, or set prometheus.podLabel to the one that names pods, or to none",
        ),
    ),
    "its pod cannot be scraped": (
        *(Found([], [of("up", (BEGIN, 0.0), pod="sj-one-1", namespace="default")]), MONITORED, {}),
        *("MetricsMissing", "it finds pod sj-one-1 and cannot scrape it (up is 0)"),
    ),
    "another label has the same value": (
        *(Found([of(GENERATION, (BEGIN, 1.0), job="default")]), MONITORED, {}),
        *("MetricsMissing", "namespaces may have another label than namespace (prometheus.namespaceLabel)"),
    ),
    "nothing more is answered": (None, MONITORED, {}, "MetricsMissing", "namespaces may have another label than namespace"),
}


@pytest.mark.parametrize("name", MISSING)
def test_why_prometheus_has_no_series_of_a_join_is_said_within_a_minute(name: str) -> None:
    async def told() -> None:
        found, kinds, settings, reason, said = MISSING[name]
        world = World()
        world.cluster.known_kinds, world.settings = kinds, replace(world.settings, **settings)
        world.reconciler = world.operator()
        world.prometheus.spoil, world.prometheus.found = lambda _: [], found
        await world.run(60)
        status, is_reason, message = world.condition("MetricsAvailable")
        assert (status, is_reason) == ("False", reason)
        assert said in message
        assert message.endswith("and none is removed"), "it fits"
        writes = len(world.cluster.writes)
        await world.run(600)
        assert len(world.cluster.writes) - writes <= 2, "it is said once"

    asyncio.run(told())


def held_by(manager: str, fields: Object, time: str | None = None, subresource: str = "") -> Object:
    """An entry of a StreamJoin's managed fields."""
    entry: Object = {"manager": manager, "operation": "Update", "fieldsV1": {"f:spec": fields}}
    return entry | ({"time": time} if time else {}) | ({"subresource": subresource} if subresource else {})


def ordered(world: World, change: Callable[[Object], Any], *managed: Object) -> None:
    """Somebody changes the spec."""
    world.edit(lambda body: change(body["spec"]))
    world.edit(lambda body: body["metadata"].update(managedFields=copy.deepcopy(list(managed))))


def orders_of(world: World) -> list[Any]:
    return [record for record in world.ledger if record.decision.reason is Why.ORDERED]


FLOOR = {"f:workers": {"f:floor": {}}}
SCALED = held_by("kubectl", FLOOR, subresource="scale")


@pytest.mark.parametrize("mode", ["Enforce", "Off"])
def test_an_order_is_written_down_once_with_who_gave_it_before_it_is_followed(mode: str) -> None:
    async def told() -> None:
        world = World(scaling={"mode": mode})
        await world.run(60)
        assert orders_of(world) == [], "how a join is made is no order"
        ann = held_by("ann", {"f:workers": {"f:min": {}}}, "2026-01-01T00:00:00Z")
        ordered(world, lambda spec: spec["workers"].update(floor=3), ann, SCALED)
        done = watched_writes(world)
        await world.run(45)
        assert done.index("ConfigMap") < done.index("PUT")
        assert done.count("PUT") == 1
        await world.run(600)
        (record,) = orders_of(world)
        assert (record.decision.kind, record.decision.workers, record.decision.target, record.count) == (Kind.ALLOCATE, 1, 3, 1)
        assert record.decision.sentence == "workers.floor 1 -> 3, by kubectl through /scale"
        (decision,) = world.status["decisions"]
        assert (decision["reason"], decision["workersBefore"], decision["workersAfter"]) == ("Ordered", 1, 3)
        assert decision["outcome"] == "Applied"
        assert record.realised is not None
        assert (record.realised.tau_max is None) == (mode == "Off"), "nobody measures then"
        assert world.join.answers == [202]
        writes = len(world.cluster.writes)
        world.reconciler = world.operator()
        await world.run(600)
        assert world.cluster.writes[writes:].count("apply ConfigMap") <= 1, "that it has no sample yet"
        assert "status StreamJoin" not in world.cluster.writes[writes:]
        assert len(orders_of(world)) == 1

    asyncio.run(told())


@story
async def test_limits_that_call_for_no_other_plan_are_orders_too_and_each_has_its_own_author() -> None:
    world = World()
    await world.run(60)
    ann = held_by("ann", {"f:workers": {"f:max": {}}}, "2027-01-15T08:00:00Z")
    bob = held_by("bob", {"f:workers": {"f:min": {}}}, "2027-01-15T07:00:00Z")
    ordered(world, lambda spec: spec["workers"].update(min=2, max=12), ann, bob)
    await world.run(45)
    ordered(world, lambda spec: spec["workers"].update(max=10), ann)
    await world.run(45)
    ordered(world, lambda spec: spec["workers"].pop("max"), bob, SCALED)
    await world.run(45)
    assert [record.decision.sentence for record in orders_of(world)] == [
        "workers.min 1 -> 2, by bob at 2027-01-15T07:00:00Z; workers.max 8 -> 12, by ann at 2027-01-15T08:00:00Z",
        "workers.max 12 -> 10, by ann at 2027-01-15T08:00:00Z",
        "workers.max 10 -> 8, left out, as it seems, by bob at 2027-01-15T07:00:00Z, who wrote last",
    ]
    assert [record.decision.kind for record in orders_of(world)] == [Kind.ALLOCATE, Kind.HOLD, Kind.HOLD]
    shown = {decision["message"]: decision["outcome"] for decision in world.status["decisions"]}
    assert shown["workers.max 12 -> 10, by ann at 2027-01-15T08:00:00Z"] == "Applied"
    ordered(world, lambda spec: spec["workers"].update(min=1))
    await world.run(45)
    assert orders_of(world)[-1].decision.sentence == "workers.min 2 -> 1, it is not known by whom"


def test_killed_before_any_step_an_order_is_written_down_once_and_followed_once() -> None:
    async def told(kill_at: int | None) -> World:
        world = World()
        await world.run(90)
        ordered(world, lambda spec: spec["workers"].update(floor=3), SCALED)
        world.steps.clear()
        world.kill_at = kill_at
        await world.run(120)
        return world

    undisturbed = asyncio.run(told(None))
    steps = undisturbed.steps
    noted = steps.index("ledger")
    assert steps[noted - 1 : noted + 2] == ["orders", "ledger", "plan"]
    for kill_at in (*some(range(noted - 2), of=5), *range(noted - 2, noted + 12)):
        world = asyncio.run(told(kill_at))
        assert [record.count for record in orders_of(world)] == [1], f"killed before {steps[kill_at]}"
        assert (world.join.answers.count(202), world.join.workers) == (1, 3), f"killed before {steps[kill_at]}"


@pytest.mark.parametrize("is_written", [True, False])
def test_an_order_is_not_followed_before_it_is_known_to_be_written_down(is_written: bool) -> None:
    async def told() -> None:
        world = World()
        await world.run(60)
        ordered(world, lambda spec: spec["workers"].update(floor=3), SCALED)
        failures = 2

        def fail(verb: str, kind: str) -> None:
            nonlocal failures
            if world.steps[-1] == "ledger" and failures:
                failures -= 1
                raise ApiError(0, "TimeoutError", "by the test")

        if is_written:
            world.cluster.after = fail
        else:
            world.cluster.fault = fail
        await world.run(15)
        assert world.join.wishes == []
        await world.run(120)
        assert [record.count for record in orders_of(world)] == [1]
        assert world.join.workers == 3

    asyncio.run(told())


@story
async def test_an_order_that_the_driver_refuses_is_shown_as_failed_until_it_runs() -> None:
    world = World(scaling={"mode": "Off"})
    await world.run(60)
    world.join.answer = Answered(422, "no room for so many")
    ordered(world, lambda spec: spec["workers"].update(floor=3), SCALED)
    await world.run(90)
    (decision,) = world.status["decisions"]
    assert decision["outcome"] == "Failed"
    assert decision["message"] == "workers.floor 1 -> 3, by kubectl through /scale; it does not run: no room for so many"
    world.join.answer = None
    await world.run(180)
    (decision,) = world.status["decisions"]
    assert (decision["outcome"], decision["message"]) == ("Applied", "workers.floor 1 -> 3, by kubectl through /scale")


@story
async def test_two_operators_write_an_order_down_once() -> None:
    world = World()
    operators = [world.operator(), world.operator()]
    for step in range(40):
        world.now += 5
        world.prometheus.scrape()
        if step == 10:
            ordered(world, lambda spec: spec["workers"].update(floor=3), SCALED)
        for operator in operators:
            try:
                await world.once(operator)
            except ApiError as error:
                if error.status != 409:
                    raise
    assert [record.count for record in orders_of(world)] == [1]
    assert world.join.workers == 3


@story
async def test_of_two_that_are_scraped_as_one_join_the_one_that_is_further_counts() -> None:
    """A driver that lives on where nobody reaches it is scraped all the same."""
    world = World(MANY, workers=4)

    def with_ghost(found: list[Series]) -> list[Series]:
        def old(one: Series) -> Series:
            behind = one.labels["__name__"] in ("epoch_number",)
            points = tuple((at, 3.0 if behind else math.nan) for at, _ in one.points)
            return Series({**one.labels, "pod": "ghost"}, points)

        return [*(renamed(one, pod="driver") for one in found), *map(old, found)]

    world.prometheus.spoil = with_ghost
    await world.run(90)
    assert world.condition("MetricsAvailable")[:2] == ("True", "MetricsRead")


def watched_writes(world: World) -> list[str]:
    """What is written, and put to the driver, in its order."""
    done: list[str] = []
    put = world.join.take

    def after(verb: str, kind: str) -> None:
        if verb in ("apply", "patch", "create"):
            done.append(kind)

    def take(wish: Object) -> Answered:
        done.append("PUT")
        return put(wish)

    world.cluster.after = after
    world.join.take = take  # type: ignore[method-assign]
    return done


@story
async def test_ledger_status_and_event_are_written_before_the_plan_is_put() -> None:
    world = World()
    await world.run(90)
    world.join.tuples = MANY
    done = watched_writes(world)
    await world.run(120, lambda: bool(world.join.wishes))
    before = done[: done.index("PUT")]
    assert before[-3:] == ["ConfigMap", "StreamJoin", "Event"]
    assert world.ledger.last is not None
    assert world.ledger.last.decision.enforced


def test_killed_before_any_step_the_load_is_followed_all_the_same() -> None:
    """An operator dies before each step of the passes in which it decides and acts; the next one ends at the same plan, put once."""

    async def told(kill_at: int | None) -> World:
        world = World()
        await world.run(90)
        world.join.tuples = MANY
        world.steps.clear()
        world.kill_at = kill_at
        await world.run(400)
        return world

    undisturbed = asyncio.run(told(None))
    steps = undisturbed.steps
    acting = steps.index("put")
    assert steps[acting - 3 : acting] == ["ledger", "report", "post"]
    around = range(acting - 4, acting + 4)
    for kill_at in (*some(range(acting - 30, acting - 4), of=5), *around, *some(range(acting + 4, acting + 30), of=5)):
        world = asyncio.run(told(kill_at))
        assert world.join.workers == undisturbed.join.workers, f"killed before {steps[kill_at]}"
        assert world.join.answers.count(202) == 1, f"killed before {steps[kill_at]}"
        acts = [record for record in world.ledger if record.decision.enforced]
        assert [record.realised is not None for record in acts][-1], f"killed before {steps[kill_at]}"
        assert world.status["desiredWorkers"] == world.join.workers


@story
async def test_an_answer_that_was_lost_is_not_asked_for_twice() -> None:
    world = World()
    await world.run(90)
    world.join.tuples, world.join.lost = MANY, 1
    await world.run(300)
    assert world.join.answers == [202]
    assert world.join.workers > 1


@story
async def test_two_operators_at_once_change_the_plan_once() -> None:
    world = World(scaling=slow("3m"))
    operators = [world.operator(), world.operator()]
    seed = random.Random(5)

    async def both(seconds: float) -> None:
        end = world.now + seconds
        while world.now < end:
            world.now += 5
            world.prometheus.scrape()
            for operator in seed.sample(operators, 2):
                try:
                    await world.once(operator)
                except ApiError as error:
                    if error.status != 409:
                        raise

    await both(120)
    world.join.tuples = MANY
    await both(300)
    assert world.join.workers > 1
    assert world.join.answers.count(202) == 1
    world.join.tuples = FEW
    await both(900)
    assert world.join.workers == 1, "and neither keeps the other from removing them again"


def reordering(at: float, join: str) -> Decision:
    """A change of how streams meet, as a driver tells it."""
    sentence = f"{join}: in another way since {at}"
    return Decision(
        at=at, kind=Kind.REORDER, rule=None, reason=Why.CHEAPER, sentence=sentence, generation=1, workers=1, target=1, mode=Mode.ENFORCE,
        inputs=None, age_seconds=None,
    )  # fmt: skip


@story
async def test_what_the_driver_changes_in_how_streams_meet_is_noted_once_whoever_notes_it() -> None:
    for mode in ("Enforce", "Off"):
        world = World(scaling={"mode": mode}, **three_streams())
        await world.run(60)
        for at in (1.0, 2.0):
            of_joins = [reordering(at, join).to_json() for join in ("one", "other")]
            world.join.reordered = [*world.join.reordered, *of_joins, {"kind": "of a later release"}]
            await world.run(30)
            world.reconciler = world.operator()
            await world.run(30)
        noted = [record for record in world.ledger if record.decision.kind is Kind.REORDER]
        assert [record.decision for record in noted] == [reordering(at, join) for at in (1.0, 2.0) for join in ("one", "other")]
        assert world.status.get("decisions", []) == [], "they change no plan"


@story
async def test_a_ledger_that_somebody_deletes_is_made_anew_and_one_of_somebody_else_is_left_alone() -> None:
    world = World()
    await world.run(180)
    world.cluster.remove("ConfigMap", "default", names.ledger_name("one"))
    world.join.tuples = MANY
    await world.run(300)
    assert world.join.workers > 1
    assert any(record.realised for record in world.ledger)
    world = World(MANY)
    foreign = {"kind": "ConfigMap", "metadata": {"name": names.ledger_name("one"), "namespace": "default"}, "data": {"mine": "1"}}
    world.cluster.put(foreign)
    await world.run(300)
    assert world.condition("Degraded")[:2] == ("True", "ForeignObject")
    assert world.cluster.objects["ConfigMap", "default", names.ledger_name("one")]["data"] == {"mine": "1"}
    assert (world.condition("Available")[0], world.join.wishes) == ("True", [])


@story
async def test_a_plan_of_one_operator_makes_the_others_wish_void() -> None:
    """Both decide by plan 1; the second one's wish comes when plan 2 has been put. Where both judged the same plan, it is put once."""
    world = World()
    await world.run(90)
    world.join.tuples = MANY
    await world.run(180, lambda: bool(world.join.wishes))
    (wish,) = world.join.wishes
    assert world.join.take({**wish, "scheme": world.join.plan.scheme.to_json()}).status == 409
    assert world.join.take(wish).status == 200


@story
async def test_recommend_says_it_once_and_does_nothing() -> None:
    world = World(scaling={"mode": "Recommend"})
    await world.run(90)
    world.join.tuples = MANY
    await world.run(600)
    assert world.join.wishes == []
    assert world.status["desiredWorkers"] == 1
    assert [decision["outcome"] for decision in world.status["decisions"]] == ["Recommended"]
    assert world.reasons.count("ScalingRecommended") == 1


@story
async def test_off_neither_decides_nor_asks() -> None:
    world = World(MANY, scaling={"mode": "Off"})
    await world.run(600)
    assert (world.join.wishes, world.prometheus.asked) == ([], [])
    assert "decisions" not in world.status


@pytest.mark.parametrize(
    ("pause", "grows", "shrinks"), [("in", True, False), ("out", False, True), ("both", False, False), ("", True, True)]
)
def test_scaling_is_paused_in_one_direction_or_both_by_an_annotation(pause: str, grows: bool, shrinks: bool) -> None:
    async def told() -> None:
        for tuples, workers, moves in ((MANY, 1, grows), (FEW, 4, shrinks)):
            world = World(tuples, workers, scaling=slow())
            world.edit(lambda body: body["metadata"].update(annotations={names.PAUSE: pause}))
            await world.run(300)
            assert bool(world.join.wishes) is moves
            if not moves:
                world.edit(lambda body: body["metadata"].update(annotations={}))
                await world.run(300)
                assert world.join.wishes, "and goes on when the annotation is gone"

    asyncio.run(told())


@story
async def test_a_floor_is_gone_to_at_once_and_held() -> None:
    """As kubectl scale sets it."""
    world = World(scaling=slow())
    await world.run(60)
    world.edit(lambda body: body["spec"]["workers"].update(floor=3))
    await world.run(60)
    assert world.join.workers == 3
    await world.run(900)
    assert world.targets == [3]
    world.edit(lambda body: body["spec"]["workers"].update(floor=0))
    await world.run(300)
    assert world.join.workers == 1


@story
async def test_no_worker_is_removed_below_the_first_number_where_that_is_the_floor() -> None:
    """It is the driver who remembers the number."""
    world = World(FEW, 3, scaling=slow() | {"floor": "initial"})
    world.join.first_workers = 2
    await world.run(900)
    assert world.targets == [2]
    world.edit(lambda body: body["spec"]["scaling"].update(floor="min"))
    await world.run(900)
    assert world.join.workers == 1


@story
async def test_a_plan_that_is_refused_or_given_up_is_tried_again_later() -> None:
    world = World()
    await world.run(90)
    world.join.tuples, world.join.answer = MANY, Answered(422, "no room for so many")
    await world.run(240)
    assert 2 <= len(world.join.wishes) <= 5
    (failed,) = (event for event in world.cluster.events if event["reason"] == "ScalingFailed")
    assert failed["count"] == len(world.join.wishes)
    (decision,) = world.status["decisions"]
    assert decision["outcome"] == "Failed"
    assert decision["message"].endswith("it does not run: no room for so many")
    world.join.answer = None
    await world.run(300, lambda: world.join.wanted is not None)
    world.join.drop("its first epoch failed")
    await world.run(30)
    told = {event["reason"]: event["message"] for event in world.cluster.events[-2:]}
    assert told == dict.fromkeys(("PlanDropped", "ScalingFailed"), "generation 2: its first epoch failed")
    await world.run(600)
    assert world.join.workers > 1
    assert world.status["decisions"][-1]["outcome"] == "Applied"


@story
async def test_a_plan_that_somebody_replaces_and_whose_successor_runs_has_not_run() -> None:
    world = World(MANY)
    await world.run(120, lambda: world.join.wanted is not None)
    assert world.join.wanted is not None
    generation = world.join.wanted.generation
    assert world.join.take({"workers": 7}).status == 202
    world.now += START_SECONDS + MOVE_SECONDS + 1
    world.join.advance()
    assert world.join.workers == 7
    await world.run(30)
    why = f"generation {generation}: replaced by generation {generation + 1}"
    assert world.status["plan"]["givenUp"] == [{"generation": generation, "fate": "Replaced", "reason": why}]
    assert [event["message"] for event in world.cluster.events if event["reason"] in ("PlanReplaced", "ScalingFailed")] == [why, why]
    (decision,) = world.status["decisions"]
    assert decision["outcome"] == "Failed"
    assert decision["message"].endswith(f"it does not run: {why}")


@story
async def test_while_workers_start_and_state_moves_nothing_is_decided() -> None:
    world = World(MANY)
    await world.run(120, lambda: world.join.wanted is not None)
    before = len(world.join.wishes)
    world.join.tuples *= 3
    await world.run(START_SECONDS + MOVE_SECONDS)
    assert len(world.join.wishes) == before


@story
async def test_a_join_that_falls_behind_gets_workers_however_empty_they_are() -> None:
    world = World()
    await world.run(60)
    world.join.epoch_seconds = 3.0
    for _ in range(6):
        world.join.backlog += 3000
        await world.run(POLL)
    assert world.join.wishes
    assert world.status["decisions"][0]["rule"] == "keepUp"


@story
async def test_a_suspended_join_is_not_decided_about_and_begins_its_waits_anew() -> None:
    world = World(FEW, workers=4, scaling=slow("10m"))
    await world.run(540)
    world.edit(lambda body: body["spec"].update(suspend=True))
    await world.run(30)
    world.edit(lambda body: body["spec"].update(suspend=False))
    await world.run(300)
    assert world.join.wishes == []
    await world.run(400)
    assert world.join.wishes


@story
async def test_suspend_is_heeded_while_the_rest_of_the_manifest_is_refused() -> None:
    for spoil in (
        lambda body: body["spec"].update(joins=[]),
        lambda body: body["spec"]["joins"][0].update(condition="orders.id = payments.id"),
        lambda body: body["spec"]["workers"].update(capacityTuples=50_000_000),
    ):
        world = World()
        await world.run(60)
        world.edit(spoil)
        await world.run(30)
        assert world.condition("Degraded")[0] == "True"
        assert world.cluster.objects["Deployment", "default", "sj-one"]["spec"]["replicas"] == 1
        world.edit(lambda body: body["spec"].update(suspend=True))
        await world.run(45)
        assert world.cluster.objects["Deployment", "default", "sj-one"]["spec"]["replicas"] == 0
        assert (world.status["phase"], world.condition("Degraded")[0]) == ("Suspended", "True")
        world.edit(lambda body: body["spec"].update(suspend=False))
        await world.run(45)
        assert world.cluster.objects["Deployment", "default", "sj-one"]["spec"]["replicas"] == 1


@story
async def test_executor_hours_and_what_was_avoided_add_up_over_changes_and_operators() -> None:
    world = World(MANY)
    await world.run(3600)
    world.reconciler = world.operator()
    world.edit(lambda body: body["spec"].update(suspend=True))
    await world.run(900)
    (found,) = world.reconciler.seen.costs(world.now).values()
    assert found.hours == pytest.approx(world.join.workers, abs=0.2)
    assert found.avoided_hours == pytest.approx(1.25 * 8 - found.hours, abs=0.1)
    assert found.spent == pytest.approx(0.5 * found.hours, abs=0.01)
    assert found.executors == 0


@story
async def test_an_idle_hour_is_written_once_at_most() -> None:
    world = World()
    await world.run(300)
    writes = len(world.cluster.writes)
    await world.run(3600)
    assert len(world.cluster.writes) - writes <= 2


def test_costs_are_counted_by_the_price_of_the_time() -> None:
    begun = cost.rolled(None, at=BEGIN, executors=2, most=8, price=1.0)
    assert cost.rolled(begun, at=BEGIN + 1800, executors=2, most=8, price=1.0) == begun
    dearer = cost.rolled(begun, at=BEGIN + 1800, executors=2, most=8, price=3.0)
    found = cost.known(cost.rolled(dearer, at=BEGIN + 3600, executors=0, most=8, price=3.0))
    assert found is not None
    assert (found.hours, found.spent, found.avoided_hours, found.avoided) == (2.0, 4.0, 6.0, 12.0)
    assert cost.known({"at": "yesterday"}) is None


@story
async def test_executors_are_paid_for_and_not_the_workers_that_share_them() -> None:
    world = World(MANY, workers=4)
    world.edit(lambda body: body["spec"]["workers"].update(perExecutor=3))
    await world.run(300)
    assert world.status["workers"] == 4
    assert (world.status["cost"]["executors"], world.status["cost"]["maxExecutors"]) == (2, 3)
    assert world.cluster.objects["PodDisruptionBudget", "default", "sj-one"]["spec"]["minAvailable"] == 1
    world.edit(lambda body: body["spec"]["workers"].update(capacityTuples="many"))
    await world.run(60)
    assert world.condition("Degraded")[:2] == ("True", "InvalidSpec")
    assert world.status["cost"]["executors"] == 2, "what runs goes on"


@story
async def test_a_drain_is_blocked_while_a_drained_executor_is_replaced_and_not_while_a_shortage_lasts() -> None:
    world = World(workers=4, tuples=4 * FEW, join=ScarceJoin)
    join = world.join
    assert isinstance(join, ScarceJoin)

    def least() -> int:
        budget = world.cluster.objects["PodDisruptionBudget", "default", "sj-one"]["spec"]
        assert budget["unhealthyPodEvictionPolicy"] == "AlwaysAllow"
        return int(budget["minAvailable"])

    await world.run(90)
    join.gone = 1
    await world.run(SHORTAGE_SECONDS - 60)
    assert least() == 3
    await world.run(120)
    assert least() == 2
    join.gone = 0
    await world.run(60)
    assert least() == 3


@story
async def test_of_fewer_workers_those_on_nodes_that_go_are_named_to_the_driver() -> None:
    world = World(MANY, workers=4, scaling=slow())
    taints = [{"key": "karpenter.sh/disrupted", "effect": "NoSchedule"}]
    nodes = {"a": {}, "b": {"unschedulable": True}, "c": {"taints": taints}, "d": {"taints": [{"key": "spot", "effect": "NoSchedule"}]}}
    for number, (node, spec) in enumerate(nodes.items()):
        world.cluster.put({"kind": "Node", "metadata": {"name": node, "namespace": ""}, "spec": spec})
        pod = executor(f"executor-{number}", {"phase": "Running"})
        pod["metadata"]["labels"]["spark-exec-id"] = str(number)
        world.cluster.put({**pod, "spec": {"nodeName": node}})
    world.settings = replace(world.settings, read_nodes=True)
    world.reconciler = world.operator()
    await world.run(90)
    world.join.tuples = FEW
    await world.run(300, lambda: world.join.workers < 4)
    assert world.join.wishes[-1]["going"] == ["1", "2"]
    world.join.tuples = 5 * MANY
    await world.run(300, lambda: world.join.workers > 4)
    assert "going" not in world.join.wishes[-1]


def test_an_operator_that_may_not_read_nodes_says_so_and_scales_all_the_same(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def shrink() -> World:
        world = World(MANY, workers=4, scaling=slow())
        known = world.cluster.get

        async def get(kind: object, namespace: str, name: str) -> Object | None:
            if kind is NODE:
                raise ApiError(403, "Forbidden", 'nodes "a" is forbidden')
            return await known(kind, namespace, name)

        monkeypatch.setattr(world.cluster, "get", get)
        pod = executor("executor-0", {"phase": "Running"})
        pod["metadata"]["labels"]["spark-exec-id"] = "0"
        world.cluster.put({**pod, "spec": {"nodeName": "a"}})
        world.settings = replace(world.settings, read_nodes=True)
        world.reconciler = world.operator()
        await world.run(90)
        world.join.tuples = FEW
        await world.run(300, lambda: world.join.workers < 4)
        return world

    with caplog.at_level(logging.WARNING, logger="streamjoin_operator.nodes"):
        world = asyncio.run(shrink())
    assert world.join.workers < 4
    assert "going" not in world.join.wishes[-1]
    told = 'workers end wherever they are: nodes "a" is forbidden; give the operator the right (rbac.nodes in the chart)'
    assert any(told in message for message in caplog.messages)


@story
async def test_the_ledger_is_read_by_the_plugin() -> None:
    world = World()
    await world.run(60)
    world.join.tuples = MANY
    await world.run(300)
    stored = {"items": []}

    def kubectl(words: Sequence[str]) -> str:
        if words[1] == "configmap":
            return json.dumps(world.cluster.objects["ConfigMap", "default", words[2]])
        return json.dumps(world.cluster.objects["StreamJoin", *KEY] if words[1] == plugin.RESOURCE else stored)

    text = plugin.explain(kubectl, "one", datetime.fromtimestamp(world.now, UTC))
    assert "allocate" in text
    assert "What each rule said:" in text


def test_the_ledger_is_bounded_and_one_that_cannot_be_read_is_begun_anew() -> None:
    world = World(MANY, workers=4)
    seed = random.Random(1)

    async def told() -> None:
        for _ in range(60):
            world.join.tuples = seed.choice([FEW, MANY, 3 * MANY])
            world.prometheus.spoil = seed.choice(list(SPOILT.values()))[0] if seed.random() < 0.5 else lambda found: found
            await world.run(45)

    asyncio.run(told())
    text = world.cluster.objects["ConfigMap", "default", names.ledger_name("one")]["data"][children.LEDGER_KEY]
    assert len(text) <= MOST_BYTES
    assert len(world.ledger) > 10
    for broken in ({}, {"ledger": 1}, {"ledger": {"version": 99}, "core": None}):
        assert len(Scaler(broken).autoscaler.ledger) == 0


def test_a_sample_has_what_a_scrape_says() -> None:
    world, found = scraped_world()
    reading = measure(found, generation=1, workers=world.join.workers, streams=(("orders",), ("payments",)), now=world.now, bound=60.0)
    assert isinstance(reading, Reading)
    assert (reading.at, reading.late_seconds) == (world.now, 0.0)
    sample = reading.sample
    assert sample.taken_at == world.now
    assert list(sample.tau.values()) == pytest.approx(world.join.tau)
    assert sample.rates == pytest.approx((100.0, 100.0))
    assert sample.pace == pytest.approx(1.0)
    assert (sample.epoch_seconds, sample.backlog_records, sample.shed_fraction) == (pytest.approx(0.1), 0.0, 0.0)


def test_a_stream_that_is_on_both_sides_counts_on_each_and_is_waited_for_once() -> None:
    world = World(MANY, workers=2, **three_streams())
    world.join.rates, world.join.backlog = {"orders": 100.0, "payments": 40.0, "shipments": 7.0}, 5.0
    for _ in range(5):
        world.now += 10
        world.prometheus.scrape()
    job = derive(world.cluster.objects["StreamJoin", *KEY]).job
    assert job is not None
    assert job.streams_by_side == (("orders", "payments"), ("payments", "shipments"))

    def measured(found: Sequence[Series]) -> Reading | Distrusted:
        return measure(found, generation=1, workers=world.join.workers, streams=job.streams_by_side, now=world.now, bound=60.0)

    found = asyncio.run(world.prometheus.read(Question("", *KEY, "sj-one"), 120.0))
    assert not isinstance(found, Distrusted)
    reading = measured(found)
    assert isinstance(reading, Reading)
    sample = reading.sample
    assert sample.rates == pytest.approx((140.0, 47.0))
    assert sample.backlog_records == 15.0
    lacking = measured(without("accepted_tuples_total", stream="payments")(found))
    assert isinstance(lacking, Distrusted)
    assert (lacking.reason, lacking.text) == (Reason.MetricsIncomplete, "streamjoin_accepted_tuples_total of payments is missing")


def test_how_fast_event_time_passes_is_read_of_the_watermarks_where_all_are_known() -> None:
    """A join without event time has none."""
    world = World(MANY, workers=2)
    world.join.pace = 8.0
    for _ in range(5):
        world.now += 10
        world.prometheus.scrape()
    found = asyncio.run(world.prometheus.read(Question("", *KEY, "sj-one"), 120.0))
    assert not isinstance(found, Distrusted)
    one_missing = without("watermark_timestamp_seconds", stream="payments")(found)
    paces = []
    for series in (found, one_missing):
        streams = (("orders",), ("payments",))
        reading = measure(series, generation=1, workers=world.join.workers, streams=streams, now=world.now, bound=60.0)
        assert isinstance(reading, Reading)
        paces.append(reading.sample.pace)
    assert paces == [pytest.approx(8.0), None]


@pytest.mark.parametrize(("told", "waited"), [({"waitedSeconds": 42.5}, 42.5), ({}, None)])
def test_what_workers_took_to_start_is_read_of_the_driver(told: Object, waited: float | None) -> None:
    """A driver of an older release does not say it."""
    switched = {"generation": 2, "at": 5.0, "movedTuples": 7, "pauseSeconds": 0.5} | told
    plan = progress_of({"generation": 2, "workers": 3, "phase": "Running", "switched": switched})
    assert plan.switched is not None
    assert plan.switched.waited_seconds == waited
