"""Sizes of blocks: the papers' formulas by values and by trying every size."""

from __future__ import annotations

import math

import pytest

from streamjoin.chain.blocksize import Load, by_transmission, objective, theorem_1

WEIGHTS = (0.2, 0.5, 0.7)


def load(rate: float) -> Load:
    """Four workers with room for a thousand tuples, windows of ten seconds: 400 tuples a second fill them."""
    return Load(rate, window_seconds=10, workers=4, capacity_tuples=1000)


@pytest.mark.parametrize(
    ("weight", "blocks"),
    [
        (0.5, {10: 25, 50: 125, 100: 250, 150: 375, 200: 500, 201: 251, 250: 312, 300: 250, 350: 125, 390: 25, 399: 2, 400: 1, 500: 1}),
        (0.2, {10: 50, 50: 250, 100: 500, 150: 375, 200: 500}),
        (0.7, {10: 16, 50: 81, 100: 163, 150: 245, 200: 327}),
    ],
)
def test_theorem_1_by_values(weight: float, blocks: dict[int, int]) -> None:
    """At the rates that fill half of a worker (200) and all of it (400), too."""
    assert {rate: theorem_1(load(rate), weight) for rate in blocks} == blocks


def test_above_a_weight_of_a_half_a_block_is_cut_to_the_room_beside_a_worker_s_share() -> None:
    """The first case as printed says 409 and 490, which with shares of 625 and 750 is more than a worker can hold."""
    for rate, as_printed, mended in ((250, 409, 375), (300, 490, 250)):
        share = load(rate).share
        assert math.floor(math.sqrt(1 / 0.7 - 1) * share) == as_printed
        assert as_printed + share > 1000
        assert theorem_1(load(rate), 0.7) == mended


def least_by_trying(of: Load, weight: float) -> float:
    """J of the best of all blocks into which a worker's share divides without rest, that keep the constraints of the appendix."""
    blocks = [of.share / times for times in range(1, 3000)]
    allowed = [block for block in blocks if 1 <= block <= of.capacity_tuples / 2 and block + of.share <= of.capacity_tuples]
    return min(objective(of, block, weight) for block in allowed)


@pytest.mark.parametrize("weight", WEIGHTS)
@pytest.mark.parametrize("rate", [*range(10, 400, 10), 399])
def test_no_allowed_size_is_better_but_for_rounding(weight: float, rate: int) -> None:
    """In the first case the theorem is better than the best that is allowed: it does without ST being a whole number."""
    of = load(rate)
    block = theorem_1(of, weight)
    assert 1 <= block <= of.capacity_tuples / 2
    assert block + of.share <= of.capacity_tuples
    rounding = objective(of, block, weight) - objective(of, block + 1, weight)
    assert objective(of, block, weight) <= least_by_trying(of, weight) + max(0, rounding) + 1e-9


@pytest.mark.parametrize("rate", [201, 250, 300, 350, 390, 399])
def test_the_second_case_is_the_largest_block_in_whole_numbers_of_which_a_share_goes_on(rate: int) -> None:
    share = load(rate).share
    assert theorem_1(load(rate)) == max(math.floor(share / times) for times in range(1, 3000) if share / times + share <= 1000)


def test_the_other_text_s_block_is_cut_to_what_a_worker_can_hold() -> None:
    """Its own example, in a comment: a block of 1000 tuples where a worker's share is 500."""
    weighed = load(200).rate * load(200).window_seconds * math.sqrt(0.5 / 0.5 * 1 / 4)
    assert weighed == 1000
    assert by_transmission(load(200)) == 500
    assert by_transmission(load(50)) == 250
    assert by_transmission(load(50), transmission_weight=0.2) == 125
    assert by_transmission(load(50), serialization_cost=0.25) == 125
    assert by_transmission(load(500)) == 1


def test_rounding_errors_of_floats_take_no_tuple_away() -> None:
    """0.3 * 10 / 3 is a little less than 1, and so on."""
    for tenths in range(1, 2000):
        of = Load(tenths / 10, window_seconds=10, workers=1, capacity_tuples=10_000)
        assert theorem_1(of) == tenths


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Load(0, 1, 1, 1), "rate: 0 must be a finite number above 0"),
        (lambda: Load(1, math.inf, 1, 1), "window_seconds: inf must be a finite number above 0"),
        (lambda: Load(1, 1, 0, 1), "workers: 0 must be"),
        (lambda: Load(1, 1, 1, math.nan), "capacity_tuples: nan must be"),
        (lambda: theorem_1(load(1), 0.8), "imbalance_weight: 0.8 must be above 0 and below 0.8"),
        (lambda: theorem_1(load(1), 0.0), "imbalance_weight: 0.0 must be"),
        (lambda: by_transmission(load(1), 1.0), "transmission_weight: 1.0 must be"),
        (lambda: by_transmission(load(1), 0.5, 0.0), "serialization_cost: 0.0 must be"),
    ],
)
def test_what_means_nothing_is_refused(make, says: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ValueError, match=says):
        make()
