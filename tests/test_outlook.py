"""The policy ``predictive``: what it takes the window to hold in a while, and what it makes of that."""

from __future__ import annotations

import json
import math
import random
from collections import deque
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from streamjoin.compilation import compile_job, with_checkpoint
from streamjoin.elastic.autoscaler import Autoscaler
from streamjoin.elastic.core import DecisionCore
from streamjoin.elastic.decision import Decision, Kind, Reason
from streamjoin.elastic.events import PlanApplied
from streamjoin.elastic.forecast import AnalyticForecast
from streamjoin.elastic.idle_periods import MOST_SPELLS, IdlePeriods
from streamjoin.elastic.ledger import Ledger, Realised
from streamjoin.elastic.ports import Progress
from streamjoin.elastic.sample import Sample
from streamjoin.elastic.settings import Mode, Policy, Rule, Settings
from streamjoin.elastic.state_forecast import MOST_ROWS, StateForecast, Trend
from streamjoin.manifest.validate import load
from streamjoin.retention import window_seconds
from streamjoin.simulation.clairvoyant import Clairvoyant
from streamjoin.simulation.rivals import Hpa, StreamJoin
from streamjoin.simulation.run import SimulatedJoin, simulate
from streamjoin.simulation.traffic import KINDS, generate

SPAN = 600.0
SETTINGS = Settings(
    scale_up_after=30,
    scale_down_after=600,
    max_workers=16,
    capacity_tuples=600_000,
    policy=Policy.PREDICTIVE,
    window_seconds=(SPAN, SPAN),
    start_seconds=30,
    shedding_model="linear",
)


class TestOutlook:
    def test_a_window_that_holds_what_its_rates_bring_stays_as_it_is(self) -> None:
        state_forecast = StateForecast()
        state_forecast.observe(0, (600.0, 1200.0), (1.0, 2.0))
        assert state_forecast.growth((SPAN, SPAN), 60) == pytest.approx(1)
        assert state_forecast.settled((SPAN, SPAN)) == pytest.approx(1)

    def test_a_join_that_catches_up_fills_its_window_sooner_and_no_more(self) -> None:
        state_forecast = StateForecast()
        state_forecast.observe(0, (300.0, 300.0), (1.0, 1.0), pace=10.0)
        assert state_forecast.growth((SPAN, SPAN), SPAN / 10) == pytest.approx(2)
        assert state_forecast.growth((SPAN, SPAN), SPAN / 20) == pytest.approx(1.5)
        assert state_forecast.settled((SPAN, SPAN)) == pytest.approx(2)
        assert StateForecast.from_json(json.loads(json.dumps(state_forecast.to_json()))) == state_forecast

    def test_rates_that_double_double_the_window_within_its_span(self) -> None:
        state_forecast = StateForecast()
        state_forecast.observe(0, (600.0, 600.0), (2.0, 2.0))
        assert state_forecast.growth((SPAN, SPAN), 60) == pytest.approx(1.1)
        assert state_forecast.growth((SPAN, SPAN), SPAN) == pytest.approx(2)
        assert state_forecast.growth((SPAN, SPAN), 10 * SPAN) == pytest.approx(2)

    def test_streams_of_different_spans(self) -> None:
        state_forecast = StateForecast()
        state_forecast.observe(0, (100.0, 1000.0), (2.0, 1.0))
        assert state_forecast.settled((100.0, 1000.0)) == pytest.approx(1200 / 1100)

    def test_a_window_without_end_only_grows(self) -> None:
        state_forecast = StateForecast()
        state_forecast.observe(0, (500.0, 500.0), (1.0, 1.0))
        assert state_forecast.growth((math.inf, math.inf), 100) == pytest.approx(1.2)

    @pytest.mark.parametrize(("spans", "held"), [(None, (5.0, 5.0)), ((SPAN, SPAN), (0.0, 0.0)), ((0.0, 0.0), (5.0, 5.0))])
    def test_what_says_nothing_is_no_growth(self, spans: tuple[float, float] | None, held: tuple[float, float]) -> None:
        state_forecast = StateForecast()
        state_forecast.observe(0, held, (9.0, 9.0))
        assert state_forecast.settled(spans) == 1

    @hypothesis_settings(max_examples=100, deadline=None)
    @given(st.lists(st.tuples(st.floats(1, 500), st.floats(0, 1e6)), min_size=1, max_size=300), st.floats(0, 1e6))
    def test_since_when_no_more_was_held_is_never_said_to_be_earlier(self, samples: list[tuple[float, float]], tuples: float) -> None:
        state_forecast, now, history = StateForecast(), 0.0, []
        for gap, held in samples:
            now += gap
            state_forecast.observe(now, (held, 0.0), (1.0, 1.0))
            history.append((now, held))
            state_forecast.validate()
        last = max((at for at, held in history if held > tuples), default=history[0][0])
        assert state_forecast.seconds_within(tuples) <= now - last + 1e-9
        # Loads within a hundredth are not told apart, so it may be said to be a little later: as of a load that much smaller.
        nearly = max((at for at, held in history if held * 1.01 > tuples), default=history[0][0])
        assert state_forecast.seconds_within(tuples) >= now - nearly - 1e-9

    def test_memory_is_bounded_and_survives_a_restart(self) -> None:
        rng, state_forecast = random.Random(1), StateForecast()
        for at in range(5000):
            state_forecast.observe(float(at), (10 ** rng.uniform(0, 9), 0.0), (1.0, 1.0))
        for at in range(3000):
            state_forecast.observe(5000.0 + at, (1e9 * 0.98**at, 0.0), (1.0, 1.0))
        assert len(state_forecast.largest) <= MOST_ROWS
        assert StateForecast.from_json(state_forecast.to_json()) == state_forecast

    def test_after_a_long_gap_the_record_begins_anew(self) -> None:
        state_forecast = StateForecast()
        state_forecast.observe(0, (5.0, 5.0), (1.0, 1.0))
        state_forecast.observe(300, (5.0, 5.0), (1.0, 1.0))
        assert state_forecast.seconds_within(20) == 300
        state_forecast.observe(5000, (5.0, 5.0), (1.0, 1.0))
        assert state_forecast.seconds_within(20) == 0


class TestTrend:
    def test_a_share_that_grows_evenly_is_foreseen(self) -> None:
        trend = Trend()
        for at in range(0, 60, 5):
            trend.observe(float(at), 1.0 + at / 100)
        assert trend.growth(60) == pytest.approx(1 + 0.6 / 1.55)

    @pytest.mark.parametrize("every", [1.0, 5.0, 15.0])
    def test_a_jump_is_no_trend(self, every: float) -> None:
        trend = Trend()
        for number in range(100):
            at = number * every
            trend.observe(at, 1.0 if at < 60 else 2.0)
            assert trend.growth(90) == 1, at

    def test_a_share_that_falls_is_not_taken_to_fall_on(self) -> None:
        trend = Trend()
        for at in range(0, 60, 15):
            trend.observe(float(at), 2 - at / 100)
        assert trend.growth(60) == 1

    def test_memory_is_bounded(self) -> None:
        trend = Trend()
        for at in range(10_000):
            trend.observe(at / 10, 1.0)
            trend.foresee(at / 10 + 90, 0.5)
        assert len(trend.rows) < 12
        assert len(trend.foreseen) <= MOST_ROWS


class TestMargin:
    def test_it_comes_to_be_twice_what_forecasts_fall_short_by(self) -> None:
        state_forecast = StateForecast()
        for _ in range(5000):
            state_forecast.learn(0.004)
        assert state_forecast.margin == pytest.approx(0.008, rel=0.01)
        assert StateForecast.from_json(state_forecast.to_json()).margin == state_forecast.margin

    def test_what_was_less_than_foreseen_costs_nothing_and_a_jump_counts_little(self) -> None:
        state_forecast = StateForecast()
        for number in range(1000):
            state_forecast.learn(-0.3 if number % 2 else 0.0)
        assert state_forecast.margin == 0
        for _ in range(5):
            state_forecast.learn(0.9)
        assert state_forecast.margin < 0.01


class TestSpells:
    BREAK_EVEN = 3600.0

    def fed(self, loads: list[tuple[float, float]]) -> IdlePeriods:
        """``loads``: for how many seconds how much is held; a sample in a minute."""
        idle_periods, now = IdlePeriods(), 0.0
        for seconds, held in loads:
            for _ in range(round(seconds / 60)):
                now += 60
                idle_periods.observe(now, held, 8 / 7)
        return idle_periods

    def test_whoever_knows_nothing_waits_for_as_long_as_it_costs_to_change(self) -> None:
        assert IdlePeriods().wait(self.BREAK_EVEN) == self.BREAK_EVEN
        assert self.fed([(3600, 100.0), (3600, 97.0), (3600, 100.0)]).wait(self.BREAK_EVEN) == self.BREAK_EVEN

    def test_where_spells_are_long_workers_go_at_once(self) -> None:
        assert self.fed([(8 * 3600, 100.0), (16 * 3600, 30.0)] * 5).wait(self.BREAK_EVEN) == 0

    def test_where_spells_are_short_workers_stay(self) -> None:
        idle_periods = self.fed([(1200, 100.0), (1200, 30.0)] * 30)
        # One that lasts for longer than all others so far is worth leaving.
        assert 1000 <= idle_periods.wait(self.BREAK_EVEN) <= self.BREAK_EVEN

    def test_short_ones_among_long_ones_are_waited_out(self) -> None:
        idle_periods = self.fed([(1200, 100.0), (300, 30.0), (1200, 100.0), (300, 30.0), (1200, 100.0), (12 * 3600, 30.0)] * 8)
        assert 300 <= idle_periods.wait(self.BREAK_EVEN) < 600

    @hypothesis_settings(max_examples=100, deadline=None)
    @given(st.lists(st.floats(1, 1e5), min_size=10, max_size=60), st.floats(1, 1e4))
    def test_on_what_has_been_it_costs_no_more_than_to_wait_for_the_break_even(self, lasted: list[float], break_even: float) -> None:
        idle_periods = IdlePeriods(at=0.0, ended=lasted)
        wait = idle_periods.wait(break_even)

        def cost(wait: float) -> float:
            return math.fsum(spell if spell <= wait else wait + break_even for spell in lasted)

        assert 0 <= wait <= break_even
        assert cost(wait) <= cost(break_even) * (1 + 1e-9)

    def test_memory_is_bounded_and_survives_a_restart(self) -> None:
        rng, idle_periods = random.Random(3), IdlePeriods()
        for at in range(20_000):
            idle_periods.observe(float(at), 10 ** rng.uniform(0, 12), 8 / 7)
        assert len(idle_periods.ended) <= MOST_SPELLS
        assert IdlePeriods.from_json(json.loads(json.dumps(idle_periods.to_json()))) == idle_periods

    def test_after_a_long_gap_no_spell_is_known_to_have_lasted(self) -> None:
        idle_periods = self.fed([(3600, 100.0), (3600, 10.0)])
        assert idle_periods.open
        idle_periods.forget()
        idle_periods.observe(1e6, 10.0, 8 / 7)
        assert idle_periods.open == []


class Story:
    """A join of equal streams, its window fed second by second; whoever is asked for more workers has them after 30 s."""

    def __init__(self, workers: int, rate: float, settings: Settings = SETTINGS) -> None:
        self.core = DecisionCore(settings, at=0.0, generation=1, workers=workers)
        self.settings, self.now, self.generation, self.workers = settings, 0.0, 1, workers
        self.held = deque([rate] * int(SPAN), maxlen=int(SPAN))
        self.decisions: list[Decision] = []
        self.most_tau = 0.0

    def run(self, seconds: float, rate: float, **changes: Any) -> None:
        """``changes``: of each sample."""
        ends, due = self.now + seconds, None
        while self.now < ends:
            self.now += 15
            self.held.extend([rate] * 15)
            if due is not None and self.now >= due[0]:
                self.generation, self.workers, due = self.generation + 1, due[1], None
                self.core.handle(PlanApplied(self.now, self.generation, self.workers))
                continue
            each = float(sum(self.held))
            tau = 2 * each / self.workers / self.settings.capacity_tuples
            self.most_tau = max(self.most_tau, tau)
            sample = Sample(
                taken_at=self.now,
                generation=self.generation,
                tau=dict.fromkeys(range(self.workers), tau),
                workers=self.workers,
                rates=(rate, rate),
                held=(each, each),
                epoch_seconds=0.1,
                backlog_records=0.0,
                shed_fraction=0.0,
            )
            self.core.handle(replace(sample, **changes))
            self.core.validate_state()
            decision = self.decide()
            if decision.enforced and due is None:
                self.decisions.append(decision)
                due = self.now + (30 if decision.target > self.workers else 0), decision.target

    def decide(self) -> Decision:
        return self.core.decide(self.now, self.forecast())

    def forecast(self) -> AnalyticForecast:
        """Of an equality: workers share evenly."""
        each, capacity = float(sum(self.held)), self.settings.capacity_tuples
        return AnalyticForecast(left_tuples=each, right_tuples=each, capacity_tuples=capacity, workers=self.workers, share=0.0)


def rate_for(workers: float, tau: float) -> float:
    return workers * tau * SETTINGS.capacity_tuples / SPAN / 2


class TestPolicy:
    def test_workers_are_there_before_a_rising_window_is_full(self) -> None:
        story = Story(4, rate_for(4, 0.6))
        story.run(600, rate_for(4, 0.6))
        story.run(1200, rate_for(4, 1.2))
        assert [decision.kind for decision in story.decisions] == [Kind.ALLOCATE]
        before = story.decisions[0].inputs
        assert before is not None
        assert before.tau_max is not None
        assert before.tau_max < 0.8
        assert story.most_tau <= 0.8
        assert "is going to be" in story.decisions[0].sentence

    def test_one_burst_brings_no_workers(self) -> None:
        story = Story(4, rate_for(4, 0.6))
        story.run(600, rate_for(4, 0.6))
        story.run(15, rate_for(4, 3.0))
        story.run(600, rate_for(4, 0.6))
        assert story.decisions == []

    def test_catching_up_with_the_input_is_no_rise_of_the_load(self) -> None:
        """Ten times the tuples come, and ten times the event time passes: the window holds what it held."""
        rate = rate_for(4, 0.6)
        found = {}
        for pace in (10.0, None):
            story = Story(4, rate)
            story.run(600, rate)
            story.run(600, rate, rates=(10 * rate, 10 * rate), pace=pace)
            story.run(600, rate)
            found[pace] = [decision.kind for decision in story.decisions]
        assert found[10.0] == []
        assert found[None][:1] == [Kind.ALLOCATE], "which it would be taken for"

    def test_idle_workers_go_once_they_have_cost_as_much_as_a_change_and_the_way_back(self) -> None:
        few, many = Story(4, rate_for(4, 0.5)), Story(12, rate_for(12, 0.5 / 3))
        few.run(4 * 3600, rate_for(4, 0.5))
        many.run(4 * 3600, rate_for(12, 0.5 / 3))
        for story in (few, many):
            assert {decision.kind for decision in story.decisions} == {Kind.DEALLOCATE}
            assert story.workers == 3
        # One idle worker costs 1.0 in an hour, eight of them in eight minutes.
        assert 3000 < few.decisions[0].at < 4500
        assert many.decisions[0].at < 900

    @pytest.mark.parametrize(
        "changes", [{"held": (math.nan, 1.0)}, {"rates": (None, 1.0)}, {"tau": {0: 0.1}}, {"unconfirmed": "nobody"}, {"shed_fraction": 0.1}]
    )
    def test_no_worker_goes_by_a_sample_that_lacks_something(self, changes: dict[str, Any]) -> None:
        story = Story(4, rate_for(4, 0.4))
        story.run(1500, rate_for(4, 0.4))
        story.run(3000, rate_for(4, 0.4), **changes)
        assert story.decisions == []

    def test_a_join_that_holds_nothing_gives_its_workers_back(self) -> None:
        story = Story(4, 0.0)
        story.run(3 * 3600, 0.0)
        assert story.workers == 1

    def test_what_it_waits_for_is_said(self) -> None:
        story = Story(4, rate_for(4, 0.5))
        story.run(900, rate_for(4, 0.5))
        decision = story.decide()
        verdict = next(verdict for verdict in decision.verdicts if verdict.rule is Rule.DEALLOCATE)
        assert (verdict.kind, verdict.reason) == (Kind.HOLD, Reason.WAITING)
        assert "stood idle have cost 0.2" in verdict.sentence

    def test_constant_load_changes_nothing_twice(self) -> None:
        for tau in (0.05, 0.2, 0.4, 0.6, 0.69, 0.71, 0.75, 0.79):
            story = Story(6, rate_for(6, tau))
            story.run(8 * 3600, rate_for(6, tau))
            kinds = {decision.kind for decision in story.decisions}
            assert len(kinds) <= 1, f"at {tau}: {[decision.sentence for decision in story.decisions]}"

    def test_a_rule_that_only_recommends_changes_nothing(self) -> None:
        story = Story(4, rate_for(4, 0.6), replace(SETTINGS, mode=Mode.RECOMMEND))
        story.run(1200, rate_for(4, 1.2))
        assert story.decisions == []
        assert story.decide().kind is Kind.ALLOCATE

    def test_the_state_survives_a_restart(self) -> None:
        story = Story(4, rate_for(4, 0.5))
        story.run(1800, rate_for(4, 0.5))
        again = DecisionCore.from_json(SETTINGS, story.core.to_json())
        assert again.decide(story.now, story.forecast()) == story.decide()


class TestStarts:
    def ledger(self, *waits: float | None) -> Ledger:
        ledger = Ledger()
        for generation, waited in enumerate(waits, start=1):
            made = DecisionCore(SETTINGS, at=0.0, generation=generation, workers=1).decide(10.0 * generation)
            ledger.record(replace(made, kind=Kind.ALLOCATE, target=2))
            ledger.realised(Realised(10.0 * generation + 5, generation + 1, 0.5, 10.0, 1.0, waited))
        return ledger

    def test_the_next_start_is_expected_to_take_as_long_as_the_slowest_of_the_last_five(self) -> None:
        assert self.ledger().start_seconds is None
        assert self.ledger(None, None).start_seconds is None
        assert self.ledger(200.0, 40.0, 20.0, 90.0, None, 30.0, 35.0).start_seconds == 90
        ledger = self.ledger(33.0)
        assert Ledger.from_json(ledger.to_json()).start_seconds == 33

    def test_a_ledger_of_an_older_release_is_read(self) -> None:
        data = self.ledger(33.0).to_json()
        for record in data["records"]:
            del record["realised"]["waited_seconds"]
        assert Ledger.from_json(data).start_seconds is None

    def test_the_policy_looks_as_far_ahead_as_workers_have_taken_to_start(self) -> None:
        for ledger, seconds in ((self.ledger(240.0), 240), (Ledger(), SETTINGS.start_seconds)):
            autoscaler = Autoscaler(ledger)
            autoscaler.follow(1000.0, SETTINGS, Progress(generation=2, workers=2, newest=2))
            assert autoscaler.core is not None
            assert autoscaler.core.settings.start_seconds == seconds

    def test_a_simulated_join_measures_it_too(self) -> None:
        join = SimulatedJoin(settings=SETTINGS, window_seconds=(SPAN, SPAN), share=0.0, start_seconds=100)
        decider = StreamJoin(join)
        simulate(join, generate("spike", days=1, step_seconds=15, seed=2, rates=(1000, 1000)), decider)
        # To the step: asked at the end of one, there at the end of another, when state has moved.
        assert decider.ledger.start_seconds is not None
        assert 100 <= decider.ledger.start_seconds <= 150


EXAMPLE = Path(__file__).parents[1] / "examples" / "scaling.yaml"


@pytest.mark.parametrize(
    ("window", "spans"),
    # Ten minutes, a watermark of ten seconds, and three epochs of a second.
    [("{within: 10m}", (613.0, 613.0)), ("{unbounded: true}", (math.inf, math.inf)), ("{rows: 1000}", None)],
)
def test_the_manifest_says_the_policy_and_for_how_long_a_tuple_is_held(window: str, spans: tuple[float, float] | None) -> None:
    text = EXAMPLE.read_text().replace("window: {within: 10m}", f"window: {window}").replace("scaling: {policy: thresholds, ", "scaling: {")
    job = compile_job(with_checkpoint(load(text)))
    assert window_seconds(job) == spans
    assert Settings.of(job.manifest.spec, window_seconds=window_seconds(job)).policy is Policy.PREDICTIVE
    assert Settings.of(load(EXAMPLE.read_text()).spec).policy is Policy.THRESHOLDS


@pytest.mark.parametrize("kind", KINDS)
def test_two_days_of_each_traffic_cost_less_than_by_thresholds_and_little_more_than_who_knows(kind: str) -> None:
    join = SimulatedJoin(settings=SETTINGS, window_seconds=(SPAN, SPAN), share=0.05)
    traffic = generate(kind, days=2, step_seconds=15, seed=2, rates=(1000, 1000))
    by_thresholds = replace(join, settings=replace(SETTINGS, policy=Policy.THRESHOLDS))
    own, before, hpa = (
        simulate(one, traffic, decider)
        for one, decider in (
            (join, StreamJoin(join)),
            (by_thresholds, StreamJoin(by_thresholds)),
            (join, Hpa(SETTINGS)),
        )
    )
    least = Clairvoyant(join, traffic).schedule
    assert own.bill <= 1.3 * least.bill
    assert own.worker_hours < before.worker_hours
    assert own.worker_hours < hpa.worker_hours
