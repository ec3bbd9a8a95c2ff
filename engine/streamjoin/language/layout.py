"""How the tuples of streams lie for all joins over them: one main predicate to cut, ship and sort them by.

Joins whose conditions bound the same two keys share an order by those: the layout's main predicate is the hull of their bands, and each
join finds its own pairs within it. Joins that have no keys in common share none: then every pair of tuples meets in one place, and each
join finds its pairs there by an index of its own.

Always holds: a layout's main predicate admits every pair that any of its joins admits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from numpy.typing import NDArray

from streamjoin.language.condition import Condition
from streamjoin.language.graph import JoinGraph, Place
from streamjoin.language.predicate import Encoding, KeyExpression, MainKind, MainPredicate, Predicate, hull
from streamjoin.language.sides import LEFT, SIDES
from streamjoin.language.types import BIGINT, DataType


@dataclass(frozen=True, slots=True)
class Layout:
    """See the module."""

    main: MainPredicate
    """What tuples are cut, shipped and sorted by."""
    predicates: tuple[Predicate, ...]
    """By join, how it finds its pairs. Of three and more streams empty: the graph says it."""
    graph: JoinGraph | None = None
    """Of three and more streams."""

    @classmethod
    def of_graph(cls, graph: JoinGraph) -> Layout:
        return cls(graph.main, (), graph)

    @property
    def places(self) -> tuple[Place, ...]:
        """Where tuples are held."""
        if self.graph is not None:
            return self.graph.places
        return tuple(Place(side, side, 0, self.main.key(side)) for side in SIDES)

    @property
    def is_keyed(self) -> bool:
        """Whether tuples lie by keys at all, so that statistics of them are worth while."""
        return bool(self.main.keys) or self.graph is not None

    def levels(self, place: Place, keys: NDArray[Any]) -> NDArray[Any]:
        """Keys of a place as schemes and statistics know them."""
        return keys if self.graph is None else self.graph.main.levels(place.floor, keys)

    def indexes(self, join: int) -> bool:
        """Whether the join finds its pairs by an index of its own, as they are not sorted by its keys."""
        if self.graph is not None:
            return False
        own = self.predicates[join].main
        return bool(own.keys) and own.keys != self.main.keys

    @property
    def text(self) -> str:
        """The main predicate, for people."""
        return self.main.text or str(self.main.kind)


def layouts(conditions: Sequence[Condition]) -> tuple[Layout, ...]:
    """The layouts that could serve joins on these conditions, best static choice first. Never empty. O(joins x candidates).

    Of one join each candidate is one. Of several each pair of keys that all of them bound; there being none, the one without keys. No two
    of several joins have the same text.
    """
    if len(conditions) == 1:
        return tuple(Layout(candidate.main, (candidate,)) for candidate in conditions[0].candidates)
    shared = frozenset.intersection(*(frozenset(_equalities(condition)) for condition in conditions))
    first, *others = [_by_keys(condition, shared) for condition in conditions]
    found: dict[str, Layout] = {}
    for keys in first:
        if all(keys in other for other in others):
            predicates = tuple(ways[keys] for ways in (first, *others))
            main = hull([predicate.main for predicate in predicates])
            found.setdefault(main.text, Layout(main, predicates))  # equalities alone need no band: a hash says as much
    return tuple(found.values()) or (Layout(MainPredicate(MainKind.ALL), tuple(condition.candidates[0] for condition in conditions)),)


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


def _by_keys(condition: Condition, shared: frozenset[Equality]) -> dict[tuple[KeyExpression, ...], Predicate]:
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
