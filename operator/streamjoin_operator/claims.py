"""The claim that the operator makes for the checkpoint, and what of it the manifest asks for and does not get.

Always holds: pure. Of a claim that is there only the owner and, where the manifest asks for more, the size are changed.
"""

from __future__ import annotations

from streamjoin.manifest.model import Checkpoint, Manifest
from streamjoin.manifest.quantity import Memory
from streamjoin_operator.drift import Object, our_fields, ours
from streamjoin_operator.pod_trouble import LONGEST, Trouble
from streamjoin_operator.reasons import Reason
from streamjoin_operator.resource import Resource, child

DEFAULT_MODES = ("ReadWriteOnce",)
"""What every storage class has."""
OTHER_CLAIM = "copy the state to a claim that is so and name that one in spec.checkpoint.persistentVolumeClaim"


def claim(resource: Resource, manifest: Manifest, observed: Object | None = None, *, enlarge: bool = True) -> Object | None:
    """The claim, if the operator is to make one. ``observed``: as it is there; ``enlarge``: whether to a larger size."""
    checkpoint = manifest.spec.checkpoint
    if checkpoint.persistent_volume_claim is None or checkpoint.size is None:
        return None
    spec: Object = {"accessModes": list(_modes(checkpoint)), "resources": {"requests": {"storage": str(checkpoint.size)}}}
    if checkpoint.storage_class_name is not None:
        spec["storageClassName"] = checkpoint.storage_class_name
    if observed is not None:
        there, wanted = ours(observed["spec"], our_fields(observed).get("f:spec", {})), spec["resources"]
        is_larger = enlarge and (size := _size(observed)) is not None and checkpoint.size > size
        spec = {**there, "resources": wanted} if is_larger else there
    owned = checkpoint.on_delete == "Delete"
    return child(resource, "v1", "PersistentVolumeClaim", checkpoint.persistent_volume_claim, owned=owned, spec=spec)


def trouble_of_claim(manifest: Manifest, observed: Object, refusal: str | None) -> Trouble | None:
    """What the claim is not that the manifest asks for. ``refusal``: the API server's answer to a larger size."""
    checkpoint = manifest.spec.checkpoint
    said = [*_kept(checkpoint, observed), *_of_size(checkpoint, observed, refusal)]
    return Trouble(Reason.ClaimKept, "; ".join(said)[:LONGEST]) if said else None


def _of_size(checkpoint: Checkpoint, observed: Object, refusal: str | None) -> list[str]:
    name, size = observed["metadata"]["name"], _size(observed)
    if size is None or checkpoint.size is None:
        return []
    field = f"spec.checkpoint.size: {checkpoint.size}"
    requested = our_fields(observed).get("f:spec", {}).get("f:resources", {}).get("f:requests", {})
    if checkpoint.size < size and "f:storage" in requested:
        return [f"{field}: PersistentVolumeClaim {name} has {size}, and a claim never shrinks; give {size}, or {OTHER_CLAIM}"]
    if refusal is not None:
        remedy = f"give {size}, have the storage class expand volumes, or {OTHER_CLAIM}"
        return [f"{field}: PersistentVolumeClaim {name} stays at {size}: {refusal}; {remedy}"]
    failed = [
        one.get("message") or one["type"]
        for one in (observed.get("status") or {}).get("conditions") or []
        if one.get("status") == "True" and one.get("type") in ("ControllerResizeError", "NodeResizeError")
    ]
    return [f"{field}: PersistentVolumeClaim {name} is not enlarged yet: {'; '.join(failed)}"] if failed else []


def _kept(checkpoint: Checkpoint, observed: Object) -> list[str]:
    """Fields that are given, and stay as they are."""
    spec, claim_name = observed["spec"], f"PersistentVolumeClaim {observed['metadata']['name']}"
    given = (
        ("accessModes", ", ".join(checkpoint.access_modes or ()), ", ".join(spec.get("accessModes") or ())),
        ("storageClassName", checkpoint.storage_class_name or "", spec.get("storageClassName") or ""),
    )
    return [
        f"spec.checkpoint.{field}: {wanted}: {claim_name} has {there or 'none'}, which stays; restore the field, or {OTHER_CLAIM}"
        for field, wanted, there in given
        if wanted and wanted != there
    ]


def _modes(checkpoint: Checkpoint) -> tuple[str, ...]:
    return checkpoint.access_modes or DEFAULT_MODES


def _size(observed: Object) -> Memory | None:
    """That is asked for; None where it is written as no manifest writes it."""
    try:
        return Memory.read(observed["spec"]["resources"]["requests"]["storage"])
    except (KeyError, TypeError, ValueError):
        return None
