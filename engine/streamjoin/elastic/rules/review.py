"""What a rule looks at: the state of the core, the settings, the time, and the plans that could be made with what they cost.

The rules are functions of a :class:`Review`. It changes neither state nor settings; it notes what was asked and billed, so that the
decision can show it.
"""

from __future__ import annotations

from dataclasses import replace

from streamjoin.elastic.arbitration import Bill, Prices, bill
from streamjoin.elastic.decision import Enlargement, Kind, Reason, Verdict
from streamjoin.elastic.forecast import Asked, Forecast, forecast_of
from streamjoin.elastic.rules.lookahead import coming
from streamjoin.elastic.rules.sentences import duration
from streamjoin.elastic.sample import Reading
from streamjoin.elastic.settings import Mode, Rule, Settings
from streamjoin.elastic.state import State

HOUR = 3600.0
"""Seconds."""


class Review:
    """One look at the join, at ``now``: the seconds of the samples' clock."""

    def __init__(self, state: State, settings: Settings, prices: Prices, now: float, forecast: Forecast | None) -> None:
        """Without a ``forecast`` an analytic one is made of the last sample."""
        self.state, self.settings, self.now = state, settings, now
        # Who looks ahead knows by how much the load is going to grow, and need not fear the worst.
        self.prices = replace(prices, growth=self.coming - 1) if settings.is_predictive else prices
        reading = state.latest
        if forecast is None and reading is not None:
            forecast = forecast_of(reading, settings.capacity_tuples)
        self.asked = Asked(forecast)
        self.bills: dict[int, Bill] = {}
        """Of changes, by the number of workers afterwards."""
        self.stay: Bill | None = None
        """Of changing nothing. None: nobody has asked yet."""
        self.enlargement: Enlargement | None = None
        """More memory, where that was considered."""
        self.held_for: dict[Rule, float] = {}
        """For how many seconds what a rule waits for has been so."""
        # Whoever sets a floor or a ceiling stays within the manifest's limits.
        self.low = min(max(settings.min_workers, state.floor or 1), settings.max_workers)
        self.high = max(min(settings.max_workers, state.ceiling or settings.max_workers), self.low)

    @property
    def latest(self) -> Reading:
        """The last sample."""
        assert self.state.latest is not None, "rules that look at a sample refuse first where there is none"
        return self.state.latest

    @property
    def coming(self) -> float:
        """By which factor what is held is going to grow (``lookahead.coming``)."""
        return coming(self.state, self.settings)

    def blind(self, rule: Rule) -> Verdict | None:
        """The refusal where there is no sample, or only an old one."""
        latest, settings = self.state.latest, self.settings
        if latest is None:
            why = f"; the last one does not count, as {self.state.ignored}" if self.state.ignored else ""
            return self.refuse(rule, Reason.NO_SAMPLE, f"there is no sample of plan {self.state.generation} yet{why}")
        # Of a clock that is ahead as of one that is behind. Long epochs excuse an old sample, but not where workers would go.
        allowed = settings.stale_seconds
        if rule is not Rule.DEALLOCATE:
            allowed += 2 * (latest.epoch_seconds or 0.0)
        age = self.now - latest.taken_at
        if abs(age) > allowed:
            return self.refuse(rule, Reason.STALE, f"the last sample is {duration(age)} old, more than {duration(allowed)}")
        return None

    def off(self, rule: Rule) -> Verdict | None:
        """The refusal where the rule is off."""
        return self.refuse(rule, Reason.OFF, "the rule is off") if self.settings.mode_of(rule) is Mode.OFF else None

    def refuse(self, rule: Rule, reason: Reason, sentence: str) -> Verdict:
        """The rule changes nothing."""
        return Verdict(rule, Kind.HOLD, reason, sentence, self.state.workers)

    def wait(self, rule: Rule, condition: str, seconds: float, after: float) -> Verdict:
        """The rule changes nothing before the condition has held for ``after`` seconds."""
        return self.refuse(rule, Reason.WAITING, f"{condition} for {duration(seconds)}, of {duration(after)}")

    def act(self, rule: Rule, kind: Kind, reason: Reason, sentence: str, target: int) -> Verdict:
        """The rule wants a plan of ``target`` workers."""
        return Verdict(rule, kind, reason, sentence, target, self.settings.mode_of(rule))

    def bill_change(self, workers: int) -> Bill:
        """Of a change to so many workers, which must have been asked about."""
        if workers not in self.bills:
            prospect = self.asked.at(workers)
            assert prospect is not None
            self.bills[workers] = bill(
                workers=workers,
                tau_max=prospect.tau_max,
                tau_mean=prospect.tau_mean,
                moved_tuples=prospect.moved_tuples,
                rate=self.latest.rate,
                changes=True,
                settings=self.settings,
                prices=self.prices,
            )
        return self.bills[workers]

    def bill_stay(self, latest: Reading) -> Bill:
        """Of changing nothing: the workers are as full as they are, and what is shed goes on being shed."""
        if self.stay is None:
            self.stay = bill(
                workers=self.state.workers,
                tau_max=self.settings.unshed(latest.tau_max or 0.0),
                tau_mean=(latest.tau_mean or latest.least_mean) / latest.kept,
                moved_tuples=0.0,
                rate=latest.rate,
                changes=False,
                settings=self.settings,
                prices=self.prices,
            )
        return self.stay
