"""A driver and its executors as in pods, without nodes: Spark asks a real API server for pods, and the test runs what their containers
would. So Spark's own Kubernetes code, the secret, the encryption, TLS and the entry points are those of a cluster. Linux only."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from apiserver import ApiServer
from certificates import Authority
from chart import path_of
from operator_parts import streamjoin
from streamjoin_operator import children, executor_hooks, names, pod_templates
from streamjoin_operator.changes import engine_manifest
from streamjoin_operator.children import DRIVER_RULES
from streamjoin_operator.derived import derive
from streamjoin_operator.resource import Resource
from streamjoin_operator.settings import Settings
from test_driver_policy import policy_of
from waiting import PATIENCE_SECONDS, wait_for

pytestmark = [pytest.mark.spark, pytest.mark.apiserver]
ROOT = Path(__file__).resolve().parent.parent
SECRET = "nobody-else-may-see-this"
DRIVER_IP, EXECUTOR_IP = "127.0.0.3", "127.0.0.4"
"""Of their own, so that the ports are free."""

Object = dict[str, Any]


class Pods:
    """Runs executors' containers, and tells the API server as a node would."""

    def __init__(self, server: ApiServer, namespace: str, directory: Path, environment: dict[str, str]) -> None:
        self._admin, self._directory, self._environment = server.admin, directory, environment
        self._path = f"/api/v1/namespaces/{namespace}/pods"
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.specified: list[Object] = []
        """All pods, as they were asked for."""

    def look(self) -> None:
        """Start what was asked for, end what was deleted, report what has ended."""
        found = {pod["metadata"]["name"]: pod for pod in self._admin.get(self._path, labelSelector="spark-role=executor")["items"]}
        for name, pod in found.items():
            if name not in self.processes:
                self.specified.append(pod)
                self.processes[name] = self._start(name, pod)
                self._tell(name, "Running")
            elif self.processes[name].poll() is not None and pod["status"].get("phase") == "Running":
                self._tell(name, "Failed")
        for name, process in self.processes.items():
            if name not in found and process.poll() is None:
                _kill(process)

    def _start(self, name: str, pod: Object) -> subprocess.Popen[bytes]:
        (container,) = pod["spec"]["containers"]
        assert container["args"] == ["executor"]
        given = {variable["name"]: variable["value"] for variable in container["env"] if "value" in variable}
        environment = {**self._environment, **given, "SPARK_EXECUTOR_POD_IP": EXECUTOR_IP, "SPARK_EXECUTOR_POD_NAME": name}
        assert environment[executor_hooks.WORKERS_VARIABLE] == executor_hooks.WORKERS_PATH
        environment[executor_hooks.WORKERS_VARIABLE] = str(self._directory / name / "workers")
        with (self._directory / f"{name}.log").open("wb") as log:
            return subprocess.Popen([sys.executable, "-m", "streamjoin", "executor"], env=environment, stdout=log, stderr=log)

    def _tell(self, name: str, phase: str) -> None:
        with contextlib.suppress(Exception):  # it may have been deleted meanwhile
            self._admin.patch(f"{self._path}/{name}/status", {"status": {"phase": phase, "podIP": EXECUTOR_IP}})

    @property
    def running(self) -> list[str]:
        return [name for name, process in self.processes.items() if process.poll() is None]

    def lose(self) -> None:
        """One pod is gone, and nobody tells the driver's Spark but the API server."""
        name = self.running[0]
        self._admin.delete(f"{self._path}/{name}")
        _kill(self.processes[name])

    def is_ready(self, name: str) -> bool:
        """By the probe of its container."""
        return self._executed(name, self._container(name)["readinessProbe"]).wait() == 0

    def drain(self, name: str) -> None:
        """As a node does that is drained: the pod is being deleted; first the hook, to its end, then SIGTERM; then it is gone."""
        pod = f"{self._path}/{name}"
        self._admin.patch(pod, {"metadata": {"finalizers": ["streamjoin.dev/kubelet"]}})
        self._admin.delete(pod)
        assert "deletionTimestamp" in self._admin.get(pod)["metadata"]
        hook = self._executed(name, self._container(name)["lifecycle"]["preStop"])
        wait_for("the hook's end", lambda: self.look() or hook.poll() is not None)
        assert hook.returncode == 0
        self.processes[name].terminate()
        wait_for("the executor's end", lambda: self.processes[name].poll() is not None)
        self._admin.patch(pod, {"metadata": {"finalizers": None}})

    def _container(self, name: str) -> Object:
        (pod,) = (pod for pod in self.specified if pod["metadata"]["name"] == name)
        (container,) = pod["spec"]["containers"]
        return dict(container)

    def _executed(self, name: str, handler: Object) -> subprocess.Popen[bytes]:
        *shell, lines = handler["exec"]["command"]
        in_place = lines.replace(executor_hooks.WORKERS_PATH, str(self._directory / name / "workers"))
        return subprocess.Popen([*shell, in_place])

    def close(self) -> None:
        for process in self.processes.values():
            _kill(process)


def _kill(process: subprocess.Popen[bytes]) -> None:
    """With all that it has started."""
    if process.poll() is None:
        for child in psutil.Process(process.pid).children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                child.kill()
        process.kill()
    process.wait()


NAME, POD = "made-up", "sj-made-up-0"


@pytest.fixture
def namespace(api_server: ApiServer, tmp_path: Path) -> str:
    """With the driver's pod and the rights that the operator and the chart give it."""
    namespace = api_server.namespace("pods")
    derived = derive(join(namespace, tmp_path))
    assert derived.manifest is not None, derived.problem
    resource = Resource.of(join(namespace, tmp_path))
    access = [*children.service_accounts(resource, derived.manifest), children.role_binding(resource)]
    for each in (*access, children.role(resource, derived.manifest, Settings())):
        each["metadata"].pop("ownerReferences")
        api_server.admin.apply(path_of(each), each, names.MANAGER)
    spec = {"containers": [{"name": "driver", "image": "none"}], "automountServiceAccountToken": False}
    api_server.admin.create(f"/api/v1/namespaces/{namespace}/pods", {"metadata": {"name": POD}, "spec": spec})
    policy_of(api_server, namespace)
    return namespace


def join(namespace: str, root: Path) -> Object:
    body = yaml.safe_load((ROOT / "examples" / "kubernetes" / "generator.yaml").read_text())["spec"]
    body["joins"][0]["output"]["sink"]["files"]["path"] = str(root / "out")
    body["workers"] |= {"min": 1, "max": 4, "perExecutor": 2}
    body |= {"checkpoint": {"location": str(root / "state")}, "security": {"tls": {"secretName": "certificates"}}}
    return {**streamjoin(NAME, namespace), "spec": body}


def in_place(text: str, root: Path) -> str:
    """With the directories that would be mounted."""
    for path in (pod_templates.EXCHANGE_PATH, pod_templates.TLS_PATH, pod_templates.TOKEN_PATH):
        text = text.replace(path, str(root / path.rsplit("/", 1)[1]))
    return text.replace(f"{pod_templates.CONFIG_PATH}/", f"{root}/")


@pytest.fixture
def driver(api_server: ApiServer, namespace: str, tmp_path: Path) -> Iterator[tuple[subprocess.Popen[bytes], Pods, str]]:
    """The driver's container, started as the operator would, and where it serves."""
    derived = derive(join(namespace, tmp_path))
    assert derived.manifest is not None, derived.problem
    assert derived.memory is not None
    resource = Resource.of(join(namespace, tmp_path))
    Authority(tmp_path / "streamjoin-tls").issue(resource.tls_name)
    for name, file, text in (("exchange", "secret", SECRET), ("token", "token", "token")):
        (tmp_path / f"streamjoin-{name}").mkdir()
        (tmp_path / f"streamjoin-{name}" / file).write_text(text)
    (tmp_path / "streamjoin.yaml").write_text(json.dumps(engine_manifest(derived.manifest)))
    settings = Settings(engine_image="engine:1")
    (tmp_path / "executor.yaml").write_text(json.dumps(pod_templates.executor_template(resource, derived.manifest, settings)))
    template = children.deployment(resource, derived.manifest, derived.memory, settings, None)["spec"]["template"]
    container = template["spec"]["containers"][0]
    arguments = [in_place(text, tmp_path) for text in container["args"] if not text.startswith("--revision")]
    host, port = api_server.url.removeprefix("https://").rsplit(":", 1)
    environment = {
        **os.environ,
        **{each["name"]: each["value"] for each in container["env"] if "value" in each},
        "STREAMJOIN_IMAGE": "engine:1",
        "POD_NAMESPACE": namespace,
        "POD_NAME": POD,
        "POD_IP": DRIVER_IP,
        "KUBERNETES_SERVICE_HOST": host,
        "KUBERNETES_SERVICE_PORT": port,
        "KUBECONFIG": str(api_server.kubeconfig_for(f"driver-{namespace}", api_server.token(namespace, f"sj-{NAME}"), namespace)),
    }
    pods = Pods(api_server, namespace, tmp_path, dict(os.environ))
    with (tmp_path / "driver.log").open("wb") as log:
        process = subprocess.Popen([sys.executable, "-m", "streamjoin", *arguments], env=environment, stdout=log, stderr=log)
    try:
        yield process, pods, f"http://{DRIVER_IP}:{pod_templates.PORT}"
    finally:
        _kill(process)
        pods.close()


def test_a_driver_and_its_executors_work_with_the_secret_alone(
    driver: tuple[subprocess.Popen[bytes], Pods, str], api_server: ApiServer, namespace: str, tmp_path: Path
) -> None:
    process, pods, url = driver

    def read(metric: str) -> float:
        pods.look()
        assert process.poll() is None, told()
        try:
            text = urllib.request.urlopen(f"{url}/metrics", timeout=PATIENCE_SECONDS).read().decode()
        except OSError:
            return 0.0
        return max((float(line.split()[1]) for line in text.splitlines() if line.startswith(f"streamjoin_{metric}{{")), default=0.0)

    def epochs() -> float:
        return read("epoch_number")

    def put(workers: int) -> None:
        headers = {"Authorization": "Bearer token", "Content-Type": "application/json"}
        wish = urllib.request.Request(f"{url}/v1/plan", json.dumps({"workers": workers}).encode(), headers, method="PUT")
        urllib.request.urlopen(wish, timeout=PATIENCE_SECONDS)

    def told() -> str:
        return "\n".join(f"{log.name}:\n{log.read_text(errors='replace')[-3000:]}" for log in sorted(tmp_path.glob("*.log")))

    wait_for("epochs are committed", lambda: epochs() >= 5, every=0.5, told=told)
    assert len(pods.processes) == 1
    put(4)
    wait_for("more workers join", lambda: read("workers") == 4, every=0.5, told=told)
    assert len(pods.processes) == 2
    assert all(map(pods.is_ready, pods.running))
    before, failures = epochs(), read("epoch_failures_total")
    pods.drain(pods.running[0])
    wait_for("the join goes on", lambda: epochs() >= before + 5, every=0.5, told=told)
    assert (len(pods.processes), len(pods.running)) == (3, 2), "another came in its stead"
    assert read("epoch_failures_total") == failures, "its part was handed over"
    assert read("plan_generation") > 2
    assert {pod["spec"]["terminationGracePeriodSeconds"] for pod in pods.specified} == {executor_hooks.GRACE_SECONDS}
    pods.lose()
    wait_for("another is asked for", lambda: epochs() and len(pods.processes) == 4, every=0.5, told=told)
    before = epochs()
    wait_for("the join goes on", lambda: epochs() >= before + 5, every=0.5, told=told)
    wait_for("both of its workers came again", lambda: read("workers_ready") == 4, every=0.5, told=told)
    put(2)
    wait_for("the end of an executor without workers", lambda: read("workers") == 2 and len(pods.running) == 1, every=0.5, told=told)
    before = epochs()
    wait_for("the join goes on with the other", lambda: epochs() >= before + 5, every=0.5, told=told)
    assert len(pods.processes) == 4, "no other took its place"
    for pod in pods.specified:
        labels = pod["metadata"]["labels"]
        assert (labels[names.NAME], labels[names.COMPONENT]) == (NAME, "executor")
        requests = pod["spec"]["containers"][0]["resources"]["requests"]
        assert requests == {"cpu": "200m", "memory": "3Gi", "ephemeral-storage": "1Gi"}, "of two workers"
        scratch = {volume["name"]: volume["emptyDir"] for volume in pod["spec"]["volumes"] if "emptyDir" in volume}
        assert scratch == {"tmp": {"sizeLimit": "32Gi"}, pod_templates.SPARK_VOLUME: {"sizeLimit": "1Gi"}}, "Spark adds no other"
    seen = json.dumps(pods.specified) + told()
    for started in (process, *(one for one in pods.processes.values() if one.poll() is None)):
        parent = psutil.Process(started.pid)
        for one in (parent, *parent.children(recursive=True)):
            with contextlib.suppress(psutil.NoSuchProcess):
                seen += " ".join([*one.cmdline(), *one.environ().values()])
    assert SECRET not in seen

    process.send_signal(signal.SIGTERM)
    wait_for("the driver ends", lambda: process.poll() is not None, told=told)
    assert process.returncode == 0, told()

    logs = {log.name: [json.loads(line) for line in log.read_text().splitlines()] for log in tmp_path.glob("*.log")}
    assert len(logs) == 1 + len(pods.processes)
    for record in (record for records in logs.values() for record in records):
        assert {"time", "level", "logger", "message"} <= record.keys()
        assert datetime.fromisoformat(record["time"]).tzinfo is not None
        assert record["level"] in ("info", "warning", "error")
    ended = logs["driver.log"][-1]
    assert (ended["namespace"], ended["name"], ended["event"], ended["exitCode"]) == (namespace, NAME, "summary", 0)
    assert sum(record.get("event") == "epoch" for record in logs["driver.log"]) >= 15
    assert any("executor" in record["message"] and "org.apache.spark" in record["logger"] for record in logs["driver.log"]), "that was lost"

    asked = api_server.asked(namespace, f"sj-{NAME}")
    assert not [one for one in asked if one.code == 403]
    (rule,) = DRIVER_RULES
    assert {(one.verb, one.resource, one.namespace) for one in asked} == {(verb, "pods", namespace) for verb in rule["verbs"]}
