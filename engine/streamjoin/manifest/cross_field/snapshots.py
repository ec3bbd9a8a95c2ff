"""What ``spec.joins[].output.snapshots`` must be: a store that is right, a key among the output's columns."""

from __future__ import annotations

from collections.abc import Mapping

from streamjoin.language.errors import SqlError
from streamjoin.language.schema import Schema
from streamjoin.manifest import model, resolve
from streamjoin.manifest.checks import Check, sql_problem, value_at
from streamjoin.manifest.connector import given
from streamjoin.manifest.cross_field.outputs import output_columns
from streamjoin.manifest.model import Manifest
from streamjoin.manifest.problem import Problem


def store_problems(field: str, join: model.Join) -> Check:
    """Whether the store at ``field`` is right."""
    for kind, store in given(value_at(join, "output", "snapshots", "store")):
        yield from store.problems(f"{field}.{kind}")


def snapshots_problems(field: str, join: model.Join, manifest: Manifest, schemas: Mapping[str, Schema]) -> Check:
    """Whether the output at ``field`` has the snapshots' key, and none of the columns that snapshots add."""
    snapshots = join.output.snapshots
    if snapshots is None:
        return
    columns = output_columns(join, manifest, schemas)
    if columns is None:
        return
    for name, _ in columns:
        if name.casefold() in ("_key", "_snapshot", "_row"):
            message = "is a column of snapshots themselves; name the output's column otherwise, with AS in output.select"
            yield Problem(f"{field}.select", name, message)
    if columns:
        try:
            resolve.snapshot_key(snapshots.key, columns)
        except SqlError as error:
            yield sql_problem(f"{field}.snapshots.key", snapshots.key or columns[0][0], error)
