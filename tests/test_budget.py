"""A budget for lost results (``spec.scaling.budget``): shedding while it lasts, workers before it runs out, else as without one."""

from __future__ import annotations

import dataclasses
import json
import random
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from lossy_runs import draw, run
from streamjoin.elastic.completeness import DAY, HOUR, JoinLosses, Sums
from streamjoin.elastic.core import DecisionCore
from streamjoin.elastic.decision import Kind, Reason
from streamjoin.elastic.explain import explain
from streamjoin.elastic.ledger import Ledger
from streamjoin.elastic.quiet import WeeklyWindow
from streamjoin.elastic.settings import Budget, Mode, Policy, Rule
from test_autoscaler import SCALING, stream
from test_autoscaler import Run as Elastic
from test_decision import SETTINGS, Story, brief, hold, sample, verdict

SHEDDING = dataclasses.replace(SETTINGS, shedding_model="linear")
BUDGET = dataclasses.replace(SHEDDING, budget=Budget(0.999, DAY))
SLOW = {"rates": (50.0, 50.0), "shed_fraction": 0.2}
"""So few tuples come that losing a fifth of them costs less than workers."""
FAST = {"rates": (5000.0, 5000.0), "shed_fraction": 0.2}


def told(story: Story, tau: float, times: int = 4, **changes: Any) -> Any:
    for _ in range(times):
        decision = story.minute(tau, **changes)
    return decision


def test_while_it_lasts_a_full_worker_sheds_if_that_is_cheaper() -> None:
    story = Story(BUDGET)
    decision = told(story, 0.84, budget_seconds=DAY, **SLOW)
    assert brief(decision) == hold(Reason.WITHIN_BUDGET)
    assert "the budget (99.9 % over 1d) lasts: a change costs" in decision.sentence
    decision = story.minute(0.84, budget_seconds=7200.0, **SLOW)
    assert "lasts 120 min more" in decision.sentence
    # It says which plans were considered, and their bills.
    assert decision.stay is not None
    assert any(candidate.bill is not None for candidate in decision.candidates)


def test_while_it_lasts_a_full_worker_is_relieved_where_losing_tuples_costs_more() -> None:
    decision = told(Story(BUDGET), 0.84, budget_seconds=DAY, **FAST)
    assert brief(decision)[:2] == (Kind.ALLOCATE, Reason.FULL)


def test_before_it_runs_out_workers_are_added_whatever_tau_is_and_what_it_costs() -> None:
    story = Story(BUDGET)
    # Workers take 60 s to start, and there are 30 s in reserve; 120 s are waited.
    assert told(story, 0.81, budget_seconds=220.0, **SLOW).kind is Kind.HOLD
    assert story.minute(0.81, budget_seconds=150.0, **SLOW).kind is Kind.HOLD
    assert story.minute(0.81, budget_seconds=90.0, **SLOW).kind is Kind.HOLD
    decision = story.minute(0.81, budget_seconds=30.0, **SLOW)
    assert brief(decision) == (Kind.ALLOCATE, Reason.BUDGET, 8)
    assert "the budget (99.9 % over 1d) lasts 30 s more" in decision.sentence
    assert decision.held_for == 120


def test_one_sample_alone_spends_nothing() -> None:
    story = Story(BUDGET)
    for number in range(12):
        decision = story.minute(0.81, budget_seconds=DAY if number % 2 else 0.0, **SLOW)
        assert decision.kind is Kind.HOLD


def test_a_budget_that_is_spent_asks_for_nothing_while_nothing_is_shed() -> None:
    assert brief(told(Story(BUDGET), 0.79, budget_seconds=0.0, **SLOW)) == hold(Reason.STEADY)
    assert told(Story(BUDGET), 0.81, budget_seconds=0.0, shed_fraction=0.0).kind is Kind.HOLD


@pytest.mark.parametrize("seconds", [None, 0.0, DAY])
def test_without_one_nothing_changes(seconds: float | None) -> None:
    story, plain = Story(SHEDDING), Story(SHEDDING)
    rng = random.Random(1)
    for _ in range(50):
        tau = rng.choice([0.5, 0.81, 0.84, 0.95])
        assert brief(story.minute(tau, budget_seconds=seconds, **SLOW)) == brief(plain.minute(tau, **SLOW))


def test_while_it_is_not_known_a_full_worker_is_relieved_as_without_one() -> None:
    decision = told(Story(BUDGET), 0.84, **SLOW)
    assert brief(decision)[:2] == (Kind.ALLOCATE, Reason.FULL)


def test_quiet_times_hold_as_long_as_it_lasts() -> None:
    quiet = (WeeklyWindow(0, 0, frozenset({"Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"}), ZoneInfo("UTC")),)
    settings = dataclasses.replace(BUDGET, quiet=quiet)
    assert brief(told(Story(settings), 0.84, budget_seconds=DAY, **FAST)) == hold(Reason.QUIET)
    assert brief(told(Story(settings), 0.84, budget_seconds=10.0, **FAST))[:2] == (Kind.ALLOCATE, Reason.BUDGET)


def test_the_limit_on_workers_and_the_modes_hold() -> None:
    few = Story(dataclasses.replace(BUDGET, max_workers=4))
    assert brief(told(few, 0.84, budget_seconds=0.0, **SLOW)) == hold(Reason.AT_LIMIT)
    said = told(Story(dataclasses.replace(BUDGET, rules={Rule.ALLOCATE: Mode.RECOMMEND})), 0.84, budget_seconds=0.0, **SLOW)
    assert (said.kind, said.mode, said.reason) == (Kind.ALLOCATE, Mode.RECOMMEND, Reason.BUDGET)


def test_the_policy_that_looks_ahead_spends_it_too() -> None:
    settings = dataclasses.replace(BUDGET, policy=Policy.PREDICTIVE, window_seconds=(100.0, 100.0))
    assert verdict(told(Story(settings), 0.84, budget_seconds=DAY, **SLOW), Rule.ALLOCATE).reason is Reason.WITHIN_BUDGET
    assert brief(told(Story(settings), 0.84, budget_seconds=10.0, **SLOW))[:2] == (Kind.ALLOCATE, Reason.BUDGET)


def test_a_sample_with_nonsense_is_no_evidence() -> None:
    story = Story(BUDGET)
    decision = told(story, 0.81, budget_seconds=float("nan"), **SLOW)
    assert decision.kind is Kind.HOLD
    assert decision.inputs is not None
    assert any("budget" in problem for problem in decision.inputs.problems)


def test_what_is_remembered_survives_as_json_and_is_read_without_it() -> None:
    story = Story(BUDGET)
    told(story, 0.81, 2, budget_seconds=0.0, **SLOW)
    data = json.loads(json.dumps(story.core.to_json()))
    again = DecisionCore.from_json(BUDGET, data)
    again.handle(sample(180.0, 0.81, budget_seconds=0.0, **SLOW))
    assert again.decide(180.0).reason is Reason.BUDGET
    del data["spending"]
    del data["latest"]["budget_seconds"]
    assert DecisionCore.from_json(BUDGET, data).decide(120.0).kind is Kind.HOLD


def test_the_ledger_says_for_how_long_it_lasted() -> None:
    story, ledger = Story(BUDGET), Ledger()
    ledger.record(told(story, 0.84, budget_seconds=7200.0, **SLOW))
    text = explain(ledger, now=story.now)
    assert "the budget lasts 7200 s" in text
    assert "WithinBudget" in text


# The whole loop.


@pytest.mark.parametrize(("completeness", "reason"), [("99.9 %", "Budget"), ("50 %", None)])
def test_a_join_whose_workers_shed_a_little_grows_when_that_is_more_than_it_may(
    completeness: str, reason: str | None, tmp_path: Path
) -> None:
    """A worker that settles at 0.81 is not full by tau3, and sheds for ever without a budget."""
    counts = [34] * 40
    scaling = SCALING | {"budget": {"completeness": completeness, "over": "1h"}}
    elastic = Elastic(tmp_path, (stream(counts, 1), stream(counts, 2)), scaling=scaling, shedding={"model": "linear"})
    results = elastic.all()
    done = [decision.reason.value for decision in elastic.decisions if decision.kind is not Kind.HOLD]
    assert max(sum(result.counts["shed"]) for result in results) > 0
    if reason is None:
        assert set(done) <= {"Full"}
    else:
        assert done[0] == reason
        assert len(results[-1].held) > 1
        assert sum(sum(result.counts["shed"]) for result in results[-10:]) == 0
        assert any(record.decision.reason.value == reason for record in elastic.autoscaler.ledger)


# For how long it lasts.


def lost(per_epoch: list[tuple[float, float]], seconds: float = 60.0) -> tuple[JoinLosses, float]:
    """(results, lost) of epochs that are so long."""
    losses, at = JoinLosses(Sums(0.0)), 0.0
    for results, missing in per_epoch:
        at += seconds
        losses = losses.plus(at, Sums(at, results - missing, results, results))
    return losses, at


def test_it_lasts_until_what_is_lost_is_more_than_may_be() -> None:
    # 100 epochs without a loss, then 10 % are lost: S + l t = 0.01 (T + r t), of 100 results a minute.
    losses, now = lost([(100.0, 0.0)] * 100 + [(100.0, 10.0)] * 5)
    spent, results = 50.0, 10_500.0
    expected = 60 * (0.01 * results - spent) / (10.0 - 1.0)
    assert losses.seconds_left(0.99, DAY, now) == pytest.approx(expected, rel=0.02)


def test_losses_within_the_share_last_for_ever_and_those_of_before_are_forgotten() -> None:
    losses, now = lost([(1000.0, 0.5)] * 100)
    assert losses.seconds_left(0.999, DAY, now) == DAY
    losses, now = lost([(100.0, 90.0)] * 60 + [(100.0, 0.0)] * 240)
    assert losses.seconds_left(0.999, DAY, now) == 0
    assert losses.seconds_left(0.999, HOUR, now) == HOUR


def test_before_any_result_all_of_it_is_left() -> None:
    assert JoinLosses(Sums(0.0)).seconds_left(0.999, DAY, 5.0) == DAY


def test_a_run_that_loses_much_spends_it(tmp_path: Path) -> None:
    _, results = run(dataclasses.replace(draw(8), fullness=1.5), tmp_path)
    last = results[-1]
    assert last.committed_at is not None
    assert last.losses.budget_seconds(0.999, DAY, last.committed_at) == 0
    assert last.losses.budget_seconds(0.01, DAY, last.committed_at) == DAY
