"""The capacity of a worker, as a manifest gives it."""

from __future__ import annotations

from streamjoin.language.ddl import parse_schema
from streamjoin.language.join_type import JoinType
from streamjoin.language.sql import parse_boolean
from streamjoin.manifest import resolve
from streamjoin.manifest.model import Spec, Workers
from streamjoin.scheme.capacity import Capacity, tuple_bytes

DEFAULT_TUPLES = 2_000_000


def capacity_of(workers: Workers) -> Capacity:
    """In bytes, or in tuples."""
    if workers.capacity is not None:
        return Capacity(workers.capacity.bytes, in_bytes=True)
    return Capacity(DEFAULT_TUPLES if workers.capacity_tuples is None else workers.capacity_tuples)


def capacity_in_tuples(spec: Spec) -> float:
    """Of tuples of the mean of both streams' widths, by their schemas, where it is given in bytes."""
    capacity = capacity_of(spec.workers)
    if not capacity.in_bytes:
        return capacity.amount
    join, schemas = spec.joins[0], {stream.name: parse_schema(stream.ddl) for stream in spec.streams}
    selects = {stream.name: stream.select for stream in spec.streams}
    given, where = join.output.select, join.output.where
    output = resolve.default_output(JoinType(join.type), selects, schemas) if given is None else resolve.given_output(given, schemas)
    condition = resolve.condition(join.on, schemas)
    needs = resolve.needs(condition, None if where is None else parse_boolean(where, schemas), output, schemas)
    held = [resolve.held(name, select, schemas[name], needs) for name, select in selects.items()]
    widths = [tuple_bytes(schema, payload) for schema, payload in zip(schemas.values(), held, strict=True)]
    return capacity.amount * len(widths) / sum(widths)
