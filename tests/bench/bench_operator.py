"""Many StreamJoins on one operator: time to converge, memory, requests a minute when idle. ``python tests/bench/bench_operator.py [COUNT]``

A real API server and etcd; no controllers, so every Deployment's status is written here; one driver answers for all.
"""

from __future__ import annotations

import json
import os
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
from operator_parts import FakeDriver, streamjoin  # noqa: E402

PORT = 18080
PATH = "/apis/streamjoin.dev/v1alpha1/namespaces/{}/streamjoins"
DEPLOYMENTS = "/apis/apps/v1/namespaces/{}/deployments"
SETTLE_SECONDS = 120
"""Until the autoscaler's first records, which are written within a minute, and measurements are in each status."""


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


def main(count: int, idle_seconds: float) -> None:
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
            try:
                measure(operator, admin, namespace, count, idle_seconds)
            finally:
                operator.terminate()
                operator.wait(30)
    driver.close()


def measure(operator: subprocess.Popen[bytes], admin: apiserver.Client, namespace: str, count: int, idle_seconds: float) -> None:
    process = psutil.Process(operator.pid)
    began = time.monotonic()
    for number in range(count):
        body = streamjoin(f"join-{number}")
        body["metadata"] = {"name": f"join-{number}", "namespace": namespace}
        admin.create(PATH.format(namespace), body)
    created = time.monotonic()
    readied: set[str] = set()
    phases: dict[str, int] = {}
    while phases.get("Running", 0) < count:
        assert operator.poll() is None
        for found in admin.get(DEPLOYMENTS.format(namespace))["items"]:
            name = found["metadata"]["name"]
            if name not in readied:
                status = {"replicas": 1, "readyReplicas": 1, "observedGeneration": found["metadata"]["generation"]}
                admin.patch(f"{DEPLOYMENTS.format(namespace)}/{name}/status", {"status": status})
                readied.add(name)
        phases = {}
        for body in admin.get(PATH.format(namespace))["items"]:
            phase = (body.get("status") or {}).get("phase", "none")
            phases[phase] = phases.get(phase, 0) + 1
        time.sleep(0.5)
    converged = time.monotonic()
    time.sleep(SETTLE_SECONDS)
    before, cpu = requests(scraped()), sum(process.cpu_times()[:2])
    time.sleep(idle_seconds)
    after = requests(scraped())
    minute = 60 / idle_seconds
    result = {
        "streamjoins": count,
        "created_seconds": round(created - began, 1),
        "converged_seconds": round(converged - began, 1),
        "resident_mib": round(process.memory_info().rss / (1 << 20)),
        "requests_to_converge": sum(before.values()),
        "idle_requests_a_minute": {verb: round((after[verb] - before.get(verb, 0)) * minute, 1) for verb in after},
        "idle_cpu_share": round((sum(process.cpu_times()[:2]) - cpu) / idle_seconds, 3),
    }
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 500, float(sys.argv[2]) if len(sys.argv) > 2 else 60.0)
