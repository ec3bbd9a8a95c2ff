"""One call of the reconciler: what it has observed so far, what is remembered of calls before, and what a step says at its end."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from streamjoin.job import Job
from streamjoin.manifest import Manifest
from streamjoin_operator import children, names
from streamjoin_operator.autoscale import Scaler
from streamjoin_operator.convergence import Cause
from streamjoin_operator.correlation import Bucket, Correlator
from streamjoin_operator.derived import Derived
from streamjoin_operator.drift import Object
from streamjoin_operator.driver import Measured, Report
from streamjoin_operator.driver_files import Files, driver_files
from streamjoin_operator.measurement import Scrapes
from streamjoin_operator.missing import Found
from streamjoin_operator.pod_trouble import Trouble
from streamjoin_operator.reasons import Reason
from streamjoin_operator.resource import Resource
from streamjoin_operator.settings import Settings
from streamjoin_operator.sleeping import Sleep


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a step says: proceed to the next one, or wait and come again."""

    after: float | None = None
    """None: proceed."""


PROCEED = Verdict()
AGAIN = Verdict(0.0)
"""From the first step on, and at once: nothing is reported of what was seen so far."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """A change that restarts the driver, and waits for a window of maintenance."""

    why: str
    running: Job | None
    """What the driver runs meanwhile; None: that cannot be read."""


@dataclass
class Memo:
    """What saves requests; to lose it costs a few."""

    derived_from: tuple[Any, ...] = ()
    derived: Derived = field(default_factory=lambda: Derived(None))
    claim_goes: bool = False
    """Whether the state is in a claim that goes with the StreamJoin."""
    claim_trouble: Trouble | None = None
    """What the claim is not that the manifest asks for."""
    deleting_since: float | None = None
    """When this operator began with its deletion."""
    failures: int = 0
    """How often in a row a step has failed."""
    checked_for: tuple[Any, ...] = ()
    checked_at: float = float("-inf")
    record: Object | None = None
    """The ConfigMap of what runs (``children.record``), as it was last seen."""
    token: str | None = None
    mounted: str = ""
    """Of the Secrets that all pods mount (``children.mounted``)."""
    measured: Measured | None = None
    measured_at: float = 0.0
    rate: float | None = None
    """Tuples a second, between the last two scrapes; None: there were no two of one driver."""
    shed_ratio: dict[str, float] = field(default_factory=dict)
    unexplained_since: float | None = None
    """Since when pods that are wanted are not there, and nothing says why."""
    events: dict[str, tuple[float, Sequence[Object]]] = field(default_factory=dict)
    """By uid, when the events about an object were asked for, and what there was."""
    unanswered: int = 0
    """How often in a row the driver gave no usable answer."""
    asked: tuple[Any, ...] = ()
    asked_at: float = float("-inf")
    plan_refused: str | None = None
    wrote_at: float = float("-inf")
    writes: Bucket = field(default_factory=lambda: Bucket(25, 60.0))
    """Of statuses, but for measurements: a join that flaps has no more."""
    correlator: Correlator = field(default_factory=Correlator)
    budget: int | None = None
    """How many executors must stay, by the disruption budget."""
    short_since: float | None = None
    """Since when fewer executors are there than the plan has."""
    scaler: Scaler | None = None
    ledger_version: str | None = None
    """Of the ConfigMap with the ledger; None: there is none."""
    scrapes: Scrapes | None = None
    """Of the driver's own metrics, while no Prometheus answers."""
    driver_pods: tuple[Any, tuple[str, ...]] = (None, ())
    """The names of the driver's pods, and of which state of its Deployment they are."""
    login_secrets: tuple[Any, float, dict[str, Object | None]] = (None, float("-inf"), {})
    """The Secrets by which the join's Prometheus is logged in to, for which names and when they were read."""
    late: tuple[int, float] = (0, float("-inf"))
    """By how many seconds series arrived late in Prometheus, at most, and when that was seen last."""
    searched: tuple[float, Found | None] | None = None
    """What a Prometheus that has nothing of the join has else, and when it was asked for that."""
    has_monitor: bool = False
    """Whether there is a PodMonitor, as the cluster knows that kind."""
    waiting: Waiting | None = None
    """What waits for a window of maintenance."""
    resized: str | None = None
    """spec.workers.resources, as JSON, that all executors had once they were resized."""
    not_resized: Job | None = None
    """What the driver runs until they have."""
    unresizable: tuple[str, str] | None = None
    """Those that executors cannot get while they run, and why."""
    enlarging_since: float | None = None
    """Since when they are given the memory that was decided on."""
    idle: tuple[float | None, float] = (None, 0.0)
    """For how long the driver had had nothing to do, in its own words, and when it said so; None: it had something, or did not say."""


def has_ready(deployment: Object | None) -> bool:
    """Whether any of its pods is ready."""
    return bool(((deployment or {}).get("status") or {}).get("readyReplicas"))


@dataclass
class Reconciliation:
    """One call's observations."""

    resource: Resource
    body: Object
    memo: Memo
    derived: Derived
    deployment: Object | None = None
    """The driver's."""
    query_servers: Object | None = None
    """Their Deployment."""
    watcher: Object | None = None
    """The Deployment of what asks the sources while the join sleeps."""
    observed: dict[tuple[str, str], Object] = field(default_factory=dict)
    checking: bool = False
    """Whether children are compared this time."""
    refused: tuple[Reason, str] | None = None
    pods: list[Object] = field(default_factory=list)
    trials: list[Object] = field(default_factory=list)
    """Pods that try a new template."""
    trying: Cause | None = None
    """What is tried or waited for before the driver is replaced; nothing is wrong with it so far."""
    trouble: Trouble | None = None
    """Why the driver's pod does not run."""
    executors_trouble: Trouble | None = None
    queries_trouble: Trouble | None = None
    """Why fewer query servers are ready than are wanted."""
    watch_trouble: Trouble | None = None
    """Why the sources of a join that sleeps cannot be asked."""
    decided_sleep: tuple[Sleep | None] | None = None
    """What is to be noted of its sleep; None: that was not decided this time."""
    report: Report | None = None
    wanted_workers: int | None = None
    looks_soon: bool = False
    """Whether what has begun may call for more workers once it has lasted a little longer."""
    plan_unmet: str | None = None
    """What the plan that runs has yet to become, as the manifest asks for it."""
    plan_dropped: str | None = None
    """Why the driver has dropped a plan that the manifest asks for."""
    resizing: str | None = None
    """Which executors have yet to be resized."""
    resize_trouble: Trouble | None = None
    """Why they are not."""
    deleting: tuple[Reason, str] | None = None
    """How far its deletion is."""
    is_partial: bool = False
    """Whether a step has failed, and the driver could not be looked at either."""
    has_put: bool = False
    """Whether the driver has been given a plan, so that the one that was read is the newest no more."""
    events: list[tuple[str, Reason, str]] = field(default_factory=list)
    _files: tuple[Resource, Files] | None = None

    @property
    def running_job(self) -> Job:
        """What the driver runs, or is to run at once; with the capacity by which it plans, as soon as it says so."""
        waiting, job = self.memo.waiting, self.derived.job
        assert job is not None, "the first step stops without one"
        job = (waiting and waiting.running) or self.memo.not_resized or job
        said = None if self.report is None or self.report.measured is None else self.report.measured.capacity
        if said is None or not job.capacity.in_bytes or said == job.capacity.amount:
            return job
        return replace(job, capacity=replace(job.capacity, amount=said))

    @property
    def is_driver_ready(self) -> bool:
        return has_ready(self.deployment)

    @property
    def stands_by(self) -> bool:
        """Whether there are two drivers, one of which stands by."""
        return self.deployment is not None and children.drivers_of(self.deployment["spec"]["template"]) > 1

    @property
    def is_rolling(self) -> bool:
        """Whether the driver's pod is not yet of the newest template: the pod before it may still be ready."""
        if self.deployment is None or not self.deployment["spec"].get("replicas"):
            return False
        seen = self.deployment.get("status") or {}
        is_behind = seen.get("observedGeneration", 0) < self.deployment["metadata"].get("generation", 0)
        return is_behind or not seen.get("updatedReplicas")

    @property
    def check_key(self) -> tuple[str, int, str]:
        """What children are compared for."""
        return self.resource.uid, self.resource.generation, self.resource.restart

    @property
    def has_acted(self) -> bool:
        """Whether every child is as this generation wants it."""
        return self.memo.checked_for == self.check_key

    def deployed(self, name: str) -> Object | None:
        """The Deployment of that name, as it was last seen."""
        known = {self.resource.base: self.deployment, names.queries_name(self.resource.name): self.query_servers}
        return (known | {names.watcher_name(self.resource.name): self.watcher}).get(name)

    @property
    def has_begun(self) -> bool:
        """Whether there is a driver, or once was one."""
        return self.deployment is not None or self.has_run or bool((self.body.get("status") or {}).get("image"))

    @property
    def has_run(self) -> bool:
        """Whether a driver runs, or once had a plan."""
        return self.is_driver_ready or bool((self.body.get("status") or {}).get("plan"))

    @property
    def suspended_by(self) -> Cause | None:
        """As the resource says, also where the rest of it is refused, or as it sleeps; but for one that is paused. None: it is not."""
        if self.is_paused:
            return None
        if self.body["spec"].get("suspend") is True:
            return Reason.Suspended, Reason.Suspended.value
        return (self.sleep.why, self.sleep.text) if self.sleep is not None and self.sleep.is_asleep else None

    @property
    def is_suspended(self) -> bool:
        return self.suspended_by is not None

    @property
    def sleep(self) -> Sleep | None:
        """As it was decided, or else as it is noted."""
        return Sleep.of(self.deployment) if self.decided_sleep is None else self.decided_sleep[0]

    @property
    def is_watched(self) -> bool:
        """Whether it sleeps, or is to, until there is something to read."""
        return self.sleep is not None and self.sleep.is_watched

    def tell_woken(self, before: Sleep | None) -> None:
        """Whether that is noted now. ``before``: what was noted."""
        noted = Sleep.of(self.deployment)
        if before is not None and before.is_asleep and noted is not None and not noted.is_asleep:
            self.events.append(("Normal", Reason.Woken, f"slept since {noted.since}; {noted.woken_by}"))

    @property
    def is_paused(self) -> bool:
        """Whether all of it is to be left as it is."""
        return self.body["spec"].get("paused") is True

    @property
    def is_being_deleted(self) -> bool:
        return "deletionTimestamp" in self.body["metadata"]

    @property
    def manifest(self) -> Manifest:
        assert self.derived.manifest is not None, "the first step stops without one"
        return self.derived.manifest

    def driver(self, settings: Settings) -> Object:
        """The driver's Deployment, as it should be."""
        assert self.derived.memory is not None, "the first step stops without it"
        found, files = self.deployment, self.files(settings)
        waits = self.memo.waiting is not None
        return children.deployment(self.resource, self.manifest, self.derived.memory, settings, found, files, waits=waits, sleep=self.sleep)

    def files(self, settings: Settings) -> Files:
        """What the driver reads when it starts. Made once a call: it takes longer than all else that a check makes."""
        if self._files is None or self._files[0] is not self.resource:
            self._files = self.resource, driver_files(self.resource, self.manifest, settings)
        return self._files[1]


Step = Callable[[Reconciliation], Awaitable[Verdict]]
