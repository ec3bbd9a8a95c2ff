"""The status of a StreamJoin from what was observed.

Conditions follow the Kubernetes API conventions: each has status, reason, message, observedGeneration and the time of its last transition.

Always holds: pure; the same observations give the same status, byte for byte, so that nothing is written when nothing changed: no ages, no
times but of transitions, measurements rounded.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from streamjoin.elastic.admission import FirstPlan
from streamjoin.elastic.deployment import executors_for
from streamjoin.elastic.ledger import Record
from streamjoin.elastic.sample import Sample
from streamjoin_operator import names
from streamjoin_operator.autoscale import Autoscaler
from streamjoin_operator.cost import rolled
from streamjoin_operator.driver import Report
from streamjoin_operator.instants import instant
from streamjoin_operator.measurement import Source
from streamjoin_operator.memory import WorkerMemory
from streamjoin_operator.pod_trouble import Trouble
from streamjoin_operator.reasons import Reason

Object = dict[str, Any]

DECISIONS = 5
"""Of the ledger, so many are shown."""
GIVEN_UP = 3
"""Of the plans that did not come to run, so many are shown."""
COMMIT_SECONDS = 300.0
"""``lastCommit`` is written when it is off by so much: a busy join would else be written every few seconds for nothing but that."""
DEFINITION = f"streamjoins.{names.GROUP}"
MEASUREMENTS = ("utilization", "shed", "shedRatio", "completeness", "lastCommit")
"""Fields that change all the time while a join is busy."""
COMPLETENESS_BOUNDS = ("estimate", "low", "high")


@dataclass(frozen=True, slots=True)
class Condition:
    """One condition as it is now."""

    type: str
    status: bool | None
    reason: Reason
    message: str = ""


@dataclass(frozen=True, slots=True)
class Facts:
    """All that the status is made of."""

    generation: int
    suspended: bool = False
    paused: bool = False
    refused: tuple[Reason, str] | None = None
    """Why the manifest cannot be acted on."""
    trying: str | None = None
    """What is tried before the driver is replaced."""
    definition_lacks: str | None = None
    """What the cluster's definition of StreamJoins lacks."""
    former_names: str | None = None
    """Fields that the manifest gives by a former name."""
    deleting: tuple[Reason, str] | None = None
    """How far its deletion is, where the state goes with it."""
    driver_wanted: bool = False
    """Whether there is a Deployment of one."""
    driver_pods: int = 0
    driver_ready: bool = False
    trouble: Trouble | None = None
    executors_trouble: Trouble | None = None
    """Why executors that are wanted are not there."""
    queries: Mapping[str, Any] | None = None
    """``status.queries``; None: there are no query servers."""
    queries_trouble: Trouble | None = None
    """Why fewer of them are ready than are wanted."""
    report: Report | None = None
    plan_refused: str | None = None
    """The driver's answer to a plan that it refuses."""
    plan_dropped: str | None = None
    """Why the driver has dropped a plan that the manifest asks for."""
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
    scaler: Autoscaler | None = None
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


def conditions(facts: Facts) -> list[Condition]:
    """All six, in order."""
    return [_ready(facts), _progressing(facts), _stalled(facts), _metrics(facts), _shedding(facts), _degraded(facts)]


def _answers(facts: Facts) -> bool:
    return facts.report is not None and bool(facts.report.health)


def _state(facts: Facts) -> str:
    return str(facts.report.health.get("state", "")) if facts.report is not None else ""


def _lacks_executors(facts: Facts) -> bool:
    """Whether there is a plan, and nobody yet to carry it out."""
    return facts.report is not None and facts.report.plan.get("readyWorkers") == 0


def _absence(facts: Facts) -> str:
    """Of a join none of whose workers is there."""
    plan = facts.report.plan if facts.report is not None else {}
    why = f": {plan['absence']}" if plan.get("absence") else ""
    return f"none of {plan.get('workers')} workers has come yet{why}"


def _ready(facts: Facts) -> Condition:
    if facts.deleting is not None:
        return Condition("Ready", False, *facts.deleting)
    if facts.suspended:
        return Condition("Ready", False, Reason.Suspending if facts.driver_pods else Reason.Suspended, "spec.suspend is true")
    if facts.paused and not facts.driver_wanted:
        return Condition("Ready", False, Reason.Paused, "spec.paused is true, and no driver was started before")
    if facts.refused is not None and not facts.driver_wanted:
        return Condition("Ready", False, *facts.refused)
    if facts.driver_ready and _answers(facts):
        if _state(facts) in ("running", "retrying"):
            if _lacks_executors(facts):
                trouble = facts.executors_trouble or Trouble(Reason.ExecutorsStarting, _absence(facts))
                return Condition("Ready", False, trouble.reason, trouble.message)
            if (stalled := _stalled(facts)).status:
                return Condition("Ready", False, stalled.reason, stalled.message)
            return Condition("Ready", True, Reason.JoinRunning)
        return Condition("Ready", False, Reason.DriverStarting, f"the driver is {_state(facts)}")
    if facts.trouble is not None:
        return Condition("Ready", False, facts.trouble.reason, facts.trouble.message)
    if facts.driver_ready:
        problem = facts.report.problem if facts.report is not None else None
        return Condition("Ready", False, Reason.DriverUnreachable, problem or "it has not been asked yet")
    return Condition("Ready", False, Reason.DriverStarting, "the driver's pod is not ready")


def _progressing(facts: Facts) -> Condition:
    if facts.deleting is not None:
        return Condition("Progressing", True, *facts.deleting)
    if facts.suspended:
        return Condition("Progressing", bool(facts.driver_pods), Reason.Suspending if facts.driver_pods else Reason.Suspended)
    if facts.paused:
        return Condition("Progressing", False, Reason.Paused, "spec.paused is true; set it to false, and the operator goes on")
    if facts.refused is not None and not facts.driver_wanted:
        return Condition("Progressing", False, facts.refused[0])
    if facts.trying is not None:
        return Condition("Progressing", True, Reason.TemplateTried, facts.trying)
    plan = facts.report.plan if facts.report is not None else {}
    wanted = plan.get("wanted")
    if wanted:
        what = f"plan {wanted.get('generation')}: {plan.get('workers')} to {wanted.get('workers')} workers, {phase_of_plan(facts)}"
        return Condition("Progressing", True, Reason.Rescaling, f"{what}: {absence}" if (absence := plan.get("absence")) else what)
    if facts.rolling or not facts.driver_ready or _state(facts) == "starting":
        return Condition("Progressing", True, Reason.DriverStarting)
    return Condition("Progressing", False, Reason.Settled)


def phase_of_plan(facts: Facts) -> str:
    return str(facts.report.plan.get("phase", "")) if facts.report is not None else ""


def _stalled(facts: Facts) -> Condition:
    """Whether an epoch stands still, by the driver; unknown while none answers. Without ages: those are in the metrics."""
    if facts.deleting is not None:
        return Condition("Stalled", False, *facts.deleting)
    if facts.suspended:
        return Condition("Stalled", False, Reason.Suspended)
    if facts.report is None or not facts.report.health:
        return Condition("Stalled", None, Reason.DriverUnreachable if facts.driver_ready else Reason.DriverStarting, "no driver answers")
    stalled = facts.report.health.get("stalled")
    if not stalled:
        return Condition("Stalled", False, Reason.EpochsMove)
    committed_at = facts.report.health.get("committedAt")
    last = "nothing has been committed yet" if committed_at is None else f"the last commit is of {instant(committed_at)}"
    if stalled.get("step") is None:
        return Condition("Stalled", True, Reason.EpochStalled, f"it is tried again; {last}; {stalled.get('last')}")
    waits_for = ", ".join(stalled.get("waitsFor") or ()) or "an answer to the driver itself, from storage or a broker"
    times = f"; it was given up for that {stalls} times before" if (stalls := stalled.get("stalls")) else ""
    what = f"epoch {stalled.get('epoch')} stands still in step {stalled['step']} and waits for {waits_for}"
    return Condition("Stalled", True, Reason.EpochStalled, f"{what}; {last}{times}")


def _last_commit(facts: Facts, before: Mapping[str, Any]) -> str | None:
    """As it is stored, until it is so much older that it is worth a write, or the join stands still."""
    committed_at = facts.report.health.get("committedAt") if facts.report is not None else None
    stored: str | None = before.get("lastCommit")
    if committed_at is None:
        return stored
    is_recent = stored is not None and abs(committed_at - datetime.fromisoformat(stored).timestamp()) < COMMIT_SECONDS
    return stored if is_recent and not _stalled(facts).status else instant(committed_at)


def _metrics(facts: Facts) -> Condition:
    if facts.report is None or not facts.report.health:
        problem = facts.report.problem if facts.report is not None else None
        return Condition("MetricsAvailable", False, Reason.MetricsUnavailable, problem or "no driver answers")
    measured = facts.scaler.measured if facts.scaler is not None and facts.report.plan else None
    distrusted = None if measured is None else measured.distrusted
    trusted_at = facts.scaler.trusted_at if facts.scaler is not None else None
    # An operator that starts anew has no scrape before its first one: that is nothing to tell.
    if distrusted is not None and not (distrusted.is_early and trusted_at is None):
        since = "" if trusted_at is None else f"; the last that could be trusted is of {instant(trusted_at)}"
        return Condition("MetricsAvailable", False, distrusted.reason, distrusted.text + since + distrusted.meanwhile)
    if facts.report.metrics_problem is not None:
        return Condition("MetricsAvailable", False, Reason.MetricsUnavailable, facts.report.metrics_problem)
    return Condition("MetricsAvailable", True, Reason.MetricsRead)


def _shedding(facts: Facts) -> Condition:
    measured = facts.report.measured if facts.report is not None else None
    shed, would = ({}, {}) if measured is None else (measured.shed, measured.would_shed)
    workers = sum(ratio > 0 for ratio in shed.values())
    if workers:
        return Condition("Shedding", True, Reason.TuplesShed, f"{workers} of {len(shed)} workers are sent less than their tuples")
    spared = [ratio for ratio in would.values() if ratio > 0]
    if spared:
        text = f"{len(spared)} of {len(would)} workers would be sent less than their tuples, down to {1 - max(spared):.0%} of them"
        return Condition("Shedding", False, Reason.SheddingRecommended, f"{text}; spec.shedding.mode only recommends it")
    return Condition("Shedding", False, Reason.NothingShed)


def _degraded(facts: Facts) -> Condition:
    if facts.refused is not None:
        return Condition("Degraded", True, *facts.refused)
    if facts.deleting is not None:
        return Condition("Degraded", False, *facts.deleting)
    if facts.suspended and facts.queries_trouble is None:
        return Condition("Degraded", False, Reason.Suspended)
    if facts.trouble is not None:
        return Condition("Degraded", True, facts.trouble.reason, facts.trouble.message)
    if facts.driver_ready and facts.report is not None and facts.report.problem is not None:
        return Condition("Degraded", True, Reason.DriverUnreachable, facts.report.problem)
    if facts.executors_trouble is not None and _lacks_executors(facts):
        return Condition("Degraded", True, facts.executors_trouble.reason, facts.executors_trouble.message)
    if _state(facts) == "retrying":
        health = facts.report.health if facts.report is not None else {}
        return Condition("Degraded", True, Reason.JoinRetrying, str(health.get("lastFailure") or health.get("lastError") or ""))
    if facts.report is not None and facts.report.health.get("snapshotsWait"):
        return Condition("Degraded", True, Reason.SnapshotsWait, str(facts.report.health["snapshotsWait"]))
    if facts.plan_refused is not None:
        return Condition("Degraded", True, Reason.PlanRefused, facts.plan_refused)
    if facts.plan_dropped is not None:
        return Condition("Degraded", True, Reason.PlanDropped, facts.plan_dropped)
    if facts.executors_trouble is not None:
        return Condition("Degraded", True, facts.executors_trouble.reason, facts.executors_trouble.message)
    if facts.queries_trouble is not None:
        return Condition("Degraded", True, facts.queries_trouble.reason, facts.queries_trouble.message)
    plan = facts.report.plan if facts.report is not None else {}
    if plan.get("warning"):
        return Condition("Degraded", True, Reason.PlanOverCapacity, str(plan["warning"]))
    if not plan and not facts.has_run and facts.first is not None and facts.first.problem:
        return Condition("Degraded", True, Reason.FirstPlanTooFull, facts.first.sentence)
    if facts.definition_lacks is not None:
        return Condition("Degraded", False, Reason.DefinitionOlder, facts.definition_lacks)
    if facts.former_names is not None:
        return Condition("Degraded", False, Reason.FormerName, facts.former_names)
    return Condition("Degraded", False, Reason.Healthy)


def phase(facts: Facts) -> str:
    """One word of Pending, Starting, Running, Rescaling, Suspended, Paused, Failed, Deleting."""
    if facts.deleting is not None:
        return "Deleting"
    if facts.suspended:
        return "Suspended"
    if facts.paused:
        return "Paused"
    if facts.refused is not None and not facts.driver_wanted:
        return "Failed"
    if facts.driver_ready and _answers(facts) and _state(facts) != "starting":
        if _state(facts) == "ended":
            return "Failed"
        if _lacks_executors(facts):
            return "Starting"
        return "Rescaling" if facts.report is not None and facts.report.plan.get("wanted") else "Running"
    if facts.trouble is not None and facts.trouble.reason in (Reason.DriverCrashing, Reason.ImageUnavailable):
        return "Failed"
    if (facts.trouble is not None and facts.trouble.reason is not Reason.DriverNotReady) or not facts.driver_pods:
        return "Pending"
    return "Starting"


def status(facts: Facts, before: Mapping[str, Any], now: str) -> Object:
    """The whole status. ``before``: what is stored; ``now``: for transitions, RFC 3339."""
    plan = facts.report.plan if facts.report is not None else {}
    written: Object = {
        "phase": phase(facts),
        "observedGeneration": facts.generation,
        "selector": facts.selector,
        "conditions": _transitions(conditions(facts), before.get("conditions") or [], facts.generation, now),
    }
    if facts.suspended or facts.deleting is not None:
        written |= {"workers": 0, "desiredWorkers": 0}
    elif plan:
        wanted = plan.get("wanted") or {}
        written["workers"] = plan["workers"]
        written["desiredWorkers"] = facts.wanted_workers or wanted.get("workers") or plan["workers"]
    elif facts.driver_ready and not _answers(facts) and "workers" in before:
        # It may have all its workers, and only miss a question.
        written |= {name: before[name] for name in ("workers", "desiredWorkers") if name in before}
    else:
        written["workers"] = 0
        written["desiredWorkers"] = facts.initial_workers or before.get("desiredWorkers", 0)
    if plan:
        written["plan"] = _plan(plan)
    elif "plan" in before:
        written["plan"] = before["plan"]
    if facts.first is not None and not facts.has_begun:
        written["firstPlan"] = first_plan(facts.first)
    elif "firstPlan" in before:
        written["firstPlan"] = before["firstPlan"]
    utilization = _utilization(facts, before.get("utilization") or {})
    if utilization is not None:
        written["utilization"] = utilization
    measured = facts.report.measured if facts.report is not None else None
    if measured is not None and facts.report is not None and facts.report.metrics_problem is None and measured.utilization:
        written["shedRatio"] = {stream: f"{ratio:.2g}" for stream, ratio in sorted(facts.shed_ratio.items())}
        written["shed"] = f"{max(facts.shed_ratio.values(), default=0.0):.2g}"
    if measured is not None and measured.completeness:
        # Rounded down, so that 1 is said only where nothing was lost.
        written["completeness"] = {
            join: {bound: f"{math.floor(share * 1e4) / 1e4:.4g}" for bound, share in of_join.items() if bound in COMPLETENESS_BOUNDS}
            for join, of_join in sorted(measured.completeness.items())
        }
    last_commit = _last_commit(facts, before)
    if last_commit is not None:
        written["lastCommit"] = last_commit
    written |= _scaling(facts, before)
    if facts.change:
        written["change"] = dict(facts.change)
    if facts.image:
        written["image"] = facts.image
    elif facts.deleting is not None and "image" in before:
        written["image"] = before["image"]
    if facts.queries is not None:
        written["queries"] = dict(facts.queries)
    if facts.memory is not None:
        written["memory"] = facts.memory.arithmetic()
    return written


def status_of_failure(facts: Facts, before: Mapping[str, Any], now: str) -> Object:
    """The status where all that is known is why nothing could be looked at: as it was, but for the condition Degraded."""
    known = before.get("conditions") or []
    if not known:
        return status(facts, before, now)
    degraded = _transitions([_degraded(facts)], known, facts.generation, now)
    return {**before, "conditions": [*(condition for condition in known if condition.get("type") != "Degraded"), *degraded]}


def _utilization(facts: Facts, before: Mapping[str, Any]) -> Object | None:
    """tau, and who says so: Prometheus where workers are scaled by it, else the driver. Since when is kept while the rest is the same."""
    report, by_prometheus = facts.report, facts.by_prometheus
    if report is None or not report.plan:
        return None
    if by_prometheus is not None and by_prometheus.generation == report.plan["generation"]:
        source, at, found = Source.PROMETHEUS, by_prometheus.taken_at, [tau for tau in by_prometheus.tau.values() if tau is not None]
    elif report.measured is not None and report.metrics_problem is None:
        source, at, found = Source.DRIVER, facts.at, list(report.measured.utilization.values())
    else:
        return None
    if not found:
        return None
    now = {"max": f"{max(found):.2f}", "mean": f"{sum(found) / len(found):.2f}", "source": source.value}
    is_same = "at" in before and now == {name: value for name, value in before.items() if name != "at"}
    return {**now, "at": before["at"] if is_same else instant(at)}


def _scaling(facts: Facts, before: Mapping[str, Any]) -> Object:
    """The last decisions, and what the executors have cost."""
    written: Object = {}
    scaler = facts.scaler
    plan = facts.report.plan if facts.report is not None else {}
    if scaler is None or not plan:
        if "decisions" in before:
            written["decisions"] = before["decisions"]
    else:
        recent = scaler.recent(int(plan["generation"]), DECISIONS)
        shown = [_decision(record, became, scaler.why_failed(record) if became == "Failed" else None) for record, became in recent]
        if shown:
            written["decisions"] = shown
    last: Object = before.get("cost") or {}
    if facts.most_workers is None or facts.workers_per_executor is None:
        most = last.get("maxExecutors")
    else:
        most = executors_for(facts.most_workers, facts.workers_per_executor)
    if most is not None:
        written["cost"] = rolled(last or None, at=facts.at, executors=_executors(facts, last), most=most, price=facts.price)
    return written


def _executors(facts: Facts, last: Mapping[str, Any]) -> int:
    """That there are, by the workers; as many as before while the driver does not say, or it is not known how many workers share one."""
    if not facts.driver_pods or not facts.driver_ready:
        return 0
    plan = facts.report.plan if facts.report is not None else {}
    if plan and facts.workers_per_executor is not None:
        return executors_for(int(plan.get("readyWorkers", plan["workers"])), facts.workers_per_executor)
    return int(last.get("executors", 0))


def _decision(record: Record, became: str, why_failed: str | None) -> Object:
    decision, realised = record.decision, record.realised
    shown: Object = {
        "time": instant(record.first_at),
        "rule": "" if decision.rule is None else decision.rule.value,
        "reason": decision.reason.value,
        "outcome": became,
        "workersBefore": decision.workers,
        "workersAfter": decision.target,
        "message": decision.sentence[:1024] + ("" if why_failed is None else f"; it does not run: {why_failed}"),
    }
    if decision.inputs is not None and decision.inputs.tau_max is not None:
        shown["utilization"] = f"{decision.inputs.tau_max:.2f}"
    if decision.prediction is not None:
        shown["predictedUtilization"] = f"{decision.prediction.tau_max:.2f}"
    if realised is not None and realised.tau_max is not None:
        shown["realizedUtilization"] = f"{realised.tau_max:.2f}"
    return shown


def first_plan(first: FirstPlan) -> Object:
    """``status.firstPlan``."""
    written: Object = {
        "workers": first.workers,
        "executors": first.executors,
        "model": first.model,
        "summary": first.summary[:4096],
        "billPerHour": f"{first.bill.total:.2f}",
        "message": first.sentence[:4096],
    }
    if first.tau is not None and first.mean is not None and math.isfinite(first.tau):
        written |= {"utilization": {"max": f"{first.tau:.2f}", "mean": f"{first.mean:.2f}"}}
    return written


def _plan(plan: Mapping[str, Any]) -> Object:
    scheme, switched = plan.get("scheme") or {}, plan.get("switched") or {}
    areas = scheme.get("areas") or []
    written: Object = {
        "generation": plan["generation"],
        "model": scheme.get("model", ""),
        "tasks": plan["workers"],
        "summary": scheme.get("summary") or f"{len(areas)} areas in {plan['workers']} tasks",
    }
    if "movedTuples" in switched:
        written["movedTuples"] = switched["movedTuples"]
    given_up = [ended for ended in plan.get("ended") or [] if ended.get("fate") != "Switched"]
    if given_up:
        fields = ("generation", "fate", "reason")
        written["givenUp"] = [{name: ended[name] for name in fields} for ended in given_up[-GIVEN_UP:]]
    return written


def _transitions(now: list[Condition], before: list[Mapping[str, Any]], generation: int, at: str) -> list[Object]:
    """A condition keeps the time at which its status last changed."""
    old = {condition.get("type"): condition for condition in before}
    written = []
    for condition in now:
        text = "Unknown" if condition.status is None else str(condition.status)
        last = old.get(condition.type, {})
        since = last.get("lastTransitionTime") if last.get("status") == text else None
        written.append(
            {
                "type": condition.type,
                "status": text,
                "reason": condition.reason.name,
                "message": condition.message[:1024],
                "observedGeneration": generation,
                "lastTransitionTime": since or at,
            }
        )
    return written


def patch_of(before: Mapping[str, Any], after: Mapping[str, Any]) -> Object:
    """The merge patch from one status to the other; empty where they are the same."""
    patch: Object = {name: value for name, value in after.items() if before.get(name) != value}
    patch |= {name: None for name in before if name not in after}
    for name, value in patch.items():
        old = before.get(name)
        if isinstance(value, dict) and isinstance(old, Mapping):
            patch[name] = {**value, **{key: None for key in old if key not in value}}
    return patch


def only_measurements(patch: Mapping[str, Any]) -> bool:
    """Whether a patch can wait."""
    return bool(patch) and all(name in MEASUREMENTS for name in patch)


def selector_of(name: str) -> str:
    """``status.selector``, for ``/scale``."""
    return names.selector(name, names.EXECUTOR)
