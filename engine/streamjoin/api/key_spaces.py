"""Shows the key spaces of a scheme one by one, each like a scheme of two streams: people think in keys, not in encoded keys.

With two streams there is one key space, which is the scheme itself. A scheme of three and more streams cuts encoded keys
(:mod:`streamjoin.language.composite_key`): a key space then shows these cuts for some of the places at which tuples are held, in the keys
of these places.

Always holds: the key spaces together have every place once, on its side.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from streamjoin.language.composite_key import CompositeKey
from streamjoin.language.graph import Place
from streamjoin.language.layout import Layout
from streamjoin.language.predicate import MainPredicate
from streamjoin.language.sides import LEFT, RIGHT, SIDES
from streamjoin.manifest.problem import listed
from streamjoin.scheme.matrix import hashed
from streamjoin.scheme.places import by_place
from streamjoin.scheme.statistics import Histogram, SideStatistics, Statistics
from streamjoin.scheme.tiling import KeyRange, Scheme

BUCKETS = 1024
"""The number of buckets for hashed keys, if nothing else is known of them."""

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True, slots=True, eq=False)
class KeySpace:
    """See the module."""

    main: MainPredicate
    streams: tuple[tuple[str, ...], tuple[str, ...]]
    """The names of each side's streams."""
    statistics: Statistics
    """Statistics in the key space's keys."""
    places: tuple[Place, ...] = ()
    """The places of the key space. Empty with two streams, which have one key space."""
    texts: tuple[str, ...] = ()
    """What is held at these places, for people."""
    stack: CompositeKey | None = None

    @classmethod
    def alone(cls, main: MainPredicate, statistics: Statistics, names: tuple[str, str] = ("left", "right")) -> KeySpace:
        """The only key space of a scheme of two streams."""
        return cls(main, ((names[LEFT],), (names[RIGHT],)), statistics)

    @property
    def names(self) -> tuple[str, str]:
        """The streams of each side, for people."""
        left, right = (listed(names, "and") for names in self.streams)
        return left, right

    @property
    def headings(self) -> tuple[str, str]:
        """A heading for each side, for people: what is held there."""
        if self.stack is None:
            return self.names
        left, right = (
            listed([text for place, text in zip(self.places, self.texts, strict=True) if place.side == side], "and") for side in SIDES
        )
        return left, right

    def of(self, scheme: Scheme) -> Scheme:
        """What the scheme is on this key space: the areas that have keys of it, in keys. O(areas).

        One whose other side has nothing of this key space has an empty range of keys there (:func:`is_empty`).
        """
        if self.stack is None:
            return scheme
        sides = [next(place for place in self.places if place.side == side) for side in SIDES]
        areas = [replace(area, keys=tuple(map(_finite, area.keys))) for area in by_place(scheme, sides, self.stack).areas]
        return replace(scheme, areas=tuple(area for area in areas if not all(map(is_empty, area.keys))))


def is_empty(keys: KeyRange) -> bool:
    return keys.low is not None and keys.low == keys.high


def _finite(keys: KeyRange) -> KeyRange:
    """Without infinite bounds: encoded keys beyond those of all numbers are still of a key space of doubles, and nothing is there."""
    if keys.high == -math.inf or keys.low == math.inf:
        return KeyRange(0.0, 0.0)
    return KeyRange(None if keys.low == -math.inf else keys.low, None if keys.high == math.inf else keys.high)


def place_text(stream: str, place: Place) -> str:
    """``payments by order_id``; where tuples lie by no key, the stream alone."""
    return stream if place.key is None else f"{stream} by {key_name(place)}"


def key_name(place: Place) -> str:
    """The expressions that make the key; empty where there is none."""
    return "" if place.key is None else " and ".join(place.key.sql)


def key_spaces_of(layout: Layout, streams: Sequence[str], known: Sequence[SideStatistics]) -> tuple[KeySpace, ...]:
    """The key spaces of a layout's schemes, from what is known of the keys at each place."""
    if not isinstance(layout.main, CompositeKey):
        return (KeySpace.alone(layout.main, Statistics(tuple(known)), (streams[LEFT], streams[RIGHT])),)
    places = layout.places
    key_spaces = []
    for number, main in enumerate(layout.main.key_spaces):
        numbers = [index for index, place in enumerate(places) if place.key_space == number]
        edges = [edge for placed in layout.multiway for edge in placed.graph.edges if placed.places[edge.places[LEFT]] in numbers]
        texts = [edge.text for edge in edges] or [main.text or str(main.kind)]
        of_side = [[index for index in numbers if places[index].side == side] for side in SIDES]
        left, right = (tuple(streams[places[index].stream] for index in indices) for indices in of_side)
        key_spaces.append(
            KeySpace(
                replace(main, text="; ".join(texts)),
                (left, right),
                Statistics(tuple(_together([known[index] for index in indices]) for indices in of_side)),
                tuple(places[index] for index in numbers),
                tuple(place_text(streams[places[index].stream], places[index]) for index in numbers),
                layout.main,
            )
        )
    return tuple(key_spaces)


def statistics_of(key_spaces: Sequence[KeySpace]) -> Statistics:
    """The statistics from which schemes are made; of encoded keys, if there are several key spaces or more than two streams. O(buckets *
    key spaces)."""
    (stack,) = {key_space.stack for key_space in key_spaces}
    if stack is None:
        return key_spaces[0].statistics
    return Statistics(tuple(_stacked(stack, key_spaces, side) for side in SIDES))


def _together(known: Sequence[SideStatistics]) -> SideStatistics:
    """Of several places with keys of one kind; those whose keys are not known are taken to be like the others."""
    spreads = [(side.histogram, side.tuples) for side in known if side.histogram is not None]
    histogram = spreads[0][0] if len(spreads) == 1 else _sum([_scaled(*spread) for spread in spreads]) if spreads else None
    return SideStatistics(sum(side.tuples for side in known), histogram)


def _stacked(stack: CompositeKey, key_spaces: Sequence[KeySpace], side: int) -> SideStatistics:
    sides = [key_space.statistics.sides[side] for key_space in key_spaces]
    spreads = [
        known.histogram or (Histogram.even(BUCKETS) if hashed(key_space.main) else None)
        for key_space, known in zip(key_spaces, sides, strict=True)
    ]
    tuples = sum(known.tuples for known in sides)
    if not any(spreads):
        return SideStatistics(tuples)
    encoded_keys = [
        _encoded_keys(stack, number, *each) for number, each in enumerate(zip(spreads, (known.tuples for known in sides), strict=True))
    ]
    return SideStatistics(tuples, _sum(encoded_keys))


def _encoded_keys(stack: CompositeKey, key_space: int, spread: Histogram | None, tuples: float) -> Histogram:
    """So many tuples of a key space by their encoded keys; of unknown keys (``spread`` None) all that is known is that they are of this key
    space."""
    begin, end = stack.base(key_space), stack.base(key_space + 1)
    bounds, below = [begin], [0.0]
    if spread is not None:
        scaled = _scaled(spread, tuples)
        bounds += stack.encoded_keys(key_space, scaled.bounds).tolist()
        below += np.cumsum(scaled.counts)[:-1].tolist()
    at = dict(zip([*bounds, end], [*below, tuples], strict=True))  # of bounds with one encoded key, the last
    ends = {stack.base(0), stack.base(len(stack.key_spaces))}  # nothing is beyond these
    kept = sorted(at.keys() - ends)
    return Histogram(np.array(kept, np.int64), np.diff([at[bound] for bound in kept], prepend=0.0, append=tuples))


def _scaled(histogram: Histogram, tuples: float) -> Histogram:
    return Histogram(histogram.bounds, histogram.counts * (tuples / histogram.total if histogram.total > 0 else 0.0))


def _sum(histograms: Sequence[Histogram]) -> Histogram:
    bounds = np.unique(np.concatenate([histogram.bounds for histogram in histograms]))
    return Histogram(bounds, np.sum([histogram.refined(bounds).counts for histogram in histograms], axis=0))
