"""The operator as it runs, kopf and all, against a real API server: children, drift, faults of the wire, rights, and rest.

No controller runs there, so the tests say in a Deployment's status what its controller would.
"""

from __future__ import annotations

import asyncio
import base64
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from apiserver import ApiError, ApiServer
from fault_proxy import FaultProxy
from operator_parts import FakeDriver, Object, streamjoin
from scaled_join import ScaledJoin, ScaledServer
from streamjoin_operator import names, plugin
from streamjoin_operator.access import Access, from_kubeconfig
from streamjoin_operator.children import DRIVER_RULES, LEDGER_KEY
from streamjoin_operator.children import ledger as ledger_map
from streamjoin_operator.main import Operator
from streamjoin_operator.resource import Resource
from streamjoin_operator.settings import Settings
from waiting import wait_for as wait_longer

pytestmark = pytest.mark.apiserver

ROOT = Path(__file__).resolve().parent.parent
SERVICE_ACCOUNT = "streamjoin-operator"
PATHS = {
    "Deployment": "/apis/apps/v1/namespaces/{}/deployments",
    "Service": "/api/v1/namespaces/{}/services",
    "ConfigMap": "/api/v1/namespaces/{}/configmaps",
    "Secret": "/api/v1/namespaces/{}/secrets",
    "ServiceAccount": "/api/v1/namespaces/{}/serviceaccounts",
    "Role": "/apis/rbac.authorization.k8s.io/v1/namespaces/{}/roles",
    "RoleBinding": "/apis/rbac.authorization.k8s.io/v1/namespaces/{}/rolebindings",
    "PodDisruptionBudget": "/apis/policy/v1/namespaces/{}/poddisruptionbudgets",
    "NetworkPolicy": "/apis/networking.k8s.io/v1/namespaces/{}/networkpolicies",
    "PersistentVolumeClaim": "/api/v1/namespaces/{}/persistentvolumeclaims",
    "Job": "/apis/batch/v1/namespaces/{}/jobs",
}
STREAMJOINS = "/apis/streamjoin.dev/v1alpha1/namespaces/{}/streamjoins"
CHILDREN = ["ConfigMap", "Deployment", "NetworkPolicy", "Role", "RoleBinding", "Secret", "Service", "ServiceAccount"]
CHILDREN_OF_ONE = dict.fromkeys(CHILDREN, 1) | {"NetworkPolicy": 2, "Secret": 2}
OPERATOR_RULES: list[Object] = [
    {"apiGroups": ["streamjoin.dev"], "resources": ["streamjoins"], "verbs": ["get", "list", "watch", "patch"]},
    {"apiGroups": ["streamjoin.dev"], "resources": ["streamjoins/status"], "verbs": ["get", "patch"]},
    {"apiGroups": ["streamjoin.dev"], "resources": ["streamjoins/finalizers"], "verbs": ["update"]},
    {"apiGroups": ["apps"], "resources": ["deployments"], "verbs": ["get", "list", "watch", "create", "patch", "delete"]},
    {
        "apiGroups": [""],
        "resources": ["services", "configmaps", "serviceaccounts"],
        "verbs": ["list", "create", "patch", "delete"],
    },
    {"apiGroups": [""], "resources": ["persistentvolumeclaims", "secrets"], "verbs": ["get", "create", "patch"]},
    {"apiGroups": [""], "resources": ["events"], "verbs": ["create"]},
    {
        "apiGroups": ["rbac.authorization.k8s.io"],
        "resources": ["roles", "rolebindings"],
        "verbs": ["list", "create", "patch", "delete"],
    },
    {"apiGroups": ["policy"], "resources": ["poddisruptionbudgets"], "verbs": ["list", "create", "patch", "delete"]},
    {"apiGroups": ["networking.k8s.io"], "resources": ["networkpolicies"], "verbs": ["list", "create", "patch", "delete"]},
    {"apiGroups": ["batch"], "resources": ["jobs"], "verbs": ["get", "create", "patch"]},
    {"apiGroups": ["monitoring.coreos.com"], "resources": ["podmonitors"], "verbs": ["list", "create", "patch", "delete"]},
    *DRIVER_RULES,
]
"""What docs/operator.md says that the operator needs, and nothing else: the tests run it with these rights."""


def wait_for(what: str, found: Callable[[], Any]) -> Any:
    return wait_longer(what, found, 40)


class Running:
    """An operator in a thread with a loop of its own, as in its container."""

    def __init__(self, way: Access, settings: Settings, on_step: Callable[[str], None] = lambda step: None) -> None:
        self.operator = Operator(settings, way, on_step=on_step)
        self.failure: BaseException | None = None
        self._stop: asyncio.Event | None = None
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)

        async def main() -> None:
            self._stop = asyncio.Event()
            await self.operator.run(self._stop)

        try:
            self._loop.run_until_complete(main())
        except BaseException as error:
            self.failure = error

    def await_ready(self) -> None:
        """Its watches are set up."""
        wait_for("it is ready", lambda: self.failure is not None or (self.operator.health is not None and self.operator.health.is_ready))
        assert self.failure is None

    def requests(self, *verbs: str) -> float:
        return sum(count for (verb, _), count in self.operator.metrics.sum_of_requests().items() if not verbs or verb in verbs)

    def close(self) -> None:
        if self._stop is not None and self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(20)
        assert not self._thread.is_alive()


class Cluster:
    """A namespace with the operator's rights, and what tests do there."""

    def __init__(self, server: ApiServer, driver: FakeDriver) -> None:
        self.server, self.driver, self.admin = server, driver, server.admin
        self.namespace = server.namespace("operator")
        rbac = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{self.namespace}"
        self.admin.create(f"/api/v1/namespaces/{self.namespace}/serviceaccounts", {"metadata": {"name": SERVICE_ACCOUNT}})
        self.admin.create(f"{rbac}/roles", {"metadata": {"name": SERVICE_ACCOUNT}, "rules": OPERATOR_RULES})
        reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": SERVICE_ACCOUNT}
        subject = {"kind": "ServiceAccount", "name": SERVICE_ACCOUNT, "namespace": self.namespace}
        self.admin.create(f"{rbac}/rolebindings", {"metadata": {"name": SERVICE_ACCOUNT}, "roleRef": reference, "subjects": [subject]})

    def settings(self, **changes: Any) -> Settings:
        quick = {"poll_seconds": 0.1, "start_seconds": 0.1, "status_seconds": 0.1, "port": 0}
        quick |= {"watch_namespaces": (self.namespace,), "driver_url": self.driver.url, "engine_image": "engine:1"}
        return Settings(**{**quick, **changes})

    def way(self, server: str | None = None) -> Access:
        token = self.server.token(self.namespace, SERVICE_ACCOUNT)
        way = from_kubeconfig(self.server.kubeconfig_for(f"operator-{self.namespace}", token, self.namespace))
        if server is not None:
            way.server, way.ca = server, None
        return way

    @contextmanager
    def operator(self, way: Access | None = None, **settings: Any) -> Iterator[Running]:
        running = Running(way or self.way(), self.settings(**settings))
        try:
            yield running
            assert running.failure is None
        finally:
            running.close()

    def submit(self, name: str = "one", **spec: Any) -> Object:
        body = streamjoin(name, **spec)
        body["metadata"] = {"name": name, "namespace": self.namespace}
        return self.admin.create(STREAMJOINS.format(self.namespace), body)

    def get(self, name: str = "one") -> Object:
        return self.admin.get(f"{STREAMJOINS.format(self.namespace)}/{name}")

    def status(self, name: str = "one") -> Object:
        return dict(self.get(name).get("status") or {})

    def change(self, spec: Object, name: str = "one") -> None:
        self.admin.patch(f"{STREAMJOINS.format(self.namespace)}/{name}", {"spec": spec})

    def condition(self, kind: str, name: str = "one") -> tuple[str, str] | None:
        found = [condition for condition in self.status(name).get("conditions") or [] if condition["type"] == kind]
        return (found[0]["status"], found[0]["reason"]) if found else None

    def child(self, kind: str, name: str = "sj-one") -> Object:
        return self.admin.get(f"{PATHS[kind].format(self.namespace)}/{name}")

    def children(self, name: str = "one") -> dict[str, list[Object]]:
        selector = names.selector(name)
        found = {kind: self.admin.get(path.format(self.namespace), labelSelector=selector)["items"] for kind, path in PATHS.items()}
        return {kind: objects for kind, objects in found.items() if objects}

    def ready(self, name: str = "sj-one") -> None:
        """As the Deployment's controller would."""
        path = f"{PATHS['Deployment'].format(self.namespace)}/{name}"
        found = wait_for("the Deployment", lambda: self.admin.exists(path) and self.admin.get(path))
        replicas = found["spec"]["replicas"]
        counts = {"replicas": replicas, "readyReplicas": replicas, "availableReplicas": replicas, "updatedReplicas": replicas}
        body = {"status": {**counts, "observedGeneration": found["metadata"]["generation"]}}
        self.admin.patch(f"{path}/status", body)

    def run(self, name: str = "one", **spec: Any) -> None:
        """A StreamJoin that runs."""
        self.submit(name, **spec)
        self.ready(names.base_name(name))
        wait_for("it runs", lambda: self.condition("Ready", name) == ("True", "JoinRunning"))

    def versions(self) -> dict[str, str]:
        """What a write changes, of everything that is ours."""
        found = {"StreamJoin": [self.get()], **self.children()}
        return {f"{kind} {body['metadata']['name']}": body["metadata"]["resourceVersion"] for kind, many in found.items() for body in many}


@pytest.fixture(scope="module")
def server(api_server: ApiServer) -> ApiServer:
    api_server.install_crd(yaml.safe_load((ROOT / "crds" / "streamjoins.streamjoin.dev.yaml").read_text()))
    return api_server


@pytest.fixture
def driver() -> Iterator[FakeDriver]:
    driver = FakeDriver()
    yield driver
    driver.close()


@pytest.fixture
def cluster(server: ApiServer, driver: FakeDriver) -> Cluster:
    return Cluster(server, driver)


def test_from_apply_to_running_with_the_rights_that_are_documented_and_then_rest(cluster: Cluster) -> None:
    with cluster.operator() as running:
        cluster.run()
        assert sorted(cluster.children()) == CHILDREN
        status = cluster.status()
        assert (status["phase"], status["workers"], status["desiredWorkers"]) == ("Running", 1, 1)
        assert status["utilization"] == {"max": "0.50", "mean": "0.50"}
        wait_for("rest", lambda: running.operator.queue is not None and running.operator.queue.is_idle)
        versions, requests, polls = cluster.versions(), running.requests(), cluster.driver.polls
        wait_for("polls of the driver", lambda: cluster.driver.polls >= polls + 6)
        assert cluster.versions() == versions
        assert running.requests() == requests, "an idle join costs the API server nothing"


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


def test_load_is_followed_and_the_decision_is_kept_where_the_api_server_keeps_it(server: ApiServer, driver: FakeDriver) -> None:
    """A join that gets fuller, scaled by its own metrics: ledger, status and events pass the real schema and the documented rights."""
    cluster = Cluster(server, driver)
    join = ScaledJoin(time.time, 48_000.0, start_seconds=1.0, move_seconds=0.5)
    scaled = ScaledServer(join)
    try:
        with cluster.operator(driver_url=f"http://{scaled.address}", price_per_executor_hour=0.5):
            cluster.run(scaling={"scaleUpAfter": "1s"})

            def last() -> Object:
                return dict((cluster.status().get("decisions") or [{}])[-1])

            wait_longer("it grows, and what came true is known", lambda: "realizedUtilization" in last(), 120)
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


def test_suspend_resume_and_the_plugin(cluster: Cluster, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    from apiserver import program

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
        wait_for("suspended", lambda: cluster.condition("Ready") == ("False", "Suspended"))
        assert "Suspended" in call("status", "one")
        call("resume", "one")
        wait_for("a replica", lambda: cluster.child("Deployment")["spec"]["replicas"] == 1)
        cluster.ready()
        wait_for("it runs", lambda: cluster.condition("Ready") == ("True", "JoinRunning"))
    assert plugin.main(["plan", "absent", "-n", cluster.namespace]) == 1
    assert "not found" in capsys.readouterr().err


def test_scale_sets_a_floor(cluster: Cluster) -> None:
    with cluster.operator():
        cluster.run()
        cluster.admin.patch(f"{STREAMJOINS.format(cluster.namespace)}/one/scale", {"spec": {"replicas": 3}})
        wait_for("the wish", lambda: cluster.driver.wishes[-1:] == [{"workers": 3, "model": "adsp"}])


def test_delete_with_the_state(cluster: Cluster) -> None:
    with cluster.operator():
        cluster.run(checkpoint={"location": "s3://bucket/state/one", "onDelete": "Delete"})
        path = f"{STREAMJOINS.format(cluster.namespace)}/one"
        cluster.admin.delete(path)
        job = f"{PATHS['Job'].format(cluster.namespace)}/sj-one-cleanup"
        wait_for("the Job", lambda: cluster.admin.exists(job))
        assert not cluster.admin.exists(f"{PATHS['Deployment'].format(cluster.namespace)}/sj-one")
        at = "2026-01-01T00:00:00Z"
        ended = [{"type": kind, "status": "True"} for kind in ("SuccessCriteriaMet", "Complete")]
        cluster.admin.patch(f"{job}/status", {"status": {"startTime": at, "completionTime": at, "succeeded": 1, "conditions": ended}})
        wait_for("the end", lambda: not cluster.admin.exists(path))


def test_a_pod_template_that_the_api_server_refuses_is_said(cluster: Cluster) -> None:
    with cluster.operator():
        cluster.submit(driver={"podTemplate": {"spec": {"containers": [{"name": "driver", "image": ""}]}}})
        wait_for("the refusal", lambda: cluster.condition("Degraded") == ("True", "ApplyRefused"))
        message = next(found["message"] for found in cluster.status()["conditions"] if found["type"] == "Degraded")
        assert "image" in message


def test_pods_are_admitted_where_pod_security_is_restricted(server: ApiServer, driver: FakeDriver) -> None:
    cluster = Cluster(server, driver)
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
        cluster.operator(cluster.way(proxy.url), resync_seconds=0.1) as running,
    ):
        running.await_ready()
        proxy.fault, proxy.every = fault, 29  # a check takes up to 28 requests
        cluster.submit()
        cluster.ready()
        wait_for("some faults", lambda: proxy.injected >= 3)
        cluster.change({"workers": {"capacityTuples": 50_000}})
        proxy.fault = None
        wait_for("the change", lambda: cluster.child("Deployment")["metadata"]["generation"] >= 1 and _seen(cluster, 2))
        cluster.ready()
        wait_for("it runs", lambda: cluster.condition("Ready") == ("True", "JoinRunning"))
        assert {kind: len(found) for kind, found in cluster.children().items()} == CHILDREN_OF_ONE


def _seen(cluster: Cluster, generation: int) -> bool:
    return bool(cluster.status().get("observedGeneration") == generation)


def test_a_watch_that_is_cut_is_taken_up_again(cluster: Cluster) -> None:
    with FaultProxy(cluster.server.url, cluster.server.ca_file) as proxy, cluster.operator(cluster.way(proxy.url)):
        cluster.run()
        proxy.cut_watches()
        cluster.change({"suspend": True})
        wait_for("no replica", lambda: cluster.child("Deployment")["spec"]["replicas"] == 0)


def test_two_operators_at_once_do_no_harm(cluster: Cluster) -> None:
    with cluster.operator(poll_seconds=0.25) as first, cluster.operator(poll_seconds=0.25) as second:
        for number in range(5):
            cluster.submit(f"join-{number}")
        for number in range(5):
            cluster.ready(f"sj-join-{number}")
        for number in range(5):
            wait_for("it runs", lambda name=f"join-{number}": cluster.condition("Ready", name) == ("True", "JoinRunning"))  # type: ignore[misc]
            assert {kind: len(found) for kind, found in cluster.children(f"join-{number}").items()} == CHILDREN_OF_ONE

        def await_polls(each: int) -> None:
            enough = cluster.driver.polls + each * 5 * 2
            wait_for("polls of each driver by both", lambda: cluster.driver.polls >= enough)

        await_polls(3)
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
        text = opener.open(f"{url}/metrics").read().decode()
        assert 'streamjoin_operator_streamjoins{phase="Running"} 1.0' in text
        assert 'streamjoin_operator_reconciles_total{result="success"}' in text
        assert "streamjoin_operator_queue_age_seconds" in text
