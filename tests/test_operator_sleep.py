"""Joins that sleep: when they fall asleep, what wakes them, and what is said meanwhile. Against a cluster in memory, but for the last."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest

from operator_cluster import PATHS, Cluster
from operator_parts import Object, parsed_once, streamjoin
from streamjoin_operator import names, plugin
from streamjoin_operator.api import ApiError
from streamjoin_operator.reasons import Reason
from streamjoin_operator.sleeping import BLIND_SECONDS, IDLE, SCHEDULE, Sleep, has_found, is_blind, next_sleep
from test_operator_reconcile import AT_NIGHT, BY_DAY, KEY, NIGHT, World, create, end_watcher, run, sleep
from waiting import wait_for

WATCHER = ("Deployment", "default", "sj-one-watcher")


@pytest.fixture(autouse=True, scope="module")
def _parsed_once() -> Iterator[None]:
    with parsed_once():
        yield


def replicas(world: World) -> int:
    return int(world.cluster.objects["Deployment", "default", "sj-one"]["spec"]["replicas"])


def is_asleep(world: World) -> bool:
    return (replicas(world), WATCHER in world.cluster.objects) == (0, True)


def is_awake(world: World) -> bool:
    return (replicas(world), WATCHER in world.cluster.objects) == (1, False)


def message(world: World, kind: str) -> str:
    return str(next(found["message"] for found in world.status["conditions"] if found["type"] == kind))


async def asleep(world: World, **spec: Any) -> None:
    world.submit(streamjoin(**spec))
    await world.settle()
    await sleep(world)
    assert is_asleep(world)


def blind(world: World, seconds: float) -> None:
    """Its controller has had no watcher that is ready for so long."""
    since = (world.wall - timedelta(seconds=seconds)).isoformat()
    unavailable = {"conditions": [{"type": "Available", "status": "False", "lastTransitionTime": since}]}
    world.cluster.edit(*WATCHER, lambda body: body.update(status=unavailable))


def test_a_join_that_sleeps_has_a_watcher_and_is_settled() -> None:
    async def story() -> None:
        world = World()
        key = {"name": "KEY", "valueFrom": {"secretKeyRef": {"name": "broker", "key": "key"}}}
        driver = {"spec": {"nodeSelector": {"disk": "ssd"}, "containers": [{"name": "driver", "env": [key], "resources": {}}]}}
        await asleep(world, driver={"podTemplate": driver}, workers={"min": 2, "max": 2, "capacityTuples": 100_000})
        assert [world.condition(kind) for kind in ("Ready", "Reconciling", "Stalled", "Degraded", "Available")] == [
            ("True", "SuspendedWhenIdle"),
            ("False", "SuspendedWhenIdle"),
            ("False", "NothingRefused"),
            ("False", "SuspendedWhenIdle"),
            ("False", "SuspendedWhenIdle"),
        ]
        status = world.status
        text = "no stream had had a record for 30m at 2026-01-01T00:00:00Z (spec.idle.after); the first record wakes the join"
        assert status["sleep"] == {"reason": "SuspendedWhenIdle", "since": "2026-01-01T00:00:00Z", "message": text}
        assert message(world, "Ready") == text
        assert (status["phase"], status["workers"], status["observedGeneration"]) == ("Suspended", 0, 2)
        assert not world.cluster.of("PodDisruptionBudget")
        assert "SuspendedWhenIdle" in world.reasons
        template = world.cluster.objects[WATCHER]["spec"]["template"]
        (container,) = template["spec"]["containers"]
        assert (container["image"], container["args"][0]) == ("engine:1", "watch-sources")
        assert key in container["env"], "it reaches what the driver does"
        assert container["resources"]["requests"] == {"cpu": "50m", "memory": "256Mi", "ephemeral-storage": "64Mi"}, "and is small"
        assert template["spec"]["nodeSelector"] == {"disk": "ssd"}
        assert template["spec"]["automountServiceAccountToken"] is False
        spec = json.loads(template["metadata"]["annotations"][names.MANIFEST])["spec"]
        assert not {"idle", "suspendDuring", "driver"} & set(spec)
        writes = len(world.cluster.writes)
        for _ in range(4):
            world.now += world.settings.resync_seconds
            await world.settle()
        assert len(world.cluster.writes) == writes, "it rests"
        requests = world.cluster.requests
        assert [await world.once() for _ in range(3)] == [world.settings.start_seconds] * 3
        assert world.cluster.requests == requests, "and costs the API server nothing"

    run(story)


def test_the_watcher_is_as_its_pod_template_says() -> None:
    async def story() -> None:
        world = World()
        await create(world)
        theirs = {"spec": {"containers": [{"name": "watcher", "resources": {"requests": {"cpu": "10m"}}}]}}
        world.change(lambda spec: spec.update(idle={"after": "30m", "podTemplate": theirs}))
        world.drivers.idle = 1800.0
        await world.settle()
        (container,) = world.cluster.objects[WATCHER]["spec"]["template"]["spec"]["containers"]
        assert container["resources"]["requests"] == {"cpu": "10m", "memory": "256Mi", "ephemeral-storage": "64Mi"}

    run(story)


@pytest.mark.parametrize("ends", ["a record", "nobody asks", "idle", "change", "annotation", "the watcher's Deployment stays away"])
def test_a_join_that_sleeps_is_woken(ends: str) -> None:
    async def story() -> None:
        world = World()
        await asleep(world)
        if ends == "a record":
            end_watcher(world, 0)
            by = "there is something to read"
        elif ends == "nobody asks":
            end_watcher(world, 3)
            world.wall += timedelta(seconds=2 * BLIND_SECONDS)
            blind(world, BLIND_SECONDS - 1)
            assert await world.once() == world.settings.start_seconds
            assert world.condition("Degraded") == ("True", "WatcherFails")
            assert "sj-one-watcher-1: exit code 3: a source cannot be read" in message(world, "Degraded")
            assert is_asleep(world)
            blind(world, BLIND_SECONDS)
            assert [await world.once(), await world.once()] == [0, world.settings.start_seconds]
            by = "its sources could not be asked for a while: 1 of 1 watchers: pod sj-one-watcher-1: exit code 3"
        elif ends == "idle":
            world.change(lambda spec: spec.pop("idle"))
            by = "spec.idle is not there any more"
        elif ends == "change":
            world.change(lambda spec: spec["workers"].update(capacityTuples=50_000))
            by = "what the driver is started for has changed"
        elif ends == "annotation":
            world.cluster.edit("StreamJoin", *KEY, lambda body: body["metadata"].update(annotations={names.RESTART: "now"}))
            by = "what the driver is started for has changed"
        else:
            world.cluster.remove(*WATCHER)
            world.wall += timedelta(seconds=BLIND_SECONDS)
            by = "its sources could not be asked for a while"
        await world.settle()
        assert is_awake(world)
        assert world.condition("Ready") == ("True", "JoinRunning")
        assert world.status["sleep"]["wokenBy"].startswith(by)
        assert world.reasons.count("Woken") == 1
        assert not world.cluster.of("Pod")
        await sleep(world)
        assert is_asleep(world), "and it falls asleep again"
        assert "wokenBy" not in world.status["sleep"]

    run(story)


@pytest.mark.parametrize("change", ["expectedRate", "after", "workers", "nothing"])
def test_what_the_driver_is_not_started_for_wakes_nobody(change: str) -> None:
    async def story() -> None:
        world = World()
        await asleep(world)
        changes: dict[str, Callable[[Object], Any]] = {
            "expectedRate": lambda spec: spec["streams"][0].update(expectedRate=5),
            "after": lambda spec: spec["idle"].update(after="2h"),
            "workers": lambda spec: spec["workers"].update(min=2),
            "nothing": lambda spec: None,
        }
        world.change(changes[change])
        world.reconciler = world.operator()
        await world.settle()
        assert is_asleep(world)
        assert world.condition("Ready") == ("True", "SuspendedWhenIdle")
        assert "Woken" not in world.reasons

    run(story)


@pytest.mark.parametrize("why", ["shorter", "unknown", "not asked for", "unreachable", "refused", "maintenance"])
def test_a_join_does_not_sleep_unless_its_driver_says_that_it_has_been_idle_for_so_long(why: str) -> None:
    async def story() -> None:
        world = World()
        await create(world)
        world.drivers.idle = {"shorter": 1799.9, "unknown": None}.get(why, 1e6)
        world.drivers.problem = "it does not answer" if why == "unreachable" else None
        if why == "refused":
            world.change(lambda spec: spec["joins"][0].update(condition="orders.amount >"))
        if why == "maintenance":
            window = {"windows": [{"start": "02:00", "end": "04:00", "days": ["Sat"]}]}
            world.change(lambda spec: (spec.update(maintenance=window), spec["workers"].update(capacityTuples=50_000)))
        if why != "not asked for":
            world.change(lambda spec: spec.update(idle={"after": "30m"}))
        await world.settle()
        assert is_awake(world)

    run(story)


def test_a_join_goes_on_where_its_watcher_cannot_be_made() -> None:
    async def story() -> None:
        world = World()
        await create(world)
        apply = world.cluster.apply

        async def refusing(desired: Object) -> Object:
            if desired["metadata"]["name"] == WATCHER[2]:
                raise ApiError(403, "Forbidden", "exceeded quota: pods")
            return await apply(desired)

        world.cluster.apply = refusing  # type: ignore[method-assign]
        world.change(lambda spec: spec.update(idle={"after": "30m"}))
        world.drivers.idle = 1e6
        await world.settle()
        assert is_awake(world)
        assert world.condition("Degraded") == ("True", "ApplyRefused")
        assert (world.condition("Available"), "sleep" in world.status) == (("True", "JoinRunning"), False)
        world.cluster.apply = apply  # type: ignore[method-assign]
        await world.settle()
        assert is_asleep(world)

    run(story)


def test_a_record_wakes_a_join_whose_spec_is_refused_meanwhile() -> None:
    async def story() -> None:
        world = World()
        await asleep(world)
        world.change(lambda spec: spec["joins"][0].update(condition="orders.amount >"))
        await world.settle()
        assert (is_asleep(world), world.condition("Ready")) == (True, ("False", "InvalidSpec"))
        end_watcher(world, 0)
        assert await world.once() is not None
        await world.settle()
        assert is_awake(world)
        assert (world.condition("Available"), world.condition("Degraded")) == (("True", "JoinRunning"), ("True", "InvalidSpec"))

    run(story)


def test_suspend_takes_the_place_of_sleep_and_resuming_runs_the_join() -> None:
    async def story() -> None:
        world = World()
        await asleep(world)
        world.change(lambda spec: spec.update(suspend=True))
        await world.settle()
        assert (replicas(world), WATCHER in world.cluster.objects, world.condition("Ready")) == (0, False, ("True", "Suspended"))
        assert world.status["sleep"]["wokenBy"] == "spec.suspend is true"
        world.change(lambda spec: spec.update(suspend=False))
        await world.settle()
        assert is_awake(world)

    run(story)


def test_a_join_that_is_paused_goes_on_sleeping() -> None:
    async def story() -> None:
        world = World()
        await asleep(world)
        world.change(lambda spec: spec.update(paused=True))
        end_watcher(world, 0)
        await world.settle()
        assert (is_asleep(world), world.status["phase"]) == (True, "Paused")
        world.change(lambda spec: spec.update(paused=False))
        await world.settle()
        assert is_awake(world)

    run(story)


def test_in_the_times_of_its_schedule_a_join_is_suspended_whatever_there_is() -> None:
    async def story() -> None:
        world = World()
        world.submit(streamjoin(suspendDuring=NIGHT))
        world.wall = BY_DAY
        await world.settle()
        assert is_awake(world)
        world.wall = AT_NIGHT
        await world.settle()
        assert (replicas(world), WATCHER in world.cluster.objects) == (0, False)
        assert world.condition("Ready") == ("True", "SuspendedBySchedule")
        assert message(world, "Ready") == "it is in 20:00 to 06:00, Etc/UTC (spec.suspendDuring); the state is kept"
        assert await world.once() == world.settings.poll_seconds
        world.change(lambda spec: spec["joins"][0].update(condition="orders.amount >"))
        await world.settle()
        assert replicas(world) == 0, "as suspend, the schedule is heeded where the rest is refused"
        world.wall = BY_DAY
        await world.settle()
        assert is_awake(world)
        assert world.status["sleep"]["wokenBy"] == "it is no time of spec.suspendDuring any more"

    run(story)


def test_a_schedule_takes_the_place_of_sleep() -> None:
    async def story() -> None:
        world = World()
        world.wall = BY_DAY
        await asleep(world, suspendDuring=NIGHT)
        world.wall = AT_NIGHT
        await world.settle()
        assert (replicas(world), WATCHER in world.cluster.objects) == (0, False)
        world.wall = BY_DAY
        await world.settle()
        assert is_awake(world)

    run(story)


def test_a_deletion_with_the_state_waits_for_the_watcher() -> None:
    async def story() -> None:
        world = World()
        await asleep(world, checkpoint={"location": "s3://b/one", "onDelete": "Delete"})
        end_watcher(world, 1)
        world.cluster.remove("StreamJoin", *KEY)
        await world.once()
        assert WATCHER not in world.cluster.objects

    run(story)


BEFORE = Sleep(IDLE, "2026-01-01T00:00:00Z", "")


@pytest.mark.parametrize(
    ("before", "seen", "reason", "by"),
    [
        (None, {}, None, None),
        (None, {"idle": "30m"}, IDLE, None),
        (None, {"idle": "30m", "window": "w"}, SCHEDULE, None),
        (None, {"idle": "30m", "suspend": True}, None, None),
        (BEFORE, {}, IDLE, None),
        (BEFORE, {"wakes": "a record"}, IDLE, "a record"),
        (BEFORE, {"wakes": "a record", "window": "w"}, SCHEDULE, None),
        (BEFORE, {"suspend": True, "window": "w"}, IDLE, "spec.suspend is true"),
        (BEFORE.woken(0.0, "x"), {}, IDLE, "x"),
        (BEFORE.woken(0.0, "x"), {"idle": "30m"}, IDLE, None),
    ],
)
def test_next_sleep(before: Sleep | None, seen: Object, reason: Reason | None, by: str | None) -> None:
    given = {"suspend": False, "window": None, "wakes": None, "idle": None} | seen
    after = next_sleep(before, 1.8e9, **given)
    assert (None if after is None else after.why) is reason
    assert (None if after is None else after.woken_by or None) == by
    deployment = {"metadata": {"annotations": {} if after is None else {names.SLEEP: after.note}}}
    assert Sleep.of(deployment) == after


def container(*, ended: int, restarts: int = 1) -> Object:
    return {"name": "watcher", "restartCount": restarts, "state": {}, "lastState": {"terminated": {"exitCode": ended}}}


def pod(*containers: Object, **metadata: Any) -> Object:
    return {"metadata": metadata, "status": {"containerStatuses": list(containers)}}


def test_what_pods_say() -> None:
    assert not has_found([pod()])
    assert not has_found([pod(container(ended=1)), pod(container(ended=0) | {"name": "proxy"})])
    assert has_found([pod(container(ended=1)), pod(container(ended=0))])
    assert not has_found([pod(container(ended=0), deletionTimestamp="2026-01-01T00:00:00Z")]), "it is of the sleep before"
    at = 1_767_225_600.0
    ready = {"status": {"readyReplicas": 1}}
    assert not is_blind(ready, [pod(container(ended=1, restarts=5))], BEFORE, at + 1e6)
    assert is_blind(ready, [pod(container(ended=1, restarts=6))], BEFORE, at)
    assert [is_blind(None, [], BEFORE, at + seconds) for seconds in (BLIND_SECONDS - 1, BLIND_SECONDS)] == [False, True]


@pytest.mark.parametrize("note", ["", "{", "[]", "{}", '{"reason": "No", "since": "", "message": ""}'])
def test_a_note_that_somebody_has_spoilt_is_none(note: str) -> None:
    assert Sleep.of({"metadata": {"annotations": {names.SLEEP: note}}}) is None


def test_the_plugin_shows_since_when_it_sleeps_or_what_woke_it_and_wakes_it() -> None:
    sent: list[Any] = []
    body: Object = {"metadata": {"name": "one", "namespace": "default"}, "status": {"sleep": BEFORE.shown | {"message": "no record"}}}

    def kubectl(words: Any) -> str:
        sent.append(words)
        return json.dumps(body)

    shown = plugin._ACTIONS["status"](kubectl, plugin._parser().parse_args(["status", "one"]))
    assert "sleeps              since 2026-01-01T00:00:00Z: no record" in shown
    plugin._ACTIONS["resume"](kubectl, plugin._parser().parse_args(["resume", "one"]))
    patch = json.loads(sent[-1][-1])
    assert (patch["spec"], list(patch["metadata"]["annotations"])) == ({"suspend": False}, [names.RESTART])
    body["status"]["sleep"] |= {"wokenAt": "2026-01-01T01:00:00Z", "wokenBy": "a record"}
    shown = plugin._ACTIONS["status"](kubectl, plugin._parser().parse_args(["status", "one"]))
    assert "slept               since 2026-01-01T00:00:00Z, woken at 2026-01-01T01:00:00Z: a record" in shown
    plugin._ACTIONS["resume"](kubectl, plugin._parser().parse_args(["resume", "one"]))
    assert json.loads(sent[-1][-1]) == {"spec": {"suspend": False}}
    body["status"]["sleep"] = {"reason": "SuspendedBySchedule", "since": "2026-01-01T00:00:00Z", "message": "it is night"}
    with pytest.raises(plugin.Refused, match="it is night"):
        plugin._ACTIONS["resume"](kubectl, plugin._parser().parse_args(["resume", "one"]))


@pytest.mark.apiserver
def test_a_join_sleeps_and_is_woken_with_the_documented_rights(cluster: Cluster) -> None:
    """The real API server, whose watches bring what happens to the watcher."""
    watcher = f"{PATHS['Deployment'].format(cluster.namespace)}/sj-one-watcher"
    with cluster.operator(poll_seconds=0.5):
        cluster.run(idle={"after": "30m"})
        cluster.driver.idle_seconds = 1800.0
        wait_for("it falls asleep", lambda: cluster.child("Deployment")["spec"]["replicas"] == 0)
        cluster.ready()
        wait_for("it is settled", lambda: cluster.condition("Ready") == ("True", "SuspendedWhenIdle"))
        assert cluster.admin.exists(watcher)
        cluster.driver.idle_seconds = None
        labels = names.pod_labels("one", names.WATCHER)
        pods = f"/api/v1/namespaces/{cluster.namespace}/pods"
        spec = {"containers": [{"name": "watcher", "image": "engine:1"}]}
        cluster.admin.create(pods, {"metadata": {"name": "sj-one-watcher-1", "labels": labels}, "spec": spec})
        ended = {"terminated": {"exitCode": 0, "reason": "Completed"}}
        status = {"name": "watcher", "image": "engine:1", "imageID": "", "ready": False, "restartCount": 0, "state": ended}
        patch = {"status": {"phase": "Running", "containerStatuses": [status]}}
        cluster.admin.patch(f"{pods}/sj-one-watcher-1/status", patch, "application/merge-patch+json")
        wait_for("it is woken", lambda: cluster.child("Deployment")["spec"]["replicas"] == 1)
        wait_for("the watcher goes", lambda: not cluster.admin.exists(watcher))
        cluster.ready()
        wait_for("it runs", lambda: cluster.condition("Ready") == ("True", "JoinRunning"))
        assert cluster.status()["sleep"]["wokenBy"] == "there is something to read"
        wait_for("it is told", lambda: {"SuspendedWhenIdle", "Woken"} <= {event["reason"] for event in cluster.events()})
