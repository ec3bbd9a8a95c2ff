"""Measures how long records waited for their results: from when a record came to its source (``io.arrivals``) until the sink had published
the results of the epoch that read it.

Always holds: each record of a committed epoch is counted once for each join that reads it, with or without partners, as soon as nothing
that the join had found by then waits to be published. Only the memory of this process has the data: epochs that a former process committed
but did not publish are not counted.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from streamjoin.io.arrivals import MOST, Arrivals

BOUNDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0, 7200.0, 86400.0)
"""Seconds, of ``Counted``. From an epoch every few milliseconds to a day's backlog."""


@dataclass(frozen=True, eq=False)
class Delays:
    """The delays of records whose results became visible."""

    seconds: np.ndarray
    """float64, ascending; at most ``arrivals.MOST``."""
    records: np.ndarray
    """int64: how many records each stands for."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Delays) and np.array_equal(self.seconds, other.seconds) and np.array_equal(self.records, other.records)

    __hash__ = None  # type: ignore[assignment]

    @classmethod
    def of(cls, arrivals: Arrivals, now: float) -> Delays:
        """Until ``now``; a stamp that is later than that, by another clock, counts as now."""
        return cls(np.maximum(now - arrivals.at[::-1], 0.0), arrivals.records[::-1])

    @classmethod
    def together(cls, parts: Iterable[Delays]) -> Delays | None:
        """The delays of all these records as one. None if there are no records. O(numbers)."""
        found = list(parts)
        if len(found) < 2:
            return found[0] if found else None
        seconds, records = (np.concatenate([getattr(part, name) for part in found]) for name in ("seconds", "records"))
        order = np.argsort(seconds, kind="stable")
        seconds, records = seconds[order], records[order]
        if len(seconds) > MOST:  # each then stands for shorter ones too
            first = np.arange(MOST) * len(seconds) // MOST
            last = np.append(first[1:], len(seconds)) - 1
            seconds, records = seconds[last], np.add.reduceat(records, first)
        return cls(seconds, records)

    @property
    def count(self) -> int:
        """The number of records."""
        return int(self.records.sum())

    @property
    def longest(self) -> float:
        return float(self.seconds[-1])

    def quantile(self, fraction: float) -> float:
        """The delay that ``fraction`` of the records did not exceed."""
        reached = np.cumsum(self.records)
        return float(self.seconds[min(int(np.searchsorted(reached, fraction * reached[-1])), len(reached) - 1)])


@dataclass(frozen=True)
class Counted:
    """All records of this process's time."""

    records: tuple[int, ...] = (0,) * (len(BOUNDS) + 1)
    """The number of records with a delay up to each of ``BOUNDS`` and above the one before; last, those above all of them."""
    seconds: float = 0.0
    """The sum of all delays."""

    def plus(self, delays: Delays) -> Counted:
        records, total = list(self.records), self.seconds
        for seconds, count in zip(delays.seconds.tolist(), delays.records.tolist(), strict=True):
            records[bisect_left(BOUNDS, seconds)] += count
            total += seconds * count
        return Counted(tuple(records), total)


@dataclass(frozen=True)
class _Committed:
    """Records of an epoch, for one join."""

    join: str
    arrivals: Arrivals
    waits: bool
    """Whether some of what the join found is to be published together with more."""


class DelayMeter:
    """See the module. One thread tells it what happens; any may read ``counted``."""

    def __init__(self, joins: Iterable[str]) -> None:
        self.counted: Mapping[str, Counted] = {join: Counted() for join in joins}
        """By join. Replaced, never changed."""
        self._committed: list[_Committed] = []
        self._seen: dict[str, list[Delays]] = {}

    def committed(self, arrivals: Mapping[str, Arrivals], waiting: Collection[str]) -> None:
        """An epoch was committed that has read these records, by join; ``waiting``: joins of which something waits for more."""
        self._committed += [_Committed(join, part, join in waiting) for join, part in arrivals.items()]
        if len(self._committed) > MOST:
            self._merge()

    def published(self, now: float, *, all_of_it: bool) -> None:
        """What was committed has become visible, at ``now``; ``all_of_it``: also what waited for more."""
        visible = [each for each in self._committed if all_of_it or not each.waits]
        self._committed = [each for each in self._committed if each.waits and not all_of_it]
        counted = dict(self.counted)
        for each in visible:
            delays = Delays.of(each.arrivals, now)
            self._seen.setdefault(each.join, []).append(delays)
            counted[each.join] = counted.get(each.join, Counted()).plus(delays)
        self.counted = counted

    def take(self) -> dict[str, Delays]:
        """The delays by join, of all records since the last call. Joins that had none are left out."""
        seen, self._seen = self._seen, {}
        return {join: found for join, parts in seen.items() if (found := Delays.together(parts)) is not None}

    def _merge(self) -> None:
        """Those that wait together, which become visible together."""
        kinds = {(each.join, each.waits): each for each in self._committed}
        self._committed = [
            replace(kind, arrivals=found)
            for key, kind in kinds.items()
            if (found := Arrivals.together(each.arrivals for each in self._committed if (each.join, each.waits) == key)) is not None
        ]
