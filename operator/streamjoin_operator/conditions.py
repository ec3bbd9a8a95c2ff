"""A StreamJoin's conditions from what was observed; those by which others judge its spec are ``convergence``'s.

Conditions follow the Kubernetes API conventions: each has status, reason, message, observedGeneration and the time of its last transition.

Always holds: pure; the same facts give the same conditions, byte for byte: no ages, no times but of transitions and commits.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from streamjoin_operator.convergence import Cause, Condition, Outcome, Standing
from streamjoin_operator.facts import Facts, answers, asked_of, driver_state, lacks_executors, suspension
from streamjoin_operator.instants import instant
from streamjoin_operator.pod_trouble import Trouble
from streamjoin_operator.reasons import Reason
from streamjoin_operator.texts import cut

Object = dict[str, Any]


def standing(facts: Facts, before: Mapping[str, Any], available: Condition | None = None) -> Standing:
    """How far the spec is carried out. ``before``: the stored status; ``available``: likewise, where nothing could be looked at."""
    available = _available(facts) if available is None else available
    refused, unmet = refusal(facts), _unmet(facts)
    if facts.paused:
        is_carried_out = before.get("appliedSpec") == facts.spec_digest
    elif facts.suspended:
        is_carried_out = facts.has_acted and not facts.driver_pods
    else:
        is_carried_out = facts.has_acted and available.status is True and not facts.rolling and unmet is None
    return Standing(
        generation=facts.generation,
        available=available,
        running=running_phase(facts),
        applied=before.get("appliedGeneration"),
        observed=before.get("observedGeneration"),
        is_carried_out=is_carried_out and refused is None and facts.trying is None and facts.deleting is None,
        unmet=unmet,
        refused=refused,
        trying=facts.trying,
        restarting=facts.rolling or not facts.driver_ready or driver_state(facts) == "starting",
        deleting=facts.deleting,
        paused=facts.paused,
        suspended=facts.suspended,
        suspended_by=suspension(facts),
        stopped=not facts.driver_pods,
        has_driver=facts.driver_wanted,
    )


def refusal(facts: Facts) -> Cause | None:
    """Why the operator cannot carry out all of the spec: it refuses it, as do the API server and the driver, or it is kept from acting."""
    if facts.refused is not None:
        return facts.refused
    if facts.claim_trouble is not None:
        return facts.claim_trouble.reason, facts.claim_trouble.message
    return None if facts.plan_refused is None else (Reason.PlanRefused, facts.plan_refused)


def _unmet(facts: Facts) -> Cause | None:
    """What the spec asks for, and is not there yet though the driver runs."""
    if facts.plan_unmet is not None:
        return Reason.Rescaling, facts.plan_unmet
    if facts.resizing is not None:
        return Reason.Resizing, facts.resizing
    queries = facts.queries or {}
    ready, wanted = queries.get("ready", 0), queries.get("replicas", 0)
    if ready < wanted:
        trouble = facts.queries_trouble
        return Reason.QueriesUnready, f"{ready} of {wanted} query servers are ready" if trouble is None else trouble.message
    return None


def conditions(facts: Facts, found: Outcome, available: Condition) -> list[Condition]:
    """All ten, in order."""
    of_spec = [found.ready, found.reconciling, found.stalled, degraded_condition(facts)]
    of_work = [epoch_stalled_condition(facts), _watermark_held(facts), _metrics(facts), _shedding(facts)]
    return [*of_spec, available, _rescaling(facts), *of_work]


OF_SPEC = ("Ready", "Reconciling", "Stalled", "Degraded")
"""Conditions that are about the newest spec; the others are about what runs."""


def running_phase(facts: Facts) -> str:
    """The phase of what runs: Pending, Starting, Running, Rescaling or Failed."""
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


def _available(facts: Facts) -> Condition:
    """Whether a join runs and its results are written, whatever spec it is of."""
    if facts.deleting is not None:
        return Condition("Available", False, *facts.deleting)
    if facts.suspended:
        reason, message = suspension(facts)
        return Condition("Available", False, Reason.Suspending if facts.driver_pods else reason, message)
    if facts.paused and not facts.driver_wanted:
        return Condition("Available", False, Reason.Paused, "spec.paused is true, and no driver was started before")
    if facts.refused is not None and not facts.driver_wanted:
        return Condition("Available", False, *facts.refused)
    if facts.driver_ready and answers(facts):
        if driver_state(facts) in ("running", "retrying"):
            if lacks_executors(facts):
                trouble = facts.executors_trouble or Trouble(Reason.ExecutorsStarting, _absence(facts))
                return Condition("Available", False, trouble.reason, trouble.message)
            if (stalled := epoch_stalled_condition(facts)).status:
                return Condition("Available", False, stalled.reason, stalled.message)
            return Condition("Available", True, Reason.JoinRunning, _unfinished(facts))
        return Condition("Available", False, Reason.DriverStarting, f"the driver is {driver_state(facts)}")
    if facts.trouble is not None:
        return Condition("Available", False, facts.trouble.reason, facts.trouble.message)
    if facts.driver_ready:
        problem = facts.report.problem if facts.report is not None else None
        return Condition("Available", False, Reason.DriverUnreachable, problem or "it has not been asked yet")
    return Condition("Available", False, Reason.DriverStarting, "the driver's pod is not ready")


def _absence(facts: Facts) -> str:
    """Of a join none of whose workers is there."""
    plan = facts.report.plan if facts.report is not None else {}
    why = f": {plan['absence']}" if plan.get("absence") else ""
    return f"none of {plan.get('workers')} workers has come yet{why}"


def _rescaling(facts: Facts) -> Condition:
    """Whether the driver is on its way to another plan, whoever asked for it."""
    if facts.report is not None and facts.report.plan.get("wanted"):
        return Condition("Rescaling", True, Reason.Rescaling, _unfinished(facts))
    return Condition("Rescaling", False, Reason.Settled)


def _unfinished(facts: Facts) -> str:
    """What is under way, or kept from being so: workers that are wanted and not there, or there and without a task. Empty: nothing is."""
    plan = facts.report.plan if facts.report is not None else {}
    wanted, workers = plan.get("wanted"), plan.get("workers", 0)
    idle = max(0, plan.get("readyWorkers", 0) - workers)
    has_none = f"{idle} {'worker is' if idle == 1 else 'workers are'} there and without a task" if idle else ""
    if not wanted:
        unmet = facts.scaler.autoscaler.unmet if facts.scaler is not None else None
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
        return Condition(kind, False, suspension(facts)[0])
    if facts.report is None or not facts.report.health:
        return Condition(kind, None, Reason.DriverUnreachable if facts.driver_ready else Reason.DriverStarting, "no driver answers")
    return facts.report.health


def epoch_stalled_condition(facts: Facts) -> Condition:
    """Whether an epoch stands still, by the driver; unknown while none answers. Without ages: those are in the metrics."""
    health = _told_by_driver("EpochStalled", facts)
    if isinstance(health, Condition):
        return health
    stalled = health.get("stalled")
    if not stalled:
        return Condition("EpochStalled", False, Reason.EpochsMove)
    committed_at = health.get("committedAt")
    last = "nothing has been committed yet" if committed_at is None else f"the last commit is of {instant(committed_at)}"
    if stalled.get("step") is None:
        return Condition("EpochStalled", True, Reason.EpochStalled, f"it is tried again; {last}; {stalled.get('last')}")
    waits_for = ", ".join(stalled.get("waitsFor") or ()) or "an answer to the driver itself, from storage or a broker"
    times = f"; it was given up for that {stalls} times before" if (stalls := stalled.get("stalls")) else ""
    what = f"epoch {stalled.get('epoch')} stands still in step {stalled['step']} and waits for {waits_for}"
    return Condition("EpochStalled", True, Reason.EpochStalled, f"{what}; {last}{times}")


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
    return Condition("MetricsAvailable", True, Reason.MetricsRead, "" if measured is None else measured.note)


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
    if facts.suspended and facts.watch_trouble is not None:
        return Condition("Degraded", True, facts.watch_trouble.reason, facts.watch_trouble.message)
    if facts.suspended and facts.queries_trouble is None and facts.claim_trouble is None:
        return Condition("Degraded", False, suspension(facts)[0])
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
    if facts.resize_trouble is not None:
        return Condition("Degraded", True, facts.resize_trouble.reason, facts.resize_trouble.message)
    if facts.scaler is not None and facts.scaler.autoscaler.unmet is not None:
        return Condition("Degraded", True, Reason.PlanDropped, facts.scaler.autoscaler.unmet)
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


def with_transitions(now: list[Condition], before: list[Mapping[str, Any]], found: Outcome, generation: int, at: str) -> list[Object]:
    """A condition keeps the time at which its status last changed, and has the generation of what it is about."""
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
                "message": cut(condition.message or condition.reason.value),
                "observedGeneration": generation if condition.type in OF_SPEC or found.applied is None else found.applied,
                "lastTransitionTime": since or at,
            }
        )
    return written


def as_stored(kind: str, stored: list[Mapping[str, Any]]) -> Condition | None:
    """A condition as the status has it; None where it has none, or one that another release has written."""
    found = next((condition for condition in stored if condition.get("type") == kind), None)
    if found is None or found.get("reason") not in Reason.__members__:
        return None
    return Condition(kind, {"True": True, "False": False}.get(found["status"]), Reason[found["reason"]], found["message"])
