"""The rule ``replan``: another plan for as many workers, where the fullest is much fuller than the mean or the streams' ratio has moved."""

from __future__ import annotations

import math

from streamjoin.elastic.decision import Kind, Reason, Verdict
from streamjoin.elastic.forecast import Prospect
from streamjoin.elastic.rules.review import Review
from streamjoin.elastic.rules.sentences import listed, unconfirmed, worker_count
from streamjoin.elastic.sample import Reading
from streamjoin.elastic.settings import Mode, Rule

_LONGEST_BACKOFF = 6
"""Re-plans in vain double the time before the next one, at most so often."""


def replan(review: Review) -> Verdict:  # noqa: C901
    """A better plan for as many workers, where it costs less than what is shed without it."""
    rule, state, settings = Rule.REPLAN, review.state, review.settings
    refusal = review.off(rule) or review.blind(rule)
    if refusal is not None:
        return refusal
    latest = review.latest
    tau_max, tau_mean = latest.tau_max, latest.tau_mean
    if tau_max is None or tau_mean is None:
        return review.refuse(rule, Reason.BAD_SAMPLE, f"the sample is partial: {listed(latest.problems)}")
    if latest.starting:
        return review.refuse(rule, Reason.STARTING, f"{worker_count(latest.starting)} are starting")
    uneven = state.uneven if state.uneven is not None and state.uneven.until == latest.taken_at else None
    ratio = state.ratio if state.ratio is not None and state.ratio.until == latest.taken_at else None
    hold, reason = (uneven, Reason.UNEVEN) if uneven is not None else (ratio, Reason.RATIO_MOVED)
    if hold is None:
        text = f"the fullest worker ({tau_max:.2f}) is near the mean ({tau_mean:.2f}), and the streams' ratio is that of the plan"
        return review.refuse(rule, Reason.STEADY, text)
    review.held_for[rule] = hold.seconds
    if reason is Reason.UNEVEN:
        why = f"the fullest worker's tau ({tau_max:.2f}) is {tau_max / tau_mean:.1f} times the mean ({tau_mean:.2f})"
    else:
        factor = math.exp(abs((latest.log_ratio or 0.0) - (state.planned_log_ratio or 0.0)))
        why = f"the streams' ratio has moved by a factor of {factor:.1f} since the plan was made"
    if latest.unconfirmed is not None:
        return review.refuse(rule, Reason.UNCONFIRMED, f"{why}, but {unconfirmed(latest)}")
    # A re-plan that did not help is not tried again at the same pace.
    after = settings.scale_up_after * 2 ** min(state.replans, _LONGEST_BACKOFF)
    if hold.seconds < after:
        return review.wait(rule, why, hold.seconds, after)
    if latest.rate is None:
        return review.refuse(rule, Reason.BAD_SAMPLE, f"{why}, but the rates are not known, and so not what it costs")
    stay = review.bill_stay(latest)
    if stay.shed == 0:
        # Nothing is lost now: no plan for as many workers can be cheaper, and none need be made to know that.
        return review.refuse(rule, Reason.NOT_WORTH, f"{why}, but nothing is shed, or would be soon")
    here = review.asked.at(state.workers)
    if here is None:
        return review.refuse(rule, Reason.NO_FORECAST, f"{why}, but there is no forecast")
    if here.tau_max > (1 - settings.gain) * settings.unshed(tau_max):
        text = f"{why}, but the best plan for {worker_count(state.workers)} has {here.tau_max:.2f}"
        return review.refuse(rule, Reason.NO_GAIN, text)
    change = review.bill_change(state.workers)
    costs = f"{change.total:.3g} worker-hours against {stay.total:.3g}, {here.moved_tuples:,.0f} tuples moved"
    if change.total >= stay.total:
        return review.refuse(rule, Reason.NOT_WORTH, f"{why}, but a re-plan costs more than it saves: {costs}")
    text = f"{why}: a re-plan should leave {here.tau_max:.2f}, at {costs}"
    return review.act(rule, Kind.REPLAN, reason, text, state.workers)


def replan_that_relieves(review: Review, latest: Reading, here: Prospect | None) -> Verdict | None:
    """A re-plan at the same size in answer to a full worker, where that would end it and is going to be carried out."""
    settings, state = review.settings, review.state
    if state.replans or settings.mode_of(Rule.REPLAN) is not Mode.ENFORCE:
        return None
    if here is None or latest.tau_max is None or latest.tau_mean is None:
        return None
    # What is shed since a moment ago is held still: who looks ahead goes by that, and adds workers afterwards if they are needed.
    then = here.tau_max * (latest.kept * review.coming if settings.is_predictive else 1)
    if then >= settings.tau2 or here.tau_max > (1 - settings.gain) * settings.unshed(latest.tau_max):
        return None
    review.bill_stay(latest)
    review.bill_change(state.workers)
    review.held_for[Rule.REPLAN] = review.held_for[Rule.ALLOCATE]
    text = f"a worker is full ({latest.tau_max:.2f}) while the mean is {latest.tau_mean:.2f}: "
    text += f"as many workers, cut anew, should be at most {here.tau_max:.2f} full"
    return review.act(Rule.REPLAN, Kind.REPLAN, Reason.UNEVEN, text, state.workers)
