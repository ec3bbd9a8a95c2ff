"""Sequences of steps: how results of three and more streams are found (Tran and Lee, section 4).

New tuples of a stream, its *heads*, meet the held tuples of a second one along an edge of the join graph; what that gives, partial results,
is sent on to meet those of a third, and so on. A result belongs to the newest of its members: of those that came in this epoch, which are
all new, to that of the last stream. So heads of stream i meet, of streams before i, all that is held and what came in this epoch; of those
after i only what was held before. Each result is found once, by the heads of one stream.

A step is done where what it probes is held, and that a scheme says as it does for two streams: partial results are routed as tuples of
that member by which they find their partners, and are not held. A partial result carries of its members what is still to be read, and
the time of the newest (``_time``), and up to which time a newer member may be (``_aux``).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from streamjoin.kernel.joiner import Joiner, Members, Name, Pairs, column_of
from streamjoin.kernel.keys import encode_keys, mix
from streamjoin.kernel.run import AUX, KEY, TIME, UNIT, Run, sort_order, take
from streamjoin.language.graph import Edge, JoinGraph
from streamjoin.language.schema import Schema
from streamjoin.language.sides import LEFT
from streamjoin.language.sql import Expression, parse_boolean, parse_expression
from streamjoin.language.tree import Call, Reference
from streamjoin.language.types import BOOLEAN
from streamjoin.language.window import Window, WindowKind
from streamjoin.scheme.routing import Router

Orders = tuple[tuple[int, ...], ...]
"""By stream, in which order the others follow its heads."""


@dataclass
class StepWork:
    """What the workers did in one step of an epoch."""

    found: int = 0
    """Results, partial ones or last ones."""
    sent: int = 0
    """Of them, sent to the next step, replicas counted each."""
    sent_bytes: int = 0

    def add(self, other: StepWork) -> None:
        self.found, self.sent, self.sent_bytes = self.found + other.found, self.sent + other.sent, self.sent_bytes + other.sent_bytes


@dataclass(frozen=True)
class ManyJoin:
    """What sequences join: all that they are made of, but for the orders."""

    graph: JoinGraph
    schemas: tuple[Schema, ...]
    window: Window
    where: Expression | None
    output: tuple[tuple[str, Expression], ...]


def first_orders(graph: JoinGraph) -> Orders:
    """For each stream the first order that the graph has: edges are in it by how selective their predicates look."""
    return tuple(next(graph.orders(head)) for head in range(len(graph.streams)))


class Step:
    """One step of a sequence. It holds no tuples, and serves one thread at a time."""

    def __init__(self, join: ManyJoin, number: int, head: int, members: tuple[int, ...], stream: int, following: tuple[int, ...]) -> None:
        """``members``: the streams joined before, ``stream`` the one that comes now, ``following`` those after it, in order."""
        graph = join.graph
        edge = graph.edge_to(stream, frozenset(members))
        assert edge is not None, "an order of the graph"
        self.number, self.head, self.stream, self.edge = number, head, stream, edge
        self.is_first, self.is_last = len(members) == 1, not following
        self.side = graph.ends(edge).index(stream)
        """Of the scheme, where what is probed is held."""
        self.place, self.probing = edge.places[self.side], edge.places[1 - self.side]
        self.takes_new = stream < head
        """Whether what came of the stream in this epoch counts."""
        names = dict(zip(graph.streams, join.schemas, strict=True))
        own, came = tuple(graph.streams[member] for member in members), (graph.streams[stream],)
        self.joiner = _StepJoiner(
            edge,
            window=_kernel_window(join.window, members, stream, self.side),
            residual=_all_of([*_residual_of(edge, names), *graph.checks_at(stream, frozenset(members))]),
            where=join.where if self.is_last else None,
            output=join.output if self.is_last else _carried(join, {*members, stream}, following),
            streams=(came, own) if self.side == LEFT else (own, came),
            spans=None if join.window.kind is WindowKind.UNBOUNDED else dict(zip(graph.streams, join.window.each, strict=True)),
            is_last=self.is_last,
        )
        self.next_probing: int | None = None
        """The place by which what is found goes on."""
        self.schema: pa.Schema | None = None
        """Of what is found, as it is sent."""
        if following:
            after = graph.edge_to(following[0], frozenset((*members, stream)))
            assert after is not None
            side = graph.ends(after).index(following[0])
            self.next_probing = after.places[1 - side]
            place = graph.places[self.next_probing]
            self._key, self._by = place.key, place.stream
            self._prefix, self._keyed = graph.streams[place.stream], join.schemas[place.stream]
            is_float = place.key is not None and place.key.encoding == "float"
            first = [pa.field(KEY, pa.float64() if is_float else pa.int64()), pa.field(UNIT, pa.uint32())]
            self.schema = pa.schema([*first, *self.joiner.batch_schema])

    def join(self, probing: Run, held: Run) -> Iterator[pa.RecordBatch]:
        """What the probing tuples give with these: results, or partial ones that are yet to be made ``ready``."""
        yield from self.joiner.join(*((held, probing) if self.side == LEFT else (probing, held)))

    def ready(self, found: Sequence[pa.RecordBatch], salt: int) -> pa.RecordBatch:
        """Partial results as they are routed to the next step: with a key, sorted by it, and a unit coordinate. Those without a key can
        match nothing and are left out. O(n log n). ``salt``: another one for each call of an epoch, for even units."""
        assert self.schema is not None
        batch = pa.Table.from_batches(found).combine_chunks().to_batches()[0]
        if self._key is None:
            key, valid = np.zeros(batch.num_rows, np.int64), None
        else:
            own = [name for name in batch.schema.names if name.startswith(f"{self._prefix}.")]
            bare = pa.RecordBatch.from_arrays([batch.column(name) for name in own], [name.partition(".")[2] for name in own])
            key, valid = encode_keys(bare, self._key, self._keyed)
        units = (mix(np.arange(batch.num_rows, dtype=np.uint64) ^ mix(np.array([salt], np.uint64))) >> np.uint64(32)).astype(np.uint32)
        batch = pa.RecordBatch.from_arrays([pa.array(key), pa.array(units), *batch.columns], schema=self.schema)
        order = sort_order(key) if valid is None or valid.all() else np.flatnonzero(valid)[sort_order(key[valid])]
        return take(batch, pa.array(order))

    def route(self, batch: pa.RecordBatch, routers: Sequence[Router]) -> Iterator[tuple[int, NDArray[np.int64] | slice]]:
        assert self.next_probing is not None
        yield from routers[self.next_probing].route(batch.column(KEY).to_numpy(), batch.column(UNIT).to_numpy())


class _StepJoiner(Joiner):
    """A joiner whose results may be partial: then they have times, which candidates are checked by."""

    def __init__(
        self,
        edge: Edge,
        *,
        window: Window,
        residual: Expression | None,
        where: Expression | None,
        output: Sequence[tuple[str, Expression]],
        streams: tuple[Members, Members],
        spans: dict[str, int] | None,
        is_last: bool,
    ) -> None:
        super().__init__(edge.main, window, residual, where, output or [_NOTHING], streams)
        self._spans, self._members, self._is_last = spans, streams, is_last
        times = [pa.field(TIME, pa.int64()), pa.field(AUX, pa.int64())] if spans is not None else []
        self.batch_schema = self.output_schema if is_last else pa.schema([*times, *(self.output_schema if output else ())])
        self._has_output = bool(output)

    def admitted(self, pairs: Pairs) -> Pairs:
        if self._spans is not None and pairs.count and any(len(streams) > 1 for streams in self._members):
            newest, latest = self._times(pairs)
            inside = newest <= latest
            if not inside.all():
                pairs = pairs.chosen(np.flatnonzero(inside))
        return super().admitted(pairs)

    def batch(self, pairs: Pairs) -> pa.RecordBatch:
        if self._is_last:
            return super().batch(pairs)
        columns = list(super().batch(pairs).columns) if self._has_output else []
        times = [pa.array(times) for times in self._times(pairs)] if self._spans is not None else []
        return pa.RecordBatch.from_arrays([*times, *columns], schema=self.batch_schema)

    def _times(self, pairs: Pairs) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The time of the newest member, and up to which time one may be."""
        assert self._spans is not None
        newest: list[NDArray[np.int64]] = []
        latest: list[NDArray[np.int64]] = []
        for streams, (batch, rows) in pairs.sides.items():
            times = batch.column(TIME).to_numpy()[rows]
            newest.append(times)
            latest.append(times + self._spans[streams[0]] if len(streams) == 1 else batch.column(AUX).to_numpy()[rows])
        return np.maximum(*newest), np.minimum(*latest)


_NOTHING = ("nothing", parse_expression("1", {}))
"""For a step whose results carry no columns."""


def _kernel_window(window: Window, members: Sequence[int], stream: int, side: int) -> Window:
    """By what the probe finds pairs: exact for a head; for partial results, whose time is that of their newest, a little wide."""
    if window.kind is WindowKind.UNBOUNDED:
        return window
    of_members = max(window.each[member] for member in members)
    spans = (window.each[stream], of_members) if side == LEFT else (of_members, window.each[stream])
    return Window.of_each(spans)


def _residual_of(edge: Edge, schemas: dict[str, Schema]) -> list[Expression]:
    return [] if edge.residual is None else [parse_boolean(edge.residual, schemas)]


def _all_of(conditions: Sequence[Expression]) -> Expression | None:
    if not conditions:
        return None
    return conditions[0] if len(conditions) == 1 else Expression.of(Call("and", tuple(each.tree for each in conditions), BOOLEAN))


def _carried(join: ManyJoin, members: set[int], following: Sequence[int]) -> list[tuple[str, Expression]]:
    """The columns of these streams that later steps or the output read."""
    graph = join.graph
    names = {graph.streams[member] for member in members}
    schemas = dict(zip(graph.streams, join.schemas, strict=True))
    read: set[Name] = {name for _, expression in join.output for name in expression.columns}
    read |= join.where.columns if join.where is not None else set()
    done = set(members)
    for stream in following:
        edge = graph.edge_to(stream, frozenset(done))
        assert edge is not None
        for condition in (*_residual_of(edge, schemas), *graph.checks_at(stream, frozenset(done))):
            read |= condition.columns
        place = graph.places[edge.places[1 - graph.ends(edge).index(stream)]]
        name = graph.streams[place.stream]
        for sql in () if place.key is None else place.key.sql:
            read |= parse_expression(sql, {name: schemas[name]}).columns
        done.add(stream)
    return [
        (column_of(("", ""), (stream, column.name)), Expression.of(Reference(stream, column.name, column.type)))
        for stream in graph.streams
        if stream in names
        for column in schemas[stream]
        if (stream, column.name) in read
    ]


class Sequences:
    """All steps, for orders as they come."""

    def __init__(self, join: ManyJoin) -> None:
        self._join = join
        self.of = cache(self._of)

    def _of(self, orders: Orders) -> tuple[tuple[Step, ...], ...]:
        """By head, its steps. A step's number is its place in all of them."""
        length = len(orders) - 1
        return tuple(
            tuple(
                Step(self._join, head * length + at, head, (head, *order[:at]), order[at], order[at + 1 :]) for at in range(length)
            )
            for head, order in enumerate(orders)
        )
