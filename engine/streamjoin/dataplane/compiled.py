"""Configurations and schemes made ready for work, once a process."""

from __future__ import annotations

import pickle
from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import pyarrow as pa

from streamjoin.dataplane.event_times import event_times_of
from streamjoin.dataplane.paths import JoinOperator
from streamjoin.dataplane.window_filter import before
from streamjoin.epoch.spec import Config, Shared, Stream
from streamjoin.kernel.expression import Evaluator
from streamjoin.kernel.keys import key_type
from streamjoin.kernel.types import held_fields
from streamjoin.language.join_type import JoinType
from streamjoin.language.layout import Layout, numbered
from streamjoin.language.predicate import KeyExpression
from streamjoin.language.sides import LEFT
from streamjoin.language.window import Window
from streamjoin.scheme.models import HANDSHAKE
from streamjoin.scheme.places import by_place
from streamjoin.scheme.routing import EntryRouter, Router, Routing
from streamjoin.scheme.tiling import Area, Scheme


class Compiled:
    """A Config made ready for work in one process."""

    def __init__(self, config: Config) -> None:
        self.config = config
        places = self.places = config.layout.places
        multiway = config.layout.multiway
        parts = dict(zip((placed.join for placed in multiway), numbered(multiway, len(config.joins)), strict=True))
        none = slice(0), range(0)
        self.joins = tuple(JoinOperator(number, join, config, *parts.get(number, none)) for number, join in enumerate(config.joins))
        self.tracked = tuple(sorted({place for join in self.joins for place in join.tracked}))
        """The places that any join tracks."""
        self.streams = tuple(
            Taken(
                stream,
                config.window,
                tuple(place for place, held in enumerate(places) if held.stream == number),
                [tuple(place for place in placed.places if places[place].stream == number) for placed in multiway],
                [join.type for join in config.joins if number in (join.streams[side] for side in join.type.tracked)],
            )
            for number, stream in enumerate(config.streams)
        )
        self.held = tuple(
            held_schema(
                config.streams[place.stream],
                config.window,
                place.key,
                is_tracked=self.streams[place.stream].is_tracked,
                others=[each.name for number, each in enumerate(config.streams) if number != place.stream],
            )
            for place in places
        )
        """By place, the columns of held tuples."""


class Taken:
    """One stream made ready."""

    def __init__(
        self, stream: Stream, window: Window, places: tuple[int, ...], of_graphs: Sequence[tuple[int, ...]], tracked_for: Sequence[JoinType]
    ) -> None:
        """``places``: where its tuples are held. ``of_graphs``: by join of three and more streams, which of these are its. ``tracked_for``:
        the types of the joins that track the stream."""
        self.stream, self.window, self.places = stream, window, places
        self.together = tuple([places.index(place) for place in own] for own in of_graphs if len(own) > 1)
        """Places, by their numbers among its own, of which a tuple is in all or in none: a result of three and more streams has a tuple of
        each, so one that lacks a key is of no use in any."""
        self.is_in_all = [list(range(len(places)))] == list(self.together)
        """Whether each tuple that is held is in all places."""
        self.is_tracked = bool(tracked_for)
        self.gives_unmatched = any(kind.gives_unmatched for kind in tracked_for)
        self.payload = pa.schema(held_fields(stream.schema.select(stream.payload)))
        self.where = Evaluator(stream.where) if stream.where else None
        self.times = event_times_of(stream)
        self.punctuation = None if stream.punctuation is None else tuple(map(Evaluator, stream.punctuation))


ID = "_id"
"""A column of the tracked sides: the tuple's number in its stream, by which workers speak of it."""


def held_schema(
    stream: Stream, window: Window, key: KeyExpression | None, *, is_tracked: bool = False, others: Sequence[str] = ()
) -> pa.Schema:
    """The columns of a stream's held tuples, as the kernel wants them. ``others``: the names of the other streams."""
    fields = [pa.field("_key", key_type(key)), pa.field("_unit", pa.uint32())]
    if window.has_time:
        fields.append(pa.field("_time", pa.int64()))
    if window.has_aux:
        fields.append(pa.field("_aux", pa.int64()))
    if window.counts_others:
        fields += [pa.field(before(name), pa.int64()) for name in others]
    if is_tracked:
        fields.append(pa.field(ID, pa.int64()))
    return pa.schema(fields + held_fields(stream.schema.select(stream.payload)))


class Plan:
    """A scheme made ready, by places: its routers, and which areas each task owns."""

    def __init__(self, scheme: Scheme, layout: Layout) -> None:
        self.uncut = scheme
        """As it was planned, by sides."""
        self.scheme = by_place(scheme, layout.places, layout.main)
        self.routers: tuple[Routing, ...]
        if scheme.model == HANDSHAKE:
            self.routers = tuple(EntryRouter(0 if place.side == LEFT else len(scheme.areas) - 1) for place in layout.places)
        else:
            self.routers = tuple(Router(self.scheme, place) for place in range(len(layout.places)))

    @cached_property
    def areas(self) -> dict[int, dict[int, Area]]:
        owned: dict[int, dict[int, Area]] = {}
        for index, area in enumerate(self.scheme.areas):
            owned.setdefault(area.task, {})[index] = area
        return owned


_cache: OrderedDict[str, Compiled | Plan] = OrderedDict()
CACHED = 64


def compiled(shared: Shared) -> Compiled:
    """The Compiled of a shared Config, made once a process."""
    found = _cached(shared, Compiled)
    assert isinstance(found, Compiled)
    return found


def plan_of(shared: Shared, config: Shared) -> Plan:
    """The Plan of a shared Scheme, made once a process. ``config``: of the driver whose scheme it is."""
    found = _cached(shared, lambda scheme: Plan(scheme, compiled(config).config.layout))
    assert isinstance(found, Plan)
    return found


def _cached(shared: Shared, made_ready: Callable[[Any], Compiled | Plan]) -> Compiled | Plan:
    found = _cache.get(shared.identity)
    if found is None:
        value = pickle.loads(shared.data)  # noqa: S301 - written by this program's driver
        found = _cache[shared.identity] = made_ready(value)
        while len(_cache) > CACHED:
            _cache.popitem(last=False)
    return found
