"""A StreamJoin's conditions, and its phase, from what was observed.

Conditions follow the Kubernetes API conventions: each has status, reason, message, observedGeneration and the time of its last transition.

Always holds: pure; the same facts give the same conditions, byte for byte: no ages, no times but of transitions and commits.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from streamjoin_operator.facts import Facts, answers, asked_of, driver_state, lacks_executors
from streamjoin_operator.instants import instant
from streamjoin_operator.pod_trouble import Trouble
from streamjoin_operator.reasons import Reason
from streamjoin_operator.texts import cut

Object = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Condition:
    """One condition as it is now."""

    type: str
    status: bool | None
    reason: Reason
    message: str = ""


def conditions(facts: Facts) -> list[Condition]:
    """All seven, in order."""
    of_work = [stalled_condition(facts), _watermark_held(facts), _metrics(facts), _shedding(facts)]
    return [_ready(facts), _progressing(facts), *of_work, degraded_condition(facts)]


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
    if facts.driver_ready and answers(facts) and driver_state(facts) != "starting":
        if driver_state(facts) == "ended":
            return "Failed"
        if lacks_executors(facts):
            return "Starting"
        return "Rescaling" if facts.report is not None and facts.report.plan.get("wanted") else "Running"
    if facts.trouble is not None and facts.trouble.reason in (Reason.DriverCrashing, Reason.ImageUnavailable):
        return "Failed"
    if (facts.trouble is not None and facts.trouble.reason is not Reason.DriverNotReady) or not facts.driver_pods:
        return "Pending"
    return "Starting"


def _ready(facts: Facts) -> Condition:
    if facts.deleting is not None:
        return Condition("Ready", False, *facts.deleting)
    if facts.suspended:
        return Condition("Ready", False, Reason.Suspending if facts.driver_pods else Reason.Suspended, "spec.suspend is true")
    if facts.paused and not facts.driver_wanted:
        return Condition("Ready", False, Reason.Paused, "spec.paused is true, and no driver was started before")
    if facts.refused is not None and not facts.driver_wanted:
        return Condition("Ready", False, *facts.refused)
    if facts.driver_ready and answers(facts):
        if driver_state(facts) in ("running", "retrying"):
            if lacks_executors(facts):
                trouble = facts.executors_trouble or Trouble(Reason.ExecutorsStarting, _absence(facts))
                return Condition("Ready", False, trouble.reason, trouble.message)
            if (stalled := stalled_condition(facts)).status:
                return Condition("Ready", False, stalled.reason, stalled.message)
            return Condition("Ready", True, Reason.JoinRunning, _unfinished(facts))
        return Condition("Ready", False, Reason.DriverStarting, f"the driver is {driver_state(facts)}")
    if facts.trouble is not None:
        return Condition("Ready", False, facts.trouble.reason, facts.trouble.message)
    if facts.driver_ready:
        problem = facts.report.problem if facts.report is not None else None
        return Condition("Ready", False, Reason.DriverUnreachable, problem or "it has not been asked yet")
    return Condition("Ready", False, Reason.DriverStarting, "the driver's pod is not ready")


def _absence(facts: Facts) -> str:
    """Of a join none of whose workers is there."""
    plan = facts.report.plan if facts.report is not None else {}
    why = f": {plan['absence']}" if plan.get("absence") else ""
    return f"none of {plan.get('workers')} workers has come yet{why}"


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
    if facts.report is not None and facts.report.plan.get("wanted"):
        return Condition("Progressing", True, Reason.Rescaling, _unfinished(facts))
    if facts.rolling or not facts.driver_ready or driver_state(facts) == "starting":
        return Condition("Progressing", True, Reason.DriverStarting)
    return Condition("Progressing", False, Reason.Settled)


def _unfinished(facts: Facts) -> str:
    """What is under way, or kept from being so: workers that are wanted and not there, or there and without a task. Empty: nothing is."""
    plan = facts.report.plan if facts.report is not None else {}
    wanted, workers = plan.get("wanted"), plan.get("workers", 0)
    idle = max(0, plan.get("readyWorkers", 0) - workers)
    has_none = f"{idle} {'worker is' if idle == 1 else 'workers are'} there and without a task" if idle else ""
    if not wanted:
        unmet = facts.scaler.unmet if facts.scaler is not None else None
        return "; ".join(text for text in (has_none, unmet) if text)
    what = f"plan {wanted.get('generation')}: {workers} to {asked_of(wanted)} workers, {plan.get('phase', '')}"
    if asked_of(wanted) != wanted.get("workers"):
        what += f", first to the {wanted.get('workers')} that have come"
    elif has_none:
        what += f", {has_none}"
    why = facts.executors_trouble.message if facts.executors_trouble is not None else plan.get("absence")
    return f"{what}: {why}" if why else what


def _told_by_driver(kind: str, facts: Facts) -> Condition | Mapping[str, Any]:
    """The driver's health, or this condition where it cannot say it."""
    if facts.deleting is not None:
        return Condition(kind, False, *facts.deleting)
    if facts.suspended:
        return Condition(kind, False, Reason.Suspended)
    if facts.report is None or not facts.report.health:
        return Condition(kind, None, Reason.DriverUnreachable if facts.driver_ready else Reason.DriverStarting, "no driver answers")
    return facts.report.health


def stalled_condition(facts: Facts) -> Condition:
    """Whether an epoch stands still, by the driver; unknown while none answers. Without ages: those are in the metrics."""
    health = _told_by_driver("Stalled", facts)
    if isinstance(health, Condition):
        return health
    stalled = health.get("stalled")
    if not stalled:
        return Condition("Stalled", False, Reason.EpochsMove)
    committed_at = health.get("committedAt")
    last = "nothing has been committed yet" if committed_at is None else f"the last commit is of {instant(committed_at)}"
    if stalled.get("step") is None:
        return Condition("Stalled", True, Reason.EpochStalled, f"it is tried again; {last}; {stalled.get('last')}")
    waits_for = ", ".join(stalled.get("waitsFor") or ()) or "an answer to the driver itself, from storage or a broker"
    times = f"; it was given up for that {stalls} times before" if (stalls := stalled.get("stalls")) else ""
    what = f"epoch {stalled.get('epoch')} stands still in step {stalled['step']} and waits for {waits_for}"
    return Condition("Stalled", True, Reason.EpochStalled, f"{what}; {last}{times}")


def _watermark_held(facts: Facts) -> Condition:
    """Whether a stream that is silent holds back what others hold for it, by the driver; unknown while none answers."""
    health = _told_by_driver("WatermarkHeld", facts)
    if isinstance(health, Condition):
        return health
    held = health.get("watermarkHeld")
    if not held:
        return Condition("WatermarkHeld", False, Reason.WatermarksMove)
    remedy = "what other streams hold for it is kept until it has records, or for its idleTimeout"
    return Condition("WatermarkHeld", True, Reason.StreamSilent, f"{held['by']}: no record since {instant(held['since'])}; {remedy}")


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


def degraded_condition(facts: Facts) -> Condition:  # noqa: C901
    """Whether anything is wrong, and the worst of it."""
    if facts.refused is not None:
        return Condition("Degraded", True, *facts.refused)
    if facts.deleting is not None:
        return Condition("Degraded", False, *facts.deleting)
    if facts.suspended and facts.queries_trouble is None and facts.claim_trouble is None:
        return Condition("Degraded", False, Reason.Suspended)
    if facts.trouble is not None:
        return Condition("Degraded", True, facts.trouble.reason, facts.trouble.message)
    if facts.driver_ready and facts.report is not None and facts.report.problem is not None:
        return Condition("Degraded", True, Reason.DriverUnreachable, facts.report.problem)
    if facts.executors_trouble is not None and lacks_executors(facts):
        return Condition("Degraded", True, facts.executors_trouble.reason, facts.executors_trouble.message)
    if driver_state(facts) == "retrying":
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
    if facts.scaler is not None and facts.scaler.unmet is not None:
        return Condition("Degraded", True, Reason.PlanDropped, facts.scaler.unmet)
    if facts.queries_trouble is not None:
        return Condition("Degraded", True, facts.queries_trouble.reason, facts.queries_trouble.message)
    if facts.claim_trouble is not None:
        return Condition("Degraded", True, facts.claim_trouble.reason, facts.claim_trouble.message)
    plan = facts.report.plan if facts.report is not None else {}
    if plan.get("warning"):
        return Condition("Degraded", True, Reason.PlanOverCapacity, str(plan["warning"]))
    if not plan and not facts.has_run and facts.first is not None and facts.first.problem:
        return Condition("Degraded", True, Reason.FirstPlanTooFull, facts.first.sentence)
    if facts.definition_lacks is not None:
        return Condition("Degraded", False, Reason.DefinitionOlder, facts.definition_lacks)
    return Condition("Degraded", False, Reason.Healthy)


def with_transitions(now: list[Condition], before: list[Mapping[str, Any]], generation: int, at: str) -> list[Object]:
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
                "message": cut(condition.message),
                "observedGeneration": generation,
                "lastTransitionTime": since or at,
            }
        )
    return written
