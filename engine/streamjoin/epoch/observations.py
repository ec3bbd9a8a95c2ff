"""What the last epochs have shown, for those who make plans: the keys of what is held, how fast tuples come, and how long an epoch takes.

Lost with the driver; the next one learns it anew from what is read back and what comes. Any thread may ask.
"""

from __future__ import annotations

import statistics
import threading
from collections import deque
from collections.abc import Sequence

from streamjoin.epoch.outcome import counts_of
from streamjoin.epoch.spec import TaskReport
from streamjoin.language.sides import SIDES
from streamjoin.scheme.sketch import Sketch
from streamjoin.scheme.statistics import SideStatistics, Statistics
from streamjoin.state.blocks import Block

RECENT_EPOCHS = 30
"""Over how many epochs rates are taken."""
USUAL_EPOCHS = 5
"""Over how many epochs the usual duration is taken."""


class Observations:
    """See the module."""

    def __init__(self) -> None:
        # Guards the sketches and _recent; the rest is the loop's own.
        self._lock = threading.Lock()
        # By side.
        self._sketches = (Sketch(), Sketch())
        # When the last epochs were committed, and the tuples of each stream that were accepted in each.
        self._recent: deque[tuple[float, tuple[int, int]]] = deque(maxlen=RECENT_EPOCHS)
        # What the last epochs took.
        self._seconds: deque[float] = deque(maxlen=USUAL_EPOCHS)

    def add(self, reports: Sequence[TaskReport], expired_before: tuple[int | None, int | None], now: float) -> None:
        """Take in an epoch that was committed at ``now``."""
        accepted = counts_of(reports)["accepted"]
        with self._lock:
            for report in reports:
                for sample in (*report.held_sample, *(sample for route in report.routes for sample in route.samples)):
                    self._sketches[sample.side].add(sample.keys, sample.weight, sample.time_max)
            for side in SIDES:
                self._sketches[side].expire(expired_before[side])
            self._recent.append((now, accepted))

    def took(self, seconds: float) -> None:
        """An epoch that was not a switch took so long."""
        self._seconds.append(seconds)

    @property
    def usual_seconds(self) -> float:
        """The median of what the last epochs took; 0 before the first."""
        return statistics.median(self._seconds) if self._seconds else 0.0

    def statistics(self, blocks: Sequence[Block], *, keyed: bool) -> Statistics:
        """Each side's stored tuples, by the last commit's blocks, and the spread of their keys where the join has keys (``keyed``)."""
        with self._lock:
            histograms = [sketch.histogram() for sketch in self._sketches]
        of_sides = (
            SideStatistics(float(sum(block.rows for block in blocks if block.side == side)), histograms[side] if keyed else None)
            for side in SIDES
        )
        return Statistics(tuple(of_sides))

    def rates(self) -> tuple[float, float]:
        """Tuples accepted per second of each stream; 0 while fewer than two epochs are known."""
        with self._lock:
            recent = list(self._recent)
        if len(recent) < 2 or recent[-1][0] <= recent[0][0]:
            return 0.0, 0.0
        seconds = recent[-1][0] - recent[0][0]
        left, right = (sum(counts[side] for _, counts in recent[1:]) / seconds for side in SIDES)
        return left, right
