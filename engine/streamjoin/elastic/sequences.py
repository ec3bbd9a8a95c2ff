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

from streamjoin.language.graph import Edge, JoinGraph
from streamjoin.language.predicate import MainKind
from streamjoin.semijoin import graph as paper
from streamjoin.semijoin.estimates import expected
from streamjoin.semijoin.names import Algorithm
from streamjoin.semijoin.order import Planning, sequence_along
from streamjoin.semijoin.statistics import Attribute, Connection

Orders = tuple[tuple[int, ...], ...]
"""By stream, in which order the others follow its new tuples."""

GAIN = 0.8
"""An order is replaced by one that is expected to send at most so much of what it does."""
MOST_SHOWN = 3
"""Of more orders than so many beside the chosen one, people are shown the best and the worst."""
_ASSUMED_BAND, _ASSUMED_RANGE = 0.01, 0.3
"""Which part of all pairs match, while nothing is known of them."""
_LEAST = 1e-9
"""The formulas take no stream that never has a tuple, and no window without any."""
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
            window_tuples=max(1.0, flowing.held[number]),
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


def assumed(graph: JoinGraph, held: Sequence[float]) -> tuple[float, ...]:
    """By edge, which part of all pairs match, where nothing has been measured."""
    return tuple(_assumed(edge, max(1.0, *held)) for edge in graph.edges)


def _assumed(edge: Edge, held: float) -> float:
    main = edge.main
    if main.is_equality:
        return 1 / held
    if main.kind is not MainKind.RANGE:
        return 1.0
    return _ASSUMED_BAND if main.low is not None and main.high is not None else _ASSUMED_RANGE


def told(graph: JoinGraph, flowing: Flowing, orders: Orders = ()) -> list[str]:
    """The order of each stream and what it sends, beside other ones: a table for people.

    ``orders``: those that run; without them, those that would be chosen.
    """
    rows = [("new tuples of", "meet, in this order", "found per second, by step", "sent between steps")]
    for head, order in enumerate(orders or choose(graph, flowing)):
        rows.append((graph.streams[head], *_cells(graph, priced(graph, flowing, head, order))))
        others = [each for each in alternatives(graph, flowing, head) if each.order != order]
        for other in others if len(others) <= MOST_SHOWN else (others[0], others[-1]):
            rows.append(("  or", *_cells(graph, other)))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def _cells(graph: JoinGraph, each: Priced) -> tuple[str, str, str]:
    found = ", ".join(f"{tuples:,.0f}" if tuples >= 1 else f"{tuples:.2g}" for tuples in each.tuples)
    size, unit = each.bytes_per_second, "B/s"
    for larger in ("kB/s", "MB/s", "GB/s"):
        if size >= 1000:
            size, unit = size / 1000, larger
    return ", ".join(graph.streams[stream] for stream in each.order), found, f"{size:,.3g} {unit}"
