"""From the releases that are kept in tests/releases to this one, and back, on a real API server.

Each test installs definitions that belong to the whole cluster, so the API server is this module's own, and without one before each test.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from apiserver import ApiError, ApiServer, program, running
from documents import parsed
from operator_cluster import PATHS, STREAMJOINS, Cluster, converted
from operator_parts import FakeDriver, Object, contained, joins_of_before, streamjoin
from streamjoin.manifest import check
from streamjoin_operator import definition, names
from streamjoin_operator.changes import engine_manifest
from waiting import wait_for

pytestmark = [pytest.mark.apiserver, pytest.mark.helm]

ROOT = Path(__file__).resolve().parent.parent
CHART = ROOT / "charts" / "streamjoin-operator"
NAME = "streamjoins.streamjoin.dev.yaml"
RELEASES = sorted(path for path in (ROOT / "tests" / "releases").iterdir() if path.is_dir())
DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
NAMESPACE = "operators"
FORMER = STREAMJOINS.replace("v1beta1", "v1alpha1")
"""Where releases that are kept have their StreamJoins."""
NEWER = {"perExecutor": 2}
"""Of spec.workers, what no release knows that is kept."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    program("helm")
    with running(tmp_path_factory.mktemp("upgrade")) as started:
        for name in (NAMESPACE, "joins"):
            started.admin.create("/api/v1/namespaces", {"metadata": {"name": name}})
        yield started


@pytest.fixture(autouse=True)
def _without_definitions(server: ApiServer) -> Iterator[None]:
    yield
    for found in server.admin.get(DEFINITIONS)["items"]:
        path = f"{DEFINITIONS}/{found['metadata']['name']}"
        server.admin.delete(path)
        wait_for("the definition is gone", lambda path=path: not server.admin.exists(path))


@pytest.fixture(params=RELEASES, ids=[path.name for path in RELEASES])
def release(request: pytest.FixtureRequest) -> Path:
    return request.param


def defined(chart: Path) -> Object:
    return dict(parsed((chart / "files" / NAME).read_text()))


def upgraded(server: ApiServer) -> Object:
    """This release's, as an upgrade leaves it until StreamJoins are stored in its own version: tests/test_stored_versions.py goes on."""
    definition = converted(server, defined(CHART))
    for version in definition["spec"]["versions"]:
        version["storage"] = version["name"] == "v1alpha1"
    return definition


def examples(release: Path) -> list[Object]:
    found = [yaml.safe_load(path.read_text()) for path in sorted((release / "examples").glob("*.yaml"))]
    assert found
    return found


def helm(server: ApiServer, *arguments: str) -> None:
    server.helm(*arguments, "--namespace", NAMESPACE)


def is_newer(server: ApiServer) -> bool:
    """Whether the API server takes what only this release knows."""
    body = examples(RELEASES[-1])[0]
    body["metadata"]["name"] = "probe"
    body["spec"]["workers"] = {**body["spec"].get("workers", {}), **NEWER}
    try:
        patiently(lambda: server.admin.create(FORMER.format("joins"), body, dryRun="All", fieldValidation="Strict"))
    except ApiError as error:
        if error.status not in (400, 404):
            raise
        return False
    return True


def patiently(ask: Callable[[], Any]) -> Any:
    """The answer, as soon as the API server has taken another definition up."""
    answers: list[Any] = []

    def is_answered() -> bool:
        try:
            answers.append(ask())
        except ApiError as error:
            if error.status != 429:
                raise
        return bool(answers)

    wait_for("an answer", is_answered)
    return answers[0]


def objects(server: ApiServer) -> dict[str, Object]:
    found = patiently(lambda: server.admin.get(FORMER.format("joins"))["items"])
    return {body["metadata"]["name"]: body for body in found}


def meaning(body: Object) -> Object:
    """What an engine would be given: defaults are left out."""
    document = check(body)
    assert document.manifest is not None, document.problems
    return engine_manifest(document.manifest)


def revalidated(server: ApiServer) -> None:
    """The definition of the moment takes each object as it is stored."""
    for name, body in objects(server).items():
        path = f"{FORMER.format('joins')}/{name}"
        patiently(lambda path=path, body=body: server.admin.replace(path, body, dryRun="All", fieldValidation="Strict"))


def test_helm_upgrades_and_rolls_back_with_every_streamjoin_there_and_valid(server: ApiServer, release: Path) -> None:
    helm(server, "install", "sj", str(release / "chart"))
    wait_for("StreamJoins are served", lambda: server.admin.serves(FORMER.format("joins")))
    assert not is_newer(server)
    given = {body["metadata"]["name"]: body for body in examples(release)}
    for body in given.values():
        server.admin.create(FORMER.format("joins"), body, fieldValidation="Strict")
    status = {"phase": "Running", "workers": 2, "cost": {"at": "2026-01-01T00:00:00Z", "spent": "1.5"}}
    made = objects(server)
    for name in made:
        server.admin.patch(f"{FORMER.format('joins')}/{name}/status", {"status": status})

    helm(server, "upgrade", "sj", str(CHART))
    wait_for("the new definition is served", lambda: is_newer(server))
    upgraded = objects(server)
    for name, body in made.items():
        assert upgraded[name]["metadata"]["uid"] == body["metadata"]["uid"]
        assert contained(given[name]["spec"], upgraded[name]["spec"])
        assert upgraded[name]["status"]["workers"] == 2
    revalidated(server)
    newer = copy.deepcopy(next(iter(given.values())))
    newer["metadata"]["name"] = "newer"
    newer["spec"]["workers"] = {**newer["spec"].get("workers", {}), **NEWER}
    server.admin.create(FORMER.format("joins"), newer, fieldValidation="Strict")

    helm(server, "rollback", "sj", "1")
    wait_for("the old definition is served", lambda: not is_newer(server))
    back = objects(server)
    assert set(back) == {*given, "newer"}
    for name, body in made.items():
        assert back[name]["metadata"]["uid"] == body["metadata"]["uid"]
        assert back[name]["spec"] == body["spec"]
    revalidated(server)
    helm(server, "uninstall", "sj")
    assert set(objects(server)) == {*given, "newer"}


def test_objects_of_this_release_are_valid_under_the_older_definition_in_what_both_know(server: ApiServer, release: Path) -> None:
    server.install_crd(upgraded(server))
    made = [server.admin.create(FORMER.format("joins"), body, fieldValidation="Strict") for body in examples(release)]
    server.install_crd(defined(release / "chart"))
    wait_for("the old definition is served", lambda: not is_newer(server))
    for body in made:
        found = objects(server)[body["metadata"]["name"]]
        wanted = meaning(body)
        wanted["spec"].setdefault("workers", {}).setdefault("capacityTuples", 2_000_000)  # what the old definition fills in stays
        assert meaning(found) == wanted
    revalidated(server)


def condition(cluster: Cluster, kind: str) -> Object:
    return next((found for found in cluster.status().get("conditions") or [] if found["type"] == kind), {})


def test_an_operator_that_is_newer_than_the_definition_says_so_and_works(
    server: ApiServer, release: Path, driver: FakeDriver, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(definition, "SECONDS", 0.2)
    server.install_crd(defined(release / "chart"))
    cluster = Cluster(server, driver)
    cluster.version = "v1alpha1"
    with cluster.operator() as running:
        cluster.run(joins=joins_of_before())
        assert condition(cluster, "Degraded")["reason"] == "DefinitionOlder", "which does not know the name that is to be given instead"
        said = condition(cluster, "Degraded")["message"]
        assert "older than the operator and lacks spec." in said
        assert "crds/streamjoins.streamjoin.dev.yaml" in said
        (warning,) = {record.getMessage() for record in caplog.records if "is older than the operator" in record.getMessage()}
        assert "spec.paused" in warning
        assert "status.phase: Paused" in warning
        version, polls = cluster.get()["metadata"]["resourceVersion"], driver.polls
        writes = running.requests("apply", "patch", "create", "delete")
        wait_for("some polls", lambda: driver.polls >= polls + 6)
        assert running.requests("apply", "patch", "create", "delete") == writes, "what cannot be stored is not written for ever"
        assert cluster.get()["metadata"]["resourceVersion"] == version
        cluster.change({"checkpoint": {"onDelete": "Delete"}})
        wait_for("its finalizer", lambda: cluster.get()["metadata"].get("finalizers"))
        cluster.admin.delete(f"{cluster.streamjoins}/one")
        removing = ("True", "StateRemoving")
        wait_for("its phase is not known, and it goes", lambda: cluster.condition("Progressing") == removing)
        cluster.change({"checkpoint": {"onDelete": "Retain"}})
        wait_for("it is gone", lambda: not cluster.admin.exists(f"{cluster.streamjoins}/one"))

        cluster.submit("two", joins=joins_of_before())
        cluster.ready("sj-two")
        wait_for("another runs", lambda: cluster.condition("Ready", "two") == ("True", "JoinRunning"))
        server.install_crd(upgraded(server))
        wait_for("nothing is lacking", lambda: cluster.condition("Degraded", "two") == ("False", "FormerName"))
        before = cluster.child("Deployment", "sj-two")["spec"]
        cluster.change({"joins": streamjoin()["spec"]["joins"]}, "two")
        wait_for("it is renamed", lambda: cluster.condition("Degraded", "two") == ("False", "Healthy"))
        assert cluster.child("Deployment", "sj-two")["spec"] == before


def test_a_driver_of_an_older_operator_runs_on_until_its_successor_has_come_up(
    server: ApiServer, release: Path, driver: FakeDriver
) -> None:
    server.install_crd(upgraded(server))
    cluster = Cluster(server, driver)
    body = yaml.safe_load((release / "examples" / "generator.yaml").read_text())
    body["metadata"]["name"] = "one"
    made = cluster.admin.create(FORMER.format(cluster.namespace), body)
    text = (release / "children.json").read_text()
    text = text.replace('"made-up"', '"one"').replace("sj-made-up", "sj-one").replace('"default"', json.dumps(cluster.namespace))
    for child in json.loads(text):
        for owner in child["metadata"]["ownerReferences"]:
            owner["uid"] = made["metadata"]["uid"]
        path = f"{PATHS[child['kind']].format(cluster.namespace)}/{child['metadata']['name']}"
        cluster.admin.apply(path, child, names.MANAGER)
    cluster.ready()
    before = {kind: cluster.child(kind) for kind in ("Deployment", "ConfigMap")}
    cluster.trial = ("driver", {"waiting": {"reason": "ErrImagePull", "message": "no such image"}})
    with cluster.operator():
        failing = ("True", "NewTemplateFails")
        wait_for("its successor fails", lambda: cluster.condition("Degraded") == failing)
        assert cluster.condition("Ready") == ("True", "JoinRunning")
        assert cluster.child("Deployment")["spec"] == before["Deployment"]["spec"]
        assert cluster.child("ConfigMap")["data"] == before["ConfigMap"]["data"], "which its driver reads when it is started again"
        cluster.trial = None
        cluster.change({"image": "engine:2"})
        generation = before["Deployment"]["metadata"]["generation"]
        wait_for("it is replaced", lambda: cluster.child("Deployment")["metadata"]["generation"] > generation)
        cluster.ready()
        wait_for("it runs", lambda: cluster.condition("Degraded") == ("False", "FormerName"))


OLD_GROUP = "older.streamjoin.dev"


def test_an_engine_of_an_older_release_can_read_what_the_operator_gives_it_where_nothing_newer_is_used(
    server: ApiServer, release: Path
) -> None:
    """The older definition, beside this one under a group of its own, tells what that engine knows; defaults of this one are filled in."""
    server.install_crd(upgraded(server))
    older = defined(release / "chart")
    older["metadata"]["name"] = f"streamjoins.{OLD_GROUP}"
    older["spec"]["group"] = OLD_GROUP
    older["spec"]["names"] = {**older["spec"]["names"], "shortNames": ["osj"], "categories": []}
    server.install_crd(older)
    path = f"/apis/{OLD_GROUP}/v1alpha1/namespaces/joins/streamjoins"

    def given(body: Object) -> Object:
        """What the driver reads, as the older engine's own kind."""
        found = server.admin.create(FORMER.format("joins"), body, fieldValidation="Strict", dryRun="All")
        assert found["spec"]["workers"]["perExecutor"], "the API server has filled this release's defaults in"
        return {**meaning(found), "apiVersion": f"{OLD_GROUP}/v1alpha1"}

    for body in examples(release):
        server.admin.create(path, given(body), fieldValidation="Strict", dryRun="All")
        renamed = copy.deepcopy(body)
        (join,) = renamed["spec"]["joins"]
        join["condition"] = join.pop("on")
        assert given(renamed) == given(body)
        newer = copy.deepcopy(body)
        newer["spec"]["workers"] = {**newer["spec"].get("workers", {}), **NEWER}
        with pytest.raises(ApiError, match="perExecutor"):
            server.admin.create(path, given(newer), fieldValidation="Strict", dryRun="All")
