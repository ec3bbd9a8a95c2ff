"""Windows of the week: in which no change of the plan is begun (``spec.scaling.quiet``), or a driver may be restarted
(``spec.maintenance.windows``).

Always holds: pure; a window is by the clock on the wall of its zone, so that on a day on which clocks change it still begins and ends when
they show its times.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

from streamjoin.manifest.model import TimeOfWeek

DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
"""As cron has them, in the order of ``datetime.weekday``."""


@dataclass(frozen=True, slots=True)
class WeeklyWindow:
    """From ``start`` on and before ``end``, in minutes since midnight, on each of ``days``.

    Where it ends no later than it starts, it ends on the day after; the day is that on which it starts.
    """

    start: int
    end: int
    days: frozenset[str]
    zone: ZoneInfo

    def contains(self, at: float) -> bool:
        """Whether ``at``, in seconds since 1970, is in it."""
        local = datetime.fromtimestamp(at, self.zone)
        minute = 60 * local.hour + local.minute
        today, yesterday = DAYS[local.weekday()], DAYS[(local - timedelta(days=1)).weekday()]
        if self.start < self.end:
            return today in self.days and self.start <= minute < self.end
        return (today in self.days and minute >= self.start) or (yesterday in self.days and minute < self.end)

    def __str__(self) -> str:
        shown = [day for day in DAYS if day in self.days]
        days = "" if len(shown) == len(DAYS) else f" on {', '.join(shown)}"
        return f"{_time(self.start)} to {_time(self.end)}{days}, {self.zone.key}"


def windows(given: Iterable[TimeOfWeek]) -> tuple[WeeklyWindow, ...]:
    """Those of a manifest."""
    return tuple(WeeklyWindow(minutes(one.start), minutes(one.end), frozenset(one.days), ZoneInfo(one.time_zone)) for one in given)


def minutes(text: str) -> int:
    """Since midnight, of a time of day as 08:30."""
    hours, minute = text.split(":")
    return 60 * int(hours) + int(minute)


def _time(minute: int) -> str:
    return f"{minute // 60:02}:{minute % 60:02}"
