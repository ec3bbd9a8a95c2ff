"""How the tuples of streams lie for all joins over them: one main predicate to cut, ship and sort them by.

Joins whose conditions bound the same two keys share an order by those: the layout's main predicate is the hull of their bands, and each
join finds its own pairs within it. Joins that have no keys in common share none. Then there are two layouts: every pair of tuples meets
somewhere, and each join finds its pairs there by an index of its own; or tuples are held once for every pair of keys, which one scheme
cuts as *key spaces* (:mod:`~streamjoin.language.composite_key`), each for the joins that have those keys.

Joins over different streams lie beside each other, each on key spaces of its own, but for those over the same two streams.

Always holds: a layout's main predicate admits every pair that any of its joins admits.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from numpy.typing import NDArray

from streamjoin.language.composite_key import MOST_KEY_SPACES, CompositeKey
from streamjoin.language.condition import Condition
from streamjoin.language.errors import SqlError
from streamjoin.language.graph import Edge, JoinGraph, Place, pair_graph
from streamjoin.language.predicate import Encoding, KeyExpression, MainKind, MainPredicate, Predicate, hull
from streamjoin.language.sides import LEFT, RIGHT, SIDES
from streamjoin.language.types import BIGINT, DataType

Streams = tuple[int, ...]
"""Those of a join, in their order."""


@dataclass(frozen=True, slots=True)
class PlacedGraph:
    """A join, and where its tuples lie among those of other joins."""

    join: int
    """Its number."""
    graph: JoinGraph
    """Its streams and places are numbered by themselves. The key of a place is that by which the join finds its pairs there, whether tuples
    lie by it or not."""
    streams: Streams
    """By stream of the graph, its number among all."""
    places: tuple[int, ...]
    """By place of the graph, its number among all."""
    key_space: int = 0
    """The first of its key spaces."""

    @property
    def is_multiway(self) -> bool:
        """Whether it is over three and more streams."""
        return len(self.streams) > len(SIDES)

    @property
    def first_places(self) -> tuple[int, ...]:
        """By stream of the graph, the number among all of the first place that holds it."""
        own = [place.stream for place in self.graph.places]
        return tuple(self.places[own.index(stream)] for stream in range(len(self.streams)))

    @property
    def between(self) -> Edge:
        """How a join over two streams finds its pairs."""
        (edge,) = self.graph.edges
        return edge

    @property
    def has_residual(self) -> bool:
        """Whether more is checked on what its edges find."""
        return bool(self.graph.checks) or any(edge.residual for edge in self.graph.edges)


@dataclass(frozen=True, slots=True)
class Layout:
    """See the module."""

    main: MainPredicate
    """What tuples are cut, shipped and sorted by."""
    places: tuple[Place, ...]
    """Where tuples are held."""
    joins: tuple[PlacedGraph, ...]
    """By join."""

    @classmethod
    def of_graph(cls, graph: JoinGraph) -> Layout:
        """Of a single join over three and more streams."""
        return cls(graph.main, graph.places, (PlacedGraph(0, graph, tuple(range(len(graph.streams))), tuple(range(len(graph.places)))),))

    @classmethod
    def of_pairs(
        cls, conditions: Sequence[Condition], predicates: Sequence[Predicate], mains: Sequence[MainPredicate], key_spaces: Sequence[int]
    ) -> Layout:
        """Of joins over the same two streams: how each finds its pairs, what tuples of each key space lie by, and by join its key space."""
        joins = []
        for number, (condition, predicate, key_space) in enumerate(zip(conditions, predicates, key_spaces, strict=True)):
            graph = pair_graph(condition.streams, predicate, condition.columns)
            joins.append(PlacedGraph(number, graph, SIDES, tuple(len(SIDES) * key_space + side for side in SIDES), key_space))
        places = tuple(Place(side, side, key_space, main.key(side)) for key_space, main in enumerate(mains) for side in SIDES)
        return cls(stacked(mains), places, tuple(joins))

    @property
    def key_spaces(self) -> tuple[MainPredicate, ...]:
        """What tuples of each key space lie by."""
        return self.main.key_spaces if isinstance(self.main, CompositeKey) else (self.main,)

    @property
    def multiway(self) -> tuple[PlacedGraph, ...]:
        """The joins over three and more streams, in the order of their key spaces: it stays when the manifest has its joins in another
        one."""
        return tuple(sorted((placed for placed in self.joins if placed.is_multiway), key=lambda placed: placed.key_space))

    def by_side(self, of_places: Sequence[float]) -> tuple[float, float]:
        """What is counted by place, added up by side of a scheme."""
        found = [0.0, 0.0]
        for place, count in zip(self.places, of_places, strict=True):
            found[place.side] += count
        return found[LEFT], found[RIGHT]

    @property
    def is_of_one_pair(self) -> bool:
        """Whether all joins are over the same two streams, which are all that there are."""
        return all(placed.streams == SIDES for placed in self.joins)

    @property
    def has_key_spaces(self) -> bool:
        return isinstance(self.main, CompositeKey)

    @property
    def is_apart(self) -> bool:
        """Whether joins over the same two streams lie on key spaces of their own, where they could all lie on one without keys."""
        return self.has_key_spaces and self.is_of_one_pair

    @property
    def is_keyed(self) -> bool:
        """Whether tuples lie by keys at all, so that statistics of them are worth while."""
        return bool(self.main.keys) or self.has_key_spaces

    @property
    def cuts_keys(self) -> bool:
        """Whether keys say anything of which tuples meet, so that a scheme can cut along them."""
        return self.main.cuts_keys if isinstance(self.main, CompositeKey) else self.main.kind is MainKind.RANGE

    def encoded_keys(self, place: Place, keys: NDArray[Any]) -> NDArray[Any]:
        """Keys of a place as schemes and statistics know them."""
        return self.main.encoded_keys(place.key_space, keys) if isinstance(self.main, CompositeKey) else keys

    def indexes(self, join: int) -> bool:
        """Whether the join finds its pairs by an index of its own, as tuples do not lie by its keys."""
        placed = self.joins[join]
        by = zip(placed.graph.places, placed.places, strict=True)
        return any(own.key is not None and own.key != self.places[place].key for own, place in by)

    @property
    def text(self) -> str:
        """The main predicate, for people."""
        return self.main.text or str(self.main.kind)


def stacked(mains: Sequence[MainPredicate]) -> MainPredicate:
    """One main predicate of those of several key spaces, or that of one alone."""
    return mains[0] if len(mains) == 1 else CompositeKey.of(tuple(mains))


def numbered(multiway: Sequence[PlacedGraph], joins: int) -> Iterator[tuple[slice, range]]:
    """By join of three and more streams, the numbers of its paths and stages among those of all such joins. Paths are counted from 0,
    stages from ``joins`` on, the number of all joins: those of joins over two streams have the numbers of these."""
    path, stage = 0, joins
    for placed in multiway:
        paths = len(placed.streams)
        stages = paths * (paths - 1)
        yield slice(path, path + paths), range(stage, stage + stages)
        path, stage = path + paths, stage + stages


def places_among(places: Iterable[Place], streams: Sequence[int], key_space: int) -> tuple[Place, ...]:
    """These places, of a layout by itself, where its streams have these numbers and its key spaces begin with this one."""
    return tuple(replace(place, stream=streams[place.stream], key_space=key_space + place.key_space) for place in places)


def layouts(conditions: Sequence[Condition]) -> tuple[Layout, ...]:
    """The layouts that could serve joins on these conditions, best static choice first. Never empty. O(joins x candidates).

    Of one join each candidate is one. Of several each pair of keys that all of them bound; there being none, the one without keys, and
    the one of key spaces. No two of several joins have the same text.
    """
    on_one = [0] * len(conditions)
    if len(conditions) == 1:
        return tuple(Layout.of_pairs(conditions, [candidate], [candidate.main], on_one) for candidate in conditions[0].candidates)
    shared = frozenset.intersection(*(frozenset(_equalities(condition)) for condition in conditions))
    first, *others = [by_keys(condition, shared) for condition in conditions]
    found: dict[str, Layout] = {}
    for keys in first:
        if all(keys in other for other in others):
            predicates = [ways[keys] for ways in (first, *others)]
            main = hull([predicate.main for predicate in predicates])
            found.setdefault(main.text, Layout.of_pairs(conditions, predicates, [main], on_one))  # for equalities alone a hash will do
    if found:
        return tuple(found.values())
    best = [condition.candidates[0] for condition in conditions]
    return (Layout.of_pairs(conditions, best, [MainPredicate(MainKind.ALL)], on_one), *_by_key_spaces(conditions))


_KeySpace = tuple[MainKind, tuple[KeyExpression, ...]]


def _by_key_spaces(conditions: Sequence[Condition]) -> tuple[Layout, ...]:
    """The layout in which joins that bound the same keys share a key space: again and again that which most of those left can have.

    None where that is one for all, or there would be more than ``MOST_KEY_SPACES``.
    """
    ways: list[dict[_KeySpace, Predicate]] = []
    for condition in conditions:
        bounded = by_keys(condition, frozenset()).values() or condition.candidates[:1]
        ways.append({(predicate.main.kind, predicate.main.keys): predicate for predicate in bounded})
    key_space_of: dict[int, _KeySpace] = {}
    while left := [number for number in range(len(ways)) if number not in key_space_of]:
        best = max(
            (key_space for number in left for key_space in ways[number]),
            key=lambda key_space: sum(key_space in ways[number] for number in left),
        )
        key_space_of |= {number: best for number in left if best in ways[number]}
    key_spaces = list(dict.fromkeys(key_space_of[number] for number in range(len(ways))))
    if not 1 < len(key_spaces) <= MOST_KEY_SPACES:
        return ()
    predicates = [of_join[key_space_of[number]] for number, of_join in enumerate(ways)]
    mains = [
        hull([predicate.main for number, predicate in enumerate(predicates) if key_space_of[number] == key_space])
        for key_space in key_spaces
    ]
    return (Layout.of_pairs(conditions, predicates, mains, [key_spaces.index(key_space_of[number]) for number in range(len(ways))]),)


class TooManyKeySpacesError(SqlError):
    """Joins have more pairs of keys than one scheme can cut."""


def beside(parts: Sequence[tuple[Streams, Sequence[int], Layout]]) -> Layout:
    """One layout of several, each part on key spaces of its own: of joins over the same two streams, or of one join over three and more.

    Of each part its streams, the numbers of its joins, by which the layout has them in order, and how it lies. Raises
    TooManyFloorsError.
    """
    mains: list[MainPredicate] = []
    places: list[Place] = []
    found: dict[int, PlacedGraph] = {}
    for streams, numbers, layout in sorted(parts, key=lambda part: len(part[0]) > len(SIDES)):
        for number, placed in zip(numbers, layout.joins, strict=True):
            own = tuple(len(places) + place for place in placed.places)
            found[number] = replace(placed, streams=streams, places=own, key_space=len(mains) + placed.key_space)
        places += places_among(layout.places, streams, len(mains))
        mains += layout.key_spaces
    if len(mains) > MOST_KEY_SPACES:
        problem = f"need tuples to be held by {len(mains)} pairs of keys, and {MOST_KEY_SPACES} are the most"
        raise TooManyKeySpacesError(problem, "move some joins into manifests of their own")
    joins = tuple(replace(found[number], join=at) for at, number in enumerate(sorted(found)))
    return Layout(CompositeKey.of(tuple(mains)), tuple(places), joins)


Equality = tuple[tuple[str, str], DataType]
"""What is equal, by side, and the type that both are cast to."""


def _equality(condition: Condition) -> Predicate | None:
    """The condition's candidate by all of its equalities."""
    return next((each for each in condition.candidates if each.main.is_equality and each.main.keys[LEFT].encoding is Encoding.HASH), None)


def _equalities(condition: Condition) -> tuple[Equality, ...]:
    candidate = _equality(condition)
    if candidate is None:
        return ()
    left, right = candidate.main.keys
    return tuple(zip(zip(left.sql, right.sql, strict=True), left.types, strict=True))


def by_keys(condition: Condition, shared: frozenset[Equality]) -> dict[tuple[KeyExpression, ...], Predicate]:
    """By the keys that they bound, the ways to evaluate a condition, the best first: its candidates, the equalities that all joins share,
    and each equality of whole numbers as a band of no width, as bands of others may be of the same keys."""
    candidates = {each.main.keys: each for each in reversed(condition.candidates) if each.main.kind is MainKind.RANGE}
    found = dict(reversed(candidates.items()))
    whole = _equality(condition)
    if whole is None:
        return found
    equalities = _equalities(condition)
    subsets = [(tuple(sorted(shared, key=str)), Encoding.HASH)]
    subsets += [((each,), Encoding.INTEGER) for each in equalities if each[1] == BIGINT]
    for subset, encoding in subsets:
        if subset:
            types = tuple(type_ for _, type_ in subset)
            keys = tuple(KeyExpression(tuple(sql[side] for sql, _ in subset), types, encoding) for side in SIDES)
            is_all = len(subset) == len(equalities)
            found.setdefault(keys, Predicate(replace(whole.main, keys=keys, recheck=whole.main.recheck or not is_all), whole.residual))
    return found
