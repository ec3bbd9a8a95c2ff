"""The facts of a join that a query needs, without the manifest's models: they pickle small, and load no more than a worker needs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from streamjoin.job import Job
from streamjoin.kernel.types import arrow_type, output_schema
from streamjoin.language.key_spaces import KeySpaces
from streamjoin.language.predicate import seeded
from streamjoin.language.schema import Schema
from streamjoin.language.tree import Reference
from streamjoin.language.window import WindowKind
from streamjoin.query.errors import QueryError, Why
from streamjoin.query.results import ResultsOf
from streamjoin.state.checkpoint import Checkpoint


@dataclass(frozen=True)
class StreamOf:
    """A stream, as far as its held tuples are concerned."""

    name: str
    schema: Schema
    """As declared."""
    selected: tuple[str, ...]
    """The columns that held tuples carry."""
    event_time: str | None


@dataclass(frozen=True)
class Catalog:
    """A join."""

    name: str
    location: str
    """Of its state."""
    streams: tuple[StreamOf, ...]
    time: WindowKind
    """What ``_time`` is: a moment, a position, or not there."""
    results: tuple[ResultsOf, ...] = ()
    """Joins whose results are kept."""

    @classmethod
    def of(cls, job: Job) -> Catalog:
        streams = tuple(StreamOf(each.name, each.schema, each.selected, each.event_time) for each in job.streams)
        return cls(job.name, job.checkpoint, streams, job.window.kind, tuple(_results_of(job)))

    def lying(self, checkpoint: Checkpoint) -> KeySpaces:
        """Where a checkpoint's tuples lie. Raises QueryError if it is another join's."""
        for index, stream in enumerate(self.streams):
            field, selected = f"spec.streams[{index}]", ", ".join(stream.selected) or "none"
            written = ", ".join(f"{column.name} {column.type}" for column in stream.schema)
            for name, value in ((f"{field}.name", stream.name), (f"{field}.schema", written), (f"{field}.select", selected)):
                found = checkpoint.fingerprint.get(name, value)
                if found != value:
                    raise QueryError(
                        Why.WRONG, f"{name}: the manifest says {value}, and the checkpoint in {self.location} {found}; use its own manifest"
                    )
        key_spaces = checkpoint.plan.key_spaces
        assert key_spaces is not None, "they come with the first plan, and are asked for after the first epoch"
        return seeded(key_spaces, checkpoint.seed)


def _results_of(job: Job) -> Iterator[ResultsOf]:
    for join in job.joins:
        if join.snapshots is not None:
            key = join.snapshots.key
            column = key.tree.column if isinstance(key.tree, Reference) else None
            yield ResultsOf(join.name, output_schema(join.output), arrow_type(key.type), column)
