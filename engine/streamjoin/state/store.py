"""The runs that a worker holds: a cache of the durable blocks, checked against the commit at every epoch.

A task's runs change only as a whole: an epoch's join *stages* new runs under the token of its attempt, and the next epoch goes on from the
token that was committed. Whatever was staged by other attempts is dropped then; when the committed token is not here (another process, a
lost executor, a new driver) the runs are read back from the blocks. An epoch that begins before the one before it is committed goes on
from what that staged here, and is committed only if just that was committed. So no result depends on where Spark runs a task, or how often.

Always holds: the tuples of staged and opened runs are immutable, and every :class:`HeldRun` with ``blocks`` holds exactly those blocks'
tuples, plus tuples of the area that other areas store.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from streamjoin.kernel.index import Index, Indexed
from streamjoin.kernel.run import Run, take
from streamjoin.language.schema import Schema
from streamjoin.language.window import Ends
from streamjoin.scheme.region import Region, difference, held_by, intersection, regions
from streamjoin.scheme.routing import Selection
from streamjoin.scheme.tiling import UNITS, Area, KeyRange
from streamjoin.state.blocks import DOWNLOADS, Block, Excerpt, conformed, load_excerpt, load_excerpts, map_scratch
from streamjoin.state.storage import Storage

UPLOADS = 8
"""The number of files that are written at once, of two epochs: an object store answers late rather than slowly, and so does a disk that
must flush them."""
SCRATCH_BYTES = 1 << 20
"""Copied runs larger than this go to a mapped scratch file, so that the operating system may evict them."""


@dataclass(slots=True, eq=False)
class HeldRun:
    """A run, and the durable blocks that it makes up for this area; none: other areas store these tuples."""

    run: Run
    """Set once more, on whatever thread, where the same tuples have come to mapped pages."""
    blocks: tuple[str, ...] = ()
    indexes: dict[Indexed, Index] = field(default_factory=dict)
    """Those that were made of it."""

    def by(self, indexed: Indexed, schema: Schema, *, times: bool) -> Run:
        """The run as an index of it shows it, which is made when it is first asked for. ``schema``: of its stream; ``times``: see Index."""
        if indexed.key is None and indexed.slide_micros is None:
            return self.run
        index = self.indexes.get(indexed)
        if index is None:
            index = self.indexes[indexed] = indexed.of(self.run, schema)
        return index.over(self.run, times=times)

    @property
    def nbytes(self) -> int:
        """The bytes of the run and its indexes."""
        return self.run.nbytes + sum(index.nbytes for index in self.indexes.values())


Done = TypeVar("Done")

Marks = NDArray[np.bool_]
"""For each row of a run: whether the tuple has matched."""

JoinMarks = Mapping[str, Mapping[HeldRun, Marks]]
"""By join."""

Positions = Mapping[tuple[str, int], NDArray[np.int64]]
"""By join and side, the positions in their stream of a chain's tuples that have matched, ascending."""

TaskRuns = Mapping[tuple[int, int], tuple[HeldRun, ...]]
"""(index of the area in its scheme, place) -> runs, oldest first."""


@dataclass(frozen=True, slots=True)
class Staged:
    """What an attempt at a task of an epoch has left."""

    epoch: int
    task: int
    runs: TaskRuns
    marks: JoinMarks
    """Which tuples have matched, of runs of which any have and it matters."""
    positions: Positions
    """The same along a chain."""


class PredecessorMissing(RuntimeError):  # noqa: N818
    """The epoch before, which is still in flight, has left no runs in this process. Tried again after its commit, the epoch succeeds."""


class RunStore:
    """All runs of one worker process, of any number of joins and tasks. Not safe for use by several threads."""

    def __init__(self) -> None:
        self._staged: dict[str, dict[str, Staged]] = {}
        """By query and token."""
        self._fetching: dict[Excerpt, Future[pa.RecordBatch]] = {}
        self._background: tuple[str, Future[Any]] | None = None

    @cached_property
    def _pool(self) -> ThreadPoolExecutor:
        """For what goes on while epochs do; its threads are made as they are needed."""
        return ThreadPoolExecutor(DOWNLOADS, thread_name_prefix="background")

    @cached_property
    def writing(self) -> ThreadPoolExecutor:
        """For what epochs write: threads of each epoch's own would take a twentieth of a small epoch's processor time."""
        return ThreadPoolExecutor(UPLOADS, thread_name_prefix="writing")

    def fetch(self, storage: Storage, excerpts: Collection[Excerpt]) -> None:
        """Begin to bring these excerpts into the process, in the background, and drop all others."""
        self._fetching = {excerpt: self._fetching[excerpt] for excerpt in excerpts if excerpt in self._fetching}
        absent = [excerpt for excerpt in excerpts if excerpt not in self._fetching]
        for excerpt in absent:
            self._fetching[excerpt] = self._pool.submit(load_excerpt, storage, excerpt)

    def fetched(self) -> dict[Excerpt, pa.RecordBatch]:
        """The excerpts that have been fetched. Those that could not be read are left out: the reader that needs them will find out why."""
        done = {excerpt: future for excerpt, future in self._fetching.items() if future.done()}
        return {excerpt: future.result() for excerpt, future in done.items() if future.exception() is None}

    def in_background(self, name: str, work: Callable[[], Done]) -> Done | None:
        """What the work of this name has returned, which is begun when it is first asked for; None: it is not ready.

        There is one at a time: another name forgets the one before. Raises what the work raised, and then begins it again.
        """
        if self._background is None or self._background[0] != name:
            self._background = name, self._pool.submit(work)
        future = self._background[1]
        if not future.done():
            return None
        if future.exception() is not None:
            self._background = None
        done: Done = future.result()
        return done

    def get(self, query: str, token: str) -> Staged | None:
        """What this attempt staged here; None: it ran elsewhere."""
        return self._staged.get(query, {}).get(token)

    def following(self, query: str, task: int, epoch: int) -> tuple[str, Staged]:
        """The last attempt at the task in an epoch that is in flight: its token, and what it staged. Raises PredecessorMissing."""
        for token, staged in self._staged.get(query, {}).items():
            if (staged.epoch, staged.task) == (epoch, task):
                return token, staged
        raise PredecessorMissing(f"task {task} of epoch {epoch} has not run in this process")

    def stage(
        self,
        query: str,
        task: int,
        epoch: int,
        token: str,
        runs: TaskRuns,
        marks: JoinMarks | None = None,
        positions: Positions | None = None,
    ) -> None:
        """Keep an attempt's runs; of several attempts at the same task of the same epoch, those of the last."""
        attempts = self._staged.setdefault(query, {})
        for other in [other for other, staged in attempts.items() if (staged.epoch, staged.task) == (epoch, task)]:
            del attempts[other]
        attempts[token] = Staged(epoch, task, runs, marks or {}, positions or {})

    def retain(self, query: str, tokens: Collection[str], since: int) -> None:
        """Drop what is neither of these attempts nor of the epochs from ``since`` on, and the runs of all other queries: a worker
        outlives a driver that was replaced."""
        attempts = self._staged.get(query, {})
        self._staged = {query: {token: staged for token, staged in attempts.items() if staged.epoch >= since or token in tokens}}


@dataclass(frozen=True, slots=True)
class Gathered:
    """The runs of some areas, and where they came from: tuples, replicas counted each."""

    runs: dict[tuple[int, int], tuple[HeldRun, ...]]
    kept: int
    """From runs that were in this process already, under another plan."""
    read: int
    """From blocks."""


Here = Iterable[tuple[Area, Mapping[int, tuple[HeldRun, ...]]]]
"""Areas of the plan before whose runs, by place, are in this process, complete."""


def read_back(
    storage: Storage,
    blocks: Sequence[Block],
    areas: Mapping[int, Area],
    generation: int,
    expired_before: Ends,
    *,
    held_as: Sequence[pa.Schema] = (),
    here: Here = (),
    fetched: Mapping[Excerpt, pa.RecordBatch] | None = None,
) -> Gathered:
    """The runs of these areas (A-DSP, Eqs. 15 to 17): what the process holds under the plan before stays, and only what is needed beyond
    that is cut from the committed blocks of this plan and older ones.

    ``held_as``: by place, the columns of held tuples, which blocks that were written for other joins may not have
    (:func:`~streamjoin.state.blocks.conformed`). ``fetched``: excerpts that are in this process already.
    O(blocks x areas) plus the tuples that must be copied: what lies wholly inside is mapped, not read.
    """
    held = list(here)
    found: dict[tuple[int, int], list[HeldRun]] = {(index, place): [] for index, area in areas.items() for place in range(len(area.holds))}
    needed: dict[tuple[int, int], tuple[Region, ...]] = {}
    kept = read = 0
    for (index, place), runs_found in found.items():
        left = held_on(areas[index], place)
        for area, runs in held:
            common = intersection(left, held_on(area, place))
            if not common:
                continue
            left = difference(left, common)
            for run in runs.get(place, ()):
                part = select(run.run.batch, common)
                kept += part.num_rows
                if part.num_rows:
                    runs_found.append(HeldRun(Run.of(part)))
        needed[index, place] = left
    wanted = []
    for block in blocks:
        if not block.is_expired(expired_before):
            keys = [key for key, left in needed.items() if key[1] == block.place and any(block.meets(region) for region in left)]
            excerpt = block.excerpt(region for key in keys for region in needed[key])
            if excerpt is not None:
                wanted.append((excerpt, keys))
    for (excerpt, keys), batch in zip(wanted, _loaded(storage, [excerpt for excerpt, _ in wanted], fetched or {}), strict=True):
        block = excerpt.block
        tuples = conformed(batch, held_as[block.place]) if held_as else batch
        for index, place in keys:
            part = select(tuples, needed[index, place], (block.unit_min, block.unit_max))
            read += part.num_rows
            if part.num_rows:
                own = block.generation == generation and block.area == index
                found[index, place].append(HeldRun(Run.of(part), (block.name,) if own else ()))
    return Gathered({key: tuple(runs) for key, runs in found.items()}, kept, read)


def missing(blocks: Iterable[Block], before: Iterable[Area], after: Iterable[Area]) -> list[Excerpt]:
    """What a process that holds the areas ``before`` will have to read to hold those ``after``. O(blocks x regions)."""
    needed = difference(held_by(after), held_by(before))
    return [excerpt for block in blocks if (excerpt := block.excerpt(needed)) is not None]


def _loaded(storage: Storage, excerpts: Sequence[Excerpt], fetched: Mapping[Excerpt, pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    by_name = {excerpt.block.name: (excerpt, batch) for excerpt, batch in fetched.items()}
    here = {excerpt: found[1] for excerpt in excerpts if (found := by_name.get(excerpt.block.name)) and found[0].covers(excerpt)}
    absent = load_excerpts(storage, [excerpt for excerpt in excerpts if excerpt not in here])
    for excerpt in excerpts:
        yield here[excerpt] if excerpt in here else next(absent)


def holds(area: Area, place: int) -> bool:
    """Whether the area keeps this place's tuples, or is only probed by them."""
    return area.holds[place]


def held_on(area: Area, place: int) -> tuple[Region, ...]:
    """The regions of this place that the area keeps."""
    if not holds(area, place):
        return ()
    return regions(place, area.keys[place], area.units[place])


def select(batch: pa.RecordBatch, parts: Sequence[Region], unit_range: tuple[int, int] = (0, UNITS - 1)) -> pa.RecordBatch:
    """The tuples of a sorted batch that lie in these disjoint regions, in order: a slice where they are neighbours, else a copy.

    ``unit_range``: what is known of the batch's unit coordinates, both ends included.
    """
    key, unit = batch.column("_key").to_numpy(), batch.column("_unit").to_numpy()
    chosen = []
    for part in parts:
        start, end = places_of(key, part.keys)
        if part.units.low <= unit_range[0] and unit_range[1] < part.units.high:
            rows = np.arange(start, end)
        else:
            rows = np.flatnonzero(part.units.contains(unit[start:end])) + start
        if len(rows):
            chosen.append(rows)
    if not chosen:
        return batch.slice(0, 0)
    rows = chosen[0] if len(chosen) == 1 else np.sort(np.concatenate(chosen))
    if rows[-1] - rows[0] + 1 == len(rows):
        return batch.slice(int(rows[0]), len(rows))
    return settle(take(batch, pa.array(rows)))


def slice_keys(batch: pa.RecordBatch, keys: KeyRange) -> pa.RecordBatch:
    """The part of a batch sorted by key that lies in the range, without a copy. O(log rows)."""
    start, end = places_of(batch.column("_key").to_numpy(), keys)
    return batch.slice(start, end - start)


def rows_selected(batch: pa.RecordBatch, selection: Selection) -> pa.RecordBatch:
    """What a router has selected: without a copy, if that is a slice."""
    if isinstance(selection, slice):
        return batch.slice(selection.start, selection.stop - selection.start)
    return take(batch, pa.array(selection))


def places_of(key: NDArray[Any], keys: KeyRange) -> tuple[int, int]:
    """The positions in ascending keys where the range begins and ends. O(log rows)."""
    start = 0 if keys.low is None else int(np.searchsorted(key, keys.low, side="left"))
    end = len(key) if keys.high is None else int(np.searchsorted(key, keys.high, side="left"))
    return start, max(start, end)


def settle(batch: pa.RecordBatch) -> pa.RecordBatch:
    """A copied batch, moved to a mapped scratch file when it is large."""
    return map_scratch(batch) if batch.nbytes > SCRATCH_BYTES else batch
