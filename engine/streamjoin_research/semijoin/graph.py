"""The graph of a multi-way join, and what is known of the results of some of its streams.

Vertices are streams, each at a site of its own. An edge says that two streams are equal in an attribute. So are all streams that edges of
one attribute connect; whichever of them are joined first, they are joined on it, and several edges of one attribute count once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from math import prod

from streamjoin_research.semijoin.statistics import Attribute, Flow


@dataclass(frozen=True)
class StreamStatistics:
    """A stream of a multi-way join."""

    name: str
    rate: float
    """Tuples a second."""
    window_tuples: float
    tuple_bytes: float
    attributes: Mapping[str, Attribute]

    def __post_init__(self) -> None:
        self.flow(self.attributes)

    def flow(self, attributes: Iterable[str]) -> Flow:
        """This stream, joined on ``attributes``. Raises ValueError, naming the stream and the field."""
        return _flow(self.name, self.rate, self.window_tuples, self.tuple_bytes, [self.attributes[name] for name in attributes])


@dataclass(frozen=True)
class Edge:
    """A join predicate: equality of two streams' ``attribute``.

    Another predicate is an edge as well, on an attribute that these two streams alone have, of 0 bytes and with a selectivity; then only
    SP-S and SP-D may be chosen from.
    """

    left: str
    right: str
    attribute: str = "key"
    selectivity: float | None = None
    """The share of all pairs that match (the paper's rho, which it leaves open). Without it: 1 over the more distinct values of both."""


@dataclass(frozen=True)
class JoinGraph:
    """Streams and edges. Raises ValueError unless all streams are connected, so that no order of them needs a cross product."""

    streams: tuple[StreamStatistics, ...]
    edges: tuple[Edge, ...]

    def __post_init__(self) -> None:
        names = [stream.name for stream in self.streams]
        if len(names) < 2 or len(set(names)) < len(names):
            raise ValueError(f"streams: {', '.join(names)} must be two or more of different names")
        for edge in self.edges:
            for name in (edge.left, edge.right):
                if name not in names:
                    raise ValueError(f"edges: {edge.left} - {edge.right}: there is no stream {name!r}; use one of {', '.join(names)}")
                if edge.attribute not in self.by_name[name].attributes:
                    raise ValueError(f"edges: {edge.left} - {edge.right}: {name} has no attribute {edge.attribute!r}; give it one")
            if edge.left == edge.right:
                raise ValueError(f"edges: {edge.left} - {edge.right} joins a stream with itself; give the second use a name of its own")
            if edge.selectivity is not None and not 0 < edge.selectivity <= 1:
                raise ValueError(f"edges: {edge.left} - {edge.right}: selectivity {edge.selectivity} must be above 0 and at most 1")
        reached = _reached(names[0], self.edges)
        if len(reached) < len(names):
            raise ValueError(f"edges: none leads from {names[0]} to {', '.join(sorted(set(names) - reached))}; add one")
        for attribute, equal in self.equal_in.items():
            reached = _reached(min(equal), [edge for edge in self.edges if edge.attribute == attribute])
            if reached != equal:
                others = ", ".join(sorted(equal - reached))
                raise ValueError(f"edges: none on {attribute} leads from {min(equal)} to {others}; give the attribute another name there")

    @cached_property
    def by_name(self) -> dict[str, StreamStatistics]:
        return {stream.name: stream for stream in self.streams}

    @cached_property
    def equal_in(self) -> dict[str, frozenset[str]]:
        """Attribute -> the streams that are equal in it."""
        names = dict.fromkeys(edge.attribute for edge in self.edges)
        return {name: frozenset(end for edge in self.edges if edge.attribute == name for end in (edge.left, edge.right)) for name in names}

    def edges_between(self, joined: Iterable[str], stream: str) -> list[Edge]:
        """Those that lead from one of ``joined`` to ``stream``."""
        joined = set(joined)
        return [
            edge for edge in self.edges if (edge.left in joined and edge.right == stream) or (edge.right in joined and edge.left == stream)
        ]

    def adjacent(self, joined: Iterable[str]) -> list[str]:
        """The streams that an edge leads to from ``joined``, without these, in the order of the graph."""
        joined = set(joined)
        return [stream.name for stream in self.streams if stream.name not in joined and self.edges_between(joined, stream.name)]


@dataclass(frozen=True)
class Joined:
    """The results of some streams: rate and window as estimated, and the site where they are."""

    graph: JoinGraph
    streams: tuple[str, ...]
    site: str
    rate: float
    window_tuples: float
    """The results among all that is in the streams' windows; of meaning where they are kept as a window themselves, in a tree."""
    tuple_bytes: float
    attributes: Mapping[str, Attribute]

    @staticmethod
    def of(graph: JoinGraph, stream: str) -> Joined:
        """A stream by itself."""
        known = graph.by_name[stream]
        return Joined(graph, (stream,), stream, known.rate, known.window_tuples, known.tuple_bytes, known.attributes)

    def flows(self, stream: str) -> tuple[Flow, Flow]:
        """This and ``stream``, as sides of their join."""
        attributes = self.shared(stream)
        own = _flow("+".join(self.streams), self.rate, self.window_tuples, self.tuple_bytes, [self.attributes[name] for name in attributes])
        return own, self.graph.by_name[stream].flow(attributes)

    def shared(self, stream: str) -> list[str]:
        """The attributes in which ``stream`` is equal to one of these."""
        return [name for name, equal in self.graph.equal_in.items() if stream in equal and not equal.isdisjoint(self.streams)]

    def probing(self, stream: str, site: str) -> Joined:
        """The results of these tuples with ``stream``'s window: a step of a sequence.

        r = r * w_next * rho (section 4.1). The rest the paper leaves open: f = max(f, f_next), as the fewer values are a part of the
        more; F = F + F_next - P, as the join attributes are in both.
        """
        return self._with(stream, site, self.rate * self.graph.by_name[stream].window_tuples * self._selectivity(stream))

    def joining(self, stream: str, site: str) -> Joined:
        """The results of these with ``stream``, whichever comes later: a level of a tree."""
        next_ = self.graph.by_name[stream]
        pairs = self.rate * next_.window_tuples + next_.rate * self.window_tuples
        return self._with(stream, site, pairs * self._selectivity(stream))

    def _with(self, stream: str, site: str, rate: float) -> Joined:
        next_, shared = self.graph.by_name[stream], self.shared(stream)
        attributes = {**next_.attributes, **self.attributes}
        for name in shared:
            attributes[name] = min(self.attributes[name], next_.attributes[name], key=lambda known: known.distinct)
        return Joined(
            graph=self.graph,
            streams=(*self.streams, stream),
            site=site,
            rate=rate,
            window_tuples=self.window_tuples * next_.window_tuples * self._selectivity(stream),
            tuple_bytes=self.tuple_bytes + next_.tuple_bytes - sum(next_.attributes[name].bytes for name in shared),
            attributes=attributes,
        )

    def _selectivity(self, stream: str) -> float:
        """rho: what is known of the most selective edge of each attribute, and attributes independent of each other."""
        next_, edges = self.graph.by_name[stream], self.graph.edges_between(self.streams, stream)

        def of(attribute: str) -> float:
            known = [edge.selectivity for edge in edges if edge.attribute == attribute and edge.selectivity is not None]
            return min(known, default=1 / max(self.attributes[attribute].distinct, next_.attributes[attribute].distinct))

        return prod(map(of, self.shared(stream)))


def _reached(stream: str, edges: Iterable[Edge]) -> set[str]:
    """The streams that edges lead to from ``stream``, and it."""
    reached, edges = {stream}, list(edges)
    while following := {end for edge in edges for end in (edge.left, edge.right) if {edge.left, edge.right} & reached} - reached:
        reached |= following
    return reached


def _flow(name: str, rate: float, window_tuples: float, tuple_bytes: float, attributes: Iterable[Attribute]) -> Flow:
    known = list(attributes)
    try:
        return Flow(
            rate=rate,
            window_tuples=window_tuples,
            tuple_bytes=tuple_bytes,
            key_bytes=sum(attribute.bytes for attribute in known),
            distinct_keys=prod(attribute.distinct for attribute in known),
        )
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None
