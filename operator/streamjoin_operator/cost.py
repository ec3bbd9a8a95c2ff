"""What a join's executors cost, and what they would if there were always as many as allowed.

Always holds: pure; what is stored changes only with the number of executors, the most allowed or the price, and once an hour, since between
those times what it comes to follows from the clock: an idle join is not written for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from streamjoin_operator.instants import instant

HOUR = 3600.0
WRITE_SECONDS = HOUR


@dataclass(frozen=True, slots=True)
class Cost:
    """All since the StreamJoin was made, up to ``at``."""

    at: float
    """Seconds since 1970."""
    executors: int
    """From then on, until something else is said."""
    most: int
    price: float
    """Of an executor-hour."""
    hours: float = 0.0
    avoided_hours: float = 0.0
    spent: float = 0.0
    """By the prices of the time."""
    avoided: float = 0.0

    def until(self, at: float) -> Cost:
        """What it has come to by then."""
        hours = max(0.0, at - self.at) / HOUR
        used, avoided = hours * self.executors, hours * max(0, self.most - self.executors)
        return Cost(
            max(at, self.at),
            self.executors,
            self.most,
            self.price,
            self.hours + used,
            self.avoided_hours + avoided,
            self.spent + used * self.price,
            self.avoided + avoided * self.price,
        )

    def to_status(self) -> dict[str, Any]:
        return {
            "at": instant(self.at),
            "executors": self.executors,
            "maxExecutors": self.most,
            "pricePerExecutorHour": f"{self.price:.6f}",
            "executorHours": f"{self.hours:.6f}",
            "avoidedExecutorHours": f"{self.avoided_hours:.6f}",
            "spent": f"{self.spent:.6f}",
            "avoided": f"{self.avoided:.6f}",
        }


def known(value: Mapping[str, Any] | None) -> Cost | None:
    """What :meth:`Cost.to_status` gave; None for anything else."""
    try:
        return (
            None
            if value is None
            else Cost(
                datetime.fromisoformat(value["at"]).timestamp(),
                int(value["executors"]),
                int(value["maxExecutors"]),
                *(float(value[name]) for name in ("pricePerExecutorHour", "executorHours", "avoidedExecutorHours", "spent", "avoided")),
            )
        )
    except (KeyError, ValueError, TypeError):
        return None


def rolled(before: Mapping[str, Any] | None, *, at: float, executors: int, most: int, price: float) -> dict[str, Any]:
    """``status.cost`` as it should be: what is stored where nothing has changed."""
    begun, last = Cost(at, executors, most, price).to_status(), known(before)
    if before is None or last is None:
        return begun
    same = all(before[name] == begun[name] for name in ("executors", "maxExecutors", "pricePerExecutorHour"))
    if same and at - last.at < WRITE_SECONDS:
        return dict(before)
    now = last.until(at)
    return Cost(now.at, executors, most, price, now.hours, now.avoided_hours, now.spent, now.avoided).to_status()
