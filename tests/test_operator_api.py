"""The operator as it runs, kopf and all, against a real API server: children, faults of the wire, rights, and rest."""

from __future__ import annotations

import asyncio
import base64
import json
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any

import pytest
import yaml

import http_stub
from apiserver import ROOT, ApiError, ApiServer, program
from fault_proxy import FaultProxy
from operator_cluster import PATHS, SERVICE_ACCOUNT, STREAMJOINS, Cluster
from operator_parts import Object, streamjoin
from scaled_join import ScaledJoin, ScaledServer
from streamjoin.serve.queries import QUERIES, QUERY
from streamjoin_operator import children, names, plugin
from streamjoin_operator.children import LEDGER_KEY
from streamjoin_operator.children import ledger as ledger_map
from streamjoin_operator.derived import derive
from streamjoin_operator.resource import Resource
from streamjoin_operator.settings import Settings
from waiting import wait_for

pytestmark = pytest.mark.apiserver

CHILDREN = ["ConfigMap", "Deployment", "NetworkPolicy", "Role", "RoleBinding", "Secret", "Service", "ServiceAccount"]
NEVER = 1e9
"""Seconds; longer than any test."""
CHILDREN_OF_ONE = dict.fromkeys(CHILDREN, 1) | {"ConfigMap": 3, "NetworkPolicy": 2, "Secret": 2, "ServiceAccount": 2}


@contextmanager
def never_audited() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("streamjoin_operator.main.AUDIT_SECONDS", NEVER)
        yield


def test_from_apply_to_running_with_the_rights_that_are_documented_and_then_rest(cluster: Cluster) -> None:
    with never_audited(), cluster.operator(resync_seconds=NEVER) as running:
        cluster.run()
        assert sorted(cluster.children()) == CHILDREN
        status = cluster.status()
        assert (status["phase"], status["workers"], status["desiredWorkers"]) == ("Running", 1, 1)
        tau = status["utilization"]
        assert (tau.pop("at")[:2], tau) == ("20", {"max": "0.50", "mean": "0.50", "source": "driver"})
        wait_for("rest", lambda: running.operator.queue is not None and running.operator.queue.is_idle)
        versions, requests, polls = cluster.versions(), running.of_joins(), cluster.driver.polls
        wait_for("polls of the driver", lambda: cluster.driver.polls >= polls + 6)
        assert cluster.versions() == versions
        assert running.of_joins() == requests, "an idle join costs the API server nothing"


def test_secrets_and_certificates_are_in_no_other_object(cluster: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    """With the documented rights: a join waits for its certificates, runs with them, and nothing shows any of it."""
    caplog.set_level("DEBUG")
    secrets = PATHS["Secret"].format(cluster.namespace)
    with cluster.operator(resync_seconds=0.5):
        cluster.submit(security={"tls": {"secretName": "certificates"}})
        wait_for("it waits", lambda: cluster.condition("Degraded") == ("True", "SecretUnusable"))
        assert "Deployment" not in cluster.children()
        key = "a-private-key-of-the-test"
        data = {"tls.crt": "certificate", "tls.key": key, "ca.crt": "authority"}
        cluster.admin.create(secrets, {"metadata": {"name": "certificates"}, "stringData": data})
        wait_for("its driver is made", lambda: "Deployment" in cluster.children())
        cluster.ready()
        wait_for("it runs", lambda: cluster.condition("Ready") == ("True", "JoinRunning"))
        mounted = {volume["name"] for volume in cluster.child("Deployment")["spec"]["template"]["spec"]["volumes"]}
        assert {"exchange", "tls", "token"} <= mounted
        exchange = cluster.child("Secret", names.exchange_name("one"))["data"]["secret"]
        seen = json.dumps([cluster.get(), [found for kind, found in cluster.children().items() if kind != "Secret"]])
        seen += json.dumps(cluster.admin.get(f"/api/v1/namespaces/{cluster.namespace}/events")) + caplog.text
        for secret in (base64.b64decode(exchange).decode(), key):
            assert secret not in seen
            assert base64.b64encode(secret.encode()).decode() not in seen


def test_load_is_followed_and_the_decision_is_kept_where_the_api_server_keeps_it(cluster: Cluster) -> None:
    """A join that gets fuller, scaled by its own metrics: ledger, status and events pass the real schema and the documented rights."""
    join = ScaledJoin(time.time, 48_000.0, start_seconds=1.0, move_seconds=0.5)
    scaled = ScaledServer(join)
    try:
        with cluster.operator(driver_url=f"http://{scaled.address}", price_per_executor_hour=0.5):
            cluster.run(scaling={"scaleUpAfter": "1s"})

            def last() -> Object:
                return dict((cluster.status().get("decisions") or [{}])[-1])

            wait_for("it grows, and what came true is known", lambda: "realizedUtilization" in last())
            (decision,) = cluster.status()["decisions"]
            assert (decision["rule"], decision["reason"], decision["outcome"]) == ("allocate", "Full", "Applied")
            assert join.workers == decision["workersAfter"]
            wait_for("its workers are told", lambda: cluster.status()["workers"] == join.workers)
            wait_for("they can be trusted", lambda: cluster.condition("MetricsAvailable") == ("True", "MetricsRead"))
            assert cluster.status()["cost"]["pricePerExecutorHour"] == "0.500000"
            ledger = cluster.child("ConfigMap", names.ledger_name("one"))
            assert json.loads(ledger["data"][LEDGER_KEY])["ledger"]["records"]
            assert len(join.wishes) == 1
            events = f"/api/v1/namespaces/{cluster.namespace}/events"
            told = lambda: {event["reason"] for event in cluster.admin.get(events)["items"]}  # noqa: E731
            wait_for("it is told", lambda: {"Allocating", "Scaled"} <= told())
        path = f"{PATHS['ConfigMap'].format(cluster.namespace)}/{names.ledger_name('one')}"
        with pytest.raises(ApiError) as stale:
            cluster.admin.apply(path, ledger_map(Resource.of(cluster.get()), {}, "1"), names.MANAGER)
        assert stale.value.status == 409
        cluster.admin.delete(path)
        made = cluster.admin.apply(path, ledger_map(Resource.of(cluster.get()), {}, "1"), names.MANAGER)
        assert made["metadata"]["name"] == names.ledger_name("one"), "one that was deleted is made anew"
    finally:
        scaled.close()


def test_a_join_that_stands_still_is_not_ready_and_an_event_says_for_whom_it_waits(cluster: Cluster) -> None:
    waits_for = ["worker at place 2 (process 71 on 10.0.0.7)"]
    with cluster.operator():
        cluster.run(epoch={"deadline": "5m"})
        assert cluster.condition("EpochStalled") == ("False", "EpochsMove")
        assert cluster.status()["lastCommit"] == "2027-01-15T08:00:00Z"
        cluster.driver.stalled = {"epoch": 7, "step": "tasks", "seconds": 70.0, "waitsFor": waits_for, "stalls": 0, "last": None}
        wait_for("it is seen", lambda: cluster.condition("EpochStalled") == ("True", "EpochStalled"))
        assert cluster.condition("Ready") == ("False", "EpochStalled")
        wait_for("it is told", lambda: [event for event in cluster.events() if event["reason"] == "EpochStalled"])
        (event,) = [event for event in cluster.events() if event["reason"] == "EpochStalled"]
        assert (event["type"], waits_for[0] in event["message"]) == ("Warning", True)
        cluster.driver.stalled = None
        wait_for("it is over", lambda: cluster.condition("Ready") == ("True", "JoinRunning"))
        assert cluster.condition("EpochStalled") == ("False", "EpochsMove")


def test_what_happens_again_is_counted_in_its_event(cluster: Cluster) -> None:
    with cluster.operator():
        cluster.run()
        for _ in range(2):
            cluster.driver.state = "retrying"
            wait_for("it is degraded", lambda: cluster.condition("Degraded") == ("True", "JoinRetrying"))
            cluster.driver.state = "running"
            wait_for("it is well", lambda: cluster.condition("Degraded") == ("False", "Healthy"))
        (event,) = [event for event in cluster.events() if event["reason"] == "JoinRetrying"]
        assert event["count"] == 2


def test_an_operator_that_starts_anew_finds_everything_as_it_should_be(cluster: Cluster) -> None:
    with cluster.operator():
        cluster.run()
    versions = cluster.versions()
    with cluster.operator(resync_seconds=0.1) as running:
        wait_for("some checks", lambda: running.requests("list") > 30)
        assert running.requests("apply", "patch", "create", "delete") == 0
    assert cluster.versions() == versions


def test_what_somebody_changes_or_deletes_is_put_right(cluster: Cluster) -> None:
    with cluster.operator(resync_seconds=1.0):
        cluster.run()
        before = cluster.child("Deployment")["spec"]["template"]["spec"]["containers"][0]["image"]
        cluster.admin.delete(f"{PATHS['Service'].format(cluster.namespace)}/sj-one")
        patch = {"spec": {"template": {"spec": {"containers": [{"name": "driver", "image": "bad"}]}}}}
        path = f"{PATHS['Deployment'].format(cluster.namespace)}/sj-one"
        cluster.admin.patch(path, patch, "application/strategic-merge-patch+json")
        wait_for("the Service", lambda: "Service" in cluster.children())
        wait_for("the image", lambda: cluster.child("Deployment")["spec"]["template"]["spec"]["containers"][0]["image"] == before)
        cluster.admin.delete(path)
        wait_for("the Deployment", lambda: cluster.admin.exists(path))


def test_spec_changes_by_class(cluster: Cluster) -> None:
    with cluster.operator():
        cluster.run()
        generation = cluster.child("Deployment")["metadata"]["generation"]
        cluster.change({"workers": {"min": 2}})
        wait_for("the wish", lambda: cluster.driver.wishes == [{"workers": 2, "model": "adsp"}])
        wait_for("the phase", lambda: cluster.status()["phase"] == "Rescaling")
        cluster.driver.switch()
        wait_for("the new plan", lambda: cluster.status()["workers"] == 2)
        assert cluster.status()["change"]["class"] == "Live"
        assert cluster.child("Deployment")["metadata"]["generation"] == generation
        wait_for("the budget", lambda: "PodDisruptionBudget" in cluster.children())
        cluster.change({"workers": {"capacityTuples": 50_000}})
        wait_for("the restart", lambda: cluster.child("Deployment")["metadata"]["generation"] == generation + 1)
        wait_for("the class", lambda: cluster.status()["change"]["class"] == "Restart")


def test_a_standby_comes_is_told_of_takes_over_and_goes(cluster: Cluster) -> None:
    def replicas() -> int:
        return int(cluster.child("Deployment")["spec"]["replicas"])

    with cluster.operator():
        cluster.run()
        assert "standby" not in cluster.status()
        cluster.change({"driver": {"standby": True}})
        wait_for("a second driver", lambda: replicas() == 2)
        cluster.await_running("one")
        container = cluster.child("Deployment")["spec"]["template"]["spec"]["containers"][0]
        assert "--standby" in container["args"]
        assert container["readinessProbe"]["httpGet"]["path"] == "/readyz"
        assert not cluster.child("Service")["spec"].get("publishNotReadyAddresses")
        assert cluster.status()["change"]["class"] == "Restart"
        wait_for("it is missed", lambda: cluster.status().get("standby") == {"state": "Missing"})
        cluster.driver.standby = {"state": "Ready", "workers": 1}
        wait_for("it is ready", lambda: cluster.status().get("standby") == {"state": "Ready"})
        wait_for("its executors are counted", lambda: cluster.status()["cost"]["executors"] == 2)
        cluster.driver.standby, cluster.driver.took_over_at = {"state": "Starting", "workers": 0}, 1.8e9
        taken = {"state": "Starting", "tookOverAt": "2027-01-15T08:00:00Z"}
        wait_for("it has taken over", lambda: cluster.status().get("standby") == taken)
        wait_for("it is told", lambda: "StandbyTookOver" in {event["reason"] for event in cluster.events()})
        cluster.change({"suspend": True})
        wait_for("both are stopped", lambda: replicas() == 0)
        cluster.change({"suspend": False})
        wait_for("both are started", lambda: replicas() == 2)
        cluster.await_running("one")
        cluster.change({"driver": {"standby": False}})
        wait_for("one driver", lambda: replicas() == 1)
        cluster.await_running("one")
        wait_for("it is told no more", lambda: "standby" not in cluster.status())
        assert cluster.child("Service")["spec"]["publishNotReadyAddresses"]


def test_a_standby_on_a_claim_for_one_node_is_refused(cluster: Cluster) -> None:
    claim = {"persistentVolumeClaim": "state", "size": "1Gi"}
    with pytest.raises(ApiError, match=r"spec\.driver\.standby.*ReadWriteMany"):
        cluster.submit(checkpoint=claim, driver={"standby": True})


def test_query_servers_come_are_told_of_and_go(cluster: Cluster) -> None:
    servers = {"Deployment", "NetworkPolicy", "PodDisruptionBudget", "Secret", "Service"}

    def named() -> set[str]:
        found = ((kind, body["metadata"]["name"]) for kind, bodies in cluster.children().items() for body in bodies)
        return {kind for kind, name in found if name == "sj-one-queries"}

    with cluster.operator():
        cluster.run()
        generation = cluster.child("Deployment")["metadata"]["generation"]
        cluster.change({"queries": {"replicas": 2}})
        wait_for("all they have", lambda: named() == servers)
        cluster.ready("sj-one-queries")
        url = f"http://sj-one-queries.{cluster.namespace}.svc:8080/v1/query"
        wait_for("it is told", lambda: cluster.status().get("queries") == {"replicas": 2, "ready": 2, "url": url})
        cluster.change({"queries": None})
        wait_for("its token alone is left", lambda: named() == {"Secret"})
        wait_for("it is told no more", lambda: "queries" not in cluster.status())
        assert cluster.child("Deployment")["metadata"]["generation"] == generation, "no restart of the driver"


def test_the_examples_of_ways_from_outside_lead_to_query_servers(cluster: Cluster) -> None:
    examples = ROOT / "examples/kubernetes"
    join, ingress, route = (yaml.safe_load((examples / name).read_text()) for name in ("generator.yaml", "ingress.yaml", "httproute.yaml"))
    join = join | {"metadata": {"namespace": "default", "uid": "", **join["metadata"]}, "spec": join["spec"] | {"queries": {"replicas": 2}}}
    manifest = derive(join).manifest
    assert manifest is not None
    _, service, *_ = children.query_servers(Resource.of(join), manifest, Settings(), "")
    (port,) = service["spec"]["ports"]
    known = service["metadata"]["name"], port["name"], port["port"]
    paths = [path for rule in ingress["spec"]["rules"] for path in rule["http"]["paths"]]
    assert {path["path"] for path in paths} == {QUERY, QUERIES.rstrip("/")}
    assert all(path["backend"] == {"service": {"name": known[0], "port": {"name": known[1]}}} for path in paths)
    [rule] = route["spec"]["rules"]
    assert [match["path"]["value"] for match in rule["matches"]] == [path["path"] for path in paths]
    assert rule["backendRefs"] == [{"name": known[0], "port": known[2]}]
    ingress["metadata"]["namespace"] = cluster.namespace
    made = f"/apis/networking.k8s.io/v1/namespaces/{cluster.namespace}/ingresses"
    assert cluster.admin.create(made, ingress, fieldValidation="Strict", dryRun="All")["spec"] == ingress["spec"]


def test_suspend_resume_and_the_plugin(cluster: Cluster, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("PATH", f"{program('kubectl').parent}:/usr/bin:/bin")
    monkeypatch.setenv("KUBECONFIG", str(cluster.server.kubeconfig))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")

    def call(*words: str) -> str:
        assert plugin.main([*words, "-n", cluster.namespace]) == 0
        return capsys.readouterr().out

    with cluster.operator():
        cluster.run()
        assert "Running" in call("status")
        assert "JoinRunning" in call("explain", "one")
        call("suspend", "one")
        wait_for("no replica", lambda: cluster.child("Deployment")["spec"]["replicas"] == 0)
        cluster.ready()
        wait_for("suspended", lambda: cluster.condition("Ready") == ("True", "Suspended"))
        assert "Suspended" in call("status", "one")
        call("resume", "one")
        wait_for("a replica", lambda: cluster.child("Deployment")["spec"]["replicas"] == 1)
        cluster.ready()
        wait_for("it runs", lambda: cluster.condition("Ready") == ("True", "JoinRunning"))
    assert plugin.main(["plan", "absent", "-n", cluster.namespace]) == 1
    assert "not found" in capsys.readouterr().err


def test_orders_are_followed_and_the_ledger_says_who_gave_them(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """By kubectl scale, by a HorizontalPodAutoscaler as its controller does it, and by an edit: as the API server notes them."""
    join = f"{STREAMJOINS.format(cluster.namespace)}/one"

    def decisions() -> list[Object]:
        return list(cluster.status().get("decisions") or [])

    def replaced(replicas: int) -> bool:
        """The scale as a whole, unless somebody was quicker."""
        scale = cluster.admin.get(f"{join}/scale")
        assert scale["spec"]["replicas"], "it would take the scale for disabled"
        try:
            cluster.admin.replace(f"{join}/scale", {**scale, "spec": {"replicas": replicas}}, fieldManager="kube-controller-manager")
        except ApiError as error:
            if error.status != 409:
                raise
        return bool(cluster.get()["spec"]["workers"]["floor"] == replicas)

    def noted() -> list[str]:
        ledger = json.loads(cluster.child("ConfigMap", names.ledger_name("one"))["data"][LEDGER_KEY])["ledger"]
        return [record["decision"]["sentence"] for record in ledger["records"] if record["decision"]["reason"] == "Ordered"]

    with cluster.operator():
        cluster.run()
        wait_for("the ledger", lambda: cluster.admin.exists(f"{PATHS['ConfigMap'].format(cluster.namespace)}/{names.ledger_name('one')}"))
        cluster.server.kubectl("scale", "-n", cluster.namespace, "sj/one", "--replicas=3")
        wait_for("the wish", lambda: cluster.driver.wishes[-1:] == [{"workers": 3, "model": "adsp"}])
        assert noted()[-1].startswith("workers.floor 1 -> 3, by kubectl through /scale"), "it is written down before it is asked for"
        cluster.driver.switch()
        wait_for("the scale", lambda: replaced(4))
        wait_for("the wish", lambda: cluster.driver.wishes[-1:] == [{"workers": 4, "model": "adsp"}])
        assert noted()[-1].startswith("workers.floor 3 -> 4, by kube-controller-manager through /scale (a HorizontalPodAutoscaler)")
        cluster.driver.switch()
        cluster.admin.patch(join, {"spec": {"workers": {"max": 12, "floor": None}, "scheme": {"model": "square"}}}, fieldManager="ann")
        wait_for("the wish", lambda: cluster.driver.wishes[-1:] == [{"workers": 4, "model": "square"}])
        at = next(entry["time"] for entry in cluster.get()["metadata"]["managedFields"] if entry["manager"] == "ann")
        assert noted()[-1] == f"workers.max 8 -> 12, workers.floor 4 -> 1, scheme.model adsp -> square, by ann at {at}"
        cluster.driver.switch()
        part: Object = {"apiVersion": "streamjoin.dev/v1beta1", "kind": "StreamJoin", "spec": {"workers": {"max": 10}}}
        cluster.admin.apply(join, part, "gitops", force=True)
        wait_for("the ledger", lambda: len(noted()) == 4)
        assert noted()[-1].startswith("workers.max 12 -> 10, by gitops at 20")
        cluster.admin.apply(join, part | {"spec": {}}, "gitops", force=True)
        wait_for("the ledger", lambda: len(noted()) == 5)
        assert noted()[-1].startswith("workers.max 10 -> 8, left out, as it seems, by gitops at 20")
        wait_for("they are shown", lambda: [one["reason"] for one in decisions()] == ["Ordered"] * 5)
        assert [(one["workersBefore"], one["workersAfter"]) for one in decisions()] == [(1, 3), (3, 4), (4, 4), (4, 4), (4, 4)]
        orders = noted()
    monkeypatch.setenv("PATH", f"{program('kubectl').parent}:/usr/bin:/bin")
    monkeypatch.setenv("KUBECONFIG", str(cluster.server.kubeconfig))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    assert plugin.main(["explain", "one", "-n", cluster.namespace]) == 0
    told = capsys.readouterr().out
    assert "tau: max 0.50, mean 0.50, by driver, the same for " in told
    told = told.split("What was ordered, and by whom:")[1]
    for order in orders:
        assert order in told


@pytest.fixture
def pod_monitors(api_server: ApiServer) -> Iterator[None]:
    """As much of Prometheus Operator's definition as is needed; all that is in a spec is kept."""
    called = {"kind": "PodMonitor", "listKind": "PodMonitorList", "plural": "podmonitors", "singular": "podmonitor"}
    spec = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    schema = {"openAPIV3Schema": {"type": "object", "properties": {"spec": spec}}}
    versions = [{"name": "v1", "served": True, "storage": True, "schema": schema}]
    api_server.install_crd(
        {
            "apiVersion": "apiextensions.k8s.io/v1",
            "kind": "CustomResourceDefinition",
            "metadata": {"name": "podmonitors.monitoring.coreos.com"},
            "spec": {"group": "monitoring.coreos.com", "scope": "Namespaced", "names": called, "versions": versions},
        }
    )
    yield
    api_server.admin.delete("/apis/apiextensions.k8s.io/v1/customresourcedefinitions/podmonitors.monitoring.coreos.com")
    wait_for("the kind is gone", lambda: not api_server.admin.serves("/apis/monitoring.coreos.com/v1/podmonitors"))


@pytest.mark.usefixtures("pod_monitors")
def test_a_pod_monitor_has_the_labels_that_a_prometheus_selects_by(cluster: Cluster) -> None:
    """Prometheus Operator asks the API server for those that match a selector of labels; so does this."""
    monitors = f"/apis/monitoring.coreos.com/v1/namespaces/{cluster.namespace}/podmonitors"

    def found(selector: str) -> list[str]:
        return [one["metadata"]["name"] for one in cluster.admin.get(monitors, labelSelector=selector)["items"]]

    with cluster.operator(pod_monitor_labels=("release=prometheus", "team=a"), resync_seconds=0.5):
        cluster.run(metrics={"podMonitor": {"labels": {"team": "b", "streamjoin.dev/name": "two"}}})
        assert found("release=prometheus,team=b") == ["sj-one"], "the resource's goes before the operator's"
        assert found("team=a") == []
        assert found("streamjoin.dev/name=one") == ["sj-one"], "what it is found by stays"
        cluster.change({"metrics": {"podMonitor": {"labels": {"release": "other", "team": None}}}})
        wait_for("the change", lambda: found("release=other,team=a") == ["sj-one"])
        assert cluster.driver.wishes == []
        assert cluster.status()["phase"] == "Running"
        cluster.change({"metrics": {"podMonitor": {"labels": {"no label": "x"}}}})
        wait_for("it is refused", lambda: cluster.condition("Degraded") == ("True", "InvalidSpec"))
        (said,) = [one["message"] for one in cluster.status()["conditions"] if one["type"] == "Degraded"]
        assert "spec.metrics.podMonitor.labels" in said
        assert "'no label'" in said


@pytest.mark.usefixtures("pod_monitors")
def test_what_a_prometheus_without_series_of_the_join_lacks_is_in_the_status(cluster: Cluster) -> None:
    """One that answers, and has nothing, as with kube-prometheus-stack, which selects by a label."""

    class Empty(http_stub.Handler):
        def do_GET(self) -> None:
            self.answer(200, b'{"status": "success", "data": {"resultType": "matrix", "result": []}}')

    with closing(http_stub.Served(Empty)) as prometheus, cluster.operator(prometheus_url=prometheus.url) as running:
        cluster.run()
        wait_for("it is said", lambda: cluster.condition("MetricsAvailable") == ("False", "MetricsMissing"))
        (said,) = [one["message"] for one in cluster.status()["conditions"] if one["type"] == "MetricsAvailable"]
        assert said.startswith(f"{prometheus.url} answers, and has no series of this join. PodMonitor sj-one has no label of yours")
        assert "set it in joins.podMonitorLabels (chart) or spec.metrics.podMonitor.labels" in said
        wait_for("rest", lambda: running.operator.queue is not None and running.operator.queue.is_idle)
        versions, polls = cluster.versions(), cluster.driver.polls
        wait_for("polls of the driver", lambda: cluster.driver.polls >= polls + 6)
        assert {**cluster.versions(), "ConfigMap sj-one-decisions": ""} == {**versions, "ConfigMap sj-one-decisions": ""}


def cleaned(cluster: Cluster) -> tuple[str, str]:
    """A StreamJoin that runs, and whose state goes with it; its path, and that of its cleanup's Job."""
    cluster.run(checkpoint={"location": "s3://bucket/state/one", "onDelete": "Delete"})
    uid = cluster.get()["metadata"]["uid"]
    return f"{STREAMJOINS.format(cluster.namespace)}/one", f"{PATHS['Job'].format(cluster.namespace)}/{names.cleanup_name('one', uid)}"


def complete(cluster: Cluster, job: str) -> None:
    """As the Job's controller would."""
    at = "2026-01-01T00:00:00Z"
    ended = [{"type": kind, "status": "True"} for kind in ("SuccessCriteriaMet", "Complete")]
    cluster.admin.patch(f"{job}/status", {"status": {"startTime": at, "completionTime": at, "succeeded": 1, "conditions": ended}})


def test_delete_with_the_state(cluster: Cluster) -> None:
    with cluster.operator():
        path, job = cleaned(cluster)
        cluster.admin.delete(path)
        wait_for("the Job", lambda: cluster.admin.exists(job))
        assert not cluster.admin.exists(f"{PATHS['Deployment'].format(cluster.namespace)}/sj-one")
        wait_for("it is said", lambda: cluster.condition("Reconciling") == ("True", "StateRemoving"))
        complete(cluster, job)
        wait_for("the end", lambda: not cluster.admin.exists(path))
        assert "StateRemoved" in [event["reason"] for event in cluster.events()]


def test_delete_with_the_state_where_a_sidecar_outlives_the_cleanup(cluster: Cluster) -> None:
    with cluster.operator():
        path, job = cleaned(cluster)
        cluster.admin.delete(path)
        wait_for("the Job", lambda: cluster.admin.exists(job))
        made = cluster.admin.get(job)
        owner = {"apiVersion": "batch/v1", "kind": "Job", "controller": True} | {key: made["metadata"][key] for key in ("name", "uid")}
        metadata = {"name": "cleanup-1", "ownerReferences": [owner], "labels": made["spec"]["template"]["metadata"]["labels"]}
        pods = f"/api/v1/namespaces/{cluster.namespace}/pods"
        containers = [{"name": name, "image": "i"} for name in ("cleanup", "istio-proxy")]
        cluster.admin.create(pods, {"metadata": metadata, "spec": {"restartPolicy": "Never", "containers": containers}})
        of_each = {"image": "i", "imageID": "", "ready": False, "restartCount": 0}
        states = {"cleanup": {"terminated": {"exitCode": 0}}, "istio-proxy": {"running": {}}}
        statuses = [{**of_each, "name": name, "state": state} for name, state in states.items()]
        cluster.admin.patch(f"{pods}/cleanup-1/status", {"status": {"phase": "Running", "containerStatuses": statuses}})
        wait_for("the end", lambda: not cluster.admin.exists(path))
        assert "StateRemoved" in [event["reason"] for event in cluster.events()]
        assert cluster.admin.get(job)["spec"]["activeDeadlineSeconds"] == 1


def test_delete_with_the_state_where_all_children_are_deleted_before(cluster: Cluster) -> None:
    """In the foreground, as ``kubectl delete --cascade=foreground`` and many tools do."""
    with cluster.operator():
        path, job = cleaned(cluster)
        cluster.admin.request("DELETE", path, {"propagationPolicy": "Foreground"})
        uid = cluster.get()["metadata"]["uid"]
        for kind, many in cluster.children().items():  # as the garbage collector does
            for found in many:
                owned = any(owner["uid"] == uid for owner in found["metadata"].get("ownerReferences", []))
                place = f"{PATHS[kind].format(cluster.namespace)}/{found['metadata']['name']}"
                if owned and cluster.admin.exists(place):
                    cluster.admin.delete(place)
        wait_for("the Job", lambda: cluster.admin.exists(job))
        template = cluster.admin.get(job)["spec"]["template"]
        assert "s3://bucket/state/one" in template["metadata"]["annotations"][names.MANIFEST]
        assert "StateRemoved" not in [event["reason"] for event in cluster.events()]
        complete(cluster, job)
        wait_for("the end", lambda: cluster.get()["metadata"]["finalizers"] == ["foregroundDeletion"])
        assert "StateRemoved" in [event["reason"] for event in cluster.events()]
        assert cluster.status()["phase"] == "Deleting"


def test_executors_and_what_removes_the_state_have_the_identity_that_a_cloud_knows(cluster: Cluster) -> None:
    """Also when Kubernetes deletes the children first, their service account among them."""
    annotations = {"eks.amazonaws.com/role-arn": "arn:aws:iam::1:role/joins"}
    checkpoint = {"location": "s3://bucket/state/one", "onDelete": "Delete"}
    account = f"{PATHS['ServiceAccount'].format(cluster.namespace)}/sj-one-executors"
    with cluster.operator():
        cluster.run(checkpoint=checkpoint, serviceAccountAnnotations=annotations)
        for name in ("sj-one", "sj-one-executors"):
            found = cluster.child("ServiceAccount", name)
            assert annotations.items() <= found["metadata"]["annotations"].items()
            assert found["automountServiceAccountToken"] is False
        executor = yaml.safe_load(cluster.child("ConfigMap")["data"]["executor.yaml"])
        assert executor["spec"]["serviceAccountName"] == "sj-one-executors"
        changed = dict.fromkeys(annotations, "arn:aws:iam::1:role/others")
        cluster.change({"serviceAccountAnnotations": changed})
        wait_for("the change", lambda: cluster.status().get("change", {}).get("class") == "Restart")
        wait_for("the account", lambda: changed.items() <= cluster.admin.get(account)["metadata"]["annotations"].items())
        cluster.ready()
        job = f"{PATHS['Job'].format(cluster.namespace)}/{names.cleanup_name('one', cluster.get()['metadata']['uid'])}"
        cluster.admin.delete(account)
        cluster.admin.request("DELETE", f"{STREAMJOINS.format(cluster.namespace)}/one", {"propagationPolicy": "Foreground"})
        wait_for("the Job", lambda: cluster.admin.exists(job))
        wait_for("the account", lambda: cluster.admin.exists(account))
        made, owner = cluster.admin.get(account), cluster.admin.get(job)
        assert owner["spec"]["template"]["spec"]["serviceAccountName"] == "sj-one-executors"
        assert [one["uid"] for one in made["metadata"]["ownerReferences"]] == [owner["metadata"]["uid"]]
        assert changed.items() <= made["metadata"]["annotations"].items()
        complete(cluster, job)
        wait_for("the end", lambda: cluster.get()["metadata"]["finalizers"] == ["foregroundDeletion"])


def test_an_annotation_that_is_none_is_said_with_its_field(cluster: Cluster) -> None:
    with cluster.operator():
        cluster.submit(serviceAccountAnnotations={"not a name": "x"})
        wait_for("the refusal", lambda: cluster.condition("Degraded") == ("True", "ApplyRefused"))
        message = next(found["message"] for found in cluster.status()["conditions"] if found["type"] == "Degraded")
        assert message.startswith("ServiceAccount sj-one: ")
        assert message.endswith("look at spec.serviceAccountAnnotations")


def test_deleting_all_of_a_namespace_leaves_joins_and_their_state_and_what_it_takes_comes_back(cluster: Cluster) -> None:
    """``kubectl delete all --all``, as people clean a namespace up; tests/test_crashes.py has drivers that are killed go on."""
    kept = ("StreamJoin", "ConfigMap", "Secret", "PersistentVolumeClaim")

    def known() -> dict[str, str]:
        found = {"StreamJoin": [cluster.get()], **cluster.children()}
        return {f"{kind} {body['metadata']['name']}": body["metadata"]["uid"] for kind, many in found.items() for body in many}

    with cluster.operator():
        cluster.run(checkpoint={"persistentVolumeClaim": "data", "size": "1Gi"})
        before, started, driver = known(), cluster.child("Deployment")["spec"]["template"], "Deployment sj-one"
        cluster.server.kubectl("delete", "all", "--all", "--namespace", cluster.namespace, "--wait=false")
        wait_for("its driver is made anew", lambda: known().get(driver, before[driver]) != before[driver])
        wait_for("all is there again", lambda: known().keys() == before.keys())
        after = known()
        assert {name for name in after if after[name] != before[name]} == {driver, "Service sj-one"}
        assert set(kept) <= {name.split()[0] for name in before}
        assert cluster.child("Deployment")["spec"]["template"] == started, "it goes on from the same checkpoint"
        cluster.ready()
        wait_for("it runs", lambda: cluster.condition("Ready") == ("True", "JoinRunning"))
        assert cluster.condition("Degraded") == ("False", "Healthy")


def test_a_claim_that_the_operator_made_is_owned_as_long_as_it_is_to_go(cluster: Cluster) -> None:
    claim = {"persistentVolumeClaim": "data", "size": "1024Mi"}

    def owners() -> list[Object]:
        return list(cluster.child("PersistentVolumeClaim", "data")["metadata"].get("ownerReferences", []))

    with cluster.operator():
        cluster.run(checkpoint={**claim, "onDelete": "Delete"})
        assert [owner["name"] for owner in owners()] == ["one"]
        cluster.change({"checkpoint": {"onDelete": "Retain"}})
        wait_for("it stays", lambda: owners() == [])
        cluster.change({"checkpoint": {"onDelete": "Delete"}})
        wait_for("it goes", lambda: len(owners()) == 1)
        assert cluster.condition("Degraded") == ("False", "Healthy")


def claimed(cluster: Cluster, *, expands: bool, **checkpoint: Any) -> Callable[[], str]:
    """A join that runs on a claim of the operator's, of a storage class that does, or does not, enlarge it; the claim's size."""
    kind = f"{cluster.namespace}-disks"
    made = {"metadata": {"name": kind}, "provisioner": "example.com/disks", "allowVolumeExpansion": expands}
    cluster.admin.create("/apis/storage.k8s.io/v1/storageclasses", made)
    cluster.run(checkpoint={"persistentVolumeClaim": "data", "size": "1Gi", "storageClassName": kind, **checkpoint})
    path = f"{PATHS['PersistentVolumeClaim'].format(cluster.namespace)}/data"
    cluster.admin.patch(f"{path}/status", {"status": {"phase": "Bound"}})
    return lambda: str(cluster.admin.get(path)["spec"]["resources"]["requests"]["storage"])


def said(cluster: Cluster, kind: str) -> str:
    return next(str(one["message"]) for one in cluster.status()["conditions"] if one["type"] == kind)


def test_a_larger_size_enlarges_a_claim_and_a_smaller_one_is_refused(cluster: Cluster) -> None:
    with cluster.operator():
        size = claimed(cluster, expands=True, accessModes=["ReadWriteMany"])
        assert cluster.child("PersistentVolumeClaim", "data")["spec"]["accessModes"] == ["ReadWriteMany"]
        cluster.change({"checkpoint": {"size": "10Gi"}})
        wait_for("it is enlarged", lambda: size() == "10Gi")
        assert cluster.condition("Degraded") == ("False", "Healthy")
        cluster.change({"checkpoint": {"size": "5Gi"}})
        wait_for("it is refused", lambda: cluster.condition("Degraded") == ("True", "ClaimKept"))
        message = "spec.checkpoint.size: 5Gi: PersistentVolumeClaim data has 10Gi, and a claim never shrinks; give 10Gi, or copy"
        assert said(cluster, "Degraded").startswith(message)
        assert (size(), cluster.condition("Available")) == ("10Gi", ("True", "JoinRunning"))
        cluster.change({"checkpoint": {"size": "10Gi", "accessModes": ["ReadWriteOnce"], "storageClassName": "fast"}})
        wait_for("so are others", lambda: "spec.checkpoint.accessModes: ReadWriteOnce" in said(cluster, "Degraded"))
        assert "spec.checkpoint.storageClassName: fast: PersistentVolumeClaim data has " in said(cluster, "Degraded")
        cluster.change({"checkpoint": {"accessModes": None, "storageClassName": None}})
        wait_for("it is well", lambda: cluster.condition("Degraded") == ("False", "Healthy"))
        by_hand = {"spec": {"resources": {"requests": {"storage": "20Gi"}}}}
        cluster.admin.patch(f"{PATHS['PersistentVolumeClaim'].format(cluster.namespace)}/data", by_hand)
        cluster.change({"checkpoint": {"onDelete": "Delete"}})
        wait_for("it goes", lambda: cluster.child("PersistentVolumeClaim", "data")["metadata"].get("ownerReferences"))
        assert (size(), cluster.condition("Degraded")) == ("20Gi", ("False", "Healthy")), "what somebody else has enlarged stays so"


def test_a_claim_that_cannot_be_enlarged_is_said_and_the_join_goes_on(cluster: Cluster) -> None:
    with cluster.operator():
        size = claimed(cluster, expands=False)
        cluster.change({"checkpoint": {"size": "10Gi", "onDelete": "Delete"}})
        wait_for("it is said", lambda: cluster.condition("Degraded") == ("True", "ClaimKept"))
        assert "spec.checkpoint.size: 10Gi: PersistentVolumeClaim data stays at 1Gi: " in said(cluster, "Degraded")
        assert "must support resize" in said(cluster, "Degraded")
        assert (size(), cluster.condition("Available")) == ("1Gi", ("True", "JoinRunning"))
        assert cluster.child("PersistentVolumeClaim", "data")["metadata"]["ownerReferences"], "all else is as it is to be"
        assert [event["type"] for event in cluster.events() if event["reason"] == "ClaimKept"] == ["Warning"]


def test_delete_with_a_namespace_leaves_the_state_at_once_and_says_so(cluster: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    with cluster.operator():
        path, _ = cleaned(cluster)
        cluster.admin.delete(f"/api/v1/namespaces/{cluster.namespace}")
        cluster.admin.delete(path)  # as the namespace's controller does
        wait_for("the end", lambda: not cluster.admin.exists(path))
    (said,) = {record.getMessage() for record in caplog.records if record.getMessage().startswith("StateLeft")}
    assert "the namespace is being deleted" in said
    assert "s3://bucket/state/one" in said


def test_a_pod_template_that_the_api_server_refuses_is_said(cluster: Cluster) -> None:
    with cluster.operator():
        cluster.submit(driver={"podTemplate": {"spec": {"containers": [{"name": "driver", "image": ""}]}}})
        wait_for("the refusal", lambda: cluster.condition("Degraded") == ("True", "ApplyRefused"))
        message = next(found["message"] for found in cluster.status()["conditions"] if found["type"] == "Degraded")
        assert "image" in message


ANY_UID = {"runAsUser": None, "runAsGroup": None, "fsGroup": None}


@pytest.mark.parametrize(
    ("arguments", "is_there", "security"),
    [
        (("create",), False, ANY_UID),
        (("apply", "--server-side"), False, ANY_UID),
        (("apply", "--server-side", "--force-conflicts"), True, ANY_UID),
        (("apply",), True, {"$patch": "replace", "runAsNonRoot": True}),
        (("apply", "--server-side"), False, {"$patch": "replace", "runAsNonRoot": True}),
    ],
)
def test_a_pod_template_takes_fields_away(cluster: Cluster, arguments: tuple[str, ...], is_there: bool, security: Object) -> None:
    body = streamjoin()
    body["metadata"] = {"name": "one", "namespace": cluster.namespace}
    with cluster.operator():
        if is_there:
            cluster.server.kubectl("apply", "-f", "-", stdin=json.dumps(body))
            wait_for("the driver", lambda: cluster.counts().get("Deployment"))
            cluster.ready()
            wait_for("it runs", lambda: cluster.condition("Ready") == ("True", "JoinRunning"))
        template = {"podTemplate": {"spec": {"securityContext": security}}}
        body["spec"] |= {"driver": template, "executor": template}
        cluster.server.kubectl(*arguments, "-f", "-", stdin=json.dumps(body))

        def security_of_driver() -> Object:
            found = cluster.children().get("Deployment") or [{"spec": {"template": {"spec": {"securityContext": {"runAsUser": 10001}}}}}]
            return dict(found[0]["spec"]["template"]["spec"]["securityContext"])

        wait_for("the fields are gone", lambda: not set(ANY_UID) & set(security_of_driver()))
        assert security_of_driver()["runAsNonRoot"] is True
        files = next(one["data"] for one in cluster.children()["ConfigMap"] if "executor.yaml" in one["data"])
        assert not set(ANY_UID) & set(yaml.safe_load(files["executor.yaml"])["spec"]["securityContext"])


@pytest.mark.parametrize(
    ("template", "said"),
    [
        ({"spec": {"tolerationz": []}}, "spec.driver.podTemplate"),
        ({"spec": {"containers": [{"name": "driver", "resources": {"limits": {"cpu": "2 cores"}}}]}}, "spec.driver.podTemplate"),
        ({"spec": {"containers": [{"name": "driver", "ports": "8080"}]}}, "spec.driver.podTemplate"),
        ({"spec": {"terminationGracePeriodSeconds": "soon"}}, "spec.driver.podTemplate"),
        ({"metadata": {"labels": {"a": "not a label!"}}}, "not a label!"),
    ],
)
def test_what_is_wrong_with_a_pod_template_is_said_in_the_servers_words_and_what_runs_goes_on(
    cluster: Cluster, template: Object, said: str
) -> None:
    with cluster.operator():
        cluster.run()
        cluster.change({"driver": {"podTemplate": template}})
        wait_for("the refusal", lambda: cluster.condition("Degraded") == ("True", "ApplyRefused"))
        message = next(found["message"] for found in cluster.status()["conditions"] if found["type"] == "Degraded")
        assert message.startswith("Deployment sj-one: ")
        assert said in message
        assert cluster.condition("Available") == ("True", "JoinRunning")
        cluster.change({"driver": None})
        wait_for("it is mended", lambda: cluster.condition("Degraded") == ("False", "Healthy"))


def test_a_right_that_is_missing_is_said_and_what_runs_goes_on(cluster: Cluster) -> None:
    with cluster.operator(resync_seconds=0.2):
        cluster.run()
        cluster.take_right("poddisruptionbudgets")
        wait_for("it is said", lambda: cluster.condition("Degraded") == ("True", "ApiRefused"))
        message = next(found["message"] for found in cluster.status()["conditions"] if found["type"] == "Degraded")
        assert "poddisruptionbudgets" in message
        assert cluster.condition("Ready") == ("True", "JoinRunning")
        cluster.take_right()
        wait_for("it is granted again", lambda: cluster.condition("Degraded") == ("False", "Healthy"))


def test_pods_are_admitted_where_pod_security_is_restricted(cluster: Cluster) -> None:
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    cluster.admin.patch(f"/api/v1/namespaces/{cluster.namespace}", {"metadata": {"labels": labels}})
    with cluster.operator():
        cluster.run(checkpoint={"persistentVolumeClaim": "data", "size": "1Gi"})
    pods = f"/api/v1/namespaces/{cluster.namespace}/pods"
    template = cluster.child("Deployment")["spec"]["template"]
    cluster.admin.create(pods, {**template, "metadata": {"name": "driver"}}, dryRun="All")
    executor = yaml.safe_load(cluster.child("ConfigMap")["data"]["executor.yaml"])
    executor["spec"]["containers"][0]["image"] = "engine:1"
    cluster.admin.create(pods, {**executor, "metadata": {"name": "executor"}}, dryRun="All")
    del executor["spec"]["securityContext"]
    with pytest.raises(ApiError, match="violates PodSecurity"):
        cluster.admin.create(pods, {**executor, "metadata": {"name": "executor"}}, dryRun="All")


def test_a_driver_has_its_rights_and_no_others(cluster: Cluster) -> None:
    with cluster.operator():
        cluster.run()
    for verb in ("get", "list", "watch", "create", "delete", "deletecollection"):
        assert cluster.server.allowed(cluster.namespace, "sj-one", verb, "pods")
        assert not cluster.server.allowed(cluster.namespace, "sj-one", verb, "pods", within="default")
        for resource in ("secrets", "configmaps", "services", "persistentvolumeclaims", "pods/exec"):
            assert not cluster.server.allowed(cluster.namespace, "sj-one", verb, resource)
    assert not cluster.server.allowed(cluster.namespace, "sj-one", "patch", "pods")
    assert not cluster.server.allowed(cluster.namespace, "sj-one", "get", "streamjoins", "streamjoin.dev")


def test_the_operator_has_no_right_too_many(cluster: Cluster) -> None:
    denied = [
        *(("list", "secrets", ""), ("delete", "secrets", ""), ("watch", "secrets", ""), ("create", "pods/exec", "")),
        *(("delete", "streamjoins", "streamjoin.dev"), ("create", "streamjoins", "streamjoin.dev")),
        ("delete", "persistentvolumeclaims", ""),
        *(("escalate", "roles", "rbac.authorization.k8s.io"), ("bind", "roles", "rbac.authorization.k8s.io"), ("list", "nodes", "")),
        *(("get", "events", ""), ("create", "statefulsets", "apps"), ("impersonate", "users", "")),
    ]
    for verb, resource, group in denied:
        assert not cluster.server.allowed(cluster.namespace, SERVICE_ACCOUNT, verb, resource, group), (verb, resource)
    assert not cluster.server.allowed(cluster.namespace, SERVICE_ACCOUNT, "list", "streamjoins", "streamjoin.dev", within="default")


@pytest.mark.parametrize("fault", [409, 410, 422, 429, 500, 503, "cut", "slow"])
def test_faults_on_the_wire_change_nothing_in_the_end(cluster: Cluster, fault: int | str) -> None:
    with (
        FaultProxy(cluster.server.url, cluster.server.ca_file) as proxy,
        cluster.operator(asyncio.run(cluster.way(proxy.url)), resync_seconds=0.1) as running,
    ):
        running.await_ready()
        proxy.fault, proxy.every = fault, 37  # a check takes up to 36 requests
        cluster.submit()
        cluster.ready()
        wait_for("some faults", lambda: proxy.injected >= 3)
        cluster.change({"workers": {"capacityTuples": 50_000}})
        proxy.fault = None
        wait_for("the change", lambda: cluster.child("Deployment")["metadata"]["generation"] >= 2 and cluster.judged() == 2)
        cluster.ready()
        wait_for("it runs", lambda: cluster.condition("Ready") == ("True", "JoinRunning"))
        wait_for("each once, when its driver is replaced", lambda: cluster.counts() == CHILDREN_OF_ONE)


def test_a_watch_that_is_cut_is_taken_up_again(cluster: Cluster) -> None:
    with FaultProxy(cluster.server.url, cluster.server.ca_file) as proxy, cluster.operator(asyncio.run(cluster.way(proxy.url))):
        cluster.run()
        proxy.cut_watches()
        cluster.change({"suspend": True})
        wait_for("no replica", lambda: cluster.child("Deployment")["spec"]["replicas"] == 0)


def test_two_operators_at_once_do_no_harm(cluster: Cluster) -> None:
    settings = {"poll_seconds": 0.25, "resync_seconds": 1.0}
    with cluster.operator(**settings) as first, cluster.operator(**settings) as second:
        for number in range(5):
            cluster.submit(f"join-{number}")
        for number in range(5):
            cluster.await_running(f"join-{number}")
            # Also where one has made files that the other's driver does not read.
            wait_for("each child once", lambda name=f"join-{number}": cluster.counts(name) == CHILDREN_OF_ONE)  # type: ignore[misc]

        def await_polls(each: int) -> None:
            enough = cluster.driver.polls + each * 5 * 2
            wait_for("polls of each driver by both", lambda: cluster.driver.polls >= enough)

        await_polls(3)
        queues = [running.operator.queue for running in (first, second) if running.operator.queue is not None]
        wait_for("neither has to try again", lambda: not any(queue.failing() for queue in queues))
        writes = [running.requests("apply", "patch", "create", "delete") for running in (first, second)]
        await_polls(6)
        assert [running.requests("apply", "patch", "create", "delete") for running in (first, second)] == writes


def test_health_and_metrics_are_served(cluster: Cluster) -> None:
    import urllib.request

    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with cluster.operator() as running:
        cluster.run()
        url = f"http://127.0.0.1:{running.operator.port}"
        assert opener.open(f"{url}/healthz").status == 200
        assert opener.open(f"{url}/readyz").status == 200

        def metrics() -> str:
            return str(opener.open(f"{url}/metrics").read().decode())

        wait_for("it is counted", lambda: 'streamjoin_operator_streamjoins{phase="Running"} 1.0' in metrics())
        text = metrics()
        assert 'streamjoin_operator_reconciles_total{result="success"}' in text
        assert "streamjoin_operator_queue_age_seconds" in text


def test_two_operators_of_two_classes_share_a_namespace_and_hand_a_join_over(cluster: Cluster) -> None:
    with cluster.operator(operator_class="blue") as blue, cluster.operator() as plain:
        blue.await_ready()
        plain.await_ready()
        cluster.run("one", operatorClass="blue")
        cluster.run("two")
        assert blue.operator.reconciler is not None
        assert plain.operator.reconciler is not None
        assert list(blue.operator.reconciler.seen.bodies) == [(cluster.namespace, "one")]
        assert list(plain.operator.reconciler.seen.bodies) == [(cluster.namespace, "two")]
        generation = cluster.child("Deployment")["metadata"]["generation"]
        cluster.change({"operatorClass": None})
        wait_for("the other has it", lambda: (cluster.namespace, "one") in plain.operator.reconciler.seen.bodies)
        wait_for("it is let go", lambda: (cluster.namespace, "one") not in blue.operator.reconciler.seen.bodies)
        cluster.change({"paused": True})
        wait_for("it is paused", lambda: cluster.status()["phase"] == "Paused")
        assert cluster.child("Deployment")["metadata"]["generation"] == generation, "neither restarts the join"


def test_a_class_that_is_no_name_is_refused(cluster: Cluster) -> None:
    with pytest.raises(ApiError, match="operatorClass"):
        cluster.submit(operatorClass="Blue team")
