"""Jumps of the input rates: earlier ones say whether the next one is believed with its first sample."""

from __future__ import annotations

import json
import random

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from streamjoin.elastic.core import DecisionCore
from streamjoin.elastic.decision import Kind, Reason
from streamjoin.elastic.rate_shifts import MOST_JUMPS, RateShifts
from streamjoin.elastic.state_forecast import StateForecast
from streamjoin.simulation.traffic import generate
from test_outlook import SETTINGS, Story, rate_for

LASTING = 75.0


def fed(*rates: float, rate_shifts: RateShifts | None = None, begin: float = 0.0) -> RateShifts:
    """A sample every 15 s, of two equal streams that bring so much each; the average is 100."""
    rate_shifts = RateShifts() if rate_shifts is None else rate_shifts
    for number, rate in enumerate(rates, start=1):
        rate_shifts.observe(begin + 15 * number, (rate, rate), (100.0, 100.0), LASTING)
    return rate_shifts


class TestJumps:
    def test_a_burst_is_over_with_the_next_sample(self) -> None:
        rate_shifts = fed(100, 400)
        assert rate_shifts.since == 30
        assert rate_shifts.believed(30.0) is None
        fed(100, rate_shifts=rate_shifts, begin=30)
        assert (rate_shifts.since, rate_shifts.lasted) == (None, [False])

    def test_a_jump_is_believed_with_its_second_sample_at_the_rates_since_it_began(self) -> None:
        """It began within the first sample, which has less of it."""
        rate_shifts = fed(100, 250, 420)
        assert rate_shifts.believed(45.0) == (420, 420)
        fed(400, rate_shifts=rate_shifts, begin=45)
        assert rate_shifts.believed(60.0) == (410, 410)

    def test_one_that_lasts_until_workers_are_there_has_lasted(self) -> None:
        rate_shifts = fed(100, 400, 400, 400, 400, 400, 400, 100)
        assert (rate_shifts.since, rate_shifts.lasted) == (None, [True])

    def test_one_that_ends_before_has_not(self) -> None:
        assert fed(100, 400, 400, 400, 400, 100).lasted == [False]

    def test_after_three_that_lasted_the_next_one_is_believed_at_once(self) -> None:
        lasted = [fed(100, 400, rate_shifts=RateShifts(lasted=[True] * count)).is_believed_at_once for count in range(5)]
        assert lasted == [False, False, False, True, True]

    def test_one_burst_among_few_is_enough_to_wait_again(self) -> None:
        assert not fed(100, 400, rate_shifts=RateShifts(lasted=[True, True, True, False])).is_believed_at_once
        assert fed(100, 400, rate_shifts=RateShifts(lasted=[False] + [True] * 7)).is_believed_at_once

    @pytest.mark.parametrize("kind", ["diurnal", "ramp", "ratio-shift"])
    def test_traffic_without_jumps_has_none(self, kind: str) -> None:
        rate_shifts, state_forecast = RateShifts(), StateForecast()
        traffic = generate(kind, days=3, step_seconds=15, seed=1, rates=(1000, 1000))
        for number, (left, right) in enumerate(zip(*traffic.rates, strict=True)):
            rate_shifts.observe(15.0 * number, (left, right), state_forecast.rates, LASTING)
            state_forecast.observe(15.0 * number, (1.0, 1.0), (left, right))
            assert rate_shifts.since is None
        assert rate_shifts.lasted == []

    @hypothesis_settings(max_examples=100, deadline=None)
    @given(st.lists(st.floats(0, 1e6), min_size=1, max_size=200))
    def test_what_is_believed_has_come(self, rates: list[float]) -> None:
        rate_shifts = RateShifts()
        for number, rate in enumerate(rates):
            at = 15.0 * number
            rate_shifts.observe(at, (rate, 2 * rate), (100.0, 200.0), LASTING)
            found = rate_shifts.believed(at)
            if found is not None:
                assert rate_shifts.since is not None
                since = rates[round(rate_shifts.since / 15) : number + 1]
                assert min(since) * (1 - 1e-9) <= found[0] <= max(since) * (1 + 1e-9)
                assert found[1] == pytest.approx(2 * found[0])

    def test_memory_is_bounded_and_survives_a_restart(self) -> None:
        rng, rate_shifts = random.Random(4), RateShifts()
        for number in range(5000):
            rate = 100 * rng.choice([1, 1, 1, 5])
            rate_shifts.observe(15.0 * number, (rate, rate), (100.0, 100.0), LASTING)
        assert len(rate_shifts.lasted) == MOST_JUMPS
        assert RateShifts.from_json(json.loads(json.dumps(rate_shifts.to_json()))) == rate_shifts


def rested(rushes: int) -> Story:
    """Four workers that are 0.6 full, after so many rushes of half an hour at four times the rate, a few hours apart."""
    story = Story(4, rate_for(4, 0.6))
    story.run(600, rate_for(4, 0.6))
    for _ in range(rushes):
        story.run(1800, rate_for(4, 2.4))
        story.run(3 * 3600, rate_for(4, 0.6))
        assert story.workers == 4
    story.decisions.clear()
    return story


class TestPolicy:
    def test_a_rush_like_earlier_ones_is_answered_with_its_first_sample(self) -> None:
        new, known = rested(0), rested(3)
        begun = new.now, known.now
        for story in (new, known):
            story.run(600, rate_for(4, 2.4))
            # 9.6 workers' capacity at 0.7: fourteen, asked for at once, by the rates since the rush began.
            assert [(decision.kind, decision.target) for decision in story.decisions] == [(Kind.ALLOCATE, 14)]
        assert [story.decisions[0].at - at for story, at in zip((new, known), begun, strict=True)] == [30, 15]
        assert "from 2,400 to 9,600 tuples/s, and 3 of the last 3 such jumps lasted" in known.decisions[0].sentence
        assert "(rates have jumped from 2,400 to 9,600 tuples/s), above" in new.decisions[0].sentence

    def test_bursts_that_come_among_rushes_are_waited_out_again(self) -> None:
        story = rested(3)
        story.run(15, rate_for(4, 3.0))
        story.run(3 * 3600, rate_for(4, 0.6))
        assert [decision.kind for decision in story.decisions][:1] == [Kind.ALLOCATE], "nobody knows that this one is a burst"
        assert story.workers == 4
        story.decisions.clear()
        for _ in range(3):
            story.run(15, rate_for(4, 3.0))
            story.run(1800, rate_for(4, 0.6))
        assert story.decisions == []

    @pytest.mark.parametrize(("starting", "target"), [(10, 4), (9, 4), (5, 14)])
    def test_workers_that_start_are_not_kept_waiting_for_one_more(self, starting: int, target: int) -> None:
        """Thirteen workers would be 0.74 full in the end: above what is aimed at, and below tau2."""
        story = Story(4, rate_for(4, 0.6))
        story.run(600, rate_for(4, 0.6))
        story.run(30, rate_for(4, 2.4), starting=starting)
        decision = story.decide()
        assert decision.target == target
        assert decision.reason is (Reason.FULL if starting == 5 else Reason.STARTING)

    def test_what_was_learned_survives_a_restart(self) -> None:
        story = rested(3)
        story.run(15, rate_for(4, 2.4))
        again = DecisionCore.from_json(SETTINGS, json.loads(json.dumps(story.core.to_json())))
        assert again.to_json()["rate_shifts"]["lasted"] == [True] * 3

    def test_after_a_long_gap_the_jump_of_before_is_forgotten(self) -> None:
        story = rested(0)
        story.run(15, rate_for(4, 2.4))
        story.now += 3600
        story.run(15, rate_for(4, 2.4))
        rate_shifts = story.core.to_json()["rate_shifts"]
        assert (rate_shifts["since"], rate_shifts["lasted"]) == (None, [])
