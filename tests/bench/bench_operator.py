"""Many StreamJoins on one operator: time to converge, memory, CPU and requests when idle, time to notice a change.

A real API server and etcd; no controllers, so every Deployment's status is written here; one driver answers for all. The StreamJoins become
ever more, and each number of them is measured.

    python tests/bench/bench_operator.py [--counts 500,1000,2000] [--idle 30] [--settle 90]
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / folder) for folder in ("tests", "tools", "engine", "operator")]

import psutil  # noqa: E402
import yaml  # noqa: E402

import apiserver  # noqa: E402
from bench.report import options, table  # noqa: E402
from operator_parts import FakeDriver, streamjoin  # noqa: E402

PORT = 18080
PATH = "/apis/streamjoin.dev/v1beta1/namespaces/{}/streamjoins"
DEPLOYMENTS = "/apis/apps/v1/namespaces/{}/deployments"
CHANGES = 10
"""Whose notice is timed, at each number of StreamJoins, one after the other."""


def scraped() -> dict[str, float]:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    found: dict[str, float] = {}
    for line in opener.open(f"http://127.0.0.1:{PORT}/metrics").read().decode().splitlines():
        if line.startswith("streamjoin_operator_"):
            name, value = line.rsplit(" ", 1)
            found[name] = float(value)
    return found


def requests(metrics: dict[str, float]) -> dict[str, float]:
    verbs: dict[str, float] = {}
    for name, value in metrics.items():
        if name.startswith("streamjoin_operator_api_requests_total{"):
            verb = name.split('verb="')[1].split('"')[0]
            verbs[verb] = verbs.get(verb, 0) + value
    return verbs


def main() -> None:
    parser = options(__doc__ or "")
    parser.add_argument("--counts", default="500,1000,2000")
    parser.add_argument("--idle", type=float, default=30, help="seconds over which an idle operator is measured")
    parser.add_argument("--settle", type=float, default=90, help="seconds before, in which the autoscaler's first records are written")
    arguments = parser.parse_args()
    counts = [20] if arguments.quick else [int(count) for count in arguments.counts.split(",")]
    if arguments.quick:
        arguments.idle = arguments.settle = 5
    driver = FakeDriver()
    with apiserver.running(Path(tempfile.mkdtemp())) as server:
        server.install_crd(yaml.safe_load((ROOT / "crds" / "streamjoins.streamjoin.dev.yaml").read_text()))
        namespace, admin = server.namespace("many"), server.admin
        environment = {
            **os.environ,
            "PYTHONPATH": f"{ROOT / 'engine'}:{ROOT / 'operator'}",
            "KUBECONFIG": str(server.kubeconfig),
            "STREAMJOIN_WATCH_NAMESPACES": namespace,
            "STREAMJOIN_PORT": str(PORT),
            "STREAMJOIN_DRIVER_URL": driver.url,
        }
        with tempfile.TemporaryFile() as log:
            operator = subprocess.Popen([sys.executable, "-m", "streamjoin_operator"], env=environment, stderr=log)
            bench = Bench(operator, admin, namespace)
            try:
                rows = []
                for count in counts:
                    rows.append(bench.measure(count, arguments.settle, arguments.idle))
                    print(json.dumps(dict(zip(HEADER, rows[-1], strict=True))), flush=True)
                print(f"\n{table(HEADER, rows)}")
            finally:
                operator.terminate()
                operator.wait(30)
    driver.close()


HEADER = [
    "StreamJoins", "all run after, s", "operator's CPU to there, s", "requests to there, each", "resident, MiB",
    "idle: CPU, cores", "idle: requests a minute", "a change noticed after, s (median, worst)",
]  # fmt: skip


class Bench:
    """The operator, and what it looks after."""

    def __init__(self, operator: subprocess.Popen[bytes], admin: apiserver.Client, namespace: str) -> None:
        self._operator, self._admin = operator, admin
        self._process = psutil.Process(operator.pid)
        self._joins, self._deployments = PATH.format(namespace), DEPLOYMENTS.format(namespace)
        self._namespace = namespace
        self._running: set[str] = set()
        self._readied: set[str] = set()

    def measure(self, count: int, settle: float, idle: float) -> list[str]:
        """Bring the StreamJoins to ``count``, wait until all run, then measure."""
        began, cpu, had = time.monotonic(), self._cpu(), len(self._running)
        asked = sum(self._requests().values())
        for number in range(had, count):
            body = streamjoin(f"join-{number}")
            body["metadata"] = {"name": f"join-{number}", "namespace": self._namespace}
            self._admin.create(self._joins, body)
        while len(self._running) < count:
            assert self._operator.poll() is None
            if len(self._readied) < count:
                self._ready()
            # One by one and each but once: to list thousands again and again would be most of the API server's work.
            for number in range(had, count):
                name = f"join-{number}"
                if name not in self._running and self._phase(name) == "Running":
                    self._running.add(name)
            time.sleep(1)
        converged, spent = time.monotonic() - began, self._cpu() - cpu
        asked = sum(self._requests().values()) - asked
        time.sleep(settle)
        cpu, before = self._cpu(), sum(self._requests().values())
        time.sleep(idle)
        idle_cpu, idle_requests = (self._cpu() - cpu) / idle, (sum(self._requests().values()) - before) * 60 / idle
        noticed = [self._noticed(f"join-{number * (count // CHANGES)}", 3 + len(self._running) % 7) for number in range(CHANGES)]
        return [
            f"{count:,}", f"{converged:.0f}", f"{spent:.1f}", f"{asked / (count - had):.1f}",
            f"{self._process.memory_info().rss / (1 << 20):.0f}",
            f"{idle_cpu:.2f}", f"{idle_requests:.0f}", f"{statistics.median(noticed):.2f}, {max(noticed):.2f}",
        ]  # fmt: skip

    def _phase(self, name: str) -> str:
        return str((self._admin.get(f"{self._joins}/{name}").get("status") or {}).get("phase"))

    def _ready(self) -> None:
        for found in self._admin.get(self._deployments)["items"]:
            name = found["metadata"]["name"]
            if name not in self._readied:
                status = {"replicas": 1, "readyReplicas": 1, "updatedReplicas": 1, "observedGeneration": found["metadata"]["generation"]}
                self._admin.patch(f"{self._deployments}/{name}/status", {"status": status})
                self._readied.add(name)

    def _noticed(self, name: str, most: int) -> float:
        """Seconds from a change of the definition until the status is of it."""
        path = f"{self._joins}/{name}"
        workers = self._admin.get(path)["spec"].get("workers") or {}
        began = time.monotonic()
        changed = self._admin.patch(path, {"spec": {"workers": {**workers, "max": int(workers.get("max", 8)) + most}}})
        generation = changed["metadata"]["generation"]
        while not any(
            condition["type"] == "Ready" and condition["observedGeneration"] >= generation
            for condition in (self._admin.get(path).get("status") or {}).get("conditions", ())
        ):
            assert time.monotonic() - began < 300, f"{name}: generation {generation} was not observed within 300 s"
            time.sleep(0.02)
        return time.monotonic() - began

    def _cpu(self) -> float:
        return float(sum(self._process.cpu_times()[:2]))

    def _requests(self) -> dict[str, float]:
        deadline = time.monotonic() + 60
        while True:
            try:
                return requests(scraped())
            except OSError:
                assert time.monotonic() < deadline
                time.sleep(0.5)


if __name__ == "__main__":
    main()
