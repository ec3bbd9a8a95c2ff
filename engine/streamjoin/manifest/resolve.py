"""What a manifest's SQL and names mean once they are resolved against the streams' schemas.

Shared by ``manifest.validate``, which reports what does not resolve, and ``job``, which hands the result to the engine:
what was checked is what runs. Everything here raises SqlError for SQL that cannot be used.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from streamjoin.language.condition import Condition, parse_condition
from streamjoin.language.ddl import parse_schema
from streamjoin.language.errors import SqlError, excerpt
from streamjoin.language.event_time import DerivedTime, of_expression, of_numbers, of_text
from streamjoin.language.join_type import JoinType
from streamjoin.language.render import identifier
from streamjoin.language.schema import Column, Schema
from streamjoin.language.sql import Expression, parse_boolean, parse_expression, parse_projection, streams_named
from streamjoin.language.types import INT, INTERVAL, STRING, castable
from streamjoin.language.window import Window, WindowKind
from streamjoin.manifest import model
from streamjoin.manifest.event_time import EventTime
from streamjoin.manifest.problem import listed
from streamjoin.manifest.quantity import Duration

IDENTIFIER = re.compile(r"[A-Za-z][A-Za-z0-9_]*")

Output = tuple[tuple[str, Expression], ...]
"""The output's columns in order: name and value."""


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
    found = named_by(spec.joins[index].condition, names)
    if len(found) < 2:
        raise SqlError(
            f"it names {f'{found[0]} alone' if found else 'no stream'}, and of several joins each is over the streams that it names",
            f"write columns as {names[0]}.column, and name two or more of {listed(names, 'and')}",
        )
    return found


def named_by(condition: str, names: Iterable[str]) -> tuple[str, ...]:
    """Those of these streams that a condition names. Raises SqlError."""
    named = {name.casefold() for name in streams_named(condition)}
    return tuple(name for name in names if name.casefold() in named)


def over(spec: model.Spec, index: int, schemas: Mapping[str, Schema]) -> dict[str, Schema]:
    """The schemas of the streams that a join is over, in their order. Raises SqlError, KeyError where one is not known."""
    return {name: schemas[name] for name in names_over(spec, index)}


def schemas_of(spec: model.Spec, known: Mapping[str, Schema] | None = None) -> dict[str, Schema]:
    """The streams' schemas, in their order: declared, or that of the results that a stream reads. ``known``: some. Raises SqlError."""
    found = {stream.name: parse_schema(stream.ddl) for stream in spec.streams if stream.ddl is not None} | dict(known or {})
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
            columns.append((f"{stream}_{column}", parse_expression(f"{stream}.{identifier(column)}", schemas)))
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
    key = parse_expression(f"{RESULT}.{identifier(columns[0][0])}" if text is None else text, {RESULT: schema})
    if key.type == INTERVAL:
        raise SqlError(f"{excerpt(key.sql)} is an INTERVAL, by which files cannot be sorted", "cast it to a number, or give a column")
    return key


def has_spark(spec: model.Spec) -> bool:
    """Whether a Spark of its own reads or writes for the join."""
    return any(stream.source.spark for stream in spec.streams) or any(join.output.sink and join.output.sink.spark for join in spec.joins)
