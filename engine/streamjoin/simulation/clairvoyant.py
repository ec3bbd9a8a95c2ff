"""Who knows the traffic: the cheapest numbers of workers over all of it, found by dynamic programming, and a decider that runs them.

What is searched is every sequence of numbers of workers, one for each step, that keeps the load below tau2 wherever ``max_workers`` workers
can, so that nothing is shed that need not be. Its price is the one by which the core compares its own choices (``elastic.arbitration``)::

    workers [1] x time [h]
    + for each change: added workers x the time that they take to start [h] + switch [h] x workers x Prices.paused + Prices.change

State is taken to be nowhere, so that a change moves nothing and needs no time; a plan is taken to be the best at every moment, whatever the
skew and the ratio of the streams. All of that can only make it cheaper: no decider that sheds nothing has a lower bill (``Schedule.bill``),
and none needs fewer worker-hours than ``Schedule.least_hours``. The decider meets the whole simulation, with its bytes, and cuts anew
what has moved.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from streamjoin.elastic.forecast import AnalyticForecast, load_of
from streamjoin.elastic.sample import Sample
from streamjoin.simulation.run import Ask, SimulatedJoin, as_held, imbalance
from streamjoin.simulation.traffic import Traffic

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True, slots=True, eq=False)
class Schedule:
    """The cheapest sequence of numbers of workers."""

    workers: Array
    """int64, one for each step."""
    bill: float
    """Worker-hours, the changes' price included: the least of any sequence."""
    least_hours: float
    """Worker-hours of as few workers as each step needs, were changes free."""

    def hours(self, step_seconds: float) -> float:
        """Worker-hours of the sequence."""
        return float(self.workers.sum()) * step_seconds / 3600


def cheapest(need: Array, join: SimulatedJoin, step_seconds: float) -> Schedule:
    """The cheapest sequence with at least ``need`` workers (int64) at each step. O(stretches of equal need * distinct needs)."""
    # No number is worth having that no step needs: with the next lower one that is, nothing would be dearer.
    sizes = np.unique(need)
    begins, lengths = _stretches(need)
    hours = lengths * step_seconds / 3600
    starting = join.start_seconds / 3600 * sizes
    changing = join.prices.change + join.prices.switch_seconds / 3600 * join.prices.paused * sizes
    came_from = np.empty((len(begins), len(sizes)), np.int32)
    same = np.arange(len(sizes), dtype=np.int32)
    bills = np.where(sizes >= need[0], sizes * hours[0], np.inf)
    for index in range(1, len(begins)):
        # From fewer workers the added ones are paid while they start; from more ones none.
        fewer, fewer_at = _running_least(bills - starting)
        more, more_at = (found[::-1] for found in _running_least(bills[::-1]))
        grown, shrunk = fewer + starting, more
        changed = np.minimum(grown, shrunk) + changing
        source = np.where(grown <= shrunk, fewer_at, len(sizes) - 1 - more_at)
        came_from[index] = np.where(bills <= changed, same, source)
        bills = np.where(sizes >= need[begins[index]], np.minimum(bills, changed) + sizes * hours[index], np.inf)
    chosen = np.empty(len(begins), np.int64)
    chosen[-1] = int(np.argmin(bills))
    for index in range(len(begins) - 1, 0, -1):
        chosen[index - 1] = came_from[index, chosen[index]]
    return Schedule(np.repeat(sizes[chosen], lengths), float(bills.min()), float(need.sum()) * step_seconds / 3600)


def least_hours_with(need: Array, changes: int, step_seconds: float) -> float:
    """The fewest worker-hours of a sequence with at least ``need`` workers (int64) at each step and so many changes at most, all free.

    What no rule with as few changes goes below, whatever it knows. O(stretches of equal need * distinct needs * changes).
    """
    sizes = np.unique(need)
    begins, lengths = _stretches(need)
    # By changes so far and by workers.
    steps = np.full((changes + 1, len(sizes)), np.inf)
    steps[0] = 0
    for index, (begin, length) in enumerate(zip(begins.tolist(), lengths.tolist(), strict=True)):
        if index > 0:
            steps[1:] = np.minimum(steps[1:], steps[:-1].min(axis=1, keepdims=True))
        steps += np.where(sizes >= need[begin], sizes * length, np.inf)
    return float(steps.min()) * step_seconds / 3600


def _stretches(need: Array) -> tuple[Array, Array]:
    """Where each stretch of equal need begins, and of how many steps it is."""
    begins = np.flatnonzero(np.concatenate([[True], np.diff(need) != 0]))
    return begins, np.diff(np.concatenate([begins, [len(need)]]))


def _running_least(values: Array) -> tuple[Array, Array]:
    """The least of all entries up to each one, and where it is."""
    least = np.minimum.accumulate(values)
    at = np.maximum.accumulate(np.where(values == least, np.arange(len(values)), 0))
    return least, at


class Clairvoyant:
    """Runs the cheapest schedule: workers are asked for early enough, and given away as soon as they are not needed."""

    name = "clairvoyant"

    replan_seconds = 600.0
    """So long after a change the plan is not cut anew because it has worn."""

    def __init__(self, join: SimulatedJoin, traffic: Traffic) -> None:
        self._join, self._traffic = join, as_held(join, traffic)
        step = traffic.step_seconds
        self._held = tuple(
            held_by_window(rates * step, span / step, join.most_held)
            for rates, span in zip(traffic.rates, join.window_seconds, strict=True)
        )
        self.need = needs(self._held[0], self._held[1], join, join.settings.tau2)
        """int64, one for each step: the fewest workers with which none is above tau2."""
        self.schedule = cheapest(self.need, join, step)
        prices = join.prices
        # As long as workers take to start, and, at the worst, a whole worker's tuples to move.
        moving = join.settings.capacity_tuples * prices.tuple_bytes / prices.bytes_per_second
        self._lead = math.ceil((join.start_seconds + moving + prices.switch_seconds) / step) + 2
        self._soon = largest_ahead(self.schedule.workers, self._lead)
        self._index = -1
        self._planned = float(traffic.skew[0]), float(traffic.hot[0])
        self._changed_at: int | None = None
        """The step of the last plan."""
        self._replan_steps = math.ceil(self.replan_seconds / step)

    def step(self, now: float, sample: Sample, forecast: AnalyticForecast) -> Ask | None:
        self._index = index = min(self._index + 1, len(self._soon) - 1)
        workers = sample.workers + sample.starting
        wanted = int(self._soon[index])
        if wanted > workers or (wanted < workers and not sample.starting):
            return Ask(wanted)
        return Ask(sample.workers) if self._wears_out(index, sample.workers, forecast) and not sample.starting else None

    def _wears_out(self, index: int, workers: int, forecast: AnalyticForecast) -> bool:
        """Whether the plan that runs will soon fill a worker although there are enough of them."""
        traffic, last = self._traffic, len(self._soon) - 1
        grid = forecast.grid
        assert grid is not None
        # A plan knows the keys of the moment when it is applied: one that is asked for now, those of the next step.
        after, soon = min(index + 1, last), min(index + self._lead, last)
        uneven = min(workers, imbalance(self._planned, (float(traffic.skew[after]), float(traffic.hot[after]))))
        loads = [
            factor * load_of(grid, workers, float(self._held[0][at]), float(self._held[1][at]), self._join.share)
            for at, factor in ((after, uneven), (soon, 1.0))
        ]
        full = self._join.settings.tau2 * self._join.settings.capacity_tuples
        waited = self._changed_at is None or index - self._changed_at > self._replan_steps
        return loads[0] > full * 1.001 or (loads[1] > full * 1.01 and waited)

    def begun(self, now: float, workers: int) -> None:
        """It knew."""

    def applied(self, now: float, generation: int, workers: int, moved_tuples: float, pause_seconds: float) -> None:
        self._changed_at = at = max(0, self._index + 1)
        self._planned = float(self._traffic.skew[at]), float(self._traffic.hot[at])


def held_by_window(tuples: Array, span_steps: float, most: float) -> Array:
    """What a window holds after each step when nothing is shed and nothing waits: float64, one per step."""
    sums = np.concatenate([[0.0], np.cumsum(tuples)])
    if math.isinf(span_steps):
        return np.full(len(tuples), most) if math.isfinite(most) else sums[1:]
    # Before the first step the first one's rate is taken to have lasted for ever, as in the simulation.
    at = np.arange(1, len(sums)) - span_steps
    before = np.where(at < 0, at * tuples[0], np.interp(at, np.arange(len(sums)), sums))
    return np.asarray(sums[1:] - before)


def needs(left: Array, right: Array, join: SimulatedJoin, level: float) -> Array:
    """The fewest workers at this tau, for arrays of held tuples: int64, within the limits. O(entries * max_workers).

    Of a grid with ``rows`` rows each worker has room for capacity - left / rows tuples of the right stream, which gives the columns.
    """
    settings = join.settings
    room = level * settings.capacity_tuples
    whole = np.ceil((left + right) / room - 1e-9)
    best = np.full(left.shape, float(settings.max_workers))
    grid_room = room / math.sqrt(join.share) if join.share > 0 else math.inf
    for rows in range(1, settings.max_workers + 1):
        rest = grid_room - left / rows
        with np.errstate(divide="ignore", invalid="ignore"):
            columns = np.where(rest > 0, np.maximum(1, np.ceil(right / np.maximum(rest, 1e-300) - 1e-9)), np.inf)
        best = np.minimum(best, rows * columns)
        if rows >= best.max():
            break
    return np.asarray(np.clip(np.maximum(best, whole), settings.min_workers, settings.max_workers).astype(np.int64))


def largest_ahead(values: Array, steps: int) -> Array:
    """The largest of this entry and the next ``steps``. O(entries * log steps)."""
    found, reach = values.copy(), 1
    while reach < steps + 1:
        by = min(reach, steps + 1 - reach)
        shifted = np.concatenate([found[by:], np.full(by, found[-1])])[: len(found)]
        found = np.maximum(found, shifted)
        reach += by
    return found
