"""How long to wait after a plan in vain."""

from __future__ import annotations

FIRST_SECONDS, LONGEST_SECONDS = 15.0, 600.0


class Pause:
    """The time before another plan may be tried. Always holds: each plan in vain doubles it, up to LONGEST_SECONDS, until one runs."""

    def __init__(self) -> None:
        self._next, self._until = FIRST_SECONDS, -float("inf")

    def begin(self, now: float) -> None:
        """A plan was in vain."""
        self._until = now + self._next
        self._next = min(LONGEST_SECONDS, 2 * self._next)

    def forget(self) -> None:
        """A plan runs: the next pause is short again. One that has begun still ends when it was to."""
        self._next = FIRST_SECONDS

    def lasts(self, now: float) -> bool:
        return now < self._until
