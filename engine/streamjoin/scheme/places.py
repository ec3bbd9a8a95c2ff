"""A scheme as those see it who route, hold and join: by places instead of sides, in the keys of each place instead of encoded keys.

Two streams have a place each, and a scheme's sides are those. Of three and more, several places are on one side of the scheme, on one or
several of its key spaces (:mod:`streamjoin.language.graph`); what an area says of a side it says of all places there, as far as its encoded
keys are of their key space.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from streamjoin.language.composite_key import CompositeKey
from streamjoin.language.graph import Place
from streamjoin.language.predicate import Encoding, MainPredicate
from streamjoin.scheme.tiling import Area, KeyRange, Scheme


def by_place(scheme: Scheme, places: Sequence[Place], main: MainPredicate) -> Scheme:
    """The scheme with ``keys``, ``units``, ``writes`` and ``holds`` of its areas by place. O(areas x places).

    Of key spaces that an area has nothing of, its key range is empty.
    """
    if not isinstance(main, CompositeKey):
        return scheme
    return replace(scheme, areas=tuple(_by_place(area, places, main) for area in scheme.areas))


def _by_place(area: Area, places: Sequence[Place], main: CompositeKey) -> Area:
    def own(keys: KeyRange, place: Place) -> KeyRange | None:
        between = main.keys_between(place.key_space, keys.low, keys.high)
        return None if between is None else KeyRange(*between)

    writes = (area.writes[place.side] for place in places)
    return replace(
        area,
        keys=tuple(own(area.keys[place.side], place) or _empty(place) for place in places),
        units=tuple(area.units[place.side] for place in places),
        writes=tuple(None if keys is None else own(keys, place) for keys, place in zip(writes, places, strict=True)),
        holds=tuple(area.holds[place.side] for place in places),
    )


def _empty(place: Place) -> KeyRange:
    zero = 0.0 if place.key is not None and place.key.encoding is Encoding.FLOAT else 0
    return KeyRange(zero, zero)
