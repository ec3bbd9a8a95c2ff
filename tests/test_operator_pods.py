"""Pods that are refused, or do not start, against a real API server with its quotas, Pod Security and webhooks: one condition says each.

No controller, scheduler or kubelet runs there: the tests make the pods, and say in their status what those would.
"""

from __future__ import annotations

import urllib.request
from pathlib import Path

import pytest

from admission import webhook
from operator_cluster import PATHS, Cluster
from operator_parts import Object
from streamjoin_operator import names
from waiting import wait_for

pytestmark = pytest.mark.apiserver

LONG_AGO = "2026-01-01T00:00:00Z"


def pods(cluster: Cluster) -> str:
    return f"/api/v1/namespaces/{cluster.namespace}/pods"


def quota(cluster: Cluster, **hard: str) -> str:
    """A quota of which nothing is used, as its controller would count."""
    path = f"/api/v1/namespaces/{cluster.namespace}/resourcequotas"
    limits = {name.replace("_", "."): value for name, value in hard.items()}
    cluster.admin.create(path, {"metadata": {"name": "small"}, "spec": {"hard": limits}})
    cluster.admin.patch(f"{path}/small/status", {"status": {"hard": limits, "used": dict.fromkeys(limits, "0")}})
    return f"{path}/small"


def pod(cluster: Cluster, component: str, name: str, status: Object) -> str:
    """A pod as somebody else has made it, with what became of it."""
    labels = names.pod_labels("one", component)
    spec = {"containers": [{"name": "c", "image": "i"}]}
    cluster.admin.create(pods(cluster), {"metadata": {"name": name, "labels": labels}, "spec": spec})
    cluster.admin.patch(f"{pods(cluster)}/{name}/status", {"status": status})
    return f"{pods(cluster)}/{name}"


def waiting(reason: str, message: str) -> Object:
    container = {"name": names.DRIVER, "image": "i", "imageID": "", "ready": False, "restartCount": 0}
    return {"containerStatuses": [{**container, "state": {"waiting": {"reason": reason, "message": message}}}]}


def scheduled(status: str, message: str = "") -> Object:
    return {"conditions": [{"type": "PodScheduled", "status": status, "message": message, "lastTransitionTime": LONG_AGO}]}


def message(cluster: Cluster, kind: str = "Degraded") -> str:
    return str(next(found["message"] for found in cluster.status()["conditions"] if found["type"] == kind))


def is_degraded(cluster: Cluster, reason: str, said: str) -> None:
    wait_for(f"it is {reason}", lambda: cluster.condition("Degraded") == ("True", reason))
    assert said in message(cluster)


def is_well(cluster: Cluster) -> None:
    wait_for("it is well", lambda: cluster.condition("Degraded") == ("False", "Healthy"))


def test_a_drivers_pod_that_a_quota_refuses_is_said_before_anybody_could_be_scraped(cluster: Cluster) -> None:
    path = quota(cluster, limits_memory="1Gi")
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with cluster.operator() as running:
        cluster.submit()
        is_degraded(cluster, "PodRefused", "exceeded quota: small")
        assert cluster.condition("Ready") == ("False", "PodRefused")
        version, tries = cluster.get()["metadata"]["resourceVersion"], running.requests("dry-run")
        wait_for("more tries", lambda: running.requests("dry-run") >= tries + 5)
        assert cluster.get()["metadata"]["resourceVersion"] == version, "each try says the same"
        metrics = opener.open(f"http://127.0.0.1:{running.operator.port}/metrics").read().decode()
        labels = f'namespace="{cluster.namespace}",reason="PodRefused",streamjoin="one"'
        assert f'streamjoin_operator_condition{{{labels},type="Degraded"}} 1.0' in metrics
        assert f'streamjoin_operator_condition{{{labels},type="Ready"}} 0.0' in metrics
        assert f'streamjoin_operator_phase{{namespace="{cluster.namespace}",phase="Pending",streamjoin="one"}} 1.0' in metrics
        cluster.admin.delete(path)
        is_well(cluster)
        assert [event["reason"] for event in cluster.events() if event["type"] == "Warning"] == ["PodRefused"], "it is told once"


def test_a_drivers_pod_that_pod_security_or_a_webhook_refuses_is_said(cluster: Cluster, tmp_path: Path) -> None:
    enforced = {"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "restricted"}}}
    cluster.admin.patch(f"/api/v1/namespaces/{cluster.namespace}", enforced)
    with cluster.operator():
        cluster.submit(driver={"podTemplate": {"spec": {"hostNetwork": True}}})
        is_degraded(cluster, "PodRefused", "violates PodSecurity")
        cluster.change({"driver": None})
        is_well(cluster)
        with webhook(cluster.server, tmp_path, cluster.namespace, "", "pods", lambda created: "not in this cluster"):
            is_degraded(cluster, "PodRefused", "not in this cluster")
        is_well(cluster)


def test_what_the_deployments_controller_was_answered_is_said(cluster: Cluster) -> None:
    refused = {"type": "ReplicaFailure", "status": "True", "reason": "FailedCreate", "message": 'pods "sj-one-x" is forbidden: of the test'}
    with cluster.operator():
        cluster.submit()
        path = f"{PATHS['Deployment'].format(cluster.namespace)}/sj-one"
        wait_for("the Deployment", lambda: cluster.admin.exists(path))
        cluster.admin.patch(f"{path}/status", {"status": {"conditions": [refused]}})
        is_degraded(cluster, "PodRefused", "a pod is forbidden: of the test")


@pytest.mark.parametrize(
    ("status", "reason", "said"),
    [
        (waiting("ErrImagePull", "no such image"), "ImageUnavailable", "no such image"),
        (waiting("CreateContainerConfigError", 'secret "keys" not found'), "DriverCrashing", 'secret "keys" not found'),
        (scheduled("False", 'persistentvolumeclaim "data" not found'), "DriverPending", 'persistentvolumeclaim "data" not found'),
        (scheduled("True") | waiting("ContainerCreating", ""), "PodStuck", "kubectl describe pod made-by-the-test"),
        ({"phase": "Failed", "reason": "Evicted", "message": "The node was low on memory"}, "DriverCrashing", "low on memory"),
    ],
)
def test_why_a_drivers_pod_does_not_start_is_said(cluster: Cluster, status: Object, reason: str, said: str) -> None:
    with cluster.operator():
        cluster.submit()
        pod(cluster, names.DRIVER, "made-by-the-test", status)
        is_degraded(cluster, reason, said)
        assert cluster.condition("Ready") == ("False", reason)


@pytest.mark.parametrize(
    ("status", "reason", "said"),
    [
        (waiting("ImagePullBackOff", "no such image"), "ImageUnavailable", "1 of 2 executors: pod broken: ImagePullBackOff: no such image"),
        (waiting("CreateContainerConfigError", "no secret"), "ExecutorsFailing", "1 of 2 executors: pod broken"),
        (scheduled("False", "0/1 nodes are available"), "ExecutorsPending", "0/1 nodes are available"),
        (scheduled("True") | waiting("ContainerCreating", ""), "PodStuck", "kubectl describe pod broken"),
    ],
)
def test_why_executors_do_not_start_is_said_and_the_join_goes_on(cluster: Cluster, status: Object, reason: str, said: str) -> None:
    with cluster.operator():
        cluster.run()
        cluster.driver.workers, cluster.driver.ready_workers = 2, 1
        pod(cluster, names.EXECUTOR, "well", {"phase": "Running"})
        path = pod(cluster, names.EXECUTOR, "broken", status)
        is_degraded(cluster, reason, said)
        assert cluster.condition("Ready") == ("True", "JoinRunning")
        cluster.admin.delete(path, gracePeriodSeconds=0)
        is_well(cluster)


def test_executors_that_a_quota_refuses_are_said_though_they_are_nowhere(cluster: Cluster) -> None:
    """Spark is refused them, and keeps it to its log."""
    with cluster.operator():
        cluster.run(workers={"min": 1, "max": 2, "capacityTuples": 1000, "resources": {"cpu": 1, "memory": "1536Mi"}})
        made = pod(cluster, names.EXECUTOR, "made", {"phase": "Running"})
        quota(cluster, limits_memory="1Gi")
        cluster.driver.ready_workers = 0
        wait_for("it loads", lambda: cluster.condition("Ready") == ("False", "ExecutorsStarting"))
        assert cluster.condition("Degraded") == ("False", "Healthy"), "a quota that is used up by what there is does no harm"
        cluster.admin.delete(made, gracePeriodSeconds=0)
        is_degraded(cluster, "PodRefused", "limits.memory=1536Mi")
        assert cluster.condition("Ready") == ("False", "PodRefused")
        assert cluster.status()["phase"] == "Starting"
        cluster.driver.ready_workers = None
        is_well(cluster)


def test_a_cleanup_whose_pod_is_refused_is_said(cluster: Cluster) -> None:
    with cluster.operator():
        cluster.run(checkpoint={"location": "s3://bucket/state", "onDelete": "Delete"})
        quota(cluster, pods="0")
        cluster.admin.delete(f"/apis/streamjoin.dev/v1beta1/namespaces/{cluster.namespace}/streamjoins/one")
        is_degraded(cluster, "CleanupBlocked", "exceeded quota: small")
        assert "set spec.checkpoint.onDelete to Retain" in message(cluster)


def drivers_end(cluster: Cluster, name: str, code: int) -> str:
    """A driver's pod of the revision that is wanted, as it has ended."""
    path = pod(cluster, names.DRIVER, name, {})
    revision = cluster.child("Deployment")["metadata"]["annotations"][names.REVISION]
    cluster.admin.patch(path, {"metadata": {"annotations": {names.REVISION: revision}}})
    container = {"name": names.DRIVER, "image": "i", "imageID": "", "ready": False, "restartCount": 1}
    ended = {"terminated": {"exitCode": code, "message": "streamjoin: it holds the join far"}}
    looping = {"waiting": {"reason": "CrashLoopBackOff"}}
    cluster.admin.patch(f"{path}/status", {"status": {"containerStatuses": [{**container, "state": looping, "lastState": ended}]}})
    return path


def test_a_driver_that_finds_another_joins_checkpoint_is_not_started_until_something_changes(cluster: Cluster) -> None:
    replicas = lambda: cluster.child("Deployment")["spec"]["replicas"]  # noqa: E731
    with cluster.operator(resync_seconds=0.5):
        cluster.submit()
        wait_for("its driver is made", lambda: "Deployment" in cluster.children())
        path = drivers_end(cluster, "sj-one-1", 5)
        is_degraded(cluster, "CheckpointOfAnother", "it holds the join far; restore the manifest")
        wait_for("it is stopped", lambda: replicas() == 0)
        assert cluster.status()["phase"] == "Failed"
    cluster.admin.delete(path, gracePeriodSeconds=0)
    with cluster.operator(resync_seconds=0.2) as running:
        running.await_ready()
        wait_for("some checks", lambda: running.requests("list") > 30)
        assert replicas() == 0, "an operator that starts anew knows it too"
        cluster.change({"checkpoint": {"location": "s3://bucket/state/two"}})
        wait_for("it is started", lambda: replicas() == 1)
        wait_for("it is told", lambda: cluster.condition("Degraded") == ("False", "Healthy"))


def test_a_driver_that_ends_otherwise_is_started_again(cluster: Cluster) -> None:
    with cluster.operator(resync_seconds=0.5):
        cluster.submit()
        wait_for("its driver is made", lambda: "Deployment" in cluster.children())
        drivers_end(cluster, "sj-one-1", 3)
        is_degraded(cluster, "DriverCrashing", "exit code 3")
        assert cluster.child("Deployment")["spec"]["replicas"] == 1


def test_pods_on_several_nodes_that_share_a_claim_for_one_are_told_of_with_the_remedy(cluster: Cluster) -> None:
    with cluster.operator(resync_seconds=0.5):
        cluster.submit(checkpoint={"persistentVolumeClaim": "data", "size": "1Gi"})
        wait_for("its driver is made", lambda: "Deployment" in cluster.children())
        for name, component in (("driver", names.DRIVER), ("executor", names.EXECUTOR)):
            labels = names.pod_labels("one", component)
            body = {"metadata": {"name": name, "labels": labels}, "spec": {"nodeName": name, "containers": [{"name": "c", "image": "i"}]}}
            cluster.admin.create(pods(cluster), body)
        is_degraded(cluster, "ClaimOnOneNode", "PersistentVolumeClaim data is ReadWriteOnce")
        assert "driver, executor; set checkpoint.location to an object store" in message(cluster)
