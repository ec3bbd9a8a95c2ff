"""The runs that a worker holds: a cache of the durable blocks, checked against the commit at every epoch.

A task's runs change only as a whole: an epoch's join *stages* new runs under the token of its attempt, and the next epoch goes on from the
token that was committed. Whatever was staged by other attempts is dropped then; when the committed token is not here (another process, a
lost executor, a new driver) the runs are read back from the blocks. An epoch that begins before the one before it is committed goes on
from what that staged here, and is committed only if just that was committed. So no result depends on where Spark runs a task, or how often.

Always holds: staged and opened runs are immutable, and every :class:`HeldRun` with ``blocks`` holds exactly those blocks' tuples, plus
tuples of the area that other areas store.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from streamjoin.kernel.run import Run
from streamjoin.scheme.tiling import Area, KeyRange
from streamjoin.state.blocks import LEFT, SIDES, Block, encode, load_all, map_scratch
from streamjoin.state.storage import Storage

SCRATCH_BYTES = 1 << 20
"""Copied runs larger than this go to a mapped scratch file, so that the operating system may evict them."""


@dataclass(frozen=True, slots=True)
class HeldRun:
    """A run, and the durable blocks that it makes up for this area; none: other areas store these tuples."""

    run: Run
    blocks: tuple[str, ...] = ()


TaskRuns = Mapping[tuple[int, int], tuple[HeldRun, ...]]
"""(index of the area in its scheme, side) -> runs, oldest first."""


@dataclass(frozen=True, slots=True)
class _Staged:
    epoch: int
    task: int
    runs: TaskRuns


class PredecessorMissing(RuntimeError):  # noqa: N818
    """The epoch before, which is still in flight, has left no runs in this process. Tried again after its commit, the epoch succeeds."""


class RunStore:
    """All runs of one worker process, of any number of joins and tasks. Not safe for use by several threads."""

    def __init__(self) -> None:
        self._staged: dict[str, dict[str, _Staged]] = {}
        """By query and token."""

    def get(self, query: str, token: str) -> TaskRuns | None:
        """The runs that this attempt staged here; None: it ran elsewhere."""
        staged = self._staged.get(query, {}).get(token)
        return None if staged is None else staged.runs

    def following(self, query: str, task: int, epoch: int) -> tuple[str, TaskRuns]:
        """The token and runs of the last attempt at the task in an epoch that is in flight. Raises PredecessorMissing."""
        for token, staged in self._staged.get(query, {}).items():
            if (staged.epoch, staged.task) == (epoch, task):
                return token, staged.runs
        raise PredecessorMissing(f"task {task} of epoch {epoch} has not run in this process")

    def stage(self, query: str, task: int, epoch: int, token: str, runs: TaskRuns) -> None:
        """Keep an attempt's runs; of several attempts at the same task of the same epoch, those of the last."""
        attempts = self._staged.setdefault(query, {})
        for other in [other for other, staged in attempts.items() if (staged.epoch, staged.task) == (epoch, task)]:
            del attempts[other]
        attempts[token] = _Staged(epoch, task, runs)

    def retain(self, query: str, tokens: Collection[str], since: int) -> None:
        """Drop what is neither of these attempts nor of the epochs from ``since`` on, and the runs of all other queries: a worker
        outlives a driver that was replaced."""
        attempts = self._staged.get(query, {})
        self._staged = {query: {token: staged for token, staged in attempts.items() if staged.epoch >= since or token in tokens}}


def read_back(
    storage: Storage,
    blocks: Iterable[Block],
    areas: Mapping[int, Area],
    generation: int,
    expired_before: tuple[int | None, int | None],
) -> dict[tuple[int, int], tuple[HeldRun, ...]]:
    """The runs of these areas, from the committed blocks: blocks of other areas and of older plans are cut to what falls inside.

    O(blocks x areas) plus the tuples that must be copied: blocks that lie wholly inside are mapped, not read.
    """
    found: dict[tuple[int, int], list[HeldRun]] = {(index, side): [] for index in areas for side in SIDES}
    wanted = []
    for block in blocks:
        if block.is_expired(expired_before):
            continue
        overlapped = [index for index, area in areas.items() if holds(area, block.side) and block.overlaps(area)]
        if overlapped:
            wanted.append((block, overlapped))
    for (block, overlapped), batch in zip(wanted, load_all(storage, [block.name for block, _ in wanted]), strict=True):
        for index in overlapped:
            part = cut(batch, areas[index], block.side, block)
            if part.num_rows:
                own = block.generation == generation and block.area == index
                found[index, block.side].append(HeldRun(Run.of(part), (block.name,) if own else ()))
    return {key: tuple(runs) for key, runs in found.items()}


def holds(area: Area, side: int) -> bool:
    """Whether the area keeps this side's tuples, or is only probed by them."""
    return area.holds_left if side == LEFT else area.holds_right


def cut(batch: pa.RecordBatch, area: Area, side: int, block: Block) -> pa.RecordBatch:
    """The tuples of a sorted block that fall into the area: a slice, or a copy where unit coordinates select among them."""
    keys = area.left_keys if side == LEFT else area.right_keys
    units = area.left_units if side == LEFT else area.right_units
    batch = slice_keys(batch, keys)
    if any(low <= block.unit_min and block.unit_max < high for low, high in units.parts):
        return batch
    chosen = np.flatnonzero(units.contains(batch.column("_unit").to_numpy()))
    return settle(batch.take(pa.array(chosen)))


def slice_keys(batch: pa.RecordBatch, keys: KeyRange) -> pa.RecordBatch:
    """The part of a batch sorted by key that lies in the range, without a copy. O(log rows)."""
    if keys.low is None and keys.high is None:
        return batch
    key = batch.column("_key").to_numpy()
    start = 0 if keys.low is None else int(np.searchsorted(key, keys.low, side="left"))
    end = len(key) if keys.high is None else int(np.searchsorted(key, keys.high, side="left"))
    return batch.slice(start, max(0, end - start))


def settle(batch: pa.RecordBatch) -> pa.RecordBatch:
    """A copied batch, moved to a mapped scratch file when it is large."""
    return map_scratch(encode(batch)) if batch.nbytes > SCRATCH_BYTES else batch
