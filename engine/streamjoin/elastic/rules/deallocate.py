"""The rule ``deallocate``: fewer workers, where the mean tau says that capacity lies idle, or where there are more than allowed."""

from __future__ import annotations

from dataclasses import replace

from streamjoin.elastic.decision import Kind, Reason, Verdict
from streamjoin.elastic.rules.give_back import give_back
from streamjoin.elastic.rules.keep_up import fewest_that_keep_up
from streamjoin.elastic.rules.review import Review
from streamjoin.elastic.rules.sentences import duration, from_to, listed, unconfirmed, worker_count
from streamjoin.elastic.sample import Reading
from streamjoin.elastic.settings import Rule


def deallocate(review: Review) -> Verdict:  # noqa: C901
    """Fewer workers, once the mean tau has been low for long enough and nothing speaks against it; or where there are more than allowed."""
    rule, state, settings = Rule.DEALLOCATE, review.state, review.settings
    refusal = review.off(rule) or review.blind(rule)
    if refusal is not None:
        return refusal
    latest, hold = review.latest, state.unused
    if latest.unconfirmed is not None:
        return review.refuse(rule, Reason.UNCONFIRMED, unconfirmed(latest))
    above = state.workers > review.high
    tau_mean, demand = latest.tau_mean, latest.demand
    if not latest.sound or tau_mean is None or demand is None:
        return review.refuse(rule, Reason.BAD_SAMPLE, f"the last sample cannot take workers away: {listed(latest.problems)}")
    if latest.starting and not above:
        return _recall(review, latest, demand)
    if above:
        why, reason = f"{worker_count(state.workers)} run, and at most {review.high} are allowed", Reason.ABOVE_CEILING
    elif state.workers <= review.low:
        return review.refuse(rule, Reason.STEADY, f"no fewer than {worker_count(review.low)} are allowed")
    elif settings.is_predictive:
        why, reason = f"the mean tau is {tau_mean:.2f}", Reason.UNUSED
    elif hold is None:
        return review.refuse(rule, Reason.STEADY, f"the mean tau ({tau_mean:.2f}) is above tau0 ({settings.tau0:g})")
    else:
        review.held_for[rule] = hold.seconds
        why = f"the mean tau ({tau_mean:.2f}) has been at or below tau0 ({settings.tau0:g}) for {duration(hold.seconds)}"
        reason = Reason.UNUSED
        patience, after = state.damping.patience, state.damping.must_idle(settings.scale_down_after)
        if hold.seconds < after:
            missed = f", {patience:g} times as long as is set, since workers were missed soon after they had gone" if patience > 1 else ""
            reached = f"the mean tau is at or below tau0 ({settings.tau0:g})"
            answer = review.wait(rule, reached, hold.seconds, after)
            return replace(answer, sentence=answer.sentence + missed)
    if latest.starting:
        return review.refuse(rule, Reason.STARTING, f"{why}, but {worker_count(latest.starting)} are starting")
    if latest.shed_fraction:
        return review.refuse(rule, Reason.SHEDDING, f"{why}, but {latest.shed_fraction:.1%} of the tuples are shed")
    if state.behind is not None:
        return review.refuse(rule, Reason.BEHIND, f"{why}, but the join falls behind its input")
    if settings.is_predictive and not above:
        return give_back(review, latest, why)
    risen = demand - state.peaks.first
    if not above and risen > settings.rising * state.peaks.first and risen > 0.1 * settings.tau1:
        text = f"{why}, but what is held grows: it was {state.peaks.first:.2f} workers' capacity, and is {demand:.2f}"
        return review.refuse(rule, Reason.RISING, text)
    return _shrink(review, latest, demand, why, reason)


def _recall(review: Review, latest: Reading, demand: float) -> Verdict:
    """Fewer of the workers that are starting, or none of them, where they have not been needed for long enough."""
    rule, state, settings = Rule.DEALLOCATE, review.state, review.settings
    starting, hold, tau = f"{worker_count(latest.starting)} are starting", state.eased, latest.tau_max
    if hold is None or hold.until != latest.taken_at or tau is None or latest.shed_fraction or state.behind:
        return review.refuse(rule, Reason.STARTING, starting)
    growth = review.coming if settings.is_predictive else max(1.0, state.peaks.demand / demand if demand > 0 else 1.0)
    most = state.workers + latest.starting - 1
    if settings.unshed(tau) * growth <= settings.level and state.workers >= review.low:
        target: int | None = state.workers
    else:
        target = review.asked.fewest(max(state.workers + 1, review.low), most, lambda prospect: prospect.tau_max * growth <= settings.level)
    if target is None:
        return review.refuse(rule, Reason.STARTING, f"{starting}, and all of them are needed")
    review.held_for[rule] = hold.seconds
    why = f"{starting}, and {worker_count(target)} would do"
    if hold.seconds < settings.scale_up_after:
        return review.wait(rule, why, hold.seconds, settings.scale_up_after)
    text = f"{why}, for {duration(hold.seconds)} already: {settings.unshed(tau) * growth:.2f} is expected of the {state.workers} that run"
    return review.act(rule, Kind.DEALLOCATE, Reason.UNUSED, text, target)


def _shrink(review: Review, latest: Reading, demand: float, why: str, reason: Reason) -> Verdict:
    """All that speaks against removing workers in general has been looked at: how many, and what they would leave."""
    rule, state, settings = Rule.DEALLOCATE, review.state, review.settings
    above = reason is Reason.ABOVE_CEILING
    # By the largest need of the delay, as HPA's stabilization window and Flink's scale-down interval do.
    growth = max(1.0, state.peaks.demand / demand) if demand > 0 else 1.0
    least = review.high if above else max(review.low, fewest_that_keep_up(review))
    if least >= state.workers and not above:
        text = f"{why}, but fewer workers would not keep up: epochs take up to {state.peaks.epoch_seconds:.3g} s"
        return review.refuse(rule, Reason.BUSY, text)
    most = review.high if above else state.workers - 1
    # To a ceiling that an operator sets tau may rise up to tau2; of its own accord the rule stops at about tau1.
    level = settings.tau2 if above else settings.about_tau1
    last = review.asked.at(most)
    if last is None:
        return review.refuse(rule, Reason.NO_FORECAST, f"{why}, but there is no forecast for {worker_count(most)}")
    target = review.asked.fewest(least, most, lambda prospect: prospect.tau_max * growth <= level)
    if target is None:
        text = f"{why}, but {worker_count(most)} would be {last.tau_max * growth:.2f} full, above {level:.3g}"
        return review.refuse(rule, Reason.WOULD_EXCEED, text)
    prospect = review.asked.at(target)
    assert prospect is not None
    stay, change = review.bill_stay(latest), review.bill_change(target)
    if change.total >= stay.total and not above:
        text = f"{why}, but it costs more than it saves: {change.total:.3g} worker-hours against {stay.total:.3g}"
        return review.refuse(rule, Reason.NOT_WORTH, text)
    text = f"{why}: {from_to(state.workers, target)}, where the fullest should be {prospect.tau_max:.2f}"
    return review.act(rule, Kind.DEALLOCATE, reason, text, target)
