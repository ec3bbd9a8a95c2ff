"""ESJ's formulas: the initial deployment and the shed factor."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamjoin.elastic.deployment import Deployment, Expected, expected_tuples, first_deployment
from streamjoin.elastic.shedding import shed_factor
from streamjoin.language.predicate import MainKind, MainPredicate
from streamjoin.language.window import Window, WindowKind
from streamjoin.scheme.capacity import Capacity
from streamjoin.scheme.models import MODELS
from streamjoin.scheme.statistics import loads
from test_scheme import ALL, EQUAL, ranged, sampled, unknown

SECOND = 1_000_000


def within(before: int, after: int) -> Window:
    return Window(WindowKind.RANGE, before_micros=before * SECOND, after_micros=after * SECOND)


def deployed(expected: Expected, main: MainPredicate = EQUAL, **options: Any) -> Deployment:
    given: dict[str, Any] = {"model": "adsp", "capacity": Capacity(1000), "tau1": 0.5, "minimum": 2, "maximum": 100}
    return first_deployment(expected, options.pop("known", unknown(1, 1)), main, **(given | options))


def test_a_left_tuple_is_held_for_as_long_as_a_right_one_may_follow() -> None:
    assert expected_tuples((100, 50), within(60, 60)) == (6000, 3000)
    assert expected_tuples((100, 50), within(0, 60)) == (6000, 0)
    assert expected_tuples((100, 50), within(60, 0)) == (0, 3000)


def test_until_the_other_watermark_has_passed_and_the_epochs_are_over_that_expire_it() -> None:
    found = expected_tuples((100, 50), within(60, 60), delays_micros=(5 * SECOND, 10 * SECOND), epoch_micros=2 * SECOND)
    assert found == (100 * (60 + 10 + 6), 50 * (60 + 5 + 6))
    assert expected_tuples((100, None), Window(WindowKind.ROWS, rows=5000), epoch_micros=SECOND) == (5300, 5300)


def test_what_is_expected_of_rates_that_are_not_known() -> None:
    assert expected_tuples((None, None), within(60, 60)) == (None, None)
    assert expected_tuples((100, None), within(30, 60)) == (6000, 3000), "the other stream is taken to be as fast"
    assert expected_tuples((None, None), Window(WindowKind.ROWS, rows=5000)) == (5000, 5000), "rows need no rate"
    assert expected_tuples((None, None), Window(WindowKind.UNBOUNDED)) == (None, None)
    assert expected_tuples((1, None), Window(WindowKind.UNBOUNDED)) == (math.inf, math.inf)


def test_where_nothing_is_held_twice_the_first_number_of_workers_is_that_of_the_paper() -> None:
    """M = ceil(E(rate) * window / (W * tau1)): 12,000 tuples, 500 a worker."""
    assert deployed((6000, 6000)).workers == 24
    assert deployed((6000, 6000), capacity=Capacity(1001)).workers == math.ceil(12_000 / 500.5)
    assert deployed((6000, 6000), ALL, model="broadcast").workers == 24


@pytest.mark.parametrize("main", [EQUAL, ALL, MainPredicate(MainKind.NOT_EQUAL, ALL.keys), ranged(-50, 50)])
@pytest.mark.parametrize("model", MODELS)
def test_the_first_plan_fills_no_worker_beyond_tau1(model: str, main: MainPredicate) -> None:
    """The example of three workers that were filled to 0.75 or 0.90: two streams of 1,000/s for a minute, W = 100,000, tau1 = 0.4."""
    rng = np.random.default_rng(50)
    for known in (unknown(1, 1), sampled(rng.integers(0, 10_000, 2000), rng.integers(0, 10_000, 2000))):
        found = deployed((60_000, 60_000), main, model=model, known=known, capacity=Capacity(100_000), tau1=0.4, minimum=1)
        assert found.warning is None
        assert found.tau == pytest.approx(float(loads(found.planned.plan.scheme, found.statistics).max()) / 100_000)
        assert found.tau <= 0.4 * 1.002
        assert found.workers >= 3


def test_workers_stay_between_minimum_and_maximum() -> None:
    assert deployed((None, None)).workers == 2
    assert deployed((10, 0)).workers == 2
    assert deployed((math.inf, math.inf)).workers == 100
    for nothing in (deployed((None, None)), deployed((math.inf, math.inf))):
        assert nothing.warning is None
        assert nothing.fits


def test_what_is_too_much_for_the_most_workers_names_the_field_the_value_and_the_remedy() -> None:
    found = deployed((6000, 6000), maximum=20)
    assert (found.workers, found.fits) == (20, True)
    assert found.tau == pytest.approx(0.6, rel=0.01)
    assert found.warning is not None
    assert found.warning.startswith(
        "spec.workers.max: 20 is too small: the 6,000 and 6,000 tuples that are expected of the streams fill the fullest worker to 0.60, "
        "above tau1 (0.5), which takes 24 workers by adsp; raise it, or spec.workers.capacityTuples (1,000), or hold less"
    )
    assert not deployed((6000, 6000), maximum=11).fits
    assert "more than 10,000 workers" in str(deployed((6e9, 6e9)).warning)
    frequent = sampled(np.repeat([1, 2, 3], [800, 100, 100]), np.repeat([1, 2, 3], [800, 100, 100]))
    one_key = deployed((6000, 6000), ranged(0, 0), known=frequent, model="hash")
    assert one_key.warning is not None
    assert one_key.warning.startswith("spec.scheme.model: the 6,000 and 6,000 tuples")
    assert one_key.warning.endswith("as hash cuts no single key; choose adsp or square, which do")


def test_an_exact_quotient_is_not_rounded_up() -> None:
    expected = expected_tuples((0.1, 0.2), within(10, 10))
    assert deployed(expected, capacity=Capacity(1), tau1=0.3, minimum=1).workers == 10


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"minimum": 3, "maximum": 2}, "spec.workers: min 3"),
        ({"tau1": 0}, "spec.scaling.tau1: 0"),
    ],
)
def test_an_impossible_deployment_is_refused(changes: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        deployed((1, 1), **changes)


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


@given(st.sampled_from(["linear", "quadratic"]), st.floats(0, 1), st.floats(0.01, 0.99), st.floats(0, 2), st.floats(0, 2))
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
