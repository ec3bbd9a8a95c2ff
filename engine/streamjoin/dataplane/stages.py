"""Paths of stages: how the results of a join are found, of two streams or more (Tran and Lee, section 4; Materialize's delta joins).

The *delta* of a stream, its new tuples, meets the held tuples of a second stream along an edge of the join graph. Of two streams that gives
results. Of more it gives partial results, which go on to meet the tuples of a third stream, and so on. A result belongs to its newest
member; if several members came in this epoch, to that of the last stream among them. So the delta of stream i meets all tuples of streams
before i, held ones and those of this epoch; of streams after i it meets only what was held before. Each result is found once, by the delta
of one stream.

The scheme says where the tuples are held that a stage probes: partial results are routed like tuples of the member by which they find their
partners, and are not held. They go there, or only what finds their partners does, or all that is held there comes to them
(:class:`streamjoin.elastic.distribution.Distribution`). A partial result carries the time of the newest member (``_time``), up to
which time a newer one may be (``_aux``), and of its members what is still to be read. In windows of rows it carries, in place of times, the
position of each member (``_at.NAME``), and from which of each stream's positions on another member may be (``_from.NAME``). A path that
*fetches* leaves out what only the output reads; for that a *reference* to each such member is carried, by which the tuples of complete
results are asked for in the end.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from streamjoin.dataplane.window_filter import WindowFilter, window_filter
from streamjoin.epoch.reports import StageWork
from streamjoin.epoch.spec import units_of
from streamjoin.kernel.index import Indexed
from streamjoin.kernel.joiner import Joiner, Matched, Members, Name, Pairs, column_of
from streamjoin.kernel.keys import encode_keys, key_type, scattered
from streamjoin.kernel.run import KEY, UNIT, Run, sort_order, take
from streamjoin.kernel.types import held_fields
from streamjoin.language.graph import Place
from streamjoin.language.predicate import MainPredicate
from streamjoin.language.schema import Schema
from streamjoin.language.sides import LEFT
from streamjoin.language.sql import Expression, parse_boolean, parse_expression
from streamjoin.language.tree import Reference, conjunction
from streamjoin.language.window import Window, WindowKind
from streamjoin.plan import join_plan as plan
from streamjoin.plan.join_plan import Path
from streamjoin.scheme.routing import Routing

LIES_SO = Indexed(None, None)
"""The tuples lie as they are found."""


@dataclass(frozen=True)
class JoinShape:
    """A join as its stages need it: everything that they are made of, except for their paths."""

    name: str
    places: tuple[Place, ...]
    """Of all joins: where the plan's arrangements lie, in their order."""
    numbers: tuple[int, ...]
    """Its streams, in their order, among all. Here they are counted by this order, and called members once they are joined."""
    streams: tuple[str, ...]
    """Their names."""
    schemas: tuple[Schema, ...]
    window: Window
    where: Expression | None
    output: tuple[tuple[str, Expression], ...]
    indexed: tuple[Indexed, Indexed] = (LIES_SO, LIES_SO)
    """By side, what tuples are found by where they do not lie so."""
    types: Mapping[Name, pa.DataType] = field(default_factory=dict)
    """Of the columns of its streams, where tuples may come alone."""
    marks: int | None = None
    """The stream of whose tuples alone it is asked whether they have partners in all others; None: results are of all."""

    @cached_property
    def by_name(self) -> dict[str, Schema]:
        return dict(zip(self.streams, self.schemas, strict=True))

    def stream_of(self, arrangement: int) -> int:
        """Which of its streams an arrangement is of."""
        return self.numbers.index(self.places[arrangement].stream)

    def order(self, path: Path) -> tuple[int, ...]:
        """Its streams as a path joins them, that of the delta first."""
        return (self.numbers.index(path.stream), *(self.stream_of(stage.arrangement) for stage in path.stages))

    def checks(self, stage: plan.Stage) -> list[Expression]:
        """What is checked on the pairs that a stage's probe finds."""
        return [parse_boolean(text, self.by_name) for text in stage.checks]

    def refers_to(self, member: int) -> bool:
        """Whether results that fetch have references to the stream's tuples."""
        return member == self.marks if self.marks is not None else bool(self.at_end(member))

    def at_end(self, member: int) -> frozenset[Name]:
        """The columns of a stream that are read once a result is complete."""
        conditions = [] if self.where is None else [self.where]
        read = {name for expression in (*conditions, *(each for _, each in self.output)) for name in expression.columns}
        return frozenset(name for name in read if name[0] == self.streams[member])


class Stage:
    """One stage of a path: it extends what was found so far by the tuples of one more stream. It holds no tuples."""

    def __init__(self, join: JoinShape, number: int, path: Path, at: int, *, first_round: int = 0, fed_after: int = 0) -> None:
        """The operator of a plan's stage, the so-manieth of its path. ``first_round``: of the exchange, in which something is sent for it;
        once that of ``fed_after`` is over, all has come that it joins. (Round 0 is that in which new tuples come.)"""
        planned, following, order = path.stages[at], path.stages[at + 1 :], join.order(path)
        members, stream, fetches = order[: at + 1], order[at + 1], path.fetches
        self.number, self.is_last, self.distribution = number, not following, planned.distribution
        self.first_round, self.fed_after = first_round, fed_after
        self.place, self.probing = planned.arrangement, planned.probing
        """Where the tuples lie that are probed, and those that probe."""
        self.side = join.places[self.place].side
        """The side of the scheme on which the tuples that are probed are held."""
        self.takes_new = planned.with_delta
        """Whether what came of the stream in this epoch counts."""
        own, came = tuple(join.streams[member] for member in members), (join.streams[stream],)
        self.members, self.stream = own, came[0]
        self.fetched = tuple(join.streams[member] for member in members if join.refers_to(member)) if fetches else ()
        """The streams to which results of this stage have references."""
        self.gives_results = self.is_last and not self.fetched and join.marks is None
        at_end = {stream} if fetches and self.is_last and join.marks is None else set() if fetches else None
        carried = _carried(join, path, at, at_end=at_end)
        refers = self.fetched
        if fetches and join.refers_to(stream) and (not self.is_last or join.marks is not None):
            refers = (*self.fetched, self.stream)
        self.refers = bool(refers)
        """Whether what it finds has references."""
        self.main, self.window = planned.main, _kernel_window(join.window, members, stream, self.side)
        """By what candidates are found."""
        self.near = window_filter(join.window, join.streams) if join.window.is_multiway else None
        residual = _all_of(join.checks(planned))
        where, output = join.where if self.gives_results else None, join.output if self.gives_results else carried
        self.key_type, self.held_key_type = (key_type(self.main.key(side)) for side in (1 - self.side, self.side))
        read = {name for each in (residual, where, *(each for _, each in output)) if each is not None for name in each.columns}
        columns = join.schemas[stream].columns
        self.columns = held_fields(Schema(tuple(column for column in columns if (self.stream, column.name) in read)))
        """Of the stream's tuples: those that the stage reads, or gives."""
        self.reference = reference_to(self.stream) if self.stream in refers else None
        """The column of references to the stream's tuples that it gives; None: it gives none."""
        self.joiner = StageJoiner(
            self.main,
            window=self.window,
            residual=residual,
            where=where,
            output=output,
            streams=(came, own) if self.side == LEFT else (own, came),
            near=self.near,
            refers=refers,
            gives_results=self.gives_results,
            types=join.types,
            key=(own, self.key_type) if following and _keeps_key(join, planned, following[0]) else None,
        )
        self.indexed = join.indexed[1 - self.side], join.indexed[self.side]
        """What tuples of the delta are found by, and what those that are held."""
        self.schemas = join.schemas[members[0]], join.schemas[stream]
        """Of the delta's stream and of the one that comes now."""
        self.next_probing: int | None = None
        """The place by which what is found goes on."""
        self.schema: pa.Schema | None = None
        """The schema of what is found, as it is sent."""
        if following:
            self.next_probing = following[0].probing
            keyed, self._key = join.stream_of(self.next_probing), join.places[self.next_probing].key
            self._prefix, self._keyed = join.streams[keyed], join.schemas[keyed]
            first = [pa.field(KEY, key_type(self._key)), pa.field(UNIT, pa.uint32())]
            self.schema = pa.schema([*first, *(field for field in self.joiner.batch_schema if field.name != KEY)])

    def join(
        self,
        probing: Run,
        held: Run,
        work: StageWork,
        first: tuple[int, int] = (0, 0),
        matched: Matched | None = None,
        *,
        pairs_wanted: bool = True,
    ) -> Iterator[pa.RecordBatch]:
        """What the probing tuples give with these: results, or partial ones that are yet to be made ``ready``.

        ``work``: where to count it. ``first``: the references of the first rows of both batches, of use where they have no references of
        their own. ``matched``: as of a :class:`Joiner`, by side. Several of these may go on at once.
        """
        sides, references = ((held, probing), first[::-1]) if self.side == LEFT else ((probing, held), first)
        yield from self.joiner.of_runs(*sides, work, references, matched, pairs_wanted=pairs_wanted)

    def join_pairs(self, probing: Rows, held: Rows, work: StageWork) -> Iterator[pa.RecordBatch]:
        """What these pairs of rows give, as ``join`` gives it; the held tuples have references of their own where they need any."""
        yield from self.joiner.of_pairs(*((held, probing) if self.side == LEFT else (probing, held)), work)

    def ready(self, found: Sequence[pa.RecordBatch], salt: int | None) -> pa.RecordBatch:
        """Partial results as they are routed to the next stage: with a key, sorted by it, and a unit coordinate. Those without a key can
        match nothing and are left out. O(n log n). ``salt``: another one for each call of an epoch, for even units; None: nobody asks for
        units, and all are 0."""
        assert self.schema is not None
        batch = pa.Table.from_batches(found).combine_chunks().to_batches()[0]
        columns = batch.columns
        if self.joiner.keeps_key:
            key, valid, columns = columns[0].to_numpy(), None, columns[1:]
        else:
            own = [name for name in batch.schema.names if name.startswith(f"{self._prefix}.")]
            bare = pa.RecordBatch.from_arrays([batch.column(name) for name in own], [name.partition(".")[2] for name in own])
            key, valid = encode_keys(bare, self._key, self._keyed)
        units = np.zeros(batch.num_rows, np.uint32) if salt is None else units_of(scattered(salt, np.arange(batch.num_rows)))
        batch = pa.RecordBatch.from_arrays([pa.array(key), pa.array(units), *columns], schema=self.schema)
        order = sort_order(key) if valid is None or valid.all() else np.flatnonzero(valid)[sort_order(key[valid])]
        return take(batch, pa.array(order))

    def route(self, batch: pa.RecordBatch, routers: Sequence[Routing]) -> Iterator[tuple[int, NDArray[np.int64] | slice]]:
        assert self.next_probing is not None
        yield from routers[self.next_probing].route(batch.column(KEY).to_numpy(), batch.column(UNIT).to_numpy())


Rows = tuple[pa.RecordBatch, NDArray[np.int32]]
"""Rows of a batch."""


class StageJoiner(Joiner):
    """A joiner whose results may be partial: then they have times, which candidates are checked by, and references."""

    def __init__(
        self,
        main: MainPredicate,
        *,
        window: Window,
        residual: Expression | None,
        where: Expression | None,
        output: Sequence[tuple[str, Expression]],
        streams: tuple[Members, Members],
        near: WindowFilter | None,
        refers: tuple[str, ...],
        gives_results: bool,
        types: Mapping[Name, pa.DataType],
        key: tuple[Members, pa.DataType] | None,
    ) -> None:
        """``key``: whose key results go on by, and its type; None: it is another one, if there is any."""
        super().__init__(main, window, residual, where, output or [NOTHING], streams, types=types)
        self._near, self._refers, self._gives_results, self._key = near, refers, gives_results, key
        self._checked = near if near is not None and near.is_checked(streams) else None
        """By what pairs are checked, where the kernel's window does not say it all."""
        self._met = 0
        """Pairs so far that the main predicate and the window admit."""
        self._first_references = 0, 0
        """By side, of the first row of the batch."""
        times = [] if near is None else [pa.field(name, pa.int64()) for name in near.columns(sorted({*streams[0], *streams[1]}))]
        references = [pa.field(reference_to(stream), pa.int64()) for stream in refers]
        keys = [] if key is None else [pa.field(KEY, key[1])]
        self.batch_schema = self.output_schema if gives_results else pa.schema([*keys, *times, *references, *self.output_schema])

    @property
    def keeps_key(self) -> bool:
        """Whether results have the key by which they go on, as their first column."""
        return self._key is not None

    @contextmanager
    def _counting(self, work: StageWork) -> Iterator[StageJoiner]:
        """A joiner for one call, as several may go on at once, whose pairs are counted in the end."""
        one = copy(self)
        one._met = one.candidates_seen = 0
        try:
            yield one
        finally:
            work.admitted += one.candidates_seen
            work.met += one._met

    def of_runs(
        self, left: Run, right: Run, work: StageWork, first_references: tuple[int, int], matched: Matched | None, *, pairs_wanted: bool
    ) -> Iterator[pa.RecordBatch]:
        """What these runs give, as ``Stage.join`` gives it."""
        with self._counting(work) as one:
            one._first_references = first_references
            if one._checked is not None and one._checked.is_plain(self._streams, (left, right)):
                one._checked = None
            yield from one.join(left, right, matched, pairs_wanted=pairs_wanted)

    def of_pairs(self, left: Rows, right: Rows, work: StageWork) -> Iterator[pa.RecordBatch]:
        """What these pairs of rows give, in batches. O(pairs)."""
        with self._counting(work) as one:
            for start in range(0, len(left[1]), self._chunk_pairs):
                sides = [(batch, rows[start : start + self._chunk_pairs]) for batch, rows in (left, right)]
                for portion in self._portions(Pairs(dict(zip(self._streams, sides, strict=True)), len(sides[0][1]))):
                    pairs = one.admitted(portion)
                    if self._where is not None and pairs.count:
                        pairs = pairs.where(self._where)
                    if pairs.count:
                        yield one.batch(pairs)

    def admitted(self, pairs: Pairs) -> Pairs:
        if self._checked is not None and pairs.count:
            inside = self._checked.holds(pairs)
            if len(inside) < pairs.count:
                pairs = pairs.chosen(inside)
        self._met += pairs.count
        return super().admitted(pairs)

    def batch(self, pairs: Pairs) -> pa.RecordBatch:
        results = super().batch(pairs)
        if self._gives_results:
            return results
        carried: list[NDArray[Any]] = [] if self._near is None else self._near.carried(pairs)
        carried += [self._references(pairs, stream) for stream in self._refers]
        if self._key is not None:
            batch, rows = pairs.sides[self._key[0]]
            carried.insert(0, batch.column(KEY).to_numpy()[rows])
        found = [pa.array(values) for values in carried]
        return pa.RecordBatch.from_arrays([*found, *results.columns], schema=self.batch_schema)

    def _references(self, pairs: Pairs, stream: str) -> NDArray[np.int64]:
        """To the members of this stream."""
        for first, (streams, (batch, rows)) in zip(self._first_references, pairs.sides.items(), strict=True):
            if stream in streams:
                if len(streams) == 1 and reference_to(stream) not in batch.schema.names:
                    return rows.astype(np.int64) + first
                found: NDArray[np.int64] = batch.column(reference_to(stream)).to_numpy()[rows]
                return found
        raise AssertionError(f"{stream} is no member")


NOTHING = ("nothing", parse_expression("1", {}))
"""For a stage whose results carry no columns."""


def _kernel_window(window: Window, members: Sequence[int], stream: int, side: int) -> Window:
    """By what the probe finds pairs: exact for a delta; for partial results, whose time is that of their newest, a little wide."""
    if not window.is_multiway:
        return window
    if window.kind is not WindowKind.RANGE:
        return Window(WindowKind.UNBOUNDED)  # of rows, which of two records is the later depends on their streams
    of_members = max(window.each[member] for member in members)
    spans = (window.each[stream], of_members) if side == LEFT else (of_members, window.each[stream])
    return Window.of_each(spans)


def _all_of(conditions: Sequence[Expression]) -> Expression | None:
    return Expression.of(conjunction([each.tree for each in conditions])) if conditions else None


def reference_to(stream: str) -> str:
    """The column of references to tuples of a stream."""
    return f"_reference.{stream}"


def _keeps_key(join: JoinShape, stage: plan.Stage, after: plan.Stage) -> bool:
    """Whether what probed in this stage has the key by which results go on to the one after: the same key, or an equal one."""
    is_equal = stage.main.is_equality and not stage.main.slack
    is_kept = after.probing == stage.probing or (after.probing == stage.arrangement and is_equal)
    return is_kept and join.places[after.probing].key is not None


def _carried(join: JoinShape, path: Path, at: int, at_end: set[int] | None) -> list[tuple[str, Expression]]:
    """The columns of the streams joined by this stage that later stages read, and of ``at_end`` (None: of all) those that the output
    reads."""
    done = join.order(path)[: at + 2]
    read: set[Name] = {name for member in (done if at_end is None else at_end) for name in join.at_end(member)}
    for before, after in pairwise(path.stages[at:]):
        for condition in join.checks(after):
            read |= condition.columns
        key, keyed = join.places[after.probing].key, join.stream_of(after.probing)
        if key is not None and not _keeps_key(join, before, after):
            for sql in key.sql:
                read |= parse_expression(sql, {join.streams[keyed]: join.schemas[keyed]}).columns
    return [
        (column_of(("", ""), (own, column.name)), Expression.of(Reference(own, column.name, column.type)))
        for member, own in enumerate(join.streams)
        if member in done
        for column in join.schemas[member]
        if (own, column.name) in read
    ]
