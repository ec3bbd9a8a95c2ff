"""The one function that every handler and timer calls: observe a StreamJoin, compare, act in small named steps, report.

It is level-triggered: what it does follows from what is there and never from what happened. What it remembers between calls (``Memo``) only
saves requests; an operator that starts anew, or is killed between any two steps, goes on from what the API server has.

Always holds: each step is harmless when done twice, and each says whether to proceed or to wait; the status is written last, and only when
it differs; nothing is written when nothing changed.
"""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Protocol

from streamjoin.elastic.decision import Kind
from streamjoin.elastic.deployment import executors_for
from streamjoin.elastic.sample import Sample
from streamjoin.elastic.settings import Mode, Rule
from streamjoin.job import Job, compile_job
from streamjoin.manifest import Manifest, check
from streamjoin.scheme.statistics import SideStatistics, Statistics
from streamjoin_operator import api as kinds
from streamjoin_operator import children, cost, names, status
from streamjoin_operator.api import Api, ApiError
from streamjoin_operator.autoscale import WRITE_SECONDS, Applied, Autoscaler, event_of, settings_of
from streamjoin_operator.changes import CLAIM_PATH
from streamjoin_operator.children import Resource
from streamjoin_operator.drift import Object, is_current
from streamjoin_operator.driver import Answered, Measured, Report
from streamjoin_operator.instants import instant
from streamjoin_operator.measurement import Distrusted, Scrapes, Series, measure
from streamjoin_operator.memory import WorkerMemory, worker_memory
from streamjoin_operator.queue import Key
from streamjoin_operator.reasons import Reason
from streamjoin_operator.settings import Settings

LISTED = (
    *(kinds.SERVICE_ACCOUNT, kinds.ROLE, kinds.ROLE_BINDING, kinds.CONFIG_MAP, kinds.SERVICE),
    *(kinds.BUDGET, kinds.NETWORK_POLICY, kinds.DEPLOYMENT),
)
"""Children that are compared on every check, and deleted when they are no longer wanted."""
UNLISTED = ("Deployment", "Secret", "PersistentVolumeClaim")
"""Children that are read one by one."""
KEPT = ("Secret", "PersistentVolumeClaim")
"""Children that go with the StreamJoin, if they go at all, and never before it."""
TOLD = (
    *(("Ready", Reason.JoinRunning), ("Ready", Reason.Suspending), ("Ready", Reason.Suspended)),
    ("Progressing", Reason.Rescaling),
)
"""Conditions and reasons that are worth an event though nothing is wrong."""
KIND_SECONDS = 600.0
"""How long an answer about which kinds the cluster knows is believed."""
REFUSED_SECONDS = 60.0
"""What the API server refuses is tried again after so long: a quota or an admission rule may have changed."""
WISH_SECONDS = 60.0
"""A plan that was refused is asked for again after so long."""
DRAIN_SECONDS = 120.0
"""How long a deletion waits for the driver to stop before the state is removed all the same: commits are fenced by the removal."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a step says: proceed to the next one, or wait and come again."""

    after: float | None = None
    """None: proceed."""


PROCEED = Verdict()


@dataclass(frozen=True, slots=True)
class Derived:
    """What follows from a manifest alone."""

    manifest: Manifest | None
    problem: tuple[Reason, str] | None = None
    job: Job | None = None
    memory: WorkerMemory | None = None
    workers: int = 0
    """The first deployment's."""
    overfull: str | None = None
    """Why these are not expected to hold what comes."""


@dataclass
class Memo:
    """What saves requests; to lose it costs a few."""

    derived_from: tuple[Any, ...] = ()
    derived: Derived = field(default_factory=lambda: Derived(None))
    checked_for: tuple[Any, ...] = ()
    checked_at: float = float("-inf")
    config: Object | None = None
    """The ConfigMap as it was last seen."""
    token: str | None = None
    mounted: str = ""
    """Of the Secrets that all pods mount (``children.mounted``)."""
    measured: Measured | None = None
    shed_ratio: dict[str, float] = field(default_factory=dict)
    asked: tuple[Any, ...] = ()
    asked_at: float = float("-inf")
    plan_refused: str | None = None
    wrote_at: float = float("-inf")
    budget: int | None = None
    """How many executors must stay, by the disruption budget."""
    scaler: Autoscaler | None = None
    ledger_version: str | None = None
    """Of the ConfigMap with the ledger; None: there is none."""
    scrapes: Scrapes | None = None
    """Of the driver's own metrics, where no Prometheus is asked."""


@dataclass
class Pass:
    """One call's observations."""

    resource: Resource
    body: Object
    memo: Memo
    derived: Derived
    deployment: Object | None = None
    observed: dict[tuple[str, str], Object] = field(default_factory=dict)
    checking: bool = False
    """Whether children are compared this time."""
    refused: tuple[Reason, str] | None = None
    pods: list[Object] = field(default_factory=list)
    executors_pending: str | None = None
    report: Report | None = None
    wanted_workers: int | None = None
    has_put: bool = False
    """Whether the driver has been given a plan, so that the one that was read is the newest no more."""
    events: list[tuple[str, Reason, str]] = field(default_factory=list)

    @property
    def is_suspended(self) -> bool:
        """As the resource says, also where the rest of it is refused."""
        return self.body["spec"].get("suspend") is True

    @property
    def manifest(self) -> Manifest:
        assert self.derived.manifest is not None, "the first step stops without one"
        return self.derived.manifest


class Drivers(Protocol):
    """What is needed of ``driver.DriverClient``."""

    async def read(self, url: str, token: str) -> Report: ...

    async def put(self, url: str, token: str, wish: dict[str, Any]) -> Answered: ...

    async def statistics(self, url: str, token: str) -> dict[str, Any] | None: ...


class Prometheus(Protocol):
    """What is needed of ``prometheus.PrometheusClient``."""

    async def read(self, url: str, namespace: str, name: str, seconds: float) -> list[Series] | Distrusted: ...


Step = Callable[[Pass], Awaitable[Verdict]]


class Reconciler:
    """See the module. All in one event loop; the queue sees to it that a StreamJoin is reconciled by one call at a time."""

    def __init__(
        self,
        api: Api,
        drivers: Drivers,
        settings: Settings,
        prometheus: Prometheus,
        *,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], datetime] = lambda: datetime.now(UTC),
        at: Callable[[str], None] = lambda step: None,
    ) -> None:
        """``at`` hears the name of each step before it is done; tests raise there."""
        self._api, self._drivers, self._settings, self._prometheus = api, drivers, settings, prometheus
        self._clock, self._wall, self._at = clock, wall, at
        self._bodies: dict[Key, Object] = {}
        self._deployments: dict[Key, Object] = {}
        self._memos: dict[Key, Memo] = {}
        self._watched: dict[Key, Object] = {}
        """As the watch has last shown them."""
        self._suspected: dict[Key, Object] = {}
        self._suspected_gone: set[Key] = set()
        self._has_monitor: tuple[float, bool] = (float("-inf"), False)

    def saw(self, body: Object, *, is_watched: bool = False) -> Key:
        """A StreamJoin as a watch, or an answer, shows it. Older versions than the one that is known are passed over."""
        key = (body["metadata"]["namespace"], body["metadata"]["name"])
        if is_watched:
            self._watched[key] = body
        if _is_newer(body, self._bodies.get(key)):
            self._bodies[key] = body
        return key

    def audit(self, found: Sequence[Object]) -> tuple[list[Key], list[Key]]:
        """Compare what there is with what the watch has shown: which StreamJoins it has missed, and of which it has missed the end.

        Only what it had missed at the audit before too counts: events take a moment.
        """
        there = {(body["metadata"]["namespace"], body["metadata"]["name"]): body for body in found}
        behind = {key: body for key, body in there.items() if not _is_newer(self._watched.get(key, _NEVER), body)}
        gone = set(self._bodies) - set(there)
        missed = [key for key, body in behind.items() if not _is_newer(self._watched.get(key, _NEVER), self._suspected.get(key, body))]
        missed = [key for key in missed if key in self._suspected]
        ended = [key for key in gone if key in self._suspected_gone]
        for key in missed:
            self.saw(behind[key])
        self._suspected, self._suspected_gone = behind, gone
        return missed, ended

    def saw_deployment(self, body: Object) -> Key | None:
        """A Deployment as a watch shows it; the StreamJoin that it is of, if it is of any."""
        metadata = body["metadata"]
        name = (metadata.get("labels") or {}).get(names.NAME)
        if name is None or metadata["name"] != names.base_name(name):
            return None
        key = (metadata["namespace"], name)
        if _is_newer(body, self._deployments.get(key)):
            before = self._deployments.get(key)
            self._deployments[key] = body
            if before is None or before["metadata"].get("generation") != metadata.get("generation"):
                self._memo(key).checked_at = float("-inf")  # its spec was changed, perhaps not by us
        return key

    def lost_deployment(self, body: Object) -> Key | None:
        """A Deployment was deleted."""
        key = self.saw_deployment(body)
        if key is not None:
            self._deployments.pop(key, None)
            self._memo(key).checked_at = float("-inf")
        return key

    def forget(self, key: Key) -> None:
        """A StreamJoin is gone; Kubernetes deletes its children."""
        for known in (self._bodies, self._deployments, self._memos, self._watched):
            known.pop(key, None)

    @property
    def known(self) -> int:
        return len(self._bodies)

    def phases(self) -> dict[str, int]:
        """How many StreamJoins are in each phase."""
        counts: dict[str, int] = {}
        for body in self._bodies.values():
            phase = (body.get("status") or {}).get("phase", "Unknown")
            counts[phase] = counts.get(phase, 0) + 1
        return counts

    def costs(self) -> dict[Key, cost.Cost]:
        """What each StreamJoin has come to by now."""
        now = self._wall().timestamp()
        found = {key: (body.get("status") or {}).get("cost") for key, body in list(self._bodies.items())}
        costs = {key: cost.known(value) for key, value in found.items()}
        return {key: value.until(now) for key, value in costs.items() if value is not None}

    def samples_at(self) -> dict[Key, float]:
        """When the newest sample of each StreamJoin was taken that could be trusted, in seconds since 1970."""
        found = {key: memo.scaler for key, memo in list(self._memos.items())}
        return {key: scaler.trusted_at for key, scaler in found.items() if scaler is not None and scaler.trusted_at is not None}

    def _memo(self, key: Key) -> Memo:
        return self._memos.setdefault(key, Memo())

    async def reconcile(self, key: Key) -> float | None:
        """Bring one StreamJoin closer to what it should be. Returns after how many seconds to come again; None: when something happens.

        Raises ApiError where the API server does not answer as it should.
        """
        body = self._bodies.get(key)
        if body is None:
            return None
        memo = self._memo(key)
        resource = replace(Resource.of(body), mounted=memo.mounted)
        now = Pass(resource, body, memo, self._derive(resource, body, memo), self._deployments.get(key))
        if body["metadata"].get("deletionTimestamp"):
            return await self._take((self._drain, self._clean_up, self._let_go), now)
        if now.is_suspended and memo.scaler is not None:
            memo.scaler.suspend(self._wall().timestamp())
        now.checking = self._is_check_due(now)
        after = await self._take(self._steps(), now)
        await self._report(now)
        return after

    def _steps(self) -> Sequence[Step]:
        return (
            *(self._validate, self._observe, self._secrets, self._hold_back, self._finalizer, self._access, self._token, self._claim),
            *(self._config, self._network, self._budget, self._monitor, self._driver, self._prune, self._checked, self._pods),
            *(self._ask, self._plan, self._scale),
        )

    async def _take(self, steps: Sequence[Step], now: Pass) -> float | None:
        """The steps in order, up to the first that says wait."""
        for step in steps:
            self._at(step.__name__.strip("_"))
            verdict = await step(now)
            if verdict.after is not None:
                return verdict.after
        self._at("report")
        return self._settings.poll_seconds

    def _derive(self, resource: Resource, body: Object, memo: Memo) -> Derived:
        source = (resource.uid, resource.generation)
        if memo.derived_from != source:
            memo.derived, memo.derived_from = derive(body), source
        return memo.derived

    def _is_check_due(self, now: Pass) -> bool:
        memo, resource = now.memo, now.resource
        return (
            memo.checked_for != (resource.uid, resource.generation, resource.restart)
            or now.deployment is None
            or self._clock() - memo.checked_at >= self._settings.resync_seconds
        )

    # The steps, in their order.

    async def _validate(self, now: Pass) -> Verdict:
        """What the manifest says must be usable; what runs under an earlier one goes on."""
        if now.derived.problem is None:
            return PROCEED
        now.refused = now.derived.problem
        await self._heed_suspend(now)
        if now.deployment is not None:
            await self._pods(now)
            await self._ask(now)
        return Verdict(self._settings.resync_seconds)

    async def _observe(self, now: Pass) -> Verdict:
        """Read the children, when a check is due."""
        if not now.checking:
            return PROCEED
        namespace, selector = now.resource.namespace, names.selector(now.resource.name)
        monitors = [kinds.POD_MONITOR] if await self._monitors_are_known() else []
        found = await asyncio.gather(*(self._api.list(kind, namespace, selector) for kind in (*LISTED, *monitors)))
        for kind, objects in zip((*LISTED, *monitors), found, strict=True):
            for observed in objects:
                # items of a list have neither
                body = {**observed, "apiVersion": kind.version, "kind": kind.kind}
                now.observed[kind.kind, observed["metadata"]["name"]] = body
        now.memo.config = now.observed.get(("ConfigMap", now.resource.base))
        now.deployment = now.observed.get(("Deployment", now.resource.base))
        if now.deployment is not None:
            self.saw_deployment(now.deployment)
        return PROCEED

    async def _secrets(self, now: Pass) -> Verdict:
        """What driver and workers show each other: made once, kept by its Secret alone. Certificates are the user's, or cert-manager's."""
        if not now.checking:
            return PROCEED
        resource, tls = now.resource, now.manifest.spec.security.tls
        exchange, verdict = await self._secret(now, names.exchange_name(resource.name), "secret")
        if verdict.after is not None:
            return verdict
        found = None if tls is None else await self._api.get(kinds.SECRET, resource.namespace, tls.secret_name)
        problem = children.tls_problem(resource, now.manifest, found)
        if problem is not None:
            now.refused = (Reason.SecretUnusable, problem)
            await self._heed_suspend(now)
            await self._pods(now)
            await self._ask(now)
            return Verdict(self._settings.poll_seconds)
        now.memo.mounted = children.mounted(exchange, found)
        now.resource = replace(resource, mounted=now.memo.mounted)
        return PROCEED

    async def _secret(self, now: Pass, name: str, key: str) -> tuple[Object, Verdict]:
        """A Secret of ours, which is made where there is none."""
        found = await self._api.get(kinds.SECRET, now.resource.namespace, name)
        if found is not None:
            now.observed["Secret", name] = found
        desired = children.secret(now.resource, name, key, found)
        return desired, await self._apply(now, desired)

    async def _hold_back(self, now: Pass) -> Verdict:
        """A change that does not fit the checkpoint is not made."""
        if not now.checking:
            return PROCEED
        refusal = children.refusal_of(children.change_of(now.resource, now.manifest, now.memo.config))
        if refusal is None:
            return PROCEED
        now.refused = (Reason.CheckpointMismatch, refusal)
        await self._heed_suspend(now)
        await self._pods(now)
        await self._ask(now)
        return Verdict(self._settings.resync_seconds)

    async def _finalizer(self, now: Pass) -> Verdict:
        """Ours is there exactly when the state goes with the StreamJoin and only a Job can remove it."""
        wanted = now.manifest.spec.checkpoint.on_delete == "Delete" and children.claim(now.resource, now.manifest) is None
        await self._set_finalizer(now, wanted)
        return PROCEED

    async def _access(self, now: Pass) -> Verdict:
        return await self._apply(
            now, children.service_account(now.resource), children.role(now.resource), children.role_binding(now.resource)
        )

    async def _token(self, now: Pass) -> Verdict:
        """The plan API's token: made once, kept by its Secret alone."""
        if not now.checking and now.memo.token is not None:
            return PROCEED
        secret, verdict = await self._secret(now, names.token_name(now.resource.name), "token")
        now.memo.token = base64.b64decode(secret["data"]["token"]).decode()
        return verdict

    async def _claim(self, now: Pass) -> Verdict:
        """A claim that the operator is to make is made once: most of it cannot be changed."""
        desired = children.claim(now.resource, now.manifest)
        if desired is None or not now.checking:
            return PROCEED
        found = await self._api.get(kinds.CLAIM, now.resource.namespace, desired["metadata"]["name"])
        if found is not None:
            return PROCEED
        return await self._apply(now, desired)

    async def _config(self, now: Pass) -> Verdict:
        """The driver's files, and with them, in the same write, what the change takes."""
        if not now.checking:
            return PROCEED
        before = now.memo.config
        change = children.change_of(now.resource, now.manifest, before)
        verdict = await self._apply(now, children.config_map(now.resource, now.manifest, change, self._settings))
        noted = None if before is None else (before["metadata"].get("annotations") or {}).get(names.CHANGE)
        if change is not None and json.dumps(change, sort_keys=True) != noted:
            reason = {"Ignored": Reason.ChangeIgnored, "Live": Reason.ChangeLive}.get(change["class"], Reason.ChangeRestart)
            now.events.append(("Normal", Reason.RestartRequested if not change["fields"] else reason, change["message"]))
        return verdict

    async def _network(self, now: Pass) -> Verdict:
        policies = children.network_policies(now.resource, now.manifest) if self._settings.network_policy else ()
        return await self._apply(now, children.service(now.resource), *policies)

    async def _budget(self, now: Pass) -> Verdict:
        """Follows the number of executors."""
        budget = self._wanted_budget(now)
        wanted = None if budget is None else budget["spec"]["minAvailable"]
        if not now.checking and now.memo.budget != wanted:
            now.memo.checked_at = float("-inf")
            return Verdict(0.0)  # from the start, with a check
        now.memo.budget = wanted
        return PROCEED if budget is None else await self._apply(now, budget)

    def _wanted_budget(self, now: Pass) -> Object | None:
        if now.manifest.spec.suspend:
            return None
        stored = now.body.get("status") or {}
        workers = (stored.get("plan") or {}).get("tasks") or now.derived.workers
        return children.disruption_budget(now.resource, executors_for(workers, now.manifest.spec.workers.per_executor))

    async def _monitor(self, now: Pass) -> Verdict:
        if not now.checking or not await self._monitors_are_known():
            return PROCEED
        return await self._apply(now, children.pod_monitor(now.resource))

    async def _monitors_are_known(self) -> bool:
        if self._settings.pod_monitor == "off":
            return False
        asked, known = self._has_monitor
        if self._clock() - asked > KIND_SECONDS:
            known = await self._api.serves(kinds.POD_MONITOR)
            self._has_monitor = (self._clock(), known)
        return known

    async def _driver(self, now: Pass) -> Verdict:
        assert now.derived.memory is not None, "the first step stops without it"
        desired = children.deployment(now.resource, now.manifest, now.derived.memory, self._settings, now.deployment)
        return await self._apply(now, desired)

    async def _prune(self, now: Pass) -> Verdict:
        """Delete children that are no longer wanted."""
        if not now.checking:
            return PROCEED
        base, unwanted = now.resource.base, set()
        kept = {"ConfigMap": names.ledger_name(now.resource.name), "NetworkPolicy": names.executors_name(now.resource.name)}
        if self._wanted_budget(now) is None:
            unwanted.add("PodDisruptionBudget")
        if not self._settings.network_policy:
            unwanted.add("NetworkPolicy")
        for (kind, name), observed in now.observed.items():
            if kind not in KEPT and (name not in (base, kept.get(kind)) or kind in unwanted) and _is_ours(observed, now.resource):
                await self._api.delete(kinds.KINDS[kind], now.resource.namespace, name, observed["metadata"]["uid"])
                now.events.append(("Normal", Reason.Pruned, f"{kind} {name}"))
        return PROCEED

    async def _checked(self, now: Pass) -> Verdict:
        """All children are as they should be."""
        if now.checking:
            now.memo.checked_for = (now.resource.uid, now.resource.generation, now.resource.restart)
            now.memo.checked_at = self._clock()
        return PROCEED

    async def _pods(self, now: Pass) -> Verdict:
        """While the driver is not ready, see why; a suspended one is to be gone."""
        deployed = (now.deployment or {}).get("status") or {}
        suspended = now.is_suspended
        if suspended and not deployed.get("replicas"):
            return Verdict(self._settings.resync_seconds)
        if _is_ready(now.deployment) and not suspended:
            return PROCEED
        now.pods = await self._api.list(kinds.POD, now.resource.namespace, names.selector(now.resource.name, names.DRIVER))
        if suspended and not now.pods:
            return Verdict(self._settings.resync_seconds)
        return Verdict(self._settings.start_seconds)

    async def _ask(self, now: Pass) -> Verdict:
        """Read what the driver says of itself."""
        if not _is_ready(now.deployment):
            return Verdict(self._settings.start_seconds)
        memo, resource = now.memo, now.resource
        if memo.token is None:
            found = await self._api.get(kinds.SECRET, resource.namespace, names.token_name(resource.name))
            encoded = children.secret_value(found, "token")
            if encoded is None:
                now.report = Report(problem="its token is missing")
                return Verdict(self._settings.start_seconds)
            memo.token = base64.b64decode(encoded).decode()
        now.report = await self._drivers.read(self._url(resource), memo.token)
        if now.report.unauthorized:
            memo.token = None  # somebody has changed the Secret: read it next time
            memo.checked_at = float("-inf")
        self._measure(memo, now.report.measured)
        if not now.report.plan:
            return Verdict(self._settings.start_seconds)
        short = now.report.plan.get("wanted") or now.report.plan.get("readyWorkers", 0) < now.report.plan.get("workers", 0)
        if short:
            executors = await self._api.list(kinds.POD, resource.namespace, names.selector(resource.name, names.EXECUTOR))
            now.executors_pending = status.pending_executors(executors)
        return PROCEED

    def _measure(self, memo: Memo, measured: Measured | None) -> None:
        """Shed ratios, between two scrapes."""
        if measured is None:
            return
        before = memo.measured.counts if memo.measured is not None else {}
        ratios = {}
        for stream, (shed, accepted) in measured.counts.items():
            shed_before, accepted_before = before.get(stream, (shed, accepted))
            dropped, kept = max(0.0, shed - shed_before), max(0.0, accepted - accepted_before)
            ratios[stream] = dropped / (dropped + kept) if dropped else 0.0
        memo.shed_ratio, memo.measured = ratios, measured

    async def _plan(self, now: Pass) -> Verdict:
        """Have the running join take over what it can without a restart: the limits on workers and the model."""
        assert now.report is not None, "the step before stops without one"
        if now.refused is not None:
            return PROCEED
        wish, newest = wish_of(now.manifest, now.report.plan)
        if wish is None:
            now.memo.asked, now.memo.plan_refused = (), None
            return PROCEED
        now.wanted_workers = wish["workers"]
        asked = (json.dumps(wish, sort_keys=True), newest)
        if now.memo.asked == asked and self._clock() - now.memo.asked_at < WISH_SECONDS:
            return PROCEED
        assert now.memo.token is not None, "the step before stops without one"
        answer = await self._drivers.put(self._url(now.resource), now.memo.token, wish)
        now.memo.asked, now.memo.asked_at = asked, self._clock()
        now.memo.plan_refused = answer.text if answer.status in (400, 403, 422) else None
        now.has_put = answer.status in (0, 202)
        if answer.status == 202:
            now.events.append(("Normal", Reason.PlanRequested, f"{wish['workers']} workers, model {wish['model']}"))
        if answer.status not in (200, 202):
            now.memo.asked_at -= WISH_SECONDS - self._settings.poll_seconds
        return PROCEED

    async def _scale(self, now: Pass) -> Verdict:
        """Decide how many workers there should be; write it down; then have the driver see to it."""
        if now.refused is not None or now.has_put:
            return PROCEED
        assert now.report is not None, "a step before stops without one"
        assert now.derived.job is not None, "the first step stops without one"
        assert now.memo.token is not None, "a step before stops without one"
        memo, manifest, job, url, token = now.memo, now.manifest, now.derived.job, self._url(now.resource), now.memo.token
        settings = settings_of(manifest, now.resource.pause)
        if all(settings.mode_of(rule) is Mode.OFF for rule in Rule):
            memo.scaler = None
            return PROCEED
        scaler, at, plan = await self._scaler(now), self._wall().timestamp(), Applied.of(now.report.plan)
        if scaler is None:
            return PROCEED
        now.events += scaler.follow(manifest, now.resource.pause, plan, at)
        now.events += scaler.take(await self._sample(now, plan, at), plan)
        decision = await scaler.decide(now.report.plan, job, lambda: self._drivers.statistics(url, token), at)
        wish = scaler.wish(decision, plan, manifest.spec.scheme.model, at)
        if wish is None:
            if decision.kind is not Kind.HOLD and decision.mode is Mode.RECOMMEND and scaler.is_new:
                now.events.append(event_of(decision))
            if scaler.is_new or (scaler.has_holds and self._clock() - scaler.written_at >= WRITE_SECONDS):
                await self._write_ledger(now, scaler)
            return PROCEED
        now.wanted_workers = decision.target
        now.events.append(event_of(decision))
        await self._write_ledger(now, scaler)
        await self._report(now)
        self._at("put")
        answer = await self._drivers.put(url, token, wish)
        now.events += scaler.put(answer.status, answer.text, plan, at)
        if answer.status != 202:
            now.wanted_workers = None
        return PROCEED

    async def _scaler(self, now: Pass) -> Autoscaler | None:
        """What is remembered of the scaling; of an operator before, what it has stored. None where that cannot be."""
        memo = now.memo
        if memo.scaler is None:
            stored = await self._stored_ledger(now)
            if now.refused is not None:
                return None
            memo.scaler = Autoscaler(stored)
            memo.scaler.written_at = self._clock()
        return memo.scaler

    async def _stored_ledger(self, now: Pass) -> Object | None:
        name = names.ledger_name(now.resource.name)
        found = await self._api.find(kinds.CONFIG_MAP, now.resource.namespace, name)
        if found is not None and not _is_ours(found, now.resource):
            text = f"ConfigMap {name} exists and is not this StreamJoin's; delete or rename it, and the join is scaled"
            now.refused = (Reason.ForeignObject, text)
            return None
        now.memo.ledger_version = None if found is None else found["metadata"]["resourceVersion"]
        if found is None:
            return None
        try:
            value = json.loads(found["data"][children.LEDGER_KEY])
        except (KeyError, TypeError, ValueError):
            return None
        return value if isinstance(value, dict) else None

    async def _write_ledger(self, now: Pass, scaler: Autoscaler) -> None:
        """Store the decisions. Where another operator was quicker, its are read, and this pass ends here; the next one decides."""
        self._at("ledger")
        try:
            written = await self._api.apply(children.ledger(now.resource, scaler.document(), now.memo.ledger_version))
        except ApiError as error:
            if error.status == 409:
                scaler.adopt(await self._stored_ledger(now))
            raise
        now.memo.ledger_version = written["metadata"]["resourceVersion"]
        scaler.is_new = scaler.has_holds = False
        scaler.written_at = self._clock()

    async def _sample(self, now: Pass, plan: Applied, at: float) -> Sample | Distrusted:
        """What Prometheus says of the join; without one, the driver itself."""
        assert now.report is not None, "a step before stops without one"
        assert now.derived.job is not None, "the first step stops without one"
        assert now.memo.scaler is not None, "it has just been made"
        assert now.memo.scaler.core is not None, "it has just followed"
        memo, resource, bound = now.memo, now.resource, now.memo.scaler.core.settings.stale_seconds
        url = now.manifest.spec.scaling.prometheus.url or self._settings.prometheus_url
        if url:
            memo.scrapes = None
            found = await self._prometheus.read(url, resource.namespace, resource.name, 2 * bound)
            if isinstance(found, Distrusted):
                return found
        else:
            memo.scrapes = memo.scrapes or Scrapes(2 * bound)
            memo.scrapes.add(now.report.text, at)
            found = memo.scrapes.series()
        return measure(
            found,
            generation=plan.generation,
            workers=plan.workers,
            streams=tuple(stream.name for stream in now.derived.job.streams),
            now=at,
            bound=bound,
            is_retrying=now.report.health.get("state") == "retrying",
        )

    # The steps of a deletion: only with our finalizer, when the state is to go with the StreamJoin.

    async def _drain(self, now: Pass) -> Verdict:
        """Stop the driver first, so that nothing is written behind the cleanup's back. Bounded."""
        if names.FINALIZER not in (now.body["metadata"].get("finalizers") or []):
            return Verdict(self._settings.resync_seconds)
        base, namespace = now.resource.base, now.resource.namespace
        found = await self._api.get(kinds.DEPLOYMENT, namespace, base)
        if found is not None and _is_ours(found, now.resource) and not found["metadata"].get("deletionTimestamp"):
            await self._api.delete(kinds.DEPLOYMENT, namespace, base, found["metadata"]["uid"])
        if self._deleting_for(now) < DRAIN_SECONDS:
            pods = await self._api.list(kinds.POD, namespace, names.selector(now.resource.name, names.DRIVER))
            if pods:
                return Verdict(self._settings.start_seconds)
        return PROCEED

    async def _clean_up(self, now: Pass) -> Verdict:
        """Have a Job remove the state, and wait for its end. Bounded."""
        resource, name = now.resource, names.cleanup_name(now.resource.name)
        where = json.dumps((now.body["spec"].get("checkpoint") or {}), sort_keys=True)
        if now.derived.manifest is None:
            now.events.append(("Warning", Reason.StateLeft, f"the manifest is not valid, so the state in {where} is left"))
            return PROCEED
        if self._deleting_for(now) > self._settings.cleanup_seconds + DRAIN_SECONDS:
            now.events.append(("Warning", Reason.StateLeft, f"the cleanup took too long; the state in {where} is left"))
            return PROCEED
        job = await self._api.get(kinds.JOB, resource.namespace, name)
        if job is None:
            # the Job reads the manifest from the ConfigMap, which only Kubernetes' garbage collection removes, after the StreamJoin
            config = await self._api.find(kinds.CONFIG_MAP, resource.namespace, resource.base)
            if config is None:
                now.events.append(("Normal", Reason.StateRemoved, "no driver was ever started, so there is no state"))
                return PROCEED
            await self._api.apply(children.cleanup_job(resource, now.manifest, self._settings))
            return Verdict(self._settings.start_seconds)
        ended = {condition["type"] for condition in (job.get("status") or {}).get("conditions") or [] if condition["status"] == "True"}
        if "Complete" in ended:
            now.events.append(("Normal", Reason.StateRemoved, f"the state in {where}"))
            return PROCEED
        if "Failed" in ended:
            now.events.append(("Warning", Reason.StateLeft, f"Job {name} failed; the state in {where} is left"))
            return PROCEED
        return Verdict(self._settings.start_seconds)

    async def _let_go(self, now: Pass) -> Verdict:
        """Remove our finalizer: Kubernetes deletes the StreamJoin, and then what it owns."""
        await self._post(now)
        await self._set_finalizer(now, False)
        return Verdict(self._settings.resync_seconds)

    def _deleting_for(self, now: Pass) -> float:
        since = datetime.fromisoformat(now.body["metadata"]["deletionTimestamp"])
        return (self._wall() - since).total_seconds()

    # What the steps are made of.

    async def _apply(self, now: Pass, *wanted: Object) -> Verdict:
        """Apply what is not as it should be. Waits where a name is taken or the API server refuses."""
        for desired in wanted:
            kind, metadata = desired["kind"], desired["metadata"]
            observed = now.observed.get((kind, metadata["name"]))
            if observed is None and kind == "Deployment":
                observed = now.deployment
            if observed is None and not now.checking and kind not in UNLISTED:
                continue  # compared when a check is due
            if is_current(observed, desired):
                continue
            if observed is None:
                read = self._api.get if kind in UNLISTED else self._api.find
                observed = await read(kinds.KINDS[kind], metadata["namespace"], metadata["name"])
            if observed is not None and not _is_ours(observed, now.resource):
                now.refused = (Reason.ForeignObject, f"{kind} {metadata['name']} exists and is not this StreamJoin's; delete or rename it")
                return Verdict(self._settings.resync_seconds)
            try:
                applied = await self._api.apply(desired)
            except ApiError as error:
                if error.status not in (400, 403, 422):
                    raise
                now.refused = (Reason.ApplyRefused, f"{kind} {metadata['name']}: {error.message}"[:700])
                return Verdict(REFUSED_SECONDS)
            now.observed[kind, metadata["name"]] = applied
            now.events.append(("Normal", Reason.Created if observed is None else Reason.Updated, f"{kind} {metadata['name']}"))
            if kind == "Deployment":
                now.deployment = applied
                self._deployments[now.resource.namespace, now.resource.name] = applied
            if kind == "ConfigMap":
                now.memo.config = applied
        return PROCEED

    async def _heed_suspend(self, now: Pass) -> None:
        """Of a manifest that is refused this field alone is heeded: to stop a driver, or to let it go on, takes nothing else."""
        replicas = 0 if now.is_suspended else 1
        found, resource = now.deployment, now.resource
        if found is None or not _is_ours(found, resource) or found["spec"].get("replicas") == replicas:
            return
        changed = await self._api.patch(kinds.DEPLOYMENT, resource.namespace, resource.base, {"spec": {"replicas": replicas}})
        now.deployment = self._deployments[resource.namespace, resource.name] = changed
        now.events.append(("Normal", Reason.Updated, f"Deployment {resource.base}"))

    def _url(self, resource: Resource) -> str:
        return self._settings.url_of(resource.namespace, resource.name, resource.base)

    async def _set_finalizer(self, now: Pass, wanted: bool) -> None:
        metadata = now.body["metadata"]
        there = metadata.get("finalizers") or []
        if (names.FINALIZER in there) == wanted:
            return
        finalizers = [*there, names.FINALIZER] if wanted else [name for name in there if name != names.FINALIZER]
        patch = {"metadata": {"finalizers": finalizers, "resourceVersion": metadata["resourceVersion"]}}
        try:
            now.body = await self._api.patch(kinds.STREAM_JOIN, now.resource.namespace, now.resource.name, patch)
        except ApiError as error:
            if error.status == 404 and not wanted:
                return
            raise
        self.saw(now.body)

    async def _report(self, now: Pass) -> None:
        """Write the status if it differs, then tell what happened."""
        self._at("report")
        stored = now.body.get("status") or {}
        written = status.status(self._facts(now), stored, instant(self._wall().timestamp()))
        patch = status.patch_of(stored, written)
        waits = status.only_measurements(patch) and self._clock() - now.memo.wrote_at < self._settings.status_seconds
        if patch and not waits:
            body = {"metadata": {"resourceVersion": now.body["metadata"]["resourceVersion"]}, "status": patch}
            try:
                after = await self._api.patch(kinds.STREAM_JOIN, now.resource.namespace, now.resource.name, body, "/status")
            except ApiError as error:
                if error.status == 404:  # deleted meanwhile
                    return
                if error.status == 409:
                    await self._refresh(now)
                raise
            now.memo.wrote_at = self._clock()
            now.body = after
            self.saw(after)
            now.events += transitions(stored, written)
        self._at("post")
        await self._post(now)

    async def _refresh(self, now: Pass) -> None:
        """Our copy is behind: the watch will bring the newer one, but may take its time."""
        found = await self._api.get(kinds.STREAM_JOIN, now.resource.namespace, now.resource.name)
        if found is not None:
            self.saw(found)

    def _facts(self, now: Pass) -> status.Facts:
        derived, deployed = now.derived, (now.deployment or {}).get("status") or {}
        scaler = now.memo.scaler
        annotations = ((now.memo.config or {}).get("metadata") or {}).get("annotations") or {}
        containers = _at(now.deployment, "spec", "template", "spec", "containers") or []
        return status.Facts(
            generation=now.resource.generation,
            suspended=now.is_suspended,
            refused=now.refused,
            driver_wanted=now.deployment is not None and bool(now.deployment["spec"].get("replicas")),
            driver_pods=len(now.pods) or deployed.get("replicas", 0),
            driver_ready=_is_ready(now.deployment),
            trouble=None if _is_ready(now.deployment) else status.trouble_of(now.pods),
            executors_pending=now.executors_pending,
            report=now.report,
            plan_refused=now.memo.plan_refused,
            initial_workers=derived.workers,
            overfull=derived.overfull,
            wanted_workers=now.wanted_workers,
            change=json.loads(annotations[names.CHANGE]) if names.CHANGE in annotations else (now.body.get("status") or {}).get("change"),
            image=next((container["image"] for container in containers if container["name"] == names.DRIVER), ""),
            memory=derived.memory,
            rolling=now.deployment is not None and deployed.get("observedGeneration", 0) < now.deployment["metadata"].get("generation", 0),
            selector=status.selector_of(now.resource.name),
            shed_ratio=now.memo.shed_ratio,
            scaler=scaler,
            most_workers=derived.job.max_workers if derived.job is not None else None,
            workers_per_executor=derived.job.workers_per_executor if derived.job is not None else None,
            price=self._settings.price_per_executor_hour,
            at=self._wall().timestamp(),
        )

    async def _post(self, now: Pass) -> None:
        """Events for what was done and for conditions that changed. One that cannot be posted is only logged."""
        made = [message for _, reason, message in now.events if reason is Reason.Created]
        told = [event for event in now.events if event[1] is not Reason.Created]
        if made:
            told.insert(0, ("Normal", Reason.Created, ", ".join(made)))
        now.events.clear()
        for kind, reason, message in told:
            log.info("%s: %s", reason.name, message, extra={"streamjoin": f"{now.resource.namespace}/{now.resource.name}"})
            try:
                await self._api.create(kinds.EVENT, now.resource.namespace, self._event(now.resource, kind, reason, message))
            except ApiError as error:
                log.warning("event %s not posted: %s", reason.name, error)

    def _event(self, resource: Resource, kind: str, reason: Reason, message: str) -> Object:
        at = instant(self._wall().timestamp())
        return {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"generateName": f"{resource.base}.", "namespace": resource.namespace},
            "involvedObject": {
                "apiVersion": kinds.STREAM_JOIN.version,
                "kind": kinds.STREAM_JOIN.kind,
                "name": resource.name,
                "namespace": resource.namespace,
                "uid": resource.uid,
            },
            "type": kind,
            "reason": reason.name,
            "message": message[:1024],
            "source": {"component": names.MANAGER},
            "reportingComponent": names.MANAGER,
            "firstTimestamp": at,
            "lastTimestamp": at,
            "count": 1,
        }


def derive(body: Object) -> Derived:
    """What follows from a resource alone: the manifest, its job, a worker's memory, how many workers to begin with; or what is wrong."""
    document = check(body)
    if document.manifest is None:
        problems = [str(problem) for problem in document.problems]
        more = f" (and {len(problems) - 3} more)" if len(problems) > 3 else ""
        return Derived(None, (Reason.InvalidSpec, "; ".join(problems[:3]) + more))
    manifest = document.manifest
    spec = manifest.spec
    located = manifest
    if spec.checkpoint.location is None:
        checkpoint = spec.checkpoint.model_copy(update={"location": f"{CLAIM_PATH}/{manifest.metadata.name}"})
        located = manifest.model_copy(update={"spec": spec.model_copy(update={"checkpoint": checkpoint})})
    job = compile_job(located)
    memory = worker_memory(job)
    # The driver knows the keys, and may choose another candidate: this is what to expect until it answers.
    nothing = SideStatistics(0.0)
    deployment = job.first_deployment(Statistics((nothing, nothing)), job.condition.candidates[0].main)
    problem = None if memory.fits else (Reason.InsufficientMemory, memory.refusal())
    overfull = None if deployment.fits else deployment.warning
    return Derived(manifest, problem, replace(job, manifest=manifest), memory, deployment.workers, overfull)


def wish_of(manifest: Manifest, plan: Object) -> tuple[dict[str, Any] | None, int]:
    """What to ask a driver for whose newest plan is outside the limits or of another model; None where it is as it should be.

    And the generation of that newest plan.
    """
    workers, model = manifest.spec.workers, manifest.spec.scheme.model
    newest = plan.get("wanted") or plan
    count = int(newest.get("workers", 0))
    least = max(workers.min, min(workers.floor or 0, workers.max))
    wanted = min(max(count, least), workers.max)
    scheme = (newest.get("scheme") or {}).get("model", model)
    if wanted == count and scheme == model:
        return None, int(newest["generation"])
    return {"workers": wanted, "model": model}, int(newest["generation"])


def transitions(before: Object, after: Object) -> list[tuple[str, Reason, str]]:
    """Events for conditions that changed: those that say that something is wrong as warnings."""
    old = {condition["type"]: condition for condition in before.get("conditions") or []}
    events = []
    for condition in after["conditions"]:
        last = old.get(condition["type"], {"status": "False", "reason": None})
        if (last["status"], last["reason"]) == (condition["status"], condition["reason"]):
            continue
        reason, is_true = Reason[condition["reason"]], condition["status"] == "True"
        if condition["type"] == "Degraded" and is_true:
            events.append(("Warning", reason, condition["message"]))
        elif condition["type"] == "Shedding" and (is_true or last["status"] == "True"):
            events.append(("Warning" if is_true else "Normal", reason, condition["message"]))
        elif (condition["type"], reason) in TOLD and (is_true or condition["type"] == "Ready"):
            events.append(("Normal", reason, condition["message"]))
    return events


_NEVER: Object = {"metadata": {"uid": "", "resourceVersion": "0"}}


def _is_newer(body: Object, known: Object | None) -> bool:
    if body is _NEVER:
        return False
    if known is None or known["metadata"]["uid"] != body["metadata"]["uid"]:
        return True
    try:
        return int(body["metadata"]["resourceVersion"]) >= int(known["metadata"]["resourceVersion"])
    except ValueError:  # versions are opaque in principle
        return True


def _is_ready(deployment: Object | None) -> bool:
    return bool(_at(deployment, "status", "readyReplicas"))


def _is_ours(observed: Object, resource: Resource) -> bool:
    """Controlled by the StreamJoin of this name, or by one before it; or a claim of ours that has outlived one."""
    metadata = observed["metadata"]
    owners = metadata.get("ownerReferences") or []
    if any(owner.get("controller") for owner in owners):
        return any(owner["kind"] == kinds.STREAM_JOIN.kind and owner["name"] == resource.name for owner in owners)
    return (metadata.get("labels") or {}).get(names.NAME) == resource.name


def _at(value: Any, *path: str) -> Any:
    for name in path:
        value = (value or {}).get(name)
    return value
