"""The join graph of three and more streams: which parts of the condition find pairs, where tuples are held for that, and what is checked
when.

Parts that compare two streams are candidates for *edges*. The graph keeps those of a spanning tree, the most selective first; all other
parts are checked on what the edges find, as soon as their streams are joined. So every sequence of steps from any stream along the tree
finds every result, whatever order the steps are in, and tuples are held for no more keys than that takes.

A *place* is where the tuples of one stream are held by one key. Edges that meet in a stream and read the same key of it share that place,
and with it a *floor* (:mod:`~streamjoin.language.stack`): of a star on one attribute each tuple is held once.

Always holds: every part is stated by an edge, or checked by exactly those steps that join the last of its streams.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from streamjoin.language.condition import parse_condition
from streamjoin.language.errors import SqlError
from streamjoin.language.predicate import KeyExpression, MainKind, MainPredicate, Predicate, hull
from streamjoin.language.render import render
from streamjoin.language.schema import Schema
from streamjoin.language.sides import LEFT, SIDES
from streamjoin.language.sql import Expression, parse_boolean
from streamjoin.language.stack import Stack
from streamjoin.language.tree import Call, Literal, Node, Reference, conjuncts, walk
from streamjoin.language.types import BOOLEAN

MOST_STREAMS = 6


@dataclass(frozen=True, slots=True)
class Place:
    """Where the tuples of a stream are held by one key."""

    stream: int
    side: int
    """LEFT or RIGHT, in the scheme."""
    floor: int
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


@dataclass(frozen=True, slots=True)
class JoinGraph:
    """See the module."""

    streams: tuple[str, ...]
    places: tuple[Place, ...]
    edges: tuple[Edge, ...]
    """One fewer than streams."""
    checks: tuple[Expression, ...]
    """The parts that no edge sees to."""
    main: Stack
    """Of all floors."""
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
        return tuple(check for check in self.checks if (read := _streams_of(check)) <= names and not (read and read <= before))

    @property
    def text(self) -> str:
        """What its edges state, for people."""
        return "; ".join(edge.main.text or str(edge.main.kind) for edge in self.edges)


def join_graph(text: str, schemas: dict[str, Schema]) -> JoinGraph:
    """The graph of a condition over three or more streams, in the order of ``schemas``. O(streams² x parts).

    Raises SqlError where it does not parse, is no condition, or leaves streams unconnected: then the message says which.
    """
    names = tuple(schemas)
    condition = parse_boolean(text, schemas)
    tree = condition.tree
    parts = [part for part in conjuncts(tree) if part != Literal(True, BOOLEAN)]
    of_pair: dict[tuple[int, int], list[Node]] = {}
    for part in parts:
        streams = sorted({names.index(node.stream) for node in walk(part) if isinstance(node, Reference)})
        if len(streams) == 2:
            of_pair.setdefault((streams[0], streams[1]), []).append(part)
    chosen = _spanning(of_pair, names, schemas)
    stated = [part for pair in chosen for part in of_pair[pair]]
    checks = [Expression.of(part) for part in parts if not any(part is other for other in stated)]
    places, edges, floors = _placed(chosen, of_pair, names, schemas)
    return JoinGraph(names, tuple(places), tuple(edges), tuple(checks), Stack.of(tuple(floors)), condition.columns)


def _spanning(of_pair: dict[tuple[int, int], list[Node]], names: Sequence[str], schemas: dict[str, Schema]) -> list[tuple[int, int]]:
    """The pairs of a spanning tree, by Kruskal: those with the most selective predicates first, and where keys can be shared."""
    found = {pair: _between(pair, of_pair[pair], names, schemas) for pair in of_pair}
    group = list(range(len(names)))
    chosen: list[tuple[int, int]] = []
    used: set[tuple[int, KeyExpression]] = set()
    left = sorted(found)
    while left:
        best = min(left, key=lambda pair: (_rank(found[pair]), -len(used & _vertices(pair, found[pair])), pair))
        left.remove(best)
        first, second = (group[stream] for stream in best)
        if first == second:
            continue
        chosen.append(best)
        used |= _vertices(best, found[best])
        group = [first if of_stream == second else of_stream for of_stream in group]
    apart = [name for name, of_stream in zip(names, group, strict=True) if of_stream != group[0]]
    if apart:
        together = [name for name, of_stream in zip(names, group, strict=True) if of_stream == group[0]]
        raise SqlError(
            f"no part of it compares {' or '.join(apart)} with {' or '.join(together)}",
            f"add one that does, as {together[0]}.a = {apart[0]}.b",
        )
    return chosen


def _between(pair: tuple[int, int], parts: Sequence[Node], names: Sequence[str], schemas: dict[str, Schema]) -> Predicate:
    """The best way to find what satisfies these parts, the first stream of the pair on the left."""
    text = render(parts[0] if len(parts) == 1 else Call("and", tuple(parts), BOOLEAN))
    return parse_condition(text, [(names[stream], schemas[names[stream]]) for stream in pair]).candidates[0]


def _rank(predicate: Predicate) -> int:
    main = predicate.main
    if main.kind is MainKind.ALL:
        return 4
    if main.kind is MainKind.NOT_EQUAL:
        return 3
    if main.is_equality:
        return 0
    return 1 if main.low is not None and main.high is not None else 2


def _vertices(pair: tuple[int, int], predicate: Predicate) -> set[tuple[int, KeyExpression]]:
    return set(zip(pair, predicate.main.keys, strict=True)) if predicate.main.kind is MainKind.RANGE else set()


def _placed(
    chosen: Sequence[tuple[int, int]], of_pair: dict[tuple[int, int], list[Node]], names: Sequence[str], schemas: dict[str, Schema]
) -> tuple[list[Place], list[Edge], list[MainPredicate]]:
    """Places for the ends of these pairs, sharing those that can be, the edges between them, and a main predicate for each floor."""
    places: list[Place] = []
    edges: list[Edge] = []
    on_floor: list[list[MainPredicate]] = []

    def place(stream: int, side: int, floor: int, key: KeyExpression | None) -> int:
        wanted = Place(stream, side, floor, key)
        if wanted not in places:
            places.append(wanted)
        return places.index(wanted)

    def shared(pair: tuple[int, int], predicate: Predicate) -> int | None:
        """The floor where an end of the pair has its place already, and on its side."""
        if predicate.main.kind is not MainKind.RANGE:
            return None
        return next(
            (
                known.floor
                for known in places
                for side in SIDES
                if (known.stream, known.side, known.key) == (pair[side], side, predicate.main.keys[side])
            ),
            None,
        )

    for pair in _connected(chosen):
        ways = [(turned, _between(turned, of_pair[pair], names, schemas)) for turned in (pair, pair[::-1])]
        floor, (turned, predicate) = next(((at, way) for way in ways if (at := shared(*way)) is not None), (len(on_floor), ways[0]))
        if floor == len(on_floor):
            on_floor.append([])
        main = predicate.main
        on_floor[floor].append(main)
        left, right = (place(turned[side], side, floor, main.key(side)) for side in SIDES)
        edges.append(Edge((left, right), main, predicate.residual))
    return places, edges, [mains[LEFT] if len(mains) == 1 else hull(mains) for mains in on_floor]


def _connected(pairs: Sequence[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """These pairs, each with a stream of one before it."""
    left, reached = list(pairs), set(pairs[0])
    while left:
        pair = next(pair for pair in left if reached & set(pair))
        left.remove(pair)
        reached |= set(pair)
        yield pair


def _streams_of(expression: Expression) -> set[str]:
    return {stream for stream, _ in expression.columns}
