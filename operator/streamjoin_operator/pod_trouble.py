"""Why pods do not run, or are not even there: as the API server, the scheduler, the kubelet and the pods themselves say it.

Always holds: pure; the same pods give the same words at any later time.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from streamjoin_operator import names
from streamjoin_operator.reasons import Reason

Object = dict[str, Any]

EXIT_CODES = {
    1: "the join failed",
    2: "its command line is wrong, or its port cannot be had",
    3: "a source cannot be read",
    4: "another driver has taken the checkpoint over",
    5: "the checkpoint was made for another join",
    6: "the checkpoint's storage or the sink cannot be used",
    7: "there is no Java for Spark",
    8: "an epoch stood still beyond its deadline",
    137: "it was killed, as when it needs more memory than its limit",
    143: "it was stopped",
}
MISMATCH_CODE = 5
SENTENCE = "streamjoin: "
"""So the engine's last line begins where it fails."""
UNPULLABLE = ("ImagePullBackOff", "ErrImagePull", "InvalidImageName", "ErrImageNeverPull")
CRASHING = ("CrashLoopBackOff", "RunContainerError", "CreateContainerConfigError", "CreateContainerError")
STUCK_SECONDS = 120.0
"""A pod that has a node has its volumes, images and containers within so long."""


@dataclass(frozen=True, slots=True)
class Trouble:
    """Why a pod does not run."""

    reason: Reason
    message: str


def trouble_of(pods: Sequence[Object], now: float, *, crashing: Reason = Reason.DriverCrashing) -> Trouble | None:
    """Why the newest pod does not run, or None where it does or may soon. ``now``: seconds since 1970."""
    living = _living(pods)
    if not living:
        return None
    pod = max(living, key=lambda found: found["metadata"].get("creationTimestamp", ""))
    return _trouble(pod, now, pending=Reason.DriverPending, crashing=crashing)


def trouble_of_executors(pods: Sequence[Object], now: float) -> Trouble | None:
    """What keeps executors from running, and how many; None where all run or may soon."""
    living = _living(pods)
    found = [_trouble(pod, now, pending=Reason.ExecutorsPending, crashing=Reason.ExecutorsFailing) for pod in living]
    troubles = [trouble for trouble in found if trouble is not None]
    if not troubles:
        return None
    return Trouble(troubles[0].reason, f"{len(troubles)} of {len(living)} executors: {troubles[0].message}"[:500])


def mismatch_of(pods: Sequence[Object], revision: str) -> str | None:
    """What a driver of this revision said that has ended since the checkpoint is another join's; None where none has."""
    for pod in _living(pods):
        if (pod["metadata"].get("annotations") or {}).get(names.REVISION) != revision:
            continue
        for container in (pod.get("status") or {}).get("containerStatuses") or []:
            for state in (container.get("state") or {}, container.get("lastState") or {}):
                ended = state.get("terminated") or {}
                if ended.get("exitCode") == MISMATCH_CODE:
                    return _end(ended, Reason.DriverCrashing)
    return None


def split_claim(pods: Sequence[Object], claim: Object | None) -> Trouble | None:
    """Why pods on several nodes cannot share a claim; None where they can, or are on one."""
    modes = ((claim or {}).get("spec") or {}).get("accessModes") or []
    nodes = sorted({pod["spec"]["nodeName"] for pod in _living(pods) if pod["spec"].get("nodeName")})
    if claim is None or len(nodes) < 2 or "ReadWriteMany" in modes:
        return None
    shown = f"{', '.join(nodes[:3])}{' and others' if len(nodes) > 3 else ''}"
    return Trouble(
        Reason.ClaimOnOneNode,
        f"PersistentVolumeClaim {claim['metadata']['name']} is {', '.join(modes)}, for one node, and pods of the join are on {shown}; set "
        "checkpoint.location to an object store, name a claim that is ReadWriteMany, or keep all pods on one node by a nodeSelector in "
        "spec.driver.podTemplate and spec.executor.podTemplate",
    )


def refused_replica(deployment: Object | None) -> Trouble | None:
    """Why a Deployment's controller cannot make its pod, in the API server's words."""
    for condition in ((deployment or {}).get("status") or {}).get("conditions") or []:
        if condition.get("type") == "ReplicaFailure" and condition.get("status") == "True":
            return refusal(str(condition.get("message") or condition.get("reason") or ""))
    return None


def refusal(said: str) -> Trouble:
    """The API server's words on a pod that it refuses, without the pod's name: each attempt has another."""
    return Trouble(Reason.PodRefused, re.sub(r'pods? "[^"]*"', "a pod", said, count=1)[:700])


def _living(pods: Sequence[Object]) -> list[Object]:
    return [pod for pod in pods if not pod["metadata"].get("deletionTimestamp")]


def _trouble(pod: Object, now: float, *, pending: Reason, crashing: Reason) -> Trouble | None:
    name, state = f"pod {pod['metadata']['name']}", pod.get("status") or {}
    containers = [*(state.get("initContainerStatuses") or []), *(state.get("containerStatuses") or [])]
    if state.get("phase") == "Failed" and state.get("reason"):
        return Trouble(crashing, f"{name}: {state['reason']}: {state.get('message', '')}"[:500])
    for container in containers:
        current = container.get("state") or {}
        waiting, ended = current.get("waiting") or {}, current.get("terminated") or {}
        if waiting.get("reason") in UNPULLABLE:
            said = waiting.get("message") or container.get("image", "")
            return Trouble(Reason.ImageUnavailable, f"{name}: {waiting['reason']}: {said}"[:500])
        if waiting.get("reason") in CRASHING:
            ended = (container.get("lastState") or {}).get("terminated") or {}
            if ended.get("exitCode") is None:
                return Trouble(crashing, f"{name}: {waiting['reason']}: {waiting.get('message', 'see its log')}"[:500])
            return Trouble(crashing, f"{name}: {_end(ended, crashing)}"[:500])
        if state.get("phase") == "Failed" and ended.get("exitCode"):
            return Trouble(crashing, f"{name}: {_end(ended, crashing)}"[:500])
    scheduled: Object = next((found for found in state.get("conditions") or [] if found.get("type") == "PodScheduled"), {})
    if scheduled.get("status") == "False":
        said = str(scheduled.get("message") or scheduled.get("reason") or "cannot be scheduled")
        return Trouble(pending, f"{name}: {said}"[:500])
    since = scheduled.get("lastTransitionTime")
    runs = any("running" in (container.get("state") or {}) for container in containers)
    if state.get("phase") != "Pending" or runs or since is None or now - datetime.fromisoformat(since).timestamp() < STUCK_SECONDS:
        return None
    wanting = f"kubectl describe {name} says which volume, Secret or image is wanting"
    text = f"{name}: it has had a node since {since}, and no container; {wanting}"
    return Trouble(Reason.PodStuck, text)


def _end(ended: Object, crashing: Reason) -> str:
    """How a container ended. An executor's codes are Spark's own, but for signals."""
    code = int(ended["exitCode"])
    meaning = "see its log" if crashing is Reason.ExecutorsFailing and code < 128 else EXIT_CODES.get(code, "see its log")
    return f"exit code {code}: {meaning}{_last_words(ended)}"


def _last_words(ended: Object) -> str:
    """The sentence with which the driver ended, as its log has it; nothing where something else ended it."""
    lines = str(ended.get("message") or "").splitlines()
    return next((f": {line.removeprefix(SENTENCE)}" for line in reversed(lines) if line.startswith(SENTENCE)), "")
