"""The rules: from what the core remembers to a decision. ESJ's thresholds ("Adapting to the varying workload"), and what ESJ leaves open.

Which tau counts::

    allocate    the fullest worker's, as it would be if it shed nothing (shedding holds tau between tau2 and tau3, so that ESJ's rule to
                the letter would shed for ever). Where a re-plan at the same size would bring it below tau2, and costs less, that is done
                instead: a full worker at a low mean is an imbalance
    deallocate  the mean: it says how much capacity lies idle; the fullest worker's predicted tau must still be about tau1
    replan      the fullest worker's against the mean; or the streams' ratio, whichever worker is full
    keepUp      none: epochs that take longer than their interval while what waits grows

How many workers: the fewest whose predicted fullest tau is about tau1, in both directions, which is what keeps a constant load from making
the number swing. Up by the present load; down by the largest of the last ``scaleDownAfter``.

All of that is the policy ``thresholds``. With ``predictive`` ``allocate`` acts when the fullest worker's tau is going to reach tau2, for
what the window will hold at the rates of now and what that worker's share of it is going to be (``outlook``), and ``deallocate`` once idle
workers have cost more than a change and the way back, or sooner where they were idle for long before (``spells``); both aim at
``Settings.level``. The policy ``esj`` is in ``esj``. The rule ``shed`` changes no plan: it says what the engine does by the same tau.

With a budget for lost results (``Settings.budget``) a full worker is relieved as soon as the budget would be spent before added workers
were there, whatever its tau; before that only where the bill of some change is lower than that of losing results.

Always holds: what ``core`` promises. Each rule gives one verdict, and a refusal has its reason.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from streamjoin.elastic.arbitration import Bill, Prices, bill
from streamjoin.elastic.decision import Candidate, Decision, Kind, Reason, Verdict
from streamjoin.elastic.forecast import Asked, Forecast, Prospect, forecast_of
from streamjoin.elastic.outlook import Pair
from streamjoin.elastic.sample import Reading
from streamjoin.elastic.settings import Mode, Policy, Rule, Settings
from streamjoin.elastic.state import State

_LONGEST_BACKOFF = 6
"""Re-plans in vain double the time before the next one, at most so often."""
_AS_GOOD = 1 + 1e-6
"""Fewer workers are as good as more ones when tau is the same, but for rounding. With more tolerance a higher tau could get fewer."""
_NO_BETTER = 0.98
"""More workers that leave this part of tau, or more of it, do not help."""
_SAME_RATE = 0.9
"""From this part on of a rate that workers could not keep up with, as many of them are not tried again."""
_HOUR = 3600.0
"""Seconds."""
_SEEN_COMING = 0.25
"""What is foreseen must be foreseen for this part of ``scale_up_after``."""
_FORESIGHT_SECONDS = 30.0
"""Beside a worker's start: what is foreseen is to be there so much earlier."""
_BUSIER = 1.1
"""A season that says less than so many times the rates of now changes little, and is not spoken of."""
_LEAST_EFFECT = 0.1
"""Workers that were added must have brought this part of what was expected of them."""


@dataclass(frozen=True, slots=True)
class _Offer:
    """Fewer workers, what the others have cost since they were needed last, and what it costs to go there and back, or as much less as
    spells of idleness so far make it worth to wait for; in worker-hours."""

    workers: int
    prospect: Prospect
    idle: float
    price: float


def expected_tau(state: State, settings: Settings, tau_max: float, seconds: float | None = None) -> float:
    """The fullest worker's tau if nothing were shed: now, or by the policy ``predictive`` when added workers would be there (or in so many
    ``seconds``), if more.

    By ``esj`` as it is.
    """
    if settings.policy is Policy.ESJ:
        return tau_max
    now = settings.unshed(tau_max)
    if not settings.is_predictive:
        return now
    seconds = ahead(settings) if seconds is None else seconds
    return now * max(1.0, _grown(state, settings, seconds)) * state.trend.growth(seconds)


def _grown(state: State, settings: Settings, seconds: float) -> float:
    """What will be held in so many seconds / what is held now: at the rates of now, or at those of the season, if more."""
    outlook, spans = state.outlook, settings.window_seconds
    season = state.season.rates(seconds)
    return outlook.growth(spans, seconds, None if season is None else _larger(outlook.rates, season))


def _larger(first: Pair, second: Pair) -> Pair:
    return max(first[0], second[0]), max(first[1], second[1])


def budget_ends(settings: Settings, reading: Reading) -> bool:
    """Whether the budget for lost results is going to be spent before workers that are added after ``scale_up_after`` would be there."""
    left = reading.budget_seconds
    return settings.budget is not None and left is not None and left <= ahead(settings) + settings.scale_up_after


def full_tau(state: State, settings: Settings) -> float:
    """From which expected tau on a worker counts as full. By ``predictive`` below tau2 by what forecasts are wrong by, at most half-way to
    the level that changes aim at, or they would aim too high."""
    if not settings.is_predictive:
        return settings.tau3
    return settings.tau2 - min(state.outlook.margin, (settings.tau2 - settings.level) / 2)


def ahead(settings: Settings) -> float:
    """How far ``predictive`` looks ahead, in seconds: until a worker that is asked for now is there, and a little more."""
    return settings.start_seconds + settings.interval_seconds + _FORESIGHT_SECONDS


class Review:
    """What to do at ``now`` by the policies ``thresholds`` and ``predictive``. Changes nothing."""

    def __init__(self, state: State, settings: Settings, prices: Prices, now: float, forecast: Forecast | None) -> None:
        self.state, self.settings, self.now = state, settings, now
        # Who looks ahead knows by how much the load is going to grow, and need not fear the worst.
        self.prices = replace(prices, growth=self._coming - 1) if settings.is_predictive else prices
        reading = state.latest
        if forecast is None and reading is not None:
            forecast = forecast_of(reading, settings.capacity_tuples)
        self.asked = Asked(forecast)
        self.bills: dict[int, Bill] = {}
        self.stay: Bill | None = None
        self.held_for: dict[Rule, float] = {}
        # Whoever sets a floor or a ceiling stays within the manifest's limits.
        self.low = min(max(settings.min_workers, state.floor or 1), settings.max_workers)
        self.high = max(min(settings.max_workers, state.ceiling or settings.max_workers), self.low)

    # What it comes to.

    def decision(self) -> Decision:
        state, settings = self.state, self.settings
        if state.suspended:
            return self._nothing(Reason.SUSPENDED, "the join is suspended")
        if state.paused is not None:
            return self._nothing(Reason.PAUSED, "decisions are paused" + (f" by {state.paused}" if state.paused else ""))
        if settings.is_off:
            return self._nothing(Reason.OFF, "every rule is off")
        if state.migrating_to is not None or (state.latest is not None and state.latest.migrating):
            to = "" if state.migrating_to is None else f" to a plan of {_workers(state.migrating_to)}"
            return self._nothing(Reason.MIGRATING, f"state is on the move{to}")
        verdicts = (self._allocate(), self._keep_up(), self._replan(), self._deallocate(), *self._shed())
        chosen = _choose(verdicts)
        if chosen is None:
            return self._hold(verdicts)
        refusal = self._not_now(chosen, for_a_full_worker=chosen is verdicts[0])
        if refusal is not None:
            said = tuple(refusal if verdict is chosen else verdict for verdict in verdicts)
            return self._made(Kind.HOLD, chosen.rule, refusal.reason, refusal.sentence, state.workers, Mode.ENFORCE, said, None)
        prediction = self.asked.at(chosen.target)
        return self._made(chosen.kind, chosen.rule, chosen.reason, chosen.sentence, chosen.target, chosen.mode, verdicts, prediction)

    def _not_now(self, chosen: Verdict, *, for_a_full_worker: bool) -> Verdict | None:
        """Why what would be carried out must not begin at this time. Limits on workers are orders, and lost tuples do not come back."""
        settings, state = self.settings, self.state
        if chosen.mode is not Mode.ENFORCE or chosen.reason in (Reason.BELOW_FLOOR, Reason.ABOVE_CEILING):
            return None
        latest = state.latest
        loses = latest is not None and ((latest.shed_fraction or 0) > 0 or (latest.tau_max or 0) >= 1)
        # What may be lost by the budget is no reason to act at any time.
        within = settings.budget is not None and latest is not None and latest.budget_seconds is not None and state.spending is None
        if for_a_full_worker and loses and not within:
            return None
        window = settings.quiet_at(self.now)
        if window is not None:
            return self._refuse(chosen.rule, Reason.QUIET, f"{chosen.sentence}; but it is quiet from {window}")
        recent = [at for at in state.changes if self.now - at < _HOUR]
        if settings.max_per_hour and len(recent) >= settings.max_per_hour:
            ends = _seconds(recent[-settings.max_per_hour] + _HOUR - self.now)
            text = f"{chosen.sentence}; but there were {len(recent)} changes within the hour, and {settings.max_per_hour} may be; in {ends}"
            return self._refuse(chosen.rule, Reason.TOO_OFTEN, text)
        return None

    def _hold(self, verdicts: tuple[Verdict, ...]) -> Decision:
        """The refusal that says most: of a rule that would have acted, else that nothing calls for a change."""
        plain = (Reason.OFF, Reason.STEADY)
        telling = next((verdict for verdict in verdicts if verdict.reason not in plain), None)
        shown = telling or next((verdict for verdict in verdicts if verdict.reason is Reason.STEADY), verdicts[0])
        rule = telling.rule if telling is not None else None
        return self._made(Kind.HOLD, rule, shown.reason, shown.sentence, self.state.workers, Mode.ENFORCE, verdicts, None)

    def _nothing(self, reason: Reason, sentence: str) -> Decision:
        return self._made(Kind.HOLD, None, reason, sentence, self.state.workers, Mode.ENFORCE, (), None)

    def _made(
        self,
        kind: Kind,
        rule: Rule | None,
        reason: Reason,
        sentence: str,
        target: int,
        mode: Mode,
        verdicts: tuple[Verdict, ...],
        prediction: Prospect | None,
    ) -> Decision:
        settings, latest = self.settings, self.state.latest
        tau = latest.tau_max if latest is not None else None
        considered = sorted((workers, found) for workers, found in self.asked.answers.items() if found is not None)
        return Decision(
            at=self.now,
            kind=kind,
            rule=rule,
            reason=reason,
            sentence=sentence,
            generation=self.state.generation,
            workers=self.state.workers,
            target=target,
            mode=mode,
            inputs=latest,
            age_seconds=None if latest is None else self.now - latest.taken_at,
            held_for=None if rule is None else self.held_for.get(rule),
            shed_factor=settings.shed_factor(tau or 0.0),
            thresholds={name: getattr(settings, name) for name in _THRESHOLDS},
            candidates=tuple(Candidate(workers, found, self.bills.get(workers)) for workers, found in considered),
            stay=self.stay,
            prediction=prediction,
            verdicts=verdicts,
        )

    # The rules.

    def _allocate(self) -> Verdict:
        rule, state, settings = Rule.ALLOCATE, self.state, self.settings
        if settings.mode_of(rule) is Mode.OFF and settings.mode_of(Rule.REPLAN) is Mode.OFF:
            return self._refuse(rule, Reason.OFF, "the rule is off")
        answer = self._below_floor() or self._blind(rule)
        if answer is not None:
            return answer
        latest, hold = self._latest, state.full
        tau, spending = latest.tau_max, state.spending
        if spending is not None and spending.until >= latest.taken_at and spending.seconds >= settings.scale_up_after:
            self.held_for[rule] = spending.seconds
            return self._relieve(latest, spending.seconds)
        if hold is None:
            known = "" if latest.complete else f" of {latest.known} of {latest.workers} workers"
            shown = "is not known" if tau is None else f"({tau:.2f}{known}) {self._below(tau)}"
            if not latest.complete:
                return self._refuse(rule, Reason.BAD_SAMPLE, f"the fullest worker's tau {shown}, and the sample is partial")
            return self._refuse(rule, Reason.STEADY, f"the fullest worker's tau {shown}")
        self.held_for[rule] = hold.seconds
        if hold.until < latest.taken_at:
            return self._refuse(rule, Reason.BAD_SAMPLE, f"a worker was full, and the last sample does not say: {_listed(latest.problems)}")
        after = settings.scale_up_after * (_SEEN_COMING if settings.is_predictive else 1)
        if settings.is_predictive and tau is not None and settings.unshed(tau) >= settings.tau2:
            # It is not foreseen, but so: what is held does not come and go with a burst.
            after = 0.0
        if hold.seconds < after:
            return self._wait(rule, f"tau {self._reached}", hold.seconds, after)
        return self._relieve(latest, hold.seconds)

    def _below_floor(self) -> Verdict | None:
        """More workers without a look at any sample, where there are fewer than there must be."""
        rule, state = Rule.ALLOCATE, self.state
        starting = state.latest.starting if state.latest is not None else 0
        if state.workers + starting >= self.low or self.settings.mode_of(rule) is Mode.OFF:
            return None
        text = f"the plan has {_workers(state.workers)}, and at least {self.low} are wanted"
        return self._act(rule, Kind.ALLOCATE, Reason.BELOW_FLOOR, text, self.low)

    @property
    def _reached(self) -> str:
        """What the rule ``allocate`` waits for, in words."""
        settings = self.settings
        return f"is soon above tau2 ({settings.tau2:g})" if settings.is_predictive else f"is at or above tau3 ({settings.tau3:g})"

    def _below(self, tau: float) -> str:
        settings = self.settings
        if not settings.is_predictive:
            return f"is below tau3 ({settings.tau3:g})"
        soon, when = expected_tau(self.state, settings, tau), _seconds(ahead(settings))
        said = f"{soon:.2f} is expected in {when}{self._by_season}"
        return f"stays below {full_tau(self.state, settings):.2f} (tau2 is {settings.tau2:g}): {said}"

    @property
    def _by_season(self) -> str:
        """What the season says of the rates until workers could be there, if it is more than they are now."""
        state = self.state
        season, now = state.season.highest(ahead(self.settings)), sum(state.outlook.rates)
        if season is None or sum(season) <= _BUSIER * now:
            return ""
        most = state.season.factor
        low, high = sum(season) / most, sum(season) * most
        return f" (at this time of the {state.season.name} {low:,.0f} to {high:,.0f} tuples/s come; now {now:,.0f})"

    def _relieve(self, latest: Reading, seconds: float) -> Verdict:
        """A worker has been full for long enough: more workers, or a better plan for as many."""
        rule, state, settings = Rule.ALLOCATE, self.state, self.settings
        tau = latest.tau_max or 0.0
        now = settings.unshed(tau)
        shown = f"{tau:.2f}" + (f"; {now:.2f} if nothing were shed" if now > tau else "")
        if settings.is_predictive:
            soon, when = expected_tau(state, settings, tau), _seconds(ahead(settings))
            near = f"above {full_tau(state, settings):.2f} (tau2 is {settings.tau2:g}){_by(latest)}"
            why = f"tau of the fullest worker ({shown}) is going to be {soon:.2f} in {when}{self._by_season}, {near}"
        else:
            why = f"tau of the fullest worker ({shown}) has been at or above tau3 ({settings.tau3:g}) for {_seconds(seconds)}{_by(latest)}"
        reason = Reason.FULL
        if self._is_spending:
            reason, left = Reason.BUDGET, _seconds(latest.budget_seconds or 0.0)
            why = f"so many results are lost to shedding that the budget ({self._budget}) lasts {left} more; tau is {shown}{_by(latest)}"
        capacity = state.workers + latest.starting
        here = self.asked.at(state.workers)
        replan = self._replan_relieves(latest, here)
        spared = self._spare(latest, why, capacity, replan)
        if spared is not None:
            return spared
        if replan is not None and settings.is_predictive:
            lead = settings.interval_seconds + _FORESIGHT_SECONDS
            by_then = expected_tau(state, settings, tau, lead)
            if by_then < full_tau(state, settings):
                # Nobody has to start for it, and the later it is made, the more it knows.
                text = f"{why}; another plan of as many workers is soon enough later: {by_then:.2f} is expected in {_seconds(lead)}"
                return self._refuse(rule, Reason.WAITING, text)
        if replan is not None and settings.mode_of(rule) is not Mode.ENFORCE:
            return replan
        if settings.mode_of(rule) is Mode.OFF:
            return self._refuse(rule, Reason.OFF, f"{why}, but the rule is off, and a re-plan would not help")
        target = self._target_up(latest, capacity)
        if target <= capacity:
            if replan is not None:
                return replan
            if latest.starting:
                text = f"{why}; with the {_workers(latest.starting)} that are starting, {capacity} are enough"
                return self._refuse(rule, Reason.STARTING, text)
            return self._refuse(rule, Reason.AT_LIMIT, f"{why}, but {_workers(capacity)} are the most allowed ({self.high})")
        prospect = self.asked.at(target)
        if prospect is not None and prospect.tau_max > _NO_BETTER * (here.tau_max if replan is not None and here is not None else now):
            if replan is not None:
                return replan
            text = f"{why}, but {target} workers would leave it at {prospect.tau_max:.2f}, against {now:.2f} now"
            return self._refuse(rule, Reason.NO_GAIN, text)
        if prospect is not None:
            self._bill_stay(latest)
            change = self._bill(target).total
            # A re-plan because it is cheaper is thrift, which numbers that nobody confirms are not enough for.
            if replan is not None and latest.unconfirmed is None and (settings.is_predictive or self._bill(state.workers).total < change):
                return replan
        then = "" if prospect is None else f", where it should be {prospect.tau_max:.2f}"
        return self._act(rule, Kind.ALLOCATE, reason, f"{why}: {_from_to(state.workers, target)}{then}", target)

    @property
    def _is_spending(self) -> bool:
        """Whether the budget is about to be spent, for long enough to act."""
        spending = self.state.spending
        return spending is not None and spending.seconds >= self.settings.scale_up_after

    @property
    def _budget(self) -> str:
        assert self.settings.budget is not None
        return self.settings.budget.words

    def _spare(self, latest: Reading, why: str, capacity: int, replan: Verdict | None) -> Verdict | None:
        """The refusal to relieve a full worker whose losses are within the budget, where every change costs more than it saves."""
        settings, left = self.settings, latest.budget_seconds
        if settings.budget is None or left is None or self._is_spending or budget_ends(settings, latest):
            return None
        stay, costs = self._bill_stay(latest), []
        if replan is not None:
            costs.append(self._bill(self.state.workers).total)
        target = self._target_up(latest, capacity)
        if target > capacity and self.asked.at(target) is not None:
            costs.append(self._bill(target).total)
        if not costs or min(costs) < stay.total:
            return None
        lasts = f"the budget ({self._budget}) lasts" + ("" if left >= settings.budget.over_seconds else f" {_seconds(left)} more")
        bills = f"a change costs {min(costs):.3g} worker-hours, and what is lost {stay.total:.3g}"
        return self._refuse(Rule.ALLOCATE, Reason.WITHIN_BUDGET, f"{why}, but {lasts}: {bills}")

    def _replan_relieves(self, latest: Reading, here: Prospect | None) -> Verdict | None:
        """A re-plan at the same size in answer to a full worker, where that would end it and is going to be carried out."""
        settings, state = self.settings, self.state
        if state.replans or settings.mode_of(Rule.REPLAN) is not Mode.ENFORCE:
            return None
        if here is None or latest.tau_max is None or latest.tau_mean is None:
            return None
        # What is shed since a moment ago is held still: who looks ahead goes by that, and adds workers afterwards if they are needed.
        then = here.tau_max * (latest.kept * self._coming if settings.is_predictive else 1)
        if then >= settings.tau2 or here.tau_max > (1 - settings.gain) * settings.unshed(latest.tau_max):
            return None
        self._bill_stay(latest)
        self._bill(state.workers)
        self.held_for[Rule.REPLAN] = self.held_for[Rule.ALLOCATE]
        text = f"a worker is full ({latest.tau_max:.2f}) while the mean is {latest.tau_mean:.2f}: "
        text += f"as many workers, cut anew, should be at most {here.tau_max:.2f} full"
        return self._act(Rule.REPLAN, Kind.REPLAN, Reason.UNEVEN, text, state.workers)

    def _target_up(self, latest: Reading, capacity: int) -> int:
        """The fewest workers for about tau1; where none reach it, the fewest that are as good as the most. At most ``high``."""
        settings, high = self.settings, self.high
        if high <= capacity:
            return capacity
        least = capacity if latest.starting else capacity + 1
        found = self.asked.fewest(least, high, lambda prospect: prospect.tau_max * self._coming <= settings.level)
        if found is not None:
            return found
        best = self.asked.at(high)
        if best is not None:
            level = best.tau_max * _AS_GOOD
            return self.asked.fewest(least, high, lambda prospect: prospect.tau_max <= level) or high
        # Nothing is known but how full the workers are: as if load were shared out evenly, and nothing replicated.
        tau = settings.unshed(latest.tau_max or settings.tau3) * self._coming
        aim = settings.level if settings.is_predictive else settings.tau1
        return max(capacity + 1, min(high, math.ceil(self.state.workers * tau / aim)))

    @property
    def _coming(self) -> float:
        """By which factor what is held is going to grow; 1 where it shrinks, and where the policy does not look ahead."""
        state, settings = self.state, self.settings
        if not settings.is_predictive:
            return 1.0
        return max(1.0, _grown(state, settings, ahead(settings)), self._settled(ahead(settings)))

    def _settled(self, seconds: float) -> float:
        """By which factor what is held grows once the window has taken in the rates of now, or the season's of the next so many seconds, if
        those are higher."""
        outlook, season = self.state.outlook, self.state.season.highest(seconds)
        return outlook.settled(self.settings.window_seconds, None if season is None else _larger(outlook.rates, season))

    def _keep_up(self) -> Verdict:
        rule, state, settings = Rule.KEEP_UP, self.state, self.settings
        refusal = self._off(rule) or self._blind(rule)
        if refusal is not None:
            return refusal
        latest, hold = self._latest, state.behind
        if latest.epoch_seconds is None or latest.backlog_records is None:
            return self._refuse(rule, Reason.BAD_SAMPLE, "the epoch's time or the backlog is not known")
        if hold is None:
            text = f"epochs take {latest.epoch_seconds:.3g} s of their {settings.interval_seconds:g} s"
            return self._refuse(rule, Reason.STEADY, text)
        self.held_for[rule] = hold.seconds
        late = f"epochs take {latest.epoch_seconds:.3g} s, over their interval of {settings.interval_seconds:g} s"
        if hold.seconds < settings.scale_up_after:
            return self._wait(rule, late, hold.seconds, settings.scale_up_after)
        rate = latest.rate
        if rate is None or rate <= 0:
            return self._refuse(rule, Reason.BAD_SAMPLE, f"{late}, but the rates are not known")
        grown = latest.backlog_records - hold.backlog
        if grown <= 0 or latest.backlog_records < rate * settings.interval_seconds:
            return self._refuse(rule, Reason.STEADY, f"{late}, but what waits does not grow ({latest.backlog_records:,.0f} records)")
        attempt = state.attempt
        if attempt is not None:
            # As Flink's autoscaler detects an ineffective scale-up: the actual increase against the one that was expected.
            expected = attempt.rate_before * (attempt.workers / attempt.workers_before - 1)
            if rate - attempt.rate_before < _LEAST_EFFECT * expected:
                text = f"{late}, but going from {attempt.workers_before} to {attempt.workers} workers made it no faster"
                return self._refuse(rule, Reason.INEFFECTIVE, text)
        capacity = state.workers + latest.starting
        # What arrives, and what is to be worked off, against what is taken in now.
        needed = rate + grown / hold.seconds + latest.backlog_records / settings.catch_up_seconds
        target = min(self.high, 2 * state.workers, max(state.workers + 1, math.ceil(state.workers * needed / rate)))
        if target <= capacity:
            if latest.starting:
                return self._refuse(rule, Reason.STARTING, f"{late}; {_workers(latest.starting)} are starting")
            return self._refuse(rule, Reason.AT_LIMIT, f"{late}, but {_workers(capacity)} are the most allowed ({self.high})")
        text = f"{late}, for {_seconds(hold.seconds)}, and {grown:,.0f} more records wait{_by(latest)}: {_from_to(state.workers, target)}"
        return self._act(rule, Kind.ALLOCATE, Reason.BEHIND, text, target)

    def _replan(self) -> Verdict:
        rule, state, settings = Rule.REPLAN, self.state, self.settings
        refusal = self._off(rule) or self._blind(rule)
        if refusal is not None:
            return refusal
        latest = self._latest
        tau_max, tau_mean = latest.tau_max, latest.tau_mean
        if tau_max is None or tau_mean is None:
            return self._refuse(rule, Reason.BAD_SAMPLE, f"the sample is partial: {_listed(latest.problems)}")
        if latest.starting:
            return self._refuse(rule, Reason.STARTING, f"{_workers(latest.starting)} are starting")
        uneven = state.uneven if state.uneven is not None and state.uneven.until == latest.taken_at else None
        ratio = state.ratio if state.ratio is not None and state.ratio.until == latest.taken_at else None
        hold, reason = (uneven, Reason.UNEVEN) if uneven is not None else (ratio, Reason.RATIO_MOVED)
        if hold is None:
            text = f"the fullest worker ({tau_max:.2f}) is near the mean ({tau_mean:.2f}), and the streams' ratio is that of the plan"
            return self._refuse(rule, Reason.STEADY, text)
        self.held_for[rule] = hold.seconds
        if reason is Reason.UNEVEN:
            why = f"the fullest worker's tau ({tau_max:.2f}) is {tau_max / tau_mean:.1f} times the mean ({tau_mean:.2f})"
        else:
            factor = math.exp(abs((latest.log_ratio or 0.0) - (state.planned_log_ratio or 0.0)))
            why = f"the streams' ratio has moved by a factor of {factor:.1f} since the plan was made"
        if latest.unconfirmed is not None:
            return self._refuse(rule, Reason.UNCONFIRMED, f"{why}, but {_unconfirmed(latest)}")
        # A re-plan that did not help is not tried again at the same pace.
        after = settings.scale_up_after * 2 ** min(state.replans, _LONGEST_BACKOFF)
        if hold.seconds < after:
            return self._wait(rule, why, hold.seconds, after)
        if latest.rate is None:
            return self._refuse(rule, Reason.BAD_SAMPLE, f"{why}, but the rates are not known, and so not what it costs")
        stay = self._bill_stay(latest)
        if stay.shed == 0:
            # Nothing is lost now: no plan for as many workers can be cheaper, and none need be made to know that.
            return self._refuse(rule, Reason.NOT_WORTH, f"{why}, but nothing is shed, or would be soon")
        here = self.asked.at(state.workers)
        if here is None:
            return self._refuse(rule, Reason.NO_FORECAST, f"{why}, but there is no forecast")
        if here.tau_max > (1 - settings.gain) * settings.unshed(tau_max):
            text = f"{why}, but the best plan for {_workers(state.workers)} has {here.tau_max:.2f}"
            return self._refuse(rule, Reason.NO_GAIN, text)
        change = self._bill(state.workers)
        costs = f"{change.total:.3g} worker-hours against {stay.total:.3g}, {here.moved_tuples:,.0f} tuples moved"
        if change.total >= stay.total:
            return self._refuse(rule, Reason.NOT_WORTH, f"{why}, but a re-plan costs more than it saves: {costs}")
        text = f"{why}: a re-plan should leave {here.tau_max:.2f}, at {costs}"
        return self._act(rule, Kind.REPLAN, reason, text, state.workers)

    def _deallocate(self) -> Verdict:
        rule, state, settings = Rule.DEALLOCATE, self.state, self.settings
        refusal = self._off(rule) or self._blind(rule)
        if refusal is not None:
            return refusal
        latest, hold = self._latest, state.unused
        if latest.unconfirmed is not None:
            return self._refuse(rule, Reason.UNCONFIRMED, _unconfirmed(latest))
        above = state.workers > self.high
        tau_mean, demand = latest.tau_mean, latest.demand
        if not latest.sound or tau_mean is None or demand is None:
            return self._refuse(rule, Reason.BAD_SAMPLE, f"the last sample cannot take workers away: {_listed(latest.problems)}")
        if above:
            why, reason = f"{_workers(state.workers)} run, and at most {self.high} are allowed", Reason.ABOVE_CEILING
        elif state.workers <= self.low:
            return self._refuse(rule, Reason.STEADY, f"no fewer than {_workers(self.low)} are allowed")
        elif settings.is_predictive:
            why, reason = f"the mean tau is {tau_mean:.2f}", Reason.UNUSED
        elif hold is None:
            return self._refuse(rule, Reason.STEADY, f"the mean tau ({tau_mean:.2f}) is above tau0 ({settings.tau0:g})")
        else:
            self.held_for[rule] = hold.seconds
            why = f"the mean tau ({tau_mean:.2f}) has been at or below tau0 ({settings.tau0:g}) for {_seconds(hold.seconds)}"
            reason = Reason.UNUSED
            if hold.seconds < settings.scale_down_after:
                return self._wait(rule, f"the mean tau is at or below tau0 ({settings.tau0:g})", hold.seconds, settings.scale_down_after)
        if latest.starting:
            return self._refuse(rule, Reason.STARTING, f"{why}, but {_workers(latest.starting)} are starting")
        if latest.shed_fraction:
            return self._refuse(rule, Reason.SHEDDING, f"{why}, but {latest.shed_fraction:.1%} of the tuples are shed")
        if state.behind is not None:
            return self._refuse(rule, Reason.BEHIND, f"{why}, but the join falls behind its input")
        if settings.is_predictive and not above:
            return self._give_back(latest, why)
        risen = demand - state.peaks.first
        if not above and risen > settings.rising * state.peaks.first and risen > 0.1 * settings.tau1:
            text = f"{why}, but what is held grows: it was {state.peaks.first:.2f} workers' capacity, and is {demand:.2f}"
            return self._refuse(rule, Reason.RISING, text)
        return self._shrink(latest, demand, why, reason)

    def _shrink(self, latest: Reading, demand: float, why: str, reason: Reason) -> Verdict:
        """All that speaks against removing workers in general has been looked at: how many, and what they would leave."""
        rule, state, settings = Rule.DEALLOCATE, self.state, self.settings
        above = reason is Reason.ABOVE_CEILING
        # By the largest need of the delay, as HPA's stabilization window and Flink's scale-down interval do.
        growth = max(1.0, state.peaks.demand / demand) if demand > 0 else 1.0
        least = self.high if above else max(self.low, self._fewest_that_keep_up())
        if least >= state.workers and not above:
            text = f"{why}, but fewer workers would not keep up: epochs take up to {state.peaks.epoch_seconds:.3g} s"
            return self._refuse(rule, Reason.BUSY, text)
        most = self.high if above else state.workers - 1
        # To a ceiling that an operator sets tau may rise up to tau2; of its own accord the rule stops at about tau1.
        level = settings.tau2 if above else settings.about_tau1
        last = self.asked.at(most)
        if last is None:
            return self._refuse(rule, Reason.NO_FORECAST, f"{why}, but there is no forecast for {_workers(most)}")
        target = self.asked.fewest(least, most, lambda prospect: prospect.tau_max * growth <= level)
        if target is None:
            text = f"{why}, but {_workers(most)} would be {last.tau_max * growth:.2f} full, above {level:.3g}"
            return self._refuse(rule, Reason.WOULD_EXCEED, text)
        prospect = self.asked.at(target)
        assert prospect is not None
        stay, change = self._bill_stay(latest), self._bill(target)
        if change.total >= stay.total and not above:
            text = f"{why}, but it costs more than it saves: {change.total:.3g} worker-hours against {stay.total:.3g}"
            return self._refuse(rule, Reason.NOT_WORTH, text)
        text = f"{why}: {_from_to(state.workers, target)}, where the fullest should be {prospect.tau_max:.2f}"
        return self._act(rule, Kind.DEALLOCATE, reason, text, target)

    def _give_back(self, latest: Reading, why: str) -> Verdict:
        """Remove workers that have stood idle for so long that a change, and the change back, would have been cheaper.

        As one decides between hiring skis and buying them: what waiting has cost is what changing costs.
        """
        rule, state, settings = Rule.DEALLOCATE, self.state, self.settings
        outlook = state.outlook
        held = sum(outlook.held)
        if outlook.at != latest.taken_at:
            return self._refuse(rule, Reason.NO_FORECAST, f"{why}, but it is not known since when fewer workers would do")
        least = max(self.low, self._fewest_that_keep_up())
        if least >= state.workers:
            text = f"{why}, but fewer workers would not keep up: epochs take up to {state.peaks.epoch_seconds:.3g} s"
            return self._refuse(rule, Reason.BUSY, text)
        offers: list[_Offer] = []
        spare = 1
        # Each number is asked about in the planner, so only a few are: at least half of what the best one saves is saved.
        while state.workers - spare >= least:
            workers = state.workers - spare
            prospect = self.asked.at(workers)
            if prospect is None:
                return self._refuse(rule, Reason.NO_FORECAST, f"{why}, but there is no forecast for {_workers(workers)}")
            tau = prospect.tau_max * self._coming
            if tau > settings.level:
                if offers:
                    break
                text = f"{why}, but {_workers(workers)} would be {tau:.2f} full, above {settings.level:.3g}"
                return self._refuse(rule, Reason.WOULD_EXCEED, text)
            room = held * settings.level / prospect.tau_max if prospect.tau_max > 0 else math.inf
            # Of a plan that is young nobody knows yet whether it was needed.
            idle_seconds = min(outlook.seconds_within(room), latest.taken_at - state.changed_at)
            change = self._bill(workers)
            # There and back, and the workers while they start anew.
            price = 2 * (change.moving + change.pause + change.change) + spare * settings.start_seconds / _HOUR
            offers.append(_Offer(workers, prospect, spare * idle_seconds / _HOUR, price))
            spare *= 2
        # What waiting for so long costs is what is to be paid for the change, but that spells were shorter or longer so far.
        offers = [replace(offer, price=self._wait_worth(offer)) for offer in offers]
        # Where the price is paid for several, the most go: one change instead of two.
        paid = [offer for offer in offers if offer.idle >= offer.price]
        best = paid[-1] if paid else max(offers, key=lambda offer: offer.idle - offer.price)
        then = self._wait_for_more(best, least, offers)
        if then is not None and best.idle >= best.price:
            text = f"{why}, and {_workers(best.workers)} would do, but {then}"
            return self._refuse(rule, Reason.WAITING, text)
        costs = f"workers that stood idle have cost {best.idle:.2g} worker-hours, of {best.price:.2g} that a change and back are worth"
        if best.idle < best.price:
            return self._refuse(rule, Reason.WAITING, f"{why}, and {_workers(best.workers)} would do, but {costs}")
        to = f"{_from_to(state.workers, best.workers)}, where the fullest should be {best.prospect.tau_max:.2f}"
        return self._act(rule, Kind.DEALLOCATE, Reason.UNUSED, f"{why}, and {costs}: {to}", best.workers)

    def _wait_for_more(self, offer: _Offer, least: int, offers: Sequence[_Offer]) -> str | None:
        """Why not to take an offer yet, where more are soon to go: one change instead of two is worth that the first ones stay as long.

        The others are as many as would be offered next: they are still needed while the window empties, or have yet to pay for the change.
        """
        state, settings = self.state, self.settings
        spare = state.workers - offer.workers
        further = self.asked.at(offer.workers - spare) if offer.workers - spare >= least else None
        if further is None:
            return None
        unpaid = next((each for each in offers if each.workers < offer.workers), None)
        if unpaid is not None:
            more = offer.workers - unpaid.workers
            seconds = (unpaid.price - unpaid.idle) / (state.workers - unpaid.workers) * _HOUR
        else:
            more, falls = spare, 1 - state.outlook.growth(settings.window_seconds, 1.0)
            if falls <= 0 or further.tau_max <= settings.level:
                return None
            if further.tau_max * state.outlook.settled(settings.window_seconds) > settings.level:
                return None
            seconds = (1 - settings.level / further.tau_max) / falls
        change = self._bill(offer.workers)
        stay, saved = spare * seconds / _HOUR, change.moving + change.pause + change.change
        if stay >= saved:
            return None
        words = "one more" if more == 1 else f"{more} more"
        return f"in {_seconds(seconds)} {words} can go with them: they cost {stay:.2g} worker-hours till then, and a change {saved:.2g}"

    def _wait_worth(self, offer: _Offer) -> float:
        """The idle worker-hours that are to pass before an offer is taken."""
        spare = self.state.workers - offer.workers
        return self.state.spells.wait(offer.price / spare * _HOUR) * spare / _HOUR

    def _shed(self) -> tuple[Verdict, ...]:
        """What shedding does, or would do; nothing where there is no model of it. The engine carries it out, by the same tau."""
        rule, settings = Rule.SHED, self.settings
        if settings.shedding_model == "off":
            return ()
        refusal = self._off(rule) or self._blind(rule)
        if refusal is not None:
            return (refusal,)
        tau = self._latest.tau_max
        if tau is None:
            return (self._refuse(rule, Reason.BAD_SAMPLE, "the fullest worker's tau is not known"),)
        if tau < settings.tau2:
            return (self._refuse(rule, Reason.STEADY, f"the fullest worker's tau ({tau:.2f}) is below tau2 ({settings.tau2:g})"),)
        full = f"whose tau ({tau:.2f}) is not below tau2 ({settings.tau2:g})"
        part = f"{settings.shed_factor(tau):.1%} of the tuples for the fullest worker, {full},"
        if settings.sheds:
            return (self._refuse(rule, Reason.SHEDDING, f"{part} are shed"),)
        said = self._refuse(rule, Reason.WOULD_SHED, f"{part} would be shed; it is only recommended, and none are")
        return (replace(said, mode=Mode.RECOMMEND),)

    def _fewest_that_keep_up(self) -> int:
        """An epoch is a fixed cost and work that the workers share: fixed + (epoch - fixed) * before / after <= busy_target * interval."""
        state, settings = self.state, self.settings
        fixed = min(state.quickest or 0.0, settings.busy_idle * settings.interval_seconds)
        room = settings.busy_target * settings.interval_seconds - fixed
        least = math.ceil(state.workers * max(0.0, state.peaks.epoch_seconds - fixed) / room - 1e-9)
        outrun = state.outrun
        if outrun is not None and state.peaks.rate >= _SAME_RATE * outrun.rate_before:
            least = max(least, outrun.workers_before + 1)
        return least

    # What the rules share.

    @property
    def _latest(self) -> Reading:
        assert self.state.latest is not None, "rules that look at a sample refuse first where there is none"
        return self.state.latest

    def _blind(self, rule: Rule) -> Verdict | None:
        """The refusal where there is no sample, or only an old one."""
        latest, settings = self.state.latest, self.settings
        if latest is None:
            why = f"; the last one does not count, as {self.state.ignored}" if self.state.ignored else ""
            return self._refuse(rule, Reason.NO_SAMPLE, f"there is no sample of plan {self.state.generation} yet{why}")
        # Of a clock that is ahead as of one that is behind. Long epochs excuse an old sample, but not where workers would go.
        allowed = settings.stale_seconds
        if rule is not Rule.DEALLOCATE:
            allowed += 2 * (latest.epoch_seconds or 0.0)
        age = self.now - latest.taken_at
        if abs(age) > allowed:
            return self._refuse(rule, Reason.STALE, f"the last sample is {_seconds(age)} old, more than {_seconds(allowed)}")
        return None

    def _off(self, rule: Rule) -> Verdict | None:
        return self._refuse(rule, Reason.OFF, "the rule is off") if self.settings.mode_of(rule) is Mode.OFF else None

    def _refuse(self, rule: Rule, reason: Reason, sentence: str) -> Verdict:
        return Verdict(rule, Kind.HOLD, reason, sentence, self.state.workers)

    def _wait(self, rule: Rule, condition: str, seconds: float, after: float) -> Verdict:
        return self._refuse(rule, Reason.WAITING, f"{condition} for {_seconds(seconds)}, of {_seconds(after)}")

    def _act(self, rule: Rule, kind: Kind, reason: Reason, sentence: str, target: int) -> Verdict:
        return Verdict(rule, kind, reason, sentence, target, self.settings.mode_of(rule))

    def _bill(self, workers: int) -> Bill:
        """Of a change to so many workers, which must have been asked about."""
        if workers not in self.bills:
            prospect = self.asked.at(workers)
            assert prospect is not None
            self.bills[workers] = bill(
                workers=workers,
                tau_max=prospect.tau_max,
                tau_mean=prospect.tau_mean,
                moved_tuples=prospect.moved_tuples,
                rate=self._latest.rate,
                changes=True,
                settings=self.settings,
                prices=self.prices,
            )
        return self.bills[workers]

    def _bill_stay(self, latest: Reading) -> Bill:
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


_THRESHOLDS = ("tau0", "tau1", "tau2", "tau3", "scale_up_after", "scale_down_after")


def _choose(verdicts: tuple[Verdict, ...]) -> Verdict | None:
    """The first that is carried out, else the first that is recommended. Nothing is removed while a rule wants workers added."""
    acting = [verdict for verdict in verdicts if verdict.kind is not Kind.HOLD and verdict.mode is not Mode.OFF]
    if any(verdict.kind is Kind.ALLOCATE for verdict in acting):
        acting = [verdict for verdict in acting if verdict.kind is not Kind.DEALLOCATE]
    return next((verdict for verdict in acting if verdict.mode is Mode.ENFORCE), acting[0] if acting else None)


def _listed(problems: tuple[str, ...]) -> str:
    shown = "; ".join(problems[:3])
    return f"{shown}; and {len(problems) - 3} more" if len(problems) > 3 else shown or "it is partial"


def _by(latest: Reading) -> str:
    """Whose numbers those are that workers are added by, where nobody confirms them."""
    return "" if latest.unconfirmed is None else f", by the join's own numbers alone ({latest.unconfirmed})"


def _unconfirmed(latest: Reading) -> str:
    return f"only the join's own numbers are there, by which workers are added and none removed ({latest.unconfirmed})"


def _workers(number: int) -> str:
    return "1 worker" if number == 1 else f"{number:,} workers"


def _from_to(before: int, after: int) -> str:
    return f"from {before:,} to {_workers(after)}"


def _seconds(seconds: float) -> str:
    return f"{seconds:.0f} s" if abs(seconds) < 600 else f"{seconds / 60:.0f} min"
