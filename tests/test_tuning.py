"""Many settings on one traffic, their frontier, and the search for thresholds: ``simulate --set`` and ``tune``."""

from __future__ import annotations

import csv
import json
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner, Result

from streamjoin.cli import main
from streamjoin.cli.variants import simulations
from streamjoin.elastic.settings import Policy, Settings
from streamjoin.manifest import check
from streamjoin.simulation.rivals import StreamJoin
from streamjoin.simulation.run import Outcome, SimulatedJoin, simulate
from streamjoin.simulation.traffic import generate
from streamjoin.simulation.tuning import Thresholds, frontier, grid, split, tune

ROOT = Path(__file__).resolve().parent.parent
EXAMPLE = str(ROOT / "examples" / "scaling.yaml")
SETTINGS = Settings(policy=Policy.THRESHOLDS, max_workers=16, capacity_tuples=100_000, shedding_model="linear")


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, [*arguments])


def outcome(hours: float, lost: float, bill: float = 0.0, came: float = 1e6) -> Outcome:
    return Outcome(name="x", worker_hours=hours, shed_tuples=lost, bill=bill, input_tuples=came)


# The frontier.


def test_on_the_frontier_is_what_nothing_else_beats() -> None:
    for seed in range(200):
        rng = random.Random(seed)
        tried = [outcome(rng.randrange(6), rng.randrange(6)) for _ in range(rng.randrange(1, 12))]
        points = [(one.worker_hours, one.lost_tuples) for one in tried]
        beaten = [any(h <= hours and s <= shed and (h, s) != (hours, shed) for h, s in points) for hours, shed in points]
        assert frontier(tried) == [not one for one in beaten], seed


def test_tuples_without_room_are_lost_also_where_nothing_is_shed() -> None:
    traffic = generate("ramp", days=0.2, step_seconds=30, seed=1, rates=(2000.0, 2000.0))
    few = SimulatedJoin(settings=replace(SETTINGS, max_workers=2, shedding_model="off"), window_seconds=(600.0, 600.0), share=0.0)
    enough = replace(few, settings=replace(few.settings, max_workers=200))
    lost, held = (simulate(join, traffic, StreamJoin(join)) for join in (few, enough))
    assert lost.shed_tuples == held.shed_tuples == held.unheld_tuples == 0
    assert lost.unheld_tuples > 0.3 * lost.input_tuples
    assert lost.bill > lost.worker_hours + lost.unheld_tuples / 1e6 * few.prices.million_shed * 0.99


# The search, over bills that are made up.


class Made:
    """Bills that are a function of the thresholds, of each part its own; and what was asked."""

    def __init__(self, first: tuple[float, float], second: tuple[float, float] | None = None, lost: float = 0.0) -> None:
        self._best = (first, second or first)
        self._lost = lost
        self.asked: list[tuple[bool, Thresholds]] = []

    def __call__(self, candidates: Sequence[Thresholds], *, held_out: bool) -> list[Outcome]:
        self.asked += [(held_out, one) for one in candidates]
        tau1, tau2 = self._best[held_out]
        found = []
        for one in candidates:
            bill = 100 + 100 * abs(one.tau1 - tau1) + 100 * abs(one.tau2 - tau2) + (5 if one.policy is Policy.PREDICTIVE else 0)
            found.append(outcome(bill, self._lost if one.tau2 > 0.8 else 0.0, bill))
        return found


def test_the_search_finds_the_cheapest_to_a_few_hundredths_and_simulates_nothing_twice() -> None:
    made = Made((0.53, 0.72))
    found = tune(SETTINGS, made)
    assert found.proposed is not None
    assert found.proposed.thresholds.tau1 == pytest.approx(0.53, abs=0.021)
    assert found.proposed.thresholds.tau2 == pytest.approx(0.72, abs=0.021)
    assert found.proposed.thresholds.policy is Policy.THRESHOLDS
    searched = [one for held_out, one in made.asked if not held_out]
    assert len(searched) == len(set(searched)) == found.tried
    again = tune(SETTINGS, Made((0.53, 0.72))).proposed
    assert again is not None
    assert again.thresholds == found.proposed.thresholds


def test_what_loses_more_is_proposed_only_where_that_is_allowed() -> None:
    careful, allowed = (tune(SETTINGS, Made((0.5, 0.88), lost=1000.0), loss) for loss in (0.0, 0.001))
    assert careful.proposed is not None
    assert careful.proposed.thresholds.tau2 <= 0.8
    assert allowed.proposed is not None
    assert allowed.proposed.thresholds.tau2 > 0.85
    almost = tune(SETTINGS, Made((0.5, 0.88), lost=1000.0), 0.0009).proposed
    assert almost is not None
    assert almost.thresholds == careful.proposed.thresholds


def test_what_does_not_hold_on_the_rest_is_not_proposed() -> None:
    found = tune(SETTINGS, Made((0.6, 0.7), (SETTINGS.tau1, SETTINGS.tau2)))
    assert (found.proposed, found.vetoed) == (None, 8)
    assert tune(SETTINGS, Made((SETTINGS.tau1, SETTINGS.tau2))).proposed is None, "there is nothing better"


def test_only_what_a_manifest_takes_is_searched() -> None:
    made = Made((0.9, 0.99))
    tune(SETTINGS, made)
    assert {one.policy for one in grid(SETTINGS)} == set(Policy)
    for _, one in made.asked:
        settings = one.applied(SETTINGS)
        assert (settings.tau2, settings.tau3) <= (0.9, 0.95)
        assert settings.tau3 - settings.tau2 >= 0.05 - 1e-9
        assert 5 <= settings.scale_up_after <= 4 * 3600


def test_the_parts_of_a_trace_are_all_of_it() -> None:
    traffic = generate("random", days=1, step_seconds=60, seed=2, rates=(5.0, 7.0))
    for part in (0.05, 0.3, 0.9):
        first, last = split(traffic, part)
        assert last.steps == pytest.approx(part * traffic.steps, abs=1)
        for side in (0, 1):
            assert [*first.rates[side], *last.rates[side]] == traffic.rates[side].tolist()
        assert [*first.skew, *last.skew] == traffic.skew.tolist()


def test_processes_give_the_same_as_one() -> None:
    traffics = [generate(kind, days=0.05, step_seconds=60, seed=1, rates=(300.0, 300.0)) for kind in ("spike", "ramp")]
    join = SimulatedJoin(settings=SETTINGS, window_seconds=(600.0, 600.0), share=0.05)
    joins = [replace(join, settings=replace(SETTINGS, tau0=tau0)) for tau0 in (0.1, 0.2, 0.3)]
    with simulations(traffics, 100) as many, simulations(traffics, 1) as one:
        for index in (0, 1):
            assert [found.to_json() for found in many.run(joins, index)] == [found.to_json() for found in one.run(joins, index)]


# simulate --set.

SHORT = ("--traffic", "spike", "--days", "0.1", "--step", "60s")


def test_many_settings_are_compared_on_the_same_traffic(tmp_path: Path) -> None:
    picture = tmp_path / "frontier.svg"
    sets = ("--set", "scaling.tau3=0.8,0.85,0.9", "--set", "spec.scaling.tau0=0.1,0.3", "--set", "joins.0.window.within=5m")
    done = run("simulate", EXAMPLE, *SHORT, *sets, "--picture", str(picture))
    assert done.exit_code == 0, done.output
    lines = done.stdout.splitlines()
    header = next(line for line in lines if "worker-hours" in line)
    assert header.split()[:3] == ["tau3", "tau0", "within"]
    assert sum("5m" in line for line in lines) == 4
    assert "(as it is)" in done.stdout
    assert "not tried: scaling.tau3=0.8 scaling.tau0=0.1 joins.0.window.within=5m: spec.scaling.tau2: 0.8 must be below tau3" in done.stderr
    assert picture.read_text().startswith("<?xml")
    told = json.loads(run("simulate", EXAMPLE, *SHORT, *sets, "--json").stdout)
    assert (told["event"], len(told["settings"]), len(told["invalid"])) == ("frontier", 5, 2)
    assert len({one["inputTuples"] for one in told["settings"]}) == 1
    hours = [one["workerHours"] for one in told["settings"]]
    assert hours == sorted(hours)
    assert any(one["onFrontier"] for one in told["settings"])
    now = next(one for one in told["settings"] if one["set"] is None)
    alone = json.loads(run("simulate", EXAMPLE, *SHORT, "--json").stdout)["outcomes"][0]
    assert {name: now[name] for name in alone} == alone


@pytest.mark.parametrize(
    ("sets", "message"),
    [
        (["scaling.tau3"], "must be a field and its values"),
        (["scaling.tau3="], "must be a field and its values"),
        (["scaling.tau3=0.8,,0.9"], "must be a field and its values"),
        (["scaling.tau3=0.9", "spec.scaling.tau3=0.8"], "is given twice"),
        (["scaling.tau4=0.9"], "no setting is valid, scaling.tau4=0.9 for one: spec.scaling.tau4"),
        (["scaling.tau1=0.9"], "spec.scaling.tau1: 0.9 must be below tau2 (0.8)"),
        (["joins.window=5m"], "joins.window: spec.joins has 1 elements; name one by its number, from 0"),
        (["scaling.tau3.x=1"], "has no fields"),
        (["scaling.tau3={"], "is no YAML"),
        ([f"scaling.tau3={','.join(str(0.8 + at / 1e5) for at in range(2001))}"], "are 2,001 settings, which must be at most 2,000"),
    ],
)
def test_settings_that_cannot_be_tried_are_refused(sets: list[str], message: str) -> None:
    done = run("simulate", EXAMPLE, *SHORT, *(word for text in sets for word in ("--set", text)))
    assert done.exit_code == 2
    assert message in done.output


def test_options_that_contradict_a_set_are_refused() -> None:
    assert "give one of the two" in run("simulate", EXAMPLE, *SHORT, "--set", "scaling.policy=thresholds", "--policy", "predictive").output
    assert "--explain is of one setting" in run("simulate", EXAMPLE, *SHORT, "--set", "scaling.tau3=0.85", "--explain").output


# tune.


@pytest.fixture
def trace(tmp_path: Path) -> str:
    """Six hours, every second one quiet."""
    path = tmp_path / "trace.csv"
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["time_s", "left_rate", "right_rate"])
        for minute in range(0, 361, 10):
            rate = 4000 if minute % 120 < 60 else 400
            writer.writerow([minute * 60, rate, rate])
    return str(path)


def test_thresholds_are_proposed_that_the_manifest_takes_and_that_cost_what_is_said(trace: str, tmp_path: Path) -> None:
    done = run("tune", EXAMPLE, "--trace", trace, "--step", "60s", "--json")
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    now, proposed = told["present"], told["proposed"]
    for part in ("first", "heldOut", "whole"):
        assert proposed[part]["bill"] < now[part]["bill"]
        assert proposed[part]["shedTuples"] + proposed[part]["unheldTuples"] <= now[part]["shedTuples"] + now[part]["unheldTuples"]
    text = run("tune", EXAMPLE, "--trace", trace, "--step", "60s")
    assert text.exit_code == 0, text.output
    assert "a trace of less than a day says nothing about the other hours" in text.stderr
    pasted = yaml.safe_load(text.stdout[text.stdout.index("scaling:\n  policy") :])
    assert pasted == {"scaling": proposed["scaling"]}
    manifest = yaml.safe_load(Path(EXAMPLE).read_text())
    manifest["spec"]["scaling"] |= pasted["scaling"]
    document = check(manifest)
    assert (document.problems, document.remarks) == ((), ())
    assert ("tau0" in pasted["scaling"]) is (pasted["scaling"]["policy"] != "predictive"), "predictive does not use it"
    tried = tmp_path / "tried.yaml"
    tried.write_text(yaml.safe_dump(manifest))
    simulated = json.loads(run("simulate", str(tried), "--trace", trace, "--step", "60s", "--json").stdout)["outcomes"][0]
    assert simulated == proposed["whole"]


def test_tune_says_what_it_lacks(tmp_path: Path) -> None:
    done = run("tune", EXAMPLE, "--trace", str(tmp_path / "none.csv"))
    assert (done.exit_code, "none.csv: cannot be read" in done.output) == (2, True)
    assert run("tune", EXAMPLE).exit_code == 2
    three = run("tune", str(ROOT / "examples" / "three-streams.yaml"), "--trace", EXAMPLE)
    assert (three.exit_code, "simulate is for joins of two streams" in three.output) == (2, True)
