"""Where a manifest's data are: ``spec.checkpoint``, directories that keep apart, topics of results that no source reads."""

from __future__ import annotations

from collections.abc import Sequence

from streamjoin.location import place, within
from streamjoin.manifest import model
from streamjoin.manifest.fields import one_of
from streamjoin.manifest.model import Manifest
from streamjoin.manifest.problem import Problem
from streamjoin.manifest.sources import split_path
from streamjoin.manifest.together.check import Check, value_at
from streamjoin.manifest.topics import loop_problems


def checkpoint_problems(manifest: Manifest) -> Check:
    """Whether there is one place, and how a claim is made only where there is a claim."""
    yield from one_of("spec.checkpoint", manifest.spec.checkpoint, ("location", "persistent_volume_claim"))
    checkpoint = manifest.spec.checkpoint
    if checkpoint.persistent_volume_claim is None:
        for name, value in (("size", checkpoint.size), ("storageClassName", checkpoint.storage_class_name)):
            if value is not None:
                message = "says how to make a claim, and there is none; name one in spec.checkpoint.persistentVolumeClaim, or remove this"
                yield Problem(f"spec.checkpoint.{name}", str(value), message)
    elif checkpoint.storage_class_name is not None and checkpoint.size is None:
        message = "is for a claim that the operator makes; give spec.checkpoint.size too"
        yield Problem("spec.checkpoint.storageClassName", checkpoint.storage_class_name, message)


def place_problems(manifest: Manifest) -> Check:
    """Directories that would take each other's files for their own. Two streams may read the same directory."""
    places: list[tuple[str, str]] = []
    streams: tuple[model.Stream, ...] = value_at(manifest, "spec", "streams") or ()
    joins: tuple[model.Join, ...] = value_at(manifest, "spec", "joins") or ()
    for index, stream in enumerate(streams):
        for kind in ("files", "delta"):
            places.append((f"spec.streams[{index}].source.{kind}.path", value_at(stream, "source", kind, "path")))
    for index, join in enumerate(joins):
        for kind in ("files", "delta"):
            places.append((f"spec.joins[{index}].output.sink.{kind}.path", value_at(join, "output", "sink", kind, "path")))
    places.append(("spec.checkpoint.location", value_at(manifest, "spec", "checkpoint", "location")))
    places.append(("spec.deadLetter.location", value_at(manifest, "spec", "dead_letter", "location")))
    known = [(field, given, _directory(field, given)) for field, given in places if isinstance(given, str)]
    for position, (field, given, path) in enumerate(known):
        for other_field, other_given, other in known[:position]:
            both_read = field.startswith("spec.streams") and other_field.startswith("spec.streams")
            kept_inside = field == "spec.deadLetter.location" and other_field == "spec.checkpoint.location"
            if both_read or (kept_inside and path != other and within(path, other)):
                continue
            if within(path, other) or within(other, path):
                inside = "lies in" if within(path, other) else "holds"
                relation = "is the same directory as" if path == other else inside
                message = f"{relation} {other_field} ({other_given}); give each a directory of its own"
                yield Problem(field, given, message)


def _directory(field: str, given: str) -> str:
    return place(split_path(given)[0] if field.endswith(".source.files.path") else given)


def topic_loop_problems(streams: Sequence[model.Stream], joins: Sequence[model.Join]) -> Check:
    """Topics of results that a source's pattern matches."""
    read = [(f"spec.streams[{index}].source.kafka", value_at(stream, "source", "kafka")) for index, stream in enumerate(streams)]
    written = [(f"spec.joins[{index}].output.sink.kafka", value_at(join, "output", "sink", "kafka")) for index, join in enumerate(joins)]
    return loop_problems(read, written)
