"""The capacity of a worker: as a manifest gives it, or as it follows from the worker's memory."""

from __future__ import annotations

from streamjoin.manifest import holding, resolve
from streamjoin.manifest.memory import MIB, held_within, room_of_pod
from streamjoin.manifest.model import Spec
from streamjoin.scheme.capacity import Capacity, tuple_bytes


def capacity_of(spec: Spec, widest: float) -> Capacity:
    """In bytes, or in tuples. ``widest``: bytes of a held tuple of the stream whose are wider."""
    workers = spec.workers
    if workers.capacity is not None:
        return Capacity(workers.capacity.bytes, in_bytes=True)
    if workers.capacity_tuples is not None:
        return Capacity(workers.capacity_tuples)
    memory = workers.resources.memory.bytes
    where = f"spec.workers.resources.memory ({memory // MIB:,} MiB) leaves beside Python, page cache and JVM"
    return derived(room_of_pod(memory, workers.per_executor), spec.epoch.max_tuples * widest, where)


def derived(room: float, arriving: float, where: str) -> Capacity:
    """What a worker may hold with ``room`` bytes for all tuples, which is what ``where`` says, and ``arriving`` bytes in an epoch."""
    return Capacity(held_within(room, arriving), in_bytes=True, origin=f"of the {max(0, int(room)) // MIB:,} MiB that {where}")


def capacity_in_tuples(spec: Spec) -> float:
    """Of tuples of the mean of all streams' widths, by their schemas, where it is in bytes."""
    if spec.workers.capacity_tuples is not None:
        return spec.workers.capacity_tuples
    schemas = resolve.schemas_of(spec)
    needs = holding.all_needs(spec, schemas)
    held = [holding.held(stream.name, stream.select, schemas[stream.name], needs) for stream in spec.streams]
    widths = [tuple_bytes(schema, payload) for schema, payload in zip(schemas.values(), held, strict=True)]
    return capacity_of(spec, max(widths)).in_tuples(widths)
