"""An operator against a real API server, for tests: the rights that it has, a thread that it runs in, and what a cluster would do for it.

No controller runs there, so tests say in a Deployment's status what its controller would.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from apiserver import ApiError, ApiServer
from chart import of_kind, rendered
from documents import parsed
from operator_parts import FakeDriver, Object, streamjoin, trial_status
from streamjoin_operator import names
from streamjoin_operator.access import Access, from_kubeconfig
from streamjoin_operator.main import Operator
from streamjoin_operator.settings import Settings
from waiting import PATIENCE_SECONDS, wait_for

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
DEFINITION = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/streamjoins.streamjoin.dev"
STREAMJOINS = "/apis/streamjoin.dev/v1beta1/namespaces/{}/streamjoins"
SNAPSHOTS = "/apis/streamjoin.dev/v1beta1/namespaces/{}/streamjoinsnapshots"


def operator_rules() -> list[Object]:
    """What the chart gives the operator in a namespace that it watches: tests run it with these rights and no others."""
    roles = of_kind(rendered({"watch": {"namespaces": ["watched"]}}), "Role")
    (rules,) = (role["rules"] for role in roles if role["metadata"]["namespace"] == "watched")
    return list(rules)


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

    def of_joins(self) -> dict[tuple[str, str], float]:
        """Requests by verb and code, without those that renew a Lease by the clock: nothing else is replaced."""
        return {asked: count for asked, count in self.operator.metrics.sum_of_requests().items() if asked[0] != "replace"}

    def requests(self, *verbs: str) -> float:
        return sum(count for (verb, _), count in self.operator.metrics.sum_of_requests().items() if not verbs or verb in verbs)

    def close(self) -> None:
        if self._stop is not None and self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(PATIENCE_SECONDS)
        assert not self._thread.is_alive()


class Kubelet:
    """Has trials of new pod templates end, as nodes would, until it is closed."""

    EVERY_SECONDS = 0.05

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.wait(self.EVERY_SECONDS):
            for pod in self._cluster.trials():
                with contextlib.suppress(ApiError):  # somebody was quicker
                    if "containerStatuses" not in pod.get("status", {}):
                        self._cluster.end_trial(pod)

    def close(self) -> None:
        self._stop.set()
        self._thread.join()


class Cluster:
    """A namespace with the operator's rights, and what tests do there."""

    account: tuple[str, str]
    """Whom the operator is: a namespace, and a service account in it."""
    lacks_rights = False
    """Whether a test has it do without some."""

    def __init__(self, server: ApiServer, driver: FakeDriver) -> None:
        self.server, self.driver, self.admin = server, driver, server.admin
        self.namespace = server.namespace("operator")
        self.account = (self.namespace, SERVICE_ACCOUNT)
        self.trial: tuple[str, Object] | None = None
        """A container, and its state, of trials that are begun from now on; None: they come up."""
        rbac = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{self.namespace}"
        self.admin.create(f"/api/v1/namespaces/{self.namespace}/serviceaccounts", {"metadata": {"name": SERVICE_ACCOUNT}})
        self.admin.create(f"{rbac}/roles", {"metadata": {"name": SERVICE_ACCOUNT}, "rules": operator_rules()})
        reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": SERVICE_ACCOUNT}
        subject = {"kind": "ServiceAccount", "name": SERVICE_ACCOUNT, "namespace": self.namespace}
        self.admin.create(f"{rbac}/rolebindings", {"metadata": {"name": SERVICE_ACCOUNT}, "roleRef": reference, "subjects": [subject]})

    def settings(self, **changes: Any) -> Settings:
        quick = {"poll_seconds": 0.1, "start_seconds": 0.1, "status_seconds": 0.1, "port": 0}
        quick |= {"watch_namespaces": (self.namespace,), "driver_url": self.driver.url, "engine_image": "engine:1"}
        return Settings(**{**quick, **changes})

    async def way(self, server: str | None = None) -> Access:
        """``server``: another place where the API server is reached, without TLS."""
        token = self.server.token(*self.account)
        way = await from_kubeconfig(self.server.kubeconfig_for(f"operator-{self.namespace}", token, self.namespace))
        if server is not None:
            way.configuration.host, way.configuration.ssl_ca_cert = server, None
        return way

    @contextmanager
    def operator(
        self, way: Access | None = None, *, on_step: Callable[[str], None] = lambda step: None, **settings: Any
    ) -> Iterator[Running]:
        running, kubelet = Running(way or asyncio.run(self.way()), self.settings(**settings), on_step), Kubelet(self)
        try:
            yield running
            assert running.failure is None
        finally:
            kubelet.close()
            running.close()

    @property
    def streamjoins(self) -> str:
        """The path of the namespace's StreamJoins."""
        return STREAMJOINS.format(self.namespace)

    def submit(self, name: str = "one", **spec: Any) -> Object:
        body = streamjoin(name, **spec)
        body["metadata"] = {"name": name, "namespace": self.namespace}
        return self.admin.create(self.streamjoins, body)

    def get(self, name: str = "one") -> Object:
        return self.admin.get(f"{self.streamjoins}/{name}")

    def status(self, name: str = "one") -> Object:
        return dict(self.get(name).get("status") or {})

    def change(self, spec: Object, name: str = "one") -> None:
        self.admin.patch(f"{self.streamjoins}/{name}", {"spec": spec})

    def condition(self, kind: str, name: str = "one") -> tuple[str, str] | None:
        found = [condition for condition in self.status(name).get("conditions") or [] if condition["type"] == kind]
        return (found[0]["status"], found[0]["reason"]) if found else None

    def judged(self, name: str = "one") -> int:
        """The newest generation that the operator has looked at."""
        found = [condition for condition in self.status(name).get("conditions") or [] if condition["type"] == "Ready"]
        return int(found[0]["observedGeneration"]) if found else 0

    def child(self, kind: str, name: str = "sj-one") -> Object:
        return self.admin.get(f"{PATHS[kind].format(self.namespace)}/{name}")

    def children(self, name: str = "one") -> dict[str, list[Object]]:
        selector = names.selector(name)
        found = {kind: self.admin.get(path.format(self.namespace), labelSelector=selector)["items"] for kind, path in PATHS.items()}
        return {kind: objects for kind, objects in found.items() if objects}

    def counts(self, name: str = "one") -> dict[str, int]:
        """How many children there are, by kind."""
        return {kind: len(found) for kind, found in self.children(name).items()}

    def ready(self, name: str = "sj-one") -> None:
        """As the Deployment's controller would."""
        path = f"{PATHS['Deployment'].format(self.namespace)}/{name}"
        found = wait_for("the Deployment", lambda: self.admin.exists(path) and self.admin.get(path))
        replicas = found["spec"]["replicas"]
        counts = {"replicas": replicas, "readyReplicas": replicas, "availableReplicas": replicas, "updatedReplicas": replicas}
        body = {"status": {**counts, "observedGeneration": found["metadata"]["generation"]}}
        self.admin.patch(f"{path}/status", body)

    def trials(self) -> list[Object]:
        """Pods that try a new template."""
        selector = f"{names.COMPONENT}={names.TRIAL}"
        return list(self.admin.get(f"/api/v1/namespaces/{self.namespace}/pods", labelSelector=selector)["items"])

    def end_trial(self, pod: Object) -> None:
        """As the kubelet would."""
        path = f"/api/v1/namespaces/{self.namespace}/pods/{pod['metadata']['name']}"
        self.admin.patch(f"{path}/status", {"status": trial_status(pod, *(self.trial or ()))})

    def run(self, name: str = "one", **spec: Any) -> None:
        """A StreamJoin that runs."""
        self.submit(name, **spec)
        self.await_running(name)

    def await_running(self, name: str) -> None:
        """Its Deployment's controller follows each change, until the StreamJoin runs."""
        self.ready(names.base_name(name))

        def runs() -> bool:
            deployed = self.child("Deployment", names.base_name(name))
            if deployed["status"].get("observedGeneration") != deployed["metadata"]["generation"]:
                self.ready(names.base_name(name))
            return self.condition("Ready", name) == ("True", "JoinRunning")

        wait_for("it runs", runs)

    def take_right(self, *resources: str) -> None:
        """Leave the operator all of its rights but those to these resources."""
        self.lacks_rights = True
        rules = [{**rule, "resources": [name for name in rule["resources"] if name not in resources]} for rule in operator_rules()]
        path = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{self.namespace}/roles/{SERVICE_ACCOUNT}"
        self.admin.patch(path, {"rules": [rule for rule in rules if rule["resources"]]})

    def events(self) -> list[Object]:
        """Those of this namespace, oldest first."""
        items = self.admin.get(f"/api/v1/namespaces/{self.namespace}/events")["items"]
        return sorted(items, key=lambda event: int(event["metadata"]["resourceVersion"]))

    def versions(self) -> dict[str, str]:
        """What a write changes, of everything that is ours."""
        found = {"StreamJoin": [self.get()], **self.children()}
        return {f"{kind} {body['metadata']['name']}": body["metadata"]["resourceVersion"] for kind, many in found.items() for body in many}


def install(server: ApiServer) -> None:
    """StreamJoins as the cluster knows them. Not applied again where it is as this has left it: that takes the API server a second."""
    if server.url not in _INSTALLED or _INSTALLED[server.url] != _installed(server):
        for name in ("streamjoins", "streamjoinsnapshots"):
            server.install_crd(parsed((ROOT / "crds" / f"{name}.streamjoin.dev.yaml").read_text()))
        _INSTALLED[server.url] = _installed(server)


def _installed(server: ApiServer) -> tuple[str, int] | None:
    """What changes when the definition is made anew or its spec is changed."""
    if not server.admin.exists(DEFINITION):
        return None
    metadata = server.admin.get(DEFINITION)["metadata"]
    return metadata["uid"], metadata["generation"]


_INSTALLED: dict[str, tuple[str, int] | None] = {}
