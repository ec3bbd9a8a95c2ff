"""The estimate of how complete results are: by arithmetic done by hand, and against DuckDB over all input of runs that lose some."""

from __future__ import annotations

import dataclasses
import json
import math
import random
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from cases import how_many, some
from harness import manifest_text
from lossy_runs import Case, draw, run
from streamjoin.cli import main
from streamjoin.cli.completeness import completeness_record, completeness_text, least, percent
from streamjoin.cli.exits import Exit
from streamjoin.controlplane.driver import Driver
from streamjoin.elastic.completeness import (
    DAY,
    FINE_SECONDS,
    GROUPS,
    HOUR,
    Counted,
    Epoch,
    Estimate,
    Losses,
    Part,
)
from streamjoin.elastic.pairs import MOST_REMEMBERED, Entry, Tuples, inside, remembered
from streamjoin.runner.inline import InlineRunner
from streamjoin.state.checkpoint import Checkpoint
from streamjoin.state.storage import ObjectStorage

SEEDS = (2, 5, 8, 15, 20, 29, 31, 40)
"""An equality, a band and an inequality, along a chain, by grids and by areas; with nothing late and with nothing shed."""
JOIN = {"j": Counted((0, 1))}


def epoch(at: float, left: Tuples, right: Tuples, held: tuple[float, float], output: int, **more: Any) -> Epoch:
    groups = more.pop("groups", {"j": [[output / GROUPS] * GROUPS] * 2})
    part = Part((Entry(left), Entry(right)), held, {"j": output}, **more)
    return Epoch(at, 1, {0: part}, groups)


def even(kept: float, came: float | None = None, every: float | None = None) -> Tuples:
    came = kept if came is None else came
    return Tuples(came if every is None else every, came, kept)


def steady(number: int, *kept: Tuples) -> Epoch:
    """Epoch ``number`` of a join that holds tuples for ten epochs, and of whose pairs, or triples, each thousandth is a result."""
    before = min(10, number)
    held = tuple(tuples.kept * min(10, number + 1) for tuples in kept)
    pairs = math.prod(tuples.kept for tuples in kept) * ((before + 1) ** len(kept) - before ** len(kept))
    return Epoch(float(number), 1, {0: Part(tuple(map(Entry, kept)), held, {"j": round(pairs / 1000)})}, {})


def estimate_of(losses: Losses, seconds: float | None = None, now: float = 0.0) -> Estimate:
    found = losses.joins["j"].over(seconds, now)
    assert found is not None
    return found


class TestArithmetic:
    def test_nothing_dropped_is_complete_and_sure(self) -> None:
        losses = Losses().after(epoch(1.0, even(10), even(20), (10, 20), 7), JOIN)
        assert estimate_of(losses) == Estimate(1.0, 1.0, 1.0, 0.0, 0.0, 7.0)

    def test_before_any_result_nothing_is_said(self) -> None:
        losses = Losses().after(epoch(1.0, even(10), even(20), (10, 20), 0), JOIN)
        assert losses.joins["j"].over(None, 1.0) is None

    def test_where_a_window_was_shed_evenly_the_share_is_the_product_of_what_was_kept(self) -> None:
        losses = Losses()
        for number in range(50):
            losses = losses.after(steady(number, even(80, 100), even(90, 100)), JOIN)
        found = estimate_of(losses)
        assert found.share == pytest.approx(0.8 * 0.9, rel=1e-4)
        assert found.lost_to_shedding == pytest.approx(1 - 0.72, rel=1e-4)
        assert found.lost_to_lateness == 0
        assert found.low < 0.72 < found.high

    def test_what_is_lost_both_ways_is_lost_to_lateness(self) -> None:
        losses = Losses()
        for number in range(50):
            losses = losses.after(steady(number, even(90, 100, 125), even(100)), JOIN)
        found = estimate_of(losses)
        assert found.share == pytest.approx(0.9 * 0.8, rel=1e-6)
        assert found.lost_to_lateness == pytest.approx(0.2, rel=1e-6)
        assert found.lost_to_shedding == pytest.approx(0.8 * 0.1, rel=1e-6)

    def test_tuples_that_were_shed_are_missed_for_as_long_as_they_would_have_been_held(self) -> None:
        """Half of the left tuples of one epoch; right tuples meet what is left of these for two epochs more."""
        losses = Losses()
        for number, kept in enumerate((100, 100, 100, 50, 100, 100, 100)):
            held = sum((100, 100, 100, 50, 100, 100, 100)[max(0, number - 2) : number + 1])
            memory = sum((100, 100, 100, 50, 100, 100, 100)[max(0, number - 3) : number])
            found = kept * 100 + kept * min(number, 3) * 100 + min(number, 3) * 0 + memory * 100
            losses = losses.after(epoch(float(number), even(kept, 100), even(100), (held, 100 * min(3, number + 1)), found), JOIN)
        # Of each epoch's 100 right tuples, 50 pairs each were lost in the epoch itself, with 3 epochs before and with 3 after it.
        lost = 50 * 100 * (1 + 3 + 3)
        results = estimate_of(losses).results
        assert results * (1 - estimate_of(losses).share) == pytest.approx(lost, rel=1e-6)

    def test_an_area_that_only_probes_with_tuples_remembers_none_of_them(self) -> None:
        losses = Losses()
        for number in range(20):
            done = epoch(
                float(number), even(0 if number % 2 else 100, 100), even(100), (0, 300), 0 if number % 2 else 500, holds=(False, True)
            )
            losses = losses.after(done, JOIN)
        assert (losses.memories, losses.calm[0]) == ({}, ())
        assert estimate_of(losses).share == pytest.approx(0.5, rel=0.1)

    def test_an_epoch_of_which_nothing_was_kept_is_taken_from_what_pairs_gave_before(self) -> None:
        losses = Losses().after(epoch(0.0, even(100), even(100), (100, 100), 1000), JOIN)
        losses = losses.after(epoch(1.0, even(0, 100), even(0, 100), (100, 100), 0), JOIN)
        # 100 x 100 pairs gave 1000 results; 100 x 200 + 100 x 100 more would have been there.
        assert estimate_of(losses).results == pytest.approx(1000 + 3000)

    def test_a_plan_with_other_areas_goes_on_with_the_average_of_what_they_hold(self) -> None:
        losses = Losses()
        for number in range(20):
            losses = losses.after(steady(number, even(50, 100), even(100)), JOIN)
        halves = {area: Part((Entry(even(50, 100)), Entry(even(100))), (500, 1000), {"j": 105}) for area in (0, 1)}
        for number in range(20, 40):
            losses = losses.after(Epoch(float(number), 2, halves, {}), JOIN)
        assert estimate_of(losses).share == pytest.approx(0.5, rel=0.01)

    def test_times_go_by_five_minutes_then_by_hours_then_by_days(self) -> None:
        losses, now = Losses(), 0.0
        # A day of losses, a day without, of epochs of a minute.
        for number in range(2 * 24 * 60):
            now = 60.0 * number
            kept = 50 if now < DAY else 100
            losses = losses.after(epoch(now, even(kept, 100), even(100), (kept, 100), kept), JOIN)
        of_join = losses.joins["j"]
        hour, day, run_ = (of_join.over(seconds, now) for seconds in (HOUR, DAY - 2 * HOUR, None))
        assert hour is not None
        assert day is not None
        assert run_ is not None
        assert (hour.share, day.share) == (1.0, 1.0)
        assert run_.share == pytest.approx(0.75, rel=0.01)
        assert len(of_join.recently) < 2 * HOUR / FINE_SECONDS + 2 * 24 + 4
        assert sum(sums.output for sums in of_join.recently) == of_join.run.output

    def test_the_state_survives_as_json(self) -> None:
        rng, losses = random.Random(1), Losses()
        for number in range(30):
            left, right = even(rng.randrange(50), 60, 70), even(rng.randrange(50), 55)
            losses = losses.after(epoch(7.0 * number, left, right, (rng.randrange(300), 200), rng.randrange(90)), JOIN)
        again = Losses.from_json(json.loads(json.dumps(losses.to_json())))
        assert estimate_of(again).share == pytest.approx(estimate_of(losses).share, rel=1e-6)
        assert again.to_json() == losses.to_json()
        assert Checkpoint.decode(Checkpoint(losses=losses).encode()).losses.to_json() == losses.to_json()

    def test_losses_after_a_time_without_any_are_those_of_a_join_that_was_looked_at_all_the_time(self) -> None:
        """While nothing is dropped, hardly anything is kept; of many areas only some are measured."""
        kept = [100] * 30 + [60, 80] * 5 + [100] * 30
        shares = []
        for count in (1, 200):
            losses = Losses()
            for number, left in enumerate(kept):
                before = [kept[max(0, number - 10) : number], [100] * min(10, number)]
                after = [kept[max(0, number - 9) : number + 1], [100] * min(10, number + 1)]
                output = round((left * 100 + left * sum(before[1]) + 100 * sum(before[0])) / 1000)
                held = (float(sum(after[0])), float(sum(after[1])))
                part = Part((Entry(even(left, 100)), Entry(even(100))), held, {"j": output})
                losses = losses.after(Epoch(float(number), 1, dict.fromkeys(range(count), part), {}), JOIN)
                assert (losses.memories == {}) == (number < 30 or number >= 49)
            found = estimate_of(losses)
            # Each of the 300 left tuples that were dropped would have met 100 right ones of its epoch, and of ten before and after it.
            assert found.results * (1 - found.share) == pytest.approx(count * 300 * 100 * 21 / 1000, rel=0.02)
            shares.append(found.share)
        assert shares[0] == pytest.approx(shares[1], rel=1e-3)

    @pytest.mark.parametrize("seed", range(5))
    def test_whatever_is_counted_shares_are_in_order_and_memory_is_bounded(self, seed: int) -> None:
        rng, losses = random.Random(seed), Losses()
        for number in range(200):
            came = [rng.choice([0, 1, 50, 1000]) for _ in range(2)]
            kept = [rng.randint(0, count) for count in came]
            late = [rng.choice([0, 0, 5, 5000]) for _ in range(2)]
            left, right = (even(k, c, c + extra) for k, c, extra in zip(kept, came, late, strict=True))
            held = rng.randrange(5000), rng.randrange(5000)
            losses = losses.after(epoch(float(number), left, right, held, rng.choice([0, 1, 100, 10**9])), JOIN)
            found = losses.joins["j"].over(None, float(number))
            if found is not None:
                assert 0 <= found.low <= found.share <= found.high <= 1, f"seed {seed}"
                assert found.share + found.lost_to_shedding + found.lost_to_lateness == pytest.approx(1), f"seed {seed}"
            assert all(len(memory) <= MOST_REMEMBERED for memory in losses.memories.get(0, losses.calm)), f"seed {seed}"

    def test_what_is_held_is_remembered_and_no_more(self) -> None:
        memory: tuple[Entry, ...] = ()
        for number in range(100):
            memory = remembered(memory, Entry(even(number % 7, 10), (number, number + 1.0)), 20)
            assert sum(entry.tuples.kept for entry in memory) == pytest.approx(20)

    @pytest.mark.parametrize("seed", range(20))
    def test_the_part_of_pairs_within_a_window_is_that_of_pairs_drawn_at_random(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        (a, c), (b, d) = rng.uniform(0, 100, 2), rng.uniform(2, 50, 2)
        window = tuple(rng.uniform(0, 60, 2).tolist())
        left, right = rng.uniform(a, a + b, 200_000), rng.uniform(c, c + d, 200_000)
        drawn = np.mean((right - left >= -window[0]) & (right - left <= window[1]))
        assert inside((a, a + b), (c, c + d), window) == pytest.approx(drawn, abs=0.01), f"seed {seed}"

    def test_tuples_of_a_moment_are_within_a_window_or_not(self) -> None:
        assert inside((5.0, 5.0), (6.0, 6.0), (0.0, 2.0)) == 1
        assert inside((5.0, 5.0), (9.0, 9.0), (0.0, 2.0)) == 0
        assert inside(None, (9.0, 9.0), (0.0, 2.0)) == 1
        assert inside((0.0, 10.0), (0.0, 10.0), (math.inf, math.inf)) == 1

    def test_tuples_with_many_results_make_the_estimate_less_sure(self) -> None:
        def width(groups: list[float]) -> float:
            losses = Losses()
            for number in range(20):
                groups_of = {"j": [groups, groups]}
                losses = losses.after(epoch(float(number), even(50, 100), even(100), (50, 100), 1600, groups=groups_of), JOIN)
            found = estimate_of(losses)
            return found.high - found.low

        assert width([1600.0] + [0.0] * (GROUPS - 1)) > 2 * width([100.0] * GROUPS)


class TestRuns:
    @pytest.mark.parametrize("model", ["adsp", "square", "biclique", "handshake"])
    def test_the_interval_is_honest_where_nearly_all_is_lost(self, model: str, tmp_path: Path) -> None:
        """Down to a share of some hundredths, in 95 of 100 runs."""
        missed, count = [], how_many(24, of=24)
        for seed in range(1000, 1000 + count):
            rng = random.Random(seed)
            fullness, rate, late = rng.choice([2.0, 4.0, 6.0, 10.0]), rng.choice([250, 500]), rng.choice([0.0, 0.1, 0.5])
            drawn = dataclasses.replace(draw(seed), predicate="band", model=model, fullness=fullness)
            outcome, _ = run(dataclasses.replace(drawn, per_epoch=(rate, rate), late=(late, late)), tmp_path / str(seed))
            assert outcome.truth < 0.5, str(outcome)
            missed += [] if outcome.holds else [str(outcome)]
        assert len(missed) <= count / 10, missed

    @pytest.mark.parametrize("seed", some(SEEDS, of=3, since=1))
    def test_the_interval_holds_the_share_that_is_true_by_duckdb(self, seed: int, tmp_path: Path) -> None:
        outcome, _ = run(draw(seed), tmp_path)
        assert outcome.holds, str(outcome)
        assert outcome.estimate.high - outcome.estimate.low < 0.1, str(outcome)

    def test_a_run_that_loses_nothing_says_so(self, tmp_path: Path) -> None:
        case = dataclasses.replace(draw(8), fullness=0.3, late=(0.0, 0.0))
        outcome, results = run(case, tmp_path)
        assert (outcome.truth, outcome.shed, outcome.late) == (1.0, 0, 0)
        assert outcome.estimate == Estimate(1.0, 1.0, 1.0, 0.0, 0.0, float(outcome.results))
        assert results[-1].losses.memories == {}

    def test_it_goes_on_over_restarts(self, tmp_path: Path) -> None:
        case, epochs = draw(8), 0

        def restart(driver: Driver, sources: Any) -> Driver:
            nonlocal epochs
            epochs += 1
            if epochs % 10:
                return driver
            driver.stop()
            again = Driver(driver.job, ObjectStorage(str(tmp_path / "state")), InlineRunner(), sources=sources())
            again.start()
            return again

        outcome, results = run(case, tmp_path, restart)
        assert outcome.holds, str(outcome)
        assert results[-1].losses.joins["j"].run.output == outcome.results

    def test_three_streams_are_counted_as_a_whole(self) -> None:
        losses, join = Losses(), {"j": Counted((0, 1, 2))}
        for number in range(30):
            losses = losses.after(steady(number, *(even(kept, 100) for kept in (100, 80, 50))), join)
        assert estimate_of(losses).share == pytest.approx(0.4, rel=1e-6)


def test_cases_are_what_they_are_said_to_be() -> None:
    cases: list[Case] = [draw(seed) for seed in SEEDS]
    assert {case.predicate for case in cases} == {"equality", "band", "inequality"}
    assert len({case.model for case in cases}) >= 4
    assert any(case.skew for case in cases)


class TestShown:
    """``streamjoin run`` on streams of a generator, of which two workers can hold little."""

    @pytest.fixture(scope="class")
    @staticmethod
    def manifest(tmp_path_factory: pytest.TempPathFactory) -> Path:
        root = tmp_path_factory.mktemp("shown")
        columns = {"rid": {"sequence": {}}, "k": {"uniform": {"min": 0, "max": 50}}, "v": {"uniform": {"min": 0, "max": 5}}}
        source = {"generator": {"rows": 3000, "realTime": False, "rate": {"constant": 100}, "columns": columns}}
        schema = {"schema": "rid BIGINT, k BIGINT, v INT, at TIMESTAMP", "eventTime": "at", "watermark": "1s"}
        text = manifest_text(
            root,
            on="l.k = r.k",
            window={"within": "3s"},
            workers=2,
            capacity=420,
            streams=[{"name": name, "source": source} | schema for name in "lr"],
            shedding={"model": "linear"},
            epoch={"maxTuples": 200, "interval": "0s"},
        )
        (root / "m.yaml").write_text(text)
        return root / "m.yaml"

    def run(self, manifest: Path, *options: str) -> list[str]:
        for name in ("state", "out"):
            shutil.rmtree(manifest.parent / name, ignore_errors=True)
        done = CliRunner().invoke(main, ["run", str(manifest), "--runner", "inline", "--until-idle", *options])
        assert done.exit_code == Exit.DONE, done.output
        return done.stdout.splitlines()

    def test_the_summary_says_it_in_a_line(self, manifest: Path) -> None:
        (line,) = [line for line in self.run(manifest) if line.startswith("  complete")]
        said = re.fullmatch(
            r"  complete    about ([\d.]+) % of the results, between ([\d.]+) % and ([\d.]+) %, ([\d.]+) % lost to shedding", line
        )
        assert said is not None, line
        share, low, high, lost = map(float, said.groups())
        assert low < share < high
        assert share + lost == pytest.approx(100)

    def test_each_epoch_and_the_summary_have_it_as_json(self, manifest: Path) -> None:
        records = [json.loads(line) for line in self.run(manifest, "--json")]
        first, *_, last, summary = records
        (join,) = first["joins"]
        assert join["completeness"]["run"] in (None, {"share": 1, "low": 1, "high": 1, "lostToShedding": 0, "lostToLateness": 0})
        assert last["joins"][0]["completeness"] == summary["joins"][0]["completeness"]
        found = summary["joins"][0]["completeness"]
        assert set(found) == {"1h", "1d", "run"}
        of_run = found["run"]
        assert 0 < of_run["low"] < of_run["share"] < of_run["high"] < 1
        assert of_run["share"] + of_run["lostToShedding"] + of_run["lostToLateness"] == pytest.approx(1)

    @pytest.mark.parametrize(
        ("share", "text"), [(1.0, "100.0 %"), (0.871, "87.1 %"), (0.9993, "99.93 %"), (0.99999, "99.9990 %"), (0.0, "0.0 %")]
    )
    def test_a_share_has_the_digits_that_tell_it_from_all(self, share: float, text: str) -> None:
        assert percent(share) == text

    def test_nothing_is_said_where_nothing_was_lost_and_of_joins_that_are_not_inner(self, tmp_path: Path) -> None:
        result = run(dataclasses.replace(draw(8), fullness=0.3, late=(0.0, 0.0)), tmp_path)[1][-1]
        assert completeness_text(result, joins_named=False) == []
        assert least(result) is None
        assert completeness_record(result, "another") is None
