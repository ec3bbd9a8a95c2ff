"""The fewest tasks that any tiling of a small tuple matrix takes, by trying all: what Theorem 4 of A-DSP is compared with.

Here every row and every column is one tuple, as in the paper's figures. A tiling is what Def. 3 asks for: rectangles of cells that do not
overlap and hold all results, each of at most V rows and columns together. It need not come from dichotomies.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from itertools import pairwise

import numpy as np

from streamjoin.language.predicate import MainKind, MainPredicate
from streamjoin.scheme.matrix import Matrix

Band = tuple[tuple[int, int], ...]
"""Per row, the first column of its results and the last; neither ever falls, and all rows and columns have one."""


def matrix_of(band: Band, weights: tuple[Sequence[int], Sequence[int]] | None = None) -> Matrix:
    """The tuple matrix of a band; ``weights``: so many tuples to each row, and to each column, instead of one.

    Raises ValueError for no band.
    """
    columns = band[-1][1] + 1
    steps = list(pairwise(band))
    if band[0][0] != 0 or any(b[0] < a[0] or b[1] < a[1] or b[0] > a[1] + 1 for a, b in steps) or any(low > high for low, high in band):
        raise ValueError(f"band: {band} must be a staircase from the first cell to the last, without an empty row or column")
    first, last = np.array([low for low, _ in band]), np.array([high for _, high in band])
    number = np.arange(columns)
    bounds = np.arange(1, max(len(band), columns))
    rows_of, columns_of = weights or ([1] * len(band), [1] * columns)
    row_sums, column_sums = (np.concatenate([[0.0], np.cumsum(of_side)]) for of_side in (rows_of, columns_of))
    return Matrix(
        row_bounds=bounds[: len(band) - 1],
        column_bounds=bounds[: columns - 1],
        row_sums=row_sums,
        column_sums=column_sums,
        first=first,
        last=last,
        first_row=np.searchsorted(last, number, side="left"),
        last_row=np.searchsorted(first, number, side="right") - 1,
        result_volume=float(np.diff(row_sums) @ (column_sums[last + 1] - column_sums[first])),
    )


def band_of(left: Sequence[int], right: Sequence[int], main: MainPredicate) -> Band:
    """The band of two ordered sequences of keys. Raises ValueError for a main predicate that is no range."""
    if main.kind is not MainKind.RANGE or main.low is None or main.high is None:
        raise ValueError(f"main: {main} must be a band")
    found = []
    for key in left:
        matching = [number for number, other in enumerate(right) if main.low <= other - key <= main.high]
        found.append((matching[0], matching[-1]))
    return tuple(found)


def fewest_tasks(band: Band, capacity: int, most: int) -> int:
    """The fewest rectangles; ``most`` + 1 where so many do not suffice. Exponential: for bands of some forty cells.

    A rectangle can be shrunk until its first row has a result. So the first result that is not held yet, row by row, lies in the first row
    of its rectangle; all rectangles that begin there are tried.
    """
    rows, columns = len(band), band[-1][1] + 1
    width = [((1 << (high + 1)) - (1 << low)) for low, high in band]
    results = sum(cells << (row * columns) for row, cells in enumerate(width))

    @cache
    def rectangles(cell: int) -> list[int]:
        """Their results, as bits: the widest first."""
        row, column = divmod(cell, columns)
        found = set()
        for begin in range(column + 1):
            for end in range(column + 1, min(columns, begin + capacity - 1) + 1):
                across = (1 << end) - (1 << begin)
                held = 0
                for bottom in range(row, min(rows, row + capacity - (end - begin))):
                    held |= (across & width[bottom]) << (bottom * columns)
                    found.add(held)
        return sorted(found, key=int.bit_count, reverse=True)

    largest = (capacity // 2) * (capacity - capacity // 2)
    best = most + 1
    seen: dict[int, int] = {}

    def search(open_: int, spent: int) -> None:
        nonlocal best
        if not open_:
            best = min(best, spent)
            return
        if spent + -(-open_.bit_count() // largest) >= best or seen.get(open_, best) <= spent:
            return
        seen[open_] = spent
        cell = (open_ & -open_).bit_length() - 1
        for held in rectangles(cell):
            if held & ~open_ == 0:
                search(open_ & ~held, spent + 1)

    search(results, 0)
    return best
