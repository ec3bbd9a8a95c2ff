"""Joins that run for ``streamjoin bench paper``: what they count against brute force, how their streams are drawn, and every row of kind R
once at a tiny size."""

from __future__ import annotations

import json
import random
import re
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from streamjoin_research.papers import adsp_shifts, report
from streamjoin_research.papers.catalogue import ROWS
from streamjoin_research.papers.picture import draw
from streamjoin_research.papers.queries import B_MR, B_NCI, E_Q5, MODELS, ByLoad, Query, in_turn, loaded, sized, zipf
from streamjoin_research.papers.rows import Kind, Lines, Row
from streamjoin_research.papers.runs import VALUES, Epoch, Join, Keys, Run, Tasks, run, streams
from streamjoin_research.papers.semijoins_simulated import FIRST, Place, seconds

RUNS = [row for row in ROWS if row.kind is Kind.RUN]


def figure_of(row: Row) -> str:
    """Without the letter: rows of one figure share their runs."""
    return f"{row.paper}:{re.sub('[a-z]$', '', row.figure) if row.figure[0].isdigit() else row.figure}"


@pytest.mark.parametrize("figure", sorted({figure_of(row) for row in RUNS}))
def test_each_row_of_a_figure_runs(figure: str, tmp_path: Any) -> None:
    chance = random.Random(1)
    for row in (row for row in RUNS if figure_of(row) == figure):
        comparison = row.compare(quick=True)
        assert json.loads(json.dumps(comparison.to_json()))["kind"] == "R"
        chart = comparison.ours.chart
        if isinstance(chart, Lines):
            assert all(len(line) == len(chart.x) for line in chart.lines.values()), report.subject(row)
            path = draw(tmp_path, comparison)
            assert path is not None
            assert path.read_bytes().startswith(b"\x89PNG")
        replaced = [_replaced(comparison.ours.values, chance) for _ in range(10)]
        assert any(not _holds(check.holds, values) for values in replaced for check in row.rule), f"{row.rule_text}: holds of anything"


def _replaced(value: object, chance: random.Random) -> Any:
    """The same with other numbers; ``limits`` and ``joins`` are what is asked, not what is found."""
    if isinstance(value, dict):
        return {name: inner if name in ("limits", "joins") else _replaced(inner, chance) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_replaced(inner, chance) for inner in value]
    return chance.uniform(-1000, 1000) if isinstance(value, int | float) else value


def _holds(predicate: Any, values: Any) -> bool:
    try:
        return bool(predicate(values))
    except ZeroDivisionError:
        return False


def matches(epochs: list[Keys], band: int, slides: int) -> int:
    """Pairs of keys that are at most ``band`` apart, in epochs fewer than ``slides`` apart: all of them, one by one."""
    found = 0
    for one, (left, _) in enumerate(epochs):
        for other, (_, right) in enumerate(epochs):
            if abs(one - other) < slides:
                found += int((np.abs(left[:, None] - right[None, :]) <= band).sum())
    return found


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize(("query", "band"), [(E_Q5, 0), (B_NCI, 1)], ids=["equality", "band"])
def test_all_models_look_at_all_pairs_once(name: str, query: Query, band: int) -> None:
    epochs = loaded(40, [(30, 90)] * 3, 1.0)
    with streams(epochs) as given:
        done = run(given, [query.join(40)], MODELS[name].tasks(4))
    expected = matches(epochs, band, len(epochs))
    assert (done.candidates, done.output, done.tuples) == (expected, expected, 360)
    assert done.copies >= 1
    assert done.all_work == done.received + done.candidates
    # What is held of a tuple had to come, and the last epoch holds what all have brought.
    assert 360 <= sum(done.epochs[-1].held) <= done.received


def test_a_window_is_of_as_many_slides_as_are_asked_for() -> None:
    epochs = loaded(20, [(20, 60)] * 6, 0.0)
    with streams(epochs) as given:
        done = run(given, [E_Q5.join(20, window_seconds=179)], MODELS["Square"].tasks(4))
    assert done.output == matches(epochs, 0, 3)
    assert [epoch.tuples for epoch in done.epochs] == [80] * 6
    assert len(done.since(4).epochs) == 2


def test_every_pair_is_looked_at_and_one_in_a_thousand_is_a_result() -> None:
    query = sized(B_MR)
    epochs = loaded(100, [(200, 200)] * 2, 2.0)
    with streams(epochs) as given:
        done = run(given, [query.join(100)], MODELS["A-DSP"].tasks(3))
    assert done.candidates == 400 * 400
    assert 0.5 < done.output / (done.candidates / VALUES) < 2


def test_joins_of_one_job_find_what_each_finds_alone() -> None:
    epochs = loaded(20, [(40, 40)] * 2, 0.0)
    joins = [Join("l.k = r.k"), Join("abs(l.k - r.k) <= 2")]
    with streams(epochs) as given:
        together = run(given, joins, Tasks.exactly("adsp", 2))
        apart = [run(given, [join], Tasks.exactly("adsp", 2)) for join in joins]
    assert together.output == sum(one.output for one in apart) == matches(epochs, 0, 2) + matches(epochs, 2, 2)


def test_tasks_grow_by_the_rule_of_80_percent() -> None:
    capacity = 200
    with streams(loaded(100, [(50, 150)] * 4, 0.0)) as given:
        done = run(given, [E_Q5.join(100)], MODELS["A-DSP"].growing(capacity, 20), ByLoad(20))
        still = run(given, [E_Q5.join(100)], MODELS["A-DSP"].growing(100_000, 20), ByLoad(20))
    tasks = [epoch.tasks for epoch in done.epochs]
    assert tasks[0] == 1
    assert tasks == sorted(tasks)
    assert tasks[-1] >= 800 / capacity
    assert done.adjustments == sum(a != b for a, b in pairwise(tasks))
    assert done.moved > 0
    # One task that is never full stays, and below 50 % there is nothing to take away.
    assert (still.tasks, still.adjustments, still.moved, still.most_moved) == (1, 0, 0, 0)
    assert done.output == still.output


def test_what_a_run_comes_to() -> None:
    def epoch(generation: int, received: list[int], candidates: list[int], moved: list[int]) -> Epoch:
        cpu = [0.5 + task for task in range(len(received))]
        return Epoch(cpu, received, candidates, received, 10, 7, 100, moved, generation)

    done = Run([epoch(1, [10], [4], [0]), epoch(2, [6, 8], [1, 2], [3, 9]), epoch(2, [5, 5], [0, 4], [0, 0])])
    assert (done.tasks, done.tuples, done.output, done.received, done.candidates, done.moved) == (2, 30, 21, 34, 11, 12)
    assert (done.apart, done.together) == (0.5 + 1.5 + 1.5, 0.5 + 2 + 2)
    # The busiest task: 10 + 4; 8 + 2 + 9; 5 + 4.
    assert (done.work, done.all_work) == (14 + 19 + 9, 34 + 11 + 12)
    assert (done.adjustments, done.most_moved) == (1, 9)
    assert done.task_time == 14 + 2 * 19 + 2 * 9
    assert done.sent_time == 10 * 14 + 14 * 19 + 10 * 9
    assert done.latency == 14
    assert done.copies == pytest.approx(34 / 30)
    assert done.requests == pytest.approx(100 * (1.0 + 0.7 + 0.5) / 3)


def test_keys_are_drawn_as_asked() -> None:
    chance = np.random.default_rng(0)
    order = np.arange(100)[::-1]
    drawn = zipf(chance, 100, 200_000, 2.0, order)
    shares = np.bincount(drawn, minlength=100)[order] / len(drawn)
    expected = np.arange(1, 101.0) ** -2
    assert np.abs(shares - expected / expected.sum()).max() < 0.005
    assert in_turn(np.array([4, 2, 9]), 2, 5).tolist() == [9, 4, 2, 9, 4]
    epochs = loaded(30, [(20, 5), (10, 5), (30, 5)], 0.0)
    assert sorted(np.concatenate([epochs[0][0], epochs[1][0]]).tolist()) == list(range(30))


@pytest.mark.parametrize("f", [0.5, 2.0])
def test_a_shift_moves_the_load_that_is_asked_for(f: float) -> None:
    shares = np.arange(1, 2001.0) ** -1
    shares /= shares.sum()
    order = np.random.default_rng(5).permutation(2000)
    after = adsp_shifts.shifted(shares, order, 13, f, np.random.default_rng(6))
    assert sorted(after.tolist()) == list(range(2000))
    loads = [np.bincount(adsp_shifts.instances_of(of, 13), weights=shares, minlength=13) for of in (order, after)]
    change = np.abs(loads[1] - loads[0]).max() / loads[0].mean()
    # At least f, and at most one key more.
    assert f <= change <= f + 13 * shares[0]


def test_dynamic_takes_tasks_by_fours() -> None:
    assert [adsp_shifts._within("Dynamic", limit) for limit in (1, 3, 4, 15, 16, 32, 64)] == [1, 1, 4, 4, 16, 16, 64]
    assert adsp_shifts._within("Bi", 32) == 32


def test_simulated_simple_joins_ship_what_arithmetic_says() -> None:
    found = seconds(Place(), quick=True)
    # Ten shipments of 25 ms, and each tuple once: 300 x 1250 bytes at 128,000 a second.
    assert found["SP-S"] == pytest.approx(10 * 0.025 + FIRST.rate * FIRST.tuple_bytes / 128_000, rel=0.01)
