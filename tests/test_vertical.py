"""More memory instead of more workers: when that is decided, how much, and why not; story by story."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from cases import how_many
from streamjoin.elastic.decision import Decision, Kind, Reason
from streamjoin.elastic.explain import explain
from streamjoin.elastic.ledger import Ledger
from streamjoin.elastic.settings import Mode, Policy, Rule, Settings
from streamjoin.elastic.vertical import STEP, Enlarged, Headroom
from test_decision import SETTINGS, Even, Silent, Story, brief, hold, verdict

GIB = 1 << 30
HEADROOM = Headroom(given=2 * GIB, memory=2 * GIB, most=8 * GIB, cores=1.0, per_executor=1, arriving=0.0)
ENFORCED = replace(SETTINGS, scale_up_after=60, vertical=Mode.ENFORCE, headroom=HEADROOM)


def decided(settings: Settings = ENFORCED, tau: Any = 0.95, workers: int = 4, forecast: Any = None, **changes: Any) -> Decision:
    """By a join that has been as full for a minute."""
    story = Story(settings, workers)
    story.minute(tau, forecast, **changes)
    return story.minute(tau, forecast, **changes)


def but(**changes: Any) -> Settings:
    """With another headroom."""
    return replace(ENFORCED, headroom=replace(HEADROOM, **changes))


def test_a_full_join_gets_memory_where_that_is_cheaper_than_workers() -> None:
    decision = decided()
    assert brief(decision) == (Kind.ENLARGE, Reason.FULL, 4)
    assert (decision.rule, decision.mode, decision.enforced, decision.enlarges) == (Rule.VERTICAL, Mode.ENFORCE, False, True)
    larger, workers = decision.enlargement, verdict(decision, Rule.ALLOCATE)
    assert larger is not None
    assert larger.memory % STEP == 0
    assert larger.prospect.tau_max <= ENFORCED.level < larger.prospect.tau_max * 1.2
    assert (workers.kind, workers.target) == (Kind.ALLOCATE, 9)
    (of_workers,) = (candidate.bill for candidate in decision.candidates if candidate.workers == 9)
    assert of_workers is not None
    assert larger.bill.total < of_workers.total
    assert larger.bill.moving == larger.bill.pause == larger.bill.change == 0
    assert decision.prediction == larger.prospect
    told = f"with {larger.words} 4 workers should be filled to 0.41 at most, for 4.6 worker-hours against 9.51, and nothing moves"
    assert told in decision.sentence


def test_the_decision_is_told_with_its_numbers_and_survives_as_json() -> None:
    decision = decided()
    assert Decision.from_json(json.loads(json.dumps(decision.to_json()))) == decision
    ledger = Ledger()
    ledger.record(decision)
    told = explain(ledger, now=decision.at)
    assert "Give 4 workers more memory: tau of the fullest worker (0.95)" in told
    assert "4 with 3584Mi" in told


def test_two_steps_of_one_plan_are_two_records() -> None:
    ledger, first = Ledger(), decided()
    second = decided(but(memory=3 * GIB))
    ledger.record(first)
    ledger.record(second)
    assert len(ledger) == 2


def test_where_memory_is_only_recommended_workers_are_added_and_it_says_so() -> None:
    decision = decided(replace(ENFORCED, vertical=Mode.RECOMMEND))
    assert brief(decision) == (Kind.ALLOCATE, Reason.FULL, 9)
    assert decision.enforced
    assert decision.sentence.endswith("for 4.6 worker-hours against 9.51, and nothing moves; memory is only recommended")
    assert verdict(decision, Rule.VERTICAL).mode is Mode.RECOMMEND
    assert decision.enlargement is not None


@pytest.mark.parametrize("settings", [replace(ENFORCED, vertical=Mode.OFF), replace(ENFORCED, headroom=None)])
def test_where_it_is_off_nothing_is_said_of_it(settings: Settings) -> None:
    decision = decided(settings)
    assert brief(decision) == (Kind.ALLOCATE, Reason.FULL, 9)
    assert all(said.rule is not Rule.VERTICAL for said in decision.verdicts)
    assert decision.enlargement is None


@pytest.mark.parametrize(
    ("settings", "reason", "words"),
    [
        (but(unable="the API server has no pods/resize"), Reason.UNABLE, "while they run: the API server has no pods/resize"),
        (but(most=3 * GIB), Reason.AT_LIMIT, "3Gi of memory, the most allowed (spec.workers.maxMemory), would leave it at 0.50"),
        (but(memory=8 * GIB), Reason.AT_LIMIT, "8Gi of memory, the most allowed"),
    ],
)
def test_where_memory_cannot_be_had_workers_are_added(settings: Settings, reason: Reason, words: str) -> None:
    decision = decided(settings)
    assert brief(decision) == (Kind.ALLOCATE, Reason.FULL, 9)
    said = verdict(decision, Rule.VERTICAL)
    assert (said.kind, said.reason) == (Kind.HOLD, reason)
    assert words in said.sentence


def test_where_memory_costs_more_workers_are_added() -> None:
    """One key range is full, and a worker more would halve it."""
    dear = replace(but(given=24 * GIB, memory=24 * GIB, most=96 * GIB, cores=0.1), rules={Rule.REPLAN: Mode.OFF})
    decision = decided(dear, [0.95, 0.2, 0.2, 0.2], forecast=Even(2.0))
    assert brief(decision) == (Kind.ALLOCATE, Reason.FULL, 5)
    assert verdict(decision, Rule.VERTICAL).reason is Reason.NOT_WORTH
    assert "for 8.35 worker-hours against 5.5" in verdict(decision, Rule.VERTICAL).sentence


def test_without_a_forecast_of_what_workers_would_cost_they_are_added() -> None:
    decision = decided(forecast=Silent())
    assert decision.kind is Kind.ALLOCATE
    assert verdict(decision, Rule.VERTICAL).reason is Reason.NO_FORECAST


def test_a_join_that_falls_behind_gets_workers_whether_or_not_it_is_full() -> None:
    story = Story(ENFORCED)
    for backlog, tau in ((1e4, 0.95), (2e4, 0.95), (3e4, 0.95)):
        decision = story.minute(tau, epoch_seconds=5.0, backlog_records=backlog)
    assert decision.kind is Kind.ALLOCATE
    assert verdict(decision, Rule.VERTICAL).reason is Reason.BEHIND
    story = Story(ENFORCED)
    for backlog in (1e4, 2e4, 3e4):
        decision = story.minute(0.3, epoch_seconds=5.0, backlog_records=backlog)
    assert (decision.rule, decision.kind) == (Rule.KEEP_UP, Kind.ALLOCATE)
    assert verdict(decision, Rule.VERTICAL).reason is Reason.STEADY


def test_workers_that_start_are_waited_for() -> None:
    decision = decided(starting=1)
    assert decision.kind is Kind.ALLOCATE
    assert verdict(decision, Rule.VERTICAL).reason is Reason.STARTING


def test_where_no_more_workers_are_allowed_memory_relieves_a_full_one() -> None:
    decision = decided(replace(ENFORCED, max_workers=4))
    assert brief(decision) == (Kind.ENLARGE, Reason.FULL, 4)
    assert "but 4 workers are the most allowed (4); with" in decision.sentence
    recommended = decided(replace(ENFORCED, max_workers=4, vertical=Mode.RECOMMEND))
    assert (brief(recommended), recommended.enlarges) == ((Kind.ENLARGE, Reason.FULL, 4), False)


def test_where_more_workers_would_not_help_memory_does() -> None:
    class OneKey(Even):
        def at(self, workers: int) -> Any:
            return replace(super().at(workers) or pytest.fail("it has one"), tau_max=0.95)

    decision = decided(tau=[0.95, 0.2, 0.2, 0.2], forecast=OneKey(1.55))
    assert brief(decision) == (Kind.ENLARGE, Reason.FULL, 4)


def test_who_must_not_add_workers_does_not_give_them_memory_either() -> None:
    decision = decided(replace(ENFORCED, rules={Rule.ALLOCATE: Mode.RECOMMEND}))
    assert not decision.enlarges
    assert not decision.enforced
    assert decision.sentence.endswith("memory is only recommended")
    assert decided(replace(ENFORCED, rules={Rule.ALLOCATE: Mode.OFF})).kind is Kind.HOLD


def test_limits_on_workers_are_followed_by_workers() -> None:
    assert brief(decided(replace(ENFORCED, min_workers=6), tau=0.5)) == (Kind.ALLOCATE, Reason.BELOW_FLOOR, 6)


def test_a_join_with_room_is_left_alone_and_an_idle_one_still_loses_workers() -> None:
    assert brief(decided(tau=0.5)) == hold(Reason.STEADY)
    story = Story(ENFORCED, workers=8)
    decisions = [story.minute(0.05) for _ in range(14)]
    assert Kind.DEALLOCATE in {decision.kind for decision in decisions}


@pytest.mark.parametrize("policy", list(Policy))
def test_by_each_policy_the_step_is_so_large_that_it_ends_what_called_for_it(policy: Policy) -> None:
    story = Story(replace(ENFORCED, policy=policy))
    found = [story.minute(0.9 + minute / 100) for minute in range(4)]
    (decision, *_) = [decision for decision in found if decision.kind is not Kind.HOLD]
    assert decision.enlarges
    assert decision.enlargement is not None
    assert decision.enlargement.prospect.tau_max <= ENFORCED.tau2


@hypothesis_settings(max_examples=how_many(200), deadline=None)
@given(
    st.integers(1, 64).map(lambda number: number * GIB // 2),
    st.integers(1, 512).map(lambda number: number * GIB // 4),
    st.floats(1.0, 8.0),
    st.integers(1, 8),
    st.floats(0.0, 4e9),
)
def test_the_least_memory_is_enough_and_a_step_less_is_not(memory: int, most: int, factor: float, of_pod: int, arriving: float) -> None:
    headroom = Headroom(given=memory, memory=memory, most=most, cores=1.0, per_executor=of_pod, arriving=arriving)
    found, needed = headroom.least_for(factor), factor * headroom.capacity(memory)
    if found is None:
        assert most <= memory or headroom.capacity(most) < needed
        return
    assert memory < found <= most
    assert headroom.capacity(found) >= needed
    less = (found - 1) // STEP * STEP
    assert less <= memory or headroom.capacity(less) < needed
    assert headroom.price(found, 8.0) > headroom.price(memory, 8.0) == 1


def test_what_was_decided_counts_for_its_manifest_and_no_other() -> None:
    larger = Enlarged(given=2 * GIB, most=8 * GIB, memory=3 * GIB)
    assert larger.counts(is_enforced=True, given=2 * GIB, most=8 * GIB)
    assert larger.counts(is_enforced=True, given=2 * GIB, most=16 * GIB)
    assert not larger.counts(is_enforced=False, given=2 * GIB, most=8 * GIB)
    assert not larger.counts(is_enforced=True, given=4 * GIB, most=8 * GIB)
    assert not larger.counts(is_enforced=True, given=2 * GIB, most=2 * GIB)
    assert not larger.counts(is_enforced=True, given=2 * GIB, most=None)
    assert Enlarged.from_json(json.loads(json.dumps(larger.to_json()))) == larger
