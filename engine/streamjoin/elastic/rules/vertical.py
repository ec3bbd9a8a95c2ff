"""The rule ``vertical``: more memory for the workers that run, where ``allocate`` wants more workers and memory is cheaper, or where more
workers are not allowed or would not help."""

from __future__ import annotations

from dataclasses import replace

from streamjoin.elastic.arbitration import bill
from streamjoin.elastic.decision import Enlargement, Kind, Reason, Verdict
from streamjoin.elastic.forecast import Prospect
from streamjoin.elastic.rules.lookahead import expected_tau
from streamjoin.elastic.rules.review import Review
from streamjoin.elastic.rules.sentences import worker_count
from streamjoin.elastic.settings import Mode, Rule
from streamjoin.elastic.vertical import Headroom
from streamjoin.manifest.quantity import Memory

_FULL = (Reason.FULL, Reason.BUDGET)
"""Why ``allocate`` adds workers that memory may replace."""
_NO_WORKERS = (Reason.AT_LIMIT, Reason.NO_GAIN)
"""Why it adds none for a full worker, where memory is all that is left."""


def vertical(review: Review, full: Verdict, behind: Verdict) -> tuple[Verdict, ...]:
    """What memory would do instead of ``full``, the verdict of ``allocate``; nothing where the rule is off. ``behind``: that of ``keepUp``,
    for which workers are needed, as their cores are."""
    rule, settings = Rule.VERTICAL, review.settings
    headroom = settings.headroom
    if headroom is None or settings.mode_of(rule) is Mode.OFF:
        return ()
    adds = full.kind is Kind.ALLOCATE and full.reason in _FULL
    if not adds and full.reason not in _NO_WORKERS:
        return (review.refuse(rule, Reason.STEADY, "no workers are to be added because one is full"),)
    if headroom.unable:
        return (review.refuse(rule, Reason.UNABLE, f"workers get no more memory while they run: {headroom.unable}"),)
    if behind.kind is not Kind.HOLD:
        return (review.refuse(rule, Reason.BEHIND, "the join falls behind its input, too, for which memory is no help"),)
    if review.latest.starting:
        return (review.refuse(rule, Reason.STARTING, f"{worker_count(review.latest.starting)} are starting"),)
    return (_weigh(review, headroom, full, adds=adds),)


def _weigh(review: Review, headroom: Headroom, full: Verdict, *, adds: bool) -> Verdict:
    """Against the workers that would be added, if any would."""
    rule, state, settings, latest = Rule.VERTICAL, review.state, review.settings, review.latest
    now = settings.unshed(latest.tau_max or 0.0)
    # The plan stays, and so does how unevenly it fills workers.
    coming = max(now * review.coming, expected_tau(state, settings, latest.tau_max or 0.0))
    memory = headroom.least_for(coming / settings.level)
    if memory is None:
        then = coming / headroom.times(headroom.most)
        text = f"{Memory(headroom.most)} of memory, the most allowed (spec.workers.maxMemory), would leave it at {then:.2f}"
        return review.refuse(rule, Reason.AT_LIMIT, f"{text}, above {settings.level:.3g}")
    less = 1 / headroom.times(memory)
    mean = (latest.tau_mean or latest.least_mean) / latest.kept * less
    costs = bill(
        workers=state.workers,
        tau_max=now * less,
        tau_mean=mean,
        moved_tuples=0.0,
        rate=latest.rate,
        changes=False,
        settings=settings,
        prices=review.prices,
        size=headroom.price(memory, review.prices.core_gib),
    )
    prospect = Prospect(tasks=state.workers, tau_max=now * less, tau_mean=mean, moved_tuples=0.0, lower_bound_tuples=0.0, naive_tuples=0.0)
    review.enlargement = Enlargement(headroom.memory, memory, prospect, costs)
    text = f"with {review.enlargement.words} {worker_count(state.workers)} should be filled to {now * less:.2f} at most"
    if adds:
        if review.asked.at(full.target) is None:
            return review.refuse(rule, Reason.NO_FORECAST, f"{text}, but there is no forecast of what more workers would cost")
        others = review.bill_change(full.target).total
        text += f", for {costs.total:.3g} worker-hours against {others:.3g}"
        if costs.total >= others:
            return review.refuse(rule, Reason.NOT_WORTH, text)
    said = review.act(
        rule, Kind.ENLARGE, full.reason if adds else Reason.FULL, f"{full.sentence}; {text}, and nothing moves", state.workers
    )
    return said if settings.mode_of(Rule.ALLOCATE) is Mode.ENFORCE else replace(said, mode=Mode.RECOMMEND)
