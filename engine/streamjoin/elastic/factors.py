"""What old and new tasks share, as a product of three sparse matrices: for so many pairs of tasks that nobody should list them all.

lambda = H S N: which old task holds which region (H), how many tuples each two regions have in common (S), which new task needs which (N).
Along an inequality ten thousand tasks make twenty million pairs of some two thousand regions a side.

Always holds: a pair's tuples are the same as in a list of all pairs, but for rounding.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from streamjoin.scheme.ranges import expanded

Array = np.ndarray[Any, np.dtype[Any]]

ROWS_AT_ONCE = 256
"""Of lambda, that are in memory."""


@dataclass(frozen=True, slots=True, eq=False)
class Holders:
    """Which tasks hold each of some regions: those of region r are ``tasks[starts[r]:starts[r + 1]]``. int64."""

    count: int
    """How many tasks there are."""
    starts: Array
    tasks: Array


@dataclass(frozen=True, slots=True, eq=False)
class Factors:
    """See the module."""

    held: Any
    """scipy.sparse.csr_array of ones, old tasks by regions; and in ``needed`` new tasks by theirs."""
    common: Any
    """csr_array of tuples: old regions by new ones, with its columns ascending in each row."""
    needed: Any

    @classmethod
    def of(cls, old: Holders, new: Holders, one: Array, other: Array, tuples: Array) -> Factors:
        """``one``, ``other``, ``tuples``: the regions that have any tuple in common, pair by pair, and how many."""
        from scipy.sparse import csr_array

        held, needed = (_by_task(holders) for holders in (old, new))
        common = csr_array((tuples, (one, other)), shape=(len(old.starts) - 1, len(new.starts) - 1))
        common.sort_indices()
        return cls(held, common, needed)

    def of_pairs(self, old: Array, new: Array) -> Array:
        """The tuples that each of these old tasks shares with the new one beside it: float64. O(pairs * log regions)."""
        common = self.common
        regions = [(matrix.indptr[tasks], matrix.indptr[tasks + 1]) for matrix, tasks in ((self.held, old), (self.needed, new))]
        at, place = expanded(*regions[0])
        one = self.held.indices[place]
        further, place = expanded(regions[1][0][at], regions[1][1][at])
        at, one, other = at[further], one[further], self.needed.indices[place]
        columns = common.shape[1]
        keys = np.repeat(np.arange(common.shape[0]), np.diff(common.indptr)) * columns + common.indices
        wanted = one.astype(np.int64) * columns + other
        place = np.minimum(np.searchsorted(keys, wanted), max(0, len(keys) - 1))
        found = np.where(keys[place] == wanted, common.data[place], 0.0) if len(keys) else np.zeros(len(wanted))
        return np.bincount(at, found, len(old))

    def best(self, count: int) -> tuple[Array, Array, Array, int]:
        """Of each old and of each new task, the ``count`` pairs that share most, of equal ones those of the lowest numbers.

        As old tasks, new tasks and tuples, ascending by both; and how many pairs share anything. O(pairs).
        """
        ways = (self.held, self.common, self.needed), (self.needed, self.common.T.tocsr(), self.held)
        chosen = [_best_of_rows(matrices, count) for matrices in ways]
        (old, new, tuples, pairs), (new_again, old_again, tuples_again, _) = chosen
        tasks = self.needed.shape[0]
        keys, first = np.unique(np.concatenate([old * tasks + new, old_again * tasks + new_again]), return_index=True)
        return keys // tasks, keys % tasks, np.concatenate([tuples, tuples_again])[first], pairs


def _by_task(holders: Holders) -> Any:
    from scipy.sparse import csr_array

    regions = np.repeat(np.arange(len(holders.starts) - 1), np.diff(holders.starts))
    matrix = csr_array((np.ones(len(regions)), (holders.tasks, regions)), shape=(holders.count, len(holders.starts) - 1))
    matrix.sort_indices()
    return matrix


def _best_of_rows(matrices: tuple[Any, Any, Any], count: int) -> tuple[Array, Array, Array, int]:
    """Of the product of a, b and c transposed: the rows, columns and values of the largest of each row; how many are not zero in all."""
    rows, columns, values, pairs = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)], [np.zeros(0)], 0
    for first, row in _rows(*matrices):
        for number in range(row.shape[0]):
            part = slice(row.indptr[number], row.indptr[number + 1])
            chosen = _largest(row.data[part], row.indices[part], count)
            pairs += row.indptr[number + 1] - row.indptr[number]
            rows.append(np.full(len(chosen), first + number))
            columns.append(row.indices[part][chosen].astype(np.int64))
            values.append(row.data[part][chosen])
    return np.concatenate(rows), np.concatenate(columns), np.concatenate(values), int(pairs)


def _rows(a: Any, b: Any, c: Any) -> Iterator[tuple[int, Any]]:
    further = b @ c.T.tocsr()
    for first in range(0, a.shape[0], ROWS_AT_ONCE):
        yield first, a[first : first + ROWS_AT_ONCE] @ further


def _largest(values: Array, numbers: Array, count: int) -> Array:
    """The places of the ``count`` largest, of equal ones those of the lowest numbers."""
    if len(values) <= count:
        return np.arange(len(values))
    least = np.partition(values, len(values) - count)[len(values) - count]
    larger, equal = (values > least).nonzero()[0], (values == least).nonzero()[0]
    lacking = count - len(larger)
    if len(equal) > lacking:
        equal = equal[np.argpartition(numbers[equal], lacking - 1)[:lacking]]
    return np.concatenate([larger, equal])
