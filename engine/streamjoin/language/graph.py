"""The join graph: which parts of the condition find pairs, where tuples are held for that, and what is checked when. That of two streams
has one edge.

Parts that compare two streams are candidates for *edges*. A graph keeps those of a spanning tree; all other parts are checked on what the
edges find, as soon as their streams are joined. So every sequence of steps from any stream along the tree finds every result, whatever
order the steps are in, and tuples are held for no more keys than that takes. Where there are several trees, samples of the streams decide
(:func:`streamjoin.language.choice.choose`), and again while the join runs (:mod:`streamjoin.elastic.another_graph`).

A *place* is where the tuples of one stream are held by one key. Edges that meet in a stream and read the same key of it share that place,
and with it a *key space* (:mod:`~streamjoin.language.composite_key`): of a star on one attribute each tuple is held once.

Always holds: every part is stated by an edge, or checked by exactly those steps that join the last of its streams.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from streamjoin.language.composite_key import CompositeKey
from streamjoin.language.condition import parse_condition
from streamjoin.language.errors import SqlError
from streamjoin.language.predicate import KeyExpression, MainKind, MainPredicate, Predicate, hull
from streamjoin.language.render import render
from streamjoin.language.schema import Schema
from streamjoin.language.sides import SIDES
from streamjoin.language.sql import Expression, parse_boolean
from streamjoin.language.tree import Literal, Node, conjunction, conjuncts, streams_read
from streamjoin.language.types import BOOLEAN

MOST_STREAMS = 6
MOST_GRAPHS = 24
"""So many spanning trees of a condition are looked at, where it has more."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where the tuples of a stream are held by one key."""

    stream: int
    side: int
    """LEFT or RIGHT, in the scheme."""
    key_space: int
    key: KeyExpression | None
    """None: tuples lie by no key, and all meet."""


@dataclass(frozen=True, slots=True)
class Edge:
    """A pair of places, one of each side, and how pairs are found between them."""

    places: tuple[int, int]
    """By side."""
    main: MainPredicate
    residual: str | None
    """What else of the parts that compare these two streams is to be checked."""

    @property
    def text(self) -> str:
        """What it states, for people."""
        return self.main.text or self.residual or str(self.main.kind)


@dataclass(frozen=True, slots=True)
class JoinGraph:
    """See the module."""

    streams: tuple[str, ...]
    places: tuple[Place, ...]
    edges: tuple[Edge, ...]
    """One fewer than streams."""
    checks: tuple[Expression, ...]
    """The parts that no edge sees to."""
    main: CompositeKey
    """Of all key spaces."""
    columns: frozenset[tuple[str, str]]
    """What the condition reads: streams and columns."""

    def ends(self, edge: Edge) -> tuple[int, int]:
        """Its streams, by side."""
        left, right = (self.places[place].stream for place in edge.places)
        return left, right

    def edge_to(self, stream: int, joined: frozenset[int]) -> Edge | None:
        """That which leads from some joined stream to this one; None: none does. There is at most one, where they are connected."""
        for edge in self.edges:
            ends = self.ends(edge)
            if stream in ends and ends[1 - ends.index(stream)] in joined:
                return edge
        return None

    def step_to(self, stream: int, joined: Iterable[int]) -> tuple[Edge, int]:
        """The edge that leads to a stream which follows these in an order of the graph, and the side of it on which that stream is."""
        edge = self.edge_to(stream, frozenset(joined))
        assert edge is not None, "an order of the graph"
        return edge, self.ends(edge).index(stream)

    def orders(self, head: int) -> Iterator[tuple[int, ...]]:
        """Every order in which the other streams can follow ``head``, each along an edge. At most (streams - 1)! of them."""

        def following(joined: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
            if len(joined) == len(self.streams):
                yield joined[1:]
            for stream in range(len(self.streams)):
                if stream not in joined and self.edge_to(stream, frozenset(joined)) is not None:
                    yield from following((*joined, stream))

        return following((head,))

    def checks_at(self, stream: int, joined: frozenset[int]) -> tuple[Expression, ...]:
        """What can first be checked when ``stream`` comes to those joined; of one alone, what reads nothing else comes with its step."""
        names = {self.streams[number] for number in (*joined, stream)}
        before = {self.streams[number] for number in joined} if len(joined) > 1 else set[str]()
        return tuple(check for check in self.checks if (read := streams_read(check.tree)) <= names and not (read and read <= before))

    @property
    def text(self) -> str:
        """What its edges state, for people."""
        return "; ".join(edge.text for edge in self.edges)


def pair_graph(streams: tuple[str, str], predicate: Predicate, columns: frozenset[tuple[str, str]]) -> JoinGraph:
    """That of a join over two streams, which finds its pairs by this predicate. ``columns``: what its condition reads."""
    places = tuple(Place(side, side, 0, predicate.main.key(side)) for side in SIDES)
    return JoinGraph(streams, places, (Edge(SIDES, predicate.main, predicate.residual),), (), CompositeKey.of((predicate.main,)), columns)


def join_graph(text: str, schemas: dict[str, Schema]) -> JoinGraph:
    """The first of :func:`join_graphs`."""
    return join_graphs(text, schemas, most=1)[0]


def join_graphs(text: str, schemas: dict[str, Schema], *, most: int = MOST_GRAPHS) -> tuple[JoinGraph, ...]:
    """The graphs of a condition over three or more streams, in the order of ``schemas``: one for each spanning tree, the best static
    choice first, at most so many. O(parts + pairs of streams to the power of streams).

    Raises SqlError where it does not parse, is no condition, or leaves streams unconnected: then the message says which.
    """
    names = tuple(schemas)
    condition = parse_boolean(text, schemas)
    parts = [part for part in conjuncts(condition.tree) if part != Literal(True, BOOLEAN)]
    of_pair: dict[_Pair, list[Node]] = {}
    for part in parts:
        streams = sorted(map(names.index, streams_read(part)))
        if len(streams) == 2:
            of_pair.setdefault((streams[0], streams[1]), []).append(part)
    ways = {turned: _between(turned, of_pair[pair], names, schemas) for pair in of_pair for turned in (pair, pair[::-1])}
    _require_connected(of_pair, names)
    graphs = []
    for tree in _spanning_trees(sorted(of_pair), ways, len(names))[:most]:
        stated = [part for pair in tree for part in of_pair[pair]]
        checks = tuple(Expression.of(part) for part in parts if not any(part is other for other in stated))
        places, edges, key_spaces = _placed(tree, ways)
        graphs.append(JoinGraph(names, tuple(places), tuple(edges), checks, CompositeKey.of(tuple(key_spaces)), condition.columns))
    return tuple(graphs)


_Pair = tuple[int, int]


def _require_connected(pairs: Iterable[_Pair], names: Sequence[str]) -> None:
    reached = {0}
    while more := {stream for pair in pairs if reached & set(pair) for stream in pair} - reached:
        reached |= more
    apart = [name for number, name in enumerate(names) if number not in reached]
    if apart:
        together = [name for number, name in enumerate(names) if number in reached]
        raise SqlError(
            f"no part of it compares {' or '.join(apart)} with {' or '.join(together)}",
            f"add one that does, as {together[0]}.a = {apart[0]}.b",
        )


def _spanning_trees(pairs: Sequence[_Pair], ways: Mapping[_Pair, Predicate], streams: int) -> list[tuple[_Pair, ...]]:
    """Every one, those with the most selective predicates first, and of these those that hold tuples by the fewest keys."""

    def cost(tree: tuple[_Pair, ...]) -> tuple[int, int, tuple[_Pair, ...]]:
        ends = {vertex for pair in tree for vertex in _vertices(pair, ways[pair])}
        alone = sum(2 for pair in tree if ways[pair].main.kind is not MainKind.RANGE)
        return sum(ways[pair].main.rank for pair in tree), len(ends) + alone, tree

    return sorted((tree for tree in combinations(pairs, streams - 1) if _spans(tree, streams)), key=cost)


def _spans(pairs: Sequence[_Pair], streams: int) -> bool:
    """Whether so many pairs as a tree has are one."""
    group = list(range(streams))
    for left, right in pairs:
        first, second = group[left], group[right]
        if first == second:
            return False
        group = [first if of_stream == second else of_stream for of_stream in group]
    return True


def _between(pair: tuple[int, int], parts: Sequence[Node], names: Sequence[str], schemas: dict[str, Schema]) -> Predicate:
    """The best way to find what satisfies these parts, the first stream of the pair on the left."""
    return parse_condition(render(conjunction(parts)), [(names[stream], schemas[names[stream]]) for stream in pair]).candidates[0]


def _vertices(pair: tuple[int, int], predicate: Predicate) -> set[tuple[int, KeyExpression]]:
    return set(zip(pair, predicate.main.keys, strict=True)) if predicate.main.kind is MainKind.RANGE else set()


def _placed(tree: Sequence[_Pair], ways: Mapping[_Pair, Predicate]) -> tuple[list[Place], list[Edge], list[MainPredicate]]:
    """Places for the ends of these pairs, sharing those that can be, the edges between them, and a main predicate for each key space."""
    places: list[Place] = []
    edges: list[Edge] = []
    on_key_space: list[list[MainPredicate]] = []

    def place(stream: int, side: int, key_space: int, key: KeyExpression | None) -> int:
        wanted = Place(stream, side, key_space, key)
        if wanted not in places:
            places.append(wanted)
        return places.index(wanted)

    def shared(pair: _Pair) -> int | None:
        """The key space where an end of the pair has its place already, and on its side."""
        main = ways[pair].main
        if main.kind is not MainKind.RANGE:
            return None
        return next(
            (
                known.key_space
                for known in places
                for side in SIDES
                if (known.stream, known.side, known.key) == (pair[side], side, main.keys[side])
            ),
            None,
        )

    for pair in _connected(tree):
        key_space, turned = next(((at, way) for way in (pair, pair[::-1]) if (at := shared(way)) is not None), (len(on_key_space), pair))
        if key_space == len(on_key_space):
            on_key_space.append([])
        main = ways[turned].main
        on_key_space[key_space].append(main)
        left, right = (place(turned[side], side, key_space, main.key(side)) for side in SIDES)
        edges.append(Edge((left, right), main, ways[turned].residual))
    return places, edges, [hull(mains) for mains in on_key_space]


def _connected(pairs: Sequence[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """These pairs, each with a stream of one before it."""
    left, reached = list(pairs), set(pairs[0])
    while left:
        pair = next(pair for pair in left if reached & set(pair))
        left.remove(pair)
        reached |= set(pair)
        yield pair
