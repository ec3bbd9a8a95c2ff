"""The reconciler as a whole, against a cluster in memory: what it makes, what it never does, and that it ends the same whatever fails."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import copy
import json
import random
import re
from collections.abc import Awaitable, Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from cases import some
from memory_cluster import MemoryCluster, copied, every_fault
from operator_parts import Object, parsed_once, streamjoin
from streamjoin.manifest.memory import RESIZED
from streamjoin_operator import children, names, reconcile
from streamjoin_operator.api import ApiError
from streamjoin_operator.correlation import COMBINED, Correlator, Told
from streamjoin_operator.derived import derive
from streamjoin_operator.driver import Answered, Measured, Report
from streamjoin_operator.driver_files import MANIFEST_KEY, files_of
from streamjoin_operator.measurement import Distrusted
from streamjoin_operator.reconcile import Reconciler
from streamjoin_operator.resource import Resource
from streamjoin_operator.seen import Seen
from streamjoin_operator.settings import Settings
from streamjoin_operator.trial import trial_pod

KEY = ("default", "one")
CHILDREN = [
    *("ConfigMap sj-one", "ConfigMap sj-one-FILES", "ConfigMap sj-one-decisions", "Deployment sj-one"),
    *("NetworkPolicy sj-one", "NetworkPolicy sj-one-executors", "Role sj-one", "RoleBinding sj-one"),
    *("Secret sj-one-exchange", "Secret sj-one-token", "Service sj-one", "ServiceAccount sj-one", "ServiceAccount sj-one-executors"),
]


SECRET = "nobody-else-may-see-this"
TLS = {"tls": {"secretName": "one-tls"}}


class Killed(BaseException):
    """The operator's process ends here."""


class Drivers:
    """What a driver answers."""

    def __init__(self) -> None:
        self.state, self.workers, self.model, self.generation = "running", 1, "adsp", 1
        self.wanted: int | None = None
        self.wishes: list[Object] = []
        self.answer = Answered(202, "")
        self.problem: str | None = None
        self.refuses_token = False
        self.tau = 0.5
        self.counts = {"orders": (0.0, 0.0), "payments": (0.0, 0.0)}
        self.text = ""
        self.ended: list[Object] = []
        self.idle: float | None = None

    async def read(self, url: str, token: str) -> Report:
        if self.refuses_token:
            return Report(problem="it refuses the token", unauthorized=True)
        if self.problem is not None:
            return Report(problem=self.problem)
        plan: Object = {
            "generation": self.generation,
            "workers": self.workers,
            "phase": "Running" if self.wanted is None else "Preparing",
            "readyWorkers": self.workers,
            "scheme": {"model": self.model, "areas": [{}]},
            "wanted": None,
            "dropped": next((one["reason"] for one in self.ended[-1:] if one["fate"] == "Dropped"), None),
            "ended": list(self.ended),
        }
        if self.wanted is not None:
            model = self.wishes[-1]["model"]
            plan["wanted"] = {"generation": self.generation + 1, "workers": self.wanted, "scheme": {"model": model}}
        utilization = dict.fromkeys(range(self.workers), self.tau)
        measured = Measured(self.generation, utilization, dict.fromkeys(utilization, 0.0), self.counts)
        return Report({"state": self.state, "lastError": None, "idleSeconds": self.idle}, plan, measured, self.text)

    async def statistics(self, url: str, token: str) -> None:
        return None

    async def put(self, url: str, token: str, wish: Object) -> Answered:
        self.wishes.append(wish)
        if self.answer.status == 202:
            self.wanted = wish["workers"]
        return self.answer

    def switch(self) -> None:
        assert self.wanted is not None
        self.workers, self.wanted, self.generation = self.wanted, None, self.generation + 1
        self.model = self.wishes[-1]["model"]


class NoPrometheus:
    """None is configured."""

    async def read(self, url: str, namespace: str, name: str, seconds: float) -> Distrusted:
        raise AssertionError("nobody may be asked")

    async def search(self, url: str, name: str, pods: str) -> None:
        raise AssertionError("nobody may be asked")


class World:
    """A cluster, a driver, and operators that come and go."""

    def __init__(self, **settings: Any) -> None:
        self.cluster, self.drivers = MemoryCluster(), Drivers()
        self.settings = Settings(engine_image="engine:1", **settings)
        self.now = 1000.0
        self.wall = datetime(2026, 1, 1, tzinfo=UTC)
        self.steps: list[str] = []
        self.kill_at: int | None = None
        self.reconciler = self.operator()

    def operator(self) -> Reconciler:
        """A new operator that knows nothing."""
        return Reconciler(
            self.cluster,  # type: ignore[arg-type]
            self.drivers,
            self.settings,
            NoPrometheus(),
            clock=lambda: self.now,
            wall=lambda: self.wall,
            on_step=self._on_step,
        )

    def _on_step(self, step: str) -> None:
        self.steps.append(step)
        if self.kill_at is not None and len(self.steps) > self.kill_at:
            raise Killed(step)

    def submit(self, body: Object | None = None) -> None:
        body = streamjoin() if body is None else body
        body["metadata"] = {"name": body["metadata"]["name"], "namespace": "default"}
        self.cluster.put(body)

    def change(self, change: Callable[[Object], Any]) -> None:
        self.cluster.edit("StreamJoin", *KEY, lambda body: change(body["spec"]))

    def watch(self, reconciler: Reconciler | None = None) -> None:
        """What the watches would bring."""
        reconciler = reconciler or self.reconciler
        found = {("default", body["metadata"]["name"]): body for body in self.cluster.of("StreamJoin")}
        for key, body in found.items():
            reconciler.seen.saw(body)
            for name, known in (
                (names.base_name(key[1]), reconciler.seen.deployments),
                (names.queries_name(key[1]), reconciler.seen.query_servers),
                (names.watcher_name(key[1]), reconciler.seen.watchers),
            ):
                if ("Deployment", key[0], name) not in self.cluster.objects:
                    known.pop(key, None)
        for body in self.cluster.of("Deployment"):
            reconciler.seen.saw_deployment(body)
        for key in list(reconciler.seen.bodies):
            if key not in found:
                reconciler.seen.forget(key)

    async def once(self, reconciler: Reconciler | None = None) -> float | None:
        """One reconcile by an operator that has seen all."""
        self.watch(reconciler)
        return await (reconciler or self.reconciler).reconcile(KEY)

    async def settle(self) -> None:
        """Reconciles, with a Deployment's controller between them, until nothing is written any more."""
        quiet = 0
        for _ in range(60):
            before = len(self.cluster.writes)
            try:
                after = await self.once()
            except ApiError:
                self.now, quiet = self.now + 1, 0
                continue
            for deployment in self.cluster.of("Deployment"):
                self.cluster.ready("default", deployment["metadata"]["name"], deployment["spec"]["replicas"])
            self.cluster.end_trials()
            if after == 0.0:  # it comes again at once
                continue
            self.now += 61
            quiet = quiet + 1 if len(self.cluster.writes) == before else 0
            if quiet == 2:
                return
        raise AssertionError(f"it does not settle: {self.cluster.writes[-20:]}")

    @property
    def status(self) -> Object:
        return self.cluster.objects["StreamJoin", *KEY].get("status", {})

    def condition(self, kind: str) -> tuple[str, str]:
        return next((found["status"], found["reason"]) for found in self.status["conditions"] if found["type"] == kind)

    @property
    def reasons(self) -> list[str]:
        return [event["reason"] for event in self.cluster.events]


@pytest.fixture(autouse=True, scope="module")
def _parsed_once() -> Iterator[None]:
    with parsed_once():
        yield


@pytest.fixture(autouse=True)
def _the_same_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    """In every world, as what pods are started for follows from them."""
    monkeypatch.setattr(children.secrets, "token_urlsafe", lambda size: SECRET)


def run(story: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(story())  # type: ignore[arg-type]


def made(world: World) -> list[str]:
    """Its children; the files of the driver by no hash."""
    return sorted(re.sub("ConfigMap sj-one-[0-9a-f]{16}", "ConfigMap sj-one-FILES", child) for child in world.cluster.children())


def essence(world: World) -> Object:
    """The end state, without what differs from run to run: versions, random tokens, times."""
    found = {}
    for place, body in world.cluster.objects.items():
        body = copied(body)
        for name in ("resourceVersion", "generation", "uid", "ownerReferences"):
            body["metadata"].pop(name, None)
        if place[2] == names.ledger_name("one"):
            body["data"] = sorted(body["data"])
            body["metadata"].pop("annotations")
        if place[0] == "Secret":
            body["data"] = sorted(body["data"])
            body["metadata"].pop("annotations")
        for condition in body.get("status", {}).get("conditions", ()):
            condition.pop("lastTransitionTime", None)  # what was refused for a while has changed twice
        found[place] = body
    return found


def test_a_streamjoin_gets_its_children_and_a_status() -> None:
    async def story() -> None:
        world = World()
        world.submit()
        await world.settle()
        assert made(world) == CHILDREN
        assert world.status["phase"] == "Running"
        assert world.condition("Ready") == ("True", "JoinRunning")
        assert world.status["utilization"] == {"max": "0.50", "mean": "0.50", "source": "driver", "at": "2026-01-01T00:00:00Z"}
        for kind, name in (child.split() for child in world.cluster.children()):
            (owner,) = world.cluster.objects[kind, "default", name]["metadata"]["ownerReferences"]
            assert owner["uid"] == world.cluster.objects["StreamJoin", *KEY]["metadata"]["uid"]

    run(story)


def test_a_claim_that_it_makes_is_made_once_and_never_deleted() -> None:
    async def story() -> None:
        world = World()
        world.submit(streamjoin(checkpoint={"persistentVolumeClaim": "data", "size": "1Gi"}))
        await world.settle()
        [claim] = world.cluster.of("PersistentVolumeClaim")
        world.change(lambda spec: spec.update(epoch={"interval": "7s"}))
        await world.settle()
        assert [found["metadata"]["uid"] for found in world.cluster.of("PersistentVolumeClaim")] == [claim["metadata"]["uid"]]
        assert not [event for event in world.cluster.events if event["reason"] == "Pruned" and "Claim" in event["message"]]

    run(story)


def test_an_idle_minute_has_no_write_and_no_request_to_the_api_server() -> None:
    async def story() -> None:
        world = World()
        world.submit()
        await world.settle()
        world.now += world.settings.resync_seconds
        await world.once()
        writes, requests = len(world.cluster.writes), world.cluster.requests
        for _ in range(4):
            world.now += 15
            assert await world.once() == world.settings.poll_seconds
        assert (len(world.cluster.writes), world.cluster.requests) == (writes, requests)
        events = len(world.cluster.events)
        world.now += world.settings.resync_seconds
        await world.once()
        assert world.cluster.requests > requests
        assert (len(world.cluster.writes), len(world.cluster.events)) == (writes, events)

    run(story)


def test_an_operator_that_starts_anew_writes_nothing() -> None:
    async def story() -> None:
        world = World()
        world.submit()
        await world.settle()
        writes = len(world.cluster.writes)
        world.reconciler = world.operator()
        await world.once()
        await world.once()
        assert len(world.cluster.writes) == writes

    run(story)


TOO_FULL: Object = {"workers": {"min": 1, "max": 2, "capacityTuples": 10_000}}
"""With 100 tuples/s of each stream for 190 s, two workers hold some 2.9 times what they may."""


def full(rates: int = 2, **spec: Any) -> Object:
    """A StreamJoin whose first plan is beyond tau2; ``rates``: of so many streams they are given."""
    body = streamjoin(**{**TOO_FULL, **spec})
    for at, stream in enumerate(body["spec"]["streams"]):
        stream.pop("expectedRate", None)
        if at < rates:
            stream["expectedRate"] = 100.0
    return body


def test_before_anything_of_a_new_join_is_made_its_first_plan_is_told_once() -> None:
    async def story() -> None:
        world = World()
        world.submit(full(workers={"min": 1, "max": 8, "capacityTuples": 100_000}))
        told_at: list[list[str]] = []
        world.cluster.after = lambda verb, kind: told_at.append(world.reasons) if verb == "apply" else None
        await world.once()
        assert told_at
        assert all(reasons == ["FirstPlan"] for reasons in told_at), "also before the first child"
        first = world.status["firstPlan"]
        assert (first["workers"], first["executors"], first["model"], first["billPerHour"]) == (1, 1, "adsp", "1.00")
        assert first["utilization"] == {"max": "0.39", "mean": "0.39"}
        assert [event["message"] for event in world.cluster.events if event["reason"] == "FirstPlan"] == [first["message"]]
        await world.settle()
        world.reconciler = world.operator()
        world.change(lambda spec: spec["workers"].update(max=2, capacityTuples=10_000))
        await world.settle()
        assert world.reasons.count("FirstPlan") == 1
        assert world.status["firstPlan"] == first, "what was said is not changed by what comes after"
        assert world.status["phase"] == "Running", "a join that runs is not refused"

    run(story)


def test_a_join_that_its_own_thresholds_do_not_allow_is_not_begun_and_told_what_would_do() -> None:
    async def story() -> None:
        world = World()
        world.submit(full())
        await world.settle()
        assert made(world) == []
        assert world.status["phase"] == "Failed"
        assert world.condition("Ready") == ("False", "FirstPlanTooFull")
        assert world.condition("Degraded") == ("True", "FirstPlanTooFull")
        (said,) = [event["message"] for event in world.cluster.events if event["reason"] == "FirstPlanTooFull"]
        assert "spec.workers.max: 2 is too small" in said
        assert "or annotate" not in said
        needed = int(re.search(r"what would do: spec\.workers\.max (\d+);", said)[1])  # type: ignore[index]
        assert "FirstPlan" not in world.reasons
        assert world.status["firstPlan"]["utilization"]["max"] > "2"
        world.reconciler = world.operator()
        events = len(world.cluster.events)
        await world.settle()
        assert len(world.cluster.events) == events, "it is told once"
        world.change(lambda spec: spec["workers"].update(max=needed))
        await world.settle()
        assert (made(world), world.status["phase"]) == (CHILDREN, "Running")
        assert world.status["firstPlan"]["workers"] == needed

    run(story)


def test_who_wants_it_begins_all_the_same() -> None:
    async def story() -> None:
        world = World()
        world.submit(full())
        await world.settle()

        def annotate(body: Object) -> None:
            body["metadata"]["annotations"] = {names.ADMISSION: "Warn"}

        world.cluster.edit("StreamJoin", *KEY, annotate)
        await world.once()
        assert "Deployment sj-one" in made(world)
        assert world.condition("Degraded") == ("True", "FirstPlanTooFull")
        await world.settle()
        assert world.status["phase"] == "Running"
        assert world.condition("Degraded") == ("False", "Healthy"), "now the driver's plan says how full it is"

    run(story)


def test_a_rate_that_is_only_guessed_refuses_nobody() -> None:
    async def story() -> None:
        world = World()
        world.submit(full(rates=1))
        await world.once()
        assert "Deployment sj-one" in made(world)
        assert world.condition("Degraded") == ("True", "FirstPlanTooFull")
        warned = next(event for event in world.cluster.events if event["reason"] == "FirstPlanTooFull")
        assert warned["type"] == "Warning"
        assert "guessed for streams without expectedRate" in warned["message"]

    run(story)


def test_a_join_whose_state_is_there_is_not_refused_when_it_is_resumed() -> None:
    async def story() -> None:
        world = World()
        world.submit()
        await world.settle()
        world.change(lambda spec: spec.update(suspend=True))
        await world.settle()
        world.change(lambda spec: spec.update(**full()["spec"], suspend=False))
        world.reconciler = world.operator()
        await world.settle()
        assert world.status["phase"] == "Running"
        assert "FirstPlanTooFull" not in world.reasons

    run(story)


STORIES: dict[str, Callable[[World], Awaitable[None]]] = {}


def story(function: Callable[[World], Awaitable[None]]) -> Callable[[World], Awaitable[None]]:
    STORIES[function.__name__] = function
    return function


@story
async def create(world: World) -> None:
    world.submit()
    await world.settle()


@story
async def restart_for_a_change(world: World) -> None:
    await create(world)
    world.change(lambda spec: spec["workers"].update(capacityTuples=50_000))
    await world.settle()


@story
async def suspend_and_resume(world: World) -> None:
    await create(world)
    world.change(lambda spec: spec.update(suspend=True))
    await world.settle()
    assert world.status["phase"] == "Suspended"
    world.change(lambda spec: spec.update(suspend=False))
    await world.settle()


@story
async def change_while_rescaling(world: World) -> None:
    await create(world)
    world.change(lambda spec: spec["workers"].update(min=3))
    await world.settle()
    assert world.status["phase"] == "Rescaling"
    world.change(lambda spec: spec["workers"].update(min=2, max=2))
    world.drivers.switch()
    await world.settle()
    world.drivers.switch()
    await world.settle()
    assert world.status["workers"] == 2


@story
async def another_image(world: World) -> None:
    await create(world)
    world.change(lambda spec: spec.update(image="engine:2"))
    await world.settle()
    assert world.status["image"] == "engine:2"


@story
async def query_servers_that_come_and_go(world: World) -> None:
    await create(world)
    world.change(lambda spec: spec.update(queries={"replicas": 2}))
    await world.settle()
    assert world.status["queries"] == {"replicas": 2, "ready": 2, "url": "http://sj-one-queries.default.svc:8080/v1/query"}
    world.change(lambda spec: spec.pop("queries"))
    await world.settle()
    assert "queries" not in world.status


@story
async def an_image_that_does_not_come_up_is_taken_back(world: World) -> None:
    await create(world)
    world.cluster.trial = {"waiting": {"reason": "ErrImagePull", "message": "no such image"}}
    world.change(lambda spec: spec.update(image="engine:2"))
    await world.settle()
    assert (world.status["image"], world.condition("Degraded")) == ("engine:1", ("True", "NewTemplateFails"))
    world.change(lambda spec: spec.pop("image"))
    await world.settle()
    assert not world.cluster.of("Pod")


@story
async def delete_while_starting(world: World) -> None:
    world.submit()
    await _attempt(world)
    world.cluster.remove("StreamJoin", *KEY)
    world.watch()
    await world.settle()


@story
async def a_child_is_deleted_and_one_changed(world: World) -> None:
    await create(world)
    world.cluster.remove("Service", "default", "sj-one")
    world.cluster.edit("Role", "default", "sj-one", lambda body: body.update(rules=[]))
    world.now += 1000
    await world.settle()


@story
async def a_join_that_is_idle_sleeps_until_a_record_comes(world: World) -> None:
    await create(world)
    await sleep(world)
    assert world.condition("Ready") == ("True", "SuspendedWhenIdle")
    end_watcher(world, 0)
    await world.settle()
    assert world.condition("Ready") == ("True", "JoinRunning")


@story
async def a_window_of_the_schedule(world: World) -> None:
    world.submit(streamjoin(suspendDuring=NIGHT))
    world.wall = AT_NIGHT
    await world.settle()
    assert world.condition("Ready") == ("True", "SuspendedBySchedule")
    world.wall = BY_DAY
    await world.settle()
    assert world.condition("Ready") == ("True", "JoinRunning")


NIGHT: list[Object] = [{"start": "20:00", "end": "06:00"}]
AT_NIGHT, BY_DAY = datetime(2026, 1, 1, 23, tzinfo=UTC), datetime(2026, 1, 2, 9, tzinfo=UTC)


async def sleep(world: World) -> None:
    """Its driver has had nothing to do for long enough, and says so once."""
    world.change(lambda spec: spec.update(idle={"after": "30m"}))
    world.drivers.idle = 1800.0
    await world.settle()
    world.drivers.idle = None


def kubelet(world: World, name: str, *conditions: Object) -> None:
    """An executor runs, with what it asks for if the kubelet says nothing else."""

    def run(pod: Object) -> None:
        asked = copied(pod["spec"]["containers"][0]["resources"])
        runs = {"name": "executor", "state": {"running": {}}, "resources": asked}
        pod["status"] = {"phase": "Running", "containerStatuses": [runs], "conditions": list(conditions)}

    world.cluster.edit("Pod", "default", name, run)


def executor_of(world: World, name: str) -> None:
    """As Spark makes it: for the driver that began with the defaults."""
    resources = {"requests": {"cpu": "1", "memory": "2048Mi"}, "limits": {"memory": "2048Mi"}}
    world.cluster.put(pod_of("executor", name) | {"spec": {"containers": [{"name": "executor", "resources": resources}]}})
    kubelet(world, name)


def asked_of(world: World, name: str) -> tuple[str, str]:
    resources = world.cluster.objects["Pod", "default", name]["spec"]["containers"][0]["resources"]
    return resources["requests"]["cpu"], resources["limits"]["memory"]


@story
async def executors_that_are_resized(world: World) -> None:
    """One that is there, and one that comes later; then no node has room for more."""
    world.cluster.known_kinds.add("Pod")
    await create(world)
    executor_of(world, "a")
    template = world.cluster.objects["Deployment", "default", "sj-one"]["spec"]["template"]
    world.change(lambda spec: spec["workers"].update(resources={"cpu": "2", "memory": "3Gi"}))
    await world.settle()
    executor_of(world, "b")
    for name in ("a", "b"):
        await world.settle()
        kubelet(world, name)
    await world.settle()
    assert [asked_of(world, name) for name in ("a", "b")] == [("2", "3072Mi")] * 2
    deployment = world.cluster.objects["Deployment", "default", "sj-one"]
    assert deployment["spec"]["template"] == template
    assert json.loads(deployment["metadata"]["annotations"][names.BEGUN]) == {}
    assert (world.status["change"]["class"], world.condition("Ready")[0]) == ("Live", "True")
    files = world.cluster.objects["ConfigMap", "default", files_of(template)]["data"]
    assert json.loads(files[RESIZED]) == {"cpu": "2", "memory": "3Gi"}
    world.change(lambda spec: spec["workers"].update(resources={"cpu": "2", "memory": "4Gi"}))
    await world.settle()
    kubelet(world, "a", {"type": "PodResizePending", "status": "True", "reason": "Infeasible", "message": "no room"})
    await world.settle()
    assert "PodResizePending: Infeasible: no room" in world.status["change"]["message"]
    deployment = world.cluster.objects["Deployment", "default", "sj-one"]
    assert "--executor-overhead-mib=3840" in deployment["spec"]["template"]["spec"]["containers"][0]["args"]
    assert names.BEGUN not in deployment["metadata"]["annotations"]


@story
async def executors_of_a_cluster_that_cannot_resize_pods(world: World) -> None:
    await create(world)
    executor_of(world, "a")
    world.change(lambda spec: spec["workers"].update(resources={"cpu": "2", "memory": "3Gi"}))
    await world.settle()
    assert asked_of(world, "a") == ("1", "2048Mi")
    assert "the API server has no pods/resize" in world.status["change"]["message"]
    assert names.BEGUN not in world.cluster.objects["Deployment", "default", "sj-one"]["metadata"]["annotations"]


def end_watcher(world: World, code: int, name: str = "sj-one-watcher-1") -> None:
    """Its container has ended, and was started again."""
    ended = {"terminated": {"exitCode": code, "finishedAt": "2026-01-01T00:00:00Z", "message": ""}}
    waiting = {"waiting": {"reason": "CrashLoopBackOff"}}
    container = {"name": names.WATCHER, "ready": False, "restartCount": 1, "state": waiting, "lastState": ended}
    pod = pod_of(names.WATCHER, name, {"phase": "Running", "containerStatuses": [container]})
    watcher = world.cluster.edit("Deployment", "default", "sj-one-watcher", lambda body: body.update(status={}))
    pod["metadata"]["ownerReferences"] = [{"uid": watcher["metadata"]["uid"]}]  # it goes with it
    world.cluster.put(pod)


async def _attempt(world: World) -> None:
    try:
        await world.once()
    except ApiError:
        world.now += 1


@pytest.mark.parametrize("name", STORIES)
def test_killed_between_any_two_steps_it_ends_the_same(name: str) -> None:
    async def undisturbed() -> World:
        world = World()
        await STORIES[name](world)
        return world

    async def disturbed(kill_at: int) -> World:
        """The operator dies at that step, once; another begins from what is in the cluster."""
        world = World()
        world.kill_at = kill_at
        original = world.once

        async def once(reconciler: Reconciler | None = None) -> float | None:
            try:
                return await original(reconciler)
            except Killed:
                world.kill_at = None
                world.reconciler = world.operator()
                return await original()

        world.once = once  # type: ignore[method-assign]
        await STORIES[name](world)
        return world

    expected = asyncio.run(undisturbed())
    steps = len(expected.steps)
    kills = [*range(min(steps, 50)), *range(50, steps, 7)]  # later passes repeat the first ones' steps
    for kill_at in some(kills, of=10, since=list(STORIES).index(name)):
        found = asyncio.run(disturbed(kill_at))
        assert essence(found) == essence(expected), f"killed before step {kill_at}, {expected.steps[kill_at]}"


@pytest.mark.parametrize("name", STORIES)
def test_whatever_a_request_is_answered_with_it_ends_the_same(name: str) -> None:
    """Each of a sample of requests fails, before or after it was carried out, with each of the faults."""

    async def run_with(at: int | None, error: ApiError | None, lost: bool) -> World:
        world = World()

        def fault(verb: str, kind: str) -> None:
            if at is not None and world.cluster.requests == at + 1 and kind != "discovery":
                assert error is not None
                raise error

        if lost:
            world.cluster.after = fault
        else:
            world.cluster.fault = fault
        await STORIES[name](world)
        return world

    expected = asyncio.run(run_with(None, None, False))
    seed = random.Random(7)
    requests = expected.cluster.requests
    for at in some([*range(min(requests, 40)), *range(40, requests, 5)], of=10, since=list(STORIES).index(name)):
        for error in seed.sample(list(every_fault()), 2):
            found = asyncio.run(run_with(at, error, seed.random() < 0.4))
            assert essence(found) == essence(expected), f"request {at}: {error}"


def test_two_operators_at_once_make_one_of_each_and_come_to_rest() -> None:
    async def story() -> None:
        seed = random.Random(3)
        world = World()
        operators = [world.operator(), world.operator()]
        world.submit()
        for round_ in range(80):
            world.now += 5
            if round_ == 30:
                world.change(lambda spec: spec["workers"].update(capacityTuples=50_000))
            for operator in seed.sample(operators, 2):
                if seed.random() < 0.7:
                    world.watch(operator)  # otherwise its watch is behind
                try:
                    await operator.reconcile(KEY)
                except ApiError as error:
                    assert error.status == 409  # noqa: PT017
            if ("Deployment", "default", "sj-one") in world.cluster.objects:
                world.cluster.ready("default", "sj-one")
            world.cluster.end_trials()
        assert made(world) == CHILDREN
        writes = len(world.cluster.writes)
        for _ in range(5):
            world.now += 400
            for operator in operators:
                await world.once(operator)
        assert len(world.cluster.writes) == writes

    run(story)


def image_of(world: World, deployment: str) -> str:
    (container,) = world.cluster.objects["Deployment", "default", deployment]["spec"]["template"]["spec"]["containers"]
    return str(container["image"])


SERVERS = [f"{kind} sj-one-queries" for kind in ("Deployment", "NetworkPolicy", "PodDisruptionBudget", "Secret", "Service")]


def test_query_servers_are_there_whatever_becomes_of_the_driver_and_cost_it_no_restart() -> None:
    async def story() -> None:
        world = World()
        await create(world)
        driver = generation_of(world)
        world.change(lambda spec: spec.update(queries={"replicas": 2}))
        await world.settle()
        assert made(world) == sorted([*CHILDREN, *SERVERS])
        assert generation_of(world) == driver
        assert image_of(world, "sj-one-queries") == world.status["image"]
        servers = copied(world.cluster.objects["Deployment", "default", "sj-one-queries"])
        world.change(lambda spec: spec.update(suspend=True))
        await world.settle()
        assert world.status["queries"]["ready"] == 2
        world.change(lambda spec: spec.update(suspend=False))
        await world.settle()
        world.change(lambda spec: spec["workers"].update(min=2))
        await world.settle()
        assert world.cluster.objects["Deployment", "default", "sj-one-queries"] == servers
        world.change(lambda spec: spec["queries"].update(replicas=1))
        await world.settle()
        assert "PodDisruptionBudget sj-one-queries" not in world.cluster.children(), "one pod may always be drained"
        world.cluster.remove("Deployment", "default", "sj-one-queries")
        await world.settle()
        assert world.status["queries"]["ready"] == 1, "made again"
        world.change(lambda spec: spec.pop("queries"))
        await world.settle()
        assert set(made(world)) - set(CHILDREN) == {"Secret sj-one-queries"}, "its token stays the same"

    run(story)


def test_query_servers_get_a_new_image_when_the_driver_has_it() -> None:
    async def story() -> None:
        world = World()
        await create(world)
        world.change(lambda spec: spec.update(queries={"replicas": 1}))
        await world.settle()
        world.settings = Settings(engine_image="engine:2")
        world.reconciler = world.operator()
        await world.settle()
        assert image_of(world, "sj-one-queries") == "engine:1", "a new release of the operator changes nothing of what runs"
        world.change(lambda spec: spec.update(epoch={"interval": "7s"}))
        await world.settle()
        assert image_of(world, "sj-one-queries") == "engine:2" == world.status["image"]

    run(story)


def test_nothing_is_left_of_a_streamjoin_that_is_deleted() -> None:
    async def story() -> None:
        world = World()
        await create(world)
        world.cluster.remove("StreamJoin", *KEY)
        await world.once()
        assert world.cluster.objects == {}
        assert world.reconciler.seen.bodies == {}

    run(story)


def test_a_change_says_what_it_takes() -> None:
    async def story() -> None:
        world = World()
        await create(world)
        world.change(lambda spec: spec["streams"][0].update(expectedRate=200.0))
        await world.settle()
        assert world.status["change"]["class"] == "Ignored"
        before = world.cluster.objects["Deployment", "default", "sj-one"]["spec"]
        world.change(lambda spec: spec["workers"].update(max=16))
        await world.settle()
        assert world.status["change"] == {
            "generation": 3,
            "class": "Live",
            "fields": ["spec.workers.max"],
            "message": "spec.workers.max: the driver is asked for a plan within the limits",
        }
        assert world.cluster.objects["Deployment", "default", "sj-one"]["spec"] == before
        world.change(lambda spec: spec["workers"].update(capacityTuples=50_000))
        await world.settle()
        assert world.status["change"]["class"] == "Restart"
        assert world.cluster.objects["Deployment", "default", "sj-one"]["spec"] != before
        assert [reason for reason in world.reasons if reason.startswith("Change")] == ["ChangeIgnored", "ChangeLive", "ChangeRestart"]

    run(story)


def test_a_join_that_is_added_or_removed_restarts_the_driver_and_one_that_stays_may_not_change() -> None:
    async def story() -> None:
        world = World()
        await create(world)
        (first,) = streamjoin()["spec"]["joins"]
        other = copy.deepcopy(first) | {"name": "other", "output": {"sink": {"console": {}}}}
        steps = [([other, first], "other is added"), ([first, other], "they are in another order"), ([first], "other is removed")]
        for joins, said in steps:
            before = world.cluster.objects["Deployment", "default", "sj-one"]["spec"]
            world.change(lambda spec, joins=joins: spec.update(joins=joins))  # type: ignore[misc]
            await world.settle()
            assert world.status["change"]["class"] == "Restart"
            assert said in world.status["change"]["message"]
            assert world.condition("Degraded") == ("False", "Healthy")
            assert world.cluster.objects["Deployment", "default", "sj-one"]["spec"] != before
        world.change(lambda spec: spec.update(joins=[other, first | {"condition": "orders.id = payments.id"}]))
        await world.settle()
        assert world.condition("Degraded") == ("True", "CheckpointMismatch")

    run(story)


def test_a_change_that_does_not_fit_the_checkpoint_is_not_made_and_what_runs_goes_on() -> None:
    async def story() -> None:
        world = World()
        await create(world)
        before = {place: body for place, body in world.cluster.objects.items() if place[0] != "StreamJoin"}
        world.change(lambda spec: spec["joins"][0].update(condition="orders.id = payments.id"))
        await world.settle()
        assert world.condition("Degraded") == ("True", "CheckpointMismatch")
        assert world.condition("Available") == ("True", "JoinRunning")
        assert (world.condition("Ready"), world.status["appliedGeneration"]) == (("False", "CheckpointMismatch"), 1)
        assert {place: body for place, body in world.cluster.objects.items() if place[0] != "StreamJoin"} == before
        world.change(lambda spec: spec["joins"][0].update(condition=streamjoin()["spec"]["joins"][0]["condition"]))
        await world.settle()
        assert world.condition("Degraded") == ("False", "Healthy")

    run(story)


def test_what_a_watch_of_an_older_definition_leaves_out_is_read_from_the_answer_to_the_next_write() -> None:
    """The API server ends such a watch within a second, but what it has shown last is shown by no other one."""

    async def story() -> None:
        world = World()
        await create(world)
        world.change(lambda spec: spec.update(epoch={"interval": "7s"}))
        watch = world.watch

        def lacking(reconciler: Reconciler | None = None) -> None:
            for body in world.cluster.of("StreamJoin"):
                del body["spec"]["checkpoint"]
                (reconciler or world.reconciler).seen.saw(body, is_watched=True)

        world.watch = lacking  # type: ignore[method-assign]
        await world.once()
        assert world.condition("Degraded") == ("True", "InvalidSpec")
        await world.settle()
        assert world.condition("Degraded") == ("False", "Healthy")
        world.watch = watch  # type: ignore[method-assign]
        await world.settle()
        assert world.condition("Degraded") == ("False", "Healthy")

    run(story)


def test_an_invalid_manifest_and_one_that_needs_more_memory_start_nothing() -> None:
    async def story() -> None:
        for spec, reason in (({"joins": []}, "InvalidSpec"), ({"workers": {"capacityTuples": 50_000_000}}, "InsufficientMemory")):
            world = World()
            world.submit(streamjoin(**spec))
            await world.settle()
            assert world.cluster.children() == []
            assert world.status["phase"] == "Failed"
            assert world.condition("Degraded") == ("True", reason)

    run(story)


def certificates(world: World, **data: str) -> None:
    """cert-manager, or somebody, has written the Secret."""
    metadata = {"name": "one-tls", "namespace": "default"}
    encoded = {name.replace("_", "."): base64.b64encode(value.encode()).decode() for name, value in data.items()}
    world.cluster.put({"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "data": encoded})


def generation_of(world: World) -> int:
    generation: int = world.cluster.objects["Deployment", "default", "sj-one"]["metadata"]["generation"]
    return generation


def test_secrets_are_in_their_secrets_alone() -> None:
    async def story() -> None:
        world = World()
        certificates(world, tls_crt="certificate", tls_key=SECRET, ca_crt="authority")
        world.submit(streamjoin(security=TLS))
        await world.settle()
        world.cluster.ready("default", "sj-one")
        await world.settle()
        assert world.condition("Ready") == ("True", "JoinRunning")
        secret = {kind: body for (kind, _, name), body in world.cluster.objects.items() if name == "sj-one-exchange"}
        assert base64.b64decode(secret["Secret"]["data"]["secret"]).decode() == SECRET
        others = [body for place, body in world.cluster.objects.items() if place[0] != "Secret"]
        seen = json.dumps([others, world.cluster.events])
        for form in (SECRET, base64.b64encode(SECRET.encode()).decode()):
            assert form not in seen

    run(story)


def test_without_its_certificates_a_join_waits_and_says_what_for() -> None:
    async def story() -> None:
        world = World()
        world.submit(streamjoin(security=TLS))
        await world.settle()
        assert world.condition("Degraded") == ("True", "SecretUnusable")
        assert "Deployment sj-one" not in world.cluster.children()
        certificates(world, tls_crt="certificate", tls_key="key")
        await world.settle()
        (degraded,) = [one for one in world.status["conditions"] if one["type"] == "Degraded"]
        assert "the Secret lacks ca.crt" in degraded["message"]
        certificates(world, tls_crt="certificate", tls_key="key", ca_crt="authority")
        await world.settle()
        assert world.condition("Degraded") == ("False", "Healthy")
        assert "Deployment sj-one" in world.cluster.children()

    run(story)


def test_what_runs_goes_on_when_its_certificates_are_deleted() -> None:
    async def story() -> None:
        world = World()
        certificates(world, tls_crt="certificate", tls_key="key", ca_crt="authority")
        world.submit(streamjoin(security=TLS))
        await world.settle()
        world.cluster.ready("default", "sj-one")
        await world.settle()
        generation = generation_of(world)
        world.cluster.remove("Secret", "default", "one-tls")
        world.now += world.settings.resync_seconds
        await world.settle()
        assert world.condition("Degraded") == ("True", "SecretUnusable")
        assert world.condition("Available") == ("True", "JoinRunning")
        assert generation_of(world) == generation
        world.change(lambda spec: spec.update(suspend=True))
        await world.settle()
        assert world.cluster.objects["Deployment", "default", "sj-one"]["spec"]["replicas"] == 0, "that is heeded all the same"

    run(story)


def test_with_another_secret_all_pods_start_anew_once_and_a_renewed_certificate_they_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        world = World()
        certificates(world, tls_crt="certificate", tls_key="key", ca_crt="authority")
        await create(world)
        world.change(lambda spec: spec.update(security=TLS))
        await world.settle()
        generation = generation_of(world)

        async def checked() -> int:
            for _ in range(2):
                world.now += world.settings.resync_seconds
                await world.settle()
            return generation_of(world)

        certificates(world, tls_crt="renewed", tls_key="other", ca_crt="another authority")
        assert await checked() == generation
        monkeypatch.setattr(children.secrets, "token_urlsafe", lambda size: "another")
        world.cluster.remove("Secret", "default", "sj-one-exchange")
        assert await checked() == generation + 1
        assert world.reasons.count("RestartRequested") == 1

    run(story)


WINDOWS = {"windows": [{"start": "02:00", "end": "04:00", "days": ["Sat"]}]}


def running_capacity(world: World) -> int:
    """Of what the driver is started with."""
    template = world.cluster.objects["Deployment", "default", "sj-one"]["spec"]["template"]
    files = world.cluster.objects["ConfigMap", "default", files_of(template)]["data"]
    capacity: int = json.loads(files[MANIFEST_KEY])["spec"]["workers"]["capacityTuples"]
    return capacity


@pytest.mark.parametrize("ends", ["window", "annotation", "secret", "driver"])
def test_a_change_that_restarts_the_driver_waits_for_its_window(ends: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """All else that the manifest asks for is done at once, and the join is scaled as what runs."""

    async def story() -> None:
        world = World()
        await create(world)
        generation, capacity = generation_of(world), running_capacity(world)
        world.change(lambda spec: (spec.update(maintenance=WINDOWS), spec["workers"].update(capacityTuples=50_000, min=3)))
        for _ in range(4):
            world.now += world.settings.resync_seconds
            await world.settle()
        assert (generation_of(world), running_capacity(world)) == (generation, capacity)
        assert world.drivers.wishes[-1]["workers"] == 3
        world.drivers.switch()
        await world.settle()
        assert world.condition("Reconciling") == ("True", "MaintenanceAwaited")
        assert (world.condition("Ready")[0], world.condition("Available")[0]) == ("False", "True")
        (message,) = (found["message"] for found in world.status["conditions"] if found["type"] == "Reconciling")
        assert message.startswith("spec.workers.capacityTuples: ")
        assert "waits for 02:00 to 04:00 on Sat, Etc/UTC (spec.maintenance.windows)" in message
        assert "ChangeRestart" not in world.reasons
        world.now += world.settings.resync_seconds
        if ends == "window":
            assert f"{world.wall:%a}" == "Thu"
            world.wall = datetime(2026, 1, 3, 2, 30, tzinfo=UTC)
        elif ends == "annotation":
            world.cluster.edit("StreamJoin", *KEY, lambda body: body["metadata"].update(annotations={names.RESTART: "now"}))
        elif ends == "secret":
            monkeypatch.setattr(children.secrets, "token_urlsafe", lambda size: "another")
            world.cluster.remove("Secret", "default", "sj-one-exchange")
        else:
            world.cluster.edit("Deployment", "default", "sj-one", lambda body: body["status"].update(readyReplicas=0))
            await world.once()
            world.cluster.end_trials()
            await world.once()
        await world.settle()
        assert running_capacity(world) == 50_000
        assert world.condition("Reconciling")[0] == "False"
        assert world.reasons.count("ChangeRestart") == 1

    run(story)


def test_a_new_value_of_the_restart_annotation_restarts_the_driver_once() -> None:
    async def story() -> None:
        world = World()
        await create(world)
        generation = world.cluster.objects["Deployment", "default", "sj-one"]["metadata"]["generation"]
        world.cluster.edit("StreamJoin", *KEY, lambda body: body["metadata"].update(annotations={names.RESTART: "1"}))
        await world.settle()
        await world.settle()
        assert world.cluster.objects["Deployment", "default", "sj-one"]["metadata"]["generation"] == generation + 1
        assert world.reasons.count("RestartRequested") == 1

    run(story)


def test_limits_and_model_are_asked_of_the_running_driver() -> None:
    async def story() -> None:
        world = World()
        await create(world)
        world.change(lambda spec: (spec["workers"].update(floor=3), spec.update(scheme={"model": "square"})))
        await world.settle()
        assert world.drivers.wishes == [{"workers": 3, "model": "square"}]
        assert world.condition("Rescaling") == ("True", "Rescaling")
        world.drivers.switch()
        await world.settle()
        assert (world.status["workers"], world.status["plan"]["model"]) == (3, "square")
        assert "PodDisruptionBudget sj-one" in world.cluster.children()
        assert len(world.drivers.wishes) == 1

    run(story)


def test_a_join_that_rescales_is_available_all_the_time() -> None:
    async def story() -> None:
        world = World()
        await create(world)
        world.cluster.events.clear()
        world.change(lambda spec: spec["workers"].update(min=3))
        for _ in range(8):
            await world.once()
            world.cluster.ready("default", "sj-one")
            assert world.condition("Available") == ("True", "JoinRunning")
            world.now += 15
            if world.drivers.wanted:
                world.drivers.switch()
        assert world.status["workers"] == 3
        assert "DriverUnreachable" not in world.reasons

    run(story)


def test_a_plan_that_the_driver_refuses_is_said_and_not_asked_for_all_the_time() -> None:
    async def story() -> None:
        world = World()
        await create(world)
        world.drivers.answer = Answered(422, "workers: 3 must be less")
        world.change(lambda spec: spec["workers"].update(min=3))
        for _ in range(8):
            await world.once()
            world.now += 5
        assert world.condition("Degraded") == ("True", "PlanRefused")
        assert len(world.drivers.wishes) <= 4

    run(story)


def ended(generation: int, fate: str) -> Object:
    return {"generation": generation, "fate": fate, "reason": "" if fate == "Switched" else f"generation {generation}: {fate}"}


def test_whatever_a_driver_says_at_length_is_in_the_status_as_far_as_there_is_room() -> None:
    async def story() -> None:
        world = World()
        await create(world)
        world.drivers.ended = [ended(2, "Dropped") | {"reason": "no worker is there; " * 1000}]
        await world.once()
        assert len(world.status["plan"]["givenUp"][0]["reason"]) == 4096
        assert len(event(world, "PlanDropped")["message"]) == 1024
        world.drivers.state = "retrying"
        await world.once()
        assert world.condition("Degraded") == ("True", "JoinRetrying")

    run(story)


def test_a_join_that_flaps_is_told_of_as_often_as_others_are() -> None:
    async def story() -> None:
        world = World()
        await create(world)
        world.cluster.events.clear()
        written = len(world.cluster.writes)
        for polled in range(240):
            world.drivers.state = "retrying" if polled % 2 else "running"
            after = await world.once()
            assert after is not None
            world.now += after
            world.wall += timedelta(seconds=after)
        hours = (world.now - 1000.0) / 3600
        assert world.reasons == ["JoinRetrying"]
        (told,) = world.cluster.events
        assert 25 < told["count"] <= 120
        assert told["firstTimestamp"] < told["lastTimestamp"]
        assert len(world.cluster.writes) - written <= 25 + 60 * hours + 1
        await world.settle()
        assert world.condition("Degraded") == ("True", "JoinRetrying"), "what is held back is written in the end"
        world.change(lambda spec: spec.update(suspend=True))
        await world.once()
        assert world.status["phase"] == "Suspended"

    run(story)


def test_events_of_one_kind_are_combined_counted_and_dropped_as_client_go_does() -> None:
    correlator, at = Correlator(), 1_700_000_000.0

    def tell(message: str, after: float = 0.0, reason: str = "Retrying") -> Told | None:
        nonlocal at
        at += after
        return correlator.event("uid", "Warning", reason, message, at, at)

    first, again = tell("a"), tell("a")
    assert first is again, "it is counted"
    assert again is not None
    assert again.count == 2
    told = [tell(f"message {number}") for number in range(20)]
    assert [one.message for one in told if one is not None][:10] == [*(f"message {number}" for number in range(9)), COMBINED + "message 19"]
    combined = told[-1]
    assert combined is not None
    assert combined.count == 11
    rest = [tell(f"of another kind, {number}", reason=f"Reason{number}") for number in range(10)]
    assert [one is not None for one in rest] == [True] * 3 + [False] * 7, "25 at once"
    assert tell("a", after=299.0) is None
    later = tell("a", after=1.0)
    assert later is not None, "one in five minutes"
    assert later.count == 4, "those that were dropped are counted"
    anew = tell("a", after=3601.0)
    assert anew is not None
    assert (anew.count, anew.name) == (1, None), "the API server keeps it no longer"
    assert len(tell("x" * 5000).message) == 1024  # type: ignore[union-attr]


def test_an_event_that_somebody_has_deleted_is_posted_anew() -> None:
    async def story() -> None:
        world = World()
        await create(world)
        world.cluster.events.clear()
        for state in ("retrying", "running", "retrying", "running"):
            world.drivers.state = state
            await world.once()
            world.now += 15
        assert event(world, "JoinRetrying")["count"] == 2
        world.cluster.events.clear()
        world.drivers.state = "retrying"
        await world.once()
        assert event(world, "JoinRetrying")["count"] == 3

    run(story)


def test_a_plan_that_ended_without_running_is_told_once_whoever_put_it_and_whichever_operator_sees_it() -> None:
    async def story() -> None:
        world = World()
        await create(world)
        world.drivers.ended = [ended(2, "Dropped")]
        await world.settle()
        world.reconciler = world.operator()
        await world.settle()
        assert world.reasons.count("PlanDropped") == 1
        world.drivers.ended += [ended(2, "Dropped"), ended(2, "Switched")]
        await world.settle()
        world.drivers.ended += [ended(3, "Replaced"), ended(4, "Dropped")]
        await world.settle()
        await world.settle()
        assert (world.reasons.count("PlanDropped"), world.reasons.count("PlanReplaced")) == (3, 1)
        assert [one["generation"] for one in world.status["plan"]["givenUp"]] == [2, 3, 4]
        world.drivers.ended = [ended(5, "Replaced")]  # a driver that was started anew
        await world.settle()
        assert world.reasons.count("PlanReplaced") == 2

    run(story)


def test_a_plan_that_the_manifest_asks_for_and_that_the_driver_drops_degrades_until_one_runs() -> None:
    async def story() -> None:
        world = World()
        await create(world)
        world.change(lambda spec: spec["workers"].update(min=3))
        await world.settle()
        world.drivers.wanted, world.drivers.ended = None, [ended(2, "Dropped")]
        await world.once()
        assert world.condition("Degraded") == ("True", "PlanDropped")
        world.now += 61
        await world.settle()
        assert world.drivers.wanted == 3, "it is asked for again"
        world.drivers.switch()
        world.drivers.ended.append(ended(2, "Switched"))
        await world.settle()
        assert world.condition("Degraded") == ("False", "Healthy")

    run(story)


def test_an_object_of_somebody_else_is_left_alone() -> None:
    async def story() -> None:
        world = World()
        foreign = {"kind": "ConfigMap", "metadata": {"name": "sj-one", "namespace": "default"}, "data": {"mine": "1"}}
        world.cluster.put(foreign)
        world.submit()
        await world.settle()
        assert world.condition("Degraded") == ("True", "ForeignObject")
        assert world.cluster.objects["ConfigMap", "default", "sj-one"]["data"] == {"mine": "1"}

    run(story)


@pytest.mark.parametrize("is_first", [True, False])
@pytest.mark.parametrize("other", ["one-queries", "one-executors"])
def test_streamjoins_whose_children_would_have_one_name_are_told_so_and_take_nothing_from_each_other(other: str, is_first: bool) -> None:
    """``one`` has query servers, and executors."""

    async def story() -> None:
        world = World()
        first, second = ("one", other) if is_first else (other, "one")

        async def settle() -> None:
            for _ in range(8):
                world.watch()
                for name in (first, second):
                    if ("StreamJoin", "default", name) in world.cluster.objects:
                        await world.reconciler.reconcile(("default", name))
                for deployment in world.cluster.of("Deployment"):
                    world.cluster.ready("default", deployment["metadata"]["name"], deployment["spec"]["replicas"])
                world.cluster.end_trials()
                world.now += 61

        def of(name: str) -> dict[Any, Object]:
            owned = {"name": name, "kind": "StreamJoin"}.items()
            return {
                key: found["spec"]
                for key, found in world.cluster.objects.items()
                if any(owned <= owner.items() for owner in found["metadata"].get("ownerReferences") or []) and "spec" in found
            }

        world.submit(streamjoin(first, queries={"replicas": 2}))
        await settle()
        before = copy.deepcopy(of(first))
        assert len(before) > 3
        world.submit(streamjoin(second, queries={"replicas": 2}))
        await settle()
        assert of(first) == before
        conditions = {
            name: {found["type"]: found for found in world.cluster.objects["StreamJoin", "default", name]["status"]["conditions"]}
            for name in (first, second)
        }
        assert conditions[first]["Degraded"]["status"] == "False"
        degraded = conditions[second]["Degraded"]
        assert (degraded["status"], degraded["reason"]) == ("True", "ForeignObject")
        expected = f" sj-{other} is a child of the StreamJoin {first}, and {second} needs that name, too; name one of them anew"
        assert expected in degraded["message"]
        world.cluster.objects.pop(("StreamJoin", "default", first))
        for key, found in list(world.cluster.objects.items()):  # as Kubernetes does
            if any(owner["name"] == first for owner in found["metadata"].get("ownerReferences") or []):
                world.cluster.objects.pop(key)
        await settle()
        found = world.cluster.objects["StreamJoin", "default", second]["status"]["conditions"]
        assert next(each for each in found if each["type"] == "Degraded")["status"] == "False"

    run(story)


def test_why_a_driver_does_not_start_is_said() -> None:
    async def story() -> None:
        world = World()
        world.submit()
        await world.once()
        waiting = {"state": {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}}
        labels = names.pod_labels("one", names.DRIVER)
        metadata = {"name": "p", "namespace": "default", "labels": labels}
        pod = {"kind": "Pod", "metadata": metadata, "status": {"containerStatuses": [waiting]}}
        world.cluster.put(pod)
        assert await world.once() == world.settings.start_seconds
        assert world.status["phase"] == "Failed"
        assert world.condition("Ready") == ("False", "ImageUnavailable")

    run(story)


def test_a_token_that_somebody_changed_is_read_anew() -> None:
    async def story() -> None:
        world = World()
        await create(world)
        world.drivers.refuses_token = True
        await world.once()
        assert world.condition("Degraded") == ("True", "DriverUnreachable")
        world.drivers.refuses_token = False
        world.now += 1
        await world.settle()
        assert world.condition("Degraded") == ("False", "Healthy")

    run(story)


KINDS_OF_STEPS = [
    *("ServiceAccount", "Role", "RoleBinding", "ConfigMap", "Service", "PodDisruptionBudget", "NetworkPolicy", "Deployment", "Secret"),
    *("PersistentVolumeClaim", "StreamJoin"),
]


@pytest.mark.parametrize(("status", "reason"), [(403, "ApiRefused"), (500, "ApiFailing"), (0, "ApiFailing"), (429, "ApiFailing")])
@pytest.mark.parametrize("kind", KINDS_OF_STEPS)
def test_whatever_step_fails_it_is_said_and_a_join_that_runs_is_no_less_ready(kind: str, status: int, reason: str) -> None:
    async def story() -> None:
        world = World()
        claim = {"persistentVolumeClaim": "data", "size": "1Gi", "onDelete": "Retain"}
        world.submit(streamjoin(checkpoint=claim))
        await world.settle()

        def fault(verb: str, of: str) -> None:
            if of == kind and not (of == "StreamJoin" and world.steps[-1] == "report"):
                raise ApiError(status, "ByTheTest", f"{verb} {of} is refused by the test")

        world.cluster.fault = fault
        # a change that takes each step, the finalizer's among them
        delete = {"location": "s3://bucket/state", "onDelete": "Delete"}
        world.change(lambda spec: spec.update(checkpoint=delete if kind == "StreamJoin" else claim, epoch={"interval": "7s"}))
        for _ in range(5):
            with contextlib.suppress(ApiError):
                await world.once()
            world.now += 61
        found = {condition["type"]: condition for condition in world.status["conditions"]}
        assert (found["Degraded"]["status"], found["Degraded"]["reason"]) in (("True", reason), ("True", "ApplyRefused"))
        assert kind in found["Degraded"]["message"]
        assert found["Available"]["status"] == "True"
        warned = [event for event in world.cluster.events if event["type"] == "Warning"]
        assert len(warned) == 1, "it is told once"
        world.cluster.fault = lambda verb, of: None
        await world.settle()
        assert world.condition("Degraded") == ("False", "Healthy")

    run(story)


@pytest.mark.parametrize("status", [409, 500, 503, 0])
def test_a_request_that_fails_once_degrades_nothing(status: int) -> None:
    async def story() -> None:
        world = World()
        await create(world)
        world.now += world.settings.resync_seconds
        failed: list[str] = []

        def fault(verb: str, kind: str) -> None:
            if not failed:
                failed.append(kind)
                raise ApiError(status, "ByTheTest", kind)

        world.cluster.fault = fault
        with pytest.raises(ApiError):
            await world.once()
        await world.settle()
        assert world.condition("Degraded") == ("False", "Healthy")
        assert not [event for event in world.cluster.events if event["type"] == "Warning"]

    run(story)


def test_an_error_of_the_operator_itself_is_said_too(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        world = World()
        await create(world)
        with monkeypatch.context() as patch:
            patch.setattr(children, "service", lambda *given, **more: {}["absent"])
            world.now += world.settings.resync_seconds
            with pytest.raises(KeyError):
                await world.once()
        assert world.condition("Degraded") == ("True", "OperatorFailed")
        assert world.condition("Ready") == ("True", "JoinRunning")
        await world.settle()
        assert world.condition("Degraded") == ("False", "Healthy")
        with monkeypatch.context() as patch:
            patch.setattr(reconcile, "derive", lambda body: {}["absent"])
            world.change(lambda spec: spec.update(epoch={"interval": "7s"}))
            await world.once()
        assert world.condition("Degraded") == ("True", "OperatorFailed")

    run(story)


CLEANED = {"location": "s3://bucket/state", "onDelete": "Delete"}


async def deleted(world: World, **spec: Any) -> None:
    """A join that has run, and whose state goes with it, is being deleted."""
    world.submit(streamjoin(**{"checkpoint": CLEANED, **spec}))
    await world.settle()
    world.cluster.remove("StreamJoin", *KEY)


def cleanup(world: World) -> Object | None:
    return next(iter(world.cluster.of("Job")), None)


def end_cleanup(world: World, kind: str = "Complete") -> None:
    job = cleanup(world)
    assert job is not None
    done = {"conditions": [{"type": kind, "status": "True", "reason": "ByTheTest"}]}
    world.cluster.edit("Job", "default", job["metadata"]["name"], lambda body: body.update(status=done))


def pod_of(component: str, name: str, status: Object | None = None) -> Object:
    metadata = {"name": name, "namespace": "default", "labels": names.pod_labels("one", component)}
    return {"kind": "Pod", "metadata": metadata, "status": status or {"phase": "Running"}}


def event(world: World, reason: str) -> Object:
    (found,) = [event for event in world.cluster.events if event["reason"] == reason]
    return found


def test_with_delete_the_pods_go_first_then_the_state_and_the_streamjoin_last() -> None:
    async def story() -> None:
        world = World()
        world.cluster.put(pod_of(names.EXECUTOR, "executor-1"))
        await deleted(world, queries={"replicas": 1})
        await world.once()
        assert not world.cluster.of("Deployment"), "neither the driver's nor that of the query servers, which may mount the claim"
        assert cleanup(world) is None
        assert world.status["phase"] == "Deleting"
        assert world.condition("Reconciling") == ("True", "PodsEnding")
        world.cluster.remove("Pod", "default", "executor-1")
        await world.once()
        assert cleanup(world) is not None
        assert world.condition("Reconciling") == ("True", "StateRemoving")
        await world.once()
        assert ("StreamJoin", *KEY) in world.cluster.objects, "it waits for the Job"
        end_cleanup(world)
        await world.once()
        assert ("StreamJoin", *KEY) not in world.cluster.objects
        assert event(world, "StateRemoved")["type"] == "Normal"

    run(story)


def test_the_cleanup_needs_nothing_that_may_be_gone_and_reaches_what_the_driver_reached() -> None:
    """All children are deleted first, as where a StreamJoin is deleted in the foreground."""

    async def story() -> None:
        world = World()
        keys = {"name": "driver", "envFrom": [{"secretRef": {"name": "keys"}}], "env": [{"name": "A", "value": "b"}]}
        template = {"spec": {"containers": [keys], "serviceAccountName": "mine"}}
        await deleted(world, driver={"podTemplate": template}, epoch={"interval": "7s"})
        for kind, _, name in list(world.cluster.objects):
            if kind not in ("StreamJoin", "Job"):
                world.cluster.remove(kind, "default", name)
        await world.once()
        job = cleanup(world)
        assert job is not None
        assert "ownerReferences" not in job["metadata"]
        template = job["spec"]["template"]
        document = json.loads(template["metadata"]["annotations"][names.MANIFEST])
        assert document["spec"]["checkpoint"] == {"location": "s3://bucket/state"}
        assert document["spec"]["epoch"] == {"interval": "7s"}
        (container,) = template["spec"]["containers"]
        assert (container["envFrom"], container["env"][3:]) == (keys["envFrom"], keys["env"])
        assert template["spec"]["serviceAccountName"] == "mine"
        config = next(volume for volume in template["spec"]["volumes"] if volume["name"] == "config")
        assert config["downwardAPI"]["items"][0]["fieldRef"]["fieldPath"] == f"metadata.annotations['{names.MANIFEST}']"

    run(story)


OF_A_CLUSTER: Object = {
    "metadata": {"labels": {"team": "a"}, "annotations": {"sidecar.istio.io/inject": "false"}},
    "spec": {
        "securityContext": {"runAsUser": None, "runAsGroup": 7},
        "priorityClassName": "low",
        "schedulerName": "other",
        "runtimeClassName": "gvisor",
        "tolerations": [{"key": "spot", "operator": "Exists"}],
        "affinity": {"nodeAffinity": {}},
        "initContainers": [{"name": "first", "image": "first:1"}],
        "containers": [
            {
                "name": "driver",
                "resources": {"limits": {"cpu": "1"}},
                "securityContext": {"runAsGroup": 8},
                "livenessProbe": {"periodSeconds": 9},
            },
            {"name": "beside", "image": "beside:1"},
        ],
    },
}
"""What the rules of a cluster may want of a pod, and what only a driver has."""


def test_the_cleanup_is_as_the_driver_and_has_differently_what_its_own_template_says() -> None:
    async def story() -> None:
        world = World()
        container = {"name": "cleanup", "env": [{"name": "A", "value": "b"}]}
        differs = {"metadata": {"labels": {"team": "b"}}, "spec": {"containers": [container]}}
        await deleted(world, driver={"podTemplate": OF_A_CLUSTER}, cleanup={"podTemplate": differs})
        await world.once()
        job = cleanup(world)
        assert job is not None
        template = job["spec"]["template"]
        assert template["metadata"]["labels"] == {**names.pod_labels("one", names.CLEANUP), "team": "b"}
        assert template["metadata"]["annotations"]["sidecar.istio.io/inject"] == "false"
        assert names.MANIFEST in template["metadata"]["annotations"]
        spec = template["spec"]
        for name in ("priorityClassName", "schedulerName", "runtimeClassName", "tolerations", "affinity"):
            assert spec[name] == OF_A_CLUSTER["spec"][name]
        assert ("runAsUser" in spec["securityContext"], spec["securityContext"]["runAsGroup"]) == (False, 7)
        (container,) = spec["containers"]
        assert container["resources"]["limits"] == {"memory": "1Gi", "cpu": "1"}
        assert container["securityContext"]["runAsGroup"] == 8
        assert container["env"][3:] == [{"name": "A", "value": "b"}]
        assert not {"livenessProbe", "ports"} & set(container)
        assert "initContainers" not in spec

    run(story)


def test_a_trial_has_differently_what_its_own_template_says() -> None:
    body = streamjoin(trial={"podTemplate": {"metadata": {"labels": {"team": "b"}}, "spec": {"priorityClassName": None}}})
    body["spec"]["driver"] = {"podTemplate": OF_A_CLUSTER}
    derived, resource = derive(body), Resource.of(body)
    assert derived.manifest is not None
    assert derived.memory is not None
    template = children.deployment(resource, derived.manifest, derived.memory, Settings(), None)["spec"]["template"]
    pod = trial_pod(resource, template, "key", dict(derived.manifest.spec.trial.pod_template))
    assert pod["metadata"]["labels"] == {**names.pod_labels("one", names.TRIAL), "team": "b"}
    assert "priorityClassName" not in pod["spec"]
    assert (pod["spec"]["schedulerName"], pod["spec"]["tolerations"][-1]) == ("other", {"key": "spot", "operator": "Exists"})


def test_a_cleanup_that_has_ended_beside_a_sidecar_that_goes_on_is_complete() -> None:
    async def story() -> None:
        world = World()
        await deleted(world)
        await world.once()
        job = cleanup(world)
        assert job is not None
        ended = [{"name": "cleanup", "state": {"terminated": {"exitCode": 0}}}, {"name": "istio-proxy", "state": {"running": {}}}]
        pod = pod_of(names.CLEANUP, "of-another", {"phase": "Running", "containerStatuses": ended})
        world.cluster.put(pod)
        await world.once()
        assert world.condition("Reconciling") == ("True", "StateRemoving"), "it is another Job's"
        pod["metadata"] |= {"name": "its-own", "ownerReferences": [{"kind": "Job", "uid": job["metadata"]["uid"]}]}
        world.cluster.put(pod)
        await world.once()
        assert "StateRemoved" in world.reasons
        assert ("StreamJoin", *KEY) not in world.cluster.objects
        job = cleanup(world)
        assert job is not None
        assert job["spec"]["activeDeadlineSeconds"] == 1, "nothing of it goes on"

    run(story)


def test_the_state_of_a_join_that_never_started_is_not_touched_and_nothing_is_claimed_of_it() -> None:
    async def story() -> None:
        world = World()

        def refuse(verb: str, kind: str) -> None:
            if (verb, kind) == ("apply", "Deployment"):
                raise ApiError(422, "Invalid", "by the test")

        world.cluster.fault = refuse
        await deleted(world)
        await world.once()
        assert ("StreamJoin", *KEY) not in world.cluster.objects
        assert cleanup(world) is None
        assert "StateRemoved" not in world.reasons
        assert "no driver of this StreamJoin was seen" in event(world, "StateLeft")["message"]

    run(story)


def test_what_an_earlier_job_did_is_not_taken_for_the_removal_of_this_state() -> None:
    async def story() -> None:
        world = World()
        await deleted(world)
        await world.once()
        end_cleanup(world)
        await world.once()
        first = cleanup(world)
        assert first is not None
        world.cluster.events.clear()
        await deleted(world)
        await world.once()
        assert ("StreamJoin", *KEY) in world.cluster.objects
        assert "StateRemoved" not in world.reasons
        assert len(world.cluster.of("Job")) == 2

    run(story)


def test_pods_that_do_not_end_are_not_waited_for_for_ever_and_what_they_may_write_is_said() -> None:
    async def story() -> None:
        world = World()
        world.cluster.put(pod_of(names.DRIVER, "driver-lost"))
        await deleted(world)
        await world.once()
        assert cleanup(world) is None
        world.now += 121
        await world.once()
        world.cluster.remove("Pod", "default", "driver-lost")
        end_cleanup(world)
        await world.once()
        assert ("StreamJoin", *KEY) not in world.cluster.objects
        assert "StateRemoved" not in world.reasons
        assert "driver-lost had not ended by then and may have written more" in event(world, "StateLeft")["message"]

    run(story)


def test_a_cleanup_that_is_refused_is_said_and_the_deletion_can_be_ended() -> None:
    async def story() -> None:
        world = World()

        def refuse(verb: str, kind: str) -> None:
            if (verb, kind) == ("apply", "Job"):
                raise ApiError(403, "Forbidden", "exceeded quota")

        world.cluster.fault = refuse
        await deleted(world)
        for _ in range(3):
            await world.once()
        assert world.condition("Degraded") == ("True", "CleanupBlocked")
        message = event(world, "CleanupBlocked")["message"]
        assert "exceeded quota" in message
        assert "set spec.checkpoint.onDelete to Retain" in message
        world.change(lambda spec: spec["checkpoint"].update(onDelete="Retain"))
        await world.once()
        assert ("StreamJoin", *KEY) not in world.cluster.objects
        assert "is kept" in event(world, "StateLeft")["message"]

    run(story)


@pytest.mark.parametrize("ends", ["Failed", "never"])
def test_a_cleanup_that_fails_or_does_not_end_is_given_up_and_said(ends: str) -> None:
    async def story() -> None:
        world = World(cleanup_seconds=10.0)
        await deleted(world)
        world.wall = datetime(2026, 1, 1, 9, tzinfo=UTC)  # no operator was there for hours
        await world.once()
        assert cleanup(world) is not None
        if ends == "Failed":
            end_cleanup(world, ends)
        else:
            world.now += 131
        await world.once()
        assert ("StreamJoin", *KEY) not in world.cluster.objects
        found = event(world, "StateLeft")
        assert found["type"] == "Warning"
        assert "s3://bucket/state" in found["message"]

    run(story)


def test_a_claim_goes_with_the_join_as_the_manifest_says_last() -> None:
    async def story() -> None:
        world = World()
        claim = {"persistentVolumeClaim": "data", "size": "1Gi"}

        def owners() -> list[Object]:
            (found,) = world.cluster.of("PersistentVolumeClaim")
            return list(found["metadata"].get("ownerReferences", []))

        def finalizers() -> list[str]:
            return list(world.cluster.objects["StreamJoin", *KEY]["metadata"].get("finalizers", []))

        world.submit(streamjoin(checkpoint={**claim, "onDelete": "Delete"}))
        await world.settle()
        assert len(owners()) == 1
        world.change(lambda spec: spec["checkpoint"].update(onDelete="Retain"))
        await world.settle()
        assert owners() == [], "else the garbage collector would take it"
        world.change(lambda spec: spec["checkpoint"].update(onDelete="Delete", size="2Gi"))
        await world.settle()
        assert (len(owners()), finalizers()) == (1, [])
        world.cluster.remove("StreamJoin", *KEY)
        await world.once()
        world.cluster.remove("PersistentVolumeClaim", "default", "data") if world.cluster.of("PersistentVolumeClaim") else None
        mine = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "data", "namespace": "default"}, "spec": {}}
        world.cluster.put(mine)
        world.submit(streamjoin(checkpoint={**claim, "onDelete": "Delete"}))
        await world.settle()
        assert (owners(), finalizers()) == ([], [names.FINALIZER]), "somebody's own is emptied by a Job"

    run(story)


def test_a_busy_join_is_reported_at_most_so_often() -> None:
    async def story() -> None:
        world = World()
        await create(world)
        writes = len(world.cluster.writes)
        for step in range(30):
            world.now += 2
            world.drivers.tau = 0.3 + step / 100
            await world.once()
        assert len(world.cluster.writes) - writes <= 60 / world.settings.status_seconds + 1

    run(story)


def test_a_watch_that_died_in_silence_is_noticed_at_the_second_audit() -> None:
    world = World()
    world.submit()
    body = world.cluster.of("StreamJoin")[0]
    world.reconciler.seen.saw(body, is_watched=True)
    assert world.reconciler.seen.audit([body]) == ([], [])
    changed = world.cluster.edit("StreamJoin", *KEY, lambda found: found["spec"].update(suspend=True))
    assert world.reconciler.seen.audit([changed]) == ([], [])
    assert world.reconciler.seen.audit([changed]) == ([KEY], [])
    world.reconciler.seen.saw(changed, is_watched=True)
    assert world.reconciler.seen.audit([changed]) == ([], [])
    assert world.reconciler.seen.audit([]) == ([], [])
    assert world.reconciler.seen.audit([]) == ([], [KEY])


def test_joins_of_namespaces_that_are_not_selected_are_as_if_they_were_not_there() -> None:
    def join(namespace: str, version: int, **spec: Any) -> Object:
        body = streamjoin("one", namespace, **spec)
        body["metadata"]["resourceVersion"] = str(version)
        return body

    seen = Seen(selects_namespaces=True)
    for namespace in "ab":
        seen.saw(join(namespace, 1), is_watched=True)
    assert seen.bodies == {}
    assert seen.audit([join(namespace, 2) for namespace in "ab"]) == ([], [])
    assert seen.admit("a") == [("a", "one")]
    assert seen.select({"b", "c"}) == ([("b", "one")], [("a", "one")]), "a watch of namespaces missed that"
    assert set(seen.bodies) == {("b", "one")}
    seen.saw(join("a", 3))  # what is answered to a write that was under way
    assert set(seen.bodies) == {("b", "one")}
    seen.saw(join("a", 4), is_watched=True)
    assert seen.select({"a"}) == ([("a", "one")], [("b", "one")])
    assert seen.bodies["a", "one"]["metadata"]["resourceVersion"] == "4"
    seen.saw(join("b", 5, operatorClass="blue"), is_watched=True)
    assert seen.select({"a", "b"}) == ([], []), "it is another operator's by now"
    seen.forget(("a", "one"))
    assert seen.dismiss("a") == []
    assert seen.admit("a") == [], "it was deleted"


def test_a_paused_join_is_looked_at_and_left_as_it_is() -> None:
    async def story() -> None:
        world = World()
        world.submit()
        await world.settle()
        writes = len(world.cluster.writes)
        world.change(lambda spec: spec.update(paused=True, suspend=True, workers={**spec["workers"], "min": 3, "perExecutor": 2}))
        world.cluster.remove("Service", "default", "sj-one")
        writes = len(world.cluster.writes)
        await world.settle()
        assert [write for write in world.cluster.writes[writes:] if "StreamJoin" not in str(write)] == []
        assert world.drivers.wishes == []
        assert world.cluster.objects["Deployment", "default", "sj-one"]["spec"]["replicas"] == 1
        assert (world.status["phase"], world.status["workers"]) == ("Paused", 1)
        assert (world.condition("Available"), world.condition("Reconciling")) == (("True", "JoinRunning"), ("False", "Paused"))
        assert world.condition("Ready") == ("False", "Paused"), "what else has changed waits"
        world.drivers.problem = "it does not answer"
        await world.settle()
        assert world.condition("Available") == ("False", "DriverUnreachable"), "what runs is looked at"
        world.drivers.problem = None
        world.change(lambda spec: spec.update(paused=False, suspend=False))
        await world.settle()
        assert ("Service", "default", "sj-one") in world.cluster.objects
        assert [wish["workers"] for wish in world.drivers.wishes] == [3]

    run(story)


def test_a_join_that_is_paused_from_the_start_is_not_started_and_can_be_deleted() -> None:
    async def story() -> None:
        world = World()
        world.submit(streamjoin(paused=True))
        await world.settle()
        assert world.cluster.children() == []
        assert (world.status["phase"], world.condition("Ready")) == ("Paused", ("False", "Paused"))
        assert world.status["workers"] == 0

        world.submit(streamjoin(paused=False, checkpoint={"location": "s3://bucket/state/one", "onDelete": "Delete"}))
        await world.settle()
        world.change(lambda spec: spec.update(paused=True))
        await world.settle()
        world.cluster.edit("StreamJoin", *KEY, lambda found: found["metadata"].update(deletionTimestamp="2026-01-01T00:00:00Z"))
        await world.once()
        assert "Deployment sj-one" not in world.cluster.children()
        assert world.status["phase"] == "Deleting"

    run(story)


def test_an_operator_takes_the_joins_of_its_class_and_no_others() -> None:
    async def story() -> None:
        world = World(operator_class="blue")
        world.submit()
        await world.once()
        assert world.cluster.children() == []
        assert world.reconciler.seen.phases() == {}
        world.change(lambda spec: spec.update(operatorClass="blue"))
        await world.settle()
        assert made(world) == CHILDREN
        world.change(lambda spec: spec.update(operatorClass="green", suspend=True))
        writes = len(world.cluster.writes)
        await world.once()
        assert len(world.cluster.writes) == writes
        assert world.reconciler.seen.statuses() == {}, "its metrics are another's now"
        assert world.reconciler.seen.audit(world.cluster.of("StreamJoin")) == ([], [])

    run(story)
