"""The paths of a join, made ready for orders as they come (``stages``), and what becomes of results that fetch the rest of their tuples.

Always holds: what is made follows from the configuration and the ways alone, so that all tasks of an epoch agree on the rounds in which
something is sent.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache, cached_property

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from streamjoin.dataplane.stages import JoinShape, Stage, StageJoiner, reference_to
from streamjoin.elastic.distribution import Distribution
from streamjoin.elastic.path_plans import BROADCAST_ROUND, PathPlans
from streamjoin.epoch.spec import Config, Join
from streamjoin.io.several import tags
from streamjoin.kernel.expression import Evaluator
from streamjoin.kernel.index import Indexed
from streamjoin.kernel.joiner import Joiner, Name, cut
from streamjoin.kernel.run import is_text, take, text_bytes
from streamjoin.kernel.types import arrow_schema, held_fields, output_schema
from streamjoin.language.predicate import MainKind, MainPredicate
from streamjoin.language.schema import held_name
from streamjoin.language.sides import LEFT, SIDES
from streamjoin.language.window import Ends, Window
from streamjoin.plan import join_plan as plan
from streamjoin.plan.paths import default_path_plans, paths_of


@dataclass(frozen=True)
class Path:
    """How results with new tuples of one stream are found."""

    stages: tuple[Stage, ...]
    begins: int
    """The round of the exchange after which it begins: that in which new tuples come, or that in which what is held is brought."""


class JoinOperator:
    """One join made ready: its paths, for orders as they come."""

    def __init__(self, number: int, join: Join, config: Config, paths: slice, numbers: range) -> None:
        """``number``: its place among the joins. ``paths`` and ``numbers``: of its paths and stages (:func:`numbered`)."""
        self.number, self.name, self.type, self.window, self.streams = number, join.name, join.type, join.window, join.streams
        self.numbers, self._own = numbers, paths
        self.shape, self._placed = shape_of(number, join, config), config.layout.joins[number]
        self.places = self._placed.places
        """Where its tuples lie; of two streams by side."""
        of_stream = {self.shape.stream_of(place): place for place in reversed(self.places)}
        self.tracked = tuple(of_stream[stream] for stream in join.type.tracked)
        """The places whose tuples are known to have matched or not: of each such stream the first of its places."""
        self.tag = tags(each.name for each in config.joins)[join.name]
        """What marks blocks are known by as this join's."""
        self._made = cache(self._paths)

    def path_plans(self, path_plans: PathPlans) -> PathPlans:
        """Its own among those of all joins. Of results that only say which tuples have partners nothing but references is carried."""
        own = path_plans[self._own] or self._only
        return own if self.shape.marks is None else tuple(replace(path_plan, fetches=True) for path_plan in own)

    @cached_property
    def _only(self) -> PathPlans:
        """Those of two streams."""
        return default_path_plans(self._placed)

    def paths(self, path_plans: PathPlans) -> tuple[Path, ...]:
        """By stream, for these ways of all joins."""
        return self._made(self.path_plans(path_plans))

    def _paths(self, path_plans: PathPlans) -> tuple[Path, ...]:
        planned, begins = paths_of(self._placed, path_plans), [path_plan.begins for path_plan in path_plans]
        return tuple(self._path(head, path, begun) for head, (path, begun) in enumerate(zip(planned, begins, strict=True)))

    def _path(self, head: int, planned: plan.Path, begins: int) -> Path:
        stages: list[Stage] = []
        over = begins
        for at, stage in enumerate(planned.stages):
            first_round = over + 1
            if stage.distribution is Distribution.BROADCAST:
                first_round = BROADCAST_ROUND
            elif at:
                over += stage.distribution.rounds
            number = self.numbers[head * len(planned.stages) + at] if self.numbers else self.number
            stages.append(Stage(self.shape, number, planned, at, first_round=first_round, fed_after=over))
        return Path(tuple(stages), begins)

    @cached_property
    def joiner(self) -> StageJoiner:
        """Of two streams: by which pairs are found."""
        return self._made(self._only)[LEFT].stages[0].joiner

    def alone(self, place: int, batch: pa.RecordBatch, rows: NDArray[np.int64] | None = None) -> Iterator[pa.RecordBatch]:
        """What these rows of a batch, or all, of one of its places give by themselves, with nulls for other streams. O(rows)."""
        side = self.shape.stream_of(place)
        yield from (self.joiner if self.shape.marks is None else self._single).alone(side, batch, rows)

    @cached_property
    def _single(self) -> Joiner:
        """Gives tuples of the first stream alone, which are all that the output reads."""
        shape, streams = self.shape, self.shape.streams
        return Joiner(MainPredicate(MainKind.ALL), shape.window, None, shape.where, shape.output, (streams[:1], streams[1:]))

    def expired(self, wider: Window, bounds: Ends) -> Ends:
        """By place of its own, the ``_time`` below which its window has passed tuples; ``bounds``: by place of all, of a wider one."""
        return self.window.expired_within(wider, tuple(bounds[place] for place in self.places))

    @cached_property
    def finisher(self) -> Finisher:
        return Finisher(self.shape)


def shape_of(number: int, join: Join, config: Config) -> JoinShape:
    """The shape of the so-manieth join."""
    placed, streams = config.layout.joins[number], [config.streams[stream] for stream in join.streams]
    names, schemas = zip(*((stream.name, stream.schema) for stream in streams), strict=True)
    shape = JoinShape(join.name, config.layout.places, join.streams, names, schemas, join.window, join.where, join.output)
    if placed.is_multiway:
        return replace(shape, marks=LEFT if join.type.tracked else None)
    slide, has_index = join.window.slide_micros, config.layout.indexes(number)
    slides = None if slide in (0, config.window.slide_micros) else slide
    left, right = (Indexed(placed.between.main.key(side) if has_index else None, slides) for side in SIDES)
    alone = streams if join.type.gives_unmatched else []
    types = {(stream.name, field.name): field.type for stream in alone for field in arrow_schema(stream.schema)}
    return replace(shape, indexed=(left, right), types=types)


class Finisher:
    """Makes results of what paths that fetch have found, once the tuples have come that it refers to."""

    def __init__(self, join: JoinShape) -> None:
        self._where = None if join.where is None else Evaluator(join.where)
        self._output = [Evaluator(expression) for _, expression in join.output]
        self._schema = output_schema(join.output)
        schemas = join.by_name
        self._columns = {
            stream: [column.name for column in schemas[stream] if (stream, column.name) in join.at_end(number)]
            for number, stream in enumerate(join.streams)
        }
        self.schemas = {stream: pa.schema(held_fields(schemas[stream].select(tuple(names)))) for stream, names in self._columns.items()}
        """By stream, of the tuples that are fetched."""

    def tuples(self, stream: str, batch: pa.RecordBatch, rows: NDArray[np.int64]) -> pa.RecordBatch:
        """The columns that results need, of these rows of a stream's held batch."""
        return take(batch.select(self.schemas[stream].names), pa.array(rows))

    def results(self, found: pa.RecordBatch, fetched: Mapping[str, Fetched]) -> Iterator[pa.RecordBatch]:
        """The results of what was found, which may be fewer: ``where`` is for results. O(n log fetched). Memory: ``CHUNK_BYTES`` of texts
        that were fetched."""
        rows = {
            stream: np.searchsorted(tuples.references, found.column(reference_to(stream)).to_numpy())
            for stream, tuples in fetched.items()
            if reference_to(stream) in found.schema.names
        }
        nbytes = np.zeros(found.num_rows, np.int64)
        for stream, of_stream in rows.items():
            for name in self._columns[stream]:
                column = fetched[stream].batch.column(held_name(name))
                if is_text(column.type):
                    nbytes += text_bytes(column, of_stream)
        for start, end in cut(nbytes):
            part = {stream: of_stream[start:end] for stream, of_stream in rows.items()}
            yield self._results(found.slice(start, end - start), fetched, part)

    def _results(self, found: pa.RecordBatch, fetched: Mapping[str, Fetched], rows: Mapping[str, NDArray[np.int64]]) -> pa.RecordBatch:
        columns: dict[Name, pa.Array] = {}
        for name in found.schema.names:
            stream, _, column = name.partition(".")
            if not name.startswith("_"):
                columns[stream, column] = found.column(name)
        for stream, of_stream in rows.items():
            tuples, taken = fetched[stream].batch, pa.array(of_stream)
            columns |= {(stream, name): take(tuples.column(held_name(name)), taken) for name in self._columns[stream]}
        count = found.num_rows
        if self._where is not None:
            chosen = pa.array(self._where.select(columns, count))
            columns, count = {name: take(values, chosen) for name, values in columns.items()}, len(chosen)
        return pa.RecordBatch.from_arrays([output.evaluate(columns, count) for output in self._output], schema=self._schema)


@dataclass(frozen=True)
class Fetched:
    """Tuples of a stream that were asked for."""

    references: NDArray[np.int64]
    """Ascending."""
    batch: pa.RecordBatch
    """In the same order."""
