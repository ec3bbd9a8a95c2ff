"""Streams for the tests of ``streamjoin_research.semijoin``, and the answer that a join of them should give, by trying every pair."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from streamjoin_research.semijoin.algorithms.site import Setting, Site, Timing, Widths
from streamjoin_research.semijoin.algorithms.window import RowWindow, StreamTuple, TimeWindow, Window
from streamjoin_research.semijoin.graph import Edge, JoinGraph, StreamStatistics
from streamjoin_research.semijoin.names import Algorithm
from streamjoin_research.semijoin.network import Link, Run, run_one_way
from streamjoin_research.semijoin.order import Planning
from streamjoin_research.semijoin.statistics import Attribute, Connection, Flow, Pair

MOST_SHIPMENTS = 1000

MEGABIT = Connection(latency_seconds=0.025, bytes_per_second=128_000)
"""The paper's network: 25 ms, 1024 kbps."""


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

    def run(self, algorithm: Algorithm, setting: Setting | None = None, machines: tuple[Site, Site] | None = None) -> Run:
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


def regular(rate: int, number: int, duration: int, keys: int) -> list[StreamTuple]:
    """Tuples at even distances with keys in turn."""
    return [StreamTuple(index * 1_000_000 // rate, number, index, index % keys) for index in range(rate * duration)]


def poisson(chance: random.Random, rate: float, number: int, duration: int, keys: int) -> list[StreamTuple]:
    tuples: list[StreamTuple] = []
    time = chance.expovariate(rate)
    while time < duration:
        tuples.append(StreamTuple(int(time * 1_000_000), number, len(tuples), chance.randrange(keys)))
        time += chance.expovariate(rate)
    return tuples


WARM_UP = 5_000_000


def counted(run: Run, duration: int) -> tuple[float, float]:
    """Bytes and shipments a second, once the window is full."""
    after = [shipment for shipment in run.shipments if WARM_UP <= shipment.sent < duration * 1_000_000]
    span = duration - WARM_UP / 1_000_000
    return sum(shipment.message.bytes for shipment in after) / span, len(after) / span


def simulate(algorithm: Algorithm, pair: Pair, source: list[StreamTuple], destination: list[StreamTuple], duration: int, link: Link) -> Run:
    interval = round(pair.interval_seconds * 1_000_000)
    window = TimeWindow(round(pair.destination.window_tuples / pair.destination.rate * 1_000_000))
    widths = Widths(
        int(pair.source.tuple_bytes), int(pair.destination.tuple_bytes), int(pair.source.key_bytes), count=int(pair.count_bytes)
    )
    setting = Setting(interval, window, Timing.of(algorithm, 50_000), widths)
    return run_one_way(algorithm, setting, source, destination, link, duration * 1_000_000)


WORKLOADS: dict[str, tuple[float, int, float, int, float]] = {
    "same keys, all in the window": (100, 20, 100, 20, 2),
    "same keys, few of them in the window": (60, 500, 60, 500, 3),
    "more keys at the source": (60, 400, 40, 80, 3),
    "more keys at the destination": (30, 50, 100, 200, 2),
    "less than a tuple an interval": (5, 20, 8, 40, 4),
}
"""Of random streams: rate and keys of the source, rate and keys of the destination, seconds of its window."""


def workload_pair(workload: str) -> Pair:
    """The statistics of one of :data:`WORKLOADS`: tuples of 1000 and of 600 bytes, keys of 8."""
    rate1, keys1, rate2, keys2, window = WORKLOADS[workload]
    return Pair(Flow(rate1, 0, 1000, 8, keys1), Flow(rate2, rate2 * window, 600, 8, keys2), 0.1)


def counted_of_workload(algorithm: Algorithm, workload: str, tuples: int) -> tuple[float, float]:
    """Bytes and shipments a second, counted where each stream has ``tuples`` or more. The bound on a shipment is 50 ms, the latency 25."""
    rate1, keys1, rate2, keys2, _ = WORKLOADS[workload]
    duration, chance = 5 + round(tuples / min(rate1, rate2)), random.Random(5)
    source, destination = poisson(chance, rate1, 1, duration, keys1), poisson(chance, rate2, 2, duration, keys2)
    return counted(simulate(algorithm, workload_pair(workload), source, destination, duration, Link(25_000)), duration)


TOPOLOGIES: dict[str, Callable[[int], list[tuple[int, int]]]] = {
    "star": lambda n: [(0, other) for other in range(1, n)],
    "chain": lambda n: [(one, one + 1) for one in range(n - 1)],
    "cycle": lambda n: [(one, (one + 1) % n) for one in range(n)],
    "fully connected": lambda n: list(itertools.combinations(range(n), 2)),
}


def graph(streams: Sequence[StreamStatistics], topology: str) -> JoinGraph:
    names = [stream.name for stream in streams]
    return JoinGraph(tuple(streams), tuple(Edge(names[one], names[other]) for one, other in TOPOLOGIES[topology](len(names))))


def of_table_2(chance: random.Random, streams: int = 4) -> list[StreamStatistics]:
    """Streams whose parameters are drawn from the paper's Table 2; an attribute has 5 bytes."""
    drawn = []
    for number in range(streams):
        rate, window = chance.choice([10, 50, 100, 150, 200]), chance.choice([0.4, 0.8, 1.2, 1.6, 2.0])
        selectivity, attributes = chance.choice([0.02, 0.04, 0.06, 0.08, 0.1]), chance.choice([10, 50, 100, 150, 200])
        drawn.append(StreamStatistics(f"s{number}", rate, rate * window, 5 * attributes, {"key": Attribute(1 / selectivity, 5)}))
    return drawn


def planning(joined: JoinGraph, connection: Connection = MEGABIT) -> Planning:
    return Planning(joined, lambda source, destination: connection, interval_seconds=0.1)
