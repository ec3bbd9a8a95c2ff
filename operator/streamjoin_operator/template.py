"""A pod template of the user's, merged over ours as Kubernetes merges strategically: by name where lists have names.

Always holds: neither argument is changed; what the user does not mention stays ours.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_KEYS = {"volumeMounts": "mountPath", "ports": "containerPort", "imagePullSecrets": "name", "hostAliases": "ip"}
"""By list, the key that tells its items apart; ``name`` for the others whose items all have one."""
_APPENDED = ("tolerations", "topologySpreadConstraints")


def merge(ours: Any, theirs: Any, field: str = "") -> Any:
    """``theirs`` over ``ours``. Mappings merge by key (null removes), lists by their items' key, everything else is replaced."""
    if isinstance(ours, Mapping) and isinstance(theirs, Mapping):
        merged = {key: value for key, value in ours.items() if theirs.get(key, ...) is not None}
        for key, value in theirs.items():
            if value is not None:
                merged[key] = merge(ours.get(key), value, key)
        return merged
    if isinstance(ours, list) and isinstance(theirs, list):
        return _merged(ours, theirs, field)
    return theirs


def _merged(ours: list[Any], theirs: list[Any], field: str) -> list[Any]:
    if field in _APPENDED:
        return ours + [item for item in theirs if item not in ours]
    key = _KEYS.get(field, "name")
    if not all(isinstance(item, Mapping) and key in item for item in ours + theirs):
        return theirs
    by_key = {item[key]: item for item in ours}
    for item in theirs:
        by_key[item[key]] = merge(by_key.get(item[key], {}), item)
    return list(by_key.values())
