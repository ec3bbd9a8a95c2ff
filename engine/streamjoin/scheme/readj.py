"""Readj (Gedik, "Partitioning functions for stateful data parallelism in stream processing", 2014), as A-DSP's evaluation uses it.

Each task owns groups of keys. When one holds more than ``1 + sigma`` times the mean, groups move from the fullest task to the emptiest,
few at a time, until none does; all else stays where it is. Here groups are ranges of a :class:`~streamjoin.scheme.keyed.Strip`. A single
key is never cut: a frequent one may fill its task beyond measure.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

import numpy as np

from streamjoin.scheme.keyed import Run, Strip


def readjusted(strip: Strip, owners: Sequence[int], tasks: int, sigma: float) -> list[list[Run]]:
    """The runs of each of ``tasks`` tasks, from who owns each part of the strip now. O(moves * runs)."""
    runs: dict[int, list[Run]] = {}
    for task, buckets in groupby(range(len(owners)), key=owners.__getitem__):
        of_run = list(buckets)
        runs.setdefault(task, []).append((of_run[0], of_run[-1] + 1))
    # Scaling in, those go that hold least.
    staying = sorted(sorted(runs, key=lambda task: (-strip.load(runs[task]), task))[:tasks])
    going = [run for task in runs if task not in staying for run in runs[task]]
    owned = [runs[task] for task in staying] + [[] for _ in range(tasks - len(staying))]
    loads = np.array([strip.load(of_task) for of_task in owned])
    for run in sorted(going, key=lambda run: (-float(strip.tuples(*run)), run)):
        emptiest = int(np.argmin(loads))
        owned[emptiest] = _joined([*owned[emptiest], run])
        loads[emptiest] = strip.load(owned[emptiest])

    stuck: set[int] = set()
    for _ in range(16 * tasks):
        open_ = [task for task in range(tasks) if task not in stuck]
        if not open_:
            break
        fullest, emptiest = max(open_, key=lambda task: (loads[task], -task)), int(np.argmin(loads))
        if loads[fullest] <= (1 + sigma) * loads.mean() or fullest == emptiest:
            break
        moving = _best_move(strip, owned[fullest], float(min(loads[fullest] - loads.mean(), loads.mean() - loads[emptiest])))
        given = owned[emptiest] if moving is None else _joined([*owned[emptiest], moving])
        if moving is None or strip.load(given) >= loads[fullest]:
            stuck.add(fullest)
            continue
        owned[fullest] = [part for whole in owned[fullest] for part in _without(whole, moving)]
        owned[emptiest] = given
        loads[fullest], loads[emptiest] = strip.load(owned[fullest]), strip.load(given)
        stuck.discard(emptiest)
    return [of_task for of_task in owned if of_task]


def _best_move(strip: Strip, runs: Sequence[Run], goal: float) -> Run | None:
    """The run, or the begin or end of one, whose tuples are nearest to ``goal``; a whole run rather than a part that is little nearer."""
    best: tuple[float, Run] | None = None
    for begin, end in runs:
        candidates = [(begin, end)] if len(runs) > 1 else []
        if end - begin > 1:
            inner = np.arange(begin + 1, end)
            candidates.append((begin, int(inner[np.argmin(np.abs(strip.tuples(begin, inner) - goal))])))
            candidates.append((int(inner[np.argmin(np.abs(strip.tuples(inner, end) - goal))]), end))
        for candidate in candidates:
            penalty = 0.0 if candidate == (begin, end) else 0.1 * goal
            rank = abs(float(strip.tuples(*candidate)) - goal) + penalty
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
