"""Executors that run get other resources: what is decided of a change, and how it is carried out, by a kubelet that is played here."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from apiserver import ApiServer
from operator_cluster import PATHS, Cluster, install
from operator_parts import FakeDriver, Object, streamjoin
from stepped_cluster import SteppedCluster, stepped
from streamjoin.manifest.memory import HEAP, RESIZED
from streamjoin.manifest.model import Resources, Workers
from streamjoin_operator import names
from streamjoin_operator.api import POD, Api
from streamjoin_operator.derived import derive
from streamjoin_operator.driver_files import files_of
from streamjoin_operator.memory import MIB
from streamjoin_operator.pod_templates import executor_resources
from streamjoin_operator.resizing import Decision, Way, asks_for, decide, lacks, progress

WORKERS: Object = {"min": 1, "max": 8, "capacityTuples": 1000, "resources": {"cpu": "1", "memory": "1536Mi"}}
LARGER: Object = {"workers": {"resources": {"cpu": "1500m", "memory": "2Gi"}}}
SMALLER: Object = {"workers": {"resources": {"cpu": "1", "memory": "1Gi"}}}
SIZE = {"requests": {"cpu": "1500m", "memory": "2Gi"}, "limits": {"memory": "2Gi"}}
BEFORE = {"requests": {"cpu": "1", "memory": "1536Mi"}, "limits": {"memory": "1536Mi"}}
NO_ROOM = "Node didn't have enough capacity: memory, requested: 2147483648, capacity: 1610612736"


def size(cpu: str, memory: str) -> Resources:
    return Resources.model_validate({"cpu": cpu, "memory": memory})


class TestWhatIsDecided:
    @pytest.mark.parametrize(
        ("after", "facts", "way", "why"),
        [
            (size("1", "2Gi"), {}, Way.NOTHING, ""),
            (size("1000m", "2048Mi"), {}, Way.NOTHING, ""),
            (size("2", "2Gi"), {}, Way.RESIZE, "cpu 1 to 2, memory 2Gi to 2Gi"),
            (size("500m", "2Gi"), {}, Way.RESIZE, "cpu 1 to 500m"),
            (size("1", "4Gi"), {}, Way.RESIZE, "memory 2Gi to 4Gi"),
            (size("2", "1Gi"), {}, Way.RESTART, "memory is lowered from 2Gi to 1Gi"),
            (size("2", "2Gi"), {"is_served": False}, Way.RESTART, "the API server has no pods/resize"),
            (size("2", "2Gi"), {"refused": "Pod QOS Class may not change"}, Way.RESTART, "Pod QOS Class may not change"),
            (size("1", "2Gi"), {"refused": NO_ROOM}, Way.RESTART, NO_ROOM),
        ],
    )
    def test_of_a_change(self, after: Resources, facts: Any, way: Way, why: str) -> None:
        found = decide(size("1", "2Gi"), after, **facts)
        assert found.way is way
        assert why in found.why

    def test_nothing_says_nothing(self) -> None:
        assert decide(size("1", "2Gi"), size("1", "2Gi")) == Decision(Way.NOTHING)

    @pytest.mark.parametrize("per_executor", [1, 3])
    def test_the_heap_of_an_executor_depends_on_no_resources_and_its_size_is_what_spark_is_told(self, per_executor: int) -> None:
        for memory in ("2Gi", "4000Mi", "3000000000"):
            workers = {**WORKERS, "perExecutor": per_executor, "resources": {"cpu": "500m", "memory": memory}}
            needs = derive(streamjoin(workers=workers)).memory
            assert needs is not None
            assert needs.heap_mib == HEAP // MIB
            asked = executor_resources(Workers.model_validate(workers))
            assert asked["limits"] == {"memory": f"{needs.heap_mib + needs.overhead_mib}Mi"}
            assert asked["requests"] == {"cpu": f"{500 * per_executor}m", **asked["limits"]}


def executor(asks: Object, has: Object | None = None, *conditions: Object, name: str = "a") -> Object:
    """One that runs, if it has anything."""
    status: Object = {"phase": "Running", "conditions": list(conditions)}
    if has is not None:
        status["containerStatuses"] = [{"name": "executor", "state": {"running": {}}, "resources": has}]
    return {"metadata": {"name": name}, "spec": {"containers": [{"name": "executor", "resources": asks}]}, "status": status}


def told(kind: str, reason: str, message: str) -> Object:
    return {"type": kind, "status": "True", **({"reason": reason, "message": message} if reason else {})}


class TestHowFarKubeletsAre:
    def test_quantities_are_compared_as_amounts_and_what_others_ask_for_is_theirs(self) -> None:
        asks = {"requests": {"cpu": "1.5", "memory": "2048Mi", "nvidia.com/gpu": "1"}, "limits": {"memory": 2 << 30, "nvidia.com/gpu": "1"}}
        assert asks_for(executor(asks), SIZE)
        assert not asks_for(executor(BEFORE), SIZE)
        assert not asks_for(executor({}), SIZE)

    def test_one_that_runs_has_what_its_kubelet_says_and_one_that_has_yet_to_start_what_it_asks_for(self) -> None:
        pods = [executor(SIZE, SIZE), executor(SIZE, BEFORE), executor(SIZE), executor(BEFORE, BEFORE)]
        assert (progress(pods, SIZE).lacking, progress(pods, SIZE).executors) == (2, 4)

    def test_what_kubelets_say_is_repeated_and_only_what_is_infeasible_is_for_good(self) -> None:
        later = executor(SIZE, BEFORE, told("PodResizePending", "Deferred", "Node didn't have enough resource: cpu"))
        wrong = executor(SIZE, BEFORE, told("PodResizeInProgress", "Error", "cgroup is busy"), name="b")
        never = executor(SIZE, BEFORE, told("PodResizePending", "Infeasible", NO_ROOM), name="c")
        begun = executor(SIZE, BEFORE, told("PodResizeInProgress", "", ""), name="d")
        found = progress([later, wrong, begun], SIZE)
        assert found.said == (
            "pod a: PodResizePending: Deferred: Node didn't have enough resource: cpu",
            "pod b: PodResizeInProgress: Error: cgroup is busy",
        )
        assert (found.lacking, found.infeasible) == (3, None)
        assert progress([later, never], SIZE).infeasible == f"pod c: PodResizePending: Infeasible: {NO_ROOM}"

    def test_more_memory_than_is_wanted_is_left_as_it_is_and_so_is_what_a_kubelet_says_of_it(self) -> None:
        """Of executors that are all given more, some may not get it (``enlarge_step``)."""
        more = {"requests": {"cpu": "1500m", "memory": "3Gi"}, "limits": {"memory": "3Gi"}}
        cores = {**more, "requests": {"cpu": "2", "memory": "3Gi"}}
        never = told("PodResizePending", "Infeasible", NO_ROOM)
        enough = [executor(more, more), executor(more, SIZE, never), executor(more)]
        assert not any(lacks(pod, SIZE) for pod in enough)
        assert (progress(enough, SIZE).lacking, progress(enough, SIZE).infeasible) == (0, None)
        assert all(lacks(pod, SIZE) for pod in (executor(more, BEFORE, never), executor(cores, cores), executor(BEFORE)))
        assert not lacks(executor(SIZE, BEFORE), SIZE), "it is asked for"
        assert lacks(executor(cores, SIZE), SIZE), "and so are cores that are not wanted any more"


@pytest.fixture
def world(api_server: ApiServer, driver: FakeDriver) -> Iterator[SteppedCluster]:
    install(api_server)
    with stepped(Cluster(api_server, driver)) as found:
        yield found


class Kubelet:
    """Of the executors of a world."""

    def __init__(self, world: SteppedCluster) -> None:
        self.world = world

    def status(self, has: Object, *conditions: Object) -> Object:
        running = {"name": "executor", "state": {"running": {"startedAt": self.world.at}}, "ready": True, "started": True}
        containers = [{**running, "image": "i", "imageID": "", "restartCount": 0, "resources": has}]
        return {"phase": "Running", "containerStatuses": containers, "conditions": [{"type": "Ready", "status": "True"}, *conditions]}

    def start(self) -> str:
        """One that Spark makes as the driver was begun with. Returns its path."""
        return self.world.executor_pod(self.status(BEFORE), "node-1", BEFORE)

    def say(self, path: str, has: Object, *conditions: Object) -> None:
        self.world.admin.patch(f"{path}/status", {"status": self.status(has, *conditions)})

    def asked(self, path: str) -> Object:
        resources: Object = self.world.admin.get(path)["spec"]["containers"][0]["resources"]
        return resources


def arguments(world: SteppedCluster) -> list[str]:
    """Of the driver, about its executors."""
    given = world.cluster.child("Deployment")["spec"]["template"]["spec"]["containers"][0]["args"]
    return [argument for argument in given if argument.startswith("--executor-")]


def revision_of(world: SteppedCluster) -> str:
    """Of the driver's pod, which another one makes anew."""
    return str(world.cluster.child("Deployment")["spec"]["template"]["metadata"]["annotations"][names.REVISION])


def note(world: SteppedCluster) -> str | None:
    found: str | None = world.cluster.child("Deployment")["metadata"]["annotations"].get(names.BEGUN)
    return found


def message(world: SteppedCluster, kind: str) -> str:
    return str(world.condition(kind).get("message"))


def restarts(world: SteppedCluster, story: Object) -> None:
    """A change by which the driver begins with other resources."""
    before = revision_of(world)
    world.cluster.change(story)
    world.until("the driver is replaced", lambda: has_begun_anew(world, before), 60)
    world.settle()
    assert note(world) is None


def has_begun_anew(world: SteppedCluster, revision: str) -> bool:
    for pod in world.cluster.trials():
        world.cluster.end_trial(pod)
    return revision_of(world) != revision


@pytest.mark.usefixtures("_resizes")
@pytest.mark.apiserver
def test_executors_that_run_and_those_that_come_later_get_what_the_next_driver_begins_with(world: SteppedCluster) -> None:
    world.runs(workers=WORKERS)
    kubelet, begun = Kubelet(world), arguments(world)
    first = kubelet.start()
    world.cluster.change({**LARGER, "maintenance": {"windows": [{"start": "02:00", "end": "02:01"}]}})
    world.until("it is asked for", lambda: asks_for(world.admin.get(first), SIZE), 30)
    world.settle()
    requests = {"cpu": "1500m", "memory": "2Gi", "ephemeral-storage": "1Gi"}
    assert kubelet.asked(first) == {"requests": requests, "limits": {"memory": "2Gi"}}
    assert world.condition("Reconciling")["reason"] == "Resizing"
    assert "1 of 1 executors have yet to get cpu 1500m and memory 2Gi for each worker" in message(world, "Ready")
    assert RESIZED not in driver_files(world)
    kubelet.say(first, SIZE)
    world.cluster.ready()  # its controller sees the note
    world.until("it is done", lambda: world.condition("Ready").get("reason") == "JoinRunning", 30)
    assert world.cluster.status()["change"]["class"] == "Live"
    assert json.loads(driver_files(world)[RESIZED]) == {"cpu": "1500m"}, "2Gi is the default"
    assert arguments(world) == begun
    second = kubelet.start()
    world.until("one that comes later is resized", lambda: asks_for(world.admin.get(second), SIZE), 30)
    kubelet.say(second, SIZE)
    world.settle()
    seen = [world.admin.get(path) for path in (first, second)]
    world.pass_seconds(60)
    assert [world.admin.get(path) for path in (first, second)] == seen, "what is as it should be is left alone"
    annotated, revision = {"metadata": {"annotations": {names.RESTART: "now"}}}, revision_of(world)
    world.admin.patch(f"{world.cluster.streamjoins}/one", annotated)
    world.until("the next driver begins", lambda: has_begun_anew(world, revision), 60)
    assert {"--executor-cpu=1500m", "--executor-overhead-mib=1792"} <= set(arguments(world))
    world.cluster.ready()
    world.settle()
    assert (note(world), RESIZED in driver_files(world)) == (None, False)


def driver_files(world: SteppedCluster) -> Object:
    """Of the driver that runs."""
    name = files_of(world.cluster.child("Deployment")["spec"]["template"])
    files: Object = world.admin.get(f"{PATHS['ConfigMap'].format(world.namespace)}/{name}")["data"]
    return files


@pytest.mark.usefixtures("_resizes")
@pytest.mark.apiserver
def test_what_was_asked_for_is_taken_back_and_where_that_is_less_memory_the_driver_starts_anew(world: SteppedCluster) -> None:
    """Each time, also the second: with the arguments that it had before."""
    world.runs(workers=WORKERS)
    kubelet, begun = Kubelet(world), arguments(world)
    path = kubelet.start()
    for cpu in ("2", "1"):
        world.cluster.change({"workers": {"resources": {"cpu": cpu}}})
        world.until("it is asked for", lambda cpu=cpu: kubelet.asked(path)["requests"]["cpu"] == cpu, 30)
    world.settle()
    assert arguments(world) == begun
    assert note(world) is not None, "Spark makes others as it was told; they are looked at"
    for _ in range(2):
        revision = revision_of(world)
        world.cluster.change({"workers": {"resources": {"memory": "2Gi"}}})
        world.until("it is asked for", lambda path=path: kubelet.asked(path)["limits"] == {"memory": "2Gi"}, 30)
        assert revision_of(world) == revision
        world.cluster.change({"workers": {"resources": {"memory": "1536Mi"}}})
        world.until("the driver is replaced", lambda revision=revision: has_begun_anew(world, revision), 60)
        assert (arguments(world), note(world)) == (begun, None)
        world.remove(path)
        path = kubelet.start()
        world.cluster.ready()
        world.settle()


@pytest.mark.usefixtures("_resizes")
@pytest.mark.apiserver
def test_what_no_node_has_room_for_restarts_the_driver_once_it_may(world: SteppedCluster) -> None:
    world.runs(workers=WORKERS, maintenance={"windows": [{"start": "02:00", "end": "02:01"}]})
    kubelet, begun = Kubelet(world), arguments(world)
    path = kubelet.start()
    world.cluster.change(LARGER)
    world.until("it is asked for", lambda: asks_for(world.admin.get(path), SIZE), 30)
    kubelet.say(path, BEFORE, told("PodResizePending", "Infeasible", NO_ROOM))
    world.until("it waits for the window", lambda: world.condition("Reconciling").get("reason") == "MaintenanceAwaited", 30)
    world.settle()
    assert f"spec.workers.resources: pods are made anew: pod sj-one-exec-1: PodResizePending: Infeasible: {NO_ROOM}" in message(
        world, "Ready"
    )
    assert world.condition("Degraded")["reason"] == "ResizeHeld"
    assert NO_ROOM in message(world, "Degraded")
    assert arguments(world) == begun
    restarts(world, {"maintenance": None})
    assert world.cluster.status()["change"]["class"] == "Restart"


@pytest.mark.usefixtures("_resizes")
@pytest.mark.apiserver
def test_what_the_api_server_refuses_and_memory_that_is_lowered_restart_the_driver_at_once(world: SteppedCluster) -> None:
    """With a limit of its CPU the pod is Guaranteed, and would not be any more."""
    container = {"name": "executor", "resources": {"limits": {"cpu": "1"}}}
    world.runs(workers=WORKERS, executor={"podTemplate": {"spec": {"containers": [container]}}})
    kubelet = Kubelet(world)
    path = kubelet.start()
    asked = kubelet.asked(path)
    restarts(world, {"workers": {"resources": {"cpu": "500m"}}})
    assert "Pod QOS Class may not change" in world.cluster.status()["change"]["message"]
    assert kubelet.asked(path) == asked
    world.cluster.ready()
    world.settle()
    restarts(world, SMALLER)
    assert "memory is lowered from 1536Mi to 1Gi" in world.cluster.status()["change"]["message"]
    assert kubelet.asked(path) == asked


@pytest.mark.apiserver
def test_an_api_server_that_resizes_no_pods_restarts_the_driver_and_that_is_said(
    world: SteppedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of Kubernetes 1.31 or 1.32, or a newer one that is taken for it."""
    serves = Api.serves

    async def older(self: Api, kind: Any) -> bool:
        return kind is not POD.resize and await serves(self, kind)

    monkeypatch.setattr(Api, "serves", older)
    world.runs(workers=WORKERS)
    kubelet = Kubelet(world)
    path = kubelet.start()
    asked = kubelet.asked(path)
    restarts(world, LARGER)
    assert "the API server has no pods/resize, which Kubernetes has from 1.33 on" in world.cluster.status()["change"]["message"]
    assert world.cluster.status()["change"]["class"] == "Restart"
    assert kubelet.asked(path) == asked
