"""How the operator follows a load that changes: its real steps, with a modelled join, a scrape every five seconds and time that is counted.

The join has a window of 180 s that each stream fills at the rate of the moment, workers of 100,000 tuples, and pods that take 40 s.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from operator_parts import Object
from scaled_join import ScarceJoin, workers_of
from streamjoin.controlplane.arrivals import HASTE, STABILIZATION_SECONDS
from streamjoin.elastic import planned_forecast
from streamjoin.scheme.statistics import Histogram, SideStatistics, Statistics
from streamjoin_operator.driver import Answered
from test_autoscale import World

SPAN, PODS_SECONDS, SCRAPE_SECONDS = 180.0, 40.0, 5
TAU2 = 0.8
WARM_SECONDS = 600
"""Of the first rate, before the load changes."""
AMOUNTS = Histogram.from_sample(np.linspace(0.0, 1e5, 500))
"""Of both streams; the join finds those that differ by 0.01 at most."""


class LoadedJoin(ScarceJoin):
    """Holds what its window holds of a load. Workers come so long after they were asked for, whatever else has been asked for since."""

    def __init__(
        self, clock: Callable[[], float], tuples: float, workers: int, *, points: Sequence[tuple[float, float]], **spec: Any
    ) -> None:
        """``points``: seconds from the beginning, ascending, and tuples per second of each stream then; between two they change evenly."""
        self._began, self._now = clock(), clock
        self._asks: list[tuple[float, int]] = []
        """When so many workers were asked for."""
        ends = [*points, (points[-1][0] + 1e6, points[-1][1])]
        self._times = np.array([-1e6, *(at for at, _ in ends)])
        self._rates = np.array([points[0][1], *(rate for _, rate in ends)])
        steps = np.diff(self._times) * (self._rates[1:] + self._rates[:-1]) / 2
        self._sums = np.concatenate([[0.0], np.cumsum(steps)])
        super().__init__(clock, tuples, workers, start_seconds=PODS_SECONDS, **spec)

    def came(self, at: float) -> float:
        """Tuples of each stream until so many seconds after the beginning."""
        index = int(np.searchsorted(self._times, at, side="right")) - 1
        first, rate = self._times[index], self._rates[index]
        slope = (self._rates[index + 1] - rate) / (self._times[index + 1] - first)
        return float(self._sums[index] + (at - first) * (rate + slope * (at - first) / 2))

    @property
    def tuples(self) -> float:  # type: ignore[override]
        """That each stream's window holds."""
        at = self._now() - self._began
        return self.came(at) - self.came(at - SPAN)

    @tuples.setter
    def tuples(self, value: float) -> None:
        """What is held follows from the load."""

    @property
    def statistics_now(self) -> Statistics:
        return Statistics((SideStatistics(self.tuples, AMOUNTS), SideStatistics(self.tuples, AMOUNTS)))

    @property
    def _come(self) -> list[tuple[float, int]]:
        """The asks whose pods are there."""
        return [ask for ask in self._asks if self._now() - ask[0] >= PODS_SECONDS]

    @property
    def there(self) -> int:
        return max([self.workers, *(min(workers, self.asked or workers) for _, workers in self._come)])

    @property
    def came_at(self) -> float:
        return max((at + PODS_SECONDS for at, _ in self._come), default=super().came_at)

    @property
    def stabilization(self) -> float:
        return STABILIZATION_SECONDS * (HASTE if max(self.tau) >= TAU2 else 1.0)

    def _put(self, wish: Object) -> Answered:
        answered = super()._put(wish)
        if answered.status == 202 and self.asked is not None:
            self._asks.append((self._now(), self.asked))
        return answered

    def _switch(self, now: float) -> None:
        super()._switch(now)
        self._asks = [(at, workers) for at, workers in self._asks if now - at < PODS_SECONDS]

    @property
    def task_tuples(self) -> float:
        return self.tuples / self.workers

    def arrived(self, rate: float) -> float:
        return self.came(self._now() - self._began)


@dataclass
class Followed:
    """What came of it; times are seconds since the load changed first."""

    plans: list[tuple[float, int]] = field(default_factory=list)
    """When the driver was asked for a plan, and of how many workers."""
    runs: list[tuple[float, int]] = field(default_factory=list)
    """When a plan of so many workers began."""
    full_seconds: int = 0
    """For so long the fullest worker's tau was 1 or more."""
    tau: float = 0.0
    """Of the fullest worker at the end."""


async def follow(points: Sequence[tuple[float, float]], seconds: float, *, phase: int = 0, most: int = 16, **spec: Any) -> Followed:
    """Begins with one worker, and has ``most`` at most. ``points``: see :class:`LoadedJoin`, with times from the first change on.
    ``phase``: so many seconds earlier a poll is due."""
    planned_forecast.DUTY = 0.0  # of the time that counts here, planning takes none
    begins = [(WARM_SECONDS + at, rate) for at, rate in points]
    world = World(join=partial(LoadedJoin, points=begins), **spec)
    world.edit(lambda body: body["spec"]["workers"].update(max=most))
    join, found, due = world.join, Followed(), 15.0 - phase
    begun, running = world.now, join.workers
    for _ in range(int(WARM_SECONDS + seconds)):
        world.now += 1
        at = world.now - begun - WARM_SECONDS
        if (world.now - begun) % SCRAPE_SECONDS == 0:
            world.prometheus.scrape()
        join.advance()
        if join.workers != running:
            running = join.workers
            found.runs.append((at, running))
        asked = len(join.wishes)
        if world.now - begun >= due:
            after = await world.once()
            due = world.now - begun + (1.0 if after is None else after)
        found.plans += [(at, workers_of(wish)) for wish in join.wishes[asked:]]
        found.tau = max(join.tau)
        found.full_seconds += found.tau >= 1
    return found
