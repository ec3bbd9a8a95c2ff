"""The whole thing on a real cluster: the chart is installed, joins run as pods, are scaled, shot at and deleted.

``make e2e`` runs these tests on the cluster of ``make cluster-up``, or on the one that ``KUBECONFIG`` names if it has the images. Each
ends by comparing all results of its join with DuckDB's over all tuples that the join took, whose numbers the checkpoint says.
"""

from __future__ import annotations

import base64
import contextlib
import copy
import io
import json
import os
import random
import shlex
import subprocess
import sys
import tarfile
import urllib.request
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote

import duckdb
import pyarrow as pa
import pytest
import yaml
from pyarrow import dataset

import cluster as tool
import kubernetes_programs
from node import SMALL, Node
from streamjoin.compilation import compile_job
from streamjoin.controlplane.snapshots import StorageSnapshots
from streamjoin.io.factory import make_source
from streamjoin.job import StreamJob
from streamjoin.manifest import load
from streamjoin.state.log import Entry
from streamjoin.state.storage import ObjectStorage
from streamjoin_operator.children import LEDGER_KEY
from streamjoin_operator.names import PAUSE
from waiting import PATIENCE_SECONDS, wait_for

ROOT = Path(__file__).resolve().parent.parent
EXAMPLE = ROOT / "examples" / "kubernetes" / "generator.yaml"
KAFKA_EXAMPLE = ROOT / "examples" / "kafka.yaml"
CHART = ROOT / "charts" / "streamjoin-operator"
DEFINITION = "streamjoins.streamjoin.dev"
OPERATOR_PODS = "app.kubernetes.io/name=streamjoin-operator"
CLAIM_PATH = "/var/lib/streamjoin"
PROMETHEUS = "http://prometheus.monitoring:9090"
KAFKA = "kafka.kafka:9092"
S3 = "http://s3.s3:5000"

Object = dict[str, Any]

pytestmark = pytest.mark.e2e


@dataclass(frozen=True)
class Kube:
    """kubectl and helm for one cluster."""

    kubeconfig: Path

    def run(self, program: str, *arguments: str, stdin: str | None = None, check: bool = True) -> str:
        """What it prints. Raises AssertionError with what it says where it fails."""
        path = str(kubernetes_programs.obtain(program))
        command = [path, f"--kubeconfig={self.kubeconfig}", *arguments]
        options: Any = {"input": stdin, "capture_output": True, "text": True, "timeout": PATIENCE_SECONDS}
        done = subprocess.run(command, cwd=ROOT, check=False, **options)
        assert done.returncode == 0 or not check, f"{program} {' '.join(arguments)}: {done.stdout}{done.stderr}"
        return done.stdout if done.returncode == 0 else ""

    def __call__(self, *arguments: str, stdin: str | None = None, check: bool = True) -> str:
        return self.run("kubectl", *arguments, stdin=stdin, check=check)

    def json(self, *arguments: str) -> Any:
        """What there is. Asked up to three times: the API server shares its cores with all pods, and answers late at times."""
        command = ("--request-timeout=30s", "get", *arguments, "-o", "json")
        for _ in range(2):
            with contextlib.suppress(AssertionError, subprocess.TimeoutExpired):
                return json.loads(self(*command))
        return json.loads(self(*command))

    def rolled_out(self, namespace: str, deployment: str) -> None:
        """Its pods are those that it asks for, and ready."""
        self(f"--namespace={namespace}", "rollout", "status", f"deployment/{deployment}", f"--timeout={PATIENCE_SECONDS:.0f}s")

    def kill(self, namespace: str, *which: str) -> None:
        """Ends pods at once."""
        self(f"--namespace={namespace}", "delete", "pod", *which, "--grace-period=0", "--force")


def largest(name: str, metrics: str) -> float:
    """The largest value of this one; -1 where there is none."""
    return max((float(line.split()[-1]) for line in metrics.splitlines() if line.startswith(f"{name}{{")), default=-1.0)


@dataclass(frozen=True)
class Release:
    """A release of the operator's chart, by Helm's names."""

    name: str
    namespace: str
    revision: int = 0
    """Which it had before the tests; 0: it was not there."""

    @property
    def deployment(self) -> str:
        return self.name if CHART.name in self.name else f"{self.name}-{CHART.name}"

    @classmethod
    def in_cluster(cls, kube: Kube) -> Release:
        """The one that is installed; else one to be installed, by the names that a definition left behind asks for."""
        listed = json.loads(kube.run("helm", "list", "--all-namespaces", "-o", "json"))
        releases = [one for one in listed if one["chart"].startswith(f"{CHART.name}-")]
        if len(releases) > 1:
            where = ", ".join(f"{one['namespace']}/{one['name']}" for one in releases)
            pytest.fail(f"the cluster has {len(releases)} releases of {CHART.name} ({where}); uninstall all but one", pytrace=False)
        if releases:
            return cls(releases[0]["name"], releases[0]["namespace"], int(releases[0]["revision"]))
        left = kube("get", "crd", DEFINITION, "--ignore-not-found", "-o", "json")
        made_by = json.loads(left)["metadata"].get("annotations", {}) if left else {}
        found = cls(made_by.get("meta.helm.sh/release-name", "streamjoin"), made_by.get("meta.helm.sh/release-namespace", "streamjoin"))
        if left and "meta.helm.sh/release-name" not in made_by:
            pytest.fail(f"{DEFINITION} is there and no release of {CHART.name} has made it; kubectl delete crd {DEFINITION}", pytrace=False)
        return found

    def install(self, kube: Kube, *settings: str) -> None:
        """Makes or upgrades it, with these settings besides those of all tests. Returns when its operator is ready."""
        given = ",".join(("operator.pollSeconds=2", "operator.resyncSeconds=60", f"prometheus.url={PROMETHEUS}", *settings))
        kube.run(
            "helm",
            *("upgrade", "--install", self.name, str(CHART), f"--namespace={self.namespace}", "--create-namespace"),
            *("--reset-values", "--set", given, "--wait", f"--timeout={PATIENCE_SECONDS:.0f}s"),
        )

    def restore(self, kube: Kube) -> None:
        """Leaves the cluster as it was before :meth:`install`."""
        if self.revision:
            kube.run("helm", "rollback", self.name, str(self.revision), f"--namespace={self.namespace}", "--wait")
            return
        kube("delete", "sj", "--all", "--all-namespaces", f"--timeout={PATIENCE_SECONDS:.0f}s")
        kube.run("helm", "uninstall", self.name, f"--namespace={self.namespace}", "--wait")
        kube("delete", "crd", DEFINITION, "--ignore-not-found")
        kube("delete", "namespace", self.namespace, f"--timeout={PATIENCE_SECONDS:.0f}s")


class Join:
    """A StreamJoin of its own namespace, and what a person does with it."""

    def __init__(self, kube: Kube, operator: Release, namespace: str, body: Object) -> None:
        self.kube, self.operator, self.namespace, self.body = kube, operator, namespace, body
        self.name: str = body["metadata"]["name"]

    def kubectl(self, *arguments: str, stdin: str | None = None, check: bool = True) -> str:
        return self.kube(f"--namespace={self.namespace}", *arguments, stdin=stdin, check=check)

    def json(self, *arguments: str) -> Any:
        return self.kube.json(f"--namespace={self.namespace}", *arguments)

    def apply(self) -> None:
        self.kubectl("apply", "-f", "-", stdin=json.dumps(self.body))

    def patch(self, **spec: Any) -> None:
        self.kubectl("patch", "sj", self.name, "--type=merge", "-p", json.dumps({"spec": spec}))

    def plugin(self, *arguments: str) -> str:
        """What ``kubectl streamjoin`` prints. Raises AssertionError with what it says where it fails."""
        where = (f"--namespace={self.namespace}", f"--kubeconfig={self.kube.kubeconfig}")
        command = [sys.executable, "-m", "streamjoin_operator.plugin", *arguments, *where]
        path = os.pathsep.join([str(kubernetes_programs.obtain("kubectl").parent), os.environ["PATH"]])
        done = subprocess.run(command, env={**os.environ, "PATH": path}, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{arguments}: {done.stdout}{done.stderr}"
        return done.stdout

    def scale(self, workers: int) -> None:
        self.kubectl("scale", f"sj/{self.name}", f"--replicas={workers}")

    @property
    def claim(self) -> str:
        """Its name."""
        return str(self.body["spec"]["checkpoint"]["persistentVolumeClaim"])

    @property
    def status(self) -> Object:
        return self.json("sj", self.name).get("status") or {}

    def condition(self, kind: str) -> Object:
        return next((found for found in self.status.get("conditions") or [] if found["type"] == kind), {})

    def pods(self, component: str) -> list[Object]:
        """Those that are not being deleted."""
        selector = f"streamjoin.dev/name={self.name},app.kubernetes.io/component={component}"
        return [pod for pod in self.json("pods", "-l", selector)["items"] if not pod["metadata"].get("deletionTimestamp")]

    def running(self, component: str) -> list[str]:
        """Names of pods whose containers are all ready."""
        return sorted(
            pod["metadata"]["name"]
            for pod in self.pods(component)
            if all(container["ready"] for container in pod["status"].get("containerStatuses") or [{"ready": False}])
        )

    def epoch(self) -> int:
        """Of the last commit, as the driver's metrics say; -1 where it does not answer."""
        return int(self.gauge("streamjoin_epoch_number"))

    def until(self, what: str, found: Callable[[], Any]) -> Any:
        return wait_for(f"{self.namespace}/{self.name}: {what}", found, every=0.5, told=self.story)

    def until_running(self, workers: int | None = None) -> None:
        """The join runs, with so many executors, and goes on committing."""
        self.until("Running", lambda: self.status.get("phase") == "Running" and self.condition("Available").get("status") == "True")
        if workers is not None:
            self.until_workers(workers)
        self.until_epochs(3)

    def until_workers(self, count: int) -> None:
        """So many are there, by the status and by the pods."""
        self.until(f"{count} workers", lambda: self.status.get("workers") == count == len(self.running("executor")))

    def begin(self, workers: int) -> None:
        """Applied, it runs, and then with so many workers."""
        self.apply()
        self.until_running()
        self.scale(workers)
        self.until_running(workers=workers)

    def replace_executor(self) -> None:
        """Kills one of two. Returns when there is another one, and the join goes on."""
        killed, _ = self.running("executor")
        self.kube.kill(self.namespace, killed)
        self.until("another executor", lambda: killed not in self.running("executor") and len(self.running("executor")) == 2)
        self.until_running(workers=2)

    def until_epochs(self, count: int) -> None:
        """So many more epochs are committed."""
        before = self.until("an epoch", lambda: self.epoch() + 1)
        self.until(f"{count} more epochs", lambda: self.epoch() + 1 >= before + count)

    def acts(self) -> list[Object]:
        """The ledger's records of decisions to change something, oldest first."""
        text = self.json("configmap", f"sj-{self.name}-decisions")["data"][LEDGER_KEY]
        return [record for record in json.loads(text)["ledger"]["records"] if record["decision"]["kind"] != "HOLD"]

    def gauge(self, name: str) -> float:
        """The largest value that the driver's metrics show of this one; -1 where it does not answer."""
        for pod in self.running("driver"):
            path = f"/api/v1/namespaces/{self.namespace}/pods/{pod}:8080/proxy/metrics"
            return largest(name, self.kubectl("get", "--raw", path, check=False))
        return -1.0

    def events(self) -> set[str]:
        """Their reasons."""
        found = self.json("events", f"--field-selector=involvedObject.name={self.name}")
        return {event["reason"] for event in found["items"]}

    def suspend(self) -> None:
        self.patch(suspend=True)
        self.until("Suspended", lambda: self.status.get("phase") == "Suspended" and not self.pods("driver"))
        self.until("no executors", lambda: not self.pods("executor"))

    def delete(self) -> None:
        self.kubectl("delete", "sj", self.name, "--wait=true", f"--timeout={PATIENCE_SECONDS:.0f}s")
        kinds = "pods,deployments,services,configmaps,secrets,serviceaccounts,roles,rolebindings,poddisruptionbudgets,networkpolicies"
        mine = ("get", kinds, "-l", f"streamjoin.dev/name={self.name}", "-o", "name")
        self.until("nothing left", lambda: not self.kubectl(*mine).strip())

    def files(self, directory: Path) -> None:
        """All that is on the join's claim, fetched by a pod that does nothing else."""
        self.start(reader(self.claim))
        packed = self.kubectl("exec", "reader", "--", "sh", "-c", f"tar -C {CLAIM_PATH} -cz . | base64 -w 0")
        with tarfile.open(fileobj=io.BytesIO(base64.b64decode(packed)), mode="r:gz") as archive:
            archive.extraction_filter = getattr(tarfile, "data_filter", None)  # there is none before Python 3.11.4
            archive.extractall(directory)
        self.end("reader")

    def start(self, *objects: Object) -> None:
        """A pod of the test's own, which is ready then, and what belongs to it."""
        self.kubectl("apply", "-f", "-", stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}))
        pods = [f"pod/{each['metadata']['name']}" for each in objects if each["kind"] == "Pod"]
        self.kubectl("wait", "--for=condition=Ready", *pods, f"--timeout={PATIENCE_SECONDS:.0f}s")

    def end(self, pod: str) -> None:
        self.kubectl("delete", "pod", pod, "--now", "--wait=true")

    def story(self) -> str:
        """What a person would look at when it does not do what it should."""
        parts = [
            self.kubectl("get", "sj,pods,pvc", "-o", "wide", check=False),
            json.dumps(self.status, indent=1),
            self.kubectl("get", "events", "--sort-by=.lastTimestamp", check=False)[-4000:],
            self.kubectl("logs", "-l", "app.kubernetes.io/component=driver", "--tail=40", check=False),
            self.kube("-n", self.operator.namespace, "logs", f"deployment/{self.operator.deployment}", "--tail=30", check=False),
        ]
        return "\n".join(parts)


def reader(claim: str) -> Object:
    """A pod that does nothing, with the claim."""
    pod = idle_pod("reader")
    pod["spec"]["containers"][0]["volumeMounts"] = [{"name": "state", "mountPath": CLAIM_PATH}]
    pod["spec"]["volumes"] = [{"name": "state", "persistentVolumeClaim": {"claimName": claim}}]
    return pod


def idle_pod(name: str) -> Object:
    restricted = {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]}}
    container = {
        "name": name,
        "image": tool.tag(tool.ENGINE),
        "command": ["sleep", "infinity"],
        "securityContext": restricted,
    }
    spec = {
        "automountServiceAccountToken": False,
        "terminationGracePeriodSeconds": 0,
        "securityContext": {"runAsNonRoot": True, "runAsUser": 10001, "fsGroup": 10001, "seccompProfile": {"type": "RuntimeDefault"}},
        "containers": [container],
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}


@pytest.fixture(scope="session")
def kube() -> Kube:
    """The cluster; skips where there is none."""
    given = os.environ.get("KUBECONFIG")
    candidates = [Path(given)] if given else [tool.HOME / "kubeconfig", tool.HOME / "kind.kubeconfig"]
    for path in candidates:
        found = Kube(path)
        if path.exists() and found("get", "--raw", "/readyz", check=False):
            return found
    pytest.skip("no cluster: make cluster-up, or set KUBECONFIG")


def as_the_page_says(kube: Kube) -> None:
    """What docs/kubernetes.md has one do between ``make cluster-up`` and ``make e2e``."""
    section = (ROOT / "docs" / "kubernetes.md").read_text().partition("## A cluster for tests")[2]
    for line in section.partition("```sh\n")[2].partition("```")[0].splitlines():
        program, *arguments = shlex.split(line, comments=True)
        if program == "helm" or arguments[:1] == ["apply"]:
            kube.run(program, *arguments)


@pytest.fixture(scope="session")
def operator(kube: Kube) -> Iterator[Release]:
    """The chart's release that is there, with the tests' settings meanwhile; where there is none, the one that the page installs."""
    release = Release.in_cluster(kube)
    if not release.revision and not kube("get", "crd", DEFINITION, "--ignore-not-found"):
        as_the_page_says(kube)
    release.install(kube)
    yield release
    release.restore(kube)


@pytest.fixture(scope="session")
def node(kube: Kube) -> Node:
    """The machine of the cluster; skips where that is not our own."""
    found = Node(tool.HOME)
    if kube.kubeconfig != found.kubeconfig:
        pytest.skip("this cluster's API server is not ours to kill")
    return found


@pytest.fixture
def join(kube: Kube, operator: Release, request: pytest.FixtureRequest) -> Iterator[Join]:
    """The example's StreamJoin, not applied yet, in a namespace that enforces the restricted Pod Security standard."""
    namespace = "e2e-" + request.node.name.removeprefix("test_").replace("_", "-")[:40].rstrip("-")
    kube("delete", "namespace", namespace, "--ignore-not-found", f"--timeout={PATIENCE_SECONDS:.0f}s")
    kube("create", "namespace", namespace)
    kube("label", "namespace", namespace, "pod-security.kubernetes.io/enforce=restricted")
    yield Join(kube, operator, namespace, yaml.safe_load(EXAMPLE.read_text()))
    kube("delete", "namespace", namespace, f"--timeout={PATIENCE_SECONDS:.0f}s")


@pytest.fixture
def prometheus(kube: Kube) -> Iterator[Callable[[int], None]]:
    """Sets how many Prometheuses there are, 0 or 1; a new one knows nothing of what was before. There is one again afterwards."""

    def scale(replicas: int) -> None:
        kube("--namespace=monitoring", "scale", "deployment/prometheus", f"--replicas={replicas}")
        kube.rolled_out("monitoring", "prometheus")

    yield scale
    scale(1)


PAIRS = """
WITH o AS (SELECT *, unnest([-1, 0, 1]) + floor(amount * 10)::BIGINT AS tenth FROM orders),
    p AS (SELECT *, floor(amount * 10)::BIGINT AS tenth FROM payments)
SELECT o.id AS order_id, p.id AS payment_id
FROM o JOIN p ON o.tenth = p.tenth AND abs(o.amount - p.amount) <= 0.05 AND abs(o.at - p.at) <= 10000000"""
"""The example's results, in DuckDB's words."""


OF_EPOCH = "regexp_extract(filename, '-([0-9]{{12}})-', 1)::BIGINT"
FOUND = "SELECT * FROM read_parquet('{directory}/matches/*.parquet')"


def check_results(join: Join, directory: Path, results: str = PAIRS, found: str = FOUND) -> None:
    """All results are DuckDB's over the tuples that were taken, each once. Stops the join."""
    join.suspend()
    join.files(directory)
    entries = sorted((directory / join.name / "log").glob("*.entry"))
    committed = [Entry.decode(path.read_bytes()).checkpoint for path in entries]
    last = [checkpoint for checkpoint in committed if checkpoint.epoch >= 0][-1]
    body = copy.deepcopy(join.body)
    body["spec"]["checkpoint"] = {"location": f"{CLAIM_PATH}/{join.name}"}
    job = compile_job(load(yaml.safe_dump(body)))
    connection = duckdb.connect()
    connection.execute("SET threads = 1")
    for stream, rows in zip(job.streams, last.input.records, strict=True):
        connection.register(stream.name, tuples(stream, rows, directory))
    connection.execute(f"CREATE TABLE expected AS {results}")
    connection.execute(f"CREATE TABLE found AS {found.format(directory=directory)}")
    [(wrong,)] = connection.execute("SELECT count(*) FROM (FROM found EXCEPT ALL FROM expected)").fetchall()
    [(missing,)] = connection.execute("SELECT count(*) FROM (FROM expected EXCEPT ALL FROM found)").fetchall()
    [(count,)] = connection.execute("SELECT count(*) FROM found").fetchall()
    assert (wrong, missing) == (0, 0), f"of {count} rows, {wrong} are wrong or repeated, and {missing} missing"
    assert count > 0
    print(f"{join.namespace}: {last.input.records} tuples, {count} rows, epoch {last.epoch}")


def tuples(stream: StreamJob, rows: int, directory: Path) -> pa.Table:
    """The first ``rows`` tuples, as the generator makes them; ``at`` in microseconds."""
    snapshots = StorageSnapshots(ObjectStorage(directory.as_posix()))
    source: Any = make_source(
        stream.source, stream.schema, stream.event_time, snapshots=snapshots, exact_counts=False, stream=stream.name, query="check"
    )
    table = pa.Table.from_batches([source.reader.rows(0, rows)])
    return table.set_column(table.schema.get_field_index("at"), "at", table.column("at").cast(pa.int64()))


def test_a_join_runs_is_scaled_and_deleted(join: Join, tmp_path: Path) -> None:
    join.apply()
    join.until_running(workers=1)
    columns = dict(zip(*(line.split()[:5] for line in join.kubectl("get", "sj").splitlines()), strict=True))
    assert columns == {"NAME": join.name, "PHASE": "Running", "READY": "True", "WORKERS": "1", "DESIRED": "1"}
    join.until("tau", lambda: float(join.status["utilization"]["max"]) > 0)
    assert "Running" in join.plugin("status", join.name)
    join.scale(3)
    join.until_running(workers=3)
    join.scale(0)
    join.patch(workers={"max": 2})
    join.until_running(workers=2)
    check_results(join, tmp_path)
    join.delete()


def test_a_horizontal_pod_autoscaler_gives_orders_to_a_join_that_has_no_floor(join: Join) -> None:
    join.apply()
    join.until_running(workers=1)
    target = {"apiVersion": "streamjoin.dev/v1beta1", "kind": "StreamJoin", "name": join.name}
    spec = {"scaleTargetRef": target, "minReplicas": 2, "maxReplicas": 3}
    body = {"apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler", "metadata": {"name": "near"}, "spec": spec}
    join.kubectl("apply", "-f", "-", stdin=json.dumps(body))
    join.until_running(workers=2)
    (order,) = [record["decision"]["sentence"] for record in join.acts() if record["decision"]["reason"] == "Ordered"]
    assert order.startswith("workers.floor 1 -> 2, by kube-controller-manager through /scale (a HorizontalPodAutoscaler)")
    join.kubectl("delete", "hpa", "near")
    join.delete()


def test_prometheus_scales_it_with_its_traffic(join: Join, operator: Release, tmp_path: Path) -> None:
    make_traffic_swing(join)
    join.apply()
    join.until_running()
    requests, _ = footprint(join.kube, operator)
    join.until_workers(3)
    join.until_workers(1)
    join.until("all told", lambda: {"Allocating", "Deallocating", "Scaled"} <= join.events())
    join.until("the last one applied", lambda: join.status["decisions"][-1]["outcome"] == "Applied")
    assert {record["decision"]["rule"] for record in join.acts() if record["realised"]} >= {"allocate", "deallocate"}
    # For a moment Prometheus has those of the plan before.
    join.until("metrics of this plan", lambda: join.condition("MetricsAvailable")["reason"] == "MetricsRead")
    assert float(join.status["cost"]["executorHours"]) > 0
    for line in changes(join):
        print(line)
    later, memory = footprint(join.kube, operator)
    print(f"{later - requests:.0f} requests to the API server meanwhile; the operator has {memory / 2**20:.0f} MiB")
    check_results(join, tmp_path)


def test_by_default_it_has_workers_as_the_bill_says(join: Join, tmp_path: Path) -> None:
    """What a manifest gets that says no more of scaling than that it is wanted."""
    make_traffic_swing(join)
    join.body["spec"]["scaling"] = {"mode": "Enforce", "rules": {"keepUp": "Off"}}
    join.apply()
    join.until_running()
    join.until("more workers", lambda: join.status.get("workers", 0) >= 2 and join.status["workers"] == len(join.running("executor")))
    join.until("the change applied", lambda: join.status["decisions"][-1]["outcome"] == "Applied")
    assert json.loads(join.kubectl("get", "sj", join.name, "-o", "json"))["spec"]["scaling"]["policy"] == "predictive"
    assert any(record["realised"] for record in join.acts())
    for line in changes(join):
        print(line)
    check_results(join, tmp_path)


def test_three_streams_are_scaled_while_an_executor_and_the_operator_are_killed(join: Join, operator: Release, tmp_path: Path) -> None:
    use_three_streams(join)
    make_traffic_swing(join)
    join.body["spec"]["workers"]["capacityTuples"] = 14_000  # payments are held twice
    join.apply()
    join.until_running()
    refuse_other_streams(join)
    join.until_workers(3)
    killed = join.running("executor")[0]
    join.kube.kill(join.namespace, killed)
    join.kube.kill(operator.namespace, "-l", OPERATOR_PODS)
    join.until("the executor gone", lambda: killed not in join.running("executor"))
    join.until_epochs(3)
    join.until_workers(1)
    join.until("the last one applied", lambda: join.status["decisions"][-1]["outcome"] == "Applied")
    assert {record["decision"]["rule"] for record in join.acts() if record["realised"]} >= {"allocate", "deallocate"}
    join.until("metrics of that plan", lambda: join.condition("MetricsAvailable")["reason"] == "MetricsRead")
    changed_plans(join)
    for line in changes(join):
        print(line)
    check_results(join, tmp_path, TRIPLES)


TRIPLES = """
WITH p AS (SELECT *, unnest([-1, 0, 1]) + floor(amount * 10)::BIGINT AS tenth FROM payments),
    s AS (SELECT *, floor(amount * 10)::BIGINT AS tenth FROM shipments)
SELECT o.id AS order_id, p.id AS payment_id, s.id AS shipment_id
FROM p JOIN s ON p.tenth = s.tenth AND abs(p.amount - s.amount) <= 0.05 AND abs(p.at - s.at) <= 10000000
    JOIN orders o ON o.customer = p.customer AND abs(o.at - p.at) <= 10000000
WHERE greatest(o.at, p.at, s.at) - o.at <= 10000000 AND greatest(o.at, p.at, s.at) - p.at <= 8000000
    AND greatest(o.at, p.at, s.at) - s.at <= 5000000"""


def use_three_streams(join: Join) -> None:
    """Makes it a join in which payments meet orders by one column and shipments by another."""
    spec = join.body["spec"]
    orders, payments = spec["streams"]
    for stream in (orders, payments):
        stream["source"]["generator"]["columns"]["customer"] = {"uniform": {"min": 0, "max": 2000}}
        stream["schema"] = "id BIGINT, amount DOUBLE, customer BIGINT, at TIMESTAMP"
    shipments = copy.deepcopy(orders) | {"name": "shipments"}
    shipments["source"]["generator"]["seed"] = 3
    spec["streams"].append(shipments)
    spec["joins"][0] |= {
        "condition": "orders.customer = payments.customer AND abs(payments.amount - shipments.amount) <= 0.05",
        "window": {"each": {"orders": "10s", "payments": "8s", "shipments": "5s"}},
    }
    spec["joins"][0]["output"]["select"].append("shipments.id AS shipment_id")


def refuse_other_streams(join: Join) -> None:
    """Tries to have a stream fewer and a stream more, which would not fit the checkpoint."""
    fewer, more = copy.deepcopy(join.body), copy.deepcopy(join.body)
    del fewer["spec"]["streams"][2]
    fewer["spec"]["joins"] = yaml.safe_load(EXAMPLE.read_text())["spec"]["joins"]
    more["spec"]["streams"].append(copy.deepcopy(more["spec"]["streams"][0]) | {"name": "returns"})
    more["spec"]["joins"][0]["condition"] += " AND returns.customer = orders.customer"
    more["spec"]["joins"][0]["window"]["each"]["returns"] = "1s"
    for body in (fewer, more):
        with pytest.raises(AssertionError, match="the streams' names and order may not change; make another StreamJoin"):
            join.kubectl("apply", "-f", "-", stdin=json.dumps(body))


def test_a_join_comes_and_goes_while_another_keeps_what_it_holds(join: Join, tmp_path: Path) -> None:
    join.begin(workers=2)
    (first,) = join.body["spec"]["joins"]
    later = copy.deepcopy(first) | {"name": "later"}
    files = later["output"]["sink"]["files"]
    files["path"] = files["path"].replace("matches", "later")
    for joins in ([later, first], [first]):
        drivers = join.running("driver")
        join.body["spec"]["joins"] = joins
        join.apply()
        join.until("another driver", lambda drivers=drivers: join.running("driver") not in ([], drivers))  # type: ignore[misc]
        join.until_running(workers=2)
        join.kube.kill(join.namespace, join.running("executor")[0])
        join.until_epochs(5)
    check_results(join, tmp_path)
    paths = sorted((tmp_path / join.name / "log").glob("*.entry"))
    committed = [Entry.decode(path.read_bytes()).checkpoint for path in paths]
    there = [checkpoint for checkpoint in committed if checkpoint.plan.key_spaces and "later" in checkpoint.plan.key_spaces.joins]
    since = there[0].input.records
    until = next(each.input.records for each in committed if each.epoch >= there[-1].epoch and each not in there)
    with duckdb.connect() as connection:
        body = copy.deepcopy(join.body)
        body["spec"]["checkpoint"] = {"location": f"{CLAIM_PATH}/{join.name}"}
        for stream, begin, end in zip(compile_job(load(yaml.safe_dump(body))).streams, since, until, strict=True):
            connection.register(stream.name, tuples(stream, end, tmp_path).slice(begin))
        connection.execute(f"CREATE TABLE expected AS {PAIRS}")
        connection.execute(f"CREATE TABLE found AS FROM read_parquet('{tmp_path}/later/*.parquet')")
        differing = "(FROM found EXCEPT ALL FROM expected) UNION ALL (FROM expected EXCEPT ALL FROM found)"
        assert connection.execute(f"SELECT count(*) FROM ({differing})").fetchone() == (0,), (since, until)
        assert connection.execute("SELECT count(*) > 0 FROM found").fetchone() == (True,)


def test_without_prometheus_it_holds_until_that_is_back(join: Join, prometheus: Callable[[int], None], tmp_path: Path) -> None:
    make_traffic_swing(join)
    join.body["metadata"]["annotations"] = {PAUSE: "in"}
    join.apply()
    join.until_workers(3)
    prometheus(0)
    join.until("MetricsAvailable=False", lambda: join.condition("MetricsAvailable").get("status") == "False")
    join.kubectl("annotate", f"sj/{join.name}", f"{PAUSE}-")
    decided = len(join.acts())
    join.until("idle", lambda: 0 <= join.gauge("streamjoin_worker_utilization_ratio") < 0.25)
    join.until_epochs(10)  # twice as long as scaleDownAfter
    assert join.condition("MetricsAvailable")["reason"] in ("PrometheusUnreachable", "PrometheusSlow")
    # By the driver's own numbers the join may be cut anew, and no worker goes.
    assert {record["decision"]["kind"] for record in join.acts()[decided:]} <= {"REPLAN"}
    assert (join.status["workers"], len(join.running("executor"))) == (3, 3)
    prometheus(1)
    join.until("MetricsAvailable", lambda: join.condition("MetricsAvailable").get("status") == "True")
    join.until_workers(1)
    check_results(join, tmp_path)


def test_by_metrics_that_cannot_be_true_no_worker_is_removed(join: Join, tmp_path: Path) -> None:
    join.start(*untrue_prometheus(join.namespace))

    def tell(lie: str) -> None:
        join.kubectl("exec", "untrue", "--", "sh", "-c", f"echo '{lie}' > /tmp/lie")

    spec = join.body["spec"]
    url = f"http://untrue.{join.namespace}:9090"
    spec["scaling"] = {"policy": "thresholds", "tau0": 0.25, "scaleDownAfter": "5s", "prometheus": {"url": url}}
    join.operator.install(join.kube, f"prometheus.allowedUrls={{{url}}}")
    join.begin(workers=3)
    for lie, reason in (("stale", "MetricsStale"), ("nan", "MetricsNotFinite"), ("one less", "MetricsIncomplete")):
        tell(lie)
        join.until(reason, lambda reason=reason: join.condition("MetricsAvailable").get("reason") == reason)  # type: ignore[misc]
        join.scale(0)  # from here on only the metrics keep it from removing two that are hardly used
        join.until_epochs(10)
        assert join.condition("MetricsAvailable")["reason"] == reason
        assert (join.status["workers"], len(join.running("executor"))) == (3, 3)
        assert "Deallocating" not in join.events()
    tell("none")
    join.until_workers(1)
    check_results(join, tmp_path)
    join.operator.install(join.kube)


UNTRUE = """
import http.server, json, sys, urllib.request

frozen = None

class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        global frozen
        lie = open("/tmp/lie").read().strip()
        if lie != "stale" or frozen is None:
            with urllib.request.urlopen(sys.argv[1] + self.path) as answer:
                frozen = answer.read()
        body = json.loads(frozen)
        series = [one for one in body["data"]["result"] if one["metric"]["__name__"] == "streamjoin_worker_utilization_ratio"]
        if lie == "nan":
            series[0]["values"][-1][1] = "NaN"
        if lie == "one less":
            body["data"]["result"].remove(series[-1])
        text = json.dumps(body).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

open("/tmp/lie", "w").write("none")
http.server.HTTPServer(("", 9090), Handler).serve_forever()
"""
"""Passes questions on to a Prometheus, and alters its answers as the file /tmp/lie says."""


def untrue_prometheus(namespace: str) -> tuple[Object, Object]:
    """A pod and its service."""
    pod = idle_pod("untrue")
    pod["metadata"]["labels"] = {"app": "untrue"}
    container = pod["spec"]["containers"][0]
    container["command"] = ["/opt/streamjoin/bin/python", "-c", UNTRUE, PROMETHEUS]
    container["readinessProbe"] = {"tcpSocket": {"port": 9090}, "periodSeconds": 2}
    container["volumeMounts"] = [{"name": "tmp", "mountPath": "/tmp"}]
    pod["spec"]["volumes"] = [{"name": "tmp", "emptyDir": {}}]
    spec = {"selector": {"app": "untrue"}, "ports": [{"port": 9090}]}
    service = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "untrue", "namespace": namespace}, "spec": spec}
    return pod, service


def test_an_operator_that_is_killed_while_it_scales_goes_on(join: Join, operator: Release, tmp_path: Path) -> None:
    make_traffic_swing(join)
    join.apply()
    join.until("a plan under way", lambda: (join.status.get("desiredWorkers") or 1) > 1)
    join.kube.kill(operator.namespace, "-l", OPERATOR_PODS)
    join.until_workers(3)
    join.until_workers(1)
    changed_plans(join)
    check_results(join, tmp_path)


def changed_plans(join: Join) -> list[int]:
    """The generations that decisions have changed, none of them twice."""
    generations = [record["decision"]["generation"] for record in join.acts() if record["realised"]]
    assert generations == sorted(set(generations)), "a plan was changed twice by one decision"
    return generations


def test_an_operator_that_is_killed_before_any_step_of_a_plan_goes_on(join: Join, operator: Release, tmp_path: Path) -> None:
    join.body["spec"]["scaling"] = {"policy": "thresholds", "tau0": 0.25, "scaleDownAfter": "3s"}
    join.apply()
    join.until_running()
    try:
        for steps in (*range(5), 20):
            join.scale(2)
            join.until_workers(2)
            replace_operator(join.kube, operator, ["/opt/streamjoin/bin/python", "-c", MORTAL, str(steps)])
            join.scale(0)
            join.until(f"an operator killed {steps} steps after its decision", lambda: restarts(join.kube, operator) > 0)
            join.until_workers(1)
    finally:
        replace_operator(join.kube, operator, None)
    assert len(changed_plans(join)) >= 6
    check_results(join, tmp_path)


MORTAL = """
import os, pathlib, sys
from streamjoin_operator import main

killed, after, steps, began = pathlib.Path("/tmp/killed"), int(sys.argv.pop()), [], None

class Operator(main.Operator):
    def __init__(self, settings, way):
        super().__init__(settings, way, on_step=self.die_in_time)

    def die_in_time(self, step):
        global began
        steps.append(step)
        if step == "ledger" and began is None:
            newest = [list(memo.scaler.autoscaler.ledger)[-1] for memo in self.reconciler.seen.memos.values() if memo.scaler is not None]
            if any(record.decision.kind.value != "HOLD" and record.decision.target == 1 and not record.realised for record in newest):
                began = len(steps)
        if began is not None and len(steps) == began + after and not killed.exists():
            killed.write_text(step)
            os._exit(9)

main.Operator = Operator
sys.exit(main.main([]))
"""
"""The operator, which dies before so many steps after it wrote its first decision down; started again, it lives."""


def replace_operator(kube: Kube, operator: Release, command: list[str] | None) -> None:
    """Has the operator's pod run something else, or None: the image's own. Returns when it is ready."""
    container = {"name": "operator", "command": command}
    body = {"spec": {"template": {"spec": {"containers": [container]}}}}
    kube(f"--namespace={operator.namespace}", "patch", f"deployment/{operator.deployment}", "-p", json.dumps(body))
    kube.rolled_out(operator.namespace, operator.deployment)


def restarts(kube: Kube, operator: Release) -> int:
    """How often the operator's container was started again."""
    pods = kube.json(f"--namespace={operator.namespace}", "pods", "-l", OPERATOR_PODS)["items"]
    return sum(status["restartCount"] for pod in pods for status in pod["status"].get("containerStatuses") or [])


def test_an_upgrade_of_the_operator_restarts_no_join(join: Join, tmp_path: Path) -> None:
    join.begin(workers=2)
    before = containers(join)
    join.operator.install(join.kube, "operator.logLevel=debug", "engine.tag=of-another-release")
    try:
        join.until_epochs(10)
        assert containers(join) == before
        join.scale(3)
        join.until_running(workers=3)
        assert before.items() <= containers(join).items()
        assert len(set(containers(join).values())) == 1, "an executor that came later is of another release, or started again"
    finally:
        join.operator.install(join.kube)
    check_results(join, tmp_path)


def test_a_new_image_that_does_not_come_up_does_not_stop_the_join(join: Join, tmp_path: Path) -> None:
    join.begin(workers=2)
    before, nowhere = containers(join), "streamjoin-engine:that-is-nowhere"
    join.patch(image=nowhere)
    join.until("it is said", lambda: join.condition("Degraded").get("reason") == "NewTemplateFails")
    assert nowhere in join.condition("Degraded")["message"]
    join.until("it is told", lambda: "NewTemplateFails" in join.events())
    join.until_epochs(5)
    assert containers(join) == before
    assert join.condition("Available")["status"] == "True"
    assert join.condition("Ready")["reason"] == "NewTemplateFails"
    (driver,) = join.running("driver")
    join.kube.kill(join.namespace, driver)
    join.until("another driver", lambda: join.running("driver") not in ([], [driver]))
    join.until_running(workers=2)
    assert set(containers(join).values()) == set(before.values()), "one that starts meanwhile is of the image that ran"
    (driver,) = join.running("driver")
    join.patch(image=None)
    join.until("it is well", lambda: join.condition("Degraded").get("status") == "False")
    join.until("no trial is left", lambda: not join.pods("trial"))
    assert join.running("driver") == [driver], "it is not replaced by the same"
    join.patch(driver={"podTemplate": {"metadata": {"annotations": {"e2e": "changed"}}}})
    join.until("it is tried, and replaced", lambda: join.running("driver") not in ([], [driver]))
    join.until_running(workers=2)
    assert "TemplateTried" in join.events()
    check_results(join, tmp_path)


def test_an_api_server_that_is_gone_for_a_while_stops_nothing(join: Join, node: Node, tmp_path: Path) -> None:
    join.begin(workers=2)
    before, pods = join.epoch(), containers(join)
    [driver] = join.pods("driver")
    metrics, direct = f"http://{driver['status']['podIP']}:8080/metrics", urllib.request.build_opener(urllib.request.ProxyHandler({}))
    node.kill("apiserver")
    try:
        wait_for(
            "it joins without the API server",
            lambda: largest("streamjoin_epoch_number", direct.open(metrics, timeout=PATIENCE_SECONDS).read().decode()) >= before + 10,
        )
    finally:
        node.start_again("apiserver")
    assert containers(join) == pods
    join.scale(3)
    join.until_running(workers=3)
    check_results(join, tmp_path)


def containers(join: Join) -> dict[str, tuple[str, int]]:
    """Of the join's pods, by name: the container's image and how often it was started again."""
    found = {}
    for pod in (*join.pods("driver"), *join.pods("executor")):
        [status] = pod["status"]["containerStatuses"]
        found[pod["metadata"]["name"]] = (pod["spec"]["containers"][0]["image"], status["restartCount"])
    return found


def make_traffic_swing(join: Join) -> None:
    """By 90 % in five minutes: at its height two workers are full, at its low one is nearly empty. Nothing is shed."""
    spec = join.body["spec"]
    for stream, mean in zip(spec["streams"], (300, 250, 200), strict=False):
        stream["source"]["generator"]["rate"] = {"diurnal": {"mean": mean, "amplitude": 0.9, "period": "300s"}}
    spec["workers"]["capacityTuples"] = 7000
    spec["epoch"] = {"interval": "2s"}
    # keepUp is off: how fast the machine is, is not what is tested.
    spec["scaling"] = {"mode": "Enforce", "tau0": 0.25, "tau1": 0.5, "tau2": 0.8, "tau3": 0.9, "rules": {"keepUp": "Off"}}
    spec["scaling"] |= {"policy": "thresholds", "scaleUpAfter": "4s", "scaleDownAfter": "10s"}


def changes(join: Join) -> Iterator[str]:
    """Of each decision that was carried out: how long it took, from the first scrape that called for more workers, and what came of it."""
    tau = raw_points(join.kube, f'streamjoin_worker_utilization_ratio{{namespace="{join.namespace}",name="{join.name}"}}[30m]')
    before = 0.0
    for record in join.acts():
        decision, realised = record["decision"], record["realised"]
        if realised is None:
            continue
        at, tau3 = record["first_at"], decision["thresholds"]["tau3"]
        called = decision["rule"] == "allocate"
        full = min((scraped for scraped, value in tau if called and before < scraped <= at and value >= tau3), default=None)
        before = realised["at"]
        yield (
            f"{decision['kind']} from {decision['workers']} to {decision['target']}: its first epoch was committed"
            + (f" {before - full:.1f} s after the first scrape with tau >= tau3," if full is not None else "")
            + f" {before - at:.1f} s after the decision; pause {realised['pause_seconds']:.1f} s, {realised['moved_tuples']:.0f} tuples"
            f" moved, tau {decision['inputs']['tau_max']:.2f} before and {realised['tau_max'] or 0:.2f} after"
        )


def raw_points(kube: Kube, query: str) -> list[tuple[float, float]]:
    """All points of the series of a range query, with the times of their scrapes; as Prometheus in the cluster has them."""
    path = "/api/v1/namespaces/monitoring/services/prometheus:9090/proxy/api/v1/query?query="
    found = json.loads(kube("get", "--raw", path + quote(query, safe="")))["data"]["result"]
    return sorted((float(at), float(value)) for series in found for at, value in series["values"])


def footprint(kube: Kube, operator: Release) -> tuple[float, float]:
    """How many requests the operator has made to the API server, and its memory in bytes."""
    selector = ("-l", OPERATOR_PODS, "--field-selector=status.phase=Running")
    pod = kube.json(f"--namespace={operator.namespace}", "pods", *selector)["items"][0]["metadata"]["name"]
    lines = kube("get", "--raw", f"/api/v1/namespaces/{operator.namespace}/pods/{pod}:8080/proxy/metrics").splitlines()
    requests = sum(float(line.split()[-1]) for line in lines if line.startswith("streamjoin_operator_api_requests_total{"))
    return requests, next(float(line.split()[-1]) for line in lines if line.startswith("process_resident_memory_bytes "))


def test_suspended_it_keeps_its_state_and_goes_on_when_resumed(join: Join, tmp_path: Path) -> None:
    join.apply()
    join.until_running(workers=1)
    before = join.epoch()
    join.suspend()
    join.patch(suspend=False)
    join.until_running(workers=1)
    assert join.epoch() > before
    check_results(join, tmp_path)


ASK = """
import json, sys, urllib.request
url, token, sql = sys.argv[1:]
request = urllib.request.Request(url, json.dumps({"sql": sql}).encode(), {"Authorization": f"Bearer {token}"})
print(urllib.request.urlopen(request, timeout=60).read().decode())
"""


def test_query_servers_answer_by_their_service_while_the_join_is_suspended(join: Join, tmp_path: Path) -> None:
    join.body["spec"]["queries"] = {"replicas": 1, "cpu": "100m"}
    join.apply()
    join.until_running(workers=1)
    join.until("a query server", lambda: (join.status.get("queries") or {}).get("ready") == 1)
    secret = join.json("secret", f"sj-{join.name}-queries")
    asked = (join.status["queries"]["url"], base64.b64decode(secret["data"]["token"]).decode(), "SELECT count(*) AS n FROM orders")
    join.start(reader(join.claim))

    def answer() -> int:
        lines = join.kubectl("exec", "reader", "--", "python", "-c", ASK, *asked, check=False).splitlines()
        return int(json.loads(lines[0])["n"]) if lines else -1

    join.until("tuples", lambda: answer() > 0)
    before = join.epoch()
    join.suspend()
    join.until("an answer without a driver", lambda: answer() > 0)
    join.patch(suspend=False, queries={"replicas": 0})
    join.until_running(workers=1)
    join.until("no query server", lambda: not join.pods("queries"))
    assert join.epoch() > before
    join.end("reader")
    check_results(join, tmp_path)


def test_deleted_and_made_again_on_the_same_claim_it_goes_on(join: Join, tmp_path: Path) -> None:
    join.apply()
    join.until_running()
    before = join.epoch()
    join.delete()
    join.apply()
    join.until_running()
    assert join.epoch() > before
    check_results(join, tmp_path)


SMALL_DRIVER: Object = {"podTemplate": {"spec": {"containers": [{"name": "driver", "resources": {"requests": {"cpu": "100m"}}}]}}}
"""So that two of them find room on one small node."""


def test_a_snapshot_is_cloned_and_the_join_goes_back_to_it(join: Join, tmp_path: Path) -> None:
    join.body["spec"]["driver"] = SMALL_DRIVER
    join.begin(workers=2)
    join.plugin("snapshot", join.name, "before")
    kept = join.json("sjsnap", "before")["status"]["epoch"]
    clone = Join(join.kube, join.operator, join.namespace, yaml.safe_load(join.plugin("clone", "before", "other")))
    clone.body["spec"]["joins"][0]["output"]["sink"] = {"files": {"path": f"{CLAIM_PATH}/others", "format": "parquet"}}
    clone.apply()
    clone.until_running()
    clone.until_epochs(5)
    before = f"(FROM read_parquet('{{directory}}/matches/*.parquet', filename = true) WHERE {OF_EPOCH} <= {kept})"
    after = "read_parquet('{directory}/others/*.parquet')"
    check_results(clone, tmp_path / "other", found=f"SELECT order_id, payment_id FROM {before} UNION ALL FROM {after}")
    assert "the driver starts anew" in join.plugin("rollback", join.name, "before", "--keep", "after", "--repeat-results")
    join.until_running(workers=2)
    join.plugin("snapshot", join.name, "after")  # there is one of this name, as --keep has made it
    left = join.json("sjsnap", "after")["status"]["epoch"]
    assert join.epoch() > left > kept, "epochs are counted on"
    # What was found between is found again, and stays.
    both = f"(FROM read_parquet('{{directory}}/matches/*.parquet', filename = true) WHERE {OF_EPOCH} <= {kept} OR {OF_EPOCH} > {left})"
    check_results(join, tmp_path / "one", found=f"SELECT order_id, payment_id FROM {both}")


def test_a_driver_that_is_killed_is_started_again(join: Join, tmp_path: Path) -> None:
    join.begin(workers=2)
    [driver] = join.running("driver")
    join.kube.kill(join.namespace, driver)
    join.until("another driver", lambda: join.running("driver") not in ([], [driver]))
    join.until_running(workers=2)
    check_results(join, tmp_path)


def test_a_standby_takes_over_from_a_driver_that_is_killed(join: Join, tmp_path: Path) -> None:
    join.body["spec"]["driver"] = {**SMALL_DRIVER, "standby": True}
    join.body["spec"]["checkpoint"]["accessModes"] = ["ReadWriteMany"]
    join.apply()
    join.until_running()
    join.until("a standby", lambda: join.status.get("standby", {}).get("state") == "Ready")
    [driver] = join.running("driver")
    before = join.epoch()
    join.kube.kill(join.namespace, driver)
    join.until("another driver at work", lambda: join.running("driver") not in ([], [driver]) and join.epoch() > before)
    join.until("it is told", lambda: "StandbyTookOver" in join.events())
    join.until("another standby", lambda: join.status.get("standby", {}).get("state") == "Ready")
    check_results(join, tmp_path)


def test_an_executor_that_is_killed_is_replaced(join: Join, tmp_path: Path) -> None:
    join.begin(workers=2)
    join.replace_executor()
    check_results(join, tmp_path)


@pytest.fixture(scope="session")
def spark_image(kube: Kube) -> None:
    """The cluster has the image with all of Spark."""
    tool.load_images(tool.find_cluster(), [tool.SPARK])


@pytest.mark.usefixtures("spark_image")
def test_what_spark_reads_and_writes_is_joined_once_though_an_executor_is_killed(join: Join, tmp_path: Path) -> None:
    query = "SELECT value AS id, value * 0.5D AS amount FROM input"
    for stream in join.body["spec"]["streams"]:
        source = {"spark": {"format": "rate", "options": {"rowsPerSecond": 20}, "query": query}}
        stream.update(source=source, schema="id BIGINT, amount DOUBLE")
        del stream["eventTime"], stream["watermark"]
    sink = {"spark": {"format": "orc", "options": {"path": f"{CLAIM_PATH}/matches"}}}
    match = join.body["spec"]["joins"][0]
    match.update(condition="orders.id = payments.id", window={"unbounded": True}, output={**match["output"], "sink": sink})
    join.begin(workers=2)
    join.replace_executor()
    join.until_epochs(20)
    join.suspend()
    join.patch(suspend=False)
    join.until_running(workers=2)
    join.until_epochs(20)
    join.suspend()
    join.files(tmp_path)
    table = dataset.dataset(tmp_path / "matches", format="orc").to_table()
    ids = table.column("order_id").to_pylist()
    assert ids == table.column("payment_id").to_pylist()
    assert len(ids) == len(set(ids)) > 500
    # What is written last may be a part of what there is.
    assert set(range(max(ids) - 200)) < set(ids)


def test_executors_get_more_memory_while_they_run_and_those_that_come_later_too(join: Join, tmp_path: Path) -> None:
    join.begin(workers=2)
    pods = [(pod["metadata"]["uid"], 0) for component in ("driver", "executor") for pod in join.pods(component)]
    join.patch(workers={"resources": {"cpu": "150m", "memory": "2Gi"}})

    def are_resized() -> bool:
        """By what their kubelet has given them."""
        given = [pod["status"]["containerStatuses"][0].get("resources", {}) for pod in join.pods("executor")]
        return all((each["requests"]["cpu"], each["limits"]["memory"]) == ("150m", "2Gi") for each in given)

    join.until("they have more memory", are_resized)
    join.until("nothing is under way", lambda: join.condition("Ready").get("status") == "True")
    join.until_epochs(3)
    assert join.status["change"]["class"] == "Live"
    found = [pod for component in ("driver", "executor") for pod in join.pods(component)]
    assert [(pod["metadata"]["uid"], pod["status"]["containerStatuses"][0]["restartCount"]) for pod in found] == pods
    join.scale(3)
    join.until_running(workers=3)
    join.until("the third has it, too", are_resized)
    check_results(join, tmp_path)


def test_a_full_worker_gets_more_memory_where_no_other_may_come(join: Join, tmp_path: Path) -> None:
    spec = join.body["spec"]
    for stream in spec["streams"]:
        stream["source"]["generator"]["rate"] = {"constant": 10_000}
        stream["source"]["generator"]["columns"]["amount"] = {"uniform": {"min": 0, "max": 1_000_000}}
    spec["joins"][0]["window"] = {"within": "60s"}  # of both streams as much as a worker has room for
    spec["workers"] = {"min": 1, "max": 1, "resources": {"cpu": "100m", "memory": "1Gi"}, "maxMemory": "2Gi"}
    spec["scaling"] = {"vertical": "Enforce"}
    join.apply()
    join.until_running(workers=1)
    [executor] = join.pods("executor")

    def memory() -> str:
        """By what its kubelet has given it."""
        [pod] = join.pods("executor")
        return str(pod["status"]["containerStatuses"][0].get("resources", {}).get("limits", {}).get("memory"))

    join.until("it has more memory", lambda: memory() not in ("1Gi", "None"))
    join.until("it is far from full", lambda: 0 < float(join.status["utilization"]["max"]) < 0.5)
    [resized] = join.pods("executor")
    assert resized["metadata"]["uid"] == executor["metadata"]["uid"]
    assert resized["status"]["containerStatuses"][0]["restartCount"] == 0
    assert [record["decision"]["kind"] for record in join.acts()] == ["ENLARGE"]
    check_results(join, tmp_path, PAIRS.replace("10000000", "60000000"))


def test_an_executor_that_is_evicted_hands_over_before_it_goes(join: Join, tmp_path: Path) -> None:
    """As a drain of its node does it: the budget allows it, no epoch fails, and all lines of its log are records."""
    join.begin(workers=2)
    leaver, _ = join.running("executor")
    failures, generation = join.gauge("streamjoin_epoch_failures_total"), join.gauge("streamjoin_plan_generation")
    path = f"/api/v1/namespaces/{join.namespace}/pods/{leaver}/eviction"
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": leaver, "namespace": join.namespace}}
    log = join.kubectl("logs", leaver)
    join.kubectl("create", "--raw", path, "-f", "-", stdin=json.dumps(eviction))
    join.until("its end", lambda: leaver not in {pod["metadata"]["name"] for pod in join.json("pods")["items"]})
    join.until_running(workers=2)
    join.until_epochs(3)
    assert join.gauge("streamjoin_epoch_failures_total") == failures
    assert join.gauge("streamjoin_plan_generation") > generation
    assert all({"time", "level", "logger", "message"} <= json.loads(line).keys() for line in log.splitlines())
    check_results(join, tmp_path)


KILL_A_WORKER = """
import psutil, signal
daemons = [p for p in psutil.process_iter() if "streamjoin.runner.daemon" in p.cmdline()]
[worker] = [p for p in daemons if not p.children() and p.parent() in daemons and p.parent().parent() in daemons]
worker.send_signal(signal.SIG%s)
"""
"""For an executor's pod: its worker is a child of its host, which is one of the Python daemon that Spark starts."""


def test_fifty_kills_of_workers_and_pods_lose_nothing(join: Join, tmp_path: Path) -> None:
    rng = random.Random(50)
    join.begin(workers=2)
    for number in range(50):
        pod = rng.choice(join.until("executors", lambda: join.running("executor")))
        if number % 10 == 5:
            join.kube.kill(join.namespace, pod)
            join.scale(3 - number % 20 // 10)  # a plan comes meanwhile
        else:
            name = "STOP" if number % 25 == 7 else "KILL"
            join.kubectl("exec", pod, "--", "python", "-c", KILL_A_WORKER % name, check=False)  # there may be none at the moment
        join.until_epochs(1)
    join.until_running(workers=3)
    check_results(join, tmp_path)


def test_an_operator_that_is_killed_while_a_join_is_scaled_goes_on(join: Join, operator: Release, tmp_path: Path) -> None:
    join.apply()
    join.until_running()
    join.scale(3)
    join.until("a plan under way", lambda: join.status.get("desiredWorkers") == 3)
    join.kube.kill(operator.namespace, "-l", OPERATOR_PODS)
    join.until_running(workers=3)
    check_results(join, tmp_path)


def test_a_bad_image_is_said_and_put_right(join: Join, tmp_path: Path) -> None:
    join.body["spec"]["image"] = "registry.invalid/streamjoin-engine:none"  # of a join that runs already, a trial would find it out
    join.apply()
    join.until("ImageUnavailable", lambda: join.condition("Ready").get("reason") == "ImageUnavailable")
    join.patch(image=None)
    join.until_running()
    check_results(join, tmp_path)


def test_on_a_full_node_the_join_goes_on_at_its_size(join: Join, tmp_path: Path) -> None:
    join.body["spec"]["workers"]["resources"]["cpu"] = "300m"
    join.apply()
    join.until_running(workers=1)
    fill(join)
    join.scale(3)
    join.until("ExecutorsPending", lambda: "ExecutorsPending" in {found["reason"] for found in join.status.get("conditions") or []})
    join.until_epochs(5)
    assert join.status["workers"] == 1
    join.end("filler")
    join.until_running(workers=3)
    check_results(join, tmp_path)


def fill(join: Join) -> None:
    """Leaves the node less processor than an executor asks for."""
    [node] = join.kube.json("nodes")["items"]
    running = join.kube.json("pods", "--all-namespaces", "--field-selector=status.phase!=Succeeded,status.phase!=Failed")["items"]
    requested = sum(
        millicores(container.get("resources", {}).get("requests", {}).get("cpu", "0"))
        for pod in running
        for container in pod["spec"]["containers"]
    )
    free = millicores(node["status"]["allocatable"]["cpu"]) - requested
    pod = reader(join.claim)
    pod["metadata"]["name"] = "filler"
    pod["spec"]["containers"][0]["resources"] = {"requests": {"cpu": f"{free - 100}m"}}
    join.start(pod)


def millicores(quantity: str) -> int:
    return int(quantity[:-1]) if quantity.endswith("m") else int(float(quantity) * 1000)


def test_on_a_full_volume_it_waits_for_room(join: Join, node: Node, tmp_path: Path) -> None:
    join.body["spec"]["checkpoint"]["storageClassName"] = SMALL
    join.body["spec"]["checkpoint"]["size"] = "64Mi"
    join.begin(workers=2)
    join.start(reader(join.claim))
    filler = f"{CLAIM_PATH}/filler"
    join.kubectl("exec", "reader", "--", "sh", "-c", f"dd if=/dev/zero of={filler} bs=64k || true")
    join.until("it says so", lambda: "No space left" in json.dumps(join.status))
    join.kubectl("exec", "reader", "--", "rm", filler)
    join.end("reader")
    join.until_running(workers=2)
    check_results(join, tmp_path)


CREATE = """
import sys
from confluent_kafka.admin import AdminClient, NewTopic
client = AdminClient({"bootstrap.servers": sys.argv[1]})
for future in client.create_topics([NewTopic(name, 2, 1) for name in sys.argv[2:]]).values():
    future.result(60)
"""
PRODUCE = """
import sys
from confluent_kafka import Producer
producer = Producer({"bootstrap.servers": sys.argv[1]})
for number, value in enumerate(sys.stdin):
    producer.produce(sys.argv[2], value.strip(), partition=number % 2)
    producer.poll(0)
assert producer.flush(60) == 0
"""
CONSUME = """
import sys
from confluent_kafka import Consumer, TopicPartition
consumer = Consumer({"bootstrap.servers": sys.argv[1], "group.id": "check", "enable.partition.eof": True})
consumer.assign([TopicPartition(sys.argv[2], partition, 0) for partition in range(2)])
ended = 0
while ended < 2:
    for message in consumer.consume(1000, 1.0):
        if message.error() is not None:
            ended += 1
        else:
            print(dict(message.headers())["streamjoin-id"].decode(), message.value().decode())
"""
"""Programs for a pod beside the broker; they know of the engine only what is documented."""


def test_from_kafka_to_kafka_through_a_broker_that_stops(kube: Kube, join: Join) -> None:
    join.start(idle_pod("client"))
    topics = use_kafka(join)
    beside_broker(join, CREATE, *topics)
    clicks, purchases = made_clicks(), made_purchases()
    half = START + timedelta(minutes=10)
    for topic, records in zip(topics[:2], (clicks, purchases), strict=True):
        beside_broker(join, PRODUCE, topic, stdin=lines(record for record in records if record["at"] < half))
    join.apply()
    join.until("results", lambda: join.status.get("phase") == "Running" and results(join, topics[2]))
    join.scale(2)
    stopped = kafka_restarts(kube)
    kube("--namespace=kafka", "exec", "deployment/kafka", "--container=kafka", "--", "sh", "-c", "kill 1")
    join.until("the broker started again", lambda: kafka_restarts(kube) > stopped)
    kube.rolled_out("kafka", "kafka")
    for topic, records in zip(topics[:2], (clicks, purchases), strict=True):
        beside_broker(join, PRODUCE, topic, stdin=lines(record for record in records if record["at"] >= half))
    join.until_workers(2)
    expected = Counter(
        (click["user"], click["page"], purchase["amount"])
        for purchase in purchases
        for click in clicks
        if click["user"] == purchase["user"] and timedelta(0) <= purchase["at"] - click["at"] <= timedelta(minutes=10)
    )
    join.until("all results", lambda: len(results(join, topics[2])) >= len(expected))
    found = results(join, topics[2])
    assert Counter((value["user"], value["page"], f"{float(value['amount']):.2f}") for value in found) == expected
    print(f"{join.namespace}: {len(clicks)} clicks, {len(purchases)} purchases, {len(found)} results")


def test_an_idle_join_sleeps_until_the_first_record_whose_results_come_once(join: Join) -> None:
    join.start(idle_pod("client"))
    topics = use_kafka(join)
    join.body["spec"]["idle"] = {"after": "10s"}
    beside_broker(join, CREATE, *topics)
    at = START
    click, purchase = {"user": "u", "page": "/", "at": at}, {"user": "u", "amount": "1.00", "at": at}
    for topic, record in zip(topics[:2], (click, purchase), strict=True):
        beside_broker(join, PRODUCE, topic, stdin=lines([record]))
    join.apply()
    join.until("the first result", lambda: len(results(join, topics[2])) == 1)
    for amount in ("2.00", "3.00"):
        join.until("it sleeps", lambda: join.condition("Ready").get("reason") == "SuspendedWhenIdle")
        join.until("nothing but the watcher", lambda: not join.pods("driver") and not join.pods("executor") and join.running("watcher"))
        before = len(results(join, topics[2]))
        beside_broker(join, PRODUCE, topics[1], stdin=lines([{**purchase, "amount": amount}]))
        join.until("its result", lambda before=before: len(results(join, topics[2])) == before + 1)
        sleep = join.status["sleep"]
        assert sleep["wokenBy"] == "there is something to read"
        print(f"{join.namespace}: woken at {sleep['wokenAt']}, at work since {join.condition('Available')['lastTransitionTime']}")
        join.until("no watcher", lambda: not join.pods("watcher"))


def use_kafka(join: Join) -> list[str]:
    """Makes it the example's join, with state in S3, of topics of its own: clicks, purchases and attributions."""
    join.body = yaml.safe_load(KAFKA_EXAMPLE.read_text())
    join.name = join.body["metadata"]["name"]
    spec = join.body["spec"]
    sink = spec["joins"][0]["output"]["sink"]["kafka"]
    places = [*(stream["source"]["kafka"] for stream in spec["streams"]), sink]
    suffix = uuid.uuid4().hex[:8]
    for place in places:
        place |= {"bootstrapServers": KAFKA, "topic": f"{place['topic']}-{suffix}"}
    spec["workers"] |= {"max": 2, "capacityTuples": 50_000, "resources": {"cpu": "100m", "memory": "1536Mi"}}
    use_s3(join, suffix)
    return [place["topic"] for place in places]


def use_s3(join: Join, bucket: str) -> None:
    """Has the join keep its state in a new bucket."""
    environment = {
        "AWS_ENDPOINT_URL": S3,
        "AWS_ALLOW_HTTP": "true",
        "AWS_ACCESS_KEY_ID": "tester",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_REGION": "us-east-1",
    }
    join.kubectl("create", "secret", "generic", "s3", *(f"--from-literal={name}={value}" for name, value in environment.items()))
    made = "import urllib.request, sys; urllib.request.urlopen(urllib.request.Request(sys.argv[2], method='PUT')).read()"
    beside_broker(join, made, f"{S3}/{bucket}")
    spec = join.body["spec"]
    spec["checkpoint"] = {"location": f"s3://{bucket}/state"}
    for part in ("driver", "executor"):
        container = {"name": part, "envFrom": [{"secretRef": {"name": "s3"}}]}
        spec[part] = {"podTemplate": {"spec": {"containers": [container]}}}


START = datetime.fromisoformat("2026-01-01T00:00:00+00:00")


def made_clicks() -> list[Object]:
    """Within 20 minutes, in order."""
    numbers = range(8000)
    return [{"user": f"u{number * 7919 % 300}", "page": f"/{number}", "at": START + number * timedelta(seconds=0.15)} for number in numbers]


def made_purchases() -> list[Object]:
    """As long, each of another amount."""
    numbers = range(2000)
    made = ((number, f"u{number * 104729 % 300}", START + number * timedelta(seconds=0.6)) for number in numbers)
    return [{"user": user, "amount": f"{number / 100:.2f}", "at": at} for number, user, at in made]


def lines(records: Iterable[Object]) -> str:
    return "".join(json.dumps(record, default=datetime.isoformat) + "\n" for record in records)


def beside_broker(join: Join, program: str, *arguments: str, stdin: str | None = None) -> str:
    """Runs a program in the cluster, with the broker's address as its first argument; what it prints."""
    command = ("exec", "--stdin", "client", "--", "/opt/streamjoin/bin/python", "-c", program, KAFKA, *arguments)
    return join.kubectl(*command, stdin=stdin or "")


def results(join: Join, topic: str) -> list[Object]:
    """Those of all identities, each once."""
    found: dict[str, str] = {}
    for line in beside_broker(join, CONSUME, topic).splitlines():
        identity, value = line.split(" ", 1)
        assert found.setdefault(identity, value) == value, "an identity belongs to one result"
    return [json.loads(value) for value in found.values()]


def kafka_restarts(kube: Kube) -> int:
    [pod] = kube.json("--namespace=kafka", "pods", "-l", "app=kafka")["items"]
    return int(pod["status"]["containerStatuses"][0]["restartCount"])
