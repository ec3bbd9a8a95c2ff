"""Rates that rise steadily, and how far they are going to: what the policy ``predictive`` adds to the rates of now.

A plan that is asked for now begins when its workers have started, and then it has to last. On a ramp the rates of now are too low for it
before it begins. So a rise is taken to go on, by the smaller slope of its two halves (a jump that is over is no rise, and neither is one
that eases off), and for as long as it has lasted, at most until the plan begins: of a thing of unknown length that has lasted for *t*,
half the time more than *t* is left (J. R. Gott, Nature 363, 1993). So a ramp from nearly nothing is never overestimated by more than twice.

Always holds: pure, plain data of bounded size; growth is finite and at least 1; rates that differ by no more than noise do not grow.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from streamjoin.elastic.state_forecast import Pair, add_spaced

LEAST_RISE = 1.4
"""A rise by less is within what rates come and go by."""
MOST_ROWS = 120


@dataclass(slots=True)
class RateTrend:
    """See the module. Rates are tuples per second, by side."""

    rows: list[list[float]] = field(default_factory=list)
    """Times and both rates, oldest first, at least half of SMOOTH_SECONDS apart but for the last."""

    def observe(self, at: float, rates: Pair) -> None:
        """Take in a sample that is younger than the last one. O(1)."""
        add_spaced(self.rows, [at, *rates])
        del self.rows[:-MOST_ROWS]

    def growth(self, ahead: float) -> Pair:
        """By side, the rate in ``ahead`` seconds / that of now. O(rows)."""
        return self._growth(1, ahead), self._growth(2, ahead)

    def _growth(self, side: int, ahead: float) -> float:
        rows = self.rows
        begin = len(rows) - 1
        while begin > 0 and rows[begin - 1][side] < rows[begin][side]:
            begin -= 1
        risen = rows[begin:]
        if len(risen) < 3 or risen[-1][side] < LEAST_RISE * risen[0][side]:
            return 1.0
        first, last = risen[0], risen[-1]
        half = (first[0] + last[0]) / 2
        middle = min(risen[1:-1], key=lambda row: abs(row[0] - half))
        slope = min((b[side] - a[side]) / (b[0] - a[0]) for a, b in ((first, middle), (middle, last)))
        return 1 + slope * min(ahead, last[0] - first[0]) / last[side]
