"""Configurations and schemes made ready for work, once a process."""

from __future__ import annotations

import pickle
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import Any

import pyarrow as pa

from streamjoin.epoch.event_times import event_times_of
from streamjoin.epoch.nearness import before
from streamjoin.epoch.spec import Config, Join, Shared, Stream
from streamjoin.epoch.steps import ManyJoin, Sequences, numbered
from streamjoin.io.several import tags
from streamjoin.kernel.expression import Evaluator
from streamjoin.kernel.index import Indexed
from streamjoin.kernel.joiner import Joiner
from streamjoin.kernel.keys import key_type
from streamjoin.kernel.types import arrow_schema, held_fields
from streamjoin.language.join_type import JoinType
from streamjoin.language.layout import Layout
from streamjoin.language.predicate import KeyExpression
from streamjoin.language.sides import LEFT, SIDES
from streamjoin.language.sql import parse_boolean
from streamjoin.language.window import Ends, Window
from streamjoin.scheme.models import HANDSHAKE
from streamjoin.scheme.places import by_place
from streamjoin.scheme.routing import EntryRouter, Router, Routing
from streamjoin.scheme.tiling import Area, Scheme


class Compiled:
    """A Config made ready for work in one process."""

    def __init__(self, config: Config) -> None:
        self.config = config
        places = self.places = config.layout.places
        self.joins = tuple(CompiledJoin(number, join, config) for number, join in enumerate(config.joins) if join.predicate is not None)
        """Of two streams."""
        self.sequences = tuple(_sequences(config))
        """Of joins of three and more."""
        self.tracked = tuple(sorted({place for join in self.joins for place in join.tracked}))
        """The places that any join tracks."""
        self.streams = tuple(
            Taken(
                stream,
                config.window,
                tuple(place for place, held in enumerate(places) if held.stream == number),
                [tuple(place for place in placed.places if places[place].stream == number) for placed in config.layout.graphs],
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


def _sequences(config: Config) -> Iterator[Sequences]:
    """Of the joins of three and more streams."""
    graphs = config.layout.graphs
    for placed, (heads, steps) in zip(graphs, numbered(graphs, len(config.joins)), strict=True):
        join, schemas = config.joins[placed.join], tuple(config.streams[stream].schema for stream in placed.streams)
        yield Sequences(ManyJoin(join.name, placed, schemas, join.window, join.where, join.output), heads, steps)


class CompiledJoin:
    """One join made ready."""

    def __init__(self, number: int, join: Join, config: Config) -> None:
        """``number``: its place among the joins."""
        self.number, self.name, self.type, self.window, self.streams = number, join.name, join.type, join.window, join.streams
        self.places = config.layout.places_of(number)
        """Where it finds its pairs, by side."""
        self.tracked = tuple(self.places[side] for side in join.type.tracked)
        """The places whose tuples are known to have matched or not."""
        self.tag = tags(each.name for each in config.joins)[join.name]
        """What marks blocks are known by as this join's."""
        assert join.predicate is not None
        main, residual = join.predicate.main, join.predicate.residual
        left, right = (config.streams[stream] for stream in join.streams)
        schemas = {left.name: left.schema, right.name: right.schema}
        types = {(stream.name, field.name): field.type for stream in config.streams for field in arrow_schema(stream.schema)}
        self.joiner = Joiner(
            main,
            join.window,
            parse_boolean(residual, schemas) if residual else None,
            join.where,
            join.output,
            (left.name, right.name),
            types=types if join.type.gives_unmatched else {},
        )
        slide = join.window.slide_micros
        slides = None if slide in (0, config.window.slide_micros) else slide
        self.indexed = tuple(Indexed(main.key(side) if join.has_index else None, slides) for side in SIDES)
        """By side, what it finds pairs by."""

    def expired(self, wider: Window, bounds: Ends) -> Ends:
        """By side, the ``_time`` below which its own window has passed tuples; ``bounds``: by place, of a wider one."""
        left, right = self.places
        return self.window.expired_within(wider, (bounds[left], bounds[right]))


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
