"""Executors get more memory instead of more workers (``spec.scaling.vertical``): a cluster, a join and kubelets in memory, and operators
that are killed."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

import scaled_join
from cases import some
from operator_parts import Object, parsed_once, story, streamjoin
from scaled_join import ScaledJoin
from streamjoin.elastic.decision import Decision, Kind
from streamjoin.elastic.ledger import Record
from streamjoin.elastic.planner import make_plan
from streamjoin.manifest.memory import RESIZED
from streamjoin.manifest.quantity import Memory
from streamjoin.scheme.statistics import SideStatistics, Statistics
from streamjoin.sizing import headroom_of
from streamjoin_operator import children, names
from streamjoin_operator.api import ApiError
from streamjoin_operator.derived import derive
from streamjoin_operator.driver_files import files_of, manifest_of
from streamjoin_operator.enlarge_step import PATIENCE_SECONDS
from streamjoin_operator.reconcile import Reconciler
from streamjoin_operator.scaling_step import TAKEOVER_SECONDS
from test_autoscale import KEY, POLL, World

MIB = 1 << 20
WIDTH = 40.0
"""Bytes of a held tuple."""
WORKERS: Object = {"min": 1, "max": 8, "resources": {"cpu": "1", "memory": "2Gi"}, "maxMemory": "8Gi"}
SCALING: Object = {"vertical": "Enforce"}
SMALL = 523 * MIB
"""The capacity that follows from 2Gi."""
FEW, MANY = (share * SMALL / WIDTH / 2 for share in (0.3, 0.85))
"""Tuples of each stream: with 2Gi, one worker is so full."""
KUBELET_SECONDS = 60.0
"""After so long the driver sees a file that has changed."""
NO_ROOM = "Node didn't have enough capacity: memory"


class FollowingJoin(ScaledJoin):
    """Its capacity follows from the files that the operator has given its driver."""

    def __init__(self, clock: Callable[[], float], tuples: float, workers: int, spec: Object) -> None:
        super().__init__(clock, tuples, workers)
        job = derive(streamjoin(**spec)).job
        assert job is not None
        self._job = job
        self.plan = make_plan(None, self.statistics_now, self.main, **self._limits(workers)).plan
        self.began_with: str | None = None
        """The files' name."""
        self.changed: tuple[str | None, float] = (None, 0.0)
        self.resized: Object = {}
        """As it has read it."""
        self.reads_changes = True

    @property
    def statistics_now(self) -> Statistics:
        return Statistics((SideStatistics(self.tuples, None, WIDTH), SideStatistics(self.tuples, None, WIDTH)))

    def metrics(self) -> str:
        return f'{super().metrics()}streamjoin_capacity_bytes{{name="one"}} {self._job.capacity.amount}\n'

    @property
    def memory_bytes(self) -> int:
        """By which it plans."""
        return self._job.memory_bytes

    def look(self, name: str, files: Object) -> bool:
        """Read the files; whether that is another driver."""
        is_other, self.began_with = name != self.began_with, name
        resized = files.get(RESIZED)
        if resized != self.changed[0] or is_other:
            self.changed = resized, self._clock()
        if is_other or (self.reads_changes and self._clock() - self.changed[1] >= KUBELET_SECONDS):
            self.resized = {} if resized is None else {RESIZED: resized}
        job = derive(manifest_of({name: value for name, value in files.items() if name != RESIZED} | self.resized)).job
        assert job is not None
        self._job = job
        return is_other


class Cluster(World):
    """With executors, as Spark makes them, and their kubelets."""

    join: FollowingJoin

    def __init__(self, tuples: float = FEW, workers: int = 1, **spec: Any) -> None:
        super().__init__()
        spec = {"scaling": SCALING, **spec, "workers": WORKERS | {"min": workers}}
        self.join = FollowingJoin(lambda: self.now, tuples, workers, spec)
        self.given(lambda before: before.update(spec))
        self.reconciler = self.operator()
        self.cluster.known_kinds.add("Pod")
        self.refuses: dict[str, Object] = {}
        """By executor, what its kubelet says instead of resizing it."""
        self.templates: list[Object] = []
        """Of drivers."""

    async def once(self, reconciler: Reconciler | None = None) -> float | None:
        self.spark()  # after the last scrape: Prometheus has yet to see what has become of the capacity
        after = await super().once(reconciler)
        while after == 0.0:
            after = await super().once(reconciler)
        self.cluster.end_trials()
        self.spark()
        return after

    def spark(self) -> None:
        deployment = self.cluster.objects.get(("Deployment", "default", "sj-one"))
        if deployment is None:
            return
        template = deployment["spec"]["template"]
        name = files_of(template)
        assert name is not None
        if self.join.look(name, self.cluster.objects["ConfigMap", "default", name]["data"]):
            self.templates.append(template)
            for pod in self.executors:
                self.cluster.remove("Pod", "default", pod["metadata"]["name"])
        given = dict(each.removeprefix("--").split("=", 1) for each in template["spec"]["containers"][0]["args"] if "=" in each)
        memory = f"{int(given['executor-heap-mib']) + int(given['executor-overhead-mib'])}Mi"
        asks = {"requests": {"cpu": given["executor-cpu"], "memory": memory}, "limits": {"memory": memory}}
        wanted = self.join.workers if self.join.wanted is None else self.join.wanted.scheme.tasks
        for number in range(len(self.executors), wanted):
            metadata = {"name": f"exec-{number}", "namespace": "default", "labels": names.pod_labels("one", names.EXECUTOR)}
            containers = [{"name": names.EXECUTOR, "resources": asks}]
            self.cluster.put({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"containers": containers}})
        for pod in self.executors:
            self.cluster.edit("Pod", "default", pod["metadata"]["name"], self._kubelet)

    def _kubelet(self, pod: Object) -> None:
        before, said = pod.get("status"), self.refuses.get(pod["metadata"]["name"])
        (asks,) = (container["resources"] for container in pod["spec"]["containers"])
        has = asks if before is None or said is None else before["containerStatuses"][0]["resources"]
        conditions = [] if said is None or has == asks else [{"type": "PodResizePending", "status": "True", **said}]
        runs = {"name": names.EXECUTOR, "state": {"running": {}}, "resources": has}
        pod["status"] = {"phase": "Running", "containerStatuses": [runs], "conditions": conditions}

    @property
    def executors(self) -> list[Object]:
        return [pod for pod in self.cluster.of("Pod") if pod["metadata"]["labels"].get(names.COMPONENT) == names.EXECUTOR]

    @property
    def memory(self) -> list[Memory]:
        """What each executor has."""
        return [Memory.parse(pod["status"]["containerStatuses"][0]["resources"]["limits"]["memory"]) for pod in self.executors]

    @property
    def stored(self) -> Object | None:
        """What is kept of the memory that was decided."""
        found: Object | None = self._document()["enlarged"]
        return found

    def _document(self) -> Object:
        found = self.cluster.objects["ConfigMap", "default", names.ledger_name("one")]
        document: Object = json.loads(found["data"][children.LEDGER_KEY])
        return document

    @property
    def enlarging(self) -> list[Record]:
        """The decisions for more memory."""
        return [record for record in self.ledger if record.decision.kind is Kind.ENLARGE]

    def given(self, change: Callable[[Object], Any]) -> None:
        """Somebody changes the spec."""
        self.edit(lambda body: change(body["spec"]))

    def works(self) -> Memory:
        """The memory by which the driver plans, its executors have and the next one begins; all of them the same."""
        deployment = self.cluster.objects["Deployment", "default", "sj-one"]
        data = self.cluster.objects["ConfigMap", "default", files_of(deployment["spec"]["template"]) or ""]["data"]
        next_one = Memory.parse(manifest_of(data)["spec"]["workers"].get("resources", {}).get("memory", "2Gi"))
        (memory,) = {*self.memory, Memory(self.join.memory_bytes), next_one}
        return memory


@pytest.fixture(autouse=True, scope="module")
def _parsed_once() -> Iterator[None]:
    with parsed_once(scaled_join):
        yield


async def filled(tuples: float = MANY, seconds: float = 600, **given: Any) -> Cluster:
    """A join that is half empty for a while, and then full."""
    world = Cluster(**given)
    await world.run(120)
    world.join.tuples = tuples
    await world.run(seconds)
    return world


@story
async def test_a_full_worker_gets_more_memory_and_no_worker_is_added() -> None:
    world = await filled()
    memory = world.works()
    assert Memory.parse("2Gi") < memory <= Memory.parse("8Gi")
    assert (world.join.wishes, len(world.templates), len(world.executors)) == ([], 1, 1)
    assert max(world.join.tau) <= 0.7
    (record,) = world.enlarging
    assert record.realised is not None
    assert record.realised.tau_max == pytest.approx(max(world.join.tau))
    assert record.decision.prediction is not None
    assert record.realised.tau_max == pytest.approx(record.decision.prediction.tau_max, abs=0.01)
    (shown,) = world.status["decisions"]
    assert (shown["rule"], shown["outcome"], shown["workersBefore"], shown["workersAfter"]) == ("vertical", "Applied", 1, 1)
    assert f"with {memory} of memory instead of 2Gi 1 worker should be filled to" in shown["message"]
    assert (world.reasons.count("Enlarging"), world.reasons.count("Enlarged")) == (1, 1)
    assert world.condition("Ready")[:2] == ("True", "JoinRunning")
    assert world.status["memory"].endswith(f"of {memory.bytes // MIB:,}Mi")
    assert world.status["change"]["class"] == "Live"
    assert "to what was decided (spec.scaling.vertical)" in world.status["change"]["message"]
    assert world.cluster.objects["StreamJoin", *KEY]["spec"]["workers"] == WORKERS, "the spec is its author's"
    writes = len(world.cluster.writes)
    await world.run(120)
    assert len(world.cluster.writes) <= writes + 2, "the ledger's holds, and measurements"


@story
async def test_it_is_switched_on_while_a_join_runs_and_waits_for_no_maintenance() -> None:
    world = Cluster(scaling={}, maintenance={"windows": [{"start": "02:00", "end": "02:01"}]})
    await world.run(60)
    world.given(lambda spec: spec.update(scaling=SCALING))
    await world.run(60)
    assert world.status["change"]["class"] == "Ignored"
    world.join.tuples = MANY
    await world.run(300)
    assert world.works() > Memory.parse("2Gi")
    assert (world.join.wishes, len(world.templates)) == ([], 1)


@story
async def test_executors_that_come_later_and_the_next_driver_have_it_and_an_operator_that_starts_anew_changes_nothing() -> None:
    world = await filled()
    memory = world.works()
    world.reconciler = world.operator()
    await world.run(60)
    assert (world.works(), len(world.templates)) == (memory, 1)
    world.given(lambda spec: spec["workers"].update(min=3))
    await world.run(120)
    assert (world.memory, len(world.templates)) == ([memory] * 3, 1)
    world.edit(lambda body: body["metadata"].update(annotations={names.RESTART: "now"}))
    world.reconciler = world.operator()
    await world.run(120)
    assert len(world.templates) == 2
    assert f"--executor-overhead-mib={memory.bytes // MIB - 256}" in world.templates[1]["spec"]["containers"][0]["args"]
    noted = world.cluster.objects["Deployment", "default", "sj-one"]["metadata"]["annotations"]
    assert (world.works(), noted.get(names.BEGUN)) == (memory, None)


@story
async def test_more_load_takes_another_step_and_then_workers() -> None:
    world = await filled()
    first = world.works()
    world.join.tuples = 1.6 * MANY
    await world.run(600)
    assert first < world.works() < Memory.parse("8Gi")
    assert (world.join.wishes, len(world.enlarging)) == ([], 2)
    world.join.tuples = 12 * MANY
    await world.run(600)
    assert world.join.workers > 1
    assert set(world.memory) <= {world.works()}
    assert len(world.templates) == 1


@story
async def test_what_somebody_says_of_the_memory_later_wins_and_so_does_that_it_is_off() -> None:
    for change, after, drivers in (
        (lambda spec: spec["workers"].update(resources={"cpu": "1", "memory": "4Gi"}), "4Gi", 1),
        (lambda spec: spec["workers"].update(resources={"cpu": "1", "memory": "2304Mi"}), "2304Mi", 2),
        (lambda spec: spec["scaling"].update(vertical="Off"), "2Gi", 2),
        (lambda spec: spec["scaling"].update(vertical="Recommend"), "2Gi", 2),
        (lambda spec: spec["workers"].update(maxMemory="2304Mi"), "2Gi", 2),
    ):
        world = await filled(1.3 * MANY)
        world.join.tuples = FEW
        decided = world.works()
        assert Memory.parse("2304Mi") < decided < Memory.parse("4Gi")
        world.given(change)
        await world.run(180)
        assert (str(world.works()), len(world.templates), world.stored) == (after, drivers, None)


@story
async def test_another_edit_keeps_it() -> None:
    world = await filled()
    memory = world.works()
    world.given(lambda spec: spec["workers"].update(resources={"cpu": "2", "memory": "2Gi"}))
    await world.run(180)
    assert (world.works(), len(world.templates)) == (memory, 1)
    assert {pod["spec"]["containers"][0]["resources"]["requests"]["cpu"] for pod in world.executors} == {"2"}
    world.given(lambda spec: spec["scaling"].update(tau2=0.75))
    await world.run(180)
    assert (world.works(), len(world.templates)) == (memory, 2)


@story
async def test_where_a_node_has_no_room_workers_are_added_and_it_is_not_tried_again() -> None:
    world = Cluster()
    world.refuses["exec-0"] = {"reason": "Infeasible", "message": NO_ROOM}
    await world.run(120)
    world.join.tuples = MANY
    await world.run(600)
    assert world.join.workers > 1
    assert (str(world.works()), len(world.templates)) == ("2Gi", 1)
    (record,) = world.enlarging
    assert NO_ROOM in (record.failed or "")
    assert world.reasons.count("EnlargingFailed") == 1
    assert next(shown["outcome"] for shown in world.status["decisions"]) == "Failed"
    assert world.stored is not None
    assert NO_ROOM in world.stored["refused"]
    world.reconciler = world.operator()
    world.join.tuples = 4 * MANY
    await world.run(600)
    assert len(world.enlarging) == 1
    assert not [pod for pod in world.executors[1:] if pod["spec"]["containers"][0]["resources"]["limits"]["memory"] != "2048Mi"]


@story
async def test_where_one_of_several_nodes_has_no_room_the_others_keep_what_they_have_got() -> None:
    """Also where executors are held at something, and nobody starts the driver anew for what its kubelet says."""
    world = Cluster(2 * FEW, 2)
    await world.run(120)
    world.given(lambda spec: spec["workers"].update(resources={"cpu": "2", "memory": "2Gi"}))
    await world.run(120)
    world.refuses["exec-1"] = {"reason": "Infeasible", "message": NO_ROOM}
    world.join.tuples = 2 * MANY
    await world.run(600)
    assert len(world.templates) == 1
    assert world.memory[0] > world.memory[1] == Memory.parse("2Gi")
    assert world.join.workers > 2
    assert world.condition("Ready")[:2] == ("True", "JoinRunning")


@story
async def test_a_resize_that_is_put_off_for_too_long_is_given_up() -> None:
    world = Cluster()
    world.refuses["exec-0"] = {"reason": "Deferred", "message": NO_ROOM}
    await world.run(120)
    world.join.tuples = MANY
    await world.run(POLL, lambda: bool(world.enlarging))
    began = world.now
    await world.run(600, lambda: bool(world.join.wishes))
    assert PATIENCE_SECONDS <= world.now - began <= PATIENCE_SECONDS + 8 * POLL
    assert "1 of 1 executors have not got it within 60 s: pod exec-0: PodResizePending: Deferred: " in (world.enlarging[0].failed or "")


@story
async def test_a_driver_that_makes_no_use_of_it_gets_workers() -> None:
    world = Cluster()
    world.join.reads_changes = False
    await world.run(120)
    world.join.tuples = MANY
    await world.run(TAKEOVER_SECONDS)
    assert world.join.wishes == []
    await world.run(300)
    assert world.join.workers > 1
    assert "the driver plans with 523.0 MiB of tuples still" in (world.enlarging[0].failed or "")
    assert len(world.enlarging) == 1


@pytest.mark.parametrize("cannot", ["resize", "mode"])
def test_where_pods_cannot_be_resized_or_it_is_only_recommended_workers_are_added(cannot: str) -> None:
    async def told() -> None:
        world = Cluster(scaling=SCALING if cannot == "resize" else {"vertical": "Recommend"})
        if cannot == "resize":
            world.cluster.known_kinds.clear()
        await world.run(120)
        world.join.tuples = MANY
        await world.run(600)
        assert world.join.workers > 1
        assert (str(world.works()), world.enlarging, world.stored) == ("2Gi", [], None)
        (decision,) = [record.decision for record in world.ledger if record.decision.kind is Kind.ALLOCATE]
        said = next(verdict for verdict in decision.verdicts if verdict.rule.value == "vertical")
        assert ("no pods/resize" in said.sentence) == (cannot == "resize")
        (shown,) = world.status["decisions"]
        (event,) = [event for event in world.cluster.events if event["reason"] == "Allocating"]
        for text in (shown["message"], event["message"]):
            assert ("of memory instead of 2Gi" in text) == text.endswith("memory is only recommended") == (cannot == "mode")

    asyncio.run(told())


def outcome(world: Cluster) -> Object:
    decided: list[Decision] = [replace(record.decision, at=0.0, age_seconds=None, inputs=None) for record in world.enlarging]
    return {
        "memory": world.works(),
        "drivers": len(world.templates),
        "wishes": len(world.join.wishes),
        "decided": [decision.enlargement and decision.enlargement.memory for decision in decided],
        "ready": world.condition("Ready")[:2],
        "stored": {name: value for name, value in (world.stored or {}).items() if name != "since"},
        "came true": [record.realised is not None for record in world.enlarging],
    }


async def disturbed(kill_at: int | None = None, fault: tuple[int, bool] | None = None) -> Cluster:
    """``fault``: the number of the request that fails, and whether it was carried out."""
    world = Cluster()
    await world.run(120)
    world.join.tuples = MANY
    world.steps.clear()
    world.kill_at, first = kill_at, world.cluster.requests

    def fail(verb: str, kind: str) -> None:
        if fault is not None and world.cluster.requests == first + fault[0] + 1:
            raise ApiError(0, "ClientConnectorError", "by the test")

    if fault is not None and fault[1]:
        world.cluster.after = fail
    elif fault is not None:
        world.cluster.fault = fail
    await world.run(600)
    return world


def test_killed_before_any_step_it_ends_the_same_and_no_driver_starts_anew() -> None:
    undisturbed = asyncio.run(disturbed())
    expected, steps = outcome(undisturbed), undisturbed.steps
    assert (expected["drivers"], expected["wishes"]) == (1, 0)
    last = steps.index("ledger", steps.index("files", steps.index("enlarge")))
    acting = range(steps.index("ledger") - 8, last + 60)
    for kill_at in some(acting, of=8):
        found = outcome(asyncio.run(disturbed(kill_at)))
        assert found == expected, f"killed before step {kill_at}, {steps[kill_at]}"


def test_whatever_request_fails_it_ends_the_same_and_no_driver_starts_anew() -> None:
    expected = outcome(asyncio.run(disturbed()))
    for number in some(range(60), of=8):
        for is_lost in (False, True):
            found = outcome(asyncio.run(disturbed(fault=(number, is_lost))))
            assert found == expected, f"request {number}"


@pytest.mark.parametrize("per_executor", [1, 4])
def test_the_capacity_that_is_foreseen_is_that_of_a_job_with_the_memory(per_executor: int) -> None:
    workers = WORKERS | {"perExecutor": per_executor}
    for memory in ("1Gi", "2Gi", "3328Mi", "16Gi"):
        job = derive(streamjoin(workers=workers | {"resources": {"memory": memory}, "maxMemory": "32Gi"})).job
        assert job is not None
        headroom = headroom_of(job, 1 << 35)
        assert headroom is not None
        assert headroom.capacity(Memory.parse(memory).bytes) == job.capacity.amount
    assert derive(streamjoin(workers=WORKERS)).job.capacity.amount == SMALL  # type: ignore[union-attr]
