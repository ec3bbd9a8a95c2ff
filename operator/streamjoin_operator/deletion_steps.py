"""The steps of a deletion: only with our finalizer, when the state is to go with the StreamJoin and a Job must remove it.

Always holds: what it needs may all be gone but the StreamJoin itself, whose children Kubernetes may delete first; the state of a StreamJoin
of which no driver was seen is not touched; that state was removed is said only of a Job that has ended well with nobody beside it. Both
waits are bounded, so that a StreamJoin can always be deleted.
"""

from __future__ import annotations

import json

from streamjoin_operator import api, children, names
from streamjoin_operator.api import ApiError
from streamjoin_operator.applying import Applier
from streamjoin_operator.changes import engine_manifest
from streamjoin_operator.drift import Object, is_current, our_entries
from streamjoin_operator.driver_files import MANIFEST_KEY
from streamjoin_operator.pod_trouble import has_ended, trouble_of
from streamjoin_operator.ports import Ports
from streamjoin_operator.probing import refused_pod
from streamjoin_operator.reasons import Reason
from streamjoin_operator.reconciliation import PROCEED, Reconciliation, Step, Verdict
from streamjoin_operator.reporting import Reporter

DRAIN_SECONDS = 120.0
"""How long a deletion waits for the join's pods to end before the state is removed all the same."""
COMPONENTS = (names.DRIVER, names.EXECUTOR, names.QUERIES, names.WATCHER)
REMEDY = "set spec.checkpoint.onDelete to Retain to keep the state and end the deletion"


class DeletionSteps:
    """See the module."""

    def __init__(self, ports: Ports, applier: Applier, reporter: Reporter) -> None:
        self._ports, self._applier, self._reporter = ports, applier, reporter

    def all(self) -> tuple[Step, ...]:
        return (self.stop, self.drain, self.clean_up, self.let_go)

    async def stop(self, reconciliation: Reconciliation) -> Verdict:
        """Stop the driver, so that nothing is written behind the cleanup's back, and query servers, which may mount its claim."""
        resource, memo = reconciliation.resource, reconciliation.memo
        memo.deleting_since = self._ports.clock() if memo.deleting_since is None else memo.deleting_since
        if not _is_wanted(reconciliation):
            return PROCEED
        reconciliation.deleting = (Reason.PodsEnding, "the driver is stopped")
        for name in (names.queries_name(resource.name), names.watcher_name(resource.name), resource.base):
            found = await self._ports.api.get(api.DEPLOYMENT, resource.namespace, name)
            if found is None or found["metadata"].get("deletionTimestamp") or not resource.owns(found):
                continue
            if name == resource.base and not _was_started(reconciliation):
                # The status alone will tell that there was a driver, and so state that is ours to remove.
                reconciliation.deployment = found
                await self._reporter.report(reconciliation)
            await self._ports.api.delete(api.DEPLOYMENT, resource.namespace, name, found["metadata"]["uid"])
        return PROCEED

    async def drain(self, reconciliation: Reconciliation) -> Verdict:
        """Wait for driver, executors, query servers and watcher to end."""
        if not _is_wanted(reconciliation):
            return PROCEED
        pods = await self._ports.api.list(api.POD, reconciliation.resource.namespace, names.selector(reconciliation.resource.name))
        reconciliation.pods = [pod for pod in pods if _component(pod) in COMPONENTS and not has_ended(pod)]
        if not reconciliation.pods or self._deleting_for(reconciliation) >= DRAIN_SECONDS:
            return PROCEED
        reconciliation.deleting = (Reason.PodsEnding, f"waiting for {_names(reconciliation.pods)}")
        return Verdict(self._ports.settings.start_seconds)

    async def clean_up(self, reconciliation: Reconciliation) -> Verdict:
        """Have a Job remove the state, and wait for its end."""
        resource, where = reconciliation.resource, _where(reconciliation)
        if not _is_wanted(reconciliation):
            text = f"checkpoint.onDelete is not Delete any more; the state in {where} is kept"
            return self._end(reconciliation, "Normal", Reason.StateLeft, text)
        name = names.cleanup_name(resource.name, resource.uid)
        job = await self._ports.api.get(api.JOB, resource.namespace, name)
        if job is None:
            return await self._begin(reconciliation, name, where)
        reconciliation.deleting = (Reason.StateRemoving, f"Job {name} removes the state in {where}")
        if not our_entries(job):
            text = f"Job {name} exists and was not made by the operator; delete it, or {REMEDY}"
            reconciliation.refused = (Reason.ForeignObject, text)
            return self._wait(reconciliation, where)
        ended = {found["type"]: found for found in (job.get("status") or {}).get("conditions") or [] if found["status"] == "True"}
        pods = await self._ports.api.list(api.POD, resource.namespace, names.selector(resource.name, names.CLEANUP))
        if "Complete" in ended or await self._has_removed(job, pods):
            beside = (job["metadata"].get("annotations") or {}).get(names.BESIDE)
            if beside is None:
                return self._end(reconciliation, "Normal", Reason.StateRemoved, f"Job {name} has removed the state in {where}")
            text = f"Job {name} has removed what it found in {where}, but {beside} had not ended by then and may have written more"
            return self._end(reconciliation, "Warning", Reason.StateLeft, text)
        trouble = trouble_of(pods, self._ports.now)
        if not pods and not ended:
            await self._ensure_account(reconciliation, job)
            trouble = await refused_pod(self._ports.api, job["metadata"], job["spec"]["template"])
        if "Failed" in ended:
            why = "" if trouble is None else f": {trouble.message}"
            text = f"Job {name} failed ({ended['Failed'].get('reason', '')}{why}); the state in {where} is left"
            return self._end(reconciliation, "Warning", Reason.StateLeft, text)
        if trouble is not None:
            reconciliation.refused = (Reason.CleanupBlocked, f"{trouble.message}; {REMEDY}")
        return self._wait(reconciliation, where)

    async def _has_removed(self, job: Object, pods: list[Object]) -> bool:
        """Whether the cleanup itself has ended well, where a sidecar of a mesh goes on and keeps the Job from its end: it is ended now."""
        uid = job["metadata"]["uid"]
        own = [pod for pod in pods if any(owner["uid"] == uid for owner in pod["metadata"].get("ownerReferences") or [])]
        statuses = [status for pod in own for status in (pod.get("status") or {}).get("containerStatuses") or []]
        ended = [(status.get("state") or {}).get("terminated") for status in statuses if status["name"] == names.CLEANUP]
        if not any(each is not None and each.get("exitCode") == 0 for each in ended):
            return False
        metadata = job["metadata"]
        await self._ports.api.patch(api.JOB, metadata["namespace"], metadata["name"], {"spec": {"activeDeadlineSeconds": 1}})
        return True

    async def _begin(self, reconciliation: Reconciliation, name: str, where: str) -> Verdict:
        """Make the Job, of the manifest that ran."""
        resource, manifest = reconciliation.resource, reconciliation.derived.manifest
        if not _was_started(reconciliation):
            text = f"no driver of this StreamJoin was seen, so nothing in {where} was removed"
            return self._end(reconciliation, "Normal", Reason.StateLeft, text)
        reconciliation.deleting = (Reason.StateRemoving, f"Job {name} is to remove the state in {where}")
        if manifest is None:
            problem = reconciliation.derived.problem
            reconciliation.refused = (Reason.CleanupBlocked, f"{problem[1] if problem else ''}; mend the manifest, or {REMEDY}")
            return self._wait(reconciliation, where)
        config = await self._ports.api.find(api.CONFIG_MAP, resource.namespace, resource.base)
        ran = (config.get("data") or {}).get(MANIFEST_KEY) if config is not None and resource.owns(config) else None
        document = ran or json.dumps(engine_manifest(manifest), sort_keys=True)
        beside = [pod["metadata"]["name"] for pod in reconciliation.pods]
        try:
            job = await self._ports.api.apply(children.cleanup_job(resource, manifest, document, self._ports.settings, beside))
            await self._ensure_account(reconciliation, job)
        except ApiError as error:
            if "NamespaceTerminating" in error.causes:
                text = f"the namespace is being deleted, and no Job can be made in it; the state in {where} is left"
                return self._end(reconciliation, "Warning", Reason.StateLeft, text)
            if not error.refuses_object:
                raise
            reconciliation.refused = (Reason.CleanupBlocked, f"Job {name}: {error.message[:700]}; {REMEDY}")
        return self._wait(reconciliation, where)

    async def _ensure_account(self, reconciliation: Reconciliation, job: Object) -> None:
        """The Job's pod is made only once its service account is there."""
        resource, manifest = reconciliation.resource, reconciliation.derived.manifest
        account = None if manifest is None else children.cleanup_account(resource, manifest, job)
        if account is None:
            return
        found = await self._ports.api.find(api.SERVICE_ACCOUNT, resource.namespace, account["metadata"]["name"])
        if not is_current(found, account) and (found is None or resource.may_apply(found)):
            await self._ports.api.apply(account)

    async def let_go(self, reconciliation: Reconciliation) -> Verdict:
        """Remove our finalizer: Kubernetes deletes the StreamJoin, and then what it owns."""
        await self._reporter.report(reconciliation)
        await self._applier.set_finalizer(reconciliation, False)
        return Verdict(self._ports.settings.resync_seconds)

    def _wait(self, reconciliation: Reconciliation, where: str) -> Verdict:
        """Come again, or give up."""
        bound = self._ports.settings.cleanup_seconds + DRAIN_SECONDS
        if self._deleting_for(reconciliation) <= bound:
            return Verdict(self._ports.settings.start_seconds)
        why = "" if reconciliation.refused is None else f": {reconciliation.refused[1]}"
        text = f"the state was not removed within {bound:.0f} s{why}; it is left in {where}"
        return self._end(reconciliation, "Warning", Reason.StateLeft, text)

    def _end(self, reconciliation: Reconciliation, kind: str, reason: Reason, text: str) -> Verdict:
        """Nothing more is done about the state."""
        reconciliation.deleting = (reason, text)
        if kind == "Warning":
            reconciliation.refused = (reason, text)  # the condition, and its event
        else:
            reconciliation.events.append((kind, reason, text))
        return PROCEED

    def _deleting_for(self, reconciliation: Reconciliation) -> float:
        since = reconciliation.memo.deleting_since
        assert since is not None, "the first step notes it"
        return self._ports.clock() - since


def _is_wanted(reconciliation: Reconciliation) -> bool:
    """As the resource says now: it may be changed while it is being deleted."""
    return bool((reconciliation.body["spec"].get("checkpoint") or {}).get("onDelete") == "Delete")


def _was_started(reconciliation: Reconciliation) -> bool:
    """Whether there was a driver: its Deployment may be gone, what the status said of it stays."""
    stored = reconciliation.body.get("status") or {}
    return bool(stored.get("image") or stored.get("plan"))


def _where(reconciliation: Reconciliation) -> str:
    checkpoint = reconciliation.body["spec"].get("checkpoint") or {}
    return str(checkpoint.get("location") or f"PersistentVolumeClaim {checkpoint.get('persistentVolumeClaim')}")


def _component(pod: Object) -> str | None:
    component: str | None = (pod["metadata"].get("labels") or {}).get(names.COMPONENT)
    return component


def _names(pods: list[Object]) -> str:
    shown = [f"pod {pod['metadata']['name']}" for pod in pods[:3]]
    return ", ".join(shown) + (f" and {len(pods) - 3} more" if len(pods) > 3 else "")
