"""Tuple blocks: Arrow IPC files of held tuples, sorted by key, and what the commit log records of each.

Always holds: a block is written once under a fresh name and never changed; nobody reads it before a commit names it. However many areas
replicate a tuple, one block holds it (A-DSP, Alg. 5: the first row and the first column write).

Files are uncompressed so that a mapped file is the run: columns are views of the page cache, which the kernel of the operating system
shares among processes and takes back under pressure. That is how state larger than memory works.

On a file system a block is one record batch, which is mapped where it lies. In an object store a larger block is several, its *parts*,
each sorted by key and readable by itself: a worker that needs a range of keys or of unit coordinates fetches the parts that meet it.
What is fetched has to be copied to a local file anyway, so it costs little to make one sorted run of it there.

A small block is no file of its own but an *extent* of the log entry that committed it: it travels to the driver with its task's report.

The log's record of a block has a checksum of each of its parts, and what is read back is compared with it: a block that a disk has changed,
or somebody, is an error that names it, rather than wrong results. Queries, which look at a few pages of a mapped block, do not compare.
"""

from __future__ import annotations

import base64
import math
import os
import tempfile
import zlib
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import accumulate, pairwise
from operator import attrgetter
from typing import IO, Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import ipc

from streamjoin.kernel.run import sort_run, take
from streamjoin.language.predicate import MainKind, MainPredicate
from streamjoin.language.sides import SIDES
from streamjoin.language.window import Ends
from streamjoin.scheme.models import HANDSHAKE, KEYED
from streamjoin.scheme.region import Region, high_of, low_of
from streamjoin.scheme.tiling import UNITS, KeyRange, Scheme, UnitRange
from streamjoin.state.extent import Extent, map_extent, map_sparsely
from streamjoin.state.storage import Missing, Storage, StorageError

DOWNLOADS = 8
"""The number of blocks that are fetched at once from an object store, where one connection gives a fraction of the bandwidth."""

WHOLE_BYTES = 16 << 10
"""A smaller block is one part."""
ROOT_BYTES = 128
"""A block of n * n times so many bytes has n parts along one axis. About so many cost least: 300 bytes of each are Arrow's own, and of a
range that moves, each end costs half a part."""
MOST_PARTS = 64
CELL_BYTES = 4 << 10
"""Size of the parts of a block that is cut along both axes, on average and at least."""
MOST_PARTS_AN_AXIS = 16
"""Of such a block."""
UNITS_ONLY = ("square", "dynamic", "broadcast")
"""Models that cut no keys, whatever the predicate."""
CUT_BITS = 16
"""Unit coordinates are cut at multiples of 2 ** 16, which the log writes in few digits."""
UNIT_SAMPLES = 4096
"""The number of a block's unit coordinates that decide where it is cut."""
HEAD_BYTES = 8
"""Before the schema in an Arrow file."""
FOLDER = "blocks"
"""Where the files are."""

Item = TypeVar("Item")


def name_of(stem: str, *, small: bool) -> str:
    """The name of a block whose content goes into a log entry if it is ``small``, else into a file."""
    return f"small/{stem}" if small else f"{FOLDER}/{stem}.arrow"


def is_file(name: str) -> bool:
    """Whether a block of this name is a file, rather than an extent of a log entry."""
    return name.startswith(FOLDER + "/")


@dataclass(frozen=True, slots=True)
class Parts:
    """Where the parts of a block file lie: a grid of key ranges x unit ranges, one range of keys after the other."""

    key_cuts: tuple[int | float, ...]
    """Ascending. Part (i, j) has the keys from ``key_cuts[i - 1]`` up to below ``key_cuts[i]``; the outer ranges are open."""
    unit_cuts: tuple[int, ...]
    """The same of unit coordinates, by j."""
    ends: tuple[int, ...]
    """Bytes of the file: where the first part begins, then where each ends. A part without tuples has no bytes."""

    def span(self, number: int) -> tuple[int, int]:
        """The bytes [start, end) of a part in the file."""
        return self.ends[number], self.ends[number + 1]

    def meeting(self, regions: Iterable[Region]) -> tuple[int, ...]:
        """The numbers of the parts in which tuples of these regions may lie, ascending. O(regions * parts)."""
        columns, found = len(self.unit_cuts) + 1, set[int]()
        for region in regions:
            rows = _between(self.key_cuts, region.keys.low, region.keys.high)
            found.update(row * columns + column for row in rows for column in _between(self.unit_cuts, region.units.low, region.units.high))
        return tuple(sorted(number for number in found if self.ends[number] < self.ends[number + 1]))

    def to_json(self) -> list[Any]:
        sizes = [self.ends[0], *(end - start for start, end in pairwise(self.ends))]
        return [list(self.key_cuts), [cut >> CUT_BITS for cut in self.unit_cuts], sizes]

    @classmethod
    def from_json(cls, values: list[Any]) -> Parts:
        key_cuts, unit_cuts, sizes = values
        return cls(tuple(key_cuts), tuple(cut << CUT_BITS for cut in unit_cuts), tuple(accumulate(sizes)))


def _between(cuts: Sequence[int | float], low: int | float | None, high: int | float | None) -> range:
    """The numbers of the ranges between cuts that [low, high) meets."""
    return range(0 if low is None else bisect_right(cuts, low), (len(cuts) if high is None else bisect_left(cuts, high)) + 1)


@dataclass(frozen=True, slots=True)
class Block:
    """One durable block, as the commit log names it. Ranges are closed and tight; ``time_*`` are None where tuples carry no time."""

    name: str
    """Its file's path; of one without a file only a name that no other has."""
    place: int
    generation: int
    """Of the plan whose area ``area`` wrote it: that area's own tuples, and all of them, of some epochs. 0: a rewrite of others'."""
    area: int
    rows: int
    nbytes: int
    key_min: int | float
    key_max: int | float
    unit_min: int
    """Of a chain (``handshake``) this and the next are positions in the stream, and say what of the block is meant: workers may have
    parts of it, each by a record of its own, whose other ranges are those of the whole (:mod:`streamjoin.state.chunks`)."""
    unit_max: int
    time_min: int | None
    time_max: int | None
    parts: Parts | None = None
    """None: it is read as a whole."""
    extent: Extent | None = None
    """Where it lies, if not in a file of its own."""
    join: str = ""
    """Of marks, the join by which tuples have matched. Empty: the only one."""
    checks: tuple[int, ...] = ()
    """CRC-32 of each of its stretches (:func:`stretches`). Empty: they are not compared."""

    def to_json(self) -> list[Any]:
        *values, parts, extent, join, checks = _VALUES(self)
        written = base64.b64encode(np.array(checks, "<u4").tobytes()).decode() if checks else None
        more = [None if parts is None else parts.to_json(), None if extent is None else extent.to_json(), join or None, written]
        while more and more[-1] is None:
            more.pop()
        return [*values, *more]

    def __reduce__(self) -> tuple[type[Block], tuple[Any, ...]]:
        """What dataclasses with slots do for themselves takes twice as long, and every report has blocks."""
        return Block, _VALUES(self)

    @classmethod
    def from_json(cls, values: list[Any]) -> Block:
        count = len(cls.__slots__) - 4
        parts, extent, join, written = (*values[count:], None, None, None, None)[:4]
        checks = tuple(np.frombuffer(base64.b64decode(written or ""), "<u4").tolist())
        return cls(*[*values[:count], parts and Parts.from_json(parts), extent and Extent(*extent), join or "", checks])

    def is_expired(self, expired_before: Ends) -> bool:
        """Whether all of its tuples are older than the bound of its place (None: nothing expires)."""
        bound = expired_before[self.place]
        return bound is not None and self.time_max is not None and self.time_max < bound

    def meets(self, region: Region) -> bool:
        """Whether some of the block's tuples may lie in the region. O(1)."""
        keys, units = region.keys, region.units
        return (
            self.place == region.side
            and (keys.low is None or self.key_max >= keys.low)
            and (keys.high is None or self.key_min < keys.high)
            and self.unit_max >= units.low
            and self.unit_min < units.high
        )

    def excerpt(self, regions: Iterable[Region]) -> Excerpt | None:
        """The least that can be read of the block and has all its tuples of these regions; None: it has none."""
        met = [region for region in regions if self.meets(region)]
        numbers = () if not met else (0,) if self.parts is None else self.parts.meeting(met)
        return Excerpt(self, numbers) if numbers else None


_VALUES = attrgetter(*Block.__slots__)


def stretches(nbytes: int, parts: Parts | None) -> list[tuple[int, int]]:
    """What of a block is checked by itself, as bytes [start, end): what is before the parts, each part, and what is behind; or all."""
    return list(pairwise([0, *((nbytes,) if parts is None else (*parts.ends, nbytes))]))


def checks_of(data: pa.Buffer, parts: Parts | None = None) -> tuple[int, ...]:
    """The checksums of a block's bytes. O(bytes), 4 GB/s."""
    view = memoryview(data)
    return tuple(zlib.crc32(view[start:end]) for start, end in stretches(len(view), parts))


def require_unchanged(storage: Storage, block: Block, found: Iterable[tuple[int, memoryview | pa.Buffer]]) -> None:
    """Raises StorageError where one of these stretches, each with its number, has not the bytes that were written. O(bytes)."""
    if not block.checks:
        return
    whole = stretches(block.nbytes, block.parts)
    for number, data in found:
        if zlib.crc32(memoryview(data)) != block.checks[number]:
            start, end = whole[number]
            raise _unreadable(storage, block, ValueError(f"its bytes {start} to {end} are not those that were written"))


@dataclass(frozen=True, slots=True)
class Excerpt:
    """Some parts of a block; the one of a block without parts is the whole."""

    block: Block
    parts: tuple[int, ...]
    """Ascending, none of them empty."""

    @property
    def nbytes(self) -> int:
        """The bytes to be read: those of the parts and, of a block with parts, of its schema."""
        parts = self.block.parts
        return self.block.nbytes if parts is None else parts.ends[0] + sum(end - start for start, end in map(parts.span, self.parts))

    def covers(self, other: Excerpt) -> bool:
        """Whether all of the other is in it."""
        return self.block == other.block and set(self.parts) >= set(other.parts)


@dataclass(frozen=True, slots=True)
class Axes:
    """Along what a block is cut into parts."""

    keys: bool
    units: bool


def axes_of(scheme: Scheme, main: MainPredicate) -> tuple[Axes, ...]:
    """Per area, along what the plan after this one is likely to cut what it stores. O(areas * log areas).

    A guess, on which only the bytes read at a change of plans depend. A scheme goes on to cut along what it cuts along now. One that cuts
    along keys comes to cut along units as well where many tuples have to be replicated: in a condition that is open to one side, and in a
    band that is so wide that three coverage areas hold the same keys. One of a single area may come to cut along anything.
    """
    areas = scheme.areas
    if scheme.model == HANDSHAKE:  # no plan cuts it along anything; queries ask for keys
        return (Axes(keys=True, units=False),) * len(areas)
    if main.kind is not MainKind.RANGE or scheme.model in UNITS_ONLY:
        return (Axes(keys=False, units=True),) * len(areas)
    if len(areas) == 1:
        return (Axes(keys=True, units=not main.is_equality or scheme.model == "biclique"),)
    if scheme.model in KEYED and all(units == UnitRange() for area in areas for units in area.units):
        return (Axes(keys=True, units=False),) * len(areas)
    both = (
        (main.low is None or main.high is None)
        or any(units != UnitRange() for area in areas for units in area.units)
        or any(_three_meet({area.keys[side] for area in areas}) for side in SIDES)
    )
    keyed = (any(keys != KeyRange() for keys in area.keys) for area in areas)
    return tuple(Axes(keys, both or not keys) for keys in keyed)


def _three_meet(ranges: Iterable[KeyRange]) -> bool:
    """Whether three ranges in a row hold some keys in common, ranges as of a band: none lies inside another."""
    ascending = sorted(ranges, key=lambda keys: (low_of(keys), high_of(keys)))
    return any(low_of(third) < high_of(first) for first, third in zip(ascending, ascending[2:], strict=False))


def encode(batch: pa.RecordBatch) -> pa.Buffer:
    """The bytes of a block file of one part. Memory: one copy of the batch."""
    sink = pa.BufferOutputStream()
    with ipc.new_file(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return sink.getvalue()


def encode_in_parts(batch: pa.RecordBatch, axes: Axes | None) -> tuple[pa.Buffer, Parts | None]:
    """The bytes of a block file of a sorted batch, and where its parts lie; None: it is one, as it is too small for two or has no axes.

    O(rows). Memory: two copies of the batch.
    """
    if axes is None or batch.nbytes < WHOLE_BYTES:
        return encode(batch), None
    if axes.keys and axes.units:
        an_axis = min(MOST_PARTS_AN_AXIS, math.isqrt(batch.nbytes // CELL_BYTES))
    else:
        an_axis = min(MOST_PARTS, math.isqrt(batch.nbytes // ROOT_BYTES))
    key, unit = batch.column("_key").to_numpy(), batch.column("_unit").to_numpy()
    key_cuts = _cuts(key, an_axis) if axes.keys else key[:0]
    # Places that cut a sample evenly cut all of it evenly enough.
    unit_cuts = _cuts(np.sort(unit[:: -(-len(unit) // UNIT_SAMPLES)] >> CUT_BITS), an_axis) if axes.units else unit[:0]
    columns = len(unit_cuts) + 1
    count = (len(key_cuts) + 1) * columns
    if count == 1:
        return encode(batch), None
    ends = np.concatenate([[0], np.searchsorted(key, key_cuts), [len(key)]])
    rows_of_parts = np.diff(ends)
    if columns > 1:
        column = np.searchsorted(unit_cuts, np.arange(UNITS >> CUT_BITS), side="right").astype(np.uint16)[unit >> CUT_BITS]
        part = np.repeat(np.arange(len(ends) - 1, dtype=np.uint16) * np.uint16(columns), rows_of_parts) + column
        batch = take(batch, pa.array(np.argsort(part, kind="stable")))
        rows_of_parts = np.bincount(part, minlength=count)
    sink, sizes, first = pa.BufferOutputStream(), list[int](), 0
    with ipc.new_file(sink, batch.schema) as writer:
        for rows in rows_of_parts.tolist():
            one = batch.slice(first, rows)
            if rows:
                writer.write_batch(one)
            sizes.append(ipc.get_record_batch_size(one) if rows else 0)
            first += rows
        head = sink.tell() - sum(sizes)
    units = tuple(cut << CUT_BITS for cut in unit_cuts.tolist())
    return sink.getvalue(), Parts(tuple(key_cuts.tolist()), units, tuple(accumulate([head, *sizes])))


def _cuts(values: np.ndarray, parts: int) -> np.ndarray:
    """Ascending values that cut these, which are sorted, into at most so many even parts, without cutting inside a value."""
    if parts < 2:
        return values[:0]
    cuts: np.ndarray = np.unique(values[np.arange(1, parts) * len(values) // parts])
    return cuts[1:] if cuts[0] == values[0] else cuts


def describe(
    batch: pa.RecordBatch,
    *,
    name: str,
    place: int,
    generation: int,
    area: int,
    nbytes: int,
    parts: Parts | None = None,
    checks: tuple[int, ...] = (),
) -> Block:
    """The log's record of a non-empty block. O(rows)."""
    unit = pc.min_max(batch.column("_unit")).as_py()
    time = pc.min_max(batch.column("_time")).as_py() if "_time" in batch.schema.names else {"min": None, "max": None}
    key = batch.column("_key")
    return Block(
        name=name, place=place, generation=generation, area=area, rows=batch.num_rows, nbytes=nbytes,
        key_min=key[0].as_py(), key_max=key[-1].as_py(), unit_min=unit["min"], unit_max=unit["max"],
        time_min=time["min"], time_max=time["max"], parts=parts, checks=checks,
    )  # fmt: skip


def load(storage: Storage, block: Block, *, is_new: bool = False) -> pa.RecordBatch:
    """Read a block back, mapped where it is on this machine, else through a scratch file. Raises StorageError naming the block.

    ``is_new``: this process has just written it, so that it need not be compared with what was written.
    """
    try:
        mapped = map_extent(storage, block.extent or Extent(block.name, 0, block.nbytes))
        data = pa.py_buffer(_fetch(storage, block, [(0, block.nbytes)])[0]) if mapped is None else mapped
        if not is_new:
            spans = stretches(block.nbytes, block.parts)
            require_unchanged(storage, block, ((number, data[start:end]) for number, (start, end) in enumerate(spans)))
        if mapped is None:
            return map_scratch(_as_run(_read(data)))
        batches = _read(mapped)
        return batches[0] if len(batches) == 1 else map_scratch(_as_run(batches))
    except (pa.ArrowException, Missing) as error:
        raise _unreadable(storage, block, error) from error


def conformed(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """A block's tuples with these columns. It was written for other joins where it lacks some, or has more: none that needs a column finds
    those tuples, so that it may be null, and the engine's own 0. O(columns), or O(rows) where it lacks some."""
    if batch.schema.equals(schema):
        return batch
    names, columns = set(batch.schema.names), []
    for field in schema:
        if field.name in names:
            columns.append(batch.column(field.name))
        elif field.name.startswith("_"):
            columns.append(pa.array(np.zeros(batch.num_rows, field.type.to_pandas_dtype())))
        else:
            columns.append(pa.nulls(batch.num_rows, field.type))
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def load_excerpt(storage: Storage, excerpt: Excerpt) -> pa.RecordBatch:
    """Read parts of a block back, as one sorted run; the whole block where that is on this machine. Otherwise as :func:`load`."""
    block, parts = excerpt.block, excerpt.block.parts
    if parts is None or storage.local_path(FOLDER) is not None:
        return load(storage, block)
    try:
        return map_scratch(_as_run(_fetched_parts(storage, excerpt, parts)))
    except (pa.ArrowException, Missing) as error:
        raise _unreadable(storage, block, error) from error


def read_parts(storage: Storage, excerpt: Excerpt, columns: Iterable[str]) -> list[pa.RecordBatch]:
    """The parts as they lie, each sorted by key: mapped where the block is on this machine, in which case it is the whole block; else in
    memory. ``columns``: which are going to be looked at from end to end. Raises Missing where the block is no more, and StorageError."""
    block, parts = excerpt.block, excerpt.block.parts
    try:
        mapped = map_sparsely(storage, block.extent or Extent(block.name, 0, block.nbytes))
        if mapped is not None:
            batches = _read(mapped.buffer)
            mapped.soon(batch.column(name) for batch in batches for name in columns if name in batch.schema.names)
            return batches
        if parts is None:
            data = pa.py_buffer(_fetch(storage, block, [(0, block.nbytes)])[0])
            require_unchanged(storage, block, [(0, data)])
            return _read(data)
        return _fetched_parts(storage, excerpt, parts)
    except pa.ArrowException as error:
        raise _unreadable(storage, block, error) from error


def _fetched_parts(storage: Storage, excerpt: Excerpt, parts: Parts) -> list[pa.RecordBatch]:
    head, *found = _fetch(storage, excerpt.block, [(0, parts.ends[0]), *map(parts.span, excerpt.parts)])
    require_unchanged(storage, excerpt.block, [(0, head), *((part + 1, data) for part, data in zip(excerpt.parts, found, strict=True))])
    schema = ipc.read_schema(pa.py_buffer(head[HEAD_BYTES:]))
    return [ipc.read_record_batch(pa.py_buffer(data), schema) for data in found]


def _fetch(storage: Storage, block: Block, ranges: Sequence[tuple[int, int]]) -> list[memoryview]:
    """These bytes of a block."""
    if block.extent is None:
        return storage.get_ranges(block.name, ranges)
    first = block.extent.start
    return storage.get_ranges(block.extent.path, [(first + start, first + end) for start, end in ranges])


def load_all(storage: Storage, blocks: Sequence[Block]) -> Iterator[pa.RecordBatch]:
    """Read blocks back, in this order, as :func:`load` does.

    Memory: ``DOWNLOADS`` blocks, twice each until they are in scratch files.
    """
    return _loaded(storage, load, blocks)


def load_excerpts(storage: Storage, excerpts: Sequence[Excerpt]) -> Iterator[pa.RecordBatch]:
    """Read excerpts back, in this order, as :func:`load_excerpt` does. Memory: as :func:`load_all`."""
    return _loaded(storage, load_excerpt, excerpts)


def _loaded(storage: Storage, one: Callable[[Storage, Item], pa.RecordBatch], items: Sequence[Item]) -> Iterator[pa.RecordBatch]:
    if len(items) < 2 or storage.local_path(FOLDER) is not None:
        yield from (one(storage, item) for item in items)
        return
    with ThreadPoolExecutor(min(DOWNLOADS, len(items))) as pool:
        yield from pool.map(lambda item: one(storage, item), items)


def _unreadable(storage: Storage, block: Block, error: Exception) -> StorageError:
    path = block.name if block.extent is None else block.extent.path
    return StorageError(
        f"{storage.url}/{path}: the block that the last commit names cannot be read ({str(error)[:200]}); "
        "restore it, or start from an empty checkpoint"
    )


def _read(source: pa.Buffer | pa.NativeFile) -> list[pa.RecordBatch]:
    with ipc.open_file(source) as reader:
        return [reader.get_batch(number) for number in range(reader.num_record_batches)]


def _as_run(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    """The tuples of these batches, sorted by key."""
    # Merging the parts takes as long as sorting, which finds what is in order already.
    return batches[0] if len(batches) == 1 else sort_run(pa.concat_batches(batches))


def map_buffer(data: pa.Buffer) -> pa.Buffer:
    """The bytes on mapped pages of a scratch file, as :func:`map_scratch`."""
    return _scratch(lambda file: file.write(memoryview(data))).read_buffer()


def map_scratch(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The batch on mapped pages of a scratch file that is already unlinked, so that nothing is left behind by a crash."""

    def write(file: IO[bytes]) -> None:
        with ipc.new_file(file, batch.schema) as writer:
            writer.write_batch(batch)

    return _read(_scratch(write))[0]


def _scratch(write: Callable[[IO[bytes]], object]) -> pa.MemoryMappedFile:
    descriptor, path = tempfile.mkstemp(prefix="streamjoin-", suffix=".scratch")
    try:
        with os.fdopen(descriptor, "wb") as file:
            write(file)
        return pa.memory_map(path)
    finally:
        os.unlink(path)
