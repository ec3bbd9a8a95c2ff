"""The ledger, its explanation, and what a change is worth."""

from __future__ import annotations

import json
import math
import random
import re
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamjoin.elastic.arbitration import Bill, Prices, bill
from streamjoin.elastic.core import DecisionCore
from streamjoin.elastic.decision import Decision, Kind, Reason
from streamjoin.elastic.events import PlanApplied
from streamjoin.elastic.explain import explain
from streamjoin.elastic.forecast import AnalyticForecast
from streamjoin.elastic.ledger import Ledger, Realised
from streamjoin.elastic.sample import Sample
from streamjoin.elastic.settings import Mode, Policy, Settings

SETTINGS = Settings(policy=Policy.THRESHOLDS, scale_up_after=60, scale_down_after=300, max_workers=8, capacity_tuples=1000)


def sample(at: float, tau: float, core: DecisionCore, **changes: Any) -> Sample:
    held = 500 * tau * core.workers
    given: dict[str, Any] = {
        "taken_at": at,
        "generation": core.generation,
        "tau": dict.fromkeys(range(core.workers), tau),
        "workers": core.workers,
        "rates": (50.0, 50.0),
        "held": (held, held),
        "epoch_seconds": 0.1,
        "backlog_records": 0.0,
        "shed_fraction": 0.0,
    }
    return Sample(**{**given, **changes})


def forecast(tau: float, workers: int) -> AnalyticForecast:
    """Of an equality, now ``tau`` full."""
    held = 500 * tau * workers
    return AnalyticForecast(left_tuples=held, right_tuples=held, capacity_tuples=1000, workers=workers, share=0.0)


def told(taus: list[float], settings: Settings = SETTINGS) -> tuple[DecisionCore, Ledger]:
    core, ledger = DecisionCore(settings, at=0.0, generation=1, workers=4), Ledger()
    for minute, tau in enumerate(taus, start=1):
        core.handle(sample(60.0 * minute, tau, core))
        ledger.record(core.decide(60.0 * minute, forecast(tau, core.workers)))
    return core, ledger


def lines(ledger: Ledger) -> list[tuple[str, str, int, float, float]]:
    return [(record.decision.kind.value, record.decision.reason.value, record.count, record.first_at, record.last_at) for record in ledger]


def test_what_is_said_again_is_counted() -> None:
    _, ledger = told([0.5, 0.55, 0.6, 0.95, 0.96, 0.97, 0.5])
    assert lines(ledger) == [
        ("HOLD", "Steady", 3, 60, 180),
        ("HOLD", "Waiting", 1, 240, 240),
        ("ALLOCATE", "Full", 2, 300, 360),
        ("HOLD", "Steady", 1, 420, 420),
    ]
    # Of a hold the last numbers are kept, of an action those it was decided by.
    holds, full = (list(ledger)[index].decision.inputs for index in (0, 2))
    assert holds is not None
    assert holds.tau_max == 0.6
    assert full is not None
    assert full.tau_max == 0.96


def test_another_number_of_workers_is_another_record() -> None:
    _, ledger = told([0.95, 0.95, 1.1], replace(SETTINGS, max_workers=20))
    assert [record.decision.target for record in ledger] == [4, 9, 10]


def test_what_came_true_completes_the_record_that_led_there() -> None:
    core, ledger = told([0.85, 0.92, 0.92])
    before = list(ledger)[-1]
    assert before.decision.kind is Kind.ALLOCATE
    assert not ledger.realised(Realised(170.0, 1, 0.5, 10.0, 1.0))
    assert ledger.realised(Realised(200.0, 2, None, 1234.0, 1.5))
    core.handle(PlanApplied(200.0, 2, before.decision.target))
    core.handle(sample(240.0, 0.46, core))
    ledger.record(core.decide(240.0))
    # tau is known only now.
    assert ledger.realised(Realised(240.0, 2, 0.46, 1234.0, 1.5))
    assert before.realised is not None
    assert (before.realised.tau_max, before.realised.moved_tuples, before.realised.generation) == (0.46, 1234.0, 2)
    assert len([record for record in ledger if record.realised]) == 1
    # A plan that nothing decided, such as one that was put by hand, has no record.
    assert not ledger.realised(Realised(300.0, 3, 0.4, 0.0, 0.0))


def test_a_recommendation_never_came_true() -> None:
    _, ledger = told([0.95, 0.95], replace(SETTINGS, mode=Mode.RECOMMEND))
    assert list(ledger)[-1].decision.kind is Kind.ALLOCATE
    assert not ledger.realised(Realised(300.0, 2, 0.4, 0.0, 0.0))


def test_the_ledger_is_bounded_keeps_actions_longest_and_survives() -> None:
    rng = random.Random(3)
    core, ledger = DecisionCore(SETTINGS, at=0.0, generation=1, workers=4), Ledger(limit=40)
    for minute in range(1, 600):
        tau = rng.choice([0.1, 0.5, 0.95, 0.95])
        core.handle(sample(60.0 * minute, tau, core))
        decision = core.decide(60.0 * minute, forecast(tau, core.workers))
        ledger.record(decision)
        if decision.enforced and rng.random() < 0.3:
            core.handle(PlanApplied(60.0 * minute, core.generation + 1, decision.target))
            ledger.realised(Realised(60.0 * minute, core.generation, 0.4, 5.0, 1.0))
        assert len(ledger) <= 40
        records = list(ledger)
        assert all(a.last_at <= b.first_at for a, b in pairwise(records))
        assert all(a.realised is not None or a.decision.signature != b.decision.signature for a, b in pairwise(records))
    assert ledger.forgotten > 0
    assert any(record.decision.kind is not Kind.HOLD for record in ledger)
    data = json.loads(json.dumps(ledger.to_json(), allow_nan=False))
    again = Ledger.from_json(data)
    assert list(again) == list(ledger)
    assert again.to_json() == ledger.to_json()
    with pytest.raises(ValueError, match=r"the ledger cannot be read .*remove it"):
        Ledger.from_json({**data, "version": 0})
    with pytest.raises(ValueError, match="limit: 0"):
        Ledger(0)


def test_the_explanation_says_what_was_decided_why_and_what_came_true() -> None:
    core, ledger = told([0.5, 0.95, 0.95])
    target = list(ledger)[-1].decision.target
    ledger.realised(Realised(190.0, 2, 0.48, 1900.0, 1.25))
    text = explain(ledger, limit=10, now=200.0)
    assert "allocate" in text
    assert f"4 -> {target}" in text
    assert f"Go from 4 to {target} workers: tau of the fullest worker (0.95) has been at or above tau3 (0.9) for 60 s" in text
    assert "deallocate: Steady: the mean tau (0.95) is above tau0 (0.2)." in text
    assert "Plan 2: tau was expected to be 0.47 and is 0.48; 1.9k tuples moved" in text
    assert "tau3 0.9" in text
    assert text.endswith("\n")
    assert len(text.splitlines()[0].split("  ")) > 5
    assert "2 older ones" in explain(ledger, limit=1, now=200.0)
    assert explain(Ledger(), now=0.0) == "Nothing has been decided yet.\n"
    assert max(map(len, text.splitlines())) < 200
    # What could not be believed is said.
    core.handle(sample(240.0, math.nan, core))
    ledger.record(core.decide(240.0))
    assert "tau of 4 of 4 workers is missing" in explain(ledger, now=240.0)
    core.handle(sample(300.0, 0.1, core, unconfirmed="Prometheus is away"))
    ledger.record(core.decide(300.0))
    assert "Nobody confirms it: Prometheus is away." in explain(ledger, now=300.0)


def order(at: float, sentence: str, kind: Kind = Kind.HOLD) -> Decision:
    return Decision(
        at=at,
        kind=kind,
        rule=None,
        reason=Reason.ORDERED,
        sentence=sentence,
        generation=1,
        workers=4,
        target=4,
        mode=Mode.ENFORCE,
        inputs=None,
        age_seconds=None,
    )


def test_orders_are_told_one_by_one_and_kept_longer_than_holds() -> None:
    core, ledger = DecisionCore(SETTINGS, at=0.0, generation=1, workers=4), Ledger(20)
    ledger.record(order(1.0, "workers.max 8 -> 12, by ann"))
    ledger.record(order(2.0, "workers.max 12 -> 9, by bob"))
    assert [record.count for record in ledger] == [1, 1]
    for minute in range(1, 80):
        core.handle(sample(60.0 * minute, 0.5, core, unconfirmed="away" if minute % 2 else None))
        ledger.record(core.decide(60.0 * minute))
    assert (len(ledger), ledger.forgotten > 0) == (20, True)
    text = explain(ledger, limit=2, now=4800.0)
    assert "What was ordered, and by whom:\n  80 min ago: workers.max 8 -> 12, by ann.\n  80 min ago: workers.max 12 -> 9, by bob." in text
    again = Ledger.from_json(json.loads(json.dumps(ledger.to_json(), allow_nan=False)))
    assert list(again) == list(ledger)


def test_the_documentation_explains_every_reason() -> None:
    text = (Path(__file__).resolve().parent.parent / "docs" / "scaling.md").read_text()
    acts, holds = text.split("| reason to act |")[1].split("| reason to hold |")
    explained = set(re.findall(r"`([A-Z][A-Za-z]+)`", acts)) | set(re.findall(r"`([A-Z][A-Za-z]+)`", holds.split("##")[0]))
    assert explained == {reason.value for reason in Reason}


# What a change is worth.

PRICES = Prices(
    horizon_seconds=7200, gib=0.5, bytes_per_second=2**20, switch_seconds=2.0, paused=3.0, million_shed=4.0, growth=0.0, tuple_bytes=1024
)


def made(**changes: Any) -> Bill:
    given: dict[str, Any] = {
        "workers": 4,
        "tau_max": 0.5,
        "tau_mean": 0.5,
        "moved_tuples": 4 * 1024 * 1024,
        "rate": 1000.0,
        "changes": True,
        "settings": replace(SETTINGS, shedding_model="linear"),
        "prices": PRICES,
    }
    return bill(**{**given, **changes})


def test_each_term_is_quantity_times_price() -> None:
    made_bill = made()
    assert made_bill.workers == 8
    assert made_bill.moved_bytes == 4 * 2**30
    assert made_bill.moving == pytest.approx(4 * 0.5)
    assert made_bill.pause_seconds == pytest.approx(2 + 4 * 2**30 / (4 * 2**20))
    assert made_bill.pause == pytest.approx(made_bill.pause_seconds / 3600 * 4 * 3)
    assert made_bill.shed == 0
    assert made_bill.change == 0.5
    assert made_bill.total == pytest.approx(8 + 2 + made_bill.pause + 0.5)
    assert made(changes=False, moved_tuples=0).total == 8


def test_the_expected_loss_is_that_of_the_level_at_which_shedding_settles() -> None:
    # tau * (1 - (h - 0.8) / 0.2) = h: 0.9 settles at 4.5 / 5.5.
    loss = 1 - (4.5 / 5.5) / 0.9
    assert made(tau_max=0.9, tau_mean=0.9).shed_tuples == pytest.approx(loss * 1000 * 7200, rel=1e-6)
    assert made(tau_max=0.9, tau_mean=0.9).shed == pytest.approx(loss * 7.2 * 4, rel=1e-6)
    # One of four is as full as that, and the others are not.
    assert made(tau_max=0.9, tau_mean=0.45).shed_tuples == pytest.approx(loss / 4 * 1000 * 7200, rel=1e-6)
    assert made(tau_max=0.9, tau_mean=0.9, rate=None).shed == 0
    # Growth is expected before it comes.
    assert made(tau_max=0.75, tau_mean=0.75).shed == 0
    assert made(tau_max=0.75, tau_mean=0.75, prices=replace(PRICES, growth=0.2)).shed == pytest.approx(made(tau_max=0.9, tau_mean=0.9).shed)
    # Where nothing is shed, what no worker has room for counts as lost.
    assert made(tau_max=1.25, tau_mean=1.25, settings=SETTINGS).shed_tuples == pytest.approx(0.2 * 1000 * 7200)
    assert made(tau_max=0.95, tau_mean=0.95, settings=SETTINGS).shed_tuples == 0


@given(st.integers(1, 1000), st.floats(0, 50), st.floats(0, 1), st.floats(0, 1e12), st.floats(0, 1e12), st.booleans())
def test_bills_are_finite_and_fewer_bytes_are_cheaper(workers: int, tau: float, part: float, one: float, other: float, sheds: bool) -> None:
    settings = replace(SETTINGS, shedding_model="quadratic" if sheds else "off")
    few, many = (
        made(workers=workers, tau_max=tau, tau_mean=tau * part, moved_tuples=moved, rate=1e6, settings=settings, prices=Prices())
        for moved in sorted((one, other))
    )
    for term in (few.workers, few.moving, few.pause, few.shed):
        assert 0 <= term < math.inf
    assert few.total <= many.total
    assert few.shed_tuples <= 1e6 * 3600


@pytest.mark.parametrize("changes", [{"gib": -1.0}, {"growth": math.nan}, {"bytes_per_second": 0.0}])
def test_impossible_prices_are_refused(changes: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=f"prices.{next(iter(changes))}"):
        Prices(**changes)


def test_a_replan_that_moves_too_much_is_not_made() -> None:
    def decided(prices: Prices) -> Decision:
        settings = replace(SETTINGS, shedding_model="linear")
        core = DecisionCore(settings, at=0.0, generation=1, workers=4, prices=prices)
        for minute in range(1, 4):
            at = 60.0 * minute
            core.handle(replace(sample(at, 0.3, core, rates=(5000.0, 5000.0)), tau={0: 0.79, 1: 0.2, 2: 0.2, 3: 0.2}))
        uneven = replace(forecast(0.3475, 4), tau_max=0.79)
        return core.decide(180.0, uneven)

    assert decided(Prices()).kind is Kind.REPLAN
    refused = decided(Prices(tuple_bytes=1e11))
    assert refused.kind is Kind.HOLD
    assert refused.reason.value == "NotWorth"
    assert refused.stay is not None
    assert refused.candidates[0].bill is not None
    assert refused.candidates[0].bill.total > refused.stay.total
