"""Whether the API server would take a pod that somebody else is to make, and is not there."""

from __future__ import annotations

from streamjoin_operator import api
from streamjoin_operator.api import Api, ApiError
from streamjoin_operator.drift import Object
from streamjoin_operator.pod_trouble import Trouble, refusal


async def refused_pod(server: Api, of: Object, template: Object) -> Trouble | None:
    """Why a pod of this template is refused; None where it is not, or the API server cannot say so now.

    It is tried without being made, as whoever makes it (Kubernetes' controllers, Spark) keeps the refusal to itself. ``of``: the metadata
    of the object that it is for. One request.
    """
    metadata = {**(template.get("metadata") or {}), "generateName": f"{of['name']}-", "namespace": of["namespace"]}
    body = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]}
    try:
        await server.try_to_create(api.POD, of["namespace"], body)
    except ApiError as error:
        return refusal(error.message) if error.names_cause else None
    return None
