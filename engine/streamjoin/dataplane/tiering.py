"""The fourth phase of a join task (``dataplane.join``): runs are merged in tiers, and old blocks are rewritten in the background."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import pyarrow as pa

from streamjoin.dataplane.compiled import Compiled, compiled
from streamjoin.dataplane.matches import Matches, merge_marks
from streamjoin.dataplane.writes import Writes
from streamjoin.epoch.reports import Rewritten, TaskReport
from streamjoin.epoch.spec import Config, EpochSpec, Rewrite
from streamjoin.kernel.run import Run, merge_runs, tiers
from streamjoin.state.blocks import FOLDER, Axes, Block, checks_of, conformed, describe, encode_in_parts, load_all, name_of
from streamjoin.state.storage import StorageError
from streamjoin.state.store import (
    HeldRun,
    Marks,
    RunStore,
)

MARK = "_mark"
"""How columns of runs begin while they are merged: whether the tuple has matched, by one join."""
LARGE_BYTES = 32 << 20
"""A merged run larger than this goes to mapped pages before the next merge begins, so that no two of them fill the memory at once."""


def in_tiers(
    key: tuple[int, int], held: tuple[HeldRun, ...], spec: EpochSpec, worker: Compiled, writes: Writes, matches: Mapping[str, Matches]
) -> tuple[list[HeldRun], list[HeldRun]]:
    """Phase 4 for one area and side: the runs that are as they will be held, and merged ones whose blocks are being written.

    Stored runs merge with stored ones only, for whole blocks.
    """
    if key[1] in spec.ended:
        return [], []
    bound = spec.expired_before[key[1]]
    tracking = [matches[join.name] for join in worker.joins if key[1] in join.tracked]
    kept: list[HeldRun] = []
    made: list[HeldRun] = []
    for stored in (True, False):
        part = [run for run in held if bool(run.blocks) is stored]
        groups = tiers([run.run for run in part], worker.config.window)
        grouped = {index for group in groups for index in group}
        kept += [run for index, run in enumerate(part) if index not in grouped]
        for group in groups:
            run, marks = _merged([part[index] for index in group], bound, tracking)
            names: tuple[str, ...] = ()
            if stored:
                writes.replace(name for index in group for name in part[index].blocks)
                names = writes.block(key, run) if run.rows else ()
            if run.rows:
                merged = HeldRun(run, names)
                for of_join, own in zip(tracking, marks, strict=True):
                    of_join.put(merged, own)
                if run.nbytes > LARGE_BYTES:
                    writes.map(merged)
                    kept.append(merged)
                else:
                    made.append(merged)
    return kept, made


def _merged(parts: Sequence[HeldRun], bound: int | None, tracking: Sequence[Matches]) -> tuple[Run, list[Marks]]:
    """One run of several, and its marks by each join that keeps some. O(rows log parts)."""
    if not tracking:
        return merge_runs([part.run for part in parts], bound), []
    names = [f"{MARK}{number}" for number in range(len(tracking))]
    merged = merge_runs([_marked(part, names, tracking) for part in parts], bound)
    marks = [merged.batch.column(name).to_numpy().view(np.bool_) for name in names]
    batch = merged.batch.drop_columns(names)
    return replace(merged, batch=batch, nbytes=batch.nbytes), marks


def _marked(part: HeldRun, names: Sequence[str], tracking: Sequence[Matches]) -> Run:
    batch = part.run.batch
    for name, matches in zip(names, tracking, strict=True):
        batch = batch.append_column(name, pa.array(matches.marks(part).view(np.uint8)))
    return replace(part.run, batch=batch)


def go_on_rewriting(spec: EpochSpec, task: int, config: Config, store: RunStore, report: TaskReport) -> None:
    """Go on with a rewrite of blocks, if it is this task's, and report it once it is ready."""
    if spec.rewrite is None or spec.rewrite.task != task:
        return
    try:
        report.rewritten = store.in_background(spec.rewrite.name, partial(_rewritten, spec, spec.rewrite, config))
    except StorageError as error:
        report.rewrite_error = str(error)


def _rewritten(spec: EpochSpec, rewrite: Rewrite, config: Config) -> Rewritten:
    """Make one block of several. O(rows * log blocks). Memory: twice their tuples."""
    storage = config.storage
    made = merge_marks(storage, rewrite.blocks) if rewrite.of_marks else _merged_blocks(spec, rewrite, config)
    if made is None:
        return Rewritten(rewrite.name, None)
    data, block = made
    small = data.size <= spec.small_bytes
    name = name_of(f"{rewrite.name}-{uuid.uuid4().hex[:8]}", small=small)
    if not small:
        storage.put(name, memoryview(data))
    return Rewritten(rewrite.name, replace(block, name=name), data.to_pybytes() if small else b"")


def _merged_blocks(spec: EpochSpec, rewrite: Rewrite, config: Config) -> tuple[pa.Buffer, Block] | None:
    """The bytes of one block of several, and the log's record of it, but for its name; None: all tuples have expired."""
    storage, place = config.storage, rewrite.place
    held_as = compiled(spec.config).held[place]
    batches = [conformed(batch, held_as) for batch in load_all(storage, rewrite.blocks)]
    merged = merge_runs([Run.of(batch) for batch in batches], spec.expired_before[place])
    if not merged.rows:
        return None
    axes = None if storage.local_path(FOLDER) is not None else Axes(keys=config.layout.places[place].key is not None, units=True)
    data, parts = encode_in_parts(merged.batch, axes)
    checks = checks_of(data, parts)
    return data, describe(merged.batch, name="", place=place, generation=0, area=-1, nbytes=data.size, parts=parts, checks=checks)
