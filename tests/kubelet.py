"""What a kubelet does for Spark's executors, on this machine and without containers: each pod becomes a process, of the pod's environment.

Where that process begins is up to the test (``Start``). Pods have this machine's address, 127.0.0.1.

Always holds: :meth:`Kubelet.stop` leaves no process.
"""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Callable, Mapping
from typing import Any

from apiserver import ApiServer

ADDRESS = "127.0.0.1"
LOOK_SECONDS = 0.2

Start = Callable[[Mapping[str, str]], subprocess.Popen[bytes]]
"""Starts an executor's process with these variables, as its container would have them."""


class Kubelet:
    """Of one namespace, in a thread of its own."""

    def __init__(self, server: ApiServer, namespace: str, start: Start) -> None:
        self._server, self._path, self._start = server, f"/api/v1/namespaces/{namespace}/pods", start
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="kubelet", daemon=True)
        self.pods: list[dict[str, Any]] = []
        """All that it has started, as Spark has asked for them."""

    def __enter__(self) -> Kubelet:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join()
        for process in self._processes.values():
            process.kill()
            process.wait()

    def _run(self) -> None:
        while not self._stopping.wait(LOOK_SECONDS):
            for pod in self._server.admin.get(self._path)["items"]:
                name = pod["metadata"]["name"]
                if name not in self._processes:
                    self._processes[name] = self._start(_environment(pod))
                    self.pods.append(pod)
                    self._report(pod, "Running", {"running": {"startedAt": pod["metadata"]["creationTimestamp"]}})

    def _report(self, pod: Mapping[str, Any], phase: str, state: Mapping[str, Any]) -> None:
        containers = [
            {"name": each["name"], "image": each["image"], "imageID": "", "ready": True, "restartCount": 0, "state": state}
            for each in pod["spec"]["containers"]
        ]
        status = {"phase": phase, "podIP": ADDRESS, "podIPs": [{"ip": ADDRESS}], "containerStatuses": containers}
        self._server.admin.patch(f"{self._path}/{pod['metadata']['name']}/status", {"status": status})


def _environment(pod: Mapping[str, Any]) -> dict[str, str]:
    """A container's variables, with what the pod's own fields say."""
    found: dict[str, str] = {}
    [container] = pod["spec"]["containers"]
    for variable in container["env"]:
        field = variable.get("valueFrom", {}).get("fieldRef", {}).get("fieldPath")
        value = {"status.podIP": ADDRESS, "metadata.name": pod["metadata"]["name"]}.get(field, "") if field else variable.get("value", "")
        found[variable["name"]] = value
    return found
