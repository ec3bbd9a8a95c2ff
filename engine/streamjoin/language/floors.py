"""Which join finds its pairs on which floor (:mod:`~streamjoin.language.stack`), and for what window tuples are held: what has to be known
of joins over two streams to go on with them where some of them were added or removed.

A join that is added has floors of its own, which begin with nothing: so it sees what comes from then on, as if it ran alone, and nothing
that the others hold is touched. A floor goes with the last of its joins.

Always holds: what lies on a floor is found by its keys alone. So a floor stays what it is when one of its joins goes, though the band that
its joins bound together may be narrower then.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from streamjoin.language.condition import Condition
from streamjoin.language.graph import Place
from streamjoin.language.layout import Equality, Layout, Pair, by_keys, places_on
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
    """How often joins had been added before it was: it holds no tuple that floors born before it do not hold, unless those lack its key."""

    def to_json(self) -> list[Any]:
        keys = [[list(key.sql), [[of.name, of.precision, of.scale] for of in key.types], key.encoding] for key in self.keys]
        return [self.kind, keys, list(self.streams), self.born]

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


def _key(sql: Sequence[str], types: Sequence[Sequence[Any]], encoding: str) -> KeyExpression:
    return KeyExpression(tuple(sql), tuple(DataType(TypeName(name), *digits) for name, *digits in types), Encoding(encoding))


@dataclass(frozen=True, slots=True)
class Floors:
    """See the module."""

    floors: tuple[Floor, ...]
    joins: Mapping[str, int]
    """By join, its floor."""
    window: Window
    """What is held is held for this one."""

    @classmethod
    def of(cls, layout: Layout, joins: Sequence[str], window: Window) -> Floors:
        """Those of a layout over two streams. ``joins``: their names, in the layout's order."""
        mains = layout.main.floors if isinstance(layout.main, Stack) else (layout.main,)
        numbers, pairs = layout.floors or (0,) * len(joins), layout.pairs or (SIDES,) * len(mains)
        floors = tuple(Floor(main.kind, main.keys, pair) for main, pair in zip(mains, pairs, strict=True))
        return cls(floors, dict(zip(joins, numbers, strict=True)), window)

    def to_json(self) -> dict[str, Any]:
        window = self.window
        return {
            "floors": [floor.to_json() for floor in self.floors],
            "joins": dict(self.joins),
            "window": [window.kind, window.before_micros, window.after_micros, window.slide_micros, window.rows],
        }

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Floors:
        kind, *spans = values["window"]
        return cls(tuple(map(Floor.from_json, values["floors"])), dict(values["joins"]), Window(WindowKind(kind), *spans))

    def layout(self, conditions: Mapping[str, Condition]) -> Layout | None:
        """How tuples lie for joins on these conditions, by name, in their order; None: a condition does not offer its floor's keys.

        O(joins x candidates).
        """
        found = {name: self.floors[self.joins[name]].predicate(condition) for name, condition in conditions.items()}
        predicates = {name: predicate for name, predicate in found.items() if predicate is not None}
        if len(predicates) < len(found):
            return None
        mains = tuple(
            floor.main([predicate.main for name, predicate in predicates.items() if self.joins[name] == number])
            for number, floor in enumerate(self.floors)
        )
        if len(mains) == 1:
            return Layout(mains[0], tuple(predicates.values()))
        pairs = tuple(floor.streams for floor in self.floors)
        return Layout(
            Stack.of(mains),
            tuple(predicates.values()),
            floors=tuple(self.joins[name] for name in predicates),
            pairs=pairs if set(pairs) != {SIDES} else (),
        )

    @property
    def places(self) -> tuple[Place, ...]:
        """Where tuples are held, as in the layout."""
        return places_on([(floor.keys, floor.streams) for floor in self.floors])

    def without(self, removed: Iterable[str]) -> tuple[Floors, dict[int, int]]:
        """Those that are left when these joins go, and by the number of each its number then."""
        left = {name: floor for name, floor in self.joins.items() if name not in set(removed)}
        numbers = {floor: number for number, floor in enumerate(sorted(set(left.values())))}
        floors = tuple(self.floors[floor] for floor in numbers)
        return replace(self, floors=floors, joins={name: numbers[floor] for name, floor in left.items()}), numbers

    def beside(self, added: Floors) -> Floors:
        """With these above. Raises ValueError where there would be more than ``MOST_FLOORS``."""
        first = len(self.floors)
        if first + len(added.floors) > MOST_FLOORS:
            raise ValueError(f"{first + len(added.floors)} of at most {MOST_FLOORS} kinds of keys")
        joins = {name: first + floor for name, floor in added.joins.items()}
        born = 1 + max((floor.born for floor in self.floors), default=-1)
        return replace(self, floors=(*self.floors, *(replace(floor, born=born) for floor in added.floors)), joins={**self.joins, **joins})

    def held_for(self, windows: Sequence[Window]) -> Floors:
        """For joins with these windows, which are of the kind of ``window`` unless nothing is held.

        It slides only if it always did: of tuples that are held without that, no column says where theirs begin.
        """
        window = widest(windows)
        slides = not self.floors or window.slide_micros == self.window.slide_micros
        return replace(self, window=window if slides else replace(window, slide_micros=0))
