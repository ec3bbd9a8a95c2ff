"""A StreamJoin as its children see it, and the frame that all of them share.

Always holds: pure; names are deterministic; every child has our labels and is owned by the StreamJoin, except a claim whose state is to
outlive it; and is controlled by it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from streamjoin.manifest.model import API_VERSION, KIND
from streamjoin_operator import names
from streamjoin_operator.drift import Object, our_entries, stamped


@dataclass(frozen=True, slots=True)
class Resource:
    """What of a StreamJoin is needed besides its manifest."""

    namespace: str
    name: str
    uid: str
    generation: int
    restart: str = ""
    """Its annotation ``streamjoin.dev/restart``."""
    pause: str = ""
    """Its annotation ``streamjoin.dev/pause-scaling``."""
    begins_anyhow: bool = False
    """Whether its annotation ``streamjoin.dev/admission`` is Warn."""
    mounted: str = ""
    """A hash of the Secrets that all of its pods mount: with others, they start anew together."""
    begun: str = ""
    """spec.workers.resources as the driver was begun with, as JSON, while it goes on and its executors are resized."""
    unresizable: str = ""
    """The generation for which they cannot be, and why, where the driver starts anew for that or has done so: ``3: no room``."""
    is_enlarged: bool = False
    """Whether workers have more memory than its manifest says, by decision."""

    @classmethod
    def of(cls, body: Object) -> Resource:
        metadata = body["metadata"]
        annotations = metadata.get("annotations") or {}
        return cls(
            metadata["namespace"],
            metadata["name"],
            metadata["uid"],
            metadata.get("generation", 0),
            annotations.get(names.RESTART, ""),
            annotations.get(names.PAUSE, ""),
            annotations.get(names.ADMISSION, "") == "Warn",
        )

    @property
    def base(self) -> str:
        return names.base_name(self.name)

    @property
    def nonce(self) -> str:
        """What makes the driver start anew though the manifest is the same."""
        return f"{self.restart} {self.mounted}"

    @property
    def started_for(self) -> str:
        """The nonce, and for which generation it starts anew instead of a resize: that may take it back to what it was begun with."""
        return f"{self.nonce} {self.unresizable}" if self.unresizable else self.nonce

    @property
    def tls_name(self) -> str:
        """The name that certificates must be for: its Service's."""
        return f"{self.base}.{self.namespace}.svc"

    def selected(self, component: str) -> Object:
        """The labels by which pods of one component are found."""
        return {names.NAME: self.name, names.COMPONENT: component}

    def owner(self) -> Object:
        return {
            "apiVersion": API_VERSION,
            "kind": KIND,
            "name": self.name,
            "uid": self.uid,
            "controller": True,
            "blockOwnerDeletion": True,
        }

    def may_apply(self, existing: Object) -> bool:
        """Whether an object of a child's name may be made one.

        It may where a StreamJoin of this name controls it, this one or one before it; and where nothing controls it, and we have applied
        it for one of this name: a child of a StreamJoin that was deleted without its children. Labels alone say nothing, as anybody copies
        them; so one-queries gets nothing that was left behind by one.
        """
        controller = _controller(existing)
        if controller is None:
            of = (existing["metadata"].get("labels") or {}).get(names.NAME)
            return bool(our_entries(existing)) and of in (None, self.name)
        return bool(controller["kind"] == KIND and controller["name"] == self.name)

    def foreign(self, kind: str, existing: Object) -> str:
        """What is to be said of an object that :meth:`may_apply` refuses."""
        controller, named = _controller(existing), f"{kind} {existing['metadata']['name']}"
        if controller is None or controller["kind"] != KIND:
            return f"{named} exists and is not this StreamJoin's; delete or rename it"
        return f"{named} is a child of the StreamJoin {controller['name']}, and {self.name} needs that name, too; name one of them anew"

    def controls(self, existing: Object) -> bool:
        """Whether this very StreamJoin controls an object."""
        return (_controller(existing) or {}).get("uid") == self.uid

    def owns(self, existing: Object) -> bool:
        """Whether an object is a child of this very StreamJoin, applied by us, and so may be deleted."""
        return self.controls(existing) and bool(our_entries(existing))


def _controller(existing: Object) -> Object | None:
    return next((owner for owner in existing["metadata"].get("ownerReferences") or [] if owner.get("controller")), None)


def child(resource: Resource, version: str, kind: str, name: str, *, owned: bool = True, **body: Any) -> Object:
    """A child's frame."""
    metadata: Object = {"name": name, "namespace": resource.namespace, "labels": names.labels(resource.name)}
    if owned:
        metadata["ownerReferences"] = [resource.owner()]
    metadata |= body.pop("metadata", {})
    return stamped({"apiVersion": version, "kind": kind, "metadata": metadata, **body})
