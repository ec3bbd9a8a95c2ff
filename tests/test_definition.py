"""An operator beside a definition of StreamJoins that is older than itself, at a real API server."""

from __future__ import annotations

import copy

import pytest

from documents import parsed
from operator_cluster import ROOT, Cluster
from operator_parts import Object
from streamjoin_operator import definition
from waiting import wait_for

pytestmark = pytest.mark.apiserver


def ours() -> Object:
    return dict(parsed((ROOT / "crds" / "streamjoins.streamjoin.dev.yaml").read_text()))


def older() -> Object:
    """One that lacks a field of manifests and words of the status."""
    made = copy.deepcopy(ours())
    schema = made["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]
    del schema["spec"]["properties"]["paused"]
    phases = schema["status"]["properties"]["phase"]["enum"]
    phases.remove("Paused")
    phases.remove("Deleting")
    return made


def condition(cluster: Cluster, kind: str) -> Object:
    return next((found for found in cluster.status().get("conditions") or [] if found["type"] == kind), {})


def test_an_operator_that_is_newer_than_the_definition_says_so_and_works(
    cluster: Cluster, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(definition, "SECONDS", 0.2)
    try:
        cluster.server.install_crd(older())
        with cluster.operator() as running:
            cluster.run()
            wait_for("it says so", lambda: condition(cluster, "Degraded").get("reason") == "DefinitionOlder")
            said = condition(cluster, "Degraded")["message"]
            assert "older than the operator and lacks spec.paused, status.phase: Paused and status.phase: Deleting" in said
            assert "crds/streamjoins.streamjoin.dev.yaml" in said
            assert [record for record in caplog.records if "is older than the operator" in record.getMessage()]
            version, polls = cluster.get()["metadata"]["resourceVersion"], cluster.driver.polls
            writes = running.requests("apply", "patch", "create", "delete")
            wait_for("some polls", lambda: cluster.driver.polls >= polls + 6)
            assert running.requests("apply", "patch", "create", "delete") == writes, "what cannot be stored is not written for ever"
            assert cluster.get()["metadata"]["resourceVersion"] == version
            cluster.change({"checkpoint": {"onDelete": "Delete"}})
            wait_for("its finalizer", lambda: cluster.get()["metadata"].get("finalizers"))
            cluster.admin.delete(f"{cluster.streamjoins}/one")
            removing = ("True", "StateRemoving")
            wait_for("its phase is not known, and it goes", lambda: cluster.condition("Reconciling") == removing)
            cluster.change({"checkpoint": {"onDelete": "Retain"}})
            wait_for("it is gone", lambda: not cluster.admin.exists(f"{cluster.streamjoins}/one"))

            cluster.submit("two")
            cluster.ready("sj-two")
            wait_for("another runs", lambda: cluster.condition("Ready", "two") == ("True", "JoinRunning"))
            before = cluster.child("Deployment", "sj-two")["spec"]
            cluster.server.install_crd(ours())
            wait_for("nothing is lacking", lambda: cluster.condition("Degraded", "two") == ("False", "Healthy"))
            assert cluster.child("Deployment", "sj-two")["spec"] == before
    finally:
        cluster.server.install_crd(ours())
