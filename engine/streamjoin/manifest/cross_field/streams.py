"""What ``spec.streams`` must be together: names, schemas, columns that exist, sources, results of joins that are there."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence

from streamjoin.language.ddl import parse_schema
from streamjoin.language.errors import SqlError
from streamjoin.language.graph import MOST_STREAMS
from streamjoin.language.schema import Column, Schema
from streamjoin.language.sql import parse_boolean
from streamjoin.language.types import STRING, TypeName, is_numeric
from streamjoin.manifest import holding, model, resolve
from streamjoin.manifest.checks import Check, sql_problem, value_at
from streamjoin.manifest.connector import SourceConnector
from streamjoin.manifest.model import Manifest
from streamjoin.manifest.part import UnparsedError, has_unknown
from streamjoin.manifest.problem import Problem, listed, meant
from streamjoin.manifest.sources import sources_in

_TIMES = (TypeName.TIMESTAMP, TypeName.TIMESTAMP_NTZ)


def stream_checks(field: str, stream: model.Stream, schema: Schema | None) -> list[Check]:
    """The checks of one stream by itself. ``schema``: None where it is not known: the checks that read it are left out."""
    connectors = list(sources_in(value_at(stream, "source")))
    checks = [source.problems(f"{field}.source.{kind}") for kind, source in connectors]
    if schema is not None:
        checks += [_event_time(field, stream, schema), _where(field, stream, schema), _punctuation(field, stream, schema)]
        checks.append(_select(field, stream, schema))
        checks += [_of_source(field, stream, source, schema) for _, source in connectors]
    return [*checks, _watermark(field, stream), _of_event_times(field, stream)]


def stream_name_problems(manifest: Manifest) -> Check:
    """Whether no name is a word of SQL."""
    for index, stream in enumerate(manifest.spec.streams):
        name = value_at(stream, "name")
        if not isinstance(name, str):
            continue
        field = f"spec.streams[{index}].name"
        if not resolve.is_stream_name(name):
            yield Problem(field, name, f"is a word of SQL; choose another name, such as {name}_stream")


def _event_time(field: str, stream: model.Stream, schema: Schema) -> Check:
    given, field = stream.event_time, f"{field}.eventTime"
    if given is None:
        return
    if (given.column is None) == (given.expression is None):
        if not has_unknown(given):  # which may be the one that is missing
            yield Problem(field, None, "must have exactly one of column and expression; for numbers, write {column: ts, unit: ms}")
        return
    if given.unit is not None and given.format is not None:
        yield Problem(f"{field}.format", given.format, "is for text, and unit for numbers; keep the one that fits the column")
        return
    if given.column is None and (given.unit is not None or given.format is not None):
        yield Problem(field, None, "has an expression beside a unit or a format, which belong to column; remove one of them")
        return
    here, name = (f"{field}.column", given.column) if given.column is not None else (field, given.expression or "")
    times = [column.name for column in schema.columns if column.type.name in _TIMES]
    remedy = f"name one of these: {listed(times)}" if times else "add a TIMESTAMP column to the schema"
    if schema.get(name) is None and (given.column is not None or resolve.IDENTIFIER.fullmatch(name)):
        yield Problem(here, name, f"is not a column of the schema; {remedy}")
        return
    try:
        found = resolve.event_time(given, stream.name, schema)
    except SqlError as error:
        where = "unit" if given.unit is not None else "format"
        yield sql_problem(*((field, name) if given.column is None else (f"{field}.{where}", given.unit or given.format or "")), error)
        return
    if isinstance(found, Column) and found.type.name not in _TIMES:
        if is_numeric(found.type):
            remedy = f"of numbers since 1970, write eventTime: {{column: {found.name}, unit: ms}} (or s, us, ns)"
        elif found.type == STRING:
            remedy += f', or write eventTime: {{column: {found.name}, format: "yyyy-MM-dd HH:mm:ss"}} with the format of its text'
        yield Problem(here, name, f"is {found.type}, not TIMESTAMP or TIMESTAMP_NTZ; {remedy}")


def _watermark(field: str, stream: model.Stream) -> Check:
    given, source = stream.watermark, value_at(stream, "source")
    if stream.event_time is None and given is not None and given.micros:
        message = f"needs {field}.eventTime; name the column of event times there, or remove watermark"
        yield Problem(f"{field}.watermark", str(given), message)
    sources_given = [each for _, each in sources_in(source)]
    is_ordered = source is None or source.join is not None or any(each.default_watermark is not None for each in sources_given)
    if stream.event_time is not None and given is None and not is_ordered and not has_unknown(stream):
        yield Problem(f"{field}.watermark", None, model.NO_WATERMARK)


def _of_event_times(field: str, stream: model.Stream) -> Check:
    for name, value in (("maxAhead", stream.max_ahead), ("idleTimeout", stream.idle_timeout)):
        if stream.event_time is None and value is not None:
            message = f"needs {field}.eventTime; name the column of event times there, or remove {name}"
            yield Problem(f"{field}.{name}", str(value), message)


def _where(field: str, stream: model.Stream, schema: Schema) -> Check:
    if stream.where is not None:
        try:
            parse_boolean(stream.where, {stream.name: schema})
        except SqlError as error:
            yield sql_problem(f"{field}.where", stream.where, error)


def _punctuation(field: str, stream: model.Stream, schema: Schema) -> Check:
    given = stream.punctuation
    if given is None:
        return
    for name, text, parse in (("when", given.when, parse_boolean), ("id", given.id, resolve.punctuation_id)):
        try:
            parse(text, {stream.name: schema})
        except SqlError as error:
            yield sql_problem(f"{field}.punctuation.{name}", text, error)


def _select(field: str, stream: model.Stream, schema: Schema) -> Check:
    seen: set[str] = set()
    for index, name in enumerate(stream.select or ()):
        here = f"{field}.select[{index}]"
        if schema.get(name) is None:
            remedy = meant(name, schema.names, "the columns are")
            yield Problem(here, name, f"is not a column of the schema; {remedy}")
        elif name.casefold() in seen:
            yield Problem(here, name, "is listed twice; remove one")
        seen.add(name.casefold())


def _of_source(field: str, stream: model.Stream, source: SourceConnector, schema: Schema) -> Check:
    yield from source.schema_problems(field, schema, _time_column(stream))


def _time_column(stream: model.Stream) -> str | None:
    """The column that has the event times as they are."""
    written = value_at(stream, "event_time")
    return None if written is None or written.unit or written.format else written.column or written.expression


def results_read_problems(streams: Sequence[model.Stream], joins: Sequence[model.Join]) -> Check:
    """Whether no stream of results reads what comes of itself."""
    for index, stream in enumerate(streams):
        read, field = value_at(stream, "source", "join"), f"spec.streams[{index}].source.join"
        if isinstance(read, str) and len(streams) > 2 and _comes_of_itself(stream, streams, joins):
            yield Problem(field, read, f"is made of {stream.name} itself; read another join, or another stream in its condition")


def _comes_of_itself(stream: model.Stream, streams: Sequence[model.Stream], joins: Sequence[model.Join]) -> bool:
    left, seen = [stream], set[str]()
    while left:
        read = value_at(left.pop(), "source", "join")
        for join in joins:
            if value_at(join, "name") == read and isinstance(read, str) and read not in seen:
                seen.add(read)
                with contextlib.suppress(SqlError, UnparsedError):
                    by_name = {name: each for each in streams if isinstance(name := value_at(each, "name"), str)}
                    over = [by_name[name] for name in resolve.named_by(join.condition, by_name)]
                    if stream in over:
                        return True
                    left += over
    return False


def declared_schemas(
    manifest: Manifest, streams: Sequence[model.Stream], joins: Sequence[model.Join]
) -> tuple[list[Schema | None], list[Problem]]:
    """The streams' schemas, None where one is refused here or for what it is made of; and what is wrong with them."""
    found: dict[int, Schema] = {}
    problems: list[Problem] = []
    reading = [index for index, stream in enumerate(streams) if isinstance(value_at(stream, "source", "join"), str)]
    for index, stream in enumerate(streams):
        field, ddl = f"spec.streams[{index}]", getattr(stream, "ddl", "refused")
        if index in reading and ddl is not None:
            problems.append(Problem(f"{field}.schema", None, "follows from the output of the join that is the source; remove it"))
        elif index not in reading and ddl is None:
            problems.append(Problem(f"{field}.schema", None, "is missing; declare columns as Spark DDL, such as id BIGINT, at TIMESTAMP"))
        elif index not in reading and isinstance(value_at(stream, "ddl"), str):
            try:
                found[index] = parse_schema(str(ddl))
            except SqlError as error:
                problems.append(sql_problem(f"{field}.schema", str(ddl), error))
    names = [value_at(stream, "name") for stream in streams]
    for _ in reading:
        for index in reading:
            if index not in found and isinstance(names[index], str):
                known = {names[other]: schema for other, schema in found.items() if isinstance(names[other], str)}
                with contextlib.suppress(SqlError, UnparsedError):  # the join has a problem of its own
                    schema = resolve.schema_of_results(manifest.spec, names[index], known)
                    if schema is not None:
                        found[index] = schema
    return [found.get(index) for index in range(len(streams))], problems


def schemas_by_name(streams: Sequence[model.Stream], schemas: Sequence[Schema | None]) -> dict[str, Schema]:
    """The schemas of streams by which SQL can be resolved: of those that have one. None at all, where a problem with the streams' names or
    their number, told elsewhere, keeps names in SQL from saying which stream is meant."""
    names = [value_at(stream, "name") for stream in streams]
    if not all(isinstance(name, str) and resolve.IDENTIFIER.fullmatch(name) and resolve.is_stream_name(name) for name in names):
        return {}
    if not 2 <= len(names) <= MOST_STREAMS or len({name.casefold() for name in names}) < len(names):
        return {}
    return {name: schema for name, schema in zip(names, schemas, strict=True) if schema is not None}


def held_problems(manifest: Manifest, schemas: Mapping[str, Schema]) -> Check:
    """Whether streams hold what is read once a pair was found. Looked at when all that reads it resolves."""
    try:
        needs = holding.all_needs(manifest.spec, schemas)
    except (SqlError, KeyError):
        return
    for index, stream in enumerate(manifest.spec.streams):
        if stream.select is None:
            continue
        held = {name.casefold() for name in stream.select}
        lacking: dict[str, str] = {}
        for need in needs:
            if need.stream == stream.name and need.column.casefold() not in held:
                lacking.setdefault(need.column, need.field)
        for column, field in lacking.items():
            yield Problem(f"spec.streams[{index}].select", list(stream.select), f"lacks {column}, which {field} needs; add it")
