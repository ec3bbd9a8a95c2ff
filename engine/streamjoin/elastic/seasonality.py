"""What the rates do at each time of the day, and of the week: what ``predictive`` makes of load that comes and goes by the clock.

Time is cut into bins of BIN_SECONDS. Learned are the *changes* of the logarithm of a rate from bin to bin, for each bin of a day and of a
week: so a busier week than the last one has the same season. A change counts as one of the season only where its mean is more than twice
its standard error from nothing::

    change(bin) = mean of the last changes there, or 0 where |mean| <= 2 noise / sqrt(how many there were)

with ``noise`` the root mean square of what the season was wrong by so far. Which period is believed, if any, follows from how wrong each
would have been: of every bin, whether or not anybody went by it, is noted by how much the squared error of "the rates stay as they are"
exceeds that of the season. A season is believed while the mean of that is above zero by twice its standard error (the guard): on traffic
without one it never is, or not for long, and nothing differs from what would be without this module.

Times are UTC: where people live by a clock that is put forward, their season is an hour off until it is learned anew.

Always holds: pure, plain data of bounded size; a factor is finite, and at most MOST_FACTOR.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

Pair = tuple[float, float]

BIN_SECONDS = 900.0
DAY, WEEK = 96, 672
"""The periods, in bins."""
MOST_FACTOR = 50.0
"""Between two bins a rate is taken to change by no more."""
LEAST_RATE = 1.0
"""Tuples a second: rates below count as this."""
REMEMBERED = 6
"""Of so many times the mean is taken; older ones fade."""
SCORED_BINS = 7 * DAY
"""So many bins the scores are of; older ones fade."""
LEAST_FULL = 0.5
"""A bin that was watched for a smaller part says nothing."""
SETTLED_SECONDS = 180.0
"""From so far into a bin on its own rates say whether the season's are met."""


@dataclass(slots=True)
class Period:
    """What is known of one period."""

    bins: int
    changes: list[Pair] = field(default_factory=list)
    """By bin, means."""
    counts: list[int] = field(default_factory=list)
    """By bin, of how many changes, at most REMEMBERED."""
    noise: float = 0.0
    """The square of what predictions were wrong by, mean."""
    scored: float = 0.0
    """Of how many bins the following are, older ones counting for less."""
    gain: float = 0.0
    """By how much the squared error of no prediction exceeds that of this one: mean."""
    spread: float = 0.0
    """The variance of that."""

    def __post_init__(self) -> None:
        if not self.changes:
            self.changes, self.counts = [(0.0, 0.0)] * self.bins, [0] * self.bins

    def change(self, number: int) -> Pair:
        """Of the logarithms of both rates, from the bin before this one."""
        at = number % self.bins
        count = self.counts[at]
        if count == 0:
            return 0.0, 0.0
        least = 2 * math.sqrt(self.noise / count)
        left, right = self.changes[at]
        return (left if abs(left) > least else 0.0), (right if abs(right) > least else 0.0)

    def learn(self, number: int, change: Pair) -> None:
        """Take in how the rates have changed from the bin before. O(1)."""
        at = number % self.bins
        count, mean = self.counts[at], self.changes[at]
        if count:
            said = self.change(number)
            wrong = sum((is_ - says) ** 2 for is_, says in zip(change, said, strict=True)) / 2
            part = 1 / min(self.scored + 1, SCORED_BINS)
            # What the mean itself would have been wrong by: of predictions that nobody makes there is noise, too.
            off = sum((is_ - was) ** 2 for is_, was in zip(change, mean, strict=True)) / 2 * count / (count + 1)
            self.noise += part * (off - self.noise)
            better = sum(is_**2 for is_ in change) / 2 - wrong
            self.scored = min(self.scored + 1, SCORED_BINS)
            from_mean = better - self.gain
            self.gain += part * from_mean
            self.spread = (1 - part) * (self.spread + part * from_mean**2)
        count = min(count + 1, REMEMBERED)
        self.changes[at] = _mixed(mean, change, 1 / count)
        self.counts[at] = count

    @property
    def is_believed(self) -> bool:
        """The guard (see the module)."""
        return self.scored >= DAY and self.gain > 2 * math.sqrt(self.spread / self.scored)


@dataclass(slots=True)
class Seasonality:
    """See the module."""

    at: float | None = None
    """When the last sample was taken."""
    number: int = 0
    """The bin that it was taken in."""
    seconds: float = 0.0
    """Of that bin, for how long it was watched, and in ``tuples``, by side, what came meanwhile."""
    tuples: Pair = (0.0, 0.0)
    last: Pair | None = None
    """The logarithms of the rates of the bin before; None where it was hardly watched."""
    day: Period = field(default_factory=lambda: Period(DAY))
    week: Period = field(default_factory=lambda: Period(WEEK))

    def observe(self, at: float, rates: Pair) -> None:
        """Take in a sample that is younger than the last one. O(1)."""
        number = math.floor(at / BIN_SECONDS)
        if self.at is None or number != self.number:
            if self.at is not None:
                self._end(number)
            self.number, self.seconds, self.tuples = number, 0.0, (0.0, 0.0)
            since = number * BIN_SECONDS if self.at is None else max(self.at, number * BIN_SECONDS)
        else:
            since = self.at
        seconds = at - since
        self.seconds += seconds
        self.tuples = self.tuples[0] + rates[0] * seconds, self.tuples[1] + rates[1] * seconds
        self.at = at

    def _end(self, following: int) -> None:
        """The bin is over."""
        full = self.seconds >= LEAST_FULL * BIN_SECONDS
        rates = self._rates if full else None
        if rates is not None and self.last is not None:
            change = _limited(rates[0] - self.last[0]), _limited(rates[1] - self.last[1])
            for period in (self.day, self.week):
                period.learn(self.number, change)
        self.last = rates if following == self.number + 1 else None

    @property
    def _rates(self) -> Pair:
        """The logarithms of the rates of the bin so far."""
        left, right = (math.log(max(LEAST_RATE, tuples / self.seconds)) for tuples in self.tuples)
        return left, right

    @property
    def believed(self) -> Period | None:
        """The period whose season counts: the one that would have gained more of those that the guard lets pass; None: none."""
        found = [period for period in (self.week, self.day) if period.is_believed]
        return max(found, key=lambda period: period.gain, default=None)

    @property
    def name(self) -> str:
        """Of the period that is believed, for people."""
        return "week" if self.believed is self.week else "day"

    def rates(self, seconds: float) -> Pair | None:
        """The mean rates from the last sample on for so many seconds, as the season has it; None where there is none. O(bins)."""
        found = self._ahead(seconds)
        if not found:
            return None
        if seconds <= 0:
            return found[0][1]
        return sum(part * rates[0] for part, rates in found) / seconds, sum(part * rates[1] for part, rates in found) / seconds

    def highest(self, seconds: float) -> Pair | None:
        """The same: the highest of the bins that begin meanwhile, and of this one."""
        found = self._ahead(seconds)
        return (max(rates[0] for _, rates in found), max(rates[1] for _, rates in found)) if found else None

    @property
    def factor(self) -> float:
        """A rate is seldom more than so many times what is said of the next bin, and seldom less than what is said by so much: two
        standard deviations. 1 where nothing is said."""
        period = self.believed
        count = 0 if period is None else period.counts[(self.number + 1) % period.bins]
        return 1.0 if period is None else math.exp(min(2 * math.sqrt(period.noise * (1 + 1 / max(1, count))), 700.0))

    def _ahead(self, seconds: float) -> list[tuple[float, Pair]]:
        """By bin, for how many of these seconds it lasts, and its rates; empty where there is no season."""
        period = self.believed
        if period is None or self.last is None or self.at is None:
            return []
        logs = _added(self.last, period.change(self.number))
        if self.seconds >= SETTLED_SECONDS:
            # The bin itself says whether it is as the season has it, as far as it is over.
            now = self._rates
            logs = min(logs[0], now[0]), min(logs[1], now[1])
        end, number = self.at + max(0.0, seconds), self.number
        found: list[tuple[float, Pair]] = []
        while True:
            begins, ends = max(self.at, number * BIN_SECONDS), min(end, (number + 1) * BIN_SECONDS)
            found.append((ends - begins, (_exp(logs[0]), _exp(logs[1]))))
            if ends >= end:
                return found
            number += 1
            logs = _added(logs, period.change(number))

    def to_json(self) -> dict[str, Any]:
        """Plain data; :meth:`from_json` gives the same back, but that means are rounded to a thousandth."""
        return {
            "at": self.at,
            "number": self.number,
            "seconds": self.seconds,
            "tuples": list(self.tuples),
            "last": None if self.last is None else list(self.last),
            **{name: _stored(period) for name, period in (("day", self.day), ("week", self.week))},
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Seasonality:
        """Raises ValueError, TypeError or KeyError for what :meth:`to_json` cannot have written."""
        at, last = data["at"], data["last"]
        return cls(
            None if at is None else float(at),
            int(data["number"]),
            float(data["seconds"]),
            _pair(data["tuples"]),
            None if last is None else _pair(last),
            _read(DAY, data["day"]),
            _read(WEEK, data["week"]),
        )


_PER_MILLE = 1000


def _stored(period: Period) -> dict[str, Any]:
    """Bins of which nothing is known yet are left out."""
    known = [number for number, count in enumerate(period.counts) if count]
    rows = [[number, period.counts[number], *(round(_PER_MILLE * of) for of in period.changes[number])] for number in known]
    return {"rows": rows, "noise": period.noise, "scored": period.scored, "gain": period.gain, "spread": period.spread}


def _read(bins: int, data: Mapping[str, Any]) -> Period:
    numbers = (float(data[name]) for name in ("noise", "scored", "gain", "spread"))
    period = Period(bins, [], [], *numbers)
    for number, count, left, right in data["rows"]:
        if not 0 <= number < bins or not 1 <= count <= REMEMBERED:
            raise ValueError(f"the season has a bin {number} of {bins}, seen {count} times")
        period.changes[number], period.counts[number] = (left / _PER_MILLE, right / _PER_MILLE), int(count)
    return period


def _pair(values: Any) -> Pair:
    left, right = values
    return float(left), float(right)


def _exp(log: float) -> float:
    return math.exp(min(log, 700.0))


def _limited(change: float) -> float:
    most = math.log(MOST_FACTOR)
    return max(-most, min(most, change))


def _added(first: Pair, second: Pair) -> Pair:
    return first[0] + second[0], first[1] + second[1]


def _mixed(old: Pair, new: Pair, part: float) -> Pair:
    return old[0] + part * (new[0] - old[0]), old[1] + part * (new[1] - old[1])
