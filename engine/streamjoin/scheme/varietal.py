"""The varietal matrix (A-DSP, section 3.1, Alg. 1): one coverage area cut into the fewest tasks of a given capacity.

A regular grid gives every task the same share of both streams. The varietal matrix takes one stream as *primary*, cut into P_gamma parts;
each task keeps the rest of its capacity for the *secondary* stream (Eq. 10). That fills D_f whole lines of P_gamma tasks; what remains
of the secondary stream, D_L, needs only P_delta tasks across (Eq. 12), as its line is thin. Eq. 13 counts them all.

Differs from the paper, which probes four P_gamma, floor and ceil of |R| / (V/2) and of |S| / (V/2): here every one is probed. The four are
not always enough (|R| = 9, |S| = 11, V = 8 needs 7 tasks, not 8; where Square takes 4 x 4 they never give the 13 that the paper reports),
and with them more tuples may need fewer tasks (|S| = 14, V = 13: 8 tasks for |R| = 19, 7 for |R| = 20). For any one P_gamma, Eq. 13
never falls as a stream grows or the capacity shrinks, so neither does the least of all; the area dichotomy relies on that.

Solved for the volumes: m = P_gamma * D_f + P_delta tasks suffice when |D| <= D_f * (V - |P| / P_gamma) + (V - |P| / P_delta). That is a
half-plane of (|R|, |S|), so m tasks suffice where one of m's half-planes holds: :func:`half_planes`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from typing import Any

import numpy as np

from streamjoin.scheme.tiling import UNITS, UnitRange

Array = np.ndarray[Any, np.dtype[Any]]

EPSILON = 1e-9
"""Relative error up to which quotients count as whole: volumes are sums of floats."""

TOLERANCE = 1e-11
"""Relative error up to which a half-plane's capacity counts as kept. Less than EPSILON, so that where a half-plane holds, Eq. 13 agrees."""


@dataclass(frozen=True, slots=True)
class Shape:
    """A varietal matrix <alpha, beta, P_delta, position>: a grid of regular tasks, and ``extra`` tasks in one more, thin row or column."""

    rows: int
    columns: int
    extra: int = 0
    position: str = ""
    """``row``: right is primary, and the thin row takes a part of left. ``column``: the other way round. Empty when regular."""
    thin: float = 0.0
    """The part (0 to 1) of the secondary stream in the thin line."""

    @property
    def tasks(self) -> int:
        return self.rows * self.columns + self.extra

    def __str__(self) -> str:
        return f"<{self.rows},{self.columns},{self.extra},{self.position}>" if self.extra else f"<{self.rows},{self.columns},0>"

    def areas(self) -> Iterator[tuple[UnitRange, UnitRange]]:
        """The unit ranges (left, right) of every task, row by row, the thin line last."""
        regular = round(UNITS * (1 - self.thin))
        by_column = self.position == "column"
        for row in even_parts(0, UNITS if by_column else regular, self.rows):
            for column in even_parts(0, regular if by_column else UNITS, self.columns):
                yield row, column
        if self.extra:
            line = UnitRange(regular, UNITS)
            for part in even_parts(0, UNITS, self.extra):
                yield (part, line) if by_column else (line, part)

    def loads(self, left: float, right: float) -> list[float]:
        """The tuples that each task holds of a coverage area of ``left`` x ``right``, in the order of :meth:`areas`."""
        regular, thin = self._load_of_each(left, right)
        return [regular] * (self.rows * self.columns) + [thin] * self.extra

    def largest_load(self, left: float, right: float) -> float:
        return max(self._load_of_each(left, right))

    def replicated(self, left: float, right: float) -> float:
        """The tuples that all tasks hold together."""
        regular, thin = self._load_of_each(left, right)
        return regular * self.rows * self.columns + thin * self.extra

    def _load_of_each(self, left: float, right: float) -> tuple[float, float]:
        """Of a regular task, and of one in the thin line (0 when there is none)."""
        primary, secondary, parts, lines = self._primary_first(left, right)
        thin = secondary * self.thin + primary / self.extra if self.extra else 0.0
        return secondary * (1 - self.thin) / lines + primary / parts, thin

    def evened(self, left: float, right: float) -> Shape:
        """The same shape with the thin line as thick as makes all loads equal.

        Eq. 12 fills the regular tasks to the brim. Moving tuples from them to the thin line lowers the largest load and, since fewer
        tasks share the thin line, the replicated volume.
        """
        primary, secondary, parts, lines = self._primary_first(left, right)
        if not self.extra or secondary <= 0:
            return self
        thick = (secondary / lines + primary / parts - primary / self.extra) / (1 + 1 / lines)
        return replace(self, thin=max(thick / secondary, self.thin))

    def _primary_first(self, left: float, right: float) -> tuple[float, float, int, int]:
        """|P|, |D|, P_gamma, D_f."""
        return (left, right, self.rows, self.columns) if self.position == "column" else (right, left, self.columns, self.rows)


def even_parts(low: int, high: int, count: int) -> list[UnitRange]:
    cuts = [low + (high - low) * number // count for number in range(count + 1)]
    return [UnitRange(*pair) for pair in pairwise(cuts)]


def square(left: float, right: float, capacity: float) -> Shape:
    """Eq. 9: a regular grid, each part of a stream half the capacity."""
    half = capacity / 2
    return Shape(max(1, math.ceil(left / half - EPSILON)), max(1, math.ceil(right / half - EPSILON)))


def varietal(primary: float, secondary: float, parts: int, capacity: float, position: str) -> Shape | None:
    """Eqs. 10 to 13 for one P_gamma = ``parts``; None when a part of the primary stream fills a task alone.

    A thin line with as many tasks as the others is made a regular one, and so is one that is the whole matrix (D_f = 0).
    """
    room = capacity - primary / parts
    if room <= EPSILON * capacity:
        return None
    lines = math.floor(secondary / room + EPSILON)
    rest = secondary - lines * room
    extra = 0
    if lines == 0 or rest > EPSILON * secondary:
        extra = max(1, math.ceil(primary / (capacity - rest) - EPSILON))
    if lines == 0:
        parts, lines, extra = extra, 1, 0
    elif extra == parts:
        lines, extra = lines + 1, 0
    rows, columns = (parts, lines) if position == "column" else (lines, parts)
    return Shape(rows, columns, extra, position, rest / secondary) if extra else Shape(rows, columns)


def partition(left: float, right: float, capacity: float) -> Shape:
    """Alg. 1: the varietal matrix of fewest tasks, each holding at most ``capacity`` tuples of both streams together.

    Ties in Eq. 13 go to the least replicated volume, then to the shape nearest a square. O(tasks).
    """
    if not (left >= 0 and right >= 0 and capacity > 0):
        raise ValueError(f"volumes {left} and {right} must not be negative, and the capacity {capacity} must be positive")
    best: tuple[tuple[float, ...], Shape] | None = None
    for primary, secondary, position in ((left, right, "column"), (right, left, "row")):
        # P_gamma parts make at least P_gamma tasks; and fewer than |P| / V cannot hold the primary stream.
        parts = max(1, math.floor(primary / capacity))
        while best is None or parts <= best[0][0]:
            shape = varietal(primary, secondary, parts, capacity, position)
            if shape is not None and (best is None or shape.tasks <= best[0][0]):
                replicated = round(shape.replicated(left, right) / capacity, 9)
                rank = (shape.tasks, replicated, abs(shape.rows - shape.columns), shape.rows)
                if best is None or rank < best[0]:
                    best = rank, shape
            parts += 1
    assert best is not None
    return best[1]


@lru_cache(maxsize=4096)
def half_planes(tasks: int) -> tuple[Array, Array]:
    """Factors (a, b), float64: exactly ``tasks`` tasks, or fewer, hold left x right tuples where a * left + b * right <= capacity for one.

    Every varietal matrix of so many tasks gives one; those that never decide are left out. O(tasks * log tasks).
    """
    parts = np.arange(1, tasks + 1)
    lines, extra = np.divmod(tasks, parts)
    with np.errstate(divide="ignore"):
        primary = np.where(extra > 0, (lines / parts + 1 / extra) / (lines + 1), 1 / parts)
    secondary = np.where(extra > 0, 1 / (lines + 1), 1 / lines)
    a, b = np.concatenate([primary, secondary]), np.concatenate([secondary, primary])
    # The least of all a * left + b * right is decided on the lower left convex hull of the points (a, b).
    order = np.lexsort((b, a))
    hull: list[int] = []
    for point in order.tolist():
        if hull and b[point] >= b[hull[-1]]:
            continue
        while len(hull) > 1 and _above(a, b, hull[-2], hull[-1], point):
            hull.pop()
        hull.append(point)
    return a[hull], b[hull]


def _above(a: Array, b: Array, first: int, middle: int, last: int) -> bool:
    """Whether ``middle`` lies on or above the line from ``first`` to ``last``."""
    return bool((b[middle] - b[first]) * (a[last] - a[first]) >= (b[last] - b[first]) * (a[middle] - a[first]))


def least_capacity(left: float, right: float, tasks: int) -> float:
    """The capacity with which ``tasks`` tasks hold left x right tuples: the inverse of Alg. 1. O(tasks).

    Of the ways to use so many tasks or fewer, with P_gamma parts each, the best have as many lines as there is room for, and in the thin
    one all tasks that are left over, or no thin line.
    """
    parts = np.arange(1, tasks + 1)
    lines, extra = np.divmod(tasks, parts)
    with np.errstate(divide="ignore"):
        a = np.concatenate([1 / parts, np.where(extra > 0, (lines / parts + 1 / extra) / (lines + 1), 1 / parts)])
    b = np.concatenate([1 / lines, 1 / (lines + (extra > 0))])
    return min(float((a * primary + b * secondary).min()) for primary, secondary in ((left, right), (right, left)))


def tasks_needed(left: Array, right: Array, capacity: float, most: int) -> Array:
    """Alg. 1's number of tasks (int64) for whole arrays of coverage areas; most + 1 where ``most`` do not suffice."""
    needed = np.full(left.shape, most + 1, np.int64)
    open_ = np.arange(left.size)
    left, right = left.ravel(), right.ravel()
    for tasks in range(1, most + 1):
        least = np.full(len(open_), np.inf)
        for a, b in zip(*half_planes(tasks), strict=True):
            np.minimum(least, a * left[open_] + b * right[open_], out=least)
        fits = least <= capacity * (1 + TOLERANCE)
        needed.ravel()[open_[fits]] = tasks
        open_ = open_[~fits]
        if not len(open_):
            break
    return needed
