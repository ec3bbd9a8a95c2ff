"""Writes to the StreamJoin's children and to its finalizers, each only where it would change something."""

from __future__ import annotations

from streamjoin_operator import api, names
from streamjoin_operator.api import ApiError
from streamjoin_operator.children import drivers_of, mismatch
from streamjoin_operator.drift import Object, annotations_of, is_current
from streamjoin_operator.ports import Ports
from streamjoin_operator.reasons import Reason
from streamjoin_operator.reconciliation import PROCEED, Reconciliation, Verdict
from streamjoin_operator.seen import Seen
from streamjoin_operator.sleeping import Sleep

UNLISTED = ("Deployment", "Secret", "PersistentVolumeClaim")
"""Children that are read one by one."""
REFUSED_SECONDS = 60.0
"""What the API server refuses is tried again after so long: a quota or an admission rule may have changed."""


class Applier:
    """See the module."""

    def __init__(self, ports: Ports, seen: Seen) -> None:
        self._ports, self._seen = ports, seen

    async def apply(self, reconciliation: Reconciliation, *wanted: Object) -> Verdict:
        """Apply what is not as it should be. Waits where a name is taken or the API server refuses."""
        for desired in wanted:
            kind, metadata = desired["kind"], desired["metadata"]
            observed = reconciliation.observed.get((kind, metadata["name"]))
            if observed is None and kind == "Deployment":
                observed = reconciliation.deployed(metadata["name"])
            if observed is None and not reconciliation.checking and kind not in UNLISTED:
                continue  # compared when a check is due
            if is_current(observed, desired):
                continue
            if observed is None:
                read = self._ports.api.get if kind in UNLISTED else self._ports.api.find
                observed = await read(api.KINDS[kind], metadata["namespace"], metadata["name"])
            if observed is not None and not reconciliation.resource.may_apply(observed):
                reconciliation.refused = (Reason.ForeignObject, reconciliation.resource.foreign(kind, observed))
                return Verdict(self._ports.settings.resync_seconds)
            try:
                applied = await self._ports.api.apply(desired)
            except ApiError as error:
                if not error.refuses_object:
                    raise
                reconciliation.refused = refusal(desired, error)
                return Verdict(REFUSED_SECONDS)
            reconciliation.observed[kind, metadata["name"]] = applied
            if observed is None or applied["metadata"]["resourceVersion"] != observed["metadata"]["resourceVersion"]:
                reason = Reason.Created if observed is None else Reason.Updated
                reconciliation.events.append(("Normal", reason, f"{kind} {metadata['name']}"))
            if kind == "Deployment":
                self._note(reconciliation, applied)
            if kind == "ConfigMap" and metadata["name"] == reconciliation.resource.base:
                reconciliation.memo.record = applied
        return PROCEED

    def _note(self, reconciliation: Reconciliation, deployment: Object) -> None:
        resource, name = reconciliation.resource, deployment["metadata"]["name"]
        key = (resource.namespace, resource.name)
        if name == resource.base:
            reconciliation.deployment = self._seen.deployments[key] = deployment
        elif name == names.watcher_name(resource.name):
            reconciliation.watcher = self._seen.watchers[key] = deployment
        else:
            reconciliation.query_servers = self._seen.query_servers[key] = deployment

    async def heed_suspend(self, reconciliation: Reconciliation) -> None:
        """Of a manifest that is refused suspending alone is heeded: to stop a driver, or to let it go on, takes nothing else."""
        found, resource = reconciliation.deployment, reconciliation.resource
        revision = annotations_of(found).get(names.REVISION, "")
        is_stopped = reconciliation.is_suspended or mismatch(found, revision) is not None
        replicas = 0 if found is None or is_stopped else drivers_of(found["spec"]["template"])
        if found is None or not resource.may_apply(found) or found["spec"].get("replicas") == replicas:
            return
        patch: Object = {"spec": {"replicas": replicas}}
        if (sleep := reconciliation.sleep) is not None:
            patch["metadata"] = {"annotations": {names.SLEEP: sleep.note}}
        changed = await self._ports.api.patch(api.DEPLOYMENT, resource.namespace, resource.base, patch)
        before, reconciliation.deployment = Sleep.of(found), changed
        self._seen.deployments[resource.namespace, resource.name] = changed
        reconciliation.events.append(("Normal", Reason.Updated, f"Deployment {resource.base}"))
        reconciliation.tell_woken(before)
        watcher = reconciliation.watcher
        if replicas and watcher is not None and resource.owns(watcher):  # a claim of one node's would keep the driver from another
            await self._ports.api.delete(api.DEPLOYMENT, resource.namespace, watcher["metadata"]["name"], watcher["metadata"]["uid"])

    async def set_finalizer(self, reconciliation: Reconciliation, wanted: bool) -> None:
        metadata = reconciliation.body["metadata"]
        there = metadata.get("finalizers") or []
        if (names.FINALIZER in there) == wanted:
            return
        finalizers = [*there, names.FINALIZER] if wanted else [name for name in there if name != names.FINALIZER]
        patch = {"metadata": {"finalizers": finalizers, "resourceVersion": metadata["resourceVersion"]}}
        try:
            reconciliation.body = await self._ports.api.patch(
                api.STREAM_JOIN, reconciliation.resource.namespace, reconciliation.resource.name, patch
            )
        except ApiError as error:
            if error.status == 404 and not wanted:
                return
            raise
        self._seen.saw(reconciliation.body)


def refusal(desired: Object, error: ApiError) -> tuple[Reason, str]:
    """What the condition says of an object that the API server refuses."""
    kind, name = desired["kind"], desired["metadata"]["name"]
    field = {"Deployment": "driver.podTemplate", "ServiceAccount": "serviceAccountAnnotations", "Job": "cleanup.podTemplate"}.get(kind)
    if kind == "Deployment":
        field = {names.QUERIES: "queries.podTemplate", names.WATCHER: "idle.podTemplate"}.get(name.rpartition("-")[2], field)
    if "field is immutable" in error.message:
        remedy = f"; delete {kind} {name}, and the operator makes it anew"
    elif field is None or error.status == 403:
        remedy = ""  # the answer says enough
    else:
        remedy = f"; look at spec.{field}"
    return Reason.ApplyRefused, f"{kind} {name}: {error.message[:700]}{remedy}"
