"""Orders: the limits on workers and the model as a manifest has them, what of them has changed, and who changed it.

The API server notes by whom each field was last given its value (managed fields); that, and not who the operator was told by, is believed.

Always holds: pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from streamjoin.manifest import Manifest
from streamjoin_operator.drift import Object
from streamjoin_operator.names import MANAGER

Limits = dict[str, int | str]
"""By field of the spec: ``workers.floor``."""
HPA = "kube-controller-manager"
"""The field manager of a HorizontalPodAutoscaler."""


def limits_of(manifest: Manifest) -> Limits:
    workers, model = manifest.spec.workers, manifest.spec.scheme.model
    return {"workers.min": workers.min, "workers.max": workers.max, "workers.floor": workers.floor, "scheme.model": model}


def changes(before: Mapping[str, Any], after: Limits) -> dict[str, str]:
    """Of each field that differs, from what to what."""
    return {field: f"{field} {before.get(field, '?')} -> {value}" for field, value in after.items() if before.get(field) != value}


def sentence(changed: Mapping[str, str], body: Object) -> str:
    """What was ordered, by whom and when; ``body``: the StreamJoin with all of its managed fields. O(fields)."""
    by: dict[str, list[str]] = {}
    for field, text in changed.items():
        by.setdefault(_who(body, field), []).append(text)
    return "; ".join(f"{', '.join(texts)}, {who}" for who, texts in by.items())


def _who(body: Object, field: str) -> str:
    entries = [entry for entry in body["metadata"].get("managedFields") or [] if _is_of_spec(entry)]
    holders = [entry for entry in entries if _has(entry, field)]
    if holders:
        return f"by {_named(max(holders, key=_time))}"
    # Nobody holds a default, which is what a field has that was left out. Through /scale nothing can be.
    writers = [entry for entry in entries if not entry.get("subresource")]
    if writers:
        return f"left out, as it seems, by {_named(max(writers, key=_time))}, who wrote last"
    return "it is not known by whom"


def _named(entry: Object) -> str:
    manager = str(entry.get("manager"))
    through = " through /scale" if entry.get("subresource") == "scale" else ""
    through += " (a HorizontalPodAutoscaler)" if through and manager == HPA else ""
    return f"{manager}{through}" + (f" at {entry['time']}" if entry.get("time") else "")


def _time(entry: Object) -> str:
    """Of several who gave a field the same value the last one counts; what comes through /scale has no time, and is the newest then."""
    return str(entry.get("time") or "~")


def _is_of_spec(entry: Object) -> bool:
    is_ours = entry.get("manager") == MANAGER
    return not is_ours and entry.get("subresource") in (None, "", "scale") and "f:spec" in (entry.get("fieldsV1") or {})


def _has(entry: Object, field: str) -> bool:
    fields: Mapping[str, Any] | None = entry["fieldsV1"]["f:spec"]
    for name in field.split("."):
        fields = None if fields is None else fields.get(f"f:{name}")
    return fields is not None
