"""The cuts of a matrix into coverage areas (A-DSP, Def. 5), and what lies between any two of them, in a few steps of arithmetic."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from streamjoin.language.sides import LEFT, RIGHT
from streamjoin.scheme.matrix import Matrix
from streamjoin.scheme.varietal import EPSILON

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True, slots=True)
class Rectangle:
    """A coverage area over a matrix: rows [top, bottom), columns [begin, end)."""

    top: int
    bottom: int
    begin: int
    end: int

    def volumes(self, matrix: Matrix) -> tuple[float, float]:
        """Its left and right tuples."""
        return (
            float(matrix.row_sums[self.bottom] - matrix.row_sums[self.top]),
            float(matrix.column_sums[self.end] - matrix.column_sums[self.begin]),
        )


@dataclass(frozen=True, slots=True)
class Dichotomy:
    """Coverage areas in the order of the cuts, and the tasks that they need together."""

    tasks: int
    areas: tuple[Rectangle, ...]


def lower_bound(matrix: Matrix, capacity: float) -> int:
    """A number of tasks below which no tiling can stay: each holds at most V tuples, and joins at most (V/2)² pairs (Eq. 7)."""
    by_tuples = (matrix.left + matrix.right) / capacity
    by_pairs = matrix.result_volume / (capacity / 2) ** 2
    return max(1, math.ceil(max(by_tuples, by_pairs) * (1 - EPSILON)))


@dataclass(frozen=True, slots=True, eq=False)
class Cuts:
    """All cuts of a matrix, numbered: 1..rows after rows, rows + 1..rows + columns after columns. Arrays over these numbers."""

    bottom: Array
    """Where an area before the cut ends, in rows, and in ``end`` in columns (exclusive)."""
    end: Array
    next_top: Array
    """Where an area after the cut begins, unless an earlier cut lies beyond: in rows, and in ``next_begin`` in columns."""
    next_begin: Array
    left: Array
    """The tuples before ``bottom``, and in ``right`` those before ``end``: neither falls among the cuts after rows, or after columns."""
    right: Array

    @classmethod
    def of(cls, matrix: Matrix) -> Cuts:
        rows, columns = matrix.rows, matrix.columns
        bottom = np.concatenate([np.arange(rows + 1), matrix.last_row + 1])
        end = np.concatenate([[0], matrix.last + 1, np.arange(1, columns + 1)])
        return cls(
            bottom=bottom,
            end=end,
            # After the last row, or the last column, nothing remains.
            next_top=np.concatenate([np.arange(rows + 1), matrix.first_row[1:], [rows]]),
            next_begin=np.concatenate([matrix.first, [columns], np.arange(1, columns + 1)]),
            left=matrix.row_sums[bottom],
            right=matrix.column_sums[end],
        )


@dataclass(frozen=True, slots=True, eq=False)
class Results:
    """The pairs inside the band, summed so that those of any area that a cut leaves are found at once."""

    matrix: Matrix
    below: tuple[Array, Array]
    """Of the rows before each, and of the columns: the volume of the row times that of the columns up to its last."""
    inside: tuple[Array, Array]
    """The same, of its columns in the band only."""
    whole: tuple[Array, ...]
    """Per column the first row that reaches none before it, and per row the first such column."""

    @classmethod
    def of(cls, matrix: Matrix) -> Results:
        rows, columns = np.diff(matrix.row_sums), np.diff(matrix.column_sums)
        reached = matrix.column_sums[matrix.last + 1], matrix.row_sums[matrix.last_row + 1]
        begun = matrix.column_sums[matrix.first], matrix.row_sums[matrix.first_row]
        return cls(
            matrix,
            (_before(rows * reached[0]), _before(columns * reached[1])),
            (_before(rows * (reached[0] - begun[0])), _before(columns * (reached[1] - begun[1]))),
            tuple(
                np.searchsorted(first, np.arange(count + 1))
                for first, count in ((matrix.first, matrix.columns), (matrix.first_row, matrix.rows))
            ),
        )

    def of_areas(self, top: Array | int, begin: Array | int, cut: Array | int) -> Array:
        """The pairs of the areas between these corners and cuts that can match."""
        rows, matrix = self.matrix.rows, self.matrix
        return np.where(
            cut <= rows,
            self._within(LEFT, top, np.minimum(cut, rows), self.whole[LEFT][begin], matrix.column_sums[begin]),
            self._within(RIGHT, begin, np.maximum(cut - rows, 0), self.whole[RIGHT][top], matrix.row_sums[top]),
        )

    def of_rest(self, top: int, begin: int) -> float:
        """The same of all that lies beyond this corner."""
        return float(self._within(LEFT, top, self.matrix.rows, self.whole[LEFT][begin], self.matrix.column_sums[begin]))

    def of_cuts(self, side: int, top: int, begin: int, count: int) -> Array:
        """The same between this corner and the ``count`` cuts after it: after rows (LEFT), or after columns (RIGHT)."""
        sums, other = (self.matrix.row_sums, self.matrix.column_sums)[:: 1 - 2 * side]
        below, inside = self.below[side], self.inside[side]
        low, before = (top, other[begin]) if side == LEFT else (begin, other[top])
        whole_from = max(low, int(self.whole[side][begin if side == LEFT else top]))
        high = slice(low + 1, low + count + 1)
        if whole_from <= low:
            return np.asarray(inside[high] - inside[low])
        middle = np.minimum(np.arange(low + 1, low + count + 1), whole_from)
        return np.asarray(below[middle] - below[low] - before * (sums[middle] - sums[low]) + inside[high] - inside[middle])

    def _within(self, side: int, low: Array | int, high: Array | int, whole_from: Array, before: Array) -> Array:
        """The pairs of lines low..high - 1 that lie beyond ``before``; from ``whole_from`` on, none lies before it."""
        sums = (self.matrix.row_sums, self.matrix.column_sums)[side]
        middle = np.clip(whole_from, low, np.maximum(low, high))
        below, inside = self.below[side], self.inside[side]
        return np.asarray(below[middle] - below[low] - before * (sums[middle] - sums[low]) + inside[high] - inside[middle])


def _before(values: Array) -> Array:
    return np.concatenate([[0.0], np.cumsum(values)])
