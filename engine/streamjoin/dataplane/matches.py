"""Which tuples of a tracked side have matched: for outer, semi and anti joins (:class:`streamjoin.language.join_type.JoinType`).

A tuple may be in several areas, and any of them may find its first match; the area that stores it, its *owner*, answers for it. Each area
marks what it finds in its own runs. Once an epoch, it tells the owners what it has found of tuples that it does not own. These *notices*
are a second round of the exchange; only when all of them have come is it known which tuples have matched by this epoch.

Of three and more streams no area sees all of a result: once results are complete, whoever holds their tuples of the tracked stream tells
the owners (``delta_join``).

Always holds:

- A tuple's mark is set in the epoch of its first match and never taken back. The owner writes it in that epoch: its identity, in a *marks*
  block, which the epoch's commit names. So who reads an area's blocks back reads its marks too. No other column is written: what the
  commit says of a marks block's keys, units and times holds for all its tuples, and need not be tight.
- Tuples that come alone do so in one epoch: that in which ``expired_before`` passes them, or, if they were passed before they came, that in
  which they came. Their marks are complete then, as nothing of a later epoch can match them.
- Marks are copied before they are changed, so that those of an epoch that is committed outlive one that goes on from it and fails.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyarrow import ipc

from streamjoin.dataplane.compiled import ID, Plan, compiled
from streamjoin.dataplane.paths import JoinOperator
from streamjoin.epoch.spec import EpochSpec, Piece
from streamjoin.kernel.joiner import Indices, Matched
from streamjoin.kernel.keys import encode_keys
from streamjoin.kernel.marks import mark_rows, unmatched_between
from streamjoin.kernel.run import KEY, UNIT, Run, sort_order, take
from streamjoin.language.predicate import INT64_MAX, INT64_MIN
from streamjoin.language.window import Window
from streamjoin.scheme.tiling import Area, UnitRange
from streamjoin.state.blocks import Block, checks_of, encode, load_all
from streamjoin.state.storage import Storage
from streamjoin.state.store import HeldRun, Marks, held_on, places_of, rows_selected, slice_keys

NOTICES_ROUND = 1
"""Of the exchange."""

AreaSide = tuple[int, int]

Runs = Mapping[AreaSide, Sequence[HeldRun]]

Rows = tuple[Run, NDArray[np.int64]]
"""Some tuples of a run, by row, ascending."""


class Matches:
    """The marks of one task's runs during one epoch, by one join."""

    def __init__(
        self, spec: EpochSpec, plan: Plan, areas: Mapping[int, Area], join: JoinOperator, wider: Window, before: Mapping[HeldRun, Marks]
    ) -> None:
        """``wider``: the window that ``spec.expired_before`` goes by. ``before``: as the epoch before has left them; of a run that is not
        among them nothing has matched."""
        self._spec, self._plan, self._areas, self._join, self._before = spec, plan, areas, join, before
        self._tracked, self._worker = join.tracked, compiled(spec.config)
        self._expired = dict(zip(join.places, join.expired(wider, spec.expired_before), strict=True))
        self._released = dict(zip(join.places, join.expired(wider, spec.released_before), strict=True))
        self._now: dict[HeldRun, Marks] = {}

    def marker(self, left: HeldRun, right: HeldRun) -> Matched:
        """The function to call with matching pairs of these two runs."""
        sides = [(side, run) for side, run in enumerate((left, right)) if side in self._join.type.tracked]

        def mark(*pairs: Indices) -> None:
            for side, run in sides:
                mark_rows(self._of(run), pairs[side])

        return mark

    def marks(self, run: HeldRun) -> Marks:
        """Whether each tuple has matched, by now. Not to be changed."""
        found = self._now.get(run)
        if found is None:
            found = self._before.get(run)
        return np.zeros(run.run.rows, dtype=bool) if found is None else found

    def notices(self, runs: Runs) -> Iterator[Piece]:
        """Notices for the owners of tuples that are not ours. O(rows of other areas that are held here)."""
        for (area, place), of_side in self._tracked_of(runs):
            for held in of_side:
                start, end = self._owned(area, place, held)
                rows = np.concatenate([self._fresh(held, 0, start), self._fresh(held, end, held.run.rows)])
                if len(rows):
                    yield from self._to_owners(place, take(held.run.batch.select([KEY, UNIT, ID]), pa.array(rows)))

    def notices_of(self, batch: pa.RecordBatch, number: int) -> Iterator[Piece]:
        """Notices, in this round, for the owners of these tuples, held anywhere, of which others have found that they match. O(n log n)."""
        (place,) = self._tracked
        taken, by = self._worker.streams[self._worker.places[place].stream].stream, self._worker.places[place].key
        held = self._worker.held[place].field(KEY)
        key, _ = encode_keys(batch, by, taken.schema)
        schema = pa.schema([held, batch.schema.field(UNIT), batch.schema.field(ID)])
        named = pa.RecordBatch.from_arrays([pa.array(key, held.type), batch.column(UNIT), batch.column(ID)], schema=schema)
        yield from self._to_owners(place, take(named, pa.array(sort_order(key))), number)

    def _to_owners(self, place: int, batch: pa.RecordBatch, number: int = NOTICES_ROUND) -> Iterator[Piece]:
        areas = self._plan.scheme.areas
        for index, selection in self._plan.routers[place].route(batch.column(KEY).to_numpy(), batch.column(UNIT).to_numpy()):
            keys = areas[index].writes[place]
            if keys is None:
                continue
            owned = slice_keys(rows_selected(batch, selection), keys)
            if owned.num_rows:
                yield Piece(areas[index].task, index, place, owned.select([KEY, ID]).serialize(), self._join.number, round=number)

    def take(self, notices: Iterable[Piece], runs: Runs) -> None:
        """Mark what other areas have found. O(n log n) for the n rows that have keys such as the notices'."""
        found: dict[AreaSide, list[Piece]] = defaultdict(list)
        for notice in notices:
            found[notice.area, notice.place].append(notice)
        for key, pieces in found.items():
            of_side = runs.get(key, ())
            if not of_side:
                continue
            held_as = of_side[0].run.batch.schema
            schema = pa.schema([held_as.field(KEY), held_as.field(ID)])
            told = [ipc.read_record_batch(piece.data, schema) for piece in pieces]
            low, high = min(batch.column(KEY)[0].as_py() for batch in told), max(batch.column(KEY)[-1].as_py() for batch in told)
            matched = np.unique(np.concatenate([batch.column(ID).to_numpy() for batch in told]))
            for held in of_side:
                start, end = int(np.searchsorted(held.run.key, low)), int(np.searchsorted(held.run.key, high, side="right"))
                rows = rows_of(held.run, matched, start, end)
                if len(rows):
                    self._of(held)[rows] = True

    def first_matched(self, runs: Runs) -> Iterator[tuple[AreaSide, list[Rows]]]:
        """The tuples of each area that are its own and have first matched in this epoch. O(rows held)."""
        for key, of_side in self._tracked_of(runs):
            found = ((held.run, self._fresh(held, *self._owned(*key, held))) for held in of_side)
            if parts := [(run, rows) for run, rows in found if len(rows)]:
                yield key, parts

    def passed(self, runs: Runs, *, fresh: bool) -> Iterator[tuple[int, Rows]]:
        """Our tuples, by place, that have matched nothing and never will: of runs that were held before, those that this epoch lets go;
        with ``fresh``, those that came in this epoch, too late for anything that is still to come. O(rows of runs where there are such)."""
        spec = self._spec
        for (area, place), of_side in self._tracked_of(runs):
            bound, released, is_last = self._expired[place], None if fresh else self._released[place], place in spec.ended
            for held in of_side:
                run = held.run
                if not is_last and (bound is None or run.time_min is None or run.time_min >= bound):
                    continue
                start, end = self._owned(area, place, held)
                marks = self.marks(held)[start:end]
                if run.time is None:
                    rows = np.flatnonzero(~marks)
                else:
                    low, high = INT64_MIN if released is None else released, INT64_MAX if is_last or bound is None else bound - 1
                    rows = np.empty(end - start, dtype=np.int64)
                    rows = rows[: unmatched_between(marks, run.time[start:end], low, high, rows)]
                if len(rows):
                    yield place, (run, rows + start)

    def after(self, runs: Runs) -> dict[HeldRun, Marks]:
        """The marks of those of these runs of which any tuple has matched."""
        known = {run: self._now.get(run, self._before.get(run)) for _, of_side in self._tracked_of(runs) for run in of_side}
        return {run: marks for run, marks in known.items() if marks is not None}

    def put(self, run: HeldRun, marks: Marks) -> None:
        """Set the marks of a run that was made of others."""
        self._now[run] = marks

    def _of(self, run: HeldRun) -> Marks:
        found = self._now.get(run)
        if found is None:
            before = self._before.get(run)
            found = self._now[run] = np.zeros(run.run.rows, dtype=bool) if before is None else before.copy()
        return found

    def _fresh(self, held: HeldRun, start: int, end: int) -> NDArray[np.int64]:
        """Rows among these that have first matched in this epoch. O(end - start), or O(1) where nothing of the run has matched in it."""
        now, before = self._now.get(held), self._before.get(held)
        if now is None or start == end:
            return np.empty(0, dtype=np.int64)
        return start + np.flatnonzero(now[start:end] if before is None else now[start:end] > before[start:end])

    def _owned(self, area: int, place: int, held: HeldRun) -> tuple[int, int]:
        keys = self._areas[area].writes[place]
        return (0, 0) if keys is None else places_of(held.run.key, keys)

    def _tracked_of(self, runs: Runs) -> Iterator[tuple[AreaSide, Sequence[HeldRun]]]:
        return ((key, of_side) for key, of_side in runs.items() if key[1] in self._tracked)


def rows_of(run: Run, identities: NDArray[np.int64], start: int, end: int) -> NDArray[np.int64]:
    """The rows of the run from ``start`` to ``end`` with these identities, one or more, which ascend. O(rows log identities)."""
    own = run.batch.column(ID).slice(start, end - start).to_numpy()
    places = np.searchsorted(identities, own)
    places[places == len(identities)] = 0
    return start + np.flatnonzero(identities[places] == own)


def identities_of(parts: Sequence[Rows]) -> NDArray[np.int64]:
    """The identities of these tuples, one or more. O(tuples)."""
    return np.concatenate([run.batch.column(ID).to_numpy().take(rows) for run, rows in parts])


def read_identities(storage: Storage, blocks: Sequence[Block]) -> NDArray[np.int64]:
    """Of one or more marks blocks, one after the other. O(marks). Raises StorageError."""
    return np.concatenate([batch.column(ID).to_numpy() for batch in load_all(storage, blocks)])


def encode_marks(identities: NDArray[np.int64]) -> pa.Buffer:
    """The bytes of a marks block. Memory: one copy of them."""
    return encode(pa.RecordBatch.from_pydict({ID: identities}))


def describe_marks(parts: Sequence[Rows], units: UnitRange, *, place: int, area: int) -> Block:
    """The log's record of a marks block of an area with these units, but for its name, plan and bytes. O(parts)."""
    blocks = [
        Block(
            name="", place=place, generation=0, area=area, rows=len(rows), nbytes=0,
            key_min=run.key[rows[0]].item(), key_max=run.key[rows[-1]].item(), unit_min=units.low, unit_max=units.high - 1,
            time_min=run.time_min, time_max=run.time_max,
        )
        for run, rows in parts
    ]  # fmt: skip
    return together(blocks)


def merge_marks(storage: Storage, blocks: Sequence[Block]) -> tuple[pa.Buffer, Block]:
    """The bytes of one marks block of several, and the log's record of it, but for its name. O(marks). Raises StorageError."""
    data = encode_marks(read_identities(storage, blocks))
    made = replace(together(blocks), generation=0, area=-1, nbytes=data.size, parts=None, extent=None)
    return data, replace(made, checks=checks_of(data))


def together(blocks: Sequence[Block]) -> Block:
    """The first of some blocks of one side, with the rows of all, and ranges that hold them. O(blocks)."""
    return replace(
        blocks[0],
        rows=sum(block.rows for block in blocks),
        key_min=min(block.key_min for block in blocks),
        key_max=max(block.key_max for block in blocks),
        unit_min=min(block.unit_min for block in blocks),
        unit_max=max(block.unit_max for block in blocks),
        time_min=min((block.time_min for block in blocks if block.time_min is not None), default=None),
        time_max=max((block.time_max for block in blocks if block.time_max is not None), default=None),
    )


def read_marks(
    storage: Storage, blocks: Sequence[Block], areas: Mapping[int, Area], runs: Runs, join: JoinOperator
) -> dict[HeldRun, Marks]:
    """A join's marks of runs that were read back, from committed blocks. O(marks log marks + rows log marks). Raises StorageError."""
    found: dict[HeldRun, Marks] = {}
    blocks = [block for block in blocks if block.join == join.tag]
    for place in join.tracked:
        held_here = {area: held_on(areas[area], place) for area, of_place in runs if of_place == place and areas[area].holds[place]}
        met = [block for block in blocks if any(block.meets(region) for regions in held_here.values() for region in regions)]
        if not met:
            continue
        identities = np.unique(read_identities(storage, met))
        for area in held_here:
            for held in runs[area, place]:
                rows = rows_of(held.run, identities, 0, held.run.rows)
                if len(rows):
                    marks = found[held] = np.zeros(held.run.rows, dtype=bool)
                    marks[rows] = True
    return found
