"""How long workers must idle before ``thresholds`` removes them, where they were missed soon after they had gone.

A load whose quiet times are a little longer than ``scaleDownAfter`` makes workers go and come back each time, and both cost. So where
workers are added again within as long as they had idled before they went, the next ones must idle twice as long; where they were away for
twice as long or more, half as long again, down to what is set. As TCP's timer backs off, or a kubelet's restarts.

Always holds: pure, plain data of bounded size; ``patience`` is from 1 to MOST_PATIENCE.
"""

from __future__ import annotations

from dataclasses import dataclass

MOST_PATIENCE = 16.0


@dataclass(slots=True)
class Damping:
    """See the module. Times in seconds."""

    patience: float = 1.0
    """So many times as long as is set workers must idle."""
    removed_at: float | None = None
    """When some went, while none were added since."""
    idled: float = 0.0
    """How long they had to idle."""

    def must_idle(self, least: float) -> float:
        """For how many seconds; ``least``: as is set."""
        return self.patience * least

    def changed(self, at: float, workers: int, before: int, least: float) -> None:
        """Take in another number of workers. ``least``: for how long they must idle, as is set."""
        if workers < before:
            self.removed_at, self.idled = at, self.must_idle(least)
        elif workers > before and self.removed_at is not None:
            gone, self.removed_at = at - self.removed_at, None
            if gone < self.idled:
                self.patience = min(MOST_PATIENCE, 2 * self.patience)
            elif gone >= 2 * self.idled:
                self.patience = max(1.0, self.patience / 2)
