"""What ``spec.joins`` must be together: names, conditions that resolve, the streams that each is over, types.

Their windows are in ``windows``, their results in ``outputs``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from streamjoin.language.errors import SqlError
from streamjoin.language.graph import join_graph
from streamjoin.language.layout import TooManyKeySpacesError
from streamjoin.language.schema import Schema
from streamjoin.language.sql import parse_boolean
from streamjoin.manifest import holding, model, outer_joins, resolve
from streamjoin.manifest.checks import Check, sql_problem, value_at
from streamjoin.manifest.model import Manifest
from streamjoin.manifest.part import UnparsedError
from streamjoin.manifest.problem import Problem


def streams_over(manifest: Manifest, index: int, streams: Sequence[model.Stream]) -> list[int] | None:
    """The numbers of the streams that a join's condition names; None where it does not name two."""
    try:
        names = resolve.names_over(manifest.spec, index)
    except (SqlError, UnparsedError, AttributeError):
        return None
    return [number for number, stream in enumerate(streams) if value_at(stream, "name") in names]


def condition_problems(field: str, join: model.Join, schemas: Mapping[str, Schema]) -> Check:
    """Whether it resolves. ``schemas``: of the streams that the join is over."""
    try:
        if len(schemas) > 2 and join.type in outer_joins.OUTER:
            outer_joins.parts_of(parse_boolean(join.condition, schemas), list(schemas))
        elif len(schemas) > 2:
            join_graph(join.condition, dict(schemas))
        else:
            resolve.condition(join.condition, schemas)
    except SqlError as error:
        yield sql_problem(f"{field}.condition", join.condition, error)


def floor_problems(manifest: Manifest, schemas: Mapping[str, Schema]) -> Check:
    """Whether one scheme can cut what all joins find their results by. Looked at when each resolves."""
    try:
        holding.layouts_of(manifest.spec, schemas)
    except TooManyKeySpacesError as error:
        yield Problem("spec.joins", None, str(error))
    except SqlError:
        return


def naming_problems(field: str, manifest: Manifest, index: int) -> Check:
    """Why a condition does not say which streams its join is over (``streams_over``)."""
    join = manifest.spec.joins[index]
    try:
        resolve.names_over(manifest.spec, index)
    except SqlError as error:
        yield sql_problem(f"{field}.condition", join.condition, error)


def unjoined_problems(manifest: Manifest, streams: Sequence[model.Stream], joins: Sequence[model.Join]) -> Check:
    """Streams that no join is over, where each is over those that its condition names."""
    over = [streams_over(manifest, index, streams) for index in range(len(joins))]
    if None in over:
        return
    for number, stream in enumerate(streams):
        if not any(number in (numbers or ()) for numbers in over):
            message = "is in no join's condition, and each is over the streams that its own names; name it in one, or remove it"
            yield Problem(f"spec.streams[{number}].name", stream.name, message)
