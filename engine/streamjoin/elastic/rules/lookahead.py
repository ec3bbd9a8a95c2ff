"""How full the fullest worker is going to be, and when that is full. By the policy ``predictive``; by the others: how full it is.

What will be held follows from the window and the rates (``state_forecast``), at those of a jump that is believed (``rate_shifts``) or of
the season (``seasonality``) if they are higher, and at higher ones still where they rise steadily (``rate_trend``); what
the fullest worker's share of it is going to be, from how that share has changed (``trend``).
"""

from __future__ import annotations

from streamjoin.elastic.sample import Reading
from streamjoin.elastic.settings import Policy, Settings
from streamjoin.elastic.state import State
from streamjoin.elastic.state_forecast import Pair

FORESIGHT_SECONDS = 30.0
"""Beside a worker's start: what is foreseen is to be there so much earlier."""


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


def full_tau(state: State, settings: Settings) -> float:
    """From which expected tau on a worker counts as full. By ``predictive`` below tau2 by what forecasts are wrong by, at most half-way to
    the level that changes aim at, or they would aim too high."""
    if not settings.is_predictive:
        return settings.tau3
    return settings.tau2 - min(state.state_forecast.margin, (settings.tau2 - settings.level) / 2)


def ahead(settings: Settings) -> float:
    """How far ``predictive`` looks ahead, in seconds: until a worker that is asked for now is there, and a little more."""
    return settings.start_seconds + settings.interval_seconds + FORESIGHT_SECONDS


def coming(state: State, settings: Settings) -> float:
    """By which factor what is held is going to grow; 1 where it shrinks, and where the policy does not look ahead."""
    if not settings.is_predictive:
        return 1.0
    return max(1.0, _grown(state, settings, ahead(settings)), _settled(state, settings, ahead(settings)))


def present_rates(state: State, settings: Settings) -> Pair:
    """Tuples per second, by side: the average of the last samples, or that of a jump that is believed, if more.

    Where a worker is full, so that something is done at once, it is done for what comes now, burst or not.
    """
    state_forecast, jumps, latest = state.state_forecast, state.rate_shifts, state.latest
    is_full = latest is not None and latest.tau_max is not None and settings.unshed(latest.tau_max) >= settings.tau2
    jump = None if state_forecast.at is None or jumps.since is None else jumps.rates if is_full else jumps.believed(state_forecast.at)
    return state_forecast.rates if jump is None or sum(jump) < sum(state_forecast.rates) else jump


def coming_rates(state: State, settings: Settings, seconds: float) -> Pair:
    """What the rates of now are going to be in so many seconds, where they rise steadily (``rate_trend``)."""
    rates, growth = present_rates(state, settings), state.rate_trend.growth(seconds)
    return rates[0] * growth[0], rates[1] * growth[1]


def budget_ends(settings: Settings, reading: Reading) -> bool:
    """Whether the budget for lost results is going to be spent before workers that are added after ``scale_up_after`` would be there."""
    left = reading.budget_seconds
    return settings.budget is not None and left is not None and left <= ahead(settings) + settings.scale_up_after


def _grown(state: State, settings: Settings, seconds: float) -> float:
    """What will be held in so many seconds / what is held now: at the rates of now, or at those of the season, if more."""
    state_forecast, spans, rates = state.state_forecast, settings.window_seconds, coming_rates(state, settings, seconds)
    seasonality = state.seasonality.rates(seconds)
    return state_forecast.growth(spans, seconds, rates if seasonality is None else _larger(rates, seasonality))


def _settled(state: State, settings: Settings, seconds: float) -> float:
    """By which factor what is held grows once the window has taken in the rates of now, or the season's of the next so many seconds, if
    those are higher."""
    rates, seasonality = coming_rates(state, settings, seconds), state.seasonality.highest(seconds)
    return state.state_forecast.settled(settings.window_seconds, rates if seasonality is None else _larger(rates, seasonality))


def _larger(first: Pair, second: Pair) -> Pair:
    return max(first[0], second[0]), max(first[1], second[1])
