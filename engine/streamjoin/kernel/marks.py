"""Marks of a run's rows, one byte each: which of them have matched."""

from __future__ import annotations

from typing import Any

import numpy as np

from streamjoin.native.functions import native, read, write


@native((write("boolean"), read("int32")))
def mark_rows(marks: Any, rows: Any) -> None:
    """Sets the marks of these rows, in any order and any number of times. O(rows)."""
    for i in range(len(rows)):
        marks[np.uint64(rows[i])] = True


@native((read("boolean"), read("int64"), "int64", "int64", write("int64")))
def unmatched_between(marks: Any, times: Any, low: int, high: int, found: Any) -> int:
    """Writes the rows without a mark whose time (microseconds, or a record's number) lies in [low, high], ascending.

    Returns how many they are; ``found`` has room for all rows. O(rows).
    """
    count = np.uint64(0)
    for row in range(len(times)):
        found[count] = row
        count += np.uint64((not marks[row]) & (times[row] >= low) & (times[row] <= high))
    return int(count)
