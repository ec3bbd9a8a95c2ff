"""What ``spec.joins[].output`` must be: a sink, SQL over what results have, columns that the sink can write.

Its snapshots are in ``snapshots``; the columns that streams must hold for it, in ``streams``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from streamjoin.language.errors import SqlError
from streamjoin.language.join_type import JoinType
from streamjoin.language.schema import Schema
from streamjoin.language.sql import Expression, parse_boolean, parse_projection
from streamjoin.manifest import model, resolve
from streamjoin.manifest.checks import Check, sql_problem, until_refused, value_at
from streamjoin.manifest.model import Manifest
from streamjoin.manifest.problem import Problem, listed
from streamjoin.manifest.sinks import sinks_in


def sink_checks(field: str, join: model.Join) -> list[Check]:
    """The checks of the sink at ``field`` by itself."""
    sinks = sinks_in(value_at(join, "output", "sink"))
    return [_sink(field, join), *(sink.problems(f"{field}.{kind}") for kind, sink in sinks)]


def column_checks(field: str, join: model.Join, manifest: Manifest, schemas: Mapping[str, Schema]) -> list[Check]:
    """The checks of the columns of the output at ``field``. ``schemas``: of the streams that the join is over."""
    checks = [_where(field, join, schemas), _select(field, join, schemas), _columns(field, join, manifest, schemas)]
    return [*checks, _sink_columns(field, join, manifest, schemas)]


def output_columns(join: model.Join, manifest: Manifest, schemas: Mapping[str, Schema]) -> resolve.Output | None:
    """The output's columns; None where they do not resolve, which others say."""
    try:
        return resolve.output(join, manifest.spec, schemas)
    except (SqlError, KeyError):
        return None


def _sink(field: str, join: model.Join) -> Check:
    for kind, sink in sinks_in(value_at(join, "output", "sink")):
        if not sink.opener and join.output.snapshots is not None:
            yield Problem(f"{field}.{kind}", None, "takes results from snapshots of its own, and excludes snapshots beside it; remove one")


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


def _sink_columns(field: str, join: model.Join, manifest: Manifest, schemas: Mapping[str, Schema]) -> Check:
    for _, sink in sinks_in(join.output.sink):
        columns = output_columns(join, manifest, schemas)
        if columns is not None:
            yield from until_refused(sink.column_problems(field, {name: expression.type for name, expression in columns}))
