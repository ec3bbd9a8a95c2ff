"""What a manifest's fields must be together: names that exist, SQL that resolves, numbers in order, one of many forms.

A check is a generator of problems over parts that may lack refused fields (``fields.partial``). Reading a refused field
ends that check, and only that one: the field has its own problem already.

==============  ========================================================================================================
``streams``     ``spec.streams``: names, schemas, columns, sources, and results of joins that they read
``joins``       ``spec.joins``: names, conditions, types, the streams that each is over
``windows``     ``spec.joins[].window``
``outputs``     ``spec.joins[].output``: sinks and columns; ``snapshots``: its snapshots
``scheme``      ``spec.scheme``
``places``      ``spec.checkpoint``; directories and topics that must not be each other's
``doubtful``    what is allowed but perhaps not meant
==============  ========================================================================================================

What the fields of one part must be together, and the API server is told too, is in ``manifest.model_rules``. What a source, a sink or a
store must be by itself is in its own module (``manifest.connectors``, ``manifest.snapshots``).

Always holds: a manifest whose fields are right by themselves and for which :func:`problems` finds nothing can be
compiled.
"""

from __future__ import annotations

from streamjoin.language.graph import MOST_STREAMS
from streamjoin.manifest import model
from streamjoin.manifest.checks import Check, until_refused, value_at
from streamjoin.manifest.cross_field.joins import (
    condition_problems,
    floor_problems,
    naming_problems,
    streams_over,
    unjoined_problems,
)
from streamjoin.manifest.cross_field.lint import remarks
from streamjoin.manifest.cross_field.outputs import column_checks, sink_checks
from streamjoin.manifest.cross_field.places import checkpoint_problems, place_problems, topic_loop_problems
from streamjoin.manifest.cross_field.scheme import key_problems, scheme_problems
from streamjoin.manifest.cross_field.snapshots import snapshots_problems, store_problems
from streamjoin.manifest.cross_field.streams import (
    declared_schemas,
    held_problems,
    results_read_problems,
    schemas_by_name,
    stream_checks,
    stream_name_problems,
)
from streamjoin.manifest.cross_field.windows import window_checks
from streamjoin.manifest.model import Manifest
from streamjoin.manifest.model_rules import rule_checks
from streamjoin.manifest.problem import Problem

__all__ = ["problems", "remarks"]


def problems(manifest: Manifest) -> list[Problem]:
    """Everything that is wrong with the fields together."""
    checks = [_counts(manifest), stream_name_problems(manifest)]
    checks += rule_checks(("spec",), value_at(manifest, "spec"))
    streams: tuple[model.Stream, ...] = value_at(manifest, "spec", "streams") or ()
    joins: tuple[model.Join, ...] = value_at(manifest, "spec", "joins") or ()
    by_condition = len(streams) > 2 and (len(joins) > 1 or any(value_at(stream, "source", "join") for stream in streams))
    schemas, wrong = declared_schemas(manifest, streams, joins)
    checks += [iter(wrong), results_read_problems(streams, joins)]
    for index, (stream, schema) in enumerate(zip(streams, schemas, strict=True)):
        checks += stream_checks(f"spec.streams[{index}]", stream, schema)
    by_name = schemas_by_name(streams, schemas)
    for index, join in enumerate(joins):
        field = f"spec.joins[{index}]"
        checks += sink_checks(f"{field}.output.sink", join)
        checks.append(store_problems(f"{field}.output.snapshots.store", join))
        over = streams_over(manifest, index, streams) if by_condition else range(len(streams))
        if over is None:
            checks.append(naming_problems(field, manifest, index))
            continue
        checks += window_checks(f"{field}.window", join, streams, over)
        known = {name: by_name[name] for number in over if (name := value_at(streams[number], "name")) in by_name}
        if 2 <= len(over) == len(known):
            checks += [condition_problems(field, join, known), *column_checks(f"{field}.output", join, manifest, known)]
            checks.append(snapshots_problems(f"{field}.output", join, manifest, known))
    if by_condition:
        checks.append(unjoined_problems(manifest, streams, joins))
    if len(streams) > 1 and by_name.keys() == {value_at(stream, "name") for stream in streams} and joins:
        checks += [key_problems(manifest, by_name), held_problems(manifest, by_name), floor_problems(manifest, by_name)]
    checks += [scheme_problems(manifest), checkpoint_problems(manifest), place_problems(manifest), topic_loop_problems(streams, joins)]
    return [problem for check in checks for problem in until_refused(check)]


def _counts(manifest: Manifest) -> Check:
    spec = manifest.spec
    streams = len(spec.streams)
    if streams > MOST_STREAMS:
        remedy = "join some of them in a manifest of their own, and read its results here"
        yield Problem("spec.streams", None, f"has {streams} streams, and there may be 2 to {MOST_STREAMS}; {remedy}")
    elif streams < 2:
        message = f"has {streams} stream{'s' * (streams == 0)}; give two (one source may be read by both)"
        yield Problem("spec.streams", None, message)
    joins = len(spec.joins)
    if not 1 <= joins <= model.MOST_JOINS:
        remedy = "move the others into a manifest of their own" if joins else "give one"
        yield Problem("spec.joins", None, f"has {joins} joins, and there may be 1 to {model.MOST_JOINS}; {remedy}")
