"""What is learned of the time of day: rushes that come each day are foreseen, and where nothing comes by the clock nothing is."""

from __future__ import annotations

import json

import numpy as np
import pytest

from streamjoin.elastic.seasonality import BIN_SECONDS, DAY, MOST_FACTOR, WEEK, Seasonality
from streamjoin.simulation.rivals import StreamJoin
from streamjoin.simulation.run import SimulatedJoin, simulate
from streamjoin.simulation.traffic import Traffic, generate
from test_outlook import SETTINGS, SPAN

STEP = 60.0


def learned(traffic: Traffic, seasonality: Seasonality | None = None, *, begin: float = 0.0) -> Seasonality:
    seasonality = Seasonality() if seasonality is None else seasonality
    for index, rates in enumerate(zip(*traffic.rates, strict=True)):
        seasonality.observe(begin + (index + 1) * traffic.step_seconds, (float(rates[0]), float(rates[1])))
    return seasonality


def made(kind: str, days: float, seed: int) -> Traffic:
    return generate(kind, days=days, step_seconds=STEP, seed=seed, rates=(1000.0, 500.0))


def daily(days: int, *, rush: float = 4.0, noise: float = 0.05, seed: int = 1, level: float = 1000.0) -> Traffic:
    """From 9:30 to 10:15 so many times as much, with noise."""
    rng = np.random.default_rng(seed)
    at = (np.arange(int(days * 86400 / STEP)) + 0.5) * STEP
    is_rush = (at % 86400 >= 9.5 * 3600) & (at % 86400 < 10.25 * 3600)
    rates = level * np.where(is_rush, rush, 1.0) * (1 + noise * rng.standard_normal(len(at)))
    return Traffic(STEP, (rates, rates / 2), np.ones(len(at)), np.zeros(len(at)))


def up_to(traffic: Traffic, seconds: float) -> Traffic:
    steps = round(seconds / traffic.step_seconds)
    left, right = traffic.rates
    return Traffic(traffic.step_seconds, (left[:steps], right[:steps]), traffic.skew[:steps], traffic.hot[:steps])


def test_a_rush_that_comes_each_day_is_foreseen() -> None:
    before = 9 * 86400 + 9.5 * 3600 - 120  # two minutes before
    seasonality = learned(up_to(daily(10), before))
    ahead = seasonality.highest(240)
    assert ahead is not None
    assert ahead[0] == pytest.approx(4000, rel=0.1)
    assert ahead[1] == pytest.approx(2000, rel=0.1)
    mean = seasonality.rates(240)
    assert mean is not None
    assert mean[0] == pytest.approx((1000 + 4000) / 2, rel=0.1), "two of the four minutes are of the rush"
    assert seasonality.highest(60) == pytest.approx((1000, 500), rel=0.1), "nothing is to come within a minute"


def test_that_a_rush_does_not_come_is_seen_after_some_minutes() -> None:
    seasonality = learned(up_to(daily(10), 9 * 86400 + 9.5 * 3600))
    begin = 9 * 86400 + 9.5 * 3600
    for minute in range(1, 5):
        seasonality.observe(begin + 60 * minute, (1000.0, 500.0))
    ahead = seasonality.highest(60)
    assert ahead is not None
    assert ahead[0] == pytest.approx(1000, rel=0.1)


def test_a_busier_week_has_the_same_season() -> None:
    seasonality = learned(up_to(daily(2, level=3000.0), 86400 + 9.5 * 3600 - 120), learned(daily(9)), begin=9 * 86400)
    ahead = seasonality.highest(240)
    assert ahead is not None
    assert ahead[0] == pytest.approx(12000, rel=0.1)


def test_a_week_is_told_from_a_day() -> None:
    """No rush comes on a Saturday; the season of the day says one that of the week does not."""
    traffic = made("rush", 28, 1)
    saturday = 26 * 86400 + 9.5 * 3600 - 120
    seasonality = learned(up_to(traffic, saturday))
    assert seasonality.name == "week"
    ahead = seasonality.highest(400)
    assert ahead is not None
    assert ahead[0] < 1500
    assert np.exp(seasonality.day.change(int(saturday // BIN_SECONDS) + 1)[0]) > 1.5


@pytest.mark.parametrize("kind", ["spike", "random"])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_without_a_season_none_is_believed(kind: str, seed: int) -> None:
    traffic, seasonality, believed = made(kind, 21, seed), Seasonality(), 0
    for index, (left, right) in enumerate(zip(*traffic.rates, strict=True)):
        seasonality.observe((index + 1) * STEP, (float(left), float(right)))
        believed += seasonality.believed is not None
    assert believed <= 0.02 * traffic.steps


def test_noise_is_no_season() -> None:
    rng = np.random.default_rng(4)
    seasonality = Seasonality()
    for index in range(21 * DAY * 15):
        rate = 1000.0 * float(np.exp(0.5 * rng.standard_normal()))
        seasonality.observe((index + 1) * STEP, (rate, rate))
        assert seasonality.believed is None


def test_a_season_that_ends_is_no_longer_believed() -> None:
    seasonality = learned(daily(9))
    assert seasonality.believed is not None
    rng = np.random.default_rng(7)
    before = daily(14)
    left, right = (np.concatenate([np.roll(day, int(rng.integers(0, 1440))) for day in side.reshape(14, -1)]) for side in before.rates)
    seasonality = learned(Traffic(STEP, (left, right), before.skew, before.hot), seasonality, begin=9 * 86400)
    assert seasonality.believed is None, "rushes at random times of the day are none of the season"


def test_the_interval_holds_what_comes() -> None:
    traffic, seasonality, within, all_of = made("diurnal", 14, 2), Seasonality(), 0, 0
    said: tuple[float, float] | None = None
    bins = round(BIN_SECONDS / STEP)
    for index in range(0, traffic.steps - bins, bins):
        rate = float(sum(side[index : index + bins].mean() for side in traffic.rates))
        if said is not None:
            all_of += 1
            within += said[0] <= rate <= said[1]
        for step in range(index, index + bins):
            seasonality.observe((step + 1) * STEP, (float(traffic.rates[0][step]), float(traffic.rates[1][step])))
        ahead = seasonality.rates(BIN_SECONDS)
        said = None if ahead is None else (sum(ahead) / seasonality.factor, sum(ahead) * seasonality.factor)
    assert all_of > 3 * DAY
    assert within / all_of >= 0.9


def test_what_was_not_watched_is_not_learned() -> None:
    seasonality = Seasonality()
    seasonality.observe(0.0, (1000.0, 1000.0))
    seasonality.observe(10 * BIN_SECONDS + 1, (50000.0, 1000.0))
    seasonality.observe(12 * BIN_SECONDS + 1, (1.0, 1000.0))
    assert not any(seasonality.day.counts)
    assert not any(seasonality.week.counts)


def test_it_survives_a_restart() -> None:
    seasonality = learned(up_to(daily(10), 9 * 86400 + 9.5 * 3600 - 120))
    text = json.dumps(seasonality.to_json())
    again = Seasonality.from_json(json.loads(text))
    assert again.highest(240) == pytest.approx(seasonality.highest(240), rel=0.02)
    assert again.to_json() == json.loads(text)
    assert len(text) < 40_000


def test_extremes() -> None:
    seasonality = Seasonality()
    for index in range(3 * DAY):
        seasonality.observe((index + 1) * BIN_SECONDS, (0.0, 1e300) if index % 2 else (1e300, 0.0))
    most = np.log(MOST_FACTOR) * (1 + 1e-9)
    assert all(abs(change) <= most for pair in seasonality.day.changes for change in pair)
    assert len(seasonality.week.changes) == WEEK
    found = seasonality.highest(7200)
    assert found is None or all(np.isfinite(found))


def test_with_a_season_less_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of rushes by the clock, as workers are there in time; for about the same bill. On the first two days nobody knows them."""
    join = SimulatedJoin(settings=SETTINGS, window_seconds=(SPAN, SPAN), share=0.05)
    traffic = generate("rush", days=10, step_seconds=30, seed=1, rates=(1000, 1000))
    own = simulate(join, traffic, StreamJoin(join))
    monkeypatch.setattr(Seasonality, "believed", None)
    without = simulate(join, traffic, StreamJoin(join))
    assert own.shed_tuples < 0.7 * without.shed_tuples
    assert own.seconds_above_tau3 < 0.7 * without.seconds_above_tau3
    assert own.bill < 1.03 * without.bill
