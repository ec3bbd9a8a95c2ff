"""What would be if the join were cut anew among so many workers: the port by which the decision core asks, and an analytic answer.

The real answer comes from the planner, which makes the scheme and counts what would move. :class:`AnalyticForecast` needs only the held
volumes: for simulations, for tests, and for when no statistics are at hand.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, Protocol

import numpy as np

from streamjoin.elastic.sample import Reading

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Prospect:
    """A plan that could be made, for the present load with nothing shed."""

    tasks: int
    """Workers that the plan uses: at most as many as were asked about."""
    tau_max: float
    """Of the fullest worker."""
    tau_mean: float
    moved_tuples: float
    """Tuples that would be sent to another worker, replicas counted each."""
    lower_bound_tuples: float
    """No plan of as many tasks, none fuller than the fullest of this one, moves less."""
    naive_tuples: float
    """What would move if tasks were given to workers by their numbers."""

    @property
    def usable(self) -> bool:
        """Whether these are all numbers to rely on."""
        numbers = (self.tau_max, self.tau_mean, self.moved_tuples, self.lower_bound_tuples, self.naive_tuples)
        return self.tasks >= 1 and all(math.isfinite(number) and number >= 0 for number in numbers)


class Forecast(Protocol):
    """Prospects for the join as it is now."""

    def at(self, workers: int) -> Prospect | None:
        """The best plan of at most ``workers`` workers; None when nothing can be said.

        More workers must not make ``tau_max`` larger (a plan may leave some idle): the core searches by bisection, and asks about
        O(log max_workers) numbers in one decision, each once. Asked about as many workers as there are it means another plan for them,
        not the present one. It may be asked at every decision for as long as a rule wants to act: keep answers while statistics last.
        """


@dataclass(frozen=True, slots=True)
class Grid:
    """A regular grid: each worker holds 1 / rows of the left and 1 / columns of the right tuples (A-DSP, 2-DSP)."""

    rows: int
    columns: int

    def load(self, left: float, right: float) -> float:
        """The tuples of each worker."""
        return left / self.rows + right / self.columns


@lru_cache(maxsize=2048)
def _grids(workers: int) -> tuple[Array, Array]:
    rows = np.arange(1, workers + 1)
    return rows, workers // rows


def best_grid(left: float, right: float, workers: int) -> Grid:
    """The grid of at most ``workers`` workers that holds least in each. O(workers)."""
    rows, columns = _grids(workers)
    best = int(np.argmin(left / rows + right / columns))
    return Grid(int(rows[best]), int(columns[best]))


@dataclass(frozen=True, slots=True, kw_only=True)
class AnalyticForecast:
    """Evenly loaded workers, as many as asked for, each holding what the lower bounds of A-DSP allow::

        load(n) = max((L + R) / n, sqrt(share) * min over grids of (L / rows + R / columns))

    ``share`` is the part of all pairs that the main predicate admits: 1 is the matrix of any theta join (Eq. 9's grid, load in proportion
    to 1 / sqrt(n)), 0 is an equality (no replication, load in proportion to 1 / n), a band lies between.
    """

    left_tuples: float
    """Held by the window if nothing is shed, each counted once."""
    right_tuples: float
    capacity_tuples: float
    workers: int
    """Of the present plan, from which tuples would move."""
    grid: Grid | None = None
    """The present plan's; that which would be best for ``workers`` without it."""
    tau_max: float | None = None
    """Of the fullest worker now; what it has above the others must move too."""
    share: float = 1.0
    unevenness: float = 1.0
    """How much fuller than the mean the fullest worker is under a new plan."""
    scale: float = 1.0
    """Measured load / that of the formula, for what the formula does not know of."""

    def at(self, workers: int) -> Prospect | None:
        if workers < 1:
            return None
        left, right, capacity = self.left_tuples, self.right_tuples, self.capacity_tuples
        grid = best_grid(left, right, workers)
        before = self.grid or best_grid(left, right, self.workers)
        tasks = grid.rows * grid.columns if self.share == 1 else workers
        load = self.scale * load_of(grid, tasks, left, right, self.share)
        load_before = self.scale * load_of(before, self.workers, left, right, self.share)
        # A worker that stays keeps what both its areas hold: of each stream the narrower of its two ranges. Along keys all can be kept.
        both = left * min(1 / grid.rows, 1 / before.rows) + right * min(1 / grid.columns, 1 / before.columns)
        least = min(grid.load(left, right), before.load(left, right))
        overlap = 1 - math.sqrt(self.share) * (1 - both / least) if least > 0 else 1.0
        moved = min(tasks, self.workers) * (load - min(load, load_before) * overlap) + max(0, tasks - self.workers) * load
        if self.tau_max is not None:
            moved += max(0.0, self.tau_max * capacity - max(load, load_before))
        return Prospect(
            tasks=tasks,
            tau_max=load * self.unevenness / capacity,
            tau_mean=load / capacity,
            moved_tuples=moved,
            # What stays where it is fits into the workers that go on, before and after.
            lower_bound_tuples=min(moved, max(0.0, left + right - min(tasks, self.workers) * min(load, load_before))),
            naive_tuples=max(moved, tasks * load * (1 - 1 / max(tasks, self.workers))),
        )


def load_of(grid: Grid, workers: int, left: float, right: float, share: float) -> float:
    """The tuples that each of ``workers`` workers holds under a plan that was cut as ``grid`` (see :class:`AnalyticForecast`)."""
    return max((left + right) / workers, math.sqrt(share) * grid.load(left, right))


def forecast_of(reading: Reading, capacity_tuples: float) -> Forecast | None:
    """A forecast made of one sample, its formula scaled to what was measured; None when the sample lacks what it takes."""
    left, right = reading.held
    demand = reading.demand
    if left is None or right is None or demand is None:
        return None
    made = AnalyticForecast(
        left_tuples=left / reading.kept,
        right_tuples=right / reading.kept,
        capacity_tuples=capacity_tuples,
        workers=reading.workers,
        grid=best_grid(left, right, reading.workers),
        tau_max=reading.tau_max,
    )
    here = made.at(reading.workers)
    modelled = here.tau_mean * here.tasks if here is not None else 0.0
    scale = demand / modelled if modelled > 0 else 1.0
    return replace(made, scale=scale)


@dataclass(slots=True)
class Asked:
    """A forecast with what it has answered: each number of workers is asked about once."""

    forecast: Forecast | None
    answers: dict[int, Prospect | None] = field(default_factory=dict)

    def at(self, workers: int) -> Prospect | None:
        """The prospect, if there is one to rely on."""
        if workers not in self.answers:
            found = self.forecast.at(workers) if self.forecast is not None else None
            self.answers[workers] = found if found is not None and found.usable else None
        return self.answers[workers]

    def fewest(self, low: int, high: int, fits: Callable[[Prospect], bool]) -> int | None:
        """The fewest workers from ``low`` to ``high`` that fit, by bisection; None when not even ``high`` does."""
        last = self.at(high)
        if low > high or last is None or not fits(last):
            return None
        while low < high:
            middle = (low + high) // 2
            prospect = self.at(middle)
            if prospect is not None and fits(prospect):
                high = middle
            else:
                low = middle + 1
        return high
