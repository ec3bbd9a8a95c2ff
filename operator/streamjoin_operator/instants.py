"""How instants are written in Kubernetes' objects."""

from __future__ import annotations

from datetime import UTC, datetime


def instant(at: float) -> str:
    """RFC 3339 in UTC, to the second. ``at``: seconds since 1970."""
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
"""Of a duration, in seconds."""


def duration(seconds: float) -> str:
    """In one unit, of which there are at least two, or else in seconds: 90s, 3m, 2h, 4d."""
    unit = next((unit for unit in reversed(UNITS) if abs(seconds) >= 2 * UNITS[unit]), "s")
    return f"{seconds / UNITS[unit]:.0f}{unit}"


def seconds_of(text: str) -> float:
    """The seconds of a text of :func:`duration`, or a number."""
    return float(text[:-1]) * UNITS[text[-1]] if text[-1:] in UNITS else float(text)
