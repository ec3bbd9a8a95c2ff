"""Levels: several main predicates as one. By random keys, what a stack says of encoded keys is what its key spaces say of keys, or a little
more."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from streamjoin.language.composite_key import MOST_KEY_SPACES, CompositeKey
from streamjoin.language.graph import Place
from streamjoin.language.predicate import INT64_MAX, INT64_MIN, Encoding, KeyExpression, MainKind, MainPredicate
from streamjoin.language.sides import SIDES
from streamjoin.language.types import BIGINT, DOUBLE
from streamjoin.scheme.models import INTERCHANGEABLE, plan_for_tasks
from streamjoin.scheme.places import by_place
from streamjoin.scheme.statistics import Histogram, SideStatistics, Statistics
from streamjoin.scheme.unknown import unknown


def main_of(encoding: Encoding, low: Any, high: Any) -> MainPredicate:
    key = KeyExpression(("k",), (DOUBLE if encoding is Encoding.FLOAT else BIGINT,), encoding)
    return MainPredicate(MainKind.RANGE, (key, key), low, high)


STACK = CompositeKey.of(
    (
        main_of(Encoding.INTEGER, -5, 5),
        main_of(Encoding.HASH, 0, 0),
        main_of(Encoding.FLOAT, -0.5, None),
        MainPredicate(MainKind.ALL),
        main_of(Encoding.FLOAT, -1e300, 0.5),
    )
)
MANY = CompositeKey.of(STACK.key_spaces * 2)
"""Of so many key spaces that an encoded key of theirs has a bit less for keys."""
ENDS = [0, 1, -1, 2**60, -(2**60), 2**60 - 1, INT64_MIN, INT64_MAX]
NUMBERS = [0.0, 5e-324, -5e-324, 1.5, 1e300, -1e300, float("inf"), -float("inf")]


def keys_of(stack: CompositeKey, key_space: int, rng: random.Random, count: int = 40) -> np.ndarray:
    main = stack.key_spaces[key_space]
    if not main.keys:
        return np.zeros(count, np.int64)
    if main.is_float:
        return np.sort(np.array([rng.choice([*NUMBERS, rng.uniform(-9, 9)]) for _ in range(count)]))
    return np.sort(np.array([rng.choice([*ENDS, rng.randint(-9, 9), rng.randint(INT64_MIN, INT64_MAX)]) for _ in range(count)], np.int64))


@pytest.mark.parametrize("stack", [STACK, MANY])
def test_encoded_keys_ascend_with_keys_and_a_range_of_encoded_keys_is_one_of_keys(stack: CompositeKey) -> None:
    rng = random.Random(1)
    for _ in range(2_000):
        key_space = rng.randrange(len(stack.key_spaces))
        keys = keys_of(stack, key_space, rng)
        encoded_keys = stack.encoded_keys(key_space, keys)
        assert (encoded_keys[1:] >= encoded_keys[:-1]).all()
        low, high = sorted(rng.sample([*map(int, encoded_keys), rng.randint(INT64_MIN, INT64_MAX)], 2))
        between = stack.keys_between(key_space, low, high)
        inside = np.zeros(len(keys), bool)
        if between is not None:
            inside = np.ones(len(keys), bool)
            inside &= True if between[0] is None else keys >= between[0]
            inside &= True if between[1] is None else keys < between[1]
        assert (inside == ((encoded_keys >= low) & (encoded_keys < high))).all(), (key_space, low, high, between)


@pytest.mark.parametrize("stack", [STACK, MANY])
def test_what_a_key_reaches_its_encoded_key_reaches_and_no_other_key_space(stack: CompositeKey) -> None:
    rng = random.Random(2)
    for _ in range(400):
        key_space = rng.randrange(len(stack.key_spaces))
        main, keys, others = stack.key_spaces[key_space], keys_of(stack, key_space, rng), keys_of(stack, key_space, rng)
        encoded_keys, of_others = stack.encoded_keys(key_space, keys), stack.encoded_keys(key_space, others)
        for back in (False, True):
            number = rng.randrange(len(keys))
            key, encoded_key = keys[number].item(), int(encoded_keys[number])
            low, high = (main.reach_back if back else main.reach)(key, key)
            first, last = (stack.reach_back if back else stack.reach)(encoded_key, encoded_key)
            reached = np.ones(len(others), bool)
            reached &= True if low is None else others >= low
            reached &= True if high is None else others <= high
            assert first is not None
            assert last is not None
            assert ((of_others[reached] >= first) & (of_others[reached] <= last)).all(), (key_space, key)
            for other in range(len(stack.key_spaces) - 1):  # above the last key space there is nothing
                if other != key_space:
                    elsewhere = stack.encoded_keys(other, keys_of(stack, other, rng))
                    assert not ((elsewhere >= first) & (elsewhere <= last)).any() or key_space == len(stack.key_spaces) - 1


@pytest.mark.parametrize("stack", [STACK, MANY])
def test_encoded_keys_that_no_key_space_has_reach_to_the_end(stack: CompositeKey) -> None:
    assert stack.reach(None, None) == (INT64_MIN, INT64_MAX)
    above = int(stack.encoded_keys(len(stack.key_spaces) - 1, np.array([np.inf]))[0]) + (1 << stack.key_space_bits)
    assert stack.reach(above, above)[1] == INT64_MAX


def test_there_are_as_many_key_spaces_as_four_bits_tell_apart() -> None:
    key_space = main_of(Encoding.INTEGER, 0, 0)
    assert len(CompositeKey.of((key_space,) * MOST_KEY_SPACES).key_spaces) == MOST_KEY_SPACES
    for key_spaces in ((), (key_space,) * (MOST_KEY_SPACES + 1)):
        with pytest.raises(ValueError, match="key spaces"):
            CompositeKey.of(key_spaces)


@pytest.mark.parametrize("stack", [STACK, MANY])
@pytest.mark.parametrize("model", [model for model in INTERCHANGEABLE if model not in ("hash", "readj")])
def test_on_every_key_space_a_scheme_finds_each_pair_that_its_main_predicate_admits_once(stack: CompositeKey, model: str) -> None:
    rng = random.Random(3)
    places = [
        Place(2 * key_space + side, side, key_space, main.key(side)) for key_space, main in enumerate(stack.key_spaces) for side in SIDES
    ]
    for tasks in (1, 2, 5, 9):
        scheme = plan_for_tasks(model, unknown(places, stack, [rng.randint(1, 1_000) for _ in places]), stack, tasks)
        scheme.check(stack)
        areas = by_place(scheme, places, stack).areas
        for _ in range(100):
            key_space = rng.randrange(len(stack.key_spaces))
            left, right = rng.choice(keys_of(stack, key_space, rng).tolist()), rng.choice(keys_of(stack, key_space, rng).tolist())
            low, high = stack.key_spaces[key_space].reach(left, left)
            if (low is not None and right < low) or (high is not None and right > high):
                continue
            units = rng.randrange(1 << 32), rng.randrange(1 << 32)
            found = [
                area
                for area in areas
                if all(
                    (area.keys[place].low is None or key >= area.keys[place].low)
                    and (area.keys[place].high is None or key < area.keys[place].high)
                    and bool(area.units[place].contains(np.array([unit], np.uint32))[0])
                    for place, key, unit in ((2 * key_space, left, units[0]), (2 * key_space + 1, right, units[1]))
                )
            ]
            for place in (2 * key_space, 2 * key_space + 1):  # whichever tuple comes first is held where the other comes to
                assert sum(area.holds[place] for area in found) == 1, (key_space, left, right)


def test_a_key_space_on_which_nothing_matches_is_cut_like_any_other() -> None:
    rng = random.Random(4)
    stack = CompositeKey.of((main_of(Encoding.HASH, 0, 0), main_of(Encoding.INTEGER, 1, -1), main_of(Encoding.INTEGER, -5, 5)))
    for tasks in (2, 3, 6):
        sides = []
        for _ in SIDES:
            encoded_keys = [
                stack.encoded_keys(key_space, np.array([rng.randint(-9, 9) for _ in range(40)], np.int64)) for key_space in range(3)
            ]
            sides.append(SideStatistics(120.0, Histogram.from_sample(np.concatenate(encoded_keys))))
        plan_for_tasks("adsp", Statistics(tuple(sides)), stack, tasks).check(stack)
