"""Plans and decisions in words, for views and the summary."""

from __future__ import annotations

from typing import Any

from streamjoin.cli import wording
from streamjoin.controlplane.replan import PlanPhase, PlanStatus, Switched
from streamjoin.elastic.decision import Decision, Kind
from streamjoin.elastic.settings import Mode


def plan_text(plan: PlanStatus) -> str:
    """``plan 2``, or what is known of the one that is being applied: ``plan 2, then 3 for 4 workers: waiting for workers (2 ready)``."""
    if plan.wanted is None:
        return f"plan {plan.generation}"
    absence = "" if plan.absence is None else f"; {plan.absence}"
    how = {
        PlanPhase.WAITING: f"waiting for workers ({plan.ready_workers} ready{absence})",
        PlanPhase.PREPARING: f"fetching state ({wording.short(plan.to_fetch_bytes)}B to come)",
        PlanPhase.SWITCHING: "switching",
        PlanPhase.RUNNING: "running",
    }[plan.phase]
    return f"plan {plan.generation}, then {plan.wanted.generation} for {wording.plural(plan.wanted.workers, 'worker')}: {how}"


def switch_text(switched: Switched, workers: int) -> str:
    """What a switch took, in a sentence."""
    naive = switched.moved_tuples + switched.kept_tuples
    return (
        f"plan {switched.generation} runs on {wording.plural(workers, 'worker')}: {switched.moved_tuples:,} tuples moved, "
        f"{naive:,} if every worker had begun anew; it took {wording.duration(switched.waited_seconds)} to come "
        f"and {wording.duration(switched.pause_seconds)} more than other epochs"
    )


def decision_text(decision: Decision) -> str:
    """``hold: ...``, ``allocate 1 to 3: ...``."""
    what = decision.kind.value.lower()
    if decision.target != decision.workers:
        what += f" {decision.workers} to {decision.target}"
    if decision.kind is not Kind.HOLD and decision.mode is Mode.RECOMMEND:
        what += " (recommended)"
    return f"{what}: {decision.sentence}"


def decision_record(decision: Decision | None) -> dict[str, Any] | None:
    """The last decision, for JSON lines. The ledger has the rest."""
    if decision is None:
        return None
    return {
        "kind": decision.kind.value,
        "mode": decision.mode.value,
        "reason": decision.reason.value,
        "sentence": decision.sentence,
        "workers": decision.workers,
        "target": decision.target,
    }


def plan_record(plan: PlanStatus | None) -> dict[str, Any] | None:
    """The plan that runs and the one that is being applied, for JSON lines."""
    if plan is None:
        return None
    return {
        "workers": plan.workers,
        "phase": plan.phase.value,
        "wantedGeneration": None if plan.wanted is None else plan.wanted.generation,
        "wantedWorkers": None if plan.wanted is None else plan.wanted.workers,
        "readyWorkers": plan.ready_workers,
        "absence": plan.absence,
        "dropped": plan.dropped,
    }


def switch_record(plan: PlanStatus | None, epoch: int) -> dict[str, Any] | None:
    """The switch of which this was the first epoch; None for any other epoch."""
    switched = None if plan is None else plan.switched
    if switched is None or switched.epoch != epoch:
        return None
    return {
        "waitedSeconds": round(switched.waited_seconds, 6),
        "pauseSeconds": round(switched.pause_seconds, 6),
        "movedTuples": switched.moved_tuples,
        "naiveTuples": switched.moved_tuples + switched.kept_tuples,
    }
