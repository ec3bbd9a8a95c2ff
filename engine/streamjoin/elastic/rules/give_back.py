"""The rule ``deallocate`` by the policy ``predictive``: workers go once standing idle has cost as much as a change and the way back."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from streamjoin.elastic.decision import Kind, Reason, Verdict
from streamjoin.elastic.forecast import Prospect
from streamjoin.elastic.rules.keep_up import fewest_that_keep_up
from streamjoin.elastic.rules.review import HOUR, Review
from streamjoin.elastic.rules.sentences import duration, from_to, worker_count
from streamjoin.elastic.sample import Reading
from streamjoin.elastic.settings import Rule


@dataclass(frozen=True, slots=True)
class _Offer:
    """Fewer workers, what the others have cost since they were needed last, and what it costs to go there and back, or as much less as
    spells of idleness so far make it worth to wait for; in worker-hours."""

    workers: int
    prospect: Prospect
    idle: float
    price: float


def give_back(review: Review, latest: Reading, why: str) -> Verdict:
    """Remove workers that have stood idle for so long that a change, and the change back, would have been cheaper.

    As one decides between hiring skis and buying them: what waiting has cost is what changing costs.
    """
    rule, state, settings = Rule.DEALLOCATE, review.state, review.settings
    state_forecast = state.state_forecast
    held = sum(state_forecast.held)
    if state_forecast.at != latest.taken_at:
        return review.refuse(rule, Reason.NO_FORECAST, f"{why}, but it is not known since when fewer workers would do")
    least = max(review.low, fewest_that_keep_up(review))
    if least >= state.workers:
        text = f"{why}, but fewer workers would not keep up: epochs take up to {state.peaks.epoch_seconds:.3g} s"
        return review.refuse(rule, Reason.BUSY, text)
    offers: list[_Offer] = []
    spare = 1
    # Each number is asked about in the planner, so only a few are: at least half of what the best one saves is saved.
    while state.workers - spare >= least:
        workers = state.workers - spare
        prospect = review.asked.at(workers)
        if prospect is None:
            return review.refuse(rule, Reason.NO_FORECAST, f"{why}, but there is no forecast for {worker_count(workers)}")
        tau = prospect.tau_max * review.coming
        if tau > settings.level:
            if offers:
                break
            text = f"{why}, but {worker_count(workers)} would be {tau:.2f} full, above {settings.level:.3g}"
            return review.refuse(rule, Reason.WOULD_EXCEED, text)
        room = held * settings.level / prospect.tau_max if prospect.tau_max > 0 else math.inf
        # Of a plan that is young nobody knows yet whether it was needed.
        idle_seconds = min(state_forecast.seconds_within(room), latest.taken_at - state.changed_at)
        change = review.bill_change(workers)
        # There and back, and the workers while they start anew.
        price = 2 * (change.moving + change.pause + change.change) + spare * settings.start_seconds / HOUR
        offers.append(_Offer(workers, prospect, spare * idle_seconds / HOUR, price))
        spare *= 2
    # What waiting for so long costs is what is to be paid for the change, but that spells were shorter or longer so far.
    offers = [replace(offer, price=_wait_worth(review, offer)) for offer in offers]
    # Where the price is paid for several, the most go: one change instead of two.
    paid = [offer for offer in offers if offer.idle >= offer.price]
    best = paid[-1] if paid else max(offers, key=lambda offer: offer.idle - offer.price)
    then = _wait_for_more(review, best, least, offers)
    if then is not None and best.idle >= best.price:
        text = f"{why}, and {worker_count(best.workers)} would do, but {then}"
        return review.refuse(rule, Reason.WAITING, text)
    costs = f"workers that stood idle have cost {best.idle:.2g} worker-hours, of {best.price:.2g} that a change and back are worth"
    if best.idle < best.price:
        return review.refuse(rule, Reason.WAITING, f"{why}, and {worker_count(best.workers)} would do, but {costs}")
    to = f"{from_to(state.workers, best.workers)}, where the fullest should be {best.prospect.tau_max:.2f}"
    return review.act(rule, Kind.DEALLOCATE, Reason.UNUSED, f"{why}, and {costs}: {to}", best.workers)


def _wait_for_more(review: Review, offer: _Offer, least: int, offers: Sequence[_Offer]) -> str | None:
    """Why not to take an offer yet, where more are soon to go: one change instead of two is worth that the first ones stay as long.

    The others are as many as would be offered next: they are still needed while the window empties, or have yet to pay for the change.
    """
    state, settings = review.state, review.settings
    spare = state.workers - offer.workers
    further = review.asked.at(offer.workers - spare) if offer.workers - spare >= least else None
    if further is None:
        return None
    unpaid = next((each for each in offers if each.workers < offer.workers), None)
    if unpaid is not None:
        more = offer.workers - unpaid.workers
        seconds = (unpaid.price - unpaid.idle) / (state.workers - unpaid.workers) * HOUR
    else:
        more, falls = spare, 1 - state.state_forecast.growth(settings.window_seconds, 1.0)
        if falls <= 0 or further.tau_max <= settings.level:
            return None
        if further.tau_max * state.state_forecast.settled(settings.window_seconds) > settings.level:
            return None
        seconds = (1 - settings.level / further.tau_max) / falls
    change = review.bill_change(offer.workers)
    stay, saved = spare * seconds / HOUR, change.moving + change.pause + change.change
    if stay >= saved:
        return None
    words = "one more" if more == 1 else f"{more} more"
    return f"in {duration(seconds)} {words} can go with them: they cost {stay:.2g} worker-hours till then, and a change {saved:.2g}"


def _wait_worth(review: Review, offer: _Offer) -> float:
    """The idle worker-hours that are to pass before an offer is taken."""
    spare = review.state.workers - offer.workers
    return review.state.idle_periods.wait(offer.price / spare * HOUR) * spare / HOUR
