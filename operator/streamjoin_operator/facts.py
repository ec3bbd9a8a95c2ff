"""What was observed of a StreamJoin: all that its status is made of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from streamjoin.elastic.admission import FirstPlan
from streamjoin.elastic.sample import Sample
from streamjoin_operator.autoscale import Scaler
from streamjoin_operator.convergence import Cause
from streamjoin_operator.driver import Report
from streamjoin_operator.memory import WorkerMemory
from streamjoin_operator.pod_trouble import Trouble
from streamjoin_operator.reasons import Reason
from streamjoin_operator.sleeping import Sleep


@dataclass(frozen=True, slots=True)
class Facts:
    """All that the status is made of."""

    generation: int
    suspended: bool = False
    suspended_by: Cause | None = None
    """None: by ``spec.suspend``, if it is."""
    sleep: Sleep | None = None
    """When it slept last, or since when it sleeps."""
    paused: bool = False
    refused: tuple[Reason, str] | None = None
    """Why the manifest cannot be acted on."""
    trying: Cause | None = None
    """What is tried before the driver is replaced."""
    definition_lacks: str | None = None
    """What the cluster's definition of StreamJoins lacks."""
    has_acted: bool = False
    """Whether every step towards this generation's spec has been taken; what it asks for may have yet to come."""
    spec_digest: str = ""
    """A hash of the spec, less ``paused``."""
    plan_unmet: str | None = None
    """What the plan that runs has yet to become, as the manifest asks for it."""
    deleting: tuple[Reason, str] | None = None
    """How far its deletion is, where the state goes with it."""
    driver_wanted: bool = False
    """Whether there is a Deployment that has pods."""
    stands_by: bool = False
    """Whether there are two drivers, one of which stands by."""
    driver_pods: int = 0
    driver_ready: bool = False
    trouble: Trouble | None = None
    executors_trouble: Trouble | None = None
    """Why executors that are wanted are not there."""
    queries: Mapping[str, Any] | None = None
    """``status.queries``; None: there are no query servers."""
    queries_trouble: Trouble | None = None
    """Why fewer of them are ready than are wanted."""
    watch_trouble: Trouble | None = None
    """Why the sources of a join that sleeps cannot be asked."""
    claim_trouble: Trouble | None = None
    """What the checkpoint's claim is not that the manifest asks for."""
    report: Report | None = None
    plan_refused: str | None = None
    """The driver's answer to a plan that it refuses."""
    plan_dropped: str | None = None
    """Why the driver has dropped a plan that the manifest asks for."""
    resizing: str | None = None
    """Which executors have yet to be resized."""
    resize_trouble: Trouble | None = None
    """Why they are not."""
    initial_workers: int = 0
    first: FirstPlan | None = None
    """What is promised of the first plan, by the manifest."""
    has_begun: bool = False
    """Whether there is a driver, or once was one: what was promised then stays as it was."""
    has_run: bool = False
    """Whether there once was a plan: the first one is of the past."""
    wanted_workers: int | None = None
    change: Mapping[str, Any] | None = None
    image: str = ""
    memory: WorkerMemory | None = None
    rolling: bool = False
    """Whether the Deployment's newest template is not yet what runs."""
    selector: str = ""
    shed_ratio: dict[str, float] = field(default_factory=dict)
    rate: float | None = None
    """Tuples a second that come; None: not known yet."""
    scaler: Scaler | None = None
    """None: nothing is known of scaling."""
    by_prometheus: Sample | None = None
    """What Prometheus has said at this poll; None: nothing that could be trusted, or it was not asked."""
    most_workers: int | None = None
    """spec.workers.max; None where the manifest cannot be read."""
    workers_per_executor: int | None = None
    """spec.workers.perExecutor; None likewise."""
    price: float = 0.0
    at: float = 0.0
    """Seconds since 1970."""


def suspension(facts: Facts) -> Cause:
    """Why a join that is suspended is."""
    return facts.suspended_by or (Reason.Suspended, Reason.Suspended.value)


def answers(facts: Facts) -> bool:
    """Whether the driver said how it is."""
    return facts.report is not None and bool(facts.report.health)


def driver_state(facts: Facts) -> str:
    """The driver's own word for its state; empty where it does not answer."""
    return str(facts.report.health.get("state", "")) if facts.report is not None else ""


def lacks_executors(facts: Facts) -> bool:
    """Whether there is a plan, and nobody yet to carry it out."""
    return facts.report is not None and facts.report.plan.get("readyWorkers") == 0


def asked_of(plan: Mapping[str, Any]) -> int:
    """The workers that were asked for with a plan, of which some may not have come."""
    return int(plan.get("asked") or plan.get("workers", 0))
