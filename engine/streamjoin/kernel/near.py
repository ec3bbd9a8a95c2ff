"""Times of pairs of rows, whose members are streams' tuples or partial results: of the newest member, and up to which one may be."""

from __future__ import annotations

from typing import Any

import numpy as np

from streamjoin.native.functions import native, read, write

_SIDE = (read("int64"), read("int64"), "int64", read("int32"))


@native((*_SIDE, *_SIDE, write("int64"), write("int64")))
def times_of_pairs(
    times: Any, ends: Any, span: int, rows: Any, times_2: Any, ends_2: Any, span_2: int, rows_2: Any, newest: Any, latest: Any
) -> None:
    """Of each pair, the time of the newest member, and the least of the times up to which a member admits another.

    A side has rows with times and with ends, which are ``span`` earlier than they admit others. Microseconds all. O(pairs).
    """
    for i in range(len(rows)):
        row, row_2 = np.uint64(rows[i]), np.uint64(rows_2[i])
        newest[i] = max(times[row], times_2[row_2])
        latest[i] = min(ends[row] + span, ends_2[row_2] + span_2)


@native((*_SIDE, *_SIDE, write("int32")))
def pairs_in_time(times: Any, ends: Any, span: int, rows: Any, times_2: Any, ends_2: Any, span_2: int, rows_2: Any, places: Any) -> int:
    """Writes the places of the pairs whose newest member every other admits, ascending, and returns how many they are.

    Sides as of :func:`times_of_pairs`; ``places`` has room for all. O(pairs).
    """
    count = np.uint64(0)
    for i in range(len(rows)):
        row, row_2 = np.uint64(rows[i]), np.uint64(rows_2[i])
        newest = max(times[row], times_2[row_2])
        places[count] = i
        count += np.uint64((newest <= ends[row] + span) & (newest <= ends_2[row_2] + span_2))
    return int(count)
