"""The decision core: traffic stories minute by minute, and what holds whatever comes in."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from cases import how_many
from streamjoin.elastic.core import DecisionCore
from streamjoin.elastic.decision import Decision, Kind, Reason, Verdict
from streamjoin.elastic.events import (
    LimitsSet,
    MigrationBegun,
    MigrationFinished,
    Paused,
    PlanApplied,
    Resumed,
    SettingsChanged,
    Suspended,
    Unpaused,
)
from streamjoin.elastic.forecast import AnalyticForecast, Prospect, best_grid
from streamjoin.elastic.sample import Sample
from streamjoin.elastic.settings import Mode, Policy, Rule, Settings
from streamjoin.manifest.validate import load

SETTINGS = Settings(
    policy=Policy.THRESHOLDS,
    tau0=0.2,
    tau1=0.4,
    tau2=0.8,
    tau3=0.9,
    scale_up_after=120,
    scale_down_after=600,
    min_workers=1,
    max_workers=16,
    capacity_tuples=1000,
)
EVERY = 60
"""Seconds between two samples of a story."""


@dataclass(frozen=True)
class Even:
    """A forecast of an equality: ``demand`` workers' capacities shared out evenly, the fullest ``unevenness`` times the mean."""

    demand: float
    unevenness: float = 1.0

    def at(self, workers: int) -> Prospect | None:
        mean = self.demand / workers
        return Prospect(
            tasks=workers,
            tau_max=mean * self.unevenness,
            tau_mean=mean,
            moved_tuples=100.0,
            lower_bound_tuples=90.0,
            naive_tuples=1000.0,
        )


class Silent:
    """A forecast that knows nothing."""

    def at(self, workers: int) -> Prospect | None:
        return None


def sample(at: float, tau: float | list[Any] = 0.5, workers: int = 4, generation: int = 1, **changes: Any) -> Sample:
    taus = tau if isinstance(tau, list) else [tau] * workers
    mean = sum(value for value in taus if isinstance(value, float) and math.isfinite(value)) / workers
    given: dict[str, Any] = {
        "taken_at": at,
        "generation": generation,
        "tau": dict(enumerate(taus)),
        "workers": workers,
        "rates": (500.0, 500.0),
        "held": (500.0 * max(mean, 0.0) * workers, 500.0 * max(mean, 0.0) * workers),
        "epoch_seconds": 0.1,
        "backlog_records": 0.0,
        "shed_fraction": 0.0,
    }
    return Sample(**{**given, **changes})


class Story:
    """A core of four workers that is told a sample a minute. ``demand`` (in capacities) makes the forecast, unless one is given."""

    def __init__(self, settings: Settings = SETTINGS, workers: int = 4) -> None:
        self.core = DecisionCore(settings, at=0.0, generation=1, workers=workers)
        self.now = 0.0

    def minute(self, tau: float | list[Any], forecast: Any = None, seconds: float = EVERY, **changes: Any) -> Decision:
        self.now += seconds
        core = self.core
        core.handle(sample(self.now, tau, **{"workers": core.workers, "generation": core.generation, **changes}))
        core.validate_state()
        if forecast is None:
            taus = tau if isinstance(tau, list) else [tau] * core.workers
            forecast = Even(sum(value for value in taus if isinstance(value, float) and math.isfinite(value)))
        return core.decide(self.now, forecast)

    def minutes(self, taus: list[Any], **changes: Any) -> list[tuple[Kind, Reason, int]]:
        return [brief(self.minute(tau, **changes)) for tau in taus]

    def apply(self, workers: int) -> None:
        self.core.handle(PlanApplied(self.now, self.core.generation + 1, workers))
        self.core.validate_state()


def brief(decision: Decision) -> tuple[Kind, Reason, int]:
    return decision.kind, decision.reason, decision.target


def verdict(decision: Decision, rule: Rule) -> Verdict:
    return next(one for one in decision.verdicts if one.rule is rule)


def hold(reason: Reason, workers: int = 4) -> tuple[Kind, Reason, int]:
    return Kind.HOLD, reason, workers


# Stories.


def test_a_full_join_grows_once_it_has_been_full_for_long_enough() -> None:
    story = Story()
    assert story.minutes([0.5, 0.92, 0.93]) == [hold(Reason.STEADY), hold(Reason.WAITING), hold(Reason.WAITING)]
    decision = story.minute(0.94)
    # 4 workers at 0.94 hold 3.76 capacities: 9 workers are 0.418 full, which is about tau1; 8 would be 0.47.
    assert brief(decision) == (Kind.ALLOCATE, Reason.FULL, 9)
    assert decision.enforced
    assert decision.prediction is not None
    assert decision.prediction.tau_max == pytest.approx(3.76 / 9)
    assert decision.held_for == 120
    assert {candidate.workers for candidate in decision.candidates} >= {8, 9, 16}
    assert "from 4 to 9 workers" in decision.sentence
    # Nobody carried it out, so it is decided again.
    assert brief(story.minute(0.94)) == (Kind.ALLOCATE, Reason.FULL, 9)
    story.apply(9)
    assert brief(story.core.decide(story.now, Even(3.76))) == hold(Reason.NO_SAMPLE, 9)
    assert story.minutes([0.42, 0.42]) == [hold(Reason.STEADY, 9)] * 2


def test_a_dip_below_tau3_begins_the_wait_anew() -> None:
    story = Story()
    assert [kind for kind, _, _ in story.minutes([0.92, 0.92, 0.89, 0.92, 0.92])] == [Kind.HOLD] * 5
    assert story.minute(0.92).kind is Kind.ALLOCATE


def test_the_wait_before_growing_is_exact_to_the_second() -> None:
    story = Story()
    story.minute(0.95)
    story.minute(0.95)
    assert story.minute(0.95, seconds=59).reason is Reason.WAITING
    assert story.minute(0.95, seconds=1).kind is Kind.ALLOCATE


def test_the_wait_before_shrinking_is_exact_to_the_second() -> None:
    story = Story()
    for _ in range(11):
        decision = story.minute(0.1, seconds=54)
    assert story.now == 594
    decision = story.minute(0.1, seconds=54 + 599 - 594)
    assert verdict(decision, Rule.DEALLOCATE).reason is Reason.WAITING
    decision = story.minute(0.1, seconds=1)
    assert brief(decision) == (Kind.DEALLOCATE, Reason.UNUSED, 1)


def test_an_unused_join_shrinks_by_the_largest_need_of_the_delay() -> None:
    story = Story(workers=8)
    taus = [0.1, 0.1, 0.19, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1]
    assert all(kind is Kind.HOLD for kind, _, _ in story.minutes(taus))
    # 8 workers at 0.19 held 1.52 capacities: 4 workers at 0.38. The present 0.8 alone would do with 2.
    assert brief(story.minute(0.1)) == (Kind.DEALLOCATE, Reason.UNUSED, 4)
    for _ in range(3):
        story.minute(0.1)
    # Fourteen minutes after it began, the peak lies further back than the delay and a part of it.
    assert brief(story.minute(0.1)) == (Kind.DEALLOCATE, Reason.UNUSED, 2)


def test_a_join_is_not_shrunk_while_its_window_fills() -> None:
    story = Story(workers=8)
    for minute in range(1, 41):
        decision = story.minute(0.004 * minute)
        assert decision.kind is Kind.HOLD
    assert verdict(decision, Rule.DEALLOCATE).reason is Reason.RISING


def test_a_full_worker_at_a_low_mean_is_an_imbalance() -> None:
    story = Story()
    taus = [0.95, 0.2, 0.2, 0.2]
    for _ in range(2):
        assert story.minute(taus).kind is Kind.HOLD
    decision = story.minute(taus)
    assert brief(decision) == (Kind.REPLAN, Reason.UNEVEN, 4)
    assert decision.enforced


def test_a_full_worker_is_an_imbalance_for_workers_when_no_replan_helps() -> None:
    """A frequent key that nothing can cut: the fullest worker stays as full on 4, but others can take the rest off it on more."""

    class Stuck:
        def at(self, workers: int) -> Prospect | None:
            return replace(Even(1.55).at(workers), tau_max=0.95 if workers < 6 else 0.7)  # type: ignore[type-var]

    story = Story()
    for _ in range(2):
        story.minute([0.95, 0.2, 0.2, 0.2], Stuck())
    assert brief(story.minute([0.95, 0.2, 0.2, 0.2], Stuck())) == (Kind.ALLOCATE, Reason.FULL, 6)


def test_nothing_is_added_when_nothing_would_help() -> None:
    class Hopeless:
        def at(self, workers: int) -> Prospect | None:
            return replace(Even(1.55).at(workers), tau_max=0.95)  # type: ignore[type-var]

    story = Story()
    for _ in range(3):
        decision = story.minute([0.95, 0.2, 0.2, 0.2], Hopeless())
    assert brief(decision) == hold(Reason.NO_GAIN)


def test_replans_in_vain_give_way_to_workers_and_are_tried_ever_more_rarely() -> None:
    """The forecast promises what never comes true."""
    settings = replace(SETTINGS, max_workers=4)
    story = Story(settings)
    taus = [0.95, 0.2, 0.2, 0.2]
    decided = []
    for minute in range(60):
        decision = story.minute(taus)
        if decision.kind is not Kind.HOLD:
            decided.append((minute, decision.kind))
            story.apply(decision.target)
    assert [kind for _, kind in decided] == [Kind.REPLAN] * 4
    gaps = [after - before for (before, _), (after, _) in pairwise(decided)]
    assert gaps == sorted(gaps)
    assert gaps[-1] > 2 * gaps[0]

    story = Story()
    for _ in range(3):
        decision = story.minute(taus)
    story.apply(4)
    for _ in range(3):
        decision = story.minute(taus)
    assert decision.kind is Kind.ALLOCATE


def test_a_moved_ratio_calls_for_another_plan_when_that_is_worth_its_bytes() -> None:
    class Better:
        def at(self, workers: int) -> Prospect | None:
            return replace(Even(2.0).at(workers), tau_max=0.55, tau_mean=0.55)  # type: ignore[type-var]

    story = Story(replace(SETTINGS, shedding_model="linear"))
    story.minute(0.78, Better(), held=(1000.0, 1000.0))
    for _ in range(3):
        decision = story.minute(0.78, Better(), held=(2000.0, 500.0), rates=(2000.0, 500.0))
    # 0.78 is not shed, but a quarter more would be.
    assert brief(decision) == (Kind.REPLAN, Reason.RATIO_MOVED, 4)
    assert decision.stay is not None
    (candidate,) = decision.candidates
    assert candidate.bill is not None
    assert candidate.bill.total < decision.stay.total
    # As full as half that, it costs nothing to leave it.
    story = Story()
    story.minute(0.39, Better(), held=(1000.0, 1000.0))
    for _ in range(3):
        decision = story.minute(0.39, Even(1.0), held=(2000.0, 500.0))
    assert verdict(decision, Rule.REPLAN).reason is Reason.NOT_WORTH
    assert decision.kind is Kind.HOLD


def test_a_join_that_falls_behind_at_a_low_tau_grows() -> None:
    story = Story()
    late: dict[str, Any] = {"epoch_seconds": 1.4, "rates": (1000.0, 1000.0)}
    backlogs = [10_000.0, 30_000.0, 50_000.0]
    decisions = [story.minute(0.3, backlog_records=backlog, **late) for backlog in backlogs]
    assert [brief(decision) for decision in decisions[:2]] == [hold(Reason.WAITING)] * 2
    # 2,000/s are taken in, 333/s more arrive, and 50,000 are to be gone in 600 s: 2,417/s, on 4 * 1.21 workers.
    assert brief(decisions[2]) == (Kind.ALLOCATE, Reason.BEHIND, 5)


def test_a_join_that_catches_up_is_left_alone() -> None:
    story = Story()
    for backlog in (90_000.0, 70_000.0, 50_000.0, 40_000.0, 30_000.0):
        decision = story.minute(0.3, backlog_records=backlog, epoch_seconds=1.4)
        assert decision.kind is Kind.HOLD


def test_workers_that_did_not_help_are_not_added_again() -> None:
    story = Story()
    late: dict[str, Any] = {"epoch_seconds": 1.4, "rates": (1000.0, 1000.0)}
    for backlog in (10_000.0, 30_000.0, 50_000.0):
        decision = story.minute(0.3, backlog_records=backlog, **late)
    story.apply(decision.target)
    for backlog in (60_000.0, 70_000.0, 90_000.0):
        decision = story.minute(0.3, backlog_records=backlog, **late)
    assert brief(decision) == hold(Reason.INEFFECTIVE, 5)


def test_nothing_is_removed_from_a_join_that_fewer_workers_would_leave_behind() -> None:
    story = Story()
    story.minute(0.3)
    decisions = [story.minute(0.1, epoch_seconds=0.75) for _ in range(11)]
    assert verdict(decisions[-1], Rule.DEALLOCATE).reason is Reason.BUSY
    # The 0.1 s of the first epoch is taken to be the fixed cost: 4 * (0.5 - 0.1) / (0.8 - 0.1) workers.
    story = Story()
    story.minute(0.3)
    decisions = [story.minute(0.1, epoch_seconds=0.5) for _ in range(11)]
    assert brief(decisions[-1]) == (Kind.DEALLOCATE, Reason.UNUSED, 3)


def test_a_number_of_workers_that_could_not_keep_up_is_not_gone_back_to_at_that_rate() -> None:
    story = Story()
    fast: dict[str, Any] = {"rates": (1000.0, 1000.0)}
    for backlog in (10_000.0, 30_000.0, 50_000.0):
        decision = story.minute(0.1, backlog_records=backlog, epoch_seconds=1.4, **fast)
    story.apply(decision.target)
    for _ in range(15):
        decision = story.minute(0.1, **fast)
    assert brief(decision) == hold(Reason.BUSY, 5)
    for _ in range(15):
        decision = story.minute(0.1, rates=(500.0, 500.0))
    assert brief(decision) == (Kind.DEALLOCATE, Reason.UNUSED, 2)


def test_starting_workers_count_as_capacity() -> None:
    story = Story()
    for _ in range(3):
        decision = story.minute(0.94, starting=5)
    assert brief(decision) == hold(Reason.STARTING)
    for _ in range(3):
        decision = story.minute(0.94, starting=3)
    assert brief(decision) == (Kind.ALLOCATE, Reason.FULL, 9)


def test_workers_that_are_starting_and_not_needed_any_more_are_not_asked_for() -> None:
    story = Story()
    for _ in range(3):
        story.minute(0.94, starting=4)
    decisions = [brief(story.minute(0.3, starting=4)) for _ in range(14)]
    assert decisions[:10] == [hold(Reason.STARTING)] * 10, "by the largest need of the last ten minutes"
    assert decisions[-1] == (Kind.DEALLOCATE, Reason.UNUSED, 4), "those that run are enough"
    assert brief(story.minute(0.3, starting=0)) == hold(Reason.STEADY)
    story = Story()
    decisions = [brief(story.minute(0.5, starting=4)) for _ in range(4)]
    assert decisions[-1] == (Kind.DEALLOCATE, Reason.UNUSED, 5), "fewer would do"
    for changes in ({"shed_fraction": 0.1}, {"epoch_seconds": 5.0, "backlog_records": 1e6}, {"unconfirmed": "nobody confirms it"}):
        story = Story()
        for _ in range(6):
            decision = story.minute(0.3, starting=4, **changes)
        assert decision.kind is not Kind.DEALLOCATE, changes
    story = Story(replace(SETTINGS, min_workers=8))
    for _ in range(6):
        decision = story.minute(0.3, starting=4)
    assert decision.kind is Kind.HOLD, "they are the least that there are to be"


def test_the_limits_bound_what_is_decided() -> None:
    story = Story(replace(SETTINGS, max_workers=6))
    for _ in range(3):
        decision = story.minute(0.94)
    assert brief(decision) == (Kind.ALLOCATE, Reason.FULL, 6)
    story.apply(6)
    for _ in range(3):
        decision = story.minute(0.94)
    assert brief(decision) == hold(Reason.AT_LIMIT, 6)
    story = Story(replace(SETTINGS, min_workers=3))
    for _ in range(11):
        decision = story.minute(0.05)
    assert brief(decision) == (Kind.DEALLOCATE, Reason.UNUSED, 3)


def test_an_operators_floor_and_ceiling_stay_within_the_manifests_limits() -> None:
    story = Story()
    story.core.handle(LimitsSet(1.0, floor=6))
    # No sample is needed to add what is asked for.
    assert brief(story.core.decide(2.0)) == (Kind.ALLOCATE, Reason.BELOW_FLOOR, 6)
    story.core.handle(LimitsSet(1.0, floor=99))
    assert story.core.decide(2.0).target == 16
    story.core.handle(LimitsSet(1.0, ceiling=2))
    assert story.core.decide(2.0).kind is Kind.HOLD
    assert brief(story.minute(0.3)) == (Kind.DEALLOCATE, Reason.ABOVE_CEILING, 2)
    assert verdict(story.minute(0.5), Rule.DEALLOCATE).reason is Reason.WOULD_EXCEED
    assert verdict(story.minute(0.3, shed_fraction=0.1), Rule.DEALLOCATE).reason is Reason.SHEDDING
    with pytest.raises(ValueError, match=r"floor: 3 must be at most ceiling \(2\)"):
        story.core.handle(LimitsSet(1.0, floor=3, ceiling=2))


def test_while_state_moves_nothing_is_decided() -> None:
    story = Story()
    for _ in range(3):
        decision = story.minute(0.95)
    story.core.handle(MigrationBegun(story.now, decision.target))
    assert brief(story.minute(0.99)) == hold(Reason.MIGRATING)
    story.apply(decision.target)
    # The switch is made, and the old owners still hold what they gave away.
    assert brief(story.minute(0.4)) == hold(Reason.MIGRATING, decision.target)
    story.core.handle(MigrationFinished(story.now))
    assert brief(story.minute(0.4)) == hold(Reason.STEADY, decision.target)
    assert brief(story.minute(0.4, migrating=True)) == hold(Reason.MIGRATING, decision.target)


def test_a_suspended_or_paused_join_is_left_alone() -> None:
    story = Story()
    for _ in range(3):
        story.minute(0.95)
    story.core.handle(Paused(story.now, "ann"))
    decision = story.minute(0.95)
    assert brief(decision) == hold(Reason.PAUSED)
    assert "ann" in decision.sentence
    story.core.handle(Unpaused(story.now))
    assert story.minute(0.95).kind is Kind.ALLOCATE
    story.core.handle(Suspended(story.now))
    assert brief(story.minute(0.95)) == hold(Reason.SUSPENDED)
    story.core.handle(Resumed(story.now))
    # What was measured before the pause says nothing.
    assert brief(story.core.decide(story.now)) == hold(Reason.NO_SAMPLE)
    assert story.minute(0.95).reason is Reason.WAITING


def test_each_rule_is_enforced_recommended_or_off() -> None:
    def after_three_minutes(tau: Any, settings: Settings, **changes: Any) -> Decision:
        story = Story(settings)
        for _ in range(3):
            decision = story.minute(tau, **changes)
        return decision

    recommended = after_three_minutes(0.95, replace(SETTINGS, mode=Mode.RECOMMEND))
    assert brief(recommended) == (Kind.ALLOCATE, Reason.FULL, 9)
    assert not recommended.enforced
    off = replace(SETTINGS, mode=Mode.OFF)
    assert brief(after_three_minutes(0.95, off)) == hold(Reason.OFF)
    assert after_three_minutes(0.95, replace(off, rules={Rule.ALLOCATE: Mode.ENFORCE})).enforced
    # A full worker that only a re-plan could relieve: workers are added where that is not going to be carried out.
    hot = [0.95, 0.2, 0.2, 0.2]
    assert after_three_minutes(hot, SETTINGS).kind is Kind.REPLAN
    assert after_three_minutes(hot, replace(SETTINGS, rules={Rule.REPLAN: Mode.OFF})).kind is Kind.ALLOCATE
    assert after_three_minutes(hot, replace(SETTINGS, rules={Rule.ALLOCATE: Mode.OFF})).kind is Kind.REPLAN
    assert after_three_minutes(hot, replace(SETTINGS, rules={Rule.ALLOCATE: Mode.RECOMMEND})).kind is Kind.REPLAN


def test_without_a_forecast_full_workers_get_help_and_no_worker_goes() -> None:
    story = Story()
    for _ in range(3):
        decision = story.minute(0.95, Silent())
    # As if the load were shared out evenly: 4 * 0.95 / 0.4.
    assert brief(decision) == (Kind.ALLOCATE, Reason.FULL, 10)
    story = Story()
    for _ in range(11):
        decision = story.minute(0.05, Silent())
    assert brief(decision) == hold(Reason.NO_FORECAST)


def test_what_was_shed_is_needed_too() -> None:
    """At 0.84 a fifth is dropped, so that tau never gets to tau3: without shedding it would be 1.05."""
    story = Story(replace(SETTINGS, shedding_model="linear"))
    for _ in range(3):
        decision = story.minute(0.84, Silent(), shed_fraction=0.2)
    assert brief(decision) == (Kind.ALLOCATE, Reason.FULL, math.ceil(4 * 1.05 / 0.4))
    assert decision.shed_factor == pytest.approx(0.2)
    assert "1.05 if nothing were shed" in decision.sentence
    # A little shedding, as of a passing wave, is what shedding is for.
    story = Story(replace(SETTINGS, shedding_model="linear"))
    for _ in range(9):
        assert story.minute(0.81, Silent(), shed_fraction=0.05).kind is Kind.HOLD
    # The analytic forecast of the core's own, of a grid: load goes down with the root of the workers.
    core = DecisionCore(SETTINGS, at=0.0, generation=1, workers=4)
    for at in (60.0, 120.0, 180.0):
        core.handle(sample(at, 0.95, held=(950.0, 950.0)))
    target = core.decide(180.0).target
    assert target == 16


def test_bad_samples_end_nothing_and_begin_nothing() -> None:
    story = Story(replace(SETTINGS, stale_after=150.0))
    story.minute(0.95)
    blind = story.minute([0.5, None, 0.5, math.nan])
    assert brief(blind) == hold(Reason.BAD_SAMPLE)
    assert blind.inputs is not None
    assert blind.inputs.problems == ("tau of 2 of 4 workers is missing or no number",)
    assert story.minute([0.95, None, 0.5, 0.5]).kind is Kind.ALLOCATE


def test_a_gap_in_the_samples_begins_the_wait_for_removal_anew() -> None:
    story = Story()
    for _ in range(9):
        story.minute(0.1)
    decision = story.minute(0.1, seconds=61)
    assert verdict(decision, Rule.DEALLOCATE).reason is Reason.WAITING
    for _ in range(9):
        assert story.minute(0.1).kind is Kind.HOLD
    assert story.minute(0.1).kind is Kind.DEALLOCATE


def test_long_epochs_do_not_keep_a_full_join_from_growing() -> None:
    story = Story()
    for _ in range(2):
        decision = story.minute(0.95, seconds=150, epoch_seconds=149.0)
    assert decision.kind is Kind.ALLOCATE


AWAY = "PrometheusUnreachable: http://prometheus:9090"


def test_by_numbers_that_nobody_confirms_workers_are_added_as_soon_as_by_others() -> None:
    late: dict[str, Any] = {"epoch_seconds": 1.4, "rates": (1000.0, 1000.0)}
    full: list[dict[str, Any]] = [{}] * 4
    behind = [{"backlog_records": waiting, **late} for waiting in (1e4, 3e4, 5e4, 7e4)]
    for tau, samples in ((0.94, full), (0.3, behind)):
        told = []
        for unconfirmed in (None, AWAY):
            story = Story()
            decisions = [story.minute(tau, unconfirmed=unconfirmed, **changes) for changes in samples]
            told.append([(decision.kind, decision.target) for decision in decisions])
            (first, *_) = [decision for decision in decisions if decision.kind is Kind.ALLOCATE]
            assert (f"by the join's own numbers alone ({AWAY})" in first.sentence) == (unconfirmed is not None)
        assert told[0] == told[1]


def test_by_numbers_that_nobody_confirms_no_worker_goes() -> None:
    story = Story()
    for _ in range(40):
        decision = story.minute(0.05, unconfirmed=AWAY)
        assert brief(decision) == hold(Reason.UNCONFIRMED)
        assert AWAY in decision.sentence
    # What was not confirmed was no evidence: the wait begins now.
    for _ in range(10):
        assert brief(story.minute(0.05)) == hold(Reason.WAITING)
    assert story.minute(0.05).kind is Kind.DEALLOCATE
    # Nor to what an operator allows at most.
    story.core.handle(LimitsSet(story.now, ceiling=2))
    assert story.minute(0.05, unconfirmed=AWAY).reason is Reason.UNCONFIRMED


def test_a_need_that_nobody_confirms_keeps_workers_from_going() -> None:
    story = Story()
    for _ in range(9):
        story.minute(0.05)
    story.minute(0.5, unconfirmed=AWAY)
    for _ in range(10):
        assert story.minute(0.05).kind is Kind.HOLD, "it has begun anew"
    assert story.minute(0.05).kind is Kind.DEALLOCATE


def test_by_numbers_that_nobody_confirms_a_full_worker_is_relieved_by_workers_before_another_plan() -> None:
    """A re-plan because it costs less is thrift; where there can be no more workers, it is all that helps."""
    taus = [0.95, 0.2, 0.2, 0.2]
    decided = []
    for unconfirmed, most in ((None, 16), (AWAY, 16), (AWAY, 4)):
        story = Story(replace(SETTINGS, max_workers=most))
        decided.append([story.minute(taus, unconfirmed=unconfirmed) for _ in range(3)][-1].kind)
    assert decided == [Kind.REPLAN, Kind.ALLOCATE, Kind.REPLAN]


def test_by_numbers_that_nobody_confirms_no_better_plan_is_made() -> None:
    class Better:
        def at(self, workers: int) -> Prospect | None:
            return replace(Even(2.0).at(workers), tau_max=0.55, tau_mean=0.55)  # type: ignore[type-var]

    story = Story(replace(SETTINGS, shedding_model="linear"))
    story.minute(0.78, Better(), held=(1000.0, 1000.0))
    for unconfirmed, reason in ((AWAY, Reason.UNCONFIRMED), (None, Reason.RATIO_MOVED)):
        for _ in range(3):
            decision = story.minute(0.78, Better(), held=(2000.0, 500.0), rates=(2000.0, 500.0), unconfirmed=unconfirmed)
        assert verdict(decision, Rule.REPLAN).reason is reason


# What holds always.

NUMBERS = st.one_of(st.floats(0, 1.2), st.sampled_from([None, math.nan, math.inf, -math.inf, -0.1, 1e300]))
TAUS = st.lists(NUMBERS, min_size=0, max_size=6)


BAD = (None, math.nan, math.inf, -math.inf, -0.1, 1e300)


def history(seed: int) -> list[tuple[str, Any]]:
    """Samples, most of them good, and now and then something else that happens."""
    rng, others = random.Random(seed), random.Random(seed + 1000)
    bad, other = rng.choice([0.0, 0.02, 0.2]), rng.choice([0.0, 0.03, 0.2])

    def number(value: float) -> Any:
        return rng.choice(BAD) if rng.random() < bad else value

    level, steps = 0.1, []
    for _ in range(60):
        level = rng.choice([0.05, 0.1, 0.15, 0.5, 0.95, 1.1]) if rng.random() < 0.1 else level
        if rng.random() < other:
            events = "applied begun finished finished limits suspended resumed resumed paused unpaused unpaused"
            steps.append((rng.choice(events.split()), rng.randint(1, 8)))
            continue
        made: dict[str, Any] = {
            "seconds": rng.choice([-30.0, 0.0, 10.0, 61.0, 300.0]) if rng.random() < bad else rng.choice([20.0, 30.0, 60.0]),
            "tau": [number(level) for _ in range(rng.choice([0, 2, 7]))] if rng.random() < bad else level,
            "generation": rng.choice([-1, 1]) if rng.random() < bad else 0,
            "changes": {
                "shed_fraction": number(0.3 if rng.random() < 0.05 else 0.0),
                "epoch_seconds": number(1.3 if rng.random() < 0.02 else 0.1),
                "backlog_records": number(0.0),
                "rates": (number(50.0), number(50.0)),
                "held": (number(100.0), number(100.0)),
                "migrating": rng.random() < bad,
                "starting": rng.choice([-1, 1, 3]) if rng.random() < bad else 0,
                "unconfirmed": AWAY if others.random() < bad else None,
            },
        }
        steps.append(("sample", made))
    return steps


def play(steps: list[tuple[str, Any]], settings: Settings) -> Iterator[tuple[DecisionCore, Decision, float, Sample | None]]:
    core = DecisionCore(settings, at=0.0, generation=1, workers=4)
    now, last = 0.0, None
    for kind, what in steps:
        if kind == "sample":
            now += what["seconds"]
            tau = what["tau"]
            last = sample(now, tau, workers=core.workers, generation=core.generation + what["generation"], **what["changes"])
            core.handle(last)
        else:
            event: Any = {
                "applied": PlanApplied(now, core.generation + 1, what),
                "begun": MigrationBegun(now, what),
                "finished": MigrationFinished(now),
                "limits": LimitsSet(now, floor=None, ceiling=what),
                "suspended": Suspended(now),
                "resumed": Resumed(now),
                "paused": Paused(now),
                "unpaused": Unpaused(now),
            }[kind]
            core.handle(event)
        core.validate_state()
        yield core, core.decide(now, Even(0.4)), now, last


QUICK = replace(SETTINGS, scale_down_after=120.0, scale_up_after=60.0)


def test_whatever_comes_in_only_sound_and_fresh_samples_remove_workers() -> None:
    removed: dict[Reason, int] = {}
    for seed in range(how_many(250, of=3)):
        for step, (core, decision, now, last) in enumerate(play(history(seed), QUICK)):
            told = f"seed {seed}, step {step}: {decision}"
            assert 1 <= decision.target <= 16, told
            if step % 10 == 0 or decision.kind is not Kind.HOLD:
                data = json.loads(json.dumps([decision.to_json(), core.to_json()], allow_nan=False))
                assert Decision.from_json(data[0]) == decision, told
                assert DecisionCore.from_json(QUICK, data[1]).decide(now, Even(0.4)) == decision, told
            if decision.target < decision.workers:
                removed[decision.reason] = removed.get(decision.reason, 0) + 1
                check_removal(core, decision, now, last, told)
    # Both ways of removing workers were seen often enough to mean something.
    assert min(removed[reason] for reason in (Reason.UNUSED, Reason.ABOVE_CEILING)) > 50, removed


def check_removal(core: DecisionCore, decision: Decision, now: float, last: Sample | None, told: str) -> None:
    """By a judgement of its own: the sample that decided lacks nothing, is young, and nothing is under way."""
    inputs = decision.inputs
    assert decision.kind is Kind.DEALLOCATE, told
    assert inputs is not None, told
    assert inputs.generation == core.generation, told
    assert abs(now - inputs.taken_at) <= 60, told
    assert (inputs.shed_fraction, inputs.migrating, inputs.starting, inputs.known) == (0.0, False, 0, core.workers), told
    assert decision.prediction is not None, told
    assert decision.prediction.tau_max <= 0.8, told
    assert inputs.unconfirmed is None, told
    if last is not None and last.taken_at == inputs.taken_at and last.generation == core.generation:
        values = [*(last.tau.get(task) for task in range(core.workers)), *last.rates, *last.held]
        values += [last.epoch_seconds, last.backlog_records, last.shed_fraction]
        assert all(value is not None and 0 <= value < math.inf for value in values), told


@hypothesis_settings(max_examples=60, deadline=None)
@given(st.lists(TAUS, min_size=1, max_size=30), st.floats(0.0, 0.19))
def test_bad_samples_alone_never_remove_a_worker(bad: list[list[Any]], low: float) -> None:
    story = Story(QUICK)
    for taus in bad:
        spoilt = [*taus, *[low] * 4][:4]
        spoilt[len(taus) % 4] = math.nan
        assert story.minute(spoilt, Even(0.4)).kind is not Kind.DEALLOCATE


@hypothesis_settings(max_examples=40, deadline=None)
@given(
    demand=st.floats(0.01, 12),
    workers=st.integers(1, 16),
    share=st.sampled_from([0.0, 0.3, 1.0]),
    unevenness=st.floats(1.0, 1.3),
    taus=st.sampled_from([(0.2, 0.4, 0.8, 0.9), (0.35, 0.4, 0.8, 0.9), (0.1, 0.6, 0.7, 0.75), (0.05, 0.2, 0.5, 1.0)]),
)
def test_a_constant_load_leads_to_at_most_one_change(
    demand: float, workers: int, share: float, unevenness: float, taus: tuple[float, float, float, float]
) -> None:
    tau0, tau1, tau2, tau3 = taus
    settings = replace(SETTINGS, tau0=tau0, tau1=tau1, tau2=tau2, tau3=tau3)
    core = DecisionCore(settings, at=0.0, generation=1, workers=workers)
    side = demand * 500
    changes = []
    for step in range(120):
        now = EVERY * (step + 1.0)
        world = AnalyticForecast(
            left_tuples=side, right_tuples=side, capacity_tuples=1000, workers=core.workers, share=share, unevenness=unevenness
        )
        here = world.at(core.workers)
        assert here is not None
        # Evenly full but for the fullest, and idle workers where the grid has no place for them.
        taken = [here.tau_max, *[here.tau_mean] * (here.tasks - 1), *[0.0] * (core.workers - here.tasks)]
        core.handle(sample(now, taken, workers=core.workers, generation=core.generation))
        decision = core.decide(now, world)
        if decision.kind is not Kind.HOLD:
            changes.append((decision.kind, decision.workers, decision.target, decision.sentence))
            core.handle(PlanApplied(now, core.generation + 1, decision.target))
    assert len(changes) <= 1, changes


@hypothesis_settings(max_examples=40, deadline=None)
@given(st.floats(0.9, 3), st.floats(0.9, 3), st.sampled_from([0.0, 0.5, 1.0]))
def test_fuller_workers_never_get_less_help(one: float, other: float, share: float) -> None:
    targets = []
    for tau in sorted((one, other)):
        story = Story(replace(SETTINGS, max_workers=500))
        side = tau * 4 * 500
        for _ in range(3):
            world = AnalyticForecast(left_tuples=side, right_tuples=side, capacity_tuples=1000, workers=4, share=share)
            decision = story.minute(tau, world)
        assert decision.kind is Kind.ALLOCATE
        targets.append(decision.target)
    assert targets == sorted(targets)


def test_samples_of_another_plan_or_before_the_last_change_do_not_count() -> None:
    core = DecisionCore(SETTINGS, at=1000.0, generation=7, workers=4)
    for at, generation in ((1060.0, 6), (1060.0, 8), (1000.0, 7), (999.0, 7), (math.nan, 7), (math.inf, 7)):
        core.handle(sample(at, 0.95, generation=generation))
        assert core.decide(1060.0).reason is Reason.NO_SAMPLE
    core.handle(sample(1060.0, 0.95, generation=7))
    assert core.decide(1060.0).reason is Reason.WAITING
    # Nor does one that is older than the last one.
    core.handle(sample(1030.0, 0.1, generation=7))
    assert core.decide(1060.0).inputs == core.decide(1060.0).inputs
    core.handle(PlanApplied(1100.0, 8, 4))
    core.handle(sample(1090.0, 0.95, generation=8))
    assert core.decide(1100.0).reason is Reason.NO_SAMPLE


def test_a_stale_sample_decides_nothing() -> None:
    story = Story()
    for _ in range(3):
        story.minute(0.95)
    assert story.core.decide(story.now + 60, Even(3.8)).kind is Kind.ALLOCATE
    assert story.core.decide(story.now + 61, Even(3.8)).reason is Reason.STALE
    assert story.core.decide(story.now - 61, Even(3.8)).reason is Reason.STALE


def test_the_same_plan_applied_twice_changes_nothing() -> None:
    story = Story()
    for _ in range(3):
        decision = story.minute(0.95)
    story.core.handle(PlanApplied(story.now + 1, 1, 4))
    assert story.core.decide(story.now, Even(3.8)) == decision


def test_other_settings_begin_every_wait_anew() -> None:
    story = Story()
    for _ in range(3):
        story.minute(0.85)
    story.core.handle(SettingsChanged(story.now, replace(SETTINGS, tau2=0.7, tau3=0.8)))
    assert story.minute(0.85).reason is Reason.WAITING
    story.minute(0.85)
    assert story.minute(0.85).kind is Kind.ALLOCATE


def test_a_decision_takes_few_questions_also_of_a_thousand_workers() -> None:
    asked = []

    class Counted(Even):
        def at(self, workers: int) -> Prospect | None:
            asked.append(workers)
            return super().at(workers)

    story = Story(replace(SETTINGS, max_workers=1000))
    for _ in range(3):
        decision = story.minute(0.95, Counted(300.0))
    assert brief(decision) == (Kind.ALLOCATE, Reason.FULL, math.ceil(300 / 0.44))
    assert len(asked) == len(set(asked)) <= 14


def test_memory_is_bounded_whatever_the_delay() -> None:
    story = Story(replace(SETTINGS, scale_down_after=86400.0))
    rng = random.Random(7)
    for _ in range(5000):
        story.minute(rng.uniform(0.01, 0.3), seconds=40)
    assert len(json.dumps(story.core.to_json())) < 10_000


def test_a_core_that_is_restored_goes_on_where_it_was() -> None:
    story = Story()
    for _ in range(10):
        story.minute(0.1)
    data = json.loads(json.dumps(story.core.to_json()))
    story.core = DecisionCore.from_json(SETTINGS, data)
    assert brief(story.minute(0.1)) == (Kind.DEALLOCATE, Reason.UNUSED, 1)
    with pytest.raises(ValueError, match="state cannot be read"):
        DecisionCore.from_json(SETTINGS, {**data, "workers": 0})
    with pytest.raises(ValueError, match="state cannot be read"):
        DecisionCore.from_json(SETTINGS, {"full": 3})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tau1": 0.9}, r"spec.scaling.tau1: 0.9 must be above 0 and below tau2 \(0.8\)"),
        ({"tau3": 1.1}, "spec.scaling.tau2"),
        ({"tau0": math.nan}, "spec.scaling.tau0: nan"),
        ({"min_workers": 20}, "spec.workers.min: 20"),
        ({"scale_up_after": -1.0}, "spec.scaling.scaleUpAfter: -1"),
        ({"capacity_tuples": 0.0}, "spec.workers.capacityTuples: 0"),
        ({"interval_seconds": 0.0}, "spec.epoch.interval: 0"),
        ({"imbalance": 1.0}, "imbalance: 1 must be above 1"),
        ({"shedding_model": "cubic"}, "spec.shedding: 'cubic'"),
    ],
)
def test_impossible_settings_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(SETTINGS, **changes)


def test_bad_events_are_refused() -> None:
    core = DecisionCore(SETTINGS, at=0.0, generation=1, workers=1)
    with pytest.raises(ValueError, match="at: nan must be a time"):
        core.decide(math.nan)
    with pytest.raises(ValueError, match="workers: 0 must be a whole number"):
        core.handle(PlanApplied(1.0, 2, 0))
    with pytest.raises(ValueError, match="at: inf must be a time"):
        core.handle(PlanApplied(math.inf, 2, 1))


def test_settings_are_those_of_the_manifest() -> None:
    spec = load(MANIFEST).spec
    settings = Settings.of(spec)
    assert (settings.tau0, settings.tau1, settings.tau2, settings.tau3) == (0.2, 0.35, 0.7, 0.9)
    assert (settings.scale_up_after, settings.scale_down_after, settings.interval_seconds) == (60.0, 600.0, 0.5)
    assert (settings.min_workers, settings.max_workers, settings.capacity_tuples) == (2, 4, 500_000)
    assert (settings.shedding_model, settings.shedding_base) == ("linear", 0.1)
    modes = {rule: settings.mode_of(rule) for rule in Rule}
    assert modes == {
        Rule.ALLOCATE: Mode.RECOMMEND,
        Rule.DEALLOCATE: Mode.OFF,
        Rule.REPLAN: Mode.RECOMMEND,
        Rule.KEEP_UP: Mode.ENFORCE,
        Rule.SHED: Mode.ENFORCE,
        Rule.VERTICAL: Mode.OFF,
    }


@pytest.mark.parametrize(
    ("mode", "tau", "reason", "words"),
    [
        (Mode.ENFORCE, 0.85, Reason.SHEDDING, "25.0% of the tuples for the fullest worker, whose tau (0.85) is"),
        (Mode.RECOMMEND, 0.85, Reason.WOULD_SHED, "would be shed; it is only recommended, and none are"),
        (Mode.RECOMMEND, 0.5, Reason.STEADY, "(0.50) is below tau2"),
        (Mode.OFF, 0.85, Reason.OFF, "the rule is off"),
    ],
)
def test_what_shedding_does_or_would_do_is_in_the_ledger(mode: Mode, tau: float, reason: Reason, words: str) -> None:
    settings = replace(SETTINGS, shedding_model="linear", shedding_mode=mode)
    decision = Story(settings).minute(tau)
    said = verdict(decision, Rule.SHED)
    assert (said.reason, said.kind) == (reason, Kind.HOLD)
    assert words in said.sentence
    # What is only recommended holds no load down: tau is what it would be without.
    assert settings.unshed(0.85) == pytest.approx(0.85 / (0.75 if mode is Mode.ENFORCE else 1))
    assert Decision.from_json(decision.to_json()) == decision


def test_shedding_has_no_say_about_whether_scaling_is_off() -> None:
    settings = replace(SETTINGS, mode=Mode.OFF, shedding_model="linear")
    assert settings.is_off
    assert Story(settings).minute(0.95).reason is Reason.OFF


def test_the_floor_is_the_first_number_of_workers_where_that_is_asked_for() -> None:
    """ESJ removes workers "until tau rises to tau1 or m = M"."""
    initial = load(MANIFEST.replace("mode: Recommend,", "mode: Enforce, floor: initial,").replace('deallocate: "Off", ', "")).spec
    assert Settings.of(load(MANIFEST).spec, 3).min_workers == 2
    for first, least in ((0, 2), (1, 2), (3, 3), (9, 4)):
        assert Settings.of(initial, first).min_workers == least
    story = Story(replace(SETTINGS, min_workers=3))
    for _ in range(40):
        decision = story.minute(0.05)
    assert (decision.kind, decision.target) == (Kind.DEALLOCATE, 3)


MANIFEST = """
apiVersion: streamjoin.dev/v1beta1
kind: StreamJoin
metadata: {name: near}
spec:
  streams:
    - {name: a, source: {files: {path: a, format: json}}, schema: "k INT"}
    - {name: b, source: {files: {path: b, format: json}}, schema: "k INT"}
  joins: [{condition: "a.k < b.k", window: {rows: 5}, output: {sink: {console: {}}}}]
  workers: {min: 2, max: 4, capacityTuples: 500000}
  scaling: {mode: Recommend, tau2: 0.7, scaleUpAfter: 1m, rules: {deallocate: "Off", keepUp: Enforce}}
  shedding: {model: linear, base: "0.1"}
  epoch: {interval: 500ms}
  checkpoint: {location: state}
"""


# The analytic forecast.


@given(st.floats(1, 1e6), st.floats(1, 1e6), st.integers(1, 200))
def test_the_best_grid_is_the_best_of_all(left: float, right: float, workers: int) -> None:
    grid = best_grid(left, right, workers)
    assert grid.rows * grid.columns <= workers
    every = [left / rows + right / columns for rows in range(1, workers + 1) for columns in range(1, workers // rows + 1)]
    assert grid.load(left, right) == pytest.approx(min(every))


@given(st.floats(1, 1e6), st.floats(1, 1e6), st.integers(1, 60), st.sampled_from([0.0, 0.1, 1.0]))
def test_more_workers_are_never_fuller_and_a_plan_for_as_many_moves_nothing(left: float, right: float, workers: int, share: float) -> None:
    made = AnalyticForecast(left_tuples=left, right_tuples=right, capacity_tuples=100.0, workers=workers, share=share)
    taus = [prospect.tau_max for count in range(1, 90) if (prospect := made.at(count)) is not None]
    assert all(after <= before * (1 + 1e-9) for before, after in pairwise(taus))
    here = made.at(workers)
    assert here is not None
    assert here.moved_tuples == pytest.approx(0, abs=1e-6 * (left + right))


def test_one_worker_more_takes_its_share_along_keys() -> None:
    """A-DSP's Fig. 8: from 4 to 5 tasks, a fifth of the tuples with aligned start points."""
    made = AnalyticForecast(left_tuples=500, right_tuples=500, capacity_tuples=100.0, workers=4, share=0.0)
    prospect = made.at(5)
    assert prospect is not None
    assert prospect.moved_tuples == pytest.approx(200)
    assert prospect.naive_tuples > prospect.moved_tuples
