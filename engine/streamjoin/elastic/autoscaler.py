"""The autoscaler: what was measured goes to the decision core, its decision to the ledger, and the plan that was judged to the join.

One, wherever it runs: in the engine (``serve.scaler``), in the operator, in a simulation. Each brings its ports (``ports``), as those of
Flink's autoscaler: how the join is measured, what plans would come to, where decisions are stored, who is told, how a plan is put.

Always holds:

- Pure but for its ports; the time is that of the samples, and it is told.
- A decision is stored before it is carried out, and carried out at most once for each plan that it is about: a wish names the newest plan,
  and whoever knows of a newer one refuses it.
- The plan that is put is the one by which the decision was made, and none is made again. Only where no plan was judged, as without
  statistics, a number of workers is asked for.
- While what was measured cannot be trusted nothing is decided. A plan that is dropped, refused or changes nothing is not tried again at
  once (``pause``).
- The core hears of a plan, and of each migration's beginning and end, once; the tau that is noted as a plan's was measured after the
  plan's first epoch.
- What is lost with a process are the times for which conditions have lasted, and they begin anew.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from streamjoin.elastic.arbitration import Prices
from streamjoin.elastic.core import DecisionCore
from streamjoin.elastic.decision import Decision, Kind, Reason
from streamjoin.elastic.events import (
    LimitsSet,
    MigrationBegun,
    MigrationFinished,
    Paused,
    PlanApplied,
    Resumed,
    SettingsChanged,
    Suspended,
    Unpaused,
)
from streamjoin.elastic.forecast import Forecast, Prospect
from streamjoin.elastic.ledger import Ledger, Realised, Record
from streamjoin.elastic.pause import Pause
from streamjoin.elastic.planned_forecast import PlannedForecast
from streamjoin.elastic.ports import Collected, Outcome, Progress, ScalingPorts, Wish
from streamjoin.elastic.sample import Sample
from streamjoin.elastic.settings import Mode, Settings
from streamjoin.elastic.vertical import Enlarged


class _Probe:
    """Knows nothing, and notes whether it was asked: most decisions need no forecast, and then none is made."""

    def __init__(self) -> None:
        self.was_asked = False

    def at(self, workers: int) -> Prospect | None:
        self.was_asked = True
        return None


class Autoscaler:
    """See the module. Of one join; not thread-safe."""

    def __init__(self, ledger: Ledger | None = None, prices: Prices | None = None) -> None:
        self.ledger, self._prices = Ledger() if ledger is None else ledger, prices
        self.core: DecisionCore | None = None
        """None before the first :meth:`follow`."""
        self.enlarged: Enlarged | None = None
        """More memory than the manifest's, where that was decided; it is kept as the ledger is."""
        self.pause = Pause()
        self.is_new = False
        """Whether the ledger has what is not stored: something else than a hold, or than one said again."""
        self.has_holds = False
        """Whether it has new holds that are not stored."""
        self._saved: Mapping[str, Any] | None = None
        """The core of a process before."""
        self._forecast: PlannedForecast | None = None
        """The last one."""
        self._realised: Realised | None = None
        """Of the last plan that a decision led to; without a tau while none was measured."""
        self._is_migrating = False
        self._made: int | None = None
        """The generation of the plan that was put, or waits for workers that had not come, and neither runs yet nor was given up."""
        self._vain: str | None = None
        """Why the last plan was given up; None: another one has been made since, or runs."""
        self._reordered_at = -math.inf
        """When the driver has last changed how streams meet, as far as it is noted down."""

    # What is kept.

    def document(self) -> dict[str, Any]:
        """All that is to survive this process, as plain data."""
        return {
            "ledger": self.ledger.to_json(),
            "core": self._saved if self.core is None else self.core.to_json(),
            "reordered": self._reordered_at if math.isfinite(self._reordered_at) else None,
            "enlarged": None if self.enlarged is None else self.enlarged.to_json(),
        }

    def adopt(self, stored: Mapping[str, Any]) -> None:
        """Take over what :meth:`document` gave, as another process has written it. Raises ValueError, KeyError or TypeError where it cannot
        be read, and changes nothing."""
        ledger, saved, enlarged = Ledger.from_json(stored["ledger"]), stored["core"], stored.get("enlarged")
        self.enlarged = None if enlarged is None else Enlarged.from_json(enlarged)
        self._reordered_at = float(stored.get("reordered") or "-inf")
        self.ledger, self._saved = ledger, saved
        self.was_stored()

    def was_stored(self) -> None:
        """What :meth:`document` gives is stored."""
        self.is_new = self.has_holds = False

    # A pass.

    async def once(
        self, now: float, settings: Settings, plan: Progress, ports: ScalingPorts, *, paused_by: str | None = None, floor: int | None = None
    ) -> Decision:
        """Decide, and have it carried out. For the other arguments see :meth:`follow`."""
        why = self.follow(now, settings, plan, paused_by=paused_by, floor=floor)
        if why is not None:
            ports.has_failed(why)
        found = await ports.collect()
        for sample in found.samples:
            record = self._take(replace(sample, starting=plan.starting, migrating=self._is_migrating))
            if record is not None:
                ports.came_true(record)
        decision = await self._decide(now, found, ports)
        wish, enlarges = self._wish(decision, plan, now), self._enlarge(decision, settings)
        ports.has_decided(decision, acts=enlarges or wish is not None)
        await ports.store(at_once=enlarges or wish is not None)
        if wish is not None:
            outcome, why = await ports.put(wish)
            self._answered(wish, outcome, why, now)
            if outcome is Outcome.REFUSED:
                ports.has_failed(why)
        return decision

    def follow(
        self, now: float, settings: Settings, plan: Progress, *, paused_by: str | None = None, floor: int | None = None
    ) -> str | None:
        """Take in how far the join is; why the plan of the last decision was given up, the first time.

        The start of workers is what it was measured to be, once it was (``Ledger.start_seconds``), and till then the settings'.
        ``paused_by``: who wants no decisions carried out; ``floor``: the least number of workers for the time being.
        """
        self._note_reordered(plan)
        started = self.ledger.start_seconds
        if started is not None:
            settings = replace(settings, start_seconds=started)
        core = self.core = self.core or self._restored(settings, now) or self._new_core(settings, plan, now)
        if settings != core.settings:
            core.handle(SettingsChanged(now, settings))
            self._forecast = None  # it is of the capacity before, perhaps
        if plan.generation != core.generation:
            core.handle(PlanApplied(now if plan.switched is None else plan.switched.at, plan.generation, plan.workers))
            self.pause.forget()
        if plan.migrating_to is not None and not self._is_migrating:
            core.handle(MigrationBegun(now, plan.migrating_to))
        if plan.migrating_to is None and self._is_migrating:
            core.handle(MigrationFinished(now))
        self._is_migrating = plan.migrating_to is not None
        core.handle(LimitsSet(now, floor=floor))
        core.handle(Unpaused(now) if paused_by is None else Paused(now, paused_by))
        self._note_switch(plan)
        return self._given_up(plan, now)

    def suspend(self, now: float) -> None:
        """The join stands still: what was measured counts no more when it goes on."""
        if self.core is not None:
            self.core.handle(Suspended(now))
            self.core.handle(Resumed(now))

    def rest(self, plan: Progress, now: float) -> None:
        """Nothing is to be decided, and what was measured counts no more when it is again. Orders come true all the same."""
        self._note_reordered(plan)
        self.suspend(now)
        self._note_switch(plan)

    def _new_core(self, settings: Settings, plan: Progress, now: float) -> DecisionCore:
        return DecisionCore(settings, at=now, generation=plan.generation, workers=plan.workers, prices=self._prices)

    def _restored(self, settings: Settings, now: float) -> DecisionCore | None:
        """The core of a process before, without what it had measured."""
        if self._saved is None:
            return None
        try:
            core = DecisionCore.from_json(settings, self._saved, self._prices)
        except (ValueError, TypeError):
            self._saved = None
            return None
        core.handle(MigrationFinished(now))
        core.handle(Resumed(now))
        return core

    def _note_reordered(self, plan: Progress) -> None:
        """Each change once, whoever notes it down; of several joins, some may be of the same moment."""
        new = [decision for decision in plan.reordered if decision.at > self._reordered_at]
        for decision in new:
            self.ledger.record(decision)
            self._reordered_at, self.is_new = max(self._reordered_at, decision.at), True

    def _note_switch(self, plan: Progress) -> None:
        """What the switch to the plan that runs took, once, where a decision led to it: of this process, or of one before."""
        record = next((record for record in self._carried_out if record.decision.generation < plan.generation), None)
        if record is None or plan.switched is None or (self._realised is not None and self._realised.generation == plan.generation):
            return
        known, decision = record.realised, record.decision
        if known is not None and (known.generation != plan.generation or known.tau_max is not None):
            return
        tasks = decision.target if decision.prediction is None else decision.prediction.tasks
        is_ours = self._made == plan.generation or known is not None
        if is_ours or (plan.asked or plan.workers) in (decision.target, tasks):  # else it is somebody else's plan
            self._note(replace(plan.switched, at=max(plan.switched.at, record.first_at)))

    def _given_up(self, plan: Progress, now: float) -> str | None:
        if self._made is None and plan.asked > plan.workers and plan.newest == plan.generation + 1:
            self._made = plan.newest  # the driver's own, for the workers that have not come
        made = self._made
        if made is None or plan.generation < made == plan.newest:
            return None  # nothing was put, or it is on its way
        self._made = self._vain = None
        if made in plan.withdrawn:
            return None
        why = plan.given_up.get(made)
        if why is None and plan.generation < made:
            why = "the driver knows nothing of it; it may have started anew"
        if why is not None:
            self._vain = why
            self._in_vain(why, now)
        return why

    def _take(self, sample: Sample) -> Record | None:
        """Give the core a sample; a decision's record, when this is the first sample to show the tau that it led to."""
        assert self.core is not None, "follow() comes first"
        self.core.handle(sample)
        realised, taus = self._realised, [tau for tau in sample.tau.values() if tau is not None]
        larger = self.enlarging if self.enlarged is not None and self.enlarged.wanted is None else None
        if larger is not None and taus and self.core.ignored is None:
            larger.realised, self.is_new = Realised(sample.taken_at, sample.generation, max(taus), 0.0, 0.0), True
            return larger
        if realised is None or realised.tau_max is not None or not taus:
            return None
        is_of_it = sample.generation == realised.generation and sample.taken_at > realised.at
        return self._note(replace(realised, tau_max=max(taus))) if is_of_it else None

    async def _decide(self, now: float, found: Collected, ports: ScalingPorts) -> Decision:
        """What to do, noted in the ledger."""
        core, probe = self.core, _Probe()
        assert core is not None, "follow() comes first"
        decision = core.decide(now, probe)
        if found.lacking is not None and decision.reason not in (Reason.PAUSED, Reason.OFF, Reason.MIGRATING):
            decision = _held(decision, found.lacking)
        elif probe.was_asked or decision.enforced:  # what is put is judged now, not in a pass before
            shed = 0.0 if decision.inputs is None else decision.inputs.shed_fraction or 0.0
            forecast = self._reusable_forecast(found.unchanged_for) or await ports.forecast(shed)
            self._forecast = forecast if isinstance(forecast, PlannedForecast) else None
            if forecast is not None:
                decision = await ports.judge(lambda: core.decide(now, forecast))
        last = self.ledger.last
        if self.ledger.record(decision) is not last:
            self.has_holds = True
            self.is_new = self.is_new or decision.kind is not Kind.HOLD
        return decision

    def _reusable_forecast(self, at_least: float) -> Forecast | None:
        """The last one, if it is for the running plan and young enough."""
        last, core = self._forecast, self.core
        return last if last and core and last.generation == core.generation and last.serves(at_least) else None

    def _wish(self, decision: Decision, plan: Progress, now: float) -> Wish | None:
        """What to put; None where there is nothing to carry out, or not yet."""
        if not decision.enforced or self.pause.lasts(now):
            return None
        if plan.wanted is not None:
            more = decision.kind is Kind.ALLOCATE and decision.target > plan.wanted
            # Fewer, or another plan for as many as run: by what was measured while the others were waited for.
            other = decision.kind is not Kind.ALLOCATE and decision.inputs is not None and decision.inputs.starting > 0
            if plan.migrating_to is not None or not (more or other):
                return None
        judged, replans = None if self._forecast is None else self._forecast.planned(decision.target), decision.kind is Kind.REPLAN
        serves = judged is not None and not judged.changed
        withdraws = plan.wanted is not None and (serves or (decision.target == plan.workers and not replans))
        if serves and not withdraws:
            self.pause.begin(now)  # no plan is any better, and none will be in a moment
            return None
        if judged is not None:
            judged = replace(judged, plan=replace(judged.plan, generation=plan.newest + 1))
        return Wish(decision.target, plan.newest, None if withdraws else judged, replans, withdraws)

    def _answered(self, wish: Wish, outcome: Outcome, why: str, now: float) -> None:
        if outcome is Outcome.ACCEPTED:
            self._vain, self._made = None, None if wish.withdraws else wish.newest + 1
        elif outcome is Outcome.UNCHANGED:
            self.pause.begin(now)
        elif outcome is Outcome.REFUSED:
            self._in_vain(why, now)

    def _in_vain(self, why: str, now: float) -> None:
        """The plan of the last decision does not run."""
        self._fail(next((record for record in self._carried_out if record.decision.reason is not Reason.ORDERED), None), why)
        self.pause.begin(now)

    def _fail(self, record: Record | None, why: str) -> None:
        if record is not None and record.failed != why[:500]:
            record.failed, self.is_new = why[:500], True

    def _note(self, realised: Realised) -> Record | None:
        self._realised, noted = realised, self.ledger.realised(realised)
        self.is_new = self.is_new or noted is not None
        return noted

    # More memory for the workers that run.

    def _enlarge(self, decision: Decision, settings: Settings) -> bool:
        """Whether that was decided. Whoever brings the ports sees to it, and says :meth:`has_enlarged` or :meth:`cannot_enlarge`."""
        headroom, larger = settings.headroom, decision.enlargement
        if not decision.enlarges or headroom is None or larger is None:
            return False
        self.enlarged = Enlarged(given=headroom.given, most=headroom.most, memory=headroom.memory, wanted=larger.memory)
        return True

    def has_enlarged(self, now: float) -> None:
        """All workers have the memory that is wanted."""
        assert self.enlarged is not None, "it was decided"
        self.enlarged, self.is_new = self.enlarged.had(now), True

    def cannot_enlarge(self, why: str) -> None:
        """They cannot have it, or their driver makes no use of it."""
        assert self.enlarged is not None, "it was decided"
        self._fail(self.enlarging, why)
        self.enlarged, self.is_new = self.enlarged.lacks(why[:500]), True

    def forget_enlarged(self, settings: Settings) -> None:
        """Where the manifest says something else by now."""
        enlarged, headroom, is_enforced = self.enlarged, settings.headroom, settings.vertical is Mode.ENFORCE
        if enlarged is None:
            return
        if headroom is None or not enlarged.counts(is_enforced=is_enforced, given=headroom.given, most=headroom.most):
            self.enlarged, self.is_new = None, True

    @property
    def enlarging(self) -> Record | None:
        """The last decision for more memory, as long as nothing has become of it."""
        if self.enlarged is None or self.enlarged.refused:
            return None
        record = next((record for record in reversed(list(self.ledger)) if record.decision.enlarges), None)
        return None if record is None or record.realised is not None else record

    # What somebody else has decided.

    def order(self, sentence: str, plan: Progress, target: int | None, now: float) -> None:
        """Note down who has changed the limits or the model. ``target``: the workers that follow from it; None: the plan may stay."""
        if target is None:
            kind, target = Kind.HOLD, plan.workers
        else:
            kind = Kind.REPLAN if target == plan.workers else Kind.ALLOCATE if target > plan.workers else Kind.DEALLOCATE
        self.ledger.record(
            Decision(
                at=now,
                kind=kind,
                rule=None,
                reason=Reason.ORDERED,
                sentence=sentence,
                generation=plan.generation,
                workers=plan.workers,
                target=target,
                mode=Mode.ENFORCE,
                inputs=None,
                age_seconds=None,
            )
        )

    def order_failed(self, workers: int, why: str) -> None:
        """A plan for so many workers that nobody here has decided on is refused: noted with the last order, where it is for as many."""
        record = next((record for record in self._carried_out if record.decision.reason is Reason.ORDERED), None)
        self._fail(None if record is None or record.decision.target != workers or record.realised is not None else record, why)

    # What became of decisions.

    @property
    def unmet(self) -> str | None:
        """Why there are fewer workers than the last decision wants, where the last plan for more was given up; it is tried again."""
        last = self.ledger.last
        wants = last is not None and last.decision.kind is Kind.ALLOCATE and last.decision.enforced
        return self._vain if wants else None

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
        if record.failed is not None:
            return "Failed"
        return "Decided" if record.decision.generation == generation else "Superseded"

    @property
    def _carried_out(self) -> list[Record]:
        """What is, or was, to be carried out; newest first."""
        return [record for record in reversed(list(self.ledger)) if record.decision.enforced]


def _held(decision: Decision, why: str) -> Decision:
    """Nothing is done while what was measured cannot be trusted, whatever was measured before."""
    return replace(
        decision,
        kind=Kind.HOLD,
        rule=None,
        reason=Reason.BAD_SAMPLE,
        sentence=why,
        target=decision.workers,
        mode=Mode.ENFORCE,
        prediction=None,
        candidates=(),
        verdicts=(),
    )
