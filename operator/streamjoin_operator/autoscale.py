"""What one operator remembers of the scaling of one StreamJoin, and how it reads a driver's answers for the autoscaler.

Deciding is ``streamjoin.elastic.autoscaler``; its ports are in ``scaling_step``. The ledger is bounded in records and bytes.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from streamjoin.elastic.autoscaler import Autoscaler
from streamjoin.elastic.decision import Decision, Kind
from streamjoin.elastic.ledger import Ledger, Realised, Record
from streamjoin.elastic.plan import Plan
from streamjoin.elastic.planned_forecast import PlannedForecast
from streamjoin.elastic.ports import Progress
from streamjoin.elastic.settings import Mode, Rule, Settings
from streamjoin.elastic.vertical import Headroom
from streamjoin.job import Job
from streamjoin.scheme.statistics import Statistics
from streamjoin.scheme.tiling import Scheme
from streamjoin.sizing import forecast_for, scaling_settings
from streamjoin_operator.measurement import Measurement
from streamjoin_operator.orders import Limits
from streamjoin_operator.reasons import Reason

Object = dict[str, Any]
Told = tuple[str, Reason, str]
"""An event: its type, reason and message."""

RECORDS, MOST_BYTES = 60, 400_000
"""Of the ledger; a ConfigMap may have 1 MiB."""
DIRECTIONS = {"in": (Rule.DEALLOCATE,), "out": (Rule.ALLOCATE, Rule.KEEP_UP)}
"""What the annotation streamjoin.dev/pause-scaling may say, and the rules that only recommend then. Any other value pauses all."""


class Scaler:
    """See the module."""

    def __init__(self, stored: Mapping[str, Any] | None = None) -> None:
        """``stored``: what :meth:`document` gave. One that cannot be read is begun anew."""
        self.autoscaler = Autoscaler(Ledger(RECORDS))
        self.measured: Measurement | None = None
        """At the last poll."""
        self.trusted_at: float | None = None
        """When the last one was taken that could be trusted."""
        self.limits: Limits | None = None
        """As they were last noted down; None: never."""
        self.must_store = False
        """Whether it is to be stored before the driver is asked for anything: the limits, or who changed them, or its owner are not."""
        self.is_enlarging = False
        """Whether workers were being given more memory at the last poll."""
        self.written_at = float("-inf")
        self.adopt(stored)

    def adopt(self, stored: Mapping[str, Any] | None) -> None:
        """Take over what is stored, as another operator has written it."""
        with contextlib.suppress(ValueError, KeyError, TypeError):
            if stored is not None:
                self.autoscaler.adopt(stored)
                self.limits = None if (limits := stored.get("limits")) is None else dict(limits)
                self.must_store = False

    def document(self) -> Object:
        """All that is to survive this operator: plain data, of a bounded size."""
        autoscaler = self.autoscaler
        while True:
            value = autoscaler.document() | {"limits": self.limits}
            if len(autoscaler.ledger) <= 1 or len(json.dumps(value)) <= MOST_BYTES:
                return value
            kept = value["ledger"]
            dropped = max(1, len(kept["records"]) // 4)
            kept["records"], kept["forgotten"] = kept["records"][dropped:], kept["forgotten"] + dropped
            autoscaler.ledger = Ledger.from_json(kept)

    def was_stored(self, at: float) -> None:
        """What :meth:`document` gives is stored."""
        self.autoscaler.was_stored()
        self.must_store, self.written_at = False, at

    def know(self, limits: Limits) -> None:
        """Remember the limits, so that a change of them is noticed by whichever operator sees it first."""
        self.limits, self.must_store = limits, True


def progress_of(plan: Mapping[str, Any]) -> Progress:
    """What of ``GET /v1/plan`` the autoscaler is to know."""
    wanted, switched, generation = plan.get("wanted"), plan.get("switched"), int(plan["generation"])
    took, asked = None, 0
    if switched is not None and switched["generation"] == generation:
        waited = switched.get("waitedSeconds")
        moved, pause = float(switched["movedTuples"]), float(switched["pauseSeconds"])
        took = Realised(float(switched["at"]), generation, None, moved, pause, None if waited is None else float(waited))
        asked = int(switched.get("asked") or 0)
    waits = plan.get("phase") == "WaitingForWorkers"
    ended = plan.get("ended") or []
    # A plan that was dropped and the next one may have the same generation, and then the later one counts.
    last = {int(one["generation"]): one for one in ended}
    return Progress(
        generation=generation,
        workers=int(plan["workers"]),
        newest=int((wanted or plan)["generation"]),
        wanted=None if wanted is None else int(wanted.get("asked") or wanted["workers"]),
        starting=(wanted.get("keep") or []).count(None) if wanted is not None and waits else 0,
        migrating_to=int(wanted["workers"]) if wanted is not None and not waits else None,
        switched=took,
        asked=asked,
        given_up={number: str(one["reason"]) for number, one in last.items() if one["fate"] not in ("Switched", "Withdrawn")},
        withdrawn=frozenset(int(one["generation"]) for one in ended if one["fate"] == "Withdrawn"),
        reordered=_reordered(plan.get("reordered") or []),
    )


def _reordered(told: Sequence[Mapping[str, Any]]) -> list[Decision]:
    """Without those that a driver of another release says otherwise."""
    found = []
    for one in told:
        with contextlib.suppress(ValueError, KeyError, TypeError):
            found.append(Decision.from_json(one))
    return [decision for decision in found if decision.kind is Kind.REORDER]


def forecast_of(plan: Mapping[str, Any], statistics: Mapping[str, Any], job: Job, shed_fraction: float) -> PlannedForecast | None:
    """From the driver's answers; None where they do not fit the manifest, as of another release. ``shed_fraction``: see PlannedForecast."""
    try:
        running = Plan.running(Scheme.from_json(plan["scheme"]), int(plan["generation"]))
        known = Statistics.from_json(dict(statistics))
        if job.capacity.in_bytes != any(side.weight != 1 for side in known.sides):
            return None
        (main,) = (layout.main for layout in job.layouts if layout.main.text == statistics["predicate"])
    except (ValueError, KeyError, TypeError, ArithmeticError):
        return None
    return forecast_for(job, running, known, main, shed_fraction=shed_fraction, clock=time.monotonic)


def settings_of(job: Job, pause: str, first_workers: int = 0, *, vertical: str = "Off", headroom: Headroom | None = None) -> Settings:
    """By what the join is scaled; ``pause``: the annotation streamjoin.dev/pause-scaling; ``vertical``, ``headroom``: by the newest
    manifest, which the job may lag behind."""
    settings = replace(scaling_settings(job, first_workers), vertical=Mode(vertical), headroom=headroom)
    paused = {rule: Mode.RECOMMEND for rule in DIRECTIONS.get(pause, ()) if settings.mode_of(rule) is Mode.ENFORCE}
    return replace(settings, rules={**settings.rules, **paused}) if paused else settings


def event_of(decision: Decision) -> Told:
    """The event of a decision to change something."""
    reasons = {Kind.ALLOCATE: Reason.Allocating, Kind.DEALLOCATE: Reason.Deallocating, Kind.REPLAN: Reason.Replanning}
    reasons[Kind.ENLARGE] = Reason.Enlarging
    to = "" if decision.kind is Kind.ENLARGE else f" to {decision.target} workers"
    what = f"{decision.kind.value.lower()}{to}: {decision.sentence}"
    return ("Normal", reasons[decision.kind] if decision.mode is Mode.ENFORCE else Reason.ScalingRecommended, what)


def outcome_of(record: Record) -> Told:
    """The event of a plan whose first tau was measured."""
    decision, realised = record.decision, record.realised
    assert realised is not None, "it has just been noted"
    expected = "" if decision.prediction is None else f", {decision.prediction.tau_max:.2f} was expected"
    if decision.enlargement is not None and decision.enlarges:
        return "Normal", Reason.Enlarged, f"{decision.enlargement.words} for each worker: tau is {realised.tau_max:.2f}{expected}"
    what = (
        f"from {decision.workers} to {decision.target} workers, plan {realised.generation}: "
        f"tau is {realised.tau_max:.2f}{expected}; {realised.moved_tuples:,.0f} tuples moved, the pause was {realised.pause_seconds:.1f} s"
    )
    return "Normal", Reason.Scaled, what
