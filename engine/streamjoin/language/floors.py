"""Which join finds its pairs on which floor (:mod:`~streamjoin.language.stack`), and for what window tuples are held: what has to be known
of several joins to go on with them where some of them were added or removed. Joins over the same two streams may share floors; a join over
three and more has floors of its own, after those.

A join that is added has floors of its own, which begin with nothing: so it sees what comes from then on, as if it ran alone, and nothing
that the others hold is touched. A floor goes with the last of its joins.

Always holds: what lies on a floor is found by its keys alone. So a floor stays what it is when one of its joins goes, though the band that
its joins bound together may be narrower then.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from streamjoin.language.condition import Condition
from streamjoin.language.graph import JoinGraph, Place
from streamjoin.language.layout import Equality, Layout, Pair, PlacedGraph, Streams, by_keys, places_among, places_on
from streamjoin.language.predicate import Encoding, KeyExpression, MainKind, MainPredicate, Predicate, hull
from streamjoin.language.sides import SIDES
from streamjoin.language.stack import MOST_FLOORS, Stack
from streamjoin.language.types import DataType, TypeName
from streamjoin.language.window import Window, WindowKind, widest


@dataclass(frozen=True, slots=True)
class Floor:
    """What tuples of one floor lie by."""

    kind: MainKind
    keys: tuple[KeyExpression, ...]
    """By side; empty for ALL."""
    streams: Pair = SIDES
    """By side, whose tuples lie here."""
    born: int = 0
    """How often joins had been added, or floors emptied, before it began: it holds no tuple that came before, as earlier ones may."""

    def to_json(self) -> list[Any]:
        return [self.kind, list(map(_key_json, self.keys)), list(self.streams), self.born]

    @classmethod
    def from_json(cls, values: Sequence[Any]) -> Floor:
        kind, keys, streams, born = values
        return cls(MainKind(kind), tuple(_key(*key) for key in keys), tuple(streams), born)

    def predicate(self, condition: Condition) -> Predicate | None:
        """How a join on this condition finds its pairs here; None: it cannot."""
        if self.kind is MainKind.ALL:
            return condition.candidates[0]
        for candidate in condition.candidates:
            if (candidate.main.kind, candidate.main.keys) == (self.kind, self.keys):
                return candidate
        return by_keys(condition, self._equalities).get(self.keys) if self.kind is MainKind.RANGE else None

    @property
    def _equalities(self) -> frozenset[Equality]:
        """Those that a hash stands for."""
        left, right = self.keys
        if left.encoding is not Encoding.HASH:
            return frozenset()
        return frozenset(zip(zip(left.sql, right.sql, strict=True), left.types, strict=True))

    def main(self, predicates: Sequence[MainPredicate]) -> MainPredicate:
        """The main predicate of the floor of joins with these."""
        if self.kind is MainKind.ALL and (len(predicates) > 1 or predicates[0].kind is not MainKind.ALL):
            return MainPredicate(MainKind.ALL)
        return hull(predicates)


@dataclass(frozen=True, slots=True)
class GraphFloors:
    """What tuples of a join over three and more streams lie by."""

    main: str
    """Of its graph, as text."""
    floors: int
    places: tuple[Place, ...]
    """Their streams are numbered among all, their floors by themselves."""
    born: int = 0
    """As ``Floor.born``, of all its floors."""

    @classmethod
    def of(cls, placed: PlacedGraph) -> GraphFloors:
        return cls(str(placed.graph.main), len(placed.graph.main.floors), places_among(placed.graph, placed.streams, 0))

    def to_json(self) -> dict[str, Any]:
        places = [[place.stream, place.side, place.floor, None if place.key is None else _key_json(place.key)] for place in self.places]
        return {"main": self.main, "floors": self.floors, "places": places, "born": self.born}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> GraphFloors:
        places = (Place(stream, side, floor, None if key is None else _key(*key)) for stream, side, floor, key in values["places"])
        return cls(values["main"], values["floors"], tuple(places), values["born"])

    def graph(self, graphs: Iterable[JoinGraph], streams: Streams) -> JoinGraph | None:
        """The one of these graphs, over these streams, by which tuples lie so; None: there is none."""
        return next((each for each in graphs if (str(each.main), places_among(each, streams, 0)) == (self.main, self.places)), None)


def _key_json(key: KeyExpression) -> list[Any]:
    return [list(key.sql), [[of.name, of.precision, of.scale] for of in key.types], key.encoding]


def _key(sql: Sequence[str], types: Sequence[Sequence[Any]], encoding: str) -> KeyExpression:
    return KeyExpression(tuple(sql), tuple(DataType(TypeName(name), *digits) for name, *digits in types), Encoding(encoding))


@dataclass(frozen=True, slots=True)
class Joined:
    """A join as floors are found for it."""

    streams: Streams
    """Which it is over."""
    found: Condition | tuple[JoinGraph, ...]
    """The condition of a join over two streams; of more, the graphs that its condition has."""


@dataclass(frozen=True, slots=True)
class Floors:
    """See the module."""

    floors: tuple[Floor, ...]
    """Of joins over two streams."""
    joins: Mapping[str, int]
    """By join over two streams, its floor."""
    window: Window
    """What is held is held for this one, of joins over two streams. A join over three and more holds what it needs for its own."""
    graphs: Mapping[str, GraphFloors] = field(default_factory=dict)
    """By join over three and more streams, in the order of their floors."""

    @classmethod
    def of(cls, layout: Layout, joins: Sequence[str], window: Window) -> Floors:
        """Those of a layout. ``joins``: their names, in the layout's order."""
        mains = layout.main.floors if isinstance(layout.main, Stack) else (layout.main,)
        numbers, pairs = layout.floors or (0,) * len(joins), layout.pairs or (() if layout.graphs else (SIDES,) * len(mains))
        floors = tuple(Floor(main.kind, main.keys, pair) for main, pair in zip(mains, pairs, strict=False))
        graphs = {joins[placed.join]: GraphFloors.of(placed) for placed in layout.graphs}
        return cls(floors, {name: floor for name, floor in zip(joins, numbers, strict=True) if name not in graphs}, window, graphs)

    def to_json(self) -> dict[str, Any]:
        window = self.window
        return {
            "floors": [floor.to_json() for floor in self.floors],
            "joins": dict(self.joins),
            "window": [window.kind, window.before_micros, window.after_micros, window.slide_micros, window.rows],
            "graphs": {name: each.to_json() for name, each in self.graphs.items()},
        }

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Floors:
        kind, *spans = values["window"]
        found = {name: GraphFloors.from_json(each) for name, each in values["graphs"].items()}
        return cls(tuple(map(Floor.from_json, values["floors"])), dict(values["joins"]), Window(WindowKind(kind), *spans), found)

    def layout(self, joins: Mapping[str, Joined]) -> Layout | None:
        """How tuples lie for these joins, by name, in their order; None: a condition does not offer what its join's tuples lie by.

        O(joins x candidates).
        """
        predicates: dict[str, Predicate | None] = {}
        placed: list[PlacedGraph] = []
        first = self._first_of_graphs
        for number, (name, join) in enumerate(joins.items()):
            if isinstance(join.found, Condition):
                predicates[name] = self.floors[self.joins[name]].predicate(join.found)
                if predicates[name] is None:
                    return None
            else:
                graph = self.graphs[name].graph(join.found, join.streams)
                if graph is None:
                    return None
                predicates[name], (floor, place) = None, first[name]
                placed.append(PlacedGraph(number, graph, join.streams, tuple(range(place, place + len(graph.places))), floor))
        mains = tuple(
            floor.main([known.main for name, known in predicates.items() if known is not None and self.joins[name] == number])
            for number, floor in enumerate(self.floors)
        )
        if len(mains) == 1 and not placed:
            return Layout(mains[0], tuple(predicates.values()))
        placed.sort(key=lambda each: each.floor)
        mains += tuple(main for each in placed for main in each.graph.main.floors)
        pairs = tuple(floor.streams for floor in self.floors)
        return Layout(
            Stack.of(mains),
            tuple(predicates.values()),
            tuple(placed),
            tuple(self.joins[name] if name in self.joins else first[name][0] for name in predicates),
            pairs if placed or set(pairs) != {SIDES} else (),
        )

    @property
    def names(self) -> tuple[str, ...]:
        """Of all joins."""
        return (*self.joins, *self.graphs)

    def of_one(self, name: str) -> Floors:
        """The same of a single join by another name."""
        joins, graphs = dict.fromkeys([name] if self.joins else [], 0), {name: each for _, each in self.graphs.items()}  # noqa: B035
        return replace(self, joins=joins, graphs=graphs)

    @property
    def _first_of_graphs(self) -> dict[str, tuple[int, int]]:
        """By join over three and more streams, the number of its first floor and of its first place."""
        floor, place, found = len(self.floors), len(SIDES) * len(self.floors), {}
        for name, each in self.graphs.items():
            found[name] = floor, place
            floor, place = floor + each.floors, place + len(each.places)
        return found

    @property
    def places(self) -> tuple[Place, ...]:
        """Where tuples are held, as in the layout."""
        places, first = places_on([(floor.keys, floor.streams) for floor in self.floors]), self._first_of_graphs
        return places + tuple(
            replace(place, floor=first[name][0] + place.floor) for name, each in self.graphs.items() for place in each.places
        )

    @property
    def born(self) -> tuple[int, ...]:
        """By floor, how often joins had been added before it was (``Floor.born``)."""
        return tuple(floor.born for floor in self.floors) + tuple(each.born for each in self.graphs.values() for _ in range(each.floors))

    def without(self, removed: Iterable[str]) -> tuple[Floors, dict[int, int]]:
        """Those that are left when these joins go, and by the number of each of joins over two streams its number then."""
        gone = set(removed)
        left = {name: floor for name, floor in self.joins.items() if name not in gone}
        numbers = {floor: number for number, floor in enumerate(sorted(set(left.values())))}
        floors = tuple(self.floors[floor] for floor in numbers)
        graphs = {name: each for name, each in self.graphs.items() if name not in gone}
        return replace(self, floors=floors, joins={name: numbers[floor] for name, floor in left.items()}, graphs=graphs), numbers

    def beside(self, added: Floors) -> Floors:
        """With these after each of their kind. Raises ValueError where there would be more than ``MOST_FLOORS``."""
        first, together = len(self.floors), len(self.born) + len(added.born)
        if together > MOST_FLOORS:
            raise ValueError(f"{together} of at most {MOST_FLOORS} kinds of keys")
        born = 1 + max(self.born, default=-1)
        return replace(
            self,
            floors=(*self.floors, *(replace(floor, born=born) for floor in added.floors)),
            joins={**self.joins, **{name: first + floor for name, floor in added.joins.items()}},
            graphs={**self.graphs, **{name: replace(each, born=born) for name, each in added.graphs.items()}},
        )

    def emptied(self, places: Collection[int]) -> Floors:
        """The same after what lay at these places was let go, as the input had ended: those of joins over two streams begin anew there."""
        born = 1 + max(self.born, default=-1)
        emptied = {place // len(SIDES) for place in places}
        floors = (replace(floor, born=born) if number in emptied else floor for number, floor in enumerate(self.floors))
        return replace(self, floors=tuple(floors))

    def place_of(self, after: Floors, numbers: Mapping[int, int]) -> dict[int, int]:
        """By place that is left in ``after``, its number there. ``numbers``: by floor of joins over two streams, its number there."""
        found = {len(SIDES) * floor + side: len(SIDES) * now + side for floor, now in numbers.items() for side in SIDES}
        first, now = self._first_of_graphs, after._first_of_graphs
        for name, each in self.graphs.items():
            if name in now:
                found |= {first[name][1] + place: now[name][1] + place for place in range(len(each.places))}
        return found

    def held_for(self, windows: Sequence[Window]) -> Floors:
        """For joins over two streams with these windows, which are of the kind of ``window`` unless nothing is held.

        It slides only if it always did: of tuples that are held without that, no column says where theirs begin.
        """
        if not windows:
            return self
        window = widest(windows)
        slides = not self.floors or window.slide_micros == self.window.slide_micros
        return replace(self, window=window if slides else replace(window, slide_micros=0))
