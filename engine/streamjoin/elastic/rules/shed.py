"""The rule ``shed``. It changes no plan: the engine sheds (``elastic.shedding``), by the same tau."""

from __future__ import annotations

from dataclasses import replace

from streamjoin.elastic.decision import Reason, Verdict
from streamjoin.elastic.rules.review import Review
from streamjoin.elastic.settings import Mode, Rule


def shed(review: Review) -> tuple[Verdict, ...]:
    """What shedding does, or would do; nothing where there is no model of it. The engine carries it out, by the same tau."""
    rule, settings = Rule.SHED, review.settings
    if settings.shedding_model == "off":
        return ()
    refusal = review.off(rule) or review.blind(rule)
    if refusal is not None:
        return (refusal,)
    tau = review.latest.tau_max
    if tau is None:
        return (review.refuse(rule, Reason.BAD_SAMPLE, "the fullest worker's tau is not known"),)
    if tau < settings.tau2:
        return (review.refuse(rule, Reason.STEADY, f"the fullest worker's tau ({tau:.2f}) is below tau2 ({settings.tau2:g})"),)
    full = f"whose tau ({tau:.2f}) is not below tau2 ({settings.tau2:g})"
    part = f"{settings.shed_factor(tau):.1%} of the tuples for the fullest worker, {full},"
    if settings.sheds:
        return (review.refuse(rule, Reason.SHEDDING, f"{part} are shed"),)
    said = review.refuse(rule, Reason.WOULD_SHED, f"{part} would be shed; it is only recommended, and none are")
    return (replace(said, mode=Mode.RECOMMEND),)
