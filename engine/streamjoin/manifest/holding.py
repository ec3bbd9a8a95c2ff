"""How tuples could lie for all joins of a manifest (layouts), and which columns held tuples need.

Outer joins of three and more streams are taken for the joins of two that they become (``outer_joins``).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from streamjoin.language.graph import join_graphs
from streamjoin.language.layout import Layout, beside, layouts
from streamjoin.language.schema import Schema
from streamjoin.language.sql import Expression, parse_boolean, parse_expression
from streamjoin.manifest import model, outer_joins
from streamjoin.manifest.resolve import Output, condition, names_over, names_streams, output, over, schemas_of

MOST_LAYOUTS = 24
"""Of joins over different streams, so many ways to hold tuples are looked at."""


@dataclass(frozen=True, slots=True)
class Need:
    """A column that must be held until results are found, and the field of the join that needs it (``output.where``)."""

    stream: str
    column: str
    field: str


def layouts_of(spec: model.Spec, schemas: Mapping[str, Schema]) -> tuple[Layout, ...]:
    """The layouts that could serve all joins, best static choice first. Of one join over three and more streams one for each graph."""
    spec = outer_joins.expanded(spec, schemas)
    schemas = schemas_of(spec, schemas)
    if names_streams(spec):
        return layouts_among(spec, schemas, range(len(spec.joins)))
    if len(schemas) > 2:
        return tuple(map(Layout.of_graph, join_graphs(spec.joins[0].condition, dict(schemas))))
    return layouts([condition(join.condition, schemas) for join in spec.joins])


def layouts_among(spec: model.Spec, schemas: Mapping[str, Schema], numbers: Iterable[int]) -> tuple[Layout, ...]:
    """Those of these joins, each over the streams that its condition names: those over the same two, and each over three and more, lie on
    key spaces of their own. Every way of one part is there with every way of the others, the best of each, ``MOST_LAYOUTS`` at the most."""
    names = [stream.name for stream in spec.streams]
    joins: dict[tuple[int, ...], list[int]] = {}
    graphs: list[tuple[tuple[int, ...], int]] = []
    for index in numbers:
        streams = tuple(map(names.index, names_over(spec, index)))
        if len(streams) == 2:
            joins.setdefault(streams, []).append(index)
        else:
            graphs.append((streams, index))
    parts = []
    for pair, of_pair in joins.items():
        found = layouts([condition(spec.joins[index].condition, over(spec, index, schemas)) for index in of_pair])
        ways = tuple(layout for layout in found if layout.has_key_spaces) or found
        parts.append([(pair, tuple(of_pair), layout) for layout in ways])
    for streams, index in graphs:
        of_join = join_graphs(spec.joins[index].condition, over(spec, index, schemas))
        parts.append([(streams, (index,), Layout.of_graph(graph)) for graph in of_join])
    while math.prod(map(len, parts)) > MOST_LAYOUTS:
        max(parts, key=len).pop()
    return tuple(beside(each) for each in itertools.product(*parts))


def all_needs(spec: model.Spec, schemas: Mapping[str, Schema]) -> tuple[Need, ...]:
    """What ``needs_of`` says of all joins, and the columns of keys that joins find their pairs by where tuples do not lie by them."""
    found: list[Need] = []
    found_layouts = layouts_of(spec, schemas)
    for index in range(len(spec.joins)):
        found += needs_of(spec, index, schemas)
        if outer_joins.is_chain(spec, index):
            continue  # its joins have keys of their own, which is why all that its condition reads is needed
        own = over(spec, index, schemas)
        columns = dict.fromkeys(column for layout in found_layouts for column in indexed_by(layout, index, own))
        found += [Need(stream, column, f"spec.joins[{index}].condition") for stream, column in columns]
    return tuple(found)


def needs_of(spec: model.Spec, index: int, schemas: Mapping[str, Schema]) -> tuple[Need, ...]:
    """What ``needs`` says of one join."""
    join = spec.joins[index]
    own = over(spec, index, schemas)
    where = None if join.output.where is None else parse_boolean(join.output.where, own)
    found = needs(_checked(join.condition, own), where, output(join, spec, own))
    times = [Need(stream, column, "window") for stream, column in sorted(outer_joins.times_read(spec, index, schemas))]
    return tuple(replace(need, field=f"spec.joins[{index}].{need.field}") for need in (*found, *times))


def indexed_by(layout: Layout, index: int, schemas: Mapping[str, Schema]) -> list[tuple[str, str]]:
    """The columns, each with its stream's name, of keys that a join finds its pairs by where tuples do not lie by them. ``schemas``: of the
    streams that the join is over."""
    if not layout.indexes(index):
        return []
    return [
        (stream, column)
        for (stream, schema), key in zip(schemas.items(), layout.joins[index].between.main.keys, strict=True)
        for column in sorted({name for sql in key.sql for _, name in parse_expression(sql, {stream: schema}).columns})
    ]


def _checked(text: str, schemas: Mapping[str, Schema]) -> tuple[Expression, ...]:
    """What of a condition may be evaluated on held tuples.

    Of two streams that is the residual of every candidate, because statistics choose among them while the join runs. Of three and more it
    is all of it: a tuple that was found by one key is where the next step begins, by another.
    """
    if len(schemas) > 2:
        return (parse_boolean(text, schemas),)
    residuals = [candidate.residual for candidate in condition(text, schemas).candidates]
    return tuple(parse_boolean(residual, schemas) for residual in residuals if residual is not None)


def needs(checked: Iterable[Expression], where: Expression | None, output: Output) -> tuple[Need, ...]:
    """Every column that is read after tuples were found, with the first field of the join that reads it, in the order of the fields.

    ``checked``: what of the condition is. Columns that only make up a join's key are not among them: the key itself is held.
    """
    found: dict[tuple[str, str], str] = {}

    def reads(expression: Expression, field: str) -> None:
        for column in sorted(expression.columns):
            found.setdefault(column, field)

    for expression in checked:
        reads(expression, "condition")
    for index, (_, expression) in enumerate(output):
        reads(expression, f"output.select[{index}]")
    if where is not None:
        reads(where, "output.where")
    return tuple(Need(stream, column, field) for (stream, column), field in found.items())


def held(stream: str, select: tuple[str, ...] | None, schema: Schema, needed: Iterable[Need]) -> tuple[str, ...]:
    """The columns that a stream's held tuples carry: ``select``, or else those needed, in the schema's order."""
    if select is not None:
        return schema.select(select).names
    wanted = {need.column for need in needed if need.stream == stream}
    return tuple(name for name in schema.names if name in wanted)
