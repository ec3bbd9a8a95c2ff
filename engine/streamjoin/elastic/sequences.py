"""In which order new tuples of each stream meet the others, of a join of three and more: by the formulas of Tran and Lee, from what is
measured.

Every order along the edges of the join graph finds the same results; they differ in how many partial results are sent. A step ships all
that it has to where the next stream is held (the paper's SP-D), and counts for the bytes of that.

Always holds: the same arguments give the same orders; and another order is taken only where it is expected to send less by ``GAIN``, so
that measurements that waver change nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from streamjoin.language.graph import JoinGraph
from streamjoin.semijoin import graph as paper
from streamjoin.semijoin.estimates import expected
from streamjoin.semijoin.names import Algorithm
from streamjoin.semijoin.order import Planning, sequence_along
from streamjoin.semijoin.statistics import Attribute, Connection

Orders = tuple[tuple[int, ...], ...]
"""By stream, in which order the others follow its new tuples."""

GAIN = 0.8
"""An order is replaced by one that is expected to send at most so much of what it does."""
_LEAST = 1e-9
"""The formulas take no stream that never has a tuple."""
_ANYWHERE = Connection(latency_seconds=0.0, bytes_per_second=1e9)


@dataclass(frozen=True)
class Flowing:
    """What is known of the streams and edges of a graph."""

    rates: Sequence[float]
    """Tuples per second, by stream."""
    held: Sequence[float]
    """Tuples held, by stream, each counted once."""
    tuple_bytes: Sequence[float]
    """Of a tuple, by stream, as far as partial results carry it."""
    selectivities: Sequence[float]
    """By edge, which part of all pairs match."""


@dataclass(frozen=True)
class Priced:
    """What an order is expected to send."""

    order: tuple[int, ...]
    tuples: tuple[float, ...]
    """Found per second in each of its steps; those of the last are results."""
    bytes_per_second: float
    """Of partial results. New tuples themselves are sent whatever the order, to be held."""


def priced(graph: JoinGraph, flowing: Flowing, head: int, order: Sequence[int]) -> Priced:
    """An order's price. O(streams²)."""
    planning = _planning(graph, flowing)
    names = graph.streams
    found = sequence_along(planning, names[head], [names[stream] for stream in order])
    return Priced(tuple(order), tuple(step.results.rate for step in found.steps), sum(step.price for step in found.steps[1:]))


def alternatives(graph: JoinGraph, flowing: Flowing, head: int) -> list[Priced]:
    """Every order for a head, the least bytes first. At most (streams - 1)! of them."""
    found = [priced(graph, flowing, head, order) for order in graph.orders(head)]
    return sorted(found, key=lambda each: each.bytes_per_second)


def choose(graph: JoinGraph, flowing: Flowing, current: Orders = ()) -> Orders:
    """The orders that are expected to send least; ``current`` ones stay where others are not better by ``GAIN``."""
    chosen = []
    for head in range(len(graph.streams)):
        best = alternatives(graph, flowing, head)[0]
        if current and best.bytes_per_second > GAIN * priced(graph, flowing, head, current[head]).bytes_per_second:
            chosen.append(current[head])
        else:
            chosen.append(best.order)
    return tuple(chosen)


def _planning(graph: JoinGraph, flowing: Flowing) -> Planning:
    """The graph as the paper has it: an edge is an attribute that its two streams alone have."""
    attributes: list[dict[str, Attribute]] = [{} for _ in graph.streams]
    edges = []
    for number, edge in enumerate(graph.edges):
        left, right = graph.ends(edge)
        for stream in (left, right):
            attributes[stream][f"edge {number}"] = Attribute(distinct=1.0, bytes=0.0)
        selectivity = min(1.0, max(_LEAST**2, flowing.selectivities[number]))
        edges.append(paper.Edge(graph.streams[left], graph.streams[right], f"edge {number}", selectivity))
    streams = tuple(
        paper.StreamStatistics(
            name,
            rate=max(_LEAST, flowing.rates[number]),
            window_tuples=max(0.0, flowing.held[number]),
            tuple_bytes=max(1.0, flowing.tuple_bytes[number]),
            attributes=attributes[number],
        )
        for number, name in enumerate(graph.streams)
    )
    return Planning(
        paper.JoinGraph(streams, tuple(edges)),
        connection=lambda one, other: _ANYWHERE,
        interval_seconds=1.0,
        estimate=expected,
        price=lambda cost, connection, work: cost.bytes_per_second,
        algorithms=(Algorithm.SP_D,),
    )
