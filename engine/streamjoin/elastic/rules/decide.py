"""All rules together: their verdicts, which of them counts, and whether this is a time to begin a change."""

from __future__ import annotations

from streamjoin.elastic.decision import Candidate, Decision, Kind, Reason, Verdict
from streamjoin.elastic.esj import allocate_one, deallocate_one
from streamjoin.elastic.forecast import Prospect
from streamjoin.elastic.rules.allocate import allocate
from streamjoin.elastic.rules.deallocate import deallocate
from streamjoin.elastic.rules.keep_up import keep_up
from streamjoin.elastic.rules.replan import replan
from streamjoin.elastic.rules.review import HOUR, Review
from streamjoin.elastic.rules.sentences import duration, worker_count
from streamjoin.elastic.rules.shed import shed
from streamjoin.elastic.rules.vertical import vertical
from streamjoin.elastic.settings import Mode, Policy, Rule

_THRESHOLDS = ("tau0", "tau1", "tau2", "tau3", "scale_up_after", "scale_down_after")


def decide(review: Review) -> Decision:
    """What to do, with what each rule said. Changes no state."""
    state, settings = review.state, review.settings
    if state.suspended:
        return _nothing(review, Reason.SUSPENDED, "the join is suspended")
    if state.paused is not None:
        return _nothing(review, Reason.PAUSED, "decisions are paused" + (f" by {state.paused}" if state.paused else ""))
    if settings.is_off:
        return _nothing(review, Reason.OFF, "every rule is off")
    if state.migrating_to is not None or (state.latest is not None and state.latest.migrating):
        to = "" if state.migrating_to is None else f" to a plan of {worker_count(state.migrating_to)}"
        return _nothing(review, Reason.MIGRATING, f"state is on the move{to}")
    is_esj = settings.policy is Policy.ESJ
    full, behind = allocate_one(review) if is_esj else allocate(review), keep_up(review)
    verdicts = (
        *(full, behind, replan(review)),
        deallocate_one(review) if is_esj else deallocate(review),
        *vertical(review, full, behind),
        *shed(review),
    )
    chosen = _choose(verdicts)
    if chosen is None:
        return _hold(review, verdicts)
    refusal = _not_now(review, chosen, for_a_full_worker=chosen is full or chosen.kind is Kind.ENLARGE)
    if refusal is not None:
        said = tuple(refusal if verdict is chosen else verdict for verdict in verdicts)
        return _made(review, Kind.HOLD, chosen.rule, refusal.reason, refusal.sentence, state.workers, Mode.ENFORCE, said, None)
    memory = next((verdict for verdict in verdicts if verdict.kind is Kind.ENLARGE), None)
    sentence = chosen.sentence
    if memory is not None and memory.mode is Mode.RECOMMEND and chosen in (full, memory):
        sentence = f"{memory.sentence}; memory is only recommended"
    larger = review.enlargement if chosen is memory else None
    prediction = review.asked.at(chosen.target) if larger is None else larger.prospect
    return _made(review, chosen.kind, chosen.rule, chosen.reason, sentence, chosen.target, chosen.mode, verdicts, prediction)


def _choose(verdicts: tuple[Verdict, ...]) -> Verdict | None:
    """The first that is carried out, but memory before workers; else the first that is recommended. Nothing is removed while a rule wants
    workers added, or more memory for them."""
    acting = [verdict for verdict in verdicts if verdict.kind is not Kind.HOLD and verdict.mode is not Mode.OFF]
    if any(verdict.kind in (Kind.ALLOCATE, Kind.ENLARGE) for verdict in acting):
        acting = [verdict for verdict in acting if verdict.kind is not Kind.DEALLOCATE]
    enforced = [verdict for verdict in acting if verdict.mode is Mode.ENFORCE]
    larger = next((verdict for verdict in enforced if verdict.kind is Kind.ENLARGE), None)
    return larger or next(iter(enforced or acting), None)


def _not_now(review: Review, chosen: Verdict, *, for_a_full_worker: bool) -> Verdict | None:
    """Why what would be carried out must not begin at this time. Limits on workers are orders, and lost tuples do not come back."""
    settings, state = review.settings, review.state
    if chosen.mode is not Mode.ENFORCE or chosen.reason in (Reason.BELOW_FLOOR, Reason.ABOVE_CEILING):
        return None
    latest = state.latest
    loses = latest is not None and ((latest.shed_fraction or 0) > 0 or (latest.tau_max or 0) >= 1)
    # What may be lost by the budget is no reason to act at any time.
    within = settings.budget is not None and latest is not None and latest.budget_seconds is not None and state.spending is None
    if for_a_full_worker and loses and not within:
        return None
    window = settings.quiet_at(review.now)
    if window is not None:
        return review.refuse(chosen.rule, Reason.QUIET, f"{chosen.sentence}; but it is quiet from {window}")
    recent = [at for at in state.changes if review.now - at < HOUR]
    if settings.max_per_hour and len(recent) >= settings.max_per_hour:
        ends = duration(recent[-settings.max_per_hour] + HOUR - review.now)
        text = f"{chosen.sentence}; but there were {len(recent)} changes within the hour, and {settings.max_per_hour} may be; in {ends}"
        return review.refuse(chosen.rule, Reason.TOO_OFTEN, text)
    return None


def _hold(review: Review, verdicts: tuple[Verdict, ...]) -> Decision:
    """The refusal that says most: of a rule that would have acted, else that nothing calls for a change."""
    plain = (Reason.OFF, Reason.STEADY)
    telling = next((verdict for verdict in verdicts if verdict.reason not in plain), None)
    shown = telling or next((verdict for verdict in verdicts if verdict.reason is Reason.STEADY), verdicts[0])
    rule = telling.rule if telling is not None else None
    return _made(review, Kind.HOLD, rule, shown.reason, shown.sentence, review.state.workers, Mode.ENFORCE, verdicts, None)


def _nothing(review: Review, reason: Reason, sentence: str) -> Decision:
    return _made(review, Kind.HOLD, None, reason, sentence, review.state.workers, Mode.ENFORCE, (), None)


def _made(
    review: Review,
    kind: Kind,
    rule: Rule | None,
    reason: Reason,
    sentence: str,
    target: int,
    mode: Mode,
    verdicts: tuple[Verdict, ...],
    prediction: Prospect | None,
) -> Decision:
    settings, latest = review.settings, review.state.latest
    tau = latest.tau_max if latest is not None else None
    considered = sorted((workers, found) for workers, found in review.asked.answers.items() if found is not None)
    return Decision(
        at=review.now,
        kind=kind,
        rule=rule,
        reason=reason,
        sentence=sentence,
        generation=review.state.generation,
        workers=review.state.workers,
        target=target,
        mode=mode,
        inputs=latest,
        age_seconds=None if latest is None else review.now - latest.taken_at,
        held_for=None if rule is None else review.held_for.get(rule),
        shed_factor=settings.shed_factor(tau or 0.0),
        thresholds={name: getattr(settings, name) for name in _THRESHOLDS},
        candidates=tuple(Candidate(workers, found, review.bills.get(workers)) for workers, found in considered),
        stay=review.stay,
        prediction=prediction,
        verdicts=verdicts,
        enlargement=review.enlargement,
    )
