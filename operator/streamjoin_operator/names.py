"""Names, labels and annotations of everything that the operator makes.

Always holds: names follow from the StreamJoin's alone, so that two operators, or one that was restarted, make the same objects; every
name fits Kubernetes' limits for the pods and labels that are derived from it.
"""

from __future__ import annotations

import hashlib

GROUP = "streamjoin.dev"
MANAGER = "streamjoin-operator"
"""Our field manager, and the value of the label managed-by."""

NAME = f"{GROUP}/name"
COMPONENT = "app.kubernetes.io/component"
MANAGED_BY = "app.kubernetes.io/managed-by"

RESTART = f"{GROUP}/restart"
"""On a StreamJoin: any new value restarts its driver from the checkpoint."""
PAUSE = f"{GROUP}/pause-scaling"
"""On a StreamJoin: in, out, or anything else for both: the autoscaler carries nothing of that out while it is there."""
ADMISSION = f"{GROUP}/admission"
"""On a StreamJoin: with the value Warn, it begins also where its first plan is expected to fill a worker beyond tau2."""
REVISION = f"{GROUP}/revision"
"""On the Deployment: what the driver was started for (``changes.revision``)."""
DESIRED = f"{GROUP}/desired"
"""On every child: the hash of what was applied, by which removed fields are noticed."""
MISMATCH = f"{GROUP}/mismatch"
"""On the Deployment: the revision whose driver found another join's checkpoint, and what it said, as JSON; it is not started again."""
TEMPLATE = f"{GROUP}/template"
"""On the Deployment: the hash of its pod template as applied."""
ASKED = f"{GROUP}/asked"
"""On the Deployment: a hash of what makes it start anew though the manifest is the same (``Resource.nonce``)."""
TRIED = f"{GROUP}/tried"
"""On the Deployment: a hash of what a trial of its pod template, with the driver's files, would try."""
SLEEP = f"{GROUP}/sleep"
"""On the Deployment: since when and why the join sleeps, or what woke it, as JSON (``sleeping``)."""
BEGUN = f"{GROUP}/begun-with"
"""On the Deployment, while executors are resized under a driver that goes on: spec.workers.resources as it was begun with, as JSON."""
UNRESIZABLE = f"{GROUP}/not-resized"
"""On the Deployment: for which generation and why the driver was started anew, as its executors could not be resized."""
CHANGE = f"{GROUP}/change"
"""On the ConfigMap: what the last change of the manifest took, as JSON."""
MANIFEST = f"{GROUP}/manifest"
"""On the pods of a cleanup and a watcher: the manifest of the driver that ran, as the engine reads it; on query servers: as much of it as
they need."""
BESIDE = f"{GROUP}/beside"
"""On the Job of a cleanup: pods of the join that had not ended when it began."""
FINALIZER = f"{GROUP}/state"
"""Only on StreamJoins whose state goes with them (``checkpoint.onDelete: Delete``)."""

DRIVER, EXECUTOR, QUERIES, CLEANUP, TRIAL, WATCHER = "driver", "executor", "queries", "cleanup", "trial", "watcher"
FILES_VOLUME = "config"
"""Of the driver's pod: its files."""
MANAGED_SELECTOR = f"{MANAGED_BY}={MANAGER}"

LONGEST = 45
"""Of a base name: a Deployment's pods append 17 characters to it, and 63 is the limit of a label."""


def base_name(name: str) -> str:
    """The name of a StreamJoin's children. Names that are too long are cut and told apart by a hash."""
    full = f"sj-{name}"
    if len(full) <= LONGEST:
        return full
    digest = hashlib.sha256(name.encode()).hexdigest()[:8]
    return f"{full[: LONGEST - 9].rstrip('-')}-{digest}"


def token_name(name: str) -> str:
    """The Secret of the plan API's token."""
    return f"{base_name(name)}-token"


def exchange_name(name: str) -> str:
    """The Secret of what driver and workers show each other."""
    return f"{base_name(name)}-exchange"


def executors_name(name: str) -> str:
    """The NetworkPolicy and the ServiceAccount of the executors."""
    return f"{base_name(name)}-executors"


def queries_name(name: str) -> str:
    """All that query servers have: their Deployment, Service, Secret, NetworkPolicy and PodDisruptionBudget."""
    return f"{base_name(name)}-queries"


def watcher_name(name: str) -> str:
    """The Deployment of what asks the sources while the join sleeps."""
    return f"{base_name(name)}-{WATCHER}"


def ledger_name(name: str) -> str:
    """The ConfigMap of the autoscaler's decisions."""
    return f"{base_name(name)}-decisions"


def files_name(name: str, content: str) -> str:
    """The ConfigMap of a driver's files, by the hash of what they hold."""
    return f"{base_name(name)}-{content}"


def trial_name(name: str, key: str) -> str:
    """The pod that tries a new template of the driver."""
    return f"{base_name(name)}-trial-{key[:8]}"


def cleanup_name(name: str, uid: str) -> str:
    """The Job that removes the state of a deleted StreamJoin; no other StreamJoin of that name, before or after it, has the same."""
    return f"{base_name(name)}-cleanup-{uid[:8]}"


def labels(name: str) -> dict[str, str]:
    """On every child."""
    return {"app.kubernetes.io/name": "streamjoin", "app.kubernetes.io/instance": name, MANAGED_BY: MANAGER, NAME: name}


def pod_labels(name: str, component: str) -> dict[str, str]:
    """On pods of one component."""
    return {**labels(name), COMPONENT: component}


def selector(name: str, component: str | None = None) -> str:
    """A label selector for a StreamJoin's children, or its pods of one component."""
    return f"{NAME}={name}" if component is None else f"{NAME}={name},{COMPONENT}={component}"
