"""What a round of the exchange takes, as it follows from measurements."""

from __future__ import annotations

import random

import pytest

from streamjoin.controlplane.flowing import rounds_in
from streamjoin.elastic.rounds import BYTES_PER_SECOND, PAIR_SECONDS, ROUND_SECONDS, Exchange, Pace, Round
from streamjoin.epoch.reports import RoundWork, TaskReport


def measured(latency: float, bandwidth: float, sizes: list[float], rng: random.Random, epochs: int = 100) -> Exchange:
    pace = Pace()
    for epoch in range(epochs):
        rounds = [Round(latency * rng.uniform(0.9, 1.1) + size / bandwidth, size) for size in (rng.choice(sizes) for _ in range(3))]
        pace.add(rounds, 100.0 + 2 * epoch)
    return pace.exchange(4)


@pytest.mark.parametrize("latency", [2e-4, 1e-3, 2e-2])
@pytest.mark.parametrize("bandwidth", [5e7, 1e9])
def test_latency_and_bandwidth_are_found_from_rounds_of_several_sizes(latency: float, bandwidth: float) -> None:
    found = measured(latency, bandwidth, [0.0, 1e6, 5e7], random.Random(0))
    assert found.round_seconds == pytest.approx(latency, rel=0.25, abs=2e-4)
    assert found.bytes_per_second == pytest.approx(bandwidth, rel=0.1)
    assert found.epoch_seconds == pytest.approx(2.0, rel=0.01)
    assert found.tasks == 4


def test_rounds_of_few_bytes_say_nothing_of_the_bandwidth() -> None:
    found = measured(5e-3, 1e6, [0.0, 100.0], random.Random(1))
    assert found.round_seconds == pytest.approx(5e-3, rel=0.1)
    assert found.bytes_per_second == pytest.approx(BYTES_PER_SECOND, rel=0.05)


def test_a_pause_of_one_process_is_soon_forgotten() -> None:
    pace = Pace()
    for epoch in range(50):
        pace.add([Round(1e-3, 0.0)] * 2, float(epoch))
    pace.add([Round(5.0, 0.0)], 50.0)
    assert pace.exchange(1).round_seconds < 1.5e-3
    for epoch in range(50):
        pace.add([Round(2e-2, 0.0)] * 2, 51.0 + epoch)
    assert pace.exchange(1).round_seconds == pytest.approx(2e-2, rel=0.1), "what lasts is believed"


def test_a_pair_takes_what_it_was_measured_to_take_once_there_were_many() -> None:
    pace = Pace()
    pace.add([], 0.0, pairs=1_000, seconds=1.0)
    assert pace.exchange(1).pair_seconds == pytest.approx(PAIR_SECONDS, rel=0.01), "a thousand say little, and a pause is none of theirs"
    for epoch in range(100):
        pace.add([], 1.0 + epoch, pairs=10_000_000, seconds=2.0)
    assert pace.exchange(1).pair_seconds == pytest.approx(2e-7, rel=0.01)


def test_an_hour_without_input_does_not_make_epochs_long() -> None:
    pace, at = Pace(), 0.0
    for gap in [1.0] * 20 + [3_600.0] + [1.0] * 20:
        at += gap
        pace.add([], at)
        assert pace.exchange(1).epoch_seconds < 1.5
    for _ in range(60):
        at += 10.0
        pace.add([], at)
    assert pace.exchange(1).epoch_seconds == pytest.approx(10.0, rel=0.05)


def test_without_measurements_the_first_numbers_stay() -> None:
    pace, before = Pace(), Exchange(3e-3, 1e8, 7.0, 2)
    assert pace.exchange(3) == Exchange(ROUND_SECONDS, pytest.approx(BYTES_PER_SECOND), 1.0, 3)
    again = Pace(before)
    for epoch in range(20):
        again.add([], 7.0 * epoch)
    assert again.exchange(2) == Exchange(pytest.approx(3e-3), pytest.approx(1e8), pytest.approx(7.0), 2)


def test_a_round_lasts_for_the_exchange_what_it_does_for_the_last_task_to_begin() -> None:
    """The others wait for that one, which was still joining."""
    reports = [TaskReport(task, "", rounds=rounds) for task, rounds in enumerate(ROUNDS)]
    assert list(rounds_in(reports)) == [Round(0.002, 200.0), Round(0.003, 0.0)]
    assert list(rounds_in(reports[:1])) == [], "nobody else is there to send to"


ROUNDS = [
    [RoundWork(100, 0.05), RoundWork(0, 0.003)],
    [RoundWork(300, 0.002), RoundWork(0, 0.004)],
    [RoundWork(200, None), RoundWork(0, None)],
]
