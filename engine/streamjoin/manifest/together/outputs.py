"""What ``spec.joins[].output`` must be: a sink, SQL over what results have, columns that the sink can write.

Its snapshots are in ``snapshots``; the columns that streams must hold for it, in ``streams``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from streamjoin.language.errors import SqlError
from streamjoin.language.join_type import JoinType
from streamjoin.language.schema import Schema
from streamjoin.language.sql import Expression, parse_boolean, parse_projection
from streamjoin.manifest import model, resolve
from streamjoin.manifest.fields import one_of
from streamjoin.manifest.kafka import kafka_client_problems, registry_problems
from streamjoin.manifest.model import Manifest
from streamjoin.manifest.problem import Problem, closest, listed
from streamjoin.manifest.sinks import PostgresSink, Sink
from streamjoin.manifest.stores import postgres_sink_problems
from streamjoin.manifest.tables import TABLES, catalog_problems, table_problems
from streamjoin.manifest.together.check import Check, sql_problem, value_at


def sink_checks(field: str, join: model.Join, *, is_read: bool) -> list[Check]:
    """The checks of the sink at ``field`` by itself. ``is_read``: a stream reads the results."""
    kafka = value_at(join, "output", "sink", "kafka")
    checks = [_sink(field, join, is_read), kafka_client_problems(f"{field}.kafka", kafka)]
    checks.append(catalog_problems(f"{field}.iceberg", value_at(join, "output", "sink", "iceberg")))
    return [*checks, registry_problems(f"{field}.kafka", kafka)]


def column_checks(field: str, join: model.Join, manifest: Manifest, schemas: Mapping[str, Schema]) -> list[Check]:
    """The checks of the columns of the output at ``field``. ``schemas``: of the streams that the join is over."""
    checks = [_where(field, join, schemas), _select(field, join, schemas), _columns(field, join, manifest, schemas)]
    checks.append(_record_key(f"{field}.sink.kafka.key", join, manifest, schemas))
    checks.append(_table_columns(f"{field}.sink", join, manifest, schemas))
    return [*checks, _avro_names(f"{field}.select", join, manifest, schemas)]


def output_columns(join: model.Join, manifest: Manifest, schemas: Mapping[str, Schema]) -> resolve.Output | None:
    """The output's columns; None where they do not resolve, which others say."""
    try:
        return resolve.output(join, manifest.spec, schemas)
    except (SqlError, KeyError):
        return None


def _sink(field: str, join: model.Join, is_read: bool) -> Check:
    sink = join.output.sink
    if sink is None:
        if not is_read:
            message = "is missing, and no stream reads the results; give files, delta, iceberg, postgres, kafka or console"
            yield Problem(field, None, message)
        return
    yield from one_of(field, sink, tuple(Sink.model_fields))
    files = sink.files
    if files is not None and files.format == "json" and files.compression not in (None, "none"):
        message = "is only for format parquet; remove it, or write parquet"
        yield Problem(f"{field}.files.compression", files.compression, message)


def _where(field: str, join: model.Join, schemas: Mapping[str, Schema]) -> Check:
    where = join.output.where
    if where is not None:
        try:
            yield from _of_results(f"{field}.where", where, parse_boolean(where, schemas), join, schemas)
        except SqlError as error:
            yield sql_problem(f"{field}.where", where, error)


def _select(field: str, join: model.Join, schemas: Mapping[str, Schema]) -> Check:
    first: dict[str, int] = {}
    for index, text in enumerate(join.output.select or ()):
        here = f"{field}.select[{index}]"
        try:
            name, expression = parse_projection(text, schemas)
        except SqlError as error:
            yield sql_problem(here, text, error)
            continue
        yield from _of_results(here, text, expression, join, schemas)
        if name.casefold() in first:
            other = f"{field}.select[{first[name.casefold()]}]"
            yield Problem(here, text, f"makes a second column {name} (the first is {other}); name it with AS")
        first.setdefault(name.casefold(), index)


def _of_results(field: str, text: str, expression: Expression, join: model.Join, schemas: Mapping[str, Schema]) -> Check:
    """Whether an expression reads nothing but what results have."""
    streams = resolve.streams_of_results(JoinType(join.type), schemas)
    others = sorted(f"{stream}.{column}" for stream, column in expression.columns if stream not in streams)
    if others:
        message = f"reads {listed(others, 'and')}, and the results of type {join.type} are tuples of {streams[0]} alone; remove that"
        yield Problem(field, text, message)


def _columns(field: str, join: model.Join, manifest: Manifest, schemas: Mapping[str, Schema]) -> Check:
    if join.output.select is not None:
        return
    columns = output_columns(join, manifest, schemas)
    if columns is None:
        return
    yield from _default_names(f"{field}.select", [name for name, _ in columns])


def _default_names(field: str, names: Sequence[str]) -> Check:
    if not names:
        yield Problem(field, None, "is missing, and the streams hold no columns; name the columns to write")
    seen: set[str] = set()
    for name in names:
        if name.casefold() in seen:
            message = f"is missing, and by default two columns would be named {name}; name the columns"
            yield Problem(field, None, message)
        seen.add(name.casefold())


def _record_key(field: str, join: model.Join, manifest: Manifest, schemas: Mapping[str, Schema]) -> Check:
    kafka = value_at(join, "output", "sink", "kafka")
    if kafka is None or kafka.key is None:
        return
    columns = output_columns(join, manifest, schemas)
    if columns is None:
        return
    names = [name for name, _ in columns]
    if names and kafka.key.casefold() not in {name.casefold() for name in names}:
        close = closest(kafka.key, names)
        remedy = f"did you mean {close}?" if close else f"the columns are {listed(names, 'and')}"
        yield Problem(field, kafka.key, f"is not a column of the output; {remedy}")


def _table_columns(field: str, join: model.Join, manifest: Manifest, schemas: Mapping[str, Schema]) -> Check:
    postgres: PostgresSink | None = value_at(join, "output", "sink", "postgres")
    tables = [name for name in TABLES if value_at(join, "output", "sink", name) is not None]
    if not tables and postgres is None:
        return
    columns = output_columns(join, manifest, schemas)
    if columns is None:
        return
    yield from postgres_sink_problems(f"{field}.postgres", postgres, [name for name, _ in columns])
    for name in tables:
        types = {column: expression.type for column, expression in columns}
        yield from table_problems(f"{field}.{name}", value_at(join, "output", "sink", name), types)


def _avro_names(field: str, join: model.Join, manifest: Manifest, schemas: Mapping[str, Schema]) -> Check:
    kafka = value_at(join, "output", "sink", "kafka")
    if kafka is None or kafka.format != "avro":
        return
    columns = output_columns(join, manifest, schemas)
    if columns is None:
        return
    for name, _ in columns:
        if not re.fullmatch("[A-Za-z_][A-Za-z0-9_]*", name):
            message = "is not a name that Avro allows, and the sink writes Avro; give another name (AS), of letters, digits and _"
            yield Problem(field, name, message)
