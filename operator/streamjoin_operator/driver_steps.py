"""The steps that look at the pods of a driver and of query servers, and speak with the driver."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from streamjoin.elastic.deployment import executors_for
from streamjoin.manifest import Manifest
from streamjoin_operator import api, children, names
from streamjoin_operator.drift import Object
from streamjoin_operator.driver import Measured, Report
from streamjoin_operator.evidence import EventsOf, trouble_among, trouble_of_driver
from streamjoin_operator.executors import executors_at_work
from streamjoin_operator.facts import asked_of
from streamjoin_operator.nodes import wish_for_fewer
from streamjoin_operator.pod_templates import BLOCKS_PORT, EXCHANGE_PORT, executor_pod
from streamjoin_operator.pod_trouble import (
    EXECUTORS,
    QUERY_SERVERS,
    WATCHERS,
    Trouble,
    mismatch_of,
    refused_replica,
    running_pods,
    split_claim,
)
from streamjoin_operator.ports import Ports
from streamjoin_operator.probing import refused_pod
from streamjoin_operator.queue import Key
from streamjoin_operator.reasons import Reason
from streamjoin_operator.reconciliation import AGAIN, PROCEED, Memo, Reconciliation, Verdict

PROMPT_QUESTIONS = 3
LONGEST_PAUSE = 120.0
"""A driver that does not answer is asked so often as soon as one that starts, then after pauses that double up to this. What Kubernetes
says of its pod is seen at once all the same."""
EVENTS_SECONDS = 15.0
"""Events about a pod that is not ready are asked for so often: the API server looks through all of the namespace's."""
UNEXPLAINED_SECONDS = 30.0
"""Within so long pods that are wanted are made, and the workers of those that run call the driver; or somebody must be told."""
WISH_SECONDS = 60.0
"""A plan that was refused is asked for again after so long."""


class DriverSteps:
    """See the module."""

    def __init__(self, ports: Ports) -> None:
        self._ports = ports

    async def pods(self, reconciliation: Reconciliation) -> Verdict:
        """While the driver is not ready, see why; a suspended one is to be gone."""
        deployed = (reconciliation.deployment or {}).get("status") or {}
        suspended = reconciliation.is_suspended
        if suspended and not deployed.get("replicas"):
            return Verdict(self._ports.settings.resync_seconds)
        if reconciliation.is_driver_ready and not suspended:
            return PROCEED
        reconciliation.pods = await self._ports.api.list(
            api.POD, reconciliation.resource.namespace, names.selector(reconciliation.resource.name, names.DRIVER)
        )
        if suspended and not reconciliation.pods:
            return Verdict(self._ports.settings.resync_seconds)
        if not suspended and not reconciliation.is_paused and await self._stop_at_mismatch(reconciliation):
            return AGAIN
        if not suspended:
            reconciliation.trouble = await self._trouble(reconciliation)
        return Verdict(self._ports.settings.start_seconds)

    async def _stop_at_mismatch(self, reconciliation: Reconciliation) -> bool:
        """Note that the checkpoint is another join's: started again and again, the driver would say nothing else."""
        found, resource = reconciliation.deployment, reconciliation.resource
        if found is None:
            return False
        revision = (found["metadata"].get("annotations") or {}).get(names.REVISION, "")
        said = mismatch_of(reconciliation.pods, revision)
        if said is None or children.mismatch(found, revision) is not None:
            return False
        note = {"metadata": {"annotations": {names.MISMATCH: json.dumps({"revision": revision, "said": said})}}}
        await self._ports.api.patch(api.DEPLOYMENT, resource.namespace, resource.base, note)
        reconciliation.memo.checked_at = float("-inf")
        return True

    async def query_servers(self, reconciliation: Reconciliation) -> Verdict:
        """While fewer are ready than are wanted, see why. The join does not wait for them."""
        deployed = reconciliation.query_servers
        wanted = 0 if deployed is None else deployed["spec"].get("replicas", 1)
        if deployed is None or (deployed.get("status") or {}).get("readyReplicas", 0) >= wanted:
            return PROCEED
        resource, memo = reconciliation.resource, reconciliation.memo
        pods = await self._ports.api.list(api.POD, resource.namespace, names.selector(resource.name, names.QUERIES))
        trouble = await trouble_among(self._ports.api, self._events(memo), pods, QUERY_SERVERS, self._ports.now)
        if trouble is None and len(pods) < wanted:
            trouble = refused_replica(deployed)
        if trouble is not None:
            reconciliation.queries_trouble = Trouble(Reason.QueriesUnready, trouble.message)
        return PROCEED

    async def watcher(self, reconciliation: Reconciliation, pods: Sequence[Object]) -> None:
        """Why the sources of a join that sleeps cannot be asked. ``pods``: the watcher's."""
        memo, watcher = reconciliation.memo, reconciliation.watcher
        trouble = await trouble_among(self._ports.api, self._events(memo), pods, WATCHERS, self._ports.now)
        if trouble is None and not pods:
            trouble = refused_replica(watcher)
        reconciliation.watch_trouble = None if trouble is None else Trouble(Reason.WatcherFails, trouble.message)

    async def ask(self, reconciliation: Reconciliation) -> Verdict:
        """Read what the driver says of itself."""
        if not reconciliation.is_driver_ready:
            return Verdict(self._ports.settings.start_seconds)
        memo, resource = reconciliation.memo, reconciliation.resource
        token = await token_of(self._ports.api, (resource.namespace, resource.name), memo)
        if token is None:
            reconciliation.report = Report(problem="its token is missing")
            return Verdict(self._ports.settings.start_seconds)
        reconciliation.report = await self._ports.drivers.read(self._ports.driver_url(resource), token)
        if reconciliation.report.unauthorized:
            memo.token = None  # somebody has changed the Secret: read it next time
            memo.checked_at = float("-inf")
            reconciliation.report = replace(reconciliation.report, problem=_of_token(reconciliation.report.problem, resource.name))
        memo.idle = reconciliation.report.health.get("idleSeconds"), self._ports.clock()
        memo.unanswered = memo.unanswered + 1 if reconciliation.report.problem is not None else 0
        if memo.unanswered > PROMPT_QUESTIONS:
            pause = self._ports.settings.start_seconds * 2.0 ** min(memo.unanswered - PROMPT_QUESTIONS, 16)
            return Verdict(max(self._ports.settings.start_seconds, min(LONGEST_PAUSE, pause)))
        self._measure(memo, reconciliation.report.measured)
        plan = reconciliation.report.plan
        if not plan:
            return Verdict(self._ports.settings.start_seconds)
        if reconciliation.derived.manifest is not None:
            reconciliation.plan_unmet = _unmet(reconciliation.derived.manifest, plan)
        if plan.get("wanted") or plan.get("readyWorkers", 0) < plan.get("workers", 0):
            workers = max(plan.get("workers", 0), asked_of(plan.get("wanted") or {}))
            reconciliation.executors_trouble = await self._trouble_of_executors(reconciliation, workers)
        else:
            memo.unexplained_since = None
        return PROCEED

    async def _trouble(self, reconciliation: Reconciliation) -> Trouble | None:
        """Why the driver's pod does not run, or is not there."""
        deployment, events_of = reconciliation.deployment, self._events(reconciliation.memo)
        trouble = await self._split_claim(reconciliation)
        trouble = trouble or await trouble_of_driver(self._ports.api, events_of, reconciliation.pods, self._ports.now)
        if trouble is None and not reconciliation.pods and deployment is not None and deployment["spec"].get("replicas"):
            trouble = refused_replica(deployment)
            trouble = trouble or await refused_pod(self._ports.api, deployment["metadata"], deployment["spec"]["template"])
            if trouble is None and self._is_unexplained(reconciliation.memo):
                what = f"Deployment {deployment['metadata']['name']} has no pod, and the API server would take one"
                return Trouble(Reason.DriverPending, f"{what}; does kube-controller-manager run, or does it pause after refusals?")
        if trouble is not None or reconciliation.pods:
            reconciliation.memo.unexplained_since = None
        return trouble

    async def _trouble_of_executors(self, reconciliation: Reconciliation, workers: int) -> Trouble | None:
        """Why executors of so many workers are not there."""
        resource, derived, memo = reconciliation.resource, reconciliation.derived, reconciliation.memo
        pods = await executors_at_work(self._ports.api, resource)
        trouble = await self._split_claim(reconciliation)
        trouble = trouble or await trouble_among(self._ports.api, self._events(memo), pods, EXECUTORS, self._ports.now)
        if trouble is None and derived.manifest is not None:
            executors = executors_for(workers, derived.manifest.spec.workers.per_executor)
            is_starting = any((pod.get("status") or {}).get("phase") == "Pending" for pod in pods)
            if len(pods) < executors and not is_starting:
                pod = executor_pod(resource, derived.manifest, self._ports.settings)
                refused = await refused_pod(self._ports.api, {"name": resource.base, "namespace": resource.namespace}, pod)
                trouble = None if refused is None else Trouble(refused.reason, f"executors: {refused.message}")
            if trouble is None and not is_starting and self._is_unexplained(memo):
                return self._missing(reconciliation, derived.manifest, pods, executors)
        if trouble is not None:
            memo.unexplained_since = None
        return trouble

    def _events(self, memo: Memo) -> EventsOf:
        """Events about an object, asked for every so often."""

        async def events_of(about: Object) -> Sequence[Object]:
            uid, now = about["metadata"]["uid"], self._ports.clock()
            memo.events = {of: known for of, known in memo.events.items() if now - known[0] < EVENTS_SECONDS}
            if uid not in memo.events:
                memo.events[uid] = (now, await self._ports.api.events_of(about))
            return memo.events[uid][1]

        return events_of

    def _is_unexplained(self, memo: Memo) -> bool:
        """Whether nothing has told for long why pods that are wanted are not there."""
        now = self._ports.clock()
        memo.unexplained_since = now if memo.unexplained_since is None else memo.unexplained_since
        return now - memo.unexplained_since >= UNEXPLAINED_SECONDS

    def _missing(self, reconciliation: Reconciliation, manifest: Manifest, pods: list[Object], executors: int) -> Trouble | None:
        """Where to look for executors of which nobody says why they do not come."""
        assert reconciliation.report is not None, "it was read before"
        plan, running = reconciliation.report.plan, running_pods(pods, self._ports.now - UNEXPLAINED_SECONDS)
        ready = plan.get("readyWorkers", 0)
        if len(pods) < executors:
            account, base = _account(reconciliation.deployment), reconciliation.resource.base
            what = f"there are {len(pods)} of {executors} executors' pods, and the API server would take more"
            look = f"may the driver's service account {account} create pods? kubectl logs deployment/{base} says more"
            return Trouble(Reason.ExecutorsMissing, f"{what}; {look}")
        if executors_for(ready, manifest.spec.workers.per_executor) >= len(running):
            return None
        what = f"{len(running)} executors run, and {ready} of {plan.get('workers', 0)} workers have called the driver"
        ports = f"{EXCHANGE_PORT} to {BLOCKS_PORT}"
        look = f"does a NetworkPolicy keep them from its ports {ports}? kubectl logs {running[0]['metadata']['name']} says more"
        return Trouble(Reason.ExecutorsMissing, f"{what}; {look}")

    async def _split_claim(self, reconciliation: Reconciliation) -> Trouble | None:
        """Why pods on several nodes cannot share the checkpoint's claim."""
        resource, manifest = reconciliation.resource, reconciliation.derived.manifest
        name = None if manifest is None else manifest.spec.checkpoint.persistent_volume_claim
        if name is None:
            return None
        found = await self._ports.api.list(api.POD, resource.namespace, names.selector(resource.name))
        pods = [pod for pod in found if (pod["metadata"].get("labels") or {}).get(names.COMPONENT) in (names.DRIVER, names.EXECUTOR)]
        if len({pod["spec"].get("nodeName") for pod in pods}) < 2:
            return None
        return split_claim(pods, await self._ports.api.get(api.CLAIM, resource.namespace, name))

    def _measure(self, memo: Memo, measured: Measured | None) -> None:
        """Shed ratios and the rate of tuples, between two scrapes."""
        if measured is None:
            return
        before, now = memo.measured.counts if memo.measured is not None else {}, self._ports.clock()
        since, memo.measured_at = memo.measured_at, now
        came = sum(sum(counts) - sum(before[stream]) for stream, counts in measured.counts.items() if stream in before)
        memo.rate = came / (now - since) if before and now > since and came >= 0 else None
        ratios = {}
        for stream, (shed, accepted) in measured.counts.items():
            shed_before, accepted_before = before.get(stream, (shed, accepted))
            dropped, kept = max(0.0, shed - shed_before), max(0.0, accepted - accepted_before)
            ratios[stream] = dropped / (dropped + kept) if dropped else 0.0
        memo.shed_ratio, memo.measured = ratios, measured

    async def plan(self, reconciliation: Reconciliation) -> Verdict:
        """Have the running join take over what it can without a restart: the limits on workers and the model."""
        assert reconciliation.report is not None, "the step before stops without one"
        if reconciliation.refused is not None:
            return PROCEED
        wish, newest = wish_of(reconciliation.manifest, reconciliation.report.plan)
        if wish is None:
            reconciliation.memo.asked, reconciliation.memo.plan_refused = (), None
            return PROCEED
        reconciliation.wanted_workers = wish["workers"]
        reconciliation.plan_dropped = reconciliation.report.plan.get("dropped")
        asked = (json.dumps(wish, sort_keys=True), newest)
        if reconciliation.memo.asked == asked and self._ports.clock() - reconciliation.memo.asked_at < WISH_SECONDS:
            return PROCEED
        assert reconciliation.memo.token is not None, "the step before stops without one"
        running = int(reconciliation.report.plan.get("workers", 0))
        asks = await wish_for_fewer(wish, running, self._ports.api, self._ports.settings, reconciliation.resource)
        answer = await self._ports.drivers.put(self._ports.driver_url(reconciliation.resource), reconciliation.memo.token, asks)
        reconciliation.memo.asked, reconciliation.memo.asked_at = asked, self._ports.clock()
        reconciliation.memo.plan_refused = answer.text if answer.status in (400, 403, 422) else None
        if reconciliation.memo.plan_refused is not None and reconciliation.memo.scaler is not None:
            reconciliation.memo.scaler.autoscaler.order_failed(wish["workers"], reconciliation.memo.plan_refused)
        reconciliation.has_put = answer.status in (0, 202)
        if answer.status == 202:
            reconciliation.events.append(("Normal", Reason.PlanRequested, f"{wish['workers']} workers, model {wish['model']}"))
        if answer.status not in (200, 202):
            reconciliation.memo.asked_at -= WISH_SECONDS - self._ports.settings.poll_seconds
        return PROCEED


def _of_token(problem: str | None, name: str) -> str:
    remedy = f"where that lasts, give the annotation {names.RESTART} a new value"
    return f"{problem} of Secret {names.token_name(name)}, of which kubelet brings it a new value within minutes; {remedy}"


def _account(deployment: Object | None) -> str:
    """As whom the driver makes executors."""
    spec = (deployment or {}).get("spec") or {}
    return str(((spec.get("template") or {}).get("spec") or {}).get("serviceAccountName", "default"))


def _unmet(manifest: Manifest, plan: Object) -> str | None:
    """What the manifest asks of the plan that runs, whether or not the driver is on its way there."""
    wish, _ = wish_of(manifest, {**plan, "wanted": None, "asked": None})
    if wish is None:
        return None
    return f"{plan.get('workers')} workers run, and spec.workers and spec.scheme ask for {wish['workers']} of the model {wish['model']}"


async def token_of(client: api.Api, key: Key, memo: Memo) -> str | None:
    """The token of a StreamJoin's driver, which is read once; None: its Secret is missing. Raises ApiError."""
    if memo.token is None:
        encoded = children.secret_value(await client.get(api.SECRET, key[0], names.token_name(key[1])), "token")
        memo.token = None if encoded is None else base64.b64decode(encoded).decode()
    return memo.token


def wish_of(manifest: Manifest, plan: Object) -> tuple[dict[str, Any] | None, int]:
    """What to ask a driver for whose newest plan is outside the limits or of another model; None where it is as it should be.

    And the generation of that newest plan.
    """
    workers, model = manifest.spec.workers, manifest.spec.scheme.model
    newest = plan.get("wanted") or plan
    count = asked_of(newest)
    least = max(workers.min, min(workers.floor or 0, workers.max))
    wanted = min(max(count, least), workers.max)
    scheme = (newest.get("scheme") or {}).get("model", model)
    if wanted == count and scheme == model:
        return None, int(newest["generation"])
    return {"workers": wanted, "model": model}, int(newest["generation"])
