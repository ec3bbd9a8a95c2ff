"""How others judge a custom resource: the published rules of kstatus (sigs.k8s.io/cli-utils, pkg/kstatus/status), by which Flux and Helm
wait, and those of ``kubectl wait --for=condition=...``.

Written from the rules, for resources that kstatus has no rules of their own for; they share no code with the operator.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any

Object = dict[str, Any]


class Status(StrEnum):
    IN_PROGRESS = "InProgress"
    FAILED = "Failed"
    CURRENT = "Current"
    TERMINATING = "Terminating"


def computed(body: Object) -> tuple[Status, str]:
    """The status, and why."""
    metadata, status = body["metadata"], body.get("status") or {}
    if metadata.get("deletionTimestamp"):
        return Status.TERMINATING, "Resource scheduled for deletion"
    observed = status.get("observedGeneration")
    if observed is not None and observed != metadata["generation"]:
        return Status.IN_PROGRESS, f"generation is {metadata['generation']}, but latest observed generation is {observed}"
    conditions = status.get("conditions") or []
    for condition in conditions:  # the first of the two that is true decides
        if condition["status"] == "True" and condition["type"] in ("Reconciling", "Stalled"):
            return (Status.IN_PROGRESS if condition["type"] == "Reconciling" else Status.FAILED), condition["message"]
    for condition in conditions:
        if condition["type"] == "Ready":
            return (Status.CURRENT if condition["status"] == "True" else Status.IN_PROGRESS), condition["message"]
    return Status.CURRENT, "Resource is current"


def meets(body: Object, kind: str) -> bool:
    """Whether ``kubectl wait --for=condition=KIND`` would return."""
    status = body.get("status") or {}
    for condition in status.get("conditions") or []:
        if condition["type"].lower() == kind.lower():
            observed = condition.get("observedGeneration", status.get("observedGeneration"))
            return condition["status"] == "True" and (observed is None or observed >= body["metadata"]["generation"])
    return False
