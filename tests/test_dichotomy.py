"""Alg. 2 and Eq. 14: Fig. 2's toy example, and brute force over every area dichotomy."""

from __future__ import annotations

import math
from functools import cache

import numpy as np
import pytest

from streamjoin.language.predicate import Encoding, KeyExpression, MainKind, MainPredicate
from streamjoin.scheme import all_dichotomies, dichotomy, peeling_many
from streamjoin.scheme.cuts import Dichotomy, lower_bound
from streamjoin.scheme.matrix import Matrix
from streamjoin.scheme.models import plan_for_capacity
from streamjoin.scheme.statistics import Histogram, SideStatistics, Statistics, loads
from streamjoin.scheme.varietal import partition
from test_varietal import fewest

KEY = KeyExpression(("k",), (), Encoding.INTEGER)


def band(low: int | None, high: int | None) -> MainPredicate:
    return MainPredicate(MainKind.RANGE, (KEY, KEY), low, high)


def side(keys: list[int]) -> SideStatistics:
    return SideStatistics(len(keys), Histogram.from_sample(np.array(keys)))


# Twelve tuples a side with |R.k - S.k| <= 2, the first five of which all join each other. Key 20 is between the seventh and the eighth.
FIGURE_2 = [4, 4, 5, 5, 6, 17, 18, 22, 23, 30, 31, 32]
FIGURE_2_STATISTICS = Statistics((side(FIGURE_2), side(FIGURE_2)))


def test_figure_2_takes_four_tasks_by_area_dichotomy() -> None:
    matrix = Matrix.of(FIGURE_2_STATISTICS, band(-2, 2))
    found = dichotomy.partition(matrix, 8)
    assert found.tasks == 4
    # Fig. 5: the first five tuples a side take two tasks, the other seven two more.
    assert [area.volumes(matrix) for area in found.areas] == [(5, 5), (4, 4), (3, 3)]


def test_figure_2_takes_six_tasks_when_cut_at_key_20_and_nine_uncut() -> None:
    assert partition(7, 7, 8).tasks + partition(5, 5, 8).tasks == 6
    assert partition(12, 12, 8).tasks == 9


def test_figure_2_by_model() -> None:
    main = band(-2, 2)
    schemes = {model: plan_for_capacity(model, FIGURE_2_STATISTICS, main, 8) for model in ("adsp", "square", "hash")}
    for scheme in schemes.values():
        scheme.check(main)
    assert {model: scheme.tasks for model, scheme in schemes.items()} == {"adsp": 4, "square": 9, "hash": 3}
    # The figure gives 1-DSP four, as it counts what a task is sent only to join, too.
    assert loads(schemes["hash"], FIGURE_2_STATISTICS).tolist() == [8, 8, 8]


def test_an_unequal_join_is_one_coverage_area() -> None:
    scheme = plan_for_capacity("adsp", FIGURE_2_STATISTICS, MainPredicate(MainKind.NOT_EQUAL, (KEY, KEY)), 8)
    assert scheme.tasks == 9
    assert {area.coverage for area in scheme.areas} == {0}


FAR = 1000
"""Where the open buckets end for the oracle: further than any band here reaches."""


class Oracle:
    """Eq. 14 as it stands: a rectangle, or any two disjoint parts of it that cover its results, one at each corner; no shared code."""

    def __init__(
        self, rows: list[int], columns: list[int], volumes: tuple[list[int], list[int]], low: int, high: int, capacity: int
    ) -> None:
        self.rows, self.columns, self.capacity = len(rows) + 1, len(columns) + 1, capacity
        self.left, self.right = volumes
        row_ends, column_ends = [-FAR, *rows, FAR], [-FAR, *columns, FAR]
        self.result = {
            (i, j)
            for i in range(self.rows)
            for j in range(self.columns)
            # Some right key minus some left key of the two buckets lies in [low, high].
            if column_ends[j + 1] - 1 - row_ends[i] >= low and column_ends[j] - (row_ends[i + 1] - 1) <= high
        }
        self.whole = cache(self._whole)
        self.fewest = cache(self._fewest)

    def _whole(self, left: int, right: int) -> int:
        if left and right:
            return fewest(left, right, self.capacity)
        return max(1, math.ceil((left + right) / self.capacity))

    def cells(self, a: int, b: int, c: int, d: int) -> set[tuple[int, int]]:
        return {(i, j) for i, j in self.result if a <= i <= b and c <= j <= d}

    def _fewest(self, a: int, b: int, c: int, d: int) -> int:
        best = self.whole(sum(self.left[a : b + 1]), sum(self.right[c : d + 1]))
        results = self.cells(a, b, c, d)
        for i in range(a, b + 1):
            for j in range(c, d + 1):
                first = self.cells(a, i, c, j)
                rest = results - first
                if not first or not rest:
                    continue
                # The second part must hold the rest; a larger one that is still apart needs no fewer tasks.
                i2, j2 = min(row for row, _ in rest), min(column for _, column in rest)
                if i2 > i or j2 > j:
                    best = min(best, self.fewest(a, i, c, j) + self.fewest(i2, b, j2, d))
        return best


def random_case(rng: np.random.Generator, most: int) -> tuple[list[int], list[int], tuple[list[int], list[int]], int, int, int]:
    rows = sorted(rng.choice(40, rng.integers(1, most), replace=False).tolist())
    columns = sorted(rng.choice(40, rng.integers(1, most), replace=False).tolist())
    volumes = (rng.integers(0, 5, len(rows) + 1).tolist(), rng.integers(0, 5, len(columns) + 1).tolist())
    low, high = sorted(rng.integers(-25, 26, 2).tolist())
    kind = rng.integers(3)
    low, high = (low if kind != 1 else -5 * FAR), (high if kind != 2 else 5 * FAR)
    return rows, columns, volumes, low, high, int(rng.integers(3, 15))


def matrix_of(rows: list[int], columns: list[int], volumes: tuple[list[int], list[int]], main: MainPredicate) -> Matrix:
    left, right = (Histogram(np.array(bounds), np.array(counts)) for bounds, counts in zip((rows, columns), volumes, strict=True))
    return Matrix.between(left, left.total, right, right.total, main)


def test_no_area_dichotomy_needs_fewer_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(20)
    better_than_whole = inner = 0
    for case in range(180):
        rows, columns, volumes, low, high, capacity = random_case(rng, 7)
        if not sum(volumes[0]) or not sum(volumes[1]):
            continue
        main = band(None if low < -FAR else low, None if high > FAR else high)
        matrix = matrix_of(rows, columns, volumes, main)
        oracle = Oracle(rows, columns, volumes, low, high, capacity)
        expected = oracle.fewest(0, len(rows), 0, len(columns))
        found = dichotomy.partition(matrix, capacity)
        message = f"seed 20, case {case}: {rows=} {columns=} {volumes=} {low=} {high=} {capacity=}"
        assert found.tasks == expected, message
        assert sum(tasks_of(matrix, capacity, found)) == expected, message
        assert lower_bound(matrix, capacity) <= expected, message
        assert dichotomy.fits(matrix, capacity, expected - 1) is None, message
        fitting = dichotomy.fits(matrix, capacity, expected)
        assert fitting is not None, message
        assert fitting.tasks == expected, message
        better_than_whole += expected < partition(matrix.left, matrix.right, capacity).tasks
        with monkeypatch.context() as peeling_only:
            peeling_only.setattr(all_dichotomies, "EXACT_CELLS", 0)
            inner += dichotomy.partition(matrix, capacity).tasks > expected
    assert better_than_whole > 50
    assert inner > 0, "no case needed a cut that ends at another, so that all dichotomies were tried in vain"


def tasks_of(matrix: Matrix, capacity: float, found: Dichotomy) -> list[int]:
    return [partition(*area.volumes(matrix), capacity).tasks for area in found.areas]


def covers_every_result_once(matrix: Matrix, found: Dichotomy) -> bool:
    times = np.zeros((matrix.rows, matrix.columns), np.int64)
    for area in found.areas:
        times[area.top : area.bottom, area.begin : area.end] += 1
    column = np.arange(matrix.columns)
    result = (matrix.first[:, None] <= column) & (column <= matrix.last[:, None])
    return bool((times <= 1).all() and (times[result] == 1).all())


def test_the_coverage_areas_of_large_matrices_cover_every_result_once() -> None:
    rng = np.random.default_rng(21)
    for case in range(40):
        rows, columns = (np.unique(rng.integers(-(10**6), 10**6, 60)) for _ in range(2))
        volumes = rng.exponential(1, len(rows) + 1), rng.exponential(1, len(columns) + 1)
        width = int(rng.integers(0, 10**6))
        main = [band(-width, width), band(1, None), band(None, width)][case % 3]
        statistics = Statistics((SideStatistics(1000, Histogram(rows, volumes[0])), SideStatistics(700, Histogram(columns, volumes[1]))))
        matrix = Matrix.of(statistics, main)
        capacity = float(rng.uniform(100, 1000))
        found = dichotomy.partition(matrix, capacity)
        assert covers_every_result_once(matrix, found), f"seed 21, case {case}"
        assert sum(tasks_of(matrix, capacity, found)) <= found.tasks, f"seed 21, case {case}"
        assert found.tasks <= partition(matrix.left, matrix.right, capacity).tasks, f"seed 21, case {case}"


def test_the_band_is_a_staircase_that_holds_every_admitted_pair() -> None:
    rng = np.random.default_rng(22)
    for case in range(100):
        rows, columns, volumes, low, high, _ = random_case(rng, 9)
        main = band(None if low < -FAR else low, None if high > FAR else high)
        matrix = matrix_of(rows, columns, volumes, main)
        expected = Oracle(rows, columns, volumes, low, high, 5).result
        cells = {(i, j) for i in range(matrix.rows) for j in range(int(matrix.first[i]), int(matrix.last[i]) + 1)}
        by_columns = {(i, j) for j in range(matrix.columns) for i in range(int(matrix.first_row[j]), int(matrix.last_row[j]) + 1)}
        assert cells == by_columns == expected, f"seed 22, case {case}"


def test_a_capacity_far_too_small_is_refused() -> None:
    with pytest.raises(ValueError, match="would need more than 10,000 tasks"):
        dichotomy.partition(Matrix.of(FIGURE_2_STATISTICS, band(None, None)), 0.01)


def test_a_thousand_buckets_a_side_are_planned() -> None:
    rng = np.random.default_rng(23)
    sides = [SideStatistics(1e6, Histogram.from_sample(rng.normal(0, 1e6, 50_000).astype(np.int64))) for _ in range(2)]
    statistics = Statistics(tuple(sides))
    main = band(-50_000, 50_000)
    assert 8 <= plan_for_capacity("adsp", statistics, main, 250_000).tasks <= 16


def test_of_thousands_of_tasks_no_area_is_left_out_unasked_that_would_be_of_use() -> None:
    rng = np.random.default_rng(76)
    some = 0
    for case in range(100):
        capacity, count = float(rng.uniform(0.5, 20)), int(rng.integers(1, 60))
        left, right = (np.cumsum(rng.exponential(rng.choice([0.1, 1, 10]), count)) for _ in range(2))
        pairs = left * right * np.sort(rng.uniform(0, 1, count) ** rng.choice([0.2, 1, 3]))[::-1]
        left_over, wasted = int(rng.integers(1, 2000)), float(rng.choice([0, 0.1, 0.5, 2]))
        per_task = (capacity / 2) ** 2
        behind = float(pairs.max() + rng.uniform(0, left_over) * per_task)
        chosen, needed = peeling_many._useful(left, right, pairs, capacity, left_over, behind, wasted)
        every = peeling_many._about_needed(left, right, capacity)
        message = f"seed 76, case {case}"
        expected = []
        for number, (tasks, one, other, inside) in enumerate(zip(every, left, right, pairs, strict=True)):
            assert tasks > 50 or tasks >= partition(one, other, capacity).tasks, message
            waste = tasks - max(inside / per_task, (one + other) / capacity)
            thrifty = waste <= 6 + wasted * tasks or inside >= 0.8 * one * other
            if tasks <= left_over and behind - inside <= (left_over - tasks + 1e-6) * per_task:
                expected += [number] if tasks <= 12 or (inside >= 0.3 * one * other and thrifty) else []
        assert chosen.tolist() == expected, message
        assert needed.tolist() == every[expected].tolist(), message
        some += 0 < len(expected) < count
    assert some > 10
