"""The closed loop on Kubernetes: samples to the decision core, its decisions to the driver's plan API, and what came of them to the ledger.

The core (``streamjoin.elastic.core``, in its ``shell``) decides when, the driver makes the plan. This is what one operator remembers of
one StreamJoin; it does no I/O, which ``reconcile`` does in the order that matters: the ledger and the status first, then the plan.

Always holds: a decision is carried out at most once for each plan that it is about, whichever operator makes it and whenever one is killed
(the wish names the plan that it follows, and the driver refuses it for any other); while a sample cannot be trusted nothing is decided;
what is lost with an operator are the times for which conditions have lasted, and they begin anew. The ledger is bounded in records and
bytes.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from streamjoin.elastic.core import DecisionCore
from streamjoin.elastic.decision import Decision, Kind
from streamjoin.elastic.decision import Reason as Why
from streamjoin.elastic.events import LimitsSet, MigrationFinished, Paused, Resumed, Suspended, Unpaused
from streamjoin.elastic.forecast import Forecast, Prospect
from streamjoin.elastic.ledger import Ledger, Realised, Record
from streamjoin.elastic.plan import Plan
from streamjoin.elastic.planned_forecast import PlannedForecast
from streamjoin.elastic.settings import Mode, Rule, Settings
from streamjoin.elastic.shell import Progress, Shell
from streamjoin.job import Job
from streamjoin.retention import window_seconds
from streamjoin.scheme.statistics import Statistics
from streamjoin.scheme.tiling import Scheme
from streamjoin_operator.measurement import Distrusted, Measurement
from streamjoin_operator.orders import Limits
from streamjoin_operator.reasons import Reason

Object = dict[str, Any]
Told = tuple[str, Reason, str]
"""An event: its type, reason and message."""

RECORDS, MOST_BYTES = 60, 400_000
"""Of the ledger; a ConfigMap may have 1 MiB."""
WRITE_SECONDS = 60.0
"""A ledger in which only holds are new is written at most so often."""
DIRECTIONS = {"in": (Rule.DEALLOCATE,), "out": (Rule.ALLOCATE, Rule.KEEP_UP)}
"""What the annotation streamjoin.dev/pause-scaling may say, and the rules that only recommend then. Any other value pauses all."""


@dataclass(frozen=True, slots=True)
class Applied(Progress):
    """What of ``GET /v1/plan`` is needed."""

    newest: int
    """The generation of the plan that is being applied, or else of the one that runs."""
    wanted_workers: int | None
    starting: int
    """Workers that were asked for and hold nothing yet."""
    given_up: Mapping[int, str]
    """Plans that were accepted and did not come to run, by generation, and why not."""
    withdrawn: frozenset[int] = frozenset()
    """The generations of plans that were not wanted any more."""
    asked: int = 0
    """The workers that were asked for when the plan that runs was switched to: more than it has, where some had not come."""
    first_workers: int = 0
    """Of the join's first plan; 0: not known."""
    reordered: tuple[Decision, ...] = ()
    """What the driver has changed in how streams meet, oldest first."""

    @classmethod
    def of(cls, plan: Mapping[str, Any]) -> Applied:
        wanted, switched, generation = plan.get("wanted"), plan.get("switched"), int(plan["generation"])
        if switched is not None and switched["generation"] == generation:
            waited = switched.get("waitedSeconds")
            took = Realised(
                float(switched["at"]),
                generation,
                None,
                float(switched["movedTuples"]),
                float(switched["pauseSeconds"]),
                None if waited is None else float(waited),
            )
        else:
            took = None
        waits = plan.get("phase") == "WaitingForWorkers"
        ended = plan.get("ended") or []
        return cls(
            generation=generation,
            workers=int(plan["workers"]),
            newest=int((wanted or plan)["generation"]),
            wanted_workers=None if wanted is None else int(wanted.get("asked") or wanted["workers"]),
            starting=(wanted.get("keep") or []).count(None) if wanted is not None and waits else 0,
            migrating_to=int(wanted["workers"]) if wanted is not None and not waits else None,
            given_up=_given_up(ended),
            withdrawn=frozenset(int(one["generation"]) for one in ended if one["fate"] == "Withdrawn"),
            asked=int(switched.get("asked") or 0) if switched is not None and took is not None else 0,
            first_workers=int(plan.get("firstWorkers") or 0),
            reordered=_reordered(plan.get("reordered") or []),
            switched=took,
        )


def _given_up(ended: Sequence[Mapping[str, Any]]) -> dict[int, str]:
    """By generation. A plan that was dropped and the next one may have the same, and then the later one counts."""
    last = {int(plan["generation"]): plan for plan in ended}
    return {generation: str(plan["reason"]) for generation, plan in last.items() if plan["fate"] not in ("Switched", "Withdrawn")}


def _reordered(told: Sequence[Mapping[str, Any]]) -> tuple[Decision, ...]:
    """Without those that a driver of another release says otherwise."""
    found = []
    for one in told:
        with contextlib.suppress(ValueError, KeyError, TypeError):
            found.append(Decision.from_json(one))
    return tuple(decision for decision in found if decision.kind is Kind.REORDER)


def forecast_of(plan: Mapping[str, Any], statistics: Mapping[str, Any], job: Job, shed_fraction: float) -> PlannedForecast | None:
    """From the driver's answers; None where they do not fit the manifest, as of another release. ``shed_fraction``: see PlannedForecast."""
    try:
        scheme = Scheme.from_json(plan["scheme"])
        running = Plan.running(scheme, int(plan["generation"]))
        read = Statistics.from_json(dict(statistics))
        if job.capacity.in_bytes != any(side.weight != 1 for side in read.sides):
            return None
        (main,) = (layout.main for layout in job.layouts if layout.main.text == statistics["predicate"])
    except (ValueError, KeyError, TypeError, ArithmeticError):
        return None
    return PlannedForecast(
        running,
        lambda: read,
        main,
        job.model,
        job.capacity,
        job.scheme_options,
        shed_fraction=shed_fraction,
        clock=time.monotonic,
    )


class _Asked:
    """Knows nothing, and notes whether it was asked: most decisions need no forecast, and then none is made."""

    def __init__(self) -> None:
        self.was_asked = False

    def at(self, workers: int) -> Prospect | None:
        self.was_asked = True
        return None


class Autoscaler:
    """See the module."""

    def __init__(self, stored: Mapping[str, Any] | None = None) -> None:
        """``stored``: what :meth:`document` gave. One that cannot be read is begun anew."""
        self._shell = Shell(Ledger(RECORDS))
        self.measured: Measurement | None = None
        """At the last poll."""
        self.trusted_at: float | None = None
        """When the last one was taken that could be trusted."""
        self.is_new = False
        """Whether the ledger has what is not stored: something else than a hold, or than one said again."""
        self.has_holds = False
        """Whether it has new holds."""
        self.limits: Limits | None = None
        """As they were last noted down; None: never."""
        self.must_store = False
        """Whether it is to be stored before the driver is asked for anything: the limits, or who changed them, or its owner are not."""
        self.written_at = float("-inf")
        self._failed: dict[float, str] = {}
        """By when a decision was first made, why its plan does not run."""
        self._reordered_at = float("-inf")
        """When the driver has last changed how streams meet, as far as it is noted down."""
        self._saved: Mapping[str, Any] | None = None
        self._made: int | None = None
        """The generation of the plan that was put, or waits for workers that had not come, and neither runs yet nor was given up."""
        self._vain: str | None = None
        """Why the last plan was given up; None: another one has been made since, or runs."""
        self.adopt(stored)

    @property
    def ledger(self) -> Ledger:
        return self._shell.ledger

    @property
    def core(self) -> DecisionCore | None:
        """None before the first :meth:`follow`."""
        return self._shell.core

    def adopt(self, stored: Mapping[str, Any] | None) -> None:
        """Take over what is stored, as another operator has written it."""
        if stored is None:
            return
        try:
            self._shell.ledger = Ledger.from_json(stored["ledger"])
            self._failed = {float(at): str(text) for at, text in dict(stored["failed"]).items()}
            self._saved = stored["core"]
            self._reordered_at = float(stored.get("reordered") or "-inf")
            self.limits = None if (limits := stored.get("limits")) is None else dict(limits)
        except (ValueError, KeyError, TypeError):
            self._shell.ledger, self._failed, self._saved, self.limits = Ledger(RECORDS), {}, None, None
        self.was_stored()

    def was_stored(self) -> None:
        """What :meth:`document` gives is stored."""
        self.is_new = self.has_holds = self.must_store = False

    def document(self) -> Object:
        """All that is to survive this operator: plain data, of a bounded size."""
        core = self._saved if self.core is None else self.core.to_json()
        while True:
            known = {record.first_at for record in self.ledger}
            self._failed = {at: text for at, text in self._failed.items() if at in known}
            failed = {str(at): text for at, text in self._failed.items()}
            reordered = self._reordered_at if math.isfinite(self._reordered_at) else None
            value = {"ledger": self.ledger.to_json(), "failed": failed, "core": core, "limits": self.limits, "reordered": reordered}
            if len(self.ledger) <= 1 or len(json.dumps(value)) <= MOST_BYTES:
                return value
            self._shorten()

    def _shorten(self) -> None:
        kept = self.ledger.to_json()
        dropped = max(1, len(kept["records"]) // 4)
        kept["records"], kept["forgotten"] = kept["records"][dropped:], kept["forgotten"] + dropped
        self._shell.ledger = Ledger.from_json(kept)

    def know(self, limits: Limits) -> None:
        """Remember the limits, so that a change of them is noticed by whichever operator sees it first."""
        self.limits, self.must_store = limits, True

    def order(self, limits: Limits, sentence: str, plan: Applied, target: int | None, now: float) -> None:
        """Note down who has changed the limits or the model. ``target``: the workers that follow from it; None: the plan may stay."""
        self.know(limits)
        if target is None:
            kind, target = Kind.HOLD, plan.workers
        else:
            kind = Kind.REPLAN if target == plan.workers else Kind.ALLOCATE if target > plan.workers else Kind.DEALLOCATE
        self.ledger.record(
            Decision(
                at=now,
                kind=kind,
                rule=None,
                reason=Why.ORDERED,
                sentence=sentence,
                generation=plan.generation,
                workers=plan.workers,
                target=target,
                mode=Mode.ENFORCE,
                inputs=None,
                age_seconds=None,
            )
        )

    def follow(self, job: Job, pause: str, plan: Applied, now: float) -> list[Told]:
        """Take in what the manifest, its annotation ``pause`` and the driver say; events of plans that were given up."""
        self._note_reordered(plan)
        settings = settings_of(job, pause, plan.first_workers)
        if self._shell.core is None:
            self._shell.core = self._restored(settings, now)
        noted = self._shell.follow(now, settings, plan, self._realised(plan))
        self.is_new = self.is_new or noted is not None
        core = self._shell.core
        assert core is not None, "follow() makes one"
        core.handle(LimitsSet(now, floor=job.manifest.spec.workers.floor or None))
        core.handle(Paused(now, f"the annotation of the StreamJoin ({pause})") if pause and pause not in DIRECTIONS else Unpaused(now))
        return self._given_up(plan, now)

    def _note_reordered(self, plan: Applied) -> None:
        """What the driver has changed by itself in how streams meet; each change once, whoever notes it down."""
        new = [decision for decision in plan.reordered if decision.at > self._reordered_at]
        for decision in new:  # of several joins, some may be of the same moment
            self.ledger.record(decision)
        if new:
            self._reordered_at, self.is_new = max(decision.at for decision in new), True

    def _restored(self, settings: Settings, now: float) -> DecisionCore | None:
        """The core of an operator before, without what it had measured."""
        if self._saved is None:
            return None
        try:
            core = DecisionCore.from_json(settings, self._saved)
        except (ValueError, TypeError):
            self._saved = None
            return None
        core.handle(MigrationFinished(now))
        core.handle(Resumed(now))
        return core

    def _realised(self, plan: Applied) -> Realised | None:
        """What the switch to the plan that runs took, where a decision led to it: this operator's, or that of one before."""
        made = (record for record in reversed(list(self.ledger)) if record.decision.enforced)
        record = next((record for record in made if record.decision.generation < plan.generation), None)
        if record is None or plan.switched is None:
            return None
        known, decision = record.realised, record.decision
        if known is not None and (known.generation != plan.generation or known.tau_max is not None):
            return None
        tasks = decision.target if decision.prediction is None else decision.prediction.tasks
        if known is None and (plan.asked or plan.workers) not in (decision.target, tasks):
            return None  # somebody else's plan
        return replace(plan.switched, at=max(plan.switched.at, record.first_at))

    def _given_up(self, plan: Applied, now: float) -> list[Told]:
        if self._made is None and plan.asked > plan.workers and plan.newest == plan.generation + 1:
            self._made = plan.newest  # the driver's own, for the workers that have not come
        made = self._made
        if made is None or plan.generation < made == plan.newest:
            return []  # nothing was put, or it is on its way
        self._made = self._vain = None
        if made in plan.withdrawn:
            return []
        why = plan.given_up.get(made)
        if why is None and plan.generation < made:
            why = "the driver knows nothing of it; it may have started anew"
        self._vain = why
        return [] if why is None else self.failed(why, now)

    def suspend(self, now: float) -> None:
        """The join stands still: what was measured counts no more when it goes on."""
        core = self._shell.core
        if core is not None:
            core.handle(Suspended(now))
            core.handle(Resumed(now))

    def rest(self, plan: Applied, now: float) -> None:
        """Nothing is to be decided, and what was measured counts no more when it is again. Orders come true all the same."""
        self._note_reordered(plan)
        self.suspend(now)
        self.measured = self.trusted_at = None
        took = self._realised(plan)
        known = [record.realised.generation for record in self.ledger if record.realised is not None]
        if took is not None and took.generation not in known:
            self.ledger.realised(took.generation, None, took.moved_tuples, took.pause_seconds, took.at)
            self.is_new = True

    def take(self, found: Measurement, plan: Applied) -> list[Told]:
        """What was measured; the event of a plan of which it shows what came true."""
        self.measured = found
        if found.sample is None:
            return []
        if found.distrusted is None:
            self.trusted_at = found.sample.taken_at
        records = [self._shell.take(replace(sample, starting=plan.starting)) for sample in (*found.earlier, found.sample)]
        shown = [("Normal", Reason.Scaled, _outcome(record)) for record in records if record is not None]
        self.is_new = self.is_new or bool(shown)
        return shown

    async def decide(self, plan: Mapping[str, Any], job: Job, statistics: Callable[[], Awaitable[Object | None]], now: float) -> Decision:
        """What to do, noted down. ``statistics`` asks the driver, when a rule wants to know what a change would do."""
        core, probe = self._shell.core, _Asked()
        assert core is not None, "follow() comes first"
        decision = core.decide(now, probe)
        lacking = None if self.measured is None else self.measured.lacking
        if lacking is not None and decision.reason not in (Why.PAUSED, Why.OFF, Why.MIGRATING):
            decision = _held(decision, lacking)
        elif probe.was_asked:
            forecast = await self._forecast_of(plan, job, statistics, decision)
            if forecast is not None:
                decision = await asyncio.to_thread(core.decide, now, forecast)
        last = self.ledger.last
        record = self.ledger.record(decision)
        if record is not last:
            self.has_holds = True
            self.is_new = self.is_new or decision.kind is not Kind.HOLD
        return decision

    async def _forecast_of(
        self, plan: Mapping[str, Any], job: Job, statistics: Callable[[], Awaitable[Object | None]], decision: Decision
    ) -> Forecast | None:
        last = self._shell.reusable_forecast()
        if last is not None:
            return last
        asked = await statistics()
        shed = 0.0 if decision.inputs is None else decision.inputs.shed_fraction or 0.0
        self._shell.forecast = None if asked is None else forecast_of(plan, asked, job, shed)
        return self._shell.forecast

    def wish(self, decision: Decision, plan: Applied, model: str, now: float) -> Object | None:
        """What to put to the driver; None where there is nothing to carry out, or not yet."""
        if not self._shell.due(decision, now) or decision.generation != plan.generation:
            return None
        wanted = plan.wanted_workers
        if wanted is not None:
            more = decision.kind is Kind.ALLOCATE and decision.target > wanted
            # Fewer, or another plan for as many as run: by what was measured while the others were waited for.
            other = decision.kind is not Kind.ALLOCATE and decision.inputs is not None and decision.inputs.starting > 0
            if plan.migrating_to is not None or not (more or other):
                return None
        wish: Object = {"workers": decision.target, "model": model, "after": plan.newest}
        return wish | {"replan": True} if decision.kind is Kind.REPLAN else wish

    def put(self, wish: Object, status: int, text: str, plan: Applied, now: float) -> list[Told]:
        """The driver's answer to a wish."""
        if status == 202:
            self._vain = None
            # For as many as run the plan that waits for more is withdrawn, and none is made.
            is_withdrawn = plan.wanted_workers is not None and wish["workers"] == plan.workers and not wish.get("replan")
            self._made = None if is_withdrawn else plan.newest + 1
        elif status == 200:
            self._shell.pause.begin(now)  # no plan is any better, and none will be in a moment
        elif status in (400, 403, 422):
            return self.failed(text, now)
        return []

    def failed(self, why: str, now: float) -> list[Told]:
        """The plan of the last decision does not run."""
        self._fail(why)
        self._shell.pause.begin(now)
        return [("Warning", Reason.ScalingFailed, why)]

    @property
    def unmet(self) -> str | None:
        """Why there are fewer workers than the last decision wants, where the last plan for more was given up; it is tried again."""
        last = self.ledger.last
        wants = last is not None and last.decision.kind is Kind.ALLOCATE and last.decision.enforced
        return self._vain if wants else None

    def order_failed(self, workers: int, why: str) -> None:
        """The driver refuses a plan for so many workers that nobody here has decided on."""
        self._fail(why, workers)

    def _fail(self, why: str, ordered: int | None = None) -> None:
        """Note it down with the last decision, or with the last order where that is for as many workers."""
        made = (record for record in reversed(list(self.ledger)) if record.decision.enforced)
        record = next((record for record in made if (record.decision.reason is Why.ORDERED) is (ordered is not None)), None)
        if record is None or (ordered is not None and (record.decision.target != ordered or record.realised is not None)):
            return
        if self._failed.get(record.first_at) != why[:500]:
            self._failed[record.first_at] = why[:500]
            self.is_new = True

    def recent(self, generation: int, most: int) -> list[tuple[Record, str]]:
        """The last orders, and decisions to change something, oldest first; what became of each. ``generation``: of the plan that runs."""
        told = [record for record in self.ledger if record.decision.is_told and record.decision.kind is not Kind.REORDER][-most:]
        return [(record, self._became(record, generation)) for record in told]

    def _became(self, record: Record, generation: int) -> str:
        if record.decision.mode is Mode.RECOMMEND:
            return "Recommended"
        is_recall = record.decision.kind is Kind.DEALLOCATE and record.decision.target == record.decision.workers
        if record.realised is not None or record.decision.kind is Kind.HOLD or is_recall:
            return "Applied"  # a limit that calls for no other plan holds at once
        if record.first_at in self._failed:
            return "Failed"
        return "Decided" if record.decision.generation == generation else "Superseded"

    def why_failed(self, record: Record) -> str | None:
        return self._failed.get(record.first_at)


def settings_of(job: Job, pause: str, first_workers: int = 0) -> Settings:
    """The core's settings; ``pause``: the annotation streamjoin.dev/pause-scaling."""
    settings = Settings.of(job.manifest.spec, first_workers, capacity_tuples=job.capacity_tuples, window_seconds=window_seconds(job))
    paused = {rule: Mode.RECOMMEND for rule in DIRECTIONS.get(pause, ()) if settings.mode_of(rule) is Mode.ENFORCE}
    return replace(settings, rules={**settings.rules, **paused}) if paused else settings


def event_of(decision: Decision) -> Told:
    """The event of a decision to change something."""
    reasons = {Kind.ALLOCATE: Reason.Allocating, Kind.DEALLOCATE: Reason.Deallocating, Kind.REPLAN: Reason.Replanning}
    what = f"{decision.kind.value.lower()} to {decision.target} workers: {decision.sentence}"
    return ("Normal", reasons[decision.kind] if decision.enforced else Reason.ScalingRecommended, what)


def _held(decision: Decision, why: Distrusted) -> Decision:
    """Nothing is done while what was measured cannot be trusted, whatever was measured before."""
    return replace(
        decision,
        kind=Kind.HOLD,
        rule=None,
        reason=Why.BAD_SAMPLE,
        sentence=f"{why.reason.name}: {why.text}",
        target=decision.workers,
        mode=Mode.ENFORCE,
        prediction=None,
        candidates=(),
        verdicts=(),
    )


def _outcome(record: Record) -> str:
    decision, realised = record.decision, record.realised
    assert realised is not None, "it has just been noted"
    expected = "" if decision.prediction is None else f", {decision.prediction.tau_max:.2f} was expected"
    return (
        f"from {decision.workers} to {decision.target} workers, plan {realised.generation}: "
        f"tau is {realised.tau_max:.2f}{expected}; {realised.moved_tuples:,.0f} tuples moved, the pause was {realised.pause_seconds:.1f} s"
    )
