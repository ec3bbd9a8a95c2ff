"""When the graphs of joins of three and more streams are compared, and by which samples.

Always holds: nothing here changes anything. The driver lays a join by another graph (``Driver.lay``), and never while an epoch is in
flight.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache

import numpy as np
import pyarrow as pa

from streamjoin.controlplane.deployment import drawn_from
from streamjoin.controlplane.flowing import flowing_of
from streamjoin.elastic.another_graph import Better, better_graph, is_worth_a_look
from streamjoin.job import Job
from streamjoin.kernel.keys import encode_keys
from streamjoin.language.choice import shares
from streamjoin.language.graph import JoinGraph
from streamjoin.language.layout import PlacedGraph
from streamjoin.language.predicate import KeyExpression, seeded
from streamjoin.state.checkpoint import Checkpoint
from streamjoin.state.storage import Storage

LOOK_SECONDS, MOST_LOOK_SECONDS = 60.0, 3600.0
"""Graphs are compared so long after a plan was taken up, and then twice as long after each time that it was in vain, up to the second."""
SAMPLE = 16_384
"""Tuples of each stream by which graphs are compared."""


class Graphs:
    """See the module. The loop's own."""

    def __init__(self) -> None:
        self._pause = LOOK_SECONDS
        self._looked_at: float | None = None

    def look(self, job: Job, checkpoint: Checkpoint, storage: Storage, now: float) -> tuple[PlacedGraph, Better] | None:
        """A join that is to be laid by another graph, if it is time to look and one is better. O(ways), and every now and then the time
        in which samples of what is held are read. Raises StorageError."""
        if self._looked_at is None:
            self._looked_at = now
        if not job.multiway or 0 <= now - self._looked_at < self._pause:
            return None
        self._looked_at, self._pause = now, min(2 * self._pause, MOST_LOOK_SECONDS)
        for placed, flowing, own in flowing_of(job.multiway, checkpoint):
            graphs = graphs_of(job, placed)
            held = sum(block.nbytes for block in checkpoint.state.blocks if block.place in placed.places)
            if not graphs or not is_worth_a_look(placed.graph, flowing, checkpoint.plan.path_plans[own], held):
                continue
            keys_of = _sampler(job, checkpoint, placed, storage)
            present, *others = [
                (graph, shares(graph, [keys_of(place.stream, place.key) for place in graph.places])) for graph in (placed.graph, *graphs)
            ]
            if (better := better_graph(present, others, flowing, held)) is not None:
                return placed, better
        return None

    def laid(self) -> None:
        """A join was laid by another graph."""
        self._pause, self._looked_at = LOOK_SECONDS, None


def graphs_of(job: Job, placed: PlacedGraph) -> tuple[JoinGraph, ...]:
    """The other graphs by which a join may be laid. Not one that keeps marks of which tuples have matched: they lie as the tuples do."""
    join = job.joins[placed.join]
    if not isinstance(join.found, tuple) or join.type.tracked:
        return ()
    return tuple(graph for graph in join.found if graph != placed.graph)


def _sampler(job: Job, checkpoint: Checkpoint, placed: PlacedGraph, storage: Storage) -> Callable[[int, KeyExpression | None], np.ndarray]:
    """Gives a sample of the keys of what is held of a stream, by its number in the graph, that lies by whatever key. Blocks are read when
    a stream is first asked for."""
    first = placed.first_places

    @cache
    def tuples(stream: int) -> tuple[list[pa.RecordBatch], list[float]]:
        blocks = [block for block in checkpoint.state.blocks if block.place == first[stream]]
        found = list(drawn_from(storage, blocks, SAMPLE))
        return [batch for batch, _ in found], [weight for _, weight in found]

    @cache
    def keys_of(stream: int, key: KeyExpression | None) -> np.ndarray:
        schema, (batches, weights) = job.streams[placed.streams[stream]].schema, tuples(stream)
        encoded = [encode_keys(batch, seeded(key, checkpoint.seed), schema) for batch in batches]
        keys = [keys if valid is None else keys[valid] for keys, valid in encoded]
        return _evenly(keys, weights)

    return keys_of


def _evenly(keys: Sequence[np.ndarray], weights: Sequence[float]) -> np.ndarray:
    """At most ``SAMPLE`` of these keys, each part's as often as its keys stand for tuples."""
    ends = np.cumsum(np.repeat(weights, [len(part) for part in keys]))
    if not len(ends):
        return np.empty(0, np.int64)
    count = min(SAMPLE, len(ends))
    found: np.ndarray = np.concatenate(keys)[np.searchsorted(ends, (np.arange(count) + 0.5) * ends[-1] / count, side="right")]
    return found
