"""How long a round of the exchange takes, how fast bytes go in it, and how long a candidate takes: as it was measured, or as it is taken
to be before.

A round of so many bytes a task is taken to last ``round_seconds + bytes / bytes_per_second``. Both come from a weighted least-squares fit
to the rounds of the last epochs.

Always holds: the same measurements give the same numbers; all are positive and finite.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

ROUND_SECONDS, BYTES_PER_SECOND = 1e-3, 2.5e8
"""Before anything was measured."""
KEPT = 0.9
"""What was measured before an epoch counts for so much after it."""
PRIOR_BYTES = 1e6
"""What the bandwidth is taken to be at first counts as a round of so many bytes that has shown it; and an empty round as one."""
MOST = 4.0
"""A round counts as no longer than so many times what was expected of it, and so does an epoch: a pause says nothing of the next one."""
PAIR_SECONDS, PRIOR_PAIRS = 5e-8, 1e7
"""What a candidate is taken to take at first counts as so many that have shown it."""
LEAST_ROUND_SECONDS, MOST_BYTES_PER_SECOND = 1e-5, 1e11
LEAST_EPOCH_SECONDS = 0.1
"""What an interval of 0 is taken to be, before epochs were measured."""


@dataclass(frozen=True, slots=True)
class Exchange:
    """What sending and probing take."""

    round_seconds: float = ROUND_SECONDS
    """A round in which nothing is sent: until all tasks have heard from all others."""
    bytes_per_second: float = BYTES_PER_SECOND
    """That a task sends to others, all of them sending."""
    epoch_seconds: float = 1.0
    """From one epoch to the next."""
    tasks: int = 1
    pair_seconds: float = PAIR_SECONDS
    """Of one task, for a pair that the main predicate admits: to find it, and to check the rest."""

    def bytes_for(self, pairs: float) -> float:
        """Bytes that take as long as so many pairs: each task has its part of both."""
        return pairs * self.pair_seconds * self.bytes_per_second

    def seconds(self, rounds: float, bytes_per_second: float) -> float:
        """What so many rounds, and the bytes that all tasks send, add to an epoch."""
        return rounds * self.round_seconds + bytes_per_second * self.epoch_seconds / (self.tasks * self.bytes_per_second)


@dataclass(frozen=True, slots=True)
class Round:
    """A round of one epoch, of all tasks."""

    seconds: float
    """From when the last task began to send until it had heard from all: others waited for it, and not for the exchange."""
    task_bytes: float
    """That a task sent to others, on average."""


class Pace:
    """The measurements of the last epochs. The loop's own."""

    def __init__(self, before: Exchange | None = None) -> None:
        """``before``: what to begin with."""
        known = before or Exchange()
        self._round_seconds, self._byte_seconds = known.round_seconds, 1 / known.bytes_per_second
        self._prior = self._round_seconds, self._byte_seconds
        self._epoch_seconds = known.epoch_seconds
        self._last_epoch_at: float | None = None
        self._sums = 0.0, 0.0, 0.0, 0.0, 0.0
        self._pairs, self._pair_seconds = PRIOR_PAIRS, PRIOR_PAIRS * known.pair_seconds

    def add(self, rounds: Iterable[Round], committed_at: float, pairs: int = 0, seconds: float = 0.0) -> None:
        """Take in an epoch. ``pairs``: those that main predicates have admitted, and the seconds that tasks joined, added up. O(rounds)."""
        if pairs:
            took = min(seconds, MOST * pairs * self._pair_seconds / self._pairs)
            self._pairs, self._pair_seconds = KEPT * self._pairs + pairs, KEPT * self._pair_seconds + took
        if self._last_epoch_at is not None and committed_at > self._last_epoch_at:
            took = min(committed_at - self._last_epoch_at, MOST * self._epoch_seconds)  # without input there are no epochs
            self._epoch_seconds = KEPT * self._epoch_seconds + (1 - KEPT) * took
        self._last_epoch_at = committed_at
        count, x, xx, y, xy = (KEPT * value for value in self._sums)
        for each in rounds:
            expected = self._round_seconds + each.task_bytes * self._byte_seconds
            seconds, size = min(each.seconds, MOST * expected), each.task_bytes
            count, x, xx, y, xy = count + 1, x + size, xx + size * size, y + seconds, xy + size * seconds
        self._sums = count, x, xx, y, xy
        # Least squares of y = a + b x, to which the prior adds (a - a0)² + PRIOR_BYTES² (b - b0)².
        first, second = self._prior
        count, xx = count + 1, xx + PRIOR_BYTES**2
        y, xy = y + first, xy + PRIOR_BYTES**2 * second
        determinant = count * xx - x * x  # above 0, as count > x² / xx by Cauchy and Schwarz, and the prior
        self._round_seconds = max(LEAST_ROUND_SECONDS, (y * xx - x * xy) / determinant)
        self._byte_seconds = max(1 / MOST_BYTES_PER_SECOND, (count * xy - x * y) / determinant)

    def exchange(self, tasks: int) -> Exchange:
        """As it is taken to be now, of so many tasks."""
        pair_seconds = self._pair_seconds / self._pairs
        return Exchange(self._round_seconds, 1 / self._byte_seconds, self._epoch_seconds, max(1, tasks), pair_seconds)
