"""Which checkpoint an output belongs to, so that another one does not write the same results into it a second time.

A directory of files (a table's too) has a marker, ``_streamjoin/checkpoint.json``, which readers pass over as all names that begin with an
underscore. A driver looks at it as it starts, and makes it before its first commit that has results. A directory without a marker is
nobody's.

Always holds: the marker is created exclusively, before results are committed: of two checkpoints with one output, one never commits any.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection
from dataclasses import dataclass

from streamjoin.io.base import SinkError
from streamjoin.state.storage import AlreadyExists, ObjectStorage, StorageError, found

FOLDER = "_streamjoin"
MARKER = f"{FOLDER}/checkpoint.json"


@dataclass(frozen=True)
class Owner:
    """A checkpoint."""

    identity: str
    location: str
    """For messages: it may be moved."""
    has_published: bool = False
    """Whether it has made results visible in an output of this name. A table that does not know of them is another one."""


class OwnedElsewhere(SinkError):  # noqa: N818
    """An output has the results of another checkpoint."""


def refusal(where: str, owner: Owner, location: str, removal: str) -> OwnedElsewhere:
    """``location``: of the checkpoint that the output belongs to, as far as it is known; ``removal``: how it is made free."""
    kept = f"go on from it (checkpoint.location: {location})" if location else "go on from that checkpoint"
    other = f", {location}" if location else ""
    problem = f"has the results of another checkpoint{other}, and this one ({owner.location}) would add its own"
    return OwnedElsewhere(f"{where} {problem}; choose a new output, {removal}, or {kept}")


def require_known(where: str, field: str, owner: Owner, owners: Collection[str], removal: str) -> None:
    """Raises OwnedElsewhere for a table that has results of ``owners`` (identities of checkpoints) alone, or that lacks those of this one.

    ``field``: the manifest's, by which the table is reached."""
    if owner.identity in owners:
        return
    if owner.has_published:
        problem = f"has none of the results that this checkpoint ({owner.location}) has published to a table of this name"
        remedy = f"correct {field} if it leads to another server or catalog now, or choose a new checkpoint.location"
        raise OwnedElsewhere(f"{where} {problem}; {remedy}, with which all results are written again")
    if owners:
        raise refusal(where, owner, "", removal)


def claim_directory(field: str, root: str, owner: Owner, *, takes: bool) -> None:
    """As :meth:`streamjoin.io.base.Sink.claim`. ``root``: a place, as ``location`` writes it; ``field``: the manifest's, for messages."""
    storage = ObjectStorage(root)
    try:
        data = _marker(storage)
        if data is None and takes:
            data = json.dumps({"checkpoint": owner.identity, "location": owner.location}).encode()
            try:
                storage.create(MARKER, data)
            except AlreadyExists:
                data = _marker(storage)
    except StorageError as error:
        if storage.root is None:
            raise
        raise SinkError(f"{field}: {error}; correct the path or the access to it") from error
    if data is None:
        return
    try:
        marker = json.loads(data)
        identity, location = str(marker["checkpoint"]), str(marker["location"])
    except (ValueError, LookupError, TypeError):
        message = "does not say which checkpoint's results these are; remove the directory, or this file if they are this checkpoint's"
        raise SinkError(f"{field}: {root}/{MARKER}: {message}") from None
    if identity != owner.identity:
        raise refusal(f"{field}: {root}", owner, location, "remove the old one")


def _marker(storage: ObjectStorage) -> bytes | None:
    """None: there is none, or no directory, which is made when it is needed."""
    if storage.root is not None and not os.path.isdir(storage.root):
        return None
    return found(storage, MARKER)
