"""The status of a StreamJoin from what was observed.

What was observed is in ``facts``, what follows from it for the conditions in ``conditions``.

Always holds: pure; the same observations give the same status, byte for byte, so that nothing is written when nothing changed: no ages, no
times but of transitions, measurements rounded.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from streamjoin.elastic.admission import FirstPlan
from streamjoin.elastic.deployment import executors_for
from streamjoin.elastic.ledger import Record
from streamjoin_operator import names
from streamjoin_operator.conditions import (
    OF_SPEC,
    as_stored,
    conditions,
    degraded_condition,
    epoch_stalled_condition,
    standing,
    with_transitions,
)
from streamjoin_operator.convergence import Outcome, Standing, outcome
from streamjoin_operator.cost import rolled
from streamjoin_operator.facts import Facts, answers
from streamjoin_operator.instants import duration, instant, seconds_of
from streamjoin_operator.measurement import Source

Object = dict[str, Any]

DECISIONS = 5
"""Of the ledger, so many are shown."""
GIVEN_UP = 3
"""Of the plans that did not come to run, so many are shown."""
COMMIT_SECONDS = 300.0
"""``lastCommit`` is written when it is off by so much: a busy join would else be written every few seconds for nothing but that."""
MEASUREMENTS = ("utilization", "lag", "rate", "shed", "shedRatio", "completeness", "deadLetters", "lastCommit")
"""Fields that change all the time while a join is busy."""
STEADY = 0.25
"""``lag`` and ``rate`` are written when they are off by such a share of what is stored."""
COMPLETENESS_BOUNDS = ("estimate", "low", "high")


def status(facts: Facts, before: Mapping[str, Any], now: str) -> Object:  # noqa: C901
    """The whole status. ``before``: what is stored; ``now``: for transitions, RFC 3339."""
    plan = facts.report.plan if facts.report is not None else {}
    stands = standing(facts, before)
    found, known = outcome(stands), before.get("conditions") or []
    written: Object = {
        "phase": found.phase,
        **_generations(found, stands, facts, before),
        "selector": facts.selector,
        "conditions": with_transitions(conditions(facts, found, stands.available), known, found, facts.generation, now),
    }
    if facts.suspended or facts.deleting is not None:
        written |= {"workers": 0, "desiredWorkers": 0}
    elif plan:
        wanted = plan.get("wanted") or {}
        written["workers"] = plan["workers"]
        written["desiredWorkers"] = facts.wanted_workers or wanted.get("workers") or plan["workers"]
    elif facts.driver_ready and not answers(facts) and "workers" in before:
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
    written |= _load(facts, before)
    if measured is not None and measured.dead_letters:
        written["deadLetters"] = dict(sorted(measured.dead_letters.items()))
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
    if facts.sleep is not None:
        written["sleep"] = facts.sleep.shown
    if facts.stands_by and not facts.suspended and facts.deleting is None:
        written["standby"] = _standby(facts, before.get("standby") or {})
    if facts.queries is not None:
        written["queries"] = dict(facts.queries)
    if facts.memory is not None:
        written["memory"] = facts.memory.arithmetic()
    return written


def _standby(facts: Facts, before: Mapping[str, Any]) -> Object:
    """How far the driver that stands by is, in the words of the one at work, and when it last took over."""
    health = facts.report.health if facts.report is not None else {}
    if not health:
        return dict(before) or {"state": "Starting"}
    state = "Missing" if health.get("standby") is None else health["standby"]["state"]
    took_over_at = before.get("tookOverAt") if health.get("tookOverAt") is None else instant(health["tookOverAt"])
    return {"state": state} | ({} if took_over_at is None else {"tookOverAt": took_over_at})


def status_of_failure(facts: Facts, before: Mapping[str, Any], now: str) -> Object:
    """The status where all that is known is why nothing could be looked at: as it was, but for the conditions about the spec."""
    known = before.get("conditions") or []
    available = as_stored("Available", known)
    if available is None:
        return status(facts, before, now)
    stands = standing(facts, before, available)
    found = outcome(stands)
    of_spec = [found.ready, found.reconciling, found.stalled, degraded_condition(facts)]
    others = [condition for condition in known if condition.get("type") not in OF_SPEC]
    written = with_transitions(of_spec, known, found, facts.generation, now)
    return {**before, **_generations(found, stands, facts, before), "conditions": [*written, *others]}


def _generations(found: Outcome, stands: Standing, facts: Facts, before: Mapping[str, Any]) -> Object:
    """The generations that were decided on and that was carried out, and a hash of what the latter asked for."""
    applied_spec = facts.spec_digest if stands.is_carried_out else before.get("appliedSpec")
    values = {"observedGeneration": found.observed, "appliedGeneration": found.applied, "appliedSpec": applied_spec}
    return {name: value for name, value in values.items() if value is not None}


def _last_commit(facts: Facts, before: Mapping[str, Any]) -> str | None:
    """As it is stored, until it is so much older that it is worth a write, or the join stands still."""
    committed_at = facts.report.health.get("committedAt") if facts.report is not None else None
    stored: str | None = before.get("lastCommit")
    if committed_at is None:
        return stored
    is_recent = stored is not None and abs(committed_at - datetime.fromisoformat(stored).timestamp()) < COMMIT_SECONDS
    return stored if is_recent and not epoch_stalled_condition(facts).status else instant(committed_at)


def _load(facts: Facts, before: Mapping[str, Any]) -> Object:
    """How far the join is behind, and how much comes, as they are stored while they are much the same."""
    measured = facts.report.measured if facts.report is not None else None
    if measured is None:
        return {}
    lag, rate = max(measured.lag.values(), default=None), facts.rate
    written: Object = {}
    if lag is not None:
        written["lag"] = _steady(before.get("lag"), lag, duration(lag))
    # Of a join to which nothing has come yet none is written: it would cost a write to say so.
    if "rate" in before or (rate is not None and rate >= 1):
        written["rate"] = before["rate"] if rate is None else _steady(before.get("rate"), rate, f"{float(f'{rate:.2g}'):.12g}")
    return written


def _steady(stored: str | None, value: float, text: str) -> str:
    """The stored text, as long as it tells much the same."""
    if stored is None:
        return text
    known = seconds_of(stored)
    return stored if abs(value - known) <= max(1.0, STEADY * known) else text


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
        recent = scaler.autoscaler.recent(int(plan["generation"]), DECISIONS)
        shown = [_decision(record, became, record.failed if became == "Failed" else None) for record, became in recent]
        if shown:
            written["decisions"] = shown
    last: Object = before.get("cost") or {}
    if facts.most_workers is None or facts.workers_per_executor is None:
        most = last.get("maxExecutors")
    else:
        most = executors_for(facts.most_workers, facts.workers_per_executor) * (2 if facts.stands_by else 1)
    if most is not None:
        written["cost"] = rolled(last or None, at=facts.at, executors=_executors(facts, last), most=most, price=facts.price)
    return written


def _executors(facts: Facts, last: Mapping[str, Any]) -> int:
    """That there are, by the workers, and those of a standby; as many as before while the driver does not say, or it is not known how many
    workers share one."""
    if not facts.driver_pods or not facts.driver_ready:
        return 0
    plan = facts.report.plan if facts.report is not None else {}
    if plan and facts.workers_per_executor is not None:
        standby = (facts.report.health.get("standby") if facts.report is not None else None) or {"workers": 0}
        of_each = (int(plan.get("readyWorkers", plan["workers"])), standby["workers"])
        return sum(executors_for(workers, facts.workers_per_executor) for workers in of_each)
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
        "message": decision.sentence + ("" if why_failed is None else f"; it does not run: {why_failed}"),
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
        "summary": first.summary,
        "billPerHour": f"{first.bill.total:.2f}",
        "message": first.sentence,
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
    given_up = [ended for ended in plan.get("ended") or [] if ended.get("fate") in ("Dropped", "Replaced")]
    if given_up:
        fields = ("generation", "fate", "reason")
        written["givenUp"] = [{name: ended[name] for name in fields} for ended in given_up[-GIVEN_UP:]]
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
