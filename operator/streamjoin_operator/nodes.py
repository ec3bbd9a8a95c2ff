"""Which executors are on nodes that will not be there for long: the workers on them end first when there are to be fewer.

Nodes are of the cluster, not of a namespace, so that reading them is a right of its own (``rbac.nodes`` in the chart). Without it nothing
is asked, and nothing is known of nodes.
"""

from __future__ import annotations

import logging

from streamjoin_operator import api
from streamjoin_operator.api import Api, ApiError
from streamjoin_operator.drift import Object
from streamjoin_operator.executors import executors_at_work
from streamjoin_operator.resource import Resource
from streamjoin_operator.settings import Settings

TAINTS = frozenset(
    {
        "node.kubernetes.io/unschedulable",
        "node.kubernetes.io/out-of-service",
        "ToBeDeletedByClusterAutoscaler",
        "DeletionCandidateOfClusterAutoscaler",
        "karpenter.sh/disrupted",
        "aws-node-termination-handler/asg-lifecycle-termination",
        "aws-node-termination-handler/rebalance-recommendation",
        "aws-node-termination-handler/scheduled-maintenance",
        "aws-node-termination-handler/spot-itn",
        "cloud.google.com/impending-node-termination",
    }
)
log = logging.getLogger(__name__)
EXECUTOR_ID = "spark-exec-id"
"""The label of an executor's pod, by Spark."""


async def wish_for_fewer(wish: Object, running: int, of: Api, settings: Settings, resource: Resource) -> Object:
    """The wish; if it is for fewer workers than are running, with the executors that are better gone. Raises ApiError."""
    workers = wish["workers"] if "workers" in wish else wish["scheme"]["tasks"]
    if workers >= running or not settings.read_nodes:
        return wish
    executors: dict[str, list[str]] = {}
    for pod in await executors_at_work(of, resource):
        executor = (pod["metadata"].get("labels") or {}).get(EXECUTOR_ID)
        if executor is not None and pod["spec"].get("nodeName"):
            executors.setdefault(pod["spec"]["nodeName"], []).append(executor)
    try:
        going = [executor for node in sorted(executors) if await _is_going(of, node) for executor in executors[node]]
    except ApiError as error:
        if error.status != 403:
            raise
        remedy = "give the operator the right (rbac.nodes in the chart), or unset STREAMJOIN_READ_NODES"
        about = {"streamjoin": f"{resource.namespace}/{resource.name}"}
        log.warning("workers end wherever they are: %s; %s", error.message, remedy, extra=about)
        return wish
    return {**wish, "going": going} if going else wish


async def _is_going(of: Api, name: str) -> bool:
    node = await of.get(api.NODE, "", name)
    if node is None:
        return True
    spec = node.get("spec") or {}
    return bool(spec.get("unschedulable")) or any(taint.get("key") in TAINTS for taint in spec.get("taints") or [])
