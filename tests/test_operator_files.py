"""What a driver reads when its container is started again is what it was started with, whatever the operator does meanwhile.

Each test asks what a driver's pod reads in the way the kubelet would: by the ConfigMap that the Deployment's pod template names.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest

from memory_cluster import MemoryCluster
from operator_parts import Object, parsed_once, streamjoin
from streamjoin_operator import children, driver_files, names
from streamjoin_operator.api import ApiError
from test_operator_reconcile import World, create

DEPLOYMENT = ("Deployment", "default", "sj-one")


@pytest.fixture(autouse=True, scope="module")
def _parsed_once() -> Iterator[None]:
    with parsed_once():
        yield


def run(story: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(story())  # type: ignore[arg-type]


def map_of(spec: Object) -> str:
    """The ConfigMap that a pod of this specification mounts."""
    return str(next(volume["configMap"]["name"] for volume in spec["volumes"] if "configMap" in volume))


def read_by_driver(cluster: MemoryCluster) -> Object:
    """What a driver's container finds that is started now."""
    name = map_of(cluster.objects[DEPLOYMENT]["spec"]["template"]["spec"])
    return dict(cluster.objects["ConfigMap", "default", name]["data"])


def started(cluster: MemoryCluster) -> Object:
    """Of the Deployment's pod template, what a driver is started with. The cluster in memory keeps no empty fields, as of ``emptyDir``."""
    spec = cluster.objects[DEPLOYMENT]["spec"]["template"]["spec"]
    return {"containers": spec["containers"], "files": map_of(spec)}


def maps(world: World) -> set[str]:
    return {found["metadata"]["name"] for found in world.cluster.of("ConfigMap")} - {"sj-one", names.ledger_name("one")}


def drivers_pod(world: World, name: str) -> None:
    """A driver's pod of the Deployment's template, as its controller would make it."""
    template = world.cluster.objects[DEPLOYMENT]["spec"]["template"]
    metadata = {**template["metadata"], "name": name, "namespace": "default"}
    world.cluster.put({"kind": "Pod", "metadata": metadata, "spec": template["spec"]})


def test_a_driver_whose_successor_is_refused_reads_what_it_was_started_with() -> None:
    async def story() -> None:
        world = World()
        await create(world)
        before, revision = read_by_driver(world.cluster), world.cluster.objects[DEPLOYMENT]["metadata"]["annotations"][names.REVISION]

        def refuse(verb: str, kind: str) -> None:
            if (verb, kind) in (("apply", "Deployment"), ("dry-run", "Deployment")):
                raise ApiError(422, "Invalid", "by the test")

        world.cluster.fault = refuse
        world.change(lambda spec: spec.update(epoch={"interval": "7s"}, executor={"podTemplate": {"spec": {"priorityClassName": "high"}}}))
        await world.settle()
        assert world.condition("Degraded") == ("True", "ApplyRefused")
        assert read_by_driver(world.cluster) == before
        assert before["revision"] == revision, "or the driver would wait for its files"
        world.cluster.fault = lambda verb, kind: None
        await world.settle()
        after = read_by_driver(world.cluster)
        assert json.loads(after["streamjoin.yaml"])["spec"]["epoch"] == {"interval": "7s"}
        assert "high" in after["executor.yaml"]

    run(story)


def test_a_driver_reads_nothing_that_an_operator_of_another_release_has_written(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        world = World()
        await create(world)
        before, before_started = read_by_driver(world.cluster), started(world.cluster)
        original = driver_files.driver_files

        def of_another_release(*arguments: Any) -> driver_files.Files:
            files = original(*arguments)
            document = json.loads(files[driver_files.MANIFEST_KEY])
            document["spec"]["ofAnotherRelease"] = True
            return {**files, driver_files.MANIFEST_KEY: json.dumps(document), driver_files.EXECUTOR_KEY: "{}"}

        for module in ("reconciliation", "children"):
            monkeypatch.setattr(f"streamjoin_operator.{module}.driver_files", of_another_release)
        world.reconciler = world.operator()
        world.now += world.settings.resync_seconds
        await world.settle()
        assert read_by_driver(world.cluster) == before
        assert started(world.cluster) == before_started
        world.change(lambda spec: spec["workers"].update(max=16))
        await world.settle()
        followed = read_by_driver(world.cluster)
        assert json.loads(followed["streamjoin.yaml"])["spec"]["workers"]["max"] == 16
        assert "ofAnotherRelease" not in followed["streamjoin.yaml"], "of what is applied live, the limits alone are changed"
        assert followed["executor.yaml"] == before["executor.yaml"]
        world.change(lambda spec: spec.update(epoch={"interval": "7s"}))
        await world.settle()
        assert "ofAnotherRelease" in read_by_driver(world.cluster)["streamjoin.yaml"], "a new driver reads the new form"

    run(story)


def test_what_a_driver_does_not_take_over_while_it_runs_is_not_written_for_it() -> None:
    async def story() -> None:
        world = World()
        await create(world)
        before = read_by_driver(world.cluster)
        world.change(lambda spec: (spec["streams"][0].update(expectedRate=200.0), spec.update(scheme={"model": "square"})))
        await world.settle()
        assert world.status["change"]["class"] == "Live"
        assert read_by_driver(world.cluster) == before

    run(story)


def test_files_that_somebody_spoils_or_deletes_are_put_right() -> None:
    async def story() -> None:
        world = World()
        await create(world)
        before, (name,) = read_by_driver(world.cluster), maps(world)
        for spoil in (
            lambda body: body["data"].update({"revision": "x"}),
            lambda body: body["data"].pop("revision"),
            lambda body: body["data"].pop("streamjoin.yaml"),
            lambda body: body["data"].update({"streamjoin.yaml": "[]"}),
        ):
            world.cluster.edit("ConfigMap", "default", name, spoil)
            world.now += world.settings.resync_seconds
            await world.settle()
            assert read_by_driver(world.cluster) == before
        world.cluster.remove("ConfigMap", "default", name)
        world.now += world.settings.resync_seconds
        await world.settle()
        assert read_by_driver(world.cluster) == before

    run(story)


def test_files_are_kept_as_long_as_a_pod_reads_them_and_then_deleted() -> None:
    async def story() -> None:
        world = World()
        await create(world)
        (first,) = maps(world)
        drivers_pod(world, "driver-1")
        world.change(lambda spec: spec.update(epoch={"interval": "7s"}))
        await world.settle()
        assert first in maps(world)
        assert len(maps(world)) == 2
        world.cluster.remove("Pod", "default", "driver-1")
        world.now += world.settings.resync_seconds
        await world.settle()
        assert first not in maps(world)
        assert maps(world) == {map_of(world.cluster.objects[DEPLOYMENT]["spec"]["template"]["spec"])}

    run(story)


def test_a_manifest_that_is_restored_finds_its_files() -> None:
    async def story() -> None:
        world = World()
        await create(world)
        drivers_pod(world, "driver-1")
        before, first = read_by_driver(world.cluster), maps(world)
        world.change(lambda spec: spec.update(epoch={"interval": "7s"}))
        await world.settle()
        world.change(lambda spec: spec.pop("epoch"))
        await world.settle()
        assert read_by_driver(world.cluster) == before
        world.cluster.remove("Pod", "default", "driver-1")
        world.now += world.settings.resync_seconds
        await world.settle()
        assert maps(world) == first

    run(story)


def test_names_follow_from_content(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(children.secrets, "token_urlsafe", lambda size: "the same in every world")

    async def name_of(body: Object) -> str:
        world = World()
        world.submit(body)
        await world.settle()
        (name,) = maps(world)
        return name

    def of(**spec: Any) -> str:
        return asyncio.run(name_of(streamjoin(**spec)))

    workers = streamjoin()["spec"]["workers"]
    assert of() == of()
    assert of() == of(workers={**workers, "max": 16}), "limits are changed in place"
    assert len({of(), of(epoch={"interval": "7s"}), of(workers={**workers, "capacityTuples": 7})}) == 3
