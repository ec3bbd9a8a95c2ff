"""All area dichotomies of a small matrix (A-DSP, Eq. 14), of which the best is taken (see :mod:`~streamjoin.scheme.dichotomy`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from streamjoin.scheme.cuts import Cuts, Dichotomy, Rectangle
from streamjoin.scheme.matrix import Matrix
from streamjoin.scheme.varietal import EPSILON, tasks_needed

Array = np.ndarray[Any, np.dtype[Any]]

EXACT_CELLS = 26 * 26
"""Up to here all dichotomies are tried, in about a tenth of a second."""


def is_small(matrix: Matrix) -> bool:
    """Whether all dichotomies should be tried: there are not too many, and four results meet, for only there can a cut end at another."""
    return matrix.rows * matrix.columns <= EXACT_CELLS and bool((matrix.last[:-1] > matrix.first[1:]).any())


@dataclass(frozen=True, slots=True, eq=False)
class _Parts:
    """The rectangles that a matrix may be cut into: those with a result in the upper left and in the lower right corner.

    Results are numbered row by row. A part is the numbers of these two, its ``corner`` and the ``opposite`` one.
    """

    matrix: Matrix
    cuts: Cuts
    row: Array
    """Of each result; and in ``column`` its column."""
    column: Array
    number: Array
    """Of the result in each cell of the band."""

    @classmethod
    def of(cls, matrix: Matrix) -> _Parts:
        column = np.arange(matrix.columns)
        band = (matrix.first[:, None] <= column) & (column <= matrix.last[:, None])
        row, column = np.nonzero(band)
        return cls(matrix, Cuts.of(matrix), row, column, np.cumsum(band).reshape(band.shape) - 1)

    def all(self) -> tuple[Array, Array]:
        corner, opposite = np.nonzero((self.row[:, None] <= self.row) & (self.column[:, None] <= self.column))
        return corner, opposite

    def edges(self, corner: Array, opposite: Array) -> tuple[Array, Array, Array, Array]:
        """Top, bottom, begin and end, as of a Rectangle."""
        return self.row[corner], self.row[opposite] + 1, self.column[corner], self.column[opposite] + 1

    def volumes(self, corner: Array, opposite: Array) -> tuple[Array, Array]:
        top, bottom, begin, end = self.edges(corner, opposite)
        rows, columns = self.matrix.row_sums, self.matrix.column_sums
        return rows[bottom] - rows[top], columns[end] - columns[begin]

    def bounds(self, corner: Array, opposite: Array, capacity: float) -> tuple[Array, Array]:
        """Eq. 7: how many tasks each part takes at least, and how many more what lies beside it does, in any dichotomy that it is of."""
        matrix = self.matrix
        top, bottom, begin, end = self.edges(corner, opposite)
        before = np.zeros((matrix.rows + 1, matrix.columns + 1))
        before[self.row + 1, self.column + 1] = np.diff(matrix.row_sums)[self.row] * np.diff(matrix.column_sums)[self.column]
        before = before.cumsum(axis=0).cumsum(axis=1)
        pairs = before[bottom, end] - before[top, end] - before[bottom, begin] + before[top, begin]
        left, right = self.volumes(corner, opposite)
        tasks = np.stack([(left + right) / capacity, pairs / (capacity / 2) ** 2])
        everything = np.array([[(matrix.left + matrix.right) / capacity], [matrix.result_volume / (capacity / 2) ** 2]])
        within, beside = (np.ceil(part * (1 - EPSILON) - EPSILON).max(axis=0) for part in (tasks, everything - tasks))
        return np.maximum(within, 1), beside

    def halves(self, corner: Array, opposite: Array) -> tuple[Array, Array]:
        """Def. 5: all cuts of parts with as many rows and columns together, as (parts, cuts).

        The part (a, b) falls into (a, first) and (second, b).
        """
        top, bottom, begin, end = (edge[:, None] for edge in self.edges(corner, opposite))
        after_row = top + 1 + np.arange(int((bottom - top + end - begin)[0, 0]) - 2)
        cut = np.where(after_row < bottom, after_row, self.matrix.rows + begin + 1 + after_row - bottom)
        first = self.number[np.minimum(bottom, self.cuts.bottom[cut]) - 1, np.minimum(end, self.cuts.end[cut]) - 1]
        second = self.number[np.maximum(top, self.cuts.next_top[cut]), np.maximum(begin, self.cuts.next_begin[cut])]
        return first, second


def all_dichotomies(matrix: Matrix, capacity: float, most: int) -> Dichotomy | None:
    parts = _Parts.of(matrix)
    corner, opposite = parts.all()
    least, beside = parts.bounds(corner, opposite, capacity)
    # The others are not on the way to any dichotomy of at most ``most`` tasks.
    useful = least + beside <= most
    corner, opposite, least = corner[useful], opposite[useful], least[useful]
    needed = tasks_needed(*parts.volumes(corner, opposite), capacity, most)
    # By part: the tasks of one coverage area, and of the best dichotomy.
    whole = np.full((len(parts.row), len(parts.row)), most + 1, np.int32)
    whole[corner, opposite] = needed
    fewest = whole.copy()
    size = parts.row[opposite] - parts.row[corner] + parts.column[opposite] - parts.column[corner]
    unsolved = needed > least
    for each in np.unique(size[unsolved & (size > 0)]).tolist():
        a, b = corner[unsolved & (size == each)], opposite[unsolved & (size == each)]
        first, second = parts.halves(a, b)
        fewest[a, b] = np.minimum(whole[a, b], (fewest[a[:, None], first] + fewest[second, b[:, None]]).min(axis=1))
    tasks = int(fewest[0, -1])
    if tasks > most:
        return None

    areas: list[Rectangle] = []
    stack = [(np.array([0]), np.array([len(parts.row) - 1]))]
    while stack:
        a, b = stack.pop()
        if whole[a, b] == fewest[a, b]:
            areas.append(Rectangle(*(int(edge[0]) for edge in parts.edges(a, b))))
        else:
            first, second = (of_part[0] for of_part in parts.halves(a, b))
            best = int(np.argmax(fewest[a, first] + fewest[second, b] == fewest[a, b]))
            stack += [(second[best : best + 1], b), (a, first[best : best + 1])]
    return Dichotomy(tasks, tuple(areas))
