"""ESJ's formulas: the initial deployment and the shed factor."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamjoin.elastic.deployment import initial_workers
from streamjoin.elastic.shedding import shed_factor
from streamjoin.language.window import Window, WindowKind

SECOND = 1_000_000


def workers(rates: tuple[float | None, float | None], window: Window, capacity: float = 1000, tau1: float = 0.5, most: int = 100) -> int:
    return initial_workers(rates=rates, window=window, capacity_tuples=capacity, tau1=tau1, minimum=2, maximum=most)


def within(before: int, after: int) -> Window:
    return Window(WindowKind.RANGE, before_micros=before * SECOND, after_micros=after * SECOND)


def test_workers_are_expected_to_be_filled_to_tau1() -> None:
    # 100/s for 60 s of each stream: 12,000 tuples, 500 a worker.
    assert workers((100, 100), within(60, 60)) == 24
    assert workers((100, 100), within(60, 60), capacity=1001) == math.ceil(12_000 / 500.5)


def test_a_left_tuple_is_held_for_as_long_as_a_right_one_may_follow() -> None:
    assert workers((100, 0), within(0, 60)) == 12
    assert workers((100, 0), within(60, 0)) == 2


def test_a_window_of_rows_holds_that_many_of_each_stream() -> None:
    assert workers((1, 1), Window(WindowKind.ROWS, rows=5000)) == 20


def test_workers_stay_between_minimum_and_maximum() -> None:
    assert workers((None, None), within(60, 60)) == 2
    assert workers((None, 1), within(60, 60)) == 2
    assert workers((1e9, 1e9), within(60, 60)) == 100
    assert workers((1, 1), Window(WindowKind.UNBOUNDED)) == 100
    assert workers((None, None), Window(WindowKind.UNBOUNDED)) == 2


def test_an_exact_quotient_is_not_rounded_up() -> None:
    assert initial_workers(rates=(0.1, 0.2), window=within(10, 10), capacity_tuples=1, tau1=0.3, minimum=1, maximum=100) == 10


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"minimum": 3, "maximum": 2}, "spec.workers: min 3"),
        ({"capacity_tuples": 0}, "spec.workers.capacityTuples: 0"),
        ({"tau1": 0}, "spec.scaling.tau1: 0"),
    ],
)
def test_an_impossible_deployment_is_refused(changes: dict[str, float], message: str) -> None:
    arguments = {"capacity_tuples": 10, "tau1": 0.4, "minimum": 1, "maximum": 2, **changes}
    with pytest.raises(ValueError, match=message):
        initial_workers(rates=(1, 1), window=within(1, 1), **arguments)  # type: ignore[arg-type]


def test_the_linear_model_is_proportional_above_tau2() -> None:
    assert shed_factor("linear", 0.0, 0.8, 0.79) == 0
    assert shed_factor("linear", 0.0, 0.8, 0.8) == 0
    assert shed_factor("linear", 0.0, 0.8, 0.9) == pytest.approx(0.5)
    assert shed_factor("linear", 0.2, 0.8, 0.8) == pytest.approx(0.2)
    assert shed_factor("linear", 0.2, 0.8, 0.85) == pytest.approx(0.4)


def test_the_quadratic_model_sheds_less_at_first() -> None:
    assert shed_factor("quadratic", 0.0, 0.8, 0.9) == pytest.approx(0.25)
    assert shed_factor("quadratic", 0.2, 0.8, 0.9) == pytest.approx(0.4)


@pytest.mark.parametrize("model", ["linear", "quadratic"])
def test_a_full_worker_drops_everything(model: str) -> None:
    assert shed_factor(model, 0.1, 0.8, 1.0) == 1.0
    assert shed_factor(model, 0.1, 0.8, 1.5) == 1.0


def test_off_never_sheds() -> None:
    assert shed_factor("off", 0.5, 0.8, 2.0) == 0


@given(
    st.sampled_from(["linear", "quadratic"]), st.floats(0, 1), st.floats(0.01, 0.99), st.floats(0, 2), st.floats(0, 2)
)
def test_the_shed_factor_never_falls_as_workers_fill(model: str, base: float, tau2: float, one: float, other: float) -> None:
    low, high = sorted((one, other))
    assert 0 <= shed_factor(model, base, tau2, low) <= shed_factor(model, base, tau2, high) <= 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("cubic", 0, 0.8, 0), "spec.shedding.model: 'cubic' is unknown"),
        (("linear", 1.1, 0.8, 0), "spec.shedding.base: 1.1"),
        (("linear", 0, 1, 0), "spec.scaling.tau2: 1"),
    ],
)
def test_impossible_shedding_is_refused(arguments: tuple[str, float, float, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        shed_factor(*arguments)
