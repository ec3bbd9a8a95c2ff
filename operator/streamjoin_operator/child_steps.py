"""The steps that make a StreamJoin's children what they should be, in the order in which they are taken."""

from __future__ import annotations

import asyncio
import base64
import json
from dataclasses import replace

from streamjoin.elastic.deployment import executors_for
from streamjoin_operator import api, children, claims, names
from streamjoin_operator.api import ApiError
from streamjoin_operator.applying import Applier
from streamjoin_operator.budget import least_available
from streamjoin_operator.drift import Object, our_entries
from streamjoin_operator.driver_files import files_of, is_files_map
from streamjoin_operator.driver_steps import DriverSteps
from streamjoin_operator.ports import Ports
from streamjoin_operator.reasons import Reason
from streamjoin_operator.reconciliation import AGAIN, PROCEED, Reconciliation, Step, Verdict
from streamjoin_operator.resize_step import ResizeStep
from streamjoin_operator.seen import Seen
from streamjoin_operator.sleep_step import SleepStep
from streamjoin_operator.sleeping import Sleep
from streamjoin_operator.trial import image_of
from streamjoin_operator.trial_step import TrialStep
from streamjoin_operator.window_step import WindowStep

LISTED = (
    *(api.SERVICE_ACCOUNT, api.ROLE, api.ROLE_BINDING, api.CONFIG_MAP, api.SERVICE),
    *(api.BUDGET, api.NETWORK_POLICY, api.DEPLOYMENT),
)
"""Children that are compared on every check, and deleted when they are no longer wanted."""
KEPT = ("Secret", "PersistentVolumeClaim")
"""Children that go with the StreamJoin, if they go at all, and never before it."""
MISMATCH_REMEDY = (
    "restore the manifest, choose another checkpoint.location, or empty this one and give the annotation "
    f"{names.RESTART} a new value; the driver is not started before"
)
KIND_SECONDS = 600.0
"""How long an answer about which kinds the cluster knows is believed."""


class ChildSteps:
    """See the module."""

    def __init__(self, ports: Ports, seen: Seen, applier: Applier, driver_steps: DriverSteps) -> None:
        self._ports, self._seen, self._applier = ports, seen, applier
        self.resizing, self._window, self._trial = ResizeStep(ports), WindowStep(ports), TrialStep(ports, applier)
        self.sleep = SleepStep(ports, applier, driver_steps)
        self._has_monitor: tuple[float, bool] = (float("-inf"), False)

    def all(self) -> tuple[Step, ...]:
        return (
            *(self.observe, self.secrets, self.hold_back, self.sleep.decide, self.access, self.token, self.claim, self.finalizer),
            *(self.resizing.consider, self._window.wait, self._trial.files, self._trial.trial),
            *(self.begin, self.network, self.budget, self.monitor, self.sleep.watch, self.driver, self.record, self._trial.done),
            *(self.query_servers, self.prune, self.checked, self.resizing.hold),
        )

    async def observe(self, reconciliation: Reconciliation) -> Verdict:
        """Read the children, when a check is due."""
        if not reconciliation.checking:
            return PROCEED
        namespace, selector = reconciliation.resource.namespace, names.selector(reconciliation.resource.name)
        monitors = [api.POD_MONITOR] if await self._monitors_are_known() else []
        found, trials = await asyncio.gather(
            asyncio.gather(*(self._ports.api.list(kind, namespace, selector) for kind in (*LISTED, *monitors))),
            self._ports.api.list(api.POD, namespace, names.selector(reconciliation.resource.name, names.TRIAL)),
        )
        reconciliation.trials = [pod for pod in trials if reconciliation.resource.controls(pod)]
        for kind, objects in zip((*LISTED, *monitors), found, strict=True):
            for observed in objects:
                # items of a list have neither
                body = {**observed, "apiVersion": kind.group_version, "kind": kind.kind}
                reconciliation.observed[kind.kind, observed["metadata"]["name"]] = body
        reconciliation.memo.record = reconciliation.observed.get(("ConfigMap", reconciliation.resource.base))
        reconciliation.deployment = reconciliation.observed.get(("Deployment", reconciliation.resource.base))
        reconciliation.query_servers = reconciliation.observed.get(("Deployment", names.queries_name(reconciliation.resource.name)))
        reconciliation.watcher = reconciliation.observed.get(("Deployment", names.watcher_name(reconciliation.resource.name)))
        for deployment in (reconciliation.deployment, reconciliation.query_servers, reconciliation.watcher):
            if deployment is not None:
                self._seen.saw_deployment(deployment)
        return PROCEED

    async def secrets(self, reconciliation: Reconciliation) -> Verdict:
        """What driver and workers show each other: made once, kept by its Secret alone. Certificates are the user's, or cert-manager's."""
        if not reconciliation.checking:
            return PROCEED
        resource, tls = reconciliation.resource, reconciliation.manifest.spec.security.tls
        exchange, verdict = await self._secret(reconciliation, names.exchange_name(resource.name), "secret")
        if verdict.after is not None:
            return verdict
        found = None if tls is None else await self._ports.api.get(api.SECRET, resource.namespace, tls.secret_name)
        problem = children.tls_problem(resource, reconciliation.manifest, found)
        if problem is not None:
            reconciliation.refused = (Reason.SecretUnusable, problem)
            return Verdict(self._ports.settings.poll_seconds)
        reconciliation.memo.mounted = children.mounted(exchange)
        reconciliation.resource = replace(resource, mounted=reconciliation.memo.mounted)
        return PROCEED

    async def _secret(self, reconciliation: Reconciliation, name: str, key: str) -> tuple[Object, Verdict]:
        """A Secret of ours, which is made where there is none."""
        found = await self._ports.api.get(api.SECRET, reconciliation.resource.namespace, name)
        if found is not None:
            reconciliation.observed["Secret", name] = found
        desired = children.secret(reconciliation.resource, name, key, found)
        return desired, await self._applier.apply(reconciliation, desired)

    async def hold_back(self, reconciliation: Reconciliation) -> Verdict:
        """A change that does not fit the checkpoint is not made."""
        if not reconciliation.checking:
            return PROCEED
        refusal = children.refusal_of(children.change_of(reconciliation.resource, reconciliation.manifest, reconciliation.memo.record))
        if refusal is None:
            return PROCEED
        reconciliation.refused = (Reason.CheckpointMismatch, refusal)
        return Verdict(self._ports.settings.resync_seconds)

    async def access(self, reconciliation: Reconciliation) -> Verdict:
        resource, manifest = reconciliation.resource, reconciliation.manifest
        return await self._applier.apply(
            reconciliation,
            *children.service_accounts(resource, manifest),
            children.role(resource, manifest, self._ports.settings),
            children.role_binding(resource),
        )

    async def token(self, reconciliation: Reconciliation) -> Verdict:
        """The plan API's token: made once, kept by its Secret alone."""
        if not reconciliation.checking and reconciliation.memo.token is not None:
            return PROCEED
        secret, verdict = await self._secret(reconciliation, names.token_name(reconciliation.resource.name), "token")
        reconciliation.memo.token = base64.b64decode(secret["data"]["token"]).decode()
        return verdict

    async def claim(self, reconciliation: Reconciliation) -> Verdict:
        """A claim that the operator is to make is made once: most of it cannot be changed. It is owned if it goes with the join."""
        memo, resource, manifest = reconciliation.memo, reconciliation.resource, reconciliation.manifest
        desired = claims.claim(resource, manifest)
        if desired is None:
            memo.claim_goes, memo.claim_trouble = False, None
            return PROCEED
        if not reconciliation.checking:
            return PROCEED
        name = desired["metadata"]["name"]
        found = await self._ports.api.get(api.CLAIM, resource.namespace, name)
        is_ours = found is None or (bool(our_entries(found)) and _is_of(found, resource.name))
        memo.claim_goes = is_ours and "ownerReferences" in desired["metadata"]
        memo.claim_trouble = None
        if not is_ours or found is None:
            return PROCEED if not is_ours else await self._applier.apply(reconciliation, desired)
        reconciliation.observed["PersistentVolumeClaim", name] = found
        as_it_is = claims.claim(resource, manifest, found, enlarge=False) or desired
        desired = claims.claim(resource, manifest, found) or desired
        refusal: str | None = None
        try:
            if desired["spec"] != as_it_is["spec"]:
                await self._ports.api.try_to_apply(desired)
        except ApiError as error:
            if not error.refuses_object:
                raise
            desired, refusal = as_it_is, error.message
        memo.claim_trouble = claims.trouble_of_claim(manifest, found, refusal)
        return await self._applier.apply(reconciliation, desired)

    async def finalizer(self, reconciliation: Reconciliation) -> Verdict:
        """Ours is there exactly when the state goes with the StreamJoin and only a Job can remove it."""
        wanted = reconciliation.manifest.spec.checkpoint.on_delete == "Delete" and not reconciliation.memo.claim_goes
        await self._applier.set_finalizer(reconciliation, wanted)
        return PROCEED

    async def begin(self, reconciliation: Reconciliation) -> Verdict:
        """Before there is a driver, its record is there: a name that is somebody else's is noticed, and a change that would not fit."""
        found = reconciliation.memo.record
        if found is not None and reconciliation.resource.may_apply(found):
            return PROCEED
        return await self.record(reconciliation)

    async def record(self, reconciliation: Reconciliation) -> Verdict:
        """What runs now, and in the same write what the change to it took."""
        if not reconciliation.checking or reconciliation.memo.waiting is not None:
            return PROCEED
        resource, manifest, before = reconciliation.resource, reconciliation.manifest, reconciliation.memo.record
        change = children.change_of(resource, manifest, before)
        files = reconciliation.files(self._ports.settings)
        verdict = await self._applier.apply(reconciliation, children.record(resource, manifest, change, files))
        noted = None if before is None else (before["metadata"].get("annotations") or {}).get(names.CHANGE)
        if change is not None and json.dumps(change, sort_keys=True) != noted:
            reason = {"Ignored": Reason.ChangeIgnored, "Live": Reason.ChangeLive}.get(change["class"], Reason.ChangeRestart)
            reconciliation.events.append(("Normal", Reason.RestartRequested if not change["fields"] else reason, change["message"]))
        return verdict

    async def network(self, reconciliation: Reconciliation) -> Verdict:
        resource, manifest, settings = reconciliation.resource, reconciliation.manifest, self._ports.settings
        policies = children.network_policies(resource, manifest) if settings.network_policy else ()
        stands_by = manifest.spec.driver.standby or reconciliation.stands_by
        return await self._applier.apply(reconciliation, children.service(resource, settings, stands_by=stands_by), *policies)

    async def budget(self, reconciliation: Reconciliation) -> Verdict:
        """Follows the number of executors."""
        budget = self._wanted_budget(reconciliation)
        wanted = None if budget is None else budget["spec"]["minAvailable"]
        if not reconciliation.checking and reconciliation.memo.budget != wanted:
            reconciliation.memo.checked_at = float("-inf")
            return AGAIN  # with a check
        reconciliation.memo.budget = wanted
        return PROCEED if budget is None else await self._applier.apply(reconciliation, budget)

    def _wanted_budget(self, reconciliation: Reconciliation) -> Object | None:
        if reconciliation.is_suspended:
            return None
        stored, memo = reconciliation.body.get("status") or {}, reconciliation.memo
        workers = (stored.get("plan") or {}).get("tasks") or reconciliation.derived.workers
        planned = executors_for(workers, reconciliation.manifest.spec.workers.per_executor) * (2 if reconciliation.stands_by else 1)
        there = (stored.get("cost") or {}).get("executors")
        now = self._ports.clock()
        memo.short_since = None if there is None or there >= planned else now if memo.short_since is None else memo.short_since
        short_seconds = 0.0 if memo.short_since is None else now - memo.short_since
        return children.disruption_budget(reconciliation.resource, least_available(planned, there, short_seconds))

    async def monitor(self, reconciliation: Reconciliation) -> Verdict:
        if not reconciliation.checking:
            return PROCEED
        reconciliation.memo.has_monitor = await self._monitors_are_known()
        if not reconciliation.memo.has_monitor:
            return PROCEED
        monitor = children.pod_monitor(reconciliation.resource, reconciliation.manifest, self._ports.settings)
        return await self._applier.apply(reconciliation, monitor)

    async def _monitors_are_known(self) -> bool:
        if self._ports.settings.pod_monitor == "off":
            return False
        asked, known = self._has_monitor
        if self._ports.clock() - asked > KIND_SECONDS:
            known = await self._ports.api.serves(api.POD_MONITOR)
            self._has_monitor = (self._ports.clock(), known)
        return known

    async def driver(self, reconciliation: Reconciliation) -> Verdict:
        """Its Deployment. Where somebody changes or deletes that, a check is due."""
        if not reconciliation.checking:
            return PROCEED
        desired, before = reconciliation.driver(self._ports.settings), Sleep.of(reconciliation.deployment)
        verdict = await self._applier.apply(reconciliation, desired)
        reconciliation.tell_woken(before)
        said = children.mismatch(reconciliation.deployment, desired["metadata"]["annotations"][names.REVISION])
        if said is None or verdict.after is not None or reconciliation.is_suspended:
            return verdict
        reconciliation.refused = (Reason.CheckpointOfAnother, f"{said}; {MISMATCH_REMEDY}")
        return Verdict(self._ports.settings.resync_seconds)

    async def query_servers(self, reconciliation: Reconciliation) -> Verdict:
        """Of the driver's image, so that both read and write the checkpoint alike; their token is made once, and is no other's."""
        wanted = self._wanted_servers(reconciliation) if reconciliation.checking else []
        if not wanted:
            return PROCEED
        _, verdict = await self._secret(reconciliation, names.queries_name(reconciliation.resource.name), "token")
        return verdict if verdict.after is not None else await self._applier.apply(reconciliation, *wanted)

    def _wanted_servers(self, reconciliation: Reconciliation) -> list[Object]:
        settings = self._ports.settings
        assert reconciliation.deployment is not None, "the driver's step applies it"
        image = image_of(reconciliation.deployment["spec"]["template"])
        return children.query_servers(reconciliation.resource, reconciliation.manifest, settings, image)

    async def prune(self, reconciliation: Reconciliation) -> Verdict:
        """Delete children that are no longer wanted."""
        if not reconciliation.checking:
            return PROCEED
        await self._prune_files(reconciliation)
        base, executors = reconciliation.resource.base, names.executors_name(reconciliation.resource.name)
        wanted = {(desired["kind"], desired["metadata"]["name"]) for desired in self._wanted_servers(reconciliation)}
        wanted |= {("ServiceAccount", executors), ("ConfigMap", names.ledger_name(reconciliation.resource.name))}
        wanted |= {(kind.kind, base) for kind in (*LISTED, api.POD_MONITOR) if kind not in (api.BUDGET, api.NETWORK_POLICY)}
        if reconciliation.is_watched:
            wanted.add(("Deployment", names.watcher_name(reconciliation.resource.name)))
        if self._wanted_budget(reconciliation) is not None:
            wanted.add(("PodDisruptionBudget", base))
        if self._ports.settings.network_policy:
            wanted |= {("NetworkPolicy", base), ("NetworkPolicy", executors)}
        for (kind, name), observed in reconciliation.observed.items():
            is_wanted = kind in KEPT or (kind, name) in wanted or is_files_map(reconciliation.resource, observed)
            if not is_wanted and reconciliation.resource.owns(observed):
                await self._ports.api.delete(api.KINDS[kind], reconciliation.resource.namespace, name, observed["metadata"]["uid"])
                reconciliation.events.append(("Normal", Reason.Pruned, f"{kind} {name}"))
        return PROCEED

    async def _prune_files(self, reconciliation: Reconciliation) -> None:
        """Of the files of drivers, those that no pod template and no pod reads any more."""
        resource, deployment = reconciliation.resource, reconciliation.deployment
        read: set[str | None] = set() if deployment is None else {files_of(deployment["spec"]["template"])}
        maps = [found for found in reconciliation.observed.values() if is_files_map(resource, found)]
        if all(found["metadata"]["name"] in read for found in maps):
            return
        pods = await self._ports.api.list(api.POD, resource.namespace, names.selector(resource.name, names.DRIVER))
        read |= {files_of(pod) for pod in (*pods, *reconciliation.trials)}
        for found in maps:
            name = found["metadata"]["name"]
            if name not in read:
                await self._ports.api.delete(api.CONFIG_MAP, resource.namespace, name, found["metadata"]["uid"])
                reconciliation.events.append(("Normal", Reason.Pruned, f"ConfigMap {name}"))

    async def checked(self, reconciliation: Reconciliation) -> Verdict:
        """All children are as they should be."""
        if reconciliation.checking:
            reconciliation.memo.checked_for = reconciliation.check_key
            reconciliation.memo.checked_at = self._ports.clock()
        return PROCEED


def _is_of(claim: Object, name: str) -> bool:
    """Whether a claim was made for the StreamJoin of that name: several may share one, each in a directory of its own."""
    return bool((claim["metadata"].get("labels") or {}).get(names.NAME) == name)
