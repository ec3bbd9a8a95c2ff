"""The facts of a join that a query needs, without the manifest's models: they pickle small, and load no more than a worker needs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from streamjoin.job import Job
from streamjoin.kernel.types import arrow_type, output_schema
from streamjoin.language.floors import Floors
from streamjoin.language.graph import Place
from streamjoin.language.layout import Layout
from streamjoin.language.schema import Schema
from streamjoin.language.sides import SIDES
from streamjoin.language.tree import Reference
from streamjoin.language.window import WindowKind
from streamjoin.query.errors import QueryError, Why
from streamjoin.query.results import ResultsOf
from streamjoin.state.log import Checkpoint


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
    layouts: tuple[Layout, ...]
    """How its tuples may lie; the checkpoint says which it is."""
    time: WindowKind
    """What ``_time`` is: a moment, a position, or not there."""
    results: tuple[ResultsOf, ...] = ()
    """Joins whose results are kept."""

    @classmethod
    def of(cls, job: Job) -> Catalog:
        streams = tuple(StreamOf(each.name, each.schema, each.selected, each.event_time) for each in job.streams)
        return cls(job.name, job.checkpoint, streams, job.layouts, job.window.kind, tuple(_results_of(job)))

    def lying(self, checkpoint: Checkpoint) -> Lying:
        """The places where a checkpoint's tuples lie. Raises QueryError if it is another join's."""
        for index, stream in enumerate(self.streams):
            field, selected = f"spec.streams[{index}]", ", ".join(stream.selected) or "none"
            written = ", ".join(f"{column.name} {column.type}" for column in stream.schema)
            for name, value in ((f"{field}.name", stream.name), (f"{field}.schema", written), (f"{field}.select", selected)):
                found = checkpoint.fingerprint.get(name, value)
                if found != value:
                    raise QueryError(
                        Why.WRONG, f"{name}: the manifest says {value}, and the checkpoint in {self.location} {found}; use its own manifest"
                    )
        if checkpoint.floors is not None:
            floors = Floors.from_json(checkpoint.floors)
            return Lying(floors.places, tuple(floor.born for floor in floors.floors))
        for layout in self.layouts:
            if str(layout.main) == checkpoint.main:
                return Lying(layout.places, None if layout.graph is not None else (0,) * (len(layout.places) // len(SIDES)))
        text = f"{self.location}: its tuples are sorted by {checkpoint.main}, which is not in spec.joins; use its own manifest"
        raise QueryError(Why.WRONG, text)


def _results_of(job: Job) -> Iterator[ResultsOf]:
    for join in job.joins:
        if join.snapshots is not None:
            key = join.snapshots.key
            column = key.tree.column if isinstance(key.tree, Reference) else None
            yield ResultsOf(join.name, output_schema(join.output), arrow_type(key.type), column)


@dataclass(frozen=True)
class Lying:
    """The places where tuples are held."""

    places: tuple[Place, ...]
    born: tuple[int, ...] | None
    """Of each floor of joins of two streams (``language.floors.Floor.born``); None: of three and more streams, each place has all."""
