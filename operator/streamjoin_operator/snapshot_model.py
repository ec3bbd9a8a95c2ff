"""The StreamJoinSnapshot: a savepoint of a StreamJoin's state, as a resource. Its fields, and its CustomResourceDefinition.

Always holds: the savepoint is called as the resource, so that one name means one savepoint; what it is of never changes.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

from pydantic import Field, StringConstraints

from streamjoin.manifest.model import API_VERSION
from streamjoin.manifest.part import Part
from streamjoin_operator.crd import LONGEST_NAME, Column, definition_of, structural, text
from streamjoin_operator.status_model import Condition, Count, Instant, Word

Json = dict[str, Any]

KIND, PLURAL = "StreamJoinSnapshot", "streamjoinsnapshots"
COLUMNS: tuple[Column, ...] = (
    ("StreamJoin", "string", ".spec.streamJoin", "Of which StreamJoin it is", 0),
    ("Ready", "string", '.status.conditions[?(@.type=="Ready")].status', "Whether the savepoint is there", 0),
    ("Epoch", "integer", ".status.epoch", "The epoch that is kept", 0),
    ("Committed", "date", ".status.committedAt", "When that was committed", 0),
    ("Bytes", "integer", ".status.bytes", "What it keeps, much of which the join may hold too", 0),
    ("Message", "string", '.status.conditions[?(@.type=="Ready")].message', "Why, or why not", 1),
    ("Age", "date", ".metadata.creationTimestamp", "", 0),
)


class Spec(Part):
    """What to keep."""

    stream_join: Annotated[str, StringConstraints(min_length=1, max_length=63)]
    """The StreamJoin, in the same namespace, whose last commit is kept. It cannot be changed."""


class Status(Part):
    """What is kept."""

    observed_generation: Annotated[int, Field(ge=-1)] | None = None
    """The metadata.generation that the operator has looked at; -1: none yet."""
    epoch: Count | None = None
    """The epoch that is kept."""
    committed_at: Instant | None = None
    """When that was committed."""
    bytes: Count | None = None
    """Bytes of the tuples that it keeps. Savepoints, and the join itself, share what they have in common."""
    location: Word | None = None
    """The place of the StreamJoin's checkpoint when it was made: what a clone's checkpoint.cloneOf.location names."""
    conditions: Annotated[tuple[Condition, ...], Field(max_length=8)] = ()
    """Ready, Reconciling and Stalled."""


class StreamJoinSnapshot(Part):
    """One savepoint of a StreamJoin's state. As long as it is there, the savepoint is; deleting it deletes the savepoint."""

    spec: Spec
    status: Status | None = None


def definition() -> Json:
    """The CustomResourceDefinition."""
    spec = structural(Spec)
    spec["x-kubernetes-validations"] = [{"rule": "self == oldSelf", "message": "spec may not change; make another StreamJoinSnapshot"}]
    names = {"kind": KIND, "plural": PLURAL, "shortNames": ["sjsnap"], "categories": ["streaming"]}
    return definition_of(names, StreamJoinSnapshot.__doc__, spec, structural(Status), COLUMNS)


def dated_name(stream_join: str, at: datetime, pattern: str) -> str:
    """Of a snapshot of that moment, as ``strftime`` writes it: names of later ones are greater."""
    moment = at.strftime(f"-{pattern}")
    return stream_join[: LONGEST_NAME - len(moment)] + moment


def resource(name: str, stream_join: str) -> Json:
    """One to apply."""
    return {"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": name}, "spec": {"streamJoin": stream_join}}


if __name__ == "__main__":
    print(text(definition()), end="")
