"""The steps by which executors that run get the resources of a manifest that has changed, and the driver goes on.

The driver's Deployment notes what it was begun with (``names.BEGUN``), from before the first executor is resized until the driver starts
anew. As long as it does, executors are held at what the record says (``children.record``): Spark makes those that come later as it was told
when it began.

Always holds: nothing is written for executors that have what they should; an operator that is killed between any two steps goes on from the
note and from what the pods say.
"""

from __future__ import annotations

import json
from dataclasses import replace

from streamjoin.manifest.model import Resources, Workers
from streamjoin_operator import api, children, names
from streamjoin_operator.api import ApiError
from streamjoin_operator.changes import compared, revision
from streamjoin_operator.drift import Object, annotations_of
from streamjoin_operator.pod_templates import executor_resources
from streamjoin_operator.pod_trouble import LONGEST, Trouble, has_ended, living_among
from streamjoin_operator.ports import Ports
from streamjoin_operator.reasons import Reason
from streamjoin_operator.reconciliation import AGAIN, PROCEED, Reconciliation, Verdict
from streamjoin_operator.resizing import Decision, Progress, Way, decide, lacks, progress, resources_of
from streamjoin_operator.window_step import running_job


class ResizeStep:
    """See the module."""

    def __init__(self, ports: Ports) -> None:
        self._ports = ports

    async def consider(self, reconciliation: Reconciliation) -> Verdict:
        """Whether the driver goes on with other resources than it was begun with."""
        if reconciliation.checking:
            begun, why = await self._begun(reconciliation)
            reconciliation.resource = replace(reconciliation.resource, begun=begun, unresizable=why)
            lack = begun and reconciliation.memo.resized != resources_of(compared(reconciliation.manifest))
            reconciliation.memo.not_resized = running_job(reconciliation) if lack else None
        return PROCEED

    async def _begun(self, reconciliation: Reconciliation) -> tuple[str, str]:
        """What the driver was begun with, while it goes on with something else; and why it cannot."""
        resource, found, record = reconciliation.resource, reconciliation.deployment, children.running_manifest(reconciliation.memo.record)
        if found is None or record is None or not resource.may_apply(found):
            return "", ""
        if reconciliation.is_suspended or not found["spec"].get("replicas"):
            return "", ""  # it begins with what the manifest says then
        noted, value = annotations_of(found), compared(reconciliation.manifest)
        running, wanted = resources_of(record), resources_of(value)
        mark = noted.get(names.UNRESIZABLE, "")
        if running == wanted and names.BEGUN not in noted and not mark:
            return "", ""
        started_for = replace(resource, unresizable=mark).started_for
        if names.BEGUN not in noted and noted.get(names.REVISION) == revision(value, started_for):
            return "", mark  # it is what it should be
        begun = noted.get(names.BEGUN) or running
        if noted.get(names.REVISION) != revision(value, started_for, begun):
            return "", ""  # it starts anew for something else
        decision = await self._decision(reconciliation, running, wanted)
        return ("", f"{resource.generation}: {decision.why}") if decision.way is Way.RESTART else (begun, mark)

    async def _decision(self, reconciliation: Reconciliation, running: str, wanted: str) -> Decision:
        """Where a change is possible, the API server is asked about the first executor, without resizing it."""
        before, after = (Resources.model_validate(json.loads(text)) for text in (running, wanted))
        known = reconciliation.memo.unresizable
        refused = known[1] if known is not None and known[0] == wanted else None
        if before != after and not reconciliation.is_driver_ready:
            refused = "the driver is not ready, and the change may be its remedy"
        is_served = before == after or await self._ports.api.serves(api.POD.resize)
        decision = decide(before, after, is_served=is_served, refused=refused)
        if decision.way is not Way.RESIZE:
            return decision
        sizes = executor_resources(reconciliation.manifest.spec.workers)
        pod = next((pod for pod in await self._executors(reconciliation) if lacks(pod, sizes)), None)
        if pod is not None:
            try:
                await self._ports.api.try_to_resize(pod, names.EXECUTOR, sizes)
            except ApiError as error:
                if error.refuses_object:
                    return decide(before, after, refused=_refusal(pod, error))
                if error.status != 404:  # it has ended
                    raise
        return decision

    async def hold(self, reconciliation: Reconciliation) -> Verdict:
        """While the driver goes on with what it was not begun with: resize the executors that lack it, and see what their kubelets say."""
        memo, is_begun = reconciliation.memo, names.BEGUN in annotations_of(reconciliation.deployment)
        record = children.running_manifest(memo.record) if is_begun else None
        if record is None:
            memo.resized = memo.unresizable = None
            return PROCEED
        wanted, workers = resources_of(record), Workers.model_validate(record["spec"].get("workers") or {})
        sizes = executor_resources(workers)
        found, refused = await self.toward(reconciliation, sizes)
        before = memo.resized, memo.unresizable and memo.unresizable[0]
        memo.resized = memo.resized if found.lacking else wanted
        refused = refused or found.infeasible
        memo.unresizable = None if refused is None else (wanted, refused)
        if (memo.resized, memo.unresizable and memo.unresizable[0]) != before:
            memo.checked_at = float("-inf")
            return AGAIN  # with a check
        if found.lacking:
            size = f"cpu {workers.resources.cpu} and memory {workers.resources.memory} for each worker"
            text = f"{found.lacking} of {found.executors} executors have yet to get {size}"
            said = [refused] if refused else found.said
            reconciliation.resizing = "; ".join([text, *said[:1]])
            reconciliation.resize_trouble = Trouble(Reason.ResizeHeld, reconciliation.resizing) if said else None
        return PROCEED

    async def toward(self, reconciliation: Reconciliation, sizes: Object) -> tuple[Progress, str | None]:
        """Resize the executors that lack it: how far they are then, and what the API server says of the first that it refuses."""
        found, refused = [], None
        for pod in await self._executors(reconciliation):
            try:
                found.append(await self._ports.api.resize(pod, names.EXECUTOR, sizes) if lacks(pod, sizes) else pod)
            except ApiError as error:
                if error.refuses_object:
                    refused = refused or _refusal(pod, error)
                elif error.status not in (404, 409):  # it has ended, or somebody else was quicker
                    raise
                found.append(pod)
        return progress(found, sizes), refused

    async def _executors(self, reconciliation: Reconciliation) -> list[Object]:
        """Those that have not ended, and are not to."""
        resource = reconciliation.resource
        pods = await self._ports.api.list(api.POD, resource.namespace, names.selector(resource.name, names.EXECUTOR))
        return [pod for pod in living_among(pods) if not has_ended(pod)]


def _refusal(pod: Object, error: ApiError) -> str:
    return f"pod {pod['metadata']['name']}: {error.message}"[:LONGEST]
