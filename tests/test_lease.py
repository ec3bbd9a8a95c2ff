"""Several operators and one Lease: as processes of their own against a real API server, and by a clock that is turned by hand."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from operator_cluster import SERVICE_ACCOUNT, Cluster
from operator_parts import Object
from ports import free_ports
from streamjoin_operator.api import ApiError, Kind
from streamjoin_operator.lease import DEADLINE_SECONDS, DURATION_SECONDS, Lease
from waiting import PATIENCE_SECONDS, wait_for, wait_in_loop

LEASES = "/apis/coordination.k8s.io/v1/namespaces/{}/leases"


class Process:
    """An operator as its container runs it."""

    def __init__(self, cluster: Cluster, directory: Path) -> None:
        (self.port,) = free_ports(1)
        token = cluster.server.token(cluster.namespace, SERVICE_ACCOUNT)
        config = cluster.server.kubeconfig_for(f"operator-{self.port}", token, cluster.namespace)
        settings = {
            "WATCH_NAMESPACES": cluster.namespace,
            "PORT": self.port,
            "DRIVER_URL": cluster.driver.url,
            "POLL_SECONDS": 0.5,
            "START_SECONDS": 0.2,
            "LEASE_NAME": "operators",
            "LEASE_NAMESPACE": cluster.namespace,
        }
        environment = {**os.environ, "KUBECONFIG": str(config), "NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1"}
        environment |= {f"STREAMJOIN_{name}": str(value) for name, value in settings.items()}
        self.log = directory / f"operator-{self.port}.log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen([sys.executable, "-m", "streamjoin_operator"], env=environment, stdout=log, stderr=log)

    def get(self, path: str) -> tuple[int, str]:
        """Status 0: nobody answers."""
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(f"http://127.0.0.1:{self.port}{path}", timeout=PATIENCE_SECONDS) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()
        except OSError:
            return 0, ""

    def is_active(self) -> bool:
        return self.get("/readyz") == (200, "active")

    def stands_by(self) -> bool:
        status, text = self.get("/readyz")
        return status == 200 and text.startswith("standby: ")

    def metric(self, name: str) -> list[float]:
        _, text = self.get("/metrics")
        return [float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line.startswith((f"{name} ", f"{name}{{"))]

    def end(self, number: signal.Signals) -> int:
        self.process.send_signal(number)
        return self.process.wait(PATIENCE_SECONDS)


@contextmanager
def processes(cluster: Cluster, directory: Path) -> Iterator[tuple[Process, Process]]:
    """The active one and the one that stands by."""
    allow_leases(cluster)
    started: list[Process] = []
    try:
        started.append(Process(cluster, directory))
        wait_for("the first is active", started[0].is_active)
        started.append(Process(cluster, directory))
        wait_for("the second stands by", started[1].stands_by)
        yield started[0], started[1]
    except BaseException:
        for each in started:
            print(each.log.read_text()[-6000:])
        raise
    finally:
        for each in started:
            each.process.kill()
            each.process.wait()


def allow_leases(cluster: Cluster) -> None:
    """The rights of the chart's Role for the Lease."""
    rbac = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{cluster.namespace}"
    rules = [
        {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["create"]},
        {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "resourceNames": ["operators"], "verbs": ["get", "update"]},
    ]
    cluster.admin.create(f"{rbac}/roles", {"metadata": {"name": "leases"}, "rules": rules})
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "leases"}
    subject = {"kind": "ServiceAccount", "name": SERVICE_ACCOUNT, "namespace": cluster.namespace}
    cluster.admin.create(f"{rbac}/rolebindings", {"metadata": {"name": "leases"}, "roleRef": reference, "subjects": [subject]})


@pytest.mark.apiserver
def test_the_standby_takes_over_after_a_kill(cluster: Cluster, tmp_path: Path) -> None:
    with processes(cluster, tmp_path) as (active, standby):
        cluster.run()
        assert (active.metric("streamjoin_operator_active"), standby.metric("streamjoin_operator_active")) == ([1.0], [0.0])
        assert standby.get("/healthz") == (200, "alive")
        assert standby.metric("streamjoin_operator_phase") == [], "joins are counted once"
        active.end(signal.SIGKILL)
        cluster.change({"workers": {"min": 2}})
        wait_for("the change is acted on", lambda: cluster.driver.wishes == [{"workers": 2, "model": "adsp"}])
        wait_for("it is active", standby.is_active)
        assert standby.metric("streamjoin_operator_active") == [1.0]
        lease = cluster.admin.get(f"{LEASES.format(cluster.namespace)}/operators")
        assert lease["spec"]["leaseTransitions"] == 2


@pytest.mark.apiserver
def test_an_operator_that_is_told_to_end_hands_over_at_once(cluster: Cluster, tmp_path: Path) -> None:
    with processes(cluster, tmp_path) as (active, standby):
        holder = cluster.admin.get(f"{LEASES.format(cluster.namespace)}/operators")["spec"]["holderIdentity"]
        assert active.end(signal.SIGTERM) == 0
        lease = cluster.admin.get(f"{LEASES.format(cluster.namespace)}/operators")["spec"]
        assert lease.get("holderIdentity", "") != holder, "the other one need not wait for the end of the Lease"
        wait_for("the other is active", standby.is_active)
        assert standby.end(signal.SIGTERM) == 0
        assert cluster.admin.get(f"{LEASES.format(cluster.namespace)}/operators")["spec"].get("holderIdentity", "") == ""


@pytest.mark.apiserver
def test_an_operator_that_was_stopped_for_a_while_ends_and_writes_nothing_more(cluster: Cluster, tmp_path: Path) -> None:
    with processes(cluster, tmp_path) as (active, standby):
        active.process.send_signal(signal.SIGSTOP)
        wait_for("the other is active", standby.is_active)
        active.process.send_signal(signal.SIGCONT)
        assert active.process.wait(PATIENCE_SECONDS) == 1
        assert standby.is_active()


@pytest.mark.apiserver
def test_without_the_right_to_the_lease_an_operator_is_not_ready_and_says_why(cluster: Cluster, tmp_path: Path) -> None:
    cluster.lacks_rights = True
    alone = Process(cluster, tmp_path)
    try:
        wait_for("it says so", lambda: alone.get("/readyz")[0] == 503 and "cannot get resource" in alone.get("/readyz")[1])
        assert alone.get("/healthz")[0] == 200
    finally:
        alone.process.kill()
        alone.process.wait()


class Turned:
    """One Lease in memory, as the API server keeps it, and everybody's clock."""

    def __init__(self) -> None:
        self.now = 0.0
        self.stored: Object | None = None
        self.version = 0
        self.is_down = False
        self.is_mute = False
        """Whether answers to what is written are lost."""

    async def get(self, kind: Kind, namespace: str, name: str) -> Object | None:
        self._answer()
        return json.loads(json.dumps(self.stored)) if self.stored is not None else None

    async def create(self, kind: Kind, namespace: str, body: Object) -> Object:
        self._answer()
        if self.stored is not None:
            raise ApiError(409, "AlreadyExists", "")
        return self._store(body)

    async def replace(self, kind: Kind, body: Object) -> Object:
        self._answer()
        if self.stored is None:
            raise ApiError(404, "NotFound", "")
        if body["metadata"]["resourceVersion"] != self.stored["metadata"]["resourceVersion"]:
            raise ApiError(409, "Conflict", "")
        stored = self._store(body)
        if self.is_mute:
            await asyncio.Event().wait()
        return stored

    def _answer(self) -> None:
        if self.is_down:
            raise ApiError(0, "down", "nobody answers")

    def _store(self, body: Object) -> Object:
        self.version += 1
        self.stored = {**body, "metadata": {**body["metadata"], "resourceVersion": str(self.version)}}
        return dict(json.loads(json.dumps(self.stored)))

    def lease(self, holder: str) -> Lease:
        api: Any = self
        return Lease(api, "here", "operators", holder, clock=lambda: self.now)


def look(*leases: Lease) -> list[bool]:
    """Each looks once, and renews or takes the Lease if it can."""

    async def once(lease: Lease) -> bool:
        stop = asyncio.Event()
        return await lease.acquire(stop, lambda other, problem: stop.set())

    return [asyncio.run(once(lease)) for lease in leases]


def test_there_is_never_more_than_one_holder_whatever_the_wire_does() -> None:
    for seed in range(200):
        dice, world = random.Random(seed), Turned()
        leases = [world.lease(name) for name in "abc"]
        taken = 0
        for _ in range(60):
            world.now += dice.choice((0.5, 1.0, 2.0, 4.0))
            world.is_down = dice.random() < 0.3
            taken += any(look(dice.choice(leases)))
            assert sum(lease.is_held for lease in leases) <= 1, f"seed {seed}"
        assert taken, f"seed {seed}"


def test_it_is_taken_over_when_it_was_watched_for_its_duration_and_not_before() -> None:
    world = Turned()
    first, second = world.lease("a"), world.lease("b")
    assert look(first, second) == [True, False]
    world.now += DEADLINE_SECONDS
    assert not first.is_held
    world.now += DURATION_SECONDS - DEADLINE_SECONDS - 0.5
    assert look(second) == [False]
    world.now += 0.5
    assert look(second) == [True]
    assert look(first) == [False]


def test_one_that_was_given_back_is_free() -> None:
    world = Turned()
    first, second = world.lease("a"), world.lease("b")
    assert look(first, second) == [True, False]
    asyncio.run(first.release())
    assert not first.is_held
    assert look(second, first) == [True, False]


def test_one_whose_last_renewal_was_broken_off_is_given_back_all_the_same() -> None:
    world = Turned()
    first, second = world.lease("a"), world.lease("b")
    assert look(first, second) == [True, False]

    async def end() -> None:
        world.is_mute, before = True, world.version
        renewing = asyncio.create_task(first._reach())
        await wait_in_loop("it is stored", lambda: world.version > before)
        renewing.cancel()
        await asyncio.gather(renewing, return_exceptions=True)
        world.is_mute = False
        await first.release()

    asyncio.run(end())
    assert look(second) == [True]
