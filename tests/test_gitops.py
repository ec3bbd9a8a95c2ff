"""What Flux, Argo CD, Helm and ``kubectl wait`` find of a StreamJoin, with an operator at a real API server."""

from __future__ import annotations

import copy

import pytest

from kstatus import Status, computed, meets
from operator_cluster import Cluster
from operator_parts import SPEC, Object
from test_operator_trial import UNPULLABLE
from waiting import wait_for

pytestmark = pytest.mark.apiserver


def kubectl_waits(cluster: Cluster, kind: str = "Ready") -> bool:
    """Whether ``kubectl wait`` goes on waiting; it looks once."""
    done = cluster.server.kubectl("wait", "sj/one", f"--for=condition={kind}", "--timeout=0", "-n", cluster.namespace, check=False)
    assert (done.returncode == 0) == meets(cluster.get(), kind), done.stdout + done.stderr
    return done.returncode != 0


def is_found(cluster: Cluster, status: Status) -> Object:
    """Wait until kstatus finds it so. Gives the StreamJoin."""
    wait_for(f"it is {status}", lambda: computed(cluster.get())[0] is status)
    return cluster.get()


def test_a_spec_that_is_refused_fails_at_once_and_one_that_is_mended_is_current(cluster: Cluster) -> None:
    with cluster.operator():
        cluster.run()
        is_found(cluster, Status.CURRENT)
        assert not kubectl_waits(cluster)
        joins = copy.deepcopy(SPEC["joins"])
        joins[0]["output"]["where"] = "orders.amount >"
        cluster.change({"joins": joins})
        body = is_found(cluster, Status.FAILED)
        assert "spec.joins[0]" in computed(body)[1]
        assert kubectl_waits(cluster)
        assert kubectl_waits(cluster, "Available"), "what runs is of the generation before"
        assert not kubectl_waits(cluster, "Stalled")
        status = body["status"]
        assert (status["observedGeneration"], status["appliedGeneration"], status["phase"]) == (2, 1, "Running")
        assert cluster.condition("Ready") == ("False", "InvalidSpec")
        assert cluster.condition("Available") == ("True", "JoinRunning")
        cluster.change({"joins": SPEC["joins"]})
        is_found(cluster, Status.CURRENT)
        assert cluster.status()["appliedGeneration"] == 3


def test_a_change_that_does_not_fit_the_checkpoint_fails(cluster: Cluster) -> None:
    streams = copy.deepcopy(SPEC["streams"])
    for stream in streams:
        stream["schema"] += ", sent TIMESTAMP"
    with cluster.operator():
        cluster.run(streams=streams)
        is_found(cluster, Status.CURRENT)
        streams[0]["eventTime"] = "sent"
        cluster.change({"streams": streams})
        body = is_found(cluster, Status.FAILED)
        assert cluster.condition("Stalled") == ("True", "CheckpointMismatch")
        assert (body["status"]["appliedGeneration"], kubectl_waits(cluster)) == (1, True)


def test_a_spec_that_is_tried_is_in_progress_and_one_that_failed_its_trial_fails(cluster: Cluster) -> None:
    with cluster.operator():
        cluster.run()
        is_found(cluster, Status.CURRENT)
        cluster.trial = ("driver", {"waiting": {"reason": "ContainerCreating"}})
        cluster.change({"image": "engine:2"})
        assert computed(cluster.get())[0] is Status.IN_PROGRESS, "at once, before the operator has looked at it"
        wait_for("it is tried", lambda: cluster.condition("Reconciling") == ("True", "TemplateTried"))
        assert computed(cluster.get())[0] is Status.IN_PROGRESS
        assert kubectl_waits(cluster)
        assert cluster.status()["observedGeneration"] == 1
        cluster.trial = UNPULLABLE
        cluster.change({"image": "engine:3"})
        body = is_found(cluster, Status.FAILED)
        assert "ImagePullBackOff" in computed(body)[1]
        assert (cluster.condition("Ready"), kubectl_waits(cluster)) == (("False", "NewTemplateFails"), True)
        cluster.trial = None
        cluster.change({"image": "engine:4"})
        wait_for("the driver is replaced", lambda: "engine:4" in str(cluster.child("Deployment")["spec"]["template"]))
        assert computed(cluster.get())[0] is Status.IN_PROGRESS, "its driver is not there yet"
        cluster.ready()
        is_found(cluster, Status.CURRENT)
        assert not kubectl_waits(cluster)


def test_a_join_that_is_suspended_is_current_once_its_driver_is_gone(cluster: Cluster) -> None:
    with cluster.operator():
        cluster.run()
        cluster.change({"suspend": True})
        wait_for("its driver is stopped", lambda: cluster.child("Deployment")["spec"]["replicas"] == 0)
        assert computed(cluster.get())[0] is Status.IN_PROGRESS
        cluster.ready()
        is_found(cluster, Status.CURRENT)
        assert not kubectl_waits(cluster)
        assert cluster.condition("Available") == ("False", "Suspended")
        cluster.change({"suspend": False})
        wait_for("its driver is made", lambda: cluster.child("Deployment")["spec"]["replicas"] == 1)
        assert computed(cluster.get())[0] is Status.IN_PROGRESS
        cluster.ready()
        is_found(cluster, Status.CURRENT)


def test_a_number_of_workers_that_a_spec_asks_for_is_waited_for(cluster: Cluster) -> None:
    with cluster.operator():
        cluster.run()
        is_found(cluster, Status.CURRENT)
        cluster.change({"workers": {"min": 4}})
        wait_for("it is asked for", lambda: cluster.condition("Reconciling") == ("True", "Rescaling"))
        assert (computed(cluster.get())[0], kubectl_waits(cluster)) == (Status.IN_PROGRESS, True)
        assert cluster.condition("Available") == ("True", "JoinRunning")


def test_a_paused_join_is_current_unless_something_else_has_changed(cluster: Cluster) -> None:
    with cluster.operator():
        cluster.run()
        is_found(cluster, Status.CURRENT)
        cluster.change({"paused": True})
        wait_for("it is seen", lambda: cluster.status()["phase"] == "Paused")
        is_found(cluster, Status.CURRENT)
        cluster.change({"epoch": {"interval": "7s"}})
        wait_for("it waits", lambda: cluster.condition("Ready") == ("False", "Paused"))
        assert (computed(cluster.get())[0], kubectl_waits(cluster)) == (Status.IN_PROGRESS, True)
        cluster.change({"epoch": None})
        is_found(cluster, Status.CURRENT)


def test_a_join_that_no_operator_has_looked_at_is_in_progress(cluster: Cluster) -> None:
    cluster.submit()
    assert (computed(cluster.get())[0], kubectl_waits(cluster)) == (Status.IN_PROGRESS, True)


def test_a_join_that_is_refused_from_the_start_fails(cluster: Cluster) -> None:
    with cluster.operator():
        cluster.submit(workers={"min": 1, "max": 8, "capacityTuples": 100_000_000})
        is_found(cluster, Status.FAILED)
        assert cluster.condition("Stalled") == ("True", "InsufficientMemory")
        assert "appliedGeneration" not in cluster.status()
