"""For how long workers that stand idle are not needed again, as it was so far: what the policy ``predictive`` learns of the traffic.

A worker that is not needed any more is kept or given back without knowing when it is needed again: renting or buying. Whoever knows nothing
waits until the waiting has cost as much as the change and the way back (``break_even``), and never pays more than twice what a clairvoyant
would. Whoever knows how long such spells have lasted waits for as long as would have cost least on average over them::

    cost(wait; spell) = spell where the spell is at most the wait, else wait + break_even

A spell of a load begins when what is held falls below the load, and ends when it is above it by so much that the worker would be added
again. All loads count, a BIN apart, so that a day gives some dozens of spells.

Always holds: pure, plain data of bounded size; the wait is never above ``break_even``, and is that unless the spells show by twice the
standard error that another one is cheaper.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

BIN = 1.1
"""Loads whose spells are counted are a power of this."""
MOST_SPELLS = 200
"""The last ones count."""
FEWEST_SPELLS = 10
"""Of fewer nothing is concluded."""
MOST_OPEN = 400


@dataclass(slots=True)
class IdlePeriods:
    """See the module."""

    at: float | None = None
    last: int | None = None
    """The largest power of BIN that is not above the last load."""
    open: list[list[float]] = field(default_factory=list)
    """Powers, the largest first, and since when less was held."""
    ended: list[float] = field(default_factory=list)
    """Seconds, the oldest first."""

    def observe(self, at: float, held: float, again: float) -> None:
        """Take in what is held. O(1) amortised.

        ``again``: at so many times a load the worker that it takes is added again; at least 1.
        """
        self.at = at
        if held <= 0:
            return
        now = math.floor(math.log(held, BIN))
        while self.open and held >= again * BIN ** self.open[-1][0]:
            self.ended.append(at - self.open.pop()[1])
        del self.ended[:-MOST_SPELLS]
        if self.last is not None:
            for power in range(self.last, now, -1):
                if not self.open or power < self.open[-1][0]:
                    self.open.append([power, at])
        del self.open[: max(0, len(self.open) - MOST_OPEN)]
        self.last = now

    def wait(self, break_even: float) -> float:
        """For how many seconds to keep a worker that is not needed. O(spells * log(spells)).

        ``break_even``: seconds of idling that cost what a change and the way back do.
        """
        if self.at is None:
            return break_even
        # One that has lasted for longer costs the same whenever it ends.
        known = np.sort([*self.ended, *(self.at - since for _, since in self.open if self.at - since > break_even)])
        count = len(known)
        if count < FEWEST_SPELLS:
            return break_even
        careful = np.where(known <= break_even, known, 2 * break_even)
        waits = np.concatenate([[0.0], known[known < break_even]])
        # A wait saves something, or loses it, only in the spells that are longer than it: these are the last ones.
        first = np.searchsorted(known, waits, side="right")
        longer, pays = count - first, waits + break_even
        sums, squares = (np.concatenate([np.cumsum(values[::-1])[::-1], [0.0]])[first] for values in (careful, careful**2))
        mean = (sums - longer * pays) / count
        variance = np.maximum(0.0, (squares - 2 * pays * sums + longer * pays**2) / count - mean**2) * count / (count - 1)
        is_shown = mean > 2 * np.sqrt(variance / count)
        best = int(np.argmax(np.where(is_shown, mean, -np.inf)))
        return float(waits[best]) if is_shown[best] else break_even

    def forget(self) -> None:
        """Nobody has looked for a while: no open spell is known to have lasted."""
        self.at, self.last, self.open = None, None, []

    def to_json(self) -> dict[str, Any]:
        """Plain data; :meth:`from_json` gives the same back."""
        return {"at": self.at, "last": self.last, "open": [list(row) for row in self.open], "ended": list(self.ended)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> IdlePeriods:
        """Raises ValueError, TypeError or KeyError for what :meth:`to_json` cannot have written."""
        at, last = data["at"], data["last"]
        return cls(
            None if at is None else float(at),
            None if last is None else int(last),
            [[float(power), float(since)] for power, since in data["open"]],
            [float(seconds) for seconds in data["ended"]],
        )
