"""What a manifest's SQL and names mean once they are resolved against the streams' schemas.

Shared by ``manifest.validate``, which reports what does not resolve, and ``job``, which hands the result to the engine:
what was checked is what runs. Everything here raises SqlError for SQL that cannot be used.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from streamjoin.language.condition import Condition, parse_condition
from streamjoin.language.errors import SqlError, excerpt
from streamjoin.language.graph import join_graphs
from streamjoin.language.join_type import JoinType
from streamjoin.language.layout import Layout, layouts
from streamjoin.language.schema import Column, Schema
from streamjoin.language.sql import Expression, parse_boolean, parse_expression, parse_projection
from streamjoin.language.types import INT, INTERVAL, STRING, castable
from streamjoin.language.window import Window, WindowKind
from streamjoin.manifest import model
from streamjoin.manifest.quantity import Duration

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
        return Window(WindowKind.ROWS, rows=spec.rows)
    if spec.unbounded:
        return Window(WindowKind.UNBOUNDED)
    if spec.each is not None:
        return Window.of_each([spec.each[name].micros for name in streams])
    if spec.within is not None and len(streams) > 2:
        return Window.of_each([spec.within.micros] * len(streams))
    none = Duration(0)
    before, after = (spec.within, spec.within) if spec.within is not None else (spec.before or none, spec.after or none)
    return Window(
        WindowKind.RANGE,
        before_micros=(before or none).micros,
        after_micros=(after or none).micros,
        slide_micros=spec.slide.micros if spec.slide is not None else 0,
    )


def condition(text: str, schemas: Mapping[str, Schema]) -> Condition:
    """A join's condition over two streams, the left one first."""
    return parse_condition(text, tuple(schemas.items()))


def layouts_of(spec: model.Spec, schemas: Mapping[str, Schema]) -> tuple[Layout, ...]:
    """The layouts that could serve all joins, best static choice first. Of three and more streams one for each graph."""
    if len(schemas) > 2:
        return tuple(map(Layout.of_graph, join_graphs(spec.joins[0].condition_text, dict(schemas))))
    return layouts([condition(join.condition_text, schemas) for join in spec.joins])


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
        raise SqlError(f"{excerpt(text)} is {identifier.type}, of which there is no text", "give a number, a text or a time")
    return identifier


RESULT = "result"
"""By which name the key of snapshots may refer to the output's columns."""


def snapshot_key(text: str | None, columns: Output) -> Expression:
    """By what a join's snapshots are sorted: an expression over its output's columns, or the first of them. Raises SqlError."""
    schema = Schema(tuple(Column(name, expression.type) for name, expression in columns))
    key = parse_expression(f"{RESULT}.{_quoted(columns[0][0])}" if text is None else text, {RESULT: schema})
    if key.type == INTERVAL:
        raise SqlError(f"{excerpt(key.sql)} is an INTERVAL, which no file is sorted by", "subtract nothing, or cast it to a number")
    return key


def all_needs(spec: model.Spec, schemas: Mapping[str, Schema]) -> tuple[Need, ...]:
    """What ``needs`` says of all joins, and the columns of keys that a join of two streams finds its pairs by, and tuples do not lie by."""
    found: list[Need] = []
    found_layouts = layouts_of(spec, schemas)
    for index, join in enumerate(spec.joins):
        where = None if join.output.where is None else parse_boolean(join.output.where, schemas)
        field = f"spec.joins[{index}]"
        checked = _checked(join.condition_text, schemas)
        found += [replace(need, field=f"{field}.{need.field}") for need in needs(checked, where, output(join, spec, schemas))]
        for layout in found_layouts:
            if not layout.indexes(index):
                continue
            for (stream, schema), key in zip(schemas.items(), layout.predicates[index].main.keys, strict=True):
                columns = sorted({name for sql in key.sql for _, name in parse_expression(sql, {stream: schema}).columns})
                found += [Need(stream, column, f"{field}.{join.condition_field}") for column in columns]
    return tuple(found)


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
