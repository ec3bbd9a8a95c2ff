"""What the window will hold in a while, and since when it has held no more than it does, by which the policy ``predictive`` goes.

A window of ``span`` seconds that takes in ``rate`` tuples a second holds, ``ahead`` seconds from now::

    held + (rate - held / span) * min(ahead, span)

as if what expires meanwhile were like the average of what is held. So the rates of now say what is held a whole window later. Without a
span (a window of rows) nothing is taken to change; a window without end only grows.

Windows are of event time, and so are ``rate`` and ``ahead``. A join that catches up with its input takes in many times the tuples, and lets
as many go: event time passes faster than the clock (``pace``), and the window holds no more than it would otherwise.

Always holds: pure, plain data of bounded size; a factor of growth is finite and not negative; ``largest`` falls from row to row.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

Pair = tuple[float, float]

SMOOTH_SECONDS = 15.0
"""The rates are averaged over about so long: one burst is no trend."""
LONGEST_GAP_SECONDS = 600.0
"""After so long without a sample nobody can say what was held, and the record begins anew."""
MOST_ROWS = 200
BIN = 1.01
"""Loads that differ by less than this factor are not told apart."""
LEAST_OUTLIER = 0.01
"""Of tau: a forecast that is wrong by no more is never far off."""
FARTHEST_SECONDS = 3600.0
"""The rates are not taken to stay as they are for longer."""
MOST_GROWTH = 1e6
"""Of an almost empty window any factor could come out."""


def add_spaced(rows: list[list[float]], row: list[float]) -> None:
    """Add a row, which begins with its time, so that rows are at least half of SMOOTH_SECONDS apart but for the last; after a long gap
    they begin anew. O(1)."""
    if rows and row[0] - rows[-1][0] > LONGEST_GAP_SECONDS:
        rows.clear()
    if len(rows) > 1 and rows[-1][0] - rows[-2][0] < SMOOTH_SECONDS / 2:
        rows.pop()
    rows.append(row)


@dataclass(slots=True)
class Trend:
    """By how much the fullest worker's share of what is held grows under a plan, where that has lasted: what the rates do not tell,
    as a part of the keys that becomes hot, or a stream that outgrows the other. A jump alone is no trend.

    Not the trend of tau: what is held expires with whole runs, and rises and falls between two of them although nothing changes.
    """

    rows: list[list[float]] = field(default_factory=list)
    """Times and shares (of the fullest worker's tau, in one tuple held), oldest first, at least half of SMOOTH_SECONDS apart but for the
    last."""
    foreseen: list[list[float]] = field(default_factory=list)
    """For when which tau was expected, the soonest first, at least SMOOTH_SECONDS apart."""

    def observe(self, at: float, share: float) -> None:
        """Take in a sample that is younger than the last one. O(1)."""
        rows = self.rows
        add_spaced(rows, [at, share])
        while len(rows) > 2 and rows[1][0] <= at - 3 * SMOOTH_SECONDS:
            rows.pop(0)

    def foresee(self, at: float, tau: float) -> None:
        """Remember that ``tau`` is expected for then."""
        if not self.foreseen or at - self.foreseen[-1][0] >= SMOOTH_SECONDS:
            self.foreseen = [*self.foreseen, [at, tau]][-MOST_ROWS:]

    def came_true(self, at: float, tau: float) -> float | None:
        """By how much tau is above what was expected for now, or for a moment ago; None where nothing was."""
        missed = None
        while self.foreseen and self.foreseen[0][0] <= at:
            expected = self.foreseen.pop(0)[1]
            missed = tau - expected
        return missed

    def growth(self, ahead: float) -> float:
        """The share in ``ahead`` seconds / that of now, if it goes on: by the smaller slope of the last SMOOTH_SECONDS and of as long
        before. 1 where it falls, or is not known yet."""
        rows = self.rows
        if len(rows) < 3 or rows[-1][1] <= 0:
            return 1.0
        last = rows[-1]
        middle = next((row for row in reversed(rows[:-1]) if last[0] - row[0] >= SMOOTH_SECONDS * 0.999), None)
        if middle is None:
            return 1.0
        first = next((row for row in reversed(rows) if middle[0] - row[0] >= SMOOTH_SECONDS * 0.999), None)
        if first is None:
            return 1.0
        late, early = ((b[1] - a[1]) / (b[0] - a[0]) for a, b in ((middle, last), (first, middle)))
        return 1 + max(0.0, min(late, early)) * ahead / last[1]


@dataclass(slots=True)
class StateForecast:
    """See the module. Tuples are counted once each, as if none were shed."""

    at: float | None = None
    """When the last sample was taken."""
    since: float = 0.0
    """When the record begins."""
    held: Pair = (0.0, 0.0)
    """By side, of the last sample."""
    rates: Pair = (0.0, 0.0)
    """By side, tuples per second of event time, averaged over about SMOOTH_SECONDS."""
    pace: float = 1.0
    """Seconds of event time that pass in a second, averaged likewise."""
    missed: float = 0.0
    """The square of by how much tau was above what was foreseen, averaged over some FARTHEST_SECONDS."""
    largest: list[list[float]] = field(default_factory=list)
    """Oldest first: a number of held tuples, and when as many were held last. What came before a larger one is forgotten."""

    def observe(self, at: float, held: Pair, rates: Pair, pace: float = 1.0) -> None:
        """Take in a sample that is younger than the last one. O(1) amortised."""
        if self.at is None or at - self.at > LONGEST_GAP_SECONDS:
            self.since, self.rates, self.pace, self.largest = at, rates, pace, []
        else:
            part = 1 - math.exp(-(at - self.at) / SMOOTH_SECONDS)
            self.rates = _mixed(self.rates[0], rates[0], part), _mixed(self.rates[1], rates[1], part)
            self.pace = _mixed(self.pace, pace, part)
        self.at, self.held = at, held
        total = sum(held)
        while self.largest and self.largest[-1][0] <= total:
            self.largest.pop()
        if self.largest and self.largest[-1][0] < BIN * total:
            self.largest[-1][1] = at
            return
        self.largest.append([total, at])
        if len(self.largest) > MOST_ROWS:
            self.since = self.largest.pop(0)[1]

    def learn(self, missed: float) -> None:
        """Take in by how much tau is above what was foreseen; below costs nothing. There is a forecast in SMOOTH_SECONDS.

        What is far off, as where the load has jumped, counts as three times what is usual: no margin is enough for that.
        """
        counts = min(max(0.0, missed), max(LEAST_OUTLIER, 3 * math.sqrt(self.missed)))
        self.missed += SMOOTH_SECONDS / FARTHEST_SECONDS * (counts * counts - self.missed)

    @property
    def margin(self) -> float:
        """Twice the root of ``missed``: what is foreseen is seldom exceeded by more."""
        return 2 * math.sqrt(self.missed)

    def growth(self, spans: Pair | None, ahead: float, rates: Pair | None = None) -> float:
        """What will be held in ``ahead`` seconds of the clock / what is held now, if the rates and the pace stay as they are, or the rates
        are these."""
        total = sum(self.held)
        if spans is None or total <= 0:
            return 1.0
        then = 0.0
        for held, rate, span in zip(self.held, self.rates if rates is None else rates, spans, strict=True):
            # In a window of no length nothing is held for long, and nothing changes.
            then += held + ((rate - held / span) * min(ahead * self.pace, span) if span > 0 else 0.0)
        return min(MOST_GROWTH, max(0.0, then / total))

    def settled(self, spans: Pair | None, rates: Pair | None = None) -> float:
        """As :meth:`growth`, once the window has taken in the rates from end to end, or in an hour."""
        return self.growth(spans, FARTHEST_SECONDS, rates)

    def seconds_within(self, tuples: float) -> float:
        """For how long no more than ``tuples`` have been held: 0 when more are held now. O(rows)."""
        if self.at is None:
            return 0.0
        return self.at - next((at for held, at in reversed(self.largest) if held > tuples), self.since)

    def validate(self) -> None:
        """Raises AssertionError naming what does not hold."""
        assert len(self.largest) <= MOST_ROWS, f"{len(self.largest)} loads are remembered"
        for before, after in zip(self.largest, self.largest[1:], strict=False):
            assert before[0] > after[0], f"the load {after[0]} comes after {before[0]}, which is not larger"
            assert before[1] <= after[1], f"the load at {after[1]} comes after one at {before[1]}"

    def to_json(self) -> dict[str, Any]:
        """Plain data; :meth:`from_json` gives the same forecast back."""
        return {
            "at": self.at,
            "since": self.since,
            "held": list(self.held),
            "rates": list(self.rates),
            "pace": self.pace,
            "missed": self.missed,
            "largest": [list(row) for row in self.largest],
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> StateForecast:
        """Raises ValueError, TypeError or KeyError for what :meth:`to_json` cannot have written."""
        unknown = set(data) - {item.name for item in fields(cls)}
        if unknown:
            raise ValueError(f"the outlook has the unknown fields {', '.join(sorted(unknown))}")
        (left, right), (left_rate, right_rate) = data["held"], data["rates"]
        largest = [[float(held), float(at)] for held, at in data["largest"]]
        at = None if data["at"] is None else float(data["at"])
        rates, pace, missed = (float(left_rate), float(right_rate)), float(data["pace"]), float(data["missed"])
        return cls(at, float(data["since"]), (float(left), float(right)), rates, pace, missed, largest)


def _mixed(old: float, new: float, part: float) -> float:
    return old + part * (new - old)
