"""Lays the held tuples of a join of three and more streams by another graph of its condition: of blocks that lie by one key of their
stream, blocks that lie by others.

The driver does it by itself while nothing is in flight, once in a long while (``graphs``). Nothing is replaced: what is written here is
named by no commit until the one that names it in place of the old blocks, so that a crash leaves files that are swept.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa

from streamjoin.controlplane.deployment import Deployed, for_held
from streamjoin.controlplane.joins import by_graph
from streamjoin.controlplane.planning import utilization
from streamjoin.epoch.spec import Config
from streamjoin.job import Job
from streamjoin.kernel.keys import encode_keys
from streamjoin.kernel.run import sort_order, take
from streamjoin.language.graph import JoinGraph
from streamjoin.language.layout import PlacedGraph
from streamjoin.scheme.tiling import Scheme
from streamjoin.state.blocks import FOLDER, Axes, Block, checks_of, describe, encode_in_parts, load_all, name_of
from streamjoin.state.checkpoint import Checkpoint
from streamjoin.state.storage import Storage

MOST_BYTES = 64 << 20
"""Tuples of so many bytes are laid anew at once, if one block has no more."""


def laid(
    job: Job,
    checkpoint: Checkpoint,
    placed: PlacedGraph,
    graph: JoinGraph,
    storage: Storage,
    config_of: Callable[[Job], Config],
    prefix: str,
    workers: int,
    moved: Callable[[], None],
) -> Deployed | None:
    """The checkpoint where a join lies by another of its graphs, with the new blocks, which are written, and a plan for at most so many
    workers; None: the model, or the workers' room, does not allow it. ``prefix``: of the blocks' names; ``moved`` is called after each.

    O(tuples log tuples). Raises StorageError.
    """
    found = by_graph(job, checkpoint, placed, graph)
    if found is None:
        return None
    lying, after, was = found
    fullest, more = max(utilization(job, checkpoint).values(), default=0.0), len(was) / len(placed.places)
    if more > 1 and fullest * more >= job.tau2:
        return None
    held = [block for block in checkpoint.state.blocks if not block.is_expired(checkpoint.state.expired)]
    blocks = (*after.state.blocks, *rekeyed(storage, held, config_of(lying), was, prefix, moved))
    deployed = for_held(lying, replace(after, state=replace(after.state, blocks=blocks)), storage, workers)
    return deployed if Scheme.from_json(deployed.checkpoint.plan.scheme).tasks <= workers else None


def rekeyed(
    storage: Storage, blocks: Sequence[Block], config: Config, was: Mapping[int, int], prefix: str, moved: Callable[[], None]
) -> tuple[Block, ...]:
    """Write the tuples of these blocks by the keys of other places; the new blocks.

    ``was``: for each place of ``config`` that is to be filled, the place that its stream's tuples are in. The others are as of ``laid``.
    A tuple that lacks a key of any of these places can match nothing, and is in none. O(tuples log tuples). Memory: ``MOST_BYTES``, or one
    block, four times. Raises StorageError.
    """
    layout, made = config.layout, list[Block]()
    axes = None if storage.local_path(FOLDER) is not None else Axes(keys=True, units=True)
    for source in sorted(set(was.values())):
        places = [place for place, of in was.items() if of == source]
        schema = config.streams[layout.places[places[0]].stream].schema
        for batch in _portions(storage, [block for block in blocks if block.place == source]):
            encoded = [encode_keys(batch, layout.places[place].key, schema) for place in places]
            has_keys = np.logical_and.reduce([np.ones(batch.num_rows, bool), *(valid for _, valid in encoded if valid is not None)])
            for place, (keys, _) in zip(places, encoded, strict=True):
                rows = np.flatnonzero(has_keys)
                if not len(rows):
                    continue
                rows = rows[sort_order(keys[rows])]
                tuples = take(batch, pa.array(rows))
                tuples = tuples.set_column(tuples.schema.get_field_index("_key"), "_key", pa.array(keys[rows]))
                data, parts = encode_in_parts(tuples, axes)
                name = name_of(f"{prefix}-{place}-{uuid.uuid4().hex[:8]}", small=False)
                storage.put(name, memoryview(data))
                # Of no area, and of an older plan: so it is read, cut and merged as what another plan has left.
                of_plan = {"place": place, "generation": 0, "area": -1}
                made.append(describe(tuples, name=name, **of_plan, nbytes=data.size, parts=parts, checks=checks_of(data, parts)))
                moved()
    return tuple(made)


def _portions(storage: Storage, blocks: Sequence[Block]) -> Iterator[pa.RecordBatch]:
    """Their tuples, those of like age together, so that the new blocks expire as these would have."""
    ordered = sorted(blocks, key=lambda block: (block.time_max or 0, block.name))
    waiting, nbytes = list[pa.RecordBatch](), 0
    for batch in load_all(storage, ordered):
        if waiting and (nbytes + batch.nbytes > MOST_BYTES or batch.schema != waiting[0].schema):
            yield _together(waiting)
            waiting, nbytes = [], 0
        waiting.append(batch)
        nbytes += batch.nbytes
    if waiting:
        yield _together(waiting)


def _together(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)
