"""When something is due by the clock: the five fields of cron, in UTC. Pure.

``MINUTE HOUR DAY MONTH WEEKDAY``, each ``*``, a number, a range ``a-b`` or a list of these by commas, and with ``/n`` only every n-th; 0
and 7 are Sunday. As in cron, if both days are restricted, either of them will do.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from typing import Annotated

from pydantic import AfterValidator, StringConstraints

FIELDS = (("minute", 0, 59), ("hour", 0, 23), ("day", 1, 31), ("month", 1, 12), ("weekday", 0, 7))
LOOK_DAYS = 366 * 8 + 2
"""A 29th of February is never further away."""
_PART = re.compile(r"(?:\*|(\d{1,2})(?:-(\d{1,2}))?)(?:/(\d{1,2}))?")


@dataclass(frozen=True)
class Schedule:
    """See the module."""

    minutes: frozenset[int]
    hours: frozenset[int]
    days: frozenset[int]
    months: frozenset[int]
    weekdays: frozenset[int]
    """0 is Sunday."""
    either_day: bool
    """Whether a day of the month or of the week is enough."""

    @classmethod
    def parse(cls, text: str) -> Schedule:
        """Raises ValueError saying what is wrong."""
        given = text.split(" ")
        if len(given) != len(FIELDS):
            raise ValueError('must be five fields of cron, minute, hour, day, month and weekday; write one such as "30 2 * * *"')
        minutes, hours, days, months, weekdays = (_values(part, *field) for part, field in zip(given, FIELDS, strict=True))
        either_day = not given[2].startswith("*") and not given[4].startswith("*")
        made = cls(minutes, hours, days, months, frozenset(day % 7 for day in weekdays), either_day)
        if next(made._dates(date(2024, 1, 1), 1), None) is None:
            raise ValueError("is never due; correct day and month")
        return made

    def last(self, now: datetime) -> datetime | None:
        """When it was due last, at this moment or before; None: not for years."""
        for day in self._dates(now.date(), -1):
            due = [at for at in self._times(day) if at <= now]
            if due:
                return due[-1]
        return None

    def next(self, now: datetime) -> datetime | None:
        """When it is due next, after this moment."""
        return next((at for day in self._dates(now.date(), 1) for at in self._times(day) if at > now), None)

    def _dates(self, first: date, step: int) -> Iterator[date]:
        days = (first + timedelta(days=number * step) for number in range(LOOK_DAYS))
        return (day for day in days if day.month in self.months and self._has(day))

    def _has(self, day: date) -> bool:
        of_month, of_week = day.day in self.days, day.isoweekday() % 7 in self.weekdays
        return of_month or of_week if self.either_day else of_month and of_week

    def _times(self, day: date) -> Iterator[datetime]:
        return (datetime.combine(day, time(hour, minute), UTC) for hour in sorted(self.hours) for minute in sorted(self.minutes))


def _values(text: str, name: str, least: int, most: int) -> frozenset[int]:
    found: set[int] = set()
    for part in text.split(","):
        match = _PART.fullmatch(part)
        low, high = (least, most) if match is None or match[1] is None else (int(match[1]), int(match[2] or match[1]))
        step = 1 if match is None or match[3] is None else int(match[3])
        if match is not None and match[1] is not None and match[2] is None and match[3] is not None:
            high = most  # 5/15: from 5 on
        if match is None or not least <= low <= high <= most or step == 0:
            raise ValueError(f"has the {name} {part!r}, which is not *, or from {least} to {most}, a range, or one with /n; correct it")
        found.update(range(low, high + 1, step))
    return frozenset(found)


def _checked(text: str) -> str:
    Schedule.parse(text)
    return text


CronText = Annotated[str, StringConstraints(max_length=200, pattern=r"^[0-9*/,-]+( [0-9*/,-]+){4}$"), AfterValidator(_checked)]
"""A schedule as manifests write it."""
