"""Dynamic (Elseidy et al., "Scalable and Adaptive Online Joins", VLDB 2014): one even grid of J = n x m tasks, J a power of two.

As the ratio of the streams moves, one side of the grid doubles and the other halves. Where a task holds more than half of its memory,
each splits into four; where four together hold no more than that, they become one. Even parts of powers of two lie inside one another, so
a worker that goes on deletes half of one stream and receives as much again of the other.
"""

from __future__ import annotations

from streamjoin.scheme.dichotomy import MOST_TASKS
from streamjoin.scheme.matrix import Matrix
from streamjoin.scheme.varietal import Shape

OVERFLOW = 0.5
"""The part of a task's memory beyond which it splits."""


def grid(matrix: Matrix, tasks: int) -> Shape:
    """The n x m = J grid of the smallest load, J the greatest power of two that is at most ``tasks``; of two, the squarer one."""
    power = tasks.bit_length() - 1
    shapes = [Shape(1 << rows, 1 << (power - rows)) for rows in range(power + 1)]
    return min(shapes, key=lambda shape: (shape.largest_load(matrix.left, matrix.right), abs(shape.rows - shape.columns), shape.rows))


def grid_for(matrix: Matrix, capacity: float, running: int = 1) -> Shape | None:
    """The grid after splitting and merging by four, from ``running`` tasks; None beyond ``MOST_TASKS`` tasks."""
    limit = capacity * OVERFLOW * (1 + 1e-9)

    def holds(tasks: int) -> bool:
        return grid(matrix, tasks).largest_load(matrix.left, matrix.right) <= limit

    tasks = 1 << (running.bit_length() - 1)
    while not holds(tasks):
        tasks *= 4
        if tasks > MOST_TASKS:
            return None
    while tasks >= 4 and holds(tasks // 4):
        tasks //= 4
    return grid(matrix, tasks)
