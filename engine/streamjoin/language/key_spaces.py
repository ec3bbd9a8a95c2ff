"""Where the tuples of each join lie (:mod:`~streamjoin.language.composite_key`), and for what window they are held: what has to be known of
several joins to go on with them where some of them were added or removed. Joins over the same two streams may share a key space; a join
over three and more has key spaces of its own.

A join that is added has key spaces of its own, which begin with nothing: so it sees what comes from then on, as if it ran alone, and
nothing that the others hold is touched. A key space goes with the last of its joins.

Always holds: what lies on a key space is found by its keys alone. So a key space stays what it is when one of its joins goes, though the
band that its joins bound together may be narrower then.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from streamjoin.language.composite_key import MOST_KEY_SPACES
from streamjoin.language.condition import Condition
from streamjoin.language.graph import JoinGraph, Place, pair_graph
from streamjoin.language.layout import Equality, Layout, PlacedGraph, Streams, by_keys, places_among, stacked
from streamjoin.language.predicate import Encoding, KeyExpression, MainKind, MainPredicate, Predicate, hull
from streamjoin.language.sides import SIDES
from streamjoin.language.window import Window, widest


@dataclass(frozen=True, slots=True)
class KeySpace:
    """What tuples of one key space lie by, besides the keys of its places."""

    kind: MainKind
    born: int = 0
    """How often joins had been added, or key spaces emptied, before it began: it holds no tuple that came before, as earlier ones may."""

    def main(self, mains: Sequence[MainPredicate]) -> MainPredicate:
        """The main predicate of the key space of joins with these."""
        if self.kind is MainKind.ALL and (len(mains) > 1 or mains[0].kind is not MainKind.ALL):
            return MainPredicate(MainKind.ALL)
        return hull(mains)


@dataclass(frozen=True, slots=True)
class Placed:
    """Where the tuples of a join lie."""

    places: tuple[int, ...]
    """By place of its graph."""
    main: str
    """The main predicate of its graph, written out."""

    @property
    def is_multiway(self) -> bool:
        """Whether the join is over three and more streams."""
        return len(self.places) > len(SIDES)

    def moved(self, places: Mapping[int, int]) -> Placed:
        """The same where its places have these numbers."""
        return replace(self, places=tuple(map(places.__getitem__, self.places)))


@dataclass(frozen=True, slots=True)
class Joined:
    """A join as key spaces are found for it."""

    streams: Streams
    """Which it is over."""
    found: Condition | tuple[JoinGraph, ...]
    """The condition of a join over two streams; of more, the graphs that its condition has."""


@dataclass(frozen=True, slots=True)
class KeySpaces:
    """See the module."""

    key_spaces: tuple[KeySpace, ...]
    places: tuple[Place, ...]
    """Where tuples are held, as in the layout."""
    joins: dict[str, Placed]
    window: Window
    """What is held is held for this one, of joins over two streams. A join over three and more holds what it needs for its own."""

    @classmethod
    def of(cls, layout: Layout, joins: Sequence[str], window: Window) -> KeySpaces:
        """Those of a layout. ``joins``: their names, in the layout's order."""
        key_spaces = tuple(KeySpace(main.kind) for main in layout.key_spaces)
        placed = {name: Placed(each.places, str(each.graph.main)) for name, each in zip(joins, layout.joins, strict=True)}
        return cls(key_spaces, layout.places, placed, window)

    def layout(self, joins: Mapping[str, Joined]) -> Layout | None:
        """How tuples lie for these joins, by name, in their order; None: a condition does not offer what its join's tuples lie by.

        O(joins x candidates).
        """
        found: list[PlacedGraph] = []
        mains: list[list[MainPredicate]] = [[] for _ in self.key_spaces]
        for number, (name, join) in enumerate(joins.items()):
            placed, first = self.joins[name], self._first_key_space(name)
            graph = self._graph(placed, join, first)
            if graph is None:
                return None
            found.append(PlacedGraph(number, graph, join.streams, placed.places, first))
            for key_space, main in enumerate(graph.main.key_spaces, first):
                mains[key_space].append(main)
        of_key_spaces = [key_space.main(of_key_space) for key_space, of_key_space in zip(self.key_spaces, mains, strict=True)]
        main = found[0].graph.main if len(of_key_spaces) == 1 and found[0].is_multiway else stacked(of_key_spaces)
        return Layout(main, self.places, tuple(found))

    def _graph(self, placed: Placed, join: Joined, first: int) -> JoinGraph | None:
        """The join's graph whose tuples lie so, on key spaces from ``first`` on; None: there is none."""
        own = tuple(self.places[place] for place in placed.places)
        if isinstance(join.found, Condition):
            predicate = _predicate(self.key_spaces[first].kind, [place.key for place in own], join.found)
            return None if predicate is None else pair_graph(join.found.streams, predicate, join.found.columns)
        graphs = ((str(graph.main), places_among(graph.places, join.streams, first), graph) for graph in join.found)
        return next((graph for main, places, graph in graphs if (main, places) == (placed.main, own)), None)

    def _first_key_space(self, join: str) -> int:
        return min(self.places[place].key_space for place in self.joins[join].places)

    @property
    def has_pairs(self) -> bool:
        """Whether any join is over two streams."""
        return not all(placed.is_multiway for placed in self.joins.values())

    @property
    def groups(self) -> dict[tuple[int, ...], int]:
        """Places that belong together, each with how often joins had been added before (``KeySpace.born``): those of a key space of joins
        over two streams, and those of a join over three and more, where each tuple of a stream is in all of that stream's, or in none."""
        return {placed.places: self.key_spaces[self._first_key_space(name)].born for name, placed in self.joins.items()}

    def renamed(self, name: str) -> KeySpaces:
        """The same of a single join by another name."""
        (placed,) = self.joins.values()
        return replace(self, joins={name: placed})

    def without(self, removed: Iterable[str]) -> tuple[KeySpaces, dict[int, int]]:
        """Those that are left when these joins go, and by the number of each place that stays its number then."""
        gone = set(removed)
        left = {name: placed for name, placed in self.joins.items() if name not in gone}
        numbers = {place: number for number, place in enumerate(sorted({place for placed in left.values() for place in placed.places}))}
        key_spaces = {key_space: number for number, key_space in enumerate(sorted({self.places[place].key_space for place in numbers}))}
        places = tuple(replace(self.places[place], key_space=key_spaces[self.places[place].key_space]) for place in numbers)
        joins = {name: placed.moved(numbers) for name, placed in left.items()}
        return KeySpaces(tuple(map(self.key_spaces.__getitem__, key_spaces)), places, joins, self.window), numbers

    def beside(self, added: KeySpaces) -> KeySpaces:
        """With these after them. Raises ValueError where there would be more than ``MOST_KEY_SPACES``."""
        together = len(self.key_spaces) + len(added.key_spaces)
        if together > MOST_KEY_SPACES:
            raise ValueError(f"{together} of at most {MOST_KEY_SPACES} kinds of keys")
        numbers = {place: len(self.places) + place for place in range(len(added.places))}
        return replace(
            self,
            key_spaces=(*self.key_spaces, *(replace(key_space, born=self._next_born) for key_space in added.key_spaces)),
            places=(*self.places, *(replace(place, key_space=len(self.key_spaces) + place.key_space) for place in added.places)),
            joins={**self.joins, **{name: placed.moved(numbers) for name, placed in added.joins.items()}},
        )

    def by_graph(self, name: str, streams: Streams, graph: JoinGraph) -> tuple[KeySpaces, dict[int, int]]:
        """The same where a join over three and more streams, with these numbers, lies by another of its graphs, after all others; and for
        each place that is left its number then. Raises ValueError where there would be more than ``MOST_KEY_SPACES``."""
        born = self.key_spaces[self._first_key_space(name)].born
        left, numbers = self.without([name])
        placed = Placed(tuple(range(len(graph.places))), str(graph.main))
        own = tuple(KeySpace(main.kind) for main in graph.main.key_spaces)
        after = left.beside(replace(self, key_spaces=own, places=places_among(graph.places, streams, 0), joins={name: placed}))
        first = len(left.key_spaces)
        key_spaces = (*after.key_spaces[:first], *(replace(key_space, born=born) for key_space in own))
        return replace(after, key_spaces=key_spaces), numbers

    def emptied(self, places: Collection[int]) -> KeySpaces:
        """The same after what lay at these places was let go, as the input had ended: their key spaces begin anew."""
        anew = {self.places[place].key_space for place in places}
        key_spaces = (replace(each, born=self._next_born) if key_space in anew else each for key_space, each in enumerate(self.key_spaces))
        return replace(self, key_spaces=tuple(key_spaces))

    @property
    def _next_born(self) -> int:
        return 1 + max((key_space.born for key_space in self.key_spaces), default=-1)

    def held_for(self, windows: Sequence[Window]) -> KeySpaces:
        """For joins over two streams with these windows, which are of the kind of ``window`` unless nothing is held.

        It slides only if it always did: of tuples that are held without that, no column says where theirs begin.
        """
        if not windows:
            return self
        window = widest(windows)
        slides = not self.has_pairs or window.slide_micros == self.window.slide_micros
        return replace(self, window=window if slides else replace(window, slide_micros=0))


def _predicate(kind: MainKind, keys: Sequence[KeyExpression | None], condition: Condition) -> Predicate | None:
    """How a join of two streams on this condition finds its pairs on a key space with these keys, by side; None: it cannot."""
    by_side = tuple(key for key in keys if key is not None)
    if kind is MainKind.ALL:
        return condition.candidates[0]
    for candidate in condition.candidates:
        if (candidate.main.kind, candidate.main.keys) == (kind, by_side):
            return candidate
    return by_keys(condition, _equalities(*by_side)).get(by_side) if kind is MainKind.RANGE else None


def _equalities(left: KeyExpression, right: KeyExpression) -> frozenset[Equality]:
    """Those that the hash of a key space stands for."""
    if left.encoding is not Encoding.HASH:
        return frozenset()
    return frozenset(zip(zip(left.sql, right.sql, strict=True), left.types, strict=True))
