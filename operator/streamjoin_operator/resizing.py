"""Whether executors that run get other resources (``spec.workers.resources``) without a restart, and how far their kubelets are.

Kubernetes resizes a pod that runs by its subresource ``resize``. The driver goes on: nothing that it has begun with depends on the size of
its executors. Their JVM's heap is fixed (``streamjoin.manifest.memory.HEAP``), whatever their memory is; and where a worker's capacity
follows from its memory, the driver reads it again once all executors have theirs (``streamjoin.cli.pods.Limits``).

Always holds: pure; what a resize cannot do is said in ``decide`` and nowhere else, and restarts the driver as any other change does.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto

from streamjoin.manifest.model import Resources
from streamjoin.manifest.quantity import Cpu, Memory
from streamjoin_operator import names
from streamjoin_operator.drift import Object
from streamjoin_operator.pod_trouble import condition_of

NOT_SERVED = "the API server has no pods/resize, which Kubernetes has from 1.33 on"


class Way(Enum):
    """What a change of the resources takes."""

    NOTHING = auto()
    RESIZE = auto()
    RESTART = auto()


@dataclass(frozen=True, slots=True)
class Decision:
    """``why``: in words that go on from the field's name."""

    way: Way
    why: str = ""


def decide(before: Resources, after: Resources, *, is_served: bool = True, refused: str | None = None) -> Decision:
    """How workers that run come from one size to another.

    ``is_served``: whether the API server has the subresource; ``refused``: what it or a kubelet says where it does not make this change, as
    where the pod's QoS class would become another, or its node is too small.
    """
    if refused is not None:
        return Decision(Way.RESTART, refused)
    if before == after:
        return Decision(Way.NOTHING)
    if not is_served:
        return Decision(Way.RESTART, NOT_SERVED)
    if after.memory < before.memory:
        lowered = f"memory is lowered from {before.memory} to {after.memory}"
        return Decision(Way.RESTART, f"{lowered}, which workers may have filled, and kubelets may refuse")
    return Decision(Way.RESIZE, f"cpu {before.cpu} to {after.cpu}, memory {before.memory} to {after.memory}")


def resources_of(compared: Object) -> str:
    """``spec.workers.resources`` of a value of ``changes.compared``, as JSON, defaults left out."""
    return json.dumps((compared["spec"].get("workers") or {}).get("resources") or {}, sort_keys=True)


@dataclass(frozen=True, slots=True)
class Progress:
    """How far executors are."""

    lacking: int
    """So many have yet to get what they are to have."""
    executors: int
    said: tuple[str, ...] = ()
    """What kubelets say of those that they cannot resize, or not now."""
    infeasible: str | None = None
    """The first that will never be resized where it is."""


def progress(pods: Sequence[Object], wanted: Object) -> Progress:
    """Of these executors, which all are to have ``wanted``."""
    told = [(pod, *_told(pod)) for pod in pods if not _is_done(pod, wanted)]
    said = [(reason, f"pod {pod['metadata']['name']}: {text}") for pod, reason, text in told if text]
    infeasible = next((text for reason, text in said if reason == "Infeasible"), None)
    return Progress(len(told), len(pods), tuple(text for _, text in said), infeasible)


def asks_for(pod: Object, wanted: Object) -> bool:
    """Whether the executor's container has these requests and limits in its specification."""
    return _has(_executor(pod["spec"].get("containers")), wanted)


def lacks(pod: Object, wanted: Object) -> bool:
    """Whether the executor is to be asked for it. One with more memory keeps that, which is never lowered while it runs: it was given it
    together with others that could not be (``enlarge_step``)."""
    keeps = all(_has(container, wanted, or_more=True) for container in (_executor(pod["spec"].get("containers")), _own(pod)))
    return not keeps and not asks_for(pod, wanted)


def _own(pod: Object) -> Object:
    """A container that has yet to start will start with what it asks for; one that runs has what its kubelet says."""
    runs = _executor((pod.get("status") or {}).get("containerStatuses"))
    return runs if "running" in (runs.get("state") or {}) else _executor(pod["spec"].get("containers"))


def _is_done(pod: Object, wanted: Object) -> bool:
    """What its kubelet says of another size than this does not matter."""
    if asks_for(pod, wanted):
        return _has(_own(pod), wanted) and not _told(pod)[0]
    return not lacks(pod, wanted)


def _told(pod: Object) -> tuple[str, str]:
    """The reason and the words of the kubelet; empty where it says nothing."""
    for kind in ("PodResizePending", "PodResizeInProgress"):
        found = condition_of(pod, kind)
        if found.get("status") == "True" and found.get("reason"):
            return found["reason"], ": ".join(filter(None, (kind, found["reason"], found.get("message"))))
    return "", ""


def _executor(containers: Sequence[Object] | None) -> Object:
    return next((each for each in containers or () if each["name"] == names.EXECUTOR), {})


def _has(container: Object, wanted: Object, *, or_more: bool = False) -> bool:
    """``or_more``: of memory."""
    resources = container.get("resources") or {}
    return all(
        _fits(_amount(name, (resources.get(kind) or {}).get(name)), _amount(name, text), or_more=or_more)
        for kind, amounts in wanted.items()
        for name, text in amounts.items()
    )


def _fits(has: Cpu | Memory | None, wanted: Cpu | Memory | None, *, or_more: bool) -> bool:
    return has == wanted or (or_more and isinstance(has, Memory) and isinstance(wanted, Memory) and has > wanted)


def _amount(name: str, text: object) -> Cpu | Memory | None:
    try:
        return (Cpu if name == "cpu" else Memory).read(text)
    except ValueError:
        return None  # somebody else's
