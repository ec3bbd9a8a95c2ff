"""The executors of a join, where two drivers have some: of the one at work."""

from __future__ import annotations

from streamjoin_operator import api, names
from streamjoin_operator.api import Api
from streamjoin_operator.drift import Object
from streamjoin_operator.pod_trouble import is_ready
from streamjoin_operator.resource import Resource


async def executors_at_work(of: Api, resource: Resource) -> list[Object]:
    """The executors' pods; where they have several owners, those of the driver that is ready. Raises ApiError."""
    pods = await of.list(api.POD, resource.namespace, names.selector(resource.name, names.EXECUTOR))
    if len({_owner(pod) for pod in pods}) < 2:
        return pods
    drivers = await of.list(api.POD, resource.namespace, names.selector(resource.name, names.DRIVER))
    at_work = {pod["metadata"]["uid"] for pod in drivers if is_ready(pod)}
    return [pod for pod in pods if _owner(pod) in at_work]


def _owner(pod: Object) -> str:
    return next((str(owner["uid"]) for owner in pod["metadata"].get("ownerReferences") or []), "")
