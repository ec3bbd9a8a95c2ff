"""The steps of a deletion: only with our finalizer, when the state is to go with the StreamJoin."""

from __future__ import annotations

import json
from datetime import datetime

from streamjoin_operator import api, children, names
from streamjoin_operator.applying import Applier
from streamjoin_operator.ports import Ports
from streamjoin_operator.reasons import Reason
from streamjoin_operator.reconciliation import PROCEED, Reconciliation, Step, Verdict
from streamjoin_operator.reporting import Reporter

DRAIN_SECONDS = 120.0
"""How long a deletion waits for the driver to stop before the state is removed all the same: commits are fenced by the removal."""


class DeletionSteps:
    """See the module."""

    def __init__(self, ports: Ports, applier: Applier, reporter: Reporter) -> None:
        self._ports, self._applier, self._reporter = ports, applier, reporter

    def all(self) -> tuple[Step, ...]:
        return (self.drain, self.clean_up, self.let_go)

    async def drain(self, reconciliation: Reconciliation) -> Verdict:
        """Stop the driver first, so that nothing is written behind the cleanup's back. Bounded."""
        if names.FINALIZER not in (reconciliation.body["metadata"].get("finalizers") or []):
            return Verdict(self._ports.settings.resync_seconds)
        base, namespace = reconciliation.resource.base, reconciliation.resource.namespace
        found = await self._ports.api.get(api.DEPLOYMENT, namespace, base)
        if found is not None and reconciliation.resource.owns(found) and not found["metadata"].get("deletionTimestamp"):
            await self._ports.api.delete(api.DEPLOYMENT, namespace, base, found["metadata"]["uid"])
        if self._deleting_for(reconciliation) < DRAIN_SECONDS:
            pods = await self._ports.api.list(api.POD, namespace, names.selector(reconciliation.resource.name, names.DRIVER))
            if pods:
                return Verdict(self._ports.settings.start_seconds)
        return PROCEED

    async def clean_up(self, reconciliation: Reconciliation) -> Verdict:
        """Have a Job remove the state, and wait for its end. Bounded."""
        resource, name = reconciliation.resource, names.cleanup_name(reconciliation.resource.name)
        where = json.dumps((reconciliation.body["spec"].get("checkpoint") or {}), sort_keys=True)
        if reconciliation.derived.manifest is None:
            reconciliation.events.append(("Warning", Reason.StateLeft, f"the manifest is not valid, so the state in {where} is left"))
            return PROCEED
        if self._deleting_for(reconciliation) > self._ports.settings.cleanup_seconds + DRAIN_SECONDS:
            reconciliation.events.append(("Warning", Reason.StateLeft, f"the cleanup took too long; the state in {where} is left"))
            return PROCEED
        job = await self._ports.api.get(api.JOB, resource.namespace, name)
        if job is None:
            # the Job reads the manifest from the ConfigMap, which only Kubernetes' garbage collection removes, after the StreamJoin
            config = await self._ports.api.find(api.CONFIG_MAP, resource.namespace, resource.base)
            if config is None:
                reconciliation.events.append(("Normal", Reason.StateRemoved, "no driver was ever started, so there is no state"))
                return PROCEED
            await self._ports.api.apply(children.cleanup_job(resource, reconciliation.manifest, self._ports.settings))
            return Verdict(self._ports.settings.start_seconds)
        ended = {condition["type"] for condition in (job.get("status") or {}).get("conditions") or [] if condition["status"] == "True"}
        if "Complete" in ended:
            reconciliation.events.append(("Normal", Reason.StateRemoved, f"the state in {where}"))
            return PROCEED
        if "Failed" in ended:
            reconciliation.events.append(("Warning", Reason.StateLeft, f"Job {name} failed; the state in {where} is left"))
            return PROCEED
        return Verdict(self._ports.settings.start_seconds)

    async def let_go(self, reconciliation: Reconciliation) -> Verdict:
        """Remove our finalizer: Kubernetes deletes the StreamJoin, and then what it owns."""
        await self._reporter.post(reconciliation)
        await self._applier.set_finalizer(reconciliation, False)
        return Verdict(self._ports.settings.resync_seconds)

    def _deleting_for(self, reconciliation: Reconciliation) -> float:
        since = datetime.fromisoformat(reconciliation.body["metadata"]["deletionTimestamp"])
        return (self._ports.wall() - since).total_seconds()
