"""Which tuples of a tracked side have matched: for outer, semi and anti joins (:class:`streamjoin.language.join_type.JoinType`).

A tuple may be in several areas, and any of them may find its first match; the area that stores it, its *owner*, answers for it. Each area
marks what it finds in its own runs. What it finds of tuples that it does not own it tells the owners, once an epoch: these *notices* are a
second round of the exchange, and only once all of them have come is it known which tuples have matched by this epoch.

Always holds:

- A tuple's mark is set in the epoch of its first match and never taken back. The owner writes it in that epoch, as a row of a *marks* block
  (key, unit coordinate, time and identity), which the epoch's commit names. So who reads an area's blocks back reads its marks too.
- Tuples that come alone do so in one epoch: that in which ``expired_before`` passes them, or, if they were passed before they came, that in
  which they came. Their marks are complete then, as nothing of a later epoch can match them.
- Marks are copied before they are changed, so that those of an epoch that is committed outlive one that goes on from it and fails.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from streamjoin.epoch.spec import ID, EpochSpec, Piece, Plan
from streamjoin.kernel.joiner import Indices, Matched
from streamjoin.kernel.run import KEY, TIME, UNIT, Run, sort_run
from streamjoin.scheme.tiling import Area
from streamjoin.state.blocks import Block, load_all
from streamjoin.state.storage import Storage
from streamjoin.state.store import HeldRun, Marks, held_on, places_of, rows_selected, slice_keys

AreaSide = tuple[int, int]

Runs = Mapping[AreaSide, Sequence[HeldRun]]


class Matches:
    """The marks of one task's runs during one epoch."""

    def __init__(
        self, spec: EpochSpec, plan: Plan, areas: Mapping[int, Area], tracked: Sequence[int], before: Mapping[HeldRun, Marks]
    ) -> None:
        """``before``: as the epoch before has left them; of a run that is not among them nothing has matched."""
        self._spec, self._plan, self._areas, self._tracked, self._before = spec, plan, areas, tracked, before
        self._now: dict[HeldRun, Marks] = {}

    def marker(self, left: HeldRun, right: HeldRun) -> Matched:
        """Who is told of pairs of these two runs that match."""
        sides = [(side, run) for side, run in enumerate((left, right)) if side in self._tracked]

        def mark(*pairs: Indices) -> None:
            for side, run in sides:
                self._of(run)[pairs[side]] = True

        return mark

    def marks(self, run: HeldRun) -> Marks:
        """Whether each tuple has matched, by now. Not to be changed."""
        found = self._now.get(run)
        if found is None:
            found = self._before.get(run)
        return np.zeros(run.run.rows, dtype=bool) if found is None else found

    def notices(self, runs: Runs) -> Iterator[Piece]:
        """What the owners of tuples that are not ours are to know. O(rows that matched first here)."""
        for (area, side), of_side in self._tracked_of(runs):
            for held in of_side:
                fresh = self._fresh(held)
                start, end = self._owned(area, side, held)
                rows = fresh[(fresh < start) | (fresh >= end)]
                if len(rows):
                    yield from self._to_owners(side, held.run.batch.select([KEY, UNIT, ID]).take(pa.array(rows)))

    def _to_owners(self, side: int, batch: pa.RecordBatch) -> Iterator[Piece]:
        areas = self._plan.scheme.areas
        for number, selection in self._plan.routers[side].route(batch.column(KEY).to_numpy(), batch.column(UNIT).to_numpy()):
            keys = areas[number].writes[side]
            if keys is None:
                continue
            owned = slice_keys(rows_selected(batch, selection), keys)
            if owned.num_rows:
                yield Piece(areas[number].task, number, side, pa.py_buffer(np.ascontiguousarray(owned.column(ID).to_numpy())))

    def take(self, notices: Iterable[Piece], runs: Runs) -> None:
        """Mark what other areas have found. O(n log n) for the runs of the areas that notices came for."""
        found: dict[AreaSide, list[NDArray[np.int64]]] = defaultdict(list)
        for notice in notices:
            found[notice.area, notice.side].append(np.frombuffer(notice.data, dtype=np.int64))
        for key, identities in found.items():
            matched = np.unique(np.concatenate(identities))
            for held in runs.get(key, ()):
                rows = rows_of(held.run, matched)
                if len(rows):
                    self._of(held)[rows] = True

    def first_matched(self, runs: Runs) -> Iterator[tuple[AreaSide, pa.RecordBatch]]:
        """The tuples of each area that are its own and have first matched in this epoch, whole, sorted by key."""
        for key, of_side in self._tracked_of(runs):
            parts = []
            for held in of_side:
                rows = self._fresh(held)
                start, end = self._owned(*key, held)
                rows = rows[(rows >= start) & (rows < end)]
                if len(rows):
                    parts.append(held.run.batch.take(pa.array(rows)))
            if parts:
                yield key, sort_run(pa.concat_batches(parts)) if len(parts) > 1 else parts[0]

    def passed(self, runs: Runs, *, fresh: bool) -> Iterator[tuple[int, pa.RecordBatch]]:
        """By side, our tuples that have matched nothing and never will: those that this epoch lets go, of runs that were held before
        it, or, ``fresh``, those that came in it too late for anything that is still to come. O(rows of runs where there are such)."""
        spec = self._spec
        for (area, side), of_side in self._tracked_of(runs):
            bound, released = spec.expired_before[side], None if fresh else spec.released_before[side]
            for held in of_side:
                run = held.run
                if not spec.is_last and (bound is None or run.time_min is None or run.time_min >= bound):
                    continue
                start, end = self._owned(area, side, held)
                gone = ~self.marks(held)[start:end]
                if run.time is not None:
                    if bound is not None and not spec.is_last:
                        gone &= run.time[start:end] < bound
                    if released is not None:
                        gone &= run.time[start:end] >= released
                rows = np.flatnonzero(gone) + start
                if len(rows):
                    yield side, run.batch.take(pa.array(rows))

    def after(self, runs: Iterable[HeldRun]) -> dict[HeldRun, Marks]:
        """The marks of those of these runs of which any tuple has matched."""
        known = {run: self._now.get(run, self._before.get(run)) for run in runs}
        return {run: marks for run, marks in known.items() if marks is not None}

    def put(self, run: HeldRun, marks: Marks) -> None:
        """Of a run that was made of others."""
        self._now[run] = marks

    def _of(self, run: HeldRun) -> Marks:
        found = self._now.get(run)
        if found is None:
            before = self._before.get(run)
            found = self._now[run] = np.zeros(run.run.rows, dtype=bool) if before is None else before.copy()
        return found

    def _fresh(self, held: HeldRun) -> NDArray[np.int64]:
        """Rows that have first matched in this epoch."""
        now, before = self._now.get(held), self._before.get(held)
        if now is None:
            return np.empty(0, dtype=np.int64)
        return np.flatnonzero(now if before is None else now & ~before)

    def _owned(self, area: int, side: int, held: HeldRun) -> tuple[int, int]:
        keys = self._areas[area].writes[side]
        return (0, 0) if keys is None else places_of(held.run.key, keys)

    def _tracked_of(self, runs: Runs) -> Iterator[tuple[AreaSide, Sequence[HeldRun]]]:
        return ((key, of_side) for key, of_side in runs.items() if key[1] in self._tracked)


def rows_of(run: Run, identities: NDArray[np.int64]) -> NDArray[np.int64]:
    """The rows of the run with these identities, which ascend. O(rows log identities)."""
    own = run.batch.column(ID).to_numpy()
    places = np.searchsorted(identities, own)
    places[places == len(identities)] = 0
    return np.flatnonzero(identities[places] == own) if len(identities) else np.empty(0, dtype=np.int64)


def marks_batch(tuples: pa.RecordBatch) -> pa.RecordBatch:
    """What a marks block has of these tuples."""
    return tuples.select([name for name in (KEY, UNIT, TIME, ID) if name in tuples.schema.names])


def read_marks(
    storage: Storage, blocks: Sequence[Block], areas: Mapping[int, Area], runs: Runs, tracked: Sequence[int]
) -> dict[HeldRun, Marks]:
    """The marks of runs that were read back, from committed blocks. O(marks log marks + rows log marks). Raises StorageError."""
    found: dict[HeldRun, Marks] = {}
    for side in tracked:
        held_here = {area: held_on(areas[area], side) for area, of_side in runs if of_side == side and areas[area].holds[side]}
        met = [block for block in blocks if any(block.meets(region) for regions in held_here.values() for region in regions)]
        if not met:
            continue
        identities = np.unique(np.concatenate([batch.column(ID).to_numpy() for batch in load_all(storage, met)]))
        for area in held_here:
            for held in runs[area, side]:
                rows = rows_of(held.run, identities)
                if len(rows):
                    marks = found[held] = np.zeros(held.run.rows, dtype=bool)
                    marks[rows] = True
    return found
