"""A stream by its name: the tuples of it that the join held after a commit, each once.

The tuples of a place are in its blocks, each in one of them; those that the committed epoch has let go are left out by ``_time``, as blocks
go only as a whole. Of several places, in which a stream lies by several keys for one join, one is read: that by which the query has to read
least. On key spaces of several joins a tuple is only where it has the keys, and for as long as that join's window holds it: then what the
first key space does not have is sought on the next.

A block is sorted by key, whole or in parts, so that a range of keys is a slice of it that costs two binary searches. On this machine blocks
are mapped, and what is not looked at is not read; from elsewhere those parts are fetched in which such keys can be.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from streamjoin.kernel.keys import encode_keys, key_type
from streamjoin.kernel.types import arrow_schema
from streamjoin.language.ddl import SHOWN
from streamjoin.language.graph import Place
from streamjoin.language.key_spaces import KeySpaces
from streamjoin.language.schema import held_name
from streamjoin.language.sql import parse_expression
from streamjoin.language.window import Ends, WindowKind
from streamjoin.query.bounds import Range, direct_ranges, key_ranges
from streamjoin.query.catalog import Catalog, StreamOf
from streamjoin.query.errors import QueryError, Why
from streamjoin.query.relation import Rows, Wanted
from streamjoin.scheme.models import HANDSHAKE
from streamjoin.scheme.region import Region
from streamjoin.scheme.tiling import KeyRange, UnitRange
from streamjoin.state.blocks import DOWNLOADS, FOLDER, Block, Excerpt, map_scratch, read_parts
from streamjoin.state.checkpoint import Checkpoint
from streamjoin.state.chunks import narrowed
from streamjoin.state.storage import Storage

KEY, TIME = "_key", "_time"
MOMENT = pa.timestamp("us", "UTC")
MUCH = 0.01
"""Of a block of which a query needs more, its columns are read ahead from end to end."""
SCRATCH_BYTES = 16 << 20
"""Once so much was fetched, it goes to mapped pages of a scratch file."""


def held_streams(catalog: Catalog, checkpoint: Checkpoint, storage: Storage) -> list[HeldStream]:
    """All streams of a join as relations. Raises QueryError where the checkpoint is another join's."""
    lying = catalog.lying(checkpoint)
    return [HeldStream(catalog, number, lying, checkpoint, storage) for number in range(len(catalog.streams))]


@dataclass(frozen=True)
class _Chosen:
    """Blocks of one place, and what of them is to be read."""

    place: int
    ranges: list[Range] | None
    blocks: list[Block]
    others: tuple[_Holding, ...] = ()
    """Only tuples that are not in any of these."""
    bound: int | None = None
    """Of those, what is before it has expired, though it has not in the other places."""

    @property
    def estimate(self) -> float:
        """Bytes to be read, keys taken to lie evenly."""
        return sum(block.nbytes * _share(block, self.ranges) for block in self.blocks)


@dataclass(frozen=True)
class _Piece:
    """What is read of one block."""

    chosen: _Chosen
    excerpt: Excerpt


@dataclass(frozen=True)
class _Holding:
    """Places that all hold the same tuples of a stream: those with a key in each, which came since it began, and have not expired."""

    places: tuple[tuple[int, Place], ...]
    """With their numbers."""
    born: int
    bound: float
    """Tuples of before have expired."""

    def has_all_of(self, other: _Holding) -> bool:
        """Whether it has every tuple that the other one has."""
        keys, others = ({place.key for _, place in each.places if place.key is not None} for each in (self, other))
        return self.born <= other.born and self.bound <= other.bound and keys <= others


def _holdings(lying: KeySpaces, stream: int, expired: Ends) -> tuple[_Holding, ...]:
    """The holdings of a stream in the order in which they began, of those that began together first what holds tuples longest; without
    those all of whose tuples are in one before. So each tuple is in the first of them that it could be in."""
    found: list[_Holding] = []
    for group, born in lying.groups.items():
        own = tuple((number, lying.places[number]) for number in group if lying.places[number].stream == stream)
        if own:
            bound = expired[own[0][0]]
            found.append(_Holding(own, born, -math.inf if bound is None else bound))
    found.sort(key=lambda each: (each.born, each.bound, len(each.places)))
    return tuple(each for number, each in enumerate(found) if not any(other.has_all_of(each) for other in found[:number]))


class HeldStream:
    """See the module. A relation."""

    def __init__(self, catalog: Catalog, number: int, lying: KeySpaces, checkpoint: Checkpoint, storage: Storage) -> None:
        self._stream: StreamOf = catalog.streams[number]
        self._time, self._checkpoint, self._storage = catalog.time, checkpoint, storage
        # Workers of a chain may have parts of a block.
        self._is_chain = checkpoint.plan.scheme is not None and checkpoint.plan.scheme["model"] == HANDSHAKE
        self._holdings = _holdings(lying, number, checkpoint.state.expired)
        self._places = self._holdings[0].places
        self._may_lack_keys = len(self._holdings) > 1
        best = self._holdings[0].born, min(each.bound for each in self._holdings)
        whole = [each for each in self._holdings if (each.born, each.bound) == best]
        if self._may_lack_keys:  # where a tuple with the key that is asked for is, whatever else it has
            whole = [each for each in whole if len(each.places) == 1]
        self._whole = [held for each in whole for held in each.places]

    @property
    def name(self) -> str:
        return self._stream.name

    @cached_property
    def schema(self) -> pa.Schema:
        """The payload, then ``_time`` where there is a window, and ``_key`` of the first place."""
        fields = list(arrow_schema(self._stream.schema.select(self._stream.selected)))
        if self._time is not WindowKind.UNBOUNDED:
            fields.append(pa.field(TIME, MOMENT if self._time is WindowKind.RANGE else pa.int64()))
        return pa.schema([*fields, pa.field(KEY, key_type(self._places[0][1].key))])

    def read(self, wanted: Wanted, room: int, check: Callable[[], None]) -> Rows:
        """As :meth:`streamjoin.query.relation.Relation.read`. O(blocks + what is read)."""
        chosen = self._chosen(wanted)
        bounds = [self._checkpoint.state.expired[each.place] for each in chosen]
        known = [bound for bound in bounds if bound is not None]
        bound = min(known) if known and len(known) == len(bounds) else None
        chosen = [each if own == bound else replace(each, bound=own) for each, own in zip(chosen, bounds, strict=True)]
        is_mixed = any(_expires(block, bound) for each in chosen for block in each.blocks)
        columns = list(dict.fromkeys([*wanted.columns, *([TIME] if is_mixed else [])]))
        schema = pa.schema([self.schema.field(name) for name in columns])
        pieces = list(self._pieces(chosen))
        is_here = self._storage.local_path(FOLDER) is not None
        fetched = 0 if is_here else sum(piece.excerpt.nbytes for piece in pieces)
        if fetched > room:
            raise QueryError(
                Why.LARGE, f"{self.name}: the query fetches {fetched:,} bytes and may fetch {room:,}; ask for fewer keys, or allow more"
            )
        batches, rows, nbytes = list[pa.RecordBatch](), 0, fetched
        for parts in self._loaded(pieces, schema, check, is_here=is_here):
            rows += sum(part.num_rows for part in parts)
            nbytes += sum(part.nbytes for part in parts) if is_here else 0
            batches += parts if columns else []
        if not columns:  # a table without columns does not say how many rows it has
            schema = pa.schema([pa.field(KEY, pa.int8())])
            batches = [pa.RecordBatch.from_arrays([pa.nulls(rows, pa.int8())], schema=schema)]
        places = {each.place for each in chosen}
        of_places = [block for block in self._checkpoint.state.blocks if block.place in places]
        return Rows(
            pa.Table.from_batches(batches, schema),
            None if not is_mixed or bound is None else f'"{TIME}" >= {self._literal(bound)}',
            len(pieces),
            len(of_places),
            nbytes,
            sum(block.nbytes for block in of_places),
        )

    def _literal(self, time: int) -> str:
        return f"make_timestamptz({time})" if self._time is WindowKind.RANGE else str(time)

    def _chosen(self, wanted: Wanted) -> list[_Chosen]:
        """Which places to read, and what of each."""
        of_key = direct_ranges(KEY, wanted.anyof)
        times = self._times(wanted)
        alone = self._whole[:1] if KEY in wanted.columns else self._whole
        found = []
        for index, place in alone:
            ranges = key_ranges(place.key, self._stream.schema, wanted.anyof, points_only=self._may_lack_keys)
            if ranges is None and index == self._places[0][0]:
                ranges = of_key
            if ranges is not None or not self._may_lack_keys:
                found.append(_Chosen(index, ranges, self._blocks(index, ranges, times)))
        if found:
            return [min(found, key=lambda each: each.estimate)]
        self._require_key_columns()
        firsts = [each.places[0][0] for each in self._holdings]
        return [
            _Chosen(index, None, self._blocks(index, None, times), tuple(self._holdings[:number])) for number, index in enumerate(firsts)
        ]

    def _require_key_columns(self) -> None:
        for place in (place for each in self._holdings[:-1] for _, place in each.places):
            missing = _columns_of(place, self._stream) - set(self._stream.selected)
            if missing:
                raise QueryError(
                    Why.WRONG,
                    f"{self.name}: its tuples are held by several keys; to give each once takes {', '.join(sorted(missing))}, which held"
                    " tuples do not carry; ask with an equality on one of its keys",
                )

    def _times(self, wanted: Wanted) -> Range:
        """Between which times tuples can be of use."""
        if self._time is WindowKind.UNBOUNDED:
            return None, None
        names = [TIME, *([self._stream.event_time] if self._time is WindowKind.RANGE and self._stream.event_time else [])]
        low: float = -math.inf
        high: float = math.inf
        for name in names:
            ranges = direct_ranges(name, wanted.anyof)
            if ranges:
                low = max(low, -math.inf if ranges[0][0] is None else ranges[0][0])
                high = min(high, math.inf if ranges[-1][1] is None else ranges[-1][1])
        return low, high

    def _blocks(self, place: int, ranges: list[Range] | None, times: Range) -> list[Block]:
        low, high = times
        bound = self._checkpoint.state.expired[place]
        found = []
        for block in self._checkpoint.state.blocks:
            if block.place != place or (ranges is not None and not _meets(block, ranges)):
                continue
            if block.time_min is not None and block.time_max is not None:
                if (bound is not None and block.time_max < bound) or (low is not None and block.time_max < low):
                    continue
                if high is not None and block.time_min > high:
                    continue
            found.append(block)
        return found

    def _pieces(self, chosen: Sequence[_Chosen]) -> Iterator[_Piece]:
        for each in chosen:
            wanted = [KeyRange()] if each.ranges is None else [_key_range(keys) for keys in each.ranges]
            for block in each.blocks:
                excerpt = block.excerpt(Region(block.place, keys, UnitRange()) for keys in wanted)
                if excerpt is not None:
                    yield _Piece(each, excerpt)

    def _loaded(
        self, pieces: Sequence[_Piece], schema: pa.Schema, check: Callable[[], None], *, is_here: bool
    ) -> Iterator[list[pa.RecordBatch]]:
        """The tuples of each, with these columns. Memory: ``DOWNLOADS`` blocks and ``SCRATCH_BYTES``, if they have to be fetched."""
        if is_here:
            for piece in pieces:
                check()
                yield self._parts(piece, schema)
            return
        pending, pending_bytes = list[pa.RecordBatch](), 0
        with ThreadPoolExecutor(DOWNLOADS) as pool:
            for first in range(0, len(pieces), DOWNLOADS):
                check()
                some = pieces[first : first + DOWNLOADS]
                for parts in pool.map(lambda piece: self._parts(piece, schema), some):
                    pending += parts
                pending_bytes += sum(piece.excerpt.nbytes for piece in some)
                if pending_bytes > SCRATCH_BYTES and pending and len(schema):
                    pending, pending_bytes = [map_scratch(pa.concat_batches(pending))], 0
                    yield pending
                    pending = []
        yield pending

    def _parts(self, piece: _Piece, schema: pa.Schema) -> list[pa.RecordBatch]:
        """The tuples of a block in the chosen ranges."""
        ranges = piece.chosen.ranges
        is_much = _share(piece.excerpt.block, ranges) > MUCH
        found = read_parts(self._storage, piece.excerpt, [_held(name) for name in schema.names] if is_much else ())
        if ranges is not None:
            slices = [(batch, *ends) for batch in found for ends in _slices(batch.column(KEY).to_numpy(), ranges)]
            found = [batch.slice(start, end - start) for batch, start, end in slices]
        if self._is_chain:
            found = [narrowed(batch, piece.excerpt.block) for batch in found]
        return [self._shown(batch, piece.chosen, schema) for batch in found]

    def _shown(self, batch: pa.RecordBatch, chosen: _Chosen, schema: pa.Schema) -> pa.RecordBatch:
        """A part of a block as the relation shows it."""
        if chosen.bound is not None:
            batch = batch.filter(pc.greater_equal(batch.column(TIME), chosen.bound))
        for other in chosen.others if batch.num_rows else ():
            batch = batch.filter(pa.array(~self._are_in(batch, other)))
        if not len(schema):
            return batch.select([])
        arrays = []
        for name in schema.names:
            if name == KEY and chosen.others:
                arrays.append(pa.nulls(batch.num_rows, schema.field(KEY).type))
            else:
                array = _column(batch, schema.field(name))
                arrays.append(array.view(MOMENT) if name == TIME and self._time is WindowKind.RANGE else array)
        return pa.RecordBatch.from_arrays(arrays, schema=schema)

    def _are_in(self, batch: pa.RecordBatch, holding: _Holding) -> np.ndarray:
        """By row, whether the tuple, which came after the holding had begun, is in it: with all keys, and not expired there."""
        found = np.ones(batch.num_rows, dtype=bool)
        for _, place in holding.places:
            if place.key is not None:
                _, valid = encode_keys(batch, place.key, self._stream.schema)
                found &= True if valid is None else valid
        if holding.bound > -math.inf:
            found &= batch.column(TIME).to_numpy() >= holding.bound
        return found


def _column(batch: pa.RecordBatch, field: pa.Field) -> pa.Array:
    """A column of a block, null where that was written for joins that did not need it."""
    name = _held(field.name)
    return batch.column(name) if name in batch.schema.names else pa.nulls(batch.num_rows, field.type)


def _held(name: str) -> str:
    """How blocks call a column of the relation."""
    return name if name in SHOWN else held_name(name)


def _columns_of(place: Place, stream: StreamOf) -> set[str]:
    """The columns that a place's key reads."""
    expressions = () if place.key is None else place.key.sql
    return {name for sql in expressions for _, name in parse_expression(sql, {stream.name: stream.schema}).columns}


def _expires(block: Block, bound: int | None) -> bool:
    """Whether some of its tuples were let go by the committed epoch."""
    return bound is not None and block.time_min is not None and block.time_min < bound


def _meets(block: Block, ranges: Sequence[Range]) -> bool:
    return any((low is None or block.key_max >= low) and (high is None or block.key_min <= high) for low, high in ranges)


def _share(block: Block, ranges: Sequence[Range] | None) -> float:
    """About which part of a block's tuples has such keys."""
    if ranges is None:
        return 1.0
    width = float(block.key_max) - float(block.key_min) + 1
    within = 1.0
    for low, high in ranges:
        begin = float(block.key_min if low is None else max(low, block.key_min))
        end = float(block.key_max if high is None else min(high, block.key_max))
        within += max(0.0, end - begin)
    return min(1.0, within / width) if math.isfinite(width) else 1.0


def _key_range(keys: Range) -> KeyRange:
    """The same as the blocks' parts say it, their upper ends excluded."""
    low, high = keys
    if high is None or isinstance(high, int):
        return KeyRange(low, None if high is None else high + 1)
    return KeyRange(low, None if high == math.inf else math.nextafter(high, math.inf))


def _slices(key: np.ndarray, ranges: Sequence[Range]) -> Iterator[tuple[int, int]]:
    """Where in ascending keys the ranges lie, those left out in which there are none. O(ranges log keys)."""
    for low, high in ranges:
        start = 0 if low is None else int(np.searchsorted(key, low, side="left"))
        end = len(key) if high is None else int(np.searchsorted(key, high, side="right"))
        if start < end:
            yield start, end
