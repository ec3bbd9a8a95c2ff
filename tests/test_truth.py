"""What ``streamjoin simulate`` says comes true in the engine: the same trace through both, side by side."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from streamjoin.retention import window_seconds
from streamjoin.simulation.traffic import Traffic
from truth import MOST_WORKERS, STEP_SECONDS, Played, begins, job_of, run, simulated, wave

FIRST_FULL = 48
"""The step from which the engine's window is full; the simulation's is from the first."""


def first(traffic: Traffic, steps: int) -> Traffic:
    left, right = (rates[:steps] for rates in traffic.rates)
    return Traffic(traffic.step_seconds, (left, right), traffic.skew[:steps], traffic.hot[:steps])


def targets(played: Played) -> list[int]:
    return [record.decision.target for record in played.ledger if record.realised is not None]


def times(played: Played, began: float = 0.0) -> list[float]:
    return [record.decision.at - began for record in played.ledger if record.realised is not None]


def shares(played: Played) -> float:
    return played.shed / played.came


def compare_what_is_held(real: Played, told: Played) -> None:
    """Tuples expire with whole runs, so that the engine holds more for a while, most where rates fall."""
    ratio = np.array(real.held[FIRST_FULL:]) / np.array(told.held[FIRST_FULL:])
    assert ratio.min() > 0.9, f"the engine holds less: {ratio.min():.2f}"
    assert ratio.max() < 1.5, f"the engine holds more: {ratio.max():.2f}"
    assert 1.0 <= ratio.mean() < 1.15, f"{ratio.mean():.2f} on average"
    # With as many workers the fullest is as full, but for what is held.
    settled = [{*real.workers[step - 6 : step + 1], *told.workers[step - 6 : step + 1]} for step in range(len(real.tau))]
    same = [step for step in range(FIRST_FULL, len(real.tau)) if len(settled[step]) == 1]
    assert len(same) > 20
    for step in same:
        expected = told.tau[step] * real.held[step] / told.held[step]
        assert real.tau[step] == pytest.approx(expected, rel=0.2, abs=0.05), f"at step {step} on {real.workers[step]} workers"


def test_by_the_thresholds_the_engine_does_what_the_simulation_says(tmp_path: Path) -> None:
    traffic, job = wave(1.2, 3.0, 14.0), job_of(tmp_path, "thresholds")
    real, told = run(tmp_path, job, traffic), simulated(job, traffic)
    assert targets(real) == targets(told) == [3, 7, 4]
    assert max(targets(real)) < MOST_WORKERS, "the limit is to decide nothing"
    for one, other in zip(times(real, began=begins()), times(told), strict=True):
        assert abs(one - other) <= 8 * STEP_SECONDS
    assert real.worker_hours == pytest.approx(told.worker_hours, rel=0.1)
    assert shares(real) == pytest.approx(shares(told), rel=0.5)
    assert shares(told) > 0.005, "the test is to see tuples shed"
    assert real.moved == pytest.approx(told.moved, rel=0.3)
    compare_what_is_held(real, told)


def test_looking_ahead_the_engine_does_what_the_simulation_says(tmp_path: Path) -> None:
    traffic, job = first(wave(1.2, 3.0, 14.0), 130), job_of(tmp_path, "predictive")
    real, told = run(tmp_path, job, traffic), simulated(job, traffic)
    assert targets(real) == targets(told) == [2, 4]
    for one, other in zip(times(real, began=begins()), times(told), strict=True):
        assert abs(one - other) <= 8 * STEP_SECONDS
    assert real.worker_hours == pytest.approx(told.worker_hours, rel=0.1)
    assert told.shed == 0
    assert shares(real) < 0.005, "by what is held for longer"
    compare_what_is_held(real, told)
    # What the workers took to start is measured, and used from then on.
    waits = [record.realised.waited_seconds for record in real.ledger if record.realised is not None]
    assert real.ledger.start_seconds == max(wait for wait in waits if wait is not None) == pytest.approx(30, abs=STEP_SECONDS)


def test_a_worker_gets_full_of_a_hot_part_of_the_keys_as_the_window_turns_over(tmp_path: Path) -> None:
    """As the simulation has it: what came before the hot part moved stays where it is."""
    steps, moved_at = 130, 70
    hot = np.where(np.arange(steps) < moved_at, 0.1, 0.9)
    rates = np.full(steps, 6.0)
    job = job_of(tmp_path, "thresholds", least=4, mode="Off")
    traffic = Traffic(STEP_SECONDS, (rates, rates), np.ones(steps), hot)
    real = run(tmp_path, job, traffic, hot_share=0.5)
    before = float(np.mean(real.tau[moved_at - 5 : moved_at]))
    after = float(np.mean(real.tau[-10:]))
    assert window_seconds(job) is not None
    window = window_seconds(job)[0] / STEP_SECONDS
    assert after > 1.3 * before, "the test is to see an imbalance"
    for part in (0.25, 0.5, 0.75):
        step = moved_at + round(part * window)
        expected = before + part * (after - before)
        assert real.tau[step] == pytest.approx(expected, abs=0.25 * (after - before)), f"{part:g} of the window after the move"
