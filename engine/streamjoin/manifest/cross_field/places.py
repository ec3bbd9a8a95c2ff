"""Where a manifest's data are: ``spec.checkpoint``, directories that keep apart, topics of results that no source reads."""

from __future__ import annotations

from collections.abc import Sequence

from streamjoin.location import place, within
from streamjoin.manifest import model
from streamjoin.manifest.checks import Check, until_refused, value_at
from streamjoin.manifest.model import Manifest
from streamjoin.manifest.problem import Problem
from streamjoin.manifest.sinks import sinks_in
from streamjoin.manifest.sources import sources_in


def checkpoint_problems(manifest: Manifest) -> Check:
    """Whether it says how a claim is made only where there is a claim."""
    checkpoint = manifest.spec.checkpoint
    if checkpoint.persistent_volume_claim is None:
        for name, value in {"size": checkpoint.size, **_of_made_claims(checkpoint)}.items():
            if value is not None:
                message = "says how to make a claim, and there is none; name one in spec.checkpoint.persistentVolumeClaim, or remove this"
                yield Problem(f"spec.checkpoint.{name}", str(value), message)
    elif checkpoint.size is None:
        for name, value in _of_made_claims(checkpoint).items():
            if value is not None:
                yield Problem(f"spec.checkpoint.{name}", value, "is for a claim that the operator makes; give spec.checkpoint.size too")


def _of_made_claims(checkpoint: model.Checkpoint) -> dict[str, str | None]:
    modes = checkpoint.access_modes
    return {"storageClassName": checkpoint.storage_class_name, "accessModes": None if modes is None else ", ".join(modes)}


def place_problems(manifest: Manifest) -> Check:  # noqa: C901
    """Directories that would take each other's files for their own. Two streams may read the same directory."""
    known: list[tuple[str, str, str]] = []
    streams: tuple[model.Stream, ...] = value_at(manifest, "spec", "streams") or ()
    joins: tuple[model.Join, ...] = value_at(manifest, "spec", "joins") or ()
    for index, stream in enumerate(streams):
        for kind, source in sources_in(value_at(stream, "source")):
            if (directory := source.directory()) is not None:
                known.append((f"spec.streams[{index}].source.{kind}.path", value_at(source, "path"), place(directory)))
    for index, join in enumerate(joins):
        for kind, sink in sinks_in(value_at(join, "output", "sink")):
            if (directory := sink.directory()) is not None:
                known.append((f"spec.joins[{index}].output.sink.{kind}.path", directory, place(directory)))
    for field, *part in (("checkpoint", "checkpoint"), ("deadLetter", "dead_letter"), ("checkpoint.cloneOf", "checkpoint", "clone_of")):
        if (location := value_at(manifest, "spec", *part, "location")) is not None:
            known.append((f"spec.{field}.location", location, place(location)))
    for position, (field, written, path) in enumerate(known):
        for other_field, other_written, other in known[:position]:
            both_read = field.startswith("spec.streams") and other_field.startswith("spec.streams")
            kept_inside = field == "spec.deadLetter.location" and other_field == "spec.checkpoint.location"
            if both_read or (kept_inside and path != other and within(path, other)):
                continue
            if within(path, other) or within(other, path):
                inside = "lies in" if within(path, other) else "holds"
                relation = "is the same directory as" if path == other else inside
                message = f"{relation} {other_field} ({other_written}); give each a directory of its own"
                yield Problem(field, written, message)


def topic_loop_problems(streams: Sequence[model.Stream], joins: Sequence[model.Join]) -> Check:
    """Sources that would read the results of this resource."""
    written = [
        (f"spec.joins[{index}].output.sink.{kind}", sink)
        for index, join in enumerate(joins)
        for kind, sink in sinks_in(value_at(join, "output", "sink"))
    ]
    for index, stream in enumerate(streams):
        for kind, source in sources_in(value_at(stream, "source")):
            yield from until_refused(source.loop_problems(f"spec.streams[{index}].source.{kind}", written))
