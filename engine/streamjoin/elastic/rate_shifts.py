"""Sudden rises of the input rates, and whether they last: how soon the policy ``predictive`` may believe in one.

A rise may be a burst that is over with the next sample, for which nobody should start workers, or a rush, in which every sample that is
waited for costs tuples: a window fills at the new rate while workers start. One sample cannot tell which it is. But jumps of the same
streams resemble each other, so what became of the earlier ones is counted, and the next one is believed at once where::

    (lasted + 1) / (seen + 2) >= LIKELY        (Laplace's rule of succession)

Otherwise it is believed once it has lasted for half of SMOOTH_SECONDS. From then on the rates are those since it began, and no longer
averages with what was before.

Always holds: pure, plain data of bounded size; a stream without jumps is not affected.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from streamjoin.elastic.state_forecast import SMOOTH_SECONDS, Pair

LEAST_FACTOR = 1.5
"""A sample whose rate is at least so many times the average is of a jump."""
LIKELY = 0.8
"""A believed jump costs two changes if it is a burst, and saves the tuples that one more sample would cost if it is not: some four times
less by the prices of ``elastic.arbitration``."""
MOST_JUMPS = 20
"""The last ones count."""


@dataclass(slots=True)
class RateShifts:
    """See the module. Rates are tuples per second, by side."""

    since: float | None = None
    """When the jump that is under way was seen first; None where none is."""
    usual: float = 0.0
    """The rate of both sides before it."""
    samples: int = 0
    """Of that jump."""
    rates: Pair = (0.0, 0.0)
    """The mean of those but the first, which may be of a time in which it began; of that one, while it is the only one."""
    lasted: list[bool] = field(default_factory=list)
    """Whether earlier jumps did, the oldest first."""
    burst: float | None = None
    """When the last one that did not began: averages go on being too high for a while."""

    def observe(self, at: float, rates: Pair, average: Pair, lasting: float) -> None:
        """Take in a sample that is younger than the last one. O(1).

        ``average``: the rates before this sample. ``lasting``: a jump has lasted once so many seconds have passed.
        """
        rate, usual = sum(rates), sum(average)
        if self.since is None:
            if usual > 0 and rate >= LEAST_FACTOR * usual:
                self.since, self.usual, self.samples, self.rates = at, usual, 1, rates
            return
        if rate < (self.usual + sum(self.rates)) / 2:
            self._end(at - self.since >= lasting)
        elif at - self.since >= lasting:
            self._end(lasted=True)
        else:
            left, right = self.rates
            self.rates = left + (rates[0] - left) / self.samples, right + (rates[1] - right) / self.samples
            self.samples += 1

    def forget(self) -> None:
        """Nobody has looked for a while: what has become of the jump is not known."""
        self.since = None

    @property
    def is_believed_at_once(self) -> bool:
        """Whether a jump is under way that is believed since its first sample."""
        return self.since is not None and (sum(self.lasted) + 1) / (len(self.lasted) + 2) >= LIKELY

    def believed(self, at: float) -> Pair | None:
        """The rates of the jump that is under way; None where there is none, or it may still be a burst."""
        if self.since is None or not (self.is_believed_at_once or at - self.since >= SMOOTH_SECONDS / 2):
            return None
        return self.rates

    def _end(self, lasted: bool) -> None:
        if not lasted:
            self.burst = self.since
        self.since = None
        self.lasted = [*self.lasted, lasted][-MOST_JUMPS:]

    def to_json(self) -> dict[str, Any]:
        """Plain data; :meth:`from_json` gives the same back."""
        return {
            "since": self.since,
            "usual": self.usual,
            "samples": self.samples,
            "rates": list(self.rates),
            "lasted": list(self.lasted),
            "burst": self.burst,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> RateShifts:
        """Raises ValueError, TypeError or KeyError for what :meth:`to_json` cannot have written."""
        left, right = data["rates"]
        return cls(
            None if data["since"] is None else float(data["since"]),
            float(data["usual"]),
            int(data["samples"]),
            (float(left), float(right)),
            [bool(lasted) for lasted in data["lasted"]],
            None if data["burst"] is None else float(data["burst"]),
        )
