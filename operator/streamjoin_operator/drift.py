"""Whether an object is as it should be, by the API server's own account of who holds which field.

With server-side apply the API server notes the fields that each manager has applied, and takes a field from its manager as soon as somebody
else gives it another value or removes it. So values are never compared here: the API server writes them in its own way (``cpu: 1000m`` is
``1``), fills in defaults, and lets others add to lists by key, and none of that is a change.

Always holds: no write is needed exactly when both are true: the object carries the hash of what is desired (so just that was applied last),
and every field of it is still ours (so nobody has changed it since). What others add is theirs.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from streamjoin_operator.names import DESIRED, MANAGER

Object = dict[str, Any]
Fields = Mapping[str, Any]
"""``fieldsV1`` of managed fields: children by ``f:name``, by ``k:{key}`` of a list's item or by ``v:value`` of a set's; ``.`` for what has
children itself. Without children: a value, or a whole list or mapping that the API server takes for one."""

_IDENTITY = ("name", "namespace", "resourceVersion")
"""Of the metadata; nobody holds these, nor the object's kind and version."""


def annotations_of(found: Object | None) -> Object:
    """Those of an object, if it is there."""
    return ((found or {}).get("metadata") or {}).get("annotations") or {}


def digest(value: Any) -> str:
    """A short hash of a JSON value; the order of keys does not count."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, separators=(",", ":")).encode()).hexdigest()[:16]


def stamped(desired: Object) -> Object:
    """The object with its own hash as an annotation."""
    metadata = desired["metadata"]
    annotations = {**metadata.get("annotations", {}), DESIRED: digest(desired)}
    return {**desired, "metadata": {**metadata, "annotations": annotations}}


def is_current(observed: Object | None, desired: Object) -> bool:
    """Whether applying ``desired`` (which is stamped) would change nothing. O(size of desired)."""
    if observed is None:
        return False
    stamp = desired["metadata"]["annotations"][DESIRED]
    if (observed["metadata"].get("annotations") or {}).get(DESIRED) != stamp:
        return False
    metadata = {name: value for name, value in desired["metadata"].items() if name not in _IDENTITY}
    rest = {name: value for name, value in desired.items() if name not in ("apiVersion", "kind", "metadata")}
    return _holds(our_fields(observed), {**rest, "metadata": metadata})


def our_entries(observed: Object) -> list[Object]:
    """The managed fields that are ours by server-side apply: one entry, or none where we have applied nothing."""
    return [
        entry
        for entry in observed["metadata"].get("managedFields") or []
        if entry.get("manager") == MANAGER and entry.get("operation") == "Apply" and not entry.get("subresource")
    ]


def our_fields(observed: Object) -> Fields:
    """The fields of an object that we have applied and that nobody has taken over since."""
    return next((entry.get("fieldsV1") or {} for entry in our_entries(observed)), {})


def ours(value: Any, fields: Fields) -> Any:
    """Of a value as it is stored the part that ``fields`` names: what was applied, as the API server writes it."""
    if not set(fields) - {"."}:
        return value
    if isinstance(value, Mapping):
        return {name: ours(item, fields[f"f:{name}"]) for name, item in value.items() if f"f:{name}" in fields}
    if isinstance(value, list):
        found = ((item, _child(fields, item)) for item in value)
        return [ours(item, child) for item, child in found if child is not None]
    return value


def _holds(fields: Fields, desired: Any) -> bool:
    """Whether ``fields`` has every field of ``desired``; nobody holds one that is empty."""
    if not fields:
        return True
    if isinstance(desired, Mapping):
        named = ((f"f:{name}", value) for name, value in desired.items() if value not in (None, {}, []))
        return all(name in fields and _holds(fields[name], value) for name, value in named)
    if isinstance(desired, list):
        children = ((item, _child(fields, item)) for item in desired)
        return all(child is not None and _holds(child, item) for item, child in children)
    return True


def _child(fields: Fields, item: Any) -> Fields | None:
    """The fields of a list's item; None where it is not there. What an item leaves out of its key is a default."""
    for name, child in fields.items():
        if name.startswith("v:") and json.loads(name[2:]) == item:
            return dict(child)
        if name.startswith("k:") and isinstance(item, Mapping):
            key = json.loads(name[2:])
            if any(part in item for part in key) and all(item.get(part, value) == value for part, value in key.items()):
                return dict(child)
    return None
