"""The policy ``esj``: when workers come and go exactly as ESJ has it in print ("Adapting to the varying workload").

::

    scaling up      tau >= tau3 "lasting for certain time": workers are added one at a time, "until tau decrease to tau1 around or the
                    worker resources are exhausted"
    scaling down    tau <= tau0 "lasting for a long time": workers are removed one at a time, "until tau rises to tau1 around or m = M",
                    M being the number of the first plan

Each worker that comes or goes is a plan of its own; the next one follows from the first sample of that plan, without another wait.

Where the text leaves it open:

- *Which tau.* It is that of "a worker", and ESJ's chain keeps them alike. Here it is the fullest worker's, both ways: where that one is at
  or below tau0, all are.
- *Shedding.* tau = r / W is of the tuples that are held. Shedding holds it down, so a join that sheds may stay below tau3, and shed for
  ever: what the text says, and why ``thresholds`` counts what is shed.
- *A certain time, a long time* are ``scaleUpAfter`` and ``scaleDownAfter``.
- *How many at a time.* "Keeps adding workers until" and "deallocate some workers until": one, looking at tau after each.
- *Around tau1* is ``Settings.about_tau1``, a tenth above it. Going up ends at or below that. Going down ends where one worker
  fewer would bring tau above that: by the text alone the last step may overshoot to nearly twice tau1.
- *What does not help.* Workers that do not lower tau, as where one key fills a worker, are added until there are no more, as the text
  says; ``thresholds`` would stop.

Always holds: what ``core`` promises for any policy, which is more than the paper says: no worker goes by a bad sample, while tuples are
shed or the join falls behind, or where tau would exceed tau2; quiet times and limits count. The rules ``replan`` and ``keepUp``, which ESJ
does not have, are off unless the manifest names them.
"""

from __future__ import annotations

from streamjoin.elastic.decision import Kind, Reason, Verdict
from streamjoin.elastic.rules.allocate import below_floor
from streamjoin.elastic.rules.deallocate import deallocate
from streamjoin.elastic.rules.review import Review
from streamjoin.elastic.sample import Reading
from streamjoin.elastic.settings import Policy, Rule, Settings
from streamjoin.elastic.state import Course, State


def course_after(state: State, settings: Settings, reading: Reading) -> Course | None:
    """Which way workers are to go on after a sample that is already in the holds of ``state``. One that does not tell changes nothing."""
    tau = reading.tau_max
    if settings.policy is not Policy.ESJ:
        return None
    if tau is None or not reading.complete:
        return state.course
    if state.full is not None and state.full.seconds >= settings.scale_up_after:
        return Course.UP
    if state.unused is not None and state.unused.seconds >= settings.scale_down_after:
        return Course.DOWN
    if state.course is Course.UP:
        return Course.UP if tau > settings.about_tau1 else None
    # "Around tau1" going down: where the tuples of one worker, shared out among the others, would fill them further than that.
    then = tau * reading.workers / (reading.workers - 1) if reading.workers > 1 else tau
    return Course.DOWN if state.course is Course.DOWN and then <= settings.about_tau1 else None


def allocate_one(review: Review) -> Verdict:
    """The rule ``allocate``: one worker more from tau3 on, until tau is about tau1."""
    rule, state, settings = Rule.ALLOCATE, review.state, review.settings
    answer = review.off(rule) or below_floor(review) or review.blind(rule)
    if answer is not None:
        return answer
    latest, hold = review.latest, state.full
    tau = latest.tau_max
    if hold is not None:
        review.held_for[rule] = hold.seconds
    if state.course is not Course.UP or tau is None:
        if hold is not None:
            return review.wait(rule, f"tau is at or above tau3 ({settings.tau3:g})", hold.seconds, settings.scale_up_after)
        if tau is None or not latest.complete:
            return review.refuse(rule, Reason.BAD_SAMPLE, "the fullest worker's tau is not known, and the sample is partial")
        return review.refuse(rule, Reason.STEADY, f"the fullest worker's tau ({tau:.2f}) is below tau3 ({settings.tau3:g})")
    why = f"tau of the fullest worker ({tau:.2f}) "
    if hold is not None and hold.seconds >= settings.scale_up_after:
        why += f"has been at or above tau3 ({settings.tau3:g}) for {hold.seconds:.0f} s"
    else:
        why += f"has reached tau3 ({settings.tau3:g}) and is not down at about tau1 ({settings.about_tau1:.3g}) yet"
    if latest.starting:
        return review.refuse(rule, Reason.STARTING, f"{why}, but {latest.starting} are starting")
    if state.workers >= review.high:
        return review.refuse(rule, Reason.AT_LIMIT, f"{why}, but {state.workers} workers are the most allowed ({review.high})")
    return _one(review, rule, Kind.ALLOCATE, Reason.FULL, why, state.workers + 1)


def deallocate_one(review: Review) -> Verdict:  # noqa: C901
    """The rule ``deallocate``: one worker less from tau0 down, until tau is about tau1. Above a ceiling as ``thresholds`` has it."""
    rule, state, settings = Rule.DEALLOCATE, review.state, review.settings
    if state.workers > review.high:
        return deallocate(review)
    refusal = review.off(rule) or review.blind(rule)
    if refusal is not None:
        return refusal
    latest, hold = review.latest, state.unused
    tau = latest.tau_max
    if latest.unconfirmed is not None:
        return review.refuse(rule, Reason.UNCONFIRMED, f"nobody confirms the sample ({latest.unconfirmed}), and by it no worker goes")
    if not latest.sound or tau is None:
        problems = "; ".join(latest.problems[:3]) or "it is partial"
        return review.refuse(rule, Reason.BAD_SAMPLE, f"the last sample cannot take workers away: {problems}")
    if state.workers <= review.low:
        return review.refuse(rule, Reason.STEADY, f"no fewer than {review.low} workers are allowed, as many as there were at first")
    if hold is not None:
        review.held_for[rule] = hold.seconds
    if state.course is not Course.DOWN:
        if hold is not None:
            return review.wait(rule, f"tau is at or below tau0 ({settings.tau0:g})", hold.seconds, settings.scale_down_after)
        return review.refuse(rule, Reason.STEADY, f"the fullest worker's tau ({tau:.2f}) is above tau0 ({settings.tau0:g})")
    why = f"tau of the fullest worker ({tau:.2f}) "
    if hold is not None and hold.seconds >= settings.scale_down_after:
        why += f"has been at or below tau0 ({settings.tau0:g}) for {hold.seconds:.0f} s"
    else:
        why += f"has been at tau0 ({settings.tau0:g}) and is not up at about tau1 ({settings.about_tau1:.3g}) yet"
    if latest.starting:
        return review.refuse(rule, Reason.STARTING, f"{why}, but {latest.starting} are starting")
    if latest.shed_fraction:
        return review.refuse(rule, Reason.SHEDDING, f"{why}, but {latest.shed_fraction:.1%} of the tuples are shed")
    if state.behind is not None:
        return review.refuse(rule, Reason.BEHIND, f"{why}, but the join falls behind its input")
    prospect = review.asked.at(state.workers - 1)
    if prospect is None:
        return review.refuse(rule, Reason.NO_FORECAST, f"{why}, but there is no forecast for {state.workers - 1}")
    if prospect.tau_max > settings.about_tau1:
        text = f"{why}, but {state.workers - 1} would be {prospect.tau_max:.2f} full, above about tau1 ({settings.about_tau1:.3g})"
        return review.refuse(rule, Reason.WOULD_EXCEED, text)
    return _one(review, rule, Kind.DEALLOCATE, Reason.UNUSED, why, state.workers - 1)


def _one(review: Review, rule: Rule, kind: Kind, reason: Reason, why: str, target: int) -> Verdict:
    prospect = review.asked.at(target)
    then = "" if prospect is None else f", where it should be {prospect.tau_max:.2f}"
    return review.act(rule, kind, reason, f"{why}: one worker {'more' if kind is Kind.ALLOCATE else 'less'}, {target}{then}", target)
