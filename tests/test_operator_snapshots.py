"""StreamJoinSnapshots: what becomes of one while its driver runs, does not, refuses or forgets; whatever dies between any two requests."""

from __future__ import annotations

import asyncio
import base64
import itertools
import json
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml

from apiserver import ApiError as ServerError
from kstatus import computed
from operator_cluster import SNAPSHOTS, Cluster
from operator_parts import streamjoin
from streamjoin.manifest import check
from streamjoin_operator import api, names, plugin, plugin_snapshots
from streamjoin_operator.api import ApiError
from streamjoin_operator.driver import DriverClient, Kept
from streamjoin_operator.reasons import Reason
from streamjoin_operator.seen import Seen
from streamjoin_operator.settings import Settings
from streamjoin_operator.snapshot_model import definition, resource
from streamjoin_operator.snapshots import FINALIZER, Snapshots
from test_api import Served
from waiting import wait_for

Object = dict[str, Any]
KEY = ("default", "nightly")
DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"


class Killed(BaseException):
    """An operator that died."""


class World:
    """An API server with one snapshot, and a driver that makes savepoints, both in memory. Each request may kill who makes it."""

    def __init__(self) -> None:
        self.snapshot: Object | None = {
            **resource("nightly", "one"),
            "metadata": {"name": "nightly", "namespace": "default", "uid": "u", "generation": 1, "resourceVersion": "1"},
            "status": {"observedGeneration": -1},
        }
        self.join: Object | None = streamjoin()
        self.join["metadata"]["resourceVersion"] = "1"
        self.is_ready, self.commits = True, True
        self.refusal = ""
        self.kept: dict[str, int] = {}
        self.asked: list[str] = []
        self.writes = 0
        self.dies_at: int | None = None
        self._requests = itertools.count()
        self._versions = itertools.count(2)

    def request(self) -> None:
        if next(self._requests) == self.dies_at:
            raise Killed

    async def get(self, kind: Any, namespace: str, name: str) -> Object | None:
        self.request()
        if kind is api.SECRET:
            return {"data": {"token": base64.b64encode(b"token").decode()}}
        return self.join

    async def patch(self, kind: Any, namespace: str, name: str, body: Object) -> Object:
        self.request()
        if self.snapshot is None:
            raise ApiError(404, "NotFound", name)
        metadata = dict(body.get("metadata") or {})
        version = metadata.pop("resourceVersion", None)
        if version not in (None, self.snapshot["metadata"]["resourceVersion"]):
            raise ApiError(409, "Conflict", name)
        changed = json.loads(json.dumps(self.snapshot))
        changed["metadata"] |= metadata | {"resourceVersion": str(next(self._versions))}
        changed["status"] |= body.get("status") or {}
        self.writes += 1
        self.snapshot = changed
        self.finish_deletion()
        self.request()  # its answer may be lost
        return dict(changed)

    async def savepoint(self, method: str, url: str, token: str, name: str) -> Kept:
        self.request()
        assert token == "token"
        self.asked.append(method)
        if method == "PUT" and self.refusal:
            return Kept(422, {"error": self.refusal}, self.refusal)
        if method == "PUT" and name not in self.kept:
            if self.commits:
                self.kept[name] = 7
            return Kept(202, {"state": "asked"})
        if name not in self.kept:
            return Kept(404, {"error": "no"}, "no")
        if method == "DELETE":
            self.kept.pop(name)
            return Kept(202, {"state": "deleting"})
        self.request()
        return Kept(200, {"state": "kept", "epoch": self.kept[name], "bytes": 10, "committedAt": 1.8e9})

    def delete(self) -> None:
        assert self.snapshot is not None
        self.snapshot["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
        self.finish_deletion()

    def finish_deletion(self) -> None:
        assert self.snapshot is not None
        if self.snapshot["metadata"].get("deletionTimestamp") and not self.snapshot["metadata"].get("finalizers"):
            self.snapshot = None

    def operator(self, **settings: Any) -> Snapshots:
        """One that has just started, and has seen what there is."""
        seen = Seen(settings.pop("operator_class", ""))
        made = Snapshots(self, self, Settings(**settings), seen, lambda: datetime(2026, 1, 1, tzinfo=UTC))  # type: ignore[arg-type]
        if self.join is not None:
            seen.saw(self.join)
            if self.is_ready:
                seen.deployments["default", "one"] = {"metadata": {}, "status": {"readyReplicas": 1}}
        if self.snapshot is not None:
            made.bodies[KEY] = self.snapshot
        return made

    def reconcile(self, operator: Snapshots | None = None, *, most: int = 20) -> float | None:
        """Until it is at rest."""
        operator = operator or self.operator()
        after: float | None = 0.0
        for _ in range(most):
            if self.snapshot is None:
                return None
            operator.bodies[KEY] = self.snapshot
            after = asyncio.run(operator.reconcile(KEY))
            if after is None or after > 1.0:
                break
        return after

    def condition(self, kind: str = "Ready") -> tuple[str, str, str]:
        assert self.snapshot is not None
        (found,) = (one for one in self.snapshot["status"]["conditions"] if one["type"] == kind)
        return found["status"], found["reason"], found["message"]


def test_a_snapshot_is_made_and_says_what_is_kept_and_nothing_is_written_again() -> None:
    world = World()
    assert world.reconcile() == Settings().resync_seconds
    assert world.snapshot is not None
    assert world.snapshot["metadata"]["finalizers"] == [FINALIZER]
    assert world.condition() == ("True", "SnapshotKept", Reason.SnapshotKept.value)
    status = {name: value for name, value in world.snapshot["status"].items() if name != "conditions"}
    location = "s3://bucket/state/one"
    assert status == {"observedGeneration": 1, "epoch": 7, "bytes": 10, "committedAt": "2027-01-15T08:00:00Z", "location": location}
    assert computed(world.snapshot)[0] == "Current"
    writes = world.writes
    world.reconcile()
    assert (world.writes, world.asked.count("PUT")) == (writes, 2), "asked until it was there, and then only looked at"


def test_a_driver_that_does_not_run_is_asked_when_it_does() -> None:
    world = World()
    world.is_ready = False
    assert world.reconcile() == Settings().poll_seconds
    assert world.condition() == ("False", "SnapshotWaits", "its driver does not run now, and is asked when it does")
    assert computed(world.snapshot)[0] == "InProgress"
    world.is_ready = True
    world.reconcile()
    assert world.condition()[0] == "True"
    world.is_ready = False
    world.reconcile()
    assert world.condition()[:2] == ("True", "SnapshotKept"), "it is there all the same"


def test_a_driver_that_has_not_committed_yet_is_asked_again_soon() -> None:
    world = World()
    world.commits = False
    assert world.reconcile(most=3) == 1.0
    assert world.condition() == ("False", "SnapshotAsked", Reason.SnapshotAsked.value)
    assert world.condition("Reconciling")[0] == "True"


def test_what_the_driver_refuses_is_said_in_its_words() -> None:
    world = World()
    world.refusal = "spec.streams[0].source: rate by Spark, as a stream: is removed once it is read"
    world.reconcile()
    assert world.condition() == ("False", "SnapshotRefused", world.refusal)
    assert computed(world.snapshot)[0] == "Failed"


def test_a_savepoint_that_somebody_has_deleted_is_not_made_again() -> None:
    world = World()
    world.reconcile()
    world.kept.clear()
    world.reconcile()
    assert world.condition()[:2] == ("False", "SnapshotGone")
    assert world.kept == {}
    assert computed(world.snapshot)[0] == "Failed"


def test_deleting_one_deletes_the_savepoint_first() -> None:
    world = World()
    world.reconcile()
    world.is_ready = False
    world.delete()
    assert world.reconcile() == Settings().poll_seconds
    assert world.condition()[:2] == ("False", "SnapshotDeleting")
    assert world.kept
    world.is_ready = True
    assert world.reconcile() is None
    assert (world.kept, world.snapshot) == ({}, None)


def test_without_its_streamjoin_it_says_so_and_can_be_deleted() -> None:
    world = World()
    world.reconcile()
    world.join = None
    world.reconcile()
    assert world.condition()[:2] == ("False", "StreamJoinMissing")
    assert "the savepoint still lies in status.location" in world.condition()[2]
    world.delete()
    assert world.reconcile() is None
    assert world.snapshot is None


def test_those_of_another_operator_s_streamjoins_are_left_alone() -> None:
    world = World()
    world.reconcile(world.operator(operator_class="blue"))
    assert world.snapshot is not None
    assert (world.writes, world.asked, world.snapshot["status"]) == (0, [], {"observedGeneration": -1})


@pytest.mark.parametrize("ends", ["kept", "deleted"])
def test_killed_at_any_request_it_ends_the_same(ends: str) -> None:
    """Another operator goes on from what the API server has; no savepoint is left behind."""

    def story(world: World) -> None:
        world.reconcile()
        if ends == "deleted" and world.snapshot is not None:
            world.delete()
            world.reconcile()

    calm = World()
    story(calm)
    requests = next(calm._requests)
    assert requests > 5
    for number in range(requests):
        world = World()
        world.dies_at = number
        for _ in range(3):
            with suppress(Killed):
                story(world)
        assert world.kept == calm.kept, number
        assert (world.snapshot is None) == (calm.snapshot is None), number
        if world.snapshot is not None and calm.snapshot is not None:
            assert world.snapshot["status"] == calm.snapshot["status"], number


def test_the_definition_is_what_the_model_says() -> None:
    """Otherwise: make crds"""
    from test_crd import ROOT

    for folder in ("crds", "charts/streamjoin-operator/files"):
        written = yaml.safe_load((ROOT / folder / "streamjoinsnapshots.streamjoin.dev.yaml").read_text())
        assert written == json.loads(json.dumps(definition()))


def test_a_real_driver_is_asked(tmp_path: Path) -> None:
    """By the client of the operator, over HTTP."""
    (tmp_path / "token").write_text("secret")
    served = Served(tmp_path, token=tmp_path / "token")
    served.watched.start()

    async def asked(method: str, token: str = "secret", name: str = "nightly") -> Kept:
        client = DriverClient()
        try:
            return await client.savepoint(method, served.server.url, token, name)
        finally:
            await client.close()

    def ask(method: str, *given: str) -> Kept:
        return asyncio.run(asked(method, *given))

    with served.server:
        assert ask("PUT", "wrong").status == 401
        assert ask("PUT", "secret", "-").status == 422
        assert ask("PUT").status == 202
        served.run(2)
        kept = ask("PUT")
        assert (kept.status, kept.said["state"], kept.said["epoch"], kept.problem) == (200, "kept", 0, "")
        assert ask("DELETE").status == 202
        served.run()
        gone = ask("GET")
        assert (gone.status, gone.problem) == (404, "savepoint 'nightly': does not exist; there are none")
    assert ask("GET").status == 0


def apply(cluster: Cluster, name: str = "nightly", join: str = "one") -> None:
    cluster.admin.create(SNAPSHOTS.format(cluster.namespace), resource(name, join))


def status_of(cluster: Cluster, name: str = "nightly") -> Object:
    return dict(cluster.admin.get(f"{SNAPSHOTS.format(cluster.namespace)}/{name}").get("status") or {})


def is_kept(cluster: Cluster, name: str = "nightly") -> bool:
    return any(one["type"] == "Ready" and one["status"] == "True" for one in status_of(cluster, name).get("conditions") or [])


@pytest.mark.apiserver
def test_from_apply_to_kept_to_deleted(cluster: Cluster) -> None:
    with cluster.operator():
        cluster.run()
        apply(cluster)
        wait_for("it is kept", lambda: is_kept(cluster))
        assert status_of(cluster)["location"] == "s3://bucket/state/one"
        assert list(cluster.driver.savepoints) == ["nightly"]
        with pytest.raises(ServerError, match="spec may not change"):
            cluster.admin.patch(f"{SNAPSHOTS.format(cluster.namespace)}/nightly", {"spec": {"streamJoin": "two"}})
        cluster.admin.delete(f"{SNAPSHOTS.format(cluster.namespace)}/nightly")
        wait_for("it is gone", lambda: not cluster.admin.exists(f"{SNAPSHOTS.format(cluster.namespace)}/nightly"))
        assert cluster.driver.savepoints == {}


@pytest.mark.apiserver
def test_one_that_is_there_before_its_streamjoin_is_made_once_that_runs(cluster: Cluster) -> None:
    with cluster.operator():
        apply(cluster)
        wait_for("it is said", lambda: "StreamJoinMissing" in json.dumps(status_of(cluster)))
        cluster.run()
        wait_for("it is kept", lambda: is_kept(cluster))


@pytest.mark.apiserver
def test_the_api_server_refuses_names_that_no_savepoint_can_have(cluster: Cluster) -> None:
    with pytest.raises(ServerError, match="63"):
        apply(cluster, "a" * 64)


class Kubectl:
    """Answers as kubectl does, from one StreamJoin and one snapshot."""

    def __init__(self, world: World, *, refuses: Callable[[list[str]], bool] = lambda words: False) -> None:
        self.world, self.refuses = world, refuses
        self.asked: list[list[str]] = []
        self.created: list[Object] = []

    def __call__(self, words: Any) -> str:
        words = list(words)
        self.asked.append(words)
        if self.refuses(words):
            raise plugin.Refused("timed out")
        if words[0] == "create":
            with open(words[2]) as file:
                self.created.append(json.load(file))
        if words[0] == "get":
            return json.dumps(self.world.join if words[1].startswith("streamjoins.") else self.world.snapshot)
        return "it went back\n" if words[0] == "exec" else ""


def options(*words: str) -> Any:
    return plugin._parser().parse_args(list(words))


def test_the_plugin_makes_one_and_waits_for_it() -> None:
    world = World()
    world.reconcile()
    kubectl = Kubectl(world)
    assert plugin_snapshots.snapshot(kubectl, options("snapshot", "one", "nightly")) == "nightly: epoch 7 of one is kept, 10 bytes"
    assert kubectl.created == [resource("nightly", "one")]
    plugin_snapshots.snapshot(kubectl, options("snapshot", "one"))
    name = kubectl.created[1]["metadata"]["name"]
    assert name.startswith("one-20")
    assert len(name) == len("one-20260101-000000")
    world.is_ready = False
    world.snapshot = World().snapshot
    with pytest.raises(plugin.Refused, match=r"nightly is not made yet: no operator has looked at it yet \(timed out\)"):
        plugin_snapshots.snapshot(Kubectl(world, refuses=lambda words: words[0] == "wait"), options("snapshot", "one", "nightly"))


def test_the_plugin_prints_a_clone_whose_outputs_are_to_be_given() -> None:
    world = World()
    with pytest.raises(plugin.Refused, match="nightly is not ready: no operator has looked at it yet"):
        plugin_snapshots.clone(Kubectl(world), options("clone", "nightly", "two"))
    world.reconcile()
    with pytest.raises(plugin.Refused, match="--location: is missing"):
        plugin_snapshots.clone(Kubectl(world), options("clone", "nightly", "two"))
    text = plugin_snapshots.clone(Kubectl(world), options("clone", "nightly", "two", "--location", "s3://bucket/state/two"))
    assert text.startswith("# spec.joins[0].output.sink: give it an output of its own; that of the other join is {")
    manifest = yaml.safe_load(text)
    assert manifest["metadata"] == {"name": "two"}
    assert manifest["spec"]["checkpoint"] == {
        "location": "s3://bucket/state/two",
        "cloneOf": {"location": "s3://bucket/state/one", "savepoint": "nightly"},
    }
    assert [problem.field for problem in check(manifest).problems] == ["spec.joins[0].output.sink"]
    manifest["spec"]["joins"][0]["output"]["sink"] = {"files": {"path": "s3://bucket/two", "format": "parquet"}}
    assert check(manifest).problems == ()


def test_a_clone_in_a_claim_is_beside_its_origin() -> None:
    world = World()
    assert world.join is not None
    world.join["spec"]["checkpoint"] = {"persistentVolumeClaim": "data"}
    world.reconcile()
    with pytest.raises(plugin.Refused, match="--location: is not for a checkpoint in a PersistentVolumeClaim"):
        plugin_snapshots.clone(Kubectl(world), options("clone", "nightly", "two", "--location", "s3://bucket/state/two"))
    manifest = yaml.safe_load(plugin_snapshots.clone(Kubectl(world), options("clone", "nightly", "two")))
    cloned = {"location": "/var/lib/streamjoin/one", "savepoint": "nightly"}
    assert manifest["spec"]["checkpoint"] == {"persistentVolumeClaim": "data", "cloneOf": cloned}


def test_the_plugin_goes_back_in_the_driver_s_pod_and_has_it_start_anew() -> None:
    kubectl = Kubectl(World())
    told = plugin_snapshots.rollback(kubectl, options("rollback", "one", "nightly", "--keep", "before", "--repeat-results"))
    assert told == "it went back\none: the driver starts anew"
    command = ["streamjoin", "savepoint", "rollback", "/etc/streamjoin/streamjoin.yaml", "nightly", "--keep=before", "--repeat-results"]
    assert kubectl.asked[1] == ["exec", "deployment/sj-one", "--container=driver", "--", *command]
    assert json.loads(kubectl.asked[2][-1])["metadata"]["annotations"].keys() == {names.RESTART}
    refusing = Kubectl(World(), refuses=lambda words: words[0] == "exec")
    with pytest.raises(plugin.Refused):
        plugin_snapshots.rollback(refusing, options("rollback", "one", "nightly"))
    assert [words[0] for words in refusing.asked] == ["get", "exec"], "the driver is left alone"


@pytest.mark.apiserver
def test_joins_run_where_the_cluster_lacks_the_definition_of_snapshots(cluster: Cluster) -> None:
    """As after an upgrade of the operator alone."""
    for each in cluster.admin.get("/apis/streamjoin.dev/v1beta1/streamjoinsnapshots")["items"]:  # of other tests, whose operators are gone
        path = f"{SNAPSHOTS.format(each['metadata']['namespace'])}/{each['metadata']['name']}"
        cluster.admin.patch(path, {"metadata": {"finalizers": None}})
    cluster.admin.delete(f"{DEFINITIONS}/streamjoinsnapshots.streamjoin.dev")
    wait_for("it is gone", lambda: not cluster.admin.exists(f"{DEFINITIONS}/streamjoinsnapshots.streamjoin.dev"))
    try:
        with cluster.operator():
            cluster.run()
            assert cluster.condition("Ready") == ("True", "JoinRunning")
    finally:
        cluster.server.install_crd(json.loads(json.dumps(definition())))
