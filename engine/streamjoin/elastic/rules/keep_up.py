"""The rule ``keepUp``: more workers where epochs take longer than their interval while what waits grows; and how many keep up."""

from __future__ import annotations

import math

from streamjoin.elastic.decision import Kind, Reason, Verdict
from streamjoin.elastic.rules.review import Review
from streamjoin.elastic.rules.sentences import by_whom, duration, from_to, worker_count
from streamjoin.elastic.settings import Rule

_LEAST_EFFECT = 0.1
"""Workers that were added must have brought this part of what was expected of them."""
_SAME_RATE = 0.9
"""From this part on of a rate that workers could not keep up with, as many of them are not tried again."""


def keep_up(review: Review) -> Verdict:
    """More workers, once epochs have taken too long for long enough while what waits has grown; at most twice as many."""
    rule, state, settings = Rule.KEEP_UP, review.state, review.settings
    refusal = review.off(rule) or review.blind(rule)
    if refusal is not None:
        return refusal
    latest, hold = review.latest, state.behind
    if latest.epoch_seconds is None or latest.backlog_records is None:
        return review.refuse(rule, Reason.BAD_SAMPLE, "the epoch's time or the backlog is not known")
    if hold is None:
        text = f"epochs take {latest.epoch_seconds:.3g} s of their {settings.interval_seconds:g} s"
        return review.refuse(rule, Reason.STEADY, text)
    review.held_for[rule] = hold.seconds
    late = f"epochs take {latest.epoch_seconds:.3g} s, over their interval of {settings.interval_seconds:g} s"
    if hold.seconds < settings.scale_up_after:
        return review.wait(rule, late, hold.seconds, settings.scale_up_after)
    rate = latest.rate
    if rate is None or rate <= 0:
        return review.refuse(rule, Reason.BAD_SAMPLE, f"{late}, but the rates are not known")
    grown = latest.backlog_records - hold.backlog
    if grown <= 0 or latest.backlog_records < rate * settings.interval_seconds:
        return review.refuse(rule, Reason.STEADY, f"{late}, but what waits does not grow ({latest.backlog_records:,.0f} records)")
    attempt = state.attempt
    if attempt is not None:
        # As Flink's autoscaler detects an ineffective scale-up: the actual increase against the one that was expected.
        expected = attempt.rate_before * (attempt.workers / attempt.workers_before - 1)
        if rate - attempt.rate_before < _LEAST_EFFECT * expected:
            text = f"{late}, but going from {attempt.workers_before} to {attempt.workers} workers made it no faster"
            return review.refuse(rule, Reason.INEFFECTIVE, text)
    capacity = state.workers + latest.starting
    # What arrives, and what is to be worked off, against what is taken in now.
    needed = rate + grown / hold.seconds + latest.backlog_records / settings.catch_up_seconds
    target = min(review.high, 2 * state.workers, max(state.workers + 1, math.ceil(state.workers * needed / rate)))
    if target <= capacity:
        if latest.starting:
            return review.refuse(rule, Reason.STARTING, f"{late}; {worker_count(latest.starting)} are starting")
        return review.refuse(rule, Reason.AT_LIMIT, f"{late}, but {worker_count(capacity)} are the most allowed ({review.high})")
    text = f"{late}, for {duration(hold.seconds)}, and {grown:,.0f} more records wait{by_whom(latest)}: {from_to(state.workers, target)}"
    return review.act(rule, Kind.ALLOCATE, Reason.BEHIND, text, target)


def fewest_that_keep_up(review: Review) -> int:
    """With which epochs are short enough, by the largest load of ``scale_down_after``.

    An epoch is a fixed cost and work that the workers share: fixed + (epoch - fixed) * before / after <= busy_target * interval.
    """
    state, settings = review.state, review.settings
    fixed = min(state.quickest or 0.0, settings.busy_idle * settings.interval_seconds)
    room = settings.busy_target * settings.interval_seconds - fixed
    least = math.ceil(state.workers * max(0.0, state.peaks.epoch_seconds - fixed) / room - 1e-9)
    outrun = state.outrun
    if outrun is not None and state.peaks.rate >= _SAME_RATE * outrun.rate_before:
        least = max(least, outrun.workers_before + 1)
    return least
