"""What the decision core remembers: how long each condition has lasted, and the largest need of late. Plain data that survives a restart.

Always holds (:meth:`State.validate`): a hold begins no earlier than the last change and ends no later than the last sample; ``latest`` is
of the present generation and younger than the last change; memory is bounded, whatever the samples.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Any

from streamjoin.elastic.damping import Damping
from streamjoin.elastic.idle_periods import IdlePeriods
from streamjoin.elastic.rate_shifts import RateShifts
from streamjoin.elastic.rate_trend import RateTrend
from streamjoin.elastic.sample import Reading
from streamjoin.elastic.seasonality import Seasonality
from streamjoin.elastic.settings import MOST_PER_HOUR
from streamjoin.elastic.state_forecast import StateForecast, Trend

BUCKETS = 60
"""Into so many parts the delay before removing workers is divided, to remember the largest need in it."""


@dataclass(frozen=True, slots=True)
class Hold:
    """A condition that every usable sample from ``since`` to ``until`` has met."""

    since: float
    until: float

    @property
    def seconds(self) -> float:
        return self.until - self.since


@dataclass(frozen=True, slots=True)
class Behind:
    """Epochs over their interval while what waits never fell below ``backlog``, that of the first sample."""

    since: float
    until: float
    backlog: float

    @property
    def seconds(self) -> float:
        return self.until - self.since


@dataclass(frozen=True, slots=True)
class Attempt:
    """Workers were added because the join fell behind: from how many, to how many, and the tuples per second it took in before."""

    workers_before: int
    workers: int
    rate_before: float


class Course(StrEnum):
    """Which way the policy ``esj`` is going, one worker at a time, since tau3 or tau0 was passed for long enough."""

    UP = "up"
    DOWN = "down"


@dataclass(slots=True)
class Peaks:
    """The largest demand, epoch and rate of the last ``delay`` seconds, or a little more: of at most BUCKETS + 2 parts of it."""

    rows: list[list[float]] = field(default_factory=list)
    """By part, oldest first: its number, the first demand in it, the largest demand, epoch in seconds, tuples per second."""

    def add(self, at: float, delay: float, demand: float, epoch_seconds: float, rate: float) -> None:
        """O(1) amortised."""
        number = math.floor(at / _width(delay))
        if self.rows and self.rows[-1][0] >= number:
            last = self.rows[-1]
            last[2:] = max(last[2], demand), max(last[3], epoch_seconds), max(last[4], rate)
        else:
            self.rows.append([number, demand, demand, epoch_seconds, rate])
        while self.rows[0][0] < number - BUCKETS - 1:
            self.rows.pop(0)

    @property
    def first(self) -> float:
        """The demand at the beginning."""
        return self.rows[0][1]

    @property
    def demand(self) -> float:
        return max(row[2] for row in self.rows)

    @property
    def epoch_seconds(self) -> float:
        return max(row[3] for row in self.rows)

    @property
    def rate(self) -> float:
        return max(row[4] for row in self.rows)


def _width(delay: float) -> float:
    return max(delay / BUCKETS, 0.01)


@dataclass(slots=True)
class State:
    """All that the core knows."""

    generation: int
    """Of the plan that runs."""
    workers: int
    """Of that plan."""
    changed_at: float
    """When it began; only younger samples count."""
    migrating_to: int | None = None
    """The workers of the plan to which state is on the move; None: nothing moves."""
    suspended: bool = False
    paused: str | None = None
    """By whom; None: not paused."""
    floor: int | None = None
    ceiling: int | None = None
    latest: Reading | None = None
    """The last sample that counts."""
    ignored: str | None = None
    """Why the last sample did not count; None when it did."""
    full: Hold | None = None
    """tau of the fullest worker at or above tau3, or it would be if nothing were shed."""
    eased: Hold | None = None
    """No worker is full, or going to be."""
    spending: Hold | None = None
    """Results are being lost to shedding, and the budget for that is going to be spent before added workers would be there."""
    unused: Hold | None = None
    """The mean tau at or below tau0, by sound samples only."""
    uneven: Hold | None = None
    """The fullest worker far above the mean."""
    ratio: Hold | None = None
    """The streams' ratio far from ``planned_log_ratio``."""
    behind: Behind | None = None
    course: Course | None = None
    """Kept across the plans that it leads to; None where nothing is under way, and by other policies than ``esj``."""
    planned_log_ratio: float | None = None
    """The ratio when the plan was applied: that of the first sample after it which has one."""
    replans: int = 0
    """Plans of the same size applied since the workers were even last: in vain, if another one is asked for."""
    attempt: Attempt | None = None
    """The last addition of workers because the join fell behind; None once it kept up."""
    outrun: Attempt | None = None
    """The same, and kept: so many workers were too few for such a rate."""
    quickest: float | None = None
    """The shortest epoch of all, in seconds: nearly nothing but its fixed cost."""
    peaks: Peaks = field(default_factory=Peaks)
    changes: list[float] = field(default_factory=list)
    """When the last plans were applied, oldest first; whoever wanted them."""
    state_forecast: StateForecast = field(default_factory=StateForecast)
    """Kept across plans: what the window holds does not depend on them."""
    rate_shifts: RateShifts = field(default_factory=RateShifts)
    """Kept likewise."""
    rate_trend: RateTrend = field(default_factory=RateTrend)
    """Kept likewise."""
    seasonality: Seasonality = field(default_factory=Seasonality)
    """Kept likewise."""
    idle_periods: IdlePeriods = field(default_factory=IdlePeriods)
    """Kept across plans, as the forecast."""
    trend: Trend = field(default_factory=Trend)
    """Of the fullest worker's tau, as it would be if nothing were shed, under this plan."""

    damping: Damping = field(default_factory=Damping)
    """Kept likewise; by the policy ``thresholds`` alone."""

    def forget_samples(self) -> None:
        """Nothing that was measured counts any more."""
        self.trend = Trend()
        self.latest = self.full = self.eased = self.spending = self.unused = self.uneven = self.ratio = self.behind = None
        self.planned_log_ratio = None
        self.peaks = Peaks()

    def validate(self) -> None:
        """Raises AssertionError naming what does not hold."""
        assert self.workers >= 1, f"workers {self.workers} are fewer than 1"
        assert math.isfinite(self.changed_at), f"changed_at {self.changed_at} is not finite"
        assert self.migrating_to is None or self.migrating_to >= 1, f"migrating_to {self.migrating_to} is fewer than 1"
        assert self.floor is None or self.ceiling is None or self.floor <= self.ceiling, f"floor {self.floor}, ceiling {self.ceiling}"
        assert len(self.peaks.rows) <= BUCKETS + 2, f"{len(self.peaks.rows)} parts are remembered"
        assert len(self.changes) <= MOST_PER_HOUR, f"{len(self.changes)} changes are remembered"
        assert self.replans >= 0, f"replans {self.replans} are negative"
        self.state_forecast.validate()
        latest = self.latest
        holds = {name: getattr(self, name) for name in ("full", "eased", "spending", "unused", "uneven", "ratio", "behind")}
        for name, hold in holds.items():
            if hold is not None:
                assert latest is not None, f"{name} lasts without a sample"
                assert self.changed_at < hold.since <= hold.until <= latest.taken_at, f"{name} {hold} is not within the samples"
        if latest is not None:
            assert latest.generation == self.generation, f"latest is of generation {latest.generation}, not {self.generation}"
            assert latest.taken_at > self.changed_at, f"latest is of {latest.taken_at}, before the change at {self.changed_at}"
            assert latest.workers == self.workers, f"latest has {latest.workers} workers, not {self.workers}"
        else:
            assert not self.peaks.rows, "peaks without a sample"

    def to_json(self) -> dict[str, Any]:
        """Plain data; :meth:`from_json` gives the same state back."""
        found: dict[str, Any] = {}
        for item in fields(self):
            value = getattr(self, item.name)
            if isinstance(value, Reading | StateForecast | RateShifts | Seasonality | IdlePeriods):
                value = value.to_json()
            elif isinstance(value, Hold | Behind | Attempt | Damping):
                value = {name: getattr(value, name) for name in value.__slots__}
            elif isinstance(value, Peaks | RateTrend):
                value = [list(row) for row in value.rows]
            elif isinstance(value, Trend):
                value = {name: [list(row) for row in getattr(value, name)] for name in ("rows", "foreseen")}
            elif isinstance(value, list):
                value = list(value)
            found[item.name] = value
        return found

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> State:
        """Raises ValueError for what :meth:`to_json` cannot have written."""
        kinds: dict[str, Any] = dict.fromkeys(("full", "eased", "spending", "unused", "uneven", "ratio"), Hold) | {
            "behind": Behind,
            "attempt": Attempt,
            "outrun": Attempt,
            "damping": Damping,
        }
        try:
            values = dict(data)
            for name, kind in kinds.items():
                if values.get(name) is not None:
                    values[name] = kind(**values[name])
            if values.get("course") is not None:
                values["course"] = Course(values["course"])
            values["changes"] = [float(at) for at in values["changes"]]
            if values.get("latest") is not None:
                values["latest"] = Reading.from_json(values["latest"])
            values["peaks"] = Peaks([[float(number) for number in row] for row in values["peaks"]])
            values["rate_trend"] = RateTrend([[float(number) for number in row] for row in values["rate_trend"]])
            values["trend"] = Trend(**{name: [list(map(float, row)) for row in rows] for name, rows in values["trend"].items()})
            for name, part in (
                ("idle_periods", IdlePeriods),
                ("rate_shifts", RateShifts),
                ("seasonality", Seasonality),
                ("state_forecast", StateForecast),
            ):
                values[name] = part.from_json(values[name])
            state = cls(**values)
            state.validate()
        except (TypeError, ValueError, KeyError, AssertionError) as error:
            raise ValueError(f"the decision core's state cannot be read ({error}); remove it to begin anew") from error
        return state
