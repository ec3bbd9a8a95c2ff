"""The policy ``esj``: the sequences of "Adapting to the varying workload", told minute by minute.

The join of these stories holds ``demand`` workers' capacities, shared out evenly, as in ESJ's chain.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from streamjoin.cli import main
from streamjoin.elastic.core import DecisionCore
from streamjoin.elastic.decision import Decision, Kind, Reason, Verdict
from streamjoin.elastic.events import LimitsSet, PlanApplied, Resumed, Suspended
from streamjoin.elastic.forecast import AnalyticForecast
from streamjoin.elastic.sample import Sample
from streamjoin.elastic.settings import Mode, Policy, Rule, Settings
from streamjoin.manifest.validate import load

ROOT = Path(__file__).resolve().parent.parent
SETTINGS = Settings(
    tau0=0.2,
    tau1=0.4,
    tau2=0.8,
    tau3=0.9,
    scale_up_after=60,
    scale_down_after=300,
    min_workers=2,
    max_workers=12,
    capacity_tuples=1000,
    policy=Policy.ESJ,
)


class Chain:
    """A join under a core: what it holds, and each plan as soon as it is decided."""

    def __init__(self, workers: int, settings: Settings = SETTINGS) -> None:
        self.core = DecisionCore(settings, at=0.0, generation=1, workers=workers)
        self.now = 0.0
        self.told: list[Decision] = []

    def tau(self, demand: float) -> float:
        return demand / self.core.workers

    def minute(self, demand: float, **changes: Any) -> Decision:
        """One sample; what is decided is carried out."""
        core = self.core
        self.now += 60
        tau = changes.pop("tau", self.tau(demand))
        taus = tau if isinstance(tau, dict) else dict.fromkeys(range(core.workers), tau)
        held = 500.0 * demand
        given: dict[str, Any] = {
            "taken_at": self.now,
            "generation": core.generation,
            "tau": taus,
            "workers": core.workers,
            "rates": (10.0, 10.0),
            "held": (held, held),
            "epoch_seconds": 0.1,
            "backlog_records": 0.0,
            "shed_fraction": 0.0,
        }
        core.handle(Sample(**{**given, **changes}))
        core.validate_state()
        forecast = AnalyticForecast(left_tuples=held, right_tuples=held, capacity_tuples=1000, workers=core.workers, share=0.0)
        decision = core.decide(self.now, forecast)
        if decision.enforced:
            self.told.append(decision)
            core.handle(PlanApplied(self.now, core.generation + 1, decision.target))
            core.validate_state()
        return decision

    def workers_over(self, *demands: float) -> list[int]:
        """The workers after each minute."""
        found = []
        for demand in demands:
            self.minute(demand)
            found.append(self.core.workers)
        return found


def said(decision: Decision, rule: Rule) -> Verdict:
    return next(verdict for verdict in decision.verdicts if verdict.rule is rule)


def test_workers_are_added_one_at_a_time_until_tau_falls_to_tau1_around() -> None:
    chain = Chain(2)
    # 1.9 capacities: 0.95 on two workers. 3: 0.63, 4: 0.475, 5: 0.38, which is around tau1.
    assert chain.workers_over(1.9, 1.9, 1.9, 1.9, 1.9, 1.9, 1.9) == [2, 3, 4, 5, 5, 5, 5]
    assert {decision.reason for decision in chain.told} == {Reason.FULL}
    assert "has been at or above tau3 (0.9) for 60 s: one worker more, 3, where it should be 0.63" in chain.told[0].sentence
    assert "has reached tau3 (0.9) and is not down at about tau1 (0.44) yet: one worker more, 4" in chain.told[1].sentence


def test_the_wait_at_tau3_begins_anew_after_a_dip() -> None:
    assert Chain(2).workers_over(1.9, 1.7, 1.9, 1.7, 1.9) == [2] * 5


def test_nothing_is_done_between_tau0_and_tau3() -> None:
    assert set(Chain(4).workers_over(*[0.84, 2.0, 3.4] * 20)) == {4}


def test_adding_ends_when_there_are_no_more_workers() -> None:
    chain = Chain(10)
    assert chain.workers_over(*[11.0] * 6) == [10, 11, 12, 12, 12, 12]
    decision = chain.minute(11.0)
    assert (decision.kind, decision.reason) == (Kind.HOLD, Reason.AT_LIMIT)
    assert "12 workers are the most allowed (12)" in decision.sentence


def test_workers_that_do_not_lower_tau_are_added_all_the_same() -> None:
    """One key fills a worker: the paper asks for nothing but tau."""
    chain = Chain(4)
    for _ in range(20):
        chain.minute(2.0, tau=0.95)
    assert chain.core.workers == 12


def test_workers_are_removed_one_at_a_time_until_tau_rises_to_tau1_around() -> None:
    chain = Chain(8)
    # 1.2 capacities: 0.15 on eight workers for five minutes. 3 would be 0.4, and 2 above tau1.
    assert chain.workers_over(*[1.2] * 14) == [8] * 5 + [7, 6, 5, 4, 3] + [3] * 4
    assert {decision.reason for decision in chain.told} == {Reason.UNUSED}
    assert "at or below tau0 (0.2) for 300 s: one worker less, 7" in chain.told[0].sentence
    assert "is not up at about tau1 (0.44) yet: one worker less, 6" in chain.told[1].sentence


def test_removing_ends_at_the_first_number_of_workers() -> None:
    chain = Chain(8, replace(SETTINGS, min_workers=5))
    assert chain.workers_over(*[0.4] * 12)[-4:] == [5] * 4
    assert "as many as there were at first" in said(chain.minute(0.4), Rule.DEALLOCATE).sentence


def test_the_first_number_of_workers_is_the_floor_whatever_the_manifest_says() -> None:
    text = (ROOT / "examples" / "scaling.yaml").read_text()
    esj = load(text.replace("policy: thresholds", "policy: esj")).spec
    assert Settings.of(esj, 5).policy is Policy.ESJ
    assert [Settings.of(esj, first).min_workers for first in (0, 5, 99)] == [1, 5, esj.workers.max]
    assert Settings.of(load(text).spec, 5).min_workers == 1


def test_a_wave_that_passes_while_workers_are_added_ends_the_adding() -> None:
    assert Chain(2).workers_over(1.9, 1.9, 1.2, 1.2) == [2, 3, 3, 3]


def test_a_wave_that_comes_while_workers_are_removed_ends_the_removing() -> None:
    assert Chain(8).workers_over(*[1.2] * 7, 3.0, 3.0, 1.4, 1.4) == [8] * 5 + [7, 6] + [6] * 4


def test_shedding_may_keep_tau_below_tau3_for_ever() -> None:
    """tau is r / W of what is held: ``thresholds`` counts what is shed as well, and grows."""
    sheds = replace(SETTINGS, shedding_model="linear")
    assert set(Chain(4, sheds).workers_over(*[3.5] * 60)) == {4}
    assert Chain(4, replace(sheds, policy=Policy.THRESHOLDS)).workers_over(*[3.5] * 3)[-1] > 4


def test_it_is_the_fullest_worker_that_counts_both_ways() -> None:
    up = Chain(4)
    for _ in range(2):
        up.minute(1.85, tau={0: 0.95, 1: 0.3, 2: 0.3, 3: 0.3})
    assert up.core.workers == 5
    down = Chain(4)
    for _ in range(10):
        decision = down.minute(0.6, tau={0: 0.3, 1: 0.1, 2: 0.1, 3: 0.1})
    assert said(decision, Rule.DEALLOCATE).reason is Reason.STEADY
    assert down.told == []


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"shed_fraction": 0.1}, Reason.SHEDDING),
        ({"unconfirmed": "nobody answers"}, Reason.UNCONFIRMED),
        ({"rates": (None, 1.0)}, Reason.BAD_SAMPLE),
        ({"starting": 1}, Reason.STARTING),
    ],
)
def test_no_worker_goes_by_a_sample_that_speaks_against_it(changes: dict[str, Any], reason: Reason) -> None:
    chain = Chain(8)
    chain.workers_over(*[1.2] * 6)
    assert chain.core.workers == 7
    decision = chain.minute(1.2, **changes)
    assert said(decision, Rule.DEALLOCATE).reason is reason
    assert chain.core.workers == 7


def test_the_rules_that_esj_does_not_have_are_off_unless_they_are_named() -> None:
    assert [SETTINGS.mode_of(rule) for rule in (Rule.ALLOCATE, Rule.REPLAN, Rule.KEEP_UP)] == [Mode.ENFORCE, Mode.OFF, Mode.OFF]
    assert replace(SETTINGS, rules={Rule.KEEP_UP: Mode.RECOMMEND}).mode_of(Rule.KEEP_UP) is Mode.RECOMMEND
    recommends = Chain(2, replace(SETTINGS, mode=Mode.RECOMMEND))
    for _ in range(4):
        decision = recommends.minute(1.9)
    assert (decision.kind, decision.mode, decision.target) == (Kind.ALLOCATE, Mode.RECOMMEND, 3)


def test_orders_and_pauses_end_what_is_under_way() -> None:
    chain = Chain(2)
    chain.workers_over(1.9, 1.9)
    chain.core.handle(LimitsSet(chain.now, 1, 1))
    chain.core.handle(PlanApplied(chain.now, chain.core.generation + 1, 1))
    chain.core.handle(LimitsSet(chain.now, None, None))
    assert chain.workers_over(0.6, 0.6) == [2, 2]
    paused = Chain(2)
    paused.workers_over(1.9, 1.9)
    paused.core.handle(Suspended(paused.now))
    paused.core.handle(Resumed(paused.now))
    assert paused.workers_over(1.9, 1.9) == [3, 3]


def test_what_is_under_way_survives_a_restart() -> None:
    chain = Chain(2)
    chain.workers_over(1.9, 1.9)
    chain.core = DecisionCore.from_json(SETTINGS, chain.core.to_json())
    assert chain.workers_over(1.9) == [4]


def test_constant_load_goes_one_way_only() -> None:
    for demand in (0.1, 0.5, 1.0, 1.5, 2.0, 3.0, 5.0, 8.0, 11.0, 20.0):
        for workers in (2, 5, 12):
            chain = Chain(workers)
            chain.workers_over(*[demand] * 40)
            assert len({decision.kind for decision in chain.told}) <= 1, f"{demand} on {workers}: {[one.sentence for one in chain.told]}"


def test_simulate_plays_it() -> None:
    arguments = ["simulate", str(ROOT / "examples" / "scaling.yaml"), "--traffic", "spike", "--days", "1", "--policy", "esj", "--explain"]
    found = CliRunner().invoke(main, arguments)
    assert found.exit_code == 0, found.output
    assert "16 -> 15" in found.output
