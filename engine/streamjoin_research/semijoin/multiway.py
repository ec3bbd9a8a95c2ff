"""Multi-way joins over the simulated network: for each stream a sequence of one-way joins (Tran and Lee, Definition 1).

A new tuple of a stream, the head, is joined with the window of one other stream, the results with that of the next one, and so on. A result
of all streams belongs to the head that came last, in the order of (time, stream number); every other member is in its stream's window as it
was then. So each result is found by one sequence, once.

The delays add up: a step begins when the one before it must have all its results, and its window keeps tuples as much longer. The paper has
one delta for all sequences, the longest; here each step waits only for those before it, and has a copy of the window for itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from streamjoin_research.semijoin.algorithms import one_way
from streamjoin_research.semijoin.algorithms.messages import Batch, Late, Match
from streamjoin_research.semijoin.algorithms.site import Setting, Timing, Widths
from streamjoin_research.semijoin.algorithms.window import StreamTuple, Window
from streamjoin_research.semijoin.graph import Joined, JoinGraph
from streamjoin_research.semijoin.names import Algorithm
from streamjoin_research.semijoin.network import Link, Network, Shipment, batches
from streamjoin_research.semijoin.order import LinearPlan

Sequences = Mapping[str, Sequence[tuple[str, Algorithm]]]
"""Of each head: the streams that it is joined with, in this order, and how."""
Members = tuple[tuple[str, int], ...]
"""Of a result: streams, and the numbers of their tuples."""


def sequences_of(plan: LinearPlan) -> Sequences:
    """A plan as what to do."""
    return {sequence.head: [(step.stream, step.join.algorithm) for step in sequence.steps] for sequence in plan.sequences}


@dataclass(frozen=True)
class Record:
    """A tuple of a stream; its number is its place in the stream, from 0."""

    time: int
    """Microseconds."""
    values: Mapping[str, Hashable]
    """Of the join attributes."""


@dataclass(frozen=True)
class Result:
    """A result of all streams."""

    head: str
    members: Members
    """Sorted by stream."""
    time: int
    """Microseconds: when it arose."""


@dataclass(frozen=True)
class MultiwayRun:
    """All sequences of a join."""

    results: Sequence[Result]
    shipments: Sequence[Shipment]
    late: Sequence[Late]
    deltas: Mapping[str, int]
    """Head -> the microseconds after the time point of a batch by which all its results are there."""


@dataclass
class _Step:
    """What a step has found, for the next one to take."""

    interval: int
    found: dict[int, list[StreamTuple]] = field(default_factory=dict)
    """By time point of the head's batch."""

    def add(self, match: Match, time: int) -> None:
        self.found.setdefault((match.probing.time // self.interval + 1) * self.interval, []).append(_composed(match))

    def take(self, point: int) -> Iterable[StreamTuple]:
        return self.found.pop(point, ())


def _composed(match: Match) -> StreamTuple:
    """The result, with time, stream and number of its head, and no key yet."""
    return replace(match.probing, key=None, value=(*_members(match.probing), *_members(match.held)))


def _members(tuple_: StreamTuple) -> Members:
    assert isinstance(tuple_.value, tuple)
    return tuple_.value


@dataclass(frozen=True)
class Multiway:
    """A join of several streams, each at a site of its own, which bears the stream's name."""

    graph: JoinGraph
    windows: Mapping[str, Window]
    interval: int
    """Microseconds between batches."""
    shipment: int
    """The longest that a shipment takes, in microseconds."""
    link: Callable[[str, str], Link]

    def run(self, sequences: Sequences, streams: Mapping[str, Sequence[Record]], until: int) -> MultiwayRun:
        """Join finite streams by ``sequences``. ``until``: microseconds, after all tuples: time points go on until there.

        Raises ValueError where a head's sequence does not have each other stream once, or leaves the edges of the graph.
        """
        for head in self.graph.by_name:
            self._check(head, [stream for stream, _ in sequences.get(head, ())])
        network, results = Network(self.link), list[Result]()
        deltas = {head: self._lay(head, sequences[head], streams, until, network, results) for head in self.graph.by_name}
        network.run()
        return MultiwayRun(results, network.shipments, network.late, deltas)

    def _check(self, head: str, order: Sequence[str]) -> None:
        if sorted([head, *order]) != sorted(self.graph.by_name):
            raise ValueError(f"sequences: {head}: {', '.join(order) or 'nothing'} must be each other stream once")
        for number, stream in enumerate(order):
            if not self.graph.edges_between([head, *order[:number]], stream):
                raise ValueError(f"sequences: {head}: no edge leads to {stream} from the streams before it; put it later")

    def _lay(
        self,
        head: str,
        steps: Sequence[tuple[str, Algorithm]],
        streams: Mapping[str, Sequence[Record]],
        until: int,
        network: Network,
        results: list[Result],
    ) -> int:
        """Put one head's joins into the network, with all their batches; returns the head's delta."""

        def batches_of(stream: str) -> dict[int, tuple[StreamTuple, ...]]:
            place = list(self.graph.by_name).index(stream)
            tuples = [StreamTuple(record.time, place, number, None, ((stream, number),)) for number, record in enumerate(streams[stream])]
            return {batch.point: batch.tuples for batch in batches(tuples, self.interval, until)}

        def keyed(take: Callable[[int], Iterable[StreamTuple]], point: int, attributes: Sequence[str]) -> Batch:
            return Batch(point, tuple(replace(new, key=tuple(value(new, name) for name in attributes)) for new in take(point)))

        def value(tuple_: StreamTuple, attribute: str) -> Hashable:
            of_attribute = self.graph.equal_in[attribute]
            return next(streams[stream][number].values[attribute] for stream, number in _members(tuple_) if stream in of_attribute)

        def finish(match: Match, time: int) -> None:
            results.append(Result(head, tuple(sorted(_members(_composed(match)))), time))

        joined, start = Joined.of(self.graph, head), 0
        take: Callable[[int], Iterable[StreamTuple]] = batches_of(head).__getitem__
        for number, (stream, algorithm) in enumerate(steps):
            timing, found = Timing.of(algorithm, self.shipment, start), _Step(self.interval)
            machines = one_way(algorithm, Setting(self.interval, self.windows[stream], timing, _widths(joined, stream)))
            source, destination = network.join(machines, joined.site, stream, finish if number == len(steps) - 1 else found.add)
            attributes, of_stream = joined.shared(stream), batches_of(stream)
            for point in of_stream:
                network.offer(destination, partial(keyed, of_stream.__getitem__, point, attributes), point)
                network.offer(source, partial(keyed, take, point, attributes), point + start, step=number)
            joined = joined.probing(stream, joined.site if algorithm.at_source else stream)
            take, start = found.take, timing.removal
        return start


def _widths(joined: Joined, stream: str) -> Widths:
    source, destination = joined.flows(stream)
    return Widths(math.ceil(source.tuple_bytes), math.ceil(destination.tuple_bytes), math.ceil(source.key_bytes))
