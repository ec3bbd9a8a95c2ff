"""What is the same around the decision core wherever it runs: in the engine, in the operator, in a simulation.

It makes the core, tells it what becomes of plans, notes in the ledger what came true of them, and remembers what was in vain and what was
forecast. Who calls it observes the join, says which outcome is that of its own decision, and carries decisions out.

Always holds: pure, as the core; the core hears of a plan, and of each migration's beginning and end, once; the tau that is noted as a
plan's was measured after the plan's first epoch.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from streamjoin.elastic.arbitration import Prices
from streamjoin.elastic.core import DecisionCore
from streamjoin.elastic.decision import Decision
from streamjoin.elastic.events import MigrationBegun, MigrationFinished, PlanApplied, SettingsChanged
from streamjoin.elastic.forecast import Forecast
from streamjoin.elastic.ledger import Ledger, Realised, Record
from streamjoin.elastic.pause import Pause
from streamjoin.elastic.planned_forecast import PlannedForecast
from streamjoin.elastic.sample import Sample
from streamjoin.elastic.settings import Settings


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a join is with its plans."""

    generation: int
    workers: int
    """Of the plan that runs."""
    migrating_to: int | None
    """The workers of the plan to which state is on the move."""
    switched: Realised | None
    """What the switch to the plan that runs took, without tau; None where that is not known."""


class Shell:
    """See the module. Not thread-safe. Times are seconds by the clock of the samples."""

    def __init__(self, ledger: Ledger, prices: Prices | None = None) -> None:
        self.ledger, self.pause, self._prices = ledger, Pause(), prices
        self.core: DecisionCore | None = None
        """None before the first :meth:`follow`, unless it was restored."""
        self.forecast: PlannedForecast | None = None
        """The last one; see :meth:`reusable_forecast`."""
        self._realised: Realised | None = None
        """Of the last plan that a decision led to; without a tau while none was measured."""
        self._is_migrating = False

    def follow(self, now: float, settings: Settings, plan: Progress, realised: Realised | None = None) -> Record | None:
        """Take in how far the join is.

        The start of workers is what it was measured to be, once it was (``Ledger.start_seconds``), and till then the settings'.

        ``realised``: what the switch to the plan that runs took, if a decision led to it; may be said again. Returns the record of that
        decision the first time.
        """
        core = self.core
        started = self.ledger.start_seconds
        if started is not None:
            settings = replace(settings, start_seconds=started)
        if core is None:
            core = self.core = DecisionCore(settings, at=now, generation=plan.generation, workers=plan.workers, prices=self._prices)
        if settings != core.settings:
            core.handle(SettingsChanged(now, settings))
        if plan.generation != core.generation:
            core.handle(PlanApplied(now if plan.switched is None else plan.switched.at, plan.generation, plan.workers))
            self.pause.forget()
        if plan.migrating_to is not None and not self._is_migrating:
            core.handle(MigrationBegun(now, plan.migrating_to))
        if plan.migrating_to is None and self._is_migrating:
            core.handle(MigrationFinished(now))
        self._is_migrating = plan.migrating_to is not None
        last = self._realised
        return None if realised is None or (last is not None and last.generation == realised.generation) else self._note(realised)

    def take(self, sample: Sample) -> Record | None:
        """Give the core a sample, and say in it whether state migrates.

        Returns a decision's record when this is the first sample to show the tau that it led to.
        """
        assert self.core is not None, "follow() comes first"
        self.core.handle(replace(sample, migrating=self._is_migrating))
        realised, taus = self._realised, [tau for tau in sample.tau.values() if tau is not None]
        if realised is None or realised.tau_max is not None or not taus:
            return None
        is_of_it = sample.generation == realised.generation and sample.taken_at > realised.at
        return self._note(replace(realised, tau_max=max(taus))) if is_of_it else None

    def decide(self, now: float, forecast: Forecast) -> Decision:
        """What to do, noted in the ledger."""
        assert self.core is not None, "follow() comes first"
        decision = self.core.decide(now, forecast)
        self.ledger.record(decision)
        return decision

    def due(self, decision: Decision, now: float) -> bool:
        """Whether to carry it out: not soon after a plan that was in vain."""
        return decision.enforced and not self.pause.lasts(now)

    def reusable_forecast(self, at_least: float = 0.0) -> PlannedForecast | None:
        """The last forecast, if it is for the running plan and young enough (``at_least``: see ``PlannedForecast.serves``)."""
        last, core = self.forecast, self.core
        return last if last and core and last.generation == core.generation and last.serves(at_least) else None

    def _note(self, realised: Realised) -> Record | None:
        self._realised = realised
        return self.ledger.realised(
            realised.generation,
            realised.tau_max,
            realised.moved_tuples,
            realised.pause_seconds,
            realised.at,
            realised.waited_seconds,
        )
