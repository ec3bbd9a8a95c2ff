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
fail() {{ echo "$1; does a NetworkPolicy keep workers from the driver's ports 7077 to 7079? See the pod's log"; exit 1; }}
cd {path} 2>/dev/null || fail "no worker has begun yet"
found=
for each in *.*; do
  kill -0 "${{each%.*}}" 2>/dev/null || continue
  case $each in *.ready) found=1 ;; *) fail "a worker has yet to call the driver" ;; esac
done
[ -n "$found" ] || fail "there is no worker"
"""
"""Whether there is a worker, and all that there are have called the driver. The operator repeats what it prints, of kubelet's event."""
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
