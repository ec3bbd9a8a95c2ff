"""Streams for the tests of ``streamjoin.semijoin``, and the answer that a join of them should give, by trying every pair."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from streamjoin.semijoin.algorithms.site import Setting, Timing, Widths
from streamjoin.semijoin.algorithms.window import RowWindow, StreamTuple, TimeWindow, Window
from streamjoin.semijoin.names import Algorithm
from streamjoin.semijoin.network import Link, Run, run_one_way

MOST_SHIPMENTS = 1000


@dataclass(frozen=True)
class Case:
    """Two streams, a window of the second, and a network whose shipments take at most ``bound``; microseconds."""

    source: Sequence[StreamTuple]
    destination: Sequence[StreamTuple]
    window: Window
    interval: int
    start: int
    bound: int
    link: Link
    until: int

    def setting(self, algorithm: Algorithm) -> Setting:
        return Setting(self.interval, self.window, Timing.of(algorithm, self.bound, self.start), Widths(1000, 800, 8))

    def run(self, algorithm: Algorithm, setting: Setting | None = None, machines: object = None) -> Run:
        return run_one_way(algorithm, setting or self.setting(algorithm), self.source, self.destination, self.link, self.until, machines)

    def answer(self) -> list[tuple[int, int]]:
        """Numbers of matching tuples, sorted."""
        found = []
        for probing in self.source:
            earlier = [held for held in self.destination if (held.time, held.stream) < (probing.time, probing.stream)]
            if isinstance(self.window, RowWindow):
                earlier = earlier[-self.window.tuples :]
            elif isinstance(self.window, TimeWindow):
                earlier = [held for held in earlier if probing.time - held.time <= self.window.length]
            found += [(probing.number, held.number) for held in earlier if held.key == probing.key]
        return sorted(found)


def numbers(run: Run) -> list[tuple[int, int]]:
    """The run's results as :meth:`Case.answer` has them."""
    return sorted((found.match.probing.number, found.match.held.number) for found in run.found)


def stream(chance: random.Random, number: int, tuples: int, span: int, keys: int) -> list[StreamTuple]:
    """Tuples at random times in [0, span), many of them at equal ones where the span is short."""
    times = sorted(chance.randrange(span) for _ in range(tuples))
    return [StreamTuple(time, number, index, chance.randrange(keys)) for index, time in enumerate(times)]


def random_case(seed: int, *, overdue: float = 0.0, bounds: Sequence[int] = (0, 3, 10, 25, 90)) -> Case:
    """``overdue``: the share of shipments that take longer than the bound."""
    chance = random.Random(seed)
    span, keys = chance.choice([50, 200, 1000]), chance.choice([1, 3, 10, 40])
    first, second = chance.choice([(1, 2), (2, 1)])
    source = stream(chance, first, chance.randrange(60), span, keys)
    destination = stream(chance, second, chance.randrange(60), span, chance.choice([keys, 3]))
    length = chance.choice([0, 5, 20, 100, 400])
    window = chance.choice([TimeWindow(length), RowWindow(chance.choice([1, 2, 5, 20]))])
    bound, interval = chance.choice(bounds), chance.choice([1, 7, 10, 30, 100])
    latency = chance.randrange(bound + 1)
    delays = [chance.randrange(bound - latency + 1) for _ in range(MOST_SHIPMENTS)]
    delays = [delay + (chance.randrange(1, 200) if chance.random() < overdue else 0) for delay in delays]
    return Case(
        source=source,
        destination=destination,
        window=window,
        interval=interval,
        start=chance.choice([0, 0, 5, 50]),
        bound=bound,
        link=Link(latency, further_delay=lambda shipment: delays[shipment % MOST_SHIPMENTS]),
        until=span + chance.choice([0, length]),
    )
