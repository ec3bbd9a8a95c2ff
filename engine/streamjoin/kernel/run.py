"""Runs: batches of held tuples sorted by key. How they are made, viewed and merged, and which of them to merge when.

Always holds: a run's ``_key`` ascends, its engine columns (``_key``, ``_unit``, ``_time``, ``_aux``) have no nulls, and its
arrays are read-only views of the batch's buffers, which may be memory-mapped. A merge keeps every unexpired tuple once.

Sorting is of words that hold a key's distance from the lowest key, and its row number: by NumPy where its vectorised sort is fast (AVX-512
of Intel), else by a radix sort. Either is stable, and takes no longer than ``numpy.argsort``, which is not. Merging is a tree of two-way
merges without branches, the smallest runs first: 3 ns a row and level, less than a k-way merge or sorting anew.

Which runs to merge is decided as in a log-structured merge tree, by size (:func:`tiers`).
"""

from __future__ import annotations

import heapq
import importlib
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from streamjoin.language.predicate import INT64_MAX
from streamjoin.language.window import Window, WindowKind
from streamjoin.native.functions import compile_all, native, read, write

KEY, UNIT, TIME, AUX = "_key", "_unit", "_time", "_aux"

INDEX_ROWS = 2**31 - 1
"""Most rows of a run: row numbers are int32, which halves the traffic of probes and merges."""

CHUNK_BYTES = 1 << 29
"""Far from where the offsets of Arrow's strings end (2 GiB)."""

DIGIT_BITS = 11
"""Most bits that a pass of the radix sort sorts by."""

Indices = NDArray[np.int32]

ZERO, ONE = np.uint64(0), np.uint64(1)
# NB: row numbers are unsigned inside the native functions, or Numba would provide for negative ones.


@dataclass(frozen=True, slots=True)
class Run:
    """One sorted batch of held tuples of one side of one area."""

    batch: pa.RecordBatch
    key: NDArray[Any]
    """int64 or float64, ascending."""
    unit: NDArray[np.uint32]
    time: NDArray[np.int64] | None
    aux: NDArray[np.int64] | None
    time_min: int | None
    """None: no times, or no rows."""
    time_max: int | None
    aux_min: int | None
    aux_max: int | None
    rows: int
    nbytes: int
    order: Indices | None = None
    """Of a run that is seen by an index (``kernel.index``): the rows of the batch, by position. None: they are the positions."""

    @classmethod
    def of(cls, batch: pa.RecordBatch) -> Run:
        """Views a batch that is sorted by ``_key``. Nothing is copied; O(rows) for the ranges of times.

        Raises ValueError when an engine column is missing, misplaced, of another type, or has nulls. The order is not checked.
        """
        names = batch.schema.names
        if names[:2] != [KEY, UNIT]:
            raise ValueError(f"held tuples: columns {names} must begin with {KEY}, {UNIT}")
        key = _view(batch, 0, pa.float64() if batch.schema.types[0] == pa.float64() else pa.int64())
        unit = _view(batch, 1, pa.uint32())
        time = _view(batch, 2, pa.int64()) if names[2:3] == [TIME] else None
        aux = _view(batch, 3, pa.int64()) if time is not None and names[3:4] == [AUX] else None
        in_place = 2 + (time is not None) + (aux is not None)
        if misplaced := sorted({KEY, UNIT, TIME, AUX}.intersection(names[in_place:])):
            raise ValueError(f"held tuples: columns {names} have {', '.join(misplaced)} out of place")
        if batch.num_rows > INDEX_ROWS:
            raise ValueError(f"held tuples: {batch.num_rows} rows; a run holds at most {INDEX_ROWS}, make several")
        (time_min, time_max), (aux_min, aux_max) = bounds_of(time), bounds_of(aux)
        return cls(batch, key, unit, time, aux, time_min, time_max, aux_min, aux_max, batch.num_rows, batch.nbytes)

    def check(self) -> None:
        """Raises AssertionError when an invariant does not hold. O(rows)."""
        assert self.rows == self.batch.num_rows == len(self.key) == len(self.unit)
        assert bool((self.key[:-1] <= self.key[1:]).all()), "keys must ascend, and none be NaN"
        engine = [name for name in (KEY, UNIT, TIME, AUX) if name in self.batch.schema.names]
        assert all(self.batch.column(name).null_count == 0 for name in engine)
        for values, lowest, highest in ((self.time, self.time_min, self.time_max), (self.aux, self.aux_min, self.aux_max)):
            if values is not None:
                assert len(values) == self.rows
                assert (lowest, highest) == (min(values.tolist(), default=None), max(values.tolist(), default=None))


def bounds_of(values: NDArray[np.int64] | None) -> tuple[int, int] | tuple[None, None]:
    """The least and the greatest."""
    return (int(values.min()), int(values.max())) if values is not None and len(values) else (None, None)


def _view(batch: pa.RecordBatch, position: int, expected: pa.DataType) -> NDArray[Any]:
    column = batch.column(position)
    if column.type != expected or column.null_count:
        found = f"column {batch.schema.names[position]} is {column.type} with {column.null_count} nulls"
        raise ValueError(f"held tuples: {found}; it must be {expected} without nulls")
    view: NDArray[Any] = column.to_numpy(zero_copy_only=True)
    return view


@native((write("uint64"), write("uint64"), write("int64"), "int64", "int64", "int64"))
def radix_sort_words(words: Any, spare: Any, counts: Any, shift: int, bits: int, digit: int) -> bool:
    """Sorts words (one or more) by ``bits`` bits from ``shift`` on, ``digit`` a pass, stably. True: the result is in ``spare``.

    ``counts``: zeros, 2 to the power of ``digit`` for each pass.
    """
    passes, size = (bits + digit - 1) // digit, 1 << digit
    mask = np.uint64(size - 1)
    for i in range(len(words)):
        word = words[i] >> np.uint64(shift)
        for p in range(passes):
            counts[np.uint64(p * size) + ((word >> np.uint64(p * digit)) & mask)] += 1
    in_spare = False
    for p in range(passes):
        places, low = counts[p * size : (p + 1) * size], np.uint64(shift + p * digit)
        if places[(words[0] >> low) & mask] == len(words):
            continue  # all have this digit in common, as the last digits of round floats
        place = np.int64(0)
        for d in range(size):
            places[d], place = place, place + places[d]
        for i in range(len(words)):
            word = words[i]
            digit_value = (word >> low) & mask
            spare[places[digit_value]] = word
            places[digit_value] += 1
        words, spare = spare, words
        in_spare = not in_spare
    return in_spare


@native((write("uint64"), write("int32"), "int64"))
def insert_words(words: Any, rows: Any, most: int) -> bool:
    """Sorts words that are nearly sorted, and the row numbers along, stably. False: it takes more than ``most`` moves, and is not done."""
    for i in range(1, len(words)):
        word, row, k = words[i], rows[i], i
        while k > 0 and words[k - 1] > word:
            words[k], rows[k] = words[k - 1], rows[k - 1]
            k -= 1
        words[k], rows[k] = word, row
        most -= i - k
        if most < 0:
            return False
    return True


@cache
def _numpy_is_faster() -> bool:
    """Whether NumPy sorts words faster on this processor than we do. Tried once, which takes some milliseconds."""
    words = np.arange(1 << 15, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)  # as good as random

    def seconds(sort: Callable[[], Any]) -> float:
        began = time.perf_counter()
        sort()
        return time.perf_counter() - began

    ours = min(seconds(lambda: _radix_sorted(words.copy(), 0, 64)) for _ in range(3))
    return min(seconds(lambda: np.sort(words)) for _ in range(3)) < ours


def _sorted(words: NDArray[np.uint64], shift: int, bits: int) -> NDArray[np.uint64]:
    """The words, which differ in ``bits`` bits from ``shift`` on and ascend where they do not. They are overwritten."""
    if _numpy_is_faster():
        words.sort()
        return words
    return _radix_sorted(words, shift, bits)


def _radix_sorted(words: NDArray[np.uint64], shift: int, bits: int) -> NDArray[np.uint64]:
    spare = np.empty_like(words)
    passes = -(-bits // DIGIT_BITS)
    digit = -(-bits // passes)
    counts = np.zeros(passes << digit, np.int64)
    return spare if radix_sort_words(words, spare, counts, shift, bits, digit) else words


def sort_order(key: NDArray[Any]) -> NDArray[np.int64]:
    """The permutation that sorts int64 or float64 keys (no NaN), stably. O(n log n), or by radix O(n * key bits in use)."""
    order: NDArray[np.int64] = _order(key).astype(np.int64)
    return order


def _order(key: NDArray[Any]) -> NDArray[Any]:
    rows = len(key)
    if rows > INDEX_ROWS:
        whole: NDArray[Any] = np.argsort(key, kind="stable")
        return whole
    if rows < 2 or bool((key[:-1] <= key[1:]).all()):
        return np.arange(rows, dtype=np.int32)
    bits = key.view(np.int64)
    if key.dtype == np.float64:
        # The sign bit and magnitude of a float, as two's complement: in the floats' order.
        bits = bits ^ ((bits >> 63) & INT64_MAX)
    # The distance from the lowest key; as unsigned it is exact even where it exceeds int64.
    words = bits.view(np.uint64) - bits.min().view(np.uint64)
    word_bits, row_bits = int(words.max()).bit_length(), (rows - 1).bit_length()
    excess = word_bits + row_bits - 64
    if excess <= 0:
        return _order_of(words, word_bits, row_bits)
    # Few differ only in the lowest bits, for which there is no room; else those are sorted by first, and then the others.
    order = _order_of(words >> np.uint64(excess), word_bits - excess, row_bits)
    if not insert_words(words[order], order, rows):
        low = _order_of(words & np.uint64((1 << excess) - 1), excess, row_bits)
        order = low[_order_of(words[low] >> np.uint64(excess), word_bits - excess, row_bits)]
    return order


def _order_of(words: NDArray[np.uint64], bits: int, row_bits: int) -> NDArray[np.int32]:
    """The stable order of words of so many bits, for which there is room beside row numbers. They are overwritten."""
    words <<= np.uint64(row_bits)
    words |= np.arange(len(words), dtype=np.uint64)
    return (_sorted(words, row_bits, bits) & np.uint64((1 << row_bits) - 1)).astype(np.int32)


def sort_run(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The batch sorted by ``_key``. Memory: the sorted copy, and at most 44 bytes a row while sorting."""
    return take(batch, pa.array(_order(batch.column(KEY).to_numpy())))


def take(values: Any, rows: pa.Array) -> Any:
    """The rows of an array or record batch, in the order given. Unlike Arrow's own, it does not look whether they exist: 1 ns a value."""
    return pc.take(values, rows, boundscheck=False)


def is_text(type_: pa.DataType) -> bool:
    """Whether values are of different lengths."""
    return bool(pa.types.is_string(type_) or pa.types.is_binary(type_))


def text_bytes(column: pa.Array, rows: Indices) -> NDArray[np.int64]:
    """How many bytes the texts in these rows have, by Arrow's offsets. O(rows)."""
    ends = np.frombuffer(column.buffers()[1], np.int32)[column.offset :]
    found: NDArray[np.int64] = ends[1:][rows].astype(np.int64) - ends[rows]
    return found


@native(
    (read("int64"), read("int32"), read("int64"), read("int32"), write("int64"), write("int32")),
    (read("float64"), read("int32"), read("float64"), read("int32"), write("float64"), write("int32")),
)
def merge_two(left: Any, left_rows: Any, right: Any, right_rows: Any, merged: Any, merged_rows: Any) -> None:
    """Merges two ascending arrays, and the row numbers with them. Without branches: which side is next cannot be predicted."""
    i, j, k = ZERO, ZERO, ZERO
    left_count, right_count = np.uint64(len(left)), np.uint64(len(right))
    while i < left_count and j < right_count:
        from_right = right[j] < left[i]
        merged[k] = right[j] if from_right else left[i]
        merged_rows[k] = right_rows[j] if from_right else left_rows[i]
        j += np.uint64(from_right)
        i += np.uint64(not from_right)
        k += ONE
    while i < left_count:
        merged[k] = left[i]
        merged_rows[k] = left_rows[i]
        i += ONE
        k += ONE
    while j < right_count:
        merged[k] = right[j]
        merged_rows[k] = right_rows[j]
        j += ONE
        k += ONE


def merge_runs(runs: Sequence[Run], drop_before: int | None = None) -> Run:
    """One run of all the tuples whose ``_time`` is at least ``drop_before`` (None: all of them).

    The runs, at least one, have one schema. O(n log k). Memory: the merged run, 24 bytes a row and one column at a time concatenated.
    """
    live = [run for run in runs if run.rows and not _expired(run, drop_before)]
    if not live:
        return Run.of(runs[0].batch.slice(0, 0))
    if (total := sum(run.rows for run in live)) > INDEX_ROWS:
        raise ValueError(f"merge: {total} rows; a run holds at most {INDEX_ROWS}, merge fewer")
    parts: list[tuple[int, int, NDArray[Any], Indices]] = []
    offset = 0
    for number, run in enumerate(live):
        kept = _unexpired(run, drop_before)
        if kept is None:
            if len(live) == 1:
                return run
            keys, rows = run.key, np.arange(offset, offset + run.rows, dtype=np.int32)
        else:
            keys, rows = run.key[kept], (kept + offset).astype(np.int32)
        parts.append((len(rows), number, keys, rows))
        offset += run.rows
    # The smallest first, so that every row passes through as few merges as can be (Huffman).
    heapq.heapify(parts)
    while len(parts) > 1:
        left, right = heapq.heappop(parts), heapq.heappop(parts)
        count = left[0] + right[0]
        merged, merged_rows = np.empty(count, live[0].key.dtype), np.empty(count, np.int32)
        merge_two(left[2], left[3], right[2], right[3], merged, merged_rows)
        heapq.heappush(parts, (count, left[1], merged, merged_rows))
    _, _, keys, rows = parts[0]
    order = pa.array(rows)
    batches = [run.batch for run in live]
    columns = [pa.array(keys)]
    for position in range(1, batches[0].num_columns):
        columns.append(take(pa.concat_arrays([batch.column(position) for batch in batches]), order))
    return Run.of(pa.RecordBatch.from_arrays(columns, schema=batches[0].schema))


def merge_in_chunks(runs: Sequence[Run], most_bytes: int) -> list[Run]:
    """The tuples of all runs, which have one schema, in as few runs as can be made of whole ones with no more than ``most_bytes`` each,
    unless it is a run that has more by itself. O(n log k)."""
    groups: list[list[Run]] = []
    nbytes = rows = 0
    for run in runs:
        if not groups or nbytes + run.nbytes > most_bytes or rows + run.rows > INDEX_ROWS:
            groups.append([])
            nbytes = rows = 0
        groups[-1].append(run)
        nbytes += run.nbytes
        rows += run.rows
    return [group[0] if len(group) == 1 else merge_runs(group) for group in groups]


def _expired(run: Run, drop_before: int | None) -> bool:
    return drop_before is not None and run.time_max is not None and run.time_max < drop_before


def _unexpired(run: Run, drop_before: int | None) -> NDArray[np.int64] | None:
    """The rows that a merge keeps; None: all of them. O(1) when the range of times decides."""
    if drop_before is None or run.time is None or run.time_min is None or run.time_min >= drop_before:
        return None
    return np.flatnonzero(run.time >= drop_before)


class Sized(Protocol):
    """What the merge policy looks at in a run."""

    @property
    def rows(self) -> int: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def time_max(self) -> int | None: ...


BUCKETS_A_WINDOW = 8
MOST_BUCKETS = 16


def tiers(runs: Sequence[Sized], window: Window, fan_in: int = 4, bytes_limit: int = 1 << 27) -> list[list[int]]:
    """Which runs of one side to merge now: disjoint groups of positions in ``runs``, of two or more each. Pure; O(k log k).

    Runs are put in buckets by the time of their last tuple, an eighth of the window's length wide, and merged within a bucket only:
    a tuple then outlives its expiry by an eighth more at the most, and runs of epochs no longer than that merge to spans of at most a
    quarter. When watermarks lie so far back that the held runs fill more than 16 buckets, those are doubled. Unbounded windows have
    one bucket.

    * In the newest bucket ``fan_in`` runs of a size class (powers of ``fan_in`` rows) merge, with all that their union makes complete.
    * In an older one, which hardly grows any more, runs merge as long as each is no larger than twice the smaller ones together.

    No run of more than ``bytes_limit`` bytes is made (Arrow's strings end at 2 GiB, and a merge needs the memory of its result).

    So, with n tuples held in b <= 17 buckets: a tuple is rewritten at most log_fan_in(n) times in the newest bucket and log_1.5(n)
    times afterwards (as a rule once); applied until nothing changes there remain at most (fan_in - 1) * (1 + log_fan_in(n)) runs in
    the newest bucket and 2 + log_3(n) in each older one, and another 2 for each ``bytes_limit`` bytes held.
    """
    by_age = buckets([position for position, run in enumerate(runs) if run.rows and run.nbytes <= bytes_limit // 2], runs, window)
    groups = []
    for age, (_, members) in enumerate(sorted(by_age.items(), reverse=True)):
        members.sort(key=lambda position: runs[position].rows)
        chosen = _complete_classes(members, runs, fan_in) if age == 0 else [_even(members, runs)]
        for group in chosen:
            size, fitting = 0, []
            for position in group:
                size += runs[position].nbytes
                if size > bytes_limit:
                    break
                fitting.append(position)
            if len(fitting) > 1:
                groups.append(fitting)
    return groups


def buckets(positions: Iterable[int], runs: Sequence[Sized], window: Window) -> dict[int, list[int]]:
    """Positions by the age of their runs' last tuples; the highest number is the newest."""
    times = {position: time for position in positions if (time := runs[position].time_max) is not None}
    if window.kind is WindowKind.UNBOUNDED:
        return {0: list(positions)}
    if not times:
        return {}
    length = window.rows if window.kind is WindowKind.ROWS else window.before_micros + window.after_micros + window.slide_micros
    width = max(1, length // BUCKETS_A_WINDOW)
    while (max(times.values()) - min(times.values())) // width >= MOST_BUCKETS:
        width *= 2
    found: dict[int, list[int]] = {}
    for position, time in times.items():
        found.setdefault(time // width, []).append(position)
    return found


def _complete_classes(members: Sequence[int], runs: Sequence[Sized], fan_in: int) -> list[list[int]]:
    """Groups of ``fan_in`` or more of a size class, each with what its union completes in the classes above. ``members`` ascend in size."""

    def size_class(rows: int) -> int:
        result = 0
        while rows >= fan_in:
            rows //= fan_in
            result += 1
        return result

    classes: dict[int, list[int]] = {}
    for position in members:
        classes.setdefault(size_class(runs[position].rows), []).append(position)
    groups: list[list[int]] = []
    union: list[int] = []
    for number, of_class in sorted(classes.items()):
        lands = size_class(sum(runs[position].rows for position in union)) if union else -1
        if union and lands < number:
            groups.append(union)
            union = []
        # What lies below where the union lands is small beside it, and goes with it.
        if len(of_class) + (bool(union) and lands == number) >= fan_in or (union and lands > number):
            union = union + of_class
    return [*groups, union] if union else groups


def _even(members: Sequence[int], runs: Sequence[Sized]) -> list[int]:
    """The members up to the largest that is at most twice as large as the smaller ones together. ``members`` ascend in size."""
    total, count = 0, 0
    for index, position in enumerate(members):
        if runs[position].rows <= 2 * total:
            count = index + 1
        total += runs[position].rows
    return list(members[:count])


def warm() -> None:
    """Compiles every native function of the kernel, or loads it from the cache on disk: before a worker's first epoch."""
    for module in ("probe", "sweep_native", "marks", "near"):
        importlib.import_module(f"streamjoin.kernel.{module}")
    compile_all()
    _numpy_is_faster()
