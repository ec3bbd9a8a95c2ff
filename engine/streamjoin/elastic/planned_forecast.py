"""The planner's answer to what would be if the join were cut anew (see :mod:`streamjoin.elastic.forecast`)."""

from __future__ import annotations

from collections.abc import Callable

from streamjoin.elastic.forecast import Prospect
from streamjoin.elastic.planner import Planned
from streamjoin.elastic.shedding import LEAST_KEPT
from streamjoin.scheme.capacity import Capacity

DUTY = 10.0
"""A forecast serves for so many times as long as it took to make: planning must not take the time of whoever asks."""


class PlannedForecast:
    """What the planner would make of the join as it is now. Always holds: each number of workers is planned for once."""

    def __init__(
        self, generation: int, plan: Callable[[int], Planned], capacity: Capacity, *, shed_fraction: float, clock: Callable[[], float]
    ) -> None:
        """``plan``: makes the plan of so many workers that follows the running one, of ``generation``; it raises ValueError where there is
        none. ``shed_fraction``: the part of the incoming tuples that is shed; loads are those of all of them. ``clock``: seconds."""
        self.generation = generation
        self._plan, self._capacity, self._clock = plan, capacity, clock
        self._kept = max(LEAST_KEPT, 1 - shed_fraction)
        self._made_at, self._seconds = clock(), 0.0
        self._known: dict[int, Planned | None] = {}

    def serves(self, at_least: float) -> bool:
        """Whether it is young enough to be asked again: ``at_least`` so many seconds, longer where planning has taken long."""
        return self._clock() - self._made_at < max(at_least, DUTY * self._seconds)

    def planned(self, workers: int) -> Planned | None:
        """The plan of at most ``workers`` workers; None where there is none."""
        if workers not in self._known:
            began = self._clock()
            try:
                self._known[workers] = self._plan(workers)
            except ValueError:
                self._known[workers] = None
            self._seconds += max(0.0, self._clock() - began)
        return self._known[workers]

    def at(self, workers: int) -> Prospect | None:
        """See :class:`streamjoin.elastic.forecast.Forecast`."""
        made = self.planned(workers)
        if made is None:
            return None
        room = self._capacity.amount * self._kept
        return Prospect(
            tasks=made.plan.workers,
            tau_max=float(made.loads.max()) / room,
            tau_mean=float(made.loads.mean()) / room,
            moved_tuples=made.migration.moved_tuples,
            lower_bound_tuples=made.migration.lower_bound_tuples,
            naive_tuples=made.migration.naive_tuples,
        )
