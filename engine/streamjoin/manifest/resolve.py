"""What a manifest's SQL and names mean once they are resolved against the streams' schemas.

Shared by ``manifest.validate``, which reports what does not resolve, and ``job``, which hands the result to the engine:
what was checked is what runs. Everything here raises SqlError for SQL that cannot be used.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from streamjoin.language.condition import Condition, parse_condition
from streamjoin.language.ddl import parse_schema
from streamjoin.language.errors import SqlError, excerpt
from streamjoin.language.event_time import DerivedTime, of_expression, of_numbers, of_text
from streamjoin.language.graph import join_graphs
from streamjoin.language.join_type import JoinType
from streamjoin.language.layout import Layout, beside, layouts
from streamjoin.language.schema import Column, Schema
from streamjoin.language.sql import Expression, parse_boolean, parse_expression, parse_projection, streams_named
from streamjoin.language.types import INT, INTERVAL, STRING, castable
from streamjoin.language.window import Window, WindowKind
from streamjoin.manifest import model
from streamjoin.manifest.event_time import EventTime
from streamjoin.manifest.problem import listed
from streamjoin.manifest.quantity import Duration

MOST_LAYOUTS = 24
"""Of joins over different streams, so many ways to hold tuples are looked at."""
IDENTIFIER = re.compile(r"[A-Za-z][A-Za-z0-9_]*")

Output = tuple[tuple[str, Expression], ...]
"""The output's columns in order: name and value."""


@dataclass(frozen=True, slots=True)
class Need:
    """A column that must be held until results are found, and the field of the join that needs it (``output.where``)."""

    stream: str
    column: str
    field: str


def is_stream_name(name: str) -> bool:
    """Whether SQL can refer to a stream's columns by this name without quotes: not with a word of SQL itself."""
    column = Column("c", INT)
    try:
        parsed = parse_expression(f"{name}.c", {name: Schema((column,))})
    except SqlError:
        return False
    return parsed.columns == {(name, "c")}


def window(spec: model.Window, streams: Sequence[str]) -> Window:
    """The window that a valid ``window`` means over these streams, in their order."""
    if spec.rows is not None:
        return Window.of_rows([spec.rows] * len(streams))
    if spec.each_rows is not None:
        return Window.of_rows([spec.each_rows[name] for name in streams])
    if spec.unbounded:
        return Window(WindowKind.UNBOUNDED)
    slide = 0 if spec.slide is None else spec.slide.micros
    if spec.each is not None:
        return Window.of_each([spec.each[name].micros for name in streams], slide)
    if spec.within is not None:
        return Window.of_each([spec.within.micros] * len(streams), slide)
    none = Duration(0)
    return Window.of_each([(spec.after or none).micros, (spec.before or none).micros], slide)


def names_streams(spec: model.Spec) -> bool:
    """Whether each join is over the streams that its condition names, of three and more: so where there are several joins, or one reads the
    results of another."""
    return len(spec.streams) > 2 and (len(spec.joins) > 1 or any(stream.source.join is not None for stream in spec.streams))


def names_over(spec: model.Spec, index: int) -> tuple[str, ...]:
    """The names of the streams that a join is over, in their order. Raises SqlError where it is to name them and names no two."""
    names = tuple(stream.name for stream in spec.streams)
    if not names_streams(spec):
        return names
    found = named_by(spec.joins[index], names)
    if len(found) < 2:
        raise SqlError(
            f"it names {f'{found[0]} alone' if found else 'no stream'}, and of several joins each is over the streams that it names",
            f"write columns as {names[0]}.column, and name two or more of {listed(names, 'and')}",
        )
    return found


def named_by(join: model.Join, names: Iterable[str]) -> tuple[str, ...]:
    """Those of these streams that a join's condition names. Raises SqlError."""
    named = {name.casefold() for name in streams_named(join.condition)}
    return tuple(name for name in names if name.casefold() in named)


def over(spec: model.Spec, index: int, schemas: Mapping[str, Schema]) -> dict[str, Schema]:
    """The schemas of the streams that a join is over, in their order. Raises SqlError, KeyError where one is not known."""
    return {name: schemas[name] for name in names_over(spec, index)}


def schemas_of(spec: model.Spec) -> dict[str, Schema]:
    """The streams' schemas, in their order: declared, or that of the results that a stream reads. Raises SqlError."""
    found = {stream.name: parse_schema(stream.ddl) for stream in spec.streams if stream.ddl is not None}
    while left := [stream.name for stream in spec.streams if stream.name not in found]:
        new = {name: schema for name in left if (schema := schema_of_results(spec, name, found)) is not None}
        if not new:
            raise SqlError(f"{listed(left, 'and')} would read what comes of itself", "read the results of another join")
        found |= new
    return {stream.name: found[stream.name] for stream in spec.streams}


def join_read_by(spec: model.Spec, stream: str) -> int | None:
    """The number of the join whose results a stream reads; None: of none, or of one that does not exist."""
    name = next(each.source.join for each in spec.streams if each.name == stream)
    return next((index for index, join in enumerate(spec.joins) if join.name == name), None)


def event_time(given: EventTime, stream: str, schema: Schema) -> Column | DerivedTime:
    """The column that has a stream's event times, of whatever type it is, or how they are made of its columns. Raises SqlError."""
    name = given.expression if given.column is None else given.column
    assert name is not None, "a valid manifest has one"
    column = schema.get(name)
    if column is not None and given.unit is not None:
        return of_numbers(stream, column, given.unit)
    if column is not None and given.format is not None:
        return of_text(stream, column, given.format)
    if column is not None:
        return column
    return of_expression(name, stream, schema)


def schema_of_results(spec: model.Spec, stream: str, schemas: Mapping[str, Schema]) -> Schema | None:
    """The schema of a stream that reads a join's results; None where those of what the join is over are not known. Raises SqlError."""
    index = join_read_by(spec, stream)
    if index is None:
        return None
    try:
        columns = output(spec.joins[index], spec, over(spec, index, schemas))
    except KeyError:
        return None
    return Schema(tuple(Column(name, expression.type) for name, expression in columns))


def condition(text: str, schemas: Mapping[str, Schema]) -> Condition:
    """A join's condition over two streams, the left one first."""
    return parse_condition(text, tuple(schemas.items()))


def layouts_of(spec: model.Spec, schemas: Mapping[str, Schema]) -> tuple[Layout, ...]:
    """The layouts that could serve all joins, best static choice first. Of one join over three and more streams one for each graph."""
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


def default_output(kind: JoinType, selects: Mapping[str, tuple[str, ...] | None], schemas: Mapping[str, Schema]) -> Output:
    """What is written when ``output.select`` is missing: every held column of the streams that results are of, as ``stream_column``.

    A stream without a ``select`` of its own holds all its columns then.
    """
    columns = []
    for stream in streams_of_results(kind, schemas):
        schema = schemas[stream]
        selected = selects[stream]
        held = schema.names if selected is None else schema.select(selected).names
        for column in held:
            columns.append((f"{stream}_{column}", parse_expression(f"{stream}.{_quoted(column)}", schemas)))
    return tuple(columns)


def streams_of_results(kind: JoinType, schemas: Mapping[str, Schema]) -> tuple[str, ...]:
    """The streams whose columns results may have."""
    return tuple(schemas) if kind.gives_pairs else tuple(schemas)[:1]


def given_output(select: Iterable[str], schemas: Mapping[str, Schema]) -> Output:
    """What ``output.select`` says."""
    return tuple(parse_projection(text, schemas) for text in select)


def output(join: model.Join, spec: model.Spec, schemas: Mapping[str, Schema]) -> Output:
    """What a join's results have, said or by default."""
    if join.output.select is not None:
        return given_output(join.output.select, schemas)
    return default_output(JoinType(join.type), {stream.name: stream.select for stream in spec.streams}, schemas)


def punctuation(given: model.Punctuation, schemas: Mapping[str, Schema]) -> tuple[Expression, Expression]:
    """Which records of a stream are punctuations, and their identifiers. Raises SqlError."""
    return parse_boolean(given.when, schemas), punctuation_id(given.id, schemas)


def punctuation_id(text: str, schemas: Mapping[str, Schema]) -> Expression:
    """Raises SqlError."""
    identifier = parse_expression(text, schemas)
    if not castable(identifier.type, STRING):
        raise SqlError(f"{excerpt(text)} is {identifier.type}, which cannot be made text", "give a number, a text or a time")
    return identifier


RESULT = "result"
"""By which name the key of snapshots may refer to the output's columns."""


def snapshot_key(text: str | None, columns: Output) -> Expression:
    """By what a join's snapshots are sorted: an expression over its output's columns, or the first of them. Raises SqlError."""
    schema = Schema(tuple(Column(name, expression.type) for name, expression in columns))
    key = parse_expression(f"{RESULT}.{_quoted(columns[0][0])}" if text is None else text, {RESULT: schema})
    if key.type == INTERVAL:
        raise SqlError(f"{excerpt(key.sql)} is an INTERVAL, by which files cannot be sorted", "cast it to a number, or give a column")
    return key


def all_needs(spec: model.Spec, schemas: Mapping[str, Schema]) -> tuple[Need, ...]:
    """What ``needs_of`` says of all joins, and the columns of keys that joins find their pairs by where tuples do not lie by them."""
    found: list[Need] = []
    found_layouts = layouts_of(spec, schemas)
    for index in range(len(spec.joins)):
        found += needs_of(spec, index, schemas)
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
    return tuple(replace(need, field=f"spec.joins[{index}].{need.field}") for need in found)


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


def _quoted(name: str) -> str:
    return name if IDENTIFIER.fullmatch(name) else "`" + name.replace("`", "``") + "`"
