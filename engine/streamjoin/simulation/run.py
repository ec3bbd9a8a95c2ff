"""A simulated join under simulated traffic, scaled by any decider: what a week of a choice of thresholds would be like, in seconds.

The join holds what its window holds; each worker holds what the analytic forecast says (``elastic.forecast.load_of``) of the plan that
was made when it was last changed, times the imbalance that the keys of what is held have since come to; it sheds by
``elastic.shedding``, and takes in what its workers can work off, the rest waits. Workers take a while to start; then state moves, at a
rate, and the switch pauses the join.

Not simulated: failures, the epochs themselves (a step is as long as a sample takes), and late tuples. Each step sees the tau of the one
before.

Always holds: tuples that came in are held, expired, shed or wait; all deciders meet the same traffic and the same join.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from streamjoin.elastic.arbitration import GIB, Prices
from streamjoin.elastic.completeness import JoinLosses, Sums
from streamjoin.elastic.forecast import AnalyticForecast, Grid, best_grid, load_of
from streamjoin.elastic.sample import Sample
from streamjoin.elastic.settings import Settings
from streamjoin.language.window import Window, WindowKind
from streamjoin.simulation.traffic import Traffic

Array = np.ndarray[Any, np.dtype[Any]]

HOT_WIDTH = 0.05
"""So far a hot part of the keys must move to be all news to the plan."""
LOOKS = 60
"""Into so many parts the window is divided where the skew of what it holds is asked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedJoin:
    """What is simulated. Times in seconds."""

    settings: Settings
    window_seconds: tuple[float, float]
    """For how long a left, and a right, tuple is held; infinite: for ever, or until there are too many."""
    most_held: float = math.inf
    """Of each stream: a window of rows."""
    share: float = 1.0
    """The part of all pairs that the main predicate admits (``AnalyticForecast``)."""
    start_seconds: float = 30.0
    """From asking for a worker to having it."""
    worker_rate: float = 200_000.0
    """Tuples per second that one worker can take in."""
    fixed_seconds: float = 0.1
    """An epoch's time that no worker makes shorter."""
    prices: Prices = field(default_factory=Prices)
    """For the bytes of a tuple, the rate at which state moves, and the pause of a switch; and for the core's arbitration."""
    workers: int | None = None
    """To begin with; otherwise so many as the first traffic fills to tau1."""

    def fewest(self, left: float, right: float, level: float) -> int:
        """The fewest workers that hold so many tuples at this tau, within the limits. O(log max_workers * max_workers)."""
        low, high = self.settings.min_workers, self.settings.max_workers
        while low < high:
            middle = (low + high) // 2
            load = load_of(best_grid(left, right, middle), middle, left, right, self.share)
            low, high = (low, middle) if load <= level * self.settings.capacity_tuples else (middle + 1, high)
        return high


def first_workers(join: SimulatedJoin, traffic: Traffic) -> int:
    """The workers that a simulation begins with."""
    left, right = (side.held for side in _held_at_first(join, traffic))
    return join.workers or join.fewest(left, right, join.settings.tau1)


def spans(window: Window) -> tuple[float, float]:
    """For how many seconds the window holds a left, and a right, tuple: ``SimulatedJoin.window_seconds``."""
    if window.kind is WindowKind.RANGE:
        return max(0, window.after_micros) / 1e6, max(0, window.before_micros) / 1e6
    return math.inf, math.inf


@dataclass(frozen=True, slots=True)
class Ask:
    """What a decider wants: a plan of so many workers, made anew also where they are as many as now; or more memory for those that run."""

    workers: int
    memory: int | None = None
    """Of each worker, in bytes, where that is to be more and the plan stays."""


class Decider(Protocol):
    """Whoever scales the join. Called once a step, and told what becomes of its wishes."""

    name: str

    def step(self, now: float, sample: Sample, forecast: AnalyticForecast) -> Ask | None: ...

    def begun(self, now: float, workers: int) -> None:
        """State begins to move to a plan of so many workers."""

    def applied(self, now: float, generation: int, workers: int, moved_tuples: float, pause_seconds: float) -> None:
        """The join runs that plan."""


@dataclass(slots=True, kw_only=True)
class Outcome:
    """What came of it."""

    name: str
    worker_hours: float = 0.0
    """Starting workers included."""
    seconds_above_tau3: float = 0.0
    """Of the fullest worker."""
    input_tuples: float = 0.0
    shed_tuples: float = 0.0
    unheld_tuples: float = 0.0
    """Tuples that a worker had no room for, beyond those that it shed: where shedding is off, or is late."""
    would_shed_tuples: float = 0.0
    """Where shedding is only recommended."""
    rescales: int = 0
    """Changes of the number of workers."""
    replans: int = 0
    """Plans for as many workers."""
    moved_tuples: float = 0.0
    pause_seconds: float = 0.0
    bill: float = 0.0
    """Worker-hours, with all that moved, paused, was lost and changed at its price (``elastic.arbitration``)."""
    most_workers: int = 0
    memory: int | None = None
    """Of each worker at the end, in bytes, where it was raised."""
    most_backlog: float = 0.0
    """Records."""
    workers: Array = field(default_factory=lambda: np.empty(0))
    """One entry per step: workers that have started or are starting."""
    tau: Array = field(default_factory=lambda: np.empty(0))
    """One entry per step: of the fullest worker."""

    @property
    def lost_tuples(self) -> float:
        """Shed, or not held for lack of room."""
        return self.shed_tuples + self.unheld_tuples

    def to_json(self) -> dict[str, Any]:
        """The totals, by the names that the command line's JSON uses."""
        return {
            "decider": self.name,
            "workerHours": self.worker_hours,
            "secondsAboveTau3": self.seconds_above_tau3,
            "inputTuples": self.input_tuples,
            "shedTuples": self.shed_tuples,
            "unheldTuples": self.unheld_tuples,
            "wouldShedTuples": self.would_shed_tuples,
            "rescales": self.rescales,
            "replans": self.replans,
            "movedTuples": self.moved_tuples,
            "pauseSeconds": self.pause_seconds,
            "bill": self.bill,
            "mostWorkers": self.most_workers,
            "memory": self.memory,
            "mostBacklog": self.most_backlog,
        }


def imbalance(planned: tuple[float, float], now: tuple[float, float]) -> float:
    """How much fuller than the mean the fullest worker is: by as much as its plan does not know of the keys.

    Each is the traffic's (skew, hot), when the plan was made and now.
    """
    (skew_then, hot_then), (skew, hot) = planned, now
    news = min(1.0, abs(hot - hot_then) / HOT_WIDTH)
    return max(1.0, skew / skew_then * math.pow(skew_then, news))


def as_held(join: SimulatedJoin, traffic: Traffic) -> Traffic:
    """The traffic with the skew of what the window holds, which tuples that came before a hot part has moved are still a part of.

    O(steps), by LOOKS moments of the window, each counting as the tuples that came then.
    """
    steps, rates = np.arange(traffic.steps), traffic.rates[0] + traffic.rates[1]
    span = max(join.window_seconds) / traffic.step_seconds
    if math.isfinite(join.most_held):
        span = join.most_held / max(1e-9, float(rates.mean()) / 2 * traffic.step_seconds)
    looks = LOOKS if span >= LOOKS else max(1, math.ceil(span))
    weighed, weight = np.zeros(traffic.steps), np.zeros(traffic.steps)
    for look in range(looks):
        back = steps * (look / looks) if math.isinf(span) else np.full(traffic.steps, span * look / looks)
        then = np.maximum(0, steps - back.astype(int))
        news = np.minimum(1.0, np.abs(traffic.hot - traffic.hot[then]) / HOT_WIDTH)
        weighed += rates[then] * traffic.skew[then] ** (1 - news)
        weight += rates[then]
    skew = np.where(weight > 0, weighed / np.maximum(weight, 1e-300), traffic.skew)
    return Traffic(traffic.step_seconds, traffic.rates, skew, traffic.hot)


@dataclass(slots=True)
class _Plan:
    workers: int
    grid: Grid
    skew: float
    hot: float
    generation: int = 1

    def imbalance(self, skew: float, hot: float) -> float:
        return imbalance((self.skew, self.hot), (skew, hot))


class _Side:
    """The tuples that a window holds of one stream, which came at a constant rate before the first step; one without end began empty."""

    def __init__(self, steps: int, span_steps: float, most: float, first: float) -> None:
        self._endless, self._most = math.isinf(span_steps), most
        self._whole = 0 if self._endless else math.floor(span_steps)
        self._part = 0.0 if self._endless else span_steps - self._whole
        self._first = first
        self._accepted = [0.0] * steps
        self._full = first * self._whole
        self.held = first * span_steps if not self._endless else most if math.isfinite(most) else 0.0

    def add(self, step: int, tuples: float) -> None:
        """What came in this step; what has expired goes. O(1)."""
        if self._endless:
            self.held = min(self._most, self.held + tuples)
            return
        self._accepted[step] = tuples
        last = step - self._whole
        oldest = self._accepted[last] if last >= 0 else self._first
        if self._whole:
            self._full += tuples - oldest
        # The oldest step's tuples are a part of the window still.
        self.held = max(0.0, self._full + self._part * oldest)


def _held_at_first(join: SimulatedJoin, traffic: Traffic) -> tuple[_Side, ...]:
    step = traffic.step_seconds
    return tuple(
        _Side(traffic.steps, span / step, join.most_held, float(rates[0]) * step)
        for span, rates in zip(join.window_seconds, traffic.rates, strict=True)
    )


@dataclass(slots=True)
class _Change:
    """A plan on its way: workers start, then state moves."""

    workers: int
    ready_at: float
    """When all workers have started."""
    ends_at: float | None = None
    """When all state has moved; None while workers start."""
    moved_tuples: float = 0.0


class _World:
    """The state of one simulation."""

    def __init__(self, join: SimulatedJoin, traffic: Traffic, decider: Decider) -> None:
        self.join, self.traffic, self.decider = join, traffic, decider
        self.capacity, self.size = join.settings.capacity_tuples, 1.0
        """Of a worker with the memory that it has by now: the tuples that it may hold, and what it costs, in workers of the first size."""
        self.step_seconds = traffic.step_seconds
        self.sides = _held_at_first(join, traffic)
        left, right = (side.held for side in self.sides)
        workers = first_workers(join, traffic)
        self.plan = _Plan(workers, best_grid(left, right, workers), float(traffic.skew[0]), float(traffic.hot[0]))
        self.change: _Change | None = None
        self.newest = self.plan.generation
        """The generation of the plan that is on its way, or else of the one that runs."""
        self.waiting = [0.0, 0.0]
        self.taus = (0.0, 0.0)
        """Of the fullest worker, and of each of the others."""
        self.paused = 0.0
        """Seconds of pause still to come."""
        self.losses = JoinLosses(Sums(0.0))
        """Of results, where there is a budget for them."""
        self.outcome = Outcome(name=decider.name, workers=np.empty(traffic.steps), tau=np.empty(traffic.steps))
        self._fill(0)

    def run(self) -> Outcome:
        traffic, outcome, step = self.traffic, self.outcome, self.step_seconds
        columns = [of_side.tolist() for of_side in traffic.rates]
        for index in range(traffic.steps):
            now = (index + 1) * step
            arrived = (columns[0][index] * step, columns[1][index] * step)
            rates, busy, shed = self._take_in(index, arrived)
            self._fill(index)
            self._account(index, arrived)
            self._carry_on(now, index)
            ask = self.decider.step(now, self._sample(now, rates, busy, shed), self._forecast(shed))
            if ask is not None and ask.memory is not None:
                self._enlarge(ask.memory)
            elif ask is not None:
                self._begin(now, ask)
        return outcome

    def _take_in(self, index: int, arrived: tuple[float, float]) -> tuple[tuple[float, float], float, float]:
        """One step's tuples: shed, take in, expire. The rates taken in, how busy the workers were (1: all the time), the part shed."""
        workers, step, settings = self.plan.workers, self.step_seconds, self.join.settings
        rest = max(0.0, step - self.paused)
        self.paused = max(0.0, self.paused - step)
        there = [waiting + new for waiting, new in zip(self.waiting, arrived, strict=True)]
        able = self.join.worker_rate * workers * rest
        part = min(1.0, able / sum(there)) if sum(there) > 0 else 1.0
        fullest, others = (settings.shed_factor(tau) for tau in self.taus)
        factor = (fullest + (workers - 1) * others) / workers
        shed = factor if settings.sheds else 0.0
        taken = [tuples * part for tuples in there]
        for side, tuples in zip(self.sides, taken, strict=True):
            side.add(index, tuples * (1 - shed))
        self.waiting = [tuples - took for tuples, took in zip(there, taken, strict=True)]
        unheld = (_unheld(self.taus[0], fullest) + (workers - 1) * _unheld(self.taus[1], others)) / workers
        if settings.budget is not None:
            # A result is there if neither of its tuples was shed. Its other tuple is taken to have come at about the same time.
            now, results = (index + 1) * step, taken[0] * taken[1] / step
            self.losses = self.losses.plus(now, Sums(now, results * (1 - shed) ** 2, results, results))
        self.outcome.shed_tuples += sum(taken) * shed
        self.outcome.unheld_tuples += sum(taken) * unheld
        self.outcome.would_shed_tuples += sum(taken) * (factor - shed)
        self.outcome.bill += sum(taken) * (shed + unheld) / 1e6 * self.join.prices.million_shed
        # What is offered against what can be worked off: above 1 the epochs take longer than their interval.
        busy = sum(there) / (self.join.worker_rate * workers * step)
        return (taken[0] / step, taken[1] / step), busy, shed

    def _fill(self, index: int) -> None:
        """How full the workers are now."""
        left, right = (side.held for side in self.sides)
        plan, join = self.plan, self.join
        mean = load_of(plan.grid, plan.workers, left, right, join.share) / self.capacity
        above = min(plan.imbalance(float(self.traffic.skew[index]), float(self.traffic.hot[index])), plan.workers)
        rest = mean * (plan.workers - above) / (plan.workers - 1) if plan.workers > 1 else mean
        self.taus = (mean * above, rest)

    def _account(self, index: int, arrived: tuple[float, float]) -> None:
        outcome, step = self.outcome, self.step_seconds
        running = self.plan.workers + self._starting()
        outcome.worker_hours += running * step / 3600
        outcome.bill += running * self.size * step / 3600
        outcome.most_workers = max(outcome.most_workers, running)
        outcome.input_tuples += sum(arrived)
        outcome.most_backlog = max(outcome.most_backlog, sum(self.waiting))
        outcome.seconds_above_tau3 += step * (self.taus[0] >= self.join.settings.tau3)
        outcome.workers[index], outcome.tau[index] = running, self.taus[0]

    def _starting(self) -> int:
        return 0 if self.change is None else max(0, self.change.workers - self.plan.workers)

    def _forecast(self, shed: float) -> AnalyticForecast:
        """What a planner with the right statistics would say: of the load without shedding, whatever the skew."""
        left, right = (side.held / max(1e-3, 1 - shed) for side in self.sides)
        return AnalyticForecast(
            left_tuples=left,
            right_tuples=right,
            capacity_tuples=self.capacity,
            workers=self.plan.workers,
            grid=self.plan.grid,
            tau_max=self.taus[0],
            share=self.join.share,
        )

    def _sample(self, now: float, rates: tuple[float, float], busy: float, shed: float) -> Sample:
        plan, interval, budget = self.plan, self.join.settings.interval_seconds, self.join.settings.budget
        tau: dict[int, float | None] = dict.fromkeys(range(plan.workers), self.taus[1])
        tau[0] = self.taus[0]
        return Sample(
            taken_at=now,
            generation=plan.generation,
            tau=tau,
            workers=plan.workers,
            starting=self._starting() if self.change is not None and self.change.ends_at is None else 0,
            rates=rates,
            held=(self.sides[0].held, self.sides[1].held),
            epoch_seconds=max(min(self.join.fixed_seconds, interval / 2), busy * interval),
            backlog_records=sum(self.waiting),
            shed_fraction=shed,
            budget_seconds=None if budget is None else self.losses.seconds_left(budget.share, budget.over_seconds, now),
            migrating=self.change is not None and self.change.ends_at is not None,
        )

    def _begin(self, now: float, ask: Ask) -> None:
        """Ask for workers, or for more of them; where none are needed state begins to move at once. Not while state moves."""
        settings, plan, change = self.join.settings, self.plan, self.change
        workers = max(settings.min_workers, min(settings.max_workers, ask.workers))
        if change is None:
            self.change = _Change(workers, now + self.join.start_seconds if workers > plan.workers else now)
            self.newest += 1
        elif change.ends_at is None and workers > change.workers:
            change.workers, change.ready_at = workers, now + self.join.start_seconds
            self.newest += 1

    def _enlarge(self, memory: int) -> None:
        """At once: nothing moves, and no worker has to start."""
        settings, headroom = self.join.settings, self.join.settings.headroom
        assert headroom is not None, "nobody else asks for it"
        self.capacity = settings.capacity_tuples * headroom.times(memory)
        self.size, self.outcome.memory = headroom.price(memory, self.join.prices.core_gib), memory

    def _carry_on(self, now: float, index: int) -> None:
        """What has become of a plan that is on its way."""
        change, plan, prices = self.change, self.plan, self.join.prices
        if change is not None and change.ends_at is None and now >= change.ready_at:
            prospect = self._forecast(0.0).at(change.workers)
            assert prospect is not None
            change.moved_tuples = prospect.moved_tuples
            taking = max(1, min(change.workers, plan.workers))
            change.ends_at = now + change.moved_tuples * prices.tuple_bytes / (prices.bytes_per_second * taking)
            self.decider.begun(now, change.workers)
        if change is None or change.ends_at is None or now < change.ends_at:
            return
        outcome, traffic = self.outcome, self.traffic
        left, right = (side.held for side in self.sides)
        outcome.rescales += change.workers != plan.workers
        outcome.replans += change.workers == plan.workers
        outcome.moved_tuples += change.moved_tuples
        outcome.pause_seconds += prices.switch_seconds
        outcome.bill += prices.change + change.moved_tuples * prices.tuple_bytes / GIB * prices.gib
        outcome.bill += prices.switch_seconds / 3600 * change.workers * prices.paused
        self.paused += prices.switch_seconds
        grid = best_grid(left, right, change.workers)
        self.plan = _Plan(change.workers, grid, float(traffic.skew[index]), float(traffic.hot[index]), self.newest)
        self.change = None
        self.decider.applied(now, self.plan.generation, change.workers, change.moved_tuples, prices.switch_seconds)
        self._fill(index)


def _unheld(tau: float, dropped: float) -> float:
    """The part of a worker's tuples for which it has no room, beyond the part that it drops."""
    return max(0.0, 1 - 1 / tau - dropped) if tau > 1 else 0.0


def simulate(join: SimulatedJoin, traffic: Traffic, decider: Decider) -> Outcome:
    """Run one decider through all of the traffic. O(steps * (workers + the decider's own step))."""
    return _World(join, as_held(join, traffic), decider).run()


def table(outcomes: Sequence[Outcome]) -> str:
    """The outcomes side by side, for people. Ends with a newline."""
    rows = [("", "worker-hours", "above tau3", "shed", "of input", "rescales", "re-plans", "moved", "most workers", "paused", "bill")]
    for one in outcomes:
        part = one.shed_tuples / one.input_tuples if one.input_tuples else 0.0
        rows.append(
            (
                one.name,
                f"{one.worker_hours:,.1f}",
                _span(one.seconds_above_tau3),
                f"{one.shed_tuples:,.0f}",
                f"{part:.3%}",
                f"{one.rescales:,}",
                f"{one.replans:,}",
                f"{one.moved_tuples:,.0f}",
                f"{one.most_workers:,}",
                _span(one.pause_seconds),
                f"{one.bill:,.1f}",
            )
        )
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = [cell.rjust(width) if at else cell.ljust(width) for at, (cell, width) in enumerate(zip(row, widths, strict=True))]
        lines.append("  ".join(cells))
    return "\n".join(line.rstrip() for line in lines) + "\n"


def _span(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 600 else f"{seconds / 60:.0f} min" if seconds < 36000 else f"{seconds / 3600:.1f} h"
