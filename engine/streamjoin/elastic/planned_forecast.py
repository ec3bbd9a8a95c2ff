"""The planner's answer to what would be if the join were cut anew (see :mod:`streamjoin.elastic.forecast`)."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

from streamjoin.elastic.forecast import Prospect
from streamjoin.elastic.plan import Plan
from streamjoin.elastic.planner import prospects
from streamjoin.elastic.shedding import LEAST_KEPT
from streamjoin.language.predicate import MainPredicate
from streamjoin.scheme.capacity import Capacity
from streamjoin.scheme.models import Options
from streamjoin.scheme.statistics import Statistics

DUTY = 10.0
"""A forecast serves for so many times as long as it took to make: planning must not take the time of whoever asks."""


class PlannedForecast:
    """What the planner would make of the join as it is now. Always holds: each number of workers is planned for once."""

    def __init__(
        self,
        plan: Plan,
        statistics: Callable[[], Statistics],
        main: MainPredicate,
        model: str,
        capacity: Capacity,
        options: Options,
        *,
        shed_fraction: float,
        clock: Callable[[], float],
    ) -> None:
        """``statistics`` is asked when first something is planned. ``shed_fraction``: the part of the incoming tuples that is
        shed; loads are those of all of them. ``clock``: seconds."""
        self.generation = plan.generation
        self._plan, self._ask, self._main, self._clock = plan, statistics, main, clock
        self._kept = max(LEAST_KEPT, 1 - shed_fraction)
        self._model, self._capacity, self._options = model, capacity, options
        self._made_at, self._seconds = clock(), 0.0
        self._known: dict[int, Prospect | None] = {}

    def serves(self, at_least: float = 0.0) -> bool:
        """Whether it is young enough to be asked again: ``at_least`` so many seconds, longer where planning has taken long."""
        return self._clock() - self._made_at < max(at_least, DUTY * self._seconds)

    def at(self, workers: int) -> Prospect | None:
        """See :class:`streamjoin.elastic.forecast.Forecast`."""
        if workers not in self._known:
            began = self._clock()
            self._known[workers] = self._planned(workers)
            self._seconds += max(0.0, self._clock() - began)
        return self._known[workers]

    @cached_property
    def _statistics(self) -> Statistics:
        return self._ask()

    def _planned(self, workers: int) -> Prospect | None:
        try:
            found = prospects(self._plan, self._statistics, self._main, self._model, [workers], self._capacity, options=self._options)[
                workers
            ]
        except ValueError:  # the model has none
            return None
        return Prospect(
            tasks=found.tasks,
            tau_max=found.tau_max / self._kept,
            tau_mean=found.tau_mean / self._kept,
            moved_tuples=found.moved_tuples,
            lower_bound_tuples=found.lower_bound_tuples,
            naive_tuples=found.naive_tuples,
        )
