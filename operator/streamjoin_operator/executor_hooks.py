"""What an executor's pod adds to the engine's container: when it is ready, and what it does before it goes.

The shell's lines read and write the files of ``streamjoin.runner.container``; the engine's image has a shell, and a Python that starts anew
for each probe would take a good part of the pod's processor.

Always holds: pure; the hook ends before the grace period does, unless workers are still there.
"""

from __future__ import annotations

from streamjoin.manifest.model import Manifest
from streamjoin_operator.drift import Object

GRACE_SECONDS, KUBERNETES_GRACE_SECONDS = 60, 30
"""For an executor's part to move: others are waited for half of it, and then those that stay take it. And what Kubernetes gives without."""
WORKERS_PATH = "/tmp/streamjoin/workers"  # noqa: S108 - the pod's own volume
WORKERS_VARIABLE = "STREAMJOIN_WORKERS_DIRECTORY"
READY = """\
cd {path} || exit 1
found=1
for each in *.*; do
  kill -0 "${{each%.*}}" 2>/dev/null || continue
  case $each in *.ready) found=0 ;; *) exit 1 ;; esac
done
exit $found
"""
"""Whether there is a worker, and all that there are have called the driver."""
LEAVE = """\
cd {path} || exit 0
echo $(($(date +%s) + {seconds})) > ../going && mv ../going ../leaving
while :; do
  found=
  for each in *.*; do kill -0 "${{each%.*}}" 2>/dev/null && found=1; done
  [ -n "$found" ] || exit 0
  sleep 1
done
"""
"""Tells the workers, and waits until all have gone: the driver ends them once others have their part. Then Java is told to end."""


def grace_seconds(manifest: Manifest) -> int:
    """The time that an executor has from when it is told to go."""
    spec = dict(manifest.spec.executor.pod_template).get("spec") or {}
    given = spec.get("terminationGracePeriodSeconds", GRACE_SECONDS)
    return given if isinstance(given, int) else KUBERNETES_GRACE_SECONDS


def container_part(manifest: Manifest) -> Object:
    """Of the executor's container."""
    leave = LEAVE.format(path=WORKERS_PATH, seconds=grace_seconds(manifest))
    return {
        "readinessProbe": {"exec": _shell(READY.format(path=WORKERS_PATH)), "periodSeconds": 5, "timeoutSeconds": 5},
        "lifecycle": {"preStop": {"exec": _shell(leave)}},
    }


def environment() -> list[Object]:
    """Of that container: where its processes tell each other."""
    return [{"name": WORKERS_VARIABLE, "value": WORKERS_PATH}]


def _shell(lines: str) -> Object:
    return {"command": ["sh", "-c", lines]}
