"""Measurements of the last epochs, from which plans are made: the keys of held tuples, the rates of tuples, and the time that an epoch
takes.

They are lost with the driver; the next driver measures anew, by tuples that are read back and tuples that come. Any thread may ask.
"""

from __future__ import annotations

import statistics
import threading
from collections import deque
from collections.abc import Sequence

from streamjoin.controlplane.next_checkpoint import counts_of
from streamjoin.epoch.reports import TaskReport
from streamjoin.language.graph import Place
from streamjoin.language.layout import Layout
from streamjoin.language.sides import SIDES
from streamjoin.language.window import Ends
from streamjoin.scheme.sketch import Sketch, together
from streamjoin.scheme.statistics import SideStatistics, Statistics
from streamjoin.state.blocks import Block

RECENT_EPOCHS = 30
"""Over how many epochs rates are taken."""
USUAL_EPOCHS = 5
"""Over how many epochs the usual duration is taken."""


class Observations:
    """See the module."""

    def __init__(self, places: Sequence[Place], streams: int) -> None:
        """``places``: where tuples are held."""
        self._places, self._streams = places, streams
        # Guards the sketches and _recent; the rest is the loop's own.
        self._lock = threading.Lock()
        # By place, of encoded keys (``Layout.encoded_keys``).
        self._sketches = tuple(Sketch() for _ in places)
        # When the last epochs were committed, and the tuples of each stream that were accepted in each.
        self._recent: deque[tuple[float, tuple[int, ...]]] = deque(maxlen=RECENT_EPOCHS)
        # What the last epochs took.
        self._seconds: deque[float] = deque(maxlen=USUAL_EPOCHS)

    def add(self, layout: Layout, reports: Sequence[TaskReport], expired_before: Ends, now: float) -> None:
        """Take in an epoch that was committed at ``now``."""
        accepted = counts_of(reports, self._streams)["accepted"]
        with self._lock:
            for report in reports:
                for sample in (*report.held_sample, *(sample for route in report.routes for sample in route.samples)):
                    encoded_keys = layout.encoded_keys(layout.places[sample.place], sample.keys)
                    self._sketches[sample.place].add(encoded_keys, sample.weight, sample.time_max)
            for sketch, bound in zip(self._sketches, expired_before, strict=True):
                sketch.expire(bound)
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
        stored = [0] * len(self._places)
        for block in blocks:
            stored[block.place] += block.rows
        of_side = [[number for number, place in enumerate(self._places) if place.side == side] for side in SIDES]
        with self._lock:
            histograms = [together([self._sketches[number] for number in numbers]) if keyed else None for numbers in of_side]
        return Statistics(
            tuple(
                SideStatistics(float(sum(stored[number] for number in numbers)), histogram)
                for numbers, histogram in zip(of_side, histograms, strict=True)
            )
        )

    def rates(self) -> tuple[float, ...]:
        """Tuples accepted per second of each stream; 0 while fewer than two epochs are known."""
        with self._lock:
            recent = list(self._recent)
        if len(recent) < 2 or recent[-1][0] <= recent[0][0]:
            return (0.0,) * self._streams
        seconds = recent[-1][0] - recent[0][0]
        return tuple(sum(counts[stream] for _, counts in recent[1:]) / seconds for stream in range(self._streams))
