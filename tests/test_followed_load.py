"""Loads that jump or rise, followed by the operator's real steps with a modelled join: how soon, and with how many plans."""

from __future__ import annotations

import asyncio
import itertools
import re

import pytest

from cases import some
from followed_load import PODS_SECONDS, LoadedJoin, follow
from scaled_join import MOVE_SECONDS
from streamjoin.elastic.damping import MOST_PATIENCE, Damping
from streamjoin_operator.measurement import Reading, Scrapes, measure

RATE = 180.0
"""Tuples per second of each stream, by which one worker is 0.65 full."""
PREDICTIVE = {"policy": "predictive"}


@pytest.mark.parametrize(("times", "phase"), some(itertools.product((4, 8), (0, 3, 7, 11, 14)), of=7))
def test_the_first_plan_after_a_jump_is_put_within_twenty_seconds_and_is_enough(times: int, phase: int) -> None:
    found = asyncio.run(follow([(0.0, RATE), (0.001, times * RATE)], 300.0, phase=phase, scaling=PREDICTIVE))
    ((asked, workers),) = found.plans
    assert asked <= 20
    assert found.runs == [(pytest.approx(asked + PODS_SECONDS + MOVE_SECONDS, abs=1), workers)]
    assert 0.5 <= found.tau < 0.8, "tau2"


@pytest.mark.parametrize(("times", "seconds"), some([(4, 60), (10, 60), (10, 300)], of=3))
def test_on_a_ramp_plans_are_made_for_what_comes_while_workers_start(times: int, seconds: int) -> None:
    """Nobody knows where it ends; that was six plans, and a plan was full when it began."""
    found = asyncio.run(follow([(0.0, RATE), (float(seconds), times * RATE)], 600.0, scaling=PREDICTIVE))
    assert found.plans[0][0] <= 35
    assert len(found.plans) <= 5
    assert 0.4 <= found.tau < 0.8


def test_a_burst_of_a_moment_is_no_jump() -> None:
    found = asyncio.run(follow([(0.0, RATE), (0.001, 4 * RATE), (4.0, 4 * RATE), (4.001, RATE)], 300.0, phase=9, scaling=PREDICTIVE))
    assert found.plans == []


def test_thresholds_do_not_swing_with_a_load_that_comes_back() -> None:
    """Quiet and busy by turns, for a quarter of an hour each: quiet times are longer than scaleDownAfter. That was a change every quarter
    of an hour."""
    points = [(0.0, RATE / 2)]
    for number in range(6):
        points += [(1800.0 * number + at, rate) for at, rate in ((1, 3 * RATE), (900, 3 * RATE), (901, RATE / 2), (1800, RATE / 2))]
    found = asyncio.run(follow(points, 6 * 1800.0, scaling={"policy": "thresholds"}))
    by_hour = [sum(3600 * hour <= at < 3600 * (hour + 1) for at, _ in found.plans) for hour in range(3)]
    assert by_hour[1:] == [0, 0]
    assert found.runs[-1][1] >= 4


def scraped(epoch_seconds: float, after: float | None) -> Reading:
    """A join whose streams bring four times as much from the 100th second on, after two minutes with a scrape every five seconds. Its
    epochs take so long, and what came is shown by whole ones."""
    now, scrapes = [0.0], Scrapes(120.0)
    join = LoadedJoin(lambda: now[0], 0.0, 1, points=[(0.0, RATE), (100.0, RATE), (100.001, 4 * RATE)])
    join.arrived = lambda rate: join.came(now[0] // epoch_seconds * epoch_seconds)  # type: ignore[method-assign]
    join.spoil = lambda text: re.sub(r"(epoch_duration_seconds_count\S+) .*", rf"\1 {now[0] // epoch_seconds}", text)
    for at in range(5, 121, 5):
        now[0] = float(at)
        scrapes.add(join.metrics(), now[0])
    streams = (("orders",), ("payments",))
    found = measure(scrapes.series(), generation=1, workers=1, streams=streams, now=120.0, bound=60.0, after=after)
    assert isinstance(found, Reading)
    return found


def test_rates_are_those_of_the_last_epochs_and_what_earlier_scrapes_say_is_known_too() -> None:
    found = scraped(1.0, after=95.0)
    assert found.earlier[-1].taken_at == 115.0
    rates = [sample.rates[0] for sample in (*found.earlier, found.sample)]
    assert rates == pytest.approx([RATE, 4 * RATE, 4 * RATE, 4 * RATE, 4 * RATE], rel=0.01)
    assert scraped(1.0, after=None).earlier == ()


def test_where_epochs_are_long_rates_are_over_several_of_them() -> None:
    """A scrape that shows an epoch of ten seconds is no jump, and one that shows none no standstill."""
    rates = [sample.rates[0] for sample in scraped(10.0, after=60.0).earlier if sample.taken_at <= 100]
    assert len(rates) >= 5
    assert all(0.7 * RATE <= rate <= 1.3 * RATE for rate in rates)


class TestDamping:
    def test_workers_that_were_missed_soon_idle_twice_as_long_the_next_time(self) -> None:
        damping = Damping()
        for _ in range(10):
            damping.changed(0.0, 2, 4, 600.0)
            assert damping.idled == 600 * damping.patience
            damping.changed(300.0, 4, 2, 600.0)
        assert damping.patience == MOST_PATIENCE

    def test_ones_that_were_not_missed_for_long_idle_for_half_as_long_again(self) -> None:
        damping = Damping(patience=4.0)
        for patience in (2.0, 1.0, 1.0):
            damping.changed(0.0, 2, 4, 600.0)
            damping.changed(3 * 2400.0, 4, 2, 600.0)
            assert damping.patience == patience

    def test_in_between_nothing_is_learned_and_only_the_first_that_come_back_say_something(self) -> None:
        damping = Damping()
        damping.changed(0.0, 2, 4, 600.0)
        damping.changed(900.0, 4, 2, 600.0)
        damping.changed(901.0, 8, 4, 600.0)
        damping.changed(902.0, 8, 8, 600.0)
        assert damping.patience == 1.0
