"""What ``spec.joins[].output.snapshots`` must be: an end, a key among the output's columns, punctuation that streams have."""

from __future__ import annotations

from collections.abc import Mapping

from streamjoin.language.errors import SqlError
from streamjoin.language.schema import Schema
from streamjoin.manifest import model, resolve
from streamjoin.manifest.checks import Check, as_text, sql_problem
from streamjoin.manifest.connector import given
from streamjoin.manifest.cross_field.outputs import output_columns
from streamjoin.manifest.model import Manifest
from streamjoin.manifest.problem import Problem


def snapshots_end_problems(field: str, join: model.Join) -> Check:
    """Whether the snapshots at ``field`` say when one ends, and their store is right."""
    snapshots = join.output.snapshots
    if snapshots is None:
        return
    if snapshots.store is not None:
        for kind, store in given(snapshots.store):
            yield from store.problems(f"{field}.store.{kind}")
    if snapshots.punctuation:
        for name, value in (("every", snapshots.every), ("size", snapshots.size)):
            if value is not None:
                yield Problem(f"{field}.{name}", as_text(value), "excludes punctuation, which says when a snapshot ends; keep one")
    if snapshots.max_delay and (snapshots.every is None or snapshots.size is None):
        lacking = "every" if snapshots.every is None else "size"
        yield Problem(f"{field}.maxDelay", snapshots.max_delay, f"needs {lacking} too; give it, or remove maxDelay")


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


def snapshot_punctuation_problems(manifest: Manifest) -> Check:
    """Whether all streams have punctuation where snapshots end by it."""
    wanting = [
        index for index, join in enumerate(manifest.spec.joins) if join.output.snapshots is not None and join.output.snapshots.punctuation
    ]
    for index, stream in enumerate(manifest.spec.streams):
        if wanting and stream.punctuation is None:
            message = f"is missing, and spec.joins[{wanting[0]}].output.snapshots.punctuation needs it of every stream; give when and id"
            yield Problem(f"spec.streams[{index}].punctuation", None, message)
