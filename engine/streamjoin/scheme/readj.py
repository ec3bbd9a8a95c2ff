"""Readj (Gedik, "Partitioning functions for stateful data parallelism in stream processing", 2014), as A-DSP's evaluation uses it.

Each task owns groups of keys. When one holds more than ``1 + sigma`` times the mean, groups move from the fullest task to the emptiest,
few at a time, until none does; all else stays where it is. Here groups are ranges of buckets of one side's keys, and a task's are as
many areas; what a band reaches beyond them is repeated. A single key is never cut: a frequent one may fill its task beyond measure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np

from streamjoin.language.sides import LEFT, RIGHT
from streamjoin.scheme.cutting import Cutting
from streamjoin.scheme.dichotomy import Rectangle
from streamjoin.scheme.matrix import Matrix
from streamjoin.scheme.tiling import Scheme
from streamjoin.scheme.varietal import Shape

Array = np.ndarray[Any, np.dtype[Any]]

Run = tuple[int, int]
"""Buckets [begin, end) that one task owns."""


@dataclass(frozen=True, slots=True)
class Side:
    """The side whose keys are owned, and what they reach on the other."""

    side: int
    sums: Array
    other_sums: Array
    first: Array
    last: Array

    @classmethod
    def of(cls, matrix: Matrix, side: int) -> Side:
        if side == LEFT:
            return cls(side, matrix.row_sums, matrix.column_sums, matrix.first, matrix.last)
        return cls(side, matrix.column_sums, matrix.row_sums, matrix.first_row, matrix.last_row)

    def held(self, begin: Array | int, end: Array | int) -> Any:
        """The tuples of both sides that buckets [begin, end) bring to their owner; begin < end."""
        reached = self.other_sums[self.last[np.asarray(end) - 1] + 1] - self.other_sums[self.first[begin]]
        return self.sums[end] - self.sums[begin] + reached

    def load(self, runs: Sequence[Run]) -> float:
        return float(sum(self.held(*run) for run in runs))


def owned_side(scheme: Scheme) -> int:
    """Which side's keys a running scheme cuts without repeating any."""
    return LEFT if all(area.writes[LEFT] == area.keys[LEFT] for area in scheme.areas) else RIGHT


def bounds_of(scheme: Scheme, side: int) -> list[int | float]:
    """Where a running scheme cuts the keys of the side that it owns."""
    lows = [area.keys[side].low for area in scheme.areas]
    return sorted(low for low in lows if low is not None)


def owners_of(scheme: Scheme, bounds: Array, side: int) -> list[int]:
    """Per bucket between these bounds, which include all of the scheme's, the task that owns it."""
    owners = [0] * (len(bounds) + 1)
    for area in scheme.areas:
        keys = area.keys[side]
        begin = 0 if keys.low is None else int(np.searchsorted(bounds, keys.low)) + 1
        end = len(owners) if keys.high is None else int(np.searchsorted(bounds, keys.high)) + 1
        owners[begin:end] = [area.task] * (end - begin)
    return owners


def readjusted(side: Side, owners: Sequence[int], tasks: int, sigma: float) -> list[list[Run]]:
    """The runs of each of ``tasks`` tasks, from who owns each bucket now. O(moves * runs)."""
    runs: dict[int, list[Run]] = {}
    for task, buckets in groupby(range(len(owners)), key=owners.__getitem__):
        of_run = list(buckets)
        runs.setdefault(task, []).append((of_run[0], of_run[-1] + 1))
    # Scaling in, those go that hold least.
    staying = sorted(sorted(runs, key=lambda task: (-side.load(runs[task]), task))[:tasks])
    going = [run for task in runs if task not in staying for run in runs[task]]
    owned = [runs[task] for task in staying] + [[] for _ in range(tasks - len(staying))]
    loads = np.array([side.load(of_task) for of_task in owned])
    for run in sorted(going, key=lambda run: (-float(side.held(*run)), run)):
        emptiest = int(np.argmin(loads))
        owned[emptiest] = _joined([*owned[emptiest], run])
        loads[emptiest] = side.load(owned[emptiest])

    stuck: set[int] = set()
    for _ in range(16 * tasks):
        open_ = [task for task in range(tasks) if task not in stuck]
        if not open_:
            break
        fullest, emptiest = max(open_, key=lambda task: (loads[task], -task)), int(np.argmin(loads))
        if loads[fullest] <= (1 + sigma) * loads.mean() or fullest == emptiest:
            break
        moving = _best_move(side, owned[fullest], float(min(loads[fullest] - loads.mean(), loads.mean() - loads[emptiest])))
        given = owned[emptiest] if moving is None else _joined([*owned[emptiest], moving])
        if moving is None or side.load(given) >= loads[fullest]:
            stuck.add(fullest)
            continue
        owned[fullest] = [part for whole in owned[fullest] for part in _without(whole, moving)]
        owned[emptiest] = given
        loads[fullest], loads[emptiest] = side.load(owned[fullest]), side.load(given)
        stuck.discard(emptiest)
    return [of_task for of_task in owned if of_task]


def cutting(matrix: Matrix, side: Side, owned: Sequence[Sequence[Run]]) -> Cutting:
    """The scheme in which task t owns ``owned[t]``."""
    parts = sorted((run, task) for task, runs in enumerate(owned) for run in runs)
    areas = []
    for (begin, end), _ in parts:
        reached = int(side.first[begin]), int(side.last[end - 1]) + 1
        areas.append(Rectangle(begin, end, *reached) if side.side == LEFT else Rectangle(*reached, begin, end))
    return Cutting(matrix, tuple((area, Shape(1, 1)) for area in areas), tuple(task for _, task in parts))


def _best_move(side: Side, runs: Sequence[Run], goal: float) -> Run | None:
    """The run, or the begin or end of one, whose tuples are nearest to ``goal``; a whole run rather than a part that is little nearer."""
    best: tuple[float, Run] | None = None
    for begin, end in runs:
        candidates = [(begin, end)] if len(runs) > 1 else []
        if end - begin > 1:
            inner = np.arange(begin + 1, end)
            candidates.append((begin, int(inner[np.argmin(np.abs(side.held(begin, inner) - goal))])))
            candidates.append((int(inner[np.argmin(np.abs(side.held(inner, end) - goal))]), end))
        for candidate in candidates:
            penalty = 0.0 if candidate == (begin, end) else 0.1 * goal
            rank = abs(float(side.held(*candidate)) - goal) + penalty
            if best is None or rank < best[0]:
                best = rank, candidate
    return None if best is None else best[1]


def _without(run: Run, taken: Run) -> list[Run]:
    if not (run[0] <= taken[0] and taken[1] <= run[1]):
        return [run]
    return [part for part in ((run[0], taken[0]), (taken[1], run[1])) if part[0] < part[1]]


def _joined(runs: list[Run]) -> list[Run]:
    found: list[Run] = []
    for begin, end in sorted(runs):
        if found and found[-1][1] == begin:
            found[-1] = (found[-1][0], end)
        else:
            found.append((begin, end))
    return found
