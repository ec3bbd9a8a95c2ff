"""The rule ``allocate``: more workers where one is full, or is going to be, or a better plan for as many where that relieves it."""

from __future__ import annotations

import math

from streamjoin.elastic.decision import Kind, Reason, Verdict
from streamjoin.elastic.rules.lookahead import FORESIGHT_SECONDS, ahead, budget_ends, expected_tau, full_tau, present_rates
from streamjoin.elastic.rules.replan import replan_that_relieves
from streamjoin.elastic.rules.review import Review
from streamjoin.elastic.rules.sentences import by_whom, duration, from_to, listed, worker_count
from streamjoin.elastic.sample import Reading
from streamjoin.elastic.settings import Mode, Rule, Settings

_AS_GOOD = 1 + 1e-6
"""Fewer workers are as good as more ones when tau is the same, but for rounding. With more tolerance a higher tau could get fewer."""
_NO_BETTER = 0.98
"""More workers that leave this part of tau, or more of it, do not help."""
_SEEN_COMING = 0.25
"""What is foreseen must be foreseen for this part of ``scale_up_after``."""
_BUSIER = 1.1
"""A season that says less than so many times the rates of now changes little, and is not spoken of."""


def allocate(review: Review) -> Verdict:
    """More workers, or a better plan for as many, once a worker has been full for long enough (or was going to be, by ``predictive``); and
    where there are fewer than there must be."""
    rule, state, settings = Rule.ALLOCATE, review.state, review.settings
    if settings.mode_of(rule) is Mode.OFF and settings.mode_of(Rule.REPLAN) is Mode.OFF:
        return review.refuse(rule, Reason.OFF, "the rule is off")
    answer = below_floor(review) or review.blind(rule)
    if answer is not None:
        return answer
    latest, hold = review.latest, state.full
    tau, spending = latest.tau_max, state.spending
    if spending is not None and spending.until >= latest.taken_at and spending.seconds >= settings.scale_up_after:
        review.held_for[rule] = spending.seconds
        return _relieve(review, latest, spending.seconds)
    if hold is None:
        known = "" if latest.complete else f" of {latest.known} of {latest.workers} workers"
        shown = "is not known" if tau is None else f"({tau:.2f}{known}) {_below(review, tau)}"
        if not latest.complete:
            return review.refuse(rule, Reason.BAD_SAMPLE, f"the fullest worker's tau {shown}, and the sample is partial")
        return review.refuse(rule, Reason.STEADY, f"the fullest worker's tau {shown}")
    review.held_for[rule] = hold.seconds
    if hold.until < latest.taken_at:
        return review.refuse(rule, Reason.BAD_SAMPLE, f"a worker was full, and the last sample does not say: {listed(latest.problems)}")
    burst = state.rate_shifts.burst
    is_of_burst = burst is not None and hold.since >= burst
    after = settings.scale_up_after * (_SEEN_COMING if settings.is_predictive and not is_of_burst else 1)
    if settings.is_predictive and tau is not None and settings.unshed(tau) >= settings.tau2:
        # It is not foreseen, but so: what is held does not come and go with a burst.
        after = 0.0
    if settings.is_predictive and state.rate_shifts.believed(latest.taken_at) is not None:
        # It is no burst, and each sample that is waited for fills the window further.
        after = 0.0
    if hold.seconds < after:
        return review.wait(rule, f"tau {_reached(settings)}", hold.seconds, after)
    return _relieve(review, latest, hold.seconds)


def below_floor(review: Review) -> Verdict | None:
    """More workers without a look at any sample, where there are fewer than there must be."""
    rule, state = Rule.ALLOCATE, review.state
    starting = state.latest.starting if state.latest is not None else 0
    if state.workers + starting >= review.low or review.settings.mode_of(rule) is Mode.OFF:
        return None
    text = f"the plan has {worker_count(state.workers)}, and at least {review.low} are wanted"
    return review.act(rule, Kind.ALLOCATE, Reason.BELOW_FLOOR, text, review.low)


def _relieve(review: Review, latest: Reading, seconds: float) -> Verdict:  # noqa: C901
    """A worker has been full for long enough: more workers, or a better plan for as many."""
    rule, state, settings = Rule.ALLOCATE, review.state, review.settings
    tau = latest.tau_max or 0.0
    now = settings.unshed(tau)
    shown = f"{tau:.2f}" + (f"; {now:.2f} if nothing were shed" if now > tau else "")
    if settings.is_predictive:
        soon, when = expected_tau(state, settings, tau), duration(ahead(settings))
        near = f"above {full_tau(state, settings):.2f} (tau2 is {settings.tau2:g}){by_whom(latest)}"
        if f"{soon:.2f}" == f"{now:.2f}":
            why = f"tau of the fullest worker ({shown}) is {near}"
        else:
            why = f"tau of the fullest worker ({shown}) is going to be {soon:.2f} in {when}{_by_season(review)}{_by_jump(review)}, {near}"
    else:
        why = f"tau of the fullest worker ({shown}) has been at or above tau3 ({settings.tau3:g}) for {duration(seconds)}{by_whom(latest)}"
    reason = Reason.FULL
    if _is_spending(review):
        reason, left = Reason.BUDGET, duration(latest.budget_seconds or 0.0)
        why = f"so many results are lost to shedding that the budget ({_budget(review)}) lasts {left} more; tau is {shown}{by_whom(latest)}"
    capacity = state.workers + latest.starting
    here = review.asked.at(state.workers)
    replan = replan_that_relieves(review, latest, here)
    spared = _spare(review, latest, why, capacity, replan)
    if spared is not None:
        return spared
    if replan is not None and settings.is_predictive:
        lead = settings.interval_seconds + FORESIGHT_SECONDS
        by_then = expected_tau(state, settings, tau, lead)
        if by_then < full_tau(state, settings):
            # Nobody has to start for it, and the later it is made, the more it knows.
            text = f"{why}; another plan of as many workers is soon enough later: {by_then:.2f} is expected in {duration(lead)}"
            return review.refuse(rule, Reason.WAITING, text)
    if replan is not None and settings.mode_of(rule) is not Mode.ENFORCE:
        return replan
    if settings.mode_of(rule) is Mode.OFF:
        return review.refuse(rule, Reason.OFF, f"{why}, but the rule is off, and a re-plan would not help")
    target = _target_up(review, latest, capacity)
    if target <= capacity:
        if replan is not None:
            return replan
        if latest.starting:
            text = f"{why}; with the {worker_count(latest.starting)} that are starting, {capacity} are enough"
            return review.refuse(rule, Reason.STARTING, text)
        return review.refuse(rule, Reason.AT_LIMIT, f"{why}, but {worker_count(capacity)} are the most allowed ({review.high})")
    prospect = review.asked.at(target)
    if prospect is not None and prospect.tau_max > _NO_BETTER * (here.tau_max if replan is not None and here is not None else now):
        if replan is not None:
            return replan
        text = f"{why}, but {target} workers would leave it at {prospect.tau_max:.2f}, against {now:.2f} now"
        return review.refuse(rule, Reason.NO_GAIN, text)
    if prospect is not None:
        review.bill_stay(latest)
        cost = review.bill_change(target).total
        # A re-plan because it is cheaper is thrift, which numbers that nobody confirms are not enough for.
        if replan is not None and latest.unconfirmed is None and (settings.is_predictive or review.bill_change(state.workers).total < cost):
            return replan
    then = "" if prospect is None else f", where it should be {prospect.tau_max:.2f}"
    return review.act(rule, Kind.ALLOCATE, reason, f"{why}: {from_to(state.workers, target)}{then}", target)


def _spare(review: Review, latest: Reading, why: str, capacity: int, replan: Verdict | None) -> Verdict | None:
    """The refusal to relieve a full worker whose losses are within the budget, where every change costs more than it saves."""
    settings, left = review.settings, latest.budget_seconds
    if settings.budget is None or left is None or _is_spending(review) or budget_ends(settings, latest):
        return None
    stay, costs = review.bill_stay(latest), []
    if replan is not None:
        costs.append(review.bill_change(review.state.workers).total)
    target = _target_up(review, latest, capacity)
    if target > capacity and review.asked.at(target) is not None:
        costs.append(review.bill_change(target).total)
    if not costs or min(costs) < stay.total:
        return None
    lasts = f"the budget ({_budget(review)}) lasts" + ("" if left >= settings.budget.over_seconds else f" {duration(left)} more")
    bills = f"a change costs {min(costs):.3g} worker-hours, and what is lost {stay.total:.3g}"
    return review.refuse(Rule.ALLOCATE, Reason.WITHIN_BUDGET, f"{why}, but {lasts}: {bills}")


def _target_up(review: Review, latest: Reading, capacity: int) -> int:
    """The fewest workers for about tau1; where none reach it, the fewest that are as good as the most. At most ``high``."""
    settings, high = review.settings, review.high
    if high <= capacity:
        return capacity
    least = capacity if latest.starting else capacity + 1
    enough = review.asked.at(capacity) if latest.starting and settings.is_predictive else None
    if enough is not None and enough.tau_max * review.coming < full_tau(review.state, settings):
        # The plan begins when the last worker has started: one that is asked for now would keep the others waiting.
        return capacity
    found = review.asked.fewest(least, high, lambda prospect: prospect.tau_max * review.coming <= settings.level)
    if found is not None:
        return found
    best = review.asked.at(high)
    if best is not None:
        level = best.tau_max * _AS_GOOD
        return review.asked.fewest(least, high, lambda prospect: prospect.tau_max <= level) or high
    # Nothing is known but how full the workers are: as if load were shared out evenly, and nothing replicated.
    tau = settings.unshed(latest.tau_max or settings.tau3) * review.coming
    aim = settings.level if settings.is_predictive else settings.tau1
    return max(capacity + 1, min(high, math.ceil(review.state.workers * tau / aim)))


def _is_spending(review: Review) -> bool:
    """Whether the budget is about to be spent, for long enough to act."""
    spending = review.state.spending
    return spending is not None and spending.seconds >= review.settings.scale_up_after


def _budget(review: Review) -> str:
    assert review.settings.budget is not None
    return review.settings.budget.words


def _reached(settings: Settings) -> str:
    """What the rule waits for, in words."""
    return f"is soon above tau2 ({settings.tau2:g})" if settings.is_predictive else f"is at or above tau3 ({settings.tau3:g})"


def _below(review: Review, tau: float) -> str:
    """That this has not come yet, in words."""
    settings = review.settings
    if not settings.is_predictive:
        return f"is below tau3 ({settings.tau3:g})"
    soon, when = expected_tau(review.state, settings, tau), duration(ahead(settings))
    said = f"{soon:.2f} is expected in {when}{_by_season(review)}"
    return f"stays below {full_tau(review.state, settings):.2f} (tau2 is {settings.tau2:g}): {said}"


def _by_jump(review: Review) -> str:
    """That the rates have jumped, and why that is believed at once, where it is."""
    rate_shifts = review.state.rate_shifts
    rates = rate_shifts.believed(review.latest.taken_at)
    if rates is None:
        return ""
    why = (
        f", and {sum(rate_shifts.lasted)} of the last {len(rate_shifts.lasted)} such jumps lasted"
        if rate_shifts.is_believed_at_once
        else ""
    )
    return f" (rates have jumped from {rate_shifts.usual:,.0f} to {sum(rates):,.0f} tuples/s{why})"


def _by_season(review: Review) -> str:
    """What the season says of the rates until workers could be there, if it is more than they are now."""
    state = review.state
    seasonality, now = state.seasonality.highest(ahead(review.settings)), sum(present_rates(state, review.settings))
    if seasonality is None or sum(seasonality) <= _BUSIER * now:
        return ""
    most = state.seasonality.factor
    low, high = sum(seasonality) / most, sum(seasonality) * most
    return f" (at this time of the {state.seasonality.name} {low:,.0f} to {high:,.0f} tuples/s come; now {now:,.0f})"
