"""The first task function: read a split, prepare its tuples, sort them by key, and cut them into one piece per area (A-DSP, Alg. 3).

Phases, for each split:

1. read as Arrow; what does not parse, or is too large, goes to the dead letters;
2. select by ``where``; reject null event times and those too far ahead; drop late tuples, or put them into the dead letters; drop tuples
   of which a key is null (they can match nothing), or send them on by themselves where the join's type gives those too;
3. make the held columns: key, unit coordinate, time, payload;
4. for each place of the stream, sort by its key, shed, cut by area.

Deterministic: two attempts at the same split send the same pieces, because a join task may have read some of the first attempt's.
"""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from streamjoin.dataplane.apart import read_apart
from streamjoin.dataplane.compiled import Compiled, Plan, Taken, compiled, plan_of
from streamjoin.dataplane.event_times import DERIVED, disorder
from streamjoin.epoch.reports import RouteReport, SplitTooLarge, TooLarge, sample_of
from streamjoin.epoch.spec import REPORT, UNMATCHABLE, EpochSpec, Piece, attempt_name, draws_of, final_name, numbers_of, units_of
from streamjoin.io.arrivals import Arrivals, Stamps
from streamjoin.io.base import Records, Rejected, SourceError, Split
from streamjoin.io.replays import ReplaySplit
from streamjoin.io.text import raw_text
from streamjoin.io.values import row_text
from streamjoin.kernel import faults
from streamjoin.kernel.keys import encode_keys
from streamjoin.kernel.run import sort_order, take
from streamjoin.kernel.types import arrow_schema
from streamjoin.language.window import WindowKind
from streamjoin.scheme.models import HANDSHAKE
from streamjoin.scheme.tiling import UNITS
from streamjoin.state.storage import retries
from streamjoin.state.store import rows_selected

FIRST_EPOCHS = 100
"""Of so many it is measured how far event times are out of order."""
PORTION_BYTES = 256 << 20
"""A split's tuples are cut and sent as soon as there are about so many bytes of them: Arrow's strings end at 2 GiB."""


def route(spec: EpochSpec, index: int) -> Iterator[Piece]:
    """All pieces of split ``index`` of the epoch, then its report. Raises SplitTooLarge, and what reading raises.

    Memory: ``PORTION_BYTES`` of the split, or all of it if it has less, once as held and once sorted; and a batch as read.
    """
    started, repeated = time.perf_counter(), retries()
    faults.taken()
    worker, plan = compiled(spec.config), plan_of(spec.scheme, spec.config)
    which, split = spec.splits[index]
    taken, report = worker.streams[which], RouteReport(which, partition=split.partition)
    dead_letters = worker.config.sink.letters
    assert dead_letters is not None, "each join has them"
    small_bytes = spec.small_bytes // len(spec.splits)
    dead = dead_letters.writer(attempt_name(spec, index), final_name(spec, index), taken.stream.name, small_bytes=small_bytes)
    held: list[pa.Table] = []
    held_bytes = 0
    arrived: list[Stamps | None] = []
    reader, schema = worker.config.readers[which], arrow_schema(taken.stream.schema)
    report.replayed = split.records if isinstance(split, ReplaySplit) else 0
    for read in read_apart(reader, split, schema, (spec, index)) if spec.apart else reader.read(split):
        records = without_oversized(read, spec.record_bytes, report)
        if spec.rejects:
            records = _all_rejected(records, f"fails the join: {spec.rejects}")
        report.rejected += len(records.rejected)
        report.input += records.batch.num_rows + len(records.rejected)
        report.input_bytes += records.batch.nbytes
        report.source_errors += records.errors
        arrived.append(read.arrived)
        _require_room(spec, split, report)
        found = prepare(spec, worker, which, index, records, split.first_record, report, late_letters=dead_letters.most_late - report.late)
        letters = records.rejected + found.letters
        if report.rejected and taken.stream.fails_on_bad:
            raise _bad(taken.stream.name, split, letters[0])
        report.rejection = report.rejection or next((letter.error for letter in letters if not letter.is_late), "")
        dead.write(split, letters)
        for place, tuples in found.unmatchable.items():
            yield Piece(index % plan.scheme.tasks, UNMATCHABLE, place, tuples.serialize())
        batch = found.held
        if batch is None:
            continue
        nbytes = batch.nbytes
        if held and held_bytes + nbytes > PORTION_BYTES:
            yield from cut(spec, plan, taken, held, report)
            held, held_bytes = [], 0
        held.append(batch)
        held_bytes += nbytes
    report.arrivals = Arrivals.sampled(arrived)
    report.dead_letters = dead.close()
    report.dead_letter_bytes = sum(staged.nbytes for staged in report.dead_letters)
    if held:
        yield from cut(spec, plan, taken, held, report)
    report.faults = faults.taken()
    report.seconds = time.perf_counter() - started
    report.storage_retries = retries() - repeated
    yield Piece(index % plan.scheme.tasks, REPORT, which, pa.py_buffer(pickle.dumps(report)))


def without_oversized(records: Records, most_bytes: int, report: RouteReport) -> Records:
    """The records, with those rejected whose values come to more than ``most_bytes``. O(1) where the batch is no larger than that."""
    batch = records.batch
    if batch.nbytes <= most_bytes:
        return records
    sizes = np.zeros(batch.num_rows, dtype=np.int64)
    for column in batch.columns:
        if pa.types.is_string(column.type) or pa.types.is_binary(column.type):
            sizes += pc.fill_null(pc.binary_length(column), 0).to_numpy()
    large = sizes > most_bytes
    if not large.any():
        return records
    rows = records.offsets()
    letters = [
        Rejected(
            int(rows[row]),
            raw_text(row_text(batch, row).encode()),
            f"has {sizes[row]:,} bytes, and a record may have at most {most_bytes:,}",
        )
        for row in np.flatnonzero(large).tolist()
    ]
    report.oversized += len(letters)
    return Records(batch.filter(pa.array(~large)), rows[~large], records.rejected + letters, errors=records.errors)


def _all_rejected(records: Records, reason: str) -> Records:
    chosen = np.ones(records.batch.num_rows, dtype=bool)
    return Records(records.batch[:0], records.offsets()[:0], records.rejected + _letters(records.batch, records.offsets(), chosen, reason))


def _bad(stream: str, split: Split, letter: Rejected) -> SourceError:
    where = letter.place or f"{split.name}, record {letter.position}"
    remedy = "mend or remove it, or let onBad of the stream be deadLetter"
    return SourceError(f"stream {stream}: {where}: {letter.error}; {remedy}")


def _require_room(spec: EpochSpec, split: Split, report: RouteReport) -> None:
    """Raises SplitTooLarge where what has been read of the split is more than it may have."""
    if spec.split_bytes is not None and report.input_bytes > spec.split_bytes:
        raise SplitTooLarge(
            f"{split.name}: the first {report.input:,} records have {report.input_bytes:,} bytes, and all {split.records:,} of them may"
            f" have {spec.split_bytes:,}; fewer are planned now",
            TooLarge(report.stream, split.first_record, split.records, report.input_bytes / report.input),
        )


@dataclass(frozen=True)
class Prepared:
    """What became of a batch of records."""

    held: pa.Table | None
    """The tuples, with their keys of all places but the first and, where some may be shed, a column ``_shed`` in [0, 1); None: there are
    none."""
    unmatchable: dict[int, pa.RecordBatch]
    """By place, the payload of those that can match nothing there, if that is wanted and there are any."""
    letters: list[Rejected]


@dataclass(frozen=True)
class _Rows:
    """Those records of a batch that are left."""

    batch: pa.RecordBatch
    rows: np.ndarray
    """Their numbers in the split."""
    moment: np.ndarray | None = None
    """Event times in microseconds, once they are known; None: there are none."""

    def without(self, gone: np.ndarray) -> _Rows:
        """The same without some (a mask)."""
        moment = None if self.moment is None else self.moment[~gone]
        return _Rows(self.batch.filter(pa.array(~gone)), self.rows[~gone], moment)

    def only(self, chosen: np.ndarray) -> _Rows:
        """The same with these rows alone, ascending."""
        return self if len(chosen) == self.batch.num_rows else _Rows(take(self.batch, pa.array(chosen)), self.rows[chosen])


def prepare(
    spec: EpochSpec,
    worker: Compiled,
    which: int,
    split: int,
    records: Records,
    first_record: int,
    report: RouteReport,
    *,
    late_letters: float,
) -> Prepared:
    """Phases 2 and 3 for one batch. ``late_letters``: so many late tuples go to the dead letters."""
    taken = worker.streams[which]
    found, letters = _timed(spec, which, taken, _filtered(spec, which, taken, records, report), report)
    report.rejected += len(letters)
    keep, late = _on_time(spec, which, taken, found, report, late_letters)
    keys, keyed = _keyed(worker, taken, found.batch, keep)
    alone: dict[int, pa.RecordBatch] = {}
    for place, has_key in zip(taken.places, keyed, strict=True):
        if taken.gives_unmatched and place in worker.tracked and (unmatchable := keep & ~has_key).any():
            alone[place] = found.batch.select(list(taken.stream.payload)).filter(pa.array(unmatchable))
    matchable = np.logical_or.reduce(keyed)
    report.unmatchable += int((keep & ~matchable).sum())
    if not matchable.any():
        return Prepared(None, alone, letters + late)
    table = _table(spec, worker, which, split, found, first_record, keys, keyed)
    return Prepared(table if matchable.all() else take(table, pa.array(np.flatnonzero(matchable))), alone, letters + late)


def _filtered(spec: EpochSpec, which: int, taken: Taken, records: Records, report: RouteReport) -> _Rows:
    """Without punctuations, and what ``where`` drops; the stream goes forward by the event times of these, too."""
    batch, rows, stream, times = records.batch, records.offsets(), taken.stream, taken.times
    if times is not None:
        batch = times.added(batch)
        newest = _newest(times.of(batch).cast(pa.int64()), spec.latest[which])
        if newest is not None:
            report.time_max = newest if report.time_max is None else max(report.time_max, newest)
    if taken.punctuation is not None:
        batch, rows = _without_punctuations(taken, batch, rows, report)
    if taken.where is None:
        return _Rows(batch, rows)
    chosen = taken.where.select({(stream.name, name): batch.column(name) for name in batch.schema.names}, batch.num_rows)
    report.filtered += batch.num_rows - len(chosen)
    return _Rows(batch, rows).only(chosen)


def _timed(spec: EpochSpec, which: int, taken: Taken, found: _Rows, report: RouteReport) -> tuple[_Rows, list[Rejected]]:
    """Those with event times that can be, and letters of the others."""
    times, latest = taken.times, spec.latest[which]
    if times is None:
        return found, []
    letters: list[Rejected] = []
    column = times.of(found.batch)
    if column.null_count:
        missing = column.is_null().to_numpy(zero_copy_only=False)
        letters += _letters(found.batch, found.rows, missing, times.reason)
        found = found.without(missing)
        column = times.of(found.batch)
    found = replace(found, moment=column.cast(pa.int64()).to_numpy())
    assert found.moment is not None
    if latest is not None and (ahead := found.moment > latest).any():
        limit = f"{_written(latest)}, which is as far ahead of the clock as the stream's maxAhead lets it be"
        letters += _letters(found.batch, found.rows, ahead, f"{times.shown}: the event time is after {limit}")
        report.ahead += int(ahead.sum())
        found = found.without(ahead)
    assert found.moment is not None
    if spec.epoch < FIRST_EPOCHS and len(found.moment):
        apart, report.peak = disorder(found.moment, report.peak)
        report.disorder_micros = max(report.disorder_micros, apart)
    return found, letters


def _on_time(
    spec: EpochSpec, which: int, taken: Taken, found: _Rows, report: RouteReport, late_letters: float
) -> tuple[np.ndarray, list[Rejected]]:
    """Which of them are not late (a mask), and letters of at most so many of the others."""
    moment, bound, letters = found.moment, spec.late_before[which], list[Rejected]()
    if moment is None:
        return np.ones(found.batch.num_rows, dtype=bool), letters
    keep = np.ones(len(moment), dtype=bool) if bound is None else moment >= bound
    late = len(keep) - int(keep.sum())
    report.late += late
    if late and bound is not None and taken.times is not None:
        behind = ~keep
        report.late_micros = max(report.late_micros, int(bound - moment[behind].min()))
        if late_letters < late:
            behind[np.flatnonzero(behind)[max(0, int(late_letters)) :]] = False
        reason = f"{taken.times.shown}: late; the stream's watermark was {_written(bound)}"
        letters = [replace(letter, is_late=True, again=None) for letter in _letters(found.batch, found.rows, behind, reason)]
    if late < len(keep):
        oldest = int((moment[keep] if late else moment).min())
        report.time_min = oldest if report.time_min is None else min(report.time_min, oldest)
    return keep, letters


def _keyed(worker: Compiled, taken: Taken, batch: pa.RecordBatch, keep: np.ndarray) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """By place of the stream, the keys, and which of those to ``keep`` have one (masks)."""
    encoded = [encode_keys(batch, worker.places[place].key, taken.stream.schema) for place in taken.places]
    keyed = [keep if valid is None else keep & valid for _, valid in encoded]
    for together in taken.together:
        in_all = np.logical_and.reduce([keyed[number] for number in together])
        for number in together:
            keyed[number] = in_all
    return [key for key, _ in encoded], keyed


def _table(
    spec: EpochSpec,
    worker: Compiled,
    which: int,
    split: int,
    found: _Rows,
    first_record: int,
    keys: Sequence[np.ndarray],
    keyed: Sequence[np.ndarray],
) -> pa.Table:
    """All of them as they are held, and what says where they go."""
    taken, moment, positions = worker.streams[which], found.moment, first_record + found.rows
    numbers = numbers_of(spec.epoch, split, found.rows)
    units = units_of(numbers)
    if plan_of(spec.scheme, spec.config).uncut.model == HANDSHAKE:
        units = (positions % UNITS).astype(np.uint32)  # a chain goes by the order in which tuples came
    arrays: list[pa.Array | np.ndarray] = [keys[0], units]
    if taken.window.kind is WindowKind.RANGE:
        assert moment is not None
        arrays.append(moment)
        if taken.window.has_aux:  # where the joins' windows slide differently, each finds out by itself
            arrays.append(moment // taken.window.slide_micros * taken.window.slide_micros)
    elif taken.window.kind is WindowKind.ROWS:
        arrays.append(positions)
        others = [number for number in range(len(worker.streams)) if number != which]
        arrays += [_others_before(spec, which, other, positions) for other in others]
    if taken.is_tracked:
        arrays.append(positions)
    payload = [found.batch.column(name) for name in taken.stream.payload]
    more = {"_shed": pa.array(draws_of(numbers))} if any(spec.shed) or any(spec.would_shed) else {}
    more |= {_key_of(number): pa.array(key) for number, key in enumerate(keys) if number}
    if len(taken.places) > 1 and not taken.is_in_all:
        more |= {_is_in(number): pa.array(valid) for number, valid in enumerate(keyed)}
    schema = worker.held[taken.places[0]]
    for name, values in more.items():
        schema = schema.append(pa.field(name, values.type))
    return pa.Table.from_arrays([pa.array(values) for values in arrays] + payload + [*more.values()], schema=schema)


def _without_punctuations(taken: Taken, batch: pa.RecordBatch, rows: np.ndarray, report: RouteReport) -> tuple[pa.RecordBatch, np.ndarray]:
    """The batch, and the numbers of its rows, without those that are punctuations, whose identifiers go into the report. One that has none
    says nothing."""
    assert taken.punctuation is not None
    when, identifier = taken.punctuation
    columns = {(taken.stream.name, name): batch.column(name) for name in batch.schema.names}
    found = when.select(columns, batch.num_rows)
    if not len(found):
        return batch, rows
    ids = identifier.evaluate(columns, batch.num_rows).take(pa.array(found)).drop_null().cast(pa.string())
    report.punctuations += ids.to_pylist()
    report.filtered += len(found)
    kept = np.delete(np.arange(batch.num_rows), found)
    return batch.take(pa.array(kept)), rows[kept]


def cut(spec: EpochSpec, plan: Plan, taken: Taken, tables: list[pa.Table], report: RouteReport) -> Iterator[Piece]:
    """Phase 4."""
    table = pa.concat_tables(tables)
    names = [_key_of(number) for number in range(len(taken.places))]
    orders = [_order(table, number) for number in range(len(taken.places))]
    kept: np.ndarray | None = None
    if any(spec.would_shed):
        drawn = table.column("_shed").to_numpy() < _shed_factors(spec.would_shed, plan, taken, table, names, orders)
        report.would_shed += int(drawn.sum())
    if any(spec.shed):
        kept = table.column("_shed").to_numpy() >= _shed_factors(spec.shed, plan, taken, table, names, orders, report.came)
        report.shed += table.num_rows - int(kept.sum())
        orders = [order[kept[order]] for order in orders]
    report.accepted += table.num_rows if kept is None else int(kept.sum())
    beside = {"_shed", *names, *map(_is_in, range(len(names)))}
    held = [name for name in table.column_names if name not in beside]
    for place, name, order in zip(taken.places, names, orders, strict=True):
        if len(order):
            own = table.select([name, *held]).rename_columns(["_key", *held])
            yield from _pieces(plan, place, take(own, pa.array(order)).combine_chunks().to_batches()[0], report)


def _pieces(plan: Plan, place: int, batch: pa.RecordBatch, report: RouteReport) -> Iterator[Piece]:
    """One place's tuples of a split, sorted by its key."""
    areas = plan.scheme.areas
    newest = pc.max(batch.column("_time")).as_py() if "_time" in batch.schema.names else None
    report.samples.append(sample_of(place, batch, newest))
    for area, selection in plan.routers[place].route(batch.column("_key").to_numpy(), batch.column("_unit").to_numpy()):
        piece = rows_selected(batch, selection)
        if piece.num_rows:
            data = piece.serialize()
            report.routed += piece.num_rows
            _count(report.kept, area, place, piece.num_rows)
            report.routed_bytes += data.size
            yield Piece(areas[area].task, area, place, data)


def _shed_factors(
    of_tasks: tuple[float, ...],
    plan: Plan,
    taken: Taken,
    table: pa.Table,
    names: list[str],
    orders: list[np.ndarray],
    came: dict[tuple[int, int], int] | None = None,
) -> np.ndarray:
    """By row, the largest factor of the workers that would hold the tuple: a full one is relieved of that, not of what only probes it.
    ``came``: where to count what would come to each, by area and place."""
    factors, units, areas = np.zeros(table.num_rows), table.column("_unit").to_numpy(), plan.scheme.areas
    for place, name, order in zip(taken.places, names, orders, strict=True):
        for area, selection in plan.routers[place].route(table.column(name).to_numpy()[order], units[order]):
            rows = order[selection]
            if came is not None:
                _count(came, area, place, len(rows))
            if areas[area].holds[place]:
                factors[rows] = np.maximum(factors[rows], of_tasks[areas[area].task])
    return factors


def _count(counts: dict[tuple[int, int], int], area: int, place: int, rows: int) -> None:
    counts[area, place] = counts.get((area, place), 0) + rows


def _order(table: pa.Table, number: int) -> np.ndarray:
    """The rows that are held in the so-manieth place of the stream, in the order of its key."""
    key = table.column(_key_of(number)).to_numpy()
    if _is_in(number) not in table.column_names:
        return sort_order(key)
    rows = np.flatnonzero(table.column(_is_in(number)).to_numpy())
    return rows[sort_order(key[rows])]


def _is_in(number: int) -> str:
    """The column that says whether a tuple has a key in the so-manieth place of its stream."""
    return f"_in{number}"


def _key_of(number: int) -> str:
    """The column of a tuple's key of the so-manieth place of its stream."""
    return f"_key{number}" if number else "_key"


def _others_before(spec: EpochSpec, which: int, other: int, positions: np.ndarray) -> np.ndarray:
    """For ``rows`` windows: how many of another stream's records arrived before each of these.

    The epoch's records interleave evenly, record i of n at (i + 1/2) / n of the epoch; of a tie the first stream's comes first. Exact in
    integers, of streams s and t with s before t::

        of s:  #{j : (2j + 1) n_s < (2i + 1) n_t}        of t:  #{i : (2i + 1) n_t <= (2j + 1) n_s}
    """
    own = spec.records_after[which] - spec.records_before[which]
    theirs = spec.records_after[other] - spec.records_before[other]
    index = positions - spec.records_before[which]
    ahead = (2 * index + 1) * theirs - own
    before = -(-ahead // (2 * own)) if which < other else ahead // (2 * own) + 1
    arrived: np.ndarray = spec.records_before[other] + np.clip(before, 0, theirs)
    return arrived


def _newest(times: pa.Array, latest: int | None) -> int | None:
    """The newest of some event times that is no later than ``latest``."""
    newest: int | None = pc.max(times).as_py()
    if newest is not None and latest is not None and newest > latest:
        newest = pc.max(times.filter(pc.less_equal(times, latest))).as_py()
    return newest


def _letters(
    batch: pa.RecordBatch, rows: np.ndarray, chosen: np.ndarray, error: str | Callable[[pa.RecordBatch, int], str]
) -> list[Rejected]:
    """Dead letters of the chosen rows (a mask), which are ``rows`` of the split. O(chosen), with Python objects for each."""
    record = batch.select([name for name in batch.schema.names if name != DERIVED])
    return [
        Rejected(int(rows[row]), raw_text(row_text(record, row).encode()), error if isinstance(error, str) else error(batch, row))
        for row in np.flatnonzero(chosen).tolist()
    ]


def _written(micros: int) -> str:
    """A moment as ISO 8601."""
    return str(np.datetime64(micros, "us")) + "Z"
