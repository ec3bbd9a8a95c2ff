"""In which order new tuples of each stream meet the others, of a join of three and more, and what is sent for that: by the formulas of
Tran and Lee, from what is measured.

Every order along the edges of the join graph finds the same results; they differ in how many partial results are sent. A step ships what
it has to where the next stream is held (the paper's SP-D). It has the tuples of its members, or, where its way *fetches*, only what later
steps read of them: what the output reads besides is asked for in the end, of complete results alone (late materialization; the paper's
SM-D ships keys first and tuples where they match, step by step).

Always holds: the same arguments give the same ways; and another way is taken only where it is expected to send less by ``GAIN``, so that
measurements that waver change nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from streamjoin.language.graph import Edge, JoinGraph
from streamjoin.language.predicate import MainKind
from streamjoin.semijoin import graph as paper
from streamjoin.semijoin.estimates import expected
from streamjoin.semijoin.names import Algorithm
from streamjoin.semijoin.order import Planning, sequence_along
from streamjoin.semijoin.statistics import Attribute, Connection


@dataclass(frozen=True, slots=True)
class Way:
    """How results with new tuples of one stream are found."""

    order: tuple[int, ...]
    """In which the other streams follow."""
    fetches: bool = False
    """Whether what only the output reads is fetched in the end."""


Ways = tuple[Way, ...]
"""By stream."""

GAIN = 0.8
"""A way is replaced by one that is expected to send at most so much of what it does."""
ROUNDS_BYTES = 2e6
"""What could be sent in a second's two rounds more of the exchange, of a millisecond each, at a gigabyte a second: fetching has to save
more than that."""
REFERENCE_BYTES = 8.0
MOST_SHOWN = 3
"""Of more ways than so many beside the chosen one, people are shown the best and the worst."""
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
    condition_bytes: Sequence[float]
    """Of a tuple, by stream: what the condition reads of it."""
    output_bytes: Sequence[float]
    """What only the output reads."""
    selectivities: Sequence[float]
    """By edge, which part of all pairs match."""


@dataclass(frozen=True)
class Priced:
    """What a way is expected to send."""

    way: Way
    tuples: tuple[float, ...]
    """Found per second in each of its steps; those of the last are results."""
    bytes_per_second: float
    """Of partial results, and of what is fetched. New tuples themselves are sent whatever the way, to be held."""


def priced(graph: JoinGraph, flowing: Flowing, head: int, way: Way) -> Priced:
    """A way's price. O(streams²)."""
    return _priced(graph, flowing, _planning(graph, flowing, fetches=way.fetches), head, way)


def alternatives(graph: JoinGraph, flowing: Flowing, head: int) -> list[Priced]:
    """Every way for a head, the least bytes first. At most 2 (streams - 1)! of them."""
    plannings = [_planning(graph, flowing, fetches=fetches) for fetches in (False, True)]
    found = [_priced(graph, flowing, plannings[way.fetches], head, way) for way in _ways(graph, head)]
    return sorted(found, key=lambda each: each.bytes_per_second)


def choose(graph: JoinGraph, flowing: Flowing, current: Ways = ()) -> Ways:
    """The ways that are expected to send least; ``current`` ones stay where others are not better by ``GAIN``.

    Fetching takes two rounds of the exchange more, whoever fetches; so it is done where that is worth ``ROUNDS_BYTES``. A tenth of a second
    for six streams, and milliseconds for four.
    """
    found = [alternatives(graph, flowing, head) for head in range(len(graph.streams))]
    plain = [_best([each for each in of_head if not each.way.fetches], way) for of_head, way in _beside(found, current)]
    fetching = [_best(of_head, way) for of_head, way in _beside(found, current)]
    saved = sum(each.bytes_per_second for each in plain) - sum(each.bytes_per_second for each in fetching)
    is_worth_it = saved > ROUNDS_BYTES * (GAIN if any(way.fetches for way in current) else 1 / GAIN)
    return tuple(each.way for each in (fetching if is_worth_it else plain))


def _ways(graph: JoinGraph, head: int) -> list[Way]:
    return [Way(order, fetches) for order in graph.orders(head) for fetches in (False, True)]


def _beside(found: Sequence[list[Priced]], current: Ways) -> Iterator[tuple[list[Priced], Way | None]]:
    yield from zip(found, current or [None] * len(found), strict=True)


def _best(found: Sequence[Priced], current: Way | None) -> Priced:
    """The first, which sends least, but for the current way where that is hardly worse."""
    best = found[0]
    now = next((each for each in found if each.way == current), best)
    return now if best.bytes_per_second > GAIN * now.bytes_per_second else best


def _priced(graph: JoinGraph, flowing: Flowing, planning: Planning, head: int, way: Way) -> Priced:
    found = sequence_along(planning, graph.streams[head], [graph.streams[stream] for stream in way.order])
    tuples = tuple(step.results.rate for step in found.steps)
    price = sum(step.price for step in found.steps[1:])
    if way.fetches:
        asked = [stream for stream in (head, *way.order[:-1]) if flowing.output_bytes[stream]]
        price += tuples[-1] * sum(REFERENCE_BYTES + flowing.condition_bytes[stream] + flowing.output_bytes[stream] for stream in asked)
    return Priced(way, tuples, price)


def _planning(graph: JoinGraph, flowing: Flowing, *, fetches: bool) -> Planning:
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
            tuple_bytes=max(1.0, _carried(flowing, number, fetches=fetches)),
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


def _carried(flowing: Flowing, stream: int, *, fetches: bool) -> float:
    by_output = flowing.output_bytes[stream]
    return flowing.condition_bytes[stream] + (min(by_output, REFERENCE_BYTES) if fetches else by_output)


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


def told(graph: JoinGraph, flowing: Flowing, ways: Ways = ()) -> list[str]:
    """The way of each stream's new tuples and what it sends, beside other ones: a table for people.

    ``ways``: those that are taken; without them, those that would be chosen.
    """
    rows = [("new tuples of", "meet, in this order", "and", "found per second, by step", "sent between steps")]
    for head, way in enumerate(ways or choose(graph, flowing)):
        rows.append((graph.streams[head], *_cells(graph, priced(graph, flowing, head, way))))
        others = [each for each in alternatives(graph, flowing, head) if each.way != way]
        for other in others if len(others) <= MOST_SHOWN else (others[0], others[-1]):
            rows.append(("  or", *_cells(graph, other)))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def _cells(graph: JoinGraph, each: Priced) -> tuple[str, str, str, str]:
    found = ", ".join(f"{tuples:,.0f}" if tuples >= 1 else f"{tuples:.2g}" for tuples in each.tuples)
    size, unit = each.bytes_per_second, "B/s"
    for larger in ("kB/s", "MB/s", "GB/s"):
        if size >= 1000:
            size, unit = size / 1000, larger
    order = ", ".join(graph.streams[stream] for stream in each.way.order)
    return order, "fetch the rest" if each.way.fetches else "carry all", found, f"{size:,.3g} {unit}"
