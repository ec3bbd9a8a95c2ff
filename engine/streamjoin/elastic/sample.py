"""What was measured of a running join at one moment, and what of it can be believed.

Always holds: a :class:`Reading` has only finite, non-negative numbers; whatever was missing, NaN, infinite or negative is None there and
named in ``problems``. A reading without problems that is confirmed is *sound*: only sound readings may ever cost a worker.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

MOST = 1e15
"""No number of tuples, seconds or capacities is larger; what claims to be is not believed."""

Pair = tuple[float | None, float | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One measurement, as the engine gives it; nothing about it is trusted. None: not known.

    A join that has nothing to do must go on giving samples (of rates, epoch times and a backlog of 0), or its workers stay for ever.
    """

    taken_at: float
    """Seconds, by the clock that all events and decisions use."""
    generation: int
    """Of the plan that ran when it was taken."""
    tau: Mapping[int, float | None]
    """By task, from 0: tuples held / capacity. Tasks may be missing; a worker without a task holds 0."""
    workers: int
    """How many workers that plan has, the same as in its ``PlanApplied``."""
    starting: int = 0
    """Workers that were asked for and hold nothing yet."""
    rates: Pair = (None, None)
    """Left and right: tuples per second that the join took in, those that it shed included."""
    pace: float | None = None
    """Seconds of event time that have passed in each second, over the time of ``rates``: above 1 while a join catches up with its input.
    None: not known, or the join has no event time."""
    held: Pair = (None, None)
    """Left and right: tuples held, each counted once, however many workers hold it."""
    epoch_seconds: float | None = None
    """How long the last epoch took."""
    backlog_records: float | None = None
    """Records that wait, of all streams."""
    shed_fraction: float | None = None
    """Which part of the incoming tuples is dropped, 0 to 1."""
    budget_seconds: float | None = None
    """For how long ``Settings.budget`` lasts if results are lost as they are now; 0: it is spent. None: not known, or there is none."""
    migrating: bool = False
    """Whether state is on the move to another plan."""
    unconfirmed: str | None = None
    """Why only the join itself says so, where somebody else is to confirm it; None: it is confirmed, or need not be. By one that is not,
    workers are added, or a full one relieved by another plan where there can be no more of them, and none is removed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What can be believed of a sample."""

    taken_at: float
    generation: int
    workers: int
    starting: int
    known: int
    """Of how many of the plan's workers tau is known."""
    tau_max: float | None
    """Of the known ones, so a lower bound when some are not."""
    tau_mean: float | None
    """None unless all are known."""
    least_mean: float
    """The mean over the plan's workers as if those that are not known held nothing."""
    rates: Pair
    held: Pair
    epoch_seconds: float | None
    backlog_records: float | None
    shed_fraction: float | None
    migrating: bool
    problems: tuple[str, ...]
    """What could not be believed, in words."""
    unconfirmed: str | None = None
    """As the sample's."""
    budget_seconds: float | None = None
    pace: float = 1.0
    """As the sample's, at least 1; 1 where it is not known."""

    @property
    def sound(self) -> bool:
        return not self.problems and self.unconfirmed is None

    @property
    def complete(self) -> bool:
        """Whether tau of every worker is known."""
        return self.tau_mean is not None

    @property
    def rate(self) -> float | None:
        """Tuples per second of both sides."""
        left, right = self.rates
        return None if left is None or right is None else left + right

    @property
    def kept(self) -> float:
        """The part of the incoming tuples that is not shed; never quite 0, so that it can be divided by."""
        return max(1e-3, 1 - (self.shed_fraction or 0.0))

    @property
    def demand(self) -> float | None:
        """What the workers would hold if nothing were shed, in capacities of a worker."""
        return None if self.tau_mean is None else self.tau_mean * self.workers / self.kept

    @property
    def log_ratio(self) -> float | None:
        """The natural logarithm of left / right held tuples; None where a stream holds none."""
        left, right = self.held
        return math.log(left / right) if left is not None and right is not None and min(left, right) >= 1 else None

    def to_json(self) -> dict[str, Any]:
        return {name: list(value) if isinstance(value := getattr(self, name), tuple) else value for name in self.__slots__}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Reading:
        values: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in data.items()}
        return cls(**values)


def read(sample: Sample, workers: int) -> Reading:
    """Sift a sample of a plan of ``workers`` workers. O(workers)."""
    problems: list[str] = []

    def number(name: str, value: float | None, most: float = MOST) -> float | None:
        if _usable(value) and value <= most:  # type: ignore[operator]
            return float(value)  # type: ignore[arg-type]
        problems.append(f"{name} is missing" if value is None else f"{name} is {value!r}")
        return None

    if sample.workers != workers:
        problems.append(f"it speaks of {sample.workers} workers, and the plan has {workers}")
    starting = sample.starting
    if not isinstance(starting, int) or starting < 0:
        problems.append(f"starting workers are {starting!r}")
        starting = 0
    given = sample.tau
    # Of a thousand workers nearly all give a float: those are told by the shorter test.
    values = [given.get(task) for task in range(workers)]
    taus = [value for value in values if value is not None and ((type(value) is float and 0.0 <= value <= MOST) or _usable(value))]
    known = len(taus)
    if known < workers:
        problems.append(f"tau of {workers - known} of {workers} workers is missing or no number")
    if len(given) > workers:
        problems.append(f"it has tau of {len(given)} workers, and the plan has {workers}")
    total = math.fsum(taus)
    return Reading(
        taken_at=float(sample.taken_at),
        generation=sample.generation,
        workers=workers,
        starting=starting,
        known=known,
        tau_max=max(taus, default=None),
        tau_mean=total / workers if known == workers else None,
        least_mean=total / workers,
        rates=(number("the left rate", sample.rates[0]), number("the right rate", sample.rates[1])),
        held=(number("the held left tuples", sample.held[0]), number("the held right tuples", sample.held[1])),
        epoch_seconds=number("the epoch's time", sample.epoch_seconds),
        backlog_records=number("the backlog", sample.backlog_records),
        shed_fraction=number("the shed fraction", sample.shed_fraction, 1.0),
        budget_seconds=None if sample.budget_seconds is None else number("the budget's time", sample.budget_seconds),
        migrating=bool(sample.migrating),
        problems=tuple(problems),
        unconfirmed=sample.unconfirmed,
        pace=max(1.0, float(sample.pace)) if sample.pace is not None and _usable(sample.pace) else 1.0,
    )


def _usable(value: object) -> bool:
    return isinstance(value, float | int) and not isinstance(value, bool) and 0 <= value <= MOST
