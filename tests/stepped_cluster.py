"""The operator's reconciler against a real API server, by a clock that only the test moves.

What runs is all of the operator but kopf and the queue: their part (what the watches show, when a StreamJoin comes round again, pauses
after failures) is done here step by step, so that minutes pass in milliseconds and each can be counted. No controller, scheduler or kubelet
runs: tests write what those would.

Always holds: a reconcile begins when a StreamJoin or its Deployment has changed, else when the one before said; it takes a hundredth of a
second, whatever its requests take.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, ClassVar

import yaml

from operator_cluster import PATHS, Cluster
from operator_parts import Object
from streamjoin_operator import names
from streamjoin_operator.access import from_kubeconfig
from streamjoin_operator.api import DEPLOYMENT, STREAM_JOIN, Api, ApiError
from streamjoin_operator.driver import DriverClient
from streamjoin_operator.instants import instant
from streamjoin_operator.main import plain
from streamjoin_operator.ports import Drivers
from streamjoin_operator.prometheus import PrometheusClient
from streamjoin_operator.queue import FIRST_PAUSE, LONGEST_PAUSE, Key
from streamjoin_operator.reconcile import Reconciler
from streamjoin_operator.settings import Settings
from streamjoin_operator.template import merge

WRITES = ("apply", "patch", "create", "replace", "delete")
MOST_STEPS = 2000
RECONCILE_SECONDS = 0.01
TOGETHER_SECONDS = 3.0
"""Of several StreamJoins, those that are due within so long are looked at together, with one look at the watches."""


class Pointed(Settings):
    """Drivers are where the test says, for each namespace."""

    drivers: ClassVar[dict[str, str]] = {}

    def url_of(self, namespace: str, name: str, service: str) -> str:
        return Pointed.drivers[namespace].format(namespace=namespace, name=name, service=service)


class SteppedCluster:
    """See the module. One namespace, and the rights that are documented."""

    def __init__(self, cluster: Cluster, *, drivers: Drivers | None = None, driver_url: str | None = None, **settings: Any) -> None:
        """``drivers``: None are those of HTTP, at ``driver_url``, by default the test's own driver for all."""
        self.cluster, self.admin, self.namespace, self.driver = cluster, cluster.admin, cluster.namespace, cluster.driver
        self.clock = 0.0
        """Seconds since the beginning."""
        self.requests: Counter[str] = Counter()
        """By verb, the operator's."""
        self._began = time.time()
        self._due: dict[Key, float] = {}
        self._failures: Counter[Key] = Counter()
        self._versions: dict[Key, tuple[str, ...]] = {}
        self._pods = 0
        Pointed.drivers[self.namespace] = driver_url or cluster.driver.url
        self._given = drivers
        allowed = ("http://127.0.0.1:1",)
        self._settings = Pointed(watch_namespaces=(self.namespace,), engine_image="engine:1", prometheus_allowed_urls=allowed, **settings)
        self._loop = asyncio.new_event_loop()
        self._run(self._open())

    def _run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self._loop.run_until_complete(work)

    async def _open(self) -> None:
        self._api = Api(await self.cluster.way(), told=lambda verb, status: self.requests.update([verb]))
        self._admin = Api(await from_kubeconfig(self.cluster.server.kubeconfig))
        self._drivers, self._prometheus = DriverClient(), PrometheusClient(self._settings)
        self.reconciler = Reconciler(
            self._api,
            self._given or self._drivers,
            self._settings,
            self._prometheus,
            clock=lambda: self.clock,
            wall=lambda: datetime.fromtimestamp(self.now, UTC),
        )

    async def _close(self) -> None:
        await self._drivers.close()
        await self._prometheus.close()
        await self._api.close()
        await self._admin.close()

    def close(self) -> None:
        self._run(self._close())
        self._loop.close()

    @property
    def now(self) -> float:
        """Seconds since 1970."""
        return self._began + self.clock

    @property
    def at(self) -> str:
        return instant(self.now)

    @property
    def failing(self) -> int:
        """How many StreamJoins were not reconciled at the last attempt."""
        return len(self._failures)

    @property
    def writes(self) -> int:
        return sum(self.requests[verb] for verb in WRITES)

    # The part of the watches and the queue.

    def _watch(self) -> list[Key]:
        """What the watches show; which StreamJoins are to be looked at for it."""
        seen = self.reconciler.seen
        listed = self._run(self._admin.list(STREAM_JOIN, self.namespace, ""))
        bodies = {seen.saw(plain(body), is_watched=True): body for body in listed}
        deployments: dict[Key, list[Object]] = {}
        for body in self._run(self._admin.list(DEPLOYMENT, self.namespace, names.MANAGED_SELECTOR)):
            key = seen.saw_deployment(plain({**body, "apiVersion": "apps/v1", "kind": "Deployment"}))
            if key is not None:
                deployments.setdefault(key, []).append(body)
        for key in [known for known in seen.bodies if known not in bodies]:
            seen.forget(key)
        there = {body["metadata"]["uid"] for bodies in deployments.values() for body in bodies}
        for known in (*seen.deployments.values(), *seen.query_servers.values(), *seen.watchers.values()):
            if known["metadata"]["uid"] not in there:
                seen.lost_deployment(known)
        versions = {}
        for key, body in bodies.items():
            found = (body, *deployments.get(key, ()))
            versions[key] = tuple(each["metadata"]["resourceVersion"] for each in found)
        changed = [key for key, version in versions.items() if self._versions.get(key) != version]
        self._versions = versions
        return changed

    def step(self) -> None:
        """What has changed is reconciled, at once; where nothing has, what is due next, when it is."""
        keys = self._watch()
        if not keys:
            self.clock = max(self.clock, min(self._due.values(), default=self.clock + 1.0))
            keys = [key for key, due in self._due.items() if due <= self.clock + TOGETHER_SECONDS]
        for key in keys:
            self._due.pop(key, None)
            after = self._reconcile(key)
            if after is not None and key in self._versions:
                self._due[key] = self.clock + after

    def _reconcile(self, key: Key) -> float | None:
        self.clock += RECONCILE_SECONDS
        try:
            after: float | None = self._run(self.reconciler.reconcile(key))
        except ApiError:
            self._failures[key] += 1
            return min(LONGEST_PAUSE, FIRST_PAUSE * 2.0 ** (self._failures[key] - 1))
        del self._failures[key]
        return after

    def until(self, what: str, found: Callable[[], Any], seconds: float) -> float:
        """Step until it is so, and give after how many seconds it was. Raises where it takes longer than that."""
        began = self.clock
        for _ in range(MOST_STEPS):
            self.step()
            if self.clock - began > seconds:
                break
            if found():
                return self.clock - began
        raise AssertionError(f"{what}: not within {seconds:.0f} s; the status is {self.cluster.status()}")

    def settle(self) -> None:
        """Step until nothing more is to be done at once."""
        for _ in range(MOST_STEPS):
            before = self.clock
            self.step()
            if self.clock > before:
                return
        raise AssertionError("it does not settle")

    def pass_seconds(self, seconds: float) -> None:
        """Step for so long."""
        end = self.clock + seconds
        while self.clock < end:
            self.step()

    # The part of the cluster.

    def submit(self, name: str = "one", **spec: Any) -> None:
        self.cluster.submit(name, **spec)

    def runs(self, name: str = "one", **spec: Any) -> None:
        """A StreamJoin that runs, and has come to rest."""
        self.submit(name, **spec)
        self.settle()
        self.cluster.ready(names.base_name(name))
        self.until("it runs", lambda: self.condition("Available", name).get("reason") == "JoinRunning", 30)
        self.settle()

    def unready(self, name: str = "sj-one") -> None:
        """The Deployment's controller sees its pod fail."""
        counts = {"replicas": 1, "readyReplicas": 0, "availableReplicas": 0, "unavailableReplicas": 1, "updatedReplicas": 1}
        generation = self.cluster.child("Deployment", name)["metadata"]["generation"]
        path = f"{PATHS['Deployment'].format(self.namespace)}/{name}/status"
        self.admin.patch(path, {"status": {**counts, "observedGeneration": generation}})

    def driver_pod(self, status: Object, node: str | None = None) -> str:
        """The pod that the Deployment's controller makes, with what became of it. Gives its path."""
        if "Deployment" not in self.cluster.children():
            self.settle()
        return self._pod(self.cluster.child("Deployment")["spec"]["template"], "sj-one", status, node)

    def executor_pod(self, status: Object, node: str | None = None, resources: Object | None = None) -> str:
        """The same for one that Spark makes, over the template's resources with these."""
        template = yaml.safe_load(self.cluster.child("ConfigMap")["data"]["executor.yaml"])
        (container,) = template["spec"]["containers"]
        container |= {"image": "engine:1", "resources": merge(container.get("resources"), resources or {"limits": {"memory": "1Gi"}})}
        return self._pod(template, "sj-one-exec", status, node)

    def query_pod(self, status: Object, node: str | None = None) -> str:
        """A query server's pod, as its Deployment's controller would make it, with such a status. Returns its path."""
        return self._pod(self.cluster.child("Deployment", "sj-one-queries")["spec"]["template"], "sj-one-queries", status, node)

    def watcher_pod(self, status: Object) -> str:
        """Likewise of a join that sleeps, once it does."""
        self.cluster.driver.idle_seconds = 1e6
        self.until("it sleeps", lambda: self.condition("Ready").get("reason") in ("Suspending", "SuspendedWhenIdle"), 60)
        self.cluster.ready()
        return self._pod(self.cluster.child("Deployment", "sj-one-watcher")["spec"]["template"], "sj-one-watcher", status, "node-2")

    def _pod(self, template: Object, name: str, status: Object, node: str | None) -> str:
        self._pods += 1
        metadata = {part: template["metadata"][part] for part in ("labels", "annotations") if part in template["metadata"]}
        spec = template["spec"] if node is None else {**template["spec"], "nodeName": node}
        body = {"metadata": {**metadata, "name": f"{name}-{self._pods}"}, "spec": spec}
        path = f"/api/v1/namespaces/{self.namespace}/pods"
        self.admin.create(path, body)
        self.admin.patch(f"{path}/{name}-{self._pods}/status", {"status": status})
        return f"{path}/{name}-{self._pods}"

    def tell(self, path: str, reason: str, message: str, kind: str = "Warning") -> None:
        """An event about an object, as Kubernetes' own components post them."""
        about = self.admin.get(path)
        metadata = about["metadata"]
        event = {
            "metadata": {"generateName": f"{metadata['name']}.", "namespace": self.namespace},
            "involvedObject": {"kind": about["kind"], "name": metadata["name"], "namespace": self.namespace, "uid": metadata["uid"]},
            "type": kind,
            "reason": reason,
            "message": message,
            "firstTimestamp": self.at,
            "lastTimestamp": self.at,
            "count": 1,
        }
        self.admin.create(f"/api/v1/namespaces/{self.namespace}/events", event)

    def remove(self, path: str) -> None:
        """A pod is gone at once."""
        self.admin.delete(path, gracePeriodSeconds=0)

    def condition(self, kind: str, name: str = "one") -> Object:
        """As the API server has it; empty where there is none."""
        body = self._run(self._admin.get(STREAM_JOIN, self.namespace, name)) or {}
        conditions = (body.get("status") or {}).get("conditions") or []
        return next((found for found in conditions if found["type"] == kind), {})


@contextmanager
def stepped(cluster: Cluster, **more: Any) -> Iterator[SteppedCluster]:
    """For as long as the test lasts; ``more`` as SteppedCluster takes it."""
    world = SteppedCluster(cluster, **more)
    try:
        yield world
    finally:
        world.close()
