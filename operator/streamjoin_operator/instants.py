"""How instants are written in Kubernetes' objects."""

from __future__ import annotations

from datetime import UTC, datetime


def instant(at: float) -> str:
    """RFC 3339 in UTC, to the second. ``at``: seconds since 1970."""
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
