"""Alg. 1 and Eqs. 9 to 13: the papers' toy values, and an oracle in exact fractions that tries every number of primary parts."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamjoin.scheme.tiling import UNITS
from streamjoin.scheme.varietal import Shape, half_planes, least_capacity, partition, square, tasks_needed, varietal


def equation_13(primary: int, secondary: int, capacity: int, parts: int) -> int | None:
    """N_o for one P_gamma, in exact fractions, as the paper writes it; None when P / P_gamma leaves no room."""
    room = capacity - Fraction(primary, parts)
    if room <= 0:
        return None
    lines = secondary // room
    rest = secondary - lines * room
    if rest == 0 and lines > 0:
        return int(parts * lines)
    # With D_f = 0 the irregular line is the whole matrix.
    return int(parts * lines) + max(1, math.ceil(primary / (capacity - rest)))


def fewest(left: int, right: int, capacity: int) -> int:
    """The least of Eq. 13 over both primaries and every P_gamma that could matter."""
    counts = [
        equation_13(primary, secondary, capacity, parts)
        for primary, secondary in ((left, right), (right, left))
        for parts in range(1, 8 * primary // capacity + 4)
    ]
    return min(count for count in counts if count is not None)


def four_primaries(left: int, right: int, capacity: int) -> int:
    """Alg. 1 as printed: P_gamma is floor or ceil of |R| / V_h or |S| / V_h."""
    half = Fraction(capacity, 2)
    counts = [
        equation_13(primary, secondary, capacity, parts)
        for primary, secondary in ((left, right), (right, left))
        for parts in {math.floor(primary / half), math.ceil(primary / half)} - {0}
    ]
    return min(count for count in counts if count is not None)


def test_figure_3_needs_two_tasks_where_equation_9_takes_four() -> None:
    assert square(6, 6, 10) == Shape(2, 2)
    assert partition(6, 6, 10).tasks == 2


def test_figure_4_is_the_varietal_matrix_1_2_1_row() -> None:
    assert square(9, 7, 10).tasks == 4
    shape = partition(9, 7, 10)
    assert (shape.rows, shape.columns, shape.extra, shape.position) == (1, 2, 1, "row")
    assert str(shape) == "<1,2,1,row>"
    assert shape.loads(9, 7) == pytest.approx([10, 10, 9.5])
    assert shape.thin * 9 == pytest.approx(2.5)


def test_a_tie_in_equation_13_goes_to_the_least_replicated_volume() -> None:
    columns = varietal(9, 7, 3, 10, "column")
    assert columns is not None
    assert columns == Shape(3, 1)
    assert columns.replicated(9, 7) == sum(columns.loads(9, 7)) == pytest.approx(30)
    assert partition(9, 7, 10).replicated(9, 7) == pytest.approx(29.5)


def test_figure_2_as_one_coverage_area_needs_nine_tasks() -> None:
    assert square(12, 12, 8) == Shape(3, 3)
    assert partition(12, 12, 8) == Shape(3, 3)


def test_the_papers_four_primaries_are_not_always_enough() -> None:
    assert four_primaries(9, 11, 8) == 8
    assert partition(9, 11, 8).tasks == 7
    assert (four_primaries(19, 14, 13), four_primaries(20, 14, 13)) == (8, 7)
    assert (partition(19, 14, 13).tasks, partition(20, 14, 13).tasks) == (7, 7)


def test_where_square_takes_sixteen_tasks_thirteen_may_do_but_not_with_the_papers_primaries() -> None:
    half = 20
    volumes = [(left, right) for left in range(3 * half + 1, 4 * half + 1) for right in range(3 * half + 1, 4 * half + 1)]
    assert {square(left, right, 2 * half).tasks for left, right in volumes} == {16}
    assert {four_primaries(left, right, 2 * half) for left, right in volumes} == {11, 12, 14, 15, 16}
    assert {partition(left, right, 2 * half).tasks for left, right in volumes} == {11, 12, 13, 14, 15, 16}


def test_an_even_thin_line_lowers_the_largest_load_and_the_replicated_volume() -> None:
    shape = partition(9, 7, 10)
    even = shape.evened(9, 7)
    assert even.loads(9, 7) == pytest.approx([9.75, 9.75, 9.75])
    assert sum(even.loads(9, 7)) < sum(shape.loads(9, 7))


@pytest.mark.parametrize(("left", "right"), [(0, 0), (0, 5), (5, 0), (0, 95)])
def test_an_empty_stream_needs_as_many_tasks_as_the_other_fills(left: int, right: int) -> None:
    assert partition(left, right, 10).tasks == max(1, math.ceil((left + right) / 10))


@pytest.mark.parametrize(("left", "right", "capacity"), [(-1, 1, 1), (1, 1, 0), (1, float("nan"), 1)])
def test_impossible_volumes_are_refused(left: float, right: float, capacity: float) -> None:
    with pytest.raises(ValueError, match="must not be negative"):
        partition(left, right, capacity)


volumes = st.integers(1, 50)
capacities = st.integers(4, 30)


@settings(max_examples=150, deadline=None)
@given(volumes, volumes, capacities)
def test_no_varietal_matrix_needs_fewer_tasks(left: int, right: int, capacity: int) -> None:
    shape = partition(left, right, capacity)
    assert shape.tasks == fewest(left, right, capacity) <= four_primaries(left, right, capacity)
    assert max(shape.loads(left, right)) == pytest.approx(shape.largest_load(left, right))
    assert shape.largest_load(left, right) <= capacity * (1 + 1e-9)
    assert shape.evened(left, right).largest_load(left, right) <= capacity * (1 + 1e-9)


@settings(max_examples=100, deadline=None)
@given(volumes, volumes, capacities)
def test_half_planes_say_the_same_as_equation_13(left: int, right: int, capacity: int) -> None:
    count = fewest(left, right, capacity)
    needed = tasks_needed(np.array([float(left)]), np.array([float(right)]), capacity, 80)
    assert needed[0] == min(count, 81)
    if count <= 80:
        assert least_capacity(left, right, count) <= capacity * (1 + 1e-9)
        assert count == 1 or least_capacity(left, right, count - 1) > capacity


@settings(max_examples=100, deadline=None)
@given(volumes, volumes, capacities)
def test_more_tuples_or_less_capacity_never_need_fewer_tasks(left: int, right: int, capacity: int) -> None:
    count = partition(left, right, capacity).tasks
    assert count <= partition(left + 1, right, capacity).tasks
    assert count <= partition(left, right + 1, capacity).tasks
    assert count >= partition(left, right, capacity + 1).tasks


@settings(max_examples=100, deadline=None)
@given(volumes, volumes, capacities)
def test_the_areas_of_a_shape_tile_the_units_in_proportion_to_its_loads(left: int, right: int, capacity: int) -> None:
    shape = partition(left, right, capacity).evened(left, right)
    areas = list(shape.areas())
    assert len(areas) == shape.tasks
    covered = sum((rows.high - rows.low) * (columns.high - columns.low) for rows, columns in areas)
    assert covered == UNITS**2
    for index, (rows, columns) in enumerate(areas):
        for other_rows, other_columns in areas[:index]:
            apart = rows.low >= other_rows.high or other_rows.low >= rows.high
            assert apart or columns.low >= other_columns.high or other_columns.low >= columns.high
    held = [left * (rows.high - rows.low) / UNITS + right * (columns.high - columns.low) / UNITS for rows, columns in areas]
    assert held == pytest.approx(shape.loads(left, right), rel=1e-6)


def test_half_planes_are_few() -> None:
    assert sum(len(half_planes(tasks)[0]) for tasks in range(1, 31)) < 300
