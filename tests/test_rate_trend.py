"""Rates that rise steadily, and how far they are taken to go on."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from streamjoin.elastic.rate_trend import MOST_ROWS, RateTrend
from streamjoin.simulation.traffic import generate

AHEAD = 90.0


def fed(*rates: float, every: float = 10.0) -> RateTrend:
    """So many tuples per second of the left stream, a sample every so many seconds; the right one brings 100."""
    trend = RateTrend()
    for number, rate in enumerate(rates):
        trend.observe(number * every, (rate, 100.0))
    return trend


def test_a_ramp_is_taken_to_go_on_for_as_long_as_it_has_lasted() -> None:
    assert fed(100, 200, 300, 400, 500).growth(AHEAD) == (pytest.approx((500 + 40 * 10) / 500), 1.0)


def test_no_further_than_is_asked() -> None:
    assert fed(100, 200, 300, 400, 500).growth(5.0) == (pytest.approx(550 / 500), 1.0)


def test_one_that_eases_off_goes_on_as_slowly_as_it_does_now() -> None:
    assert fed(100, 300, 500, 520, 540).growth(AHEAD)[0] == pytest.approx((540 + 40 * 2) / 540)


@pytest.mark.parametrize("every", [1.0, 5.0, 15.0])
def test_a_jump_is_no_rise(every: float) -> None:
    trend = RateTrend()
    for number in range(100):
        trend.observe(number * every, (100.0 if number * every < 60 else 400.0, 100.0))
        assert trend.growth(AHEAD) == (1.0, 1.0), number


@pytest.mark.parametrize("rates", [(), (100,), (100, 200), (100, 90, 80, 70), (100, 105, 110, 115, 120), (0, 0, 0)])
def test_what_is_no_rise_adds_nothing(rates: tuple[float, ...]) -> None:
    assert fed(*rates).growth(AHEAD) == (1.0, 1.0)


@pytest.mark.parametrize("kind", ["diurnal", "ramp", "ratio-shift"])
def test_days_that_rise_over_hours_are_followed_as_they_are(kind: str) -> None:
    trend = RateTrend()
    traffic = generate(kind, days=1, step_seconds=15, seed=1, rates=(1000, 1000))
    for number, (left, right) in enumerate(zip(*traffic.rates, strict=True)):
        trend.observe(15.0 * number, (left, right))
        assert max(trend.growth(AHEAD)) <= 1.15


@hypothesis_settings(max_examples=100, deadline=None)
@given(st.floats(10, 1000), st.floats(1.3, 50), st.integers(4, 100), st.floats(1, 30), st.floats(1, 600))
def test_no_ramp_is_overestimated_by_more_than_twice(rate: float, times: float, samples: int, every: float, ahead: float) -> None:
    trend = RateTrend()
    for number in range(samples):
        now = rate * (1 + (times - 1) * number / (samples - 1))
        trend.observe(number * every, (now, 100.0))
        left, right = trend.growth(ahead)
        assert 1.0 <= left <= 2.0
        assert right == 1.0


def test_after_a_long_gap_it_begins_anew_and_memory_is_bounded() -> None:
    trend, rng = fed(100, 200, 300), random.Random(3)
    trend.observe(10_000, (400.0, 100.0))
    assert trend.growth(AHEAD) == (1.0, 1.0)
    for number in range(5000):
        trend.observe(10_001 + number, (100.0 + number, rng.random()))
    assert len(trend.rows) <= MOST_ROWS
