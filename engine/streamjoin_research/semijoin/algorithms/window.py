"""Tuples, windows, and the part of a window that a site holds.

Time is in whole microseconds, so that equal times are equal. Tuples are in a total order, (time, stream number): of two tuples, the later
one finds the earlier one, and no pair is found twice or not at all. The paper has no such order: with its time windows, [ts - T, ts),
tuples of equal time never find each other; with its tuple windows (section 3.3, "less than or equal") both do.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class StreamTuple:
    """A tuple of a stream; or a result of earlier joins, which has time, stream and number of the tuple that they began with."""

    time: int
    """Microseconds."""
    stream: int
    number: int
    """0, 1, 2, ... in the order of arrival in its stream."""
    key: Hashable
    value: Hashable = None


def _age(held: StreamTuple) -> tuple[int, int]:
    return held.time, held.number


class Arrivals:
    """How many tuples of one stream came before a given moment. Time points that have passed can be forgotten."""

    def __init__(self) -> None:
        self._forgotten = 0
        self._times: list[int] = []

    def add(self, times: Iterable[int]) -> None:
        """``times``: of the stream's next tuples, in order."""
        self._times.extend(times)

    def before(self, time: int, *, inclusive: bool) -> int:
        """The number of tuples before ``time``, with those at that time if ``inclusive``. O(log n)."""
        return self._forgotten + (bisect_right if inclusive else bisect_left)(self._times, time)

    def forget(self, point: int) -> None:
        """Afterwards, only moments from ``point`` on can be asked for."""
        passed = bisect_left(self._times, point)
        self._forgotten += passed
        del self._times[:passed]


class Window(Protocol):
    """Which tuples of the destination stream a tuple of the source stream is to find."""

    def admits(self, probing: StreamTuple, held: StreamTuple, arrivals: Arrivals) -> bool:
        """Constraint 3: ``held`` is within the window as it was when ``probing`` came. Both are of different streams."""

    def outlived(self, held: StreamTuple, point: int, arrivals: Arrivals) -> bool:
        """No tuple that comes at ``point`` or later is to find ``held``."""

    @property
    def needs_arrivals(self) -> bool:
        """``arrivals`` is asked, so a site that holds only a part of the window must be told of every tuple's time."""


def _earlier(held: StreamTuple, probing: StreamTuple) -> bool:
    return (held.time, held.stream) < (probing.time, probing.stream)


@dataclass(frozen=True)
class TimeWindow:
    """Tuples of at most ``length`` microseconds before."""

    length: int

    def __post_init__(self) -> None:
        if self.length < 0:
            raise ValueError(f"length: {self.length} must be 0 or more microseconds")

    def admits(self, probing: StreamTuple, held: StreamTuple, arrivals: Arrivals) -> bool:
        return _earlier(held, probing) and held.time >= probing.time - self.length

    def outlived(self, held: StreamTuple, point: int, arrivals: Arrivals) -> bool:
        return held.time < point - self.length

    @property
    def needs_arrivals(self) -> bool:
        return False


@dataclass(frozen=True)
class RowWindow:
    """The last ``tuples`` tuples before."""

    tuples: int

    def __post_init__(self) -> None:
        if self.tuples < 1:
            raise ValueError(f"tuples: {self.tuples} must be 1 or more")

    def admits(self, probing: StreamTuple, held: StreamTuple, arrivals: Arrivals) -> bool:
        # The number of tuples of the held stream before the probing one is the number that the next would have had.
        following = arrivals.before(probing.time, inclusive=held.stream < probing.stream)
        return following - self.tuples <= held.number < following

    def outlived(self, held: StreamTuple, point: int, arrivals: Arrivals) -> bool:
        return held.number < arrivals.before(point, inclusive=False) - self.tuples

    @property
    def needs_arrivals(self) -> bool:
        return True


class Held:
    """Tuples in order of time, and of each key. Tuples may come in any order; they leave oldest first."""

    def __init__(self) -> None:
        self._all: list[StreamTuple] = []
        self._of_key: dict[Hashable, list[StreamTuple]] = {}

    def __iter__(self) -> Iterator[StreamTuple]:
        return iter(self._all)

    @property
    def keys(self) -> set[Hashable]:
        return set(self._of_key)

    def insert(self, tuples: Iterable[StreamTuple]) -> None:
        """O(n) for a tuple that is older than others, O(log n) for the newest."""
        for new in tuples:
            insort(self._all, new, key=_age)
            insort(self._of_key.setdefault(new.key, []), new, key=_age)

    def of_key(self, key: Hashable) -> Sequence[StreamTuple]:
        """Oldest first. O(1)."""
        return self._of_key.get(key, ())

    def expire(self, window: Window, point: int, arrivals: Arrivals) -> list[StreamTuple]:
        """Remove and return what no tuple from ``point`` on is to find. O(n)."""
        count = 0
        while count < len(self._all) and window.outlived(self._all[count], point, arrivals):
            count += 1
        return self.pop_oldest(count)

    def pop_oldest(self, count: int) -> list[StreamTuple]:
        """Remove and return the ``count`` oldest. O(n)."""
        gone, self._all = self._all[:count], self._all[count:]
        for old in gone:
            of_key = self._of_key[old.key]
            of_key.remove(old)
            if not of_key:
                del self._of_key[old.key]
        return gone
