"""What Kubernetes says elsewhere than in the status of a pod that does not run: in events about it, and in the claims that it mounts.

Always holds: only where the pod itself does not say enough is anything asked, and of one pod at a time; without the right to list events
there is less to say, and no failure.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from streamjoin_operator import api
from streamjoin_operator.api import Api
from streamjoin_operator.drift import Object
from streamjoin_operator.pod_trouble import (
    LONGEST,
    UNEXPLAINED,
    Several,
    Trouble,
    first_unexplained,
    newest,
    trouble_of,
    trouble_of_several,
    warnings_of,
)

BOUND = "Bound"
EventsOf = Callable[[Object], Awaitable[Sequence[Object]]]
"""The events about an object."""


async def trouble_of_driver(server: Api, events_of: EventsOf, pods: Sequence[Object], now: float) -> Trouble | None:
    """As :func:`pod_trouble.trouble_of`, with the events about the newest pod and what its claims wait for."""
    trouble, pod = trouble_of(pods, now), newest(pods)
    if pod is None or (trouble is not None and trouble.reason not in UNEXPLAINED):
        return trouble
    return await _with_claims(server, events_of, trouble_of(pods, now, await events_of(pod)), pod)


async def trouble_among(server: Api, events_of: EventsOf, pods: Sequence[Object], of: Several, now: float) -> Trouble | None:
    """As :func:`pod_trouble.trouble_of_several`, with the events about the first pod that does not say why it is not ready."""
    pod = first_unexplained(pods, of, now)
    if pod is None:
        return trouble_of_several(pods, of, now)
    return await _with_claims(server, events_of, trouble_of_several(pods, of, now, await events_of(pod)), pod)


async def _with_claims(server: Api, events_of: EventsOf, trouble: Trouble | None, pod: Object) -> Trouble | None:
    """The trouble, and where it is about a volume the claim that is not bound, and why."""
    if trouble is None or trouble.reason not in UNEXPLAINED or "olume" not in trouble.message:
        return trouble
    namespace = pod["metadata"]["namespace"]
    for volume in pod["spec"].get("volumes") or []:
        name = (volume.get("persistentVolumeClaim") or {}).get("claimName")
        claim = None if name is None else await server.get(api.CLAIM, namespace, name)
        phase = ((claim or {}).get("status") or {}).get("phase")
        if claim is None or phase == BOUND:
            continue
        kind = claim["spec"].get("storageClassName")
        of_class = "and has no storage class" if kind is None else f"and of storage class {kind}"
        said = "; ".join(warnings_of(await events_of(claim), claim["metadata"]["uid"]))
        text = f"{trouble.message}; PersistentVolumeClaim {name} is {phase} {of_class}{f': {said}' if said else ''}"
        return Trouble(trouble.reason, text[:LONGEST])
    return trouble
