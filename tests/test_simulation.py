"""The simulated join, the traffic, and the rivals' rules; ``streamjoin simulate`` on top of them."""

from __future__ import annotations

import itertools
import json
import math
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from cases import some
from streamjoin.cli import main
from streamjoin.elastic.decision import Kind
from streamjoin.elastic.forecast import AnalyticForecast
from streamjoin.elastic.sample import Sample
from streamjoin.elastic.settings import Mode, Policy, Settings
from streamjoin.language.sides import LEFT, RIGHT
from streamjoin.simulation.clairvoyant import Clairvoyant, cheapest, held_by_window, largest_ahead, least_hours_with, needs
from streamjoin.simulation.rivals import FlinkAutoscaler, Hpa, StreamJoin
from streamjoin.simulation.run import Ask, Decider, Outcome, SimulatedJoin, simulate, table
from streamjoin.simulation.traffic import KINDS, TraceError, Traffic, generate, read_trace

ROOT = Path(__file__).resolve().parent.parent
SETTINGS = Settings(policy=Policy.THRESHOLDS, max_workers=16, capacity_tuples=100_000, shedding_model="linear")
JOIN = SimulatedJoin(settings=SETTINGS, window_seconds=(600.0, 600.0), share=0.05)
RATE = 200.0
"""Of each stream: 240,000 tuples held, 2.4 workers' capacity where nothing is replicated."""


class Still:
    """A decider that does nothing but remember."""

    name = "still"

    def __init__(self) -> None:
        self.samples: list[Sample] = []
        self.told: list[tuple[Any, ...]] = []

    def step(self, now: float, sample: Sample, forecast: AnalyticForecast) -> Ask | None:
        self.samples.append(sample)
        return None

    def begun(self, now: float, workers: int) -> None:
        self.told.append(("begun", now, workers))

    def applied(self, now: float, generation: int, workers: int, moved_tuples: float, pause_seconds: float) -> None:
        self.told.append(("applied", now, generation, workers))


class Planned(Still):
    """Asks for what was planned, at given times."""

    def __init__(self, plan: dict[float, int]) -> None:
        super().__init__()
        self.plan = plan

    def step(self, now: float, sample: Sample, forecast: AnalyticForecast) -> Ask | None:
        super().step(now, sample, forecast)
        return Ask(self.plan[now]) if now in self.plan else None


def constant(rate: float, hours: float = 1.0, step: float = 15.0, skew: float = 1.0) -> Traffic:
    steps = round(hours * 3600 / step)
    ones = np.ones(steps)
    return Traffic(step, (rate * ones, rate * ones), skew * ones, 0 * ones)


def everyone(join: SimulatedJoin, traffic: Traffic) -> list[Decider]:
    return [StreamJoin(join), Hpa(join.settings), FlinkAutoscaler(join.settings, 31.0), Clairvoyant(join, traffic)]


# The join.


def test_a_window_holds_its_span_of_each_stream() -> None:
    join = replace(JOIN, window_seconds=(600.0, 37.0), share=0.0, workers=4)
    still = Still()
    outcome = simulate(join, constant(RATE), still)
    for sample in still.samples:
        assert sample.held == (pytest.approx(RATE * 600), pytest.approx(RATE * 37))
        assert sample.tau == {task: pytest.approx(RATE * 637 / 4 / 100_000) for task in range(4)}
        assert sample.rates == (pytest.approx(RATE), pytest.approx(RATE))
    assert outcome.worker_hours == pytest.approx(4)
    assert outcome.input_tuples == pytest.approx(2 * RATE * 3600)
    assert (outcome.shed_tuples, outcome.rescales, outcome.seconds_above_tau3, outcome.most_workers) == (0, 0, 0, 4)


def test_a_window_shorter_than_a_step_holds_its_span_too() -> None:
    still = Still()
    simulate(replace(JOIN, window_seconds=(4.0, 4.0), workers=1), constant(RATE), still)
    assert still.samples[-1].held == (pytest.approx(RATE * 4), pytest.approx(RATE * 4))


def test_a_window_of_rows_is_always_full_and_one_without_end_never() -> None:
    rows, endless = Still(), Still()
    simulate(replace(JOIN, window_seconds=(math.inf, math.inf), most_held=5000.0, workers=1), constant(RATE), rows)
    simulate(replace(JOIN, window_seconds=(math.inf, math.inf), workers=1), constant(RATE), endless)
    assert {sample.held for sample in rows.samples} == {(5000.0, 5000.0)}
    assert endless.samples[9].held == (pytest.approx(RATE * 150), pytest.approx(RATE * 150))


def test_what_comes_in_is_held_expired_shed_or_waits() -> None:
    """Overloaded in both ways: too full, and too slow."""
    join = replace(JOIN, workers=1, worker_rate=300.0, window_seconds=(math.inf, math.inf), settings=replace(SETTINGS, max_workers=1))
    still = Still()
    outcome = simulate(join, constant(RATE, hours=0.5), still)
    last = still.samples[-1]
    held = sum(value for value in last.held if value is not None)
    assert last.backlog_records == pytest.approx(100 * 1800)
    assert outcome.shed_tuples > 0
    assert held + outcome.shed_tuples + (last.backlog_records or 0) == pytest.approx(outcome.input_tuples)
    assert last.epoch_seconds is not None
    assert last.epoch_seconds > 1
    assert max(tau for tau in last.tau.values() if tau is not None) <= 1


def test_shedding_that_is_only_recommended_counts_and_drops_nothing() -> None:
    join = replace(JOIN, workers=2, window_seconds=(math.inf, math.inf), settings=replace(SETTINGS, max_workers=2))
    still = Still()
    enforced = simulate(join, constant(RATE, hours=0.5), Still())
    told = simulate(replace(join, settings=replace(join.settings, shedding_mode=Mode.RECOMMEND)), constant(RATE, hours=0.5), still)
    assert enforced.shed_tuples > 0 == enforced.would_shed_tuples
    assert told.would_shed_tuples > enforced.shed_tuples
    assert told.shed_tuples == 0
    assert sum(value or 0 for value in still.samples[-1].held) == pytest.approx(told.input_tuples)


def test_workers_start_then_state_moves_then_the_plan_changes() -> None:
    prices = replace(JOIN.prices, bytes_per_second=100_000.0, tuple_bytes=64.0)
    planned = Planned({60.0: 6})
    join = replace(JOIN, workers=4, share=0.0, prices=prices, start_seconds=60.0)
    outcome = simulate(join, constant(RATE), planned)
    (_, began, target), (_, ended, generation, workers) = planned.told
    assert (began, target, generation, workers) == (120.0, 6, 2, 6)
    # Two new workers take a sixth of 240,000 tuples each, at four times 100,000 bytes a second: 12.8 s, in steps of 15 s.
    assert outcome.moved_tuples == pytest.approx(80_000)
    assert ended == 135.0
    starting = [sample.taken_at for sample in planned.samples if sample.starting]
    assert starting == [75.0, 90.0, 105.0]
    assert [sample.migrating for sample in planned.samples if sample.taken_at == 120.0] == [True]
    # Workers cost from when they were asked for.
    assert outcome.worker_hours == pytest.approx(4 + 2 * (3600 - 60) / 3600)
    assert (outcome.rescales, outcome.replans, outcome.pause_seconds) == (1, 0, 1.0)
    assert planned.samples[-1].generation == 2


def test_a_plan_knows_the_skew_that_it_was_made_for() -> None:
    steps = 240
    ones = np.ones(steps)
    hot = np.where(np.arange(steps) < 120, 0.2, 0.8)
    traffic = Traffic(15.0, (RATE / 2 * ones, RATE / 2 * ones), 2.0 * ones, hot)
    planned = Planned({120 * 15 + 600.0: 4})
    outcome = simulate(replace(JOIN, workers=4, share=0.0), traffic, planned)
    mean = RATE * 600 / 4 / 100_000
    assert outcome.tau[100] == pytest.approx(mean)
    # Tuples that came before the hot part moved stay where they are: the window takes its span to be all of the new place.
    assert outcome.tau[130] == pytest.approx((1 + 11 / 40) * mean)
    assert outcome.tau[159] == pytest.approx(2 * mean)
    assert planned.samples[159].tau[1] == pytest.approx(mean * 2 / 3)
    assert outcome.tau[-1] == pytest.approx(mean)
    assert (outcome.rescales, outcome.replans) == (0, 1)


# The deciders.


@pytest.mark.parametrize("kind", some(KINDS, of=2))
def test_the_core_keeps_its_promises_on_all_traffic(kind: str) -> None:
    traffic = generate(kind, days=1.5, step_seconds=20, seed=2, rates=(RATE, RATE))
    own, hpa = StreamJoin(JOIN), Hpa(SETTINGS)
    ours, theirs = simulate(JOIN, traffic, own), simulate(JOIN, traffic, hpa)
    bound = simulate(JOIN, traffic, Clairvoyant(JOIN, traffic))
    assert ours.shed_tuples <= 0.02 * ours.input_tuples
    assert ours.seconds_above_tau3 <= 0.01 * traffic.seconds
    assert ours.rescales <= theirs.rescales
    assert ours.worker_hours >= bound.worker_hours
    # What was decided is in the ledger, with what came true.
    acted = [record for record in own.ledger if record.decision.enforced]
    done = [record for record in acted if record.realised is not None]
    assert len(done) == ours.rescales + ours.replans
    assert sum(record.realised.moved_tuples for record in done if record.realised) == pytest.approx(ours.moved_tuples)


def test_constant_traffic_ends_in_one_change_at_most() -> None:
    for workers in (1, 4, 16):
        outcome = simulate(replace(JOIN, workers=workers), constant(RATE, hours=24), StreamJoin(JOIN))
        assert outcome.rescales <= 1


def sample(at: float, tau: float, workers: int, **changes: Any) -> Sample:
    given: dict[str, Any] = {
        "taken_at": at,
        "generation": 1,
        "tau": dict.fromkeys(range(workers), tau),
        "workers": workers,
        "rates": (500.0, 500.0),
        "held": (1.0, 1.0),
        "epoch_seconds": 0.1,
        "backlog_records": 0.0,
        "shed_fraction": 0.0,
    }
    return Sample(**{**given, **changes})


FORECAST = AnalyticForecast(left_tuples=1.0, right_tuples=1.0, capacity_tuples=1.0, workers=1)


def hpa_asks(hpa: Hpa, at: float, tau: float, workers: int, **changes: Any) -> int | None:
    ask = hpa.step(at, sample(at, tau, workers, **changes), FORECAST)
    return None if ask is None else ask.workers


def test_hpa_follows_the_documented_ratio_tolerance_window_and_policies() -> None:
    hpa = Hpa(replace(SETTINGS, tau1=0.4, max_workers=1000))
    # ceil(4 * 0.8 / 0.4); within a tenth nothing happens.
    assert hpa_asks(hpa, 15, 0.8, 4) == 8
    assert hpa_asks(hpa, 30, 0.43, 8) is None
    assert hpa_asks(hpa, 45, 0.37, 8) is None
    # Between syncs nothing is looked at.
    assert hpa_asks(hpa, 50, 0.9, 8) is None
    # Down to the highest recommendation of the last 300 s, which was 8 until 315 s.
    assert [hpa_asks(hpa, at, 0.2, 8) for at in range(60, 330, 15)] == [None] * 18
    assert hpa_asks(hpa, 345, 0.2, 8) == 4
    # Up to twice as many, or four more, in 15 s.
    hpa = Hpa(replace(SETTINGS, tau1=0.4, max_workers=1000))
    assert hpa_asks(hpa, 15, 4.0, 2) == 6
    assert hpa_asks(hpa, 30, 4.0, 20) == 40
    # Pods that are not ready count as using nothing when it would go up.
    assert hpa_asks(hpa, 45, 0.6, 20, starting=20) is None
    assert hpa_asks(Hpa(SETTINGS), 15, 4.0, 16) is None
    assert hpa_asks(Hpa(SETTINGS), 15, 0.8, 4, migrating=True) is None


def flink_asks(settings: Settings, tau: float, hours: float, workers: int = 10, **changes: Any) -> list[tuple[float, int]]:
    flink = FlinkAutoscaler(settings, restart_seconds=60.0)
    asked = []
    for step in range(1, round(hours * 240) + 1):
        at = 15.0 * step
        made = {name: value(at) if callable(value) else value for name, value in changes.items()}
        ask = flink.step(at, sample(at, tau, workers, **made), FORECAST)
        if ask is not None:
            asked.append((at, ask.workers))
    return asked


def test_flinks_autoscaler_scales_by_the_true_processing_rate() -> None:
    settings = replace(SETTINGS, tau1=0.5, max_workers=100)
    # Full metrics window of 900 s after 300 s of stabilization. 10 workers, 0.95 busy: 10 * 0.95 * (1 / 0.5 + 60 / 1800).
    assert flink_asks(settings, 0.95, 1)[0] == (1200.0, math.ceil(10 * 0.95 * (2 + 60 / 1800)))
    # Within its bounds nothing happens.
    assert flink_asks(settings, 0.85, 2) == []
    assert flink_asks(settings, 0.25, 2) == []
    # Down an hour later, and to no less than 0.4 of the workers.
    at, workers = flink_asks(settings, 0.02, 3)[0]
    assert (at, workers) == (1200.0 + 3600.0, 4)
    # 180 records a second more than it takes in: 1,180 / s in all, and what waits within half an hour.
    at, workers = flink_asks(settings, 0.85, 1, backlog_records=lambda at: 180 * at)[0]
    lag = 180 * 1200
    assert workers == math.ceil(10 * (lag / 1800 + 1180 * 60 / 1800 + 1180 / 0.5) / (1000 / 0.85))
    # What is worked at counts where it is more than what is held.
    assert flink_asks(settings, 0.1, 1, epoch_seconds=0.95)[0][1] == flink_asks(settings, 0.95, 1)[0][1]


@given(
    st.lists(st.tuples(st.floats(1, 1e6), st.floats(1, 1e6)), min_size=1, max_size=20),
    st.integers(1, 40),
    st.sampled_from([0.0, 0.05, 0.5, 1.0]),
)
def test_the_needs_of_a_whole_trace_are_those_of_each_moment(held: list[tuple[float, float]], most: int, share: float) -> None:
    join = replace(JOIN, settings=replace(SETTINGS, max_workers=most), share=share)
    left, right = (np.array(side) for side in zip(*held, strict=True))
    found = needs(left, right, join, 0.8)
    for one, other, count in zip(left.tolist(), right.tolist(), found.tolist(), strict=True):
        room = 0.8 * 100_000 * (1 + 1e-9)
        fits = [
            workers
            for workers in range(1, most + 1)
            if (one + other) / workers <= room
            and any(
                math.sqrt(share) * (one / rows + other / columns) <= room for rows in range(1, workers + 1) for columns in [workers // rows]
            )
        ]
        assert count == (fits[0] if fits else most)


@given(
    st.lists(st.integers(1, 4), min_size=1, max_size=6),
    st.sampled_from([0.0, 30.0, 900.0]),
    st.sampled_from([0.0, 0.02, 0.5]),
    st.sampled_from([15.0, 600.0]),
)
def test_no_sequence_of_workers_that_are_enough_is_cheaper_than_the_schedule(
    need: list[int], start: float, change: float, step: float
) -> None:
    join = replace(JOIN, start_seconds=start, prices=replace(JOIN.prices, change=change))

    def costs(workers: tuple[int, ...]) -> float:
        total = sum(workers) * step / 3600
        for before, after in pairwise(workers):
            if before != after:
                total += change + max(0, after - before) * start / 3600 + 1.0 / 3600 * after * 3.0
        return total

    found = cheapest(np.array(need), join, step)
    enough = itertools.product(*(range(least, 5) for least in need))
    assert found.bill == pytest.approx(min(costs(workers) for workers in enough))
    assert costs(tuple(found.workers.tolist())) == pytest.approx(found.bill)
    assert all(workers >= least for workers, least in zip(found.workers.tolist(), need, strict=True))
    assert found.least_hours == pytest.approx(sum(need) * step / 3600)


@given(st.lists(st.integers(1, 4), min_size=1, max_size=6), st.integers(0, 5))
def test_no_sequence_with_as_few_changes_needs_fewer_hours(need: list[int], changes: int) -> None:
    enough = itertools.product(*(range(least, 5) for least in need))
    few = [workers for workers in enough if sum(before != after for before, after in pairwise(workers)) <= changes]
    assert least_hours_with(np.array(need), changes, 1800.0) == pytest.approx(min(map(sum, few)) / 2)


@pytest.mark.parametrize("kind", ["diurnal", "spike", "ramp", "ratio-shift"])
def test_the_clairvoyant_runs_its_schedule_and_sheds_nothing(kind: str) -> None:
    traffic = generate(kind, days=2, step_seconds=15, seed=3, rates=(RATE, RATE))
    clairvoyant = Clairvoyant(JOIN, traffic)
    outcome = simulate(JOIN, traffic, clairvoyant)
    assert (outcome.shed_tuples, outcome.seconds_above_tau3) == (0, 0)
    least = clairvoyant.schedule
    assert least.least_hours <= least.bill <= outcome.bill
    assert outcome.bill <= 1.03 * least.bill
    for rival in everyone(JOIN, traffic):
        assert simulate(JOIN, traffic, rival).bill >= least.bill


@given(st.lists(st.floats(0, 100), min_size=1, max_size=30), st.integers(0, 40))
def test_the_largest_ahead_is_the_largest_ahead(values: list[float], steps: int) -> None:
    found = largest_ahead(np.array(values), steps).tolist()
    assert found == [max(values[at : at + steps + 1]) for at in range(len(values))]


@given(st.lists(st.floats(0, 100), min_size=2, max_size=30), st.floats(0.1, 40))
def test_what_the_clairvoyant_foresees_is_what_is_held(rates: list[float], span: float) -> None:
    ones = np.ones(len(rates))
    traffic = Traffic(1.0, (np.array(rates), np.array(rates)), ones, 0 * ones)
    still = Still()
    join = replace(JOIN, window_seconds=(span, span), workers=1, worker_rate=1e9, settings=replace(SETTINGS, shedding_model="off"))
    simulate(join, traffic, still)
    foreseen = held_by_window(np.array(rates), span, math.inf).tolist()
    assert [sample.held[0] for sample in still.samples] == pytest.approx(foreseen, abs=1e-6)


def test_a_simulation_is_the_same_every_time_and_its_table_says_so() -> None:
    trace = (ROOT / "examples" / "traces" / "week.csv").read_text()
    traffic = read_trace(trace, 60.0)
    join = replace(JOIN, settings=replace(SETTINGS, capacity_tuples=600_000))
    outcomes = [simulate(join, traffic, decider) for decider in everyone(join, traffic)]
    assert table(outcomes) == TABLE


TABLE = """\
                  worker-hours  above tau3         shed  of input  rescales  re-plans       moved  most workers  paused     bill
streamjoin               697.5       240 s    1,885,596    0.179%        20         5  10,849,615            16    25 s    729.0
HPA                      776.4      68 min    2,385,071    0.226%        87         0  19,553,627            16    87 s    844.1
Flink autoscaler         553.6      24.3 h  119,704,272   11.344%         9         0   7,241,836            16     9 s  1,755.2
clairvoyant              451.4         0 s       58,648    0.006%        46        17  20,434,379            14    63 s    483.7
"""


def test_it_scales_to_a_thousand_workers() -> None:
    settings = replace(SETTINGS, max_workers=1000)
    join = replace(JOIN, settings=settings, share=0.001)
    traffic = generate("ramp", days=0.5, step_seconds=30, seed=1, rates=(20_000.0, 20_000.0))
    own = StreamJoin(join)
    outcome = simulate(join, traffic, own)
    assert 500 < outcome.most_workers <= 1000
    assert outcome.shed_tuples < 0.02 * outcome.input_tuples
    assert max(len(record.decision.candidates) for record in own.ledger) <= 15
    assert {record.decision.kind for record in own.ledger} >= {Kind.ALLOCATE, Kind.DEALLOCATE}
    assert simulate(join, traffic, Clairvoyant(join, traffic)).worker_hours < outcome.worker_hours


# Traffic.


@pytest.mark.parametrize("kind", KINDS)
def test_made_up_traffic_follows_from_its_seed(kind: str) -> None:
    one, same, other = (generate(kind, days=2, step_seconds=60, seed=seed, rates=(100.0, 300.0)) for seed in (4, 4, 5))
    assert one.steps == 2880
    assert one.seconds == 2 * 86400
    for name, values, others in zip(
        ("left", "right", "skew", "hot"), (*one.rates, one.skew, one.hot), (*same.rates, same.skew, same.hot), strict=True
    ):
        assert (values == others).all()
        assert values.shape == (2880,)
        assert np.isfinite(values).all()
        assert (values >= (1 if name == "skew" else 0)).all()
    assert (one.rates[LEFT] != other.rates[LEFT]).any()
    assert 30 < one.rates[LEFT].mean() < 300
    assert 90 < one.rates[RIGHT].mean() < 900


def test_each_kind_of_traffic_does_what_its_name_says() -> None:
    made = {kind: generate(kind, days=7, step_seconds=60, seed=1, rates=(100.0, 100.0)) for kind in KINDS}
    day = made["diurnal"].rates[LEFT].reshape(7, 24, 60).mean(axis=2)
    assert day[:5].max() > 4 * day[:5].min()
    assert day[5:].mean() < 0.8 * day[:5].mean()
    usual, most = np.quantile(made["spike"].rates[LEFT], [0.8, 0.999])
    assert usual < 120
    assert most > 280
    ramp = made["ramp"].rates[LEFT]
    assert ramp[: len(ramp) // 20].mean() < 25
    assert ramp[int(0.52 * len(ramp)) : int(0.58 * len(ramp))].mean() > 190
    assert len(set(made["skew-shift"].hot.tolist())) == 21
    share = made["ratio-shift"].rates[LEFT] / (made["ratio-shift"].rates[LEFT] + made["ratio-shift"].rates[RIGHT])
    assert share.min() < 0.15
    assert share.max() > 0.85
    assert made["random"].rates[LEFT].max() > 2 * np.median(made["random"].rates[LEFT])


def test_a_trace_is_read_with_rates_that_change_evenly() -> None:
    traffic = read_trace("time_s,left_rate,right_rate\n0,0,100\n40,40,100\n\n", 10.0)
    assert traffic.rates[LEFT].tolist() == [5, 15, 25, 35]
    assert traffic.rates[RIGHT].tolist() == [100] * 4
    assert (traffic.skew.tolist(), traffic.hot.tolist()) == ([1] * 4, [0] * 4)
    traffic = read_trace("hot, skew, right_rate, left_rate, time_s\n0.1,1,1,1,0\n0.9,3,1,1,20\n0.9,3,1,1,40\n", 10.0)
    assert (traffic.skew.tolist(), traffic.hot.tolist()) == ([1, 1, 3, 3], [0.1, 0.1, 0.9, 0.9])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "line 1: time_s, left_rate, right_rate missing"),
        ("time_s,left_rate\n", "line 1: right_rate missing"),
        ("time_s,left_rate,right_rate,tau\n", "line 1: tau; the columns are"),
        ("time_s,left_rate,right_rate,hot,hot\n", "line 1: a column given twice"),
        ("time_s,left_rate,right_rate\n0,1\n", "line 2: has 2 values, and the header 3 columns"),
        ("time_s,left_rate,right_rate\n0,1,-1\n", "line 2: right_rate: '-1' must be a number from 0"),
        ("time_s,left_rate,right_rate\n0,1,nan\n", "line 2: right_rate: 'nan' must be"),
        ("time_s,left_rate,right_rate\n0,1,x\n", "line 2: right_rate: 'x' must be"),
        ("time_s,left_rate,right_rate,skew\n0,1,1,0.5\n", "line 2: skew: '0.5' must be a number from 1"),
        ("time_s,left_rate,right_rate\n5,1,1\n", "line 2: time_s: 5 must be 0 in the first row"),
        ("time_s,left_rate,right_rate\n0,1,1\n60,1,1\n60,1,1\n", "line 4: time_s: 60 must be above"),
        ("time_s,left_rate,right_rate\n0,1,1\n", "1 rows; a trace needs at least two"),
        ("time_s,left_rate,right_rate\n0,1,1\n2,1,1\n", "2 s in steps of 15 s are 0 steps"),
    ],
)
def test_a_trace_that_cannot_be_read_is_refused(text: str, message: str) -> None:
    with pytest.raises(TraceError) as caught:
        read_trace(text, 15.0)
    assert message in str(caught.value)


# The command.

EXAMPLE = str(ROOT / "examples" / "scaling.yaml")
TRACE = str(ROOT / "examples" / "traces" / "week.csv")


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["simulate", *arguments])


def test_the_command_prints_a_table(tmp_path: Path) -> None:
    picture = tmp_path / "pictures" / "spike.svg"
    done = run(EXAMPLE, "--traffic", "spike", "--days", "0.5", "--explain", "--picture", str(picture))
    assert done.exit_code == 0, done.output
    assert "scaling: 12 h 00 min of spike traffic around" in done.output
    assert "the main predicate admits 0.05 of all pairs" in done.output
    for name in ("streamjoin", "HPA", "Flink autoscaler", "clairvoyant", "worker-hours", "above tau3", "What each rule said:"):
        assert name in done.output
    assert picture.read_text().startswith("<?xml")
    assert "clairvoyant" in picture.read_text() or picture.stat().st_size > 10_000


def test_the_command_tries_another_policy_than_the_manifests() -> None:
    found = {}
    for policy in ("thresholds", "predictive"):
        done = run(EXAMPLE, "--traffic", "spike", "--days", "2", "--policy", policy, "--json")
        assert done.exit_code == 0, done.output
        told = json.loads(done.output)
        assert told["policy"] == policy
        found[policy] = {outcome["decider"]: outcome["workerHours"] for outcome in told["outcomes"]}
    assert found["predictive"]["streamjoin"] < 0.7 * found["thresholds"]["streamjoin"]
    assert found["predictive"]["HPA"] == found["thresholds"]["HPA"]


def test_the_command_gives_json_of_a_trace() -> None:
    done = run(EXAMPLE, "--trace", TRACE, "--step", "60s", "--share", "0", "--json")
    assert done.exit_code == 0, done.output
    found = json.loads(done.output)
    assert (found["event"], found["name"], found["traffic"]) == ("simulation", "scaling", "week.csv")
    assert (found["seconds"], found["stepSeconds"], found["assumed"]["share"]) == (604800.0, 60.0, 0.0)
    assert [outcome["decider"] for outcome in found["outcomes"]] == ["streamjoin", "HPA", "Flink autoscaler", "clairvoyant"]
    named = Outcome(name="").to_json().keys()
    for outcome in found["outcomes"]:
        assert outcome.keys() == named
        assert outcome["workerHours"] >= 168
    assert len({outcome["inputTuples"] for outcome in found["outcomes"]}) == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--trace", TRACE, "--days", "3"], "--trace has rates of its own"),
        (["--json", "--explain"], "give one"),
        (["--step", "2m"], "--step: 120 s must be at most 60 s"),
        (["--trace", EXAMPLE], "scaling.yaml: line 1: time_s, left_rate, right_rate missing"),
        (["--trace", "nowhere.csv"], "nowhere.csv: cannot be read"),
        (["--days", "0.5", "--picture", "picture.txt"], "--picture: picture.txt must end in one of ."),
        (["--days", "0.1", "--picture", "file/picture.png"], "file/picture.png: file is not a directory; choose a file that"),
        (["--days", "0.1", "--set", "scaling.tau3=0.85", "--picture", "file/run.png"], "--picture: file/run.png: file is not a"),
    ],
)
def test_the_command_refuses_what_it_cannot_do(arguments: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    done = run(EXAMPLE, *arguments)
    assert done.exit_code == 2
    assert message in done.output


def test_the_command_says_what_is_wrong_with_the_manifest(tmp_path: Path) -> None:
    manifest = tmp_path / "bad.yaml"
    manifest.write_text(Path(EXAMPLE).read_text().replace("tau1: 0.4", "tau1: 0.9"))
    done = run(str(manifest))
    assert done.exit_code == 2
    assert "spec.scaling.tau1: 0.9 must be below tau2 (0.8)" in done.output


def test_the_floor_of_a_simulation_is_what_it_began_with_where_that_is_asked_for(tmp_path: Path) -> None:
    trace, manifest = tmp_path / "falling.csv", tmp_path / "join.yaml"
    trace.write_text("time_s,left_rate,right_rate\n0,4000,4000\n3600,10,10\n36000,10,10\n")
    found = {}
    for floor in ("min", "initial"):
        manifest.write_text(Path(EXAMPLE).read_text().replace("scaling: {", f"scaling: {{floor: {floor}, "))
        done = run(str(manifest), "--trace", str(trace), "--json")
        assert done.exit_code == 0, done.output
        found[floor] = next(one for one in json.loads(done.output)["outcomes"] if one["decider"] == "streamjoin")
    most = found["initial"]["mostWorkers"]
    assert found["initial"]["workerHours"] == pytest.approx(10 * most, rel=0.01)
    assert found["initial"]["rescales"] == 0
    assert found["min"]["workerHours"] < 0.5 * 10 * most


def test_more_memory_before_more_workers_is_simulated_and_what_it_costs_is_in_the_bill(tmp_path: Path) -> None:
    manifest, found = tmp_path / "join.yaml", {}
    text = Path(EXAMPLE).read_text().replace("capacityTuples: 600000", "resources: {memory: 1Gi}, maxMemory: 4Gi")
    traffic = ("--traffic", "diurnal", "--days", "1", "--rate", "1500")
    for mode in ("Off", "Recommend", "Enforce"):
        manifest.write_text(text.replace("scaling: {", f'scaling: {{vertical: "{mode}", '))
        done = run(str(manifest), *traffic, "--json")
        assert done.exit_code == 0, done.output
        found[mode] = next(one for one in json.loads(done.output)["outcomes"] if one["decider"] == "streamjoin")
    assert found["Recommend"] == found["Off"]
    larger = found["Enforce"]
    assert found["Off"]["memory"] is None
    assert 1 << 30 < larger["memory"] <= 4 << 30
    assert larger["mostWorkers"] < found["Off"]["mostWorkers"]
    assert larger["bill"] < found["Off"]["bill"]
    paid = (8 + larger["memory"] / (1 << 30)) / 9
    assert larger["workerHours"] < larger["bill"] < paid * larger["workerHours"] + larger["shedTuples"] / 1e5 + larger["rescales"]
    done = run(str(manifest), *traffic)
    assert "By spec.scaling.vertical each worker of streamjoin has" in done.output


@pytest.mark.parametrize(
    ("window", "rates"),
    [("{rows: 100000}", ""), ("{unbounded: true}", ""), ("{within: 10m}", "expectedRate: 500")],
)
def test_every_kind_of_window_can_be_simulated(window: str, rates: str, tmp_path: Path) -> None:
    manifest = tmp_path / "join.yaml"
    text = Path(EXAMPLE).read_text().replace("{within: 10m}", window)
    manifest.write_text(text.replace("      eventTime: at\n", f"      eventTime: at\n      {rates}\n"))
    done = run(str(manifest), "--days", "0.2", "--json")
    assert done.exit_code == 0, done.output
    assert ("around 500 and 500 tuples/s" in json.loads(done.output)["traffic"]) == bool(rates)


@hypothesis_settings(max_examples=20, deadline=None)
@given(st.integers(0, 1000), st.sampled_from(KINDS))
def test_no_traffic_makes_the_core_leave_its_limits(seed: int, kind: str) -> None:
    join = replace(JOIN, settings=replace(SETTINGS, min_workers=2, max_workers=6), workers=3)
    traffic = generate(kind, days=0.5, step_seconds=30, seed=seed, rates=(3 * RATE, RATE))
    outcome = simulate(join, traffic, StreamJoin(join))
    assert outcome.workers.min() >= 2
    assert outcome.workers.max() <= 6
