"""For how long a join has had nothing to do, by what its sources said whenever they were asked."""

from __future__ import annotations


class Idleness:
    """Always holds: only answers count, so that a source which was not asked, or could not be, makes no join idle. One thread tells it,
    and any may read ``seconds``."""

    def __init__(self) -> None:
        self.seconds: float | None = None
        """From the first of the latest answers by which nothing was to be done, to the latest; None: something is, or nobody knows yet."""
        self._since = 0.0

    def heard(self, now: float, *, is_idle: bool) -> None:
        """Whether there was nothing to do. ``now``: by the wall clock; one that was set back makes no join idle for longer."""
        if is_idle and (self.seconds is None or now < self._since):
            self._since = now
        self.seconds = now - self._since if is_idle else None
