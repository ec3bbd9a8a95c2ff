"""Texts that others wrote, or that grow with a join, as far as there is room for them."""

from __future__ import annotations

MESSAGE = 1024
"""Of a condition or an event, so many characters are shown. The rest of a status has what its definition allows (``definition``)."""


def cut(text: str, most: int = MESSAGE) -> str:
    """At most so many characters; where some are left out it ends with three dots."""
    return text if len(text) <= most else f"{text[: max(0, most - 3)]}..."
