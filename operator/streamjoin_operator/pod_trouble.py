"""Why pods do not run, or are not even there: as the API server, the scheduler, the kubelet and the pods themselves say it.

Always holds: pure; the same pods and events give the same words at any later time, but for what has lasted too long by then.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from streamjoin.logs import SENTENCE, message_of
from streamjoin_operator import names
from streamjoin_operator.reasons import Reason

Object = dict[str, Any]

EXIT_CODES = {
    1: "the join failed",
    2: "its command line or its manifest does not fit its image, or its port cannot be had",
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
"""So the engine's last line begins where it fails."""
UNPULLABLE = ("ImagePullBackOff", "ErrImagePull", "InvalidImageName", "ErrImageNeverPull")
CRASHING = ("CrashLoopBackOff", "RunContainerError", "CreateContainerConfigError", "CreateContainerError")
UNSTARTED = ("StartError", "ContainerCannotRun")
"""How a container ended that never ran: its message is the runtime's own."""
OURS = (names.DRIVER, names.EXECUTOR, names.QUERIES, names.CLEANUP, names.WATCHER)
"""Containers that end with the engine's exit codes."""
MORE_MEMORY = {
    names.DRIVER: "raise its memory in spec.driver.podTemplate",
    names.EXECUTOR: "raise spec.workers.resources.memory, or lower spec.workers.capacity or capacityTuples",
    names.QUERIES: "raise spec.queries.memory",
    names.WATCHER: "raise it in spec.idle.podTemplate",
}
WARNED_SECONDS = 20.0
"""What Kubernetes warns of while a pod gets its containers often passes by then: a Secret that kubelet does not see yet."""
ABSENT_SECONDS = 40.0
"""A node, volumes and containers are there within so long, and a driver is ready; or somebody must be told."""
PULLING_SECONDS = 120.0
"""The same while an image is pulled."""
UNEXPLAINED = (
    *(Reason.PodStuck, Reason.DriverPending, Reason.ExecutorsPending, Reason.ImageUnavailable),
    *(Reason.DriverNotReady, Reason.ExecutorsMissing, Reason.QueriesUnready, Reason.WatcherFails),
)
"""Troubles of which events, or the claims that a pod mounts, may say more than the pod."""
RECENT_SECONDS = 180.0
"""kubelet repeats what still fails within so long."""
MOST_WARNINGS = 3
LONGEST = 700
"""Characters of a message."""


@dataclass(frozen=True, slots=True)
class Trouble:
    """Why a pod does not run."""

    reason: Reason
    message: str


@dataclass(frozen=True, slots=True)
class Several:
    """Pods of which there are several alike, and the reasons for what befalls them."""

    what: str
    pending: Reason
    crashing: Reason
    unready: Reason


EXECUTORS = Several("executors", Reason.ExecutorsPending, Reason.ExecutorsFailing, Reason.ExecutorsMissing)
WATCHERS = Several("watchers", Reason.WatcherFails, Reason.WatcherFails, Reason.WatcherFails)
QUERY_SERVERS = Several("query servers", Reason.QueriesUnready, Reason.QueriesUnready, Reason.QueriesUnready)


def newest(pods: Sequence[Object]) -> Object | None:
    """The pod that was made last, of those that are not being deleted."""
    return max(living_among(pods), key=lambda found: found["metadata"].get("creationTimestamp", ""), default=None)


def trouble_of(pods: Sequence[Object], now: float, events: Sequence[Object] = ()) -> Trouble | None:
    """Why the newest pod does not run, or None where it does or may soon. ``now``: seconds since 1970; ``events``: any about it."""
    pod = newest(pods)
    if pod is None:
        return _trouble_of_the_last(pods, now)
    pending, crashing, unready = Reason.DriverPending, Reason.DriverCrashing, Reason.DriverNotReady
    return _trouble(pod, now, events, pending=pending, crashing=crashing, unready=unready)


def _trouble_of_the_last(pods: Sequence[Object], now: float) -> Trouble | None:
    """Why the driver's next pod is not made: the one before does not end."""
    for pod in pods:
        if now - _at(pod["metadata"]["deletionTimestamp"]) >= WARNED_SECONDS:  # it was to have ended by then
            name, node = pod["metadata"]["name"], _spec(pod).get("nodeName", "")
            what = f"pod {name} on node {node} does not end, and the next one is not made before"
            remedy = f"if the node is lost, kubectl delete pod {name} --force: two drivers at once do no harm"
            return Trouble(Reason.DriverPending, f"{what}; {remedy}")
    return None


def trouble_of_several(pods: Sequence[Object], of: Several, now: float, events: Sequence[Object] = ()) -> Trouble | None:
    """What keeps them from running, and how many; None where all run or may soon."""
    living = living_among(pods)
    found = [_trouble_of_one(pod, of, now, events) for pod in living]
    troubles = [trouble for trouble in found if trouble is not None]
    if not troubles:
        return None
    return Trouble(troubles[0].reason, f"{len(troubles)} of {len(living)} {of.what}: {troubles[0].message}"[:LONGEST])


def _trouble_of_one(pod: Object, of: Several, now: float, events: Sequence[Object]) -> Trouble | None:
    return _trouble(pod, now, events, pending=of.pending, crashing=of.crashing, unready=of.unready)


def first_unexplained(pods: Sequence[Object], of: Several, now: float) -> Object | None:
    """The first pod whose status does not say why it is not ready, so that events about it may; None where there is none."""
    for pod in living_among(pods):
        trouble = _trouble_of_one(pod, of, now, ())
        is_told = trouble is not None and trouble.reason not in UNEXPLAINED
        if not is_told and not is_ready(pod):
            return pod
    return None


def running_pods(pods: Sequence[Object], since: float) -> list[Object]:
    """Those whose containers have all run since then (seconds since 1970)."""
    return [pod for pod in living_among(pods) if (started := _running_since(pod)) is not None and _at(started) <= since]


def mismatch_of(pods: Sequence[Object], revision: str) -> str | None:
    """What a driver of this revision said that has ended since the checkpoint is another join's; None where none has."""
    for pod in living_among(pods):
        if (pod["metadata"].get("annotations") or {}).get(names.REVISION) != revision:
            continue
        for container in (pod.get("status") or {}).get("containerStatuses") or []:
            for state in (container.get("state") or {}, container.get("lastState") or {}):
                ended = state.get("terminated") or {}
                if ended.get("exitCode") == MISMATCH_CODE and container.get("name") == names.DRIVER:
                    return _end(ended, names.DRIVER)
    return None


def split_claim(pods: Sequence[Object], claim: Object | None) -> Trouble | None:
    """Why pods on several nodes cannot share a claim; None where they can, or are on one."""
    modes = ((claim or {}).get("spec") or {}).get("accessModes") or []
    nodes = sorted({pod["spec"]["nodeName"] for pod in living_among(pods) if pod["spec"].get("nodeName")})
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
    return Trouble(Reason.PodRefused, re.sub(r'pods? "[^"]*"', "a pod", said, count=1)[:LONGEST])


def warnings_of(events: Sequence[Object], uid: str) -> list[str]:
    """What Kubernetes has lately warned of about an object: each sentence once, in a fixed order."""
    of_it = [event for event in events if (event.get("involvedObject") or {}).get("uid") == uid and _is_warning(event)]
    last = max((_time_of(event) for event in of_it), default=0.0)
    recent = (str(event.get("message") or event.get("reason")) for event in of_it if last - _time_of(event) <= RECENT_SECONDS)
    # a sandbox that fails has another number at each attempt
    said = {re.sub(r"\b[0-9a-f]{32,}\b", "...", " ".join(text.split())).removeprefix("(combined from similar events): ") for text in recent}
    vague = {text for text in said if text.startswith("Unable to attach or mount volumes")}
    return sorted(said - vague or vague)[:MOST_WARNINGS]


def _is_warning(event: Object) -> bool:
    """Scheduling is told of in the pod's status, and a claim that nothing fits is no warning to Kubernetes."""
    return (event.get("type") == "Warning" and event.get("reason") != "FailedScheduling") or event.get("reason") == "FailedBinding"


def _time_of(event: Object) -> float:
    """When it was last seen; each of the two APIs that make events has fields of its own."""
    last = (event.get("series") or {}).get("lastObservedTime") or event.get("lastTimestamp")
    at = last or event.get("eventTime") or event["metadata"].get("creationTimestamp")
    return 0.0 if at is None else _at(at)


def _at(instant: str) -> float:
    return datetime.fromisoformat(instant).timestamp()


def living_among(pods: Sequence[Object]) -> list[Object]:
    """Those that are not being deleted."""
    return [pod for pod in pods if not pod["metadata"].get("deletionTimestamp")]


def _spec(pod: Object) -> Object:
    return dict(pod.get("spec") or {})


def has_ended(pod: Object) -> bool:
    """Whether all of its containers have, for good."""
    return (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed")


def condition_of(pod: Object, kind: str) -> Object:
    """Empty where it has none."""
    found: Object = next((one for one in (pod.get("status") or {}).get("conditions") or [] if one.get("type") == kind), {})
    return found


def is_ready(pod: Object) -> bool:
    return bool(condition_of(pod, "Ready").get("status") == "True")


def _running_since(pod: Object) -> str | None:
    """When the last of its containers was started; None while one does not run."""
    containers = (pod.get("status") or {}).get("containerStatuses") or []
    started = [str(((container.get("state") or {}).get("running") or {}).get("startedAt") or "") for container in containers]
    return max(started) if started and all(started) else None


def _trouble(pod: Object, now: float, events: Sequence[Object], *, pending: Reason, crashing: Reason, unready: Reason) -> Trouble | None:
    name, state = f"pod {pod['metadata']['name']}", pod.get("status") or {}
    if state.get("phase") == "Failed" and state.get("reason"):
        return Trouble(crashing, f"{name}: {state['reason']}: {state.get('message', '')}"[:LONGEST])
    containers = state.get("containerStatuses") or []
    warnings = warnings_of(events, pod["metadata"].get("uid", ""))
    for container in state.get("initContainerStatuses") or []:
        trouble = _told_by_container(container, f"{name}, init container {container.get('name')}", "", crashing, warnings)
        if trouble is not None:
            return trouble
    for container in containers:
        own = str(container.get("name") or names.DRIVER)
        trouble = _told_by_container(container, name if own in OURS else f"{name}, container {own}", own, crashing, warnings)
        if trouble is not None:
            return trouble
    scheduled = condition_of(pod, "PodScheduled")
    if scheduled.get("status") == "False":
        said = str(scheduled.get("message") or scheduled.get("reason") or "cannot be scheduled")
        return Trouble(pending, f"{name}: {said}"[:LONGEST])
    if state.get("phase") == "Pending" and not scheduled and not _spec(pod).get("nodeName"):
        made = pod["metadata"].get("creationTimestamp")
        if made is None or now - _at(made) < ABSENT_SECONDS:
            return None
        which = _spec(pod).get("schedulerName", "default-scheduler")
        return Trouble(pending, f"{name}: no scheduler has looked at it since {made}; spec.schedulerName is {which}: does that one run?")
    warned = "; ".join(warnings)
    if any("running" in (container.get("state") or {}) for container in containers):
        return _unready(pod, name, now, warned, unready)
    since = scheduled.get("lastTransitionTime")
    if state.get("phase") != "Pending" or since is None:
        return None
    waited = now - _at(since)
    steps = {event.get("reason") for event in events}
    is_pulling = "Pulling" in steps and "Pulled" not in steps
    if waited < (WARNED_SECONDS if warned else PULLING_SECONDS if is_pulling else ABSENT_SECONDS):
        return None
    wanting = warned or f"kubectl describe {name} says which volume, Secret or image is wanting"
    return Trouble(Reason.PodStuck, f"{name}: it has had a node since {since}, and no container; {wanting}"[:LONGEST])


def _unready(pod: Object, name: str, now: float, warned: str, reason: Reason) -> Trouble | None:
    """Of a pod whose containers run."""
    since, ready = _running_since(pod), condition_of(pod, "Ready")
    if since is None or ready.get("status") != "False" or now - _at(since) < ABSENT_SECONDS:
        return None
    where = f" on node {node}" if (node := _spec(pod).get("nodeName")) else ""
    said = warned or ready.get("message") or "kubectl describe says more"
    return Trouble(reason, f"{name}: it has run{where} since {since}, and is not ready: {said}"[:LONGEST])


def _told_by_container(container: Object, name: str, own: str, crashing: Reason, warnings: Sequence[str]) -> Trouble | None:
    """What the status of one container says. ``own``: its name; empty for an init container."""
    current = container.get("state") or {}
    waiting, ended = current.get("waiting") or {}, current.get("terminated") or {}
    last = (container.get("lastState") or {}).get("terminated") or {}
    if waiting.get("reason") in UNPULLABLE:
        # kubelet soon forgets in the status why it waits
        failed_pull = next((one for one in warnings if one.startswith("Failed to pull image")), None)
        said = failed_pull or waiting.get("message") or container.get("image", "")
        return Trouble(Reason.ImageUnavailable, f"{name}: {waiting['reason']}: {said}"[:LONGEST])
    if waiting.get("reason") in CRASHING:
        if waiting["reason"] == "CrashLoopBackOff" and "exitCode" in last:
            return Trouble(crashing, f"{name}: {_end(last, own)}"[:LONGEST])
        return Trouble(crashing, f"{name}: {waiting['reason']}: {waiting.get('message', 'see its log')}"[:LONGEST])
    # One that ended and was started again is not well before it is ready.
    failed = next((one for one in (ended, last) if one.get("exitCode")), None)
    if failed is None or container.get("ready"):
        return None
    return Trouble(crashing, f"{name}: {_end(failed, own)}"[:LONGEST])


def _end(ended: Object, own: str) -> str:
    """How a container ended. The driver's and a cleanup's codes are the engine's; an executor's are Spark's own, but for signals."""
    code = int(ended["exitCode"])
    if ended.get("reason") == "OOMKilled":
        meaning = f"OOMKilled: it needed more memory than its limit; {MORE_MEMORY.get(own, 'raise it')}"
    elif own not in OURS or (own == names.EXECUTOR and code < 128):
        meaning = "see its log"
    else:
        meaning = EXIT_CODES.get(code, "see its log")
    return f"exit code {code}: {meaning}{_last_words(ended)}"


def _last_words(ended: Object) -> str:
    """The sentence with which the engine ended, as its log has it; else the last line of what ended by itself."""
    text, code = str(ended.get("message") or ""), int(ended["exitCode"])
    if ended.get("reason") in UNSTARTED:
        return f": {' '.join(text.split())}"
    lines = [line for line in text.splitlines() if line.strip()]
    sentence = next((said for said in map(message_of, reversed(lines)) if said.startswith(SENTENCE)), None)
    if sentence is not None:
        return f": {sentence.removeprefix(SENTENCE)}"
    is_signal = 128 <= code < 255
    return f": {lines[-1].strip()[:200]}" if lines and not is_signal and not lines[-1].startswith("{") else ""
