"""Layouts of joins, and the widest of their windows: what admits all that any of them admits, and no more than it must."""

from __future__ import annotations

import random

import pytest

from streamjoin.language.composite_key import CompositeKey
from streamjoin.language.condition import Condition, parse_condition
from streamjoin.language.ddl import parse_schema
from streamjoin.language.layout import layouts
from streamjoin.language.predicate import MainKind, MainPredicate
from streamjoin.language.window import Window, WindowKind, widest

SCHEMA = parse_schema("k BIGINT, d DOUBLE, s STRING")
UNBOUNDED = Window(WindowKind.UNBOUNDED)


def conditions(*texts: str) -> list[Condition]:
    return [parse_condition(text, (("l", SCHEMA), ("r", SCHEMA))) for text in texts]


def bounds(main: MainPredicate) -> tuple[object, ...]:
    return main.kind, main.low, main.high, main.low_strict, main.high_strict


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (("abs(l.k - r.k) <= 2", "r.k BETWEEN l.k + 5 AND l.k + 9"), (-2, 9, False, False)),
        (("l.k < r.k", "l.k >= r.k + 4"), (None, None, False, False)),
        (("l.k < r.k", "abs(l.k - r.k) <= 3"), (-3, None, False, False)),
        (("abs(l.d - r.d) < 1.5", "abs(l.d - r.d) <= 1.5"), (-1.5, 1.5, False, False)),
        (("abs(l.d - r.d) < 1.5", "abs(l.d - r.d) < 0.5"), (-1.5, 1.5, True, True)),
        (("l.s = r.s", "l.s = r.s AND l.k > r.k"), (0, 0, False, False)),
    ],
)
def test_joins_of_the_same_keys_lie_by_the_hull_of_their_bands(texts: tuple[str, ...], expected: tuple[object, ...]) -> None:
    for order in (texts, texts[::-1]):
        found = layouts(conditions(*order))[0]
        assert bounds(found.main) == (MainKind.RANGE, *expected)
        assert not any(found.indexes(join) for join in range(len(order)))
        assert [placed.between.main.keys for placed in found.joins] == [found.main.keys] * len(order)


@pytest.mark.parametrize(
    "texts",
    [("l.k < r.k", "l.d < r.d"), ("l.k < r.k", "l.s = r.s"), ("abs(l.k - r.k) <= 2", "l.k != r.k"), ("l.k < r.k", "l.k + r.k < 7")],
)
def test_joins_of_no_common_keys_have_each_pair_meet_and_find_theirs_by_indexes_of_their_own(texts: tuple[str, ...]) -> None:
    found, _ = layouts(conditions(*texts))
    assert found.main.kind is MainKind.ALL
    assert [found.indexes(join) for join in (0, 1)] == [True, True]
    assert found.text == "all"


@pytest.mark.parametrize(
    ("texts", "key_spaces", "lie_by"),
    [
        (("l.k < r.k", "l.d < r.d"), (0, 1), ["l.k < r.k", "l.d < r.d"]),
        (("l.k < r.k", "l.s = r.s", "l.k >= r.k + 4"), (0, 1, 0), ["(l.k < r.k) OR (l.k >= r.k + 4)", "l.s = r.s"]),
        (("abs(l.k - r.k) <= 2", "l.k != r.k", "l.k + r.k < 7"), (0, 1, 2), ["abs(l.k - r.k) <= 2", "l.k <> r.k", "l.k + r.k < 7"]),
        (("l.k < r.k OR l.d < r.d", "l.k = r.k", "l.k < r.k OR l.s = r.s"), (0, 1, 0), ["all", "l.k = r.k"]),
    ],
)
def test_joins_of_no_common_keys_may_have_key_spaces_of_their_own(
    texts: tuple[str, ...], key_spaces: tuple[int, ...], lie_by: list[str]
) -> None:
    _, found = layouts(conditions(*texts))
    assert isinstance(found.main, CompositeKey)
    assert tuple(placed.key_space for placed in found.joins) == key_spaces
    assert [main.text or str(main.kind) for main in found.main.key_spaces] == lie_by
    assert [(place.side, place.key_space) for place in found.places] == [
        (side, key_space) for key_space in range(len(lie_by)) for side in (0, 1)
    ]
    assert [placed.places for placed in found.joins] == [(2 * key_space, 2 * key_space + 1) for key_space in key_spaces]
    assert not any(found.indexes(join) for join in range(len(texts)))


@pytest.mark.parametrize(
    ("texts", "lie_by"),
    [
        (("l.k = r.k", "l.k = r.k AND l.d < r.d"), [("hash", ("k",))]),
        (("l.k = r.k AND l.s = r.s", "l.s = r.s AND l.k = r.k"), [("hash", ("k", "s"))]),
        (("l.k = r.k", "abs(l.k - r.k) <= 5"), [("integer", ("k",))]),
    ],
)
def test_equalities_that_all_joins_share_are_keys_and_no_two_layouts_have_one_text(
    texts: tuple[str, ...], lie_by: list[tuple[str, tuple[str, ...]]]
) -> None:
    """The operator finds the layout that a driver has chosen by its text."""
    found = layouts(conditions(*texts))
    assert [(layout.main.keys[0].encoding.value, tuple(sorted(layout.main.keys[0].sql))) for layout in found] == lie_by
    assert len({layout.main.text for layout in found}) == len(found)
    assert not any(layout.indexes(join) for layout in found for join in range(len(texts)))


def test_a_join_without_keys_needs_no_index() -> None:
    found, _ = layouts(conditions("l.k < r.k OR l.d < r.d", "l.k < r.k"))
    assert [found.indexes(join) for join in (0, 1)] == [False, True]


def test_one_join_may_lie_by_each_of_its_candidates() -> None:
    (condition,) = conditions("l.k < r.k AND l.s = r.s")
    found = layouts([condition])
    assert [layout.main for layout in found] == [candidate.main for candidate in condition.candidates]
    assert len(found) > 1


def test_the_hull_admits_every_pair_that_any_of_its_joins_admits() -> None:
    rng = random.Random(0)
    for case in range(200):
        texts = []
        for _ in range(rng.randint(2, 5)):
            low = rng.randint(-6, 4)
            high = low + rng.randint(0, 5)
            texts.append(rng.choice([f"r.k - l.k BETWEEN {low} AND {high}", f"r.k >= l.k + {low}", f"r.k < l.k + {high}"]))
        found = layouts(conditions(*texts))[0]
        admitted = {d for d in range(-15, 16) if is_admitted(found.main, d)}
        own = {d for d in range(-15, 16) for placed in found.joins if is_admitted(placed.between.main, d)}
        assert own <= admitted, f"case {case}: {texts}"
        assert not own or (min(own), max(own)) == (min(admitted), max(admitted)), f"case {case}: {texts}"


def is_admitted(main: MainPredicate, difference: int) -> bool:
    return (main.low is None or main.low <= difference) and (main.high is None or difference <= main.high)


def time_window(rng: random.Random, slide: int | None = None) -> Window:
    slides = rng.choice([0, 2, 3]) if slide is None else slide
    before, after = (rng.randint(slides, 12) for _ in range(2))
    return Window(WindowKind.RANGE, before_micros=before, after_micros=after, slide_micros=slides)


def holds(window: Window, left: int, right: int) -> bool:
    """By the definition in the module's docstring."""
    slide = window.slide_micros or 1
    if right >= left:
        return right <= left // slide * slide + window.after_micros
    return left <= right // slide * slide + window.before_micros


@pytest.mark.parametrize("slide", [None, 0, 3])
def test_the_widest_window_holds_every_pair_of_all_and_slides_as_they_do(slide: int | None) -> None:
    rng = random.Random(1)
    for case in range(100):
        windows = [time_window(rng, slide) for _ in range(rng.randint(1, 4))]
        found = widest(windows)
        if slide is not None:
            assert found.slide_micros == slide
        for left in range(6):
            for right in range(left - 15, left + 16):
                assert holds(found, left, right) or not any(holds(window, left, right) for window in windows), f"case {case}: {windows}"


def test_windows_of_several_kinds_have_no_widest() -> None:
    with pytest.raises(ValueError, match=r"windows of several kinds have no widest: range, rows$"):
        widest([Window(WindowKind.ROWS, rows=3), Window(WindowKind.RANGE, after_micros=1)])


def test_what_a_window_lets_go_follows_from_what_a_wider_one_does() -> None:
    rng = random.Random(2)
    for case in range(200):
        windows = [time_window(rng) for _ in range(3)] if case % 2 else [Window(WindowKind.ROWS, rows=rng.randint(1, 30)) for _ in range(3)]
        wider = widest(windows)
        marks = (rng.choice([None, rng.randint(-50, 50)]), rng.choice([None, rng.randint(-50, 50)]))
        for window in windows:
            assert window.expired_within(wider, wider.expired_before(marks)) == window.expired_before(marks), f"case {case}: {windows}"
    assert UNBOUNDED.expired_within(UNBOUNDED, UNBOUNDED.expired_before((1, 2))) == (None, None)
