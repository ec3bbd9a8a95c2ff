"""Plans that cut the join along its keys alone, and no key into parts: A-DSP's 1-DSP (``hash``) and what Readj moves keys on.

A *strip* lays the keys of both sides along one line, a right key beside the left keys in the middle of those it can match. A task owns
ranges of that line, and holds the tuples of both sides in them. Where a tuple's partners lie in ranges of others, it is sent there as
well, only to probe (A-DSP's second routing function, R_J): so no tuple is held twice, however wide the band. Such a range is two areas:
one holds its left tuples and is probed by all that these can match, the other its right tuples. A range whose tuples match no others is
one area, as are all on an equality.

Always holds: a cut of the line is a cut of both sides' keys, so that the parts of a strip are disjoint on either side and cover both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from streamjoin.language.predicate import MainPredicate
from streamjoin.language.sides import LEFT, RIGHT
from streamjoin.scheme.matrix import Matrix
from streamjoin.scheme.tiling import Area, KeyRange, Scheme, UnitRange
from streamjoin.scheme.varietal import EPSILON

Array = np.ndarray[Any, np.dtype[Any]]

Run = tuple[int, int]
"""Parts [begin, end) of a strip that one task owns."""


@dataclass(frozen=True, slots=True, eq=False)
class Strip:
    """See the module. Its parts are numbered along the line."""

    matrix: Matrix
    rows: Array
    """Where each part begins, in rows of the matrix, and at last their number; in ``columns`` likewise."""
    columns: Array
    sums: Array
    """The tuples of both sides before each part, and at last all."""

    @classmethod
    def of(cls, matrix: Matrix, main: MainPredicate) -> Strip:
        """The strip over a matrix with ``paired`` bounds; a single part where keys cannot be cut."""
        rows, columns = matrix.pairs(main)
        return cls(matrix, rows, columns, matrix.row_sums[rows] + matrix.column_sums[columns])

    @property
    def parts(self) -> int:
        return len(self.sums) - 1

    @property
    def largest_part(self) -> float:
        """The tuples of the part that has most: no cut makes it smaller."""
        return float(np.diff(self.sums).max())

    def tuples(self, begin: Array | int, end: Array | int) -> Any:
        """The tuples of both sides in the parts [begin, end)."""
        return self.sums[end] - self.sums[begin]

    def load(self, runs: Sequence[Run]) -> float:
        """The tuples of both sides in these runs."""
        return float(sum(self.tuples(*run) for run in runs))

    def fitted(self, capacity: float) -> list[Run]:
        """Runs as long as the capacity allows, from the first part on; a part that alone exceeds it is one by itself."""
        runs = []
        begin = 0
        while begin < self.parts:
            limit = self.sums[begin] + capacity * (1 + EPSILON)
            end = max(begin + 1, int(np.searchsorted(self.sums, limit, side="right")) - 1)
            runs.append((begin, end))
            begin = end
        return runs

    def evenest(self, tasks: int) -> list[Run]:
        """At most so many runs, none larger than need be to a thousandth, but for parts that are larger alone. O(tasks * log parts)."""
        total = float(self.sums[-1])
        low, high = total / tasks, total
        even = self.fitted(low)
        if len(even) <= tasks:
            return even
        best = self.fitted(high)
        while high - low > 1e-3 * high:
            capacity = (low + high) / 2
            runs = self.fitted(capacity)
            if len(runs) > tasks:
                low = capacity
            else:
                best, high = runs, capacity
        return best

    def scheme(self, model: str, owned: Sequence[Sequence[Run]]) -> Scheme:
        """The scheme in which task t owns ``owned[t]``."""
        areas: list[Area] = []
        units = (UnitRange(), UnitRange())
        runs = sorted((run, task) for task, of_task in enumerate(owned) for run in of_task)
        coverage = 0
        for (begin, end), task in runs:
            top, bottom = int(self.rows[begin]), int(self.rows[end])
            left, right = int(self.columns[begin]), int(self.columns[end])
            matrix = self.matrix
            reached = int(matrix.first[top]), int(matrix.last[bottom - 1]) + 1
            reached_back = int(matrix.first_row[left]), int(matrix.last_row[right - 1]) + 1
            rows, columns = matrix.row_keys(top, bottom), matrix.column_keys(left, right)
            if left <= reached[0] and reached[1] <= right and top <= reached_back[0] and reached_back[1] <= bottom:
                areas.append(Area(task, coverage, (rows, columns), units, (rows, columns)))
                coverage += 1
                continue
            areas.append(Area(task, coverage, (rows, matrix.column_keys(*reached)), units, (rows, None), (True, False)))
            areas.append(Area(task, coverage + 1, (matrix.row_keys(*reached_back), columns), units, (None, columns), (False, True)))
            coverage += 2
        probed = ", probed from one another" if len(areas) > len(runs) else ""
        return Scheme(model, len(owned), tuple(areas), f"{len(runs)} {'range' if len(runs) == 1 else 'ranges'} of keys{probed}")


def cuts_of(scheme: Scheme) -> tuple[list[int | float], list[int | float]]:
    """Where a running scheme cuts the keys that its tasks hold, by side."""
    lows = [{area.keys[side].low for area in scheme.areas if area.holds[side]} for side in (LEFT, RIGHT)]
    left, right = (sorted(low for low in of_side if low is not None) for of_side in lows)
    return left, right


def owners_of(scheme: Scheme, strip: Strip) -> list[int]:
    """Per part of a strip, whose bounds include where the scheme cuts left keys, the task that holds its left tuples."""
    owners = np.zeros(strip.matrix.rows, np.int64)
    bounds = strip.matrix.row_bounds
    for area in scheme.areas:
        if area.holds[LEFT]:
            begin, end = _between(area.keys[LEFT], bounds)
            owners[begin:end] = area.task
    found: list[int] = owners[strip.rows[:-1]].tolist()
    return found


def _between(keys: KeyRange, bounds: Array) -> tuple[int, int]:
    begin = 0 if keys.low is None else int(np.searchsorted(bounds, keys.low)) + 1
    end = len(bounds) + 1 if keys.high is None else int(np.searchsorted(bounds, keys.high)) + 1
    return begin, end
