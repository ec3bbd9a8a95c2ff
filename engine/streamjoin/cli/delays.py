"""How long records waited for their results in the last minute, for views of a run, and as JSON (``epoch.delays``).

Always holds: its memory is bounded, however many epochs there are.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any

from streamjoin.epoch.delays import Delays

RECENT_SECONDS = 60


class RecentDelays:
    """The delays of the last RECENT_SECONDS, by join. Not thread-safe."""

    def __init__(self) -> None:
        self._seconds: deque[tuple[int, dict[str, Delays]]] = deque(maxlen=RECENT_SECONDS + 1)
        """What came in each second, oldest first. Bounded also where the clock is set back."""

    def add(self, delays: Mapping[str, Delays], at: float) -> None:
        """Add the delays of an epoch that ended at ``at``, by the same clock as ``now`` of ``of`` and ``worst``."""
        if not delays:
            return
        if not self._seconds or self._seconds[-1][0] != int(at):
            self._seconds.append((int(at), {}))
        of_second = self._seconds[-1][1]
        for join, more in delays.items():
            known = Delays.together([of_second[join], more] if join in of_second else [more])
            assert known is not None, "of what is not empty"
            of_second[join] = known
        while self._seconds[0][0] <= at - RECENT_SECONDS:
            self._seconds.popleft()

    def of(self, join: str, now: float) -> Delays | None:
        """The delays of one join. None if no results became visible."""
        return Delays.together(of_second[join] for at, of_second in self._seconds if at > now - RECENT_SECONDS and join in of_second)

    def worst(self, joins: Iterable[str], now: float) -> Delays | None:
        """The delays of the join whose records wait longest, by p99."""
        found = [delays for join in joins if (delays := self.of(join, now)) is not None]
        return max(found, key=lambda delays: delays.quantile(0.99), default=None)


def worst_p99(delays: Mapping[str, Delays]) -> float | None:
    """Seconds, of the join whose records waited longest; None: no results became visible."""
    return max((of_join.quantile(0.99) for of_join in delays.values()), default=None)


def delay_record(delays: Delays | None) -> dict[str, Any] | None:
    """Seconds, and of how many records."""
    if delays is None:
        return None
    quantiles = {name: round(delays.quantile(fraction), 6) for name, fraction in (("p50", 0.5), ("p99", 0.99))}
    return {"records": delays.count, **quantiles, "max": round(delays.longest, 6)}
