"""A pod that tries a new template of the driver before the driver that runs is replaced.

A join has one driver, which the next one replaces: two would claim the checkpoint from each other in turn. So whether an image can be
pulled, its containers start and the engine in it takes this manifest is found out by a pod of the same template that joins nothing: first
the engine is asked whether it knows the driver's options, then it checks the manifest.

Always holds: pure; the pod mounts no claim, which may be one node's alone, needs no port, and is small.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from streamjoin.logs import message_of
from streamjoin_operator import names
from streamjoin_operator.drift import Object
from streamjoin_operator.driver_files import MANIFEST_KEY
from streamjoin_operator.pod_templates import CONFIG_PATH
from streamjoin_operator.pod_trouble import has_ended, trouble_of
from streamjoin_operator.resource import Resource
from streamjoin_operator.template import merge

OPTIONS = "options"
"""The container that asks whether the driver's options are known."""
RESOURCES: Object = {"requests": {"cpu": "100m", "memory": "256Mi", "ephemeral-storage": "64Mi"}, "limits": {"memory": "1Gi"}}
LONGEST_SECONDS = 6 * 3600
"""Of a trial of which nobody sees the end: a container beside the driver's may run for ever."""
NEEDLESS = ("ports", "livenessProbe", "readinessProbe", "startupProbe", "lifecycle")
"""Of containers: what a driver that runs on the same node may have, and what waits for a driver."""
LAST_LINES = 3


class State(Enum):
    """How far a trial is."""

    WAITS = "It has not ended, and nothing is wrong with it."
    STUCK = "It cannot start as things are; the message says why."
    PASSED = "All of its containers have started, and the engine takes options and manifest."
    FAILED = "A container has ended with an error."
    LOST = "The pod was ended from outside, which says nothing of its template."


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a trial shows."""

    state: State
    message: str = ""


def trial_pod(resource: Resource, template: Object, key: str, theirs: Object | None = None) -> Object:
    """The pod for a driver's pod template. ``key``: a hash of what it tries (``names.TRIED``); ``theirs``: what it has differently."""
    spec = template["spec"]
    volumes = [volume for volume in spec.get("volumes") or [] if not {"persistentVolumeClaim", "ephemeral"} & set(volume)]
    mountable = {volume["name"] for volume in volumes}
    containers, first = ([_bare(each, mountable) for each in spec.get(part) or []] for part in ("containers", "initContainers"))
    driver = next(container for container in containers if container["name"] == names.DRIVER)
    asked = {**driver, "resources": RESOURCES}
    # click refuses options that it does not know before it shows the help
    options = {**asked, "name": OPTIONS, "args": [*driver.get("args", []), "--help"]}
    checked = {**asked, "args": ["validate", f"{CONFIG_PATH}/{MANIFEST_KEY}"]}
    metadata = template.get("metadata") or {}
    annotations = {name: value for name, value in (metadata.get("annotations") or {}).items() if not name.startswith("prometheus.io/")}
    ours = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": names.trial_name(resource.name, key),
            "namespace": resource.namespace,
            "labels": {**(metadata.get("labels") or {}), **names.pod_labels(resource.name, names.TRIAL)},
            "annotations": annotations,
            "ownerReferences": [resource.owner()],
        },
        "spec": {
            **spec,
            "restartPolicy": "Never",
            "automountServiceAccountToken": False,
            "activeDeadlineSeconds": LONGEST_SECONDS,
            "terminationGracePeriodSeconds": 0,
            "volumes": volumes,
            "initContainers": [*first, options],
            "containers": [checked if container is driver else container for container in containers],
        },
    }
    merged: Object = merge(ours, theirs or {})
    return {**merged, "metadata": merge(merged["metadata"], {"labels": names.pod_labels(resource.name, names.TRIAL)})}


def _bare(container: Object, mountable: set[str]) -> Object:
    kept = {name: value for name, value in container.items() if name not in NEEDLESS}
    if "volumeMounts" in kept:
        kept["volumeMounts"] = [mount for mount in kept["volumeMounts"] if mount["name"] in mountable]
    return kept


def outcome(pod: Object, now: float) -> Outcome:
    """What the pod shows. ``now``: seconds since 1970."""
    status, name = pod.get("status") or {}, f"pod {pod['metadata']['name']}"
    if pod["metadata"].get("deletionTimestamp"):
        return Outcome(State.WAITS)
    if status.get("phase") == "Failed" and status.get("reason"):
        return Outcome(State.LOST, f"{name}: {status['reason']}: {status.get('message', '')}"[:500])
    known = [*(status.get("initContainerStatuses") or []), *(status.get("containerStatuses") or [])]
    states = {container["name"]: container.get("state") or {} for container in known}
    # Those that run beside the others from the start on are ended with them, with any exit code.
    beside = {each["name"] for each in pod["spec"].get("initContainers") or [] if each.get("restartPolicy") == "Always"}
    for container, state in states.items():
        if container not in beside and (state.get("terminated") or {}).get("exitCode"):
            return Outcome(State.FAILED, f"{name}, container {container}: {_end(state['terminated'])}"[:700])
    wanted = {container["name"] for container in pod["spec"]["containers"]}
    have_started = wanted <= {container for container, state in states.items() if "running" in state or "terminated" in state}
    if have_started and "terminated" in states[names.DRIVER]:
        return Outcome(State.PASSED)
    trouble = trouble_of([pod], now)
    if trouble is not None:
        return Outcome(State.STUCK, trouble.message)
    return Outcome(State.LOST, f"{name} has ended") if has_ended(pod) else Outcome(State.WAITS)


def image_of(template: Object) -> str:
    """The driver's image."""
    containers = template["spec"].get("containers") or []
    return str(next((container.get("image", "") for container in containers if container["name"] == names.DRIVER), ""))


def _end(ended: Object) -> str:
    """The exit code, and the last that was said."""
    said = [message_of(line.strip()) for line in str(ended.get("message") or "").splitlines() if line.strip()]
    words = "; ".join(said[-LAST_LINES:]).replace(f"{CONFIG_PATH}/", "")
    return f"exit code {ended['exitCode']}: {words or 'see its log'}"
